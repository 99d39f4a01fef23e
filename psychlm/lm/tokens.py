"""Words of a reader and tokens of a model: put texts together, clean them, and assign every token
to a word.

A text is the concatenation of its words with the white space around them, character by character.
Every token of the text belongs to the word that holds its last character; white space belongs to
the word that follows it (at the end of a text, to the last word). So no token, and no probability,
is lost between the words.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.data import DataMissingError
from psychlm.frames import FrameError, check_words, is_shape, refuse

TEXTS_AT_ONCE = 2048  # given to the tokenizer in one call
LONGEST_WORD = 10_000  # characters; a longer "word" is a file that was not split
# Characters of scripts without spaces between words: Chinese; Thai, Lao, Burmese, Khmer, Japanese.
HAN = "[\u3400-\u9fff\U00020000-\U0003ffff]"
UNSPACED = HAN[:-1] + "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]"
# A text whose words have on average more than so many of them was not cut into words: words of
# Chinese have one to four, the phrases in which Japanese is shown and words of Thai up to a dozen.
LONGEST_HAN = 4
LONGEST_UNSPACED = 12
LONGEST_SENTENCE_WORD = 2  # of a text that is one word with a mark of punctuation
SPACES = {ord(character): " " for character in map(chr, range(0x3001)) if character.isspace()}
BYTE_ORDER_MARK = "\ufeff"
# also soft hyphens, word joiners and zero-width spaces, which only separate words in Thai, Lao,
# Burmese and Khmer
INVISIBLE = f"[{BYTE_ORDER_MARK}\xad\u2060]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b"

SHARED = "the tokenizer joins this word with its neighbour in one token"
TOKENLESS = "the tokenizer has no token for this word"
UNKNOWN = "the tokenizer does not know a character of this word"


@dataclass(frozen=True, eq=False)
class Document:
    """A text that is scored in one piece, and the positions of its words."""

    text: str
    starts: NDArray[np.int64]  # (n_words,) characters
    ends: NDArray[np.int64]  # (n_words,) characters, exclusive
    rows: NDArray[np.int64]  # (n_words,) rows of the words frame


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a document."""

    ids: NDArray[np.int64]  # (n_tokens,)
    word: NDArray[np.int64]  # (n_tokens,) 0-based word of each token, never decreasing
    trailing: NDArray[np.bool_]  # (n_tokens,) white space after the last word
    reasons: dict[int, str]  # words without a value, and why


def words_of(texts: str | Iterable[str] | Mapping[str, str]) -> pd.DataFrame:
    """Split texts at white space into words.

    Parameters
    ----------
    texts : str, iterable of str, or mapping
        One text; several, which get the ids "1", "2", ...; or ids and texts: a mapping, or a Series
        whose index is no mere count (``RangeIndex``).

    Returns
    -------
    DataFrame
        A words frame: ``text_id``, ``word_id``, ``word`` (with its punctuation), ``space_before``
        (white space and byte-order marks at the very beginning of the text, else empty) and
        ``space_after``; concatenated, they are the text.

    Raises
    ------
    FrameError
        If there is no text, a text holds no word, or a Series has an id twice.

    Examples
    --------
    >>> words_of("The old  man.")[["word_id", "word", "space_after"]].to_numpy().tolist()
    [[1, 'The', ' '], [2, 'old', '  '], [3, 'man.', '']]
    """
    wanted = "give a text, a list of texts, or a words frame"
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise FrameError(f"words of type {type(texts).__name__} are no text; {wanted}")
    if isinstance(texts, pd.Series) and not isinstance(texts.index, pd.RangeIndex):
        repeated = texts.index[texts.index.duplicated()]
        refuse("ids", repeated, "name several texts; texts.reset_index(drop=True) numbers them")
        texts = texts.to_dict()
    if not isinstance(texts, Mapping):
        several = [texts] if isinstance(texts, str) else texts
        texts = {str(number): text for number, text in enumerate(several, start=1)}
    if not texts:
        raise FrameError(f"no text was given; {wanted}")
    rows: list[tuple[str, int, str, str, str]] = []
    for text_id, text in texts.items():
        if not isinstance(text, str):
            raise FrameError(f"text {text_id!r} is a {type(text).__name__}, not a str")
        check_characters(f"text {str(text_id)!r}", text)
        before = re.match(rf"[\s{BYTE_ORDER_MARK}]*", text)[0]  # type: ignore[index]
        pieces = re.findall(r"(\S+)(\s*)", text[len(before) :])
        if not pieces:
            said = f"text {str(text_id)!r} holds no word ({len(text)} characters, all white space)"
            raise FrameError(f"{said}; leave it out")
        for number, (word, after) in enumerate(pieces, start=1):
            rows.append((str(text_id), number, word, before if number == 1 else "", after))
    return pd.DataFrame(rows, columns=["text_id", "word_id", "word", "space_before", "space_after"])


def words_frame(words: pd.DataFrame | str | Iterable[str] | Mapping[str, str]) -> pd.DataFrame:
    """Return the words of texts, or a words frame whose ids may be levels of its index."""
    if not isinstance(words, pd.DataFrame):
        return words_of(words)
    levels = [name for name in ("text_id", "word_id") if name in {*words.index.names} - {*words}]
    return words.reset_index(levels) if levels else words


def check_characters(name: str, text: str) -> None:
    """Refuse a text with half a character (a lone surrogate), which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - 20) : error.start]
        said = f"{name} holds half a character (a lone surrogate) after {before!r}"
        raise FrameError(f"{said}; read its file as UTF-8 again") from None


def prepare_words(
    words: pd.DataFrame, *, clean: bool = True
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Check a words frame, sort it by text, write its white space as text, and clean it.

    Cleaning removes byte-order marks, soft hyphens, zero-width spaces and the white space around
    texts, makes one space of each other run of white space (a blank line between paragraphs stays
    as two line feeds), and composes accents (Unicode normalisation form C). Return the frame sorted
    by ``text_id`` and ``word_id``, its index the positions of the rows in ``words``, and how many
    words or gaps were changed.
    """
    ordered = check_words(words).reset_index(drop=True)
    if is_shape(ordered["word"]):
        said = "these words are shapes (every letter is 'a'): the text of the corpus is not here"
        raise DataMissingError(f"{said}; see `psychlm data list`")
    ordered = ordered.sort_values(["text_id", "word_id"], kind="stable")
    for text_id, word in zip(ordered["text_id"], ordered["word"], strict=True):
        check_characters(f"text {text_id!r}", word)
    long = ordered.loc[ordered["word"].str.len() > LONGEST_WORD, ["text_id", "word_id"]]
    said = f"have more than {LONGEST_WORD:,} characters; split the text first: psychlm.lm.words_of"
    refuse("words (text_id, word_id)", long.itertuples(index=False, name=None), said)
    composed = ordered["word"].str.normalize("NFC")
    n_unspaced = composed.str.count(UNSPACED)
    mean_length = n_unspaced.where(n_unspaced > 0).groupby(ordered["text_id"]).transform("mean")
    is_han = composed.str.count(HAN) == n_unspaced
    limit = is_han.map({True: LONGEST_HAN, False: LONGEST_UNSPACED})
    is_whole_text = ~ordered.duplicated("text_id", keep=False)
    limit = limit.mask(is_whole_text & composed.str.contains("[。，、！？]"), LONGEST_SENTENCE_WORD)
    unspaced = ordered.loc[(mean_length > limit) & (n_unspaced > limit)]
    if len(unspaced):
        word = f"word {unspaced['word_id'].iloc[0]} of text {unspaced['text_id'].iloc[0]!r}"
        said = f"{word} is long, and its script has no spaces between words, so that it is scored "
        said += "as one word; cut the text into words with a segmenter, and pass a words frame with"
        warnings.warn(f"{said} space_after=False", RuntimeWarning, stacklevel=3)
    is_first = ~ordered.duplicated("text_id")
    is_last = ~ordered.duplicated("text_id", keep="last")
    before = _spaces(ordered, "space_before", np.zeros(len(ordered), dtype=bool))
    after = _spaces(ordered, "space_after", ~is_last.to_numpy())
    if not clean:
        return ordered.assign(space_before=before, space_after=after), {}
    word = ordered["word"].astype(object)
    unmarked = word.str.replace(INVISIBLE, "", regex=True)
    one_spaced = unmarked.str.split().str.join(" ")
    composed = one_spaced.str.normalize("NFC")
    composed = composed.where(composed != "", word)  # a word of marks only stays as it is
    # What stands after a word and before the next is one run of white space; edges of texts go.
    gap = (after + before.shift(-1, fill_value="")).where(~is_last, "")
    edges = pd.concat([before[is_first], after[is_last]])
    # One space, or two line feeds for a blank line.
    one_gap = gap.mask(gap.ne(""), " ").mask(gap.str.count("\r\n|\r|\n") > 1, "\n\n")
    marked = word.str.contains(INVISIBLE)
    changes = {
        "invisible": marked.sum() + edges.str.contains(BYTE_ORDER_MARK).sum(),
        "white_space": (one_spaced != unmarked).sum()
        + (one_gap != gap).sum()
        + (edges.str.replace(BYTE_ORDER_MARK, "") != "").sum(),
        "unicode": ((composed != one_spaced) & ~marked).sum(),
    }
    columns = {"word": composed, "space_before": "", "space_after": one_gap}
    return ordered.assign(**columns), {name: int(n) for name, n in changes.items()}


def _spaces(words: pd.DataFrame, column: str, default: NDArray[np.bool_]) -> pd.Series:
    """Return the white space beside each word; booleans put none after a text's last word."""
    if column in words and not pd.api.types.is_bool_dtype(words[column]):
        wrong = [
            not isinstance(space, str) or bool(space.replace(BYTE_ORDER_MARK, "").strip())
            for space in words[column]
        ]
        said = "is neither white space nor True or False; write '' where nothing separates words"
        named = words.loc[wrong, ["text_id", "word_id"]].itertuples(index=False, name=None)
        refuse(f"{column} of words (text_id, word_id)", named, said)
        return words[column].astype(object)
    if column in words:
        given = words[column].to_numpy(bool)
        default = given & default if column == "space_after" else given
    return pd.Series(np.where(default, " ", ""), words.index, dtype=object)


def documents(prepared: pd.DataFrame) -> list[Document]:
    """Put the texts of a frame from :func:`prepare_words` together."""
    # texts stand one after another; what is before, in and after each word alternates
    begins = np.flatnonzero(~prepared.duplicated("text_id").to_numpy())
    columns = [prepared[name].tolist() for name in ("space_before", "word", "space_after")]
    pieces = list(zip(*columns, strict=True))
    rows = prepared.index.to_numpy(np.int64)
    texts = []
    for low, high in pairwise([*begins, len(prepared)]):
        text_pieces = [piece for word in pieces[low:high] for piece in word]
        ends = np.cumsum([len(piece) for piece in text_pieces]).reshape(-1, 3)
        texts.append(Document("".join(text_pieces), ends[:, 0], ends[:, 1], rows[low:high]))
    return texts


def tokenize(texts: list[Document], tokenizer: Any) -> list[Tokens]:
    """Return the tokens of every document, each with its word; special tokens are not added."""
    encode = _encode if getattr(tokenizer, "is_fast", False) else _encode_by_word
    tokens = []
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = texts[first : first + TEXTS_AT_ONCE]
        for text, (ids, spans) in zip(some, encode(some, tokenizer), strict=True):
            tokens.append(_assign(text, ids, spans, tokenizer))
    return tokens


Encoded = list[tuple[NDArray[np.int64], NDArray[np.int64]]]  # ids, character spans (n_tokens, 2)


def _encode(texts: list[Document], tokenizer: Any) -> Encoded:
    """Return the ids and character spans that a tokenizer of the tokenizers library gives."""

    def encode(strings: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        options = {"return_offsets_mapping": True, "return_attention_mask": False}
        encoded = tokenizer(strings, add_special_tokens=False, verbose=False, **options)
        return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))

    encoded = encode([document.text for document in texts])
    unknown = tokenizer.unk_token_id
    for i, (ids, spans) in enumerate(encoded):
        text = texts[i].text
        # white space that the tokenizer knows only as a space: a line feed, for instance
        unknown_spans = (span for token, span in zip(ids, spans, strict=True) if token == unknown)
        if any(text[a:b].isspace() for a, b in unknown_spans):
            encoded[i] = encode([text.translate(SPACES)])[0]
    return [
        (np.array(ids, np.int64), np.array(spans, np.int64).reshape(-1, 2))
        for ids, spans in encoded
    ]


def _encode_by_word(texts: list[Document], tokenizer: Any) -> Encoded:
    """Tokenize each word with the space before it: XLM's tokenizer gives no positions."""
    encoded = []
    for document in texts:
        begins = np.append(0, document.ends[:-1])
        words = [document.text[a:b] for a, b in zip(begins, document.ends, strict=True)]
        ids = [tokenizer.encode(word, add_special_tokens=False) for word in words]
        spans = np.stack([document.starts, document.ends], axis=1)
        spans = spans.repeat([len(word) for word in ids], axis=0)
        encoded.append((np.array([*chain.from_iterable(ids)], np.int64), spans))
    return encoded


def _assign(
    document: Document, ids: NDArray[np.int64], spans: NDArray[np.int64], tokenizer: Any
) -> Tokens:
    """Assign tokens to the words that hold their last characters; note words without a value."""
    n_words = len(document.ends)
    starts = spans[:, 0]
    last = np.maximum(spans[:, 0], spans[:, 1] - 1)
    word = np.searchsorted(document.ends, last, side="right")
    trailing = word == n_words
    first = np.minimum(np.searchsorted(document.ends, starts, side="right"), n_words - 1)
    word = np.maximum.accumulate(np.minimum(word, n_words - 1)) if len(word) else word
    reasons = {int(k): TOKENLESS for k in np.setdiff1d(np.arange(n_words), word[~trailing])}
    # a token that begins in one word and ends in another
    for token in np.flatnonzero((first < word) & ~trailing):
        reasons |= dict.fromkeys(range(int(first[token]), int(word[token]) + 1), SHARED)
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown not in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        for k in np.unique(word[ids == unknown]):
            if tokenizer.unk_token not in document.text[document.starts[k] : document.ends[k]]:
                reasons[int(k)] = UNKNOWN
    return Tokens(ids, word, trailing, reasons)


def begins_with_space(tokenizer: Any) -> NDArray[np.bool_] | None:
    """Return which tokens begin with white space, as the first of a word does in byte-level (GPT-2)
    and SentencePiece (Metaspace) tokenizers; None of others (WordPiece, end-of-word)."""
    return _begins_with_space(tokenizer, len(tokenizer))


@lru_cache(maxsize=4)  # the whole vocabulary is read, and every call of a model asks for it
def _begins_with_space(tokenizer: Any, n_tokens: int) -> NDArray[np.bool_] | None:
    """Return what :func:`begins_with_space` does, once for a tokenizer of so many tokens."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    decoder = tokenizer.backend_tokenizer.decoder
    if not any(mark in str(decoder) for mark in ("ByteLevel", "Metaspace", "▁")):
        return None
    # The first piece of a text may lose its space, so each is decoded behind a letter.
    pieces = tokenizer.convert_ids_to_tokens(range(n_tokens))
    decoded = ["a" if piece is None else decoder.decode(["a", piece]) for piece in pieces]
    return np.array([text[1:2].isspace() for text in decoded])
