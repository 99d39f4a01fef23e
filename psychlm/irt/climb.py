r"""Newton's method on a marginal likelihood, for every specification.

With gradient g and information H a step is expected to gain :math:`g^T H^{-1} g / 2` nats; below
1e-6 nats every parameter is within 0.0014 of its own standard errors of the maximum.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from psychlm.irt.arrays import device_of, host, namespace, on_device, zeros

if TYPE_CHECKING:
    from torch import Tensor

    from psychlm.irt.engine import Engine

LEAST_DAMPING = 1e-6  # of eigenvalues of the information, scaled to a unit diagonal
MOST_DAMPING = 1e4
FLATTEST = 1e-8  # smallest eigenvalue of the information, scaled to a unit diagonal
MOST_PAIRS = 20  # steps with one information, which misleads far from where it was computed
# steps, and nats that they gain in all, or the climb ends
PATIENCE = 20
LEAST_PROGRESS = 1e-5


def climb(em: Engine, x: Tensor, enough: float = 0.0) -> tuple[Tensor, float, Tensor]:
    """Climb to a maximum; return it, log-likelihood plus log prior, and which estimates are off it.

    Flat ridges, on which EM's steps become so small that they look like convergence, are seen by
    the information. Quasi-Newton steps (L-BFGS; Nocedal and Wright 2006, algorithm 7.4) start from
    a rough one, computed again where they do not fit it, and are damped (Levenberg 1944; Marquardt
    1963) until they go uphill. The climb ends where a step is expected to gain fewer than
    ``enough`` nats (0: at convergence), and where steps hardly gain, as on the way to a slope or a
    standard deviation without a maximum.
    """
    settings = em.settings
    least_gain = min(em.least_gain, 100 * settings.tolerance**2)
    enough = max(enough, least_gain)
    posterior, value = em.expect(x)
    uphill = em.gradient(x, posterior)
    system: NewtonSystem | None = None
    pairs: list[tuple[Tensor, Tensor]] = []
    damping = em.first_damping
    earlier = deque([-math.inf], maxlen=PATIENCE)  # values before the last steps
    while True:
        if system is None:
            system = em.system(x, uphill)
            pairs = []
            fresh = True
        step = em.curbed(x, system.step(uphill, pairs, damping))
        expected_gain = uphill * step
        if 0 <= float(expected_gain.sum()) < enough:
            if not fresh:
                system = None
                continue
            # Damping makes steps short on a ridge; at the end it counts what the whole step gains.
            whole = em.curbed(x, system.step(uphill, pairs, 0.0))
            if enough > least_gain or float((uphill * whole).sum()) < enough:
                return x, value, expected_gain > math.inf
        trial = em.moved(x, step)
        grid = em.grid
        posterior, trial_value = em.expect(trial)
        if em.grid is not grid:  # it was refined: values on two grids cannot be compared
            _, value = em.expect(x)
            earlier = deque([-math.inf], maxlen=PATIENCE)
        if not trial_value > value:  # or not a number
            if pairs:  # the estimated curvature is wrong: compute it anew
                system = None
                continue
            damping = max(4 * damping, LEAST_DAMPING)
            if damping > MOST_DAMPING:  # no step uphill: rounding decides
                em.expect(x)
                return x, value, ~(abs(expected_gain) < max(enough, LEAST_PROGRESS))
            continue

        # Accept the step, and keep what it tells of the curvature.
        before = uphill
        uphill = em.gradient(trial, posterior)
        pairs.append((trial - x, before - uphill))
        # Where the likelihood rose far less than a quadratic function would, damp the next step.
        gain = trial_value - value
        fits = gain > 0.1 * float(expected_gain.sum())
        damping = damping / 10 if fits else max(10 * damping, LEAST_DAMPING)
        earlier.append(value)
        x = trial
        value = trial_value
        fresh = False
        if len(pairs) == MOST_PAIRS:
            system = None
        em.n_steps += 1
        done = enough > least_gain and gain < 0.1 * enough  # not if it must have converged
        if done or em.n_steps >= settings.max_iterations or value - earlier[0] < LEAST_PROGRESS:
            return x, value, ~(abs(expected_gain) < enough)


class NewtonSystem:
    """Information in the estimates that move, bool (n_estimates,), by its eigenvectors.

    Where it is not positive the step is turned uphill, by absolute eigenvalues. The step ``always``
    is made in any case.
    """

    def __init__(self, information: Tensor, moves: Tensor, always: Tensor | float = 0.0) -> None:
        numbers = np.flatnonzero(host(moves))
        all_move = len(numbers) == len(moves)
        self.moves: Any = slice(None) if all_move else on_device(numbers, device_of(information))
        self.always = always
        # Solve in a space that is scaled to a unit diagonal.
        reduced = information if all_move else information[self.moves][:, self.moves]
        scale = abs(reduced.diagonal()).clip(1e-12) ** -0.5
        eigenvalues, vectors = namespace(reduced).linalg.eigh(reduced * scale * scale[:, None])
        self.curvature = abs(eigenvalues).clip(FLATTEST)
        self.directions = scale[:, None] * vectors

    def step(self, uphill: Tensor, pairs: list[tuple[Tensor, Tensor]], damping: float) -> Tensor:
        """Return the step to which gradient and earlier (step, change of gradient) pairs lead."""
        q = uphill[self.moves]
        history = []
        for step, change in pairs:
            s = step[self.moves]
            y = change[self.moves]
            if float(s @ y) > 1e-10 * float(y @ y):
                history.append((s, y, 1 / (s @ y)))
        removed = []
        for s, y, rho in reversed(history):
            removed.append(rho * (s @ q))
            q = q - removed[-1] * y
        q = self.directions @ ((self.directions.T @ q) / (self.curvature + damping))
        for (s, y, rho), part in zip(history, reversed(removed), strict=True):
            q = q + (part - rho * (y @ q)) * s
        whole = zeros(uphill, len(uphill))
        whole[self.moves] = q
        return whole + self.always
