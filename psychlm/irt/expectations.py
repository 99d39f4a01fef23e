r"""Expectations of the logistic likelihood when abilities and items are Gaussian, by Gauss-Hermite quadrature.

With :math:`\theta \sim N(m, s^2)` and an item's slope and intercept jointly Gaussian and independent of it, the logit
:math:`z = a\theta + d` is Gaussian *given the slope*. So two nested one-dimensional rules, one over the slope and one
over the logit, give what variational inference asks for with no sampling noise: the expected log-likelihood, and its
expected first and second derivatives. For a node :math:`t` of the logit, :math:`z = \mu + \sqrt v\,t`, Stein's lemma
turns derivatives of the logistic function :math:`\sigma` into its moments :math:`M_k = E[t^k \sigma(z)]`:
:math:`E[\sigma'] = M_1 / \sqrt v`, :math:`E[t \sigma'] = (M_2 - M_0) / \sqrt v`
and so on, from one logistic function a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from psychlm.irt.factors import Natural

# Largest standard deviation of a logit for which so many nodes leave E[sigma] and E[sigma'] in error by less than 1e-4;
# the last rule serves all that are wider (2e-4 at a standard deviation of 5).
RULES = ((0.3, 3), (0.7, 5), (1.2, 9), (2.0, 15), (float("inf"), 41))
MOST_SLOPE_NODES = 5  # slopes are known to a few tenths, and the likelihood is smooth in them


@dataclass(frozen=True)
class Site:
    """What the answers say about each unit, as if they were one Gaussian observation of it."""

    precision: Tensor  # (n, k, k), minus the expected second derivative
    gradient: Tensor  # (n, k), expected first derivative

    def around(self, mean: Tensor) -> Natural:
        """Return the natural parameters of a Gaussian with these derivatives at the means (n, k)."""
        return Natural(
            self.precision, self.gradient + torch.einsum("nij,nj->ni", self.precision, mean)
        )


@dataclass(frozen=True)
class Cells:
    """The answers of some persons to some items."""

    correct: Tensor  # (n_rows, n_items) float64
    answered: Tensor | None  # (n_rows, n_items) float64; None where all are there

    def asked(self, values: Tensor) -> Tensor:
        """Return values (n_rows, n_items) with 0 where an item was not asked."""
        return values if self.answered is None else values * self.answered


@dataclass(frozen=True)
class Beliefs:
    """Gaussian beliefs about the abilities and the items of some cells."""

    ability: Tensor  # (n_rows,)
    ability_variance: Tensor  # (n_rows,)
    item: Tensor  # (n_items, 2) slope and intercept, or (n_items, 1) intercept where the slope is 1
    item_covariance: Tensor  # (n_items, k, k)

    def slopes(self) -> Iterator[tuple[float, Tensor, Tensor, Tensor]]:
        """Yield nodes of the slopes: weight, slope, and the intercept's mean and variance given it; each (n_items,)."""
        if self.item.shape[1] == 1:
            yield (
                1.0,
                torch.ones_like(self.item[:, 0]),
                self.item[:, 0],
                self.item_covariance[:, 0, 0],
            )
            return
        (slope, intercept), covariance = self.item.T, self.item_covariance
        sd, by_slope = covariance[:, 0, 0].sqrt(), covariance[:, 0, 1] / covariance[:, 0, 0]
        rest = covariance[:, 1, 1] - by_slope * covariance[:, 0, 1]
        reach = float(sd.max()) * max(1.0, float(self.ability.abs().max()))
        for t, weight in zip(*_rule(min(_n_nodes(reach), MOST_SLOPE_NODES)), strict=True):
            yield weight, slope + sd * t, intercept + by_slope * sd * t, rest

    def logit(self, slope: Tensor, intercept: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the logits given the slopes, each (n_rows, n_items)."""
        mean = torch.outer(self.ability, slope) + intercept
        return mean, (torch.outer(self.ability_variance, slope**2) + variance).sqrt()


@cache
def _rule(n_nodes: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def _n_nodes(sd: float) -> int:
    return next(n for widest, n in RULES if sd <= widest)


def _moments(mean: Tensor, sd: Tensor, order: int) -> list[Tensor]:
    """Return E[t^k sigma(mean + sd t)] for k = 0 .. order."""
    found = [torch.zeros_like(mean) for _ in range(order + 1)]
    for t, weight in zip(*_rule(_n_nodes(float(sd.max()))), strict=True):
        p = torch.add(mean, sd, alpha=t).sigmoid_()
        for k, moment in enumerate(found):
            moment.add_(p, alpha=weight * t**k)
    return found


def ability_site(cells: Cells, beliefs: Beliefs) -> Site:
    """Return what the cells say about every person's ability; k = 1."""
    gradient, precision = torch.zeros_like(beliefs.ability), torch.zeros_like(beliefs.ability)
    for weight, slope, intercept, variance in beliefs.slopes():
        mean, sd = beliefs.logit(slope, intercept, variance)
        m0, m1 = _moments(mean, sd, 1)
        gradient += weight * ((cells.correct - cells.asked(m0)) @ slope)
        precision += weight * (cells.asked(m1 / sd) @ slope**2)
    return Site(precision[:, None, None], gradient[:, None])


def item_site(cells: Cells, beliefs: Beliefs, count: Tensor) -> Site:
    """Return what the cells say about every item; rows stand for ``count`` (n_rows,) persons each."""
    size = beliefs.item.shape[1]
    m, s2 = beliefs.ability[:, None], beliefs.ability_variance[:, None]
    gradient, precision = torch.zeros_like(beliefs.item), torch.zeros_like(beliefs.item_covariance)
    for weight, slope, intercept, variance in beliefs.slopes():
        mean, sd = beliefs.logit(slope, intercept, variance)
        if size == 1:
            m0, m1 = _moments(mean, sd, 1)
        else:
            m0, m1, m2, m3 = _moments(mean, sd, 3)
            lift = s2 * slope / sd  # theta given z is m + lift t, with variance s2 - lift^2
            once, twice = (m2 - m0) / sd, (m3 - 2 * m1) / sd  # E[t sigma'], E[t^2 sigma']
            gradient[:, 0] += weight * (
                count @ (m * cells.correct - cells.asked(m * m0 + lift * m1))
            )
            precision[:, 0, 1] += weight * (count @ cells.asked(m * m1 / sd + lift * once))
            squared = (m**2 + s2 - lift**2) * m1 / sd + 2 * m * lift * once + lift**2 * twice
            precision[:, 0, 0] += weight * (count @ cells.asked(squared))
        gradient[:, -1] += weight * (count @ (cells.correct - cells.asked(m0)))
        precision[:, -1, -1] += weight * (count @ cells.asked(m1 / sd))
    if size == 2:
        precision[:, 1, 0] = precision[:, 0, 1]
    return Site(precision, gradient)


def expected_loglik(cells: Cells, beliefs: Beliefs, count: Tensor) -> float:
    """Return the expected log-likelihood of the cells, in nats."""
    total = 0.0
    for weight, slope, intercept, variance in beliefs.slopes():
        mean, sd = beliefs.logit(slope, intercept, variance)
        minus_log_q = torch.zeros_like(mean)
        for t, node_weight in zip(*_rule(_n_nodes(float(sd.max()))), strict=True):
            minus_log_q.add_(softplus(torch.add(mean, sd, alpha=t)), alpha=node_weight)
        total += weight * float((count @ (cells.correct * mean - cells.asked(minus_log_q))).sum())
    return total
