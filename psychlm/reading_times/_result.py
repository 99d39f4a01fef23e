"""The result of a fit, whichever program made it, and the tests of its smooths.

The statistics of the tests are weighted sums of chi-squares. References: Wood (2013), On p-values
for smooth components of an extended generalized additive model, Biometrika 100; Wood (2013b), A
simple test for random effects in regression models, Biometrika 100; Imhof (1961), Computing the
distribution of quadratic forms, Biometrika 48.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

import psychlm
from psychlm import _formatting
from psychlm.frames import FrameError, label_of

if TYPE_CHECKING:
    from psychlm.reading_times.tests import DDF, Adjust, Table

Floats = NDArray[np.float64]
SMALL = 1e-7  # probabilities below are approximated in the tail, where integration has no digits


@dataclass(frozen=True)
class Part:
    """What a term of a model depends on."""

    variables: tuple[str, ...]  # columns of the data
    level: Mapping[str, object] = field(default_factory=dict)  # of a smooth with by=; of a number 1


def format_p(p: float) -> str:
    """Return a p-value with three digits, or that it is tiny."""
    return f"{p:.3g}" if p >= 1e-10 or np.isnan(p) else "<1e-10"


class Model:
    """A fitted model as its program holds it: what the methods of :class:`GAMFit` ask.

    ``predict(data, exclude, se)`` returns the expected response and its standard error or None,
    ``effect(label, data)`` what one term adds, and its standard error, ``tests()`` the columns edf,
    ref_df, F and p. ``design(data)`` returns rows, (n, p), whose products with the estimate of
    ``inference(ddf)`` are the linear predictor without random effects; the latter's covariance,
    (p, p), and function of contrasts, (m, p) to (m,), give errors and degrees of freedom.
    ``anova(ddf)`` tests terms; ``loglik_by_ml()`` fits again by ML. A program that has no answer
    inherits these.
    """

    variables: Sequence[str]  # columns that a prediction needs
    fixed_variables: Sequence[str]  # those of linear terms and smooths
    is_mixed: bool = False  # random effects in lme4's notation, of a gaussian response
    link: str = "identity"
    parts: dict[str, Part]  # linear terms and smooths without random effects, by label
    random: tuple[str, ...] = ()  # labels of random effects
    empty_cells: tuple[str, ...] = ()  # columns of interactions that no reading determines
    r_object: object = None

    def _absent(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "pygam's fits only predict, and profile intervals are lme4's: fit natively, with "
            "backend='mgcv' or backend='lme4'"
        )

    predict = effect = residuals = tests = random_effects = profile_intervals = _absent
    design = inference = anova = loglik_by_ml = residual_df = deviance = dof_method = _absent


@dataclass(frozen=True, repr=False)
class GAMFit:
    """A fitted additive model.

    ``coefficients``, indexed by R's names of the linear terms, has ``estimate``, ``std_error``
    (Bayesian, given the smoothing), ``low`` and ``high`` (95 %, t distribution), in the response's
    unit per unit of the predictor, and ``t`` and ``p``. With random effects in lme4's notation
    ``loglik`` is what lme4's ``logLik`` gives: the marginal likelihood, restricted by REML, of all
    that is neither random nor the penalised part of a smooth.
    """

    formula: str
    backend: str
    method: str
    loglik: float  # nats; of a Gaussian response -n/2 (log(2 pi RSS/n) + 1), as R's logLik
    edf: float  # effective degrees of freedom of the mean, the intercept included
    coefficients: pd.DataFrame
    covariance: pd.DataFrame  # Bayesian, of the linear terms' estimates, as R's vcov
    smooths: pd.DataFrame  # edf of each smooth, by label; summary() adds the tests
    scale: float  # residual variance, RSS / (n - edf)
    n: int  # rows fitted
    converged: bool
    data: pd.DataFrame = field(compare=False)  # the rows fitted, columns that the formula names
    model: Model = field(compare=False)
    n_missing: int = (
        0  # rows left out because a variable is missing (of a skipped word, the response)
    )
    missing: dict[str, int] = field(default_factory=dict, compare=False)  # these, by variable
    family: str = "gaussian"
    # Standard deviations of the random effects and of the residual, as mgcv's gam.vcomp
    variance_components: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    r_squared: float = np.nan  # adjusted share of the variance
    deviance_explained: float = np.nan  # share of the deviance
    criterion: float = np.nan  # negative restricted (REML) or marginal (ML) log-likelihood, nats
    aic: float = np.nan  # mgcv's fit$aic: -2 loglik + 2 (edf + 1), smoothing taken as known
    # Of the random effects of (1 + x | g), by bar
    correlations: dict[str, pd.DataFrame] = field(default_factory=dict, compare=False)
    singular: tuple[str, ...] = ()  # combinations of random effects whose variance is zero

    @property
    def vcov(self) -> pd.DataFrame:
        """Return ``covariance``."""
        return self.covariance

    @property
    def r_object(self) -> object:
        """Return R's object of a fit by mgcv, for rpy2; None for other backends."""
        return self.model.r_object

    @property
    def loglik_of_response(self) -> float:
        """Return the log-likelihood (nats) of the response as measured: of a model of log(y)
        ``loglik`` less the sum of log y, so that its gain compares with that of a model of y."""
        left = self.formula.partition("~")[0].strip()
        name = re.fullmatch(r"log\(\s*`?([^()`]+?)`?\s*\)", left)
        if name and name[1] in self.data.columns:
            return self.loglik - float(np.log(self.data[name[1]].to_numpy(np.float64)).sum())
        if left in self.data.columns:
            return self.loglik
        raise NotImplementedError(f"the response {left} is neither a column nor log() of one")

    @property
    def residuals(self) -> pd.Series:
        """Return the residuals of the rows fitted; of other families deviance residuals."""
        return pd.Series(self.model.residuals(), index=self.data.index, name="residual")

    def predict(
        self, data: pd.DataFrame, *, se: bool = False, exclude: Sequence[str] = ()
    ) -> pd.Series | pd.DataFrame:
        """Return the expected response for new rows, with ``se`` a frame of ``fit`` and
        ``std_error`` (of the expected response, given the smoothing).

        Terms in ``exclude`` count as 0: ``["s(subject)"]`` gives the average person. A new level of
        a random effect has the mean effect, 0; one of a linear term's factor is an error.
        """
        labels = [*self.model.parts, *self.model.random]
        unknown = [label for label in exclude if label not in labels]
        if unknown:
            raise ValueError(f"exclude={unknown} are no terms of the model; it has {labels}")
        require_columns(self.model.variables, data)
        gaps = [name for name in self.model.variables if data[name].isna().any()]
        if gaps:
            raise FrameError(f"cannot predict: predictors {gaps} have gaps; fill or drop the rows")
        for name in self.model.variables:  # a level 1 is no level "1"
            given, known = data[name], self.data[name]
            if is_number(given) == is_number(known) or given.isin(known).any():
                continue
            if {*map(label_of, given.unique())} & {*map(label_of, known.unique())}:
                raise FrameError(
                    f"cannot predict: {name!r} holds {given.dtype}, and {known.dtype} in the data "
                    "of the fit; convert it"
                )
        fit, error = self.model.predict(data, exclude, se)
        if se:
            return pd.DataFrame({"fit": fit, "std_error": error}, index=data.index)
        return pd.Series(fit, index=data.index, name=self.formula.partition("~")[0].strip())

    def effect(self, term: str, *, n: int = 100, level: float = 0.95) -> pd.DataFrame:
        """Return what one term adds to the linear predictor, over the range of its variables.

        The term is named by its label, ``"te(length,freq)"`` or ``"s(position):conditionb"``. There
        are ``n`` points along each variable, and a band of coverage ``level`` at each: columns
        ``effect``, ``std_error``, ``low`` and ``high``.
        """
        if term not in self.model.parts:
            raise ValueError(
                f"{term!r} is no linear term or smooth of the fit, which has "
                f"{list(self.model.parts)}; random effects are in fit.random_effects()"
            )
        # A grid over the range of each number and the levels of each factor.
        part = self.model.parts[term]
        axes = []
        for name in part.variables:
            values = self.data[name]
            if is_number(values):
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
        """Return ``term``, ``level``, ``estimate`` and ``std_error`` of all random effects.

        Errors include those of the fixed effects, as mgcv's; lme4's are conditional on them.
        """
        return self.model.random_effects()

    @property
    def is_mixed(self) -> bool:
        """Return whether this is a linear mixed model: random effects in lme4's notation."""
        return self.model.is_mixed

    def anova(self, ddf: DDF = "Satterthwaite") -> Table:
        """Return F tests of the terms.

        Of mixed models (random effects in lme4's notation) the tests are lmerTest's of type III,
        with Satterthwaite's degrees of freedom or, for models fitted by REML to at most 3,000 rows,
        Kenward and Roger's. Of additive models they are mgcv's: each linear term given all others,
        and Wood's (2013) tests of smooths. To compare fits, see :func:`reading_times.anova`.

        Returns
        -------
        Table
            By term ``num_df``, ``den_df``, ``F`` and ``p``; of mixed models ``sum_sq`` and
            ``mean_sq`` before them.
        """
        from psychlm.reading_times.tests import Table

        if self.model.empty_cells and self.is_mixed:
            raise ValueError(
                f"no reading determines {list(self.model.empty_cells)}, so that tests of type III "
                "depend on the coding; compare nested fits: reading_times.anova(smaller, larger)"
            )
        table = self.model.anova(ddf)
        kind = "type III" if self.is_mixed else "each term given all others"
        title = f"F tests of the terms of {self.formula}"
        note = f"{kind}; degrees of freedom: {self.model.dof_method(ddf)}; n = {self.n:,}"
        return Table(table.rename_axis("term"), title, (f"{note} ({self.left_out})",))

    def means(
        self,
        of: str | Sequence[str],
        *,
        by: str | Sequence[str] = (),
        at: Mapping[str, Any] | None = None,
        pairs: bool = False,
        adjust: Adjust | None = None,
        response: bool = False,
        bias_correction: bool = False,
        ddf: DDF = "Satterthwaite",
        level: float = 0.95,
    ) -> Table:
        """Return estimated marginal means, or their differences, as R's emmeans does.

        A mean is the average expected response over a grid: all levels of the factors and of
        numbers with two values, each weighing the same, and the mean of every other number, without
        random effects (Searle, Speed & Milliken 1980). With ``by`` a number at several values and
        ``pairs`` it is a difference smooth: ``fit.means("cond", by="position", at={"position":
        range(1, 50)}, pairs=True)`` is the difference of ``cond`` along the position, that of
        ``s(position, by=cond)`` with that of the intercepts.

        Parameters
        ----------
        of, by : str or list of str
            Variables whose combinations have means; differences are taken within those of ``by``.
        at : dict, optional
            Values of numbers, or levels of factors, instead of those of the grid.
        pairs : bool
            Whether to return all differences of two means.
        adjust : {"tukey", "holm", "bonferroni", "none"}, optional
            Of p and intervals, for the number of comparisons: "tukey" for pairs unless given, else
            "none".
        response : bool
            Whether to return from ``log(y)``, or from a family's link, to the response; differences
            of logarithms become ratios.
        bias_correction : bool
            Whether to multiply means of ``log(y)`` by 1 + v/2, v the residual variance, which makes
            them means of y; without, they are medians. The variance of random effects is not in v.
        ddf : {"Satterthwaite", "Kenward-Roger"}
            Degrees of freedom of mixed models.
        level : float
            Coverage of the intervals.

        Returns
        -------
        Table
            The variables (of pairs ``contrast``), ``estimate`` (``ratio``), ``std_error``, ``df``,
            ``low``, ``high``, and of pairs ``t`` and ``p``; notes say what was averaged and held.

        Examples
        --------
        >>> from psychlm import reading_times
        >>> words = pd.DataFrame({"ms": [10.0, 12, 20, 26], "old": list("aabb"), "x": [1, 2, 1, 2]})
        >>> fit = reading_times.fit(words, "ms ~ old + x")
        >>> fit.means("old")["estimate"].round(6).tolist()
        [11.0, 23.0]
        """
        from psychlm.reading_times.tests import means

        return means(
            self,
            of,
            by=by,
            at=at,
            pairs=pairs,
            adjust=adjust,
            response=response,
            bias_correction=bias_correction,
            ddf=ddf,
            level=level,
        )

    def profile_intervals(self, level: float = 0.95) -> pd.DataFrame:
        """Return lme4's profile-likelihood intervals: ``low`` and ``high`` of each parameter."""
        return self.model.profile_intervals(level)

    def summary(self) -> Summary:
        """Return the tables of R's ``summary``: tests of linear terms and of smooths.

        A smooth is tested by Wood's (2013) statistic, whose rank is ``ref_df``, a random effect by
        Wood's (2013b) test of a zero variance.
        """
        return Summary(self, self.coefficients.drop(columns=["low", "high"]), self.model.tests())

    def methods(self) -> str:
        """Return what a methods section says of the model: kind, program, estimation, rows.

        >>> from psychlm import reading_times
        >>> words = pd.DataFrame({"gaze_ms": [212.0, 248, 230, 270], "bits": [2.0, 6, 4, 8]})
        >>> reading_times.fit(words, "gaze_ms ~ bits").methods().partition(" (")[0]
        'a linear model'
        """
        kind = "linear model"
        if len(self.smooths) or self.model.random:
            kind = "linear mixed model" if self.is_mixed else "additive model"
        family = "" if self.family == "gaussian" else f", family {self.family}"
        program = f"psychlm {psychlm.__version__}"
        if self.backend in ("mgcv", "lme4"):
            from psychlm.reading_times.mgcv import version_of

            program = f"R's {self.backend} {version_of(self.backend)}"
        tested = ""
        if "df" in self.coefficients:
            tested = "; t tests with Satterthwaite's degrees of freedom"
        rows = f"{self.n:,} rows" + (f", {self.left_out}" if self.n_missing else "")
        article = "an" if kind.startswith("a") else "a"
        formula = self.formula.replace('"', "'")
        return f"{article} {kind} ({formula}{family}; {program}, {self.method}{tested}; {rows})"

    @property
    def left_out(self) -> str:
        """Return how many rows were left out, and which variable is missing in them."""
        by_variable = ", ".join(f"{name} {n:,}" for name, n in self.missing.items())
        reason = f", missing: {by_variable}" if by_variable else ""
        return f"{self.n_missing:,} rows left out{reason}"

    def __repr__(self) -> str:
        """Return the model and its estimates, as R's ``print`` does."""
        converged = "" if self.converged else ", NOT converged"
        rounded = self.coefficients.round(4)
        tables = [rounded.assign(p=self.coefficients["p"]) if "p" in rounded else rounded]
        if len(self.smooths):
            tables.append(self.smooths.round(3))
        return (
            f"{self.formula}\n{self.backend}, {self.method}{converged}: n = {self.n:,} "
            f"({self.left_out}), log-likelihood {self.loglik:.2f} "
            f"on {self.edf:.2f} degrees of freedom, residual deviation {self.scale**0.5:.4g}"
        ) + "".join(f"\n\n{table.to_string(formatters={'p': format_p})}" for table in tables)


@dataclass(frozen=True, repr=False)
class Summary:
    """The tests of a fit; printing it gives what R's ``summary`` prints."""

    fit: GAMFit
    coefficients: pd.DataFrame  # estimate, std_error, t (z if the scale is known) and p
    smooths: pd.DataFrame  # edf, ref_df, F (or chi-squared) and p of each smooth

    def to_latex(self) -> str:
        """Return the tables for a paper as LaTeX: see :func:`psychlm._formatting.latex`."""
        return self._for_a_paper(_formatting.latex)

    def to_markdown(self) -> str:
        """Return the tables for a paper as Markdown: see :func:`psychlm._formatting.latex`."""
        return self._for_a_paper(_formatting.markdown)

    def _for_a_paper(self, write: Callable[..., str]) -> str:
        tables = {"Linear terms": self.coefficients, "Smooths": self.smooths.dropna()}
        if len(self.fit.variance_components) > 1:
            deviations = self.fit.variance_components.rename("standard deviation").to_frame()
            tables["Random effects"] = deviations.rename_axis("effect")
        notes = {"Linear terms": [f"From {self.fit.methods()}"]}
        return "\n\n".join(
            write(table, title, notes.get(title, []))
            for title, table in tables.items()
            if len(table)
        )

    def __repr__(self) -> str:
        """Return the tables with the measures of fit."""
        fit, text = self.fit, [f"{self.fit.formula}\n{self.fit.family}, {self.fit.backend}"]
        if not fit.converged:
            text.append("NOT converged")
        for title, table in (("Linear terms", self.coefficients), ("Smooths", self.smooths)):
            if len(table):
                shown = dict.fromkeys(table.columns, "{:.4g}".format) | {"p": format_p}
                text.append(f"{title}:\n{table.to_string(formatters=shown)}")
        if len(fit.variance_components) > 1:
            deviations = fit.variance_components.to_string(float_format="{:.4g}".format)
            text.append(f"Standard deviations:\n{deviations}")
        for bar, table in fit.correlations.items():
            text.append(f"Correlations of {bar}:\n{table.to_string(float_format='{:.3f}'.format)}")
        text += [f"Singular: {message}" for message in fit.singular]
        text.append(
            f"R-sq.(adj) = {fit.r_squared:.3g}  Deviance explained = {fit.deviance_explained:.1%}\n"
            f"-{fit.method} = {fit.criterion:.5g}  Scale est. = {fit.scale:.5g}  n = {fit.n} "
            f"({fit.left_out})  "
            f"AIC = {fit.aic:.5g}  log-likelihood = {fit.loglik:.5g}"
        )
        return "\n\n".join(text)


def is_number(values: pd.Series) -> bool:
    """Return whether a variable is a number; text, categories and booleans are factors."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def is_ordered(values: pd.Series) -> bool:
    """Return whether a variable is an ordered factor."""
    return bool(getattr(values.dtype, "ordered", False))


def require_columns(names: Iterable[str], data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` if the data lack a variable of a formula."""
    absent = [name for name in names if name not in data.columns]
    if absent:
        raise FrameError(
            f"formula variables not found in the data: {absent}; it has {list(data.columns)}"
        )


def say_empty_cells(names: Sequence[str]) -> None:
    """Warn, as lme4 does, of columns without a coefficient because no reading determines them."""
    if names:
        warnings.warn(
            f"fixed-effect model matrix is rank deficient so dropping {len(names)} "
            f"column{'s' * (len(names) > 1)}, which no reading determines: {', '.join(names)}",
            RuntimeWarning,
            stacklevel=4,
        )


def coefficient_tables(
    names: Sequence[str], estimate: Floats, covariance: Floats, dof: float | Floats
) -> dict[str, pd.DataFrame]:
    """Return ``coefficients`` (with 95 % intervals and t tests) and ``covariance``, by name.

    Where the degrees of freedom differ between coefficients they are a column ``df``. A coefficient
    without variance was dropped by R, which gives it 0: it is NaN, with a warning.
    """
    std_error, index = np.sqrt(np.diag(covariance)), pd.Index(names, name="coefficient")
    dropped = std_error == 0
    if dropped.any():
        warnings.warn(
            f"coefficients {list(index[dropped])} are combinations of others and were dropped from "
            "the model: they have no estimate (NaN); leave these terms out",
            RuntimeWarning,
            stacklevel=4,
        )
        estimate, std_error = (np.where(dropped, np.nan, each) for each in (estimate, std_error))
    margin = scipy.stats.t.ppf(0.975, dof) * std_error
    table = {"estimate": estimate, "std_error": std_error}
    table |= {"low": estimate - margin, "high": estimate + margin}
    if np.ndim(dof):
        table["df"] = np.asarray(dof)
    table["t"] = estimate / std_error
    table["p"] = 2 * scipy.stats.t.sf(np.abs(table["t"]), dof)
    return {
        "coefficients": pd.DataFrame(table, index=index),
        "covariance": pd.DataFrame(covariance, index=index, columns=index),
    }


def smooth_table(rows: Mapping[str, Any], *more: str) -> pd.DataFrame:
    """Return the effective degrees of freedom of smooths, and more columns, by label."""
    values = np.array(list(rows.values()), dtype=np.float64).reshape(len(rows), 1 + len(more))
    return pd.DataFrame(values, pd.Index(list(rows), name="smooth", dtype=object), ["edf", *more])


# Tests of smooths and of random effects


def exceedance(weights: Floats, statistic: float, dof: float) -> float:
    """Return P(sum_i w_i X_i > statistic * Y / dof), X_i chi-squared of 1, Y of ``dof`` degrees.

    Y / dof is the estimate of the residual variance as a share of the true one; it is 1 where
    ``dof`` is infinite. Imhof's (1961) integral of the characteristic function; small
    probabilities by Lugannani and Rice's saddlepoint approximation, to about 10 %.

    >>> round(exceedance(np.ones(3), 3 * 2.6, 20), 4), round(float(scipy.stats.f.sf(2.6, 3, 20)), 4)
    (0.0806, 0.0806)
    """
    if statistic <= 0 or not len(weights):
        return 1.0
    # P(sum_j a_j X_j > shift), where X_j has h_j degrees of freedom.
    if np.isfinite(dof):
        a, h, shift = np.r_[weights, -statistic / dof], np.r_[np.ones(len(weights)), dof], 0.0
    else:
        a, h, shift = weights, np.ones(len(weights)), statistic
    size = weights.max()
    a, shift = a / size, shift / size

    def integrand(u: float) -> float:
        angle = (h @ np.arctan(a * u) - shift * u) / 2
        return float(np.sin(angle) / u * np.exp(-(h @ np.log1p((a * u) ** 2)) / 4))

    p = 0.5 + scipy.integrate.quad(integrand, 0, np.inf, limit=2000, epsabs=1e-10)[0] / np.pi
    if p > SMALL:
        return min(p, 1.0)

    # K(t) = -sum h_j log(1 - 2 a_j t) / 2 - shift t, whose derivative is zero at t, 0 < t < 1/2.
    def slope(t: float) -> float:
        return float(h @ (a / (1 - 2 * a * t)) - shift)

    t = scipy.optimize.brentq(slope, 0, 0.5 * (1 - 1e-12), xtol=1e-15)
    cumulant = -(h @ np.log1p(-2 * a * t)) / 2 - shift * t
    w = np.sqrt(-2 * cumulant)
    v = t * np.sqrt(2 * h @ np.square(a / (1 - 2 * a * t)))
    return float(scipy.stats.norm.sf(w + np.log(v / w) / w))


def test_smooth(
    beta: Floats, covariance: Floats, xx: Floats, rank: float, dof: float
) -> tuple[float, float, float]:
    """Test whether a smooth is zero; return the rank, F and p.

    With the values f = X b at the data and their covariance V = X V_b X' = U diag(l) U', the
    statistic is f'V^r- f, in which the pseudo-inverse has rank r = k + v, 0 <= v < 1: the k - 1
    largest eigenvalues are inverted, and the next two enter by the matrix

        B = diag(l_k, l_k+1)^-1/2 [1, c; c, v] diag(l_k, l_k+1)^-1/2     c = (v (1 - v) / 2)^1/2

    (Wood 2013, section 2). The sign of c depends on that of eigenvectors, so F and p are means over
    both (mgcv's p is too; its F has the sign that its eigenvectors happen to have). Under the null
    the statistic is chi-squared of k - 1 degrees plus the eigenvalues of the middle matrix,
    (v + 1 +- (1 - v^2)^1/2) / 2, times chi-squares of one.

    ``covariance`` is the Bayesian one of the coefficients, ``xx`` X'X, ``rank`` the effective
    degrees of freedom 2 tr F - tr FF, and ``dof`` those of the residual, infinite where the scale
    is known.
    """
    values, vectors = np.linalg.eigh(xx)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T  # root'root = X'X
    values, vectors = np.linalg.eigh(root @ covariance @ root.T)
    values, along = values[::-1], (vectors.T @ (root @ beta))[::-1]
    rank = min(rank, float((values > values[0] * 1e-14).sum()))
    k = int(np.floor(rank))
    v = rank - k
    z = along / np.sqrt(np.maximum(values, values[0] * 1e-300))
    if k == 0:  # less than one degree of freedom: the largest eigenvalue alone
        return rank, float(z[0] ** 2 / rank), exceedance(np.ones(1), float(z[0] ** 2), dof)
    if v == 0:
        statistics, weights = [z[:k] @ z[:k]], np.ones(k)
    else:
        c, e = np.sqrt(v * (1 - v) / 2), np.sqrt(1 - v**2)
        base = z[: k - 1] @ z[: k - 1] + z[k - 1] ** 2 + v * z[k] ** 2
        statistics = [base + sign * 2 * c * z[k - 1] * z[k] for sign in (1, -1)]
        weights = np.r_[np.ones(k - 1), (v + 1 + e) / 2, (v + 1 - e) / 2]
    p = np.mean([exceedance(weights, float(x), dof) for x in statistics])
    return rank, float(np.mean(statistics)) / rank, float(p)


def test_random(
    beta: Floats,
    xx: Floats,
    penalty: Floats,
    owner: np.ndarray,
    label: str,
    scale: float,
    dof: float,
) -> tuple[float, float, float]:
    """Test whether the variance of a random effect is zero; return the rank, F and p.

    The other random effects Z, of penalty S_z, are part of the residual covariance, of which the
    scale is one factor and Q = I + Z S_z^-1 Z' the other. Estimates of the kept columns X have the
    frequentist covariance W = (M + S)^-1 M (M + S)^-1 scale with M = X'Q^-1 X. The statistic is
    b'P b / scale with P the inverse of the tested block of (X'Q X + S)^-1, which is mgcv's choice
    of a weight, and under the null a sum of chi-squares weighted by the eigenvalues of P W / scale
    (Wood 2013b). ``penalty`` is the diagonal of S, and ``owner`` names the random effect of each
    column, or is "".
    """
    # Eliminate the other random effects: M = X'Q^-1 X, and the weight X'Q X.
    tested = owner == label
    others = (owner != "") & ~tested
    kept = ~others
    m = weight = xx[np.ix_(kept, kept)]
    if others.any():
        border, of_z = xx[np.ix_(others, kept)], np.diag(penalty[others])
        m = m - border.T @ np.linalg.solve(xx[np.ix_(others, others)] + of_z, border)
        weight = weight + border.T @ (border / penalty[others][:, None])
    # The tested block of W / scale, and of P.
    s, chosen = np.diag(penalty[kept]), np.ix_(tested[kept], tested[kept])
    inverse = np.linalg.inv(m + s)
    frequentist = (inverse @ m @ inverse)[chosen]
    precision = np.linalg.inv(np.linalg.inv(weight + s)[chosen])
    # Eigenvalues of P W, which are those of the symmetric W^1/2 P W^1/2.
    values, vectors = np.linalg.eigh(frequentist)
    root = vectors * np.sqrt(np.maximum(values, 0))
    weights = np.linalg.eigvalsh(root.T @ precision @ root)
    weights = weights[weights > weights.max() * 1e-10]
    statistic = float(beta[tested] @ precision @ beta[tested] / scale)
    rank = float(len(weights))
    return rank, statistic / rank, exceedance(weights, statistic, dof)
