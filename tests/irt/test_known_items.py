"""Abilities on items whose parameters are known. References: ``irt.score``, scipy's root finder."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import expit

from psychlm import irt, simulate
from psychlm.frames import FrameError
from psychlm.irt.scoring import KnownItems


def test_abilities_are_those_of_irt_score(rng):
    items = simulate.items(60, rng)
    correct = rng.random((5, 60)) < rng.random((5, 1))
    correct[0], correct[1] = True, False
    expected = irt.score(
        items, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    found = KnownItems(items).ability(correct)
    assert np.allclose(found, expected, atol=1e-7, equal_nan=True)
    assert found["theta"].tolist()[:2] == [np.inf, -np.inf]
    pooled = items.assign(a=1.0, b=items["b"].round(0))
    expected = irt.score(
        pooled, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    assert np.allclose(KnownItems(pooled).ability(correct), expected, atol=1e-7, equal_nan=True)


def test_guessing_goes_the_long_way(rng):
    items = simulate.items(40, rng, "3PL")
    correct = rng.random((3, 40)) < 0.7
    expected = irt.score(
        items, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    assert np.allclose(KnownItems(items).ability(correct), expected)


def test_a_negative_slope_counts_against(rng):
    items = pd.DataFrame({"a": [1.0, 1.5, -0.7], "b": [0.0, 0.5, -0.2]})
    correct = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], dtype=bool)
    found = KnownItems(items).ability(correct)
    theta = optimize.brentq(
        lambda t: (items["a"] * (expit(items["a"] * (t - items["b"])) - correct[0])).sum(), -20, 20
    )
    assert found["theta"].tolist() == pytest.approx([theta, np.inf, -np.inf])


def test_known_items_say_what_is_wrong():
    with pytest.raises(FrameError, match="need the columns a and b"):
        KnownItems(pd.DataFrame({"b": [0.0]}))
    with pytest.raises(FrameError, match=r"1 of 2 items \[1\] have parameters that are missing"):
        KnownItems(pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, np.nan]}))
    with pytest.raises(FrameError, match="stand more than once"):
        KnownItems(pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, 1.0]}, index=["q", "q"]))
    with pytest.raises(FrameError, match="responses to 3 items, and 1 are known"):
        KnownItems(pd.DataFrame({"a": [1.0], "b": [0.0]})).ability(np.ones((2, 3), bool))
