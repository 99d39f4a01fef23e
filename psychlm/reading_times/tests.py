"""Tests after a fit: likelihood ratios of nested fits, F tests of terms, marginal means.

References: Kuznetsova, Brockhoff & Christensen (2017), lmerTest package, Journal of Statistical
Software 82; Searle, Speed & Milliken (1980), Population marginal means in the linear model, The
American Statistician 34.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from psychlm import _formatting
from psychlm.frames import FrameError
from psychlm.reading_times.contrasts import Floats, is_number, level_name
from psychlm.reading_times.smooths import factor_levels

if TYPE_CHECKING:
    from psychlm.reading_times._result import GAMFit

DDF = Literal["Satterthwaite", "Kenward-Roger"]
Adjust = Literal["tukey", "holm", "bonferroni", "none"]
ZERO = 1e-7  # share of the largest below which a coefficient of a contrast is rounding


@dataclass(frozen=True, repr=False)
class Table(_formatting.PaperTables):
    """A table of tests or means, and the notes that belong below it."""

    table: pd.DataFrame
    title: str
    notes: tuple[str, ...] = ()

    def __getitem__(self, column: str) -> pd.Series:
        """Return a column of the table."""
        return self.table[column]

    def __repr__(self) -> str:
        """Return the table with its title and notes, as R prints it."""
        return "\n".join([self.title, printed(self.table), *self.notes])

    def _repr_html_(self) -> str:
        html = self.table.to_html(formatters=_formatters(self.table))
        return "".join([f"<p>{self.title}</p>", html, *(f"<p>{note}</p>" for note in self.notes)])

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, Sequence[str]]]:
        return [(self.table, self.title, self.notes)]


def _formatters(table: pd.DataFrame) -> dict[str, Any]:
    """Return how columns of numbers are printed: four significant digits, p with three."""

    def number(x: float) -> str:
        return "" if pd.isna(x) else f"{x + 0.0:.4g}" if abs(x) < 1e4 else f"{x:.1f}"

    def p_value(p: float) -> str:
        return "" if pd.isna(p) else f"{p:.3g}" if p >= 1e-10 else "<1e-10"

    numeric = [name for name in table if pd.api.types.is_float_dtype(table[name])]
    return {name: p_value if name == "p" else number for name in numeric}


def printed(table: pd.DataFrame) -> str:
    """Return a table as it is printed."""
    return str(table.to_string(formatters=_formatters(table)))


# ---- likelihood-ratio tests of nested fits ----


def anova(*fits: GAMFit) -> Table:
    """Compare nested fits of the same rows, the smaller one first, as R's ``anova`` does.

    Mixed models (random effects in lme4's notation) are compared by twice the difference of their
    log-likelihoods, chi-squared with the difference in parameters. Restricted likelihoods (REML) do
    not compare where fixed effects differ: such fits are fitted again by ML, as lme4 does. Additive
    models are compared by the difference of their deviances as a share of the larger model's scale,
    with the difference of n - 2 tr F + tr FF, the degrees of freedom of the residual: mgcv's
    ``anova(a, b, test="Chisq")``, which, as fits by ``backend="mgcv"`` do here, takes off those
    that the estimation of the smoothing takes, too (Wood, Pya & Saefken 2016).

    Parameters
    ----------
    *fits : GAMFit
        Two fits or more.

    Returns
    -------
    Table
        ``n_parameters``, ``aic``, ``bic``, ``loglik``, ``deviance`` (-2 log-likelihood), and of
        each fit but the first ``chi2``, ``df`` and ``p``; of additive models ``residual_df``,
        ``deviance``, ``df``, ``chi2`` and ``p``.

    Raises
    ------
    ValueError
        If there are fewer than two fits, or kinds of fits differ.
    FrameError
        If the fits are of other rows or another response.

    Examples
    --------
    >>> from psychlm import reading_times
    >>> drawn = reading_times.simulate(np.random.default_rng(5), n_words=80, n_texts=4)
    >>> formulas = ["gaze_ms ~ 1 + (1 | subject)", "gaze_ms ~ length_chars + (1 | subject)"]
    >>> found = anova(*(reading_times.fit(drawn.readings, formula) for formula in formulas))
    >>> found["df"].tolist(), found.notes[-1]
    ([nan, 1.0], 'fitted by ML again: fixed effects differ')
    """
    if len(fits) < 2:
        raise ValueError("anova compares fits: give two or more, anova(a, b)")
    first = fits[0]
    response = first.formula.partition("~")[0].strip()
    for other in fits[1:]:
        theirs = other.formula.partition("~")[0].strip()
        if theirs != response:
            raise FrameError(f"the fits have other responses, {response} and {theirs}")
        if not other.data.index.equals(first.data.index):
            raise FrameError(
                f"the fits are of other rows ({first.left_out}; {other.left_out}); fit both to the "
                "rows that have the variables of all: readings.dropna(subset=[...])"
            )
    mixed = {fit.is_mixed for fit in fits}
    if len(mixed) > 1 or len({fit.family for fit in fits}) > 1:
        raise ValueError(
            "the fits are of other kinds; give all of them random effects in lme4's notation, (1 | "
            "subject), or all in mgcv's, and one family"
        )
    notes = [f"{i + 1}: {fit.formula}" for i, fit in enumerate(fits)]
    n = first.n
    if first.is_mixed:  # by their likelihoods
        title = "Likelihood-ratio tests"
        methods = {fit.method for fit in fits}
        differ = len({tuple(sorted(fit.coefficients.index)) for fit in fits}) > 1
        again = len(methods) > 1 or (differ and "REML" in methods)
        loglik = np.array([fit._loglik_by_ml() if again else fit.loglik for fit in fits])
        n_parameters = np.array([round(fit.aic / 2 + fit.loglik) for fit in fits])
        chi2 = 2 * np.diff(loglik)
        df = np.diff(n_parameters)
        columns = {
            "n_parameters": n_parameters,
            "aic": -2 * loglik + 2 * n_parameters,
            "bic": -2 * loglik + np.log(n) * n_parameters,
            "loglik": loglik,
            "deviance": -2 * loglik,
            "chi2": np.r_[np.nan, chi2],
            "df": np.r_[np.nan, df],
            "p": np.r_[np.nan, np.where(df > 0, scipy.stats.chi2.sf(chi2, df), np.nan)],
        }
        notes.append(f"{n:,} rows; likelihoods by {'ML' if again else first.method}")
        if (df <= 0).any():
            notes.append("a fit without more parameters than the one before it has no test")
        if again:
            notes.append(f"fitted by ML again: {'fixed effects' if differ else 'methods'} differ")
    else:  # by their deviances
        title = "Analysis of deviance"
        deviance, residual_df = np.array([fit._deviance() for fit in fits]).T
        largest = fits[int(residual_df.argmin())]
        df = -np.diff(residual_df)
        chi2 = -np.diff(deviance) / largest.scale
        # as R: a larger model first has negative degrees of freedom and a negative difference, and
        # a model with more of them that fits worse has no test
        statistic = chi2 * np.sign(df)
        p = np.where(statistic < 0, np.nan, scipy.stats.chi2.sf(statistic, np.abs(df)))
        p[df == 0] = np.nan
        changes = {"df": df, "chi2": chi2, "p": p}
        columns = {"residual_df": residual_df, "deviance": deviance}
        columns |= {name: np.r_[np.nan, change] for name, change in changes.items()}
        scale = f"the scale is model {fits.index(largest) + 1}'s, {largest.scale:.5g}"
        notes.append(f"{n:,} rows; {scale}")
        if largest.backend == "native" and len(largest.smooths):
            notes.append(
                "smoothing counts as known; fits by backend='mgcv' count its estimation, too"
            )
    table = pd.DataFrame(columns, index=pd.RangeIndex(1, len(fits) + 1, name="model"))
    return Table(table, title, tuple(notes))


# ---- F tests of terms ----


def change_of_coding(x: Floats, columns: Floats) -> Floats:
    """Return B, (p, k), with X B the columns, (n, k): B turns their coefficients into those of X.

    X, (n, p), has full rank, and 1 comes first. The mean of a predictor may be 1e7 of its standard
    deviations (a date): the equations are those of centred and scaled columns, and what is an
    integer but for rounding (most of B is) is one.
    """
    mean = x[:, 1:].mean(axis=0)
    mean_of_columns = columns.mean(axis=0)
    centred = x[:, 1:] - mean
    sd = centred.std(axis=0)
    slopes = np.linalg.lstsq(centred / sd, columns - mean_of_columns, rcond=None)[0] / sd[:, None]
    slopes = np.where(np.abs(slopes - np.rint(slopes)) < ZERO, np.rint(slopes), slopes)
    intercept = mean_of_columns - mean @ slopes
    size = np.abs(mean_of_columns) + np.abs(mean) @ np.abs(slopes)
    return np.vstack([np.where(np.abs(intercept) < ZERO * size, 0, intercept), slopes])


def f_test(
    contrasts: Floats, estimate: Floats, covariance: Floats, dof: Callable[[Floats], Floats]
) -> tuple[float, float, float, float]:
    """Test whether contrasts L of coefficients b with covariance V are zero.

    The eigenvectors of L V L' turn L into q independent contrasts, whose squared t values have the
    mean F. With their degrees of freedom nu_i the denominator has 2 E / (E - q), where E is the sum
    of nu_i / (nu_i - 2): the F distribution with this expectation (Fai & Cornelius 1996). ``dof``
    gives those of contrasts, (m, p) to (m,). Returned are q, the denominator, F and p.
    """
    values, vectors = np.linalg.eigh(contrasts @ covariance @ contrasts.T)
    kept = values > max(1.5e-8 * values.max(initial=0), 0)
    q = int(kept.sum())
    if not q:
        return 0.0, np.nan, np.nan, np.nan
    independent = vectors[:, kept].T @ contrasts
    f = float(((independent @ estimate) ** 2 / values[kept]).mean())
    nu = dof(independent)
    if q == 1 or np.ptp(nu) < 1e-8 * nu.max() or np.isinf(nu).all():
        denominator = float(nu.mean())
    elif (nu <= 2).any():
        denominator = 2.0
    else:
        expected = float((nu / (nu - 2)).sum())
        denominator = 2 * expected / (expected - q)
    p = scipy.stats.f.sf(f, q, denominator) if np.isfinite(denominator) else None
    return q, denominator, f, float(scipy.stats.chi2.sf(q * f, q) if p is None else p)


# ---- marginal means ----

TRANSFORMED: dict[str, Callable[..., Any]] = {
    "log": np.exp,
    "log2": np.exp2,
    "log10": lambda x: 10**x,
    "sqrt": np.square,
    "logit": scipy.special.expit,
    "probit": scipy.special.ndtr,
}
RATIOS = {"log": "ratio", "logit": "odds_ratio"}  # what exp() of a difference is


def marginal_means(
    fit: GAMFit,
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
        of logarithms become ratios, of logits ratios of odds.
    bias_correction : bool
        Whether to multiply means of ``log(y)`` by 1 + v/2, v the residual variance, which makes
        them means of y; without, they are medians. The variance of random effects is not in v.
    ddf, level
        Degrees of freedom of mixed models; the coverage of the intervals.

    Returns
    -------
    Table
        The variables (of pairs ``contrast``), ``estimate`` (``ratio``), ``std_error``, ``df``,
        ``low``, ``high``, and of pairs ``t`` (or ``z``) and ``p``; notes say what was averaged and
        held.

    Examples
    --------
    >>> from psychlm import reading_times
    >>> words = pd.DataFrame({"ms": [10.0, 12, 20, 26], "old": list("aabb"), "x": [1, 2, 1, 2]})
    >>> fit = reading_times.fit(words, "ms ~ old + x")
    >>> fit.means("old")["estimate"].round(6).tolist()
    [11.0, 23.0]
    """
    of = [of] if isinstance(of, str) else list(of)
    by = [by] if isinstance(by, str) else list(by)
    at = {name: np.atleast_1d(values) for name, values in (at or {}).items()}
    variables = fit.fixed_variables
    unknown = [name for name in (*of, *by, *at) if name not in variables]
    unknown += [name for name in of if name in by]
    if unknown or not of:
        raise ValueError(
            f"means of {of} by {by}: {unknown} are in both, or no variables of the fixed part, "
            f"which are {[*variables]}"
        )
    estimates = fit.coefficients["estimate"]
    undetermined = [*fit.empty_cells, *estimates.index[estimates.isna()]]
    if undetermined:
        raise ValueError(
            f"no reading determines {undetermined}, so that means over all cells are not "
            "estimable; fit one factor that has a level for each cell with readings, "
            "data.assign(cell=data['a'] + data['b']), and ask for its means"
        )
    adjust = adjust or ("tukey" if pairs else "none")

    grid, others, held = _reference_grid(fit, at)
    averaged = [name for name in grid if grid[name].nunique() > 1 and name not in (*of, *by)]

    # Each mean is an average of rows of the grid, all levels weighing the same.
    rows_of_grid, added = fit._design(pd.concat([grid, others], axis=1))
    keys = [*by, *of]
    labels = grid[keys].drop_duplicates().sort_values(keys, ignore_index=True)
    place = pd.MultiIndex.from_frame(labels).get_indexer(pd.MultiIndex.from_frame(grid[keys]))
    weights = np.eye(len(labels))[place].T
    weights /= weights.sum(axis=1, keepdims=True)
    contrasts = weights @ rows_of_grid
    offset = weights @ added

    left = fit.formula.partition("~")[0].strip()
    call = re.fullmatch(r"(log|log2|log10|sqrt)\(.*\)", left)
    transform = call[1] if call else fit.link
    title = f"Marginal means of {left}"
    sizes = np.ones(len(labels))
    if pairs:
        mark = " / " if response and transform in RATIOS else " - "
        first, second, sizes, labels = _all_pairs(labels, of, by, mark)
        contrasts = contrasts[first] - contrasts[second]
        offset = offset[first] - offset[second]
        title = f"Differences of marginal means of {left}"

    # Estimates, errors, and degrees of freedom.
    estimate, covariance, dof = fit._inference(ddf)
    found = contrasts @ estimate + offset
    error = np.sqrt(np.einsum("mp,pq,mq->m", contrasts, covariance, contrasts))
    df = dof(contrasts)
    t = found / error
    n_tests = sizes * (sizes - 1) / 2 if pairs else np.full(len(found), float(len(found)))
    p, width = adjusted(t, df, sizes, n_tests, adjust, level)
    margin = width * error
    table = labels.assign(estimate=found, std_error=error, df=df)
    table = table.assign(low=found - margin, high=found + margin)
    if pairs:
        table = table.assign(**{"z" if np.isinf(df).all() else "t": t}, p=p)
    notes = [f"{level:.0%} intervals; degrees of freedom: {fit._dof_method(ddf)}"]
    if averaged:
        notes.append(f"averaged over the levels of {', '.join(averaged)}")
    if held:
        notes.append(f"at the means {', '.join(held)}")
    if pairs and (adjust == "none" or (sizes <= 2).all()):
        notes.append("p of single comparisons")
    elif pairs:
        names = {"tukey": "Tukey's", "holm": "Holm's", "bonferroni": "Bonferroni's"}
        intervals = "; intervals by Bonferroni's" if adjust == "holm" else ""
        notes.append(f"p adjusted by {names[adjust]} method{intervals}")
    if response:
        variance = fit.scale if bias_correction else None
        table, note = to_response(table, transform, pairs, variance, is_link=not call)
        notes.append(note)
    elif transform != "identity":
        notes.append(f"on the {transform} scale; response=True gives that of the response")
    return Table(table, title, tuple(notes))


def _all_pairs(
    labels: pd.DataFrame, of: list[str], by: list[str], mark: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, pd.DataFrame]:
    """Return the rows of the two means of each pair within ``by``, how many means there are in its
    group, and labels of the pairs."""
    groups = labels.groupby(by, observed=True).indices.values() if by else [labels.index]
    pairs = [(*two, len(places)) for places in groups for two in combinations(places, 2)]
    first, second, sizes = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    # a level as R writes it, and a blank between those of several variables
    names = [" ".join(map(level_name, row)) for row in labels[of].to_numpy(object)]
    named = [names[i] + mark + names[j] for i, j in zip(first, second, strict=True)]
    of_pairs = labels.loc[first, by].reset_index(drop=True).assign(contrast=named)
    return first, second, sizes.astype(np.float64), of_pairs


def _reference_grid(
    fit: GAMFit, at: Mapping[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return all combinations of levels of factors and of numbers with two values, with the means
    of other numbers; columns that only random effects need; and what was held at its mean."""
    axes: dict[str, list[Any]] = {}
    held = []
    for name in fit.fixed_variables:
        values = fit.data[name].dropna()
        levels = factor_levels(values)
        distinct = list(values.drop_duplicates().sort_values() if levels is None else levels)
        if name in at:
            axes[name] = list(at[name])
            unknown = [level for level in at[name] if levels is not None and level not in levels]
            if unknown or not axes[name]:
                raise ValueError(f"at= has {name!r} at {axes[name]}; its levels are {distinct}")
        elif is_number(values) and len(distinct) > 2:
            axes[name] = [float(values.mean())]
            held.append(f"{name} = {values.mean():.4g}")
        else:
            axes[name] = distinct
    grid = pd.MultiIndex.from_product(axes.values(), names=list(axes)).to_frame(index=False)
    for name in grid:
        if isinstance(fit.data[name].dtype, pd.CategoricalDtype):
            grid[name] = grid[name].astype(fit.data[name].dtype)
    rest = [name for name in fit.variables if name not in grid]
    return grid, fit.data[rest].iloc[[0] * len(grid)].reset_index(drop=True), held


def adjusted(
    t: Floats, df: Floats, sizes: Floats, n_tests: Floats, adjust: Adjust, level: float
) -> tuple[Floats, Floats]:
    """Return p of t values, and how many standard errors an interval has to each side.

    Tukey's method takes the largest of all differences of ``sizes`` means, whose distribution is
    that of the studentized range; Holm's steps down, and has Bonferroni's intervals. A comparison
    is one of ``n_tests``, of which those with one number of means and one family stand together.
    """
    p = 2 * scipy.stats.t.sf(np.abs(t), df)
    width = scipy.stats.t.ppf((1 + level) / 2, df)
    if adjust == "tukey" and (several := n_tests > 1).any():
        ranges = scipy.stats.studentized_range
        of_range = sizes[several], df[several]
        p[several] = ranges.sf(np.sqrt(2) * np.abs(t[several]), *of_range)
        width[several] = ranges.ppf(level, *of_range) / np.sqrt(2)
    if adjust in ("holm", "bonferroni"):
        from statsmodels.stats.multitest import multipletests

        width = scipy.stats.t.ppf(1 - (1 - level) / 2 / n_tests, df)
        begin = 0
        while begin < len(p):  # the comparisons of one group stand together
            family = slice(begin, begin + int(n_tests[begin]))
            p[family] = multipletests(p[family], method=adjust)[1]
            begin = family.stop
    return p, width


def to_response(
    table: pd.DataFrame, transform: str, pairs: bool, variance: float | None, is_link: bool
) -> tuple[pd.DataFrame, str]:
    """Return means or differences on the scale of the response, and a note on how.

    The mean of exp(x), x normal with the residual variance v, is exp(mean) (1 + v / 2) to second
    order: with ``variance`` means and their bounds have this factor, as emmeans has it; without,
    they are those of a typical response, its median. Differences of logarithms are ratios, of
    logits ratios of odds. Means of a family with a link are those where random effects are zero.
    """
    if transform == "identity":
        return table, "on the scale of the response"
    unknown = transform not in (RATIOS if pairs else TRANSFORMED)
    if unknown or (variance is not None and transform != "log"):
        what = "differences" if pairs else "means" if unknown else "bias corrections"
        there = "log" if not unknown else ", ".join(RATIOS if pairs else TRANSFORMED)
        raise FrameError(
            f"{what} on the scale of the response are there for {there}, and the response has "
            f"{transform}; leave out {'response=True' if unknown else 'bias_correction=True'}"
        )
    back = np.exp if pairs else TRANSFORMED[transform]
    found = table["estimate"].to_numpy()
    step = 1e-6 * np.maximum(np.abs(found), 1)
    slope = (back(found + step) - back(found - step)) / (2 * step)
    factor = 1.0 if variance is None or pairs else 1 + variance / 2
    changed = table.assign(
        estimate=back(found) * factor,
        std_error=table["std_error"] * slope * factor,
        low=back(table["low"]) * factor,
        high=back(table["high"]) * factor,
    )
    note = f"back from the {transform} scale: tests and intervals are made on that scale"
    if pairs:
        ratio = RATIOS[transform]
        return changed.rename(columns={"estimate": ratio}), f"{ratio.replace('_', ' ')}s; {note}"
    of = "for random effects of zero" if is_link else "medians, without bias correction"
    return changed, f"{note}; {of if variance is None else f'times 1 + v/2 = {factor:.4g}'}"
