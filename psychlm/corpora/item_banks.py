"""Item banks as items frames: natural language inference, sentiment and multiple choice.

A *source* is a dataset's name in ``data/registry.csv``, a file, or ``archive#member`` for a file
inside an archive (``"snli/snli_1.0#snli_1.0_train.jsonl"``). Items that cannot be asked (no gold
label, an empty choice, the same choice twice) are left out and counted in
``items.attrs["left_out"]``. A column ``template`` names how a language model is best asked. A
source that is missing or has another layout is a :class:`psychlm.data.DataError`.
"""

from __future__ import annotations

import bz2
import json
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from psychlm import data, frames
from psychlm.corpora._encodings import decode
from psychlm.corpora._item_tables import (
    IN_FULL,
    Source,
    by_names,
    finish,
    numbered_ids,
    records_of_table,
    unique_ids,
)
from psychlm.corpora._logs import check_growth, most_bytes
from psychlm.data import DataError, DataMissingError

NLI_LABELS = ["entailment", "neutral", "contradiction"]
BINARY_LABELS = ["entailment", "not_entailment"]
LONGEST_RECORD = 2**20  # characters of a line of JSON; items have a few thousand
LONGEST_LIST = 2**25  # characters of a file that is one JSON list
LARGEST = 2**31  # no index or count of a bank is larger; a number beyond it is an error of the file

Types = dict[Any, Any]  # of a column's values: a type or a tuple of types


def _strings(*names: str) -> Types:
    return dict.fromkeys(names, str)


# Reading lines and records


def read_lines(source: Source, encoding: str | None = None) -> list[str]:
    """Return the lines of a source, without line ends and blank lines."""
    name, _, member = str(source).partition("#")
    file = Path(name).expanduser()
    if not file.is_file():
        endings = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".lst", ".bz2", ".zip")
        if isinstance(source, Path) or file.is_absolute() or file.suffix in endings:
            raise DataMissingError(
                f"there is no file {file}; name one, or a dataset (`psychlm data list`)"
            )
        file = data.path(name)
    try:
        if zipfile.is_zipfile(file):
            # the one member whose path ends in the name after the #
            with zipfile.ZipFile(file) as archive:
                members = [name for name in archive.namelist() if not name.startswith("__MACOSX")]
                named = [name for name in members if member and f"/{name}".endswith(f"/{member}")]
                if len(named) != 1:
                    raise DataError(
                        f"{file} holds {len(named)} files named {member!r}; "
                        f"name one of {members[:12]} after a #"
                    )
                n_compressed = archive.getinfo(named[0]).compress_size
                with archive.open(named[0]) as stream:
                    content = stream.read(most_bytes(n_compressed) + 1)
        else:
            n_compressed = file.stat().st_size
            with (bz2.open if file.suffix == ".bz2" else open)(file, "rb") as stream:
                content = stream.read(most_bytes(n_compressed) + 1)
        check_growth(file, len(content), n_compressed)
        text, _ = decode(file, encoding, content)
    except (OSError, EOFError) as error:
        kind = file.suffix.lstrip(".")
        raise DataError(f"{file} is no complete {kind} file ({error}); fetch it again") from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def read_records(
    source: Source, without: Collection[str] = (), encoding: str | None = None
) -> list[dict[str, Any]]:
    """Return the objects of a JSONL source, or of one JSON list, without some keys.

    The parse trees of half a million sentence pairs, for instance, would fill the memory."""
    lines = read_lines(source, encoding)
    is_list = bool(lines) and lines[0].lstrip().startswith("[")
    lines = ["".join(lines)] if is_list else lines
    longest = LONGEST_LIST if is_list else LONGEST_RECORD
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {source}"
        if len(line) > longest:
            raise DataError(
                f"{where} has {len(line):,} characters, and one of items has at most {longest:,}; "
                "write one item on each line"
            )
        try:
            value = json.loads(line)
            if "\\ud" in line.lower():  # a lone surrogate cannot be written again
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is no JSON text: {line[:60]!r} ({error})") from error
        objects = value if is_list else [value]
        if not all(isinstance(record, dict) for record in objects):
            raise DataError(f"{where} is no JSON object, but {line[:60]!r}")
        records += [{k: v for k, v in one.items() if k not in without} for one in objects]
    return records


def _table(records: list[dict[Any, Any]], columns: Types, source: Source) -> pd.DataFrame:
    """Return records as a frame; check that columns are there and of the right types."""
    frame = pd.DataFrame(records)
    other = f"{source} has another layout than this reader's"
    if missing := [column for column in columns if column not in frame.columns]:
        raise DataError(f"{other}: it has no {missing}")
    for column, types in columns.items():
        for number, value in enumerate(frame[column], start=1):
            too_large = isinstance(value, int) and abs(value) >= LARGEST
            if too_large or not isinstance(value, types) or isinstance(value, bool):
                shown = "too large" if too_large else repr(str(value)[:60])
                kind = type(value).__name__
                raise DataError(f"{other}: in record {number}, {column!r} is {kind} ({shown})")
    return frame


def _label_places(given: pd.Series, labels: list[str], source: Source) -> pd.Series:
    """Return the places of labels, which are words or first letters; -1 for "-" (no agreement)."""
    places = {"-": -1} | {label[0]: place for place, label in enumerate(labels)}
    answer = given.str.lower().map(places | {label: i for i, label in enumerate(labels)})
    if answer.isna().any():
        unknown = sorted(given[answer.isna()].unique())[:5]
        raise DataError(f"{source} has the labels {unknown}, which are none of {labels}")
    return answer.astype(int)


def _gold_places(frame: pd.DataFrame, source: Source, first: int = 0) -> pd.Series:
    """Return the place of each right choice: from a column ``label``, or from a file of labels.

    Labels count from ``first``. The file lies beside the items in AI2's layout:
    ``dev-labels.lst`` beside ``dev.jsonl``."""
    name = str(source)
    stem = name.removesuffix(".jsonl")
    labels = f"{stem}-labels.lst" if name != stem else f"{name}-labels"
    given = list(map(str, frame["label"])) if "label" in frame else read_lines(labels)
    given = ["" if label.strip() == "-1" else label.strip() for label in given]  # of test sets
    if len(given) != len(frame) or not all(label.isdecimal() for label in given if label):
        raise DataError(
            f"{labels} does not belong to {source}: it holds {len(given)} labels for the "
            f"{len(frame)} items, or others than numbers"
        )
    places = [min(int(label[:12]), LARGEST) - first if label else None for label in given]
    return pd.Series(places, index=frame.index)


# Natural language inference: the prompt is the premise, ``hypothesis`` the sentence judged

ANLI = {"uid": "pairID", "context": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
PARSES = {f"sentence{i}_{kind}" for i in (1, 2) for kind in ("parse", "binary_parse")}


def nli(source: Source) -> pd.DataFrame:
    """Read sentence pairs in the layout of SNLI and MNLI, of ANLI, or of Breaking NLI (JSONL).

    Items have ``hypothesis``, and ``annotator_labels``, ``genre``, ``round`` or ``category`` where
    the source has them; pairs on which the annotators did not agree have no gold label.

    >>> nli("mnli/multinli_1.0#multinli_1.0_dev_matched.jsonl")  # doctest: +SKIP
    """
    rows = read_records(source, without=PARSES)
    if rows and "context" in rows[0]:
        frame = _table(rows, dict.fromkeys(ANLI, str), source).rename(columns=ANLI)
    else:
        types = dict.fromkeys(("gold_label", "sentence1", "sentence2"), str)
        frame = _table(rows, types | {"pairID": (str, int)}, source)
    items = unique_ids(frame["pairID"], source).assign(
        prompt=frame["sentence1"],
        choices=[NLI_LABELS] * len(frame),
        answer=_label_places(frame["gold_label"], NLI_LABELS, source),
        hypothesis=frame["sentence2"],
    )
    kept = [name for name in ("category", "genre", "annotator_labels", "round") if name in frame]
    items[kept] = frame[kept]
    return finish(items, items["answer"] < 0)


# Columns of GLUE's diagnostic as SuperGLUE and gluebenchmark.com name them, and groups of its tags.
GLUE = {"sentence1": "Premise", "sentence2": "Hypothesis", "label": "Label", "idx": "ID"}
GLUE |= {"Lexical Semantics": "lexical-semantics", "Logic": "logic", "Knowledge": "knowledge"}
GLUE |= {"Predicate-Argument Structure": "predicate-argument-structure"}
TAG_COLUMNS = ["lexical-semantics", "predicate-argument-structure", "logic", "knowledge"]


def glue_diagnostic(source: Source = "mcqa/ax_b") -> pd.DataFrame:
    """Read the broad-coverage diagnostic of GLUE (Wang et al. 2019).

    The source is SuperGLUE's form with two labels (``"mcqa/ax_b"``), the pairs of one category with
    three labels (``"laverghetta2021/diagnostic_results"``), or ``diagnostic-full.tsv`` of
    gluebenchmark.com: all pairs, three labels. Items have ``hypothesis``, ``categories`` (tags; the
    second source ``category``) and ``domain``; ``item_id`` is the pair's number from 0 (int).

    >>> glue_diagnostic("mcqa/ax_b")  # doctest: +SKIP
    """
    first, *rows = read_lines(source) or [""]
    if first.lstrip().startswith(("{", "[")):
        records = read_records(source)
    else:  # split by hand: quotes are part of the text
        records = [dict(zip(first.split("\t"), r.split("\t"), strict=False)) for r in rows]
    records = [{GLUE.get(name, name): value for name, value in row.items()} for row in records]
    frame = _table(records, _strings("Premise", "Hypothesis", "Label"), source)
    labels = BINARY_LABELS if "not_entailment" in set(frame["Label"]) else NLI_LABELS
    if "Subcategory name" in frame:  # its other rows name the models' parents and hold sums
        frame = frame[frame["Label"].isin(labels)]
    ids = frame["ID"].astype(str) if "ID" in frame else pd.Series(map(str, range(len(frame))))
    if not ids.str.fullmatch(r"[0-9]{1,9}").all():
        raise DataError(f"{source} has ids that are no whole numbers; another layout than GLUE's")
    items = pd.DataFrame({"item_id": ids.astype(int).to_numpy(), "prompt": frame["Premise"]})
    items["choices"] = [labels] * len(frame)
    items["answer"] = _label_places(frame["Label"], labels, source)
    items["hypothesis"] = frame["Hypothesis"]
    if "Subcategory name" in frame:
        items["category"] = frame["Subcategory name"]
    else:
        tags = frame.reindex(columns=TAG_COLUMNS).astype(object).fillna("").astype(str)
        tags = tags.agg(";".join, axis=1).str.split(";")
        items["categories"] = [[t.strip() for t in of_item if t.strip()] for of_item in tags]
    if "Domain" in frame:
        items["domain"] = frame["Domain"]
    return finish(items)


# Sentiment


def sentiment(source: Source) -> pd.DataFrame:
    """Read the Stanford Sentiment Treebank (Socher et al. 2013): sentences of film reviews.

    The source has lines of label and sentence, or is a table of ``sentence`` and ``label`` (GLUE's
    phrases, ``"sst/sst2_phrases_train"``). Where no label is above 1, the choices are negative and
    positive, else five degrees.

    >>> sentiment("sst/stsa.fine.test")  # doctest: +SKIP
    """
    lines = read_lines(source)
    if lines[:1] == ["sentence\tlabel"]:
        pairs = [line.rpartition("\t")[::-2] for line in lines[1:]]
    else:
        pairs = [line.partition(" ")[::2] for line in lines]
    frame = pd.DataFrame(pairs, columns=["answer", "prompt"], dtype=object)
    wrong = ~frame["answer"].isin([*"01234"]) | frame["prompt"].str.strip().eq("")
    if wrong.any() or frame.empty:
        first = int(wrong.argmax()) + 1 if len(wrong) else 1
        raise DataError(
            f"line {first} of {source} ({wrong.sum()} in all) does not give a label from 0 to 4 "
            "and a text"
        )
    answer = frame["answer"].astype(int)
    labels = ["negative", "positive"]
    if answer.max() > 1:
        labels = ["very negative", "negative", "neutral", "positive", "very positive"]
    items = pd.DataFrame({"item_id": numbered_ids(source, len(frame)), "answer": answer})
    prompt = frame["prompt"].str.strip()
    return finish(items.assign(prompt=prompt, choices=[labels] * len(frame)))


# Multiple choice


def read_arc(source: Source) -> pd.DataFrame:
    """Read the layout of ARC (Clark et al. 2018) and OpenBookQA (Mihaylov et al. 2018; JSONL).

    Whatever else a record holds becomes a column.

    >>> read_arc("mcqa/arc/ARC-Easy-Dev")  # doctest: +SKIP
    """
    frame = _table(read_records(source), {"id": (str, int), "question": dict}, source)
    questions = frame["question"].tolist()
    try:
        labels = [[str(choice["label"]) for choice in q["choices"]] for q in questions]
        choices = [[choice["text"] for choice in q["choices"]] for q in questions]
        stems = [question["stem"] for question in questions]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{source} has another layout than ARC's, where a question has a stem, and choices "
            f"with label and text ({error})"
        ) from error
    # keys are labels of choices; test sets hide them
    keys = frame.get("answerKey", pd.Series("", index=frame.index)).fillna("").astype(str)
    both_right = [len(set(of_item)) < len(of_item) for of_item in labels]
    no_label = [key not in ("", *of_item) for key, of_item in zip(keys, labels, strict=True)]
    for wrong, flaw in (
        (both_right, "give two choices the same label, so that both may be right"),
        (no_label, "have a key that labels none of their choices"),
    ):
        frames.refuse("items", frame["id"][wrong], f"of {source} {flaw}; correct or remove them")
    places = [label.index(key) if key else 0 for key, label in zip(keys, labels, strict=True)]
    items = unique_ids(frame["id"], source).assign(prompt=stems, choices=choices, answer=places)
    others = frame.drop(columns=["id", "question", "answerKey", *items], errors="ignore")
    return finish(pd.concat([items, others], axis=1), keys.eq(""))


def write_arc(items: pd.DataFrame, path: str | Path) -> Path:
    """Write items in ARC's layout, one JSON object per line; other columns follow ARC's.

    Choices are labelled A to Z, or with numbers where there are more.

    >>> import tempfile
    >>> items = pd.DataFrame({"item_id": ["q1"], "prompt": ["2 + 2 ="], "answer": [1]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_arc(items.assign(choices=[["3", "4"]]), Path(folder) / "items.jsonl")
    ...     read_arc(file)["choices"].tolist()
    [['3', '4']]
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with data.atomic_write(path) as part, part.open("w", encoding="utf-8") as out:
        for item in frames.check_items(items).to_dict("records"):
            texts = item.pop("choices")
            answer = item.pop("answer")
            numbers = [str(i + 1) for i in range(len(texts))]
            labels = ascii_uppercase[: len(texts)] if len(texts) <= 26 else numbers
            choices = [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)]
            question = {"stem": item.pop("prompt"), "choices": choices}
            record = {"id": item.pop("item_id"), "question": question, "answerKey": labels[answer]}
            record |= {k: v for k, v in item.items() if not (np.isscalar(v) and pd.isna(v))}
            # numpy's arrays and numbers have `tolist`
            out.write(json.dumps(record, ensure_ascii=False, default=lambda v: v.tolist()) + "\n")
    return path


# Layouts of multiple choice: what records must hold, and how they become prompt, choices, answer


SCIQ = ["correct_answer", "distractor1", "distractor2", "distractor3"]
GPQA = ["Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3))]


def _columns(frame: pd.DataFrame, *names: str | int) -> list[list[Any]]:
    return frame[list(names)].to_numpy(dtype=object).tolist()


def _sciq(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """SciQ (Welbl et al. 2017): choices are put in random order; ``support`` is a paragraph."""
    order = np.random.default_rng(0).permuted(np.tile(np.arange(4), (len(frame), 1)), axis=1)
    choices = np.take_along_axis(frame[SCIQ].to_numpy(object), order, axis=1).tolist()
    items = {"prompt": frame.get("question", frame.get("Question")), "choices": choices}
    items["support"] = frame.get("support", "")
    return items | {"answer": (order == 0).argmax(axis=1)}


def _gpqa(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """GPQA (Rein et al. 2023): as SciQ, under other names."""
    return _sciq(frame.rename(columns=dict(zip(GPQA, SCIQ, strict=True))), source)


def _copa(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """COPA (Roemmele et al. 2011): the likelier cause or effect, after "because" or "so"."""
    word = frame["question"].map({"cause": " because", "effect": " so"})
    if word.isna().any():
        raise DataError(f"{source} asks {frame['question'].unique()}, not for cause and effect")
    choices = frame[["choice1", "choice2"]].map(lambda text: text[:1].lower() + text[1:])
    items = {"prompt": frame["premise"].str.removesuffix(".") + word, "template": "continuation"}
    return items | {"choices": choices.to_numpy().tolist(), "answer": _gold_places(frame, source)}


def _truthful_qa(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """TruthfulQA (Lin et al. 2022), with one right choice (MC1)."""
    labels = [target.get("labels") for target in frame["mc1_targets"]]
    is_one = [isinstance(of_item, list) and of_item.count(1) == 1 for of_item in labels]
    answer = [one.index(1) if right else None for one, right in zip(labels, is_one, strict=True)]
    choices = [target.get("choices") for target in frame["mc1_targets"]]
    return {"prompt": frame["question"], "choices": choices, "answer": answer}


def _piqa(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """PIQA (Bisk et al. 2020): a goal, and two ways to reach it."""
    items = {"prompt": frame["goal"], "choices": _columns(frame, "sol1", "sol2")}
    return items | {"answer": _gold_places(frame, source)}


def _social_iqa(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """Social IQA (Sap et al. 2019): three answers with labels from 1, or options and the text of
    the right one."""
    items = {"prompt": frame["context"] + " " + frame["question"]}
    if "options" not in frame:
        items["choices"] = _columns(frame, "answerA", "answerB", "answerC")
        return items | {"answer": _gold_places(frame, source, first=1)}
    answers = list[int]()
    for text, options in zip(frame["answer"].str.strip(), frame["options"], strict=True):
        stripped = [str(choice).strip() for choice in options]
        if text not in stripped:
            line = len(answers) + 1
            raise DataError(f"line {line} of {source}: its answer is none of its options")
        answers.append(stripped.index(text))
    return items | {"choices": frame["options"], "answer": answers}


def _hellaswag(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """HellaSwag (Zellers et al. 2019): a story's beginning, four endings; test has no labels."""
    label = frame["label"].astype(str) if "label" in frame else pd.Series("", index=frame.index)
    answer = label.map({str(position): position for position in range(4)})
    story = {"prompt": frame["activity_label"] + ": " + frame["ctx"], "choices": frame["endings"]}
    return story | {"answer": answer, "template": "continuation"}


def _abductive_nli(frame: pd.DataFrame, source: Source) -> dict[str, Any]:
    """Abductive NLI (Bhagavatula et al. 2020): what happened between two observations?

    Each choice is a hypothesis followed by the second observation, so that a language model scores
    both; ``observation`` holds the second alone."""
    both = [frame[name].str.strip() + " " + frame["obs2"].str.strip() for name in ("hyp1", "hyp2")]
    items = {"prompt": frame["obs1"], "choices": np.column_stack(both).tolist()}
    items |= {"answer": _gold_places(frame, source, first=1), "observation": frame["obs2"]}
    return items | {"template": "continuation"}


# What records must hold, with types for those that a function above builds items of; names alone
# for a reader of its own. The first layout whose columns are there reads the source.
LAYOUTS: list[tuple[Types | set[str], Callable[..., Any]]] = [
    (
        _strings("prompt") | {"item_id": (str, int), "choices": list, "answer": (int, float, str)},
        lambda frame, source: {str(name): frame[name] for name in frame},
    ),
    ({"id", "question"}, read_arc),
    ({"gold_label", "sentence1"}, nli),
    ({"uid", "context", "hypothesis"}, nli),
    ({"idx", "sentence1", "logic"}, glue_diagnostic),
    (_strings("question", *SCIQ), _sciq),
    (_strings("Question", *GPQA), _gpqa),
    (_strings("premise", "question", "choice1", "choice2"), _copa),
    (_strings("question") | {"mc1_targets": dict}, _truthful_qa),
    (_strings("goal", "sol1", "sol2"), _piqa),
    (_strings("context", "question", "answer") | {"options": list}, _social_iqa),
    (_strings("context", "question", "answerA", "answerB", "answerC"), _social_iqa),
    (_strings("activity_label", "ctx") | {"endings": list}, _hellaswag),
    (_strings("obs1", "obs2", "hyp1", "hyp2"), _abductive_nli),
]


def read_items(source: Source, *, encoding: str | None = None) -> pd.DataFrame:
    """Read an item bank, told apart by the keys of its records or by its first line.

    Known are an items frame as JSONL (``item_id``, ``prompt``, ``choices``, ``answer``), ARC and
    OpenBookQA (:func:`read_arc`), SNLI, MNLI and ANLI (:func:`nli`), GLUE's diagnostic
    (:func:`glue_diagnostic`), SciQ, GPQA, COPA, TruthfulQA (MC1), PIQA, Social IQA, HellaSwag (as
    released, or blocks of six lines: beginning, number of the right ending, four endings),
    abductive NLI, and the Stanford Sentiment Treebank (:func:`sentiment`). Labels in a file of
    their own lie beside the items (``dev-labels.lst`` beside ``dev.jsonl``).

    Other JSONL, CSV, Excel and Parquet files are read by the usual names of their columns, as MMLU,
    ARC, CommonsenseQA, RACE, WinoGrande and BoolQ have them on the Hugging Face hub: a question
    (behind a passage), choices in a list or in columns (``A``, ``B``; ``option1`` ...), and the
    label, letter, text or position of the right one. ``attrs["recognised"]`` says which. The
    ``encoding`` of a text file is found unless given.

    >>> item = '{"item_id": "q1", "prompt": "2 + 2 =", "choices": ["3", "4"], "answer": 1}'
    >>> _ = Path("items.jsonl").write_text(item)
    >>> read_items("items.jsonl")["answer"].tolist()
    [1]
    """
    file = Path(str(source)).expanduser()
    unknown = f"which is no layout that is known; {IN_FULL}"
    if file.suffix.lower() in (".parquet", ".xlsx") and file.is_file():
        return _of_records(records_of_table(file), source, is_table=True)
    lines = read_lines(source, encoding)
    first = lines[0] if lines else ""
    # Sources that are no JSON: a table, or lines of label and sentence, or blocks of six lines.
    if not first.lstrip().startswith(("{", "[")):
        columns = first.split("\t")
        if "Premise" in columns:
            return glue_diagnostic(source)
        if columns == ["sentence", "label"] or first[:2] in {f"{degree} " for degree in range(5)}:
            return sentiment(source)
        labels = lines[1::6]
        if (not labels or labels[0] not in set("0123")) and len(lines) > 1 and file.is_file():
            return _of_records(records_of_table(file, encoding), source, is_table=True)
        if not labels or labels[0] not in set("0123"):
            raise DataError(f"{source} begins with {first[:60]!r}, {unknown}")
        if len(lines) % 6 or not set(labels) <= set("0123"):
            raise DataError(
                f"{source} is not made of blocks of six lines: a beginning, 0 to 3, four endings"
            )
        blocks = pd.DataFrame([lines[i : i + 6] for i in range(0, len(lines), 6)])
        items = pd.DataFrame({"item_id": numbered_ids(source, len(blocks)), "prompt": blocks[0]})
        choices = _columns(blocks, 2, 3, 4, 5)
        answer = blocks[1].astype(int)
        return finish(items.assign(choices=choices, answer=answer, template="continuation"))
    return _of_records(read_records(source, encoding=encoding), source)


def _of_records(
    records: list[dict[str, Any]], source: Source, is_table: bool = False
) -> pd.DataFrame:
    """Return items by the first layout whose keys are there, or by usual names of columns."""
    keys = set().union(*(record.keys() for record in records[:50]))
    # on the hub, ARC's question is a text beside its choices
    is_nested = any(isinstance(record.get("question"), dict) for record in records[:50])
    for needed, build in LAYOUTS:
        if not set(needed) <= keys or (build is read_arc and not is_nested):
            continue
        if isinstance(needed, set) and not is_table:
            return build(source)
        if isinstance(needed, set) or (is_table and "choices" in needed):
            continue
        frame = _table(records, needed, source)
        ids = next((frame[name] for name in ("item_id", "id") if name in frame), None)
        parts = {"item_id": numbered_ids(source, len(frame)) if ids is None else ids}
        items = pd.DataFrame(parts | build(frame, source), index=frame.index)
        return finish(items, items["answer"].isna())
    items = by_names(records, source)
    if items is None:
        raise DataError(
            f"{source} has records of {sorted(map(str, keys))[:12]}, which is no layout that is "
            f"known; {IN_FULL}"
        )
    return items
