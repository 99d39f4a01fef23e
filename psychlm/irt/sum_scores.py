"""Distributions of the number-right score, given ability: the recursion of Lord and Wingersky, with each item left out.

The number-right score of independent items is a sum of unlike coin tosses. Adding one item at a time gives its
distribution without subtractions, so nothing underflows or cancels; leaving out each item in turn by halving the
set of items shares nearly all of the work.
"""

from __future__ import annotations

import numpy as np


def add_items(scores: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return the score distribution after the given items have joined those already counted.

    Parameters
    ----------
    scores : ndarray, shape (n_counted + 1, n_nodes)
        P(score | node) of the items counted so far; ``np.ones((1, n_nodes))`` for none.
    probability : ndarray, shape (n_items, n_nodes)
        P(correct | node) of the items that join.

    Returns
    -------
    ndarray, shape (n_counted + n_items + 1, n_nodes)

    References
    ----------
    Lord and Wingersky (1984), Applied Psychological Measurement 8, 453-461.
    """
    for p in probability:
        longer = np.zeros((len(scores) + 1, scores.shape[1]))
        longer[:-1] = scores * (1 - p)
        longer[1:] += scores * p
        scores = longer
    return scores


def expected_correct_by_score(
    probability: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return P(score) of the whole test, and P(item correct | score) for every item.

    .. math:: E_{is} = \int P_i f^{-i}_{s-1} \phi \, / \int f_s \phi

    with :math:`f^{-i}` the score distribution of the test without item i (Orlando & Thissen 2000, equation 8).

    Parameters
    ----------
    probability : ndarray, shape (n_items, n_nodes)
        P(correct | node), strictly between 0 and 1.
    weights : ndarray, shape (n_nodes,)
        The ability's distribution on the nodes, summing to 1.

    Returns
    -------
    score : ndarray, shape (n_items + 1,)
    correct : ndarray, shape (n_items, n_items + 1)
    """
    n_items, n_nodes = probability.shape
    with_item = np.zeros((n_items, n_items + 1))
    without_item = np.zeros((n_items, n_items + 1))

    def descend(outside: np.ndarray, first: int, last: int) -> None:
        """Split items first..last-1 in halves; ``outside`` already counts all items beyond them."""
        if last - first == 1:
            with_item[first, 1:] = outside @ (weights * probability[first])
            without_item[first, :-1] = outside @ (weights * (1 - probability[first]))
            return
        middle = (first + last) // 2
        descend(add_items(outside, probability[middle:last]), first, middle)
        descend(add_items(outside, probability[first:middle]), middle, last)

    descend(np.ones((1, n_nodes)), 0, n_items)
    joint = with_item + without_item  # every row is P(score), up to rounding
    return joint[0], with_item / joint


def collapse_sparse(
    observed: np.ndarray, expected: np.ndarray, minimum: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring score groups of one item until every expected count reaches the minimum.

    The rule is mirt's for dichotomous items: empty groups go; a group of one person joins the next one up (the last
    one, the next one down); then, from the lowest score on, a group with too small an expected count joins whichever
    neighbour holds fewer people (the lower where they tie).

    Parameters
    ----------
    observed, expected : ndarray, shape (n_groups, 2)
        Counts of wrong and correct answers by score, in the order of the scores.
    minimum : float
        The smallest expected count that a cell may keep.

    Returns
    -------
    observed, expected : ndarray, shape (n_kept_groups, 2)
        No group at all is left where the whole table expects less than the minimum in a cell.
    """
    groups = [(o, e) for o, e in zip(observed, expected, strict=True) if o.sum() > 0]
    groups = _join_single_persons(groups)
    while groups:
        sparse = next((k for k, (_, e) in enumerate(groups) if e.min() < minimum), None)
        if sparse is None:
            break
        below, above = sparse - 1, sparse + 1
        if len(groups) == 1:
            return np.empty((0, 2)), np.empty((0, 2))
        if below < 0:
            partner = above
        elif above == len(groups):
            partner = below
        else:
            partner = below if groups[below][0].sum() <= groups[above][0].sum() else above
        groups[partner] = _together(groups[partner], groups[sparse])
        del groups[sparse]
    return np.array([o for o, _ in groups]).reshape(-1, 2), np.array(
        [e for _, e in groups]
    ).reshape(-1, 2)


def _together(one: tuple, other: tuple) -> tuple:
    return one[0] + other[0], one[1] + other[1]


def _join_single_persons(groups: list[tuple]) -> list[tuple]:
    """Let every score group of one person join its neighbour above, the last its neighbour below."""
    kept: list[tuple] = []
    carried = None
    for group in groups:
        group = group if carried is None else _together(group, carried)
        carried = None
        if group[0].sum() == 1:
            carried = group
        else:
            kept.append(group)
    if carried is not None:
        kept = [*kept[:-1], _together(kept[-1], carried)] if kept else [carried]
    return kept
