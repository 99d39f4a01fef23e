"""What all notebooks found: every number of every report in one frame, beside the published one."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from psychlm import data
from psychlm.site import storage
from psychlm.site.comparison import compare

COLUMNS = [
    "notebook",
    "key",
    "value",
    "published_value",
    "difference_value",
    "decimals",
    "verdict",
    "unit",
    "data",
    "source",
    "ours",
    "published",
    "low",
    "high",
    "n",
]


def reports_folder() -> Path:
    """Return where finished reports lie: told by the runner, else ``$PSYCHLM_REPORTS``, else the checkout's."""
    told = os.environ.get("PSYCHLM_FINISHED_REPORTS") or os.environ.get("PSYCHLM_REPORTS")
    return Path(told) if told else data.root() / "reports"


def numbers(reports: Path | None = None) -> pd.DataFrame:
    """Return the numbers of all whole reports in a folder.

    Parameters
    ----------
    reports : Path, optional
        :func:`reports_folder` unless given.

    Returns
    -------
    DataFrame
        One row a number: ``notebook``, ``key``, ``value``, ``published_value`` and ``difference_value`` (floats,
        missing where there is none), ``decimals`` of the published number, ``verdict`` (agrees, differs, simulated,
        no comparison), ``unit``, ``data`` (real, simulated, published), ``source``, both numbers as texts, and the
        interval ``low`` to ``high`` and size ``n`` (floats) where the notebook recorded them.
    """
    rows = []
    for file in sorted((reports or reports_folder()).glob("[0-9]*_*.json")):
        report = storage.read(file)
        if report and report["status"] == "complete":
            for row, number in zip(compare(report), report["numbers"], strict=True):
                value, published, difference = row.order
                beside = {
                    "value": value,
                    "published_value": published,
                    "difference_value": difference,
                }
                beside |= {name: number.get(name) for name in ("low", "high", "n")}
                rows.append(asdict(row) | beside)
    found = pd.DataFrame(rows, columns=COLUMNS)
    for name in ("value", "published_value", "difference_value", "low", "high", "n"):
        found[name] = pd.to_numeric(found[name], errors="coerce").astype(float)
    return found


def stamps(reports: Path | None = None) -> pd.DataFrame:
    """Return one row a report, whole or not: ``notebook``, ``status``, ``profile``, ``seconds``, and its numbers' data.

    ``real``, ``simulated`` and ``published`` count the report's numbers of each kind; ``absent`` lists the datasets
    that the notebook asked for and did not get.
    """
    rows = []
    for file in sorted((reports or reports_folder()).glob("[0-9]*_*.json")):
        report = storage.read(file) or {"status": "broken", "numbers": [], "provenance": {}}
        kinds = pd.Series(
            [number.get("data") for number in report["numbers"]], dtype=object
        ).value_counts()
        counted = {kind: int(kinds.get(kind, 0)) for kind in ("real", "simulated", "published")}
        told = {"notebook": file.stem, "status": report["status"], "profile": report.get("profile")}
        asked = report["provenance"].get("data") or {}
        told["absent"] = [name for name, sha in asked.items() if not sha]
        rows.append(
            told | {"title": report.get("title"), "seconds": report.get("seconds")} | counted
        )
    columns = [
        "notebook",
        "status",
        "profile",
        "title",
        "seconds",
        "real",
        "simulated",
        "published",
        "absent",
    ]
    return pd.DataFrame(rows, columns=columns)
