"""Words frames for tests."""

from __future__ import annotations

import pandas as pd


def words_frame(texts: dict[str, str]) -> pd.DataFrame:
    """Return a words frame of texts that are split at white space."""
    rows = [
        (name, i, word) for name, text in texts.items() for i, word in enumerate(text.split(), 1)
    ]
    return pd.DataFrame(rows, columns=["text_id", "word_id", "word"])
