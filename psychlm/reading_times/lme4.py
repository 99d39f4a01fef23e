"""The same mixed model in R's lme4, through rpy2: the reference for correlated random effects, and
what the native engine lacks: binomial outcomes, Satterthwaite's degrees of freedom, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.reading_times._result import (
    Floats,
    GAMFit,
    Model,
    Part,
    coefficient_tables,
    is_number,
    require_columns,
    smooth_table,
)
from psychlm.reading_times.mgcv import (
    RMissingError,
    fit_in_r,
    in_r,
    named,
    r_function,
    to_r,
    variables_of,
)
from psychlm.reading_times.smooths import require_levels


@dataclass(frozen=True)
class _Fitted(Model):
    """A fit in R, with what its predictions need."""

    variables: Sequence[str]
    groups: Sequence[str]
    levels: dict[str, set[Any]]  # of the factors that are no groups
    errors: Floats
    effects: pd.DataFrame
    parts: dict[str, Part]
    random: tuple[str, ...]
    r_object: Any

    def predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        if se or (exclude and set(exclude) != set(self.random)):
            raise NotImplementedError(
                "lme4 predicts without standard errors, and leaves out all random effects "
                f"(exclude={list(self.random)}) or none; fit natively for the rest"
            )
        for name, levels in self.levels.items():
            require_levels(name, data[name], levels)
        with in_r():
            frame = to_r(data, self.variables, self.groups)
            return np.array(r_function("lme4_predict")(self.r_object, frame, not exclude)), None

    def residuals(self) -> Floats:
        return self.errors

    def tests(self) -> pd.DataFrame:
        return smooth_table({}, "ref_df", "F", "p")  # there are no smooths

    def random_effects(self) -> pd.DataFrame:
        return self.effects  # conditional modes, with their conditional standard deviations

    def profile_intervals(self, level: float) -> pd.DataFrame:
        with in_r():
            profile = named(r_function("lme4_profile")(self.r_object, level))
        values = np.array(profile["values"]).reshape(-1, 2)
        return pd.DataFrame(values, pd.Index(list(profile["names"])), ["low", "high"])


def fit(data: pd.DataFrame, formula: str, method: str, family: str, r_arguments: str) -> GAMFit:
    """Fit by ``lmer``, or by ``glmer`` where the family is not gaussian.

    p-values are of Satterthwaite's degrees of freedom where R has lmerTest, else of the normal
    distribution.
    """
    gaussian = family == "gaussian"
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
        r_fit, columns, used = fit_in_r("lme4", call, formula, data, family, r_arguments, groups)
        part = named(r_function("lme4_result")(r_fit, gaussian, columns))

    # Standard deviations and correlations by label, as the native engine names them.
    deviations: dict[str, float] = {}
    correlations: dict[str, pd.DataFrame] = {}
    for bar in map(named, part["bars"]):
        group, names = str(bar["group"][0]), [str(name) for name in bar["names"]]
        labels = [f"({name} | {group})" for name in names]
        deviations |= dict(zip(labels, bar["deviations"], strict=True))
        if len(names) > 1:
            table = np.array(bar["correlations"]).reshape(len(names), -1)
            label = f"({' + '.join(names)} | {group})"
            correlations[label] = pd.DataFrame(table, names, names)
    estimate = np.array(part["estimate"])
    covariance = np.array(part["covariance"]).reshape(len(estimate), -1)
    of_levels = zip(part["level_term"], part["level_group"], strict=True)
    levels = {
        "term": [f"({term} | {group})" for term, group in of_levels],
        "level": [str(x) for x in part["level"]],
        "estimate": np.array(part["level_value"]),
        "std_error": np.array(part["level_error"]),
    }
    residuals, random = np.array(part["residuals"]), tuple(deviations)
    effects = pd.DataFrame(levels)
    factors = [x for x in variables if x not in groups and not is_number(data[x])]
    known = {name: set(data[name].unique()) for name in factors}
    model = _Fitted(variables, groups, known, residuals, effects, {}, random, r_fit)
    loglik, sigma = float(part["loglik"][0]), float(part["sigma"][0])
    components = deviations | ({"residual": sigma} if gaussian else {})
    dof = np.array(part["dof"])
    return GAMFit(
        formula=formula,
        backend="lme4",
        method=method if gaussian else "ML",
        family=family,
        loglik=loglik,
        edf=float(part["edf"][0]),
        **coefficient_tables([*map(str, part["names"])], estimate, covariance, dof),
        smooths=smooth_table({}),
        scale=sigma**2,
        n=int(part["n"][0]),
        converged=bool(part["converged"][0]),
        data=used,
        model=model,
        variance_components=pd.Series(components, name="std_dev"),
        criterion=-loglik,
        aic=float(part["aic"][0]),
        correlations=correlations,
        singular=("lme4's isSingular",) if part["singular"][0] else (),
    )
