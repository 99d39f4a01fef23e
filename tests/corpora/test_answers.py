"""Files of answers. References: the totals that the Homeostasis Concept Inventory's file has, the
published layouts of evaluation logs, and the same answers written in every layout.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import shared

from psychlm import corpora
from psychlm.corpora import answers
from psychlm.corpora.answers import read_key
from psychlm.frames import FrameError

GRADES = pd.DataFrame({"q:1": [1.0, 0.0], "q:2": [1.0, 1.0]}, ["org/first", "second"])
LONG = [(model, item[2:], row[item]) for model, row in GRADES.iterrows() for item in GRADES]


def log_samples(file: Path, *samples: tuple, test: str = "") -> None:
    """Write samples as the harness logs them: (doc_id, acc, filter)."""
    file.parent.mkdir(exist_ok=True)
    rows = [
        {"doc_id": number, "acc": acc, "doc_hash": f"{number} {test}"}
        | ({"filter": used} if used else {})
        for number, acc, used in samples
    ]
    file.write_text("\n".join(map(json.dumps, rows)))


def write_harness(folder: Path) -> None:
    for model, row in GRADES.iterrows():
        file = folder / model.replace("/", "__") / "samples_q_2026-01-01T00-00-00.1.jsonl"
        log_samples(file, *((int(item[2:]), row[item], None) for item in GRADES))


def inspect_runs() -> list[tuple[dict, list[dict]]]:
    """Return header and samples of each model's run."""
    runs = []
    for model, row in GRADES.iterrows():
        header = {"version": 2, "eval": {"task": "q", "model": model, "created": "2026-01-01"}}
        samples = [
            {"id": int(item[2:]), "epoch": 1, "scores": {"match": {"value": "IC"[int(row[item])]}}}
            for item in GRADES
        ]
        samples.append({"id": 3, "epoch": 1, "scores": None, "error": {"message": "time"}})
        runs.append((header, samples))
    return runs


def write_inspect(folder: Path) -> None:
    for number, (header, samples) in enumerate(inspect_runs()):
        with zipfile.ZipFile(folder / f"{number}.eval", "w") as archive:
            archive.writestr("header.json", json.dumps(header))
            archive.writestr("summaries.json", "[]")
            for sample in samples:
                archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))


def write_inspect_json(folder: Path) -> None:
    for number, (header, samples) in enumerate(inspect_runs()):
        (folder / f"{number}.json").write_text(json.dumps({**header, "samples": samples}))


def write_every_eval_ever(folder: Path) -> None:
    about = {"schema_version": "1.0", "evaluation_name": "q"}
    records = [
        about
        | {"evaluation_id": f"q/{model}/1", "model_id": model, "sample_id": item}
        | {"evaluation": {"score": grade, "is_correct": bool(grade)}}
        for model, item, grade in LONG
    ]
    (folder / "instances.jsonl").write_text("\n".join(map(json.dumps, records)))


def write_helm(folder: Path) -> None:
    stat = {"name": {"name": "exact_match", "split": "test"}, "count": 1}
    for number, (model, row) in enumerate(GRADES.iterrows()):
        run = folder / str(number)
        run.mkdir()
        spec = {"name": f"q,model={model.replace('/', '_')}", "adapter_spec": {"model": model}}
        (run / "run_spec.json").write_text(json.dumps(spec))
        records = [
            {"instance_id": item[2:], "train_trial_index": 0, "stats": [stat | {"mean": row[item]}]}
            for item in GRADES
        ]
        records.append(records[0] | {"perturbation": {"name": "typos"}, "stats": [stat]})
        (run / "per_instance_stats.json").write_text(json.dumps(records))


@pytest.mark.parametrize(
    ("write", "layout"),
    [
        (write_harness, "lm-evaluation-harness"),
        (write_inspect, "Inspect"),
        (write_inspect_json, "Inspect"),
        (write_every_eval_ever, "every eval ever"),
        (write_helm, "HELM"),
    ],
)
def test_logs_of_evaluation_programs_are_recognised(write, layout, tmp_path):
    write(tmp_path)
    read = corpora.read_responses(tmp_path)
    pd.testing.assert_frame_equal(read.loc[GRADES.index, GRADES.columns], GRADES, check_names=False)
    assert read.attrs["recognised"].startswith(f"logs of {layout} of 0 and 1: ")


def test_harness_logs_become_one_frame_or_are_refused_where_they_cannot_be_one_test(tmp_path):
    with pytest.raises(FrameError, match="no graded answers"):
        corpora.read_responses(tmp_path)
    first, second = tmp_path / "org__first", tmp_path / "org__second"
    questions = [(0, 0.0, None), (1, 1.0, None)]
    log_samples(first / "samples_a_b_2024-01-01T00-00-00.1.jsonl", *questions)
    log_samples(first / "samples_a_b_2024-02-01T00-00-00.1.jsonl", (0, 1.0, None))
    filters = [(0, 1.0, "strict"), (0, 0.0, "flexible")]
    log_samples(second / "samples_c_2024-01-01T00-00-00.1.jsonl", *filters)
    log_samples(second / "samples_a_b_2024-01-01T00-00-00.1.jsonl", *questions)
    graded = corpora.read_responses(tmp_path)
    columns = ["a_b:0", "a_b:1", "c:strict:0", "c:flexible:0"]
    expected = [[1, 1, np.nan, np.nan], [0, 1, 1, 0]]  # the later run of the first item counts
    assert graded.index.tolist() == ["org/first", "org/second"]
    np.testing.assert_array_equal(graded[columns], expected)
    other = tmp_path / "else" / "samples_a_b_2024-01-01T00-00-00.1.jsonl"
    log_samples(other, *questions, test="another")
    with pytest.raises(FrameError, match=r"different documents as items \['a_b:0'"):
        corpora.read_responses(tmp_path)


@pytest.mark.parametrize(
    "names", [("model_id", "sample_id", "is_correct"), ("Student", "Item", "score")]
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_long_tables_are_recognised_by_their_header(names, suffix, tmp_path):
    table = pd.DataFrame(LONG, columns=list(names))
    table["country"] = np.where(table[names[0]] == "second", "DE", "US")
    table["seconds"] = range(len(table))
    file = tmp_path / f"long{suffix}"
    table.to_csv(file, index=False) if suffix == ".csv" else table.to_parquet(file)
    answers = corpora.read_answers(file)
    assert answers.responses.loc[GRADES.index].to_numpy().tolist() == GRADES.to_numpy().tolist()
    assert answers.groups["country"].to_dict() == {"org/first": "US", "second": "DE"}
    assert "columns ['seconds'] ignored" in answers.recognised
    pd.concat([table, table[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(FrameError, match="1 answers to the same item by the same person"):
        corpora.read_responses(tmp_path / "twice.csv")


def test_raw_answers_of_a_classroom_give_the_totals_of_their_file():
    """Reference: the column ``total`` of the Homeostasis Concept Inventory's file."""
    folder = shared("data/hci")
    answers = corpora.read_answers(folder / "answers.csv", key=folder / "key.csv")
    assert answers.responses.shape == (651, 20)
    assert (answers.responses.sum(axis=1) == answers.groups["total"]).all()
    assert answers.groups.index.name == "person"
    assert list(answers.groups) == ["gender", "major", "total"]
    layout = "wide table of raw answers and a key: persons in the first"
    assert answers.recognised.startswith(layout)


def test_raw_answers_are_graded_by_a_key_and_missing_codes_are_not_wrong(tmp_path):
    file = tmp_path / "answers.csv"
    file.write_text("student,q1,q2,sex\nann,B,2,1\nbob,NA,99,0\ncas,A,1,1\n")
    (tmp_path / "key.csv").write_text("item,key\nq1,B\nq2,2\n")
    (tmp_path / "wide.csv").write_text("q1,q2,q3\nB,2,x\n")
    with pytest.raises(FrameError, match=r"columns .*'q3'\]; expected two, item and key"):
        read_key(tmp_path / "wide.csv")
    answers = corpora.read_answers(file, key=tmp_path / "key.csv", missing=[99])
    assert answers.responses.loc[["ann", "cas"]].to_numpy().tolist() == [[1, 1], [0, 0]]
    assert list(answers.groups) == ["sex"] and answers.raw.loc["cas", "q2"] == "1"
    assert answers.recognised.endswith("left out, for they answered nothing: ['bob']")
    with pytest.raises(FrameError, match=r"no columns \['q3'\]"):
        corpora.read_responses(file, key={"q1": "B", "q3": "x"})
    with pytest.raises(FrameError, match="nobody chose the right answer of any item: 'q1'"):
        corpora.read_responses(file, key={"q1": "x", "q2": "y"})


def test_ratings_and_rows_without_names_are_recognised(tmp_path):
    file = tmp_path / "ratings.csv"
    file.write_text("id,q1,q2\na,1,5\nb,3,2\nc,-9,4\n")
    answers = corpora.read_answers(file, missing=["-9"])
    assert answers.level == "ratings" and answers.responses["q1"].isna().tolist() == [0, 0, 1]
    with pytest.raises(FrameError, match="values other than 0, 1"):
        corpora.read_responses(file)
    file.write_text("q1,q2\n1,0\n0,1\n1,1\n")
    unnamed = corpora.read_answers(file)
    assert unnamed.responses.to_numpy().tolist() == [[1, 0], [0, 1], [1, 1]]
    assert "without a column of persons" in unnamed.recognised


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "student,q1,q2\nann,A,B\nbob,C,B\n", r"\['q1', 'q2'\] hold text: .*need a key"),
        ("a.csv", "", "header.*expected: a wide table|No columns"),
        ("a.docx", "x", "files .docx are not known"),
        ("a.json", '[{"x": 1}]', r"has the keys \['x'\]; expected a log of lm-evaluation-harness"),
        ("a.eval", "no zip", "cannot be read"),
        ("a.jsonl", '{"doc_id": 1, "bleu": 3}', "none of the metrics"),
        (
            "a.json",
            '{"eval": {"task": "t", "model": "m"}, "samples": [{"id": 7, "scores": {"judge": '
            '{"value": "P"}}}]}',
            "sample 7 has the score 'P' by 'judge'",
        ),
    ],
)
def test_other_files_are_refused_with_what_was_expected(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FrameError, match=message):
        corpora.read_responses(tmp_path / name)


@pytest.mark.parametrize(("suffix", "package"), [(".xlsx", "openpyxl"), (".sav", "pyreadstat")])
def test_files_of_spreadsheets_and_spss_need_a_package_that_is_named(suffix, package, tmp_path):
    file, table = tmp_path / f"answers{suffix}", GRADES.set_axis(["q1", "q2"], axis=1)
    table = table.rename_axis("student").reset_index()
    try:
        module = __import__(package)
    except ImportError:
        file.write_bytes(b"")
        with pytest.raises(FrameError, match=f"pip install {package}"):
            corpora.read_responses(file)
        return
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


def test_covariates_are_left_out_by_name(tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text(",sex,i0\na,1,1\nb,0,0\n")  # as pandas writes an index without a name
    assert list(corpora.read_responses(file, drop=["sex"]).index) == ["a", "b"]
    file.write_text("person,sex,i0,i1\na,1,1,0\nb,0,0,1\n")
    assert list(corpora.read_responses(file, drop=["sex"])) == ["i0", "i1"]
    assert list(corpora.read_responses(file, items=["i1"])) == ["i1"]
    with pytest.raises(FrameError, match=r"no columns \['age'\]"):
        corpora.read_responses(file, drop=["age"])


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_marks_are_recognised_and_malformed_files_refused(mark, tmp_path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text("person,q1,q2\na,1,0\nb,0,1\n".replace(",", mark))
    assert corpora.read_responses(file).to_numpy().tolist() == [[1, 0], [0, 1]]
    for text, says in (
        ("person,q1,q2\na,1,0\nb,0,1,1\n", "rows have more cells than the 3 names"),
        ("person,i0,i0\na,1,0\nb,0,1\n", r"\['i0'\] occur more than once"),
        ("person,i0,i1\na,1,0\n  ,0,1\n", r"persons at positions \[2\] are without a name"),
    ):
        file.write_text(text.replace(",", mark))
        with pytest.raises(FrameError, match=f"answers.csv: .*{says}"):
            corpora.read_responses(file)


def test_a_table_of_very_many_columns_is_read_as_pandas_reads_it(tmp_path) -> None:
    """Reference: pandas, which needs minutes for a million columns and seconds for these."""
    rng = np.random.default_rng(3)
    names = [f"i{j}" for j in range(answers.WIDE + 5)]
    wide = pd.DataFrame(rng.integers(0, 2, (3, len(names))), index=["7", "b", "c"], columns=names)
    wide = wide.astype(float)
    wide.iloc[0, 4] = np.nan
    file = tmp_path / "wide.csv"
    wide.rename_axis("person").to_csv(file)
    expected = pd.read_csv(file, dtype={0: str}, index_col=0)
    read = corpora.read_responses(file)
    pd.testing.assert_frame_equal(read, expected, check_names=False, check_column_type=False)
    file.write_text(file.read_text().replace("1.0", "yes", 1))
    with pytest.raises(FrameError):
        corpora.read_responses(file)
