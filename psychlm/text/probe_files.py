"""Probes on disk: JSON lines in the layout of the ARC questions, one folder a probe, with a manifest beside them.

A line is ``{"id", "question": {"stem", "choices": [{"text", "label"}]}, "answerKey", "notes"}``. Tools that read ARC
ignore ``notes``, which holds every further column. What the whole folder says about itself (source and version, seed,
recipe, sizes, what was left out) stands in ``manifest.json`` and not in a first line of each file: a reader of ARC
expects a question on every line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm.frames import FrameError, check_items

LABELS = "ABCDEFGHIJ"
_OWN = ("item_id", "prompt", "choices", "answer")


def write(items: pd.DataFrame, folder: str | Path, header: dict[str, Any]) -> list[Path]:
    """Write probes to ``folder/<probe>/<split>.jsonl`` and what they are to ``folder/manifest.json``.

    Parameters
    ----------
    items : DataFrame
        An items frame with ``probe`` and ``split``.
    header : dict
        What the manifest says: source, version, seed. Numbers of questions are added.

    Returns
    -------
    list of Path
        The files written, the manifest first.

    Raises
    ------
    FrameError
        If the items break their contract.
    """
    items, folder = check_items(items), Path(folder)
    missing = [column for column in ("probe", "split") if column not in items.columns]
    if missing:
        raise FrameError(f"the items lack {missing}, which name the files; probes have them as they are built")
    written: dict[str, int] = {}
    for (probe, split), part in items.groupby(["probe", "split"], sort=True, observed=True):
        file = folder / str(probe) / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in to_arc(part)), encoding="utf-8")
        written[file.relative_to(folder).as_posix()] = len(part)
    manifest = folder / "manifest.json"
    content = {**header, "layout": "ARC", "questions": written}
    manifest.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [manifest, *(folder / name for name in written)]


def to_arc(items: pd.DataFrame) -> list[str]:
    """Return each item as one line of JSON in the layout of ARC; further columns go to ``notes``."""
    others = [column for column in items.columns if column not in _OWN]
    notes = items[others].to_dict("records")
    lines = []
    for item_id, stem, choices, answer, note in zip(*(items[column] for column in _OWN), notes, strict=True):
        question = {"stem": stem, "choices": [{"text": t, "label": k} for t, k in zip(choices, LABELS, strict=False)]}
        record = {"id": item_id, "question": question, "answerKey": LABELS[answer], "notes": note}
        lines.append(json.dumps(record, ensure_ascii=False))
    return lines


def read(path: str | Path) -> pd.DataFrame:
    """Read one file in the layout of ARC, or a folder of them, as an items frame.

    Labels may be letters or numbers, from 0 or from 1: an item's own list of labels says which choice the key is.

    Raises
    ------
    FrameError
        If a line is no question; the message names file and line.
    """
    path = Path(path)
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise FrameError(f"{path} holds no .jsonl file; `psychlm probes build wordnet --out {path}` writes some")
    rows = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise FrameError(f"{file} is not there") from None
        except UnicodeDecodeError as error:
            raise FrameError(
                f"{file} is not text in UTF-8 ({error}); write it anew, or convert it with iconv"
            ) from error
        rows += [_question(line, file, at) for at, line in enumerate(lines, start=1) if line.strip()]
    return check_items(pd.DataFrame(rows))


def _question(line: str, file: Path, at: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
        choices = record["question"]["choices"]
        labels = [str(choice["label"]) for choice in choices]
        own = {
            "item_id": str(record["id"]),
            "prompt": record["question"]["stem"],
            "choices": [choice["text"] for choice in choices],
            "answer": labels.index(str(record["answerKey"])),
        }
        return own | record.get("notes", {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(
            f"{file}, line {at}, is no question in the layout of ARC ({type(error).__name__}: {error}); it needs id, "
            "question.stem, question.choices with text and label, and an answerKey among the labels"
        ) from error
