"""Lalor (2020, chapter 2): how many abilities a test set takes, and whether its scale holds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtri
from torch.nn.functional import logsigmoid

from psychlm.frames import FrameError, check_responses
from psychlm.irt import M2Fit, ModelTables, eigenvalues, ld_x2, m2, s_x2, tetrachoric
from psychlm.irt.dimensionality import LOGISTIC_TO_NORMAL, varying
from psychlm.irt.model_tables import STANDARD_GRID, normal_weights
from psychlm.irt.response_matrix import encode_responses
from psychlm.irt.result import InformationCriteria, IRTFit
from psychlm.stats import CORRECTIONS

AXIS = np.linspace(-6, 6, 31)  # nodes of each factor; mirt's default for two factors
MAX_STEPS = 500  # of EM for the ability of new persons, and of the quasi-Newton method
CHANCE_QUANTILE = 0.95  # of the eigenvalues by chance that a factor has to exceed


@dataclass(frozen=True)
class ParallelAnalysis:
    """Eigenvalues of the responses beside those of responses without any common ability."""

    table: pd.DataFrame  # by factor: eigenvalue, chance_mean, chance_quantile
    n_factors: int  # leading eigenvalues above the chance quantile


def parallel_analysis(
    responses: pd.DataFrame,
    *,
    n_draws: int = 50,
    rng: np.random.Generator | int = 0,
) -> ParallelAnalysis:
    """Compare eigenvalues with those by chance, when every item's responses are shuffled among the
    persons who were asked it, ``n_draws`` times (Horn 1965; Buja & Eyuboglu 1992)."""
    checked, rng = check_responses(responses), np.random.default_rng(rng)
    observed, x = eigenvalues(checked), checked.to_numpy()
    # Rows of each column in the order: asked first; then permuted among themselves.
    asked_first = np.argsort(np.isnan(x), axis=0, kind="stable")
    draws = []
    for _ in range(n_draws):
        keys = np.where(np.isnan(x), np.inf, rng.random(x.shape))
        shuffled = np.full_like(x, np.nan)
        permuted = np.take_along_axis(x, np.argsort(keys, axis=0), axis=0)
        np.put_along_axis(shuffled, asked_first, permuted, axis=0)
        draws.append(eigenvalues(pd.DataFrame(shuffled, columns=checked.columns)))
    table = pd.DataFrame({"eigenvalue": observed, "chance_mean": np.mean(draws, axis=0)})
    table["chance_quantile"] = np.quantile(draws, CHANCE_QUANTILE, axis=0)
    exceeds = (table["eigenvalue"] > table["chance_quantile"]).to_numpy()
    return ParallelAnalysis(table, int(np.cumprod(exceeds).sum()))


@dataclass(frozen=True)
class TwoFactorFit(InformationCriteria):
    """Estimates of a two-factor model."""

    items: pd.DataFrame  # a1, a2 (slopes per logit, principal axes), d (intercept), c (guessing)
    loglik: float  # marginal log-likelihood, nats
    n_parameters: int
    n_persons: int
    n_iterations: int
    converged: bool
    data_hash: str  # of the responses, as in IRTFit
    method: str = "mml"
    log_prior: float = 0.0

    @property
    def loadings(self) -> pd.DataFrame:
        """Factor loadings of the latent responses, a / sqrt(1.702^2 + a1^2 + a2^2)."""
        slopes = self.items[["a1", "a2"]]
        scale = np.sqrt(LOGISTIC_TO_NORMAL**2 + (slopes**2).sum(axis=1))
        return slopes.div(scale, axis=0).set_axis(["F1", "F2"], axis=1)


def two_factor(
    responses: pd.DataFrame, *, model: str = "2PL", tolerance: float = 0.01
) -> TwoFactorFit:
    r"""Fit a two-factor 2PL or 3PL model by marginal maximum likelihood on a grid of 31 x 31 nodes.

    .. math:: P_i(\theta) = c_i + \frac{1 - c_i}{1 + e^{-(a_{i1}\theta_1 + a_{i2}\theta_2 + d_i)}},
              \qquad \theta \sim N(0, I)

    A quasi-Newton method climbs until no derivative is above ``tolerance`` (nats per unit of a
    parameter). Axes are turned to principal axes here, and by :func:`rotate` to an interpretable
    position. With "3PL" every item has a free guessing parameter in [0, 0.99]."""
    if model not in ("2PL", "3PL"):
        raise ValueError(f"model is {model!r}; two factors can be fitted as '2PL' or '3PL'")
    checked = varying(responses)
    n_persons, n_items = checked.shape
    if n_items < 4:
        raise FrameError(f"two factors need at least 4 items, and {n_items} are given")
    guessing = model == "3PL"
    # Start: the first two principal axes of the tetrachoric matrix, as slopes (none too steep).
    values, vectors = np.linalg.eigh(tetrachoric(checked).to_numpy())
    loadings = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 0))
    scale = LOGISTIC_TO_NORMAL / np.sqrt(np.maximum(1 - (loadings**2).sum(axis=1), 0.3))
    intercepts = ndtri(checked.mean().to_numpy()) * scale
    guess = np.full(n_items, 0.1 if guessing else 0.0)
    start = np.column_stack([loadings * scale[:, None], intercepts, guess])

    def negative(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loglik, gradient = two_factor_loglik(checked.to_numpy(), flat.reshape(n_items, 4))
        if not guessing:
            gradient[:, 3] = 0.0
        return -loglik, -gradient.ravel()

    bounds = [(None, None)] * 3 + [(0.0, 0.99 if guessing else 0.0)]
    options = {"maxiter": MAX_STEPS, "maxfun": 10 * MAX_STEPS, "maxcor": 40, "ftol": 0}
    how: dict[str, Any] = {"jac": True, "method": "L-BFGS-B"}
    how["options"] = options | {"gtol": tolerance}
    optimum = scipy.optimize.minimize(negative, start.ravel(), bounds=bounds * n_items, **how)
    if not optimum.success:
        warnings.warn(
            f"the two-factor {model} did not converge in {optimum.nit} steps (log-likelihood "
            f"{-optimum.fun:.3f}); look for runaway slopes in .items",
            stacklevel=2,
        )
    # Principal axes, each pointing to where its slopes sum to a positive number.
    parameters = optimum.x.reshape(n_items, 4)
    slopes = parameters[:, :2] @ np.linalg.svd(parameters[:, :2], full_matrices=False)[2].T
    slopes = slopes * np.where(slopes.sum(axis=0) < 0, -1.0, 1.0)
    table = np.column_stack([slopes, parameters[:, 2:]])
    return TwoFactorFit(
        items=pd.DataFrame(table, checked.columns.rename("item"), ["a1", "a2", "d", "c"]),
        loglik=-float(optimum.fun),
        n_parameters=n_items * (4 if guessing else 3) - 1,  # one for the free turn of the axes
        n_persons=n_persons,
        n_iterations=int(optimum.nit),
        converged=bool(optimum.success),
        data_hash=encode_responses(checked, torch.device("cpu")).data_hash,
    )


def two_factor_loglik(x: np.ndarray, parameters: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the marginal log-likelihood of responses x and its gradient by (a1, a2, d, c).

    Both ``parameters`` and the gradient have shape (n_items, 4); NaN in x was not asked."""
    right, answered = torch.tensor(x == 1).double(), torch.tensor(np.isfinite(x)).double()
    # The grid: (theta1, theta2, 1) at every node, and the log weights of N(0, I).
    one, two = np.meshgrid(AXIS, AXIS, indexing="ij")
    design = torch.tensor(np.stack([one.ravel(), two.ravel(), np.ones(one.size)]))
    log_weights = torch.tensor(np.log(np.outer(normal_weights(AXIS), normal_weights(AXIS)).ravel()))
    values = torch.tensor(parameters, requires_grad=True)
    linear, guess = values[:, :3] @ design, values[:, 3:]
    # c + (1 - c) s = s (1 + c exp(-z)), with s the logistic function: exact where s underflows.
    log_right = logsigmoid(linear) + torch.log1p(guess * linear.clamp_min(-700).neg().exp())
    log_wrong = torch.log1p(-guess) + logsigmoid(-linear)
    joint = right @ (log_right - log_wrong) + log_weights
    # Where nobody skipped an item, every person has the same sum of log Q.
    joint = joint + (log_wrong.sum(0) if answered.all() else answered @ log_wrong)
    loglik = joint.logsumexp(1).sum()
    return loglik.item(), torch.autograd.grad(loglik, values)[0].numpy()


@dataclass(frozen=True)
class Rotation:
    """Rotated loadings and the correlations of the factors they belong to."""

    loadings: pd.DataFrame  # (n_items, n_factors)
    factor_correlation: pd.DataFrame  # (n_factors, n_factors); the identity if orthogonal


def rotate(
    loadings: pd.DataFrame, *, target: pd.DataFrame | None = None, n_starts: int = 20
) -> Rotation:
    r"""Rotate loadings obliquely towards simple structure, or towards a target.

    .. math:: \min \sum_i \sum_{j \ne k} \lambda_{ij}^2 \lambda_{ik}^2
              \qquad \text{or} \qquad \min \sum_{ij\ \text{specified}} (\lambda_{ij} - t_{ij})^2

    The first is oblimin with gamma = 0 (Jennrich and Sampson 1966), the second a partially
    specified target (Browne 2001), NaN where a loading is free. Of ``n_starts`` orthogonal
    rotations (the first is none) the best end is kept, since the criteria have local minima. Every
    factor is reflected so that its loadings sum to a positive number, unless a target other than 0
    decides.
    """
    unrotated, n_factors = torch.tensor(loadings.to_numpy(float)), loadings.shape[1]
    wanted = None if target is None else torch.tensor(target.loc[loadings.index].to_numpy(float))

    def criterion(flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the criterion and its gradient by the factors' directions, of any length."""
        columns = torch.tensor(flat.reshape(n_factors, n_factors), requires_grad=True)
        rotated = unrotated @ torch.linalg.inv(columns / columns.norm(dim=0)).T
        if wanted is None:
            squares = rotated**2
            value = (squares * (squares.sum(1, keepdim=True) - squares)).sum()
        else:
            value = (rotated - wanted)[~wanted.isnan()].square().sum()
        return value.item(), torch.autograd.grad(value, columns)[0].numpy().ravel()

    # Random orthogonal starts; every second one with a reflection.
    normal = np.random.default_rng(0).standard_normal((n_starts, n_factors, n_factors))
    starts = np.linalg.qr(normal)[0]
    starts[::2, :, -1] *= -1
    starts[0] = np.eye(n_factors)
    how: dict[str, Any] = {"jac": True, "options": {"gtol": 1e-9}}
    ends = [scipy.optimize.minimize(criterion, start.ravel(), **how) for start in starts]
    turn = min(ends, key=lambda end: end.fun).x.reshape(n_factors, n_factors)
    turn /= np.linalg.norm(turn, axis=0)
    rotated = loadings.to_numpy() @ np.linalg.inv(turn).T
    decided = wanted is not None and wanted.nan_to_num().any()
    sign = np.where((rotated.sum(axis=0) < 0) & (not decided), -1.0, 1.0)
    names = [f"F{k + 1}" for k in range(n_factors)]
    correlation = (turn.T @ turn) * np.outer(sign, sign)
    return Rotation(
        pd.DataFrame(rotated * sign, loadings.index, names), pd.DataFrame(correlation, names, names)
    )


@dataclass(frozen=True)
class Confirmation:
    """Fit of a calibrated scale for new persons."""

    items: pd.DataFrame  # S-X2 by item, with adjusted p
    pairs: pd.DataFrame  # LD-X2 by pair, with adjusted p
    m2: M2Fit  # of the model as a whole
    ability_mean: float  # of the new persons, logits
    ability_sd: float


def confirm(
    calibrated: IRTFit,
    responses: pd.DataFrame,
    *,
    correction: Literal["holm", "bh"] = "holm",
) -> Confirmation:
    """Test a calibrated scale on the responses of new persons, with the items held as they are.

    The mean and standard deviation of the new persons' ability are estimated by EM; no parameter of
    an item counts as free in the fit statistics (Lalor 2020, section 1.3.6). ``correction`` is that
    of p-values over items, and over pairs."""
    tables = ModelTables.of(calibrated)
    x = tables.response_array(responses)
    held = np.full_like(tables.estimates, -1)
    tables = replace(tables, estimates=held, mean_is_free=True, sd_is_free=True)
    mean, sd, change = float(tables.weights @ tables.nodes), 1.0, np.inf
    for _ in range(MAX_STEPS):
        # E-step: average posterior over persons. M-step: its mean and standard deviation.
        nodes = mean + sd * STANDARD_GRID
        tables = replace(tables, nodes=nodes, weights=normal_weights(nodes, mean, sd))
        if change < 1e-6:
            break
        average = tables.posterior(torch.tensor(x)).mean(0).numpy()
        new_mean = float(average @ nodes)
        new_sd = float(np.sqrt(average @ (nodes - new_mean) ** 2))
        change, mean, sd = abs(new_mean - mean) + abs(new_sd - sd), new_mean, new_sd
    else:
        raise RuntimeError(f"ability (mean {mean:.2f}, sd {sd:.2f}) did not converge")
    items, pairs, whole = s_x2(tables, responses), ld_x2(tables, responses), m2(tables, responses)
    items["p"], pairs["p"] = (CORRECTIONS[correction](table["p"]) for table in (items, pairs))
    return Confirmation(items, pairs, whole, mean, sd)


def empirical_curve(theta: ArrayLike, responses: ArrayLike, grid: ArrayLike) -> np.ndarray:
    """Return the proportion correct as a smooth function of ability, without a response model.

    A cubic smoothing spline, whose smoothing generalised cross-validation chooses, goes through the
    proportions of twenty groups of similar ability. Figure 2.3 of Lalor (2020) lays such curves
    over the fitted ones. NaN outside the range of the groups."""
    frame = pd.DataFrame({"theta": np.asarray(theta, float), "x": np.asarray(responses, float)})
    frame = frame.dropna()
    groups = frame.groupby(pd.qcut(frame["theta"], 20, duplicates="drop"), observed=True)
    table = groups.agg(theta=("theta", "mean"), correct=("x", "mean"), n=("x", "size"))
    if len(table) < 5:
        raise FrameError(f"{len(frame)} persons make {len(table)} groups; at least 5 are needed")
    spline = scipy.interpolate.make_smoothing_spline(table["theta"], table["correct"], w=table["n"])
    grid = np.asarray(grid, float)
    inside = (grid >= table["theta"].iloc[0]) & (grid <= table["theta"].iloc[-1])
    return np.where(inside, np.clip(spline(grid), 0, 1), np.nan)


def stopped_em(responses: pd.DataFrame, tolerance: float, *, slope: float = 0.851) -> pd.DataFrame:
    """Fit the 2PL by the EM algorithm of Bock and Aitkin (1981), and stop at a tolerance.

    As in R's mirt, abilities are 61 nodes from -6 to 6, slopes start at ``slope``, and steps end
    when no parameter moves by more than the tolerance: the estimates are then off by several times
    the tolerance, in a direction that depends on the start."""
    patterns = check_responses(responses).value_counts()
    graded = np.array(patterns.index.tolist(), dtype=float)
    right = responses.mean().to_numpy()
    theta = np.linspace(-6, 6, 61)
    weight = scipy.stats.norm.pdf(theta)
    design = np.stack([theta, np.ones(61)])  # of slope and intercept
    start = scipy.special.logit(right) * np.sqrt(1 + 0.346 * slope**2)
    parameters, change = np.stack([np.full(len(right), slope), start]), np.inf
    while change > tolerance:
        # E-step: expected numbers of persons and of right responses at each node.
        p = scipy.special.expit(design.T @ parameters)
        loglik = graded @ np.log(p).T + (1 - graded) @ np.log1p(-p).T
        posterior = np.exp(loglik - loglik.max(axis=1, keepdims=True)) * weight
        posterior *= (patterns.to_numpy() / posterior.sum(axis=1))[:, None]
        persons, correct = posterior.sum(axis=0)[:, None], posterior.T @ graded
        # M-step: a logistic regression on ability for each item, by Newton's method.
        before = parameters
        for _ in range(20):
            p = scipy.special.expit(design.T @ parameters)
            gradient = design @ (correct - persons * p)
            hessian = np.einsum("ak,kj,bk->jab", design, persons * p * (1 - p), design)
            parameters = parameters + np.linalg.solve(hessian, gradient.T[..., None])[..., 0].T
        change = np.abs(parameters - before).max()
    a, intercept = parameters
    return pd.DataFrame({"a": a, "b": -intercept / a}, index=responses.columns)
