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


def test_of_several_right_answers_each_is_right(read):
    key = pd.read_csv(shared("cases/tests/double_key2.csv"), index_col=0)["key"][["Q1", "Q2"]]
    both = pd.Series(["A", "C", "B"], ["Q1", "Q1", "Q2"])
    for right in (key, both, {"Q1": "A|C", "Q2": "B"}):
        answers = read("id,Q1,Q2\na,A,B\nb,C,A\nc,B,B\n", key=right)
        assert answers.responses.to_numpy().tolist() == [[1, 1], [1, 0], [0, 1]]
        assert "several right answers: ['Q1']" in answers.recognised
    # free answers: what is nearly the key is counted, and the advice makes it right
    free = 'id,Q1,Q2\na,"1,000",The cat\nb,1000,cat\nc,999,dog\n'
    answers = read(free, key={"Q1": "1000", "Q2": "cat"})
    assert answers.responses.to_numpy().tolist() == [[0, 0], [1, 1], [0, 0]]
    assert "2 answers that are wrong differ from the key in letters' case" in answers.recognised
    answers = read(free, key={"Q1": "1000|1,000", "Q2": "cat|The cat"})
    assert answers.responses.to_numpy().tolist() == [[1, 1], [1, 1], [0, 0]]
    assert "differ from the key" not in answers.recognised
    # where the whole was chosen, it is one choice
    answers = read('id,Q1,Q2\na,"A,C",B\nb,C,A\n', key=key)
    assert answers.responses["Q1"].tolist() == [1, 0]


def test_a_file_that_is_a_key_is_named_as_one():
    with pytest.raises(FrameError, match="this is a key without persons; give it as key="):
        corpora.read_answers(shared("cases/tests/double_key2.csv"))


def test_labels_of_ratings_become_the_numbers_that_are_told_and_reversed_items_are_turned():
    file = shared("cases/tests/likert_words.csv")
    with pytest.raises(FrameError, match=r"hold text such as .*labels='Agree=\?,Disagree=\?,"):
        corpora.read_answers(file)
    words = ["Strongly disagree", "Disagree", "Neutral", "Agree", "Strongly agree"]
    labels = {word: number for number, word in enumerate(words, 1)}
    ratings = corpora.read_answers(file, labels=labels, reverse=["A2"]).responses
    raw = pd.read_csv(file, index_col=0)
    assert ratings["A1"].tolist() == raw["A1"].map(labels).tolist()
    assert ratings["A2"].tolist() == (6 - raw["A2"].map(labels)).tolist()
    with pytest.raises(FrameError, match=r"\['Neutral'\] of 'A1' have no number in labels="):
        corpora.read_answers(file, labels={word: n for word, n in labels.items() if n != 3})


BLACKBOARD = ["Question ID", "Question", "Answer", "Possible Points", "Auto Score", "Manual Score"]
VARIATIONS = {
    "item response warehouse": (
        "id,item,resp,wave\na,i1,1,1\na,i1,0,2\na,i2,1,1\nb,i1,1,1\nb,i2,0,1\n",
        {"filter": "wave=1"},
        [[1, 1], [1, 0]],
        "4 of 5 rows, with wave=1",
    ),
    "moodle without addresses": (
        "Last name,First name,Status,Grade/2.00,Q. 1 /1.00,Q. 2 /1.00\nA,B,Done,1.00,1.00,0.00\n"
        "A,C,Done,2.00,1.00,1.00\nOverall average,,,1.5,1.0,0.5\n",
        {},
        [[1, 0], [1, 1]],
        "row 'Overall average' is no person",
    ),
    "moodle responses in German": (
        "Nachname;Vorname;E-Mail-Adresse;Bewertung/2,00;Antwort 1;Richtige Antwort 1;Antwort 2;"
        "Richtige Antwort 2\nA;B;a@x.de;1,00;vier;vier;Hund;Katze\n"
        "E;F;e@x.de;0,00;-;vier;Maus;Katze\n",
        {},
        [[1, 0], [np.nan, 0]],
        "Moodle responses: 2 persons ('E-Mail-Adresse')",
    ),
    "Blackboard, of which a person graded one answer": (
        "\t".join(
            ["Username", "Last Name", *(f"{name} {n}" for n in (1, 2) for name in BLACKBOARD)]
        )
        + "\nu1\tA\tI1\t2+2?\t4\t5\t5.0\t\tI2\t3+3?\t7\t5\t0.0\t\n"
        + "u2\tC\tI1\t2+2?\t4\t5\t5.0\t\tI2\t3+3?\tsix\t5\t0.0\t5.0\n",
        {},
        [[1, 0], [1, 1]],
        "Blackboard: 2 persons ('Username')",
    ),
    "several answers at once, in any order": (
        'Timestamp,Fruit?,Even?\n1,"apple;pear",2\n2,apple,2\n3,"pear;apple",3\n',
        {"key": {"Fruit?": "apple;pear", "Even?": "2"}},
        [[1, 1], [0, 1], [1, 0]],
        "2 items (0/1 by key)",
    ),
    "LimeSurvey's codes of answers": (
        "id,submitdate,startlanguage,datestamp,G1[SQ1],G1[SQ2],sex\n"
        "1,2020-01-01 10:00:00,de,2020-01-01,A4,A1,F\n2,2020-01-01 10:02:00,de,2020-01-01,A3,A2,M\n"
        "3,,de,2020-01-02,A1,,M\n",
        {"labels": {f"A{n}": n for n in range(1, 6)}, "level": "ratings"},
        [[4, 1], [3, 2], [1, np.nan]],
        "groups: sex; left out: submitdate (2 values), startlanguage (1 value)",
    ),
    "letters of two characters": (
        "id,e\u0301tat,q2\n1,e\u0301te\u0301,A\n2,\u00e9t\u00e9,B\n3,hiver,A\n",
        {"key": {"\u00e9tat": "\u00e9t\u00e9", "q2": "A"}},
        [[1, 1], [1, 0], [0, 1]],
        "2 items (0/1 by key)",
    ),
    "a key with an empty cell": (
        "id,q1,q2\n1,A,B\n2,B,B\n",
        {"key": {"q1": "A", "q2": ""}},
        [[1], [0]],
        "left out: q2 (no right answer in the key)",
    ),
    "an item of the key that nobody answered": (
        "id,q1,q2\n1,A,\n2,B,-\n",
        {"key": {"q1": "A", "q2": "B"}},
        [[1], [0]],
        "left out: q2 (no answers)",
    ),
    "a group with blanks": (
        "id,q1,q2,sex\n1,1,0,1\n2,0,1,2\n3,1,1,\n",
        {"group": "sex"},
        [[1, 0], [0, 1], [1, 1]],
        "groups: sex, 1 persons without sex",
    ),
    "Kahoot's raw data": (
        "Question Number,Question,Correct Answers,Player,Answer,Correct,Incorrect,Score (points)\n"
        "1 Quiz,2+2?,4,Al,4,1,0,900\n1 Quiz,2+2?,4,Bo,5,0,1,0\n"
        "2 Quiz,3+3?,6,Al,5,0,1,0\n2 Quiz,3+3?,6,Bo,6,1,0,800\n",
        {},
        [[1, 0], [0, 1]],
        "long table of 'Correct': 2 persons ('Player'), 2 items (0/1)",
    ),
    "Microsoft Forms": (
        "Id,Start time,Email,Total points,Quiz feedback,2+2?,Points - 2+2?,Feedback - 2+2?,"
        "3+3?,Points - 3+3?,Feedback - 3+3?\n"
        "1,3/1/24 9:00,anonymous,2,,4,2,,5,0,\n2,3/1/24 9:01,anonymous,2,,5,0,,6,2,\n",
        {},
        [[1, 0], [0, 1]],
        "Microsoft Forms quiz: 2 persons ('Id'), 2 items (0/1)",
    ),
    "oTree": (
        "participant.id_in_session,participant.code,participant.visited,participant.payoff,"
        "session.code,q.1.player.id_in_group,q.1.player.right,q.1.player.payoff,q.2.player.right\n"
        "1,x1,1,1,s,1,1,1,0\n2,x2,1,0,s,2,0,0,1\n1,x3,1,2,t,1,1,1,1\n",
        {},
        [[1, 0], [0, 1], [1, 1]],
        "oTree: 3 persons ('participant.code'), 2 items (0/1)",
    ),
    "a scanner's key in a row of zeros, and marks around letters": (
        "ID,Name,Q1,Q2,Total\n000000,Key,A),b,2\n1,Al,A,(B),2\n2,Bo,b.,B),1\n,Mean,50%,100%,1.5\n",
        {},
        [[1, 1], [0, 1]],
        "groups: Name, Total (items= takes other columns); rows ['Mean'] are no persons; row 'Key'",
    ),
    "letters in one piece": (
        "KEY ABCD\n01 ABCA\n02 BBDD\n",
        {},
        [[1, 1, 1, 0], [0, 1, 0, 1]],
        "a digit or letter is the answer to an item; there is no header; row 'KEY' is the key",
    ),
    "a teacher's sheet: duplicated names, sums and shares": (
        "Name;A;B;C;D;Summe;%\nmax. Punkte;1;1;1;1;4;100\nAl;1;0;1;1;3;75\nAl;0;0;1;0;1;25\n"
        "Bo;1;1;0;0;2;50\nLösungsquote in %;67%;33%;67%;33%;;\n",
        {},
        [[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]],
        "rows ['max. Punkte', 'Lösungsquote in %'] are no persons",
    ),
    "half and quarter points": (
        "id;A1;A2;A3;m\na;0,5;1;0,5;1,60\nb;0;0,25;1;1,75\nc;1,5;0;0,5;1,81\n",
        {},
        [[0.5, 1, 0.5], [0, 0.25, 1], [1.5, 0, 0.5]],
        "3 items (ratings 0 to 1.5), groups: m",
    ),
    "no header": (
        "1,0,0,1\n1,1,0,1\n0,0,1,1\n",
        {},
        [[1, 0, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1]],
        "persons are numbered; there is no header",
    ),
    "files put together": (
        "id,q1,q2\na,1,0\nid,q1,q2\nb,0,1\n",
        {},
        [[1, 0], [0, 1]],
        "1 rows repeat the header",
    ),
    "labels below the header, as SoSci Survey has": (
        "CASE\tA1_01\tA1_02\nInterview\tQuestion one\tQuestion two\n1\t4\t2\n2\t1\t5\n",
        {},
        [[4, 2], [1, 5]],
        "the row below the header holds labels",
    ),
    "a first row of long numbers is no row of labels": (
        "code,q1,q2,q3\nab01,1.00,0.00,1.00\nab02,0.00,0.00,1.00\nab03,1.00,1.00,0.00\n",
        {},
        [[1, 0, 1], [0, 0, 1], [1, 1, 0]],
        "wide table: 3 persons ('code'), 3 items (0/1)",
    ),
    "a long table of examinees, problems and scores": (
        "examinee_id,problem,score\na,p,1\na,q,0\nb,p,0\nb,q,1\n",
        {},
        [[1, 0], [0, 1]],
        "long table of 'score'",
    ),
    "jsPsych or E-Prime: instructions, practice, a column of what is right": (
        "subject,trial_type,block,item,response,corrAns\na,text,,,,\na,key,practice,p,f,f\n"
        "a,key,test,i,f,j\na,key,test,k,j,J\nb,key,block practice,p,f,f\nb,key,test,i,j,j\n"
        "b,key,test,k,,j\n",
        {},
        [[0, 1], [1, np.nan]],
        "1 rows without item and answer; 2 rows of practice (block) are left out; keep them: "
        "filter='block=*'; 'response' is graded by 'corrAns'",
    ),
    "practice that is kept": (
        "subject,block,item,key.corr\na,practice,p,1\na,test,i,0\nb,practice,p,0\nb,test,i,1\n",
        {"filter": "block=*"},
        [[1, 0], [0, 1]],
        "long table of 'key.corr'",
    ),
    "one item of words among numbers": (
        "id,q1,q2,q3\na,1,0,No\nb,0,1,Yes\n",
        {},
        [[1, 0], [0, 1]],
        "q3 is no item, since it holds ['No', 'Yes']: labels= gives them numbers",
    ),
    "a share of the right": (
        "id,q1,q2,q3,q4,note\na,1,0,0,0,.25\nb,1,1,1,0,.75\nc,1,1,1,1,1\n",
        {},
        [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        "left out: note (the sum or share of the others)",
    ),
    "samples of a model": (
        "model,q1_s1,q1_s2,q2_s1,q2_s2\na,1,0,1,1\nb,0,0,0,1\n",
        {},
        [[1, 0, 1, 1], [0, 0, 0, 1]],
        "'q1_s1' and 'q1_s2' are read as two items; if they are repeats of one, write a long table",
    ),
    "spss codes": (
        "id,q1,q2\na,1,99\nb,0,1\nc,-1,0\n",
        {"missing": ["99", -1]},
        [[1, np.nan], [0, 1], [np.nan, 0]],
        "missing: 1 '-1', 1 '99'",
    ),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_variation_of_each_format_is_read(name, read):
    text, options, expected, said = VARIATIONS[name]
    answers = read(text, **options)
    np.testing.assert_array_equal(answers.responses.to_numpy(), expected)
    assert said in answers.recognised


# ---- a property: the same answers are read from every format ----


def moodle(table, languages=("Q.", "Grade", "Email address", "Overall average")):
    number, total, address, average = languages
    columns = {address: [f"{name}@x.org" for name in table.index], "State": "Finished"}
    columns |= {f"{total}/4,00": table.sum(axis=1)}
    columns |= {f"{number} {n} /2,00": table[name] * 2 for n, name in enumerate(table, 1)}
    rows = pd.DataFrame({"Last name": table.index, "First name": "A", **columns})
    last = pd.DataFrame({"Last name": [average]}).reindex(columns=rows.columns)
    text = pd.concat([rows, last]).to_csv(index=False, na_rep="-", decimal=",", sep=";")
    return text.replace(f"{average};-;-", f"{average};;")


def parallel(table, names):
    """Return columns ``Stu1, PriKey1, Points1`` ... for each item; a blank was not answered."""
    columns = {}
    for n, name in enumerate(table, 1):
        cells = table[name].map({1.0: "A", 0.0: "B"}), "A", table[name].fillna(0)
        columns |= {f"{stem}{n}": x for stem, x in zip(names, cells, strict=True)}
    return pd.DataFrame(columns, index=table.index)


def canvas(table):
    blocks = [f'"{n}0: Why, ""{name}""?",1.0' for n, name in enumerate(table, 1)]
    head = ",".join(["name,id,section,attempt", *blocks, "n correct"])
    rows = [
        f"A,{person},S,1,{','.join(f'text,{grade:.1f}' for grade in grades)},1"
        for person, grades in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "\n".join([head, *rows]).replace("nan", "")


def google_quiz(table):
    columns = {"Zeitstempel": "2024/01/01", "Username": table.index}
    for n, name in enumerate(table, 1):
        columns |= {f"Was {n}?": "text"}
        columns |= {f"Was {n}? [Score]": table[name].map({1.0: "1.00 / 1", 0.0: "0.00 / 1"})}
    return pd.DataFrame(columns).to_csv(index=False)


def gradescope(table):
    columns = {f"{n}: Part ({n}.0 pts)": table[name] * n for n, name in enumerate(table, 1)}
    about = {"First Name": "A", "SID": table.index, "Total Score": 1.0, "Status": "Graded"}
    return pd.DataFrame(about | columns).to_csv(index=False)


def long_of(table, names=("participant", "item", "resp")):
    return table.rename_axis(columns="item").stack(future_stack=True).rename_axis(
        [names[0], names[1]]).rename(names[2]).reset_index()  # fmt: skip


FRENCH = ("Q.", "Note", "Courriel", "Moyenne globale")
PARALLEL = ["Stu", "PriKey", "Points"]
WRITERS = {
    "comma": lambda t: t.to_csv(index_label="id"),
    "R's write.csv": lambda t: t.to_csv(index_label="", quoting=2, na_rep="NA"),
    "R's write.table": lambda t: t.to_csv(sep=" ", na_rep="NA").removeprefix(" "),
    "R's logical values": lambda t: t.replace({1: "TRUE", 0: "FALSE"}).to_csv(index_label="id"),
    "German Excel": lambda t: ("\ufeffsep=;\n" + t.to_csv(index_label="VP", sep=";")).replace(
        "\n", "\r\n"),
    "tabs in UTF-16": lambda t: t.to_csv(index_label="id", sep="\t").encode("utf-16"),
    "a title, empty columns": lambda t: "Übung 3\n\n" + t.assign(x="").rename(
        columns={"x": ""}).to_csv(index_label="id"),
    "Moodle": moodle,
    "Moodle in French": lambda t: moodle(t, FRENCH),
    "ZipGrade": lambda t: parallel(t, PARALLEL).to_csv(index_label="ZipGrade ID"),
    "Canvas": canvas,
    "Canvas, questions of two lines": lambda t: canvas(t).replace("Why, ", "Why,\nor how, "),
    "Google Forms": google_quiz,
    "Gradescope": gradescope,
    "long": lambda t: long_of(t).to_csv(index=False),
    "long JSON lines": lambda t: long_of(t, ("model", "question_id", "correct")).to_json(
        orient="records", lines=True),
    "py-irt": lambda t: "\n".join(
        json.dumps({"subject_id": p, "responses": row.dropna().to_dict()})
        for p, row in t.iterrows()),
    "digits without a header": lambda t: "\n".join(
        [f"{p} f " + "".join("." if np.isnan(x) else f"{x:g}" for x in t.loc[p]) for p in t.index]),
    "pandas' melt": lambda t: long_of(t, ("id", "variable", "value")).to_csv(index=False),
    "JSON lines with lists in cells": lambda t: long_of(t, ("model", "item", "score")).assign(
        judge=lambda rows: [["gpt", "single"]] * len(rows)).to_json(orient="records", lines=True),
    "persons in columns": lambda t: t.T.to_csv(index_label="item"),
    "persons in columns, topics of items": lambda t: t.T.assign(topic="law").to_csv(
        index_label="question_id"),
    "persons in columns, right answers in words": lambda t: t.T.assign(answer="Paris").to_csv(
        index_label="task_id"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_answers_are_read_from_every_format(name, seed, tmp_path):
    """Reference: the answers before they are written, with blanks and persons of odd names."""
    rng = np.random.default_rng(seed)
    persons = rng.permutation(["p10", "Ann", "b.c", "x_1", "Zoé", "p2", "q"])[: 5 + seed % 3]
    table = pd.DataFrame(rng.integers(0, 2, (len(persons), 5)).astype(float), persons)
    table.columns = [f"q{n}" for n in range(1, 6)]
    table = table.mask(rng.random(table.shape) < 0.15)
    table.iloc[0] = [1, 0, 1, 0, 1]  # each person and item has an answer, and points their most
    table.iloc[1] = [0, 1, 1, 1, 1]
    table.iloc[:, 0] = table.iloc[:, 0].fillna(1)
    table.iloc[2] = 1
    content = WRITERS[name](table)
    suffix = ".jsonl" if content[:1] in ("{", b"{") else ".csv"
    file = tmp_path / f"a{suffix}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = corpora.read_responses(file)
    read.index = read.index.str.removesuffix("@x.org")
    assert sorted(read.index) == sorted(persons)
    np.testing.assert_array_equal(read.loc[persons], table)


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
    ("odd", {}, (2, 4), "h_str.jsonl is left out"),
]


@pytest.mark.parametrize(("name", "options", "shape", "said"), LOGS)
def test_a_log_is_read_by_one_metric_and_one_filter(name, options, shape, said):
    answers = corpora.read_answers(shared(f"cases/logs/{name}"), **options)
    assert answers.responses.shape == shape and said in answers.recognised


def log_run(folder, model, n_shots, template, grades, date):
    """Write a run of the harness: its samples, and results that tell how it was asked."""
    (folder / model).mkdir(exist_ok=True)
    lines = [
        {"doc_id": n, "doc_hash": f"d{n}", "prompt_hash": f"{n_shots}{template}{n}", "acc": grade}
        for n, grade in enumerate(grades)
    ]
    file = folder / model / f"samples_q_{date}.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    about = {"n-shot": {"q": n_shots}, "chat_template_sha": template}
    (folder / model / f"results_{date}.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("second", "names"),
    [((5, None), ["o/a (0 shots)", "o/a (5 shots)"]),
     ((0, "ab"), ["o/a (chat template ab)", "o/a (no chat template)"]),
     ((0, None), ["o/a"]), (None, ["o/a"])],
)  # fmt: skip
def test_runs_that_were_asked_otherwise_are_persons_named_by_what_differs(second, names, tmp_path):
    log_run(tmp_path, "o__a", 0, None, [1.0, 0.0], "2024-01-01T00-00-00.1")
    log_run(tmp_path, "o__a", *(second or (0, None)), [0.0, 1.0], "2024-02-01T00-00-00.1")
    if not second:  # a run whose results are lost: its prompts are those of the other
        (tmp_path / "o__a" / "results_2024-02-01T00-00-00.1.json").unlink()
    responses = corpora.read_responses(tmp_path)
    found = responses.mean if isinstance(responses, Repeated) else responses
    assert sorted(found.index) == names


def test_what_a_log_leaves_out_is_counted(tmp_path):
    stat = [{"name": {"name": "exact_match"}, "mean": 1.0}]
    rows = [{"instance_id": "1", "stats": stat}]
    rows += [{"instance_id": "1", "perturbation": {"name": "typos"}, "stats": stat}] * 3
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "run_spec.json").write_text(json.dumps({"name": f"q,model={model}"}))
        (tmp_path / model / "per_instance_stats.json").write_text(json.dumps(rows))
    read = corpora.read_answers(tmp_path)
    assert read.responses.shape == (2, 1)
    assert "left out: 6 perturbed instances" in read.recognised
    header = {"eval": {"task": "q", "model": "m"}}
    with zipfile.ZipFile(tmp_path / "a.eval", "w") as archive:
        archive.writestr("header.json", json.dumps(header))
        for n, grade in enumerate("CI"):
            sample = {"id": n, "epoch": 1, "scores": {"match": {"value": grade}}}
            archive.writestr(f"samples/{n}_epoch_1.json", json.dumps(sample))
        archive.writestr("samples/9_epoch_1.json", "{no JSON")
        archive.writestr("samples/8_epoch_1.json", json.dumps({"id": 8, "scores": None}))
    read = corpora.read_answers(tmp_path / "a.eval")
    assert read.responses.to_numpy().tolist() == [[1, 0]]
    assert "1 samples without a score" in read.recognised
    assert "1 sample 9_epoch_1.json is left out" in read.recognised


def test_a_folder_of_tables_is_read_as_one_and_other_files_are_named(tmp_path):
    for name in ("c1", "c2"):
        (tmp_path / f"{name}.csv").write_text(f"id,q1,q2\n{name}1,1,0\n{name}2,0,1\n")
    (tmp_path / "codes.csv").write_text("item,text\nq1,x\n")
    (tmp_path / "empty.csv").write_text("")
    answers = corpora.read_answers(tmp_path)
    assert answers.responses.index.tolist() == ["c11", "c12", "c21", "c22"]
    assert "2 files; empty.csv is left out (is empty); codes.csv is left out" in answers.recognised


def test_stata_and_json_are_read_as_tables(tmp_path):
    table = pd.DataFrame({"id": [1, 2], "q1": [1.0, np.nan], "q2": [0.0, 1.0]})
    table.to_stata(tmp_path / "a.dta", write_index=False)
    table.to_json(tmp_path / "a.json", orient="records")
    for name in ("a.dta", "a.json"):
        read = corpora.read_responses(tmp_path / name)
        np.testing.assert_array_equal(read, [[1, 0], [np.nan, 1]])
    (tmp_path / "a.rds").write_bytes(b"")
    with pytest.raises(FrameError, match=r"in R: write.csv\(x, 'x.csv'\)"):
        corpora.read_answers(tmp_path / "a.rds")


def test_all_columns_that_number_repeats_number_them(read):
    rows = [f"{p},{i},1,1,{rater}" for p in "ab" for i in ("i1", "i2") for rater in ("r1", "r2")]
    answers = read("\n".join(["id,item,resp,wave,rater", *rows]))
    assert (answers.responses.n == 2).all(axis=None)
    assert "repeated answers by wave and rater" in answers.recognised


def test_a_key_may_be_a_row_or_have_more_columns(read, tmp_path):
    for text in ("q1,q2,q3\nA,B,\n", "item;key;points\nq1;A;1\nq2;B;1\n"):
        (tmp_path / "key.csv").write_text(text)
        answers = read("id,q1,q2\n1,A,B\n2,B,B\n", key=tmp_path / "key.csv")
        assert answers.responses.to_numpy().tolist() == [[1, 1], [0, 1]]


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


# ---- advice is run: what a message says to do is done on the file that caused it ----

WAVES = "id,event,q1,q2\na,t1,1,0\na,t2,0,1\nb,t1,1,1\n"
ADVICE = [
    # file, options, what the message advises, the options that it advises
    ("id,q1,q2\na,1,0\na,0,1\nb,1,1\n", {}, "repeat=rows", {"repeat": "rows"}),
    ("id,q1,q2\na,1,0\na,0,1\nb,1,1\n", {}, "person=rows", {"person": "rows"}),
    ("id,q1,q2\na,1,0\nb,0,1\na,1,0\nb,0,1\n", {}, "all 2 persons occur twice with the same "
     "answers: the file holds them twice; remove the copies, or repeat=latest",
     {"repeat": "latest"}),
    ("id,q1,q2\na,1,0\nb,0,1\na,0,0\n", {}, "repeat=latest", {"repeat": "latest"}),
    ("person,item,score\na,q,1\na,q,1\nb,q,0\n", {}, "1 rows are copies of others, first "
     "['a', 'q'] in columns ['person', 'item']; remove the copies, or repeat=latest",
     {"repeat": "latest"}),
    (WAVES, {}, "repeat=event", {"repeat": "event"}),
    (WAVES, {}, "filter='event=t1'", {"filter": "event=t1"}),
    ("id,q1\n,1\nb,0\n", {}, "person=rows", {"person": "rows"}),
    ("person,item,score\na,q,1\na,q,0\nb,q,1\n", {}, "repeat=rows", {"repeat": "rows"}),
    ("person,item,score\na,q,1\na,q,0\nb,q,1\n", {}, "repeat=first", {"repeat": "first"}),
    ("id,q1,q2\na,Yes,No\nb,No,No\n", {}, "labels=", {"labels": {"Yes": 1, "No": 0}}),
    ("id,q1,q2\na,Yes,No\nb,No,No\n", {}, "key=", {"key": {"q1": "Yes", "q2": "No"}}),
    ("id,age,total\na,20,3\nb,31,4\nc,44,9\n", {}, "items=", {"items": ["total"]}),
    ("id,q1,q2\na,1,5\nb,3,2\n", {"level": "binary"}, "ratings=True", {"level": "ratings"}),
    ("q1,q2,freq\n0,0,3\n0,1,12\n1,1,30\n", {}, "drop=freq", {"drop": ["freq"]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "advice", "advised"), ADVICE)
def test_what_a_message_advises_helps(text, options, advice, advised, read):
    with pytest.raises(FrameError) as refused:
        read(text, **options)
    assert advice in str(refused.value)
    responses = read(text, **{**options, **advised}).responses
    assert isinstance(responses, Repeated) or responses.notna().any(axis=None)


SHELL = [
    # what is done to 0/1 answers, what the message advises, the options that it advises
    (lambda t: t.rename({"p1": "p0"}), "--repeat rows", ["--repeat", "rows"]),
    (lambda t: t.rename({"p1": "p0"}), "--person rows", ["--person", "rows"]),
    (lambda t: t.replace({0: "No", 1: "Yes"}), "--labels 'No=?,Yes=?'", ["--labels", "Yes=1,No=0"]),
    (lambda t: t * 2 + t.index.str[1:].astype(int).to_numpy()[:, None] % 2, "(--model graded)",
     ["--model", "graded"]),
    (lambda t: pd.concat([t, t.tail(1).rename({"p11": "p12"}) * 0 + 9]), "--missing 9",
     ["--missing", "9"]),
    (lambda t: pd.concat([t, t.tail(1).rename({"p11": "p12"}) * 0 + 9]), "--missing NA",
     ["--missing", "NA", "--model", "graded"]),
    (lambda t: t.assign(freq=2), "--drop freq", ["--drop", "freq"]),
    (lambda t: t.rename({"p1": ""}), "--person rows", ["--person", "rows"]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("change", "advice", "advised"), SHELL)
def test_in_the_shell_messages_name_its_options_and_these_help(change, advice, advised, tmp_path):
    rng = np.random.default_rng(4)
    table = pd.DataFrame(rng.integers(0, 2, (12, 4)), [f"p{n}" for n in range(12)], list("abcd"))
    table.iloc[0] = 1
    change(table).to_csv(tmp_path / "a.csv", index_label="id")
    fit = ("irt", "fit", tmp_path / "a.csv", "--model", "Rasch", "--out", tmp_path / "fit.json")
    done = run(*fit)
    assert done.exit_code == 1 and advice in done.output and "=True" not in done.output
    done = run(*fit, *advised)
    assert (tmp_path / "fit.json").exists(), done.output


def test_errors_are_turned_and_the_persons_of_winsteps_are_read_as_the_message_says(read):
    text = "id,q1_error,q2_error\na,1,0\nb,1,1\n"
    with pytest.warns(UserWarning, match="if it is an error there, reverse= names these items"):
        read(text)
    turned = read(text, reverse=["q1_error", "q2_error"]).responses
    assert turned.to_numpy().tolist() == [[0, 1], [0, 0]]
    persons = "01 110\n02 010\n"
    with pytest.raises(FrameError, match="save the lines of persons, below END NAMES"):
        read(f"ITEM1=4\nNI=3\nNAME1=1\n&END\nq1\nq2\nq3\nEND NAMES\n{persons}", "a.txt")
    assert read(persons, "a.txt").responses.to_numpy().tolist() == [[1, 1, 0], [0, 1, 0]]


def test_what_is_told_wins_over_what_a_format_knows(read):
    table = pd.DataFrame({"q1": [1.0, 0], "q2": [1.0, 1], "q3": [0, 1.0]}, ["a", "b"])
    first, *others = [f"Q. {n} /2,00" for n in (1, 2, 3)]
    answers = read(moodle(table), group="State", drop=[first])
    assert list(answers.responses) == others and list(answers.groups) == ["State"]
    answers = read(moodle(table), group=first)
    assert list(answers.responses) == others and answers.groups[first].tolist() == [1, 0]


def test_a_column_of_other_numbers_is_named_and_no_group(read):
    answers = read("id,q1,q2,q3\na,1,0,1\nb,0,1,0\nc,9,1,1\n", level="binary")
    assert "left out: q1 (0 to 9, not 0 and 1)" in answers.recognised
    assert "groups" not in answers.recognised


def test_each_command_that_reads_answers_has_the_same_options():
    for command in (["irt", "fit"], ["irt", "score"], ["compare"], ["shorten"], ["card", "test"]):
        said = run(*command, "--help").output
        assert all(f"--{name}" in said for name in ("person", "items", "group", "key", "metric"))


def test_a_line_that_is_cut_off_is_named_and_the_others_are_read(read):
    answers = read('{"doc_id": 0, "acc": 1}\n{"doc_id": 1, "ac', "samples_t.jsonl")
    assert answers.responses.to_numpy().tolist() == [[1]]
    assert "left out: 1 lines of samples_t.jsonl" in answers.recognised


def test_parts_of_questions_of_survey_monkey_stand_in_the_second_row(read):
    text = "Respondent ID,Collector ID,IP Address,How satisfied?,\n,,,Price,Quality\n"
    answers = read(text + "1,9,1.1.1.1,5,4\n2,9,1.1.1.2,1,2\n3,9,1.1.1.3,3,3\n")
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
def test_sums_are_no_persons_and_codes_of_missing_answers_stay_in_groups(text, options, said, read):
    answers = read(text, **options)
    assert said in answers.recognised and len(answers.responses) == 3
    assert "grade" not in text or answers.groups["grade"].tolist() == [9, 8, 9]


def test_numbers_apart_from_the_scale_are_said_and_missing_makes_them_missing(read):
    rng = np.random.default_rng(2)
    rated = pd.DataFrame(rng.integers(1, 6, (30, 4)), columns=list("abcd"))
    rated.iloc[[2, 5], 1] = 99
    with pytest.warns(UserWarning, match="answers 99 lie apart"):
        assert "missing=99" in read(rated).recognised
    # below 0 nothing but a code is apart
    with pytest.raises(FrameError, match="answers -99 .* the scale, 1 to 5, .* missing=-99$"):
        read(rated.replace(99, -99))
    for code in (99, -99):
        missing = read(rated.replace(99, code), missing=[code]).responses
        assert missing.isna().sum().sum() == 2 and missing.min(axis=None) == 1


@pytest.mark.parametrize(
    ("codes", "n_items"), [([9], 3), ([8, 9], 3), ([9], 2), ([99], 3), ([998, 999], 2)]
)
@pytest.mark.parametrize("highest", [1, 5])
def test_usual_codes_in_several_items_are_refused_and_both_ways_out_work(
    highest, codes, n_items, read
):
    rng = np.random.default_rng(5)
    names = [f"q{n}" for n in range(1, 7)]
    answers = pd.DataFrame(rng.integers(int(highest > 1), highest + 1, (60, 6)), columns=names)
    for n, code in enumerate(codes):
        answers.iloc[20 + 2 * n : 22 + 2 * n, :n_items] = code
    listed = ",".join(map(str, codes))
    for level in (None, "binary" if highest == 1 else "ratings"):
        with pytest.raises(FrameError, match=f"answers {listed} lie apart .* missing={listed};"):
            read(answers, level=level)
    responses = read(answers, missing=codes).responses
    assert responses.max(axis=None) == highest
    assert responses.isna().sum().sum() == 2 * n_items * len(codes)
    with pytest.warns(UserWarning, match="lie apart"):
        scores = read(answers, missing=["NA"])
    assert scores.responses.max(axis=None) == codes[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("points", [(0, 1, 2, 3, 9), (0, 3, 6, 9), (*range(10),), (2, 5, 9, 10)])
def test_points_of_essays_that_reach_nine_are_scores(points, read):
    rng = np.random.default_rng(6)
    table = pd.DataFrame(rng.integers(0, 2, (80, 12)), columns=[f"q{n}" for n in range(1, 13)])
    n_essays = 1 if points[3:4] == (3,) and len(points) == 5 else 3
    for n in range(n_essays):
        table[f"essay{n + 1}"] = rng.choice(points, 80)
    assert "9 lie apart from the other" not in read(table).recognised


GROUPS = "grp arm cond native dyslexia wave site kön grupo школа 班级 Bedingung langue_maternelle"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("highest", [1, 5])
def test_a_column_of_codes_beside_numbered_items_is_a_group(highest, seed, read):
    """Reference: the tables as they were generated."""
    rng = np.random.default_rng(seed)
    n_persons, n_items = int(rng.integers(12, 60)), int(rng.integers(6, 20))
    lowest = int(highest > 1)
    table = pd.DataFrame(rng.integers(lowest, highest + 1, (n_persons, n_items)))
    table.columns = items = [f"q{n:02d}" for n in range(1, n_items + 1)]
    groups = list(rng.choice(GROUPS.split(), 3, replace=False))
    for name in groups:
        first, n_codes = rng.integers(0, 2), rng.integers(2, 7)
        codes = rng.integers(first, first + n_codes, n_persons).astype(float)
        codes[:2] = first, first + n_codes - 1  # each has two codes, perhaps one for one person
        codes[2 : 2 + rng.integers(0, 3)] = np.nan
        table.insert(int(rng.integers(0, len(table.columns) + 1)), name, codes)
    answers = read(table)
    assert list(answers.responses) == items and set(groups) == set(answers.groups)
    assert "(where one is an item, items= names all items)" in answers.recognised
    named = read(table, items=[groups[0], *items], level="ratings")
    assert groups[0] in named.responses


def test_display_orders_and_previews_of_qualtrics_are_no_answers(read):
    rows = [
        "ResponseId,DistributionChannel,Q2_1,Q2_2,Q2_DO_1,Q2_DO_2",
        "Response ID,Channel,a,b,c,d",
        '"{""ImportId"":""x""}","{""ImportId"":""y""}",,,,',
        *("R1,preview,3,3,1,2", "R2,anonymous,1,5,1,2", "R3,anonymous,4,2,2,1"),
    ]
    answers = read("\n".join(rows))
    assert answers.responses.shape == (2, 2) and "1 previews" in answers.recognised
    only = read("\n".join(rows), filter="ResponseId=R3")
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
