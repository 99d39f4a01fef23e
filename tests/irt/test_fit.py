"""Item estimates equal those of R's mirt and ltm and brute-force integration, and recover truth."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import expit, logsumexp

from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import _fit, em, likelihood, response_matrix, standard_errors

SMALL = ["LSAT6", "LSAT7"]
DATASETS = [
    *SMALL,
    "5GS_contradiction",
    "5GS_entailment",
    "5GS_neutral",
    "4GS_contradiction",
    "4GS_entailment",
]


pytestmark = pytest.mark.usefixtures("one_thread")


def responses_of(dataset, reference_dir):
    if dataset in SMALL:
        return pd.read_csv(reference_dir / "irt" / f"data_{dataset}.csv")
    return corpora.lalor2016(int(dataset[0])).items_keyed(dataset[4:])


def reference(reference_dir, table, dataset, model):
    rows = pd.read_csv(reference_dir / "irt" / f"{table}.csv")
    return rows[
        (rows["dataset"] == dataset) & (rows["model"] == model) & (rows["fit"] == "tight_TOL1e-6")
    ]


def exact_loglik(fit, responses, step=0.002):
    """Integrate each person's likelihood over ability in steps far below a posterior's width."""
    theta = np.arange(-7, 7 + step / 2, step)
    a, d, c = (fit.items[name].to_numpy() for name in "adc")
    p = np.clip(c + (1 - c) * expit(np.outer(theta, a) * fit.ability_sd + d), 1e-300, 1 - 1e-16)
    x = responses.to_numpy(float)
    right, wrong = np.nan_to_num(x), np.where(np.isnan(x), 0, 1 - x)
    joint = (
        right @ np.log(p).T
        + wrong @ np.log1p(-p).T
        - theta**2 / 2
        - np.log(2 * np.pi) / 2
        + np.log(step)
    )
    return logsumexp(joint, axis=1).sum()


def simulated(n_persons, n_items, model, seed, missing=0.0, rarest=0.0):
    """Draw responses; drop persons without any and items with a proportion below ``rarest``."""
    rng = np.random.default_rng(seed)
    items = simulate.items(n_items, rng, model)
    answered = simulate.responses(rng.normal(size=n_persons), items, rng, missing=missing).dropna(
        how="all"
    )
    varied = (answered.nunique() > 1) & answered.mean().between(rarest, 1 - rarest)
    return items[varied.to_numpy()], answered.loc[:, varied]


@pytest.mark.parametrize("dataset", DATASETS)
def test_2pl_meets_mirt(dataset, reference_dir):
    fit = irt.fit(responses_of(dataset, reference_dir), "2PL")
    mirt = reference(reference_dir, "items", dataset, "2PL").sort_values("index")
    expected = reference(reference_dir, "fits", dataset, "2PL").iloc[0]
    assert fit.converged
    assert fit.loglik > expected["logLik"] - 0.001
    assert np.allclose(
        [fit.aic, fit.bic, fit.sabic], expected[["AIC", "BIC", "SABIC"]].astype(float), atol=0.01
    )
    np.testing.assert_allclose(fit.items["a"], mirt["a"], rtol=0.002)
    np.testing.assert_allclose(fit.items["d"], mirt["intercept_d"], rtol=0.002, atol=0.001)
    for ours, theirs in [("se_a", "se_a1"), ("se_d", "se_d")]:
        np.testing.assert_allclose(fit.items[ours], mirt[theirs], rtol=0.005)


@pytest.mark.parametrize("dataset", DATASETS)
def test_rasch_meets_mirt_on_a_grid_wide_enough(dataset, reference_dir):
    fit = irt.fit(responses_of(dataset, reference_dir), "Rasch")
    wide, items = (
        pd.read_csv(reference_dir / "irt" / f"rasch_wide_{name}.csv") for name in ("fits", "items")
    )
    expected = wide[wide["dataset"] == dataset].iloc[0]
    assert fit.converged
    assert abs(fit.loglik - expected["logLik"]) < 0.001
    assert abs(fit.ability_sd**2 - expected["latent_var"]) < 0.001
    assert abs(fit.se_ability_variance / expected["se_latent_var"] - 1) < 0.005
    mirt = items[items["dataset"] == dataset].sort_values("index")
    np.testing.assert_allclose(fit.items["b"], mirt["b"], atol=0.001)
    np.testing.assert_allclose(fit.items["se_b"], mirt["se_b"], rtol=0.005)


@pytest.mark.parametrize("dataset", DATASETS)
def test_3pl_reaches_the_likelihood_that_mirt_reaches(dataset, reference_dir):
    fit = irt.fit(responses_of(dataset, reference_dir), "3PL", standard_errors=False)
    assert fit.converged
    assert fit.loglik > reference(reference_dir, "fits", dataset, "3PL")["logLik"].iloc[0] - 0.01


def test_well_identified_3pl_items_meet_mirt(reference_dir):
    fit = irt.fit(responses_of("4GS_entailment", reference_dir), "3PL")
    mirt = reference(reference_dir, "items", "4GS_entailment", "3PL").sort_values("index")
    known = (mirt["se_c"] < 0.08).to_numpy() & (mirt["c"] > 0.02).to_numpy()
    assert known.sum() >= 5
    np.testing.assert_allclose(fit.items["c"][known], mirt["c"][known], atol=0.005)
    np.testing.assert_allclose(fit.items["a"][known], mirt["a"][known], rtol=0.01)
    np.testing.assert_allclose(fit.items["se_c"][known], mirt["se_c"][known], rtol=0.03)


def test_1pl_meets_ltm(reference_dir):
    lsat = pd.read_csv(reference_dir / "irt" / "data_LSAT_ltm.csv")
    ltm = json.loads((reference_dir / "irt" / "ltm_LSAT.json").read_text())
    free = ltm["rasch_unconstrained"]
    fit = irt.fit(lsat, "1PL")
    assert abs(fit.loglik - free["logLik"]) < 0.01
    coefficients = {row["_row"]: row["value"] for row in free["coefficients"]}
    assert fit.items["a"].iloc[0] == pytest.approx(coefficients["Dscrmn"], rel=0.001)
    for item, b in fit.items["b"].items():
        assert b == pytest.approx(coefficients[f"Dffclt.{item}"], rel=0.005)


def test_rasch_and_1pl_are_one_model_on_two_scales(reference_dir):
    lsat = responses_of("LSAT7", reference_dir)
    rasch, common = irt.fit(lsat, "Rasch"), irt.fit(lsat, "1pl")
    assert rasch.loglik == pytest.approx(common.loglik, abs=1e-6)
    assert rasch.ability_sd == pytest.approx(common.items["a"].iloc[0], abs=1e-4)
    assert (rasch.items["a"] == 1).all()


@pytest.mark.parametrize(("n_persons", "n_items"), [(400, 60), (200, 600), (100, 3000)])
def test_the_reported_loglik_is_the_exact_one_and_ability_keeps_its_scale(n_persons, n_items):
    _, answered = simulated(n_persons, n_items, "2PL", seed=n_items, rarest=0.1)
    fit = irt.fit(answered, "2PL", standard_errors=False)
    assert fit.converged
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05
    assert abs(fit.ability_sd_check - 1) < 0.01


def test_the_exact_loglik_holds_for_guessing_and_missing_answers():
    _, answered = simulated(200, 150, "3PL", seed=2, missing=0.2, rarest=0.1)
    priors = {"guessing": irt.Beta(5, 17), "slope": irt.LogNormal(0, 0.5)}
    fit = irt.fit(answered, "3PL", standard_errors=False, priors=priors)
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05


def test_interpolated_and_plain_lattices_give_the_same_posteriors():
    _, answered = simulated(150, 300, "2PL", seed=8)
    read = response_matrix.encode_responses(answered, torch.device("cpu"))
    n = read.n_items
    at = likelihood.Parameters(
        torch.full((n,), 1.2).double(), torch.logit(read.n_correct / 150), torch.zeros(n).double()
    )
    plain, interpolated = (
        likelihood.quadrature_grid(0.05),
        likelihood.quadrature_grid(0.2, refinement=4),
    )
    one, other = (
        likelihood.integrate(likelihood.node_loglik(read, at, on.nodes), on)
        for on in (plain, interpolated)
    )
    torch.testing.assert_close(one.loglik, other.loglik, atol=1e-3, rtol=0)
    torch.testing.assert_close(one.mean, other.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.variance, other.variance, atol=1e-6, rtol=1e-4)


def test_a_fit_on_a_fine_grid_without_interpolation_gives_the_same_parameters(monkeypatch):
    _, answered = simulated(150, 400, "2PL", seed=4, rarest=0.1)
    adaptive = irt.fit(answered, "2PL", standard_errors=False)
    assert "interpolated" in adaptive.quadrature
    monkeypatch.setattr(
        _fit, "quadrature_grid", lambda *args, **kwargs: likelihood.quadrature_grid(0.025)
    )
    fixed = irt.fit(answered, "2PL", standard_errors=False)
    assert "interpolated" not in fixed.quadrature
    assert abs(adaptive.loglik - fixed.loglik) < 0.01
    np.testing.assert_allclose(adaptive.items["a"], fixed.items["a"], atol=1e-3)
    np.testing.assert_allclose(adaptive.items["d"], fixed.items["d"], atol=1e-3)


@pytest.mark.parametrize(("model", "missing"), [("1PL", 0.0), ("2PL", 0.0), ("2PL", 0.3)])
def test_parameters_recover_within_two_standard_errors_at_the_nominal_rate(model, missing):
    covered = []
    for seed in range(4):
        items, answered = simulated(1000, 40, model, seed, missing)
        fit = irt.fit(answered, model)
        true_d = -items["a"] * items["b"]
        covered.append(np.abs(fit.items["d"] - true_d) < 2 * fit.items["se_d"])
        covered.append(np.abs(fit.items["b"] - items["b"]) < 2 * fit.items["se_b"])
        if model != "1PL":
            covered.append(np.abs(fit.items["a"] - items["a"]) < 2 * fit.items["se_a"])
    assert 0.91 < np.mean(covered) < 0.99


def test_3pl_parameters_recover_within_two_standard_errors_where_they_are_identified():
    items, answered = simulated(4000, 30, "3PL", seed=11)
    fit = irt.fit(answered, "3PL")
    identified = fit.items["se_c"] < 0.1
    assert identified.sum() > 10
    covered = [
        np.abs(fit.items[n] - items[n])[identified] < 2 * fit.items[f"se_{n}"][identified]
        for n in "abc"
    ]
    assert np.mean(covered) > 0.85


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    n_persons=st.integers(30, 150),
    n_items=st.integers(3, 40),
    missing=st.sampled_from([0.0, 0.2]),
    model=st.sampled_from(["1PL", "Rasch", "2PL"]),
    seed=st.integers(0, 1000),
)
def test_whatever_the_shape_the_loglik_is_exact_and_convergence_is_honest(
    n_persons, n_items, missing, model, seed
):
    _, answered = simulated(n_persons, n_items, model, seed, missing)
    if answered.shape[1] < 3:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", irt.IRTWarning)
        fit = irt.fit(answered, model, max_iterations=300, standard_errors=False)
    assert np.isfinite(fit.items[["a", "d"]]).all(axis=None)
    if fit.items["a"].abs().max() < 10:
        assert abs(fit.loglik - exact_loglik(fit, answered, step=0.01)) < 0.05
    if fit.converged:
        again = irt.fit(answered, model, start=_in_standard_units(fit), standard_errors=False)
        assert again.loglik - fit.loglik < 0.01


def _in_standard_units(fit):
    return fit.items.assign(a=fit.items["a"] * fit.ability_sd)


def test_standard_errors_are_those_of_a_numerical_hessian():
    _, answered = simulated(300, 6, "2PL", seed=3, missing=0.2)
    fit = irt.fit(answered, "2PL", tolerance=1e-6)
    point = fit.items[["a", "d"]].to_numpy().T.ravel()

    def negative(vector):
        moved = fit.items.assign(a=vector[:6], d=vector[6:])
        return -exact_loglik(_With(moved), answered, step=0.05)

    hessian = _hessian(negative, point)
    expected = np.sqrt(np.diag(np.linalg.inv(hessian)))
    np.testing.assert_allclose(
        fit.items[["se_a", "se_d"]].to_numpy().T.ravel(), expected, rtol=1e-3
    )


class _With:
    ability_sd = 1.0

    def __init__(self, items):
        self.items = items


def _hessian(function, point, h=1e-3):
    n = len(point)
    eye = h * np.eye(n)
    return np.array(
        [
            [
                (
                    function(point + eye[i] + eye[j])
                    - function(point + eye[i] - eye[j])
                    - function(point - eye[i] + eye[j])
                    + function(point - eye[i] - eye[j])
                )
                / (4 * h * h)
                for j in range(n)
            ]
            for i in range(n)
        ]
    )


@pytest.mark.parametrize("model", ["1PL", "2PL"])
def test_standard_errors_from_the_joint_curvature_are_close_to_the_exact_ones(model):
    _, answered = simulated(150, 400, model, seed=6, rarest=0.1)
    read = response_matrix.encode_responses(answered, torch.device("cpu"))
    design = likelihood.Design(model == "1PL", torch.zeros(read.n_items, dtype=torch.bool), {})
    start = likelihood.Parameters(
        torch.ones(read.n_items).double(),
        torch.logit(read.n_correct / 150),
        torch.zeros(read.n_items).double(),
    )
    found = _fit.estimate(read, design, [start], em.Settings(1e-5, 200, False))
    exact = standard_errors.standard_errors(read, design, found.parameters, found.grid)
    assert exact.covariance is not None
    free = standard_errors.free_parameters(design, found.parameters)
    (slope, intercept, _), _ = standard_errors.joint_variances(
        read, design, found.parameters, found.grid, free
    )
    np.testing.assert_allclose(slope**0.5, exact.slope, rtol=0.05)
    np.testing.assert_allclose(intercept**0.5, exact.intercept, rtol=0.05)
    assert abs(np.median(slope**0.5 / exact.slope) - 1) < 0.01


def test_a_matrix_and_a_memory_map_give_what_the_frame_gives(tmp_path):
    _, answered = simulated(80, 90, "2PL", seed=5, missing=0.1, rarest=0.2)
    matrix = answered.fillna(255).to_numpy().astype(np.uint8)
    path = tmp_path / "answers.u8"
    matrix.tofile(path)
    mapped = np.memmap(path, np.uint8, "r", shape=matrix.shape)
    frame, array, disk = (
        irt.fit(
            x, "2PL", item_names=None if x is answered else answered.columns, standard_errors=False
        )
        for x in (answered, matrix, mapped)
    )
    assert frame.loglik == array.loglik == disk.loglik
    pd.testing.assert_frame_equal(frame.items, array.items)
    pd.testing.assert_frame_equal(frame.items, disk.items)


def test_blocks_of_items_change_nothing(monkeypatch):
    _, answered = simulated(60, 60, "2PL", seed=9, rarest=0.2)
    options = {
        "priors": {"guessing": irt.Beta(), "slope": irt.LogNormal()},
        "standard_errors": False,
    }
    whole = irt.fit(answered, "3PL", **options)
    monkeypatch.setattr(response_matrix, "BLOCK_CELLS", 60 * 7)
    monkeypatch.setattr(response_matrix, "KEPT_CELLS", 0)
    parts = irt.fit(answered, "3PL", **options)
    np.testing.assert_allclose(
        whole.items[["a", "d", "c"]], parts.items[["a", "d", "c"]], atol=1e-5
    )


def test_collapsed_patterns_change_nothing(monkeypatch, reference_dir):
    lsat = responses_of("LSAT6", reference_dir)
    collapsed = irt.fit(lsat, "2PL")
    monkeypatch.setattr(response_matrix, "COLLAPSED_ITEMS", 0)
    one_by_one = irt.fit(lsat, "2PL")
    assert collapsed.loglik == pytest.approx(one_by_one.loglik, abs=1e-8)
    np.testing.assert_allclose(collapsed.items["se_a"], one_by_one.items["se_a"], rtol=1e-6)


def test_two_fits_of_the_same_data_are_equal_to_the_last_digit():
    _, answered = simulated(200, 30, "2PL", seed=1)
    pd.testing.assert_frame_equal(
        irt.fit(answered).items, irt.fit(answered).items, check_exact=True
    )


def test_slopes_point_towards_more_right_answers_even_from_a_start_that_points_away():
    _, answered = simulated(300, 20, "2PL", seed=1)
    fit = irt.fit(answered)
    turned = irt.fit(answered, start=fit.items.assign(a=-fit.items["a"]))
    np.testing.assert_allclose(turned.items["a"], fit.items["a"], atol=1e-4)


def test_a_json_file_gives_back_an_equal_fit(tmp_path):
    _, answered = simulated(200, 10, "3PL", seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", irt.IRTWarning)
        fit = irt.fit(answered, "3PL", max_iterations=50)
    fit.to_json(tmp_path / "fit.json")
    again = irt.IRTFit.from_json(tmp_path / "fit.json")
    pd.testing.assert_frame_equal(fit.items, again.items, check_exact=True)
    pd.testing.assert_frame_equal(fit.score(answered), again.score(answered), check_exact=True)
    assert (fit.covariance is None) == (again.covariance is None)
    if fit.covariance is not None:
        pd.testing.assert_frame_equal(fit.covariance, again.covariance, check_exact=True)
    assert (fit.loglik, fit.bic, fit.converged, fit.quadrature) == (
        again.loglik,
        again.bic,
        again.converged,
        again.quadrature,
    )
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not a fit"):
        irt.IRTFit.from_json(tmp_path / "other.json")


def test_2pl_and_3pl_items_mix_and_guessing_can_be_fixed():
    items, answered = simulated(800, 12, "3PL", seed=4)
    kinds = pd.Series("2PL", index=answered.columns)
    kinds.iloc[:4] = "3PL"
    mixed = irt.fit(answered, kinds, priors={"guessing": irt.Beta(5, 17)})
    assert mixed.model == "mixed"
    assert mixed.n_parameters == 28
    assert mixed.items["c_is_free"].tolist() == [True] * 4 + [False] * 8
    assert (mixed.items["c"].iloc[4:] == 0).all()
    fixed = irt.fit(answered, "3PL", guessing=0.2)
    assert (fixed.items["c"] == 0.2).all()
    assert fixed.n_parameters == 24
    assert fixed.items["se_c"].isna().all()
    one = irt.fit(answered, "2PL", guessing=pd.Series({answered.columns[0]: 0.25}))
    assert one.items["c"].tolist() == [0.25] + [0.0] * 11


def test_a_beta_prior_keeps_a_3pl_from_running_away():
    _, answered = simulated(250, 15, "3PL", seed=0)
    fit = irt.fit(
        answered, "3PL", priors={"guessing": irt.Beta(5, 17), "slope": irt.LogNormal(0, 0.5)}
    )
    assert fit.converged
    assert fit.items["c"].between(0.02, 0.6).all()
    assert fit.items["a"].between(0, 6).all()
    assert fit.items["se_c"].notna().all()


def test_a_weak_prior_makes_difficulties_of_constant_items_finite():
    _, answered = simulated(60, 8, "Rasch", seed=2)
    answered["all right"] = 1.0
    with pytest.raises(FrameError, match="'all right'.*drop_constant"):
        irt.fit(answered, "Rasch")
    fit = irt.fit(answered, "Rasch", priors={"intercept": irt.Normal(0, 3)})
    assert -12 < fit.items.loc["all right", "b"] < fit.items["b"].drop("all right").min()


def test_a_prior_of_the_wrong_kind_is_refused():
    _, answered = simulated(60, 8, "2PL", seed=2)
    with pytest.raises(FrameError, match="'guessing'"):
        irt.fit(answered, "3PL", priors={"guessing": irt.Normal()})
    with pytest.raises(FrameError, match="no slopes"):
        irt.fit(answered, "Rasch", priors={"slope": irt.LogNormal()})


def test_fewer_than_three_items_are_refused():
    with pytest.raises(FrameError, match="at least 3"):
        irt.fit(pd.DataFrame({"i": [0, 1, 1], "j": [1, 0, 1]}), "2PL")


def test_matrices_that_are_none_are_refused():
    with pytest.raises(FrameError, match="255"):
        irt.fit(np.ones((4, 4)), "2PL")
    with pytest.raises(FrameError, match="values other"):
        irt.fit(np.full((4, 4), 3, np.uint8), "2PL")
    with pytest.raises(FrameError, match="answered no item"):
        irt.fit(np.array([[0, 1, 1], [255, 255, 255]], np.uint8), "2PL")


def test_items_that_stand_twice_are_named():
    _, answered = simulated(200, 8, "2PL", seed=2)
    answered["copy"] = answered.iloc[:, 3]
    with pytest.warns(irt.IRTWarning, match=f"{answered.columns[3]}.*copy"):
        irt.fit(answered, "2PL")


def test_a_separated_item_is_named_and_the_fit_does_not_claim_to_have_converged():
    _, answered = simulated(120, 200, "2PL", seed=2, rarest=0.15)
    answered["separated"] = (answered.mean(axis=1) > 0.6).astype(float)
    with pytest.warns(irt.IRTWarning, match="'separated'.*separated by ability"):
        fit = irt.fit(answered, "2PL", max_iterations=500)
    assert not fit.converged
    others = irt.fit(answered.drop(columns="separated"), "2PL")
    assert others.converged
    assert np.median(np.abs(fit.items["a"].drop("separated") - others.items["a"])) < 0.05


def test_a_slope_at_its_bound_has_the_intercept_that_is_best_there():
    """The score equation of logistic regression: expected equals observed correct responses.

    A step past the bound that was cut afterwards left another intercept, and two values for ever.
    """
    rng = np.random.default_rng(0)
    theta = rng.normal(size=300)
    steep = pd.DataFrame(
        {"a": 5.0, "b": np.zeros(10), "c": 0.0}, index=[f"item{j}" for j in range(10)]
    )
    matrix = simulate.responses(theta, steep, rng).assign(separated=(theta > 1).astype(float))
    responses = response_matrix.encode_responses(matrix, torch.device("cpu"))
    slope = torch.tensor([5.0] * 10 + [29.9], dtype=torch.float64)
    start = likelihood.Parameters(slope, -slope * torch.tensor([0.0] * 10 + [1.0]), 0 * slope)
    none = torch.zeros(11, dtype=torch.bool)
    design = likelihood.Design(False, none, {}, largest_slope=30.0)
    grid = likelihood.quadrature_grid(step=0.025)
    posterior = likelihood.integrate(likelihood.node_loglik(responses, start, grid.nodes), grid)
    better = em.maximise(responses, design, start, posterior, grid.nodes, 1e-9)
    assert better.slope[-1] == 30
    expected = posterior.weights.T @ responses.count
    expected = expected @ torch.sigmoid(30 * grid.nodes + better.intercept[-1])
    assert float(expected) == pytest.approx(float(responses.n_correct[-1]), abs=1e-6)


def test_reaching_the_last_iteration_is_a_warning_and_no_convergence():
    _, answered = simulated(200, 10, "2PL", seed=2)
    with pytest.warns(irt.IRTWarning, match="max_iterations"):
        fit = irt.fit(answered, "2PL", max_iterations=2)
    assert not fit.converged


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_the_processor_gives():
    _, answered = simulated(300, 50, "2PL", seed=2)
    one, other = (irt.fit(answered, "2PL", device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(
        one.items[["a", "d", "se_a"]], other.items[["a", "d", "se_a"]], rtol=1e-5
    )


def test_an_unknown_model_is_refused():
    _, answered = simulated(50, 5, "2PL", seed=2)
    with pytest.raises(ValueError, match="5PL"):
        irt.fit(answered, "5PL")
    with pytest.raises(FrameError, match="neither"):
        irt.fit(answered, {answered.columns[0]: "3PL"})


def test_steep_items_of_240_language_models_converge_to_the_exact_likelihood() -> None:
    """Many models are checkpoints of one run, so that items separate them almost perfectly."""
    models = corpora.laverghetta2021().models
    fit = irt.fit(models, "2PL")
    assert fit.converged
    assert 15 < fit.items["a"].max() < likelihood.LARGEST_SLOPE
    assert abs(fit.loglik - exact_loglik(fit, models)) < 0.02
    assert fit.items["se_a"].notna().all()
