"""The linear logistic test model: item difficulty explained by features (Fischer 1973)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy
import torch

from psychlm.frames import check_responses
from psychlm.irt import fit
from psychlm.irt.em import EM, Settings, squarem
from psychlm.irt.explanatory import (
    RandomDifficulties,
    check_covariates,
    fit_difficulties,
    wald_table,
)
from psychlm.irt.likelihood import Design, Parameters
from psychlm.irt.response_matrix import encode_responses, uncompressed
from psychlm.irt.result import IRTFit, IRTWarning
from psychlm.stats import Interval

MAX_ITERATIONS = 2000
BOOT_TOLERANCE = 1e-2  # logits, of the bootstrap's refits

Array = np.ndarray


@dataclass(frozen=True)
class LLTMFit:
    """A fitted linear logistic test model; logits, slopes 1, ability N(0, ability_sd^2)."""

    coefficients: pd.DataFrame  # eta (above 0: harder), se, z, p; if features explain everything
    two_step: pd.DataFrame  # the same by regression of Rasch difficulties with residual variance
    items: pd.DataFrame  # b and se_b (Rasch), b_explained (by the features), residual
    loglik: float  # nats
    n_parameters: int
    ability_sd: float  # logits
    residual_sd: float  # of difficulties given the features, without errors of estimation, logits
    p: float  # of the features against free difficulties; NaN for a saturated design
    r2_difficulty: Interval  # 1 - residual variance / variance of difficulties, free of errors
    n_constant: float  # mean number of items per resample that all answered alike, left out
    rasch: IRTFit  # free difficulties
    converged: bool


def lltm(
    responses: pd.DataFrame,
    design: pd.DataFrame,
    *,
    n_boot: int = 200,
    rng: np.random.Generator | int = 0,
) -> LLTMFit:
    r"""Explain the difficulties of items by features, :math:`b_j = \eta_0 + \sum_k q_{jk} \eta_k`.

    ``responses`` are 0, 1 or NaN, ``design`` numeric features by item, without a constant. The
    share of the variance of Rasch difficulties that features explain is free of their errors of
    estimation; its interval is from ``n_boot`` resamples of persons and items (Owen 2007), bias
    corrected (Efron 1987). ``coefficients`` assume that features explain difficulty completely.
    Where the test against free difficulties (``p``) rejects that, read ``two_step``, a
    random-effects regression (De Boeck 2008; Raudenbush 2009, in Cooper, Hedges & Valentine,
    Handbook of Research Synthesis, 295-315).
    """
    checked = check_responses(responses)
    features = check_covariates(design, checked.columns)
    rasch = fit(checked, "Rasch")
    b = rasch.items["b"].to_numpy()
    se = rasch.items["se_b"].to_numpy()
    x = features.to_numpy()
    # Without random effects, difficulties are in the span of the features.
    fitted = fit_difficulties(
        encode_responses(checked), x, [], np.zeros(len(b), int), MAX_ITERATIONS
    )
    converged = fitted.converged and rasch.converged
    if not converged:
        message = f"no convergence in {fitted.n_iterations} steps; this fit's tests are invalid"
        warnings.warn(message, IRTWarning, stacklevel=2)
    # The explained share, and its interval from resamples of persons and items.
    share = explained_variance(b, se**2, x)
    draws, n_constant = _resample(checked.to_numpy(), x, rasch, n_boot, np.random.default_rng(rng))
    eta = fitted.eta
    se_eta = _standard_errors(x, fitted)
    beta, se_beta, residual_variance = random_effects(b, se**2, x)
    explained = x @ eta
    df = len(b) - x.shape[1]
    chi2 = max(2 * (rasch.loglik - fitted.loglik), 0.0)
    columns = {"b": b, "se_b": se, "b_explained": explained, "residual": b - explained}
    return LLTMFit(
        coefficients=wald_table(eta, se_eta, features.columns),
        two_step=wald_table(beta, se_beta, features.columns),
        items=pd.DataFrame(columns, index=rasch.items.index),
        loglik=fitted.loglik,
        n_parameters=x.shape[1] + 1,
        ability_sd=float(fitted.ability_sd[0]),
        residual_sd=math.sqrt(residual_variance),
        p=float(scipy.stats.chi2.sf(chi2, df)) if df else math.nan,
        r2_difficulty=_interval(share, draws),
        n_constant=n_constant,
        rasch=rasch,
        converged=converged,
    )


def _standard_errors(x: Array, found: RandomDifficulties) -> Array:
    """Return standard errors of the coefficients, which ability's sd is estimated with."""
    features = torch.from_numpy(x)

    def loglik(values: torch.Tensor) -> torch.Tensor:
        return found.marginal(features @ values[:-1], values[-1:])[0]

    optimum = torch.from_numpy(np.append(found.eta, found.ability_sd))
    information = -torch.autograd.functional.hessian(loglik, optimum).numpy()
    variance = np.diag(np.linalg.pinv(information))[:-1]
    return np.sqrt(np.where(variance > 0, variance, np.nan))


def _rasch_difficulties(values: Array, sd: float, b: Array) -> Array:
    """Return rough difficulties of a resample, from those of all persons."""
    responses = uncompressed(values, pd.RangeIndex(len(values)))
    intercept = -torch.from_numpy(b.copy())
    design = Design(True, torch.zeros(len(b), dtype=torch.bool), {})
    em = EM(responses, design, Settings(BOOT_TOLERANCE, MAX_ITERATIONS))
    first = Parameters(torch.full_like(intercept, sd), intercept, torch.zeros_like(intercept))
    return -squarem(em, first, BOOT_TOLERANCE)[0].intercept.numpy()


def random_effects(y: Array, variance: Array, x: Array) -> tuple[Array, Array, float]:
    """Regress y, whose errors have known variances, on x, with a residual variance tau^2.

    Returns coefficients, standard errors and tau^2 by restricted maximum likelihood, at least 0
    (Raudenbush 2009, equation 16.17).
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
    optimum = scipy.optimize.minimize_scalar(
        negative, bounds=(least, 2 * largest), method="bounded", options={"xatol": least}
    )
    tau2 = float(optimum.x) if negative(least) > optimum.fun else 0.0
    beta, inverse, _ = weighted(max(tau2, least))
    return beta, np.sqrt(np.diag(inverse)), tau2


def explained_variance(y: Array, variance: Array, x: Array) -> float:
    """Return the explained share of the variance of true difficulties; NaN where there is none."""
    if len(y) <= x.shape[1]:
        return 1.0
    total = random_effects(y, variance, x[:, :1])[2]
    return 1 - random_effects(y, variance, x)[2] / total if total > 0 else math.nan


def _resample(
    values: Array, x: Array, rasch: IRTFit, n_boot: int, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return the share in resamples of persons and items, and the mean number of items lost."""
    draws = np.full(n_boot, np.nan)
    n_lost = 0
    n_persons, n_items = values.shape
    for number in range(n_boot):
        columns = np.asarray(rng.integers(n_items, size=n_items))
        drawn = values[rng.integers(n_persons, size=n_persons)]
        varied = ((drawn[:, columns] == 1).any(axis=0)) & ((drawn[:, columns] == 0).any(axis=0))
        n_lost += int((~varied).sum())
        columns = columns[varied]
        features = x[columns]
        if len(columns) <= x.shape[1] or np.linalg.matrix_rank(features) < x.shape[1]:
            continue
        estimates = rasch.items.iloc[columns]
        # Resampled difficulties vary about the estimates as those do about the truth: the error
        # variance doubles.
        b = _rasch_difficulties(drawn[:, columns], rasch.ability_sd, estimates["b"].to_numpy())
        variance = 2 * estimates["se_b"].to_numpy() ** 2
        draws[number] = explained_variance(b, variance, features)
    return draws, n_lost / n_boot if n_boot else math.nan


def _interval(estimate: float, draws: Array, level: float = 0.95) -> Interval:
    """Return the bias-corrected percentile interval (Efron 1987, with a = 0)."""
    kept = draws[~np.isnan(draws)]
    n_undefined = len(draws) - len(kept)
    if not len(kept) or math.isnan(estimate):
        return Interval(float(estimate), math.nan, math.nan, level, len(draws), n_undefined)
    below = np.clip((kept < estimate).mean(), 0.5 / len(kept), 1 - 0.5 / len(kept))
    z = scipy.stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(kept, scipy.stats.norm.cdf(2 * scipy.stats.norm.ppf(below) + z))
    return Interval(float(estimate), float(low), float(high), level, len(draws), n_undefined)
