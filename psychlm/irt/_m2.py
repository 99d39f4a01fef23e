"""M2: the fit of a model as a whole, by its item means and joint means of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy
import torch

from psychlm.frames import refuse
from psychlm.irt.item_fit import booklets, rmsea
from psychlm.irt.model_tables import ModelTables

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

REDUNDANT = 1e-7  # singular value, relative to the largest, of parameters that others make up for


@dataclass(frozen=True)
class M2Fit:
    """The M2 statistic and the indices built on it."""

    m2: float  # chi-square distributed if the model holds
    df: int
    p: float
    rmsea: float
    rmsea_low: float  # limits of the 90 % interval
    rmsea_high: float
    srmsr: float  # root mean squared difference of observed and expected pair correlations
    tli: float  # against independence of all items
    cfi: float  # likewise, kept within 0 and 1
    n_persons: int


def m2(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> M2Fit:
    r"""Test the model as a whole by its first- and second-order margins.

    .. math:: M_2 = N\, r' \big[\Xi^{-1}
              - \Xi^{-1}\Delta(\Delta'\Xi^{-1}\Delta)^{-1}\Delta'\Xi^{-1}\big]\, r

    with r the residual margins (means of items, and of products of pairs of items),
    :math:`\Xi` their covariance and :math:`\Delta` their derivatives by the estimates: parameters
    that are equal by constraint, or common, are one of them. Of several categories, numbered 0, 1,
    2, ..., it is the statistic M2* of Cai and Hansen.

    With missing responses, each margin is taken over the persons who were asked its items, and
    :math:`\Xi/N` is scaled by who was asked both margins: exact where what was asked does not
    depend on ability (booklets).

    For models with free guessing mirt 1.45 gives slightly lower values: it takes P(1 - P) for the
    derivative of P by the intercept, which is (P - c)(1 - P)/(1 - c).

    References
    ----------
    Maydeu-Olivares & Joe (2006), Psychometrika 71, 713-732, equation 13; Cai & Hansen (2013),
    British Journal of Mathematical and Statistical Psychology 66, 245-276, for M2*, TLI and CFI;
    Browne & Cudeck (1992), equation 7, for the interval of the RMSEA.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> m2(irt.fit(lsat, "1PL"), lsat).df
    9
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    n, n_items = x.shape
    constant = tables.items[np.nanmin(x, 0) == np.nanmax(x, 0)]
    refuse("items", constant, "were answered alike by everyone; fit a model without them")
    squares = np.einsum("c,icn->in", np.arange(tables.n_categories) ** 2, tables.probability)
    derivatives = jacobian(tables, _with_pairs(tables.expected))
    margins = Margins(tables.weights, tables.expected, squares, derivatives)
    statistic, df = quadratic_form(margins, x)
    if df <= 0:
        raise ValueError(
            f"{n_items} items give too few margins for this model ({df} degrees of freedom); "
            "fix or share parameters (a 2PL needs 4 items, a 3PL 6), or add items"
        )
    # The baseline of TLI and CFI: independent items with the observed means, which are free.
    mean = np.nanmean(x, 0)[:, None]
    squares = np.nanmean(x**2, 0)[:, None]
    derivatives = _spread(np.ones(n_items), np.tile(mean.T, (n_items, 1)))
    baseline, df_baseline = quadratic_form(Margins(np.ones(1), mean, squares, derivatives), x)

    def limit(tail: float) -> float:
        """Return the RMSEA at which M2 is the quantile 1 - tail of noncentral chi-square."""
        if scipy.stats.chi2.cdf(statistic, df) < tail:
            return 0.0

        def excess(nc: float) -> float:
            return scipy.stats.ncx2.cdf(statistic, df, nc) - tail

        nc = scipy.optimize.brentq(excess, 1e-12, 2 * statistic + 100)
        return float(np.sqrt(nc / (df * (n - 1))))

    # SRMSR: observed less expected correlations of pairs.
    weights = margins.weights
    expected = margins.expected
    mean = expected @ weights
    sd = np.sqrt(margins.squares @ weights - mean**2)
    implied = ((expected * weights) @ expected.T - np.outer(mean, mean)) / np.outer(sd, sd)
    difference = (pd.DataFrame(x).corr().to_numpy() - implied)[np.triu_indices(n_items, 1)]
    return M2Fit(
        m2=statistic,
        df=df,
        p=float(scipy.stats.chi2.sf(statistic, df)),
        rmsea=float(rmsea(np.array(statistic), np.array(df), np.array(n))),
        rmsea_low=limit(0.95),
        rmsea_high=limit(0.05),
        srmsr=float(np.sqrt(np.nanmean(difference**2))),
        tli=(baseline / df_baseline - statistic / df) / (baseline / df_baseline - 1),
        cfi=float(np.clip(1 - (statistic - df) / (baseline - df_baseline), 0, 1)),
        n_persons=n,
    )


@dataclass(frozen=True)
class Margins:
    """Moments of the items at every node, and their derivatives by the estimates."""

    weights: np.ndarray  # (n_nodes,)
    expected: np.ndarray  # (n_items, n_nodes), of the category's number
    squares: np.ndarray  # (n_items, n_nodes), of its square
    derivatives: np.ndarray  # (n_margins, n_estimates), of the margins

    @property
    def at_nodes(self) -> np.ndarray:
        """Expected items, then products of pairs of items, (n_margins, n_nodes)."""
        return _with_pairs(self.expected)

    def covariance(self) -> np.ndarray:
        """Return the covariance of one person's margins, shape (n_margins, n_margins)."""
        n_items = len(self.expected)
        weights = self.weights
        at_nodes = self.at_nodes
        joint = (at_nodes * weights) @ at_nodes.T
        i, j = np.triu_indices(n_items, 1)
        # number[k] lists the margins that hold item k: two of them hold its square.
        number = np.diag(np.arange(n_items))
        number[i, j] = number[j, i] = np.arange(n_items, len(at_nodes))
        for k in range(n_items):
            others = self.expected.copy()
            others[k] = 1
            joint[np.ix_(number[k], number[k])] = (others * (weights * self.squares[k])) @ others.T
        np.fill_diagonal(joint, _with_pairs(self.squares) @ weights)
        expected = at_nodes @ weights
        return joint - np.outer(expected, expected)


def _with_pairs(of_items: np.ndarray) -> np.ndarray:
    """Return the rows, one for each item, and below them the products of pairs of rows."""
    i, j = np.triu_indices(len(of_items), 1)
    return np.vstack([of_items, of_items[i] * of_items[j]])


def _spread(alone: np.ndarray, with_other: np.ndarray) -> np.ndarray:
    """Return derivatives of the margins by a parameter of each item, (n_margins, n_items).

    ``alone`` (n_items,) has those of the item's own margin, row i of ``with_other`` those of the
    products of item i with every other.
    """
    n_items = len(alone)
    i, j = np.triu_indices(n_items, 1)
    pairs = np.arange(len(i))
    of_pairs = np.zeros((len(i), n_items))
    of_pairs[pairs, i], of_pairs[pairs, j] = with_other[i, j], with_other[j, i]
    return np.vstack([np.diag(alone), of_pairs])


def quadratic_form(margins: Margins, x: np.ndarray) -> tuple[float, int]:
    """Return M2 and its degrees of freedom: the residual sum of squares of the whitened margins."""
    # Observed margins: sums of the answers, and persons who were asked, by booklet.
    asked, booklet = booklets(np.isfinite(x))
    asked_margins = _with_pairs(asked.T.astype(float))
    of_booklet = asked_margins * np.bincount(booklet)
    n = of_booklet.sum(axis=1)
    observed = n > 0
    answers = np.nan_to_num(x)
    sums = np.append(answers.sum(axis=0), (answers.T @ answers)[np.triu_indices(x.shape[1], 1)])
    residual = (sums - n * (margins.at_nodes @ margins.weights))[observed] / n[observed]
    overlap = (of_booklet @ asked_margins.T)[np.ix_(observed, observed)]
    overlap /= np.outer(n[observed], n[observed])
    covariance = margins.covariance()[np.ix_(observed, observed)] * overlap
    derivatives = margins.derivatives[observed]
    # Whiten by the Cholesky factor; a projection removes what the estimates explain.
    try:
        root = scipy.linalg.cholesky(covariance, lower=True)
    except np.linalg.LinAlgError:
        raise ValueError(
            "some items are so extreme under this model that their margins do not vary; leave out "
            "those furthest from the mean ability, see .items"
        ) from None
    unwhitened = np.column_stack([residual, derivatives])
    white = scipy.linalg.solve_triangular(root, unwhitened, lower=True)
    scaled = white[:, 1:] / np.linalg.norm(white[:, 1:], axis=0).clip(1e-300)
    directions, size, _ = np.linalg.svd(scaled, full_matrices=False)
    directions = directions[:, size > REDUNDANT * size.max(initial=0)]
    left = white[:, 0] - directions @ (directions.T @ white[:, 0])
    return float(left @ left), int(observed.sum() - directions.shape[1])


def jacobian(tables: ModelTables, at_nodes: np.ndarray) -> np.ndarray:
    """Return derivatives of the expected margins by the estimates, (n_margins, n_estimates).

    The mean and standard deviation of ability are the last, where they are free.
    """
    functions = tables.functions
    nodes = torch.tensor(tables.nodes)
    by_parameter = (functions.scores(nodes) * functions.log_probability(nodes).exp()).numpy()
    by_parameter = np.einsum("c,ricn->rin", np.arange(tables.n_categories), by_parameter)

    # Spread the derivatives of every item at every node over the margins that hold the item.
    numbers = np.unique(tables.estimates[tables.estimates >= 0])
    result = np.zeros((len(at_nodes), len(numbers)))
    for derivative, label in zip(by_parameter, tables.estimates, strict=True):
        weighted = derivative * tables.weights
        spread = _spread(weighted.sum(axis=1), weighted @ tables.expected.T)
        free = label >= 0
        result += spread[:, free] @ (label[free, None] == numbers).astype(float)
    result = result @ tables.directions

    # The weights' derivatives: up to constants, w (theta - mean) and w ((theta - mean)^2 - var).
    centred = tables.nodes - tables.weights @ tables.nodes
    squared = centred**2 - tables.weights @ centred**2
    columns = [result]
    for is_free, change in ((tables.mean_is_free, centred), (tables.sd_is_free, squared)):
        if is_free:
            columns.append((at_nodes @ (tables.weights * change))[:, None])
    return np.hstack(columns)
