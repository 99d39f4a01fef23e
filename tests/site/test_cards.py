"""``psychlm card``: files, refusals before anything runs, and the numbers of the test card.

References: the package's own numbers, and the truth of simulated answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command import refused, run

from psychlm import corpora, data, model_card
from psychlm.site import cards

OPTIONS = ("--person", "ID", "--measure", "RT")
PLACES = ("kitchen", "market", "cellar", "theatre", "station", "garden", "tower", "bank")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, where the user is, with a long table whose columns have other names."""
    monkeypatch.chdir(tmp_path)
    texts = [f"The old farmer left the {place} before it rained .".split() for place in PLACES]
    words = pd.DataFrame({"Item": range(len(texts)), "Word": texts}).explode("Word")
    words.insert(1, "WordNr", words.groupby("Item").cumcount() + 1)
    table = pd.DataFrame({"ID": [f"p{person}" for person in range(12)]}).merge(words, how="cross")
    noise = np.random.default_rng(3).normal(0, 40, len(table))
    table["RT"] = (300 + 9 * table["Word"].str.len() + noise).round(1)
    table.to_csv("mine.csv", index=False)
    return tmp_path


def test_a_bad_file_stops_before_anything_runs(study: Path, monkeypatch) -> None:
    monkeypatch.setattr(cards, "make", lambda *_: pytest.fail("it ran"))
    pd.read_csv("mine.csv").set_axis([*"abcde"], axis=1).to_csv("unnamed.csv", index=False)
    said = refused("card", "corpus", "unnamed.csv")
    assert "has the columns a, b, c, d, e; which of them is the person, the text" in said
    assert "Name them: --person '...', --text '...'" in said
    said = refused("card", "corpus", "mine.csv", "--word-number", "Wort")
    assert "there is no column 'Wort'; the file has ID, Item, WordNr, Word, RT" in said
    assert "does not exist" in refused("card", "corpus", "none.csv")
    for more in (["--group", "sex"], ["--key", "key.csv"], ["--missing", "9"]):
        assert "of a file of ANSWERS" in refused("card", "test", *more)
    corpora.lsat6().to_csv("answers.csv")
    said = refused("card", "test", "answers.csv", "--group", "sex")
    assert "there is no column 'sex'; the file has person, LSAT 1" in said
    assert "the file of WORDS" in refused("card", "corpus", "--person", "ID")
    said = refused("card", "corpus", "mine.csv", "mine.csv", "--filter", "Item=1")
    assert "'filter'] are for one table" in said


def test_a_card_is_refused_among_the_reports_and_over_its_input(study: Path, monkeypatch) -> None:
    reports = study / "reports"
    reports.mkdir()
    monkeypatch.setenv("PSYCHLM_REPORTS", str(reports))
    among = refused("card", "corpus", "mine.csv", *OPTIONS, "--out", reports / "mine")
    assert "reports of the collection" in among and list(reports.iterdir()) == []
    (study / "mine.json").write_text("{}")
    refused("card", "model", "--model", "./mine.json", "--out", "mine")
    assert (study / "mine.json").read_text() == "{}"
    assert "there is no parameter n_boots" in refused("card", "corpus", "-p", "n_boots=3")
    assert list(study.glob("*.html")) == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_study_of_ones_own_becomes_a_page_and_its_numbers(study: Path) -> None:
    done = run("card", "corpus", "mine.csv", *OPTIONS, "--language", "de", "--out", "out/a")
    assert done.exit_code == 0, done.output
    content = json.loads((study / "out" / "a.json").read_text())
    assert content["status"] == "complete"
    assert {"card.effect", "card.heldout", "card.power"} <= {n["key"] for n in content["numbers"]}
    page = (study / "out" / "a.html").read_text()
    assert "<script" not in page and 'src="http' not in page
    assert content["verdict"]["sentence"] in " ".join(done.output.split())
    assert "knows English alone" in content["verdict"]["sentence"]  # and is asked about German
    rows = {row["key"]: row for row in content["numbers"]}
    low, high = (rows["card.effect"][end] for end in ("low", "high"))
    assert ("CI, which does not exclude 0, [" in page) == (low <= 0 <= high)
    low, high = (rows["card.total"][end] for end in ("low", "high"))
    is_untold = rows["card.curve"]["says"] == "cannot be told from none"
    assert is_untold == (low <= 0 <= high)
    table = pd.read_csv("mine.csv")
    table.assign(RT=table["RT"] / 1000).to_csv("seconds.csv", index=False)
    said = refused("card", "corpus", "seconds.csv", *OPTIONS)
    assert said.count("look like seconds") == 1 and "multiply their column by 1,000" in said
    assert "are these seconds" not in said


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_card_of_a_study_follows_its_design(study: Path) -> None:
    """Two conditions that differ by 80 ms in every reader, and one reader who guessed."""
    rng = np.random.default_rng(1)
    known = "the old sailor sang about his house there while nobody listened except a cat and "
    known += "seven children who wanted bread or water before night came over green mountains"
    sentences = rng.choice(known.split(), (12, 12))
    rows = []
    for reader in range(8):
        for item in range(12):
            condition = "ab"[(reader + item) % 2]
            right = reader > 0 or item % 2 == 0
            for place, word in enumerate(sentences[item], start=1):
                ms = 320 + 80 * (condition == "b") + rng.normal(0, 30)
                rows.append((f"r{reader}", item, condition, place, word, round(ms), int(right)))
    names = ["Subject", "Item", "Condition", "WordNr", "Word", "RT", "Correct"]
    pd.DataFrame(rows, columns=names).to_csv(study / "design.csv", index=False)
    told = ["--condition", "Condition", "--language", "en", "--least-accuracy", "0.8"]
    small = ["-p", "folds=2", "-p", "n_simulations=20"]
    done = run("card", "corpus", "design.csv", *told, *small, "--out", "design")
    assert done.exit_code == 0, done.output
    numbers = json.loads((study / "design.json").read_text())["numbers"]
    found = {number["key"]: number["value"] for number in numbers}
    assert abs(abs(found["coefficients.Condition1"]) - 40) < 10
    assert found["conditions.Condition.p"] < 1e-6
    page = (study / "design.html").read_text()
    assert "1 of 8 readers (r0)" in page and "Time at each region" in page


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("n_readers", [1, 6])
def test_parts_of_a_single_text_are_held_out(n_readers, study: Path) -> None:
    rng = np.random.default_rng(2)
    known = "the old sailor sang about his house there while nobody listened"
    words = rng.choice(known.split(" "), 150)
    rows = [
        (f"r{reader}", "story", place, word, round(320 + 9 * len(word) + rng.normal(0, 30)))
        for reader in range(n_readers)
        for place, word in enumerate(words, start=1)
    ]
    names = ["Subject", "Item", "WordNr", "Word", "RT"]
    pd.DataFrame(rows, columns=names).to_csv(study / "one.csv", index=False)
    small = ["-p", "folds=2", "-p", "n_simulations=20"]
    done = run("card", "corpus", "one.csv", "--language", "en", *small, "--out", "one")
    assert done.exit_code == 0, done.output
    page = (study / "one.html").read_text()
    assert "One text is used: 7 parts of it" in page and "readings of 1 texts" in page
    assert ("slopes by reader, random intercepts of words" in page) == (n_readers > 1)
    assert "slopes by reader and by text" not in page.partition("We regressed self")[2]


# the card of a test: each runs the notebook, ten seconds


def numbers_of(folder: Path, **parameters: Any) -> dict[str, dict]:
    """Return the numbers of a card by key."""
    content = cards.make("test", parameters, folder / "card")
    assert content == json.loads((folder / "card.json").read_text(encoding="utf-8"))
    return {number["key"]: number for number in content["numbers"]}


@pytest.mark.exhaustive
def test_the_card_of_raw_answers_finds_the_wrong_key_and_the_item_with_dif(tmp_path):
    rng = np.random.default_rng(5)
    theta, sex = rng.normal(size=600), rng.integers(0, 2, 600)
    difficulty = np.linspace(-1, 1, 12) + np.where(np.arange(12) == 3, 1.5, 0) * sex[:, None]
    knows = rng.random((600, 12)) < 1 / (1 + np.exp(-1.5 * (theta[:, None] - difficulty)))
    answers = pd.DataFrame(np.where(knows, "A", rng.choice(list("BCD"), (600, 12))))
    answers = answers.add_prefix("q").mask(rng.random((600, 12)) < 0.01, "99")
    table = answers.assign(sex=sex).rename_axis("student")
    table.to_csv(tmp_path / "answers.csv")
    key = pd.Series("A", answers.columns, name="key").rename_axis("item")
    key["q7"] = "B"
    key.to_csv(tmp_path / "key.csv")
    files = {"file": str(tmp_path / "answers.csv"), "key": str(tmp_path / "key.csv")}
    numbers = numbers_of(tmp_path, **files, group="sex", missing=["99"], drop=[], level="")
    assert numbers["card.items_with_suspect_key"]["says"] == "q7"
    assert "q3 (sex)" in numbers["card.items_with_dif"]["says"]
    assert numbers["card.persons"]["value"] == 600 and numbers["card.items"]["value"] == 12


def test_fetch_gets_what_a_model_card_reads_and_a_refusal_does_not_stop_it(study, monkeypatch):
    asked = []

    def path(name):
        asked.append(name)
        if name == "provo/provo_texts":
            raise data.DataMissingError("no network")
        return study / name

    content = {"verdict": {"sentence": "It ran.", "support": ""}, "numbers": []}
    monkeypatch.setattr(data, "path", path)
    monkeypatch.setattr(cards, "make", lambda *_: content)
    printed = run("card", "model", "--fetch").output
    assert asked == sorted(set(model_card.TEXTS.values())) and len(asked) == 4
    assert set(asked) <= set(data.registry().index)
    assert "It ran." in printed and "no network" in printed
    asked.clear()
    run("card", "model")
    assert not asked
