r"""Newton's method on a marginal likelihood, for every specification.

With gradient g and information H a step is expected to gain :math:`g^T H^{-1} g / 2` nats; below
1e-6 nats every parameter is within 0.0014 of its own standard errors of the maximum.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from psychlm.irt.arrays import namespace, zeros

if TYPE_CHECKING:
    from torch import Tensor

    from psychlm.irt.em import Climbable

LEAST_DAMPING = 1e-6  # of eigenvalues of the information, scaled to a unit diagonal
MOST_DAMPING = 1e4
FLATTEST = 1e-8  # smallest eigenvalue of the information, scaled to a unit diagonal
# steps, and nats that they gain in all, or the climb ends
PATIENCE = 20
LEAST_PROGRESS = 1e-5


def climb(em: Climbable, parameters: Any, enough: float = 0.0) -> tuple[Any, float, Tensor]:
    """Climb to a maximum; return it, log-likelihood plus log prior, and which items are there.

    Flat ridges, on which EM's steps become so small that they look like convergence, are seen by
    the information. Quasi-Newton steps (L-BFGS; Nocedal and Wright 2006, algorithm 7.4) start from
    a rough one, computed again where they do not fit it, and are damped (Levenberg 1944; Marquardt
    1963) until they go uphill. The climb ends where a step is expected to gain fewer than
    ``enough`` nats (0: at convergence), and where steps hardly gain, as on the way to a slope or a
    standard deviation without a maximum. Gradients and steps have one column by item, or are
    vectors, of which all or nothing is there.
    """
    settings = em.settings
    least_gain = min(em.least_gain, 100 * settings.tolerance**2)
    enough = max(enough, least_gain)
    posterior, value = em.expect(parameters)
    uphill = em.gradient(parameters, posterior)
    system: NewtonSystem | None = None
    pairs: list[tuple[Tensor, Tensor]] = []
    damping = em.first_damping
    earlier = deque([-math.inf], maxlen=PATIENCE)  # values before the last steps
    while True:
        if system is None:
            system = em.system(parameters, uphill)
            pairs = []
            fresh = True
        step = em.curbed(parameters, system.step(uphill, pairs, damping))
        expected_gain = (uphill * step).sum(0)
        if 0 <= float(expected_gain.sum()) < enough:
            if not fresh:
                system = None
                continue
            # Damping makes steps short on a ridge; at the end it counts what the whole step gains.
            whole = em.curbed(parameters, system.step(uphill, pairs, 0.0))
            if enough > least_gain or float((uphill * whole).sum()) < enough:
                return parameters, value, namespace(uphill).ones_like(expected_gain, dtype=bool)
        trial = em.moved(parameters, step)
        grid = em.grid
        posterior, trial_value = em.expect(trial)
        if em.grid is not grid:  # it was refined: values on two grids cannot be compared
            _, value = em.expect(parameters)
            earlier = deque([-math.inf], maxlen=PATIENCE)
        if not trial_value > value:  # or not a number
            if pairs:  # the estimated curvature is wrong: compute it anew
                system = None
                continue
            damping = max(4 * damping, LEAST_DAMPING)
            if damping > MOST_DAMPING:  # no step uphill: rounding decides
                em.expect(parameters)
                return parameters, value, abs(expected_gain) < enough
            continue

        # Accept the step, and keep what it tells of the curvature.
        before = uphill
        uphill = em.gradient(trial, posterior)
        pairs.append((trial - parameters, before - uphill))
        # Where the likelihood rose far less than a quadratic function would, damp the next step.
        gain = trial_value - value
        fits = gain > 0.1 * float(expected_gain.sum())
        damping = damping / 10 if fits else max(10 * damping, LEAST_DAMPING)
        earlier.append(value)
        parameters = trial
        value = trial_value
        fresh = False
        em.n_steps += 1
        done = enough > least_gain and gain < 0.1 * enough  # not if it must have converged
        if done or em.n_steps >= settings.max_iterations or value - earlier[0] < LEAST_PROGRESS:
            return parameters, value, abs(expected_gain) < enough


class NewtonSystem:
    """Information (n, n) of the first n entries of a gradient, by its eigenvectors.

    Where it is not positive the step is turned uphill, by absolute eigenvalues. ``basis`` leads
    from what moves to the entries, 0 and 1; the step ``always`` is made in any case.
    """

    def __init__(self, information: Tensor, basis: Tensor, always: Tensor | float = 0.0) -> None:
        self.basis = basis
        self.always = always
        # Solve in a space that is scaled to a unit diagonal.
        reduced = basis.T @ information @ basis
        scale = abs(reduced.diagonal()).clip(1e-12) ** -0.5
        eigenvalues, vectors = namespace(reduced).linalg.eigh(reduced * scale * scale[:, None])
        self.curvature = abs(eigenvalues).clip(FLATTEST)
        self.directions = scale[:, None] * vectors

    def step(self, uphill: Tensor, pairs: list[tuple[Tensor, Tensor]], damping: float) -> Tensor:
        """Return the step to which gradient and earlier (step, change of gradient) pairs lead."""
        n = len(self.basis)
        q = self.basis.T @ uphill.reshape(-1)[:n]
        history = []
        for step, change in pairs:
            s = self.basis.T @ step.reshape(-1)[:n] / self.basis.sum(0)
            y = self.basis.T @ change.reshape(-1)[:n]
            if float(s @ y) > 1e-10 * float(y @ y):
                history.append((s, y, 1 / (s @ y)))
        removed = []
        for s, y, rho in reversed(history):
            removed.append(rho * (s @ q))
            q = q - removed[-1] * y
        q = self.directions @ ((self.directions.T @ q) / (self.curvature + damping))
        for (s, y, rho), part in zip(history, reversed(removed), strict=True):
            q = q + (part - rho * (y @ q)) * s
        entries = zeros(uphill, math.prod(uphill.shape))
        entries[:n] = self.basis @ q
        return entries.reshape(uphill.shape) + self.always
