"""Explanatory item response models: difficulties with a regression as prior, and explained DIF.

References: lme4's glmer (tests/reference/irt/more/explanatory_glmer.csv); an integral over items
and persons by quadrature; the linear logistic test model and the Rasch model, the limits of small
and large residual variances; known parameters."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp
from scipy.stats import norm

from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError


@pytest.fixture(scope="module")
def glmer(reference_dir):
    """Return a glmer fit's quantities, indexed by kind and name."""
    table = pd.read_csv(
        reference_dir / "irt/more/explanatory_glmer.csv", keep_default_na=False
    ).set_index(["model", "kind", "name"])["value"]
    return lambda model: table.astype(float).loc[model]


@pytest.fixture(scope="module")
def verbal_aggression(reference_dir):
    data = pd.read_csv(reference_dir / "irt/more/data_VerbAgg.csv", index_col="id")
    items = pd.read_csv(reference_dir / "irt/more/explanatory_items.csv", index_col="item")
    return data.drop(columns="Gender").astype(float), data["Gender"], items


def explained_responses(rng, *, n_items=60, n_persons=80, residual=0.7, sd=1.2):
    """Draw responses to items with b = -0.5 + 0.8 x1 - 0.4 x2 + N(0, residual^2)."""
    names = [f"item-{i}" for i in range(n_items)]
    x = pd.DataFrame(rng.normal(size=(n_items, 2)), names, ["x1", "x2"])
    b = -0.5 + x @ [0.8, -0.4] + rng.normal(0, residual, n_items)
    items = pd.DataFrame({"a": 1.0, "b": b, "c": 0.0})
    return simulate.responses(rng.normal(0, sd, n_persons), items, rng), x, b


@pytest.mark.parametrize("model", ["VerbAgg items", "VerbAgg empty"])
def test_a_regression_of_difficulties_equals_glmer(model, glmer, verbal_aggression):
    responses, _, items = verbal_aggression
    theirs = glmer(model)
    x = pd.get_dummies(items, prefix_sep="", dtype=float)[theirs["fixed"].index[1:]]
    fit = irt.fit(responses, "Rasch", difficulty_prior=x)
    assert fit.converged
    # glmer approximates the integral over abilities, too, which costs it nats and a percent of the
    # sds (its own Rasch model of these data gains 2.3 nats and 0.5 % by 25 points of quadrature).
    eta = fit.regression["eta"].to_numpy()
    np.testing.assert_allclose(-eta, theirs["fixed"], rtol=2e-3)
    np.testing.assert_allclose(fit.regression["se"], theirs["se"], rtol=0.02)
    assert fit.ability_sd == pytest.approx(theirs["sd", "person (Intercept)"], rel=0.01)
    assert fit.residual_sd == pytest.approx(theirs["sd", "item (Intercept)"], rel=0.015)
    assert 0 < fit.loglik - theirs["logLik", ""] < 5
    residual = fit.items["b"] - np.column_stack([np.ones(24), x.loc[fit.items.index]]) @ eta
    # Its modes of items are joint with abilities' modes, which draws them towards their mean.
    modes = -theirs["mode item (Intercept)"].loc[fit.items.index]
    assert residual.corr(modes) > 0.99
    np.testing.assert_allclose(residual, modes, atol=0.11)


def test_with_many_items_per_person_the_log_likelihood_equals_glmer_s_too(glmer):
    study, theirs = corpora.laverghetta2021(), glmer("panel label")
    answer = study.items.set_index("item_id")["answer"]
    label = pd.DataFrame({"neutral": answer == 1, "contradiction": answer == 2}).astype(float)
    fit = irt.fit(study.panel, "Rasch", difficulty_prior=label)
    assert fit.loglik == pytest.approx(theirs["logLik", ""], abs=0.3)
    np.testing.assert_allclose(-fit.regression["eta"], theirs["fixed"], atol=0.01)
    assert fit.residual_sd == pytest.approx(theirs["sd", "item (Intercept)"], rel=3e-3)
    assert fit.ability_sd == pytest.approx(theirs["sd", "person (Intercept)"], rel=0.01)


def test_laplace_s_approximation_equals_an_integral_by_quadrature(rng):
    items = pd.DataFrame({"a": 1.0, "b": [-1.0, 0.2, 1.1], "c": 0.0}, list("xyz"))
    responses = simulate.responses(rng.normal(size=150), items, rng)
    fit = irt.fit(responses, "Rasch", difficulty_prior=responses.T[[]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    log_weights = np.log(weights / weights.sum())
    # A grid of difficulties, six standard errors wide: log P(responses | b) + log density of b.
    steps = np.linspace(-6, 6, 25)
    axes = [b + se * steps for b, se in fit.items[["b", "se_b"]].to_numpy()]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    total = norm.logpdf(grid, fit.regression["eta"].iloc[0], fit.residual_sd).sum(1)
    z = fit.ability_sd * nodes[:, None] - grid[:, None]
    for pattern, count in responses.value_counts().items():
        right = np.array(pattern)
        at = (right * log_expit(z) + (1 - right) * log_expit(-z)).sum(-1)
        total += count * logsumexp(at + log_weights, axis=1)
    cell = np.prod(0.5 * fit.items["se_b"])
    assert fit.loglik == pytest.approx(logsumexp(total) + np.log(cell), abs=0.01)


def test_without_residual_variance_it_is_the_linear_logistic_test_model(rng):
    """Fischer (1973): the marginal likelihood by quadrature, maximised by scipy."""
    responses, x, _ = explained_responses(rng, n_items=8, n_persons=60, residual=0.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    right = responses.to_numpy()[:, :, None]

    def negative(values):
        b = values[0] + x.to_numpy() @ values[1:3]
        z = np.exp(values[3]) * nodes - b[:, None]
        at_nodes = (right * log_expit(z) + (1 - right) * log_expit(-z)).sum(axis=1)
        return -logsumexp(at_nodes + np.log(weights / weights.sum()), axis=1).sum()

    found = minimize(negative, np.zeros(4), tol=1e-9)
    with pytest.warns(irt.IRTWarning, match="boundary 0"):
        fit = irt.fit(responses, "Rasch", difficulty_prior=x)
    assert fit.residual_sd < 1e-4
    assert fit.loglik == pytest.approx(-found.fun, abs=1e-4)
    assert fit.ability_sd == pytest.approx(np.exp(found.x[3]), abs=1e-3)
    assert fit.regression["eta"].to_numpy() == pytest.approx(found.x[:3], abs=1e-3)
    assert fit.n_parameters == 5


def test_with_many_persons_the_prior_yields_to_the_rasch_model(rng):
    responses, x, _ = explained_responses(rng, n_items=10, n_persons=4000)
    fit, rasch = irt.fit(responses, "Rasch", difficulty_prior=x), irt.fit(responses, "Rasch")
    assert fit.sd_is_free  # and counts in the degrees of freedom, as in the Rasch model
    assert irt.m2(fit, responses).df == irt.m2(rasch, responses).df
    np.testing.assert_allclose(fit.items["b"], rasch.items["b"], atol=0.01)
    np.testing.assert_allclose(fit.items["se_b"], rasch.items["se_b"], rtol=0.02)
    assert fit.ability_sd == pytest.approx(rasch.ability_sd, abs=0.01)


def test_known_parameters_are_recovered_and_intervals_of_b_cover(rng):
    n_items, n_persons, n_studies = 40, 80, 2
    true = np.array([-0.5, 0.8, -0.4, 0.7, 1.2])
    gaps, errors, covered = [], [], []
    for _ in range(n_studies):
        responses, x, b = explained_responses(rng, n_items=n_items, n_persons=n_persons)
        responses = responses.mask(rng.random(responses.shape) < 0.2)
        fit = irt.fit(responses, "Rasch", difficulty_prior=x)
        gaps.append([*fit.regression["eta"], fit.residual_sd, fit.ability_sd] - true)
        # the error of the sd of n values is sd / sqrt(2 n)
        of_sds = [0.7 / np.sqrt(2 * n_items), 1.2 / np.sqrt(2 * n_persons)]
        errors.append([*fit.regression["se"], *of_sds])
        covered.append(((fit.items["b"] - b).abs() < 1.96 * fit.items["se_b"]).mean())
    error = np.sqrt(np.square(errors).mean(axis=0) / n_studies)
    # 0.02: maximum likelihood's sds are a little small
    assert (np.abs(np.mean(gaps, axis=0)) < 3.5 * error + 0.02).all()
    share = np.mean(covered)  # within two errors of a proportion of 80
    assert abs(share - 0.95) < 2 * np.sqrt(0.95 * 0.05 / (n_items * n_studies))


@pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")
def test_predicted_difficulties_are_priors_and_constant_items_are_finite(rng, tmp_path):
    responses, _, b = explained_responses(rng, n_persons=30)
    responses["item-3"] = 1.0
    fit = irt.fit(responses, "Rasch", difficulty_prior=b.rename("guess"))
    assert list(fit.regression.index) == ["(constant)", "guess"]
    assert np.isfinite(fit.items[["b", "se_b"]]).all(axis=None)
    fit.to_json(tmp_path / "fit.json")
    again = irt.IRTFit.from_json(tmp_path / "fit.json")
    pd.testing.assert_frame_equal(again.regression, fit.regression)
    assert (again.residual_sd, again.method) == (fit.residual_sd, "laplace")


def test_what_a_prior_or_kinds_of_items_cannot_go_with_is_refused(rng):
    responses, x, _ = explained_responses(rng, n_items=6, n_persons=20)
    five = pd.DataFrame(rng.normal(size=(6, 4)), x.index, list("abcd"))
    for model, prior, options, message in (
        ("2PL", x, {}, "takes model='Rasch'"),
        ("Rasch", x, {"guessing": 0.2}, "guessing"),
        ("Rasch", x.iloc[1:], {}, "'item-0'.*have no row"),
        ("Rasch", five, {}, "fewer covariates"),
    ):
        with pytest.raises(ValueError, match=message):  # FrameError is one
            irt.fit(responses, model, difficulty_prior=prior, **options)
    kinds, group = pd.Series("one", x.index), np.repeat(["r", "f"], 10)
    for given, message in (kinds[1:], "item-0.*have no kind"), (kinds, "1 kinds of 6 items"):
        with pytest.raises(FrameError, match=message):
            irt.dif_explanatory(responses, group, given)


@pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")
def test_dif_explained_by_kinds_of_items_equals_glmer(glmer, verbal_aggression):
    responses, gender, items = verbal_aggression
    theirs = glmer("VerbAgg DIF")
    found = irt.dif_explanatory(responses, gender, items["by"], reference="F")
    assert found.converged
    modes = -theirs["mode by male"].loc[found.by.index]
    np.testing.assert_allclose(found.by["difference"], modes, atol=0.03)
    assert found.mean_difference == pytest.approx(-theirs["fixed", "male"], abs=2e-3)
    assert found.se_mean_difference == pytest.approx(theirs["se", "male"], rel=0.02)
    sds = theirs["sd"].loc[["item (Intercept)", "by male", "item male"]]
    np.testing.assert_allclose(found.sds, sds, rtol=0.01, atol=1e-3)
    abilities = theirs["sd"].loc[["person female", "person male"]]
    np.testing.assert_allclose(found.ability_sd, abilities, rtol=0.01)
    # The test of single items sees the same differences, about their mean, without pooling.
    single = irt.mantel_haenszel(responses, gender, reference="F", purify=False).items["log_odds"]
    assert found.items["difference"].corr(single) > 0.8


@pytest.mark.parametrize("put_in", [1.0, 0.0])
def test_dif_that_was_put_in_is_found_and_none_is_found_where_there_is_none(rng, recwarn, put_in):
    kinds = pd.Series(np.repeat(list("ABCDE"), 8), [f"item-{i}" for i in range(40)])
    shift = put_in * pd.Series({"A": 0.9, "B": -0.6, "C": 0.0, "D": -0.3, "E": 0.0})
    b = pd.Series(rng.normal(0, 1, 40), kinds.index)
    focal_b = b + put_in * rng.normal(0, 0.3, 40) + kinds.map(shift)
    sides = [
        simulate.responses(theta, pd.DataFrame({"a": 1.0, "b": side, "c": 0.0}), rng)
        for theta, side in ((rng.normal(0, 1, 300), b), (rng.normal(-0.5, 1.4, 300), focal_b))
    ]
    data = pd.concat(sides, ignore_index=True).rename_axis("person")
    found = irt.dif_explanatory(data, np.repeat(["r", "f"], 300), kinds)
    # Where a variance is 0 by estimate, it is named, and nothing has an interval of no width.
    assert all(name in str(recwarn[0].message) for name in found.at_boundary)
    kinds_at_boundary = "difference_of_kinds" in found.at_boundary
    assert found.by["se"].isna().all() == kinds_at_boundary
    assert not (found.by["high"] == found.by["low"]).any()
    assert found.ability_sd.to_numpy() == pytest.approx([1.0, 1.4], abs=0.15)
    assert abs(found.mean_difference - 0.5) < 3 * found.se_mean_difference
    gap = (found.by["difference"] - shift).abs()
    assert kinds_at_boundary or (gap <= 3.5 * found.by["se"]).all()
    if put_in:
        assert (found.by["difference"].idxmax(), found.by["difference"].idxmin()) == ("A", "B")
        assert found.sds["difference_of_items"] == pytest.approx(0.3, abs=0.12)
    else:
        assert found.sds[["difference_of_kinds", "difference_of_items"]].max() < 0.15
        assert found.items["difference"].abs().max() < 0.2
