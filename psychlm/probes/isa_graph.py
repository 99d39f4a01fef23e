"""The ISA graph of WordNet as arrays, queried for many pairs of concepts at a time.

- ``HOPS(c, up)``: the direct and derived links of Richardson & Sabharwal (2020, section 3.1), each
  with its smallest number of hops.
- Sister families: SISTER_1(c) are the other children of c's parents, SISTER_l(c) their descendants
  l - 1 levels further down, each with the smallest such l.
- The same relation between words: any sense of one stands above any sense of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """Lists of integers stored end to end: list i is ``values[starts[i]:starts[i + 1]]``."""

    starts: Ints
    values: Ints

    @classmethod
    def from_pairs(cls, rows: Ints, values: Ints, n_rows: int) -> Lists:
        """Collect pairs (row, value), in any order, into one list per row."""
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
        return cls(starts, np.asarray(values, dtype=np.int64)[np.argsort(rows, kind="stable")])

    def sizes(self, rows: Ints) -> Ints:
        """Return the lengths of the lists of these rows."""
        return self.starts[rows + 1] - self.starts[rows]

    def expand(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the entries of the lists of these rows: position in ``rows``, and value."""
        sizes = self.sizes(rows)
        position = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return position, self.values[self.starts[rows][position] + within]

    def take(self, rows: Ints) -> Lists:
        """Return the lists of these rows."""
        return Lists.from_pairs(*self.expand(rows), len(rows))

    def row(self, row: int) -> Ints:
        """Return one list."""
        return self.values[self.starts[row] : self.starts[row + 1]]


class Pairs:
    """A set of pairs of integers with a vectorised membership test.

    A pair is stored as the key ``first * n_second + second`` in a sorted array.
    """

    def __init__(self, first: Ints, second: Ints, n_second: int) -> None:
        self.n_second = n_second
        self.keys = np.unique(np.asarray(first, dtype=np.int64) * n_second + second)

    def contain(self, first: Ints, second: Ints) -> Bools:
        """Return for each pair whether it belongs to the set."""
        if not len(self.keys):
            return np.zeros(len(first), dtype=bool)
        keys = np.asarray(first, dtype=np.int64) * self.n_second + second
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        # A second member beyond the range would be taken for another pair's.
        return (self.keys[place] == keys) & (np.asarray(second) < self.n_second)


def any_by_row(rows: Ints, hit: Bools, n: int) -> Bools:
    """Return for each of n rows whether any of its entries is a hit."""
    return np.bincount(rows, weights=hit, minlength=n) > 0


@dataclass(frozen=True)
class Closure:
    """All pairs (below, above) of a graph, with the smallest number of hops between them."""

    below: Ints
    above: Ints
    hops: Ints


def closure(links: Ints, n: int) -> Closure:
    """Return every pair that one or more links join, child first, with the fewest hops.

    Breadth-first search for all concepts at once: the pairs at h hops are the non-zero entries of
    the sparse matrix A^h that no smaller power has.

    Parameters
    ----------
    links : int array of shape (n_links, 2)
        Child and parent. In a cycle (two verbs of WordNet 3.0 are each other's hypernym) a concept
        still does not stand above itself.
    n : int
        Number of concepts.
    """
    ones = np.ones(len(links), dtype=np.int32)
    step = sparse.csr_matrix((ones, (links[:, 0], links[:, 1])), shape=(n, n))
    seen = sparse.identity(n, dtype=np.int32, format="csr")
    frontier, rounds = step, [np.empty((3, 0), dtype=np.int64)]
    while True:
        # Pairs that an earlier round reached keep their fewer hops.
        frontier = frontier - frontier.multiply(seen > 0)
        frontier.eliminate_zeros()
        if frontier.nnz == 0:
            return Closure(*np.concatenate(rounds, axis=1))
        frontier.data[:] = 1
        pairs = frontier.tocoo()
        rounds.append(np.stack([pairs.row, pairs.col, np.full(frontier.nnz, len(rounds))]))
        seen = seen + frontier
        frontier = frontier @ step


class IsaGraph:
    """WordNet's relations as arrays; the larger ones are computed on first use.

    Parameters
    ----------
    concepts, lemmas : DataFrame
    isa, instance_of : int arrays of shape (n_links, 2)
        As in :class:`psychlm.probes.wordnet.WordNet`.

    Attributes
    ----------
    n : int
        Number of concepts.
    word_number : dict
        The number of each word, written "word/pos" in lower case: concepts share a word if they
        share its number.
    words_of, concepts_of : Lists
        The words of a concept, in WordNet's order; the concepts (senses) of a word.
    pos : int array
        Part of speech: its place in "nvar".
    parents : Lists
        Direct hypernyms.
    up : Closure
        HOPS(c, up) for all concepts.
    """

    def __init__(
        self, concepts: pd.DataFrame, lemmas: pd.DataFrame, isa: Ints, instance_of: Ints
    ) -> None:
        self.n = len(concepts)
        self.isa, self.instance_of = isa, instance_of
        nodes = lemmas["node"].to_numpy()
        pos = concepts["pos"].to_numpy()
        words = lemmas["lemma"].str.lower().str.cat(pos[nodes], sep="/").to_numpy(dtype=object)
        unique, number = np.unique(words.astype(str), return_inverse=True)
        number = number.astype(np.int64)
        self.n_words = len(unique)
        self.word_number = {word: i for i, word in enumerate(unique)}
        self.words_of = Lists.from_pairs(nodes, number, self.n)
        self.concepts_of = Lists.from_pairs(number, nodes, self.n_words)
        self.pos = np.array(["nvar".index(part) for part in pos], dtype=np.int64)
        self.parents = Lists.from_pairs(isa[:, 0], isa[:, 1], self.n)
        self.up = closure(isa, self.n)
        self._families: dict[tuple[str, int], Lists] = {}

    @cached_property
    def _isa_or_instance(self) -> Closure:
        """The closure of ISA and instance links: "Paris" below "city" and all that is above it."""
        return closure(np.concatenate([self.isa, self.instance_of]), self.n)

    @cached_property
    def isa_or_instance(self) -> Pairs:
        """The pairs (below, above) that any chain of ISA and instance links joins."""
        return Pairs(self._isa_or_instance.below, self._isa_or_instance.above, self.n)

    @cached_property
    def word_isa(self) -> Pairs:
        """The pairs of words (below, above) with senses that stand so, or with a common sense."""
        everything = np.arange(self.n)
        below = np.concatenate([self._isa_or_instance.below, everything])
        above = np.concatenate([self._isa_or_instance.above, everything])
        pair, upper = self.words_of.expand(above)
        entry, lower = self.words_of.expand(below[pair])
        return Pairs(lower, upper[entry], self.n_words)

    def family(self, direction: str, hops: int) -> Lists:
        """Return, for every concept, the concepts exactly so many hops "above" or "below" it."""
        if (direction, hops) not in self._families:
            here = self.up.hops == hops
            pair = self.up.below[here], self.up.above[here]
            pair = pair if direction == "above" else pair[::-1]
            self._families[direction, hops] = Lists.from_pairs(*pair, self.n)
        return self._families[direction, hops]

    @cached_property
    def _sorted_hops(self) -> tuple[Ints, Ints]:
        keys = self.up.above * self.n + self.up.below
        order = np.argsort(keys)
        return keys[order], self.up.hops[order]

    def hops(self, below: Ints, above: Ints) -> Ints:
        """Return the fewest hops from each concept up to another; 0 where no chain leads there."""
        keys, hops = self._sorted_hops
        if not len(keys):
            return np.zeros(len(below), dtype=np.int64)
        wanted = np.asarray(above, dtype=np.int64) * self.n + below
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, hops[place], 0)

    def sister_distance(self, concepts: Ints, others: Ints) -> Ints:
        """Return the smallest l with ``others[i]`` in SISTER_l(``concepts[i]``), 0 for no sister.

        A concept itself, and what stands above or below it, is no sister of it.
        """
        position, parent = self.parents.expand(concepts)
        down = self.hops(others[position], parent)
        smallest = np.full(len(concepts), np.iinfo(np.int64).max)
        np.minimum.at(smallest, position[down > 0], down[down > 0])
        linked = (self.hops(concepts, others) > 0) | (self.hops(others, concepts) > 0)
        no_sister = linked | (concepts == others) | (smallest == np.iinfo(np.int64).max)
        return np.where(no_sister, 0, smallest)
