"""The screen for broken items, on banks whose faults are known.

References: faults planted in simulated banks; statsmodels' StratifiedTable for drift;
``ctt.item_rest_correlation``."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import StratifiedTable

from psychlm import ctt, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt.broken_items import FAULTS

N_ITEMS = 40


def clean_bank(seed, n_persons=2000):
    rng = np.random.default_rng(seed)
    items = simulate.items(N_ITEMS, rng).assign(a=rng.uniform(0.8, 2, N_ITEMS))
    return simulate.responses(rng.normal(size=n_persons), items, rng), rng


def flagged(flags, fault):
    return set(flags.loc[flags["flagged"] & flags["fault"].eq(fault), "item"])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_items_without_a_fault_are_not_flagged(seed):
    answers, rng = clean_bank(seed)
    groups = pd.Series(rng.integers(4, size=len(answers)), answers.index)
    flags = irt.flag_items(answers, n_choices=4, groups=groups)
    assert set(flags["fault"]) == set(FAULTS)
    assert not flags["flagged"].any(), flags[flags["flagged"]]


def test_every_planted_fault_is_found_under_its_name():
    answers, rng = clean_bank(4, 4000)
    spread = answers.mean().sub(0.5).abs().sort_values().index  # of middle difficulty first
    wrong, none, guessed, copied, drifts, source = spread[:6]
    two = answers.mean().idxmax()  # the ceiling of an item shows where many are able
    group = pd.Series(np.where(rng.random(4000) < 0.3, "a", "b"), answers.index)
    items = (wrong, none, two, guessed, copied, drifts)
    options = {"like": source, "members": group.eq("a")}
    for item, fault in zip(items, FAULTS, strict=True):
        answers = simulate.plant_fault(answers, item, fault, rng, **options)
    flags = irt.flag_items(answers, n_choices=4, groups=group)
    assert wrong in flagged(flags, "wrong_key")
    assert flagged(flags, "no_right_answer") == {none}
    assert flagged(flags, "two_right_answers") == {two}
    assert flagged(flags, "only_guessers") == {guessed}
    assert flagged(flags, "near_duplicate") == {copied, source}
    assert flagged(flags, "drift") == {drifts}
    rows = flags.set_index(["fault", "item"])
    assert rows.loc[("drift", drifts), "detail"] == "a"
    assert rows.loc[("near_duplicate", copied), "detail"] == source
    assert rows.loc[("two_right_answers", two), "effect"] == pytest.approx(0.5, abs=0.06)


def test_effects_equal_other_programs():
    answers, rng = clean_bank(5, 500)
    group = pd.Series(np.where(rng.random(500) < 0.5, "a", "b"), answers.index)
    flags = irt.flag_items(answers, groups=group).set_index(["fault", "item"])
    rest = ctt.item_rest_correlation(answers)
    effects = flags.loc["wrong_key", "effect"]
    np.testing.assert_allclose(effects, rest.loc[effects.index], atol=1e-12)

    item, score = flags.loc["drift"].index[0], answers.sum(axis=1)
    drifts = group.eq(flags.loc[("drift", item), "detail"])
    stratum = np.searchsorted(np.quantile(score, np.arange(1, 20) / 20), score)
    tables = [
        pd.crosstab(drifts[part.index], part).reindex([True, False], columns=[1.0, 0.0])
        for _, part in answers[item].groupby(stratum)
    ]
    expected = StratifiedTable([table.fillna(0).to_numpy() for table in tables]).oddsratio_pooled
    assert flags.loc[("drift", item), "effect"] == pytest.approx(np.log(expected), abs=1e-9)


def test_responses_that_cannot_be_screened_are_named():
    answers, _ = clean_bank(6, 60)
    with pytest.raises(FrameError, match="2 items were answered in more than one way"):
        irt.flag_items(answers.iloc[:, :2])
    with pytest.raises(FrameError, match="'person-1'.* have no group"):
        irt.flag_items(answers, groups=pd.Series("a", answers.index[1:]))
    with pytest.raises(FrameError, match="group has shape"):
        irt.flag_items(answers, groups=["a"] * 59)


def test_persons_with_gaps_count_in_the_drift_of_an_item_that_only_a_group_always_solves():
    # The odds ratio is infinite, and its error unknown; Mantel's score test needs neither.
    rng = np.random.default_rng(1)
    answers = simulate.responses(rng.normal(size=400), simulate.items(15, rng), rng, missing=0.2)
    group = pd.Series(np.where(np.arange(400) < 150, "a", "b"), answers.index)
    fooled = answers["item-04"].notna() & (group == "a")
    answers.loc[fooled, "item-04"] = 1.0
    flags = irt.flag_items(answers, groups=group).query("fault == 'drift'").set_index("item")
    assert flags.index[flags["flagged"]].tolist() == ["item-04"]
    assert flags.loc["item-04", ["effect", "detail"]].tolist() == [np.inf, "a"]
    with pytest.raises(ValueError, match="n_choices=0.25"):
        irt.flag_items(answers, n_choices=0.25)


def test_coin_flips_of_few_persons_are_refused_and_never_duplicates():
    rng = np.random.default_rng(0)
    flips = pd.DataFrame(rng.integers(0, 2, (60, 40)).astype(float))
    with pytest.raises(FrameError, match="4 persons, and a screen needs 30"):
        irt.flag_items(flips[:4])
    for n in (30, 60):
        found = irt.flag_items(flips[:n]).query("fault == 'near_duplicate'")
        assert not found["flagged"].any()
    # A pair of items that few persons answered has no p.
    apart = flips.iloc[:, :2].copy()
    apart.iloc[:40, 0] = np.nan
    found = irt.flag_items(pd.concat([apart, flips.iloc[:, 2:12]], axis=1))
    pairs = found.query("fault == 'near_duplicate'").set_index("item")
    assert not pairs["flagged"].any()
