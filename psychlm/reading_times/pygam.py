"""The nearest model that pygam has: P-splines smoothed by generalised cross-validation, without
random effects."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.reading_times._result import GAMFit, Part, coefficient_tables, smooth_table
from psychlm.reading_times.contrasts import Floats, FormulaError
from psychlm.reading_times.formula import Formula

SMOOTHING = np.logspace(-3, 4, 8)  # one penalty for all terms is chosen from these
UNPENALISED = 1e-9


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class PygamFit(GAMFit):
    """A fit by pygam, which predicts."""

    model: Any

    def _predict(self, data: pd.DataFrame, exclude: Sequence[str], se: bool) -> tuple[Floats, None]:
        if se or exclude:
            self._absent()
        return self.model.predict(data[self.variables].to_numpy(np.float64)), None


def fit(data: pd.DataFrame, formula: Formula) -> GAMFit:
    """Fit the parts of a formula that pygam has; a warning says what it leaves out."""
    from pygam import LinearGAM, l, s, te

    if formula.bars or formula.offsets or any(smooth.kind == "ti" for smooth in formula.smooths):
        raise FormulaError(
            f"{formula.text!r}: pygam has neither offset() nor ti(), and random effects in "
            'mgcv\'s notation alone, s(subject, bs="re"), are read and left out; fit natively'
        )
    smooths = [smooth for smooth in formula.smooths if smooth.basis != "re"]
    left_out = [smooth.label for smooth in formula.smooths if smooth.basis == "re"]
    warnings.warn(
        "pygam has B-splines with one penalty for all terms, chosen by GCV, not mgcv's bases and "
        f"REML; it has no random effects, so {left_out} are left out",
        RuntimeWarning,
        stacklevel=3,
    )
    terms = (*formula.linear, *(smooth.variables for smooth in smooths))
    names = list(dict.fromkeys(name for term in terms for name in term))
    unfit = [":".join(term) for term in formula.linear if len(term) > 1]
    unfit += [smooth.label for smooth in smooths if smooth.by]
    unfit += [name for name in names if not pd.api.types.is_numeric_dtype(data[name])]
    if unfit or not names:
        raise FrameError(
            f"pygam has no interactions and needs numbers, so that {unfit or 'nothing'} cannot be "
            "entered; make columns of numbers first"
        )

    # One term for each linear term and smooth, in this order.
    n_linear = len(formula.linear)
    parts: list[Any] = [l(names.index(term[0])) for term in formula.linear]
    for smooth in smooths:
        index = [names.index(name) for name in smooth.variables]
        one = len(index) == 1
        parts.append(s(*index, n_splines=smooth.k[0]) if one else te(*index, n_splines=[*smooth.k]))

    # The fit of least generalised cross-validation score among some penalties.
    y = data[formula.response].to_numpy(np.float64)
    matrix = data[names].to_numpy(np.float64)
    n_penalties = sum(len(smooth.variables) for smooth in smooths)
    fits = []
    for penalty in (SMOOTHING if smooths else SMOOTHING[:1]).tolist():
        penalties = [UNPENALISED] * n_linear + [penalty] * n_penalties
        fits.append(LinearGAM(reduce(add, parts), lam=penalties).fit(matrix, y))
    model = min(fits, key=lambda candidate: candidate.statistics_["GCV"])

    # Its statistics: pygam puts the intercept last, and its residual sum of squares gives loglik.
    n = len(y)
    edf = float(model.statistics_["edof"])
    residuals = pd.Series(y - model.predict(matrix), data.index, name="residual")
    rss = float((residuals**2).sum())
    index = [len(model.coef_) - 1, *range(n_linear)]
    per_coefficient = model.statistics_["edof_per_coef"]
    edf_of = {
        smooth.label: per_coefficient[model.terms.get_coef_indices(n_linear + i)].sum()
        for i, smooth in enumerate(smooths)
    }
    estimate = model.coef_[index]
    covariance = model.statistics_["cov"][np.ix_(index, index)]
    labels = ["(Intercept)", *(term[0] for term in formula.linear)]
    return PygamFit(
        formula=formula.text,
        backend="pygam",
        method="GCV",
        loglik=float(-n / 2 * (np.log(2 * np.pi * rss / n) + 1)),
        edf=edf,
        **coefficient_tables(labels, estimate, covariance, n - edf),
        smooths=smooth_table(edf_of),
        scale=rss / (n - edf),
        n=n,
        converged=True,
        data=data[[formula.response, *names]],
        residuals=residuals,
        parts=dict.fromkeys(labels[1:], Part(())),
        variables=names,
        model=model,
    )
