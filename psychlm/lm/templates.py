"""How an item is put to a language model: the text before the choice, and the words that stand for the choice.

Classifiers and multiple-choice heads read an item's own fields. A language model reads one text, and what it says
depends on its wording: the template is an option of every score, named in it, and one of a few published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from psychlm.frames import FrameError
from psychlm.lm.labels import SYNONYMS, meaning


@dataclass(frozen=True)
class Template:
    """A text with holes, named after the columns of an items frame.

    Attributes
    ----------
    prompt : str
        The text before the choice, ``"Question: {prompt}\\nAnswer:"``.
    choice : str
        What is added for a choice; it begins with the space that parts both.
    words : mapping
        What stands for a choice, by its meaning (``{"entailment": "True"}``); other choices stand for themselves.
    neutral : str
        The prompt that says nothing of the item, after which a choice has its unconditional probability.
    """

    prompt: str
    choice: str = " {choice}"
    words: Mapping[str, str] = field(default_factory=dict)
    neutral: str = "Answer:"

    def __post_init__(self) -> None:
        if "{choice}" not in self.choice:
            raise FrameError(
                f"the choice of a template needs its place: ' {{choice}}', not {self.choice!r}"
            )

    def prompt_of(self, item: Mapping[str, Any]) -> str:
        """Return the text before the choice."""
        try:
            return self.prompt.format_map({name: _plain(value) for name, value in item.items()})
        except KeyError as error:
            raise FrameError(
                f"the template {self.prompt!r} asks for the column {error}, and the items have {list(item)}"
            ) from None

    def choices_of(self, choices: list[str]) -> tuple[str, ...]:
        """Return what is added to the prompt for each choice."""
        spoken = [self.words.get(meaning(choice), choice) for choice in choices]
        return tuple(self.choice.format(choice=word.strip()) for word in spoken)


TEMPLATES = {
    # Brown et al. 2020, appendix G: ARC and OpenBookQA; ANLI; RTE
    "question": Template("Question: {prompt}\nAnswer:"),
    "nli": Template(
        "{prompt}\nQuestion: {hypothesis} True, False, or Neither?\nAnswer:",
        words={"entailment": "True", "neutral": "Neither", "contradiction": "False"},
    ),
    "binary nli": Template(
        "{prompt}\nQuestion: {hypothesis} True or False?\nAnswer:",
        words={"entailment": "True", "not entailment": "False", "contradiction": "False"},
    ),
    "sentiment": Template("Review: {prompt}\nSentiment:", neutral="Sentiment:"),
    # the choice goes on where the prompt stops: HellaSwag, aNLI, fill-ins
    "continuation": Template("{prompt}", neutral=""),
}
SENTIMENT = {word for word in SYNONYMS if word.split()[-1] in ("negative", "positive")} | {
    "neutral"
}


def rendered(
    items: pd.DataFrame, template: str | Template
) -> list[tuple[str, tuple[str, ...], str]]:
    """Return for each item its prompt, what is added for each choice, and the prompt that says nothing of it.

    Parameters
    ----------
    template : str or Template
        A template, the name of one of :data:`TEMPLATES`, or ``"auto"``: the one that the item's column ``template``
        names, else the one that fits its columns and choices.

    Raises
    ------
    FrameError
        If there is no such template, or it asks for a column that the items do not have.
    """
    texts = []
    for item in items.to_dict("records"):
        chosen = (
            template
            if isinstance(template, Template)
            else _named(_fitting(item) if template == "auto" else template)
        )
        texts.append(
            (chosen.prompt_of(item).rstrip(), chosen.choices_of(item["choices"]), chosen.neutral)
        )
    return texts


def _fitting(item: Mapping[Any, Any]) -> str:
    if isinstance(item.get("template"), str):
        return str(item["template"])
    meanings = {meaning(choice) for choice in item["choices"]}
    if isinstance(item.get("hypothesis"), str):
        return "nli" if "neutral" in meanings else "binary nli"
    return "sentiment" if meanings <= SENTIMENT else "question"


def _named(name: str) -> Template:
    if name not in TEMPLATES:
        raise FrameError(
            f"there is no template {name!r}; there are {sorted(TEMPLATES)}, or pass a Template(...)"
        )
    return TEMPLATES[name]


def _plain(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value
