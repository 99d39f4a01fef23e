"""Curves beside their closed forms, mirt's test information, and numerical derivatives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from psychlm.frames import FrameError
from psychlm.irt import curves
from psychlm.papers.lalor2020_test_sets import empirical_curve

ITEMS = pd.DataFrame({"a": [1.0, 2.0, 0.7], "b": [0.0, 1.0, -1.0], "c": [0.0, 0.2, 0.1]})


def test_difficulty_lies_half_way_between_the_asymptotes_and_flat_items_have_intercepts():
    np.testing.assert_allclose(
        curves.probability(ITEMS["b"], ITEMS).diagonal(), (ITEMS["c"] + 1) / 2
    )
    flat = pd.DataFrame({"a": [0.0], "b": [np.inf], "d": [1.0]})
    np.testing.assert_allclose(curves.probability([-2.0, 2.0], flat), 1 / (1 + np.exp(-1)))


def test_information_is_the_squared_derivative_over_the_variance():
    theta, h = np.linspace(-3, 3, 13), 1e-5
    p = curves.probability(theta, ITEMS)
    slope = (curves.probability(theta + h, ITEMS) - curves.probability(theta - h, ITEMS)) / (2 * h)
    np.testing.assert_allclose(
        curves.item_information(theta, ITEMS), slope**2 / (p * (1 - p)), rtol=1e-6
    )


@pytest.mark.parametrize("model", ["2PL", "Rasch"])
@pytest.mark.parametrize("dataset", ["LSAT6", "LSAT7"])
def test_test_information_is_mirts(dataset, model, mirt):
    items = mirt("items", dataset, model)
    theirs = mirt("test_information", dataset, model)
    found = curves.test_information(
        theirs["theta"], items.assign(d=items["intercept_d"])[["a", "b", "c", "d"]]
    )
    np.testing.assert_allclose(found, theirs["test_information"], rtol=1e-4)


def test_the_empirical_curve_follows_the_curve_that_made_the_answers(rng):
    theta, item = rng.normal(size=20_000), pd.DataFrame({"a": [1.5], "b": [0.3]})
    answered = (rng.random(len(theta)) < curves.probability(theta, item)[:, 0]).astype(float)
    at = np.linspace(-1.5, 1.5, 7)
    found = empirical_curve(theta, answered, at)
    np.testing.assert_allclose(found, curves.probability(at, item)[:, 0], atol=0.03)
    assert np.isnan(empirical_curve(theta, answered, [9.0])).all()
    with pytest.raises(FrameError, match="at least 5"):
        empirical_curve([0.0, 1.0, 2.0], [0, 1, 1], [0.5])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"a": None}, "columns a and b"),
        ({"u": 1.2}, "upper asymptote"),
        ({"c": 1.2}, "outside"),
        ({"c": "often"}, "not all numbers"),
        ({"d": [1.0, -2.0, 0.7]}, r"items \[0\] have a b and a d that disagree.*irt.link"),
    ],
)
def test_tables_that_give_no_curve_are_refused(change, match):
    items = ITEMS.assign(**change).dropna(axis=1)
    for function in (curves.probability, curves.item_information):
        with pytest.raises(FrameError, match=match):
            function(0.0, items)
