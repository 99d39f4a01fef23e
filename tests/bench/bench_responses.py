"""Items per second of response extraction, beside the limit.

The limit is a bare batched forward pass over the same token ids, made before the clock starts:
sorted by length, in the batches that suit the device best, padded. The encoder has the size of
all-MiniLM-L6-v2, the language model that of a 6-layer GPT-2, with random weights. Items are SNLI's
pairs and OpenBookQA's questions, their number scaled by ``PSYCHLM_BENCH_SCALE``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks import gpt2, measure, minilm, of_group, scale, wordpiece
from transformers import BertForMultipleChoice, BertForSequenceClassification

from psychlm.corpora import item_banks as banks
from psychlm.lm import choice_logprobs, wrap
from psychlm.lm.forward import BATCH_TOKENS, ENOUGH_TOKENS, batches
from psychlm.lm.prompts import fill_prompts

pytestmark = pytest.mark.needs_share


def some(items, n):
    return items.sample(max(8, int(n * scale())), random_state=0)


@pytest.fixture(scope="session")
def pairs():
    return some(banks.nli("snli/snli_1.0_dev"), 500)


@pytest.fixture(scope="session")
def questions():
    return some(banks.read_arc("mcqa/openbookqa/dev"), 150)


@pytest.fixture(scope="session")
def texts(questions):
    return [*questions["prompt"], *questions["choices"].explode()]


@pytest.fixture(scope="session")
def tokenizer(pairs, texts):
    torch.set_num_threads(1)
    return wordpiece([*pairs["prompt"], *pairs["hypothesis"], *texts])


@pytest.fixture(scope="session")
def classifier(tokenizer):
    labels = {"id2label": dict(enumerate(banks.NLI_LABELS))}
    labels["label2id"] = {label: number for number, label in labels["id2label"].items()}
    return wrap(minilm(BertForSequenceClassification, tokenizer, **labels), tokenizer)


@pytest.fixture(scope="session")
def head(tokenizer):
    return wrap(minilm(BertForMultipleChoice, tokenizer), tokenizer)


@pytest.fixture(scope="session")
def language_model(texts):
    return gpt2(texts, 8000, n_layer=6, n_embd=512, n_head=8)


def measure_limit(benchmark, rows, forward, n_items):
    """Run rows of token ids through a network, sorted by length, in padded batches."""

    @torch.inference_mode()
    def bare_forward():
        for batch in batches(rows, BATCH_TOKENS["cpu"], ENOUGH_TOKENS["cpu"]):
            ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for i, row in enumerate(batch):
                ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
            forward(ids, mask)

    measure(benchmark, bare_forward, rounds=3, items=n_items)


def measure_choices(benchmark, items, model, **options):
    def score():
        return choice_logprobs(items, model, **options)

    found = measure(benchmark, score, rounds=3, items=len(items))
    assert np.isfinite(found).all(axis=None)


def questions_and_choices(questions):
    filled = fill_prompts(questions, "auto")
    return [(prompt, choice) for prompt, choices, _ in filled for choice in choices]


@of_group("classifier, 500 pairs")
def test_classifier_limit(benchmark, classifier, pairs):
    rows = classifier.tokenizer(pairs["prompt"].tolist(), pairs["hypothesis"].tolist())["input_ids"]

    def forward(ids, mask):
        return classifier.network(ids, attention_mask=mask)

    measure_limit(benchmark, rows, forward, len(pairs))


@of_group("classifier, 500 pairs")
def test_classifier(benchmark, classifier, pairs):
    measure_choices(benchmark, pairs, classifier)


@of_group("multiple choice, 150 questions")
def test_head_limit(benchmark, head, questions):
    asked = questions.explode("choices")
    rows = head.tokenizer(asked["prompt"].tolist(), asked["choices"].tolist())["input_ids"]

    def forward(ids, mask):
        return head.network(ids[:, None], attention_mask=mask[:, None])

    measure_limit(benchmark, rows, forward, len(questions))


@of_group("multiple choice, 150 questions")
def test_head(benchmark, head, questions):
    measure_choices(benchmark, questions, head)


@of_group("language model, 150 questions")
def test_language_model_limit(benchmark, language_model, questions):
    texts = [prompt + choice for prompt, choice in questions_and_choices(questions)]
    rows = [[0, *ids[:-1]] for ids in language_model.tokenizer(texts)["input_ids"]]

    def forward(ids, _):
        return torch.log_softmax(language_model.network(ids).logits, dim=-1)

    measure_limit(benchmark, rows, forward, len(questions))


@of_group("language model, 150 questions")
@pytest.mark.parametrize("normalise", ["sum", "unconditional"])
def test_language_model(benchmark, language_model, questions, normalise):
    measure_choices(benchmark, questions, language_model, normalise=normalise)


@of_group("language model, 150 questions")
def test_language_model_harness(benchmark, language_model, questions):
    """lm-evaluation-harness: the same log-probabilities, from the same prompts."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="make bench installs it")
    from lm_eval.api.instance import Instance

    network, tokenizer = language_model.network, language_model.tokenizer
    peer = huggingface.HFLM(pretrained=network, tokenizer=tokenizer, batch_size=16)
    pairs = questions_and_choices(questions)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]

    def score():
        return peer.loglikelihood(requests, disable_tqdm=True)

    scores = measure(benchmark, score, rounds=3, items=len(questions))
    ours = choice_logprobs(questions, language_model).to_numpy().ravel()
    np.testing.assert_allclose([nats for nats, _ in scores], ours, atol=1e-3)
