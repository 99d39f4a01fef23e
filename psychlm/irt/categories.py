r"""Items of any response function, equal parameters and groups, by the same EM.

E-step, quadrature and the observed information (Louis 1982) are those of dichotomous items. Every
cell of the table of parameters names the estimate that it equals, which makes items share slopes,
asymptotes or all parameters, and groups share items.

**Steps** are Newton's, damped (Levenberg 1944; Marquardt 1963) in the metric of the information of
complete data: a heavily damped one is a short step of EM's gradient version (Lange 1995).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from psychlm.irt.em import Expectation, Settings
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    QuadratureGrid,
    fine_posterior,
    quadrature_grid,
)
from psychlm.irt.priors import Beta, Prior
from psychlm.irt.response_functions import ResponseFunction
from psychlm.irt.response_matrix import BLOCK_CELLS
from psychlm.irt.standard_errors import POLYNOMIALS, missing_information

LARGEST_STEP = 2.0  # of any estimate in one step
LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e8  # of curvatures, scaled by complete data's information
FLATTEST = 1e-10
ENOUGH = 1e-7  # nats that a step is expected to gain at the end, at the default tolerance
ROUNDING = 1e-5
STEP_POLYNOMIALS = 6


@dataclass(frozen=True)
class Answers:
    """Answers of persons, or of groups of persons who answered alike."""

    values: np.ndarray  # (n_rows, n_items) uint8: the category, or 255 for not asked
    count: Tensor  # (n_rows,) persons
    group: Tensor  # (n_rows,) number of their group
    n_categories: int

    @cached_property
    def one_hot(self) -> Tensor:
        """Which category each answer is, float64, (n_rows, n_items * n_categories)."""
        values = torch.from_numpy(self.values).long()[:, :, None]
        return (values == torch.arange(self.n_categories)).flatten(1).double()

    def by_ability(self, items: ResponseFunction, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return derivatives of every row's log-likelihood by ability, at its ability (n_rows,).

        They are the gradient, and the observed and the expected information.
        """
        n_items, sums = self.values.shape[1], []
        size = max(1, BLOCK_CELLS // (n_items * self.n_categories))
        for rows, at in zip(self.one_hot.split(size), theta.split(size), strict=True):
            counts = rows.view(len(rows), n_items, -1).permute(1, 2, 0)
            first, second = items.by_ability(at, counts)
            expected = counts.sum(1) * items.information(at).T
            sums.append(torch.stack([first, -second, expected]).sum(1))
        gradient, observed, expected = torch.cat(sums, 1)
        return gradient, observed, expected

    def node_loglik(self, items: ResponseFunction, nodes: Tensor) -> Tensor:
        """Return log P(answers | node) for every row, (n_rows, n_nodes), in nats."""
        return self.one_hot @ items.log_probability(nodes).flatten(0, 1)

    def weighted(self, mean: Tensor, sd: Tensor, grid: QuadratureGrid) -> QuadratureGrid:
        """Return the grid with every row's own weights, those of its group's normal density."""
        log_density = -0.5 * ((grid.fine - mean[:, None]) / sd[:, None]) ** 2
        return replace(grid, log_weights=log_density.log_softmax(1)[self.group])


@dataclass(frozen=True)
class Layout:
    """Which estimate every parameter equals, and where estimates begin and may go.

    Parameters ("cells") are the items' values, row by row, then every group's mean of ability, then
    the logarithms of their standard deviations.
    """

    form: type[ResponseFunction]
    fixed: Tensor  # (n_cells,) values of the cells, used where they equal no estimate
    label: Tensor  # (n_cells,) number of the estimate, or -1
    kind: Tensor  # of every estimate: row of the items' values, n_kinds: mean, n_kinds + 1: log sd
    n_kinds: int  # rows of the items' values
    n_groups: int
    prior: list[Prior | None]  # by kind

    @property
    def n_estimates(self) -> int:
        """Number of free parameters."""
        return len(self.kind)

    @property
    def limits(self) -> Tensor:
        """Bound of every estimate, of either sign."""
        bound = torch.full((self.n_kinds + 2,), torch.inf, dtype=torch.float64)
        bound[0] = LARGEST_SLOPE
        bound[1 : self.n_kinds] = torch.tensor(self.form.limits(self.n_kinds))
        return bound[self.kind]

    def unpack(self, estimates: Tensor) -> tuple[ResponseFunction, Tensor, Tensor]:
        """Return items, and the groups' means and standard deviations of ability, (n_groups,)."""
        cells = torch.where(self.label >= 0, estimates[self.label], self.fixed)
        items, mean, log_sd = cells.split(
            [len(cells) - 2 * self.n_groups, self.n_groups, self.n_groups]
        )
        return self.form(items.view(self.n_kinds, -1)), mean, log_sd.exp()

    def averaged(self, cells: Tensor) -> Tensor:
        """Return estimates as means of the cells that equal them."""
        sums = torch.zeros(self.n_estimates + 1, dtype=cells.dtype)
        counts = torch.bincount(self.label + 1, minlength=self.n_estimates + 1)
        return (sums.index_add_(0, self.label + 1, cells) / counts)[1:]

    def log_prior(self, estimates: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the priors' log density with its first and second derivatives by the estimates.

        A beta density is that of an asymptote; a normal density of an asymptote is that of its
        logit, as in mirt.
        """
        value, first, second = 0.0, torch.zeros_like(estimates), torch.zeros_like(estimates)
        kind = self.kind
        for row, prior in enumerate(self.prior):
            if prior is None:
                continue
            chosen = kind == row
            x = estimates[chosen]
            if isinstance(prior, Beta):
                p, slope = x.sigmoid(), x.sigmoid() * (-x).sigmoid()
                one, two = prior.derivatives(p)
                one, two = one * slope, two * slope**2 + one * slope * (1 - 2 * p)
                value += float(prior.log_density(p).sum())
            else:
                one, two = prior.derivatives(x)
                value += float(prior.log_density(x).sum())
            first[chosen], second[chosen] = one, two
        return value, first, second


class CategoryEM(Expectation):
    """The E-step with one distribution of ability per group, and derivatives at its posteriors."""

    def __init__(self, answers: Answers, layout: Layout, settings: Settings) -> None:
        self.answers, self.layout, self.settings = answers, layout, settings
        self.count, self.grid, self.n_steps = answers.count, quadrature_grid(), 0

    def integrand(self, estimates: Tensor) -> tuple[Callable, Tensor, Callable, float]:
        """Return log-likelihood, slopes, the groups' densities of ability, and log prior."""
        items, mean, sd = self.layout.unpack(estimates)
        loglik_at = partial(self.answers.node_loglik, items)
        weighted = partial(self.answers.weighted, mean, sd)
        return loglik_at, items.values[0], weighted, self.layout.log_prior(estimates)[0]

    def derivatives(
        self, estimates: Tensor, n_polynomials: int = POLYNOMIALS
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradient, information of complete data and observed one, in the estimates.

        Call :meth:`expect` at the same estimates first. Few polynomials leave out some of the
        missing information.
        """
        layout, answers, grid = self.layout, self.answers, self.grid
        items, mean, sd = layout.unpack(estimates)
        n_kinds, n_groups, n_items = layout.n_kinds, layout.n_groups, answers.values.shape[1]
        basis = torch.zeros(len(layout.label), layout.n_estimates, dtype=torch.float64)
        free = (layout.label >= 0).nonzero().squeeze(1)
        basis[free, layout.label[free]] = 1
        of_items = basis[: n_kinds * n_items].view(n_kinds, n_items, -1)
        _, weights = fine_posterior(self.at_nodes, answers.weighted(mean, sd, grid))
        count = answers.count[:, None]
        hot, first = answers.one_hot, items.scores(grid.nodes)

        # Complete data: expected counts times derivatives, and times squares of first derivatives,
        # which is the information that never has the wrong sign.
        _, uphill, curvature = layout.log_prior(estimates)
        uphill, observed = uphill.clone(), torch.diag(-curvature)
        complete = torch.diag((-curvature).clamp_min(0))
        at_nodes = grid.at_nodes(weights) * count
        expected = (hot.T @ at_nodes).view(n_items, answers.n_categories, -1)
        uphill += torch.einsum("jcn,kjcn,kje->e", expected, first, of_items)
        squares = torch.einsum("jcn,kjcn,ljcn->klj", expected, first, first)
        for matrix, inner in (
            (observed, -items.curvature(grid.nodes, expected)),
            (complete, squares),
        ):
            turned = torch.einsum("klj,lje->kje", inner, of_items)
            matrix += of_items.flatten(0, 1).T @ turned.flatten(0, 1)

        # Abilities: derivatives of the groups' normal log densities by mean and log sd.
        z = (grid.fine - mean[answers.group, None]) / sd[answers.group, None]
        member = one_hot(answers.group, n_groups).double()
        of_mean, of_sd = (basis[-k * n_groups :][:n_groups] for k in (2, 1))
        scores = torch.stack([z / sd[answers.group, None], z**2 - 1])
        totals = (scores * (weights * count)).sum(2) @ member
        uphill += totals[0] @ of_mean + totals[1] @ of_sd
        size = member.T @ answers.count
        for of_moment, information in ((of_mean, size / sd**2), (of_sd, 2 * size)):
            inner = of_moment.T @ (of_moment * information[:, None])
            complete, observed = complete + inner, observed + inner

        # Missing information: posterior covariances of the scores. Absent asymptotes are no
        # estimates, and their derivatives too small for fast products.
        estimated = of_items.flatten(1).any(1).nonzero().flatten().tolist()

        def collect(of_answers: Iterable[Tensor], of_abilities: Tensor) -> Tensor:
            """Return every row's scores, (n_rows, n_estimates), from those of its answers."""
            total = torch.zeros(len(weights), layout.n_estimates, dtype=torch.float64)
            for kind, score in zip(estimated, of_answers, strict=True):
                total += (score * hot).view(len(hot), n_items, -1).sum(2) @ of_items[kind]
            by_mean, by_sd = of_abilities
            total += (by_mean[:, None] * member) @ of_mean + (by_sd[:, None] * member) @ of_sd
            return total * count.sqrt()

        def averaged(weighted: Tensor) -> Iterator[Tensor]:
            """Yield scores summed over the nodes with weights (n_rows, n_fine)."""
            at_items = grid.at_nodes(weighted)
            of_answers = (at_items @ first[kind].flatten(0, 1).T for kind in estimated)
            yield collect(of_answers, (scores * weighted).sum(2))

        def apart() -> Iterator[Tensor]:
            """Yield scores at a node less their expectations, by root weights."""
            mean_score = next(averaged(weights))
            for node, weight in enumerate(weights.T):
                of_answers = (first[kind][:, :, node].flatten() for kind in estimated)
                yield (collect(of_answers, scores[:, :, node]) - mean_score) * weight[
                    :, None
                ] ** 0.5

        by_node = apart if n_polynomials == POLYNOMIALS and grid.interpolation is None else None
        observed = observed - missing_information(
            weights, grid.fine, n_polynomials, averaged, by_node
        )
        return uphill, complete, observed


def climb(em: CategoryEM, estimates: Tensor) -> tuple[Tensor, float, bool]:
    """Climb to a maximum; return it, log-likelihood plus log prior, and whether it is one."""
    limits, damping = em.layout.limits, 1.0
    enough = min(ENOUGH, 10 * em.settings.tolerance**2)
    _, value = em.expect(estimates)
    while em.n_steps < em.settings.max_iterations:
        uphill, complete, observed = em.derivatives(estimates, STEP_POLYNOMIALS)
        # Estimates at their bounds stay there unless the gradient points inwards.
        moves = ~((estimates.abs() >= limits) & (uphill * estimates > 0))
        scale = moves * complete.diagonal().clamp_min(FLATTEST).rsqrt()
        curvature, vectors = torch.linalg.eigh(observed * scale * scale[:, None])
        # Where the information is not positive the step is turned uphill.
        curvature, vectors = curvature.abs().clamp_min(FLATTEST), scale[:, None] * vectors
        along = vectors.T @ uphill
        if float((along**2 / curvature).sum()) / 2 < enough:
            return estimates, value, True
        while True:
            step = vectors @ (along / (curvature + damping))
            trial = estimates + step.clamp(-LARGEST_STEP, LARGEST_STEP)
            trial = torch.minimum(torch.maximum(trial, -limits), limits)
            grid = em.grid
            _, reached = em.expect(trial)
            if em.grid is not grid:  # it was refined: values on two grids cannot be compared
                _, value = em.expect(estimates)
                _, reached = em.expect(trial)
            if reached > value:  # and a number
                break
            damping = max(4 * damping, LEAST_DAMPING)
            if damping > MOST_DAMPING:  # rounding decides
                em.expect(estimates)
                return estimates, value, float(uphill @ step) < ROUNDING
        damping = damping / 10 if damping > LEAST_DAMPING else 0.0
        estimates, value = trial, reached
        em.n_steps += 1
        if em.settings.progress:
            print(f"step {em.n_steps}: {value:.4f} nats, damping {damping:.2g}", file=sys.stderr)
    return estimates, value, False
