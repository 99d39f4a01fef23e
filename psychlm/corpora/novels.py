"""The 20 novels in the public domain that come with the project: paragraphs and counts of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from psychlm import data

STRAIGHT = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "—": "--", "–": "-", "…": "..."}
)


def bare_words(text: str) -> list[str]:
    """Return the lower-cased words of a text without its punctuation, for overlap and counts.

    >>> bare_words("“Don’t,” she said.")
    ["don't", 'she', 'said']
    """
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.translate(STRAIGHT).lower())


def paragraphs() -> Iterator[str]:
    """Yield the paragraphs of the novels in a fixed order, with straight quotes."""
    for name in sorted(n for n in data.registry().index if n.startswith("lm/novels/")):
        text = data.path(name).read_bytes().decode("utf-8", errors="replace")
        # unwrap hard lines; what has no sentence end (titles, contents, credits) is left out
        for block in re.split(r"\n\s*\n", text.replace("\r", "").translate(STRAIGHT)):
            paragraph = re.sub(r"\s+", " ", block.replace("_", "")).strip()
            ends = re.search(r"[.!?]['\")]*(--)?$", paragraph)
            if ends and not paragraph.startswith("Produced by"):
                yield re.sub(r"\s*--+\s*", " -- ", paragraph).strip()


@cache
def word_counts() -> Counter[str]:
    """Return how often each word stands in the 20 novels, bare and in lower case."""
    return Counter(word for paragraph in paragraphs() for word in bare_words(paragraph))
