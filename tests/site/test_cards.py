"""``psychlm card``: files of the user's choice, and refusals before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import run

from psychlm.site import cards

TEXT = "The old farmer left the {} early and went home before the rain came ."
PLACES = ("kitchen", "market", "cellar", "theatre", "station", "garden", "tower", "bank")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, where the user is, with a long table whose columns have other names."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(3), []
    for person in range(12):
        for item, place in enumerate(PLACES):
            for number, word in enumerate(TEXT.format(place).split(), 1):
                time = 300 + 9 * len(word) + 4 * person + rng.normal(0, 40)
                rows.append((f"p{person}", item, number, word, round(time, 1)))
    table = pd.DataFrame(rows, columns=["ID", "Item", "WordNr", "Word", "RT"])
    table.to_csv("mine.csv", index=False)
    return tmp_path


def test_a_bad_file_stops_before_anything_runs(study: Path, monkeypatch) -> None:
    monkeypatch.setattr(cards, "make", lambda *_: pytest.fail("it ran"))
    done = run("card", "corpus", "mine.csv")
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "has the header ID, Item, WordNr, Word, RT" in said and "Subject, Item, WordNr" in said
    assert "does not exist" in run("card", "corpus", "none.csv").output
    assert (
        "write --columns subject=ID" in run("card", "corpus", "mine.csv", "--columns", "ID").output
    )


def test_a_card_is_refused_among_the_reports_and_over_its_input(study: Path, monkeypatch) -> None:
    reports = study / "reports"
    reports.mkdir()
    monkeypatch.setenv("PSYCHLM_REPORTS", str(reports))
    columns = ("--columns", "subject=ID", "--measure", "RT")
    done = run("card", "corpus", "mine.csv", *columns, "--out", reports / "mine")
    assert done.exit_code == 1 and "reports of the collection" in done.output
    assert list(reports.iterdir()) == []
    (study / "mine.json").write_text("{}")
    assert run("card", "model", "--model", "./mine.json", "--out", "mine").exit_code
    assert (study / "mine.json").read_text() == "{}"


def test_unknown_parameters_are_refused_with_those_there_are(study: Path) -> None:
    done = run("card", "corpus", "-p", "n_boots=3")
    assert done.exit_code == 1 and "has no parameter n_boots" in done.output
    assert list(study.glob("*.html")) == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_study_of_ones_own_becomes_a_page_and_its_numbers(study: Path) -> None:
    done = run(
        "card", "corpus", "mine.csv", "--measure", "RT", "--columns", "subject=ID", "--out", "out/a"
    )
    assert done.exit_code == 0, done.output
    content = json.loads((study / "out" / "a.json").read_text())
    assert content["status"] == "complete"
    assert {"card.effect", "card.heldout", "card.power"} <= {n["key"] for n in content["numbers"]}
    page = (study / "out" / "a.html").read_text()
    assert "<script" not in page and 'src="http' not in page
    assert content["verdict"]["sentence"] in " ".join(done.output.split())
