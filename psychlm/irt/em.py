r"""EM steps, with which every fit begins (Bock and Aitkin 1981), and which alone fit many items.

**E-step.** ``Engine.expect`` integrates over ability (:mod:`psychlm.irt.likelihood`).
**M-step.** With :math:`r_{kc}` the expected number of answers c at node k, every item's
:math:`\sum_{kc} r_{kc} \log P_{kc} + \log \text{prior}` is maximised in the parameters that it has
for itself; then one Newton step moves all of them and what items share, eliminated from each other
by a Schur complement. **Rescaling.** Each step also moves ability's mean and spread to those of the
posteriors, and absorbs the move into the items (parameter-expanded EM; Liu, Rubin and Wu 1998).
**Acceleration.** Pairs of steps are extrapolated by SQUAREM (Varadhan and Roland 2008).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from psychlm.irt.arrays import added, as_type, namespace, solve, zeros
from psychlm.irt.engine import Engine
from psychlm.irt.likelihood import Posterior
from psychlm.irt.response_functions import KINDS, ResponseFunction

if TYPE_CHECKING:
    from torch import Tensor

LOGLIK_TOLERANCE = 1e-5  # nats, gained by the last EM step
LEAST_ITEM_GAIN = 1e-14  # nats, expected of a step of one item
ROUNDED_STEP = 0.01  # logits: shorter ones count if they are expected to gain that
LARGEST_STEP = 2.0  # logits, of one Newton step of an item
LARGEST_LEAP = 2.0  # of a slope, in one extrapolation
HALVINGS = 8
M_STEPS = 6  # of Newton's method in an M-step of EM alone
M_STEP_TOLERANCE = 0.01  # logits, at which they end
ABSORPTION_STEPS = 5
RIDGE = 1e-10  # relative to an information's diagonal


def em_step(em: Engine, x: Tensor) -> tuple[Tensor, float]:
    """Return better estimates, and the objective of those that were given."""
    posterior, objective = em.expect(x)
    x = maximise(em, x, posterior)
    if em.scale_is_free:
        x = absorb(em, x, posterior)
    em.n_steps += 1
    return em.bounded(x), objective


def maximise(em: Engine, x: Tensor, posterior: Posterior) -> Tensor:
    """M-step: raise the expected log-likelihood, item by item, then in what items share.

    One Newton step each suffices: EM with such M-steps has the same fixed points (Lange 1995). EM
    alone makes more, so that slopes that run away soon reach their bound.
    """
    nodes = em.grid.nodes
    weights = posterior.weights * em.count[:, None]
    x = x + 0.0
    if em.moments_free:
        x[em.moments] = moments_of(em, posterior)[em.moment_cells]
    items = em.items(x)
    limits = (0.0, 1) if em.first_steps is not None else (M_STEP_TOLERANCE, M_STEPS)
    tables = []
    for block in em.responses.blocks():
        part = items.of_items(block.items)
        answers = part.expected_answers(block, weights, nodes)
        tables.append(maximised(em, part, answers, nodes, em.own[:, block.items], *limits))
    values = namespace(x).concatenate(tables, 1)
    x[em.own_estimates] = values.reshape(-1)[em.first_cells[em.own_estimates]]
    return shared_step(em, x, weights) if len(em.shared_estimates) else x


def moments_of(em: Engine, posterior: Posterior) -> Tensor:
    """Return means, then log sds, of every group's posteriors, (2 n_groups,)."""
    size = em.member.T @ em.count
    mean = em.member.T @ (em.count * posterior.mean) / size
    around = posterior.variance + (posterior.mean - mean[em.group]) ** 2
    xp = namespace(mean)
    return xp.concatenate([mean, 0.5 * xp.log(em.member.T @ (em.count * around) / size)])


def maximised(
    em: Engine,
    items: ResponseFunction,
    answers: Any,
    nodes: Tensor,
    free: Tensor,
    tolerance: float,
    n_steps: int,
) -> Tensor:
    """Return rows of parameters (n_rows, n_items) after Newton steps of every item by itself.

    ``answers`` are those of :meth:`ResponseFunction.expected_answers`, ``free`` the parameters that
    move, (n_rows, n_items). The steps of items whose expected log-likelihood would fall are halved.
    """
    xp = namespace(nodes)
    least, most = em.row_bounds
    values = items.values

    def expected_loglik(values: Tensor, chosen: Any = slice(None)) -> Tensor | None:
        """Return the expected log-likelihood plus log prior of some items, (n_chosen,)."""
        some = replace(items.of_items(chosen), values=values)
        loglik = some.expected_loglik(answers[chosen], nodes)
        if loglik is not None and em.priors:
            loglik = loglik + prior_table(em, values, free[:, chosen])[0].sum(0)
        return loglik

    value = expected_loglik(values)
    if value is None:  # a step costs less
        n_steps = max(n_steps, 2)
    for _ in range(n_steps):
        uphill, information = replace(items, values=values).expected_derivatives(answers, nodes)
        step = newton_step(em, values, uphill, information, free)
        moved = xp.minimum(xp.maximum(values + step, least), most)
        if value is not None:
            # Halve the steps of those items whose expected log-likelihood would fall.
            reached: Any = expected_loglik(moved)
            counts = xp.amax(abs(step), 0) > tolerance
            worse = ~(reached >= value - 1e-12 * abs(value)) & counts
            for _ in range(HALVINGS - 1):
                if not worse.any():
                    break
                step = 0.5 * step
                moved[:, worse] = xp.minimum(xp.maximum(values + step, least), most)[:, worse]
                reached[worse] = expected_loglik(moved[:, worse], worse)
                worse = ~(reached >= value - 1e-12 * abs(value)) & counts
            moved[:, worse] = values[:, worse]
            reached[worse] = value[worse]
            value = reached
        small = tolerance > 0 and abs(moved - values).max() < tolerance
        values = moved
        if small:
            break
    return values


def prior_table(em: Engine, values: Tensor, free: Tensor) -> Tensor:
    """Return the priors' log density and derivatives by rows of parameters, (3, n_rows, n_items).

    Those of parameters that are not free are 0.
    """
    terms = zeros(values, 3, *values.shape)
    for name, prior in em.spec.prior_densities.items():
        for row in np.flatnonzero(np.array(em.row_kinds) == KINDS.index(name)):
            terms[:, row] = namespace(values).where(free[row], prior.terms(values[row]), 0.0)
    return terms


def newton_step(
    em: Engine,
    values: Tensor,
    uphill: Tensor,
    information: Tensor,
    free: Tensor,
) -> Tensor:
    """Return each item's Newton step with priors, (n_rows, n_items); 0 in what is not free.

    ``uphill`` is the gradient (n_rows, n_items), ``information`` its negative derivative, (n_rows,
    n_rows, n_items). Steps end at the edge of the parameter space at most.
    """
    xp = namespace(values)
    kinds = em.row_kinds
    if em.priors:
        _, first, second = prior_table(em, values, free)
        uphill = uphill + first
        information = information + em.row_eye * (-second).clip(0)
    free = free & True  # a copy
    for row, kind in enumerate(kinds):
        if kind == 0:
            free[row] &= (abs(values[row]) < em.largest_slope) | (uphill[row] * values[row] < 0)
    step = solved(em, information, uphill, free)
    # Asymptotes that would pass their edge stop there; the others take the step that follows. With
    # a prior, whose density is 0 there, they go halfway at most.
    for row, kind in enumerate(kinds):
        if kind < 2 or not em.moving_rows[row]:
            continue
        to_edge = float(kind == 3) - values[row]
        if KINDS[kind] in em.spec.priors:
            half = abs(to_edge) / 2
            step[row] = xp.minimum(xp.maximum(step[row], -half), half)
            continue
        outwards = step[row] if kind == 3 else -step[row]
        beyond = free[row] & (outwards > abs(to_edge))
        if beyond.any():
            free[row] &= ~beyond
            to_edge = xp.where(beyond, to_edge, 0.0)
            step = solved(em, information, uphill - information[row] * to_edge, free)
            step[row] += to_edge
    curved = [row for row, kind in enumerate(kinds) if kind < 2]
    largest = xp.amax(abs(step[curved]), 0)
    # A small step that changes next to nothing is one of rounding alone, and would have no end.
    gain = abs((uphill * step).sum(0))
    step = step * ((gain > LEAST_ITEM_GAIN) | (largest > ROUNDED_STEP))
    step = step * (LARGEST_STEP / largest.clip(LARGEST_STEP))
    if em.spec.positive_slopes:  # halfway to 0 at most
        step[0] = xp.maximum(step[0], -0.5 * values[0])
    return step


def solved(em: Engine, information: Tensor, uphill: Tensor, free: Tensor) -> Tensor:
    """Return the Newton step (n_rows, n_items) in the free parameters, 0 in the others."""
    mask = namespace(uphill).ones_like(uphill) * free
    information = information * mask * mask[:, None] * (1 + RIDGE * em.row_eye)
    information = information + em.row_eye * (1 - mask + 1e-300)
    by_item = namespace(information).moveaxis(information, 2, 0)
    return solve(by_item, (uphill * mask).T[:, :, None])[:, :, 0].T


def shared_step(em: Engine, x: Tensor, weights: Tensor) -> Tensor:
    """Return estimates after one Newton step of all of them, on the expected log-likelihood.

    Parameters that items have for themselves are eliminated: with D their information, block by
    item, that of the shared ones is :math:`S = H - B^T D^{-1} B`.
    """
    nodes = em.grid.nodes
    xp = namespace(x)
    items = em.items(x)
    parts = []
    for block in em.responses.blocks():
        part = items.of_items(block.items)
        answers = part.expected_answers(block, weights, nodes)
        parts.append(part.expected_derivatives(answers, nodes))
    uphill = xp.concatenate([part[0] for part in parts], 1)[em.kinds]
    information = xp.concatenate([part[1] for part in parts], 2)[em.kinds][:, em.kinds]
    _, first, second = em.prior_terms(x)
    curvature = (-second).clip(0)
    own = em.own_estimates
    place = em.position[own]

    def table(of_own: Tensor) -> Tensor:
        """Return values of the items' own estimates as (n_rows, n_columns), 0 elsewhere."""
        cells = 0 * uphill.reshape(-1)
        cells[place] = of_own
        return cells.reshape(uphill.shape)

    # D has a unit diagonal where an item has no parameter of its own.
    mask = table(xp.ones_like(first[own]))
    unit = em.row_eye[em.kinds][:, em.kinds]
    inner = information * mask * mask[:, None] + unit * (1 - mask + table(curvature[own]))

    # Shared estimates, and what is left of them when the own ones are eliminated.
    shared = em.shared_estimates
    basis = em.shared_basis
    of_basis = xp.einsum("rqj,qjs->rjs", information, basis)
    of_shared = xp.einsum("rjs,rjt->st", basis, of_basis) + xp.diag(curvature[shared])
    gradient = xp.einsum("rjs,rj->s", basis, uphill) + first[shared]
    coupled = of_basis * mask[:, :, None]
    right = xp.concatenate([(uphill * mask + table(first[own]))[:, :, None], coupled], 2)
    by_item = solve(xp.moveaxis(inner, 2, 0), xp.moveaxis(right, 0, 1))
    alone, through = by_item[:, :, 0], by_item[:, :, 1:]  # (n_columns, n_rows, n_shared)
    schur = of_shared - xp.einsum("rjs,jrt->st", coupled, through)
    remaining = gradient - xp.einsum("rjs,jr->s", coupled, alone)
    step = zeros(x, len(x))
    step[shared] = xp.linalg.solve(schur, remaining)
    step[own] = (alone - through @ step[shared]).T.reshape(-1)[place]
    return em.moved(x, em.curbed(x, step))


def absorb(em: Engine, x: Tensor, posterior: Posterior) -> Tensor:
    """Move ability's mean and spread, then rescale the items so that ability is N(0, 1).

    It is that of the reference group. Priors on slopes and intercepts pull against it: a few Newton
    steps find mean and log sd.
    """
    count = em.count * em.member[:, 0] if em.moments_free else em.count
    n = float(count.sum())
    priors = em.spec.priors
    mean = posterior.mean @ count / n
    sd = ((posterior.variance + (posterior.mean - mean) ** 2) @ count / n) ** 0.5
    a = x[em.slopes]
    if "intercept" in priors:
        d = x[em.intercepts]
        by_mean = em.rescaled(x, 1.0, 1.0)[em.intercepts] - d  # the slopes that go with them
        target = mean
        mean = 0 * mean
        for _ in range(ABSORPTION_STEPS):
            first, second = priors["intercept"].derivatives(d + by_mean * mean)
            mean = mean + (n * (target - mean) + first @ by_mean) / (n - second @ by_mean**2)
    if "slope" in priors:
        xp = namespace(sd)
        variance = sd**2
        log_sd = 0 * sd
        for _ in range(ABSORPTION_STEPS):
            moved = a * xp.exp(log_sd)
            first, second = priors["slope"].derivatives(moved)
            pull = n * variance * xp.exp(-2 * log_sd)
            curvature = (2 * pull - (second @ moved**2 + first @ moved)).clip(1.0)
            log_sd = log_sd + ((pull - n + first @ moved) / curvature).clip(-0.5, 0.5)
        sd = xp.exp(log_sd)
    return em.rescaled(x, mean, sd)


def squarem(
    em: Engine,
    x: Tensor,
    tolerance: float,
    n_steps: int | None = None,
    gain: float = LOGLIK_TOLERANCE,
) -> tuple[Tensor, bool]:
    """Run cycles of two EM steps and one extrapolation; return the estimates and convergence.

    Converged are estimates whose predicted remaining change is below the tolerance, where the last
    step gained less than ``gain`` nats. Items with slopes at their bound do not count. ``n_steps``
    limits the EM steps.
    """
    reached = -float("inf")
    safe = x
    stride = 1.0
    gain *= tolerance / em.settings.tolerance
    last_step = em.settings.max_iterations
    if n_steps is not None:
        last_step = min(last_step, em.n_steps + n_steps)
    while em.n_steps < last_step:
        # Two EM steps; if the extrapolation before them went downhill, start again before it.
        start = x
        once, objective = em_step(em, start)
        if not objective >= reached - 1e-9 * abs(reached):
            start = safe
            stride = 1.0
            once, objective = em_step(em, start)
        twice, reached = em_step(em, once)

        # Predict the remaining change: EM converges linearly at the rate 1 - 1 / length.
        settled = em.by_column(em.items(twice).steepness < em.largest_slope)
        step = once - start
        curvature = twice - 2 * once + start
        last = (twice - once) * settled
        bend = max(float(((curvature * settled) ** 2).sum()) ** 0.5, 1e-300)
        length = float(((step * settled) ** 2).sum()) ** 0.5 / bend
        change = float(abs(last).max()) * max(length, 1.0)
        if change < tolerance and reached - objective < gain:
            return twice, True

        # Extrapolate, with strides that grow fourfold while they are exhausted.
        length, stride = min(max(length, 1.0), stride), stride * 4 if length >= stride else stride
        x = extrapolated(em, twice, start + 2 * length * step + length**2 * curvature, settled)
        safe = twice
    return safe, False


def extrapolated(em: Engine, x: Tensor, proposed: Tensor, settled: Tensor) -> Tensor:
    """Return proposed estimates; those of an item stay at x where it would leap, or have no curve.

    A slope leaps if it changes its sign or by more than LARGEST_LEAP.
    """
    xp = namespace(x)
    leaps = (abs(proposed - x) > LARGEST_LEAP) | (proposed * x < 0)
    leaps = as_type(leaps[em.slopes], "float64")
    near = added(zeros(x, em.n_columns), em.column[em.slopes], leaps) == 0
    proposed = xp.where(em.by_column(near) & settled, proposed, x)
    # With a prior, whose density is 0 there, asymptotes go halfway to their edge at most.
    if em.priors_of_asymptotes:
        chosen = em.asymptotes
        inward = 1 - 2 * em.edges
        nearest = inward * (x[chosen] + em.edges) / 2
        proposed[chosen] = inward * xp.maximum(inward * proposed[chosen], nearest)
    proposed = em.bounded(proposed)
    at_zero = em.items(proposed).log_probability(zeros(x, 1)).sum((1, 2))
    return xp.where(em.by_column(xp.isfinite(at_zero)), proposed, x)


def turned(em: Engine, x: Tensor, posterior: Posterior) -> Tensor:
    """Return the estimates with which persons with more correct responses stand higher."""
    responses = em.responses
    share = responses.n_correct / responses.n_answered
    surplus = 0 * posterior.mean
    for block in responses.blocks():
        surplus += (block.correct - block.of_answered(share[block.items])).sum(1)
    if float((surplus * posterior.mean) @ em.count) < 0:
        x = x + 0.0
        x[em.slopes] *= -1
        x[em.moments] *= namespace(x).where(em.moment_cells < len(em.spec.groups), -1.0, 1.0)
    return x
