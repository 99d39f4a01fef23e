r"""Refine models with guessing: Newton's method on the marginal likelihood, and other starts.

The 3PL likelihood has flat ridges (slope, intercept and guessing of an easy item hardly change its
curve), on which EM's steps become so small that they look like convergence. The observed
information sees the ridge: where Newton's step promises nothing more, the estimates have converged.

It also has local maxima: a flat item without guessing, or a steep one whose lower half is guessed.
Every item is therefore tried from other starts, with the persons' posteriors held. What the whole
marginal likelihood gains when one item's parameters are exchanged follows without an E-step:

.. math:: \sum_i \log \sum_k w_{ik} \, P^{new}(x_{ij} \mid \theta_k) / P^{old}(x_{ij} \mid \theta_k)

with w the posterior probabilities under the old parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psychlm.irt.em import EM, maximise
from psychlm.irt.likelihood import Parameters, Posterior, gradient, log_probabilities
from psychlm.irt.standard_errors import estimates_basis, observed_information

NEWTON_STEPS = 50
HALVINGS = 12
LARGEST_STEP = 1.0  # logits
FLATTEST = 1e-8  # smallest eigenvalue of the information, scaled to a unit diagonal
EDGE = 1e-3  # guessing parameters as small as that may be set to 0
PROMISE = 1e-6  # nats that a last step may still promise
OTHER_STARTS = (0.0, 0.2, 0.5)  # guessing
WORTHWHILE = 1e-3  # nats


def newton(em: EM, parameters: Parameters, tolerance: float) -> tuple[Parameters, bool]:
    """Climb to a maximum of log-likelihood plus log prior; return it and whether it is reached.

    It is reached where the step is shorter than the tolerance and promises less than 1e-6 nats.
    """
    _, reached = em.expect(parameters)
    for _ in range(NEWTON_STEPS):
        step, promise = newton_step(em, parameters)
        if promise < PROMISE and step.abs().max() < tolerance:
            return parameters, True
        step = step * (LARGEST_STEP / step.abs().max().clamp_min(LARGEST_STEP))
        for halvings in range(HALVINGS):
            slope, intercept, guessing = parameters.table() + 0.5**halvings * step
            trial = Parameters(slope, intercept, guessing.clamp(0, 1 - 1e-9))
            _, value = em.expect(trial)
            if value >= reached:
                break
        else:  # no step uphill: rounding decides
            return parameters, promise < PROMISE
        parameters, reached = trial, value
        em.n_steps += 1
    return parameters, False


def newton_step(em: EM, parameters: Parameters) -> tuple[Tensor, float]:
    """Return Newton's step (3, n_items) and the nats it promises.

    Where the information is not positive the step is turned uphill, by absolute eigenvalues.
    Guessing at or near its edge 0 goes there if the step points outwards.
    """
    design = em.design
    slopes = gradient(em.responses, design, parameters, em.grid).T
    information = observed_information(em.responses, design, parameters, em.grid)
    free = design.free()
    free[2] &= (parameters.guessing > EDGE) | (slopes[2] > 0)
    while True:
        # Solve in the space of the estimates, scaled to a unit diagonal.
        basis = estimates_basis(free, design)
        reduced = basis.T @ information @ basis
        scale = reduced.diagonal().abs().clamp_min(1e-12).rsqrt()
        eigenvalues, directions = torch.linalg.eigh(reduced * scale * scale[:, None])
        uphill = directions.T @ (scale * (basis.T @ slopes.flatten()))
        along = uphill / eigenvalues.abs().clamp_min(FLATTEST)
        step = (basis @ (scale * (directions @ along))).view(3, -1)
        promise = 0.5 * float(uphill @ along)
        outwards = free[2] & (parameters.guessing <= EDGE) & (step[2] < 0)
        if not outwards.any():
            break
        free[2] &= ~outwards
    at_edge = design.guessing_free & ~free[2]
    step[2] = torch.where(at_edge, -parameters.guessing, step[2])
    return step, promise + float((step[2] * slopes[2])[at_edge].sum())


def better_starts(em: EM, parameters: Parameters, posterior: Posterior) -> Parameters | None:
    """Return parameters with those items exchanged that another start improves, or None."""
    responses, nodes, design = em.responses, em.grid.nodes, em.design
    share = responses.n_correct / responses.n_answered
    table, best = parameters.table(), torch.full_like(share, WORTHWHILE)
    for guessing in OTHER_STARTS:
        above = ((share - guessing) / (1 - guessing)).clamp(0.02, 0.98)
        start = Parameters(
            parameters.slope.sign(),
            torch.logit(above),
            torch.where(design.guessing_free, guessing, parameters.guessing),
        )
        trial = maximise(responses, design, start, posterior, nodes, tolerance=1e-4)
        gained = exchange_gain(em, parameters, trial, posterior)
        gained[~design.guessing_free] = 0
        table = torch.where(gained > best, trial.table(), table)
        best = torch.maximum(best, gained)
    return Parameters(*table) if (best > WORTHWHILE).any() else None


def exchange_gain(em: EM, old: Parameters, new: Parameters, posterior: Posterior) -> Tensor:
    """Return the nats (n_items,) that the log-likelihood gains if one item is exchanged."""
    gains = []
    for block in em.responses.blocks():
        before = log_probabilities(*old[block.items].logits(em.grid.nodes))
        after = log_probabilities(*new[block.items].logits(em.grid.nodes))
        right, wrong = (
            posterior.weights @ (new_log - old_log).exp().T
            for old_log, new_log in zip(before, after, strict=True)
        )
        ratio = torch.where(block.correct > 0, right, wrong)
        if block.answered is not None:
            ratio = torch.where(block.answered > 0, ratio, 1.0)
        gains.append(em.responses.count @ ratio.clamp_min(1e-300).log())
    return torch.cat(gains)
