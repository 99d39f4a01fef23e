"""Number of abilities: tetrachoric correlations and their eigenvalues, parallel analysis, models of
two factors, and tests of nested models."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy
import torch
from scipy.special import chdtrc, ndtr, ndtri
from torch.nn.functional import logsigmoid

from psychlm.frames import FrameError, check_responses, constant_items, refuse
from psychlm.irt.item_fit import pair_tables
from psychlm.irt.model_tables import normal_weights
from psychlm.irt.response_functions import Logistic, model_named
from psychlm.irt.response_matrix import encode_responses
from psychlm.irt.result import InformationCriteria

LEAST_RATIO = 3.0  # first to second eigenvalue of an essentially one-dimensional test
LOGISTIC_TO_NORMAL = 1.702  # slope at which the logistic curve is closest to the normal ogive
FURTHEST = 37.0  # standard deviations: a cut beyond which no normal variable lies
# Rules of Gauss and Legendre, of 6, 12 and 20 nodes for correlations up to these (Genz 2004), of 48
# beyond; cell probabilities are good to 1e-9 for correlations within +-0.999.
RULE_LIMITS = (0.3, 0.75, 0.925)
RULES = [np.polynomial.legendre.leggauss(n_nodes) for n_nodes in (6, 12, 20, 48)]
PAIRS_PER_BLOCK = 5_000  # pairs of items computed at once, in a processor's cache
ANGLE_TOLERANCE = 1e-10  # radians, of the arcsine of a correlation
FACTOR_NODES = np.linspace(-6, 6, 31)  # of each of two factors; mirt's default
MAX_STEPS = 500  # of the quasi-Newton method for two factors
CHANCE_QUANTILE = 0.95  # of the eigenvalues by chance that a factor has to exceed


@dataclass(frozen=True)
class LikelihoodRatio:
    """A likelihood-ratio test of two nested models."""

    chi2: float  # twice the gain in log-likelihood (nats)
    df: int
    p: float


def tetrachoric(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the matrix of tetrachoric correlations between items of 0 and 1.

    They are :func:`polychoric` correlations of two categories.

    >>> from psychlm import corpora
    >>> float(tetrachoric(corpora.lsat6()).loc["LSAT 1", "LSAT 2"].round(3))
    0.17
    """
    return polychoric(check_responses(responses))


def polychoric(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the matrix of polychoric correlations between items, of ratings or of 0 and 1.

    An answer is in category k where a standard normal variable lies between thresholds k and k + 1.
    Thresholds are taken from the shares of all who answered the item; the correlation of a pair is
    then the one under which the table of the persons who answered both is most likely (Pearson
    1900; the two-step estimator of Olsson 1979, Psychometrika 44, 443-460, equation 17). R's
    ``polycor`` and ``lavaan`` give the same; of two items of two categories an empty cell counts
    0.5, as in ``psych``.

    >>> from psychlm import corpora
    >>> ratings = corpora.lalor2018_ratings().iloc[:, :2]
    >>> float(polychoric(ratings).iloc[0, 1].round(3))
    -0.124
    """
    checked = varying(responses, ratings=True)
    values = checked.to_numpy()
    n_items = values.shape[1]
    codes = np.full(values.shape, np.nan)
    answered = ~np.isnan(values)
    thresholds = []
    for item in range(n_items):
        present = answered[:, item]
        _, codes[present, item] = np.unique(values[present, item], return_inverse=True)
        below = np.cumsum(np.bincount(codes[present, item].astype(int)))[:-1] / present.sum()
        thresholds.append(ndtri(below))
    n_steps = max(map(len, thresholds))
    # The distribution's cuts: an end, the item's thresholds, and the other end as often as needed.
    cuts = np.full((n_items, n_steps + 2), FURTHEST)
    cuts[:, 0] = -FURTHEST
    for item, of_item in enumerate(thresholds):
        cuts[item, 1 : len(of_item) + 1] = of_item
    i, j = np.triu_indices(n_items, 1)
    counts = pair_tables(codes, torch.device("cpu"), n_steps + 1)
    rho = np.eye(n_items)
    step = max(1, PAIRS_PER_BLOCK // n_steps**2)
    for start in range(0, len(i), step):
        a = i[start : start + step]
        b = j[start : start + step]
        tables = counts[a, :, b, :]
        never = np.flatnonzero(tables.sum((1, 2)) == 0)
        if len(never):
            names = checked.columns[a[never[0]]], checked.columns[b[never[0]]]
            raise FrameError(
                f"items {names[0]!r} and {names[1]!r} were never answered by the same person, so "
                "their correlation is unknown; analyse each booklet's items apart"
            )
        if n_steps == 1:
            tables = np.where(tables == 0, 0.5, tables)
        rho[a, b] = rho[b, a] = _most_likely(tables, cuts[a], cuts[b])
    return pd.DataFrame(rho, index=checked.columns, columns=checked.columns)


def _most_likely(tables: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the correlation at which each table (n_pairs, k, k) is most likely, given its cuts.

    Fisher scoring on the arcsine scale t of the correlation finds the root of the log-likelihood's
    derivative, sum n_ab p'_ab / p_ab; a step that leaves the bracket is replaced by bisection.
    """
    low = np.full(len(h), -np.pi / 2)
    high = np.full(len(h), np.pi / 2)
    angle = np.zeros(len(h))
    n = tables.sum((1, 2))
    moving = np.arange(len(h))  # pairs whose angle still changes
    for _ in range(80):  # enough to bisect the whole range to the last digit
        previous = angle[moving]
        cuts = h[moving], k[moving]
        p = cell_probabilities(previous, *cuts)
        by_angle = _cells(_density(previous[:, None, None], *_inner(*cuts)))
        slope = (tables[moving] * by_angle / p).sum((1, 2))
        low[moving] = np.where(slope > 0, previous, low[moving])
        high[moving] = np.where(slope > 0, high[moving], previous)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = previous + slope / (n[moving] * (by_angle**2 / p).sum((1, 2)))
        inside = (step >= low[moving]) & (step <= high[moving])
        angle[moving] = np.where(inside, step, (low[moving] + high[moving]) / 2)
        moving = moving[np.abs(angle[moving] - previous) >= ANGLE_TOLERANCE]
        if not len(moving):
            break
    return np.sin(angle)


def _inner(h: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cuts between the outermost ones, beyond which nothing lies, as a grid."""
    return h[:, 1:-1, None], k[:, None, 1:-1]


def _cells(inner: np.ndarray) -> np.ndarray:
    """Return differences between neighbouring cuts of what is 0 at the outermost ones."""
    return np.diff(np.diff(np.pad(inner, ((0, 0), (1, 1), (1, 1))), axis=1), axis=2)


def cell_probabilities(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    r"""Return probabilities of cells of bivariate normals with correlation sin(angle).

    .. math:: P(X<h, Y<k) = \Phi(h)\Phi(k) + \frac{1}{2\pi}\int_0^{\arcsin\rho}
              \exp\!\Big(-\frac{h^2+k^2-2hk\sin t}{2\cos^2 t}\Big)\,dt

    (Drezner & Wesolowsky 1990, Journal of Statistical Computation and Simulation 35, 101-107), of
    the cells between neighbouring cuts h and k, (n_pairs, n_cuts); at least 1e-300. Shape (n_pairs,
    n_cuts - 1, n_cuts - 1).
    """
    integral = np.empty((len(h), h.shape[1] - 2, k.shape[1] - 2))
    rule_of_pair = np.searchsorted(RULE_LIMITS, np.abs(np.sin(angle)))
    for number, (nodes, weights) in enumerate(RULES):
        pairs = np.flatnonzero(rule_of_pair == number)
        part = np.multiply.outer((nodes + 1) / 2, angle[pairs])[:, :, None, None]
        density = _density(part, *_inner(h[pairs], k[pairs]))
        integral[pairs] = np.tensordot(weights, density, axes=1) * angle[pairs, None, None] / 2
    apart = np.diff(ndtr(h), axis=1)[:, :, None] * np.diff(ndtr(k), axis=1)[:, None, :]
    return np.maximum(apart + _cells(integral), 1e-300)


def _density(angle: np.ndarray, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the derivative of P(X>h, Y>k) by the arcsine of the correlation."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = -(h**2 + k**2 - 2 * h * k * np.sin(angle)) / (2 * np.cos(angle) ** 2)
        return np.exp(exponent) / (2 * np.pi)


def eigenvalues(responses: pd.DataFrame) -> pd.Series:
    """Return the eigenvalues of :func:`polychoric`'s matrix, largest first, indexed 1, 2, ...

    A test is essentially one-dimensional if the first is at least three times the second
    (Slocum-Gori & Zumbo 2011). The last ones may be negative.

    >>> from psychlm import corpora
    >>> eigenvalues(corpora.lsat6()).round(2).tolist()
    [1.62, 1.0, 0.88, 0.77, 0.73]
    """
    values = np.linalg.eigvalsh(polychoric(responses).to_numpy())[::-1]
    factors = pd.RangeIndex(1, len(values) + 1, name="factor")
    return pd.Series(values, index=factors, name="eigenvalue")


@dataclass(frozen=True)
class ParallelAnalysis:
    """Eigenvalues of the responses beside those of responses without any common ability."""

    table: pd.DataFrame  # by factor: eigenvalue, chance_mean, chance_quantile
    n_factors: int  # leading eigenvalues above the chance quantile


def parallel_analysis(
    responses: pd.DataFrame, *, n_draws: int = 50, rng: np.random.Generator | int = 0
) -> ParallelAnalysis:
    """Compare eigenvalues with those by chance, when every item's responses are shuffled among the
    persons who were asked it, ``n_draws`` times (Horn 1965; Buja & Eyuboglu 1992); also of ratings.

    >>> from psychlm import corpora
    >>> parallel_analysis(corpora.lsat6(), n_draws=20).n_factors
    1
    """
    checked = check_responses(responses, ratings=True)
    if checked.shape[1] < 3:
        raise FrameError(f"{checked.shape[1]} different items, and a factor needs 3")
    rng = np.random.default_rng(rng)
    observed = eigenvalues(checked)
    x = checked.to_numpy()
    draws = []
    for _ in range(n_draws):
        shuffled = x.copy()
        for item in shuffled.T:
            asked = ~np.isnan(item)
            item[asked] = rng.permutation(item[asked])
        draws.append(eigenvalues(pd.DataFrame(shuffled, columns=checked.columns)))
    table = pd.DataFrame({"eigenvalue": observed, "chance_mean": np.mean(draws, axis=0)})
    # The quantile by rank: of 20 draws the largest, which a 21st exceeds once in 21 times.
    rank = min(int(np.ceil(CHANCE_QUANTILE * (n_draws + 1))), n_draws)
    table["chance_quantile"] = np.sort(draws, axis=0)[rank - 1]
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
    parameter). Axes are principal axes, which :func:`rotate` turns to an interpretable position.
    With "3PL" every item has a free guessing parameter in [0, 0.99].

    >>> from psychlm import corpora
    >>> round(two_factor(corpora.lsat6()).loglik)
    -2464
    """
    kind = model_named(model)
    guessing = kind.free == ("guessing",)
    if kind.form is not Logistic or kind.common_slope or (kind.free and not guessing):
        raise ValueError(f"model is {model!r}; two factors can be fitted as '2PL' or '3PL'")
    checked = varying(responses)
    n_persons, n_items = checked.shape
    if n_items < 4:
        raise FrameError(f"two factors need at least 4 items, and {n_items} are given")
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
    how: dict[str, Any] = {"jac": True, "method": "L-BFGS-B"}
    how["options"] = {"maxiter": MAX_STEPS, "maxfun": 10 * MAX_STEPS, "maxcor": 40}
    how["options"] |= {"ftol": 0, "gtol": tolerance}
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
    right = torch.tensor(x == 1).double()
    answered = torch.tensor(np.isfinite(x)).double()
    # The grid: (theta1, theta2, 1) at every node, and the log weights of N(0, I).
    one, two = np.meshgrid(FACTOR_NODES, FACTOR_NODES, indexing="ij")
    design = torch.tensor(np.stack([one.ravel(), two.ravel(), np.ones(one.size)]))
    of_axis = normal_weights(FACTOR_NODES)
    log_weights = torch.tensor(np.log(np.outer(of_axis, of_axis).ravel()))
    values = torch.tensor(parameters, requires_grad=True)
    linear = values[:, :3] @ design
    guess = values[:, 3:]
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

    >>> axes = pd.DataFrame([[0.6, 0.6], [0.5, 0.5], [0.6, -0.6], [0.5, -0.5]], list("abcd"))
    >>> rotate(axes).loadings.abs().round(2).max(axis=1).tolist()
    [0.85, 0.71, 0.85, 0.71]
    """
    unrotated = torch.tensor(loadings.to_numpy(float))
    n_factors = loadings.shape[1]
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


def likelihood_ratio(
    fit_small: InformationCriteria, fit_big: InformationCriteria
) -> LikelihoodRatio:
    """Test a model within a larger one, both fitted to the same responses.

    Fits that cannot be compared are refused, and a bigger model without more parameters, or with a
    log-likelihood lower by more than 0.01 nats.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> likelihood_ratio(irt.fit(lsat, "1PL"), irt.fit(lsat, "2PL")).df
    4
    """
    if fit_small.data_hash != fit_big.data_hash:
        raise ValueError("the models were fitted to different responses; fit both to one frame")
    methods = {fit.method for fit in (fit_small, fit_big)}
    if len(methods) > 1 or "vi" in methods:
        raise ValueError(
            f"the fits' methods are {sorted(methods)}, whose log-likelihoods cannot be compared: "
            '"laplace" integrates over difficulties, and "vi" reaches no maximum; fit both alike'
        )
    if any(fit.log_prior for fit in (fit_small, fit_big)):
        raise ValueError(
            "a fit with priors has no maximum of the likelihood, and twice the gain no chi-square "
            "distribution; fit both models without priors, or compare what they predict"
        )
    df = fit_big.n_parameters - fit_small.n_parameters
    if df <= 0:
        raise ValueError(
            f"the bigger model has {df} parameters more; give the small (restricted) model first"
        )
    gain = fit_big.loglik - fit_small.loglik
    if gain < -0.01:
        raise ValueError(
            f"the bigger model's log-likelihood is lower by {-gain:.3f} nats; the models are not "
            "nested, or the bigger one needs more iterations"
        )
    chi2 = 2 * max(gain, 0.0)
    return LikelihoodRatio(chi2, df, float(chdtrc(df, chi2)))


def varying(responses: pd.DataFrame, *, ratings: bool = False) -> pd.DataFrame:
    """Return checked responses, refusing items that everyone answered alike."""
    checked = check_responses(responses, ratings=ratings)
    refuse(
        "items",
        constant_items(checked),
        "were answered alike by everyone, so nothing can be estimated; drop them: "
        "frames.drop_constant(responses)",
    )
    return checked
