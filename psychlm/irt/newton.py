r"""Newton's method on the marginal likelihood, and other starts for items that may be guessed.

**Newton.** The 3PL likelihood has flat ridges (slope, intercept and guessing of an easy item hardly
change its curve), on which EM's steps become so small that they look like convergence. The observed
information sees the ridge. Its missing part is summed over fewer polynomials than for standard
errors, which costs a fifth and makes the method quasi-Newton. With gradient g and information H the
step :math:`H^{-1} g` promises :math:`g^T H^{-1} g / 2` nats; below 1e-6 nats every parameter is
within 0.0014 of its own standard errors of the maximum, and the estimates have converged.

**Other starts.** With guessing the likelihood has local maxima, whether guessing is free, common or
fixed: a flat item, or a steep one whose lower half is guessed. Every item is tried from flat and
steep starts with the other items held. Given the persons' posteriors w, exchanging one item gains

.. math:: \sum_i \log \sum_k w_{ik} \, R_{ik}, \qquad
    R_{ik} = P^{new}(x_{ij} \mid \theta_k) / P^{old}(x_{ij} \mid \theta_k)

nats, and the posteriors are then proportional to :math:`w_{ik} R_{ik}`. So EM for each item alone
needs matrix products only, for all items at once. What gains is confirmed on the full likelihood.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from psychlm.irt.em import EM, LOGLIK_TOLERANCE, scoring_with_guessing
from psychlm.irt.likelihood import (
    Parameters,
    Posterior,
    gradient,
    log_probabilities,
)
from psychlm.irt.standard_errors import estimates_basis, free_parameters, observed_information

NEWTON_STEPS = 100
LARGEST_STEP = 1.0  # logits
LARGEST_GUESSING_STEP = 0.2
LEAST_DAMPING = 1e-6  # of eigenvalues of the information, scaled to a unit diagonal
MOST_DAMPING = 1e4
FLATTEST = 1e-8  # smallest eigenvalue of the information, scaled to a unit diagonal
EDGE = 1e-3  # guessing parameters as small as that may be set to 0
PROMISE = 1e-6  # nats that a last step may still promise
ROUGH_MISSING = 1e-3  # share of the missing information that Newton's method neglects
STARTS = ((0.7, 0.0), (2.0, 0.2), (3.0, 0.5), (8.0, 0.0), (8.0, 0.2))  # slope, and guessing if free
ITEM_STEPS = 8  # EM steps of one item with the others held
WORTHWHILE = 1e-3  # nats


def newton(em: EM, parameters: Parameters) -> tuple[Parameters, Tensor]:
    """Climb to a maximum of log-likelihood plus log prior; return it and which items are there.

    Steps are damped as far as needed to stay within a trust region and to go uphill (Levenberg and
    Marquardt; Nocedal and Wright 2006, chapter 4). Items whose slopes run away are held.
    """
    _, reached = em.expect(parameters)
    damping = 0.0
    for _ in range(NEWTON_STEPS):
        damping, solve = damping / 10, newton_system(em, parameters)
        # A logit at most, more for steep items, and 0.2 of guessing.
        limit = (parameters.slope.abs() / 2).clamp_min(LARGEST_STEP)
        limits = torch.stack([limit, limit, torch.full_like(limit, LARGEST_GUESSING_STEP)])
        while True:
            step, promise = solve(damping)
            if (step.abs() > limits).any():
                damping = max(4 * damping, LEAST_DAMPING)
                continue
            at_rest = promise.abs() < PROMISE
            if float(promise.sum()) < PROMISE:
                return parameters, torch.ones_like(at_rest)
            slope, intercept, guessing = parameters.table() + step
            trial = Parameters(slope, intercept, guessing.clamp(0, 1 - 1e-9))
            _, value = em.expect(trial)
            if value > reached:
                break
            damping = max(4 * damping, LEAST_DAMPING)
            if damping > MOST_DAMPING:  # no step uphill: rounding decides
                em.expect(parameters)
                return parameters, at_rest
        parameters, reached = trial, value
        em.n_steps += 1
        if em.n_steps >= em.settings.max_iterations:
            break
    return parameters, at_rest


def newton_system(em: EM, parameters: Parameters) -> Callable[[float], tuple[Tensor, Tensor]]:
    """Return the function from damping to Newton's step (3, n_items) and its promise by item.

    Where the information is not positive the step is turned uphill, by absolute eigenvalues.
    Guessing at or near its edge 0 goes there if the step points outwards.
    """
    design, guessing = em.design, parameters.guessing
    uphill = gradient(em.responses, design, parameters, em.grid).T
    information = observed_information(
        em.responses, design, parameters, em.grid, negligible=ROUGH_MISSING
    )
    kinds = len(information) // len(guessing)
    free = free_parameters(design, parameters)
    inwards = uphill[2].sum() > 0 if design.common_guessing else uphill[2] > 0
    free[2] = design.free()[2] & (free[0] | design.common_guessing)
    free[2] &= (guessing > EDGE) | inwards
    while True:
        # Solve in the space of the estimates, scaled to a unit diagonal.
        basis = estimates_basis(free[:kinds], design)
        reduced = basis.T @ information @ basis
        scale = reduced.diagonal().abs().clamp_min(1e-12).rsqrt()
        eigenvalues, directions = torch.linalg.eigh(reduced * scale * scale[:, None])
        curvature = eigenvalues.abs().clamp_min(FLATTEST)
        along = directions.T @ (scale * (basis.T @ uphill[:kinds].flatten()))
        step = (basis @ (scale * (directions @ (along / curvature)))).view(kinds, -1)
        if kinds == 2:
            break
        outwards = free[2] & (guessing <= EDGE) & (step[2] < 0)
        if not outwards.any():
            break
        free[2] &= ~outwards

    to_edge = -guessing.clamp(max=EDGE) * (design.guessing_free & ~free[2] & (guessing <= EDGE))

    def solve(damping: float) -> tuple[Tensor, Tensor]:
        step = torch.zeros_like(uphill)
        damped = directions @ (along / (curvature + damping))
        step[:kinds] = (basis @ (scale * damped)).view(kinds, -1)
        step[2] += to_edge
        return step, (uphill * step).sum(0)

    return solve


def better_starts(
    em: EM, parameters: Parameters, posterior: Posterior, objective: float
) -> Parameters | None:
    """Return parameters with the items exchanged that another start improves, or None."""
    responses, design = em.responses, em.design
    guessable = design.guessing_free | (parameters.guessing > 0)
    own_guessing = design.guessing_free & (not design.common_guessing)
    held = parameters.guessing
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    table, best = parameters.table(), torch.full_like(share, WORTHWHILE)
    starts = STARTS if own_guessing.any() else sorted({(slope, 0.0) for slope, _ in STARTS})
    for slope, guessing in starts:
        # An intercept that keeps the proportion correct: N(0, 1) flattens a curve of this slope.
        c = torch.where(own_guessing, guessing, held)
        above = ((share - c) / (1 - c)).clamp(0.02, 0.98)
        intercept = torch.logit(above) * (1 + slope**2 / 2.9) ** 0.5
        start = Parameters(slope * parameters.slope.sign(), intercept, c)
        trial, gain = exchanged_items(em, parameters, start, posterior)
        improved = guessable & (gain > best)
        table = torch.where(improved, trial.table(), table)
        best = torch.where(improved, gain, best)

    # Confirm on the full likelihood: all improved items together, else the best of them alone.
    for chosen in (best > WORTHWHILE, (best > WORTHWHILE) & (best == best.max())):
        if chosen.any():
            trial = Parameters(*torch.where(chosen, table, parameters.table()))
            if em.expect(trial)[1] > objective + LOGLIK_TOLERANCE:
                return trial
    em.expect(parameters)
    return None


def exchanged_items(
    em: EM, old: Parameters, start: Parameters, posterior: Posterior
) -> tuple[Parameters, Tensor]:
    """Climb from a start by EM for each item alone; return the items and their gains in nats."""
    nodes, design, weights = em.grid.nodes, em.design, posterior.weights
    free = design.free()
    free[0] = not design.common_slope
    free[2] &= not design.common_guessing
    count, tables, gains = em.responses.count[:, None], [], []
    for block in em.responses.blocks():
        before = log_probabilities(*old[block.items].logits(nodes))
        wrong = (1 if block.answered is None else block.answered) - block.correct
        beta = start[block.items].table().T
        for step in range(ITEM_STEPS + 1):
            after = log_probabilities(*Parameters(*beta.T).logits(nodes))
            of_correct, of_wrong = (
                (new_log - old_log).clamp(max=500).exp()
                for old_log, new_log in zip(before, after, strict=True)
            )
            # sum_k w_ik R_ik for a correct and for a wrong response, each (n_rows, n_items)
            if_correct = (weights @ of_correct.T).clamp_min(1e-300)
            if_wrong = (weights @ of_wrong.T).clamp_min(1e-300)
            if step == ITEM_STEPS:
                break
            correct = ((block.correct * count / if_correct).T @ weights) * of_correct
            answered = correct + ((wrong * count / if_wrong).T @ weights) * of_wrong
            beta = scoring_with_guessing(
                beta, correct, answered, nodes, free[:, block.items].T, design, 1e-3
            )
        gain = block.correct * if_correct.log() + wrong * if_wrong.log()
        gains.append((count * gain).sum(0))
        tables.append(beta)
    return Parameters(*torch.cat(tables).T.contiguous()), torch.cat(gains)
