r"""The marginal likelihood of the responses, by quadrature over ability.

.. math::
    z_{ij} = a_j\theta_i + d_j, \qquad P_{ij} = c_j + (1 - c_j)\,\sigma(z_{ij}), \qquad
    L_i = \int \prod_j P_{ij}^{x_{ij}} (1 - P_{ij})^{1 - x_{ij}} \, \phi(\theta)\, d\theta .

The rectangle rule on equally spaced nodes converges faster than any power of the step (Trefethen
and Weideman 2014). Thousands of items make posteriors narrow, but stay smooth themselves: they are
evaluated at *item nodes* only, and the sums carried to a finer grid by local polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psychlm.irt.arrays import (
    device_of,
    log_sigmoid,
    namespace,
    on_device,
    sigmoids,
    zeros,
)
from psychlm.irt.priors import Prior
from psychlm.irt.response_functions import KINDS
from psychlm.irt.response_matrix import ResponseMatrix

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEP = 0.2  # with SPAN it makes 61 nodes: mirt's default for one factor
SPAN = 6.0  # in standard deviations of ability
EDGE_MASS = 1e-5  # posterior probability at the ends of the grid above which it is widened
QUADRATURE_ERROR = 5e-3  # nats, of the log-likelihood, from posteriors that are narrow
FINEST_STEP = STEP / 2**11
GRID_ERROR = 0.01  # nats: a finer grid that moves the log-likelihood by less changes nothing
SMALLEST_STEP = STEP / 16  # of grids that are refined for this reason
DIRECT_ITEMS = 300
STEEPEST = 3.0  # largest slope times step: a curve's integral is then off by exp(-2 pi^2 / 3)
STENCIL = 8  # nodes of the local polynomial
SMALLEST_P = 1e-100
LEAST_LOG_SHARE = -600.0  # of a posterior; exp() and products of smaller shares are 10 times slower
LARGEST_SLOPE = 50.0  # bound, per standard deviation of ability: a step rather than a curve


@dataclass(frozen=True)
class QuadratureGrid:
    """Equally spaced abilities in standard-normal units, and the weights to integrate with."""

    nodes: Tensor  # (n_nodes,), item nodes
    fine: Tensor  # (n_fine,), the nodes and the points interpolated between them
    log_weights: Tensor  # (n_fine,), log of step times the normal density
    interpolation: Tensor | None  # (n_fine, n_nodes); None where both grids are the same
    step: float
    refinement: int

    @property
    def span(self) -> float:
        """The largest node, in standard deviations of ability."""
        return float(self.nodes[-1])

    def at_nodes(self, fine_weights: Tensor) -> Tensor:
        """Return weights (n, n_fine) as weights at the item nodes, (n, n_nodes)."""
        return fine_weights if self.interpolation is None else fine_weights @ self.interpolation

    def halved(self) -> QuadratureGrid:
        """Return a grid of the same span with half the step; the fine one is fine enough."""
        refinement = max(1, self.refinement // 2)
        return quadrature_grid(self.step / 2, refinement, self.span, device_of(self.nodes))

    def __str__(self) -> str:
        nodes = f"{len(self.nodes)} equally spaced nodes on [{-self.span:g}, {self.span:g}]"
        text = f"{nodes} standard deviations"
        if self.refinement > 1:
            step = self.step / self.refinement
            text += f", log-likelihoods interpolated to {len(self.fine)} (step {step:.2g})"
        return text


def quadrature_grid(
    step: float = STEP,
    refinement: int = 1,
    span: float = SPAN,
    device: torch.device | str | None = "cpu",
) -> QuadratureGrid:
    """Return a grid of item nodes ``step`` apart, with ``refinement`` fine nodes to each."""
    half = math.ceil(span / step - 1e-9)
    nodes = step * np.arange(-half, half + 1.0)
    fine = step / refinement * np.arange(-half * refinement, half * refinement + 1.0)
    log_density = -0.5 * fine**2
    arrays = [nodes, fine, log_density - math.log(np.exp(log_density).sum())]
    interpolation = None
    if refinement > 1:
        # Lagrange's basis polynomials through the STENCIL nodes nearest to each fine node.
        position = np.arange(len(fine)) / refinement
        first = (np.floor(position).astype(int) - STENCIL // 2 + 1).clip(0, len(nodes) - STENCIL)
        offset = np.arange(STENCIL)
        distance = (position - first)[:, None] - offset  # (n_fine, STENCIL)
        matrix = np.zeros((len(fine), len(nodes)))
        for m in range(STENCIL):
            others = offset != m
            basis = (distance[:, others] / (m - offset[others])).prod(axis=1)
            matrix[np.arange(len(fine)), first + m] = basis
        interpolation = on_device(matrix, device)
    nodes, fine, log_weights = (on_device(each, device) for each in arrays)
    return QuadratureGrid(nodes, fine, log_weights, interpolation, step, refinement)


@dataclass(frozen=True)
class Posterior:
    """The posterior distribution of every person's ability, in standard-normal units."""

    loglik: Tensor  # (n_persons,), marginal log-likelihoods, nats
    weights: Tensor  # (n_persons, n_nodes), sum to 1; interpolated ones may be negative
    mean: Tensor  # (n_persons,)
    variance: Tensor  # (n_persons,)
    edge: Tensor  # (n_persons,), probability of the two outermost nodes


def fine_posterior(node_loglik: Tensor, grid: QuadratureGrid) -> tuple[Tensor, Tensor]:
    """Return marginal log-likelihoods (n_persons,) and posteriors (n_persons, n_fine)."""
    interpolation = grid.interpolation
    joint = node_loglik if interpolation is None else node_loglik @ interpolation.T
    joint = joint + grid.log_weights
    if getattr(joint, "requires_grad", False):
        return joint.logsumexp(1), joint.softmax(1)
    # In place, since these are the largest arrays of a fit.
    xp = namespace(joint)
    largest = xp.amax(joint, 1, keepdims=True)
    joint -= largest
    joint = xp.clip(joint, LEAST_LOG_SHARE, None, out=joint)
    shares = xp.exp(joint, out=joint)
    total = shares.sum(1, keepdims=True)
    shares /= total
    return (largest + xp.log(total))[:, 0], shares


def integrate(node_loglik: Tensor, grid: QuadratureGrid) -> Posterior:
    """Return every person's posterior from log-likelihoods (n_persons, n_nodes) at the nodes."""
    loglik, weights = fine_posterior(node_loglik, grid)
    mean, square = (weights @ namespace(weights).stack([grid.fine, grid.fine**2], 1)).T
    variance = (square - mean**2).clip(0)
    edge = weights[:, 0] + weights[:, -1]
    return Posterior(loglik, grid.at_nodes(weights), mean, variance, edge)


def refined_grid(
    grid: QuadratureGrid,
    posterior: Posterior,
    count: Tensor,
    n_items: int,
    tolerance: float = QUADRATURE_ERROR,
) -> QuadratureGrid:
    """Return a wider or finer grid where posteriors ask for one, else the same grid.

    The rectangle rule with step h is off by about 2 exp(-2 pi^2 sd^2 / h^2) for a posterior of
    standard deviation sd; summed over persons the log-likelihood may be off by ``tolerance`` nats.
    Up to DIRECT_ITEMS items are evaluated at all nodes; more of them are interpolated.
    """
    device = device_of(grid.nodes)
    fine_step = grid.step / grid.refinement
    if float(posterior.edge.max()) > EDGE_MASS:
        return quadrature_grid(grid.step, grid.refinement, grid.span + 2, device)
    exponent = -2 * math.pi**2 * posterior.variance / fine_step**2
    error = float(2 * namespace(exponent).exp(exponent) @ count)
    if not error > tolerance or fine_step <= FINEST_STEP:
        return grid
    if n_items <= DIRECT_ITEMS and grid.refinement == 1:
        return grid.halved()
    return quadrature_grid(grid.step, grid.refinement * 2, grid.span, device)


@dataclass(frozen=True)
class Parameters:
    """Item parameters in slope-intercept form; ability is standard normal."""

    slope: Tensor  # (n_items,) float64, per standard deviation of ability
    intercept: Tensor  # (n_items,) logits at ability 0
    guessing: Tensor  # (n_items,) probability

    def table(self) -> Tensor:
        """Return all parameters as (3, n_items); ``Parameters(*table)`` is the way back."""
        return namespace(self.slope).stack([self.slope, self.intercept, self.guessing])

    def __getitem__(self, items: slice) -> Parameters:
        return Parameters(self.slope[items], self.intercept[items], self.guessing[items])

    def __sub__(self, others: Parameters) -> Tensor:
        """Return how far the parameters are from others, (3, n_items)."""
        return self.table() - others.table()

    def logits(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return z (n_items, n_nodes), and c as a column (n_items, 1)."""
        z = namespace(nodes).outer(self.slope, nodes) + self.intercept[:, None]
        return z, self.guessing[:, None]


@dataclass(frozen=True)
class Design:
    """Which parameters are free, and the priors on them."""

    common_slope: bool  # 1PL, and the Rasch model in standard-normal units
    guessing_free: Tensor  # (n_items,) bool
    priors: dict[str, Prior]
    common_guessing: bool = False  # one free guessing parameter for all items
    largest_slope: float = LARGEST_SLOPE  # bound on slopes of either sign

    def free(self) -> Tensor:
        """Return which of (slope, intercept, guessing) are estimated, shape (3, n_items)."""
        always = self.guessing_free | True
        return namespace(always).stack([always, always, self.guessing_free])

    def free_by_item(self) -> Tensor:
        """Return which parameters an item has for itself, shape (3, n_items)."""
        free = self.free()
        free[0] &= not self.common_slope
        free[2] &= not self.common_guessing
        return free

    def log_prior(self, parameters: Parameters) -> float:
        """Return the log density of the priors, in nats."""
        if not self.priors:
            return 0.0
        return float(self.prior_density(parameters.table(), self.free()).sum())

    def prior_density(self, table: Tensor, free: Tensor) -> Tensor:
        """Return the priors' log density by item, (n_items,).

        ``table`` holds slopes, intercepts (and guessing) by row, of which ``free`` ones count.
        """
        xp = namespace(table)
        total = zeros(table, table.shape[1])
        for row, name in enumerate(KINDS[: len(table)]):
            if name in self.priors:
                total += xp.where(free[row], self.priors[name].log_density(table[row]), 0.0)
        return total

    def prior_derivatives(self, table: Tensor, free: Tensor) -> Tensor:
        """Return first and second derivatives of the log density, (2, n_kinds, n_items)."""
        xp = namespace(table)
        derivatives = zeros(table, 2, *table.shape)
        for row, name in enumerate(KINDS[: len(table)]):
            if name in self.priors:
                values = xp.stack(self.priors[name].derivatives(table[row]))
                derivatives[:, row] = xp.where(free[row], values, 0.0)
        return derivatives


def bounded(parameters: Parameters, largest: float) -> Parameters:
    """Return the parameters with no slope beyond the largest; curves keep their location."""
    factor = (largest / abs(parameters.slope)).clip(None, 1.0)
    slope = parameters.slope.clip(-largest, largest)
    return replace(parameters, slope=slope, intercept=parameters.intercept * factor)


def rescaled(parameters: Parameters, mean: Tensor, sd: Tensor) -> Parameters:
    """Return the same curves on a scale on which N(mean, sd^2) has become N(0, 1)."""
    intercept = parameters.intercept + parameters.slope * mean
    return replace(parameters, slope=parameters.slope * sd, intercept=intercept)


def log_probabilities(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return log P and log Q at logits z with guessing c; exact where P is tiny."""
    xp = namespace(z)
    log_q = log_sigmoid(-z)
    log_p = log_q + z
    if (c > 0).any():
        log_p = xp.where(c > 0, xp.log(c + (1 - c) * xp.exp(log_p)), log_p)
    return log_p, xp.log1p(-c) + log_q


class CellDerivatives(NamedTuple):
    """Derivatives of a response's log-likelihood by its logit z and its guessing parameter c."""

    z: Tensor
    c: Tensor
    zz: Any = None  # where only the first derivatives were asked for
    zc: Any = None
    cc: Any = None


def cell_derivatives(
    z: Tensor, c: Tensor, second: bool = True
) -> tuple[CellDerivatives, CellDerivatives]:
    """Return the derivatives of log P and of log Q.

    P = c + (1 - c) s(z), with s the logistic function, and 1 - P = (1 - c) (1 - s(z)).
    """
    xp = namespace(z)
    s, rest = sigmoids(z)
    # Far below a steep item's difficulty P and a person's weight vanish; 1 / P^2 stays finite.
    p_c = rest / (c + (1 - c) * s).clip(SMALLEST_P)
    p_z = (1 - c) * s * p_c
    q_c = xp.broadcast_to(-1 / (1 - c), s.shape)
    if not second:
        return CellDerivatives(p_z, p_c), CellDerivatives(-s, q_c)
    p_zz = p_z * (rest - s) - p_z**2
    return (
        CellDerivatives(p_z, p_c, p_zz, -s * p_c - p_z * p_c, -(p_c**2)),
        CellDerivatives(-s, q_c, -s * rest, xp.zeros_like(s), -(q_c**2)),
    )


def item_matrices(zz: Tensor, zc: Tensor, cc: Tensor, nodes: Tensor) -> Tensor:
    """Return matrices by slope, intercept and guessing, (n_items, 3, 3), summed over the nodes.

    The arguments are their entries at the nodes by logit and guessing, (n_items, n_nodes).
    """
    xp = namespace(nodes)
    powers = xp.stack([nodes**2, nodes, xp.ones_like(nodes)], 1)
    zz = zz @ powers
    zc = zc @ powers[:, 1:]
    cc = cc.sum(1)
    cells = [zz[:, 0], zz[:, 1], zc[:, 0], zz[:, 1], zz[:, 2], zc[:, 1], zc[:, 0], zc[:, 1], cc]
    return xp.stack(cells, 1).reshape(-1, 3, 3)


def node_loglik(responses: ResponseMatrix, parameters: Parameters, nodes: Tensor) -> Tensor:
    """Return log P(responses | node) for every distinct row, shape (n_rows, n_nodes), in nats."""
    xp = namespace(nodes)
    shared = zeros(nodes, len(nodes))
    total: Any = None  # in the memory of the first product: nothing of a fit is larger
    linear: Any = None

    def add(term: Tensor) -> None:
        nonlocal total
        if total is None:
            total = term
        else:
            total += term

    for block in responses.blocks():
        part = parameters[block.items]
        z, c = part.logits(nodes)
        if (c > 0).any():
            log_p, log_q = log_probabilities(z, c)
            add(block.correct @ (log_p - log_q))
        else:  # log P - log Q is the logit
            log_q = log_sigmoid(-z)
            sums = block.correct @ xp.stack([part.slope, part.intercept], 1)
            linear = sums if linear is None else linear + sums
        if block.answered is None:
            shared += log_q.sum(0)
        else:
            add(block.answered @ log_q)
    if linear is not None:
        add(linear @ xp.stack([nodes, xp.ones_like(nodes)]))
    add(shared)
    return total


def steep_enough(grid: QuadratureGrid, slope: Tensor) -> QuadratureGrid:
    """Return a grid on which no curve is a step between two nodes, whose place would not matter."""
    while grid.step * float(abs(slope).max()) > STEEPEST:
        grid = grid.halved()
    return grid


def resolve(
    loglik_at: Callable[[Tensor], Tensor],
    slope: Tensor,
    count: Tensor,
    grid: QuadratureGrid,
    tolerance: float = QUADRATURE_ERROR,
    weighted: Callable[[QuadratureGrid], QuadratureGrid] = lambda grid: grid,
) -> tuple[QuadratureGrid, Tensor, Posterior]:
    """Return a grid that resolves every posterior, log-likelihoods at its nodes, and posteriors.

    ``loglik_at`` gives log P(responses | nodes), (n_rows, n_nodes); ``weighted`` a grid with the
    weights of another distribution of ability than N(0, 1).
    """
    grid = steep_enough(grid, slope)
    at_nodes = loglik_at(grid.nodes)
    while True:
        posterior = integrate(at_nodes, weighted(grid))
        better = refined_grid(grid, posterior, count, len(slope), tolerance)
        if better is grid:
            return grid, at_nodes, posterior
        if len(better.nodes) > len(grid.nodes):
            at_nodes = loglik_at(better.nodes)
        grid = better
