"""Which items go together in the answers, and whether two populations agree on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from psychlm.ctt.items import Undefined, defined_correlations
from psychlm.ctt.pairs import several_items
from psychlm.frames import FrameError


@dataclass(frozen=True, eq=False)
class ItemClusters:
    """Items grouped by k-medoids on the distance 1 - r."""

    labels: pd.Series  # item -> cluster, 1..k in the order in which clusters first appear
    medoids: pd.Index  # the most central item of each cluster, cluster 1 first
    k: int
    silhouette: pd.Series  # number of clusters tried -> mean silhouette width, -1..1
    dropped: pd.Index  # items that everyone answered alike, left out (undefined="drop")


def cluster_items(
    responses: pd.DataFrame,
    k: int | Literal["silhouette"] = "silhouette",
    *,
    k_max: int | None = None,
    undefined: Undefined = "drop",
) -> ItemClusters:
    """Group items whose answers go together: k-medoids on 1 - r (Laverghetta et al. 2021, section 5.1).

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    k : int or "silhouette"
        Number of clusters, or the one from 2 to ``k_max`` whose mean silhouette width (Rousseeuw 1987) is largest,
        the smaller of two equal ones.
    k_max : int, optional
        Largest number of clusters tried; at most, and by default, one less than the number of items.
    undefined : {"drop", "zero", "error"}
        What becomes of items that everyone answered alike, which have no correlation. ``"drop"``, the default, leaves
        them out and lists them in the result: the answers say nothing on where they belong. ``"zero"`` counts their
        correlations as 0, as if unrelated to all others. ``"error"`` names them.

    Returns
    -------
    ItemClusters

    Raises
    ------
    FrameError
        If fewer than three items have a correlation, or one is undefined and ``undefined`` does not allow for it.

    Notes
    -----
    FasterPAM (Schubert & Rousseeuw 2021) from the ``kmedoids`` package, started from PAM's BUILD, so the same
    responses always give the same clusters. Like all k-medoids it ends in an optimum that no single swap of a medoid
    improves, which may be local. For the search of the paper's program, which differs, see
    :func:`psychlm.ctt.cluster_items_by_restarts`.
    """
    from kmedoids import fasterpam
    from sklearn.metrics import silhouette_score

    answers = several_items(responses)
    r = defined_correlations(answers, undefined)
    n_items = len(r)
    largest = n_items - 1 if k_max is None else min(k_max, n_items - 1)
    if largest < 2 or (k != "silhouette" and not 2 <= k < n_items):
        raise FrameError(
            f"{n_items} items (after {answers.shape[1] - n_items} constant ones were dropped) make 2 to {n_items - 1} "
            f"clusters; k={k!r} and k_max={k_max!r} ask for something else"
        )
    distance = 1 - r.to_numpy()
    np.fill_diagonal(distance, 0)
    tried = range(2, largest + 1) if k == "silhouette" else [k]
    fits = {n: fasterpam(distance, n, init="build", n_cpu=1) for n in tried}
    width = pd.Series(
        {n: silhouette_score(distance, fit.labels, metric="precomputed") for n, fit in fits.items()}
    )
    best = list(fits)[int(width.to_numpy().argmax())]
    codes, order = pd.factorize(np.asarray(fits[best].labels))
    return ItemClusters(
        labels=pd.Series(codes + 1, index=r.index, name="cluster"),
        medoids=r.index[np.asarray(fits[best].medoids)[order]],
        k=best,
        silhouette=width.rename_axis("k").rename("silhouette"),
        dropped=answers.columns.difference(r.index, sort=False),
    )


@dataclass(frozen=True)
class ClusterAgreement:
    """How far two clusterings put the same pairs of items together."""

    r: float  # Pearson correlation over pairs of items of "in the same cluster"
    p: float  # two-sided; takes pairs as independent, which they are not
    n_items: int  # items that carry a label in both
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
    """Correlate "i and j are in the same cluster" over the pairs of items that both clusterings label.

    Parameters
    ----------
    labels_a, labels_b : Series, item -> cluster
        Items that stand in one only are left out; ``n_items`` counts the common ones.
    n_permutations : int
        Permutations for ``p_permutation``, which keeps the sizes of the clusters and, unlike the paper's p, does not
        take the n(n - 1)/2 pairs for independent observations. 0 leaves it NaN.
    rng : Generator
        Source of the permutations; required for them.

    Returns
    -------
    ClusterAgreement
        r is NaN, with the reason, where one of the clusterings puts all pairs together, or none.

    Raises
    ------
    FrameError
        If fewer than three items are common to both.

    Notes
    -----
    Laverghetta et al. (2021), section 5.1, Table 2.
    """
    from scipy.stats import pearsonr

    items = labels_a.index.intersection(labels_b.index, sort=False)
    if len(items) < 3:
        raise FrameError(
            f"the two clusterings have {len(items)} items in common, and agreement over pairs needs 3"
        )
    codes_a, codes_b = (pd.factorize(labels.loc[items])[0] for labels in (labels_a, labels_b))
    i, j = np.triu_indices(len(items), k=1)
    same_a, same_b = codes_a[i] == codes_a[j], codes_b[i] == codes_b[j]
    for name, same in (("first", same_a), ("second", same_b)):
        if same.all() or not same.any():
            how = (
                "all items into one cluster"
                if same.all()
                else "every item into a cluster of its own"
            )
            reason = f"the {name} clustering puts {how}, so nothing varies over pairs"
            return ClusterAgreement(np.nan, np.nan, len(items), len(i), reason)
    r, p = pearsonr(same_a.astype(float), same_b.astype(float))
    p_permutation = np.nan
    if n_permutations:
        if rng is None:
            raise ValueError("permutations need a generator: rng=np.random.default_rng(seed)")
        shuffled = rng.permuted(np.repeat(codes_b[None], n_permutations, axis=0), axis=1)
        together = shuffled[:, i] == shuffled[:, j]
        # the number of pairs together is the same in every permutation, so the correlation is linear in the overlap
        expected = same_a.sum() * same_b.sum() / len(i)
        overlap, observed = together[:, same_a].sum(axis=1), (same_a & same_b).sum()
        at_least = np.abs(overlap - expected) >= abs(observed - expected) - 1e-9
        p_permutation = (at_least.sum() + 1) / (n_permutations + 1)
    return ClusterAgreement(float(r), float(p), len(items), len(i), None, float(p_permutation))
