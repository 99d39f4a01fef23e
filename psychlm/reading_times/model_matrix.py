"""Model matrices: the terms of a formula at given data, and the design that the models of a sweep
share.

Rows of a readings frame are words x people, and most predictors belong to the word. So the shared
design has columns that are computed once per word (W, with c readings of each word) and columns
that differ between readings of the same word (R: subjects, whether the previous word was fixated).
With G the sums over each word's readings of all columns, the cross-products of a surprisal column z
(one number per word) with the whole design are G'z: no reading is touched again. Sums are kept
separately by *unit* (a text or a sentence), so that the cross-products of a fold are a difference
of sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import block_diag
from torch import Tensor

from psychlm.frames import FrameError, format_names
from psychlm.reading_times._result import Floats, require_columns
from psychlm.reading_times.formula import Bar, Formula, Smooth, full_coding
from psychlm.reading_times.smooths import (
    By,
    Interaction,
    Linear,
    RandomEffect,
    Term,
    factor_levels,
    linear,
    place_smooth,
    random_effect,
    start_smoothing,
)

Integers = NDArray[np.int64]
Rows = Callable[[tuple[str, ...]], tuple[pd.DataFrame, Integers]]
MANY_LEVELS = 100  # a sweep eliminates random effects from here on; few are faster as columns
REPEATS = 4  # a smooth's columns are kept once per value that has so many rows on average
CELLS = 8  # so many cells a row may a table of pairs of values have; a larger one is sparse
COLLINEAR = 1e-9  # a column of which the others leave a smaller share is their combination
FASTEST_MS = 10.0  # a median "_ms" below it is most likely in seconds


# ---- the columns of a design ----


@dataclass(frozen=True)
class Block:
    """Columns that take few values: row i of the data has row ``index[i]`` of ``values``."""

    places: Integers  # (k,): in the whole matrix
    values: Floats  # (m, k)
    index: Integers | None  # (n,); None where m = n and the rows are those of the data


@dataclass(frozen=True)
class Columns:
    """The columns of a model matrix at n rows, those of a smooth once per value of its variables.

    With U the columns at m values and N the m_1 x m_2 table of how many rows have each pair of
    values, the cross-products of two smooths are U_1' N U_2: no row is multiplied. R's ``bam(...,
    discrete=TRUE)`` rounds the values to have few of them (Wood, Li, Shaddick & Augustin 2017);
    here they are as they are.
    """

    blocks: tuple[Block, ...]
    n: int

    @property
    def q(self) -> int:
        """Return how many columns there are."""
        return sum(len(block.places) for block in self.blocks)

    def standardise(
        self, centred: NDArray[np.bool_], scaled: NDArray[np.bool_]
    ) -> tuple[Columns, Floats, Floats]:
        """Return the columns as (x - m) / c, with m and c as in :meth:`ModelMatrix.standardise`; c
        is 1 for columns that are not scaled."""
        mean, scale, blocks = np.zeros(self.q), np.ones(self.q), []
        for block in self.blocks:
            counts = None if block.index is None else np.bincount(block.index)
            places, values = block.places, block.values
            mean[places] = np.where(centred[places], np.average(values, axis=0, weights=counts), 0)
            values = values - mean[places]
            root = np.sqrt(np.average(np.square(values), axis=0, weights=counts))
            scale[places] = np.where(scaled[places] & (root > 0), root, 1)
            blocks.append(Block(places, values / scale[places], block.index))
        return Columns(tuple(blocks), self.n), mean, scale

    def products(self, weights: Floats) -> Floats:
        """Return the weighted cross-products X' diag(w) X, shape (q, q)."""
        result = np.empty((self.q, self.q))
        for i, one in enumerate(self.blocks):
            if one.index is None:
                weighted = one.values * weights[:, None]
            else:
                weighted = one.values * np.bincount(one.index, weights)[:, None]
            result[np.ix_(one.places, one.places)] = weighted.T @ one.values
            for other in self.blocks[:i]:
                assert one.index is not None, "the first block alone may lack an index"
                sums = self._sums(other, one.index, len(one.values), weights)
                product = one.values.T @ sums
                result[np.ix_(one.places, other.places)] = product
                result[np.ix_(other.places, one.places)] = product.T
        return result

    def sums(self, level: Integers, n_levels: int, weights: Floats) -> Floats:
        """Return the weighted sums of the columns over the rows of each level, (n_levels, q)."""
        result = np.empty((n_levels, self.q))
        for block in self.blocks:
            result[:, block.places] = self._sums(block, level, n_levels, weights)
        return result

    def _sums(self, block: Block, level: Integers, n_levels: int, weights: Floats) -> Floats:
        index = np.arange(self.n) if block.index is None else block.index
        shape = n_levels, len(block.values)
        if shape[0] * shape[1] <= CELLS * self.n:
            cells = np.bincount(level * shape[1] + index, weights, shape[0] * shape[1])
            return cells.reshape(shape) @ block.values
        return sparse.csr_array((weights, (level, index)), shape=shape) @ block.values


def distinct_rows(data: pd.DataFrame, variables: Sequence[str]) -> tuple[pd.DataFrame, Integers]:
    """Return the combinations of values, in the order of their first rows, and each row's.

    >>> values, index = distinct_rows(pd.DataFrame({"x": [3, 1, 3], "g": list("aaa")}), ["x", "g"])
    >>> values["x"].tolist(), index.tolist()
    ([3, 1], [0, 1, 0])
    """
    index = np.zeros(len(data), dtype=np.int64)
    for i, name in enumerate(variables):
        codes, values = pd.factorize(data[name])
        index = codes if i == 0 else pd.factorize(index * len(values) + codes)[0]
    first = np.empty(index.max(initial=-1) + 1, dtype=np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]  # the last one that is written stays
    return pd.DataFrame({name: data[name].array.take(first) for name in variables}), index


def rows_of(data: pd.DataFrame) -> Rows:
    """Return :func:`distinct_rows` of these data by variables, each computed once."""
    return cache(partial(distinct_rows, data))


# ---- the terms of one formula ----


@dataclass(frozen=True)
class ModelMatrix:
    """The terms of a formula, their bases placed at the data of a fit."""

    linear: tuple[Linear, ...]  # the first columns after the intercept, column 0
    smooths: tuple[Term, ...]  # the columns after those
    names: tuple[str, ...]  # of the p columns
    slices: dict[str, slice]  # the columns of each term, by its label
    centred: NDArray[np.bool_]  # (p,): not the intercept, random effects, by= and ti(), as in mgcv
    penalties: Floats  # (n_penalties, p): diagonals, on the columns as Term.columns returns them

    def evaluate(self, data: pd.DataFrame) -> Floats:
        """Return the columns for some rows, neither centred nor scaled, shape (n, p)."""
        parts = [term.columns(data) for term in (*self.linear, *self.smooths)]
        return np.hstack([np.ones((len(data), 1)), *parts])

    def standardise(
        self, data: pd.DataFrame, weights: Floats | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Return the columns at the data of the fit as (x - m) / c, with m and c, shape (p,) each.

        The mean m is 0 for columns that are not centred, c is the weighted root mean square.
        """
        columns = self.evaluate(data)
        mean = np.where(self.centred, np.average(columns, axis=0, weights=weights), 0)
        columns -= mean
        scale = np.sqrt(np.average(np.square(columns), axis=0, weights=weights))
        scale[scale == 0] = 1
        columns /= scale
        return columns, mean, scale

    def distinct(self, data: pd.DataFrame, rows: Rows) -> Columns:
        """Return the columns as they are, those of a smooth whose values repeat once per value."""
        blocks, rest = list[Block](), list[Term](self.linear)
        for term in self.smooths:
            values, index = rows(tuple(term.variables))
            if len(values) * REPEATS > len(data):
                rest.append(term)
            else:
                places = np.r_[self.slices[term.label]]
                blocks.append(Block(places, term.columns(values), index))
        places = np.r_[(0, *(np.r_[self.slices[term.label]] for term in rest))]
        values = np.hstack([np.ones((len(data), 1)), *(term.columns(data) for term in rest)])
        return Columns((Block(places, values, None), *blocks), len(data))

    def diagonals(self, mean: Floats, covariance: Floats) -> list[tuple[Floats, Floats]]:
        """Return what :func:`psychlm.reading_times.smooths.start_smoothing` needs of each
        smooth."""
        spans = [self.slices[term.label] for term in self.smooths]
        return [
            term.diagonals(mean[span], covariance[span, span])
            for term, span in zip(self.smooths, spans, strict=True)
        ]


def build_matrix(
    formula: Formula, data: pd.DataFrame, weights: Floats | None = None, rows: Rows | None = None
) -> ModelMatrix:
    """Place the bases of a formula's smooths at the rows of ``data``, which must be complete.

    ``weights`` are the numbers of readings that the rows stand for; one each unless given.
    ``rows`` is :func:`rows_of` these data where more than this function needs them.

    Raises
    ------
    FrameError
        If a predictor is text where a number is needed or has too few unique values for its basis,
        or each level of a random effect has a single row.
    """
    lines, smooths = linear_terms(formula, data), list[Term]()
    rows = rows or rows_of(data)
    for smooth in formula.smooths:
        if smooth.basis == "re":
            smooths += place_smooth(smooth, data, weights)
        else:  # a basis depends on the values and on how often they occur
            values, index = rows(tuple(smooth.all_variables))
            counts = np.bincount(index, weights).astype(np.float64)
            smooths += place_smooth(smooth, values, counts)

    # Each penalty touches the columns of its own smooth only; the intercept has none.
    terms = (*lines, *smooths)
    penalties = block_diag(np.zeros((0, 1)), *(term.penalties for term in terms))
    names = ("(Intercept)", *(name for term in terms for name in term.names))
    spans = pairwise(accumulate((len(term.names) for term in terms), initial=1))
    slices = {term.label: slice(*span) for term, span in zip(terms, spans, strict=True)}
    centred = np.arange(len(names)) > 0
    for term in smooths:
        centred[slices[term.label]] = not isinstance(term, RandomEffect | By | Interaction)
    return ModelMatrix(lines, tuple(smooths), names, slices, centred, penalties)


def linear_terms(formula: Formula, data: pd.DataFrame) -> tuple[Linear, ...]:
    """Return the linear terms of a formula, their factors coded as R codes them."""
    coding, aliased = formula.coding, formula.aliased
    return tuple(
        linear(term, data, coding.get(term, frozenset()), aliased) for term in formula.linear
    )


def place_bars(formula: Formula, data: pd.DataFrame) -> tuple[Formula, pd.DataFrame]:
    """Place the random effects in lme4's notation at the data.

    Each column of a bar's terms (their factors are coded as in R) becomes one random effect; those
    of a bar correlate, unless it is double: then the columns of one factor do.

    Returns
    -------
    Formula
        With a smooth for each random effect, and ``blocks`` of those that correlate.
    DataFrame
        The data with the columns of the terms and of crossed grouping factors.
    """
    bars, smooths, blocks = list[Bar](), list(formula.smooths), list[tuple[str, ...]]()
    for bar in formula.bars:
        require_columns(bar.variables, data)
        coding = dict(full_coding(bar.terms))
        # Without an intercept the first factor has all levels; after || every factor of its own.
        coded = False
        for term in bar.terms:
            is_factor = any(factor_levels(data[name]) is not None for name in term)
            if len(term) == 1 and is_factor and not (bar.correlated and (bar.intercept or coded)):
                coding[term], coded = frozenset(term), True
        lines = tuple(linear(term, data, coding[term]) for term in bar.terms)
        bars.append(replace(bar, lines=lines))
        columns: list[list[tuple[str, ...]]] = [[()]] if bar.intercept else []
        columns += [[(name,) for name in line.names] for line in lines]
        if bar.correlated:
            columns = [[name for names in columns for name in names]]
        for names in columns:
            added = [Smooth("bar", (bar.group_name, *name), "re", ()) for name in names]
            smooths += added
            blocks.append(tuple(smooth.label for smooth in added))
    labels = [label for block in blocks for label in block]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise FrameError(f"the random effects {sorted(set(twice))} are there twice; keep one")
    placed = replace(formula, smooths=tuple(smooths), bars=tuple(bars), blocks=tuple(blocks))
    return placed, placed.compute(data, {}) if bars else data


def leave_out_aliased(formula: Formula, data: pd.DataFrame) -> Formula:
    """Note the columns of factors coded by all levels that columns before them determine.

    R's ``model.matrix`` of ``y ~ f:q`` has an intercept and an indicator of every cell, whose sum
    it is. As in R's ``lm``, the last of such columns is left out.
    """
    lines = linear_terms(formula, data)
    full = [
        any(
            len(coded) == len(levels or ()) > 0
            for coded, levels in zip(t.coded, t.levels, strict=True)
        )
        for t in lines
    ]
    if not any(full):
        return formula
    columns = np.hstack([term.columns(data) for term in lines])
    columns -= columns.mean(axis=0)
    columns /= np.maximum(np.sqrt(np.square(columns).mean(axis=0)), 1e-300)
    names = [name for term in lines for name in term.names]
    of_full = np.repeat(full, [len(term.names) for term in lines])
    index = redundant(columns.T @ columns / len(data))
    return replace(formula, aliased=frozenset(names[i] for i in index if of_full[i]))


@dataclass(frozen=True)
class GroupedEffects:
    """The random effects of the factor with the most levels, which :mod:`reml` eliminates.

    A reading has one level, and r values that are multiplied by its level's coefficients: 1 for an
    intercept, a number for a slope, indicators for another factor within the level.
    """

    factor: str
    levels: tuple[object, ...]
    terms: tuple[RandomEffect, ...]

    @property
    def slices(self) -> dict[str, slice]:
        """Return the places of each term among the r values."""
        widths = [len(term.names) // len(self.levels) for term in self.terms]
        spans = pairwise(accumulate(widths, initial=0))
        return {term.label: slice(*span) for term, span in zip(self.terms, spans, strict=True)}

    @property
    def penalties(self) -> list[Floats]:
        """Return the penalty of each term, which touches its values alone, shape (1, width)."""
        return [np.ones((1, span.stop - span.start)) for span in self.slices.values()]

    def diagonals(self, zz: Floats, n: int) -> list[tuple[Floats, Floats]]:
        """Return what ``start_smoothing`` needs of each term, from z'z of each level."""
        information = np.einsum("gaa->ga", zz) / n
        of_terms = [information[:, span].ravel() for span in self.slices.values()]
        return [(of_term, np.ones((1, len(of_term)))) for of_term in of_terms]

    def rows(self, data: pd.DataFrame) -> tuple[Integers, Floats]:
        """Return the place of each row's level, -1 if it was not in the fit, and its r values."""
        if not self.terms:
            return np.zeros(len(data), dtype=np.int64), np.zeros((len(data), 0))
        level = pd.Index(self.levels).get_indexer(pd.Index(data[self.factor]))
        values = [term.columns(data, without=self.factor) for term in self.terms]
        return level.astype(np.int64), np.hstack(values)

    def moments(
        self, data: pd.DataFrame, x: Columns, y: Floats, weights: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return the weighted sums z'z, z'x and z'y of each level, shapes (G, r, r), (G, r, q) and
        (G, r)."""
        level, z = self.rows(data)
        n_levels, r = len(self.levels), z.shape[1]
        zz, zx, zy = (np.zeros((n_levels, r, *last)) for last in ((r,), (x.q,), ()))
        for i in range(r):
            weighted = z[:, i] * weights
            zx[:, i] = x.sums(level, n_levels, weighted)
            zy[:, i] = np.bincount(level, weighted * y, n_levels)
            for j in range(r):
                zz[:, i, j] = np.bincount(level, weighted * z[:, j], n_levels)
        return zz, zx, zy


def group_random_effects(
    formula: Formula, data: pd.DataFrame, at_least: int = 1
) -> tuple[Formula, GroupedEffects]:
    """Take the random effects of the factor with the most levels out of a formula.

    None are taken where there are fewer than ``at_least`` levels.
    """
    random = [smooth for smooth in formula.smooths if smooth.basis == "re"]
    sizes: dict[str, int] = {}
    for smooth in random:
        levels_of = {name: factor_levels(data[name]) for name in smooth.variables}
        counts = {name: len(levels) for name, levels in levels_of.items() if levels is not None}
        # Ids that are numbers label groups, too (see random_effect).
        sizes |= counts or {smooth.variables[0]: data[smooth.variables[0]].nunique()}
    if max(sizes.values(), default=0) < at_least:
        return formula, GroupedEffects("", (), ())
    factor = max(sizes, key=lambda name: sizes[name])
    chosen = [smooth for smooth in random if factor in smooth.variables]
    terms = tuple(random_effect(smooth, data) for smooth in chosen)
    levels = terms[0].factors[terms[0].variables.index(factor)] or ()
    others = tuple(smooth for smooth in formula.smooths if smooth not in chosen)
    return replace(formula, smooths=others), GroupedEffects(factor, levels, terms)


def check_predictors(formula: Formula, data: pd.DataFrame) -> None:
    """Check that predictors are there, complete, finite and not constant, and those smoothed
    numeric.

    Raises
    ------
    FrameError
        With the first predictor that cannot be used, why, and what to do.
    """
    require_columns(formula.variables, data)
    smoothed = {name for s in formula.smooths if s.basis != "re" for name in s.variables}
    for name in formula.variables:
        values = data[name]
        if n_missing := int(values.isna().sum()):
            raise FrameError(
                f"predictor {name!r} is missing in {n_missing} of {len(data)} rows; leave them out "
                f"for all models: readings.dropna(subset=[{name!r}]) (a lagged predictor has no "
                "value at the first word of a text)"
            )
        numeric = pd.api.types.is_numeric_dtype(values)
        if name in smoothed and (not numeric or pd.api.types.is_bool_dtype(values)):
            flaw = f"is smoothed but holds {values.dtype}, not numbers; enter it as a linear term"
        elif name in formula.offsets and not numeric:
            flaw = f"is an offset but holds {values.dtype}, not numbers; enter it as a linear term"
        elif numeric and not np.isfinite(values.to_numpy(np.float64)).all():
            flaw = "holds infinities (a logarithm of 0?); replace them or leave out those rows"
        elif name not in formula.offsets and len(values) and (values == values.iloc[0]).all():
            flaw = f"is constant ({values.iloc[0]!r}) in all {len(data)} rows; drop it"
        else:
            continue
        raise FrameError(f"predictor {name!r} {flaw}")


def check_response(data: pd.DataFrame, response: str) -> None:
    """Check that a response is numeric and finite, and warn of a measure in seconds.

    Raises
    ------
    FrameError
        If the response is absent, no number, infinite, or missing everywhere.
    """
    require_columns([response], data)
    if not pd.api.types.is_numeric_dtype(data[response]):
        raise FrameError(
            f"the response {response!r} holds {data[response].dtype}, not numbers; convert it first"
        )
    values = data[response].to_numpy(np.float64)
    if np.isnan(values).all():
        raise FrameError(
            f"the response {response!r} is missing in all {len(data)} rows; name another measure"
        )
    if np.isinf(values).any():
        raise FrameError(f"the response {response!r} holds infinities; leave out those rows")
    median = float(np.nanmedian(values))
    if response.endswith("_ms") and 0 < median < FASTEST_MS:
        warnings.warn(
            f"{response!r} has a median of {median:.3g}, which looks like seconds; it should be "
            "ms: multiply by 1000",
            RuntimeWarning,
            stacklevel=3,
        )


def check_collinear(correlation: Floats, names: tuple[str, ...], free: NDArray[np.bool_]) -> None:
    """Raise if unpenalised columns are linear combinations of those before them.

    Parameters
    ----------
    correlation : ndarray, shape (p, p)
        Cross-products of columns that are centred and of unit length.
    free : ndarray of bool, shape (p,)
        Which columns no penalty touches; column 0 is the intercept.
    """
    index = np.flatnonzero(free)[1:]
    for i in redundant(correlation[np.ix_(index, index)]):
        others = [names[j] for j in index[:i] if abs(correlation[index[i], j]) > 0.1]
        raise FrameError(
            f"{names[index[i]]!r} is a combination of predictors before it (see "
            f"{others[:5]}); drop one"
        )


def redundant(correlation: Floats) -> list[int]:
    """Return the columns that are combinations of those before them, by Gaussian elimination.

    The pivot is the share of a variance that the columns before it do not explain.
    """
    block, columns = correlation.copy(), []
    for i in range(len(block)):
        if block[i, i] < COLLINEAR:
            columns.append(i)
        else:
            below = block[i + 1 :, i] / block[i, i]
            block[i + 1 :, i + 1 :] -= np.outer(below, block[i, i + 1 :])
    return columns


# ---- the design that the models of a sweep share ----


@dataclass(frozen=True)
class UnitMoments:
    """Cross-products of B designs of p columns and m measures, separately for each of U units."""

    xx: Tensor  # (U, B, p, p)
    xy: Tensor  # (U, B, p, m)
    yy: Tensor  # (U, m)
    n: Tensor  # (U,): readings
    zz: Tensor  # (U, G, r, r): of the grouped random effects
    zx: Tensor  # (U, B, G, r, p)
    zy: Tensor  # (U, G, r, m)


@dataclass(frozen=True)
class SharedDesign:
    """The design of one set of rows without any surprisal, its columns centred and scaled."""

    names: tuple[str, ...]  # of the p columns
    penalties: Tensor  # (n_penalties, p + r): of the p columns and the r grouped random effects
    sums: Tensor  # (n_words, p): G, the columns summed over the readings of each word
    counts: Tensor  # (n_words,): readings of each word
    y_sums: Tensor  # (n_words, m): the centred measures, summed over the readings of each word
    z_sums: Tensor  # (r, G, n_words): values of random effects, summed over a level's readings
    words: Integers  # (n_words,): positions of the words in the table of surprisals
    bounds: Integers  # (U + 1,): where each unit's words begin
    base: UnitMoments  # with B = 1
    start: Tensor  # (n_penalties,): the log lambda at which the search for smoothing begins


def share_design(
    data: pd.DataFrame,
    formula: Formula,
    measures: Sequence[str],
    word: Integers,
    unit: Integers,
    device: torch.device,
) -> SharedDesign:
    """Build the design of rows that are complete and sorted by unit and word.

    X'X = [W' diag(c) W, W'G_R; G_R'W, R'R], with G_R the rows' columns summed over each word. The
    random effects of a factor with many levels are not among the columns; see :mod:`reml`.

    Parameters
    ----------
    data : DataFrame, shape (n_rows, ...)
        Predictors and measures.
    word, unit : ndarray of int, shape (n_rows,)
        The word that each row is a reading of, and its unit; words do not cross units.
    """
    check_predictors(formula, data)
    formula = leave_out_aliased(formula, data)
    starts = np.r_[0, np.flatnonzero(np.diff(word)) + 1]
    repeats = np.diff(np.r_[starts, len(word)])

    # Terms whose variables are the same in all readings of a word are evaluated once per word.
    formula, grouped = group_random_effects(formula, data, MANY_LEVELS)
    columns = {name: data[name].to_numpy() for name in formula.variables}
    same = {n for n, x in columns.items() if np.array_equal(np.repeat(x[starts], repeats), x)}
    by_word, by_row = (
        replace(
            formula,
            linear=tuple(t for t in formula.linear if same.issuperset(t) == of_words),
            smooths=tuple(
                s for s in formula.smooths if same.issuperset(s.all_variables) == of_words
            ),
        )
        for of_words in (True, False)
    )
    first, counts = data.iloc[starts], repeats.astype(np.float64)
    word_terms, row_terms = build_matrix(by_word, first, counts), build_matrix(by_row, data)
    word_columns, w_mean, w_scale = word_terms.standardise(first, counts)
    # The intercept is among the words' columns.
    row_columns, r_mean, r_scale = (part[..., 1:] for part in row_terms.standardise(data))

    # G, and the measures, as sums over the readings of each word.
    times = data[list(measures)].to_numpy(np.float64) - formula.offset(data)[:, None]
    times = times - times.mean(axis=0)
    sums = np.hstack([word_columns * counts[:, None], np.add.reduceat(row_columns, starts, axis=0)])
    time_sums = np.add.reduceat(times, starts, axis=0)
    arrays = (word_columns, row_columns, times, sums, time_sums)
    w, r, y, g, y_sums = (torch.from_numpy(array).to(device) for array in arrays)

    # Cross-products of each unit: those of W from sums over words, those of R from the rows.
    bounds = np.r_[np.flatnonzero(np.r_[True, np.diff(unit[starts]) != 0]), len(starts)]
    n_units, width, p = len(bounds) - 1, w.shape[1], g.shape[1]
    xx, xy = w.new_empty((n_units, 1, p, p)), w.new_empty((n_units, 1, p, y.shape[1]))
    yy, n = w.new_empty((n_units, y.shape[1])), w.new_empty(n_units)
    row_bounds = np.r_[starts, len(word)][bounds]
    level, z = grouped.rows(data)
    n_levels, n_effects = len(grouped.levels), z.shape[1]
    group = np.repeat(np.arange(len(starts)), repeats)
    summed = np.zeros((n_effects, n_levels, len(starts)))
    for i in range(n_effects):
        np.add.at(summed[i], (level, group), z[:, i])
    z_sums = torch.from_numpy(summed).to(device)
    zx = w.new_empty((n_units, 1, n_levels, n_effects, p))
    zz = w.new_empty((n_units, n_levels, n_effects, n_effects))
    zy = w.new_empty((n_units, n_levels, n_effects, y.shape[1]))
    for u in range(n_units):
        words, rows = slice(*bounds[u : u + 2]), slice(*row_bounds[u : u + 2])
        xx[u, 0, :width] = w[words].T @ g[words]
        xx[u, 0, width:, :width] = xx[u, 0, :width, width:].T
        xx[u, 0, width:, width:] = r[rows].T @ r[rows]
        xy[u, 0, :width], xy[u, 0, width:] = w[words].T @ y_sums[words], r[rows].T @ y[rows]
        yy[u], n[u] = y[rows].square().sum(dim=0), rows.stop - rows.start
        zx[u, 0, ..., :width] = (z_sums[:, :, words] @ w[words]).transpose(0, 1)
        for i in range(n_effects):
            indicator = sparse.csr_array(
                (z[rows, i], (level[rows], np.arange(rows.stop - rows.start))),
                shape=(n_levels, rows.stop - rows.start),
            )
            parts = (indicator @ values[rows] for values in (row_columns, times, z))
            of_rows, of_times, of_effects = (torch.from_numpy(part).to(device) for part in parts)
            zx[u, 0, :, i, width:], zy[u, :, i], zz[u, :, i] = of_rows, of_times, of_effects

    # Where the search for smoothing begins, from the covariances of the columns as they were.
    scale = np.r_[w_scale, r_scale]
    correlation = (xx.sum(dim=0)[0] / len(word)).cpu().numpy()
    covariance = correlation * np.outer(scale, scale)
    diagonals = word_terms.diagonals(w_mean, covariance[:width, :width])
    padded = np.pad(covariance[width:, width:], ((1, 0), (1, 0)))
    diagonals += row_terms.diagonals(np.r_[0.0, r_mean], padded)
    diagonals += grouped.diagonals(zz.sum(dim=0).cpu().numpy(), len(word))

    names = (*word_terms.names, *row_terms.names[1:])
    penalties = block_diag(word_terms.penalties, row_terms.penalties[:, 1:])
    of_groups = block_diag(penalties / scale**2, *grouped.penalties)  # on the scaled columns
    check_collinear(correlation, names, penalties.sum(axis=0) == 0)
    return SharedDesign(
        names=names,
        penalties=torch.from_numpy(of_groups).to(device),
        sums=g,
        counts=torch.from_numpy(counts).to(device),
        y_sums=y_sums,
        z_sums=z_sums,
        words=word[starts],
        bounds=bounds,
        base=UnitMoments(xx, xy, yy, n, zz, zx, zy),
        start=torch.from_numpy(start_smoothing(diagonals, len(word))).to(device),
    )


def extend(
    design: SharedDesign, columns: Tensor, models: Sequence[str]
) -> tuple[UnitMoments, Tensor]:
    """Add the surprisal columns of B language models to the shared design.

    Parameters
    ----------
    columns : Tensor, shape (B, q, n_words)
        Surprisal of each word, of the word before it, and so on.
    models : sequence of str, length B
        Their names, for messages.

    Returns
    -------
    moments : UnitMoments
        Of p + q columns; the new ones are centred and scaled, too.
    scales : Tensor, shape (B, q)
        The scales of the new columns.

    Raises
    ------
    FrameError
        If a model's surprisals have gaps, are constant, or are a combination of the other
        predictors.
    """
    n_models, q, n_words = columns.shape
    base, flat = design.base, columns.view(n_models * q, n_words)
    n_units, p, m = len(base.n), len(design.names), design.y_sums.shape[1]

    # The borders that q columns z add to each unit's cross-products: z'X, z' diag(c) z and z'y.
    xx = flat.new_empty((n_units, n_models, p + q, p + q))
    xy = flat.new_empty((n_units, n_models, p + q, m))
    xx[:, :, :p, :p], xy[:, :, :p] = base.xx, base.xy
    n_effects, n_levels = design.z_sums.shape[:2]
    zx = flat.new_empty((n_units, n_models, n_levels, n_effects, p + q))
    zx[..., :p] = base.zx
    for u in range(n_units):
        words = slice(*design.bounds[u : u + 2])
        border = (flat[:, words] @ design.sums[words]).view(n_models, q, p)
        xx[u, :, p:, :p], xx[u, :, :p, p:] = border, border.mT
        xx[u, :, p:, p:] = (columns[:, :, words] * design.counts[words]) @ columns[:, :, words].mT
        xy[u, :, p:] = (flat[:, words] @ design.y_sums[words]).view(n_models, q, m)
        of_levels = design.z_sums[:, :, words] @ flat[:, words].mT
        zx[u, ..., p:] = of_levels.view(n_effects, n_levels, n_models, q).permute(2, 1, 0, 3)

    # Centre and scale the new columns, a change of coordinates T that gives T'X'X T and T'X'y.
    # Column 0 is the intercept, so its products are sums.
    total, n_rows = xx.sum(dim=0), base.n.sum()
    mean = total[:, 0, -q:] / n_rows
    variance = total.diagonal(dim1=1, dim2=2)[:, -q:] / n_rows - mean.square()
    scale = torch.where(variance > 1e-14 * mean.square(), variance, 0).sqrt() + 0 * mean
    change = torch.eye(p + q, dtype=xx.dtype, device=xx.device).repeat(n_models, 1, 1)
    change[:, 0, -q:] = -mean / scale
    change.diagonal(dim1=1, dim2=2)[:, -q:] = 1 / scale
    xx.copy_(change.mT @ xx @ change)
    xy.copy_(change.mT @ xy)
    shift, factor = mean[:, None, None], scale[:, None, None]
    zx[..., p:] = (zx[..., p:] - shift * zx[..., :1]) / factor  # Z'X T without p^2 products

    # The unpenalised columns must leave something of each surprisal: the determinants of its
    # residual cross-products (a Schur complement) do not vanish.
    free = torch.nonzero(design.penalties[:, :p].sum(dim=0) == 0).squeeze(1)
    total = xx.sum(dim=0) / n_rows
    border = total[:, free, p:]
    rest = total[:, p:, p:] - border.mT @ torch.linalg.solve(total[:, free][:, :, free], border)
    pivots = torch.stack([torch.linalg.det(rest[:, :i, :i]) for i in range(1, q + 1)], dim=1)
    for wrong, flaw in (
        (~torch.isfinite(scale), "has gaps or infinities among the words that were read"),
        (scale == 0, "gives every word the same surprisal"),
        (pivots < COLLINEAR, "is a combination of the other predictors"),
    ):
        if wrong.any():
            names = [models[i] for i in torch.nonzero(wrong.any(dim=1)).flatten().tolist()]
            raise FrameError(
                f"surprisal of {format_names(names)} ({len(names)} of {len(models)} models) {flaw};"
                " correct or drop it"
            )
    return UnitMoments(xx, xy, base.yy, base.n, base.zz, zx, base.zy), scale
