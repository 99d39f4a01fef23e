"""Thin-plate regression splines of one variable: mgcv's ``bs="tp"``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from psychlm.reading_times.cubic import diagonal, enough_values
from psychlm.reading_times.formula import Smooth

Floats = NDArray[np.float64]
MAX_KNOTS = 2000  # mgcv's; above it, it samples the unique values at random, and this module takes every m-th


@dataclass(frozen=True)
class ThinPlate:
    """A thin-plate spline of one variable, truncated to its k largest eigenvectors (Wood 2003).

    With E_ij = |x_i - x_j|^3 / 12 over the unique values and its k largest eigenvectors U, f(x) = E(x) U Z g + straight
    line, where Z spans what is orthogonal to straight lines; the last rotation makes the penalty diagonal.
    """

    label: str
    variables: tuple[str, ...]
    knots: Floats
    centre: float
    scale: float
    weights: Floats  # U Z V: n_knots x (k - 2)
    d: Floats
    turn: Floats  # V': from mgcv's coefficients to these

    @property
    def penalties(self) -> Floats:
        """Return shape (1, k - 1); the straight line comes first and is free."""
        return np.r_[0.0, self.d][None, :]

    @property
    def names(self) -> tuple[str, ...]:
        """Return ``label.1``, ``label.2`` ..."""
        return tuple(f"{self.label}.{i + 1}" for i in range(len(self.d) + 1))

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return shape (n, k - 1)."""
        values, inverse = np.unique(
            data[self.variables[0]].to_numpy(np.float64), return_inverse=True
        )
        x = (values - self.centre) / self.scale
        return np.column_stack([x, _radial(x, self.knots) @ self.weights])[inverse]

    def diagonals(self, mean: Floats, xx: Floats) -> tuple[Floats, Floats]:
        """Return the diagonals of X'X and the penalty for columns of unit size that sum to zero, as mgcv has them."""
        k = len(mean) + 1
        change = np.zeros(
            (k - 1, k)
        )  # from mgcv's columns (curves, constant, line) to these (line, curves)
        change[1:, : k - 2], change[0, -1] = self.turn, 1
        means = np.r_[mean[1:] @ self.turn, 1.0, 0.0]
        size = np.sqrt(diagonal(change, xx) + means**2)
        constrained = np.linalg.qr((means / size)[:, None], mode="complete")[0][:, 1:]
        change = change / size @ constrained
        return diagonal(change, xx), diagonal(change, np.diag(self.penalties[0]))[None, :]


def _radial(x: Floats, knots: Floats) -> Floats:
    distance = np.abs(x[:, None] - knots[None, :])
    return distance * distance * distance / 12  # numpy's power of 3 takes ten times as long


def thin_plate(smooth: Smooth, data: pd.DataFrame) -> ThinPlate:
    """Build the basis at the unique values of the variable (at every m-th of them where there are too many)."""
    unique = np.unique(data[smooth.variables[0]].to_numpy(np.float64))
    k = smooth.k[0]
    enough_values(len(unique), k, smooth.label)
    if len(unique) > MAX_KNOTS:
        unique = unique[np.linspace(0, len(unique) - 1, MAX_KNOTS).round().astype(int)]
    centre, scale = float(unique.mean()), float(unique.std())
    knots = (unique - centre) / scale
    radial = _radial(knots, knots)
    if len(knots) > 4 * k:
        values, vectors = eigsh(radial, k=k, which="LM", v0=np.ones(len(knots)))
    else:
        values, vectors = np.linalg.eigh(radial)
    order = np.argsort(-np.abs(values))[:k]
    order = np.r_[
        order[values[order] > 0], order[values[order] < 0]
    ]  # mgcv's: it shapes where the search begins
    values, vectors = values[order], vectors[:, order]
    free = _orthogonal_to(np.stack([knots, np.ones_like(knots)]) @ vectors)
    d, rotation = np.linalg.eigh(free.T @ (values[:, None] * free))
    weights = vectors @ free @ rotation
    return ThinPlate(
        smooth.label, smooth.variables, knots, centre, scale, weights, d / d[-1], rotation.T
    )


def _orthogonal_to(rows: Floats) -> Floats:
    """Return an orthonormal basis of what is orthogonal to the rows, made as in mgcv by Householder reflections."""
    left, basis = rows.copy(), np.eye(rows.shape[1])
    for i in range(len(rows)):
        last = rows.shape[1] - i
        mirror = left[i, :last].copy()
        mirror[-1] += np.copysign(np.linalg.norm(mirror), mirror[-1])
        mirror /= np.linalg.norm(mirror)
        for matrix in (left, basis):
            matrix[:, :last] -= 2 * np.outer(matrix[:, :last] @ mirror, mirror)
    return basis[:, : rows.shape[1] - len(rows)]
