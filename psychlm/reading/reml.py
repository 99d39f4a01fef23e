"""Smoothing by REML or ML for many Gaussian additive models at once, from their cross-products alone.

Wood (2011): with penalties S = sum_j lambda_j diag(d_j), A = X'X + S, D = min_b |y - Xb|^2 + b'Sb and the scale
profiled out, minus twice the restricted log-likelihood is, up to a constant,

    (n - M) log D + log|A| - log|S|+          M unpenalised coefficients, |S|+ over the penalised ones

and minus twice the likelihood (ML) is n log D + log|A_pp| - log|S|+, A_pp being A's penalised block. Newton's method
in rho = log lambda uses exact first and second derivatives. Since every penalty is diagonal (see ``bases``), the
derivative of S is diagonal too and all traces are sums over coefficients; models are a batch dimension throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Method = Literal["REML", "ML"]
MAX_STEP = 5.0  # in log lambda, as mgcv's newton()
MAX_LOG_LAMBDA = 40.0
MAX_HEAD_START = 7.0  # of a start above balance, in log lambda: further out the criterion is too flat to come back from
TOLERANCE = 1e-5  # nats that a Newton step promises, when it is the last (it is still taken)


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
    """The criterion (in nats) at some log lambda, with its derivatives."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor


def solve(
    moments: Moments, penalties: Tensor, *, method: Method = "REML", start: Tensor | None = None, max_iter: int = 200
) -> Solution:
    """Fit B models that share their penalties.

    Parameters
    ----------
    moments : Moments of B models
    penalties : Tensor, shape (n_penalties, p)
        The diagonals d_j.
    start : Tensor, shape (n_penalties,) or (B, n_penalties), optional
        First log lambda; else the penalties begin as heavy as the data.
    """
    n_penalties = len(penalties)
    with _one_thread():
        if n_penalties == 0:
            nothing, done = moments.yy.new_zeros((len(moments), 0)), torch.ones_like(moments.yy, dtype=torch.bool)
            return _solution(moments, penalties, nothing, done, 0)
        balance = _balance(moments, penalties)
        rho = balance if start is None else torch.minimum(start.expand_as(balance), balance + MAX_HEAD_START)
        rho, converged, n_iterations = _minimise(moments, penalties, rho.clone(), method, max_iter)
        return _solution(moments, penalties, rho, converged, n_iterations)


def _minimise(
    moments: Moments, penalties: Tensor, rho: Tensor, method: Method, max_iter: int
) -> tuple[Tensor, Tensor, int]:
    """Walk down the criterion by Newton's method; models that have arrived drop out of the batch."""
    best = _criterion(moments, penalties, rho, method)
    step, promised = _newton_step(best.gradient, best.hessian)
    converged = promised < TOLERANCE
    n_iterations = 1
    while n_iterations < max_iter and not converged.all():
        n_iterations += 1
        active = torch.nonzero(~converged).squeeze(1)
        trial = (rho[active] + step[active]).clamp(-MAX_LOG_LAMBDA, MAX_LOG_LAMBDA)
        here = _criterion(moments[active], penalties, trial, method)
        better = here.value <= best.value[active] + 1e-12 * best.value[active].abs()
        moved = active[better]
        rho[moved] = trial[better]
        for old, new in zip(vars(best).values(), vars(here).values(), strict=True):
            old[moved] = new[better]
        step[active[~better]] /= 2  # it overshot: try half as far
        step[moved], promised = _newton_step(best.gradient[moved], best.hessian[moved])
        converged[moved] = promised < TOLERANCE
        converged[active[~better]] = step[active[~better]].abs().amax(dim=1) < 1e-6
    last = torch.where(converged[:, None], step.clamp(-1, 1), 0)
    return (rho + last).clamp(-MAX_LOG_LAMBDA, MAX_LOG_LAMBDA), converged, n_iterations


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep batches of small matrices on one thread: several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _balance(moments: Moments, penalties: Tensor) -> Tensor:
    """Return the log lambda where each penalty weighs as much as the data on its columns, as mgcv's initial.sp."""
    information = moments.xx.diagonal(dim1=1, dim2=2)
    used = (penalties > 0).to(information)
    return torch.log((information @ used.T) / (penalties.sum(dim=1)))


def _factor(moments: Moments, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Cholesky factor of A, its inverse's, and A^-1."""
    factor = torch.linalg.cholesky(moments.xx + torch.diag_embed(weights))
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return factor, half, half.mT @ half


def _criterion(moments: Moments, penalties: Tensor, rho: Tensor, method: Method) -> _Point:
    """Evaluate half of the criterion in the module's docstring, with derivatives with respect to rho."""
    each = rho.exp()[:, :, None] * penalties  # B x J x p: lambda_j d_j
    weights = each.sum(dim=1)
    penalised = penalties.sum(dim=0) > 0
    factor, _, inverse = _factor(moments, weights)
    beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
    deviance = moments.yy - (beta * moments.xy).sum(dim=1)
    if method == "REML":
        dof, spread = moments.n - int((~penalised).sum()), inverse
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    else:
        dof = moments.n
        index = torch.nonzero(penalised).squeeze(1)
        block = Moments(moments.xx[:, index][:, :, index], moments.xy[:, index], moments.yy, moments.n)
        block_factor, _, block_inverse = _factor(block, weights[:, index])
        log_det = 2 * block_factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        spread = torch.zeros_like(inverse)
        spread[:, index[:, None], index] = block_inverse

    share = each[:, :, penalised] / weights[:, None, penalised]  # of each penalty in a coefficient's weight
    pull = each * beta[:, None, :]
    d_deviance = (pull * beta[:, None, :]).sum(dim=2)
    d_det = (each * spread.diagonal(dim1=1, dim2=2)[:, None, :]).sum(dim=2)
    d_pen = share.sum(dim=2)
    relative = d_deviance / deviance[:, None]
    gradient = (dof[:, None] * relative + d_det - d_pen) / 2
    dd_deviance = torch.diag_embed(d_deviance) - 2 * pull @ inverse @ pull.mT
    dd_det = torch.diag_embed(d_det) - each @ spread.square() @ each.mT
    dd_pen = torch.diag_embed(d_pen) - share @ share.mT
    curvature = dd_deviance / deviance[:, None, None] - relative[:, :, None] * relative[:, None, :]
    hessian = (dof[:, None, None] * curvature + dd_det - dd_pen) / 2
    value = (dof * deviance.log() + log_det - weights[:, penalised].log().sum(dim=1)) / 2
    return _Point(value, gradient, hessian)


def _newton_step(gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Return a downhill step and the decrease it promises; directions of negative curvature are turned round."""
    values, vectors = torch.linalg.eigh(hessian)
    along = (vectors.mT @ gradient[:, :, None]).squeeze(2)
    curvature = values.abs().clamp_min(1e-7 * values.abs().amax(dim=1, keepdim=True)).clamp_min(1e-12)
    step = -(vectors @ (along / curvature)[:, :, None]).squeeze(2)
    promised = (along.square() / curvature).sum(dim=1) / 2
    return step * (MAX_STEP / step.abs().amax(dim=1, keepdim=True).clamp_min(MAX_STEP)), promised


def _solution(moments: Moments, penalties: Tensor, rho: Tensor, converged: Tensor, n_iterations: int) -> Solution:
    """Gather what is known of the models at their optimal smoothing."""
    weights = rho.exp() @ penalties
    _, _, inverse = _factor(moments, weights)
    beta = (inverse @ moments.xy[:, :, None]).squeeze(2)
    edf = 1 - weights * inverse.diagonal(dim1=1, dim2=2)  # diag of A^-1 X'X, since A^-1 A = 1
    rss = moments.yy - (beta * moments.xy).sum(dim=1) - (weights * beta.square()).sum(dim=1)
    n = moments.n
    loglik = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
    return Solution(beta, edf, inverse, rho, rss, n, rss / (n - edf.sum(dim=1)), loglik, converged, n_iterations)
