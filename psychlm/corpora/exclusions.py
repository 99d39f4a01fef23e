"""Words before they are modelled: predictors of previous words, and named, counted exclusions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.frames import FrameError


def log_frequency(words: pd.Series, counts: Mapping[str, float]) -> pd.Series:
    """Return the natural logarithm of the count of each word, bare and in lower case; NaN where it has none.

    >>> log_frequency(pd.Series(["The", "sea,", "selkie"]), {"the": 1, "sea": 1}).tolist()
    [0.0, 0.0, nan]
    """
    bare = words.str.replace(r"^[\W_]+|[\W_]+$", "", regex=True).str.lower()
    return np.log(bare.map(counts).where(lambda count: count > 0)).rename("log_frequency")


def add_lags(words: pd.DataFrame, columns: Sequence[str], lags: int = 1) -> pd.DataFrame:
    """Add columns with the values of previous words: ``prev_length_chars``, ``prev2_length_chars`` ...

    A lag never crosses a text or a gap in ``word_id``: where there is no such word the value is missing.

    Parameters
    ----------
    words : DataFrame
        A words frame, whole texts (add lags before words are left out).
    """
    words = frames.check_words(words, whole_texts=False)
    ordered = words.sort_values(["text_id", "word_id"], kind="stable")
    added: dict[str, pd.Series] = {}
    for lag in range(1, lags + 1):
        before = ordered[["text_id", "word_id"]].shift(lag)
        follows = (before["text_id"] == ordered["text_id"]) & (
            before["word_id"] == ordered["word_id"] - lag
        )
        prefix = "prev_" if lag == 1 else f"prev{lag}_"
        added |= {prefix + name: ordered[name].shift(lag).where(follows) for name in columns}
    return words.assign(**added)


Step = Callable[[pd.DataFrame], pd.Series]


def _edges(of: list[str], last: bool) -> Step:
    def flag(words: pd.DataFrame) -> pd.Series:
        if not set(of) <= set(words.columns):
            return pd.Series(False, index=words.index)
        edge = words.groupby(of)["word_id"].transform("max" if last else "min")
        return words["word_id"] == edge

    return flag


def _no_frequency(words: pd.DataFrame) -> pd.Series:
    return (
        words["log_frequency"].isna()
        if "log_frequency" in words
        else pd.Series(False, index=words.index)
    )


GOODKIND_BICKNELL: dict[str, Step] = {
    "first word of a text": _edges(["text_id"], last=False),
    "last word of a text": _edges(["text_id"], last=True),
    "first word of a line": _edges(["text_id", "line"], last=False),
    "last word of a line": _edges(["text_id", "line"], last=True),
    "before punctuation": lambda words: words["word"].str.contains(r"[\W_]$"),
    "not alphabetic": lambda words: ~words["word"].str.fullmatch(r"[\W_]*[^\W\d_]+[\W_]*"),
    "no frequency": _no_frequency,
}
"""The exclusions of Goodkind & Bicknell (2018) by name; steps on lines or frequencies apply where those are columns."""


def exclude(
    words: pd.DataFrame, steps: Mapping[str, Step] = GOODKIND_BICKNELL, *, and_the_next: bool = True
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Leave words out by named steps and count what each removed.

    Parameters
    ----------
    words : DataFrame
        A words frame, whole texts.
    steps : dict of name -> function
        Each takes the words and returns a boolean Series: which to leave out.
    and_the_next : bool
        Also leave out the word after each of these (its predictors hold the excluded word's).

    Returns
    -------
    DataFrame, DataFrame
        The words that are left; and a table, one row a step: ``flagged`` (words that the step concerns), ``removed``
        (those not removed by a step before it) and ``left``.
    """
    words = frames.check_words(words, whole_texts=False)
    out = pd.Series(False, index=words.index)
    flags = {name: step(words).astype(bool) for name, step in steps.items()}
    if and_the_next:
        marked = words[["text_id", "word_id"]].assign(
            out=np.logical_or.reduce(list(flags.values()))
        )
        flags["after one of these"] = add_lags(marked.assign(word="-"), ["out"])["prev_out"].eq(
            True
        )
    rows = []
    for name, flag in flags.items():
        removed = int((flag & ~out).sum())
        out |= flag
        rows.append(
            {
                "step": name,
                "flagged": int(flag.sum()),
                "removed": removed,
                "left": int((~out).sum()),
            }
        )
    return words[~out], pd.DataFrame(rows)


def join(readings: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """Return the readings of the given words, with the words' columns beside them."""
    shared = [
        name
        for name in words.columns
        if name in readings.columns and name not in ("text_id", "word_id")
    ]
    if shared:
        raise FrameError(
            f"columns {shared} stand in both the readings and the words; rename or drop them in one"
        )
    return readings.merge(words, on=["text_id", "word_id"], how="inner", validate="many_to_one")
