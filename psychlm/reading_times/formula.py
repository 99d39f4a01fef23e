"""Formulas in the notation of mgcv: ``gaze_ms ~ bits + te(length, freq) + s(subject, bs="re")``.

A formula has a response, linear terms (``a``, ``a:b``, ``a*b``, ``(a + b + c)^2``) and smooths:
``s(x)`` with the bases "tp" (thin plate, the default) and "cr" (cubic regression), random
intercepts ``s(subject, bs="re")`` and slopes ``s(subject, x, bs="re")``, and tensor products
``te(x, z)``. Functions are not evaluated: ``log(x)`` has to be a column.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from patsy import ModelDesc, PatsyError

DEFAULT_K = {"s": 10, "te": 5}  # mgcv's basis dimensions, for te() that of each margin
BASES = {"s": ("tp", "cr", "re"), "te": ("cr",)}


class FormulaError(ValueError):
    """A formula cannot be read or asks for something unsupported: which part, and what to do."""


@dataclass(frozen=True)
class Smooth:
    """One smooth of a formula."""

    kind: str  # "s" or "te"
    variables: tuple[str, ...]  # of a random effect: its factors and the numbers they multiply
    basis: str  # "tp", "cr" or "re"
    k: tuple[int, ...]  # dimension of each margin before its constraint; none for random effects

    @property
    def label(self) -> str:
        """Return the name that mgcv prints: ``te(length_chars,log_frequency)``."""
        return f"{self.kind}({','.join(self.variables)})"


@dataclass(frozen=True)
class Formula:
    """A parsed formula: ``response ~ linear + smooths``, an intercept always included."""

    response: str
    linear: tuple[tuple[str, ...], ...]  # variables of each term; main effects come first, as in R
    smooths: tuple[Smooth, ...]
    text: str = field(compare=False, default="")  # the formula as written

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the predictors in the order of their first appearance."""
        names = [name for term in self.linear for name in term]
        names += [name for smooth in self.smooths for name in smooth.variables]
        return tuple(dict.fromkeys(names))


def parse(text: str) -> Formula:
    """Read a formula: ``patsy`` expands the operators, and each factor is a name or a smooth.

    >>> parsed = parse('gaze_ms ~ bits * old + s(length) + s(subject, bs="re")')
    >>> parsed.linear, [smooth.label for smooth in parsed.smooths]
    ((('bits',), ('old',), ('bits', 'old')), ['s(length)', 's(subject)'])

    Raises
    ------
    FormulaError
        If it cannot be read, or asks for a basis, a function or an option that is not supported.
    """
    response, tilde, right = text.partition("~")
    if not tilde or not response.strip() or not right.strip():
        raise FormulaError(
            f"{text!r} is no formula; write 'response ~ terms': 'gaze_ms ~ surprisal_bits'"
        )
    # R's ^ and `a b` in patsy's notation; the intercept always stays.
    translated = re.sub(r"`([^`]+)`", r'Q("\1")', right.strip().replace("^", "**"))
    if re.search(r"-|(^|\+)\s*0\b", re.sub(r"\"[^\"]*\"|'[^']*'", "", translated)):
        raise FormulaError(
            f"{text!r}: terms cannot be taken away (the intercept stays); name those you want"
        )
    try:
        terms = ModelDesc.from_formula(translated).rhs_termlist
    except PatsyError as error:
        raise FormulaError(f"{text!r} cannot be read: {str(error).splitlines()[0]}") from None

    linear: list[tuple[str, ...]] = []
    smooths: list[Smooth] = []
    for term in terms:
        factors = [_factor(factor.code, text) for factor in term.factors]
        names = tuple(factor for factor in factors if isinstance(factor, str))
        if len(names) == len(factors):
            linear += [names] if names else []
        elif len(factors) == 1:
            smooths += [factor for factor in factors if isinstance(factor, Smooth)]
        else:
            raise FormulaError(f"{text!r}: a smooth has no interactions; te(x, z) smooths both")
    # Variables of an interaction stand in the order of their first appearance, as in R.
    order = list(dict.fromkeys(name for term in linear for name in term))
    unique = dict.fromkeys(tuple(sorted(set(term), key=order.index)) for term in linear)

    # mgcv constrains smooths of shared variables further (gam.side), which is not done here.
    smoothed: dict[str, str] = {}
    for i, smooth in enumerate(smooths):
        if smooth.label in [earlier.label for earlier in smooths[:i]]:
            raise FormulaError(f"{text!r} has the smooth {smooth.label} twice; keep one")
        for name in smooth.variables if smooth.basis != "re" else ():
            if name in smoothed:
                raise FormulaError(
                    f"{name!r} is in both {smoothed[name]} and {smooth.label}, whose functions "
                    "overlap; keep the tensor product alone, or fit with backend='mgcv' (formula "
                    f"{text!r})"
                )
            smoothed[name] = smooth.label
    name = response.strip().strip("`")
    return Formula(name, tuple(sorted(unique, key=len)), tuple(smooths), text)


def _factor(code: str, text: str) -> str | Smooth:
    """Read one factor of a term: the name of a column, or a smooth with its arguments."""
    if re.fullmatch(r"[A-Za-z_.][\w.]*", code):
        return code
    try:
        call = ast.parse(code, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError
        kind = call.func.id
        # Arguments are names, or Q("a b"); options are literals, or c(5, 5)
        variables = tuple(
            str(ast.literal_eval(argument.args[0]))
            if isinstance(argument, ast.Call)
            else str(argument.value)
            if isinstance(argument, ast.Constant)
            else ast.unparse(argument)
            for argument in call.args
        )
        options = {}
        for option in call.keywords:
            values = option.value.args if isinstance(option.value, ast.Call) else [option.value]
            options[str(option.arg)] = [
                value.value if isinstance(value, ast.Constant) else ast.unparse(value)
                for value in values
            ]
    except (SyntaxError, ValueError, IndexError):
        raise FormulaError(f"{text!r} cannot be read at {code!r}") from None
    if kind == "Q" and len(variables) == 1:
        return variables[0]
    if kind not in DEFAULT_K:
        raise FormulaError(
            f"{text!r}: {kind}() is not supported (s() and te() are); make a column of it with "
            "readings.assign(...), and name that column"
        )
    where = f"{kind}({','.join(variables)}) in {text!r}"
    unknown = sorted(set(options) - {"bs", "k"})
    if unknown:
        raise FormulaError(
            f"{where}: options {unknown} are not supported (bs and k are); backend='mgcv' has all"
        )
    basis, *others = set(options.get("bs", BASES[kind][:1]))
    if others or basis not in BASES[kind]:
        raise FormulaError(
            f"{where}: {kind}() has the bases {BASES[kind]}, not {options['bs']}; "
            f"backend='mgcv' has more"
        )
    if basis == "re":
        if not variables:
            raise FormulaError(f'{where}: a random effect needs a factor, s(subject, bs="re")')
        return Smooth(kind, variables, basis, ())
    if kind == "s" and len(variables) != 1:
        raise FormulaError(f"{where}: s() smooths one variable; several make te(x, z)")
    if kind == "te" and len(variables) < 2:
        raise FormulaError(f"{where}: te() needs at least two variables; one makes s(x)")
    k = options.get("k", [DEFAULT_K[kind]])
    sizes = [value for value in k if isinstance(value, int) and value >= 3]
    if len(sizes) < len(k) or len(sizes) not in (1, len(variables)):
        raise FormulaError(
            f"{where}: k is {k}; give one basis dimension of at least 3 for all or each variable"
        )
    return Smooth(kind, variables, basis, tuple(sizes * (len(variables) // len(sizes))))
