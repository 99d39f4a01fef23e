"""Cubic regression splines in one variable: the smooths of mgcv's ``bs="cr"`` and the margins of its ``te()``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from psychlm.frames import FrameError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CubicMargin:
    """A cubic regression spline in one variable, its coordinates rotated so that its penalty is ``diag(d)``.

    The coefficients b are the values at the knots and S = integral B''B''' (Wood 2017, section 5.3.1); the rotation is
    orthogonal, and its first coordinate is the constant, the second the straight line.
    """

    spline: CubicSpline
    rotation: Floats
    d: Floats

    def columns(self, x: Floats) -> Floats:
        """Return shape (n, k); outside the knots the function goes on as a straight line."""
        first, last = self.spline.x[0], self.spline.x[-1]
        inside = np.clip(x, first, last)
        values = self.spline(inside)
        beyond = x != inside
        if beyond.any():
            values[beyond] += (x - inside)[beyond, None] * self.spline(inside[beyond], 1)
        return values @ self.rotation


def cubic_margin(x: Floats, k: int, label: str) -> CubicMargin:
    """Place k knots at quantiles of the unique values, as mgcv does."""
    unique = np.unique(x)
    enough_values(len(unique), k, label)
    knots = np.quantile(unique, np.linspace(0, 1, k))
    spline = CubicSpline(knots, np.eye(k), bc_type="natural")
    curvature, h = spline(knots, 2), np.diff(knots)  # second derivatives are linear between knots
    gram = np.diag(np.r_[h, 0] / 3 + np.r_[0, h] / 3) + np.diag(h / 6, 1) + np.diag(h / 6, -1)
    penalty = curvature.T @ gram @ curvature
    straight = np.linalg.qr(np.stack([np.ones(k), knots - knots.mean()], axis=1))[0]
    d, vectors = np.linalg.eigh(penalty)
    # The two smallest eigenvalues are zero; their space is exactly the straight lines.
    return CubicMargin(
        spline, np.hstack([straight, vectors[:, 2:]]), np.r_[0.0, 0.0, d[2:] / d[-1]]
    )


def enough_values(n_unique: int, k: int, label: str) -> None:
    """Raise if a basis of dimension k cannot stand on so few unique values."""
    if n_unique < k:
        raise FrameError(
            f"{label} has {n_unique} unique values, too few for a basis of dimension {k}; give a smaller k "
            f"({label[:-1]}, k={max(3, n_unique)})) or enter the variable as a linear term"
        )


def diagonal(change: Floats, matrix: Floats) -> Floats:
    """Return the diagonal of change' matrix change."""
    return np.einsum("ij,ik,kj->j", change, matrix, change, optimize=True)
