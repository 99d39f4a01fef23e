r"""Marginal maximum likelihood by the EM algorithm of Bock and Aitkin (1981).

Each step also lets ability's mean and spread move to what the posteriors say, and absorbs the move into the item
parameters (parameter-expanded EM; Liu, Rubin and Wu 1998). The likelihood still never falls, and with many
items, where plain EM hardly moves the scale of ability, it converges as fast as with few. Pairs of steps are
extrapolated by SQUAREM (Varadhan and Roland 2008), and an extrapolation that lowers the likelihood is taken back.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from psychlm.irt.answers import Answers
from psychlm.irt.likelihood import Design, Parameters, node_loglik, rescaled, resolved_posterior
from psychlm.irt.local_maxima import better_items
from psychlm.irt.mstep import maximise
from psychlm.irt.polish import newton
from psychlm.irt.quadrature import STEP, Lattice, Posterior, lattice, posterior
from psychlm.irt.standard_errors import EXACT_PARAMETERS, RUNAWAY_SLOPE

LATTICE_ERROR = (
    0.01  # nats: a log-likelihood that moves less when the lattice is made twice as fine is taken
)
SMALLEST_STEP = STEP / 16
LARGEST_LEAP = 2.0  # of a slope, in one extrapolation
ABSORPTION_STEPS = 5
SD_STEPS = 100
ROUGH = 0.01  # logits: where EM hands over to Newton's method
LOGLIK_TOLERANCE = 1e-5  # nats, gained by the last EM step


@dataclass(frozen=True)
class Settings:
    """When to stop, and whether to talk."""

    tolerance: float  # predicted remaining change of any parameter
    max_iterations: int  # EM steps
    progress: bool


@dataclass(frozen=True)
class Estimate:
    """Where EM came to rest, or to its last iteration."""

    parameters: Parameters
    posterior: Posterior
    lattice: Lattice
    loglik: float  # nats
    converged: bool
    n_iterations: int
    loglik_error: float  # nats, see LATTICE_ERROR
    ability_sd: float  # re-estimated with the items held


class EM:
    """The EM map of one data set: parameters in, better parameters and the old ones' log-likelihood out."""

    def __init__(self, answers: Answers, design: Design, on: Lattice, settings: Settings) -> None:
        self.answers, self.design, self.lattice, self.settings = answers, design, on, settings
        self.n_steps = 0
        self.accuracy = 1e-2  # of the next M-step
        self.at_nodes = torch.empty(0)  # log-likelihoods (n_rows, n_nodes) of the last E-step

    def expect(self, parameters: Parameters) -> tuple[Posterior, float]:
        """E-step: the posteriors, and log-likelihood plus log prior; widens or refines the lattice where they ask."""
        self.lattice, self.at_nodes, found = resolved_posterior(
            self.answers, parameters, self.lattice
        )
        return found, float(found.loglik @ self.answers.count) + self.design.log_prior(parameters)

    def step(self, parameters: Parameters) -> tuple[Parameters, float]:
        """One EM step: better parameters, and the objective of those that were given."""
        found, objective = self.expect(parameters)
        better = maximise(
            self.answers, self.design, parameters, found, self.lattice.nodes, self.accuracy
        )
        self.n_steps += 1
        better = self._absorb(better, found)
        fixed = (parameters.slope.abs() > RUNAWAY_SLOPE).repeat(
            3
        )  # no maximum to go to; reported after the fit
        return Parameters.of(torch.where(fixed, parameters.vector(), better.vector())), objective

    def _absorb(self, parameters: Parameters, found: Posterior) -> Parameters:
        """Let ability's mean and spread move, and keep it N(0, 1): priors on slopes and intercepts have their say."""
        mean, sd = ability_moments(found, self.answers.count)
        n, priors = self.answers.n_persons, self.design.priors
        if "intercept" in priors:
            a, d = parameters.slope, parameters.intercept
            target, mean = mean, torch.zeros_like(mean)
            for _ in range(ABSORPTION_STEPS):
                first, second = priors["intercept"].derivatives(d + a * mean)
                mean = mean + (n * (target - mean) + first @ a) / (n - second @ a**2)
        if "slope" in priors:
            square, log_sd = (
                sd**2,
                torch.zeros_like(sd),
            )  # the posteriors' spread; Newton's method in log sd
            for _ in range(ABSORPTION_STEPS):
                a = parameters.slope * log_sd.exp()
                first, second = priors["slope"].derivatives(a)
                pull = n * square * (-2 * log_sd).exp()
                curvature = 2 * pull - (second @ a**2 + first @ a)
                log_sd = log_sd + ((pull - n + first @ a) / curvature.clamp_min(1.0)).clamp(
                    -0.5, 0.5
                )
            sd = log_sd.exp()
        return rescaled(parameters, mean, sd)


def ability_moments(found: Posterior, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of ability over all persons' posteriors."""
    n = count.sum()
    mean = found.mean @ count / n
    return mean, ((found.variance + (found.mean - mean) ** 2) @ count / n).sqrt()


def estimate(answers: Answers, design: Design, start: Parameters, settings: Settings) -> Estimate:
    """Run EM to its fixed point, then again on finer lattices until a finer one changes nothing."""
    em = EM(answers, design, lattice(device=answers.device), settings)
    parameters = start
    while True:
        parameters, converged = _climbed(em, parameters)
        found, objective = em.expect(parameters)
        if converged and (other := _escaped(em, parameters, found, objective)) is not None:
            parameters = other
            continue
        error = abs(_finer_objective(em, parameters) - objective)
        if (
            error < LATTICE_ERROR
            or em.lattice.step <= SMALLEST_STEP
            or em.n_steps >= settings.max_iterations
        ):
            break
        em.lattice = _halved(em.lattice)
    loglik = float(found.loglik @ answers.count)
    sd = _sd_check(em)
    parameters = _oriented(answers, parameters, found)
    return Estimate(parameters, found, em.lattice, loglik, converged, em.n_steps, error, sd)


def _climbed(em: EM, parameters: Parameters) -> tuple[Parameters, bool]:
    """Climb by EM; with guessing by EM and Newton's method in turn, since EM's small steps there prove nothing."""
    settings = em.settings
    if not em.design.guessing_free.any() or 3 * em.answers.n_items > EXACT_PARAMETERS:
        return _accelerated(em, parameters, settings.tolerance)
    tolerance = ROUGH
    while True:
        parameters, near = _accelerated(em, parameters, tolerance)
        if not near:
            return parameters, False
        parameters, converged, n_steps = newton(
            em.answers,
            em.design,
            parameters,
            em.lattice,
            lambda at: em.expect(at)[1],
            settings.tolerance,
        )
        em.n_steps += n_steps
        if converged or tolerance < settings.tolerance:
            return parameters, converged
        tolerance /= 10


def _escaped(
    em: EM, parameters: Parameters, found: Posterior, objective: float
) -> Parameters | None:
    """Return parameters of a higher likelihood, where other starts of guessing lead to some, else None."""
    if not em.design.guessing_free.any() or em.n_steps >= em.settings.max_iterations:
        return None
    other = better_items(em.answers, em.design, parameters, found, em.lattice.nodes)
    if other is None or em.expect(other)[1] <= objective + LOGLIK_TOLERANCE:
        return None
    return other


def _oriented(answers: Answers, parameters: Parameters, found: Posterior) -> Parameters:
    """Turn the ability scale so that persons with more right answers stand higher: the likelihood knows no sign."""
    share = answers.n_correct / answers.n_answered
    more_right = torch.zeros_like(found.mean)
    for block in answers.blocks():
        expected = (
            share[block.items].sum()
            if block.answered is None
            else block.answered @ share[block.items]
        )
        more_right += block.correct.sum(1) - expected
    if float((more_right * found.mean) @ answers.count) < 0:
        return replace(parameters, slope=-parameters.slope)
    return parameters


def _sd_check(em: EM) -> float:
    """Return ability's standard deviation, re-estimated with the items held: 1 if the scale is where it should be."""
    on, count = em.lattice, em.answers.count
    mean, sd = torch.zeros((), device=count.device), torch.ones((), device=count.device)
    for _ in range(SD_STEPS):
        weights = -0.5 * ((on.fine - mean) / sd) ** 2
        found = posterior(
            em.at_nodes, replace(on, log_weights=weights - torch.logsumexp(weights, 0))
        )
        before, (mean, sd) = sd, ability_moments(found, count)
        if abs(float(sd - before)) < 1e-5:
            break
    return float(sd)


def _halved(on: Lattice) -> Lattice:
    return lattice(on.step / 2, on.refinement, on.span, on.nodes.device)


def _finer_objective(em: EM, parameters: Parameters) -> float:
    finer = _halved(em.lattice)
    found = posterior(node_loglik(em.answers, parameters, finer.nodes), finer)
    return float(found.loglik @ em.answers.count) + em.design.log_prior(parameters)


def _accelerated(em: EM, parameters: Parameters, tolerance: float) -> tuple[Parameters, bool]:
    """Run SQUAREM cycles of two EM steps and an extrapolation; return the parameters and whether they converged.

    Items whose slopes run away are left out of the judgment; the caller reports them.
    """
    reached, safe, stride = -float("inf"), parameters, 1.0
    while em.n_steps < em.settings.max_iterations:
        first, objective = em.step(parameters)
        if objective < reached - 1e-9 * abs(reached):  # the extrapolation went downhill
            parameters, stride = safe, 1.0
            first, objective = em.step(parameters)
        second, reached = em.step(first)
        settled = (second.slope.abs() < RUNAWAY_SLOPE).to(torch.float64).repeat(3)
        start, once, twice = parameters.vector(), first.vector(), second.vector()
        step, curvature, last = once - start, twice - 2 * once + start, (twice - once) * settled
        length = float(
            (step * settled).norm() / (curvature * settled).norm().clamp_min(1e-300)
        )  # 1 / (1 - EM's rate)
        change = float(last.abs().max()) * max(length, 1.0)
        if em.settings.progress:
            print(
                f"EM step {em.n_steps}: {reached:.4f} nats, predicted change {change:.2g}",
                file=sys.stderr,
            )
        if (
            change < tolerance
            and reached - objective < LOGLIK_TOLERANCE * tolerance / em.settings.tolerance
        ):
            return second, True
        em.accuracy = max(min(em.accuracy, 0.1 * float(last.abs().max())), 0.01 * tolerance)
        length, stride = min(max(length, 1.0), stride), stride * 4 if length >= stride else stride
        safe = second
        parameters = _proposal(start + 2 * length * step + length**2 * curvature, second)
    return safe, False


def _proposal(vector: Tensor, safe: Parameters) -> Parameters:
    """Return an extrapolation, but the safe parameters of items that it would send off, and guessing within [0, 1)."""
    far = (Parameters.of(vector).slope - safe.slope).abs() > LARGEST_LEAP
    far |= (safe.slope.abs() > RUNAWAY_SLOPE) | (Parameters.of(vector).slope * safe.slope < 0)
    proposed = Parameters.of(torch.where(far.repeat(3), safe.vector(), vector))
    return replace(proposed, guessing=proposed.guessing.clamp(0, 1 - 1e-6))
