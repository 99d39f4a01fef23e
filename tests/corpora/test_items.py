"""Item banks as frames. References: counts printed in the datasets' papers; hand-made files."""

import json
import random
import zipfile

import pandas as pd
import pytest

from psychlm.corpora import item_banks as banks
from psychlm.data import DataError, DataMissingError
from psychlm.frames import FrameError, check_items


@pytest.fixture
def read(tmp_path):
    """Write rows as JSON lines, and return what a reader makes of them."""

    def read(*rows, by=banks.read_items):
        file = tmp_path / "items.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return by(file)

    return read


def arc(key="B", labels="ABC"):
    choices = [{"text": f"choice {label}", "label": label} for label in labels]
    return {"id": "q1", "question": {"stem": "What?", "choices": choices}, "answerKey": key}


ITEM = {"item_id": "a", "prompt": "?", "choices": ["x", "y"], "answer": 1}
MMLU = {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1, "subject": "arithmetic"}
SNLI = {"pairID": "1", "gold_label": "neutral", "sentence1": "P", "sentence2": "H"}
ANLI = {"uid": "u", "context": "P", "hypothesis": "H", "label": "c"}
GLUE = {"idx": 1, "sentence1": "P", "sentence2": "H", "label": "entailment", "logic": "Negation"}
WRONG = {"distractor1": "a", "distractor2": "b", "distractor3": "c"}
SCIQ = {"question": "Q", "correct_answer": "right", **WRONG}
SOCIAL = {"context": "Kai left.", "question": "Why?"}
THREE = {"answerA": "a", "answerB": "b", "answerC": "c"}
SWAG = {"activity_label": "Roof", "ctx": "he", "endings": ["a", "b", "c", "d"], "label": 3}
PIQA = {"goal": "g", "sol1": "s", "sol2": "t"}
ABDUCTIVE = {"obs1": "It rained.", "obs2": "She fell.", "hyp1": "h.", "hyp2": "i."}
HUB = {"text": ["x", "y"], "label": ["A", "B"]}  # as ARC and its relatives on the hub
GPQA = {"Question": "Q", "Correct Answer": "right"}
GPQA |= {f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)}
COPA = {"premise": "It fell.", "question": "cause", "choice1": "He ran.", "choice2": "She sat."}
# a record of each bank, its prompt, and its right choice
RECORDS = [
    (ITEM, "?", "y"),
    (MMLU, "2 + 2?", "4"),
    (MMLU | {"answer": " b"}, "2 + 2?", "4"),
    (arc(), "What?", "choice B"),
    (arc("3", "123"), "What?", "choice 3"),
    (SNLI, "P", "neutral"),
    (ANLI, "P", "contradiction"),
    (GLUE, "P", "entailment"),
    (SCIQ, "Q", "right"),
    (SOCIAL | {"options": ["a", "b"], "answer": "a"}, "Kai left. Why?", "a"),
    (SWAG, "Roof: he", "d"),
    (PIQA | {"label": 1}, "g", "t"),
    (ABDUCTIVE | {"label": 2}, "It rained.", "i. She fell."),
    ({"id": "a", "question": "Q", "choices": HUB, "answerKey": "B"}, "Q", "y"),
    ({"id": "a", "question_stem": "Q", "choices": HUB, "answerKey": "A"}, "Q", "x"),
    ({"article": "P", "question": "Q", "options": ["x", "y"], "answer": "B"}, "P\nQ", "y"),
    ({"question": "Q", "choices": ["x", "y"], "answer": "y"}, "Q", "y"),
    ({"passage": "P", "question": "Q", "answer": True}, "P\nQ", "yes"),
    ({"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "2"}, "a _ b", "y"),
    ({"question": "Q", "opa": "x", "opb": "y", "opc": "z", "cop": 0}, "Q", "x"),
    ({"Question": "Q", "A": "x", "B": "y", "C": "", "Answer": "B"}, "Q", "y"),
    (GPQA, "Q", "right"),
    (COPA | {"label": 1}, "It fell because", "she sat."),
    (
        {"question": "Q", "mc1_targets": {"choices": ["x", "y"], "labels": [0, 1]}},
        "Q",
        "y",
    ),
]
AMBIGUOUS = {"question": "Q", "option1": "x", "option2": "y", "option3": "z", "answer": "2"}


@pytest.mark.parametrize(("record", "prompt", "right"), RECORDS)
def test_questions_with_choices_and_an_answer_are_read_as_they_are(read, record, prompt, right):
    items = read(record)
    assert items["prompt"].tolist() == [prompt]
    assert items["choices"][0][items["answer"][0]] == right
    if "hypothesis" in items:
        assert items["hypothesis"].tolist() == ["H"]
    check_items(items)


@pytest.mark.parametrize(
    ("record", "without"),
    [
        (SNLI, SNLI | {"gold_label": "-"}),
        (arc(), {"id": "q2", "question": arc()["question"]}),
        (SWAG, SWAG | {"label": ""}),
        (PIQA | {"label": 1}, PIQA | {"label": -1}),
        (COPA | {"label": 1}, COPA | {"label": -1}),
        (MMLU, MMLU | {"answer": None}),
    ],
)
def test_items_without_a_gold_label_are_left_out_and_counted(read, record, without) -> None:
    items = read(without, record)
    assert items["answer"].tolist() == read(record)["answer"].tolist()
    assert items.attrs["left_out"] == {"no gold label": 1}


TABLES = {
    "a.csv": "id;question;A;B;C;key\n1;Was?;x;y;;B\n2;Wo?;x;y;z;C\n",
    "b.csv": "Q, a?,x,y,B\nQ2,x,z,B\n".replace("Q, a?", '"Q, a?"'),
    "c.tsv": "question\toption1\toption2\tanswer\nQ\tx\ty\t2\nQ\ty\tz\t1\nQ\tNA\tnull\t2\n",
}


def test_tables_of_items_are_read_and_say_what_was_taken_for_what(tmp_path) -> None:
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    of_columns = banks.read_items(tmp_path / "a.csv")
    assert of_columns["choices"].tolist() == [["x", "y"], ["x", "y", "z"]]
    assert of_columns["answer"].tolist() == [1, 2]
    said = (
        "prompt 'question', choices 'A', 'B', 'C' (2 to 3 an item), right answer 'key' (its label)"
    )
    assert of_columns.attrs["recognised"] == said
    headless = banks.read_items(tmp_path / "b.csv")
    assert headless["prompt"].tolist() == ["Q, a?", "Q2"] and headless["answer"].tolist() == [1, 1]
    numbered = banks.read_items(tmp_path / "c.tsv")
    assert numbered["answer"].tolist() == [1, 0, 1]
    assert numbered["choices"][2] == ["NA", "null"]
    hub = pd.DataFrame({"question": ["Q", "R"], "choices": [HUB, HUB], "answerKey": ["B", ""]})
    hub.to_parquet(tmp_path / "hub.parquet")
    items = banks.read_items(tmp_path / "hub.parquet")
    assert items["answer"].tolist() == [1] and items.attrs["left_out"] == {"no gold label": 1}


def test_anli_is_read_from_inside_its_archive(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "anli.zip", "w") as archive:
        archive.writestr("anli_v0.1/R1/dev.jsonl", json.dumps(ANLI) + "\n")
        archive.writestr("anli_v0.1/R2/dev.jsonl", json.dumps(ANLI | {"uid": "u2"}) + "\n")
        archive.writestr("__MACOSX/anli_v0.1/R1/dev.jsonl", "rubbish")
    items = banks.nli(f"{tmp_path / 'anli.zip'}#R2/dev.jsonl")
    assert items["item_id"].tolist() == ["u2"]
    for member in ("", "#dev.jsonl", "#R9/dev.jsonl"):
        with pytest.raises(DataError, match=r"holds \d files named .*R1/dev.jsonl"):
            banks.nli(f"{tmp_path / 'anli.zip'}{member}")


def test_what_is_written_in_arcs_layout_is_read_again(tmp_path) -> None:
    items = pd.DataFrame({"item_id": ["a", "b"], "prompt": ["Ça va?", "?"]})
    items["choices"] = [["x", "y"], ["1", "2", "3"]]
    items = items.assign(answer=[1, 2], hops=[1, 3], cluster=["dog.n.01", None])
    items["distractor_types"] = [["sister", "answer"], ["r", "r", "answer"]]
    again = banks.read_arc(banks.write_arc(items, tmp_path / "folder" / "probe.jsonl"))
    columns = items.columns.drop("cluster")
    pd.testing.assert_frame_equal(again[columns], items[columns])
    assert again["cluster"][0] == "dog.n.01" and pd.isna(again["cluster"][1])


def test_social_iqa_and_piqa_and_anli_find_the_labels_beside_the_items(read, tmp_path) -> None:
    labels = tmp_path / "items-labels.lst"
    labels.write_text("3\n1\n")
    assert read(SOCIAL | THREE, SOCIAL | THREE)["answer"].tolist() == [2, 0]
    with pytest.raises(FrameError, match="not among their choices"):
        read(PIQA, PIQA)  # labels from 1 to 3 are not PIQA's
    with pytest.raises(DataError, match="2 labels for the 1 items"):
        read(PIQA)
    labels.write_text("2\n")
    items = read(ABDUCTIVE)
    assert items["choices"][0] == ["h. She fell.", "i. She fell."]
    assert items["answer"].tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "line 1 of .* is no JSON object"),
        (json.dumps(ITEM | {"choices": "xy"}), "'choices' is str"),
        ('{"id": 1}\n{"id": \n', "line 2 of .* is no JSON"),
        ('{"id": "\xea\xee\xf2\xfb"}', "not UTF-8, .*encoding='cp1251' reads 'коты'"),
        ('{"a": 1}', "no layout that is known"),
        ("a line of text", "no layout that is known"),
        (json.dumps(arc(key="D")), r"\['q1'\] .*have a key that labels none of their"),
        (json.dumps(arc(labels="ABB")), r"\['q1'\] .*the same label, so that both may be right"),
        (json.dumps(MMLU | {"answer": "C"}), "items-1'.*'answer' that is none of their choices"),
        (json.dumps(MMLU | {"answer": "AB"}), "that is none of their choices"),
        (json.dumps(MMLU | {"choices": HUB | {"label": ["A", "A"]}, "answer": "A"}), "is none of"),
        (json.dumps(MMLU | {"choices": HUB | {"label": ["1", "2"]}, "answer": "A"}), "is none of"),
        (json.dumps(MMLU | {"choices": [3, 4]}), "a choice that is not text"),
        (json.dumps(PIQA | {"label": -1}), "none of 1 items can be asked: 1 have no gold label"),
        (json.dumps(AMBIGUOUS), "label or position from 0; write the items with item_id"),
        (json.dumps(MMLU | {"choices": ["B", "A"], "answer": "A"}), "letter or text"),
        ("", "no layout that is known"),
    ],
)
def test_malformed_items_and_those_of_no_or_two_right_answers_are_named(tmp_path, text, message):
    file = tmp_path / "items.jsonl"
    file.write_text(text, encoding="latin-1")
    with pytest.raises((DataError, FrameError), match=message):
        banks.read_items(file)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "cp1252", "cp1251"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "json"])
def test_items_are_read_in_the_encodings_of_the_other_doors(tmp_path, form, encoding):
    words = ["Коты", "спят"] if encoding == "cp1251" else ["Café", "Müller"]
    items = pd.DataFrame({"question": words, "A": words[0], "B": words[1], "answer": ["A", "B"]})
    file = tmp_path / f"items.{form}"
    if form == "csv":
        items.to_csv(file, index=False, encoding=encoding)
    else:
        items.to_json(file, orient="records", lines=form == "jsonl", force_ascii=False)
        file.write_text(file.read_text(encoding="utf-8"), encoding=encoding)
    told = {"encoding": encoding} if encoding == "cp1251" else {}
    if told:
        with pytest.raises(FrameError, match="encoding='cp1251'"):
            banks.read_items(file)
    read = banks.read_items(file, **told)
    assert read["prompt"].tolist() == words
    assert read["choices"].tolist() == [words] * 2


def test_what_is_no_file_or_of_another_layout_is_named(read, tmp_path) -> None:
    with pytest.raises(DataMissingError, match="no file"):
        banks.nli(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match=r"near it: \['snli/snli_1\.0_"):
        banks.nli("snli/snli_1.0_deev")
    with pytest.raises(DataError, match="another layout"):
        read(arc(), by=banks.nli)


# How many items a bank has, as its makers count them (SNLI: as the share counts its part), and how
# many of them cannot be asked: no gold label, or the same choice twice (counted in the raw files).
SIZES = {
    "snli/snli_1.0_dev": (1289, 16),
    "semantic_fragments/breaking_nli_dataset": (8193, 0),
    "mcqa/ax_b": (1104, 0),
    "sst/stsa.binary.test": (1821, 0),
    "sst/stsa.fine.test": (2210, 0),
    "mcqa/openbookqa/train": (4957, 3),
    "mcqa/arc/ARC-Challenge-Test": (1172, 0),
    "mcqa/sciq/test": (1000, 9),
    "mcqa/piqa/valid": (1838, 0),
    "mcqa/socialiqa/dev": (1954, 5),
    "mcqa/hellaswag/hellaswag_val_full": (10042, 0),
}


@pytest.mark.needs_share
@pytest.mark.parametrize("source", SIZES)
def test_every_bank_has_its_published_size(source) -> None:
    n_items, n_left_out = SIZES[source]
    items = banks.read_items(source)
    assert sum(items.attrs["left_out"].values()) == n_left_out
    assert len(items) == n_items - n_left_out
    check_items(items)


HOSTILE = [None, True, -1, 10**400, 0.5, float("nan"), "", "\ud800"]
HOSTILE += [[], [1, 2], [[]], {}, {"a": {}}]


def spoilt(record, draw: random.Random):
    """Return a record with one value, at any depth, replaced, removed or doubled."""
    record = json.loads(json.dumps(record))
    place, keys = record, list(record)
    while True:
        key = draw.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.5:
            break
        place, keys = inner, list(inner) if isinstance(inner, dict) else list(range(len(inner)))
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice([*HOSTILE, [inner, inner], {"a": inner}])
    return record


@pytest.mark.parametrize("n_cases", [200, pytest.param(5000, marks=pytest.mark.exhaustive)])
def test_spoilt_records_are_read_or_refused_but_never_crash(read, n_cases) -> None:
    draw, refused = random.Random(n_cases), 0
    for case in range(n_cases):
        whole, *_ = RECORDS[case % len(RECORDS)]
        try:
            check_items(read(*draw.sample([whole, spoilt(whole, draw)], 2)))
        except (DataError, FrameError) as error:
            assert str(error)
            refused += 1
    assert n_cases / 3 < refused < n_cases
