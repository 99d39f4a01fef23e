"""Choice paralysis: does confidence in the right choice fall as more choices are offered? And does the answer suffer?

More choices lower the confidence in each by arithmetic: confidences sum to 1. Definition 2 of Shen & Kejriwal (2022)
counts that as paralysis. Here the drop is split into arithmetic and a change of mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats

from psychlm import frames, stats
from psychlm.confidence.scores import Values, check_scores, confidence_in, n_choices, places

TOLERANCE = (
    1e-6  # differences of confidence that networks in single precision make when batches differ
)


@dataclass(frozen=True)
class Paralysis:
    """The drop in confidence in the right choice when choices are added; positive means less confidence after."""

    drop: stats.Interval  # mean over items of confidence before less after
    effect: float  # mean of the drops over their standard deviation (Cohen's d for pairs)
    p: float  # Wilcoxon's signed-rank test of the drops, two-sided
    own: (
        stats.Interval
    )  # the part of the drop within the item's own choices, those added left out: a change of mind
    own_effect: float
    p_own: float  # Wilcoxon's test of that part
    renormalisation: (
        stats.Interval
    )  # the other part, drop less own: what renormalising over more choices takes away
    equal_draw: (
        stats.Interval
    )  # the drop if every added choice drew as much as the item's mean incorrect one does
    n_extra: float  # choices added, on average
    n_items: int
    items: pd.DataFrame  # by item: before, after, drop, own, renormalisation, equal_draw


@dataclass(frozen=True)
class AccuracyChange:
    """Accuracy before and after, on the same items."""

    before: stats.Interval
    after: stats.Interval
    change: stats.Interval  # after less before
    p: float  # McNemar's exact test: of the items whose grade changed, how many rose?
    n_items: int


def choice_paralysis(
    before: pd.DataFrame,
    after: pd.DataFrame,
    answer: pd.Series | ArrayLike,
    *,
    rng: np.random.Generator,
    n_boot: int = 2000,
    level: float = 0.95,
) -> Paralysis:
    """Compare the confidence in the right choice before and after choices were added (Definition 2).

    Parameters
    ----------
    before : DataFrame, shape (n_items, most choices)
        Scores of the original items.
    after : DataFrame, shape (n_items, most choices and those added)
        Scores of the perturbed items in the source's order, those added behind (``confusion.in_source_order``).
    answer : Series by item, or array_like
        The place of the right choice in the original items.

    Returns
    -------
    Paralysis
        With c the confidence before, d that after, and r that after among the item's own choices alone (the softmax of
        their scores, without those added), the drop c - d is the sum of c - r (``own``) and r - d
        (``renormalisation``). A model that scores each choice by itself has r = c: its whole drop is arithmetic. One
        that answers by lot has c - r = 0 on average. ``equal_draw`` is c - c / (1 + m (1 - c)/(n - 1)) for m choices
        added to n, beside which to see whether those added draw more or less than the item's own incorrect ones; it has
        no test, since it is exact for an item, not for a mean of items whose choices draw unequally.
        Differences below 1e-6 count as none; where all are, p = 1.

    Raises
    ------
    FrameError
        If the items differ, or an item has no more choices after than before.
    """
    before, after = check_scores(before), check_scores(after)
    if not before.index.equals(after.index):
        raise frames.FrameError(
            "before and after hold different items, or another order; align them by item"
        )
    n, m = n_choices(before), n_choices(after) - n_choices(before)
    if (m < 1).any():
        raise frames.FrameError(
            f"items {list(before.index[m < 1][:5])} have no more choices after than before"
        )
    place = places(answer, before)
    c, d = confidence_in(before, place), confidence_in(after, place)
    mine = after.where(np.arange(after.shape[1]) < n[:, None])
    own = c - confidence_in(mine, place)
    items = pd.DataFrame(
        {
            "before": c,
            "after": d,
            "drop": c - d,
            "own": own,
            "renormalisation": c - d - own,
            "equal_draw": c - c / (1 + m * (1 - c) / (n - 1)),
        }
    )
    of = {name: _interval(items[name], rng, n_boot, level) for name in list(items)[2:]}
    return Paralysis(
        drop=of["drop"],
        effect=_effect(items["drop"]),
        p=_signed(items["drop"]),
        own=of["own"],
        own_effect=_effect(items["own"]),
        p_own=_signed(items["own"]),
        renormalisation=of["renormalisation"],
        equal_draw=of["equal_draw"],
        n_extra=float(m.mean()),
        n_items=len(items),
        items=items,
    )


def _effect(differences: pd.Series) -> float:
    spread = differences.std()
    return float(differences.mean() / spread) if spread > TOLERANCE else float("nan")


def _interval(
    values: pd.Series, rng: np.random.Generator, n_boot: int, level: float
) -> stats.Interval:
    return stats.bootstrap(_mean, values.to_frame(), rng=rng, n_boot=n_boot, level=level)


def _mean(stack: Values) -> Values:
    return stack.mean(axis=(-2, -1))


def _signed(differences: pd.Series) -> float:
    """Return Wilcoxon's two-sided p-value: differences of rounding size are none, and left out; without any, 1.

    Exact for up to 50 differences without ties, as R's wilcox.test, else by the normal approximation.
    """
    values = differences[differences.abs() >= TOLERANCE]
    if values.empty:
        return 1.0
    exact = len(values) <= 50 and not values.abs().duplicated().any()
    return float(scipy_stats.wilcoxon(values, method="exact" if exact else "asymptotic").pvalue)


def paralysis_by_number(
    before: pd.DataFrame,
    after: Mapping[int, pd.DataFrame],
    answer: pd.Series | ArrayLike,
    *,
    rng: np.random.Generator,
    n_boot: int = 2000,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return choice paralysis as a function of the number of choices added.

    Parameters
    ----------
    after : mapping from the number of choices added to scores in the source's order
        As :func:`choice_paralysis` takes them.

    Returns
    -------
    DataFrame
        By ``n_extra``: ``before``, ``after`` (mean confidences), ``drop`` with ``low`` and ``high``, ``effect``, ``p``,
        ``p_holm`` (over the rows), ``own``, ``own_effect``, ``p_own``, ``renormalisation``, ``equal_draw``.
    """
    rows = {}
    for number, scores in after.items():
        found = choice_paralysis(before, scores, answer, rng=rng, n_boot=n_boot, level=level)
        rows[number] = {
            "before": found.items["before"].mean(),
            "after": found.items["after"].mean(),
            "drop": found.drop.estimate,
            "low": found.drop.low,
            "high": found.drop.high,
            "effect": found.effect,
            "p": found.p,
            "own": found.own.estimate,
            "own_effect": found.own_effect,
            "p_own": found.p_own,
            "renormalisation": found.renormalisation.estimate,
            "equal_draw": found.equal_draw.estimate,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("n_extra")
    table.insert(table.columns.get_loc("p") + 1, "p_holm", stats.holm(table["p"]))
    return table


def accuracy_change(
    before: pd.Series,
    after: pd.Series,
    *,
    rng: np.random.Generator,
    n_boot: int = 2000,
    level: float = 0.95,
) -> AccuracyChange:
    """Compare the grades of the same items before and after (``grades``), with intervals over items.

    Raises
    ------
    FrameError
        If the items differ.
    """
    if not before.index.equals(after.index):
        raise frames.FrameError(
            "the grades before and after are those of different items; align them by item"
        )
    change = after - before
    rose, changed = int((change > 0).sum()), int((change != 0).sum())
    p = float(scipy_stats.binomtest(rose, changed).pvalue) if changed else 1.0
    of = [_interval(values, rng, n_boot, level) for values in (before, after, change)]
    return AccuracyChange(of[0], of[1], of[2], p, len(change))
