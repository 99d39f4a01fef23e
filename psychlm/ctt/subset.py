r"""How few persons (models) keep the psychometric properties of a whole population?

Three properties of a test, and how well a subset's agree with the population's, each at most 1:

- ``difficulty``: Spearman correlation of the items' proportions correct;
- ``reliability``: :math:`1 - |\alpha_S - \alpha|`, Cronbach's alpha of subset and population;
- ``inter_item``: Pearson correlation of the phi coefficients over all pairs of items.

Laverghetta et al. (2021, section 6) leave open which models to run, where one cannot run 240 of them. Here a subset is
grown greedily on some of the items and judged on the others, beside random subsets of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.ctt.pairs import Array, several_items
from psychlm.frames import FrameError, format_names
from psychlm.stats import spearman_many

PROPERTIES = ("difficulty", "reliability", "inter_item")
BATCH_VALUES = 2**23  # float64 values held at once (64 MiB)


@dataclass(frozen=True)
class GreedySubset:
    """Persons in the order in which they were chosen."""

    order: pd.Index  # the first k make the subset of size k
    agreement: (
        pd.DataFrame
    )  # by size: difficulty, reliability, inter_item, with the population, on these items
    criterion: str


@dataclass(frozen=True)
class SmallestSubset:
    """How subsets of growing size agree with the population on items they were not chosen on."""

    curve: pd.DataFrame  # by property, selection ("greedy", "random") and size: mean, low, high
    smallest: (
        pd.DataFrame
    )  # by property: greedy, random: the least size from which on the mean keeps to the threshold
    chosen: GreedySubset  # chosen on all items
    threshold: float
    level: float  # of low..high: percentiles over splits (greedy), over splits and draws (random)
    n_splits: int
    n_random: int  # random subsets of each size in each split


def subset_agreement(responses: pd.DataFrame, persons: Sequence | pd.Index) -> pd.Series:
    """Return how well the properties of some persons' responses agree with those of all.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        The population, with every answer there.
    persons : sequence
        The subset, at least two.

    Returns
    -------
    Series
        ``difficulty``, ``reliability``, ``inter_item``, each at most 1; NaN where undefined (all difficulties of the
        subset equal, say). An item that all of a group answered alike has correlations of 0 with the others there.

    Raises
    ------
    FrameError
        If responses are malformed or incomplete, or a person of the subset is not among them.
    """
    answers = _complete(responses)
    unknown = pd.Index(persons).difference(answers.index)
    if len(unknown):
        raise FrameError(
            f"persons {format_names(unknown)} of the subset are not among the responses"
        )
    rows = answers.index.get_indexer(pd.Index(persons))
    if len(rows) < 2:
        raise FrameError(
            "a subset of fewer than two persons has neither reliability nor correlations"
        )
    return pd.Series(
        _judged(answers.to_numpy(), rows[None])[0], index=list(PROPERTIES), name="agreement"
    )


def greedy_subset(
    responses: pd.DataFrame, size: int | None = None, *, criterion: str = "all"
) -> GreedySubset:
    """Choose persons one by one, each time the one whose addition agrees best with the population.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        The population, with every answer there.
    size : int, optional
        How many to choose; all unless given.
    criterion : {"all", "difficulty", "reliability", "inter_item"}
        The property to agree on, or the mean of the three. The first two persons are chosen by difficulty, since one
        has no reliability.

    Raises
    ------
    FrameError
        If responses are malformed or incomplete.
    """
    answers = _complete(responses)
    if criterion not in ("all", *PROPERTIES):
        raise ValueError(
            f"criterion {criterion!r} is unknown; choose one of {['all', *PROPERTIES]}"
        )
    wanted = len(answers) if size is None else size
    if not 2 <= wanted <= len(answers):
        raise ValueError(f"size {wanted} lies outside 2..{len(answers)}, the number of persons")
    x = answers.to_numpy()
    candidates, goal = _Candidates(x), _Population(x)
    order: list[int] = []
    found = []
    for n in range(1, wanted + 1):
        agreement = candidates.agreement(goal)
        score = agreement[:, 0] if n <= 2 else _score(agreement, criterion)
        score[order] = -np.inf
        best = int(np.nan_to_num(score, nan=-2.0).argmax())
        order.append(best)
        found.append(agreement[best])
        candidates.choose(best)
    sizes = pd.RangeIndex(1, wanted + 1, name="size")
    return GreedySubset(
        answers.index[order], pd.DataFrame(found, sizes, list(PROPERTIES)), criterion
    )


def smallest_subset(
    responses: pd.DataFrame,
    *,
    rng: np.random.Generator,
    threshold: float = 0.95,
    sizes: Sequence[int] | None = None,
    criterion: str = "all",
    held_out: float = 0.5,
    n_splits: int = 10,
    n_random: int = 20,
    level: float = 0.95,
) -> SmallestSubset:
    """Find how many persons keep the population's properties, on items that did not choose them.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        The population, with every answer there.
    rng : Generator
        Source of the splits of items and of the random subsets.
    threshold : float
        The agreement that counts as kept.
    sizes : sequence of int, optional
        The sizes to judge; 12 between 3 and the whole population, evenly spaced in logarithm, unless given.
    criterion : {"all", "difficulty", "reliability", "inter_item"}
        As in :func:`greedy_subset`.
    held_out : float
        Share of the items that judge.
    n_splits : int
        Random splits of the items.
    n_random : int
        Random subsets of each size in each split.
    level : float
        Coverage of the percentile intervals.

    Raises
    ------
    FrameError
        If responses are malformed or incomplete, or a side of the split has fewer than three items.
    """
    answers = _complete(responses)
    n_persons, n_items = answers.shape
    n_judging = round(held_out * n_items)
    if min(n_judging, n_items - n_judging) < 3:
        raise FrameError(
            f"held_out={held_out} leaves a side of the {n_items} items with fewer than three"
        )
    grid = (
        np.unique(np.geomspace(3, n_persons, 12).astype(int)) if sizes is None else np.unique(sizes)
    )
    if grid[0] < 2 or grid[-1] > n_persons:
        raise ValueError(
            f"sizes {grid.tolist()} reach outside 2..{n_persons}, the number of persons"
        )
    x, rows = answers.to_numpy(), []
    for split in range(n_splits):
        shuffled = rng.permutation(n_items)
        order = greedy_subset(
            answers.iloc[:, shuffled[n_judging:]], int(grid[-1]), criterion=criterion
        ).order
        greedy = answers.index.get_indexer(order)
        random = rng.permuted(np.tile(np.arange(n_persons), (n_random, 1)), axis=1)
        for size in grid:
            judged = _judged(
                x[:, shuffled[:n_judging]], np.vstack([greedy[None, :size], random[:, :size]])
            )
            names = ["greedy"] + ["random"] * n_random
            rows += [
                (split, name, int(size), *values)
                for name, values in zip(names, judged, strict=True)
            ]
    table = pd.DataFrame(rows, columns=["split", "selection", "size", *PROPERTIES])
    long = table.melt(["split", "selection", "size"], var_name="property", value_name="agreement")
    grouped = long.groupby(["property", "selection", "size"])["agreement"]
    tails = {"low": (1 - level) / 2, "high": (1 + level) / 2}
    curve = (
        grouped.mean()
        .to_frame("mean")
        .assign(**{name: grouped.quantile(q) for name, q in tails.items()})
    )
    return SmallestSubset(
        curve.reset_index(),
        _least(curve["mean"], threshold),
        greedy_subset(answers, int(grid[-1]), criterion=criterion),
        threshold,
        level,
        n_splits,
        n_random,
    )


def _complete(responses: pd.DataFrame) -> pd.DataFrame:
    answers = several_items(responses, 3)
    holes = answers.columns[answers.isna().any()]
    if len(holes):
        raise FrameError(
            f"items {format_names(holes)} lack answers of some persons, and subsets are compared on the same items; "
            "keep the items that all were asked, responses.dropna(axis=1), or grade what is missing"
        )
    return answers


def _least(mean: pd.Series, threshold: float) -> pd.DataFrame:
    """Return the smallest size from which on the mean agreement keeps to the threshold; NaN where none does."""
    table = mean.unstack("size")
    kept = (table >= threshold).to_numpy()
    from_here = np.logical_and.accumulate(kept[:, ::-1], axis=1)[:, ::-1]
    first = np.where(
        from_here.any(axis=1), table.columns.to_numpy(float)[from_here.argmax(axis=1)], np.nan
    )
    return pd.Series(first, index=table.index).unstack("selection").loc[list(PROPERTIES)]


def _score(agreement: Array, criterion: str) -> Array:
    if criterion == "all":
        return agreement.mean(axis=1)
    return agreement[:, PROPERTIES.index(criterion)].copy()


class _Population:
    """What subsets are compared with."""

    def __init__(self, x: Array) -> None:
        self.right, score = x.sum(axis=0), x.sum(axis=1)
        self.alpha = float(_alpha(len(x), self.right[None], score.sum(), (score**2).sum())[0])
        self.phi = _phi(x[None])[0]  # zero on the diagonal
        off_diagonal = ~np.eye(x.shape[1], dtype=bool)
        self.mean = self.phi[off_diagonal].mean()
        self.centred = np.where(off_diagonal, self.phi - self.mean, 0.0)
        self.norm = np.sqrt((self.centred**2).sum())


class _Candidates:
    """The subset so far with each person added to it in turn, as sums over persons."""

    def __init__(self, x: Array) -> None:
        n_items = x.shape[1]
        self.x, self.total = x, x.sum(axis=1)
        self.n, self.right, self.both = 0, np.zeros(n_items), np.zeros((n_items, n_items))
        self.sum, self.square = 0.0, 0.0  # of the sum scores

    def choose(self, person: int) -> None:
        """Add the person for good."""
        row, score = self.x[person], self.total[person]
        self.n, self.right, self.both = self.n + 1, self.right + row, self.both + np.outer(row, row)
        self.sum, self.square = self.sum + score, self.square + score**2

    def agreement(self, goal: _Population) -> Array:
        """Return the agreement of each candidate subset, shape (n_persons, 3)."""
        n, right = self.n + 1, self.right + self.x
        difficulty = spearman_many(right, goal.right)
        alpha = _alpha(n, right, self.sum + self.total, self.square + self.total**2)
        return np.stack(
            [difficulty, 1 - np.abs(alpha - goal.alpha), self._inter_item(n, right, goal)], 1
        )

    def _inter_item(self, n: int, right: Array, goal: _Population) -> Array:
        """Correlate phi coefficients with the population's, by quadratic forms instead of a matrix a candidate.

        With t the right answers, w = 1 / sqrt(t (n - t)) and B the counts of both right without the candidate x,
        phi_ij = w_i w_j (n B_ij + n x_i x_j - t_i t_j); every sum over i and j is then a form in B, w, x and t.
        """
        x, spread = self.x, right * (n - right)
        varied = spread > 0
        w = np.where(varied, 1 / np.sqrt(np.where(varied, spread, 1.0)), 0.0)
        n_pairs = x.shape[1] * (x.shape[1] - 1)
        known = varied.sum(axis=1)  # phi is 1 on the diagonal of an item that varies

        def form(vectors: Array, matrix: Array) -> Array:
            return ((vectors @ matrix) * vectors).sum(axis=1)

        product = form(w, n * self.both * goal.centred) + n * form(w * x, goal.centred)
        product -= form(w * right, goal.centred)
        total = form(w, n * self.both) + n * (w * x).sum(1) ** 2 - (w * right).sum(1) ** 2 - known
        w2, wx, wt = w**2, w**2 * x, w**2 * right
        square = form(w2, (n * self.both) ** 2) + n**2 * wx.sum(1) ** 2 + (wt * right).sum(1) ** 2
        square += (
            2 * n**2 * form(wx, self.both)
            - 2 * n * form(wt, self.both)
            - 2 * n * (wx * right).sum(1) ** 2
            - known
        )
        return _correlation(product, square - total**2 / n_pairs, goal.norm)


def _correlation(product: Array, square: Array, norm: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            (square > 1e-9) & (norm > 1e-9),
            product / (np.sqrt(np.maximum(square, 0)) * norm),
            np.nan,
        )


def _alpha(n: int, right: Array, total: Array, square: Array) -> Array:
    """Return Cronbach's alpha of subsets from sums over their n persons; NaN where the sum score does not vary."""
    k = right.shape[1]
    own = (right * (n - right)).sum(axis=1)
    whole = n * square - total**2  # both variances times n (n - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 1e-9, k / (k - 1) * (1 - own / whole), np.nan)


def _phi(x: Array) -> Array:
    """Return phi coefficients of stacks of responses, (n, k, j) to (n, j, j); 0 where undefined, and on diagonals."""
    n, right = x.shape[1], x.sum(axis=1)
    spread = right * (n - right)
    w = np.where(spread > 0, 1 / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)
    phi = (
        (n * (x.transpose(0, 2, 1) @ x) - right[:, :, None] * right[:, None])
        * w[:, :, None]
        * w[:, None]
    )
    phi[:, np.arange(x.shape[2]), np.arange(x.shape[2])] = 0.0
    return phi


def _judged(x: Array, subsets: Array) -> Array:
    """Return the agreement of subsets (rows of x, shape (n, size)) with all of x, shape (n, 3)."""
    goal, n_items = _Population(x), x.shape[1]
    parts = []
    width = max(1, BATCH_VALUES // (n_items * (n_items + subsets.shape[1])))
    for start in range(0, len(subsets), width):
        stack = x[subsets[start : start + width]]
        right, total = stack.sum(axis=1), stack.sum(axis=2)
        phi = _phi(stack)
        alpha = _alpha(subsets.shape[1], right, total.sum(axis=1), (total**2).sum(axis=1))
        sums = phi.sum(axis=(1, 2))
        square = (phi**2).sum(axis=(1, 2)) - sums**2 / (n_items * (n_items - 1))
        agreement = _correlation((phi * goal.centred).sum(axis=(1, 2)), square, goal.norm)
        parts.append(
            np.stack(
                [spearman_many(right, goal.right), 1 - np.abs(alpha - goal.alpha), agreement], 1
            )
        )
    return np.concatenate(parts)
