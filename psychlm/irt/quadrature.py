r"""Integrals over ability: one lattice of equally spaced nodes for every test length.

Ability is standard normal, and the rectangle rule on equally spaced nodes converges faster than any power of the step
for functions as smooth as these (Trefethen and Weideman 2014): with steps of one posterior standard deviation
its relative error is about 2 exp(-2 pi^2) = 5e-9. R's `mirt` uses the 61 nodes from -6 to 6, and so do we, where
posteriors are wide enough. A person who answered thousands of items has a posterior far narrower than its step of 0.2.
Items, though, stay as smooth as they were: a person's log-likelihood is a sum of functions that vary on the scale
1 / slope. So the items are evaluated at the lattice's *item nodes* only, and the sums are carried to a finer lattice
by local polynomial interpolation (8 points, degree 7), there exponentiated and normalised. The way back, from the fine
posterior to weights at the item nodes, is the transpose of the same matrix: expected counts stay exact for every
function that the interpolation reproduces. With a refinement of 1 the two lattices are one: nothing is interpolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STEP = 0.2  # with SPAN it makes 61 nodes: mirt's default for one factor
SPAN = 6.0  # in standard deviations of ability
EDGE_MASS = 1e-5  # posterior probability at the lattice's ends above which it is widened
COARSEST = (
    4 / 3
)  # posterior standard deviations between fine nodes; the error of a person's integral is 3e-5 there
STENCIL = 8  # nodes of the local polynomial


@dataclass(frozen=True)
class Lattice:
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


def lattice(
    step: float = STEP, refinement: int = 1, span: float = SPAN, device: torch.device | str = "cpu"
) -> Lattice:
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
    return Lattice(nodes, fine, log_weights, interpolation, step, refinement)


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


def posterior(node_loglik: Tensor, on: Lattice) -> Posterior:
    """Return every person's posterior, from log-likelihoods (n_persons, n_nodes) of the answers at the item nodes."""
    fine = fine_posterior(node_loglik, on)
    weights = fine.weights
    mean = weights @ on.fine
    variance = weights @ on.fine**2 - mean**2
    coarse = weights if on.interpolation is None else weights @ on.interpolation
    return Posterior(
        fine.loglik, coarse, mean, variance.clamp_min(0), weights[:, 0] + weights[:, -1]
    )


@dataclass(frozen=True)
class FinePosterior:
    """Posterior probabilities at the fine nodes."""

    loglik: Tensor  # (n_persons,)
    weights: Tensor  # (n_persons, n_fine), rows sum to 1


def fine_posterior(node_loglik: Tensor, on: Lattice) -> FinePosterior:
    """Return every person's posterior at the fine nodes; log-likelihoods as in :func:`posterior`."""
    joint = node_loglik if on.interpolation is None else node_loglik @ on.interpolation.T
    joint = joint + on.log_weights
    largest = joint.max(1, keepdim=True).values
    weights = (joint - largest).exp_()
    total = weights.sum(1, keepdim=True)
    return FinePosterior((largest + total.log()).squeeze(1), weights / total)


def better_lattice(on: Lattice, found: Posterior) -> Lattice:
    """Return a wider or finer lattice where a posterior asks for one, else the same."""
    if float(found.edge.max()) > EDGE_MASS:
        return lattice(on.step, on.refinement, on.span + 2, on.nodes.device)
    if float(found.variance.min()) ** 0.5 * COARSEST < on.fine_step:
        return lattice(on.step, on.refinement * 2, on.span, on.nodes.device)
    return on
