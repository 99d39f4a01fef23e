r"""Gaussian factors of a variational posterior, and the populations that their units come from.

A population is :math:`N(m, u^{-1})` with :math:`m \sim N(0, 10^6)` and :math:`u \sim \Gamma(1, 1)`, whose own factors
are again a Gaussian and a gamma (the hierarchical priors of Lalor 2020, section 1.3.3); or a normal density that is
fixed; or one whose mean and variance are estimated as points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

MEAN_VARIANCE = 1e6  # of m
LARGEST_STEP = 1.0  # logits (or per logit), of one update of a mean


class Affine(NamedTuple):
    """The map x -> turn x + shift."""

    turn: Tensor  # (k, k)
    shift: Tensor  # (k,)


class Natural(NamedTuple):
    """A Gaussian's natural parameters, n at once; those of a product of Gaussians are their sum."""

    precision: Tensor  # (n, k, k)
    linear: Tensor  # (n, k), precision times mean

    def moved(self, by: Affine) -> Natural:
        """Return the natural parameters of the same Gaussians on another scale."""
        back = torch.linalg.inv(by.turn)
        precision = back.T @ self.precision @ back
        return Natural(precision, self.linear @ back + precision @ by.shift)


@dataclass(frozen=True)
class Population:
    """What is known of the population that units come from."""

    kind: str  # "hierarchical", "fixed" or "estimated"
    mean: float = 0.0
    precision: float = 1.0  # E[u]
    mean_variance: float = 0.0  # of the factor of m
    shape: float = 1.0  # of the gamma factor of u
    rate: float = 1.0

    @property
    def log_precision(self) -> float:
        """E[log u]."""
        if self.kind == "hierarchical":
            return float(torch.digamma(torch.tensor(self.shape, dtype=torch.float64))) - math.log(
                self.rate
            )
        return math.log(self.precision)

    def learnt(self, mean: Tensor, variance: Tensor, weight: Tensor) -> Population:
        """Return the population that fits units (means and variances (n,), each ``weight`` times) best."""
        n, total = float(weight.sum()), float(weight @ mean)
        if self.kind == "fixed":
            return self
        if self.kind == "estimated":
            centre = total / n
            return replace(
                self, mean=centre, precision=n / float(weight @ (variance + (mean - centre) ** 2))
            )
        known = 1 / MEAN_VARIANCE + n * self.precision
        centre = self.precision * total / known
        spread = float(weight @ (variance + (mean - centre) ** 2)) + n / known
        shape, rate = 1 + n / 2, 1 + spread / 2
        return Population(self.kind, centre, shape / rate, 1 / known, shape, rate)

    def profile(self, n: float, total: float, squares: float) -> float:
        """Return the bound, up to a constant, from sums of E[x] and E[x^2] over n units; populations at their best."""
        if self.kind == "fixed":
            return -0.5 * self.precision * (squares - 2 * self.mean * total + n * self.mean**2)
        spread = squares - total**2 / n
        return (
            -(1 + n / 2) * math.log(1 + spread / 2)
            if self.kind == "hierarchical"
            else -n / 2 * math.log(spread)
        )

    def bound(self, mean: Tensor, variance: Tensor, weight: Tensor) -> float:
        """Return the expected log density of units, minus the divergence of the population's own factors, in nats."""
        n = float(weight.sum())
        spread = float(weight @ (variance + (mean - self.mean) ** 2)) + n * self.mean_variance
        of_units = (
            0.5 * n * (self.log_precision - math.log(2 * math.pi)) - 0.5 * self.precision * spread
        )
        if self.kind != "hierarchical":
            return of_units
        second = (self.mean**2 + self.mean_variance) / MEAN_VARIANCE
        of_mean = 0.5 * (1 + math.log(self.mean_variance / MEAN_VARIANCE) - second)
        digamma = self.log_precision + math.log(self.rate)
        entropy = (
            self.shape - math.log(self.rate) + math.lgamma(self.shape) + (1 - self.shape) * digamma
        )
        return of_units + of_mean + entropy - self.precision  # log Gamma(u; 1, 1) = -u


@dataclass
class Factor:
    """Independent Gaussians, one a unit (a person or an item); updated in place."""

    mean: Tensor  # (n, k)
    covariance: Tensor  # (n, k, k)
    weight: Tensor  # (n,), how many units a row stands for
    populations: list[Population]  # k of them, one a column

    def update(self, at: slice, sites: Natural) -> None:
        """Combine what the answers say of some units with their population; means move by ``LARGEST_STEP`` at most."""
        prior, centre = (
            torch.tensor(
                [getattr(p, name) for p in self.populations],
                dtype=torch.float64,
                device=self.mean.device,
            )
            for name in ("precision", "mean")
        )
        covariance = torch.linalg.inv(sites.precision + torch.diag(prior))
        wanted = torch.einsum("nij,nj->ni", covariance, sites.linear + prior * centre)
        self.mean[at] += (wanted - self.mean[at]).clamp(-LARGEST_STEP, LARGEST_STEP)
        self.covariance[at] = covariance

    def move(self, by: Affine) -> None:
        """Carry the units to another scale."""
        self.mean = self.mean @ by.turn.T + by.shift
        self.covariance = by.turn @ self.covariance @ by.turn.T

    def variances(self) -> Tensor:
        """Return the variances (n, k)."""
        return torch.diagonal(self.covariance, dim1=1, dim2=2)

    def learn(self) -> None:
        """Update the populations."""
        variances = self.variances()
        self.populations = [
            p.learnt(self.mean[:, k], variances[:, k], self.weight)
            for k, p in enumerate(self.populations)
        ]

    def bound(self) -> float:
        """Return this factor's part of the evidence lower bound, in nats: minus its divergence from the prior."""
        variances = self.variances()
        prior = sum(
            p.bound(self.mean[:, k], variances[:, k], self.weight)
            for k, p in enumerate(self.populations)
        )
        entropy = 0.5 * torch.logdet(2 * math.pi * math.e * self.covariance)
        return prior + float(self.weight @ entropy)


def best_scale(persons: Factor, items: Factor) -> tuple[Affine, Affine]:
    r"""Return how persons and items move to the scale of ability that suits the priors best.

    The likelihood knows no scale: with :math:`\theta \to (\theta - \mu) / \sigma`, :math:`a \to \sigma a` and
    :math:`d \to d + \mu a` every logit stays what it was, and Gaussians stay Gaussian. Updates of persons and items in
    turn would creep along this ridge. Where all slopes are 1, only :math:`\mu` moves.
    """
    n, n_items, free = float(persons.weight.sum()), len(items.mean), items.mean.shape[1] == 2
    total, squares = _sums(persons)
    second = (
        (items.covariance + items.mean[:, :, None] * items.mean[:, None, :]).sum(0).cpu().numpy()
    )
    first = items.mean.sum(0).cpu().numpy()
    if not free:  # slopes of 1
        second = np.array([[n_items, first[0]], [first[0], second[0, 0]]])
        first = np.array([n_items, first[0]])

    def objective(move: np.ndarray) -> float:
        mu, log_sd = move[0], move[1] if free else 0.0
        sd = math.exp(log_sd)
        value = persons.populations[0].profile(
            n, (total - n * mu) / sd, (squares - 2 * mu * total + n * mu**2) / sd**2
        )
        value += items.populations[-1].profile(
            n_items,
            first[1] + mu * first[0],
            second[1, 1] + 2 * mu * second[0, 1] + mu**2 * second[0, 0],
        )
        if free:
            value += items.populations[0].profile(n_items, sd * first[0], sd**2 * second[0, 0])
            value += (n_items - n) * log_sd  # entropies
        return -value

    mu, log_sd = (*minimize(objective, np.zeros(2 if free else 1)).x, 0.0)[:2]
    sd = math.exp(log_sd)
    move = partial(torch.tensor, dtype=torch.float64, device=items.mean.device)
    of_items = (
        Affine(move([[sd, 0.0], [mu, 1.0]]), move([0.0, 0.0]))
        if free
        else Affine(move([[1.0]]), move([mu]))
    )
    return Affine(move([[1 / sd]]), move([-mu / sd])), of_items


def _sums(factor: Factor) -> tuple[float, float]:
    """Return the sums of E[x] and E[x^2] of the first column, over all units."""
    mean = factor.mean[:, 0]
    return float(factor.weight @ mean), float(factor.weight @ (mean**2 + factor.variances()[:, 0]))
