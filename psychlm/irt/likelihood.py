r"""Log-likelihoods of answers at the nodes of a lattice, as matrix products over blocks of items.

Slope-intercept inside: with :math:`z = a\theta + d` and :math:`P = c + (1 - c)\,\sigma(z)` a person's
log-likelihood is :math:`\sum_j x_j (\log P_j - \log Q_j) + \sum_j \log Q_j`. Without guessing
:math:`\log P - \log Q = z`, and the first sum is :math:`\theta \sum_j x_j a_j + \sum_j x_j d_j`: two numbers a person,
however fine the lattice; and where nobody skipped an item the second sum is the same for everyone. The 2PL on complete
answers therefore costs no product of three sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.irt.priors import Prior
from psychlm.irt.response_matrix import ResponseMatrix

STEP = 0.2  # with SPAN it makes 61 nodes: mirt's default for one factor
SPAN = 6.0  # in standard deviations of ability
EDGE_MASS = 1e-5  # posterior probability at the lattice's ends above which it is widened
RUNAWAY_SLOPE = (
    30.0  # per standard deviation of ability: a step, not a curve, and on its way to infinity
)
COARSEST = (
    4 / 3
)  # posterior standard deviations between fine nodes; the error of a person's integral is 3e-5 there
STENCIL = 8  # nodes of the local polynomial


@dataclass(frozen=True)
class QuadratureGrid:
    """Equally spaced abilities in standard-normal units, and the rule that integrates over them."""

    nodes: Tensor  # (n_nodes,), item nodes
    fine: Tensor  # (n_fine,), the nodes and what lies between them
    log_weights: Tensor  # (n_fine,), log of step times the normal density
    interpolation: Tensor | None  # (n_fine, n_nodes); None where both lattices are one
    step: float
    refinement: int

    @property
    def span(self) -> float:
        """The largest node, in standard deviations of ability."""
        return float(self.nodes[-1])

    @property
    def fine_step(self) -> float:
        """The distance of neighbouring fine nodes, in standard deviations of ability."""
        return self.step / self.refinement

    def __str__(self) -> str:
        text = f"{len(self.nodes)} equally spaced nodes on [{-self.span:g}, {self.span:g}] standard deviations"
        if self.refinement > 1:
            text += (
                f", log-likelihoods interpolated to {len(self.fine)} (step {self.fine_step:.2g})"
            )
        return text


def quadrature_grid(
    step: float = STEP, refinement: int = 1, span: float = SPAN, device: torch.device | str = "cpu"
) -> QuadratureGrid:
    """Lay a lattice of item nodes ``step`` apart over [-span, span], with ``refinement`` fine nodes to each of them."""
    half = math.ceil(span / step - 1e-9)
    nodes = step * torch.arange(-half, half + 1, dtype=torch.float64, device=device)
    fine_half = half * refinement
    fine = (
        step
        / refinement
        * torch.arange(-fine_half, fine_half + 1, dtype=torch.float64, device=device)
    )
    log_weights = -0.5 * fine**2
    log_weights = log_weights - torch.logsumexp(log_weights, 0)
    interpolation = _lagrange(len(nodes), refinement, device) if refinement > 1 else None
    return QuadratureGrid(nodes, fine, log_weights, interpolation, step, refinement)


def _lagrange(n_nodes: int, refinement: int, device: torch.device | str) -> Tensor:
    """Return the matrix (n_fine, n_nodes) that interpolates by the polynomial through the nearest nodes."""
    n_fine = (n_nodes - 1) * refinement + 1
    position = torch.arange(n_fine, dtype=torch.float64, device=device) / refinement
    first = (position.floor().long() - STENCIL // 2 + 1).clamp(0, n_nodes - STENCIL)
    offset = torch.arange(STENCIL, device=device)
    distance = (position - first)[:, None] - offset  # (n_fine, STENCIL)
    basis = torch.ones_like(distance)
    for m in range(STENCIL):
        others = offset != m
        basis[:, m] = (distance[:, others] / (offset[m] - offset[others])).prod(1)
    return torch.zeros(n_fine, n_nodes, dtype=torch.float64, device=device).scatter_(
        1, first[:, None] + offset, basis
    )


@dataclass(frozen=True)
class Posterior:
    """What the answers say about every person's ability (standard-normal units)."""

    loglik: Tensor  # (n_persons,), marginal log-likelihoods, nats
    weights: Tensor  # (n_persons, n_nodes), at the item nodes; rows sum to 1 (single ones may be negative, if interpolated)
    mean: Tensor  # (n_persons,)
    variance: Tensor  # (n_persons,)
    edge: Tensor  # (n_persons,), probability at the two outermost nodes: near 0, or the lattice is too short


def integrate(node_loglik: Tensor, grid: QuadratureGrid) -> Posterior:
    """Return every person's posterior, from log-likelihoods (n_persons, n_nodes) of the answers at the item nodes."""
    fine = fine_posterior(node_loglik, grid)
    weights = fine.weights
    mean = weights @ grid.fine
    variance = weights @ grid.fine**2 - mean**2
    coarse = weights if grid.interpolation is None else weights @ grid.interpolation
    return Posterior(
        fine.loglik, coarse, mean, variance.clamp_min(0), weights[:, 0] + weights[:, -1]
    )


@dataclass(frozen=True)
class FinePosterior:
    """Posterior probabilities at the fine nodes."""

    loglik: Tensor  # (n_persons,)
    weights: Tensor  # (n_persons, n_fine), rows sum to 1


def fine_posterior(node_loglik: Tensor, grid: QuadratureGrid) -> FinePosterior:
    """Return every person's posterior at the fine nodes; log-likelihoods as in :func:`posterior`."""
    joint = node_loglik if grid.interpolation is None else node_loglik @ grid.interpolation.T
    joint = joint + grid.log_weights
    largest = joint.max(1, keepdim=True).values
    weights = (joint - largest).exp_()
    total = weights.sum(1, keepdim=True)
    return FinePosterior((largest + total.log()).squeeze(1), weights / total)


def refined_grid(grid: QuadratureGrid, found: Posterior) -> QuadratureGrid:
    """Return a wider or finer lattice where a posterior asks for one, else the same."""
    if float(found.edge.max()) > EDGE_MASS:
        return quadrature_grid(grid.step, grid.refinement, grid.span + 2, grid.nodes.device)
    if float(found.variance.min()) ** 0.5 * COARSEST < grid.fine_step:
        return quadrature_grid(grid.step, grid.refinement * 2, grid.span, grid.nodes.device)
    return grid


@dataclass(frozen=True)
class Parameters:
    """Item parameters in slope-intercept form; ability is standard normal."""

    slope: Tensor  # (n_items,) float64, per standard deviation of ability
    intercept: Tensor  # (n_items,) logits at ability 0
    guessing: Tensor  # (n_items,) probability

    def vector(self) -> Tensor:
        """Return all parameters in one vector (3 n_items,)."""
        return torch.cat([self.slope, self.intercept, self.guessing])

    @classmethod
    def of(cls, vector: Tensor) -> Parameters:
        """Take the vector apart again."""
        return cls(*vector.view(3, -1))

    def __getitem__(self, items: slice) -> Parameters:
        return Parameters(self.slope[items], self.intercept[items], self.guessing[items])


@dataclass(frozen=True)
class Design:
    """Which parameters are free, and the priors on them."""

    common_slope: bool  # 1PL, and the Rasch model in standard-normal units
    guessing_free: Tensor  # (n_items,) bool
    priors: dict[str, Prior]

    def log_prior(self, parameters: Parameters) -> float:
        """Return the log density of the priors, in nats."""
        values = {
            "slope": parameters.slope,
            "intercept": parameters.intercept,
            "guessing": parameters.guessing[self.guessing_free],
        }
        return float(
            sum(prior.log_density(values[name]).sum() for name, prior in self.priors.items())
        )


def node_loglik(answers: ResponseMatrix, parameters: Parameters, nodes: Tensor) -> Tensor:
    """Return log P(answers | node) for every distinct row of answers, shape (n_rows, n_nodes), in nats."""
    total = torch.zeros(len(answers.values), len(nodes), dtype=torch.float64, device=nodes.device)
    sums = torch.zeros(len(answers.values), 2, dtype=torch.float64, device=nodes.device)
    shared = torch.zeros(len(nodes), dtype=torch.float64, device=nodes.device)
    for block in answers.blocks():
        part = parameters[block.items]
        z = torch.outer(part.slope, nodes) + part.intercept[:, None]
        log_q = logsigmoid(-z)
        if (part.guessing > 0).any():
            log_p, log_q = log_probabilities(z, log_q, part.guessing[:, None])
            total.addmm_(block.correct, log_p - log_q)
        else:
            sums.addmm_(block.correct, torch.stack([part.slope, part.intercept], 1))
        if block.answered is None:
            shared += log_q.sum(0)
        else:
            total.addmm_(block.answered, log_q)
    return total.addmm_(sums, torch.stack([nodes, torch.ones_like(nodes)])).add_(shared)


def resolved_posterior(
    answers: ResponseMatrix, parameters: Parameters, grid: QuadratureGrid
) -> tuple[QuadratureGrid, Tensor, Posterior]:
    """Return all posteriors, on a lattice widened and refined until it resolves each, and log-likelihoods on it."""
    at_nodes = node_loglik(answers, parameters, grid.nodes)
    found = integrate(at_nodes, grid)
    while (wanted := refined_grid(grid, found)) is not grid:
        if wanted.span > grid.span:
            at_nodes = node_loglik(answers, parameters, wanted.nodes)
        grid, found = wanted, integrate(at_nodes, wanted)
    return grid, at_nodes, found


def log_probabilities(z: Tensor, log_q: Tensor, guessing: Tensor) -> tuple[Tensor, Tensor]:
    """Return log P and log Q with guessing, from the logits and log Q without; exact where P is tiny."""
    known = torch.log1p(-guessing)
    return torch.logaddexp(guessing.log(), known + log_q + z), known + log_q


@dataclass(frozen=True)
class CellDerivatives:
    """Derivatives of one answer's log-likelihood by its logit z and its guessing parameter c; all of one shape."""

    z: Tensor
    c: Tensor
    zz: Tensor
    zc: Tensor
    cc: Tensor


def log_p_derivatives(z: Tensor, c: Tensor) -> CellDerivatives:
    """Return the derivatives of log P = log(c + (1 - c) s(z)), with s the logistic function."""
    s, rest = torch.sigmoid(z), torch.sigmoid(-z)
    p = c + (1 - c) * s
    by_c = rest / p
    by_z = (1 - c) * s * by_c
    return CellDerivatives(
        by_z, by_c, by_z * (rest - s) - by_z**2, -s * by_c - by_z * by_c, -(by_c**2)
    )


def log_q_derivatives(z: Tensor, c: Tensor) -> CellDerivatives:
    """Return the derivatives of log Q = log(1 - c) + log(1 - s(z))."""
    s = torch.sigmoid(z)
    by_c = (-1 / (1 - c)).expand_as(s)
    return CellDerivatives(-s, by_c, -s * torch.sigmoid(-z), torch.zeros_like(s), -(by_c**2))


def gradient(
    answers: ResponseMatrix, design: Design, parameters: Parameters, grid: QuadratureGrid
) -> Tensor:
    """Return the gradient of log-likelihood plus log prior by slope, intercept and guessing, shape (n_items, 3)."""
    weights = (
        integrate(node_loglik(answers, parameters, grid.nodes), grid).weights
        * answers.count[:, None]
    )
    parts = []
    for block in answers.blocks():
        part = parameters[block.items]
        z, c = torch.outer(part.slope, grid.nodes) + part.intercept[:, None], part.guessing[:, None]
        right, off = log_p_derivatives(z, c), log_q_derivatives(z, c)
        correct = block.correct.T @ weights
        wrong = (weights.sum(0) if block.answered is None else block.answered.T @ weights) - correct
        by_logit = correct * right.z + wrong * off.z
        by_guessing = correct * right.c + wrong * off.c
        parts.append(torch.stack([by_logit @ grid.nodes, by_logit.sum(1), by_guessing.sum(1)], 1))
    result = torch.cat(parts)
    for column, (name, value) in enumerate(vars(parameters).items()):
        if name in design.priors:
            free = (
                design.guessing_free
                if name == "guessing"
                else torch.ones_like(design.guessing_free)
            )
            result[free, column] += design.priors[name].derivatives(value[free])[0]
    return result


def parameter_frame(parameters: Parameters, names: pd.Index) -> pd.DataFrame:
    """Return a, b, c and d by item."""
    a, d, c = (
        value.cpu().numpy()
        for value in (parameters.slope, parameters.intercept, parameters.guessing)
    )
    b = (-parameters.intercept / parameters.slope).cpu().numpy()
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": d}, index=names)


def rescaled(parameters: Parameters, mean: Tensor, sd: Tensor) -> Parameters:
    """Return the same curves on an ability scale whose N(mean, sd^2) has become N(0, 1)."""
    return replace(
        parameters,
        slope=parameters.slope * sd,
        intercept=parameters.intercept + parameters.slope * mean,
    )
