"""Fit of items, pairs of items and persons: S-X2, LD-X2, Q3 and person fit.

Every statistic compares observed responses with those that a fitted model implies. The functions
take an :class:`~psychlm.irt.result.IRTFit`, or :class:`ModelTables` made from the estimates of
another program. The statistic for the model as a whole, M2, is :func:`psychlm.irt.m2`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy
import torch
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.device import Device
from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt.curves import four_parameters
from psychlm.irt.response_matrix import BLOCK_CELLS, BLOCK_CELLS_GPU, pick_device

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

STANDARD_GRID = np.linspace(-6, 6, 61)  # mirt's default nodes for one factor, in ability sds
LARGEST_MEAN_SQUARE_SD = 1.4142  # limit of the cube-root transformation, as in mirt


@dataclass(frozen=True)
class ModelTables:
    """Item parameters, the ability distribution on a grid, and which parameters were free."""

    items: pd.Index
    slope: np.ndarray  # (n_items,)
    intercept: np.ndarray  # (n_items,), logits at ability 0
    guess: np.ndarray  # (n_items,), probability
    nodes: np.ndarray  # (n_nodes,), logits
    weights: np.ndarray  # (n_nodes,), summing to 1
    guess_is_free: np.ndarray  # (n_items,), bool
    slope_is: str = "free"  # "free" (2PL, 3PL), "common" (1PL) or "fixed" (Rasch)
    intercept_is_free: bool = True  # False where items are held at earlier estimates
    mean_is_free: bool = False  # the mean of ability was estimated (new persons, old items)
    sd_is_free: bool = False  # the standard deviation of ability was estimated
    upper: np.ndarray | float = 1.0  # (n_items,), probability
    upper_is_free: np.ndarray | bool = False  # (n_items,)

    @classmethod
    def from_fit(cls, fit: IRTFit | ModelTables) -> ModelTables:
        """Return the tables of a fit of one group, with ability on 61 equally spaced nodes."""
        if isinstance(fit, ModelTables):
            return fit
        fit.require_one_group()
        items, (a, d, c, u) = fit.items, four_parameters(fit.items)
        nodes = fit.ability_mean + fit.ability_sd * STANDARD_GRID
        return cls(
            items=items.index,
            slope=a,
            intercept=d,
            guess=c,
            nodes=nodes,
            weights=normal_weights(nodes, fit.ability_mean, fit.ability_sd),
            guess_is_free=items["c_is_free"].to_numpy(bool),
            slope_is={"1PL": "common", "Rasch": "fixed"}.get(fit.model, "free"),
            sd_is_free=fit.model == "Rasch",
            upper=u if (u < 1).any() else 1.0,
            upper_is_free=items["u_is_free"].to_numpy(bool) if "u_is_free" in items else False,
        )

    def probability_at(self, theta: np.ndarray) -> np.ndarray:
        """Return P(correct) = c + (1 - c) logistic(a theta + d), shape (n_items, n_theta)."""
        logistic = expit(np.multiply.outer(self.slope, theta) + self.intercept[:, None])
        guess = self.guess[:, None]
        return guess + (np.atleast_1d(self.upper)[:, None] - guess) * logistic

    @cached_property
    def probability(self) -> np.ndarray:
        """P(correct) of every item at every node, shape (n_items, n_nodes)."""
        return self.probability_at(self.nodes)

    @cached_property
    def pair_probability(self) -> np.ndarray:
        """P of (0,0), (0,1), (1,0), (1,1) on every pair of items, shape (4, n_items, n_items)."""
        p, w = self.probability, self.weights
        return np.stack([((a * w) @ b.T) for a in (1 - p, p) for b in (1 - p, p)])

    @property
    def n_free_by_item(self) -> np.ndarray:
        """Free parameters that bear on each item; a common one counts for each, as in mirt."""
        estimated = (self.slope_is != "fixed", self.intercept_is_free)
        return (
            sum(estimated)
            + self.mean_is_free
            + self.sd_is_free
            + self.guess_is_free.astype(int)
            + self.upper_is_free
        )

    def log_probabilities_at(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P and log(1 - P), (n_theta, n_items); neither P nor 1 - P rounds to 0."""
        values = (
            self.slope,
            self.intercept,
            self.guess,
            np.broadcast_to(self.upper, len(self.items)),
        )
        a, d, c, u = torch.tensor(np.stack(values), device=theta.device)
        z, log_span = torch.outer(theta, a) + d, (u - c).log()
        log_right, log_wrong = log_span + logsigmoid(z), log_span + logsigmoid(-z)
        if (c > 0).any():
            log_right = torch.logaddexp(c.log(), log_right)
        if (u < 1).any():
            log_wrong = torch.logaddexp((1 - u).log(), log_wrong)
        return log_right, log_wrong

    def posterior(self, x: Tensor) -> Tensor:
        """Return P(node | responses) of every person, shape (n_persons, n_nodes)."""
        nodes, weights = torch.tensor(np.stack([self.nodes, self.weights]), device=x.device)
        right, wrong = self.log_probabilities_at(nodes)
        log_joint = (x == 1).to(right.dtype) @ right.T + (x == 0).to(right.dtype) @ wrong.T
        return (log_joint + weights.log()).softmax(1)

    def at_expected_ability(
        self, x: np.ndarray, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield some persons at a time, so that memory does not grow with their number.

        They are responses, NaN where not asked, expected abilities (n_rows,), and log P and
        log(1 - P) there, NaN where not asked; all but the abilities (n_rows, n_items).
        """
        nodes = torch.tensor(self.nodes, device=device)
        for part in person_blocks(x, device):
            theta, unasked = self.posterior(part) @ nodes, part.isnan()
            log_right, log_wrong = self.log_probabilities_at(theta)
            log_right.masked_fill_(unasked, torch.nan)
            yield part, theta, log_right, log_wrong.masked_fill_(unasked, torch.nan)

    def response_array(self, responses: pd.DataFrame) -> np.ndarray:
        """Return checked responses to the model's items in its order, NaN where not asked."""
        absent = self.items.difference(responses.columns)
        if len(absent):
            raise FrameError(
                f"responses lack {len(absent)} items of the model ({list(absent[:5])}); refit the "
                "model to the items that were asked, or add columns of NaN"
            )
        return check_responses(responses[list(self.items)]).to_numpy()


def person_blocks(x: np.ndarray, device: torch.device) -> Iterator[Tensor]:
    """Yield the responses of some persons at a time, (n_rows, n_items), on a device."""
    step = max(1, (BLOCK_CELLS if device.type == "cpu" else BLOCK_CELLS_GPU) // x.shape[1])
    for start in range(0, len(x), step):
        yield torch.tensor(x[start : start + step], device=device)


def normal_weights(nodes: np.ndarray, mean: float = 0.0, sd: float = 1.0) -> np.ndarray:
    """Return normal densities at the nodes, scaled to sum to 1."""
    density = np.exp(-0.5 * ((nodes - mean) / sd) ** 2)
    return density / density.sum()


def s_x2(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, min_persons: int = 20
) -> pd.DataFrame:
    r"""Test each item's fit by its proportions correct among persons of equal number-right score.

    .. math:: S\text{-}X^2_i = \sum_s N_s \frac{(O_{is} - E_{is})^2}{E_{is} (1 - E_{is})}

    Neighbouring scores are merged until each group expects one right and one wrong response.

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)
        Scores can be compared only among persons who were asked the same items. Every booklet (a
        set of items that at least ``min_persons`` persons were asked) makes its own score groups,
        and an item's statistic sums over its booklets. A person who was asked more than a booklet
        counts in the largest one, by the responses to its items; who was asked less than any is
        left out, and a warning names these persons.
    min_persons : int
        The fewest persons that make a booklet.

    Returns
    -------
    DataFrame, one row per item
        ``s_x2``, ``df``, ``rmsea``, ``p``, ``n_persons``; NaN where no degree of freedom is left.
        ``attrs["left_out"]`` lists the persons left out.

    Raises
    ------
    FrameError
        If no set of items was asked of ``min_persons`` persons.

    References
    ----------
    Orlando & Thissen (2000), Applied Psychological Measurement 24, 50-64, equation 9.
    """
    tables = ModelTables.from_fit(fit)
    x = tables.response_array(responses)
    # Booklets: the distinct patterns of asked items, with the persons of each.
    patterns, booklet, counts = np.unique(
        ~np.isnan(x), axis=0, return_inverse=True, return_counts=True
    )
    large = np.flatnonzero((counts >= min_persons) & (patterns.sum(axis=1) > 1))
    if not len(large):
        raise FrameError(
            f"no two items were asked of the same {min_persons} persons (at most {counts.max()}), "
            "so there are no score groups; use ld_x2 or q3, or lower min_persons"
        )
    # The booklet of each pattern: the largest whose items were all asked, or none (-1).
    asked_all = ~(patterns[large] & ~patterns[:, None]).any(axis=2)
    size = np.where(asked_all, patterns[large].sum(axis=1), 0)
    place = np.where(asked_all.any(axis=1), large[size.argmax(axis=1)], -1)[booklet.ravel()]
    left_out = list(responses.index[place < 0])
    if left_out:
        warnings.warn(
            f"S-X2 leaves out {len(left_out)} of {len(x)} persons, asked too rare sets of items "
            f"({format_names(left_out)}; all of them: attrs['left_out'] of the result)",
            stacklevel=2,
        )
    statistic, n_groups, n_persons = np.zeros((3, len(tables.items)))
    for number in large:
        items = np.flatnonzero(patterns[number])
        answered = x[np.ix_(place == number, items)]
        # Observed counts of persons, and of right responses to each item, by number-right score.
        score = answered.sum(axis=1).astype(int)
        n_at_score = np.bincount(score, minlength=len(items) + 1).astype(float)
        n_right = np.zeros((len(items) + 1, len(items)))
        np.add.at(n_right, score, answered)
        _, expected_correct = expected_correct_by_score(tables.probability[items], tables.weights)
        observed = np.stack([n_at_score - n_right.T, n_right.T], axis=2)
        expected = n_at_score[:, None] * np.stack([1 - expected_correct, expected_correct], axis=2)
        n_persons[items] += len(answered)
        for k, item in enumerate(items):
            # Scores of zero and of everything are the same for all items, and have no group.
            o, e = collapse_sparse(observed[k, 1:-1], expected[k, 1:-1])
            statistic[item] += ((o - e) ** 2 / e).sum()
            n_groups[item] += len(o)
    df = np.maximum(n_groups - tables.n_free_by_item, 0)
    statistic[df == 0] = np.nan
    columns = {
        "s_x2": statistic,
        "df": df.astype(int),
        "rmsea": rmsea(statistic, df, n_persons),
        "p": scipy.stats.chi2.sf(statistic, np.where(df > 0, df, np.nan)),
        "n_persons": n_persons.astype(int),
    }
    table = pd.DataFrame(columns, index=tables.items.rename("item"))
    table.attrs["left_out"] = left_out
    return table


def expected_correct_by_score(
    probability: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return P(score) of a test, and P(item correct | score) for every item.

    .. math:: E_{is} = \int P_i f^{-i}_{s-1} \phi \, / \int f_s \phi

    with :math:`f^{-i}` the score distribution of the test without item i (Orlando & Thissen 2000,
    equation 8). Score distributions grow item by item (Lord & Wingersky 1984) without subtractions,
    so nothing cancels. Leaving out each item in turn by halving the test shares most of the work.

    Parameters
    ----------
    probability : ndarray, shape (n_items, n_nodes)
        P(correct | node), strictly between 0 and 1.
    weights : ndarray, shape (n_nodes,)
        The distribution of ability on the nodes, summing to 1.

    Returns
    -------
    score : ndarray, shape (n_items + 1,)
    correct : ndarray, shape (n_items, n_items + 1)
    """
    n_items, n_nodes = probability.shape
    right, wrong = np.zeros((2, n_items, n_items + 1))

    def add(scores: np.ndarray, joining: np.ndarray) -> np.ndarray:
        """f'(s) = f(s) (1 - P) + f(s - 1) P for each item that joins."""
        for p in joining:
            longer = np.zeros((len(scores) + 1, n_nodes))
            longer[:-1] = scores * (1 - p)
            longer[1:] += scores * p
            scores = longer
        return scores

    def leave_one_out(outside: np.ndarray, first: int, last: int) -> None:
        """Halve items first..last-1; ``outside`` already counts all items beyond them."""
        if last - first == 1:
            right[first, 1:] = outside @ (weights * probability[first])
            wrong[first, :-1] = outside @ (weights * (1 - probability[first]))
            return
        middle = (first + last) // 2
        leave_one_out(add(outside, probability[middle:last]), first, middle)
        leave_one_out(add(outside, probability[first:middle]), middle, last)

    leave_one_out(np.ones((1, n_nodes)), 0, n_items)
    joint = right + wrong  # every row is P(score), up to rounding
    return joint[0], right / joint


def collapse_sparse(
    observed: np.ndarray, expected: np.ndarray, minimum: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring score groups of one item until every expected count reaches the minimum.

    Observed and expected counts of wrong and right responses by score have shape (n_groups, 2). The
    rule is mirt's for dichotomous items: empty groups go; a group of one person joins the next one
    up (the last, the next one down); then, from the lowest score on, a group with too small an
    expected count joins the neighbour with fewer persons (the lower where they tie). No group is
    left where the whole table expects less than the minimum in a cell.
    """
    # One row per group: observed wrong and right, expected wrong and right.
    rows = np.column_stack([observed, expected])
    groups, carried = [], np.zeros(4)
    for group in rows[observed.sum(axis=1) > 0]:
        carried = group + carried
        if carried[:2].sum() > 1:
            groups.append(carried)
            carried = np.zeros(4)
    if carried.any():
        groups = [*groups[:-1], sum(groups[-1:], start=carried)]
    while sparse := [k for k, group in enumerate(groups) if group[2:].min() < minimum]:
        group, after = groups.pop(sparse[0]), sparse[0]
        if not groups:
            break
        # After the removal the lower neighbour stands at after - 1, the upper one at after.
        neighbours = [k for k in (after - 1, after) if 0 <= k < len(groups)]
        partner = min(neighbours, key=lambda k: groups[k][:2].sum())
        groups[partner] = groups[partner] + group
    kept = np.array(groups).reshape(-1, 4)
    return kept[:, :2], kept[:, 2:]


def rmsea(statistic: np.ndarray, df: np.ndarray, n_persons: np.ndarray) -> np.ndarray:
    """Return sqrt(max(statistic - df, 0) / (df (n - 1))) (Browne & Cudeck 1992, equation 5)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.maximum(statistic - df, 0) / (df * (n_persons - 1)))


def pair_tables(x: np.ndarray, device: torch.device) -> np.ndarray:
    """Count the 2 x 2 table of every pair of items among the persons who answered both.

    Returns
    -------
    ndarray, shape (4, n_items, n_items)
        Counts of (0, 0), (0, 1), (1, 0) and (1, 1), the row's item first; NaN in x is not counted.
    """
    counts = torch.zeros(4, x.shape[1], x.shape[1], dtype=torch.float64, device=device)
    for part in person_blocks(x, device):
        right, wrong = (part == 1).to(part.dtype), (part == 0).to(part.dtype)
        for count, (first, second) in zip(counts, product((wrong, right), repeat=2), strict=True):
            count.addmm_(first.T, second)
    return counts.cpu().numpy()


def ld_x2(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Test every pair of items for dependence beyond what ability explains.

    The 2 x 2 table of a pair, among the persons who answered both, is compared with the table that
    the model implies by Pearson's chi-square with 1 degree of freedom.

    Returns
    -------
    DataFrame, one row per pair
        ``item_1``, ``item_2``, ``ld_x2``, ``df`` (1), ``cramers_v`` (signed: positive where the two
        are more alike than the model implies, by Yule's Q), ``p``, ``n_persons``; NaN where nobody
        answered both.

    References
    ----------
    Chen & Thissen (1997), Journal of Educational and Behavioral Statistics 22, 265-289, equation 1.
    """
    tables = ModelTables.from_fit(fit)
    i, j = np.triu_indices(len(tables.items), 1)
    x = tables.response_array(responses)
    observed = pair_tables(x, pick_device(device, "irt.ld_x2", x.size))[:, i, j]
    n = observed.sum(axis=0)
    expected = n * tables.pair_probability[:, i, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = ((observed - expected) ** 2 / expected).sum(axis=0)
        # Yule's Q = (n00 n11 - n01 n10) / (n00 n11 + n01 n10), observed and expected.
        yule_q = [
            (cells[0] * cells[3] - cells[1] * cells[2])
            / (cells[0] * cells[3] + cells[1] * cells[2])
            for cells in (observed, expected)
        ]
        cramers_v = np.where(yule_q[0] < yule_q[1], -1, 1) * np.sqrt(statistic / n)
    columns = {
        "item_1": tables.items[i],
        "item_2": tables.items[j],
        "ld_x2": statistic,
        "df": 1,
        "cramers_v": cramers_v,
        "p": scipy.stats.chi2.sf(statistic, 1),
        "n_persons": n.astype(int),
    }
    return pd.DataFrame(columns)


def q3(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Return the correlations between items of residuals at each person's expected ability.

    Returns
    -------
    DataFrame, shape (n_items, n_items)
        Over the persons who answered both; NaN for fewer than three. Under local independence the
        correlations off the diagonal are near -1/(n_items - 1).

    References
    ----------
    Yen (1984), Applied Psychological Measurement 8, 125-145, equation 8.
    """
    tables = ModelTables.from_fit(fit)
    x = tables.response_array(responses)
    where = pick_device(device, "irt.q3", x.size)
    # Sums over the persons who answered both items: of ones, of the row's residuals, of their
    # squares, and of products. Residuals have means near 0, so nothing cancels.
    sums = torch.zeros(4, x.shape[1], x.shape[1], dtype=torch.float64, device=where)
    for part, _, log_right, _ in tables.at_expected_ability(x, where):
        asked = part.isfinite().to(part.dtype)
        residual = (part - log_right.exp()).nan_to_num_(0.0)
        columns = (asked, residual, residual**2, residual)
        for total, row, column in zip(sums, columns, (asked, asked, asked, residual), strict=True):
            total.addmm_(row.T, column)
    n, total, squares, products = sums.cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = squares - total**2 / n
        values = (products - total * total.T / n) / np.sqrt(variance * variance.T)
    values[n < 3] = np.nan
    return pd.DataFrame(values, index=tables.items, columns=tables.items)


def person_fit(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Measure how well the model describes each person's pattern of responses.

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)
    device : str or torch.device
        See :func:`psychlm.device.torch_device`; "auto" takes a GPU for over ten million responses.
        The same holds for ``infit_outfit``, ``q3`` and ``ld_x2``; S-X2 and M2, whose work does not
        grow much with the number of persons, stay on the CPU.

    Returns
    -------
    DataFrame, one row per person
        ``theta`` (expected ability, logits), ``n_items``; ``zh`` (the standardised log-likelihood
        lz; below about -2: an unlikely pattern); ``outfit`` and ``infit`` (mean squares with
        expectation 1; infit weights items by their information), ``z_outfit``, ``z_infit``.

    Notes
    -----
    mirt raises item variances below 0.0032 to that value in infit and outfit; here they stay, so
    the two agree wherever no item is that easy or hard for the person.

    References
    ----------
    Drasgow, Levine & Williams (1985), British Journal of Mathematical and Statistical Psychology
    38, 67-86; Wright & Masters (1982), Rating Scale Analysis, chapter 5.
    """
    tables = ModelTables.from_fit(fit)
    x = tables.response_array(responses)
    abilities, likelihoods, squares = [], [], []
    where = pick_device(device, "irt.person_fit", x.size)
    for part, theta, log_right, log_wrong in tables.at_expected_ability(x, where):
        # zh: sum of (x - p) logit(p) over its standard deviation.
        residual, variance, log_odds = _residuals(part, log_right, log_wrong)
        spread = (variance * log_odds**2).nansum(1).sqrt()
        abilities.append(theta)
        likelihoods.append((residual * log_odds).nansum(1) / spread)
        squares.append(_sums_of_squares(part, log_right, log_wrong, 1))
    theta, zh = torch.stack([torch.cat(abilities), torch.cat(likelihoods)]).cpu().numpy()
    of_persons = torch.cat(squares, 1).cpu().numpy()
    columns = {"theta": theta, "n_items": of_persons[0].astype(int), "zh": zh}
    index = responses.index.rename("person")
    return pd.DataFrame(columns | _mean_squares(of_persons), index=index)


def infit_outfit(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Measure how well the model describes the responses to each item, by mean squares.

    Returns
    -------
    DataFrame, one row per item
        ``outfit`` and ``infit``, mean squares with expectation 1 (above about 1.3: noise; below
        0.7: too regular), over persons at their expected abilities; ``z_outfit``, ``z_infit``,
        ``n_persons``.

    References
    ----------
    Wright & Masters (1982), Rating Scale Analysis, chapter 5.
    """
    tables = ModelTables.from_fit(fit)
    x = tables.response_array(responses)
    where = pick_device(device, "irt.infit_outfit", x.size)
    sums = torch.zeros(6, x.shape[1], dtype=torch.float64, device=where)
    for part, _, log_right, log_wrong in tables.at_expected_ability(x, where):
        sums += _sums_of_squares(part, log_right, log_wrong, 0)
    of_items = sums.cpu().numpy()
    columns = _mean_squares(of_items)
    columns["n_persons"] = of_items[0].astype(int)
    return pd.DataFrame(columns, index=tables.items.rename("item"))


def _residuals(x: Tensor, log_right: Tensor, log_wrong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return residuals x - P, their variances P Q, and log(P / Q); NaN where not asked."""
    # From logarithms, since steep items have P within rounding of 0 or 1.
    residual = torch.where(x == 1, log_wrong.exp(), -log_right.exp())
    return residual, (log_right + log_wrong).exp(), log_right - log_wrong


def _sums_of_squares(x: Tensor, log_right: Tensor, log_wrong: Tensor, axis: int) -> Tensor:
    """Return what mean squares consist of, summed over persons (axis 0) or items (axis 1), (6, n).

    With residuals r and their variances v: the number of responses, and the sums of v, of r^2 / v,
    of r^2, of 1 / v - 3, and of v (1 - 4 v). The last two are variances of the second and third, as
    the fourth moment of a binary residual is v (1 - 3 v).
    """
    residual, variance, log_odds = _residuals(x, log_right, log_wrong)
    squares = torch.where(x == 1, -log_odds, log_odds).exp()  # infinite where the model rules x out
    inverse = (-log_right - log_wrong).exp()
    parts = (squares, residual**2, inverse - 3, variance * (1 - 4 * variance))
    n = x.isfinite().sum(axis).to(x.dtype)
    return torch.stack([n, variance.nansum(axis), *(part.nansum(axis) for part in parts)])


def _mean_squares(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Return outfit and infit with their z, from the sums of :func:`_sums_of_squares`."""
    n, total, of_squares, of_residuals, outfit_variance, infit_variance = sums
    outfit, infit = of_squares / n, of_residuals / total
    outfit_sd = np.sqrt(outfit_variance / n**2 - 1 / n)
    infit_sd = np.sqrt(infit_variance) / total
    columns: dict[str, np.ndarray] = {}
    for name, value, sd in (("outfit", outfit, outfit_sd), ("infit", infit, infit_sd)):
        # The cube root of a mean square is nearly normal (Wilson & Hilferty 1931).
        sd = np.minimum(sd, LARGEST_MEAN_SQUARE_SD)
        columns |= {name: value, f"z_{name}": (np.cbrt(value) - 1) * (3 / sd) + sd / 3}
    return columns
