"""The engine that estimates every specification: any response function, equal parameters, groups.

E-step, quadrature and the observed information (Louis 1982) are those of dichotomous items. A
linear map leads from the estimates to the table of parameters (``ParameterMap``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    fine_posterior,
    quadrature_grid,
)
from psychlm.irt.priors import Beta
from psychlm.irt.response_functions import ASYMPTOTE_LIMIT, KINDS, ResponseFunction
from psychlm.irt.response_matrix import BLOCK_CELLS, MISSING, pick_device
from psychlm.irt.specification import Solution, Specification, earlier_rows, problems
from psychlm.irt.standard_errors import (
    POLYNOMIALS,
    ROUGH_POLYNOMIALS,
    covariance_of,
    covariance_of_estimates,
    missing_information,
)

STARTS = ((0.15, 0.95), (0.02, 0.99), (0.25, 0.85))  # free lower and upper asymptotes
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
    items, mean, sd = em.unpack(estimates)
    mean = host(mean)
    sd = host(sd)
    at_bound = host(estimates.abs() >= em.limits)

    # The covariance of the estimates that are not at their bounds, and of every column's cells.
    names = spec.parameters.names
    covariance = np.full((len(estimates), len(estimates)), np.nan)
    if standard_errors:
        observed, scores_by_row = em.information(estimates)
        owner, _ = pd.factorize(names.get_level_values(0))
        scores = scores_by_row() if sandwich else None
        covariance = covariance_of_estimates(observed, owner, ~at_bound, scores)
    basis = spec.parameters.basis
    n_cells = len(basis) - 2 * len(spec.groups)
    of_items = basis[:n_cells].reshape(len(spec.fixed), -1, len(estimates)).swapaxes(0, 1)
    blocks = covariance_of(of_items, covariance)
    of_moments = basis[n_cells:, None]
    of_mean, of_log_sd = np.sqrt(covariance_of(of_moments, covariance)[:, 0, 0]).reshape(2, -1)

    # What a reader of the estimates must know, item by item, in any group.
    runaway = host(items.steepness >= LARGEST_SLOPE)
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
    values, blocks = form.natural(host(items.values), blocks)
    return Solution(
        values=values,
        blocks=blocks,
        groups={"mean": mean, "sd": sd, "se_mean": of_mean, "se_sd": of_log_sd * sd},
        covariance=pd.DataFrame(covariance, names, names) if standard_errors else None,
        n_parameters=len(estimates),
        loglik=float(posterior.loglik @ em.answers.count),
        log_prior=em.log_prior(estimates)[0],
        n_iterations=em.n_steps,
        loglik_error=error,
        quadrature=str(em.grid),
        converged=settled,
        messages=messages + problems(spec.items, em, error, **by_item),
        errors="sandwich" if sandwich else "observed information",
    )


def answers_of(spec: Specification, device: torch.device | str = "cpu") -> Answers:
    """Return the distinct rows of answers; items of one group are not asked of the others."""
    item, group = np.array(spec.columns).T
    shown = ~spec.differs[item] | (spec.member[:, None] == group)
    weights = np.ones(len(shown)) if spec.weights is None else spec.weights
    n = None
    member = spec.member
    if spec.n is not None:
        n = np.where(shown, spec.n[:, item], 0)
        values = np.where(shown, spec.codes[:, item], 0)
        sums = [weights, weights**2]
    else:
        spread = np.where(shown, spec.codes[:, item], MISSING).astype(np.uint8)
        keyed = np.column_stack([spread, member.astype(np.uint8)])
        distinct, row = np.unique(keyed, axis=0, return_inverse=True)
        values = np.ascontiguousarray(distinct[:, :-1])
        member = distinct[:, -1].astype(int)
        sums = [np.bincount(row.ravel(), x) for x in (weights, weights**2)]
    count, squares, group = (torch.tensor(x, device=device) for x in (*sums, member))
    return Answers(values, count, squares, group, spec.answers.n_categories, n)


def starting_cells(spec: Specification, asymptotes: tuple[float, float], start: Any) -> np.ndarray:
    """Return where to begin: proportions of the categories, or an earlier fit to the items."""
    form = spec.model.form
    table = form.starts(spec.answers.category_counts, spec.fixed, asymptotes)
    if spec.n is None:
        answered = np.where(spec.codes == MISSING, np.nan, spec.codes)
    else:
        answered = spec.codes / np.where(spec.n > 0, spec.n, np.nan)
    table = np.where(np.isnan(spec.fixed), form.turned(table, answered), spec.fixed)
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
            usable = np.isnan(spec.fixed) & (np.abs(earlier) < ASYMPTOTE_LIMIT * 10)
            rows[number] = np.where(usable, earlier, table)
        if grouped:
            earlier = start.groups.reindex(spec.groups)
            moments = np.stack([earlier["mean"], np.log(earlier["sd"])])
    cells = np.stack([rows[g][:, j] for j, g in spec.columns], axis=1)
    if spec.positive_slopes:
        cells[0] = np.abs(cells[0])
    return np.concatenate([cells.ravel(), moments.ravel()])


@dataclass(frozen=True)
class Answers:
    """Answers of persons, or of groups of persons who answered alike."""

    values: np.ndarray  # (n_rows, n_items) uint8: the category, or 255 for not asked; or k of n
    count: Tensor  # (n_rows,) persons, or the sum of their weights
    squares: Tensor  # (n_rows,) sum of the squares of their weights
    group: Tensor  # (n_rows,) number of their group
    n_categories: int
    n: np.ndarray | None = None  # (n_rows, n_items) answers, where there may be several

    @cached_property
    def one_hot(self) -> Tensor:
        """Numbers of answers in every category, mostly 0 or 1, (n_rows, n_items * n_categories)."""
        codes = on_device(self.values, self.count.device)
        if self.n is None:
            by_category = [codes == k for k in range(self.n_categories)]
        else:
            by_category = [on_device(self.n, self.count.device) - codes, codes]
        return torch.stack(by_category, 2).double().flatten(1)

    def by_ability(self, items: ResponseFunction, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return derivatives of every row's log-likelihood by ability, at its ability (n_rows,).

        They are the gradient, and the observed and the expected information.
        """
        sums = []
        n_items = self.values.shape[1]
        size = max(1, BLOCK_CELLS // (n_items * self.n_categories))
        for rows, at in zip(self.one_hot.split(size), theta.split(size), strict=True):
            counts = rows.view(len(rows), n_items, -1).permute(1, 2, 0)
            first, second = items.by_ability(at, counts)
            expected = counts.sum(1) * items.information(at).T
            sums.append(torch.stack([first, -second, expected]).sum(1))
        gradient, observed, expected = torch.cat(sums, 1)
        return gradient, observed, expected

    def expected_counts(self, weights: Tensor) -> Tensor:
        """Return expected numbers of answers by item, category and node."""
        n_items = self.values.shape[1]
        return (self.one_hot.T @ weights).view(n_items, self.n_categories, -1)

    def node_loglik(self, items: ResponseFunction, nodes: Tensor) -> Tensor:
        """Return log P(answers | node) for every row, (n_rows, n_nodes), in nats."""
        return self.one_hot @ items.log_probability(nodes).flatten(0, 1)

    def weighted(self, mean: Tensor, sd: Tensor, grid: QuadratureGrid) -> QuadratureGrid:
        """Return the grid with every row's own weights, those of its group's normal density."""
        log_density = -0.5 * ((grid.fine - mean[:, None]) / sd[:, None]) ** 2
        return replace(grid, log_weights=log_density.log_softmax(1)[self.group])


class CategoryEM(Climbable):
    """The E-step with one distribution of ability per group, and derivatives at its posteriors.

    Parameters ("cells") are the items' values, row by row, then every group's mean of ability, then
    the logarithms of their standard deviations; ``cells`` holds the values to begin with.
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
        self.answers = answers_of(spec, device)
        self.grid = quadrature_grid(device=device)
        self.count = self.answers.count
        self.member = one_hot(self.answers.group, len(spec.groups)).double()  # (n_rows, n_groups)
        self.n_steps = 0
        # Of every estimate: its row of parameters, its bound of either sign, and whether it is a
        # slope or intercept.
        kinds = map_to_cells.kinds
        limits = np.append(BOUNDS[spec.row_kinds], [math.inf, LARGEST_LOG_SD])[kinds]
        is_linear = np.array([kind < 2 for kind in spec.row_kinds] + [False] * 2)[kinds]
        of_estimates = kinds, limits, is_linear
        self.kind, self.limits, self.linear = (on_device(x, device) for x in of_estimates)

    def unpack(self, estimates: Tensor) -> tuple[ResponseFunction, Tensor, Tensor]:
        """Return items, and the groups' means and standard deviations of ability, (n_groups,)."""
        cells = self.fixed + self.basis @ estimates
        moments = cells[-2 * len(self.spec.groups) :].view(2, -1)
        items = cells[: -moments.numel()].view(len(self.spec.fixed), -1)
        return self.spec.model.form(items), moments[0], moments[1].exp()

    def nearest(self) -> Tensor:
        """Return the estimates whose cells are nearest to the starting values: means of equals."""
        products = self.basis.T @ self.basis
        sums = self.basis.T @ (self.cells - self.fixed)
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
        items, mean, sd = self.unpack(estimates)
        loglik_at = partial(self.answers.node_loglik, items)
        weighted = partial(self.answers.weighted, mean, sd)
        return loglik_at, items.steepness, weighted, self.log_prior(estimates)[0]

    def gradient(self, estimates: Tensor, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior by Fisher's identity."""
        answers = self.answers
        items, mean, sd = self.unpack(estimates)
        count = answers.count
        nodes = self.grid.nodes
        expected = answers.expected_counts(posterior.weights * count[:, None])
        by_item = torch.einsum("jcn,kjcn->kj", expected, items.scores(nodes))
        # Of the groups' normal log densities by mean and log sd.
        group_sd = sd[answers.group]
        z = (posterior.mean - mean[answers.group]) / group_sd
        by_row = torch.stack([z / group_sd, z**2 + posterior.variance / group_sd**2 - 1]) * count
        by_group = by_row @ self.member
        cells = torch.cat([by_item.flatten(), by_group.flatten()])
        return self.basis.T @ cells + self.log_prior(estimates)[1]

    def system(self, estimates: Tensor, uphill: Tensor) -> NewtonSystem:
        """Return a rough information by its eigenvectors.

        Estimates at their bounds stay there unless the gradient points inwards.
        """
        moves = ~((estimates.abs() >= self.limits) & (uphill * estimates > 0))
        information, _ = self.information(estimates, ROUGH_POLYNOMIALS)
        return NewtonSystem(information, torch.eye(len(estimates)).to(information)[:, moves])

    def curbed(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return a step of 2 at most; slopes and intercepts together, so they stay on a ridge."""
        excess = step.abs() / (estimates.abs() / 2).clamp_min(LARGEST_STEP)
        excess = torch.where(self.linear, excess, 0.0).max().clamp_min(1.0)
        return torch.where(self.linear, step / excess, step.clamp(-LARGEST_STEP, LARGEST_STEP))

    def moved(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return the estimates after a step, within their bounds."""
        return torch.minimum(torch.maximum(estimates + step, -self.limits), self.limits)

    def information(
        self, estimates: Tensor, n_polynomials: int = POLYNOMIALS
    ) -> tuple[Tensor, Callable[[], Tensor]]:
        """Return the observed information; few polynomials leave out some that is missing.

        The last is a function that returns the gradients of the rows, (n_rows, n_estimates), times
        the root of the sum of their squared weights.
        """
        answers = self.answers
        grid = self.grid
        items, mean, sd = self.unpack(estimates)
        n_kinds = len(items.values)
        n_groups = len(mean)
        n_items = answers.values.shape[1]
        basis = self.basis
        member = self.member
        of_items = basis[: n_kinds * n_items].view(n_kinds, n_items, -1)
        at_nodes = answers.node_loglik(items, grid.nodes)
        _, weights = fine_posterior(at_nodes, answers.weighted(mean, sd, grid))
        count = answers.count[:, None]
        first = items.scores(grid.nodes)

        # Complete data: minus expected counts times second derivatives.
        expected = answers.expected_counts(grid.at_nodes(weights) * count)
        curvature = items.curvature(grid.nodes, expected)
        turned = torch.einsum("klj,lje->kje", curvature, of_items)
        observed = -of_items.flatten(0, 1).T @ turned.flatten(0, 1)
        observed -= torch.diag(self.log_prior(estimates)[2])

        # Abilities: derivatives of the groups' normal log densities by mean and log sd.
        z = (grid.fine - mean[answers.group, None]) / sd[answers.group, None]
        of_mean = basis[-2 * n_groups :][:n_groups]
        of_sd = basis[-n_groups:]
        scores = torch.stack([z / sd[answers.group, None], z**2 - 1])
        size = member.T @ answers.count
        for of_moment, information in ((of_mean, size / sd**2), (of_sd, 2 * size)):
            observed += of_moment.T @ (of_moment * information[:, None])

        # Missing information: posterior covariances of the scores. Absent asymptotes are no
        # estimates, and their derivatives too small for fast products.
        estimated = of_items.flatten(1).any(1).nonzero().flatten().tolist()

        def collect(of_answers: Callable[[Tensor], Tensor], of_abilities: Tensor) -> Tensor:
            """Return every row's scores, (n_rows, n_estimates), from those of its answers."""
            by_mean, by_sd = of_abilities
            total = (by_mean[:, None] * member) @ of_mean + (by_sd[:, None] * member) @ of_sd
            for kind in estimated:
                by_answer = of_answers(first[kind].flatten(0, 1)) * answers.one_hot
                total += by_answer.view(len(by_answer), n_items, -1).sum(2) @ of_items[kind]
            return total * count.sqrt()

        def averaged(weighted: Tensor) -> Iterator[Tensor]:
            # Scores summed over the nodes with weights (n_rows, n_fine).
            at_items = grid.at_nodes(weighted)
            yield collect(lambda score: at_items @ score.T, (scores * weighted).sum(2))

        def apart() -> Iterator[Tensor]:
            # Scores at a node less their expectations, by root weights.
            mean_score = next(averaged(weights))
            for node, weight in enumerate(weights.T):
                at_node = collect(partial(torch.select, dim=1, index=node), scores[:, :, node])
                yield (at_node - mean_score) * weight[:, None] ** 0.5

        by_node = apart if n_polynomials == POLYNOMIALS and grid.interpolation is None else None
        observed = observed - missing_information(
            weights, grid.fine, n_polynomials, averaged, by_node
        )

        def scores_by_row() -> Tensor:
            return next(averaged(weights)) * (answers.squares / answers.count).sqrt()[:, None]

        return observed, scores_by_row
