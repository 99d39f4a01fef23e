"""Every model in every function, against definitions written out, and how to add a model."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize
from scipy.special import expit
from scipy.stats import norm

from psychlm import irt, simulate
from psychlm.irt import _fit, response_functions, starts
from psychlm.irt.response_functions import (
    ABSENT,
    MODELS,
    Dichotomous,
    Graded,
    Logistic,
    MixedFormats,
    Model,
    Nominal,
    PartialCredit,
    ResponseFunction,
    model_named,
)


def probabilities(items, model, theta):
    """Return P of every category by the models' definitions, (n_items, n_categories, n_theta)."""
    rows = []
    for _, row in items.iterrows():
        z = row["a"] * (theta - row.filter(regex=r"^b\d*$").to_numpy(float)[:, None])
        end = np.ones((1, len(theta)))
        if model == "graded":
            rows.append(-np.diff(np.vstack([end, expit(z), 0 * end]), axis=0))
        elif model == "gpcm":
            weight = np.exp(np.cumsum(np.vstack([0 * end, z]), axis=0))
            rows.append(weight / weight.sum(0))
        else:
            p = row["c"] + (row.get("u", 1.0) - row["c"]) * expit(z)
            rows.append(np.vstack([1 - p, p]))
    return np.array(rows)


@pytest.fixture(params=["3PL", "4PL", "graded", "gpcm"])
def known(request, rng):
    """Items of a model, responses of 40 persons to them, and the levels of polytomous items."""
    model = request.param
    items = simulate.items(9, rng, model)
    if MODELS[model].dichotomous:
        items.loc[items.index[-1], "a"] *= -1  # a right answer counts against
    levels = None if MODELS[model].dichotomous else dict.fromkeys(items.index, [0, 1, 2, 3])
    return model, items, simulate.responses(rng.normal(size=40), items, rng, model=model), levels


def test_curves_and_their_curvature_are_numbers_however_far_from_the_item():
    """A group's abilities may spread over 42 logits: NaN there stopped a fit with an error."""
    rng = np.random.default_rng(0)
    for low, high, far in zip(
        [-700, -13.8, 0.7] * 20, [700, 13.8] * 30, [8, 42, 90] * 20, strict=True
    ):
        values = [rng.normal(0, 20), rng.normal(0, 10), expit(low), expit(high)]
        item = Logistic(torch.tensor(values, dtype=torch.float64)[:, None])
        theta = torch.linspace(-far, far, 41, dtype=torch.float64)
        z, c = (
            values[0] * theta.numpy() + values[1],
            [-np.logaddexp(0, -low), np.log(1 - values[3]) if values[3] < 1 else -np.inf],
        )
        span = np.log(values[3] - values[2])
        log_q, log_p = (
            np.logaddexp(at, span - np.logaddexp(0, t)) for at, t in ((c[1], z), (c[0], -z))
        )
        found = item.log_probability(theta)[0]
        np.testing.assert_allclose(found, [log_q, log_p], rtol=1e-12, atol=1e-12)
        assert item.curvature(theta, torch.ones(1, 2, 41)).isfinite().all()


def test_derivatives_in_closed_form_are_those_of_automatic_differentiation(rng):
    """Of curves with two, three and four rows of parameters, at abilities where none is extreme."""
    rows = [rng.normal(1, 1, 8), rng.normal(0, 1, 8), rng.uniform(0, 0.4, 8)]
    rows = torch.tensor(np.stack([*rows, rng.uniform(0.6, 1, 8)]))
    theta = torch.linspace(-3, 3, 7, dtype=torch.float64)
    counts = torch.tensor(rng.uniform(size=(8, 2, 7)))
    for n_rows in (2, 3, 4):
        items = Logistic(rows[:n_rows])
        by_numpy = Logistic(rows[:n_rows].numpy())
        generic = ResponseFunction.scores(items, theta)
        torch.testing.assert_close(items.scores(theta), generic)
        np.testing.assert_allclose(by_numpy.scores(theta.numpy()), generic, atol=1e-12)
        lowest, (higher,) = items.contrasts(theta)
        torch.testing.assert_close(lowest + higher, generic[:, :, 1])
        expected = ResponseFunction.curvature(items, theta, counts)
        torch.testing.assert_close(items.curvature(theta, counts), expected)


def test_derivatives_of_several_categories_are_those_of_automatic_differentiation(rng):
    """Of all forms, and of items with fewer categories than others."""
    steps = np.sort(rng.normal(size=(3, 8)), axis=0)[::-1]
    ordered = np.vstack([rng.normal(1, 0.5, 8), steps])
    mixed = np.vstack([ordered, np.full(8, 0.1), np.full(8, 0.9)])
    ordered[3, :2] = 3 * ABSENT
    mixed[2:4, :2] = [[2 * ABSENT], [3 * ABSENT]]
    named = ["3PL", "4PL", *["graded"] * 3, *["gpcm"] * 3]
    of_mixed = MixedFormats.of([model_named(name) for name in named])
    theta = torch.linspace(-3, 3, 7, dtype=torch.float64)
    for form, rows, n_absent in (
        (Graded, ordered, 1),
        (PartialCredit, ordered, 1),
        (Nominal, rng.normal(size=(6, 8)), 0),
        (of_mixed, mixed, 2),
    ):
        items = form(torch.tensor(rows))
        counts = torch.tensor(rng.uniform(size=(8, 4, 7)))
        counts[:2, 4 - n_absent :] = 0
        asked = counts > 0
        expected = ResponseFunction.scores(items, theta)
        torch.testing.assert_close(items.scores(theta) * asked, expected * asked)
        expected = ResponseFunction.curvature(items, theta, counts)
        torch.testing.assert_close(items.curvature(theta, counts), expected)


def test_simulated_responses_have_the_probabilities_of_the_definitions(known, rng):
    model, items, *_ = known
    drawn = simulate.responses(np.full(40_000, 0.5), items, rng, model=model, missing=0.1)
    assert drawn.isna().to_numpy().mean() == pytest.approx(0.1, abs=0.01)
    shares = drawn.apply(pd.Series.value_counts, normalize=True).sort_index().fillna(0)
    expected = probabilities(items, model, np.array([0.5]))[..., 0]
    np.testing.assert_allclose(shares.T, expected, atol=0.015)


@pytest.mark.parametrize("model", ["3PL", "4PL"])
def test_curves_and_information_are_those_of_the_definitions(model, rng):
    items, theta = simulate.items(9, rng, model), np.linspace(-3, 3, 60_001)
    p = probabilities(items, model, theta)
    np.testing.assert_allclose(irt.curves.probability(theta, items).T, p[:, 1])
    information = (np.gradient(p, theta, axis=2) ** 2 / p).sum(1)
    found = irt.curves.item_information(theta, items).T
    np.testing.assert_allclose(found[:, 1:-1], information[:, 1:-1], rtol=1e-6)


@pytest.mark.parametrize("model", ["2PL", "3PL", "4PL", "graded", "gpcm"])
def test_scores_by_every_method_maximise_or_integrate_the_definitions(model):
    """The reference is a fine grid of abilities. Few steep items have as many maxima."""
    grid = np.linspace(-12, 12, 24_001)
    for seed, n_items in enumerate([1, 3, 4, 6, 9]):
        rng = np.random.default_rng(seed)
        items = simulate.items(n_items, rng, model)
        if MODELS[model].dichotomous:
            items["a"] *= rng.choice([-1, 1, 1, 4], n_items)
        responses = simulate.responses(rng.normal(size=8), items, rng, model=model)
        responses = responses.mask(rng.random(responses.shape) < 0.1).dropna(how="all")
        answers, asked = responses.fillna(0).to_numpy(int), responses.notna().to_numpy()
        p = probabilities(items, model, grid).clip(1e-16, 1 - 1e-15)
        information = (np.gradient(p, grid, axis=2) ** 2 / p).sum(1)  # of each item
        # (n_persons, n_items, n_theta), summed over the items that were asked
        loglik = (np.log(p[np.arange(n_items), answers]) * asked[..., None]).sum(1)
        posterior = loglik - grid**2 / 2
        weight = np.exp(posterior - posterior.max(1, keepdims=True))
        levels = None if MODELS[model].dichotomous else dict.fromkeys(items.index, range(4))
        known = {"model": model, "levels": levels}
        eap = irt.score(items, responses, **known)["theta"]
        np.testing.assert_allclose(eap, weight @ grid / weight.sum(1), atol=1e-4)
        weighted = loglik + np.log(asked @ information + 1e-300) / 2
        for method, aim in (("map", posterior), ("wle", weighted), ("ml", loglik)):
            theta = irt.score(items, responses, method, **known)["theta"].clip(-12, 12)
            reached = [np.interp(at, grid, values) for at, values in zip(theta, aim, strict=True)]
            assert (aim.max(1) - reached < 0.02).all()
            best = grid[aim.argmax(1)]
            inside = (np.abs(best) < 6) & (np.abs(theta - best) < 0.5)
            assert inside.sum() >= 5 or n_items == 1  # one item has a mode at infinity
            np.testing.assert_allclose(theta[inside], best[inside], atol=2e-3)


def test_an_adaptive_test_of_all_items_ends_at_the_score(known):
    model, items, responses, levels = known
    test = irt.adaptive_test(items, responses, model=model, n_items=9)
    score = irt.score(items, responses, model=model, levels=levels)
    np.testing.assert_allclose(test.theta[9], score["theta"], atol=1e-3)
    np.testing.assert_allclose(test.se[9], score["se"], atol=1e-3)
    # The first item is the most informative one at ability 0.
    p = probabilities(items, model, np.array([-1e-4, 0.0, 1e-4]))
    information = (((p[:, :, 2] - p[:, :, 0]) / 2e-4) ** 2 / p[:, :, 1]).sum(1)
    assert (test.asked[1] == items.index[information.argmax()]).all()


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("1PL", {}),
        ("Rasch", {}),
        ("2PL", {}),
        ("2PL", {"guessing": 0.15}),
        ("2PL", {"priors": {"slope": irt.LogNormal(0, 0.5), "intercept": irt.Normal(0, 2)}}),
        ("3PL", {"priors": {"guessing": irt.Beta(5, 17)}}),
        ("3PL", {"guessing": "common"}),
    ],
)
def test_arrays_and_tensors_agree(model, settings, rng, monkeypatch):
    items = simulate.items(12, rng, "3PL")
    data = simulate.responses(rng.normal(size=600), items, rng, missing=0.1)
    arrays = irt.fit(data, model, tolerance=1e-6, **settings)
    monkeypatch.setattr(_fit, "NUMPY_CELLS", 0)
    tensors = irt.fit(data, model, tolerance=1e-6, **settings)
    assert tensors.loglik == pytest.approx(arrays.loglik, abs=1e-6)
    tables = (fit.items.astype(float) for fit in (arrays, tensors))
    np.testing.assert_allclose(*tables, rtol=1e-3, atol=1e-6)  # one difficulty is 3e-5 by chance


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("Rasch", {}),
        ("2PL", {"weights": np.tile([0.5, 2.0], 400)}),
        ("2PL", {"group": ["a", "b"] * 400, "free": ["item-02"]}),
        ("2PL", {"equal": {"slope": ["item-01", "item-02"], "intercept": ["item-05", "item-06"]}}),
        ("3PL", {"guessing": "common"}),
        ("4PL", {"priors": {"guessing": irt.Beta(5, 17), "upper": irt.Beta(17, 5)}}),
        ("2PL", {"fixed": pd.DataFrame({"a": 1.0, "b": 0.0}, index=["item-03", "item-04"])}),
        ("graded", {}),
        ("gpcm", {"group": ["a", "b"] * 400}),
        ("RSM", {}),
        ("nominal", {"priors": {"slope": irt.Normal(0, 2)}}),
        ({"item-01": "gpcm", "item-02": "3PL"}, {"priors": {"guessing": irt.Beta(5, 17)}}),
    ],
)
def test_em_steps_alone_reach_the_maximum_of_newtons_method(model, settings, rng, monkeypatch):
    """Many items are left to EM, whose M-step eliminates what items do not share."""
    items = simulate.items(12, rng, "3PL" if model in ("3PL", "4PL") else "2PL")
    data = simulate.responses(rng.normal(size=800), items, rng)
    if model in ("graded", "gpcm", "RSM", "nominal"):
        ratings = simulate.items(6, rng, "gpcm", n_categories=3)
        data = simulate.responses(rng.normal(size=800), ratings, rng, model="gpcm")
    newton = irt.fit(data, model, **settings)
    monkeypatch.setattr(starts, "EXACT_PARAMETERS", 0)
    em = irt.fit(data, model, tolerance=1e-5, **settings)
    maxima = [fit.loglik + fit.log_prior for fit in (newton, em)]
    assert maxima[1] == pytest.approx(maxima[0], abs=1e-4)
    tables = [(f.items if f.group_items is None else f.group_items) for f in (newton, em)]
    columns = [name for name in tables[0].select_dtypes("number") if name[0] in "ad"]
    np.testing.assert_allclose(*(t[columns].astype(float) for t in tables), atol=5e-3)


def test_errors_of_too_many_estimates_are_left_out_and_said(rng, monkeypatch):
    data = simulate.responses(rng.normal(size=300), simulate.items(8, rng), rng)
    monkeypatch.setattr(_fit, "MOST_PARAMETERS", 10)
    with pytest.warns(irt.IRTWarning, match="no standard errors of 18 estimates"):
        fit = irt.fit(data, group=["a", "b"] * 150)
    assert fit.converged and fit.items["se_a"].isna().all()


@dataclass(frozen=True)
class NormalOgive(Dichotomous):
    """A model that the package does not have: P = Phi(a theta + d) (Lord 1952)."""

    name = "ogive"

    def log_probability(self, theta):
        """Return log(1 - P) and log P."""
        z = self.by_theta[0] * theta + self.by_theta[1]
        return torch.stack([torch.special.log_ndtr(-z), torch.special.log_ndtr(z)], 1)


def test_a_model_is_added_by_one_class_and_its_name(monkeypatch, rng):
    """The recipe of CONTRIBUTING.md; the reference maximises the likelihood directly."""
    monkeypatch.setitem(response_functions.MODELS, "ogive", Model("ogive", NormalOgive))
    items = simulate.items(5, rng, "ogive")
    data = simulate.responses(rng.normal(size=1500), items, rng, model="ogive")
    fit = irt.fit(data, "ogive")
    assert fit.converged and fit.model == "ogive"

    x, nodes = data.to_numpy(), np.linspace(-6, 6, 121)
    weights = norm.pdf(nodes) / norm.pdf(nodes).sum()

    def negative(flat):
        z = np.outer(flat[:5], nodes) + flat[5:, None]
        return -np.log(np.exp(x @ norm.logcdf(z) + (1 - x) @ norm.logcdf(-z)) @ weights).sum()

    estimates = fit.items[["a", "d"]].to_numpy().T.ravel()
    best = optimize.minimize(negative, 0.9 * estimates, method="BFGS", options={"gtol": 1e-4})
    assert fit.loglik == pytest.approx(-best.fun, abs=1e-3)
    np.testing.assert_allclose(estimates, best.x, atol=5e-3)
    # Everything else takes it from there.
    assert irt.m2(fit, data).p > 1e-4
    assert irt.s_x2(fit, data)["p"].min() > 1e-5
    assert irt.infit_outfit(fit, data)["outfit"].between(0.8, 1.25).all()
    test = irt.adaptive_test(fit, data.iloc[:20], n_items=5)
    np.testing.assert_allclose(test.theta[5], fit.score(data.iloc[:20])["theta"], atol=1e-3)
    found = irt.dif_likelihood_ratio(data, np.arange(1500) % 2, model="ogive")
    assert found.items["p"].min() > 1e-3
