"""Words per second of word surprisal, beside the limit and beside minicons where it is installed.

The limit is a bare forward pass over the same tokens: sorted by length, batched without padding,
log-softmax, gather. The model has GPT-2 small's size and random weights, the text is James Joyce's
*Dubliners*. ``PSYCHLM_BENCH_SCALE`` scales the number of texts: 1 takes 500 sentences, 20 documents
and 1,000 minimal pairs, and half an hour; a tenth of them unless set.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from benchmarks import gpt2, measure, of_group, scale

from psychlm import data, lm
from psychlm.lm import forward
from psychlm.lm import tokens as lm_tokens

SCALE = scale("0.1")
STRIDE = 512  # tokens, half of the context
CORRECTIONS = pytest.mark.parametrize("correction", ["pimentel-meister", None])

pytestmark = pytest.mark.needs_share


@pytest.fixture(scope="session")
def novel():
    return data.path("lm/novels/Dubliners").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def model(novel):
    model = gpt2([novel], 20_000)
    lm.surprisal("a first call pays for imports", model)
    return model


@pytest.fixture(scope="session")
def sentences(novel):
    """500 sentences (scale 1) of 6 to 25 words, in random order."""
    words = [sentence.split() for sentence in re.split(r"(?<=[.?!])\s+", novel)]
    of_usual_length = [" ".join(sentence) for sentence in words if 6 <= len(sentence) <= 25]
    return np.random.default_rng(0).permutation(of_usual_length)[: int(500 * SCALE)].tolist()


@pytest.fixture(scope="session")
def documents(novel):
    """20 documents of 2,000 words (as many as the novel has, and the scale asks for)."""
    words = novel.split()
    starts = range(0, len(words) - 2000, 2000)[: max(1, int(20 * SCALE))]
    return [" ".join(words[start : start + 2000]) for start in starts]


@pytest.fixture(scope="session")
def pairs():
    """1,000 minimal pairs: sentences that agree up to the verb, and in it differ by its number."""
    nouns = "man boat horse girl table letter street window priest sister".split()  # noqa: SIM905
    drawn = np.random.default_rng(0).choice(nouns, (int(1000 * SCALE), 3))
    stems = [
        f"The {a} with the {b} near the old {c}s that they saw {i} times"
        for i, (a, b, c) in enumerate(drawn)
    ]
    return [f"{stem} {verb} gone." for stem in stems for verb in ("is", "are")]


def rate(benchmark, call, texts, rounds=1):
    measure(benchmark, call, rounds=rounds, words=sum(len(text.split()) for text in texts))


def rate_of_limit(benchmark, model, rows, texts, rounds=1):
    """Time the log-probabilities of all tokens; rows of ids begin with the start token."""

    @torch.inference_mode()
    def bare_forward():
        by_length = {}
        for row in rows:
            by_length.setdefault(len(row), []).append(row)
        for length in sorted(by_length):
            step = max(1, min(64, 2048 // length))
            for ids in torch.tensor(by_length[length]).split(step):
                log_p = torch.log_softmax(model.network(ids).logits[:, :-1], dim=-1)
                log_p.gather(2, ids[:, 1:, None])

    rate(benchmark, bare_forward, texts, rounds)


def rows_of(model, texts):
    return [[0, *ids] for ids in model.tokenizer(texts)["input_ids"]]


@pytest.fixture
def peer(model):
    """Return a function that scores texts by minicons, in batches of 10 as its documentation."""
    scorer = pytest.importorskip("minicons.scorer", reason="minicons is not installed")
    opened = scorer.IncrementalLMScorer(model.network, "cpu", tokenizer=model.tokenizer)

    def score(texts):
        for first in range(0, len(texts), 10):
            part = texts[first : first + 10]
            opened.token_score(part, surprisal=True, base_two=True, bos_token=True)

    return score


@of_group("sentences")
def test_sentences_limit(benchmark, model, sentences):
    rate_of_limit(benchmark, model, rows_of(model, sentences), sentences, rounds=3)


@of_group("sentences")
@CORRECTIONS
def test_sentences(benchmark, model, sentences, correction):
    def score():
        lm.surprisal(sentences, model, correction=correction)

    rate(benchmark, score, sentences, rounds=3)


@of_group("sentences")
def test_sentences_minicons(benchmark, peer, sentences):
    rate(benchmark, lambda: peer(sentences), sentences)


@of_group("documents")
def test_documents_limit(benchmark, model, documents):
    """The windows that the stride asks for, one by one, without any other work."""
    options = forward.resolve_options(model, None, STRIDE)
    prepared, _ = lm_tokens.prepare_words(lm.words_of(documents))
    tokens = lm_tokens.tokenize(lm_tokens.documents(prepared), model.tokenizer)
    first_rows = np.cumsum([0] + [len(one.ids) + 1 for one in tokens])
    rows = [one.ids for one in forward.plan_requests(tokens, first_rows, model, options)]
    rate_of_limit(benchmark, model, rows, documents)


@of_group("documents")
@CORRECTIONS
def test_documents(benchmark, model, documents, correction):
    def score():
        lm.surprisal(documents, model, correction=correction, stride=STRIDE)

    rate(benchmark, score, documents)


@of_group("minimal pairs")
def test_pairs_limit(benchmark, model, pairs):
    rate_of_limit(benchmark, model, rows_of(model, pairs), pairs)


@of_group("minimal pairs")
def test_pairs(benchmark, model, pairs):
    rate(benchmark, lambda: lm.surprisal(pairs, model), pairs)


@of_group("GGUF")
def test_smollm2_opened_the_first_time(benchmark, monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))
    measure(benchmark, lambda: lm.load("smollm2", "cpu"))
