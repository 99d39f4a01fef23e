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
``poly(x, 2)``. Random effects in lme4's notation are ``(1 | g)``, ``(1 + x | g)``, ``(1 + x || g)``
(uncorrelated) and ``(1 | g/h)``. Means, deviations and orthogonal polynomials are those of the data
of the fit, also in predictions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from patsy import ModelDesc, PatsyError
from patsy.parse_formula import ParseNode, parse_formula

from psychlm.frames import FrameError, label_of
from psychlm.reading_times._result import Floats, require_columns

# The variables of a linear term that have a column for every level, if they are factors.
Coding = dict[tuple[str, ...], frozenset[str]]
State = dict[str, tuple[float, float, Floats]]  # mean, deviation and powers' weights, by expression

DEFAULT_K = {"s": 10, "te": 5, "ti": 5}  # mgcv's basis dimensions, for te() that of each margin
BASES = {"s": ("tp", "cr", "re"), "te": ("cr",), "ti": ("cr",)}
FUNCTIONS = {"I": np.asarray} | {
    name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "sqrt", "exp", "abs")
}
OF_THE_FIT = {"scale": 1, "poly": 2}  # transformations that depend on the data; their arguments
ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.operator, ast.unaryop)


class FormulaError(ValueError):
    """A formula cannot be read or asks for something unsupported: which part, and what to do."""


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


@dataclass(frozen=True)
class Expression:
    """A variable that is computed from columns: ``log(x)``, ``scale(x)``, ``poly(x, 2)``."""

    name: str  # as R writes it
    code: str  # in Python, without the outer scale() or poly()
    columns: tuple[str, ...]
    outer: str = ""  # "scale", "poly" or nothing
    degree: int = 0  # of poly()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its values: of polynomials one for each power."""
        powers = range(1, self.degree + 1)
        return tuple(f"{self.name}{power}" for power in powers) or (self.name,)

    def evaluate(self, data: pd.DataFrame, state: State) -> dict[str, Floats]:
        """Return the values, by name; ``state`` keeps what the first evaluation finds."""
        require_columns(self.columns, data)
        text = [n for n in self.columns if not pd.api.types.is_numeric_dtype(data[n])]
        if text:
            raise FrameError(f"{self.name} needs numbers, and {text} hold none; convert them first")
        columns = {name: data[name].to_numpy(np.float64) for name in self.columns}
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.asarray(eval(self.code, {"__builtins__": {}}, {**FUNCTIONS, **columns}))
        finite = np.all([np.isfinite(values) for values in columns.values()], axis=0)
        if undefined := int((finite & ~np.isfinite(x)).sum()):
            raise FrameError(
                f"{self.name} has no finite value in {undefined} of {len(data)} rows (a logarithm "
                "of 0?); leave those rows out"
            )
        if not self.outer:
            return {self.name: x}
        if self.name not in state:
            finite = x[np.isfinite(x)]
            mean, deviation = finite.mean(), finite.std(ddof=1)
            # Orthonormal polynomials are powers times the inverse of R in their QR decomposition.
            upper = np.linalg.qr(np.vander((finite - mean) / deviation, self.degree + 1, True))[1]
            signed = upper * np.sign(np.diag(upper))[:, None]
            state[self.name] = (mean, deviation, np.linalg.inv(signed))
        mean, deviation, inverse = state[self.name]
        standard = (x - mean) / deviation
        if self.outer == "scale":
            return {self.name: standard}
        values = np.vander(standard, self.degree + 1, True) @ inverse
        return dict(zip(self.names, values.T[1:], strict=True))


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
    coding: Coding = field(compare=False, default_factory=dict)
    aliased: frozenset[str] = frozenset()  # columns that those before them determine: left out
    offsets: tuple[str, ...] = ()  # variables that are added as they are

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

    def offset(self, data: pd.DataFrame) -> Floats:
        """Return the sum of the offsets, shape (n,)."""
        return np.asarray(data[list(self.offsets)].to_numpy(np.float64).sum(axis=1))

    def compute(self, data: pd.DataFrame, state: State) -> pd.DataFrame:
        """Add the values of expressions to the data; an empty ``state`` is filled."""
        for expression in self.expressions:
            data = data.assign(**expression.evaluate(data, state))
        for bar in self.bars:
            data = data.assign(**bar.evaluate(data))
        return data


def parse(text: str) -> Formula:
    """Read a formula: ``patsy`` expands the operators, and each factor is a name or a smooth.

    What cannot be read, or is not supported, is a :class:`FormulaError`.

    >>> parsed = parse('gaze_ms ~ bits * old + s(length) + s(subject, bs="re")')
    >>> parsed.linear, [smooth.label for smooth in parsed.smooths]
    ((('bits',), ('old',), ('bits', 'old')), ['s(length)', 's(subject)'])
    >>> parse("log(gaze_ms) ~ scale(bits) + poly(length, 2)").variables
    ('scale(bits)', 'poly(length, 2)1', 'poly(length, 2)2')
    """
    response, tilde, right = text.partition("~")
    if not tilde or not response.strip() or not right.strip():
        raise FormulaError(
            f"{text!r} is no formula; write 'response ~ terms': 'gaze_ms ~ surprisal_bits'"
        )
    expressions: dict[str, Expression] = {}
    right, bars = _take_bars(right, text, expressions)
    outside = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`", "", right)
    for _ in range(3):  # without the arguments of functions, the inner ones first
        outside = re.sub(r"\w\([^()]*\)", "", outside)
    if "~" in outside:
        raise FormulaError(f"{text!r} has two ~; a formula has one")
    if re.search(r"-|(^|[+(])\s*0\b", outside):
        raise FormulaError(
            f"{text!r}: terms cannot be taken away (the intercept stays); name those you want"
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
    return Formula(*about, coding=full_coding(ordered), offsets=offsets)


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
        else:
            raise FormulaError(
                f"{text!r}: a smooth or an offset has no interactions; te(x, z) smooths both"
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
    try:
        tree = ast.parse(code.replace("^", "**"), mode="eval").body
    except SyntaxError:
        raise FormulaError(f"{text!r} cannot be read at {code!r}") from None
    name, outer, degree = ast.unparse(tree).replace(" ** ", "^"), "", 0
    if isinstance(tree, ast.Call) and getattr(tree.func, "id", "") in OF_THE_FIT:
        outer, given = ast.unparse(tree.func), [*tree.args, *(k.value for k in tree.keywords)]
        if outer == "poly" and isinstance(given[-1], ast.Constant):
            degree = given[-1].value if isinstance(given[-1].value, int) else 0
        if len(given) != OF_THE_FIT[outer] or (outer == "poly" and degree < 1):
            raise FormulaError(
                f"{text!r}: write scale(x), or poly(x, 2) with a whole number of powers, not {name}"
            )
        tree = given[0]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    called = {ast.unparse(n.func) if len(n.args) == 1 and not n.keywords else "" for n in calls}
    kinds = [n for n in ast.walk(tree) if not isinstance(n, (*ALLOWED, ast.expr_context))]
    if kinds or not called <= set(FUNCTIONS):
        raise FormulaError(
            f"{text!r}: {code} is not supported (s(), te(), ti(), offset(), and "
            f"{', '.join(FUNCTIONS)}, scale, poly are); make a column of it with "
            "readings.assign(...), and name that column"
        )
    named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(FUNCTIONS)
    expression = Expression(name, ast.unparse(tree), tuple(sorted(named)), outer, degree)
    expressions[name] = expression
    return expression.names


def _factor(code: str, text: str, expressions: dict[str, Expression]) -> tuple[str, ...] | Smooth:
    """Read one factor of a term: the names of variables, or a smooth with its arguments."""
    kind = code.partition("(")[0]
    if kind == "offset":
        names = _variable(code[7:-1].strip(), text, expressions)
        if len(names) > 1:
            raise FormulaError(f"{text!r}: offset() adds one variable, and {code} has several")
        return Smooth(kind, names, "", ())
    if kind not in DEFAULT_K:
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
    bases = set(options.get("bs", BASES[kind][:1]))
    (basis, *others), computed = bases, dict[str, Expression]()
    (by,) = _variable(str(options["by"][0]), text, computed)[:1] if "by" in options else ("",)
    sizes = [] if basis == "re" else options.get("k", [DEFAULT_K[kind]])
    unknown = sorted(set(options) - {"bs", "k", "by"})
    one_for_each = len(sizes) in (1, len(variables)) or basis == "re"
    # What is refused, and why; the first that holds is said.
    flaws = {
        "poly() makes several variables; smooth one": len(variables) > len(arguments),
        f"options {unknown} are not supported (bs, k and by are); backend='mgcv' has all": unknown,
        f"{kind}() has the bases {BASES[kind]}, not {sorted(bases)}; backend='mgcv' has more": (
            others or basis not in BASES[kind]
        ),
        "ti() has no by= here; backend='mgcv' has it": kind == "ti" and by,
        f"by= names a column; make one of {by} with readings.assign(...)": computed,
        'a random effect needs a factor, s(subject, bs="re"), and a slope is s(subject, x, '
        'bs="re")': basis == "re" and (by or not variables),
        "s() smooths one variable; several make te(x, z)": (
            kind == "s" and basis != "re" and len(variables) != 1
        ),
        "te() needs at least two variables; one makes s(x)": kind == "te" and len(variables) < 2,
        f"k is {sizes}; give one basis dimension of at least 3 for all or each variable": (
            not one_for_each or any(not isinstance(x, int) or x < 3 for x in sizes)
        ),
    }
    for flaw, holds in flaws.items():
        if holds:
            raise FormulaError(f"{kind}({','.join(variables)}) in {text!r}: {flaw}")
    repeated = 1 if len(sizes) == len(variables) else len(variables)
    return Smooth(kind, variables, basis, tuple(sizes) * repeated, by)
