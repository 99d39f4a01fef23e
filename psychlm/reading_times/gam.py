"""Additive models of reading times: one fit, natively or by another program, one result."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from psychlm.device import Device
from psychlm.frames import FrameError, plain
from psychlm.reading_times._result import GAMFit
from psychlm.reading_times.contrasts import (
    Contrast,
    FormulaError,
    read_contrast,
    require_columns,
    take_contrasts,
    with_factors,
)
from psychlm.reading_times.formula import Formula, parse
from psychlm.reading_times.model_matrix import check_predictors, check_response, place_bars
from psychlm.reading_times.reml import TOLERANCE, Method
from psychlm.reading_times.smooths import factor_levels

Backend = Literal["auto", "native", "mgcv", "lme4", "pygam"]


def fit(
    readings: pd.DataFrame,
    formula: str,
    *,
    backend: Backend = "auto",
    method: Method = "REML",
    device: Device = "auto",
    weights: str | None = None,
    contrasts: Mapping[str, Any] | None = None,
    family: str = "gaussian",
    discrete: bool = False,
    r_arguments: str = "",
    tolerance: float = TOLERANCE,
) -> GAMFit:
    """Fit an additive model to reading times.

    Parameters
    ----------
    readings : DataFrame
        One row per reading (or per word, for means over people) with the response and every
        predictor. Rows that lack one of them are left out, as R leaves them out, and counted by
        variable; where they lack a predictor a warning says so.
    formula : str
        In the notation of mgcv and lme4, see :mod:`psychlm.reading_times.formula`.
    backend : {"auto", "native", "mgcv", "lme4", "pygam"}
        This package's; R's mgcv or lme4, with any formula and family that they have; or pygam,
        which has no random effects and no REML. "auto" takes the native one where it has the
        formula and the family, else R's lme4 (for ``(1 | g)``) or mgcv, with a warning.
    method : {"REML", "ML"}
        How smoothing is chosen.
    device : str or torch.device
        See :func:`psychlm.device.torch_device` (native only).
    weights : str, optional
        The column of weights: the residual variance of a row is ``scale`` by its weight (the number
        of readings behind a mean). Residuals are then multiplied by the roots of the weights.
    contrasts : dict, optional
        Contrasts of factors, by name: ``"treatment"``, ``"sum"``, ``"helmert"``, ``"poly"``,
        ``"sdif"`` (successive differences), or a matrix with a row for each level and one column
        less (of a DataFrame the index names levels, the columns coefficients). In the formula they
        are ``C(g, Sum)``. All backends read both.
    family : str
        ``"gaussian"``; with mgcv or lme4 any of R's families as R writes it, ``"scat()"``,
        ``"Gamma(link='log')"``, which R evaluates as its own code.
    discrete : bool
        ``bam(discrete=TRUE)`` rather than ``gam`` (mgcv only).
    r_arguments : str
        More arguments of ``gam`` in R's notation, in which columns of the readings are variables
        (mgcv and lme4): ``"subset=old, select=TRUE"``. With ``rho``, ``bam`` is called, for
        autocorrelated residuals. R evaluates them, and the formula, as its own code.
    tolerance : float
        When smoothing counts as optimal: mgcv's ``conv.tol``, a share of the criterion. With its
        default a smooth that would best be a straight line keeps some wiggle (a few hundredths of a
        degree of freedom); 1e-9 removes it.

    Examples
    --------
    >>> words = pd.DataFrame({"gaze_ms": [212.0, 248, 230, 270], "bits": [2.0, 6, 4, 8]})
    >>> fit(words, "gaze_ms ~ bits").coefficients["estimate"].round(6).to_dict()
    {'(Intercept)': 192.0, 'bits': 9.6}
    """
    for name, value, allowed in (
        ("backend", backend, get_args(Backend)),
        ("method", method, get_args(Method)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} {value!r} is unknown; choose one of {allowed}")
    of_r = family != "gaussian" or discrete or bool(r_arguments)
    given = {name: read_contrast(name, value) for name, value in (contrasts or {}).items()}
    in_r, own_contrasts = take_contrasts(formula)
    parsed = parse(formula, given) if backend in ("native", "pygam") else None
    if backend == "auto":
        backend, parsed = _choose_backend(formula, of_r, given)
    if backend not in ("mgcv", "lme4") and of_r:
        raise ValueError(
            f"family, discrete and r_arguments are R's, and backend={backend!r} has none of "
            "them; set backend='mgcv' or 'lme4'"
        )
    if not isinstance(readings, pd.DataFrame):
        raise FrameError(f"readings are a {type(readings).__name__}, not a DataFrame of rows")
    readings = plain(readings)
    if weights is not None:
        if backend == "pygam":
            raise ValueError("weights= is not passed on to pygam; fit natively, or by 'mgcv'")
        if not isinstance(weights, str):
            raise FrameError("weights= names a column: readings.assign(w=...), weights='w'")
        require_columns([weights], readings)
        values = pd.to_numeric(readings[weights], errors="coerce")
        wrong = ~(values.gt(0) & np.isfinite(values))
        if wrong.any():
            raise FrameError(
                f"the weights {weights!r} are no positive numbers in {int(wrong.sum())} of "
                f"{len(readings)} rows; leave those rows out"
            )
        readings = readings.assign(**{weights: values})
    if parsed is None:
        from psychlm.reading_times import lme4, mgcv

        given |= own_contrasts
        if weights is not None:
            r_arguments = ", ".join(filter(None, [f"weights=`{weights}`", r_arguments]))
        used = mgcv.variables_of(in_r)
        of_arguments = mgcv.variables_of(r_arguments, "variables_of_arguments")
        used = list(dict.fromkeys([*used, *(name for name in of_arguments if name in readings)]))
        readings = with_factors(readings, given)
        check_response(readings, used[0])
        complete, missing = _complete_rows(readings, used, used[:1])
        for name in given:  # their levels are those of the complete rows
            present = factor_levels(readings[name][complete])
            readings = readings.assign(**{name: readings[name].cat.set_categories(present)})
        data = mgcv.Columns(readings[used], complete, given)
        if backend == "lme4":
            fitted = lme4.fit(data, in_r, method, family, r_arguments)
        else:
            fitted = mgcv.fit(data, in_r, method, family, r_arguments, discrete, tolerance)
    else:
        measured = parsed.columns((parsed.response,))
        used = list(dict.fromkeys((*measured, *parsed.columns(parsed.variables))))
        for name in measured:
            check_response(readings, name)
        complete, missing = _complete_rows(readings, used, measured)
        parsed = parsed.placed(readings)
        rows = parsed.compute(readings, complete)[complete]
        if measured != (parsed.response,):
            check_response(rows, parsed.response)
        check_predictors(parsed, rows)
        parsed, rows = place_bars(parsed, rows)
        if backend == "pygam":
            from psychlm.reading_times import pygam

            fitted = pygam.fit(rows, parsed)
        else:
            from psychlm.reading_times import native

            fitted = native.fit(rows, parsed, method, device, tolerance, weights)
    return replace(fitted, formula=formula, missing=missing)


def _complete_rows(
    readings: pd.DataFrame, used: Sequence[str], measured: Sequence[str]
) -> tuple[pd.Series, dict[str, int]]:
    """Return which rows have all variables, and how many lack each, those of the response first.

    A row that lacks several counts for the first of them, in the order of the columns of the
    readings, which is the same for all formulas and backends.
    """
    require_columns(used, readings)
    complete = pd.Series(True, index=readings.index)
    missing = {}
    in_order = [name for name in readings if name in used and name not in measured]
    for name in (*measured, *in_order):
        lacks = readings[name].isna() & complete
        if lacks.any():
            missing[name] = int(lacks.sum())
        complete &= ~lacks
    if not complete.any():
        raise FrameError(
            f"no row of {len(readings)} has all of {[*used]}; missing in rows: {missing}"
        )
    of_predictors = {name: n for name, n in missing.items() if name not in measured}
    if of_predictors:
        is_lagged = any(str(name).startswith("prev_") for name in of_predictors)
        lagged = " (a lagged predictor has no value at the first word of a text)" * is_lagged
        warnings.warn(
            f"rows without a predictor are left out, as R leaves them out, {of_predictors} of "
            f"{len(readings)}{lagged}; compare models on the same rows",
            RuntimeWarning,
            stacklevel=3,
        )
    return complete, missing


def _choose_backend(
    formula: str, of_r: bool, contrasts: Mapping[str, Contrast]
) -> tuple[Backend, Formula | None]:
    """Return "native" and what it reads where it has the formula, else the package of R that has
    it, and say so."""
    reason: object = "another family, or arguments of R"
    try:
        parsed = parse(formula, contrasts)
        if not of_r:
            return "native", parsed
        bars = bool(parsed.bars)
    except FormulaError as error:
        reason = error
        bars = re.search(r"[^|]\|\|?[^|]", formula) is not None
    from psychlm.reading_times import mgcv

    chosen: Backend = "lme4" if bars else "mgcv"
    try:
        mgcv.version()
    except mgcv.RMissingError as error:
        raise FormulaError(
            f"{reason}, and the native engine has gaussian responses only; {chosen} in R may fit "
            f"it, but: {error}"
        ) from None
    warnings.warn(f"fitted by R's {chosen}: {reason}", RuntimeWarning, stacklevel=3)
    return chosen, None
