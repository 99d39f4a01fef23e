"""Bifactor, testlet and correlated abilities. References: likelihoods and posteriors by brute force
over a grid of all abilities at once, written here, and recovery of known parameters."""

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import logsumexp

from psychlm import irt
from psychlm.frames import FrameError

NODES = np.linspace(-5, 5, 21)


def brute_force(slopes, d, responses, correlation=None, moments=False):
    """Return the log-likelihood, or posterior means and sds, of slopes (n_items, n_abilities)."""
    n = slopes.shape[1]
    grid = np.stack(np.meshgrid(*[NODES] * n, indexing="ij")).reshape(n, -1)
    precision = np.eye(n) if correlation is None else np.linalg.inv(correlation)
    log_weights = -0.5 * np.einsum("ng,nm,mg->g", grid, precision, grid)
    log_weights -= logsumexp(log_weights)
    z = slopes @ grid + d[:, None]
    x = responses.to_numpy()
    at_nodes = np.where(x == 1, 1.0, 0.0) @ -np.logaddexp(0, -z)
    at_nodes += np.where(x == 0, 1.0, 0.0) @ -np.logaddexp(0, z)
    joint = at_nodes + log_weights
    if moments:
        weights = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        mean = weights @ grid.T
        return mean, np.sqrt(weights @ (grid**2).T - mean**2)
    return logsumexp(joint, axis=1).sum()


def simulated(n_persons, factors, rng, correlation=None):
    """Return responses, (n_items, n_abilities) slopes, intercepts and abilities."""
    names = sorted(set(factors))
    n_items = len(factors)
    own = (np.array(factors)[:, None] == np.array(names)) * rng.uniform(0.7, 1.3, (n_items, 1))
    if correlation is None:
        slopes = np.column_stack([rng.uniform(1.0, 1.8, n_items), own])
        theta = rng.normal(size=(n_persons, len(names) + 1))
    else:
        slopes = 1.4 * own
        theta = rng.multivariate_normal(np.zeros(len(names)), correlation, n_persons)
    d = rng.normal(size=n_items)
    drawn = rng.logistic(size=(n_persons, n_items)) < theta @ slopes.T + d
    items = pd.Index([f"q{j:02d}" for j in range(n_items)], name="item")
    table = pd.DataFrame(drawn.astype(float), columns=items).rename_axis("person")
    return table, slopes, d, theta


def test_dimension_reduction_gives_the_integral_over_all_abilities_and_its_maximum():
    rng = np.random.default_rng(1)
    factors = ["x"] * 3 + ["y"] * 3
    data, *_ = simulated(300, factors, rng)
    data = data.mask(rng.random(data.shape) < 0.1).dropna(how="all")
    named = dict(zip(data, factors, strict=True))
    fit = irt.fit_dimensions(data, named)
    own = np.equal.outer(np.array(factors), ["x", "y"])

    def negative(point):
        general, specific, d = point.reshape(3, -1)
        slopes = np.column_stack([general, own * specific[:, None]])
        return -brute_force(slopes, d, data)

    point = fit.items[["a_general", "a", "d"]].to_numpy(float).T.ravel()
    assert -negative(point) == pytest.approx(fit.loglik, abs=0.01)
    assert np.abs(optimize.approx_fprime(point, negative, 1e-5)).max() < 0.05
    specific = own * fit.items["a"].to_numpy()[:, None]
    slopes = np.column_stack([fit.items["a_general"], specific])
    of_persons = brute_force(slopes, fit.items["d"].to_numpy(), data.iloc[:20], moments=True)
    scores = fit.score(data.iloc[:20])
    for expected, name in zip(of_persons, ("theta", "se"), strict=True):
        np.testing.assert_allclose(scores.xs(name, axis=1, level=1), expected, atol=2e-3)
    # Of the second ability, without its items, the others tell nothing.
    few = fit.score(data.iloc[:20, :3])
    np.testing.assert_allclose(few["y", "theta"], 0, atol=1e-9)
    np.testing.assert_allclose(few["y", "se"], 1, atol=1e-3)
    # Items without a specific ability, and two categories of the graded model.
    some = dict.fromkeys(data.columns[:3], "x")
    fewer = irt.fit_dimensions(data, some, standard_errors=False)
    slopes = fewer.items[["a_general", "a"]].fillna(0.0).to_numpy(float)
    assert brute_force(slopes, fewer.items["d"].to_numpy(), data) == pytest.approx(
        fewer.loglik, abs=0.01
    )
    graded = irt.fit_dimensions(data, some, "graded", standard_errors=False)
    assert graded.loglik == pytest.approx(fewer.loglik, abs=1e-3)
    assert list(graded.items) == ["factor", "a_general", "a", "d1", "se_a_general", "se_a", "se_d1"]


@pytest.fixture(scope="module")
def three_parts():
    rng = np.random.default_rng(3)
    factors = np.repeat(["x", "y", "z"], 5).tolist()
    return factors, *simulated(1200, factors, rng)


def test_a_bifactor_fit_recovers_slopes_abilities_and_the_share_of_the_general_one(three_parts):
    factors, data, slopes, d, theta = three_parts
    fit = irt.fit_dimensions(data, dict(zip(data, factors, strict=True)))
    assert fit.converged
    known = {"a_general": slopes[:, 0], "a": slopes[:, 1:].sum(axis=1), "d": d}
    for name, value in known.items():
        gap = (fit.items[name] - value) / fit.items[f"se_{name}"]
        assert np.abs(gap).max() < 3.5 and 0.5 < np.sqrt((gap**2).mean()) < 1.5
    scores = fit.score(data)
    error = scores["general", "theta"] - theta[:, 0]
    expected = np.sqrt((scores["general", "se"] ** 2).mean())
    assert np.sqrt((error**2).mean()) == pytest.approx(expected, rel=0.1)
    # The correlation of expected abilities with the known ones is the root of their reliability.
    expected = np.sqrt(1 - (scores["x", "se"] ** 2).mean())
    assert np.corrcoef(scores["x", "theta"], theta[:, 1])[0, 1] == pytest.approx(expected, abs=0.06)
    # Reliability from the known slopes, by its formulas.
    scaled = slopes / 1.702
    loadings = scaled / np.sqrt(1 + (scaled**2).sum(axis=1, keepdims=True))
    total = (loadings.sum(axis=0) ** 2).sum() + (1 - (loadings**2).sum(axis=1)).sum()
    squares = (loadings**2).sum(axis=0)
    expected = {
        "omega_total": (loadings.sum(axis=0) ** 2).sum() / total,
        "omega_hierarchical": loadings[:, 0].sum() ** 2 / total,
        "explained_common_variance": squares[0] / squares.sum(),
    }
    np.testing.assert_allclose(
        fit.reliability, pd.Series(expected)[fit.reliability.index], atol=0.05
    )
    testlet = irt.fit_dimensions(
        data, dict(zip(data, factors, strict=True)), structure="testlet", standard_errors=False
    )
    ratio = testlet.items["a"] / testlet.items["a_general"]
    assert ratio.groupby(testlet.items["factor"]).std().max() < 1e-9
    assert testlet.loglik < fit.loglik and testlet.n_parameters == 15 + 3 + 15
    assert fit.loglik > irt.fit(data, standard_errors=False).loglik + 50
    # Proportional slopes are a second-order factor, which three correlations never contradict.
    correlated = irt.fit_dimensions(
        data,
        dict(zip(data, factors, strict=True)),
        structure="correlated",
        standard_errors=False,
    )
    assert correlated.loglik == pytest.approx(testlet.loglik, abs=0.01)


def test_correlated_abilities_have_the_correlation_and_the_integral_over_both():
    rng = np.random.default_rng(5)
    factors = ["x"] * 5 + ["y"] * 5
    correlation = np.array([[1, 0.6], [0.6, 1]])
    data, slopes, d, theta = simulated(800, factors, rng, correlation)
    named = dict(zip(data, factors, strict=True))
    fit = irt.fit_dimensions(data, named, structure="correlated")
    assert fit.converged
    found = fit.correlations.loc["x", "y"]
    assert abs(found - 0.6) < 3 * fit.se_correlations.loc["x", "y"] < 0.3
    own = np.equal.outer(np.array(factors), ["x", "y"]) * fit.items["a"].to_numpy()[:, None]
    expected = brute_force(own, fit.items["d"].to_numpy(), data, fit.correlations.to_numpy())
    assert expected == pytest.approx(fit.loglik, abs=0.01)
    gap = (fit.items["a"] - slopes.sum(axis=1)) / fit.items["se_a"]
    assert np.abs(gap).max() < 3.5
    scores = fit.score(data)
    assert np.corrcoef(scores["y", "theta"], theta[:, 1])[0, 1] > 0.75
    with pytest.raises(ValueError, match="no general one"):
        fit.reliability  # noqa: B018


def test_steep_items_have_a_maximum_with_a_prior_and_are_named_without():
    rng = np.random.default_rng(2)
    factors = np.repeat(["x", "y"], 4)
    own = 2.0 * np.equal.outer(factors, ["x", "y"])
    slopes = np.column_stack([rng.uniform(3, 6, 8), own])
    d = rng.normal(size=8)
    drawn = rng.logistic(size=(300, 8)) < rng.normal(size=(300, 3)) @ slopes.T + d
    data = pd.DataFrame(drawn.astype(float), columns=[f"q{j}" for j in range(8)])
    named = dict(zip(data, factors, strict=True))
    fit = irt.fit_dimensions(data, named, priors={"slope": irt.Normal(0, 3)}, max_iterations=60)
    assert fit.converged and fit.loglik_error < 0.01
    densities = irt.Normal(0, 3).log_density(fit.items[["a_general", "a"]].to_numpy())
    assert fit.log_prior == pytest.approx(densities.sum())
    for name, known in (("a_general", slopes[:, 0]), ("a", 2.0), ("d", d)):
        gap = (fit.items[name] - known) / fit.items[f"se_{name}"]
        assert np.abs(gap).max() < 3.5
    # An item that is answered as most of three others are: no slope is steep enough.
    data["q0"] = (data[["q1", "q2", "q3"]].sum(axis=1) >= 2).astype(float)
    with pytest.warns(irt.IRTWarning, match=r"items \['q0', 'q3'\] have slopes at the bound, 50"):
        free = irt.fit_dimensions(data, named, standard_errors=False)
    assert not free.converged


def test_factors_that_cannot_be_are_refused(three_parts):
    factors, data, *_ = three_parts
    named = dict(zip(data, factors, strict=True))
    for call, says in (
        (lambda: irt.fit_dimensions(data, {"nothing": "x"}), "not among the responses"),
        (lambda: irt.fit_dimensions(data, {"q00": "x", "q01": "x"}), "fewer than 3 items"),
        (lambda: irt.fit_dimensions(data, named, "3PL"), "cannot be"),
        (lambda: irt.fit_dimensions(data, {"q00": "x"}, structure="correlated"), "fewer than 3"),
        (
            lambda: irt.fit_dimensions(data, named, priors={"slope": irt.LogNormal()}),
            "give Normal densities",
        ),
        (
            lambda: irt.fit_dimensions(data, named | {"q00": None}, structure="correlated"),
            "have no dimension",
        ),
    ):
        with pytest.raises((FrameError, ValueError), match=says):
            call()
