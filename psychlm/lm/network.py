"""What a network is given, and what is taken from it: the hidden states that its output layer turns into logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from psychlm.lm.load import LanguageModel
from psychlm.lm.passes import Pass
from psychlm.lm.prefixes import LARGEST_FAMILY, ancestors


def network_inputs(model: LanguageModel, batch: Sequence[Pass]) -> dict[str, Any]:
    """Return the tensors that the network takes for a batch, padded at the end to the longest pass, which is first."""
    length = max(map(len, batch))
    lengths = np.array([len(one) for one in batch])
    real = np.arange(length) < lengths[:, None]
    ids = np.full((len(batch), length), _padding(model), dtype=np.int64)
    for i, one in enumerate(batch):
        ids[i, : len(one)] = one.ids
        ids[i, slice(*one.masked)] = model.tokenizer.mask_token_id if one.masked[1] else 0
    inputs = {"input_ids": torch.from_numpy(ids).to(model.device)}
    if model.kind == "permutation":
        return inputs | _left_to_right_order(len(batch), length, model)
    if model.kind in ("masked", "left-masked"):
        inputs["attention_mask"] = torch.from_numpy(real.astype(np.int64)).to(model.device)
        return inputs | _language(model, inputs["input_ids"])
    # a causal model sees no padding that stands after the text, so only trees need a mask
    if any(one.parent is not None for one in batch):
        inputs |= _tree_inputs(model, batch, length)
    return inputs | _language(model, inputs["input_ids"])


def _padding(model: LanguageModel) -> int:
    """Return the padding token; causal models get any other one, lest they warn of padding they cannot see."""
    padding = model.tokenizer.pad_token_id
    if model.kind == "causal":
        return (
            1 if getattr(model.network.config.get_text_config(), "pad_token_id", None) == 0 else 0
        )
    return 0 if padding is None else int(padding)


def _left_to_right_order(n: int, length: int, model: LanguageModel) -> dict[str, torch.Tensor]:
    """Tell a permutation model to predict every token from those before it (Yang et al. 2019)."""
    hidden = torch.ones(length, length, device=model.device).triu()
    return {
        "perm_mask": hidden.expand(n, length, length),
        "target_mapping": torch.eye(length, device=model.device).expand(n, length, length),
    }


def _language(model: LanguageModel, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tell a multilingual XLM that it reads its stated language, or English."""
    config = model.network.config
    if not getattr(config, "use_lang_emb", False) or getattr(config, "n_langs", 1) < 2:
        return {}
    number = config.lang_id if getattr(config, "lang_id", None) is not None else 0
    number = (getattr(config, "lang2id", None) or {}).get("en", number)
    return {"langs": torch.full_like(ids, number)}


def _tree_inputs(
    model: LanguageModel, batch: Sequence[Pass], length: int
) -> dict[str, torch.Tensor]:
    """Return the places and the mask of passes in which texts share tokens; padding sees itself, at place 0."""
    seen = np.tile(np.eye(length, dtype=bool), (len(batch), 1, 1))
    depth = np.zeros((len(batch), length), dtype=np.int64)
    for i, one in enumerate(batch):
        n = len(one)
        parent = np.arange(-1, n - 1) if one.parent is None else one.parent
        seen[i, :n, :n] = ancestors(parent)
        depth[i, :n] = np.arange(n) if one.depth is None else one.depth
    dtype = model.network.dtype
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(
        torch.from_numpy(~seen), torch.finfo(dtype).min
    )
    return {
        "attention_mask": mask[:, None].to(model.device),
        "position_ids": torch.from_numpy(depth).to(model.device),
    }


def hidden_states(model: LanguageModel, inputs: dict[str, Any]) -> torch.Tensor:
    """Return what the output layer is given, shape (n, length, n_hidden); the layer itself is given nothing."""
    caught: list[torch.Tensor] = []

    def catch(_layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        caught.append(given[0])
        return (given[0][..., :0, :],)

    with _hook(model.network.get_output_embeddings(), catch):
        model.network(**inputs)
    return caught[0]


@contextmanager
def _hook(layer: torch.nn.Module, catch: Callable[..., Any]) -> Iterator[None]:
    handle = layer.register_forward_pre_hook(catch)
    try:
        yield
    finally:
        handle.remove()


def _once_per_model(test: Callable[[LanguageModel], int]) -> Callable[[LanguageModel], int]:
    """Remember the answer for as long as the model is in memory, and no longer."""
    answers: WeakKeyDictionary[LanguageModel, int] = WeakKeyDictionary()

    @wraps(test)
    def ask(model: LanguageModel) -> int:
        if model not in answers:
            answers[model] = test(model)
        return answers[model]

    return ask


def _probe(model: LanguageModel, n: int = 6) -> np.ndarray:
    """Return a few ordinary tokens on which two ways of running a model can be compared."""
    return np.random.default_rng(0).integers(model.n_vocabulary // 4, model.n_vocabulary, size=n)


@_once_per_model
@torch.inference_mode()
def reads_output_layer(model: LanguageModel) -> bool:
    """Whether the logits are the output layer of the hidden states and nothing more (no cap, no scale, no adapter)."""
    layer = model.network.get_output_embeddings()
    if type(layer) is not torch.nn.Linear:
        return False
    ids = _probe(model)
    inputs = network_inputs(model, [Pass(ids, ids, ids, ids)])
    hidden = hidden_states(model, inputs)
    logits, ours = model.network(**inputs).logits.float(), layer(hidden).float()
    finite = logits.isfinite()
    if not finite.equal(ours.isfinite()):
        return False
    logits, ours = logits[finite], ours[finite]
    return not finite.any() or bool((logits - ours).abs().max() <= 1e-3 * logits.abs().max() + 1e-6)


@_once_per_model
@torch.inference_mode()
def largest_family(model: LanguageModel) -> int:
    """Return how many tokens a tree of texts may have, 0 where a model does not follow its mask and places.

    Whether it does is tried out on a small tree: recurrent models do not. A model that attends to its last tokens only
    counts them in the order of the input, so a tree must not outgrow that window.
    """
    if model.kind != "causal" or not reads_output_layer(model):
        return 0
    ids, none = _probe(model), np.array([], dtype=np.int64)
    tree = Pass(  # texts 0 1 2 and 0 3 4 5
        ids,
        none,
        none,
        none,
        depth=np.array([0, 1, 2, 1, 2, 3]),
        parent=np.array([-1, 0, 1, 0, 3, 4]),
    )
    alone = hidden_states(
        model, network_inputs(model, [Pass(ids[[0, 3, 4, 5]], none, none, none)])
    )[0]
    try:
        together = hidden_states(model, network_inputs(model, [tree]))[0][[0, 3, 4, 5]]
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return 0
    careless = hidden_states(model, network_inputs(model, [Pass(ids, none, none, none)]))[0][
        [0, 3, 4, 5]
    ]
    error = (together.float() - alone.float()).abs().max()
    if not error <= 0.02 * (careless.float() - alone.float()).abs().max():
        return 0
    config = model.network.config.get_text_config()
    windows = (
        getattr(config, name, None)
        for name in ("sliding_window", "window_size", "attention_chunk_size")
    )
    return min([LARGEST_FAMILY, *(size for size in windows if isinstance(size, int))])
