"""Printed words and the tokens of word-level language models: n-grams, LSTMs and Transformers trained on words.

Such models know whole words and treat punctuation as words of its own, or not at all. A style says how a printed word
becomes tokens; a word's surprisal is the sum over its tokens, or over those of them that are words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from psychlm import frames

UNKNOWN = "<unk>"
CLITIC = re.compile(r"(?i)(n't|'(?:s|m|d|re|ve|ll))$")
PIECES = re.compile(r"\w+(?:[-'.]\w+)*|[^\w\s]")

Tokenize = Callable[[str], list[str]]


def plain(word: str) -> list[str]:
    """Return a printed word without its edges' punctuation, and that punctuation: ``"(don't"`` -> ``(``, ``don't``."""
    return PIECES.findall(word.replace("’", "'"))


def split_clitics(word: str) -> list[str]:
    """Return tokens as the Penn Treebank parts them: ``don't,`` -> ``do``, ``n't``, ``,``."""
    return [part for token in plain(word) for part in _clitics(token)]


def ptb(word: str) -> list[str]:
    """Return tokens as in Mikolov's Penn Treebank: lower case, clitics apart, numbers ``N``, no punctuation."""
    tokens = (token.lower() for token in split_clitics(word) if re.search(r"\w", token))
    return ["N" if re.fullmatch(r"[\d.,-]*\d[\d.,-]*", token) else token for token in tokens]


def _clitics(token: str) -> list[str]:
    found = CLITIC.search(token)
    return [token[: found.start()], found[0]] if found and found.start() else [token]


def tokens_frame(words: pd.DataFrame, tokenize: Tokenize) -> pd.DataFrame:
    """Return one row per token of a words frame, in reading order.

    Parameters
    ----------
    words : DataFrame
        ``text_id``, ``word_id``, ``word``; a column ``sentence_id`` says where sentences begin, else each text is one.
    tokenize : callable
        A printed word to its tokens; none is allowed.

    Returns
    -------
    DataFrame
        ``row`` (position in ``words``), ``token``, ``text`` and ``sentence`` (running numbers).

    Raises
    ------
    FrameError
        If words break their contract, or none of them has a token.
    """
    words = frames.check_words(words)
    keys = ["text_id", "sentence_id"] if "sentence_id" in words.columns else ["text_id"]
    order = np.lexsort(
        [words["word_id"].to_numpy(), words.groupby("text_id", sort=False).ngroup().to_numpy()]
    )
    table = pd.DataFrame(
        {
            "row": order,
            "token": words["word"].iloc[order].map(tokenize).to_numpy(),
            "text": words.groupby("text_id", sort=False).ngroup().to_numpy()[order],
            "sentence": words.groupby(keys, sort=False).ngroup().to_numpy()[order],
        }
    )
    table = table.explode("token").dropna(subset=["token"]).reset_index(drop=True)
    if table.empty:
        raise frames.FrameError(
            f"no word has a token in this style (such as {words['word'].iloc[0]!r}); take another"
        )
    return table


def joined(
    words: pd.DataFrame, tokens: pd.DataFrame, bits: np.ndarray, unknown: np.ndarray
) -> pd.DataFrame:
    """Return the words with their tokens' surprisals summed.

    Returns
    -------
    DataFrame
        ``words`` with ``surprisal_bits`` (NaN where a word has no token), ``n_tokens`` and ``n_unknown``, how many of
        its tokens the model does not know.
    """
    rows = tokens["row"].to_numpy(dtype=np.int64)
    count = np.bincount(rows, minlength=len(words))
    total = np.where(count > 0, np.bincount(rows, weights=bits, minlength=len(words)), np.nan)
    missed = np.bincount(rows, weights=unknown, minlength=len(words)).astype(np.int64)
    return words.assign(surprisal_bits=total, n_tokens=count, n_unknown=missed)


def counts(sentences: Iterable[Sequence[str]]) -> pd.Series:
    """Return how often each token stands in a text, the most frequent first."""
    return pd.Series(
        [token for sentence in sentences for token in sentence], dtype=object
    ).value_counts()


def log_frequency(words: pd.Series, counted: pd.Series, tokenize: Tokenize = plain) -> np.ndarray:
    """Return the log-frequencies (nats) that reading-time models take beside surprisal; they need no KenLM.

    ``ln((c + 1) / (N + V + 1))`` of each token that is a word, with N tokens of V kinds and one more kind for what was
    never seen (Laplace); the logarithms of a word's tokens are added.

    Parameters
    ----------
    words : Series of str, shape (n,)
        Printed words; punctuation at their edges does not count.
    counted : Series
        What :func:`counts` returned.

    Returns
    -------
    (n,) array
        NaN where a word is punctuation only.
    """
    tokens = words.reset_index(drop=True).map(tokenize).explode()
    tokens = tokens[tokens.str.contains(r"\w", na=False)]
    seen = tokens.map(counted).fillna(0).to_numpy(dtype=float)
    logs = pd.Series(np.log((seen + 1) / (counted.sum() + len(counted) + 1)), index=tokens.index)
    return logs.groupby(level=0).sum().reindex(range(len(words))).to_numpy()
