"""Intervals, correlations and tests that every analysis shares.

:func:`bootstrap` resamples persons, :func:`correlation` and :func:`spearman_many` compare two sets
of numbers, and :func:`holm` and :func:`benjamini_hochberg` adjust p-values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike, NDArray

MAX_NEWTON_STEPS = 30  # of a regression; separated answers need infinitely many
MAX_HALVINGS = 20  # of a step
NEWTON_TOLERANCE = 1e-7
LIMIT_GAIN = 1e-6  # nats, of the last step to an estimate that is infinite
SMALLEST = 1e-300  # of a probability
BATCH_VALUES = 2**22  # resampled values held at once (32 MB), so memory does not grow with n_boot
MAX_EXACT = 9  # pairs up to which the p-value of a rank correlation counts all permutations


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval."""

    estimate: float
    low: float
    high: float
    level: float  # nominal coverage, 0..1
    n_boot: int  # resamples drawn
    n_undefined: int = 0  # resamples in which the statistic was NaN; left out of the interval


@dataclass(frozen=True)
class Correlation:
    """A correlation with its two-sided p-value and confidence interval."""

    r: float
    p: float
    low: float
    high: float
    n: int  # complete pairs
    n_missing: int = 0  # pairs left out because one of the two was NaN


def bootstrap(
    statistic: Callable[..., Any],
    *responses: pd.DataFrame,
    rng: np.random.Generator,
    n_boot: int = 2000,
    level: float = 0.95,
    method: Literal["percentile", "BCa"] = "percentile",
) -> Interval:
    """Return a statistic of responses with its bootstrap interval over persons (rows).

    Parameters
    ----------
    statistic : callable
        Takes one array per frame, shape (..., n_persons, n_items), and returns shape (...): for
        instance ``lambda x: spearman_many(np.nanmean(x, axis=-2), difficulty)``.
    *responses : DataFrame, shape (n_persons, n_items)
        One frame, or several (people and models, say) that are resampled independently. Those of
        the same columns get the order of the first frame's.
    rng, n_boot, level : Generator, int and float
        Source and number of the resamples; coverage of the interval.
    method : {"percentile", "BCa"}
        Percentiles of the resampled statistic, or bias-corrected and accelerated (Efron 1987).

    Examples
    --------
    >>> responses = pd.DataFrame({"q1": [0, 1, 1, 1], "q2": [0, 0, 1, 1]}, dtype=float)
    >>> rng = np.random.default_rng(0)
    >>> interval = bootstrap(lambda x: x.mean(axis=(-2, -1)), responses, rng=rng, n_boot=99)
    >>> interval.estimate, bool(interval.low < 0.625 < interval.high)
    (0.625, True)
    """
    _check_level(level)
    responses = tuple(_same_columns(responses))
    sizes = [len(frame) for frame in responses]
    if not sizes or min(sizes) < 2:
        raise ValueError(f"a bootstrap needs at least two persons in each frame, and has {sizes}")
    values = [frame.to_numpy(np.float64) for frame in responses]

    def of_rows(*rows: NDArray[np.intp], axis: int = -1) -> Any:
        """Return the statistic as a function of row numbers, the form that scipy resamples."""
        return statistic(*(value[row] for value, row in zip(values, rows, strict=True)))

    options: dict[str, Any] = {
        "n_resamples": n_boot,
        "confidence_level": level,
        "method": method,
        "vectorized": True,
        "axis": -1,
        "rng": rng,
        "batch": max(1, BATCH_VALUES // sum(frame.size for frame in responses)),
    }
    rows = [np.arange(size) for size in sizes]
    with warnings.catch_warnings():
        # statistics that are undefined are counted
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        result = scipy.stats.bootstrap(rows, of_rows, **options)
        undefined = np.isnan(result.bootstrap_distribution)
        if undefined.all():
            raise ValueError("the statistic is undefined (NaN) in every resample")
        if undefined.any():
            # Compute the interval again from the resamples in which the statistic is defined.
            result.bootstrap_distribution = result.bootstrap_distribution[~undefined]
            options |= {"n_resamples": 0, "bootstrap_result": result}
            result = scipy.stats.bootstrap(rows, of_rows, **options)
    estimate = float(statistic(*values))
    low, high = (float(limit) for limit in result.confidence_interval)
    return Interval(estimate, low, high, level, n_boot, int(undefined.sum()))


def _check_level(level: float) -> None:
    """Refuse a coverage that is none, as 95."""
    if not 0 < level < 1:
        raise ValueError(f"level is a coverage between 0 and 1, as .95; it is {level}")


def _same_columns(frames: Sequence[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield frames with their columns in the order of the first frame, if they are the same."""
    first = frames[0].columns if frames else pd.Index([])
    for frame in frames:
        shared = first.intersection(frame.columns)
        named = not isinstance(first, pd.RangeIndex)
        if len(shared) == len(first) == len(frame.columns) and first.is_unique:
            frame = frame[list(first)]
        elif len(shared) and named:
            only = first.symmetric_difference(frame.columns)
            raise ValueError(
                f"columns {list(only[:5])} are in one of the frames only; choose the common ones"
            )
        yield frame


def draw_groups(groups: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return row numbers of one bootstrap sample of whole groups, given the group of each row.

    As many groups (versions of one language model, items about one text) are drawn with replacement
    as there are, and all their rows.

    >>> rows = draw_groups(["bert", "bert", "t5"], np.random.default_rng(0))
    >>> set(rows.tolist()) in ({0, 1}, {2}, {0, 1, 2})
    True
    """
    _, codes, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    rows = np.argsort(codes, kind="stable")  # those of each group side by side
    begins = np.cumsum(sizes) - sizes
    drawn = rng.integers(len(sizes), size=len(sizes))
    # The k-th row of a drawn group is the k-th after the group's first.
    n_drawn = sizes[drawn]
    k = np.arange(n_drawn.sum()) - np.repeat(np.cumsum(n_drawn) - n_drawn, n_drawn)
    return rows[np.repeat(begins[drawn], n_drawn) + k]


def correlation(
    x: ArrayLike,
    y: ArrayLike,
    method: Literal["spearman", "pearson"] = "spearman",
    *,
    level: float = 0.95,
) -> Correlation:
    """Return the correlation of two sets of numbers, with p-value and confidence interval.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        Paired values; pairs with a NaN are left out and counted. Two Series must carry the same
        labels, in any order.
    method : {"spearman", "pearson"}
        Correlation of ranks (ties share the mean rank) or of values.
    level : float
        Coverage of the interval.

    Returns
    -------
    Correlation
        p-values are those of the t distribution with n - 2 degrees of freedom; of Spearman's with
        fewer than 10 pairs exact, from all permutations of one side (as R's ``cor.test``).
        Intervals are Fisher's, tanh(artanh r ± z s) with s² = 1/(n - 3) for Pearson and
        (1 + r²/2)/(n - 3) for Spearman (Bonett & Wright 2000); NaN where n < 4. Where one of the
        two is constant all are NaN, with a warning.

    Examples
    --------
    >>> round(correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]).r, 3)
    0.8
    """
    _check_level(level)
    if method not in ("spearman", "pearson"):
        raise ValueError(f"method {method!r} is unknown; choose 'spearman' or 'pearson'")
    if isinstance(x, pd.Series) and isinstance(y, pd.Series):
        labels = x.index.symmetric_difference(y.index)
        if len(labels):
            raise ValueError(
                f"x and y do not carry the same labels ({list(labels[:5])} are in one); choose "
                "the common ones, or pass arrays"
            )
        y = y.reindex(x.index)
    a = np.asarray(x, dtype=np.float64)
    b = np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"x and y must be vectors of one length; shapes are {a.shape}, {b.shape}")
    complete = ~(np.isnan(a) | np.isnan(b))
    a = a[complete]
    b = b[complete]
    n = int(complete.sum())
    if n < 3:
        raise ValueError(f"3 complete pairs are needed; {n} of {len(complete)} are complete")
    n_missing = len(complete) - n
    if method == "pearson" and not np.isfinite([a, b]).all():
        raise ValueError("x or y is infinite at some place; make it NaN, or choose 'spearman'")
    constant = [name for name, values in (("x", a), ("y", b)) if np.ptp(values) == 0]
    if constant:
        message = f"{' and '.join(constant)}: constant, so the correlation is undefined (NaN)"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return Correlation(np.nan, np.nan, np.nan, np.nan, n, n_missing)
    result = scipy.stats.spearmanr(a, b) if method == "spearman" else scipy.stats.pearsonr(a, b)
    r = float(result.statistic)
    p = float(result.pvalue)
    if method == "spearman" and n <= MAX_EXACT:
        # The share of orders of b whose rank correlation with a is at least as far from 0.
        ranks = [scipy.stats.rankdata(values) - (n + 1) / 2 for values in (a, b)]
        products = np.abs(ranks[1][_orders(n)] @ ranks[0])
        p = float((products >= np.abs(ranks[0] @ ranks[1]) - 1e-9).mean())
    # Fisher's interval on the artanh scale; a point where r is -1 or 1.
    low = high = r if abs(r) >= 1 else np.nan
    if n >= 4 and abs(r) < 1:
        variance = (1 + r**2 / 2 if method == "spearman" else 1) / (n - 3)
        half_width = scipy.stats.norm.ppf((1 + level) / 2) * np.sqrt(variance)
        low, high = (float(np.tanh(np.arctanh(r) + sign * half_width)) for sign in (-1, 1))
    return Correlation(r, p, low, high, n, n_missing)


@cache
def _orders(n: int) -> NDArray[np.int8]:
    """Return all orders of n things, shape (n!, n)."""
    return np.array(list(permutations(range(n))), dtype=np.int8)


def spearman_many(X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Return the Spearman correlation of every row of X with y, ties sharing the mean rank.

    X is (..., n), y (n,) or (..., n), the result (...): NaN where a row is constant or holds a NaN.

    >>> spearman_many([[1, 2, 3], [3, 2, 1]], [1, 2, 3])
    array([ 1., -1.])
    """
    a = np.asarray(X, dtype=np.float64)
    b = np.asarray(y, dtype=np.float64)
    if a.shape[-1:] != b.shape[-1:] or a.shape[-1] < 2:
        raise ValueError(f"rows need one length of at least 2; shapes are {a.shape}, {b.shape}")
    # Subtracting the mean rank (n + 1)/2, not the computed mean, makes constant rows exactly zero.
    a, b = (
        scipy.stats.rankdata(values, axis=-1, nan_policy="propagate") - (values.shape[-1] + 1) / 2
        for values in (a, b)
    )
    norms = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norms > 0, (a * b).sum(axis=-1) / norms, np.nan)


def pairwise_covariances(
    values: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> tuple[NDArray, NDArray]:
    """Return covariances of columns among the rows that have both, and the numbers of these rows.

    NaN where fewer than two rows have both. Products of matrices, (n_columns, n_columns). A row of
    weight w counts as w rows.

    >>> pairwise_covariances(np.array([[1, 2], [2, 4], [3, np.nan]]))[0].tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    answered = (~np.isnan(values)).astype(float)
    # Deviations from the means of columns, which lose no digits in the products.
    centred = np.nan_to_num(values - np.nansum(values, axis=0) / np.maximum(answered.sum(0), 1))
    weighted = centred if weights is None else weights[:, None] * centred
    n = (answered if weights is None else weights[:, None] * answered).T @ answered
    sums = weighted.T @ answered  # of column i among the rows that have column j
    with np.errstate(divide="ignore", invalid="ignore"):
        covariances = (weighted.T @ centred - sums * sums.T / n) / (n - 1)
    return np.where(n > 1, covariances, np.nan), n


def pairwise_correlations(
    values: NDArray[np.float64], min_rows: int = 2
) -> tuple[NDArray, NDArray]:
    """Return correlations of columns among the rows that have both, and the numbers of these rows.

    NaN where fewer than ``min_rows`` rows have both, or one of the two does not vary among them.

    >>> pairwise_correlations(np.array([[1, 2], [2, 4], [3, np.nan]]))[0].round(6).min()
    np.float64(1.0)
    """
    covariances, n = pairwise_covariances(values)
    answered = (~np.isnan(values)).astype(float)
    centred = np.nan_to_num(values - np.nansum(values, axis=0) / np.maximum(n.diagonal(), 1))
    sums = centred.T @ answered
    with np.errstate(divide="ignore", invalid="ignore"):
        # The variance of column i among the rows that have column j.
        variances = ((centred**2).T @ answered - sums**2 / n) / (n - 1)
        scale = np.sqrt(variances * variances.T)
        known = (n >= min_rows) & (scale > 1e-12)
        return np.where(known, covariances / scale, np.nan), n


def cumulative_logit(
    x: NDArray, y: NDArray, count: NDArray | None = None
) -> tuple[float, NDArray, NDArray]:
    r"""Fit logit P(y >= k) = alpha_k + x b, k = 1, ..., K, by Newton's method.

    With F(k) = P(y >= k), P(y) = F(y) - F(y + 1), F(0) = 1 and F(K + 1) = 0. Of two categories this
    is logistic regression. Returned are the log-likelihood (nats; NaN of answers that are fitted
    perfectly, or all alike), b and its errors (NaN where one of b would be infinite); x is (n,
    n_predictors) without a constant, y (n,) are categories 0, 1, ..., each of which occurs, and
    ``count`` (n,) says how often a row stands.

    >>> x = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    >>> cumulative_logit(x, np.array([0, 0, 1, 0, 1, 1]))[1].round(4)  # log 4
    array([1.3863])
    """
    n_steps = int(y.max(initial=0))
    unknown = np.full(x.shape[1], np.nan)
    if not n_steps:
        return np.nan, unknown, unknown
    count = np.ones(len(y)) if count is None else count
    # Columns: an intercept of each step, then x; of the lower and the upper step of every answer.
    steps = np.eye(n_steps + 2)[:, 1:-1]
    lower = np.column_stack([steps[y], x])
    upper = np.column_stack([steps[y + 1], x])
    at_least = 1 - np.cumsum(np.bincount(y, count) / count.sum())[:-1]
    parameters = np.r_[np.log(at_least / (1 - at_least)), np.zeros(x.shape[1])]

    def curves(parameters: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        f_lower = np.where(y > 0, scipy.special.expit(lower @ parameters), 1.0)
        f_upper = np.where(y < n_steps, scipy.special.expit(upper @ parameters), 0.0)
        return f_lower, f_upper, count @ np.log(np.maximum(f_lower - f_upper, SMALLEST))

    f_lower, f_upper, loglik = curves(parameters)
    gain = np.inf
    for _ in range(MAX_NEWTON_STEPS):
        # Derivatives of log P(y) by the two linear predictors: first, and (negative) second ones.
        p = np.maximum(f_lower - f_upper, SMALLEST)
        d_lower = f_lower * (1 - f_lower) / p
        d_upper = -f_upper * (1 - f_upper) / p
        h_lower = count * (d_lower**2 - d_lower * (1 - 2 * f_lower))
        h_upper = count * (d_upper**2 - d_upper * (1 - 2 * f_upper))
        crossed = lower.T @ ((count * d_lower * d_upper)[:, None] * upper)
        information = lower.T @ (h_lower[:, None] * lower) + upper.T @ (h_upper[:, None] * upper)
        information += crossed + crossed.T
        gradient = lower.T @ (count * d_lower) + upper.T @ (count * d_upper)
        try:
            covariance = np.linalg.inv(information)
        except np.linalg.LinAlgError:
            break
        step = covariance @ gradient
        for _ in range(MAX_HALVINGS):  # until the log-likelihood does not fall
            reached = curves(parameters + step)
            if reached[2] >= loglik - 1e-9:
                break
            step = step / 2
        gain = reached[2] - loglik
        parameters = parameters + step
        f_lower, f_upper, loglik = reached
        if np.abs(step).max() < NEWTON_TOLERANCE:
            errors = np.sqrt(covariance.diagonal()[n_steps:].clip(0))
            return float(loglik), parameters[n_steps:], errors
    # A coefficient runs away: the log-likelihood has a limit, which is 0 of separated answers.
    has_limit = gain < LIMIT_GAIN and loglik < -LIMIT_GAIN
    return float(loglik) if has_limit else np.nan, unknown, unknown


def holm(p: ArrayLike) -> Any:
    """Return p-values adjusted by Holm (1979), which bounds the chance of any false finding.

    NaN stay NaN and are not counted as tests; a Series comes back as a Series with its labels.

    >>> holm([0.01, 0.02, 0.03])
    array([0.03, 0.04, 0.04])
    """

    # statsmodels' multipletests runs the garbage collector at each call: too slow in a selection.
    def step_down(values: NDArray[np.float64]) -> NDArray[np.float64]:
        order = np.argsort(values)
        stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
        return np.minimum(stepped, 1)[np.argsort(order)]

    return _adjusted(p, step_down)


def benjamini_hochberg(p: ArrayLike) -> Any:
    """Return p-values adjusted by Benjamini & Hochberg (1995), for the share of false findings.

    NaN stay NaN and are not counted as tests; a Series comes back as a Series with its labels.

    >>> benjamini_hochberg([0.01, 0.02, 0.03])
    array([0.03, 0.03, 0.03])
    """
    return _adjusted(p, scipy.stats.false_discovery_control)


CORRECTIONS: dict[str, Callable[[Any], Any]] = {"holm": holm, "bh": benjamini_hochberg}


def _adjusted(p: ArrayLike, method: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Any:
    """Apply a correction to the defined p-values, and keep the type of the input."""
    values = np.asarray(p, dtype=np.float64)
    if (values < 0).any() or (values > 1).any():
        raise ValueError(f"p-values lie between 0 and 1; found {np.nanmin(p)} to {np.nanmax(p)}")
    adjusted = np.full(values.shape, np.nan)
    defined = ~np.isnan(values)
    if defined.any():
        adjusted[defined] = method(values[defined])
    return pd.Series(adjusted, index=p.index, name=p.name) if isinstance(p, pd.Series) else adjusted
