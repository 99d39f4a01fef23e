"""The engine that estimates every specification: any response function, equal parameters, groups.

:mod:`psychlm.irt.categories` has its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from psychlm.frames import FrameError
from psychlm.irt.arrays import positive_inverse
from psychlm.irt.categories import Answers, CategoryEM, Layout, climb
from psychlm.irt.em import Settings
from psychlm.irt.likelihood import GRID_ERROR, LARGEST_SLOPE, SMALLEST_STEP
from psychlm.irt.response_functions import ASYMPTOTE_LIMIT, KINDS
from psychlm.irt.response_matrix import MISSING
from psychlm.irt.result import IRTFit, Solution, problems
from psychlm.irt.specification import Specification, earlier_items

STARTS = ((0.15, 0.95), (0.02, 0.99))  # free lower and upper asymptotes


def solve_general(
    spec: Specification, start: Any, standard_errors: bool, settings: Settings
) -> Solution:
    """Climb from one or two starts, on finer grids while the log-likelihood moves."""
    label, kinds, names = spec.estimates
    answers, form = answers_of(spec), spec.model.form
    by_row = [spec.priors.get(KINDS[kind]) for kind in spec.row_kinds]
    guessed = np.isnan(spec.fixed[2:]).any() and form.dichotomous and start is None
    ends = []
    for asymptotes in STARTS if guessed else STARTS[:1]:
        cells = torch.tensor(starting_cells(spec, asymptotes, start))
        layout = Layout(
            form,
            cells,
            torch.tensor(label),
            torch.tensor(kinds),
            len(spec.fixed),
            len(spec.groups),
            by_row,
        )
        em = CategoryEM(answers, layout, settings)
        estimates, value, converged = climb(em, layout.averaged(cells))
        while (error := em.grid_error(estimates, value)) > GRID_ERROR:
            if em.grid.step <= SMALLEST_STEP:
                break
            em.grid = em.grid.halved()
            estimates, value, converged = climb(em, estimates)
        ends.append((value, em, estimates, converged, error))
    value, em, estimates, converged, error = max(ends, key=lambda end: end[0])
    posterior, _ = em.expect(estimates)
    items, mean, sd = em.layout.unpack(estimates)
    at_bound = (estimates.abs() >= em.layout.limits).numpy()

    # The covariance of the estimates that are not at their bounds, and of every column's cells.
    covariance = np.full((len(estimates), len(estimates)), np.nan)
    if standard_errors:
        _, _, observed = em.derivatives(estimates)
        inside = np.flatnonzero(~at_bound)
        inverse = positive_inverse(observed[inside][:, inside])
        if inverse is not None:
            covariance[np.ix_(inside, inside)] = inverse.numpy()
    padded = np.pad(covariance, (0, 1), constant_values=np.nan)  # -1: a fixed cell
    n_moments = 2 * len(spec.groups)
    of_columns = label[: len(label) - n_moments].reshape(len(spec.fixed), -1)
    blocks = padded[of_columns.T[:, :, None], of_columns.T[:, None, :]]
    moment_errors = np.sqrt(padded.diagonal()[label[len(label) - n_moments :]].reshape(2, -1))
    moment_errors[1] *= sd.numpy()
    settled = converged & ~(items.values[0].abs() >= LARGEST_SLOPE).numpy()

    # What a reader of the estimates must know, item by item.
    item = np.array(spec.columns)[:, 0]

    def items_with(columns: Any) -> np.ndarray:
        """Return which items have one of these columns, in any group."""
        return np.isin(np.arange(len(spec.items)), item[columns])

    runaway = (items.values[0].abs() >= LARGEST_SLOPE).numpy()
    stuck = np.flatnonzero(at_bound & (kinds > 1))
    messages = problems(
        spec.items,
        runaway=items_with(runaway),
        unsettled=items_with(~settled & ~runaway),
        at_bound=items_with(np.isin(of_columns, stuck).any(axis=0)),
        unknown=np.full(len(spec.items), standard_errors and bool(np.isnan(covariance).all())),
        n_iterations=em.n_steps,
        loglik_error=error,
        grid=em.grid,
    )
    values, blocks = form.natural(items.values.numpy(), blocks)
    return Solution(
        values=values,
        blocks=blocks,
        moments=torch.stack([mean, sd]).numpy(),
        moment_errors=moment_errors,
        covariance=pd.DataFrame(covariance, names, names) if standard_errors else None,
        n_parameters=len(estimates),
        loglik=float(posterior.loglik @ em.answers.count),
        log_prior=em.layout.log_prior(estimates)[0],
        n_iterations=em.n_steps,
        loglik_error=error,
        quadrature=str(em.grid),
        converged=settled,
        messages=messages,
    )


def answers_of(spec: Specification) -> Answers:
    """Return the distinct rows of answers; items of one group are not asked of the others."""
    item, group = np.array(spec.columns).T
    shown = ~spec.differs[item] | (spec.member[:, None] == group)
    spread = np.where(shown, spec.codes[:, item], MISSING).astype(np.uint8)
    keyed = np.column_stack([spread, spec.member.astype(np.uint8)])
    distinct, count = np.unique(keyed, axis=0, return_counts=True)
    return Answers(
        np.ascontiguousarray(distinct[:, :-1]),
        torch.tensor(count, dtype=torch.float64),
        torch.tensor(distinct[:, -1].astype(int)),
        spec.answers.n_categories,
    )


def starting_cells(spec: Specification, asymptotes: tuple[float, float], start: Any) -> np.ndarray:
    """Return where to begin: proportions of the categories, or an earlier fit to the items."""
    answered = np.where(spec.codes == MISSING, np.nan, spec.codes)
    levels = spec.answers.levels
    n_categories = np.array([2 if levels is None else len(levels[item]) for item in spec.items])
    table = spec.model.form.starts(answered, n_categories, spec.fixed, asymptotes)
    # Slopes have the sign of the item's agreement with the sum of the others.
    centred = np.nan_to_num(answered - np.nanmean(answered, axis=0))
    rest = centred.sum(axis=1, keepdims=True) - centred
    table[0] *= np.where((centred * rest).sum(axis=0) < 0, -1.0, 1.0)
    table = table[:, [j for j, _ in spec.columns]]
    moments = np.zeros((2, len(spec.groups)))
    if start is not None:
        grouped = isinstance(start, IRTFit)
        for number, label in enumerate(spec.groups):
            earlier_table = start.in_group(label).items if grouped else start
            earlier = spec.model.form.rows_of(earlier_items(earlier_table, spec.items))
            if len(earlier) != len(spec.fixed):
                raise FrameError(
                    f"items of start have {len(earlier)} parameters and these {len(spec.fixed)}: "
                    "they have other categories; leave start out"
                )
            usable = np.isnan(spec.fixed) & (np.abs(earlier) < ASYMPTOTE_LIMIT * 10)
            for column, (j, g) in enumerate(spec.columns):
                if g == number:
                    table[:, column] = np.where(usable[:, j], earlier[:, j], table[:, column])
        if grouped:
            earlier = start.groups.reindex(spec.groups)
            moments = np.stack([earlier["mean"], np.log(earlier["sd"])])
    return np.concatenate([table.ravel(), moments.ravel()])
