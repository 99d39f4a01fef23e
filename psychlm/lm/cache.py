"""Results on disk: what a model said of a text is asked once.

One SQLite file in the user's cache folder (or ``$PSYCHLM_CACHE``) holds a row per text. Its key is the SHA-256 of
everything that the numbers depend on: model, revision, number type, text, words and options. Rows are written as soon
as a text is done, so an interrupted run resumes where it stopped. A cache that cannot be used costs a warning and time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SCHEME = 1  # raised whenever the numbers of a text would change
KEYS_AT_ONCE = 500  # SQLite takes so many parameters at least

Scores = NDArray[np.float64]


def folder() -> Path:
    """Return the cache folder: ``$PSYCHLM_CACHE``, or the platform's."""
    if "PSYCHLM_CACHE" in os.environ:
        return Path(os.environ["PSYCHLM_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("psychlm"))


def key(identity: str, text: str, places: NDArray[np.int64]) -> str:
    """Return the key of a text read by a model under some options (``identity``), its words at these places."""
    digest = hashlib.sha256(f"{SCHEME}\0{identity}\0{text}\0".encode("utf-8", "surrogatepass"))
    digest.update(places.tobytes())
    return digest.hexdigest()


class ResultStore:
    """The cache, open for one call; every failure turns it off with a warning and never loses a result."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder() / "surprisal.sqlite"
        self._connection: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=30)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, scores BLOB, reasons TEXT)"
            )
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._connection = None
        warnings.warn(
            f"results are not cached: {self.path} cannot be used ({error}); delete it, or set PSYCHLM_CACHE to a "
            "folder that can be written",
            RuntimeWarning,
            stacklevel=4,
        )

    def get(self, keys: list[str], n_columns: int) -> dict[str, tuple[Scores, dict[int, str]]]:
        """Return what is stored under these keys: scores, shape (n_words, n_columns), and words without a value."""
        found: dict[str, tuple[Scores, dict[int, str]]] = {}
        if self._connection is None:
            return found
        try:
            for first in range(0, len(keys), KEYS_AT_ONCE):
                some = keys[first : first + KEYS_AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, scores, reasons FROM results WHERE key IN ({marks})"
                for name, scores, reasons in self._connection.execute(query, some):
                    values = np.frombuffer(zlib.decompress(scores)).reshape(-1, n_columns)
                    found[name] = (
                        values,
                        {int(word): why for word, why in json.loads(reasons).items()},
                    )
        except (sqlite3.Error, zlib.error, ValueError) as error:
            self._give_up(error)
            return {}
        return found

    def put(self, results: Iterable[tuple[str, Scores, dict[int, str]]]) -> None:
        """Store results, and have them on disk before anything else happens."""
        if self._connection is None:
            return
        rows = [
            (name, zlib.compress(scores.tobytes(), 1), json.dumps(reasons))
            for name, scores, reasons in results
        ]
        try:
            with self._connection:
                self._connection.executemany(
                    "INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows
                )
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
