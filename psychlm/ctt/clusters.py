"""Clusters of items that are answered alike, and the agreement of two clusterings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from psychlm.ctt.items import check_size, inter_item_correlation
from psychlm.frames import FrameError, refuse


@dataclass(frozen=True, eq=False)
class ItemClusters:
    """Items grouped by k-medoids on the distance 1 - r."""

    labels: pd.Series  # item -> cluster, 1..k in the order in which clusters first appear
    medoids: pd.Index  # the most central item of each cluster, cluster 1 first
    k: int
    silhouette: pd.Series  # number of clusters tried -> mean silhouette width, -1..1


def cluster_items(
    responses: pd.DataFrame, *, undefined: Literal["refuse", "zero"] = "refuse"
) -> ItemClusters:
    """Group items by k-medoids on 1 - r, r the inter-item correlation.

    The number of clusters is that from 2 to n_items - 1 with the largest mean silhouette width
    (Rousseeuw 1987), the smaller of two equal ones.

    A pair in which an item does not vary is refused, or its correlation counts as 0 (``"zero"``).
    This is Laverghetta et al. (2021), section 5.1, by FasterPAM (Schubert & Rousseeuw 2021) from
    PAM's BUILD, so that equal responses give equal clusters; the authors' own search is
    :func:`psychlm.ctt.cluster_items_by_restarts`.

    >>> rng = np.random.default_rng(0)
    >>> responses = pd.DataFrame(rng.integers(0, 2, (50, 3)), columns=["q1", "q2", "q3"])
    >>> responses = responses.join(responses.add_suffix("_copy"))
    >>> cluster_items(responses).labels.tolist()
    [1, 2, 3, 1, 2, 3]
    """
    from kmedoids import fasterpam
    from sklearn.metrics import silhouette_score

    r = inter_item_correlation(check_size(responses, 3))
    if undefined == "zero":
        r = r.fillna(0)
    if r.isna().any(axis=None):
        i, j = np.argwhere(r.isna().to_numpy())[0]
        raise FrameError(
            f"items {r.index[i]!r} and {r.index[j]!r} do not both vary among those who answered "
            "both; drop one, as frames.drop_constant(responses) does, or choose undefined='zero'"
        )
    distance = 1 - r.to_numpy()
    np.fill_diagonal(distance, 0)
    fits = {size: fasterpam(distance, size, init="build", n_cpu=1) for size in range(2, len(r))}
    score = partial(silhouette_score, distance, metric="precomputed")
    widths = {size: score(fit.labels) for size, fit in fits.items()}
    best = max(widths, key=widths.__getitem__)  # the first of equal widths
    return _result(r.index, fits[best].labels, fits[best].medoids, widths)


def cluster_items_by_restarts(
    responses: pd.DataFrame, *, rng: np.random.Generator, restarts: int = 500
) -> ItemClusters:
    """Group items as the program of Laverghetta et al. (2021) does: the best of many random starts.

    For every k from 2 to n - 2 and every one of ``restarts``: draw k random medoids, then alternate
    between assigning items to the nearest medoid and moving each medoid to the most central item of
    its cluster, until nothing changes (Park & Jun 2009, as the authors' processHumanResults.py). Of
    all partitions that with the largest mean silhouette width wins: Table 2 depends on local
    optima. Undefined correlations count as 0, also that of a constant item with itself.

    >>> rng = np.random.default_rng(0)
    >>> responses = pd.DataFrame(rng.integers(0, 2, (50, 3)), columns=["q1", "q2", "q3"])
    >>> responses = responses.join(responses.add_suffix("_copy"))
    >>> cluster_items_by_restarts(responses, rng=rng, restarts=5).labels.tolist()
    [1, 2, 3, 1, 2, 3]
    """
    r = inter_item_correlation(check_size(responses, 4)).fillna(0)
    distance = 1 - r.to_numpy()
    n_items = len(r)
    widths = {}
    partitions = {}
    for k in range(2, n_items - 1):
        medoids = rng.random((restarts, n_items)).argsort(axis=1)[:, :k]  # (starts, k)
        moving = True
        while moving:
            # Assignment: every item joins its nearest medoid.
            labels = distance[medoids].argmin(axis=1)  # (starts, items)
            member = labels[:, None, :] == np.arange(k)[:, None]  # (starts, clusters, items)
            # Update: a cluster's most central member replaces the medoid if it is more central.
            cost = member @ distance
            central = np.where(member, cost, np.inf).argmin(axis=2)
            best_cost, own_cost = (
                np.take_along_axis(cost, items[..., None], 2)[..., 0]
                for items in (central, medoids)
            )
            moved = np.where((best_cost < own_cost) & member.any(axis=2), central, medoids)
            moving = bool((moved != medoids).any())
            medoids = moved
        # Silhouette of every item, (b - a) / max(a, b), with a the mean distance to its own cluster
        # and b that to the nearest other one; 0 for an item alone (Rousseeuw 1987). Scikit-learn's
        # function refuses distances above 0 on the diagonal.
        size = member.sum(axis=2)
        summed = member @ distance
        own_size = np.take_along_axis(size, labels, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            a = np.take_along_axis(summed, labels[:, None, :], 1)[:, 0] / (own_size - 1)
            other = np.where(member | (size == 0)[..., None], np.inf, summed / size[..., None])
            b = other.min(axis=1)
            item_width = np.where(own_size > 1, (b - a) / np.maximum(a, b), 0)
        width = np.where((size > 0).sum(axis=1) > 1, item_width.mean(axis=1), -np.inf)
        best = int(width.argmax())
        widths[k] = float(width[best])
        partitions[k] = (labels[best], medoids[best])
    return _result(r.index, *partitions[max(widths, key=widths.__getitem__)], widths)


def _result(items: pd.Index, labels: np.ndarray, medoids: np.ndarray, widths: dict) -> ItemClusters:
    """Number the clusters in the order in which they first appear."""
    codes, order = pd.factorize(np.asarray(labels))
    silhouette = pd.Series(widths, name="silhouette").rename_axis("k")
    numbered = pd.Series(codes + 1, index=items, name="cluster")
    return ItemClusters(numbered, items[np.asarray(medoids)[order]], len(order), silhouette)


@dataclass(frozen=True)
class ClusterAgreement:
    """Agreement of two clusterings on which pairs of items belong together."""

    r: float  # Pearson correlation over pairs of items of "in the same cluster"
    p: float  # two-sided; assumes independent pairs, which they are not
    n_items: int  # items that both clusterings label
    n_pairs: int
    reason: str | None = None  # why r is NaN, if it is
    p_permutation: float = np.nan  # two-sided, by permuting the items of one clustering


def cluster_agreement(
    labels_a: pd.Series,
    labels_b: pd.Series,
    *,
    n_permutations: int = 0,
    rng: np.random.Generator | None = None,
) -> ClusterAgreement:
    """Correlate "i and j are in the same cluster" over the pairs of items that both label.

    Labels are cluster by item (Laverghetta et al. 2021, section 5.1, Table 2). r is NaN, with the
    reason, where a clustering puts all pairs together, or none. ``n_permutations`` by ``rng`` give
    ``p_permutation``, which does not assume the n(n - 1)/2 pairs to be independent.

    >>> a, b = pd.Series([1, 1, 2, 2]), pd.Series([5, 5, 7, 7])
    >>> round(cluster_agreement(a, b).r, 4)
    1.0
    """
    from scipy.stats import pearsonr

    labels_a = labels_a.dropna()
    labels_b = labels_b.dropna()
    for labels in (labels_a, labels_b):
        refuse(
            "items", labels.index[labels.index.duplicated()], "have two labels; keep one of each"
        )
    items = labels_a.index.intersection(labels_b.index, sort=False)
    if len(items) < 3:
        raise FrameError(f"the clusterings have {len(items)} items in common, and need 3")
    codes_a, codes_b = (pd.factorize(labels.loc[items])[0] for labels in (labels_a, labels_b))
    i, j = np.triu_indices(len(items), k=1)
    same_a = codes_a[i] == codes_a[j]
    same_b = codes_b[i] == codes_b[j]
    for name, same in (("first", same_a), ("second", same_b)):
        if same.all() or not same.any():
            kind = "all items in one cluster" if same.all() else "a cluster of its own for each"
            reason = f"the {name} clustering has {kind}, so nothing varies over pairs"
            return ClusterAgreement(np.nan, np.nan, len(items), len(i), reason)
    r, p = pearsonr(same_a.astype(float), same_b.astype(float))
    p_permutation = np.nan
    if n_permutations:
        if rng is None:
            raise ValueError("permutations need a generator: rng=np.random.default_rng(seed)")
        shuffled = rng.permuted(np.repeat(codes_b[None], n_permutations, axis=0), axis=1)
        together = shuffled[:, i] == shuffled[:, j]
        # The number of pairs together is the same in every permutation, so the correlation is
        # linear in the overlap, and the overlap can stand for it.
        expected = same_a.sum() * same_b.sum() / len(i)
        overlap = together[:, same_a].sum(axis=1)
        observed = (same_a & same_b).sum()
        as_extreme = np.abs(overlap - expected) >= abs(observed - expected) - 1e-9
        p_permutation = float((as_extreme.sum() + 1) / (n_permutations + 1))
    return ClusterAgreement(float(r), float(p), len(items), len(i), None, p_permutation)
