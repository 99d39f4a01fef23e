"""The marginal likelihood of a specification as a function of its estimates, with derivatives.

One vector of estimates serves all specifications: a sparse map leads from it to the cells, which
are the items' parameters and the moments of ability (``specification.ParameterMap``). Asymptotes
are estimated as they are, and may end at their edge: 0, or 1 for upper ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psychlm.irt.arrays import added, device_of, host, log_softmax, namespace, on_device, zeros
from psychlm.irt.climb import NewtonSystem
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    Expectation,
    Posterior,
    QuadratureGrid,
    item_gradient,
    quadrature_grid,
    steep_enough,
)
from psychlm.irt.response_functions import KINDS, Logistic, ResponseFunction
from psychlm.irt.specification import LOG_SD, Specification, answers_of
from psychlm.irt.standard_errors import observed_information

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST_STEP = 1.0  # logits, of one Newton step; of large slopes and intercepts more
LARGEST_ASYMPTOTE_STEP = 0.2
LARGEST_MOMENT_STEP = 2.0  # of a mean or log sd of ability
EDGE = 1e-3  # asymptotes as near to their edge may be set to it
LEAST_DISTANCE = 1e-9  # of an asymptote from the other end
LARGEST_LOG_SD = math.log(100)  # a group's ability has an sd of 0.01 to 100
LEAST = np.array([-LARGEST_SLOPE, -math.inf, 0.0, LEAST_DISTANCE, -math.inf, -LARGEST_LOG_SD])
MOST = np.array([LARGEST_SLOPE, math.inf, 1 - LEAST_DISTANCE, 1.0, math.inf, LARGEST_LOG_SD])


class Settings(NamedTuple):
    """When to stop."""

    tolerance: float  # predicted remaining change of any parameter
    max_iterations: int  # steps of EM and Newton's method


class Engine(Expectation):
    """Log-likelihood plus log prior of the estimates, their derivatives, and Newton's steps."""

    first_damping = 0.0  # Newton's method follows EM steps
    least_gain = 1e-8  # nats that a step is expected to gain at the end, at the default tolerance

    def __init__(
        self, spec: Specification, settings: Settings, device: torch.device | str | None
    ) -> None:
        super().__init__(answers_of(spec).on(device))
        self.spec = spec
        self.settings = settings
        self.n_steps = 0
        self.first_steps: int | None = 0  # of EM before each climb; None: EM alone
        self.others: list | None = None  # further starts of single items; None: none is tried
        self.informed: tuple = (None, "", None)  # estimates and grid of the last rough information

        # The map from estimates to cells, and the cells that are fixed.
        parameters = spec.parameters
        self.n_columns = len(spec.columns)
        self.n_curve_rows = spec.model.form.n_rows(spec.fixed)
        n_moments = 2 * len(spec.groups)
        column = np.array(spec.columns)[:, 0]
        self.form = spec.model.form.of_columns(column)
        rows = np.nan_to_num(spec.fixed)[:, column]
        self.fixed = on_device(np.append(rows.ravel(), np.zeros(n_moments)), device)
        self.cell = on_device(parameters.cell, device)
        self.estimate = on_device(parameters.estimate, device)
        self.coefficient = on_device(parameters.coefficient, device)
        first_cells = parameters.first_cells
        self.first_cells = on_device(first_cells, device)
        self.one_to_one = len(parameters.cell) == len(parameters.kinds)

        # Rows of parameters of which some are estimated: their cells, and the moments, have
        # derivatives, which stand at these positions.
        n_items_cells = parameters.n_cells - n_moments
        self.moments_free = bool((parameters.cell >= n_items_cells).any())
        is_used = np.zeros(len(rows), bool)
        is_used[parameters.cell[parameters.cell < n_items_cells] // self.n_columns] = True
        is_used[0] = True  # one row, where all items are fixed
        self.kinds = np.flatnonzero(is_used).tolist()
        used = np.append(np.repeat(is_used, self.n_columns), np.full(n_moments, self.moments_free))
        self.used = np.flatnonzero(used)
        position = (np.cumsum(used) - 1)[first_cells]
        self.in_order = self.one_to_one and np.array_equal(position, np.arange(len(self.used)))
        self.position = on_device(position, device)

        # Kinds of the estimates, their bounds, and priors.
        kinds = parameters.kinds
        self.least = on_device(LEAST[kinds], device)
        self.most = on_device(MOST[kinds], device)
        row_kinds = spec.row_kinds[: self.n_curve_rows]
        self.row_bounds = tuple(on_device(x[row_kinds, None], device) for x in (LEAST, MOST))
        self.row_eye = on_device(np.eye(len(row_kinds))[:, :, None], device)
        self.row_kinds = row_kinds  # of the rows of curves
        self.largest_slope = LARGEST_SLOPE
        of_kind = [np.flatnonzero(kinds == kind) for kind in range(LOG_SD + 1)]
        self.slopes, self.intercepts = (on_device(of_kind[kind], device) for kind in (0, 1))
        is_moment = first_cells >= n_items_cells
        self.moments = on_device(np.flatnonzero(is_moment), device)
        self.is_moment = on_device(is_moment, device)
        self.moment_cells = on_device(first_cells[is_moment] - n_items_cells, device)
        asymptotes = np.concatenate([of_kind[2], of_kind[3]])
        self.asymptotes = on_device(asymptotes, device)
        self.priors_of_asymptotes = bool({"guessing", "upper"} & set(spec.priors))
        self.edges = on_device((kinds[asymptotes] == 3) * 1.0, device)
        self.column = on_device(first_cells % self.n_columns, device)
        self.priors = [
            (on_device(of_kind[KINDS.index(name)], device), prior)
            for name, prior in spec.prior_densities.items()
        ]
        self.mark_shared(n_items_cells)
        if self.moments_free:
            group = self.responses.group
            number = np.zeros(len(self.count), int) if group is None else host(group)
            self.group = on_device(number, device)
            member = np.eye(len(spec.groups))[number]
            self.member = on_device(member, device)  # (n_rows, n_groups)

    def mark_shared(self, n_items_cells: int) -> None:
        """Tell the estimates that an item has for itself, one cell each, from what items share."""
        device = device_of(self.fixed)
        parameters = self.spec.parameters
        first_cells = parameters.first_cells
        free = np.zeros(n_items_cells, bool)
        free[parameters.cell[parameters.cell < n_items_cells]] = True
        self.free = on_device(self.curves_of(free), device)
        self.moving_rows = [bool(row.any()) for row in self.curves_of(free)]

        is_item = first_cells < n_items_cells
        is_own = (np.bincount(parameters.estimate) == 1) & is_item
        is_own &= np.bincount(parameters.cell)[first_cells] == 1
        self.own_estimates = on_device(np.flatnonzero(is_own), device)
        free[:] = False
        free[first_cells[is_own]] = True
        self.own = on_device(self.curves_of(free), device)

        # The derivatives of the cells by the shared estimates, (n_kinds, n_columns, n_shared).
        shared = np.flatnonzero(is_item & ~is_own)
        self.shared_estimates = on_device(shared, device)
        entries = np.isin(parameters.estimate, shared)
        number = np.searchsorted(shared, parameters.estimate[entries])
        basis = np.zeros((n_items_cells, len(shared)))
        basis[parameters.cell[entries], number] = parameters.coefficient[entries]
        n_rows = n_items_cells // self.n_columns
        basis = basis.reshape(n_rows, self.n_columns, len(shared))[self.kinds]
        self.shared_basis = on_device(basis, device)

    def curves_of(self, cells: np.ndarray) -> np.ndarray:
        """Return values of the items' cells, in the rows that curves need."""
        return cells.reshape(-1, self.n_columns)[: self.n_curve_rows].copy()

    @property
    def guessing_free(self) -> Tensor:
        """Which lower asymptotes of logistic items are estimated, bool (n_columns,)."""
        return self.free[2] if len(self.free) > 2 else self.free[0] & False

    def cells(self, x: Tensor) -> Tensor:
        """Return all cells, (n_cells,)."""
        return added(self.fixed, self.cell, self.coefficient * x[self.estimate])

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows of parameters, and the groups' means and sds of ability, (n_groups,)."""
        cells = self.cells(x)
        n_groups = len(self.spec.groups)
        values = cells[: -2 * n_groups].reshape(-1, self.n_columns)
        mean = cells[-2 * n_groups : -n_groups]
        return values, mean, namespace(cells).exp(cells[-n_groups:])

    def items(self, x: Tensor) -> ResponseFunction:
        """Return the items, without rows of asymptotes where there are none."""
        return self.form(self.unpack(x)[0][: self.n_curve_rows])

    def packed(self, values: Tensor) -> Tensor:
        """Return the estimates of rows of parameters, with groups like the reference group."""
        cells = zeros(values, len(self.fixed))
        cells[: values.shape[0] * self.n_columns] = values.reshape(-1)
        return cells[self.first_cells]

    def rescaled(self, x: Tensor, mean: Tensor | float, sd: Tensor | float) -> Tensor:
        """Return estimates on a scale on which N(mean, sd^2) has become N(0, 1)."""
        items = self.items(x)
        moves = (items.rescaled(mean, sd).values - items.values).reshape(-1)
        x = x + 0.0
        for curve in (self.slopes, self.intercepts):
            x[curve] += moves[self.first_cells[curve]]
        xp = namespace(x)
        is_mean = self.moment_cells < len(self.spec.groups)
        moments = x[self.moments]
        scale = 0 * moments + sd
        x[self.moments] = xp.where(is_mean, (moments - mean) / scale, moments - xp.log(scale))
        return x

    @cached_property
    def scale_is_free(self) -> bool:
        """Whether ability may be moved and stretched, since estimates of all items go along."""
        if self.spec.bank or len(self.moments) < 2 * (len(self.spec.groups) - 1):
            return False
        x = np.random.default_rng(0).uniform(0.5, 1.0, len(self.spec.parameters.kinds))
        x = on_device(x, device_of(self.fixed))
        items = self.items(x)
        apart = self.items(self.rescaled(x, 0.5, 2.0)).values - items.rescaled(0.5, 2.0).values
        return bool((host(abs(apart))[items.present] < 1e-9).all())

    @property
    def has_own_curves(self) -> bool:
        """Whether every item has its own logistic curve, or shares with all others the slope."""
        if self.spec.model.form is not Logistic or self.n_curve_rows > 3 or self.moments_free:
            return False
        n_shared = len(self.shared_estimates)
        return n_shared == 0 or (n_shared == 1 and self.spec.tied(0) == "all")

    def by_column(self, chosen: Tensor) -> Tensor:
        """Return which estimates are of chosen columns, bool; moments always are."""
        return chosen[self.column] | self.is_moment

    @cached_property
    def basis(self) -> Tensor:
        """The derivatives of the used cells by the estimates, (n_used, n_estimates)."""
        return on_device(self.spec.parameters.basis[self.used], device_of(self.fixed))

    def by_estimate(self, by_cell: Tensor) -> Tensor:
        """Return derivatives (..., n_used) by the used cells as those by the estimates."""
        if self.in_order:
            return by_cell
        return by_cell[..., self.position] if self.one_to_one else by_cell @ self.basis

    def columns_with(self, chosen: np.ndarray) -> np.ndarray:
        """Return in which columns any of some estimates is, bool (n_columns,); a moment is in all.

        ``chosen`` is bool (n_estimates,).
        """
        n_items_cells = len(self.fixed) - 2 * len(self.spec.groups)
        cells = host(self.cell)[chosen[host(self.estimate)]]
        found = np.bincount(cells[cells < n_items_cells] % self.n_columns, None, self.n_columns)
        return (found > 0) | (cells >= n_items_cells).any()

    def inside(self, x: Tensor) -> np.ndarray:
        """Return which estimates are within their bounds, bool (n_estimates,)."""
        return host((x > self.least) & (x < self.most))

    def hold_slopes(self, largest: float) -> None:
        """Hold slopes of either sign at a bound."""
        self.largest_slope = largest
        of_slopes = [row for row, kind in enumerate(self.row_kinds) if kind == 0]
        for bound, value in zip(self.row_bounds, (-largest, largest), strict=True):
            bound[of_slopes] = value
        self.least[self.slopes] = -largest
        self.most[self.slopes] = largest

    def bounded(self, x: Tensor) -> Tensor:
        """Return the estimates within their bounds; curves keep their location."""
        xp = namespace(x)
        if (abs(x[self.slopes]) > self.largest_slope).any():
            shrink = (self.largest_slope / self.items(x).steepness).clip(None, 1.0)
            x = x + 0.0
            x[self.intercepts] *= shrink[self.column[self.intercepts]]
        return xp.minimum(xp.maximum(x, self.least), self.most)

    def moved(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the estimates after a step, within their bounds."""
        return self.bounded(x + step)

    def curbed(self, x: Tensor, step: Tensor) -> Tensor:
        """Return a step of a logit at most, more for steep items, and of 0.2 of asymptotes.

        The parameters of an item are curbed together, and so are all where items share some.
        """
        xp = namespace(step)
        size = abs(x)
        steep = abs(self.items(x).values[0])[self.column]
        limits = (xp.maximum(size, steep) / 2).clip(LARGEST_STEP)
        limits[self.asymptotes] = LARGEST_ASYMPTOTE_STEP
        limits[self.moments] = LARGEST_MOMENT_STEP
        excess = (abs(step) / limits).clip(1.0)
        own = excess[self.moments]
        excess[self.moments] = 1.0
        if self.one_to_one:
            table = zeros(step, len(self.fixed))
            table[self.cell] = excess
            table = table[: len(self.fixed) - 2 * len(self.spec.groups)]
            excess = xp.amax(table.reshape(-1, self.n_columns), 0)[self.column]
        else:
            excess[:] = excess.max()
        excess[self.moments] = own
        return step / excess

    def prior_terms(self, x: Tensor) -> Tensor:
        """Return the priors' log density, and its derivatives by the estimates, (3, n)."""
        terms = zeros(x, 3, len(x))
        for chosen, prior in self.priors:
            terms[:, chosen] = prior.terms(x[chosen])
        return terms

    def prior_curvature(self, x: Tensor) -> Tensor:
        """Return the priors' second derivatives by rows of parameters, (n_rows, n_columns)."""
        cells = zeros(x, len(self.fixed))
        cells[self.cell] = self.prior_terms(x)[2][self.estimate]
        return cells[: -2 * len(self.spec.groups)].reshape(-1, self.n_columns)

    def log_prior(self, x: Tensor) -> Tensor | float:
        """Return the log density of the priors, in nats."""
        return self.prior_terms(x)[0].sum() if self.priors else 0.0

    def density(self, x: Tensor) -> Callable[[QuadratureGrid], QuadratureGrid]:
        """Return what weights a grid with each group's normal density of ability, for every row."""
        if not self.moments_free:
            return super().density(x)
        _, mean, sd = self.unpack(x)

        def weighted(grid: QuadratureGrid) -> QuadratureGrid:
            log_density = -0.5 * ((grid.fine - mean[:, None]) / sd[:, None]) ** 2
            return replace(grid, log_weights=log_softmax(log_density, 1)[self.group])

        return weighted

    def moment_scores(self, x: Tensor) -> Callable[[Tensor, Any], Tensor]:
        """Return a function to derivatives of log densities by the groups' means and log sds.

        It takes sums of 1, ability and its square with some weights, (n_rows, 3), and which rows.
        """
        if not self.moments_free:
            return lambda sums, _: sums[:, :0]
        _, mean, sd = self.unpack(x)
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

    def gradient(self, x: Tensor, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior, by Fisher's identity."""
        weights = posterior.weights * self.count[:, None]
        by_row = item_gradient(self.responses, self.items(x), weights, self.grid.nodes)
        by_cell = by_row[self.kinds].reshape(-1)
        if self.moments_free:
            mean = posterior.mean
            xp = namespace(mean)
            sums = xp.stack([xp.ones_like(mean), mean, posterior.variance + mean**2], 1)
            by_moment = self.count @ self.moment_scores(x)(sums, slice(None))
            by_cell = xp.concatenate([by_cell, by_moment])
        gradient = self.by_estimate(by_cell)
        return gradient + self.prior_terms(x)[1] if self.priors else gradient

    def information(self, x: Tensor, grid: QuadratureGrid, rough: bool = False) -> Tensor:
        """Return the observed information in the estimates, with that of priors."""
        information = observed_information(self, x, grid, rough)
        xp = namespace(information)
        if self.moments_free:  # that of complete data in means and log sds of ability
            sd = self.unpack(x)[2]
            size = self.member.T @ self.count
            moments = [*range(-2 * len(sd), 0)]
            information[moments, moments] += xp.concatenate([size / sd**2, 2 * size])
        if not self.in_order:
            information = self.by_estimate(self.by_estimate(information).T)
        return information - xp.diag(self.prior_terms(x)[2]) if self.priors else information

    def system(self, x: Tensor, uphill: Tensor) -> NewtonSystem:
        """Return the rough information by its eigenvectors.

        Estimates at their bounds stay there unless the gradient points inwards; asymptotes near
        their edge go there if the step points outwards.
        """
        # A group's density of ability may be narrower than every curve.
        grid = self.grid if self.moments_free else rough_grid(self, x)
        # A rough climb that ends where it began leaves the information to the next climb.
        if self.informed[0] is not x or self.informed[1] != str(grid):
            self.informed = x, str(grid), self.information(x, grid, rough=True)
        information = self.informed[2]
        moves = ~(((x >= self.most) & (uphill > 0)) | ((x <= self.least) & (uphill < 0)))
        if not len(self.asymptotes):
            return NewtonSystem(information, moves)

        # Where a person far below an item answered it correctly, c = 0 is next to impossible, even
        # if the likelihood falls from a small c. With the posteriors held it is concave in c: its
        # gradient at the edge tells whether the edge is the maximum.
        xp = namespace(x)
        distance = xp.full_like(x, math.inf)
        distance[self.asymptotes] = abs(x[self.asymptotes] - self.edges)
        inward = xp.ones_like(x)
        inward[self.asymptotes] -= 2 * self.edges
        near = distance <= EDGE
        inwards = uphill * inward
        if (near & (distance > 0)).any():
            posterior, _ = self.expect(x)
            at_edge = xp.where(near, x - inward * distance.clip(None, 1.0), x)
            inwards = self.gradient(at_edge, posterior) * inward
        moves = (moves & ~near) | (near & (inwards > 0))
        while True:
            to_edge = xp.where(near & ~moves, -inward * distance.clip(None, EDGE), 0.0)
            system = NewtonSystem(information, moves, to_edge)
            outwards = moves & (distance <= 0) & (system.step(uphill, [], 0.0) * inward < 0)
            if not outwards.any():
                return system
            moves = moves & ~outwards


def rough_grid(em: Engine, x: Tensor) -> QuadratureGrid:
    """Return the coarsest grid that resolves the curves; it may be too coarse for posteriors."""
    standard = quadrature_grid(span=em.grid.span, device=device_of(em.grid.nodes))
    fine_enough = steep_enough(standard, em.items(x).steepness)
    return max(fine_enough, em.grid, key=lambda grid: grid.step)
