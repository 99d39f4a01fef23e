"""Keep results on disk, so that a text or an item is scored, or a chunk of a crowd trained, once.

One SQLite file in the user's cache folder (or ``$PSYCHLM_CACHE``), or in a folder of a crowd, holds
a row per text, item or chunk. Its key is the SHA-256 of everything that the numbers depend on:
model, revision, number type, text, words and options. Rows are written as soon as they are done, so
an interrupted run resumes where it stopped. A cache that cannot be used costs a warning and time.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
import zlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psychlm.data import cache_folder as folder
from psychlm.data import digest

SCHEME = 3  # raised whenever the numbers of a text would change
UNUSABLE = (OSError, sqlite3.Error)  # raised by files that cannot be used
DAMAGED = (zlib.error, ValueError, TypeError, RecursionError)  # raised by damaged rows

Scores = NDArray[np.float64]


def converted_models() -> Path:
    """Return the folder of models that were converted from GGUF files, each under its SHA-256."""
    return folder() / "models"


def key(identity: str, text: str = "", places: NDArray[np.int64] | None = None) -> str:
    """Return the key of a text with words at these places, scored as ``identity`` says."""
    return digest([f"{SCHEME}\0{identity}\0{text}\0", b"" if places is None else places.tobytes()])


class ResultStore(AbstractContextManager["ResultStore"]):
    """The cache, or that in another folder, open for one call (a context); a failure turns it off
    with a warning, as not ``on``."""

    def __init__(self, on: bool = True, place: Path | None = None) -> None:
        self.path = (place or folder()) / "results.sqlite"
        self._connection: sqlite3.Connection | None = None
        if not on:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=30)
            columns = "key TEXT PRIMARY KEY, scores BLOB, reasons TEXT"
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS results ({columns})")
        except UNUSABLE as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Turn the cache off and warn."""
        self.__exit__()
        said = f"results are not cached: {self.path} cannot be used ({error}); delete it, or name "
        said += "a folder that can be written (PSYCHLM_CACHE)"
        warnings.warn(said, RuntimeWarning, stacklevel=4)

    def get(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[Scores, dict[str, Any]]]:
        """Return the scores stored under keys, in their ``shapes``, and what is beside them: words
        without a value, or columns of members. Damaged rows are left out, with a warning."""
        results: dict[str, tuple[Scores, dict[str, Any]]] = {}
        if self._connection is None:
            return results
        query = "SELECT scores, reasons FROM results WHERE key = ?"
        try:
            for name, shape in shapes.items():
                for blob, text in self._connection.execute(query, [name]):
                    try:
                        scores = np.frombuffer(zlib.decompress(blob)).reshape(shape)
                        results[name] = scores, dict(json.loads(text))
                    except DAMAGED as error:
                        said = f"damaged results in {self.path} are computed again ({error})"
                        warnings.warn(said, RuntimeWarning, stacklevel=3)
        except UNUSABLE as error:
            self._give_up(error)
            return {}
        return results

    def put(self, results: Iterable[tuple[str, Scores, Mapping[Any, Any]]]) -> None:
        """Store results, and have them on disk before anything else happens."""
        if self._connection is None:
            return
        rows = [(name, zlib.compress(s.tobytes(), 1), json.dumps(b)) for name, s, b in results]
        insert = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
        try:
            with self._connection:
                self._connection.executemany(insert, rows)
        except UNUSABLE as error:
            self._give_up(error)

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
