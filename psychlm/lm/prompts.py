"""How an item is put to a model: prompts for language models, and label words for classifiers.

A language model reads one text, and its answer depends on the wording, so the prompt is an option
of every score and is named in the result. Classifiers read an item's own fields; their outputs are
matched with the choices by the meaning of their labels, never by their order: MNLI models are
published as entailment, neutral, contradiction and in reverse.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase
from typing import Any

import pandas as pd

from psychlm.frames import FrameError
from psychlm.lm._errors import ModelError

# Spellings of a label in published checkpoints, by the meaning that they share.
SYNONYMS = {
    "entailment": ("entail", "entails", "entailed", "e"),
    "neutral": ("neither", "n", "neu", "3 stars"),
    "contradiction": ("contradict", "contradicts", "contradicted", "contradictory", "c"),
    "not entailment": ("no entailment", "non entailment", "not entailed"),
    "negative": ("neg", "2 stars"),
    "positive": ("pos", "4 stars"),
    "very negative": ("very neg", "1 star", "1 stars"),
    "very positive": ("very pos", "5 stars"),
}
# Labels that a choice covers as well, unless the item has a choice of that meaning.
WIDER = {
    "not entailment": {"neutral", "contradiction"},
    "negative": {"very negative"},
    "positive": {"very positive"},
}
_MEANING = {
    synonym.replace(" ", ""): word
    for word, synonyms in SYNONYMS.items()
    for synonym in (word, *synonyms)
}


def meaning(label: str) -> str:
    """Return one word for all spellings of a label, or the label itself in lower case.

    >>> meaning("CONTRADICT"), meaning("not_entailment"), meaning("sports")
    ('contradiction', 'not entailment', 'sports')
    """
    plain = re.sub(r"[\s_-]+", " ", str(label)).strip().casefold()
    return _MEANING.get(plain.replace(" ", ""), plain)


def check_labels(labels: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the labels of a classifier; ModelError unless each has a meaning of its own."""
    meanings = [meaning(label) for label in labels]
    if any(re.fullmatch(r"(label )?\d+", word) for word in meanings):
        wrong = "have no meaning; look up on its card what its outputs mean"
    elif len(set(meanings)) < len(meanings):
        wrong = f"mean the same ({meanings})"
    else:
        return tuple(labels)
    advice = "pass labels=['contradiction', 'neutral', ...] in the order of its outputs"
    raise ModelError(f"labels of {name}, {list(labels)}, {wrong}; {advice}")


def outputs_of(choices: Sequence[str], labels: Sequence[str], name: str) -> list[list[int]]:
    """Return for each choice the outputs of a classifier whose probabilities sum to the choice's;
    a choice that no label means is a ModelError.

    >>> outputs_of(["entailment", "not_entailment"], ["neutral", "ENTAILS", "contradiction"], "m")
    [[1], [0, 2]]
    """
    label_meanings = [meaning(label) for label in labels]
    choice_meanings = [meaning(choice) for choice in choices]
    outputs = []
    for choice, word in zip(choices, choice_meanings, strict=True):
        covered = {word} | (WIDER.get(word, set()) - set(choice_meanings))
        outputs.append([i for i, label in enumerate(label_meanings) if label in covered])
        if not outputs[-1]:
            said = f"no label of {name}, {list(labels)}, means the choice {choice!r}; give the "
            said += "model items of its own task, or pass labels=[...] in the order of its outputs"
            raise ModelError(said)
    return outputs


class _Choices(list[str]):
    """Choices of an item; as a field of a prompt, a line each with a letter before it."""

    def __format__(self, separator: str) -> str:
        letters = ascii_uppercase if len(self) <= 26 else range(1, len(self) + 1)
        return "\n".join(f"{letter}. {one}" for letter, one in zip(letters, self, strict=False))


@dataclass(frozen=True)
class Prompt:
    """A text with fields in braces, named after the columns of an items frame.

    ``{choices}`` stands for all choices, a line each ("A. warm"), ``{choices[0]}`` for the first.

    The text is scored as it is written: nothing is stripped. Where the tokenizer joins white space
    at the end of the prompt with the choice it belongs to the choice, as in lm-evaluation-harness.

    Attributes
    ----------
    prompt : str
        The text before the choice, ``"Question: {prompt}\\nAnswer:"``.
    choice : str
        What is added for a choice, with fields too; it begins with the space between both.
    words : mapping
        What stands for a choice, by its meaning (``{"entailment": "True"}``); other choices stand
        for themselves.
    neutral : str
        A prompt without the item, after which a choice has its unconditional probability.
    messages : tuple of (role, text), optional
        Of a chat (:meth:`chat`), what comes before the prompt, which is the user's last message.
    """

    prompt: str
    choice: str = " {choice}"
    words: Mapping[str, str] = field(default_factory=dict)
    neutral: str = "Answer:"
    messages: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        if "{choice}" not in self.choice:
            said = f"the choice of a prompt is {self.choice!r}"
            raise FrameError(f"{said} and needs the field '{{choice}}', as in ' {{choice}}'")

    @classmethod
    def chat(
        cls,
        prompt: str = "{prompt}",
        *,
        system: str | None = None,
        few_shot: pd.DataFrame | None = None,
        **options: Any,
    ) -> Prompt:
        """Return a prompt that is the user's message in a chat, of which a choice is the answer.

        The text is that of the tokenizer's own chat template, with the beginning of an answer; the
        choice follows it directly.

        Parameters
        ----------
        prompt : str
            The message, with fields.
        system : str, optional
            A message of the system before it.
        few_shot : DataFrame, optional
            Items whose prompts and right choices stand before it, as messages of both sides.
        **options
            ``choice`` (``"{choice}"`` unless given), ``words`` and ``neutral``, also a message.

        Examples
        --------
        >>> shots = pd.DataFrame({"prompt": ["2 + 2 =?"], "choices": [["3", "4"]], "answer": [1]})
        >>> Prompt.chat(system="Answer briefly.", few_shot=shots).messages
        (('system', 'Answer briefly.'), ('user', '2 + 2 =?'), ('assistant', '4'))
        """
        written = cls(prompt, **{"choice": "{choice}", **options})
        messages = [] if system is None else [("system", system)]
        for shot in [] if few_shot is None else few_shot.to_dict("records"):
            before, added = written._written(shot)
            messages += [("user", before), ("assistant", added[shot["answer"]])]
        return replace(written, messages=tuple(messages))

    def fill(self, item: Mapping[str, Any], tokenizer: Any = None) -> tuple[str, tuple[str, ...]]:
        """Return the text before the choice, and what is added to it for each choice. A chat takes
        the tokenizer of the model; white space at the end of its template is scored with the
        choice."""
        before, added = self._written(item)
        if self.messages is None:
            return before, added
        text = self.as_chat(before, tokenizer)
        stripped = text.rstrip()
        return stripped, tuple(text[len(stripped) :] + one for one in added)

    def as_chat(self, before: str, tokenizer: Any) -> str:
        """Return the text before an answer to a message, or, without messages, the text itself."""
        if self.messages is None:
            return before
        if getattr(tokenizer, "chat_template", None) is None:
            said = "a chat takes the chat template of the model's tokenizer, which has none"
            raise ModelError(f"{said}; choose a model trained to chat, or write lm.Prompt('...')")
        messages = (*self.messages, ("user", before))
        chat = [{"role": role, "content": text} for role, text in messages]
        return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    def _written(self, item: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return prompt and choices with the fields of an item."""
        # an empty cell is no field: "nan" would be read as a word; nor are lists, or what is right
        fields = {k: v for k, v in item.items() if pd.api.types.is_scalar(v) and not pd.isna(v)}
        fields.pop("answer", None)
        by_meaning = {meaning(label): word for label, word in self.words.items()}
        words = [by_meaning.get(meaning(choice), choice) for choice in item["choices"]]
        fields["choices"] = _Choices(words)
        try:
            before = self.prompt.format_map(fields)
            added = tuple(self.choice.format_map(fields | {"choice": word}) for word in words)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            said = f"the prompt {self.prompt!r} with {self.choice!r} cannot be filled for item "
            said += f"{item.get('item_id')!r} ({error!r}); its fields are {list(fields)}, and "
            raise FrameError(f"{said}braces of the text itself are doubled") from None
        return before, added


PROMPTS = {
    # Brown et al. 2020, appendix G: ARC and OpenBookQA; ANLI; RTE
    "question": Prompt("Question: {prompt}\nAnswer:"),
    "nli": Prompt(
        "{prompt}\nQuestion: {hypothesis} True, False, or Neither?\nAnswer:",
        words={"entailment": "True", "neutral": "Neither", "contradiction": "False"},
    ),
    "binary nli": Prompt(
        "{prompt}\nQuestion: {hypothesis} True or False?\nAnswer:",
        words={"entailment": "True", "not entailment": "False", "contradiction": "False"},
    ),
    "sentiment": Prompt("Review: {prompt}\nSentiment:", neutral="Sentiment:"),
    # the choice continues the prompt: HellaSwag, aNLI, sentences with a gap at their end
    "continuation": Prompt("{prompt}", neutral=""),
}
SENTIMENT = {word for word in SYNONYMS if word.endswith(("negative", "positive"))} | {"neutral"}


def fill_prompts(
    items: pd.DataFrame, prompt: str | Prompt = "auto", tokenizer: Any = None
) -> list[tuple[str, tuple[str, ...], str]]:
    """Return for each item its prompt, what is added for each choice, and its neutral prompt.

    ``prompt`` is a prompt, the name of one of :data:`PROMPTS`, or ``"auto"``: the one that the
    item's column ``template`` names, else one that fits its columns and choices (a hypothesis: NLI;
    words for feelings: sentiment; else a question).
    """
    filled = []
    asked = set()  # what is asked, with empty choices
    blank = {"choices": [""] * items["choices"].map(len).max()}
    for item in items.to_dict("records"):
        chosen: Any = prompt
        meanings = {meaning(choice) for choice in item["choices"]}
        if chosen == "auto":
            if isinstance(item.get("template"), str):
                chosen = item["template"]
            elif isinstance(item.get("hypothesis"), str):
                chosen = "nli" if "neutral" in meanings else "binary nli"
            else:
                chosen = "sentiment" if meanings <= SENTIMENT else "question"
        if not isinstance(chosen, Prompt):
            if chosen not in PROMPTS:
                there = f"there are {sorted(PROMPTS)}, or write a text with {{prompt}} "
                there += "(in Python, lm.Prompt('{prompt} ...'))"
                raise FrameError(f"there is no prompt {chosen!r}; {there}")
            name = chosen
            chosen = PROMPTS[chosen]
            if chosen.words and not meanings <= chosen.words.keys():
                said = f"item {item.get('item_id')!r} has the choices {list(item['choices'])}, but "
                said += f"the prompt {name!r} asks for {list(chosen.words)}; relabel the choices, "
                raise FrameError(f"{said}or pass lm.Prompt('...')")
        neutral = chosen.as_chat(chosen.neutral, tokenizer)
        filled.append((*chosen.fill(item, tokenizer), neutral))
        asked.add(chosen._written(item | blank))
    if len(asked) < items["prompt"].nunique():
        said = (
            f"{len(items)} items have {len(asked)} different prompts but for their choices, such "
        )
        said += (
            f"as {filled[0][0][-60:]!r}, which leave out what is asked; the field {{prompt}} is "
        )
        warnings.warn(f"{said}the item's text", RuntimeWarning, stacklevel=3)
    return filled
