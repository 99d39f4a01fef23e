"""Factors and their contrasts, as R codes and names them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import patsy.contrasts
from numpy.typing import NDArray

from psychlm.frames import FrameError

Floats = NDArray[np.float64]
# C(g), C(g, Sum), C(g, contr.sum), C(`a b`, Treatment("b")); factor(g) and as.factor(g) are C(g)
CALL_OF_C = re.compile(
    r"""(?<![\w.])(?:C|factor|as\.factor)\(\s*
    (?:(?P<name>[\w.]+)|`(?P<quoted>[^`]+)`)\s*
    (?:,\s*(?:contr\s*=\s*)?(?P<scheme>[\w.]+)
       \s*(?:\(\s*(?:\w+\s*=\s*)?
             (?P<level>"[^"]*"|'[^']*'|-?\d[\d.]*|True|False)?\s*\))?)?
    \s*\)""",
    re.VERBOSE,
)


class FormulaError(ValueError):
    """A formula cannot be read or asks for something unsupported: which part, and what to do."""


SCHEMES = {
    "treatment": patsy.contrasts.Treatment,
    "sum": patsy.contrasts.Sum,
    "helmert": patsy.contrasts.Helmert,
    "poly": patsy.contrasts.Poly,
    "sdif": patsy.contrasts.Diff,
}


@dataclass(frozen=True)
class Contrast:
    """How a factor is coded where it has contrasts: a scheme, or a matrix of one's own."""

    scheme: str = "treatment"
    reference: object = None  # of treatment contrasts; the first level unless given
    matrix: Floats | pd.DataFrame | None = field(default=None, compare=False)

    def code(self, name: str, levels: tuple[object, ...]) -> tuple[Floats, tuple[str, ...]]:
        """Return the contrasts, (n_levels, n_levels - 1), and R's names of these columns."""
        n = len(levels)
        if self.matrix is not None:
            if isinstance(self.matrix, pd.DataFrame):
                absent = [level for level in levels if level not in self.matrix.index]
                if absent:
                    raise FrameError(
                        f"the contrasts of {name!r} have no rows for its levels {absent}; index "
                        f"the matrix by {[*levels]}"
                    )
                matrix = self.matrix.loc[list(levels)].to_numpy(np.float64)
                labels = tuple(map(str, self.matrix.columns))
            else:
                matrix = np.asarray(self.matrix, dtype=np.float64)
                labels = tuple(str(i + 1) for i in range(n - 1))
            if matrix.shape != (n, n - 1):
                raise FrameError(
                    f"the contrasts of {name!r} have the shape {matrix.shape}, and its {n} levels "
                    f"{[*levels]} need ({n}, {n - 1}): a row for each level, one column less"
                )
            if np.linalg.matrix_rank(np.column_stack([np.ones(n), matrix])) < n:
                raise FrameError(
                    f"the contrasts of {name!r} and the intercept are combinations of one another; "
                    "give columns that are not"
                )
            return matrix, labels
        if self.scheme == "treatment":
            if self.reference is not None and self.reference not in levels:
                raise FrameError(
                    f"{name!r} has no level {self.reference!r} to refer to; its levels are "
                    f"{[*levels]}"
                )
            reference = 0 if self.reference is None else levels.index(self.reference)
            others = [i for i in range(n) if i != reference]
            return np.eye(n)[:, others], tuple(level_name(levels[i]) for i in others)
        matrix = SCHEMES[self.scheme]().code_without_intercept(list(levels)).matrix
        if self.scheme == "sdif":
            pairs = zip(levels[1:], levels, strict=False)
            return matrix, tuple(f"{level_name(a)}-{level_name(b)}" for a, b in pairs)
        if self.scheme == "poly":
            powers = [".L", ".Q", ".C", *(f"^{power}" for power in range(4, n))]
            return matrix, tuple(powers[: n - 1])
        return matrix, tuple(str(i + 1) for i in range(n - 1))


def level_name(level: object) -> str:
    """Return a level as R writes it in the name of a coefficient."""
    return str(level).upper() if isinstance(level, bool | np.bool_) else str(level)


def read_contrast(name: str, value: Any) -> Contrast:
    """Return a contrast from its name, as ``fit(contrasts={"cond": "sum"})`` has it, or a matrix.

    >>> read_contrast("cond", "contr.sum").scheme
    'sum'
    """
    if not isinstance(value, str):
        return Contrast("matrix", matrix=value)
    scheme = value.rpartition("contr.")[2].lower()
    scheme = {"diff": "sdif"}.get(scheme, scheme)
    if scheme not in SCHEMES:
        raise FormulaError(
            f"the contrasts {value!r} of {name!r} are unknown; write one of {[*SCHEMES]}, or give "
            "a matrix"
        )
    return Contrast(scheme)


def take_contrasts(text: str) -> tuple[str, dict[str, Contrast]]:
    """Return a formula with ``g`` for each ``C(g, ...)``, and the contrasts of these factors.

    >>> take_contrasts('rt ~ C(g, Treatment("b")) * x')[0]
    'rt ~ g * x'
    """
    contrasts: dict[str, Contrast] = {}

    def name_alone(call: re.Match[str]) -> str:
        name = call["name"] or call["quoted"]
        contrast = read_contrast(name, call["scheme"] or "treatment")
        if call["level"]:
            if contrast.scheme != "treatment":
                raise FormulaError(f"{call[0]}: only Treatment refers to a level")
            contrast = Contrast("treatment", ast.literal_eval(call["level"]))
        if contrasts.setdefault(name, contrast) != contrast:
            raise FormulaError(
                f"{call[0]} gives {name!r} other contrasts than it has before in the formula; a "
                "factor has one kind"
            )
        return name if name.isidentifier() else f"`{name}`"

    text = CALL_OF_C.sub(name_alone, text)
    if call := re.search(r"(?<![\w.])(C|factor|as\.factor)\(.*", text):
        raise FormulaError(
            f'{call[0]} cannot be read; write C(g), C(g, Sum) or C(g, Treatment("b")), and order '
            "levels by pd.Categorical(g, levels)"
        )
    return text, contrasts


def with_factors(data: pd.DataFrame, contrasts: Mapping[str, Contrast]) -> pd.DataFrame:
    """Return the data with those variables as factors that have contrasts."""
    require_columns(contrasts, data)
    others = [n for n in contrasts if not isinstance(data[n].dtype, pd.CategoricalDtype)]
    return data.assign(**{name: data[name].astype("category") for name in others})


def is_number(values: pd.Series) -> bool:
    """Return whether a variable is a number; text, categories and booleans are factors."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def is_ordered(values: pd.Series) -> bool:
    """Return whether a variable is an ordered factor."""
    return bool(getattr(values.dtype, "ordered", False))


def require_columns(names: Iterable[str], data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` if the data lack a variable of a formula."""
    names = list(names)
    absent = [name for name in names if name not in data.columns]
    if absent:
        of_several = [n for n in map(str, data.columns) if not n.isidentifier()]
        alike = [n for n in of_several if any(part in n.lower() for part in map(str.lower, absent))]
        hint = f"; in backticks, as in R, `{alike[0]}` is a variable" if alike else ""
        if "% in %" in absent[0]:
            hint = "; a %in% b is written a:b"
        elif re.search(r"[<>=!+*/%]", absent[0]):
            hint = f"; what is computed stands in I(), as I({absent[0]})"
        elif {normalize("NFC", name) for name in absent} & {
            normalize("NFC", str(name)) for name in data
        }:
            hint = "; letters with accents are stored in two ways: write the name as the data do"
        raise FrameError(
            f"formula variables not found in the data: {absent}; it has {list(data.columns)}{hint}"
        )
    twice = [name for name in dict.fromkeys(names) if (data.columns == name).sum() > 1]
    if twice:
        raise FrameError(f"several columns are named {twice}; rename or drop all but one of each")
