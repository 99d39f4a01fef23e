"""Probes on disk: JSON lines in the layout of the ARC questions, one folder a probe, with a manifest beside them.

What the whole folder says about itself (source and version, seed, recipe, sizes, what was left out) stands in
``manifest.json`` and not in a first line of each file: a reader of ARC expects a question on every line. The columns of
a question (concept, hops, distractors ...) stand beside ARC's own in its line, where other tools pass over them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm.corpora import read_arc, write_arc
from psychlm.frames import FrameError, check_items

MANIFEST = "manifest.json"


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
        raise FrameError(
            f"the items lack {missing}, which name the files; probes have them as they are built"
        )
    written: dict[str, int] = {}
    for (probe, split), part in items.groupby(["probe", "split"], sort=True, observed=True):
        file = write_arc(part, folder / str(probe) / f"{split}.jsonl")
        written[file.relative_to(folder).as_posix()] = len(part)
    manifest = folder / MANIFEST
    content = {**header, "layout": "ARC", "questions": written}
    manifest.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [manifest, *(folder / name for name in written)]


def read(folder: str | Path) -> pd.DataFrame:
    """Read all probes of a folder that :func:`write` wrote, as one items frame.

    Raises
    ------
    FrameError
        If it holds none, or a file is no longer what the manifest says.
    DataError
        If a file is broken.
    """
    folder = Path(folder)
    try:
        counts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["questions"]
    except (OSError, ValueError, KeyError) as error:
        raise FrameError(
            f"{folder} has no sound {MANIFEST} ({type(error).__name__}); `psychlm probes build wordnet --out {folder}` "
            "writes one, and text.items.read_arc reads a single file"
        ) from error
    parts = {name: read_arc(folder / name) for name in counts}
    short = [
        f"{name} ({len(parts[name])} of {n})" for name, n in counts.items() if len(parts[name]) != n
    ]
    if short:
        raise FrameError(
            f"files in {folder} hold other numbers of questions than its manifest says: {short}"
        )
    return check_items(pd.concat(parts.values(), ignore_index=True))
