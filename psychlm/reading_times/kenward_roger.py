"""Small-sample tests of the fixed effects of a mixed model.

Reference: Kenward & Roger (1997), Small sample inference for fixed effects from restricted maximum
likelihood, Biometrics 53.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from psychlm.reading_times.contrasts import Floats

LARGEST = 3000  # rows for which the covariance is computed, as in emmeans


@dataclass(frozen=True)
class KenwardRoger:
    """The covariance of coefficients for small samples, and the degrees of freedom that go with it.

    The response has the covariance V = sum_i gamma_i G_i. With Phi = (X'V^-1 X)^-1,

        P_i = -X'V^-1 G_i V^-1 X,      Q_ij = X'V^-1 G_i V^-1 G_j V^-1 X
        W^-1 = [tr(V^-1 G_i V^-1 G_j) - 2 tr(Phi Q_ij) + tr(Phi P_i Phi P_j)] / 2
        Phi_A = Phi + 2 Phi (sum_ij W_ij (Q_ij - P_i Phi P_j)) Phi

    (section 2; as in pbkrtest, Halekoh & Hoejsgaard 2014, Journal of Statistical Software 59).
    """

    covariance: Floats  # Phi, (p, p)
    adjusted: Floats  # Phi_A, (p, p)
    p: Floats  # P_i, (n_parameters, p, p)
    w: Floats  # W, (n_parameters, n_parameters)

    @classmethod
    def of(cls, x: Floats, parts: Sequence[tuple[float, Floats]]) -> KenwardRoger:
        """Compute them from X, (n, p), and gamma_i with G_i, (n, n); the residual's G is I."""
        total = np.sum([gamma * g for gamma, g in parts], axis=0)
        inverse = np.linalg.inv(total)
        vx = inverse @ x
        phi = np.linalg.inv(x.T @ vx)
        vg = [inverse @ g for _, g in parts]
        vgvx = [product @ vx for product in vg]  # V^-1 G_i V^-1 X
        p = np.array([-vx.T @ g @ vx for _, g in parts])
        k = len(parts)
        information = np.empty((k, k))
        q = np.empty((k, k, *phi.shape))
        for i in range(k):
            for j in range(k):
                q[i, j] = vgvx[i].T @ parts[j][1] @ vx
                trace = float((vg[i] * vg[j].T).sum())
                information[i, j] = trace - 2 * np.trace(phi @ q[i, j])
                information[i, j] += np.trace(phi @ p[i] @ phi @ p[j])
        w = 2 * np.linalg.pinv(information, rcond=1e-10, hermitian=True)
        change = np.einsum("ij,ijab->ab", w, q) - np.einsum("ij,iab,bc,jcd->ad", w, p, phi, p)
        adjusted_phi = phi + 2 * phi @ change @ phi
        return cls(np.asarray(phi, np.float64), adjusted_phi, p, np.asarray(w, np.float64))

    def f(self, contrasts: Floats) -> tuple[float, float]:
        """Return the factor of F, and its denominator's degrees of freedom: the F distribution with
        the same mean and variance (section 3)."""
        phi = self.covariance
        q = int(np.linalg.matrix_rank(contrasts))
        theta = contrasts.T @ np.linalg.pinv(contrasts @ phi @ contrasts.T) @ contrasts
        u = np.array([theta @ phi @ p @ phi for p in self.p])
        traces = np.trace(u, axis1=1, axis2=2)
        a1 = float(traces @ self.w @ traces)
        a2 = float(np.einsum("ij,iab,jba->", self.w, u, u))
        b = (a1 + 6 * a2) / (2 * q)
        g = ((q + 1) * a1 - (q + 4) * a2) / ((q + 2) * a2)
        below = 3 * q + 2 * (1 - g)
        c1 = g / below
        c2 = (q - g) / below
        c3 = (q + 2 - g) / below
        numerator = 1 + c1 * b
        numerator = 0.0 if abs(numerator) < 1e-10 else numerator
        ratio = (1 - a2 / q) / (1 - c2 * b) if abs(1 - c2 * b) > 1e-14 else 1.0
        rho = ratio**2 * numerator / (1 - c3 * b) / q
        m = 4 + (q + 2) / (q * rho - 1)
        factor = 1.0 if abs(m - 2) < 1e-2 else m * (1 - a2 / q) / (m - 2)
        return factor, m

    def dof(self, contrasts: Floats) -> Floats:
        """Return the degrees of freedom of single contrasts, (m, p) to (m,)."""
        return np.array([self.f(contrast[None])[1] for contrast in contrasts])

    def f_test(self, contrasts: Floats, estimate: Floats) -> tuple[float, float, float, float]:
        """Test whether contrasts are zero; return q, the denominator, F and p."""
        factor, m = self.f(contrasts)
        value = contrasts @ estimate
        q = int(np.linalg.matrix_rank(contrasts))
        wald = value @ np.linalg.pinv(contrasts @ self.adjusted @ contrasts.T) @ value
        f = factor * float(wald) / q
        return q, m, f, float(scipy.stats.f.sf(f, q, m))
