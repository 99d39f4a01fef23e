"""Partial credit, rating scale and nominal models, mixed formats, banks of fixed items, weights.

References: marginal likelihoods written out here and maximised by scipy; eRm 1.0-2 for PCM and RSM
(tests/reference/irt/erm.csv, which write_erm.R writes): its conditional estimates differ from
marginal ones by less than a standard error."""

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import logsumexp
from scipy.stats import norm
from statsmodels.tools.numdiff import approx_hess3

from psychlm import irt, simulate
from psychlm.frames import FrameError

NODES = np.linspace(-7, 7, 85)


def marginal_loglik(log_p, responses, mean=0.0, sd=1.0, by_person=False):
    """Return the log-likelihood of category numbers; ``log_p(theta)`` is (n_items, n_cat, n)."""
    theta = mean + sd * NODES
    curves = log_p(theta)
    codes = responses.to_numpy()
    at_nodes = np.zeros((len(codes), len(theta)))
    for j, column in enumerate(codes.T):
        asked = ~np.isnan(column)
        at_nodes[asked] += curves[j][column[asked].astype(int)]
    weights = norm.pdf(NODES) / norm.pdf(NODES).sum()
    of_person = logsumexp(at_nodes, axis=1, b=weights)
    return of_person if by_person else of_person.sum()


def credit(slopes, steps):
    """Return log P of categories whose neighbours differ by slope (theta - step)."""

    def log_p(theta):
        z = slopes[:, None, None] * (theta - steps[..., None])
        total = np.concatenate([0 * z[:, :1], z.cumsum(1)], 1)
        return total - logsumexp(total, axis=1, keepdims=True)

    return log_p


@pytest.fixture(scope="module")
def rated():
    rng = np.random.default_rng(11)
    items = simulate.items(5, rng, "PCM", n_categories=4)
    answers = simulate.responses(1.3 * rng.normal(size=400), items, rng, model="PCM")
    return answers.mask(rng.random(answers.shape) < 0.05)


def at_the_maximum(fit, negative, point):
    """The likelihood written here equals the fit's, and has no slope there (nats per logit)."""
    assert fit.converged and fit.n_parameters == len(point)
    assert -negative(point) == pytest.approx(fit.loglik, abs=1e-3)
    assert np.abs(optimize.approx_fprime(point, negative, 1e-5)).max() < 0.05


def test_partial_credit_and_rating_scale_maximise_the_likelihood_written_out(rated):
    n = rated.shape[1]
    partial = irt.fit(rated, "PCM")

    def of_partial(point):
        log_p = credit(np.ones(n), point[1:].reshape(n, 3))
        return -marginal_loglik(log_p, rated, sd=point[0])

    steps = partial.items[["b1", "b2", "b3"]].to_numpy()
    at_the_maximum(partial, of_partial, np.r_[partial.ability_sd, steps.ravel()])

    scale = irt.fit(rated, "RSM")
    steps = scale.items[["b1", "b2", "b3"]].to_numpy()
    apart = steps - steps.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(apart, np.tile(apart[0], (n, 1)), atol=1e-9)

    def of_scale(point):
        spacing = np.r_[point[n + 1 :], -point[n + 1 :].sum()]
        log_p = credit(np.ones(n), point[1 : n + 1, None] + spacing)
        return -marginal_loglik(log_p, rated, sd=point[0])

    point = np.r_[scale.ability_sd, steps.mean(axis=1), apart[0, :2]]
    at_the_maximum(scale, of_scale, point)
    # Errors of the steps, by the curvature of the same function.
    hessian = optimize.approx_fprime(
        point, lambda x: optimize.approx_fprime(x, of_scale, 1e-5), 1e-4
    )
    of_steps = np.hstack([np.zeros((n, 1)), np.eye(n), np.tile([1.0, 0.0], (n, 1))])
    errors = np.sqrt(np.diag(of_steps @ np.linalg.inv((hessian + hessian.T) / 2) @ of_steps.T))
    np.testing.assert_allclose(scale.items["se_b1"], errors, rtol=0.02)


def test_m2_counts_the_free_parameters_of_a_rating_scale():
    rng = np.random.default_rng(3)
    items = simulate.items(8, rng, "PCM", n_categories=4)
    items[["b2", "b3"]] = items[["b1"]].to_numpy() + [1.0, 2.0]
    data = simulate.responses(rng.normal(size=600), items, rng, model="PCM")
    partial, scale = (irt.m2(irt.fit(data, model), data) for model in ("PCM", "RSM"))
    assert (partial.df, scale.df) == (36 - 25, 36 - 11)
    assert scale.p > 1e-4


@pytest.mark.parametrize("model", ["PCM", "RSM"])
def test_steps_are_those_of_erm_within_a_standard_error(model, rated, reference_dir):
    theirs = pd.read_csv(reference_dir / "irt" / "erm.csv").query("model == @model")
    names = ["b1", "b2", "b3"]
    fit = irt.fit(rated, model)
    ours = fit.items[names] - fit.items[names].to_numpy().mean()
    gap = (ours.to_numpy() - theirs[names].to_numpy()) / fit.items[[f"se_{b}" for b in names]]
    assert np.abs(gap).to_numpy().max() < 0.6


def test_a_nominal_model_maximises_the_likelihood_and_recovers_its_items():
    rng = np.random.default_rng(4)
    known = simulate.items(6, rng, "nominal", n_categories=3)
    data = simulate.responses(rng.normal(size=2000), known, rng, model="nominal")
    fit = irt.fit(data, "nominal")

    def log_p(theta, table):
        z = table[:, :2, None] * theta + table[:, 2:, None]
        z = np.concatenate([0 * z[:, :1], z], 1)
        return z - logsumexp(z, axis=1, keepdims=True)

    names = ["a1", "a2", "d1", "d2"]

    def negative(point):
        return -marginal_loglik(lambda theta: log_p(theta, point.reshape(-1, 4)), data)

    at_the_maximum(fit, negative, fit.items[names].to_numpy().ravel())
    gap = (fit.items[names] - known[names]) / fit.items[[f"se_{x}" for x in names]].to_numpy()
    assert np.abs(gap).to_numpy().max() < 3.5
    # Categories in an order are the gpcm: slopes that grow evenly.
    ordered = simulate.items(5, rng, "gpcm", n_categories=3)
    answers = simulate.responses(rng.normal(size=500), ordered, rng, model="gpcm")
    assert irt.fit(answers, "nominal").loglik > irt.fit(answers, "gpcm").loglik


@pytest.fixture(scope="module")
def both_formats(rated):
    answers = rated.copy()
    answers.iloc[:, 0] = (rated.iloc[:, 0] > 1).astype(float).where(rated.iloc[:, 0].notna())
    return answers


def test_formats_that_are_mixed_give_the_fit_of_one_model_that_has_both(both_formats):
    """A graded item of two categories is a 2PL item, and a PCM item of two a Rasch item."""
    for model, named in (
        ("graded", {both_formats.columns[0]: "2PL"}),
        ("PCM", {both_formats.columns[0]: "Rasch"}),
    ):
        whole = irt.fit(both_formats, model)
        mixed = irt.fit(both_formats, named)
        assert mixed.model == "mixed formats" and mixed.n_parameters == whole.n_parameters
        assert mixed.loglik == pytest.approx(whole.loglik, abs=1e-5)
        assert mixed.items["model"].tolist() == [*named.values(), *[model] * 4]
        polytomous = [name for name in whole.items if name in mixed.items and name != "converged"]
        np.testing.assert_allclose(
            mixed.items[polytomous].iloc[1:], whole.items[polytomous].iloc[1:], rtol=1e-3, atol=1e-4
        )
        two = mixed.items[["a", "b", "d"]].iloc[0]
        np.testing.assert_allclose(two, whole.items[["a", "b1", "d1"]].iloc[0], atol=1e-4)
        assert mixed.ability_sd == pytest.approx(whole.ability_sd, abs=1e-4)
        for method in ("eap", "wle"):
            gap = mixed.score(both_formats, method) - whole.score(both_formats, method)
            assert np.nanmax(np.abs(gap)) < 2e-3


def test_a_3pl_beside_a_gpcm_maximises_the_likelihood_and_is_kept(both_formats, tmp_path):
    first = both_formats.columns[0]
    priors = {"guessing": irt.Beta(5, 17)}
    names = dict.fromkeys(both_formats.columns[1:], "gpcm")
    fit = irt.fit(both_formats, {first: "3PL"} | names, priors=priors)
    a, d, c = fit.items.loc[first, ["a", "d", "c"]].astype(float)

    def log_p(theta):
        table = fit.items.iloc[1:]
        steps = table[["b1", "b2", "b3"]].to_numpy(float)
        p = c + (1 - c) / (1 + np.exp(-a * theta - d))
        two = np.log(np.stack([1 - p, p, 0 * p + 1, 0 * p + 1]))
        return np.concatenate([two[None], credit(table["a"].to_numpy(float), steps)(theta)])

    assert marginal_loglik(log_p, both_formats) == pytest.approx(fit.loglik, abs=1e-3)
    fit.to_json(tmp_path / "fit.json")
    again = irt.IRTFit.from_json(tmp_path / "fit.json")
    pd.testing.assert_frame_equal(again.items, fit.items)
    pd.testing.assert_frame_equal(again.score(both_formats), fit.score(both_formats))
    assert (fit.information([0.0]) > 0).all()


def test_models_that_cannot_stand_together_are_refused(rated, both_formats):
    for model, says in (
        ({"nobody": "2PL"}, "'nobody'.* are not among the responses"),
        ({rated.columns[0]: "3PL"}, "have answers other than 0 and 1"),
        ({rated.columns[0]: "RSM"}, "no others beside it"),
        ({both_formats.columns[0]: "2PL", both_formats.columns[1]: "PCM"}, "no others beside it"),
    ):
        data = both_formats if len(model) == 2 else rated
        with pytest.raises(FrameError, match=says):
            irt.fit(data, model)


@pytest.fixture(scope="module")
def bank():
    """A bank of 12 items, and 600 new persons who took 8 of them and 2 new ones."""
    rng = np.random.default_rng(6)
    known = simulate.items(12, rng, "2PL").drop(columns="c")
    known["d"] = -known["a"] * known["b"]
    new = simulate.items(2, rng, "2PL").set_axis(["new-1", "new-2"])
    asked = pd.concat([known.iloc[:8], new])[["a", "b"]]
    data = simulate.responses(0.8 + 0.7 * rng.normal(size=600), asked, rng)
    return known, data


def test_items_at_a_banks_values_leave_the_others_and_the_population_to_be_estimated(bank):
    known, data = bank
    fit = irt.fit(data, "2PL", fixed=known)
    held = data.columns[:8]
    names = ["a", "b", "d"]
    np.testing.assert_allclose(fit.items.loc[held, names], known.loc[held, names])
    assert fit.items.loc[held, ["se_a", "se_d", "se_b"]].isna().all(axis=None)
    assert fit.items["fixed"].tolist() == [True] * 8 + [False] * 2

    def negative(point):
        mean, sd = point[:2]
        table = np.vstack([known.loc[held, ["a", "d"]], point[2:].reshape(2, 2)])

        def log_p(theta):
            z = table[:, :1] * theta + table[:, 1:]
            return np.stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)], 1)

        return -marginal_loglik(log_p, data, mean, sd)

    new = fit.items.loc[["new-1", "new-2"]]
    point = np.r_[fit.ability_mean, fit.ability_sd, new[["a", "d"]].to_numpy().ravel()]
    at_the_maximum(fit, negative, point)
    hessian = optimize.approx_fprime(
        point, lambda x: optimize.approx_fprime(x, negative, 1e-5), 1e-4
    )
    errors = np.sqrt(np.diag(np.linalg.inv((hessian + hessian.T) / 2)))
    ours = [fit.se_ability_mean, fit.se_ability_variance / (2 * fit.ability_sd)]
    np.testing.assert_allclose(
        [*ours, *new[["se_a", "se_d"]].to_numpy().ravel()], errors, rtol=0.03
    )
    assert abs(fit.ability_mean - 0.8) < 3 * ours[0] and abs(fit.ability_sd - 0.7) < 3 * ours[1]

    # A candidate who skipped items; and a population of its own without any new item.
    candidate = data.iloc[[0]].copy()
    candidate.iloc[0, 2:5] = np.nan
    one = irt.score(known, candidate[held], ability_mean=0.8, ability_sd=0.7)
    assert np.isfinite(one).all(axis=None)
    only = irt.fit(data[held], "2PL", fixed=known)
    assert only.n_parameters == 2 and only.converged


def test_groups_and_rasch_and_ratings_take_a_bank(bank, rated):
    known, data = bank
    member = np.where(np.arange(len(data)) < 300, "x", "y")
    grouped = irt.fit(data, "2PL", fixed=known, group=member)
    apart = irt.fit(data.iloc[:300].iloc[:, :8], "2PL", fixed=known)
    both = irt.fit(data.iloc[:, :8], "2PL", fixed=known, group=member)
    assert both.groups.loc["x", "mean"] == pytest.approx(apart.ability_mean, abs=1e-4)
    assert both.groups.loc["x", "se_sd"] > 0 and grouped.groups["se_mean"].notna().all()
    for model in ("Rasch", "PCM", "graded"):
        answers = data if model == "Rasch" else rated
        first = irt.fit(answers, model)
        again = irt.fit(answers, model, fixed=first)
        assert again.ability_mean == pytest.approx(0, abs=2e-3)
        assert again.ability_sd == pytest.approx(first.ability_sd, abs=2e-3)
        assert again.loglik == pytest.approx(first.loglik, abs=1e-3)


def test_banks_that_do_not_fit_are_refused_with_the_reason(bank, rated):
    known, data = bank
    fit = irt.fit(rated, "graded", standard_errors=False)
    for call, says in (
        (lambda: irt.fit(data, fixed=known.add_prefix("x", axis=0)), "none of the items"),
        (lambda: irt.fit(data, "Rasch", fixed=known), "slopes of fixed lie between"),
        (lambda: irt.fit(rated, "RSM", fixed=fit.items), "steps that all items share"),
        (lambda: irt.fit(rated, "gpcm", fixed=fit), "fixed is a fit of the graded model"),
        (
            lambda: irt.fit(data, fixed=known, equal={"slope": [data.columns[0], "new-1"]}),
            "equal too",
        ),
    ):
        with pytest.raises((FrameError, ValueError), match=says):
            call()


@pytest.mark.parametrize("model", ["2PL", "Rasch", "graded"])
def test_integer_weights_equal_rows_repeated(model, bank, rated):
    data = rated if model == "graded" else bank[1].iloc[:300]
    weights = np.random.default_rng(1).integers(1, 4, len(data))
    repeated = (
        data.loc[data.index.repeat(weights)].set_axis(range(weights.sum())).rename_axis("person")
    )
    weighted = irt.fit(data, model, weights=weights)
    whole = irt.fit(repeated, model)
    assert weighted.loglik == pytest.approx(whole.loglik, abs=1e-4)
    names = [name for name in whole.items if name[0] in "abd"]
    np.testing.assert_allclose(weighted.items[names], whole.items[names], atol=2e-3)
    assert "sandwich" in repr(weighted) and weighted.errors == "sandwich"
    with pytest.raises(FrameError, match="weight that is not a finite number above 0"):
        irt.fit(data, model, weights=weights - 1)


def test_sandwich_errors_are_those_of_numerical_derivatives_of_every_persons_likelihood(bank):
    data = bank[1].iloc[:, :5]
    weights = np.random.default_rng(1).lognormal(0, 0.5, len(data))
    for given in (None, weights):
        fit = irt.fit(data, "2PL", standard_errors="sandwich", weights=given)

        def persons(point):
            a, d = point.reshape(2, -1)

            def log_p(theta):
                z = a[:, None] * theta + d[:, None]
                return np.stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)], 1)

            return marginal_loglik(log_p, data, by_person=True)

        point = fit.items[["a", "d"]].to_numpy().T.ravel()
        w = np.ones(len(data)) if given is None else given
        scores = optimize.approx_fprime(point, persons, 1e-6) * w[:, None]
        hessian = approx_hess3(point, lambda y, w=w, persons=persons: -(w @ persons(y)))
        bread = np.linalg.inv(hessian)
        errors = np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread)).reshape(2, -1)
        np.testing.assert_allclose(fit.items[["se_a", "se_d"]].T, errors, rtol=0.01)


def test_linking_selection_and_adaptive_tests_take_the_further_models(rated, both_formats):
    """Probabilities stay on another scale; an adaptive test of all items ends at the score."""
    names = dict.fromkeys(both_formats.columns[1:], "gpcm")
    for data, model in ((rated, "nominal"), (rated, "PCM"), (both_formats, names)):
        fit = irt.fit(data, model)
        linked = irt.link(fit, slope=2, intercept=1)
        theta = np.linspace(-2, 2, 5)
        np.testing.assert_allclose(linked.probability(1 + 2 * theta), fit.probability(theta))
        gap = linked.score(data)["theta"] - (1 + 2 * fit.score(data)["theta"])
        assert np.abs(gap).max() < 1e-5
        assert list(linked.items) == list(fit.items)
        assert len(irt.assemble_form(fit, 2, -1, 1)) == 2
        complete = data.dropna().iloc[:5]
        test = irt.adaptive_test(fit, complete, n_items=5)
        np.testing.assert_allclose(test.theta[5], fit.score(complete)["theta"], atol=1e-3)
