"""The E-step and derivatives of every specification: any form of item, equal parameters, groups.

A linear map leads from the estimates to the table of parameters (``ParameterMap``). Items that each
have a logistic curve of their own are in ``em.EM``, whose M-steps and bounds go item by item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.irt.arrays import (
    device_of,
    host,
    log_softmax,
    namespace,
    on_device,
    sigmoid,
    sigmoids,
    zeros,
)
from psychlm.irt.climb import NewtonSystem
from psychlm.irt.em import Climbable, Settings
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    Posterior,
    QuadratureGrid,
    item_gradient,
    quadrature_grid,
)
from psychlm.irt.priors import Beta
from psychlm.irt.response_functions import KINDS, ResponseFunction
from psychlm.irt.response_matrix import MISSING
from psychlm.irt.specification import (
    Specification,
    answers_of,
    earlier_rows,
)
from psychlm.irt.standard_errors import (
    observed_information,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from psychlm.irt.result import IRTFit

STARTS = ((0.15, 0.95), (0.02, 0.99), (0.25, 0.85))  # free lower and upper asymptotes
ASYMPTOTE_LIMIT = 13.8  # logits: estimated asymptotes stay 1e-6 away from 0 and 1
AT_BOUND = 2e-6
LARGEST_STEP = 2.0  # of any estimate in one step; of slopes and intercepts more, if these are large
# of either sign, by KINDS
BOUNDS = np.array([LARGEST_SLOPE, math.inf, ASYMPTOTE_LIMIT, ASYMPTOTE_LIMIT])
LARGEST_LOG_SD = math.log(100)  # a group's ability has an sd of 0.01 to 100


def linear(spec: Specification, rows: np.ndarray) -> np.ndarray:
    """Return rows of parameters with logits in place of asymptotes."""
    rows = rows.copy()
    asymptotes = np.array(spec.row_kinds) > 1
    with np.errstate(divide="ignore"):
        rows[asymptotes] = np.log(rows[asymptotes]) - np.log1p(-rows[asymptotes])
    return rows


def starting_cells(spec: Specification, asymptotes: tuple[float, float], start: Any) -> np.ndarray:
    """Return where to begin: proportions of the categories, or an earlier fit to the items."""
    form = spec.model.form
    table = form.starts(spec.answers.category_counts, spec.fixed, asymptotes)
    if spec.n is None:
        answered = np.where(spec.codes == MISSING, np.nan, spec.codes)
    else:
        answered = spec.codes / np.where(spec.n > 0, spec.n, np.nan)
    table = linear(spec, form.turned(table, answered))
    fixed = linear(spec, spec.fixed)
    table = np.where(np.isnan(fixed), table, fixed)
    rows = [table] * len(spec.groups)
    moments = np.zeros((2, len(spec.groups)))
    if start is not None:
        grouped = not isinstance(start, pd.DataFrame)  # an IRTFit
        tables = [start.in_group(group).items if grouped else start for group in spec.groups]
        for number, items in enumerate(tables):
            earlier = earlier_rows(spec, items)
            if len(earlier) != len(spec.fixed):
                raise FrameError(
                    f"items of start have {len(earlier)} parameters and these {len(spec.fixed)}: "
                    "they have other categories; leave start out"
                )
            earlier = linear(spec, earlier)
            usable = np.isnan(fixed) & (np.abs(earlier) < ASYMPTOTE_LIMIT * 10)
            rows[number] = np.where(usable, earlier, table)
        if grouped:
            earlier = start.groups.reindex(spec.groups)
            moments = np.stack([earlier["mean"], np.log(earlier["sd"])])
    cells = np.stack([rows[g][:, j] for j, g in spec.columns], axis=1)
    if spec.positive_slopes:
        cells[0] = np.abs(cells[0])
    return np.concatenate([cells.ravel(), moments.ravel()])


class CategoryEM(Climbable):
    """The E-step with one distribution of ability per group, and derivatives at its posteriors.

    Parameters ("cells") are the items' values, row by row, with logits of asymptotes, then every
    group's mean of ability, then the logarithms of their standard deviations.
    """

    first_damping = 1.0
    least_gain = 1e-8

    def __init__(
        self, spec: Specification, settings: Settings, device: torch.device | None
    ) -> None:
        self.spec = spec
        self.settings = settings
        basis, kinds, _ = spec.parameters
        self.basis = on_device(basis, device)  # (n_cells, n_estimates)
        n_columns = len(spec.columns)
        n_moments = 2 * len(spec.groups)
        rows = linear(spec, spec.fixed)[:, [j for j, _ in spec.columns]]
        fixed = np.append(np.where(np.isnan(rows), 0.0, rows), np.zeros(n_moments))
        self.fixed = on_device(fixed, device)
        answers = answers_of(spec)
        self.responses = answers.on(device)
        self.grid = quadrature_grid(device=device)
        self.count = self.responses.count
        group = np.zeros(len(answers.values), int) if answers.group is None else answers.group
        self.group = on_device(group, device)
        self.member = on_device(np.eye(len(spec.groups))[group], device)  # (n_rows, n_groups)
        self.n_steps = 0
        # Rows of parameters of which some are estimated, the cells of these, and which are logits.
        self.moments_free = bool(basis[-n_moments:].any())
        is_used = np.asarray(basis[:-n_moments].reshape(len(rows), -1).any(1))
        is_used[0] = True  # one row, where all items are fixed
        self.kinds = np.flatnonzero(is_used).tolist()
        used = np.append(np.repeat(is_used, n_columns), np.full(n_moments, self.moments_free))
        logit = np.append(np.repeat(spec.row_kinds, n_columns) > 1, np.zeros(n_moments, bool))
        self.used = on_device(np.flatnonzero(used), device)
        self.logit = on_device(logit, device)
        self.bent = bool((used & logit).any())
        self.used_basis = on_device(basis[used], device)
        # Of every estimate: its row of parameters, its bound of either sign, and whether it is a
        # slope or intercept.
        limits = np.append(BOUNDS[spec.row_kinds], [math.inf, LARGEST_LOG_SD])[kinds]
        is_linear = np.array([kind < 2 for kind in spec.row_kinds] + [False] * 2)[kinds]
        self.limits, self.linear = (on_device(x, device) for x in (limits, is_linear))
        priors = [spec.priors.get(KINDS[kind]) for kind in spec.row_kinds]
        self.priors = [
            (on_device(np.flatnonzero(kinds == row), device), prior)
            for row, prior in enumerate(priors)
            if prior is not None
        ]

    def unpack(self, estimates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows of parameters, and the groups' means and sds of ability, (n_groups,)."""
        cells = self.fixed + self.basis @ estimates
        cells = namespace(cells).where(self.logit, sigmoid(cells), cells)
        n_groups = len(self.spec.groups)
        mean, log_sd = cells[-2 * n_groups :].reshape(2, -1)
        values = cells[: -2 * n_groups].reshape(len(self.spec.fixed), -1)
        return values, mean, namespace(cells).exp(log_sd)

    def items(self, estimates: Tensor) -> ResponseFunction:
        """Return the items, without rows of asymptotes where there are none."""
        form = self.spec.model.form
        return form(self.unpack(estimates)[0][: form.n_rows(self.spec.fixed)])

    def inside(self, estimates: Tensor) -> np.ndarray:
        """Return which estimates are within their bounds, bool (n_estimates,)."""
        return host(abs(estimates) < self.limits)

    def derivatives(self, estimates: Tensor) -> Tensor:
        """Return derivatives of the used cells by the estimates, (n_used, n_estimates)."""
        p = sigmoid(self.fixed[self.used] + self.used_basis @ estimates)
        slope = namespace(p).where(self.logit[self.used], p * (1 - p), 1.0)
        return self.used_basis * slope[:, None]

    def starts(self, start: pd.DataFrame | IRTFit | None) -> Iterator[Tensor]:
        """Yield the estimates whose cells are nearest to starting values, means of equals."""
        spec = self.spec
        basis = spec.parameters.basis
        guessed = np.isnan(spec.fixed[2:]).any() and spec.model.dichotomous and start is None
        for asymptotes in STARTS if guessed else STARTS[:1]:
            cells = np.where(basis.any(1), starting_cells(spec, asymptotes, start), 0.0)
            self.grid = quadrature_grid(device=device_of(self.count))
            nearest = np.linalg.solve(basis.T @ basis, basis.T @ cells)
            yield on_device(nearest, device_of(self.count))

    def prior_terms(self, estimates: Tensor) -> Tensor:
        """Return the priors' log density, and its derivatives by the estimates, (3, n_estimates).

        A beta density is that of an asymptote; a normal density of an asymptote is that of its
        logit, as in mirt.
        """
        terms = zeros(estimates, 3, len(estimates))
        for chosen, prior in self.priors:
            x = estimates[chosen]
            p, rest = sigmoids(x) if isinstance(prior, Beta) else (x, None)
            one, two = prior.derivatives(p)
            if isinstance(prior, Beta):  # by the logit: dp = p (1 - p) dx
                slope = p * rest
                one, two = one * slope, two * slope**2 + one * slope * (1 - 2 * p)
            terms[:, chosen] = namespace(x).stack([prior.log_density(p), one, two])
        return terms

    def density(self, estimates: Tensor) -> Callable[[QuadratureGrid], QuadratureGrid]:
        """Return what weights a grid with each group's normal density of ability, for every row."""
        _, mean, sd = self.unpack(estimates)

        def weighted(grid: QuadratureGrid) -> QuadratureGrid:
            log_density = -0.5 * ((grid.fine - mean[:, None]) / sd[:, None]) ** 2
            return replace(grid, log_weights=log_softmax(log_density, 1)[self.group])

        return weighted

    def moment_scores(self, estimates: Tensor) -> Callable[[Tensor, Any], Tensor]:
        """Return what leads to derivatives of the groups' log densities by mean and log sd."""
        if not self.moments_free:
            return super().moment_scores(estimates)
        _, mean, sd = self.unpack(estimates)
        centre = mean[self.group]
        variance = sd[self.group] ** 2

        def scores(sums: Tensor, rows: Any) -> Tensor:
            total, first, second = sums.T
            first = first - centre[rows] * total
            second = second - centre[rows] * (sums[:, 1] + first)
            by_moment = namespace(sums).stack([first, second - variance[rows] * total], 1)
            by_moment /= variance[rows, None]
            return (by_moment[:, :, None] * self.member[rows, None]).reshape(len(sums), -1)

        return scores

    def by_cell(self, estimates: Tensor, posterior: Posterior) -> Tensor:
        """Return derivatives of the log-likelihood by the used cells, by Fisher's identity."""
        mean = posterior.mean
        count = self.count[:, None]
        weights = posterior.weights * count
        by_item = item_gradient(self.responses, self.items(estimates), weights, self.grid.nodes)
        xp = namespace(mean)
        sums = xp.stack([xp.ones_like(mean), mean, posterior.variance + mean**2], 1)
        by_group = self.moment_scores(estimates)(sums, slice(None)) * count
        return xp.concatenate([by_item[self.kinds].reshape(-1), by_group.sum(0)])

    def gradient(self, estimates: Tensor, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior."""
        by_cell = self.by_cell(estimates, posterior)
        return self.derivatives(estimates).T @ by_cell + self.prior_terms(estimates)[1]

    def system(self, estimates: Tensor, uphill: Tensor) -> NewtonSystem:
        """Return a rough information by its eigenvectors.

        Estimates at their bounds stay there unless the gradient points inwards.
        """
        moves = ~((abs(estimates) >= self.limits) & (uphill * estimates > 0))
        information = self.information(estimates, self.grid, rough=True)
        basis = on_device(np.eye(len(estimates)), device_of(estimates))
        return NewtonSystem(information, basis[:, moves])

    def curbed(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return a step of 2 at most; slopes and intercepts together, so they stay on a ridge."""
        xp = namespace(step)
        excess = abs(step) / (abs(estimates) / 2).clip(LARGEST_STEP)
        excess = xp.where(self.linear, excess, 0.0).max().clip(1.0)
        return xp.where(self.linear, step / excess, step.clip(-LARGEST_STEP, LARGEST_STEP))

    def moved(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return the estimates after a step, within their bounds."""
        xp = namespace(step)
        return xp.minimum(xp.maximum(estimates + step, -self.limits), self.limits)

    def information(self, estimates: Tensor, grid: QuadratureGrid, rough: bool = False) -> Tensor:
        """Return the observed information in the estimates, with that of priors."""
        by_cell = observed_information(self, estimates, grid, rough)
        xp = namespace(by_cell)
        # Abilities: the information of complete data in means and log sds.
        n_groups = len(self.spec.groups)
        if self.moments_free:
            sd = self.unpack(estimates)[2]
            size = self.member.T @ self.count
            moments = [*range(-2 * n_groups, 0)]
            by_cell[moments, moments] += xp.concatenate([size / sd**2, 2 * size])
        derivatives = self.derivatives(estimates)
        observed = derivatives.T @ by_cell @ derivatives - xp.diag(self.prior_terms(estimates)[2])
        if self.bent:  # second derivatives of asymptotes by their logits
            p = sigmoid(self.fixed[self.used] + self.used_basis @ estimates)
            bend = xp.where(self.logit[self.used], p * (1 - p) * (1 - 2 * p), 0.0)
            bend = bend * self.by_cell(estimates, self.expect(estimates)[0])
            observed = observed - self.used_basis.T @ (self.used_basis * bend[:, None])
        return observed
