"""Files of tests and logs as people have them, with the right result of each.

Reference: the table of cases beside the shared files; right results by closed forms, or counted by
hand. Beside each case stands a written variation of its format."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from conftest import shared
from helpers.command import run

import psychlm
from psychlm import corpora
from psychlm.frames import FrameError, Repeated

# file, options, persons, items, what is said
TESTS = [
    ("logical.csv", {}, 5, 4, "4 items (0/1)"),
    ("logical_with_blank.csv", {}, 299, 8, "8 items (0/1)"),
    ("bfi_like.csv", {}, 300, 6, "groups: gender, education; left out: age (27 values)"),
    ("blank_rows_20.csv", {}, 18, 8, "2 persons without any answer: ['p03', 'p17']"),
    ("gender01.csv", {"group": "gender"}, 100, 5, "groups: gender"),
    ("gender01.csv", {}, 100, 5, "groups: gender"),
    ("likert_no_id.csv", {}, 300, 6, "persons are numbered"),
    ("moodle_grades.csv", {}, 40, 5, "Moodle grades: 40 persons ('Email address')"),
    ("canvas_student_analysis.csv", {}, 40, 3, "Canvas Student Analysis: 40 persons ('id')"),
    ("qualtrics.csv", {}, 60, 4, "2 rows of texts and import ids"),
    ("mmlu_long.csv", {}, 3, 20, "3 persons ('model')"),
    ("irw_binary.csv", {}, 300, 8, "groups: cov_sex"),
    ("pyirt.jsonl", {}, 40, 8, "40 persons ('subject_id')"),
    ("excel_cp1252.csv", {}, 60, 6, "read as Windows-1252"),
    ("sosci_utf16.csv", {}, 60, 6, "read as UTF-16"),
    ("scanner.csv", {}, 60, 10, "row 'KEY' is the key"),
    ("scanner.csv", {"key": "scanner_key.csv"}, 60, 10, "row 'KEY', a key, is no person"),
    ("exam.csv", {"key": "key.csv"}, 420, 31, "31 items (0/1 by key; essay 0 to 3)"),
    ("three.csv", {"group": "country"}, 900, 12, "groups: country"),
    ("missing10.csv", {}, 300, 30, "30 items (0/1)"),
]


@pytest.mark.parametrize(("name", "options", "n_persons", "n_items", "said"), TESTS)
def test_a_file_is_read_as_what_it_is_and_says_so(name, options, n_persons, n_items, said):
    folder = shared("cases/tests")
    options = {n: folder / v if n == "key" else v for n, v in options.items()}
    answers = corpora.read_answers(folder / name, **options)
    assert answers.responses.shape == (n_persons, n_items)
    assert said in answers.recognised


def test_of_several_right_answers_each_is_right(tmp_path):
    (tmp_path / "a.csv").write_text("id,Q1,Q2\na,A,B\nb,C,A\nc,B,B\n")
    folder = shared("cases/tests")
    key = pd.read_csv(folder / "double_key2.csv", index_col=0)["key"][["Q1", "Q2"]]
    both = pd.Series(["A", "C", "B"], ["Q1", "Q1", "Q2"])
    for right in (key, both, {"Q1": "A|C", "Q2": "B"}):
        answers = corpora.read_answers(tmp_path / "a.csv", key=right)
        assert answers.responses.to_numpy().tolist() == [[1, 1], [1, 0], [0, 1]]
        assert "several right answers: ['Q1']" in answers.recognised
    # where the whole was chosen, it is one choice
    (tmp_path / "a.csv").write_text('id,Q1,Q2\na,"A,C",B\nb,C,A\n')
    assert corpora.read_responses(tmp_path / "a.csv", key=key)["Q1"].tolist() == [1, 0]


def test_labels_of_ratings_become_the_numbers_that_are_told_and_reversed_items_are_turned():
    file = shared("cases/tests/likert_words.csv")
    with pytest.raises(FrameError, match=r"hold text such as 'Neutral'.*labels="):
        corpora.read_answers(file)
    words = ["Strongly disagree", "Disagree", "Neutral", "Agree", "Strongly agree"]
    labels = {word: number for number, word in enumerate(words, 1)}
    ratings = corpora.read_answers(file, labels=labels, reverse=["A2"]).responses
    raw = pd.read_csv(file, index_col=0)
    assert ratings["A1"].tolist() == raw["A1"].map(labels).tolist()
    assert ratings["A2"].tolist() == (6 - raw["A2"].map(labels)).tolist()
    with pytest.raises(FrameError, match=r"\['Neutral'\] of 'A1' have no number in labels="):
        corpora.read_answers(file, labels={word: n for word, n in labels.items() if n != 3})


VARIATIONS = {
    "moodle": (
        "Nachname;Vorname;E-Mail-Adresse;Status;Bewertung/2,00;F 1 /1,00;F 2 /1,00\n"
        "A;B;a@x.de;Beendet;1,00;1,00;0,00\nC;D;c@x.de;Beendet;1,50;1,00;-\n"
        "E;F;e@x.de;Beendet;0,00;0,00;0,00\nGesamtdurchschnitt;;;;1,0;,67;,1\n",
        {},
        [[1, 0], [1, np.nan], [0, 0]],
        "row 'Gesamtdurchschnitt' is no person",
    ),
    "moodle responses": (
        "Last name,First name,Email address,Grade/2.00,Response 1,Right answer 1,Response 2,"
        "Right answer 2\nA,B,a@x.org,1,4,4,run,cat\nC,D,c@x.org,2,4,4,cat,cat\n",
        {},
        [[1, 0], [1, 1]],
        "Moodle responses: 2 persons",
    ),
    "google quiz": (
        "Timestamp,Username,Total score,Q1,Q1 [Score],Q1 [Feedback],Q2,Q2 [Score]\n"
        "2024/01/01,a@x.org,1.00 / 2,x,1.00 / 1,,y,0.00 / 1\n"
        "2024/01/01,b@x.org,2.00 / 2,x,1.00 / 1,,z,1.00 / 1\n",
        {},
        [[1, 0], [1, 1]],
        "Google Forms quiz: 2 persons ('Username'), 2 items (0/1)",
    ),
    "write.table": ('"q1" "q2"\n"a" 1 0\n"b" 0 NA\n', {}, [[1, 0], [0, np.nan]], "2 items (0/1)"),
    "codes 1 and 2": (
        "id,q1,q2,q3,sex\na,1,0,1,1\nb,0,1,1,2\nc,1,1,0,2\n",
        {"group": "sex"},
        [[1, 0, 1], [0, 1, 1], [1, 1, 0]],
        "groups: sex",
    ),
    "item response warehouse": (
        "id,item,resp,wave\na,i1,1,1\na,i1,0,2\na,i2,1,1\nb,i1,1,1\nb,i2,0,1\n",
        {"filter": "wave=1"},
        [[1, 1], [1, 0]],
        "4 of 5 rows, with wave=1",
    ),
    "spss codes": (
        "id,q1,q2\na,1,99\nb,0,1\nc,-1,0\n",
        {"missing": ["99", -1]},
        [[1, np.nan], [0, 1], [np.nan, 0]],
        "missing: 1 '-1', 1 '99'",
    ),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_variation_of_each_format_is_read(name, tmp_path):
    text, options, expected, said = VARIATIONS[name]
    (tmp_path / "file.csv").write_text(text)
    answers = corpora.read_answers(tmp_path / "file.csv", **options)
    np.testing.assert_array_equal(answers.responses.to_numpy(), expected)
    assert said in answers.recognised


LOGS = [
    ("lmeval_gsm8k", {}, (2, 200), "metric exact_match, filter strict-match (not flexible-"),
    ("lmeval_arc", {}, (30, 20), "metric acc_norm (not acc)"),
    ("lmeval_arc", {"metric": "acc"}, (30, 20), "metric acc (not acc_norm)"),
    ("lmeval_bbh", {}, (5, 20), "metric acc_norm"),
    ("lmeval_gpqa", {}, (5, 20), "metric acc_norm"),
    ("lmeval_lb1", {}, (6, 40), "task truthfulqa_mc2 is left out: its acc is not 0 or 1"),
    ("lmeval_shots", {}, (5, 100), "2 models have runs with other prompts"),
    ("lmeval_seeds", {"repeat": "latest"}, (2, 50), "the latest one counts"),
    ("inspect_zstd", {}, (4, 12), "logs of Inspect"),
    ("inspect_crashed", {}, (5, 12), "logs of Inspect"),
    ("inspect_nan", {}, (4, 12), "1 answers that were not graded are missing"),
    ("eee", {}, (3, 6), "metric exact_match (not num_tokens)"),
    ("helm", {}, (3, 10), "metric final_number_exact_match"),
    ("odd", {}, (2, 4), "file h_str.jsonl is not read"),
]


@pytest.mark.parametrize(("name", "options", "shape", "said"), LOGS)
def test_a_log_is_read_by_one_metric_and_one_filter(name, options, shape, said):
    answers = corpora.read_answers(shared(f"cases/logs/{name}"), **options)
    assert answers.responses.shape == shape and said in answers.recognised


def test_epochs_and_runs_are_repeats_of_their_items():
    epochs = corpora.read_responses(shared("cases/logs/inspect_epochs"))
    assert isinstance(epochs, Repeated) and (epochs.n == 3).all(axis=None)
    seeds = corpora.read_responses(shared("cases/logs/lmeval_seeds"))
    assert isinstance(seeds, Repeated) and seeds.n.to_numpy().sum() == 200


def test_two_models_differ_on_200_questions_as_the_case_says():
    """Reference: scipy's binomtest(31, 82) and a standard error by question, in the case."""
    compared = psychlm.compare(corpora.read_responses(shared("cases/logs/lmeval_gsm8k")))
    pair = compared.pairs.iloc[0]
    assert abs(pair["difference"]) == pytest.approx(0.10, abs=1e-9)
    assert pair["p"] == pytest.approx(0.026, abs=0.01)


def test_a_file_of_a_folder_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path):
    header = {"eval": {"task": "q", "model": "m"}}
    sample = {"id": 1, "epoch": 1, "scores": {"match": {"value": "C"}}}
    with zipfile.ZipFile(tmp_path / "good.eval", "w") as archive:
        archive.writestr("header.json", json.dumps(header))
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
    (tmp_path / "bad.eval").write_text("no archive")
    answers = corpora.read_answers(tmp_path)
    assert answers.responses.shape == (1, 1)
    assert "file bad.eval is not read (File is not a zip file)" in answers.recognised


# ---- advice is run: what a message says to do is done on the file that caused it ----

ADVICE = [
    # file, options, what the message advises, the options that it advises
    ("id,q1,q2\na,1,0\na,0,1\nb,1,1\n", {}, "repeat=rows", {"repeat": "rows"}),
    ("id,q1,q2\na,1,0\na,0,1\nb,1,1\n", {}, "person=rows", {"person": "rows"}),
    ("id,q1\n,1\nb,0\n", {}, "person=rows", {"person": "rows"}),
    ("person,item,score\na,q,1\na,q,0\nb,q,1\n", {}, "repeat=rows", {"repeat": "rows"}),
    ("person,item,score\na,q,1\na,q,0\nb,q,1\n", {}, "repeat=first", {"repeat": "first"}),
    ("id,q1,q2\na,Yes,No\nb,No,No\n", {}, "labels=", {"labels": {"Yes": 1, "No": 0}}),
    ("id,q1,q2\na,Yes,No\nb,No,No\n", {}, "key=", {"key": {"q1": "Yes", "q2": "No"}}),
    ("id,age,total\na,20,3\nb,31,4\nc,44,9\n", {}, "items=", {"items": ["total"]}),
    ("id,q1,q2\na,1,5\nb,3,2\n", {"level": "binary"}, "ratings=True", {"level": "ratings"}),
]


@pytest.mark.parametrize(("text", "options", "advice", "advised"), ADVICE)
def test_what_a_message_advises_helps(text, options, advice, advised, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(FrameError) as refused:
        corpora.read_answers(file, **options)
    assert advice in str(refused.value)
    answers = corpora.read_answers(file, **{**options, **advised})
    n_answers = answers.responses.n if isinstance(answers.responses, Repeated) else None
    assert n_answers is not None or answers.responses.notna().any(axis=None)


def test_the_shell_has_the_same_options_and_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,q1,q2,q3\na,1,0,1\na,0,1,1\nb,1,1,0\nc,0,0,1\n")
    done = run("irt", "fit", "a.csv", "--out", "fit.json")
    assert done.exit_code == 1 and "--repeat rows" in done.output and "repeat=" not in done.output
    for command in (["irt", "fit"], ["irt", "score"], ["compare"], ["shorten"], ["card", "test"]):
        said = run(*command, "--help").output
        assert all(f"--{name}" in said for name in ("person", "items", "group", "key", "metric"))


def test_a_line_that_is_cut_off_is_named_and_the_others_are_read(tmp_path):
    lines = '{"doc_id": 0, "acc": 1}\n{"doc_id": 1, "ac'
    (tmp_path / "samples_t.jsonl").write_text(lines)
    answers = corpora.read_answers(tmp_path / "samples_t.jsonl")
    assert answers.responses.to_numpy().tolist() == [[1]]
    assert "samples_t.jsonl, 1 lines is not read" in answers.recognised


def test_parts_of_questions_of_survey_monkey_stand_in_the_second_row(tmp_path):
    text = "Respondent ID,Collector ID,IP Address,How satisfied?,\n,,,Price,Quality\n"
    (tmp_path / "a.csv").write_text(text + "1,9,1.1.1.1,5,4\n2,9,1.1.1.2,1,2\n3,9,1.1.1.3,3,3\n")
    answers = corpora.read_answers(tmp_path / "a.csv")
    assert list(answers.responses) == ["How satisfied?: Price", "How satisfied?: Quality"]


FOOT = "id,q1,q2,q3\na,1,0,1\nb,0,1,1\nc,1,1,0\n"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (FOOT + "Mean,.67,.67,.67\n", {}, "rows ['Mean'] are no persons"),
        (FOOT + "Class average,1,1,1\nMax points,1,1,1\n", {}, "are no persons"),
        (FOOT.replace("c,1,1,0", "Max,1,1,0"), {}, "3 persons ('id'), 3 items (0/1)"),
        ("id,q1,q2,grade\na,1,0,9\nb,9,1,8\nc,1,1,9\n", {"missing": [9]}, "missing: 1 '9'"),
    ],
)
def test_sums_are_no_persons_and_codes_of_missing_answers_stay_in_groups(
    text, options, said, tmp_path
):
    (tmp_path / "a.csv").write_text(text)
    answers = corpora.read_answers(tmp_path / "a.csv", **options)
    assert said in answers.recognised and len(answers.responses) == 3
    assert "grade" not in text or answers.groups["grade"].tolist() == [9, 8, 9]


def test_numbers_apart_from_the_scale_are_said_and_missing_makes_them_missing(tmp_path):
    rng = np.random.default_rng(2)
    rated = pd.DataFrame(rng.integers(1, 6, (30, 4)), columns=list("abcd"))
    rated.iloc[[2, 5], 1] = -99
    rated.to_csv(tmp_path / "a.csv", index_label="id")
    with pytest.warns(UserWarning, match="answers -99 lie apart"):
        assert "missing=-99" in corpora.read_answers(tmp_path / "a.csv").recognised
    missing = corpora.read_answers(tmp_path / "a.csv", missing=[-99]).responses
    assert missing.isna().sum().sum() == 2 and missing.min(axis=None) == 1


def test_a_table_of_patterns_and_their_counts_is_not_one_of_persons(tmp_path):
    (tmp_path / "a.csv").write_text("q1,q2,freq\n0,0,3\n0,1,12\n1,1,30\n")
    with pytest.raises(FrameError, match="may count the persons.*drop=freq"):
        corpora.read_answers(tmp_path / "a.csv")
    assert len(corpora.read_answers(tmp_path / "a.csv", drop=["freq"]).responses) == 3


def test_display_orders_and_previews_of_qualtrics_are_no_answers(tmp_path):
    rows = [
        "ResponseId,DistributionChannel,Q2_1,Q2_2,Q2_DO_1,Q2_DO_2",
        "Response ID,Channel,a,b,c,d",
        '"{""ImportId"":""x""}","{""ImportId"":""y""}",,,,',
        *("R1,preview,3,3,1,2", "R2,anonymous,1,5,1,2", "R3,anonymous,4,2,2,1"),
    ]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    answers = corpora.read_answers(tmp_path / "a.csv")
    assert answers.responses.shape == (2, 2) and "1 previews" in answers.recognised
    only = corpora.read_answers(tmp_path / "a.csv", filter="ResponseId=R3")
    assert only.responses.index.tolist() == ["R3"]


def test_the_header_of_a_spreadsheet_may_stand_below_titles_and_on_another_sheet(tmp_path):
    file = tmp_path / "a.xlsx"
    table = pd.DataFrame([["Class 9b"], [None], ["id", "q1", "q2"], ["a", 1, 0], ["b", 0, 1]])
    with pd.ExcelWriter(file, engine="openpyxl") as book:
        pd.DataFrame({"item": ["q1"]}).to_excel(book, sheet_name="codes", index=False)
        table.to_excel(book, sheet_name="data", index=False, header=False)
    answers = corpora.read_answers(file)
    assert answers.responses.to_numpy().tolist() == [[1, 0], [0, 1]]
    assert "sheet 'data'" in answers.recognised and "1 rows above" in answers.recognised
