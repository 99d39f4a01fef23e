"""Numbers, tables and sentences as a reader sees them: one way for the whole collection."""

from __future__ import annotations

import html
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
# words of a column's name that are written in another way
WORDS = {
    "aic": "AIC",
    "auc": "AUC",
    "bic": "BIC",
    "chi2": "χ²",
    "df": "df",
    "eta": "η",
    "id": "ID",
    "irt": "IRT",
    "kappa": "κ",
    "loglik": "log-likelihood",
    "mae": "MAE",
    "mse": "MSE",
    "pnc": "PNC",
    "r2": "R²",
    "rho": "ρ",
    "rmse": "RMSE",
    "rmsd": "RMSD",
    "rmsea": "RMSEA",
    "sabic": "SABIC",
    "sd": "SD",
    "se": "SE",
    "theta": "θ",
    "vs": "against",
}
# readable names of models, question sets and statistics, by their keys in lower case
NAMES = {
    "albert": "ALBERT",
    "arc": "ARC",
    "bert": "BERT",
    "convbert": "ConvBERT",
    "deberta": "DeBERTa",
    "default": "psychlm's small model",
    "default (control)": "psychlm's small model (control)",
    "electra": "ELECTRA",
    "gpt-2": "GPT-2",
    "gpt2": "GPT-2",
    "gsm8k": "GSM8K",
    "hellaswag": "HellaSwag",
    "human": "people",
    "llama": "Llama",
    "longformer": "Longformer",
    "lstm": "LSTM",
    "lstms": "LSTMs",
    "minilm": "MiniLM",
    "mistral": "Mistral",
    "mmlu": "MMLU",
    "mnli": "MNLI",
    "p_holm": "p (Holm)",
    "p_permutation": "p (permutation)",
    "penn treebank": "Penn Treebank",
    "piqa": "PIQA",
    "roberta": "RoBERTa",
    "s_x2": "S-X²",
    "smollm2": "SmolLM2-135M",
    "snli": "SNLI",
    "snli+mnli": "SNLI + MNLI",
    "snli+mnli+anli": "SNLI + MNLI + ANLI",
    "spanbert": "SpanBERT",
    "sst": "SST",
    "std_error": "standard error",
    "t5": "T5",
    "truthfulqa": "TruthfulQA",
    "winogrande": "WinoGrande",
    "xlnet": "XLNet",
}
NETWORKS = {"lstm": "LSTM", "transformer": "Transformer"}
UNITS = ("ms", "bits", "nats", "logits", "chars", "seconds", "points", "mb")
P_VALUE = re.compile(r"(^|[\s_])p([\s_]|$)", re.IGNORECASE)
BOUNDS = (("low", "high"), ("lower", "upper"))


def number(value: Any, spec: str = "") -> str:
    """Return a number, truth value or text as it is shown.

    Parameters
    ----------
    value : scalar
        None and NaN become a dash.
    spec : str
        A format specification such as ``".2f"``; ``"p"`` for a p-value. Without one, whole numbers
        are shown whole, and others with two decimals, or two digits if they are small. Thousands
        are separated.

    Examples
    --------
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

    Examples
    --------
    >>> decimals([3.0, 12.0]), decimals([0.123, 0.5]), decimals([0.00123]), decimals([1234.5])
    (0, 2, 4, 0)
    """
    sizes = np.abs(np.asarray(values, dtype=float))
    sizes = sizes[np.isfinite(sizes)]
    if not sizes.size or np.allclose(sizes, np.round(sizes), rtol=0, atol=1e-9):
        return 0
    typical = float(np.median(sizes[sizes > 0]))
    if typical >= 1000:
        return 0
    if typical >= 100:
        return 1
    return 2 if typical >= 0.05 else min(1 - math.floor(math.log10(typical)), 6)


def interval(low: Any, high: Any, spec: str = ".2f") -> str:
    """Return an interval as it is shown; a dash if both of its ends are missing.

    Examples
    --------
    >>> interval(-0.471, 0.732), interval(None, math.nan)
    ('[−0.47, 0.73]', '–')
    """
    spec = spec.lstrip("+")
    if number(low) == number(high) == MISSING:
        return MISSING
    return f"[{number(low, spec)}, {number(high, spec)}]"


def label(name: Any) -> str:
    """Return the name of a column, row or key in words.

    Examples
    --------
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

    Examples
    --------
    >>> key_label("lalor2020.table2_2.4GS.neutral"), key_label("filter.SNLI.UB.0.75")
    ('Lalor 2020, Table 2.2, 4GS, neutral', 'filter, SNLI, UB, 0.75')
    """
    words = []
    for part in re.split(r"\.(?!\d+(?:\.|$))|(?<!\b0)\.", key):
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
    *,
    published: Any = None,
    low: Any = None,
    high: Any = None,
    spec: str | Mapping[Any, str] | None = None,
    caption: str | None = None,
) -> str:
    """Return a table as HTML: readable headers, text left-aligned, numbers right-aligned.

    Parameters
    ----------
    frame : DataFrame or Series
        Two columns ``low`` and ``high`` (or ``x_low`` and ``x_high``) become one of intervals.
    published, low, high : DataFrame or Series, optional
        Printed values, in a column beside ours, and bounds of intervals, behind each value.
    spec : str or dict, optional
        Format specification of all columns or of some; the others have as many decimals as their
        numbers need.
    caption : str, optional
        Shown below the table.
    """
    import pandas as pd

    if frame.ndim == 1:
        one = frame.to_frame(frame.name if frame.name is not None else "value")
        name = one.columns[0]
        published, low, high = (
            values.to_frame(name) if isinstance(values, pd.Series) else values
            for values in (published, low, high)
        )
        frame = one
    columns: dict[Any, list[str]] = {}
    numeric: list[bool] = []
    second = {pair[1] for pair in _pairs(frame.columns)}
    bounds = dict(_pairs(frame.columns))
    for position, column in enumerate(frame.columns):
        values = frame.iloc[:, position]
        form = spec.get(column) if isinstance(spec, Mapping) else spec
        form = _spec(column, values) if form is None else form.strip("{:}")
        if column in second:
            continue
        if column in bounds:
            pair = zip(values, frame[bounds[column]], strict=True)
            columns[_interval_name(column)] = [interval(*both, form) for both in pair]
            numeric.append(True)
            continue
        texts = [number(value, form) for value in values]
        if isinstance(low, pd.DataFrame) and isinstance(high, pd.DataFrame) and column in low:
            texts = [
                f"{text} {interval(low.at[row, column], high.at[row, column], form)}"
                for text, row in zip(texts, frame.index, strict=True)
            ]
        columns[column] = texts
        numeric.append(_is_numeric(values))
        if isinstance(published, pd.DataFrame) and column in published:
            printed = published[column].reindex(frame.index)
            name = "published" if frame.shape[1] == 1 else f"{label(_last(column))}, published"
            key = (*column[:-1], name) if isinstance(column, tuple) else name
            columns[key] = [number(value, _printed(printed)) for value in printed]
            numeric.append(True)
    return _html(frame, columns, numeric, caption)


def _last(column: Any) -> Any:
    """Return the last label of a column."""
    return column[-1] if isinstance(column, tuple) else column


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
    if values.dtype != object:
        return values.dtype.kind in "iufb" or str(values.dtype) in ("Int64", "Float64", "boolean")
    kept = values.dropna()
    return len(kept) > 0 and bool(kept.map(lambda v: isinstance(v, (int, float, np.number))).all())


def _pairs(columns: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of columns that are the bounds of one interval."""
    pairs = []
    for column in columns:
        last = _last(column)
        for first, second in BOUNDS if isinstance(last, str) else ():
            if re.search(rf"(^|_){first}(_|$)", last):
                other = re.sub(rf"(^|_){first}(?=_|$)", rf"\g<1>{second}", last)
                partner = (*column[:-1], other) if isinstance(column, tuple) else other
                if partner in columns:
                    pairs.append((column, partner))
    return pairs


def _interval_name(column: Any) -> Any:
    """Return the header of the intervals whose lower bounds stand in a column."""
    last = _last(column)
    rest = re.sub(r"(^|_)(low|lower)(?=_|$)", "", last).strip("_")
    name = f"{label(rest)}, interval" if rest else "interval"
    return (*column[:-1], name) if isinstance(column, tuple) else name


def _html(
    frame: pd.DataFrame, columns: dict[Any, list[str]], numeric: list[bool], caption: str | None
) -> str:
    """Return texts by column as an HTML table with the index of a frame."""
    import pandas as pd

    shown = pd.DataFrame(columns, index=frame.index)
    heads = list(columns)
    names = [None if name is None else label(name) for name in frame.columns.names]
    if not isinstance(frame.columns, pd.MultiIndex) and names[0] is not None:
        heads = [(names[0], head) for head in heads]  # the name stands above the headers
    if heads and isinstance(heads[0], tuple):
        shown.columns = pd.MultiIndex.from_tuples(heads)
    else:
        shown.columns = pd.Index(heads)
    shown.index.names = [None if n is None else label(n) for n in shown.index.names]
    style = shown.style.format(escape="html")
    for axis in (0, 1):
        style = style.format_index(lambda name: html.escape(label(name)), axis=axis)
    if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None:
        style = style.hide(axis="index")
    text = [number for number, is_numeric in enumerate(numeric) if not is_numeric]
    rules = [("td, th.col_heading", "text-align: right"), ("th.row_heading", "text-align: left")]
    rules += [(f"td.col{n}, th.col_heading.col{n}", "text-align: left") for n in text]
    rules += [(f"td.col{n}", "max-width: 45ch") for n in text]
    style = style.set_table_styles(
        [{"selector": part, "props": css} for names, css in rules for part in names.split(", ")]
    )
    made = style.to_html(table_attributes='class="dataframe formatted"')
    made = _with_index_names(made)
    if caption:  # not <caption>, which is as narrow as the table
        made += f'<p class="caption">{html.escape(caption)}</p>'
    # pages have a style sheet of their own, in which a column of text has the class "text"
    for column in text:
        made = re.sub(rf'(<t[dh] [^>]*class="[^"]*\bcol{column})(?=")', r"\1 text", made)
    return made


def _with_index_names(made: str) -> str:
    """Put the names of the index, which pandas shows in a row of their own, above its labels."""
    row = re.search(r'\s*<tr>\s*<th class="index_name.*?</tr>', made, flags=re.DOTALL)
    if row is None:
        return made
    names = re.findall(r'<th class="index_name level\d+" >(.*?)</th>', row[0])
    first, last, body = made[: row.start()].rpartition("<tr>")
    blank = r'<th class="blank(?: level\d+)?" >&nbsp;</th>'
    for name in names:
        header = f'<th class="index_name">{name}</th>'.replace("\\", r"\\")
        body = re.sub(blank, header, body, count=1)
    return first + last + body + made[row.end() :]


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
        for part in value if _is_list(value) else [value]:
            missing = part is None or (isinstance(part, (float, np.floating)) and np.isnan(part))
            if missing or (isinstance(part, str) and not part.strip()):
                raise ValueError(
                    f"{field_name} is {part!r} in the sentence {self.template!r}; write another "
                    "sentence for that case: report.say((condition, wording), wording)"
                )
        if _is_list(value) and not len(value):
            raise ValueError(f"{field_name} is empty in the sentence {self.template!r}")
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

    Raises
    ------
    ValueError
        If a value is missing, NaN, None or empty; the message names it.

    Examples
    --------
    >>> fill("r = {r:.2f} (p {p:p}) of {who}", {"r": -0.471, "p": 1e-5, "who": ["lstm", "RNNG"]})
    'r = −0.47 (p < .001) of LSTM and RNNG'
    """
    return _Filler(template).vformat(template, (), values)


def joined(texts: Sequence[str]) -> str:
    """Return words as in a sentence.

    Examples
    --------
    >>> joined(["one"]), joined(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def n_words(text: str) -> int:
    """Return the number of words and numbers of a text.

    Examples
    --------
    >>> n_words("**Yes**, r = 0.86 [0.80, 0.91]")
    5
    """
    return len([word for word in text.split() if re.search(r"\w", word)])
