r"""Two-factor item response models: marginal maximum likelihood over a grid of two abilities.

.. math:: P_i(\theta) = c_i + \frac{1 - c_i}{1 + e^{-(a_{i1}\theta_1 + a_{i2}\theta_2 + d_i)}},
          \qquad \theta \sim N(0, I)

The two axes may be turned together without changing the likelihood; they are turned to principal axes here, and to an
interpretable position by :mod:`psychlm.irt.rotation`. The likelihood's derivatives come from the expected counts that
EM would use (Fisher's identity); a quasi-Newton method follows them to the optimum in a tenth of EM's steps, and keeps
guessing parameters, many of which end at 0, within their bounds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize
from scipy.special import expit, ndtri

from psychlm.frames import FrameError, check_responses, constant_items
from psychlm.irt.expected import normal_weights
from psychlm.irt.tetrachoric import tetrachoric

LARGEST_GUESS = 0.99
POINTS_PER_AXIS = 31  # mirt's default for two factors, from -6 to 6
LOGISTIC_TO_NORMAL = (
    1.702  # the slope at which a logistic curve is closest to a normal one (mirt's, Camilli 1994)
)


@dataclass(frozen=True)
class TwoFactorFit:
    """A two-factor model's estimates."""

    items: (
        pd.DataFrame
    )  # by item: a1, a2 (slopes per logit, principal axes), d (intercept, logits), c (guessing)
    loglik: float  # marginal log-likelihood, nats
    n_parameters: int
    n_persons: int
    n_iterations: int
    converged: bool

    @property
    def aic(self) -> float:
        """Akaike's information criterion."""
        return 2 * (self.n_parameters - self.loglik)

    @property
    def bic(self) -> float:
        """Schwarz's information criterion."""
        return np.log(self.n_persons) * self.n_parameters - 2 * self.loglik

    @property
    def sabic(self) -> float:
        """Sample-size adjusted BIC (Sclove 1987)."""
        return np.log((self.n_persons + 2) / 24) * self.n_parameters - 2 * self.loglik

    @property
    def loadings(self) -> pd.DataFrame:
        """Slopes on the scale of factor analysis, shape (n_items, 2): correlations of factors and latent answers."""
        slopes = self.items[["a1", "a2"]]
        scale = np.sqrt(LOGISTIC_TO_NORMAL**2 + (slopes**2).sum(axis=1))
        return slopes.div(scale, axis=0).set_axis(["F1", "F2"], axis=1)

    @property
    def communality(self) -> pd.Series:
        """Share of each latent answer's variance that both factors explain; rotation leaves it as it is."""
        return (self.loadings**2).sum(axis=1).rename("h2")


def two_factor(
    responses: pd.DataFrame,
    *,
    model: str = "2PL",
    max_iterations: int = 500,
    tolerance: float = 0.01,
) -> TwoFactorFit:
    """Fit a two-factor 2PL or 3PL model.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN; missing answers drop out of the likelihood.
    model : {"2PL", "3PL"}
        With "3PL", every item has a free guessing parameter.
    max_iterations : int
        Quasi-Newton steps at most.
    tolerance : float
        The largest derivative of the log-likelihood that may remain, in nats per unit of a slope, intercept or
        guessing probability. (With standard errors of 0.1, 0.01 leaves an error of 0.0001.)

    Returns
    -------
    TwoFactorFit
        A warning is given, and ``converged`` is False, if ``max_iterations`` did not suffice.

    Raises
    ------
    FrameError
        If the responses break their contract, an item was answered alike by everyone, or fewer than 4 items are given.
    ValueError
        If the model is not known.
    """
    if model not in ("2PL", "3PL"):
        raise ValueError(f"model is {model!r}; two factors can be fitted as '2PL' or '3PL'")
    responses = check_responses(responses)
    constant = constant_items(responses)
    if len(constant):
        raise FrameError(
            f"items {list(constant)} were answered alike by everyone, so their parameters are infinite; "
            "drop them with frames.drop_constant(responses)"
        )
    n_persons, n_items = responses.shape
    if n_items < 4:
        raise FrameError(f"two factors need at least 4 items, and {n_items} are given")
    likelihood = _MarginalLikelihood(responses.to_numpy(), guessing=model == "3PL")
    found = _maximise(likelihood, _start(responses, model), max_iterations, tolerance)
    if not found.success:
        warnings.warn(
            f"the two-factor {model} did not converge in {found.nit} steps (log-likelihood {-found.fun:.3f}; the "
            f"optimiser says: {found.message}); raise max_iterations, or look for runaway slopes in .items",
            stacklevel=2,
        )
    return TwoFactorFit(
        items=_to_principal_axes(found.x.reshape(n_items, 4), responses.columns),
        loglik=-float(found.fun),
        n_parameters=n_items * (4 if model == "3PL" else 3)
        - 1,  # one for the free turn of the axes
        n_persons=n_persons,
        n_iterations=int(found.nit),
        converged=bool(found.success),
    )


def _start(responses: pd.DataFrame, model: str) -> np.ndarray:
    """Return starting values (a1, a2, d, c) by item from the first two principal axes of the tetrachoric matrix."""
    values, vectors = np.linalg.eigh(tetrachoric(responses).to_numpy())
    loadings = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 0))
    unique = np.maximum(1 - (loadings**2).sum(axis=1), 0.3)  # a start only: no slope begins steep
    scale = LOGISTIC_TO_NORMAL / np.sqrt(unique)
    threshold = ndtri(responses.mean().to_numpy())
    guess = np.full(len(threshold), 0.1 if model == "3PL" else 0.0)
    return np.column_stack([loadings * scale[:, None], threshold * scale, guess])


class _MarginalLikelihood:
    """The marginal log-likelihood on the grid, and its derivatives by Fisher's identity from expected counts."""

    def __init__(self, x: np.ndarray, guessing: bool):
        self.right = (x == 1).astype(float)
        self.asked = np.isfinite(x).astype(float)
        self.complete = bool(self.asked.all())
        self.guessing = guessing
        axis = np.linspace(-6, 6, POINTS_PER_AXIS)
        one, two = np.meshgrid(axis, axis, indexing="ij")
        self.design = np.column_stack([one.ravel(), two.ravel(), np.ones(one.size)])  # (n_nodes, 3)
        self.log_weights = np.log(np.outer(normal_weights(axis), normal_weights(axis)).ravel())

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-likelihood and its gradient, shape (n_items, 4), at (a1, a2, d, c) by item."""
        guess = parameters[:, 3:]
        linear = parameters[:, :3] @ self.design.T
        logistic = expit(linear)
        p = np.maximum(guess + (1 - guess) * logistic, np.finfo(float).tiny)
        log_wrong = np.log1p(-guess) - np.logaddexp(0, linear)
        log_right = np.where(
            guess > 0, np.log(p), linear + log_wrong
        )  # exact in the tail where P underflows
        joint = self.right @ (log_right - log_wrong)
        joint += (
            log_wrong.sum(axis=0) if self.complete else self.asked @ log_wrong
        ) + self.log_weights
        largest = joint.max(axis=1, keepdims=True)
        joint -= largest
        posterior = np.exp(joint, out=joint)
        total = posterior.sum(axis=1, keepdims=True)
        posterior /= total
        loglik = float((np.log(total) + largest).sum())
        n_right = self.right.T @ posterior
        n_asked = posterior.sum(axis=0)[None] if self.complete else self.asked.T @ posterior
        surplus = (
            n_right - n_asked * p
        ) / p  # of right answers; P'/(P(1 - P)) by the linear predictor is logistic/P
        gradient = np.empty_like(parameters)
        gradient[:, :3] = (surplus * logistic) @ self.design
        gradient[:, 3] = (surplus / (1 - guess)).sum(axis=1) if self.guessing else 0.0
        return loglik, gradient


def _maximise(
    likelihood: _MarginalLikelihood, start: np.ndarray, max_iterations: int, tolerance: float
) -> optimize.OptimizeResult:
    """Climb the marginal log-likelihood from ``start``, guessing kept within [0, 0.99] (or at 0 in the 2PL)."""

    def negative(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loglik, gradient = likelihood(flat.reshape(start.shape))
        return -loglik, -gradient.ravel()

    guess_range = (0.0, LARGEST_GUESS if likelihood.guessing else 0.0)
    return optimize.minimize(
        negative,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None), (None, None), (None, None), guess_range] * len(start),
        options={
            "maxiter": max_iterations,
            "maxfun": 10 * max_iterations,
            "maxcor": 40,
            "ftol": 0,
            "gtol": tolerance,
        },
    )


def _to_principal_axes(parameters: np.ndarray, items: pd.Index) -> pd.DataFrame:
    """Turn both axes so that the first explains most, each pointing to where its slopes sum to a positive number."""
    slopes = parameters[:, :2]
    _, _, axes = np.linalg.svd(slopes, full_matrices=False)
    turned = slopes @ axes.T
    turned = turned * np.where(turned.sum(axis=0) < 0, -1.0, 1.0)
    columns = np.column_stack([turned, parameters[:, 2:]])
    return pd.DataFrame(columns, index=items.rename("item"), columns=["a1", "a2", "d", "c"])
