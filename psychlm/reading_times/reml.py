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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Method = Literal["REML", "ML"]
MAX_STEP = 5.0  # in log lambda; this and the next three as in mgcv's newton()
MAX_DESCENT = 2.0
MAX_HALVINGS = 30
TRUST = 0.8  # relative error of the predicted decrease above which a step is halved
TOLERANCE = 1e-6  # share of the criterion: a gradient below five times it counts as zero, ...
MAX_TOLERANCE = 0.01  # ... up to so many nats; mgcv's grows with the data without a limit


@dataclass(frozen=True)
class Moments:
    """Cross-products of B regressions of p columns, in float64 on one device."""

    xx: Tensor  # (B, p, p)
    xy: Tensor  # (B, p)
    yy: Tensor  # (B,): the response's sum of squares
    n: Tensor  # (B,): the number of rows

    def __getitem__(self, rows: Tensor) -> Moments:
        return Moments(self.xx[rows], self.xy[rows], self.yy[rows], self.n[rows])


@dataclass(frozen=True)
class Solution:
    """B penalised regressions at their optimal smoothing."""

    beta: Tensor  # (B, p): coefficients
    edf: Tensor  # (B, p): the effective degrees of freedom that each coefficient uses
    inverse: Tensor  # (B, p, p): A^-1; times scale it is the coefficients' Bayesian covariance
    log_lambda: Tensor  # (B, n_penalties)
    rss: Tensor  # (B,): residual sum of squares
    n: Tensor  # (B,)
    scale: Tensor  # (B,): residual variance rss / (n - edf)
    loglik: Tensor  # (B,): -n/2 (log(2 pi rss / n) + 1), what R's logLik gives for gam and bam
    converged: Tensor  # (B,)


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


def solve(
    moments: Moments,
    penalties: Tensor,
    start: Tensor,
    *,
    method: Method = "REML",
    tolerance: float = TOLERANCE,
    max_iter: int = 200,
) -> Solution:
    """Fit B models that share their penalties.

    With the weights s = sum_j lambda_j d_j at the optimum: b = A^-1 X'y, edf_k = (A^-1 X'X)_kk = 1
    - s_k (A^-1)_kk, and rss = y'y - b'X'y - b'Sb.

    Parameters
    ----------
    moments : Moments of B models
        The first column of their designs is the intercept, which no penalty touches; y is centred.
    penalties : Tensor, shape (n_penalties, p)
        The diagonals d_j.
    start : Tensor, shape (n_penalties,) or (B, n_penalties)
        First log lambda.
    """
    with one_thread():
        # The search begins where a tenth of the response's variance is residual.
        n = moments.n
        log_variance = torch.log(moments.yy / n / 10)[:, None]
        theta = torch.cat([start.expand(len(n), len(penalties)), log_variance], dim=1)
        converged = torch.ones_like(moments.yy, dtype=torch.bool)
        if len(penalties):
            theta, converged = minimise(moments, penalties, theta, method, tolerance, max_iter)
        weights = theta[:, :-1].exp() @ penalties
        _, inverse = _factor(moments.xx, weights)
        beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
        edf = 1 - weights * inverse.diagonal(dim1=1, dim2=2)
        rss = moments.yy - (beta * moments.xy).sum(dim=1) - (weights * beta.square()).sum(dim=1)
        loglik = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
        scale = rss / (n - edf.sum(dim=1))
    return Solution(beta, edf, inverse, theta[:, :-1], rss, n, scale, loglik, converged)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep batches of small matrices on one thread: several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def criterion(moments: Moments, penalties: Tensor, theta: Tensor, method: Method) -> Point:
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
    each = theta[:, :-1].exp()[:, :, None] * penalties  # w_j: B x J x p
    weights, precision = each.sum(dim=1), torch.exp(-theta[:, -1])
    penalised = penalties.sum(dim=0) > 0
    factor, inverse = _factor(moments.xx, weights)
    beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
    misfit = precision * (moments.yy - (beta * moments.xy).sum(dim=1)) / 2  # D / 2v

    # B and the determinant: of A for REML, of its penalised block for ML.
    if method == "REML":
        dof, b_inverse = moments.n - int((~penalised).sum()), inverse
    else:
        index = torch.nonzero(penalised).squeeze(1)
        factor, block_inverse = _factor(moments.xx[:, index][:, :, index], weights[:, index])
        dof, b_inverse = moments.n, torch.zeros_like(inverse)
        b_inverse[:, index[:, None], index] = block_inverse
    log_det_a = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    log_det_s = weights[:, penalised].log().sum(dim=1)
    value = misfit + dof / 2 * (math.log(2 * math.pi) + theta[:, -1]) + (log_det_a - log_det_s) / 2

    # First derivatives: of D / 2v, of log|A| and of log|S|+.
    share = each[:, :, penalised] / weights[:, None, penalised]  # f_j
    pull = each * beta[:, None, :]  # w_j b
    d_misfit = precision[:, None] * (pull * beta[:, None, :]).sum(dim=2) / 2
    d_det = (each * b_inverse.diagonal(dim1=1, dim2=2)[:, None, :]).sum(dim=2)
    d_lambda = d_misfit + (d_det - share.sum(dim=2)) / 2
    gradient = torch.cat([d_lambda, (dof / 2 - misfit)[:, None]], dim=1)

    # Second derivatives; the last row and column are those of log v.
    hessian = gradient.new_empty((*gradient.shape, gradient.shape[1]))
    hessian[:, :-1, :-1] = (
        torch.diag_embed(d_lambda)
        - precision[:, None, None] * (pull @ inverse @ pull.mT)
        - (each @ b_inverse.square() @ each.mT - share @ share.mT) / 2
    )
    hessian[:, -1, :-1] = hessian[:, :-1, -1] = -d_misfit
    hessian[:, -1, -1] = misfit
    return Point(value, gradient, hessian)


def _factor(xx: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of A = X'X + diag(weights), and A^-1."""
    factor = torch.linalg.cholesky(xx + torch.diag_embed(weights))
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return factor, half.mT @ half


def minimise(
    moments: Moments,
    penalties: Tensor,
    theta: Tensor,
    method: Method,
    tolerance: float,
    max_iter: int,
) -> tuple[Tensor, Tensor]:
    """Minimise the criterion as mgcv's newton() does; return theta and which models converged.

    A step is accepted if the criterion falls about as far as its quadratic approximation predicts,
    otherwise halved; after four halvings the direction is steepest descent. Parameters whose
    gradient and curvature are negligible wait. Models that have converged leave the batch.
    """

    def evaluate(part: Moments, point: Tensor) -> Point:
        return criterion(part, penalties, point, method)

    def negligible(point: Point, theta: Tensor) -> Tensor:
        """Return the gradient that counts as zero, in nats: a share of the criterion."""
        return (tolerance * (point.value.abs() + theta[:, -1].abs())).clamp(max=MAX_TOLERANCE)

    best = evaluate(moments, theta)
    limit = negligible(best, theta)
    step, definite = _newton_step(best, best.gradient.abs() > limit[:, None])
    converged, halvings = torch.zeros_like(definite), torch.zeros_like(best.value)
    for _ in range(max_iter - 1):
        if converged.all():
            break
        active = torch.nonzero(~converged).squeeze(1)
        part, old, trial = moments[active], best[active], theta[active] + step[active]
        new = evaluate(part, trial)
        better = _trusted(old, new, step[active], limit[active]) & (new.value < old.value)

        # Where the curvature is not positive, compare Newton's step with steepest descent.
        indefinite = torch.nonzero(~definite[active] & (halvings[active] == 0)).squeeze(1)
        if len(indefinite):
            rows = active[indefinite]
            trial[indefinite], lowest = _descend(
                part[indefinite], old[indefinite], theta[rows], step[rows], limit[rows], evaluate
            )
            new.put(indefinite, lowest)
            better[indefinite] = lowest.value < old.value[indefinite]

        # Accept better points; halve the other steps, or turn them to steepest descent.
        moved, stuck = active[better], active[~better]
        theta[moved] = trial[better]
        best.put(moved, new[better])
        halvings[stuck] += 1
        step[stuck] /= 2
        turn = stuck[halvings[stuck] == 4]
        length = (16 * step[turn]).norm(dim=1, keepdim=True).clamp(max=MAX_DESCENT)
        direction = _steepest(best[turn])
        step[turn] = direction * length / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)

        # A model has converged when its gradient is negligible and its last step changed nothing.
        limit[moved] = negligible(best[moved], theta[moved])
        zero, slope = limit[moved, None], best.gradient[moved].abs()
        arrived = (slope <= 5 * zero).all(dim=1)
        settled = (old.value - new.value).abs()[better] <= limit[moved]
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
    theta: Tensor,
    step: Tensor,
    limit: Tensor,
    evaluate: Callable[[Moments, Tensor], Point],
) -> tuple[Tensor, Point]:
    """Return the better of a Newton step and a step of steepest descent.

    Newton's is halved until it is trusted, steepest descent while that helps.
    """

    def accepted(new: Point, change: Tensor) -> Tensor:
        return _trusted(old, new, change, limit) & (new.value < old.value)

    # Newton's step, halved up to three times.
    point = theta + step
    chosen = evaluate(moments, point)
    open_ = ~accepted(chosen, step)
    for halving in (0.5, 0.25, 0.125):
        if open_.any():
            new = evaluate(moments, theta + halving * step)
            good = open_ & accepted(new, halving * step)
            chosen.put(good, new[good])
            point[good], open_ = (theta + halving * step)[good], open_ & ~good
    chosen.value[open_] = torch.inf

    # Steepest descent, halved while the criterion falls.
    length, direction = 1.0, _steepest(old)
    lowest_point = theta + direction
    lowest = evaluate(moments, lowest_point)
    open_ = torch.ones_like(open_)
    while open_.any() and length > 2.0**-20:
        length /= 2
        new = evaluate(moments, theta + length * direction)
        lower = (new.value <= lowest.value) & _trusted(old, new, length * direction, limit) & open_
        open_ &= ~((lowest.value < old.value) & (new.value > lowest.value))
        lowest.put(lower, new[lower])
        lowest_point[lower] = (theta + length * direction)[lower]
    # The better of the two.
    steeper = lowest.value < chosen.value
    chosen.put(steeper, lowest[steeper])
    point[steeper] = lowest_point[steeper]
    return point, chosen


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
