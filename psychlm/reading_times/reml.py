"""Smoothing by REML or ML for many Gaussian additive models at once, from their cross-products
alone.

Wood (2011): with penalties S = sum_j lambda_j diag(d_j), A = X'X + S, D = min_b |y - Xb|^2 + b'Sb
and residual variance v, the negative restricted log-likelihood is, up to a constant,

    D / 2v + (n - M)/2 log(2 pi v) + log|A|/2 - log|S|+/2     M unpenalised coefficients, |S|+ over
    the penalised ones

and the negative likelihood (ML) has n for n - M and A's penalised block for A. Newton's method in
log lambda and log v uses exact derivatives; since every penalty is diagonal (see ``smooths``), the
derivative of S is diagonal too and all traces are sums over coefficients. Models are a batch
dimension throughout. Where the criterion has several minima or is almost flat, the answer depends
on where the search begins and stops; both are mgcv's.

Random effects of a factor with many levels (people) are *grouped* coefficients: each reading has
one level g of G, so that the coefficients of different levels meet only through the other, dense
columns. With r effects per level, A has G blocks of r x r, which are eliminated: the cost grows
with G r^2 q^2 instead of (G r + q)^3, and no array has G x G entries (see :class:`Inverse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from psychlm.device import one_thread

Method = Literal["REML", "ML"]
MAX_ITERATIONS = 200
MAX_STEP = 5.0  # in log lambda; this and the next three as in mgcv's newton()
MAX_DESCENT = 2.0
MAX_HALVINGS = 30
TRUST = 0.8  # relative error of the predicted decrease above which a step is halved
TOLERANCE = 1e-6  # share of the criterion: a gradient below five times it counts as zero, ...
MAX_TOLERANCE = 0.01  # ... up to so many nats; mgcv's grows with the data without a limit


@dataclass(frozen=True)
class Moments:
    """Cross-products of B regressions, in float64 on one device.

    There are q dense columns x, and r grouped columns z, which have a coefficient of their own in
    each of G groups of rows; G = r = 0 where nothing is grouped.
    """

    xx: Tensor  # (B, q, q)
    xy: Tensor  # (B, q)
    yy: Tensor  # (B,): the response's sum of squares
    n: Tensor  # (B,): the number of rows
    zz: Tensor  # (B, G, r, r): z'z of each group
    zx: Tensor  # (B, G, r, q)
    zy: Tensor  # (B, G, r)

    def __getitem__(self, rows: Tensor) -> Moments:
        return Moments(*(value[rows] for value in vars(self).values()))

    def columns(self, index: Tensor) -> Moments:
        """Keep some of the dense columns."""
        xx = self.xx[:, index][:, :, index]
        xy = self.xy[:, index]
        return replace(self, xx=xx, xy=xy, zx=self.zx[..., index])


@dataclass(frozen=True)
class Solution:
    """B penalised regressions at their optimal smoothing."""

    beta: Tensor  # (B, q): coefficients of dense columns
    group_beta: Tensor  # (B, G, r): of grouped columns
    edf: Tensor  # (B, q + r): the effective degrees of freedom of each column, summed over groups
    edf1: Tensor  # (B, q + r): with F = A^-1 X'X the diagonal of 2F - FF, where that of F is edf
    inverse: Inverse  # of A; times scale it is the coefficients' Bayesian covariance
    log_lambda: Tensor  # (B, n_penalties)
    rss: Tensor  # (B,): residual sum of squares
    n: Tensor  # (B,)
    scale: Tensor  # (B,): residual variance rss / (n - edf)
    loglik: Tensor  # (B,): -n/2 (log(2 pi rss / n) + 1), what R's logLik gives for gam and bam
    converged: Tensor  # (B,)


@dataclass(frozen=True)
class Inverse:
    """The inverse of A = X'X + S, from its blocks.

    With A_g = Z_g'Z_g + S_r of group g, C_g = Z_g'X, V_g = A_g^-1 and E_g = V_g C_g,

        T = (X'X + S_q - sum_g C_g'E_g)^-1     the dense block of A^-1 (a Schur complement)
        -E_g T                                 its block of group g and the dense columns
        V_g [g = h] + E_g T E_h'               its block of groups g and h
        log|A| = sum_g log|A_g| - log|T|
    """

    dense: Tensor  # (B, q, q): T
    within: Tensor  # (B, G, r, r): V_g
    border: Tensor  # (B, G, r, q): E_g
    log_det: Tensor  # (B,): log|A|

    @classmethod
    def of(cls, moments: Moments, weights: Tensor) -> Inverse:
        """Invert X'X + S, the diagonal of S being ``weights``, shape (B, q + r)."""
        q = moments.xy.shape[1]
        if weights.shape[1] == q:  # nothing is grouped
            dense, log_det = _invert(moments.xx + torch.diag_embed(weights))
            return cls(dense, moments.zz, moments.zx, log_det)
        within, group_log_det = _invert(moments.zz + torch.diag_embed(weights[:, None, q:]))
        # One effect per level makes E_g a row: a product of numbers, not of 1 x 1 matrices.
        border = within * moments.zx if within.shape[2] == 1 else within @ moments.zx
        schur = moments.xx + torch.diag_embed(weights[:, :q])
        schur = schur - (moments.zx.flatten(1, 2).mT @ border.flatten(1, 2))
        dense, log_det = _invert(schur)
        return cls(dense, within, border, log_det + group_log_det.sum(dim=1))

    def solve(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return A^-1 times a vector with dense part x, (B, q), and grouped part z, (B, G, r)."""
        if not z.shape[2]:
            return (self.dense @ x[:, :, None]).squeeze(2), z
        local = (self.within @ z[..., None]).squeeze(3)
        total = torch.einsum("bgrq,bgr->bq", self.border, z)
        beta = (self.dense @ (x - total)[:, :, None]).squeeze(2)
        return beta, local - torch.einsum("bgrq,bq->bgr", self.border, beta)

    def reduced(self) -> tuple[Tensor, Tensor]:
        """Return the diagonal of A^-1 and its squared elements, summed over the groups.

        Their shapes are (B, q + r) and (B, q + r, q + r). With M_a = sum_g e_ga e_ga' of the a-th
        rows of E_g, the sums over all pairs of groups are sum_gh (e_ga' T e_hc)^2 = tr(T M_a T
        M_c): nothing of size G x G is formed.
        """
        dense = self.dense
        border = self.border
        if not border.shape[2]:
            return dense.diagonal(dim1=1, dim2=2), dense.square()
        q = dense.shape[1]
        by_column = border.transpose(1, 2)
        tm = dense[:, None] @ (by_column.mT @ by_column)  # T M_a: (B, r, q, q)
        weighted = (border.flatten(1, 2) @ dense).view_as(border)
        between = weighted @ border.mT  # E_g T E_g'
        local = self.within * (self.within + 2 * between)
        squares = dense.new_empty((len(dense), q + len(tm[0]), q + len(tm[0])))
        squares[:, :q, :q] = dense.square()
        squares[:, q:, :q] = (tm @ dense[:, None]).diagonal(dim1=2, dim2=3)
        squares[:, :q, q:] = squares[:, q:, :q].mT
        squares[:, q:, q:] = local.sum(dim=1) + torch.einsum("baij,bcji->bac", tm, tm)
        grouped = (self.within + between).sum(dim=1).diagonal(dim1=1, dim2=2)
        return torch.cat([dense.diagonal(dim1=1, dim2=2), grouped], dim=1), squares


@dataclass(frozen=True)
class Point:
    """The criterion (in nats) at some theta = (log lambda, log v), with its derivatives."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __getitem__(self, rows: Tensor) -> Point:
        return Point(self.value[rows], self.gradient[rows], self.hessian[rows])

    def put(self, rows: Tensor, new: Point) -> None:
        """Overwrite some rows."""
        self.value[rows], self.gradient[rows] = new.value, new.gradient
        self.hessian[rows] = new.hessian

    def replaced(self, where: Tensor, new: Point) -> Point:
        """Return the new point where a mask is true; no number of a GPU is waited for."""
        return Point(
            torch.where(where, new.value, self.value),
            torch.where(where[:, None], new.gradient, self.gradient),
            torch.where(where[:, None, None], new.hessian, self.hessian),
        )


def solve(
    moments: Moments,
    penalties: Tensor,
    start: Tensor,
    *,
    method: Method = "REML",
    tolerance: float = TOLERANCE,
) -> Solution:
    """Fit B models that share their penalties.

    With the weights s = sum_j lambda_j d_j at the optimum: b = A^-1 X'y, edf_k = F_kk = 1 - s_k
    (A^-1)_kk, (2F - FF)_kk = 1 - s_k sum_l (A^-1)_kl^2 s_l, and rss = y'y - b'X'y - b'Sb. The first
    column of a design is the intercept, which no penalty touches; y is centred. ``penalties``,
    shape (n_penalties, q + r), are the diagonals d_j of the dense and then the grouped columns (all
    of these have one), and ``start`` is the first log lambda, (n_penalties,) or (B, n_penalties).
    """
    with one_thread():
        # The search begins where a tenth of the response's variance is residual.
        n = moments.n
        log_variance = torch.log(moments.yy / n / 10)[:, None]
        theta = torch.cat([start.expand(len(n), len(penalties)), log_variance], dim=1)
        converged = torch.ones_like(moments.yy, dtype=torch.bool)
        if len(penalties):
            theta, converged = minimise(moments, penalties, theta, method, tolerance)
        weights = theta[:, :-1].exp() @ penalties
        inverse = Inverse.of(moments, weights)
        beta, group_beta = inverse.solve(moments.xy, moments.zy)
        diagonal, squares_of_inverse = inverse.reduced()
        edf = _counts(moments) - weights * diagonal
        edf1 = _counts(moments) - weights * (squares_of_inverse @ weights[:, :, None]).squeeze(2)
        explained, squares = _products(moments, beta, group_beta)
        rss = moments.yy - explained - (weights * squares).sum(dim=1)
        loglik = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
        scale = rss / (n - edf.sum(dim=1))
    log_lambda = theta[:, :-1]
    return Solution(
        beta, group_beta, edf, edf1, inverse, log_lambda, rss, n, scale, loglik, converged
    )


def _counts(moments: Moments) -> Tensor:
    """Return how many coefficients each column has, shape (q + r,): 1, or G of grouped ones."""
    q = moments.xy.shape[1]
    n_groups, r = moments.zy.shape[1:]
    ones = moments.xy.new_ones(q + r)
    ones[q:] = n_groups
    return ones


def _products(moments: Moments, beta: Tensor, group_beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return b'X'y, shape (B,), and the squared coefficients, summed over groups, (B, q + r)."""
    explained = (beta * moments.xy).sum(dim=1)
    if not group_beta.shape[2]:
        return explained, beta.square()
    explained = explained + (group_beta * moments.zy).sum(dim=(1, 2))
    return explained, torch.cat([beta.square(), group_beta.square().sum(dim=1)], dim=1)


def penalised_columns(penalties: Tensor) -> Tensor:
    """Return which columns have a penalty, as numbers: a GPU would be waited for at each mask."""
    return torch.nonzero(penalties.sum(dim=0) > 0).squeeze(1)


def criterion(
    moments: Moments, penalties: Tensor, penalised: Tensor, theta: Tensor, method: Method
) -> Point:
    """Evaluate the criterion of the module's docstring and its derivatives in log lambda and log v.

    With w_j = lambda_j d_j, s = sum_j w_j, f_j = w_j / s (over penalised coefficients) and B = A^-1
    (for ML, the inverse of its penalised block), sums running over coefficients:

        dV/dlog lambda_j = sum w_j b^2 / 2v + (sum w_j diag B - sum f_j) / 2
        dV/dlog v        = (n - M)/2 - D/2v
        d2V/dlog lambda_j dlog lambda_k = [j = k] dV/dlog lambda_j - (w_j b)' A^-1 (w_k b) / v
                                          - (w_j' B^2 w_k - f_j' f_k) / 2          B squared element
                                          by element
        d2V/dlog lambda_j dlog v = -sum w_j b^2 / 2v,      d2V/dlog v^2 = D/2v
    """
    each = theta[:, :-1].exp()[:, :, None] * penalties  # w_j: B x J x (q + r)
    weights = each.sum(dim=1)
    precision = torch.exp(-theta[:, -1])
    q = moments.xy.shape[1]
    counts = _counts(moments)
    inverse = Inverse.of(moments, weights)
    beta, group_beta = inverse.solve(moments.xy, moments.zy)
    explained, squares = _products(moments, beta, group_beta)
    misfit = precision * (moments.yy - explained) / 2  # D / 2v

    # The determinant, diagonal and squared elements of A^-1 (REML), or of its penalised block (ML).
    dof = moments.n - (penalties.shape[1] - len(penalised))
    log_det_a = inverse.log_det
    if method == "REML":
        diagonal, b_squared = inverse.reduced()
        of_b = each
    else:
        block = Inverse.of(moments.columns(penalised[penalised < q]), weights[:, penalised])
        diagonal, b_squared = block.reduced()
        dof = moments.n
        log_det_a = block.log_det
        of_b = each[:, :, penalised]
    log_det_s = (counts * weights.log())[:, penalised].sum(dim=1)
    value = misfit + dof / 2 * (math.log(2 * math.pi) + theta[:, -1]) + (log_det_a - log_det_s) / 2

    # First derivatives: of D / 2v, of log|A| and of log|S|+.
    share = each[:, :, penalised] / weights[:, None, penalised]  # f_j
    d_misfit = precision[:, None] * (each @ squares[:, :, None]).squeeze(2) / 2
    d_det = (of_b @ diagonal[:, :, None]).squeeze(2)
    d_lambda = d_misfit + (d_det - share @ counts[penalised]) / 2
    gradient = torch.cat([d_lambda, (dof / 2 - misfit)[:, None]], dim=1)

    # (w_j b)' A^-1 (w_k b): with the grouped part z of w_j b eliminated, the dense part becomes
    # w_j b - sum_g E_g' z_g, and z_g' V_g z_g is added.
    pull = each[:, :, :q] * beta[:, None, :]
    grouped = each[:, :, q:]
    if grouped.shape[2]:
        pull = pull - grouped @ torch.einsum("bgrq,bgr->brq", inverse.border, group_beta)
    curvature = pull @ inverse.dense @ pull.mT
    if grouped.shape[2]:
        local = torch.einsum("bgr,bgrs,bgs->brs", group_beta, inverse.within, group_beta)
        curvature = curvature + grouped @ local @ grouped.mT

    # Second derivatives; the last row and column are those of log v.
    hessian = gradient.new_empty((*gradient.shape, gradient.shape[1]))
    hessian[:, :-1, :-1] = (
        torch.diag_embed(d_lambda)
        - precision[:, None, None] * curvature
        - (of_b @ b_squared @ of_b.mT - (share * counts[penalised]) @ share.mT) / 2
    )
    hessian[:, -1, :-1] = hessian[:, :-1, -1] = -d_misfit
    hessian[:, -1, -1] = misfit
    return Point(value, gradient, hessian)


def _invert(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return inverses of positive definite matrices and the logarithms of their determinants."""
    if matrix.shape[-1] == 1:  # thousands of numbers: one effect of each of many levels
        return 1 / matrix, matrix[..., 0, 0].log()
    factor = torch.linalg.cholesky(matrix)
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return half.mT @ half, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def minimise(
    moments: Moments,
    penalties: Tensor,
    theta: Tensor,
    method: Method,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Minimise the criterion as mgcv's newton() does; return theta and which models converged.

    A step is accepted if the criterion falls about as far as its quadratic approximation predicts,
    otherwise halved; after four halvings the direction is steepest descent. Parameters whose
    gradient and curvature are negligible wait. Models that have converged leave the batch.
    """

    penalised = penalised_columns(penalties)

    def evaluate(part: Moments, point: Tensor) -> Point:
        return criterion(part, penalties, penalised, point, method)

    def negligible(point: Point, theta: Tensor) -> Tensor:
        """Return the gradient that counts as zero, in nats: a share of the criterion."""
        return (tolerance * (point.value.abs() + theta[:, -1].abs())).clamp(max=MAX_TOLERANCE)

    best = evaluate(moments, theta)
    limit = negligible(best, theta)
    step, definite = _newton_step(best, best.gradient.abs() > limit[:, None])
    converged = torch.zeros_like(definite)
    halvings = torch.zeros_like(best.value)
    for _ in range(MAX_ITERATIONS - 1):
        active = torch.nonzero(~converged).squeeze(1)
        if not len(active):
            break
        part = moments[active]
        old = best[active]
        trial = theta[active] + step[active]
        new = evaluate(part, trial)
        better = _trusted(old, new, step[active], limit[active]) & (new.value < old.value)

        # Where the curvature is not positive, compare Newton's step with steepest descent.
        indefinite = torch.nonzero(~definite[active] & (halvings[active] == 0)).squeeze(1)
        if len(indefinite):
            rows = active[indefinite]
            first = part[indefinite], old[indefinite], new[indefinite]
            trial[indefinite], lowest = _descend(
                *first, theta[rows], step[rows], limit[rows], evaluate
            )
            new.put(indefinite, lowest)
            better[indefinite] = lowest.value < old.value[indefinite]

        # Accept better points; halve the other steps, or turn them to steepest descent.
        better = better.cpu()  # a GPU is waited for here, and not at each use of the mask
        accepted = torch.nonzero(better).squeeze(1).to(active.device)
        moved = active[accepted]
        stuck = active[torch.nonzero(~better).squeeze(1).to(active.device)]
        theta[moved] = trial[accepted]
        best.put(moved, new[accepted])
        halvings[stuck] += 1
        step[stuck] /= 2
        if len(stuck):
            length = (16 * step[stuck]).norm(dim=1, keepdim=True).clamp(max=MAX_DESCENT)
            direction = _steepest(best[stuck])
            steepest = direction * length / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
            step[stuck] = torch.where(halvings[stuck, None] == 4, steepest, step[stuck])

        # A model has converged when its gradient is negligible and its last step changed nothing.
        limit[moved] = negligible(best[moved], theta[moved])
        zero = limit[moved, None]
        slope = best.gradient[moved].abs()
        arrived = (slope <= 5 * zero).all(dim=1)
        settled = (old.value - new.value)[accepted].abs() <= limit[moved]
        converged[moved] = arrived & settled
        converged[stuck] = halvings[stuck] > MAX_HALVINGS
        curvature = best.hessian[moved].diagonal(dim1=1, dim2=2).abs()
        open_ = (slope > zero / 10) | (curvature > zero / 10) | (arrived & ~settled)[:, None]
        step[moved], definite[moved] = _newton_step(best[moved], open_)
        halvings[moved] = 0
    return theta, converged


def _newton_step(point: Point, open_: Tensor) -> tuple[Tensor, Tensor]:
    """Return a downhill step in the open parameters, and whether the curvature is positive there.

    With the eigendecomposition H = U diag(h) U', the step is -U diag(1/|h|) U'g, at most MAX_STEP
    in any parameter: directions of negative curvature are reversed.
    """
    # Where no parameter is open, the one with the largest gradient is.
    largest = point.gradient.abs() == point.gradient.abs().amax(dim=1, keepdim=True)
    open_ = open_ | (~open_.any(dim=1, keepdim=True) & largest)
    # The Hessian of the open parameters; the diagonal of the others keeps them where they are.
    hessian = torch.where(open_[:, :, None] & open_[:, None, :], point.hessian, 0)
    size = hessian.abs().amax(dim=(1, 2))
    hessian = hessian + torch.diag_embed(torch.where(open_, 0, size[:, None]))
    values, vectors = torch.linalg.eigh(hessian)
    along = (vectors.mT @ torch.where(open_, point.gradient, 0)[:, :, None]).squeeze(2)
    least = values.abs().amax(dim=1, keepdim=True) * torch.finfo(values.dtype).eps ** 0.7
    definite = (values >= least).all(dim=1)
    step = -(vectors @ (along / values.abs().clamp_min(least))[:, :, None]).squeeze(2)
    return step * (MAX_STEP / step.abs().amax(dim=1, keepdim=True).clamp_min(MAX_STEP)), definite


def _descend(
    moments: Moments,
    old: Point,
    chosen: Point,
    theta: Tensor,
    step: Tensor,
    limit: Tensor,
    evaluate: Callable[[Moments, Tensor], Point],
) -> tuple[Tensor, Point]:
    """Return the better of a Newton step, whose end is ``chosen``, and one of steepest descent.

    Newton's is halved until it is trusted, steepest descent while that helps.
    """

    def accepted(new: Point, change: Tensor) -> Tensor:
        return _trusted(old, new, change, limit) & (new.value < old.value)

    # Newton's step, halved up to three times.
    point = theta + step
    open_ = ~accepted(chosen, step)
    for halving in (0.5, 0.25, 0.125):
        if open_.any():
            new = evaluate(moments, theta + halving * step)
            good = open_ & accepted(new, halving * step)
            chosen = chosen.replaced(good, new)
            point = torch.where(good[:, None], theta + halving * step, point)
            open_ = open_ & ~good
    chosen = replace(chosen, value=torch.where(open_, torch.inf, chosen.value))

    # Steepest descent: steps of 1, 1/2, 1/4, ... while the criterion falls. It rises far beyond the
    # minimum of its quadratic approximation, so that steps of eight times that length are left out.
    direction = _steepest(old)
    slope = -(old.gradient * direction).sum(dim=1)
    curvature = (direction[:, None, :] @ old.hessian @ direction[:, :, None]).flatten()
    best_length = torch.where(curvature > 0, slope / curvature, 1).clamp(2.0**-20, 0.125)
    length = torch.exp2(torch.ceil(torch.log2(8 * best_length)))[:, None]
    lowest_point = theta + length * direction
    lowest = evaluate(moments, lowest_point)
    open_ = torch.ones_like(open_)
    while (open_.any() & (length.max() > 2.0**-20)).item():
        length = length / 2
        new = evaluate(moments, theta + length * direction)
        lower = (new.value <= lowest.value) & _trusted(old, new, length * direction, limit) & open_
        open_ &= ~((lowest.value < old.value) & (new.value > lowest.value))
        lowest = lowest.replaced(lower, new)
        lowest_point = torch.where(lower[:, None], theta + length * direction, lowest_point)
    # The better of the two.
    steeper = lowest.value < chosen.value
    return torch.where(steeper[:, None], lowest_point, point), chosen.replaced(steeper, lowest)


def _steepest(point: Point) -> Tensor:
    """Return the downhill direction, its largest component 1."""
    return -point.gradient / point.gradient.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)


def _trusted(old: Point, new: Point, step: Tensor, limit: Tensor) -> Tensor:
    """Return whether the criterion changed as far as its quadratic approximation predicts."""
    change = new.value - old.value
    curvature = (step[:, None, :] @ old.hessian @ step[:, :, None]).flatten()
    predicted = (old.gradient * step).sum(dim=1) + curvature / 2
    error = (predicted - change).abs()
    return error < TRUST * (torch.maximum(predicted.abs(), change.abs()) + limit)
