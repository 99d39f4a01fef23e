"""ComprehENotes: the authors' printed numbers from their released estimates, and planted flaws."""

import numpy as np
import pytest

from psychlm import corpora, data, irt
from psychlm.papers import lalor2020_comprehenotes as comprehenotes


@pytest.fixture(scope="module")
def released():
    return data.published("comprehenotes.items").set_index("item")


def test_the_printed_reach_follows_from_the_released_estimates(released):
    full = irt.information_range(released)
    assert (round(full.peak, 1), round(full.low, 1), round(full.high, 1)) == (44.2, -2.8, 0.7)
    without = irt.information_range(released.drop(index="Q44"))
    assert (round(without.peak, 1), round(without.peak_ability, 1)) == (30.6, -1.5)


@pytest.mark.needs_share
def test_each_person_saw_two_thirds_of_the_items(released):
    responses = corpora.comprehenotes()
    assert list(responses.columns) == list(released.index)
    assert responses.notna().sum(axis=1).isin([36, 37]).all()


@pytest.mark.needs_share
def test_the_released_estimates_have_the_likelihood_of_mirt(released):
    x = corpora.comprehenotes().to_numpy()
    theta = np.linspace(-6, 6, 241)
    p = released["c"].to_numpy()[:, None] + (1 - released["c"].to_numpy()[:, None]) / (
        1 + np.exp(-(np.outer(released["a"], theta) + released["d"].to_numpy()[:, None]))
    )
    weights = np.exp(-(theta**2) / 2)
    weights /= weights.sum()
    log_joint = np.nan_to_num(x) @ np.log(p) + np.nan_to_num(1 - x) @ np.log1p(
        -np.minimum(p, 1 - 1e-16)
    )
    assert np.log(np.exp(log_joint) @ weights).sum() == pytest.approx(-7833.53614, abs=0.01)


def test_planted_flat_and_negative_items_are_removed(released):
    bank = comprehenotes.simulate_bank(released, np.random.default_rng(4))
    assert sum(r.shape[1] for r in bank.responses.values()) == 83
    assert (bank.items["flaw"] != "").sum() == 28
    rules = {"order": ("slope",), "guessing": False, "least_ratio": 0}
    graded = comprehenotes.select_by_topic(bank, **rules)
    assert graded.loc[graded["flaw"].isin(["flat", "negative"]), "removed"].mean() > 0.9
    assert graded.loc[graded["flaw"] == "", "removed"].mean() < 0.3
