"""How hard, how telling and how alike the items of a test are."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from psychlm.ctt.pairs import Array, pair_counts, several_items
from psychlm.frames import FrameError, check_responses


def difficulty(responses: pd.DataFrame) -> pd.Series:
    """Return the proportion correct of every item (high means easy), among those who answered it.

    >>> difficulty(pd.DataFrame({"q1": [0, 1], "q2": [1, np.nan]})).to_dict()
    {'q1': 0.5, 'q2': 1.0}
    """
    return check_responses(responses).mean().rename("difficulty")


def discrimination_index(responses: pd.DataFrame, fraction: float = 0.27) -> pd.Series:
    """Return the proportion correct in the upper group of persons less that in the lower group.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    fraction : float
        Size of each group as a share of all persons, at most one half; 0.27 is Kelley's (1939). The group is
        ``round(fraction * n_persons)`` persons, at least one.

    Returns
    -------
    Series
        One value an item, -1..1; NaN where nobody in one of the groups answered it. Persons are ordered by their
        score; those tied at a group's edge share its remaining places in equal parts (each counts with that
        weight), which is the mean over all ways of breaking the tie, and does not depend on the order of the rows.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(
            f"each group takes a share of the persons above 0 and at most 0.5, and fraction is {fraction}"
        )
    answers = several_items(responses, 1)
    score = answers.mean(axis=1).to_numpy()
    size = max(1, round(fraction * len(score)))
    weights = np.stack([_top_weights(score, size), _top_weights(-score, size)])
    values = answers.to_numpy()
    with np.errstate(invalid="ignore"):
        upper, lower = (weights @ np.nan_to_num(values)) / (weights @ ~np.isnan(values))
    return pd.Series(upper - lower, index=answers.columns, name="discrimination_index")


def _top_weights(score: Array, size: int) -> Array:
    """Weight persons by their place among the ``size`` highest scores: 1 inside, a share where tied at the edge."""
    edge = np.sort(score)[-size]
    above, tied = score > edge, score == edge
    return above + tied * (size - above.sum()) / tied.sum()


def item_total_correlation(responses: pd.DataFrame) -> pd.Series:
    """Return each item's Pearson correlation with the total score, the item itself included.

    The total is the proportion correct among the items a person answered; persons who did not answer the item are
    left out of its correlation. NaN for items that everyone answered alike.
    """
    answers = several_items(responses)
    values = answers.to_numpy()
    score = np.nanmean(values, axis=1, keepdims=True)
    r = _columnwise_correlation(values, np.where(np.isnan(values), np.nan, score))
    return pd.Series(r, index=answers.columns, name="item_total_correlation")


def item_rest_correlation(responses: pd.DataFrame) -> pd.Series:
    """Return each item's Pearson correlation with the score on all other items (the corrected item-total).

    The rest is the proportion correct among the other items a person answered; persons who did not answer the item,
    or no other, are left out of its correlation. NaN for items that everyone answered alike.
    """
    answers = several_items(responses)
    values = answers.to_numpy()
    n_others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1
    with np.errstate(invalid="ignore"):
        rest = (np.nansum(values, axis=1, keepdims=True) - values) / n_others
    r = _columnwise_correlation(np.where(np.isnan(rest), np.nan, values), rest)
    return pd.Series(r, index=answers.columns, name="item_rest_correlation")


def _columnwise_correlation(x: Array, y: Array) -> Array:
    """Correlate columns pair by pair; x and y are NaN at the same places. NaN where a column does not vary."""
    asked = ~np.isnan(x)
    n = np.maximum(asked.sum(axis=0), 1)
    x, y = (np.where(asked, values - np.nansum(values, axis=0) / n, 0) for values in (x, y))
    norms = np.linalg.norm(x, axis=0) * np.linalg.norm(y, axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(
            norms > 1e-10, (x * y).sum(axis=0) / norms, np.nan
        )  # rounding leaves constants near 1e-15


def inter_item_correlation(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of every pair of items, which is phi for right and wrong answers.

    With n persons who answered both, phi = (n n₁₁ - n₁. n.₁) / √(n₁. (n - n₁.) n.₁ (n - n.₁)).

    Returns
    -------
    DataFrame, shape (n_items, n_items)
        NaN, on the diagonal too, for an item that everyone answered alike, and for a pair in which one item was
        answered alike by all who answered both: the correlation is undefined there.
    """
    answers = several_items(responses)
    n, right, both = pair_counts(answers)
    spread = right * (n - right)
    with np.errstate(invalid="ignore", divide="ignore"):
        phi = np.where(
            spread * spread.T > 0, (n * both - right * right.T) / np.sqrt(spread * spread.T), np.nan
        )
    return pd.DataFrame(phi, index=answers.columns, columns=answers.columns.rename("other_item"))


Undefined = Literal["drop", "zero", "error"]


def average_inter_item_correlation(
    responses: pd.DataFrame, *, undefined: Undefined = "error"
) -> float:
    """Return the mean correlation over all pairs of items.

    ``undefined`` says what becomes of items that everyone answered alike, which have no correlation: ``"error"``
    names them, ``"drop"`` averages over the pairs of the other items, ``"zero"`` counts their correlations as 0.
    """
    r = defined_correlations(responses, undefined).to_numpy()
    return float(r[np.triu_indices_from(r, k=1)].mean())


def defined_correlations(responses: pd.DataFrame, undefined: Undefined) -> pd.DataFrame:
    """Return inter-item correlations without NaN, having treated undefined ones as asked."""
    if undefined not in ("drop", "zero", "error"):
        raise ValueError(f"undefined={undefined!r} is unknown; choose 'drop', 'zero' or 'error'")
    r = inter_item_correlation(responses)
    constant = r.index[np.isnan(np.diag(r))]
    if undefined == "zero":
        return r.fillna(0)
    if undefined == "error" and len(constant):
        raise FrameError(
            f"items {list(constant)} were answered alike by everyone, so their correlations are undefined; leave them "
            "out with undefined='drop', or count their correlations as 0 with undefined='zero'"
        )
    r = r.drop(index=constant, columns=constant)
    if len(r) < 2:
        raise FrameError(
            f"fewer than 2 items are left when the constant ones ({list(constant)}) are dropped"
        )
    if r.isna().to_numpy().any():
        one, other = np.argwhere(r.isna().to_numpy())[0]
        raise FrameError(
            f"items {r.index[one]!r} and {r.index[other]!r} do not both vary among those who answered both, so their "
            "correlation is undefined; drop one of them, or count such correlations as 0 with undefined='zero'"
        )
    return r
