"""Texts that begin alike are read once as far as they agree: minimal pairs, factorial designs, repeated texts.

Texts with a long common beginning form a family. A family is one pass: its tokens are the nodes of a tree, each text a
path from the root, and an attention mask shows every token only its own path, at its place in its own text. The values
are those of reading each text by itself; what is saved is all that two texts share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psychlm.lm.passes import NO_TARGET, Frame, Pass

LEAST_SHARED = 0.25  # of a text's tokens: less would not repay the mask
LARGEST_FAMILY = 512  # tokens: the mask has the square of them


def families(texts: Sequence[NDArray[np.int64]], largest: int = LARGEST_FAMILY) -> list[list[int]]:
    """Group texts that begin alike, in families of at most ``largest`` tokens.

    Each family is in the order of its tokens; most texts are families of one.
    """
    order = sorted(range(len(texts)), key=lambda i: texts[i].astype(">u4").tobytes())
    groups: list[list[int]] = []
    size = 1  # the start token
    for i, this in enumerate(order):
        n_tokens = len(texts[this])
        shared = common_beginning(texts[order[i - 1]], texts[this]) if i else 0
        fresh = n_tokens - shared
        if shared > max(1, LEAST_SHARED * n_tokens) and size + fresh <= largest:
            groups[-1].append(this)
            size += fresh
        else:
            groups.append([this])
            size = 1 + n_tokens
    return groups


def common_beginning(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many first tokens two texts share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def family_pass(
    texts: Sequence[NDArray[np.int64]], first_rows: Sequence[int], frame: Frame
) -> Pass:
    """Return the one pass that reads a family (in the order that :func:`families` gives), start token included.

    Parameters
    ----------
    texts : sequence of ndarray, shape (n_tokens,)
        Texts that fit the model's window.
    first_rows : sequence of int
        Row of the first token of each.
    """
    ids, parent, depth = [np.array([frame.start])], [np.array([-1])], [np.array([0])]
    position, target, row = [], [], []
    path = np.zeros(1, dtype=np.int64)  # nodes of the text before, start token first
    previous, n_nodes = texts[0][:0], 1
    for text, first_row in zip(texts, first_rows, strict=True):
        # the last token is read only where the row after it is wanted
        seen = text if frame.ends else text[:-1]
        shared = min(common_beginning(previous, seen), len(path) - 1)
        fresh = np.arange(n_nodes, n_nodes + len(seen) - shared)
        path = np.concatenate([path[: shared + 1], fresh])
        ids.append(seen[shared:])
        parent.append(path[shared:-1])
        depth.append(np.arange(shared + 1, len(seen) + 1))
        position.append(path)
        target.append(np.append(text, NO_TARGET)[: len(path)])
        row.append(first_row + np.arange(len(path)))
        previous, n_nodes = seen, n_nodes + len(fresh)
    places, targets, rows = (np.concatenate(part) for part in (position, target, row))
    return Pass(
        np.concatenate(ids).astype(np.int64),
        places,
        targets,
        rows,
        depth=np.concatenate(depth),
        parent=np.concatenate(parent),
    )


def ancestors(parent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which tokens each token of a tree sees: itself and those before it in its own text.

    Returns
    -------
    ndarray of bool, shape (n_tokens, n_tokens)
    """
    seen = np.eye(len(parent), dtype=bool)
    for node in range(1, len(parent)):  # a parent stands before its children
        seen[node] |= seen[parent[node]]
    return seen
