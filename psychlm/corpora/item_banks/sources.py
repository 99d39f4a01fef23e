"""Where items are read from: registered datasets, files, and members of archives; and what is left out of them."""

from __future__ import annotations

import bz2
import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm import data, frames
from psychlm.data import DataError, DataMissingError

NO_LABEL = "no gold label"
DUPLICATES = "duplicate choices"
EMPTY = "an empty choice"
ENDINGS = (
    ".jsonl",
    ".json",
    ".tsv",
    ".csv",
    ".txt",
    ".lst",
    ".bz2",
    ".zip",
)  # of files; no dataset's name has one

Source = str | Path


def stem(source: Source) -> str:
    """Return the name of a source without its folders and endings: what its items are named after."""
    return (
        str(source).replace("#", "/").rsplit("/", 1)[-1].removesuffix(".bz2").rsplit(".jsonl", 1)[0]
    )


def labels_of(source: Source) -> str:
    """Return the source of the gold labels that stand in a file of their own beside the items (AI2's layout)."""
    text = str(source)
    return (
        text.removesuffix(".jsonl") + "-labels.lst" if text.endswith(".jsonl") else f"{text}-labels"
    )


def lines(source: Source) -> list[str]:
    """Return the lines of a source, without their ends and without blank ones.

    Raises
    ------
    DataMissingError
        If it is neither a file nor a dataset that can be had.
    DataError
        If an archive does not hold the member, or the text is not UTF-8.
    """
    name, _, member = str(source).partition("#")
    file = Path(name).expanduser()
    if not file.is_file():
        if isinstance(source, Path) or file.is_absolute() or file.suffix in ENDINGS:
            raise DataMissingError(
                f"there is no file {file}; name one, or a dataset (`psychlm data list`)"
            )
        file = data.path(name)
    try:
        text = _bytes(file, member).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def _bytes(file: Path, member: str) -> bytes:
    if file.suffix == ".bz2":
        return bz2.decompress(file.read_bytes())
    if not zipfile.is_zipfile(file):
        return file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        members = [name for name in archive.namelist() if not name.startswith("__MACOSX")]
        found = [name for name in members if f"/{name}".endswith(f"/{member}")] if member else []
        if len(found) != 1:
            raise DataError(
                f"{file} holds {len(found)} files named {member!r}; name one of {members[:12]} after a #, as in "
                f"'{file}#{next((name for name in members if not name.endswith('/')), '')}'"
            )
        return archive.read(found[0])


def records(source: Source, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the objects of a JSONL source (or of one JSON list).

    Parameters
    ----------
    without : collection of str
        Keys that are dropped as soon as they are read: the parses of half a million pairs fill memory.

    Raises
    ------
    DataError
        If a line is no JSON object; the message names it.
    """
    text = lines(source)
    if text and text[0].lstrip().startswith("["):
        return list(json.loads("\n".join(text)))
    found = []
    for number, line in enumerate(text, start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"line {number} of {source} is no JSON ({error.msg}: {line[:60]!r})"
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"line {number} of {source} is no JSON object, but {line[:60]!r}")
        found.append(
            {name: value for name, value in record.items() if name not in without}
            if without
            else record
        )
    return found


def table(rows: list[dict[str, Any]], needed: list[str], source: Source) -> pd.DataFrame:
    """Return records as a frame, which must have some columns.

    Raises
    ------
    DataError
        If a column is missing: the file has another layout.
    """
    frame = pd.DataFrame(rows)
    missing = [column for column in needed if column not in frame.columns]
    if missing:
        raise DataError(
            f"{source} has no {missing}, but {list(frame.columns)[:12]}: another layout than this reader's"
        )
    return frame


def numbered(source: Source, n: int) -> list[str]:
    """Return ids for the items of a source that has none: its name and the line, counted from 1."""
    return [f"{stem(source)}-{i}" for i in range(1, n + 1)]


def unique_ids(given: pd.Series, source: Source) -> pd.DataFrame:
    """Return the ids that a source gives, or where they are not unique, its lines, with its own as ``source_id``."""
    if given.is_unique:
        return pd.DataFrame({"item_id": given.astype(str)})
    return pd.DataFrame({"item_id": numbered(source, len(given)), "source_id": given.astype(str)})


def finished(items: pd.DataFrame, left_out: Mapping[str, pd.Series] | None = None) -> pd.DataFrame:
    """Leave out what cannot be asked, count it in ``attrs["left_out"]``, and check the rest.

    Parameters
    ----------
    left_out : mapping of reason to bool Series
        Rows to leave out beside those with duplicate or empty choices; each is counted once, for the first reason.
    """
    choices = items["choices"].map(tuple)
    kinds, kept = pd.factorize(choices)
    stripped = [[str(choice).strip() for choice in one] for one in kept]
    flaws = dict(left_out or {}) | {
        EMPTY: pd.Series([not all(one) for one in stripped], dtype=bool)[kinds].set_axis(
            items.index
        ),
        DUPLICATES: pd.Series([len(set(one)) < len(one) for one in stripped], dtype=bool)[
            kinds
        ].set_axis(items.index),
    }
    counts, gone = {}, pd.Series(False, index=items.index)
    for reason, rows in flaws.items():
        counts[reason] = int((rows & ~gone).sum())
        gone |= rows
    checked = frames.check_items(items[~gone].reset_index(drop=True))
    checked.attrs["left_out"] = {reason: count for reason, count in counts.items() if count}
    return checked
