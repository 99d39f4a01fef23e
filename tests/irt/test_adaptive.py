"""Adaptive tests equal a replay by numerical integration, and recover known abilities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit

from psychlm import irt
from psychlm.frames import FrameError


@pytest.fixture
def bank(rng):
    n = 60
    items = pd.DataFrame(
        {"a": rng.lognormal(0.2, 0.3, n), "b": rng.normal(0, 1.2, n), "c": rng.uniform(0, 0.25, n)},
        index=pd.Index([f"q{k:02d}" for k in range(n)], name="item"),
    )
    return items.assign(d=-items["a"] * items["b"])


@pytest.fixture
def people(bank, rng):
    theta = rng.standard_normal(300)
    right = rng.random((300, len(bank))) < irt.curves.probability(theta, bank)
    index = pd.Index([f"p{k}" for k in range(300)], name="person")
    return theta, pd.DataFrame(right * 1.0, index=index, columns=bank.index)


def by_hand(bank, answers, n_items):
    """Ask one person; the posterior by quad, the information by its formula (Birnbaum 1968)."""
    asked, estimates, theta = [], [], 0.0
    for _ in range(n_items):
        p = bank["c"] + (1 - bank["c"]) * expit(bank["a"] * theta + bank["d"])
        slope = bank["a"] * (p - bank["c"]) / (1 - bank["c"])
        information = (slope**2 * (1 - p) / p).drop(index=asked)
        asked.append(information.idxmax())

        def density(t, power=0):
            chosen = bank.loc[asked]
            q = chosen["c"] + (1 - chosen["c"]) * expit(chosen["a"] * t + chosen["d"])
            u = answers[asked]
            return t**power * np.exp(-(t**2) / 2) * np.prod(np.where(u == 1, q, 1 - q))

        theta = quad(density, -6, 6, args=(1,))[0] / quad(density, -6, 6)[0]
        estimates.append(theta)
    return asked, estimates


def test_the_replay_asks_what_a_search_by_hand_asks(bank, people):
    _, responses = people
    test = irt.adaptive_test(bank, responses.iloc[:2], n_items=4)
    for person in responses.index[:2]:
        asked, theta = by_hand(bank, responses.loc[person], 4)
        assert list(test.asked.loc[person]) == asked
        np.testing.assert_allclose(test.theta.loc[person], theta, atol=1e-3)


def test_after_the_whole_bank_the_estimate_is_that_of_scoring(bank, people):
    _, responses = people
    test = irt.adaptive_test(bank, responses, n_items=len(bank))
    whole = irt.score(bank, responses, "eap")
    np.testing.assert_allclose(test.theta.iloc[:, -1], whole["theta"], atol=2e-3)
    np.testing.assert_allclose(test.se.iloc[:, -1], whole["se"], atol=2e-3)


@pytest.mark.parametrize("rule", ["information", "posterior"])
@pytest.mark.parametrize("method", ["eap", "map"])
def test_chosen_items_say_more_about_a_person_than_random_ones(bank, people, rng, rule, method):
    theta, responses = people
    chosen = irt.adaptive_test(bank, responses, n_items=10, rule=rule, method=method)
    random = irt.adaptive_test(bank, responses, n_items=10, rule="random", method=method, rng=rng)
    error = [np.sqrt(((test.theta[10] - theta) ** 2).mean()) for test in (chosen, random)]
    assert error[0] < 0.9 * error[1]
    assert np.corrcoef(chosen.score[10], responses.mean(axis=1))[0, 1] > 0.85


def test_a_test_ends_when_its_error_is_small_enough(bank, people):
    test = irt.adaptive_test(bank, people[1], n_items=40, stop_se=0.5)
    assert (test.asked.notna().sum(axis=1) == test.n_asked).all()
    stopped = test.n_asked[test.n_asked < 40]
    assert len(stopped) > 250
    for person, n in stopped.items():
        assert test.se.loc[person, n] <= 0.5
        assert (test.se.loc[person, : n - 1] > 0.5).all()


def test_content_areas_keep_their_shares(bank, people):
    areas = pd.Series(np.repeat(["x", "y", "z"], [30, 20, 10]), index=bank.index)
    test = irt.adaptive_test(bank, people[1], n_items=12, content=areas)
    counts = test.asked.apply(lambda row: areas[row].value_counts(), axis=1)
    assert (counts[["x", "y", "z"]] == [6, 4, 2]).all(axis=None)


def test_strata_of_difficulty_are_asked_once_each(bank, people, rng):
    difficulty = rng.permutation(np.linspace(-4, 4, len(bank)))
    even = pd.DataFrame({"a": 1.0, "b": difficulty}, index=bank.index)
    test = irt.adaptive_test(even, people[1], n_items=6, rule="stratified", rng=rng)
    stratum = (even["b"].rank() - 1) * 6 // len(even)
    for row in test.asked.to_numpy():
        assert sorted(stratum[row]) == list(range(6))


def test_an_item_that_was_not_answered_is_not_asked(bank, people, rng):
    gaps = people[1].mask(rng.random(people[1].shape) < 0.5)
    test = irt.adaptive_test(bank, gaps, n_items=40)
    assert (test.n_asked == gaps.notna().sum(axis=1).clip(upper=40)).all()
    for person, row in test.asked.iloc[:20].iterrows():
        assert gaps.loc[person, row.dropna()].notna().all()
        assert row.dropna().is_unique


def test_invalid_requests_say_what_is_missing(bank, people):
    with pytest.raises(FrameError, match="'q00'.*pass the same items"):
        irt.adaptive_test(bank.drop(index="q00"), people[1])
    with pytest.raises(ValueError, match="rule='random' needs a generator"):
        irt.adaptive_test(bank, people[1], rule="random")
    with pytest.raises(FrameError, match="no content area for items"):
        irt.adaptive_test(bank, people[1], content=pd.Series("x", index=bank.index[1:]))
