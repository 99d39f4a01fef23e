r"""Mean-field variational inference for the Rasch, 1PL and 2PL models.

The posterior of all abilities and items is approximated by a product of Gaussians, one a person and one an item (Lalor
2020, equation 1.9; an item's slope and intercept share one Gaussian), that comes closest to it in Kullback-Leibler
divergence. The expectations in the bound are exact up to quadrature (:mod:`psychlm.irt.expectations`), so
nothing is sampled, and every update is a Newton step of the bound in a Gaussian's natural parameters (Khan and Lin
2017): the answers act on it as one Gaussian observation, a *site*.

Answers are read in minibatches along the longer side. The units of a batch (local) are updated from all their answers;
the units of the other side (global) by replacing the batch's share of their site (incremental inference, Neal and
Hinton 1998), so the resting point is that of a pass over everything, and there is no step size to choose.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from psychlm.frames import FrameError
from psychlm.irt import mml
from psychlm.irt.answers import MISSING, Answers, read_answers
from psychlm.irt.choices import MODELS, IRTWarning, pick_device
from psychlm.irt.expectations import Beliefs, Cells, ability_site, expected_loglik, item_site
from psychlm.irt.factors import Factor, Natural, Population, best_scale
from psychlm.irt.likelihood import Design, Parameters, parameter_frame
from psychlm.irt.quadrature import lattice
from psychlm.irt.result import IRTFit

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
    answers = read_answers(responses, pick_device(device, responses.size), item_names)
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
        self, answers: Answers, kind: str, priors: str, batch: int | None, seed: int
    ) -> None:
        self.answers, self.kind, self.priors = answers, kind, priors
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
        share = (self.answers.n_correct + 0.5) / (self.answers.n_answered + 1)
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
        share = self.answers.n_correct / self.answers.n_answered
        count = self.answers.count
        surplus, variance = torch.zeros_like(count), torch.zeros_like(count)
        for block in self.answers.blocks():
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
        raw = torch.from_numpy(np.ascontiguousarray(self.answers.values[rows, columns])).to(
            self.answers.device
        )
        if self.answers.complete:
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
            theta.cpu().numpy()[self.answers.row], self.answers.persons, ["theta", "se"]
        )
        return Variational(self._fit(converged, n_sweeps), abilities, self.elbo(), self.priors)

    def _fit(self, converged: bool, n_sweeps: int) -> IRTFit:
        parameters = self.parameters()
        found = mml.EM(
            self.answers,
            Design(self.kind != "2PL", torch.zeros_like(parameters.slope, dtype=torch.bool), {}),
            lattice(device=self.answers.device),
            mml.Settings(0, 0, progress=False),
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
            n_parameters=self.answers.n_items * (2 if self.kind == "2PL" else 1)
            + (self.kind != "2PL"),
            n_persons=self.answers.n_persons,
            converged=converged,
            n_iterations=n_sweeps,
            ability_mean=0.0,
            ability_sd=sd if rasch else 1.0,
            se_ability_variance=np.nan,
            ability_sd_check=mml._sd_check(found),
            loglik_error=abs(mml._finer_objective(found, parameters) - loglik),
            quadrature=str(found.lattice),
            covariance=None,
        )

    def _item_frame(self, parameters: Parameters) -> pd.DataFrame:
        """Return a, b, c, d and their posterior standard deviations."""
        items = parameter_frame(parameters, self.answers.items)
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
