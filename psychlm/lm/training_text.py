"""Training text in natural casing and spacing: novels and NLTK corpora, without the sentences of a test corpus.

The corpora come tokenised, tagged, wrapped or lower-cased, each in its own way; a language model that is to read
people's stimuli must see text as people write it. What is done here is undone nowhere else: curly quotes become
straight, dashes become ``--`` between words, tokens lose the space that tokenisation put before punctuation.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator

from psychlm import data

STRAIGHT = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "—": "--", "–": "-", "…": "..."}
)
NLTK = ("brown", "movie_reviews", "state_union", "abc", "inaugural", "webtext", "treebank")
SPOKEN = (
    "grail.txt",
    "overheard.txt",
    "pirates.txt",
    "wine.txt",
)  # the rest of webtext is bug titles and adverts
OVERLAP_WORDS = 7  # a run this long shared with a test sentence counts as the same sentence


def bare_words(text: str) -> list[str]:
    """Return the lower-cased words of a text without its punctuation, as overlap and counts need them."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.translate(STRAIGHT).lower())


def paragraphs() -> Iterator[tuple[str, str]]:
    """Yield (source, paragraph) over the 20 novels and seven NLTK corpora, in a fixed order."""
    for name in sorted(n for n in data.registry().index if n.startswith("lm/novels/")):
        text = data.path(name).read_bytes().decode("utf-8", errors="replace")
        yield from (("novels", p) for p in _novel(text))
    for corpus in NLTK:
        with zipfile.ZipFile(data.path(f"lm/nltk/{corpus}")) as archive:
            for member in sorted(archive.namelist()):
                yield from ((corpus, p) for p in _nltk(corpus, member, archive))


def _novel(text: str) -> Iterator[str]:
    """Unwrap a novel's hard lines; what has no sentence end (titles, contents, credits) is left out."""
    for block in re.split(r"\n\s*\n", text.replace("\r", "").translate(STRAIGHT)):
        paragraph = re.sub(r"\s+", " ", block.replace("_", "")).strip()
        if re.search(r"[.!?]['\")]*(--)?$", paragraph) and not paragraph.startswith("Produced by"):
            yield re.sub(r"\s*--+\s*", " -- ", paragraph).strip()


def _nltk(corpus: str, member: str, archive: zipfile.ZipFile) -> Iterator[str]:
    """Return the paragraphs of one file of an NLTK archive; files that hold no running text give none."""
    name = member.rsplit("/", 1)[-1]
    if (
        not name
        or name.isupper()
        or name.startswith(".")
        or (corpus == "webtext" and name not in SPOKEN)
    ):
        return
    if corpus == "treebank" and "/raw/" not in member:
        return
    text = io.TextIOWrapper(archive.open(member), encoding="latin-1", newline=None).read()
    if corpus == "brown" and re.fullmatch(r"c[a-r]\d\d", name):
        yield from _brown(text)
    elif corpus == "movie_reviews" and name.endswith(".txt"):
        lines = (line for line in text.translate(STRAIGHT).splitlines() if line.strip())
        yield " ".join(_sentence_case(detokenise(line)) for line in lines)
    elif corpus != "brown" and corpus != "movie_reviews":
        blocks = text.split("\n\n") if corpus == "treebank" else text.split("\n")
        plain = (
            re.sub(r"\s+", " ", b.replace(".START", "")).translate(STRAIGHT).strip() for b in blocks
        )
        yield from (re.sub(r"\s*--+\s*", " -- ", p) for p in plain if p and "<" not in p)


def _brown(text: str) -> Iterator[str]:
    """Take the tags off Brown's ``word/tag`` lines and join the sentences of a paragraph."""
    for block in re.split(r"\n\s*\n\s*\n", text):
        sentences = [
            [token.rsplit("/", 1)[0] for token in line.split()] for line in block.splitlines()
        ]
        if any(sentences):
            yield " ".join(detokenise(" ".join(s)) for s in sentences if s)


def detokenise(tokens: str) -> str:
    """Put a space-separated tokenisation back into print.

    Parameters
    ----------
    tokens : str
        One sentence, tokens between spaces, quotes as `` `` `` and ``''`` or alternating ``"``.
    """
    text = f" {tokens} "
    text = re.sub(r" (``|'') ?", lambda m: ' "' if m[1] == "``" else '" ', text)
    text = re.sub(r' " (.*?) " ', r' "\1" ', text)
    text = re.sub(r" ([?!]) (?=\1 )", " ", text)  # Brown doubles them
    text = re.sub(r"([;:]) \1(?= )", r"\1", text)
    text = re.sub(
        r" ([,.;:?!%)\]}]|\.\.\.|n't|'(?:s|m|d|re|ve|ll)\b)(?=[\s\"'),.;:?!])", r"\1", text
    )
    text = re.sub(r"([(\[{$]) ", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"\s*--+\s*", " -- ", text)).strip()


def _sentence_case(sentence: str) -> str:
    """Give a lower-cased sentence its first capital and the pronoun I its own."""
    sentence = re.sub(r"\bi\b(?!\.)", "I", sentence)
    return re.sub(r"^([^a-zA-Z]*)([a-z])", lambda m: m[1] + m[2].upper(), sentence)


def without(
    sentences: Iterable[str], texts: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, bool]]:
    """Mark the paragraphs that share a sentence with a test corpus.

    Parameters
    ----------
    sentences : iterable of str
        The test corpus. One counts as found in a paragraph when a run of seven of its words is there, or all of a
        sentence of four to six words.
    texts : iterable of (source, paragraph)

    Yields
    ------
    (source, paragraph, clean) : tuple of str, str, bool
    """
    runs: dict[int, set[tuple[str, ...]]] = {}
    for words in map(bare_words, sentences):
        size = min(len(words), OVERLAP_WORDS)
        if size > 3:
            runs.setdefault(size, set()).update(
                zip(*(words[i:] for i in range(size)), strict=False)
            )
    for source, paragraph in texts:
        words = bare_words(paragraph)
        shared = any(
            not held.isdisjoint(zip(*(words[i:] for i in range(size)), strict=False))
            for size, held in runs.items()
        )
        yield source, paragraph, not shared
