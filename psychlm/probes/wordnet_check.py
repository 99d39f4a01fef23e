"""Every question looked up in the graph again, from nothing but what stands in its row.

The generator strikes out candidates while it draws; here finished questions are taken as a stranger would find them:
names are turned into nodes, texts are compared with what those concepts say, and each claim is looked up anew: the key
stands in the stated relation, no other choice does, every distractor is of the kind and at the distance recorded.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.probes.wordnet import WordNet
from psychlm.probes.wordnet_graph import Graph, Ints, any_of
from psychlm.probes.wordnet_templates import choice
from psychlm.probes.wordnet_wording import SHOWN_WORDS, shown_words


def violations(
    items: pd.DataFrame, wordnet: WordNet, graph: Graph, *, max_distance: int = 3
) -> pd.DataFrame:
    """Return what is wrong with questions: ``item_id`` and ``what``; no rows where all is well.

    Parameters
    ----------
    items : DataFrame
        Questions of :class:`psychlm.probes.wordnet_probes.Probes`.
    max_distance : int
        Random distractors are neither above nor below the concept, nor its sisters as deep as this.
    """
    number = pd.Series(np.arange(graph.n), index=wordnet.concepts["name"])
    concept, answer = (
        number[items["concept"]].to_numpy(),
        number[items["answer_concept"]].to_numpy(),
    )
    n = len(items)
    row = np.repeat(np.arange(n), [len(names) for names in items["distractor_concepts"]])
    other = number[np.concatenate(items["distractor_concepts"].to_numpy())].to_numpy()
    kind = np.concatenate(items["distractor_types"].to_numpy())
    distance = np.concatenate(items["distractor_distances"].to_numpy()).astype(np.int64)
    probe, hops = items["probe"].to_numpy(dtype=str), items["hops"].to_numpy()
    up, down = probe == "hypernymy", probe == "hyponymy"
    stated = np.where(
        up, graph.hops(concept, answer), np.where(down, graph.hops(answer, concept), 0)
    )
    itself = ~(up | down)
    wrong_kind = _actual(graph, concept[row], other, kind, max_distance) != distance
    n_wrong = items["choices"].map(lambda texts: len(set(texts))).to_numpy() != 5
    found = {
        "the key does not stand in the stated relation": (stated != hops)
        | (itself & (concept != answer)),
        "a distractor is not of its kind and distance": any_of(row, wrong_kind, n),
        "a distractor is right as well": any_of(
            row, _right(graph, items, concept[row], row, other), n
        ),
        "there are not four distractors": np.bincount(row, minlength=n) != 4,
        "there are not five different choices": n_wrong,
        "a choice says something else than its concept": ~_texts_agree(
            items, wordnet, answer, other
        ),
        "the word asked about is not in the question": ~_word_stands(items),
    }
    parts = [
        pd.DataFrame({"item_id": items["item_id"].to_numpy()[bad], "what": what})
        for what, bad in found.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _actual(graph: Graph, concept: Ints, other: Ints, kind: np.ndarray, max_distance: int) -> Ints:
    """Return the distance of each distractor in its own kind; -1 where it is none of that kind."""
    above, below = graph.hops(concept, other), graph.hops(other, concept)
    sister = graph.sister_distance(concept, other)
    related = (
        (above > 0) | (below > 0) | ((sister > 0) & (sister <= max_distance)) | (concept == other)
    )
    ways = {"hypernym": above, "hyponym": below, "sister": sister}
    actual = np.where(related, -1, 0)
    for name, value in ways.items():
        actual = np.where(kind == name, np.where(value > 0, value, -1), actual)
    return actual


def _right(graph: Graph, items: pd.DataFrame, concept: Ints, row: Ints, other: Ints) -> np.ndarray:
    """Tell which distractors answer the question too, by their concept or by any sense of a word they show."""
    probe = items["probe"].to_numpy(dtype=str)[row]
    keys = (
        f"{lemma.lower()}/{pos}" for lemma, pos in zip(items["lemma"], items["pos"], strict=True)
    )
    asked = np.array([graph.word_number.get(key, -1) for key in keys], dtype=np.int64)[row]
    right = concept == other
    for name, by_word in (
        ("definitions", _has),
        ("synonymy", _shares),
        ("hypernymy", _above),
        ("hyponymy", _below),
    ):
        here = np.flatnonzero(probe == name)
        if len(here):
            right[here] |= by_word(graph, concept[here], asked[here], other[here])
    return right


def _shown(graph: Graph, other: Ints) -> tuple[Ints, Ints]:
    at, word = graph.words_of.expand(other)
    shown = np.arange(len(at)) - np.searchsorted(at, at) < SHOWN_WORDS
    return at[shown], word[shown]


def _has(graph: Graph, concept: Ints, asked: Ints, other: Ints) -> np.ndarray:
    at, word = graph.words_of.expand(other)
    return any_of(at, word == asked[at], len(other))


def _shares(graph: Graph, concept: Ints, asked: Ints, other: Ints) -> np.ndarray:
    own_at, own = graph.words_of.expand(concept)
    at, word = _shown(graph, other)
    n = len(graph.words)
    return any_of(at, np.isin(at * n + word, own_at * n + own), len(other))


def _above(graph: Graph, concept: Ints, asked: Ints, other: Ints) -> np.ndarray:
    at, word = _shown(graph, other)
    by_word = any_of(at, graph.word_isa.have(asked[at], word), len(other))
    return by_word | graph.isa_or_instance.have(concept, other)


def _below(graph: Graph, concept: Ints, asked: Ints, other: Ints) -> np.ndarray:
    at, word = _shown(graph, other)
    by_word = any_of(at, graph.word_isa.have(word, asked[at]), len(other))
    return by_word | graph.isa_or_instance.have(other, concept)


def _texts_agree(items: pd.DataFrame, wordnet: WordNet, answer: Ints, other: Ints) -> np.ndarray:
    """Tell where the choices are the texts of the key and of the distractors, each at its place."""
    gloss, pos = (wordnet.concepts[column].to_numpy(dtype=object) for column in ("gloss", "pos"))
    words = shown_words(wordnet)

    def text(probe: str, node: int) -> str:
        return choice(probe, words[node], gloss[node], pos[node])

    columns = (
        items["probe"],
        items["choices"],
        items["answer"],
        answer,
        other.reshape(len(items), -1),
    )
    return np.array(
        [
            choices[key] == text(probe, right)
            and [c for place, c in enumerate(choices) if place != key]
            == [text(probe, node) for node in wrong]
            for probe, choices, key, right, wrong in zip(*columns, strict=True)
        ],
        dtype=bool,
    )


def _word_stands(items: pd.DataFrame) -> np.ndarray:
    return np.array(
        [word in prompt for word, prompt in zip(items["word"], items["prompt"], strict=True)],
        dtype=bool,
    )
