r"""Standard errors of many items from few persons: the joint curvature in item parameters and abilities.

With the abilities at their posterior modes, the negative log posterior of parameters :math:`\beta` and abilities has the
curvature

.. math:: \begin{pmatrix} D & B \\ B^T & H \end{pmatrix},

D block diagonal (an item a block), H diagonal (a person a row). By Laplace's approximation its Schur complement
:math:`D - B H^{-1} B^T` is the observed information of the marginal likelihood; the error is of the order of the
posterior variances, small where persons answered many items. Its inverse needs one matrix of n_persons squared (Woodbury):
:math:`D^{-1} + D^{-1} B (H - B^T D^{-1} B)^{-1} B^T D^{-1}`. A shift or stretch of ability moves nothing but the prior, in
this form to the last digit, which an expansion of the missing information would have to resolve.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky, solve_triangular

from psychlm.irt.answers import Answers, Block
from psychlm.irt.likelihood import CellDerivatives, Design, Parameters, right_answer, wrong_answer

MODE_STEPS = 20
MODE_TOLERANCE = 1e-8  # standard deviations of ability


def joint_variances(
    answers: Answers, design: Design, parameters: Parameters, ability: Tensor, free: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the variances of slopes, intercepts and guessing, and the covariance of slope and intercept, by item.

    Parameters
    ----------
    ability : Tensor, shape (n_persons,)
        Posterior means, from which the modes are sought.
    free : Tensor, shape (3, n_items)
        Which parameters are estimated; others get NaN.
    """
    ability = _modes(answers, parameters, ability)
    dense = _dense(answers, design, parameters, ability)
    for root, cross in _item_factors(answers, design, parameters, ability, free):
        flat = solve_triangular(root, cross, upper=False).flatten(0, 1)
        dense.addmm_(flat.T, flat, alpha=-1)
    dense_root = cholesky(dense)
    parts = []
    for root, cross in _item_factors(answers, design, parameters, ability, free):
        flat = solve_triangular(root, cross, upper=False).flatten(0, 1)
        spread = solve_triangular(dense_root, flat.T, upper=False).T.view_as(cross)
        inner = torch.eye(3, dtype=torch.float64, device=root.device) + spread @ spread.transpose(1, 2)
        half = solve_triangular(root.transpose(1, 2), cholesky(inner), upper=True)
        parts.append(half @ half.transpose(1, 2))
    covariance = torch.cat(parts)
    variances = covariance.diagonal(dim1=1, dim2=2).T.clone()
    cross_term = covariance[:, 0, 1]
    if design.common_slope:  # the last row of the dense part
        last = torch.zeros(len(dense), 1, dtype=torch.float64, device=dense.device)
        last[-1] = 1.0
        variances[0] = torch.cholesky_solve(last, dense_root)[-1]
        cross_term = torch.full_like(cross_term, torch.nan)
    variances[~free] = torch.nan
    return (*variances.cpu().numpy(), cross_term.cpu().numpy())  # type: ignore[return-value]


def _cells(block: Block, parameters: Parameters, ability: Tensor) -> CellDerivatives:
    """Return the derivatives of every answer's log-likelihood at the persons' abilities, 0 where there is no answer."""
    part = parameters[block.items]
    z = torch.outer(ability, part.slope) + part.intercept
    right, off = right_answer(z, part.guessing), wrong_answer(z, part.guessing)
    wrong = (1 if block.answered is None else block.answered) - block.correct
    return CellDerivatives(*(
        block.correct * yes + wrong * no for yes, no in zip(vars(right).values(), vars(off).values(), strict=True)
    ))  # fmt: skip


def _modes(answers: Answers, parameters: Parameters, start: Tensor) -> Tensor:
    """Return every person's most probable ability, by Newton's method from its mean."""
    ability = start
    for _ in range(MODE_STEPS):
        gradient, curvature = -ability, torch.ones_like(ability)
        for block in answers.blocks():
            slope, cells = parameters.slope[block.items], _cells(block, parameters, ability)
            gradient = gradient + cells.z @ slope
            curvature = curvature - cells.zz @ slope**2
        step = gradient / curvature
        ability = ability + step
        if step.abs().max() < MODE_TOLERANCE:
            break
    return ability


def _dense(answers: Answers, design: Design, parameters: Parameters, ability: Tensor) -> Tensor:
    """Return H: one row a person, and a last one for a slope common to all items."""
    n = len(ability) + design.common_slope
    dense = torch.eye(n, dtype=torch.float64, device=ability.device)
    if design.common_slope:
        dense[-1, -1] = 0
    diagonal = dense.diagonal()
    for block in answers.blocks():
        slope, cells = parameters.slope[block.items], _cells(block, parameters, ability)
        diagonal[: len(ability)] -= cells.zz @ slope**2
        if design.common_slope:
            with_ability = -(cells.z + ability[:, None] * cells.zz * slope).sum(1)
            dense[-1, :-1] += with_ability
            dense[:-1, -1] += with_ability
            diagonal[-1] -= (cells.zz.sum(1) * ability**2).sum()
    return dense


def _item_factors(
    answers: Answers, design: Design, parameters: Parameters, ability: Tensor, free: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, block by block, the Cholesky factors of D (n, 3, 3) and B (n, 3, n_dense), fixed parameters masked."""
    mask = free.T.to(torch.float64).clone()
    if design.common_slope:
        mask[:, 0] = 0
    squares = torch.stack([ability**2, ability, torch.ones_like(ability)])
    for block in answers.blocks():
        chosen, slope, cells = mask[block.items], parameters.slope[block.items], _cells(block, parameters, ability)
        zz, zc, cc = squares @ cells.zz, squares @ cells.zc, cells.cc.sum(0)
        inner = -torch.stack([zz[0], zz[1], zc[1], zz[1], zz[2], zc[2], zc[1], zc[2], cc], 1).view(-1, 3, 3)
        for column, (name, value) in enumerate(vars(parameters[block.items]).items()):
            if name in design.priors:
                curvature = design.priors[name].derivatives(value)[1]
                inner[:, column, column] -= torch.where(chosen[:, column] > 0, curvature, 0.0)
        inner = inner * chosen[:, :, None] * chosen[:, None, :] + torch.diag_embed(1 - chosen)
        cross = -torch.stack([cells.z + ability[:, None] * cells.zz * slope, cells.zz * slope, cells.zc * slope])
        cross = cross.permute(2, 0, 1)
        if design.common_slope:
            cross = torch.cat([cross, -torch.stack([zz[0], zz[1], zc[1]], 1)[..., None]], 2)
        yield cholesky(inner), cross * chosen[:, :, None]
