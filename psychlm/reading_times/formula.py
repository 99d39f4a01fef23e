"""Formulas in the notation of mgcv: ``gaze_ms ~ bits + te(length, freq) + s(subject, bs="re")``.

A formula has a response, linear terms (``a``, ``a:b``, ``a*b``, ``(a + b + c)^2``) and smooths:
``s(x)`` with the bases "tp" (thin plate, the default) and "cr" (cubic regression), random
intercepts ``s(subject, bs="re")`` and slopes ``s(subject, x, bs="re")``, tensor products ``te(x,
z)`` and their interactions alone, ``ti(x, z)``, beside ``ti(x)`` or ``s(x)``; ``by=`` gives a
smooth for each level of a factor, or one that a number multiplies. With ``by=`` an ordered
Categorical (as :func:`pandas.cut` makes), the first level has none and the others have their
difference from it, beside ``s(x)``; in linear terms all factors have treatment contrasts.
``offset(x)`` is added as it is.
Random smooths (``bs="fs"``), ``by`` in ``ti()``, other bases and ``m=`` are mgcv's. Variables may
be expressions: ``log(x)``, ``sqrt(x)``, ``exp(x)``, ``I(x^2)``, ``scale(x)`` and, in linear terms,
``poly(x, 2)`` and ``ns(x, df=3)``. Random effects in lme4's notation are ``(1 | g)``, ``(1 + x |
g)``, ``(1 + x || g)`` (uncorrelated) and ``(1 | g/h)``. As in R, the means, deviations, polynomials
and knots are those of all rows of the frame, also of those that the fit leaves out because another
variable is missing, and predictions use the same. (R's ``poly`` refuses a variable with missing
values; here, and by ``ns`` in R, they are those of the rows that have one.)

``C(g, Sum)`` gives a factor other contrasts wherever it stands in the formula: ``Treatment("b")``,
``Sum``, ``Helmert``, ``Poly`` or ``sdif`` (successive differences, also ``Diff``), or R's names of
them, ``contr.sum``; ``C(g)``, or R's ``factor(g)`` and ``as.factor(g)``, makes numbers a factor.
Coefficients have the names that R gives to a factor with these contrasts: ``g1``, ``g2`` for sums,
``gb-a`` for differences.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import regex
from patsy import ModelDesc, PatsyError
from patsy.parse_formula import ParseNode, parse_formula
from scipy.interpolate import BSpline

from psychlm.frames import FrameError, label_of
from psychlm.reading_times.contrasts import (
    Contrast,
    Floats,
    FormulaError,
    require_columns,
    take_contrasts,
    with_factors,
)

# The variables of a linear term that have a column for every level, if they are factors.
Coding = dict[tuple[str, ...], frozenset[str]]

DEFAULT_K = {"s": 10, "te": 5, "ti": 5}  # mgcv's basis dimensions, for te() that of each margin
BASES = {"s": ("tp", "cr", "re"), "te": ("cr",), "ti": ("cr",)}
FUNCTIONS = {"I": np.asarray} | {
    name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "sqrt", "exp", "abs")
}
OF_THE_FIT = {"scale": 1, "poly": 2, "ns": 2}  # they depend on the data; how many arguments
# A column in an expression: in quotation marks, or a name that no bracket and no = follows.
COLUMN = re.compile(r"""Q\((["'])(.+?)\1\)|`([^`]+)`|(?<![\w.])[^\W\d][\w.]*(?![\w.]*\s*[(=])""")
ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.operator, ast.unaryop)


@dataclass(frozen=True)
class Smooth:
    """One smooth of a formula."""

    kind: str  # "s", "te" or "ti"; "bar" in lme4's notation
    variables: tuple[str, ...]  # of a random effect: its factors and the numbers they multiply
    basis: str  # "tp", "cr" or "re"
    k: tuple[int, ...]  # dimension of each margin before its constraint; none for random effects
    by: str = ""  # the factor with a smooth for each level, or the number that multiplies it

    @property
    def label(self) -> str:
        """Return the name that mgcv prints: ``te(length_chars,log_frequency)``; or ``(x | g)``."""
        if self.kind == "bar":
            return f"({':'.join(self.variables[1:]) or 1} | {self.variables[0]})"
        return f"{self.kind}({','.join(self.variables)})" + (f":{self.by}" if self.by else "")

    @property
    def all_variables(self) -> tuple[str, ...]:
        """Return the variables, with that of ``by``."""
        return (*self.variables, self.by) if self.by else self.variables


def orthogonal_powers(x: Floats, mean: float, deviation: float, inverse: Floats) -> Floats:
    """Return R's ``poly(x, k)``, shape (n, k): powers times the inverse of R in their QR
    decomposition at the data of the fit; times the identity ``scale(x)``."""
    powers = np.vander((x - mean) / deviation, len(inverse), increasing=True)
    return (powers @ inverse)[:, 1:]


def natural_spline(x: Floats, knots: Floats, constraint: Floats) -> Floats:
    """Return R's ``ns(x, df)``, shape (n, df): cubic B-splines times ``constraint``; beyond the
    outer knots they go on as straight lines."""
    bases = BSpline(knots, np.eye(len(knots) - 4), 3)
    inside = np.clip(x, knots[0], knots[-1])
    values = bases(inside) + (x - inside)[:, None] * bases(inside, 1)
    return values[:, 1:] @ constraint


def place_expression(outer: str, x: Floats, degree: int, name: str) -> Callable[[Floats], Floats]:
    """Return ``scale``, ``poly`` or ``ns`` as a function that is placed at the data x."""
    x = x[np.isfinite(x)]
    n_unique = len(np.unique(x))
    if n_unique <= max(degree, 1):
        raise FrameError(
            f"{name} needs more than {max(degree, 1)} different values, and there are {n_unique}; "
            "lower its degree, or leave it out"
        )
    mean = float(x.mean())
    deviation = float(x.std(ddof=1))
    if outer == "scale":
        return partial(orthogonal_powers, mean=mean, deviation=deviation, inverse=np.eye(2))
    if outer == "poly":
        upper = np.linalg.qr(np.vander((x - mean) / deviation, degree + 1, increasing=True))[1]
        signed = upper * np.sign(np.diag(upper))[:, None]
        inverse = np.linalg.inv(signed)
        return partial(orthogonal_powers, mean=mean, deviation=deviation, inverse=inverse)
    # ns(): knots at quantiles, and B-splines (but the first) whose second derivatives are zero at
    # both ends: the last columns of Q of the QR decomposition of these derivatives.
    inner = np.quantile(x, np.linspace(0, 1, degree + 1)[1:-1])
    knots = np.r_[[x.min()] * 4, inner, [x.max()] * 4]
    curvature = BSpline(knots, np.eye(len(knots) - 4), 3)(knots[[0, -1]], 2)[:, 1:]
    constraint = np.linalg.qr(curvature.T, mode="complete")[0][:, 2:]
    return partial(natural_spline, knots=knots, constraint=constraint)


@dataclass(frozen=True)
class Expression:
    """A variable that is computed from columns: ``log(x)``, ``scale(x)``, ``poly(x, 2)``."""

    name: str  # as R writes it
    code: str  # in Python, of x0, x1, ..., without the outer scale(), poly() or ns()
    columns: tuple[str, ...]
    outer: str = ""  # "scale", "poly", "ns" or nothing
    degree: int = 0  # of poly(); the degrees of freedom of ns()
    # The outer function with its means, powers or knots, which are those of the data of the fit
    placed: Callable[[Floats], Floats] | None = field(default=None, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its values: one for each column of a polynomial or spline."""
        numbers = range(1, self.degree + 1)
        return tuple(f"{self.name}{number}" for number in numbers) or (self.name,)

    def compute(self, data: pd.DataFrame) -> Floats:
        """Return the values without the outer function, shape (n,); NaN where there is none."""
        require_columns(self.columns, data)
        text = [n for n in self.columns if not pd.api.types.is_numeric_dtype(data[n])]
        if text:
            raise FrameError(f"{self.name} needs numbers, and {text} hold none; convert them first")
        columns = [data[name].to_numpy(np.float64, na_value=np.nan) for name in self.columns]
        named = {f"x{i}": values for i, values in enumerate(columns)}
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(eval(self.code, {"__builtins__": {}}, {**FUNCTIONS, **named}))

    def evaluate(self, data: pd.DataFrame, used: pd.Series | None = None) -> dict[str, Floats]:
        """Return the values, by name.

        ``used`` says which rows must have a value; unless given, all do whose columns are there.
        """
        x = self.compute(data)
        columns = data[list(self.columns)].to_numpy(np.float64, na_value=np.nan)
        needed = np.isfinite(columns).all(axis=1)
        if used is not None:
            needed = needed & used.to_numpy()
        if undefined := int((needed & ~np.isfinite(x)).sum()):
            raise FrameError(
                f"{self.name} has no finite value in {undefined} of {len(data)} rows (a logarithm "
                "of 0?); leave those rows out"
            )
        if self.placed is None:
            return {self.name: x}
        return dict(zip(self.names, self.placed(x).T, strict=True))


@dataclass(frozen=True)
class Bar:
    """Random effects in lme4's notation, ``(terms | group)``."""

    terms: tuple[tuple[str, ...], ...]
    intercept: bool
    group: tuple[str, ...]  # columns; the levels of several are crossed
    correlated: bool  # False for ||
    lines: tuple[Any, ...] = ()  # the terms placed at the data of a fit, with their columns

    @property
    def group_name(self) -> str:
        """Return the name of the grouping factor: ``subject``, ``class:school``."""
        return ":".join(self.group)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables of the terms, and the columns of the group."""
        return (*(name for term in self.terms for name in term), *self.group)

    def evaluate(self, data: pd.DataFrame) -> dict[str, Any]:
        """Return the columns that the terms have, and the grouping factor, by name."""
        values: dict[str, Any] = {}
        for line in self.lines:
            values |= dict(zip(line.names, line.columns(data).T, strict=True))
        if len(self.group) > 1:
            parts = [data[name].map(label_of).astype(str) for name in self.group]
            labels = parts[0].str.cat(parts[1:], sep=":")
            if labels.nunique() < len(pd.concat(parts, axis=1).drop_duplicates()):
                raise FrameError(
                    f"(... | {self.group_name}): levels with a colon give several groups one name; "
                    "rename those levels"
                )
            values[self.group_name] = labels
        return values


@dataclass(frozen=True)
class Formula:
    """A parsed formula: ``response ~ linear + smooths``, an intercept always included."""

    response: str
    linear: tuple[tuple[str, ...], ...]  # variables of each term; main effects come first, as in R
    smooths: tuple[Smooth, ...]
    text: str = field(compare=False, default="")  # the formula as written
    expressions: tuple[Expression, ...] = ()
    bars: tuple[Bar, ...] = ()
    blocks: tuple[tuple[str, ...], ...] = ()  # labels of random effects that correlate
    offsets: tuple[str, ...] = ()  # variables that are added as they are
    contrasts: Mapping[str, Contrast] = field(default_factory=dict)  # of factors, by name

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the predictors in the order of their first appearance."""
        names = [name for term in self.linear for name in term]
        names += [name for smooth in self.smooths for name in smooth.all_variables]
        names += [name for bar in self.bars for name in bar.variables]
        return tuple(dict.fromkeys([*names, *self.offsets]))

    def columns(self, variables: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of the data that variables are, or are computed from."""
        computed = {name: e.columns for e in self.expressions for name in e.names}
        for line in (line for bar in self.bars for line in bar.lines):
            own = tuple(c for part in line.variables for c in computed.get(part, (part,)))
            computed |= dict.fromkeys(line.names, own)
        computed |= {bar.group_name: bar.group for bar in self.bars}
        return tuple(dict.fromkeys(c for name in variables for c in computed.get(name, (name,))))

    @property
    def fixed_variables(self) -> tuple[str, ...]:
        """Return the variables of linear terms, smooths and offsets, without random effects."""
        names = [name for term in self.linear for name in term]
        smooths = [smooth for smooth in self.smooths if smooth.basis != "re"]
        names += [name for smooth in smooths for name in smooth.all_variables]
        return tuple(dict.fromkeys([*names, *self.offsets]))

    def offset(self, data: pd.DataFrame) -> Floats:
        """Return the sum of the offsets, shape (n,)."""
        return np.asarray(data[list(self.offsets)].to_numpy(np.float64).sum(axis=1))

    def placed(self, data: pd.DataFrame) -> Formula:
        """Return the formula whose ``scale``, ``poly`` and ``ns`` are those of these data."""
        expressions = []
        for expression in self.expressions:
            if expression.outer:
                about = expression.degree, expression.name
                function = place_expression(expression.outer, expression.compute(data), *about)
                expression = replace(expression, placed=function)
            expressions.append(expression)
        return replace(self, expressions=tuple(expressions))

    def compute(self, data: pd.DataFrame, used: pd.Series | None = None) -> pd.DataFrame:
        """Add the values of expressions to the data, and make factors of those with contrasts. See
        :meth:`Expression.evaluate`."""
        data = with_factors(data, self.contrasts)
        for expression in self.expressions:
            data = data.assign(**expression.evaluate(data, used))
        for bar in self.bars:
            data = data.assign(**bar.evaluate(data))
        return data


def parse(text: str, contrasts: Mapping[str, Contrast] | None = None) -> Formula:
    """Read a formula: ``patsy`` expands the operators, and each factor is a name or a smooth.

    What cannot be read, or is not supported, is a :class:`FormulaError`. ``contrasts`` are of
    factors that have none in the formula.

    >>> parsed = parse('gaze_ms ~ bits * old + s(length) + s(subject, bs="re")')
    >>> parsed.linear, [smooth.label for smooth in parsed.smooths]
    ((('bits',), ('old',), ('bits', 'old')), ['s(length)', 's(subject)'])
    >>> parse("log(gaze_ms) ~ scale(bits) + poly(length, 2)").variables
    ('scale(bits)', 'poly(length, 2)1', 'poly(length, 2)2')
    """
    without, own_contrasts = take_contrasts(text)
    all_contrasts = {**(contrasts or {}), **own_contrasts}
    response, tilde, right = without.partition("~")
    if not tilde or not response.strip() or not right.strip():
        raise FormulaError(
            f"{text!r} is no formula; write 'response ~ terms': 'gaze_ms ~ surprisal_bits'"
        )
    expressions: dict[str, Expression] = {}
    right, bars = _take_bars(right, text, expressions)
    outside = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`", "", right)
    outside = regex.sub(r"\w(\((?:[^()]|(?1))*\))", "", outside)  # without arguments of functions
    if "~" in outside:
        raise FormulaError(f"{text!r} has two ~; a formula has one")
    if re.search(r"-|(^|[+(])\s*0\b", outside):
        raise FormulaError(
            f"{text!r} has terms taken away, which the native engine does not read (it keeps the "
            "intercept)"
        )
    _, ordered, added = _expand(right, text, expressions)
    offsets = tuple(term.variables[0] for term in added if term.kind == "offset")
    smooths = [term for term in added if term.kind != "offset"]

    # mgcv constrains smooths of shared variables further (gam.side), which is not done here; an
    # interaction ti(x, z) shares no function with s(x), ti(x) or s(z).
    for smooth, earlier in combinations(smooths[::-1], 2):
        if smooth.label == earlier.label:
            raise FormulaError(f"{text!r} has the smooth {smooth.label} twice; keep one")
        if "re" in (smooth.basis, earlier.basis) or smooth.by != earlier.by:
            continue
        shared = [name for name in smooth.variables if name in earlier.variables]
        same = set(smooth.variables) == set(earlier.variables)
        if shared and (same or "te" in (smooth.kind, earlier.kind)):
            raise FormulaError(
                f"{shared[0]!r} is in both {earlier.label} and {smooth.label}, whose functions "
                "overlap; keep the tensor product alone, write s(x) + s(z) + ti(x, z), or fit with "
                f"backend='mgcv' (formula {text!r})"
            )
    name, *others = _variable(response.strip(), text, expressions)
    if others:
        raise FormulaError(f"{text!r}: a model has one response, and {response.strip()} is several")
    about = name, ordered, tuple(smooths), text, tuple(expressions.values()), bars
    parsed = Formula(*about, offsets=offsets, contrasts=all_contrasts)
    unused = [name for name in all_contrasts if name not in parsed.variables]
    if unused:
        raise FormulaError(f"contrasts of {unused}, which are no factors in {text!r}")
    return parsed


def _expand(
    code: str, text: str, expressions: dict[str, Expression]
) -> tuple[bool, tuple[tuple[str, ...], ...], list[Smooth]]:
    """Return whether terms have an intercept, the linear terms in R's order, and the smooths."""
    # R's ^ and `a b` in patsy's notation
    code = re.sub(r"`([^`]+)`|\^", lambda m: f'Q("{m[1]}")' if m[1] else "**", code.strip())
    try:
        tree = parse_formula(code)
        terms = ModelDesc.from_formula(tree).rhs_termlist
    except PatsyError as error:
        raise FormulaError(f"{text!r} cannot be read: {str(error).splitlines()[0]}") from None
    linear: list[tuple[str, ...]] = []
    smooths: list[Smooth] = []
    for term in terms:
        factors = [_factor(factor.code, text, expressions) for factor in term.factors]
        names = [factor for factor in factors if isinstance(factor, tuple)]
        if len(names) == len(factors):
            linear += [found[::-1] for found in product(*names[::-1]) if found]
        elif len(factors) == 1:
            smooths += [factor for factor in factors if isinstance(factor, Smooth)]
        elif any(isinstance(x, Smooth) and x.kind == "offset" for x in factors):
            raise FormulaError(f"{text!r}: an offset has no interactions")
        else:
            smooth = next(x for x in factors if isinstance(x, Smooth))
            x = ", ".join(smooth.variables)
            by = names[0][0] if names and names[0] else "g"
            raise FrameError(
                f"{text!r}: a smooth has no interactions; one smooth for each level of a factor is "
                f"{by} + {smooth.kind}({x}, by={by}), one that a number multiplies "
                f"{smooth.kind}({x}, by={by}), and te(x, z) smooths both"
            )
    # Variables of an interaction stand in the order of their first appearance, as in R.
    written = [_factor(code, text, {}) for code in _leaves(tree)]
    order = [name for factor in written if isinstance(factor, tuple) for name in factor]
    unique = dict.fromkeys(tuple(sorted(set(term), key=order.index)) for term in linear)
    intercept = any(not term.factors for term in terms)
    return intercept, tuple(sorted(unique, key=len)), smooths


def _take_bars(
    right: str, text: str, expressions: dict[str, Expression]
) -> tuple[str, tuple[Bar, ...]]:
    """Return a right side without its terms ``(terms | group)``, and these."""
    bars: list[Bar] = []
    while bar := re.search(r"\(((?:[^()|]|\([^()|]*\))+)(\|\|?)([^()|]+)\)", right):
        left, mark, group = bar.groups()
        right = f"{right[: bar.start()]}1{right[bar.end() :]}"
        intercept, terms, smooths = _expand(left, text, expressions)
        computed: dict[str, Expression] = {}
        nested = [
            sum((_variable(name.strip(), text, computed) for name in part.split(":")), ())
            for part in group.split("/")
        ]
        if smooths or computed or not (intercept or terms):
            raise FormulaError(
                f"{text!r}: ({left}{mark}{group}) is no random effect; write (1 + x | subject)"
            )
        # (1 | g/h) is (1 | g) + (1 | h:g)
        groups = [sum(nested[i::-1], ()) for i in range(len(nested))]
        bars += [Bar(terms, intercept, group, mark == "|") for group in groups]
    if "|" in right:
        raise FormulaError(f"{text!r}: random effects are written (1 + x | subject)")
    return right, tuple(bars)


def _leaves(tree: ParseNode) -> Iterator[str]:
    """Yield the variables and smooths of a formula in the order in which they are written."""
    if tree.type == "PYTHON_EXPR":
        yield tree.token.extra
    for part in tree.args:
        yield from _leaves(part)


def full_coding(terms: tuple[tuple[str, ...], ...]) -> Coding:
    """Return which variables of each term are coded by all levels, by R's rule.

    A factor is coded by contrasts (without its first level) where the term without it stands in the
    model: where it is the intercept, or part of a term before this one (R's ``TermCode``; Chambers
    & Hastie 1992, Statistical Models in S, p. 38). Otherwise it is coded by all its levels.

    >>> full_coding((("bits",), ("bits", "group"), ("old", "group")))[("old", "group")]
    frozenset({'group'})
    """
    coding = {}
    for i, term in enumerate(terms):
        margins = {name: set(term) - {name} for name in term if len(term) > 1}
        coding[term] = frozenset(
            name for name, rest in margins.items() if not any(rest <= set(x) for x in terms[:i])
        )
    return coding


def _variable(code: str, text: str, expressions: dict[str, Expression]) -> tuple[str, ...]:
    """Return the name of a column, or the names of an expression's values, which is noted."""
    quoted = re.fullmatch(r"Q\((['\"])(.+)\1\)|`(.+)`", code)
    if quoted:  # a column, whatever stands in its name
        return (quoted[2] or quoted[3],)
    if re.fullmatch(r"[A-Za-z_.][\w.]*|[^()*+/^-]+", code):
        return (code,)
    # Columns are x0, x1, ... in the code, since Python cannot read all of their names.
    columns: list[str] = []

    def placeholder(found: re.Match[str]) -> str:
        column = found[2] or found[3] or found[0]
        if column not in columns:
            columns.append(column)
        return f"x{columns.index(column)}"

    def as_written(found: re.Match[str]) -> str:
        column = columns[int(found[1])]
        return column if re.fullmatch(r"[\w.]+", column) else f"`{column}`"

    try:
        tree = ast.parse(COLUMN.sub(placeholder, code).replace("^", "**"), mode="eval").body
    except SyntaxError:
        raise FormulaError(f"{text!r} cannot be read at {code!r}") from None
    name = re.sub(r"(?<=\w)=(?=\w)", " = ", ast.unparse(tree).replace(" ** ", "^"))
    name = re.sub(r"\bx(\d+)\b", as_written, name)
    outer = ""
    degree = 0
    if isinstance(tree, ast.Call) and getattr(tree.func, "id", "") in OF_THE_FIT:
        outer = ast.unparse(tree.func)
        given = [*tree.args, *(k.value for k in tree.keywords)]
        if outer != "scale" and isinstance(given[-1], ast.Constant):
            degree = given[-1].value if isinstance(given[-1].value, int) else 0
        if len(given) != OF_THE_FIT[outer] or (outer != "scale" and degree < 1):
            raise FormulaError(
                f"{text!r}: write scale(x), poly(x, 2) with a whole number of powers, or ns(x, "
                f"df=3) with whole degrees of freedom, not {name}"
            )
        tree = given[0]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    called = {ast.unparse(n.func) if len(n.args) == 1 and not n.keywords else "" for n in calls}
    kinds = [n for n in ast.walk(tree) if not isinstance(n, (*ALLOWED, ast.expr_context))]
    if kinds or not called <= set(FUNCTIONS):
        raise FormulaError(
            f"{text!r}: {code} is not supported (s(), te(), ti(), offset(), and "
            f"{', '.join(FUNCTIONS)}, scale, poly, ns, C are); make a column of it with "
            "readings.assign(...), and name that column"
        )
    expression = Expression(name, ast.unparse(tree), tuple(columns), outer, degree)
    expressions[name] = expression
    return expression.names


def _factor(code: str, text: str, expressions: dict[str, Expression]) -> tuple[str, ...] | Smooth:
    """Read one factor of a term: the names of variables, or a smooth with its arguments."""
    kind, call_begins, _ = code.partition("(")
    if kind == "offset" and call_begins:
        names = _variable(code[7:-1].strip(), text, expressions)
        if len(names) > 1:
            raise FormulaError(f"{text!r}: offset() adds one variable, and {code} has several")
        return Smooth(kind, names, "", ())
    if kind not in DEFAULT_K or not call_begins:  # "s" alone is a column
        return _variable(code, text, expressions)
    try:
        call = ast.parse(code, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError
        arguments = [_variable(ast.unparse(x), text, expressions) for x in call.args]
        # Options are literals, names, or c(5, 5).
        options: dict[str, list[Any]] = {}
        for option in call.keywords:
            several = ast.unparse(option.value).startswith("c(")
            values = getattr(option.value, "args", []) if several else [option.value]
            options[str(option.arg)] = [
                value.value if isinstance(value, ast.Constant) else ast.unparse(value)
                for value in values
            ]
    except (SyntaxError, ValueError):
        raise FormulaError(f"{text!r} cannot be read at {code!r}") from None
    variables = tuple(name for names in arguments for name in names)
    bases = sorted(set(options.get("bs", BASES[kind][:1])))
    is_random = "re" in bases
    computed = dict[str, Expression]()
    by = ""
    if "by" in options:
        by = _variable(str(options["by"][0]), text, computed)[0]
    sizes = [] if is_random else options.get("k", [DEFAULT_K[kind]])
    unknown = sorted(set(options) - {"bs", "k", "by"})
    flaw = ""
    if len(variables) > len(arguments):
        flaw = "poly() makes several variables; smooth one"
    elif unknown:
        flaw = f"options {unknown} are not supported (bs, k and by are); backend='mgcv' has all"
    elif len(bases) > 1 or bases[0] not in BASES[kind]:
        flaw = f"{kind}() has the bases {BASES[kind]}, not {bases}; backend='mgcv' has more"
    elif kind == "ti" and by:
        flaw = "ti() has no by= here; backend='mgcv' has it"
    elif computed:
        flaw = f"by= names a column; make one of {by} with readings.assign(...)"
    elif is_random and (by or not variables):
        flaw = 'a random effect needs a factor, s(subject, bs="re"), and a slope is s(subject, x, '
        flaw += 'bs="re")'
    elif kind == "s" and not is_random and len(variables) != 1:
        flaw = "s() smooths one variable; several make te(x, z)"
    elif kind == "te" and len(variables) < 2:
        flaw = "te() needs at least two variables; one makes s(x)"
    elif not is_random and (
        len(sizes) not in (1, len(variables)) or any(not isinstance(x, int) or x < 3 for x in sizes)
    ):
        flaw = f"k is {sizes}; give one basis dimension of at least 3 for all or each variable"
    if flaw:
        raise FormulaError(f"{kind}({','.join(variables)}) in {text!r}: {flaw}")
    repeated = 1 if len(sizes) == len(variables) else len(variables)
    return Smooth(kind, variables, bases[0], tuple(sizes) * repeated, by)
