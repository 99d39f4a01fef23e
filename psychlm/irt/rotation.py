r"""Rotation of factor loadings, towards a target or towards simple structure, by gradient projection.

Loadings :math:`\Lambda` and factors are rotated together, so the model fits as well as before: with an orthogonal T,
:math:`L = \Lambda T`; with a T of unit columns (oblique), :math:`L = \Lambda (T')^{-1}` and the factors correlate by
:math:`T'T`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

N_STARTS = 20  # criteria may have local minima; the first start is no rotation at all
MAX_STEPS = 2000
Criterion = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Rotation:
    """Rotated loadings and the correlations of the factors they belong to."""

    loadings: pd.DataFrame  # (n_items, n_factors)
    factor_correlation: pd.DataFrame  # (n_factors, n_factors); the identity if orthogonal
    criterion: float  # what was minimised
    converged: bool


def target_rotation(
    loadings: pd.DataFrame, target: pd.DataFrame | np.ndarray, *, oblique: bool = False
) -> Rotation:
    r"""Rotate loadings towards a target, minimising the squared differences where the target says something.

    .. math:: f(L) = \tfrac12 \sum_{ik: t_{ik}\,\text{given}} (\lambda_{ik} - t_{ik})^2

    Parameters
    ----------
    loadings : DataFrame, shape (n_items, n_factors)
    target : DataFrame or ndarray, shape (n_items, n_factors)
        NaN where anything will do (a partially specified target); usually 0 for the loadings that ought to vanish.
        A factor whose target holds only zeros and NaN is turned so that its loadings sum to a positive number.
    oblique : bool
        Whether the factors may correlate.

    Raises
    ------
    ValueError
        If the shapes differ, or a factor has no specified target.

    References
    ----------
    Browne (2001), Multivariate Behavioral Research 36, 111-150, section on target rotation.
    """
    goal = np.asarray(target, dtype=float)
    if goal.shape != loadings.shape:
        raise ValueError(
            f"the target has shape {goal.shape} and the loadings {loadings.shape}; they must be alike"
        )
    given = ~np.isnan(goal)
    if not given.any(axis=0).all():
        raise ValueError(
            "a factor's target is NaN throughout, so it may turn freely; specify some of its loadings"
        )

    def criterion(rotated: np.ndarray) -> tuple[float, np.ndarray]:
        difference = np.where(given, rotated - goal, 0.0)
        return 0.5 * float((difference**2).sum()), difference

    return _upright(
        _best_rotation(loadings, criterion, oblique), ~(given & (goal != 0)).any(axis=0)
    )


def oblimin(loadings: pd.DataFrame, *, oblique: bool = True) -> Rotation:
    r"""Rotate loadings so that items load on few factors (direct quartimin; quartimax if orthogonal).

    .. math:: f(L) = \tfrac14 \sum_i \sum_{k \ne l} \lambda_{ik}^2 \lambda_{il}^2

    Parameters
    ----------
    loadings : DataFrame, shape (n_items, n_factors)
    oblique : bool
        Whether the factors may correlate.

    Returns
    -------
    Rotation
        Every factor turned so that its loadings sum to a positive number.

    References
    ----------
    Jennrich & Sampson (1966), Psychometrika 31, 313-323 (the oblimin family's member with gamma = 0).
    """
    n_factors = loadings.shape[1]
    others = np.ones((n_factors, n_factors)) - np.eye(n_factors)

    def criterion(rotated: np.ndarray) -> tuple[float, np.ndarray]:
        cross = rotated**2 @ others
        return 0.25 * float((rotated**2 * cross).sum()), rotated * cross

    return _upright(_best_rotation(loadings, criterion, oblique), np.full(n_factors, True))


def _best_rotation(loadings: pd.DataFrame, criterion: Criterion, oblique: bool) -> Rotation:
    """Return the best of several starts (fixed ones, so that the result is the same every time)."""
    unrotated = loadings.to_numpy(dtype=float)
    n_factors = unrotated.shape[1]
    turns = np.random.default_rng(0).standard_normal((N_STARTS - 1, n_factors, n_factors))
    turns = np.linalg.qr(turns)[0]
    turns[
        ::2, :, -1
    ] *= -1  # the orthogonal matrices fall in two parts, with and without a reflection: search both
    starts = [np.eye(n_factors), *turns]
    runs = [_gradient_projection(unrotated, criterion, oblique, start) for start in starts]
    value, turn, converged = min(runs, key=lambda run: run[0])
    names = [f"F{k + 1}" for k in range(n_factors)]
    return Rotation(
        loadings=pd.DataFrame(
            _rotated(unrotated, turn, oblique), index=loadings.index, columns=names
        ),
        factor_correlation=pd.DataFrame(turn.T @ turn, index=names, columns=names),
        criterion=value,
        converged=converged,
    )


def _upright(found: Rotation, free: np.ndarray) -> Rotation:
    """Reflect those factors, of the ones free to be, whose loadings sum to a negative number."""
    sign = np.where(free & (found.loadings.sum().to_numpy() < 0), -1.0, 1.0)
    correlation = found.factor_correlation * np.outer(sign, sign)
    return Rotation(found.loadings * sign, correlation, found.criterion, found.converged)


def _rotated(unrotated: np.ndarray, turn: np.ndarray, oblique: bool) -> np.ndarray:
    return np.linalg.solve(turn, unrotated.T).T if oblique else unrotated @ turn


def _gradient_projection(
    unrotated: np.ndarray, criterion: Criterion, oblique: bool, turn: np.ndarray
) -> tuple[float, np.ndarray, bool]:
    """Minimise a criterion over rotation matrices (Bernaards & Jennrich 2005); return its value, T, and convergence."""
    step = 1.0
    value, gradient = _value_and_gradient(unrotated, criterion, oblique, turn)
    for _ in range(MAX_STEPS):
        if oblique:
            projected = gradient - turn * (turn * gradient).sum(axis=0)
        else:
            cross = turn.T @ gradient
            projected = gradient - turn @ (cross + cross.T) / 2
        slope = float((projected**2).sum())
        if slope < 1e-16:
            return value, turn, True
        step *= 2
        while True:
            moved = _onto_rotations(turn - step * projected, oblique)
            next_value, next_gradient = _value_and_gradient(unrotated, criterion, oblique, moved)
            if next_value < value - 0.5 * slope * step or step < 1e-12:
                break
            step /= 2
        if next_value >= value:  # no digit left to gain
            return value, turn, slope < 1e-10
        turn, value, gradient = moved, next_value, next_gradient
    return value, turn, False


def _onto_rotations(matrix: np.ndarray, oblique: bool) -> np.ndarray:
    """Return the nearest orthogonal matrix, or the matrix with columns of length 1."""
    if oblique:
        return matrix / np.linalg.norm(matrix, axis=0)
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def _value_and_gradient(
    unrotated: np.ndarray, criterion: Criterion, oblique: bool, turn: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the criterion at T and its derivatives by the entries of T."""
    rotated = _rotated(unrotated, turn, oblique)
    value, by_loading = criterion(rotated)
    if not oblique:
        return value, unrotated.T @ by_loading
    return value, -np.linalg.solve(turn.T, by_loading.T @ rotated)
