"""What a network in memory computes with its weights, and the mode in which it is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from psychlm.data import digest

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def structure_of(network: Any) -> str:
    """Return a hash of what a network computes with its weights.

    It covers the classes of its modules, their hooks, methods that were replaced, and the
    configuration.
    """
    configuration = network.config.to_json_string(use_diff=False)
    parts = [re.sub(r'"use_cache": \w+', "", configuration)]  # see evaluating
    for name, module in network.named_modules():
        hooks = [list(getattr(module, kind)) for kind in HOOKS]  # their numbers, never used twice
        replaced = [id(module.__dict__[key]) for key in ("forward",) if key in module.__dict__]
        parts.append(f"{name} {type(module).__qualname__} {hooks} {replaced}")
    parts.append(str([list(getattr(torch.nn.modules.module, f"_global{kind}")) for kind in HOOKS]))
    return digest(parts)


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Run a network without dropout and without past keys and values; restore both at the end."""
    config = network.config.get_text_config()
    training = [module for module in network.modules() if module.training]
    use_cache = getattr(config, "use_cache", None)
    for module in training:
        module.training = False
    # nothing is generated, so past keys and values would be wasted memory
    config.use_cache = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if use_cache is None:
            del config.use_cache
        else:
            config.use_cache = use_cache
