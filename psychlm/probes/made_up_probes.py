"""Probes of a taxonomy that does not exist: what a notebook runs on where WordNet is not installed.

A random tree of invented words, questions about its ISA links with hops and distractors as WordNetQA has them. No model
can know the answers, so accuracies are those of guessing; what such probes show is that the analysis runs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.frames import check_items

BRANCHES = 4
DEPTH = 5  # levels below the root: hops 1 to 4, and sisters of everything
PROMPT = "“Look, a {0}!” A {0} is a kind of"
_SYLLABLES = (
    "ba",
    "dor",
    "fen",
    "gi",
    "kul",
    "lam",
    "mop",
    "nir",
    "pa",
    "rus",
    "sel",
    "tov",
    "vi",
    "wug",
    "zet",
)


def isa(n_questions: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return questions about a made-up taxonomy in the columns of WordNetQA.

    Parameters
    ----------
    n_questions : int
        All of the probe hypernymy.
    rng : Generator
        Draws the words and the questions.

    Returns
    -------
    DataFrame
        An items frame with ``probe``, ``cluster``, ``hops``, ``distractor_set``, ``distractor_distance`` and ``split``
        (half for training, a fifth for development, whole clusters at a time).
    """
    size = (BRANCHES ** (DEPTH + 1) - 1) // (BRANCHES - 1)
    pairs = rng.permutation(len(_SYLLABLES) ** 3)[:size]
    place = np.stack(np.unravel_index(pairs, (len(_SYLLABLES),) * 3), axis=1)
    words = np.array(["".join(_SYLLABLES[i] for i in row) for row in place])
    return check_items(_questions(n_questions, words, rng))


def _up(node: np.ndarray, hops: np.ndarray) -> np.ndarray:
    """Return the ancestors of nodes in a tree that is numbered level by level."""
    for step in range(int(hops.max())):
        node = np.where(hops > step, (node - 1) // BRANCHES, node)
    return node


def _questions(n: int, words: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Return n questions, each leaf asked about several times; no distractor is an ancestor of the leaf."""
    leaves = np.arange(len(words) - BRANCHES**DEPTH, len(words))
    leaf = rng.choice(rng.choice(leaves, max(2, n // 4), replace=False), n)
    hops = rng.integers(1, DEPTH, n)
    above = np.stack([_up(leaf, np.full(n, h)) for h in range(DEPTH + 1)], axis=1)
    answer = above[np.arange(n), hops]
    sister = rng.random(n) < 0.5
    near = ((answer - 1) // BRANCHES * BRANCHES + 1)[:, None] + np.argsort(
        rng.random((n, BRANCHES)), axis=1
    )
    far = rng.integers(1, len(words), (n, 4 * BRANCHES))
    drawn = (dict.fromkeys([*(near[i] if sister[i] else ()), *far[i]]) for i in range(n))
    wrong = np.array(
        [[node for node in nodes if node not in above[i]][:4] for i, nodes in enumerate(drawn)]
    )
    order = rng.permuted(np.tile(np.arange(5), (n, 1)), axis=1)
    part = rng.choice(["train", "dev", "test"], len(words), p=[0.5, 0.2, 0.3])
    return pd.DataFrame(
        {
            "item_id": [f"hypernymy:{i}" for i in range(n)],
            "prompt": [PROMPT.format(word) for word in words[leaf]],
            "choices": words[
                np.take_along_axis(np.column_stack([answer, wrong]), order, axis=1)
            ].tolist(),
            "answer": order.argmin(axis=1),
            "probe": "hypernymy",
            "cluster": [f"hypernymy:{word}" for word in words[leaf]],
            "hops": hops,
            "distractor_set": np.where(sister, "sister", "random"),
            "distractor_distance": sister.astype(int),
            "split": part[leaf],
        }
    )
