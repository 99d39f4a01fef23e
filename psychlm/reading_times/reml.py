"""Smoothing by REML or ML for many Gaussian additive models at once, from their cross-products alone.

Wood (2011): with penalties S = sum_j lambda_j diag(d_j), A = X'X + S, D = min_b |y - Xb|^2 + b'Sb and residual variance
v, the negative restricted log-likelihood is, up to a constant,

    D / 2v + (n - M)/2 log(2 pi v) + log|A|/2 - log|S|+/2     M unpenalised coefficients, |S|+ over the penalised ones

and the negative likelihood (ML) has n for n - M and A's penalised block for A. Newton's method in log lambda and log v
uses exact derivatives; since every penalty is diagonal (see ``bases``), the derivative of S is diagonal too and all
traces are sums over coefficients. Models are a batch dimension throughout. Where the criterion has several minima or is
all but flat, the answer depends on where one starts and stops; both are mgcv's.
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
MAX_STEP = 5.0  # in log lambda; this and what follows as in mgcv's newton()
MAX_DESCENT = 2.0
MAX_HALVINGS = 30
TRUST = 0.8  # relative error of the predicted decrease above which a step is halved
TOLERANCE = 1e-6  # of the criterion: gradients below five times it count as zero ...
MAX_TOLERANCE = (
    0.01  # ... or below this, in nats: mgcv's tolerance grows with the data, here only so far
)


@dataclass(frozen=True)
class Moments:
    """Cross-products of B regressions, in float64 on one device.

    Attributes
    ----------
    xx : Tensor, shape (B, p, p)
    xy : Tensor, shape (B, p)
    yy, n : Tensor, shape (B,)
        The response's sum of squares and the number of rows.
    """

    xx: Tensor
    xy: Tensor
    yy: Tensor
    n: Tensor

    def __getitem__(self, rows: Tensor) -> Moments:
        return Moments(self.xx[rows], self.xy[rows], self.yy[rows], self.n[rows])

    def __len__(self) -> int:
        return len(self.yy)


@dataclass(frozen=True)
class Solution:
    """B penalised regressions at their optimal smoothing.

    Attributes
    ----------
    beta, edf : Tensor, shape (B, p)
        Coefficients and the effective degrees of freedom that each uses.
    inverse : Tensor, shape (B, p, p)
        (X'X + S)^-1; times ``scale`` it is the Bayesian covariance of the coefficients.
    log_lambda : Tensor, shape (B, n_penalties)
    rss, n, scale, loglik : Tensor, shape (B,)
        Residual sum of squares, rows, residual variance rss / (n - edf), and -n/2 (log(2 pi rss / n) + 1), the
        log-likelihood that R's ``logLik`` gives for ``gam`` and ``bam``: at the fitted mean, the variance maximised.
    converged : Tensor, shape (B,)
    n_iterations : int
    """

    beta: Tensor
    edf: Tensor
    inverse: Tensor
    log_lambda: Tensor
    rss: Tensor
    n: Tensor
    scale: Tensor
    loglik: Tensor
    converged: Tensor
    n_iterations: int


@dataclass(frozen=True)
class _Point:
    """The criterion (in nats) at some log lambda and log v, with its derivatives."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __getitem__(self, rows: Tensor) -> _Point:
        return _Point(self.value[rows], self.gradient[rows], self.hessian[rows])

    def put(self, rows: Tensor, other: _Point) -> None:
        """Overwrite some rows."""
        self.value[rows], self.gradient[rows], self.hessian[rows] = (
            other.value,
            other.gradient,
            other.hessian,
        )


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
        if len(penalties) == 0:
            nothing, done = (
                moments.yy.new_zeros((len(moments), 0)),
                torch.ones_like(moments.yy, dtype=torch.bool),
            )
            return _solution(moments, penalties, nothing, done, 0)
        log_variance = torch.log(moments.yy / moments.n / 10)
        theta = torch.cat(
            [start.expand(len(moments), len(penalties)), log_variance[:, None]], dim=1
        )
        theta, converged, n_iterations = _minimise(
            moments, penalties, theta, method, tolerance, max_iter
        )
        return _solution(moments, penalties, theta[:, :-1], converged, n_iterations)


def _minimise(
    moments: Moments,
    penalties: Tensor,
    theta: Tensor,
    method: Method,
    tolerance: float,
    max_iter: int,
) -> tuple[Tensor, Tensor, int]:
    """Walk down the criterion as mgcv's newton() does; models that have arrived drop out of the batch."""

    def evaluate(part: Moments, at: Tensor) -> _Point:
        return _criterion(part, penalties, at, method)

    best = evaluate(moments, theta)
    precision = _precision(best, theta, tolerance)
    step, definite = _newton_step(best, best.gradient.abs() > precision[:, None])
    converged, halvings, n_iterations = torch.zeros_like(definite), torch.zeros_like(best.value), 1
    while n_iterations < max_iter and not converged.all():
        n_iterations += 1
        active = torch.nonzero(~converged).squeeze(1)
        part, old, trial = moments[active], best[active], theta[active] + step[active]
        here = evaluate(part, trial)
        better = _trusted(old, here, step[active], precision[active]) & (here.value < old.value)
        shaky = torch.nonzero(~definite[active] & (halvings[active] == 0)).squeeze(1)
        if len(shaky):
            rows = active[shaky]
            trial[shaky], found = _descend(
                part[shaky], old[shaky], theta[rows], step[rows], precision[rows], evaluate
            )
            here.put(shaky, found)
            better[shaky] = found.value < old.value[shaky]
        moved, stuck = active[better], active[~better]
        theta[moved] = trial[better]
        best.put(moved, here[better])
        halvings[stuck] += 1
        step[stuck] /= 2
        turn = stuck[halvings[stuck] == 4]
        step[turn] = _shortened(_steepest(best[turn]), 16 * step[turn])
        precision[moved] = _precision(best[moved], theta[moved], tolerance)
        limit, slope = precision[moved, None], best.gradient[moved].abs()
        arrived = (slope <= 5 * limit).all(dim=1)
        settled = (old.value - here.value).abs()[better] <= precision[moved]
        converged[moved] = arrived & settled
        converged[stuck] = halvings[stuck] > MAX_HALVINGS
        curved = best.hessian[moved].diagonal(dim1=1, dim2=2).abs()
        open_ = (slope > limit / 10) | (curved > limit / 10) | (arrived & ~settled)[:, None]
        step[moved], definite[moved] = _newton_step(best[moved], open_)
        halvings[moved] = 0
    return theta, converged, n_iterations


def _descend(
    moments: Moments,
    old: _Point,
    theta: Tensor,
    step: Tensor,
    precision: Tensor,
    evaluate: Callable[[Moments, Tensor], _Point],
) -> tuple[Tensor, _Point]:
    """Where the curvature is not positive, take the better of a Newton step and a step of steepest descent.

    Newton's is halved until it is trusted, steepest descent while that helps.
    """
    chosen, at = evaluate(moments, theta + step), theta + step
    open_ = ~(_trusted(old, chosen, step, precision) & (chosen.value < old.value))
    for halving in (0.5, 0.25, 0.125):
        if open_.any():
            here = evaluate(moments, theta + halving * step)
            good = open_ & _trusted(old, here, halving * step, precision) & (here.value < old.value)
            chosen.put(good, here[good])
            at[good], open_ = (theta + halving * step)[good], open_ & ~good
    chosen.value[open_] = torch.inf
    length, direction = 1.0, _steepest(old)
    lowest, lowest_at = evaluate(moments, theta + direction), theta + direction
    open_ = torch.ones_like(open_)
    while open_.any() and length > 2.0**-20:
        length /= 2
        here = evaluate(moments, theta + length * direction)
        lower = (
            open_
            & (here.value <= lowest.value)
            & _trusted(old, here, length * direction, precision)
        )
        open_ &= ~((lowest.value < old.value) & (here.value > lowest.value))
        lowest.put(lower, here[lower])
        lowest_at[lower] = (theta + length * direction)[lower]
    steeper = lowest.value < chosen.value
    chosen.put(steeper, lowest[steeper])
    at[steeper] = lowest_at[steeper]
    return at, chosen


def _precision(point: _Point, theta: Tensor, tolerance: float) -> Tensor:
    """Return the gradient that counts as zero, in nats: a share of the criterion."""
    return (tolerance * (point.value.abs() + theta[:, -1].abs())).clamp(max=MAX_TOLERANCE)


def _trusted(old: _Point, new: _Point, step: Tensor, precision: Tensor) -> Tensor:
    """Whether the criterion changed about as far as its quadratic approximation had promised."""
    change = new.value - old.value
    curvature = (step[:, None, :] @ old.hessian @ step[:, :, None]).flatten()
    promised = (old.gradient * step).sum(dim=1) + curvature / 2
    return (promised - change).abs() < TRUST * (
        torch.maximum(promised.abs(), change.abs()) + precision
    )


def _steepest(point: _Point) -> Tensor:
    """Return the downhill direction, its largest component 1."""
    return -point.gradient / point.gradient.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)


def _shortened(direction: Tensor, step: Tensor) -> Tensor:
    """Return the direction at the length of a step, at most MAX_DESCENT."""
    length = step.norm(dim=1, keepdim=True).clamp(max=MAX_DESCENT)
    return direction * length / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep batches of small matrices on one thread: several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _factor(moments: Moments, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of A, and A^-1."""
    factor = torch.linalg.cholesky(moments.xx + torch.diag_embed(weights))
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return factor, half.mT @ half


def _criterion(moments: Moments, penalties: Tensor, theta: Tensor, method: Method) -> _Point:
    """Evaluate the criterion in the module's docstring, with derivatives with respect to log lambda and log v."""
    each = theta[:, :-1].exp()[:, :, None] * penalties  # B x J x p: lambda_j d_j
    weights, precision = each.sum(dim=1), torch.exp(-theta[:, -1])
    penalised = penalties.sum(dim=0) > 0
    factor, inverse = _factor(moments, weights)
    beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
    misfit = precision * (moments.yy - (beta * moments.xy).sum(dim=1)) / 2  # D / 2v
    if method == "REML":
        dof, spread = moments.n - int((~penalised).sum()), inverse
    else:
        index = torch.nonzero(penalised).squeeze(1)
        block = Moments(
            moments.xx[:, index][:, :, index], moments.xy[:, index], moments.yy, moments.n
        )
        factor, block_inverse = _factor(block, weights[:, index])
        dof, spread = moments.n, torch.zeros_like(inverse)
        spread[:, index[:, None], index] = block_inverse
    log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(dim=1) - weights[
        :, penalised
    ].log().sum(dim=1)
    value = misfit + dof / 2 * (math.log(2 * math.pi) + theta[:, -1]) + log_det / 2

    share = (
        each[:, :, penalised] / weights[:, None, penalised]
    )  # of each penalty in a coefficient's weight
    pull = each * beta[:, None, :]
    d_misfit = precision[:, None] * (pull * beta[:, None, :]).sum(dim=2) / 2
    d_det = (each * spread.diagonal(dim1=1, dim2=2)[:, None, :]).sum(dim=2)
    d_pen = share.sum(dim=2)
    gradient = torch.cat([d_misfit + (d_det - d_pen) / 2, (dof / 2 - misfit)[:, None]], dim=1)
    hessian = gradient.new_empty((*gradient.shape, gradient.shape[1]))
    hessian[:, :-1, :-1] = (
        torch.diag_embed(d_misfit + (d_det - d_pen) / 2)
        - precision[:, None, None] * (pull @ inverse @ pull.mT)
        - (each @ spread.square() @ each.mT - share @ share.mT) / 2
    )
    hessian[:, -1, :-1] = hessian[:, :-1, -1] = -d_misfit
    hessian[:, -1, -1] = misfit
    return _Point(value, gradient, hessian)


def _newton_step(point: _Point, open_: Tensor) -> tuple[Tensor, Tensor]:
    """Return a downhill step in the parameters that have not arrived, and whether the curvature was positive there.

    Directions of negative curvature are turned round.
    """
    still = ~open_.any(dim=1, keepdim=True)
    open_ = open_ | (
        still & (point.gradient.abs() == point.gradient.abs().amax(dim=1, keepdim=True))
    )
    hessian = torch.where(open_[:, :, None] & open_[:, None, :], point.hessian, 0)
    size = hessian.abs().amax(dim=(1, 2))
    hessian = hessian + torch.diag_embed(torch.where(open_, 0, size[:, None]))
    values, vectors = torch.linalg.eigh(hessian)
    along = (vectors.mT @ torch.where(open_, point.gradient, 0)[:, :, None]).squeeze(2)
    least = values.abs().amax(dim=1, keepdim=True) * torch.finfo(values.dtype).eps ** 0.7
    definite = (values >= least).all(dim=1)
    step = -(vectors @ (along / values.abs().clamp_min(least))[:, :, None]).squeeze(2)
    return step * (MAX_STEP / step.abs().amax(dim=1, keepdim=True).clamp_min(MAX_STEP)), definite


def _solution(
    moments: Moments, penalties: Tensor, rho: Tensor, converged: Tensor, n_iterations: int
) -> Solution:
    """Gather what is known of the models at their optimal smoothing."""
    weights = rho.exp() @ penalties
    _, inverse = _factor(moments, weights)
    beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
    edf = 1 - weights * inverse.diagonal(dim1=1, dim2=2)  # diag of A^-1 X'X, since A^-1 A = 1
    rss = moments.yy - (beta * moments.xy).sum(dim=1) - (weights * beta.square()).sum(dim=1)
    n = moments.n
    loglik = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
    return Solution(
        beta, edf, inverse, rho, rss, n, rss / (n - edf.sum(dim=1)), loglik, converged, n_iterations
    )
