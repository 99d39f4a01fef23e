"""Item clusters as the program of Laverghetta et al. (2021) finds them: the best of many random starts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.ctt.clusters import ItemClusters
from psychlm.ctt.items import Array, inter_item_correlation
from psychlm.frames import FrameError

Labels = NDArray[np.intp]


def cluster_items_by_restarts(
    responses: pd.DataFrame, *, rng: np.random.Generator, restarts: int = 500
) -> ItemClusters:
    """Group items by alternating k-medoids on 1 - r from many random starts; the widest silhouette of all wins.

    For every k from 2 to n - 2 the medoids start at random, items go to the nearest medoid, each cluster takes its
    most central item as medoid, and so on until nothing changes. Alternating stops at many local optima, and the
    silhouette chooses among all of them, over all k: with FasterPAM (:func:`psychlm.ctt.cluster_items`), which gives
    one good partition for each k, it chooses among these few.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        At least four items. A correlation that is undefined, since everyone answered an item alike, counts as 0, that
        of the item with itself too: it stands at distance 1 from itself, and rarely becomes a medoid. So the authors'
        program has it, and Table 2 depends on it.
    rng : Generator
        Source of the starts.
    restarts : int
        Starts for each k; the authors' 500 unless given.

    Raises
    ------
    FrameError
        If there are fewer than four items.

    Notes
    -----
    Laverghetta et al. (2021), section 5.1; the program is processHumanResults.py of their repository, which runs the
    alternating method of scikit-learn-extra (Park & Jun 2009).
    """
    r = inter_item_correlation(responses).fillna(0)
    distance, n_items = 1 - r.to_numpy(), len(r)
    if n_items < 4:
        raise FrameError(
            f"the search tries 2 to n - 2 clusters, and the responses have {n_items} items"
        )
    widths, found = {}, {}
    for k in range(2, n_items - 1):
        medoids, labels = _alternate(distance, _random_medoids(n_items, k, restarts, rng))
        width = _silhouette_width(distance, labels, k)
        best = int(width.argmax())
        widths[k], found[k] = float(width[best]), (medoids[best], labels[best])
    k = max(widths, key=widths.__getitem__)
    codes, order = pd.factorize(found[k][1])
    return ItemClusters(
        labels=pd.Series(codes + 1, index=r.index, name="cluster"),
        medoids=r.index[found[k][0][order]],
        k=len(order),
        silhouette=pd.Series(widths, name="silhouette").rename_axis("k"),
        dropped=r.index[:0],
    )


def _random_medoids(n_items: int, k: int, restarts: int, rng: np.random.Generator) -> Labels:
    """Draw k different items for every start, shape (restarts, k)."""
    return rng.random((restarts, n_items)).argsort(axis=1)[:, :k]


def _alternate(distance: Array, medoids: Labels) -> tuple[Labels, Labels]:
    """Alternate assignment and update in all starts at once; return medoids (starts, k) and labels (starts, items)."""
    k, moving = medoids.shape[1], True
    while moving:
        labels = distance[medoids].argmin(axis=1)
        member = labels[:, None, :] == np.arange(k)[:, None]  # starts, clusters, items
        # the cost of an item as medoid of a cluster; only members stand for election
        cost = member @ distance
        centre = np.where(member, cost, np.inf).argmin(axis=2)
        gain = np.take_along_axis(cost, centre[..., None], 2) < np.take_along_axis(
            cost, medoids[..., None], 2
        )
        elected = np.where(gain[..., 0] & member.any(axis=2), centre, medoids)
        moving = bool((elected != medoids).any())
        medoids = elected
    return medoids, labels


def _silhouette_width(distance: Array, labels: Labels, k: int) -> Array:
    """Return the mean silhouette width of every labelling, shape (starts,); -inf where one cluster holds all items.

    scikit-learn's wants distances of 0 on the diagonal, which items that everyone answered alike do not have here.
    """
    member = labels[:, None, :] == np.arange(k)[:, None]
    size = member.sum(axis=2)
    towards = member @ distance  # starts, clusters, items: summed distances
    own = np.take_along_axis(towards, labels[:, None, :], 1)[:, 0]
    own_size = np.take_along_axis(size, labels, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = own / (own_size - 1)
        others = np.where(member | (size == 0)[..., None], np.inf, towards / size[..., None]).min(
            axis=1
        )
        width = (others - inside) / np.maximum(inside, others)
    width = np.where(own_size > 1, width, 0)  # Rousseeuw's convention for an item alone
    return np.where((size > 0).sum(axis=1) > 1, width.mean(axis=1), -np.inf)
