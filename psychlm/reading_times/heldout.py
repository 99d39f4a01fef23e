"""Gains on words that the model has not seen: K-fold over texts or sentences, the same folds for every model.

In-sample gains flatter; these do not. Each fold's cross-products are the sum over its units, so a training set is a
subtraction, and the held-out squared error is a quadratic form: no reading is touched. A unit's gain is the sum over
its readings of log N(y; mean, RSS/n of the training set) for the model minus the same for the baseline. Units, not
words, are resampled and permuted, since words of a text are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.reading_times.design import UnitMoments
from psychlm.reading_times.reml import Method, Moments, Solution, solve

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gains:
    """Held-out gains of M models: nats per reading, with interval and p-value; each of shape (M,)."""

    gain: Floats
    low: Floats
    high: Floats
    p_value: Floats


def regressions(total: UnitMoments) -> Moments:
    """Return the regressions of every model and measure on all units, shape B = models x measures."""
    return _pooled(total, torch.ones_like(total.n))


def _pooled(units: UnitMoments, weights: Tensor) -> Moments:
    """Sum the units with weights: 1 for those in the training set, 0 for the others."""
    xx, xy = torch.tensordot(weights, units.xx, 1), torch.tensordot(weights, units.xy, 1)
    n_models, p, m = xy.shape
    return Moments(
        xx=xx[:, None].expand(n_models, m, p, p).reshape(-1, p, p),
        xy=xy.mT.reshape(-1, p),
        yy=(weights @ units.yy).expand(n_models, m).reshape(-1),
        n=(weights @ units.n).expand(n_models * m),
    )


def folds(n_units: int, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Deal the units into k folds at random; returns the fold of each."""
    return rng.permutation(np.arange(n_units) % min(k, n_units))


def logliks(
    units: UnitMoments, fold: Tensor, penalties: Tensor, full: Solution, method: Method
) -> tuple[Tensor, Tensor]:
    """Fit without each fold and return the log-likelihood of its units.

    Parameters
    ----------
    fold : Tensor of int, shape (U,)
    full : Solution
        The fits to all units, whose smoothing each fold's search begins at.

    Returns
    -------
    Tensor, shape (U, models * measures), in nats; Tensor of bool, shape (models * measures,)
        Whether every fold's smoothing converged.
    """
    n_models, p, m = units.xy.shape[1:]
    result = units.yy.new_empty((len(units.n), n_models * m))
    converged = torch.ones(n_models * m, dtype=torch.bool, device=result.device)
    for k in range(int(fold.max()) + 1):
        held = torch.nonzero(fold == k).squeeze(1)
        trained = solve(
            _pooled(units, (fold != k).to(units.n)), penalties, full.log_lambda, method=method
        )
        converged &= trained.converged
        beta = trained.beta.view(n_models, m, p)
        squares = (
            torch.einsum("bmp,ubpm->ubm", beta, _gradient(units, held, beta))
            + units.yy[held][:, None, :]
        )
        variance = trained.rss / trained.n
        n = units.n[held][:, None]
        result[held] = -n / 2 * torch.log(2 * torch.pi * variance) - squares.reshape(
            len(held), -1
        ) / (2 * variance)
    return result, converged


def _gradient(units: UnitMoments, held: Tensor, beta: Tensor) -> Tensor:
    """Return X'X b - 2 X'y of the held-out units, shape (n_held, models, p, measures)."""
    return units.xx[held] @ beta.mT - 2 * units.xy[held]


def summarise(
    gains: Floats,
    n: Floats,
    rng: np.random.Generator,
    *,
    n_bootstrap: int,
    n_permutations: int,
    level: float,
) -> Gains:
    """Turn gains by unit into gains per reading, with a paired bootstrap interval and a paired permutation test.

    Parameters
    ----------
    gains : ndarray, shape (U, M)
        Model minus baseline, nats, of each unit.
    n : ndarray, shape (U,)
        Readings of each unit.

    Notes
    -----
    The interval holds percentiles over resamples of the units, the same for all models. The p-value is two-sided: the
    share of random exchanges of model and baseline within units that give a total at least as far from zero, with
    (count + 1) / (n_permutations + 1) (Phipson & Smyth 2010).
    """
    n_units = len(n)
    total = gains.sum(axis=0)
    if n_units < 2:
        nothing = np.full(total.shape, np.nan)
        return Gains(total / n.sum(), nothing, nothing, nothing)
    drawn = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_bootstrap).astype(
        np.float64
    )
    resampled = (drawn @ gains) / (drawn @ n)[:, None]
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    signs = rng.choice([-1.0, 1.0], size=(n_permutations, n_units))
    extreme = (np.abs(signs @ gains) >= np.abs(total) * (1 - 1e-12)).sum(axis=0)
    return Gains(total / n.sum(), low, high, (extreme + 1) / (n_permutations + 1))
