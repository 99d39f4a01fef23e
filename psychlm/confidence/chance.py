"""Is the pseudo-correct choice chosen more often than chance has it, though nothing asks for it?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from psychlm.confidence.scores import check_scores, grades, n_choices


@dataclass(frozen=True)
class ChanceTest:
    """How often a choice is picked, against items picked from at random."""

    rate: float  # share of items whose pseudo-correct choice is picked
    low: float  # Wilson's interval (1927) of the rate
    high: float
    level: float
    chance: float  # mean of 1 / number of choices
    n_items: int  # items with one pick: those the tests rest on
    n_tied: int  # items whose highest score several choices share, left out
    p: float  # two-sided, exact: a sum of binomials, one for each number of choices
    chi2: float  # picked and not picked against expected, summed over the numbers of choices
    df: int  # one for each number of choices
    p_chi2: float
    smallest_expected: float  # the least expected count; below 5 trust p rather than p_chi2


def against_chance(
    scores: pd.DataFrame, answer: pd.Series | ArrayLike, *, level: float = 0.95
) -> ChanceTest:
    """Test how often the pseudo-correct choice is picked against chance, 1/n for an item of n choices.

    Items may have different numbers of choices. The count of picks is then a sum of binomial counts, one for each
    number of choices; its exact distribution is their convolution, and the two-sided p-value sums all counts that are
    no likelier than the one observed (with equal numbers this is :func:`scipy.stats.binomtest`).

    Parameters
    ----------
    scores : DataFrame, shape (n_items, most choices)
        Natural logarithms; NaN where an item has fewer choices.
    answer : Series by item, or array_like, shape (n_items,)
        The place of the pseudo-correct choice.

    Returns
    -------
    ChanceTest
        With p-values of NaN if every item is tied: such a model prefers nothing.
    """
    scores = check_scores(scores)
    picked, size = grades(scores, answer).to_numpy(), n_choices(scores)
    tied = (scores.eq(scores.max(axis=1), axis=0).sum(axis=1) > 1).to_numpy()
    picked, size = picked[~tied], size[~tied]
    n, k = len(picked), int(picked.sum())
    if not n:
        nan = float("nan")
        return ChanceTest(nan, nan, nan, level, nan, 0, int(tied.sum()), nan, nan, 0, nan, nan)
    sizes, group = np.unique(size, return_inverse=True)
    total, hits = np.bincount(group), np.bincount(group, picked)
    expected = np.column_stack([total / sizes, total - total / sizes])
    chi2 = float(((np.column_stack([hits, total - hits]) - expected) ** 2 / expected).sum())
    low, high = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    return ChanceTest(
        k / n,
        float(low),
        float(high),
        level,
        float((1 / size).mean()),
        n,
        int(tied.sum()),
        _two_sided(k, total, 1 / sizes),
        chi2,
        len(sizes),
        float(stats.chi2.sf(chi2, len(sizes))),
        float(expected.min()),
    )


def _two_sided(k: int, n: NDArray[np.intp], p: NDArray[np.float64]) -> float:
    """Sum the probabilities of all counts no likelier than k; the tolerance is that of scipy's binomtest."""
    pmf = reduce(
        np.convolve, [stats.binom.pmf(np.arange(m + 1), m, q) for m, q in zip(n, p, strict=True)]
    )
    return float(min(1.0, pmf[pmf <= pmf[k] * (1 + 1e-7)].sum()))


def picks_by_place(scores: pd.DataFrame) -> tuple[pd.DataFrame, float, float]:
    """Count how often the choice in each place is picked, and test the counts against chance.

    Parameters
    ----------
    scores : DataFrame, shape (n_items, most choices)
        In the order in which the model saw the choices.

    Returns
    -------
    DataFrame, float, float
        By place ``picked`` and ``expected`` (counts; tied items left out); chi-square, and its p-value with n - 1
        degrees of freedom for each number n of choices.
    """
    scores = check_scores(scores)
    best = scores.eq(scores.max(axis=1), axis=0).to_numpy()
    clear = best.sum(axis=1) == 1
    size, best = n_choices(scores)[clear], best[clear]
    there = np.arange(best.shape[1]) < size[:, None]
    chi2, df = 0.0, 0
    for n in np.unique(size):
        observed, expected = best[size == n][:, :n].sum(axis=0), (size == n).sum() / n
        chi2, df = chi2 + float(((observed - expected) ** 2 / expected).sum()), df + int(n) - 1
    table = pd.DataFrame(
        {"picked": best.sum(axis=0), "expected": (there / size[:, None]).sum(axis=0)}
    )
    return table.rename_axis("place"), chi2, float(stats.chi2.sf(chi2, df)) if df else float("nan")
