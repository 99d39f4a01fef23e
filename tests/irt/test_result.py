"""Fits as results: change of scale, comparisons, figures, files that were damaged."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats
from scipy.special import expit

import psychlm
from psychlm import corpora, irt, plots, simulate
from psychlm.frames import FrameError
from psychlm.irt.response_functions import MODELS, model_named


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return simulate.responses(rng.normal(size=300), simulate.items(8, rng), rng, missing=0.1)


@pytest.fixture(scope="module")
def ratings() -> pd.DataFrame:
    return corpora.lalor2018_ratings().iloc[:, :5]


@pytest.fixture(scope="module")
def fits(people, ratings):
    kinds = [("Rasch", people), ("2PL", people), ("graded", ratings), ("gpcm", ratings)]
    return {model: irt.fit(answered, model) for model, answered in kinds}


@pytest.mark.parametrize("model", ["Rasch", "2PL", "graded", "gpcm"])
def test_linking_moves_scores_and_leaves_probabilities(people, ratings, fits, model):
    fit, theta = fits[model], np.linspace(-3, 3, 7)
    # Far from steep items of ratings, an error of 1e-6 in ability moves its error by 5e-5.
    responses, rtol = (people, 1e-5) if MODELS[model].dichotomous else (ratings, 1e-4)
    linked = irt.link(fit, slope=15, intercept=100)
    np.testing.assert_allclose(linked.probability(100 + 15 * theta), fit.probability(theta))
    for method in ("eap", "map", "ml", "wle"):
        before, after = fit.score(responses, method), linked.score(responses, method)
        np.testing.assert_allclose(after["theta"], 100 + 15 * before["theta"], atol=1e-5)
        np.testing.assert_allclose(after["se"], 15 * before["se"], rtol=rtol)
    posterior, eap = linked.posterior(responses), linked.score(responses)["theta"]
    np.testing.assert_allclose(posterior.weights @ posterior.nodes, eap, atol=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_a_linked_table_of_any_model_has_the_same_curves(model, rng):
    table, theta = simulate.items(6, rng, model), np.linspace(-2, 2, 9)
    linked = irt.link(table, slope=1.4, intercept=0.3)
    before, after = (model_named(model).form.of_table(items) for items in (table, linked))
    moved = after.probability_at(0.3 + 1.4 * theta)
    np.testing.assert_allclose(moved, before.probability_at(theta), atol=1e-12)
    lacks = pd.DataFrame({"a": [1.0], "d1": [0.0]})
    with pytest.raises(FrameError, match=r"columns \['b1'\] are missing"):
        irt.link(lacks, slope=2, intercept=1)


def test_standard_errors_after_linking_are_those_of_the_delta_method(people, fits):
    fit = fits["2PL"]
    middling = fit.items.assign(d=0.0, b=0.0, se_b=fit.items["se_d"] / fit.items["a"])
    equal = {"slope": list(people.columns[1:4])}
    tied = irt.fit(people, "2PL", equal=equal)
    cases = [fit, replace(fit, items=middling), irt.fit(people, "1PL"), tied]
    for before in [*cases, fits["graded"]]:
        linked, names = irt.link(before, slope=2.0, intercept=0.7), before.covariance.index
        for item, number in before.estimates["a"].items():
            alike = before.estimates.index[before.estimates["a"] == number]
            label = alike[0] if (alike[0], "a") in names else "all"
            for step in (name for name in before.items if name.startswith("d")):
                pair = [(label, "a"), (item, step)]
                block = before.covariance.loc[pair, pair].to_numpy()
                jacobian = np.array([-0.7 / 2, 1.0])  # d* = d - a B / A
                expected = np.sqrt(jacobian @ block @ jacobian)
                assert linked.items.loc[item, f"se_{step}"] == pytest.approx(expected)
        np.testing.assert_allclose(linked.items["se_a"], before.items["se_a"] / 2)
    # A table's errors imply the covariance, but where b is 0.
    linked = irt.link(fit.items, slope=2.0, intercept=0.7)
    pd.testing.assert_frame_equal(linked, irt.link(fit, slope=2.0, intercept=0.7).items)
    np.testing.assert_allclose(linked["se_b"], 2 * fit.items["se_b"])
    pd.testing.assert_frame_equal(irt.link(linked, slope=0.5, intercept=-0.35), fit.items)
    assert irt.link(middling, slope=2.0, intercept=0.7)["se_d"].isna().all()
    stretched = irt.link(middling, slope=2.0)
    pd.testing.assert_series_equal(stretched["se_d"], fit.items["se_d"])


def test_a_shifted_difficulty_is_an_error_and_an_upper_asymptote_of_1_is_none(people, fits):
    fit = fits["2PL"]
    shifted = fit.items.assign(b=fit.items["b"] + 1)
    with pytest.raises(FrameError, match="b and a d that disagree.*irt.link"):
        irt.score(shifted, people)
    with pytest.raises(FrameError, match="b and a d that disagree"):
        replace(fit, items=shifted)
    by_difficulty = irt.score(shifted.drop(columns="d"), people, "ml")["theta"]
    np.testing.assert_allclose(by_difficulty, irt.score(fit.items, people, "ml")["theta"] + 1)
    with_upper = irt.score(fit.items.assign(u=1.0), people)
    pd.testing.assert_frame_equal(with_upper, irt.score(fit.items, people))


def test_fits_to_the_same_data_share_a_hash_and_likelihood_ratios_take_no_others(people, fits):
    matrix = people.fillna(255).to_numpy().astype(np.uint8)
    as_matrix = irt.fit(matrix, "Rasch", item_names=people.columns, standard_errors=False)
    assert as_matrix.data_hash == fits["Rasch"].data_hash == fits["2PL"].data_hash
    for changed in (people.iloc[:-1], people.iloc[:, :-1], people.rename(columns={"item-1": "x"})):
        other = irt.fit(changed, "Rasch", standard_errors=False)
        with pytest.raises(ValueError, match="different responses"):
            irt.likelihood_ratio(other, fits["2PL"])


def test_likelihood_ratios_are_those_of_textbooks_and_compare_no_other_likelihoods(people, fits):
    """With integrated difficulties on one side, p of one model against itself would be 3e-11."""
    rasch, two = fits["Rasch"], fits["2PL"]
    found, chi2 = irt.likelihood_ratio(rasch, two), 2 * (two.loglik - rasch.loglik)
    assert (found.chi2, found.df) == (chi2, 7)
    assert found.p == pytest.approx(stats.chi2.sf(chi2, 7))
    features = pd.DataFrame({"last": people.columns == people.columns[-1]}, people.columns)
    integrated = irt.fit(people, "Rasch", difficulty_prior=features.astype(float))
    with_prior = irt.fit(people, "2PL", priors={"slope": irt.LogNormal(0, 0.5)})
    refused = [
        (two, rasch, "give the small"),
        (rasch, replace(two, loglik=rasch.loglik - 1), r"lower by 1.000 nats"),
        (integrated, rasch, "cannot be compared"),
        (integrated, two, "cannot be compared"),
        (rasch, with_prior, "fit both models without priors"),
    ]
    for small, big, message in refused:
        with pytest.raises(ValueError, match=message):
            irt.likelihood_ratio(small, big)


def test_a_tampered_fit_file_is_refused_or_scores_without_blanks(people, fits, tmp_path):
    rng, path, few = np.random.default_rng(0), tmp_path / "fit.json", people.iloc[:3]
    fits["2PL"].to_json(path)
    again, text = irt.IRTFit.from_json(path), path.read_text()
    pd.testing.assert_frame_equal(again.items, fits["2PL"].items, check_exact=True)
    pd.testing.assert_frame_equal(again.covariance, fits["2PL"].covariance, check_exact=True)
    expected, n_refused = fits["2PL"].score(few), 0
    for case in range(150):  # cut, or with characters changed
        place, rest = rng.integers(len(text)), case % 10
        junk = rng.choice(["", "0", "9", "-", "null", "true", '"', "[", "{}", "1e308", "\ud7ff"])
        path.write_text(text[:place] + (junk + text[place + 1 :] if rest else ""))
        try:
            abilities = irt.IRTFit.from_json(path).score(few)
        except ValueError as error:  # FrameError is one
            assert len(str(error)) > 20
            n_refused += 1
        else:
            pd.testing.assert_frame_equal(abilities, expected)
    assert n_refused > 110
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a fit"):
        irt.IRTFit.from_json(path)


def test_drawn_curves_are_those_of_the_model_and_points_the_observed_shares():
    data = corpora.lsat6()
    fit, item = irt.fit(data, "2PL"), data.columns[2]
    ax = plots.item_curves(fit, [item], data, ax=plt.figure().gca())
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, irt.curves.probability(x, fit.items.loc[[item]])[:, 0])
    points = np.asarray(ax.containers[0].lines[0].get_ydata(), dtype=float)
    theta = fit.score(data)["theta"]
    tenths = np.unique(np.quantile(theta, np.linspace(0, 1, 11)))
    group = np.clip(np.searchsorted(tenths, theta) - 1, 0, None)
    np.testing.assert_allclose(points, [data[item][group == g].mean() for g in np.unique(group)])
    plt.close()
    of_name = plots.item_curves(fit, item, ax=plt.figure().gca())  # a name is no list of letters
    np.testing.assert_allclose(of_name.lines[0].get_ydata(), y)
    with pytest.raises(ValueError, match="are not of this fit"):
        plots.item_curves(fit, ["zz"])
    infinite = fit.score(data, "ml")["theta"]
    ax = plots.wright_map(infinite, fit.items["b"], ax=plt.figure().gca())
    n = np.isinf(infinite).sum()
    assert n and ax.get_xlabel() == f"persons (without {n} of infinite ability)"
    plt.close("all")


@pytest.mark.parametrize(
    ("unit", "slope", "intercept"), [("points", 100, 500), ("stanines", 2, 5), ("", 2, 5)]
)
def test_figures_of_a_reporting_scale_name_its_unit_and_show_its_errors(
    unit, slope, intercept, fits, tmp_path
):
    linked = irt.link(fits["2PL"], slope=slope, intercept=intercept, unit=unit)
    linked.to_json(tmp_path / "linked.json")
    ax = plots.information(irt.IRTFit.from_json(tmp_path / "linked.json"))
    errors = ax.figure.axes[-1]
    in_unit = f" ({unit})" if unit else ""
    assert ax.get_xlabel() == f"ability{in_unit}"
    assert errors.get_ylabel() == f"standard error{in_unit}, dotted"
    error = errors.lines[0].get_ydata()
    assert error.max() > slope / 5 and errors.get_ylim()[1] > error.max()
    plt.close()


@pytest.mark.parametrize("model", [name for name in MODELS if name != "nominal"])
def test_constants_of_generated_links_are_recovered(model):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        old = simulate.items(int(rng.integers(3, 9)), rng, model)
        slope, intercept = float(rng.lognormal(0, 0.5)), float(rng.normal())
        new = irt.link(old, slope=slope, intercept=intercept)
        # In any order, with other items that have more categories, and steps in any order.
        other = simulate.items(2, rng, model).set_axis(["another", "more"])
        if "b1" in other:
            other = other[["a"]].assign(**{f"b{k}": float(k) for k in range(1, 12)})
        new = pd.concat([new.sample(frac=1, random_state=seed), irt.link(other)]).iloc[:, ::-1]
        found = irt.linking_constants(old, new, model=model)[["slope", "intercept"]]
        np.testing.assert_allclose(found, [[slope, intercept]] * 4, atol=2e-3)


@pytest.mark.parametrize("model", ["2PL", "3PL", "graded"])
def test_linking_curves_of_items_that_drifted_reach_the_least_of_several_minima(model, rng):
    """The criteria of Kolen and Brennan (2014, section 6.3.2), from two starts by scipy."""
    theta = np.linspace(-6, 6, 61)
    weights = stats.norm.pdf(theta) / stats.norm.pdf(theta).sum()

    def curves(items: pd.DataFrame, slope: float = 1.0, intercept: float = 0.0) -> np.ndarray:
        """Return P of every category above the lowest, (n_steps, n_items, n_theta)."""
        steps, guessing = items.filter(regex="^b"), items[["c"]].to_numpy() if "c" in items else 0.0
        z = (theta - slope * steps.to_numpy().T[..., None] - intercept) / slope
        at_least = guessing + (1 - guessing) * expit(items[["a"]].to_numpy() * z)
        return -np.diff(at_least, axis=0, append=np.zeros_like(at_least[:1]))

    old = simulate.items(int(rng.integers(2, 8)), rng, model)

    linked = irt.link(old, slope=rng.lognormal(0, 0.5), intercept=rng.normal())
    new = linked[[*old]] * rng.lognormal(0, 0.3, old.shape)
    steps = new.filter(regex="^b")
    new[steps.columns] = np.sort(steps, axis=1)
    found = irt.linking_constants(old, new, model=model)

    def criterion(x: np.ndarray, method: str) -> float:
        gap = curves(old, np.exp(x[0]), x[1]) - curves(new)
        if method == "Haebara":
            return float((gap**2).sum((0, 1)) @ weights)
        return float(np.einsum("k,kjn->n", np.arange(1, len(gap) + 1), gap) ** 2 @ weights)

    for method in ("Haebara", "Stocking-Lord"):
        starts = ((-0.7, 1.0), (0.7, -1.0))
        ends = [optimize.minimize(criterion, start, (method,), "BFGS") for start in starts]
        ends = [optimize.minimize(criterion, end.x, (method,), "Nelder-Mead") for end in ends]
        best = min(ends, key=lambda end: end.fun)
        slope, intercept, least = found.loc[method]
        assert least == pytest.approx(criterion([np.log(slope), intercept], method))
        assert least <= best.fun * (1 + 1e-6)
        np.testing.assert_allclose([np.log(slope), intercept], best.x, atol=1e-3)


def test_what_cannot_be_linked_is_refused():
    graded = pd.DataFrame({"a": [1.0, 1.2], "b1": [0.0, 0.5], "b2": [1.0, 1.5]}, ["x", "y"])
    longer = graded.assign(b3=[2.0, np.nan])
    with pytest.raises(FrameError, match=r"\['x'\] have other numbers of categories"):
        irt.linking_constants(graded, longer, model="graded")
    items = pd.DataFrame({"a": [1.0, 2.0, 1.0], "b": [0.0, 0.5, 1.0]}, list("xyz"))
    with pytest.raises(FrameError, match="opposite"):
        irt.linking_constants(items, -items)
    with pytest.raises(FrameError, match=r"\['x'\] stand more than once"):
        irt.linking_constants(items, items.rename({"y": "x"}))
    with pytest.raises(FrameError, match=r"\['y'\] have parameters that are missing"):
        irt.linking_constants(items, items.mask(items == 2))
    # Equal difficulties have no spread, but slopes and curves tell the scale.
    equal = items.assign(b=0.0)
    found = irt.linking_constants(equal, irt.link(equal, slope=2, intercept=1))
    np.testing.assert_allclose(found.iloc[1:, :2], [[2, 1]] * 3, atol=1e-5)
    assert found.loc["mean/sigma", ["slope", "intercept"]].isna().all()


def test_tables_for_papers_have_their_digits():
    """Item 1 of LSAT6 is ltm's, as its manual prints it: 0.8254, -3.3597."""
    lsat = corpora.lsat6()
    group = pd.Series(["a", "b"] * 500, lsat.index)
    two = irt.fit(lsat, model="2PL").to_markdown()
    assert "| LSAT 1 | 0.83 | −3.36 |" in two and "log-likelihood -2466.653" in two
    written = irt.fit(lsat, model="2PL", group=group).to_latex()
    assert written.count(r"\begin{table}") == 2 and r"\caption{Groups}" in written
    tested = irt.mantel_haenszel(lsat, group)
    assert f"{tested.items['std_p_dif'].iloc[0]:.2f}".replace("-", "−") in tested.to_markdown()
    pairs = psychlm.compare(lsat.iloc[[0, 400, 999]].set_axis(list("xyz")).astype(float))
    assert "| a | b | difference |" in pairs.to_markdown()
