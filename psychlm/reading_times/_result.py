"""The result of a fit, whichever program made it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from psychlm.frames import FrameError

Floats = NDArray[np.float64]
ONLY_PREDICTS = "pygam's fits only predict; fit natively or with backend='mgcv'"


@dataclass(frozen=True)
class Part:
    """What a term of a model depends on."""

    variables: tuple[str, ...]  # columns of the data
    level: dict[str, object] = field(default_factory=dict)  # of a smooth with by=; 1 for a number


class Model:
    """A fitted model as its program holds it: what the methods of :class:`GAMFit` ask.

    pygam's has predictions only; the rest raises.
    """

    parts: dict[str, Part]  # linear terms and smooths without random effects, by label
    random: tuple[str, ...] = ()  # labels of random effects
    r_object: object = None

    def predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        """Return the expected response and its standard error."""
        raise NotImplementedError(ONLY_PREDICTS)

    def effect(self, label: str, data: pd.DataFrame) -> tuple[Floats, Floats]:
        """Return what one term adds to the linear predictor, and its standard error."""
        raise NotImplementedError(ONLY_PREDICTS)

    def residuals(self) -> Floats:
        """Return the residuals at the rows of the fit."""
        raise NotImplementedError(ONLY_PREDICTS)

    def tests(self) -> pd.DataFrame:
        """Return ``edf``, ``ref_df``, ``F`` and ``p`` of each smooth."""
        raise NotImplementedError(ONLY_PREDICTS)

    def random_effects(self) -> pd.DataFrame:
        """Return ``term``, ``level``, ``estimate`` and ``std_error`` of all random effects."""
        raise NotImplementedError(ONLY_PREDICTS)


@dataclass(frozen=True, repr=False)
class GAMFit:
    """A fitted additive model.

    Attributes
    ----------
    formula, backend, method, family : str
    loglik : float
        Nats; for a Gaussian response -n/2 (log(2 pi RSS/n) + 1): what R's ``logLik`` gives.
    edf : float
        Effective degrees of freedom of the mean, the intercept included.
    coefficients : DataFrame, indexed by R's names of the linear terms
        ``estimate``, ``std_error`` (Bayesian, given the smoothing), ``low`` and ``high`` (95 %, t
        distribution), in the response's unit per unit of the predictor, and ``t`` and ``p``.
    covariance, vcov : DataFrame, the same labels in rows and columns
        Bayesian covariance of the linear terms' estimates, as R's ``vcov``.
    smooths : DataFrame, indexed by label
        ``edf`` of each smooth; :meth:`summary` adds the tests.
    variance_components : Series, indexed by label
        Standard deviations of the random effects and of the residual, as mgcv's ``gam.vcomp``.
    scale : float
        Residual variance, RSS / (n - edf).
    r_squared, deviance_explained : float
        Adjusted share of the variance; share of the deviance.
    criterion : float
        The negative restricted (REML) or marginal (ML) log-likelihood of the smoothing, in nats.
    aic : float
        mgcv's ``fit$aic``: -2 loglik + 2 (edf + 1), smoothing taken as known.
    n, n_missing : int
        Rows fitted, and rows left out because the response is missing (a skipped word).
    converged : bool
    data : DataFrame
        The rows fitted: the columns that the formula names.
    """

    formula: str
    backend: str
    method: str
    loglik: float
    edf: float
    coefficients: pd.DataFrame
    covariance: pd.DataFrame
    smooths: pd.DataFrame
    scale: float
    n: int
    n_missing: int
    converged: bool
    data: pd.DataFrame = field(compare=False)
    model: Model = field(compare=False)
    family: str = "gaussian"
    variance_components: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    r_squared: float = np.nan
    deviance_explained: float = np.nan
    criterion: float = np.nan
    aic: float = np.nan

    @property
    def vcov(self) -> pd.DataFrame:
        """Return ``covariance``."""
        return self.covariance

    @property
    def r_object(self) -> object:
        """Return R's object of a fit by mgcv, for rpy2; None for other backends."""
        return self.model.r_object

    @property
    def residuals(self) -> pd.Series:
        """Return the residuals of the rows fitted (for other families than gaussian, deviance
        residuals)."""
        return pd.Series(self.model.residuals(), index=self.data.index, name="residual")

    def predict(
        self, data: pd.DataFrame, *, se: bool = False, exclude: Sequence[str] = ()
    ) -> pd.Series | pd.DataFrame:
        """Return the expected response for new rows.

        A level of a random effect that was not in the fit has the mean effect, 0.

        Parameters
        ----------
        se : bool
            Return a frame of ``fit`` and ``std_error`` (of the expected response, given the
            smoothing).
        exclude : sequence of str
            Labels of terms that count as 0: ``["s(subject)"]`` for the average person.

        Raises
        ------
        FrameError
            If a predictor is absent or has gaps, or a linear term's factor has a level that was not
            in the fit.
        """
        known = [*self.model.parts, *self.model.random]
        unknown = [label for label in exclude if label not in known]
        if unknown:
            raise ValueError(f"exclude={unknown} are no terms of the model; it has {known}")
        name = self.formula.partition("~")[0].strip()
        fit, error = self.model.predict(data, exclude, se)
        if se:
            return pd.DataFrame({"fit": fit, "std_error": error}, index=data.index)
        return pd.Series(fit, index=data.index, name=name)

    def effect(self, term: str, *, n: int = 100, level: float = 0.95) -> pd.DataFrame:
        """Return what one term adds to the linear predictor, over the range of its variables.

        Parameters
        ----------
        term : str
            The label of a smooth or linear term: ``"s(position)"``, ``"te(length,freq)"``,
            ``"s(position):conditionb"``.
        n : int
            Points along each variable.
        level : float
            Coverage of the band at each point.

        Returns
        -------
        DataFrame
            The term's variables, ``effect``, ``std_error``, ``low`` and ``high``.
        """
        if term not in self.model.parts:
            raise ValueError(
                f"{term!r} is no linear term or smooth of the fit, which has "
                f"{list(self.model.parts)}; random effects are in fit.random_effects()"
            )
        part = self.model.parts[term]
        axes = []
        for name in part.variables:
            values = self.data[name]
            if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
                axes.append(pd.Series(np.linspace(values.min(), values.max(), n)))
            else:
                axes.append(values.drop_duplicates().sort_values())
        grid = pd.MultiIndex.from_product(axes, names=part.variables).to_frame(index=False)
        others = self.data.iloc[[0] * len(grid)].reset_index(drop=True)
        effect, error = self.model.effect(term, others.assign(**grid, **part.level))
        margin = scipy.stats.norm.ppf((1 + level) / 2) * error
        bounds = {"low": effect - margin, "high": effect + margin}
        return grid.assign(effect=effect, std_error=error, **bounds)

    def random_effects(self) -> pd.DataFrame:
        """Return ``term``, ``level``, ``estimate`` and ``std_error`` of all random effects."""
        return self.model.random_effects()

    def summary(self) -> Summary:
        """Return the tables of R's ``summary``: tests of linear terms and of smooths.

        A smooth is tested by Wood's (2013) statistic, whose rank is ``ref_df``, a random effect by
        Wood's (2013b) test of a zero variance.
        """
        return Summary(self, self.coefficients.drop(columns=["low", "high"]), self.model.tests())

    def __repr__(self) -> str:
        """Return the model and its estimates, as R's ``print`` does."""
        converged = "" if self.converged else ", NOT converged"
        tables = [self.coefficients.round(4)] + [self.smooths.round(3)] * (len(self.smooths) > 0)
        return (
            f"{self.formula}\n{self.backend}, {self.method}{converged}: n = {self.n:,} "
            f"({self.n_missing:,} without a response left out), log-likelihood {self.loglik:.2f} "
            f"on {self.edf:.2f} degrees of freedom, residual deviation {self.scale**0.5:.4g}"
        ) + "".join(f"\n\n{table.to_string()}" for table in tables)


@dataclass(frozen=True, repr=False)
class Summary:
    """The tests of a fit; printing it gives what R's ``summary`` prints.

    Attributes
    ----------
    coefficients : DataFrame, indexed by R's names of the linear terms
        ``estimate``, ``std_error``, ``t`` (z where the family has a known scale) and ``p``.
    smooths : DataFrame, indexed by label
        ``edf``, ``ref_df``, ``F`` (or chi-squared) and ``p``.
    """

    fit: GAMFit
    coefficients: pd.DataFrame
    smooths: pd.DataFrame

    def __repr__(self) -> str:
        """Return the tables with the measures of fit."""
        fit, text = self.fit, [f"{self.fit.formula}\n{self.fit.family}, {self.fit.backend}"]
        if not fit.converged:
            text.append("NOT converged")
        for title, table in (("Linear terms", self.coefficients), ("Smooths", self.smooths)):
            if len(table):
                shown = {"p": lambda p: f"{p:.3g}" if p >= 1e-10 else "<1e-10"}
                rest = {c: "{:.4g}".format for c in table.columns if c != "p"}
                text.append(f"{title}:\n{table.to_string(formatters=rest | shown)}")
        if len(fit.variance_components) > 1:
            deviations = fit.variance_components.to_string(float_format="{:.4g}".format)
            text.append(f"Standard deviations:\n{deviations}")
        text.append(
            f"R-sq.(adj) = {fit.r_squared:.3g}  Deviance explained = {fit.deviance_explained:.1%}\n"
            f"-{fit.method} = {fit.criterion:.5g}  Scale est. = {fit.scale:.5g}  n = {fit.n}  "
            f"AIC = {fit.aic:.5g}  log-likelihood = {fit.loglik:.5g}"
        )
        return "\n\n".join(text)


def require_columns(names: Iterable[str], data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` if the data lack a variable of a formula."""
    absent = [name for name in names if name not in data.columns]
    if absent:
        raise FrameError(
            f"formula variables not found in the data: {absent}; it has {list(data.columns)}"
        )


def check_new_data(data: pd.DataFrame, variables: tuple[str, ...]) -> None:
    """Raise a :class:`FrameError` if new data lack a predictor or have gaps in one."""
    require_columns(variables, data)
    gaps = [name for name in variables if data[name].isna().any()]
    if gaps:
        raise FrameError(f"cannot predict: predictors {gaps} have gaps; fill or drop those rows")


def coefficient_tables(
    names: list[str], estimate: Floats, covariance: Floats, dof: float
) -> dict[str, pd.DataFrame]:
    """Return ``coefficients`` (with 95 % intervals and t tests) and ``covariance``, by name."""
    std_error, index = np.sqrt(np.diag(covariance)), pd.Index(names, name="coefficient")
    margin = scipy.stats.t.ppf(0.975, dof) * std_error
    table = {"estimate": estimate, "std_error": std_error}
    table |= {"low": estimate - margin, "high": estimate + margin, "t": estimate / std_error}
    table["p"] = 2 * scipy.stats.t.sf(np.abs(table["t"]), dof)
    return {
        "coefficients": pd.DataFrame(table, index=index),
        "covariance": pd.DataFrame(covariance, index=index, columns=index),
    }


def smooth_table(edf: dict[str, float]) -> pd.DataFrame:
    """Return the effective degrees of freedom of smooths, by label."""
    index = pd.Index(list(edf), name="smooth", dtype=object)
    return pd.DataFrame({"edf": np.array(list(edf.values()), dtype=np.float64)}, index=index)
