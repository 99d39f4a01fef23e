r"""Mean-field variational inference for the Rasch, 1PL and 2PL models.

The posterior of all abilities and items is approximated by a product of Gaussians, one per person
and one per item (Lalor 2020, equation 1.9; an item's slope and intercept share one) that comes
closest to it in Kullback-Leibler divergence.

**Populations.** Abilities, slopes and intercepts come from populations :math:`N(m, u^{-1})` with
:math:`m \sim N(0, 10^6)` and :math:`u \sim \Gamma(1, 1)`, whose own factors are a Gaussian and a
gamma (the hierarchical priors of Lalor 2020, section 1.3.3); or from fixed normal densities.

**Expectations.** With :math:`\theta \sim N(m, s^2)` the logit :math:`z = a\theta + d` is Gaussian
*given the slope*. Two nested Gauss-Hermite rules, over the slope and over the logit, give the
expected log-likelihood and its expected derivatives without sampling noise. For a node t of the
logit, :math:`z = \mu + \sqrt v\,t`, Stein's lemma turns derivatives of the logistic function
:math:`\sigma` into its moments :math:`M_k = E[t^k \sigma(z)]`:
:math:`E[\sigma'] = M_1 / \sqrt v`, :math:`E[t \sigma'] = (M_2 - M_0) / \sqrt v`, and so on.

**Updates.** Every update is a Newton step of the bound in a Gaussian's natural parameters (Khan and
Lin 2017): the responses act on it as one Gaussian observation, its *site*. Responses are read in
minibatches along the longer side. The units of a batch are updated from all their responses; those
of the other side by replacing the batch's share of their site (incremental inference, Neal and
Hinton 1998). So the fixed point is that of a full pass, and there is no step size to choose.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor
from torch.nn.functional import softplus

from psychlm.device import Device
from psychlm.frames import FrameError
from psychlm.irt.em import EM, Settings, reestimated_sd
from psychlm.irt.likelihood import Design, Parameters, quadrature_grid
from psychlm.irt.response_matrix import ResponseMatrix, encode_responses, pick_device
from psychlm.irt.result import COLUMNS, MODELS, IRTFit, IRTWarning

PRIORS = ("hierarchical", "vague")
MEAN_VARIANCE = 1e6  # of a population's mean m
VAGUE_PRECISION = 1e-3  # Lalor (2020), section 1.3.3: N(0, 10^3)
LARGEST_UPDATE = 1.0  # logits (or per logit), of one update of a mean
# Largest standard deviation of a logit for which so many nodes leave errors of E[sigma] and
# E[sigma'] below 1e-4; the last rule serves all that are wider (2e-4 at a standard deviation of 5).
RULES = ((0.3, 3), (0.7, 5), (1.2, 9), (2.0, 15), (float("inf"), 41))
MOST_SLOPE_NODES = 5  # slopes are known to a few tenths, and the likelihood is smooth in them
BATCH_CELLS = 2**16  # responses in a minibatch: float64 copies stay in the processor's cache
START_VARIANCE = 0.1


class Natural(NamedTuple):
    """Natural parameters of n Gaussians; those of a product of Gaussians are their sum."""

    precision: Tensor  # (n, k, k)
    linear: Tensor  # (n, k), precision times mean

    def moved(self, turn: Tensor, shift: Tensor) -> Natural:
        """Return the same Gaussians on the scale x -> turn x + shift."""
        back = torch.linalg.inv(turn)
        precision = back.T @ self.precision @ back
        return Natural(precision, self.linear @ back + precision @ shift)


@dataclass(frozen=True)
class Population:
    """The population N(m, 1 / u) that units come from."""

    kind: str  # "hierarchical", "fixed" or "estimated"
    mean: float = 0.0  # E[m]
    precision: float = 1.0  # E[u]
    mean_variance: float = 0.0  # of the factor of m
    shape: float = 1.0  # of the gamma factor of u
    rate: float = 1.0

    def learnt(self, mean: Tensor, variance: Tensor, weight: Tensor) -> Population:
        """Return the population that fits units (means, variances and weights (n,)) best."""
        n, total = float(weight.sum()), float(weight @ mean)
        if self.kind == "fixed":
            return self
        known = 1 / MEAN_VARIANCE + n * self.precision
        centre = total / n if self.kind == "estimated" else self.precision * total / known
        spread = float(weight @ (variance + (mean - centre) ** 2))
        if self.kind == "estimated":
            return replace(self, mean=centre, precision=n / spread)
        shape, rate = 1 + n / 2, 1 + (spread + n / known) / 2
        return Population(self.kind, centre, shape / rate, 1 / known, shape, rate)

    def profile(self, n: float, total: float, squares: float) -> float:
        """Return the bound up to a constant from sums of E[x] and E[x^2], the rest at its best."""
        if self.kind == "fixed":
            return -0.5 * self.precision * (squares - 2 * self.mean * total + n * self.mean**2)
        spread = squares - total**2 / n
        if self.kind == "hierarchical":
            return -(1 + n / 2) * math.log(1 + spread / 2)
        return -n / 2 * math.log(spread)

    def bound(self, mean: Tensor, variance: Tensor, weight: Tensor) -> float:
        """Return units' expected log density minus the divergence of the own factors, in nats."""
        n, hierarchical = float(weight.sum()), self.kind == "hierarchical"
        digamma = float(torch.digamma(torch.tensor(self.shape, dtype=torch.float64)))
        log_precision = digamma - math.log(self.rate) if hierarchical else math.log(self.precision)
        spread = float(weight @ (variance + (mean - self.mean) ** 2)) + n * self.mean_variance
        of_units = 0.5 * n * (log_precision - math.log(2 * math.pi)) - 0.5 * self.precision * spread
        if not hierarchical:
            return of_units
        second = (self.mean**2 + self.mean_variance) / MEAN_VARIANCE
        of_mean = 0.5 * (1 + math.log(self.mean_variance / MEAN_VARIANCE) - second)
        entropy = self.shape - math.log(self.rate) + math.lgamma(self.shape)
        entropy += (1 - self.shape) * digamma
        return of_units + of_mean + entropy - self.precision  # log Gamma(u; 1, 1) = -u


@dataclass
class Factor:
    """Independent Gaussians, one per unit (a person or an item); updated in place."""

    mean: Tensor  # (n, k)
    covariance: Tensor  # (n, k, k)
    weight: Tensor  # (n,), number of units that a row stands for
    populations: list[Population]  # one per column

    def update(self, rows: slice, sites: Natural) -> None:
        """Combine the sites of some units with their population; limit the moves of means."""
        as_mean = self.mean.new_tensor
        prior = as_mean([population.precision for population in self.populations])
        centre = as_mean([population.mean for population in self.populations])
        covariance = torch.linalg.inv(sites.precision + torch.diag(prior))
        target = torch.einsum("nij,nj->ni", covariance, sites.linear + prior * centre)
        self.mean[rows] += (target - self.mean[rows]).clamp(-LARGEST_UPDATE, LARGEST_UPDATE)
        self.covariance[rows] = covariance

    def move(self, turn: Tensor, shift: Tensor) -> None:
        """Carry the units to the scale x -> turn x + shift."""
        self.mean = self.mean @ turn.T + shift
        self.covariance = turn @ self.covariance @ turn.T

    def columns(self) -> list[tuple[Population, Tensor, Tensor]]:
        """Return population, means (n,) and variances (n,) of every column."""
        variances = torch.diagonal(self.covariance, dim1=1, dim2=2)
        return list(zip(self.populations, self.mean.T, variances.T, strict=True))

    def learn(self) -> None:
        """Update the populations."""
        self.populations = [p.learnt(m, v, self.weight) for p, m, v in self.columns()]

    def bound(self) -> float:
        """Return this factor's part of the evidence lower bound, in nats."""
        prior = sum(p.bound(m, v, self.weight) for p, m, v in self.columns())
        entropy = 0.5 * torch.logdet(2 * math.pi * math.e * self.covariance)
        return prior + float(self.weight @ entropy)


Move = tuple[Tensor, Tensor]  # turn and shift


def best_scale(persons: Factor, items: Factor) -> tuple[Move, Move]:
    r"""Return how persons and items move to the scale of ability that suits the priors best.

    The likelihood knows no scale: with :math:`\theta \to (\theta - \mu) / \sigma`,
    :math:`a \to \sigma a` and :math:`d \to d + \mu a` every logit stays what it was. Updates of
    persons and items in turn would creep along this ridge. Where slopes are 1, only mu moves.
    """
    n, n_items, free = float(persons.weight.sum()), len(items.mean), items.mean.shape[1] == 2
    [(of_persons, mean, variance)] = persons.columns()
    total, squares = (float(persons.weight @ x) for x in (mean, mean**2 + variance))
    outer = items.covariance + items.mean[:, :, None] * items.mean[:, None, :]
    second, first = outer.sum(0).cpu().numpy(), items.mean.sum(0).cpu().numpy()
    if not free:  # slopes of 1
        second = np.array([[n_items, first[0]], [first[0], second[0, 0]]])
        first = np.array([n_items, first[0]])

    def objective(move: np.ndarray) -> float:
        mu, log_sd = move[0], move[1] if free else 0.0
        sd = math.exp(log_sd)
        moved = squares - 2 * mu * total + n * mu**2
        value = of_persons.profile(n, (total - n * mu) / sd, moved / sd**2)
        moved = second[1, 1] + 2 * mu * second[0, 1] + mu**2 * second[0, 0]
        value += items.populations[-1].profile(n_items, first[1] + mu * first[0], moved)
        if free:
            value += items.populations[0].profile(n_items, sd * first[0], sd**2 * second[0, 0])
            value += (n_items - n) * log_sd  # entropies
        return -value

    mu, log_sd = (*scipy.optimize.minimize(objective, np.zeros(2 if free else 1)).x, 0.0)[:2]
    sd, tensor = math.exp(log_sd), items.mean.new_tensor
    item_turn, item_shift = ([[sd, 0.0], [mu, 1.0]], [0.0, 0.0]) if free else ([[1.0]], [mu])
    return (tensor([[1 / sd]]), tensor([-mu / sd])), (tensor(item_turn), tensor(item_shift))


@dataclass(frozen=True)
class Cells:
    """Responses of some persons to some items, and the Gaussians of these persons and items."""

    correct: Tensor  # (n_rows, n_items) float64
    answered: Tensor | None  # (n_rows, n_items) float64; None where all are there
    ability: Tensor  # (n_rows,)
    ability_variance: Tensor  # (n_rows,)
    item: Tensor  # (n_items, 2) slope and intercept, or (n_items, 1) intercept with slope 1
    item_covariance: Tensor  # (n_items, k, k)

    def asked(self, values: Tensor) -> Tensor:
        """Return values (n_rows, n_items) with 0 where an item was not asked."""
        return values if self.answered is None else values * self.answered

    def slopes(self) -> Iterator[tuple[float, Tensor, Tensor, Tensor]]:
        """Yield nodes of the slopes: weight, slope, mean and standard deviation of the logits."""
        nodes: list[tuple[float, Tensor, Tensor, Tensor]] = []
        if self.item.shape[1] == 1:
            intercept = self.item[:, 0]
            one = torch.ones_like(intercept)
            nodes.append((1.0, one, intercept, self.item_covariance[:, 0, 0]))
        else:
            (slope, intercept), covariance = self.item.T, self.item_covariance
            sd, by_slope = covariance[:, 0, 0].sqrt(), covariance[:, 0, 1] / covariance[:, 0, 0]
            rest = covariance[:, 1, 1] - by_slope * covariance[:, 0, 1]
            reach = float(sd.max()) * max(1.0, float(self.ability.abs().max()))
            for t, weight in gauss_hermite(min(n_nodes(reach), MOST_SLOPE_NODES)):
                nodes.append((weight, slope + sd * t, intercept + by_slope * sd * t, rest))
        for weight, slope, intercept, variance in nodes:
            mean = torch.outer(self.ability, slope) + intercept
            spread = torch.outer(self.ability_variance, slope**2) + variance
            yield weight, slope, mean, spread.sqrt()


@cache
def gauss_hermite(n: int) -> list[tuple[float, float]]:
    """Return nodes and weights for expectations over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))


def n_nodes(sd: float) -> int:
    """Return the number of nodes that a logit of this standard deviation needs."""
    return next(n for widest, n in RULES if sd <= widest)


def logistic_moments(mean: Tensor, sd: Tensor, order: int) -> list[Tensor]:
    """Return E[t^k sigma(mean + sd t)] for k = 0 .. order."""
    moments = [torch.zeros_like(mean) for _ in range(order + 1)]
    for t, weight in gauss_hermite(n_nodes(float(sd.max()))):
        p = torch.add(mean, sd, alpha=t).sigmoid_()
        for k, moment in enumerate(moments):
            moment.add_(p, alpha=weight * t**k)
    return moments


def site_from(precision: Tensor, gradient: Tensor, mean: Tensor) -> Natural:
    """Return the Gaussians with these derivatives of the expected log-likelihood at the means."""
    return Natural(precision, gradient + torch.einsum("nij,nj->ni", precision, mean))


def ability_derivatives(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return minus second (n, 1, 1) and first (n, 1) expected derivatives by ability."""
    gradient, precision = torch.zeros_like(cells.ability), torch.zeros_like(cells.ability)
    for weight, slope, mean, sd in cells.slopes():
        m0, m1 = logistic_moments(mean, sd, 1)
        gradient += weight * ((cells.correct - cells.asked(m0)) @ slope)
        precision += weight * (cells.asked(m1 / sd) @ slope**2)
    return precision[:, None, None], gradient[:, None]


def item_derivatives(cells: Cells, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return minus second (n, k, k) and first (n, k) expected derivatives by item parameters.

    Rows stand for ``count`` (n_rows,) persons each.
    """
    size = cells.item.shape[1]
    m, s2 = cells.ability[:, None], cells.ability_variance[:, None]
    gradient, precision = torch.zeros_like(cells.item), torch.zeros_like(cells.item_covariance)
    for weight, slope, mean, sd in cells.slopes():
        m0, m1, *higher = logistic_moments(mean, sd, 1 if size == 1 else 3)
        if size == 2:
            lift = s2 * slope / sd  # theta given z is m + lift t, with variance s2 - lift^2
            once, twice = (higher[0] - m0) / sd, (higher[1] - 2 * m1) / sd  # E[t s'], E[t^2 s']
            surplus = m * cells.correct - cells.asked(m * m0 + lift * m1)
            gradient[:, 0] += weight * (count @ surplus)
            precision[:, 0, 1] += weight * (count @ cells.asked(m * m1 / sd + lift * once))
            squared = (m**2 + s2 - lift**2) * m1 / sd + 2 * m * lift * once + lift**2 * twice
            precision[:, 0, 0] += weight * (count @ cells.asked(squared))
        gradient[:, -1] += weight * (count @ (cells.correct - cells.asked(m0)))
        precision[:, -1, -1] += weight * (count @ cells.asked(m1 / sd))
    if size == 2:
        precision[:, 1, 0] = precision[:, 0, 1]
    return precision, gradient


def expected_loglik(cells: Cells, count: Tensor) -> float:
    """Return the expected log-likelihood of the cells, in nats."""
    total = 0.0
    for weight, _, mean, sd in cells.slopes():
        minus_log_q = torch.zeros_like(mean)
        for t, node_weight in gauss_hermite(n_nodes(float(sd.max()))):
            minus_log_q.add_(softplus(torch.add(mean, sd, alpha=t)), alpha=node_weight)
        total += weight * float((count @ (cells.correct * mean - cells.asked(minus_log_q))).sum())
    return total


@dataclass(frozen=True)
class Variational:
    """A variational fit: the point estimates as an IRTFit, and what only this method gives."""

    fit: IRTFit  # posterior means and standard deviations of the items
    abilities: pd.DataFrame  # by person: theta and se (logits) of the Gaussian
    elbo: float  # evidence lower bound, nats: below log P(responses), everything integrated out
    priors: str  # "hierarchical" or "vague"


def infer(
    responses: pd.DataFrame | np.ndarray,
    model: str = "Rasch",
    *,
    priors: str = "hierarchical",
    batch: int | None = None,
    seed: int = 0,
    device: Device = "auto",
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 500,
    tolerance: float = 1e-4,
) -> Variational:
    r"""Fit a Rasch, 1PL or 2PL model by mean-field variational inference.

    Parameters
    ----------
    responses : DataFrame or ndarray, shape (n_persons, n_items)
        As for :func:`psychlm.irt.fit`. Items to which everyone responded alike may stay: their
        prior keeps them finite.
    model : str
        "Rasch", "1PL" or "2PL".
    priors : {"hierarchical", "vague"}
        "hierarchical": populations with unknown mean and precision (see the module). "vague":
        :math:`\theta_j \sim N(0, 1)` and :math:`N(0, 10^3)` for intercepts and slopes.
    batch : int, optional
        Persons (where they outnumber the items) or items in a minibatch; by default about 65,000
        responses.
    seed : int
        Fixes the order of the minibatches, which is all that is random.
    device, item_names
        As for :func:`psychlm.irt.fit`.
    max_iterations : int
        Passes over the responses; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are items whose predicted remaining change is below it (logits).

    References
    ----------
    Lalor (2020), section 1.3.3. Natesan, Nandakumar, Minka & Rubright (2016), Frontiers in
    Psychology 7, 1422.
    """
    kind = MODELS.get(str(model).upper())
    if kind not in ("Rasch", "1PL", "2PL"):
        raise ValueError(
            f"variational inference fits Rasch, 1PL and 2PL, not {model!r}; use method='mml'"
        )
    if priors not in PRIORS:
        raise ValueError(f"priors are {priors!r}; take one of {PRIORS}")
    chosen = pick_device(device, "irt.variational.infer", getattr(responses, "size", 0))
    encoded = encode_responses(responses, chosen, item_names)
    if encoded.n_items < 3:
        raise FrameError(
            f"{encoded.n_items} items do not identify a {kind} model; it takes at least 3"
        )
    search = Search(encoded, kind, priors, batch, seed)

    # Pass over the responses until the items rest, judged by a geometric rate of change.
    before, last, converged = search.parameters().table(), float("inf"), False
    for n_sweeps in range(1, max_iterations + 1):  # noqa: B007 (reported below)
        search.sweep()
        now = search.parameters().table()
        change = float((now - before).abs().max())
        rate = min(change / last, 0.99)
        if n_sweeps > 2 and change * max(1.0, rate / (1 - rate)) < tolerance:
            converged = True
            break
        before, last = now, change
    if not converged:
        warnings.warn(
            f"no convergence in {max_iterations} passes over the responses; raise max_iterations",
            IRTWarning,
            stacklevel=2,
        )
    return search.result(converged, n_sweeps)


class Search:
    """The factors of one data set, and the passes that improve them."""

    def __init__(
        self, responses: ResponseMatrix, kind: str, priors: str, batch: int | None, seed: int
    ) -> None:
        self.responses, self.kind, self.priors = responses, kind, priors
        self.rng = np.random.default_rng(seed)
        n_rows, n_items = responses.values.shape
        self.wide = n_items > n_rows
        length, width = (n_items, n_rows) if self.wide else (n_rows, n_items)
        size = batch or max(1, BATCH_CELLS // width)
        self.batches = [slice(start, min(start + size, length)) for start in range(0, length, size)]

        # Items begin with slopes of 1 and intercepts from the proportions correct.
        share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
        intercept = 1.2 * torch.logit(share)  # 1.2: logits at ability 0 spread more
        slope = [torch.ones_like(share)] if kind == "2PL" else []
        mean = torch.stack([*slope, intercept], 1)
        k = mean.shape[1]
        eye = torch.eye(k, dtype=torch.float64, device=mean.device)
        hierarchical = Population("hierarchical")
        fixed = Population("fixed", 0.0, VAGUE_PRECISION)
        of_items = [hierarchical if priors == "hierarchical" else fixed] * k
        spread = START_VARIANCE * eye.repeat(n_items, 1, 1)
        self.items = Factor(mean, spread, torch.ones_like(share), of_items)

        # Persons begin with standardised sums: equal abilities would say nothing about slopes.
        share, count = responses.n_correct / responses.n_answered, responses.count
        surplus, variance = torch.zeros_like(count), torch.zeros_like(count)
        for block in responses.blocks():
            answered = torch.ones_like(block.correct) if block.answered is None else block.answered
            part = share[block.items]
            surplus += block.correct.sum(1) - answered @ part
            variance += answered @ (part * (1 - part))
        score = surplus / variance.clamp_min(0.1).sqrt()
        centre = score @ count / count.sum()
        sd = ((score - centre) ** 2 @ count / count.sum()).sqrt().clamp_min(1e-3)
        ability = ((score - centre) / sd)[:, None]
        # With vague priors a free scale of ability stands for the 1PL's slope, whose prior is flat.
        vague = Population("estimated" if kind == "1PL" else "fixed")
        of_persons = [hierarchical if priors == "hierarchical" else vague]
        spread = torch.full_like(ability, START_VARIANCE)[:, :, None]
        self.persons = Factor(ability, spread, count, of_persons)

        # The site of the shorter side's units, and each batch's share of it.
        k = 1 if self.wide else k
        zeros = mean.new_zeros(width, k, k)
        self.total = Natural(zeros, zeros[:, 0].clone())
        self.shares: dict[int, Natural] = {}

    def sweep(self) -> None:
        """Update everything once, batch by batch."""
        for b in map(int, self.rng.permutation(len(self.batches))):
            rows, columns = self.extent(b)
            cells = self.cells(rows, columns)
            # The units of the batch, from all their responses.
            if self.wide:
                self.items.update(columns, self.item_site(cells, rows, columns))
                share = self.person_site(self.cells(rows, columns), rows)
            else:
                self.persons.update(rows, self.person_site(cells, rows))
                share = self.item_site(self.cells(rows, columns), rows, columns)
            # The units of the other side, by what has changed in the batch's share.
            stale = self.shares.get(b, Natural(*map(torch.zeros_like, share)))
            parts = zip(self.total, share, stale, strict=True)
            self.total = Natural(*(whole + new - old for whole, new, old in parts))
            self.shares[b] = share
            (self.persons if self.wide else self.items).update(slice(None), self.total)

        # Where the populations' means and variances are not free to move, move the scale.
        if self.kind == "2PL" or self.priors == "vague":
            of_persons, of_items = best_scale(self.persons, self.items)
            self.persons.move(*of_persons)
            self.items.move(*of_items)
            move = of_persons if self.wide else of_items
            self.total = self.total.moved(*move)
            self.shares = {b: share.moved(*move) for b, share in self.shares.items()}
        self.persons.learn()
        self.items.learn()

    def extent(self, b: int) -> tuple[slice, slice]:
        """Return the rows and columns of a batch."""
        return (slice(None), self.batches[b]) if self.wide else (self.batches[b], slice(None))

    def cells(self, rows: slice, columns: slice) -> Cells:
        """Return responses with the present Gaussians of their persons and items."""
        persons, items = self.persons, self.items
        ability, variance = persons.mean[rows, 0], persons.covariance[rows, 0, 0]
        item, covariance = items.mean[columns], items.covariance[columns]
        return Cells(*self.responses.cells(rows, columns), ability, variance, item, covariance)

    def person_site(self, cells: Cells, rows: slice) -> Natural:
        """Return what the cells say about their persons."""
        return site_from(*ability_derivatives(cells), self.persons.mean[rows])

    def item_site(self, cells: Cells, rows: slice, columns: slice) -> Natural:
        """Return what the cells say about their items."""
        derivatives = item_derivatives(cells, self.persons.weight[rows])
        return site_from(*derivatives, self.items.mean[columns])

    def elbo(self) -> float:
        """Return the evidence lower bound, in nats."""
        total = self.persons.bound() + self.items.bound()
        for rows, columns in map(self.extent, range(len(self.batches))):
            total += expected_loglik(self.cells(rows, columns), self.persons.weight[rows])
        return total

    def scale(self) -> tuple[float, float]:
        """Return mean and standard deviation of the population of abilities."""
        population = self.persons.populations[0]
        return population.mean, population.precision**-0.5

    def parameters(self) -> Parameters:
        """Return posterior means of the items in standard-normal units of ability."""
        mean, sd = self.scale()
        intercept = self.items.mean[:, -1]
        slope = self.items.mean[:, 0] if self.kind == "2PL" else torch.ones_like(intercept)
        return Parameters(slope * sd, intercept + slope * mean, torch.zeros_like(slope))

    def result(self, converged: bool, n_sweeps: int) -> Variational:
        """Return the estimates on the model's own scale."""
        responses, parameters, kind = self.responses, self.parameters(), self.kind
        mean, sd = self.scale()
        items = parameters.frame(responses.items)

        # Posterior standard deviations; b = -d / a, so db = -(dd + b da) / a.
        covariance = self.items.covariance.cpu().numpy()
        var_d = covariance[:, -1, -1]
        if kind == "2PL":
            var_a, cov = covariance[:, 0, 0], covariance[:, 0, 1]
            var_d = var_d + 2 * mean * cov + mean**2 * var_a
            cov, var_a = sd * (cov + mean * var_a), sd**2 * var_a
            items["se_a"], b = np.sqrt(var_a), items["b"]
            items["se_b"] = np.sqrt(var_d + 2 * b * cov + b**2 * var_a) / items["a"].abs()
        else:
            if kind == "Rasch":
                items["a"], items["b"] = 1.0, -items["d"]
            items["se_a"], items["se_b"] = np.nan, np.sqrt(var_d) / items["a"]
        items["se_c"], items["se_d"], items["c_is_free"] = np.nan, np.sqrt(var_d), False
        items["converged"] = converged

        # The marginal log-likelihood at the estimates, as method="mml" would report it.
        none_free = torch.zeros_like(parameters.slope, dtype=torch.bool)
        design = Design(kind != "2PL", none_free, {})
        em = EM(responses, design, quadrature_grid(device=responses.device), Settings(0, 0))
        _, loglik = em.expect(parameters)
        n_items = responses.n_items
        fit = IRTFit(
            items=items[COLUMNS],
            model=kind,
            method="vi",
            loglik=loglik,
            log_prior=np.nan,
            n_parameters=2 * n_items if kind == "2PL" else n_items + 1,
            n_persons=responses.n_persons,
            converged=converged,
            n_iterations=n_sweeps,
            ability_mean=0.0,
            ability_sd=sd if kind == "Rasch" else 1.0,
            se_ability_variance=np.nan,
            ability_sd_check=reestimated_sd(em.grid, em.at_nodes, em.responses.count),
            loglik_error=em.grid_error(parameters, loglik),
            quadrature=str(em.grid),
            covariance=None,
            data_hash=responses.data_hash,
        )
        unit = 1.0 if kind == "Rasch" else sd  # one unit of the reported ability
        theta = (self.persons.mean[:, 0] - mean) / unit
        se = self.persons.covariance[:, 0, 0].sqrt() / unit
        table = torch.stack([theta, se], 1).cpu().numpy()[responses.row]
        abilities = pd.DataFrame(table, responses.persons, ["theta", "se"])
        return Variational(fit, abilities, self.elbo(), self.priors)
