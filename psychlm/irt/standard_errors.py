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

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.linalg import cholesky, solve_triangular

from psychlm.irt.likelihood import (
    RUNAWAY_SLOPE,
    CellDerivatives,
    Design,
    Parameters,
    QuadratureGrid,
    fine_posterior,
    gradient,
    integrate,
    log_p_derivatives,
    log_q_derivatives,
    node_loglik,
)
from psychlm.irt.response_matrix import Block, ResponseMatrix

MODE_STEPS = 20
MODE_TOLERANCE = 1e-7  # standard deviations of ability
DIFFERENCE = 1e-3  # shift and stretch of ability in the gradient's differences


@dataclass(frozen=True)
class _Directions:
    """Two directions in the space of all parameters, or what a matrix makes of them."""

    items: Tensor  # (n_items, kinds, 2)
    common: Tensor  # (1, 2), the common slope's part; zero where slopes are the items' own


def joint_variances(
    answers: ResponseMatrix,
    design: Design,
    parameters: Parameters,
    grid: QuadratureGrid,
    free: Tensor,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the variances of slopes, intercepts and guessing, and the covariance of slope and intercept, by item.

    Parameters
    ----------
    free : Tensor, shape (3, n_items)
        Which parameters are estimated; others get NaN.
    """
    ability = _modes(
        answers, parameters, integrate(node_loglik(answers, parameters, grid.nodes), grid).mean
    )
    kinds = 3 if free[2].any() else 2  # slope, intercept and, where any is free, guessing
    mask = free[:kinds].T.to(torch.float64).clone()
    if design.common_slope:
        mask[:, 0] = 0
    directions, images = _scale_directions(answers, design, parameters, grid, mask)
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
    answers: ResponseMatrix,
    design: Design,
    parameters: Parameters,
    grid: QuadratureGrid,
    mask: Tensor,
) -> tuple[_Directions, _Directions]:
    """Return a shift and a stretch of ability as directions, and the exact information's products with them."""
    slope, zero = parameters.slope, torch.zeros_like(parameters.slope)
    moves = [Parameters(zero, slope, zero), Parameters(slope, zero, zero)]
    images = []
    for move in moves:
        ahead, behind = (
            gradient(answers, design, Parameters.of(parameters.vector() + h * move.vector()), grid)
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
    right, off = log_p_derivatives(z, part.guessing), log_q_derivatives(z, part.guessing)
    wrong = (1 if block.answered is None else block.answered) - block.correct
    return CellDerivatives(
        *(
            block.correct * yes + wrong * no
            for yes, no in zip(vars(right).values(), vars(off).values(), strict=True)
        )
    )


def _modes(answers: ResponseMatrix, parameters: Parameters, start: Tensor) -> Tensor:
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
    answers: ResponseMatrix, design: Design, parameters: Parameters, ability: Tensor
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
    answers: ResponseMatrix, design: Design, parameters: Parameters, ability: Tensor, mask: Tensor
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
    answers: ResponseMatrix, design: Design, parameters: Parameters, grid: QuadratureGrid
) -> StandardErrors:
    """Return the standard errors of the estimates, all NaN where the observed information is not positive definite."""
    free = free_parameters(design, parameters)
    n_free = int(free.sum()) - design.common_slope * (answers.n_items - 1)
    if n_free > max(EXACT_PARAMETERS, answers.n_persons):
        try:
            slope, intercept, guessing, cross = joint_variances(
                answers, design, parameters, grid, free
            )
        except torch.linalg.LinAlgError:  # as below: not at a maximum
            return no_standard_errors(answers.n_items)
        with np.errstate(
            invalid="ignore"
        ):  # a negative variance is no variance: NaN, and reported after the fit
            return StandardErrors(slope**0.5, intercept**0.5, guessing**0.5, cross, None)
    information = observed_information(answers, design, parameters, grid)
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
    answers: ResponseMatrix, design: Design, parameters: Parameters, grid: QuadratureGrid
) -> Tensor:
    """Return the observed information in all slopes, intercepts and, if any is free, guessing parameters.

    Slopes are taken as free here, one by one, and fixed guessing parameters have their rows too.

    Returns
    -------
    Tensor, shape (2 n_items, 2 n_items) or (3 n_items, 3 n_items)
    """
    found = fine_posterior(node_loglik(answers, parameters, grid.nodes), grid)
    information = _complete_information(answers, design, parameters, grid, found.weights)
    kinds, first = len(information) // answers.n_items, None
    for polynomial in _orthonormal_polynomials(found.weights, grid.fine):
        weights = _at_nodes(found.weights * polynomial, grid)
        scores = torch.cat(
            [
                _expected_scores(block, parameters, weights, grid.nodes, kinds)
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


def _at_nodes(fine: Tensor, grid: QuadratureGrid) -> Tensor:
    return fine if grid.interpolation is None else fine @ grid.interpolation


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
    right, off = log_p_derivatives(z, c), log_q_derivatives(z, c)
    tables = [(right.z * nodes, off.z * nodes), (right.z, off.z), (right.c, off.c)]
    asked = 1 if block.answered is None else block.answered
    return torch.stack(
        [
            asked * (weights @ no.T) + block.correct * (weights @ (yes - no).T)
            for yes, no in tables[:kinds]
        ]
    )


def _complete_information(
    answers: ResponseMatrix,
    design: Design,
    parameters: Parameters,
    grid: QuadratureGrid,
    fine_weights: Tensor,
) -> Tensor:
    """Return the posterior expectation of the complete data's observed information, prior curvature added."""
    n = answers.n_items
    kinds = 3 if design.guessing_free.any() else 2
    whole = torch.zeros(kinds, n, kinds, n, dtype=torch.float64, device=answers.device)
    weights = _at_nodes(fine_weights, grid) * answers.count[:, None]
    for block in answers.blocks():
        part = parameters[block.items]
        z = torch.outer(part.slope, grid.nodes) + part.intercept[:, None]
        c = part.guessing[:, None]
        right, off = log_p_derivatives(z, c), log_q_derivatives(z, c)
        correct = block.correct.T @ weights
        wrong = (weights.sum(0) if block.answered is None else block.answered.T @ weights) - correct
        zz, zc, cc = (
            -(correct * u + wrong * v)
            for u, v in ((right.zz, off.zz), (right.zc, off.zc), (right.cc, off.cc))
        )
        cells = {
            (0, 0): zz * grid.nodes**2,
            (0, 1): zz * grid.nodes,
            (1, 1): zz,
            (0, 2): zc * grid.nodes,
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
