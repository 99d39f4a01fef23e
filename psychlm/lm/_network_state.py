"""What the numbers of a network in memory depend on, and the state in which it is run.

A network that was opened from a checkpoint can be edited in memory (weights, adapters, hooks,
configuration); then its numbers are no longer those of the files, and :func:`state_of` is another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")


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
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@torch.no_grad()
def state_of(network: Any, tokenizer: Any) -> str:
    """Return a hash of a network's structure, of the bits of its weights, and of its tokenizer.

    Whether the network is in training mode is no part of it: see :func:`evaluating`.
    """
    digest = hashlib.sha256(structure_of(network).encode())
    for name, weight in network.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(_checksum(weight))
    # what a call changes in passing (truncation, padding) is no part of the tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [getattr(backend, name, None) for name in PARTS]
    digest.update(b"".join(part.__getstate__() for part in parts if part is not None))
    digest.update(f"{tokenizer} {getattr(tokenizer, 'split_special_tokens', None)}".encode())
    return digest.hexdigest()


def _checksum(weight: torch.Tensor) -> bytes:
    """Return sums of the bits of a tensor, as integers of 64 bits in rows and columns.

    The sums of integers do not depend on their order or on the device, and a change or an exchange
    of weights changes them.
    """
    values = weight.detach().flatten()
    if values.data_ptr() % 8:
        values = values.clone()
    bits = values.view(torch.uint8)
    n = len(bits) // 8 * 8
    whole, rest = bits[:n].view(torch.int64), bits[n:]
    n_columns = max(1, int(len(whole) ** 0.5))
    n_whole = len(whole) // n_columns * n_columns
    table = whole[:n_whole].view(-1, n_columns)
    sums = (table.sum(0), table.sum(1), whole[n_whole:], rest)
    return torch.cat([one.view(torch.uint8) for one in sums]).cpu().numpy().tobytes()


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
