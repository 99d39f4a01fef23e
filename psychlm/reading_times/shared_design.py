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

    xx = base.xx.sum(dim=0)[0].cpu().numpy()
    check_collinear(xx / n_rows, design.names, design.free)
    arrays = {
        "penalties": design.penalties,
        "sums": columns.sums(word_of_row, n_words, np.ones(n_rows)),
        "counts": readings_of_word.astype(np.float64),
        "y_sums": np.add.reduceat(times, first_row_of_word, axis=0),
        "z_sums": effect_sums,
        "start": design.start(xx, base.zz.sum(dim=0).cpu().numpy(), n_rows),
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
    n_units = len(base.n)
    p = design.sums.shape[1]
    m = design.y_sums.shape[1]

    # Centre and scale them at the readings.
    n_rows = base.n.sum()
    mean = columns @ design.counts / n_rows
    columns = columns - mean[:, :, None]
    variance = columns.square() @ design.counts / n_rows
    scale = torch.where(variance > 1e-14 * mean.square(), variance, 0 * variance).sqrt()
    columns = columns / scale[:, :, None]
    flat = columns.view(n_models * q, n_words)

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

    free = torch.nonzero(design.penalties[:, :p].sum(dim=0) == 0).squeeze(1)
    chosen = torch.cat([free, torch.arange(p, p + q, device=free.device)])
    shares = pivots(xx.sum(dim=0)[:, chosen][:, :, chosen])[:, len(free) :]
    for wrong, flaw in (
        (~torch.isfinite(scale), "has gaps or infinities among the words that were read"),
        (scale == 0, "gives every word the same surprisal"),
        (shares < COLLINEAR, "is a combination of the other predictors"),
    ):
        if wrong.any():
            names = [models[i] for i in torch.nonzero(wrong.any(dim=1)).flatten().tolist()]
            raise FrameError(
                f"surprisal of {format_names(names)} ({len(names)} of {len(models)} models) {flaw};"
                " correct or drop it"
            )
    return Moments(xx, xy, base.yy, base.n, base.zz, zx, base.zy), scale


def pivots(xx: Tensor) -> Tensor:
    """Return the share of each column's variance that the columns before it leave, (B, p): the
    pivots of the Cholesky factor of X'X, scaled to a diagonal of 1; 0 where there is none."""
    scale = xx.diagonal(dim1=1, dim2=2).sqrt()
    scaled = xx / (scale[:, :, None] * scale[:, None, :])
    factor, failed = torch.linalg.cholesky_ex(scaled.nan_to_num(0.0))
    return factor.diagonal(dim1=1, dim2=2).square() * (failed[:, None] == 0)
