"""Which examples to train on, by their difficulty (Lalor 2020, section 5.3.3)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from psychlm.frames import FrameError

Strategy = Literal["AVI", "AVO", "UB", "LB", "PCUB", "PCLB"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def keep(
    strategy: Strategy,
    values: ArrayLike,
    *,
    threshold: float | None = None,
    share: float | None = None,
) -> NDArray[np.bool_]:
    """Return which examples a strategy keeps, by a threshold d or by how many are to be left.

    Parameters
    ----------
    strategy : str
        On difficulties b: ``"AVI"`` (absolute value inner) keeps abs(b) < d, ``"AVO"`` (outer) abs(b) > d, ``"UB"``
        (upper bound) b < d, ``"LB"`` (lower bound) b > d. On proportions correct pc: ``"PCUB"`` keeps pc < d,
        ``"PCLB"`` pc > d.
    values : (n,) array_like
        Difficulties (logits), or proportions correct (0..1) for the last two. NaN (an item that everyone or no one
        answered correctly has no difficulty) is never kept, and is not counted among the examples of ``share``.
    threshold : float
        d.
    share : float
        Keep this share of the examples instead (0..1, rounded), those that the strategy keeps longest; of equal
        values, those that stand first.

    Returns
    -------
    (n,) bool ndarray

    Raises
    ------
    ValueError
        If the strategy is unknown, or not exactly one of ``threshold`` and ``share`` is given.
    FrameError
        If proportions correct lie outside 0..1.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy is named {strategy!r}; there are {list(STRATEGIES)}")
    if (threshold is None) == (share is None):
        raise ValueError("give either a threshold or a share to keep, not both and not neither")
    found = np.asarray(values, dtype=np.float64)
    if strategy.startswith("PC") and (
        np.nanmin(found, initial=0) < 0 or np.nanmax(found, initial=1) > 1
    ):
        raise FrameError(
            f"{strategy} asks for proportions correct between 0 and 1; for difficulties take 'UB' or 'LB'"
        )
    size = np.abs(found) if strategy.startswith("AV") else found
    low_first = strategy in ("AVI", "UB", "PCUB")
    if threshold is not None:
        return size < threshold if low_first else size > threshold
    if not 0 <= share <= 1:  # type: ignore[operator]
        raise ValueError(f"the share to keep lies between 0 and 1, and is {share}")
    known = np.isfinite(size)
    order = (
        pd.Series(size if low_first else -size)[known].sort_values(kind="stable").index.to_numpy()
    )
    kept = np.zeros(len(size), dtype=bool)
    kept[order[: round(share * known.sum())]] = True
    return kept
