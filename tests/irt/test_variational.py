"""Variational inference against Monte Carlo, brute force, marginal likelihood and known values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, log_expit

from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import variational as vi
from psychlm.irt.response_matrix import encode_responses
from psychlm.irt.variational import (
    Cells,
    ability_derivatives,
    best_scale,
    expected_loglik,
    item_derivatives,
)

DRAWS = 400_000


def rmsd(x: pd.Series, y: pd.Series) -> float:
    return float(np.sqrt(((x - y) ** 2).mean()))


def one_cell(right: float) -> Cells:
    covariance = torch.tensor([[[0.09, 0.05], [0.05, 0.2]]], dtype=torch.float64)
    values = ([[right]], [0.7], [0.3], [[1.4, -0.5]])
    correct, *others = (torch.tensor(value, dtype=torch.float64) for value in values)
    return Cells(correct, None, *others, covariance)


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    return simulate.responses(rng.normal(size=400), simulate.items(20, rng), rng, missing=0.2)


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_the_expectations_are_those_of_a_monte_carlo_sample(
    rng: np.random.Generator, right: float
) -> None:
    cell, one = one_cell(right), torch.ones(1, dtype=torch.float64)
    theta = rng.normal(0.7, np.sqrt(0.3), DRAWS)
    a, d = rng.multivariate_normal([1.4, -0.5], cell.item_covariance[0].numpy(), DRAWS).T
    z = a * theta + d
    s = expit(z)
    (by_ability, ability_gradient), (by_item, gradient) = (
        ability_derivatives(cell),
        item_derivatives(cell, one),
    )
    loglik = np.where(right, log_expit(z), log_expit(-z))
    for ours, sample in (
        (expected_loglik(cell, one), loglik),
        (ability_gradient[0, 0], a * (right - s)),
        (by_ability[0, 0, 0], a**2 * s * (1 - s)),
        (gradient[0, 0], theta * (right - s)),
        (gradient[0, 1], right - s),
        (by_item[0, 0, 0], theta**2 * s * (1 - s)),
        (by_item[0, 0, 1], theta * s * (1 - s)),
        (by_item[0, 1, 1], s * (1 - s)),
    ):
        assert float(ours) == pytest.approx(sample.mean(), abs=4.5 * sample.std() / np.sqrt(DRAWS))


def test_the_bound_lies_below_the_evidence_and_close_to_it() -> None:
    """Two persons, three Rasch items, vague priors: the evidence on a product of dense grids."""
    right = np.array([[1, 0, 1], [0, 1, 0]])
    difficulty = np.linspace(-150, 150, 4001)
    prior = (
        np.exp(-(difficulty**2) / 2000) / np.sqrt(2000 * np.pi) * (difficulty[1] - difficulty[0])
    )
    theta = np.linspace(-6, 6, 61)
    weight = np.exp(-(theta**2) / 2) / np.exp(-(theta**2) / 2).sum()
    curve = expit(theta[:, None] - difficulty)
    answer = [[curve if x else 1 - curve for x in person] for person in right]
    pairs = [
        (answer[0][i] * prior) @ answer[1][i].T for i in range(3)
    ]  # abilities of person 1 x of person 2
    evidence = np.log(weight @ np.prod(pairs, axis=0) @ weight)
    found = vi.infer(pd.DataFrame(right.astype(float)), "Rasch", priors="vague")
    assert evidence - 2 < found.elbo < evidence


@pytest.mark.parametrize("priors", vi.PRIORS)
@pytest.mark.parametrize("model", ["Rasch", "2PL"])
def test_the_bound_never_falls(people: pd.DataFrame, model: str, priors: str) -> None:
    search = vi.Search(encode_responses(people, torch.device("cpu")), model, priors, None, 0)
    search.sweep()
    bounds = []
    for _ in range(12):
        search.sweep()
        bounds.append(search.elbo())
    assert np.diff(bounds).min() > -1e-3
    assert bounds[-1] > bounds[0]


def test_moving_the_scale_leaves_every_expected_answer_and_raises_the_bound(
    people: pd.DataFrame,
) -> None:
    search = vi.Search(encode_responses(people, torch.device("cpu")), "2PL", "vague", None, 0)
    search.sweep()
    everything = slice(None)
    search.persons.mean += 0.5

    def likelihood() -> float:
        return expected_loglik(
            search.cells(everything, everything),
            search.persons.weight,
        )

    before, bound = likelihood(), search.elbo()
    of_persons, of_items = best_scale(search.persons, search.items)
    search.persons.move(*of_persons)
    search.items.move(*of_items)
    assert likelihood() == pytest.approx(before, abs=1e-3)  # the quadrature's own error
    assert search.elbo() > bound + 1


@pytest.mark.parametrize("shape", [(300, 20), (40, 120)], ids=["persons-first", "items-first"])
def test_minibatches_come_to_rest_where_full_passes_do(
    rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    answers = simulate.responses(
        rng.normal(size=shape[0]), simulate.items(shape[1], rng), rng, missing=0.1
    )
    whole = vi.infer(answers, "2PL", batch=10_000)
    parts = vi.infer(answers, "2PL", batch=17, seed=3)
    again = vi.infer(answers, "2PL", batch=17, seed=3)
    assert whole.fit.converged and parts.fit.converged
    # narrower batches use rules with fewer nodes, so batches agree up to the error of the rules
    pd.testing.assert_frame_equal(whole.fit.items, parts.fit.items, atol=5e-3, rtol=5e-3)
    pd.testing.assert_frame_equal(parts.fit.items, again.fit.items, atol=0, rtol=0)
    assert parts.elbo == again.elbo


def test_rasch_difficulties_and_abilities_are_those_of_marginal_maximum_likelihood(
    rng: np.random.Generator,
) -> None:
    items = simulate.items(30, rng, "Rasch")
    answers = simulate.responses(rng.normal(0, 1.3, 500), items, rng)
    exact = irt.fit(answers, "Rasch", standard_errors=False)
    found = vi.infer(answers, "Rasch")
    assert rmsd(found.fit.items["b"], exact.items["b"]) < 0.03
    assert rmsd(found.abilities["theta"], exact.score(answers)["theta"]) < 0.02
    assert found.fit.ability_sd == pytest.approx(exact.ability_sd, rel=0.02)
    assert exact.loglik - 1 < found.fit.loglik < exact.loglik
    np.testing.assert_allclose(found.fit.items["se_b"], 1 / np.sqrt(500 * 0.15), rtol=0.5)


def test_on_real_answers_variational_and_exact_estimates_are_closer_than_published() -> None:
    """Lalor (2020), section 5.4.2: RMSD of 0.158 (difficulty) and 0.154 (ability)."""
    answers = corpora.lalor2016(5).items_keyed("neutral")
    exact = irt.fit(answers, "Rasch", standard_errors=False)
    found = vi.infer(answers, "Rasch")
    assert rmsd(found.fit.items["b"], exact.items["b"]) < 0.158 / 3
    assert rmsd(found.abilities["theta"], exact.score(answers)["theta"]) < 0.154 / 3


def test_2pl_parameters_are_recovered_with_missing_answers(people: pd.DataFrame) -> None:
    rng = np.random.default_rng(11)
    rng.normal(size=400)
    known = simulate.items(20, rng)
    found = irt.fit(people, "2PL", method="vi")
    off = (found.items[["a"]] - known[["a"]]) / found.items[["se_a"]].set_axis(["a"], axis=1)
    assert found.method == "vi" and found.converged
    assert off["a"].abs().median() < 1.5
    assert np.corrcoef(found.items["d"], -known["a"] * known["b"])[0, 1] > 0.97
    assert found.ability_sd_check == pytest.approx(1, abs=0.1)


def test_an_item_that_all_answered_alike_keeps_a_finite_difficulty(people: pd.DataFrame) -> None:
    found = irt.fit(people.assign(trivial=1.0), "Rasch", method="vi")
    assert np.isfinite(found.items.loc["trivial", ["b", "se_b"]].astype(float)).all()
    assert found.items["b"].idxmin() == "trivial"


def test_a_fit_is_an_ordinary_fit_that_scores_and_goes_to_disk(
    people: pd.DataFrame, tmp_path
) -> None:
    found = vi.infer(people, "1PL")
    found.fit.to_json(tmp_path / "fit.json")
    again = irt.IRTFit.from_json(tmp_path / "fit.json")
    pd.testing.assert_frame_equal(found.fit.items, again.items)
    assert rmsd(again.score(people)["theta"], found.abilities["theta"]) < 0.02


def test_what_it_cannot_do_is_refused(people: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="3PL.*mml"):
        vi.infer(people, "3PL")
    with pytest.raises(ValueError, match="flat"):
        vi.infer(people, priors="flat")
    with pytest.raises(ValueError, match="guessing.*mml"):
        irt.fit(people, "2PL", method="vi", guessing=0.2)
    with pytest.raises(FrameError, match="at least 3"):
        vi.infer(people.iloc[:, :2].dropna())
    with pytest.warns(irt.IRTWarning, match="no convergence"):
        assert not vi.infer(people, "2PL", max_iterations=2).fit.converged
