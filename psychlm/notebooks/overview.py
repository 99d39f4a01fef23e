"""The table of notebooks in the README, made from the notebooks: ``python -m psychlm.notebooks.overview`` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from psychlm import data
from psychlm.notebooks import collection, storage
from psychlm.notebooks.collection import NotebookError

_BETWEEN = re.compile(r"(<!-- notebooks -->\n).*?(<!-- /notebooks -->)", flags=re.DOTALL)


def table(root: Path) -> str:
    """Return the Markdown table of a checkout's notebooks: name, question, what it reproduces."""
    rows = [f"| `{n.name}` | {n.question} | {n.reproduces} |" for n in collection.find(root)]
    return "\n".join(["| notebook | question | reproduces |", "| --- | --- | --- |", *rows]) + "\n"


def write(root: Path) -> bool:
    """Put the table between its marks in the README; say whether that changed it.

    Raises
    ------
    NotebookError
        If the README has no place for it.
    """
    readme = root / "README.md"
    before = readme.read_text(encoding="utf-8")
    if not _BETWEEN.search(before):
        raise NotebookError(f"{readme} has no lines `<!-- notebooks -->` and `<!-- /notebooks -->`; put them back")
    after = _BETWEEN.sub(lambda marks: marks[1] + table(root) + marks[2], before)
    if after != before:
        storage.write(readme, after)
    return after != before


if __name__ == "__main__":
    write(data.root())
