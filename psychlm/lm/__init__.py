"""Language models that read: words in, surprisal per word out; and models that answer items.

    load         a Hugging Face checkpoint (hub name or folder), pinned, without pickles and without remote code
    surprisal    words + model -> words with ``surprisal_bits``
    words_of     a text -> its words, from which the text can be put together again
    answers      items + models -> choice log-probabilities, predictions, graded responses

Rooms of their own, imported by their names (``from psychlm.lm.finetune import finetune``)::

    finetune           items + an encoder -> a classifier or a multiple-choice model
    regimes            the four regimes of Laverghetta et al. (2021)
    ability_callback   ability during training, for the Transformers Trainer and for ``finetune``
    crowd              many small models trained as one: artificial crowds
    soft_labels        learning what a crowd said (SLMG); ``curriculum``: DDaCLAE and its rivals
    partial_input      what a part of the question gives away; ``inoculation``: a little training, and its cost

Nothing heavy is imported before a name is asked for: ``psychlm.lm.load`` brings torch and transformers with it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.lm.alignment import words_of
    from psychlm.lm.answerers import Answerer, bundled_encoder
    from psychlm.lm.load import LanguageModel, ModelError, load, wrap
    from psychlm.lm.logprobs import choice_logprobs, confidences, predictions
    from psychlm.lm.responses import Answers, answers, responses
    from psychlm.lm.surprisal import surprisal
    from psychlm.lm.templates import Template

_HOME = {
    "Answerer": "answerers",
    "Answers": "responses",
    "LanguageModel": "load",
    "ModelError": "load",
    "Template": "templates",
    "answers": "responses",
    "bundled_encoder": "answerers",
    "choice_logprobs": "logprobs",
    "confidences": "logprobs",
    "load": "load",
    "predictions": "logprobs",
    "responses": "responses",
    "surprisal": "surprisal",
    "words_of": "alignment",
    "wrap": "load",
}

__all__ = [
    "Answerer",
    "Answers",
    "LanguageModel",
    "ModelError",
    "Template",
    "answers",
    "bundled_encoder",
    "choice_logprobs",
    "confidences",
    "load",
    "predictions",
    "responses",
    "surprisal",
    "words_of",
    "wrap",
]


class _Room(ModuleType):
    """A package whose functions are not shadowed by the modules that hold them (``load`` lives in ``load.py``)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'psychlm.lm' has no attribute {name!r}")
    value = getattr(import_module(f"psychlm.lm.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
