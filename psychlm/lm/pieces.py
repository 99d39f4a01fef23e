"""Training text as word pieces: a tokenizer of our own, rows that begin with sentences, and a part held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS = "<|endoftext|>"  # the first piece of the vocabulary, number 0
HELD_OUT_EVERY, HELD_OUT_BLOCK = (
    60,
    50,
)  # of every 60 blocks of 50 paragraphs, one is for the perplexity


@dataclass(frozen=True)
class Text:
    """The training text as pieces: a stream, where its sentences begin, and the part held out."""

    stream: np.ndarray  # (n,) uint16
    starts: np.ndarray  # positions at which a sentence begins
    held_out: np.ndarray  # (m,) uint16
    held_out_starts: np.ndarray
    openers: np.ndarray  # (V,) for each piece with a leading space, the same without it (or itself)
    held_out_words: int
    n_left_out: int  # paragraphs left out for a sentence that tests will read


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer that puts no space before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[BOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def prepare(
    folder: Path, paragraphs: Iterable[tuple[str, bool]], vocabulary: int
) -> tuple[Tokenizer, Text]:
    """Tokenise and split a text; what was prepared before is read back from the folder.

    Parameters
    ----------
    paragraphs : iterable of (paragraph, clean)
        Read only if need be; what is not clean is left out.
    vocabulary : int
        Pieces in the vocabulary.
    """
    store, tokenizer_file = folder / "text.npz", folder / "tokenizer.json"
    if store.is_file() and tokenizer_file.is_file():
        with np.load(store) as held:
            return Tokenizer.from_file(str(tokenizer_file)), Text(
                **{k: held[k][()] for k in held.files}
            )
    marked = list(paragraphs)
    texts = [paragraph for paragraph, clean in marked if clean]
    tokenizer = train_tokenizer(texts, vocabulary)
    pieces = [
        np.array(e.ids, dtype=np.uint16) for e in tokenizer.encode_batch([f"{t}\n" for t in texts])
    ]
    aside = (np.arange(len(texts)) // HELD_OUT_BLOCK) % HELD_OUT_EVERY == 0
    stream = np.concatenate([p for p, out in zip(pieces, aside, strict=True) if not out])
    held_out = np.concatenate([p for p, out in zip(pieces, aside, strict=True) if out])
    text = Text(
        stream=stream,
        starts=_sentence_starts(stream, tokenizer),
        held_out=held_out,
        held_out_starts=_sentence_starts(held_out, tokenizer),
        openers=_openers(tokenizer),
        held_out_words=sum(len(t.split()) for t, out in zip(texts, aside, strict=True) if out),
        n_left_out=len(marked) - len(texts),
    )
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(store, **vars(text))
    tokenizer.save(str(tokenizer_file))
    return tokenizer, text


def _openers(tokenizer: Tokenizer) -> np.ndarray:
    """Map each piece with a leading space to its twin without, which is what opens a text."""
    vocabulary = tokenizer.get_vocab()
    twins = np.arange(len(vocabulary))
    for piece, number in vocabulary.items():
        twins[number] = vocabulary.get(piece.removeprefix("Ġ"), number)
    return twins


def _sentence_starts(stream: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return where sentences begin: after a line's end, or a capital after a full stop and perhaps a quote."""
    pieces = pd.Series([tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())])
    ends = pieces.str.contains(r"[.!?][\"')]*$").to_numpy()[stream]
    line = (pieces == "Ċ").to_numpy()[stream]
    capital = pieces.str.contains(r"^Ġ[\"']?[A-Z]").to_numpy()[stream]
    begins = line[:-1] | (ends[:-1] & capital[1:])
    return np.concatenate([[0], 1 + np.flatnonzero(begins)])


def rows_at(
    stream: np.ndarray, starts: np.ndarray, at: np.ndarray, openers: np.ndarray, context: int
) -> np.ndarray:
    """Return (len(at), context) rows: the beginning-of-text piece, then text from the first sentence from ``at`` on."""
    begin = starts[np.minimum(np.searchsorted(starts, at), len(starts) - 1)]
    begin = np.minimum(begin, len(stream) - context)
    rows = stream[begin[:, None] + np.arange(-1, context - 1)].astype(np.int64)
    rows[:, 0], rows[:, 1] = 0, openers[rows[:, 1]]
    return rows


def batch(text: Text, step: int, n_rows: int, context: int, seed: int) -> np.ndarray:
    """Return the (n_rows, context) rows of a step; each epoch cuts the stream at other places, in another order."""
    span = context - 1
    tiles = len(text.stream) // span - 2
    epoch, place = divmod(step, tiles // n_rows)
    rng = np.random.default_rng([seed, epoch])
    offset, order = rng.integers(span), rng.permutation(tiles)
    at = offset + span * order[place * n_rows : (place + 1) * n_rows]
    return rows_at(text.stream, text.starts, at, text.openers, context)


def openings(text: Text) -> np.ndarray:
    """Return the (n, 3) first pieces of every sentence as they look at the beginning of a text."""
    begin = text.starts[text.starts < len(text.stream) - 2]
    first = text.openers[text.stream[begin]]
    return np.stack([np.zeros_like(first), first, text.stream[begin + 1]], axis=1)
