"""Differential item functioning.

References: statsmodels' StratifiedTable and Logit on the same answers; a direct optimisation by
scipy; known parameters. ``test_general`` compares the models of two groups with mirt."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.stats.contingency_tables import StratifiedTable

from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import dif_likelihood_ratio, mantel_haenszel


def two_populations(rng, *, n=300, n_items=12, shifts=None, model="2PL"):
    """Draw people (N(0, 1)) and models (N(0.6, 1.3)); some items are shifted for the models."""
    items = simulate.items(n_items, rng, model)
    shifted = items.copy()
    for position, shift in (shifts or {}).items():
        shifted.iloc[position, shifted.columns.get_loc("b")] += shift
    theta = pd.Series(
        np.r_[rng.normal(0, 1, n), rng.normal(0.6, 1.3, n)],
        index=[f"{who}-{i}" for who in "hm" for i in range(n)],
    )
    group = pd.Series(["human"] * n + ["model"] * n, index=theta.index)
    sides = [(theta[:n], items), (theta[n:], shifted)]
    return pd.concat([simulate.responses(*side, rng) for side in sides]), group


def drawn(sides, rng, model="2PL"):
    """Draw the responses of each side's abilities to its items; persons are numbered through."""
    answers = [simulate.responses(theta, items, rng, model=model) for theta, items in sides]
    return pd.concat(answers, ignore_index=True).rename_axis("person")


def test_mantel_haenszel_equals_statsmodels_on_every_item(rng):
    responses, group = two_populations(rng, shifts={3: 1.5})
    ours = mantel_haenszel(responses, group, reference="human", purify=False).items
    for item in responses:
        strata = responses[item].groupby(responses.sum(axis=1))
        tables = [pd.crosstab(group[answers.index], answers) for _, answers in strata]
        sides = {"index": ["human", "model"], "columns": [1.0, 0.0], "fill_value": 0}
        tables = [table.reindex(**sides).to_numpy(float) for table in tables]
        tables = [table for table in tables if table.sum() > 1]
        theirs = StratifiedTable(tables)
        assert ours.loc[item, "log_odds"] == pytest.approx(theirs.logodds_pooled)
        assert ours.loc[item, "se"] == pytest.approx(theirs.logodds_pooled_se)
        assert ours.loc[item, "delta"] == pytest.approx(-2.35 * theirs.logodds_pooled)
        corrected = theirs.test_null_odds(correction=True)
        if ours.loc[item, "chi2"] > 0:  # the correction may take all of a very small difference
            expected = [corrected.statistic, corrected.pvalue]
            assert ours.loc[item, ["chi2", "p"]].tolist() == pytest.approx(expected)
        # The standardised difference by its definition: shares right, by the focal group's scores.
        both = [table for table in tables if table.sum(axis=1).all()]
        gaps = [np.diff(table[:, 0] / table.sum(axis=1))[0] for table in both]
        weights = [table[1].sum() for table in both]
        expected = np.average(gaps, weights=weights)
        assert ours.loc[item, "std_p_dif"] == pytest.approx(expected)


def test_purification_takes_biased_items_out_of_the_score(rng):
    # Six of twenty items are harder for models: the raw score is biased.
    shifts = dict.fromkeys(range(6), 1.5)
    responses, group = two_populations(rng, n=800, n_items=20, shifts=shifts)
    raw = mantel_haenszel(responses, group, purify=False)
    pure = mantel_haenszel(responses, group)
    fair = responses.columns[6:]
    assert pure.settled
    assert pure.n_rounds > 1
    assert (pure.items["in_matching"] == (pure.items["ets"] == "A")).all()
    bias, raw_bias = (found.items.loc[fair, "log_odds"].mean() for found in (pure, raw))
    assert abs(bias) < 0.5 * abs(raw_bias)


def test_logistic_dif_equals_statsmodels_and_finds_a_shifted_item():
    rng = np.random.default_rng(2)
    known = simulate.items(12, rng, "1PL")
    shifted = known.assign(b=known["b"] + 1.2 * (known.index == known.index[4]))
    data = drawn([(rng.normal(size=400), items) for items in (known, shifted)], rng)
    focal, score = np.repeat([0.0, 1.0], 400), data.mean(axis=1).to_numpy()
    found = irt.dif_logistic(data, focal)
    assert found["p_adjusted"].idxmin() == data.columns[4]
    of_item, columns = found.iloc[4], np.c_[np.ones(800), score, focal, score * focal]
    null, one, two, both = (
        sm.Logit(data.iloc[:, 4], columns[:, :k]).fit(disp=0) for k in (1, 2, 3, 4)
    )
    assert of_item["chi2"] == pytest.approx(2 * (both.llf - one.llf), rel=1e-6)
    assert of_item["log_odds"] == pytest.approx(two.params.iloc[2], rel=1e-4)
    assert of_item["log_odds"] < 0  # harder for the focal group
    assert of_item["se"] == pytest.approx(two.bse.iloc[2], rel=1e-4)
    # R-square of Nagelkerke (1991).
    less, more = (1 - np.exp((null.llf - fit.llf) / 400) for fit in (one, both))
    gain = (more - less) / (1 - np.exp(null.llf / 400))
    assert of_item["delta_r2"] == pytest.approx(gain, rel=1e-5)
    assert (found["class"] == np.where(found["delta_r2"] < 0.035, "A", "B")).all()
    # An item that the score separates, or that all answer alike, has no estimates.
    data[["easy", "split"]] = np.column_stack([np.ones(800), score > 0.5])
    apart = irt.dif_logistic(data, focal).loc[["easy", "split"]]
    assert apart[["chi2", "p", "p_uniform", "log_odds", "se", "delta_r2"]].isna().all(axis=None)
    assert (apart["class"] == "").all()


@pytest.mark.parametrize(("model", "df"), [("2PL", 2), ("1PL", 1)])
def test_likelihood_ratios_find_the_shifted_item_and_its_size(model, df):
    rng = np.random.default_rng(8)
    responses, group = two_populations(rng, n=700, n_items=10, shifts={4: 1.0}, model="1PL")
    item = responses.columns[4]
    found = dif_likelihood_ratio(responses, group, reference="human", model=model)
    assert (found.items["df"] == df).all()
    assert found.items["converged"].all()
    assert found.items["p_adjusted"].idxmin() == item
    assert found.items.loc[item, "p_adjusted"] < 1e-4
    if model == "1PL":  # in the 2PL the shift is shared between difficulty and slope
        assert found.items.loc[item, "b_difference"] == pytest.approx(1.0, abs=0.35)
    without_model = mantel_haenszel(responses, group, reference="human").items["std_p_dif"]
    assert found.items.loc[item, "p_difference"] == pytest.approx(without_model[item], abs=0.03)
    assert found.baseline.in_group("focal").ability_mean == pytest.approx(0.6, abs=0.25)


def test_statistics_are_gains_between_two_fits_both_ways():
    responses, group = two_populations(np.random.default_rng(9), n_items=8)
    item, anchors = responses.columns[7], responses.columns[:7]
    together = irt.fit(responses, "2PL", group=group)
    freed = irt.fit(responses, "2PL", group=group, free=[item])
    expected = 2 * (freed.loglik - together.loglik)
    by_all_others = dif_likelihood_ratio(responses, group).items.loc[item]
    by_anchors = dif_likelihood_ratio(responses, group, anchors=anchors).items.loc[item]
    for found in (by_all_others, by_anchors):  # with one item that is no anchor, both are one
        assert found["statistic"] == pytest.approx(expected, abs=1e-3)
        assert found["p"] == pytest.approx(stats.chi2.sf(expected, 2), abs=1e-3)


@pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")
def test_likelihood_ratio_dif_of_graded_items_finds_the_item_that_was_shifted(rng):
    items = simulate.items(5, rng, "graded", n_categories=3)
    items["a"] = items["a"].clip(1, 1.6)
    shifted, steps = items.index[2], ["b1", "b2"]
    items.loc[shifted, steps] = [-0.7, 0.3]
    focal = items.copy()
    focal.loc[shifted, steps] += 1.2
    data = drawn([(rng.normal(size=500), table) for table in (items, focal)], rng, "graded")
    found = dif_likelihood_ratio(data, np.repeat(["r", "f"], 500), model="graded").items
    assert found["statistic"].idxmax() == shifted
    assert found.loc[shifted, "b_difference"] == pytest.approx(1.2, abs=0.5)
    assert found.loc[shifted, "p_difference"] < -0.05
    assert found["df"].eq(3).all()


def test_an_item_that_a_group_answered_alike_is_not_tested_and_counted():
    responses, group = two_populations(np.random.default_rng(13), n_items=6)
    item = responses.columns[2]
    responses.loc[group == "model", item] = 1.0
    found = dif_likelihood_ratio(responses, group, model="1PL")
    assert found.n_untested == 1
    assert np.isnan(found.items.loc[item, "p"])
    assert found.items.drop(item)["p"].notna().all()
    with pytest.raises(FrameError, match="free and were answered"):
        irt.fit(responses, "2PL", group=group, free=[item])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (lambda x, group: mantel_haenszel(x, group.iloc[1:]), "have no group"),
        (lambda x, group: irt.dif_likelihood_ratio(x, ["other", *group[1:]]), "these are 3"),
        (lambda x, group: mantel_haenszel(x, group, reference="people"), "none of the groups"),
        (lambda x, group: irt.fit(x, group=["a"] * 40), "group has 1 different values"),
        (lambda x, group: mantel_haenszel(x, group[:3].tolist()), r"shape \(3,\) for 40 persons"),
        (lambda x, group: dif_likelihood_ratio(x, group, anchors=["z"]), "not among the responses"),
    ],
)
def test_malformed_groups_are_refused_by_name(test, message):
    responses, group = two_populations(np.random.default_rng(14), n=20, n_items=4)
    with pytest.raises(FrameError, match=message):
        test(responses, group)
    of_frame = mantel_haenszel(responses, group.to_frame("group")[::-1]).items
    pd.testing.assert_frame_equal(of_frame, mantel_haenszel(responses, group).items)


@pytest.mark.parametrize("n_strata", [0, 1, 2.5])
def test_strata_that_match_nobody_are_refused(n_strata):
    with pytest.raises(ValueError, match="n_strata"):
        mantel_haenszel(pd.DataFrame(np.eye(1000, 3)), ["a", "b"] * 500, n_strata=n_strata)


def test_everyone_who_answered_an_item_counts_and_persons_without_a_group_are_named(rng):
    responses, group = two_populations(rng, n=400, shifts={3: 1.5})
    incomplete = responses.mask(rng.random(responses.shape) < 0.2)
    item = responses.columns[3]
    tables = [irt.dif_logistic(incomplete, group), mantel_haenszel(incomplete, group).items]
    for table in tables:
        assert table["p_adjusted"].idxmin() == item
        assert table.loc[item, "p_adjusted"] < 0.001
    counts = incomplete[item].groupby(group).count()
    assert tables[0].loc[item, ["n_used_human", "n_used_model"]].tolist() == counts.tolist()
    assert (tables[0]["n_used"] == incomplete.count()).all()
    assert tables[0].attrs["matching"] == "ability"
    incomplete.loc[group == "model", responses.columns[0]] = np.nan  # asked of one group only
    row = irt.dif_logistic(incomplete, group).iloc[0]
    assert row[["p", "log_odds", "se"]].isna().all() and row["n_used_model"] == 0
    incomplete = responses.mask(rng.random(responses.shape) < 0.2)
    unknown = group.where(np.arange(len(group)) > 2)
    with pytest.warns(irt.IRTWarning, match=r"3 of 800 persons have no group .*'h-0'"):
        found = mantel_haenszel(incomplete, unknown)
    assert found.n_left_out == 3
    assert found.n_persons.to_dict() == {"human": 397, "model": 400}
    # Groups may be an array in the order of persons, or categories, some of which nobody has.
    expected = mantel_haenszel(responses, group, purify=False).items
    categories = pd.Series(pd.Categorical(group, ["nobody", *group.unique()]), group.index)
    for given in (group.to_numpy(), categories.sample(frac=1, random_state=0)):
        found = mantel_haenszel(responses, given, reference=group.iloc[0], purify=False).items
        pd.testing.assert_frame_equal(expected, found)


@pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_groups_of_different_ability_are_matched_by_the_answers_to_other_items(missing):
    """No item differs: p-values are those of a uniform distribution, within 3 standard errors."""
    p_values = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        items = simulate.items(20, rng)
        abilities = rng.normal(size=400) - 0.8 * (np.arange(400) < 200)
        x = simulate.responses(abilities, items, rng, missing=missing)
        model = irt.fit(x, "2PL", standard_errors=False)
        p_values += irt.dif_logistic(x, ["low"] * 200 + ["high"] * 200, fit=model)["p"].tolist()
    share, n = np.mean(np.array(p_values) < 0.05), len(p_values)
    assert abs(share - 0.05) < 3 * np.sqrt(0.05 * 0.95 / n)


def test_three_groups_are_tested_together_and_each_against_the_rest(reference_dir):
    """References: statsmodels' Logit; R's mantelhaen.test (reference/classical.py)."""
    rng = np.random.default_rng(4)
    items = simulate.items(10, rng, "1PL")
    shifted = items.assign(b=items["b"] + (items.index == items.index[6]))
    x = drawn([(rng.normal(size=300), table) for table in (items, items, shifted)], rng)
    group = np.repeat(["A", "B", "C"], 300)
    found, item = irt.dif_logistic(x, group), x.columns[6]
    assert found["p_adjusted"].idxmin() == item
    assert (found["df"] == 4).all()
    z = stats.zscore(x.sum(axis=1).to_numpy())
    dummies = np.column_stack([group == "B", group == "C"]).astype(float)
    columns = np.column_stack([np.ones(900), z, dummies, dummies * z[:, None]])
    one, two, both = (sm.Logit(x[item], columns[:, :k]).fit(disp=0).llf for k in (2, 4, 6))
    assert found.loc[item, "chi2"] == pytest.approx(2 * (both - one), abs=1e-6)
    assert found.loc[item, "p_uniform"] == pytest.approx(stats.chi2.sf(2 * (two - one), 2))
    alone = sm.Logit(x[item], np.column_stack([columns[:, :2], dummies[:, 1]])).fit(disp=0)
    assert found.loc[item, "log_odds_C"] == pytest.approx(alone.params["x2"], abs=1e-6)
    assert found.loc[item, "se_C"] == pytest.approx(alone.bse["x2"], abs=1e-6)
    classes = mantel_haenszel(x, group, purify=False).items
    assert classes["p_adjusted"].idxmin() == item
    assert classes.loc[item, "ets"] == "C"
    crowd = corpora.lalor2018().graded.iloc[:, :12]
    everybody = mantel_haenszel(crowd, np.arange(len(crowd)) % 3, purify=False).items
    expected = json.loads((reference_dir / "classical.json").read_text())["mantelhaen"]
    assert everybody["chi2"].tolist() == pytest.approx(expected)
    # Each against the rest is the test of two groups.
    two_groups = mantel_haenszel(x, group == "C", reference=False, purify=False).items
    assert classes.loc[item, "log_odds_C"] == pytest.approx(two_groups.loc[item, "log_odds"])
    # A group that nobody asked an item is not compared on it.
    x.loc[group == "B", item] = np.nan
    found = irt.dif_logistic(x, group).loc[item]
    assert found[["df", "n_used_B"]].tolist() == [2, 0]
    assert np.isnan(found["p_B"]) and found["p_C"] < 0.001


def test_ratings_are_tested_by_proportional_odds():
    """Reference: statsmodels' OrderedModel."""
    rng = np.random.default_rng(6)
    items = simulate.items(8, rng, "graded", n_categories=4).assign(a=1.3)
    shifted = items.copy()
    shifted.loc[items.index[2], ["b1", "b2", "b3"]] += 0.8
    x = drawn([(rng.normal(size=400), table) for table in (items, shifted)], rng, "graded")
    focal, z = np.repeat([0.0, 1.0], 400), stats.zscore(x.sum(axis=1).to_numpy())
    found, item = irt.dif_logistic(x, focal), x.columns[2]
    assert found["p_adjusted"].idxmin() == item
    columns = np.column_stack([z, focal, focal * z])
    fits = [
        OrderedModel(x[item].astype(int), columns[:, :k], distr="logit").fit(
            method="bfgs", disp=0, gtol=1e-8
        )
        for k in (1, 2, 3)
    ]
    one, two, both = (each.llf for each in fits)
    assert found.loc[item, "chi2"] == pytest.approx(2 * (both - one), abs=1e-4)
    assert found.loc[item, "p_nonuniform"] == pytest.approx(
        stats.chi2.sf(2 * (both - two), 1), abs=1e-4
    )
    assert found.loc[item, "log_odds"] == pytest.approx(fits[1].params["x2"], abs=1e-4)
    assert found.loc[item, "se"] == pytest.approx(fits[1].bse["x2"], rel=1e-3)


def test_an_item_that_a_whole_group_solves_is_found_though_its_odds_are_infinite():
    rng = np.random.default_rng(8)
    x = drawn([(rng.normal(size=300), simulate.items(12, rng, "1PL"))], rng)
    group = np.repeat(["a", "b"], 150)
    x.loc[group == "b", x.columns[4]] = 1.0
    found = irt.dif_logistic(x, group)
    assert found["p_adjusted"].idxmin() == x.columns[4]
    assert found.loc[x.columns[4], "class"] == "C"
    assert np.isnan(found.loc[x.columns[4], "log_odds"])
