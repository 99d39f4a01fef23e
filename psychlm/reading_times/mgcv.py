"""The same model in R's mgcv, through rpy2: the reference for the native backend.

R is started once, by the first call. Columns are passed one by one as memory blocks (rpy2's pandas
converter takes fifty times as long), text as factors, booleans as logicals. R's warnings become
Python's.
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
from psychlm.reading_times._result import (
    GAMFit,
    check_new_data,
    coefficient_tables,
    require_columns,
    smooth_table,
)
from psychlm.reading_times.reml import TOLERANCE
from psychlm.reading_times.smooths import require_levels, warn_of_numbers

INSTALL = (
    "install R with mgcv (Debian, Ubuntu: apt-get install r-base-core r-cran-mgcv; macOS: brew "
    "install r; conda: environment.yml has both), then: pip install 'psychlm[r]'. The native "
    "backend needs none of them"
)

_FIT = """
function(formula, data, method, discrete, tolerance) {
  messages <- character()
  collect <- function(w) {
    messages <<- c(messages, conditionMessage(w))
    invokeRestart("muffleWarning")
  }
  model <- stats::as.formula(formula, env = globalenv())
  fit <- tryCatch(withCallingHandlers(
    if (discrete) mgcv::bam(model, data = data, method = "fREML", discrete = TRUE)
    else mgcv::gam(model, data = data, method = method,
                   control = mgcv::gam.control(newton = list(conv.tol = tolerance))),
    warning = collect), error = function(e) conditionMessage(e))
  if (is.character(fit)) return(list(refused = fit))
  linear <- seq_len(fit$nsdf)
  list(fit = fit, warnings = messages, loglik = as.numeric(stats::logLik(fit)), edf = sum(fit$edf),
       scale = fit$sig2, names = names(stats::coef(fit))[linear],
       estimate = unname(stats::coef(fit)[linear]), covariance = unname(fit$Vp[linear, linear]),
       labels = vapply(fit$smooth, function(s) s$label, ""),
       smooth_edf = vapply(fit$smooth, function(s) sum(fit$edf[s$first.para:s$last.para]), 0),
       converged = isTRUE(fit$converged) || isTRUE(fit$mgcv.conv) ||
         identical(fit$outer.info$conv, "full convergence"))
}
"""
_PREDICT = "function(fit, data) as.numeric(stats::predict(fit, newdata = data))"
_PART = """
function(fit, data, label)
  as.numeric(stats::predict(fit, newdata = data, type = "terms", terms = label))
"""
_TO_FACTOR = "function(codes, levels) structure(codes, levels = levels, class = 'factor')"
_VARIABLES = "function(formula) all.vars(stats::as.formula(formula))"
# The variables of each random effect, preceded by its label, and those of all other terms.
_RANDOM = """
function(formula) {
  parts <- mgcv::interpret.gam(stats::as.formula(formula))
  random <- vapply(parts$smooth.spec, function(s) inherits(s, "re.smooth.spec"), TRUE)
  others <- lapply(parts$smooth.spec[!random], function(s) c(s$term, all.vars(str2lang(s$by))))
  list(random = lapply(parts$smooth.spec[random], function(s) c(s$label, s$term)),
       fixed = as.character(c(all.vars(parts$pf)[-1], unlist(others))))
}
"""


class RMissingError(RuntimeError):
    """R, mgcv or rpy2 is not here, or does not start; the message says how to install it."""


@cache
def _start() -> Any:
    """Start R, once, and check that it has mgcv; return rpy2's robjects."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    try:
        import rpy2.robjects as robjects
    except Exception as error:  # rpy2 raises many kinds where R is absent or of the wrong version
        raise RMissingError(
            f"R cannot be started from Python ({type(error).__name__}: {error}); {INSTALL}"
        ) from error
    finally:
        # R's libraries stay R's: a Python started later would load its ssl against the wrong ones
        os.environ.pop("LD_LIBRARY_PATH", None)
        if libraries is not None:
            os.environ["LD_LIBRARY_PATH"] = libraries
    with robjects.conversion.localconverter(robjects.default_converter):
        if not robjects.r('nzchar(system.file(package = "mgcv"))')[0]:
            raise RMissingError(f"R is here, but its package mgcv is not; {INSTALL}")
    return robjects


@contextmanager
def in_r() -> Iterator[Any]:
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
    code = 'c(as.character(getRversion()), as.character(utils::packageVersion("mgcv")))'
    with in_r() as robjects:
        versions = robjects.r(code)
        return {"R": versions[0], "mgcv": versions[1]}


def to_r(data: pd.DataFrame, columns: list[str], factors: tuple[str, ...] = ()) -> Any:
    """Pass columns to R as a data frame, one memory block each; ``factors`` become factors even if
    numeric."""
    with in_r() as robjects:
        from rpy2 import rinterface

        vectors, blocks = robjects.vectors, {}
        for name in columns:
            values = data[name]
            if pd.api.types.is_bool_dtype(values):
                block = np.ascontiguousarray(values.to_numpy(), dtype=np.int32)
                vector = rinterface.BoolSexpVector.from_memoryview(block.data)
                blocks[name] = vectors.BoolVector(vector)
            elif pd.api.types.is_numeric_dtype(values) and name not in factors:
                block = np.ascontiguousarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
                vector = rinterface.FloatSexpVector.from_memoryview(block.data)
                blocks[name] = vectors.FloatVector(vector)
            else:
                if isinstance(values.dtype, pd.CategoricalDtype):
                    values = values.cat.remove_unused_categories()
                    codes, levels = values.cat.codes.to_numpy(), values.cat.categories
                else:
                    codes, levels = pd.factorize(values, sort=True)
                # R counts from 1, and its NA is the smallest integer
                missing = np.iinfo(np.int32).min
                whole = np.where(codes < 0, missing, codes + 1).astype(np.int32)
                vector = vectors.IntVector(rinterface.IntSexpVector.from_memoryview(whole.data))
                names = vectors.StrVector([str(level) for level in levels])
                blocks[name] = _function(_TO_FACTOR)(vector, names)
        return robjects.DataFrame(blocks)


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

    As in the native backend, a random effect has a grouping factor even if its ids are numbers, and
    predictions for its unseen levels have the mean effect.

    Raises
    ------
    RMissingError
        If R, mgcv or rpy2 is not installed.
    FrameError
        If the formula names columns that are not there, or R refuses the model; R's message is
        included.

    Warns
    -----
    RuntimeWarning
        With each warning that R gave.
    """
    if discrete and method != "REML":
        raise ValueError("bam(discrete=TRUE) has REML only; choose method='REML' or discrete=False")
    with in_r():
        response, *variables = list(_function(_VARIABLES)(formula))
        require_columns([response, *variables], data)

        # Factors are all columns that are no numbers, and one variable of each random effect.
        numeric = {
            name
            for name in variables
            if pd.api.types.is_numeric_dtype(data[name])
            and not pd.api.types.is_bool_dtype(data[name])
        }
        random, fixed = _function(_RANDOM)(formula)
        effects = [(str(label), [str(name) for name in names]) for label, *names in random]
        labelled = tuple(names[0] for _, names in effects if numeric.issuperset(names))
        for name in labelled:
            warn_of_numbers(name, data[name].nunique(), stacklevel=4)
        factors = [name for name in variables if name not in numeric or name in labelled]
        levels = {name: set(data[name].unique()) for name in factors}
        in_fixed_terms = [name for name in map(str, fixed) if name in levels]

        # The fit, and its statistics.
        columns = to_r(data, [response, *variables], labelled)
        result = _function(_FIT)(formula, columns, method, discrete, tolerance)
        part = dict(zip(result.names, result, strict=True))
        if "refused" in part:
            raise FrameError(f"mgcv refused {formula!r}: {part['refused'][0]}")
        for message in part["warnings"]:
            warnings.warn(f"mgcv: {message}", RuntimeWarning, stacklevel=3)
        numbers = {name: float(part[name][0]) for name in ("loglik", "edf", "scale")}
        estimate = np.asarray(part["estimate"])
        covariance = np.asarray(part["covariance"]).reshape(len(estimate), -1)
        dof = len(data) - numbers["edf"]
        tables = coefficient_tables(list(part["names"]), estimate, covariance, dof)
        labels = [str(label) for label in part["labels"]]
        smooths = smooth_table(dict(zip(labels, np.asarray(part["smooth_edf"]), strict=True)))
        model, converged = part["fit"], bool(part["converged"][0])

    def predict(new: pd.DataFrame) -> np.ndarray:
        check_new_data(new, tuple(variables))
        for name in in_fixed_terms:
            require_levels(name, new[name], levels[name])
        # An unseen level of a random effect is replaced by a known one, whose effect is subtracted.
        unseen = {name: ~new[name].isin(known).to_numpy() for name, known in levels.items()}
        known = {name: new[name].mask(unseen[name], next(iter(levels[name]))) for name in levels}
        with in_r():
            frame = to_r(new.assign(**known), variables, labelled)
            values = np.array(_function(_PREDICT)(model, frame))
            for label, names in effects:
                rows = np.any([unseen[name] for name in names if name in unseen], axis=0)
                if rows.any():
                    values[rows] -= np.asarray(_function(_PART)(model, frame, label))[rows]
            return values

    return GAMFit(
        formula=formula,
        backend="mgcv",
        method=method,
        **tables,
        smooths=smooths,
        n=len(data),
        n_missing=n_missing,
        converged=converged,
        _predict=predict,
        **numbers,
    )
