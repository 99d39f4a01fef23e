"""Fits by the native backend and by a program of R; surprisals joined to readings."""

from typing import Any

import pandas as pd

from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora


def both(frame: pd.DataFrame, formula: str, other: str = "mgcv", **options: Any) -> list:
    """Fit a model natively and by a program of R."""
    return [reading.fit(frame, formula, backend=b, **options) for b in ("native", other)]


def with_bits(readings: pd.DataFrame, surprisals: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Add language models' surprisals of each word, and of the word before it, to readings."""
    bits = surprisals.rename(columns=names).assign(word="w")
    added = [*names.values(), *(f"prev_{name}" for name in names.values())]
    bits = corpora.add_lags(bits, list(names.values()))[["text_id", "word_id", *added]]
    return corpora.join(readings, bits)
