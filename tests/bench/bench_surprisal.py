"""Words per second of word surprisal, beside the limit and beside minicons where it is installed.

The limit is a bare forward pass over the same tokens: sorted by length, batched without padding,
log-softmax, gather. The model has GPT-2 small's size and random weights, the text is James Joyce's
*Dubliners*. Times are processor seconds of one thread, which other work on the machine does not
change. ``PSYCHLM_BENCH_SCALE`` scales the number of texts: 1 takes 500 sentences, 20 documents and
1,000 minimal pairs, and half an hour; a tenth of them unless set.
"""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import torch
from benchmarks import gpt2, measure, scale

from psychlm import data, lm
from psychlm.lm import forward
from psychlm.lm import tokens as lm_tokens

SCALE = scale("0.1")
CONTEXT = 1024

pytestmark = [
    pytest.mark.needs_share,
    pytest.mark.benchmark(timer=time.process_time, warmup=False, disable_gc=True),
]


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
    rng = np.random.default_rng(0)
    nouns = "man boat horse girl table letter street window priest sister".split()  # noqa: SIM905
    heads, others = rng.choice(nouns, 1000), rng.choice(nouns, (1000, 2))
    stems = [
        f"The {a} with the {b} near the old {c}s that they saw"
        for a, (b, c) in zip(heads, others, strict=True)
    ]
    numbered = [f"{stem} {i} times" for i, stem in enumerate(stems)][: int(1000 * SCALE)]
    return [f"{stem} {verb} gone." for stem in numbered for verb in ("is", "are")]


@torch.inference_mode()
def bare_forward(model, rows, batch=64):
    """Return the log-probability of every token; rows of token ids begin with the start token."""
    by_length = {}
    for row in rows:
        by_length.setdefault(len(row), []).append(row)
    for length in sorted(by_length):
        same = by_length[length]
        step = max(1, min(batch, 2048 // length))
        for first in range(0, len(same), step):
            ids = torch.tensor(np.array(same[first : first + step]))
            log_p = torch.log_softmax(model.network(ids).logits[:, :-1], dim=-1)
            log_p.gather(2, ids[:, 1:, None])


def rows_of(model, texts):
    return [[0, *ids] for ids in model.tokenizer(texts)["input_ids"]]


def rate(benchmark, call, texts, rounds=1):
    measure(benchmark, call, "words", sum(len(text.split()) for text in texts), rounds)


@pytest.fixture
def peer(model):
    scorer = pytest.importorskip("minicons.scorer", reason="minicons is not installed")
    return scorer.IncrementalLMScorer(model.network, "cpu", tokenizer=model.tokenizer)


OF_PEER = {"surprisal": True, "base_two": True, "bos_token": True}


@pytest.mark.benchmark(group="sentences")
def test_sentences_limit(benchmark, model, sentences):
    rows = rows_of(model, sentences)
    rate(benchmark, lambda: bare_forward(model, rows), sentences, rounds=3)


@pytest.mark.benchmark(group="sentences")
@pytest.mark.parametrize("correction", ["pimentel-meister", None])
def test_sentences(benchmark, model, sentences, correction):
    def score():
        lm.surprisal(sentences, model, correction=correction)

    rate(benchmark, score, sentences, rounds=3)


@pytest.mark.benchmark(group="sentences")
def test_sentences_minicons(benchmark, peer, sentences):
    def score():  # in batches of 10, as its documentation shows
        for first in range(0, len(sentences), 10):
            peer.token_score(sentences[first : first + 10], **OF_PEER)

    rate(benchmark, score, sentences)


@pytest.mark.benchmark(group="documents")
def test_documents_limit(benchmark, model, documents):
    """The windows that the stride asks for, one by one, without any other work."""
    options = forward.resolve_options(model, None, CONTEXT // 2)
    prepared, _ = lm_tokens.prepare_words(lm.words_of(documents))
    tokens = lm_tokens.tokenize(lm_tokens.documents(prepared), model.tokenizer)
    first_rows = np.cumsum([0] + [len(one.ids) + 1 for one in tokens])
    rows = [one.ids for one in forward.plan_requests(tokens, first_rows, model, options)]
    rate(benchmark, lambda: bare_forward(model, rows), documents)


@pytest.mark.benchmark(group="documents")
@pytest.mark.parametrize("correction", ["pimentel-meister", None])
def test_documents(benchmark, model, documents, correction):
    def score():
        lm.surprisal(documents, model, correction=correction, stride=CONTEXT // 2)

    rate(benchmark, score, documents)


@pytest.mark.benchmark(group="document of 600 words")
def test_short_document(benchmark, model, novel):
    document = [" ".join(novel.split()[:600])]
    rate(benchmark, lambda: lm.surprisal(document, model), document, rounds=3)


@pytest.mark.benchmark(group="document of 600 words")
def test_short_document_minicons(benchmark, peer, novel):
    document = [" ".join(novel.split()[:600])]
    rate(benchmark, lambda: peer.token_score(document, **OF_PEER), document, rounds=3)


@pytest.mark.benchmark(group="minimal pairs")
def test_pairs_limit(benchmark, model, pairs):
    rows = rows_of(model, pairs)
    rate(benchmark, lambda: bare_forward(model, rows), pairs)


@pytest.mark.benchmark(group="minimal pairs")
def test_pairs(benchmark, model, pairs):
    rate(benchmark, lambda: lm.surprisal(pairs, model), pairs)


@pytest.mark.benchmark(group="GGUF")
def test_smollm2_opened_the_first_time(benchmark, monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))
    benchmark.pedantic(lambda: lm.load("smollm2", "cpu"), rounds=1, iterations=1)
