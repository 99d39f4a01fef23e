"""Calibration: is a model as often right as it is sure?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm import stats
from psychlm.confidence.scores import Values, confidences, grades


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error, and the reliability diagram it sums up."""

    error: stats.Interval  # mean over items of |accuracy - confidence| of their bin
    accuracy: float
    confidence: float  # mean confidence in the choice picked
    bins: pd.DataFrame  # low, high, n, confidence, accuracy; NaN where a bin is empty
    n_items: int


def calibration(
    scores: pd.DataFrame,
    answer: pd.Series | ArrayLike,
    *,
    rng: np.random.Generator,
    n_bins: int = 10,
    n_boot: int = 2000,
    level: float = 0.95,
) -> Calibration:
    """Return the expected calibration error of the choices picked (Guo et al. 2017, eq. 5), in bins of one width.

    Parameters
    ----------
    scores : DataFrame, shape (n_items, most choices)
        Natural logarithms; NaN where an item has fewer choices.
    answer : Series by item, or array_like
        The place of the right choice.
    n_bins : int
        Bins (low, high] between 0 and 1.

    Notes
    -----
    The error is biased upwards in small samples, resamples more so: its interval may lie above a perfectly calibrated
    model's zero.

    Raises
    ------
    ValueError
        If there is no bin.
    """
    if n_bins < 1:
        raise ValueError(f"n_bins is {n_bins}; calibration needs one bin at least")
    sure = confidences(scores).max(axis=1).to_numpy()
    right = grades(scores, answer).to_numpy()
    bin_of = _bin(sure, n_bins)
    n = np.bincount(bin_of, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        table = pd.DataFrame(
            {
                "low": np.arange(n_bins) / n_bins,
                "high": np.arange(1, n_bins + 1) / n_bins,
                "n": n,
                "confidence": np.bincount(bin_of, sure, n_bins) / n,
                "accuracy": np.bincount(bin_of, right, n_bins) / n,
            }
        )
    gaps = pd.DataFrame(
        np.where(bin_of[:, None] == np.arange(n_bins), (right - sure)[:, None], 0.0)
    )
    error = stats.bootstrap(_error, gaps, rng=rng, n_boot=n_boot, level=level)
    return Calibration(
        error, float(right.mean()), float(sure.mean()), table.rename_axis("bin"), len(sure)
    )


def _bin(sure: Values, n_bins: int) -> np.ndarray:
    return np.searchsorted(
        np.linspace(0, 1, n_bins + 1)[1:-1], sure
    )  # an edge belongs to the bin below it


def _error(gaps: Values) -> Values:
    """Return the error of gaps (..., n_items, n_bins): accuracy less confidence, in the column of the item's bin."""
    return np.abs(gaps.mean(axis=-2)).sum(axis=-1)
