"""DISTR: wrong answers that lie close in the graph, each with its kind and distance, and none of them right after all.

Candidates are drawn for all questions of a probe at once, struck out by sorted keys, and taken in random order until a
question has four that differ from one another (Richardson & Sabharwal 2020, section 3.1).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from psychlm.probes.wordnet_graph import Graph, Ints, Lists, Pairs, any_of
from psychlm.probes.wordnet_wording import SHOWN_WORDS, Wording

N_DISTRACTORS = 4
DRAWN = 16  # candidates drawn of a family larger than this; smaller ones are gone through whole
KINDS = ("random", "sister", "hypernym", "hyponym")
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """The questions of a probe before they have distractors: one entry a question and answer.

    Attributes
    ----------
    probe : str
    concept, answer : int arrays
        The concept asked about, and the one that is right (the same in definitions and synonymy).
    hops : int array
        Hops between the two, 0 where they are the same.
    context : int array
        Row of ``WordNet.contexts``; -1 in synonymy.
    word : int array
        Number of the word asked about (``Graph.words``); -1 in synonymy.
    word_stems : Lists
        Stems of that word; in synonymy, of the definition.
    question_stems : Lists
        Stems of the whole question, those of the template among them.
    template : int array
        Which template words the question.
    """

    probe: str
    concept: Ints
    answer: Ints
    hops: Ints
    context: Ints
    word: Ints
    word_stems: Lists
    question_stems: Lists
    template: Ints

    def __len__(self) -> int:
        return len(self.concept)

    @cached_property
    def in_question(self) -> Pairs:
        """Return the pairs (question, stem) of stems that stand in a question."""
        row, stem = self.question_stems.expand(np.arange(len(self)))
        return Pairs(row, stem, int(stem.max(initial=0)) + 1)

    def take(self, rows: Bools) -> Asked:
        """Return those questions for which ``rows`` is true."""
        at = np.flatnonzero(rows)
        words, questions = (
            Lists.of(*stems.expand(at), len(at)) for stems in (self.word_stems, self.question_stems)
        )
        arrays = (self.concept[at], self.answer[at], self.hops[at], self.context[at], self.word[at])
        return Asked(self.probe, *arrays, words, questions, self.template[at])


@dataclass(frozen=True)
class Chosen:
    """Distractors of some questions: ``row`` of :class:`Asked`, and four concepts, kinds and distances each."""

    row: Ints
    nodes: Ints  # (n, 4)
    kinds: Ints  # (n, 4), places in KINDS
    distances: Ints  # (n, 4), 0 for random ones


class Rules:
    """What makes a choice unfit, for one probe: asked for many pairs of question and concept at once."""

    def __init__(self, graph: Graph, wording: Wording, has_context: Bools) -> None:
        everything = np.arange(graph.n)
        at, word = graph.words_of.expand(everything)
        place = np.arange(len(at)) - graph.words_of.starts[at]
        self.graph, self.wording = graph, wording
        self.has_word = Pairs(at, word, len(graph.words))
        shown = place < SHOWN_WORDS
        self.shown = Lists.of(at[shown], word[shown], graph.n)
        self.shows_word = Pairs(at[shown], word[shown], len(graph.words))
        self.has_context = has_context
        self.has_synonyms = (
            np.bincount(self.has_word.keys // len(graph.words), minlength=graph.n) > 1
        )

    def may_answer(self, probe: str, *, filter_leaks: bool = False) -> Bools:
        """Tell which concepts could be the key of some question of a probe; its distractors are drawn from these only.

        Richardson & Sabharwal found (sections 3.2 and 5) that definitions of entries with and without examples can be
        told apart without the question. So can words that stand in their own definition, which no key does.
        """
        if probe not in ("definitions", "synonymy"):
            return self.wording.sound
        able = self.wording.alone & (
            self.has_context if probe == "definitions" else self.has_synonyms
        )
        return able & ~self.wording.names_itself if filter_leaks else able

    def alike(self, first: Ints, second: Ints) -> Bools:
        """Tell which two concepts cannot both be choices: the same, with a word in common, or nearly one gloss."""
        alike = (first == second) | self.wording.near.have(first, second)
        at, word = self.shown.expand(first)
        return alike | any_of(at, self.shows_word.have(second[at], word), len(first))

    def leaks(self, asked: Asked, row: Ints, node: Ints) -> Bools:
        """Tell which choices hold a content word of what is asked, or show a word of the question."""
        if asked.probe == "synonymy":
            return self._stands_in_question(asked, row, node)
        holds = self.wording.gloss_has if asked.probe == "definitions" else self.wording.choice_has
        at, stem = asked.word_stems.expand(row)
        leaks = any_of(at, holds.have(node[at], stem), len(row))
        return (
            leaks
            if asked.probe == "definitions"
            else leaks | self._stands_in_question(asked, row, node)
        )

    def _stands_in_question(self, asked: Asked, row: Ints, node: Ints) -> Bools:
        at, shown = self.wording.shown.expand(node)
        return any_of(at, asked.in_question.have(row[at], shown), len(row))

    def right(self, asked: Asked, row: Ints, node: Ints) -> Bools:
        """Tell which concepts would be right answers too, in any sense of the words shown."""
        concept, word = asked.concept[row], asked.word[row]
        if asked.probe == "definitions":  # another sense of the word asked about
            return (concept == node) | self.has_word.have(node, word)
        if asked.probe == "synonymy":  # a word of the concept itself
            at, shown = self.shown.expand(node)
            return (concept == node) | any_of(at, self.has_word.have(concept[at], shown), len(row))
        up = asked.probe == "hypernymy"
        below, above = (concept, node) if up else (node, concept)
        at, shown = self.shown.expand(node)
        below_word, above_word = (word[at], shown) if up else (shown, word[at])
        by_word = any_of(at, self.graph.word_isa.have(below_word, above_word), len(row))
        return (concept == node) | self.graph.isa_or_instance.have(below, above) | by_word

    def fit(
        self, asked: Asked, row: Ints, node: Ints, filter_leaks: bool, counts: Counter[str]
    ) -> Bools:
        """Tell which candidates may stand as distractors; ``counts`` learns how many were struck out, and why."""
        keep = self.may_answer(asked.probe, filter_leaks=filter_leaks)[node]
        reasons = (
            [("right after all", self.right), ("leak", self.leaks)]
            if filter_leaks
            else [("right after all", self.right)]
        )
        for reason, unfit in reasons:
            left = np.flatnonzero(keep)
            struck = unfit(asked, row[left], node[left])
            counts[f"candidates: {reason}"] += int(struck.sum())
            keep[left[struck]] = False
        left = np.flatnonzero(keep)
        struck = self.alike(node[left], asked.answer[row[left]])
        counts["candidates: near the answer"] += int(struck.sum())
        keep[left[struck]] = False
        return keep


def draw(
    owners: Lists | None, families: Lists, concepts: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw candidates for each concept from the families of its owners (its parents, say, or itself).

    Returns
    -------
    row, node : int arrays
        Place in ``concepts`` and candidate, without repetition, in random order within a row.
    """
    at, own = (np.arange(len(concepts)), concepts) if owners is None else owners.expand(concepts)
    sizes = families.sizes(own)
    ends = np.cumsum(sizes)
    total = np.bincount(at, weights=sizes, minlength=len(concepts)).astype(np.int64)
    begin = np.cumsum(total) - total
    taken = np.minimum(total, DRAWN)
    row = np.repeat(np.arange(len(concepts)), taken)
    within = np.arange(len(row)) - np.repeat(np.cumsum(taken) - taken, taken)
    random = (rng.random(len(row)) * total[row]).astype(np.int64)
    place = begin[row] + np.where(total[row] > DRAWN, random, within)
    family = np.searchsorted(ends, place, side="right")
    node = families.values[families.starts[own[family]] + place - (ends - sizes)[family]]
    order = np.lexsort((rng.random(len(row)), row))
    row, node = row[order], node[order]
    _, first = np.unique(row * (node.max(initial=0) + 1) + node, return_index=True)
    first.sort()
    return row[first], node[first]


class Drawer:
    """Distractors for the questions of one probe; the random ones come from ``pool``."""

    def __init__(
        self,
        rules: Rules,
        asked: Asked,
        pool: Ints,
        *,
        max_distance: int,
        filter_leaks: bool,
        counts: Counter[str],
    ) -> None:
        self.rules, self.asked, self.graph = rules, asked, rules.graph
        self.max_distance, self.filter_leaks, self.counts = max_distance, filter_leaks, counts
        self.pools = Lists.of(self.graph.pos[pool], pool, int(self.graph.pos.max(initial=0)) + 1)

    def near_by(
        self, kind: str, distance: int, rows: Ints, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Return candidates of one kind and distance that fit."""
        concept = self.asked.concept[rows]
        if kind == "random":
            row, node = draw(None, self.pools, self.graph.pos[concept], rng)
            far = self.unrelated(concept[row], node)
            row, node = row[far], node[far]
        elif kind == "sister":
            row, node = draw(self.graph.parents, self.graph.under(distance), concept, rng)
            exact = self.graph.sister_distance(concept[row], node) == distance
            row, node = row[exact], node[exact]
        else:
            family = (
                self.graph.above(distance) if kind == "hypernym" else self.graph.under(distance)
            )
            row, node = draw(None, family, concept, rng)
        fits = self.rules.fit(self.asked, rows[row], node, self.filter_leaks, self.counts)
        return row[fits], node[fits]

    def unrelated(self, concept: Ints, node: Ints) -> Bools:
        """Tell which concepts are neither above nor below another, nor its sister as deep as sisters are drawn."""
        linked = (self.graph.hops(concept, node) > 0) | (self.graph.hops(node, concept) > 0)
        sister = self.graph.sister_distance(concept, node)
        return ~(linked | ((sister > 0) & (sister <= self.max_distance)))

    def four(self, kind: str, distance: int, rng: np.random.Generator, *, top_up: bool) -> Chosen:
        """Return four distractors for every question that has at least one of this kind and distance.

        Parameters
        ----------
        top_up : bool
            Fill up with random ones where there are fewer than four; else such questions are left out. Either way the
            questions left out are counted.
        """
        rows = np.arange(len(self.asked))
        row, node = self.near_by(kind, distance, rows, rng)
        has_any = np.bincount(row, minlength=len(rows)) > 0
        self.counts[f"sets: no {_named(kind, distance)} for the concept"] += int((~has_any).sum())
        rows = np.flatnonzero(has_any)
        row = np.cumsum(has_any)[row] - 1
        place = np.full(len(row), KINDS.index(kind))
        if top_up and kind != "random":
            more_row, more = self.near_by("random", 0, rows, rng)
            row, node = np.concatenate([row, more_row]), np.concatenate([node, more])
            place = np.concatenate([place, np.zeros(len(more), dtype=np.int64)])
            order = np.argsort(
                row, kind="stable"
            )  # random ones come after the others of their question
            row, node, place = row[order], node[order], place[order]
        chosen = self._take_four(rows, row, node, place, distance)
        self.counts[f"sets: fewer than four distractors ({kind})"] += len(rows) - len(chosen.row)
        return chosen

    def _take_four(self, rows: Ints, row: Ints, node: Ints, place: Ints, distance: int) -> Chosen:
        """Go through the candidates of all questions in step, and take those unlike the ones taken before."""
        nodes = np.full((len(rows), N_DISTRACTORS), -1)
        kinds = np.zeros_like(nodes)
        taken = np.zeros(len(rows), dtype=np.int64)
        turn = np.arange(len(row)) - np.searchsorted(row, row)
        for step in range(int(turn.max(initial=-1)) + 1):
            here = (turn == step) & (taken[row] < N_DISTRACTORS)
            at, candidate, kind = row[here], node[here], place[here]
            clash = np.zeros(len(at), dtype=bool)
            for slot in range(N_DISTRACTORS):
                earlier = np.flatnonzero((taken[at] > slot) & ~clash)
                clash[earlier] = self.rules.alike(candidate[earlier], nodes[at[earlier], slot])
            self.counts["candidates: near another distractor"] += int(clash.sum())
            at, candidate, kind = at[~clash], candidate[~clash], kind[~clash]
            nodes[at, taken[at]], kinds[at, taken[at]] = candidate, kind
            taken[at] += 1
        full = taken == N_DISTRACTORS
        distances = np.where(kinds > 0, distance, 0)
        return Chosen(rows[full], nodes[full], kinds[full], distances[full])


def _named(kind: str, distance: int) -> str:
    return kind if kind == "random" else f"{kind} {distance}"
