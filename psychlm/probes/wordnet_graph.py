"""The ISA graph of WordNet as arrays: who stands above whom, how many hops away, in any sense of a word.

Everything is computed once, by sparse products and sorted keys, and asked for many pairs at a time:

- ``HOPS(c, up)``, the direct and derived links of Richardson & Sabharwal (2020, section 3.1), each with its smallest
  number of hops;
- the sister families: SISTER_1(c) are the other children of c's parents, SISTER_l(c) their descendants l - 1 levels
  further down, each with the smallest such l;
- the same relation between words, where any sense of the one stands above any sense of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from psychlm.probes.wordnet import WordNet

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """One list of whole numbers a row, end to end: row i is ``values[starts[i]:starts[i + 1]]``."""

    starts: Ints
    values: Ints

    @classmethod
    def of(cls, rows: Ints, values: Ints, n_rows: int) -> Lists:
        """Gather pairs (row, value), in any order, into lists."""
        order = np.argsort(rows, kind="stable")
        starts = np.zeros(n_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n_rows), out=starts[1:])
        return cls(starts, np.asarray(values, dtype=np.int64)[order])

    def sizes(self, rows: Ints) -> Ints:
        """Return the lengths of the lists of these rows."""
        return self.starts[rows + 1] - self.starts[rows]

    def expand(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return, for every entry of the lists of these rows, its place in ``rows`` and its value."""
        sizes = self.sizes(rows)
        at = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return at, self.values[self.starts[rows][at] + within]

    def row(self, row: int) -> Ints:
        """Return one list."""
        return self.values[self.starts[row] : self.starts[row + 1]]


class Pairs:
    """A set of pairs of whole numbers that answers for many pairs at once whether they belong to it."""

    def __init__(self, first: Ints, second: Ints, n_second: int) -> None:
        self.n_second = n_second
        self.keys = np.unique(np.asarray(first, dtype=np.int64) * n_second + second)

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return bool(self.have(np.array([pair[0]]), np.array([pair[1]]))[0])

    def __len__(self) -> int:
        return len(self.keys)

    def have(self, first: Ints, second: Ints) -> NDArray[np.bool_]:
        """Tell for every pair whether it belongs to the set."""
        if not len(self.keys):
            return np.zeros(len(first), dtype=bool)
        asked = np.asarray(first, dtype=np.int64) * self.n_second + second
        found = (
            self.keys[np.minimum(np.searchsorted(self.keys, asked), len(self.keys) - 1)] == asked
        )
        return found & (
            np.asarray(second) < self.n_second
        )  # a number beyond the range would pass for another pair's


def any_of(at: Ints, hit: NDArray[np.bool_], n: int) -> NDArray[np.bool_]:
    """Tell for each of n rows whether any of its entries (``at`` names the row of an entry) is a hit."""
    return np.bincount(at, weights=hit, minlength=n) > 0


@dataclass(frozen=True)
class Closure:
    """All pairs (below, above) of a graph, with the smallest number of hops between them."""

    below: Ints
    above: Ints
    hops: Ints


def closure(links: Ints, n: int) -> Closure:
    """Return every pair that one or more links join, child first, with the fewest hops.

    Parameters
    ----------
    links : int array of shape (n_links, 2)
        Child and parent. Where links run in a circle (two verbs of WordNet 3.0 are each other's hypernym), a concept
        still does not stand above itself.
    n : int
        How many concepts there are.
    """
    ones = np.ones(len(links), dtype=np.int32)
    step = sparse.csr_matrix((ones, (links[:, 0], links[:, 1])), shape=(n, n))
    seen = sparse.identity(n, dtype=np.int32, format="csr")
    frontier, found, hops = step, [], 0
    while True:
        frontier = frontier - frontier.multiply(
            seen > 0
        )  # what earlier rounds reached keeps its fewer hops
        frontier.eliminate_zeros()
        if frontier.nnz == 0:
            break
        frontier.data[:] = 1
        hops += 1
        pairs = frontier.tocoo()
        found.append((pairs.row, pairs.col, np.full(frontier.nnz, hops)))
        seen = seen + frontier
        frontier = frontier @ step
    parts = (
        [np.concatenate(part).astype(np.int64) for part in zip(*found, strict=True)]
        if found
        else []
    )
    return Closure(*parts) if parts else Closure(*(np.empty(0, dtype=np.int64) for _ in range(3)))


class Graph:
    """WordNet's relations as arrays; see :func:`build_graph`.

    Attributes
    ----------
    n : int
        Concepts.
    words : list of str
        Every word with its part of speech, folded to lower case: two concepts share a word if they share its number.
    words_of, concepts_of : Lists
        The words of a concept, in WordNet's order; the concepts (senses) of a word.
    pos : int array
        Part of speech: its place in "nvar".
    parents : Lists
        Direct hypernyms.
    up : Closure
        HOPS(c, up) for all concepts.
    """

    def __init__(self, wordnet: WordNet) -> None:
        self.n = len(wordnet.concepts)
        nodes = wordnet.lemmas["node"].to_numpy()
        pos = wordnet.concepts["pos"].to_numpy()[nodes]
        folded = wordnet.lemmas["lemma"].str.lower().str.cat(pos, sep="/").to_numpy(dtype=object)
        self.words, number = np.unique(folded.astype(str), return_inverse=True)
        self.word_number = {word: i for i, word in enumerate(self.words)}
        number = number.astype(np.int64)
        self.words_of = Lists.of(nodes, number, self.n)
        self.concepts_of = Lists.of(number, nodes, len(self.words))
        self.isa, self.instance_of = wordnet.isa, wordnet.instance_of
        self.pos = np.array(
            ["nvar".index(part) for part in wordnet.concepts["pos"]], dtype=np.int64
        )
        self.parents = Lists.of(self.isa[:, 0], self.isa[:, 1], self.n)
        self.up = closure(self.isa, self.n)
        self._made: dict[tuple[str, int], Lists] = {}

    @cached_property
    def loose(self) -> Closure:
        """Return the closure over ISA and instance links together: "Paris" below "city" and all that is above it."""
        return closure(np.concatenate([self.isa, self.instance_of]), self.n)

    @cached_property
    def isa_or_instance(self) -> Pairs:
        """Return the pairs (below, above) that any chain of ISA and instance links joins."""
        return Pairs(self.loose.below, self.loose.above, self.n)

    @cached_property
    def word_isa(self) -> Pairs:
        """Return the pairs of words (below, above) of which some senses stand so, or are the same sense."""
        everything = np.arange(self.n)
        below = np.concatenate([self.loose.below, everything])
        above = np.concatenate([self.loose.above, everything])
        at, upper = self.words_of.expand(above)
        again, lower = self.words_of.expand(below[at])
        return Pairs(lower, upper[again], len(self.words))

    def above(self, hops: int) -> Lists:
        """Return, for every concept, the concepts exactly so many hops above it."""
        return self._families("above", hops)

    def under(self, hops: int) -> Lists:
        """Return, for every concept, the concepts exactly so many hops below it."""
        return self._families("under", hops)

    def _families(self, way: str, hops: int) -> Lists:
        if (way, hops) not in self._made:
            here = self.up.hops == hops
            below, above = self.up.below[here], self.up.above[here]
            pair = (below, above) if way == "above" else (above, below)
            self._made[way, hops] = Lists.of(*pair, self.n)
        return self._made[way, hops]

    @cached_property
    def _depth_keys(self) -> tuple[Ints, Ints]:
        keys = self.up.above * self.n + self.up.below
        order = np.argsort(keys)
        return keys[order], self.up.hops[order]

    def hops(self, below: Ints, above: Ints) -> Ints:
        """Return the fewest hops from each concept up to another; 0 where no chain leads there."""
        keys, hops = self._depth_keys
        asked = np.asarray(above, dtype=np.int64) * self.n + below
        place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return (
            np.where(keys[place] == asked, hops[place], 0)
            if len(keys)
            else np.zeros(len(asked), dtype=np.int64)
        )

    def sister_distance(self, concepts: Ints, others: Ints) -> Ints:
        """Return the smallest l with ``others[i]`` in SISTER_l(``concepts[i]``); 0 where it is no sister.

        What stands above or below a concept, and the concept itself, is no sister of it.
        """
        at, parent = self.parents.expand(concepts)
        down = self.hops(others[at], parent)
        best = np.full(len(concepts), np.iinfo(np.int64).max)
        np.minimum.at(best, at[down > 0], down[down > 0])
        related = (
            (concepts == others)
            | (self.hops(concepts, others) > 0)
            | (self.hops(others, concepts) > 0)
        )
        return np.where(related | (best == np.iinfo(np.int64).max), 0, best)


def build_graph(wordnet: WordNet) -> Graph:
    """Compute the arrays of a graph; the larger ones are made when they are first asked for."""
    return Graph(wordnet)
