"""Files of answers as people write them: what would be read wrongly is read, or refused by name.

References: the answers that were written, and doing what a message advises.
"""

import contextlib
import re
import warnings
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest

from psychlm import corpora, roles
from psychlm.frames import FrameError


@pytest.fixture
def read(tmp_path):
    """Return a function that reads lines as a file of answers."""

    def read_lines(*lines, **told):
        file = tmp_path / "answers.csv"
        file.write_text("\n".join(lines))
        return corpora.read_answers(file, **told)

    return read_lines


@pytest.mark.parametrize("item", ["prompt_no", "id", "Satz", "stim"])
@pytest.mark.parametrize("answer", ["judged", "ok", "Urteil"])
def test_long_tables_of_unusual_names_are_read_as_the_refusal_says(read, item, answer):
    rows = [
        f"{who},{what},{(i + j) % 2}"
        for i, who in enumerate("abc")
        for j, what in enumerate("xyzw")
    ]
    lines = [f"model,{item},{answer}", *rows]
    with pytest.raises(FrameError, match=f"item='{item}' and answer='{answer}'.*repeat=rows"):
        read(*lines)
    for repeat in ("rows", "first"):
        warned = pytest.warns(UserWarning, match=f"item='{item}' and answer='{answer}' read it as")
        with warned, contextlib.suppress(FrameError):  # of items that are texts
            read(*lines, repeat=repeat)
    for told in ({"item": item, "answer": answer}, {"answer": answer}):
        assert read(*lines, **told).responses.shape == (3, 4)


@pytest.mark.parametrize(
    ("options", "codes"),
    [("ABCDE", "89"), ("ABCD", "X"), ("1234", "9"), ("1234", "X?"), ("abcd", "0")],
)
def test_answers_that_are_no_options_are_refused_and_read_as_the_refusal_says(read, options, codes):
    answers = [[options[(i + j) % 4] for j in range(5)] for i in range(12)]
    for i, code in enumerate(codes * 3):
        answers[i][i % 5] = code
    lines = ["id,q1,q2,q3,q4,q5", *(f"p{i},{','.join(row)}" for i, row in enumerate(answers))]
    key = {f"q{j}": options[j % 4] for j in range(1, 6)}
    with pytest.raises(FrameError, match=f"missing={re.escape(','.join(sorted(codes)))}"):
        read(*lines, key=key)
    n_codes = 3 * len(codes)
    assert read(*lines, key=key, missing=[*codes]).responses.isna().sum().sum() == n_codes
    as_wrong = read(*lines, key=key, missing="NA")
    assert as_wrong.responses.notna().all(axis=None)
    assert "and wrong" in as_wrong.recognised


@pytest.mark.parametrize("first", ["q1,A", "item,key\nq1,A", "Aufgabe;Lösung\nq1;A"])
def test_a_key_without_header_keeps_its_first_row(read, tmp_path, first):
    mark = ";" if ";" in first else ","
    (tmp_path / "key.csv").write_text("\n".join([first, f"q2{mark}B", f"q3{mark}A"]))
    answers = read("id,q1,q2,q3", "a,A,A,B", "b,A,B,A", "c,B,B,A", key=tmp_path / "key.csv")
    assert answers.responses.sum().to_dict() == {"q1": 2, "q2": 2, "q3": 2}


@pytest.mark.parametrize("word", ["NA", "N/A", "null"])
def test_a_word_for_missing_that_the_key_has_is_an_answer(read, word):
    lines = ["id,q1,q2", f"a,{word},Paris", f"b,Rome,{word}", "c,Rome,Paris"]
    key = {"q1": word, "q2": "Paris"}
    with pytest.warns(UserWarning, match=rf"{word} is an answer.*'q1'"):
        assert read(*lines, key=key).responses.to_numpy().tolist() == [[1, 1], [0, 0], [0, 1]]
    assert list(read(*lines, key=key, missing=word).responses.stack()) == [1, 1]


def write_sheets(file, **sheets):
    """Write an Excel file whose sheets hold lists of rows."""
    with pd.ExcelWriter(file) as writer:
        for name, rows in sheets.items():
            pd.DataFrame(rows).to_excel(writer, sheet_name=name, header=False, index=False)


@pytest.mark.parametrize("n_sheets", [2, 3])
def test_sheets_of_one_header_are_joined_and_one_can_be_chosen(tmp_path, n_sheets):
    sheets = {
        f"class {s}": [["id", "q1", "q2"], [f"{s}a", 1, 0], [f"{s}b", 0, 1]]
        for s in range(n_sheets)
    }
    write_sheets(tmp_path / "a.xlsx", **sheets, notes=[["remarks", "none"], ["x", "y"]])
    answers = corpora.read_answers(tmp_path / "a.xlsx")
    assert answers.responses.shape == (2 * n_sheets, 2)
    assert answers.groups["file"].nunique() == n_sheets
    assert "['notes'] are left out" in answers.recognised
    one = corpora.read_answers(tmp_path / "a.xlsx", filter="file=class 1")
    assert list(one.responses.index) == ["1a", "1b"]


def test_sheets_of_readers_are_joined_and_name_readers_where_no_column_does(tmp_path):
    times = {
        f"VP{s}": [["item", "word", "rt"], [1, "The", 300 + s], [1, "cat", 310 + s]] for s in (1, 2)
    }
    write_sheets(tmp_path / "a.xlsx", **times)
    readings = corpora.read_experiment(tmp_path / "a.xlsx").readings
    assert readings.groupby("subject")["self_paced_ms"].sum().to_dict() == {"VP1": 612, "VP2": 614}


def test_a_key_beside_the_data_and_a_header_of_two_rows_are_read(tmp_path):
    rows = [
        ["", "Part A", "", "Part B", ""],
        ["id", 1, 2, 1, 2],
        ["a", "A", "B", "B", "B"],
        ["b", "C", "B", "B", "A"],
    ]
    key = [
        ["item", "key"],
        ["Part A: 1", "A"],
        ["Part A: 2", "B"],
        ["Part B: 1", "B"],
        ["Part B: 2", "A"],
    ]
    write_sheets(tmp_path / "a.xlsx", data=rows, key=key)
    answers = corpora.read_answers(tmp_path / "a.xlsx", key=tmp_path / "a.xlsx")
    assert answers.responses.to_numpy().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("label", "other", "n_readers"),
    [
        ("s1", "s1 ", 1),
        ("s1", " s1", 1),
        ("s1", "S1", 2),
        ("s1", "s2", 2),
        ("Männer", normalize("NFD", "Männer"), 1),  # as a Mac may write it
    ],
)
@pytest.mark.parametrize("place", ["reader", "group", "person"])
def test_labels_are_one_but_for_blanks_and_those_of_other_case_are_named(
    read, tmp_path, label, other, n_readers, place
):
    rows = [f"{who},i{k},1,The,30{k}" for k, who in enumerate([label, other])]
    (tmp_path / "times.csv").write_text("\n".join(["subject,item,position,word,rt", *rows]))
    people = [f"p{k},{sex},1,{k % 2}" for k, sex in enumerate([label, other] * 3)]
    grades = [f"{who},q{k},{k % 2}" for who in (label, other, "s3") for k in range(4)]
    is_case = other == "S1"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if place == "reader":
            n = corpora.read_experiment(tmp_path / "times.csv").readings["subject"].nunique()
        elif place == "person":
            n = len(read("person,item,score", *grades, repeat="first").responses) - 1
        else:
            n = read("id,sex,q1,q2", *people, group="sex").groups["sex"].nunique()
    assert n == n_readers
    assert any("capital letters only" in str(one.message) for one in said) == is_case


@pytest.mark.parametrize("name", ["Answers", "Responses", "marked"])
@pytest.mark.parametrize("n_items", [5, 12])
def test_strings_of_answers_under_a_header_are_split_into_items(read, name, n_items):
    key = ("ABCDE" * 3)[:n_items]
    answers = [key, "A" * n_items, key[:-1] + "A"]
    lines = [f"Student ID,Form,{name}", *(f"000{i},A,{text}" for i, text in enumerate(answers))]
    right = {f"Q{place}": letter for place, letter in enumerate(key, 1)}
    by_hand = [[float(a == b) for a, b in zip(text, key, strict=True)] for text in answers]
    assert read(*lines, key=right).responses.to_numpy().tolist() == by_hand
    assert read(lines[0], f"KEY,A,{key}", *lines[1:]).responses.to_numpy().tolist() == by_hand


@pytest.mark.parametrize("column", ["Email", "Kennung", "ID"])
@pytest.mark.parametrize("name_of", ["u{}@x.de", "code-{}"])
def test_a_person_who_answered_twice_is_one(read, column, name_of):
    rows = [f"{name_of.format(k)},{k % 2},{k // 2 % 2}" for k in range(40)]
    lines = [f"{column},q1,q2", *rows, rows[7]]
    with pytest.raises(FrameError, match="1 of 40 persons occur twice.*repeat=latest"):
        read(*lines)
    assert read(*lines, repeat="latest").responses.shape == (40, 2)


@pytest.mark.parametrize("name", ["N", "n", "Count", "Valid N", "Anzahl"])
def test_a_row_that_counts_the_answers_is_no_person(read, name):
    rows = [f"{k:03d},{k % 2},{k // 2 % 2}" for k in range(40)]
    found = read("ID,q1,q2", *rows, "Mean,0.5,0.5", f"{name},40.0,40.0")
    assert found.responses.shape == (40, 2) and found.level == "binary"
    assert read("ID,q1,q2", *rows, f"{name},1,0").responses.shape == (41, 2)  # one of that name


@pytest.mark.parametrize("name", ["Answers", "marked"])
@pytest.mark.parametrize("short", ["ABCD", "ABCDEA"])
def test_strings_of_answers_of_another_length_are_named(read, name, short):
    lines = [f"id,{name}", "a,ABCDE", "b,AACDE", f"c,{short}", "d,ABCCC"]
    with pytest.raises(FrameError, match=rf"rows \[3\] of '{name}' do not have 5 .*write \."):
        read(*lines, key=dict.fromkeys(["Q1", "Q2", "Q3", "Q4", "Q5"], "A"))
    lines[3] = "c,ABCD."
    key = {f"Q{place}": letter for place, letter in enumerate("ABCDE", 1)}
    assert read(*lines, key=key).responses.loc["c"].isna().tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("sex", ["", "F "])
@pytest.mark.parametrize("blank", ["1 1", "11 ", " 10", "1  "])
def test_blanks_in_lines_of_fixed_width_are_no_answers(tmp_path, sex, blank):
    texts = ["110101", "0" + blank + "01", "101011", "011010", "100111"]
    (tmp_path / "a.txt").write_text("\n".join(f"00{i} {sex}{text}" for i, text in enumerate(texts)))
    by_hand = [[float(one) if one != " " else None for one in text.ljust(6)] for text in texts]
    expected = pd.DataFrame(by_hand, dtype=float).to_numpy()
    np.testing.assert_array_equal(corpora.read_answers(tmp_path / "a.txt").responses, expected)


@pytest.mark.parametrize("repeat", [None, "rows"])
def test_a_text_among_decimal_commas_is_missing_and_named(read, repeat):
    points = ["1,0", "0,5", "k.A.", "0,0", "1,0", "0,5"]
    lines = ["Teilnehmer;Nr;Stück;Punkte"]
    lines += [f"p{i};{i};t{j};{points[(i + j) % 6]}" for i in range(6) for j in range(4)]
    lines += ["p1;7;t1;0,5"] if repeat else []
    told = {"item": "Stück", "answer": "Punkte", "repeat": repeat}
    with pytest.warns(UserWarning, match="hold text and are missing.*k.A."):
        read(*lines, level="scores", **told)
    assert read(*lines, level="scores", missing="k.A.", **told).responses is not None


def test_percent_signs_and_texts_without_number_are_refused_with_what_helps(read):
    with pytest.raises(FrameError, match="without the sign"):
        read("model,mmlu,gsm", "a,73.5%,50%", "b,61%,41%")
    lines = ["id,q1,q2", "a,Yes,No", "b,No,not said", "c,Yes,Yes"]
    with pytest.raises(FrameError, match="missing='not said'"):
        read(*lines, labels={"Yes": 1, "No": 0})
    told = {"labels": {"Yes": 1, "No": 0}, "missing": "not said"}
    assert read(*lines, **told).responses.sum().sum() == 3


def test_labels_of_the_shell_may_hold_commas():
    labels = roles.parsed({"labels": "Yes, rather=1,No=-0.5,1,0=2"})["labels"]
    assert labels == {"Yes, rather": 1, "No": -0.5, "1,0": 2}


@pytest.mark.parametrize("mark", ["_r", "R", "_rev", ".recoded", " (r)"])
def test_the_mark_of_a_reversed_item_makes_it_no_group(read, mark):
    n = np.arange(60)
    items = {f"sat{k}": (n * (k + 3)) % 5 + 1 for k in (1, 3, 4, 6)}
    items |= {f"sat{k}{mark}": (n * (k + 3)) % 5 + 1 for k in (2, 5)}
    lines = pd.DataFrame(items, pd.Index(n, name="vp")).to_csv().splitlines()
    found = read(*lines)
    assert found.responses.shape == (60, 6)
    assert ("may be worded the other way" in found.recognised) == ("recoded" not in mark)
    turned = read(*lines, reverse=[f"sat2{mark}"]).responses
    assert turned[f"sat2{mark}"].tolist() == (6 - items[f"sat2{mark}"]).tolist()


def test_items_told_to_be_reversed_are_items(read):
    rows = [f"p{k},{k % 5 + 1},{(k + 1) % 5 + 1},{5 - k % 5}" for k in range(40)]
    lines = ["id,item1,item2,bored", *rows]
    assert read(*lines, reverse=["bored"]).responses.shape == (40, 3)
