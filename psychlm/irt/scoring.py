"""Abilities from answers, with known items: EAP, MAP, ML and WLE, each with its standard error.

A saved fit scores new persons: ``IRTFit.from_json(path).score(responses)``. Items that a person was not asked are
simply not there, so a frame may hold some of the items only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, format_names
from psychlm.irt.answers import Answers, read_answers
from psychlm.irt.likelihood import (
    Parameters,
    node_loglik,
    resolved_posterior,
    right_answer,
    wrong_answer,
)
from psychlm.irt.quadrature import fine_posterior, lattice

METHODS = ("eap", "map", "ml", "wle")
ENDLESS = 20.0  # standard deviations: a guessed 3PL pattern whose likelihood still rises there has no finite maximum
SCORING_STEPS = 200
LARGEST_STEP = 1.0  # standard deviations of ability, of one scoring step
TOLERANCE = 1e-8
DIFFERENCE = 1e-4  # standard deviations of ability, for the curvature of the weighted likelihood


@dataclass(frozen=True)
class AbilityPosterior:
    """Posterior probabilities of ability on a lattice."""

    persons: pd.Index  # (n_persons,)
    nodes: np.ndarray  # (n_nodes,), logits
    prior: np.ndarray  # (n_nodes,), sums to 1
    weights: np.ndarray  # (n_persons, n_nodes), rows sum to 1
    loglik: np.ndarray  # (n_persons,), log P(answers), nats


def ability_posterior(
    items: pd.DataFrame, responses: pd.DataFrame, *, ability_sd: float = 1.0
) -> AbilityPosterior:
    """Return every person's posterior, on 61 nodes or as many more as the narrowest of them needs; as :func:`score`."""
    answers, parameters = _prepared(items, responses, ability_sd)
    on, at_nodes, _ = resolved_posterior(answers, parameters, lattice(device=answers.device))
    found = fine_posterior(at_nodes, on)
    return AbilityPosterior(
        persons=answers.persons,
        nodes=ability_sd * on.fine.cpu().numpy(),
        prior=on.log_weights.exp().cpu().numpy(),
        weights=found.weights.cpu().numpy()[answers.row],
        loglik=found.loglik.cpu().numpy()[answers.row],
    )


def score(
    items: pd.DataFrame, responses: pd.DataFrame, method: str = "eap", *, ability_sd: float = 1.0
) -> pd.DataFrame:
    """Return abilities and their standard errors, in logits, for persons old or new.

    Parameters
    ----------
    items : DataFrame, indexed by item
        Known parameters: a, b (or d) and c, as ``IRTFit.items`` has them.
    responses : DataFrame, shape (n_persons, n_items)
        A responses frame; its items may be some of those known.
    method : str
        "eap": posterior mean and standard deviation. "map": posterior mode (Lalor 2020, section 1.3.2). "ml": maximum
        likelihood (section 1.3.7), infinite for who got everything right, or wrong. "wle": the maximum of likelihood
        times the root of the information, without ML's outward bias and finite (Warm 1989; with guessing Warm's weight
        is another, and this one is R mirt's).

    ability_sd : float
        Standard deviation of ability in the population, for EAP and MAP: ``IRTFit.ability_sd``; 1 unless Rasch.

    Returns
    -------
    DataFrame, indexed by person
        ``theta`` and ``se``, logits; se from the observed curvature, NaN where an ability is infinite.

    Raises
    ------
    FrameError
        If responses are malformed or hold items whose parameters are not given.
    """
    if method.lower() not in METHODS:
        raise ValueError(f"method {method!r} is not one of {METHODS}")
    answers, parameters = _prepared(items, responses, ability_sd)
    on, at_nodes, found = resolved_posterior(answers, parameters, lattice(device=answers.device))
    if method.lower() == "eap":
        theta, se = found.mean, found.variance.sqrt()
    elif method.lower() == "map":
        theta, se = _map(answers, parameters, found.mean)
    elif method.lower() == "ml":
        theta, se = _ml(answers, parameters)
    else:
        theta, se = _wle(answers, parameters, found.mean)
    table = ability_sd * torch.stack([theta, se], 1).cpu().numpy()[answers.row]
    return pd.DataFrame(table, index=answers.persons, columns=["theta", "se"])


def _prepared(
    items: pd.DataFrame, responses: pd.DataFrame, ability_sd: float
) -> tuple[Answers, Parameters]:
    """Return the answers and the parameters of their items in standard-normal units of ability."""
    answers = read_answers(responses, torch.device("cpu"))
    unknown = answers.items.difference(items.index)
    if len(unknown):
        raise FrameError(
            f"items {format_names(unknown)} have no parameters; drop them, or fit a model with them"
        )
    known = items.loc[answers.items]
    a = known["a"].to_numpy(float)
    d = known["d"].to_numpy(float) if "d" in known else -a * known["b"].to_numpy(float)
    c = known["c"].to_numpy(float) if "c" in known else np.zeros(len(known))
    return answers, Parameters(*(torch.tensor(value) for value in (a * ability_sd, d, c)))


@dataclass(frozen=True)
class _Curvature:
    """Derivatives of every row's log-likelihood at its ability, in standard-normal units."""

    gradient: Tensor
    observed: Tensor  # minus the second derivative
    expected: Tensor  # Fisher information
    weighted: Tensor  # gradient of log-likelihood + log(information) / 2


def _curvature(answers: Answers, parameters: Parameters, ability: Tensor) -> _Curvature:
    gradient, observed, expected, change = (torch.zeros_like(ability) for _ in range(4))
    for block in answers.blocks():
        part = parameters[block.items]
        a, c = part.slope, part.guessing
        z = torch.outer(ability, a) + part.intercept
        right, off = right_answer(z, c), wrong_answer(z, c)
        answered = torch.ones_like(z) if block.answered is None else block.answered
        wrong = answered - block.correct
        gradient += (block.correct * right.z + wrong * off.z) @ a
        observed -= (block.correct * right.zz + wrong * off.zz) @ a**2
        expected -= (answered * right.z * off.z) @ a**2  # P'^2 / (P Q) = -(log P)' (log Q)'
        change -= (answered * (right.zz * off.z + right.z * off.zz)) @ a**3
    return _Curvature(gradient, observed, expected, gradient + change / (2 * expected))


def _climb(ascent: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor) -> Tensor:
    """Climb by steps gradient / information; where the gradient changes its sign, the longest step is halved."""
    ability, before = start, torch.zeros_like(start)
    longest = torch.full_like(start, LARGEST_STEP)
    for _ in range(SCORING_STEPS):
        gradient, information = ascent(ability)
        longest = torch.where(gradient * before < 0, longest / 2, longest)
        step = torch.minimum(torch.maximum(gradient / information, -longest), longest)
        ability, before = ability + step, gradient
        if step.abs().max() < TOLERANCE:
            break
    return ability


def _map(answers: Answers, parameters: Parameters, start: Tensor) -> tuple[Tensor, Tensor]:
    """Climb to every posterior's mode from its mean."""

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return at.gradient - ability, at.expected + 1

    ability = _climb(ascent, start)
    return ability, (_curvature(answers, parameters, ability).observed + 1).rsqrt()


def _ml(answers: Answers, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Climb to the maximum of the likelihood from the best node of a wide lattice."""
    wide = lattice(span=ENDLESS).nodes
    start = wide[node_loglik(answers, parameters, wide).argmax(1)]
    endless = _endless(answers, parameters, start)
    finite = endless == 0

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return torch.where(finite, at.gradient, 0.0), torch.where(finite, at.expected, 1.0)

    ability = _climb(ascent, start)
    se = _curvature(answers, parameters, ability).observed.rsqrt()
    return torch.where(finite, ability, endless * torch.inf), torch.where(finite, se, torch.nan)


def _wle(answers: Answers, parameters: Parameters, start: Tensor) -> tuple[Tensor, Tensor]:
    """Climb to the maximum of the likelihood times the root of the information, from the posterior's mean."""

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return at.weighted, at.expected

    ability = _climb(ascent, start)
    above, below = (ascent(ability + h)[0] for h in (DIFFERENCE, -DIFFERENCE))
    return ability, ((below - above) / (2 * DIFFERENCE)).rsqrt()


def _endless(answers: Answers, parameters: Parameters, best: Tensor) -> Tensor:
    """Return 1 or -1 where the likelihood rises without end towards high or low ability, else 0."""
    against_high, against_low = torch.zeros_like(best), torch.zeros_like(best)
    for block in answers.blocks():
        slope = parameters.slope[block.items]
        wrong = (1 if block.answered is None else block.answered) - block.correct
        rising, falling = (slope > 0).to(best.dtype), (slope < 0).to(best.dtype)
        against_high += wrong @ rising + block.correct @ falling
        against_low += block.correct @ rising + wrong @ falling
    guessed = (parameters.guessing > 0).any()
    high = (against_high == 0) | (guessed & (best >= ENDLESS))
    low = (against_low == 0) | (guessed & (best <= -ENDLESS))
    return high.to(best.dtype) - low.to(best.dtype)
