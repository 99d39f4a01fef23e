"""What all notebooks found, in one frame, and the notebook that reads it. Reference: the reports that were written."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from test_notebooks import RECORD, read_json, write_notebook

from psychlm import site as notebooks
from psychlm.site import collection, fingerprint, gathered

GATHER = """\
from psychlm.site import gathered
found = gathered.numbers()
report.record('gathered.n', len(found))
report.record('gathered.largest', float(found['value'].max()))
report.finish()"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two notebooks, of which the one with the lower number reads what the other found."""
    path = write_notebook(tmp_path, "10_gather", GATHER)
    content = nbformat.read(path, as_version=4)
    content.metadata["psychlm"] = {"reads_reports": True}
    nbformat.write(content, path)
    write_notebook(tmp_path, "20_measure", RECORD, "report.finish()")
    return tmp_path


def test_numbers_and_stamps_of_whole_reports_are_gathered_and_broken_ones_named(
    tmp_path: Path,
) -> None:
    number = {
        "key": "a.b",
        "value": 0.3,
        "published": 0.1,
        "source": "Table 1",
        "unit": None,
        "data": "real",
    }
    simulated = number | {"key": "a.c", "data": "simulated"}
    whole = {
        "status": "complete",
        "numbers": [number, simulated],
        "provenance": {},
        "error": None,
        "headline": None,
        "seconds": 2.5,
        "profile": "quick",
        "title": "A",
        "question": "",
        "finished": "",
    }
    (tmp_path / "10_a.json").write_text(json.dumps(whole))
    (tmp_path / "20_b.json").write_text('{"status": ')
    found = gathered.numbers(tmp_path)
    assert found["key"].tolist() == ["a.b", "a.c"] and found["verdict"].tolist() == [
        "differs",
        "simulated",
    ]
    assert found["difference_value"].iloc[0] == pytest.approx(0.2)
    stamps = gathered.stamps(tmp_path).set_index("notebook")
    assert stamps["status"].to_dict() == {"10_a": "complete", "20_b": "broken"}
    assert stamps.loc["10_a", ["real", "simulated", "published"]].tolist() == [1, 1, 0]


def test_no_reports_at_all_make_an_empty_frame(tmp_path: Path) -> None:
    assert gathered.numbers(tmp_path).empty and list(gathered.numbers(tmp_path)) == gathered.COLUMNS
    assert gathered.stamps(tmp_path).empty


def test_what_another_found_changes_the_fingerprint_of_the_one_that_reads_it(
    checkout: Path, tmp_path: Path
) -> None:
    gather, measure = collection.find(checkout)
    folder = tmp_path / "found"
    folder.mkdir()

    def digests() -> list[str]:
        return [
            fingerprint.of_code(notebook, checkout, "quick", {}, folder)
            for notebook in (gather, measure)
        ]

    before = digests()
    (folder / "20_measure.json").write_text('{"status": "complete"}')
    after = digests()
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.slow
def test_the_notebook_that_reads_the_others_runs_after_them(checkout: Path) -> None:
    outcomes = notebooks.run(root=checkout, jobs=2)
    assert [outcome.status for outcome in outcomes] == ["done", "done"], outcomes
    found = {
        number["key"]: number["value"]
        for number in read_json(checkout / "reports", "10_gather")["numbers"]
    }
    assert found == {"gathered.n": 1, "gathered.largest": 0.5}
