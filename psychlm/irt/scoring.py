"""Estimate abilities from responses to known items: EAP, MAP, ML and WLE, with standard errors.

Modes are climbed to by Fisher scoring, from a polynomial through the log-likelihoods at a few
nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.device import Device
from psychlm.frames import FrameError, format_names, refuse
from psychlm.irt.likelihood import (
    Posterior,
    QuadratureGrid,
    fine_posterior,
    node_loglik,
    quadrature_grid,
    resolve,
)
from psychlm.irt.response_functions import Logistic, ResponseFunction, model_named
from psychlm.irt.response_matrix import (
    BLOCK_CELLS,
    BLOCK_CELLS_GPU,
    ResponseMatrix,
    encode_ratings,
    encode_responses,
    few_threads,
    pick_device,
)
from psychlm.irt.specification import IRTWarning

METHODS = ("eap", "map", "ml", "wle")
# Standard deviations of ability: where a likelihood with guessing still rises there, it has no
# maximum.
UNBOUNDED = 20.0
SCORING_STEPS = 200
POLYNOMIAL_STEPS = 4
SMALLEST = 1e-300  # P of a steep item far below its difficulty, which else is 0 and divides 0
LARGEST_STEP = 1.0  # standard deviations of ability, of one scoring step
TOLERANCE = 1e-8
DIFFERENCE = 1e-3  # of ability in units of the steepest curve's 1 / slope, for derivatives
CACHED_CELLS = 2**16  # of derivatives at once: 0.5 MiB each


@dataclass(frozen=True)
class AbilityPosterior:
    """Posterior probabilities of ability on a grid."""

    persons: pd.Index  # (n_persons,)
    nodes: np.ndarray  # (n_nodes,), logits
    weights: np.ndarray  # (n_persons, n_nodes), rows sum to 1
    loglik: np.ndarray  # (n_persons,), log P(responses), nats


@dataclass(frozen=True)
class KnownCurves:
    """Responses to items with known parameters, on the scale on which ability is N(0, 1)."""

    answers: ResponseMatrix
    items: ResponseFunction

    @property
    def guessed(self) -> bool:
        """Whether items are anything but logistic curves from 0 to 1."""
        return not (isinstance(self.items, Logistic) and len(self.items.values) == 2)

    def node_loglik(self, nodes: Tensor) -> Tensor:
        """Return log P(responses | node) of every row, (n_rows, n_nodes)."""
        return node_loglik(self.answers, self.items, nodes)

    def by_ability(self, ability: Tensor) -> tuple[Tensor, ...]:
        """Return derivatives of every row's log-likelihood at its ability, each (n_rows,).

        They are the gradient, the observed and the expected information, and the derivative of the
        latter, in standard-normal units.
        """
        if isinstance(self.items, Logistic) and len(self.items.values) < 4:
            return _by_products(self.answers, self.items, ability)
        return _by_functions(self.answers, self.items, ability)

    def resolved(self) -> tuple[QuadratureGrid, Tensor, Posterior]:
        """Return a grid that resolves every posterior, log-likelihoods at its nodes, posteriors."""
        count = self.answers.count
        grid = quadrature_grid(device=count.device)
        return resolve(self.node_loglik, self.items.steepness, count, grid)

    def unbounded(self) -> tuple[Tensor, Tensor]:
        """Return of which rows no response speaks against an ever higher, or lower, ability."""
        against = torch.zeros(len(self.answers.count), 2).to(self.answers.count)
        if not isinstance(self.items, Logistic) or len(self.items.values) > 3:
            return against[:, 0] > 0, against[:, 1] > 0
        slope = self.items.values[0]
        signs = torch.stack([slope > 0, slope < 0], 1).double()
        for block in self.answers.blocks():
            sign = signs[block.items]
            answered = sign.sum(0) if block.answered is None else block.answered @ sign
            against += answered + block.correct @ (sign.flip(1) - sign)
        return against[:, 0] == 0, against[:, 1] == 0


def _by_products(answers: ResponseMatrix, items: Logistic, ability: Tensor) -> tuple[Tensor, ...]:
    """Return derivatives by ability, of items without upper asymptotes, by products of matrices."""
    sums = torch.zeros(4, len(ability), dtype=torch.float64, device=ability.device)
    n_cells = CACHED_CELLS if ability.device.type == "cpu" else BLOCK_CELLS_GPU
    for block in answers.blocks():
        part = items.of_items(block.items)
        a = part.slope
        c = part.guessing
        n_rows = max(1, n_cells // len(a))  # as many rows as a processor's cache holds
        for start in range(0, len(ability), n_rows):
            rows = slice(start, start + n_rows)
            correct = block.correct[rows]
            answered = None if block.answered is None else block.answered[rows]
            gradient, observed, expected, change = sums[:, rows]
            z = torch.outer(ability[rows], a) + part.values[1]
            if not c.any():  # without guessing the derivatives are X - P, PQ and PQ (Q - P)
                right = z.sigmoid()
                wrong = z.neg_().sigmoid_()
                information = right * wrong
                turn = wrong.sub_(right)
                if answered is not None:
                    right = right * answered
                    information = information * answered
                gradient += (correct - right) @ a
                observed += information @ a**2
                expected += information @ a**2
                change += information.mul_(turn) @ a**3
                continue
            # With s the logistic function of z and r = 1 - s, (log Q)' = -s, (log Q)'' = -s r,
            # (log P)' = (1 - c) s r / P = p; the expected information is P'^2 / (P Q) = p s.
            s = z.sigmoid().clamp_min_(SMALLEST)
            r = z.neg_().sigmoid_()
            sr = s * r
            p = sr * (1 - c) / (s * (1 - c) + c)
            pp = p * (r - s - p)  # (log P)''
            is_answered = 1.0 if answered is None else answered
            gradient += (correct * (p + s) - s * is_answered) @ a
            observed += (sr * is_answered - correct * (pp + sr)) @ a**2
            expected += (p * s * is_answered) @ a**2
            change += ((pp * s + p * sr) * is_answered) @ a**3
    return tuple(sums)


def _by_functions(
    answers: ResponseMatrix, items: ResponseFunction, ability: Tensor
) -> tuple[Tensor, ...]:
    """Return derivatives by ability, of any items; the last by central differences."""
    size = max(1, BLOCK_CELLS // (answers.n_items * answers.n_categories))
    difference = DIFFERENCE / items.steepness.max().clip(1.0)
    sums = []
    for start in range(0, len(ability), size):
        rows = slice(start, start + size)
        at = ability[rows]
        block = answers.cells(rows, slice(None))
        asked = torch.ones_like(block.correct) if block.answered is None else block.answered
        chosen = torch.stack([asked - sum(block.categories), *block.categories]).permute(2, 0, 1)
        first, second = items.by_ability(at, chosen)
        expected, ahead, behind = (
            (asked * items.information(at + step)).sum(1) for step in (0.0, difference, -difference)
        )
        change = (ahead - behind) / (2 * difference)
        sums.append(torch.stack([first.sum(0), -second.sum(0), expected, change]))
    return tuple(torch.cat(sums, 1))


def known_items(
    items: pd.DataFrame,
    responses: pd.DataFrame,
    ability_sd: float,
    ability_mean: float,
    model: str = "2PL",
    levels: Mapping | None = None,
    device: Device = "auto",
) -> KnownCurves:
    """Check and encode responses and the parameters of their items."""
    form = model_named(model).form
    where = pick_device(device, "irt.score", getattr(responses, "size", 0))
    flaw = "have no parameters; drop them, or fit a model with them"
    if form.dichotomous:
        encoded = encode_responses(responses, where)
        refuse("items", encoded.items.difference(items.index), flaw)
    else:
        columns = getattr(responses, "columns", items.index[:0])
        refuse("items", columns.difference(items.index), flaw)
        levels = levels_of(form.of_table(items), items.index, levels)
        encoded = encode_ratings(responses, levels).on(where)
    table = items.loc[encoded.items]
    curves = form.of_table(table)
    check_known(pd.DataFrame(curves.values.T.numpy(), table.index), ability_mean, ability_sd)
    curves = curves.rescaled(ability_mean, ability_sd)
    if isinstance(curves, Logistic):
        curves = Logistic(curves.values[: curves.n_rows(curves.values.numpy())])
    curves = curves.to(where)
    n_categories = curves.log_probability(encoded.count[:1]).shape[1]
    return KnownCurves(replace(encoded, n_categories=n_categories), curves)


def levels_of(functions: ResponseFunction, items: pd.Index, levels: Mapping | None) -> dict:
    """Return the answers that are the categories of each item: those given, or 0, 1, 2, ...

    Answers that are not as many as the categories of their item, or in another order, are refused.
    """
    of_model = functions.levels(items)
    if levels is None:
        return of_model
    refuse("items", items[[item not in levels for item in items]], "are not among the levels")
    for item, categories in of_model.items():
        answers = list(levels[item])
        if len(answers) != len(categories) or answers != sorted(set(answers)):
            raise FrameError(
                f"item {item!r} has {len(categories)} categories and the levels {answers}; give as "
                "many answers as there are categories, from the lowest to the highest"
            )
    return dict(levels)


def _information(answers: ResponseMatrix, items: ResponseFunction, nodes: Tensor) -> Tensor:
    """Return the expected information of the answered items at nodes, (n_rows, n_nodes)."""
    by_item = items.information(nodes).T
    sums = []
    size = max(1, BLOCK_CELLS_GPU // len(by_item))
    for n in np.array_split(answers.n_asked, range(size, len(answers.values), size)):
        sums.append(torch.from_numpy(n).to(by_item) @ by_item)
    return torch.cat(sums)


def check_known(parameters: pd.DataFrame, ability_mean: float, ability_sd: float) -> None:
    """Refuse items that have two rows or no finite parameters, and no distribution of ability."""
    if not (np.isfinite(ability_mean) and 0 < ability_sd < np.inf):
        raise ValueError(
            f"ability has mean {ability_mean} and sd {ability_sd}; give finite ones, the sd above 0"
        )
    items = parameters.index
    refuse("items", items[items.duplicated()], "stand more than once; keep one of each")
    bad = ~np.isfinite(parameters.to_numpy(float)).all(axis=1)
    flaw = "have parameters that are missing or infinite; leave them out, or fit with a prior"
    refuse("items", items[bad], flaw)


def ability_posterior(
    items: pd.DataFrame,
    responses: pd.DataFrame,
    *,
    ability_sd: float = 1.0,
    ability_mean: float = 0.0,
    device: Device = "auto",
    **options: Any,
) -> AbilityPosterior:
    """Return every person's posterior on a grid that resolves the narrowest; as :func:`score`."""
    with few_threads(getattr(responses, "size", 0)):
        curves = known_items(items, responses, ability_sd, ability_mean, device=device, **options)
        grid, at_nodes, _ = curves.resolved()
        loglik, weights = fine_posterior(at_nodes, grid)
    return AbilityPosterior(
        persons=curves.answers.persons,
        nodes=ability_mean + ability_sd * grid.fine.cpu().numpy(),
        weights=weights.cpu().numpy()[curves.answers.row],
        loglik=loglik.cpu().numpy()[curves.answers.row],
    )


def score(
    items: pd.DataFrame,
    responses: pd.DataFrame,
    method: str = "eap",
    *,
    ability_sd: float = 1.0,
    ability_mean: float = 0.0,
    model: str = "2PL",
    levels: Mapping | None = None,
    device: Device = "auto",
) -> pd.DataFrame:
    """Return abilities and their standard errors, in logits, for persons old or new.

    Parameters
    ----------
    items : DataFrame, indexed by item
        Known parameters, as ``IRTFit.items`` has them, in the logistic metric (D = 1): convert
        those printed in the normal metric by :func:`psychlm.irt.rescale`.
    responses : DataFrame, shape (n_persons, n_items)
        Of some of these items. Who answered none has NaN, and a warning names them.
    method : str
        "eap": posterior mean and standard deviation. "map": posterior mode. "ml": maximum
        likelihood, infinite where all responses, or none, are correct. "wle": the maximum of
        likelihood times the root of the information, finite and without ML's outward bias (Warm
        1989; with guessing Warm's weight differs from this one, which is R mirt's).
    ability_sd, ability_mean : float
        Of ability in the population, logits: for EAP and MAP.
    model, levels
        The model's name and, of polytomous items, their answers in order, by default 0, 1, 2, ...
    device : str or torch.device
        "auto" takes a GPU for over ten million responses.

    Returns
    -------
    DataFrame, indexed by person
        ``theta`` and ``se``, logits; se from the observed curvature, NaN where theta is infinite.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> score(irt.fit(lsat, "2PL").items, lsat.iloc[:2]).columns.tolist()
    ['theta', 'se']
    """
    method = method.lower()
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {METHODS}")
    if isinstance(responses, pd.DataFrame) and responses.size:
        # Of new persons some may have answered nothing, and some items may not have been asked.
        has_answer = responses.notna().to_numpy()
        answered = has_answer.any(axis=1)
        persons = responses.index
        responses = responses.loc[answered, has_answer.any(axis=0)]
        if not answered.all():
            silent = format_names(persons[~answered])
            message = f"persons {silent} answered no item; their ability is missing"
            warnings.warn(message, IRTWarning, stacklevel=2)
            scores = pd.DataFrame(np.nan, persons.rename("person"), ["theta", "se"])
            if answered.any():
                options: dict[str, Any] = {"model": model, "levels": levels, "device": device}
                options |= {"ability_sd": ability_sd, "ability_mean": ability_mean}
                scores[answered] = score(items, responses, method, **options).to_numpy()
            return scores
    with few_threads(getattr(responses, "size", 0)):
        curves = known_items(items, responses, ability_sd, ability_mean, model, levels, device)
        if method == "eap":
            _, _, posterior = curves.resolved()
            theta = posterior.mean
            se = posterior.variance.sqrt()
        else:
            theta, se = _mode(curves, method)
    table = torch.stack([ability_mean + ability_sd * theta, ability_sd * se], 1)
    return pd.DataFrame(
        table.cpu().numpy()[curves.answers.row], curves.answers.persons, ["theta", "se"]
    )


def climb(
    ascent: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, tolerance: float = TOLERANCE
) -> Tensor:
    """Climb by steps gradient / information; where the gradient changes sign, steps are halved.

    The climb ends after steps that are all below the tolerance.
    """
    ability = start
    before = torch.zeros_like(start)
    longest = torch.full_like(start, LARGEST_STEP)
    for _ in range(SCORING_STEPS):
        gradient, information = ascent(ability)
        longest = torch.where(gradient * before < 0, longest / 2, longest)
        step = torch.minimum(torch.maximum(gradient / information, -longest), longest)
        ability = ability + step
        before = gradient
        if step.abs().max() < tolerance:
            break
    return ability


def between_nodes(at_nodes: Tensor, nodes: Tensor) -> Tensor:
    """Return the maxima of functions (n, n_nodes), near their largest values at the nodes.

    Newton's method on the polynomial through the seven nodes around the largest value.
    """
    offsets = torch.arange(-3.0, 4.0, dtype=torch.float64, device=nodes.device)
    centre = at_nodes.argmax(1).clamp(3, len(nodes) - 4)
    values = at_nodes.gather(1, centre[:, None] + offsets.long())
    powers = torch.arange(7, device=nodes.device)
    polynomial = torch.linalg.inv(offsets[:, None] ** powers)  # from values to coefficients
    coefficients = (values - values[:, 3:4]) @ polynomial.T
    first = powers[1:] * coefficients[:, 1:]
    second = (powers * (powers - 1))[2:] * coefficients[:, 2:]
    offset = at_nodes.argmax(1) - centre.to(torch.float64)  # not 0 at the edge of the grid
    lowest = offset - 1
    highest = offset + 1
    for _ in range(POLYNOMIAL_STEPS):
        slope = (first * offset[:, None] ** powers[:-1]).sum(1)
        bend = (second * offset[:, None] ** powers[:-2]).sum(1)
        step = torch.where(bend < 0, -slope / bend, 0.0)
        offset = torch.minimum(torch.maximum(offset + step, lowest), highest)
    return nodes[centre] + offset * (nodes[1] - nodes[0])


def _mode(curves: KnownCurves, method: str) -> tuple[Tensor, Tensor]:
    """Climb to the mode of every posterior ("map") or likelihood ("ml"); return it and its error.

    By "wle" it is the maximum of the likelihood times the root of the information. Steps are
    Newton's where the observed information is positive (half the expected one at least), else
    Fisher's. Without guessing both are the same I, and as :math:`|I'| < a I`, with a the largest
    slope, a step s leaves an error below :math:`a s^2 / 2`. The climb ends where that is below the
    tolerance; the information at the mode follows from that before it by its derivative.
    """
    weighted = method == "wle"
    prior = float(method == "map")
    nodes = quadrature_grid(span=UNBOUNDED, device=curves.answers.count.device).nodes
    at_nodes = curves.node_loglik(nodes).sub_(prior * nodes**2 / 2)
    if weighted:
        at_nodes += _information(curves.answers, curves.items, nodes).clamp_min(SMALLEST).log() / 2
    start = between_nodes(at_nodes, nodes)
    limit = torch.zeros_like(curves.answers.count)
    if method == "ml":
        # The likelihood rises without end towards high ability where no response speaks against
        # it, towards low ability likewise; with guessing also where it rises at the grid's end.
        best = at_nodes.argmax(1)
        high, low = curves.unbounded()
        high |= curves.guessed & (best == len(nodes) - 1)
        low |= curves.guessed & (best == 0)
        limit = torch.where(high == low, 0.0, torch.where(high, torch.inf, -torch.inf))
    finite = limit == 0
    before = start
    observed = change = torch.zeros_like(start)

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal before, observed, change
        before = ability
        gradient, observed, expected, change = curves.by_ability(ability)
        information = torch.where(observed > expected / 2, observed, expected) + prior
        gradient = gradient - prior * ability
        if weighted:
            gradient = gradient + change / (2 * expected)
        return torch.where(finite, gradient, 0.0), torch.where(finite, information, 1.0)

    steepest = float(curves.items.steepness.max().clamp_min(1.0))
    if weighted or curves.guessed:  # the last step is too short to matter
        ability = climb(ascent, start)
    else:
        ability = climb(ascent, start, (2 * TOLERANCE / steepest) ** 0.5)
        observed = observed + change * (ability - before)
    if weighted:
        difference = DIFFERENCE / steepest
        above = ascent(ability + difference)[0]
        below = ascent(ability - difference)[0]
        observed = (below - above) / (2 * difference)
    se = (observed + prior).rsqrt()
    return torch.where(finite, ability, limit), torch.where(finite, se, torch.nan)
