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
from psychlm.irt.likelihood import (
    Parameters,
    fine_posterior,
    log_p_derivatives,
    log_q_derivatives,
    node_loglik,
    quadrature_grid,
    resolved_posterior,
)
from psychlm.irt.response_matrix import ResponseMatrix, encode_responses

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
    on, at_nodes, _ = resolved_posterior(
        answers, parameters, quadrature_grid(device=answers.device)
    )
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
    on, at_nodes, found = resolved_posterior(
        answers, parameters, quadrature_grid(device=answers.device)
    )
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
) -> tuple[ResponseMatrix, Parameters]:
    """Return the answers and the parameters of their items in standard-normal units of ability."""
    answers = encode_responses(responses, torch.device("cpu"))
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


def _curvature(answers: ResponseMatrix, parameters: Parameters, ability: Tensor) -> _Curvature:
    gradient, observed, expected, change = (torch.zeros_like(ability) for _ in range(4))
    for block in answers.blocks():
        part = parameters[block.items]
        a, c = part.slope, part.guessing
        z = torch.outer(ability, a) + part.intercept
        right, off = log_p_derivatives(z, c), log_q_derivatives(z, c)
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


def _map(answers: ResponseMatrix, parameters: Parameters, start: Tensor) -> tuple[Tensor, Tensor]:
    """Climb to every posterior's mode from its mean."""

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return at.gradient - ability, at.expected + 1

    ability = _climb(ascent, start)
    return ability, (_curvature(answers, parameters, ability).observed + 1).rsqrt()


def _ml(answers: ResponseMatrix, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Climb to the maximum of the likelihood from the best node of a wide lattice."""
    wide = quadrature_grid(span=ENDLESS).nodes
    start = wide[node_loglik(answers, parameters, wide).argmax(1)]
    endless = _endless(answers, parameters, start)
    finite = endless == 0

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return torch.where(finite, at.gradient, 0.0), torch.where(finite, at.expected, 1.0)

    ability = _climb(ascent, start)
    se = _curvature(answers, parameters, ability).observed.rsqrt()
    return torch.where(finite, ability, endless * torch.inf), torch.where(finite, se, torch.nan)


def _wle(answers: ResponseMatrix, parameters: Parameters, start: Tensor) -> tuple[Tensor, Tensor]:
    """Climb to the maximum of the likelihood times the root of the information, from the posterior's mean."""

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        at = _curvature(answers, parameters, ability)
        return at.weighted, at.expected

    ability = _climb(ascent, start)
    above, below = (ascent(ability + h)[0] for h in (DIFFERENCE, -DIFFERENCE))
    return ability, ((below - above) / (2 * DIFFERENCE)).rsqrt()


def _endless(answers: ResponseMatrix, parameters: Parameters, best: Tensor) -> Tensor:
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


CURVE_CELLS = 2**21  # probabilities held at once: 16 MiB


class KnownItems:
    """Items whose parameters are known, made ready to score many persons, many times.

    Parameters
    ----------
    items : DataFrame, indexed by item
        ``a`` (slope, per logit), ``b`` (difficulty, logits) and optionally ``c`` (guessing), as ``IRTFit.items``.

    Raises
    ------
    FrameError
        If a column is missing, an item stands twice, or a parameter is not finite.
    """

    def __init__(self, items: pd.DataFrame) -> None:
        self.items = _checked(items)
        pooled = self.items.groupby(["a", "b"], sort=False).size()
        distinct = pooled.index.to_frame().to_numpy()
        self._slope, self._difficulty = (torch.tensor(column) for column in distinct.T)
        self._count = torch.tensor(pooled.to_numpy(float))
        self._weights = self.items["a"].to_numpy()

    def ability(self, correct: np.ndarray, persons: pd.Index | None = None) -> pd.DataFrame:
        """Return maximum-likelihood abilities and their standard errors, in logits.

        Parameters
        ----------
        correct : ndarray, shape (n_persons, n_items)
            Whether each answer is right; items in the order of ``items``.
        persons : Index, optional
            The persons' names; numbered from 0 unless given.

        Returns
        -------
        DataFrame, indexed by person
            ``theta`` and ``se``, as ``irt.score(..., method="ml")`` gives them: theta is infinite, and se NaN, for who
            got everything right, or everything wrong. Items with guessing go through that function.

        Raises
        ------
        FrameError
            If the answers do not have one column an item.
        """
        correct = np.atleast_2d(np.asarray(correct, dtype=bool))
        if correct.shape[1] != len(self.items):
            raise FrameError(
                f"answers to {correct.shape[1]} items, and {len(self.items)} items are known; align them"
            )
        names = (
            pd.RangeIndex(len(correct), name="person")
            if persons is None
            else persons.rename("person")
        )
        if (self.items["c"] > 0).any():
            frame = pd.DataFrame(correct.astype(float), names, self.items.index)
            return score(self.items, frame, "ml")
        table = self._ability(torch.tensor(np.stack([row @ self._weights for row in correct])))
        return pd.DataFrame(table.numpy(), index=names, columns=["theta", "se"])

    def _ability(self, scores: Tensor) -> Tensor:
        """Return (n_persons, 2): where the expected score meets each score, and the inverse root of information."""
        total = self._slope * self._count
        lowest, highest = total.clamp(max=0).sum(), total.clamp(min=0).sum()
        within = 1e-9 * (highest - lowest)  # sums of the same slopes in another order
        low, high = scores <= lowest + within, scores >= highest - within
        finite = ~(low | high)

        def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
            expected, information = self._curve(ability)
            return torch.where(finite, scores - expected, 0.0), torch.where(
                finite, information, 1.0
            )

        share = ((scores - lowest) / (highest - lowest)).clamp(0.01, 0.99)
        steepness = (total.abs().sum() / self._count.sum()).clamp(min=1e-3)
        start = (
            self._difficulty * self._count
        ).sum() / self._count.sum() + share.logit() / steepness
        ability = _climb(ascent, start)
        se = self._curve(ability)[1].rsqrt()
        endless = high.to(ability.dtype) - low.to(ability.dtype)
        return torch.stack(
            [torch.where(finite, ability, endless * torch.inf), torch.where(finite, se, torch.nan)],
            dim=1,
        )

    def _curve(self, ability: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected weighted score and the information at each ability, (n_persons,) each."""
        expected, information = torch.zeros_like(ability), torch.zeros_like(ability)
        width = max(1, CURVE_CELLS // len(ability))
        for start in range(0, len(self._slope), width):
            part = slice(start, start + width)
            slope, weight = self._slope[part], self._slope[part] * self._count[part]
            p = torch.sigmoid((ability[:, None] - self._difficulty[part]).mul_(slope))
            expected += p @ weight
            information += (p - p.square()) @ (weight * slope)
        return expected, information


def _checked(items: pd.DataFrame) -> pd.DataFrame:
    missing = [column for column in ("a", "b") if column not in items]
    if missing:
        raise FrameError(f"known items need the columns {missing}; they have {list(items.columns)}")
    if items.index.has_duplicates:
        raise FrameError(
            f"items {format_names(items.index[items.index.duplicated()])} stand more than once; keep one of each"
        )
    table = items.reindex(columns=["a", "b", "c"], fill_value=0.0).astype(float)
    unknown = ~np.isfinite(table.to_numpy()).all(axis=1)
    if unknown.any():
        raise FrameError(
            f"{unknown.sum()} of {len(table)} items {format_names(table.index[unknown])} have parameters that are missing or "
            "infinite; leave them out, or fit them with a prior"
        )
    return table
