"""Models take the test. Reference: transformers called for one item and one choice at a time, without padding."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tiny_models as tiny
import torch
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from psychlm.frames import FrameError
from psychlm.lm import answerers
from psychlm.lm.load import ModelError
from psychlm.lm.load import wrap as wrap_language_model
from psychlm.lm.responses import answers, choice_logprobs, confidences, predictions, responses
from psychlm.lm.templates import TEMPLATES, Template

NLI = ["entailment", "neutral", "contradiction"]


def noisy(network, seed=3):
    """Give a network weights that are large enough to tell items apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3, generator=generator)
    return network.eval()


def bert(head, tokenizer, **options):
    return noisy(head(BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=tiny.CONTEXT, **options,
    )))  # fmt: skip


def labelled(labels):
    return {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}


@pytest.fixture(scope="module")
def wordpiece():
    return tiny.wordpiece()


@pytest.fixture(scope="module")
def nli_items():
    premises = ["The old man the boat.", "The horse raced past the barn fell.", "She wound up talking to Barry.", "Tea"]
    hypotheses = ["A man is old.", "The barn fell past the horse and the boat and the sea.", "Barry said.", "the sea"]
    return pd.DataFrame({
        "item_id": ["a", "b", "c", "d"], "prompt": premises, "hypothesis": hypotheses, "choices": [NLI] * 4,
        "answer": [0, 2, 1, 1],
    })  # fmt: skip


@pytest.fixture(scope="module")
def questions():
    return pd.DataFrame({
        "item_id": [11, 12, 13, 14],
        "prompt": ["What fell?", "Who sat down with a cup of tea and a sandwich?", "What costs 3,000 dollars?", "He did"],
        "choices": [["the horse", "the old barn"], ["Maria", "Barry", "she and the horse"],
                    ["a naïve plan", "a café", "the sea", "time in India"], ["sat", "fell"]],
        "answer": [0, 0, 1, 1],
    })  # fmt: skip


@torch.inference_mode()
def classifier_alone(network, tokenizer, items):
    rows = []
    for item in items.itertuples():
        logits = network(**tokenizer(item.prompt, item.hypothesis, return_tensors="pt")).logits[0].double()
        rows.append(torch.log_softmax(logits, 0).numpy())
    return np.array(rows)


@torch.inference_mode()
def causal_alone(network, tokenizer, prompt, choice):
    """Log-probability and number of the tokens of a choice after the start token and a prompt."""
    start = [tokenizer.bos_token_id]
    before = start + tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = start + tokenizer(prompt + choice, add_special_tokens=False)["input_ids"]
    assert ids[: len(before)] == before
    log_p = torch.log_softmax(network(torch.tensor([ids])).logits[0].double(), dim=-1)
    return sum(float(log_p[i - 1, ids[i]]) for i in range(len(before), len(ids))), len(ids) - len(before)


@torch.inference_mode()
def masked_alone(network, tokenizer, prompt, choice):
    """Pseudo-log-likelihood of a choice: each token with itself and the later tokens of its word masked."""
    encoded = tokenizer(prompt + choice, return_offsets_mapping=True)
    ids, spans, words = encoded["input_ids"], encoded["offset_mapping"], (prompt + choice).split(" ")
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    word = [int(np.searchsorted(ends, b - 1, side="right")) if b else -1 for _, b in spans]
    total = 0.0
    for i in (i for i, (a, b) in enumerate(spans) if b > 0 and a >= len(prompt)):
        read = [tokenizer.mask_token_id if k >= i and word[k] == word[i] else token for k, token in enumerate(ids)]
        total += float(torch.log_softmax(network(torch.tensor([read])).logits[0, i].double(), 0)[ids[i]])
    return total


def test_a_classifier_gives_each_label_the_probability_it_gives_one_item_alone(wordpiece, nli_items) -> None:
    network = bert(BertForSequenceClassification, wordpiece, **labelled(NLI))
    found = choice_logprobs(nli_items, answerers.wrap(network, wordpiece), batch_tokens=40)
    np.testing.assert_allclose(found, classifier_alone(network, wordpiece, nli_items), atol=1e-4)
    assert found.index.tolist() == ["a", "b", "c", "d"]


def test_a_multiple_choice_head_agrees_with_transformers_on_each_item_alone(wordpiece, questions) -> None:
    network = bert(BertForMultipleChoice, wordpiece)
    found = choice_logprobs(questions, answerers.wrap(network, wordpiece))
    for item in questions.itertuples():
        pairs = wordpiece([item.prompt] * len(item.choices), item.choices, return_tensors="pt", padding=True)
        with torch.inference_mode():
            logits = network(**{k: v[None] for k, v in pairs.items()}).logits[0].double()
        expected = torch.log_softmax(logits, 0).numpy()
        np.testing.assert_allclose(found.loc[item.item_id, : len(expected) - 1], expected, atol=1e-4)
    assert found.loc[11, 2:].isna().all()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "mamba"])
@pytest.mark.parametrize("normalise", ["sum", "token", "character", "unconditional"])
def test_a_causal_model_agrees_with_a_plain_loop(family, normalise, questions) -> None:
    tokenizer = tiny.byte_level()
    network = tiny.network(family, tokenizer)
    found = choice_logprobs(questions, wrap_language_model(network, tokenizer), normalise=normalise)
    for item in questions.itertuples():
        for k, choice in enumerate(item.choices):
            nats, n = causal_alone(network, tokenizer, f"Question: {item.prompt}\nAnswer:", f" {choice}")
            bare, _ = causal_alone(network, tokenizer, "Answer:", f" {choice}")
            expected = {"sum": nats, "token": nats / n, "character": nats / len(choice), "unconditional": nats - bare}
            assert found.loc[item.item_id, k] == pytest.approx(expected[normalise], abs=1e-4)


def test_a_masked_model_gives_the_pseudo_log_likelihood_of_the_choice(wordpiece, questions) -> None:
    network = tiny.network("bert", wordpiece)
    found = choice_logprobs(questions, wrap_language_model(network, wordpiece), template=Template("{prompt}"))
    for item in questions.itertuples():
        for k, choice in enumerate(item.choices):
            assert found.loc[item.item_id, k] == pytest.approx(
                masked_alone(network, wordpiece, item.prompt, f" {choice}"), abs=1e-4
            )
