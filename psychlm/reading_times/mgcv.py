"""R through rpy2, and the same additive model in its mgcv: the reference for the native backend.

R is started once, by the first call; what is written in R is in ``functions.R``. Columns are passed
one by one as memory blocks (rpy2's pandas converter takes fifty times as long), text as factors
(ordered ones with treatment contrasts), booleans as logicals. R's warnings become Python's.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, label_of
from psychlm.reading_times._result import GAMFit, Part, coefficient_tables, smooth_table
from psychlm.reading_times.contrasts import Contrast, Floats, is_number, is_ordered, require_columns
from psychlm.reading_times.smooths import require_levels, warn_of_numbers
from psychlm.reading_times.tests import DDF

INSTALL = (
    "install R with mgcv (Debian, Ubuntu: apt-get install r-base-core r-cran-mgcv; macOS: brew "
    "install r; conda: environment.yml has both), then: pip install 'psychlm[r]'. The native "
    "backend needs none of them"
)


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
    """Hold R's lock and rpy2's conversion rules, which a plain thread does not have; an error of R
    becomes a :class:`FrameError`."""
    robjects = _start()
    from rpy2.rinterface_lib import embedded, openrlib

    with openrlib.rlock, robjects.conversion.localconverter(robjects.default_converter):
        try:
            yield robjects
        except embedded.RRuntimeError as error:
            raise FrameError(f"R cannot compute this: {' '.join(str(error).split())}") from None


@cache
def r_function(code: str) -> Callable[..., Any]:
    """Return a function of ``functions.R`` by its name, or one that is written in R, made once."""
    r = _start().r
    return r["eval"](r["parse"](text=code), _functions())


@cache
def _functions() -> Any:
    """Return the environment of R in which the functions of ``functions.R`` are."""
    functions = _start().r("new.env()")
    _start().r["sys.source"](str(Path(__file__).with_name("functions.R")), functions)
    return functions


def version() -> dict[str, str]:
    """Return the versions of R and mgcv."""
    with in_r() as robjects:
        return {"R": str(robjects.r("as.character(getRversion())")[0]), "mgcv": version_of("mgcv")}


def version_of(package: str) -> str:
    """Return the version of a package of R."""
    with in_r() as robjects:
        return str(robjects.r(f'as.character(utils::packageVersion("{package}"))')[0])


@dataclass(frozen=True)
class Columns:
    """The columns that a fit in R needs, at all rows, since R evaluates functions such as ``scale``
    before it leaves out those that lack a variable; and the contrasts of factors."""

    all_rows: pd.DataFrame
    complete: pd.Series  # which rows lack no variable
    contrasts: Mapping[str, Contrast]


def to_r(
    data: pd.DataFrame,
    columns: Sequence[str],
    factors: Sequence[str] = (),
    contrasts: Mapping[str, Contrast] | None = None,
) -> Any:
    """Pass columns to R as a data frame, one memory block each; ``factors`` become factors even if
    numeric, and those with ``contrasts`` have them."""
    with in_r() as robjects:
        from rpy2.rinterface import FloatSexpVector

        vectors = robjects.vectors

        def numbers(values: Any) -> Any:
            block = np.ascontiguousarray(values, dtype=np.float64)
            return vectors.FloatVector(FloatSexpVector.from_memoryview(block.data))

        blocks = {}
        for name in columns:
            values = data[name]
            if pd.api.types.infer_dtype(values) == "boolean":  # objects, too
                truth = values.astype("boolean").to_numpy(np.float64, na_value=np.nan)
                blocks[name] = robjects.r["as.logical"](numbers(truth))
            elif pd.api.types.is_numeric_dtype(values) and name not in factors:
                blocks[name] = numbers(values.to_numpy(np.float64, na_value=np.nan))
            else:
                labels = values.astype("category").cat.remove_unused_categories().cat
                codes = numbers(labels.codes.where(labels.codes >= 0) + 1)  # R counts from 1
                names = vectors.StrVector([label_of(level) for level in labels.categories])
                blocks[name] = r_function("to_factor")(codes, names, is_ordered(values))
                if contrasts and name in contrasts and len(labels.categories) > 1:
                    matrix, suffixes = contrasts[name].code(name, tuple(labels.categories))
                    blocks[name] = r_function("with_contrasts")(
                        blocks[name], numbers(matrix.T.ravel()), vectors.StrVector(suffixes)
                    )
        return robjects.DataFrame(blocks)


def named(r_list: Any) -> dict[str, Any]:
    """Return the parts of R's list by their names."""
    return dict(zip(r_list.names, r_list, strict=True))


def variables_of(formula: str, function: str = "variables_of") -> list[str]:
    """Return the variables of a formula, the response first, or what another function finds."""
    with in_r():
        try:
            return [str(name) for name in r_function(function)(formula)]
        except Exception as error:
            raise FrameError(f"R cannot read {formula!r}: {str(error).strip()}") from None


def fit_in_r(
    package: str,
    call: str,
    formula: str,
    columns: Columns,
    r_arguments: str,
    factors: Sequence[str],
) -> tuple[Any, Any, pd.DataFrame]:
    """Call a package's function that fits; return R's fit, and the columns that it used in R and
    here.

    The call still lacks further arguments. R's warnings become Python's, and its error a
    :class:`FrameError`.
    """
    data = columns.all_rows
    calls = re.findall(r"\bas\.(numeric|integer|double)\(\s*`?([\w.]+)`?\s*\)", formula)
    for function, name in calls:
        if name in data and not (is_number(data[name]) or pd.api.types.is_bool_dtype(data[name])):
            raise FrameError(
                f"as.{function}({name}) would be the numbers of levels: {name!r} is no column of "
                f"numbers; write as.{function}(as.character({name})) for what its cells say"
            )
    with in_r():
        in_r_columns = to_r(data, list(data), factors, columns.contrasts)
        whole = f"{call}, {r_arguments})" if r_arguments else f"{call})"
        result = named(r_function("fit_model")(package, whole, formula, in_r_columns))
        if result["refused"][0]:
            raise FrameError(f"{package} refused {formula!r}: {result['fit'][0]}")
        rows = np.array(r_function("rows_of")(result["fit"]))
    for message in result["warnings"]:
        warnings.warn(f"{package}: {message}", RuntimeWarning, stacklevel=4)
    return result["fit"], in_r_columns, data.iloc[rows - 1]


def fields_of(part: dict[str, Any], dof: float | Floats, used: pd.DataFrame) -> dict[str, Any]:
    """Return the fields of a fit that R's result has under their names here."""
    scalars = "loglik", "edf", "scale", "r_squared", "deviance_explained", "criterion", "aic"
    numbers = {name: float(part[name][0]) for name in scalars if name in part}
    estimate = np.asarray(part["estimate"])
    covariance = np.asarray(part["covariance"]).reshape(len(estimate), len(estimate))
    return {
        **numbers,
        **coefficient_tables([*map(str, part["names"])], estimate, covariance, dof),
        "link": str(part["link"][0]),
        "converged": bool(part["converged"][0]),
        "n": len(used),
        "data": used,
        "residuals": pd.Series(np.array(part["residuals"]), used.index, name="residual"),
    }


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class RFit(GAMFit):
    """A fit in R, with what its predictions need."""

    factors: Sequence[str]  # numbers that label groups or have contrasts
    levels: dict[str, set[Any]]  # of factors

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Return an array, or arrays by name: what this program's function in ``functions.R`` gives
        of R's object. Frames and lists of text among the arguments become R's."""
        with in_r() as robjects:
            given = []
            for x in arguments:
                if isinstance(x, pd.DataFrame):
                    x = to_r(x, self.variables, self.factors)
                given.append(robjects.StrVector(x) if isinstance(x, list) else x)
            found = r_function(f"{self.backend}_{what}")(self.r_object, *given)
            if isinstance(found, robjects.ListVector):
                return {name: np.array(values) for name, values in named(found).items()}
            return np.array(found)

    def _design(self, data: pd.DataFrame) -> tuple[Floats, Floats]:
        rows = self._ask("design", data)
        return rows[:, :-1], rows[:, -1]

    def _terms(self, ddf: DDF) -> pd.DataFrame:
        found = self._ask("anova", ddf)
        return pd.DataFrame(found["values"], found["names"], found["columns"])

    def _tests(self) -> pd.DataFrame:
        labels = self.smooths.index  # lme4 has none
        values = self._ask("tests") if len(labels) else ()
        return smooth_table(dict(zip(labels, values, strict=True)), "ref_df", "F", "p")

    def random_effects(self) -> pd.DataFrame:
        """Return all random effects; those of a level with another factor are named 'a.b'."""
        return pd.DataFrame(self._ask("random_effects"))


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class MgcvFit(RFit):
    """A fit by mgcv."""

    effects: dict[str, list[str]]  # variables of each random effect, by label
    in_fixed_terms: Sequence[str]  # factors that need a coefficient

    def _predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        for name in self.in_fixed_terms:
            require_levels(name, data[name], self.levels[name])
        # An unseen level of a random effect is replaced by a known one, whose effect is left out.
        unseen = {n: ~data[n].isin(levels).to_numpy() for n, levels in self.levels.items()}
        in_fit = {n: data[n].mask(unseen[n], next(iter(self.levels[n]))) for n in self.levels}
        left_out = np.zeros((len(data), len(self.effects)), dtype=bool)
        for i, names in enumerate(self.effects.values()):
            for name in names:
                left_out[:, i] |= unseen.get(name, False)
        predicted = np.empty((1 + se, len(data)))
        for pattern in np.unique(left_out, axis=0):
            rows = (left_out == pattern).all(axis=1)
            more = [label for label, out in zip(self.effects, pattern, strict=True) if out]
            values = self._ask("predict", data.assign(**in_fit)[rows], [*exclude, *more], se)
            predicted[:, rows] = values.reshape(1 + se, -1)
        return predicted[0], predicted[1] if se else None

    def _effect(self, label: str, data: pd.DataFrame) -> tuple[Floats, Floats]:
        fit, error = self._ask("effect", data, label).reshape(2, -1)
        return fit, error

    def _inference(self, ddf: DDF) -> tuple[Floats, Floats, Callable[[Floats], Floats]]:
        found = self._ask("inference")
        return found["estimate"], found["covariance"], lambda x: np.full(len(x), found["dof"][0])

    def _dof_method(self, ddf: DDF) -> str:
        return "of the residual"

    def _deviance(self) -> tuple[float, float]:
        found = self._ask("inference")
        return float(found["deviance"][0]), float(found["residual_df"][0])


def fit(
    columns: Columns,
    formula: str,
    method: str,
    family: str,
    r_arguments: str,
    discrete: bool,
    tolerance: float,
) -> GAMFit:
    """Fit by ``gam``, or by ``bam`` with fREML if ``discrete`` or ``rho`` is among the arguments.

    As in the native backend, a random effect has a grouping factor even if its ids are numbers, and
    predictions for its unseen levels have the mean effect.
    """
    data = columns.all_rows[columns.complete]
    flaw = ""
    if re.search(r"[^|]\|\|?[^|]", formula):
        flaw = "its random effects are s(subject, bs='re'); set backend='native' or 'lme4'"
    if len(re.findall(r"\boffset\(", formula)) > 1:
        flaw = "it counts one offset of several; add them up, offset(I(a + b)), or fit natively"
    if flaw:
        raise FrameError(f"{formula!r} is not for mgcv: {flaw}")
    bam = discrete or re.search(r"\brho\s*=", r_arguments) is not None
    if bam and method != "REML":
        raise ValueError("bam has REML only; choose method='REML', and neither discrete nor rho")
    with in_r():
        _, *variables = variables_of(formula)
        require_columns(variables, data)
        # Factors are all columns that are no numbers, and one variable of each random effect.
        numeric = {name for name in variables if is_number(data[name])}
        random, fixed = r_function("gam_terms")(formula)
        effects = {str(label): [str(name) for name in names] for label, *names in random}
        labelled = [names[0] for names in effects.values() if numeric.issuperset(names)]
        for name in labelled:
            warn_of_numbers(name, data[name].nunique(), stacklevel=4)
            if name in map(str, fixed):
                raise FrameError(
                    f"{name!r} is a number in one term and labels groups in another, which mgcv "
                    "has not in one column; make one of text for the labels"
                )
        factors = [name for name in variables if name not in numeric or name in labelled]
        levels = {name: set(data[name].unique()) for name in factors}
        in_fixed_terms = [name for name in map(str, fixed) if name in levels]

        # The fit, and its statistics.
        call = f"model, data = data, family = {family}"
        if bam:
            call = f'bam({call}, method = "fREML", discrete = {str(discrete).upper()}'
        else:
            control = f"gam.control(newton = list(conv.tol = {float(tolerance)!r}))"
            call = f'gam({call}, method = "{method}", control = {control}'
        r_fit, _, used = fit_in_r("mgcv", call, formula, columns, r_arguments, labelled)
        part = named(r_function("mgcv_result")(r_fit))
        fields = fields_of(part, part["dof"][0], used)
        labels = [str(label) for label in part["labels"]]
        smooths = smooth_table(dict(zip(labels, part["smooth_edf"], strict=True)))
        is_random = dict(zip(labels, part["random"], strict=True))
        components = [*part["components"], fields["scale"] ** 0.5]
        index = [*(label for label in labels if is_random[label]), "residual"]
        # What the linear terms and smooths depend on.
        linear = [str(label) for label in part["linear"]]
        for name in columns.contrasts:
            if name in in_fixed_terms and name not in linear and any(name in x for x in linear):
                raise FrameError(
                    f"mgcv's predictions forget the contrasts of {name!r}, which has no term of "
                    "its own in the formula; fit natively, or add it"
                )
        shown = [*linear, *(label for label in labels if not is_random[label])]
        by = ["NA"] * len(linear) + [*part["by"]]
        of_level = [""] * len(linear) + [*part["levels"]]
        parts = {}
        for label, names, name, level in zip(shown, part["variables"], by, of_level, strict=True):
            fixed_by = {} if name == "NA" else {str(name): str(level) or 1.0}
            if name == "NA" or name in used:  # an effect has no value of by=log(x) to stand at
                parts[label] = Part(tuple(map(str, names)), fixed_by)

    named_in_parts = {y for part in parts.values() for y in (*part.variables, *part.level)}
    return MgcvFit(
        formula=formula,
        backend="mgcv",
        method="REML" if bam else method,
        family=family,
        **fields,
        smooths=smooths,
        variance_components=pd.Series(components, index, name="std_dev"),
        parts=parts,
        random=tuple(effects),
        variables=variables,
        fixed_variables=[x for x in variables if x in {*named_in_parts, *in_fixed_terms}],
        r_object=r_fit,
        effects=effects,
        factors=[*labelled, *columns.contrasts],
        levels=levels,
        in_fixed_terms=in_fixed_terms,
    )
