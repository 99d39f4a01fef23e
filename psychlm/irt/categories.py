"""The engine that estimates every specification: any response function, equal parameters, groups.

E-step, quadrature and the observed information (Louis 1982) are those of dichotomous items. A
linear map leads from the estimates to the table of parameters (``ParameterMap``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from psychlm.device import Device
from psychlm.frames import FrameError
from psychlm.irt.arrays import host, on_device
from psychlm.irt.climb import NewtonSystem, climb
from psychlm.irt.em import Climbable, Settings
from psychlm.irt.likelihood import (
    GRID_ERROR,
    LARGEST_SLOPE,
    SMALLEST_STEP,
    Posterior,
    QuadratureGrid,
    integrate,
    item_gradient,
    node_loglik,
    quadrature_grid,
)
from psychlm.irt.priors import Beta
from psychlm.irt.response_functions import KINDS, ResponseFunction
from psychlm.irt.response_matrix import MISSING, pick_device
from psychlm.irt.specification import (
    Solution,
    Specification,
    answers_of,
    earlier_rows,
    problems,
)
from psychlm.irt.standard_errors import (
    covariance_of,
    covariance_of_estimates,
    observed_information,
    row_scores,
)

STARTS = ((0.15, 0.95), (0.02, 0.99), (0.25, 0.85))  # free lower and upper asymptotes
ASYMPTOTE_LIMIT = 13.8  # logits: estimated asymptotes stay 1e-6 away from 0 and 1
LARGEST_STEP = 2.0  # of any estimate in one step; of slopes and intercepts more, if these are large
# of either sign, by KINDS
BOUNDS = np.array([LARGEST_SLOPE, math.inf, ASYMPTOTE_LIMIT, ASYMPTOTE_LIMIT])
LARGEST_LOG_SD = math.log(100)  # a group's ability has an sd of 0.01 to 100


def solve_general(
    spec: Specification,
    start: Any,
    standard_errors: bool,
    settings: Settings,
    sandwich: bool = False,
    device: Device = "cpu",
) -> Solution:
    """Climb from one or more starts, on finer grids while the log-likelihood moves."""
    where = pick_device(device, "irt.fit", spec.answers.values.size)
    form = spec.model.form
    guessed = np.isnan(spec.fixed[2:]).any() and form.dichotomous and start is None
    ends = []
    for asymptotes in STARTS if guessed else STARTS[:1]:
        em = CategoryEM(spec, starting_cells(spec, asymptotes, start), settings, where)
        estimates, value, there = climb(em, em.nearest())
        while (error := em.grid_error(estimates, value)) > GRID_ERROR:
            if em.grid.step <= SMALLEST_STEP:
                break
            em.grid = em.grid.halved()
            estimates, value, there = climb(em, estimates)
        ends.append((value, em, estimates, bool(there), error))
    value, em, estimates, converged, error = max(ends, key=lambda end: end[0])
    posterior, _ = em.expect(estimates)
    values, mean, sd = (host(each) for each in em.unpack(estimates))
    at_bound = host(estimates.abs() >= em.limits)

    # The covariance of the estimates that are not at their bounds, and of every column's cells.
    names = spec.parameters.names
    covariance = np.full((len(estimates), len(estimates)), np.nan)
    if standard_errors:
        observed = em.information(estimates, em.grid)
        owner, _ = pd.factorize(names.get_level_values(0))
        scores = (
            row_scores(em, estimates) @ em.derivatives(estimates)[em.used] if sandwich else None
        )
        covariance = covariance_of_estimates(observed, owner, ~at_bound, scores)
    basis = host(em.derivatives(estimates))
    n_cells = values.size
    of_items = basis[:n_cells].reshape(len(spec.fixed), -1, len(estimates)).swapaxes(0, 1)
    blocks = covariance_of(of_items, covariance)
    of_moments = basis[n_cells:, None]
    of_mean, of_log_sd = np.sqrt(covariance_of(of_moments, covariance)[:, 0, 0]).reshape(2, -1)

    # What a reader of the estimates must know, item by item, in any group.
    runaway = host(em.items(estimates).steepness >= LARGEST_SLOPE)
    settled = converged & ~runaway
    is_asymptote = np.array([*(kind > 1 for kind in spec.row_kinds), False, False])
    stuck = (of_items[:, :, at_bound & is_asymptote[spec.parameters.kinds]] != 0).any((1, 2))
    item = np.array(spec.columns)[:, 0]
    undetermined = standard_errors & np.isnan(covariance.diagonal()) & ~at_bound
    unknown = (of_items[:, :, undetermined] != 0).any((1, 2))
    marks = {"runaway": runaway, "unsettled": ~settled & ~runaway, "at_bound": stuck}
    marks["unknown"] = unknown
    by_item = {name: np.bincount(item, columns) > 0 for name, columns in marks.items()}
    is_free = basis[n_cells + len(sd) :].any(axis=1)
    at_limit = is_free & (np.abs(np.log(sd)) > LARGEST_LOG_SD - 1e-6)
    messages = [
        f"the abilities of group {spec.groups[g]!r} have a standard deviation of {sd[g]:g}, its "
        "bound: their answers do not tell how far persons lie apart; take groups together, or free "
        "fewer items"
        for g in np.flatnonzero(at_limit)
    ]
    return Solution(
        values=values,
        blocks=blocks,
        groups={"mean": mean, "sd": sd, "se_mean": of_mean, "se_sd": of_log_sd * sd},
        covariance=pd.DataFrame(covariance, names, names) if standard_errors else None,
        n_parameters=len(estimates),
        loglik=float(posterior.loglik @ em.count),
        log_prior=em.log_prior(estimates)[0],
        n_iterations=em.n_steps,
        loglik_error=error,
        quadrature=str(em.grid),
        converged=settled,
        messages=messages + problems(spec.items, em, error, **by_item),
        errors="sandwich" if sandwich else "observed information",
    )


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
    group's mean of ability, then the logarithms of their standard deviations; ``cells`` holds the
    values to begin with.
    """

    first_damping = 1.0
    least_gain = 1e-8

    def __init__(
        self, spec: Specification, cells: np.ndarray, settings: Settings, device: torch.device
    ) -> None:
        self.spec = spec
        self.settings = settings
        map_to_cells = spec.parameters
        self.basis = on_device(map_to_cells.basis, device)  # (n_cells, n_estimates)
        self.cells = on_device(cells, device)
        self.fixed = torch.where(self.basis.any(1), 0.0, self.cells)
        self.responses = answers_of(spec).on(device)
        self.grid = quadrature_grid(device=device)
        self.count = self.responses.count
        group = self.responses.group
        self.group = torch.zeros_like(self.count, dtype=torch.long) if group is None else group
        self.member = one_hot(self.group, len(spec.groups)).double()  # (n_rows, n_groups)
        self.n_steps = 0
        # Rows of parameters of which some are estimated, the cells of these, and which are logits.
        n_columns = len(spec.columns)
        n_moments = 2 * len(spec.groups)
        self.moments_free = bool(map_to_cells.basis[-n_moments:].any())
        of_items = map_to_cells.basis[:-n_moments].reshape(len(spec.fixed), -1)
        is_used = np.asarray(of_items.any(1))
        is_used[0] = True  # one row, where all items are fixed
        self.kinds = np.flatnonzero(is_used).tolist()
        used = np.append(np.repeat(is_used, n_columns), np.full(n_moments, self.moments_free))
        logit = np.append(np.repeat(spec.row_kinds, n_columns) > 1, np.zeros(n_moments, bool))
        self.used = on_device(np.flatnonzero(used), device)
        self.logit = on_device(logit, device)
        self.bent = bool((used & logit).any())
        # Of every estimate: its row of parameters, its bound of either sign, and whether it is a
        # slope or intercept.
        kinds = map_to_cells.kinds
        limits = np.append(BOUNDS[spec.row_kinds], [math.inf, LARGEST_LOG_SD])[kinds]
        is_linear = np.array([kind < 2 for kind in spec.row_kinds] + [False] * 2)[kinds]
        of_estimates = kinds, limits, is_linear
        self.kind, self.limits, self.linear = (on_device(x, device) for x in of_estimates)

    def unpack(self, estimates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows of parameters, and the groups' means and sds of ability, (n_groups,)."""
        cells = self.fixed + self.basis @ estimates
        cells = torch.where(self.logit, cells.sigmoid(), cells)
        moments = cells[-2 * len(self.spec.groups) :].view(2, -1)
        values = cells[: -moments.numel()].view(len(self.spec.fixed), -1)
        return values, moments[0], moments[1].exp()

    def items(self, estimates: Tensor) -> ResponseFunction:
        """Return the items, without rows of asymptotes where there are none."""
        form = self.spec.model.form
        return form(self.unpack(estimates)[0][: form.n_rows(self.spec.fixed)])

    def derivatives(self, estimates: Tensor) -> Tensor:
        """Return derivatives of the cells by the estimates, (n_cells, n_estimates)."""
        p = (self.fixed + self.basis @ estimates).sigmoid()
        return self.basis * torch.where(self.logit, p * (1 - p), 1.0)[:, None]

    def weighted(self, mean: Tensor, sd: Tensor, grid: QuadratureGrid) -> QuadratureGrid:
        """Return the grid with every row's own weights, those of its group's normal density."""
        log_density = -0.5 * ((grid.fine - mean[:, None]) / sd[:, None]) ** 2
        return replace(grid, log_weights=log_density.log_softmax(1)[self.group])

    def nearest(self) -> Tensor:
        """Return the estimates whose cells are nearest to the starting values: means of equals."""
        products = self.basis.T @ self.basis
        sums = self.basis.T @ torch.where(self.basis.any(1), self.cells, 0.0)
        return torch.linalg.solve(products, sums)

    def log_prior(self, estimates: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the priors' log density with its first and second derivatives by the estimates.

        A beta density is that of an asymptote; a normal density of an asymptote is that of its
        logit, as in mirt.
        """
        value = 0.0
        first = torch.zeros_like(estimates)
        second = torch.zeros_like(estimates)
        for row, kind in enumerate(self.spec.row_kinds):
            prior = self.spec.priors.get(KINDS[kind])
            if prior is None:
                continue
            chosen = self.kind == row
            x = estimates[chosen]
            p = x.sigmoid() if isinstance(prior, Beta) else x
            one, two = prior.derivatives(p)
            if isinstance(prior, Beta):  # by the logit: dp = p (1 - p) dx
                slope = p * (-x).sigmoid()
                one, two = one * slope, two * slope**2 + one * slope * (1 - 2 * p)
            value += float(prior.log_density(p).sum())
            first[chosen] = one
            second[chosen] = two
        return value, first, second

    def integrand(self, estimates: Tensor) -> tuple[Callable, Tensor, Callable, float]:
        """Return log-likelihood, slopes, the groups' densities of ability, and log prior."""
        _, mean, sd = self.unpack(estimates)
        items = self.items(estimates)
        loglik_at = partial(node_loglik, self.responses, items)
        weighted = partial(self.weighted, mean, sd)
        return loglik_at, items.steepness, weighted, self.log_prior(estimates)[0]

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
            by_moment = torch.stack([first, second - variance[rows] * total], 1)
            by_moment /= variance[rows, None]
            return (by_moment[:, :, None] * self.member[rows, None]).flatten(1)

        return scores

    def by_cell(self, estimates: Tensor, posterior: Posterior, grid: QuadratureGrid) -> Tensor:
        """Return derivatives of the log-likelihood by the used cells, by Fisher's identity."""
        mean = posterior.mean
        count = self.count[:, None]
        weights = posterior.weights * count
        by_item = item_gradient(self.responses, self.items(estimates), weights, grid.nodes)
        sums = torch.stack([torch.ones_like(mean), mean, posterior.variance + mean**2], 1)
        by_group = self.moment_scores(estimates)(sums, slice(None)) * count
        return torch.cat([by_item[self.kinds].flatten(), by_group.sum(0)])

    def gradient(self, estimates: Tensor, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior."""
        by_cell = self.by_cell(estimates, posterior, self.grid)
        return self.derivatives(estimates)[self.used].T @ by_cell + self.log_prior(estimates)[1]

    def system(self, estimates: Tensor, uphill: Tensor) -> NewtonSystem:
        """Return a rough information by its eigenvectors.

        Estimates at their bounds stay there unless the gradient points inwards.
        """
        moves = ~((estimates.abs() >= self.limits) & (uphill * estimates > 0))
        information = self.information(estimates, self.grid, rough=True)
        return NewtonSystem(information, torch.eye(len(estimates)).to(information)[:, moves])

    def curbed(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return a step of 2 at most; slopes and intercepts together, so they stay on a ridge."""
        excess = step.abs() / (estimates.abs() / 2).clamp_min(LARGEST_STEP)
        excess = torch.where(self.linear, excess, 0.0).max().clamp_min(1.0)
        return torch.where(self.linear, step / excess, step.clamp(-LARGEST_STEP, LARGEST_STEP))

    def moved(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return the estimates after a step, within their bounds."""
        return torch.minimum(torch.maximum(estimates + step, -self.limits), self.limits)

    def information(self, estimates: Tensor, grid: QuadratureGrid, rough: bool = False) -> Tensor:
        """Return the observed information in the estimates, with that of priors."""
        by_cell = observed_information(self, estimates, grid, rough)
        # Abilities: the information of complete data in means and log sds.
        n_groups = len(self.spec.groups)
        _, mean, sd = self.unpack(estimates)
        if self.moments_free:
            size = self.member.T @ self.count
            by_cell.diagonal()[-2 * n_groups :] += torch.cat([size / sd**2, 2 * size])
        derivatives = self.derivatives(estimates)[self.used]
        observed = derivatives.T @ by_cell @ derivatives - self.log_prior(estimates)[2].diag()
        if self.bent:  # second derivatives of asymptotes by their logits
            at_nodes = node_loglik(self.responses, self.items(estimates), grid.nodes)
            posterior = integrate(at_nodes, self.weighted(mean, sd, grid))
            p = (self.fixed + self.basis @ estimates)[self.used].sigmoid()
            bend = torch.where(self.logit[self.used], p * (1 - p) * (1 - 2 * p), 0.0)
            bend = bend * self.by_cell(estimates, posterior, grid)
            basis = self.basis[self.used]
            observed = observed - basis.T @ (basis * bend[:, None])
        return observed
