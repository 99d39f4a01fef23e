r"""Mean-field variational inference for the Rasch, 1PL and 2PL models.

The posterior of all abilities and items is approximated by a product of Gaussians, one per person
and one per item (Lalor 2020, equation 1.9; an item's slope and intercept share one) that comes
closest to it in Kullback-Leibler divergence.

**Populations.** Abilities, slopes and intercepts come from populations :math:`N(m, u^{-1})` with
:math:`m \sim N(0, 10^6)` and :math:`u \sim \Gamma(1, 1)`, whose own factors are a Gaussian and a
gamma: the hierarchical priors of Lalor (2020), section 1.3.3.

**Expectations.** With :math:`\theta \sim N(m, s^2)` the logit :math:`z = a\theta + d` is Gaussian
*given the slope*. Two nested Gauss-Hermite rules, over the slope and over the logit, give the
expected derivatives of the log-likelihood without sampling noise. For a node t of the logit,
:math:`z = \mu + \sqrt v\,t`, Stein's lemma turns derivatives of the logistic function
:math:`\sigma` into its moments :math:`M_k = E[t^k \sigma(z)]`:
:math:`E[\sigma'] = M_1 / \sqrt v`, :math:`E[t \sigma'] = (M_2 - M_0) / \sqrt v`, and so on.

**Updates.** Every update is a Newton step of the bound in a Gaussian's natural parameters (Khan and
Lin 2017): the responses act on it as one Gaussian observation. A pass updates all persons given the
items, then all items given the persons, then the populations.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor

from psychlm.device import Device
from psychlm.frames import FrameError
from psychlm.irt.arrays import host
from psychlm.irt.em import EM, Settings
from psychlm.irt.likelihood import Design, Parameters, quadrature_grid
from psychlm.irt.response_functions import Model, model_named
from psychlm.irt.response_matrix import ResponseMatrix, encode_responses, pick_device
from psychlm.irt.result import IRTFit, IRTWarning

MEAN_VARIANCE = 1e6  # of a population's mean m
LARGEST_UPDATE = 1.0  # logits (or per logit), of one update of a mean
# Largest standard deviation of a logit for which so many nodes leave errors of E[sigma] and
# E[sigma'] below 1e-4; the last rule serves all that are wider (2e-4 at a standard deviation of 5).
RULES = ((0.3, 3), (0.7, 5), (1.2, 9), (2.0, 15), (float("inf"), 41))
MOST_SLOPE_NODES = 5  # slopes are known to a few tenths, and the likelihood is smooth in them
BLOCK_CELLS = 2**16  # responses at a time: float64 copies stay in the processor's cache
BLOCK_CELLS_GPU = 2**22  # the same on a GPU, where the launches of a block cost more than its cells
START_VARIANCE = 0.1


@dataclass
class Gaussians:
    """Independent Gaussians, one per unit (a person or an item), and their columns' populations."""

    mean: Tensor  # (n, k)
    covariance: Tensor  # (n, k, k)
    weight: Tensor  # (n,), number of units that a row stands for

    def __post_init__(self) -> None:
        k = self.mean.shape[1]
        self.centre, self.precision = np.zeros(k), np.ones(k)  # E[m] and E[u] by column

    def update(self, rows: slice, curvature: Tensor, gradient: Tensor) -> None:
        """Take a Newton step from expected derivatives of some units' log-likelihood.

        ``curvature`` (n, k, k) is minus the second derivative; moves of means are limited.
        """
        prior, centre = (self.mean.new_tensor(x) for x in (self.precision, self.centre))
        covariance = torch.linalg.inv(curvature + torch.diag(prior))
        uphill = gradient + prior * (centre - self.mean[rows])
        step = torch.einsum("nij,nj->ni", covariance, uphill)
        self.mean[rows] += step.clamp(-LARGEST_UPDATE, LARGEST_UPDATE)
        self.covariance[rows] = covariance

    def move(self, turn: list[list[float]], shift: list[float]) -> None:
        """Carry the units to the scale x -> turn x + shift."""
        matrix = self.mean.new_tensor(turn)
        self.mean = self.mean @ matrix.T + self.mean.new_tensor(shift)
        self.covariance = matrix @ self.covariance @ matrix.T

    def learn_populations(self) -> None:
        """Update the populations' factors q(m), then q(u), of every column."""
        n = float(self.weight.sum())
        total = (self.weight @ self.mean).cpu().numpy()
        certainty = 1 / MEAN_VARIANCE + n * self.precision
        self.centre = self.precision * total / certainty
        variance = torch.diagonal(self.covariance, dim1=1, dim2=2)
        apart = variance + (self.mean - self.mean.new_tensor(self.centre)) ** 2
        spread = (self.weight @ apart).cpu().numpy()
        self.precision = (1 + n / 2) / (1 + (spread + n / certainty) / 2)


@cache
def gauss_hermite(n: int) -> list[tuple[float, float]]:
    """Return nodes and weights for expectations over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))


def n_nodes(sd: float) -> int:
    """Return the number of nodes that a logit of this standard deviation needs."""
    return next(n for widest, n in RULES if sd <= widest)


@dataclass(frozen=True)
class Cells:
    """Responses of some persons to all items, and the Gaussians of these persons and items."""

    correct: Tensor  # (n_rows, n_items) float64
    answered: Tensor | None  # (n_rows, n_items) float64; None where all are there
    ability: Tensor  # (n_rows,)
    ability_variance: Tensor  # (n_rows,)
    item: Tensor  # (n_items, 2) slope and intercept, or (n_items, 1) intercept with slope 1
    item_covariance: Tensor  # (n_items, k, k)

    def asked(self, values: Tensor) -> Tensor:
        """Return values (n_rows, n_items) with 0 where an item was not asked."""
        return values if self.answered is None else values * self.answered

    def moments(self, order: int) -> Iterator[tuple[float, Tensor, Tensor, list[Tensor]]]:
        """Yield for nodes of the slopes: weight, slope, sd of the logits, M_0 ... M_order."""
        slope_nodes: list[tuple[float, Tensor, Tensor, Tensor]] = []
        if self.item.shape[1] == 1:
            one, intercept = torch.ones_like(self.item[:, 0]), self.item[:, 0]
            slope_nodes.append((1.0, one, intercept, self.item_covariance[:, 0, 0]))
        else:
            (slope, intercept), covariance = self.item.T, self.item_covariance
            # The intercept given the slope is Gaussian, too.
            sd, by_slope = covariance[:, 0, 0].sqrt(), covariance[:, 0, 1] / covariance[:, 0, 0]
            rest = covariance[:, 1, 1] - by_slope * covariance[:, 0, 1]
            reach = float(sd.max()) * max(1.0, float(self.ability.abs().max()))
            for t, weight in gauss_hermite(min(n_nodes(reach), MOST_SLOPE_NODES)):
                at_node = (weight, slope + sd * t, intercept + by_slope * sd * t, rest)
                slope_nodes.append(at_node)
        for weight, slope, intercept, variance in slope_nodes:
            mean = torch.outer(self.ability, slope) + intercept
            sd = (torch.outer(self.ability_variance, slope**2) + variance).sqrt()
            moments = [torch.zeros_like(mean) for _ in range(order + 1)]
            for t, node_weight in gauss_hermite(n_nodes(float(sd.max()))):
                p = torch.add(mean, sd, alpha=t).sigmoid_()
                for k, moment in enumerate(moments):
                    moment.add_(p, alpha=node_weight * t**k)
            yield weight, slope, sd, moments


def ability_derivatives(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return minus second (n, 1, 1) and first (n, 1) expected derivatives by ability."""
    gradient, curvature = torch.zeros_like(cells.ability), torch.zeros_like(cells.ability)
    for weight, slope, sd, (m0, m1) in cells.moments(1):
        gradient += weight * ((cells.correct - cells.asked(m0)) @ slope)
        curvature += weight * (cells.asked(m1 / sd) @ slope**2)
    return curvature[:, None, None], gradient[:, None]


def item_derivatives(cells: Cells, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return minus second (n, k, k) and first (n, k) expected derivatives by item parameters.

    Rows stand for ``count`` (n_rows,) persons each.
    """
    size = cells.item.shape[1]
    m, s2 = cells.ability[:, None], cells.ability_variance[:, None]
    gradient, curvature = torch.zeros_like(cells.item), torch.zeros_like(cells.item_covariance)
    for weight, slope, sd, (m0, m1, *higher) in cells.moments(1 if size == 1 else 3):
        if size == 2:
            lift = s2 * slope / sd  # theta given z is m + lift t, with variance s2 - lift^2
            once, twice = (higher[0] - m0) / sd, (higher[1] - 2 * m1) / sd  # E[t s'], E[t^2 s']
            surplus = m * cells.correct - cells.asked(m * m0 + lift * m1)
            gradient[:, 0] += weight * (count @ surplus)
            curvature[:, 0, 1] += weight * (count @ cells.asked(m * m1 / sd + lift * once))
            squared = (m**2 + s2 - lift**2) * m1 / sd + 2 * m * lift * once + lift**2 * twice
            curvature[:, 0, 0] += weight * (count @ cells.asked(squared))
        gradient[:, -1] += weight * (count @ (cells.correct - cells.asked(m0)))
        curvature[:, -1, -1] += weight * (count @ cells.asked(m1 / sd))
    if size == 2:
        curvature[:, 1, 0] = curvature[:, 0, 1]
    return curvature, gradient


def move_scale(persons: Gaussians, items: Gaussians) -> None:
    r"""Move persons and 2PL items to the scale of ability that suits the priors best.

    The likelihood knows no scale: with :math:`\theta \to (\theta - \mu) / \sigma`,
    :math:`a \to \sigma a` and :math:`d \to d + \mu a` every logit stays what it was. Updates of
    persons and items in turn would creep along this ridge.
    """
    n, n_items = float(persons.weight.sum()), len(items.mean)
    mean, variance = persons.mean[:, 0], persons.covariance[:, 0, 0]
    total, squares = (float(persons.weight @ x) for x in (mean, mean**2 + variance))
    outer = items.covariance + items.mean[:, :, None] * items.mean[:, None, :]
    second, first = outer.sum(0).cpu().numpy(), items.mean.sum(0).cpu().numpy()

    def profile(n: float, total: float, squares: float) -> float:
        """Return a population's bound from sums of E[x] and E[x^2], its factors at their best."""
        return -(1 + n / 2) * math.log(1 + (squares - total**2 / n) / 2)

    def objective(move: np.ndarray) -> float:
        mu, log_sd = move
        sd = math.exp(log_sd)
        moved = squares - 2 * mu * total + n * mu**2
        value = profile(n, (total - n * mu) / sd, moved / sd**2)
        moved = second[1, 1] + 2 * mu * second[0, 1] + mu**2 * second[0, 0]
        value += profile(n_items, first[1] + mu * first[0], moved)
        value += profile(n_items, sd * first[0], sd**2 * second[0, 0])
        return -(value + (n_items - n) * log_sd)  # with the Gaussians' entropies

    mu, log_sd = scipy.optimize.minimize(objective, np.zeros(2)).x
    sd = math.exp(log_sd)
    persons.move([[1 / sd]], [-mu / sd])
    items.move([[sd, 0.0], [mu, 1.0]], [0.0, 0.0])


def starting_gaussians(responses: ResponseMatrix, model: Model) -> tuple[Gaussians, Gaussians]:
    """Return persons and items to begin with, from sums and proportions of correct responses."""
    # Items begin with slopes of 1 and intercepts from the proportions correct.
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    intercept = 1.2 * torch.logit(share)  # 1.2: logits at ability 0 spread more
    slope = [torch.ones_like(share)] if not model.common_slope else []
    mean = torch.stack([*slope, intercept], 1)
    eye = torch.eye(mean.shape[1], dtype=torch.float64, device=mean.device)
    spread = START_VARIANCE * eye.repeat(len(mean), 1, 1)
    items = Gaussians(mean, spread, torch.ones_like(share))

    # Persons begin with standardised sums: equal abilities would say nothing about slopes.
    share, count = responses.n_correct / responses.n_answered, responses.count
    surplus, variance = torch.zeros_like(count), torch.zeros_like(count)
    for block in responses.blocks():
        answered = torch.ones_like(block.correct) if block.answered is None else block.answered
        part = share[block.items]
        surplus += block.correct.sum(1) - answered @ part
        variance += answered @ (part * (1 - part))
    score = surplus / variance.clamp_min(0.1).sqrt()
    score -= score @ count / count.sum()
    ability = (score / (score**2 @ count / count.sum()).sqrt().clamp_min(1e-3))[:, None]
    spread = torch.full_like(ability, START_VARIANCE)[:, :, None]
    return Gaussians(ability, spread, count), items


def infer(
    responses: pd.DataFrame | np.ndarray,
    model: str = "Rasch",
    *,
    device: Device = "auto",
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 500,
    tolerance: float = 1e-4,
) -> IRTFit:
    r"""Fit a Rasch, 1PL or 2PL model by mean-field variational inference.

    Parameters
    ----------
    responses : DataFrame or ndarray, shape (n_persons, n_items)
        As for :func:`psychlm.irt.fit`. Items to which everyone responded alike may stay: their
        prior keeps them finite.
    model : str
        "Rasch", "1PL" or "2PL".
    device, item_names
        As for :func:`psychlm.irt.fit`.
    max_iterations : int
        Passes over the responses; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are items whose predicted remaining change is below it (logits).

    Returns
    -------
    IRTFit
        Estimates are posterior means, standard errors posterior standard deviations, and ``loglik``
        is the marginal log-likelihood at the estimates, as ``method="mml"`` reports it.

    References
    ----------
    Lalor (2020), section 1.3.3. Natesan, Nandakumar, Minka & Rubright (2016), Frontiers in
    Psychology 7, 1422.
    """
    named = model_named(model)
    kind = named.name
    if named.free or not named.dichotomous:
        raise ValueError(
            f"variational inference fits Rasch, 1PL and 2PL, not {model!r}; use irt.fit, by mml"
        )
    chosen = pick_device(device, "papers.variational.infer", getattr(responses, "size", 0))
    encoded = encode_responses(responses, chosen, item_names)
    n_rows, n_items = encoded.values.shape
    if n_items < 3:
        raise FrameError(f"{n_items} items do not identify a {kind} model; it takes at least 3")
    persons, items = starting_gaussians(encoded, named)

    def estimates() -> tuple[Parameters, float, float]:
        """Return posterior means of the items in standard-normal units, ability's mean and sd."""
        mean, sd = float(persons.centre[0]), float(persons.precision[0] ** -0.5)
        intercept = items.mean[:, -1]
        slope = items.mean[:, 0] if not named.common_slope else torch.ones_like(intercept)
        standard = Parameters(slope * sd, intercept + slope * mean, torch.zeros_like(slope))
        return standard, mean, sd

    def cells(rows: slice) -> Cells:
        """Return the responses of some rows with the present Gaussians."""
        given = encoded.cells(rows, slice(None))
        ability, variance = persons.mean[rows, 0], persons.covariance[rows, 0, 0]
        return Cells(*given, ability, variance, items.mean, items.covariance)

    # Pass over the responses until the items rest, judged by a geometric rate of change.
    before, last, converged = estimates()[0].table(), float("inf"), False
    size = max(1, (BLOCK_CELLS if chosen.type == "cpu" else BLOCK_CELLS_GPU) // n_items)
    for n_passes in range(1, max_iterations + 1):  # noqa: B007 (reported below)
        curvature = torch.zeros_like(items.covariance)
        gradient = torch.zeros_like(items.mean)
        for start in range(0, n_rows, size):
            rows = slice(start, start + size)
            persons.update(rows, *ability_derivatives(cells(rows)))
            of_block = item_derivatives(cells(rows), persons.weight[rows])
            curvature, gradient = curvature + of_block[0], gradient + of_block[1]
        items.update(slice(None), curvature, gradient)
        if not named.common_slope:  # else the populations' means and variances are free to move
            move_scale(persons, items)
        persons.learn_populations()
        items.learn_populations()
        now = estimates()[0].table()
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

    # Posterior variances of slope and intercept, on the scale on which ability is N(0, 1).
    parameters, mean, sd = estimates()
    covariance = items.covariance.cpu().numpy()
    blocks = np.full((n_items, 4, 4), np.nan)
    blocks[:, 1, 1], blocks[:, 0, :2], blocks[:, :2, 0] = covariance[:, -1, -1], 0.0, 0.0
    if not named.common_slope:
        var_a, cov = covariance[:, 0, 0], covariance[:, 0, 1]
        blocks[:, 1, 1] += 2 * mean * cov + mean**2 * var_a
        blocks[:, 0, 0] = sd**2 * var_a
        blocks[:, 0, 1] = blocks[:, 1, 0] = sd * (cov + mean * var_a)
    values = np.vstack([host(parameters.table()), np.ones(n_items)])
    if named.unit_slope:
        values[0] = 1.0
    table = named.form.table(values, blocks).set_index(encoded.items)
    if named.common_slope:
        table["se_a"] = np.nan
    table["c_is_free"], table["converged"] = False, converged

    design = Design(named.common_slope, torch.zeros_like(parameters.slope, dtype=torch.bool), {})
    em = EM(encoded, design, quadrature_grid(device=encoded.device), Settings(0, 0))
    _, loglik = em.expect(parameters)
    return IRTFit(
        items=table,
        model=kind,
        method="vi",
        loglik=loglik,
        log_prior=np.nan,
        n_parameters=2 * n_items if not named.common_slope else n_items + 1,
        n_persons=encoded.n_persons,
        converged=converged,
        n_iterations=n_passes,
        ability_sd=sd if named.unit_slope else 1.0,
        loglik_error=em.grid_error(parameters, loglik),
        quadrature=str(em.grid),
        data_hash=encoded.data_hash,
    )
