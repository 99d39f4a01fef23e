"""Prior bias: does a model prefer one choice to another where no choice is right?

Shen & Kejriwal (2022) call the spread of the confidences on such an instance its *prior bias* (Definition 1), and a
model free of it if a spread of zero cannot be rejected. Taken at its word no model is: confidences are real numbers
and never quite equal, and even a model that answers by lot spreads them. Nor can permuting one instance's choices say
anything about its spread, which stays the same.

What can be tested is whether the preference is the model's *own*: whether the same choice is preferred when the
instance is presented again, under another question to which it is no answer either. If nothing about a choice
matters, the confidences of an instance are exchangeable among its choices, in each presentation apart; so permuting
them there, presentation by presentation, is the null distribution of any measure of agreement between presentations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm import frames, stats
from psychlm.confidence.scores import Values, check_scores, confidences, n_choices

TOLERANCE = 1e-12  # two permutations that give one value differ by rounding


@dataclass(frozen=True)
class PriorBias:
    """The spread of confidences where no choice is right, and how much of it returns with the same choices."""

    instances: pd.DataFrame  # by item: spread, relative_spread, lasting_variance, p
    spread: stats.Interval  # mean over instances of the standard deviation of the confidences
    relative_spread: stats.Interval  # the same, 1 where all confidence lies in one choice
    lasting_share: (
        stats.Interval | None
    )  # share of the variance that returns in every presentation; None for one
    p: float  # of the lasting variance, over the whole benchmark; NaN for one presentation
    n_items: int
    n_presentations: int
    n_permutations: int


@dataclass(frozen=True)
class Association:
    """How confidences go with a feature of the choices, within items."""

    r: stats.Interval  # correlation over all choices, both centred within their items
    p: float  # two-sided, by permutation within items
    n_items: int
    n_permutations: int


def prior_bias(
    *presentations: pd.DataFrame,
    rng: np.random.Generator,
    n_permutations: int = 999,
    n_boot: int = 2000,
    level: float = 0.95,
) -> PriorBias:
    """Measure the prior bias of every instance and of a benchmark.

    Parameters
    ----------
    *presentations : DataFrame, shape (n_items, most choices)
        Scores of the same choices, in the same order (``confusion.in_source_order``), under prompts to which none is
        right: no question, or wrong ones drawn with several seeds. One frame gives spreads only. Shuffle
        each: in one order, a liking for a place cannot be told from one for what stands there.
    rng : Generator
        Of permutations and bootstrap resamples.
    n_permutations, n_boot : int
        Permutations of the test, and resamples of instances for the intervals.

    Returns
    -------
    PriorBias
        With c the confidences of an instance less 1/n, over n choices and K presentations: ``spread`` is the mean over
        presentations of sqrt(sum c²/n); ``lasting_variance`` the mean over pairs of presentations of sum c c'/n, which
        estimates without bias the variance of what the presentations share (0 on average under the null, and negative
        as often as not); ``lasting_share`` is its sum over that of the variances: 0 for a model that prefers nothing, 1
        for one that does not read the question. An item's ``p`` rests on at most (n!)^(K-1) permutations.

    Raises
    ------
    FrameError
        If the presentations differ in their items or numbers of choices.
    """
    sure = _together(presentations)
    n, k = n_choices(sure[0]), len(sure)
    centred = np.stack([np.nan_to_num(frame.to_numpy() - 1 / n[:, None]) for frame in sure])
    variance = (centred**2).sum(axis=2) / n
    spread = np.sqrt(variance).mean(axis=0)
    columns = {"spread": spread, "relative_spread": spread / np.sqrt((n - 1) / n**2)}
    lasting, p_items, p = np.full(len(n), np.nan), np.full(len(n), np.nan), float("nan")
    if k > 1:
        lasting = _lasting(centred, variance, n)
        p_items, p = _permute(centred, n, lasting, rng, n_permutations)
    instances = pd.DataFrame(
        columns | {"lasting_variance": lasting, "p": p_items}, index=sure[0].index
    )
    intervals = [
        stats.bootstrap(_mean, instances[[name]], rng=rng, n_boot=n_boot, level=level)
        for name in ("spread", "relative_spread")
    ]
    share = None
    if k > 1 and variance.any():
        parts = pd.DataFrame({"lasting": lasting, "variance": variance.mean(axis=0)})
        share = stats.bootstrap(_ratio, parts, rng=rng, n_boot=n_boot, level=level)
    return PriorBias(
        instances, intervals[0], intervals[1], share, p, len(n), k, n_permutations if k > 1 else 0
    )


def _together(presentations: tuple[pd.DataFrame, ...]) -> list[pd.DataFrame]:
    if not presentations:
        raise frames.FrameError("prior bias needs the scores of one presentation at least")
    sure = [confidences(scores) for scores in presentations]
    for frame in sure[1:]:
        if not frame.index.equals(sure[0].index) or not frame.notna().equals(sure[0].notna()):
            raise frames.FrameError(
                "the presentations differ in their items or numbers of choices; put their choices in the source's "
                "order with confusion.in_source_order, and leave out probes that add choices"
            )
    return sure


def _mean(stack: Values) -> Values:
    return stack.mean(axis=(-2, -1))


def _ratio(stack: Values) -> Values:
    total = stack.sum(axis=-2)
    return total[..., 0] / total[..., 1]


def _lasting(centred: Values, variance: Values, n: NDArray[np.intp]) -> Values:
    """Return the mean over pairs of presentations of the covariance of their confidences, by item."""
    k = len(centred)
    return ((centred.sum(axis=0) ** 2).sum(axis=1) / n - variance.sum(axis=0)) / (k * (k - 1))


def _permute(
    centred: Values,
    n: NDArray[np.intp],
    observed: Values,
    rng: np.random.Generator,
    n_permutations: int,
) -> tuple[Values, float]:
    """Return p-values of the lasting variance, by item and of their mean (Phipson & Smyth 2010)."""
    variance = (centred**2).sum(axis=2) / n
    as_high, mean_as_high = np.zeros(len(n)), 0
    for _ in range(n_permutations):
        moved = np.concatenate(
            [centred[:1], shuffle_within(centred[1:], n, rng)]
        )  # the first may stay where it is
        drawn = _lasting(moved, variance, n)
        as_high += drawn >= observed - TOLERANCE
        mean_as_high += drawn.mean() >= observed.mean() - TOLERANCE
    return (1 + as_high) / (1 + n_permutations), (1 + mean_as_high) / (1 + n_permutations)


def shuffle_within(values: Values, n: NDArray[np.intp], rng: np.random.Generator) -> Values:
    """Permute the first n entries of every row, independently; shape (..., n_items, most choices)."""
    keys = np.where(np.arange(values.shape[-1]) < n[:, None], rng.random(values.shape), 2.0)
    return np.take_along_axis(values, keys.argsort(axis=-1), axis=-1)


def association(
    scores: pd.DataFrame,
    feature: pd.DataFrame,
    *,
    rng: np.random.Generator,
    n_permutations: int = 999,
    n_boot: int = 2000,
    level: float = 0.95,
) -> Association:
    """Test whether confidence goes with a feature of the choices: their length, place, or being the pseudo-correct one.

    Under the null no choice of an item differs from another for what the feature measures, so its confidences are
    exchangeable among its choices; they are permuted within items.

    Parameters
    ----------
    scores, feature : DataFrame, shape (n_items, most choices)
        The choices in one order in both. Average the presentations of an item before: they are not independent.

    Returns
    -------
    Association
        r is the correlation of confidence and feature over all choices, each centred within its item.

    Raises
    ------
    FrameError
        If the feature lacks an item or a choice.
    ValueError
        If the feature, or the confidence, is the same for all choices of every item.
    """
    sure = confidences(check_scores(scores))
    n, there = n_choices(sure), sure.notna().to_numpy()
    values = feature.reindex(index=sure.index, columns=sure.columns).to_numpy(np.float64)
    if np.isnan(values[there]).any():
        raise frames.FrameError(
            "the feature lacks items or choices that have scores; give a value for each choice"
        )
    values = np.where(there, values, 0.0)
    x = np.where(there, values - values.sum(axis=1, keepdims=True) / n[:, None], 0.0)
    c = np.nan_to_num(sure.to_numpy() - 1 / n[:, None])
    scale = np.sqrt((x**2).sum() * (c**2).sum())
    if scale == 0:
        raise ValueError(
            "the feature or the confidence is the same for all choices of every item: nothing to correlate"
        )
    observed = abs((x * c).sum())
    drawn = np.array([abs((x * shuffle_within(c, n, rng)).sum()) for _ in range(n_permutations)])
    sums = pd.DataFrame(
        {"xc": (x * c).sum(axis=1), "xx": (x**2).sum(axis=1), "cc": (c**2).sum(axis=1)}
    )
    r = stats.bootstrap(_within_r, sums, rng=rng, n_boot=n_boot, level=level)
    return Association(
        r,
        float((1 + (drawn >= observed - TOLERANCE).sum()) / (1 + n_permutations)),
        len(n),
        n_permutations,
    )


def _within_r(stack: Values) -> Values:
    total = stack.sum(axis=-2)
    return total[..., 0] / np.sqrt(total[..., 1] * total[..., 2])
