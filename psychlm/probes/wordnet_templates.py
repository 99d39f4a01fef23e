"""How probe questions are worded: several templates a probe, after the kinds of Richardson & Sabharwal (2020, Table 2).

The sentences are ours. A template introduces the word in its example sentence and ends where a choice may follow;
synonymy asks from the definition alone. Verbs have templates of their own, since an act is not "a kind of thing": their
choices read "to escape, meaning ...", where the paper's read "escape event, defined as ...".
"""

from __future__ import annotations

from collections.abc import Sequence

PROBES = ("definitions", "hypernymy", "hyponymy", "synonymy")

DEFINITIONS = (
    "Read this sentence: “{sentence}” Which of these definitions fits “{word}” as it is used there?",
    "Someone says: “{sentence}” What does “{word}” mean here?",
    "As used in “{sentence}”, the expression “{word}” means",
    "In the context “{sentence}”, the best explanation of “{word}” is",
)
_HYPERNYMY_NOUNS = (
    "In “{sentence}”, what is called “{word}” is a kind of",
    "Read this sentence: “{sentence}” Which of these is a more general term for “{word}” as it is meant there?",
    "Someone says: “{sentence}” The concept “{word}” then belongs to which wider class?",
    "Given the context “{sentence}”, “{word}” is a type of",
)
_HYPERNYMY_VERBS = (
    "In “{sentence}”, what is called “{word}” is one way",
    "Read this sentence: “{sentence}” Which of these is a more general term for “{word}” as it is meant there?",
    "Someone says: “{sentence}” The act “{word}” is then a special case of which act?",
    "Given the context “{sentence}”, to do what “{word}” says is in particular",
)
_HYPONYMY_NOUNS = (
    "Take “{word}” as it is meant in “{sentence}” Which of these is a specific kind of it?",
    "Someone says: “{sentence}” Which of these concepts is a special type of what “{word}” names here?",
    "Given the context “{sentence}”, a narrower term for “{word}” is",
    "In the sense of “{sentence}”, an example of a kind of “{word}” is",
)
_HYPONYMY_VERBS = (
    "Take “{word}” as it is meant in “{sentence}” Which of these is a specific way of doing it?",
    "Someone says: “{sentence}” Which of these acts is a special case of what “{word}” names here?",
    "Given the context “{sentence}”, a narrower term for “{word}” is",
    "In the sense of “{sentence}”, a particular manner of what “{word}” says is",
)
SYNONYMY = (
    "Which set of words has the meaning “{gloss}”?",
    "“{gloss}”: this defines which of the following words?",
    "The definition “{gloss}” belongs to",
    "Someone looks for words that mean “{gloss}” Which of these should they choose?",
)


def templates(probe: str, pos: str) -> tuple[str, ...]:
    """Return the templates of a probe for a part of speech (n, v, a or r)."""
    verbs = pos == "v"
    of_probe = {
        "definitions": DEFINITIONS,
        "hypernymy": _HYPERNYMY_VERBS if verbs else _HYPERNYMY_NOUNS,
        "hyponymy": _HYPONYMY_VERBS if verbs else _HYPONYMY_NOUNS,
        "synonymy": SYNONYMY,
    }
    if probe not in of_probe:
        raise ValueError(f"no probe is named {probe!r}; there are {list(PROBES)}")
    return of_probe[probe]


def concept_in_words(words: Sequence[str], gloss: str, pos: str) -> str:
    """Write a concept as a choice of an ISA question: its words, and its definition as the paper gives it.

    >>> concept_in_words(["sit", "sit down"], "be seated", "v")
    'to sit (or sit down), meaning ‘be seated’'
    """
    others = f" (or {', '.join(words[1:])})" if len(words) > 1 else ""
    return f"{'to ' if pos == 'v' else ''}{words[0]}{others}, meaning ‘{gloss}’"


def choice(probe: str, words: Sequence[str], gloss: str, pos: str) -> str:
    """Write a concept as a choice of a probe: its definition, its words, or both."""
    if probe == "definitions":
        return gloss
    if probe == "synonymy":
        return ", ".join(words)
    return concept_in_words(words, gloss, pos)
