r"""The linear logistic test model: what makes an item difficult (Fischer 1973).

A Rasch model whose difficulties are explained by features of the items,

.. math:: P(x_{pj} = 1) = \sigma(\theta_p - b_j), \qquad b_j = \eta_0 + \sum_k q_{jk} \eta_k,
          \qquad \theta_p \sim N(0, \sigma^2),

with :math:`q_{jk}` item j's value of feature k. Features never explain all of difficulty. How much they do explain is
said in two ways, each between the Rasch model of equal difficulties (0) and that of free ones (1): on the
log-likelihood, and in the variance of the Rasch difficulties, cleared of their errors of estimation.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import optimize, stats
from torch import Tensor

from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt._fit import fit
from psychlm.irt.em import EM, LARGEST_LEAP, Settings, squarem
from psychlm.irt.likelihood import (
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    gradient,
    quadrature_grid,
)
from psychlm.irt.response_matrix import ResponseMatrix, encode_responses
from psychlm.irt.result import IRTFit, IRTWarning
from psychlm.irt.two_groups import answers_as_rows
from psychlm.stats import Interval

CONSTANT = "(constant)"
MAX_ITERATIONS = 2000
TOLERANCE = 1e-4  # logits
BOOT_TOLERANCE = 1e-2  # logits, of the refits
SCORING_STEPS = 6
DIFFERENCE = 1e-4  # logits, either side, of the numerical derivative of the gradient

Array = np.ndarray


@dataclass(frozen=True)
class LLTMFit:
    """A fitted linear logistic test model; logits, slopes 1, ability N(0, ability_sd^2)."""

    coefficients: (
        pd.DataFrame
    )  # by feature: eta (above 0: harder), se, z, p; errors hold if the features say it all
    two_step: (
        pd.DataFrame
    )  # by feature: the same by regression of Rasch difficulties, with what features leave over
    items: pd.DataFrame  # by item: b and se_b (Rasch), b_explained (by the features), residual
    loglik: float  # nats
    n_parameters: int
    n_persons: int
    ability_sd: float  # logits
    residual_sd: float  # of the difficulties about what the features say, beyond errors of estimation, logits
    chi2: float  # of the features against free difficulties: twice the difference in log-likelihood, nats
    df: int  # 0 for a saturated design
    p: float  # NaN where df is 0
    r2_likelihood: Interval  # (LLTM - null) / (Rasch - null), log-likelihoods
    r2_difficulty: Interval  # 1 - residual variance / variance of difficulties, both without errors of estimation
    n_constant: float  # items per resample that all answered alike, and which it left out: mean
    rasch: IRTFit  # free difficulties
    converged: bool
    n_iterations: int  # EM steps


def lltm(
    responses: pd.DataFrame,
    design: pd.DataFrame,
    *,
    n_boot: int = 200,
    level: float = 0.95,
    rng: Any = 0,
) -> LLTMFit:
    r"""Explain the difficulties of items by their features.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN (not asked).
    design : DataFrame, shape (at least the items, n_features)
        The features by item, numeric; a constant is added. Categories as indicators without one
        (``pd.get_dummies(..., drop_first=True)``).
    n_boot : int
        Resamples for the intervals, each with persons and items drawn anew (Owen 2007) and three models refitted;
        0 for none (NaN).
    level : float
        Coverage of the intervals, which are bias-corrected percentiles (Efron 1987, with a = 0).
    rng : Generator or int
        Source of the resamples.

    Returns
    -------
    LLTMFit

    Raises
    ------
    FrameError
        If responses are malformed or an item was answered alike by everyone; if items lack features, a feature is
        missing or not numeric, or the features depend on each other linearly (with the constant).

    Warns
    -----
    IRTWarning
        If EM did not converge.

    Notes
    -----
    ``coefficients`` take the features for all there is to difficulty: where the test against free difficulties
    (``p``) says that they are not, their standard errors are too small, and those of ``two_step``, a random-effects
    regression with the errors of the difficulties known and the residual variance estimated by restricted maximum
    likelihood, are the ones to read. The intervals take persons and items as drawn at random, both at once, and are
    wide rather than narrow (Owen 2007).

    References
    ----------
    Fischer (1973), Acta Psychologica 37, 359-374; Embretson (1983), Psychological Bulletin 93, 179-197 (the share on
    the log-likelihood); De Boeck (2008), Psychometrika 73, 533-559 (random residuals); Owen (2007), Annals of
    Applied Statistics 1, 386-411 (resampling rows and columns); Raudenbush (2009), in Cooper,
    Hedges & Valentine (eds.), Handbook of Research Synthesis, 295-315 (explained share of true variance).
    """
    asked = check_responses(responses)
    features = _checked_design(design, asked.columns)
    rasch = fit(asked, "Rasch")
    answers = encode_responses(asked, torch.device("cpu"))
    x = features.to_numpy()
    b, se = rasch.items["b"], rasch.items["se_b"]
    start = _begin(rasch.ability_sd, b.to_numpy(), x)
    em, parameters, loglik, converged = _climb(answers, x, start, TOLERANCE)
    null = _climb(answers, x[:, :1], _begin(rasch.ability_sd, b.to_numpy(), x[:, :1]), TOLERANCE)[2]
    if not (converged and rasch.converged):
        warnings.warn(
            f"no convergence in {em.n_steps} EM steps; read no tests off this fit",
            IRTWarning,
            stacklevel=2,
        )
    regression = _random_effects(b.to_numpy(), se.to_numpy() ** 2, x)
    estimates = np.array(
        [_share(loglik, null, rasch.loglik), _explained(b.to_numpy(), se.to_numpy() ** 2, x)]
    )
    draws, lost = _resampled(asked.to_numpy(), x, rasch, n_boot, np.random.default_rng(rng))
    r2 = [
        _interval(value, column, level, n_boot)
        for value, column in zip(estimates, draws.T, strict=True)
    ]
    coefficients = _coefficients(answers, x, parameters, em.grid)
    explained = x @ coefficients["eta"].to_numpy()
    df, chi2 = len(b) - x.shape[1], max(2 * (rasch.loglik - loglik), 0.0)
    return LLTMFit(
        coefficients=coefficients.set_index(features.columns),
        two_step=_table(regression[0], regression[1]).set_index(features.columns),
        items=pd.DataFrame(
            {"b": b, "se_b": se, "b_explained": explained, "residual": b - explained}
        ),
        loglik=loglik,
        n_parameters=x.shape[1] + 1,
        n_persons=len(asked),
        ability_sd=float(parameters.slope[0]),
        residual_sd=math.sqrt(regression[2]),
        chi2=chi2,
        df=df,
        p=float(stats.chi2.sf(chi2, df)) if df else math.nan,
        r2_likelihood=r2[0],
        r2_difficulty=r2[1],
        n_constant=lost,
        rasch=rasch,
        converged=converged and rasch.converged,
        n_iterations=em.n_steps,
    )


def _checked_design(design: pd.DataFrame, items: pd.Index) -> pd.DataFrame:
    """Return the constant and the features of the items, in their order, float64."""
    absent = items.difference(design.index)
    if len(absent):
        raise FrameError(
            f"items {format_names(absent)} have no features; the design has a row for every item, by its name"
        )
    if design.index.has_duplicates or design.columns.has_duplicates or CONSTANT in design.columns:
        raise FrameError(
            f"an item or a feature stands twice in the design, or a feature is called {CONSTANT!r}"
        )
    chosen = design.loc[items]
    text = [name for name in chosen if not pd.api.types.is_numeric_dtype(chosen[name])]
    if text:
        raise FrameError(
            f"features {format_names(text)} are not numeric; turn categories into indicators: "
            "pd.get_dummies(design, drop_first=True)"
        )
    values = chosen.astype(float)
    holes = values.columns[~np.isfinite(values).all()]
    if len(holes):
        raise FrameError(
            f"features {format_names(holes)} are missing or infinite for some items; complete or drop them"
        )
    values.insert(0, CONSTANT, 1.0)
    scaled = values.to_numpy() / np.linalg.norm(values, axis=0).clip(1e-300)
    size = np.abs(np.diag(np.linalg.qr(scaled, mode="r")))
    dependent = values.columns[: len(size)][size < 1e-8].append(values.columns[len(size) :])
    if len(dependent):
        raise FrameError(
            f"features {format_names(dependent)} follow from the constant and the features before them, on these items; "
            "drop them"
        )
    return values


class _LinearEM(EM):
    """The EM map of a Rasch model whose intercepts lie in the span of a design, which holds the constant."""

    def __init__(self, answers: ResponseMatrix, x: Array | None) -> None:
        free = torch.zeros(answers.n_items, dtype=torch.bool)
        settings = Settings(TOLERANCE, MAX_ITERATIONS, False)
        super().__init__(
            answers, Design(True, free, {}), quadrature_grid(device=answers.device), settings
        )
        self.basis = (
            None if x is None else torch.from_numpy(np.linalg.qr(x)[0])
        )  # None: every difficulty is free

    def step(self, parameters: Parameters) -> tuple[Parameters, float]:
        """One EM step: better parameters, and the log-likelihood of those that were given."""
        found, objective = self.expect(parameters)
        better = Parameters(
            parameters.slope, self._intercepts(parameters, found), parameters.guessing
        )
        self.n_steps += 1
        return self.absorb(better, found), objective

    def _intercepts(self, parameters: Parameters, found: Posterior) -> Tensor:
        """M-step: Newton's method, in the coordinates of the basis."""
        weights, basis, intercept = (
            found.weights * self.responses.count[:, None],
            self.basis,
            parameters.intercept,
        )
        everyone = weights.sum(0, keepdim=True)
        total = torch.cat(
            [
                everyone if b.answered is None else b.answered.T @ weights
                for b in self.responses.blocks()
            ]
        )
        slopes = torch.outer(parameters.slope, self.grid.nodes)
        for _ in range(SCORING_STEPS):
            p = torch.sigmoid(slopes + intercept[:, None])
            uphill, information = (
                self.responses.n_correct - (total * p).sum(1),
                (total * p * (1 - p)).sum(1),
            )
            if basis is None:
                step = uphill / information
            else:
                step = basis @ torch.linalg.solve(
                    basis.T @ (information[:, None] * basis), basis.T @ uphill
                )
            intercept = intercept + step / (step.abs().max() / LARGEST_LEAP).clamp_min(1.0)
            if float(step.abs().max()) < self.accuracy:
                break
        return intercept


def _climb(
    answers: ResponseMatrix, x: Array | None, start: Parameters, tolerance: float
) -> tuple[_LinearEM, Parameters, float, bool]:
    """Run EM to its fixed point; return it, the parameters, their log-likelihood, and whether they converged."""
    em = _LinearEM(answers, x)
    parameters, converged = squarem(em, start, tolerance)
    return em, parameters, em.expect(parameters)[1], converged


def _begin(sd: float, b: Array, x: Array | None = None) -> Parameters:
    """Return Rasch difficulties, as far as the design can follow them, on the scale of standard-normal ability."""
    near = b if x is None else x @ np.linalg.lstsq(x, b, rcond=None)[0]
    slope = torch.full((len(b),), sd, dtype=torch.float64)
    return Parameters(slope, -torch.tensor(near), torch.zeros_like(slope))


def _coefficients(
    answers: ResponseMatrix, x: Array, parameters: Parameters, grid: QuadratureGrid
) -> pd.DataFrame:
    """Return coefficients with errors from the observed information: central differences of the exact gradient."""
    eta = np.linalg.lstsq(x, -parameters.intercept.numpy(), rcond=None)[0]
    at = np.append(eta, float(parameters.slope[0]))
    design = Design(True, torch.zeros(answers.n_items, dtype=torch.bool), {})

    def uphill(values: Array) -> Array:
        slope = torch.full((answers.n_items,), values[-1], dtype=torch.float64)
        moved = Parameters(slope, -torch.from_numpy(x @ values[:-1]), torch.zeros_like(slope))
        by_item = gradient(answers, design, moved, grid).numpy()
        return np.append(-x.T @ by_item[:, 1], by_item[:, 0].sum())

    moves = DIFFERENCE * np.diag(1 / np.append(np.abs(x).max(axis=0), 1.0))
    columns = [(uphill(at + move) - uphill(at - move)) / (2 * move.sum()) for move in moves]
    information = -np.stack(columns)
    variance = np.diag(np.linalg.pinv((information + information.T) / 2))[:-1]
    with np.errstate(invalid="ignore"):
        return _table(eta, np.sqrt(np.where(variance > 0, variance, np.nan)))


def _table(eta: Array, se: Array) -> pd.DataFrame:
    return pd.DataFrame(
        {"eta": eta, "se": se, "z": eta / se, "p": 2 * stats.norm.sf(np.abs(eta / se))}
    )


def _random_effects(y: Array, variance: Array, x: Array) -> tuple[Array, Array, float]:
    """Regress y, whose errors have known variances, on x; return coefficients, errors, and the residual variance.

    The residual variance is the restricted maximum likelihood estimate, at least 0 (Raudenbush 2009, equation 16.17).
    """

    def weighted(tau2: float) -> tuple[Array, Array, Array]:
        w = 1 / (variance + tau2)
        inverse = np.linalg.inv((x.T * w) @ x)
        return inverse @ (x.T @ (w * y)), inverse, w

    def negative(tau2: float) -> float:
        beta, inverse, w = weighted(tau2)
        logdet = -np.linalg.slogdet(inverse)[1]
        return 0.5 * float(-np.log(w).sum() + logdet + (w * (y - x @ beta) ** 2).sum())

    largest = float(np.var(y)) * len(y) / max(len(y) - x.shape[1], 1) + 1e-12
    least = 1e-10 * largest  # where all variances are 0, the likelihood has a pole at 0
    found = optimize.minimize_scalar(
        negative, bounds=(least, 2 * largest), method="bounded", options={"xatol": least}
    )
    tau2 = float(found.x) if negative(least) > found.fun else 0.0
    beta, inverse, _ = weighted(max(tau2, least))
    return beta, np.sqrt(np.diag(inverse)), tau2


def _explained(y: Array, variance: Array, x: Array) -> float:
    """Return the share of the variance of true difficulties that features explain, NaN where there is none."""
    if len(y) <= x.shape[1]:
        return 1.0
    whole = _random_effects(y, variance, x[:, :1])[2]
    return 1 - _random_effects(y, variance, x)[2] / whole if whole > 0 else math.nan


def _share(loglik: float, null: float, saturated: float) -> float:
    return (loglik - null) / (saturated - null) if saturated > null else math.nan


def _resampled(
    values: Array, x: Array, rasch: IRTFit, n_boot: int, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return both shares in resamples of persons and items, shape (n_boot, 2), and the items that each lost."""
    draws, lost = np.full((n_boot, 2), np.nan), 0
    n_persons, n_items = values.shape
    for number in range(n_boot):
        columns = np.asarray(rng.integers(n_items, size=n_items))
        drawn = values[rng.integers(n_persons, size=n_persons)]
        right, wrong = (drawn[:, columns] == 1).any(axis=0), (drawn[:, columns] == 0).any(axis=0)
        lost += int((~(right & wrong)).sum())
        columns = columns[right & wrong]
        if len(columns) > x.shape[1] and np.linalg.matrix_rank(x[columns]) == x.shape[1]:
            draws[number] = _one_resample(drawn[:, columns], x[columns], rasch, columns)
    return draws, lost / n_boot if n_boot else math.nan


def _one_resample(values: Array, x: Array, rasch: IRTFit, columns: Array) -> tuple[float, float]:
    answers = answers_as_rows(values, pd.RangeIndex(len(values)))
    known = rasch.items.iloc[columns]
    logliks = []
    for features in (x, x[:, :1], None):
        begin = _begin(rasch.ability_sd, known["b"].to_numpy(), features)
        _, found, loglik, _ = _climb(answers, features, begin, BOOT_TOLERANCE)
        logliks.append(loglik)
    b = -found.intercept.numpy()
    # these difficulties err about the estimates as those do about the truth: twice the variance
    return _share(*logliks), _explained(b, 2 * known["se_b"].to_numpy() ** 2, x)


def _interval(estimate: float, draws: Array, level: float, n_boot: int) -> Interval:
    """Return the bias-corrected percentile interval (Efron 1987, with a = 0)."""
    kept = draws[~np.isnan(draws)]
    if not len(kept) or math.isnan(estimate):
        return Interval(float(estimate), math.nan, math.nan, level, n_boot, len(draws) - len(kept))
    below = np.clip((kept < estimate).mean(), 0.5 / len(kept), 1 - 0.5 / len(kept))
    tails = stats.norm.cdf(
        2 * stats.norm.ppf(below) + stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
    )
    low, high = (float(np.quantile(kept, tail)) for tail in tails)
    return Interval(float(estimate), low, high, level, n_boot, len(draws) - len(kept))
