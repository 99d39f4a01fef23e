r"""One- and two-parameter models in two groups whose abilities differ.

Ability is N(0, 1) in the reference group and N(mu, sigma^2) in the focal group, with mu and sigma
estimated by marginal maximum likelihood (Bock & Zimowski 1997, Handbook of Modern Item Response
Theory, chapter 25). Items have one set of parameters for both groups, but for the free ones, which
have one for each: such an item is treated as two, each asked of one group only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt._fit import fit
from psychlm.irt.em import EM, Settings, ability_moments, squarem
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    integrate,
    node_loglik,
    quadrature_grid,
    refined_grid,
    rescaled,
)
from psychlm.irt.response_matrix import MISSING, ResponseMatrix
from psychlm.irt.result import IRTWarning

PROFILE_STEPS = 200
PROFILE_TOLERANCE = 1e-6  # logits, of the focal group's mean and standard deviation
LEAST_RELIABILITY = 0.2  # limits the lengthening of EM's steps
ESTIMATES = ["a_reference", "b_reference", "a_focal", "b_focal"]


@dataclass(frozen=True)
class TwoGroupFit:
    """A 1PL or 2PL fitted to two groups; ability in logits, N(0, 1) in the reference group."""

    items: pd.DataFrame  # a_reference, b_reference, a_focal, b_focal, free (bool)
    model: str  # "1PL" or "2PL"
    loglik: float  # marginal log-likelihood, nats
    n_parameters: int
    focal_mean: float  # of the focal group's ability, logits
    focal_sd: float
    n_reference: int  # persons
    n_focal: int
    converged: bool
    n_iterations: int  # EM steps


def fit_two_groups(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    model: Literal["2PL", "1PL"] = "2PL",
    free: Sequence | pd.Index = (),
    start: TwoGroupFit | None = None,
    max_iterations: int = 2000,
    tolerance: float = 1e-4,
) -> TwoGroupFit:
    """Fit a 1PL or 2PL to two groups, with the focal group's ability mean and spread free.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN.
    group : Series indexed by person, or sequence in the order of the responses
        Two labels.
    reference : label, optional
        The reference group; by default the label of the first person.
    model : {"2PL", "1PL"}
        With the 1PL all items share one slope, and free items differ in difficulty alone.
    free : sequence of items
        Items with parameters of their own in each group; all others (anchors) link the scales.
    start : TwoGroupFit, optional
        An earlier fit to the same items, as starting values.
    max_iterations, tolerance
        As in :func:`psychlm.irt.fit`.

    Raises
    ------
    FrameError
        If responses or groups are malformed, no anchor is left, an anchor was answered alike by
        everyone, or a free item alike by everyone of a group.

    Warns
    -----
    IRTWarning
        If EM did not converge.
    """
    checked, focal = check_groups(responses, group, reference=reference)
    if model not in ("1PL", "2PL"):
        raise ValueError(f"model {model!r} is neither '1PL' nor '2PL', the models for two groups")
    freed = _check_free(checked, focal, free)
    if start is None:
        one = fit(checked, model, standard_errors=False, tolerance=0.01).items
        mean, sd, known = 0.0, 1.0, pd.concat([one["a"], one["b"], one["a"], one["b"]], axis=1)
        known.columns = ESTIMATES
    else:
        mean, sd = start.focal_mean, start.focal_sd
        known = start.items.reindex(freed.index)[ESTIMATES]
        if known.isna().any(axis=None):
            raise FrameError("start is a fit to other items; give a fit to these, or start=None")
    # Every free item stands twice: asked of the reference group, and at the end of the focal one.
    is_focal, values = focal.to_numpy()[:, None], checked.to_numpy()
    shared = np.where(is_focal & freed.to_numpy(), np.nan, values)
    matrix = np.hstack([shared, np.where(is_focal, values[:, freed], np.nan)])
    a = np.concatenate([known["a_reference"], known.loc[freed, "a_focal"]])
    b = np.concatenate([known["b_reference"], known.loc[freed, "b_focal"]])
    first = Parameters(torch.tensor(a), torch.tensor(-a * b), torch.zeros(len(a)).double())
    settings = Settings(tolerance, max_iterations, False)
    em = _TwoGroupEM(uncompressed(matrix, checked.index), focal, model, settings, mean, sd)
    parameters, converged = squarem(em, first, tolerance)
    _, loglik = em.expect(parameters)
    runaway = bool((parameters.slope.abs() >= LARGEST_SLOPE).any())
    if runaway or not converged:
        advice = "a slope runs away; use the 1PL, or leave the item out"
        warnings.warn(
            f"the two-group {model} with {int(freed.sum())} free items did not converge in "
            f"{em.n_steps} EM steps: {advice if runaway else 'raise max_iterations'}",
            IRTWarning,
            stacklevel=2,
        )
    n_items, a, d = len(freed), parameters.slope.numpy(), parameters.intercept.numpy()
    items = pd.DataFrame(index=freed.index)
    items["a_reference"], items["b_reference"] = a[:n_items], -d[:n_items] / a[:n_items]
    items["a_focal"], items["b_focal"] = items["a_reference"], items["b_reference"]
    items.loc[freed, "a_focal"] = a[n_items:]
    items.loc[freed, "b_focal"] = -d[n_items:] / a[n_items:]
    return TwoGroupFit(
        items=items.assign(free=freed),
        model=model,
        loglik=loglik,
        n_parameters=len(a) + (1 if model == "1PL" else len(a)) + 2,
        focal_mean=em.mean,
        focal_sd=em.sd,
        n_reference=int((~focal).sum()),
        n_focal=int(focal.sum()),
        converged=converged and not runaway,
        n_iterations=em.n_steps,
    )


class _TwoGroupEM(EM):
    """The EM map of two groups: one prior per group, the focal one profiled out at every E-step."""

    def __init__(
        self,
        responses: ResponseMatrix,
        focal: pd.Series,
        model: str,
        settings: Settings,
        mean: float,
        sd: float,
    ) -> None:
        no_guessing = torch.zeros(responses.n_items, dtype=torch.bool)
        design = Design(model == "1PL", no_guessing, {})
        super().__init__(responses, design, quadrature_grid(device=responses.device), settings)
        self.is_focal = torch.tensor(focal.to_numpy(), device=responses.device)
        self.mean, self.sd = mean, sd  # of the focal group

    def expect(self, parameters: Parameters) -> tuple[Posterior, float]:
        """E-step: the posteriors under each group's prior, and the log-likelihood."""
        self.at_nodes = node_loglik(self.responses, parameters, self.grid.nodes)
        while True:
            self._profile_focal_ability()
            focal = _normal_log_weights(self.grid, self.mean, self.sd)
            prior = torch.where(
                self.is_focal[:, None], focal, _normal_log_weights(self.grid, 0.0, 1.0)
            )
            by_person = replace(self.grid, log_weights=prior)
            posterior = integrate(self.at_nodes, by_person)
            grid = refined_grid(by_person, posterior, self.responses.count, self.responses.n_items)
            if grid is by_person:
                return posterior, float(posterior.loglik.sum())
            if len(grid.nodes) > len(self.grid.nodes):
                self.at_nodes = node_loglik(self.responses, parameters, grid.nodes)
            self.grid = grid

    def _profile_focal_ability(self) -> None:
        """Set the focal group's mean and sd to their most likely values, given the items.

        EM's steps, lengthened by what they miss: with reliability r the responses hold r of what
        known abilities would say about the mean, and r^2 of what they would about the spread.
        """
        at_nodes = self.at_nodes[self.is_focal]
        count = torch.ones_like(at_nodes[:, 0])
        for _ in range(PROFILE_STEPS):
            prior = _normal_log_weights(self.grid, self.mean, self.sd)
            posterior = integrate(at_nodes, replace(self.grid, log_weights=prior))
            mean, sd = (float(value) for value in ability_moments(posterior, count))
            reliability = 1 - float(posterior.variance.mean()) / self.sd**2
            reliability = max(reliability, LEAST_RELIABILITY)
            by_mean = (mean - self.mean) / reliability
            by_log_sd = math.log(sd / self.sd) / reliability**2
            self.mean += min(max(by_mean, -1.0), 1.0)
            self.sd *= math.exp(min(max(by_log_sd, -0.5), 0.5))
            if abs(by_mean) + abs(by_log_sd) < PROFILE_TOLERANCE:
                break

    def absorb(self, parameters: Parameters, posterior: Posterior) -> Parameters:
        """Let the reference group's mean and spread move, and rescale so that it stays N(0, 1)."""
        parts = (posterior.loglik, posterior.weights, posterior.mean, posterior.variance)
        reference = Posterior(*(part[~self.is_focal] for part in (*parts, posterior.edge)))
        mean, sd = ability_moments(reference, torch.ones_like(reference.mean))
        self.mean, self.sd = (self.mean - float(mean)) / float(sd), self.sd / float(sd)
        return rescaled(parameters, mean, sd)


def _normal_log_weights(grid: QuadratureGrid, mean: float, sd: float) -> Tensor:
    """Return log densities of N(mean, sd^2) at the fine nodes, scaled to sum to 1."""
    weights = -0.5 * ((grid.fine - mean) / sd) ** 2
    return weights - torch.logsumexp(weights, 0)


def check_groups(
    responses: pd.DataFrame, group: pd.Series | Sequence, *, reference: object = None
) -> tuple[pd.DataFrame, pd.Series]:
    """Return checked responses and, by person, whether they belong to the focal group.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    group : Series indexed by person, or sequence in the order of the responses
        Two labels; in a Series, persons beyond those of the responses are ignored.
    reference : label, optional
        The reference group; by default the label of the first person.

    Raises
    ------
    FrameError
        If a person has no label, the labels are not two, or the reference is not one of them.
    """
    checked = check_responses(responses)
    if not isinstance(group, pd.Series):
        labels = np.asarray(group)
        if labels.shape != (len(checked),):
            raise FrameError(
                f"group has shape {labels.shape} for {len(checked)} persons; give one each, in "
                "their order, or a Series indexed by person"
            )
        group = pd.Series(labels, index=checked.index)
    if group.index.has_duplicates:
        twice = group.index[group.index.duplicated()].unique()
        raise FrameError(f"persons {format_names(twice)} have more than one group")
    labels = group.reindex(checked.index)
    if labels.isna().any():
        nameless = labels.index[labels.isna()]
        raise FrameError(f"persons {format_names(nameless)} have no group; give one, or drop them")
    names = list(dict.fromkeys(labels))
    if len(names) != 2:
        raise FrameError(
            f"two groups are needed, and these are {len(names)}: {format_names(names)}"
        )
    first = names[0] if reference is None else reference
    if first not in names:
        raise FrameError(f"reference {reference!r} is none of the groups {format_names(names)}")
    return checked, (labels != first).rename("focal")


def _check_free(checked: pd.DataFrame, focal: pd.Series, free: Sequence | pd.Index) -> pd.Series:
    """Return by item whether it is free, refusing data that do not determine the parameters."""
    unknown = pd.Index(free).difference(checked.columns)
    if len(unknown):
        raise FrameError(f"free items {format_names(unknown)} are not among the responses")
    freed = pd.Series(checked.columns.isin(free), index=checked.columns)
    if freed.all():
        raise FrameError("all items are free, so nothing links the groups' scales; leave an anchor")
    constant = (checked.nunique() < 2) | (freed & constant_in_a_group(checked, focal))
    if constant.any():
        raise FrameError(
            f"items {format_names(constant.index[constant])} were answered alike by everyone, or "
            "are free and were answered alike by a group: difficulties are infinite; leave them out"
        )
    return freed


def constant_in_a_group(checked: pd.DataFrame, focal: pd.Series) -> pd.Series:
    """Return by item whether all of a group who answered it answered alike (or nobody did)."""
    sides = [checked[side.to_numpy()].nunique() < 2 for side in (focal, ~focal)]
    return sides[0] | sides[1]


def uncompressed(values: np.ndarray, persons: pd.Index) -> ResponseMatrix:
    """Return responses (0, 1, NaN) with one row for every person, also for equal ones.

    Unlike :func:`psychlm.irt.response_matrix.encode_responses` this merges and refuses nothing:
    equal responses of two groups have different priors, and a resample may hold an empty row.
    """
    coded = np.where(np.isnan(values), MISSING, values).astype(np.uint8)
    return ResponseMatrix(
        coded,
        persons,
        pd.RangeIndex(coded.shape[1]),
        np.arange(len(coded)),
        torch.ones(len(coded), dtype=torch.float64),
        torch.device("cpu"),
        complete=bool((coded != MISSING).all()),
        n_correct=torch.as_tensor((coded == 1).sum(0), dtype=torch.float64),
        n_answered=torch.as_tensor((coded != MISSING).sum(0), dtype=torch.float64),
    )
