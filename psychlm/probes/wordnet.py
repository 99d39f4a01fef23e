"""WordNet as a graph of triples: concepts with their definitions, example sentences, words and ISA links.

The files are Princeton's, of Debian's package ``wordnet-base``, of NLTK's corpus, or in any folder; NLTK's reader
parses them. What is kept are plain columns and arrays (:class:`WordNet`), so that hundreds of thousands of questions
can be built and checked without asking the reader again.

The triples are those of Richardson & Sabharwal (2020, Table 1): a concept (a synset) stands in relation ``def`` to its
gloss, ``ext`` to its example sentences, ``lemma`` to its words, and ``isa-up`` and ``isa-down`` to other concepts.
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.data import DataError, DataMissingError
from psychlm.report import DataKind

DEBIAN = Path("/usr/share/wordnet")
ENVIRONMENT = (
    "PSYCHLM_WORDNET",
    "WNSEARCHDIR",
)  # ours, and the one WordNet's own programs read (wnintro(5WN))
HOW_TO_GET = (
    "install it with `apt-get install wordnet-base` (Debian, Ubuntu), or fetch NLTK's copy with "
    "`python -m nltk.downloader wordnet`, or name a folder that holds data.noun, index.noun and the like "
    "(an argument, `--wordnet` on the shell, or the variable PSYCHLM_WORDNET)"
)
_PARTS = ("noun", "verb", "adj", "adv")
_NEEDED = (
    *(f"{kind}.{part}" for kind in ("data", "index") for part in _PARTS),
    *(f"{part}.exc" for part in _PARTS),
)
# the 45 lexicographer files in the order of their numbers (lexnames(5WN)); Debian ships no list of them
_NOUN_FILES = (
    "Tops",
    "act",
    "animal",
    "artifact",
    "attribute",
    "body",
    "cognition",
    "communication",
    "event",
    "feeling",
    "food",
    "group",
    "location",
    "motive",
    "object",
    "person",
    "phenomenon",
    "plant",
    "possession",
    "process",
    "quantity",
    "relation",
    "shape",
    "state",
    "substance",
    "time",
)
_VERB_FILES = (
    "body",
    "change",
    "cognition",
    "communication",
    "competition",
    "consumption",
    "contact",
    "creation",
    "emotion",
    "motion",
    "perception",
    "possession",
    "social",
    "stative",
    "weather",
)
_LEXNAMES = (
    *("adj.all", "adj.pert", "adv.all"),
    *(f"noun.{name}" for name in _NOUN_FILES),
    *(f"verb.{name}" for name in _VERB_FILES),
    "adj.ppl",
)
_TOKEN = re.compile(
    r"[^\W_]+(?:['’.-][^\W_]+)*"
)  # words with inner hyphens, apostrophes and points: "U.S", "9-11"
_AFTER_QUOTE = re.compile(
    r"[;,.]\s*-+\s*[A-Z][\w.' ]*$"
)  # what is left of an author's name behind a quotation


@dataclass(frozen=True)
class WordNet:
    """The graph: nodes are numbered 0 to n-1 in the order of the files.

    Attributes
    ----------
    version : str
        As the files' headers have it: "3.0".
    folder : str
        Where they were read.
    concepts : DataFrame, one row a concept
        ``name`` ("squat.v.01"), ``pos`` (n, v, a, r), ``lexname`` ("verb.motion"), ``gloss``.
    lemmas : DataFrame
        ``node``, ``lemma`` ("get cracking"): the words of every concept, in the order of WordNet.
    contexts : DataFrame
        ``node``, ``sentence``, ``word`` (as it stands in the sentence), ``lemma``: example sentences in which one of
        the concept's own words was found. Sentences without one are not here; ``examples`` counts all.
    isa, instance_of : int arrays of shape (n_links, 2)
        Child and parent: "a dog is a canine", and "Paris is an instance of a city", which is no type of city.
    examples : int array of shape (n,)
        How many example sentences a concept has.
    kind : "real" or "simulated"
    """

    version: str
    folder: str
    concepts: pd.DataFrame
    lemmas: pd.DataFrame
    contexts: pd.DataFrame
    isa: NDArray[np.int64]
    instance_of: NDArray[np.int64]
    examples: NDArray[np.int64]
    kind: DataKind = "real"

    def triples(self) -> pd.DataFrame:
        """Return the graph as triples: ``relation`` (def, ext, lemma, isa-up, isa-down), ``source``, ``target``."""
        name = self.concepts["name"].to_numpy()
        child, parent = name[self.isa[:, 0]], name[self.isa[:, 1]]
        sentences = self.contexts.drop_duplicates(["node", "sentence"])
        parts = {
            "def": (name, self.concepts["gloss"]),
            "ext": (name[sentences["node"]], sentences["sentence"]),
            "lemma": (name[self.lemmas["node"]], self.lemmas["lemma"]),
            "isa-up": (child, parent),
            "isa-down": (parent, child),
        }
        columns = [
            pd.DataFrame({"relation": relation, "source": source, "target": np.asarray(target)})
            for relation, (source, target) in parts.items()
        ]
        return pd.concat(columns, ignore_index=True)


def find(path: str | Path | None = None) -> Path:
    """Return the folder of WordNet's files: the one named, or a variable's, or Debian's, or NLTK's.

    Raises
    ------
    DataMissingError
        If there is none, or the one named lacks files; the message says how to get WordNet.
    """
    variables = [(os.environ[name], f"${name}") for name in ENVIRONMENT if os.environ.get(name)]
    named = [(str(path), "named")] if path is not None else variables
    if named:
        place, how = named[0]
        lacking = [name for name in _NEEDED if not (Path(place).expanduser() / name).is_file()]
        if lacking:
            raise DataMissingError(
                f"{place} ({how}) is no WordNet folder: it lacks {lacking[:3]}; {HOW_TO_GET}"
            )
        return Path(place).expanduser().resolve()
    import nltk.data

    shelves = [DEBIAN, *(Path(str(shelf)) / "corpora" / "wordnet" for shelf in nltk.data.path)]
    for folder in shelves:
        if all((folder / name).is_file() for name in _NEEDED):
            return folder.resolve()
        archive = folder.with_suffix(".zip")
        if archive.is_file():  # how NLTK's downloader may leave it
            return archive.resolve()
    raise DataMissingError(
        f"no WordNet on this machine (looked in {shelves[0]} and NLTK's folders); {HOW_TO_GET}"
    )


@contextmanager
def _reader(folder: Path) -> Iterator[Any]:
    """Open NLTK's reader on a folder that may lack what Debian leaves out, and only for as long as it is read."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):
        """Two lists that Debian does not ship: the names of lexicographer files, and maps to other versions."""

        def open(self, file: str) -> Any:
            if file == "lexnames":
                return io.StringIO(
                    "".join(f"{i:02d}\t{name}\t0\n" for i, name in enumerate(_LEXNAMES))
                )
            return super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            return None

    shelf = folder.parent if folder.suffix == ".zip" else folder
    root = (
        nltk.data.ZipFilePathPointer(str(folder), "wordnet/")
        if folder.suffix == ".zip"
        else str(folder)
    )
    nltk.data.path.append(str(shelf))  # NLTK opens no folder that is not on its path
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The multilingual functions are not available"
            )
            reader = Reader(root, None)
        yield reader
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"WordNet in {folder} is not text in UTF-8 ({error}); install it anew: {HOW_TO_GET}"
        ) from error
    except (
        Exception
    ) as error:  # NLTK's parser stumbles over broken lines in many ways; each means the same
        raise DataError(
            f"WordNet in {folder} cannot be read ({type(error).__name__}: {str(error)[:200]}); its files are broken or "
            f"belong to different versions; {HOW_TO_GET}"
        ) from error
    finally:
        nltk.data.path.remove(str(shelf))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause the garbage collector: NLTK makes a million objects that all stay, and looking through them takes long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def load(path: str | Path | None = None, *, pos: str = "nvar") -> WordNet:
    """Read WordNet.

    Parameters
    ----------
    path : path, optional
        The folder of its files; looked for (:func:`find`) unless given.
    pos : str
        Parts of speech to read: n(ouns), v(erbs), a(djectives), (adve)r(bs). Verbs alone take a tenth of the time.

    Raises
    ------
    DataMissingError
        If there is no WordNet here.
    DataError
        If its files are broken.
    """
    unknown = sorted(set(pos) - set("nvar"))
    if unknown or not pos:
        raise ValueError(
            f"parts of speech {unknown or 'none'} do not exist here; choose among n, v, a, r"
        )
    folder = find(path)
    with _reader(folder) as reader, _without_collecting():
        synsets = [synset for part in dict.fromkeys(pos) for synset in reader.all_synsets(part)]
        at = {
            ("a" if s.pos() == "s" else s.pos(), s.offset()): node for node, s in enumerate(synsets)
        }
        concepts = pd.DataFrame(
            {
                "name": [s.name() for s in synsets],
                "pos": ["a" if s.pos() == "s" else s.pos() for s in synsets],
                "lexname": [s.lexname() for s in synsets],
                "gloss": [_AFTER_QUOTE.sub("", s.definition()).strip(" ;,:") for s in synsets],
            }
        )
        _nothing_missing(reader, pos, at, folder)
        words = [
            (node, lemma.replace("_", " "))
            for node, s in enumerate(synsets)
            for lemma in _distinct(s)
        ]
        return WordNet(
            version=str(reader.get_version()),
            folder=str(folder),
            concepts=concepts,
            lemmas=pd.DataFrame(words, columns=["node", "lemma"]),
            contexts=_contexts(synsets, reader),
            isa=_links(synsets, at, "@"),
            instance_of=_links(synsets, at, "@i"),
            examples=np.array([len(s.examples()) for s in synsets], dtype=np.int64),
        )


def _distinct(synset: Any) -> list[str]:
    """Return a concept's words, each once: a few stand there twice, with a capital and without."""
    return list({lemma.lower(): lemma for lemma in reversed(synset.lemma_names())}.values())[::-1]


def _nothing_missing(reader: Any, pos: str, at: dict[tuple[str, int], int], folder: Path) -> None:
    """Compare the concepts read with those of the index: a file cut off at its end is read without complaint."""
    offsets = reader._lemma_pos_offset_map.values()
    named = {(part, offset) for of in offsets for part in set(pos) & set(of) for offset in of[part]}
    missing = named - set(at)
    if missing:
        part, offset = min(missing)
        raise DataError(
            f"WordNet in {folder} cannot be read: its index names {len(missing)} concepts that the data files do not "
            f"hold (the first: {part}, {offset:08d}), so they are cut off or of different versions; {HOW_TO_GET}"
        )


def _links(synsets: list[Any], at: dict[tuple[str, int], int], symbol: str) -> NDArray[np.int64]:
    """Return the links of one kind between concepts that were read."""
    pairs = [
        (node, at[target])
        for node, synset in enumerate(synsets)
        for target in sorted(
            synset._pointers.get(symbol, ())
        )  # the reader's own hypernyms() builds objects: slow
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _contexts(synsets: list[Any], reader: Any) -> pd.DataFrame:
    """Find the words of every concept in its example sentences, inflected or not."""
    base: dict[tuple[str, str], str | None] = {}

    def fits(token: str, word: str, pos: str) -> bool:
        if token == word:
            return True
        if (token, pos) not in base:
            base[token, pos] = reader.morphy(token, pos)
        return base[token, pos] == word

    rows = []
    for node, synset in enumerate(synsets):
        pos = "a" if synset.pos() == "s" else synset.pos()
        lemmas = (
            [lemma.replace("_", " ") for lemma in synset.lemma_names()] if synset.examples() else []
        )
        for sentence in synset.examples():
            tokens = list(_TOKEN.finditer(sentence))
            folded = [token.group().lower() for token in tokens]
            for lemma in lemmas:
                words = [found.lower() for found in _TOKEN.findall(lemma)]
                last = len(tokens) - len(words)
                starts = range(last + 1) if words else ()
                hit = next(
                    (
                        i
                        for i in starts
                        if all(fits(folded[i + j], w, pos) for j, w in enumerate(words))
                    ),
                    None,
                )
                if hit is not None:
                    surface = sentence[tokens[hit].start() : tokens[hit + len(words) - 1].end()]
                    rows.append((node, sentence.strip(), surface, lemma))
                    break  # one word a sentence: the first of the concept's words that stands in it
    return pd.DataFrame(rows, columns=["node", "sentence", "word", "lemma"])
