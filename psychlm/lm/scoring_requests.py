"""Turn tokens of texts into scoring requests: inputs of a model, and the outputs wanted of them.

Every kind of model is served by the same three steps: texts become requests (this module), batches
of requests go through the network, and each wanted output becomes one row
(:mod:`psychlm.lm.forward`). Row i of a document belongs to its token i, the row after the last
token to the end of the text.

``left_to_right``, ``any_order``
    Causal and permutation models. A text that fits is one request; a longer one is read through
    overlapping windows, each of which gives values to its last tokens only: at most ``stride``,
    from the beginning of a word to the beginning of another, so that every word is read whole with
    at least ``stride`` tokens before it.
``both_sides``, ``left_side``
    Masked models: one request per token (Kauf & Ivanova 2023, *A better way to do masked language
    model scoring*).
``shared_prefixes``
    Texts that begin alike (minimal pairs, factorial designs) are read once as far as they agree:
    the tokens of a family are the nodes of a tree, each text a path from the root, and an attention
    mask shows every token only its own path. The values are those of reading each text by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from psychlm.lm._errors import ModelError

NO_TARGET = -1
LEAST_SHARED = 0.25  # of a text's tokens: sharing fewer would not repay the mask
LARGEST_FAMILY = 512  # tokens: the mask has the square of them

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoringRequest:
    """One input sequence, and the outputs wanted of it."""

    ids: Ints  # (n_tokens,) input, before masking; a view where requests share a text
    position: Ints  # (n_wanted,) position of the input at which the output is read
    target: Ints  # (n_wanted,) token whose probability is wanted, or NO_TARGET
    row: Ints  # (n_wanted,) row it fills
    masked: tuple[int, int] = (0, 0)  # tokens of the input that the mask token replaces
    # where texts share tokens: position of each token in its own text, and the token before it (-1
    # for the first)
    depth: Ints | None = None
    parent: Ints | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens around a text, and the windows in which it is read."""

    start: int | None  # token before the text
    stop: int | None  # token after it (masked models)
    blank: int  # token that stands for the end of a text (permutation models)
    every_window: bool  # whether the start token also stands before windows inside a text
    context_tokens: int  # longest input, special tokens counted
    stride: int  # tokens by which windows advance, at most
    ends: bool  # whether the row after the last token is wanted


def left_to_right(
    ids: Ints, word: Ints, first_row: int, special: SpecialTokens, ahead: int = 1
) -> Iterator[ScoringRequest]:
    """Yield the requests of a causal model over one text.

    ``word`` is the word of each token, ``first_row`` the row of the first; what a model predicts is
    so many tokens ``ahead`` of the last that it reads.
    """
    targets = np.append(ids, NO_TARGET)
    source = ids if ahead else np.append(ids, special.blank)
    for begin, low, high in _windows(word, special, ahead):
        read = source[begin : high - ahead]
        n_start = 0
        if special.start is not None and (begin == 0 or special.every_window):
            read = np.append(special.start, read)
            n_start = 1
        wanted = np.arange(low, high)
        position = wanted - begin - ahead + n_start
        # a first token without a start token before it is predicted by nothing
        visible = position >= 1 - ahead
        target = targets[wanted[visible]]
        yield ScoringRequest(read, position[visible], target, first_row + wanted[visible])


# A permutation model (Yang et al. 2019) predicts a token at the token's own position, the end of a
# text at that of ``special.blank``.
any_order = partial(left_to_right, ahead=0)


def _windows(word: Ints, special: SpecialTokens, ahead: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each window its first token and the rows, low to high, that it gives values to."""
    n_rows = len(word) + special.ends
    size = special.context_tokens - (special.start is not None)
    if not 1 <= special.stride < size:
        said = f"stride={special.stride} does not fit a window of {size} tokens"
        raise ModelError(f"{said}; choose 1 to {size - 1}")
    if n_rows <= size + ahead:
        yield 0, 0, n_rows
        return
    step = min(special.stride, size - special.stride)
    begins_word = np.flatnonzero(np.diff(word, prepend=-1))
    low = 0
    high = size + ahead
    while low < n_rows:
        if high < n_rows:  # end where a word begins, unless one word is longer than the window
            fits = begins_word[np.searchsorted(begins_word, low, "right") :]
            fits = fits[: np.searchsorted(fits, high, "right")]
            high = int(fits[-1]) if len(fits) else high
        yield max(0, high - size - ahead), low, high
        low = high
        high = min(n_rows, high + step)


def both_sides(
    ids: Ints, word: Ints, first_row: int, special: SpecialTokens, right: bool = True
) -> Iterator[ScoringRequest]:
    """Yield one request per token of a masked model (BERT), which sees both sides of a word.

    The pseudo-log-likelihood of a word sums those of its tokens, each with itself and the later
    tokens of the same word masked, so that no token is guessed from the rest of its own word. A
    long text is cut around the word. Without ``right`` the request ends behind its first mask.
    """
    start = [] if special.start is None else [special.start]
    stop = [] if special.stop is None or not right else [special.stop]
    size = special.context_tokens - len(start) - len(stop)
    ends = np.searchsorted(word, word, side="right") if right else np.arange(len(ids)) + 1
    for token in range(len(ids)):
        end = int(min(ends[token], token + size))
        begin = 0
        if not right:
            begin = max(0, end - size)
        elif len(ids) > size:
            middle = (token + end) // 2
            begin = min(max(0, middle - size // 2, end - size), token, len(ids) - size)
        text = ids[begin : begin + size] if right else ids[begin:end]
        read = np.concatenate([start, text, stop]).astype(np.int64)
        position = token - begin + len(start)
        output, target, row = np.array([[position], [ids[token]], [first_row + token]])
        yield ScoringRequest(read, output, target, row, (position, position + end - token))


# A left-masked model (XLM) sees the tokens before that fit, and a mask.
left_side = partial(both_sides, right=False)


@dataclass(frozen=True)
class Reading:
    """How a model of a kind reads a text."""

    requests: Callable[[Ints, Ints, int, SpecialTokens], Iterator[ScoringRequest]]
    # every word after those before it, so that surprisals can be corrected for where words end
    from_left: bool = False
    masks: bool = False  # tokens of the input are masked: the tokenizer needs a mask token
    framed: bool = False  # a text stands between the tokenizer's [CLS] and [SEP]


READINGS = {
    "causal": Reading(left_to_right, from_left=True),
    "permutation": Reading(any_order, from_left=True),
    "masked": Reading(both_sides, masks=True, framed=True),
    "left-masked": Reading(left_side, masks=True),
}


def families(texts: Sequence[Ints], largest: int = LARGEST_FAMILY) -> list[list[int]]:
    """Group texts that begin alike, in the order of their tokens; most are families of one."""
    order = sorted(range(len(texts)), key=lambda i: texts[i].astype(">u4").tobytes())
    groups: list[list[int]] = []
    size = 1  # the start token
    for i, text in enumerate(order):
        n_tokens = len(texts[text])
        shared = _n_shared(texts[order[i - 1]], texts[text]) if i else 0
        fresh = n_tokens - shared
        if shared > max(1, LEAST_SHARED * n_tokens) and size + fresh <= largest:
            groups[-1].append(text)
            size += fresh
        else:
            groups.append([text])
            size = 1 + n_tokens
    return groups


def _n_shared(a: Ints, b: Ints) -> int:
    """Return how many first tokens two texts share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def shared_prefixes(
    texts: Sequence[Ints], first_rows: Sequence[int], special: SpecialTokens
) -> ScoringRequest:
    """Return the one request that reads a family, whose texts fit the model's window."""
    start = special.start
    if start is None:
        # The first token, which a family shares, is the root; nothing predicts it.
        start = int(texts[0][0])
        texts = [text[1:] for text in texts]
        first_rows = [row + 1 for row in first_rows]
    ids = [start]
    parent = [-1]
    depth = [0]
    child: dict[tuple[int, int], int] = {}  # of a node, by token
    position: list[int] = []
    target: list[int] = []
    row: list[int] = []
    for text, first_row in zip(texts, first_rows, strict=True):
        # the last token is read only where the row after it is wanted
        read = text if special.ends else text[:-1]
        node = 0
        path = [node]
        for token in read.tolist():
            if (node, token) not in child:
                child[node, token] = len(ids)
                ids.append(token)
                parent.append(node)
                depth.append(depth[node] + 1)
            node = child[node, token]
            path.append(node)
        position += path
        target += [*text.tolist(), NO_TARGET][: len(path)]
        row += range(first_row, first_row + len(path))
    return ScoringRequest(
        np.array(ids, np.int64),
        np.array(position, np.int64),
        np.array(target, np.int64),
        np.array(row, np.int64),
        depth=np.array(depth, np.int64),
        parent=np.array(parent, np.int64),
    )


def visible_tokens(parent: Ints) -> NDArray[np.bool_]:
    """Return which tokens of a tree each sees, (n, n): itself and those before it in its text."""
    visible = np.eye(len(parent), dtype=bool)
    for node in range(1, len(parent)):  # a parent stands before its children
        visible[node] |= visible[parent[node]]
    return visible
