r"""Marginal maximum likelihood by the EM algorithm of Bock and Aitkin (1981).

**E-step.** ``Expectation.expect`` integrates over ability (:mod:`psychlm.irt.likelihood`).
**M-step.** Every item's :math:`\sum_k r_k \log P_k + (n_k - r_k) \log Q_k + \log \text{prior}` is
maximised, with r and n the expected numbers of correct responses and of responses at node k.
**Rescaling.** Each step also moves ability's mean and spread to those of the posteriors, and
absorbs the move into the items (parameter-expanded EM; Liu, Rubin and Wu 1998). **Acceleration.**
Pairs of steps are extrapolated by SQUAREM (Varadhan and Roland 2008).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psychlm.irt.arrays import device_of, host, namespace, sigmoid, solve, zeros
from psychlm.irt.climb import NewtonSystem
from psychlm.irt.likelihood import (
    QUADRATURE_ERROR,
    Design,
    Posterior,
    QuadratureGrid,
    bounded,
    integrate,
    item_gradient,
    node_loglik,
    quadrature_grid,
    resolve,
    steep_enough,
)
from psychlm.irt.priors import LogNormal
from psychlm.irt.response_functions import Logistic, ResponseFunction, item_matrices
from psychlm.irt.response_matrix import ResponseMatrix
from psychlm.irt.standard_errors import estimates_basis, free_parameters, observed_information

if TYPE_CHECKING:
    from torch import Tensor

LOGLIK_TOLERANCE = 1e-5  # nats, gained by the last EM step
LEAST_ITEM_GAIN = 1e-14  # nats, expected of a step of one item
ROUNDED_STEP = 0.01  # logits: shorter ones count if they are expected to gain that
LARGEST_STEP = 2.0  # logits, of one Newton step of an item
LARGEST_JOINT_STEP = 1.0  # logits, in a Newton step of all items
LARGEST_GUESSING_STEP = 0.2
EDGE = 1e-3  # guessing parameters as small as that may be set to 0
LARGEST_LEAP = 2.0  # of a slope, in one extrapolation
SCORING_STEPS = 6  # Newton steps in one M-step; the next M-step continues
HALVINGS = 8
ABSORPTION_STEPS = 5


class Settings(NamedTuple):
    """When to stop."""

    tolerance: float  # predicted remaining change of any parameter
    max_iterations: int  # EM steps


class Expectation(ABC):
    """The E-step of a data set: posteriors of ability, on a grid that resolves them."""

    count: Tensor  # (n_rows,) persons
    grid: QuadratureGrid
    n_steps: int  # made so far
    quadrature_error = QUADRATURE_ERROR  # nats, of the grid

    @abstractmethod
    def integrand(self, parameters: Any) -> tuple[Callable, Tensor, Callable, Tensor | float]:
        """Return what :func:`resolve` takes, and the log density of the priors.

        The first is the log-likelihood at nodes, then the slopes, and a grid's density of ability.
        """

    def expect(self, parameters: Any) -> tuple[Posterior, float]:
        """Return posteriors and log-likelihood plus log prior; refine the grid where needed."""
        loglik_at, slope, weighted, log_prior = self.integrand(parameters)
        self.grid, _, posterior = resolve(
            loglik_at, slope, self.count, self.grid, self.quadrature_error, weighted
        )
        return posterior, float(posterior.loglik @ self.count + log_prior)

    def grid_error(self, parameters: Any, objective: float) -> float:
        """Return by how many nats the objective moves on a grid of half the step."""
        loglik_at, _, weighted, log_prior = self.integrand(parameters)
        finer = self.grid.halved()
        posterior = integrate(loglik_at(finer.nodes), weighted(finer))
        return abs(float(posterior.loglik @ self.count + log_prior) - objective)


class Climbable(Expectation):
    """An E-step with what :func:`psychlm.irt.climb.climb` takes to climb to a maximum."""

    settings: Settings
    first_damping = 0.0
    least_gain = 1e-6  # nats that a step is expected to gain at the end, at the default tolerance

    responses: ResponseMatrix
    kinds: list[int]  # rows of parameters of which some are estimated
    priors: Any  # false where there are none

    used: Any  # numbers of the cells, parameters by row and column, in the derivatives
    first_steps: int | None = 0  # of EM before each climb; None: to convergence, without a climb
    others: list | None = None  # further starts of single items; None: no other start is tried

    def items(self, parameters: Any) -> ResponseFunction:
        """Return the items with these parameters."""
        return parameters

    def density(self, parameters: Any) -> Callable[[QuadratureGrid], QuadratureGrid]:
        """Return what weights a grid with the density of ability; here it is N(0, 1)."""
        return lambda grid: grid

    @abstractmethod
    def prior_terms(self, parameters: Any) -> Tensor:
        """Return the priors' log density with its first and second derivatives, (3, ...)."""

    def integrand(self, parameters: Any) -> tuple[Callable, Tensor, Callable, Tensor | float]:
        """Return log-likelihood, slopes, density of ability, and log prior."""
        items = self.items(parameters)
        loglik_at = partial(node_loglik, self.responses, items)
        return loglik_at, items.steepness, self.density(parameters), self.log_prior(parameters)

    def log_prior(self, parameters: Any) -> Tensor | float:
        """Return the log density of the priors, in nats."""
        return self.prior_terms(parameters)[0].sum() if self.priors else 0.0

    def turned(self, parameters: Any, posterior: Posterior) -> Any:
        """Return the parameters with the sign of ability; the likelihood may know none."""
        return parameters

    @abstractmethod
    def unpack(self, parameters: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows of parameters by column, and the groups' means and sds of ability."""

    @abstractmethod
    def inside(self, parameters: Any) -> np.ndarray:
        """Return which estimates are within their bounds, bool (n_estimates,)."""

    @abstractmethod
    def derivatives(self, parameters: Any) -> Tensor:
        """Return derivatives of the used cells by the estimates, (n_used, n_estimates)."""

    @abstractmethod
    def information(self, parameters: Any, grid: QuadratureGrid, rough: bool = False) -> Tensor:
        """Return the observed information, with that of priors."""

    def observed(self, parameters: Any) -> Tensor:
        """Return the observed information in the estimates, with that of priors."""
        return self.information(parameters, self.grid)

    def moment_scores(self, parameters: Any) -> Callable[[Tensor, Any], Tensor]:
        """Return a function to derivatives by the groups' moments, (n_rows, n_moments); here none.

        It takes sums of 1, ability and its square with some weights, (n_rows, 3), and which rows.
        """
        return lambda sums, _: sums[:, :0]

    @abstractmethod
    def gradient(self, parameters: Any, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior, at the present posteriors."""

    @abstractmethod
    def system(self, parameters: Any, uphill: Tensor) -> NewtonSystem:
        """Return what leads from a gradient to a step."""

    @abstractmethod
    def curbed(self, parameters: Any, step: Tensor) -> Tensor:
        """Return a step, shortened to the distance over which the derivatives can be trusted."""

    @abstractmethod
    def moved(self, parameters: Any, step: Tensor) -> Any:
        """Return the parameters after a step, within their bounds."""


class EM(Climbable):
    """The EM map of one data set: one E-step and one M-step, from parameters to better ones."""

    def __init__(self, responses: ResponseMatrix, design: Design, settings: Settings) -> None:
        self.responses = responses
        self.design = design
        self.priors = design.priors
        self.settings = settings
        self.grid = quadrature_grid(device=responses.device)
        self.count = responses.count
        self.n_steps = 0
        self.kinds = [0, 1, 2] if design.guessing_free.any() else [0, 1]
        self.used = np.arange(len(self.kinds) * responses.n_items)
        self.accuracy = 1e-2  # logits, of the next M-step
        self.scoring_steps = SCORING_STEPS
        self.informed: tuple = (None, "", None)  # parameters and grid of the last rough information

    def prior_terms(self, parameters: Logistic) -> Tensor:
        """Return the priors' log density and derivatives by parameter, (3, n_rows, n_items)."""
        values = parameters.values
        return self.design.prior_terms(values, self.design.free(len(values)))

    def information(
        self, parameters: Logistic, grid: QuadratureGrid, rough: bool = False
    ) -> Tensor:
        """Return the observed information in the parameters' first rows, with that of priors."""
        information = observed_information(self, parameters, grid, rough)
        if self.priors:
            curvature = self.prior_terms(parameters)[2, : len(self.kinds)].reshape(-1)
            information -= namespace(curvature).diag(curvature)
        return information

    def observed(self, parameters: Logistic) -> Tensor:
        """Return the observed information in the estimates, with that of priors."""
        basis = self.derivatives(parameters)
        return basis.T @ self.information(parameters, self.grid) @ basis

    def derivatives(self, parameters: Logistic) -> Tensor:
        """Return which of the parameters equal each estimate, 0 or 1."""
        return estimates_basis(self.design.free(len(self.kinds)), self.design)

    def inside(self, parameters: Logistic) -> np.ndarray:
        """Return which estimates are within their bounds, bool (n_estimates,)."""
        free = host(self.design.free())
        within = host(free_parameters(self.design, parameters))
        parts = zip(within, free, self.design.common, strict=True)
        return np.concatenate([row[free][: 1 if common else None] for row, free, common in parts])

    def unpack(self, parameters: Logistic) -> tuple[Tensor, Tensor, Tensor]:
        """Return all four rows of parameters, and the moments of N(0, 1)."""
        values = zeros(parameters.slope, 4, self.responses.n_items)
        values[3] = 1.0
        values[: len(parameters.values)] = parameters.values
        return values, 0 * values[3, :1], values[3, :1]

    def turned(self, parameters: Logistic, posterior: Posterior) -> Logistic:
        """Return the parameters with which persons with more correct responses stand higher."""
        share = self.responses.n_correct / self.responses.n_answered
        surplus = 0 * posterior.mean
        for block in self.responses.blocks():
            surplus += (block.correct - block.of_answered(share[block.items])).sum(1)
        if float((surplus * posterior.mean) @ self.count) < 0:
            parameters.values[0] *= -1
        return parameters

    def step(self, parameters: Logistic) -> tuple[Logistic, float]:
        """Return better parameters, and the objective of those that were given."""
        posterior, objective = self.expect(parameters)
        better = self.absorb(self.maximise(parameters, posterior), posterior)
        self.n_steps += 1
        return bounded(better, self.design.largest_slope), objective

    def gradient(self, parameters: Logistic, posterior: Posterior) -> Tensor:
        """Return the gradient of log-likelihood plus log prior by all parameters.

        By Fisher's identity it is that of the M-step's function at the present posteriors.
        """
        weights = posterior.weights * self.count[:, None]
        result = item_gradient(self.responses, parameters, weights, self.grid.nodes)
        return result + self.prior_terms(parameters)[1] if self.priors else result

    def system(self, parameters: Logistic, uphill: Tensor) -> NewtonSystem:
        """Return the rough information by its eigenvectors.

        Guessing at or near its edge 0 goes there if the step points outwards.
        """
        design = self.design
        guessing = parameters.guessing
        grid = rough_grid(self, parameters)
        # A rough climb that ends where it began leaves the information to the next climb.
        if self.informed[0] is not parameters or self.informed[1] != str(grid):
            information = self.information(parameters, grid, rough=True)
            self.informed = parameters, str(grid), information
        information = self.informed[2]
        kinds = len(information) // len(guessing)
        free = design.free(kinds)
        at_bound = abs(parameters.slope) >= design.largest_slope
        free[0] &= ~at_bound | (uphill[0] * parameters.slope < 0)
        if kinds == 2:
            return NewtonSystem(information, estimates_basis(free, design))
        # Where a person far below the item answered it correctly, c = 0 is next to impossible, even
        # if the likelihood falls from a small c. With the posteriors held it is concave in c: its
        # gradient at 0 tells whether 0 is the maximum.
        inwards = uphill[2]
        if (near := design.guessing_free & (guessing > 0) & (guessing <= EDGE)).any():
            posterior, _ = self.expect(parameters)
            values = parameters.values + 0.0
            values[2] = namespace(near).where(near, 0.0, guessing)
            inwards = self.gradient(Logistic(values), posterior)[2]
        inwards = inwards.sum() > 0 if design.common_guessing else inwards > 0
        free[2] &= (guessing > EDGE) | inwards
        while True:
            to_edge = zeros(uphill, *uphill.shape)  # steps of guessing to 0
            near = design.guessing_free & ~free[2] & (guessing <= EDGE)
            to_edge[2] = -guessing.clip(None, EDGE) * near
            basis = estimates_basis(free, design)  # from the estimates to parameters
            system = NewtonSystem(information, basis, to_edge)
            outwards = free[2] & (guessing <= 0) & (system.step(uphill, [], 0.0)[2] < 0)
            if not outwards.any():
                return system
            free[2] &= ~outwards

    def curbed(self, parameters: Logistic, step: Tensor) -> Tensor:
        """Return a step of a logit at most, more for steep items, and of 0.2 of guessing."""
        xp = namespace(step)
        limit = (abs(parameters.slope) / 2).clip(LARGEST_JOINT_STEP)
        limits = xp.stack([limit, limit, xp.full_like(limit, LARGEST_GUESSING_STEP)][: len(step)])
        excess = xp.amax(abs(step) / limits, 0)
        if self.design.common_guessing or self.design.common_slope:
            excess[:] = excess.max()
        return step / excess.clip(1.0)

    def moved(self, parameters: Logistic, step: Tensor) -> Logistic:
        """Return the parameters after a step, within their bounds."""
        values = parameters.values + step
        values[2:] = values[2:].clip(0, 1 - 1e-9)
        return bounded(Logistic(values), self.design.largest_slope)

    def maximise(self, parameters: Logistic, posterior: Posterior) -> Logistic:
        """M-step: maximise every item's expected log-likelihood; a common parameter is held.

        A few Newton steps end below ``accuracy``: EM with inexact M-steps keeps its fixed points.
        """
        responses = self.responses
        design = self.design
        nodes = self.grid.nodes
        weights = posterior.weights * self.count[:, None]
        ability = posterior.mean * self.count
        guessed = design.guessing_free | (parameters.guessing > 0)
        n_rows = len(parameters.values)
        free = design.free_by_item(n_rows)
        limits = self.accuracy, self.scoring_steps
        xp = namespace(nodes)
        tables = []
        powers = xp.stack([nodes, xp.ones_like(nodes)], 1)  # (n_nodes, 2)
        squares = xp.stack([nodes**2, nodes, nodes, xp.ones_like(nodes)], 1)
        for block in responses.blocks():
            start = parameters.values[:, block.items].T
            is_free = free[:, block.items].T
            if n_rows > 2 and guessed[block.items].any():
                correct, answered = block.expected_counts(weights)
                tables.append(
                    scoring_with_guessing(start, correct, answered, nodes, is_free, design, *limits)
                )
                continue
            # Without guessing two sums over correct responses suffice: of abilities, and of ones.
            sums = xp.stack([ability @ block.correct, responses.n_correct[block.items]], 1)
            answered = block.answers_at(weights)
            beta = start[:, :2]
            for _ in range(self.scoring_steps):
                p = sigmoid(beta @ powers.T)
                expected = p * answered
                uphill = sums - expected @ powers
                expected *= 1 - p
                information = (expected @ squares).reshape(-1, 2, 2)
                moved = beta + _curbed_newton_step(
                    beta, uphill, information, is_free[:, :2], design
                )
                # A slope stops at its bound, so that the next step fits the intercept to the bound.
                moved[:, 0] = moved[:, 0].clip(-design.largest_slope, design.largest_slope)
                change = abs(moved - beta).max()
                beta = moved
                if change < self.accuracy:
                    break
            tables.append(xp.concatenate([beta, start[:, 2:]], 1))
        return Logistic(xp.concatenate(tables).T)

    def absorb(self, parameters: Logistic, posterior: Posterior) -> Logistic:
        """Move ability's mean and spread, then rescale the items so that ability is N(0, 1).

        Priors on slopes and intercepts pull against it: a few Newton steps find mean and log sd.
        """
        n = float(self.count.sum())
        priors = self.design.priors
        count = self.responses.count
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


def rough_grid(em: EM, parameters: Logistic) -> QuadratureGrid:
    """Return the coarsest grid that resolves the curves; it may be too coarse for posteriors."""
    standard = quadrature_grid(span=em.grid.span, device=device_of(em.grid.nodes))
    return max(steep_enough(standard, parameters.slope), em.grid, key=lambda grid: grid.step)


def squarem(
    em: EM, parameters: Logistic, tolerance: float, n_steps: int | None = None
) -> tuple[Logistic, bool]:
    """Run cycles of two EM steps and one extrapolation; return the parameters and convergence.

    Converged are parameters whose predicted remaining change is below the tolerance, with a gain in
    log-likelihood below LOGLIK_TOLERANCE. Items with slopes at their bound do not count.
    ``n_steps`` limits the EM steps.
    """
    reached = -float("inf")
    safe = parameters
    stride = 1.0
    loglik_tolerance = LOGLIK_TOLERANCE * tolerance / em.settings.tolerance
    last_step = em.settings.max_iterations
    if n_steps is not None:
        last_step = min(last_step, em.n_steps + n_steps)
    while em.n_steps < last_step:
        # Two EM steps; if the extrapolation before them went downhill, start again before it.
        first, objective = em.step(parameters)
        if objective < reached - 1e-9 * abs(reached):
            parameters = safe
            stride = 1.0
            first, objective = em.step(parameters)
        second, reached = em.step(first)

        # Predict the remaining change: EM converges linearly at the rate 1 - 1 / length.
        settled = abs(second.slope) < em.design.largest_slope
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
            return second, True
        em.accuracy = max(min(em.accuracy, 0.1 * float(abs(last).max())), 0.01 * tolerance)

        # Extrapolate, with strides that grow fourfold while they are exhausted. Items whose
        # slopes would leap or change their sign keep the second EM step.
        length, stride = min(max(length, 1.0), stride), stride * 4 if length >= stride else stride
        proposed = start + 2 * length * step + length**2 * curvature
        far = abs(proposed[0] - second.slope) > LARGEST_LEAP
        far |= ~settled | (proposed[0] * second.slope < 0)
        values = namespace(far).where(far, twice, proposed)
        # With a prior, whose density is 0 there, guessing goes halfway to its edge at most.
        low = twice[2:] / 2 if "guessing" in em.design.priors else 0 * twice[2:]
        values[2:] = namespace(far).maximum(values[2:], low).clip(0, 1 - 1e-6)
        safe = second
        parameters = bounded(Logistic(values), em.design.largest_slope)
    return safe, False


def scoring_with_guessing(
    beta: Tensor,
    correct: Tensor,
    answered: Tensor,
    nodes: Tensor,
    free: Tensor,
    design: Design,
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
        if design.priors:
            value = value + design.prior_terms(beta.T, free[rows].T)[0].sum(0)
        return xp.where(beta[:, 2] < 1, value, -xp.inf)

    def moved_by(step: Tensor, beta: Tensor) -> Tensor:
        """Return where a step leads: at the edge of the parameter space at most."""
        moved = beta + step
        moved[:, 0] = moved[:, 0].clip(-design.largest_slope, design.largest_slope)
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
        step = _curbed_newton_step(beta, uphill, information, free, design)
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


def _curbed_newton_step(
    beta: Tensor, uphill: Tensor, information: Tensor, free: Tensor, design: Design
) -> Tensor:
    """Return each item's Newton step with priors: 0 in fixed parameters and out of bounds.

    ``uphill`` is the gradient (n_items, k), ``information`` its negative derivative.
    """
    xp = namespace(beta)
    if design.priors:
        _, first, second = design.prior_terms(beta.T, free.T)
        uphill = uphill + first.T
        for k in range(beta.shape[1]):
            information[:, k, k] += (-second[k]).clip(0)
    free = free & True  # a copy
    free[:, 0] &= (abs(beta[:, 0]) < design.largest_slope) | (uphill[:, 0] * beta[:, 0] < 0)
    step = _solved(information, uphill, free)
    if "guessing" in design.priors and beta.shape[1] == 3:  # its density is 0 at 0: halfway at most
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
    if isinstance(design.priors.get("slope"), LogNormal):  # a positive slope: halfway to 0 at most
        step[:, 0] = xp.maximum(step[:, 0], -0.5 * beta[:, 0])
    return step


def _solved(information: Tensor, uphill: Tensor, free: Tensor) -> Tensor:
    """Return the Newton step (n_items, k) in the free parameters, 0 in the others."""
    mask = namespace(uphill).ones_like(uphill) * free
    information = information * mask[:, :, None] * mask[:, None, :]
    for k in range(mask.shape[1]):
        information[:, k, k] += (1 - mask[:, k]) + 1e-10 * information[:, k, k] + 1e-300
    return solve(information, uphill * mask)
