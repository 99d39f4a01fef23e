"""ComprehENotes: printed numbers from the authors' estimates, their likelihood; planted flaws."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_expit, logsumexp

from psychlm import corpora, irt
from psychlm.papers import lalor2020_comprehenotes as comprehenotes

pytestmark = pytest.mark.needs_share


@pytest.fixture(scope="module")
def released(shared_reference_dir):
    """mirt's estimates as the authors released them: they are not part of the project."""
    file = shared_reference_dir / "irt" / "comprehenotes" / "mirt_3pl_common_guessing.csv"
    return pd.read_csv(file, index_col="item")


def test_the_printed_reach_follows_from_the_released_estimates(released):
    full = irt.information_range(released)
    assert (round(full.peak, 1), round(full.low, 1), round(full.high, 1)) == (44.2, -2.8, 0.7)
    without = irt.information_range(released.drop(index="Q44"))
    assert (round(without.peak, 1), round(without.peak_ability, 1)) == (30.6, -1.5)


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


def test_planted_flat_and_negative_items_are_removed(released):
    bank = comprehenotes.simulate_bank(released, np.random.default_rng(4))
    assert sum(r.shape[1] for r in bank.responses.values()) == 83
    assert (bank.items["flaw"] != "").sum() == 28
    rules = {"order": ("slope",), "guessing": False, "least_ratio": 0}
    graded = comprehenotes.select_by_topic(bank, **rules)
    assert graded.loc[graded["flaw"].isin(["flat", "negative"]), "removed"].mean() > 0.9
    assert graded.loc[graded["flaw"] == "", "removed"].mean() < 0.3
