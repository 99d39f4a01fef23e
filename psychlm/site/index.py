"""The reports on disk, their numbers compared with the published ones, and ``index.html``."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import os
from collections import Counter
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from psychlm import data
from psychlm.report import key_label
from psychlm.report import number as number_of
from psychlm.site import collection, html, ledger

NUMERIC = ["value", "published_value", "difference_value", "low", "high", "n"]
TEXT = [
    "notebook",
    "key",
    "label",
    "ours",
    "published",
    "difference",
    "verdict",
    "says",
    "unit",
    "data",
]
COLUMNS = [*TEXT, "source", "decimals", *NUMERIC]
KINDS = ("real", "simulated", "published")  # of data that a number rests on


def reports_folder() -> Path:
    """Return the folder of finished reports: the runner's, ``$PSYCHLM_REPORTS``, the checkout's."""
    named = os.environ.get("PSYCHLM_FINISHED_REPORTS") or os.environ.get("PSYCHLM_REPORTS")
    return Path(named) if named else data.root() / "reports"


def report_files(reports: Path) -> list[Path]:
    """Return the reports of notebooks in a folder, in order."""
    return sorted(reports.glob("[0-9]*_*.json"))


def read_report(file: Path) -> dict[str, Any] | None:
    """Return a report, None if there is none; an invalid one gets the status "broken"."""
    try:
        report = json.loads(file.read_bytes()) | {"notebook": file.stem}
        # use every field once, as the pages do, so that an invalid one is found here
        compare(report)
        error, headline = report.get("error") or {}, report.get("headline") or {}
        (report.get("verdict") or {}).get("sentence")
        error.get("cell"), headline.get("file"), (report["provenance"].get("data") or {}).items()
        html.duration(report.get("seconds"))
        if not isinstance(report["status"], str):
            raise TypeError(f"its status is {report['status']!r}")
        return {"verdict": None} | report
    except FileNotFoundError:
        return None
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:200]
        broken: dict[str, Any] = {
            "status": "broken",
            "verdict": None,
            "numbers": [],
            "provenance": {},
        }
        return broken | {"notebook": file.stem, "error": {"message": message}}


def exact(value: Any) -> Decimal | None:
    """Return a number exactly as it is written; None for a list, a truth value or "< .001"."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip().replace("−", "-"))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def shown(value: Any, decimals: int | None = None) -> str:
    """Return an entry as the tables show it: with decimals, or with four digits; counts whole.

    Examples
    --------
    >>> shown(1417.0), shown(0.47123), shown(-3e-16), shown(0.861, 4), shown(0.00012, 2)
    ('1,417', '0.4712', '0', '0.8610', '0.00012')
    """
    if isinstance(value, list):
        return ", ".join(shown(entry) for entry in value)
    number = exact(value)
    if isinstance(value, (str, bool)) or number is None:
        return number_of(value) if not isinstance(value, (dict, str)) else str(value)
    if abs(number) < Decimal("1e-9"):  # an error of rounding
        return f"{0:.{decimals or 0}f}"
    if isinstance(value, int) or (decimals is None and number == number.to_integral_value()):
        return number_of(int(number))
    if decimals is None:
        decimals = max(0, 3 - number.adjusted())
    small = abs(number) < Decimal(1).scaleb(-decimals)
    return number_of(float(number), ".2g" if small else f",.{decimals}f")


def compare(report: dict[str, Any]) -> pd.DataFrame:
    """Return the numbers of a report beside the published ones.

    A number *agrees* if it is within half a unit of the last decimal printed, |d| <= 0.5 with
    d = (ours - published) / 10^-decimals. The decimals are those of the published number if it was
    recorded as text. A float has lost its trailing zeros: it gets the most decimals of its kind
    (same paper and table, last part of the key, and unit). Numbers on simulated data, and those
    recorded with ``comparable=False``, are not compared.

    Returns
    -------
    DataFrame
        One row per number: ``notebook``, ``key``; ``ours``, ``published``, ``difference`` as text;
        ``verdict`` (agrees, differs, simulated, no comparison) and ``says``, the same in words;
        ``decimals``, ``unit``, ``data``, ``source``; ``value``, ``published_value``,
        ``difference_value``, ``low``, ``high`` and ``n`` as floats, NaN where there is none.
    """
    kinds, decimals = [], []
    for number in report["numbers"]:
        parts, published = number["key"].split("."), number.get("published")
        kinds.append((*parts[:2], parts[-1], str(number.get("unit")), type(published).__name__))
        # a float's own digits, a text's digits as printed; an int has none
        text = str(exact(published) or "") if isinstance(published, (float, str)) else ""
        text = text.removesuffix(".0") if isinstance(published, float) else text
        decimals.append(len(text.partition(".")[2]))
    rows = []
    for number, kind, n_decimals in zip(report["numbers"], kinds, decimals, strict=True):
        value, published = number.get("value"), number.get("published")
        if isinstance(published, float):
            n_decimals = max(d for other, d in zip(kinds, decimals, strict=True) if other == kind)
        ours, theirs = exact(value), exact(published)
        difference = None if ours is None or theirs is None else ours - theirs
        verdict = "no comparison"
        if number.get("data") == "simulated" or number.get("comparable") is False:
            difference = None
            verdict = "simulated" if number.get("data") == "simulated" else verdict
        elif difference is not None:
            # the bound leaves room for the rounding of binary floats
            agrees = abs(difference) <= Decimal("0.5000001").scaleb(-n_decimals)
            verdict = "agrees" if agrees else "differs"
        at = f" at {n_decimals} decimal{'s' * (n_decimals > 1)}" if n_decimals else ""
        row = {"notebook": report["notebook"], "key": number["key"], "verdict": verdict}
        row["label"] = key_label(number["key"])
        row["says"] = verdict + at if verdict in ("agrees", "differs") else "not compared"
        row["ours"] = shown(value, n_decimals + 2 if published is not None else None)
        row["published"] = "" if published is None else shown(published, n_decimals)
        signed = "" if difference is None else f"{difference:+.{n_decimals + 2}f}"
        row["difference"] = (signed if difference else signed.lstrip("+-")).replace("-", "−")
        row |= {name: str(number.get(name) or "") for name in ("unit", "data", "source")}
        row |= {"value": ours, "published_value": theirs, "difference_value": difference}
        row |= {name: exact(number.get(name)) for name in ("low", "high", "n")}
        rows.append(row | {"decimals": n_decimals})
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMERIC, float))


def gather_numbers(reports: Path | None = None) -> pd.DataFrame:
    """Return the numbers of all complete reports in a folder, as :func:`compare` returns them."""
    reports_read = [read_report(file) for file in report_files(reports or reports_folder())]
    tables = [
        compare(report) for report in reports_read if report and report["status"] == "complete"
    ]
    empty = pd.DataFrame(columns=COLUMNS).astype(dict.fromkeys(NUMERIC, float))
    return pd.concat(tables or [empty], ignore_index=True)


def gather_runs(reports: Path | None = None) -> pd.DataFrame:
    """Return one row per report, complete or not, with counts of its numbers by data."""
    rows = []
    for report in filter(None, map(read_report, report_files(reports or reports_folder()))):
        kinds = Counter(number.get("data") for number in report["numbers"])
        row = {name: report.get(name) for name in ("notebook", "status", "profile", "seconds")}
        row |= {kind: kinds[kind] for kind in KINDS}
        rows.append(row | {"error": str((report.get("error") or {}).get("message") or "")})
    columns = ["notebook", "status", "error", "profile", "seconds", *KINDS]
    return pd.DataFrame(rows, columns=columns)


def build_index(root: Path, reports: Path) -> Path:
    """Write ``index.html`` from the notebooks of a checkout and the reports there are."""
    notebooks = {notebook.name: notebook for notebook in collection.find(root)}
    contents = {file.stem: read_report(file) or {} for file in report_files(reports)}
    cards, texts, tables = [], {}, [pd.DataFrame(columns=COLUMNS)]
    for name in sorted(notebooks.keys() | contents.keys()):
        notebook = notebooks.get(name)
        report = contents.get(name, {"status": "not run"})
        status = {"complete": "done"}.get(report["status"], report["status"])
        headline = (report.get("headline") or {}) if status == "done" else {}
        verdict = (report.get("verdict") or {}) if status == "done" else {}
        picture = reports / Path(str(headline.get("file", "-"))).name
        mime = mimetypes.guess_type(picture.name)[0] or ""
        image = picture.is_file() and mime.startswith("image/")
        error = report.get("error") or {}
        cell = f"cell {error['cell']}: " if error.get("cell") and status == "failed" else ""
        card = {
            "name": name,
            "number": name.partition("_")[0],
            "title": notebook.title if notebook else str(report.get("title") or name[3:]),
            "question": notebook.question if notebook else str(report.get("question") or ""),
            "status": status,
            "error": cell + str(error.get("message") or ""),
            "profile": str(report.get("profile") or ""),
            "seconds": report.get("seconds"),
            "link": status != "not run" and (reports / f"{name}.html").is_file(),
            "picture": html.image_uri(picture.read_bytes(), mime) if image else "",
            "alt": str(headline.get("alt", "")),
            "finding": str(verdict.get("sentence") or ""),
            "outcome": verdict.get("outcome"),
            "models": verdict.get("models"),
        }
        cards.append(card)
        prose = [source for kind, source in getattr(notebook, "cells", ()) if kind == "markdown"]
        texts[name] = " ".join(
            " ".join([name, card["title"], card["finding"], *prose]).lower().split()
        )
        if status == "done":
            tables.append(compare(report))
    numbers = pd.concat(tables, ignore_index=True)
    cells = ledger.printed_cells(numbers).query("column == 'own data'")
    rows = numbers.query("published != ''")
    script = (html.TEMPLATES / "index.js").read_text(encoding="utf-8")
    template = html.environment(reports).get_template("index.html.j2")
    page = template.render(
        cards=cards,
        rows=rows.to_dict("records"),
        statuses=Counter(card["status"] for card in cards),
        n_cells=len(cells),
        n_equal=int(cells["agrees"].sum()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        texts=Markup(json.dumps(texts).replace("<", "\\u003c")),  # it cannot end its element
    )
    with data.atomic_write(reports / "index.html") as part:
        part.write_text(page, encoding="utf-8")
    return reports / "index.html"
