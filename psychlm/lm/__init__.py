"""Language models: surprisal of words in texts, and log-probabilities of the choices of items.

    load         a Hugging Face checkpoint (hub name, folder, GGUF file), without remote code: a
                 language model, a classifier, or a multiple-choice head
    surprisal    words + model -> words with ``surprisal_bits``
    surprisals   words + models -> words with a column for each model, here or on a cluster
    minimal_pairs  pairs of sentences + models -> which sentence is likelier, by phenomenon
    words_of     a text -> its words, from which the text can be put together again
    evaluate     items + models -> log-probabilities of choices, predictions, graded responses
    fine_tune    items + a pre-trained encoder -> a classifier or a multiple-choice model

Modules with names of their own::

    choices          scores of choices, confidences, and the one grader
    prompts          prompts of language models, labels of classifiers
    encoders         states of a pre-trained encoder
    finetune         a pre-trained encoder learns, with transformers.Trainer
    cache            the store of results on disk

Nothing heavy is imported before a name is used: ``psychlm.lm.load`` brings torch and transformers
with it.
"""

# ruff: noqa: F401  (what type checkers read below is what __getattr__ imports)
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.lm._errors import ModelError
    from psychlm.lm._load import LanguageModel, fingerprint, load, wrap
    from psychlm.lm._minimal_pairs import MinimalPairs, minimal_pairs, read_blimp
    from psychlm.lm._surprisal import surprisal, surprisals
    from psychlm.lm.choices import (
        Evaluation,
        ItemTaker,
        choice_logprobs,
        confidences,
        evaluate,
        grade,
        predictions,
    )
    from psychlm.lm.finetune import FineTuned, fine_tune
    from psychlm.lm.prompts import Prompt
    from psychlm.lm.tokens import words_of

_NAMES = {
    "_errors": "ModelError",
    "_load": "LanguageModel fingerprint load wrap",
    "_minimal_pairs": "MinimalPairs minimal_pairs read_blimp",
    "_surprisal": "surprisal surprisals",
    "choices": "Evaluation ItemTaker choice_logprobs confidences evaluate grade predictions",
    "finetune": "FineTuned fine_tune",
    "prompts": "Prompt",
    "tokens": "words_of",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'psychlm.lm' has no attribute {name!r}")
    value = getattr(import_module(f"psychlm.lm.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
