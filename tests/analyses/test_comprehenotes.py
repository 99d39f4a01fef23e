"""ComprehENotes: printed numbers from the authors' estimates, likelihood, flaws; enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import shared
from scipy.special import log_expit, logsumexp

from analyses import lalor2020_comprehenotes as comprehenotes
from psychlm import corpora, irt, simulate


@pytest.fixture(scope="module")
def released():
    """mirt's estimates as the authors released them: they are not part of the project."""
    file = shared("reference/irt/comprehenotes/mirt_3pl_common_guessing.csv")
    return pd.read_csv(file, index_col="item")


def test_the_printed_reach_follows_from_the_released_estimates(released):
    full = irt.information_range(released)
    assert (full.peak, full.low, full.high) == pytest.approx((44.2, -2.8, 0.7), abs=0.051)
    without = irt.information_range(released.drop(index="Q44"))
    assert (without.peak, without.peak_ability) == pytest.approx((30.6, -1.5), abs=0.051)


def test_each_person_saw_two_thirds_of_the_items_and_the_likelihood_is_that_of_mirt(released):
    responses = corpora.comprehenotes()
    assert list(responses.columns) == list(released.index)
    assert responses.notna().sum(axis=1).isin([36, 37]).all()
    theta = np.linspace(-6, 6, 241)
    linear = np.outer(released["a"], theta) + released["d"].to_numpy()[:, None]
    guess = released["c"].to_numpy()[:, None]
    right = np.log(guess + (1 - guess) * np.exp(log_expit(linear)))
    wrong = np.log1p(-guess) + log_expit(-linear)
    at_nodes = (responses == 1).to_numpy(float) @ right + (responses == 0).to_numpy(float) @ wrong
    log_weights = -(theta**2) / 2 - logsumexp(-(theta**2) / 2)
    loglik = logsumexp(at_nodes + log_weights, axis=1).sum()
    assert loglik == pytest.approx(-7833.53614, abs=0.01)


@pytest.mark.needs_share
def test_stored_fits_are_those_of_the_responses():
    fitted = comprehenotes.fits(corpora.comprehenotes())
    compared = comprehenotes.compare_with_stored(fitted)
    assert compared["n"] == 3 * 55
    assert compared["max_difference"] < 5e-3
    assert compared["max_loglik_difference"] < 1e-3
    # what is compared sees a change of one item
    changed = fitted["prior"].items.copy()
    changed.loc["Q01", "d"] += 0.1
    changed = changed.drop(columns="b")
    moved = fitted | {"prior": replace(fitted["prior"], items=changed)}
    assert comprehenotes.compare_with_stored(moved)["max_difference"] > 5e-3


def test_stored_estimates_are_near_the_authors_and_name_items_by_number():
    estimates, loglik = comprehenotes.stored_fits()
    common = estimates["common"]
    assert list(common.index) == [f"Q{i:02d}" for i in range(1, 56)]
    # mirt's log-likelihood of the same model, stored in the release, is lower by its tolerance
    assert 0 < loglik["common"] + 7833.53614 < 0.5
    assert common["topic"].value_counts().max() <= comprehenotes.TOPIC_SIZES["copd"]
    assert set(common["topic"]) == set(comprehenotes.TOPIC_SIZES)


def test_planted_flat_and_negative_items_are_removed(released):
    topic = comprehenotes.stored_fits()[0]["common"]["topic"]
    bank = comprehenotes.simulate_bank(released.assign(topic=topic), np.random.default_rng(4))
    items, responses = bank
    assert sum(graded.shape[1] for graded in responses.values()) == 83
    assert (items["flaw"] != "").sum() == 28
    rules = {"order": ("slope",), "guessing": False, "least_ratio": 0}
    graded = comprehenotes.select_by_topic(*bank, **rules)
    assert graded.loc[graded["flaw"].isin(["flat", "negative"]), "removed"].mean() > 0.9
    assert graded.loc[graded["flaw"] == "", "removed"].mean() < 0.3


def test_marginal_residuals_are_those_of_counting_one_subset_at_a_time():
    rng = np.random.default_rng(7)
    items = simulate.items(5, rng, "3PL").assign(c=0.2)
    responses = simulate.responses(rng.normal(size=800), items, rng, missing=0.2)
    theta, patterns = np.linspace(-6, 6, 241), {}
    weights = np.exp(-(theta**2) / 2) / np.exp(-(theta**2) / 2).sum()
    p = irt.curves.probability(theta, items)
    for subset in itertools.combinations(range(5), 3):
        seen = responses.iloc[:, list(subset)].dropna()
        for pattern in itertools.product((0, 1), repeat=3):
            share = np.where(pattern, p[:, subset], 1 - p[:, subset]).prod(axis=1)
            expected = len(seen) * (share @ weights)
            observed = (seen == list(pattern)).all(axis=1).sum()
            if expected >= 5:
                residual = (observed - expected) ** 2 / expected
                key = tuple(items.index[list(subset)])
                patterns[key] = max(patterns.get(key, 0), residual)
    residuals = comprehenotes.marginal_residuals(items, responses, 3)
    assert len(residuals) == len(patterns) == 10
    assert residuals.to_dict() == pytest.approx(patterns)


def test_the_slope_profile_is_highest_at_the_estimate():
    rng = np.random.default_rng(3)
    items = simulate.items(12, rng, "2PL")
    responses = simulate.responses(rng.normal(size=1500), items, rng)
    fit = irt.fit(responses, "2PL")
    item = fit.items["se_a"].idxmin()
    slopes = fit.items.loc[item, "a"] + fit.items.loc[item, "se_a"] * np.array([-2, -1, 0, 1, 2])
    profile = comprehenotes.slope_profile(fit.items, responses, item, slopes)
    assert profile.idxmax() == slopes[2]
    # one standard error costs half a nat where the other items are held, or less
    assert profile.max() - profile.iloc[3] == pytest.approx(0.5, abs=0.2)


def test_the_greedy_form_lowers_the_error_with_every_item_and_begins_with_the_best():
    items = simulate.items(20, np.random.default_rng(5), "2PL")
    errors = comprehenotes.shortest_form(items, -2, 2)
    assert (errors.diff().dropna() < 0).all()
    information = irt.curves.item_information(np.linspace(-2, 2, 101), items)
    alone = (1 + information) ** -0.5
    assert errors.iloc[0] == pytest.approx(alone.mean(axis=0).min())
    whole = ((1 + information.sum(axis=1)) ** -0.5).mean()
    assert errors.iloc[-1] == pytest.approx(whole)
