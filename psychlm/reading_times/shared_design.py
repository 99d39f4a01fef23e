"""The design that the models of a sweep share.

With G the sums over each word's readings of all columns, the cross-products of a surprisal column z
(one number per word) with the whole design are G'z: no reading is touched again. Sums are kept
separately by *unit* (a text or a sentence), so that the cross-products of a fold are a difference
of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from scipy.linalg import block_diag
from torch import Tensor

from psychlm.frames import FrameError, format_names
from psychlm.reading_times.design import Regression, place
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.model_matrix import (
    COLLINEAR,
    Integers,
    check_collinear,
    check_predictors,
)
from psychlm.reading_times.reml import Moments
from psychlm.reading_times.smooths import start_smoothing

MANY_LEVELS = 100  # random effects are eliminated from here on; few are faster as columns


@dataclass(frozen=True)
class SharedDesign:
    """The design of one set of rows without any surprisal, its columns centred and scaled.

    Cross-products of B designs of p columns and m measures are kept for each of U units: xx (U, B,
    p, p), xy (U, B, p, m), yy (U, m), n (U,); and of the grouped random effects zz (U, G, r, r), zx
    (U, B, G, r, p) and zy (U, G, r, m).
    """

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

    The random effects of a factor with many levels are not among the columns; see :mod:`reml`.
    ``word`` and ``unit`` say of what each row is a reading; a word in two units counts as two.
    """
    check_predictors(formula, data)
    design, columns = place(formula, data, MANY_LEVELS)
    matrix = design.matrix
    grouped = design.grouped
    n_rows = len(data)
    first_row_of_word = np.r_[0, np.flatnonzero(np.diff(word) | np.diff(unit)) + 1]
    n_words = len(first_row_of_word)
    readings_of_word = np.diff(np.r_[first_row_of_word, n_rows])
    word_of_row = np.repeat(np.arange(n_words), readings_of_word)
    times = data[list(measures)].to_numpy(np.float64) - formula.offset(data)[:, None]
    times = times - times.mean(axis=0)
    level, effects = grouped.rows(data)
    effect_sums = np.zeros((effects.shape[1], len(grouped.levels), n_words))
    for i in range(len(effect_sums)):
        np.add.at(effect_sums[i], (level, word_of_row), effects[:, i])

    # The cross-products of each unit, with an axis for language models.
    bounds = np.flatnonzero(np.r_[True, np.diff(unit[first_row_of_word]) != 0, True])
    rows = Regression(columns, times, np.ones(n_rows), level, effects)
    units = []
    for begin, end in pairwise(np.r_[first_row_of_word, n_rows][bounds]):
        of_unit = rows.part(slice(begin, end))
        xx, xy, yy, n, zz, zx, zy = of_unit.products(len(grouped.levels))
        units.append((xx[None], xy[None], yy, n, zz, zx[None], zy))
    base = Moments(*(torch.from_numpy(np.array(x)).to(device) for x in zip(*units, strict=True)))

    # Where the search for smoothing begins, from the covariances of the columns as they were.
    scale = design.units
    correlation = (base.xx.sum(dim=0)[0] / n_rows).cpu().numpy()
    covariances = correlation * np.outer(scale, scale)
    diagonals = matrix.diagonals(design.centre, covariances, covariances)
    diagonals += grouped.diagonals(base.zz.sum(dim=0).cpu().numpy(), n_rows)
    check_collinear(correlation, matrix.names, matrix.free)
    arrays = {
        "penalties": block_diag(matrix.penalties / scale**2, *grouped.penalties),
        "sums": columns.sums(word_of_row, n_words, np.ones(n_rows)),
        "counts": readings_of_word.astype(np.float64),
        "y_sums": np.add.reduceat(times, first_row_of_word, axis=0),
        "z_sums": effect_sums,
        "start": start_smoothing(diagonals, n_rows),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return SharedDesign(words=word[first_row_of_word], bounds=bounds, base=base, **tensors)


def extend(design: SharedDesign, columns: Tensor, models: Sequence[str]) -> tuple[Moments, Tensor]:
    """Add the surprisal columns of B language models to the shared design.

    ``columns``, shape (B, q, n_words), hold the surprisal of each word, of the word before it, and
    so on; ``models`` are their names, for messages. Returned are the moments of p + q columns, the
    new ones centred and scaled too, and the scales, (B, q). A model's surprisals that have gaps,
    are constant, or a combination of the other predictors, are an error.
    """
    n_models, q, n_words = columns.shape
    base = design.base
    flat = columns.view(n_models * q, n_words)
    n_units = len(base.n)
    p = design.sums.shape[1]
    m = design.y_sums.shape[1]

    # The borders that q columns z add to each unit's cross-products: z'X, z' diag(c) z and z'y.
    xx = flat.new_empty((n_units, n_models, p + q, p + q))
    xy = flat.new_empty((n_units, n_models, p + q, m))
    xx[:, :, :p, :p] = base.xx
    xy[:, :, :p] = base.xy
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
    total = xx.sum(dim=0)
    n_rows = base.n.sum()
    mean = total[:, 0, -q:] / n_rows
    variance = total.diagonal(dim1=1, dim2=2)[:, -q:] / n_rows - mean.square()
    scale = torch.where(variance > 1e-14 * mean.square(), variance, 0).sqrt() + 0 * mean
    change = torch.eye(p + q, dtype=xx.dtype, device=xx.device).repeat(n_models, 1, 1)
    change[:, 0, -q:] = -mean / scale
    change.diagonal(dim1=1, dim2=2)[:, -q:] = 1 / scale
    xx.copy_(change.mT @ xx @ change)
    xy.copy_(change.mT @ xy)
    shift = mean[:, None, None]
    factor = scale[:, None, None]
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
