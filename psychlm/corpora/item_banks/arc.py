"""The layout of ARC (Clark et al. 2018) and OpenBookQA (Mihaylov et al. 2018): a stem, labelled choices, a key."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.corpora.item_banks.sources import (
    NO_LABEL,
    Source,
    finished,
    records,
    table,
    unique_ids,
)
from psychlm.data import atomic_write
from psychlm.frames import FrameError

_OWN = ["item_id", "prompt", "choices", "answer"]


def read_arc(source: Source) -> pd.DataFrame:
    """Read items in ARC's layout.

    Parameters
    ----------
    source : str or Path
        JSONL: ``"mcqa/arc/ARC-Easy-Dev"``, ``"mcqa/openbookqa/test"``, or a file, such as :func:`write_arc` writes.

    Returns
    -------
    DataFrame
        Items; whatever else a record holds becomes a column. Items without a key, or with the same choice twice, are
        left out, and counted.

    Raises
    ------
    DataError
        If the source has another layout.
    FrameError
        If a key is no label of its item, or two choices have the same label.
    """
    frame = table(records(source), ["id", "question"], source)
    asked = frame["question"].tolist()
    labels = [[str(choice["label"]) for choice in question["choices"]] for question in asked]
    keys = (
        frame["answerKey"].fillna("").astype(str)
        if "answerKey" in frame
        else pd.Series("", index=frame.index)
    )
    for what, wrong in (
        (
            "give two choices the same label, so that both may be right",
            [len(set(own)) < len(own) for own in labels],
        ),
        (
            "have a key that labels none of their choices",
            [k != "" and k not in own for k, own in zip(keys, labels)],
        ),  # noqa: B905
    ):
        if any(wrong):
            names = frame["id"][wrong].tolist()
            raise FrameError(
                f"items {names[:5]} ({len(names)} in {source}) {what}; mend or leave them out"
            )
    items = unique_ids(frame["id"], source).assign(
        prompt=[question["stem"] for question in asked],
        choices=[[choice["text"] for choice in question["choices"]] for question in asked],
        answer=[own.index(key) if key else 0 for key, own in zip(keys, labels, strict=True)],
    )
    others = frame.drop(columns=["id", "question", "answerKey", "item_id"], errors="ignore")
    return finished(
        pd.concat([items, others.set_axis(items.index)], axis=1), {NO_LABEL: keys == ""}
    )


def write_arc(items: pd.DataFrame, path: str | Path) -> Path:
    """Write items in ARC's layout, one JSON object a line; columns of their own stand beside ARC's.

    The file is there whole or not at all. Choices are labelled A to Z, or with numbers where they are more.
    """
    items = frames.check_items(items)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as out:
        for item in items.to_dict("records"):
            out.write(json.dumps(_record(item), ensure_ascii=False, default=_plain) + "\n")
    return path


def _record(item: dict[Any, Any]) -> dict[str, Any]:
    n = len(item["choices"])
    labels = ascii_uppercase if n <= len(ascii_uppercase) else [str(i + 1) for i in range(n)]
    choices = [
        {"text": text, "label": label} for text, label in zip(item["choices"], labels, strict=False)
    ]
    record = {"id": item["item_id"], "question": {"stem": item["prompt"], "choices": choices}}
    record["answerKey"] = labels[item["answer"]]
    missing = {name for name, value in item.items() if np.isscalar(value) and pd.isna(value)}
    return record | {
        name: value for name, value in item.items() if name not in _OWN and name not in missing
    }


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as JSON knows them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(
        f"a column holds a {type(value).__name__}, which JSON has no form for; drop it or turn it to text"
    )
