"""The words of concepts as sets of stems: what gives an answer away, and which definitions are nearly the same.

A question leaks its answer where a content word of what is asked returns in the choice. "Returns" means the same stem
(Porter's second stemmer, Snowball): "trouser" gives "trousers" away. Two definitions are nearly the same where their
sets of stems overlap by a Jaccard index of :data:`NEARLY_THE_SAME` or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from psychlm.probes.wordnet import WordNet
from psychlm.probes.wordnet_graph import Ints, Lists, Pairs, any_of

NEARLY_THE_SAME = 0.8
SHOWN_WORDS = 3  # of a concept in a choice: "sit (or sit down)", as many as the paper's released questions show
_WORD = re.compile(r"[^\W_]+")
_FUNCTION = (
    "a about above across after against all along also am among an and any are around as at away back be because been "
    "before behind being below between both but by can could did do does done down during each either for forth from "
    "had has have having he her hers him his how i if in into is it its itself me more most my near no nor not of off "
    "on one only onto or other our out over own s she so some such t than that the their them then there these they "
    "this those through to together too toward towards under up upon us very was we were what when where which while "
    "who whom whose why will with within without would you your"
)
FUNCTION_WORDS = frozenset(_FUNCTION.split())


class Stemmer:
    """Numbers for the stems of content words; the same stem keeps its number."""

    def __init__(self) -> None:
        from nltk.stem.snowball import SnowballStemmer

        self._stem = SnowballStemmer("english").stem
        self._of_word: dict[str, int] = {}
        self._of_stem: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._of_stem)

    def numbers(self, text: str) -> list[int]:
        """Return the numbers of the distinct stems of a text, function words left out, in order of appearance."""
        return list(
            dict.fromkeys(
                self._number(word)
                for word in _WORD.findall(text.lower())
                if word not in FUNCTION_WORDS
            )
        )

    def _number(self, word: str) -> int:
        number = self._of_word.get(word)
        if number is None:
            number = self._of_stem.setdefault(self._stem(word), len(self._of_stem))
            self._of_word[word] = number
        return number

    def lists(self, texts: Iterable[str]) -> Lists:
        """Return the stems of each text as one list a row."""
        numbers = [self.numbers(text) for text in texts]
        sizes = np.array([len(row) for row in numbers], dtype=np.int64)
        values = np.fromiter(
            (number for row in numbers for number in row), dtype=np.int64, count=int(sizes.sum())
        )
        return Lists(np.concatenate([[0], np.cumsum(sizes)]), values)


@dataclass(frozen=True)
class Wording:
    """The stems of every concept's definition and shown words.

    Attributes
    ----------
    stemmer : Stemmer
    gloss, shown : Lists
        Stems of the definition; stems of the first :data:`SHOWN_WORDS` words.
    sound : bool array, by concept
        False where the definition is empty, or another concept has the same one, word for word.
    """

    stemmer: Stemmer
    gloss: Lists
    shown: Lists
    sound: np.ndarray

    @cached_property
    def choice_has(self) -> Pairs:
        """Return the pairs (concept, stem) of stems in the definition or among the shown words."""
        return self._pairs(self.gloss, self.shown)

    @cached_property
    def gloss_has(self) -> Pairs:
        """Return the pairs (concept, stem) of stems in the definition."""
        return self._pairs(self.gloss)

    @cached_property
    def alone(self) -> np.ndarray:
        """Tell which concepts have a definition that is nearly the same as no other concept's."""
        alone = self.sound.copy()
        alone[self.near.keys // len(alone)] = False
        return alone

    @cached_property
    def names_itself(self) -> np.ndarray:
        """Tell which concepts show a word that stands in their own definition: "apple tree", a tree with apples."""
        at, stem = self.shown.expand(np.arange(len(self.sound)))
        return any_of(at, self.gloss_has.have(at, stem), len(self.sound))

    def _pairs(self, *lists: Lists) -> Pairs:
        everything = np.arange(len(self.sound))
        parts = [part.expand(everything) for part in lists]
        first, second = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pairs(first, second, len(self.stemmer) + 1)

    @cached_property
    def near(self) -> Pairs:
        """Return the pairs of concepts whose definitions are nearly the same, both ways round."""
        first, second = near_pairs(self.gloss, len(self.stemmer), NEARLY_THE_SAME)
        return Pairs(
            np.concatenate([first, second]), np.concatenate([second, first]), len(self.sound)
        )


def shown_words(wordnet: WordNet) -> NDArray[np.object_]:
    """Return the first :data:`SHOWN_WORDS` words of every concept, by node, as lists."""
    words = wordnet.lemmas["lemma"].to_numpy(dtype=object)
    starts = np.searchsorted(wordnet.lemmas["node"], np.arange(len(wordnet.concepts) + 1)).tolist()
    shown = np.empty(len(wordnet.concepts), dtype=object)
    shown[:] = [words[a : min(a + SHOWN_WORDS, b)].tolist() for a, b in pairwise(starts)]
    return shown


def wording(wordnet: WordNet) -> Wording:
    """Return the stems of definitions and shown words, and which definitions stand alone."""
    stemmer = Stemmer()
    gloss = wordnet.concepts["gloss"]
    folded = gloss.str.lower().str.replace(r"\W+", " ", regex=True).str.strip()
    return Wording(
        stemmer=stemmer,
        gloss=stemmer.lists(gloss),
        shown=stemmer.lists(" ".join(words) for words in shown_words(wordnet)),
        sound=(~folded.duplicated(keep=False) & (folded != "")).to_numpy(),
    )


def near_pairs(sets: Lists, n_values: int, threshold: float) -> tuple[Ints, Ints]:
    """Return all pairs of sets whose Jaccard index reaches a threshold.

    Two such sets share one of their rarest members: of a set of n, one of the n - ceil(threshold n) + 1 rarest (prefix
    filtering; Chaudhuri, Ganti & Kaushik 2006, A Primitive Operator for Similarity Joins). Only such sets are compared.
    """
    n = len(sets.starts) - 1
    rows = np.repeat(np.arange(n), np.diff(sets.starts))
    rarity = np.argsort(
        np.argsort(np.bincount(sets.values, minlength=n_values), kind="stable"), kind="stable"
    )
    order = np.lexsort((rarity[sets.values], rows))
    place = np.arange(len(rows)) - sets.starts[rows]
    size = np.diff(sets.starts)
    kept = place < (size - np.ceil(threshold * size) + 1)[rows]
    shape = (n, n_values)
    prefix = sparse.csr_matrix(
        (np.ones(kept.sum(), np.int8), (rows[kept], sets.values[order][kept])), shape=shape
    )
    full = sparse.csr_matrix((np.ones(len(rows), np.int8), (rows, sets.values)), shape=shape)
    pairs = sparse.triu(prefix.astype(np.int16) @ prefix.T.astype(np.int16), k=1).tocoo()
    first, second = pairs.row.astype(np.int64), pairs.col.astype(np.int64)
    smaller, larger = np.minimum(size[first], size[second]), np.maximum(size[first], size[second])
    close = smaller >= threshold * larger
    first, second = first[close], second[close]
    shared = np.concatenate(
        [
            np.asarray(
                full[first[at : at + 500_000]].multiply(full[second[at : at + 500_000]]).sum(axis=1)
            ).ravel()
            for at in range(0, len(first), 500_000)
        ]
        or [np.empty(0)]
    )
    alike = shared >= threshold * (size[first] + size[second] - shared)
    return first[alike], second[alike]
