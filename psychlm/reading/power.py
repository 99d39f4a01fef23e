"""How good a language model is, by what it finds surprising: perplexity, and the predictability norm correlation.

Perplexity per token compares models that share a vocabulary, and no others (Hao et al. 2020, section 3.3.1); per word
or per character it compares models that do not. The predictability norm correlation asks instead whether a model finds
difficult to predict what people find so (section 3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.frames import FrameError, check_words
from psychlm.stats import Correlation, correlation


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of texts: two to the mean surprisal in bits, over tokens, words or characters."""

    per_token: float  # comparable between models of one vocabulary
    per_word: float  # comparable between all models of the same words
    per_character: float  # comparable even between splits into words; spaces between words count
    bits: float  # surprisal of all words together
    n_tokens: int
    n_words: int
    n_characters: int
    n_missing: int  # words without a value, left out of all of the above


def perplexity(words: pd.DataFrame, column: str = "surprisal_bits") -> Perplexity:
    """Return the perplexity of a language model on the words it has scored.

    perplexity = (prod_i P(token_i | tokens before))^(-1/N) = 2^(mean surprisal in bits), Hao et al. (2020), section
    3.3.1; N counts the tokens (column ``n_tokens``, which :func:`psychlm.lm.surprisal` writes; without it every word is
    one token, as in a word-level model), the words, or the characters.

    Parameters
    ----------
    words : DataFrame
        A words frame with surprisals. Surprisals summed over tokens (``correction=None``) give the paper's perplexity;
        corrected ones that of word probabilities.
    column : str
        The surprisal, in bits.

    Raises
    ------
    FrameError
        If the column is missing, or holds no value.

    Notes
    -----
    An infinite surprisal gives an infinite perplexity. Characters are the words' and one space between two words,
    or the spaces that ``space_after`` states.
    """
    checked = check_words(words)
    if column not in checked.columns:
        raise FrameError(f"words have no column {column!r}, but {list(words.columns)}; score them with lm.surprisal")
    known = checked[checked[column].notna()]
    if known.empty:
        raise FrameError(f"{column} is NaN for all {len(words)} words; see the column 'reason'")
    bits = float(known[column].sum())
    n_words, n_tokens = len(known), int(known["n_tokens"].sum()) if "n_tokens" in known.columns else len(known)
    n_characters = int(known["word"].str.len().sum()) + _n_spaces(known)
    return Perplexity(
        float(np.exp2(bits / n_tokens)), float(np.exp2(bits / n_words)), float(np.exp2(bits / n_characters)),
        bits, n_tokens, n_words, n_characters, len(words) - n_words,
    )  # fmt: skip


def _n_spaces(words: pd.DataFrame) -> int:
    """Count the white space between words: as stated, or one space before each word but a text's first."""
    if "space_after" not in words.columns:
        return len(words) - words["text_id"].nunique()
    within = words.sort_values(["text_id", "word_id"]).duplicated("text_id", keep="last").reindex(words.index)
    spaces = words.loc[within, "space_after"]
    return int(spaces.sum() if pd.api.types.is_bool_dtype(spaces) else spaces.str.len().sum())


def predictability_norm_correlation(
    surprisal_bits: ArrayLike, cloze_surprisal: ArrayLike, *, level: float = 0.95
) -> Correlation:
    """Return the predictability norm correlation (PNC) of a language model, with its interval.

    The Pearson correlation between the surprisals of a model and those of people in a cloze task (Hao et al. 2020,
    section 3.3.2).

    Parameters
    ----------
    surprisal_bits : array_like, shape (n_words,)
        Surprisal of each word for the model; the unit does not matter.
    cloze_surprisal : array_like, shape (n_words,)
        -log of the (smoothed) share of people who said the word.
    level : float
        Coverage of the interval (Fisher's).

    Returns
    -------
    Correlation
        ``r`` is the PNC; words for which either is NaN are left out and counted in ``n_missing``.

    Raises
    ------
    ValueError
        If a surprisal is infinite: a word that nobody said needs a smoothed cloze probability.
    """
    for name, values in (("surprisal_bits", surprisal_bits), ("cloze_surprisal", cloze_surprisal)):
        n_infinite = int(np.isinf(np.asarray(values, dtype=np.float64)).sum())
        if n_infinite:
            raise ValueError(
                f"{name} is infinite for {n_infinite} words, so no correlation is defined; smooth the probabilities "
                "(a word that nobody said is not impossible), or set these words to NaN to leave them out"
            )
    return correlation(surprisal_bits, cloze_surprisal, method="pearson", level=level)
