"""The design of a fit: where its terms stand among the columns, and cross-products of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import block_diag

from psychlm.frames import refuse
from psychlm.reading_times._result import Part, say_empty_cells
from psychlm.reading_times.contrasts import Floats
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.model_matrix import (
    Block,
    Columns,
    Integers,
    distinct_rows,
    linear_terms,
)
from psychlm.reading_times.reml import Solution
from psychlm.reading_times.smooths import (
    Linear,
    RandomEffect,
    SmoothTerm,
    Term,
    linear,
    place_smooth,
    random_effect,
    start_smoothing,
)

REPEATS = 4  # a smooth's columns are kept once per value that has so many rows on average


@dataclass(frozen=True)
class GroupedEffects:
    """The random effects of the factor with the most levels, which :mod:`reml` eliminates.

    A reading has one level, and r values that are multiplied by its level's coefficients: 1 for an
    intercept, a number for a slope, indicators for another factor within the level.
    """

    factor: str = ""
    levels: tuple[object, ...] = ()
    terms: tuple[RandomEffect, ...] = ()

    @property
    def slices(self) -> dict[str, slice]:
        """Return the places of each term among the r values."""
        widths = [len(term.names) // len(self.levels) for term in self.terms]
        return _slices(self.terms, widths)

    def rows(self, data: pd.DataFrame) -> tuple[Integers, Floats]:
        """Return the place of each row's level, -1 if it was not in the fit, and its r values."""
        if not self.terms:
            return np.zeros(len(data), dtype=np.int64), np.zeros((len(data), 0))
        level = pd.Index(self.levels).get_indexer(pd.Index(data[self.factor]))
        values = [term.columns(data, without=self.factor) for term in self.terms]
        return level.astype(np.int64), np.hstack(values)


def _slices(terms: Sequence[Term], widths: Sequence[int]) -> dict[str, slice]:
    spans = pairwise(accumulate(widths, initial=0))
    return {term.label: slice(*span) for term, span in zip(terms, spans, strict=True)}


@dataclass(frozen=True)
class Design:
    """The terms of a formula at the data of a fit, the dense columns as (x - centre) / units."""

    read: Formula  # the formula, without what computes the response
    terms: tuple[Term, ...]  # of the q dense columns; the first column is the intercept
    grouped: GroupedEffects
    centre: Floats  # (q,)
    units: Floats  # (q,): the columns' root mean squares
    empty_cells: tuple[str, ...]  # columns of interactions that no row determines

    @property
    def names(self) -> tuple[str, ...]:
        """Return R's names of the dense columns."""
        return tuple(name for term in self.terms for name in term.names)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Return the dense columns of each term, by its label."""
        return _slices(self.terms, [len(term.names) for term in self.terms])

    @property
    def lines(self) -> list[Linear]:
        """Return the linear terms, the intercept first."""
        return [term for term in self.terms if isinstance(term, Linear)]

    @property
    def smooths(self) -> dict[str, Term]:
        """Return the smooths and random effects by label, the grouped ones last."""
        terms = (*self.terms, *self.grouped.terms)
        return {term.label: term for term in terms if not isinstance(term, Linear)}

    @cached_property
    def fixed(self) -> list[Term]:
        """Return the terms that are no random effects."""
        return [term for term in self.terms if not isinstance(term, RandomEffect)]

    def places(self, terms: Sequence[Term]) -> NDArray[np.intp]:
        """Return the dense columns of some terms."""
        return np.concatenate([np.r_[self.slices[term.label]] for term in terms])

    @cached_property
    def penalties(self) -> Floats:
        """Return the penalties, each of its own smooth's columns, the grouped ones last: shape
        (n_penalties, q + r)."""
        dense = block_diag(*(term.penalties for term in self.terms)) / self.units**2
        widths = [span.stop - span.start for span in self.grouped.slices.values()]
        return block_diag(dense, *(np.ones((1, width)) for width in widths))

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Return which dense columns no penalty touches, shape (q,)."""
        return np.asarray(self.penalties[:, : len(self.units)].sum(axis=0) == 0)

    def start(self, xx: Floats, zz: Floats, n: int) -> Floats:
        """Return the first log lambda of each penalty, from X'X and z'z of each level."""
        raw = xx / n * np.outer(self.units, self.units)
        information = np.einsum("gaa->ga", zz) / n
        diagonals = []
        for label, term in self.smooths.items():
            if label in self.slices:
                span = self.slices[label]
                diagonals.append(term.diagonals(raw[span, span]))
            else:
                of_term = information[:, self.grouped.slices[label]].ravel()
                diagonals.append((of_term, np.ones((1, len(of_term)))))
        return start_smoothing(diagonals, n)

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Return the columns of each smooth, the grouped ones after the q dense ones."""
        q = len(self.units)
        slices = dict(self.slices)
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
            if isinstance(term, SmoothTerm) and term.by:
                level = {term.by: 1.0 if term.level is None else term.level}
                parts[term.label] = Part(self.read.columns(term.variables[:-1]), level)
            else:
                parts[self.label(term)] = Part(self.read.columns(term.variables))
        return parts

    @property
    def to_r(self) -> Floats:
        """Return the matrix, (p, q), that turns coefficients of the dense columns into R's of the
        linear terms, which are not centred; the intercept lacks the response's mean."""
        places = self.places(self.lines)
        chosen = np.eye(len(self.units))[places]
        chosen[0, places[1:]] = -self.centre[places[1:]]
        return chosen / self.units

    def level_by_level(self, label: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of a grouped random effect, one for each combination of the levels of its
        factors in their order, with the grouping factor's level changing slowest."""
        term = self.smooths[label]
        assert isinstance(term, RandomEffect)
        sizes = {name: len(levels) for name, levels in term.factors.items()}
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


def place(formula: Formula, data: pd.DataFrame, at_least: float = 1) -> tuple[Design, Columns]:
    """Return the design of a formula at rows without gaps, and its columns there.

    The random effects of the factor with the most levels, if these are ``at_least`` so many, stay
    apart. Columns of a smooth whose values repeat are kept once per value. Those of blocks are not
    scaled, for one covariance holds for all levels.
    """
    lines, empty_cells = linear_terms(formula, data)
    say_empty_cells(empty_cells)
    terms: list[Term] = [linear((), data), *lines]
    rows = cache(partial(distinct_rows, data))
    for smooth in formula.smooths:
        if smooth.basis == "re":
            terms.append(random_effect(smooth, data))
        else:  # a basis depends on the values and on how often they occur
            values, index = rows(smooth.all_variables)
            terms += place_smooth(smooth, values, np.bincount(index).astype(np.float64))
    labels = [term.label for term in terms]
    twice = [label for label in labels if labels.count(label) > 1]
    refuse("terms", twice, "have one name; rename a column, or levels of a factor in by=")
    dense, grouped = _group_random_effects(terms, at_least)

    # The rows of the data come first: their products with the others are sums over values.
    slices = _slices(dense, [len(term.names) for term in dense])
    repeated = []
    others = []
    for term in dense:
        if not isinstance(term, Linear):
            values, index = rows(term.variables)
            if len(values) * REPEATS <= len(data):
                places = np.r_[slices[term.label]]
                repeated.append(Block(places, term.columns(values), index))
                continue
        others.append(term)
    places = np.concatenate([np.r_[slices[term.label]] for term in others])
    of_rows = np.hstack([term.columns(data) for term in others])
    raw = Columns((Block(places, of_rows, np.arange(len(data))), *repeated), len(data))
    centred = np.arange(raw.q) > 0
    scaled = np.ones(raw.q, dtype=bool)
    for term in dense:
        centred[slices[term.label]] &= term.centred
        if formula.blocks and isinstance(term, RandomEffect):
            scaled[slices[term.label]] = False
    columns, centre, units = raw.standardise(centred, scaled)
    of_predictors = tuple(e for e in formula.expressions if e.name != formula.response)
    read = replace(formula, expressions=of_predictors)
    return Design(read, tuple(dense), grouped, centre, units, empty_cells), columns


def _group_random_effects(terms: list[Term], at_least: float) -> tuple[list[Term], GroupedEffects]:
    """Take the random effects of the factor with the most levels, if there are enough, apart."""
    random = [term for term in terms if isinstance(term, RandomEffect)]
    sizes = {name: len(levels) for term in random for name, levels in term.factors.items()}
    if max(sizes.values(), default=0) < at_least:
        return terms, GroupedEffects()
    factor = max(sizes, key=lambda name: sizes[name])
    chosen = tuple(term for term in random if factor in term.factors)
    apart = {term.label for term in chosen}
    others = [term for term in terms if term.label not in apart]
    return others, GroupedEffects(factor, chosen[0].factors[factor], chosen)
