"""Record a notebook's numbers beside the published ones, with the provenance of the run.

:func:`begin` reads the parameters cell and checks its values, :func:`table` and :func:`record` keep
numbers, :func:`say` writes computed sentences, and :func:`verdict` ends the report. Each call
replaces the whole file at once, which says ``"status": "running"`` until the last one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from psychlm import __version__, _formatting, _parameters, data, device
from psychlm._figures import csv_of_table, figure_data, register_figure
from psychlm._formatting import key_label, label, number
from psychlm._parameters import Rule, assignments, at_least, between, check_type, some_of
from psychlm.data import atomic_write

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Report", "begin", "plain", "record", "record_table", "say", "table", "verdict"]
__all__ += ["left_out"]
__all__ += ["Rule", "assignments", "at_least", "between", "check_type", "some_of"]
__all__ += ["checksums", "figure_data", "key_label", "label", "number", "register_figure"]
DataKind = Literal["real", "simulated", "published"]
Outcome = Literal["reproduced", "partly", "not", "beyond the paper"]
OUTCOMES = ("reproduced", "partly", "not", "beyond the paper")
MOST_WORDS = {"sentence": 15, "support": 40, "rests_on": math.inf}  # of a verdict
PACKAGE = Path(__file__).parent
CODE = (PACKAGE, PACKAGE.parent / "notebooks")  # of the package; `analyses`, the papers' own code
PACKAGES = ("torch", "transformers", "numpy", "pandas", "scipy", "statsmodels")


@dataclass
class Report:
    """The numbers of one notebook and how they were computed."""

    notebook: str
    parameters: dict[str, Any]
    data: DataKind = "real"
    started: float = field(default_factory=time.monotonic)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdict: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """The JSON file; a run outside ``psychlm run`` writes into the folder ``interactive``."""
        folder = Path(os.environ.get("PSYCHLM_REPORTS") or data.root() / "reports")
        report_folder = folder if "PSYCHLM_PROFILE" in os.environ else folder / "interactive"
        return report_folder / f"{self.notebook}.json"

    def write(self, status: str) -> None:
        """Write the report and its provenance."""
        content = {
            "notebook": self.notebook,
            "status": status,
            "provenance": provenance(self),
            "verdict": self.verdict,
            "numbers": list(self.numbers.values()),
        }
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path) as part:
            part.write_text(text, encoding="utf-8")


@dataclass(eq=False)
class Table:
    """A table as a notebook shows it, and its values, unrounded, for the CSV and .xlsx files."""

    html: str
    values: pd.DataFrame

    def __repr__(self) -> str:
        return f"Table({' x '.join(map(str, self.values.shape))})"

    def _repr_html_(self) -> str:
        return self.html

    def _repr_csv_(self) -> str:
        return csv_of_table(self.values)


_current: Report | None = None
_loaded: dict[str, str | None] = {}  # modules of psychlm: checksums when they were first seen


def _session() -> Any:
    """Return the session of IPython in which this runs, None elsewhere."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def begin(notebook: str, *, data_kind: DataKind = "real", **rules: Rule | tuple[Rule, ...]) -> None:
    """Begin the report of a notebook: read its parameters and refuse values that are not allowed.

    The parameters are those of the notebook's parameters cell, which was run before, and of the
    cell that papermill puts below it. A value has the type of its default (whole numbers stand for
    numbers; a default of None allows anything), and a list or text is empty only if the default is
    or the rule ``at_least(0)`` allows it.

    Parameters
    ----------
    notebook : str
        The notebook's file name without its suffix.
    data_kind : "real", "simulated" or "published"
        What the numbers rest on unless :func:`record` says otherwise.
    **rules : Rule or tuple of Rule
        What values may be beside their type: :func:`between`, :func:`some_of`, :func:`at_least`.

    Examples
    --------
    >>> begin("00_example", n_boot=between(100, None))  # after no parameters cell
    Traceback (most recent call last):
    ValueError: 00_example: there is no parameter n_boot; the parameters are none
    """
    global _current
    values: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    try:
        if (shell := _session()) is not None:
            values, defaults = _parameters.of_session(notebook, shell.user_ns)
        _parameters.check(values, defaults, rules)
    except ValueError as error:
        raise ValueError(f"{notebook}: {error}") from None
    data.forget_asked()
    device.used.clear()
    _current = Report(notebook, values, data_kind)


def record(
    key: str,
    value: Any,
    *,
    published: float | str | None = None,
    unit: str | None = None,
    source: str | None = None,
    data: DataKind | None = None,
    **beside: Any,
) -> None:
    """Record a number of this notebook beside the published one.

    Parameters
    ----------
    key : str
        Dotted and stable: ``"laverghetta2021.table1.PP.transformer"``; the last value counts.
    value : number, str or list of these
        NaN and infinities become null, since JSON has neither.
    published : number or str, optional
        What the paper printed; ``source`` names its table and page.
    unit : str, optional
        "bits", "nats", "logits" ...; none for a correlation or a proportion.
    data : "real", "simulated" or "published", optional
        What this number rests on, if it differs from the rest of the notebook.
    **beside
        Further numbers that belong to it: ``p=0.003, low=0.1, high=0.8, n=15``. With
        ``comparable=False`` the published value is shown without a verdict.

    Examples
    --------
    >>> begin("00_example")
    >>> record("laverghetta2021.table1.PP.transformer", 0.41, published=0.42, source="Table 1")
    """
    fields = {"published": published, "unit": unit, "source": source, "data": data}
    _add(key, value, fields | beside).write("running")


def _add(key: str, value: Any, fields: dict[str, Any]) -> Report:
    """Check a number and add it to the current report, which is returned unwritten."""
    report = _begun()
    published = fields["published"]
    if published is not None and fields["source"] is None:
        raise ValueError(f"{key}: a published value needs its source: source='Table 1, p. 6'")
    if not isinstance(published, (int, float, np.number, str, type(None))):
        kind = type(published).__name__
        raise ValueError(f"{key}: published should be one number or a text, got {kind}")
    entry = {"key": key, "value": value, **fields, "data": fields["data"] or report.data}
    report.numbers[key] = {name: plain(part) for name, part in entry.items()}
    return report


def record_table(table: pd.DataFrame | pd.Series, *, prefix: str, **fields: Any) -> None:
    """Record every cell of a table, under ``prefix.row.column`` (a Series: ``prefix.row``).

    Labels of a MultiIndex are joined by dots. ``fields`` are those of :func:`record`: one value for
    all cells, or a DataFrame, Series or dict with a value for each label (NaN: none).

    >>> import pandas as pd
    >>> begin("00_example")
    >>> record_table(pd.Series({"q1": -1.2}), prefix="lsat6.2pl.b", unit="logits")
    """

    def cell(values: Any, row: Any, column: Any) -> Any:
        """Return the cell at these labels, None if there is none; a scalar is for all cells."""
        if isinstance(values, dict):
            return values.get(row)
        if not getattr(values, "ndim", 0):
            return values
        if row not in values.index or (values.ndim == 2 and column not in values.columns):
            return None
        value = values.loc[row, column] if values.ndim == 2 else values.loc[row]
        return None if isinstance(value, float) and math.isnan(value) else value

    def levels(label: Any) -> list[Any]:
        return list(label) if isinstance(label, tuple) else [label]

    _warn_of_no_match(table, fields.get("published"))
    fields = dict.fromkeys(("published", "unit", "source", "data")) | fields
    columns = table.to_frame() if table.ndim == 1 else table
    for labels in (columns.index, columns.columns):
        if len(twice := labels[labels.duplicated()].unique()):
            raise ValueError(
                f"rows or columns of {prefix!r} share the names {list(twice)[:5]}; name each apart"
            )
    for row, values in zip(table.index, columns.to_numpy(dtype=object), strict=True):
        for column, value in zip(columns.columns, values, strict=True):
            labels = levels(row) if table.ndim == 1 else [*levels(row), *levels(column)]
            of_cell = {name: cell(given, row, column) for name, given in fields.items()}
            if of_cell["published"] is None:
                of_cell["source"] = None
            current = _add(".".join([prefix, *map(str, labels)]), value, of_cell)
    if table.size:
        current.write("running")


def _warn_of_no_match(table: pd.DataFrame | pd.Series, published: Any) -> None:
    """Warn where published values have names of rows, and the table has none of these."""
    names = list(getattr(published, "index", published)) if hasattr(published, "keys") else []
    if names and set(table.index).isdisjoint(names):
        from psychlm.frames import format_names

        ours = format_names(table.index)
        said = f"no row is named as a published one: {format_names(names)}; rows are {ours}"
        warnings.warn(said, RuntimeWarning, stacklevel=3)


def table(
    frame: pd.DataFrame | pd.Series,
    prefix: str | None = None,
    *,
    values: Any = None,
    published: Any = None,
    format: str | Mapping[Any, str] | None = None,
    caption: str | None = None,
    fold: str | None = None,
    whole: pd.DataFrame | None = None,
    **beside: Any,
) -> Table:
    """Record every cell of a table beside the published one, and return the table for display.

    Shown are readable headers, published values in a column beside ours, and ``low`` and ``high``
    as intervals: those of ``beside``, or two columns of these names (or ``r_low`` and ``r_high``).

    Parameters
    ----------
    frame : DataFrame or Series
        Values of this notebook.
    prefix : str, optional
        First part of every key, as in :func:`record_table`; nothing is recorded without it.
    values : label, optional
        The column whose values are recorded, each with the other columns of its row beside it.
    published : DataFrame, Series or dict, optional
        As in :func:`record_table`.
    format : str or dict, optional
        Format specification of all columns, ``".2f"``, or by column; ``"p"`` for p-values, as which
        columns named ``p`` are shown. Others have as many decimals as their numbers need.
    caption, fold : str, optional
        Shown below the table; a line in place of the table, which a click opens.
    whole : DataFrame, optional
        What the page's CSV and .xlsx file hold, where a part of a table is shown.
    **beside
        As in :func:`record_table`.

    Examples
    --------
    >>> import pandas as pd
    >>> begin("00_example")
    >>> table(pd.Series({"q1": -1.2}, name="b"), "lsat6.2pl", format=".2f", unit="logits")
    Table(1 x 1)
    """
    import pandas as pd

    recorded = frame
    if values is not None:
        recorded = frame[values]
        others = frame.columns.difference([values, "published"], sort=False)
        beside = {str(column): frame[column] for column in others} | beside
    if prefix is not None:
        record_table(recorded, prefix=prefix, published=published, **beside)
    else:
        _warn_of_no_match(frame, published)
    if isinstance(published, dict):
        published = pd.Series(published)
    shown = {"low": beside.get("low"), "high": beside.get("high"), "published": published}
    if values is not None:
        apart = isinstance(published, pd.Series) and "published" not in frame
        shown = {"published": published.to_frame(values)} if apart else {}
    made, shown_values = _formatting.table(frame, shown, spec=format, caption=caption)
    if fold:
        made = f"<details><summary>{escape(fold)}</summary>{made}</details>"
    return Table(made, shown_values if whole is None else whole)


def say(*wordings: str | tuple[Any, str], **values: Any) -> None:
    """Show one computed sentence or paragraph: the first wording whose condition holds, if any.

    ``wordings`` are templates in Markdown, each with its condition or, at the end, without, and
    ``values`` what they name: ``{r:.2f}``, ``{p:p}`` ("= .031", "< .001"), ``{n}``,
    ``{fit.loglik:.1f}``; a list is written as "a, b and c". One that is missing, NaN, None or empty
    is a ValueError.

    >>> say("ρ = {rho:.2f}, p {p:p}", rho=-0.471, p=1e-5)
    ρ = −0.47, p < .001
    >>> say((0.2 > 0.5, "More than half."), "At most half ({share:.0%}).", share=0.2)
    At most half (20%).
    """
    if text := _wording(wordings, values):
        _show(text)


def left_out(sections: Mapping[str, str], *, fetch: Sequence[str] = ()) -> None:
    """Show in one line what is left out and why; pages do not show the sections of these names.

    ``fetch`` names datasets that would fill some of them.

    >>> left_out({"Items": "their wording"}, fetch=["mcqa/ax_b"])
    **Left out:** Items (their wording). `psychlm data pull mcqa/ax_b` fetches what has an address.
    """
    if not sections:
        return
    said = "; ".join(f"{name} ({reason})" for name, reason in sections.items())
    command = f" `psychlm data pull {' '.join(fetch)}` fetches what has an address." * bool(fetch)
    _show(f"**Left out:** {said}.{command}", left_out=list(sections))


def _wording(wordings: str | Sequence[Any], values: Mapping[str, Any]) -> str:
    """Return the first wording whose condition holds, with its values; an empty text if none."""
    for wording in [wordings] if isinstance(wordings, str) else wordings:
        condition, template = (True, wording) if isinstance(wording, str) else wording
        if condition:
            return _formatting.fill(template, values)
    return ""


def _show(text: str, figure: Any = None, **metadata: Any) -> None:
    """Show Markdown, and a figure, in a notebook, with metadata; print the text elsewhere."""
    if _session() is None:
        print(text)
        return
    from IPython.display import Markdown, display

    display(Markdown(text), metadata={"psychlm": metadata})
    if figure is not None:  # of a plot of seaborn or an axes, its figure
        display(getattr(figure, "figure", figure), metadata={"psychlm": metadata})


def verdict(
    sentence: str | list[Any],
    *,
    support: str | list[Any],
    rests_on: str,
    outcome: Outcome | None = None,
    stand_ins: bool = False,
    figure: Any = None,
    **values: Any,
) -> None:
    """End the report with the notebook's answer, and write it.

    Parameters
    ----------
    sentence, support : str, or list of (condition, str) and str
        The answer in at most 15 words, and its numbers in at most 40: templates of :func:`say`,
        filled with ``values``.
    rests_on : str
        Own data, other data or simulated; which people; whether models are above chance.
    outcome : str, optional
        One of :data:`OUTCOMES`: what became of a paper's result. None where no paper's is asked.
    stand_ins : bool
        Whether other models, as a rule smaller ones, stand for the paper's.
    figure : Figure, Axes or grid of seaborn, optional
        The figure that shows it best.

    Examples
    --------
    >>> begin("00_example")
    >>> support = {"support": "Over {n} items, ρ = {rho:.2f}.", "n": 1104, "rho": 0.86}
    >>> answer = [(0.86 > 0.5, "Models find difficult what people do."), "They differ."]
    >>> verdict(answer, outcome="reproduced", rests_on="the paper's own responses", **support)
    **Models find difficult what people do.** Over 1,104 items, ρ = 0.86.
    """
    report = _begun()
    if outcome not in (None, *OUTCOMES):
        raise ValueError(f"outcome={outcome!r} should be one of {', '.join(map(repr, OUTCOMES))}")
    templates = {"sentence": sentence, "support": support, "rests_on": rests_on}
    texts = {name: _wording(wordings, values) for name, wordings in templates.items()}
    for name, text in texts.items():
        n_words = _formatting.n_words(text)
        most = MOST_WORDS[name]
        if not text.strip():
            raise ValueError(f"the {name} of the verdict is empty; add a wording without condition")
        if n_words > most:
            raise ValueError(f"the {name} has {n_words} words, of at most {most}: {text}")
    report.verdict = texts | {"outcome": outcome or "", "stand_ins": stand_ins}
    # pages show both in a box at the top, and not again
    _show(f"**{texts['sentence']}** {texts['support']}", figure, verdict=True)
    report.write("complete")


def _begun() -> Report:
    """Return the report that has begun."""
    if _current is None:
        raise RuntimeError("no report has begun; call report.begin('NN_slug') in the setup cell")
    return _current


def plain(value: Any) -> Any:
    """Turn NumPy scalars into Python's, and NaN and infinities into None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def checksums(files: Iterable[str]) -> dict[str, str | None]:
    """Return the checksums of files of the package and of ``analyses/``; None for absent ones."""
    paths = {file: next((f / file for f in CODE if (f / file).is_file()), None) for file in files}
    return {file: data.sha256(path)[:16] if path else None for file, path in paths.items()}


def provenance(run: Report) -> dict[str, Any]:
    """Return what a run rests on: code, parameters, data, models, versions, device; its seconds."""
    # the modules that are loaded, and the files beside them (a style sheet, a model)
    ours = ("psychlm", "analyses")
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in ours]
    files = {Path(file) for module in modules if (file := getattr(module, "__file__", None))}
    beside = {path for folder in {file.parent for file in files} for path in folder.iterdir()}
    files |= {p for p in beside if p.is_file() and p.suffix not in (".py", ".pyc")}
    names = {str(file.relative_to(f)) for file in files for f in CODE if file.is_relative_to(f)}
    _loaded.update(checksums(names - _loaded.keys()))
    commit, versions = code_and_versions()
    return {
        "psychlm": __version__,
        "commit": commit,
        "profile": os.environ.get("PSYCHLM_PROFILE", "interactive"),
        "parameters": {name: plain(value) for name, value in run.parameters.items()},
        "seed": run.parameters.get("seed"),
        "data": data.asked(),
        "models": dict(sorted(data.opened_models.items())),
        "modules": dict(sorted(_loaded.items())),
        "versions": versions | r_versions(),
        "device": device.used_gpus() or "cpu",
        "ran_on": {part: ", ".join(places) for part, places in sorted(device.used.items())},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "seconds": round(time.monotonic() - run.started, 2),
    }


@cache
def code_and_versions() -> tuple[str | None, dict[str, str]]:
    """Return the commit of the checkout, with ``+`` if files differ (None outside git), and
    versions."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    options: dict[str, Any] = {"stderr": subprocess.DEVNULL, "text": True, "timeout": 10}
    try:
        return subprocess.check_output(command, cwd=data.root(), **options).strip(), versions
    except (OSError, subprocess.SubprocessError, data.DataError):
        return None, versions


def r_versions() -> dict[str, str]:
    """Return the versions of rpy2, R and mgcv if this process has run mgcv, else an empty dict."""
    robjects = sys.modules.get("rpy2.robjects")
    if robjects is None:
        return {}
    with robjects.conversion.localconverter(robjects.default_converter):
        if "mgcv" not in robjects.r("loadedNamespaces()"):
            return {}
        expression = 'c(as.character(getRversion()), as.character(packageVersion("mgcv")))'
        r, mgcv = robjects.r(expression)
    return {"rpy2": version("rpy2"), "R": r, "mgcv": mgcv}
