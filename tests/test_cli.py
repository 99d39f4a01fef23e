"""``psychlm`` as a user types it. References: R's ltm on LSAT 6, the functions that it calls."""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_models as tiny
from command import refused, run
from conftest import ROOT

from psychlm import cli, corpora, data, doctor, irt, simulate, terminal


@pytest.fixture(scope="module")
def lsat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with LSAT 6 as CSV and Parquet, and a 1PL fit of it."""
    folder = tmp_path_factory.mktemp("lsat")
    responses = corpora.lsat6()
    responses.astype(int).to_csv(folder / "answers.csv")
    responses.to_parquet(folder / "answers.parquet")
    done = run("irt", "fit", folder / "answers.csv", "--model", "1pl", "--out", folder / "fit.json")
    assert done.exit_code == 0 and "log-likelihood -2466.938 nats" in done.output
    return folder


# item response theory


def test_a_fit_on_disk_is_ltms(lsat) -> None:
    printed = data.published("ltm.lsat6").set_index("key")["value"]
    for item, b in irt.IRTFit.from_json(lsat / "fit.json").items["b"].items():
        assert b == pytest.approx(printed[f"1pl.b.{str(item).replace(' ', '')}"], abs=0.01)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_persons_are_scored_from_either_format(lsat, suffix) -> None:
    out = lsat / f"abilities.{suffix}"
    command = ["irt", "score", lsat / "fit.json", lsat / f"answers.{suffix}"]
    assert run(*command, "--out", out).exit_code == 0
    abilities = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    expected = irt.IRTFit.from_json(lsat / "fit.json").score(corpora.lsat6())["theta"]
    assert abilities["theta"].tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert run(*command).output.startswith("person,theta,se\n0,")


def test_an_output_of_unknown_format_or_equal_to_the_input_is_refused(lsat) -> None:
    answers, fit = lsat / "answers.csv", lsat / "fit.json"
    before = answers.read_bytes(), fit.read_bytes()
    assert "ends in none of .csv" in refused("irt", "score", fit, answers, "--out", "x.xlsx")
    assert "is the input" in refused("irt", "score", fit, answers, "--out", answers)
    assert "ends in none of .json" in refused("irt", "fit", answers, "--out", answers)
    assert before == (answers.read_bytes(), fit.read_bytes())


def test_ratings_are_fitted_and_scored_by_models_of_several_categories(tmp_path) -> None:
    answers, out = tmp_path / "ratings.csv", tmp_path / "fit.json"
    rng = np.random.default_rng(0)
    items = simulate.items(4, rng, "graded", n_categories=3)
    ratings = simulate.responses(rng.normal(size=200), items, rng, model="graded")
    ratings.to_csv(answers)
    assert run("irt", "fit", answers, "--model", "graded", "--out", out).exit_code == 0
    fit = irt.IRTFit.from_json(out)
    assert fit.loglik == pytest.approx(irt.fit(ratings, "graded").loglik, abs=1e-6)
    done = run("irt", "score", out, answers)
    expected = fit.score(ratings).iloc[0]["theta"]
    assert float(done.output.splitlines()[1].split(",")[1]) == pytest.approx(expected, abs=1e-9)
    assert "grade the answers" in refused("irt", "fit", answers, "--out", out)


def test_priors_and_item_columns_are_options(lsat, tmp_path) -> None:
    out, table = tmp_path / "fit.json", corpora.lsat6()
    names = [str(name) for name in table.columns]
    fit = ["irt", "fit", lsat / "answers.csv", "--out", out]
    prior = {"slope": irt.LogNormal(0, 0.5)}
    assert run(*fit, "--items", ",".join(names[:4]), "--prior", "slope=lognormal:0,0.5").output
    expected = irt.fit(table[names[:4]], "2PL", priors=prior).items["a"]
    ours = irt.IRTFit.from_json(out).items["a"]
    assert ours.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    for option, value, n_items in (("--drop", names[4], 4), ("--items", "all", 5)):
        assert run(*fit, option, value).exit_code == 0
        assert len(irt.IRTFit.from_json(out).items) == n_items
    wrong = {"b=3": "write NAME=KIND:A,B", "slope=lognormal:0,0": "positive"}
    for given, says in (wrong | {"slope=lognormal:0,x": "could not convert"}).items():
        assert says in refused(*fit, "--prior", given), given


HOSTILE = "\x1b]0;owned\x07\x1b[31m\x00\x7f\x9b2J\u202e"  # title, colour, NUL, DEL, CSI, direction
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path, items, model, lsat):
    """Every command that shows what a file holds, in every column that it shows."""
    word, text, table, fit = f"a{HOSTILE}b", "text.txt", "words.csv", "fit.json"
    answers, bad, bank, empty = "answers.parquet", "bad.csv", "items.jsonl", "none.jsonl"
    Path(text).write_text(f"the {word} man")
    words = pd.DataFrame({"text_id": [word] * 2, "word_id": [1, 2], "word": [word, "man"]})
    words.assign(sentence_id=word, **{f"note{HOSTILE}": word}).to_csv(table, index=False)
    named = corpora.lsat6().rename(columns="{}\x1b[31m".format, index=f"{{}}{HOSTILE}".format)
    named.astype(int).to_parquet(answers)
    Path(bad).write_text(f"person,{HOSTILE}q1\na,{HOSTILE}x\nb,y\n")
    Path(bank).write_text(items.read_text().replace('"000"', json.dumps(f"0{HOSTILE}")))
    Path(empty).write_text(json.dumps({"id": word, HOSTILE: word}))
    confuse = ["--probe", "more-choices", "--drop-unfit", "--out", "out.jsonl"]
    for arguments in (
        ["surprisal", text],
        ["surprisal", f"the {word} man", "--unit", "token"],
        ["surprisal", table, "--entropy", "--rank"],
        ["surprisal", table, "--unit", "token"],
        ["surprisal", table, "--unit", "sentence"],
        ["surprisal", f"{word}.csv"],
        ["surprisal", "the man", "--model", word],
        ["surprisal", "the man", "--out", f"{word}.xlsx"],
        ["irt", "fit", answers, "--model", "1PL", "--out", fit],
        ["irt", "score", fit, answers],
        ["irt", "score", fit, lsat / "answers.csv"],
        ["irt", "fit", bad, "--out", fit],
        ["responses", bank, "--model", model, "--prompt", f"{{{HOSTILE}}}"],
        ["responses", empty, "--model", model],
        ["probes", "confuse", bank, *confuse],
        ["probes", "confuse", empty, *confuse],
        ["data", "where", word],
        ["data", "verify", word],
        ["new", word],
        ["run", word],
        ["run", "00", "-p", f"{word}=1"],
    ):
        printed = run(*arguments).output
        assert printed and not OBEYED.search(printed), (arguments, OBEYED.findall(printed))


def test_texts_that_are_no_characters_and_titles_that_are_no_file_names_are_refused(
    tmp_path, monkeypatch
):
    assert "holds half a character" in refused("surprisal", "half \udce9 is")
    words = b"text_id,word_id,word\n1,1,a\n" + "1,2,\ud800\n".encode(errors="surrogatepass")
    (tmp_path / "words.csv").write_bytes(words)
    assert "not UTF-8" in refused("surprisal", tmp_path / "words.csv")
    for title in ("x" * 300, "half \udce9", "bell \x07"):
        assert "at most 100 printable characters" in refused("new", title)


def test_a_parameter_names_a_file_from_where_the_user_is(tmp_path, monkeypatch) -> None:
    from psychlm import site

    (tmp_path / "answers.csv").write_text("a")
    (tmp_path / "models").mkdir()
    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {}
    monkeypatch.setattr(site, "run", lambda *_, parameters, **__: given.update(parameters) or [])
    words = ["file=answers.csv", "folder=./models", "model=default", "n=3", "absent=no.csv"]
    words += ["files=[answers.csv, other.csv, 2]", "text="]
    run("run", "00", *(word for value in words for word in ("-p", value)))
    assert given["file"] == str(tmp_path / "answers.csv")
    assert given["folder"] == str(tmp_path / "models")
    assert (given["model"], given["n"], given["absent"]) == ("default", 3, "no.csv")
    assert given["files"] == [str(tmp_path / "answers.csv"), "other.csv", 2]


def test_the_package_of_reports_leaves_other_libraries_importable() -> None:
    pytest.importorskip("rfc3987_syntax")
    code = "import psychlm.site, sys; assert None not in sys.modules.values(); "
    code += "import rfc3987_syntax; print('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "here", done.stderr


# surprisal

TEXT = "The old man."
SCORED = ["surprisal", "--unit", "token", "--model", "default"]
SCORED += ["--model", str(ROOT / "psychlm" / "lm" / "default")]


def test_a_text_file_of_any_kind_is_read_and_not_scored_as_its_name(tmp_path) -> None:
    story = tmp_path / "story.md"
    story.write_text("The old man\n\nthe boat.", encoding="utf-8-sig")
    assert cli.read_words(str(story))["word"].tolist() == ["The", "old", "man", "the", "boat."]
    assert cli.read_words(str(story), lines=True)["text_id"].nunique() == 2
    assert cli.read_words("The end.")["word"].tolist() == ["The", "end."]
    assert "8 tokens of 1 texts" in run(*SCORED, "-", "--out", tmp_path / "a.csv", text=TEXT).output


def test_a_file_that_cannot_be_read_as_words_is_refused(tmp_path) -> None:
    table = tmp_path / "words.csv"
    for separator in ";,":
        table.write_text("text_id,word_id,word\n1,1,None\n".replace(",", separator))
        assert cli.read_words(str(table))["word"].tolist() == ["None"]
    (tmp_path / "words.xlsx").write_bytes(b"PK")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for arguments, says in (
        (["words.xlsx"], "neither a text file"),
        (["latin.txt"], "not UTF-8 (byte 0xe9 at 3)"),
        (["absent.md"], "there is no file"),
        (["words.csv", "--lines"], "--lines is for text files"),
        (["words.csv", "--out", table], "is the input"),
    ):
        assert says in refused("surprisal", tmp_path / arguments[0], *arguments[1:])


def test_several_models_and_other_units_are_one_call(tmp_path) -> None:
    out = tmp_path / "bits.csv"
    assert "8 tokens of 1 texts" in run(*SCORED, TEXT, "--out", out).output
    table = pd.read_csv(out)
    assert table.columns[:3].tolist() == ["model", "token", "surprisal_bits"]
    assert table["model"].unique().tolist() == ["default", SCORED[-1]]
    assert table["surprisal_bits"].iloc[:4].tolist() == table["surprisal_bits"].iloc[4:].tolist()


def test_a_carriage_return_ends_no_row_and_formulas_are_escaped_for_a_spreadsheet(tmp_path) -> None:
    def written() -> list[list[str]]:
        with (tmp_path / "a.csv").open(newline="") as opened:
            return list(csv.reader(opened))

    frame = pd.DataFrame({"word": ["a\rb", "c\nd", "e"], "x\ry": [1.5, None, 2.0]})
    terminal.write_table(frame, tmp_path / "a.csv", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), frame)
    run_by_a_spreadsheet = ["=1+1", "+a", "@b", "-x", "\tz"]
    frame = pd.DataFrame({name: [name, 1.5, None] for name in [*run_by_a_spreadsheet, "plain"]})
    frame["kind"] = pd.Categorical(["=1", "a", "a"])
    frame.index = pd.Index(["=p", "q", "-3"], name="=person")
    terminal.write_table(frame, tmp_path / "a.csv", index=True, spreadsheet=True)
    rows = written()
    assert rows[0] == ["'=person", *(f"'{name}" for name in run_by_a_spreadsheet), "plain", "kind"]
    assert rows[1] == ["'=p", *(f"'{name}" for name in run_by_a_spreadsheet), "plain", "'=1"]
    assert [row[0] for row in rows[1:]] == ["'=p", "q", "-3"]
    assert rows[2][1:7] == ["1.5"] * 6 and rows[3][1:7] == [""] * 6


# responses


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def items(tmp_path, monkeypatch):
    """Return a file of two items in a folder, where the user is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    lines = []
    for i, (stem, other) in enumerate([("What fell?", "barn"), ("Who ran?", "boat")]):
        choices = [{"text": "horse", "label": "A"}, {"text": other, "label": "B"}]
        question = {"stem": stem, "choices": choices}
        lines.append(json.dumps({"id": f"00{i}", "question": question, "answerKey": "AB"[i % 2]}))
    file = tmp_path / "items.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_items_go_in_and_graded_responses_come_out(tmp_path, items, model) -> None:
    out, scores = tmp_path / "deep" / "responses.csv", tmp_path / "scores.parquet"
    done = run("responses", items, "--model", model, "--out", out, "--logprobs", scores)
    assert done.exit_code == 0, done.output
    assert "of 2 items right (chance: 0.500)" in done.output
    written = pd.read_csv(out, index_col=0)
    assert written.columns.tolist() == ["000", "001"] and set(written.loc[model]) <= {0.0, 1.0}
    best = pd.read_parquet(scores).loc[model, ["0", "1"]].idxmax(axis=1)
    assert (best == ["0", "1"]).astype(float).tolist() == written.loc[model].tolist()


def test_responses_that_cannot_be_given_are_refused_in_one_line(tmp_path, items, model) -> None:
    assert "there is no file" in refused("responses", tmp_path / "none.jsonl", "--model", model)
    assert "holds no config.json" in refused("responses", items, "--model", tmp_path / "none")
    given = ["responses", items, "--model", model]
    assert "no prompt 'poem'" in refused(*given, "--prompt", "poem")
    assert "ends in none of" in refused(*given, "--out", "x.xlsx")


def test_a_model_takes_an_adaptive_test_of_a_bank_of_ones_own(tmp_path, items, model) -> None:
    third = items.read_text().splitlines()[1].replace("001", "002").replace("ran", "sat")
    items.write_text(items.read_text() + third + "\n")
    bank = pd.DataFrame({"a": 1.0, "b": [0.0, 0.5, 1.0]}, ["000", "001", "002"])
    rng = np.random.default_rng(1)
    answers = simulate.responses(rng.standard_normal(400), bank, rng)
    irt.fit(answers, "1PL").to_json(tmp_path / "fit.json")
    graded = run("responses", items, "--model", model, "--out", tmp_path / "all.csv")
    assert graded.exit_code == 0, graded.output
    given = pd.read_csv(tmp_path / "all.csv", index_col=0)
    command = ["adapt", "--model", model, "--bank", tmp_path / "fit.json", "--questions", items]
    kept, out = tmp_path / "answers.json", tmp_path / "asked.csv"
    done = run(*command, "--answers", kept, "--out", out)
    assert done.exit_code == 0, done.output
    assert "after 3 of 3 items, 6 choices scored" in done.output
    fit = irt.IRTFit.from_json(tmp_path / "fit.json")
    replay = irt.adaptive_test(fit, given).history.reset_index(drop=True)
    written = pd.read_csv(out, dtype={"item": str}).drop(columns="n_items")
    pd.testing.assert_frame_equal(written, replay, check_dtype=False)
    assert "after 3 of 3 items, 0 choices scored" in run(*command, "--answers", kept).output
    for bank in ("arc", tmp_path / "fit.json"):
        assert "the texts of its items" in refused(*command[:4], bank)


# what is written, and what is installed


def unsafe_writes(source: str) -> list[int]:
    """Return the lines that write a file outside of `with atomic_write(...)`."""
    tree = ast.parse(source)
    safe: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and "atomic_write(" in ast.unparse(node.items[0]):
            safe |= set(ast.walk(node))
    lines = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, first = ast.unparse(node.func).rpartition(".")[2], ast.unparse(node).partition("(")[2]
        opened = name == "open" and re.search(r"[\"'][wax]b?\+?[\"']", first)
        table = name in ("to_csv", "to_parquet", "to_excel", "to_feather") and node.args
        other = name in ("write_text", "write_bytes", "savez", "savez_compressed", "dump")
        if node not in safe and (opened or table or other):
            lines.append(node.lineno)
    return lines


def test_every_file_is_written_by_the_one_atomic_writer() -> None:
    unsafe = "x.write_text('a')\nopen('a', 'w')\nf.to_csv(path)\nf.to_csv()"
    assert unsafe_writes(unsafe) == [1, 2, 3]
    assert not unsafe_writes("with atomic_write(p) as part:\n    part.write_text('a')")
    found = []
    for file in sorted((ROOT / "psychlm").rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        for number in unsafe_writes(source):
            line = source.splitlines()[number - 1].strip()
            found.append(f"{file.relative_to(ROOT)}:{number}: {line}")
    assert not found, "write inside `with data.atomic_write(path) as part:`"


def detail_of(monkeypatch, name: str) -> str:
    monkeypatch.setattr(doctor, "PARTS", {name: doctor.PARTS[name]})
    ((_, _, detail, _),) = doctor.examine()
    return detail


def test_the_doctor_tells_an_absent_r_from_an_absent_rpy2(monkeypatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    r = "R, mgcv, rpy2"
    assert "R is not here: apt-get install r-base-core" in detail_of(monkeypatch, r)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert re.match("R is here, rpy2 is not: .*libblas-dev", detail_of(monkeypatch, r))


def test_the_doctor_tells_missing_from_corrupt_data_and_ends_well(monkeypatch) -> None:
    rows = [{"name": "a", "place": "", "state": "absent"}]
    monkeypatch.setattr(doctor.data, "state", lambda: iter(rows))
    assert "psychlm data pull" in detail_of(monkeypatch, "data")
    rows.append({"name": "b", "place": "data/raw", "state": "corrupt"})
    assert "['b'] have the wrong checksum" in detail_of(monkeypatch, "data")
    assert "0 of 1 optional parts are here" in run("doctor").output
