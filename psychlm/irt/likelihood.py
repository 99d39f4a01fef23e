r"""Log-likelihoods of answers at the nodes of a lattice, as matrix products over blocks of items.

Slope-intercept inside: with :math:`z = a\theta + d` and :math:`P = c + (1 - c)\,\sigma(z)` a person's
log-likelihood is :math:`\sum_j x_j (\log P_j - \log Q_j) + \sum_j \log Q_j`. Without guessing
:math:`\log P - \log Q = z`, and the first sum is :math:`\theta \sum_j x_j a_j + \sum_j x_j d_j`: two numbers a person,
however fine the lattice; and where nobody skipped an item the second sum is the same for everyone. The 2PL on complete
answers therefore costs no product of three sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from psychlm.irt.answers import Answers
from psychlm.irt.priors import Prior
from psychlm.irt.quadrature import Lattice, Posterior, better_lattice, posterior


@dataclass(frozen=True)
class Parameters:
    """Item parameters in slope-intercept form; ability is standard normal."""

    slope: Tensor  # (n_items,) float64, per standard deviation of ability
    intercept: Tensor  # (n_items,) logits at ability 0
    guessing: Tensor  # (n_items,) probability

    def vector(self) -> Tensor:
        """Return all parameters in one vector (3 n_items,)."""
        return torch.cat([self.slope, self.intercept, self.guessing])

    @classmethod
    def of(cls, vector: Tensor) -> Parameters:
        """Take the vector apart again."""
        return cls(*vector.view(3, -1))

    def __getitem__(self, items: slice) -> Parameters:
        return Parameters(self.slope[items], self.intercept[items], self.guessing[items])


@dataclass(frozen=True)
class Design:
    """Which parameters are free, and the priors on them."""

    common_slope: bool  # 1PL, and the Rasch model in standard-normal units
    guessing_free: Tensor  # (n_items,) bool
    priors: dict[str, Prior]

    def log_prior(self, parameters: Parameters) -> float:
        """Return the log density of the priors, in nats."""
        values = {
            "slope": parameters.slope,
            "intercept": parameters.intercept,
            "guessing": parameters.guessing[self.guessing_free],
        }
        return float(
            sum(prior.log_density(values[name]).sum() for name, prior in self.priors.items())
        )


def node_loglik(answers: Answers, parameters: Parameters, nodes: Tensor) -> Tensor:
    """Return log P(answers | node) for every distinct row of answers, shape (n_rows, n_nodes), in nats."""
    total = torch.zeros(len(answers.values), len(nodes), dtype=torch.float64, device=nodes.device)
    sums = torch.zeros(len(answers.values), 2, dtype=torch.float64, device=nodes.device)
    shared = torch.zeros(len(nodes), dtype=torch.float64, device=nodes.device)
    for block in answers.blocks():
        part = parameters[block.items]
        z = torch.outer(part.slope, nodes) + part.intercept[:, None]
        log_q = logsigmoid(-z)
        if (part.guessing > 0).any():
            log_p, log_q = log_probabilities(z, log_q, part.guessing[:, None])
            total.addmm_(block.correct, log_p - log_q)
        else:
            sums.addmm_(block.correct, torch.stack([part.slope, part.intercept], 1))
        if block.answered is None:
            shared += log_q.sum(0)
        else:
            total.addmm_(block.answered, log_q)
    return total.addmm_(sums, torch.stack([nodes, torch.ones_like(nodes)])).add_(shared)


def resolved_posterior(
    answers: Answers, parameters: Parameters, on: Lattice
) -> tuple[Lattice, Tensor, Posterior]:
    """Return all posteriors, on a lattice widened and refined until it resolves each, and log-likelihoods on it."""
    at_nodes = node_loglik(answers, parameters, on.nodes)
    found = posterior(at_nodes, on)
    while (wanted := better_lattice(on, found)) is not on:
        if wanted.span > on.span:
            at_nodes = node_loglik(answers, parameters, wanted.nodes)
        on, found = wanted, posterior(at_nodes, wanted)
    return on, at_nodes, found


def log_probabilities(z: Tensor, log_q: Tensor, guessing: Tensor) -> tuple[Tensor, Tensor]:
    """Return log P and log Q with guessing, from the logits and log Q without; exact where P is tiny."""
    known = torch.log1p(-guessing)
    return torch.logaddexp(guessing.log(), known + log_q + z), known + log_q


@dataclass(frozen=True)
class CellDerivatives:
    """Derivatives of one answer's log-likelihood by its logit z and its guessing parameter c; all of one shape."""

    z: Tensor
    c: Tensor
    zz: Tensor
    zc: Tensor
    cc: Tensor


def right_answer(z: Tensor, c: Tensor) -> CellDerivatives:
    """Return the derivatives of log P = log(c + (1 - c) s(z)), with s the logistic function."""
    s, rest = torch.sigmoid(z), torch.sigmoid(-z)
    p = c + (1 - c) * s
    by_c = rest / p
    by_z = (1 - c) * s * by_c
    return CellDerivatives(
        by_z, by_c, by_z * (rest - s) - by_z**2, -s * by_c - by_z * by_c, -(by_c**2)
    )


def wrong_answer(z: Tensor, c: Tensor) -> CellDerivatives:
    """Return the derivatives of log Q = log(1 - c) + log(1 - s(z))."""
    s = torch.sigmoid(z)
    by_c = (-1 / (1 - c)).expand_as(s)
    return CellDerivatives(-s, by_c, -s * torch.sigmoid(-z), torch.zeros_like(s), -(by_c**2))


def gradient(answers: Answers, design: Design, parameters: Parameters, on: Lattice) -> Tensor:
    """Return the gradient of log-likelihood plus log prior by slope, intercept and guessing, shape (n_items, 3)."""
    weights = (
        posterior(node_loglik(answers, parameters, on.nodes), on).weights * answers.count[:, None]
    )
    parts = []
    for block in answers.blocks():
        part = parameters[block.items]
        z, c = torch.outer(part.slope, on.nodes) + part.intercept[:, None], part.guessing[:, None]
        right, off = right_answer(z, c), wrong_answer(z, c)
        correct = block.correct.T @ weights
        wrong = (weights.sum(0) if block.answered is None else block.answered.T @ weights) - correct
        by_logit = correct * right.z + wrong * off.z
        by_guessing = correct * right.c + wrong * off.c
        parts.append(torch.stack([by_logit @ on.nodes, by_logit.sum(1), by_guessing.sum(1)], 1))
    result = torch.cat(parts)
    for column, (name, value) in enumerate(vars(parameters).items()):
        if name in design.priors:
            free = (
                design.guessing_free
                if name == "guessing"
                else torch.ones_like(design.guessing_free)
            )
            result[free, column] += design.priors[name].derivatives(value[free])[0]
    return result


def parameter_frame(parameters: Parameters, names: pd.Index) -> pd.DataFrame:
    """Return a, b, c and d by item."""
    a, d, c = (
        value.cpu().numpy()
        for value in (parameters.slope, parameters.intercept, parameters.guessing)
    )
    b = (-parameters.intercept / parameters.slope).cpu().numpy()
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": d}, index=names)


def rescaled(parameters: Parameters, mean: Tensor, sd: Tensor) -> Parameters:
    """Return the same curves on an ability scale whose N(mean, sd^2) has become N(0, 1)."""
    return replace(
        parameters,
        slope=parameters.slope * sd,
        intercept=parameters.intercept + parameters.slope * mean,
    )
