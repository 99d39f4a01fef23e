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
from psychlm.reading_times.reml import Moments
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

    blocks: tuple[Block, ...]  # the first alone may lack an index
    n: int

    @property
    def q(self) -> int:
        """Return how many columns there are."""
        return sum(len(block.places) for block in self.blocks)

    def standardise(
        self, centred: NDArray[np.bool_], scaled: NDArray[np.bool_]
    ) -> tuple[Columns, Floats, Floats]:
        """Return the columns as (x - m) / c, with m and c, shape (q,): the means, 0 where not
        centred, and root mean squares, 1 where not scaled."""
        mean, scale, blocks = np.zeros(self.q), np.ones(self.q), []
        for block in self.blocks:
            places, values = block.places, block.values
            counts = np.ones(self.n) if block.index is None else np.bincount(block.index)
            mean[places] = np.where(centred[places], counts @ values / self.n, 0)
            values = values - mean[places]
            root = np.sqrt(counts @ np.square(values) / self.n)
            scale[places] = np.where(scaled[places] & (root > 0), root, 1)
            blocks.append(Block(places, values / scale[places], block.index))
        return Columns(tuple(blocks), self.n), mean, scale

    def products(self, weights: Floats) -> Floats:
        """Return the weighted cross-products X' diag(w) X, shape (q, q)."""
        result = np.empty((self.q, self.q))
        for i, one in enumerate(self.blocks):
            counts = weights if one.index is None else np.bincount(one.index, weights)
            own = (one.values * counts[:, None]).T @ one.values
            result[np.ix_(one.places, one.places)] = own
            for other in self.blocks[:i]:
                assert one.index is not None
                product = one.values.T @ self._sums(other, one.index, len(one.values), weights)
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


def _slices(labels: Sequence[str], widths: Sequence[int]) -> dict[str, slice]:
    spans = pairwise(accumulate(widths, initial=0))
    return {label: slice(*span) for label, span in zip(labels, spans, strict=True)}


@dataclass(frozen=True)
class ModelMatrix:
    """The terms of a formula, their bases placed at the data of a fit; the intercept is first."""

    terms: tuple[Term, ...]
    names: tuple[str, ...]  # of the p columns
    slices: dict[str, slice]  # the columns of each term, by its label
    centred: NDArray[np.bool_]  # (p,): not the intercept, random effects, by= and ti(), as in mgcv
    penalties: Floats  # (n_penalties, p): diagonals, on the columns as Term.columns returns them

    @property
    def smooths(self) -> list[Term]:
        """Return the smooths and random effects."""
        return [term for term in self.terms if not isinstance(term, Linear)]

    @property
    def free(self) -> NDArray[np.bool_]:
        """Return which columns no penalty touches, shape (p,)."""
        return np.asarray(self.penalties.sum(axis=0) == 0)

    def block(self, terms: Sequence[Term], data: pd.DataFrame, index: Integers | None) -> Block:
        """Return the columns of some terms at the rows of ``data``."""
        places = [np.zeros(0, int), *(np.r_[self.slices[term.label]] for term in terms)]
        values = [np.zeros((len(data), 0)), *(term.columns(data) for term in terms)]
        return Block(np.concatenate(places), np.hstack(values), index)

    def distinct(self, data: pd.DataFrame, rows: Rows) -> Columns:
        """Return the columns as they are, those of a smooth whose values repeat once per value."""
        blocks, rest = list[Block](), list[Term]()
        for term in self.terms:
            if not isinstance(term, Linear):
                values, index = rows(term.variables)
                if len(values) * REPEATS <= len(data):
                    blocks.append(self.block([term], values, index))
                    continue
            rest.append(term)
        return Columns((self.block(rest, data, None), *blocks), len(data))

    def diagonals(self, mean: Floats, covariance: Floats) -> list[tuple[Floats, Floats]]:
        """Return what :func:`psychlm.reading_times.smooths.start_smoothing` needs of each
        smooth."""
        spans = [self.slices[term.label] for term in self.smooths]
        pairs = zip(self.smooths, spans, strict=True)
        return [term.diagonals(mean[span], covariance[span, span]) for term, span in pairs]


def build_matrix(formula: Formula, data: pd.DataFrame, rows: Rows | None = None) -> ModelMatrix:
    """Place the bases of a formula's smooths at the rows of ``data``, which must be complete.

    ``rows`` is :func:`rows_of` these data where more than this function needs them.
    """
    terms = [linear((), data), *linear_terms(formula, data)]
    rows = rows or rows_of(data)
    for smooth in formula.smooths:
        if smooth.basis == "re":
            terms.append(random_effect(smooth, data))
        else:  # a basis depends on the values and on how often they occur
            values, index = rows(smooth.all_variables)
            terms += place_smooth(smooth, values, np.bincount(index).astype(np.float64))
    names = tuple(name for term in terms for name in term.names)
    slices = _slices([term.label for term in terms], [len(term.names) for term in terms])
    centred = np.arange(len(names)) > 0
    for term in terms:
        if isinstance(term, RandomEffect | By | Interaction):
            centred[slices[term.label]] = False
    # Each penalty touches the columns of its own smooth only.
    penalties = block_diag(*(term.penalties for term in terms))
    return ModelMatrix(tuple(terms), names, slices, centred, penalties)


def linear_terms(formula: Formula, data: pd.DataFrame) -> list[Term]:
    """Return the linear terms of a formula, their factors coded as R codes them."""
    coding, aliased = formula.coding, formula.aliased
    return [linear(term, data, coding.get(term, frozenset()), aliased) for term in formula.linear]


def place_bars(formula: Formula, data: pd.DataFrame) -> tuple[Formula, pd.DataFrame]:
    """Place the random effects in lme4's notation at the data.

    Each column of a bar's terms (their factors are coded as in R) becomes one random effect; those
    of a bar correlate, unless it is double: then the columns of one factor do. Returned are the
    formula, with a smooth for each random effect and ``blocks`` of those that correlate, and the
    data with the columns of the terms and of crossed grouping factors.
    """
    bars, smooths, blocks = list[Bar](), list(formula.smooths), list[tuple[str, ...]]()
    for bar in formula.bars:
        require_columns(bar.variables, data)
        coding = full_coding(bar.terms)
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
        isinstance(line, Linear)
        and any(x and x == y for x, y in zip(line.coded, line.levels, strict=True))
        for line in lines
    ]
    if not any(full):
        return formula
    columns = np.hstack([line.columns(data) for line in lines])
    columns -= columns.mean(axis=0)
    columns /= np.maximum(np.sqrt(np.square(columns).mean(axis=0)), 1e-300)
    names = [name for line in lines for name in line.names]
    of_full = np.repeat(full, [len(line.names) for line in lines])
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
        return _slices([term.label for term in self.terms], widths)

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
    """Take the random effects of the factor with the most levels out of a formula; none where there
    are fewer than ``at_least`` levels."""
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


# ---- checks ----


def check_predictors(formula: Formula, data: pd.DataFrame) -> None:
    """Check that predictors are there, complete, finite and not constant, and those smoothed
    numeric; the first that cannot be used is named in a :class:`FrameError`."""
    require_columns(formula.variables, data)
    smoothed = {name for s in formula.smooths if s.basis != "re" for name in s.variables}
    for name in formula.variables:
        values = data[name]
        numeric = pd.api.types.is_numeric_dtype(values)
        if n_missing := int(values.isna().sum()):
            flaw = (
                f"is missing in {n_missing} of {len(data)} rows; leave them out for all models: "
                f"readings.dropna(subset=[{name!r}]) (a lagged predictor has no value at the first "
                "word of a text)"
            )
        elif name in smoothed and (not numeric or pd.api.types.is_bool_dtype(values)):
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
    """Check that a response is numeric and finite, and warn of a measure in seconds."""
    require_columns([response], data)
    flaw = ""
    if not pd.api.types.is_numeric_dtype(data[response]):
        flaw = f"holds {data[response].dtype}, not numbers; convert it first"
    else:
        values = data[response].to_numpy(np.float64)
        present = values[~np.isnan(values)]
        if not len(present):
            flaw = f"is missing in all {len(data)} rows; name another measure"
        elif np.isinf(present).any():
            flaw = "holds infinities; leave out those rows"
        elif response.endswith("_ms") and 0 < (median := float(np.median(present))) < FASTEST_MS:
            warnings.warn(
                f"{response!r} has a median of {median:.3g}, which looks like seconds; it should "
                "be ms: multiply by 1000",
                RuntimeWarning,
                stacklevel=3,
            )
    if flaw:
        raise FrameError(f"the response {response!r} {flaw}")


def check_collinear(correlation: Floats, names: Sequence[str], free: NDArray[np.bool_]) -> None:
    """Raise if columns that no penalty touches are combinations of those before them; column 0 of
    the correlations is the intercept."""
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
class SharedDesign:
    """The design of one set of rows without any surprisal, its columns centred and scaled.

    Cross-products of B designs of p columns and m measures are kept for each of U units: xx (U, B,
    p, p), xy (U, B, p, m), yy (U, m), n (U,); and of the grouped random effects zz (U, G, r, r), zx
    (U, B, G, r, p) and zy (U, G, r, m).
    """

    names: tuple[str, ...]  # of the p columns
    penalties: Tensor  # (n_penalties, p + r): of the p columns and the r grouped random effects
    sums: Tensor  # (n_words, p): G, the columns summed over the readings of each word
    counts: Tensor  # (n_words,): readings of each word
    y_sums: Tensor  # (n_words, m): the centred measures, summed over the readings of each word
    z_sums: Tensor  # (r, G, n_words): values of random effects, summed over a level's readings
    words: Integers  # (n_words,): positions of the words in the table of surprisals
    bounds: Integers  # (U + 1,): where each unit's words begin
    base: Moments  # of each unit, with B = 1
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
    random effects of a factor with many levels are not among the columns; see :mod:`reml`. ``word``
    and ``unit`` say of what each row is a reading; words do not cross units.
    """
    check_predictors(formula, data)
    formula = leave_out_aliased(formula, data)
    formula, grouped = group_random_effects(formula, data, MANY_LEVELS)
    starts = np.r_[0, np.flatnonzero(np.diff(word)) + 1]
    counts = np.diff(np.r_[starts, len(word)])
    word_of_row = np.repeat(np.arange(len(starts)), counts)

    # Terms whose variables are the same in all readings of a word are evaluated once per word.
    first = data.iloc[starts]
    values = {name: data[name].to_numpy() for name in formula.variables}
    same = {n for n, x in values.items() if np.array_equal(np.repeat(x[starts], counts), x)}
    of_words, of_rows = rows_of(first), rows_of(data)

    def rows(variables: tuple[str, ...]) -> tuple[pd.DataFrame, Integers]:
        if not same.issuperset(variables):
            return of_rows(variables)
        distinct, index = of_words(variables)
        return distinct, index[word_of_row]

    matrix = build_matrix(formula, data, rows)
    by_word = [term for term in matrix.terms if same.issuperset(term.variables)]
    by_row = [term for term in matrix.terms if not same.issuperset(term.variables)]
    blocks = matrix.block(by_row, data, None), matrix.block(by_word, first, word_of_row)
    scaled = np.ones(len(matrix.names), dtype=bool)
    columns, mean, scale = Columns(blocks, len(data)).standardise(matrix.centred, scaled)
    row_block, word_block = columns.blocks
    order = np.r_[word_block.places, row_block.places]  # the intercept stays the first

    # G, and the measures, as sums over the readings of each word.
    times = data[list(measures)].to_numpy(np.float64) - formula.offset(data)[:, None]
    times = times - times.mean(axis=0)
    row_sums = np.add.reduceat(row_block.values, starts, axis=0)
    sums = np.hstack([word_block.values * counts[:, None], row_sums])
    time_sums = np.add.reduceat(times, starts, axis=0)
    arrays = (word_block.values, row_block.values, times, sums, time_sums)
    w, r, y, g, y_sums = (torch.from_numpy(array).to(device) for array in arrays)

    # Cross-products of each unit: those of W from sums over words, those of R from the rows.
    bounds = np.r_[np.flatnonzero(np.r_[True, np.diff(unit[starts]) != 0]), len(starts)]
    n_units, width, p, m = len(bounds) - 1, w.shape[1], g.shape[1], y.shape[1]
    row_bounds = np.r_[starts, len(word)][bounds]
    level, z = grouped.rows(data)
    n_levels, n_effects = len(grouped.levels), z.shape[1]
    summed = np.zeros((n_effects, n_levels, len(starts)))
    for i in range(n_effects):
        np.add.at(summed[i], (level, word_of_row), z[:, i])
    z_sums = torch.from_numpy(summed).to(device)
    base = Moments(
        xx=w.new_empty((n_units, 1, p, p)),
        xy=w.new_empty((n_units, 1, p, m)),
        yy=w.new_empty((n_units, m)),
        n=w.new_empty(n_units),
        zz=w.new_empty((n_units, n_levels, n_effects, n_effects)),
        zx=w.new_empty((n_units, 1, n_levels, n_effects, p)),
        zy=w.new_empty((n_units, n_levels, n_effects, m)),
    )
    for u in range(n_units):
        words, of_unit = slice(*bounds[u : u + 2]), slice(*row_bounds[u : u + 2])
        xx, xy, zx = base.xx[u, 0], base.xy[u, 0], base.zx[u, 0]
        xx[:width] = w[words].T @ g[words]
        xx[width:, :width] = xx[:width, width:].T
        xx[width:, width:] = r[of_unit].T @ r[of_unit]
        xy[:width], xy[width:] = w[words].T @ y_sums[words], r[of_unit].T @ y[of_unit]
        n_rows = of_unit.stop - of_unit.start
        base.yy[u], base.n[u] = y[of_unit].square().sum(dim=0), n_rows
        zx[..., :width] = (z_sums[:, :, words] @ w[words]).transpose(0, 1)
        for i in range(n_effects):
            places = level[of_unit], np.arange(n_rows)
            indicator = sparse.csr_array((z[of_unit, i], places), shape=(n_levels, n_rows))
            parts = (indicator @ x[of_unit] for x in (row_block.values, times, z))
            of_rows, of_times, of_effects = (torch.from_numpy(part).to(device) for part in parts)
            zx[:, i, width:], base.zy[u, :, i], base.zz[u, :, i] = of_rows, of_times, of_effects

    # Where the search for smoothing begins, from the covariances of the columns as they were.
    correlation = np.empty((p, p))
    correlation[np.ix_(order, order)] = (base.xx.sum(dim=0)[0] / len(word)).cpu().numpy()
    diagonals = matrix.diagonals(mean, correlation * np.outer(scale, scale))
    diagonals += grouped.diagonals(base.zz.sum(dim=0).cpu().numpy(), len(word))
    names = tuple(matrix.names[i] for i in order)
    check_collinear(correlation[np.ix_(order, order)], names, matrix.free[order])
    penalties = block_diag((matrix.penalties / scale**2)[:, order], *grouped.penalties)
    return SharedDesign(
        names=names,
        penalties=torch.from_numpy(penalties).to(device),
        sums=g,
        counts=torch.from_numpy(counts.astype(np.float64)).to(device),
        y_sums=y_sums,
        z_sums=z_sums,
        words=word[starts],
        bounds=bounds,
        base=base,
        start=torch.from_numpy(start_smoothing(diagonals, len(word))).to(device),
    )


def extend(design: SharedDesign, columns: Tensor, models: Sequence[str]) -> tuple[Moments, Tensor]:
    """Add the surprisal columns of B language models to the shared design.

    ``columns``, shape (B, q, n_words), hold the surprisal of each word, of the word before it, and
    so on; ``models`` are their names, for messages. Returned are the moments of p + q columns, the
    new ones centred and scaled too, and the scales, (B, q). A model's surprisals that have gaps,
    are constant, or a combination of the other predictors, are an error.
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
    return Moments(xx, xy, base.yy, base.n, base.zz, zx, base.zy), scale
