"""Texts, pairs of texts and images as the tensors that a crowd reads.

A text is a row of word numbers: 0 pads, 1 stands for every unknown word, and the vocabulary follows. Items that have
two parts (premise and hypothesis) have two *segments* over one vocabulary; plain texts have one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from psychlm.frames import FrameError

PAD, UNKNOWN = 0, 1
_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    """Return the words and marks of a text in lower case: ``"It's bad."`` gives ``["it's", "bad", "."]``."""
    return _TOKEN.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that a crowd knows; word i has the number i + 2 (0 pads, 1 is unknown)."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_number", {word: i + 2 for i, word in enumerate(self.words)})

    def __len__(self) -> int:
        return len(self.words) + 2

    @classmethod
    def of(cls, texts: Iterable[str], *, min_count: int = 2) -> Vocabulary:
        """Collect the words that stand at least ``min_count`` times in the texts, frequent ones first."""
        counted = Counter(token for text in texts for token in tokens_of(text))
        kept = [(word, n) for word, n in counted.items() if n >= min_count]
        return cls(tuple(word for word, _ in sorted(kept, key=lambda pair: (-pair[1], pair[0]))))

    def numbers(self, tokens: Sequence[str]) -> list[int]:
        """Return the numbers of tokens, 1 for those that are unknown."""
        number: dict[str, int] = self.__dict__["_number"]
        return [number.get(token, UNKNOWN) for token in tokens]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Texts as numbers, and what was lost on the way."""

    segments: tuple[
        tuple[Tensor, Tensor], ...
    ]  # per segment: (n, length) int32 numbers, (n,) int64 lengths
    vocabulary: Vocabulary
    n_words: int  # tokens read, those cut off not counted
    n_unknown: int  # of these, tokens that the vocabulary lacks
    n_truncated: int  # texts that were longer than max_tokens

    def __len__(self) -> int:
        return len(self.segments[0][1])

    def take(self, rows: ArrayLike | Tensor) -> Encoded:
        """Return some of the texts; the counts stay those of the whole."""
        at = torch.as_tensor(np.asarray(rows))
        return replace(
            self, segments=tuple((numbers[at], lengths[at]) for numbers, lengths in self.segments)
        )


Inputs = Encoded | Tensor


def on_device(inputs: Inputs, device: str) -> Inputs:
    """Return inputs on a device: ``"cpu"`` or ``"cuda"``."""
    if isinstance(inputs, Encoded):
        return replace(
            inputs, segments=tuple((n.to(device), k.to(device)) for n, k in inputs.segments)
        )
    return inputs.to(device)


def take(inputs: Inputs, rows: ArrayLike | slice) -> Inputs:
    """Return some of the texts or images, by their numbers or a mask."""
    numbers = np.arange(len(inputs))[rows if isinstance(rows, slice) else np.asarray(rows)]
    return (
        inputs.take(numbers) if isinstance(inputs, Encoded) else inputs[torch.from_numpy(numbers)]
    )


def encode_texts(
    texts: Sequence[str],
    vocabulary: Vocabulary | None = None,
    *,
    max_tokens: int = 64,
    min_count: int = 2,
) -> Encoded:
    """Turn texts into word numbers.

    Parameters
    ----------
    texts : sequence of str, length n
        Split by :func:`tokens_of`.
    vocabulary : Vocabulary, optional
        That of the training texts; without it, the words of these texts that stand ``min_count`` times or more.
    max_tokens : int
        Longer texts are cut at their end; they are counted in ``n_truncated``.

    Returns
    -------
    Encoded

    Raises
    ------
    FrameError
        If there is no text, or one is not a string.
    """
    return _encode([list(texts)], vocabulary, max_tokens, min_count)


def encode_pairs(
    premises: Sequence[str],
    hypotheses: Sequence[str],
    vocabulary: Vocabulary | None = None,
    *,
    max_tokens: int = 64,
    min_count: int = 2,
) -> Encoded:
    """Turn pairs of texts into word numbers: two segments over one vocabulary; see :func:`encode_texts`."""
    if len(premises) != len(hypotheses):
        raise FrameError(
            f"there are {len(premises)} premises and {len(hypotheses)} hypotheses; each pair needs both"
        )
    return _encode([list(premises), list(hypotheses)], vocabulary, max_tokens, min_count)


def _encode(
    parts: list[list[str]], vocabulary: Vocabulary | None, max_tokens: int, min_count: int
) -> Encoded:
    if not parts[0]:
        raise FrameError("there is no text to encode")
    odd = [i for part in parts for i, text in enumerate(part) if not isinstance(text, str)]
    if odd:
        raise FrameError(
            f"texts {odd[:5]} (counted from 0) are not strings; drop the items or fill in their text"
        )
    known = vocabulary or Vocabulary.of(
        (text for part in parts for text in part), min_count=min_count
    )
    segments, n_words, n_unknown, n_truncated = [], 0, 0, 0
    for part in parts:
        rows = [known.numbers(tokens_of(text)) for text in part]
        n_truncated += sum(len(row) > max_tokens for row in rows)
        rows = [row[:max_tokens] for row in rows]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        numbers = np.zeros((len(rows), max(int(lengths.max()), 1)), dtype=np.int32)
        flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
        numbers[np.arange(numbers.shape[1]) < lengths[:, None]] = flat
        n_words, n_unknown = n_words + len(flat), n_unknown + int((flat == UNKNOWN).sum())
        segments.append((torch.from_numpy(numbers), torch.from_numpy(lengths)))
    return Encoded(tuple(segments), known, n_words, n_unknown, n_truncated)


def encode_images(images: ArrayLike) -> Tensor:
    """Return images as float32: (n, height, width) get a channel, (n, channels, height, width) and (n, features) stay.

    Raises
    ------
    FrameError
        If a value is not finite, or there are fewer than two or more than four axes.
    """
    values = torch.as_tensor(np.asarray(images, dtype=np.float32))
    if values.ndim not in (2, 3, 4):
        raise FrameError(
            f"images have two to four axes, the first the image; these have the shape {tuple(values.shape)}"
        )
    if not torch.isfinite(values).all():
        raise FrameError("some images hold values that are not finite; mend or drop them")
    return values[:, None] if values.ndim == 3 else values
