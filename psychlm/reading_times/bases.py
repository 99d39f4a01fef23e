"""From a variable to the columns of a model matrix, in coordinates where every penalty is diagonal.

mgcv's penalised functions f(x) = sum_k b_k B_k(x) cost lambda b'Sb. An eigenvalue decomposition S = U diag(d) U' turns
b into coordinates g = U'b, in which the penalty is a sum of squares lambda sum_k d_k g_k^2. For tensor products of
cubic regression splines the marginal penalties S1 x I and I x S2 commute, so one change of coordinates makes both
diagonal. The constant function lies in every null space and is one of the coordinates; it is left out and the other
columns are centred, which is mgcv's sum-to-zero constraint. Neither step changes a fitted value, an edf or the
restricted likelihood (beyond a constant): a smooth is the same object, written so that hundreds of models can be solved
at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.reading_times.cubic import CubicMargin, cubic_margin, diagonal
from psychlm.reading_times.formula import Smooth
from psychlm.reading_times.thin_plate import thin_plate

Floats = NDArray[np.float64]
MAX_THIN_PLATE_KNOTS = 2000  # mgcv's; above it, it samples the unique values at random, and this module takes every m-th


class Term(Protocol):
    """Some columns of a model matrix."""

    @property
    def label(self) -> str:
        """Return R's name of the term."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the predictors it is made of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns."""

    @property
    def penalties(self) -> Floats:
        """Return the diagonals d of its penalties, shape (n_penalties, n_columns); no rows for linear terms."""

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return the columns, neither centred nor scaled, for new values of the variables."""


class Smoother(Term, Protocol):
    """Columns with penalties."""

    def diagonals(self, mean: Floats, xx: Floats) -> tuple[Floats, Floats]:
        """Return the diagonals of X'X / n and of each penalty in mgcv's own coefficients (:func:`first_smoothing`).

        ``mean`` and ``xx`` are the means and mean cross-products of the columns, centred but for random effects.
        """


@dataclass(frozen=True)
class Linear:
    """A linear term or an interaction; text and categories become R's treatment contrasts, booleans ``nameTRUE``.

    ``levels`` holds, for each variable that is no number, its levels but the first, which is the reference.
    """

    variables: tuple[str, ...]
    levels: tuple[tuple[object, ...] | None, ...]

    @property
    def label(self) -> str:
        """Return R's name of the term."""
        return ":".join(self.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """Return R's names of the columns."""
        names = [""]
        for variable, levels in zip(self.variables, self.levels, strict=True):
            parts = (
                [variable] if levels is None else [f"{variable}{_in_r(level)}" for level in levels]
            )
            names = [f"{name}:{part}" if name else part for part in parts for name in names]
        return tuple(names)

    @property
    def penalties(self) -> Floats:
        """Return no penalties."""
        return np.zeros((0, len(self.names)))

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return the products of the variables, shape (n, n_columns)."""
        result = np.ones((len(data[self.variables[0]]), 1))
        for variable, levels in zip(self.variables, self.levels, strict=True):
            values = data[variable]
            part = (
                values.to_numpy(np.float64)[:, None]
                if levels is None
                else np.stack([(values == level).to_numpy(np.float64) for level in levels], axis=1)
            )
            result = (part[:, :, None] * result[:, None, :]).reshape(len(part), -1)
        return result


def _in_r(level: object) -> str:
    return str(level).upper() if isinstance(level, bool | np.bool_) else str(level)


def linear(variables: tuple[str, ...], data: pd.DataFrame) -> Linear:
    """Make a linear term: find the levels of its categorical variables."""
    levels: list[tuple[object, ...] | None] = []
    for variable in variables:
        values = data[variable]
        if pd.api.types.is_bool_dtype(values):
            levels.append((True,))
        elif pd.api.types.is_numeric_dtype(values):
            levels.append(None)
        else:
            levels.append(tuple(_categories(values)[1:]))
    return Linear(variables, tuple(levels))


def _categories(values: pd.Series) -> list[object]:
    """Return the levels of a factor in R's order: that of the categories, or sorted."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        present = set(values.unique())
        return [level for level in values.cat.categories if level in present]
    return sorted(values.unique())


@dataclass(frozen=True)
class TensorSmooth:
    """A smooth of one variable (one margin) or a tensor product of several, in cubic regression splines."""

    label: str
    variables: tuple[str, ...]
    margins: tuple[CubicMargin, ...]
    shear: Floats  # n_columns x n_columns, see upright()

    @property
    def penalties(self) -> Floats:
        """Return the d of each margin's penalty, shape (n_margins, n_columns)."""
        grids = np.meshgrid(*(margin.d for margin in self.margins), indexing="ij")
        return np.stack([grid.ravel()[1:] for grid in grids])

    @property
    def names(self) -> tuple[str, ...]:
        """Return ``label.1``, ``label.2`` ..."""
        return tuple(f"{self.label}.{i + 1}" for i in range(self.penalties.shape[1]))

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return shape (n, prod(k) - 1): row-wise Kronecker products without the constant."""
        result = np.ones((len(data[self.variables[0]]), 1))
        for variable, margin in zip(self.variables, self.margins, strict=True):
            values, inverse = np.unique(data[variable].to_numpy(np.float64), return_inverse=True)
            part = margin.columns(values)[inverse]
            result = (result[:, :, None] * part[:, None, :]).reshape(len(part), -1)
        return result[:, 1:] @ self.shear

    def diagonals(self, mean: Floats, xx: Floats) -> tuple[Floats, Floats]:
        """Return the diagonals of X'X and the penalties where mgcv has them: values at knots that sum to zero."""
        rotation = np.eye(1)
        for margin in self.margins:
            rotation = np.asarray(np.kron(rotation, margin.rotation))
        upright = np.linalg.inv(self.shear)
        sums = rotation @ np.r_[len(rotation) ** -0.5, mean @ upright]
        constrained = np.linalg.qr(sums[:, None], mode="complete")[0][:, 1:]
        change = upright @ (rotation.T @ constrained)[1:]
        return diagonal(change, xx), np.stack(
            [diagonal(change, np.diag(d)) for d in self.penalties]
        )


def upright(smooth: TensorSmooth, data: pd.DataFrame, weights: Floats | None) -> TensorSmooth:
    """Make the penalised columns orthogonal, among coefficients that sum to zero, to the free ones.

    ML maximises over the free functions and integrates the others out, so it depends on which functions count as the
    others; mgcv takes those orthogonal to the free ones in its own, constrained coefficients, and so does this. REML
    integrates both and is the same with any choice.
    """
    constant = (
        np.prod([len(margin.d) for margin in smooth.margins]) ** -0.5
    )  # the column that was left out
    means = np.average(smooth.columns(data), axis=0, weights=weights) / constant
    free = smooth.penalties.sum(axis=0) == 0
    shear = np.eye(len(means))
    shear[np.ix_(free, ~free)] = -np.outer(means[free], means[~free]) / (
        1 + means[free] @ means[free]
    )
    return replace(smooth, shear=shear)


@dataclass(frozen=True)
class RandomEffect:
    """Independent normal intercepts (or slopes) of the levels of a factor: ``s(subject, bs="re")``."""

    label: str
    variables: tuple[str, ...]
    factors: tuple[tuple[object, ...] | None, ...]  # levels of each variable; None for a number

    @property
    def names(self) -> tuple[str, ...]:
        """Return ``label.level``."""
        names = [""]
        for levels in self.factors:
            names = (
                [f"{name}.{level}" for name in names for level in levels]
                if levels is not None
                else names
            )
        return tuple(f"{self.label}{name}" for name in names)

    @property
    def penalties(self) -> Floats:
        """Return ones, shape (1, n_levels)."""
        return np.ones((1, len(self.names)))

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return indicators of the levels times the numbers; a level not seen in the fit has the mean effect, 0."""
        n = len(data[self.variables[0]])
        code, factor, width, known = (
            np.zeros(n, dtype=np.int64),
            np.ones(n),
            1,
            np.ones(n, dtype=bool),
        )
        for variable, levels in zip(self.variables, self.factors, strict=True):
            if levels is None:
                factor = factor * data[variable].to_numpy(np.float64)
                continue
            index = pd.Index(levels).get_indexer(pd.Index(data[variable]))
            known &= index >= 0
            code, width = code * len(levels) + index, width * len(levels)
        result = np.zeros((n, width))
        rows = np.flatnonzero(known)
        result[rows, code[rows]] = factor[rows]
        return result

    def diagonals(self, mean: Floats, xx: Floats) -> tuple[Floats, Floats]:
        """Return the diagonals of X'X, which is not centred, and the penalty."""
        return np.diag(xx), self.penalties


def random_effect(smooth: Smooth, data: pd.DataFrame) -> RandomEffect:
    """Find the levels; whatever is no number is a factor."""
    factors = tuple(
        None
        if pd.api.types.is_numeric_dtype(data[name]) and not pd.api.types.is_bool_dtype(data[name])
        else tuple(_categories(data[name]))
        for name in smooth.variables
    )
    return RandomEffect(smooth.label, smooth.variables, factors)


def smooth_term(smooth: Smooth, data: pd.DataFrame, weights: Floats | None = None) -> Smoother:
    """Build the basis of a smooth from its variables; ``weights`` are the readings that each row stands for."""
    if smooth.basis == "re":
        return random_effect(smooth, data)
    if smooth.basis == "tp":
        return thin_plate(smooth, data)
    margins = tuple(
        cubic_margin(data[name].to_numpy(np.float64), k, smooth.label)
        for name, k in zip(smooth.variables, smooth.k, strict=True)
    )
    shear = np.eye(int(np.prod(smooth.k)) - 1)
    return upright(TensorSmooth(smooth.label, smooth.variables, margins, shear), data, weights)


def first_smoothing(diagonals: list[tuple[Floats, Floats]], n: int) -> Floats:
    """Return the log lambda of all penalties where mgcv's search begins (its ``initial.sp``).

    Each penalty weighs as much as the data on the coefficients that it touches; then all together are made ten times
    heavier or lighter until the data make up 0.4 of the sum.

    Parameters
    ----------
    diagonals : list of (ndarray, shape (k,); ndarray, shape (n_penalties, k))
        For each smooth, what :meth:`Smoother.diagonals` gives.
    n : int
        Rows.
    """
    if not diagonals:
        return np.zeros(0)
    parts, information, weight = [], [], []
    for xx, penalties in diagonals:
        touched = penalties > 1e-12 * penalties.max(axis=1, keepdims=True)
        start = np.array(
            [n * xx[t].mean() / s[t].mean() for s, t in zip(penalties, touched, strict=True)]
        )
        parts.append(start)
        information.append(n * xx[touched.any(axis=0)])
        weight.append((start @ penalties)[touched.any(axis=0)])
    x, w, factor = np.concatenate(information), np.concatenate(weight), 1.0
    while (x / (x + factor * w)).mean() > 0.4:
        factor *= 10
    while (x / (x + factor * w)).mean() < 0.4:
        factor /= 10
    return np.log(factor * np.concatenate(parts))
