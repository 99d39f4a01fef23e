"""How many persons or models are enough, and how many persons an estimate is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from psychlm.ctt.items import Array, check_size
from psychlm.frames import FrameError, refuse
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
    rng, sizes : Generator, and sequence of int
        The sizes to judge.
    threshold : float
        The agreement that counts as kept.
    n_splits, n_random : int
        Random splits of the items; random subsets of each size in each split. ``low`` and ``high``
        are 2.5 and 97.5 % quantiles over them.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> responses = pd.DataFrame(rng.integers(0, 2, (20, 8)))
    >>> result = smallest_subset(responses, rng=rng, sizes=[5, 20], n_splits=2, n_random=2)
    >>> result.smallest.loc["difficulty", "greedy"]
    np.float64(20.0)
    """
    checked = check_size(responses, 6)
    incomplete = checked.columns[checked.isna().any()]
    refuse("items", incomplete, "lack responses; keep complete items: responses.dropna(axis=1)")
    n_persons, n_items = checked.shape
    sizes = sorted(set(sizes))
    if sizes[0] < 2 or sizes[-1] > n_persons:
        raise ValueError(f"sizes {sizes} are outside 2..{n_persons}, the persons")
    x = checked.to_numpy()
    tables = []
    for _ in range(n_splits):
        # One half of the items chooses persons, the other half judges all subsets at once.
        shuffled = rng.permutation(n_items)
        judging, choosing = np.split(x[:, shuffled], [round(n_items / 2)], axis=1)
        orders = [_greedy_order(choosing, int(sizes[-1]))]
        orders += list(rng.permuted(np.tile(np.arange(n_persons), (n_random, 1)), axis=1))
        measured = [_measures(judging[order[:size]]) for size in sizes for order in orders]
        right, alpha, phi = (np.stack(values) for values in zip(*measured, strict=True))
        right_all, alpha_all, phi_all = _measures(judging)
        agreement = {
            "difficulty": spearman_many(right, right_all),
            "reliability": 1 - np.abs(alpha - alpha_all),
            "inter_item": _pearson(phi, phi_all),
        }
        selection = np.tile(["greedy"] + ["random"] * n_random, len(sizes))
        size = np.repeat(sizes, len(orders))
        tables.append(pd.DataFrame({"selection": selection, "size": size, **agreement}))
    long = pd.concat(tables).melt(
        ["selection", "size"], var_name="property", value_name="agreement"
    )
    grouped = long.groupby(["property", "selection", "size"])["agreement"]
    curve = grouped.mean().to_frame("mean")
    curve["low"], curve["high"] = grouped.quantile(0.025), grouped.quantile(0.975)
    # The least size from which on the mean agreement stays at or above the threshold.
    kept = (curve["mean"].unstack("size") >= threshold).iloc[:, ::-1].cummin(axis=1).iloc[:, ::-1]
    least = kept.idxmax(axis=1).where(kept.any(axis=1)).unstack("selection").loc[PROPERTIES]
    return SmallestSubset(curve.reset_index(), least.astype(float), threshold)


@dataclass(frozen=True)
class WorthInPeople:
    """Agreement of people and of other estimates with held-out panels of people."""

    curve: pd.DataFrame  # by number of people: agreement (mean), low, high
    estimates: pd.DataFrame  # by estimate: agreement, its low, high; worth, worth_low, worth_high


def worth_in_people(
    people: pd.DataFrame,
    estimates: pd.DataFrame,
    *,
    rng: np.random.Generator,
    sizes: Sequence[int] | None = None,
    n_panels: int = 200,
    n_orders: int = 20,
) -> WorthInPeople:
    """Find how many people predict a held-out panel as well as other estimates of difficulty do.

    Half of the people are held out as a panel. The proportions correct of n of the others
    correlate with the panel's (Spearman), more so with growing n; an estimate is worth the n at
    which this curve reaches the estimate's own correlation with the panel, interpolated.

    Parameters
    ----------
    people : DataFrame, shape (n_persons, n_items)
        A responses frame without missing responses.
    estimates : DataFrame, indexed by item
        One estimate per column, larger for easier items: proportions correct of models, say.
    rng : Generator
        Source of the panels and of the orders of people.
    sizes : sequence of int, optional
        The n to try; by default all up to half of the people.
    n_panels, n_orders : int
        Held-out panels; random orders of the others for each.

    Returns
    -------
    WorthInPeople
        ``low`` and ``high`` are 2.5 and 97.5 % quantiles over panels. ``worth`` is a median: 0
        without agreement, infinite where an estimate agrees better than all sizes.

    Examples
    --------
    >>> from psychlm import simulate
    >>> rng = np.random.default_rng(0)
    >>> items = simulate.items(100, rng)
    >>> answers = simulate.responses(rng.normal(size=60), items, rng)
    >>> worth = worth_in_people(answers, -items[["b"]], rng=rng, n_panels=20).estimates["worth"]
    >>> bool(worth["b"] > 20)
    True
    """
    checked = check_size(people)
    predicted = estimates.reindex(checked.columns).to_numpy(float)
    if checked.isna().any(axis=None) or np.isnan(predicted).any():
        raise FrameError(
            "responses or estimates are missing; keep persons who answered every item, and items "
            "that have an estimate"
        )
    x = checked.to_numpy()
    n_held = len(checked) // 2
    tried = np.arange(1, n_held + 1) if sizes is None else np.array(sorted(sizes))
    if tried[0] < 1 or tried[-1] > len(x) - n_held:
        raise ValueError(f"sizes {list(tried)} are outside 1..{len(x) - n_held}, half the people")
    curves = []
    agreements = []
    worths = []
    for _ in range(n_panels):
        order = rng.permutation(len(x))
        panel = x[order[:n_held]].mean(axis=0)
        orders = rng.permuted(np.tile(order[n_held:], (n_orders, 1)), axis=1)[:, : tried[-1]]
        right = np.cumsum(x[orders], axis=1)[:, tried - 1]  # (n_orders, n_sizes, n_items)
        # Somebody with every item right orders nothing: an undefined correlation counts as 0.
        curve = np.nan_to_num(spearman_many(right, panel)).mean(axis=0)
        agreement = np.nan_to_num(spearman_many(predicted.T, panel))
        rising = np.maximum.accumulate(np.r_[0.0, curve])  # nobody agrees by 0
        worth = np.interp(agreement, rising, np.r_[0, tried], right=np.inf)
        curves.append(curve)
        agreements.append(agreement)
        worths.append(worth)

    def summary(draws: list[Array], centre: Array) -> list[Array]:
        return [centre, *np.quantile(draws, [0.025, 0.975], axis=0, method="nearest")]

    curve = np.transpose(summary(curves, np.mean(curves, axis=0)))
    table = summary(agreements, np.mean(agreements, axis=0))
    table += summary(worths, np.quantile(worths, 0.5, axis=0, method="nearest"))
    names = ["agreement", "low", "high"]
    return WorthInPeople(
        pd.DataFrame(curve, pd.Index(tried, name="people"), names),
        pd.DataFrame(
            np.transpose(table), estimates.columns, [*names, "worth", "worth_low", "worth_high"]
        ),
    )


def _measures(x: Array) -> tuple[Array, float, Array]:
    """Return items' right responses, Cronbach's alpha, and phi of all pairs (0 if undefined)."""
    n_items = x.shape[1]
    right = x.sum(axis=0)
    covariance = len(x) * (x.T @ x) - np.outer(right, right)  # times n^2
    spread = covariance.diagonal()
    total = covariance.sum()
    alpha = n_items / (n_items - 1) * (1 - spread.sum() / total) if total > 0 else np.nan
    scale = 1 / np.sqrt(np.where(spread > 0, spread, np.inf))
    phi = covariance * np.outer(scale, scale)
    return right, alpha, phi[np.triu_indices(n_items, 1)]


def _pearson(phi: Array, goal: Array) -> Array:
    """Return the correlation of every row of phi with the goal, NaN where a row is constant."""
    phi = phi - phi.mean(axis=-1, keepdims=True)
    goal = goal - goal.mean()
    norm = np.sqrt((phi**2).sum(axis=-1) * (goal @ goal))
    return np.divide(phi @ goal, norm, out=np.full(len(phi), np.nan), where=norm > 1e-9)


def _greedy_order(x: Array, size: int) -> Array:
    r"""Add persons one by one, each time the one whose addition agrees best with the population.

    The first two are chosen by difficulty, since one person has no reliability; then the mean of
    the three agreements decides. With B the counts of pairs of items both right in the subset
    chosen so far, candidate x makes :math:`\phi_{ij} = w_i w_j (n B_{ij} + n x_i x_j - t_i t_j)`,
    where t are its subset's right responses and :math:`w = 1/\sqrt{t(n - t)}`. Sums of phi over
    pairs are then quadratic forms in B, for all candidates at once: no matrix for each is needed.
    """
    n_items = x.shape[1]
    score = x.sum(axis=1)
    right_all, alpha_all, phi_all = _measures(x)
    centred = scipy.spatial.distance.squareform(phi_all - phi_all.mean())  # 0 on the diagonal
    # pairs in both orders
    norm_all = np.linalg.norm(centred)
    n_pairs = 2 * len(phi_all)
    both = np.zeros((n_items, n_items))
    chosen: list[int] = []

    def form(vectors: Array, matrix: Array) -> Array:
        """Return v'Av for every row v."""
        return ((vectors @ matrix) * vectors).sum(axis=1)

    for n in range(1, size + 1):
        t = both.diagonal() + x  # right responses to each item, by candidate
        agreement = [spearman_many(t, right_all)]
        if n > 2:
            spread = t * (n - t)
            total = n * (both.sum() + score**2) - t.sum(axis=1) ** 2
            with np.errstate(invalid="ignore", divide="ignore"):
                alpha = n_items / (n_items - 1) * (1 - spread.sum(axis=1) / total)
            agreement.append(np.where(total > 0, 1 - np.abs(alpha - alpha_all), np.nan))
            # Sums over pairs of phi times the population's, of phi, and of phi squared.
            w = 1 / np.sqrt(np.where(spread > 0, spread, np.inf))
            # phi of an item with itself is 1
            v = w**2
            n_varied = (spread > 0).sum(axis=1)
            product = form(w, n * both * centred) + n * form(w * x, centred) - form(w * t, centred)
            phi = n * form(w, both) + n * (w * x).sum(1) ** 2 - (w * t).sum(1) ** 2 - n_varied
            square = n**2 * (form(v, both**2) + 2 * form(v * x, both) + (v * x).sum(1) ** 2)
            square -= 2 * n * (form(v * t, both) + (v * x * t).sum(1) ** 2) + n_varied
            square += (v * t**2).sum(1) ** 2 - phi**2 / n_pairs
            with np.errstate(invalid="ignore", divide="ignore"):
                inter_item = product / (np.sqrt(square) * norm_all)
            agreement.append(np.where(square > 1e-9, inter_item, np.nan))
        mean = np.mean(agreement, axis=0)
        mean[chosen] = -np.inf
        best = int(np.nan_to_num(mean, nan=-2.0).argmax())
        chosen.append(best)
        both += np.outer(x[best], x[best])
    return np.array(chosen)
