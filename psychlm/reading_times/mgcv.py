"""The same model in R's mgcv, through rpy2: the reference that the native backend is held against.

R is started once, by the first call. Columns cross one by one as memory blocks (handing a whole frame to rpy2's pandas
converter takes fifty times as long), text as factors, booleans as logicals. R's warnings become Python's. This is the
only module that imports rpy2.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.reading_times.reml import TOLERANCE
from psychlm.reading_times.result import GAMFit, coefficient_table

INSTALL = (
    "install R with mgcv (Debian, Ubuntu: apt-get install r-base-core r-cran-mgcv; macOS: brew install r; conda: "
    "environment.yml has both), then: pip install 'psychlm[r]'. The native backend needs none of them"
)

_FIT = """
function(formula, data, method, discrete, tolerance) {
  heard <- character()
  listen <- function(w) { heard <<- c(heard, conditionMessage(w)); invokeRestart("muffleWarning") }
  model <- stats::as.formula(formula, env = globalenv())
  fit <- tryCatch(withCallingHandlers(
    if (discrete) mgcv::bam(model, data = data, method = "fREML", discrete = TRUE)
    else mgcv::gam(model, data = data, method = method,
                   control = mgcv::gam.control(newton = list(conv.tol = tolerance))),
    warning = listen), error = function(e) conditionMessage(e))
  if (is.character(fit)) return(list(refused = fit))
  linear <- seq_len(fit$nsdf)
  list(fit = fit, warnings = heard, loglik = as.numeric(stats::logLik(fit)), edf = sum(fit$edf), scale = fit$sig2,
       estimate = unname(stats::coef(fit)[linear]), error = sqrt(unname(diag(fit$Vp))[linear]),
       names = names(stats::coef(fit))[linear], labels = vapply(fit$smooth, function(s) s$label, ""),
       smooth_edf = vapply(fit$smooth, function(s) sum(fit$edf[s$first.para:s$last.para]), 0),
       converged = isTRUE(fit$converged) || isTRUE(fit$mgcv.conv) || identical(fit$outer.info$conv, "full convergence"))
}
"""
_PREDICT = "function(fit, data) as.numeric(stats::predict(fit, newdata = data))"
_TO_FACTOR = "function(codes, levels) structure(codes, levels = levels, class = 'factor')"
_VARIABLES = "function(formula) all.vars(stats::as.formula(formula))"


class RMissingError(RuntimeError):
    """R, mgcv or rpy2 is not here, or does not start; the message says how to install it."""


@cache
def _start() -> Any:
    """Start R, once, and check that it has mgcv; returns rpy2's robjects."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    try:
        import rpy2.robjects as robjects
    except Exception as error:  # rpy2 raises many kinds where R is absent or of the wrong version
        raise RMissingError(
            f"R cannot be started from Python ({type(error).__name__}: {error}); {INSTALL}"
        ) from error
    finally:
        # R's libraries stay R's: a Python started later from here would load its ssl against the wrong ones
        os.environ.pop("LD_LIBRARY_PATH", None)
        if libraries is not None:
            os.environ["LD_LIBRARY_PATH"] = libraries
    with robjects.conversion.localconverter(robjects.default_converter):
        if not robjects.r('nzchar(system.file(package = "mgcv"))')[0]:
            raise RMissingError(f"R is here, but its package mgcv is not; {INSTALL}")
    return robjects


@contextmanager
def _in_r() -> Iterator[Any]:
    """Hold R's lock and rpy2's conversion rules, which a plain thread does not have."""
    robjects = _start()
    from rpy2.rinterface_lib import openrlib

    with openrlib.rlock, robjects.conversion.localconverter(robjects.default_converter):
        yield robjects


@cache
def _function(code: str) -> Callable[..., Any]:
    return _start().r(code)


def version() -> dict[str, str]:
    """Return the versions of R and mgcv."""
    with _in_r() as robjects:
        found = robjects.r(
            'c(as.character(getRversion()), as.character(utils::packageVersion("mgcv")))'
        )
        return {"R": found[0], "mgcv": found[1]}


def to_r(data: pd.DataFrame, columns: list[str]) -> Any:
    """Hand columns to R as a data frame, one memory block each."""
    with _in_r() as robjects:
        from rpy2 import rinterface

        made: dict[str, Any] = {}
        for name in columns:
            values = data[name]
            if pd.api.types.is_bool_dtype(values):
                block = np.ascontiguousarray(values.to_numpy(), dtype=np.int32)
                made[name] = robjects.vectors.BoolVector(
                    rinterface.BoolSexpVector.from_memoryview(block.data)
                )
            elif pd.api.types.is_numeric_dtype(values):
                block = np.ascontiguousarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
                made[name] = robjects.vectors.FloatVector(
                    rinterface.FloatSexpVector.from_memoryview(block.data)
                )
            else:
                made[name] = _factor(values, robjects, rinterface)
        return robjects.DataFrame(made)


def _factor(values: pd.Series, robjects: Any, rinterface: Any) -> Any:
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.cat.remove_unused_categories()
        codes, levels = values.cat.codes.to_numpy(), values.cat.categories
    else:
        codes, levels = pd.factorize(values, sort=True)
    whole = np.where(codes < 0, np.iinfo(np.int32).min, codes + 1).astype(
        np.int32
    )  # R's NA is the smallest integer
    block = robjects.vectors.IntVector(rinterface.IntSexpVector.from_memoryview(whole.data))
    return _function(_TO_FACTOR)(block, robjects.StrVector([str(level) for level in levels]))


def fit(
    data: pd.DataFrame,
    formula: str,
    *,
    method: str = "REML",
    discrete: bool = False,
    tolerance: float = TOLERANCE,
    n_missing: int = 0,
) -> GAMFit:
    """Fit by ``gam``, or by ``bam(discrete=TRUE)`` with fREML.

    Raises
    ------
    RMissingError
        If R, mgcv or rpy2 is not installed.
    FrameError
        If the formula names columns that are not there, or R refuses the model; R's own words are in the message.

    Warns
    -----
    RuntimeWarning
        With each warning that R gave.
    """
    if discrete and method != "REML":
        raise ValueError(
            "bam(discrete=TRUE) knows REML only; choose method='REML' or discrete=False"
        )
    with _in_r():
        variables = list(_function(_VARIABLES)(formula))
        absent = [name for name in variables if name not in data.columns]
        if absent:
            raise FrameError(
                f"the formula names {absent}, which are no columns of the frame; it has {list(data.columns)}"
            )
        found = _function(_FIT)(formula, to_r(data, variables), method, discrete, tolerance)
        part = dict(zip(found.names, found, strict=True))
        if "refused" in part:
            raise FrameError(f"mgcv refused {formula!r}: {part['refused'][0]}")
        numbers = {name: float(part[name][0]) for name in ("loglik", "edf", "scale")}
        for message in part["warnings"]:
            warnings.warn(f"mgcv: {message}", RuntimeWarning, stacklevel=3)
        estimate, error = np.asarray(part["estimate"]), np.asarray(part["error"])
        table = coefficient_table(list(part["names"]), estimate, error, len(data) - numbers["edf"])
        labels = [str(label) for label in part["labels"]]
        smooths = pd.DataFrame(
            {"edf": np.asarray(part["smooth_edf"], dtype=np.float64)},
            index=pd.Index(labels, name="smooth"),
        )
        model, converged = part["fit"], bool(part["converged"][0])
    response = variables[0]

    def predict(new: pd.DataFrame) -> np.ndarray:
        with _in_r():
            return np.asarray(
                _function(_PREDICT)(
                    model, to_r(new, [name for name in variables if name != response])
                )
            )

    return GAMFit(
        formula=formula,
        backend="mgcv",
        method=method,
        coefficients=table,
        smooths=smooths,
        n=len(data),
        n_missing=n_missing,
        converged=converged,
        _predict=predict,
        **numbers,
    )
