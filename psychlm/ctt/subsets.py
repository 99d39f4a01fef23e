"""Smallest subset of persons (or models) that keeps the psychometric properties of a population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.ctt.items import Array, check_size
from psychlm.frames import FrameError, format_names
from psychlm.stats import spearman_many

PROPERTIES = ["difficulty", "reliability", "inter_item"]


@dataclass(frozen=True)
class SmallestSubset:
    """Agreement of growing subsets with the population, on items they were not chosen on."""

    curve: pd.DataFrame  # by property, selection ("greedy", "random") and size: mean, low, high
    smallest: pd.DataFrame  # by property: greedy, random; the least size kept from there on
    threshold: float


def smallest_subset(
    responses: pd.DataFrame,
    *,
    rng: np.random.Generator,
    sizes: Sequence[int],
    threshold: float = 0.95,
    n_splits: int = 10,
    n_random: int = 20,
) -> SmallestSubset:
    r"""Find how many persons keep a population's properties, on items that did not choose them.

    In each split of the items into halves, a subset grows greedily on one half and is judged on the
    other, beside random subsets of the same size, by three agreements of at most 1:

    - ``difficulty``: Spearman correlation of the items' proportions correct;
    - ``reliability``: :math:`1 - |\alpha_S - \alpha|`, Cronbach's alpha of subset and population;
    - ``inter_item``: Pearson correlation of the phi coefficients over all pairs of items.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        The population, without missing responses.
    rng : Generator
        Source of the splits of items and of the random subsets.
    sizes : sequence of int
        The sizes to judge.
    threshold : float
        The agreement that counts as kept.
    n_splits, n_random : int
        Random splits of the items; random subsets of each size in each split.

    Raises
    ------
    FrameError
        If responses are malformed or incomplete, or there are fewer than six items.

    Notes
    -----
    Laverghetta et al. (2021, section 6) ask which models to run where one cannot run 240. ``low``
    and ``high`` are 2.5 and 97.5 % quantiles over splits (and draws).
    """
    checked = check_size(responses, 6)
    incomplete = checked.columns[checked.isna().any()]
    if len(incomplete):
        raise FrameError(
            f"items {format_names(incomplete)} lack responses of some persons; keep the items that "
            "all were asked: responses.dropna(axis=1)"
        )
    n_persons, n_items = checked.shape
    sizes = sorted(set(sizes))
    if sizes[0] < 2 or sizes[-1] > n_persons:
        raise ValueError(f"sizes {sizes} are outside 2..{n_persons}, the persons")
    x, rows = checked.to_numpy(), []
    for split in range(n_splits):
        shuffled, n_judging = rng.permutation(n_items), round(n_items / 2)
        judging = _Sums(x[:, shuffled[:n_judging]])
        greedy = _greedy_order(_Sums(x[:, shuffled[n_judging:]]), int(sizes[-1]))
        random = rng.permuted(np.tile(np.arange(n_persons), (n_random, 1)), axis=1)
        for size in sizes:
            for order in (greedy, *random):
                subset = order[:size]
                sums = (part[..., subset].sum(axis=-1, keepdims=True) for part in judging.parts)
                agreement = judging.agreement(int(size), *sums)[:, 0]
                selection = "greedy" if order is greedy else "random"
                rows.append((split, selection, int(size), *agreement))
    table = pd.DataFrame(rows, columns=["split", "selection", "size", *PROPERTIES])
    long = table.melt(["split", "selection", "size"], var_name="property", value_name="agreement")
    grouped = long.groupby(["property", "selection", "size"])["agreement"]
    curve = grouped.mean().to_frame("mean")
    curve["low"], curve["high"] = grouped.quantile(0.025), grouped.quantile(0.975)
    # The least size from which on the mean agreement stays at or above the threshold.
    kept = (curve["mean"].unstack("size") >= threshold).iloc[:, ::-1].cummin(axis=1).iloc[:, ::-1]
    least = kept.idxmax(axis=1).where(kept.any(axis=1)).unstack("selection").loc[PROPERTIES]
    return SmallestSubset(curve.reset_index(), least.astype(float), threshold)


def _greedy_order(sums: _Sums, size: int) -> Array:
    """Add persons one by one, each time the one whose addition agrees best with the population.

    The first two are chosen by difficulty, since one person has no reliability; then the mean of
    the three agreements decides.
    """
    chosen: list[int] = []
    for n in range(1, size + 1):
        subset = [part[..., chosen].sum(axis=-1, keepdims=True) for part in sums.parts]
        candidates = (own + part for own, part in zip(subset, sums.parts, strict=True))
        agreement = sums.agreement(n, *candidates)
        score = agreement[0] if n <= 2 else agreement.mean(axis=0)
        score[chosen] = -np.inf
        chosen.append(int(np.nan_to_num(score, nan=-2.0).argmax()))
    return np.array(chosen)


class _Sums:
    """Responses as quantities whose sums over persons determine all three agreements.

    ``parts`` holds, with persons last: items right, shape (n_items, n_persons), pairs of items both
    right (n_pairs, n_persons), the sum score and its square (n_persons,).
    """

    def __init__(self, x: Array) -> None:
        self.i, self.j = np.triu_indices(x.shape[1], 1)
        right, score = np.ascontiguousarray(x.T), x.sum(axis=1)
        self.parts = (right, right[self.i] * right[self.j], score, score**2)
        everyone = [part.sum(axis=-1, keepdims=True) for part in self.parts]
        self.right = everyone[0][:, 0]
        self.alpha, self.phi = self._alpha_phi(len(x), *everyone)

    def agreement(self, n: int, right: Array, both: Array, score: Array, square: Array) -> Array:
        """Return the agreements, shape (3, n_subsets), of subsets of n persons from their sums."""
        alpha, phi = self._alpha_phi(n, right, both, score, square)
        phi -= phi.mean(axis=0)
        goal = self.phi[:, 0] - self.phi.mean()
        norm = np.sqrt(np.einsum("ij,ij->j", phi, phi) * (goal @ goal))
        with np.errstate(invalid="ignore", divide="ignore"):
            inter_item = np.where(norm > 1e-9, goal @ phi / norm, np.nan)
        difficulty = spearman_many(right.T, self.right)
        return np.stack([difficulty, 1 - np.abs(alpha - self.alpha), inter_item])

    def _alpha_phi(
        self, n: int, right: Array, both: Array, score: Array, square: Array
    ) -> tuple[Array, Array]:
        """Return Cronbach's alpha and phi of all pairs (0 where undefined) from sums."""
        k, spread = len(right), right * (n - right)
        total = n * square - score**2  # like spread, a variance times n squared
        with np.errstate(invalid="ignore", divide="ignore"):
            alpha = np.where(total > 1e-9, k / (k - 1) * (1 - spread.sum(0) / total), np.nan)
            w = np.where(spread > 0, 1 / np.sqrt(spread), 0.0)
        phi = n * both - right[self.i] * right[self.j]
        phi *= w[self.i]
        phi *= w[self.j]
        return alpha, phi
