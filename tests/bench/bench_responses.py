"""Items per second of response extraction, beside the limit.

The limit is a bare batched forward pass over the same token ids, made before the clock starts:
sorted by length, in the batches that suit the device best, padded. What psychlm adds (tokenising,
labels, sums, checks) counts as ours. The encoder has the size of all-MiniLM-L6-v2, the language
model that of a 6-layer GPT-2; both have random weights. Items are SNLI's pairs and OpenBookQA's
questions; times are CPU times of one thread. ``PSYCHLM_BENCH_SCALE`` (1 unless set) scales the
number of items.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from benchmarks import gpt2, measure, minilm, scale, wordpiece
from transformers import BertForMultipleChoice, BertForSequenceClassification

from psychlm.corpora import item_banks as banks
from psychlm.lm import choice_logprobs, wrap
from psychlm.lm.forward import BATCH_TOKENS, ENOUGH_TOKENS, batches
from psychlm.lm.prompts import fill_prompts

pytestmark = [
    pytest.mark.needs_share,
    pytest.mark.benchmark(timer=time.process_time, warmup=False, disable_gc=True),
]


def some(items, n):
    return items.sample(max(8, int(n * scale())), random_state=0)


@pytest.fixture(scope="session")
def pairs():
    return some(banks.nli("snli/snli_1.0_dev"), 500)


@pytest.fixture(scope="session")
def questions():
    return some(banks.read_arc("mcqa/openbookqa/dev"), 150)


@pytest.fixture(scope="session")
def tokenizer(pairs, questions):
    torch.set_num_threads(1)
    texts = [*pairs["prompt"], *pairs["hypothesis"]]
    return wordpiece([*texts, *questions["prompt"], *questions["choices"].explode()])


@pytest.fixture(scope="session")
def classifier(tokenizer):
    labels = {"id2label": dict(enumerate(banks.NLI_LABELS))}
    labels["label2id"] = {label: number for number, label in labels["id2label"].items()}
    return wrap(minilm(BertForSequenceClassification, tokenizer, **labels), tokenizer)


@pytest.fixture(scope="session")
def head(tokenizer):
    return wrap(minilm(BertForMultipleChoice, tokenizer), tokenizer)


@pytest.fixture(scope="session")
def language_model(questions):
    texts = [*questions["prompt"], *questions["choices"].explode()]
    return gpt2(texts, 8000, n_layer=6, n_embd=512, n_head=8)


@torch.inference_mode()
def bare_forward(rows, forward):
    """Run rows of token ids through a network, sorted by length, in padded batches."""
    for batch in batches(rows, BATCH_TOKENS["cpu"], ENOUGH_TOKENS["cpu"]):
        ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(batch):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
        forward(ids, mask)


def questions_and_choices(questions):
    filled = fill_prompts(questions, "auto")
    return [(prompt, choice) for prompt, choices, _ in filled for choice in choices]


@pytest.mark.benchmark(group="classifier, 500 pairs")
def test_classifier_limit(benchmark, classifier, pairs):
    rows = classifier.tokenizer(pairs["prompt"].tolist(), pairs["hypothesis"].tolist())["input_ids"]

    def forward(ids, mask):
        return classifier.network(ids, attention_mask=mask)

    measure(benchmark, lambda: bare_forward(rows, forward), "items", len(pairs))


@pytest.mark.benchmark(group="classifier, 500 pairs")
def test_classifier(benchmark, classifier, pairs):
    found = measure(benchmark, lambda: choice_logprobs(pairs, classifier), "items", len(pairs))
    assert np.isfinite(found).all(axis=None)


@pytest.mark.benchmark(group="multiple choice, 150 questions")
def test_head_limit(benchmark, head, questions):
    asked = questions.explode("choices")
    rows = head.tokenizer(asked["prompt"].tolist(), asked["choices"].tolist())["input_ids"]

    def forward(ids, mask):
        return head.network(ids[:, None], attention_mask=mask[:, None])

    measure(benchmark, lambda: bare_forward(rows, forward), "items", len(questions))


@pytest.mark.benchmark(group="multiple choice, 150 questions")
def test_head(benchmark, head, questions):
    measure(benchmark, lambda: choice_logprobs(questions, head), "items", len(questions))


@pytest.mark.benchmark(group="language model, 150 questions")
def test_language_model_limit(benchmark, language_model, questions):
    texts = [prompt + choice for prompt, choice in questions_and_choices(questions)]
    rows = [[0, *ids[:-1]] for ids in language_model.tokenizer(texts)["input_ids"]]

    def forward(ids, _):
        return torch.log_softmax(language_model.network(ids).logits, dim=-1)

    measure(benchmark, lambda: bare_forward(rows, forward), "items", len(questions))


@pytest.mark.benchmark(group="language model, 150 questions")
@pytest.mark.parametrize("normalise", ["sum", "unconditional"])
def test_language_model(benchmark, language_model, questions, normalise):
    def score():
        return choice_logprobs(questions, language_model, normalise=normalise)

    measure(benchmark, score, "items", len(questions))


@pytest.mark.benchmark(group="language model, 150 questions")
def test_language_model_harness(benchmark, language_model, questions):
    """lm-evaluation-harness: the same log-probabilities, from the same prompts."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="make bench installs it")
    from lm_eval.api.instance import Instance

    peer = huggingface.HFLM(
        pretrained=language_model.network, tokenizer=language_model.tokenizer, batch_size=16
    )
    pairs = questions_and_choices(questions)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]

    def score():
        return peer.loglikelihood(requests, disable_tqdm=True)

    scores = measure(benchmark, score, "items", len(questions))
    ours = choice_logprobs(questions, language_model).to_numpy().ravel()
    np.testing.assert_allclose([nats for nats, _ in scores], ours, atol=1e-3)
