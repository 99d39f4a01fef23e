"""What one pass through a model reads, and which of its outputs are wanted.

Every kind of model is served by the same three steps: a plan (windows, prefixes, masked) turns documents into passes,
batches of passes go through the network, and each wanted output becomes one row: the surprisal of a token.
Row i of a document belongs to its token i, the row after the last token to the end of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_TARGET = -1


@dataclass(frozen=True, eq=False)
class Pass:
    """One input sequence, and the outputs wanted of it."""

    ids: NDArray[np.int64]  # (n_tokens,) input, before masking; a view where passes share a text
    position: NDArray[np.int64]  # (n_wanted,) where in the input the output is read
    target: NDArray[np.int64]  # (n_wanted,) token whose probability is wanted, or NO_TARGET
    row: NDArray[np.int64]  # (n_wanted,) row it fills
    masked: tuple[int, int] = (0, 0)  # tokens of the input that the mask token stands for
    depth: NDArray[np.int64] | None = (
        None  # (n_tokens,) place of each token in its own text, where texts share tokens
    )
    parent: NDArray[np.int64] | None = (
        None  # (n_tokens,) the token before it in its own text, -1 for the first
    )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text, and the room between them."""

    start: int | None  # token that stands before the text
    stop: int | None  # token that stands after it (masked models)
    every_window: bool  # whether the start token also stands before windows inside a text
    context_tokens: int  # longest input, special tokens counted
    stride: int  # tokens by which windows advance, at most
    ends: bool  # whether the row after the last token is wanted
