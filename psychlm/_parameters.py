"""Parameters of a notebook: what its parameters cell sets, and the rules that their values obey."""

from __future__ import annotations

import ast
import contextlib
import difflib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
TYPES |= {list: "a list", dict: "a mapping"}


@dataclass(frozen=True)
class Rule:
    """What the values of a parameter may be."""

    allowed: str  # in words, after "should be"
    holds: Callable[[Any], bool]
    of: str = "entries"  # what it is asked about: "entries", "keys" of a mapping, or the "whole"

    def refused(self, value: Any) -> list[Any]:
        """Return the parts of a value that the rule refuses."""
        is_keys = self.of == "keys" and isinstance(value, Mapping)
        parts = [value] if self.of == "whole" else list(value if is_keys else entries(value))
        return [part for part in parts if not self.holds(part)]


def between(low: float, high: float | None) -> Rule:
    """Allow numbers from ``low`` to ``high``, both included; None leaves ``high`` open.

    Of a list, each entry is a number; of a mapping, each value.

    >>> between(0, 1).refused([0.5, 1.5])
    [1.5]
    """
    most = math.inf if high is None else high
    words = f"at least {low}" if high is None else f"from {low} to {high}"
    return Rule(words, lambda value: _is(value, float) and low <= value <= most)


def some_of(*choices: Any) -> Rule:
    """Allow the value, each entry of a list or each key of a mapping to be one of ``choices``.

    >>> some_of("holm", "bh").refused("bonferroni")
    ['bonferroni']
    """
    words = f"one of {', '.join(map(repr, choices))}"
    return Rule(words, lambda value: value in choices, "keys")


def at_least(n_entries: int) -> Rule:
    """Allow lists, mappings and texts of at least ``n_entries`` entries; with 0, empty ones too.

    >>> at_least(2).refused(["a"])
    [['a']]
    """
    words = f"a list of at least {n_entries} entries"
    return Rule(words, lambda value: len(value) >= n_entries, "whole")


def entries(value: Any) -> Iterator[Any]:
    """Yield the entries of a list or the values of a mapping, of nested ones too; else the value.

    Yields
    ------
    object
        Neither a list nor a mapping.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for part in value:
        yield from entries(part)


def assignments(source: str) -> dict[str, Any]:
    """Return the names and values of a cell of lines ``name = literal``; others are a ValueError.

    >>> assignments("n_boot = 2000  # resamples")
    {'n_boot': 2000}
    """
    values = {}
    wanted = "a parameters cell holds lines `name = literal` only"
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{wanted}: {error}") from error
    for statement in statements:
        try:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    values[name] = ast.literal_eval(expression)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
                    values[name] = ast.literal_eval(expression)
                case _:
                    raise ValueError
        except (ValueError, TypeError):
            line = ast.unparse(statement).splitlines()[0]
            raise ValueError(f"{wanted}, not `{line}`") from None
    return values


def check_type(name: str, value: Any, default: Any) -> None:
    """Raise if a value, or an entry of it, has another type than the default of its parameter.

    Whole numbers stand for numbers; None as default allows anything.

    >>> check_type("n_boot", "many", 2000)
    Traceback (most recent call last):
    ValueError: n_boot='many' should be a whole number, as n_boot=2000 is
    """
    if default is None:
        return
    kind = type(default)
    shown = f"{name}={default!r}"
    if not _is(value, kind):
        raise ValueError(f"{name}={value!r} should be {TYPES[kind]}, as {shown} is")
    if kind not in (list, dict):
        return
    kinds = {type(entry) for entry in entries(default)}
    kinds = {float} if kinds == {int, float} else kinds
    for entry in entries(value):
        if len(kinds) == 1 and not _is(entry, *kinds):
            words = TYPES.get(next(iter(kinds)), "of another type")
            raise ValueError(f"{name}={value!r}: {entry!r} should be {words}, as in {shown}")


def _is(value: Any, kind: type) -> bool:
    """Return whether a value may stand for one of a type; True is no number, and NaN is none."""
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def check(values: Mapping[str, Any], defaults: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    """Raise if a value has another type than its default, is empty, or if a rule refuses it."""
    if "seed" in values:
        rules = {"seed": between(0, None), **rules}  # as NumPy's generators
    for name in rules:
        if name not in values:
            raise ValueError(no_parameter(name, values))
    for name, value in values.items():
        shown = f"{name}={value!r}"
        check_type(name, value, defaults[name])
        rules_of_name = rules.get(name, ())
        rules_of_name = rules_of_name if isinstance(rules_of_name, tuple) else (rules_of_name,)
        sized = any(rule.of == "whole" for rule in rules_of_name)
        if isinstance(value, (list, dict, str)) and not value and defaults[name] and not sized:
            hint = f"for instance {name}={defaults[name]!r}"
            raise ValueError(f"{shown} should not be empty; {hint}")
        for rule in rules_of_name:
            for part in [] if value is None else rule.refused(value):
                which = "" if part is value else f": {part!r}"
                raise ValueError(f"{shown}{which} should be {rule.allowed}")


def no_parameter(name: str, names: Mapping[str, Any]) -> str:
    """Return the words of an error: there is no parameter of this name; the nearest, or all."""
    near = difflib.get_close_matches(name, list(names), n=1)
    if near:
        return f"there is no parameter {name}; did you mean {near[0]}?"
    return f"there is no parameter {name}; the parameters are {', '.join(names) or 'none'}"


def of_session(notebook: str, variables: Mapping[str, Any]) -> tuple[dict, dict]:
    """Return the parameters of the notebook that runs in this session: values and defaults.

    The parameters cell is the cell of assignments of literals that was run first (or, changed, run
    again); one directly after it holds given values: papermill's, or a user's. Values are what the
    session's ``variables`` hold (``In`` has the cells run so far, and this one), defaults what the
    parameters cell says; in JupyterLab, as it was last saved.
    """
    cells: list[dict[str, Any]] = []
    for source in variables.get("In", [])[:-1]:
        cells.append({})
        with contextlib.suppress(ValueError):  # a cell of other code
            cells[-1] = assignments(source)
    saved = _saved(notebook)
    expected = saved or next(filter(None, cells), {})
    shared = [len(cell.keys() & expected.keys()) for cell in cells]
    if not any(shared):
        return {}, {}
    # the last cell that sets half of them or more, since it may be changed and run again
    first = max(number for number, count in enumerate(shared) if 2 * count >= max(shared))
    while shared[first - 1]:  # given values may set every parameter, too; In begins with ""
        first -= 1
    defaults = cells[first]
    for name in itertools.chain(*itertools.takewhile(bool, cells[first:])):
        if name not in (saved or defaults):
            hint = " (if it is new, save the notebook first)" if saved else ""
            raise ValueError(no_parameter(name, saved or defaults) + hint)
    return {name: variables[name] for name in defaults}, defaults | saved


def _saved(notebook: str) -> dict[str, Any]:
    """Return the parameters of the file that JupyterLab runs; nothing elsewhere."""
    file = Path(os.environ.get("JPY_SESSION_NAME", ""))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = file.read_text(encoding="utf-8")
        for cell in json.loads(text)["cells"] if notebook in text else []:
            if "parameters" in cell["metadata"].get("tags", []):
                return assignments("".join(cell["source"]))
    return {}
