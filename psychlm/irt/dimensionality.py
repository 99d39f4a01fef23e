r"""Number of abilities: tetrachoric correlations, their eigenvalues, and tests of nested models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.special import chdtrc, ndtr, ndtri

from psychlm.frames import FrameError, check_responses, constant_items, refuse
from psychlm.irt.item_fit import pair_tables
from psychlm.irt.result import InformationCriteria

LEAST_RATIO = 3.0  # first to second eigenvalue of an essentially one-dimensional test
LOGISTIC_TO_NORMAL = 1.702  # slope at which the logistic curve is closest to the normal ogive
NODES = 48  # Gauss-Legendre; cell probabilities are good to 1e-9 for correlations within +-0.999
PAIRS_PER_BLOCK = 50_000  # pairs of items computed at once: bounds memory


@dataclass(frozen=True)
class LikelihoodRatio:
    """A likelihood-ratio test of two nested models."""

    chi2: float  # twice the gain in log-likelihood (nats)
    df: int
    p: float


def tetrachoric(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the matrix of tetrachoric correlations between items.

    A right response is a standard normal variable above the item's threshold. Thresholds are taken
    from the proportions correct; the correlation of a pair is then the one under which the four
    cells of its 2 x 2 table are most likely (Pearson 1900; the two-step estimator of Olsson 1979,
    Psychometrika 44, 443-460, equation 17).

    A pair's table counts the persons who answered both, thresholds all who answered the item; an
    empty cell counts 0.5. Both are defaults of R's ``psych`` (``global=TRUE``).

    >>> from psychlm import corpora
    >>> float(tetrachoric(corpora.lsat6()).loc["LSAT 1", "LSAT 2"].round(3))
    0.17
    """
    checked = varying(responses)
    x, n_items = checked.to_numpy(), checked.shape[1]
    i, j = np.triu_indices(n_items, 1)
    tables = pair_tables(x, torch.device("cpu"))[i, :, j, :].reshape(-1, 4).T
    never = np.flatnonzero(tables.sum(axis=0) == 0)
    if len(never):
        a, b = checked.columns[i[never[0]]], checked.columns[j[never[0]]]
        raise FrameError(
            f"items {a!r} and {b!r} were never answered by the same person ({len(never)} such "
            "pairs), so their correlation is unknown; analyse each booklet's items apart"
        )
    threshold = -ndtri(np.nanmean(x, axis=0))
    tables = np.where(tables == 0, 0.5, tables)
    rho = np.eye(n_items)
    for start in range(0, len(i), PAIRS_PER_BLOCK):
        pairs = slice(start, start + PAIRS_PER_BLOCK)
        a, b = i[pairs], j[pairs]
        rho[a, b] = rho[b, a] = _most_likely(tables[:, pairs], threshold[a], threshold[b])
    return pd.DataFrame(rho, index=checked.columns, columns=checked.columns)


def _most_likely(tables: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the correlation at which each 2 x 2 table is most likely, given thresholds h and k.

    On the arcsine scale t of the correlation, the derivative of the log-likelihood has the sign of
    n00/p00 + n11/p11 - n01/p01 - n10/p10, which falls in t. Fisher scoring finds its root; a step
    that leaves the bracket is replaced by bisection.
    """
    low, high, angle = np.full(h.shape, -np.pi / 2), np.full(h.shape, np.pi / 2), np.zeros(h.shape)
    sign = np.array([1.0, -1.0, -1.0, 1.0])[:, None]
    for _ in range(80):  # enough to bisect the whole range to the last digit
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


def cell_probabilities(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    r"""Return quadrant probabilities of bivariate normals with correlation sin(angle), cut at h, k.

    .. math:: P(X>h, Y>k) = \Phi(-h)\Phi(-k) + \frac{1}{2\pi}\int_0^{\arcsin\rho}
              \exp\!\Big(-\frac{h^2+k^2-2hk\sin t}{2\cos^2 t}\Big)\,dt

    (Drezner & Wesolowsky 1990, Journal of Statistical Computation and Simulation 35, 101-107), of
    (0, 0), (0, 1), (1, 0) and (1, 1); shape (4, n_pairs), at least 1e-300.
    """
    node, weight = np.polynomial.legendre.leggauss(NODES)
    integral = (weight @ _density(np.multiply.outer((node + 1) / 2, angle), h, k)) * angle / 2
    margins = [ndtr(h) * ndtr(k), ndtr(h) * ndtr(-k), ndtr(-h) * ndtr(k), ndtr(-h) * ndtr(-k)]
    cells = [p + sign * integral for p, sign in zip(margins, (1, -1, -1, 1), strict=True)]
    return np.maximum(np.stack(cells), 1e-300)


def _density(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the derivative of P(X>h, Y>k) by the arcsine of the correlation."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = -(h**2 + k**2 - 2 * h * k * np.sin(angle)) / (2 * np.cos(angle) ** 2)
        return np.exp(exponent) / (2 * np.pi)


def eigenvalues(responses: pd.DataFrame) -> pd.Series:
    """Return the eigenvalues of :func:`tetrachoric`'s matrix, largest first, indexed 1, 2, ...

    A test is essentially one-dimensional if the first is at least three times the second
    (Slocum-Gori & Zumbo 2011). The last ones may be negative.

    >>> from psychlm import corpora
    >>> eigenvalues(corpora.lsat6()).round(2).tolist()
    [1.62, 1.0, 0.88, 0.77, 0.73]
    """
    values = np.linalg.eigvalsh(tetrachoric(responses).to_numpy())[::-1]
    factors = pd.RangeIndex(1, len(values) + 1, name="factor")
    return pd.Series(values, index=factors, name="eigenvalue")


def likelihood_ratio(
    fit_small: InformationCriteria, fit_big: InformationCriteria
) -> LikelihoodRatio:
    """Test a model within a larger one, both fitted to the same responses.

    Fits by different methods, by variational inference or with priors are refused, and a bigger
    model without more parameters, or with a log-likelihood lower by more than 0.01 nats.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> likelihood_ratio(irt.fit(lsat, "1PL"), irt.fit(lsat, "2PL")).df
    4
    """
    if fit_small.data_hash != fit_big.data_hash:
        raise ValueError("the models were fitted to different responses; fit both to one frame")
    methods = {fit.method for fit in (fit_small, fit_big)}
    if len(methods) > 1 or "vi" in methods:
        raise ValueError(
            f"the fits' methods are {sorted(methods)}, whose log-likelihoods cannot be compared: "
            '"laplace" integrates over difficulties, and "vi" reaches no maximum; fit both alike'
        )
    if any(fit.log_prior for fit in (fit_small, fit_big)):
        raise ValueError(
            "a fit with priors has no maximum of the likelihood, and twice the gain no chi-square "
            "distribution; fit both models without priors, or compare what they predict"
        )
    df = fit_big.n_parameters - fit_small.n_parameters
    if df <= 0:
        raise ValueError(
            f"the bigger model has {df} parameters more; give the small (restricted) model first"
        )
    gain = fit_big.loglik - fit_small.loglik
    if gain < -0.01:
        raise ValueError(
            f"the bigger model's log-likelihood is lower by {-gain:.3f} nats; the models are not "
            "nested, or the bigger one needs more iterations"
        )
    chi2 = 2 * max(gain, 0.0)
    return LikelihoodRatio(chi2, df, float(chdtrc(df, chi2)))


def varying(responses: pd.DataFrame) -> pd.DataFrame:
    """Return checked responses, refusing items that everyone answered alike."""
    checked = check_responses(responses)
    refuse(
        "items",
        constant_items(checked),
        "were answered alike by everyone, so nothing can be estimated; drop them: "
        "frames.drop_constant(responses)",
    )
    return checked
