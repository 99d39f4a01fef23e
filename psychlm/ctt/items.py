"""Item statistics of classical test theory: difficulty, item-total and inter-item correlations."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.frames import FrameError, check_responses

Array = NDArray[np.float64]


def difficulty(responses: pd.DataFrame) -> pd.Series:
    """Return the proportion correct of every item (high means easy), among those who answered it.

    >>> difficulty(pd.DataFrame({"q1": [0, 1], "q2": [1, np.nan]})).to_dict()
    {'q1': 0.5, 'q2': 1.0}
    """
    return check_responses(responses).mean().rename("difficulty")


def item_total_correlation(responses: pd.DataFrame) -> pd.Series:
    """Return each item's Pearson correlation with the total score, the item itself included.

    The total is the proportion correct among the items a person answered; persons who did not
    answer the item are left out of its correlation. NaN for items that everyone answered alike.
    """
    checked = check_size(responses)
    values = checked.to_numpy()
    score = np.where(np.isnan(values), np.nan, np.nanmean(values, axis=1, keepdims=True))
    r = _columnwise_correlation(values, score)
    return pd.Series(r, index=checked.columns, name="item_total_correlation")


def item_rest_correlation(responses: pd.DataFrame) -> pd.Series:
    """Return each item's Pearson correlation with the score on all other items.

    The rest score is the proportion correct among the other items a person answered; persons who
    did not answer the item, or no other, are left out. NaN for items that everyone answered alike.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> item_rest_correlation(responses).round(3).to_dict()
    {'q1': 0.707, 'q2': 0.522, 'q3': 0.522}
    """
    checked = check_size(responses)
    values = checked.to_numpy()
    n_others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1
    with np.errstate(invalid="ignore"):
        rest = (np.nansum(values, axis=1, keepdims=True) - values) / n_others
    r = _columnwise_correlation(np.where(np.isnan(rest), np.nan, values), rest)
    return pd.Series(r, index=checked.columns, name="item_rest_correlation")


def _columnwise_correlation(x: Array, y: Array) -> Array:
    """Correlate columns pair by pair; x and y are NaN at the same places."""
    known = ~np.isnan(x)
    n = np.maximum(known.sum(axis=0), 1)
    x, y = (np.where(known, values - np.nansum(values, axis=0) / n, 0) for values in (x, y))
    norms = np.linalg.norm(x, axis=0) * np.linalg.norm(y, axis=0)
    # Rounding leaves the norm of a constant column near 1e-15 rather than at 0.
    with np.errstate(invalid="ignore"):
        return np.where(norms > 1e-10, (x * y).sum(axis=0) / norms, np.nan)


def inter_item_correlation(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of every pair of items, which is phi for binary responses.

    With n persons who answered both items, of whom r_i and r_j were right and r_ij right on both,
    phi = (n r_ij - r_i r_j) / sqrt(r_i (n - r_i) r_j (n - r_j)).

    Returns
    -------
    DataFrame, shape (n_items, n_items)
        NaN where the correlation is undefined: for an item that everyone answered alike (on the
        diagonal too), and for a pair in which an item does not vary among those who answered both.
    """
    checked = check_size(responses)
    n, right, both = pair_counts(checked)
    spread = right * (n - right)
    with np.errstate(invalid="ignore", divide="ignore"):
        phi = (n * both - right * right.T) / np.sqrt(spread * spread.T)
    phi[spread * spread.T <= 0] = np.nan
    return pd.DataFrame(phi, index=checked.columns, columns=checked.columns.rename("other_item"))


def check_size(responses: pd.DataFrame, n_items: int = 2) -> pd.DataFrame:
    """Return checked responses of at least ``n_items`` items and two persons."""
    checked = check_responses(responses)
    if checked.shape[1] < n_items or len(checked) < 2:
        raise FrameError(
            f"this needs at least {n_items} items and 2 persons, and the responses have "
            f"{checked.shape[1]} and {len(checked)}"
        )
    return checked


def pair_counts(responses: pd.DataFrame) -> tuple[Array, Array, Array]:
    """Count over pairs of items (i, j): who answered both, who of them was right on i, and on both.

    Returns
    -------
    n, right, both : ndarray, each of shape (n_items, n_items)
        Whole numbers, so sums and differences of them are exact.
    """
    answered = responses.notna().to_numpy(np.float64)
    right = responses.fillna(0).to_numpy(np.float64)
    return answered.T @ answered, right.T @ answered, right.T @ right
