"""The README's tables, made and not typed: ``python -m psychlm.site.overview [results]`` writes them.

The table of notebooks comes from the notebooks; that of results, renewed only when asked, from the reports at hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd

from psychlm import data
from psychlm.site import collection, gathered, storage
from psychlm.site.collection import NotebookError

# The papers by the first part of a key, in the order of the collection.
PAPERS = {
    "laverghetta2021": "Laverghetta et al. (2021)",
    "lalor2020": "Lalor (2020)",
    "richardson2020": "Richardson & Sabharwal (2020)",
    "hao2020": "Hao et al. (2020)",
    "shen2022": "Shen & Kejriwal (2022)",
    "devarda2023": "de Varda et al. (2023)",
}


def table(root: Path) -> str:
    """Return the Markdown table of a checkout's notebooks: name, question, what it reproduces."""
    rows = [f"| `{n.name}` | {n.question} | {n.reproduces} |" for n in collection.find(root)]
    return "\n".join(["| notebook | question | reproduces |", "| --- | --- | --- |", *rows]) + "\n"


def results_table(reports: Path) -> str:
    """Return the Markdown table of how many published numbers came out again, paper by paper and table by table.

    Only numbers on the paper's own data count: those on other or simulated data are no reproduction, whatever they are.
    """
    found = gathered.numbers(reports)
    compared = found[found["verdict"].isin(["agrees", "differs"])]
    parts = compared["key"].str.split(".")
    compared = compared.assign(
        paper=parts.str[0], part=parts.str[1].fillna(""), off=compared["difference_value"].abs()
    )
    lines = [
        "| paper | what | numbers compared | agree to the decimals printed | largest difference |",
        "| --- | --- | --- | --- | --- |",
    ]
    for paper, title in PAPERS.items():
        own = compared[compared["paper"] == paper]
        for part, rows in own.groupby("part", sort=True):
            lines.append(
                f"| {title} | `{part}` | {len(rows)} | {(rows['verdict'] == 'agrees').sum()} | {_largest(rows)} |"
            )
    others = compared[~compared["paper"].isin(list(PAPERS))]
    for paper, rows in others.groupby("paper", sort=True):
        agree = (rows["verdict"] == "agrees").sum()
        lines.append(
            f"| reference programs and data | `{paper}` | {len(rows)} | {agree} | {_largest(rows)} |"
        )
    return "\n".join(lines) + "\n"


def _largest(rows: pd.DataFrame) -> str:
    return f"{rows['off'].max():.2g}"


def write(root: Path, name: str, content: str) -> bool:
    """Put a table between its marks in the README (``<!-- name -->``, ``<!-- /name -->``); say whether that changed it.

    Raises
    ------
    NotebookError
        If the README has no place for it.
    """
    readme = root / "README.md"
    before = readme.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.DOTALL)
    if not between.search(before):
        raise NotebookError(
            f"{readme} has no lines `<!-- {name} -->` and `<!-- /{name} -->`; put them back"
        )
    after = between.sub(lambda marks: marks[1] + content + marks[2], before)
    if after != before:
        storage.write(readme, after)
    return after != before


if __name__ == "__main__":
    write(data.root(), "notebooks", table(data.root()))
    if "results" in sys.argv[1:]:
        write(data.root(), "results", results_table(gathered.reports_folder()))
