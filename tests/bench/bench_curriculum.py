"""What a curriculum costs: an ability over a whole training set, and DDaCLAE beside plain training.

Abilities of 1 and 5 models on 550,000 items (SNLI's training set), given their predictions; epochs
with DDaCLAE on all examples (its floor is 1), which are plain training and forward passes over the
training set, each also measured alone; an epoch of fine-tuning beside its limit, the same batches
in a bare loop. Times are processor seconds of one thread; ``PSYCHLM_BENCH_SCALE`` scales sizes.
"""

from __future__ import annotations

from itertools import count

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import measure, minilm, of_group, scale, wordpiece
from scipy.special import expit
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from analyses.lalor2020_ddaclae import DDaCLAE, rasch_ability
from psychlm import crowds, lm

ITEMS, EXAMPLES, SEEDS, EPOCHS = int(550_000 * scale()), int(20_000 * scale()), 5, 3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("n_models", [1, SEEDS])
@of_group("ability on 550,000 items")
def test_ability(benchmark, n_models):
    rng = np.random.default_rng(0)
    b = rng.normal(size=ITEMS)
    theta = rng.normal(size=n_models)
    right = rng.random((n_models, ITEMS)) < expit(theta[:, None] - b)
    amounts = {"items": ITEMS, "models": n_models}
    found = measure(benchmark, lambda: rasch_ability(b, right), rounds=3, **amounts)
    assert (np.abs(found["theta"] - theta) < 5 * found["se"]).all()


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


def learn(task, callback=None):
    inputs, answers, _ = task
    options = {"n_models": SEEDS, "seed": 1, "epochs": EPOCHS, "patience": EPOCHS}
    return crowds.train("lstm", inputs, answers, **options, epoch_callback=callback)


@of_group("three epochs of five LSTMs")
def test_plain_training(benchmark, task):
    measure(benchmark, lambda: learn(task), rounds=2)


@of_group("three epochs of five LSTMs")
def test_ddaclae(benchmark, task):
    _, answers, b = task
    trained = measure(
        benchmark, lambda: learn(task, DDaCLAE(b, answers, floor=1).epoch_callback), rounds=2
    )
    assert (trained.history["n_examples"] == EXAMPLES).all()


@of_group("three epochs of five LSTMs")
def test_forward_passes(benchmark, task):
    """Time DDaCLAE's passes over the training set, its expected cost beyond plain training."""
    inputs, answers, _ = task
    network = crowds.Network.for_inputs("lstm", inputs, 2)
    weights = crowds.initial_weights(network, range(SEEDS))

    def passes():
        for _ in range(EPOCHS):
            crowds.predict_logits(network, weights, inputs).log_softmax(2)

    measure(benchmark, passes, rounds=2)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Sentences with two labels, and a folder with an encoder of MiniLM's size, random weights."""
    rng = np.random.default_rng(2)
    words = [f"w{i}" for i in range(2000)]
    tokenizer = wordpiece(words, 4000)  # each word is one piece
    folder = tmp_path_factory.mktemp("encoder")
    minilm(BertModel, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    labels = rng.integers(0, 2, max(64, int(480 * scale())))
    texts = [" ".join(rng.choice(words[k * 800 : k * 800 + 1200], 20)) for k in labels]
    items = {"item_id": range(len(texts)), "prompt": texts, "answer": labels}
    return folder, pd.DataFrame(items | {"choices": [["negative", "positive"]] * len(texts)})


@of_group("an epoch of fine-tuning")
def test_fine_tuning_limit(benchmark, reviews):
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

    measure(benchmark, epoch, rounds=3, warmup_rounds=1)  # a first call pays for imports


@of_group("an epoch of fine-tuning")
def test_fine_tuning(benchmark, reviews, tmp_path):
    folder, items = reviews
    numbers = count()

    def epoch():
        out = tmp_path / str(next(numbers))  # a folder that holds a result would be read
        lm.fine_tune(items, folder, out=out, epochs=1, batch_size=32, device="cpu")

    measure(benchmark, epoch, rounds=3, warmup_rounds=1)
