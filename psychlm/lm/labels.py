"""A classifier's outputs and an item's choices, matched by what they mean and never by their order.

MNLI models are published with the order entailment, neutral, contradiction and with its reverse; who trusts the order
grades some of them upside down. Here a label is read from the model's configuration, and one without a meaning
(``LABEL_0``) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from psychlm.lm._load import ModelError

SYNONYMS = {
    "entailment": ("entail", "entails", "entailed", "e"),
    "neutral": ("neither", "n", "neu", "3 stars"),
    "contradiction": ("contradict", "contradicts", "contradicted", "contradictory", "c"),
    "not entailment": (
        "non entailment",
        "no entailment",
        "not entailed",
        "notentailment",
        "nonentailment",
    ),
    "negative": ("neg", "2 stars"),
    "positive": ("pos", "4 stars"),
    "very negative": ("very neg", "verynegative", "1 star", "1 stars"),
    "very positive": ("very pos", "verypositive", "5 stars"),
}
WIDER = {  # what else a choice covers, unless that is a choice too
    "not entailment": {"neutral", "contradiction"},
    "negative": {"very negative"},
    "positive": {"very positive"},
}
_MEANING = {synonym: word for word, synonyms in SYNONYMS.items() for synonym in (word, *synonyms)}
_NAMELESS = re.compile(r"(label )?\d+")


def meaning(label: str) -> str:
    """Return what a label means: one word for all its spellings, or the label itself in lower case.

    >>> meaning("CONTRADICT"), meaning("not_entailment"), meaning("sports")
    ('contradiction', 'not entailment', 'sports')
    """
    plain = re.sub(r"[\s_-]+", " ", str(label)).strip().casefold()
    return _MEANING.get(plain, plain)


def check_labels(labels: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the labels of a classifier, of which each must have a name, and no two the same meaning.

    Raises
    ------
    ModelError
        If they are mere numbers, or two of them mean the same.
    """
    meanings = [meaning(label) for label in labels]
    if any(_NAMELESS.fullmatch(word) for word in meanings):
        raise ModelError(
            f"the labels of {name} are {list(labels)}, which say nothing; look up on its card what its outputs mean, "
            "and pass them in their order: labels=['contradiction', 'neutral', 'entailment'], say"
        )
    if len(set(meanings)) < len(meanings):
        raise ModelError(
            f"two of the labels of {name}, {list(labels)}, mean the same ({meanings}); pass labels=[...] in the order "
            "of its outputs"
        )
    return tuple(labels)


def outputs_of(choices: Sequence[str], labels: Sequence[str], name: str) -> list[list[int]]:
    """Return for each choice the outputs of a classifier whose probabilities make up the choice's.

    ``not_entailment`` is made of neutral and contradiction where no label names it, and binary sentiment of both
    degrees of a five-point scale. Labels that no choice means (neutral, for binary sentiment) stay out.

    Raises
    ------
    ModelError
        If a choice is none of the labels.
    """
    given, wanted = [meaning(label) for label in labels], [meaning(choice) for choice in choices]
    found = []
    for choice, word in zip(choices, wanted, strict=True):
        covered = {word} | (WIDER.get(word, set()) - set(wanted))
        found.append([i for i, label in enumerate(given) if label in covered])
        if not found[-1]:
            raise ModelError(
                f"no label of {name}, {list(labels)}, means the choice {choice!r} (of {list(choices)}); give the model "
                "items of its own task, or pass labels=[...] in the order of its outputs"
            )
    return found
