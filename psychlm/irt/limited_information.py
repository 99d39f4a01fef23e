"""M2: the fit of a model as a whole, judged by how well it gives the items' means and the pairs' joint means.

Tables of all response patterns are far too sparse for a chi-square test; their first two orders of margins are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import linalg, optimize, stats
from scipy.special import expit, logit

from psychlm.irt.expected import ModelTables, answers_to, as_tables
from psychlm.irt.goodness import rmsea

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit


@dataclass(frozen=True)
class M2Fit:
    """The M2 statistic and the indices built on it."""

    m2: float  # chi-square distributed if the model holds
    df: int
    p: float
    rmsea: float
    rmsea_low: float  # limits of the 90 % interval
    rmsea_high: float
    srmsr: float  # root mean squared difference of observed and expected correlations of item pairs
    tli: float  # against independence of all items
    cfi: float  # likewise, kept within 0 and 1
    n_persons: int


def m2(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> M2Fit:
    r"""Test the model as a whole by its first- and second-order margins.

    .. math:: M_2 = N\, r' \big[\Xi^{-1} - \Xi^{-1}\Delta(\Delta'\Xi^{-1}\Delta)^{-1}\Delta'\Xi^{-1}\big]\, r

    with r the residual margins, :math:`\Xi` their covariance and :math:`\Delta` their derivatives by the parameters.

    Parameters
    ----------
    fit : IRTFit or ModelTables
        A model of n items needs fewer than n(n + 1)/2 parameters.
    responses : DataFrame, shape (n_persons, n_items)
        With answers missing, each margin is taken over the persons who were asked its items, and :math:`\Xi/N` is
        scaled by who was asked both margins: exact where what was asked does not depend on ability (booklets).
        Pairs that nobody was asked do not count.

    Returns
    -------
    M2Fit

    Raises
    ------
    ValueError
        If no degree of freedom is left.

    Notes
    -----
    For models with free guessing mirt 1.45 gives slightly lower values: its derivatives of P by slope and intercept are
    proportional to P(1 - P) there, where (P - c)(1 - P)/(1 - c) is due. The tests show both.

    References
    ----------
    Maydeu-Olivares & Joe (2006), Psychometrika 71, 713-732, equation 13; Cai & Hansen (2013) for TLI and CFI.
    """
    tables = as_tables(fit)
    x = answers_to(tables, responses)
    statistic, df = _quadratic_form(tables, x)
    if df <= 0:
        raise ValueError(
            f"{len(tables.items)} items give too few margins for this model ({df} degrees of freedom); "
            "fix or share parameters (a 2PL needs 4 items, a 3PL 6), or add items"
        )
    at_chance, df_chance = _quadratic_form(_independence(tables, x), x)
    n = len(x)
    low, high = _rmsea_interval(statistic, df, n)
    return M2Fit(
        m2=statistic,
        df=df,
        p=float(stats.chi2.sf(statistic, df)),
        rmsea=float(rmsea(np.array(statistic), np.array(df), np.array(n))),
        rmsea_low=low,
        rmsea_high=high,
        srmsr=_srmsr(tables, x),
        tli=(at_chance / df_chance - statistic / df) / (at_chance / df_chance - 1),
        cfi=float(np.clip(1 - (statistic - df) / (at_chance - df_chance), 0, 1)),
        n_persons=n,
    )


def _quadratic_form(tables: ModelTables, x: np.ndarray) -> tuple[float, int]:
    """Return M2 and its degrees of freedom: what least squares leaves of the whitened residual margins."""
    i, j = np.triu_indices(x.shape[1], 1)
    was_asked = np.isfinite(x).astype(float)
    asked = np.hstack([was_asked, was_asked[:, i] * was_asked[:, j]])
    right = np.nan_to_num(x)
    right = np.hstack([right, right[:, i] * right[:, j]])
    n = asked.sum(axis=0)
    known = n > 0
    margins = _margins(tables.probability)
    expected = margins @ tables.weights
    residual = (right.sum(axis=0)[known] / n[known]) - expected[known]
    overlap = (asked.T @ asked)[np.ix_(known, known)] / np.outer(n[known], n[known])
    covariance = _covariance(tables, margins)[np.ix_(known, known)] * overlap
    root = linalg.cholesky(covariance, lower=True)
    jacobian = _jacobian(tables, margins)[known]
    white = linalg.solve_triangular(root, np.column_stack([residual, jacobian]), lower=True)
    explained, *_ = np.linalg.lstsq(white[:, 1:], white[:, 0], rcond=None)
    left = white[:, 0] - white[:, 1:] @ explained
    return float(left @ left), int(known.sum() - jacobian.shape[1])


def _margins(probability: np.ndarray) -> np.ndarray:
    """Return P(item) of every item, then P(both) of every pair, at each node."""
    i, j = np.triu_indices(len(probability), 1)
    return np.vstack([probability, probability[i] * probability[j]])


def _covariance(tables: ModelTables, margins: np.ndarray) -> np.ndarray:
    """Return the covariance of one person's margins, shape (n_margins, n_margins)."""
    p, w = tables.probability, tables.weights
    n_items = len(p)
    joint = (margins * w) @ margins.T
    i, j = np.triu_indices(n_items, 1)
    place = np.diag(np.arange(n_items))
    place[i, j] = place[j, i] = np.arange(n_items, len(margins))
    for k in range(n_items):  # two margins that share item k need it right once, not twice
        others = p.copy()
        others[k] = 1
        joint[np.ix_(place[k], place[k])] = (others * (w * p[k])) @ others.T
    expected = margins @ w
    np.fill_diagonal(joint, expected)
    return joint - np.outer(expected, expected)


def _jacobian(tables: ModelTables, margins: np.ndarray) -> np.ndarray:
    """Return the derivatives of the expected margins by every free parameter, shape (n_margins, n_parameters)."""
    logistic = expit(np.multiply.outer(tables.slope, tables.nodes) + tables.intercept[:, None])
    by_intercept = (1 - tables.guess[:, None]) * logistic * (1 - logistic)
    columns = [_by_item(tables, by_intercept)] if tables.intercept_is_free else []
    if tables.slope_is != "fixed":
        by_slope = _by_item(tables, by_intercept * tables.nodes)
        columns.append(
            by_slope if tables.slope_is == "free" else by_slope.sum(axis=1, keepdims=True)
        )
    if tables.guess_is_free.any():
        columns.append(_by_item(tables, 1 - logistic)[:, tables.guess_is_free])
    from_mean = tables.nodes - tables.weights @ tables.nodes
    if tables.mean_is_free:
        columns.append((margins @ (tables.weights * from_mean))[:, None])
    if tables.sd_is_free:
        squared = from_mean**2
        columns.append((margins @ (tables.weights * (squared - tables.weights @ squared)))[:, None])
    return np.hstack(columns)


def _by_item(tables: ModelTables, derivative: np.ndarray) -> np.ndarray:
    """Spread dP/dparameter of every item at every node over the margins that hold the item."""
    n_items = len(derivative)
    i, j = np.triu_indices(n_items, 1)
    pairs = np.arange(n_items, n_items + len(i))
    weighted = derivative * tables.weights
    with_other = weighted @ tables.probability.T
    jacobian = np.zeros((n_items + len(i), n_items))
    jacobian[np.arange(n_items), np.arange(n_items)] = weighted.sum(axis=1)
    jacobian[pairs, i] = with_other[i, j]
    jacobian[pairs, j] = with_other[j, i]
    return jacobian


def _independence(tables: ModelTables, x: np.ndarray) -> ModelTables:
    """Return the model in which nothing but each item's mean is known."""
    n_items = x.shape[1]
    return ModelTables(
        items=tables.items,
        slope=np.zeros(n_items),
        intercept=logit(np.nanmean(x, axis=0)),
        guess=np.zeros(n_items),
        nodes=np.zeros(1),
        weights=np.ones(1),
        guess_is_free=np.zeros(n_items, dtype=bool),
        slope_is="fixed",
    )


def _rmsea_interval(
    statistic: float, df: int, n_persons: int, level: float = 0.9
) -> tuple[float, float]:
    """Return the limits of the RMSEA's interval from those of the noncentrality (Browne & Cudeck 1992, equation 7)."""

    def limit(tail: float) -> float:
        if stats.chi2.cdf(statistic, df) < tail:
            return 0.0
        largest = 2 * statistic + 100
        return optimize.brentq(lambda nc: stats.ncx2.cdf(statistic, df, nc) - tail, 1e-12, largest)

    low, high = (
        np.sqrt(limit(tail) / (df * (n_persons - 1))) for tail in ((1 + level) / 2, (1 - level) / 2)
    )
    return float(low), float(high)


def _srmsr(tables: ModelTables, x: np.ndarray) -> float:
    """Return the standardised root mean squared residual of the correlations of item pairs."""
    mean = tables.probability @ tables.weights
    joint = (tables.probability * tables.weights) @ tables.probability.T
    sd = np.sqrt(mean * (1 - mean))
    expected = (joint - np.outer(mean, mean)) / np.outer(sd, sd)
    observed = pd.DataFrame(x).corr().to_numpy()
    difference = (observed - expected)[np.triu_indices(len(mean), 1)]
    return float(np.sqrt(np.nanmean(difference**2)))
