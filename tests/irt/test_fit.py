"""Item estimates equal those of R's mirt and ltm; likelihoods are exact, and none is higher.

References: mirt and ltm; the integral over ability in small steps; a numerical Hessian; 50 random
starts."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit, logsumexp
from scipy.stats import beta as beta_distribution
from scipy.stats import norm
from statsmodels.tools.numdiff import approx_hess3

from psychlm import corpora, data, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import standard_errors
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning"),
]


quiet_fit = partial(irt.fit, standard_errors=False)


def simulated(n_persons, n_items, model, seed, missing=0.0, rarest=0.0, **known):
    """Draw responses; drop persons without any and items with a proportion below ``rarest``."""
    rng = np.random.default_rng(seed)
    items = simulate.items(n_items, rng, model).assign(**known)
    answered = simulate.responses(rng.normal(size=n_persons), items, rng, missing=missing)
    answered = answered.dropna(how="all")
    return answered.loc[:, (answered.nunique() > 1) & answered.mean().between(rarest, 1 - rarest)]


def exact_loglik(fit, responses, step=0.005):
    """Integrate each person's likelihood over ability in steps far below a posterior's width."""
    theta = np.arange(-7, 7 + step / 2, step)
    a, d, c, u = fit.items.assign(u=fit.items.get("u", 1.0))[list("adcu")].to_numpy().T
    p = c + (u - c) * expit(np.outer(theta, a) * fit.ability_sd + d)
    p = np.clip(p, 1e-300, 1 - 1e-16)
    x = responses.to_numpy(float)
    right, wrong = np.nan_to_num(x), np.where(np.isnan(x), 0, 1 - x)
    joint = right @ np.log(p).T + wrong @ np.log1p(-p).T + norm.logpdf(theta) + np.log(step)
    return logsumexp(joint, axis=1).sum()


def test_2pl_meets_mirt(dataset, read_responses, mirt):
    fit, theirs = irt.fit(read_responses(dataset), "2PL"), mirt("items", dataset, "2PL")
    expected = mirt("fits", dataset, "2PL").iloc[0]
    assert fit.converged
    assert fit.loglik > expected["logLik"] - 0.001
    criteria = expected[["AIC", "BIC", "SABIC"]].astype(float)
    assert np.allclose([fit.aic, fit.bic, fit.sabic], criteria, atol=0.01)
    np.testing.assert_allclose(fit.items["a"], theirs["a"], rtol=0.002)
    np.testing.assert_allclose(fit.items["d"], theirs["intercept_d"], rtol=0.002, atol=0.001)
    np.testing.assert_allclose(
        fit.items[["se_a", "se_d"]], theirs[["se_a1", "se_d"]].to_numpy(), rtol=0.005
    )


def test_rasch_meets_mirt_on_a_grid_wide_enough(dataset, read_responses, reference_dir):
    responses = read_responses(dataset)
    fit = irt.fit(responses, "Rasch")
    wide = (pd.read_csv(reference_dir / f"irt/rasch_wide_{name}.csv") for name in ("fits", "items"))
    expected, theirs = (table[table["dataset"] == dataset] for table in wide)
    assert fit.converged
    assert abs(fit.loglik - expected["logLik"].item()) < 0.001
    assert abs(fit.ability_sd**2 - expected["latent_var"].item()) < 0.001
    assert abs(fit.se_ability_variance / expected["se_latent_var"].item() - 1) < 0.005
    theirs = theirs.sort_values("index")
    np.testing.assert_allclose(fit.items["b"], theirs["b"], atol=0.001)
    np.testing.assert_allclose(fit.items["se_b"], theirs["se_b"], rtol=0.005)
    score = fit.score(responses.iloc[: len(theirs)])
    np.testing.assert_allclose(score["theta"], theirs["EAP_person_same_index"], atol=0.005)
    np.testing.assert_allclose(score["se"], theirs["SE_EAP_person_same_index"], rtol=0.01)


def test_3pl_reaches_the_likelihood_that_mirt_reaches_and_meets_its_well_identified_items(
    dataset, read_responses, mirt
):
    fit = irt.fit(read_responses(dataset), "3PL", standard_errors=dataset == "4GS_entailment")
    assert fit.converged
    assert fit.loglik > mirt("fits", dataset, "3PL")["logLik"].iloc[0] - 0.01
    if dataset != "4GS_entailment":
        return
    theirs = mirt("items", dataset, "3PL")
    known = (theirs["se_c"] < 0.08).to_numpy() & (theirs["c"] > 0.02).to_numpy()
    assert known.sum() >= 5
    np.testing.assert_allclose(fit.items["c"][known], theirs["c"][known], atol=0.005)
    np.testing.assert_allclose(fit.items["a"][known], theirs["a"][known], rtol=0.01)
    np.testing.assert_allclose(fit.items["se_c"][known], theirs["se_c"][known], rtol=0.03)


def test_1pl_meets_ltm(reference_dir):
    fit = irt.fit(pd.read_csv(reference_dir / "irt/data_LSAT_ltm.csv"), "1PL")
    ltm = json.loads((reference_dir / "irt/ltm_LSAT.json").read_text())["rasch_unconstrained"]
    assert abs(fit.loglik - ltm["logLik"]) < 0.01
    coefficients = {row["_row"]: row["value"] for row in ltm["coefficients"]}
    assert fit.items["a"].iloc[0] == pytest.approx(coefficients["Dscrmn"], rel=0.001)
    theirs = [coefficients[f"Dffclt.{item}"] for item in fit.items.index]
    assert fit.items["b"].tolist() == pytest.approx(theirs, rel=0.005)


@pytest.mark.parametrize(
    ("n_persons", "n_items", "model", "missing"),
    [(400, 60, "2PL", 0), (200, 600, "2PL", 0), (100, 3000, "2PL", 0), (200, 150, "3PL", 0.2)],
)
def test_the_reported_loglik_is_the_exact_one(n_persons, n_items, model, missing):
    answered = simulated(n_persons, n_items, model, n_items, missing, rarest=0.1)
    priors = {"guessing": irt.Beta(5, 17), "slope": irt.LogNormal(0, 0.5)}
    fit = quiet_fit(answered, model, priors=priors if model == "3PL" else None)
    assert fit.converged
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05


@settings(max_examples=settings.default.max_examples // 2)
@given(
    n_persons=st.integers(30, 150),
    n_items=st.integers(3, 40),
    missing=st.sampled_from([0.0, 0.2]),
    model=st.sampled_from(["1PL", "Rasch", "2PL"]),
    seed=st.integers(0, 1000),
)
def test_the_loglik_of_tables_of_any_shape_is_exact_and_a_converged_fit_is_at_its_maximum(
    n_persons, n_items, missing, model, seed
):
    answered = simulated(n_persons, n_items, model, seed, missing)
    assume(answered.shape[1] >= 3)
    fit = quiet_fit(answered, model, max_iterations=300)
    assert np.isfinite(fit.items[["a", "d"]]).all(axis=None)
    if fit.items["a"].abs().max() < 10:
        assert abs(fit.loglik - exact_loglik(fit, answered, step=0.01)) < 0.05
    if fit.converged:
        start = fit.items.assign(a=fit.items["a"] * fit.ability_sd)  # in standard units
        again = quiet_fit(answered, model, start=start)
        assert again.loglik - fit.loglik < 0.01


@pytest.mark.parametrize("steep", [False, True])
def test_standard_errors_are_those_of_a_numerical_hessian(steep):
    """Sums over 24 polynomials of ability alone gave 1 to 4 % too little for a steep item."""
    answered, asymptotes = simulated(300, 6, "2PL", seed=3, missing=0.2), {}
    if steep:
        rng, asymptotes = np.random.default_rng(3), {"guessing": 0.1, "upper": 0.95}
        known = simulate.items(5, rng, "2PL").assign(c=0.1, u=0.95)
        known.loc[known.index[0], ["a", "b"]] = [5.0, 0.3]
        answered = simulate.responses(rng.normal(size=500), known, rng)
    fit = irt.fit(answered, "2PL", tolerance=1e-6, **asymptotes)

    def negative(vector):
        moved = fit.items.assign(**dict(zip("ad", vector.reshape(2, -1), strict=True)))
        return -exact_loglik(replace(fit, items=moved.drop(columns="b")), answered, step=0.1)

    hessian = approx_hess3(fit.items[["a", "d"]].to_numpy().T.ravel(), negative)
    expected = np.sqrt(np.diag(np.linalg.inv(hessian))).reshape(2, -1).T
    np.testing.assert_allclose(fit.items[["se_a", "se_d"]], expected, rtol=1e-3)


def test_a_slope_at_its_bound_has_no_error_and_the_place_of_its_step_is_free():
    answered = simulated(300, 6, "2PL", seed=3)
    answered["step"] = (answered.mean(axis=1) > 0.5).astype(float)
    fit = irt.fit(answered, "2PL", tolerance=1e-6)
    free = np.append(np.arange(6), 7 + np.arange(7))  # not the slope of the step
    estimates = fit.items[["a", "d"]].to_numpy().T.ravel()
    assert estimates[6] == LARGEST_SLOPE

    def negative(vector):
        a, d = np.insert(vector, 6, LARGEST_SLOPE).reshape(2, -1)
        moved = fit.items.drop(columns="b").assign(a=a, d=d)
        return -exact_loglik(replace(fit, items=moved), answered, step=0.02)

    steps = np.where(free < 13, 1e-3, 0.05)  # the step's intercept varies by logits
    hessian = approx_hess3(estimates[free], negative, epsilon=steps)
    expected = np.insert(np.sqrt(np.diag(np.linalg.inv(hessian))), 6, np.nan).reshape(2, -1).T
    np.testing.assert_allclose(fit.items[["se_a", "se_d"]], expected, rtol=0.02)


@pytest.mark.parametrize("model", ["1PL", "2PL"])
def test_standard_errors_from_the_joint_curvature_are_close_to_the_exact_ones(model, monkeypatch):
    answered = simulated(150, 400, model, seed=6, rarest=0.1)
    exact = irt.fit(answered, model, tolerance=1e-5)
    monkeypatch.setattr(standard_errors, "EXACT_PARAMETERS", 0)
    rough = irt.fit(answered, model, tolerance=1e-5, start=exact.items)
    assert exact.covariance is not None and rough.covariance is None
    for name in ("se_a", "se_d"):
        np.testing.assert_allclose(rough.items[name], exact.items[name], rtol=0.01)
        assert abs((rough.items[name] / exact.items[name]).median() - 1) < 1e-4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("alpha", [1.0001, 1.01, 1.5])
def test_nearly_flat_priors_of_guessing_have_their_maximum_inside(seed, alpha):
    """Reference: no estimate can be moved uphill, on the exact likelihood plus the log prior."""
    answered = simulated(300, 8, "3PL", seed)
    fit = quiet_fit(answered, "3PL", priors={"guessing": irt.Beta(alpha, alpha)})
    table = fit.items[list("adc")]

    def value(moved):
        known = replace(fit, items=fit.items.drop(columns="b").assign(**moved))
        prior = beta_distribution.logpdf(moved["c"], alpha, alpha).sum()
        return exact_loglik(known, answered, step=0.02) + prior

    best = value(table)
    assert (table["c"] > 0).all() and np.isfinite(best)
    for item in table.index[fit.items["converged"]]:
        for name, step in zip("adc", (0.03, 0.03, 0.01), strict=True):
            for to in (table.loc[item, name] + step, table.loc[item, name] - step):
                moved = table.copy()
                moved.loc[item, name] = max(to, 1e-9) if name == "c" else to
                assert value(moved) < best + 1e-3


def test_a_matrix_and_a_memory_map_give_what_the_frame_gives(tmp_path):
    answered = simulated(80, 90, "2PL", seed=5, missing=0.1, rarest=0.2)
    matrix = answered.fillna(255).to_numpy().astype(np.uint8)
    matrix.tofile(tmp_path / "answers.u8")
    mapped = np.memmap(tmp_path / "answers.u8", np.uint8, "r", shape=matrix.shape)
    frame = quiet_fit(answered, "2PL")
    for array in (matrix, mapped):
        fit = quiet_fit(array, "2PL", item_names=answered.columns)
        assert fit.loglik == pytest.approx(frame.loglik, rel=1e-10)
        pd.testing.assert_frame_equal(fit.items, frame.items)


def test_slopes_point_towards_more_right_answers_even_from_a_start_that_points_away():
    answered = simulated(300, 20, "2PL", seed=1)
    fit = irt.fit(answered)
    turned = irt.fit(answered, start=fit.items.assign(a=-fit.items["a"]))
    np.testing.assert_allclose(turned.items["a"], fit.items["a"], atol=1e-4)


def test_2pl_and_3pl_items_mix_and_guessing_can_be_fixed():
    answered = simulated(800, 12, "3PL", seed=4)
    kinds = pd.Series(["3PL"] * 4 + ["2PL"] * 8, answered.columns)
    mixed = irt.fit(answered, kinds, priors={"guessing": irt.Beta(5, 17)})
    assert (mixed.model, mixed.n_parameters) == ("mixed", 28)
    assert mixed.items["c_is_free"].tolist() == [True] * 4 + [False] * 8
    assert (mixed.items["c"].iloc[4:] == 0).all()
    fixed = irt.fit(answered, "3PL", guessing=0.2)
    assert (fixed.items["c"] == 0.2).all() and fixed.items["se_c"].isna().all()
    assert fixed.n_parameters == 24
    one = irt.fit(answered, "2PL", guessing=pd.Series({answered.columns[0]: 0.25}))
    assert one.items["c"].tolist() == [0.25] + [0.0] * 11


def test_a_weak_prior_makes_difficulties_of_constant_items_finite_and_copies_are_named():
    answered = simulated(200, 8, "Rasch", seed=2)
    with pytest.warns(irt.IRTWarning, match=f"{answered.columns[3]}.*copy"):
        irt.fit(answered.assign(copy=answered.iloc[:, 3]), "2PL")
    answered["all right"] = 1.0
    with pytest.raises(FrameError, match="'all right'.*drop_constant"):
        irt.fit(answered, "Rasch")
    fit = irt.fit(answered, "Rasch", priors={"intercept": irt.Normal(0, 3)})
    assert -12 < fit.items.loc["all right", "b"] < fit.items["b"].drop("all right").min()


def test_a_separated_item_is_named_and_the_fit_does_not_claim_to_have_converged():
    answered = simulated(120, 200, "2PL", seed=2, rarest=0.15)
    answered["separated"] = (answered.mean(axis=1) > 0.6).astype(float)
    with pytest.warns(irt.IRTWarning, match="max_iterations"):
        assert not irt.fit(answered, "2PL", max_iterations=2).converged
    with pytest.warns(irt.IRTWarning, match="'separated'.*separated by ability"):
        fit = irt.fit(answered, "2PL", max_iterations=500)
    assert not fit.converged
    # At the bound of its slope it has the best intercept: expected equals observed correct answers.
    posterior = fit.posterior(answered)
    expected = (posterior.weights @ fit.probability(posterior.nodes)[:, -1, 1]).sum()
    assert abs(fit.items.loc["separated", "a"]) == LARGEST_SLOPE
    assert expected == pytest.approx(answered["separated"].sum(), abs=0.01)
    others = irt.fit(answered.drop(columns="separated"), "2PL")
    assert others.converged
    assert np.median(np.abs(fit.items["a"].drop("separated") - others.items["a"])) < 0.05


def test_steep_items_of_240_language_models_converge_to_the_exact_likelihood() -> None:
    """Many models are checkpoints of one run, so that items separate them almost perfectly."""
    models = corpora.laverghetta2021().models
    fit = irt.fit(models, "2PL")
    assert fit.converged
    assert 15 < fit.items["a"].max() < LARGEST_SLOPE
    assert abs(fit.loglik - exact_loglik(fit, models)) < 0.02
    assert fit.items["se_a"].notna().all()


def test_common_guessing_is_one_parameter_between_none_and_one_per_item():
    answered = simulated(3000, 20, "3PL", 1, c=0.2)
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


@pytest.mark.parametrize("seed", range(3))
def test_a_steep_item_that_one_weak_person_answers_keeps_a_tiny_guessing_parameter(seed):
    """At c = 0 that response is next to impossible, though the likelihood falls from c = .001."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=2000)
    a = np.append(rng.uniform(0.8, 2.0, 10), [8.0, 8.0, 10.0, 10.0])
    b = np.append(rng.uniform(-2, 2, 10), [0.8, 1.2, 1.0, 1.5])
    c = np.repeat([0.2, 0.0004], [10, 4])
    p = c + (1 - c) * expit(a * (theta[:, None] - b))
    answered = pd.DataFrame((rng.random(p.shape) < p).astype(float))
    for item in range(10, 14):
        answered.iloc[rng.choice(np.flatnonzero(theta < -0.5)), item] = 1.0
    fit = quiet_fit(answered, "3PL")
    truth = pd.DataFrame({"a": a, "d": -a * b, "c": c}, index=answered.columns)
    assert fit.converged
    assert fit.loglik > quiet_fit(answered, "3PL", start=truth).loglik - 0.001


@pytest.mark.parametrize("model", ["2PL", "3PL", "4PL", "graded"])
def test_a_start_outside_the_priors_support_ends_where_the_own_start_does(model):
    """A wrongly keyed item's slope has no lognormal density, and a 2PL's c = 0 no beta density."""
    answered = simulated(500, 8, "2PL", seed=1)
    answered.iloc[:, 2] = 1 - answered.iloc[:, 2]
    start = quiet_fit(answered, "graded" if model == "graded" else "2PL").items
    assert start["a"].min() < 0
    priors = {"slope": irt.LogNormal(0, 0.5), "guessing": irt.Beta(5, 17), "upper": irt.Beta(17, 2)}
    named = {"3PL": ["slope", "guessing"], "4PL": list(priors)}.get(model, ["slope"])
    options = {"priors": {name: priors[name] for name in named}}
    fits = [quiet_fit(answered, model, start=each, **options) for each in (None, start)]
    own, other = (fit.loglik + fit.log_prior for fit in fits)
    assert all(fit.converged and (fit.items["a"] > 0).all() for fit in fits)
    assert other == pytest.approx(own, abs=1e-4)


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
    assert fit.loglik > reached - 0.001
    assert fit.items["converged"].drop("Q44").all()


@pytest.mark.parametrize("bank", ["arc", "gsm8k"])
def test_a_2pl_of_thousands_of_language_models_is_above_mirt(bank, reference_dir):
    folder = reference_dir / "irt" / "metabench"
    fits = pd.read_csv(folder / "mirt_fits.csv", index_col="benchmark")
    released = pd.read_csv(folder / f"{bank}_items.csv", index_col=0)
    fit = quiet_fit(corpora.metabench(bank), "2PL")
    assert fit.converged
    assert fit.loglik > fits.loc[bank, "loglik"] - 0.001
    assert fit.loglik_error < 0.01
    assert np.corrcoef(fit.items["a"], released["a"])[0, 1] > 0.98


@pytest.mark.exhaustive
def test_a_3pl_of_mmlu_converges_to_its_exact_likelihood_far_above_the_2pl():
    """Items that separate the models perfectly stay at the bound; all others converge."""
    answered = corpora.metabench("mmlu")
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
        answered = simulated(600, 12, "3PL", dataset)
    ours, rng, n = quiet_fit(answered, "3PL"), np.random.default_rng(0), answered.shape[1]
    for _ in range(50):
        values = rng.lognormal(0.3, 0.7, n), rng.normal(0.5, 1.5, n), rng.uniform(0, 0.5, n)
        start = pd.DataFrame(dict(zip("adc", values, strict=True)), answered.columns)
        assert quiet_fit(answered, "3PL", start=start).loglik < ours.loglik + 0.01


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_three_items_of_forty_persons_reach_a_maximum_of_the_likelihood(seed):
    """The curve of an item becomes a step: 1 / P exceeds what single precision holds."""
    rng = np.random.default_rng(seed)
    p = expit(rng.normal(size=40)[:, None] - [-1, 0, 1])
    answered = pd.DataFrame((rng.random((40, 3)) < p).astype(int), columns=list("abc"))
    fit = quiet_fit(answered, "3PL")
    assert fit.loglik >= quiet_fit(answered, "2PL").loglik - 1e-4
    assert abs(fit.loglik - exact_loglik(fit, answered)) < 0.05


@pytest.mark.parametrize(
    ("responses", "model", "options", "message"),
    [
        (None, "5PL", {}, "5PL"),
        (None, {"item-1": "3PL"}, {}, "are not among the responses"),
        (None, "3PL", {"priors": {"guessing": irt.LogNormal()}}, "'guessing'"),
        (None, "Rasch", {"priors": {"slope": irt.LogNormal()}}, "no slopes"),
        (None, "2PL", {"priors": {"guessing": irt.Beta()}}, "no item of this 2PL .*guessing"),
        (None, "3PL", {"equal": {"upper": "all"}}, "no item of this 3PL .*upper"),
        (None, "2PL", {"free": {"guessing": "all"}}, "no item of this 2PL .*guessing"),
        (None, "2PL", {"max_iterations": -1}, "let no step be made"),
        (None, "2PL", {"tolerance": 0.0}, "let no step be made"),
        (None, "2PL", {"guessing": "common"}, "takes a 3PL or 4PL for all"),
        (None, "3PL", {"guessing": "rare"}, "guessing='rare'"),
        (pd.DataFrame({"i": [0, 1, 1], "j": [1, 0, 1]}), "2PL", {}, "at least 3"),
        (np.ones((4, 4)), "2PL", {}, "255"),
        ([[0, 1, 1], [1, 0, 1]], "Rasch", {}, "responses are a list"),
        (np.array([["0", "1"]]), "Rasch", {}, "uint8 matrix"),
        (np.full((4, 4), 3, np.uint8), "2PL", {}, "values other"),
        (np.array([[0, 1, 1], [255, 255, 255]], np.uint8), "2PL", {}, "answered no item"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_reason(responses, model, options, message):
    with pytest.raises(ValueError, match=message):  # FrameError is one
        irt.fit(corpora.lsat6() if responses is None else responses, model, **options)


def test_groups_are_compared_by_items_that_work_alike_and_are_shared(rng):
    """By a chain of groups, too; without such items a mean was estimated, and "converged"."""
    responses = simulate.responses(rng.normal(size=300), simulate.items(6, rng), rng)
    group = np.repeat(["a", "b", "c"], 100)
    booklets = {"a": [0, 1, 2], "b": [2, 3, 4], "c": [4, 5, 3]}
    asked = np.array([[column in booklets[name] for column in range(6)] for name in group])
    chain = responses.where(asked)
    assert irt.fit(chain, "Rasch", group=group).groups["se_mean"].iloc[1:].notna().all()
    apart = chain.mask((group == "b")[:, None] & (np.arange(6) == 2))
    cases = [(apart, {}, "['b', 'c']"), (chain, {"free": ["item-3"]}, "['b', 'c']")]
    cases += [(chain, {"free": ["item-4", "item-5"]}, "['c']")]
    for answers, options, named in cases:
        with pytest.raises(FrameError, match=re.escape(f"groups {named} share no item")):
            irt.fit(answers, "Rasch", group=group, **options)
    equal = {"intercept": ["item-1", "item-4"]}
    assert irt.fit(apart, "Rasch", group=group, equal=equal).converged


def test_a_start_is_any_table_of_items_with_finite_parameters():
    data = corpora.lsat6()
    first = irt.fit(data, "2PL", standard_errors=False)
    again = irt.fit(data, "2PL", start=first.items[["b", "a"]].iloc[::-1], standard_errors=False)
    np.testing.assert_allclose(again.items["a"], first.items["a"], atol=1e-4)
    with pytest.raises(FrameError, match="have no finite parameters in start"):
        irt.fit(data, "2PL", start=first.items.assign(a=np.nan))
