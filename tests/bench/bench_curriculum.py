"""What a curriculum costs: an ability over a whole training set, and DDaCLAE beside plain training.

Abilities of 1 and 5 models on 550,000 items (SNLI's training set), given their predictions; and an
epoch of training with DDaCLAE on all examples (its floor is 1), which is plain training and a
forward pass over the training set; that pass is also measured alone. An epoch of fine-tuning an
encoder stands beside its limit, the same batches through a bare loop. Times are processor seconds
of one thread.
``PSYCHLM_BENCH_SCALE`` (1 unless set) scales the number of items and of examples.
"""

from __future__ import annotations

import time
from itertools import count

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import minilm, scale, wordpiece
from scipy.special import expit

from psychlm import crowds, lm
from psychlm.papers import lalor2020_ddaclae as curricula
from psychlm.papers.lalor2020_ddaclae import KnownItems

SCALE = scale()
ITEMS, EXAMPLES, SEEDS, EPOCHS = int(550_000 * SCALE), int(20_000 * SCALE), 5, 3

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.benchmark(timer=time.process_time, warmup=False, disable_gc=True),
]


@pytest.mark.parametrize("model", ["Rasch", "2PL"])
@pytest.mark.parametrize("n_models", [1, SEEDS])
@pytest.mark.benchmark(group="ability on 550,000 items")
def test_ability(benchmark, model, n_models):
    rng = np.random.default_rng(0)
    b = rng.normal(size=ITEMS)
    a = np.ones(ITEMS) if model == "Rasch" else rng.lognormal(0, 0.5, ITEMS)
    theta = rng.normal(size=n_models)
    items = KnownItems(pd.DataFrame({"a": a, "b": b}))
    right = rng.random((n_models, ITEMS)) < expit(a * (theta[:, None] - b))
    found = benchmark.pedantic(items.ability, (right,), rounds=3, iterations=1)
    assert (np.abs(found["theta"] - theta) < 5 * found["se"]).all()
    benchmark.extra_info |= {
        "items": ITEMS,
        "models": n_models,
        "largest_error_logits": float(np.abs(found["theta"] - theta).max()),
    }


@pytest.fixture(scope="module")
def task():
    """Sentences of 5 to 25 words out of 2,000, with two classes and difficulties."""
    rng = np.random.default_rng(1)
    answers = rng.integers(0, 2, EXAMPLES)
    lengths = rng.integers(5, 26, EXAMPLES)
    texts = [
        " ".join(f"w{w}" for w in rng.integers(k * 1000, k * 1000 + 1200, n))
        for k, n in zip(answers, lengths, strict=True)
    ]
    return crowds.encode_texts(texts), pd.Series(answers), pd.Series(rng.normal(size=EXAMPLES))


def learn(task, callback):
    inputs, answers, _ = task
    options = {"n_models": SEEDS, "seed": 1, "epochs": EPOCHS, "patience": EPOCHS}
    return crowds.train("lstm", inputs, answers, **options, epoch_callback=callback)


@pytest.mark.benchmark(group="three epochs of five LSTMs")
def test_plain_training(benchmark, task):
    benchmark.pedantic(lambda: learn(task, None), rounds=2, iterations=1)


@pytest.mark.benchmark(group="three epochs of five LSTMs")
def test_ddaclae(benchmark, task):
    _, answers, b = task
    trained = benchmark.pedantic(
        lambda: learn(task, curricula.DDaCLAE(b, answers, floor=1).epoch_callback),
        rounds=2,
        iterations=1,
    )
    assert (trained.history["n_examples"] == EXAMPLES).all()


@pytest.mark.benchmark(group="three epochs of five LSTMs")
def test_forward_passes(benchmark, task):
    """Time DDaCLAE's passes over the training set, its expected cost beyond plain training."""
    inputs, answers, _ = task
    network = crowds.Network.for_inputs("lstm", inputs, 2)
    weights = crowds.initial_weights(network, range(SEEDS))

    def passes():
        for _ in range(EPOCHS):
            crowds.predict_logits(network, weights, inputs).log_softmax(2)

    benchmark.pedantic(passes, rounds=2, iterations=1)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Sentences with two labels, and a folder with an encoder of MiniLM's size, random weights."""
    from transformers import BertModel

    rng = np.random.default_rng(2)
    words = [f"w{i}" for i in range(2000)]
    tokenizer = wordpiece(words, 4000)  # each word is one piece
    folder = tmp_path_factory.mktemp("encoder")
    minilm(BertModel, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    labels = rng.integers(0, 2, max(64, int(480 * SCALE)))
    texts = [" ".join(rng.choice(words[k * 800 : k * 800 + 1200], 20)) for k in labels]
    items = {"item_id": range(len(texts)), "prompt": texts, "answer": labels}
    return folder, pd.DataFrame(items | {"choices": [["negative", "positive"]] * len(texts)})


@pytest.mark.benchmark(group="an epoch of fine-tuning")
def test_fine_tuning_limit(benchmark, reviews):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, items = reviews
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def epoch():
        network = AutoModelForSequenceClassification.from_pretrained(folder).train()
        optimiser = torch.optim.AdamW(network.parameters(), lr=5e-5)
        for rows in torch.randperm(len(items)).split(32):
            part = items.iloc[rows.numpy()]
            batch = tokenizer(part["prompt"].tolist(), padding=True, return_tensors="pt")
            labels = torch.tensor(part["answer"].to_numpy())
            network(**batch, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()

    epoch()  # a first call pays for imports
    benchmark.pedantic(epoch, rounds=3)


@pytest.mark.benchmark(group="an epoch of fine-tuning")
def test_fine_tuning(benchmark, reviews, tmp_path):
    folder, items = reviews
    numbers = count()

    def epoch():
        out = tmp_path / str(next(numbers))  # a folder that holds a result would be read
        lm.fine_tune(items, folder, out=out, epochs=1, batch_size=32, device="cpu")

    epoch()
    benchmark.pedantic(epoch, rounds=3)
