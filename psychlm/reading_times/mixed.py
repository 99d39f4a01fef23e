"""Linear mixed models with correlated random effects, by the profiled deviance.

With the random effects b = L u, u ~ N(0, v I), the penalised least squares problem

    min over u, beta of |y - Z L u - X beta|^2 + |u|^2 = r^2

has the matrix A = [L'Z'Z L + I, L'Z'X; X'Z L, X'X]. The deviance, profiled over beta and v, is

    log|A_uu| + n (1 + log(2 pi r^2 / n))                     ML
    log|A|    + (n - p) (1 + log(2 pi r^2 / (n - p)))         REML

(Bates, Maechler, Bolker & Walker 2015, Journal of Statistical Software 67, equations 34 and 41). L
is block diagonal: one lower triangle for all levels of a grouping factor. The levels of the largest
factor meet only in the other columns, so that they are eliminated first; what remains is dense
(:class:`psychlm.reading_times.reml.Inverse` has the blocks). The derivative in an element of L is

    d log|A| = 2 tr(dL' W),    W = Z'[Z L, X] A^-1 restricted to the columns of u
    d r^2    = -2 tr(dL' Z'(y - Z b - X beta) u')

and the deviance is even in the diagonal of each triangle, so that the search needs no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from torch import Tensor

from psychlm.frames import FrameError
from psychlm.reading_times.contrasts import Floats
from psychlm.reading_times.design import Design
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.model_matrix import COLLINEAR
from psychlm.reading_times.reml import Inverse, Method, Moments, Solution

SINGULAR = 1e-4  # standard deviation, in units of the residual's, that counts as zero, as in lme4
ROUNDING = 1e-12  # of the deviance's size
ENOUGH = 1e-4  # largest gradient of the deviance at an optimum
FLAT = 1e-8  # share of the largest curvature below which the deviance is flat


@dataclass(frozen=True)
class Block:
    """Random effects of which those of one level correlate: L = T lower(theta).

    T makes the mean of the cross-products z'z of a reading the identity, for the search.
    """

    columns: NDArray[np.intp]  # (n_levels, r): of dense columns; (1, r) of grouped ones
    grouped: bool
    whiten: Floats  # T, (r, r)

    @property
    def start(self) -> Floats:
        """Return the first theta: independent effects almost as large as the residual.

        The search's first step has length 1; from 1 it would end at 0, where the gradient is 0
        (the deviance is even) also if the deviance has no minimum there.
        """
        return 0.8 * np.eye(len(self.whiten))[np.tril_indices(len(self.whiten))]

    def lower(self, theta: Floats) -> Floats:
        """Return the lower triangle, shape (r, r)."""
        triangle = np.zeros_like(self.whiten)
        triangle[np.tril_indices(len(triangle))] = theta
        return triangle

    def factor(self, theta: Floats) -> Floats:
        """Return L, shape (r, r)."""
        return self.whiten @ self.lower(theta)

    def gradient(self, of_factor: Floats, theta: Floats) -> Floats:
        """Return the derivative in theta, given that in L."""
        return (self.whiten.T @ of_factor)[np.tril_indices(len(self.whiten))]


@dataclass(frozen=True)
class Diagonal:
    """Penalised coefficients, or independent effects: 1 / L_kk^2 = sum_j d_jk / theta_j^2."""

    columns: NDArray[np.intp]  # (1, k)
    grouped: bool
    penalties: Floats  # d, (n_penalties, k)
    start: Floats  # (n_penalties,)

    def factor(self, theta: Floats) -> Floats:
        """Return L, shape (k, k)."""
        weights = (1 / np.maximum(theta**2, 1e-20)) @ self.penalties
        return np.diag(weights**-0.5)

    def gradient(self, of_factor: Floats, theta: Floats) -> Floats:
        """Return the derivative in theta, given that in L."""
        cubed = np.diag(of_factor) * np.diag(self.factor(theta)) ** 3
        return (self.penalties @ cubed) / np.where(theta == 0, 1e-10, theta) ** 3


Component = Block | Diagonal


@dataclass(frozen=True)
class Point:
    """The deviance at some theta, with its gradient and the solution."""

    deviance: float
    gradient: Floats
    u: Floats  # (G, r)
    sol: Floats  # (q,)
    rss: float  # penalised: r^2
    dense: Floats  # (q, q): the dense block of A^-1
    within: Floats  # (G, r, r): V
    border: Floats  # (G, r, q): E


@dataclass(frozen=True)
class Problem:
    """The cross-products of one model, and its random effects."""

    xx: Floats  # (q, q), as the next ones of Moments
    xy: Floats
    yy: float
    n: int
    zz: Floats
    zx: Floats
    zy: Floats
    components: Sequence[Component]
    method: Method

    @property
    def fixed(self) -> NDArray[np.bool_]:
        """Return which dense columns no component has."""
        kept = np.ones(len(self.xx), dtype=bool)
        for part in self.components:
            if not part.grouped:
                kept[part.columns] = False
        return kept

    def parts(self, theta: Floats) -> list[Floats]:
        """Return theta's part of each component."""
        return np.split(theta, np.cumsum([len(part.start) for part in self.components])[:-1])

    def factors(self, theta: Floats) -> tuple[Floats, list[tuple[Component, Floats]]]:
        """Return L of the grouped columns, and each dense component with its L."""
        grouped = np.zeros(self.zz.shape[1:][:1] * 2)
        dense = []
        for part, theta_part in zip(self.components, self.parts(theta), strict=True):
            factor = part.factor(theta_part)
            if part.grouped:
                grouped[np.ix_(part.columns[0], part.columns[0])] = factor
            else:
                dense.append((part, factor))
        return grouped, dense

    def evaluate(self, theta: Floats) -> Point:
        """Return the deviance, its gradient and the solution."""
        of_group, of_dense = self.factors(theta)
        fixed = self.fixed

        def scaled(matrix: Floats) -> Floats:
            """Return a matrix times the dense part of L, from the right."""
            result = matrix.copy()
            for part, factor in of_dense:
                result[..., part.columns] = matrix[..., part.columns] @ factor
            return result

        # The largest factor: V = (L'z'z L + I)^-1, E = V L'z'X L of each level.
        identity = np.eye(len(of_group))
        half = self.zz @ of_group
        blocks = of_group.T @ half + identity
        log_det = float(np.linalg.slogdet(blocks)[1].sum())
        within = np.linalg.inv(blocks)
        zx = scaled(self.zx)
        lzx = of_group.T @ zx
        border = within @ lzx
        # What is left of the dense columns: R with L from the right only, S with L on both sides.
        left = (of_group.T @ self.zx).reshape(-1, len(self.xx))
        reduced = scaled(self.xx) - left.T @ border.reshape(left.shape)
        schur = scaled(reduced.T).T
        schur[~fixed, ~fixed] += 1
        lzy = np.einsum("ab,ga->gb", of_group, self.zy)
        right = scaled(self.xy) - np.einsum("grq,gr->q", border, lzy)
        cholesky = cho_factor(schur, lower=True)
        dense = cho_solve(cholesky, np.eye(len(schur)))
        sol = cho_solve(cholesky, right)
        local = np.einsum("grs,gs->gr", within, lzy)
        u = np.asarray(local - border @ sol, dtype=np.float64)
        rss = self.yy - float(sol @ scaled(self.xy)) - float((u * lzy).sum())

        # The determinant: of all coefficients (REML), or of the random effects alone (ML).
        n = self.n
        if self.method == "REML":
            n -= int(fixed.sum())
            log_det += 2 * float(np.log(np.diag(cholesky[0])).sum())
            of_det = dense
        else:
            random = np.ix_(~fixed, ~fixed)
            of_det = np.zeros_like(dense)
            if (~fixed).any():
                inner = cho_factor(schur[random], lower=True)
                log_det += 2 * float(np.log(np.diag(inner[0])).sum())
                of_det[random] = cho_solve(inner, np.eye(int((~fixed).sum())))
        deviance = log_det + n * (1 + np.log(2 * np.pi * rss / n))

        # Its gradient in each L: n / r^2 times that of r^2, and that of the determinant.
        b = u @ of_group.T
        beta = sol.copy()
        for part, factor in of_dense:
            beta[part.columns] = sol[part.columns] @ factor.T
        error_z = self.zy - np.einsum("grs,gs->gr", self.zz, b) - self.zx @ beta
        error_x = self.xy - self.xx @ beta - np.einsum("grq,gr->q", self.zx, b)
        carried = half @ border - zx
        w_group = np.einsum("gab,gbc->ac", half, within)
        w_group = w_group + np.einsum("gaq,qp,gcp->ac", carried, of_det, border, optimize=True)
        w_dense = reduced @ of_det
        gradient = []
        for part, theta_part in zip(self.components, self.parts(theta), strict=True):
            index = part.columns
            if part.grouped:
                of_det_part = w_group[np.ix_(index[0], index[0])]
                of_rss = error_z[:, index[0]].T @ u[:, index[0]]
            else:
                of_det_part = w_dense[index[:, :, None], index[:, None, :]].sum(axis=0)
                of_rss = error_x[index].T @ sol[index]
            gradient.append(part.gradient(2 * of_det_part - 2 * n / rss * of_rss, theta_part))
        solved = u, sol, rss, dense, np.asarray(within, dtype=np.float64), border
        return Point(float(deviance), np.concatenate(gradient), *solved)

    def search(self) -> tuple[Floats, Point, bool]:
        """Minimise the deviance by quasi-Newton steps, then Newton's (differences of gradients)."""

        def objective(theta: Floats) -> tuple[float, Floats]:
            point = self.evaluate(theta)
            return point.deviance, point.gradient

        start = np.concatenate([part.start for part in self.components])
        options = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-15, "gtol": 1e-6, "maxcor": 30}
        theta = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
        best = self.evaluate(theta)
        for _ in range(5):
            if np.abs(best.gradient).max() < 1e-7:
                break
            rows = []
            for step in np.diag(1e-5 * np.maximum(np.abs(theta), 0.1)):
                change = self.evaluate(theta + step).gradient - self.evaluate(theta - step).gradient
                rows.append(change / (2 * step.sum()))
            hessian = np.stack(rows)
            values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
            curvature = np.maximum(np.abs(values), 1e-6 * np.abs(values).max())
            step = vectors @ ((vectors.T @ best.gradient) / curvature)
            new = self.evaluate(theta - step)
            # Near the minimum the deviance's change is lost in rounding, the gradient's is not.
            flatter = np.abs(new.gradient).max() < np.abs(best.gradient).max()
            if new.deviance > best.deviance + flatter * ROUNDING * abs(best.deviance):
                break
            theta = theta - step
            best = new
        return theta, best, bool(np.abs(best.gradient).max() < ENOUGH)

    def uncertainty(self, theta: Floats, best: Point) -> Uncertainty:
        """Return the uncertainty of the variances at the optimum, by central differences.

        With m = n - p (REML) or n (ML) and v = r^2 / m, the deviance that is not profiled over v,
        log|A| + m log(2 pi v) + r^2 / v, has the second derivatives

            in theta             D_tt + r^2_t r^2_t' / (m v^2)     D the profiled deviance
            in theta and log v   -r^2_t / v
            in log v             m

        and the parameters have the covariance 2 H^-1, without the directions in which H is flat.
        """
        m = self.n - (int(self.fixed.sum()) if self.method == "REML" else 0)
        v = best.rss / m
        columns = np.ones(len(self.xx), dtype=bool)
        for part in self.components:
            if isinstance(part, Block) and not part.grouped:
                columns[part.columns] = False
        kept = np.ix_(columns, columns)

        def scaled_inverse(point: Point, at: Floats) -> Floats:
            """Return the columns' block of A^-1 in the coordinates of b."""
            scale = np.ones(len(self.xx))
            for part, factor in self.factors(at)[1]:
                if isinstance(part, Diagonal):
                    scale[part.columns[0]] = np.diag(factor)
            return (scale[:, None] * point.dense * scale)[kept]

        hessian = []
        of_rss = []
        jacobian = []
        for step in np.diag(1e-4 * np.maximum(np.abs(theta), 0.1)):
            above = self.evaluate(theta + step)
            below = self.evaluate(theta - step)
            size = 2 * step.sum()
            hessian.append((above.gradient - below.gradient) / size)
            of_rss.append((above.rss - below.rss) / size)
            change = scaled_inverse(above, theta + step) - scaled_inverse(below, theta - step)
            jacobian.append(v * change / size)
        covariance = v * scaled_inverse(best, theta)
        slope = np.array(of_rss) / v
        of_theta = np.array(hessian) + np.outer(slope, slope) / m
        whole = np.block([[of_theta, -slope[:, None]], [-slope[None], np.full((1, 1), m)]])
        values, vectors = np.linalg.eigh((whole + whole.T) / 2)
        curved = values > FLAT * values.max()
        inverse = vectors[:, curved] / values[curved] @ vectors[:, curved].T
        places = np.flatnonzero(columns)
        return Uncertainty(places, covariance, np.array([*jacobian, covariance]), 2 * inverse)


@dataclass(frozen=True)
class Uncertainty:
    """What Satterthwaite's degrees of freedom need: how the covariance C of the coefficients
    depends on the parameters phi of the variances, and the covariance A of these.

    The variance of a contrast l'b, l'C l, has the standard error (g'A g)^1/2 with g the gradient of
    l'C l in phi, and as many degrees of freedom as a chi-squared of that mean and variance,

        2 (l'C l)^2 / g'A g                (Kuznetsova, Brockhoff & Christensen 2017, equation 4)
    """

    columns: NDArray[np.intp]  # (p,): the dense columns of b, those of no correlated random effect
    covariance: Floats  # C, (p, p)
    jacobian: Floats  # dC/dphi, (n_parameters, p, p); phi are theta and the log residual variance
    of_parameters: Floats  # A, (n_parameters, n_parameters)

    def dof(self, contrasts: Floats) -> Floats:
        """Return the degrees of freedom of contrasts, (m, p) to (m,)."""
        variance = np.einsum("mp,pq,mq->m", contrasts, self.covariance, contrasts)
        gradient = np.einsum("mp,kpq,mq->mk", contrasts, self.jacobian, contrasts, optimize=True)
        spread = np.einsum("mk,kl,ml->m", gradient, self.of_parameters, gradient)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(variance > 0, 2 * variance**2 / spread, np.nan)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The smoothing, or the variances of random effects, that the criterion chooses."""

    solution: Solution  # on the CPU
    score: float  # the criterion, in nats
    n_parameters: float
    deviations: dict[str, float]  # of random effects
    # Of additive models the diagonal of S, (q + r,); of mixed models all that follows
    penalty: Floats = field(default_factory=lambda: np.zeros(0))
    # Of effects in one level; of a Diagonal its L_kk^2
    covariances: dict[tuple[str, ...], Floats] = field(default_factory=dict)
    correlations: dict[str, pd.DataFrame] = field(default_factory=dict)  # by bar
    singular: tuple[str, ...] = ()  # what does not vary
    uncertainty: Uncertainty | None = None


def whitening(zz: Floats, n: int) -> Floats:
    """Return T with T' (z'z / n) T = I; the columns' scale alone where they are collinear."""
    mean = zz / n
    scale = np.sqrt(np.maximum(np.diag(mean), 1e-300))
    try:
        factor = np.linalg.cholesky(mean)
    except np.linalg.LinAlgError:
        return np.diag(1 / scale)
    return solve_triangular(factor, np.eye(len(mean)), lower=True).T


def _batch(values: Floats | float) -> Tensor:
    """Return an array as a batch of one."""
    return torch.from_numpy(np.array(values, dtype=np.float64))[None]


def solve(
    moments: Moments, components: dict[tuple[str, ...], Component], method: Method
) -> Optimum:
    """Fit one model, from its cross-products and its random effects by their labels."""
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(values[0].numpy()) for name, values in vars(moments).items()
    }
    arrays |= {"yy": float(moments.yy), "n": int(moments.n)}
    problem = Problem(**arrays, components=[*components.values()], method=method)
    xx = problem.xx
    zz = problem.zz
    zx = problem.zx
    theta, best, converged = problem.search()
    of_group, of_dense = problem.factors(theta)
    fixed = problem.fixed
    wide = np.eye(len(xx))
    for part, factor in of_dense:
        for index in part.columns:
            wide[np.ix_(index, index)] = factor
    scale = best.rss / (problem.n - (int(fixed.sum()) if method == "REML" else 0))

    # In the coordinates of u every penalty is 1: the effective degrees of freedom are 1 - A^-1_uu.
    none = torch.zeros(1)
    in_u = Inverse(_batch(best.dense), _batch(best.within), _batch(best.border), none)
    diagonal, squares = (part[0].numpy() for part in in_u.reduced())
    counts = np.r_[np.ones(len(xx)), np.full(zz.shape[1], len(zz))]
    penalty = np.r_[(~fixed).astype(float), np.ones(zz.shape[1])]
    beta = wide @ best.sol
    group_beta = best.u @ of_group.T
    rss = best.rss - float(np.square(best.sol[~fixed]).sum() + np.square(best.u).sum())
    of_b = of_group @ best.within @ of_group.T
    solution = Solution(
        beta=_batch(beta),
        group_beta=_batch(group_beta),
        edf=_batch(counts - penalty * diagonal),
        edf1=_batch(counts - penalty * (squares @ penalty)),
        inverse=Inverse(_batch(wide @ best.dense @ wide.T), _batch(of_b), _batch(of_b @ zx), none),
        log_lambda=_batch(np.zeros(0)),
        rss=_batch(rss),
        n=moments.n,
        scale=_batch(scale),
        loglik=_batch(-best.deviance / 2),
        converged=torch.tensor([converged]),
    )
    # Covariances of the effects in one level, by component, and combinations without variance.
    covariances: dict[tuple[str, ...], Floats] = {}
    deviations: dict[str, float] = {}
    correlations: dict[str, pd.DataFrame] = {}
    singular = []
    for (labels, part), theta_part in zip(components.items(), problem.parts(theta), strict=True):
        factor = part.factor(theta_part)
        covariance = covariances[labels] = factor @ factor.T * scale
        deviation = np.sqrt(np.diag(covariance))
        deviations |= dict(zip(labels, deviation.tolist(), strict=False))
        missing: list[Floats] = []
        if isinstance(part, Block):
            vectors, sizes, _ = np.linalg.svd(part.lower(theta_part))
            missing = list(vectors.T[sizes < SINGULAR] @ np.linalg.inv(part.whiten))
        names = [label[1:].partition(" | ")[0] for label in labels]
        bar = f"({' + '.join(names)} | {labels[0].rpartition(' | ')[2]}"
        if len(labels) > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                correlation = covariance / np.outer(deviation, deviation)
            correlations[bar] = pd.DataFrame(correlation, index=names, columns=names)
        if not missing:
            continue
        effects = ["intercept" if name == "1" else name for name in names]
        if len(names) == 1:
            what = f"the {'intercept' if names == ['1'] else f'effect of {names[0]}'} does not vary"
        elif len(missing) == len(names):
            what = "none of the effects varies"
        else:
            combinations = []
            for weights in missing:
                shares = zip(weights / weights[np.abs(weights).argmax()], effects, strict=True)
                terms = (f"{share:+.3g} * {name}" for share, name in shares if abs(share) > 1e-6)
                combinations.append(" ".join(terms))
            what = f"the combination {combinations[0]} of the effects does not vary"
            what += "".join(f", nor does {other}" for other in combinations[1:])
        singular.append(f"in {bar} {what}")
    return Optimum(
        solution=solution,
        score=best.deviance / 2,
        n_parameters=float(problem.fixed.sum() + len(theta)),
        deviations=deviations,
        covariances=covariances,
        correlations=correlations,
        singular=tuple(singular),
        uncertainty=problem.uncertainty(theta, best),
    )


def components_of(
    formula: Formula, design: Design, moments: Moments, start: Floats
) -> dict[tuple[str, ...], Component]:
    """Return the random effects and penalised smooths of a mixed model, by their labels.

    ``moments`` are of one model, on the CPU; ``start`` holds the first log lambda of the smooths,
    then of the grouped effects.
    """
    grouped = design.grouped
    xx = moments.xx[0].numpy()
    zz = moments.zz[0].sum(dim=0).numpy()
    n = int(moments.n)
    zx = moments.zx[0].numpy()
    fixed = xx[np.ix_(design.free, design.free)]
    parts: dict[tuple[str, ...], Component] = {}
    for labels in formula.blocks:
        of_groups = labels[0] in grouped.slices
        slices = grouped.slices if of_groups else design.slices
        columns = np.stack([np.r_[slices[label]] for label in labels], axis=1)
        for label, places in zip(labels, columns.T, strict=True):
            # what the fixed effects leave of the columns z of an effect, z'z - z'X (X'X)^-1 X'z
            borders = (zx[:, places[0]] if of_groups else xx[places])[:, design.free]
            size = zz[places[0], places[0]] if of_groups else xx[places, places].sum()
            if size - (borders.T * np.linalg.solve(fixed, borders.T)).sum() < COLLINEAR * size:
                raise FrameError(
                    f"{label}: the linear terms have a coefficient of their own for each of its "
                    "levels, so that its variance cannot be estimated; leave out either"
                )
        products = (zz if of_groups else xx)[columns[:, :, None], columns[:, None, :]].sum(axis=0)
        parts[labels] = Block(columns, of_groups, whitening(products, n))
    blocked = {label for labels in formula.blocks for label in labels}
    first_row = 0
    for label, term in design.smooths.items():
        rows = slice(first_row, first_row + len(term.penalties))
        first_row = rows.stop
        if label in blocked:
            continue
        of_groups = label in grouped.slices
        penalties = design.penalties[rows]
        touched = np.flatnonzero(penalties.sum(axis=0) > 0)
        places = touched - len(xx) if of_groups else touched
        begin = np.exp(-start[rows] / 2)
        parts[(label,)] = Diagonal(places[None], of_groups, penalties[:, touched], begin)
    return parts
