"""The notebooks 01 to 03 run on what a user has; they come with the wheel and need no checkout."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from psychlm import data
from psychlm.site import collection, index
from psychlm.site.collection import NotebookError
from psychlm.site.runner import Runner, locked_staging

NOTEBOOKS = {"model": "01_model_card", "test": "02_test_card", "corpus": "03_corpus_card"}


class CardError(NotebookError):
    """A card could not be made; the message says why."""


def notebook_file(kind: str) -> Path:
    """Return the notebook of a card, in a wheel or in a checkout."""
    in_wheel = data.folder() / "notebooks"
    folder = in_wheel if in_wheel.is_dir() else data.folder().parent / "notebooks"
    return folder / f"{NOTEBOOKS[kind]}.ipynb"


def make(kind: str, parameters: Mapping[str, Any], out: Path, title: str = "") -> dict[str, Any]:
    """Run the notebook of a card ("model", "test" or "corpus"), and return its report.

    ``out.html``, whose title ends in ``title``, ``out.json`` and ``out-tables.xlsx`` are written or
    replaced.
    """
    out = out.resolve()
    among_reports = False
    with contextlib.suppress(data.DataError):  # outside a checkout there is no collection
        among_reports = out.parent == index.reports_folder().resolve()
    if among_reports:
        raise CardError(f"{out.parent} holds the reports of the collection; choose another folder")
    root = data.folder().parent
    notebook = collection.read(notebook_file(kind))
    notebook = replace(notebook, title=f"{notebook.title}: {title}" if title else notebook.title)
    given = collection.run_parameters(root, [notebook], "quick", parameters)
    with tempfile.TemporaryDirectory(prefix="psychlm-card-") as folder:
        reports = Path(folder)
        with locked_staging(reports) as staging:
            runner = Runner(root, reports, staging, "quick", given, 1, card=out.name)
            (outcome,) = runner.run_all([notebook], force=True)
        if outcome.status != "done":
            cell = f", cell {outcome.cell}" if outcome.cell else ""
            raise CardError(f"{notebook.name}{cell}: {outcome.error}")
        ends = (".html", ".json", "-tables.xlsx")
        made = {end: (reports / f"{notebook.name}{end}").read_bytes() for end in ends}
    out.parent.mkdir(parents=True, exist_ok=True)
    for end, raw in made.items():
        with data.atomic_write(f"{out}{end}") as part:
            part.write_bytes(raw)
    return dict(json.loads(made[".json"]))
