"""The Gaussian additive model of reading times: fit one, natively or by another program, with one result type."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError
from psychlm.reading_times import formula as formulas
from psychlm.reading_times.bases import first_smoothing
from psychlm.reading_times.layout import (
    Layout,
    build,
    check_collinear,
    check_predictors,
    check_response,
)
from psychlm.reading_times.reml import TOLERANCE, Method, Moments, Solution, solve
from psychlm.reading_times.result import GAMFit, coefficient_table

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

    Parameters
    ----------
    readings : DataFrame
        One row per reading (or per word, for means over people) with the response and every predictor. Rows without
        a response are left out and counted; a predictor must have no gaps.
    formula : str
        In mgcv's words, see :mod:`psychlm.reading_times.formula`.
    backend : {"native", "mgcv", "pygam"}
        Ours; R's mgcv (any formula it understands); or pygam, which has no random effects and no REML: it warns of
        what it leaves out.
    method : {"REML", "ML"}
        How smoothing is chosen.
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU where there is one (native only).
    discrete : bool
        ``bam(discrete=TRUE)`` rather than ``gam`` (mgcv only).
    tolerance : float
        When smoothing counts as optimal: mgcv's ``conv.tol``, a share of the criterion. With its default a smooth that
        would best be a straight line keeps some wiggle (a few hundredths of a degree of freedom); 1e-9 removes it.

    Raises
    ------
    FormulaError, FrameError
        If the formula or the frame cannot be used.
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
    parsed = formulas.parse(formula)
    if backend == "pygam":
        from psychlm.reading_times import splines

        check_predictors(parsed, complete)
        return splines.fit(complete, parsed, n_missing=n_missing)
    return _native(complete, parsed, method, torch_device(device), tolerance, n_missing)


def torch_device(device: str) -> torch.device:
    """Return the device that a name stands for; "auto" is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _native(
    data: pd.DataFrame,
    formula: formulas.Formula,
    method: Method,
    device: torch.device,
    tolerance: float,
    n_missing: int,
) -> GAMFit:
    layout = build(formula, data)
    y = data[formula.response].to_numpy(np.float64)
    matrix = layout.matrix(data)
    centre, scale = matrix.mean(axis=0), matrix.std(axis=0)
    centre[~layout.centred], scale[scale == 0] = 0, 1
    matrix -= centre
    matrix /= scale
    free = layout.penalties.sum(axis=0) == 0
    if len(y) <= free.sum():
        raise FrameError(
            f"{len(y)} rows are too few for {int(free.sum())} unpenalised coefficients; drop some terms"
        )
    x, level = torch.from_numpy(matrix).to(device), float(y.mean())
    centred = torch.from_numpy(y - level).to(device)
    xx = x.T @ x
    check_collinear((xx / len(y)).cpu().numpy(), layout.names, free)
    ones = torch.ones(1, dtype=torch.float64, device=device)
    moments = Moments(xx[None], (x.T @ centred)[None], (centred @ centred) * ones, len(y) * ones)
    penalties = torch.from_numpy(layout.penalties / scale**2).to(device)
    covariance = (xx / len(y)).cpu().numpy() * np.outer(scale, scale)
    start = torch.from_numpy(first_smoothing(layout.diagonals(centre, covariance), len(y))).to(
        device
    )
    solution = solve(moments, penalties, start, method=method, tolerance=tolerance)
    return _result(layout, solution, centre, scale, level, method, n_missing)


def _result(
    layout: Layout,
    solution: Solution,
    centre: np.ndarray,
    scale: np.ndarray,
    level: float,
    method: str,
    n_missing: int,
) -> GAMFit:
    """Turn a solution in centred, scaled columns into estimates for the columns as R has them."""

    def first(values: Tensor) -> np.ndarray:
        return values[0].cpu().numpy()

    variance, edf = float(solution.scale), first(solution.edf)
    covariance = first(solution.inverse) * variance / np.outer(scale, scale)
    slopes = first(solution.beta) / scale
    # Smooths are centred in R as here; linear terms are not, so the intercept takes up their means.
    spans = layout.slices()
    at_zero = np.zeros(len(edf))
    at_zero[0] = 1
    for term in layout.linear:
        at_zero[spans[term.label]] = -centre[spans[term.label]]
    linear = [i for term in layout.linear for i in range(*spans[term.label].indices(len(edf)))]
    estimate = np.r_[level + at_zero @ slopes, slopes[linear]]
    error = np.sqrt(np.r_[at_zero @ covariance @ at_zero, np.diag(covariance)[linear]])
    n = int(solution.n)

    def predict(data: pd.DataFrame) -> np.ndarray:
        check_predictors_present(layout, data)
        return level + (layout.matrix(data) - centre) @ slopes

    return GAMFit(
        formula=layout.formula.text,
        backend="native",
        method=method,
        loglik=float(solution.loglik),
        edf=float(edf.sum()),
        coefficients=coefficient_table(
            ["(Intercept)", *(layout.names[i] for i in linear)], estimate, error, n - edf.sum()
        ),
        smooths=pd.DataFrame(
            {"edf": [edf[spans[smooth.label]].sum() for smooth in layout.formula.smooths]},
            index=pd.Index([smooth.label for smooth in layout.formula.smooths], name="smooth"),
        ),
        scale=variance,
        n=n,
        n_missing=n_missing,
        converged=bool(solution.converged.all()),
        _predict=predict,
    )


def check_predictors_present(layout: Layout, data: pd.DataFrame) -> None:
    """Raise if new data lack a predictor or have gaps in one."""
    absent = [name for name in layout.formula.variables if name not in data.columns]
    gaps = [
        name for name in layout.formula.variables if name not in absent and data[name].isna().any()
    ]
    if absent or gaps:
        raise FrameError(
            f"cannot predict: predictors {absent} are no columns, and {gaps} have gaps; fill or drop them"
        )
