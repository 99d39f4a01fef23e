"""Intervals, correlations and comparisons that every analysis shares.

Three families: :func:`bootstrap` resamples persons, :func:`correlation` (and its many-at-once sibling
:func:`spearman_many`) compares two sets of numbers, and :func:`holm`, :func:`benjamini_hochberg` and
:func:`likelihood_ratio` turn fits into p-values. Nothing here knows what an item is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Method = Literal["spearman", "pearson"]

BATCH_VALUES = (
    2**22
)  # resampled values held at once (32 MB of float64), so that memory does not grow with n_boot


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval."""

    estimate: float
    low: float
    high: float
    level: float  # coverage aimed at, 0..1
    n_boot: int  # resamples drawn
    n_undefined: int = (
        0  # resamples in which the statistic was NaN; the interval rests on the others
    )


@dataclass(frozen=True)
class Correlation:
    """A correlation with its two-sided p-value and confidence interval."""

    r: float
    p: float
    low: float
    high: float
    n: int  # complete pairs it rests on
    method: Method
    n_missing: int = 0  # pairs left out because one of the two was NaN
    level: float = 0.95  # coverage of low..high


@dataclass(frozen=True)
class LikelihoodRatio:
    """A likelihood-ratio test of two nested models."""

    chi2: float  # twice the gain in log-likelihood (nats)
    df: int
    p: float


def bootstrap(
    statistic: Callable[..., Any],
    *responses: pd.DataFrame,
    rng: np.random.Generator,
    n_boot: int = 2000,
    level: float = 0.95,
    method: Literal["percentile", "BCa"] = "percentile",
    vectorized: bool = True,
) -> Interval:
    """Return a statistic of responses with its bootstrap interval over persons.

    Persons (rows) are drawn with replacement; several frames (people and models, say) are resampled independently.
    The work is done by :func:`scipy.stats.bootstrap`, which resamples row numbers rather than values, so that each
    person keeps the whole of their answers.

    Parameters
    ----------
    statistic : callable
        Takes one array per frame, shape (..., n_persons, n_items), and returns shape (...): for instance
        ``lambda x: spearman_many(np.nanmean(x, axis=-2), difficulty)``. With ``vectorized=False`` it takes the
        resampled frames themselves (persons renumbered from 0) and returns a number: any function of a responses
        frame will do, at the price of one call a resample.
    *responses : DataFrame, shape (n_persons, n_items)
        One frame or several; the rows are resampled, whatever the columns hold.
    rng : Generator
        Source of the resamples.
    n_boot : int
        Number of resamples.
    level : float
        Coverage of the interval, between 0 and 1.
    method : {"percentile", "BCa"}
        Percentiles of the resampled statistic, or bias-corrected and accelerated (Efron 1987).
    vectorized : bool
        Whether ``statistic`` takes stacks of arrays (fast) or one frame at a time.

    Raises
    ------
    ValueError
        If a frame has fewer than two persons, or the statistic is undefined (NaN) in every resample.

    Notes
    -----
    Resamples in which the statistic is NaN are counted in ``n_undefined`` and left out of the interval.
    """
    sizes = [len(frame) for frame in responses]
    if not sizes or min(sizes) < 2:
        raise ValueError(
            f"a bootstrap over persons needs at least two of them in each frame, and has {sizes}"
        )
    options: dict[str, Any] = {
        "confidence_level": level,
        "method": method,
        "vectorized": vectorized,
        "axis": -1,
        "rng": rng,
        "batch": max(1, BATCH_VALUES // sum(frame.size for frame in responses)),
    }
    on_rows = _statistic_of_rows(statistic, responses, vectorized)
    rows = [np.arange(size) for size in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", stats.DegenerateDataWarning
        )  # undefined resamples are counted below
        result = stats.bootstrap(rows, on_rows, n_resamples=n_boot, **options)
        undefined = np.isnan(result.bootstrap_distribution)
        if undefined.all():
            raise ValueError(
                "the statistic is undefined (NaN) in every resample; look at it on the frame itself first"
            )
        if undefined.any():
            result.bootstrap_distribution = result.bootstrap_distribution[~undefined]
            result = stats.bootstrap(
                rows, on_rows, n_resamples=0, bootstrap_result=result, **options
            )
    estimate = float(
        statistic(*(frame.to_numpy(np.float64) if vectorized else frame for frame in responses))
    )
    low, high = result.confidence_interval
    return Interval(estimate, float(low), float(high), level, n_boot, int(undefined.sum()))


def _statistic_of_rows(
    statistic: Callable[..., Any], responses: tuple[pd.DataFrame, ...], vectorized: bool
) -> Callable[..., Any]:
    """Turn a statistic of responses into a statistic of row numbers, the form that scipy resamples."""
    if vectorized:
        values = [frame.to_numpy(np.float64) for frame in responses]

        def of_stacks(*rows: NDArray[np.intp], axis: int) -> Any:
            return statistic(*(value[row] for value, row in zip(values, rows, strict=True)))

        return of_stacks

    def of_frames(*rows: NDArray[np.intp]) -> Any:
        return statistic(
            *(
                frame.iloc[row].reset_index(drop=True)
                for frame, row in zip(responses, rows, strict=True)
            )
        )

    return of_frames


def correlation(
    x: ArrayLike, y: ArrayLike, method: Method = "spearman", *, level: float = 0.95
) -> Correlation:
    """Return the correlation of two sets of numbers, with p-value and confidence interval.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        Paired values; pairs with a NaN are left out and counted. Two Series must carry the same labels, in any order.
    method : {"spearman", "pearson"}
        Ranks (ties share the mean rank) or values.
    level : float
        Coverage of the interval.

    Returns
    -------
    Correlation
        p-values are scipy's (t distribution with n - 2 degrees of freedom). Intervals are Fisher's,
        tanh(artanh r ± z s) with s² = 1/(n - 3) for Pearson and (1 + r²/2)/(n - 3) for Spearman (Bonett & Wright
        2000); NaN where n < 4.

    Raises
    ------
    ValueError
        If the lengths or the labels differ, or fewer than three complete pairs are left.

    Warns
    -----
    RuntimeWarning
        If one of the two is constant: r is then undefined, and r, p and the interval are NaN.
    """
    a, b, n_missing = _complete_pairs(x, y)
    constant = [name for name, values in (("x", a), ("y", b)) if np.ptp(values) == 0]
    if constant:
        warnings.warn(
            f"{' and '.join(constant)} {'are' if len(constant) > 1 else 'is'} constant over the {len(a)} pairs, "
            "so the correlation is undefined (NaN)",
            RuntimeWarning,
            stacklevel=2,
        )
        return Correlation(np.nan, np.nan, np.nan, np.nan, len(a), method, n_missing, level)
    r, p = _function(method)(a, b)
    low, high = _fisher_interval(float(r), len(a), method, level)
    return Correlation(float(r), float(p), low, high, len(a), method, n_missing, level)


def _function(method: Method) -> Callable[..., Any]:
    if method not in ("spearman", "pearson"):
        raise ValueError(
            f"correlation method {method!r} is unknown; choose 'spearman' or 'pearson'"
        )
    return stats.spearmanr if method == "spearman" else stats.pearsonr


def _complete_pairs(
    x: ArrayLike, y: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the pairs without NaN and the number of those left out; Series are matched by label."""
    if isinstance(x, pd.Series) and isinstance(y, pd.Series):
        odd = x.index.symmetric_difference(y.index)
        if len(odd):
            raise ValueError(
                f"x and y do not carry the same labels ({list(odd[:5])} stand in one only); "
                "choose the common ones first, or pass arrays to pair by position"
            )
        y = y.reindex(x.index)
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(
            f"x and y must be vectors of one length, and have shapes {a.shape} and {b.shape}"
        )
    complete = ~(np.isnan(a) | np.isnan(b))
    if complete.sum() < 3:
        raise ValueError(
            f"a correlation needs at least 3 complete pairs, and {complete.sum()} of {len(a)} are complete"
        )
    return a[complete], b[complete], int((~complete).sum())


def _fisher_interval(r: float, n: int, method: Method, level: float) -> tuple[float, float]:
    if n < 4:
        return np.nan, np.nan
    if abs(r) >= 1:
        return r, r
    variance = (1 + r**2 / 2 if method == "spearman" else 1) / (n - 3)
    half_width = stats.norm.ppf((1 + level) / 2) * np.sqrt(variance)
    return float(np.tanh(np.arctanh(r) - half_width)), float(np.tanh(np.arctanh(r) + half_width))


def spearman_many(X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Return the Spearman correlation of every row of X with y, ties sharing the mean rank.

    Parameters
    ----------
    X : array_like, shape (..., n)
        One set of values a row: thousands of bootstrap or random draws.
    y : array_like, shape (n,) or (..., n)
        What each row is compared with.

    Returns
    -------
    ndarray, shape (...)
        NaN where a row is constant or holds a NaN (no pair is left out here: :func:`correlation` does that).
    """
    a, b = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape[-1:] != b.shape[-1:] or a.shape[-1] < 2:
        raise ValueError(
            f"the rows of X and y must have one length of at least 2; shapes are {a.shape} and {b.shape}"
        )
    a, b = (stats.rankdata(values, axis=-1, nan_policy="propagate") for values in (a, b))
    middle = (
        a.shape[-1] + 1
    ) / 2  # the mean rank, with or without ties: exact, so constant rows give exactly zero
    a, b = a - middle, b - middle
    norms = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norms > 0, (a * b).sum(axis=-1) / norms, np.nan)


def permutation_p(
    x: ArrayLike,
    y: ArrayLike,
    method: Method = "spearman",
    *,
    rng: np.random.Generator,
    n_permutations: int = 9999,
) -> float:
    """Return the two-sided p-value of a correlation by permuting the pairs: twice the smaller tail.

    A tail is exact where n! <= ``n_permutations``, else (count + 1)/(n_permutations + 1) over random permutations
    (Phipson & Smyth 2010), by :class:`scipy.stats.PermutationMethod`. Pairs with a NaN are left out, and a constant x
    or y gives NaN, as in :func:`correlation`.
    """
    a, b, _ = _complete_pairs(x, y)
    _function(method)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    if (
        method == "spearman"
    ):  # Spearman's is Pearson's on ranks, and permuting ranks is permuting pairs
        a, b = stats.rankdata(a), stats.rankdata(b)
    return float(
        stats.pearsonr(
            a, b, method=stats.PermutationMethod(n_resamples=n_permutations, rng=rng)
        ).pvalue
    )


def holm(p: ArrayLike) -> Any:
    """Return p-values adjusted by Holm (1979), which bounds the chance of any false finding.

    NaN stay NaN and are not counted as tests; a Series comes back as a Series with its labels.

    >>> holm([0.01, 0.02, 0.03])
    array([0.03, 0.04, 0.04])
    """
    # statsmodels' multipletests collects the whole process's garbage at each call, which a selection makes hundreds of
    return _adjusted(p, _holm)


def benjamini_hochberg(p: ArrayLike) -> Any:
    """Return p-values adjusted by Benjamini & Hochberg (1995), which bounds the share of false findings.

    NaN stay NaN and are not counted as tests; a Series comes back as a Series with its labels.

    >>> benjamini_hochberg([0.01, 0.02, 0.03])
    array([0.03, 0.03, 0.03])
    """
    return _adjusted(p, stats.false_discovery_control)


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepped, 1)[np.argsort(order)]


def _adjusted(p: ArrayLike, method: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Any:
    values = np.asarray(p, dtype=np.float64)
    if (values < 0).any() or (values > 1).any():
        raise ValueError(
            f"p-values lie between 0 and 1; these run from {np.nanmin(values)} to {np.nanmax(values)}"
        )
    adjusted = np.full(values.shape, np.nan)
    defined = ~np.isnan(values)
    if defined.any():
        adjusted[defined] = method(values[defined])
    return pd.Series(adjusted, index=p.index, name=p.name) if isinstance(p, pd.Series) else adjusted


def likelihood_ratio(loglik0: float, loglik1: float, df: int) -> LikelihoodRatio:
    """Return the likelihood-ratio test of a model (0) nested in a larger one (1): chi2 = 2 (loglik1 - loglik0).

    Parameters
    ----------
    loglik0, loglik1 : float
        Log-likelihoods in nats of the smaller and the larger model.
    df : int
        Parameters that the larger model has more.

    Warns
    -----
    RuntimeWarning
        If the larger model fits worse: it cannot at its optimum, so one of the two has not converged. The negative
        chi2 is returned as it is, with p = 1.
    """
    if df < 1:
        raise ValueError(
            f"the larger model needs at least one parameter more, and df is {df}; are the models swapped?"
        )
    chi2 = 2 * (float(loglik1) - float(loglik0))
    if chi2 < 0:
        warnings.warn(
            f"the larger model fits worse (log-likelihood {loglik1:.4f} against {loglik0:.4f}): one of the two has not "
            "converged, or they are swapped; fit with a smaller tolerance",
            RuntimeWarning,
            stacklevel=2,
        )
    return LikelihoodRatio(chi2, int(df), float(stats.chi2.sf(chi2, df)))
