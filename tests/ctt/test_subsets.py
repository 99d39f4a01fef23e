"""The smallest subset of a population, against psychlm.ctt's measures and planted guessers."""

import numpy as np
import pytest

from psychlm import ctt, simulate, stats
from psychlm.frames import FrameError


@pytest.fixture
def population(rng):
    return simulate.responses(rng.normal(0, 1, 40), simulate.items(24, rng), rng)


def test_agreements_equal_the_measures_of_ctt(population):
    # One split, and the random subset drawn from the same seed by hand.
    curve = ctt.smallest_subset(
        population, rng=np.random.default_rng(3), sizes=[8, 25, 40], n_splits=1, n_random=1
    ).curve.set_index(["property", "selection", "size"])["mean"]
    rng = np.random.default_rng(3)
    judging = population.iloc[:, rng.permutation(24)[:12]]
    order = rng.permuted(np.arange(40)[None], axis=1)[0]
    above = np.triu_indices(12, 1)
    for size in (8, 25):
        subset = judging.iloc[order[:size]]
        phi, goal = (
            ctt.inter_item_correlation(r).fillna(0).to_numpy()[above] for r in (subset, judging)
        )
        expected = {
            "difficulty": stats.correlation(ctt.difficulty(subset), ctt.difficulty(judging)).r,
            "reliability": 1 - abs(ctt.cronbach_alpha(subset) - ctt.cronbach_alpha(judging)),
            "inter_item": np.corrcoef(phi, goal)[0, 1],
        }
        for name, value in expected.items():
            assert curve[name, "random", size] == pytest.approx(value)
    assert curve.xs(40, level="size").to_numpy() == pytest.approx(1)


def test_bad_input_is_refused_by_name(population, rng):
    refused = [
        (population.mask(rng.random(population.shape) < 0.1), 3, "lack responses"),
        (population.iloc[:, :5], 3, "at least 6 items"),
        (population, 99, "outside"),
    ]
    for responses, size, message in refused:
        with pytest.raises(ValueError, match=message):
            ctt.smallest_subset(responses, rng=rng, sizes=[3, size])


def test_the_answers_of_eight_other_people_are_worth_eight_people(rng):
    """Recovery: an estimate that is made of eight people of the same population."""
    items = simulate.items(300, rng)
    people, eight = (simulate.responses(rng.normal(size=n), items, rng) for n in (60, 8))
    other = simulate.items(300, rng)["b"].to_numpy()
    estimates = ctt.difficulty(eight).to_frame("eight").assign(unrelated=other, same=-items["b"])
    found = ctt.worth_in_people(people, estimates, rng=rng, n_panels=20, n_orders=5)
    assert found.estimates.loc["eight", "worth"] == pytest.approx(8, abs=2)
    assert found.estimates.loc["unrelated", "worth"] < 0.5
    assert found.estimates.loc["same", "worth"] > 25
    assert found.curve["agreement"].is_monotonic_increasing
    with pytest.raises(FrameError, match="items that have an estimate"):
        ctt.worth_in_people(people, estimates.iloc[1:], rng=rng)
