"""Language models that read: words in, surprisal per word out; and models that answer items.

    load         a Hugging Face checkpoint (hub name or folder), pinned, without pickles and without
    remote code surprisal    words + model -> words with ``surprisal_bits`` words_of     a text ->
    its words, from which the text can be put together again evaluate     items + models ->
    log-probabilities of choices, predictions, graded responses fine_tune    items + a pre-trained
    encoder -> a classifier or a multiple-choice model

Modules with more names: ``choices`` (scores, confidences, grades), ``prompts``, ``choice_model``
(classifiers and multiple-choice heads), ``choice_networks`` and ``choice_encoder`` (small models
that are trained), ``finetune``.

Nothing heavy is imported before a name is asked for: ``psychlm.lm.load`` brings torch and
transformers with it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.lm.alignment import words_of
    from psychlm.lm.choice_encoder import encoder_model
    from psychlm.lm.choice_model import (
        ChoiceModel,
        bundled_encoder,
        load_choice_model,
        wrap_choice_model,
    )
    from psychlm.lm.choice_networks import ChoiceClassifier, Lexicon, partial_input_model
    from psychlm.lm.choices import (
        Evaluation,
        choice_logprobs,
        confidences,
        evaluate,
        grade,
        predictions,
    )
    from psychlm.lm.finetune import FineTuned, fine_tune
    from psychlm.lm.load import LanguageModel, ModelError, load, wrap
    from psychlm.lm.prompts import Prompt
    from psychlm.lm.surprisal import surprisal

_HOME = {
    "ChoiceClassifier": "choice_networks",
    "ChoiceModel": "choice_model",
    "Evaluation": "choices",
    "FineTuned": "finetune",
    "LanguageModel": "load",
    "Lexicon": "choice_networks",
    "ModelError": "load",
    "Prompt": "prompts",
    "bundled_encoder": "choice_model",
    "choice_logprobs": "choices",
    "confidences": "choices",
    "encoder_model": "choice_encoder",
    "evaluate": "choices",
    "fine_tune": "finetune",
    "grade": "choices",
    "load": "load",
    "load_choice_model": "choice_model",
    "partial_input_model": "choice_networks",
    "predictions": "choices",
    "surprisal": "surprisal",
    "words_of": "alignment",
    "wrap": "load",
    "wrap_choice_model": "choice_model",
}

__all__ = [
    "ChoiceClassifier",
    "ChoiceModel",
    "Evaluation",
    "FineTuned",
    "LanguageModel",
    "Lexicon",
    "ModelError",
    "Prompt",
    "bundled_encoder",
    "choice_logprobs",
    "confidences",
    "encoder_model",
    "evaluate",
    "fine_tune",
    "grade",
    "load",
    "load_choice_model",
    "partial_input_model",
    "predictions",
    "surprisal",
    "words_of",
    "wrap",
    "wrap_choice_model",
]


class _Room(ModuleType):
    """A package whose functions are not shadowed by the modules that hold them (``load`` lives in
    ``load.py``)."""

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
