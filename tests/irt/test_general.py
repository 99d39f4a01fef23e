"""Graded, partial-credit and 4PL items, groups, linking, reliability, against mirt and equateIRT.

References: mirt 1.45.1 (tests/reference/irt/more), equateIRT for linking constants; known
parameters where no program gives them."""

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import expit, logit

from analyses.lalor2020_test_sets import confirm
from psychlm import corpora, irt, plots, simulate
from psychlm.frames import FrameError


@pytest.fixture(scope="module")
def mirt(reference_dir):
    """Read a table of mirt's results, by its name."""
    return lambda name, **kwargs: pd.read_csv(reference_dir / "irt/more" / f"{name}.csv", **kwargs)


@pytest.fixture(scope="module")
def science(mirt):
    data = mirt("data_Science")
    return data, {model: irt.fit(data, model) for model in ("graded", "gpcm")}


@pytest.fixture(scope="module")
def two_groups(mirt):
    data = mirt("data_two_groups")
    return data.drop(columns="group"), data["group"]


@pytest.mark.parametrize("model", ["graded", "gpcm"])
def test_polytomous_fits_scores_information_and_reliability_equal_mirt(model, science, mirt):
    data, fit = science[0], science[1][model]
    assert fit.converged
    loglik = mirt("polytomous_fits", index_col="model").loc[f"Science_{model}", "logLik"]
    assert fit.loglik == pytest.approx(loglik, abs=1e-3)
    theirs = mirt(f"items_Science_{model}", index_col="item")
    # Of gpcm's first step mirt's standard error leaves out the covariance with the slope.
    names = ["a", "b1", "b2", "b3", "se_a", "se_b2", "se_b3"]
    pd.testing.assert_frame_equal(fit.items[names], theirs[names], atol=1e-3, rtol=1e-3)
    eap, score = mirt("eap_first20_Science"), fit.score(data.iloc[:20])
    assert score["theta"].to_numpy() == pytest.approx(eap[f"EAP_{model}"].to_numpy(), abs=1e-3)
    assert score["se"].to_numpy() == pytest.approx(eap[f"se_{model}"].to_numpy(), abs=1e-3)
    curve = mirt("test_information_Science")
    information = fit.information(curve["theta"].to_numpy()).sum(axis=1)
    assert information == pytest.approx(curve[model].to_numpy(), abs=1e-3)
    least, step = curve[model].max() / 2, curve["theta"].diff().iloc[1]
    enough, found = curve["theta"][curve[model] >= least], irt.information_range(fit, least=least)
    assert (found.low, found.high) == pytest.approx((enough.min(), enough.max()), abs=step)
    assert list(irt.assemble_form(fit, 1, -3, 3)) == [fit.items["a"].idxmax()]
    theirs = mirt("polytomous_reliability", index_col="model").loc[f"Science_{model}"]
    assert fit.reliability(data).to_numpy() == pytest.approx(theirs.to_numpy()[::-1], abs=1e-3)


@pytest.mark.parametrize("model", ["graded", "gpcm"])
def test_ratings_of_lalor_2018_and_missing_answers_equal_mirt(model, mirt):
    fits = mirt("polytomous_fits", index_col="model")["logLik"]
    columns = mirt("lalor2018_first25_columns", dtype=str)["column"]
    ratings = irt.fit(corpora.lalor2018_ratings()[columns], model, standard_errors=False)
    assert ratings.loglik == pytest.approx(fits[f"lalor2018_first25_{model}"], abs=1e-3)
    theirs = mirt(f"items_lalor2018_first25_{model}", index_col="item")["a"].abs()
    np.testing.assert_allclose(ratings.items["a"].abs(), theirs, atol=1e-3)
    gaps = irt.fit(mirt("data_Science_missing10").dropna(how="all"), model)
    assert gaps.loglik == pytest.approx(fits[f"Science_missing10_{model}"], abs=1e-3)
    theirs = mirt(f"items_Science_missing10_{model}", index_col="item")
    names = ["a", "b1", "b2", "b3"]
    pd.testing.assert_frame_equal(gaps.items[names], theirs[names], atol=1e-3)


def test_a_graded_model_of_two_categories_is_the_2pl_and_gpcm_with_equal_slopes_the_1pl():
    data = corpora.lsat6()
    two, graded = irt.fit(data, "2PL"), irt.fit(data, "graded")
    assert graded.loglik == pytest.approx(two.loglik, abs=1e-5)
    assert graded.items["se_b1"].to_numpy() == pytest.approx(two.items["se_b"].to_numpy(), rel=1e-2)
    for method in ("eap", "map", "ml"):
        ours, theirs = (fit.score(data.iloc[:50], method) for fit in (graded, two))
        np.testing.assert_allclose(ours["theta"], theirs["theta"], atol=2e-3)
    one = irt.fit(data, "1PL")
    for tied in (
        irt.fit(data, "2PL", equal={"slope": "all"}),
        irt.fit(data, "gpcm", equal={"slope": list(data.columns)}),
    ):
        assert tied.loglik == pytest.approx(one.loglik, abs=1e-5)
        assert tied.n_parameters == one.n_parameters == 6
    some = irt.fit(data, "2PL", equal={"slope": [data.columns[:2], data.columns[2:4]]})
    assert some.n_parameters == 8
    assert one.loglik < some.loglik < two.loglik


def test_4pl_with_fixed_asymptotes_equals_mirt(mirt):
    data, truth = mirt("data_4PL"), mirt("truth_4PL", index_col="item")
    both = irt.fit(data, "2PL", guessing=truth["c"], upper=truth["u"])
    theirs = mirt("items_4PL_fixed_true_asymptotes", index_col="item")
    names = ["a", "b", "d", "se_a", "se_d"]
    pd.testing.assert_frame_equal(both.items[names], theirs[names], atol=1e-3)
    with pytest.warns(irt.IRTWarning, match="asymptotes of items"):
        lower = irt.fit(data, "3PL", upper=0.95, standard_errors=False)
    theirs = mirt("items_4PL_fixed_upper0.95_lower_free", index_col="item")
    found = lower.items[["a", "b", "c"]].rename(columns={"c": "g"})
    pd.testing.assert_frame_equal(found, theirs[["a", "b", "g"]], atol=1e-3)
    fit = irt.s_x2(both, data)  # S-X2 takes upper asymptotes
    assert fit["p"].min() > 1e-4
    assert (fit["df"] > 10).all()
    assert irt.m2(both, data).p > 1e-4  # and so does M2


def test_4pl_with_priors_recovers_known_parameters():
    rng = np.random.default_rng(1)
    known = simulate.items(15, rng, "2PL").assign(c=0.15, u=0.9)
    data = simulate.responses(rng.normal(size=4000), known, rng, model="4PL")
    priors = {"guessing": irt.Beta(15, 85), "upper": irt.Beta(90, 10)}
    fit = irt.fit(data, "4PL", priors=priors, standard_errors=False)
    assert fit.converged
    grid = np.linspace(-2, 2, 41)
    gap = fit.probability(grid)[..., 1] - irt.curves.probability(grid, known)
    assert np.abs(gap).max() < 0.07
    assert np.sqrt((gap**2).mean()) < 0.02


@pytest.mark.filterwarnings("ignore:asymptotes of items")
def test_a_4pl_without_priors_ends_soon_where_scipy_finds_nothing_higher(read_responses):
    """Its likelihood rises ever more slowly while slopes run away: it took 374 steps."""
    data = read_responses("LSAT7")
    with pytest.warns(irt.IRTWarning, match="slopes at the bound, 50"):
        fit = irt.fit(data, "4PL", standard_errors=False)
    assert not fit.converged and fit.n_iterations < 374 / 2
    patterns, counts = np.unique(data.to_numpy(), axis=0, return_counts=True)
    theta = np.linspace(-6, 6, 1201)[:, None]
    density = np.exp(-(theta**2) / 2)

    def loss(x: np.ndarray) -> float:
        a, d, c, u = x[:10].reshape(2, 5).tolist() + expit(x[10:]).reshape(2, 5).tolist()
        p = c + (np.array(u) - c) * expit(np.array(a) * theta + d)
        likelihood = np.exp(np.log(p) @ patterns.T + np.log1p(-p) @ (1 - patterns).T)
        return -float(np.log((likelihood * density).sum(0) / density.sum()) @ counts)

    asymptotes = fit.items[["c", "u"]].to_numpy().T.clip(1e-6, 1 - 1e-6)
    end = np.concatenate([fit.items[["a", "d"]].to_numpy().T.ravel(), logit(asymptotes).ravel()])
    assert -loss(end) == pytest.approx(fit.loglik, abs=1e-3)
    bounds = [(-50, 50)] * 5 + [(None, None)] * 5 + [(-13.8, 13.8)] * 10
    options = {"maxfun": 1500}
    higher = optimize.minimize(loss, end, method="L-BFGS-B", bounds=bounds, options=options)
    assert -higher.fun < fit.loglik + 0.01


def test_groups_with_free_means_and_variances_equal_mirt(two_groups, mirt):
    responses, group = two_groups
    logliks = mirt("groups_fits", index_col="model")["logLik"]
    parameters = mirt("groups_items").set_index(["model", "group", "item"])
    moments = mirt("groups_moments").set_index(["model", "group"])
    for model, free in (
        ("configural", "all"),
        ("metric_variance_free", {"intercept": "all"}),
        ("scalar_mean_variance_free", ()),
        ("partial_scalar_i04_i11_free", ["i04", "i11"]),
    ):
        fit = irt.fit(responses, "2PL", group=group, free=free)
        assert fit.loglik == pytest.approx(logliks[model], abs=1e-3)
        theirs, names = parameters.loc[model], ["a", "b", "d", "se_a", "se_d"]
        pd.testing.assert_frame_equal(fit.group_items[names], theirs[names], atol=1e-3)
        theirs, sd = moments.loc[model], fit.groups["sd"]
        np.testing.assert_allclose(fit.groups["mean"], theirs["mean"], atol=1e-3)
        np.testing.assert_allclose(sd**2, theirs["variance"], atol=2e-3)
    focal = fit.groups.loc["g2"]
    errors = [focal["se_mean"], 2 * focal["sd"] * focal["se_sd"]]
    assert errors == pytest.approx(theirs.loc["g2", ["se_mean", "se_variance"]].tolist(), rel=1e-2)


def test_linking_constants_equal_equate_irt(mirt):
    found = irt.linking_constants(*(mirt(f"items_form_{x}", index_col="item") for x in "BA"))
    theirs = mirt("linking_constants").query("source.str.startswith('equateIRT')")
    theirs = theirs.set_index(theirs["method"].str.replace("mean-sigma", "mean/sigma"))
    methods = ["mean/sigma", "Haebara", "Stocking-Lord"]
    np.testing.assert_allclose(
        found.loc[methods, ["slope", "intercept"]], theirs.loc[methods, ["A", "K"]], atol=1e-4
    )


def test_reliability_and_plausible_values_equal_mirt(reference_dir, mirt):
    data = pd.read_csv(reference_dir / "irt/data_LSAT7.csv")
    fit = irt.fit(data, "2PL")
    theirs = mirt("reliability_LSAT7", index_col="model").loc["LSAT7_2PL"]
    found = fit.reliability(data)
    assert found["marginal"] == pytest.approx(theirs["marginal_rxx"], abs=1e-3)
    assert found["empirical"] == pytest.approx(theirs["empirical_rxx_EAP"], abs=1e-3)
    draws = fit.plausible_values(data, 40, seed=1)
    score = fit.score(data)
    z = (draws.mean(axis=1) - score["theta"]) / (score["se"] / np.sqrt(40))
    assert z.std() == pytest.approx(1, abs=0.1)
    assert draws.var().mean() == pytest.approx(theirs["plausible_values_mean_variance"], abs=0.03)
    pd.testing.assert_frame_equal(draws, fit.plausible_values(data, 40, seed=1))


def test_polytomous_fits_are_saved_and_what_has_no_answer_is_refused(science, tmp_path):
    data, fits = science
    fits["gpcm"].to_json(tmp_path / "fit.json")
    again = irt.IRTFit.from_json(tmp_path / "fit.json")
    pd.testing.assert_frame_equal(again.score(data), fits["gpcm"].score(data))
    with pytest.raises(FrameError, match="answers .* that nobody gave"):
        fits["gpcm"].score(data + 7)
    with pytest.raises(FrameError, match="no asymptotes"):
        irt.fit(data, "graded", upper=0.9)
    with pytest.raises(ValueError, match="takes groups"):
        irt.fit(corpora.lsat6(), "2PL", free=["item-1"])
    with pytest.warns(irt.IRTWarning, match=r"\['Work'\] have categories between others"):
        fit = irt.fit(data.replace({"Work": {2: 3}}), "graded", standard_errors=False)
    assert np.isnan(fit.items.loc["Work", "b3"])


def test_a_fit_of_several_groups_scores_and_is_judged_in_a_named_group_only(two_groups):
    responses, group = two_groups
    item = responses.columns[0]
    fit = irt.fit(responses, "2PL", group=group, free=[item], standard_errors=False)
    judges = [irt.s_x2, irt.ld_x2, irt.q3, irt.person_fit, irt.infit_outfit, irt.m2, confirm]
    calls = [(judge, fit, responses) for judge in judges]
    calls += [(fit.score, responses), (fit.posterior, responses), (fit.reliability, responses)]
    calls += [(fit.plausible_values, responses), (fit.probability, 0.0), (fit.information, 0.0)]
    calls += [(irt.link, fit), (irt.linking_constants, fit, fit), (plots.information, fit)]
    for call, *arguments in calls:
        with pytest.raises(ValueError, match=r"fit.in_group\(label\)"):
            call(*arguments)
    # In a named group the item that differs has that group's own curve.
    first, second = (fit.in_group(label) for label in fit.groups.index)
    gap = second.score(responses)["theta"].mean() - first.score(responses)["theta"].mean()
    assert np.sign(gap) == np.sign(fit.groups["mean"].diff().iloc[1])
    asked = responses[(group == fit.groups.index[1]).to_numpy()]
    tables = [irt.ModelTables.of(fitted) for fitted in (first, second)]
    expected = [each.expected[0] @ each.weights for each in tables]
    assert expected[1] == pytest.approx(asked[item].mean(), abs=1e-3)
    assert abs(expected[0] - asked[item].mean()) > 0.02
    assert irt.s_x2(second, asked)["n_persons"].eq(len(asked)).all()


@pytest.mark.parametrize("model", ["Rasch", "PCM"])
def test_abilities_of_a_group_of_a_rasch_model_are_in_logits(model, rng):
    """The reference group's sd is 2 logits; expected sums of answers are those observed."""
    ratings = model == "PCM"
    settings = {"n_categories": 3} if ratings else {}
    items = simulate.items(8, rng, "gpcm" if ratings else "2PL", **settings).assign(a=1.0)
    kept = [name for name in items if name[0] in "ab"]
    theta = np.append(rng.normal(0, 2, 500), rng.normal(2, 1, 500))
    group = np.repeat(["A", "B"], 500)
    curves = "gpcm" if ratings else "2PL"
    data = simulate.responses(theta, items[kept], rng, model=curves)
    fit = irt.fit(data, model, group=group)
    for label, mean, sd in (("A", 0.0, 2.0), ("B", 2.0, 1.0)):
        alone = fit.in_group(label)
        assert alone.ability_mean == pytest.approx(mean, abs=0.3)
        assert alone.ability_sd == pytest.approx(sd, rel=0.15)
        tables = irt.ModelTables.of(alone)
        expected = sum(each @ tables.weights for each in tables.expected)
        assert expected == pytest.approx(data[group == label].sum(axis=1).mean(), abs=0.15)


def test_items_of_several_formats_may_differ_between_groups(rng):
    """Reference: the log-likelihoods of two fits, each of one group, where all items differ."""
    first = simulate.responses(rng.normal(size=600), simulate.items(4, rng), rng)
    steps = simulate.items(3, rng, "gpcm", n_categories=3)
    second = simulate.responses(rng.normal(size=600), steps, rng, model="gpcm").add_prefix("r")
    data = pd.concat([first, second], axis=1)
    group = np.repeat(["a", "b"], 300)
    model = dict.fromkeys(second, "gpcm")
    fit = irt.fit(data, model, group=group, free="all")
    apart = [irt.fit(data[group == label], model).loglik for label in "ab"]
    assert fit.loglik == pytest.approx(sum(apart), abs=1e-3)
    one = irt.fit(data, model, group=group, free=["r" + str(steps.index[0])])
    assert one.converged and one.loglik < fit.loglik


def test_a_start_with_flat_curves_is_no_saddle_and_unknown_errors_are_refused(rng):
    data = simulate.responses(rng.normal(size=300), simulate.items(6, rng), rng)
    best = irt.fit(data)
    flat = irt.fit(data, start=best.items[["a", "d"]].assign(a=0.0))
    assert flat.loglik == pytest.approx(best.loglik, abs=1e-4)
    with pytest.raises(ValueError, match="choose True, False or 'sandwich'"):
        irt.fit(data, standard_errors="robust")


def test_a_group_whose_abilities_have_no_spread_ends_at_the_bound_and_says_so():
    lsat = corpora.lsat6()
    alike = (lsat.sum(axis=1) == 3) & (np.arange(len(lsat)) % 2 == 0)
    group = np.where(alike, "alike", "others")
    with pytest.warns(irt.IRTWarning, match="group 'alike' have a standard deviation of 0.01"):
        fit = irt.fit(lsat, "1PL", group=group, reference="others", standard_errors=False)
    assert fit.n_iterations < 200 and fit.groups.loc["alike", "sd"] == pytest.approx(0.01)


def test_an_item_off_its_maximum_is_named_and_leaves_the_others_their_errors(rng):
    """One indefinite block made the errors of all items NaN. Reference: the fit at its maximum."""
    items = simulate.items(12, rng)
    data = simulate.responses(rng.normal(size=500), items, rng)
    best = irt.fit(data, "2PL")
    start = best.items[["a", "d"]].copy()
    start.iloc[3] = 0.01, 12.0
    stopped = {"start": start, "max_iterations": 1}
    with pytest.warns(irt.IRTWarning, match=rf"items \['{start.index[3]}'\] lie too near a ridge"):
        fit = irt.fit(data, "2PL", weights=np.ones(500), **stopped)
    ratio = fit.items["se_d"] / best.items["se_d"]
    assert list(ratio.index[ratio.isna()]) == [start.index[3]]
    np.testing.assert_allclose(ratio.drop(start.index[3]), 1, atol=0.2)
