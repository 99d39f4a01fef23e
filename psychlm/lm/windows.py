"""Left-to-right passes: a text that fits is one pass; a longer one is read through overlapping windows.

Each window reads as many tokens as the model takes and gives values to its last ones only: at most ``stride`` tokens,
from the beginning of a word to the beginning of another, so that every word is read whole in one window with at least
``stride`` tokens before it (all there are, near the beginning of the text).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from psychlm.lm.load import ModelError
from psychlm.lm.passes import NO_TARGET, Frame, Pass


def left_to_right(
    ids: NDArray[np.int64], word: NDArray[np.int64], first_row: int, frame: Frame
) -> Iterator[Pass]:
    """Yield the passes of a causal model over one text.

    Parameters
    ----------
    ids, word : ndarray, shape (n_tokens,)
        The text's tokens, and the word each belongs to.
    first_row : int
        Row of the first token.
    """
    for begin, low, high in spans(word, frame, ahead=1):
        read, n_start = _started(ids[begin : high - 1], frame, begin)
        wanted = np.arange(low, high)
        position = wanted - begin - 1 + n_start
        visible = (
            position >= 0
        )  # the first token has nothing before it, unless a start token stands there
        target = np.append(ids, NO_TARGET)[wanted]
        yield Pass(read, position[visible], target[visible], first_row + wanted[visible])


def any_order(
    ids: NDArray[np.int64], word: NDArray[np.int64], first_row: int, frame: Frame, blank: int
) -> Iterator[Pass]:
    """Yield the passes of a permutation model (Yang et al. 2019) told to factorise from left to right.

    Such a model predicts a token at the token's own place, which it knows though it does not see the token; for the
    row after the last token a ``blank`` stands there.
    """
    for begin, low, high in spans(word, frame, ahead=0):
        read, n_start = _started(np.append(ids, blank)[begin:high], frame, begin)
        wanted = np.arange(low, high)
        position = wanted - begin + n_start
        visible = (
            position >= 1
        )  # with nothing before it to attend to, its output would be meaningless
        target = np.append(ids, NO_TARGET)[wanted]
        yield Pass(read, position[visible], target[visible], first_row + wanted[visible])


def _started(read: NDArray[np.int64], frame: Frame, begin: int) -> tuple[NDArray[np.int64], int]:
    """Return a window's tokens after the start token, where one stands there, and how many it adds."""
    if frame.start is None or (begin > 0 and not frame.every_window):
        return read, 0
    return np.append(frame.start, read), 1


def spans(word: NDArray[np.int64], frame: Frame, ahead: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each window the first token it reads and the rows, low to high, that it gives values to.

    A model that predicts the token after the last it reads is one row ``ahead`` of what it reads.
    """
    n_rows = len(word) + frame.ends
    room = frame.context_tokens - (frame.start is not None)
    if frame.stride < 1 or frame.stride >= room:
        raise ModelError(
            f"stride={frame.stride} does not fit a window of {room} tokens; choose 1 to {room - 1}"
        )
    if n_rows <= room + ahead:
        yield 0, 0, n_rows
        return
    step = min(frame.stride, room - frame.stride)
    begins_word = np.flatnonzero(np.diff(word, prepend=-1))
    low, high = 0, room + ahead
    while low < n_rows:
        if high < n_rows:  # end where a word begins, unless one word is longer than the window
            fits = begins_word[(begins_word > low) & (begins_word <= high)]
            high = int(fits[-1]) if len(fits) else high
        yield max(0, high - room - ahead), low, high
        low, high = high, min(n_rows, high + step)
