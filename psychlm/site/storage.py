"""The reports on disk: read even where they are broken, written so that no half of one ever stands in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from psychlm.data import atomic_write
from psychlm.site.collection import NotebookError

# the types of the fields that the runner and the pages rely on
TEXT, COUNT = str | None, float | int | None
REPORT = {
    "status": str,
    "numbers": list,
    "provenance": dict,
    "error": dict | None,
    "headline": dict | None,
    "seconds": COUNT,
    "profile": TEXT,
    "title": TEXT,
    "question": TEXT,
    "finished": TEXT,
}
NUMBER = {"key": str, "unit": TEXT, "source": TEXT, "data": TEXT}
ERROR = {"message": TEXT, "cell": int | None}
STAMP = {
    "data": dict | None,
    "parameters": dict | None,
    "versions": dict | None,
    "profile": TEXT,
    "seconds": COUNT,
}


class RunLockedError(NotebookError):
    """Another run is at work on the same reports."""


def read(file: Path) -> dict[str, Any] | None:
    """Return a report, or None where there is none; one that is truncated or no report has the status "broken"."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return _broken(file, f"{type(error).__name__}: {error}")
    wrong = _misshapen(content, REPORT) or next(
        filter(None, (_misshapen(n, NUMBER) for n in content["numbers"])), None
    )
    wrong = (
        wrong
        or _misshapen(content.get("error") or {}, ERROR)
        or _misshapen(content["provenance"], STAMP)
    )
    if wrong:
        return _broken(file, f"it is JSON, but no report: {wrong}")
    return {**content, "notebook": file.stem}


def _misshapen(content: Any, shape: Mapping[str, Any]) -> str | None:
    """Say which field is not of the type that the rest of this room relies on."""
    if not isinstance(content, dict):
        return f"{content!r:.40} stands where an object should"
    for field, kind in shape.items():
        if not isinstance(content.get(field), kind):
            return f"its {field} is {content.get(field)!r:.40}"
    return None


def _broken(file: Path, why: str) -> dict[str, Any]:
    return {
        "notebook": file.stem,
        "status": "broken",
        "error": {"message": why},
        "numbers": [],
        "provenance": {},
    }


def write(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name and move it into place: a reader sees the old one or the new one, whole."""
    with atomic_write(file) as fresh:
        fresh.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder of reports for one run; the lock ends with the process, however that ends.

    Raises
    ------
    RunLockedError
        If another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise RunLockedError(
            f"another run is at work on {folder}; wait until it ends, or give this one a folder of its own: "
            "PSYCHLM_REPORTS=some/folder psychlm run ..."
        ) from None
