"""Language models: surprisal of words in texts, and log-probabilities of the choices of items.

    load         open a Hugging Face checkpoint (hub name or folder), pinned, without pickles
    surprisal    words + model -> words with ``surprisal_bits``
    words_of     a text -> its words, from which the text can be put together again
    answers      items + models -> log-probabilities of choices, predictions, graded responses

Modules with names of their own::

    ngram            n-gram models with modified Kneser-Ney smoothing (KenLM)
    word_models      word-level LSTMs and Transformers, trained as Hao et al. (2020) do
    finetune         items + an encoder -> a classifier or a multiple-choice model
    cache            the store of results on disk

Nothing heavy is imported before a name is used: ``psychlm.lm.load`` brings torch and transformers
with it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.lm._load import LanguageModel, ModelError, fingerprint, load, wrap
    from psychlm.lm._surprisal import surprisal
    from psychlm.lm.answerers import Answerer, bundled_encoder
    from psychlm.lm.logprobs import choice_logprobs, confidences, predictions
    from psychlm.lm.responses import Answers, answers, responses
    from psychlm.lm.templates import Template
    from psychlm.lm.tokens import words_of

_MODULES = {
    "Answerer": "answerers",
    "Answers": "responses",
    "LanguageModel": "_load",
    "ModelError": "_load",
    "Template": "templates",
    "answers": "responses",
    "bundled_encoder": "answerers",
    "choice_logprobs": "logprobs",
    "confidences": "logprobs",
    "fingerprint": "_load",
    "load": "_load",
    "predictions": "logprobs",
    "responses": "responses",
    "surprisal": "_surprisal",
    "words_of": "tokens",
    "wrap": "_load",
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
    "fingerprint",
    "load",
    "predictions",
    "responses",
    "surprisal",
    "words_of",
    "wrap",
]


class _Package(ModuleType):
    """A package whose functions are not replaced by modules of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'psychlm.lm' has no attribute {name!r}")
    value = getattr(import_module(f"psychlm.lm.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
