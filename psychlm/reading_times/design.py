"""The design that a sweep over language models shares, and the cross-products that are all it needs of the data.

Rows of a readings frame are words x people, and most predictors belong to the word. So the design splits into columns
that are computed once a word (W, with c readings of each word) and columns that differ between readings of the same
word (R: subjects, whether the previous word was fixated). With G the sums over a word's readings of all columns, the
cross-products of a surprisal column z (a number a word) with the whole design are G'z: no reading is touched again.

Sums are kept apart by *unit* (a text, or a sentence), so that any fold's cross-products are a difference of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.frames import FrameError
from psychlm.reading_times.bases import first_smoothing
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.layout import COLLINEAR, Layout, build, check_collinear, check_predictors

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class UnitMoments:
    """Cross-products of one design and m measures, apart for each of U units.

    Attributes
    ----------
    xx : Tensor, shape (U, B, p, p)
        B designs (one for each language model), p columns.
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
class Design:
    """The shared design of one set of rows, its columns centred and scaled.

    Attributes
    ----------
    names : tuple of str, length p
    penalties : Tensor, shape (n_penalties, p)
    sums : Tensor, shape (n_words, p)
        G: the design's columns summed over the readings of each word.
    counts : Tensor, shape (n_words,)
        Readings of each word.
    y_sums : Tensor, shape (n_words, m)
        The centred measures, summed over the readings of each word.
    words : ndarray of int, shape (n_words,)
        Positions of the words in the table of surprisals.
    bounds : ndarray of int, shape (U + 1,)
        Where each unit's words begin.
    base : UnitMoments
        Of the design without any surprisal (B = 1).
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


def share(
    data: pd.DataFrame,
    formula: Formula,
    measures: Sequence[str],
    word: Integers,
    unit: Integers,
    device: torch.device,
) -> Design:
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
    by_word, by_row = _split(formula, data, starts, counts)
    words_layout = build(by_word, data.iloc[starts], counts.astype(np.float64))
    rows_layout = build(by_row, data)
    w, r = words_layout.matrix(data.iloc[starts]), rows_layout.matrix(data)[:, 1:]
    w_mean, w_scale = _standardise(w, counts, words_layout.centred)
    r_mean, r_scale = _standardise(r, np.ones(len(r)), rows_layout.centred[1:])
    y = data[list(measures)].to_numpy(np.float64)
    y = y - y.mean(axis=0)
    r_sums = np.add.reduceat(r, starts, axis=0) if r.shape[1] else np.zeros((len(starts), 0))
    W, R, Y, c, R_sums = (
        torch.from_numpy(x).to(device) for x in (w, r, y, counts.astype(np.float64), r_sums)
    )
    unit_of_word = unit[starts]
    bounds = np.r_[np.flatnonzero(np.r_[True, np.diff(unit_of_word) != 0]), len(starts)]
    base = _unit_moments(W, R, Y, c, R_sums, bounds, np.r_[starts, len(word)][bounds])
    scale, width = np.r_[w_scale, r_scale], w.shape[1]
    correlation = (base.xx.sum(dim=0)[0] / len(word)).cpu().numpy()
    covariance = correlation * np.outer(scale, scale)
    diagonals = words_layout.diagonals(w_mean, covariance[:width, :width])
    behind = np.pad(
        covariance[width:, width:], ((1, 0), (1, 0))
    )  # the rows' part has no intercept of its own
    diagonals += rows_layout.diagonals(np.r_[0.0, r_mean], behind)
    design = Design(
        names=(*words_layout.names, *rows_layout.names[1:]),
        penalties=torch.from_numpy(_penalties(words_layout, rows_layout, scale)).to(device),
        sums=torch.cat([W * c[:, None], R_sums], dim=1),
        counts=c,
        y_sums=torch.from_numpy(np.add.reduceat(y, starts, axis=0)).to(device),
        words=word[starts],
        bounds=bounds,
        base=base,
        start=torch.from_numpy(first_smoothing(diagonals, len(word))).to(device),
    )
    check_collinear(correlation, design.names, (design.penalties.sum(dim=0) == 0).cpu().numpy())
    return design


def _split(
    formula: Formula, data: pd.DataFrame, starts: Integers, counts: Integers
) -> tuple[Formula, Formula]:
    """Part the terms whose variables are the same in all readings of a word from those that differ."""
    same = set()
    for name in formula.variables:
        values = data[name].to_numpy()
        if np.array_equal(np.repeat(values[starts], counts), values):
            same.add(name)

    def part(of_words: bool) -> Formula:
        return replace(
            formula,
            linear=tuple(term for term in formula.linear if same.issuperset(term) == of_words),
            smooths=tuple(
                smooth
                for smooth in formula.smooths
                if same.issuperset(smooth.variables) == of_words
            ),
        )

    return part(True), part(False)


def _standardise(
    matrix: Floats, weights: NDArray[np.generic], centred: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Centre (some) and scale columns in place, with weights; returns means and scales."""
    share = weights / weights.sum()
    mean = np.where(centred, share @ matrix, 0)
    matrix -= mean
    scale = np.sqrt(share @ np.square(matrix))
    scale[scale == 0] = 1
    matrix /= scale
    return mean, scale


def _penalties(words: Layout, rows: Layout, scale: Floats) -> Floats:
    """Put the penalties of both parts side by side, on the scaled columns."""
    width = len(words.names)
    joined = np.zeros((len(words.penalties) + len(rows.penalties), len(scale)))
    joined[: len(words.penalties), :width] = words.penalties
    joined[len(words.penalties) :, width:] = rows.penalties[:, 1:]
    return joined / scale**2


def _unit_moments(
    w: Tensor, r: Tensor, y: Tensor, counts: Tensor, r_sums: Tensor, words: Integers, rows: Integers
) -> UnitMoments:
    """Sum the design's cross-products over each unit; ``words`` and ``rows`` say where the units begin."""
    n_units, width, p = len(words) - 1, w.shape[1], w.shape[1] + r.shape[1]
    xx, xy = w.new_empty((n_units, 1, p, p)), w.new_empty((n_units, 1, p, y.shape[1]))
    yy, n = w.new_empty((n_units, y.shape[1])), w.new_empty(n_units)
    index = torch.from_numpy(
        np.repeat(np.arange(len(w)), counts.cpu().numpy().astype(np.int64))
    ).to(w.device)
    y_sums = torch.zeros((len(w), y.shape[1]), dtype=w.dtype, device=w.device).index_add_(
        0, index, y
    )
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


def extend(design: Design, columns: Tensor, models: Sequence[str]) -> tuple[UnitMoments, Tensor]:
    """Add the surprisal columns of B language models to the shared design.

    Parameters
    ----------
    columns : Tensor, shape (B, q, n_words)
        Surprisal of each word, of the word before it, and so on.
    models : sequence of str, length B
        Their names, for messages.

    Returns
    -------
    UnitMoments of p + q columns, the new ones centred and scaled too, and their scales, shape (B, q)

    Raises
    ------
    FrameError
        If a model's surprisals have gaps, are constant, or are a combination of the other predictors.
    """
    n_models, q, n_words = columns.shape
    flat, p, m, base = (
        columns.view(n_models * q, n_words),
        len(design.names),
        design.y_sums.shape[1],
        design.base,
    )
    n_units = len(base.n)
    xx = flat.new_empty((n_units, n_models, p + q, p + q))
    xy = flat.new_empty((n_units, n_models, p + q, m))
    xx[:, :, :p, :p], xy[:, :, :p] = base.xx, base.xy
    for u in range(n_units):
        here = slice(design.bounds[u], design.bounds[u + 1])
        part = columns[:, :, here]
        border = (flat[:, here] @ design.sums[here]).view(n_models, q, p)
        xx[u, :, p:, :p], xx[u, :, :p, p:] = border, border.mT
        xx[u, :, p:, p:] = (part * design.counts[here]) @ part.mT
        xy[u, :, p:] = (flat[:, here] @ design.y_sums[here]).view(n_models, q, m)
    scale = _standardise_last(xx, xy, base.n, q)
    _refuse(~torch.isfinite(scale), models, "has gaps or infinities among the words that were read")
    _refuse(scale == 0, models, "gives every word the same surprisal")
    free = torch.nonzero(design.penalties.sum(dim=0) == 0).squeeze(1)
    total = xx.sum(dim=0) / base.n.sum()
    border = total[:, free, p:]
    left = total[:, p:, p:] - border.mT @ torch.linalg.solve(total[:, free][:, :, free], border)
    pivots = torch.stack([torch.linalg.det(left[:, :i, :i]) for i in range(1, q + 1)], dim=1)
    _refuse(pivots < COLLINEAR, models, "is a combination of the other predictors")
    return UnitMoments(xx, xy, base.yy, base.n), scale


def _standardise_last(xx: Tensor, xy: Tensor, n: Tensor, q: int) -> Tensor:
    """Centre and scale the last q columns of cross-products in place; returns the scales, shape (n_models, q).

    Column 0 is the intercept, so its products with the others are their sums. A scale is 0 where a column is constant.
    """
    total, n_total = xx.sum(dim=0), n.sum()
    mean = total[:, 0, -q:] / n_total
    variance = total.diagonal(dim1=1, dim2=2)[:, -q:] / n_total - mean.square()
    scale = torch.where(variance > 1e-14 * mean.square(), variance, 0).sqrt() + 0 * mean
    change = torch.eye(xx.shape[-1], dtype=xx.dtype, device=xx.device).repeat(len(mean), 1, 1)
    change[:, 0, -q:] = -mean / scale
    change.diagonal(dim1=1, dim2=2)[:, -q:] = 1 / scale
    xx.copy_(change.mT @ xx @ change)
    xy.copy_(change.mT @ xy)
    return scale


def _refuse(wrong: Tensor, models: Sequence[str], why: str) -> None:
    if wrong.any():
        culprits = [models[i] for i in torch.nonzero(wrong.any(dim=1)).flatten().tolist()]
        raise FrameError(
            f"surprisal of {culprits[:5]} ({len(culprits)} of {len(models)} models) {why}; mend or drop it"
        )
