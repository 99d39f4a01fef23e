"""Guessing parameters have local maxima: a flat item without guessing, or a steep one whose lower half is guessed.

At the fixed point of EM every 3PL item is tried from other starts, with the persons' posteriors as they are. What the
whole marginal likelihood gains when one item's parameters are exchanged is known exactly, without a further E-step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.irt.answers import Answers
from psychlm.irt.likelihood import Design, Parameters, log_probabilities
from psychlm.irt.mstep import maximise
from psychlm.irt.quadrature import Posterior

OTHER_STARTS = (0.0, 0.2, 0.5)  # guessing
WORTHWHILE = 1e-3  # nats


def better_items(
    answers: Answers, design: Design, parameters: Parameters, found: Posterior, nodes: Tensor
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
    answers: Answers, old: Parameters, new: Parameters, found: Posterior, nodes: Tensor
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
