"""Test forms: information by hand, choices by their definition, selection against planted flaws."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from psychlm.frames import FrameError
from psychlm.irt import forms
from psychlm.papers import lalor2020_comprehenotes as comprehenotes


def items(a: list[float], b: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"a": a, "b": b, "c": 0.0}, index=[f"q{i + 1}" for i in range(len(a))])


def test_the_peak_of_one_item_is_a_quarter_of_its_squared_slope_at_its_difficulty() -> None:
    found = forms.reach(items([11.3], [-2.0]))
    assert found.peak == pytest.approx(11.3**2 / 4)
    assert found.peak_ability == pytest.approx(-2)
    # a^2 p (1 - p) >= 4 where |logit p| <= 2 arcosh(a / 4)
    half_width = 2 * np.arccosh(11.3 / 4) / 11.3
    assert (found.low, found.high) == pytest.approx((-2 - half_width, -2 + half_width), abs=0.011)


def test_a_form_that_never_reaches_the_least_information_has_no_reach() -> None:
    found = forms.reach(items([1.0, 1.0], [0.0, 0.0]))
    assert found.peak == pytest.approx(0.5)
    assert np.isnan([found.low, found.high]).all()


def test_mean_information_is_the_difference_of_probabilities_over_the_range() -> None:
    """The integral of a^2 p (1 - p) is a (p(high) - p(low)) for an item without guessing."""
    one = items([2.0], [-1.0])
    p = [1 / (1 + np.exp(-2.0 * (edge + 1))) for edge in (-2.8, 0.7)]
    assert forms.mean_information(one, -2.8, 0.7)["q1"] == pytest.approx(
        2.0 * (p[1] - p[0]) / 3.5, rel=0.01
    )


def test_steep_items_in_range_are_chosen_and_easy_ones_are_not() -> None:
    bank = items([2.0, 1.9, 0.8, 2.1, 1.8], [-1.0, -1.2, -1.0, -6.0, -0.5])
    assert list(forms.choose(bank, 2, -2.8, 0.7)) == ["q1", "q2"]
    assert list(forms.choose(bank, 5, -2.8, 0.7)) == list(bank.index)
    with pytest.raises(FrameError, match="cannot be made of 5"):
        forms.choose(bank, 6, -2.8, 0.7)


def test_selection_by_topic_finds_planted_flat_and_falling_items() -> None:
    study = comprehenotes.calibration(seed=4)
    found = forms.select_by_topic(
        study.answers, order=("dependence", "slope"), guessing=False, least_ratio=0
    )
    assert study.known is not None
    removed = study.known.index.difference(found.items.index)
    assert set(found.removed["item"]) == set(removed)
    graded = comprehenotes.graded(study.known, removed)
    assert graded.loc[graded["flaw"].isin(["flat", "negative"]), "removed"].mean() > 0.9
    assert graded.loc[~graded["flawed"], "removed"].mean() < 0.15
    assert (found.items["topic"] == study.known.loc[found.items.index, "topic"]).all()


def test_items_that_all_answered_alike_are_set_aside() -> None:
    study = comprehenotes.calibration(seed=4)
    answers = study.answers["cancer"].assign(trivial=1.0)
    found = forms.select_by_topic(
        {"cancer": answers}, order=("slope",), guessing=False, least_ratio=0
    )
    assert "trivial" in set(found.removed["item"]) and "trivial" not in found.items.index
