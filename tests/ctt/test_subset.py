"""The smallest subset of a population that keeps its psychometric properties.

References: the properties by psychlm.ctt (checked there against R's psych and ltm); the greedy search by trying every
person one at a time; populations whose structure is planted.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from psychlm import ctt, simulate, stats
from psychlm.frames import FrameError


@pytest.fixture
def population(rng: np.random.Generator) -> pd.DataFrame:
    return simulate.responses(rng.normal(0, 1, 40), simulate.items(24, rng), rng)


def by_hand(population: pd.DataFrame, persons: pd.Index) -> list[float]:
    """The three agreements from the measures of psychlm.ctt."""
    subset, above = population.loc[persons], np.triu_indices(population.shape[1], 1)
    phi, goal = (
        ctt.inter_item_correlation(r).fillna(0).to_numpy()[above] for r in (subset, population)
    )
    return [
        stats.correlation(ctt.difficulty(subset), ctt.difficulty(population)).r,
        1 - abs(ctt.cronbach_alpha(subset) - ctt.cronbach_alpha(population)),
        np.corrcoef(phi, goal)[0, 1],
    ]


@pytest.mark.parametrize("size", [3, 8, 25, 40])
def test_agreement_equals_the_measures_of_ctt(
    population: pd.DataFrame, rng: np.random.Generator, size: int
) -> None:
    persons = population.index[rng.permutation(40)[:size]]
    found = ctt.subset_agreement(population, persons)
    assert found.tolist() == pytest.approx(by_hand(population, persons))


def test_the_whole_population_agrees_with_itself(population: pd.DataFrame) -> None:
    assert ctt.subset_agreement(population, population.index).tolist() == pytest.approx([1, 1, 1])
    assert ctt.greedy_subset(population).agreement.iloc[-1].tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("criterion", ["all", "difficulty", "reliability", "inter_item"])
def test_each_step_takes_the_best_person(population: pd.DataFrame, criterion: str) -> None:
    found = ctt.greedy_subset(population, 8, criterion=criterion)
    for n in range(2, 8):
        tried = {
            person: ctt.subset_agreement(population, [*found.order[:n], person])
            for person in population.index.difference(found.order[:n])
        }
        table = pd.DataFrame(tried).T
        score = table.mean(axis=1, skipna=False) if criterion == "all" else table[criterion]
        assert score[found.order[n]] == pytest.approx(score.max())
        assert found.agreement.loc[n + 1].tolist() == pytest.approx(
            table.loc[found.order[n]].tolist()
        )


def test_on_held_out_items_greedy_subsets_beat_random_ones_at_what_they_were_chosen_for(
    rng: np.random.Generator,
) -> None:
    items = simulate.items(80, rng, "1PL")
    coins = pd.DataFrame(rng.integers(0, 2, (50, 80)).astype(float), columns=items.index)
    able = simulate.responses(rng.normal(0.5, 1, 30), items, rng)
    everyone = pd.concat([able, coins.rename(index=lambda i: f"coin-{i}")])
    found = ctt.smallest_subset(
        everyone, rng=rng, sizes=[5, 10, 20, 80], criterion="difficulty", n_splits=4
    )
    curve = found.curve.set_index(["property", "selection", "size"])["mean"]
    for size in (5, 10, 20):
        assert curve["difficulty", "greedy", size] > curve["difficulty", "random", size]
    assert curve["difficulty", "greedy", 80] == pytest.approx(1)
    assert found.smallest.loc["difficulty", "greedy"] <= found.smallest.loc["difficulty", "random"]


def test_the_smallest_size_keeps_to_the_threshold_from_there_on(population: pd.DataFrame) -> None:
    found = ctt.smallest_subset(population, rng=np.random.default_rng(1), n_splits=3, threshold=0.9)
    curve = found.curve.set_index(["property", "selection", "size"])["mean"].unstack("size")
    for key, means in curve.iterrows():
        least = found.smallest.loc[key]
        assert (means[means.index >= least] >= 0.9).all()
        before = means.index[means.index < least]
        assert not len(before) or means[before[-1]] < 0.9
    same = ctt.smallest_subset(population, rng=np.random.default_rng(1), n_splits=3, threshold=0.9)
    pd.testing.assert_frame_equal(found.curve, same.curve)


def test_bad_input_is_refused_by_name(population: pd.DataFrame, rng: np.random.Generator) -> None:
    holed = population.copy()
    holed.iloc[0, 3] = np.nan
    with pytest.raises(FrameError, match="lack answers"):
        ctt.greedy_subset(holed)
    with pytest.raises(FrameError, match="'nobody'"):
        ctt.subset_agreement(population, ["person-1", "nobody"])
    with pytest.raises(FrameError, match="fewer than two"):
        ctt.subset_agreement(population, ["person-1"])
    with pytest.raises(ValueError, match="criterion"):
        ctt.greedy_subset(population, criterion="beauty")
    with pytest.raises(FrameError, match="fewer than three"):
        ctt.smallest_subset(population, rng=rng, held_out=0.01)
    with pytest.raises(ValueError, match="outside"):
        ctt.smallest_subset(population, rng=rng, sizes=[3, 99])
