"""Notebooks of a few cells, with which the tests try the runner; and the report of a run."""

import json
from pathlib import Path
from typing import Any

import nbformat
from conftest import absent
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from psychlm.site.runner import Outcome

BEGIN = "from psychlm import report\nreport.begin('{name}', draws=report.between(1, None))"


def write_notebook(
    root: Path,
    name: str,
    *code: str,
    parameters: str = "draws = 50  # draws",
    question: str = "Does it run?",
) -> Path:
    """Write a notebook: title, parameters, setup, and the code cells given."""
    cells = [
        new_markdown_cell(f"# {name[:2]} {name[3:].title()}\n\n**Question.** {question}"),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        new_code_cell(BEGIN.format(name=name), metadata={"tags": ["setup"]}),
        *(new_code_cell(source) for source in code),
    ]
    path = root / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def completed(outcome: Outcome, reports: Path) -> dict[str, Any]:
    """Return the report of a notebook that ran to its end; skip the test where it lacks data."""
    if outcome.status == "left out":
        absent(f"{outcome.notebook}: {outcome.error}")
    assert outcome.status == "done", f"cell {outcome.cell}: {outcome.error}"
    report = json.loads((reports / f"{outcome.notebook}.json").read_text(encoding="utf-8"))
    assert report["status"] == "complete" and report["notebook"] == outcome.notebook
    return report
