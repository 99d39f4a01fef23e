"""Networks that are edited in memory, and what scoring leaves of them.

Reference: the same network wrapped anew without a revision, which takes nothing from the cache."""

import numpy as np
import pandas as pd
import pytest
import tiny_models as tiny
import torch
import transformers
from plain_transformers import token_bits
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn

from psychlm import lm
from psychlm.lm import _choice_scores, forward

pytestmark = pytest.mark.usefixtures("own_cache")
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

    def __init__(self, layer: nn.Module, n_out: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.down, self.up = layer, nn.Linear(32, 2), nn.Linear(2, n_out)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layer(states) + self.up(self.down(states))


def exchange_rows(weight: torch.Tensor) -> None:
    """Leave all sums of weights as they are."""
    weight.data.copy_(weight.data.flip(0))


def adapt(module: nn.Module, name: str, n_out: int) -> None:
    setattr(module, name, LowRank(getattr(module, name), n_out))


def scaled(factor: float):
    return lambda _module, _given, output: factor * output


EDITS = {  # through ``data``, for which torch counts no version
    "larger weights": lambda network: network.transformer.wte.weight.data.mul_(1.5),
    "rows exchanged": lambda network: exchange_rows(network.transformer.wpe.weight),
    "a hook": lambda network: network.transformer.h[0].mlp.register_forward_hook(scaled(0)),
    "a hook of the output layer": lambda network: network.lm_head.register_forward_hook(scaled(2)),
    "an adapter": lambda network: adapt(network.transformer.h[0].mlp, "c_fc", 128),
    "an adapted output layer": lambda network: adapt(network, "lm_head", network.config.vocab_size),
    "a method replaced": lambda network: setattr(
        network.transformer.h[0].mlp, "forward", lambda states: 0 * states
    ),
}

TOKENIZER_EDITS = {
    "normalizer": lambda one: setattr(one.backend_tokenizer, "normalizer", Lowercase()),
    "pieces": lambda one: setattr(one.backend_tokenizer, "pre_tokenizer", ByteLevel()),
    "special": lambda one: setattr(one, "split_special_tokens", True),
}


def bits(model: lm.LanguageModel | str) -> np.ndarray:
    return lm.surprisal(TEXT, model)["surprisal_bits"].to_numpy()


def nats(model: lm.LanguageModel | str) -> np.ndarray:
    return lm.choice_logprobs(ITEMS, model).to_numpy()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_model_gives_its_own_numbers_and_not_those_of_its_files(edit, gpt2) -> None:
    of_files = bits(gpt2), nats(gpt2)  # cached, since the model is given by name
    model = lm.load(gpt2, "cpu")
    before = bits(model), nats(model)
    EDITS[edit](model.network)
    plain = lm.wrap(model.network, model.tokenizer)
    for score, old, cached in zip((bits, nats), before, of_files, strict=True):
        np.testing.assert_allclose(old, cached, atol=1e-5)
        edited = score(model)
        np.testing.assert_allclose(edited, score(plain), atol=1e-5)
        assert np.abs(edited - old).max() > 0.01
    assert lm.surprisal(TEXT, model).attrs["surprisal"]["revision"] is None
    assert lm.choice_logprobs(ITEMS, model).attrs["revision"] is None


@pytest.mark.parametrize("edit", TOKENIZER_EDITS)
def test_an_edited_tokenizer_gives_its_own_numbers_and_not_those_of_the_files(edit, gpt2) -> None:
    text = "The sea, the Sea <|endoftext|> sea."
    before = lm.surprisal(text, gpt2)["surprisal_bits"]
    model = lm.load(gpt2, "cpu")
    TOKENIZER_EDITS[edit](model.tokenizer)
    edited, plain = (
        lm.surprisal(text, one)["surprisal_bits"].to_numpy()
        for one in (model, lm.wrap(model.network, model.tokenizer))
    )
    np.testing.assert_array_equal(edited, plain)
    assert np.abs(edited - before).max() > 0.01


def test_a_network_that_is_edited_to_count_positions_by_itself_shares_no_more_prefixes(gpt2):
    """Reference: each text in a call of its own."""
    model = lm.load(gpt2, "cpu")
    texts = [f"{TEXT} {verb}" for verb in ("sat", "fell")]
    lm.surprisal(texts, model)
    table = model.network.transformer.wpe
    table.forward = lambda given: table.weight[None, 1 : given.shape[-1] + 1]
    together = lm.surprisal(texts, model)["surprisal_bits"]
    alone = pd.concat([lm.surprisal(text, model) for text in texts])["surprisal_bits"]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_results_are_kept_for_names_and_for_models_whose_revision_is_stated(gpt2, monkeypatch):
    model = lm.load(gpt2, "cpu")
    stated = lm.wrap(model.network, model.tokenizer, revision="mine 1")
    kept = [(score(gpt2), score(stated)) for score in (bits, nats)]

    def not_again(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(forward, "run", not_again)
    monkeypatch.setattr(_choice_scores, "score_questions", not_again)
    for score, results in zip((bits, nats), kept, strict=True):
        np.testing.assert_array_equal(score(gpt2), results[0])
        np.testing.assert_array_equal(score(stated), results[1])
        with pytest.raises(AssertionError, match="computed again"):
            score(model)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_scoring_leaves_a_callers_network_as_it_was(family) -> None:
    tokenizer = tiny.TOKENIZERS.get(family, tiny.byte_level)()
    network = tiny.network(family, tokenizer).train()
    network.config.use_cache = True
    next(network.parameters()).requires_grad_(False)  # one weight that the caller fixed
    dropped = next(m for m in network.modules() if isinstance(m, nn.Dropout)).eval()
    modes = [module.training for module in network.modules()]
    gradients = [weight.requires_grad for weight in network.parameters()]
    in_training = nats(lm.wrap(network, tokenizer))
    in_evaluation = nats(lm.wrap(tiny.network(family, tokenizer), tokenizer))
    np.testing.assert_allclose(in_training, in_evaluation, atol=1e-5)  # no dropout
    assert [module.training for module in network.modules()] == modes and not dropped.training
    assert [weight.requires_grad for weight in network.parameters()] == gradients
    assert network.config.use_cache is True


# Output layers


SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 64, "num_key_value_heads": 1}
OUTPUTS = {
    "RecurrentGemma": {"lru_width": 32, "attention_window_size": 64},  # caps by itself
    "Gemma2": {"head_dim": 16, "final_logit_softcapping": 30.0},
    "Cohere": {"logit_scale": 0.9999},
    "Llama": {},
}


@pytest.mark.parametrize("scale", [0.05, 10.0])
@pytest.mark.parametrize("family", OUTPUTS)
def test_a_cap_or_scale_of_logits_is_that_of_the_model(family, scale) -> None:
    tokenizer = tiny.metaspace()
    made = getattr(transformers, f"{family}ForCausalLM")
    torch.manual_seed(1)
    network = made(made.config_class(**SMALL, **OUTPUTS[family], vocab_size=len(tokenizer))).eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.mul_(scale)
    network.config.use_cache = False
    model = lm.wrap(network, tokenizer)
    ours = lm.surprisal(TEXT, model, correction=None)["surprisal_bits"]
    assert ours.sum() == pytest.approx(token_bits(model, TEXT).sum(), abs=1e-5)
