"""Word frequencies: from counts of one's own, or from the lists of wordfreq."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import regex

from psychlm.frames import refuse

__all__ = ["language_of", "log_frequency"]


def log_frequency(
    words: pd.Series, counts: Mapping[str, float] | None = None, *, language: str = ""
) -> pd.Series:
    """Return the logarithm of the frequency of each word, bare and in lower case.

    With ``counts`` it is the natural logarithm of a word's count; with ``language`` it is on the
    Zipf scale, the base-10 logarithm of the frequency per billion words (van Heuven et al. 2014),
    from the package wordfreq (Speer 2022). Words without a count have NaN. Neither case, nor the
    form of apostrophes and accents matters: the counts of "The" and "the" are added.

    Parameters
    ----------
    words : Series of str
    counts : mapping, optional
        Counts of one's own, by word.
    language : str
        One of wordfreq's codes, as ``"de"``; see ``wordfreq.available_languages()``.

    Examples
    --------
    >>> log_frequency(pd.Series(["The", "sea,", "selkie"]), {"the": 1, "sea": 1}).tolist()
    [0.0, 0.0, nan]
    >>> log_frequency(pd.Series(["Haus.", "Hausxyz"]), language="de").round(1).tolist()
    [5.4, nan]
    """
    if (counts is None) == (not language):
        raise ValueError("give either counts={word: count} or language='de'")

    def lower(text: pd.Series) -> pd.Series:
        apostrophes = text.str.normalize("NFC").str.replace(r"[’‘ʼ`´]", "'", regex=True)
        return apostrophes.str.lower()

    # regex's \w holds combining marks, which belong to the letter before them
    edges = regex.compile(r"^[\W_]+|[\W_]+$")
    bare = lower(words).map(lambda word: edges.sub("", word), na_action="ignore")
    if language:
        import wordfreq

        known = wordfreq.available_languages("best")
        if language not in known:
            raise ValueError(f"wordfreq has no language {language!r}; it has {sorted(known)}")
        try:
            scale = {w: wordfreq.zipf_frequency(w, language) for w in bare.dropna().unique()}
        except ModuleNotFoundError as error:  # Chinese, Japanese and Korean are cut into words
            raise ValueError(
                f"wordfreq cuts {language!r} into words by a package that is not here: pip install "
                f"'wordfreq[cjk]' ({error})"
            ) from None
        zipf = bare.map(scale, na_action="ignore").astype(float)
        return zipf.where(zipf > 0).rename("log_frequency")
    table = pd.Series(counts, dtype=float)
    twice = table.index[table.index.duplicated()]
    add = "more than once; add them: counts.groupby(level=0).sum()"
    refuse("counts have the words", twice, add)
    of_lower = table.groupby(lower(table.index.astype(str).to_series()).to_numpy()).sum()
    count = bare.map(lambda word: of_lower.get(word), na_action="ignore")
    return np.log(count.where(count > 0)).rename("log_frequency")


# A letter that one language alone of these has, or a word of every text in it.
_SCRIPTS = {
    "hi": r"\p{Devanagari}",
    "el": r"\p{Greek}",
    "he": r"\p{Hebrew}",
    "ko": r"\p{Hangul}",
    "ja": r"[\p{Hiragana}\p{Katakana}]",
    "ta": r"\p{Tamil}",
    "bn": r"\p{Bengali}",
}


def language_of(words: pd.Series) -> str:
    """Return wordfreq's code of the language of words whose letters it alone has there, else "".

    Latin, Cyrillic and Arabic letters are those of many languages: name it.

    >>> language_of(pd.Series(["यह", "एक"])), language_of(pd.Series(["the", "cat"]))
    ('hi', '')
    """
    letters = regex.sub(r"\P{L}", "", "".join(words.dropna()))
    for language, script in _SCRIPTS.items():
        n = len(regex.findall(script, letters))
        if n > (0.3 if language == "ja" else 0.9) * len(letters) > 0:
            return language
    return ""
