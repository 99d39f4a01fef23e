r"""Mean-field variational inference for the Rasch model (Lalor 2020, section 1.3.3).

The posterior of all abilities and difficulties is approximated by a product of Gaussians, one per
person and one per item (equation 1.9). Both come from populations :math:`N(m, u^{-1})` with
:math:`m \sim N(0, 10^6)` and :math:`u \sim \Gamma(1, 1)`, whose own factors are a Gaussian and a
gamma. The logit :math:`z = \theta + d` is Gaussian, so a Gauss-Hermite rule gives the expected
derivatives of the log-likelihood: with :math:`z = \mu + \sqrt v\,t` Stein's lemma makes
:math:`E[\sigma'(z)] = E[t\,\sigma(z)] / \sqrt v`. An update is a Newton step of the bound in a
Gaussian's natural parameters (Khan and Lin 2017): of all persons, all items, then the populations.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.device import Device
from psychlm.frames import FrameError
from psychlm.irt.likelihood import Expectation
from psychlm.irt.response_functions import Logistic
from psychlm.irt.response_matrix import ResponseMatrix, encode_responses, pick_device
from psychlm.irt.result import IRTFit, IRTWarning

MEAN_VARIANCE = 1e6  # of a population's mean m
LARGEST_UPDATE = 1.0  # logits, of one update of a mean
# Largest standard deviation of a logit for which so many nodes leave errors of E[sigma] and
# E[sigma'] below 1e-4; the last rule serves all that are wider (2e-4 at a standard deviation of 5).
RULES = ((0.3, 3), (0.7, 5), (1.2, 9), (2.0, 15), (float("inf"), 41))
BLOCK_CELLS = 2**16  # responses at a time: float64 copies stay in the processor's cache
BLOCK_CELLS_GPU = 2**22  # the same on a GPU, where the launches of a block cost more than its cells
START_VARIANCE = 0.1
hermegauss = cache(np.polynomial.hermite_e.hermegauss)  # nodes and weights of a standard normal


@dataclass
class Gaussians:
    """Independent Gaussians, one per person or item, and the factors of their population."""

    mean: Tensor  # (n,)
    weight: Tensor  # (n,), number of units that a row stands for
    centre: float = 0.0  # E[m]
    precision: float = 1.0  # E[u]

    def __post_init__(self) -> None:
        self.variance = torch.full_like(self.mean, START_VARIANCE)

    def update(self, rows: slice, curvature: Tensor, gradient: Tensor) -> None:
        """Take a Newton step, limited for means, from the gradient and curvature (minus the second
        derivative) that are expected of some units' log-likelihood."""
        variance = 1 / (curvature + self.precision)
        uphill = gradient + self.precision * (self.centre - self.mean[rows])
        self.mean[rows] += (variance * uphill).clamp(-LARGEST_UPDATE, LARGEST_UPDATE)
        self.variance[rows] = variance

    def learn_population(self) -> None:
        """Update the population's factors q(m), then q(u)."""
        n = float(self.weight.sum())
        certainty = 1 / MEAN_VARIANCE + n * self.precision
        self.centre = self.precision * float(self.weight @ self.mean) / certainty
        spread = float(self.weight @ (self.variance + (self.mean - self.centre) ** 2))
        self.precision = (1 + n / 2) / (1 + (spread + n / certainty) / 2)


def expected_derivatives(
    correct: Tensor, answered: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return minus second and first expected derivatives of responses by their logits.

    All arrays are (n_rows, n_items); logits are N(mean, variance), and ``answered`` is None where
    all responses are there."""
    sd = variance.sqrt()
    widest = float(sd.max())
    level, slope = torch.zeros_like(mean), torch.zeros_like(mean)
    nodes, weights = hermegauss(next(n for reach, n in RULES if widest <= reach))
    for t, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
        p = torch.add(mean, sd, alpha=t).sigmoid_()
        level.add_(p, alpha=weight)
        slope.add_(p, alpha=weight * t)
    curvature = slope / sd
    if answered is not None:
        level, curvature = level * answered, curvature * answered
    return curvature, correct - level


def starting_gaussians(responses: ResponseMatrix) -> tuple[Gaussians, Gaussians]:
    """Return persons and items to begin with, from sums and proportions of correct responses."""
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    # 1.2: the spread of ability makes proportions less extreme than logits at ability 0
    items = Gaussians(1.2 * torch.logit(share), torch.ones_like(share))

    # Persons begin with standardised sums.
    share, count = responses.n_correct / responses.n_answered, responses.count
    surplus, variance = torch.zeros_like(count), torch.zeros_like(count)
    for block in responses.blocks():
        answered = torch.ones_like(block.correct) if block.answered is None else block.answered
        part = share[block.items]
        surplus += block.correct.sum(1) - answered @ part
        variance += answered @ (part * (1 - part))
    score = surplus / variance.clamp_min(0.1).sqrt()
    score -= score @ count / count.sum()
    ability = score / (score**2 @ count / count.sum()).sqrt().clamp_min(1e-3)
    return Gaussians(ability, count), items


def infer(
    responses: pd.DataFrame | np.ndarray,
    *,
    device: Device = "auto",
    max_iterations: int = 500,
    tolerance: float = 1e-4,
    ability_sd: float | None = None,
) -> IRTFit:
    """Fit a Rasch model to responses as for :func:`psychlm.irt.fit` by mean-field inference.

    Estimates are posterior means, standard errors posterior standard deviations, and ``loglik`` is
    the marginal log-likelihood at the estimates, as of :func:`psychlm.irt.fit`. Items to which all
    responded alike may stay. The standard deviation of ability is learned, with its mean, unless
    ``ability_sd`` holds it and the mean 0 (logits). Converged are items whose predicted remaining
    change is below the tolerance (logits) in fewer passes over the responses than
    ``max_iterations``."""
    chosen = pick_device(device, "analyses.variational.infer", getattr(responses, "size", 0))
    encoded = encode_responses(responses, chosen)
    n_rows, n_items = encoded.values.shape
    if n_items < 3:
        raise FrameError(f"{n_items} items do not identify a Rasch model; it takes at least 3")
    persons, items = starting_gaussians(encoded)
    if ability_sd is not None:
        persons.precision = ability_sd**-2

    def estimates() -> tuple[Logistic, float]:
        """Return posterior means of the items in standard-normal units, and ability's sd."""
        intercept, sd = items.mean + persons.centre, persons.precision**-0.5
        return Logistic(torch.stack([torch.full_like(intercept, sd), intercept])), sd

    def derivatives(rows: slice) -> tuple[Tensor, Tensor]:
        """Return expected derivatives of the responses of some rows with the present Gaussians."""
        mean = persons.mean[rows, None] + items.mean
        variance = persons.variance[rows, None] + items.variance
        block = encoded.cells(rows, slice(None))
        return expected_derivatives(block.correct, block.answered, mean, variance)

    # Pass over the responses until the items rest, judged by a geometric rate of change.
    before, last, converged = estimates()[0].values, float("inf"), False
    size = max(1, (BLOCK_CELLS if chosen.type == "cpu" else BLOCK_CELLS_GPU) // n_items)
    for n_passes in range(1, max_iterations + 1):  # noqa: B007 (reported below)
        of_items = torch.zeros_like(items.mean).expand(2, -1)
        for start in range(0, n_rows, size):
            rows = slice(start, start + size)
            persons.update(rows, *(cells.sum(1) for cells in derivatives(rows)))
            weight = persons.weight[rows]
            of_items = of_items + torch.stack([weight @ cells for cells in derivatives(rows)])
        items.update(slice(None), *of_items)
        if ability_sd is None:
            persons.learn_population()
        items.learn_population()
        now = estimates()[0].values
        change = float((now - before).abs().max())
        rate = min(change / last, 0.99)
        if n_passes > 2 and change * max(1.0, rate / (1 - rate)) < tolerance:
            converged = True
            break
        before, last = now, change
    if not converged:
        warnings.warn(
            f"no convergence in {max_iterations} passes over the responses; raise max_iterations",
            IRTWarning,
            stacklevel=2,
        )

    parameters, sd = estimates()
    intercept = parameters.values[1].cpu().numpy()
    zero, one = np.zeros(n_items), np.ones(n_items)
    blocks = np.full((n_items, 4, 4), np.nan)
    blocks[:, 1, 1] = items.variance.cpu().numpy()
    blocks[:, 0, :2], blocks[:, :2, 0] = 0.0, 0.0
    table = Logistic.table(np.stack([one, intercept, zero, one]), blocks).set_index(encoded.items)
    table["se_a"], table["c_is_free"], table["converged"] = np.nan, False, converged

    marginal = Expectation(encoded)
    _, loglik = marginal.expect(parameters)
    return IRTFit(
        items=table,
        model="Rasch",
        method="vi",
        loglik=loglik,
        log_prior=np.nan,
        n_parameters=n_items + 1,
        n_persons=encoded.n_persons,
        converged=converged,
        n_iterations=n_passes,
        ability_sd=sd,
        loglik_error=marginal.grid_error(parameters, loglik),
        quadrature=str(marginal.grid),
        data_hash=encoded.data_hash,
    )
