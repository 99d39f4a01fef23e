"""Fit statistics against R's mirt at mirt's own parameters, and against brute force."""

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from psychlm import irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import _m2
from psychlm.irt.item_fit import ld_x2, person_fit, s_x2
from psychlm.irt.model_tables import STANDARD_GRID, ModelTables, normal_weights

m2 = _m2.m2
MODELS = ["2PL", "3PL", "Rasch"]
MIRT_SMALLEST_VARIANCE = np.sqrt(1e-5)  # to which mirt lifts item variances in infit and outfit


@pytest.fixture
def mirt_tables(mirt, reference_dir):
    """Return mirt's parameters on mirt's grid."""
    variances = pd.read_csv(reference_dir / "irt" / "rasch_variance.csv").set_index("dataset")

    def read(dataset, model, items):
        table = mirt("items", dataset, model).set_index(items)
        table = table.rename(columns={"intercept_d": "d"})[["a", "d", "c"]]
        sd = np.sqrt(variances.loc[dataset, "latent_var"]) if model == "Rasch" else 1.0
        weights = normal_weights(STANDARD_GRID, 0, sd)
        return replace(ModelTables.of_items(table, model), nodes=STANDARD_GRID, weights=weights)

    return read


@pytest.fixture
def items(rng):
    a, d, c = rng.uniform(0.8, 2, 7), rng.normal(size=7), rng.uniform(0, 0.3, 7)
    index = pd.Index([f"q{k}" for k in range(7)], name="item")
    return pd.DataFrame({"a": a, "d": d, "c": c}, index)


@pytest.fixture
def tables(items):
    return ModelTables.of_items(items, "3PL")


def simulated(tables, n_persons, rng):
    return simulate.responses(rng.standard_normal(n_persons), tables, rng)


@pytest.mark.parametrize("model", MODELS)
def test_s_x2_ld_x2_and_person_fit_equal_mirt(dataset, model, mirt, mirt_tables, read_responses):
    responses = read_responses(dataset)
    tables = mirt_tables(dataset, model, responses.columns)
    found = s_x2(tables, responses)
    expected = mirt("items", dataset, model)
    for ours, theirs in {"s_x2": "S_X2", "df": "S_X2_df", "rmsea": "S_X2_RMSEA"}.items():
        np.testing.assert_allclose(found[ours], expected[theirs], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found["p"], expected["S_X2_p"], rtol=1e-6, atol=1e-12)

    found = ld_x2(tables, responses)
    expected = mirt("ld_x2", dataset, model)
    np.testing.assert_allclose(found["ld_x2"], expected["LD_X2"], rtol=1e-8)
    np.testing.assert_allclose(found["cramers_v"], expected["signed_cramerV"], rtol=1e-8)
    np.testing.assert_allclose(found["p"], expected["p"], rtol=1e-6, atol=1e-12)

    found = person_fit(tables, responses).iloc[:20]
    expected = mirt("personfit_first20", dataset, model)
    expected = expected.set_index(found.index)
    np.testing.assert_allclose(found["zh"], expected["Zh"], atol=1e-3)
    p = tables.functions.probability_at(found["theta"].to_numpy())[:, 1].T
    untouched = (p * (1 - p)).min(axis=1) > MIRT_SMALLEST_VARIANCE
    for name in ("outfit", "infit", "z_outfit", "z_infit"):
        theirs = expected.loc[untouched, name.replace("_", ".")]
        np.testing.assert_allclose(found.loc[untouched, name], theirs, atol=1e-3)


@pytest.mark.parametrize("model", ["2PL", "Rasch"])
def test_m2_and_its_indices_equal_mirt(dataset, model, mirt, mirt_tables, read_responses):
    responses = read_responses(dataset)
    expected = mirt("m2", dataset, model).iloc[0]
    found = m2(mirt_tables(dataset, model, responses.columns), responses)
    # mirt differentiates by the Rasch variance numerically, which costs up to 0.11 % of M2
    np.testing.assert_allclose(found.m2, expected["M2"], rtol=1e-6 if model == "2PL" else 2e-3)
    assert found.df == expected["df"]
    ours = [found.rmsea, found.rmsea_low, found.rmsea_high]
    theirs = expected[["RMSEA", "RMSEA_5", "RMSEA_95"]].astype(float)
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-9)
    theirs = expected[["SRMSR", "TLI", "CFI"]].astype(float)
    np.testing.assert_allclose([found.srmsr, found.tli, found.cfi], theirs, rtol=1e-3)


def test_booklets_sum_what_each_gives_alone(items, tables, rng):
    responses = simulated(tables, 900, rng)
    responses.iloc[:450, :2] = np.nan
    responses.iloc[450:, 5:] = np.nan
    together = s_x2(tables, responses)
    first, second = (
        s_x2(ModelTables.of_items(items[chosen], "3PL"), responses.iloc[rows, chosen])["s_x2"]
        for chosen, rows in ((slice(2, 7), slice(0, 450)), (slice(0, 5), slice(450, 900)))
    )
    expected = first.add(second, fill_value=0)[tables.items]
    np.testing.assert_allclose(together["s_x2"], expected, rtol=1e-10)
    assert together["n_persons"].tolist() == [450, 450, 900, 900, 900, 450, 450]


def test_persons_with_rare_patterns_count_in_a_booklet_they_were_asked_or_are_named(tables, rng):
    responses = simulated(tables, 400, rng)
    responses.iloc[:200, 5:] = np.nan
    responses.iloc[:7, 5] = 1.0  # asked one item more than the first booklet
    responses.iloc[7:10, 0] = np.nan  # and three persons one item less
    with pytest.warns(UserWarning, match="leaves out 3 of 400 persons") as caught:
        found = s_x2(tables, responses)
    assert found.attrs["left_out"] == list(responses.index[7:10])
    assert all(str(person) in str(caught[0].message) for person in found.attrs["left_out"])
    without = responses.copy()
    without.iloc[:7, 5] = np.nan
    expected = s_x2(tables, without.drop(index=found.attrs["left_out"]))
    pd.testing.assert_frame_equal(found, expected, check_like=True)
    assert expected.attrs["left_out"] == []
    scattered = responses.mask(rng.random((400, 7)) < 0.4).dropna(how="all")
    with pytest.raises(FrameError, match="use ld_x2 or q3"):
        s_x2(tables, scattered, min_persons=120)
    with pytest.raises(FrameError, match="does not tell its model"):
        s_x2(irt.fit(responses, "1PL", standard_errors=False).items, responses)


def test_statistics_with_missing_answers_keep_their_nominal_level(tables, rng):
    """At the true parameters the means of M2 and LD-X2 are their degrees of freedom."""
    held = replace(tables, estimates=np.full((4, 7), -1), mean_is_free=True)
    statistics = []
    for _ in range(60):
        responses = simulated(tables, 600, rng)
        responses.iloc[:200, :2] = np.nan
        responses.iloc[200:400, 5:] = np.nan
        statistics.append([m2(held, responses).m2, ld_x2(held, responses)["ld_x2"].mean()])
    mean_m2, mean_ld = np.mean(statistics, axis=0)
    assert abs(mean_m2 - 27) < 4 * np.sqrt(2 * 27 / 60)
    assert 0.8 < mean_ld < 3.5  # the marginal means add up to two degrees to that of association


def test_person_fit_of_steep_items_equals_the_sums_in_extended_precision(rng):
    """With a slope of 15, P rounds to 1; the reference sums the definitions with 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 60
    slope, intercept = [15.0, 12.0, 1.0, 0.7], [-6.0, 4.0, 0.5, -0.2]
    index = pd.Index(list("uvwx"), name="item")
    steep = ModelTables.of_items(pd.DataFrame({"a": slope, "d": intercept}, index))
    x = pd.DataFrame(rng.integers(0, 2, (40, 4)) * 1.0, columns=steep.items)
    found = person_fit(steep, x)
    assert np.isfinite(found[["zh", "outfit", "infit"]]).all(axis=None)
    for row in (0, 7, 23):
        above = below = squares = 0
        for item, answer in enumerate(x.iloc[row]):
            z = slope[item] * mpmath.mpf(found["theta"].iloc[row]) + intercept[item]
            p = 1 / (1 + mpmath.exp(-z))
            above += (answer - p) * mpmath.log(p / (1 - p))
            below += p * (1 - p) * mpmath.log(p / (1 - p)) ** 2
            squares += (answer - p) ** 2 / (p * (1 - p)) / 4
        assert found["zh"].iloc[row] == pytest.approx(float(above / mpmath.sqrt(below)), rel=1e-9)
        assert found["outfit"].iloc[row] == pytest.approx(float(squares), rel=1e-9)


@pytest.mark.parametrize("model", ["1PL", "2PL", "graded"])
def test_infit_and_outfit_have_expectation_1_and_normal_z_when_the_model_holds(model, rng):
    """At expected abilities the means were .86 to .91, and two thirds of all z below -1.96."""
    drawn = []
    for _ in range(6):
        items = simulate.items(10, rng, model)
        items["a"] = items["a"].clip(0.6, 2.0)
        responses = simulate.responses(rng.normal(size=600), items, rng, model=model)
        fit = irt.fit(responses, model, standard_errors=False)
        drawn.append(irt.infit_outfit(fit, responses))
    table = pd.concat(drawn)
    squares, z = table[["outfit", "infit"]], table[["z_outfit", "z_infit"]]
    error = squares.std() / np.sqrt(len(squares))
    assert ((squares.mean() - 1).abs() < 4 * error + 0.005).all()
    assert (z.mean().abs() < 0.6).all()
    assert z.std().between(0.75, 1.4).all()
    assert (z.abs() > 1.96).mean().max() < 0.15


@pytest.mark.parametrize(
    ("model", "settings", "groups"),
    [
        ("1PL", {}, 1),
        ("2PL", {"equal": {"slope": "all"}}, 1),
        ("2PL", {"equal": {"slope": ["item-1", "item-2"], "intercept": ["item-3", "item-4"]}}, 1),
        ("3PL", {"guessing": "common"}, 1),
        ("4PL", {"equal": dict.fromkeys(("slope", "guessing", "upper"), "all")}, 1),
        ("Rasch", {}, 1),
        ("1PL", {}, 2),
        ("2PL", {"free": ["item-1"]}, 2),
        ("graded", {"equal": {"slope": "all"}}, 1),
        ("gpcm", {}, 1),
    ],
)
def test_m2_equals_the_sum_over_all_patterns_with_numerical_derivatives(
    model, settings, groups, rng
):
    """The same model stated in two ways has one M2: equality constraints are estimates."""
    items = simulate.items(6, rng, model, n_categories=3)
    theta, group = rng.normal(size=1800), np.repeat(["r", "f"], 900)
    data = simulate.responses(theta + 0.4 * (groups == 2) * (group == "f"), items, rng, model=model)
    more = {"group": group} if groups == 2 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", irt.IRTWarning)
        fit = irt.fit(data, model, standard_errors=False, **settings, **more)
    if groups == 2:
        fit, data = fit.in_group("f"), data[group == "f"]
    found, tables = m2(fit, data), ModelTables.of(fit)
    numbers = np.unique(tables.estimates[tables.estimates >= 0])
    patterns = np.array(list(product(range(tables.n_categories), repeat=6)))
    i, j = np.triu_indices(6, 1)
    margins = np.hstack([patterns, patterns[:, i] * patterns[:, j]])

    def probability(steps):
        """Return that of every pattern, where the estimates are changed by steps."""
        values, moments = tables.functions.values.clone(), list(steps[len(numbers) :])
        for number, size in zip(numbers, steps, strict=False):
            values[torch.tensor(tables.estimates == number)] += size
        mean = fit.ability_mean + (moments.pop(0) if tables.mean_is_free else 0)
        sd = fit.ability_sd + (moments.pop(0) if tables.sd_is_free else 0)
        p = replace(tables.functions, values=values).probability_at(tables.nodes)
        at_nodes = np.prod([p[k, patterns[:, k]] for k in range(6)], axis=0)
        return at_nodes @ normal_weights(tables.nodes, mean, sd)

    none = np.zeros(len(numbers) + tables.mean_is_free + tables.sd_is_free)
    p, x = probability(none), tables.response_array(data)
    expected = margins.T @ p
    inverse = np.linalg.inv((margins.T * p) @ margins - np.outer(expected, expected))
    steps = 1e-5 * np.eye(len(none))
    changes = [(probability(step) - probability(-step)) / 2e-5 for step in steps]
    delta = margins.T @ np.column_stack(changes)
    middle = np.linalg.pinv(delta.T @ inverse @ delta, rcond=1e-9, hermitian=True)
    residual = np.hstack([x, x[:, i] * x[:, j]]).mean(0) - expected
    weights = inverse - inverse @ delta @ middle @ delta.T @ inverse
    assert found.df == len(expected) - np.linalg.matrix_rank(delta, tol=1e-6)
    assert found.m2 == pytest.approx(len(x) * residual @ weights @ residual, rel=1e-5)


@pytest.mark.parametrize("model", ["graded", "gpcm"])
def test_s_x2_of_several_categories_has_its_degrees_of_freedom_as_mean(model, rng):
    """Kang and Chen (2008): chi-square if the model holds."""
    items, ratios = simulate.items(8, rng, model), []
    for _ in range(8):
        data = simulate.responses(rng.normal(size=800), items, rng, model=model)
        found = s_x2(irt.fit(data, model, standard_errors=False), data)
        ratios.append(found["s_x2"].sum() / found["df"].sum())
    assert abs(np.mean(ratios) - 1) < 4 * np.sqrt(2 / found["df"].sum() / 8) + 0.06


def test_ld_x2_of_ratings_equals_its_definition_and_sees_two_items_that_go_together(rng):
    items = simulate.items(6, rng, "graded")
    data = simulate.responses(rng.normal(size=600), items, rng, model="graded")
    first, second = data.columns[:2]
    data[second] = data[second].where(rng.random(600) < 0.6, data[first])
    data = data.mask(rng.random(data.shape) < 0.1)
    fit = irt.fit(data, "graded")
    found = ld_x2(fit, data)
    nodes = np.linspace(-6, 6, 61)
    weights = stats.norm.pdf(nodes) / stats.norm.pdf(nodes).sum()
    p = fit.probability(nodes)
    for k in (0, 7):
        one, two = found.loc[k, "item_1"], found.loc[k, "item_2"]
        observed = pd.crosstab(data[one], data[two]).to_numpy()
        pair = p[:, data.columns.get_loc(one)], p[:, data.columns.get_loc(two)]
        expected = observed.sum() * np.einsum("n,nk,nl->kl", weights, *pair)
        statistic = ((observed - expected) ** 2 / expected).sum()
        assert found.loc[k, "ld_x2"] == pytest.approx(statistic)
        assert found.loc[k, "df"] == (observed.shape[0] - 1) * (observed.shape[1] - 1)
        assert found.loc[k, "n_persons"] == observed.sum()
        size = np.sqrt(statistic / observed.sum() / (min(observed.shape) - 1))
        assert abs(found.loc[k, "cramers_v"]) == pytest.approx(size)
    assert found["ld_x2"].idxmax() == 0
    assert found.loc[0, "cramers_v"] > 0


def test_tables_and_responses_that_have_no_statistics_are_refused():
    items = pd.DataFrame({"a": 1.0, "b": [-1.0, 0, 0.5, 1, 2]}, list("vwxyz"))
    answers = simulate.responses(np.linspace(-2, 2, 50), items, np.random.default_rng(0))
    with pytest.raises(FrameError, match=r"\['w'\] have parameters that are missing"):
        irt.ModelTables.of_items(items.assign(b=[-1, np.nan, 0.5, 1, 2]))
    with pytest.raises(FrameError, match=r"\['w'\] stand more than once"):
        irt.ModelTables.of_items(items.rename({"v": "w"}))
    for moments in (
        {"ability_sd": -1.0},
        {"ability_sd": 0.0},
        {"ability_sd": np.inf},
        {"ability_mean": np.nan},
    ):
        with pytest.raises(ValueError, match="ability has mean"):
            irt.ModelTables.of_items(items, **moments)
        with pytest.raises(ValueError, match="ability has mean"):
            irt.score(items, answers, **moments)
    with pytest.raises(FrameError, match=r"\['v', 'z'\] were answered alike by everyone"):
        irt.m2(irt.ModelTables.of_items(items), answers.assign(v=1.0, z=0.0))


def test_the_cut_of_q3_flags_few_clean_tests_and_finds_a_copied_item():
    """Reference: the truth of simulated responses. Of 10 clean tests hardly one is flagged."""
    flagged = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = simulate.responses(rng.normal(size=100), simulate.items(10, rng, "1PL"), rng)
        x = x.loc[:, x.nunique() > 1]
        model = irt.fit(x, "Rasch", standard_errors=False)
        values = irt.q3(model, x).to_numpy()[np.triu_indices(x.shape[1], 1)]
        flagged += values.max() - values.mean() > irt.q3_cut(model, x, rng=rng, n_draws=19)
    assert flagged <= 3  # P(more) = .001 at a level of .05
    x = simulate.plant_fault(x, x.columns[0], "near_duplicate", rng, like=x.columns[1])
    model = irt.fit(x, "Rasch", standard_errors=False)
    values = irt.q3(model, x).to_numpy()
    above = values[np.triu_indices(x.shape[1], 1)]
    assert values[0, 1] - above.mean() > irt.q3_cut(model, x, rng=rng, n_draws=19)


@pytest.mark.filterwarnings("ignore:items .* have categories between")
@pytest.mark.parametrize("kind", ["2PL", "graded"])
def test_the_ability_of_a_sum_score_is_its_mean_over_all_patterns(kind):
    """Reference: every pattern of responses, one by one."""
    rng = np.random.default_rng(1)
    items = simulate.items(4, rng, kind, n_categories=3)
    x = simulate.responses(rng.normal(size=400), items, rng, model=kind) + (kind == "graded")
    model = irt.fit(x, kind, standard_errors=False)
    found = irt.sum_score_table(model)
    values = [sorted(x[item].unique()) for item in x]
    patterns = pd.DataFrame(list(product(*values)), columns=x.columns)
    posterior = model.posterior(patterns)
    p = np.exp(posterior.loglik)
    scores = model.score(patterns)
    sums = patterns.sum(axis=1).to_numpy()
    for total, row in found.iterrows():
        chosen = sums == total
        assert row["share"] == pytest.approx(p[chosen].sum(), abs=1e-4)
        mean = np.average(scores["theta"][chosen], weights=p[chosen])
        assert row["theta"] == pytest.approx(mean, abs=1e-3)
        second = np.average(
            scores["se"][chosen] ** 2 + scores["theta"][chosen] ** 2, weights=p[chosen]
        )
        assert row["se"] == pytest.approx(np.sqrt(second - mean**2), abs=1e-3)
    if kind == "graded":
        gapped = x.replace({3.0: 4.0})
        with pytest.raises(FrameError, match="do not rise by 1"):
            irt.sum_score_table(irt.fit(gapped, kind, standard_errors=False))


@pytest.mark.parametrize("model", ["2PL", "graded"])
def test_fit_by_ability_compares_answers_with_what_all_other_answers_predict(model, rng):
    options = {"n_categories": 4} if model == "graded" else {}
    items = simulate.items(12, rng, model, **options)
    x = simulate.responses(rng.normal(size=300), items, rng, model=model)
    x = x.mask(rng.random(x.shape) < 0.3)
    fit = irt.fit(x, model, standard_errors=False)
    found = irt.ability_x2(fit, x)
    for item in x.columns[:3]:
        # The reference: the posterior of a model that does not hold the item.
        answered = x[x[item].notna()]
        others = fit.of_items(x.columns.drop(item)).posterior(answered.drop(columns=item))
        p = fit.of_items([item]).probability(others.nodes)[:, 0]
        category = np.arange(p.shape[1])
        table = pd.DataFrame({"ability": others.weights @ others.nodes})
        table["residual"] = answered[item].to_numpy() - others.weights @ (p @ category)
        table["variance"] = others.weights @ (p @ category**2)
        table["variance"] -= (others.weights @ (p @ category)) ** 2
        table = table.sort_values("ability")
        n_classes = min(10, int(table["variance"].sum() // 5))
        below = table["variance"].cumsum() - table["variance"] / 2
        of_class = (below / table["variance"].sum() * n_classes).astype(int)
        sums = table.groupby(of_class).sum()
        expected = (sums["residual"] ** 2 / sums["variance"]).sum()
        assert found.loc[item, "x2"] == pytest.approx(expected, rel=1e-3)
        assert found.loc[item, "df"] == n_classes - 2


def test_fit_by_ability_flags_as_many_clean_items_as_its_level_says():
    p = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = simulate.responses(rng.normal(size=300), simulate.items(30, rng, "1PL"), rng)
        x = x.mask(rng.random(x.shape) < 0.3)
        p.append(irt.ability_x2(irt.fit(x, "Rasch", standard_errors=False), x)["p"])
    p = pd.concat(p).dropna()
    assert len(p) > 300
    assert 0.025 < (p < 0.05).mean() < 0.085
    assert (p < 0.001).mean() < 0.01
