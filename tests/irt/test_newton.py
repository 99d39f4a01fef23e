"""Models with guessing: likelihoods that mirt and random starts reach, common guessing, edges."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
from exact_likelihood import exact_loglik
from scipy.special import expit

from psychlm import data, irt, simulate
from psychlm.irt.likelihood import LARGEST_SLOPE

pytestmark = pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")


def guessed(seed: int, n_persons: int = 800, n_items: int = 15, guessing: float | None = 0.2):
    rng = np.random.default_rng(seed)
    items = simulate.items(n_items, rng, "3PL")
    items = items if guessing is None else items.assign(c=guessing)
    return simulate.responses(rng.normal(size=n_persons), items, rng)


quiet_fit = partial(irt.fit, standard_errors=False)


def test_common_guessing_is_one_parameter_between_none_and_one_per_item():
    answered = guessed(1, n_persons=3000, n_items=20)
    none, free = (quiet_fit(answered, model) for model in ("2PL", "3PL"))
    common = irt.fit(answered, "3PL", guessing="common")
    assert common.items["c"].nunique() == 1
    assert (none.n_parameters, common.n_parameters, free.n_parameters) == (40, 41, 60)
    assert none.loglik < common.loglik < free.loglik
    c, se = common.items[["c", "se_c"]].iloc[0]
    assert abs(c - 0.2) < 3 * se < 0.2
    assert ("all", "c") in common.covariance.index
    assert abs(common.loglik - exact_loglik(common, answered)) < 0.05


def test_an_item_whose_steep_solution_is_better_is_found():
    """A flat start alone ends in a local maximum, one nat or more below."""
    rng = np.random.default_rng(8)
    theta = rng.normal(size=660)
    a = np.append(rng.uniform(0.8, 2.0, 20), 12.0)
    b = np.append(rng.uniform(-2, 1, 20), -1.9)
    p = 0.2 + 0.8 * expit(a * (theta[:, None] - b))
    answered = pd.DataFrame((rng.random(p.shape) < p).astype(float))
    fit = quiet_fit(answered, "3PL", guessing=0.2)
    truth = pd.DataFrame({"a": a, "b": b, "c": 0.2, "d": -a * b}, index=answered.columns)
    begun_at_truth = quiet_fit(answered, "3PL", guessing=0.2, start=truth)
    assert fit.loglik > begun_at_truth.loglik - 0.01


@pytest.mark.needs_share
@pytest.mark.parametrize(
    ("options", "reached"),
    [
        ({"guessing": 0.1975766}, -7833.5315),
        ({"guessing": "common"}, -7833.5315),
        # mirt with 121 nodes reaches -7809.0148, with one slope of 191
        ({}, -7809.0148),
    ],
    ids=["fixed", "common", "free"],
)
def test_comprehenotes_reaches_what_mirt_reaches(options, reached):
    responses = pd.read_csv(data.path("comprehenotes/responses"), index_col=0)
    fit = quiet_fit(responses, "3PL", **options)
    assert fit.loglik > reached
    assert fit.items["converged"].drop("Q44").all()


def answers_of_language_models(benchmark: str) -> pd.DataFrame:
    """Read the graded answers of metabench (Kipnis et al. 2025), models by items."""
    return data.facts(f"metabench/{benchmark}").set_index("model")


@pytest.mark.parametrize("bank", ["arc", "gsm8k"])
def test_a_2pl_of_thousands_of_language_models_is_above_mirt(bank, reference_dir):
    folder = reference_dir / "irt" / "metabench"
    fits = pd.read_csv(folder / "mirt_fits.csv", index_col="benchmark")
    released = pd.read_csv(folder / f"{bank}_items.csv", index_col=0)
    fit = quiet_fit(answers_of_language_models(bank), "2PL")
    assert fit.converged
    assert fit.loglik > fits.loc[bank, "loglik"]
    assert fit.loglik_error < 0.01
    assert np.corrcoef(fit.items["a"], released["a"])[0, 1] > 0.98


@pytest.mark.exhaustive
def test_a_3pl_of_mmlu_converges_to_its_exact_likelihood_far_above_the_2pl():
    """Items that separate the models perfectly stay at the bound; all others converge."""
    answered = answers_of_language_models("mmlu")
    without, fit = quiet_fit(answered, "2PL"), quiet_fit(answered, "3PL")
    assert without.converged
    at_bound = fit.items["a"].abs() >= LARGEST_SLOPE
    assert at_bound.sum() < 8
    assert fit.items["converged"][~at_bound].all()
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05
    assert fit.loglik > without.loglik + 6600  # what mirt's 3PL gains over a 2PL


@pytest.mark.exhaustive
@pytest.mark.parametrize("dataset", ["LSAT6", "LSAT7", *range(8)])
def test_no_random_start_ends_higher(dataset, read_responses):
    """Free guessing on LSAT and simulated data: 50 random starts never gain more than 0.01 nats."""
    if isinstance(dataset, str):
        answered = read_responses(dataset)
    else:
        answered = guessed(dataset, n_persons=600, n_items=12, guessing=None)
    ours, rng, n = quiet_fit(answered, "3PL"), np.random.default_rng(0), answered.shape[1]
    for _ in range(50):
        values = rng.lognormal(0.3, 0.7, n), rng.normal(0.5, 1.5, n), rng.uniform(0, 0.5, n)
        start = pd.DataFrame(dict(zip("adc", values, strict=True)), answered.columns)
        assert quiet_fit(answered, "3PL", start=start).loglik < ours.loglik + 0.01


def test_slopes_of_items_that_were_keyed_wrongly_are_negative():
    answered = guessed(5, n_persons=1500, n_items=30)
    answered.iloc[:, :5] = 1 - answered.iloc[:, :5]
    slopes = quiet_fit(answered, "3PL").items["a"]
    assert (slopes.iloc[:5] < 0).all() and (slopes.iloc[5:] > 0).all()


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_three_items_of_forty_persons_reach_a_maximum_of_the_likelihood(seed):
    """The curve of an item becomes a step: 1 / P exceeds what single precision holds."""
    rng = np.random.default_rng(seed)
    p = expit(rng.normal(size=40)[:, None] - [-1, 0, 1])
    answered = pd.DataFrame((rng.random((40, 3)) < p).astype(int), columns=list("abc"))
    fit = quiet_fit(answered, "3PL")
    assert fit.loglik >= quiet_fit(answered, "2PL").loglik - 1e-4
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05
