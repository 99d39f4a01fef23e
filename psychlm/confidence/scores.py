"""Scores of choices as confidences, picks and grades.

A *scores* frame is what ``lm.choice_logprobs`` returns: items x choices, natural logarithms, NaN where an item has
fewer choices. The confidence in a choice is the softmax of the scores over its item's choices.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from psychlm import frames

Values = NDArray[np.float64]


def check_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores as float64 items x choices, the index named ``item``.

    Raises
    ------
    FrameError
        If the frame is empty; an item stands twice; an item has fewer than two scores, a gap before its last one, or
        one that is no number.
    """
    if not isinstance(scores, pd.DataFrame) or scores.empty:
        raise frames.FrameError("scores are a DataFrame of items x choices with one item at least")
    if scores.index.has_duplicates:
        twice = list(scores.index[scores.index.duplicated()][:5])
        raise frames.FrameError(
            f"items {twice} are scored more than once; score each probe in a frame of its own"
        )
    values = scores.to_numpy(np.float64, na_value=np.nan)
    there = ~np.isnan(values)
    gap = (there[:, 1:] & ~there[:, :-1]).any(axis=1)
    for wrong, why in (
        (gap, "a gap before their last score; NaN stands behind the last choice only"),
        (there.sum(axis=1) < 2, "fewer than two scores"),
        ((values == np.inf).any(axis=1), "an infinite score"),
        ((values == -np.inf).all(axis=1, where=there), "no choice with a probability above zero"),
    ):
        if wrong.any():
            raise frames.FrameError(f"items {list(scores.index[wrong][:5])} have {why}")
    return pd.DataFrame(values, index=scores.index.rename("item"), columns=scores.columns)


def confidences(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the confidence in every choice: the softmax of its item's scores, NaN where there is no choice.

    Raises
    ------
    FrameError
        As :func:`check_scores`.
    """
    checked = check_scores(scores)
    return pd.DataFrame(_softmax(checked.to_numpy()), index=checked.index, columns=checked.columns)


def _softmax(values: Values) -> Values:
    weights = np.exp(values - np.nanmax(values, axis=1, keepdims=True))
    return weights / np.nansum(weights, axis=1, keepdims=True)


def n_choices(scores: pd.DataFrame) -> NDArray[np.intp]:
    """Return the number of choices of every item, shape (n_items,)."""
    return scores.notna().to_numpy().sum(axis=1)


def places(answer: pd.Series | ArrayLike, scores: pd.DataFrame) -> NDArray[np.intp]:
    """Return the (pseudo-)correct place of every item, shape (n_items,): a Series by item, or numbers in order.

    Raises
    ------
    FrameError
        If an item has no answer, or one that is none of its choices.
    """
    if isinstance(answer, pd.Series):
        missing = scores.index.difference(answer.index)
        if len(missing):
            raise frames.FrameError(
                f"items {list(missing[:5])} have scores but no answer; give items.set_index('item_id')['answer']"
            )
        answer = answer.loc[scores.index]
    place = np.asarray(answer, dtype=np.float64)
    if place.shape != (len(scores),):
        raise frames.FrameError(
            f"there are {len(scores)} items and answers of shape {place.shape}; give one an item"
        )
    outside = ~((place >= 0) & (place < n_choices(scores)) & (place % 1 == 0))
    if outside.any():
        raise frames.FrameError(
            f"items {list(scores.index[outside][:5])} name an answer that is not among their scores"
        )
    return place.astype(np.intp)


def confidence_in(scores: pd.DataFrame, answer: pd.Series | ArrayLike) -> pd.Series:
    """Return the confidence in one choice of every item, the (pseudo-)correct one, by item."""
    sure = confidences(scores)
    return pd.Series(
        sure.to_numpy()[np.arange(len(sure)), places(answer, sure)],
        index=sure.index,
        name="confidence",
    )


def grades(scores: pd.DataFrame, answer: pd.Series | ArrayLike) -> pd.Series:
    """Return 1 where the highest score is that of the answer, else 0, by item; k choices that tie share: 1/k each."""
    checked = check_scores(scores)
    values, place = checked.to_numpy(), places(answer, checked)
    best = values == np.nanmax(values, axis=1, keepdims=True)
    right = best[np.arange(len(values)), place] / best.sum(axis=1)
    return pd.Series(right, index=checked.index, name="right")
