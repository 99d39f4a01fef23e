"""Gaussian additive models of reading times: one fit, natively or by another program, one
result."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import torch
from scipy.linalg import block_diag

from psychlm.device import torch_device
from psychlm.frames import FrameError
from psychlm.reading_times._result import GAMFit, check_new_data, coefficient_tables, smooth_table
from psychlm.reading_times.formula import Formula, parse
from psychlm.reading_times.model_matrix import (
    build_matrix,
    check_collinear,
    check_predictors,
    check_response,
    group_random_effects,
)
from psychlm.reading_times.reml import TOLERANCE, Method, Moments, solve
from psychlm.reading_times.smooths import start_smoothing

Backend = Literal["native", "mgcv", "pygam"]


def fit(
    readings: pd.DataFrame,
    formula: str,
    *,
    backend: Backend = "native",
    method: Method = "REML",
    device: str = "auto",
    discrete: bool = False,
    tolerance: float = TOLERANCE,
) -> GAMFit:
    """Fit a Gaussian additive model to reading times.

    The native backend regresses on centred and scaled columns (x - m) / c by
    :func:`psychlm.reading_times.reml.solve`. With coefficients g of those columns, the ones of x
    are b = g / c and have covariance scale A^-1 / cc'. Smooths are centred in R too; linear terms
    are not, so the intercept is mean(y) - sum of m b over linear terms.

    Parameters
    ----------
    readings : DataFrame
        One row per reading (or per word, for means over people) with the response and every
        predictor. Rows without a response are left out and counted; a predictor must have no gaps.
    formula : str
        In mgcv's notation, see :mod:`psychlm.reading_times.formula`.
    backend : {"native", "mgcv", "pygam"}
        This package's; R's mgcv (any formula it understands); or pygam, which has no random effects
        and no REML.
    method : {"REML", "ML"}
        How smoothing is chosen.
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU where there is one (native only).
    discrete : bool
        ``bam(discrete=TRUE)`` rather than ``gam`` (mgcv only).
    tolerance : float
        When smoothing counts as optimal: mgcv's ``conv.tol``, a share of the criterion. With its
        default a smooth that would best be a straight line keeps some wiggle (a few hundredths of a
        degree of freedom); 1e-9 removes it.

    Raises
    ------
    FormulaError, FrameError
        If the formula or the frame cannot be used.

    Examples
    --------
    >>> words = pd.DataFrame({"gaze_ms": [212.0, 248, 230, 270], "bits": [2.0, 6, 4, 8]})
    >>> fit(words, "gaze_ms ~ bits").coefficients["estimate"].round(6).to_dict()
    {'(Intercept)': 192.0, 'bits': 9.6}
    """
    if backend not in ("native", "mgcv", "pygam"):
        raise ValueError(f"backend {backend!r} is unknown; choose 'native', 'mgcv' or 'pygam'")
    if method not in ("REML", "ML"):
        raise ValueError(f"method {method!r} is unknown; choose 'REML' or 'ML'")
    response = formula.partition("~")[0].strip().strip("`")
    check_response(readings, response)
    complete = readings.loc[readings[response].notna()]
    n_missing = len(readings) - len(complete)
    if backend == "mgcv":
        from psychlm.reading_times import mgcv

        return mgcv.fit(
            complete,
            formula,
            method=method,
            discrete=discrete,
            tolerance=tolerance,
            n_missing=n_missing,
        )
    parsed = parse(formula)
    check_predictors(parsed, complete)
    if backend == "pygam":
        from psychlm.reading_times import pygam

        return pygam.fit(complete, parsed, n_missing=n_missing)

    return _fit_native(complete, parsed, method, device, tolerance, n_missing)


def _fit_native(
    data: pd.DataFrame,
    formula: Formula,
    method: Method,
    device: str,
    tolerance: float,
    n_missing: int,
) -> GAMFit:
    """Fit by this package's REML or ML to rows without gaps."""
    # The dense columns, centred and scaled; the random effects of one factor stay apart.
    dense_formula, grouped = group_random_effects(formula, data)
    matrix = build_matrix(dense_formula, data)
    columns, centre, scale = matrix.standardise(data)
    y = data[formula.response].to_numpy(np.float64)
    n, mean = len(y), float(y.mean())
    free = matrix.penalties.sum(axis=0) == 0
    if n <= free.sum():
        raise FrameError(
            f"{n} rows are too few for {int(free.sum())} unpenalised coefficients; drop some terms"
        )

    # Cross-products.
    where = torch_device(device)
    of_groups = grouped.moments(data, columns, y - mean)
    x, centred, *group_sums = (
        torch.from_numpy(array).to(where) for array in (columns, y - mean, *of_groups)
    )
    xx, ones = x.T @ x, torch.ones(1, dtype=torch.float64, device=where)
    correlation = (xx / n).cpu().numpy()
    check_collinear(correlation, matrix.names, free)
    moments = Moments(
        xx[None],
        (x.T @ centred)[None],
        (centred @ centred) * ones,
        n * ones,
        *(sums[None] for sums in group_sums),
    )

    # Smoothing by REML or ML, from mgcv's first lambda, and the coefficients. A random effect has
    # one penalty; those of the grouped ones come last.
    diagonals = matrix.diagonals(centre, correlation * np.outer(scale, scale))
    diagonals += grouped.diagonals(of_groups[0], n)
    start = torch.from_numpy(start_smoothing(diagonals, n)).to(where)
    penalties = block_diag(matrix.penalties / scale**2, *grouped.penalties)
    solution = solve(
        moments, torch.from_numpy(penalties).to(where), start, method=method, tolerance=tolerance
    )
    solved = (solution.beta, solution.group_beta, solution.edf, solution.inverse)
    beta, group_beta, edf, inverse = (values[0].cpu().numpy() for values in solved)
    variance, slopes = float(solution.scale), beta / scale
    covariance = inverse * variance / np.outer(scale, scale)

    # Estimates of the linear terms as R has them; the intercept is a combination of all.
    q, spans = len(slopes), matrix.slices
    linear = [i for term in matrix.linear for i in range(q)[spans[term.label]]]
    chosen = np.eye(q)[[0, *linear]]
    chosen[0, linear] = -centre[linear]
    estimate = chosen @ slopes
    estimate[0] += mean

    def predict(new: pd.DataFrame) -> np.ndarray:
        check_new_data(new, formula.variables)
        level, z = grouped.rows(new)
        # The last row is for levels that were not in the fit.
        effects = np.vstack([group_beta, np.zeros((1, z.shape[1]))])[level]
        return mean + (matrix.evaluate(new) - centre) @ slopes + (z * effects).sum(axis=1)

    names = ["(Intercept)", *(matrix.names[i] for i in linear)]
    spans = spans | {name: slice(q + s.start, q + s.stop) for name, s in grouped.slices.items()}
    return GAMFit(
        formula=formula.text,
        backend="native",
        method=method,
        loglik=float(solution.loglik),
        edf=float(edf.sum()),
        **coefficient_tables(names, estimate, chosen @ covariance @ chosen.T, n - edf.sum()),
        smooths=smooth_table({s.label: edf[spans[s.label]].sum() for s in formula.smooths}),
        scale=variance,
        n=n,
        n_missing=n_missing,
        converged=bool(solution.converged.all()),
        _predict=predict,
    )
