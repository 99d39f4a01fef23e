"""The reader's words and the model's tokens: texts from words, words from texts, and which token belongs to which word.

A text is the concatenation of its words with the white space around them, character by character. Every token of the
text belongs to the word that holds its last character; white space belongs to the word that follows it (at the end of
a text, to the last word). So no token, and no probability, is lost between the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.frames import FrameError, check_words

TEXTS_AT_ONCE = 2048  # given to the tokenizer in one call
SPACES = {ord(character): " " for character in map(chr, range(0x3001)) if character.isspace()}

SHARED = "the tokenizer joins this word with its neighbour in one token"
TOKENLESS = "the tokenizer has no token for this word"
UNKNOWN = "the tokenizer does not know a character of this word"


@dataclass(frozen=True, eq=False)
class Document:
    """A text to be read in one go, and where its words stand."""

    text: str
    starts: NDArray[np.int64]  # (n_words,) characters
    ends: NDArray[np.int64]  # (n_words,) characters, exclusive
    rows: NDArray[np.int64]  # (n_words,) rows of the words frame
    scored: NDArray[np.bool_]  # (n_words,) False where a word is context only


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a document."""

    ids: NDArray[np.int64]  # (n_tokens,)
    word: NDArray[np.int64]  # (n_tokens,) 0-based word of each token, never decreasing
    trailing: NDArray[np.bool_]  # (n_tokens,) white space after the last word
    reasons: dict[int, str]  # words without a value, and why


def words_of(texts: str | Iterable[str] | Mapping[str, str]) -> pd.DataFrame:
    """Split texts at white space into the words of a reader.

    Parameters
    ----------
    texts : str, iterable of str, or mapping
        One text; several, which get the ids "1", "2", ...; or ids and texts.

    Returns
    -------
    DataFrame
        A words frame: ``text_id``, ``word_id``, ``word`` (with its punctuation), ``space_before`` (white space at the
        very beginning of the text, else empty) and ``space_after``; concatenated, they are the text.

    Raises
    ------
    FrameError
        If a text holds no word.
    """
    if isinstance(texts, str):
        texts = [texts]
    named = (
        texts
        if isinstance(texts, Mapping)
        else {str(i): text for i, text in enumerate(texts, start=1)}
    )
    frames = [_split(str(text_id), text) for text_id, text in named.items()]
    if not frames:
        raise FrameError("no text was given")
    return pd.concat(frames, ignore_index=True)


def _split(text_id: str, text: str) -> pd.DataFrame:
    pieces = re.findall(r"(\S+)(\s*)", text)
    if not pieces:
        raise FrameError(
            f"text {text_id!r} holds no word ({len(text)} characters, all white space); leave it out"
        )
    words, gaps = zip(*pieces, strict=True)
    before = [text[: len(text) - len(text.lstrip())]] + [""] * (len(words) - 1)
    columns = {
        "word_id": range(1, len(words) + 1),
        "word": words,
        "space_before": before,
        "space_after": gaps,
    }
    return pd.DataFrame({"text_id": text_id} | columns)


def documents(words: pd.DataFrame, context_sentences: int | None = None) -> list[Document]:
    """Put the texts of a words frame together.

    Parameters
    ----------
    words : DataFrame
        A words frame, in any order; ``space_after`` and ``space_before`` (white space as text, or True and False)
        stand beside a word where it is not one space that parts the words.
    context_sentences : int, optional
        Give each sentence (column ``sentence_id``) a document of its own, with so many sentences before it.

    Raises
    ------
    FrameError
        If the frame breaks its contract, or its spaces are neither white space nor booleans.
    """
    ordered = (
        check_words(words).reset_index(drop=True).sort_values(["text_id", "word_id"], kind="stable")
    )
    spaced = ordered.assign(
        space_before=_spaces(ordered, "space_before", ""),
        space_after=_spaces(ordered, "space_after", " "),
    )
    texts = [part for _, part in spaced.groupby("text_id", sort=False)]
    if context_sentences is None:
        return [_document(part, np.ones(len(part), dtype=bool)) for part in texts]
    if "sentence_id" not in words.columns:
        raise FrameError(
            "context_sentences needs a column sentence_id in words, which tells the sentences of a text"
        )
    return [document for part in texts for document in _sentences(part, context_sentences)]


def _spaces(words: pd.DataFrame, column: str, default: str) -> pd.Series:
    """Return the white space beside each word as text; where it is not literal, none follows a text's last word."""
    if column in words.columns and not pd.api.types.is_bool_dtype(words[column]):
        spaces = words[column]
        wrong = ~spaces.map(lambda space: isinstance(space, str) and not space.strip())
        if wrong.any():
            raise FrameError(
                f"{column} of words {words.loc[wrong, ['text_id', 'word_id']].head(5).to_numpy().tolist()} is neither "
                "white space nor True or False; write '' where nothing parts two words (a reader of CSV files needs "
                "keep_default_na=False)"
            )
        return spaces
    given = (
        words[column].to_numpy(bool)
        if column in words.columns
        else np.full(len(words), default == " ")
    )
    last = ~words.duplicated("text_id", keep="last").to_numpy() & (column == "space_after")
    return pd.Series(np.where(given & ~last, " ", ""), index=words.index)


def _document(part: pd.DataFrame, scored: NDArray[np.bool_]) -> Document:
    word, before, after = (
        part[column].tolist() for column in ("word", "space_before", "space_after")
    )
    lengths = np.array(
        [[len(a), len(b), len(c)] for a, b, c in zip(before, word, after, strict=True)],
        dtype=np.int64,
    )
    starts = lengths.sum(axis=1).cumsum() - lengths[:, 1] - lengths[:, 2]
    text = "".join(a + b + c for a, b, c in zip(before, word, after, strict=True))
    return Document(text, starts, starts + lengths[:, 1], part.index.to_numpy(np.int64), scored)


def _sentences(part: pd.DataFrame, context_sentences: int) -> Iterable[Document]:
    """Yield one document per sentence of a text: the sentences before it as context, then itself."""
    if context_sentences < 0:
        raise FrameError(
            f"context_sentences is {context_sentences}; 0 reads each sentence by itself"
        )
    number = part["sentence_id"].ne(part["sentence_id"].shift()).cumsum().to_numpy()
    for sentence in range(1, int(number[-1]) + 1):
        window = (number >= sentence - context_sentences) & (number <= sentence)
        document = _document(part[window], number[window] == sentence)
        yield replace(
            document, text=document.text[: document.ends[-1]]
        )  # the space after it belongs to the next


def tokenize(texts: list[Document], tokenizer: Any) -> list[Tokens]:
    """Return the tokens of every document, each with the word it belongs to; no special tokens are added."""
    tokens = []
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = texts[first : first + TEXTS_AT_ONCE]
        pieces = (
            _fast(some, tokenizer)
            if getattr(tokenizer, "is_fast", False)
            else _word_by_word(some, tokenizer)
        )
        tokens += [
            _assign(document, *piece, tokenizer)
            for document, piece in zip(some, pieces, strict=True)
        ]
    return tokens


def _fast(
    texts: list[Document], tokenizer: Any
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the ids and character spans that a tokenizer of the tokenizers library gives."""
    encoded = _encode([document.text for document in texts], tokenizer)
    unknown = tokenizer.unk_token_id
    for i, (ids, spans) in enumerate(encoded):
        text = texts[i].text
        if any(
            token == unknown and text[a:b].isspace()
            for token, (a, b) in zip(ids, spans, strict=True)
        ):
            encoded[i] = _encode([text.translate(SPACES)], tokenizer)[
                0
            ]  # a newline, say, that it knows only as space
    return [
        (np.array(ids, np.int64), np.array(spans, np.int64).reshape(-1, 2))
        for ids, spans in encoded
    ]


def _encode(texts: list[str], tokenizer: Any) -> list[tuple[list[int], list[tuple[int, int]]]]:
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))


def _word_by_word(
    texts: list[Document], tokenizer: Any
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Tokenize each word with the space before it: for tokenizers in pure Python, which tell no positions (XLM's)."""
    pieces = []
    for document in texts:
        begins = np.append(0, document.ends[:-1])
        ids = [
            tokenizer.encode(document.text[a:b], add_special_tokens=False)
            for a, b in zip(begins, document.ends, strict=True)
        ]
        lengths = [len(word) for word in ids]
        spans = np.stack([document.starts, document.ends], axis=1).repeat(lengths, axis=0)
        pieces.append((np.concatenate([np.array(word, np.int64) for word in ids]), spans))
    return pieces


def _assign(
    document: Document, ids: NDArray[np.int64], spans: NDArray[np.int64], tokenizer: Any
) -> Tokens:
    """Give each token to the word that holds its last character, and note the words that cannot have a value."""
    starts, stops = spans[:, 0], spans[:, 1]
    n_words, last = len(document.ends), np.maximum(starts, stops - 1)
    word = np.searchsorted(document.ends, last, side="right")
    trailing = word == n_words
    first = np.minimum(np.searchsorted(document.ends, starts, side="right"), n_words - 1)
    word = np.maximum.accumulate(np.minimum(word, n_words - 1)) if len(word) else word
    reasons = {int(k): TOKENLESS for k in np.setdiff1d(np.arange(n_words), word[~trailing])}
    for token in np.flatnonzero((first < word) & ~trailing):
        reasons |= dict.fromkeys(range(int(first[token]), int(word[token]) + 1), SHARED)
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown not in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        for k in np.unique(word[ids == unknown]):
            if tokenizer.unk_token not in document.text[document.starts[k] : document.ends[k]]:
                reasons[int(k)] = UNKNOWN
    return Tokens(ids, word, trailing, reasons)
