"""Language models that read: words in, surprisal per word out; and models that answer items.

    load         a Hugging Face checkpoint (hub name or folder), pinned, without pickles and without remote code
    surprisal    words + model -> words with ``surprisal_bits``
    words_of     a text -> its words, from which the text can be put together again

Nothing heavy is imported before a name is asked for: ``psychlm.lm.load`` brings torch and transformers with it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.lm.alignment import words_of
    from psychlm.lm.load import LanguageModel, ModelError, load, wrap
    from psychlm.lm.surprisal import surprisal

_HOME = {
    "LanguageModel": "load",
    "ModelError": "load",
    "load": "load",
    "surprisal": "surprisal",
    "words_of": "alignment",
    "wrap": "load",
}

__all__ = ["LanguageModel", "ModelError", "load", "surprisal", "words_of", "wrap"]


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
