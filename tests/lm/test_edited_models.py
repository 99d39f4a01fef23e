"""Networks that are edited in memory, and what scoring leaves of them.

Reference: the same network wrapped anew without a revision, which takes nothing from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_models as tiny
import torch
from torch import nn
from transformers import BertForMultipleChoice

from psychlm import lm
from psychlm.lm import forward

TEXT = "the old man and the sea"
ITEMS = pd.DataFrame(
    {
        "item_id": ["a", "b"],
        "prompt": ["What fell?", "Who ran?"],
        "choices": [["the horse", "the old barn"], ["Maria", "the sea"]],
        "answer": [0, 0],
    }
)


class LowRank(nn.Module):
    """A linear layer with a low-rank adapter (Hu et al. 2022, LoRA)."""

    def __init__(self, layer: nn.Module, n_in: int, n_out: int) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Linear(n_in, 2), nn.Linear(2, n_out)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layer(states) + self.up(self.down(states))


Undo = Callable[[], object]


def set_rows_to_zero(network: Any) -> Undo:
    weight = network.transformer.h[0].mlp.c_fc.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:5] = 0
    return lambda: weight.data.copy_(before)


def edit_through_data(network: Any) -> Undo:
    """Torch counts no version for this one."""
    weight = network.transformer.wte.weight
    before = weight.data.clone()
    weight.data.mul_(1.5)
    return lambda: weight.data.copy_(before)


def exchange_rows(network: Any) -> Undo:
    """All sums of weights stay as they are."""
    weight = network.transformer.wpe.weight
    before = weight.data.clone()
    weight.data.copy_(before[torch.arange(len(before) - 1, -1, -1)])
    return lambda: weight.data.copy_(before)


def add_hook(network: Any) -> Undo:
    return (
        network.transformer.h[0]
        .mlp.register_forward_hook(lambda module, given, output: 0 * output)
        .remove
    )


def add_hook_to_the_output_layer(network: Any) -> Undo:
    return network.lm_head.register_forward_hook(lambda module, given, output: 2 * output).remove


def add_adapter(network: Any) -> Undo:
    block = network.transformer.h[0].mlp
    before = block.c_fc
    torch.manual_seed(0)
    block.c_fc = LowRank(before, 32, 128)
    return lambda: setattr(block, "c_fc", before)


def adapt_the_output_layer(network: Any) -> Undo:
    before = network.lm_head
    torch.manual_seed(0)
    network.lm_head = LowRank(before, 32, before.out_features)
    return lambda: setattr(network, "lm_head", before)


def replace_a_method(network: Any) -> Undo:
    block = network.transformer.h[0].mlp
    original = block.forward
    block.forward = lambda states: 0 * original(states)
    return lambda: block.__dict__.pop("forward")


EDITS = [
    set_rows_to_zero,
    edit_through_data,
    exchange_rows,
    add_hook,
    add_hook_to_the_output_layer,
    add_adapter,
    adapt_the_output_layer,
    replace_a_method,
]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edited_model_gives_its_own_numbers_and_not_those_of_its_files(edit, gpt2) -> None:
    model = lm.load(gpt2, "cpu")

    def bits(one: lm.LanguageModel) -> np.ndarray:
        return lm.surprisal(TEXT, one)["surprisal_bits"].to_numpy()

    def nats(one: lm.LanguageModel) -> np.ndarray:
        return lm.choice_logprobs(ITEMS, one).to_numpy()

    revision, before = model.revision, (bits(model), nats(model))
    assert revision is not None and revision.startswith("sha256:")
    undo = edit(model.network)
    plain = lm.wrap(model.network, model.tokenizer)
    for score, old in zip((bits, nats), before, strict=True):
        edited = score(model)
        np.testing.assert_allclose(edited, score(plain), atol=1e-5)
        assert np.abs(edited - old).max() > 0.01
    assert model.revision is None
    assert lm.surprisal(TEXT, model).attrs["surprisal"]["revision"] is None
    assert lm.choice_logprobs(ITEMS, model).attrs["revision"] is None
    undo()
    assert model.revision == revision
    for score, old in zip((bits, nats), before, strict=True):
        np.testing.assert_array_equal(score(model), old)


def test_an_edited_choice_model_is_no_longer_that_of_its_files(tmp_path) -> None:
    tokenizer = tiny.wordpiece()
    folder = tiny.save_network(tmp_path, tiny.bert(BertForMultipleChoice, tokenizer), tokenizer)
    model = lm.load(folder, "cpu")
    before = lm.choice_logprobs(ITEMS, model).to_numpy()
    model.network.classifier.weight.data.neg_()
    edited = lm.choice_logprobs(ITEMS, model)
    plain = lm.choice_logprobs(ITEMS, lm.wrap(model.network, tokenizer))
    np.testing.assert_allclose(edited, plain, atol=1e-5)
    assert np.abs(edited.to_numpy() - before).max() > 0.01 and edited.attrs["revision"] is None


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_scoring_leaves_a_callers_network_as_it_was(family) -> None:
    tokenizer = tiny.TOKENIZERS.get(family, tiny.byte_level)()
    network = tiny.network(family, tokenizer).train()
    network.config.use_cache = True
    next(network.parameters()).requires_grad_(False)  # one weight that the caller fixed
    dropped = next(m for m in network.modules() if isinstance(m, nn.Dropout)).eval()
    modes = [module.training for module in network.modules()]
    gradients = [weight.requires_grad for weight in network.parameters()]
    in_training, in_evaluation = [
        lm.choice_logprobs(ITEMS, lm.wrap(mode(), tokenizer))
        for mode in (lambda: network, lambda: tiny.network(family, tokenizer))
    ]
    np.testing.assert_allclose(in_training, in_evaluation, atol=1e-5)  # no dropout
    assert [module.training for module in network.modules()] == modes and not dropped.training
    assert [weight.requires_grad for weight in network.parameters()] == gradients
    assert network.config.use_cache is True


# Output layers


def capped(family: str, scale: float) -> tuple[Any, Any]:
    """Return a network whose logits are capped (in most), with weights of some size."""
    import transformers

    tokenizer = tiny.metaspace()
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    heads = {"num_key_value_heads": 1, "head_dim": 16}
    made = {
        "recurrent gemma": lambda: transformers.RecurrentGemmaForCausalLM(
            transformers.RecurrentGemmaConfig(
                **sizes, lru_width=32, attention_window_size=64, num_key_value_heads=1
            )
        ),
        "gemma 2": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**sizes, **heads, final_logit_softcapping=30.0)
        ),
        "cohere": lambda: transformers.CohereForCausalLM(
            transformers.CohereConfig(**sizes, num_key_value_heads=1, logit_scale=0.9999)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, num_key_value_heads=1)
        ),
    }
    torch.manual_seed(1)
    network = made[family]()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.mul_(scale)
    return network.eval(), tokenizer


@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("family", ["recurrent gemma", "gemma 2", "cohere", "llama"])
def test_a_cap_or_scale_of_logits_is_seen_however_small_the_logits_are(family, scale) -> None:
    network, tokenizer = capped(family, scale)
    model = lm.wrap(network, tokenizer)
    assert forward.reads_output_layer(model) == (family == "llama")
    ours = lm.surprisal(TEXT, model, correction=None)["surprisal_bits"]
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = network(torch.tensor([[tokenizer.bos_token_id, *ids]]), use_cache=False).logits
    log_p = logits[0].double().log_softmax(dim=-1)[range(len(ids)), ids]
    assert ours.sum() == pytest.approx(-float(log_p.sum()) / np.log(2), abs=1e-5)
