"""Wrong answers that lie close in the graph, with kind and distance, none of them right after all.

A candidate is refused where it would be right in some sense of the words it shows, where it gives
the answer away, or where it nearly repeats another choice (Richardson & Sabharwal 2020, sections
3.1 and 5). Words "repeat" if they have the same stem (Porter's second stemmer, Snowball);
definitions are nearly the same if their sets of stems have a Jaccard index of
:data:`NEARLY_THE_SAME` or more. Candidates are drawn and tested for all questions of a probe at
once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain

import numpy as np
from scipy import sparse

from psychlm.probes.wordnet import (
    Bools,
    Ints,
    IsaGraph,
    WordNet,
    any_by_row,
    collect,
    contain,
    expand,
    share,
)

KINDS = ("random", "sister", "hypernym", "hyponym", "matched")
N_DISTRACTORS = 4
N_DRAWN = 16  # candidates drawn from a larger family; smaller ones are used whole
NEARLY_THE_SAME = 0.8
# Words of a concept that a choice shows: "sit (or sit down)", as in the paper's released questions
SHOWN_WORDS = 3
_FUNCTION_WORDS = (
    "a about above across after against all along also am among an and any are around as at away "
    "back be because been before behind being below between both but by can could did do does done "
    "down during each either for forth from had has have having he her hers him his how i if in "
    "into is it its itself me more most my near no nor not of off on one only onto or other our "
    "out over own s she so some such t than that the their them then there these they this those "
    "through to together too toward towards under up upon us very was we were what when where "
    "which while who whom whose why will with within without would you your"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


class Stemmer:
    """Numbers for the stems of content words, given in the order in which stems are first seen."""

    def __init__(self) -> None:
        from nltk.stem.snowball import SnowballStemmer

        self._number_of_stem: dict[str, int] = {}
        stem = SnowballStemmer("english").stem
        # The cache holds every word seen, since texts repeat the same words.
        self._number = cache(
            lambda word: self._number_of_stem.setdefault(stem(word), len(self._number_of_stem))
        )

    def __len__(self) -> int:
        return len(self._number_of_stem)

    def lists(self, texts: Iterable[str]) -> sparse.csr_array:
        """Return the distinct stems of each text, without function words, as one list per text."""
        rows = []
        for text in texts:
            words = re.findall(r"[^\W_]+", text.lower())
            stems = (self._number(word) for word in words if word not in FUNCTION_WORDS)
            rows.append(list(dict.fromkeys(stems)))
        row = np.repeat(np.arange(len(rows)), [len(stems) for stems in rows])
        stem = np.fromiter(chain.from_iterable(rows), np.int64, count=len(row))
        return collect(row, stem, (len(rows), len(self)))


def near_pairs(sets: sparse.csr_array, threshold: float) -> tuple[Ints, Ints]:
    """Return all pairs of sets whose Jaccard index reaches a threshold.

    Two such sets share one of their n - ceil(threshold n) + 1 rarest members (prefix filtering;
    Chaudhuri, Ganti & Kaushik 2006, A Primitive Operator for Similarity Joins).
    """
    size = np.diff(sets.indptr)
    rows = np.repeat(np.arange(len(size)), size)
    # Order the members of each set from rare to frequent, and keep the prefix.
    counts = np.bincount(sets.indices, minlength=sets.shape[1])
    rarity = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    order = np.lexsort((rarity[sets.indices], rows))
    rank = np.arange(len(rows)) - sets.indptr[rows]
    kept = rank < (size - np.ceil(threshold * size) + 1)[rows]
    full = sets.astype(np.int16)
    prefix = collect(rows[kept], sets.indices[order][kept], sets.shape).astype(np.int16)
    # Candidate pairs: a common member of the prefixes, and sizes that allow the threshold.
    first, second = sparse.triu(prefix @ prefix.T, k=1).nonzero()
    smaller = np.minimum(size[first], size[second])
    close = smaller >= threshold * np.maximum(size[first], size[second])
    first = first[close].astype(np.int64)
    second = second[close].astype(np.int64)
    # Jaccard index = shared / (|A| + |B| - shared), in blocks that fit in memory.
    n_shared = np.zeros(len(first))
    for start in range(0, len(first), 500_000):
        block = slice(start, start + 500_000)
        n_shared[block] = full[first[block]].multiply(full[second[block]]).sum(axis=1).ravel()
    alike = n_shared >= threshold * (size[first] + size[second] - n_shared)
    return first[alike], second[alike]


@dataclass(frozen=True)
class Questions:
    """The questions and keys of a probe before they have distractors: one row per key."""

    probe: str
    concept: Ints  # in question
    answer: Ints  # the right concept (the same in definitions and synonymy)
    hops: Ints  # between the two, 0 where they are the same
    context: Ints  # row of WordNet.contexts; -1 in synonymy
    word: Ints  # number of the word in question (IsaGraph.word_number); -1 in synonymy
    word_stems: sparse.csr_array  # stems of that word; in synonymy, of the definition
    question_stems: sparse.csr_array  # of the whole question, those of the template among them
    template: Ints  # which template words the question

    def __len__(self) -> int:
        return len(self.concept)

    def take(self, rows: Ints | Bools) -> Questions:
        """Return these questions: their numbers, or whether each is taken."""
        names = [field.name for field in fields(self) if field.name != "probe"]
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


class ChoiceRules:
    """What makes a concept unfit as a choice, tested for many pairs of question and concept."""

    def __init__(self, wordnet: WordNet, graph: IsaGraph) -> None:
        self.graph, self.stemmer = graph, Stemmer()
        # Words: the first few, which a choice shows, as numbers and as text. Stems: of the
        # definition, of the shown words, of both.
        everyone = np.arange(graph.n)
        node, word = expand(graph.words_of, everyone)
        shown = np.arange(len(node)) - graph.words_of.indptr[node] < SHOWN_WORDS
        self.shown = collect(node[shown], word[shown], graph.words_of.shape)
        texts = np.split(wordnet.lemmas["lemma"].to_numpy(object), graph.words_of.indptr[1:-1])
        self.shown_words = np.empty(graph.n, dtype=object)
        self.shown_words[:] = [words[:SHOWN_WORDS].tolist() for words in texts]
        gloss = wordnet.concepts["gloss"]
        self.gloss = self.stemmer.lists(gloss)
        self.shown_stems = self.stemmer.lists(map(" ".join, self.shown_words))
        both = [expand(stems, everyone) for stems in (self.gloss, self.shown_stems)]
        node, stem = np.concatenate(both, axis=1)
        self.choice_stems = collect(node, stem, (graph.n, len(self.stemmer)))
        # Definitions: not empty and of one concept only, word for word; unlike all others; holding
        # the concept's own words.
        folded = gloss.str.lower().str.replace(r"\W+", " ", regex=True).str.strip()
        self.sound = (~folded.duplicated(keep=False) & (folded != "")).to_numpy()
        first, second = near_pairs(self.gloss, NEARLY_THE_SAME)
        pair = np.concatenate([first, second]), np.concatenate([second, first])
        self.near = collect(*pair, (graph.n, graph.n))
        self.unlike_others = self.sound & (np.diff(self.near.indptr) == 0)
        self.names_itself = share(self.gloss, everyone, self.shown_stems, everyone)
        self.has_context = np.zeros(graph.n, dtype=bool)
        self.has_context[wordnet.contexts["node"]] = True
        self.has_synonyms = np.diff(graph.words_of.indptr) > 1

    def may_answer(self, probe: str, *, filter_leaks: bool = False) -> Bools:
        """Return which concepts could be keys of a probe; its distractors are drawn from these:
        other entries are told apart without the question (Richardson & Sabharwal 2020, section 5).
        """
        if probe in ("hypernymy", "hyponymy"):
            return self.sound
        needed = self.has_context if probe == "definitions" else self.has_synonyms
        able = self.unlike_others & needed
        return able & ~self.names_itself if filter_leaks else able

    def alike(self, first: Ints, second: Ints) -> Bools:
        """Return which pairs cannot both be choices: equal, a common word, near definitions."""
        common = share(self.shown, second, self.shown, first)
        return (first == second) | contain(self.near, first, second) | common

    def leaks(self, questions: Questions, row: Ints, node: Ints) -> Bools:
        """Return which choices hold a content word of what is asked, or one of the question."""
        in_question = share(questions.question_stems, row, self.shown_stems, node)
        if questions.probe == "synonymy":
            return in_question
        holds = self.gloss if questions.probe == "definitions" else self.choice_stems
        holds_word = share(holds, node, questions.word_stems, row)
        return holds_word if questions.probe == "definitions" else holds_word | in_question

    def right(self, questions: Questions, row: Ints, node: Ints) -> Bools:
        """Return which concepts would be right answers too, in any sense of the words shown."""
        concept = questions.concept[row]
        word = questions.word[row]
        if questions.probe == "definitions":  # another sense of the word in question
            return (concept == node) | contain(self.graph.words_of, node, word)
        if questions.probe == "synonymy":  # a word of the concept itself
            return (concept == node) | share(self.graph.words_of, concept, self.shown, node)
        entry, shown = expand(self.shown, node)
        pairs = (concept, node)
        words = (word[entry], shown)
        if questions.probe == "hyponymy":
            pairs = pairs[::-1]
            words = words[::-1]
        by_word = any_by_row(entry, contain(self.graph.word_isa, *words), len(row))
        return (concept == node) | contain(self.graph.isa_or_instance, *pairs) | by_word

    def fit(
        self, questions: Questions, row: Ints, node: Ints, filter_leaks: bool, counts: Counter[str]
    ) -> Bools:
        """Return which candidates may be distractors; ``counts`` gets how many were struck out."""
        keep = self.may_answer(questions.probe, filter_leaks=filter_leaks)[node]
        tests = {
            "right after all": self.right,
            "leak": self.leaks,
            "near the answer": lambda asked, row, node: self.alike(node, asked.answer[row]),
        }
        if not filter_leaks:
            del tests["leak"]
        # Each test sees only the candidates that the tests before it left.
        for reason, unfit in tests.items():
            left = np.flatnonzero(keep)
            struck = unfit(questions, row[left], node[left])
            counts[f"candidates: {reason}"] += int(struck.sum())
            keep[left[struck]] = False
        return keep


def draw_candidates(
    owners: sparse.csr_array | None,
    families: sparse.csr_array,
    concepts: Ints,
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Draw candidates for each concept from the families of its owners (its parents, or itself):
    position in ``concepts`` and candidate, each once, in random order within a position."""
    n = len(concepts)
    of, owner = (np.arange(n), concepts) if owners is None else expand(owners, concepts)
    sizes = np.diff(families.indptr)[owner]
    ends = np.cumsum(sizes)
    # A concept's families end to end: draw places in them, or take every place if there are few.
    total = np.bincount(of, weights=sizes, minlength=n).astype(np.int64)
    n_taken = np.minimum(total, N_DRAWN)
    row = np.repeat(np.arange(n), n_taken)
    in_order = np.arange(len(row)) - np.repeat(np.cumsum(n_taken) - n_taken, n_taken)
    random = (rng.random(len(row)) * total[row]).astype(np.int64)
    offset = (np.cumsum(total) - total)[row] + np.where(total[row] > N_DRAWN, random, in_order)
    family = np.searchsorted(ends, offset, side="right")
    node = families.indices[families.indptr[owner[family]] + offset - (ends - sizes)[family]]
    # Shuffle within rows, then keep the first of repeated candidates.
    order = np.lexsort((rng.random(len(row)), row))
    row = row[order]
    node = node[order]
    _, first = np.unique(row * (node.max(initial=0) + 1) + node, return_index=True)
    first.sort()
    return row[first], node[first]


def choose_distractors(
    rules: ChoiceRules,
    questions: Questions,
    pool: Ints,
    kind: str,
    distance: int,
    rng: np.random.Generator,
    *,
    max_distance: int,
    filter_leaks: bool,
    counts: Counter[str],
) -> tuple[Ints, Ints, Ints]:
    """Choose four distractors for every question that has one of this kind and distance.

    Random concepts of ``pool``, neither above nor below nor near sisters, fill up where there are
    fewer, as in the questions that the paper's authors released. ``counts`` gets what was struck
    out. Return the n rows of questions that have four, their concepts (n, 4), and the places of
    their kinds in :data:`KINDS` (n, 4).
    """
    graph = rules.graph
    # How general a concept is: its part of speech, and the power of two of those below it.
    level = 4 * np.log2(1 + np.bincount(graph.up.above, minlength=graph.n)).astype(int) + graph.pos

    def candidates(kind: str, rows: Ints) -> tuple[Ints, Ints]:
        concept = questions.concept[rows]
        if kind in ("random", "matched"):  # of its part of speech, and unrelated to it
            group = graph.pos if kind == "random" else level
            drawn_from = collect(group[pool], pool, (int(group.max(initial=0)) + 1, graph.n))
            of = concept if kind == "random" else questions.answer[rows]
            row, node = draw_candidates(None, drawn_from, group[of], rng)
            linked = (graph.hops(concept[row], node) > 0) | (graph.hops(node, concept[row]) > 0)
            sister = graph.sister_distance(concept[row], node)
            kept = ~(linked | ((sister > 0) & (sister <= max_distance)))
        elif kind == "sister":
            below = graph.family("below", distance)
            row, node = draw_candidates(graph.parents, below, concept, rng)
            kept = graph.sister_distance(concept[row], node) == distance
        else:
            family = graph.family("above" if kind == "hypernym" else "below", distance)
            row, node = draw_candidates(None, family, concept, rng)
            kept = np.ones(len(row), dtype=bool)
        row = row[kept]
        node = node[kept]
        fits = rules.fit(questions, rows[row], node, filter_leaks, counts)
        return row[fits], node[fits]

    # Candidates of the kind; questions without any are left out.
    row, node = candidates(kind, np.arange(len(questions)))
    has_any = np.bincount(row, minlength=len(questions)) > 0
    name = kind if kind == "random" else f"{kind} {distance}"
    counts[f"sets: no {name} for the concept"] += int((~has_any).sum())
    rows = np.flatnonzero(has_any)
    row = np.cumsum(has_any)[row] - 1
    kind_of = np.full(len(row), KINDS.index(kind))
    if kind != "random":  # random ones come after the others of their question
        random_row, random_node = candidates("random", rows)
        row = np.concatenate([row, random_row])
        node = np.concatenate([node, random_node])
        kind_of = np.concatenate([kind_of, np.zeros(len(random_node), dtype=np.int64)])
        order = np.argsort(row, kind="stable")
        row = row[order]
        node = node[order]
        kind_of = kind_of[order]
    # Go through the candidates of all questions in step; take those unlike the ones taken before.
    nodes = np.full((len(rows), N_DISTRACTORS), -1)
    kinds = np.zeros_like(nodes)
    n_taken = np.zeros(len(rows), dtype=np.int64)
    turn = np.arange(len(row)) - np.searchsorted(row, row)
    for step in range(int(turn.max(initial=-1)) + 1):
        here = np.flatnonzero((turn == step) & (n_taken[row] < N_DISTRACTORS))
        clash = np.zeros(len(here), dtype=bool)
        for slot in range(N_DISTRACTORS):
            earlier = np.flatnonzero((n_taken[row[here]] > slot) & ~clash)
            taken = nodes[row[here][earlier], slot]
            clash[earlier] = rules.alike(node[here][earlier], taken)
        counts["candidates: near another distractor"] += int(clash.sum())
        here = here[~clash]
        to = row[here]
        nodes[to, n_taken[to]] = node[here]
        kinds[to, n_taken[to]] = kind_of[here]
        n_taken[to] += 1
    full = n_taken == N_DISTRACTORS
    counts[f"sets: fewer than four distractors ({kind})"] += int((~full).sum())
    return rows[full], nodes[full], kinds[full]
