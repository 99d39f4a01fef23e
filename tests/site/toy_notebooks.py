"""Notebooks of a few cells, with which the tests try the runner and the collection."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

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
