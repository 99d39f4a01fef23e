"""What a curriculum costs: an ability over a whole training set, and DDaCLAE beside plain training.

Abilities of 1 and 5 models on 550,000 items (SNLI's training set), given their predictions; and an
epoch of training with DDaCLAE on all examples (its floor is 1), which is plain training and a
forward pass over the training set; that pass is also measured alone. Times are processor seconds of
one thread.
``PSYCHLM_BENCH_SCALE`` (1 unless set) scales the number of items and of examples.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from psychlm import crowds
from psychlm.irt.scoring import KnownItems
from psychlm.papers import lalor2020_ddaclae as curricula

SCALE = float(os.environ.get("PSYCHLM_BENCH_SCALE", "1"))
ITEMS, EXAMPLES, SEEDS, EPOCHS = int(550_000 * SCALE), int(20_000 * SCALE), 5, 3

pytestmark = pytest.mark.benchmark(timer=time.process_time, warmup=False, disable_gc=True)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


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
    return crowds.encode_texts(texts), answers, pd.Series(rng.normal(size=EXAMPLES))


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
