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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.frames import FrameError
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.smooths import (
    Floats,
    Linear,
    RandomEffect,
    Term,
    first_smoothing,
    linear,
    random_effect,
    tensor,
    thin_plate,
)

Integers = NDArray[np.int64]
COLLINEAR = (
    1e-9  # share of a column's variance beside the others, below which it is their combination
)
FASTEST_MS = 10.0  # a median "_ms" below it is most likely in seconds


# ---- the terms of one formula ----


@dataclass(frozen=True)
class ModelMatrix:
    """The terms of a formula, their bases placed at the data of a fit.

    Attributes
    ----------
    formula : Formula
    linear, smooths : tuple of Term
        Their columns stand in this order after the intercept, column 0.
    names : tuple of str, length p
    penalties : ndarray, shape (n_penalties, p)
        Diagonals of the penalties, on the columns as :meth:`Term.columns` returns them.
    """

    formula: Formula
    linear: tuple[Linear, ...]
    smooths: tuple[Term, ...]
    names: tuple[str, ...]
    penalties: Floats

    @property
    def slices(self) -> dict[str, slice]:
        """Return the columns of each term, by its label."""
        result, start = {}, 1
        for term in (*self.linear, *self.smooths):
            result[term.label] = slice(start, start + len(term.names))
            start += len(term.names)
        return result

    @property
    def centred(self) -> NDArray[np.bool_]:
        """Return which columns are centred: as in mgcv, neither the intercept nor random
        effects."""
        result = np.ones(len(self.names), dtype=bool)
        result[0] = False
        for term in self.smooths:
            result[self.slices[term.label]] = not isinstance(term, RandomEffect)
        return result

    def diagonals(self, mean: Floats, covariance: Floats) -> list[tuple[Floats, Floats]]:
        """Return what :func:`psychlm.reading_times.smooths.first_smoothing` needs of each
        smooth."""
        spans = [self.slices[term.label] for term in self.smooths]
        return [
            term.diagonals(mean[span], covariance[span, span])
            for term, span in zip(self.smooths, spans, strict=True)
        ]

    def evaluate(self, data: pd.DataFrame) -> Floats:
        """Return the columns for some rows, neither centred nor scaled, shape (n, p)."""
        parts = [term.columns(data) for term in (*self.linear, *self.smooths)]
        return np.hstack([np.ones((len(data), 1)), *parts])


def build_matrix(
    formula: Formula, data: pd.DataFrame, weights: Floats | None = None
) -> ModelMatrix:
    """Place the bases of a formula's smooths at the rows of ``data``, which must be complete.

    ``weights`` are the numbers of readings that the rows stand for; one each unless given.

    Raises
    ------
    FrameError
        If a predictor is absent, holds NaN or infinities, is constant, is text where a number is
        needed, or has too few unique values for its basis; or if each level of a random effect has
        a single row.
    """
    check_predictors(formula, data)
    lines = tuple(linear(variables, data) for variables in formula.linear)
    smooths: list[Term] = []
    for smooth in formula.smooths:
        if smooth.basis == "re":
            smooths.append(random_effect(smooth, data))
        elif smooth.basis == "tp":
            smooths.append(thin_plate(smooth, data))
        else:
            smooths.append(tensor(smooth, data, weights))
    names = ("(Intercept)", *(name for term in (*lines, *smooths) for name in term.names))
    # Each penalty touches the columns of its own smooth only.
    penalties = np.zeros((sum(len(term.penalties) for term in smooths), len(names)))
    row, column = 0, 1 + sum(len(term.names) for term in lines)
    for term in smooths:
        height, width = term.penalties.shape
        penalties[row : row + height, column : column + width] = term.penalties
        row, column = row + height, column + width
    return ModelMatrix(formula, lines, tuple(smooths), names, penalties)


def check_predictors(formula: Formula, data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` that names the first predictor that cannot be used."""
    absent = [name for name in formula.variables if name not in data.columns]
    if absent:
        raise FrameError(
            f"formula variables not found in the data: {absent}; it has {list(data.columns)}"
        )
    smooths = [smooth for smooth in formula.smooths if smooth.basis != "re"]
    smoothed = {name for smooth in smooths for name in smooth.variables}
    for name in formula.variables:
        values = data[name]
        if (n_missing := int(values.isna().sum())) > 0:
            raise FrameError(
                f"predictor {name!r} is missing in {n_missing} of {len(data)} rows; leave them "
                f"out for all models: "
                f"readings.dropna(subset=[{name!r}]) (a lagged predictor has no value at the "
                f"first word of a text)"
            )
        numeric = pd.api.types.is_numeric_dtype(values)
        if name in smoothed and (not numeric or pd.api.types.is_bool_dtype(values)):
            raise FrameError(
                f"{name!r} is smoothed but holds {values.dtype}, not numbers; enter it as a "
                f"linear term"
            )
        if numeric and not np.isfinite(values.to_numpy(np.float64)).all():
            raise FrameError(
                f"predictor {name!r} holds infinities (a logarithm of 0?); replace them or "
                f"leave out those rows"
            )
        if len(values) and (values == values.iloc[0]).all():
            raise FrameError(
                f"predictor {name!r} is constant ({values.iloc[0]!r}) in all {len(data)} rows; "
                f"drop it"
            )


def check_response(data: pd.DataFrame, response: str) -> None:
    """Check that a response is numeric and finite, and warn of a measure in seconds.

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
        raise FrameError(f"the response {response!r} holds infinities; leave out those rows")
    median = float(np.nanmedian(values))
    if response.endswith("_ms") and 0 < median < FASTEST_MS:
        warnings.warn(
            f"{response!r} has a median of {median:.3g}, which looks like seconds; it should be "
            f"ms: multiply by 1000",
            RuntimeWarning,
            stacklevel=3,
        )


def check_collinear(correlation: Floats, names: tuple[str, ...], free: NDArray[np.bool_]) -> None:
    """Raise if unpenalised columns are linear combinations of those before them.

    Gaussian elimination: the pivot is the share of a variance that the columns before it do not
    explain.

    Parameters
    ----------
    correlation : ndarray, shape (p, p)
        Cross-products of columns that are centred and of unit length.
    free : ndarray of bool, shape (p,)
        Which columns no penalty touches; column 0 is the intercept.
    """
    index = np.flatnonzero(free)[1:]
    block = correlation[np.ix_(index, index)].copy()
    for i in range(len(index)):
        if block[i, i] < COLLINEAR:
            others = [names[j] for j in index[:i] if abs(correlation[index[i], j]) > 0.1]
            raise FrameError(
                f"{names[index[i]]!r} is a combination of predictors before it (see "
                f"{others[:5]}); drop one"
            )
        block[i + 1 :, i + 1 :] -= np.outer(block[i + 1 :, i], block[i, i + 1 :]) / block[i, i]


# ---- the design that the models of a sweep share ----


@dataclass(frozen=True)
class UnitMoments:
    """Cross-products of B designs of p columns and m measures, separately for each of U units.

    Attributes
    ----------
    xx : Tensor, shape (U, B, p, p)
    xy : Tensor, shape (U, B, p, m)
    yy : Tensor, shape (U, m)
    n : Tensor, shape (U,)
        Readings.
    """

    xx: Tensor
    xy: Tensor
    yy: Tensor
    n: Tensor


@dataclass(frozen=True)
class SharedDesign:
    """The design of one set of rows without any surprisal, its columns centred and scaled.

    Attributes
    ----------
    names : tuple of str, length p
    penalties : Tensor, shape (n_penalties, p)
    sums : Tensor, shape (n_words, p)
        G: the columns summed over the readings of each word.
    counts : Tensor, shape (n_words,)
        Readings of each word.
    y_sums : Tensor, shape (n_words, m)
        The centred measures, summed over the readings of each word.
    words : ndarray of int, shape (n_words,)
        Positions of the words in the table of surprisals.
    bounds : ndarray of int, shape (U + 1,)
        Where each unit's words begin.
    base : UnitMoments, with B = 1
    start : Tensor, shape (n_penalties,)
        The log lambda at which the search for smoothing begins.
    """

    names: tuple[str, ...]
    penalties: Tensor
    sums: Tensor
    counts: Tensor
    y_sums: Tensor
    words: Integers
    bounds: Integers
    base: UnitMoments
    start: Tensor


def share_design(
    data: pd.DataFrame,
    formula: Formula,
    measures: Sequence[str],
    word: Integers,
    unit: Integers,
    device: torch.device,
) -> SharedDesign:
    """Build the design of rows that are complete and sorted by unit and word.

    Parameters
    ----------
    data : DataFrame, shape (n_rows, ...)
        Predictors and measures.
    word, unit : ndarray of int, shape (n_rows,)
        The word that each row is a reading of, and its unit; words do not cross units.
    """
    check_predictors(formula, data)
    starts = np.r_[0, np.flatnonzero(np.diff(word)) + 1]
    counts = np.diff(np.r_[starts, len(word)])

    # Terms whose variables are the same in all readings of a word are evaluated once per word.
    same = {
        name
        for name in formula.variables
        if np.array_equal(np.repeat(data[name].to_numpy()[starts], counts), data[name].to_numpy())
    }
    by_word, by_row = (
        replace(
            formula,
            linear=tuple(t for t in formula.linear if same.issuperset(t) == of_words),
            smooths=tuple(s for s in formula.smooths if same.issuperset(s.variables) == of_words),
        )
        for of_words in (True, False)
    )
    first = data.iloc[starts]
    word_terms = build_matrix(by_word, first, counts.astype(np.float64))
    row_terms = build_matrix(by_row, data)
    w, r = word_terms.evaluate(first), row_terms.evaluate(data)[:, 1:]
    w_mean, w_scale = _standardise(w, counts, word_terms.centred)
    r_mean, r_scale = _standardise(r, np.ones(len(r)), row_terms.centred[1:])
    y = data[list(measures)].to_numpy(np.float64)
    y = y - y.mean(axis=0)
    r_sums = np.add.reduceat(r, starts, axis=0) if r.shape[1] else np.zeros((len(starts), 0))
    w_, r_, y_, counts_, r_sums_ = (
        torch.from_numpy(x).to(device) for x in (w, r, y, counts.astype(np.float64), r_sums)
    )
    bounds = np.r_[np.flatnonzero(np.r_[True, np.diff(unit[starts]) != 0]), len(starts)]
    row_bounds = np.r_[starts, len(word)][bounds]
    base = _unit_moments(w_, r_, y_, counts_, r_sums_, bounds, row_bounds)

    # Penalties refer to the scaled columns; the rows' part has no intercept of its own.
    width, scale = w.shape[1], np.r_[w_scale, r_scale]
    n_penalties = len(word_terms.penalties)
    penalties = np.zeros((n_penalties + len(row_terms.penalties), len(scale)))
    penalties[:n_penalties, :width] = word_terms.penalties
    penalties[n_penalties:, width:] = row_terms.penalties[:, 1:]
    correlation = (base.xx.sum(dim=0)[0] / len(word)).cpu().numpy()
    covariance = correlation * np.outer(scale, scale)
    diagonals = word_terms.diagonals(w_mean, covariance[:width, :width])
    of_rows = np.pad(covariance[width:, width:], ((1, 0), (1, 0)))
    diagonals += row_terms.diagonals(np.r_[0.0, r_mean], of_rows)

    names = (*word_terms.names, *row_terms.names[1:])
    check_collinear(correlation, names, penalties.sum(axis=0) == 0)
    return SharedDesign(
        names=names,
        penalties=torch.from_numpy(penalties / scale**2).to(device),
        sums=torch.cat([w_ * counts_[:, None], r_sums_], dim=1),
        counts=counts_,
        y_sums=torch.from_numpy(np.add.reduceat(y, starts, axis=0)).to(device),
        words=word[starts],
        bounds=bounds,
        base=base,
        start=torch.from_numpy(first_smoothing(diagonals, len(word))).to(device),
    )


def _standardise(
    matrix: Floats, weights: NDArray[np.generic], centred: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Centre (some) and scale columns in place, with weights; return means and scales."""
    share = weights / weights.sum()
    mean = np.where(centred, share @ matrix, 0)
    matrix -= mean
    scale = np.sqrt(share @ np.square(matrix))
    scale[scale == 0] = 1
    matrix /= scale
    return mean, scale


def _unit_moments(
    w: Tensor, r: Tensor, y: Tensor, counts: Tensor, r_sums: Tensor, words: Integers, rows: Integers
) -> UnitMoments:
    """Sum the design's cross-products over each unit, which begin at ``words`` and ``rows``.

    X'X = [W' diag(c) W, W'G_R; G_R'W, R'R], with G_R (``r_sums``) the rows' columns summed over
    each word.
    """
    n_units, width, p = len(words) - 1, w.shape[1], w.shape[1] + r.shape[1]
    xx, xy = w.new_empty((n_units, 1, p, p)), w.new_empty((n_units, 1, p, y.shape[1]))
    yy, n = w.new_empty((n_units, y.shape[1])), w.new_empty(n_units)
    repeats = counts.cpu().numpy().astype(np.int64)
    index = torch.from_numpy(np.repeat(np.arange(len(w)), repeats)).to(w.device)
    y_sums = torch.zeros((len(w), y.shape[1]), dtype=w.dtype, device=w.device)
    y_sums.index_add_(0, index, y)
    for u in range(n_units):
        of_words, of_rows = slice(words[u], words[u + 1]), slice(rows[u], rows[u + 1])
        wu, ru, yu = w[of_words], r[of_rows], y[of_rows]
        crossed = wu.T @ r_sums[of_words]
        xx[u, 0, :width, :width] = (wu * counts[of_words, None]).T @ wu
        xx[u, 0, :width, width:], xx[u, 0, width:, :width] = crossed, crossed.T
        xx[u, 0, width:, width:] = ru.T @ ru
        xy[u, 0, :width], xy[u, 0, width:] = wu.T @ y_sums[of_words], ru.T @ yu
        yy[u], n[u] = yu.square().sum(dim=0), len(yu)
    return UnitMoments(xx, xy, yy, n)


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
    xx = flat.new_empty((n_units, n_models, p + q, p + q))
    xy = flat.new_empty((n_units, n_models, p + q, m))
    xx[:, :, :p, :p], xy[:, :, :p] = base.xx, base.xy
    for u in range(n_units):
        words = slice(design.bounds[u], design.bounds[u + 1])
        part = columns[:, :, words]
        border = (flat[:, words] @ design.sums[words]).view(n_models, q, p)
        xx[u, :, p:, :p], xx[u, :, :p, p:] = border, border.mT
        xx[u, :, p:, p:] = (part * design.counts[words]) @ part.mT
        xy[u, :, p:] = (flat[:, words] @ design.y_sums[words]).view(n_models, q, m)

    # Centre and scale the new columns; column 0 is the intercept, so its products are their sums.
    total, n_rows = xx.sum(dim=0), base.n.sum()
    mean = total[:, 0, -q:] / n_rows
    variance = total.diagonal(dim1=1, dim2=2)[:, -q:] / n_rows - mean.square()
    scale = torch.where(variance > 1e-14 * mean.square(), variance, 0).sqrt() + 0 * mean
    change = torch.eye(p + q, dtype=xx.dtype, device=xx.device).repeat(n_models, 1, 1)
    change[:, 0, -q:] = -mean / scale
    change.diagonal(dim1=1, dim2=2)[:, -q:] = 1 / scale
    xx.copy_(change.mT @ xx @ change)
    xy.copy_(change.mT @ xy)

    # What the unpenalised columns leave of each surprisal must not vanish.
    free = torch.nonzero(design.penalties.sum(dim=0) == 0).squeeze(1)
    total = xx.sum(dim=0) / n_rows
    border = total[:, free, p:]
    left = total[:, p:, p:] - border.mT @ torch.linalg.solve(total[:, free][:, :, free], border)
    pivots = torch.stack([torch.linalg.det(left[:, :i, :i]) for i in range(1, q + 1)], dim=1)
    for wrong, flaw in (
        (~torch.isfinite(scale), "has gaps or infinities among the words that were read"),
        (scale == 0, "gives every word the same surprisal"),
        (pivots < COLLINEAR, "is a combination of the other predictors"),
    ):
        if wrong.any():
            culprits = [models[i] for i in torch.nonzero(wrong.any(dim=1)).flatten().tolist()]
            raise FrameError(
                f"surprisal of {culprits[:5]} ({len(culprits)} of {len(models)} models) {flaw}; "
                f"correct or drop it"
            )
    return UnitMoments(xx, xy, base.yy, base.n), scale
