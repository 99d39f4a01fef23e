"""Item banks as items frames: natural language inference, sentiment and multiple choice.

A *source* is a dataset's name in ``data/registry.csv``, a file, or ``archive#member`` for a file
inside an archive (``"snli/snli_1.0#snli_1.0_train.jsonl"``). Every reader returns an items frame
(:func:`psychlm.frames.check_items`). Items that cannot be asked (no gold label, an empty choice,
the same choice twice) are left out and counted in ``items.attrs["left_out"]``. A column
``template`` names how a language model is best asked.

Every reader raises :class:`psychlm.data.DataError` where the source is missing, is no text or has
another layout, and :class:`psychlm.frames.FrameError` where its items break the contract.
"""

from __future__ import annotations

import bz2
import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from psychlm import data, frames
from psychlm.data import DataError, DataMissingError
from psychlm.frames import FrameError

NLI_LABELS = ["entailment", "neutral", "contradiction"]
BINARY_LABELS = ["entailment", "not_entailment"]
NO_LABEL = "no gold label"
LARGEST = 2**31  # no index or count of a bank is larger; a number beyond it is an error of the file

Source = str | Path
Types = dict[Any, Any]  # of a column's values: a type or a tuple of types

# ------------------------------------------------------------
# Reading lines and records


def read_lines(source: Source) -> list[str]:
    """Return the lines of a source, without line ends and blank lines.

    Raises
    ------
    DataMissingError
        If the source is neither a file nor a dataset that can be had.
    DataError
        If an archive does not hold the member, or the text is not UTF-8.
    """
    name, _, member = str(source).partition("#")
    file = Path(name).expanduser()
    if not file.is_file():
        endings = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".lst", ".bz2", ".zip")
        if isinstance(source, Path) or file.is_absolute() or file.suffix in endings:
            raise DataMissingError(
                f"there is no file {file}; name one, or a dataset (`psychlm data list`)"
            )
        file = data.path(name)
    if file.suffix == ".bz2":
        content = bz2.decompress(file.read_bytes())
    elif zipfile.is_zipfile(file):
        # The one member whose path ends in the name after the #.
        with zipfile.ZipFile(file) as archive:
            members = [name for name in archive.namelist() if not name.startswith("__MACOSX")]
            matches = [name for name in members if member and f"/{name}".endswith(f"/{member}")]
            if len(matches) != 1:
                raise DataError(
                    f"{file} holds {len(matches)} files named {member!r}; "
                    f"name one of {members[:12]} after a #"
                )
            content = archive.read(matches[0])
    else:
        content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise DataError(f"{file} is not UTF-8 text ({where})") from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def read_records(source: Source, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the objects of a JSONL source, or of one JSON list.

    Parameters
    ----------
    without : collection of str
        Keys to drop on reading: the parse trees of half a million sentence pairs fill the memory.

    Raises
    ------
    DataError
        If a line is no JSON object, or holds characters that no text file can hold (lone
        surrogates); the message names the line.
    """
    lines = read_lines(source)
    if lines and lines[0].lstrip().startswith("["):
        lines = ["".join(lines)]
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            if "\\ud" in line.lower():  # the only way for a lone surrogate into valid UTF-8
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise DataError(f"line {number} of {source} holds a lone surrogate") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {source} is no JSON: {line[:60]!r}") from error
        objects = value if isinstance(value, list) and line.lstrip().startswith("[") else [value]
        if not all(isinstance(record, dict) for record in objects):
            raise DataError(f"line {number} of {source} is no JSON object, but {line[:60]!r}")
        records += objects
    if without:
        return [{k: v for k, v in record.items() if k not in without} for record in records]
    return records


def _table(records: list[dict[Any, Any]], columns: Types, source: Source) -> pd.DataFrame:
    """Return records as a frame; check that columns are there and of the right types."""
    frame = pd.DataFrame(records)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise DataError(f"{source} has another layout than this reader's: it has no {missing}")
    for column, types in columns.items():
        for number, value in enumerate(frame[column], start=1):
            too_large = isinstance(value, int) and abs(value) >= LARGEST
            if too_large or not isinstance(value, types) or isinstance(value, bool):
                shown = "too large" if too_large else repr(str(value)[:60])
                raise DataError(
                    f"{source} has another layout than this reader's: in record {number}, "
                    f"{column!r} is {type(value).__name__} ({shown})"
                )
    return frame


def _numbered_ids(source: Source, n: int) -> list[str]:
    """Return ids for items that have none: the source's name without endings, and the line."""
    name = str(source).replace("#", "/").rsplit("/", 1)[-1]
    stem = name.removesuffix(".bz2").rsplit(".jsonl", 1)[0]
    return [f"{stem}-{i}" for i in range(1, n + 1)]


def _unique_ids(given: pd.Series, source: Source) -> pd.DataFrame:
    """Return the ids of a source; where they repeat, line numbers beside ``source_id``."""
    if given.is_unique:
        return pd.DataFrame({"item_id": given.astype(str)})
    ids = _numbered_ids(source, len(given))
    return pd.DataFrame({"item_id": ids, "source_id": given.astype(str)})


def _gold_places(
    frame: pd.DataFrame, labels: Source | None, source: Source, first: int = 0
) -> pd.Series:
    """Return the place of each right choice: from a column ``label``, or from a file of labels.

    Labels count from ``first``. The file lies beside the items in AI2's layout:
    ``dev-labels.lst`` beside ``dev.jsonl``.
    """
    if labels is None:
        text = str(source)
        stem = text.removesuffix(".jsonl")
        labels = f"{stem}-labels.lst" if text.endswith(".jsonl") else f"{text}-labels"
    given = list(map(str, frame["label"])) if "label" in frame else read_lines(labels)
    if len(given) != len(frame) or not all(label.strip().isdecimal() for label in given):
        raise DataError(
            f"{labels} does not belong to {source}: it holds {len(given)} labels for the "
            f"{len(frame)} items, or others than numbers"
        )
    return pd.Series([min(int(label[:12]), LARGEST) - first for label in given], index=frame.index)


def _finish(items: pd.DataFrame, left_out: Mapping[str, pd.Series] | None = None) -> pd.DataFrame:
    """Leave out items that cannot be asked, count them in ``attrs``, and check the others.

    Parameters
    ----------
    left_out : mapping of reason to bool Series
        Rows to leave out beside those with empty or duplicate choices; each counts once, for its
        first reason.
    """
    # The same choices (label words) stand in many rows: look at each distinct list once.
    rows = (choices if isinstance(choices, list) else () for choices in items["choices"])
    texts = pd.Series([tuple(str(choice).strip() for choice in row) for row in rows], dtype=object)
    code, distinct = pd.factorize(texts)
    empty = np.array([not all(choices) for choices in distinct], dtype=bool)[code]
    twice = np.array([len(set(choices)) < len(choices) for choices in distinct], dtype=bool)[code]
    flaws = dict(left_out or {}) | {"an empty choice": empty, "duplicate choices": twice}
    counts, dropped = {}, np.zeros(len(items), dtype=bool)
    for reason, rows in flaws.items():
        counts[reason] = int((np.asarray(rows) & ~dropped).sum())
        dropped |= np.asarray(rows)
    checked = frames.check_items(items[~dropped].reset_index(drop=True))
    checked.attrs["left_out"] = {reason: count for reason, count in counts.items() if count}
    return checked


def _numbered_items(
    source: Source, prompt: pd.Series, choices: Any, answer: Any, **columns: Any
) -> pd.DataFrame:
    """Assemble the items of a source without ids, and finish them; no answer (NaN): no label."""
    parts = {"prompt": prompt, "choices": choices, "answer": answer, **columns}
    items = pd.DataFrame({"item_id": _numbered_ids(source, len(prompt)), **parts})
    return _finish(items, {NO_LABEL: items["answer"].isna()})


# ------------------------------------------------------------
# Natural language inference: the prompt is the premise, ``hypothesis`` the sentence judged


def nli(source: Source) -> pd.DataFrame:
    """Read sentence pairs in the layout of SNLI and MNLI, of ANLI, or of Breaking NLI.

    Parameters
    ----------
    source : str or Path
        JSONL: ``"snli/snli_1.0_dev"``, ``"mnli/multinli_1.0#multinli_1.0_dev_matched.jsonl"``,
        ``"anli/anli_v0.1#R3/test.jsonl"``, ``"semantic_fragments/breaking_nli_dataset"``, or a
        file.

    Returns
    -------
    DataFrame
        Items with ``hypothesis``, and ``annotator_labels``, ``genre``, ``round`` or ``category``
        where the source has them. Pairs on which the annotators did not agree (gold label "-") are
        left out and counted.
    """
    parses = {f"sentence{i}_{kind}" for i in (1, 2) for kind in ("parse", "binary_parse")}
    rows = read_records(source, without=parses)
    old, names = ("uid", "context", "label"), ("pairID", "sentence1", "gold_label")
    if rows and "context" in rows[0]:  # ANLI
        frame = _table(rows, dict.fromkeys((*old, "hypothesis"), str), source)
        names_of = dict(zip((*old, "hypothesis"), (*names, "sentence2"), strict=True))
        frame = frame.rename(columns=names_of)
    else:
        types = dict.fromkeys(("gold_label", "sentence1", "sentence2"), str)
        frame = _table(rows, types | {"pairID": (str, int)}, source)
    spellings = {"e": "entailment", "n": "neutral", "c": "contradiction"}
    gold = frame["gold_label"].str.lower().replace(spellings)
    items = _unique_ids(frame["pairID"], source).assign(
        prompt=frame["sentence1"],
        choices=[NLI_LABELS] * len(frame),
        answer=_label_places(gold, source),
        hypothesis=frame["sentence2"],
    )
    kept = [name for name in ("category", "genre", "annotator_labels", "round") if name in frame]
    items[kept] = frame[kept]
    return _finish(items, {NO_LABEL: items["answer"] < 0})


def semantic_fragments(source: Source) -> pd.DataFrame:
    """Read a fragment of Richardson et al. (2020): generated pairs on one logical phenomenon.

    Parameters
    ----------
    source : str or Path
        Tab-separated: ``"semantic_fragments/monotonicity_hard/challenge_dev"`` and the like.

    Returns
    -------
    DataFrame
        Items with ``hypothesis``, ``category`` (the fragment's name) and ``source_id``; ids are
        line numbers, since some files repeat theirs.
    """
    rows: list[dict[Any, Any]] = [dict(enumerate(li.split("\t"))) for li in read_lines(source)]
    frame = _table(rows, dict.fromkeys(range(4), str), source)
    parts = str(source).replace("\\", "/").split("/")
    fragment = parts[-2] if len(parts) > 1 else parts[0]
    items = pd.DataFrame(
        {
            "item_id": [f"{fragment}-{name}" for name in _numbered_ids(source, len(frame))],
            "source_id": frame[0],
            "prompt": frame[1],
            "choices": [NLI_LABELS] * len(frame),
            "answer": _label_places(frame[3].str.strip().str.lower(), source),
            "hypothesis": frame[2],
            "category": fragment,
        }
    )
    return _finish(items, {NO_LABEL: items["answer"] < 0})


def _label_places(gold: pd.Series, source: Source) -> pd.Series:
    """Return the place of each gold label among :data:`NLI_LABELS`, -1 for "-" (no agreement)."""
    places = gold.map({name: i for i, name in enumerate(NLI_LABELS)} | {"-": -1})
    if places.isna().any():
        unknown = sorted(gold[places.isna()].unique())[:5]
        raise DataError(f"{source} has the labels {unknown}, which are none of {NLI_LABELS}")
    return places.astype(int)


TAG_COLUMNS = ["lexical-semantics", "predicate-argument-structure", "logic", "knowledge"]


def glue_diagnostic(source: Source = "mcqa/ax_b") -> pd.DataFrame:
    """Read the broad-coverage diagnostic of GLUE (Wang et al. 2019).

    Parameters
    ----------
    source : str or Path
        ``"mcqa/ax_b"``, SuperGLUE's form with two labels; ``"laverghetta2021/diagnostic_results"``,
        the pairs of one category with three labels; or the file ``diagnostic-full.tsv`` of
        gluebenchmark.com: all pairs, three labels.

    Returns
    -------
    DataFrame
        Items; ``item_id`` is the pair's number from 0 (int), as in
        :func:`psychlm.corpora.laverghetta2021`. With ``hypothesis`` and ``categories``, the pair's
        tags (list); the second source has ``category`` instead, and the last two ``domain``.
    """
    lines = read_lines(source)
    if lines and lines[0].lstrip().startswith(("{", "[")):
        names = {"sentence1": "Premise", "sentence2": "Hypothesis", "label": "Label"}
        types = dict.fromkeys(names, str) | {"idx": (int, str)}
        frame = _table(read_records(source), types, source).rename(columns=names | {"idx": "ID"})
    else:  # split by hand: quotes are part of the text
        header, *rows = [line.split("\t") for line in lines]
        records = [dict(zip(header, row, strict=False)) for row in rows]
        frame = _table(records, dict.fromkeys(["Premise", "Hypothesis", "Label"], str), source)
        long_names = ["Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge"]
        frame = frame.rename(columns=dict(zip(long_names, TAG_COLUMNS, strict=True)))
    labels = BINARY_LABELS if "not_entailment" in set(frame["Label"]) else NLI_LABELS
    if "Subcategory name" in frame:  # its other rows name the models' parents and hold sums
        frame = frame[frame["Label"].isin(labels)]
    elif not frame["Label"].isin(labels).all():
        unknown = sorted(set(frame["Label"]) - set(labels))[:5]
        raise DataError(f"{source} has the labels {unknown}, which are none of {labels}")
    ids = frame["ID"].astype(str) if "ID" in frame else pd.Series(map(str, range(len(frame))))
    if not ids.str.fullmatch(r"[0-9]{1,9}").all():
        raise DataError(f"{source} has ids that are no whole numbers; another layout than GLUE's")
    items = pd.DataFrame(
        {
            "item_id": ids.astype(int).to_numpy(),
            "prompt": frame["Premise"],
            "choices": [labels] * len(frame),
            "answer": frame["Label"].map(labels.index),
            "hypothesis": frame["Hypothesis"],
        }
    )
    if "Subcategory name" in frame:
        items["category"] = frame["Subcategory name"]
    else:
        tags = frame.reindex(columns=TAG_COLUMNS).astype(object).fillna("").astype(str)
        items["categories"] = [
            [tag.strip() for tag in row.split(";") if tag.strip()]
            for row in tags.agg(";".join, axis=1).tolist()
        ]
    if "Domain" in frame:
        items["domain"] = frame["Domain"]
    return _finish(items)


# ------------------------------------------------------------
# Sentiment


def sentiment(source: Source, *, fine: bool | None = None) -> pd.DataFrame:
    """Read the Stanford Sentiment Treebank (Socher et al. 2013): sentences of film reviews.

    Parameters
    ----------
    source : str or Path
        Lines of label and sentence (``"sst/stsa.binary.dev"``, ``"sst/stsa.fine.test"``), or a
        table of ``sentence`` and ``label`` (GLUE's phrases, ``"sst/sst2_phrases_train"``).
    fine : bool, optional
        Whether labels have five degrees (0 to 4) or two; inferred from the largest label unless
        given.

    Returns
    -------
    DataFrame
        Items; the choices are the names of the degrees, from (very) negative to (very) positive.
    """
    lines = read_lines(source)
    if lines and lines[0].split("\t") == ["sentence", "label"]:
        pairs = [line.rsplit("\t", 1)[::-1] for line in lines[1:]]
    else:
        pairs = [line.split(" ", 1) for line in lines]
    wrong = [i for i, pair in enumerate(pairs, 1) if len(pair) != 2 or pair[0] not in set("01234")]
    if wrong or not pairs:
        raise DataError(
            f"line {wrong[0] if wrong else 1} of {source} ({len(wrong)} in all) does not give a "
            "label from 0 to 4 and a text"
        )
    frame = pd.DataFrame(pairs, columns=["answer", "prompt"]).astype({"answer": int})
    largest = frame["answer"].max()
    labels = ["negative", "positive"]
    if largest > 1 if fine is None else fine:
        labels = ["very negative", "negative", "neutral", "positive", "very positive"]
    if largest >= len(labels):
        raise DataError(f"{source} has the label {largest}, beyond 0 and 1; pass fine=True")
    prompt = frame["prompt"].str.strip()
    return _numbered_items(source, prompt, [labels] * len(frame), frame["answer"])


# ------------------------------------------------------------
# Multiple choice


def read_arc(source: Source) -> pd.DataFrame:
    """Read the layout of ARC (Clark et al. 2018) and OpenBookQA (Mihaylov et al. 2018).

    Parameters
    ----------
    source : str or Path
        JSONL: ``"mcqa/arc/ARC-Easy-Dev"``, ``"mcqa/openbookqa/test"``, or a file such as
        :func:`write_arc` writes.

    Returns
    -------
    DataFrame
        Items; whatever else a record holds becomes a column.

    Raises
    ------
    FrameError
        If a key is no label of its item, or two choices have the same label.
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
    keys = frame.get("answerKey", pd.Series("", index=frame.index)).fillna("").astype(str).tolist()
    pairs = list(zip(keys, labels, strict=True))
    same, no_choice = "the same label, so that both may be right", "labels none of their choices"
    flaws = {
        f"give two choices {same}": [len(set(own)) < len(own) for own in labels],
        f"have a key that {no_choice}": [key != "" and key not in own for key, own in pairs],
    }
    for flaw, wrong in flaws.items():
        if any(wrong):
            names = frame["id"][wrong].tolist()
            raise FrameError(
                f"items {names[:5]} ({len(names)} in {source}) {flaw}; correct or remove them"
            )
    items = _unique_ids(frame["id"], source).assign(
        prompt=stems,
        choices=choices,
        answer=[own.index(key) if key else 0 for key, own in pairs],
    )
    others = frame.drop(columns=["id", "question", "answerKey", *items], errors="ignore")
    return _finish(pd.concat([items, others], axis=1), {NO_LABEL: pd.Series(keys) == ""})


def write_arc(items: pd.DataFrame, path: str | Path) -> Path:
    """Write items in ARC's layout, one JSON object per line; other columns follow ARC's.

    Choices are labelled A to Z, or with numbers where there are more.
    """
    items = frames.check_items(items)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with data.atomic_write(path) as part, part.open("w", encoding="utf-8") as out:
        for item in items.to_dict("records"):
            texts, answer = item.pop("choices"), item.pop("answer")
            labels = (
                ascii_uppercase if len(texts) <= 26 else [str(i + 1) for i in range(len(texts))]
            )
            pairs = zip(texts, labels, strict=False)
            choices = [{"text": text, "label": label} for text, label in pairs]
            record = {
                "id": item.pop("item_id"),
                "question": {"stem": item.pop("prompt"), "choices": choices},
                "answerKey": labels[answer],
            }
            record |= {k: v for k, v in item.items() if not (np.isscalar(v) and pd.isna(v))}
            # numpy's arrays and numbers have `tolist`
            out.write(json.dumps(record, ensure_ascii=False, default=lambda v: v.tolist()) + "\n")
    return path


def question_choices_answer(source: Source) -> pd.DataFrame:
    """Read the layout of MMLU (Hendrycks et al. 2021): ``question``, ``choices``, ``answer``.

    The answer is the place of the right choice counted from 0, or its letter (A is the first).
    ``id`` and ``subject`` become ``item_id`` and ``category`` where they are there.
    """
    columns: Types = {"question": str, "choices": list, "answer": (str, int)}
    frame = _table(read_records(source), columns, source)
    letters = {letter: place for place, letter in enumerate(ascii_uppercase)}
    answers = [
        letters.get(answer.strip().upper(), -1) if isinstance(answer, str) else answer
        for answer in frame["answer"]
    ]
    ids = frame["id"].astype(str) if "id" in frame else _numbered_ids(source, len(frame))
    items = frame[["question", "choices"]].rename(columns={"question": "prompt"})
    items = items.assign(item_id=ids, answer=answers)[["item_id", "prompt", "choices", "answer"]]
    return _finish(items.assign(category=frame["subject"]) if "subject" in frame else items)


def sciq(source: Source = "mcqa/sciq/valid", *, seed: int = 0) -> pd.DataFrame:
    """Read SciQ (Welbl et al. 2017): science questions with three distractors.

    Parameters
    ----------
    source : str or Path
        ``"mcqa/sciq/valid"``, ``"mcqa/sciq/test"``, ``"mcqa/sciq/SciQ#train.json"``, or a file.
    seed : int
        Of the order of the choices: the file has the answer in a column of its own.

    Returns
    -------
    DataFrame
        Items with ``support``, the paragraph that the question was written from (may be empty).
    """
    columns = ["correct_answer", "distractor1", "distractor2", "distractor3"]
    frame = _table(read_records(source), dict.fromkeys(["question", *columns], str), source)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(4), (len(frame), 1)), axis=1)
    choices = np.take_along_axis(frame[columns].to_numpy(dtype=object), order, axis=1).tolist()
    answer, support = (order == 0).argmax(axis=1), frame.get("support", "")
    return _numbered_items(source, frame["question"], choices, answer, support=support)


def piqa(source: Source = "mcqa/piqa/valid", labels: Source | None = None) -> pd.DataFrame:
    """Read PIQA (Bisk et al. 2020): a goal, and two ways to reach it.

    Parameters
    ----------
    source : str or Path
        ``"mcqa/piqa/valid"``, ``"mcqa/piqa/physicaliqa-train-dev#train.jsonl"``, or a file.
    labels : str or Path, optional
        Where the gold labels are; the file beside the items (``...-labels``) unless given.
    """
    frame = _table(read_records(source), dict.fromkeys(["goal", "sol1", "sol2"], str), source)
    choices, answer = frame[["sol1", "sol2"]], _gold_places(frame, labels, source)
    return _numbered_items(source, frame["goal"], choices.to_numpy().tolist(), answer)


def social_iqa(source: Source = "mcqa/socialiqa/dev", labels: Source | None = None) -> pd.DataFrame:
    """Read Social IQA (Sap et al. 2019): a situation, a question about it, and three answers.

    Parameters
    ----------
    source : str or Path
        With the answers as a list and the gold one as text (``"mcqa/socialiqa/dev"``), or as
        released, with labels from 1 in a file of their own
        (``"mcqa/socialiqa/socialiqa-train-dev#train.jsonl"``).
    labels : str or Path, optional
        As in :func:`piqa`.

    Returns
    -------
    DataFrame
        Items; the prompt is the situation and the question.
    """
    rows = read_records(source)
    if rows and "options" in rows[0]:
        columns = {"context": str, "question": str, "options": list, "answer": str}
        frame = _table(rows, columns, source)
        choices = frame["options"].tolist()
        stripped = [[str(choice).strip() for choice in own] for own in choices]
        pairs = list(zip(frame["answer"].str.strip(), stripped, strict=True))
        for number, (text, own) in enumerate(pairs, start=1):
            if text not in own:
                raise DataError(f"line {number} of {source}: its answer is none of its options")
        answer = [own.index(text) for text, own in pairs]
    else:
        answers = ["answerA", "answerB", "answerC"]
        frame = _table(rows, dict.fromkeys(["context", "question", *answers], str), source)
        choices = frame[answers].to_numpy().tolist()
        answer = _gold_places(frame, labels, source, first=1)
    return _numbered_items(source, frame["context"] + " " + frame["question"], choices, answer)


def hellaswag(source: Source = "mcqa/hellaswag/hellaswag_val_full") -> pd.DataFrame:
    """Read HellaSwag (Zellers et al. 2019): the beginning of a story, and four continuations.

    Parameters
    ----------
    source : str or Path
        Blocks of six lines (beginning, number of the right ending, four endings; may be packed with
        bz2), or JSONL as released, ``"mcqa/hellaswag/hellaswag_train"``. The released test split
        has no labels.
    """
    lines = read_lines(source)
    if lines and lines[0].lstrip().startswith(("{", "[")):
        columns = {"activity_label": str, "ctx": str, "endings": list}
        frame = _table(read_records(source), columns, source)
        prompt, choices = frame["activity_label"] + ": " + frame["ctx"], frame["endings"]
        labels = frame["label"].astype(str) if "label" in frame else ""
        answer = pd.Series(labels, index=frame.index).map({str(i): i for i in range(4)})
    else:
        labels = [lines[i] for i in range(1, len(lines), 6)]
        if not lines or len(lines) % 6 or not set(labels) <= set("0123"):
            raise DataError(
                f"{source} is not made of blocks of six lines: a beginning, 0 to 3, four endings"
            )
        blocks = pd.DataFrame([lines[i : i + 6] for i in range(0, len(lines), 6)])
        prompt, answer = blocks[0], blocks[1].astype(int)
        choices = blocks[[2, 3, 4, 5]].to_numpy().tolist()
    return _numbered_items(source, prompt, choices, answer, template="continuation")


def abductive_nli(
    source: Source = "mcqa/alphanli/alphanli-train-dev#dev.jsonl", labels: Source | None = None
) -> pd.DataFrame:
    """Read abductive NLI (Bhagavatula et al. 2020): what happened between two observations?

    Parameters
    ----------
    source : str or Path
        JSONL of ``obs1``, ``obs2``, ``hyp1`` and ``hyp2``.
    labels : str or Path, optional
        As in :func:`piqa`; they count from 1.

    Returns
    -------
    DataFrame
        Items; the prompt is the first observation, and each choice a hypothesis followed by the
        second observation, so that a language model scores both. ``observation`` holds the second
        alone.
    """
    columns = dict.fromkeys(["obs1", "obs2", "hyp1", "hyp2"], str)
    frame = _table(read_records(source), columns, source)
    both = [frame[name].str.strip() + " " + frame["obs2"].str.strip() for name in ("hyp1", "hyp2")]
    return _numbered_items(
        source,
        frame["obs1"],
        pd.concat(both, axis=1).to_numpy().tolist(),
        _gold_places(frame, labels, source, first=1),
        observation=frame["obs2"],
        template="continuation",
    )


# ------------------------------------------------------------
# Any of them


def items_frame(source: Source) -> pd.DataFrame:
    """Read an items frame written as JSONL: ``item_id``, ``prompt``, ``choices``, ``answer`` ..."""
    types = {"item_id": (str, int), "prompt": str, "choices": list, "answer": (int, float, str)}
    return _finish(_table(read_records(source), types, source))


READERS_BY_KEYS = [  # the first reader whose keys the records have reads them
    ({"item_id", "prompt", "choices", "answer"}, items_frame),
    ({"question", "choices", "answer"}, question_choices_answer),
    ({"id", "question"}, read_arc),
    ({"gold_label", "sentence1"}, nli),
    ({"uid", "context", "hypothesis"}, nli),
    ({"idx", "sentence1", "logic"}, glue_diagnostic),
    ({"question", "correct_answer"}, sciq),
    ({"goal", "sol1"}, piqa),
    ({"context", "question"}, social_iqa),
    ({"activity_label", "endings"}, hellaswag),
    ({"obs1", "hyp1"}, abductive_nli),
]


def read_items(source: Source) -> pd.DataFrame:
    """Read any of the item banks above, told apart by the keys of the records or the first line.

    >>> read_items("items.jsonl")  # doctest: +SKIP

    Raises
    ------
    DataError
        If the source has none of the known layouts.
    """
    lines = read_lines(source)
    first = lines[0] if lines else ""
    if first.lstrip().startswith(("{", "[")):
        keys = set().union(*(record.keys() for record in read_records(source)[:50]))
        for needed, reader in READERS_BY_KEYS:
            if needed <= keys:
                return reader(source)
        raise DataError(
            f"{source} has records of {sorted(keys)[:12]}, which is no layout that is known; see "
            "psychlm.corpora.item_banks"
        )
    columns = first.split("\t")
    if "Premise" in columns:
        return glue_diagnostic(source)
    if columns == ["sentence", "label"] or first[:2] in {f"{degree} " for degree in range(5)}:
        return sentiment(source)
    if len(columns) == 4 and columns[3].strip().lower() in NLI_LABELS:
        return semantic_fragments(source)
    if len(lines) > 1 and lines[1] in set("0123"):
        return hellaswag(source)
    raise DataError(
        f"{source} begins with {first[:60]!r}, which is no layout that is known; see "
        "psychlm.corpora.item_banks"
    )
