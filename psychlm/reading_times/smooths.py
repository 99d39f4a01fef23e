"""Terms of a model: linear terms, random effects, and smooths whose penalties are diagonal.

A penalised function f(x) = sum_k b_k B_k(x) of mgcv costs lambda b'Sb. An eigendecomposition S = U
diag(d) U' turns b into g = U'b, in which the penalty is a sum of squares, lambda sum_k d_k g_k^2.
The marginal penalties S1 x I and I x S2 of a tensor product commute, so that one change of
coordinates makes both diagonal. The constant function lies in every null space and is one of the
coordinates: it is left out and the other columns are centred, which is mgcv's sum-to-zero
constraint. Neither step changes a fitted value, an edf, or the restricted likelihood beyond a
constant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.sparse.linalg import LinearOperator, eigsh

from psychlm.frames import FrameError, format_names, refuse
from psychlm.reading_times.contrasts import Contrast, Floats, is_number, is_ordered, level_name
from psychlm.reading_times.formula import Smooth

Levels = tuple[object, ...] | None  # of a factor; None for a number
MAX_KNOTS = 2000  # of a thin plate, as in mgcv, which samples values at random; here every m-th


@dataclass(frozen=True)
class Term:
    """Some columns of a model matrix."""

    label: str  # R's name of the term
    variables: tuple[str, ...]
    names: tuple[str, ...]  # R's names of the columns
    penalties: Floats  # (n_penalties, n_columns): the diagonals d; no rows for linear terms

    @property
    def centred(self) -> bool:
        """Return whether the columns are centred at the data, as in mgcv: not those of random
        effects, ``by`` and ``ti()``."""
        return True

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return the columns, neither centred nor scaled, for new values of the variables."""
        raise NotImplementedError

    def diagonals(self, xx: Floats) -> tuple[Floats, Floats]:
        """Return the diagonals of X'WX / n and of each penalty in mgcv's own coefficients, of the
        weighted mean cross-products of the columns."""
        return np.diag(xx), self.penalties


def _row_products(parts: Iterable[Floats], n: int) -> Floats:
    """Return the products of one column of each part, those of the last part running fastest."""

    def product(left: Floats, right: Floats) -> Floats:
        return (left[:, :, None] * right[:, None, :]).reshape(n, -1)

    return reduce(product, parts, np.ones((n, 1)))


def _values(values: pd.Series, levels: Levels) -> Floats:
    """Return numbers as one column, or a column of 0 and 1 for each level."""
    if levels is None:
        return values.to_numpy(np.float64)[:, None]
    index = pd.Index(levels).get_indexer(pd.Index(values))
    return (index[:, None] == np.arange(len(levels))).astype(np.float64)


# ---- linear terms and random effects ----


@dataclass(frozen=True)
class Linear(Term):
    """A linear term or an interaction, factors with contrasts; of no variables the intercept."""

    levels: tuple[Levels, ...]  # of each variable
    codings: tuple[Floats | None, ...]  # of each factor's levels, (n_levels, n_columns)
    kept: NDArray[np.intp]  # which of the products are columns; others determine the rest

    def without(self, names: Collection[str]) -> Linear:
        """Return the term without some columns."""
        kept = [i for i, name in enumerate(self.names) if name not in names]
        return replace(
            self,
            names=tuple(self.names[i] for i in kept),
            penalties=self.penalties[:, kept],
            kept=self.kept[kept],
        )

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return the products of the variables; an unseen level of a factor is an error."""
        for variable, levels in zip(self.variables, self.levels, strict=True):
            if levels is not None:
                require_levels(variable, data[variable], levels)
        parts = []
        for variable, levels, coding in zip(self.variables, self.levels, self.codings, strict=True):
            values = _values(data[variable], levels)
            parts.append(values if coding is None else values @ coding)
        return _row_products(parts[::-1], len(data))[:, self.kept]  # as in R, the first is fastest


def require_levels(variable: str, values: pd.Series, levels: Iterable[object]) -> None:
    """Raise a :class:`FrameError` if a linear term's factor has levels without a coefficient."""
    refuse(
        f"factor {variable!r} has levels",
        sorted(set(values.unique()) - set(levels), key=str),
        "that were not in the data of the fit, so they have no coefficient; leave those rows out",
    )


def linear(
    variables: tuple[str, ...],
    data: pd.DataFrame,
    full: frozenset[str] = frozenset(),
    contrasts: Mapping[str, Contrast] | None = None,
) -> Linear:
    """Make a linear term: find the levels of its factors.

    Factors in ``full`` have a column for every level, the others those of their ``contrasts``
    (treatment contrasts unless given).
    """
    levels = tuple(factor_levels(data[variable]) for variable in variables)
    codings: list[Floats | None] = []
    names = [""]
    for variable, present in zip(variables, levels, strict=True):
        coding: Floats | None = None
        labels: tuple[str, ...] = ("",)
        if present is not None and variable in full:
            coding = np.eye(len(present))
            labels = tuple(map(level_name, present))
        elif present is not None:
            contrast = (contrasts or {}).get(variable, Contrast())
            coding, labels = contrast.code(variable, present)
        codings.append(coding)
        parts = [variable + label for label in labels]
        names = [f"{name}:{part}" if name else part for part in parts for name in names]
    label = ":".join(variables) or "(Intercept)"
    names = [name or label for name in names]
    penalties = np.zeros((0, len(names)))
    kept = np.arange(len(names))
    return Linear(label, variables, tuple(names), penalties, levels, tuple(codings), kept)


def factor_levels(values: pd.Series) -> Levels:
    """Return the levels of a factor in R's order (that of the categories, or sorted); None for
    numbers."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        present = set(values.unique())
        return tuple(level for level in values.cat.categories if level in present)
    return None if is_number(values) else tuple(sorted(values.unique()))


@dataclass(frozen=True)
class RandomEffect(Term):
    """Independent normal intercepts or slopes of a factor's levels: ``s(subject, bs="re")``."""

    factors: dict[str, tuple[object, ...]]  # levels; the other variables are multiplied, as numbers

    @property
    def centred(self) -> bool:
        """Return False."""
        return False

    def columns(self, data: pd.DataFrame, without: str = "") -> Floats:
        """Return indicators of the levels, 0 of an unseen one, times the numbers. The factor
        ``without`` is left out: what a reading contributes in its level."""
        names = [name for name in self.variables if name != without]
        parts = [_values(data[name], self.factors.get(name)) for name in names]
        return _row_products(parts, len(data))


def random_effect(smooth: Smooth, data: pd.DataFrame) -> RandomEffect:
    """Make a random effect: its first variable is a factor, the others are where they are no
    numbers.

    It warns if the grouping factor holds numbers (ids), or some of its levels have a single row,
    and is an error where all have.
    """
    levels_of = {name: factor_levels(data[name]) for name in smooth.variables}
    factors = {name: levels for name, levels in levels_of.items() if levels}
    if not factors:
        first = smooth.variables[0]
        factors[first] = tuple(sorted(data[first].unique()))
        if smooth.kind != "bar":
            warn_of_numbers(first, len(factors[first]), stacklevel=5)
    grouping = next(iter(factors))
    counts = data[grouping].value_counts()
    single = counts.index[counts == 1]
    if len(single) == len(counts):
        raise FrameError(
            f"{smooth.label}: every level of {grouping!r} has a single row, so its effect is the "
            "residual; leave it out (are these means over people?)"
        )
    if len(single) and smooth.kind != "bar":
        warnings.warn(
            f"{smooth.label}: {format_names(single)} ({len(single)} of {len(counts)} levels of "
            f"{grouping!r}) have one row, so their effects are shrunk to almost nothing; check "
            "their ids or leave them out",
            RuntimeWarning,
            stacklevel=4,
        )
    names = [smooth.label]
    for levels in factors.values():
        names = [f"{name}.{level}" for name in names for level in levels]
    ones = np.ones((1, len(names)))
    return RandomEffect(smooth.label, smooth.variables, tuple(names), ones, factors)


def warn_of_numbers(grouping: str, n_levels: int, stacklevel: int) -> None:
    """Warn that numbers label the groups of a random effect, which are never its slope."""
    warnings.warn(
        f"the numbers in {grouping!r} label {n_levels} groups, since bs='re' always has a factor; "
        "for a slope write a linear term",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


# ---- cubic regression splines and their tensor products ----


@dataclass(frozen=True)
class CubicMargin:
    """A cubic regression spline of one variable, rotated so that its penalty is ``diag(d)``.

    The coefficients b are the values at the knots, and S_ij = integral B_i''(x) B_j''(x) dx (Wood
    2017, section 5.3.1). The rotation is orthogonal; its first coordinate is the constant, the
    second the straight line.
    """

    spline: CubicSpline
    rotation: Floats
    d: Floats

    def columns(self, x: Floats) -> Floats:
        """Return shape (n, k); beyond the outer knots the function continues as a straight line."""
        inside = np.clip(x, self.spline.x[0], self.spline.x[-1])
        values = self.spline(inside) + (x - inside)[:, None] * self.spline(inside, 1)
        return values @ self.rotation

    def summing_to_zero(self, means: Floats) -> CubicMargin:
        """Return the functions that sum to zero at the data, given the means of the columns.

        With Q spanning what is orthogonal to the means, the eigenvectors of Q' diag(d) Q make the
        penalty diagonal again; the first coordinate is the straight line.
        """
        q = np.linalg.qr(means[:, None], mode="complete")[0][:, 1:]
        d, vectors = np.linalg.eigh(q.T @ (self.d[:, None] * q))
        return CubicMargin(self.spline, self.rotation @ q @ vectors, np.r_[0.0, d[1:] / d[-1]])


def cubic_margin(x: Floats, k: int, label: str) -> CubicMargin:
    """Place k knots at quantiles of the unique values, as mgcv does."""
    unique = np.unique(x)
    _require_values(len(unique), k, label)
    knots = np.quantile(unique, np.linspace(0, 1, k))
    spline = CubicSpline(knots, np.eye(k), bc_type="natural")
    # Second derivatives are linear between knots, so their products integrate to a tridiagonal
    # form.
    curvature = spline(knots, 2)
    h = np.diff(knots)
    gram = np.diag(np.r_[h, 0] / 3 + np.r_[0, h] / 3) + np.diag(h / 6, 1) + np.diag(h / 6, -1)
    penalty = curvature.T @ gram @ curvature
    # The two smallest eigenvalues are zero; their space is exactly the straight lines.
    straight = np.linalg.qr(np.stack([np.ones(k), knots - knots.mean()], axis=1))[0]
    d, vectors = np.linalg.eigh(penalty)
    rotation = np.hstack([straight, vectors[:, 2:]])
    return CubicMargin(spline, rotation, np.r_[0.0, 0.0, d[2:] / d[-1]])


@dataclass(frozen=True)
class TensorProduct:
    """Cubic regression splines of one variable, or the row-wise Kronecker products of several."""

    variables: tuple[str, ...]
    margins: tuple[CubicMargin, ...]
    penalties: Floats  # (n_penalties, n_columns): all products, or those without the constant

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return shape (n, n_columns)."""
        parts = []
        for variable, margin in zip(self.variables, self.margins, strict=True):
            values, inverse = np.unique(data[variable].to_numpy(np.float64), return_inverse=True)
            parts.append(margin.columns(values)[inverse])
        return _row_products(parts, len(data))[:, -self.penalties.shape[1] :]

    def unconstrained(self, mean: Floats, xx: Floats) -> Floats:
        """Return the matrix that maps mgcv's coefficients, the values at the knots, to these."""
        rotation = np.eye(1)
        for margin in self.margins:
            rotation = np.asarray(np.kron(rotation, margin.rotation))
        constant = rotation.T[:1] * len(rotation) ** -0.5
        return np.vstack([constant, rotation.T[1:]])


def tensor_product(smooth: Smooth, data: pd.DataFrame, weights: Floats) -> TensorProduct:
    """Make a cubic basis; of ``ti()`` the products of margins that each sum to zero."""
    margins = []
    for name, k in zip(smooth.variables, smooth.k, strict=True):
        x = data[name].to_numpy(np.float64)
        margin = cubic_margin(x, k, smooth.label)
        if smooth.kind == "ti":
            means = np.average(margin.columns(x), axis=0, weights=weights)
            margin = margin.summing_to_zero(means)
        margins.append(margin)
    grids = np.meshgrid(*(margin.d for margin in margins), indexing="ij")
    penalties = np.stack([grid.ravel() for grid in grids])
    if smooth.kind != "ti":
        penalties = penalties[:, 1:]
    return TensorProduct(smooth.variables, tuple(margins), penalties)


# ---- thin-plate regression splines of one variable ----


@dataclass(frozen=True)
class ThinPlate:
    """A thin-plate spline of one variable, truncated to its k largest eigenvectors (Wood 2003).

    With E_ij = |x_i - x_j|^3 / 12 over the unique values and its k largest eigenvectors U, f(x) =
    E(x) U Z g + straight line, where Z spans what is orthogonal to straight lines; the last
    rotation V makes the penalty diagonal. The straight line is the first column and is not
    penalised.
    """

    variable: str
    penalties: Floats  # (1, k - 1)
    knots: Floats  # in units of scale, from centre
    centre: float
    scale: float
    weights: Floats  # U Z V: n_knots x (k - 2)
    rotation: Floats  # V

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return shape (n, k - 1)."""
        numbers = data[self.variable].to_numpy(np.float64)
        values, inverse = np.unique(numbers, return_inverse=True)
        x = (values - self.centre) / self.scale
        return np.column_stack([x, radial(x, self.knots)(self.weights)])[inverse]

    def unconstrained(self, mean: Floats, xx: Floats) -> Floats:
        """Return the matrix that maps mgcv's coefficients, of columns of unit size, to these."""
        # From mgcv's columns (curves, constant, line less its mean) to these (constant, line,
        # curves).
        k = len(mean) + 1
        change = np.zeros((k, k))
        change[0, -2:], change[1, -1], change[2:, :-2] = [1, -mean[0]], 1, self.rotation.T
        means = np.r_[1.0, mean]
        second = np.outer(means, means)
        second[1:, 1:] += xx
        return change / np.sqrt(_diagonal(change, second))


def thin_plate(smooth: Smooth, data: pd.DataFrame) -> ThinPlate:
    """Build the basis at the unique values of the variable (every m-th of them, if there are
    many)."""
    unique = np.unique(data[smooth.variables[0]].to_numpy(np.float64))
    k = smooth.k[0]
    _require_values(len(unique), k, smooth.label)
    if len(unique) > MAX_KNOTS:
        unique = unique[np.linspace(0, len(unique) - 1, MAX_KNOTS).round().astype(int)]
    centre = float(unique.mean())
    scale = float(unique.std())
    knots = (unique - centre) / scale

    # U: the k eigenvectors of largest absolute eigenvalue, positive ones first as in mgcv.
    n = len(knots)
    product = radial(knots, knots)
    if n > 4 * k:
        operator = LinearOperator((n, n), matvec=product, dtype=float)
        values, vectors = eigsh(operator, k=k, which="LM", v0=np.ones(n))
    else:
        values, vectors = np.linalg.eigh(product(np.eye(n)))
    order = np.argsort(-np.abs(values))[:k]
    order = order[np.argsort(values[order] < 0, kind="stable")]
    values = values[order]
    vectors = vectors[:, order]

    # Z: orthonormal, orthogonal to straight lines; by mgcv's Householder reflections, which keep
    # its last rows.
    left = np.stack([knots, np.ones_like(knots)]) @ vectors
    z = np.eye(k)
    for i, last in ((0, k), (1, k - 1)):
        mirror = left[i, :last].copy()
        mirror[-1] += np.copysign(np.linalg.norm(mirror), mirror[-1])
        mirror /= np.linalg.norm(mirror)
        for matrix in (left, z):
            matrix[:, :last] -= 2 * np.outer(matrix[:, :last] @ mirror, mirror)
    z = z[:, : k - 2]

    # V: makes the penalty Z' diag(values) Z diagonal.
    d, rotation = np.linalg.eigh(z.T @ (values[:, None] * z))
    penalties = np.r_[0.0, d / d[-1]][None, :]
    weights = vectors @ z @ rotation
    return ThinPlate(smooth.variables[0], penalties, knots, centre, scale, weights, rotation)


def radial(x: Floats, knots: Floats) -> Callable[[Floats], Floats]:
    """Return the function that multiplies E_ij = |x_i - knot_j|^3 / 12 with weights, (k, ...).

    With sums S_m of knot^m times weight over the (sorted) knots below x, less those above it, the
    product is (x^3 S_0 - 3 x^2 S_1 + 3 x S_2 - S_3) / 12: E has no need to be formed.
    """
    powers = np.vander(knots, 4, increasing=True).T  # (4, k)
    factors = np.vander(x, 4) * np.array([1, -3, 3, -1]) / 12  # (n, 4)
    below = np.searchsorted(knots, x, side="right")

    def product(weights: Floats) -> Floats:
        sums = np.zeros((4, len(knots) + 1, *weights.shape[1:]))
        each = powers.reshape(4, -1, *[1] * (weights.ndim - 1)) * weights
        np.cumsum(each, axis=1, out=sums[:, 1:])
        return np.einsum("nm,mn...->n...", factors, 2 * sums[:, below] - sums[:, -1:])

    return product


# ---- smooths, also for each level of a factor or multiplied by a number ----


@dataclass(frozen=True)
class SmoothTerm(Term):
    """A smooth; with ``by`` its product with the indicator of a factor's level, or with a number.

    As in mgcv, the functions of a level sum to zero over all rows, whatever their level, and those
    that a number multiplies are not constrained: the constant is among them.
    """

    basis: ThinPlate | TensorProduct
    shear: Floats  # (n_columns, n_columns): the columns are the basis times it
    mean: Floats  # of the basis's columns
    change: Floats  # maps mgcv's coefficients to those of these columns
    by: str
    level: object = None  # None for a number
    levels: Levels = None

    @property
    def centred(self) -> bool:
        """Return whether it has no ``by`` and is no ``ti()``."""
        return not self.by and not self.label.startswith("ti(")

    def columns(self, data: pd.DataFrame) -> Floats:
        """Return the columns of the basis, or their products with the variable ``by``."""
        columns = self.basis.columns(data)
        if not self.by:
            return columns @ self.shear
        if self.level is None:
            columns = np.hstack([np.ones((len(data), 1)), columns])
            return columns * data[self.by].to_numpy(np.float64)[:, None]
        require_levels(self.by, data[self.by], self.levels or ())
        indicator = (data[self.by] == self.level).to_numpy()
        return (columns - self.mean) @ self.shear * indicator[:, None]

    def diagonals(self, xx: Floats) -> tuple[Floats, Floats]:
        """Return them by the change of coefficients."""
        return _diagonal(self.change, xx), self.penalties @ self.change**2


def place_smooth(smooth: Smooth, data: pd.DataFrame, weights: Floats) -> list[SmoothTerm]:
    """Place a smooth's basis at the data, whose rows stand for ``weights`` readings: one term, or
    one for each level of ``by``.

    ML maximises over the free functions and integrates the others out, so it depends on which
    functions count as the others; mgcv takes those orthogonal to the free ones among its
    coefficients that sum to zero, and so does this. With W mgcv's coefficients of these columns,
    the shear adds to the penalised columns W_p the free ones times -(W_f'W_f)^-1 W_f'W_p. REML
    integrates both and does not depend on the choice.
    """
    basis: ThinPlate | TensorProduct
    if smooth.basis == "tp":
        basis = thin_plate(smooth, data)
    else:
        basis = tensor_product(smooth, data, weights)
    by_number = bool(smooth.by) and pd.api.types.is_numeric_dtype(data[smooth.by])
    columns = basis.columns(data)
    mean = np.average(columns, axis=0, weights=weights)
    penalties = basis.penalties
    shear = np.eye(len(mean))
    change = np.eye(len(mean))  # of ti(): mgcv's coefficients, rotated
    if smooth.kind != "ti":
        centred = columns - mean
        covariance = centred.T @ (centred * weights[:, None]) / weights.sum()
        change = basis.unconstrained(mean, covariance)
    if by_number:  # it multiplies the whole smooth, its constant included
        penalties = np.hstack([np.zeros((len(penalties), 1)), penalties])
    elif smooth.kind != "ti":
        sums = np.r_[1.0, mean] @ change
        change = change[1:] @ np.linalg.qr(sums[:, None], mode="complete")[0][:, 1:]
        to_mgcv = np.linalg.inv(change)
        free = penalties.sum(axis=0) == 0
        shear[np.ix_(free, ~free)] = -np.linalg.lstsq(to_mgcv[:, free], to_mgcv[:, ~free])[0]
        change = np.linalg.solve(shear, change)

    def term(label: str, level: object = None, levels: Levels = None) -> SmoothTerm:
        names = tuple(f"{label}.{i + 1}" for i in range(len(change)))
        placed = basis, shear, mean, change
        about = smooth.by, level, levels
        return SmoothTerm(label, smooth.all_variables, names, penalties, *placed, *about)

    if not smooth.by or by_number:
        return [term(smooth.label)]
    # A factor has a smooth of its own for each level, an ordered one for each but the first.
    levels = factor_levels(data[smooth.by]) or ()
    own = levels[is_ordered(data[smooth.by]) :]
    return [term(f"{smooth.label}{level}", level, levels) for level in own]


def _require_values(n_unique: int, k: int, label: str) -> None:
    if n_unique < k:
        smaller = f"give a smaller k ({label[:-1]}, k={n_unique})) or " if n_unique > 2 else ""
        raise FrameError(
            f"{label} has {n_unique} unique values, too few for a basis of dimension {k}; "
            f"{smaller}enter it as a linear term"
        )


def _diagonal(change: Floats, matrix: Floats) -> Floats:
    """Return the diagonal of change' matrix change."""
    return np.asarray((change * (matrix @ change)).sum(axis=0))


def start_smoothing(diagonals: list[tuple[Floats, Floats]], n: int) -> Floats:
    """Return the log lambda of all penalties where mgcv's search begins (its ``initial.sp``).

    Each penalty weighs as much as the data on the coefficients that it touches, lambda_j = mean(x)
    / mean(d_j); then all are made ten times heavier or lighter until the data make up 0.4 of the
    sum, mean(x / (x + d)) = 0.4. ``diagonals`` holds what :meth:`Term.diagonals` gives for each
    smooth.
    """
    if not diagonals:
        return np.zeros(0)
    starts = []
    information = []
    weights = []
    for xx, penalties in diagonals:
        # lambda_j = mean(x) / mean(d_j) over the coefficients that penalty j touches
        touched = penalties > 1e-12 * penalties.max(axis=1, keepdims=True)
        start = n * (touched @ xx) / (touched * penalties).sum(axis=1)
        starts.append(start)
        information.append(n * xx[touched.any(axis=0)])
        weights.append((start @ penalties)[touched.any(axis=0)])
    # factors of ten towards mean(x / (x + factor * d)) = 0.4
    x = np.concatenate(information)
    w = np.concatenate(weights)
    factor = 1.0
    while (x / (x + factor * w)).mean() > 0.4:
        factor *= 10
    while (x / (x + factor * w)).mean() < 0.4:
        factor /= 10
    return np.log(factor * np.concatenate(starts))
