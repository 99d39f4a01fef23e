"""The notebooks 01 to 03 run on what a user has, into files of the user's choice.

They come with the wheel, so that a card needs no checkout.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psychlm import data
from psychlm.site import collection, index
from psychlm.site.collection import NotebookError
from psychlm.site.runner import Runner, locked_staging

NOTEBOOKS = {"model": "01_model_card", "test": "02_test_card", "corpus": "03_corpus_card"}


class CardError(NotebookError):
    """A card could not be made; the message says why."""


@dataclass(frozen=True)
class Card:
    """A card on disk."""

    html: Path
    json: Path
    content: dict[str, Any]  # the JSON: verdict, provenance, numbers

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of its table: the numbers whose key begins with ``card.``."""
        return [row for row in self.content["numbers"] if row["key"].startswith("card.")]


def notebook_of(kind: str) -> Path:
    """Return the notebook of a card: the checkout's, or the one in the wheel."""
    in_wheel = data.folder() / "notebooks"
    folder = in_wheel if in_wheel.is_dir() else data.folder().parent / "notebooks"
    return folder / f"{NOTEBOOKS[kind]}.ipynb"


def make(kind: str, parameters: Mapping[str, Any], out: Path, title: str = "") -> Card:
    """Run the notebook of a card, and write its page and its numbers.

    Parameters
    ----------
    kind : {"model", "test", "corpus"}
    parameters : mapping
        Parameters of the notebook; those that are not given keep their defaults, which make the
        card of the demonstration.
    out : Path
        The files without their suffix: ``out.html`` and ``out.json`` are written or replaced.
    title : str
        What the card is of, for the title of the page.

    Raises
    ------
    NotebookError
        If a parameter is unknown or of another type; nothing was run.
    CardError
        If the files would lie among the collection's reports, or a cell failed; nothing is written.
    """
    out = out.resolve()
    try:
        among_reports = out.parent == index.reports_folder().resolve()
    except data.DataError:  # outside a checkout there is no collection
        among_reports = False
    if among_reports:
        raise CardError(f"{out.parent} holds the reports of the collection; choose another folder")
    notebook = collection.read(notebook_of(kind))
    notebook = replace(notebook, title=f"{notebook.title}: {title}" if title else notebook.title)
    root = data.folder().parent
    given = collection.run_parameters(root, [notebook], "quick", parameters)
    with tempfile.TemporaryDirectory(prefix="psychlm-card-") as folder:
        reports = Path(folder)
        with locked_staging(reports) as staging:
            runner = Runner(root, reports, staging, "quick", given, 1, card=out.name)
            (outcome,) = runner.run_all([notebook], force=True)
        if outcome.status != "done":
            cell = f", cell {outcome.cell}" if outcome.cell else ""
            raise CardError(f"{notebook.name}{cell}: {outcome.error}")
        page = (reports / f"{notebook.name}.html").read_bytes()
        numbers = (reports / f"{notebook.name}.json").read_bytes()
    out.parent.mkdir(parents=True, exist_ok=True)
    files = Path(f"{out}.html"), Path(f"{out}.json")
    for file, raw in zip(files, (page, numbers), strict=True):
        with data.atomic_write(file) as part:
            part.write_bytes(raw)
    return Card(*files, json.loads(numbers))
