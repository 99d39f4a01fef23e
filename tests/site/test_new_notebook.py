"""`psychlm new` and the README's table. Reference: the anatomy that tests/test_notebooks_in_git.py asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import test_notebooks_in_git as anatomy
import yaml
from click.testing import CliRunner
from conftest import ROOT

from psychlm import cli, data
from psychlm import site as notebooks
from psychlm.site import NotebookError, collection, overview
from psychlm.site import new as builder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one notebook, which new ones are added to."""
    for folder in ("notebooks", "tests", "data"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "notebooks" / "00_start_here.ipynb", tmp_path / "notebooks")
    shutil.copy(ROOT / "data" / "registry.csv", tmp_path / "data")
    (tmp_path / "tests" / "smoke.yaml").write_text("00_start_here:\n  n_sets: 2\n")
    (tmp_path / "README.md").write_text(
        "before\n<!-- notebooks -->\nold\n<!-- /notebooks -->\nafter\n"
    )
    return tmp_path


def test_a_new_notebook_has_the_anatomy_of_the_others(checkout: Path) -> None:
    path = builder.new("My corpus: a début!", root=checkout)
    assert path.name == "01_my_corpus_a_d_but.ipynb"
    anatomy.test_a_notebook_has_its_anatomy(path)
    anatomy.test_the_code_cells_of_a_notebook_are_short_and_hide_nothing(path)
    anatomy.test_a_notebook_in_git_has_no_outputs(path)
    assert yaml.safe_load((checkout / "tests" / "smoke.yaml").read_text())[path.stem] == {
        "n_persons": 200
    }


@pytest.mark.slow
def test_a_new_notebook_runs_as_it_is(checkout: Path) -> None:
    path = builder.new("My test", root=checkout, number=42)
    (outcome,) = notebooks.run(["42"], profile="smoke", root=checkout)
    assert outcome.status == "done", outcome.error
    assert (checkout / "reports" / f"{path.stem}.png").is_file()


def test_a_taken_number_and_an_empty_title_are_refused(checkout: Path) -> None:
    with pytest.raises(NotebookError, match="00_start_here; free are: 01, 02"):
        builder.new("Again", root=checkout, number=0)
    with pytest.raises(NotebookError, match="holds no Latin letter"):
        builder.new("???", root=checkout)


def test_the_command_adds_the_notebook_to_the_readme(checkout: Path, monkeypatch) -> None:
    monkeypatch.setattr(data, "root", lambda: checkout)
    done = CliRunner().invoke(cli.main, ["new", "My corpus"])
    assert done.exit_code == 0, done.output
    readme = (checkout / "README.md").read_text()
    assert (
        "| `01_my_corpus` | Which items of this test tell persons apart? | – |\n<!-- /notebooks -->\nafter"
        in readme
    )


def test_the_readmes_table_is_the_one_the_notebooks_make() -> None:
    assert overview.table(ROOT) in (ROOT / "README.md").read_text(), (
        "python -m psychlm.site.overview writes it"
    )


def test_every_notebook_says_what_it_reproduces() -> None:
    assert all(notebook.reproduces for notebook in collection.find(ROOT))


def test_results_count_what_was_compared_paper_by_paper(tmp_path: Path) -> None:
    number = {"value": 0.5, "published": 0.5, "source": "Table", "unit": None, "data": "real"}
    cells = {"a": {}, "b": {"value": 0.9}, "c": {"data": "simulated"}}
    numbers = [
        number | {"key": f"lalor2020.table2_1.{cell}"} | more for cell, more in cells.items()
    ]
    numbers.append(number | {"key": "lsat6.alpha"})
    whole = {
        "status": "complete",
        "numbers": numbers,
        "provenance": {},
        "error": None,
        "headline": None,
        "seconds": 1,
        "profile": "quick",
        "title": "A",
        "question": "",
        "finished": "",
    }
    (tmp_path / "10_a.json").write_text(json.dumps(whole))
    *_, lalor, lsat = overview.results_table(tmp_path).splitlines()
    assert lalor == "| Lalor (2020) | `table2_1` | 2 | 1 | 0.4 |"
    assert lsat == "| reference programs and data | `lsat6` | 1 | 1 | 0 |"


def test_a_readme_without_its_marks_is_named(checkout: Path) -> None:
    (checkout / "README.md").write_text("nothing\n")
    with pytest.raises(NotebookError, match="<!-- notebooks -->"):
        overview.write(checkout, "notebooks", "")
