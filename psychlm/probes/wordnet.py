"""WordNet as a graph of triples: concepts with definitions, example sentences, words, ISA links.

The files are Princeton's: of Debian's package ``wordnet-base``, of NLTK's corpus, or in any folder.
NLTK's reader parses them; what is kept are columns and arrays (:class:`WordNet`), so that hundreds
of thousands of questions can be built and checked without NLTK's objects.

The triples are those of Richardson & Sabharwal (2020, Table 1): a concept (a synset) stands in
relation ``def`` to its gloss, ``ext`` to its example sentences, ``lemma`` to its words, and
``isa-up`` and ``isa-down`` to other concepts. :class:`IsaGraph` holds the ISA links as arrays,
which are queried for many pairs of concepts at a time: HOPS(c, up), the direct and derived links of
the paper (section 3.1) with their smallest number of hops; SISTER_1(c), the other children of c's
parents, and SISTER_l(c), their descendants l - 1 levels further down; and the same relation between
words, any sense of which stands above any sense of the other.
"""

from __future__ import annotations

import gc
import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from psychlm.data import DataError, DataMissingError

DEBIAN = Path("/usr/share/wordnet")
VARIABLE = "PSYCHLM_WORDNET"
HOW_TO_GET = (
    "install it with `apt-get install wordnet-base` (Debian, Ubuntu), or fetch NLTK's copy with "
    "`python -m nltk.downloader wordnet`, or name a folder that holds data.noun, index.noun and "
    f"the like (an argument, or the variable {VARIABLE})"
)
PARTS = ("noun", "verb", "adj", "adv")
N_LEXNAMES = 45  # lexicographer files (lexnames(5WN))
FILES = [
    *(f"{kind}.{part}" for kind in ("data", "index") for part in PARTS),
    *(f"{part}.exc" for part in PARTS),
]
# A word with inner hyphens, apostrophes and points: "U.S", "9-11"
TOKEN = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
# The rest of an author's name after a quotation
AFTER_QUOTE = re.compile(r"[;,.]\s*-+\s*[A-Z][\w.' ]*$")


@dataclass(frozen=True)
class WordNet:
    """The graph; concepts are numbered 0 to n-1 in the order of the files."""

    version: str  # as the files' headers have it: "3.0"
    concepts: pd.DataFrame  # one row per concept: name ("squat.v.01"), pos (n, v, a, r), gloss
    lemmas: pd.DataFrame  # node, lemma ("get cracking"): words of concepts, in WordNet's order
    # node, sentence, word (as it stands in the sentence), lemma: the example sentences in which one
    # of the concept's own words occurs
    contexts: pd.DataFrame
    isa: NDArray[np.int64]  # (links, 2), child and parent: "a dog is a canine"
    instance_of: NDArray[np.int64]  # "Paris is an instance of a city", no type of it
    examples: NDArray[np.int64]  # number of example sentences of each concept

    def triples(self) -> pd.DataFrame:
        """Return the graph as triples: ``relation`` (def, ext ...), ``source``, ``target``."""
        name = self.concepts["name"].to_numpy()
        child = name[self.isa[:, 0]]
        parent = name[self.isa[:, 1]]
        sentences = self.contexts.drop_duplicates(["node", "sentence"])
        parts = {
            "def": (name, self.concepts["gloss"]),
            "ext": (name[sentences["node"]], sentences["sentence"]),
            "lemma": (name[self.lemmas["node"]], self.lemmas["lemma"]),
            "isa-up": (child, parent),
            "isa-down": (parent, child),
        }
        tables = {
            relation: pd.DataFrame({"source": source, "target": np.asarray(target)})
            for relation, (source, target) in parts.items()
        }
        return pd.concat(tables, names=["relation"]).reset_index("relation").reset_index(drop=True)


def find(path: str | Path | None = None) -> Path:
    """Return the folder of WordNet's files: the one named, or the variable's, Debian's or
    NLTK's."""
    named = path or os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        origin = "named" if path else f"${VARIABLE}"
        lacking = [name for name in FILES if not (folder / name).is_file()]
        if lacking:
            raise DataMissingError(
                f"{folder} ({origin}) is no WordNet folder: it lacks {lacking[:3]}; {HOW_TO_GET}"
            )
        return folder.resolve()
    if all((DEBIAN / name).is_file() for name in FILES):
        return DEBIAN.resolve()
    import nltk.data  # takes half a second

    for data_folder in nltk.data.path:
        folder = Path(str(data_folder)) / "corpora" / "wordnet"
        if all((folder / name).is_file() for name in FILES):
            return folder.resolve()
        archive = folder.with_suffix(".zip")
        if archive.is_file():  # NLTK's downloader may leave it packed
            return archive.resolve()
    raise DataMissingError(
        f"no WordNet on this machine (looked in {DEBIAN} and NLTK's folders); {HOW_TO_GET}"
    )


@contextmanager
def open_reader(folder: Path) -> Iterator[Any]:
    """Open NLTK's reader on a folder or archive of :func:`find`, for as long as the block runs."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):
        """Supply two lists that Debian does not ship: lexicographer files, maps to versions."""

        def open(self, file: str) -> Any:
            if file == "lexnames":  # numbers will do: their names are not read here
                return io.StringIO("".join(f"{i:02d}\t{i:02d}\t0\n" for i in range(N_LEXNAMES)))
            with super().open(file) as stream:  # whole: line by line NLTK's stream is slow
                return io.StringIO(stream.read())

        def map_wn(self, version: str = "wordnet") -> None:
            return None

    packed = folder.suffix == ".zip"
    shelf = str(folder.parent if packed else folder)
    root = nltk.data.ZipFilePathPointer(str(folder), "wordnet/") if packed else str(folder)
    nltk.data.path.append(shelf)  # NLTK opens no folder that is not on its path
    collects = gc.isenabled()
    gc.disable()  # the reader makes millions of objects that stay: looking for waste takes a third
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The multilingual functions are not")
            reader = Reader(root, None)
        yield reader
    except DataError:
        raise
    except Exception as error:  # no UTF-8; broken lines, on which NLTK fails in many ways
        raise DataError(
            f"WordNet in {folder} cannot be read ({type(error).__name__}: {str(error)[:200]}); its "
            f"files are broken or belong to different versions; {HOW_TO_GET}"
        ) from error
    finally:
        nltk.data.path.remove(shelf)
        if collects:
            gc.enable()


def load(path: str | Path | None = None, *, pos: str = "nvar") -> WordNet:
    """Read WordNet from a folder, or where it is found (:func:`find`): n(ouns), v(erbs),
    a(djectives), (adve)r(bs), or some of them; verbs alone take a tenth of the time.

    Examples
    --------
    >>> load(pos="v").version  # doctest: +SKIP
    '3.0'
    """
    if not pos or set(pos) - set("nvar"):
        raise ValueError(f"parts of speech {pos!r} do not exist; choose among n, v, a, r (as 'nv')")
    folder = find(path)
    with open_reader(folder) as reader:
        synsets = [synset for part in dict.fromkeys(pos) for synset in reader.all_synsets(part)]
        # Satellite adjectives (s) stand in the files of adjectives.
        part_of = ["a" if synset.pos() == "s" else synset.pos() for synset in synsets]
        offsets = (synset.offset() for synset in synsets)
        node_at = {key: node for node, key in enumerate(zip(part_of, offsets, strict=True))}
        # Files cut off at their end are read without complaint: compare with the index.
        senses = reader._lemma_pos_offset_map.values()
        indexed = {(part, o) for of in senses for part in set(pos) & set(of) for o in of[part]}
        if missing := indexed - set(node_at):
            part, offset = min(missing)
            raise DataError(
                f"WordNet in {folder} cannot be read: its index names {len(missing)} concepts that "
                f"the data files lack ({part}, {offset:08d}); {HOW_TO_GET}"
            )
        concepts = pd.DataFrame(
            {
                "name": [synset.name() for synset in synsets],
                "pos": part_of,
                "gloss": [AFTER_QUOTE.sub("", s.definition()).strip(" ;,:") for s in synsets],
            }
        )
        words = []
        for node, synset in enumerate(synsets):
            # A few words stand in a concept twice, with a capital and without: keep the first.
            first = {lemma.lower(): lemma for lemma in reversed(synset.lemma_names())}
            words += [(node, lemma.replace("_", " ")) for lemma in reversed(first.values())]

        def links(symbol: str) -> NDArray[np.int64]:
            # The reader's own hypernyms() builds objects, which is slow.
            pairs = [
                (node, node_at[target])
                for node, synset in enumerate(synsets)
                for target in sorted(synset._pointers.get(symbol, ()))
            ]
            return np.array(pairs, dtype=np.int64).reshape(-1, 2)

        return WordNet(
            version=str(reader.get_version()),
            concepts=concepts,
            lemmas=pd.DataFrame(words, columns=["node", "lemma"]),
            contexts=_contexts(synsets, part_of, reader),
            isa=links("@"),
            instance_of=links("@i"),
            examples=np.array([len(synset.examples()) for synset in synsets], dtype=np.int64),
        )


def _contexts(synsets: list[Any], part_of: list[str], reader: Any) -> pd.DataFrame:
    """Find the words of every concept in its example sentences, inflected or not."""
    base_form = cache(reader.morphy)  # morphy("geese", "n") is "goose"

    def matches(tokens: list[str], words: list[str], pos: str) -> bool:
        pairs = zip(tokens, words, strict=True)
        return all(token == word or base_form(token, pos) == word for token, word in pairs)

    rows = []
    for node, (synset, pos) in enumerate(zip(synsets, part_of, strict=True)):
        for sentence in synset.examples():
            tokens = list(TOKEN.finditer(sentence))
            folded = [token.group().lower() for token in tokens]
            # One word per sentence: the first of the concept's words that occurs in it.
            for lemma in (name.replace("_", " ") for name in synset.lemma_names()):
                words = [word.lower() for word in TOKEN.findall(lemma)]
                n = len(words)
                starts = range(len(tokens) - n + 1 if n else 0)
                hits = (i for i in starts if matches(folded[i : i + n], words, pos))
                start = next(hits, None)
                if start is not None:
                    surface = sentence[tokens[start].start() : tokens[start + n - 1].end()]
                    rows.append((node, sentence.strip(), surface, lemma))
                    break
    return pd.DataFrame(rows, columns=["node", "sentence", "word", "lemma"])


# The ISA graph

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


# Below, a sparse matrix holds a list of integers in each row: the columns that are stored there, in
# the order in which they were given. It is never sorted: what is drawn from lists depends on it.


def collect(rows: Ints, values: Ints, shape: tuple[int, int]) -> sparse.csr_array:
    """Collect pairs (row, value), in any order, into one list per row."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    ordered = np.asarray(values)[np.argsort(rows, kind="stable")]
    return sparse.csr_array((np.ones(len(ordered), dtype=bool), ordered, starts), shape)


def expand(lists: sparse.csr_array, rows: Ints) -> tuple[Ints, Ints]:
    """Return the entries of the lists of these rows: position in ``rows``, and value."""
    taken = lists[rows]
    return np.repeat(np.arange(len(rows)), np.diff(taken.indptr)), taken.indices.astype(np.int64)


def contain(lists: sparse.csr_array, rows: Ints, values: Ints) -> Bools:
    """Return for each pair of row and value whether the row's list holds the value."""
    found = np.zeros(len(rows), dtype=bool)
    within = np.flatnonzero(np.asarray(values) < lists.shape[1])
    if len(within):
        found[within] = lists[rows[within], values[within]]
    return found


def any_by_row(rows: Ints, hit: Bools, n: int) -> Bools:
    """Return for each of n rows whether any of its entries is a hit."""
    return np.bincount(rows, weights=hit, minlength=n) > 0


def share(first: sparse.csr_array, rows: Ints, second: sparse.csr_array, others: Ints) -> Bools:
    """Return for each pair of a row of the first lists and one of the second whether both lists
    hold a value."""
    entry, value = expand(second, others)
    return any_by_row(entry, contain(first, rows[entry], value), len(rows))


class Closure(NamedTuple):
    """All pairs (below, above) of a graph, with the smallest number of hops between them."""

    below: Ints
    above: Ints
    hops: Ints


def closure(links: Ints, n: int) -> Closure:
    """Return every pair of n concepts that one or more links (child, parent) join, with the fewest
    hops; in a cycle a concept does not stand above itself.

    Breadth-first search for all concepts at once: the pairs at h hops are the non-zero entries of
    the sparse matrix A^h that no smaller power has.
    """
    ones = np.ones(len(links), dtype=np.int32)
    step = sparse.csr_matrix((ones, (links[:, 0], links[:, 1])), shape=(n, n))
    seen = sparse.identity(n, dtype=np.int32, format="csr")
    frontier = step
    rounds = [np.empty((3, 0), dtype=np.int64)]
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
    """WordNet's relations as arrays of n concepts; the larger ones are computed on first use."""

    def __init__(self, wordnet: WordNet) -> None:
        concepts = wordnet.concepts
        lemmas = wordnet.lemmas
        self.n = len(concepts)
        self.isa = wordnet.isa
        self.instance_of = wordnet.instance_of
        nodes = lemmas["node"].to_numpy()
        pos = concepts["pos"].to_numpy()
        words = lemmas["lemma"].str.lower().str.cat(pos[nodes], sep="/").to_numpy(dtype=object)
        unique, number = np.unique(words.astype(str), return_inverse=True)
        number = number.astype(np.int64)
        self.n_words = len(unique)
        # by "word/pos" in lower case: concepts share a word if they share its number
        self.word_number = {word: i for i, word in enumerate(unique)}
        self.words_of = collect(nodes, number, (self.n, self.n_words))
        self.pos = np.array(["nvar".index(part) for part in pos], dtype=np.int64)
        self.parents = collect(self.isa[:, 0], self.isa[:, 1], (self.n, self.n))
        self.up = closure(self.isa, self.n)  # HOPS(c, up) for all concepts
        self._families: dict[tuple[str, int], sparse.csr_array] = {}

    @cached_property
    def isa_or_instance(self) -> sparse.csr_array:
        """What any chain of ISA and instance links leads up to: from "Paris" to "city" and on."""
        whole = closure(np.concatenate([self.isa, self.instance_of]), self.n)
        return collect(whole.below, whole.above, (self.n, self.n))

    @cached_property
    def word_isa(self) -> sparse.csr_array:
        """The words above each word in some sense, and those with a sense in common."""
        below, above = expand(self.isa_or_instance, np.arange(self.n))
        below = np.concatenate([below, np.arange(self.n)])
        above = np.concatenate([above, np.arange(self.n)])
        pair, upper = expand(self.words_of, above)
        entry, lower = expand(self.words_of, below[pair])
        return collect(lower, upper[entry], (self.n_words, self.n_words))

    def family(self, direction: str, hops: int) -> sparse.csr_array:
        """Return, for every concept, the concepts exactly so many hops "above" or "below" it."""
        if (direction, hops) not in self._families:
            here = self.up.hops == hops
            pair = self.up.below[here], self.up.above[here]
            pair = pair if direction == "above" else pair[::-1]
            self._families[direction, hops] = collect(*pair, (self.n, self.n))
        return self._families[direction, hops]

    @cached_property
    def _hops(self) -> sparse.csr_array:
        return sparse.csr_array((self.up.hops, (self.up.below, self.up.above)), (self.n, self.n))

    def hops(self, below: Ints, above: Ints) -> Ints:
        """Return the fewest hops from each concept up to another; 0 where no chain leads there."""
        return np.asarray(self._hops[below, above]) if len(below) else np.zeros(0, dtype=np.int64)

    def sister_distance(self, concepts: Ints, others: Ints) -> Ints:
        """Return the smallest l with ``others[i]`` in SISTER_l(``concepts[i]``); 0 for no sister,
        as the concept itself, and what stands above or below it, is none."""
        position, parent = expand(self.parents, concepts)
        down = self.hops(others[position], parent)
        smallest = np.full(len(concepts), np.iinfo(np.int64).max)
        np.minimum.at(smallest, position[down > 0], down[down > 0])
        linked = (self.hops(concepts, others) > 0) | (self.hops(others, concepts) > 0)
        no_sister = linked | (concepts == others) | (smallest == np.iinfo(np.int64).max)
        return np.where(no_sister, 0, smallest)
