"""A WordNet of nonsense, for where the real one is not installed: a random tree of made-up concepts in no language.

It has what probes ask for (definitions, sentences, synonyms, a hierarchy, a few words with two senses), so that every
step runs; nothing that a model makes of it says anything about the model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from psychlm.data import DataMissingError
from psychlm.probes import wordnet
from psychlm.probes.wordnet import WordNet

SYLLABLES = (
    "ba",
    "do",
    "fe",
    "gu",
    "ki",
    "lo",
    "mu",
    "na",
    "pi",
    "ro",
    "su",
    "ta",
    "ve",
    "wo",
    "zi",
)


def load(path: str | Path | None = None, *, pos: str = "nvar", seed: int) -> WordNet:
    """Read WordNet (:func:`psychlm.probes.wordnet.load`), or draw nonsense with this seed where there is none.

    A path that is named and holds no WordNet is an error all the same.
    """
    try:
        return wordnet.load(path, pos=pos)
    except DataMissingError:
        if path is not None:
            raise
        return simulated(seed)


def simulated(seed: int, n_concepts: int = 3000, *, share_verbs: float = 0.3) -> WordNet:
    """Draw a WordNet whose concepts each hang below a random earlier one of their part of speech.

    Parameters
    ----------
    share_verbs : float
        How many of the concepts are verbs; the others are nouns.

    Returns
    -------
    WordNet
        Its version is "simulated".
    """
    rng = np.random.default_rng(seed)
    words = _words(rng, 3 * n_concepts)
    pos = np.where(np.arange(n_concepts) < share_verbs * n_concepts, "v", "n")
    n_verbs = int((pos == "v").sum())
    roots = np.where(pos == "v", 0, n_verbs)
    nodes = np.arange(n_concepts)
    parent = roots + (rng.random(n_concepts) ** 2 * (nodes - roots)).astype(
        np.int64
    )  # early ones have many children
    below = nodes[nodes != roots]
    n_words = 1 + rng.poisson(0.8, n_concepts)
    at = np.repeat(nodes, n_words)
    lemmas = pd.DataFrame({"node": at, "lemma": words[rng.permutation(len(words))[: len(at)]]})
    twice = rng.random(len(at)) < 0.05  # a few words have a second sense
    lemmas.loc[twice, "lemma"] = rng.choice(
        lemmas["lemma"].to_numpy(dtype=object), int(twice.sum())
    )
    lemmas = lemmas.drop_duplicates(ignore_index=True)
    first = lemmas.drop_duplicates("node")["lemma"].to_numpy(dtype=object)
    gloss = [" ".join(row) for row in words[rng.integers(0, len(words), (n_concepts, 6))]]
    concepts = pd.DataFrame(
        {
            "name": [
                f"{word}.{p}.{i:04d}" for i, (word, p) in enumerate(zip(first, pos, strict=True))
            ],
            "pos": pos,
            "lexname": np.where(pos == "v", "verb.social", "noun.object"),
            "gloss": gloss,
        }
    )
    about = words[rng.integers(0, len(words), (n_concepts, 3))]
    sentences = [f"{a} {b} {word} {c}" for (a, b, c), word in zip(about, first, strict=True)]
    contexts = pd.DataFrame({"node": nodes, "sentence": sentences, "word": first, "lemma": first})
    links = np.column_stack([below, parent[below]])
    none = np.empty((0, 2), dtype=np.int64)
    ones = np.ones(n_concepts, dtype=np.int64)
    return WordNet("simulated", "", concepts, lemmas, contexts, links, none, ones, kind="simulated")


def _words(rng: np.random.Generator, n: int) -> np.ndarray:
    drawn = rng.choice(np.array(SYLLABLES), (2 * n, 4))
    return rng.permutation(np.unique(np.array(["".join(row) for row in drawn], dtype=object)))[:n]
