"""Passes of models that fill in masked tokens.

A masked model (BERT, RoBERTa) sees both sides of a word. The pseudo-log-likelihood of a word sums its tokens', each
with itself and the later tokens of the same word masked, so that no token is guessed from the rest of its own word
(Kauf & Ivanova 2023, *A better way to do masked language model scoring*). A left-masked model (XLM trained on masks,
as Hao et al. 2020 use it) sees the tokens before and one mask. Either takes one pass a token: texts are short, or
patience is long.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from psychlm.lm.passes import Frame, Pass


def both_sides(
    ids: NDArray[np.int64], word: NDArray[np.int64], first_row: int, frame: Frame
) -> Iterator[Pass]:
    """Yield one pass per token, with the token and the rest of its word masked; a long text is cut around the word."""
    read, before = _framed(ids, frame)
    n_tokens, room = len(ids), frame.context_tokens - (len(read) - len(ids))
    ends = np.searchsorted(word, word, side="right")
    for token in range(n_tokens):
        end = int(min(ends[token], token + room))
        if n_tokens <= room:
            text, begin = read, 0
        else:
            middle = (token + end) // 2
            begin = min(max(0, middle - room // 2, end - room), token, n_tokens - room)
            text, _ = _framed(ids[begin : begin + room], frame)
        here = token - begin + before
        yield _one(text, here, ids[token], first_row + token, (here, here + end - token))


def left_side(
    ids: NDArray[np.int64], word: NDArray[np.int64], first_row: int, frame: Frame
) -> Iterator[Pass]:
    """Yield one pass per token: the tokens before it, as many as fit, and a mask."""
    read, before = _framed(ids, frame)
    room = frame.context_tokens - before
    for token in range(len(ids)):
        begin = max(0, token + 1 - room)
        text = (
            read[: before + token + 1] if begin == 0 else _framed(ids[begin : token + 1], frame)[0]
        )
        here = before + token - begin
        yield _one(text[: here + 1], here, ids[token], first_row + token, (here, here + 1))


def _framed(ids: NDArray[np.int64], frame: Frame) -> tuple[NDArray[np.int64], int]:
    """Return tokens between the special ones, and how many of these stand before them."""
    start = [] if frame.start is None else [frame.start]
    stop = [] if frame.stop is None else [frame.stop]
    return np.concatenate([start, ids, stop]).astype(np.int64), len(start)


def _one(
    text: NDArray[np.int64], here: int, target: int, row: int, masked: tuple[int, int]
) -> Pass:
    return Pass(text, np.array([here]), np.array([target]), np.array([row]), masked)
