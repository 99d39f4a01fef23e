"""The nearest model that pygam has: P-splines smoothed by generalised cross-validation, without random effects."""

from __future__ import annotations

import warnings
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.reading_times.formula import Formula, Smooth
from psychlm.reading_times.result import GAMFit, coefficient_table

SMOOTHING = np.logspace(-3, 4, 8)  # one penalty for all terms is chosen from these


def fit(data: pd.DataFrame, formula: Formula, *, n_missing: int = 0) -> GAMFit:
    """Fit the parts of a formula that pygam has.

    Raises
    ------
    FrameError
        If the formula has interactions or predictors that are no numbers, or nothing but random effects.

    Warns
    -----
    RuntimeWarning
        That smoothing is by GCV with one penalty for all terms, and which random effects are left out.
    """
    from pygam import LinearGAM, l, s, te

    left_out = [smooth.label for smooth in formula.smooths if smooth.basis == "re"]
    warnings.warn(
        "pygam has B-splines with one penalty for all terms, chosen by GCV, not mgcv's bases and REML"
        + (f"; it has no random effects, so {left_out} are left out" if left_out else ""),
        RuntimeWarning,
        stacklevel=3,
    )
    smooths = [smooth for smooth in formula.smooths if smooth.basis != "re"]
    names = _numeric(data, formula, smooths)
    column = {name: i for i, name in enumerate(names)}
    parts: list[Any] = [l(column[term[0]], lam=1e-9) for term in formula.linear]
    for smooth in smooths:
        where = [column[name] for name in smooth.variables]
        parts.append(
            s(where[0], n_splines=smooth.k[0])
            if smooth.kind == "s"
            else te(*where, n_splines=list(smooth.k))
        )
    y = data[formula.response].to_numpy(np.float64)
    n_linear = len(formula.linear)
    penalties = [np.r_[[1e-9] * n_linear, np.full(_n_penalties(smooths), lam)] for lam in SMOOTHING]
    models = [
        LinearGAM(reduce(add, parts), lam=list(lam))
        for lam in (penalties if smooths else penalties[:1])
    ]
    matrix = data[names].to_numpy(np.float64)
    model = min((m.fit(matrix, y) for m in models), key=lambda m: m.statistics_["GCV"])

    edf, rss = float(model.statistics_["edof"]), float(((y - model.predict(matrix)) ** 2).sum())
    labels = ["(Intercept)", *(term[0] for term in formula.linear)]
    index = [len(model.coef_) - 1, *range(n_linear)]  # pygam puts the intercept last
    return GAMFit(
        formula=formula.text,
        backend="pygam",
        method="GCV",
        n=len(y),
        n_missing=n_missing,
        converged=True,
        loglik=float(-len(y) / 2 * (np.log(2 * np.pi * rss / len(y)) + 1)),
        edf=edf,
        scale=rss / (len(y) - edf),
        coefficients=coefficient_table(
            labels, model.coef_[index], model.statistics_["se"][index], len(y) - edf
        ),
        smooths=_edf_by_smooth(model, smooths, n_linear),
        _predict=lambda new: model.predict(new[names].to_numpy(np.float64)),
    )


def _numeric(data: pd.DataFrame, formula: Formula, smooths: list[Smooth]) -> list[str]:
    """Return the predictors that pygam is given, once they are known to be numbers."""
    crossed = [":".join(term) for term in formula.linear if len(term) > 1]
    if crossed:
        raise FrameError(f"pygam has no interactions {crossed}; make columns of the products first")
    names = list(
        dict.fromkeys(
            name for term in (*formula.linear, *(x.variables for x in smooths)) for name in term
        )
    )
    text = [name for name in names if not pd.api.types.is_numeric_dtype(data[name])]
    if text or not names:
        raise FrameError(
            f"pygam needs numbers, and {text or 'nothing but random effects'} cannot be entered"
        )
    return names


def _n_penalties(smooths: list[Smooth]) -> int:
    return sum(len(smooth.variables) for smooth in smooths)


def _edf_by_smooth(model: Any, smooths: list[Smooth], n_linear: int) -> pd.DataFrame:
    per_coefficient = model.statistics_["edof_per_coef"]
    edf = [
        per_coefficient[model.terms.get_coef_indices(n_linear + i)].sum()
        for i in range(len(smooths))
    ]
    return pd.DataFrame(
        {"edf": edf}, index=pd.Index([smooth.label for smooth in smooths], name="smooth")
    )
