"""Model matrices: the terms of a formula at given data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype
from scipy import sparse

from psychlm.frames import FrameError
from psychlm.reading_times.contrasts import Floats, is_number, require_columns
from psychlm.reading_times.formula import Bar, Formula, Smooth, full_coding
from psychlm.reading_times.smooths import (
    Linear,
    factor_levels,
    linear,
)

Integers = NDArray[np.int64]
CELLS = 8  # so many cells a row may a table of pairs of values have; a larger one is sparse
COLLINEAR = 1e-9  # a column of which the others leave a smaller share is their combination
NUMBERS = "integer", "floating", "mixed-integer-float", "decimal"  # as pandas calls objects
FASTEST_MS = 10.0  # a median "_ms" below it is most likely in seconds


# ---- the columns of a design ----


@dataclass(frozen=True)
class Block:
    """Columns that take few values: row i of the data has row ``index[i]`` of ``values``."""

    places: Integers  # (k,): in the whole matrix
    values: Floats  # (m, k)
    index: Integers  # (n,)


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
        """Return the columns as (x - m) / c, with m and c, shape (q,): the means, 0 where not
        centred, and root mean squares, 1 where not scaled."""
        mean = np.zeros(self.q)
        scale = np.ones(self.q)
        blocks = []
        for block in self.blocks:
            places = block.places
            values = block.values
            counts = np.bincount(block.index).astype(np.float64)
            mean[places] = np.where(centred[places], counts @ values / self.n, 0)
            values = values - mean[places]
            root = np.sqrt(counts @ np.square(values) / self.n)
            scale[places] = np.where(scaled[places] & (root > 0), root, 1)
            blocks.append(Block(places, values / scale[places], block.index))
        return Columns(tuple(blocks), self.n), mean, scale

    def part(self, rows: slice) -> Columns:
        """Return the columns at some rows."""
        blocks = []
        for block in self.blocks:
            used, index = np.unique(block.index[rows], return_inverse=True)
            blocks.append(Block(block.places, block.values[used], index))
        return Columns(tuple(blocks), rows.stop - rows.start)

    def times(self, coefficients: Floats) -> Floats:
        """Return the columns' product with coefficients, (q,) to (n,)."""
        total = np.zeros(self.n)
        for block in self.blocks:
            total += (block.values @ coefficients[block.places])[block.index]
        return total

    def products(self, weights: Floats) -> Floats:
        """Return the weighted cross-products X' diag(w) X, shape (q, q)."""
        result = np.empty((self.q, self.q))
        for i, one in enumerate(self.blocks):
            counts = np.bincount(one.index, weights)
            own = (one.values * counts[:, None]).T @ one.values
            result[np.ix_(one.places, one.places)] = own
            for other in self.blocks[:i]:
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
        shape = n_levels, len(block.values)
        if shape[0] * shape[1] <= CELLS * self.n:
            cells = np.bincount(level * shape[1] + block.index, weights, shape[0] * shape[1])
            return cells.reshape(shape) @ block.values
        return sparse.csr_array((weights, (level, block.index)), shape=shape) @ block.values


def distinct_rows(data: pd.DataFrame, variables: Sequence[str]) -> tuple[pd.DataFrame, Integers]:
    """Return the combinations of values, in the order of their first rows, and each row's.

    >>> values, index = distinct_rows(pd.DataFrame({"x": [3, 1, 3], "g": list("aaa")}), ["x", "g"])
    >>> values["x"].tolist(), index.tolist()
    ([3, 1], [0, 1, 0])
    """
    chosen = data[list(dict.fromkeys(variables))]
    index = chosen.groupby(list(chosen), sort=False, observed=True).ngroup().to_numpy()
    return chosen.drop_duplicates(ignore_index=True), index


# ---- the terms of one formula ----


def linear_terms(formula: Formula, data: pd.DataFrame) -> tuple[list[Linear], tuple[str, ...]]:
    """Return the linear terms of a formula, their factors coded as R codes them, and the columns of
    interactions that are left out because no row determines them (some cells are empty).

    R's ``model.matrix`` of ``y ~ f:q`` has an intercept and an indicator of every cell, whose sum
    it is. As in R's ``lm``, the last of such columns is left out.
    """
    coding = full_coding(formula.linear)
    lines = [linear(term, data, coding[term], formula.contrasts) for term in formula.linear]
    kind_of_column: list[str] = []
    for line in lines:
        codings = [coding for coding in line.codings if coding is not None]
        kind = ""
        if any(len(coding) == coding.shape[1] for coding in codings):
            kind = "of all levels"
        elif codings and len(line.variables) > 1:
            kind = "of cells"
        kind_of_column += [kind] * len(line.names)
    if not any(kind_of_column):
        return lines, ()
    columns = np.hstack([line.columns(data) for line in lines])
    columns -= columns.mean(axis=0)
    columns /= np.maximum(np.sqrt(np.square(columns).mean(axis=0)), 1e-300)
    names = [name for line in lines for name in line.names]
    left_out = [i for i in redundant(columns.T @ columns / len(data)) if kind_of_column[i]]
    empty = tuple(names[i] for i in left_out if kind_of_column[i] == "of cells")
    return [line.without({names[i] for i in left_out}) for line in lines], empty


def place_bars(formula: Formula, data: pd.DataFrame) -> tuple[Formula, pd.DataFrame]:
    """Place the random effects in lme4's notation at the data.

    Each column of a bar's terms (their factors are coded as in R) becomes one random effect; those
    of a bar correlate, unless it is double: then the columns of one factor do. Returned are the
    formula, with a smooth for each random effect and ``blocks`` of those that correlate, and the
    data with the columns of the terms and of crossed grouping factors.
    """
    bars = list[Bar]()
    smooths = list(formula.smooths)
    blocks = list[tuple[str, ...]]()
    for bar in formula.bars:
        require_columns(bar.variables, data)
        # Without an intercept the first factor has all levels; after || each term stands alone.
        coding = full_coding(bar.terms)
        if not bar.correlated:
            coding = {term: frozenset(term) for term in bar.terms}
        elif not bar.intercept:
            pairs = [(term, name) for term in bar.terms for name in term]
            factors = (x for x in pairs if factor_levels(data[x[1]]) is not None)
            for term, name in islice(factors, 1):
                coding[term] |= {name}
        lines = tuple(
            linear(term, data, coding[term], contrasts=formula.contrasts) for term in bar.terms
        )
        bars.append(replace(bar, lines=lines))
        columns: list[list[tuple[str, ...]]] = [[()]] if bar.intercept else []
        columns += [[(name,) for name in line.names] for line in lines]
        if bar.correlated:
            columns = [[name for names in columns for name in names]]
        for names in columns:
            added = [Smooth("bar", (bar.group_name, *name), "re", ()) for name in names]
            smooths += added
            blocks.append(tuple(smooth.label for smooth in added))
    labels = pd.Index([label for block in blocks for label in block])
    if twice := sorted(labels[labels.duplicated()]):
        raise FrameError(f"the random effects {twice} are there twice; keep one")
    placed = replace(formula, smooths=tuple(smooths), bars=tuple(bars), blocks=tuple(blocks))
    return placed, placed.compute(data) if bars else data


# ---- checks ----


def check_predictors(formula: Formula, data: pd.DataFrame) -> None:
    """Check that predictors are there, complete, finite and not constant, and those smoothed
    numeric; the first that cannot be used is named in a :class:`FrameError`."""
    require_columns(formula.variables, data)
    smoothed = {name for s in formula.smooths if s.basis != "re" for name in s.variables}
    linear = {name for term in formula.linear for name in term}
    of_by = {smooth.by for smooth in formula.smooths}
    groups = {name for bar in formula.bars for name in bar.group}
    for name in formula.variables:
        values = data[name]
        numeric = pd.api.types.is_numeric_dtype(values)
        if n_missing := int(values.isna().sum()):
            flaw = (
                f"is missing in {n_missing} of {len(data)} rows; leave them out for all models: "
                f"readings.dropna(subset=[{name!r}]) (a lagged predictor has no value at the first "
                "word of a text)"
            )
        elif name in smoothed and not is_number(values):
            flaw = f"is smoothed but holds {values.dtype}, not numbers; enter it as a linear term"
        elif name in of_by and numeric and not is_number(values):
            flaw = "is a boolean by=, which mgcv refuses: make it text (a smooth each) or 0 and 1"
        elif name in linear and not numeric and infer_dtype(values) in NUMBERS:
            flaw = "holds numbers as objects, so as labels: make it numbers, or text for a factor"
        elif name in linear and not numeric and _is_numbers_as_text(values):
            flaw = f"is text of many numbers, each a level; make it numbers: readings[{name!r}]"
            flaw += ".astype(float)"
        elif infer_dtype(values) in ("mixed", "mixed-integer"):
            flaw = f"holds labels of several types; make them text: readings[{name!r}].astype(str)"
        elif name in linear and pd.api.types.is_datetime64_any_dtype(values):
            flaw = "holds dates; make them numbers: (x - x.min()).dt.total_seconds()"
        elif name in formula.offsets and not numeric:
            flaw = f"is an offset but holds {values.dtype}, not numbers; enter it as a linear term"
        elif numeric and not np.isfinite(values.to_numpy(np.float64)).all():
            flaw = "holds infinities (a logarithm of 0?); replace them or leave out those rows"
        elif name not in formula.offsets and len(values) and (values == values.iloc[0]).all():
            flaw = f"is constant ({values.iloc[0]}) in all {len(data)} rows; drop it"
            flaw += " (a random effect needs several levels)" if name in groups else ""
        else:
            continue
        raise FrameError(f"predictor {name!r} {flaw}")


def _is_numbers_as_text(values: pd.Series) -> bool:
    """Return whether text holds numbers most of which differ, as no factor's levels do."""
    if 2 * values.nunique() <= len(values):
        return False
    return bool(pd.to_numeric(values.astype(str), errors="coerce").notna().all())


def check_response(data: pd.DataFrame, response: str) -> None:
    """Check that a response is numeric, finite and varies, and warn of a measure in seconds."""
    require_columns([response], data)
    flaw = ""
    values = data[response].dropna()
    if not pd.api.types.is_numeric_dtype(values):
        flaw = f"holds {values.dtype}, not numbers; convert it by pd.to_numeric, or read the file "
        flaw += "with the decimal mark that it has"
    elif values.empty:
        flaw = f"is missing in all {len(data)} rows; name another measure"
        flaw = flaw if len(data) else "has no rows; did an exclusion remove all?"
    elif np.isinf(values.to_numpy(np.float64)).any():
        flaw = "holds infinities; leave out those rows"
    elif (values == values.iloc[0]).all():
        flaw = f"is {values.iloc[0]} in all {len(values)} rows that have it; times have to differ"
    if flaw:
        raise FrameError(f"the response {response!r} {flaw}")
    if response.endswith("_ms") and 0 < values.median() < FASTEST_MS:
        warnings.warn(
            f"{response!r} has a median of {values.median():.3g}, which looks like seconds; it "
            "should be ms: multiply by 1000",
            RuntimeWarning,
            stacklevel=3,
        )


def check_collinear(correlation: Floats, names: Sequence[str], free: NDArray[np.bool_]) -> None:
    """Raise if columns that no penalty touches are combinations of those before them; column 0 of
    the correlations is the intercept, with which columns that are not centred correlate."""
    index = np.flatnonzero(free)
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
    block = correlation.copy()
    columns = []
    for i in range(len(block)):
        if block[i, i] < COLLINEAR:
            columns.append(i)
        else:
            below = block[i + 1 :, i] / block[i, i]
            block[i + 1 :, i + 1 :] -= np.outer(below, block[i, i + 1 :])
    return columns
