"""How well a test measures as a whole: alpha, KR-20, split halves, the standard error of measurement."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from psychlm.ctt.pairs import Array, pair_counts, several_items
from psychlm.frames import FrameError


def _covariances(answers: pd.DataFrame, ddof: int = 1) -> Array:
    """Return pairwise covariances of items, shape (n_items, n_items); their sum is the variance of the sum score."""
    n, right, both = pair_counts(answers)
    if (n <= ddof).any():
        one, other = np.argwhere(n <= ddof)[0]
        raise FrameError(
            f"items {answers.columns[one]!r} and {answers.columns[other]!r} were both answered by {n[one, other]:.0f} "
            f"persons, and a covariance needs {ddof + 1}; leave one of them out"
        )
    return (both - right * right.T / n) / (n - ddof)


def _alpha(covariances: Array) -> float:
    n_items, total = len(covariances), covariances.sum()
    if total <= 1e-12:
        raise FrameError(
            "the total score has no variance, so reliability is undefined; persons must differ"
        )
    return float(n_items / (n_items - 1) * (1 - np.trace(covariances) / total))


def cronbach_alpha(responses: pd.DataFrame) -> float:
    """Return Cronbach's (1951) alpha, k/(k - 1) (1 - Σᵢ sᵢ² / s²), from pairwise covariances.

    s² is the sum of all covariances, the variance of the sum score. Items that everyone answered alike stay in, as
    items without variance (R's ``psych`` drops them: so does ``frames.drop_constant``).

    Raises
    ------
    FrameError
        If there are fewer than two items, or the total score has no variance.
    """
    return _alpha(_covariances(several_items(responses)))


def kr20(responses: pd.DataFrame) -> float:
    """Return Kuder & Richardson's (1937) formula 20, k/(k - 1) (1 - Σᵢ pᵢ qᵢ / σ²), with population variances.

    It equals :func:`cronbach_alpha` where responses are complete: the denominators n and n - 1 cancel. With missing
    responses, whose numbers differ from pair to pair, the two part slightly.
    """
    return _alpha(_covariances(several_items(responses), ddof=0))


def alpha_if_deleted(responses: pd.DataFrame) -> pd.Series:
    """Return Cronbach's alpha of the test without each item in turn (at least three items)."""
    answers = several_items(responses, 3)
    covariances = _covariances(answers)
    own, n_items = np.diag(covariances), len(covariances)
    total = covariances.sum() - 2 * covariances.sum(axis=0) + own
    with np.errstate(invalid="ignore", divide="ignore"):
        alpha = (
            (n_items - 1)
            / (n_items - 2)
            * (1 - (own.sum() - own) / np.where(total > 1e-12, total, np.nan))
        )
    return pd.Series(alpha, index=answers.columns, name="alpha_if_deleted")


def split_half(
    responses: pd.DataFrame,
    halves: Literal["odd-even", "random"] = "odd-even",
    *,
    n_splits: int = 1000,
    rng: np.random.Generator | None = None,
) -> float:
    """Return split-half reliability, stepped up to the whole test by Spearman-Brown: 2r/(1 + r).

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    halves : {"odd-even", "random"}
        Items 1, 3, 5 ... against 2, 4, 6 ... in the order of the columns, or the mean of the stepped-up values over
        random halves (of an odd number of items one half has one more).
    n_splits : int
        Random halves to draw.
    rng : Generator
        Source of the random halves; required for them.

    Raises
    ------
    FrameError
        If there are fewer than two items, or a half has no variance.

    Notes
    -----
    r is computed from the pairwise covariances C of the items: with h = 1 for the items of one half and g = 1 - h,
    r = h'Cg / √(h'Ch g'Cg), the correlation of the halves' sum scores where responses are complete.
    """
    answers = several_items(responses)
    n_items = answers.shape[1]
    first = (np.arange(n_items)[None] % 2 == 0).astype(np.float64)
    if halves == "random":
        if rng is None:
            raise ValueError("random halves need a generator: rng=np.random.default_rng(seed)")
        first = rng.permuted(np.repeat(first, n_splits, axis=0), axis=1)
    elif halves != "odd-even":
        raise ValueError(f"halves={halves!r} is unknown; choose 'odd-even' or 'random'")
    covariances, second = _covariances(answers), 1 - first
    one, other = (((half @ covariances) * half).sum(axis=1) for half in (first, second))
    if min(one.min(), other.min()) <= 1e-12:
        raise FrameError(
            "a half of the test has no variance, so its reliability is undefined; drop constant items"
        )
    r = ((first @ covariances) * second).sum(axis=1) / np.sqrt(one * other)
    return float(np.mean(2 * r / (1 + r)))


def standard_error_of_measurement(
    responses: pd.DataFrame, reliability: float | None = None
) -> float:
    """Return s √(1 - reliability) in points of the sum score; reliability is Cronbach's alpha unless given.

    s is the standard deviation of the sum score, from pairwise covariances.
    """
    covariances = _covariances(several_items(responses))
    if reliability is None:
        reliability = _alpha(covariances)
    if not reliability <= 1:
        raise ValueError(f"a reliability is at most 1, and this one is {reliability}")
    return float(np.sqrt(covariances.sum() * (1 - reliability)))
