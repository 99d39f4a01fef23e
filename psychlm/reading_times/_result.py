"""The result of a fit, whichever program made it, and the tests of its smooths.

The statistics of the tests are weighted sums of chi-squares. References: Wood (2013), On p-values
for smooth components of an extended generalized additive model, Biometrika 100; Wood (2013b), A
simple test for random effects in regression models, Biometrika 100; Imhof (1961), Computing the
distribution of quadratic forms, Biometrika 48.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy

import psychlm
from psychlm import _formatting
from psychlm.frames import FrameError, label_of
from psychlm.reading_times.contrasts import Floats, is_number, require_columns
from psychlm.reading_times.tests import DDF, Table, marginal_means, printed

SMALL = 1e-7  # probabilities below are approximated in the tail, where integration has no digits


@dataclass(frozen=True)
class Part:
    """What a term of a model depends on."""

    variables: tuple[str, ...]  # columns of the data
    level: Mapping[str, object] = field(default_factory=dict)  # of a smooth with by=; of a number 1


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class GAMFit:
    """A fitted additive model.

    ``coefficients``, indexed by R's names of the linear terms, has ``estimate``, ``std_error``
    (Bayesian, given the smoothing), ``low`` and ``high`` (95 %, t distribution), in the response's
    unit per unit of the predictor, and ``t`` (``z`` where degrees of freedom are infinite: a known
    scale) and ``p``. With random effects in lme4's notation ``loglik`` is what lme4's ``logLik``
    gives: the marginal likelihood, restricted by REML, of all that is neither random nor the
    penalised part of a smooth.

    Each backend is a subclass, which has what its program answers after the fit.
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
    data: pd.DataFrame  # the rows fitted, columns that the formula names
    residuals: pd.Series  # of these rows; of other families deviance residuals
    # Rows left out by the variable that is missing (of a skipped word, the response)
    missing: dict[str, int] = field(default_factory=dict)
    family: str = "gaussian"
    link: str = "identity"
    # Standard deviations of the random effects and of the residual, as mgcv's gam.vcomp
    variance_components: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    r_squared: float = np.nan  # adjusted share of the variance
    deviance_explained: float = np.nan  # share of the deviance
    criterion: float = np.nan  # negative restricted (REML) or marginal (ML) log-likelihood, nats
    aic: float = np.nan  # mgcv's fit$aic: -2 loglik + 2 (edf + 1), smoothing taken as known
    # Of the random effects of (1 + x | g), by bar
    correlations: dict[str, pd.DataFrame] = field(default_factory=dict)
    singular: tuple[str, ...] = ()  # combinations of random effects whose variance is zero
    is_mixed: bool = False  # random effects in lme4's notation, of a gaussian response
    parts: dict[str, Part]  # linear terms and smooths without random effects, by label
    random: tuple[str, ...] = ()  # labels of random effects
    variables: Sequence[str]  # columns that a prediction needs
    fixed_variables: Sequence[str] = ()  # those of linear terms and smooths
    empty_cells: tuple[str, ...] = ()  # columns of interactions that no reading determines
    r_object: Any = None  # R's object of a fit by mgcv or lme4, for rpy2

    # ---- what a program answers: a subclass that has no answer inherits these ----

    def _absent(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "pygam's fits only predict, and profile intervals are lme4's: fit natively, with "
            "backend='mgcv' or backend='lme4'"
        )

    _predict = _absent  # (data, exclude, se): the expected response, and its standard error or None
    _effect = _absent  # (label, data): what one term adds, and its standard error
    _tests = _absent  # the columns edf, ref_df, F and p of the smooths
    _terms = _absent  # (ddf): tests of the terms
    # (data): rows, (n, p), whose products with the estimate of _inference, and what is added to
    # them, (n,), are the linear predictor without random effects
    _design = _absent
    # (ddf): the estimate, (p,), its covariance, and degrees of freedom of contrasts, (m, p) to (m,)
    _inference = _absent
    _dof_method = _absent  # (ddf): its name
    _loglik_by_ml = _absent  # of the same model, fitted again
    # the deviance, and the residual's degrees of freedom
    _deviance = _absent

    def random_effects(self) -> pd.DataFrame:
        """Return ``term``, ``level``, ``estimate`` and ``std_error`` of all random effects.

        Errors include those of the fixed effects, as mgcv's; lme4's are conditional on them.
        """
        return self._absent()

    def profile_intervals(self, level: float = 0.95) -> pd.DataFrame:
        """Return lme4's profile-likelihood intervals: ``low`` and ``high`` of each parameter."""
        return self._absent(level)

    means = marginal_means

    @property
    def n_missing(self) -> int:
        """Return how many rows were left out because a variable is missing."""
        return sum(self.missing.values())

    @property
    def vcov(self) -> pd.DataFrame:
        """Return ``covariance``."""
        return self.covariance

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

    def predict(
        self, data: pd.DataFrame, *, se: bool = False, exclude: Sequence[str] = ()
    ) -> pd.Series | pd.DataFrame:
        """Return the expected response for new rows, with ``se`` a frame of ``fit`` and
        ``std_error`` (of the expected response, given the smoothing).

        Terms in ``exclude`` count as 0: ``["s(subject)"]`` gives the average person. A new level of
        a random effect has the mean effect, 0; one of a linear term's factor is an error.
        """
        labels = [*self.parts, *self.random]
        unknown = [label for label in exclude if label not in labels]
        if unknown:
            raise ValueError(f"exclude={unknown} are no terms of the model; it has {labels}")
        require_columns(self.variables, data)
        gaps = [name for name in self.variables if data[name].isna().any()]
        if gaps:
            raise FrameError(f"cannot predict: predictors {gaps} have gaps; fill or drop the rows")
        for name in self.variables:  # a level 1 is no level "1"
            given = data[name]
            known = self.data[name]
            if is_number(given) == is_number(known) or given.isin(known).any():
                continue
            if {*map(label_of, given.unique())} & {*map(label_of, known.unique())}:
                raise FrameError(
                    f"cannot predict: {name!r} holds {given.dtype}, and {known.dtype} in the data "
                    "of the fit; convert it"
                )
        fit, error = self._predict(data, exclude, se)
        if se:
            return pd.DataFrame({"fit": fit, "std_error": error}, index=data.index)
        return pd.Series(fit, index=data.index, name=self.formula.partition("~")[0].strip())

    def effect(self, term: str, *, n: int = 100, level: float = 0.95) -> pd.DataFrame:
        """Return what one term adds to the linear predictor, over the range of its variables.

        The term is named by its label, ``"te(length,freq)"`` or ``"s(position):conditionb"``. There
        are ``n`` points along each variable, and a band of coverage ``level`` at each: columns
        ``effect``, ``std_error``, ``low`` and ``high``.
        """
        if term not in self.parts:
            raise ValueError(
                f"{term!r} is no linear term or smooth of the fit, which has "
                f"{list(self.parts)}; random effects are in fit.random_effects()"
            )
        # A grid over the range of each number and the levels of each factor.
        part = self.parts[term]
        axes = []
        for name in part.variables:
            values = self.data[name]
            if is_number(values):
                axes.append(pd.Series(np.linspace(values.min(), values.max(), n)))
            else:
                axes.append(values.drop_duplicates().sort_values())
        grid = pd.MultiIndex.from_product(axes, names=part.variables).to_frame(index=False)
        others = self.data.iloc[[0] * len(grid)].reset_index(drop=True)
        effect, error = self._effect(term, others.assign(**grid, **part.level))
        margin = scipy.stats.norm.ppf((1 + level) / 2) * error
        bounds = {"low": effect - margin, "high": effect + margin}
        return grid.assign(effect=effect, std_error=error, **bounds)

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
            ``mean_sq`` of linear terms before them.
        """
        if self.empty_cells and self.is_mixed:
            raise ValueError(
                f"no reading determines {list(self.empty_cells)}, so that tests of type III "
                "depend on the coding; compare nested fits: reading_times.anova(smaller, larger)"
            )
        table = self._terms(ddf)
        kind = "type III" if self.is_mixed else "each term given all others"
        title = f"F tests of the terms of {self.formula}"
        note = f"{kind}; degrees of freedom: {self._dof_method(ddf)}; n = {self.n:,}"
        return Table(table.rename_axis("term"), title, (f"{note} ({self.left_out})",))

    def summary(self) -> Summary:
        """Return the tables of R's ``summary``: tests of linear terms and of smooths.

        A smooth is tested by Wood's (2013) statistic, whose rank is ``ref_df``, a random effect by
        Wood's (2013b) test of a zero variance.
        """
        return Summary(self, self.coefficients.drop(columns=["low", "high"]), self._tests())

    def methods(self) -> str:
        """Return what a methods section says of the model: kind, program, estimation, rows.

        >>> from psychlm import reading_times
        >>> words = pd.DataFrame({"gaze_ms": [212.0, 248, 230, 270], "bits": [2.0, 6, 4, 8]})
        >>> reading_times.fit(words, "gaze_ms ~ bits").methods().partition(" (")[0]
        'a linear model'
        """
        kind = "linear model"
        if len(self.smooths) or self.random:
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

    def _deviations(self) -> pd.DataFrame:
        deviations = self.variance_components.rename("standard deviation").to_frame()
        return deviations.rename_axis("effect")

    @property
    def left_out(self) -> str:
        """Return how many rows were left out, and which variable is missing in them."""
        by_variable = ", ".join(f"{name} {n:,}" for name, n in self.missing.items())
        reason = f", missing: {by_variable}" if by_variable else ""
        return f"{self.n_missing:,} rows left out{reason}"

    def __repr__(self) -> str:
        """Return the model and its estimates, as R's ``print`` does."""
        converged = "" if self.converged else ", NOT converged"
        of_bars = self.random if self.is_mixed else ()
        smooths = self.smooths.drop(index=list(of_bars), errors="ignore")
        deviations = self._deviations() if self.is_mixed else pd.DataFrame()
        tables = [table for table in (self.coefficients, smooths, deviations) if len(table)]
        return (
            f"{self.formula}\n{self.backend}, {self.method}{converged}: n = {self.n:,} "
            f"({self.left_out}), log-likelihood {self.loglik:.2f} "
            f"on {self.edf:.2f} degrees of freedom, residual deviation {self.scale**0.5:.4g}"
        ) + "".join(f"\n\n{printed(table)}" for table in tables)


@dataclass(frozen=True, repr=False)
class Summary(_formatting.PaperTables):
    """The tests of a fit; printing it gives what R's ``summary`` prints."""

    fit: GAMFit
    coefficients: pd.DataFrame  # estimate, std_error, t (z if the scale is known) and p
    smooths: pd.DataFrame  # edf, ref_df, F (or chi-squared) and p of each smooth

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, Sequence[str]]]:
        tables: list[tuple[pd.DataFrame, str, Sequence[str]]] = [
            (self.coefficients, "Linear terms", [f"From {self.fit.methods()}"]),
            (self.smooths.dropna(), "Smooths", []),
        ]
        if len(self.fit.variance_components) > 1:
            tables.append((self.fit._deviations(), "Random effects", []))
        return tables

    def __repr__(self) -> str:
        """Return the tables with the measures of fit."""
        fit = self.fit
        text = [f"{self.fit.formula}\n{self.fit.family}, {self.fit.backend}"]
        if not fit.converged:
            text.append("NOT converged")
        # effects in lme4's notation have no tests: their standard deviations are below
        smooths = self.smooths.dropna() if fit.is_mixed else self.smooths
        for title, table in (("Linear terms", self.coefficients), ("Smooths", smooths)):
            if len(table):
                text.append(f"{title}:\n{printed(table)}")
        if len(fit.variance_components) > 1:
            text.append(f"Random effects:\n{printed(fit._deviations())}")
        for bar, table in fit.correlations.items():
            text.append(f"Correlations of {bar}:\n{table.to_string(float_format='{:.3f}'.format)}")
        text += [f"Singular: {message}" for message in fit.singular]
        shares = ""
        if not np.isnan(fit.r_squared):
            shares = f"Adjusted R squared = {fit.r_squared:.3g}, deviance explained = "
            shares += f"{fit.deviance_explained:.1%}\n"
        text.append(
            f"{shares}{fit.method} criterion = {fit.criterion:.2f} nats, "
            f"log-likelihood = {fit.loglik:.2f} nats, AIC = {fit.aic:.2f}\n"
            f"Residual variance = {fit.scale:.5g}, n = {fit.n:,} ({fit.left_out})"
        )
        return "\n\n".join(text)


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

    Where the degrees of freedom differ between coefficients they are a column ``df``; where they
    are infinite the tests are z tests. A coefficient without variance was dropped by R, which gives
    it 0: it is NaN, with a warning.
    """
    std_error = np.sqrt(np.diag(covariance))
    index = pd.Index(names, name="coefficient")
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
    is_z = bool(np.isinf(dof).all())
    if np.ndim(dof) and not is_z:
        table["df"] = np.asarray(dof)
    statistic = estimate / std_error
    table["z" if is_z else "t"] = statistic
    table["p"] = 2 * scipy.stats.t.sf(np.abs(statistic), dof)
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
        a = np.r_[weights, -statistic / dof]
        h = np.r_[np.ones(len(weights)), dof]
        shift = 0.0
    else:
        a = weights
        h = np.ones(len(weights))
        shift = statistic
    size = weights.max()
    a = a / size
    shift = shift / size

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
    values = values[::-1]
    along = (vectors.T @ (root @ beta))[::-1]
    rank = min(rank, float((values > values[0] * 1e-14).sum()))
    k = int(np.floor(rank))
    v = rank - k
    z = along / np.sqrt(np.maximum(values, values[0] * 1e-300))
    if k == 0:  # less than one degree of freedom: the largest eigenvalue alone
        return rank, float(z[0] ** 2 / rank), exceedance(np.ones(1), float(z[0] ** 2), dof)
    if v == 0:
        statistics = [z[:k] @ z[:k]]
        weights = np.ones(k)
    else:
        c = np.sqrt(v * (1 - v) / 2)
        e = np.sqrt(1 - v**2)
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
        border = xx[np.ix_(others, kept)]
        of_z = np.diag(penalty[others])
        m = m - border.T @ np.linalg.solve(xx[np.ix_(others, others)] + of_z, border)
        weight = weight + border.T @ (border / penalty[others][:, None])
    # The tested block of W / scale, and of P.
    s = np.diag(penalty[kept])
    chosen = np.ix_(tested[kept], tested[kept])
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
