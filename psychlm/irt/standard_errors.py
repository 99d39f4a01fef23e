r"""Covariances of item parameters, whose roots are standard errors, from the observed information.

Observed information = expected complete information - missing information, the sum over persons of
the posterior covariance of their complete-data scores (Louis 1982). Scores are smooth functions of
ability, so their covariance is a sum over a few orthonormal polynomials of every posterior. Tables
of fits take ``se_a`` and ``se_b`` from them by the delta method (``response_functions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from psychlm.irt.arrays import (
    as_type,
    device_of,
    host,
    namespace,
    on_device,
    positive_inverse,
    single,
    zeros,
)
from psychlm.irt.likelihood import (
    QuadratureGrid,
    fine_posterior,
    item_gradient,
    node_loglik,
    quadrature_grid,
    resolve,
)
from psychlm.irt.response_functions import Logistic
from psychlm.irt.response_matrix import Block

if TYPE_CHECKING:
    from torch import Tensor

    from psychlm.irt.engine import Engine
    from psychlm.irt.specification import Specification

EXACT_PARAMETERS = 1000  # up to so many the information matrix is always built whole
POLYNOMIALS = 24
UNRESOLVED = 1e-4  # share of a score's variance in the last polynomial: it has steps
NEGLIGIBLE = 1e-10  # share of the missing information at which the sum over polynomials ends
NEGLIGIBLE_WEIGHT = 1e-14  # of a node in a person's posterior
SCORE_CELLS = 2**27  # scores of persons at a time: 1 GiB
ROUGH_POLYNOMIALS = 4


def standard_errors(
    em: Engine, x: Tensor, spec: Specification, sandwich: bool = False
) -> tuple[np.ndarray, np.ndarray, pd.DataFrame | None]:
    """Return covariances of the parameters of every column, variances of moments, and of estimates.

    The first are (n_columns, n_rows, n_rows), the second of means and log sds of ability by group,
    (2, n_groups), NaN where unknown; the third, of all estimates, None where there are too many.
    """
    inside = em.inside(x)
    n_rows, n_columns, n_groups = len(spec.fixed), len(spec.columns), len(spec.groups)
    parameters = spec.parameters
    whole = sandwich or len(x) <= max(EXACT_PARAMETERS, em.responses.n_persons)
    if not whole and em.has_own_curves:
        from torch.linalg import LinAlgError

        blocks = np.full((n_columns, n_rows, n_rows), np.nan)
        known = np.zeros(parameters.n_cells, bool)
        known[parameters.cell] = inside[parameters.estimate]
        free = known[: n_rows * n_columns].reshape(n_rows, -1)[:3].T
        pairs = free[:, :, None] & free[:, None, :]
        with suppress(LinAlgError):  # not at a maximum
            found = joint_covariances(em, x, on_device(free.T.copy(), em.responses.device))
            blocks[:, :3, :3] = np.where(pairs, found, np.nan)
        return blocks, np.full((2, n_groups), np.nan), None

    names = parameters.names
    owner, _ = pd.factorize(names.get_level_values(0))
    scores = em.by_estimate(row_scores(em, x)) if sandwich else None
    covariance = covariance_of_estimates(em.information(x, em.grid), owner, inside, scores)
    # All columns' cells, and the moments after them.
    of_items, of_moments = np.split(parameters.basis, [n_rows * n_columns])
    blocks = covariance_of(of_items.reshape(n_rows, n_columns, -1).swapaxes(0, 1), covariance)
    variances = covariance_of(of_moments[:, None], covariance).reshape(2, -1)
    return blocks, variances, pd.DataFrame(covariance, names, names)


def covariance_of_estimates(
    information: Tensor, owner: np.ndarray, inside: np.ndarray, scores: Tensor | None = None
) -> np.ndarray:
    """Return the inverse of the observed information; NaN for estimates that it does not determine.

    An item off its maximum or on a ridge makes the information indefinite. Items with the largest
    share in such directions are held at their estimates until the rest is positive definite.

    Parameters
    ----------
    information : Tensor, shape (n_estimates, n_estimates)
    owner : ndarray, shape (n_estimates,)
        Number of the item of every estimate.
    inside : ndarray of bool, shape (n_estimates,)
        Which estimates are within their bounds; the others are NaN.
    scores : Tensor, shape (n_rows, n_estimates), optional
        Gradients of persons, for sandwich errors (Huber 1967; White 1982).
    """
    covariance = np.full(information.shape, np.nan)
    while inside.any():
        known = np.flatnonzero(inside)
        part = information[known][:, known]
        inverse = positive_inverse(part)
        if inverse is not None:
            if scores is not None:
                some = scores[:, known]
                inverse = inverse @ (some.T @ some) @ inverse
            covariance[np.ix_(known, known)] = host(inverse)
            break
        part = host(part)
        if not np.isfinite(part).all():
            break
        scale = np.abs(part.diagonal()).clip(1e-300) ** -0.5
        eigenvalues, vectors = np.linalg.eigh(part * scale * scale[:, None])
        share = (vectors[:, eigenvalues <= max(eigenvalues[0], 0.0)] ** 2).sum(1)
        inside = inside & ~np.isin(owner, owner[known][share >= share.max() / 2])
    return covariance


def covariance_of(basis: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return covariances of linear functions of the estimates, (n, n_rows, n_rows).

    ``basis`` is (n, n_rows, n_estimates); NaN are functions of nothing, and of what has no error.
    """
    unknown = np.isnan(covariance.diagonal())
    none = ~basis.any(axis=2) | (basis[:, :, unknown] != 0).any(axis=2)
    turned = basis @ np.where(unknown | unknown[:, None], 0.0, covariance)
    result = turned @ basis.swapaxes(1, 2)
    return np.where(none[:, :, None] | none[:, None, :], np.nan, result)


def joint_covariances(em: Engine, x: Tensor, free: Tensor) -> np.ndarray:
    r"""Return covariances of thousands of items' parameters, (n_items, 3, 3).

    Scores are nearly linear in ability where items are many, so that one polynomial gives nearly
    all missing information: the observed information is nearly :math:`A = D - U U^T`, with D block
    diagonal by item and a column of U for every person, and its inverse takes one matrix of
    n_persons squared. That is wrong in two directions, a shift and a stretch of ability V: there
    the product Y with the exact information is known (``information_of_scale``), and
    :math:`A^{-1}` is corrected to map Y to V by the BFGS update (Nocedal and Wright 2006, equation
    6.17). ``free``, (3, n_items), says what is estimated; entries of others mean nothing.
    """
    import torch
    from torch.linalg import cholesky, cholesky_ex, solve_triangular

    parameters = em.items(x)
    assert isinstance(parameters, Logistic)
    common = em.spec.tied(0) == "all"
    kinds = 3 if free[2].any() else 2  # slope, intercept and, where any is free, guessing
    mask = free[:kinds].T.double()  # (n_items, kinds)
    if common:
        mask[:, 0] = 0  # the common slope joins the persons in the dense matrix

    # D, and the inverses of its roots; what is not estimated has a unit diagonal in it, and so has
    # an item off its maximum, whose block is not positive definite.
    grid, weights, nodes, at_nodes, linear = _posteriors(em, parameters)
    complete = [
        parameters.of_items(block.items).curvature(nodes, block.expected_by_category(at_nodes))
        for block in em.responses.blocks()
    ]
    curvature = torch.cat(complete, 2)[:kinds, :kinds].permute(2, 0, 1)
    of_priors = em.prior_curvature(x)[:kinds]
    inner = -curvature - torch.diag_embed(of_priors.T)
    unit = torch.eye(kinds).to(mask)
    pairs = mask[:, :, None] * mask[:, None, :]
    roots, failed = cholesky_ex(inner * pairs + torch.diag_embed(1 - mask))
    mask[failed > 0], roots[failed > 0] = 0, unit
    inverse_roots = solve_triangular(roots, unit, upper=False)

    # Directions V, a shift and a stretch of ability, and images Y of the exact information: the
    # parts of the items, (n_items, kinds, 2), and of the common slope, (1, 2).
    directions = information_of_scale(em, parameters, grid, weights)
    moves, image = (each.permute(2, 1, 0)[:, :kinds] for each in directions)
    image = image - of_priors.T[..., None] * moves
    v, y = moves * mask[..., None], image * mask[..., None]
    v_common, y_common = torch.zeros(2, 1, 2, dtype=torch.float64, device=mask.device)
    if common:
        v_common[0, 1], y_common[0] = parameters.slope[0], image[:, 0].sum(0)
    scaled_y = inverse_roots @ y

    def scaled() -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yield items, -U times the inverse roots of D, (kinds, n_dense, n), and the slopes' sums.

        A common slope has the last column of U, and only then are its sums needed.
        """
        for block in em.responses.blocks():
            lowest, others = parameters.of_items(block.items).contrasts(nodes)
            contrasts = lowest[:kinds], [each[:kinds] for each in others]
            cross = expected_scores(block, contrasts, linear).neg_().movedim(1, 0).contiguous()
            if common:
                cross = torch.cat([cross, inner[block.items, :, :1].permute(1, 2, 0)], 1)
            sums = cross[0].sum(1) if common else None
            inverse = inverse_roots[block.items] * mask[block.items, None]
            for row in reversed(range(kinds)):  # they are triangular: later rows take earlier ones
                cross[row] *= inverse[:, row, row]
                for column in range(row):
                    cross[row].addcmul_(cross[column], inverse[:, row, column])
            yield block.items, cross, sums

    # The persons and a common slope, less what the items' own parameters explain of them.
    dense = torch.eye(len(em.count) + common, dtype=torch.float64, device=mask.device)
    right_side = dense.new_zeros(len(dense), 2)
    if common:
        dense[-1, -1], right_side[-1] = 0, y_common
    for items, cross, of_slope in scaled():
        if of_slope is not None:
            dense[-1] += of_slope
            dense[:-1, -1] += of_slope[:-1]
        for row in range(kinds):
            dense -= gram(cross[row].T)
            right_side -= cross[row] @ scaled_y[items, row]
    dense_root = cholesky(dense)
    dense_solution = torch.cholesky_solve(right_side, dense_root)

    # A^-1 by Woodbury: its diagonal blocks by item, and its product P with the images Y.
    covariance, p = torch.empty_like(inner), torch.empty_like(y)
    for items, cross, _ in scaled():
        spread = [solve_triangular(dense_root, each, upper=False) for each in cross]
        squares = torch.stack([(one * two).sum(0) for one in spread for two in spread], 1)
        half = inverse_roots[items].mT @ cholesky(unit + squares.view(-1, kinds, kinds))
        covariance[items] = half @ half.mT
        explained = torch.stack([each.T @ dense_solution for each in cross], 1)
        p[items] = inverse_roots[items].mT @ (scaled_y[items] - explained)
    p_common = dense_solution[-1:] if common else 0 * y_common

    # The secant update, which makes A^-1 Y = V: rho = (V'Y)^-1, added for rows v and p of V and P.
    rho = torch.linalg.inv(torch.einsum("jpm,jpn->mn", v, y) + v_common.T @ y_common)
    curvature = torch.einsum("jpm,jpn->mn", y, p) + y_common.T @ p_common
    middle = rho @ curvature @ rho + rho

    def correction(v: Tensor, p: Tensor) -> Tensor:
        mixed = v @ rho @ p.mT
        return v @ middle @ v.mT - mixed - mixed.mT

    result = mask.new_full((len(mask), 3, 3), torch.nan)
    result[:, :kinds, :kinds] = covariance + correction(v, p)
    result[failed > 0] = torch.nan
    if common:
        of_slope = torch.cholesky_inverse(dense_root)[-1, -1]
        result[:, 0], result[:, :, 0] = torch.nan, torch.nan
        result[:, 0, 0] = of_slope + correction(v_common, p_common)[0, 0]
    return host(result)


def _posteriors(
    em: Engine, parameters: Logistic
) -> tuple[QuadratureGrid, Tensor, Tensor, Tensor, Tensor]:
    """Return the grid, the posteriors on its fine nodes, the nodes where any person's posterior has
    weight, and there the posteriors and the linear polynomials by persons, times how often each
    pattern occurs and its root."""
    loglik_at = partial(node_loglik, em.responses, parameters)
    start = quadrature_grid(device=em.count.device)  # no log-likelihood is needed, no finer grid
    grid, at_nodes, _ = resolve(loglik_at, parameters.slope, em.count, start)
    _, weights = fine_posterior(at_nodes, grid)
    expected, linear = orthonormal_polynomials(weights, grid.fine, 1)
    count = em.count[:, None]
    at_nodes = grid.at_nodes(expected) * count
    linear = grid.at_nodes(linear) * count**0.5
    near = (abs(at_nodes) > NEGLIGIBLE_WEIGHT).any(0)
    return grid, weights, grid.nodes[near], at_nodes[:, near], linear[:, near]


def information_of_scale(
    em: Engine, parameters: Logistic, grid: QuadratureGrid, weights: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return a shift and a stretch of ability as (2, 3, n_items), and the information times them.

    With intercepts moved by :math:`\epsilon a` the likelihood at an ability is that at
    :math:`\theta + \epsilon`, so that posteriors are multiplied by :math:`\exp(\epsilon \theta)`
    and the gradient changes by its covariance with :math:`\theta`; with slopes moved by
    :math:`\epsilon a`, with :math:`\theta^2`. Few digits would be left of differences of gradients:
    with 100,000 items these directions have 1e-5 of the information of complete data.
    ``weights`` are posteriors, (n_persons, n_fine).
    """
    slope = parameters.slope
    count = em.count[:, None]
    moves = zeros(slope, 2, *parameters.values.shape)
    moves[0, 1] = slope
    moves[1, 0] = slope

    def gradient(weights: Tensor) -> Tensor:
        return item_gradient(em.responses, parameters, grid.at_nodes(weights) * count, grid.nodes)

    fine = grid.fine
    change = namespace(fine).stack(
        [gradient(weights * (x - weights @ x[:, None])) for x in (fine, fine**2)]
    )
    # A score by the slope is one by the logit times the ability, and that moves as well.
    change[:, 0] -= gradient(weights)[[1, 0]]
    return moves, -change


def gram(x: Tensor) -> Tensor:
    """Return x' x; on the CPU NumPy computes one triangle only."""
    return on_device(host(x).T @ host(x), "cpu") if x.device.type == "cpu" else x.T @ x


class RowScores:
    """Derivatives of every row's log-likelihood by the items' parameters and groups' moments.

    Of each item those of the rows of parameters ``kinds``, then the mean and log standard deviation
    of ability, of all groups, if any are free. Sums are over nodes, with a posterior's weights.
    """

    def __init__(
        self, em: Engine, parameters: Any, grid: QuadratureGrid, rough: bool = False
    ) -> None:
        self.em = em
        self.grid = grid
        self.dtype = "float32" if rough else "float64"
        self.items = em.items(parameters)
        self.kinds = em.kinds
        at_nodes = node_loglik(em.responses, self.items, grid.nodes)
        _, self.weights = fine_posterior(at_nodes, em.density(parameters)(grid))
        xp = namespace(grid.nodes)
        lowest, others = self.items.contrasts(grid.nodes)
        if rough:
            largest = float(xp.finfo(xp.float32).max) ** 0.5  # of scores where P is 0 by rounding
            lowest, *others = (single(each.clip(-largest, largest)) for each in (lowest, *others))
        self.contrasts = lowest[self.kinds], [each[self.kinds] for each in others]
        self.kept: list = []
        self.of_moments = em.moment_scores(parameters)

    def parts(self) -> Iterator[tuple[slice, Block]]:
        """Yield some persons at a time, with their responses, whatever the number of persons."""
        if self.kept:
            yield from self.kept
            return
        responses = self.em.responses
        step = max(1, SCORE_CELLS // (len(self.kinds) * responses.values.shape[1]))
        for start in range(0, len(self.weights), step):
            rows = slice(start, start + step)
            block = responses.cells(rows, slice(None))
            block = block.changed(partial(as_type, name=self.dtype))
            if step >= len(self.weights):
                self.kept.append((rows, block))
            yield rows, block

    def averaged(self, weighted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield scores with weights (n_rows, n_fine), times the root of the rows' counts.

        They are (n_rows, n_kinds, n_items), and those of moments, (n_rows, n_moments).
        """
        fine = self.grid.fine
        projected = self.grid.at_nodes(weighted)
        projected = single(projected) if self.dtype == "float32" else projected
        powers = namespace(fine).stack([fine**0, fine, fine**2], 1)
        root = as_type(self.em.count[:, None] ** 0.5, self.dtype)
        for rows, block in self.parts():
            scores = expected_scores(block, self.contrasts, projected[rows])
            scores *= root[rows, None]
            moments = self.of_moments(weighted[rows] @ powers, rows) * root[rows]
            yield scores, as_type(moments, self.dtype)

    def apart(self) -> Iterator[Tensor]:
        """Yield persons' scores at a node less their expectations, by root weights."""
        nodes = self.grid.nodes
        xp = namespace(nodes)
        lowest, others = self.contrasts
        powers = xp.stack([nodes**0, nodes, nodes**2], 1)
        numbers = on_device(np.arange(len(self.weights)), device_of(nodes))
        for rows, block in self.parts():
            weights = self.weights[rows]
            scores = expected_scores(block, self.contrasts, weights)
            moments = self.of_moments(weights @ powers, rows)
            mean = joined(scores, moments)
            for node in range(len(nodes)):
                near = weights[:, node] > NEGLIGIBLE_WEIGHT
                if not near.any():
                    continue
                weight = (weights[:, node] * self.em.count[rows])[near, None] ** 0.5
                one = xp.ones_like(weight)
                at = slice(node, node + 1)
                there = lowest[:, :, at], [each[:, :, at] for each in others]
                scores = expected_scores(block.changed(itemgetter(near)), there, one)
                moments = self.of_moments(one * powers[node], numbers[rows][near])
                yield (joined(scores, moments) - mean[near]) * weight


def joined(scores: Tensor, moments: Tensor) -> Tensor:
    """Return scores (n_rows, n_kinds, n_items) and those of moments as one table."""
    return namespace(scores).concatenate([scores.reshape(len(scores), -1), moments], 1)


def row_scores(em: Engine, parameters: Any) -> Tensor:
    """Return every row's expected scores times the root of its summed squared weights."""
    at = RowScores(em, parameters, em.grid)
    parts = [joined(*part) for part in at.averaged(at.weights)]
    scores = namespace(at.weights).concatenate(parts)
    squares = em.responses.squares
    return scores if squares is None else scores * ((squares / em.count) ** 0.5)[:, None]


def observed_information(
    em: Engine, parameters: Any, grid: QuadratureGrid, rough: bool = False
) -> Tensor:
    """Return the observed information in the items' parameters, but for priors, and in moments.

    Entries are those of :class:`RowScores`: rows of parameters by item, as if all were free and
    none equal, then the moments, of which the information of complete data is left out. A ``rough``
    one, for Newton's method, sums the missing information of pairs of items over ROUGH_POLYNOMIALS
    only, in single precision; the blocks of single items stay exact.
    """
    at = RowScores(em, parameters, grid, rough)
    responses = em.responses
    nodes = grid.nodes
    kinds = at.kinds
    n = responses.values.shape[1]
    lowest, others = at.contrasts

    # Expected complete information: a block (n_kinds, n_kinds) of every item. For the rough sum
    # also the expected squares of the scores.
    complete = zeros(nodes, len(kinds), len(kinds), n)
    squares = zeros(nodes, len(kinds), len(kinds), n)
    coarse = grid.at_nodes(at.weights) * responses.count[:, None]
    for block in responses.blocks():
        j = block.items
        counts = block.expected_by_category(coarse)
        complete[:, :, j] = -at.items.of_items(j).curvature(nodes, counts)[kinds][:, kinds]
        if rough:
            # A person's score is n q + sum(k_c d_c), with q that of the lowest category, d_c the
            # contrasts of the others, and n and k_c numbers of answers.
            *of_chosen, of_all = block.expected_squares(coarse)
            q = lowest[:, j]
            total = q[:, None] * (q * of_all)
            for contrast, of_category, mixed in zip(others, *of_chosen, strict=True):
                d = contrast if contrast.shape[1] == 1 else contrast[:, j]
                crossed = d[:, None] * (q * mixed)
                total = total + d[:, None] * (d * of_category) + crossed + crossed.swapaxes(0, 1)
            squares[:, :, j] = total.sum(-1)

    # Missing information. The rough sum also subtracts expected scores in the squares.
    def averaged(weighted: Tensor) -> Iterator[Tensor]:
        for scores, moments in at.averaged(weighted):
            if rough:
                for row in range(len(kinds)):
                    squares[row] -= (scores * scores[:, row, None]).sum(0)
            yield joined(scores, moments)

    if rough:
        for _ in averaged(at.weights):  # degree 0
            pass
        information = -missing_information(at.weights, grid.fine, ROUGH_POLYNOMIALS, averaged)
        complete -= squares  # what the sum left out in the blocks of single items
    else:
        by_node = at.apart if grid.interpolation is None else None
        information = -missing_information(at.weights, grid.fine, POLYNOMIALS, averaged, by_node)
    item = on_device(np.arange(n), device_of(nodes))
    for row in range(len(kinds)):
        for column in range(len(kinds)):
            information[row * n + item, column * n + item] += complete[row, column]
    return information


def missing_information(
    weights: Tensor,
    fine: Tensor,
    n_polynomials: int,
    averaged: Callable[[Tensor], Iterator[Tensor]],
    apart: Callable[[], Iterator[Tensor]] | None = None,
) -> Tensor:
    """Return posterior covariances of the scores, summed over persons, (n_scores, n_scores).

    ``weights`` are posteriors, (n_persons, n_fine). ``averaged`` leads from weights times a
    polynomial to sums of the scores with them, some persons at a time. ``apart`` yields scores less
    their expectations, times the root of the weight, node by node: where items are steep their
    scores are steps, which no few polynomials reproduce.
    """
    missing: Any = 0.0
    variance: Any = 0.0
    of_scores: Any = 0.0
    first = 0.0
    polynomials = orthonormal_polynomials(weights, fine, n_polynomials)
    next(polynomials)  # degree 0: the expectations
    for weighted in polynomials:
        of_scores = 0.0
        for scores in averaged(weighted):
            missing = missing + as_type(scores.T @ scores, "float64")
            of_scores = of_scores + (scores**2).sum(0)
        variance = variance + of_scores
        size = float(of_scores.sum())
        first = first or size
        if size <= NEGLIGIBLE * first:
            return missing
    if apart is not None and (of_scores > UNRESOLVED * variance).any():
        missing = sum(scores.T @ scores for scores in apart())
    return missing


def orthonormal_polynomials(weights: Tensor, fine: Tensor, n_polynomials: int) -> Iterator[Tensor]:
    """Multiply weights by polynomials that are orthonormal under them, by Stieltjes's recurrence.

    Yields
    ------
    Tensor
        Of each degree from 0 to ``n_polynomials``, (n_rows, n_fine); every row by itself.
    """
    before = 0 * weights
    norm = 0 * weights[:, :1]
    current = before + 1
    yield weights
    for _ in range(n_polynomials):
        centre = (weights * fine * current**2).sum(1, keepdims=True)
        following = (fine - centre) * current - norm * before
        norm = (weights * following**2).sum(1, keepdims=True) ** 0.5
        before = current
        current = following / norm.clip(1e-150)
        yield weights * current


def expected_scores(
    block: Block, contrasts: tuple[Tensor, list[Tensor]], weights: Tensor
) -> Tensor:
    """Return sums over nodes of weight times the derivatives of an answer's log-likelihood.

    ``contrasts`` are those of :meth:`ResponseFunction.contrasts`, (n_kinds, n_items, n_nodes); the
    sums are (n_rows, n_kinds, n_items).
    """

    def summed(contrast: Tensor) -> Tensor:
        n_kinds, n_items, n_nodes = contrast.shape
        return (weights @ contrast.reshape(-1, n_nodes).T).reshape(-1, n_kinds, n_items)

    lowest, others = contrasts
    scores = summed(lowest)
    if block.answered is not None:
        scores *= block.answered[:, None]
    for category, contrast in zip(block.categories, others, strict=True):
        scores += category[:, None] * summed(contrast)
    return scores
