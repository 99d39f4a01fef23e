"""M2: the fit of a model as a whole, by its item means and joint means of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy
from scipy.special import expit, logit

from psychlm.irt.item_fit import ModelTables, rmsea

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
    srmsr: float  # root mean squared difference of observed and expected pair correlations
    tli: float  # against independence of all items
    cfi: float  # likewise, kept within 0 and 1
    n_persons: int


def m2(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> M2Fit:
    r"""Test the model as a whole by its first- and second-order margins.

    .. math:: M_2 = N\, r' \big[\Xi^{-1}
              - \Xi^{-1}\Delta(\Delta'\Xi^{-1}\Delta)^{-1}\Delta'\Xi^{-1}\big]\, r

    with r the residual margins (proportions right on items and pairs of items), :math:`\Xi` their
    covariance and :math:`\Delta` their derivatives by the parameters. Tables of all response
    patterns are too sparse for a chi-square test; their margins are not.

    Parameters
    ----------
    fit : IRTFit or ModelTables
        A model of n items needs fewer than n(n + 1)/2 parameters.
    responses : DataFrame, shape (n_persons, n_items)
        With missing responses, each margin is taken over the persons who were asked its items, and
        :math:`\Xi/N` is scaled by who was asked both margins: exact where what was asked does not
        depend on ability (booklets). Pairs that nobody was asked do not count.

    Raises
    ------
    ValueError
        If no degree of freedom is left.

    Notes
    -----
    For models with free guessing mirt 1.45 gives slightly lower values: it takes P(1 - P) for the
    derivative of P by the intercept, which is (P - c)(1 - P)/(1 - c).

    References
    ----------
    Maydeu-Olivares & Joe (2006), Psychometrika 71, 713-732, equation 13; Cai & Hansen (2013) for
    TLI and CFI; Browne & Cudeck (1992), equation 7, for the interval of the RMSEA.
    """
    tables = ModelTables.from_fit(fit)
    if np.any(np.asarray(tables.upper) < 1):
        raise ValueError("M2 of items with upper asymptotes (4PL) is not built; use s_x2 or ld_x2")
    x = tables.response_array(responses)
    n, n_items = x.shape
    statistic, df = _quadratic_form(tables, x)
    if df <= 0:
        raise ValueError(
            f"{n_items} items give too few margins for this model ({df} degrees of freedom); "
            "fix or share parameters (a 2PL needs 4 items, a 3PL 6), or add items"
        )
    # The baseline of TLI and CFI: independent items, each with its observed proportion correct.
    independence = ModelTables(
        items=tables.items,
        slope=np.zeros(n_items),
        intercept=logit(np.nanmean(x, axis=0)),
        guess=np.zeros(n_items),
        nodes=np.zeros(1),
        weights=np.ones(1),
        guess_is_free=np.zeros(n_items, dtype=bool),
        slope_is="fixed",
    )
    baseline, df_baseline = _quadratic_form(independence, x)

    def limit(tail: float) -> float:
        """Return the RMSEA at which M2 is the quantile 1 - tail of noncentral chi-square."""
        if scipy.stats.chi2.cdf(statistic, df) < tail:
            return 0.0
        largest = 2 * statistic + 100
        nc = scipy.optimize.brentq(
            lambda nc: scipy.stats.ncx2.cdf(statistic, df, nc) - tail, 1e-12, largest
        )
        return float(np.sqrt(nc / (df * (n - 1))))

    # SRMSR: observed less expected correlations of pairs.
    mean = tables.probability @ tables.weights
    sd = np.sqrt(mean * (1 - mean))
    expected = (tables.pair_probability[3] - np.outer(mean, mean)) / np.outer(sd, sd)
    difference = (pd.DataFrame(x).corr().to_numpy() - expected)[np.triu_indices(n_items, 1)]
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


def _quadratic_form(tables: ModelTables, x: np.ndarray) -> tuple[float, int]:
    """Return M2 and its degrees of freedom: the residual sum of squares of the whitened margins."""
    i, j = np.triu_indices(x.shape[1], 1)
    # Observed margins: who was asked, and who was right, on every item and every pair.
    asked = np.isfinite(x).astype(float)
    asked = np.hstack([asked, asked[:, i] * asked[:, j]])
    right = np.nan_to_num(x)
    right = np.hstack([right, right[:, i] * right[:, j]])
    n = asked.sum(axis=0)
    known = n > 0
    # Expected margins: P of items and pairs at each node, averaged over ability.
    p = tables.probability
    at_nodes = np.vstack([p, p[i] * p[j]])
    residual = right.sum(axis=0)[known] / n[known] - (at_nodes @ tables.weights)[known]
    overlap = (asked.T @ asked)[np.ix_(known, known)] / np.outer(n[known], n[known])
    covariance = _covariance(tables, at_nodes)[np.ix_(known, known)] * overlap
    derivatives = jacobian(tables, at_nodes)[known]
    # Whiten by the Cholesky factor; least squares removes what the parameters explain.
    root = scipy.linalg.cholesky(covariance, lower=True)
    white = scipy.linalg.solve_triangular(
        root, np.column_stack([residual, derivatives]), lower=True
    )
    explained, *_ = np.linalg.lstsq(white[:, 1:], white[:, 0], rcond=None)
    left = white[:, 0] - white[:, 1:] @ explained
    return float(left @ left), int(known.sum() - derivatives.shape[1])


def _covariance(tables: ModelTables, at_nodes: np.ndarray) -> np.ndarray:
    """Return the covariance of one person's margins, shape (n_margins, n_margins)."""
    p, w = tables.probability, tables.weights
    n_items = len(p)
    joint = (at_nodes * w) @ at_nodes.T
    i, j = np.triu_indices(n_items, 1)
    # place[k] numbers the margins that hold item k: two of them need it right once, not twice.
    place = np.diag(np.arange(n_items))
    place[i, j] = place[j, i] = np.arange(n_items, len(at_nodes))
    for k in range(n_items):
        others = p.copy()
        others[k] = 1
        joint[np.ix_(place[k], place[k])] = (others * (w * p[k])) @ others.T
    expected = at_nodes @ w
    np.fill_diagonal(joint, expected)
    return joint - np.outer(expected, expected)


def jacobian(tables: ModelTables, at_nodes: np.ndarray) -> np.ndarray:
    """Return derivatives of the expected margins by free parameters, (n_margins, n_parameters).

    In the order intercepts, slopes, guessing, mean and standard deviation of ability.
    """
    n_items = len(tables.items)
    i, j = np.triu_indices(n_items, 1)
    pairs = np.arange(n_items, n_items + len(i))

    def by_item(derivative: np.ndarray) -> np.ndarray:
        """Spread dP/dparameter of every item at every node over the margins that hold the item."""
        weighted = derivative * tables.weights
        with_other = weighted @ tables.probability.T
        spread = np.zeros((len(at_nodes), n_items))
        spread[np.arange(n_items), np.arange(n_items)] = weighted.sum(axis=1)
        spread[pairs, i], spread[pairs, j] = with_other[i, j], with_other[j, i]
        return spread

    logistic = expit(np.multiply.outer(tables.slope, tables.nodes) + tables.intercept[:, None])
    by_logit = (1 - tables.guess[:, None]) * logistic * (1 - logistic)
    columns = [by_item(by_logit)] if tables.intercept_is_free else []
    if tables.slope_is == "free":
        columns.append(by_item(by_logit * tables.nodes))
    elif tables.slope_is == "common":
        columns.append(by_item(by_logit * tables.nodes).sum(axis=1, keepdims=True))
    if tables.guess_is_free.any():
        columns.append(by_item(1 - logistic)[:, tables.guess_is_free])
    # The weights' derivatives: up to constants, w (theta - mean) and w ((theta - mean)^2 - var).
    centred = tables.nodes - tables.weights @ tables.nodes
    if tables.mean_is_free:
        columns.append((at_nodes @ (tables.weights * centred))[:, None])
    if tables.sd_is_free:
        squared = centred**2
        columns.append(
            (at_nodes @ (tables.weights * (squared - tables.weights @ squared)))[:, None]
        )
    return np.hstack(columns)
