"""The front page of the reports: every notebook with its question and picture, and ours beside the published."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from psychlm.site import collection, storage
from psychlm.site.collection import Notebook
from psychlm.site.comparison import compare


@dataclass(frozen=True)
class Card:
    """What the index shows of one notebook."""

    name: str
    number: str
    title: str
    question: str
    status: str  # done, failed, running, broken, not run
    error: str
    kind: str  # what its numbers rest on
    profile: str
    seconds: float | None
    link: str
    picture: str  # a data URI
    alt: str
    finding: (
        str  # what its headline figure shows, in the sentence that was computed for it; Markdown
    )


def build_index(root: Path, reports: Path) -> Path:
    """Write ``index.html`` from the notebooks of a checkout and the reports there are, whole or broken.

    Returns
    -------
    Path
        The page.
    """
    from psychlm.site import benchmarks, render

    notebooks = {notebook.name: notebook for notebook in collection.find(root)}
    names = sorted(notebooks.keys() | {file.stem for file in reports.glob("[0-9]*_*.json")})
    found = {name: storage.read(reports / f"{name}.json") for name in names}
    cards = [_card(name, notebooks.get(name), found[name], reports) for name in names]
    whole = [report for report in found.values() if report and report["status"] == "complete"]
    rows = [row for report in whole for row in compare(report) if row.published]
    script = (render.TEMPLATES / "index.js").read_text(encoding="utf-8")
    page = (
        render.environment(reports)
        .get_template("index.html.j2")
        .render(
            cards=cards,
            rows=rows,
            statuses=Counter(card.status for card in cards),
            verdicts=Counter(row.verdict for row in rows),
            speed=benchmarks.write_page(reports),
            script=Markup(script),
            texts=Markup(_texts(cards, notebooks)),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )
    storage.write(reports / "index.html", page)
    return reports / "index.html"


def _card(
    name: str, notebook: Notebook | None, report: dict[str, Any] | None, reports: Path
) -> Card:
    from psychlm.site import render

    known = report or {"status": "not run", "numbers": [], "provenance": {}}
    status = {"complete": "done"}.get(known["status"], known["status"])
    number, _, slug = name.partition("_")
    picture, alt = _picture(known, reports) if status == "done" else ("", "")
    provenance = known["provenance"]
    return Card(
        name=name,
        number=number,
        title=notebook.title if notebook else str(known.get("title") or slug.replace("_", " ")),
        question=notebook.question if notebook else str(known.get("question") or ""),
        status=status,
        error=_error(known),
        kind=render.data_kind(known) if status == "done" else "",
        profile=str(known.get("profile") or provenance.get("profile", "")),
        seconds=known.get("seconds", provenance.get("seconds")),
        link=f"{name}.html" if status != "not run" and (reports / f"{name}.html").is_file() else "",
        picture=picture,
        alt=alt,
        finding=str((known.get("headline") or {}).get("finding", "")) if status == "done" else "",
    )


def _texts(cards: list[Card], notebooks: dict[str, Notebook]) -> str:
    """Return what a search looks through, as JSON that cannot end its element: each notebook's prose and finding."""
    found = {
        card.name: " ".join(
            [card.name, card.title, card.finding, *getattr(notebooks.get(card.name), "prose", ())]
        )
        for card in cards
    }
    return json.dumps(
        {name: " ".join(text.lower().split()) for name, text in found.items()}
    ).replace("<", "\\u003c")


def _error(report: dict[str, Any]) -> str:
    error = report.get("error") or {}
    where = f"cell {error['cell']}: " if error.get("cell") else ""
    return where + (error.get("message") or "")


def _picture(report: dict[str, Any], reports: Path) -> tuple[str, str]:
    """Return the headline figure as a data URI with its alternative text; empty where there is none."""
    headline = report.get("headline") or {}
    file = reports / Path(str(headline.get("file", "-"))).name
    mime = mimetypes.guess_type(file.name)[0] or ""
    if not mime.startswith("image/") or not file.is_file():
        return "", ""
    return f"data:{mime};base64,{base64.b64encode(file.read_bytes()).decode()}", str(
        headline.get("alt", "")
    )
