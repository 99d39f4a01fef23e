"""Newton's method on the marginal likelihood itself, for models with guessing.

Their likelihoods have flat ridges (slope, intercept and guessing of an easy item hardly change its curve), on which EM
moves so slowly that its steps look like convergence. The observed information sees the ridge: where Newton's step
promises nothing more, and only there, the estimates have converged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.irt.em import maximise
from psychlm.irt.likelihood import (
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    gradient,
    log_probabilities,
)
from psychlm.irt.response_matrix import ResponseMatrix
from psychlm.irt.standard_errors import merged, observed_information

NEWTON_STEPS = 50
HALVINGS = 12
LARGEST_STEP = 1.0  # logits
FLATTEST = 1e-8  # eigenvalue of the information, scaled to a unit diagonal, below which a direction counts as flat
EDGE = 1e-3  # guessing parameters as small as that may be set to 0
PROMISE = 1e-6  # nats that a last step may still promise


def newton(
    answers: ResponseMatrix,
    design: Design,
    parameters: Parameters,
    grid: QuadratureGrid,
    objective: Callable[[Parameters], float],
    tolerance: float,
) -> tuple[Parameters, bool, int]:
    """Climb to a maximum of `objective`, log-likelihood plus log prior in nats.

    Returns
    -------
    parameters : Parameters
    converged : bool
        Whether Newton's step has become shorter than `tolerance` and promises less than 1e-6 nats.
    n_steps : int
    """
    reached = objective(parameters)
    for n_steps in range(NEWTON_STEPS):
        step, promise = _step(answers, design, parameters, grid)
        if promise < PROMISE and step.abs().max() < tolerance:
            return parameters, True, n_steps
        step = step * (LARGEST_STEP / step.abs().max().clamp_min(LARGEST_STEP))
        for halvings in range(HALVINGS):
            trial = Parameters.of(
                (parameters.vector().view(3, -1) + 0.5**halvings * step).flatten()
            )
            trial = Parameters(trial.slope, trial.intercept, trial.guessing.clamp(0, 1 - 1e-9))
            value = objective(trial)
            if value >= reached:
                break
        else:
            return parameters, promise < PROMISE, n_steps
        parameters, reached = trial, value
    return parameters, False, NEWTON_STEPS


def _step(
    answers: ResponseMatrix, design: Design, parameters: Parameters, grid: QuadratureGrid
) -> tuple[Tensor, float]:
    """Return Newton's step (3, n_items), turned uphill where the information is not positive, and the nats it promises.

    Guessing at or near its edge 0 goes there if the gradient points outwards.
    """
    slopes = gradient(answers, design, parameters, grid).T
    free = torch.ones_like(slopes, dtype=torch.bool)
    free[2] = design.guessing_free & ((parameters.guessing > EDGE) | (slopes[2] > 0))
    information = observed_information(answers, design, parameters, grid)
    while True:
        step, promise = _solved(information, slopes, merged(free, design))
        outwards = free[2] & (parameters.guessing <= EDGE) & (step[2] < 0)
        if not outwards.any():
            break
        free[2] &= ~outwards
    edged = design.guessing_free & ~free[2]
    step[2] = torch.where(edged, -parameters.guessing, step[2])
    return step, promise + float((step[2] * slopes[2])[edged].sum())


def _solved(information: Tensor, slopes: Tensor, basis: Tensor) -> tuple[Tensor, float]:
    """Solve for the step in the space that basis spans, by absolute eigenvalues; return it and the nats it promises."""
    reduced = basis.T @ information @ basis
    scale = reduced.diagonal().abs().clamp_min(1e-12).rsqrt()
    eigenvalues, directions = torch.linalg.eigh(reduced * scale * scale[:, None])
    uphill = directions.T @ (scale * (basis.T @ slopes.flatten()))
    along = uphill / eigenvalues.abs().clamp_min(FLATTEST)
    step = (basis @ (scale * (directions @ along))).view(3, -1)
    return step, 0.5 * float(uphill @ along)


OTHER_STARTS = (0.0, 0.2, 0.5)  # guessing
WORTHWHILE = 1e-3  # nats


def better_items(
    answers: ResponseMatrix, design: Design, parameters: Parameters, found: Posterior, nodes: Tensor
) -> Parameters | None:
    """Return parameters with those items exchanged that raise the marginal likelihood from another start, or None."""
    vector = torch.stack([parameters.slope, parameters.intercept, parameters.guessing])
    best = torch.full_like(parameters.slope, WORTHWHILE)
    for guessing in OTHER_STARTS:
        start = Parameters(
            parameters.slope.sign() * torch.ones_like(parameters.slope),
            torch.logit(
                ((answers.n_correct / answers.n_answered - guessing) / (1 - guessing)).clamp(
                    0.02, 0.98
                )
            ),
            torch.where(design.guessing_free, guessing, parameters.guessing),
        )
        trial = maximise(answers, design, start, found, nodes, tolerance=1e-4)
        gained = _gain(answers, parameters, trial, found, nodes)
        gained[~design.guessing_free] = 0
        vector = torch.where(
            gained > best, torch.stack([trial.slope, trial.intercept, trial.guessing]), vector
        )
        best = torch.maximum(best, gained)
    return Parameters(*vector) if (best > WORTHWHILE).any() else None


def _gain(
    answers: ResponseMatrix, old: Parameters, new: Parameters, found: Posterior, nodes: Tensor
) -> Tensor:
    """Return what the log-likelihood gains from each item's exchange alone, in nats, shape (n_items,)."""
    gains = []
    for block in answers.blocks():
        tables = []
        for part in (old[block.items], new[block.items]):
            z = torch.outer(part.slope, nodes) + part.intercept[:, None]
            tables.append(log_probabilities(z, logsigmoid(-z), part.guessing[:, None]))
        right, wrong = (
            found.weights @ (after - before).exp().T for before, after in zip(*tables, strict=True)
        )
        ratio = torch.where(block.correct > 0, right, wrong)
        if block.answered is not None:
            ratio = torch.where(block.answered > 0, ratio, 1.0)
        gains.append(answers.count @ ratio.clamp_min(1e-300).log())
    return torch.cat(gains)
