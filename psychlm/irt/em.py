r"""EM steps for items whose M-steps go one by one (Bock and Aitkin 1981).

**E-step.** ``Engine.expect`` integrates over ability (:mod:`psychlm.irt.likelihood`).
**M-step.** Every item's :math:`\sum_k r_k \log P_k + (n_k - r_k) \log Q_k + \log \text{prior}` is
maximised, with r and n the expected numbers of correct responses and of responses at node k.
**Rescaling.** Each step also moves ability's mean and spread to those of the posteriors, and
absorbs the move into the items (parameter-expanded EM; Liu, Rubin and Wu 1998). **Acceleration.**
Pairs of steps are extrapolated by SQUAREM (Varadhan and Roland 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psychlm.irt.arrays import namespace, sigmoid, solve, zeros
from psychlm.irt.engine import SCORING_STEPS, Engine
from psychlm.irt.likelihood import Posterior
from psychlm.irt.priors import LogNormal
from psychlm.irt.response_functions import KINDS, Logistic, item_matrices

if TYPE_CHECKING:
    from torch import Tensor

LOGLIK_TOLERANCE = 1e-5  # nats, gained by the last EM step
LEAST_ITEM_GAIN = 1e-14  # nats, expected of a step of one item
ROUNDED_STEP = 0.01  # logits: shorter ones count if they are expected to gain that
LARGEST_STEP = 2.0  # logits, of one Newton step of an item
LARGEST_LEAP = 2.0  # of a slope, in one extrapolation
HALVINGS = 8
ABSORPTION_STEPS = 5


def em_step(em: Engine, parameters: Logistic) -> tuple[Logistic, float]:
    """Return better parameters, and the objective of those that were given."""
    posterior, objective = em.expect(em.packed(parameters.values))
    better = absorb(em, maximise(em, parameters, posterior), posterior)
    em.n_steps += 1
    return bounded(better, em.largest_slope), objective


def bounded(parameters: Logistic, largest: float) -> Logistic:
    """Return the parameters with no slope beyond the largest; curves keep their location."""
    values = parameters.values + 0.0
    values[1] *= (largest / abs(values[0])).clip(None, 1.0)
    values[0] = values[0].clip(-largest, largest)
    return Logistic(values)


def maximise(em: Engine, parameters: Logistic, posterior: Posterior) -> Logistic:
    """M-step: maximise every item's expected log-likelihood; a common parameter is held.

    A few Newton steps end below ``accuracy``: EM with inexact M-steps keeps its fixed points.
    """
    responses = em.responses
    nodes = em.grid.nodes
    weights = posterior.weights * em.count[:, None]
    ability = posterior.mean * em.count
    guessed = em.guessing_free | (parameters.guessing > 0)
    n_rows = len(parameters.values)
    limits = em.accuracy, em.scoring_steps
    xp = namespace(nodes)
    tables = []
    powers = xp.stack([nodes, xp.ones_like(nodes)], 1)  # (n_nodes, 2)
    squares = xp.stack([nodes**2, nodes, nodes, xp.ones_like(nodes)], 1)
    for block in responses.blocks():
        start = parameters.values[:, block.items].T
        is_free = em.own[:, block.items].T
        if n_rows > 2 and guessed[block.items].any():
            correct, answered = block.expected_counts(weights)
            tables.append(
                scoring_with_guessing(em, start, correct, answered, nodes, is_free, *limits)
            )
            continue
        # Without guessing two sums over correct responses suffice: of abilities, and of ones.
        sums = xp.stack([ability @ block.correct, responses.n_correct[block.items]], 1)
        answered = block.answers_at(weights)
        beta = start[:, :2]
        for _ in range(em.scoring_steps):
            p = sigmoid(beta @ powers.T)
            expected = p * answered
            uphill = sums - expected @ powers
            expected *= 1 - p
            information = (expected @ squares).reshape(-1, 2, 2)
            moved = beta + _curbed_newton_step(em, beta, uphill, information, is_free[:, :2])
            # A slope stops at its bound, so that the next step fits the intercept to the bound.
            moved[:, 0] = moved[:, 0].clip(-em.largest_slope, em.largest_slope)
            change = abs(moved - beta).max()
            beta = moved
            if change < em.accuracy:
                break
        tables.append(xp.concatenate([beta, start[:, 2:]], 1))
    return Logistic(xp.concatenate(tables).T)


def absorb(em: Engine, parameters: Logistic, posterior: Posterior) -> Logistic:
    """Move ability's mean and spread, then rescale the items so that ability is N(0, 1).

    Priors on slopes and intercepts pull against it: a few Newton steps find mean and log sd.
    """
    n = float(em.count.sum())
    priors = em.spec.priors
    count = em.count
    a = parameters.slope
    d = parameters.values[1]
    mean = posterior.mean @ count / n
    sd = ((posterior.variance + (posterior.mean - mean) ** 2) @ count / n) ** 0.5
    if "intercept" in priors:
        target = mean
        mean = 0 * mean
        for _ in range(ABSORPTION_STEPS):
            first, second = priors["intercept"].derivatives(d + a * mean)
            mean = mean + (n * (target - mean) + first @ a) / (n - second @ a**2)
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
    return parameters.rescaled(mean, sd)


def squarem(
    em: Engine, x: Tensor, tolerance: float, n_steps: int | None = None
) -> tuple[Tensor, bool]:
    """Run cycles of two EM steps and one extrapolation; return the estimates and convergence.

    Converged are parameters whose predicted remaining change is below the tolerance, with a gain in
    log-likelihood below LOGLIK_TOLERANCE. Items with slopes at their bound do not count.
    ``n_steps`` limits the EM steps.
    """
    reached = -float("inf")
    parameters = em.logistic(x)
    safe = parameters
    stride = 1.0
    loglik_tolerance = LOGLIK_TOLERANCE * tolerance / em.settings.tolerance
    last_step = em.settings.max_iterations
    if n_steps is not None:
        last_step = min(last_step, em.n_steps + n_steps)
    while em.n_steps < last_step:
        # Two EM steps; if the extrapolation before them went downhill, start again before it.
        first, objective = em_step(em, parameters)
        if objective < reached - 1e-9 * abs(reached):
            parameters = safe
            stride = 1.0
            first, objective = em_step(em, parameters)
        second, reached = em_step(em, first)

        # Predict the remaining change: EM converges linearly at the rate 1 - 1 / length.
        settled = abs(second.slope) < em.largest_slope
        start = parameters.values
        once = first.values
        twice = second.values
        step = once - start
        curvature = twice - 2 * once + start
        last = (twice - once) * settled
        bend = max(float(((curvature * settled) ** 2).sum()) ** 0.5, 1e-300)
        length = float(((step * settled) ** 2).sum()) ** 0.5 / bend
        change = float(abs(last).max()) * max(length, 1.0)
        if change < tolerance and reached - objective < loglik_tolerance:
            return em.packed(second.values), True
        em.accuracy = max(min(em.accuracy, 0.1 * float(abs(last).max())), 0.01 * tolerance)

        # Extrapolate, with strides that grow fourfold while they are exhausted. Items whose
        # slopes would leap or change their sign keep the second EM step.
        length, stride = min(max(length, 1.0), stride), stride * 4 if length >= stride else stride
        proposed = start + 2 * length * step + length**2 * curvature
        far = abs(proposed[0] - second.slope) > LARGEST_LEAP
        far |= ~settled | (proposed[0] * second.slope < 0)
        values = namespace(far).where(far, twice, proposed)
        # With a prior, whose density is 0 there, guessing goes halfway to its edge at most.
        low = twice[2:] / 2 if "guessing" in em.spec.priors else 0 * twice[2:]
        values[2:] = namespace(far).maximum(values[2:], low).clip(0, 1 - 1e-6)
        safe = second
        parameters = bounded(Logistic(values), em.largest_slope)
    return em.packed(safe.values), False


def scoring_with_guessing(
    em: Engine,
    beta: Tensor,
    correct: Tensor,
    answered: Tensor,
    nodes: Tensor,
    free: Tensor,
    tolerance: float,
    n_steps: int = SCORING_STEPS,
) -> Tensor:
    """Return slopes, intercepts and guessing (n_items, 3) by Fisher scoring with step halving.

    Guessing stays within [0, 1); ``correct`` and ``answered`` are expected counts by node.
    """
    xp = namespace(beta)
    wrong = answered - correct
    powers = xp.stack([nodes, xp.ones_like(nodes)], 1)

    def expected_loglik(beta: Tensor, rows: Any = slice(None)) -> Tensor:
        """Return the expected log-likelihood plus log prior of some items, (n_rows,)."""
        log_q, log_p = Logistic(beta.T).log_probability(nodes).swapaxes(0, 1)
        value = (correct[rows] * log_p + wrong[rows] * log_q).sum(1)
        if em.priors:
            value = value + prior_table(em, beta.T, free[rows].T)[0].sum(0)
        return xp.where(beta[:, 2] < 1, value, -xp.inf)

    def moved_by(step: Tensor, beta: Tensor) -> Tensor:
        """Return where a step leads: at the edge of the parameter space at most."""
        moved = beta + step
        moved[:, 0] = moved[:, 0].clip(-em.largest_slope, em.largest_slope)
        moved[:, 2] = moved[:, 2].clip(0.0)
        return moved

    value = expected_loglik(beta)
    for _ in range(n_steps):
        # Gradient, and expected information P' P' / (P Q), in which P and Q cancel.
        (q_z, q_c), (p_z, p_c) = Logistic(beta.T).first_derivatives(nodes)
        by_logit = correct * p_z + wrong * q_z
        by_guessing = correct * p_c + wrong * q_c
        uphill = xp.concatenate([by_logit @ powers, by_guessing.sum(1)[:, None]], 1)
        of_guessing = answered / (1 - beta[:, 2:])
        cells = {(0, 0): -q_z * answered * p_z}
        cells |= {(0, 1): of_guessing * p_z, (1, 1): of_guessing * p_c}
        information = xp.moveaxis(item_matrices(cells, nodes), 2, 0)

        # Halve the steps of those items whose expected log-likelihood would fall.
        step = _curbed_newton_step(em, beta, uphill, information, free)
        moved = moved_by(step, beta)
        reached = expected_loglik(moved)
        counts = xp.amax(abs(step), 1) > tolerance
        worse = ~(reached >= value - 1e-12 * abs(value)) & counts
        for _ in range(HALVINGS - 1):
            if not worse.any():
                break
            step = 0.5 * step
            moved[worse] = moved_by(step[worse], beta[worse])
            reached[worse] = expected_loglik(moved[worse], worse)
            worse = ~(reached >= value - 1e-12 * abs(value)) & counts
        moved[worse] = beta[worse]
        reached[worse] = value[worse]
        largest = abs(moved - beta).max()
        beta = moved
        value = reached
        if largest < tolerance:
            break
    return beta


def prior_table(em: Engine, table: Tensor, free: Tensor) -> Tensor:
    """Return the priors' log density and derivatives by rows of parameters, (3, n_rows, n_items).

    Those of parameters that are not free are 0.
    """
    terms = zeros(table, 3, *table.shape)
    for name, prior in em.spec.prior_densities.items():
        row = KINDS.index(name)
        if row < len(table):
            terms[:, row] = namespace(table).where(free[row], prior.terms(table[row]), 0.0)
    return terms


def _curbed_newton_step(
    em: Engine, beta: Tensor, uphill: Tensor, information: Tensor, free: Tensor
) -> Tensor:
    """Return each item's Newton step with priors: 0 in fixed parameters and out of bounds.

    ``uphill`` is the gradient (n_items, k), ``information`` its negative derivative.
    """
    xp = namespace(beta)
    if em.priors:
        _, first, second = prior_table(em, beta.T, free.T)
        uphill = uphill + first.T
        for k in range(beta.shape[1]):
            information[:, k, k] += (-second[k]).clip(0)
    free = free & True  # a copy
    free[:, 0] &= (abs(beta[:, 0]) < em.largest_slope) | (uphill[:, 0] * beta[:, 0] < 0)
    step = _solved(information, uphill, free)
    if "guessing" in em.spec.priors and beta.shape[1] == 3:  # of density 0 at 0: halfway at most
        step[:, 2] = xp.maximum(step[:, 2], -0.5 * beta[:, 2])
    elif beta.shape[1] == 3 and (beyond := free[:, 2] & (beta[:, 2] + step[:, 2] < 0)).any():
        # Guessing that would pass its edge 0 stops there; the others take the step that follows.
        free[:, 2] &= ~beyond
        to_edge = xp.where(beyond, beta[:, 2], 0.0)
        step = _solved(information, uphill + information[:, :, 2] * to_edge[:, None], free)
        step[:, 2] -= to_edge
    largest = xp.amax(abs(step[:, :2]), 1, keepdims=True)
    # A small step that changes next to nothing is one of rounding alone, and would have no end.
    gain = abs((uphill * step).sum(1, keepdims=True))
    step = step * ((gain > LEAST_ITEM_GAIN) | (largest > ROUNDED_STEP))
    step = step * (LARGEST_STEP / largest.clip(LARGEST_STEP))
    if isinstance(em.spec.priors.get("slope"), LogNormal):  # a positive slope: halfway to 0 at most
        step[:, 0] = xp.maximum(step[:, 0], -0.5 * beta[:, 0])
    return step


def _solved(information: Tensor, uphill: Tensor, free: Tensor) -> Tensor:
    """Return the Newton step (n_items, k) in the free parameters, 0 in the others."""
    mask = namespace(uphill).ones_like(uphill) * free
    information = information * mask[:, :, None] * mask[:, None, :]
    for k in range(mask.shape[1]):
        information[:, k, k] += (1 - mask[:, k]) + 1e-10 * information[:, k, k] + 1e-300
    return solve(information, uphill * mask)


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
    return x
