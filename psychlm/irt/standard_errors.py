r"""Covariances of item parameters, whose roots are standard errors, from the observed information.

Observed information = expected complete information - missing information, the sum over persons of
the posterior covariance of their complete-data scores (Louis 1982). Scores are smooth functions of
ability, so their covariance is a sum over a few orthonormal polynomials of every posterior. Tables
of fits take ``se_a`` and ``se_b`` from them by the delta method (``response_functions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
    sigmoid,
    sigmoids,
    single,
    zeros,
)
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    Design,
    Parameters,
    QuadratureGrid,
    cell_derivatives,
    fine_posterior,
    item_matrices,
    node_loglik,
    quadrature_grid,
    resolve,
)
from psychlm.irt.response_matrix import Block

if TYPE_CHECKING:
    from torch import Tensor

    from psychlm.irt.em import EM

EXACT_PARAMETERS = 1000  # up to so many the information matrix is always built whole
POLYNOMIALS = 24
UNRESOLVED = 1e-4  # share of a score's variance in the last polynomial: it has steps
NEGLIGIBLE = 1e-10  # share of the missing information at which the sum over polynomials ends
NEGLIGIBLE_WEIGHT = 1e-14  # of a node in a person's posterior
SCORE_CELLS = 2**27  # scores of persons at a time: 1 GiB
ROUGH_POLYNOMIALS = 4


def standard_errors(em: EM, parameters: Parameters) -> tuple[np.ndarray, pd.DataFrame | None]:
    """Return covariances of slope, intercept and guessing by item, and of all free parameters.

    The first, (n_items, 3, 3) with ability N(0, 1), are NaN where not estimated, and all NaN where
    the observed information is not positive definite; the second None where there are too many.
    """
    responses = em.responses
    design = em.design
    n_items = responses.n_items
    free = free_parameters(design, parameters)
    n_shared = (n_items - 1) * (design.common_slope + design.common_guessing)
    n_free = int(free.sum()) - n_shared
    blocks = np.full((n_items, 3, 3), np.nan)
    if n_free > max(EXACT_PARAMETERS, responses.n_persons):
        from torch.linalg import LinAlgError

        try:
            blocks = joint_covariances(em, parameters, free)
        except LinAlgError:  # not at a maximum
            return blocks, None
        chosen = host(free.T)
        return np.where(chosen[:, :, None] & chosen[:, None, :], blocks, np.nan), None

    information = observed_information(em, parameters, em.grid)
    kinds = len(information) // n_items
    basis = estimates_basis(free[:kinds], design)
    columns = host(basis)
    is_common = columns.sum(0) > 1
    kind, item = np.divmod(columns.argmax(0), n_items)  # of every estimate
    owner = np.where(is_common, -1, item)
    inside = np.ones(len(owner), dtype=bool)
    covariance = covariance_of_estimates(basis.T @ information @ basis, owner, inside)
    of_items = columns.reshape(kinds, n_items, -1).swapaxes(0, 1)
    blocks[:, :kinds, :kinds] = covariance_of(of_items, covariance)

    # Label rows and columns (item, parameter); a common parameter belongs to the item "all".
    labelled = None
    if n_free <= EXACT_PARAMETERS and not np.isnan(covariance).all():
        names = np.where(is_common, "all", responses.items[item])
        index = pd.MultiIndex.from_arrays([names, np.array(["a", "d", "c"])[kind]])
        index.names = ["item", "parameter"]
        labelled = pd.DataFrame(covariance, index=index, columns=index)
    return blocks, labelled


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


def joint_covariances(em: EM, parameters: Parameters, free: Tensor) -> np.ndarray:
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

    common = em.design.common_slope
    kinds = 3 if free[2].any() else 2  # slope, intercept and, where any is free, guessing
    mask = free[:kinds].T.double()  # (n_items, kinds)
    if common:
        mask[:, 0] = 0  # the common slope joins the persons in the dense matrix

    # D, and the inverses of its roots; what is not estimated has a unit diagonal in it, and so has
    # an item off its maximum, whose block is not positive definite.
    loglik_at = partial(node_loglik, em.responses, parameters)
    start = quadrature_grid(device=mask.device)  # no log-likelihood is needed, so no finer grid
    grid, at_nodes, _ = resolve(loglik_at, parameters.slope, em.count, start)
    _, weights = fine_posterior(at_nodes, grid)
    expected, linear = orthonormal_polynomials(weights, grid.fine, 1)
    count, nodes = em.count[:, None], grid.nodes
    at_nodes, linear = grid.at_nodes(expected) * count, grid.at_nodes(linear) * count**0.5
    near = (abs(at_nodes) > NEGLIGIBLE_WEIGHT).any(0)  # where any posterior has weight
    at_nodes, linear, nodes = at_nodes[:, near], linear[:, near], nodes[near]
    at = parameters, at_nodes, nodes
    complete = [complete_information(em, block, *at) for block in em.responses.blocks()]
    inner, unit = torch.cat(complete)[:, :kinds, :kinds], torch.eye(kinds).to(mask)
    pairs = mask[:, :, None] * mask[:, None, :]
    roots, failed = cholesky_ex(inner * pairs + torch.diag_embed(1 - mask))
    mask[failed > 0], roots[failed > 0] = 0, unit
    inverse_roots = solve_triangular(roots, unit, upper=False)

    # Directions V, a shift and a stretch of ability, and images Y of the exact information: the
    # parts of the items, (n_items, kinds, 2), and of the common slope, (1, 2).
    directions = information_of_scale(em, parameters, grid, weights)
    moves, image = (each.permute(2, 1, 0)[:, :kinds] for each in directions)
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
            cross = expected_scores(em, block, parameters, linear, nodes, kinds).neg_()
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
    dense = torch.eye(len(count) + common, dtype=torch.float64, device=mask.device)
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


def information_of_scale(
    em: EM, parameters: Parameters, grid: QuadratureGrid, weights: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return a shift and a stretch of ability as (2, 3, n_items), and the information times them.

    With intercepts moved by :math:`\epsilon a` the likelihood at an ability is that at
    :math:`\theta + \epsilon`, so that posteriors are multiplied by :math:`\exp(\epsilon \theta)`
    and the gradient changes by its covariance with :math:`\theta`; with slopes moved by
    :math:`\epsilon a`, with :math:`\theta^2`. Few digits would be left of differences of gradients:
    with 100,000 items these directions have 1e-5 of the information of complete data.
    ``weights`` are posteriors, (n_persons, n_fine).
    """
    xp = namespace(weights)
    none = 0 * parameters.slope
    shift = [none, parameters.slope, none]
    stretch = [parameters.slope, none, none]
    moves = xp.stack([xp.stack(shift), xp.stack(stretch)])
    changes = []
    for powers in (grid.fine, grid.fine**2):
        centred = weights * (powers - weights @ powers[:, None])
        changes.append(em.scores(parameters, grid.at_nodes(centred), grid.nodes))
    change = xp.stack(changes)
    # A score by the slope is one by the logit times the ability, and that moves as well.
    change[:, 0] -= em.scores(parameters, grid.at_nodes(weights), grid.nodes)[[1, 0]]
    curvature = em.design.prior_derivatives(parameters.table(), em.design.free())[1]
    return moves, -change - curvature * moves


def gram(x: Tensor) -> Tensor:
    """Return x' x; on the CPU NumPy computes one triangle only."""
    return on_device(host(x).T @ host(x), "cpu") if x.device.type == "cpu" else x.T @ x


def free_parameters(design: Design, parameters: Parameters) -> Tensor:
    """Return which of (slope, intercept, guessing) have errors, shape (3, n_items).

    Guessing at its edge 0 has none, nor has a slope at its bound: the place of that step is free.
    """
    free = design.free()
    free[2] &= parameters.guessing > 0
    free[0] &= design.common_slope | (abs(parameters.slope) < LARGEST_SLOPE)
    return free


def estimates_basis(free: Tensor, design: Design) -> Tensor:
    """Return the 0/1 matrix from the estimates to all items' parameters, (free.numel(), n_free).

    A slope common to all items is one column, the first; common guessing is the last.
    """
    kinds = len(free)
    chosen = host(free)
    selected = np.eye(chosen.size)
    parts = []
    for kind, rows in enumerate(selected.reshape(kinds, -1, chosen.size)):
        columns = rows[chosen[kind]].T
        common = (design.common_slope, False, design.common_guessing)[kind]
        parts.append(columns.sum(1, keepdims=True) if common and columns.size else columns)
    return on_device(np.concatenate(parts, 1), device_of(free))


def observed_information(
    em: EM, parameters: Parameters, grid: QuadratureGrid, rough: bool = False
) -> Tensor:
    """Return the observed information in all slopes, intercepts and, if any is free, guessing.

    The shape is (kinds n_items, kinds n_items). Slopes are taken as free here, one by one, and
    fixed guessing parameters have their rows too. A ``rough`` one, for Newton's method, sums the
    missing information of pairs of items over ROUGH_POLYNOMIALS only, in single precision; the
    blocks of single items stay exact.
    """
    responses = em.responses
    design = em.design
    n = responses.n_items
    nodes = grid.nodes
    xp = namespace(nodes)
    kinds = 3 if design.guessing_free.any() else 2
    dtype = "float32" if rough else "float64"
    _, weights = fine_posterior(node_loglik(responses, parameters, nodes), grid)

    # Expected complete information: one (kinds, kinds) block per item. For the rough sum also the
    # expected squares of the scores.
    whole = zeros(nodes, kinds, n, kinds, n)
    squares = zeros(nodes, kinds, kinds, n)
    everything = on_device(np.arange(n), device_of(nodes))
    coarse = grid.at_nodes(weights) * responses.count[:, None]
    for block in responses.blocks():
        j = everything[block.items]
        by_item = complete_information(em, block, parameters, coarse, nodes)
        whole[:, j, :, j] = by_item[:, :kinds, :kinds]
        if rough:
            # A person's score is k (p - q) + n q, with p and q those of a right and a wrong answer.
            of_correct, mixed, of_all = block.expected_squares(coarse)
            p, q = (
                xp.stack([cells_of.z * nodes, cells_of.z, cells_of.c][:kinds])
                for cells_of in cell_derivatives(
                    *parameters[block.items].logits(nodes), second=False
                )
            )
            change = p - q
            crossed = change[:, None] * (q * mixed)
            total = change[:, None] * (change * of_correct) + q[:, None] * (q * of_all)
            squares[:, :, j] += (total + crossed + crossed.swapaxes(0, 1)).sum(-1)
    information = whole.reshape(kinds * n, kinds * n)  # the same memory

    # Missing information. The rough sum also subtracts expected scores in the squares.
    root_count = as_type(responses.count[:, None] ** 0.5, dtype)
    step = max(1, SCORE_CELLS // (kinds * n))  # persons at a time, whatever the number of persons

    def parts() -> Iterator[tuple[slice, Block]]:
        """Yield some persons at a time, with their responses."""
        for start in range(0, len(weights), step):
            rows = slice(start, start + step)
            yield rows, Block(slice(None), *responses.cells(rows, slice(None)))

    def averaged(weighted: Tensor) -> Iterator[Tensor]:
        """Yield persons' scores summed over the nodes with weights (n_rows, n_fine)."""
        projected = grid.at_nodes(weighted)
        projected = single(projected) if rough else projected
        for rows, block in parts():
            scores = expected_scores(em, block, parameters, projected[rows], nodes, kinds)
            scores *= root_count[rows]
            if rough:
                squares[...] -= xp.stack([(scores * kind).sum(1) for kind in scores])
            yield by_person(scores)

    def apart() -> Iterator[Tensor]:
        """Yield persons' scores at a node less their expectations, by root weights."""
        for rows, block in parts():
            mean = expected_scores(em, block, parameters, weights[rows], nodes, kinds)
            for node in range(len(nodes)):
                near = weights[rows, node] > NEGLIGIBLE_WEIGHT
                if not near.any():
                    continue
                weight = (weights[rows, node] * responses.count[rows])[near, None]
                answered = None if block.answered is None else block.answered[near]
                some = Block(block.items, block.correct[near], answered)
                at = nodes[[node]]
                one = xp.ones_like(weight)
                scores = expected_scores(em, some, parameters, one, at, kinds)
                yield by_person((scores - mean[:, near]) * weight**0.5)

    if not rough:
        by_node = apart if grid.interpolation is None else None
        return information - missing_information(weights, grid.fine, POLYNOMIALS, averaged, by_node)
    for _ in averaged(weights):  # degree 0
        pass
    information -= missing_information(weights, grid.fine, ROUGH_POLYNOMIALS, averaged)
    # What the sum left out in the blocks of single items.
    whole[:, everything, :, everything] -= xp.moveaxis(squares, 2, 0)
    return information


def complete_information(
    em: EM, block: Block, parameters: Parameters, weights: Tensor, nodes: Tensor
) -> Tensor:
    """Return items' expected information of complete data, (n_items, 3, 3), with that of priors.

    ``weights`` are those of the nodes for every row of responses, times its count.
    """
    part = parameters[block.items]
    design = em.design
    z, c = part.logits(nodes)
    if em.guessed:
        p, q = cell_derivatives(z, c)
        correct, answered = block.expected_counts(weights)
        wrong = answered - correct
        pairs = zip(p[2:], q[2:], strict=True)
        zz, zc, cc = (-(correct * of_p + wrong * of_q) for of_p, of_q in pairs)
    else:  # that of a logit does not depend on the response
        s, rest = sigmoids(z)
        zz = block.answers_at(weights) * s * rest
        zc = 0 * s
        cc = 0 * s
    information = item_matrices(zz, zc, cc, nodes)
    if design.priors:
        curvature = design.prior_derivatives(part.table(), design.free()[:, block.items])[1]
        for row in range(3):
            information[:, row, row] -= curvature[row]
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


def by_person(scores: Tensor) -> Tensor:
    """Return scores (kinds, n_rows, n_items) as one row for every person's."""
    return namespace(scores).moveaxis(scores, 1, 0).reshape(scores.shape[1], -1)


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
    em: EM, block: Block, parameters: Parameters, weights: Tensor, nodes: Tensor, kinds: int
) -> Tensor:
    """Return sums over nodes of weight times the derivative of a response's log-likelihood.

    The derivatives are by slope, intercept (and guessing): shape (kinds, n_rows, n_items).
    """
    z, c = parameters[block.items].logits(nodes)
    xp = namespace(weights)
    scores = []
    of_type = single if weights.dtype == xp.float32 else partial(as_type, name="float64")
    correct = of_type(block.correct)
    if not em.guessed:  # correct and wrong responses differ by 1 in their logit
        one = xp.ones_like(nodes)[None]
        s = sigmoid(z)
        cells = [(one * nodes, -s * nodes), (one, -s)]
    else:
        p, q = cell_derivatives(z, c, second=False)
        largest = float(xp.finfo(weights.dtype).max) ** 0.5  # where P is 0 but for rounding
        difference = p.z - q.z
        of_guessing = p.c.clip(None, largest) - q.c
        cells = [(difference * nodes, q.z * nodes), (difference, q.z), (of_guessing, q.c)][:kinds]
    for difference, of_wrong in cells:
        score = weights @ of_type(of_wrong.T)
        if block.answered is not None:
            score *= block.answered
        score += correct * (weights @ of_type(difference.T))
        scores.append(score)
    return xp.stack(scores)
