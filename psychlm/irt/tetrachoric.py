"""Tetrachoric correlations of all pairs of items at once.

A right answer is read as a normal variable beyond the item's threshold. With the thresholds taken from the items'
proportions correct, one number per pair is left: the correlation under which the four cells of its 2 x 2 table are
most likely (Pearson 1900; two-step estimator of Olsson 1979, Psychometrika 44, 443-460, equation 17).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from psychlm.frames import FrameError, check_responses, constant_items

INTEGRATION_POINTS = (
    48  # Gauss-Legendre; cell probabilities good to 1e-9 or better for correlations within +-0.999
)
MAX_STEPS = 80  # enough to bisect the whole range to the last digit
PAIRS_PER_BLOCK = (
    50_000  # bounds memory: a block holds this many pairs x INTEGRATION_POINTS doubles
)


def tetrachoric(
    responses: pd.DataFrame, *, correct: float = 0.5, smooth: bool = False
) -> pd.DataFrame:
    """Return the matrix of tetrachoric correlations between items.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN. A pair's table counts the persons who answered both; a threshold, all who answered the item.
    correct : float
        What an empty cell of a pair's table counts as (the continuity correction of R's ``psych``, whose default this
        is). With 0, a pair with an empty cell may have a correlation of exactly -1 or 1.
    smooth : bool
        Estimated pair by pair, the matrix may have negative eigenvalues. True lifts them to just above 0, as ``psych``
        does by default; a few easy items can change correlations by 0.03 in this way, so it must be asked for.

    Returns
    -------
    DataFrame, shape (n_items, n_items)
        Ones on the diagonal.

    Raises
    ------
    FrameError
        If the responses break their contract, an item was answered alike by everyone (it has no threshold), or two
        items were never answered by the same person.
    ValueError
        If ``correct`` is negative.
    """
    if correct < 0:
        raise ValueError(
            f"correct is {correct}, and an empty cell cannot count less than 0; R's psych takes 0.5"
        )
    responses = check_responses(responses)
    constant = constant_items(responses)
    if len(constant):
        raise FrameError(
            f"items {list(constant)} were answered alike by everyone, so no correlation with them is defined; "
            "drop them with frames.drop_constant(responses)"
        )
    x = responses.to_numpy()
    rho = _correlation_matrix(x, correct, list(responses.columns))
    if smooth:
        rho = _lift_eigenvalues(rho)
    return pd.DataFrame(rho, index=responses.columns, columns=responses.columns)


def _correlation_matrix(x: np.ndarray, correct: float, names: list) -> np.ndarray:
    """Return the correlations of the columns of x, shape (n_persons, n_items)."""
    n_items = x.shape[1]
    i, j = np.triu_indices(n_items, 1)
    tables = pair_tables(x)[:, i, j]
    never = np.flatnonzero(tables.sum(axis=0) == 0)
    if len(never):
        k = never[0]
        raise FrameError(
            f"items {names[i[k]]!r} and {names[j[k]]!r} were never answered by the same person ({len(never)} such "
            "pairs), so their correlation is unknown; analyse each booklet's items apart"
        )
    threshold = -ndtri(np.nanmean(x, axis=0))
    tables = np.where(tables == 0, correct, tables)
    rho = np.eye(n_items)
    for start in range(0, len(i), PAIRS_PER_BLOCK):
        block = slice(start, start + PAIRS_PER_BLOCK)
        here, there = i[block], j[block]
        rho[here, there] = rho[there, here] = _most_likely(
            tables[:, block], threshold[here], threshold[there]
        )
    return rho


def _lift_eigenvalues(rho: np.ndarray, least: float = 1e-12) -> np.ndarray:
    """Return the matrix with its eigenvalues below ``least`` lifted to 100 times that, and its diagonal 1 again."""
    values, vectors = np.linalg.eigh(rho)
    if values.min() >= np.finfo(float).eps:
        return rho
    lifted = (vectors * np.where(values < least, 100 * least, values)) @ vectors.T
    scale = np.sqrt(np.diag(lifted))
    return lifted / np.outer(scale, scale)


def pair_tables(x: np.ndarray) -> np.ndarray:
    """Count the 2 x 2 table of every pair of items among the persons who answered both.

    Parameters
    ----------
    x : ndarray, shape (n_persons, n_items)
        Values 0, 1 or NaN.

    Returns
    -------
    ndarray, shape (4, n_items, n_items)
        Counts of (0, 0), (0, 1), (1, 0) and (1, 1), the row's item first.
    """
    right = (x == 1).astype(np.float64)
    wrong = (x == 0).astype(np.float64)
    return np.stack([wrong.T @ wrong, wrong.T @ right, right.T @ wrong, right.T @ right])


def _most_likely(tables: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the correlation at which each table is most likely, its thresholds h and k given.

    The derivative of the log-likelihood has the sign of n00/p00 + n11/p11 - n01/p01 - n10/p10, which falls as the
    correlation grows. Fisher scoring on the arcsine scale finds its root; a step that leaves the bracket is
    replaced by bisection.
    """
    low = np.full(h.shape, -np.pi / 2)
    high = np.full(h.shape, np.pi / 2)
    angle = np.zeros(h.shape)
    sign = np.array([1.0, -1.0, -1.0, 1.0])[:, None]
    for _ in range(MAX_STEPS):
        p = cell_probabilities(angle, h, k)
        slope = (sign * tables / p).sum(axis=0)
        low, high = np.where(slope > 0, angle, low), np.where(slope > 0, high, angle)
        information = tables.sum(axis=0) * _density(angle, h, k) * (1 / p).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = angle + slope / information
        inside = (step > low) & (step < high)
        previous, angle = angle, np.where(inside, step, (low + high) / 2)
        if np.abs(angle - previous).max() < 1e-10:
            break
    return np.sin(angle)


def _density(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the derivative of P(X>h, Y>k) with respect to the arcsine of the correlation."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.exp(-(h**2 + k**2 - 2 * h * k * np.sin(angle)) / (2 * np.cos(angle) ** 2)) / (
            2 * np.pi
        )


def cell_probabilities(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    r"""Return the four quadrant probabilities of a bivariate normal with correlation sin(angle), cut at h and k.

    .. math:: P(X>h, Y>k) = \Phi(-h)\Phi(-k) + \frac{1}{2\pi}\int_0^{\arcsin\rho}
              \exp\!\Big(-\frac{h^2+k^2-2hk\sin t}{2\cos^2 t}\Big)\,dt

    (Drezner & Wesolowsky 1990, Journal of Statistical Computation and Simulation 35, 101-107).

    Returns
    -------
    ndarray, shape (4, n_pairs)
        In the order of :func:`pair_tables`; cells whose probability vanishes may come out as small as rounding.
    """
    node, weight = np.polynomial.legendre.leggauss(INTEGRATION_POINTS)
    t = np.multiply.outer((node + 1) / 2, angle)
    shift = (weight @ _density(t, h, k)) * angle / 2
    both = ndtr(-h) * ndtr(-k) + shift
    cells = np.stack(
        [ndtr(h) * ndtr(k) + shift, ndtr(h) * ndtr(-k) - shift, ndtr(-h) * ndtr(k) - shift, both]
    )
    return np.maximum(cells, 1e-300)
