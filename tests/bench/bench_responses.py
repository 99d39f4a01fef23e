"""Items per second of response extraction, beside the limit.

The limit is a bare batched forward pass over the same token ids, made before the clock starts:
sorted by length, in the batches that suit the device best, padded. What psychlm adds (tokenising,
labels, sums, checks) counts as ours. The encoder has the size of all-MiniLM-L6-v2, the language
model that of a 6-layer GPT-2; both have random weights. Items are SNLI's pairs and OpenBookQA's
questions; times are CPU times of one thread. ``PSYCHLM_BENCH_SCALE`` (1 unless set) scales the
number of items.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from psychlm import lm
from psychlm.corpora import item_banks as banks
from psychlm.lm import choice_logprobs, wrap
from psychlm.lm.forward import BATCH_TOKENS, ENOUGH_TOKENS, batches
from psychlm.lm.prompts import fill_prompts

SCALE = float(os.environ.get("PSYCHLM_BENCH_SCALE", "1"))

pytestmark = [
    pytest.mark.needs_share,
    pytest.mark.benchmark(timer=time.process_time, warmup=False, disable_gc=True),
]


def some(items, n):
    return items.sample(max(8, int(n * SCALE)), random_state=0)


@pytest.fixture(scope="session")
def pairs():
    return some(banks.nli("snli/snli_1.0_dev"), 500)


@pytest.fixture(scope="session")
def questions():
    return some(banks.read_arc("mcqa/openbookqa/dev"), 150)


@pytest.fixture(scope="session")
def wordpiece(pairs, questions):
    torch.set_num_threads(1)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    texts = [
        *pairs["prompt"],
        *pairs["hypothesis"],
        *questions["prompt"],
        *questions["choices"].explode(),
    ]
    trainer = trainers.WordPieceTrainer(
        vocab_size=8000, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def minilm(head, tokenizer, **options):
    torch.manual_seed(0)
    return head(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            **options,
        )
    ).eval()


@pytest.fixture(scope="session")
def classifier(wordpiece):
    labels = {
        "id2label": dict(enumerate(banks.NLI_LABELS)),
        "label2id": {w: i for i, w in enumerate(banks.NLI_LABELS)},
    }
    return wrap(minilm(BertForSequenceClassification, wordpiece, **labels), wordpiece)


@pytest.fixture(scope="session")
def head(wordpiece):
    return wrap(minilm(BertForMultipleChoice, wordpiece), wordpiece)


@pytest.fixture(scope="session")
def language_model(questions):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    end = "<|endoftext|>"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*questions["prompt"], *questions["choices"].explode()], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, model_max_length=1024
    )
    config = GPT2Config(
        vocab_size=len(fast), n_layer=6, n_embd=512, n_head=8, bos_token_id=0, eos_token_id=0
    )
    return lm.wrap(GPT2LMHeadModel(config), fast, name="random gpt2")


@torch.inference_mode()
def bare_forward(rows, forward):
    """Run rows of token ids through a network, sorted by length, in padded batches."""
    for batch in batches(rows, BATCH_TOKENS["cpu"], ENOUGH_TOKENS["cpu"]):
        ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(batch):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
        forward(ids, mask)


def measure(benchmark, call, items):
    found = benchmark.pedantic(call, rounds=3, iterations=1)
    benchmark.extra_info |= {
        "items": len(items),
        "items_per_cpu_second": len(items) / benchmark.stats["min"],
    }
    return found


@pytest.mark.benchmark(group="classifier, 500 pairs")
def test_classifier_limit(benchmark, classifier, pairs):
    rows = classifier.tokenizer(pairs["prompt"].tolist(), pairs["hypothesis"].tolist())["input_ids"]
    measure(
        benchmark,
        lambda: bare_forward(rows, lambda x, m: classifier.network(x, attention_mask=m)),
        pairs,
    )


@pytest.mark.benchmark(group="classifier, 500 pairs")
def test_classifier(benchmark, classifier, pairs):
    found = measure(benchmark, lambda: choice_logprobs(pairs, classifier), pairs)
    assert np.isfinite(found).all(axis=None)


@pytest.mark.benchmark(group="multiple choice, 150 questions")
def test_head_limit(benchmark, head, questions):
    asked = questions.explode("choices")
    rows = head.tokenizer(asked["prompt"].tolist(), asked["choices"].tolist())["input_ids"]

    def forward(ids, mask):
        return head.network(ids[:, None], attention_mask=mask[:, None])

    measure(benchmark, lambda: bare_forward(rows, forward), questions)


@pytest.mark.benchmark(group="multiple choice, 150 questions")
def test_head(benchmark, head, questions):
    measure(benchmark, lambda: choice_logprobs(questions, head), questions)


@pytest.mark.benchmark(group="language model, 150 questions")
def test_language_model_limit(benchmark, language_model, questions):
    texts = [
        prompt + choice
        for prompt, choices, _ in fill_prompts(questions, "auto")
        for choice in choices
    ]
    rows = [[0, *ids[:-1]] for ids in language_model.tokenizer(texts)["input_ids"]]

    def forward(ids, _):
        return torch.log_softmax(language_model.network(ids).logits, dim=-1)

    measure(benchmark, lambda: bare_forward(rows, forward), questions)


@pytest.mark.benchmark(group="language model, 150 questions")
@pytest.mark.parametrize("normalise", ["sum", "unconditional"])
def test_language_model(benchmark, language_model, questions, normalise):
    measure(
        benchmark,
        lambda: choice_logprobs(questions, language_model, normalise=normalise),
        questions,
    )


@pytest.mark.benchmark(group="language model, 150 questions")
def test_language_model_harness(benchmark, language_model, questions):
    """lm-evaluation-harness: the same log-probabilities, from the same prompts."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="make bench installs it")
    from lm_eval.api.instance import Instance

    peer = huggingface.HFLM(
        pretrained=language_model.network, tokenizer=language_model.tokenizer, batch_size=16
    )
    asked = [
        (prompt, choice)
        for prompt, choices, _ in fill_prompts(questions, "auto")
        for choice in choices
    ]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(asked)]
    found = measure(benchmark, lambda: peer.loglikelihood(requests, disable_tqdm=True), questions)
    ours = choice_logprobs(questions, language_model).to_numpy().ravel()
    np.testing.assert_allclose([nats for nats, _ in found], ours, atol=1e-3)
