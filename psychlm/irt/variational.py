r"""Mean-field variational inference for the Rasch, 1PL and 2PL models.

The posterior of all abilities and items is approximated by a product of Gaussians, one a person and one an item (Lalor
2020, equation 1.9; an item's slope and intercept share one Gaussian), that comes closest to it in Kullback-Leibler
divergence. The expectations in the bound are exact up to quadrature (:mod:`psychlm.irt.expectations`), so
nothing is sampled, and every update is a Newton step of the bound in a Gaussian's natural parameters (Khan and Lin
2017): the answers act on it as one Gaussian observation, a *site*.

Responses are read in minibatches along the longer side. The units of a batch (local) are updated from all their answers;
the units of the other side (global) by replacing the batch's share of their site (incremental inference, Neal and
Hinton 1998), so the resting point is that of a pass over everything, and there is no step size to choose.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from psychlm.frames import FrameError
from psychlm.irt.em import EM, Settings, ability_sd_check, finer_objective
from psychlm.irt.likelihood import Design, Parameters, parameter_frame, quadrature_grid
from psychlm.irt.response_matrix import MISSING, ResponseMatrix, encode_responses, pick_device
from psychlm.irt.result import MODELS, IRTFit, IRTWarning

MEAN_VARIANCE = 1e6  # of m
LARGEST_UPDATE = 1.0  # logits (or per logit), of one update of a mean


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
        """Combine what the answers say of some units with their population; means move by ``LARGEST_UPDATE`` at most."""
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
        self.mean[at] += (wanted - self.mean[at]).clamp(-LARGEST_UPDATE, LARGEST_UPDATE)
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


PRIORS = ("hierarchical", "vague")
BATCH_CELLS = (
    2**16
)  # answers in a minibatch unless told: float64 copies of it stay in the processor's cache
START_VARIANCE = 0.1
VAGUE_PRECISION = 1e-3  # Lalor (2020), section 1.3.3: N(0, 10^3)


@dataclass(frozen=True)
class Variational:
    """A variational fit: the point estimates as an IRTFit, and what only this method gives."""

    fit: IRTFit  # posterior means and standard deviations of the items, on the model's own scale
    abilities: (
        pd.DataFrame
    )  # by person: theta, se (logits), mean and standard deviation of the Gaussian
    elbo: float  # the evidence lower bound, nats: below log P(answers), with items and populations integrated out
    priors: str  # "hierarchical" or "vague"


def infer(
    responses: pd.DataFrame | np.ndarray,
    model: str = "Rasch",
    *,
    priors: str = "hierarchical",
    batch: int | None = None,
    seed: int = 0,
    device: str = "auto",
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 500,
    tolerance: float = 1e-4,
) -> Variational:
    r"""Fit a Rasch, 1PL or 2PL model by mean-field variational inference.

    Parameters
    ----------
    responses : DataFrame or ndarray, shape (n_persons, n_items)
        As for :func:`psychlm.irt.fit`. Items that all answered alike stay: their prior keeps them finite.
    model : str
        "Rasch", "1PL" or "2PL".
    priors : {"hierarchical", "vague"}
        "hierarchical": :math:`\theta_j \sim N(m_\theta, u_\theta^{-1})`, the intercepts :math:`d_i` (= -b for slopes
        of 1) and the slopes likewise, each with :math:`m \sim N(0, 10^6)` and :math:`u \sim \Gamma(1, 1)`.
        "vague": :math:`\theta_j \sim N(0, 1)` and :math:`N(0, 10^3)` for intercepts and slopes.
    batch : int, optional
        Persons (where they outnumber the items) or items in a minibatch; about 65,000 answers unless given.
    seed : int
        Fixes the order of the minibatches, which is all that is random.
    device, item_names
        As for :func:`psychlm.irt.fit`.
    max_iterations : int
        Passes over the answers; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are items whose predicted remaining change is below it (logits).

    Returns
    -------
    Variational

    Raises
    ------
    FrameError
        If responses are malformed or there are fewer than 3 items.

    References
    ----------
    Lalor (2020), section 1.3.3. Natesan, Nandakumar, Minka & Rubright (2016), Frontiers in Psychology 7, 1422.
    """
    kind = MODELS.get(str(model).upper())
    if kind not in ("Rasch", "1PL", "2PL"):
        raise ValueError(
            f"variational inference knows Rasch, 1PL and 2PL, not {model!r}; use method='mml'"
        )
    if priors not in PRIORS:
        raise ValueError(f"priors are {priors!r}; take one of {PRIORS}")
    answers = encode_responses(responses, pick_device(device, responses.size), item_names)
    if answers.n_items < 3:
        raise FrameError(
            f"{answers.n_items} items do not identify a {kind} model; it takes at least 3"
        )
    search = _Search(answers, kind, priors, batch, seed)
    converged, n_sweeps = search.run(max_iterations, tolerance)
    if not converged:
        warnings.warn(
            f"no convergence in {n_sweeps} passes over the answers; raise max_iterations",
            IRTWarning,
            stacklevel=2,
        )
    return search.result(converged, n_sweeps)


class _Search:
    """The factors of one data set, and the passes that improve them."""

    def __init__(
        self, answers: ResponseMatrix, kind: str, priors: str, batch: int | None, seed: int
    ) -> None:
        self.responses, self.kind, self.priors = answers, kind, priors
        self.rng = np.random.default_rng(seed)
        n_rows, n_items = answers.values.shape
        self.wide = n_items > n_rows
        length, other = (n_items, n_rows) if self.wide else (n_rows, n_items)
        size = batch or max(1, BATCH_CELLS // other)
        self.batches = [slice(start, min(start + size, length)) for start in range(0, length, size)]
        self.persons, self.items = self._starting_persons(), self._starting_items()
        self.moves_scale = (
            kind == "2PL" or priors == "vague"
        )  # else the populations' means and variances are free to
        self.shares: dict[int, Natural] = {}  # by batch: its share of the global side's sites
        k = 1 if self.wide else self.items.mean.shape[1]
        zeros = torch.zeros(other, k, k, dtype=torch.float64, device=answers.device)
        self.total = Natural(zeros, zeros[:, 0].clone())

    def _starting_items(self) -> Factor:
        """Begin with slopes of 1 and intercepts from the shares of right answers."""
        share = (self.responses.n_correct + 0.5) / (self.responses.n_answered + 1)
        intercept = 1.2 * torch.logit(share)  # 1.2: logits at ability 0 spread more
        mean = (
            torch.stack([torch.ones_like(share), intercept], 1)
            if self.kind == "2PL"
            else intercept[:, None]
        )
        n, k = mean.shape
        covariance = START_VARIANCE * torch.eye(k, dtype=torch.float64, device=mean.device).repeat(
            n, 1, 1
        )
        population = (
            Population("hierarchical")
            if self.priors == "hierarchical"
            else Population("fixed", 0.0, VAGUE_PRECISION)
        )
        return Factor(mean, covariance, torch.ones_like(share), [population] * k)

    def _starting_persons(self) -> Factor:
        """Begin with standardised sums of right answers: equal abilities would tell nothing about slopes."""
        share = self.responses.n_correct / self.responses.n_answered
        count = self.responses.count
        surplus, variance = torch.zeros_like(count), torch.zeros_like(count)
        for block in self.responses.blocks():
            answered = torch.ones_like(block.correct) if block.answered is None else block.answered
            part = share[block.items]
            surplus += block.correct.sum(1) - answered @ part
            variance += answered @ (part * (1 - part))
        score = surplus / variance.clamp_min(0.1).sqrt()
        mean = score @ count / count.sum()
        sd = ((score - mean) ** 2 @ count / count.sum()).sqrt().clamp_min(1e-3)
        ability = ((score - mean) / sd)[:, None]
        # With vague priors a free scale of ability stands for the 1PL's common slope, whose prior is as good as flat.
        vague = "estimated" if self.kind == "1PL" else "fixed"
        population = Population("hierarchical" if self.priors == "hierarchical" else vague)
        return Factor(
            ability, torch.full_like(ability, START_VARIANCE)[:, :, None], count, [population]
        )

    def run(self, max_iterations: int, tolerance: float) -> tuple[bool, int]:
        """Pass over the answers until the items rest; return whether they do, and the number of passes."""
        before, last = self.parameters().vector(), float("inf")
        for n in range(1, max_iterations + 1):
            self.sweep()
            now = self.parameters().vector()
            change = float((now - before).abs().max())
            rate = min(change / last, 0.99)
            if n > 2 and change * max(1.0, rate / (1 - rate)) < tolerance:
                return True, n
            before, last = now, change
        return False, max_iterations

    def sweep(self) -> None:
        """Update everything once, batch by batch."""
        for b in self.rng.permutation(len(self.batches)):
            self._visit(int(b))
        if self.moves_scale:
            self._move_scale()
        self.persons.learn()
        self.items.learn()

    def _move_scale(self) -> None:
        """Carry everything to the scale of ability that suits the priors; passes alone would creep towards it."""
        of_persons, of_items = best_scale(self.persons, self.items)
        self.persons.move(of_persons)
        self.items.move(of_items)
        by = of_persons if self.wide else of_items
        self.total = self.total.moved(by)
        self.shares = {b: share.moved(by) for b, share in self.shares.items()}

    def _visit(self, b: int) -> None:
        """Update a batch's local units, then the global ones by what has changed in its share."""
        rows, columns = self._extent(b)
        cells = self._cells(rows, columns)
        if self.wide:
            self.items.update(columns, self._of_items(cells, rows, columns))
            share = self._of_persons(cells, rows, columns)
        else:
            self.persons.update(rows, self._of_persons(cells, rows, columns))
            share = self._of_items(cells, rows, columns)
        stale = self.shares.get(b, Natural(*map(torch.zeros_like, share)))
        self.total = Natural(
            *(whole + new - old for whole, new, old in zip(self.total, share, stale, strict=True))
        )
        self.shares[b] = share
        (self.persons if self.wide else self.items).update(slice(None), self.total)

    def _extent(self, b: int) -> tuple[slice, slice]:
        return (slice(None), self.batches[b]) if self.wide else (self.batches[b], slice(None))

    def _cells(self, rows: slice, columns: slice) -> Cells:
        raw = torch.from_numpy(np.ascontiguousarray(self.responses.values[rows, columns])).to(
            self.responses.device
        )
        if self.responses.complete:
            return Cells(raw.to(torch.float64), None)
        return Cells((raw == 1).to(torch.float64), (raw != MISSING).to(torch.float64))

    def _beliefs(self, rows: slice, columns: slice) -> Beliefs:
        return Beliefs(
            self.persons.mean[rows, 0],
            self.persons.covariance[rows, 0, 0],
            self.items.mean[columns],
            self.items.covariance[columns],
        )

    def _of_persons(self, cells: Cells, rows: slice, columns: slice) -> Natural:
        site = ability_site(cells, self._beliefs(rows, columns))
        return site.around(self.persons.mean[rows])

    def _of_items(self, cells: Cells, rows: slice, columns: slice) -> Natural:
        site = item_site(cells, self._beliefs(rows, columns), self.persons.weight[rows])
        return site.around(self.items.mean[columns])

    def elbo(self) -> float:
        """Return the evidence lower bound, in nats."""
        total = self.persons.bound() + self.items.bound()
        for b in range(len(self.batches)):
            rows, columns = self._extent(b)
            cells, beliefs = self._cells(rows, columns), self._beliefs(rows, columns)
            total += expected_loglik(cells, beliefs, self.persons.weight[rows])
        return total

    def parameters(self) -> Parameters:
        """Return posterior means of the items in standard-normal units of ability."""
        mean, sd = self._scale()
        intercept = self.items.mean[:, -1]
        slope = self.items.mean[:, 0] if self.kind == "2PL" else torch.ones_like(intercept)
        return Parameters(slope * sd, intercept + slope * mean, torch.zeros_like(slope))

    def _scale(self) -> tuple[float, float]:
        """Return mean and standard deviation of the population of abilities."""
        population = self.persons.populations[0]
        return population.mean, population.precision**-0.5

    def result(self, converged: bool, n_sweeps: int) -> Variational:
        """Put the estimates on the model's own scale."""
        mean, sd = self._scale()
        unit = (
            1.0 if self.kind == "Rasch" else sd
        )  # what one unit of the reported ability measures here
        theta = (
            torch.stack(
                [self.persons.mean[:, 0] - mean, self.persons.covariance[:, 0, 0].sqrt()], 1
            )
            / unit
        )
        abilities = pd.DataFrame(
            theta.cpu().numpy()[self.responses.row], self.responses.persons, ["theta", "se"]
        )
        return Variational(self._fit(converged, n_sweeps), abilities, self.elbo(), self.priors)

    def _fit(self, converged: bool, n_sweeps: int) -> IRTFit:
        parameters = self.parameters()
        found = EM(
            self.responses,
            Design(self.kind != "2PL", torch.zeros_like(parameters.slope, dtype=torch.bool), {}),
            quadrature_grid(device=self.responses.device),
            Settings(0, 0, progress=False),
        )
        _, loglik = found.expect(parameters)
        sd = self._scale()[1]
        rasch = self.kind == "Rasch"
        return IRTFit(
            items=self._item_frame(parameters),
            model=self.kind,
            method="vi",
            loglik=loglik,
            log_prior=np.nan,
            n_parameters=self.responses.n_items * (2 if self.kind == "2PL" else 1)
            + (self.kind != "2PL"),
            n_persons=self.responses.n_persons,
            converged=converged,
            n_iterations=n_sweeps,
            ability_mean=0.0,
            ability_sd=sd if rasch else 1.0,
            se_ability_variance=np.nan,
            ability_sd_check=ability_sd_check(found),
            loglik_error=abs(finer_objective(found, parameters) - loglik),
            quadrature=str(found.grid),
            covariance=None,
        )

    def _item_frame(self, parameters: Parameters) -> pd.DataFrame:
        """Return a, b, c, d and their posterior standard deviations."""
        items = parameter_frame(parameters, self.responses.items)
        mean, sd = self._scale()
        covariance = self.items.covariance.cpu().numpy()
        var_d = covariance[:, -1, -1]
        if self.kind == "2PL":
            var_a, cov = covariance[:, 0, 0], covariance[:, 0, 1]
            a, b = items["a"], items["b"]
            var_d, cov, var_a = (
                var_d + 2 * mean * cov + mean**2 * var_a,
                sd * (cov + mean * var_a),
                sd**2 * var_a,
            )
            items["se_a"] = np.sqrt(var_a)
            items["se_b"] = (
                np.sqrt(var_d + 2 * b * cov + b**2 * var_a) / a.abs()
            )  # db = -(dd + b da) / a
        else:
            if self.kind == "Rasch":
                items["a"], items["b"] = 1.0, -items["d"]
            items["se_a"], items["se_b"] = np.nan, np.sqrt(var_d) / items["a"]
        items["se_c"], items["se_d"], items["c_is_free"] = np.nan, np.sqrt(var_d), False
        return items[["a", "b", "c", "d", "se_a", "se_b", "se_c", "se_d", "c_is_free"]]
