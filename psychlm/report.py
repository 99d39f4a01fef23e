"""A notebook's numbers, each beside the published one, and the stamp that says how they came about.

A notebook begins its report in the setup cell and ends it in the last one::

    report.begin("20_psychometric_properties", seed=seed, draws=draws)
    report.record("laverghetta2021.table1.PP.transformer", r, published=0.86, source="Table 1, p. 6")
    report.finish()

Every :func:`record` writes the whole file anew, to a temporary name that is then moved: a reader never sees half a
report, and until :func:`finish` the file says ``"status": "running"``.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from psychlm import __version__, data
from psychlm.data import atomic_write

DataKind = Literal["real", "simulated", "published"]
_STAMPED = ("torch", "transformers", "numpy", "pandas", "scipy", "statsmodels", "rpy2")


@dataclass
class Report:
    """The numbers of one notebook and how they came about."""

    notebook: str
    parameters: dict[str, Any]
    data: DataKind = "real"
    started: float = field(default_factory=time.monotonic)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The JSON file: ``$PSYCHLM_REPORTS`` or ``reports/`` of the checkout."""
        folder = Path(os.environ.get("PSYCHLM_REPORTS", data.root() / "reports"))
        return folder / f"{self.notebook}.json"

    def write(self, status: str) -> None:
        """Write the report under a temporary name and move it into place."""
        content = {
            "notebook": self.notebook,
            "status": status,
            "provenance": provenance(self),
            "numbers": list(self.numbers.values()),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path) as fresh:
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            fresh.write_text(text, encoding="utf-8")


_current: Report | None = None


def begin(notebook: str, *, data_kind: DataKind = "real", **parameters: Any) -> None:
    """Begin the report of a notebook; what it recorded in an earlier run of the same session is forgotten.

    Parameters
    ----------
    notebook : str
        The notebook's file name without its suffix, ``"20_psychometric_properties"``.
    data_kind : "real", "simulated" or "published"
        What the numbers rest on unless :func:`record` says otherwise.
    **parameters
        The notebook's parameters, as its ``parameters`` cell (or papermill) set them.
    """
    global _current
    data.forget_asked()
    _current = Report(notebook, parameters, data_kind)


def set_data_kind(kind: DataKind) -> None:
    """Say what the numbers recorded from here on rest on, once the notebook knows which data it got."""
    _running().data = kind


def _running() -> Report:
    if _current is None:
        raise RuntimeError(
            "no report has begun; call report.begin('NN_slug', ...) in the notebook's setup cell"
        )
    return _current


def _plain(value: Any) -> Any:
    """Turn NumPy scalars into Python's, and numbers that JSON cannot hold (NaN, infinities) into None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


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
        Dotted and stable, since checks read it: ``"laverghetta2021.table1.PP.transformer"``. The last value recorded
        under a key stands.
    value : number, str or list of these
        NaN and infinities become null: JSON has no word for them.
    published : number or str, optional
        What the paper printed; ``source`` then names its table and page.
    unit : str, optional
        "bits", "nats", "logits" ...; none for a correlation or a proportion.
    data : "real", "simulated" or "published", optional
        What this number rests on, where it differs from the rest of the notebook.
    **beside
        Further numbers that belong to it: ``p=0.003, low=0.1, high=0.8, n=15``. ``comparable=False`` shows the
        published value without a verdict: the median of many random draws beside the paper's single one, say.

    Raises
    ------
    RuntimeError
        If no report has begun.
    ValueError
        If a published value comes without its source.
    """
    run = _running()
    if published is not None and source is None:
        raise ValueError(
            f"{key}: a published value names its source, for instance source='Table 1, p. 6'"
        )
    number = {"key": key, "value": value, "published": published, "unit": unit, "source": source}
    number |= {"data": data or run.data, **beside}
    run.numbers[key] = {name: _plain(entry) for name, entry in number.items()}
    run.write("running")


def record_table(
    table: Any,
    *,
    prefix: str,
    published: Any = None,
    unit: str | None = None,
    source: Any = None,
    data: DataKind | None = None,
    **beside: Any,
) -> None:
    """Record every cell of a table, under ``prefix.row.column`` (a Series: ``prefix.row``).

    Parameters
    ----------
    table : DataFrame or Series
        Values of this notebook. Labels of a MultiIndex are joined by dots.
    prefix : str
        First part of every key, for instance ``"laverghetta2021.table1"``.
    published : DataFrame or Series, optional
        The paper's values under the same labels; cells that it lacks or holds as NaN have none.
    unit, data
        As in :func:`record`, for all cells.
    source : str, DataFrame or Series, optional
        Where the published values are printed: one source for all, or one for each cell.
    **beside : scalar, DataFrame or Series
        Further numbers that belong to each cell, such as ``low=``, ``high=``, ``p=`` or ``n=``.

    Examples
    --------
    >>> report.begin("00_example")  # doctest: +SKIP
    >>> report.record_table(fit.items["b"], prefix="lsat6.2pl.b", unit="logits")  # doctest: +SKIP
    """
    for label, row in table.items() if table.ndim == 1 else table.iterrows():
        cells = (
            {(label,): row} if table.ndim == 1 else {(label, name): row[name] for name in row.index}
        )
        for labels, value in cells.items():
            flat = [
                str(part)
                for name in labels
                for part in (name if isinstance(name, tuple) else (name,))
            ]
            printed = _cell(published, labels)
            record(
                ".".join((prefix, *flat)),
                value,
                published=printed,
                unit=unit,
                source=None if printed is None else _cell(source, labels),
                data=data,
                **{name: _cell(values, labels) for name, values in beside.items()},
            )


def _cell(table: Any, labels: tuple) -> Any:
    """Return the cell of a table at these labels, None where it has none; a scalar stands for all cells."""
    if not hasattr(table, "ndim") or table.ndim == 0:
        return table
    rows, *columns = labels
    if rows not in table.index or (table.ndim == 2 and columns[0] not in table.columns):
        return None
    value = table.loc[rows, columns[0]] if table.ndim == 2 else table.loc[rows]
    return None if isinstance(value, float) and math.isnan(value) else value


def banner(kind: DataKind, how: str) -> Any:
    """Return the banner that a notebook on simulated data shows at its top; an empty line where its data are real.

    Parameters
    ----------
    how : str
        One line that tells how to get the real data.
    """
    from IPython.display import Markdown

    if kind == "real":
        return Markdown("")
    return Markdown(
        f"> **These are {kind} data.** No number below is a finding. To get the real ones: {how}"
    )


def finish() -> None:
    """End the report: mark it complete and write it."""
    _running().write("complete")


def provenance(run: Report) -> dict[str, Any]:
    """Return the stamp of a report: code, parameters, data with checksums, versions, seed, device, seconds."""
    return {
        "psychlm": __version__,
        "commit": _git_commit(),
        "profile": os.environ.get("PSYCHLM_PROFILE", "interactive"),
        "parameters": _plain_mapping(run.parameters),
        "seed": run.parameters.get("seed"),
        "data": data.asked(),
        "versions": {"python": platform.python_version()} | _versions() | _r_versions(),
        "device": _device(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "seconds": round(time.monotonic() - run.started, 2),
    }


def _plain_mapping(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in parameters.items()}


@cache
def _git_commit() -> str | None:
    """Return the commit of the checkout, with ``+`` where files differ from it; None outside git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=data.root(),
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in _STAMPED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _r_versions() -> dict[str, str]:
    """Ask R, where there is one, for its version and mgcv's."""
    ask = (
        "cat(paste(R.version$major, R.version$minor, sep='.'), "
        "tryCatch(format(packageVersion('mgcv')), error = function(e) ''))"
    )
    try:
        answer = subprocess.run(
            ["Rscript", "--vanilla", "-e", ask],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        name: found
        for name, found in zip(("R", "mgcv"), answer.stdout.split(), strict=False)
        if found
    }


def _device() -> str:
    """Name the device of this run; torch is asked only where the notebook itself has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}"
    return "cpu"
