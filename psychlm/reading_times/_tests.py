"""Tests of smooths and of random effects, whose statistics are weighted sums of chi-squares.

References: Wood (2013), On p-values for smooth components of an extended generalized additive
model, Biometrika 100; Wood (2013b), A simple test for random effects in regression models,
Biometrika 100; Imhof (1961), Computing the distribution of quadratic forms, Biometrika 48.
"""

from __future__ import annotations

import numpy as np
import scipy

from psychlm.reading_times._result import Floats

SMALL = 1e-7  # probabilities below are approximated in the tail, where integration has no digits


def exceedance(weights: Floats, statistic: float, dof: float) -> float:
    """Return P(sum_i w_i X_i > statistic * Y / dof), X_i chi-squared of 1, Y of ``dof`` degrees.

    Y / dof is the estimate of the residual variance as a share of the true one; it is 1 where
    ``dof`` is infinite. Imhof's (1961) integral of the characteristic function; small
    probabilities by Lugannani and Rice's saddlepoint approximation, to about 10 %.

    >>> round(exceedance(np.ones(3), 3 * 2.6, 20), 4), round(float(scipy.stats.f.sf(2.6, 3, 20)), 4)
    (0.0806, 0.0806)
    """
    if statistic <= 0 or not len(weights):
        return 1.0
    # P(sum_j a_j X_j > shift), where X_j has h_j degrees of freedom.
    if np.isfinite(dof):
        a, h, shift = np.r_[weights, -statistic / dof], np.r_[np.ones(len(weights)), dof], 0.0
    else:
        a, h, shift = weights, np.ones(len(weights)), statistic
    size = weights.max()
    a, shift = a / size, shift / size

    def integrand(u: float) -> float:
        angle = (h @ np.arctan(a * u) - shift * u) / 2
        return float(np.sin(angle) / u * np.exp(-(h @ np.log1p((a * u) ** 2)) / 4))

    p = 0.5 + scipy.integrate.quad(integrand, 0, np.inf, limit=2000, epsabs=1e-10)[0] / np.pi
    if p > SMALL:
        return min(p, 1.0)

    # K(t) = -sum h_j log(1 - 2 a_j t) / 2 - shift t, whose derivative is zero at t, 0 < t < 1/2.
    def slope(t: float) -> float:
        return float(h @ (a / (1 - 2 * a * t)) - shift)

    t = scipy.optimize.brentq(slope, 0, 0.5 * (1 - 1e-12), xtol=1e-15)
    cumulant = -(h @ np.log1p(-2 * a * t)) / 2 - shift * t
    w = np.sqrt(-2 * cumulant)
    v = t * np.sqrt(2 * h @ np.square(a / (1 - 2 * a * t)))
    return float(scipy.stats.norm.sf(w + np.log(v / w) / w))


def test_smooth(
    beta: Floats, covariance: Floats, xx: Floats, rank: float, dof: float
) -> tuple[float, float, float]:
    """Test whether a smooth is zero; return the rank, F and p.

    With the values f = X b at the data and their covariance V = X V_b X' = U diag(l) U', the
    statistic is f'V^r- f, in which the pseudo-inverse has rank r = k + v, 0 <= v < 1: the k - 1
    largest eigenvalues are inverted, and the next two enter by the matrix

        B = diag(l_k, l_k+1)^-1/2 [1, c; c, v] diag(l_k, l_k+1)^-1/2     c = (v (1 - v) / 2)^1/2

    (Wood 2013, section 2). The sign of c depends on that of eigenvectors, so F and p are means over
    both (mgcv's p is too; its F has the sign that its eigenvectors happen to have). Under the null
    the statistic is chi-squared of k - 1 degrees plus the eigenvalues of the middle matrix,
    (v + 1 +- (1 - v^2)^1/2) / 2, times chi-squares of one.

    Parameters
    ----------
    beta, covariance, xx : ndarray, shapes (p,), (p, p), (p, p)
        Coefficients, their Bayesian covariance, and the cross-products X'X.
    rank : float
        Effective degrees of freedom 2 tr F - tr FF.
    dof : float
        Residual degrees of freedom; infinite where the scale is known.
    """
    values, vectors = np.linalg.eigh(xx)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T  # root'root = X'X
    values, vectors = np.linalg.eigh(root @ covariance @ root.T)
    values, along = values[::-1], (vectors.T @ (root @ beta))[::-1]
    rank = min(rank, float((values > values[0] * 1e-14).sum()))
    k = int(np.floor(rank))
    v = rank - k
    z = along / np.sqrt(np.maximum(values, values[0] * 1e-300))
    if k == 0:  # less than one degree of freedom: the largest eigenvalue alone
        return rank, float(z[0] ** 2 / rank), exceedance(np.ones(1), float(z[0] ** 2), dof)
    if v == 0:
        statistics, weights = [z[:k] @ z[:k]], np.ones(k)
    else:
        c, e = np.sqrt(v * (1 - v) / 2), np.sqrt(1 - v**2)
        base = z[: k - 1] @ z[: k - 1] + z[k - 1] ** 2 + v * z[k] ** 2
        statistics = [base + sign * 2 * c * z[k - 1] * z[k] for sign in (1, -1)]
        weights = np.r_[np.ones(k - 1), (v + 1 + e) / 2, (v + 1 - e) / 2]
    p = np.mean([exceedance(weights, float(x), dof) for x in statistics])
    return rank, float(np.mean(statistics)) / rank, float(p)


def test_random(
    beta: Floats,
    xx: Floats,
    penalty: Floats,
    owner: np.ndarray,
    label: str,
    scale: float,
    dof: float,
) -> tuple[float, float, float]:
    """Test whether the variance of a random effect is zero; return the rank, F and p.

    The other random effects Z, of penalty S_z, are part of the residual covariance, of which the
    scale is one factor and Q = I + Z S_z^-1 Z' the other. Estimates of the kept columns X have the
    frequentist covariance W = (M + S)^-1 M (M + S)^-1 scale with M = X'Q^-1 X. The statistic is
    b'P b / scale with P the inverse of the tested block of (X'Q X + S)^-1, which is mgcv's choice
    of a weight, and under the null a sum of chi-squares weighted by the eigenvalues of P W / scale
    (Wood 2013b).

    Parameters
    ----------
    beta, penalty : ndarray, shape (p,)
        Coefficients and the diagonal of S, of all columns.
    xx : ndarray, shape (p, p)
    owner : ndarray of str, shape (p,)
        The random effect that each column belongs to, or "".
    label : str
        The one to test.
    """
    tested = owner == label
    others = (owner != "") & ~tested
    kept = ~others
    m = weight = xx[np.ix_(kept, kept)]
    if others.any():
        border, of_z = xx[np.ix_(others, kept)], np.diag(penalty[others])
        m = m - border.T @ np.linalg.solve(xx[np.ix_(others, others)] + of_z, border)
        weight = weight + border.T @ (border / penalty[others][:, None])
    s, chosen = np.diag(penalty[kept]), np.ix_(tested[kept], tested[kept])
    inverse = np.linalg.inv(m + s)
    frequentist = (inverse @ m @ inverse)[chosen]
    precision = np.linalg.inv(np.linalg.inv(weight + s)[chosen])
    values, vectors = np.linalg.eigh(frequentist)
    root = vectors * np.sqrt(np.maximum(values, 0))
    weights = np.linalg.eigvalsh(root.T @ precision @ root)
    weights = weights[weights > weights.max() * 1e-10]
    statistic = float(beta[tested] @ precision @ beta[tested] / scale)
    rank = float(len(weights))
    return rank, statistic / rank, exceedance(weights, statistic, dof)
