"""Formulas in mgcv's words: ``gaze_ms ~ surprisal_bits + te(length_chars, log_frequency) + s(subject, bs="re")``.

A formula has a response, linear terms (``a``, ``a:b``, ``a*b``, ``(a + b + c)^2``) and smooths: ``s(x)`` with the bases
``"tp"`` (thin plate, the default) and ``"cr"`` (cubic regression), random intercepts ``s(subject, bs="re")`` and
slopes ``s(subject, x, bs="re")``, and tensor products ``te(x, z)``. It does not compute: ``log(x)`` is a column to be
made first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product

DEFAULT_K = {
    "s": 10,
    "te": 5,
}  # basis dimensions of mgcv's s() and te(), the latter for each margin
BASES = {"s": ("tp", "cr", "re"), "te": ("cr",)}
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z][\w.]*|\.[A-Za-z_][\w.]*|`[^`]+`)|(?P<number>\d+)"""
    r"""|(?P<string>"[^"]*"|'[^']*')|(?P<sign>[~+\-*:^(),=]))"""
)


class FormulaError(ValueError):
    """A formula cannot be read, or asks for something that is not here: the message says what, and what to do."""


@dataclass(frozen=True)
class Smooth:
    """One smooth of a formula.

    Attributes
    ----------
    kind : "s" or "te"
    variables : tuple of str
        For a random effect the grouping factor and what is multiplied with it.
    basis : "tp", "cr" or "re"
    k : tuple of int
        Basis dimension of each margin, before the constraint that makes it identifiable; empty for random effects.
    """

    kind: str
    variables: tuple[str, ...]
    basis: str
    k: tuple[int, ...]

    @property
    def label(self) -> str:
        """Return the name that mgcv prints: ``te(length_chars,log_frequency)``."""
        return f"{self.kind}({','.join(self.variables)})"


@dataclass(frozen=True)
class Formula:
    """A parsed formula: ``response ~ linear + smooths``, an intercept always included.

    Attributes
    ----------
    linear : tuple of tuple of str
        Variables of each linear term; a product of several is their interaction. Main effects stand first, as in R.
    """

    response: str
    linear: tuple[tuple[str, ...], ...]
    smooths: tuple[Smooth, ...]
    text: str = field(compare=False, default="")

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the predictors in the order of their first appearance."""
        names = [name for term in self.linear for name in term]
        names += [name for smooth in self.smooths for name in smooth.variables]
        return tuple(dict.fromkeys(names))


def parse(text: str) -> Formula:
    """Read a formula.

    Raises
    ------
    FormulaError
        If it cannot be read, or asks for a basis, a function or an option that is not here.
    """
    response, tilde, right = text.partition("~")
    if not tilde or not response.strip():
        raise FormulaError(
            f"{text!r} is no formula; write 'response ~ terms', for instance 'gaze_ms ~ surprisal_bits'"
        )
    terms, smooths = _Parser(right, text).read()
    order = list(dict.fromkeys(name for term in terms for name in term))
    linear = dict.fromkeys(tuple(sorted(set(term), key=order.index)) for term in terms)
    labels = [smooth.label for smooth in smooths]
    if len(set(labels)) < len(labels):
        raise FormulaError(
            f"{text!r} has the smooth {next(x for x in labels if labels.count(x) > 1)} twice; keep one"
        )
    _refuse_nested(smooths, text)
    return Formula(
        response.strip().strip("`"), tuple(sorted(linear, key=len)), tuple(smooths), text
    )


def _refuse_nested(smooths: list[Smooth], text: str) -> None:
    """Refuse smooths that share a variable: mgcv constrains them further (gam.side), which is not done here."""
    seen: dict[str, str] = {}
    for smooth in smooths:
        for name in smooth.variables if smooth.basis != "re" else ():
            if name in seen:
                raise FormulaError(
                    f"{name!r} stands in both {seen[name]} and {smooth.label}, whose functions overlap; keep the "
                    f'tensor product alone, or fit with backend="mgcv" (formula {text!r})'
                )
            seen[name] = smooth.label


class _Parser:
    """Recursive descent over the right side; a set of linear terms is a list of tuples of names, () the intercept."""

    def __init__(self, right: str, text: str) -> None:
        self.text, self.smooths = text, list[Smooth]()
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while right[position:].strip():
            match = _TOKEN.match(right, position)
            if not match:
                raise FormulaError(f"{text!r} cannot be read at {right[position:].strip()[:15]!r}")
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind].strip("`\"'")))
            position = match.end()
        self.tokens.append(("end", ""))

    def read(self) -> tuple[list[tuple[str, ...]], list[Smooth]]:
        terms = self.sum()
        if self.tokens[0][0] != "end":
            raise FormulaError(f"{self.text!r} cannot be read at {self.tokens[0][1]!r}")
        return [term for term in terms if term], self.smooths

    def take(self, *values: str) -> bool:
        """Consume the next sign if it is one of these."""
        if self.tokens[0] in [("sign", value) for value in values]:
            self.tokens.pop(0)
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise FormulaError(
                f"{self.text!r}: expected {sign!r}, found {self.tokens[0][1] or 'the end'!r}"
            )

    def sum(self) -> list[tuple[str, ...]]:
        terms = self.crossing()
        while self.take("+"):
            terms += self.crossing()
        if self.tokens[0] == ("sign", "-"):
            raise FormulaError(
                f"{self.text!r}: terms cannot be taken away (the intercept stays); name those you want"
            )
        return list(dict.fromkeys(terms))

    def crossing(self) -> list[tuple[str, ...]]:
        """``a*b`` is ``a + b + a:b``."""
        terms = self.interaction()
        while self.take("*"):
            others = self.interaction()
            terms = terms + others + [a + b for a, b in product(terms, others)]
        return terms

    def interaction(self) -> list[tuple[str, ...]]:
        terms = self.power()
        while self.take(":"):
            terms = [a + b for a, b in product(terms, self.power())]
        return terms

    def power(self) -> list[tuple[str, ...]]:
        """``(a + b)^2``: the terms and all their interactions up to that order."""
        terms = self.atom()
        if self.take("^"):
            kind, value = self.tokens.pop(0)
            if kind != "number" or value == "0":
                raise FormulaError(
                    f"{self.text!r}: ^ takes a whole number above 0, found {value!r}"
                )
            base, order = terms, int(value)
            for _ in range(order - 1):
                terms = list(
                    dict.fromkeys(
                        terms + [tuple(dict.fromkeys(a + b)) for a, b in product(terms, base)]
                    )
                )
        return terms

    def atom(self) -> list[tuple[str, ...]]:
        if self.take("("):
            terms = self.sum()
            self.expect(")")
            return terms
        kind, value = self.tokens.pop(0)
        if (kind, value) == ("number", "1"):
            return [()]
        if kind != "name":
            raise FormulaError(f"{self.text!r}: expected a name, found {value or 'the end'!r}")
        if not self.take("("):
            return [(value,)]
        if value not in DEFAULT_K:
            raise FormulaError(
                f"{self.text!r}: {value}() is not here (s() and te() are); make a column of it first, for instance "
                f"readings.assign(...), and name that column"
            )
        self.smooths.append(self.smooth(value))
        return []

    def smooth(self, kind: str) -> Smooth:
        """Read the arguments of ``s(`` or ``te(``."""
        variables: list[str] = []
        options: dict[str, list[str]] = {}
        while not self.take(")"):
            token, value = self.tokens.pop(0)
            if token != "name":
                raise FormulaError(
                    f"{self.text!r}: expected a variable in {kind}(), found {value or 'the end'!r}"
                )
            if self.take("="):
                options[value] = self.option()
            else:
                variables.append(value)
            if not self.take(","):
                self.expect(")")
                break
        return _smooth(kind, tuple(variables), options, self.text)

    def option(self) -> list[str]:
        """Read ``5``, ``"cr"`` or ``c(5, 5)``."""
        if self.tokens[0] == ("name", "c"):
            self.tokens.pop(0)
            self.expect("(")
            values = [self.tokens.pop(0)[1]]
            while self.take(","):
                values.append(self.tokens.pop(0)[1])
            self.expect(")")
            return values
        return [self.tokens.pop(0)[1]]


def _smooth(
    kind: str, variables: tuple[str, ...], options: dict[str, list[str]], text: str
) -> Smooth:
    """Check a smooth's arguments and fill in mgcv's defaults."""
    where = f"{kind}({','.join(variables)}) in {text!r}"
    unknown = set(options) - {"bs", "k"}
    if unknown:
        raise FormulaError(
            f"{where}: options {sorted(unknown)} are not here (bs and k are); backend='mgcv' has them all"
        )
    bases = set(options.get("bs", [BASES[kind][0]]))
    basis = bases.pop()
    if bases or basis not in BASES[kind]:
        raise FormulaError(
            f"{where}: {kind}() has the bases {BASES[kind]}, not {options['bs']}; backend='mgcv' has more"
        )
    if basis == "re":
        if not variables:
            raise FormulaError(
                f'{where}: a random effect needs a grouping factor, s(subject, bs="re")'
            )
        return Smooth(kind, variables, basis, ())
    if len(variables) != 1 and kind == "s":
        raise FormulaError(
            f"{where}: s() smooths one variable; several make a tensor product, te(x, z)"
        )
    if len(variables) < 2 and kind == "te":
        raise FormulaError(f"{where}: te() needs at least two variables; one makes s(x)")
    k = [int(value) for value in options.get("k", [str(DEFAULT_K[kind])])]
    k = k * len(variables) if len(k) == 1 else k
    if len(k) != len(variables) or min(k) < 3:
        raise FormulaError(
            f"{where}: k is {k}; give one basis dimension of at least 3 for all or for each variable"
        )
    return Smooth(kind, variables, basis, tuple(k))
