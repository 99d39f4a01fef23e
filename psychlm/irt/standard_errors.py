r"""Standard errors from the observed information of the marginal likelihood.

Louis (1982): observed information = expected complete information - missing information, the sum over persons of the
posterior covariance of their complete-data scores. Scores are smooth functions of ability, so their covariance is a sum
over a few orthonormal polynomials of every person's posterior (:func:`observed_information`): numerically exact, and
equal to what Oakes's (1999) identity gives at a maximum.

With more parameters than persons, and thousands of them, posteriors are narrow and the joint curvature in parameters
and abilities at the abilities' modes gives the same information by Laplace's approximation
(:mod:`psychlm.irt.joint_curvature`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.irt.answers import Answers, Block
from psychlm.irt.joint_curvature import joint_variances
from psychlm.irt.likelihood import Design, Parameters, node_loglik, right_answer, wrong_answer
from psychlm.irt.quadrature import Lattice, fine_posterior

RUNAWAY_SLOPE = (
    30.0  # per standard deviation of ability: a step, not a curve, and on its way to infinity
)
EXACT_PARAMETERS = 1000  # up to so many the information matrix is always built whole
POLYNOMIALS = 24
NEGLIGIBLE = 1e-10  # share of the missing information at which the sum over polynomials ends


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors in slope-intercept form (ability N(0, 1)); NaN where a parameter is not free."""

    slope: np.ndarray  # (n_items,)
    intercept: np.ndarray  # (n_items,)
    guessing: np.ndarray  # (n_items,)
    slope_intercept: np.ndarray  # (n_items,) covariances of slope and intercept
    covariance: pd.DataFrame | None  # of all free parameters, where they are not too many


def no_standard_errors(n_items: int) -> StandardErrors:
    """Return NaN for everything."""
    unknown = np.full(n_items, np.nan)
    return StandardErrors(unknown, unknown, unknown, unknown, None)


def standard_errors(
    answers: Answers, design: Design, parameters: Parameters, on: Lattice
) -> StandardErrors:
    """Return the standard errors of the estimates, all NaN where the observed information is not positive definite."""
    free = free_parameters(design, parameters)
    n_free = int(free.sum()) - design.common_slope * (answers.n_items - 1)
    if n_free > max(EXACT_PARAMETERS, answers.n_persons):
        try:
            slope, intercept, guessing, cross = joint_variances(
                answers, design, parameters, on, free
            )
        except torch.linalg.LinAlgError:  # as below: not at a maximum
            return no_standard_errors(answers.n_items)
        with np.errstate(
            invalid="ignore"
        ):  # a negative variance is no variance: NaN, and reported after the fit
            return StandardErrors(slope**0.5, intercept**0.5, guessing**0.5, cross, None)
    information = observed_information(answers, design, parameters, on)
    kinds = len(information) // answers.n_items
    basis = merged(free[:kinds], design)
    root, failed = torch.linalg.cholesky_ex(basis.T @ information @ basis)
    if failed:
        return no_standard_errors(answers.n_items)
    covariance = torch.cholesky_inverse(root)
    whole = (basis @ covariance @ basis.T).view(kinds, answers.n_items, kinds, answers.n_items)
    variances = torch.full((3, answers.n_items), torch.nan, dtype=torch.float64)
    variances[:kinds] = torch.stack([whole[k, :, k].diagonal() for k in range(kinds)]).cpu()
    variances[~free.cpu()] = torch.nan
    labelled = (
        _labelled(covariance, free, design, answers.items) if n_free <= EXACT_PARAMETERS else None
    )
    a, d, c = variances.sqrt().numpy()
    return StandardErrors(a, d, c, whole[0, :, 1].diagonal().cpu().numpy(), labelled)


def free_parameters(design: Design, parameters: Parameters) -> Tensor:
    """Return which of (slope, intercept, guessing) are estimated, shape (3, n_items); guessing not at its edge 0.

    Of an item whose slope runs away nothing is: it is a step at a fixed place, given which the others have errors.
    """
    free = torch.ones(3, len(parameters.slope), dtype=torch.bool, device=parameters.slope.device)
    free[2] = design.guessing_free & (parameters.guessing > 0)
    if not design.common_slope:
        free &= parameters.slope.abs() <= RUNAWAY_SLOPE
    return free


def merged(free: Tensor, design: Design) -> Tensor:
    """Return the 0/1 matrix that maps the estimates to all items' parameters: a common slope stands for all slopes."""
    selected = torch.eye(free.numel(), dtype=torch.float64, device=free.device)[:, free.flatten()]
    if not design.common_slope:
        return selected
    n_items = free.shape[1]
    return torch.cat([selected[:, :n_items].sum(1, keepdim=True), selected[:, n_items:]], 1)


def _labelled(covariance: Tensor, free: Tensor, design: Design, items: pd.Index) -> pd.DataFrame:
    """Name rows and columns (item, parameter); a common slope belongs to the item "all"."""
    labels = [
        (item, name)
        for name, row in zip("adc", free.tolist(), strict=True)
        for item, is_free in zip(
            ["all"] if name == "a" and design.common_slope else items, row, strict=False
        )
        if is_free
    ]
    index = pd.MultiIndex.from_tuples(labels, names=["item", "parameter"])
    return pd.DataFrame(covariance.cpu().numpy(), index=index, columns=index)


def observed_information(
    answers: Answers, design: Design, parameters: Parameters, on: Lattice
) -> Tensor:
    """Return the observed information in all slopes, intercepts and, if any is free, guessing parameters.

    Slopes are taken as free here, one by one, and fixed guessing parameters have their rows too.

    Returns
    -------
    Tensor, shape (2 n_items, 2 n_items) or (3 n_items, 3 n_items)
    """
    found = fine_posterior(node_loglik(answers, parameters, on.nodes), on)
    information = _complete_information(answers, design, parameters, on, found.weights)
    kinds, first = len(information) // answers.n_items, None
    for polynomial in _orthonormal_polynomials(found.weights, on.fine):
        weights = _at_nodes(found.weights * polynomial, on)
        scores = torch.cat(
            [
                _expected_scores(block, parameters, weights, on.nodes, kinds)
                for block in answers.blocks()
            ],
            2,
        )
        scores = scores.permute(1, 0, 2).reshape(len(weights), -1) * answers.count.sqrt()[:, None]
        information -= scores.T @ scores
        size = float(scores.square().sum())
        first = first or size
        if size <= NEGLIGIBLE * first:
            break
    return information


def _at_nodes(fine: Tensor, on: Lattice) -> Tensor:
    return fine if on.interpolation is None else fine @ on.interpolation


def _orthonormal_polynomials(weights: Tensor, nodes: Tensor) -> Iterator[Tensor]:
    """Yield the polynomials orthonormal under every row's weights, from degree 1 on, by Stieltjes's recurrence."""
    before, norm = (
        torch.zeros_like(weights),
        torch.zeros(len(weights), 1, dtype=weights.dtype, device=weights.device),
    )
    current = torch.ones_like(weights)
    for _ in range(POLYNOMIALS):
        centre = (weights * nodes * current**2).sum(1, keepdim=True)
        following = (nodes - centre) * current - norm * before
        norm = (weights * following**2).sum(1, keepdim=True).sqrt()
        before, current = current, following / norm.clamp_min(1e-150)
        yield current


def _expected_scores(
    block: Block, parameters: Parameters, weights: Tensor, nodes: Tensor, kinds: int
) -> Tensor:
    """Return sum_k weights_ik dloglik_ij(theta_k) by slope, intercept (and guessing), (kinds, n_rows, n_items)."""
    part = parameters[block.items]
    z = torch.outer(part.slope, nodes) + part.intercept[:, None]
    c = part.guessing[:, None]
    right, off = right_answer(z, c), wrong_answer(z, c)
    tables = [(right.z * nodes, off.z * nodes), (right.z, off.z), (right.c, off.c)]
    asked = 1 if block.answered is None else block.answered
    return torch.stack(
        [
            asked * (weights @ no.T) + block.correct * (weights @ (yes - no).T)
            for yes, no in tables[:kinds]
        ]
    )


def _complete_information(
    answers: Answers, design: Design, parameters: Parameters, on: Lattice, fine_weights: Tensor
) -> Tensor:
    """Return the posterior expectation of the complete data's observed information, prior curvature added."""
    n = answers.n_items
    kinds = 3 if design.guessing_free.any() else 2
    whole = torch.zeros(kinds, n, kinds, n, dtype=torch.float64, device=answers.device)
    weights = _at_nodes(fine_weights, on) * answers.count[:, None]
    for block in answers.blocks():
        part = parameters[block.items]
        z = torch.outer(part.slope, on.nodes) + part.intercept[:, None]
        c = part.guessing[:, None]
        right, off = right_answer(z, c), wrong_answer(z, c)
        correct = block.correct.T @ weights
        wrong = (weights.sum(0) if block.answered is None else block.answered.T @ weights) - correct
        zz, zc, cc = (
            -(correct * u + wrong * v)
            for u, v in ((right.zz, off.zz), (right.zc, off.zc), (right.cc, off.cc))
        )
        cells = {
            (0, 0): zz * on.nodes**2,
            (0, 1): zz * on.nodes,
            (1, 1): zz,
            (0, 2): zc * on.nodes,
            (1, 2): zc,
            (2, 2): cc,
        }
        j = torch.arange(n, device=answers.device)[block.items]
        for (row, column), cell in cells.items():
            if column == kinds:
                continue
            whole[row, j, column, j] = whole[column, j, row, j] = cell.sum(1)
    for row, (name, value) in enumerate(list(vars(parameters).items())[:kinds]):
        if name in design.priors:
            j = torch.arange(n, device=answers.device)
            whole[row, j, row, j] -= design.priors[name].derivatives(value)[1]
    return whole.view(kinds * n, kinds * n)
