"""Additive models of reading times: one fit, natively or by another program, one result."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pandas as pd

from psychlm.device import Device
from psychlm.frames import FrameError, plain
from psychlm.reading_times._result import GAMFit, is_ordered, require_columns
from psychlm.reading_times.formula import Formula, FormulaError, State, parse
from psychlm.reading_times.model_matrix import check_predictors, check_response, place_bars
from psychlm.reading_times.reml import TOLERANCE, Method

Backend = Literal["auto", "native", "mgcv", "lme4", "pygam"]


def fit(
    readings: pd.DataFrame,
    formula: str,
    *,
    backend: Backend = "auto",
    method: Method = "REML",
    device: Device = "auto",
    weights: str | None = None,
    family: str = "gaussian",
    discrete: bool = False,
    r_arguments: str = "",
    tolerance: float = TOLERANCE,
) -> GAMFit:
    """Fit an additive model to reading times.

    The native backend, for Gaussian responses, regresses on centred and scaled columns (x - m) / c
    by :func:`psychlm.reading_times.reml.solve`. With coefficients g of those columns, the ones of x
    are b = g / c and have covariance scale A^-1 / cc'. Smooths are centred in R too; linear terms
    are not, so the intercept is mean(y) - sum of m b over linear terms.

    Parameters
    ----------
    readings : DataFrame
        One row per reading (or per word, for means over people) with the response and every
        predictor. Rows without a response are left out and counted; a predictor must have no gaps.
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
    family : str
        ``"gaussian"``; with mgcv or lme4 any of R's families as R writes it, a name and values:
        ``"Gamma(link='log')"``, ``"scat()"``.
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
    parsed = parse(formula) if backend in ("native", "pygam") else None
    if backend == "auto":
        backend, parsed = _choose_backend(formula, of_r)
    if backend not in ("mgcv", "lme4") and of_r:
        raise ValueError(
            f"family, discrete and r_arguments are R's, and backend={backend!r} has none of "
            "them; set backend='mgcv' or 'lme4'"
        )
    readings = plain(readings)
    if weights is not None:
        readings = _check_weights(readings, weights, backend)
    if parsed is None:
        from psychlm.reading_times import lme4, mgcv

        response = mgcv.variables_of(formula)[0]
        check_response(readings, response)
        complete = readings.loc[readings[response].notna()]
        if weights is not None:
            r_arguments = ", ".join(filter(None, [f"weights=`{weights}`", r_arguments]))
        if backend == "lme4":
            fitted = lme4.fit(complete, formula, method, family, r_arguments)
        else:
            fitted = mgcv.fit(complete, formula, method, family, r_arguments, discrete, tolerance)
    else:
        state = State()
        complete = _complete_rows(parsed, readings, state)
        parsed, complete = place_bars(parsed, complete)
        if backend == "pygam":
            refuse_extended_terms(parsed, "pygam")
            from psychlm.reading_times import pygam

            fitted = pygam.fit(complete, parsed)
        else:
            from psychlm.reading_times import native

            fitted = native.fit(complete, parsed, state, method, device, tolerance, weights)
    return replace(fitted, n_missing=len(readings) - len(complete))


def _complete_rows(parsed: Formula, readings: pd.DataFrame, state: State) -> pd.DataFrame:
    """Return the rows that have a response, with the columns of expressions, all checked."""
    measured = list(parsed.columns((parsed.response,)))
    for response in measured:
        check_response(readings, response)
    complete = parsed.compute(readings.loc[readings[measured].notna().all(axis=1)], state)
    if measured != [parsed.response]:
        check_response(complete, parsed.response)
    check_predictors(parsed, complete)
    return complete


def _check_weights(readings: pd.DataFrame, weights: str, backend: str) -> pd.DataFrame:
    """Return the readings with weights as numbers, which must be positive."""
    if backend == "pygam":
        raise ValueError("weights= is not passed on to pygam; fit natively or with backend='mgcv'")
    require_columns([weights], readings)
    values = pd.to_numeric(readings[weights], errors="coerce")
    wrong = ~(values.gt(0) & np.isfinite(values))
    if wrong.any():
        raise FrameError(
            f"the weights {weights!r} are no positive numbers in {int(wrong.sum())} of "
            f"{len(readings)} rows; leave those rows out"
        )
    return readings.assign(**{weights: values})


def _choose_backend(formula: str, of_r: bool) -> tuple[Backend, Formula | None]:
    """Return "native" and what it reads where it has the formula, else the package of R that has
    it, and say so."""
    reason: object = "another family, or arguments of R"
    try:
        parsed = parse(formula)
        if not of_r:
            return "native", parsed
        bars = bool(parsed.bars)
    except FormulaError as error:
        reason, bars = error, re.search(r"[^|]\|\|?[^|]", formula) is not None
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


def refuse_extended_terms(parsed: Formula, who: str) -> None:
    """Raise a :class:`FormulaError` if a formula has what only R and the native engine read."""
    if parsed.bars or parsed.offsets or any(smooth.kind == "ti" for smooth in parsed.smooths):
        raise FormulaError(
            f"{parsed.text!r}: {who} has neither offset() nor ti(), and reads random effects in "
            'mgcv\'s notation alone, s(subject, bs="re"); fit natively'
        )


def to_bambi(readings: pd.DataFrame, formula: str) -> tuple[str, pd.DataFrame]:
    """Return the formula and the data of a model for ``bambi.Model``, which samples its posterior.

    Random effects become ``(1|subject)`` and ``(0 + x|subject)``; smooths become Gaussian processes
    in ``hsgp`` with as many basis functions per variable as the smooth has, those with ``by`` a
    factor one per level; expressions become columns. bambi is installed apart: ``pip install
    bambi``.

    Examples
    --------
    >>> words = pd.DataFrame({"y": [1.0, 2, 4, 3], "x": [1.0, 2, 3, 4], "p": list("aabb")})
    >>> to_bambi(words, 'y ~ log(x) + s(x, k=4) + s(p, bs="re") + s(p, x, bs="re")')[0]
    'y ~ log_x + hsgp(x, m=4, c=1.5) + (1|p) + (0 + x|p)'
    """
    parsed = parse(formula)
    refuse_extended_terms(parsed, "to_bambi")
    data = _complete_rows(parsed, readings, State())
    used = (parsed.response, *parsed.variables)
    short = {name: re.sub(r"\W+", "_", name).strip("_") for name in used}
    if len({*short.values()}) < len(short):
        raise FormulaError(f"{formula!r}: two variables have one name in bambi, {short}")
    is_factor = {name: not pd.api.types.is_numeric_dtype(data[name]) for name in used}
    terms = [":".join(short[name] for name in term) for term in parsed.linear]
    for smooth in parsed.smooths:
        names = [short[name] for name in smooth.variables]
        if smooth.basis == "re":
            groups = [n for n in smooth.variables if is_factor[n]] or [smooth.variables[0]]
            slopes = [short[n] for n in smooth.variables if n not in groups]
            inner = f"0 + {':'.join(slopes)}" if slopes else "1"
            terms.append(f"({inner}|{':'.join(short[name] for name in groups)})")
        elif smooth.by and (not is_factor[smooth.by] or is_ordered(data[smooth.by])):
            raise FormulaError(
                f"{smooth.label}: bambi has a smooth for each level, none that a number multiplies "
                "and no differences of ordered levels; make the factor text"
            )
        else:
            by = f", by={short[smooth.by]}" if smooth.by else ""
            terms.append(f"hsgp({', '.join(names)}{by}, m={max(smooth.k)}, c=1.5)")
    right = " + ".join(terms) or 1
    return f"{short[parsed.response]} ~ {right}", data[[*short]].rename(columns=short)
