"""Reports on disk, their numbers beside published ones, the ledger of printed cells, the index."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import os
from collections import Counter
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from psychlm import data
from psychlm.report import key_label
from psychlm.report import number as number_of
from psychlm.site import collection, html

NUMERIC = ["value", "published_value", "difference_value", "low", "high", "n"]
TEXT = ["notebook", "key", "label", "ours", "published", "difference", "verdict", "says"]
COLUMNS = [*TEXT, "unit", "data", "source", "decimals", *NUMERIC]
LEDGER_COLUMNS = ("own data", "printed arithmetic", "reference program", "true by construction")
ELSEWHERE = "counted elsewhere"  # another analysis of a printed cell that has a row already
TOLERANCE = 0.5 + 1e-7  # units of the last decimal printed: equal when rounded
KINDS = ("real", "simulated", "published")  # of data that a number rests on


def reports_folder() -> Path:
    """Return the folder of finished reports: the runner's, ``$PSYCHLM_REPORTS``, the checkout's."""
    named = os.environ.get("PSYCHLM_FINISHED_REPORTS") or os.environ.get("PSYCHLM_REPORTS")
    return Path(named) if named else data.root() / "reports"


def report_files(reports: Path) -> list[Path]:
    """Return the reports of notebooks in a folder, in order."""
    return sorted(reports.glob("[0-9]*_*.json"))


def read_report(file: Path) -> dict[str, Any] | None:
    """Return a report, None if there is none; one that cannot be read has the status "broken"."""
    try:
        return {"verdict": None} | json.loads(file.read_bytes()) | {"notebook": file.stem}
    except FileNotFoundError:
        return None
    except ValueError as error:
        about: dict[str, Any] = {"provenance": {}, "error": {"message": str(error)}}
        return about | {"verdict": None, "notebook": file.stem, "status": "broken", "numbers": []}


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
    """Return the numbers of a report beside the published ones, a row each: :data:`COLUMNS`.

    A number *agrees* if it is within half a unit of the last decimal printed: of a text its own, of
    a float, which has lost its trailing zeros, the most of its kind (same paper and table, last
    part of the key, unit). Simulated numbers, and those with ``comparable=False``, are not
    compared.
    """
    numbers = report["numbers"]
    decimals = []
    kinds = []
    most: dict[tuple[Any, ...], int] = {}
    for number in numbers:
        parts = number["key"].split(".")
        published = number.get("published")
        # of a float, or of a text as printed; an int has none
        text = str(exact(published) or "") if isinstance(published, (float, str)) else ""
        text = text.removesuffix(".0") if isinstance(published, float) else text
        decimals.append(len(text.partition(".")[2]))
        kinds.append((*parts[:2], parts[-1], number.get("unit"), type(published)))
        most[kinds[-1]] = max(decimals[-1], most.get(kinds[-1], 0))
    rows = []
    for number, kind, n_decimals in zip(numbers, kinds, decimals, strict=True):
        value = number.get("value")
        published = number.get("published")
        if isinstance(published, float):
            n_decimals = most[kind]
        ours = exact(value)
        theirs = exact(published)
        simulated = number.get("data") == "simulated"
        row: dict[str, Any] = {n: str(number.get(n) or "") for n in ("unit", "data", "source")}
        row |= {name: exact(number.get(name)) for name in ("low", "high", "n")}
        row |= {"notebook": report["notebook"], "key": number["key"], "decimals": n_decimals}
        row |= {"label": key_label(number["key"]), "value": ours, "published_value": theirs}
        row["ours"] = shown(value, None if published is None else n_decimals + 2)
        row["published"] = "" if published is None else shown(published, n_decimals)
        row |= {"verdict": "simulated" if simulated else "no comparison", "difference": ""}
        row["says"] = "not compared"
        incomparable = simulated or number.get("comparable") is False
        if ours is not None and theirs is not None and not incomparable:
            difference = row["difference_value"] = ours - theirs
            # the bound leaves room for the rounding of binary floats
            agrees = abs(difference) <= Decimal("0.5000001").scaleb(-n_decimals)
            row["verdict"] = "agrees" if agrees else "differs"
            row["says"] = row["verdict"]
            if n_decimals:
                row["says"] += f" at {n_decimals} decimal{'' if n_decimals == 1 else 's'}"
            sign = "+" if difference else ""
            row["difference"] = f"{difference:{sign}.{n_decimals + 2}f}".replace("-", "−")
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMERIC, float))


def read_reports(reports: Path | None = None) -> list[dict[str, Any]]:
    """Return the reports of a folder, in order."""
    files = report_files(reports or reports_folder())
    return [report for report in map(read_report, files) if report]


def gather_numbers(reports: Path | None = None) -> pd.DataFrame:
    """Return the numbers of all complete reports in a folder, as :func:`compare` returns them."""
    whole = [report for report in read_reports(reports) if report["status"] == "complete"]
    tables = [compare(report) for report in whole] or [compare({"numbers": []})]
    return pd.concat(tables, ignore_index=True)


def gather_runs(reports: Path | None = None) -> pd.DataFrame:
    """Return one row per report, complete or not, with counts of its numbers by data."""
    rows = []
    for report in read_reports(reports):
        kinds = Counter(number.get("data") for number in report["numbers"])
        error = str((report.get("error") or {}).get("message") or "")
        rows.append(report | {"error": error} | {kind: kinds[kind] for kind in KINDS})
    columns = ["notebook", "status", "error", "profile", "seconds", *KINDS]
    return pd.DataFrame(rows, columns=columns)


def match(keys: pd.Series, patterns: pd.Series) -> pd.Series:
    """Return for each key the label of the first pattern that it matches, -1 for none.

    >>> match(pd.Series(["a.x", "b"]), pd.Series(["a.*"])).tolist()
    [0, -1]
    """
    return keys.map(
        lambda key: next((i for i, one in patterns.items() if fnmatchcase(key, one)), -1)
    )


def printed_cells(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per printed cell that was compared, with what the comparison rests on.

    A cell counts if its number was compared, or rests on *own data* by
    ``data/published/ledger.csv``. The columns (:data:`LEDGER_COLUMNS`) are never added up: *own
    data* are computed from released responses, *printed arithmetic* from other printed numbers; a
    *reference program* is no paper, and what is *true by construction* no evidence. Added are
    ``column``, ``units`` (ours less printed, in units of the last decimal), ``agrees`` and
    ``relative``, the distance by the printed number.
    """
    rules = data.published("ledger")
    named = match(numbers["key"], rules["pattern"]).map(rules["column"])
    cells = numbers.assign(column=named.fillna(LEDGER_COLUMNS[0]))
    counted = cells["verdict"].isin(["agrees", "differs"]) | named.eq(LEDGER_COLUMNS[0])
    counted &= cells["column"].ne(ELSEWHERE) & cells["data"].ne("simulated")
    cells = cells[counted].dropna(subset=["value", "published_value"]).reset_index(drop=True)
    apart = cells["value"] - cells["published_value"]
    printed = cells["published_value"].abs()
    units = apart * 10.0 ** cells["decimals"].astype(float)
    relative = apart.abs() / printed.where(printed > 0)
    return cells.assign(units=units, agrees=units.abs() <= TOLERANCE, relative=relative)


def build_index(root: Path, reports: Path) -> Path:
    """Write ``index.html`` from the notebooks of a checkout and the reports there are."""
    notebooks = {notebook.name: notebook for notebook in collection.find(root)}
    contents = {report["notebook"]: report for report in read_reports(reports)}
    cards = []
    texts = {}
    for name in sorted(notebooks.keys() | contents.keys()):
        notebook = notebooks.get(name)
        card = contents.get(name, {"status": "not run"})
        picture = reports / Path(str((card.get("headline") or {}).get("file", "-"))).name
        mime = mimetypes.guess_type(picture.name)[0] or ""
        shows = card["status"] == "complete" and picture.is_file() and mime.startswith("image/")
        card = card | {
            "notebook": name,
            "title": notebook.title if notebook else str(card.get("title") or name[3:]),
            "question": notebook.question if notebook else str(card.get("question") or ""),
            "link": card["status"] != "not run" and (reports / f"{name}.html").is_file(),
            "picture": html.image_uri(picture.read_bytes(), mime) if shows else "",
        }
        cards.append(card)
        prose = [source for kind, source in getattr(notebook, "cells", ()) if kind == "markdown"]
        finding = str((card.get("verdict") or {}).get("sentence", ""))
        texts[name] = " ".join(" ".join([name, card["title"], finding, *prose]).lower().split())
    numbers = gather_numbers(reports)
    cells = printed_cells(numbers).query("column == 'own data'")
    script = (html.TEMPLATES / "index.js").read_text(encoding="utf-8")
    template = html.environment(reports).get_template("index.html.j2")
    page = template.render(
        cards=cards,
        rows=numbers.query("published != ''").to_dict("records"),
        statuses=Counter(card["status"] for card in cards),
        cells=cells,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        texts=Markup(json.dumps(texts).replace("<", "\\u003c")),  # it cannot end its element
    )
    with data.atomic_write(reports / "index.html") as part:
        part.write_text(page, encoding="utf-8")
    return reports / "index.html"
