"""The same mixed model in R's lme4, through rpy2: the reference for correlated random effects, and
what the native engine lacks: binomial outcomes, Satterthwaite's degrees of freedom, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.reading_times._result import (
    Floats,
    GAMFit,
    Model,
    Part,
    coefficient_tables,
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

_HAS = "function(name) nzchar(system.file(package = name))"
_RESULT = r"""
function(fit, gaussian, data) {  # lmerTest looks for the data here
  # R numbers a factor's second bar, "subject.1".
  factors <- names(lme4::getME(fit, "flist"))
  of_bar <- function(matrix, name)
    list(group = if (name %in% factors) name else sub("\\.\\d+$", "", name),
         names = rownames(matrix), deviations = attr(matrix, "stddev"),
         correlations = unname(attr(matrix, "correlation")))
  variances <- lme4::VarCorr(fit)
  slopes <- stats::coef(summary(fit))
  dof <- rep(Inf, nrow(slopes))
  if (gaussian && nzchar(system.file(package = "lmerTest")))
    dof <- stats::coef(summary(lmerTest::as_lmerModLmerTest(fit)))[, "df"]
  problems <- fit@optinfo$conv$lme4$messages
  effects <- as.data.frame(lme4::ranef(fit, condVar = TRUE))
  list(loglik = as.numeric(stats::logLik(fit)), aic = stats::AIC(fit), sigma = stats::sigma(fit),
       edf = nrow(slopes) + length(lme4::getME(fit, "theta")),
       names = rownames(slopes), estimate = unname(slopes[, 1]),
       covariance = unname(as.matrix(stats::vcov(fit))), dof = as.numeric(dof),
       bars = Map(of_bar, variances, names(variances)), singular = lme4::isSingular(fit),
       converged = length(setdiff(problems,
         grep("singular", problems, value = TRUE))) == 0,
       residuals = unname(stats::residuals(fit)), n = stats::nobs(fit),
       level_term = as.character(effects$term), level_group = as.character(effects$grpvar),
       level = as.character(effects$grp), level_value = effects$condval,
       level_error = effects$condsd)
}
"""
_PREDICT = """
function(fit, data, random)
  as.numeric(stats::predict(fit, newdata = data, re.form = if (random) NULL else NA,
                            type = "response", allow.new.levels = TRUE))
"""
_PROFILE = """
function(fit, level) {
  found <- stats::confint(fit, level = level, method = "profile", oldNames = FALSE, quiet = TRUE)
  list(names = rownames(found), values = unname(found))
}
"""
# Columns that are nothing but labels of groups; lme4 itself makes labels of the others.
_GROUPS = """
function(formula) {
  model <- stats::as.formula(formula)
  bars <- lme4::findbars(model)
  variables <- function(part) unlist(lapply(bars, function(bar) all.vars(bar[[part]])))
  setdiff(variables(3), c(all.vars(lme4::nobars(model)), variables(2)))
}
"""


@dataclass(frozen=True)
class InLme4(Model):
    """A fit in R, with what its predictions need."""

    variables: Sequence[str]
    groups: Sequence[str]
    errors: Floats
    effects: pd.DataFrame
    parts: dict[str, Part]
    random: tuple[str, ...]
    r_object: Any

    def predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        """Return the expected response, with all random effects or none."""
        if se or (exclude and set(exclude) != set(self.random)):
            raise NotImplementedError(
                "lme4 predicts without standard errors, and leaves out all random effects "
                f"(exclude={list(self.random)}) or none; fit natively for the rest"
            )
        with in_r():
            frame = to_r(data, self.variables, self.groups)
            return np.array(r_function(_PREDICT)(self.r_object, frame, not exclude)), None

    def residuals(self) -> Floats:
        """Return lme4's residuals (of other families than gaussian, deviance residuals)."""
        return self.errors

    def tests(self) -> pd.DataFrame:
        """Return an empty table: there are no smooths."""
        return smooth_table({}, "ref_df", "F", "p")

    def random_effects(self) -> pd.DataFrame:
        """Return lme4's conditional modes with their conditional standard deviations."""
        return self.effects

    def profile_intervals(self, level: float) -> pd.DataFrame:
        """Return ``low`` and ``high`` of each parameter from lme4's profile likelihood."""
        with in_r():
            profile = named(r_function(_PROFILE)(self.r_object, level))
        values = np.array(profile["values"]).reshape(-1, 2)
        return pd.DataFrame(values, pd.Index(list(profile["names"])), ["low", "high"])


def _label(group: str, effect: str) -> str:
    """Return the label of a random effect, as the native engine's."""
    return f"({'1' if effect == '(Intercept)' else effect} | {group})"


def fit(data: pd.DataFrame, formula: str, method: str, family: str, r_arguments: str) -> GAMFit:
    """Fit by ``lmer``, or by ``glmer`` where the family is not gaussian.

    p-values are of Satterthwaite's degrees of freedom where R has lmerTest, else of the normal
    distribution.
    """
    gaussian = family == "gaussian"
    with in_r():
        if not r_function(_HAS)("lme4")[0]:
            raise RMissingError(
                "R is here, but its package lme4 is not; install it (Debian, Ubuntu: apt-get "
                "install r-cran-lme4 r-cran-lmertest)"
            )
        _, *variables = variables_of(formula)
        require_columns(variables, data)
        try:
            groups = [str(name) for name in r_function(_GROUPS)(formula)]
        except Exception as error:
            raise FrameError(f"R cannot read {formula!r}: {str(error).strip()}") from None
        call = f"glmer(model, data = data, family = {family}"
        if gaussian:
            call = f"lmer(model, data = data, REML = {str(method == 'REML').upper()}"
        r_fit, columns, used = fit_in_r("lme4", call, formula, data, family, r_arguments, groups)
        part = named(r_function(_RESULT)(r_fit, gaussian, columns))

    # Standard deviations and correlations by label, as the native engine names them.
    deviations: dict[str, float] = {}
    correlations: dict[str, pd.DataFrame] = {}
    for bar in map(named, part["bars"]):
        group, names = str(bar["group"][0]), [str(name) for name in bar["names"]]
        labels = [_label(group, name) for name in names]
        deviations |= dict(zip(labels, bar["deviations"], strict=True))
        if len(names) > 1:
            names = ["1" if name == "(Intercept)" else name for name in names]
            table = np.array(bar["correlations"]).reshape(len(names), -1)
            label = f"({' + '.join(names)} | {group})"
            correlations[label] = pd.DataFrame(table, names, names)
    estimate = np.array(part["estimate"])
    covariance = np.array(part["covariance"]).reshape(len(estimate), -1)
    labels = zip(part["level_group"], part["level_term"], strict=True)
    levels = {
        "term": [_label(str(group), str(term)) for group, term in labels],
        "level": [str(x) for x in part["level"]],
        "estimate": np.array(part["level_value"]),
        "std_error": np.array(part["level_error"]),
    }
    residuals, random = np.array(part["residuals"]), tuple(deviations)
    model = InLme4(variables, groups, residuals, pd.DataFrame(levels), {}, random, r_fit)
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
