"""ComprehENotes: printed numbers from the authors' estimates, likelihood, enumeration."""

import itertools

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
