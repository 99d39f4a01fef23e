"""The reports on disk: read even where they are broken, written so that no half of one ever stands in its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from psychlm.notebooks.collection import NotebookError


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
    if not isinstance(content, dict) or not isinstance(content.get("status"), str):
        return _broken(file, "it is JSON, but no report: it has no status")
    numbers, provenance = content.get("numbers", []), content.get("provenance", {})
    if not isinstance(provenance, dict) or not isinstance(numbers, list):
        return _broken(file, "its provenance or its numbers are not of the form that psychlm.report writes")
    if not all(isinstance(number, dict) and isinstance(number.get("key"), str) for number in numbers):
        return _broken(file, "one of its numbers has no key")
    return {**content, "notebook": file.stem, "numbers": numbers, "provenance": provenance}


def _broken(file: Path, why: str) -> dict[str, Any]:
    return {"notebook": file.stem, "status": "broken", "error": {"message": why}, "numbers": [], "provenance": {}}


def write(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name and move it into place: a reader sees the old one or the new one, whole."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)


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
