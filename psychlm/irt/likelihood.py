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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from psychlm.irt.arrays import device_of, log_sigmoid, namespace, on_device, zeros
from psychlm.irt.response_functions import Logistic, ResponseFunction
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


def node_loglik(responses: ResponseMatrix, items: ResponseFunction, nodes: Tensor) -> Tensor:
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
        part = items.of_items(block.items)
        if isinstance(part, Logistic) and len(part.values) == 2:  # log P - log Q is the logit
            lowest = log_sigmoid(-part.logits(nodes))
            sums = block.correct @ part.values.T
            linear = sums if linear is None else linear + sums
        else:
            lowest, *others = part.log_probability(nodes).swapaxes(0, 1)
            for chosen, log_p in zip(block.categories, others, strict=True):
                add(chosen @ (log_p - lowest))
        if block.answered is None:
            shared += lowest.sum(0)
        else:
            add(block.answered @ lowest)
    if linear is not None:
        add(linear @ xp.stack([nodes, xp.ones_like(nodes)]))
    add(shared)
    return total


def item_gradient(
    responses: ResponseMatrix, items: ResponseFunction, weights: Tensor, nodes: Tensor
) -> Tensor:
    """Return derivatives of the items' log-likelihoods by all parameters, (n_rows, n_items).

    They are summed over persons and nodes, with ``weights`` (n_persons, n_nodes).
    """
    by_item = []
    for block in responses.blocks():
        part = items.of_items(block.items)
        by_item.append(part.gradient(part.expected_answers(block, weights, nodes), nodes))
    return namespace(weights).concatenate(by_item, 1)


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


class Expectation:
    """The E-step of a data set: posteriors of ability, on a grid that resolves them.

    Parameters are the items, and ability is N(0, 1), unless a subclass says otherwise.
    """

    quadrature_error = QUADRATURE_ERROR  # nats, of the grid

    def __init__(self, responses: ResponseMatrix) -> None:
        self.responses = responses
        self.count = responses.count  # (n_rows,) persons
        self.grid = quadrature_grid(device=responses.device)

    def items(self, parameters: Any) -> ResponseFunction:
        """Return the items with these parameters."""
        return parameters

    def density(self, parameters: Any) -> Callable[[QuadratureGrid], QuadratureGrid]:
        """Return what weights a grid with the density of ability."""
        return lambda grid: grid

    def log_prior(self, parameters: Any) -> Tensor | float:
        """Return the log density of the priors, in nats."""
        return 0.0

    def expect(self, parameters: Any) -> tuple[Posterior, float]:
        """Return posteriors and log-likelihood plus log prior; refine the grid where needed."""
        items = self.items(parameters)
        loglik_at = partial(node_loglik, self.responses, items)
        weighted = self.density(parameters)
        self.grid, _, posterior = resolve(
            loglik_at, items.steepness, self.count, self.grid, self.quadrature_error, weighted
        )
        return posterior, float(posterior.loglik @ self.count + self.log_prior(parameters))

    def grid_error(self, parameters: Any, objective: float) -> float:
        """Return by how many nats the objective moves on a grid of half the step."""
        finer = self.grid.halved()
        at_nodes = node_loglik(self.responses, self.items(parameters), finer.nodes)
        posterior = integrate(at_nodes, self.density(parameters)(finer))
        value = float(posterior.loglik @ self.count + self.log_prior(parameters))
        return abs(value - objective)
