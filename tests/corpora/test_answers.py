"""Files of answers. References: the totals that the Homeostasis Concept Inventory's file has, the
published layouts of evaluation logs, and the same answers written in every layout."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import shared

from psychlm import corpora
from psychlm.corpora import _sniff
from psychlm.corpora.answers import read_key
from psychlm.frames import FrameError

GRADES = pd.DataFrame({"q:1": [1.0, 0.0], "q:2": [1.0, 1.0]}, ["org/first", "second"])


def write_lines(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))


def log_samples(file: Path, *samples: tuple, test: str = "") -> None:
    """Write samples as the harness logs them: (doc_id, acc, filter)."""
    # the harness writes characters as they are, and some of them end a line for str.splitlines
    rows = [{"doc_id": n, "acc": acc, "doc_hash": f"{n} \u2028{test}"} for n, acc, _ in samples]
    filters = [{"filter": used} if used else {} for _, _, used in samples]
    write_lines(file, [row | used for row, used in zip(rows, filters, strict=True)])


def test_runs_of_a_model_are_repeats_or_one_is_taken_and_other_documents_are_other_items(tmp_path):
    with pytest.raises(FrameError, match="no graded answers"):
        corpora.read_responses(tmp_path)
    first, second = tmp_path / "org__first", tmp_path / "org__second"
    questions = [(0, 0.0, None), (1, 1.0, None)]
    log_samples(first / "samples_a_b_2024-01-01T00-00-00.1.jsonl", *questions)
    log_samples(first / "samples_a_b_2024-02-01T00-00-00.1.jsonl", (0, 1.0, None))
    filters = [(0, 1.0, "strict"), (0, 0.0, "flexible")]
    log_samples(second / "samples_c_2024-01-01T00-00-00.1.jsonl", *filters)
    log_samples(second / "samples_a_b_2024-01-01T00-00-00.1.jsonl", *questions)
    repeated = corpora.read_responses(tmp_path)
    assert list(repeated.mean) == ["a_b:0", "a_b:1", "c:0"]
    np.testing.assert_array_equal(repeated.n, [[2, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(repeated.correct, [[1, 1, 0], [0, 1, 1]])
    for which, grade in (("first", 0), ("latest", 1)):
        one = corpora.read_answers(tmp_path, repeat=which, filter="flexible", task=["a_b", "c"])
        assert "has no filter 'flexible'" in one.recognised and list(one.responses) == ["c:0"]
        one = corpora.read_responses(tmp_path, repeat=which)
        assert one.loc["org/first", "a_b:0"] == grade and one.shape == (2, 3)
    other = tmp_path / "else" / "samples_a_b_2024-01-01T00-00-00.1.jsonl"
    log_samples(other, *questions, test="another")
    apart = corpora.read_answers(tmp_path, repeat="latest")
    assert apart.responses.shape == (3, 5) and "2 items have other documents" in apart.recognised


def test_tasks_of_files_without_a_date_stay_apart(tmp_path):
    for name in ("samples_arc_easy", "samples_arc_challenge"):
        log_samples(tmp_path / "first" / f"{name}.jsonl", (0, 1.0, None))
    assert list(corpora.read_responses(tmp_path / "first")) == ["arc_challenge:0", "arc_easy:0"]
    one_file = tmp_path / "first" / "samples_arc_easy.jsonl"
    assert list(corpora.read_responses(one_file)) == ["arc_easy:0"]


def test_the_latest_run_is_that_of_the_latest_time_whatever_the_clock_says(tmp_path):
    times = "2024-05-01T10:00:00+02:00 2024-05-01T09:00:00.5+00:00 2024-05-01T04:00:00-04:00"
    for time, grade in zip(times.split(), "ICI", strict=True):
        run = {"task": "q", "model": "m", "created": time}
        sample = {"id": 1, "epoch": 1, "scores": {"match": {"value": grade}}}
        write_lines(tmp_path / f"{time}.json", [{"eval": run, "samples": [sample]}])
    assert corpora.read_responses(tmp_path, repeat="latest").to_numpy().tolist() == [[1.0]]


def test_raw_answers_of_a_classroom_give_the_totals_of_their_file():
    """Reference: the column ``total`` of the Homeostasis Concept Inventory's file."""
    folder = shared("data/hci")
    answers = corpora.read_answers(folder / "answers.csv", key=folder / "key.csv")
    assert answers.responses.shape == (651, 20)
    assert (answers.responses.sum(axis=1) == answers.groups["total"]).all()
    assert answers.groups.index.name == "person"
    assert list(answers.groups) == ["gender", "major", "total"]
    assert "651 persons ('column 1'), 20 items (0/1 by key)" in answers.recognised
    assert "total (18 values)" in answers.recognised


RAW = "student,q1,q2,sex\nann,B,2,1\nbob,NA,99,0\ncas,A,1,1\n"
RATINGS = "id,q1,q2\na,1,5\nb,3,2\nc,-9,4\n"


def test_raw_answers_are_graded_by_a_key_and_missing_codes_are_not_wrong(read, tmp_path):
    (tmp_path / "key.csv").write_text("item,key\nq1,B\nq2,2\n")
    found = read(RAW, key=tmp_path / "key.csv", missing=[99])
    assert found.responses.loc[["ann", "cas"]].to_numpy().tolist() == [[1, 1], [0, 0]]
    assert list(found.groups) == ["sex"] and found.raw.loc["cas", "q2"] == "1"
    assert "1 persons without any answer: ['bob']" in found.recognised
    assert "missing: 1 '99'" in found.recognised and found.silent == ("bob",)
    (tmp_path / "key.csv").write_text("q1,q2,q3\nB,2,x\n")
    with pytest.raises(FrameError, match="no column 'q3'; the file has q1, q2, sex"):
        read(RAW, key=tmp_path / "key.csv")


# choices and names that a reader of tables may take for numbers, logical values or missing cells
CHOICES = ["A", "B", "TRUE", "None", "n/a", "1,3", "1,30", "10", "2"]
NAMES = ["007", "7", "1e5", "100000", "3", "12", "9", "q a", "TRUE"]


# each table with one mark between its cells; with the others it is written by the exhaustive tests
MARKS = [",", ";", "\t"]
OTHER = pytest.mark.exhaustive
TABLES = [
    pytest.param(seed, mark, marks=() if mark == MARKS[seed % 3] else OTHER)
    for seed in range(12)
    for mark in MARKS
]


@pytest.mark.parametrize(("seed", "mark"), TABLES)
@pytest.mark.parametrize("layout", ["wide", "long", "wide without persons"])
def test_names_and_choices_are_those_of_the_file(layout, mark, seed, tmp_path):
    """Reference: the answers and the key before they are written; 9 is missing, and an item too."""
    rng = np.random.default_rng(seed)
    persons, items = rng.permutation(NAMES)[:7], rng.permutation(NAMES)[:5]
    raw = pd.DataFrame(rng.choice([*CHOICES, "9", " 9 ", ""], (7, 5)), persons, items)
    key = pd.Series(rng.choice(CHOICES, 5), items)
    key.iloc[0] = raw.iloc[0, 0] = "None"
    raw.iloc[:, 1:] = raw.iloc[:, 1:].where(rng.random((7, 4)) < 0.7, key.iloc[1:], axis=1)
    right = raw.eq(key, axis=1).astype(float).mask(raw.isin(["9", " 9 ", ""]))
    table = raw.rename_axis(index="person", columns="item").reset_index()
    if layout == "long":
        table = table.melt("person", value_name="answer")[["item", "answer", "person"]]
        table["correct"] = rng.integers(0, 2, len(table))  # grades by another key
    elif layout == "wide without persons":
        table, right = raw, right.set_axis([*"1234567"], axis=0)
    table.to_csv(tmp_path / "answers.csv", index=False, sep=mark)
    key.rename_axis("item").to_csv(tmp_path / "key.csv", sep=mark)
    graded = corpora.read_responses(tmp_path / "answers.csv", key=tmp_path / "key.csv", missing=[9])
    expected = right.dropna(how="all").loc[graded.index, graded.columns]
    assert set(graded.columns) == set(items)
    pd.testing.assert_frame_equal(graded, expected, check_names=False, check_index_type=False)


def test_ratings_and_rows_without_names_are_recognised(read):
    ratings = read(RATINGS, missing=["-9"])
    assert ratings.level == "ratings" and ratings.responses["q1"].isna().tolist() == [0, 0, 1]
    mixed = "id,class,q1,q2\na,3,1,0\nb,4,0,1\nc,3,1,1\n"
    class_is_none = read(mixed)
    assert list(class_is_none.responses) == ["q1", "q2"] and list(class_is_none.groups) == ["class"]
    assert read(mixed, drop=["class"]).groups.empty
    assert read(mixed, items=["class", "q1", "q2"]).responses.shape == (3, 3)
    unnamed = read("q1,q2\n1,0\n0,1\n1,1\n")
    assert unnamed.responses.to_numpy().tolist() == [[1, 0], [0, 1], [1, 1]]
    assert "persons are numbered" in unnamed.recognised
    unnamed = read(",sex,i0\na,1,1\nb,0,0\n", drop=["sex"])  # as pandas writes an index
    assert list(unnamed.responses.index) == ["a", "b"]


TWICE = "model_id,sample_id,is_correct\na,q1,1\na,q1,0\n"
JUDGED = {"eval": {"task": "t", "model": "m"}}
JUDGED["samples"] = [{"id": 7, "scores": {"judge": {"value": "P"}}}]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "id,q1,q2\na,A,B\nb,C,B\n", {}, r"\['q1', 'q2'\] hold text such as .*need a key"),
        ("a.csv", ";", {}, "is empty but for separators of cells, ';'"),
        ("a.csv", "\n,,\n\n , \n", {}, "is empty but for separators of cells, ','"),
        ("a.csv", "Name;Vorname;Note/2,00;F. 1 /2,00\n", {}, "the table is empty"),
        ("a.csv", RAW, {"key": {"q1": "B", "q3": "x"}}, "no column 'q3'; the file has q1, q2, sex"),
        ("a.csv", RAW, {"key": {"q1": "x", "q2": "y"}}, "nobody chose the right answer of .*'q1'"),
        ("a.csv", RATINGS, {}, "answers -9 lie apart from the scale, 1 to 5"),
        ("a.csv", RATINGS.replace("-9", "4"), {}, "values other than 0, 1"),
        ("a.csv", RATINGS, {"drop": ["age"]}, "no column 'age'; the file has id, q1"),
        ("a.csv", "id,q\na,3\na,5\n", {"ratings": True}, r"persons \['a'\] occur more than once"),
        ("a.csv", "item,person,acc\n1,a,0\nNA,a,1\n", {}, r"rows \[2\] have no name in 'item'"),
        ("a.csv", TWICE, {}, "1 answers to the same item by the same person"),
        ("a.csv", TWICE, {"person": "rows"}, "rows of a long table are answers: person= names"),
        ("a.csv", TWICE, {"items": ["q2"], "repeat": "first"}, "no column 'q2'; the file has q1"),
        ("a.csv", "person,q1,q2\na,1,0\nb,0,1,1\n", {}, "rows have more cells than the 3 names"),
        ("a.csv", "person,q1,q1\na,1,0\nb,0,1\n", {}, r"\['q1'\] occur more than once"),
        ("a.csv", "person,q1,q2\na,1,0\n  ,0,1\n", {}, r"rows \[2\] have no name in 'person'"),
        ("a.csv", "", {}, "is empty"),
        ("a.docx", "x", {}, "files .docx are not read"),
        ("a.json", '{"x": {"y": []}}', {}, "no column is an item"),
        ("a.eval", "no zip", {}, "cannot be read"),
        ("a.jsonl", '{"doc_id": 1, "bleu": 3}', {}, "its bleu is not 0 or 1"),
        ("a.json", json.dumps(JUDGED), {}, "its judge is not 0 or 1"),
        ("a.json", json.dumps(JUDGED | {"samples": None}), {}, "a.json is left out .no answers"),
        ("a.json", '{"results": {"arc": {}}, "versions": {}}', {}, "it holds totals; answers are"),
        ("a.csv", "id,q\na,[{'acc': 1}]\nb,[]\n", {}, r"\['q'\] hold lists or records in a cell"),
    ],
)
def test_files_are_refused_with_what_was_expected(name, content, options, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FrameError, match=message):
        corpora.read_responses(tmp_path / name, **options)


@pytest.mark.parametrize(("suffix", "package"), [(".xlsx", "openpyxl"), (".sav", "pyreadstat")])
def test_files_of_spreadsheets_and_spss_need_a_package_that_is_named(
    suffix, package, tmp_path, monkeypatch
):
    file, table = tmp_path / f"answers{suffix}", GRADES.set_axis(["q1", "q2"], axis=1)
    table = table.rename_axis("student").reset_index()
    file.write_bytes(b"")
    with monkeypatch.context() as patch, pytest.raises(FrameError, match=f"pip install {package}"):
        patch.setitem(sys.modules, package, None)
        corpora.read_responses(file)
    module = pytest.importorskip(package)
    if suffix == ".sav":
        module.write_sav(table, str(file))
    else:
        table.to_excel(file, index=False)
    assert corpora.read_responses(file).to_numpy().tolist() == GRADES.to_numpy().tolist()


@pytest.mark.parametrize("codes", [(1234567.0, 1234568.0), (0.1234567, 0.1234568), (2.0, 3)])
def test_choices_that_are_numbers_stay_apart(codes):
    key = read_key({"q1": codes[0], "q2": codes[1], "q3": codes[0]})
    assert key["q1"] != key["q2"]
    assert read_key({"q1": 2})["q1"] == read_key({"q1": 2.0})["q1"] == "2"


def test_a_table_of_very_many_columns_is_read_as_pandas_reads_it(tmp_path, monkeypatch) -> None:
    """Reference: pandas, which needs minutes for a million columns."""
    monkeypatch.setattr(_sniff, "WIDE", 200)
    rng = np.random.default_rng(3)
    names = [f"i{j}" for j in range(_sniff.WIDE + 5)]
    wide = pd.DataFrame(rng.integers(0, 2, (3, len(names))), index=["7", "b", "c"], columns=names)
    wide = wide.astype(float)
    wide.iloc[0, 4] = np.nan
    file = tmp_path / "wide.csv"
    wide.rename_axis("person").to_csv(file)
    expected = pd.read_csv(file, dtype={0: str}, index_col=0)
    read = corpora.read_responses(file)
    pd.testing.assert_frame_equal(read, expected, check_names=False, check_column_type=False)
    file.write_text(file.read_text().replace("1.0", "yes", 1))
    with pytest.warns(UserWarning, match="hold text and are missing: 1 'yes'"):
        spoiled = corpora.read_responses(file)
    assert spoiled.isna().sum().sum() == wide.isna().sum().sum() + 1


def test_a_column_of_right_alone_is_no_item_where_nobody_is_wrong(read):
    hands = [f"p{i},right,{i % 2},{(i + 1) % 2}" for i in range(6)]
    assert list(read("\n".join(["id,hand,q1,q2", *hands])).responses) == ["q1", "q2"]
    graded = [f"p{i},right,{'right' if i % 2 else 'wrong'}" for i in range(6)]
    answers = read("\n".join(["id,q1,q2", *graded]))
    assert answers.responses.mean().to_dict() == {"q1": 1.0, "q2": 0.5}
