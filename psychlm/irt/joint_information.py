r"""The covariances of thousands of items' parameters, by Laplace's approximation.

With abilities at their posterior modes the negative log posterior of parameters and abilities has
the curvature (D, B; B', H), D block diagonal by item, H diagonal by person. The observed
information is :math:`A = D - B H^{-1} B^T`, whose inverse takes one matrix of n_persons squared.
That is wrong in two directions, a shift and a stretch of ability V: there the product Y with the
exact information comes from differences of the gradient, and :math:`A^{-1}` is corrected to map Y
to V by the BFGS update (Nocedal and Wright 2006, equation 6.17).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky, solve_triangular

from psychlm.irt.em import EM
from psychlm.irt.likelihood import (
    CellDerivatives,
    Design,
    Parameters,
    cell_derivatives,
    integrate,
    node_loglik,
)
from psychlm.irt.response_matrix import Block, ResponseMatrix

MODE_STEPS = 20
MODE_TOLERANCE = 1e-4  # standard deviations of ability; the next step would be its square
DIFFERENCE = 1e-3  # shift and stretch of ability in the gradient's differences


def joint_covariances(em: EM, parameters: Parameters, free: Tensor) -> np.ndarray:
    """Return covariances of every item's parameters, (n_items, 3, 3), by Laplace's method.

    ``free``, (3, n_items), says which parameters are estimated; entries of others mean nothing.
    """
    responses, design = em.responses, em.design
    common, posterior = design.common_slope, em.expect(parameters)[0]
    kinds = 3 if free[2].any() else 2  # slope, intercept and, where any is free, guessing
    mask = free[:kinds].T.to(torch.float64).clone()  # (n_items, kinds)
    if common:
        mask[:, 0] = 0  # the common slope joins the persons in H
    ability = posterior_modes(responses, parameters, posterior.mean)

    # Directions V, a shift and a stretch of ability, and images Y of the exact information: the
    # parts of the items, (n_items, kinds, 2), and of the common slope, (1, 2).
    slope, zero = parameters.slope, torch.zeros_like(parameters.slope)
    moves = [torch.stack([zero, slope, zero]), torch.stack([slope, zero, zero])]
    differences = []
    for move in moves:
        gradients = []
        for step in (DIFFERENCE, -DIFFERENCE):
            moved = Parameters(*(parameters.table() + step * move))
            at_nodes = node_loglik(responses, moved, em.grid.nodes)
            gradients.append(em.gradient(moved, integrate(at_nodes, em.grid)))
        differences.append((gradients[1] - gradients[0]).T / (2 * DIFFERENCE))
    image = torch.stack(differences, 2)[:, :kinds]
    v = torch.stack([move.T for move in moves], 2)[:, :kinds] * mask[..., None]
    y = image * mask[..., None]
    v_common, y_common = torch.zeros(2, 1, 2, dtype=torch.float64, device=slope.device)
    if common:
        v_common[0, 1], y_common[0] = slope[0], image[:, 0].sum(0)

    # H, with one row per person and a last one for a common slope, then H - B' D^-1 B.
    n_persons = len(ability)
    dense = torch.eye(n_persons + common, dtype=torch.float64, device=ability.device)
    diagonal, right_side = dense.diagonal(), dense.new_zeros(len(dense), 2)
    if common:
        dense[-1, -1], right_side[-1] = 0, y_common
    for items, inverse, cross, cells in item_factors(responses, design, parameters, ability, mask):
        diagonal[:n_persons] -= cells.zz @ slope[items] ** 2
        if common:
            with_ability = -(cells.z + ability[:, None] * cells.zz * slope[items]).sum(1)
            dense[-1, :-1] += with_ability
            dense[:-1, -1] += with_ability
            diagonal[-1] -= (cells.zz.sum(1) * ability**2).sum()
        flat = (inverse @ cross).flatten(0, 1)
        dense -= gram(flat)
        right_side -= flat.T @ (inverse @ y[items]).flatten(0, 1)
    dense_root = cholesky(dense)
    dense_solution = torch.cholesky_solve(right_side, dense_root)

    # A^-1 by Woodbury: its diagonal blocks by item, and its product P with the images Y.
    covariance, solved = [], []
    for items, inverse, cross, _ in item_factors(responses, design, parameters, ability, mask):
        flat = (inverse @ cross).flatten(0, 1)
        spread = solve_triangular(dense_root, flat.T, upper=False).T.view_as(cross)
        inner = torch.eye(kinds, dtype=torch.float64, device=inverse.device)
        half = inverse.mT @ cholesky(inner + spread @ spread.mT)
        covariance.append(half @ half.mT)
        solved.append(inverse.mT @ (inverse @ (y[items] - cross @ dense_solution)))
    p, p_common = torch.cat(solved), dense_solution[-1:] if common else 0 * y_common

    # The secant update, which makes A^-1 Y = V: rho = (V'Y)^-1, added for rows v and p of V and P.
    rho = torch.linalg.inv(torch.einsum("jpm,jpn->mn", v, y) + v_common.T @ y_common)
    curvature = torch.einsum("jpm,jpn->mn", y, p) + y_common.T @ p_common
    middle = rho @ curvature @ rho + rho

    def correction(v: Tensor, p: Tensor) -> Tensor:
        mixed = v @ rho @ p.mT
        return v @ middle @ v.mT - mixed - mixed.mT

    blocks = torch.cat(covariance) + correction(v, p)
    result = torch.full((len(blocks), 3, 3), torch.nan, dtype=torch.float64)
    result[:, :kinds, :kinds] = blocks.cpu()
    if common:
        unit = torch.zeros_like(dense[:, :1])
        unit[-1] = 1
        of_slope = torch.cholesky_solve(unit, dense_root)[-1]
        result[:, 0], result[:, :, 0] = torch.nan, torch.nan
        result[:, 0, 0] = (of_slope + correction(v_common, p_common)).flatten().cpu()
    return result.numpy()


def gram(x: Tensor) -> Tensor:
    """Return x' x; on the CPU NumPy computes one triangle only."""
    if x.device.type != "cpu":
        return x.T @ x
    values = x.numpy()
    return torch.from_numpy(values.T @ values)


def response_derivatives(block: Block, parameters: Parameters, ability: Tensor) -> CellDerivatives:
    """Return the derivatives of every response's log-likelihood at the persons' abilities."""
    part = parameters[block.items]
    z = torch.outer(ability, part.slope) + part.intercept
    if not (part.guessing > 0).any():  # only the first derivative depends on the response
        p, zero = z.sigmoid_(), z.new_zeros(1, 1).expand_as(z)
        expected = block.of_answered(p)
        return CellDerivatives(block.correct - expected, zero, expected * (p - 1), zero, zero)
    p, q = cell_derivatives(z, part.guessing)
    wrong = (1 if block.answered is None else block.answered) - block.correct
    pairs = zip(vars(p).values(), vars(q).values(), strict=True)
    return CellDerivatives(*(block.correct * yes + wrong * no for yes, no in pairs))


def posterior_modes(responses: ResponseMatrix, parameters: Parameters, ability: Tensor) -> Tensor:
    """Return every person's most probable ability, by Newton's method from the posterior mean."""
    for _ in range(MODE_STEPS):
        uphill, curvature = -ability, torch.ones_like(ability)
        for block in responses.blocks():
            slope = parameters.slope[block.items]
            cells = response_derivatives(block, parameters, ability)
            uphill = uphill + cells.z @ slope
            curvature = curvature - cells.zz @ slope**2
        step = uphill / curvature
        ability = ability + step
        if step.abs().max() < MODE_TOLERANCE:
            break
    return ability


def item_factors(
    responses: ResponseMatrix, design: Design, parameters: Parameters, ability: Tensor, mask: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor, CellDerivatives]]:
    """Yield items, inverse roots of D (n, kinds, kinds), B (n, kinds, n_dense) and derivatives.

    Parameters that are not estimated (mask 0) have a unit diagonal in D and zeros in B.
    """
    kinds = mask.shape[1]
    squares = torch.stack([ability**2, ability, torch.ones_like(ability)])
    for block in responses.blocks():
        part, chosen = parameters[block.items], mask[block.items]
        cells = response_derivatives(block, parameters, ability)
        zz, by_logit = squares @ cells.zz, cells.zz * part.slope
        rows, with_slope = [zz[0], zz[1], zz[1], zz[2]], [zz[0], zz[1]]
        by_kind = [cells.z + ability[:, None] * by_logit, by_logit]
        if kinds == 3:
            zc, cc = squares[1:] @ cells.zc, cells.cc.sum(0)
            rows = [zz[0], zz[1], zc[0], zz[1], zz[2], zc[1], zc[0], zc[1], cc]
            with_slope.append(zc[0])
            by_kind.append(cells.zc * part.slope)
        inner = -torch.stack(rows, 1).view(-1, kinds, kinds)
        if design.priors:
            curvature = design.prior_terms(part.table()[:kinds], chosen.T > 0)[2]
            inner -= torch.diag_embed(curvature.T)
        inner = inner * chosen[:, :, None] * chosen[:, None, :] + torch.diag_embed(1 - chosen)
        cross = -torch.stack(by_kind).permute(2, 0, 1)
        if design.common_slope:
            cross = torch.cat([cross, -torch.stack(with_slope, 1)[..., None]], 2)
        identity = torch.eye(kinds, dtype=torch.float64, device=inner.device)
        inverse = solve_triangular(cholesky(inner), identity, upper=False)
        yield block.items, inverse, cross * chosen[:, :, None], cells
