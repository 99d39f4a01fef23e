"""Predictors of reading times, and named exclusions of words; part of
:mod:`psychlm.corpora.reading_times`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.frames import FrameError


def log_frequency(words: pd.Series, counts: Mapping[str, float]) -> pd.Series:
    """Return the natural logarithm of the count of each word, bare and in lower case.

    Words without a count have NaN. Typographic apostrophes and decomposed accents are looked up in
    either form.

    >>> log_frequency(pd.Series(["The", "sea,", "selkie"]), {"the": 1, "sea": 1}).tolist()
    [0.0, 0.0, nan]
    >>> log_frequency(pd.Series(["don’t"]), {"don't": 1}).tolist()
    [0.0]
    """
    bare = words.str.normalize("NFC").str.replace(r"^[\W_]+|[\W_]+$", "", regex=True).str.lower()
    straight = bare.str.replace(r"[’‘ʼ`´]", "'", regex=True)
    count = bare.map(counts)
    for form in (straight, straight.str.replace("'", "’")):
        count = count.fillna(form.map(counts))
    return np.log(count.where(count > 0)).rename("log_frequency")


def add_lags(words: pd.DataFrame, columns: Sequence[str], lags: int = 1) -> pd.DataFrame:
    """Add columns with the values of previous words: ``prev_length_chars``, ``prev2_...``, ...

    A lag never crosses a text or a gap in ``word_id``: where there is no such word the value is
    missing.

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
        follows = before["text_id"] == ordered["text_id"]
        follows &= before["word_id"] == ordered["word_id"] - lag
        prefix = "prev_" if lag == 1 else f"prev{lag}_"
        added |= {prefix + name: ordered[name].shift(lag).where(follows) for name in columns}
    return words.assign(**added)


def is_edge(words: pd.DataFrame, groups: list[str], edge: str) -> pd.Series:
    """Return which words are the first (``edge="min"``) or last ("max") of each group.

    None is where a column of ``groups`` is absent.
    """
    if not set(groups) <= set(words.columns):
        return pd.Series(False, index=words.index)
    return words["word_id"] == words.groupby(groups)["word_id"].transform(edge)


Step = Callable[[pd.DataFrame], pd.Series]
GOODKIND_BICKNELL: dict[str, Step] = {
    "first word of a text": lambda words: is_edge(words, ["text_id"], "min"),
    "last word of a text": lambda words: is_edge(words, ["text_id"], "max"),
    "first word of a line": lambda words: is_edge(words, ["text_id", "line"], "min"),
    "last word of a line": lambda words: is_edge(words, ["text_id", "line"], "max"),
    "before punctuation": lambda words: words["word"].str.contains(r"[\W_]$"),
    "not alphabetic": lambda words: ~words["word"].str.fullmatch(r"[\W_]*[^\W\d_]+[\W_]*"),
    "no frequency": lambda words: words.get("log_frequency", words["word_id"]).isna(),
}
"""The exclusions of Goodkind & Bicknell (2018); those on lines or frequencies need such columns."""


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
        The words that are left; and a table, one row per step: ``flagged`` (words that the step
        concerns), ``removed`` (those not removed by a step before it) and ``left``.
    """
    words = frames.check_words(words, whole_texts=False)
    flags = {name: step(words).astype(bool) for name, step in steps.items()}
    if and_the_next:
        marked = words.assign(out=np.logical_or.reduce(list(flags.values())))
        flags["after one of these"] = add_lags(marked, ["out"])["prev_out"].eq(True)
    out, rows = pd.Series(False, index=words.index), []
    for name, flag in flags.items():
        removed = int((flag & ~out).sum())
        out |= flag
        rows.append((name, int(flag.sum()), removed, int((~out).sum())))
    return words[~out], pd.DataFrame(rows, columns=["step", "flagged", "removed", "left"])


def join(readings: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """Return the readings of the given words, with the words' columns beside them."""
    keys = ["text_id", "word_id"]
    shared = [name for name in words.columns if name in readings.columns and name not in keys]
    if shared:
        raise FrameError(
            f"columns {shared} are in both the readings and the words; rename or drop them in one"
        )
    return readings.merge(words, on=keys, how="inner", validate="many_to_one")
