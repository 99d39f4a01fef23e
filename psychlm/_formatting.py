"""Numbers, tables and sentences as a reader sees them: one way for the whole collection."""

from __future__ import annotations

import html
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
# Words of a column's name, and names of models and question sets, that are written in another way
# than their keys. Of the first ones the key is the name in lower case.
ACRONYMS = ["AIC", "AUC", "BIC", "df", "ID", "IRT", "MAE", "MSE", "PNC", "RMSE", "RMSD", "RMSEA"]
WORDS = {word.lower(): word for word in [*ACRONYMS, "SABIC", "SD", "SE"]}
WORDS |= {"chi2": "χ²", "eta": "η", "kappa": "κ", "loglik": "log-likelihood", "r2": "R²"}
WORDS |= {"rho": "ρ", "theta": "θ", "vs": "against"}
SPELLED = """ALBERT, ARC, BERT, ConvBERT, DeBERTa, ELECTRA, GPT-2, GSM8K, HellaSwag, Llama, LSTM,
    Longformer, LSTMs, MiniLM, Mistral, MMLU, MNLI, Penn Treebank, PIQA, RoBERTa, SNLI, SpanBERT,
    SST, T5, TruthfulQA, WinoGrande, XLNet"""
NAMES = {name.lower(): name for name in map(str.strip, SPELLED.split(","))} | {
    "default": "psychlm's small model",
    "default (control)": "psychlm's small model (control)",
    "gpt2": "GPT-2",
    "human": "people",
    "p_holm": "p (Holm)",
    "p_permutation": "p (permutation)",
    "s_x2": "S-X²",
    "smollm2": "SmolLM2-135M",
    "snli+mnli": "SNLI + MNLI",
    "snli+mnli+anli": "SNLI + MNLI + ANLI",
    "std_error": "standard error",
}
NETWORKS = {"lstm": "LSTM", "transformer": "Transformer"}
UNITS = ("ms", "bits", "nats", "logits", "chars", "seconds", "points", "mb")
P_VALUE = re.compile(r"(^|[\s_])p(?!_dif)([\s_]|$)", re.IGNORECASE)


def number(value: Any, spec: str = "") -> str:
    """Return a number, truth value or text as it is shown; None and NaN are a dash.

    ``spec`` is a format specification such as ``".2f"``, or ``"p"`` for a p-value. Without one,
    whole numbers are shown whole, and others with two decimals, or two digits if they are small.
    Thousands are separated.

    >>> number(-0.4712), number(-0.001, ".2f"), number(1417.0), number(True)
    ('−0.47', '0.00', '1,417', 'yes')
    >>> number(0.0004, "p"), number(0.0312, "p")
    ('< .001', '.031')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return format(value, spec) if spec and not isinstance(value, str) else str(value)
    if spec == "p":
        return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
    if not spec:
        spec = ",d" if isinstance(value, int) else f",.{decimals([value])}f"
    spec = re.sub(r"^([+ ]?)(\.\d+f)$", r"\1,\2", spec)
    text = format(value, spec)
    if not re.search("[1-9]", text):  # a negative number that is rounded to zero
        text = text.replace("-", "")
    return re.sub(r"(?<![\w.])-(?=[\d.])|(?<=e)-", "−", text).replace("inf", "∞")


def decimals(values: Any) -> int:
    """Return how many decimals show the typical digits of numbers: none for whole numbers.

    >>> decimals([3.0, 12.0]), decimals([0.123, 0.5]), decimals([0.00123]), decimals([1234.5])
    (0, 2, 4, 0)
    """
    sizes = np.abs(np.asarray(values, dtype=float))
    sizes = sizes[np.isfinite(sizes)]
    if not sizes.size or np.allclose(sizes, np.round(sizes), rtol=0, atol=1e-9):
        return 0
    typical = float(np.median(sizes[sizes > 0]))
    if typical >= 100:
        return 0 if typical >= 1000 else 1
    return 2 if typical >= 0.05 else min(1 - math.floor(math.log10(typical)), 6)


def interval(low: Any, high: Any, spec: str = ".2f") -> str:
    """Return an interval as it is shown; a dash if both of its ends are missing.

    >>> interval(-0.471, 0.732), interval(None, math.nan)
    ('[−0.47, 0.73]', '–')
    """
    spec = spec.lstrip("+")
    if number(low) == number(high) == MISSING:
        return MISSING
    return f"[{number(low, spec)}, {number(high, spec)}]"


def label(name: Any) -> str:
    """Return the name of a column, row or key in words.

    >>> label("rho_within_label"), label("gaze_ms"), label("below_-2"), label("smollm2")
    ('ρ within label', 'gaze (ms)', 'below −2', 'SmolLM2-135M')
    >>> label("penn treebank.lstm-200"), label("1pl.b.LSAT1"), label("GPT-Neo 1.3B")
    ('Penn Treebank, LSTM-200', '1pl, b, LSAT1', 'GPT-Neo 1.3B')
    """
    if not isinstance(name, str):
        return number(name) if isinstance(name, (float, bool)) else str(name)
    if name.lower() in NAMES:
        return NAMES[name.lower()]
    parts = re.split(r"(?<=[A-Za-z])\.(?=\w)", name)
    if len(parts) > 1:
        return ", ".join(map(label, parts))
    kind, _, size = name.lower().partition("-")
    if kind in NETWORKS and size.isdigit():  # the number of its units
        return f"{NETWORKS[kind]}-{size}"
    if size == "gram":
        return f"{kind}-gram"
    if "_" not in name and name.lower() not in WORDS:
        return name
    words = [part for part in name.split("_") if part]
    unit = words.pop() if len(words) > 1 and words[-1] in UNITS else ""
    words = [WORDS.get(word, re.sub(r"^-(?=\d)", "−", word)) for word in words]
    return " ".join(words) + (f" ({unit})" if unit else "")


def key_label(key: str) -> str:
    """Return the key of a recorded number in words.

    >>> key_label("lalor2020.table2_2.4GS.neutral"), key_label("filter.SNLI.UB.0.75")
    ('Lalor 2020, Table 2.2, 4GS, neutral', 'filter, SNLI, UB, 0.75')
    >>> key_label("babylm.s_GPTNeo_2.7B")
    'babylm, GPTNeo 2.7B'
    """
    words = []
    key = re.sub(r"(?<=\.)s_(?=GPT)", "", key)  # surprisal, in released columns
    for part in re.split(r"\.(?!\d+(?:\.|$|[BM]\b))|(?<!\b0)\.(?!\d+[BM]\b)", key):
        citation = re.fullmatch(r"([a-z]+)((?:19|20)\d\d)", part)
        printed = re.fullmatch(r"(table|figure|chapter|section)s?_?(\w+)", part)
        if citation:
            words.append(f"{citation[1].capitalize()} {citation[2]}")
        elif printed and re.match(r"\d", printed[2]):
            digits = re.sub(r"(?<=\d)_(?=\d)", ".", printed[2])
            words.append(f"{printed[1].capitalize()} {label(digits)}")
        else:
            words.append(label(part))
    return ", ".join(filter(None, words))


def table(
    frame: pd.DataFrame | pd.Series,
    beside: Mapping[str, Any],
    *,
    spec: str | Mapping[Any, str] | None = None,
    caption: str | None = None,
) -> tuple[str, pd.DataFrame]:
    """Return a table as HTML, and its values with further columns for those that are shown beside
    them, ``beside``: "low", "high" and "published"; :func:`psychlm.report.table` describes both.

    >>> import pandas as pd
    >>> low = pd.Series([0.1], ["q1"])
    >>> table(pd.Series([0.5], ["q1"], name="r"), {"low": low})[1].to_dict("list")
    {'r': [0.5], 'r_low': [0.1]}
    """
    import pandas as pd

    if isinstance(frame, pd.Series):
        frame = frame.to_frame("value" if frame.name is None else frame.name)
    values = {_joined(column): frame[column] for column in frame}
    others: dict[Any, pd.Series] = {}  # by name and column
    for name, given in beside.items():
        if isinstance(given, pd.Series) and frame.shape[1] == 1:
            given = given.to_frame(frame.columns[0])
        if isinstance(given, pd.DataFrame):
            for column in given.columns.intersection(frame.columns, sort=False):
                others[name, column] = given[column].reindex(frame.index)
                values[f"{_joined(column)}_{name}"] = others[name, column]
    columns: dict[Any, list[str]] = {}
    numeric: list[bool] = []
    bounds = _bounds(frame.columns)
    for position, column in enumerate(frame.columns):
        numbers = frame.iloc[:, position]
        form = spec.get(column) if isinstance(spec, Mapping) else spec
        form = _spec(column, numbers) if form is None else form
        if column in bounds.values():
            continue
        if column in bounds:
            rest = re.sub(r"(^|_)(low|lower)(?=_|$)", "", _last(column)).strip("_")
            header = _renamed(column, f"{label(rest)}, interval" if rest else "interval")
            pairs = zip(numbers, frame[bounds[column]], strict=True)
            columns[header] = [interval(low, high, form) for low, high in pairs]
            numeric.append(True)
            continue
        columns[column] = [number(value, form) for value in numbers]
        numeric.append(_is_numeric(numbers))
        if ("low", column) in others and ("high", column) in others:
            bounds_beside = (others["low", column], others["high", column])
            columns[column] = [
                f"{text} {interval(low, high, form)}"
                for text, low, high in zip(columns[column], *bounds_beside, strict=True)
            ]
        if ("published", column) in others:
            printed = others["published", column]
            name = "published" if frame.shape[1] == 1 else f"{label(_last(column))}, published"
            columns[_renamed(column, name)] = [number(one, _printed(printed)) for one in printed]
            numeric.append(True)
    return _html(frame, columns, numeric, caption), pd.DataFrame(values, index=frame.index)


def _of_a_paper(frame: pd.DataFrame) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return heads, cells and which columns are numbers, with the digits of a paper (APA): two
    decimals, more where these would show less than two digits, p to three or "< .001"."""
    is_counted = frame.index.name is None and frame.index.dtype.kind in "iu"
    table = frame if is_counted else frame.reset_index()
    heads = ["" if name == "index" else label(name) for name in table.columns]
    columns = []
    for name in table.columns:
        spec = _spec(name, table[name])
        if spec not in ("", "p", ",.0f"):
            spec = f",.{max(decimals(table[name]), 2)}f"
        columns.append([number(value, spec) for value in table[name]])
    numeric = [_is_numeric(table[name]) for name in table.columns]
    return heads, [list(row) for row in zip(*columns, strict=True)], numeric


def latex(frame: pd.DataFrame, caption: str, notes: Sequence[str] = ()) -> str:
    r"""Return a table for a paper as LaTeX, with the rules of the package booktabs.

    Numbers have the digits of a paper (American Psychological Association 2020, section 6.36): two
    decimals, more where these would show less than two digits, and p to three.

    >>> import pandas as pd
    >>> made = latex(pd.DataFrame({"t": [-4.126], "p": [0.0004]}, index=["bits"]), "A test")
    >>> made.splitlines()[6]
    'bits & $-$4.13 & $<$ .001 \\\\'
    """

    written = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    written |= {"−": "$-$", "<": "$<$", "χ²": r"$\chi^2$", "–": "--"}

    def escaped(text: str) -> str:
        text = re.sub(r"([&%$#_{}])", r"\\\1", text)
        return re.sub("|".join(map(re.escape, written)), lambda sign: written[sign[0]], text)

    heads, rows, numeric = _of_a_paper(frame)
    lines = [" & ".join(map(escaped, cells)) + r" \\" for cells in (heads, *rows)]
    columns = "".join("r" if is_number else "l" for is_number in numeric)
    begin = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(caption)}}}"]
    begin += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0] + r" \midrule"]
    end = [r"\bottomrule", r"\end{tabular}", *(rf"\\ {escaped(note)}" for note in notes)]
    return "\n".join([*begin, *lines[1:], *end, r"\end{table}"])


def markdown(frame: pd.DataFrame, caption: str, notes: Sequence[str] = ()) -> str:
    """Return a table for a paper as Markdown, with the digits of :func:`latex`.

    >>> import pandas as pd
    >>> print(markdown(pd.DataFrame({"p": [0.0312]}, index=["bits"]), "A test").splitlines()[-1])
    | bits | .031 |
    """
    heads, rows, numeric = _of_a_paper(frame)
    rule = ["---:" if is_number else "---" for is_number in numeric]
    lines = ["| " + " | ".join(x.replace("|", r"\|") for x in row) + " |" for row in (heads, *rows)]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    below = [f"\n*Note.* {' '.join(note + '.' for note in notes)}"] if notes else []
    return "\n".join([f"**{caption}**\n", *lines, *below])


class PaperTables:
    """A result whose tables can be written for a paper."""

    def _for_a_paper(self) -> Iterable[tuple[pd.DataFrame, str, Sequence[str]]]:
        """Return the tables, each with its caption and notes."""
        raise NotImplementedError

    def to_latex(self) -> str:
        """Return the tables as LaTeX (booktabs), with the digits of a paper (APA)."""
        return "\n\n".join(latex(*table) for table in self._for_a_paper() if len(table[0]))

    def to_markdown(self) -> str:
        """Return the tables as Markdown, with the digits of a paper (APA)."""
        return "\n\n".join(markdown(*table) for table in self._for_a_paper() if len(table[0]))


def _joined(column: Any) -> str:
    """Return the labels of a column as one name."""
    return "_".join(map(str, column)) if isinstance(column, tuple) else str(column)


def _last(column: Any) -> Any:
    """Return the last label of a column."""
    return column[-1] if isinstance(column, tuple) else column


def _renamed(column: Any, name: str) -> Any:
    """Return a column's label with another last one."""
    return (*column[:-1], name) if isinstance(column, tuple) else name


def _printed(values: pd.Series) -> str:
    """Return the format specification with the decimals to which values were printed."""
    if not _is_numeric(values):
        return ""
    digits = [repr(float(value)).partition(".")[2] for value in values.dropna()]
    return f".{max((len(part) for part in digits if part != '0'), default=0)}f"


def _spec(column: Any, values: pd.Series) -> str:
    """Return the format specification of a column: that of its name, or what its numbers need."""
    last = _last(column)
    if isinstance(last, str) and P_VALUE.search(last):
        return "p"
    if isinstance(last, str) and last.lower() in ("year", "seed"):
        return "d"
    if not _is_numeric(values) or values.map(lambda v: isinstance(v, (bool, np.bool_))).any():
        return ""
    return f",.{decimals(values.astype(float))}f"


def _is_numeric(values: pd.Series) -> bool:
    """Return whether a column holds numbers (or nothing) only."""
    import pandas as pd

    if values.dtype != object:
        return pd.api.types.is_numeric_dtype(values)
    kept = values.dropna()
    return len(kept) > 0 and bool(kept.map(lambda v: isinstance(v, (int, float, np.number))).all())


def _bounds(columns: Any) -> dict[Any, Any]:
    """Return for each column of lower bounds that of the upper bounds of the same intervals."""
    bounds = {}
    for column in columns:
        for lower, upper in (("low", "high"), ("lower", "upper")):
            pattern = rf"(^|_){lower}(?=_|$)"
            if isinstance(_last(column), str) and re.search(pattern, _last(column)):
                partner = _renamed(column, re.sub(pattern, rf"\g<1>{upper}", _last(column)))
                if partner in columns:
                    bounds[column] = partner
    return bounds


def _html(
    frame: pd.DataFrame, columns: dict[Any, list[str]], numeric: list[bool], caption: str | None
) -> str:
    """Return texts by column as an HTML table with the index of a frame."""
    import pandas as pd

    heads: list[Any] = list(columns)
    names = [None if name is None else label(name) for name in frame.columns.names]
    if not isinstance(frame.columns, pd.MultiIndex) and names[0] is not None:
        heads = [(names[0], head) for head in heads]  # the name stands above the headers
    shown = pd.DataFrame(columns, index=frame.index)
    shown.columns = pd.Index(heads)
    shown.index.names = [None if n is None else label(n) for n in shown.index.names]
    style = shown.style.format(escape="html")
    for axis in (0, 1):
        style = style.format_index(lambda name: html.escape(label(name)), axis=axis)
    if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None:
        style = style.hide(axis="index")
    text = [column for column, is_numeric in enumerate(numeric) if not is_numeric]
    rules = {"td": "text-align: right", "th.col_heading": "text-align: right"}
    rules["th.row_heading"] = "text-align: left"
    for column in text:
        rules[f"th.col_heading.col{column}"] = "text-align: left"
        rules[f"td.col{column}"] = "text-align: left; max-width: 45ch"
    style = style.set_table_styles([{"selector": part, "props": rules[part]} for part in rules])
    made = style.to_html(table_attributes='class="dataframe formatted"')
    # pandas shows the names of the index in a row of their own; here they stand above its labels
    row = re.search(r'\s*<tr>\s*<th class="index_name.*?</tr>', made, flags=re.DOTALL)
    if row is not None:
        above, last, body = made[: row.start()].rpartition("<tr>")
        blank = r'<th class="blank(?: level\d+)?" >&nbsp;</th>'
        for name in re.findall(r'<th class="index_name level\d+" >(.*?)</th>', row[0]):
            header = f'<th class="index_name">{name}</th>'.replace("\\", r"\\")
            body = re.sub(blank, header, body, count=1)
        made = above + last + body + made[row.end() :]
    if caption:  # not <caption>, which is as narrow as the table
        made += f'<p class="caption">{html.escape(caption)}</p>'
    # pages have a style sheet of their own, in which a column of text has the class "text"
    for column in text:
        made = re.sub(rf'(<t[dh] [^>]*class="[^"]*\bcol{column})(?=")', r"\1 text", made)
    return made


class _Filler(string.Formatter):
    """Fill a template, and refuse a value that is missing or not a number."""

    def __init__(self, template: str) -> None:
        self.template = template

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            value, first = super().get_field(field_name, args, kwargs)
        except (KeyError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the sentence {self.template!r} needs a value {field_name}, which is not given"
            ) from error
        if _is_list(value) and not len(value):
            raise ValueError(f"{field_name} is empty in the sentence {self.template!r}")
        for part in value if _is_list(value) else [value]:
            if number(part).strip() in ("", MISSING):
                raise ValueError(
                    f"{field_name} is {part!r} in the sentence {self.template!r}; write another "
                    "sentence for that case: report.say((condition, wording), wording)"
                )
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        if _is_list(value):
            return joined([self.format_field(part, format_spec) for part in value])
        if isinstance(value, str) and not format_spec:
            return NAMES.get(value.lower(), value)
        if isinstance(value, (bool, int, float, np.generic)):
            text = number(value, format_spec)
            return f"= {text}".replace("= <", "<") if format_spec == "p" else text
        return format(value, format_spec)


def _is_list(value: Any) -> bool:
    """Return whether a value is a sequence of entries (a pandas index or series too)."""
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with its values: true minus signs, names of models, lists joined by "and".

    >>> fill("r = {r:.2f} (p {p:p}) of {who}", {"r": -0.471, "p": 1e-5, "who": ["lstm", "RNNG"]})
    'r = −0.47 (p < .001) of LSTM and RNNG'
    """
    return _Filler(template).vformat(template, (), values)


def joined(texts: Sequence[str]) -> str:
    """Return words as in a sentence: one, two and three."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def n_words(text: str) -> int:
    """Return the number of words and numbers of a text.

    >>> n_words("**Yes**, r = 0.86 [0.80, 0.91]")
    5
    """
    return len([word for word in text.split() if re.search(r"\w", word)])
