"""Variational inference against Monte Carlo, marginal maximum likelihood and known parameters."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from analyses import variational as vi
from psychlm import corpora, irt, simulate

DRAWS = 400_000


def rmsd(x: pd.Series, y: pd.Series) -> float:
    return float(np.sqrt(((x - y) ** 2).mean()))


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    items = simulate.items(20, rng, "Rasch")
    return simulate.responses(rng.normal(size=400), items, rng, missing=0.2)


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("variance", [0.2, 5.0])
def test_the_expectations_are_those_of_a_monte_carlo_sample(rng, right, variance):
    s = expit(rng.normal(0.7, np.sqrt(variance), DRAWS))
    values = (torch.tensor([[x]], dtype=torch.float64) for x in (right, 0.7, variance))
    correct, mean, spread = values
    curvature, gradient = vi.expected_derivatives(correct, None, mean, spread)
    for ours, sample in ((gradient, right - s), (curvature, s * (1 - s))):
        assert float(ours) == pytest.approx(sample.mean(), abs=4.5 * sample.std() / np.sqrt(DRAWS))


def test_difficulties_and_abilities_are_those_of_marginal_maximum_likelihood(rng):
    """Lalor (2020), section 5.4.2: RMSD of 0.158 (difficulty) and 0.154 (ability) on real data."""
    items = simulate.items(30, rng, "Rasch")
    simulated = simulate.responses(rng.normal(0, 1.3, 500), items, rng)
    real = corpora.lalor2016(5).items_keyed("neutral")
    for answers, of_b, of_theta in ((simulated, 0.03, 0.02), (real, 0.158 / 3, 0.154 / 3)):
        exact = irt.fit(answers, "Rasch", standard_errors=False)
        found = vi.infer(answers)
        assert found.method == "vi" and found.converged
        assert rmsd(found.items["b"], exact.items["b"]) < of_b
        assert rmsd(found.score(answers)["theta"], exact.score(answers)["theta"]) < of_theta
        if answers is simulated:
            assert found.ability_sd == pytest.approx(exact.ability_sd, rel=0.02)
            np.testing.assert_allclose(found.items["se_b"], 1 / np.sqrt(500 * 0.15), rtol=0.5)


def test_an_item_that_all_answered_alike_keeps_a_finite_difficulty(people):
    found = vi.infer(people.assign(trivial=1.0))
    assert np.isfinite(found.items.loc["trivial", ["b", "se_b"]].astype(float)).all()
    assert found.items["b"].idxmin() == "trivial"
