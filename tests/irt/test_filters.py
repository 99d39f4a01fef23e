"""The filters of Lalor (2020, section 5.3.3). Reference: the inequalities that the section prints, on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psychlm.frames import FrameError
from psychlm.irt import filters

B = np.array([-3.0, -1.0, -0.5, 0.5, 1.5, 2.0])
PRINTED = {
    "AVI": [0, 0, 1, 1, 0, 0],  # |b| < 1
    "AVO": [1, 0, 0, 0, 1, 1],  # |b| > 1
    "UB": [1, 1, 1, 1, 0, 0],  # b < 1
    "LB": [0, 0, 0, 0, 1, 1],  # b > 1
}


@pytest.mark.parametrize("strategy", PRINTED)
def test_a_threshold_keeps_what_the_section_says(strategy):
    assert filters.keep(strategy, B, threshold=1).astype(int).tolist() == PRINTED[strategy]


def test_percent_correct_bounds_keep_below_and_above():
    proportion = np.array([0.1, 0.5, 0.9])
    assert filters.keep("PCUB", proportion, threshold=0.5).tolist() == [True, False, False]
    assert filters.keep("PCLB", proportion, threshold=0.5).tolist() == [False, False, True]


@given(
    st.lists(st.floats(-4, 4), min_size=1, max_size=30),
    st.sampled_from(list(PRINTED)),
    st.floats(0, 1),
)
def test_a_share_keeps_that_many_and_no_one_kept_is_worse_than_one_left(values, strategy, share):
    b = np.array(values)
    kept = filters.keep(strategy, b, share=share)
    assert kept.sum() == round(share * len(b))
    badness = {"AVI": abs(b), "AVO": -abs(b), "UB": b, "LB": -b}[strategy]
    if kept.any() and not kept.all():
        assert badness[kept].max() <= badness[~kept].min()


def test_items_without_a_difficulty_are_never_kept():
    b = np.array([np.nan, 0.1, np.inf, 5.0])
    assert filters.keep("UB", b, threshold=1).tolist() == [False, True, False, False]
    assert filters.keep("LB", b, share=1.0).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"strategy": "XX", "values": B, "share": 0.5}, "XX"),
        ({"strategy": "UB", "values": B}, "either"),
        ({"strategy": "UB", "values": B, "share": 0.5, "threshold": 1}, "either"),
        ({"strategy": "UB", "values": B, "share": 1.5}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments, said):
    with pytest.raises(ValueError, match=said):
        filters.keep(**arguments)


def test_difficulties_are_no_proportions():
    with pytest.raises(FrameError, match="PCUB"):
        filters.keep("PCUB", B, threshold=0.5)
