"""A formula's terms fitted to data: which columns the model matrix has, how they are centred, scaled and penalised."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.frames import FrameError
from psychlm.reading_times.bases import Linear, RandomEffect, Smoother, Term, linear, smooth_term
from psychlm.reading_times.formula import Formula

Floats = NDArray[np.float64]
COLLINEAR = (
    1e-9  # share of a column's variance left beside the others, under which it is their combination
)
FASTEST_MS = 10.0  # a median "_ms" below it is most likely in seconds


@dataclass(frozen=True)
class Layout:
    """The terms of a formula, their bases placed at given data.

    Attributes
    ----------
    linear, smooths : tuple of Linear, tuple of Smoother
        Their columns stand in this order; the intercept, column 0, belongs to none.
    names : tuple of str, length p
    penalties : ndarray, shape (n_penalties, p)
        Diagonals of the penalties, on the columns as they come from :meth:`Term.columns`.
    penalty_names : tuple of str
        The smooth that each penalty belongs to; a tensor product has several.
    """

    formula: Formula
    linear: tuple[Linear, ...]
    smooths: tuple[Smoother, ...]
    names: tuple[str, ...]
    penalties: Floats
    penalty_names: tuple[str, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return all terms in the order of their columns."""
        return (*self.linear, *self.smooths)

    @property
    def centred(self) -> NDArray[np.bool_]:
        """Return which columns are centred: as in mgcv, neither the intercept nor random effects."""
        result = np.ones(len(self.names), dtype=bool)
        result[0] = False
        for term in self.smooths:
            result[self.slices()[term.label]] = not isinstance(term, RandomEffect)
        return result

    def diagonals(self, mean: Floats, covariance: Floats) -> list[tuple[Floats, Floats]]:
        """Return what :func:`psychlm.reading_times.bases.first_smoothing` needs of each smooth."""
        spans = self.slices()
        return [
            x.diagonals(mean[spans[x.label]], covariance[spans[x.label], spans[x.label]])
            for x in self.smooths
        ]

    def slices(self) -> dict[str, slice]:
        """Return the columns of each term, by its label."""
        ends = 1 + np.cumsum([len(term.names) for term in self.terms])
        return {
            term.label: slice(end - len(term.names), end)
            for term, end in zip(self.terms, ends, strict=True)
        }

    def matrix(self, data: pd.DataFrame) -> Floats:
        """Return the model matrix with its intercept, neither centred nor scaled, shape (n, p)."""
        n = len(data[self.terms[0].variables[0]]) if self.terms else len(data)
        return np.hstack([np.ones((n, 1)), *(term.columns(data) for term in self.terms)])


def build(formula: Formula, data: pd.DataFrame, weights: Floats | None = None) -> Layout:
    """Place the bases of a formula's smooths at the rows of ``data``, which must be complete.

    ``weights`` are the numbers of readings that the rows stand for; one each unless given.

    Raises
    ------
    FrameError
        If a predictor is absent, holds NaN or infinities, is constant, is text where a number is due, or has too few
        unique values for its basis; or if a random effect has a single level or a level for every row.
    """
    check_predictors(formula, data)
    lines = tuple(linear(variables, data) for variables in formula.linear)
    smooths = tuple(smooth_term(smooth, data, weights) for smooth in formula.smooths)
    terms: tuple[Term, ...] = (*lines, *smooths)
    for term in terms:
        if isinstance(term, RandomEffect):
            _check_random_effect(term, data)
    names = ("(Intercept)", *(name for term in terms for name in term.names))
    rows, penalty_names, start = [], [], 1
    for term in terms:
        for d in term.penalties:
            rows.append(np.zeros(len(names)))
            rows[-1][start : start + len(d)] = d
            penalty_names.append(term.label)
        start += len(term.names)
    penalties = np.stack(rows) if rows else np.zeros((0, len(names)))
    return Layout(formula, lines, smooths, names, penalties, tuple(penalty_names))


def check_predictors(formula: Formula, data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` that names the first predictor that cannot be used, why, and what to do."""
    absent = [name for name in formula.variables if name not in data.columns]
    if absent:
        raise FrameError(
            f"the formula names {absent}, which are no columns of the frame; it has {list(data.columns)}"
        )
    smoothed = {
        name for smooth in formula.smooths if smooth.basis != "re" for name in smooth.variables
    }
    for name in formula.variables:
        values = data[name]
        if (n_missing := int(values.isna().sum())) > 0:
            raise FrameError(
                f"predictor {name!r} is missing in {n_missing} of {len(data)} rows; leave them out for all models: "
                f"readings.dropna(subset=[{name!r}]) (a lagged predictor has no value at the first word of a text)"
            )
        numeric = pd.api.types.is_numeric_dtype(values)
        if name in smoothed and (not numeric or pd.api.types.is_bool_dtype(values)):
            raise FrameError(
                f"{name!r} is smoothed but holds {values.dtype}, not numbers; enter it as a linear term"
            )
        if numeric and not np.isfinite(values.to_numpy(np.float64)).all():
            raise FrameError(
                f"predictor {name!r} holds infinities (a logarithm of 0?); mend or leave out those rows"
            )
        if len(values) and (values == values.iloc[0]).all():
            raise FrameError(
                f"predictor {name!r} is constant ({values.iloc[0]!r}) in all {len(data)} rows; drop it"
            )


def _check_random_effect(term: RandomEffect, data: pd.DataFrame) -> None:
    levels = [
        (name, found)
        for name, found in zip(term.variables, term.factors, strict=True)
        if found is not None
    ]
    for name, _ in levels[:1]:
        counts = data[name].value_counts()
        if (counts == 1).all():
            raise FrameError(
                f"{term.label}: every level of {name!r} has a single row, so its effect is the residual; leave it out "
                "(are these means over people?)"
            )
        single = counts.index[counts == 1]
        if len(single):
            warnings.warn(
                f"{term.label}: {list(single[:5])} ({len(single)} of {len(counts)} levels of {name!r}) have one row, "
                "so their effects are shrunk to almost nothing; check their ids or leave them out",
                RuntimeWarning,
                stacklevel=4,
            )


def check_response(data: pd.DataFrame, response: str) -> None:
    """Check that a response is there and numeric, and warn of a measure in seconds.

    Raises
    ------
    FrameError
        If the response is absent, no number, infinite, or missing everywhere.
    """
    if response not in data.columns:
        raise FrameError(
            f"the response {response!r} is no column of the frame; it has {list(data.columns)}"
        )
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
        raise FrameError(
            f"the response {response!r} holds infinities; mend or leave out those rows"
        )
    median = float(np.nanmedian(values))
    if response.endswith("_ms") and 0 < median < FASTEST_MS:
        warnings.warn(
            f"{response!r} has a median of {median:.3g}, which looks like seconds; it should be ms: multiply by 1000",
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
    block = correlation[np.ix_(index, index)].copy()
    for i in range(
        len(index)
    ):  # Gaussian elimination: the pivot is the variance the columns before do not explain
        if block[i, i] < COLLINEAR:
            others = [names[j] for j in index[:i] if abs(correlation[index[i], j]) > 0.1]
            raise FrameError(
                f"{names[index[i]]!r} is a combination of predictors before it (see {others[:5]}); drop one"
            )
        block[i + 1 :, i + 1 :] -= np.outer(block[i + 1 :, i], block[i, i + 1 :]) / block[i, i]
