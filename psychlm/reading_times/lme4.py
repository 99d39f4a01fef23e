"""The same mixed model in R's lme4, through rpy2: the reference for correlated random effects, and
what the native engine lacks: binomial outcomes, Satterthwaite's degrees of freedom, profiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.reading_times._result import GAMFit, say_empty_cells, smooth_table
from psychlm.reading_times.contrasts import Floats, is_number, require_columns
from psychlm.reading_times.mgcv import (
    Columns,
    RFit,
    RMissingError,
    fields_of,
    fit_in_r,
    in_r,
    named,
    r_function,
    variables_of,
)
from psychlm.reading_times.smooths import require_levels
from psychlm.reading_times.tests import DDF


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Lme4Fit(RFit):
    """A fit by lme4."""

    tested: Any  # lmerTest's object; None where R has no lmerTest

    def _by_lmertest(self) -> Any:
        """Return lmerTest's object, which has the degrees of freedom."""
        if self.tested is None:
            raise RMissingError(
                "degrees of freedom of backend='lme4' are lmerTest's, and R lacks it (Debian, "
                "Ubuntu: apt-get install r-cran-lmertest r-cran-pbkrtest); fit natively without R"
            )
        return self.tested

    def _predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        if se or (exclude and set(exclude) != set(self.random)):
            raise NotImplementedError(
                "lme4 predicts without standard errors, and leaves out all random effects "
                f"(exclude={list(self.random)}) or none; fit natively for the rest"
            )
        for name, levels in self.levels.items():
            require_levels(name, data[name], levels)
        return self._ask("predict", data, not exclude), None

    def _inference(self, ddf: DDF) -> tuple[Floats, Floats, Callable[[Floats], Floats]]:
        if ddf == "Kenward-Roger" and not self.is_mixed:
            raise ValueError("Kenward and Roger's method is for gaussian responses")
        found = self._ask("inference", ddf)

        def dof(contrasts: Floats) -> Floats:
            if not self.is_mixed:
                return np.full(len(contrasts), np.inf)
            with in_r() as robjects:
                rows = robjects.FloatVector(contrasts.T.ravel())
            return self._ask("dof", self._by_lmertest(), rows, contrasts.shape[1], ddf)

        return found["estimate"], found["covariance"], dof

    def _dof_method(self, ddf: DDF) -> str:
        return ddf if self.is_mixed else "infinite (z tests)"

    def _terms(self, ddf: DDF) -> pd.DataFrame:
        if not self.is_mixed:
            raise NotImplementedError(
                "F tests of terms are of gaussian responses; compare two fits with "
                "reading_times.anova(a, b)"
            )
        found = self._ask("anova", self._by_lmertest(), ddf)
        return pd.DataFrame(found["values"], found["names"], found["columns"])

    def _loglik_by_ml(self) -> float:
        return float(self._ask("loglik_by_ml")[0])

    def profile_intervals(self, level: float = 0.95) -> pd.DataFrame:
        """Return profile-likelihood intervals: ``low`` and ``high`` of each parameter."""
        found = self._ask("profile", level)
        return pd.DataFrame(found["values"], found["names"], ["low", "high"])


def fit(columns: Columns, formula: str, method: str, family: str, r_arguments: str) -> GAMFit:
    """Fit by ``lmer``, or by ``glmer`` where the family is not gaussian.

    p-values are of Satterthwaite's degrees of freedom where R has lmerTest, else of the normal
    distribution.
    """
    gaussian = family == "gaussian"
    data = columns.all_rows[columns.complete]
    with in_r():
        if not r_function("has_package")("lme4")[0]:
            raise RMissingError(
                "R is here, but its package lme4 is not; install it (Debian, Ubuntu: apt-get "
                "install r-cran-lme4 r-cran-lmertest)"
            )
        _, *variables = variables_of(formula)
        require_columns(variables, data)
        groups = variables_of(formula, "lme4_groups")
        call = f"glmer(model, data = data, family = {family}"
        if gaussian:
            call = f"lmer(model, data = data, REML = {str(method == 'REML').upper()}"
        r_fit, in_r_columns, used = fit_in_r("lme4", call, formula, columns, r_arguments, groups)
        part = named(r_function("lme4_result")(r_fit, gaussian, in_r_columns))

    fields = fields_of(part, np.array(part["dof"]), used)
    if not fields["converged"]:
        control = "lmerControl" if gaussian else "glmerControl"
        warnings.warn(
            'lme4 did not converge: search longer, by bobyqa alone, with r_arguments="control='
            f"{control}(optimizer='bobyqa', optCtrl=list(maxfun=1e5))\", scale the predictors, or "
            "leave out random slopes",
            RuntimeWarning,
            stacklevel=3,
        )

    # Standard deviations and correlations by label, as the native engine names them.
    deviations: dict[str, float] = {}
    correlations: dict[str, pd.DataFrame] = {}
    for bar in map(named, part["bars"]):
        group = str(bar["group"][0])
        names = [str(name) for name in bar["names"]]
        labels = [f"({name} | {group})" for name in names]
        deviations |= dict(zip(labels, bar["deviations"], strict=True))
        if len(names) > 1:
            table = np.array(bar["correlations"]).reshape(len(names), -1)
            label = f"({' + '.join(names)} | {group})"
            correlations[label] = pd.DataFrame(table, names, names)
    factors = [x for x in variables if x not in groups and not is_number(data[x])]
    empty_cells = tuple(str(name) for name in part["dropped"])
    say_empty_cells(empty_cells)
    components = deviations | ({"residual": fields["scale"] ** 0.5} if gaussian else {})
    return Lme4Fit(
        formula=formula,
        backend="lme4",
        method=method if gaussian else "ML",
        family=family,
        **fields,
        smooths=smooth_table({}),
        variance_components=pd.Series(components, name="std_dev"),
        correlations=correlations,
        singular=("lme4's isSingular",) if part["singular"][0] else (),
        is_mixed=gaussian,
        parts={},
        random=tuple(deviations),
        variables=variables,
        fixed_variables=variables_of(formula, "lme4_fixed"),
        empty_cells=empty_cells,
        r_object=r_fit,
        factors=[*groups, *columns.contrasts],
        levels={name: set(data[name].unique()) for name in factors},
        tested=part["tested"] if hasattr(part["tested"], "slotnames") else None,
    )
