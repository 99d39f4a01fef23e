"""``psychlm`` as a user types it. References: R's ltm on LSAT 6, the functions that it calls."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_models
from command import refused, run
from conftest import ROOT

from psychlm import cli, corpora, doctor, irt, simulate, site, terminal

TEXT = "The old man."


@pytest.fixture(scope="module", autouse=True)
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a folder with responses, a 1PL fit, items, a model, words, and what is none."""
    folder = tmp_path_factory.mktemp("study")
    tiny_models.save(folder / "gpt2", "gpt2")
    responses, rng = corpora.lsat6(), np.random.default_rng(0)
    responses.astype(int).to_csv(folder / "answers.csv")
    responses.to_parquet(folder / "answers.parquet")
    graded = simulate.items(4, rng, "graded", n_categories=3)
    ratings = simulate.responses(rng.normal(size=200), graded, rng, model="graded")
    ratings.to_csv(folder / "ratings.csv")
    stems = {"What fell?": ["horse", "barn"], "Who ran?": ["horse", "boat"], "Who sat?": ["a", "b"]}
    items = [
        {"item_id": f"00{i}", "prompt": stem, "choices": choices, "answer": i % 2}
        for i, (stem, choices) in enumerate(stems.items())
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "words.csv").write_text("text_id,word_id,word\n1,1,None\n")
    (folder / "words.xlsx").write_bytes(b"PK")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PSYCHLM_CACHE", str(folder / "cache"))
        done = run("irt", "fit", "answers.csv", "--model", "1pl", "--out", "fit.json")
        assert done.exit_code == 0 and "log-likelihood -2466.938 nats" in done.output
        yield folder


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("irt score fit.json answers.csv --out x.xlsx", "ends in none of .csv"),
        ("irt score fit.json answers.csv --out answers.csv", "is the input"),
        ("irt fit answers.csv --out answers.csv", "ends in none of .json"),
        ("card test --scale 500,-100", "write mean,sd as 500,100"),
        ("card test --scale 500", "write mean,sd as 500,100"),
        ("irt fit nowhere.csv --out new.json", "nowhere.csv does not exist"),
        ("irt fit ratings.csv --out new.json", "grade the answers"),
        ("irt fit answers.csv --out new.json --prior b=3", "write NAME=KIND:A,B"),
        ("irt fit answers.csv --out new.json --prior slope=lognormal:0,0", "positive"),
        ("surprisal words.xlsx", "neither a text file"),
        ("surprisal absent.md", "there is no file"),
        ("surprisal half\udce9", "holds half a character"),
        ("surprisal words.csv --lines", "--lines is for text files"),
        ("surprisal words.csv --out words.csv", "is the input"),
        ("responses none.jsonl --model ./gpt2", "there is no file"),
        ("responses items.jsonl --model ./none", "holds no config.json"),
        ("responses items.jsonl --model ./gpt2 --prompt poem", "no prompt 'poem'"),
        ("responses items.jsonl --model ./gpt2 --out n.csv --logprobs n.csv", "another output"),
        (f"new {'x' * 300}", "at most 100 printable characters"),
        ("data where nothing", "no dataset is named 'nothing'"),
        ("run zz", "no notebook is 'zz'"),
    ],
)
def test_what_cannot_be_done_is_said_and_every_file_stays_as_it_was(study, command, says) -> None:
    before = {file: file.read_bytes() for file in study.iterdir() if file.is_file()}
    assert says in refused(*command.split())
    assert before == {file: file.read_bytes() for file in study.iterdir() if file.is_file()}


# item response theory


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_persons_are_scored_from_either_format(tmp_path, suffix) -> None:
    out = tmp_path / f"abilities.{suffix}"
    command = ["irt", "score", "fit.json", f"answers.{suffix}"]
    assert run(*command, "--out", out).exit_code == 0
    abilities = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    expected = irt.IRTFit.from_json("fit.json").score(corpora.lsat6())["theta"]
    assert abilities["theta"].tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert run(*command).stdout.startswith("person,theta,se\n0,")


def test_every_person_of_the_file_has_a_row_of_scores_one_with_blanks_too(tmp_path) -> None:
    table = corpora.lsat6().iloc[:20].astype(float)
    table.iloc[[3, 17]] = np.nan
    table.index = [f"p{number:02d}" for number in range(20)]
    table.to_csv(tmp_path / "answers.csv", index_label="id")
    run("irt", "score", "fit.json", tmp_path / "answers.csv", "--out", tmp_path / "scores.csv")
    scores = pd.read_csv(tmp_path / "scores.csv", index_col=0)
    assert scores.index.tolist() == table.index.tolist()
    assert scores.index[scores["theta"].isna()].tolist() == ["p03", "p17"]
    assert scores["reason"].dropna().to_dict() == dict.fromkeys(["p03", "p17"], "answered no item")
    table.iloc[:1, 1:3] = np.nan
    table.iloc[:1].to_csv(tmp_path / "one.csv", index_label="id")
    expected = irt.IRTFit.from_json("fit.json").score(table.iloc[:1].dropna(axis=1))
    said = run("irt", "score", "fit.json", tmp_path / "one.csv")
    row = said.stdout.splitlines()[1].split(",")
    assert "abilities rest on 5 of the 5" not in said.stderr
    table.drop(columns=table.columns[1]).to_csv(tmp_path / "four.csv", index_label="id")
    short = run("irt", "score", "fit.json", tmp_path / "four.csv").stderr
    assert f"rest on 4 of the 5 items of fit.json; without answers: {table.columns[1]}" in short
    assert [float(cell) for cell in row[1:]] == pytest.approx(expected.iloc[0].tolist())


def test_priors_and_item_columns_are_options(tmp_path) -> None:
    out, table = tmp_path / "fit.json", corpora.lsat6()
    names = [str(name) for name in table.columns]
    prior = ["--prior", "slope=lognormal:0,0.5"]
    expected = irt.fit(table[names[:4]], "2PL", priors={"slope": irt.LogNormal(0, 0.5)}).items["a"]
    for columns in (["--items", ",".join(names[:4])], ["--drop", names[4]]):
        assert run("irt", "fit", "answers.csv", "--out", out, *prior, *columns).exit_code == 0
        slopes = irt.IRTFit.from_json(out).items["a"]
        assert slopes.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


# what reaches the terminal, and other programs

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x00\x7f\x9b2J\u202e"  # title, colour, NUL, DEL, CSI, direction
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_control_characters_of_a_file_do_not_reach_the_terminal(study, tmp_path, monkeypatch):
    """Commands that show what a file holds, in every column that they show, and errors."""
    monkeypatch.chdir(tmp_path)
    word, model = f"a{HOSTILE}b", study / "gpt2"
    Path("text.txt").write_text(f"the {word} man")
    words = pd.DataFrame({"text_id": word, "word_id": [1, 2], "word": word, "sentence_id": word})
    words.assign(**{f"note{HOSTILE}": word}).to_csv("words.csv", index=False)
    named = corpora.lsat6().rename(columns="{}\x1b[31m".format, index=f"{{}}{HOSTILE}".format)
    named.astype(int).to_parquet("answers.parquet")
    items = (study / "items.jsonl").read_text().replace('"000"', json.dumps(f"0{HOSTILE}"))
    Path("items.jsonl").write_text(items)
    Path("none.jsonl").write_text(json.dumps({"id": word, HOSTILE: word}))
    for arguments in (
        ["surprisal", "text.txt", "--unit", "token"],
        ["surprisal", "words.csv", "--entropy", "--rank"],
        ["surprisal", "words.csv", "--unit", "sentence"],
        ["surprisal", "the man", "--model", word],
        ["surprisal", "the man", "--out", f"{word}.xlsx"],
        ["irt", "fit", "answers.parquet", "--model", "1PL", "--out", "fit.json"],
        ["irt", "score", "fit.json", "answers.parquet"],
        ["responses", "items.jsonl", "--model", model, "--prompt", f"{{{HOSTILE}}}"],
        ["responses", "none.jsonl", "--model", model],
        ["data", "where", word],
        ["new", word],
        ["run", "00", "-p", f"{word}=1"],
    ):
        printed = run(*arguments).output
        assert printed and not OBEYED.search(printed), (arguments, OBEYED.findall(printed))


def test_a_carriage_return_ends_no_row_and_formulas_are_escaped_for_a_spreadsheet(tmp_path) -> None:
    out = tmp_path / "a.csv"
    frame = pd.DataFrame({"word": ["a\rb", "c\nd", "e"], "x\ry": [1.5, None, 2.0]})
    terminal.write_table(frame, out, index=False)
    pd.testing.assert_frame_equal(pd.read_csv(out), frame)
    run_by_a_spreadsheet = ["=1+1", "+a", "@b", "-x", "\tz"]
    frame = pd.DataFrame({name: [name, "-1.5"] for name in [*run_by_a_spreadsheet, "plain"]})
    frame.index = pd.Index(["=p", "q"], name="=person")
    terminal.write_table(frame, out, index=True, spreadsheet=True)
    with out.open(newline="") as opened:
        header, first, second = csv.reader(opened)
    escaped = [f"'{name}" for name in run_by_a_spreadsheet]
    assert header == ["'=person", *escaped, "plain"]
    assert first == ["'=p", *escaped, "plain"]
    assert second == ["q"] + ["-1.5"] * 6


def test_the_help_of_a_card_explains_the_parameters_of_its_notebook() -> None:
    said = " ".join(run("card", "test", "--help").output.split())
    assert "wished_se = 0.5 standard error of ability (logits)" in said


@pytest.mark.parametrize("place", ["", "notes"])
def test_a_new_notebook_is_written_where_the_user_is(place, tmp_path, monkeypatch) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path / place)
    assert "01_my_study.ipynb, and no other" in run("new", "My study").output
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "registry.csv").touch()  # a checkout around the user
    run("new", "Mine", "--kind", "reading-times")
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.ipynb")}
    number = 1 if place else 2
    mine = f"notebooks/{number:02d}_mine.ipynb"
    assert written == {str(Path(place, "notebooks/01_my_study.ipynb")), mine}


def test_a_prompt_of_ones_own_is_a_text_with_fields(tmp_path) -> None:
    item = {"item_id": "q1", "prompt": "The old man", "choices": ["sat.", "of of."], "answer": 0}
    (tmp_path / "items.jsonl").write_text(json.dumps(item) + "\n")
    asked = ["responses", tmp_path / "items.jsonl", "--model", "default", "--no-cache"]
    files = [tmp_path / "own.csv", tmp_path / "named.csv"]
    run(*asked, "--prompt", "Question: {prompt}\\nAnswer:", "--logprobs", files[0])
    run(*asked, "--prompt", "question", "--logprobs", files[1])
    assert files[0].read_text() == files[1].read_text()


def test_a_parameter_names_a_file_from_where_the_user_is(study, monkeypatch) -> None:
    (study / "default").mkdir()
    given: dict[str, object] = {}
    monkeypatch.setattr(site, "run", lambda *_, parameters, **__: given.update(parameters) or [])
    expected = {
        "file=answers.csv": str(study / "answers.csv"),
        "folder=./gpt2": str(study / "gpt2"),
        "model=default": "default",
        "absent=no.csv": "no.csv",
        "files=[answers.csv, no.csv, 2]": [str(study / "answers.csv"), "no.csv", 2],
    }
    run("run", "00", *(word for assignment in expected for word in ("-p", assignment)))
    assert list(given.values()) == list(expected.values())


def test_the_doctor_names_what_is_missing_or_corrupt_and_ends_well(monkeypatch) -> None:
    _, *get_r = doctor.PARTS["R, mgcv, rpy2"]
    no_r = (lambda: doctor.printed(sys.executable, "-c", "raise OSError('no libR.so')"), *get_r)
    no_package = (lambda: doctor.version("no-such-package"), "pip install it", "something")
    parts = {"R": no_r, "other": no_package, "data": doctor.PARTS["data"]}
    monkeypatch.setattr(doctor, "PARTS", parts)
    rows = [{"name": "a", "place": "", "state": "absent"}]
    monkeypatch.setattr(doctor.data, "state", lambda: iter(rows))
    shown = " ".join(run("doctor").output.split())
    assert "apt-get install r-base-core" in shown and "(OSError: no libR.so)" in shown
    assert "pip install it (No package" in shown
    assert "psychlm data pull NAME (none is here)" in shown
    rows.append({"name": "b", "place": "data/raw", "state": "corrupt"})
    shown = run("doctor").output
    assert "['b'] have the wrong" in shown and "0 of 3 optional parts are here" in shown


# surprisal


def test_a_text_file_of_any_kind_is_read_and_not_scored_as_its_name(tmp_path) -> None:
    story = tmp_path / "story.md"
    story.write_text("The old man\n\nthe boat.", encoding="utf-8-sig")
    assert cli.read_words(str(story))["word"].tolist() == ["The", "old", "man", "the", "boat."]
    assert cli.read_words(str(story), lines=True)["text_id"].nunique() == 2
    story.write_bytes("a\x0cb\u2028c\r\nd\re\u0085f\n".encode())  # str.splitlines finds six
    assert cli.read_words(str(story), lines=True)["text_id"].tolist() == [*"111233"]
    assert cli.read_words("The end.")["word"].tolist() == ["The", "end."]
    for separator in ",;":
        story.with_suffix(".csv").write_text(Path("words.csv").read_text().replace(",", separator))
        assert cli.read_words(str(story.with_suffix(".csv")))["word"].tolist() == ["None"]


def test_several_models_and_other_units_are_one_call(tmp_path) -> None:
    out, folder = tmp_path / "bits.csv", str(ROOT / "psychlm" / "lm" / "default")
    scored = ["surprisal", "--unit", "token", "--model", "default", "--model", folder, "--out", out]
    for source, typed in ((TEXT, None), ("-", TEXT)):
        assert "8 tokens of 1 texts" in run(*scored, source, text=typed).output
        table = pd.read_csv(out)
        assert table["model"].unique().tolist() == ["default", folder]
        bits = table["surprisal_bits"].to_numpy().reshape(2, 4)
        np.testing.assert_array_equal(bits[0], bits[1])


# responses


def test_items_go_in_and_graded_responses_come_out(tmp_path) -> None:
    out, scores = tmp_path / "deep" / "responses.csv", tmp_path / "scores.parquet"
    command = ["responses", "items.jsonl", "--model", "./gpt2"]
    done = run(*command, "--out", out, "--logprobs", scores)
    assert done.exit_code == 0 and "of 3 items right (chance: 0.500)" in done.output
    written = pd.read_csv(out, index_col=0).loc["./gpt2"]
    best = pd.read_parquet(scores).loc["./gpt2", ["0", "1"]].idxmax(axis=1)
    assert (best == ["0", "1", "0"]).astype(float).tolist() == written.tolist()
