"""What readers of item banks share, and items of any table by the usual names of its columns."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.corpora._formats import find
from psychlm.corpora._sniff import read_table, with_header_as_row
from psychlm.data import DataError

Source = str | Path


def numbered_ids(source: Source, n: int) -> list[str]:
    """Return ids for items that have none: the source's name without endings, and the line."""
    name = str(source).replace("#", "/").rsplit("/", 1)[-1]
    stem = name.removesuffix(".bz2").rsplit(".jsonl", 1)[0]
    return [f"{stem}-{i}" for i in range(1, n + 1)]


def unique_ids(given: pd.Series, source: Source) -> pd.DataFrame:
    """Return the ids of a source; where they repeat, line numbers beside ``source_id``."""
    if given.is_unique:
        return pd.DataFrame({"item_id": given.astype(str)})
    ids = numbered_ids(source, len(given))
    return pd.DataFrame({"item_id": ids, "source_id": given.astype(str)})


def finish(items: pd.DataFrame, no_label: pd.Series | None = None) -> pd.DataFrame:
    """Leave out items without a label, or with empty or duplicate choices, count them in ``attrs``
    (each once, for its first reason), and check the others."""
    reasons = {frames.EMPTY: "an empty choice", frames.DUPLICATE: "duplicate choices"}
    reason = pd.Series(frames.choice_flaws(items["choices"])).map(reasons)
    if no_label is not None:
        reason = reason.mask(no_label.to_numpy(), "no gold label")
    left_out = reason.value_counts().to_dict()
    if reason.notna().all():
        counts = ", ".join(f"{n} have {why}" for why, n in left_out.items())
        raise DataError(f"none of {len(items)} items can be asked: {counts}; give others")
    checked = frames.check_items(items[reason.isna().to_numpy()].reset_index(drop=True))
    checked.attrs["left_out"] = left_out
    return checked


# Other files with a question, choices and a right answer: the usual names of their columns

CONTEXTS = "passage article context story".split()
STEMS = "question question_stem stem query sentence goal prompt problem ctx startphrase".split()
CHOICES = "choices options endings".split()
KEYS = "answerKey key answer correct correct_answer right_answer gold label target cop".split()
IDS = "item_id id question_id qid uid example_id idx ind".split()
# "A", "option1", "choice_b", "opa", "ending0": the letter or number is the choice's label
A_CHOICE = r"(?:opt?|option|choice|answer|ans|sol|ending|alternative)?[\W_]*([a-j]|\d)"
IN_FULL = (
    "write the items with item_id, prompt, choices (a list) and answer (the right choice's "
    "position, from 0), one JSON object a line"
)


def _label_and_text(cell: Any) -> tuple[list[Any], Any]:
    """Return labels, where a cell has them, and texts of an item's choices."""
    if isinstance(cell, str) and cell.startswith(("[", "{")):  # a list in a cell of a table
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            cell = ast.literal_eval(cell)
    if isinstance(cell, list) and cell and all(isinstance(one, dict) for one in cell):
        return [one.get("label") for one in cell], [one.get("text") for one in cell]
    if not isinstance(cell, dict):
        return [], cell
    labels, texts = cell.get("label"), cell.get("text")
    if isinstance(labels, list) and isinstance(texts, list):
        return labels, texts
    return list(cell), list(cell.values())


def _readings(key: Any, labels: list[Any], choices: Any) -> dict[str, int]:
    """Return the place of the right choice by each way in which a key may name it."""
    texts = [str(choice).strip() for choice in choices] if isinstance(choices, list) else []
    key = int(key) if isinstance(key, float) and key.is_integer() else key
    said = str(key).strip()
    names = [str(label).upper() for label in labels]
    places = {"label": names.index(said.upper()) if names.count(said.upper()) == 1 else -1}
    if isinstance(key, str):
        places["letter"] = ascii_uppercase.find(said.upper()) if len(said) == 1 else -1
        places["text"] = texts.index(said) if said in texts else -1
    if re.fullmatch(r"\d{1,3}", said):
        places |= {"position from 0": int(said), "position from 1": int(said) - 1}
    return {way: place for way, place in places.items() if 0 <= place < len(texts)}


def by_names(records: list[dict[str, Any]], source: Source) -> pd.DataFrame | None:
    """Return items of columns with usual names, or None; ``attrs["recognised"]`` says which.

    What a key is (a label, letter, text or position of the right choice) is found from all items
    together. Keys of which several readings fit, with other right choices, are refused.
    """
    frame = pd.DataFrame(records)
    stem = find(frame, STEMS)
    key = find(frame, KEYS, [stem])
    if not stem or not key:
        return None
    context = find(frame, CONTEXTS, [stem, key])
    listed = find(frame, CHOICES)
    matches = {str(name): re.fullmatch(A_CHOICE, str(name), re.I) for name in frame if name != key}
    label_of = {name: match[1].upper() for name, match in matches.items() if match}
    keys = frame[key].tolist()
    absent = np.array([k is None or k != k or str(k).strip() in ("", "-1") for k in keys])
    given = frame[key][~absent]
    # choices, with labels where they have some
    if listed:
        labelled = [_label_and_text(cell) for cell in frame[listed]]
    elif len(label_of) > 1 and len(set(label_of.values())) == len(label_of):
        listed = "', '".join(label_of)
        cells = frame[[*label_of]].to_dict("records")
        filled = [{n: text for n, text in row.items() if str(text).strip()} for row in cells]
        labelled = [([label_of[n] for n in row], list(row.values())) for row in filled]
    elif given.map(lambda one: isinstance(one, bool)).all():
        listed = "no', 'yes"
        labelled = [(["False", "True"], ["no", "yes"])] * len(frame)
    else:
        return None
    name = find(frame, IDS, [stem, key])
    ids = frame[name].map(str) if name else pd.Series(numbered_ids(source, len(frame)))
    items = unique_ids(ids, source)
    items["prompt"] = frame[stem]
    if context:
        both = frame[[context, stem]].map(lambda one: isinstance(one, str) and one.strip() != "")
        joined = frame[context].astype(str) + "\n" + frame[stem].astype(str)
        items["prompt"] = frame[stem].where(~both.all(axis=1), joined)
    items["choices"] = [texts for _, texts in labelled]
    # what the keys of all items can be; an item that cannot be asked is left out below
    asked = ~absent & (pd.Series(frames.choice_flaws(items["choices"])) == "").to_numpy()
    found = [_readings(keys[i], *labelled[i]) for i in np.flatnonzero(asked)]
    n_of_way: Counter[str] = Counter(way for one in found for way in one)
    # labels in a list of choices name them; numbers beside a list count from 0, as in MMLU
    has_labels = not label_of and any(labels for labels, _ in labelled)
    if has_labels and n_of_way["label"] == len(found):
        n_of_way = Counter(label=len(found))
    elif has_labels:  # "B" is no second choice where labels are not A, B ...
        n_of_way = Counter({way: n_of_way[way] for way in ("label", "text")})
    elif not label_of and given.map(lambda one: isinstance(one, int | float)).all():
        n_of_way = Counter({"position from 0": n_of_way["position from 0"]})
    likely = max(n_of_way, default="", key=lambda way: n_of_way[way])
    wrong = [likely not in one for one in found]
    said = (
        f"of {source} have a key in {key!r} that is none of their choices; correct or remove them"
    )
    frames.refuse("items", items["item_id"][asked][wrong], said)
    way_of_answers: dict[tuple[int, ...], str] = {}
    for way in n_of_way:
        if all(way in one for one in found):
            way_of_answers.setdefault(tuple(one[way] for one in found), way)
    if len(way_of_answers) > 1:
        raise DataError(
            f"the keys {list(map(str, given[:4]))} in {key!r} of {source} may each be the right "
            f"choice's {' or '.join(way_of_answers.values())}; {IN_FULL}"
        )
    right = pd.Series([one[likely] for one in found], index=items.index[asked], dtype=int)
    items["answer"] = right.reindex(items.index, fill_value=0)
    used = {stem, key, context, listed, name, *label_of, *items}
    others = frame[[column for column in frame if column not in used]]
    items = finish(pd.concat([items, others], axis=1), pd.Series(absent))
    n_choices = items["choices"].map(len)
    sizes = " to ".join(map(str, sorted({n_choices.min(), n_choices.max()})))
    recognised = f"prompt {' and '.join(repr(n) for n in (context, stem) if n)}, choices '{listed}'"
    recognised += f" ({sizes} an item), right answer {key!r} (its {likely})"
    if len(others.columns):
        recognised += f"; other columns: {', '.join(others)}"
    items.attrs["recognised"] = recognised
    return items


def records_of_table(file: Path, encoding: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table; one without a header ends in letters of the right choices."""
    if file.suffix.lower() == ".parquet":
        return json.loads(pd.read_parquet(file).to_json(orient="records", force_ascii=False))
    try:
        cells = read_table(file, encoding, spaces=True).cells.fillna("")
    except (ValueError, OSError) as error:
        raise DataError(f"{file} cannot be read as a table ({error})") from error
    n_choices = cells.shape[1] - 2
    letters = [*ascii_uppercase[: max(n_choices, 0)]]
    if n_choices > 1 and cells.columns[-1] in letters and cells.iloc[:, -1].isin(letters).all():
        cells = with_header_as_row(cells, ["question", *letters, "answer"])
    return cells.to_dict("records")
