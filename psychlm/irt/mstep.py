"""The M-step: Newton's method (with guessing: Fisher scoring) on all items at once, given expected counts at nodes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.irt.answers import Answers
from psychlm.irt.likelihood import Design, Parameters, log_probabilities, right_answer, wrong_answer
from psychlm.irt.priors import LogNormal
from psychlm.irt.quadrature import Posterior

LARGEST_STEP = 2.0  # logits; a curb on single steps, not on where they lead
SCORING_STEPS = 6  # in one M-step; the next goes on where it stopped
HALVINGS = 8


def maximise(
    answers: Answers,
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
        for _ in range(HALVINGS):
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
    right, off = right_answer(z, c), wrong_answer(z, c)
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
    step = step * (LARGEST_STEP / largest.clamp_min(LARGEST_STEP))
    if isinstance(
        design.priors.get("slope"), LogNormal
    ):  # whose slopes are positive: at most half the way to 0
        step[:, 0] = torch.maximum(step[:, 0], -0.5 * beta[:, 0])
    return step
