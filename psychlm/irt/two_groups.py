r"""One- and two-parameter models in two groups whose abilities differ, by marginal maximum likelihood.

The reference group's ability is N(0, 1); the focal group's mean and standard deviation are estimated. Items keep one
set of parameters for both groups, but for those named free, which have one for each: such an item is two items, each
answered by one group and not asked of the other. So the parts of the one-group estimation serve: log-likelihoods at
nodes, posteriors, the M-step, SQUAREM. What is new is the prior of each group; the focal group's is profiled out, so
that the log-likelihood stays a function of the item parameters alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt._fit import fit
from psychlm.irt.em import EM, Settings, ability_moments, squarem
from psychlm.irt.likelihood import (
    RUNAWAY_SLOPE,
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
PROFILE_TOLERANCE = 1e-6  # logits, of the focal group's mean and spread
LEAST_RELIABILITY = 0.2  # below it EM's steps are lengthened no further


@dataclass(frozen=True)
class TwoGroupFit:
    """A 1PL or 2PL fitted to two groups; ability in logits, N(0, 1) in the reference group."""

    items: pd.DataFrame  # by item: a_reference, b_reference, a_focal, b_focal, free (bool)
    model: str  # "1PL" or "2PL"
    loglik: float  # marginal log-likelihood, nats
    n_parameters: int
    focal_mean: float  # of the focal group's ability, logits
    focal_sd: float
    n_reference: int  # persons
    n_focal: int
    converged: bool
    n_iterations: int  # EM steps


def two_groups(
    responses: pd.DataFrame, group: pd.Series, *, reference: object = None
) -> tuple[pd.DataFrame, pd.Series]:
    """Return checked responses and, for each of their persons, whether they belong to the focal group.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    group : Series, indexed by person
        Two labels; persons beyond those of the responses are ignored.
    reference : label, optional
        The reference group; the label of the first person unless given.

    Raises
    ------
    FrameError
        If a person has no label, the labels are not two, or the reference is not one of them.
    """
    answers = check_responses(responses)
    if group.index.has_duplicates:
        raise FrameError(
            f"persons {format_names(group.index[group.index.duplicated()].unique())} have more than one group"
        )
    labels = group.reindex(answers.index)
    if labels.isna().any():
        raise FrameError(
            f"persons {format_names(labels.index[labels.isna()])} have no group; give each one, or leave them out"
        )
    names = list(dict.fromkeys(labels))
    if len(names) != 2:
        raise FrameError(
            f"differential functioning compares two groups, and these are {len(names)}: {format_names(names)}"
        )
    first = names[0] if reference is None else reference
    if first not in names:
        raise FrameError(
            f"the reference group {reference!r} is none of the groups {format_names(names)}"
        )
    return answers, (labels != first).rename("focal")


def fit_two_groups(
    responses: pd.DataFrame,
    group: pd.Series,
    *,
    reference: object = None,
    model: str = "2PL",
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
    group : Series, indexed by person
        Two labels.
    reference : label, optional
        The reference group; the label of the first person unless given.
    model : {"2PL", "1PL"}
        With the 1PL all items share one slope, and free items differ between the groups by difficulty alone.
    free : sequence of items
        Items with parameters of their own in each group; all others tie the groups' scales together (anchors).
    start : TwoGroupFit, optional
        An earlier fit to the same items, to begin from.
    max_iterations, tolerance
        As in :func:`psychlm.irt.fit`.

    Raises
    ------
    FrameError
        If responses or groups are malformed, no anchor is left, an item that ties the groups was answered alike by
        everyone, or a free item alike by everyone of a group.

    Warns
    -----
    IRTWarning
        If EM did not converge.

    References
    ----------
    Bock & Zimowski (1997), Handbook of Modern Item Response Theory, chapter 25 (multiple-group MML).
    """
    answers, focal = two_groups(responses, group, reference=reference)
    if model not in ("1PL", "2PL"):
        raise ValueError(f"model {model!r} is neither '1PL' nor '2PL', the models for two groups")
    freed = _checked_free(answers, focal, free)
    begin = start or _start(answers, model)
    em = _TwoGroupEM(
        _split(answers, focal, freed), focal, model, Settings(tolerance, max_iterations, False)
    )
    em.mean, em.sd = begin.focal_mean, begin.focal_sd
    parameters, converged = squarem(em, _begin(begin, freed), tolerance)
    _, loglik = em.expect(parameters)
    runaway = bool((parameters.slope.abs() > RUNAWAY_SLOPE).any())
    if runaway or not converged:
        warnings.warn(
            f"the two-group {model} with {int(freed.sum())} free items did not converge in {em.n_steps} EM steps"
            + (
                ": a slope runs away; use the 1PL, or leave the item out"
                if runaway
                else "; raise max_iterations"
            ),
            IRTWarning,
            stacklevel=2,
        )
    n_items, n_free = len(freed), int(freed.sum())
    return TwoGroupFit(
        items=_item_frame(parameters, freed),
        model=model,
        loglik=loglik,
        n_parameters=(n_items + n_free) + (1 if model == "1PL" else n_items + n_free) + 2,
        focal_mean=em.mean,
        focal_sd=em.sd,
        n_reference=int((~focal).sum()),
        n_focal=int(focal.sum()),
        converged=converged and not runaway,
        n_iterations=em.n_steps,
    )


class _TwoGroupEM(EM):
    """The EM map of two groups: priors by group, the focal one profiled out at every E-step."""

    def __init__(
        self, answers: ResponseMatrix, focal: pd.Series, model: str, settings: Settings
    ) -> None:
        design = Design(model == "1PL", torch.zeros(answers.n_items, dtype=torch.bool), {})
        super().__init__(answers, design, quadrature_grid(device=answers.device), settings)
        self.is_focal = torch.tensor(focal.to_numpy(), device=answers.device)
        self.mean, self.sd = 0.0, 1.0

    def expect(self, parameters: Parameters) -> tuple[Posterior, float]:
        """E-step: the posteriors under each group's prior, and the log-likelihood."""
        self.at_nodes = node_loglik(self.responses, parameters, self.grid.nodes)
        while True:
            self._profile()
            own = self._prior(self.grid)
            found = integrate(self.at_nodes, own)
            wanted = refined_grid(own, found)
            if wanted is own:
                return found, float(found.loglik.sum())
            if wanted.span > self.grid.span:
                self.at_nodes = node_loglik(self.responses, parameters, wanted.nodes)
            self.grid = wanted

    def _prior(self, grid: QuadratureGrid) -> QuadratureGrid:
        """Return the lattice with a row of log weights for each person, after their group."""
        theirs = _normal(grid.fine, self.mean, self.sd)
        return replace(
            grid,
            log_weights=torch.where(self.is_focal[:, None], theirs, _normal(grid.fine, 0.0, 1.0)),
        )

    def _profile(self) -> None:
        """Set the focal group's mean and spread to their most likely values, the items held.

        EM's steps, each lengthened by what it misses: with reliability r the answers tell r of what known abilities
        would tell about the mean, and r^2 of what they would about the spread.
        """
        at_nodes = self.at_nodes[self.is_focal]
        everyone = torch.ones_like(at_nodes[:, 0])
        for _ in range(PROFILE_STEPS):
            found = integrate(
                at_nodes,
                replace(self.grid, log_weights=_normal(self.grid.fine, self.mean, self.sd)),
            )
            mean, sd = (float(value) for value in ability_moments(found, everyone))
            reliability = max(1 - float(found.variance.mean()) / self.sd**2, LEAST_RELIABILITY)
            by_mean, by_log_sd = (
                (mean - self.mean) / reliability,
                math.log(sd / self.sd) / reliability**2,
            )
            self.mean += min(max(by_mean, -1.0), 1.0)
            self.sd *= math.exp(min(max(by_log_sd, -0.5), 0.5))
            if abs(by_mean) + abs(by_log_sd) < PROFILE_TOLERANCE:
                break

    def absorb(self, parameters: Parameters, found: Posterior) -> Parameters:
        """Let the reference group's mean and spread move, and keep it N(0, 1); the focal group moves along."""
        ours = ~self.is_focal
        theirs = Posterior(
            found.loglik[ours],
            found.weights[ours],
            found.mean[ours],
            found.variance[ours],
            found.edge[ours],
        )
        mean, sd = ability_moments(theirs, torch.ones_like(theirs.mean))
        self.mean, self.sd = (self.mean - float(mean)) / float(sd), self.sd / float(sd)
        return rescaled(parameters, mean, sd)


def _normal(nodes: Tensor, mean: float, sd: float) -> Tensor:
    weights = -0.5 * ((nodes - mean) / sd) ** 2
    return weights - torch.logsumexp(weights, 0)


def _checked_free(answers: pd.DataFrame, focal: pd.Series, free: Sequence | pd.Index) -> pd.Series:
    """Return which items are free, having refused data from which their parameters do not follow."""
    unknown = pd.Index(free).difference(answers.columns)
    if len(unknown):
        raise FrameError(f"free items {format_names(unknown)} are not among the responses")
    freed = pd.Series(answers.columns.isin(free), index=answers.columns)
    if freed.all():
        raise FrameError(
            "all items are free, so nothing ties the groups' scales together; leave at least one anchor"
        )
    alike = constant_by_group(answers, focal)
    unusable = (alike.all(axis=1) & (answers.nunique() < 2)) | (freed & alike.any(axis=1))
    if unusable.any():
        raise FrameError(
            f"items {format_names(unusable.index[unusable])} were answered alike by everyone, or are free and were answered "
            "alike by everyone of a group (or by nobody of it), so a difficulty is infinite; leave them out"
        )
    return freed


def constant_by_group(answers: pd.DataFrame, focal: pd.Series) -> pd.DataFrame:
    """Return, by item, whether all of the reference and all of the focal group who answered it answered alike."""
    sides = {"reference": ~focal, "focal": focal}
    return pd.DataFrame(
        {name: answers[side.to_numpy()].nunique() < 2 for name, side in sides.items()}
    )


def _split(answers: pd.DataFrame, focal: pd.Series, freed: pd.Series) -> ResponseMatrix:
    """Return the answers with each free item twice: as asked of the reference group, and (at the end) of the focal."""
    is_focal = focal.to_numpy()[:, None]
    values = answers.to_numpy()
    mine = np.where(is_focal & freed.to_numpy(), np.nan, values)
    theirs = np.where(is_focal, values[:, freed], np.nan)
    matrix = np.concatenate([mine, theirs], axis=1)
    return answers_as_rows(matrix, answers.index)


def answers_as_rows(values: np.ndarray, persons: pd.Index) -> ResponseMatrix:
    """Return answers (0, 1, NaN) with a row for every person, equal ones too, and items numbered from 0.

    Unlike :func:`psychlm.irt.response_matrix.encode_responses` this merges nothing and refuses nothing: equal answers from two
    groups are not the same evidence, and a resample may hold a person without answers.
    """
    coded = np.where(np.isnan(values), MISSING, values).astype(np.uint8)
    right, asked = coded == 1, coded != MISSING
    return ResponseMatrix(
        coded,
        persons,
        pd.RangeIndex(coded.shape[1]),
        np.arange(len(coded)),
        torch.ones(len(coded), dtype=torch.float64),
        torch.device("cpu"),
        complete=bool(asked.all()),
        n_correct=torch.as_tensor(right.sum(0), dtype=torch.float64),
        n_answered=torch.as_tensor(asked.sum(0), dtype=torch.float64),
    )


def _start(answers: pd.DataFrame, model: str) -> TwoGroupFit:
    """Return the model of one group, as the place to begin from."""
    one = fit(answers, model, standard_errors=False, tolerance=0.01)
    a, b = one.items["a"], one.items["b"]
    items = pd.DataFrame(
        {"a_reference": a, "b_reference": b, "a_focal": a, "b_focal": b, "free": False}
    )
    return TwoGroupFit(
        items, model, one.loglik, one.n_parameters, 0.0, 1.0, 0, 0, one.converged, one.n_iterations
    )


def _begin(begin: TwoGroupFit, freed: pd.Series) -> Parameters:
    known = begin.items.reindex(freed.index)
    if known[["a_reference", "b_reference"]].isna().any(axis=None):
        raise FrameError(
            "start is a fit to other items; begin from a fit to these, or give start=None"
        )
    a = np.concatenate([known["a_reference"], known.loc[freed, "a_focal"]])
    b = np.concatenate([known["b_reference"], known.loc[freed, "b_focal"]])
    return Parameters(
        torch.tensor(a), torch.tensor(-a * b), torch.zeros(len(a), dtype=torch.float64)
    )


def _item_frame(parameters: Parameters, freed: pd.Series) -> pd.DataFrame:
    a, d = parameters.slope.numpy(), parameters.intercept.numpy()
    n_items = len(freed)
    items = pd.DataFrame(
        {"a_reference": a[:n_items], "b_reference": -d[:n_items] / a[:n_items]}, index=freed.index
    )
    items = items.assign(a_focal=items["a_reference"], b_focal=items["b_reference"], free=freed)
    items.loc[freed, "a_focal"] = a[n_items:]
    items.loc[freed, "b_focal"] = -d[n_items:] / a[n_items:]
    return items
