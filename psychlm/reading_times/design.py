"""The design of a fit: where its terms stand among the columns, and cross-products of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from psychlm.reading_times._result import Part, say_empty_cells
from psychlm.reading_times.contrasts import Floats
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.model_matrix import (
    Columns,
    GroupedEffects,
    Integers,
    ModelMatrix,
    build_matrix,
    group_random_effects,
    leave_out_aliased,
    rows_of,
)
from psychlm.reading_times.reml import Solution
from psychlm.reading_times.smooths import By, Linear, RandomEffect, Term


@dataclass(frozen=True)
class Design:
    """The terms of a formula at the data of a fit, the dense columns as (x - centre) / units."""

    read: Formula  # the formula, without what computes the response
    matrix: ModelMatrix
    grouped: GroupedEffects
    centre: Floats  # (q,)
    units: Floats  # (q,): the columns' root mean squares
    empty_cells: tuple[str, ...]  # columns of interactions that no row determines

    @property
    def lines(self) -> list[Linear]:
        """Return the linear terms, the intercept first."""
        return [term for term in self.matrix.terms if isinstance(term, Linear)]

    @property
    def smooths(self) -> dict[str, Term]:
        """Return the smooths and random effects by label."""
        return {term.label: term for term in (*self.matrix.smooths, *self.grouped.terms)}

    @cached_property
    def fixed(self) -> list[Term]:
        """Return the terms that are no random effects."""
        return [term for term in self.matrix.terms if not isinstance(term, RandomEffect)]

    def places(self, terms: Sequence[Term]) -> NDArray[np.intp]:
        """Return the dense columns of some terms."""
        return np.concatenate([np.r_[self.matrix.slices[term.label]] for term in terms])

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Return the columns of each smooth, the grouped ones after the q dense ones."""
        q = len(self.units)
        slices = dict(self.matrix.slices)
        slices |= {k: slice(q + s.start, q + s.stop) for k, s in self.grouped.slices.items()}
        spans: dict[str, slice] = {}
        for smooth in self.read.smooths:  # "s(x):g" has the terms "s(x):ga", "s(x):gb"
            of_levels = [label for label in slices if smooth.by and label.startswith(smooth.label)]
            spans |= {label: slices[label] for label in of_levels or [smooth.label]}
        return spans

    def label(self, term: Term) -> str:
        """Return R's label of a term: all powers of a polynomial are one."""
        whole = {name: e.name for e in self.read.expressions for name in e.names}
        if isinstance(term, Linear):
            return ":".join(whole.get(name, name) for name in term.variables)
        return term.label

    @property
    def parts(self) -> dict[str, Part]:
        """Return the linear terms and smooths by label, with the variables they depend on."""
        parts = {}
        for term in self.fixed[1:]:
            if isinstance(term, By):
                level = {term.by: 1.0 if term.level is None else term.level}
                parts[term.label] = Part(self.read.columns(term.variables[:-1]), level)
            else:
                parts[self.label(term)] = Part(self.read.columns(term.variables))
        return parts

    @property
    def to_r(self) -> Floats:
        """Return the matrix, (p, q), that turns coefficients of the dense columns into R's of the
        linear terms; the intercept lacks the response's mean."""
        places = self.places(self.lines)
        chosen = np.eye(len(self.units))[places]
        chosen[0, places[1:]] = -self.centre[places[1:]]
        return chosen / self.units

    def level_by_level(self, label: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of a grouped random effect, one for each combination of the levels of its
        factors in their order, with the grouping factor's level changing slowest."""
        term = self.smooths[label]
        assert isinstance(term, RandomEffect)
        sizes = {v: len(x) for v, x in zip(term.variables, term.factors, strict=True) if x}
        place = list(sizes).index(self.grouped.factor)
        return np.moveaxis(values.reshape([*sizes.values()]), place, 0).ravel()


@dataclass(frozen=True)
class Regression:
    """The columns of a design at some rows, with m responses and weights."""

    columns: Columns  # centred and scaled
    y: Floats  # (n, m): less the offset and the mean
    weights: Floats  # (n,)
    level: Integers  # (n,): of the grouped effects
    z: Floats  # (n, r): their values

    def part(self, rows: slice) -> Regression:
        """Return some of the rows."""
        return Regression(
            self.columns.part(rows),
            self.y[rows],
            self.weights[rows],
            self.level[rows],
            self.z[rows],
        )

    def products(self, n_levels: int) -> tuple[Any, ...]:
        """Return the weighted sums that :class:`psychlm.reading_times.reml.Moments` holds: X'X,
        X'y (q, m), y'y (m,), n, and of each of G levels z'z, z'X and z'y (G, r, m)."""
        n = len(self.y)
        weighted = self.weights[:, None] * self.y
        one = np.zeros(n, dtype=np.int64)
        xy = [self.columns.sums(one, 1, response)[0] for response in weighted.T]
        r = self.z.shape[1]
        zz = np.zeros((n_levels, r, r))
        zx = np.zeros((n_levels, r, self.columns.q))
        zy = np.zeros((n_levels, r, self.y.shape[1]))
        for i in range(r):
            z = self.z[:, i] * self.weights
            of_level = sparse.csr_array((z, (self.level, np.arange(n))), shape=(n_levels, n))
            zx[:, i] = self.columns.sums(self.level, n_levels, z)
            zy[:, i] = of_level @ self.y
            zz[:, i] = of_level @ self.z
        xx = self.columns.products(self.weights)
        return xx, np.array(xy).T, (weighted * self.y).sum(axis=0), float(n), zz, zx, zy

    def residuals(self, found: Solution) -> Floats:
        """Return what the coefficients of one response leave of it, shape (n,)."""
        fitted = self.columns.times(found.beta[0].numpy())
        if self.z.shape[1]:
            fitted += (self.z * found.group_beta[0].numpy()[self.level]).sum(axis=1)
        return self.y[:, 0] - fitted


def place(formula: Formula, data: pd.DataFrame, at_least: int = 1) -> tuple[Design, Columns]:
    """Return the design of a formula at rows without gaps, and its columns there.

    The random effects of the factor with the most levels, if these are ``at_least`` so many, stay
    apart. Columns of blocks are not scaled, for one covariance holds for all levels.
    """
    kept = leave_out_aliased(formula, data)
    say_empty_cells(kept.empty_cells)
    dense_formula, grouped = group_random_effects(kept, data, at_least)
    rows = rows_of(data)
    matrix = build_matrix(dense_formula, data, rows)
    scaled = np.ones(len(matrix.names), dtype=bool)
    if formula.blocks:
        for term in matrix.smooths:
            scaled[matrix.slices[term.label]] = not isinstance(term, RandomEffect)
    columns, centre, units = matrix.distinct(data, rows).standardise(matrix.centred, scaled)
    of_predictors = tuple(e for e in formula.expressions if e.name != formula.response)
    read = replace(formula, expressions=of_predictors)
    return Design(read, matrix, grouped, centre, units, kept.empty_cells), columns
