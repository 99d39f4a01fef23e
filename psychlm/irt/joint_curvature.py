r"""Standard errors of many items from few persons: the joint curvature in item parameters and abilities.

With the abilities at their posterior modes, the negative log posterior of parameters :math:`\beta` and abilities has
the curvature

.. math:: \begin{pmatrix} D & B \\ B^T & H \end{pmatrix},

D block diagonal (an item a block), H diagonal (a person a row). Laplace's approximation makes of its Schur complement
:math:`A = D - B H^{-1} B^T` the observed information of the marginal likelihood; the error is of the order of the
posterior variances, small where persons answered many items. Its inverse needs one matrix of n_persons squared
(Woodbury): :math:`D^{-1} + D^{-1} B (H - B^T D^{-1} B)^{-1} B^T D^{-1}`.

In two directions that error is not small: a shift and a stretch of ability leave all answers' probabilities as they
are, so that what little information there is comes from the prior and from the posteriors' widths. There the product Y
of the exact information with the directions V is taken from differences of the marginal likelihood's gradient, and
:math:`A^{-1}` is corrected to map Y to V, by the update of Broyden, Fletcher, Goldfarb and Shanno (Nocedal and Wright
2006, equation 6.17, for two directions at once): it stays positive definite, and changes as little else as may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky, solve_triangular

from psychlm.irt.answers import Answers, Block
from psychlm.irt.likelihood import (
    CellDerivatives,
    Design,
    Parameters,
    gradient,
    node_loglik,
    right_answer,
    wrong_answer,
)
from psychlm.irt.quadrature import Lattice, posterior

MODE_STEPS = 20
MODE_TOLERANCE = 1e-7  # standard deviations of ability
DIFFERENCE = 1e-3  # shift and stretch of ability in the gradient's differences


@dataclass(frozen=True)
class _Directions:
    """Two directions in the space of all parameters, or what a matrix makes of them."""

    items: Tensor  # (n_items, kinds, 2)
    common: Tensor  # (1, 2), the common slope's part; zero where slopes are the items' own


def joint_variances(
    answers: Answers, design: Design, parameters: Parameters, on: Lattice, free: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the variances of slopes, intercepts and guessing, and the covariance of slope and intercept, by item.

    Parameters
    ----------
    free : Tensor, shape (3, n_items)
        Which parameters are estimated; others get NaN.
    """
    ability = _modes(
        answers, parameters, posterior(node_loglik(answers, parameters, on.nodes), on).mean
    )
    kinds = 3 if free[2].any() else 2  # slope, intercept and, where any is free, guessing
    mask = free[:kinds].T.to(torch.float64).clone()
    if design.common_slope:
        mask[:, 0] = 0
    directions, images = _scale_directions(answers, design, parameters, on, mask)
    dense, right_side = _dense(answers, design, parameters, ability)
    if design.common_slope:
        right_side[-1] = images.common
    for items, root, cross in _item_factors(answers, design, parameters, ability, mask):
        flat = solve_triangular(root, cross, upper=False).flatten(0, 1)
        dense.addmm_(flat.T, flat, alpha=-1)
        right_side -= flat.T @ solve_triangular(root, images.items[items], upper=False).flatten(
            0, 1
        )
    dense_root = cholesky(dense)
    dense_solution = torch.cholesky_solve(right_side, dense_root)
    covariance, solved = [], []
    for items, root, cross in _item_factors(answers, design, parameters, ability, mask):
        flat = solve_triangular(root, cross, upper=False).flatten(0, 1)
        spread = solve_triangular(dense_root, flat.T, upper=False).T.view_as(cross)
        inner = torch.eye(
            kinds, dtype=torch.float64, device=root.device
        ) + spread @ spread.transpose(1, 2)
        half = solve_triangular(root.transpose(1, 2), cholesky(inner), upper=True)
        covariance.append(half @ half.transpose(1, 2))
        solved.append(torch.cholesky_solve(images.items[items] - cross @ dense_solution, root))
    solution = _Directions(
        torch.cat(solved), dense_solution[-1:] if design.common_slope else 0 * images.common
    )
    correction = _secant_correction(directions, images, solution)
    blocks = torch.cat(covariance) + correction(directions.items, solution.items)
    variances, covariances = torch.full_like(free, torch.nan, dtype=torch.float64), blocks[:, 0, 1]
    variances[:kinds] = blocks.diagonal(dim1=1, dim2=2).T
    if design.common_slope:  # the last row of the dense part
        unit = torch.eye(len(dense), dtype=torch.float64, device=dense.device)[:, -1:]
        variances[0] = torch.cholesky_solve(unit, dense_root)[-1] + correction(
            directions.common, solution.common
        )
        covariances = torch.full_like(covariances, torch.nan)
    variances[~free] = torch.nan
    return (*variances.cpu().numpy(), covariances.cpu().numpy())


def _secant_correction(
    directions: _Directions, images: _Directions, solution: _Directions
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of rows of V and of A^-1 Y that gives those rows' block of the correction to A^-1."""

    def inner(left: _Directions, right: _Directions) -> Tensor:
        return torch.einsum("jpm,jpn->mn", left.items, right.items) + left.common.T @ right.common

    rho = torch.linalg.inv(inner(directions, images))
    middle = rho @ inner(images, solution) @ rho + rho

    def correction(v: Tensor, p: Tensor) -> Tensor:
        mixed = v @ rho @ p.mT
        return v @ middle @ v.mT - mixed - mixed.mT

    return correction


def _scale_directions(
    answers: Answers, design: Design, parameters: Parameters, on: Lattice, mask: Tensor
) -> tuple[_Directions, _Directions]:
    """Return a shift and a stretch of ability as directions, and the exact information's products with them."""
    slope, zero = parameters.slope, torch.zeros_like(parameters.slope)
    moves = [Parameters(zero, slope, zero), Parameters(slope, zero, zero)]
    images = []
    for move in moves:
        ahead, behind = (
            gradient(answers, design, Parameters.of(parameters.vector() + h * move.vector()), on)
            for h in (DIFFERENCE, -DIFFERENCE)
        )
        images.append((behind - ahead) / (2 * DIFFERENCE))
    direction = (
        torch.stack([move.vector().view(3, -1).T for move in moves], 2)[:, : mask.shape[1]]
        * mask[..., None]
    )
    image = torch.stack(images, 2)[:, : mask.shape[1]]
    common = torch.zeros(2, 1, 2, dtype=torch.float64, device=slope.device)
    if design.common_slope:
        common[0, 0, 1], common[1, 0] = slope[0], image[:, 0].sum(0)
    return _Directions(direction, common[0]), _Directions(image * mask[..., None], common[1])


def _cells(block: Block, parameters: Parameters, ability: Tensor) -> CellDerivatives:
    """Return the derivatives of every answer's log-likelihood at the persons' abilities, 0 where there is no answer."""
    part = parameters[block.items]
    z = torch.outer(ability, part.slope) + part.intercept
    if not (part.guessing > 0).any():  # nothing depends on the answer but the first derivative
        p = torch.sigmoid(z) if block.answered is None else torch.sigmoid(z) * block.answered
        zero = torch.zeros(1, 1, dtype=z.dtype, device=z.device).expand_as(z)
        return CellDerivatives(block.correct - p, zero, p * torch.sigmoid(z).sub_(1), zero, zero)
    right, off = right_answer(z, part.guessing), wrong_answer(z, part.guessing)
    wrong = (1 if block.answered is None else block.answered) - block.correct
    return CellDerivatives(
        *(
            block.correct * yes + wrong * no
            for yes, no in zip(vars(right).values(), vars(off).values(), strict=True)
        )
    )


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


def _dense(
    answers: Answers, design: Design, parameters: Parameters, ability: Tensor
) -> tuple[Tensor, Tensor]:
    """Return H, one row a person and a last one for a slope common to all items, and zeros for two right-hand sides."""
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
    return dense, torch.zeros(n, 2, dtype=torch.float64, device=ability.device)


def _item_factors(
    answers: Answers, design: Design, parameters: Parameters, ability: Tensor, mask: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield a block's items, Cholesky roots of D (n, kinds, kinds), and B (n, kinds, n_dense), fixed ones masked."""
    kinds = mask.shape[1]
    squares = torch.stack([ability**2, ability, torch.ones_like(ability)])
    for block in answers.blocks():
        chosen, slope, cells = (
            mask[block.items],
            parameters.slope[block.items],
            _cells(block, parameters, ability),
        )
        zz, zc, cc = squares @ cells.zz, squares @ cells.zc, cells.cc.sum(0)
        inner = -torch.stack([zz[0], zz[1], zc[1], zz[1], zz[2], zc[2], zc[1], zc[2], cc], 1).view(
            -1, 3, 3
        )
        inner = inner[:, :kinds, :kinds]
        for column, (name, value) in enumerate(list(vars(parameters[block.items]).items())[:kinds]):
            if name in design.priors:
                curvature = design.priors[name].derivatives(value)[1]
                inner[:, column, column] -= torch.where(chosen[:, column] > 0, curvature, 0.0)
        inner = inner * chosen[:, :, None] * chosen[:, None, :] + torch.diag_embed(1 - chosen)
        by_logit = cells.zz * slope
        rows = [cells.z + ability[:, None] * by_logit, by_logit, cells.zc * slope]
        cross = -torch.stack(rows[:kinds]).permute(2, 0, 1)
        if design.common_slope:
            cross = torch.cat([cross, -torch.stack([zz[0], zz[1], zc[1]][:kinds], 1)[..., None]], 2)
        yield block.items, cholesky(inner), cross * chosen[:, :, None]
