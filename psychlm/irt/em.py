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
from torch.nn.functional import logsigmoid

from psychlm.irt.likelihood import (
    RUNAWAY_SLOPE,
    STEP,
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    integrate,
    log_p_derivatives,
    log_probabilities,
    log_q_derivatives,
    node_loglik,
    quadrature_grid,
    rescaled,
    resolved_posterior,
)
from psychlm.irt.priors import LogNormal
from psychlm.irt.response_matrix import ResponseMatrix

LARGEST_MSTEP = 2.0  # logits; a curb on single steps, not on where they lead
SCORING_STEPS = 6  # in one M-step; the next goes on where it stopped
MSTEP_HALVINGS = 8


def maximise(
    answers: ResponseMatrix,
    design: Design,
    parameters: Parameters,
    posterior: Posterior,
    nodes: Tensor,
    tolerance: float,
) -> Parameters:
    """Return the item parameters that maximise the expected complete-data log-likelihood, a common slope held.

    Iterations within stop at steps below `tolerance` (logits): EM with inexact M-steps keeps its fixed points.
    """
    weights = posterior.weights * answers.count[:, None]
    ability = posterior.mean * answers.count
    guessing = design.guessing_free | (parameters.guessing > 0)
    parts = []
    for block in answers.blocks():
        part = parameters[block.items]
        total = (
            weights.sum(0, keepdim=True) if block.answered is None else block.answered.T @ weights
        )
        if guessing[block.items].any():
            parts.append(
                _with_guessing(
                    part, block.correct.T @ weights, total, nodes, design, block.items, tolerance
                )
            )
        else:
            sums = torch.stack([ability @ block.correct, answers.n_correct[block.items]], 1)
            parts.append(_without_guessing(part, sums, total, nodes, design, tolerance))
    return Parameters(
        *(
            torch.cat([getattr(p, name) for p in parts])
            for name in ("slope", "intercept", "guessing")
        )
    )


def _without_guessing(
    start: Parameters, sums: Tensor, total: Tensor, nodes: Tensor, design: Design, tolerance: float
) -> Parameters:
    """Newton's method for items without guessing, whose sufficient statistics are two sums.

    Parameters
    ----------
    sums : Tensor, shape (n_items, 2)
        Over right answers: expected abilities, and how many.
    total : Tensor, shape (n_items or 1, n_nodes)
        Expected number of persons who answered, at each node.
    """
    beta = torch.stack([start.slope, start.intercept], 1)
    free = torch.tensor([not design.common_slope, True], device=beta.device).expand_as(beta)
    powers = torch.stack([nodes, torch.ones_like(nodes)], 1)  # (n_nodes, 2)
    squares = torch.stack([nodes**2, nodes, nodes, torch.ones_like(nodes)], 1)
    for _ in range(SCORING_STEPS):
        p = torch.sigmoid(beta @ powers.T)
        np = p * total
        gradient = sums - np @ powers
        information = (np.sub_(np * p) @ squares).view(-1, 2, 2)
        step = _newton_step(beta, gradient, information, free, design)
        beta = beta + step
        if step.abs().max() < tolerance:
            break
    return Parameters(beta[:, 0].contiguous(), beta[:, 1].contiguous(), start.guessing)


def _with_guessing(
    start: Parameters,
    correct: Tensor,
    total: Tensor,
    nodes: Tensor,
    design: Design,
    items: slice,
    tolerance: float,
) -> Parameters:
    """Fisher scoring with step halving for items that may be guessed; guessing itself stays within [0, 1).

    Parameters
    ----------
    correct, total : Tensor, shape (n_items, n_nodes); total may have one row
        Expected number of right answers, and of answers, at each node.
    """
    beta = torch.stack([start.slope, start.intercept, start.guessing], 1)
    free = torch.ones_like(beta, dtype=torch.bool)
    free[:, 0] = not design.common_slope
    free[:, 2] = design.guessing_free[items]
    wrong = total - correct
    value = _expected_loglik(beta, correct, wrong, nodes, free, design)
    for _ in range(SCORING_STEPS):
        gradient, information = _scores(beta, correct, wrong, total, nodes)
        step = _newton_step(beta, gradient, information, free, design)
        fraction = torch.ones_like(value)
        for _ in range(MSTEP_HALVINGS):
            trial = beta + fraction[:, None] * step
            trial[:, 2].clamp_(min=0.0)  # the edge of the parameter space, where a maximum may lie
            reached = _expected_loglik(trial, correct, wrong, nodes, free, design)
            worse = ~(reached >= value - 1e-12 * value.abs()) & (step.abs().amax(1) > tolerance)
            if not worse.any():
                break
            fraction[worse] *= 0.5
        moved = torch.where(worse[:, None], beta, trial)
        largest = (moved - beta).abs().max()
        beta, value = moved, torch.where(worse, value, reached)
        if largest < tolerance:
            break
    return Parameters(*beta.T.contiguous())


def _expected_loglik(
    beta: Tensor, correct: Tensor, wrong: Tensor, nodes: Tensor, free: Tensor, design: Design
) -> Tensor:
    """Return the expected complete-data log-likelihood of every item plus its log prior, shape (n_items,)."""
    z = torch.addmm(beta[:, 1:2], beta[:, :1], nodes[None])
    log_p, log_q = log_probabilities(z, logsigmoid(-z), beta[:, 2:3])
    value = (correct * log_p + wrong * log_q).sum(1)
    for column, name in enumerate(("slope", "intercept", "guessing")):
        if name in design.priors:
            density = design.priors[name].log_density(beta[:, column])
            value = value + torch.where(free[:, column], density, 0.0)
    return torch.where((beta[:, 2] < 1), value, -torch.inf)


def _scores(
    beta: Tensor, correct: Tensor, wrong: Tensor, total: Tensor, nodes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradient (n_items, 3) and expected information (n_items, 3, 3) in slope, intercept and guessing."""
    a, d, c = beta.T[:, :, None]
    z = a * nodes + d
    right, off = log_p_derivatives(z, c), log_q_derivatives(z, c)
    by_logit, by_guessing = (
        correct * u + wrong * v for u, v in ((right.z, off.z), (right.c, off.c))
    )
    gradient = torch.stack([by_logit @ nodes, by_logit.sum(1), by_guessing.sum(1)], 1)
    p = c + (1 - c) * torch.sigmoid(z)
    root = (
        (total * p / (1 - p).clamp_min(1e-300)).clamp_min(0).sqrt()
    )  # P' / sqrt(P Q) = (log P)' sqrt(P / Q)
    derivatives = torch.stack(
        [root * right.z * nodes, root * right.z, root * right.c], 1
    )  # (n_items, 3, n_nodes)
    return gradient, derivatives @ derivatives.transpose(1, 2)


def _newton_step(
    beta: Tensor, gradient: Tensor, information: Tensor, free: Tensor, design: Design
) -> Tensor:
    """Return the curbed Newton step of every item, zero in fixed parameters and against the edge guessing = 0."""
    for column, name in enumerate(("slope", "intercept", "guessing")):
        if name in design.priors:
            first, second = design.priors[name].derivatives(beta[:, column])
            chosen = free[:, column]
            gradient[:, column] += torch.where(chosen, first, 0.0)
            information[:, column, column] += torch.where(chosen, (-second).clamp_min(0), 0.0)
    if beta.shape[1] == 3:
        free = free.clone()
        free[:, 2] &= (beta[:, 2] > 0) | (gradient[:, 2] > 0)
    mask = free.to(beta.dtype)
    information = information * mask[:, :, None] * mask[:, None, :]
    diagonal = information.diagonal(dim1=1, dim2=2)
    diagonal += (1 - mask) + 1e-10 * diagonal + 1e-300
    step = torch.linalg.solve_ex(information, (gradient * mask)[..., None]).result.squeeze(-1)
    largest = step[:, :2].abs().amax(1, keepdim=True)
    step = step * (LARGEST_MSTEP / largest.clamp_min(LARGEST_MSTEP))
    if isinstance(
        design.priors.get("slope"), LogNormal
    ):  # whose slopes are positive: at most half the way to 0
        step[:, 0] = torch.maximum(step[:, 0], -0.5 * beta[:, 0])
    return step


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


class EM:
    """The EM map of one data set: parameters in, better parameters and the old ones' log-likelihood out."""

    def __init__(
        self, answers: ResponseMatrix, design: Design, grid: QuadratureGrid, settings: Settings
    ) -> None:
        self.responses, self.design, self.grid, self.settings = answers, design, grid, settings
        self.n_steps = 0
        self.accuracy = 1e-2  # of the next M-step
        self.at_nodes = torch.empty(0)  # log-likelihoods (n_rows, n_nodes) of the last E-step

    def expect(self, parameters: Parameters) -> tuple[Posterior, float]:
        """E-step: the posteriors, and log-likelihood plus log prior; widens or refines the lattice where they ask."""
        self.grid, self.at_nodes, found = resolved_posterior(self.responses, parameters, self.grid)
        return found, float(found.loglik @ self.responses.count) + self.design.log_prior(parameters)

    def step(self, parameters: Parameters) -> tuple[Parameters, float]:
        """One EM step: better parameters, and the objective of those that were given."""
        found, objective = self.expect(parameters)
        better = maximise(
            self.responses, self.design, parameters, found, self.grid.nodes, self.accuracy
        )
        self.n_steps += 1
        better = self.absorb(better, found)
        fixed = (parameters.slope.abs() > RUNAWAY_SLOPE).repeat(
            3
        )  # no maximum to go to; reported after the fit
        return Parameters.of(torch.where(fixed, parameters.vector(), better.vector())), objective

    def absorb(self, parameters: Parameters, found: Posterior) -> Parameters:
        """Let ability's mean and spread move, and keep it N(0, 1): priors on slopes and intercepts have their say."""
        mean, sd = ability_moments(found, self.responses.count)
        n, priors = self.responses.n_persons, self.design.priors
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


def oriented(answers: ResponseMatrix, parameters: Parameters, found: Posterior) -> Parameters:
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


def ability_sd_check(em: EM) -> float:
    """Return ability's standard deviation, re-estimated with the items held: 1 if the scale is where it should be."""
    on, count = em.grid, em.responses.count
    mean, sd = torch.zeros((), device=count.device), torch.ones((), device=count.device)
    for _ in range(SD_STEPS):
        weights = -0.5 * ((on.fine - mean) / sd) ** 2
        found = integrate(
            em.at_nodes, replace(on, log_weights=weights - torch.logsumexp(weights, 0))
        )
        before, (mean, sd) = sd, ability_moments(found, count)
        if abs(float(sd - before)) < 1e-5:
            break
    return float(sd)


def halved(grid: QuadratureGrid) -> QuadratureGrid:
    """Return a grid of half the step."""
    return quadrature_grid(grid.step / 2, grid.refinement, grid.span, grid.nodes.device)


def finer_objective(em: EM, parameters: Parameters) -> float:
    """Return the objective on a grid of half the step."""
    finer = halved(em.grid)
    found = integrate(node_loglik(em.responses, parameters, finer.nodes), finer)
    return float(found.loglik @ em.responses.count) + em.design.log_prior(parameters)


def squarem(em: EM, parameters: Parameters, tolerance: float) -> tuple[Parameters, bool]:
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
