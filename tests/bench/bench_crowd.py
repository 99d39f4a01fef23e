"""A crowd trained as one against a loop over single models, on SST sentences.

The loop is plain PyTorch: ``nn.EmbeddingBag`` or ``nn.LSTM`` with a linear layer, Adam, batches
padded to their longest text. A second comparison uses bags whose embeddings have sparse gradients,
with ``SparseAdam``. The crowd trains all models for an epoch; the loop trains a few of them, and
its time is multiplied. ``extra_info`` holds both, for one epoch of all models with their set-up, as
wall and processor time. ``PSYCHLM_BENCH_SCALE`` below 1 shrinks the texts, not the vocabulary. The
number of threads is torch's (``OMP_NUM_THREADS``).
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from torch import nn

from psychlm import crowds, data

SCALE = float(os.environ.get("PSYCHLM_BENCH_SCALE", "1"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N_MODELS = 1000 if DEVICE == "cuda" else 100
N_TEXTS = max(round(6920 * SCALE), 64)
N_ALONE = 2  # models of the loop that are timed
SIZE, BATCH = 32, 16

pytestmark = pytest.mark.benchmark(
    timer=time.perf_counter, warmup=False, disable_gc=True, group="crowd"
)


@pytest.fixture(scope="module")
def sentences():
    """Return SST's binary training sentences, encoded with all their words, and their labels."""
    with open(data.path("sst/stsa.binary.train"), encoding="utf-8") as handle:
        rows = [line.rstrip("\n").split(" ", 1) for line in handle]
    encoded = crowds.encode_texts([text for _, text in rows], min_count=1)
    return encoded[:N_TEXTS], np.array([int(label) for label, _ in rows[:N_TEXTS]])


class Bag(nn.Module):
    def __init__(self, vocabulary, sparse=False):
        super().__init__()
        self.embedding = nn.EmbeddingBag(
            vocabulary, SIZE, mode="mean", padding_idx=0, sparse=sparse
        )
        self.out = nn.Linear(SIZE, 2)

    def forward(self, numbers, lengths):
        return self.out(self.embedding(numbers))


class Recurrent(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, SIZE, padding_idx=0)
        self.lstm = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.out = nn.Linear(SIZE, 2)

    def forward(self, numbers, lengths):
        states = self.lstm(self.embedding(numbers))[0]
        return self.out(states[torch.arange(len(numbers), device=numbers.device), lengths - 1])


def epoch_alone(network, optimisers, numbers, lengths, labels):
    for at in torch.randperm(len(labels), device=labels.device).split(BATCH):
        longest = lengths[at].max()
        loss = nn.functional.cross_entropy(network(numbers[at, :longest], lengths[at]), labels[at])
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()


def seconds(work):
    """Return wall and processor seconds of some work, the device waited for."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - processor


def loop_seconds(kind, encoded, labels):
    """Return the loop's wall and processor seconds for all models, from a few after a warm-up."""
    numbers, lengths = (part.to(DEVICE) for part in encoded.segments[0])
    wanted = torch.from_numpy(labels).to(DEVICE)
    vocabulary = len(encoded.vocabulary)

    def one_model():
        network = Recurrent(vocabulary) if kind == "lstm" else Bag(vocabulary, kind == "sparse bag")
        network = network.to(DEVICE)
        if kind == "sparse bag":
            sparse = torch.optim.SparseAdam(network.embedding.parameters(), lr=0.01)
            optimisers = [sparse, torch.optim.Adam(network.out.parameters(), lr=0.01)]
        else:
            optimisers = [torch.optim.Adam(network.parameters(), lr=0.01)]
        return seconds(lambda: epoch_alone(network, optimisers, numbers.int(), lengths, wanted))

    spent = [one_model() for _ in range(N_ALONE + 1)]
    return N_MODELS * np.mean(spent[1:], axis=0)


@pytest.mark.parametrize("kind", ["bag", "lstm"])
def test_crowd_against_a_loop(benchmark, sentences, kind):
    encoded, labels = sentences
    spent = []

    def train():
        options = {
            "n_models": N_MODELS,
            "epochs": 1,
            "batch_size": BATCH,
            "device": DEVICE,
            "size": SIZE,
            "hidden": SIZE,
        }
        spent.append(seconds(lambda: crowds.train(kind, encoded, labels, **options)))

    crowds.train(
        kind, encoded, labels, n_models=2, epochs=1, batch_size=BATCH, device=DEVICE
    )  # warms up
    benchmark.pedantic(train, rounds=1)
    _, processor = spent[-1]
    rivals = {"loop": kind} | (
        {"loop with sparse gradients": "sparse bag"} if kind == "bag" else {}
    )
    for name, rival in rivals.items():
        loop_wall, loop_processor = loop_seconds(rival, encoded, labels)
        benchmark.extra_info |= {
            f"{name}, wall s": loop_wall,
            f"{name}, processor s": loop_processor,
            f"times faster than the {name}": loop_processor / processor,
        }
    benchmark.extra_info |= {
        "n_models": N_MODELS,
        "n_texts": N_TEXTS,
        "vocabulary": len(encoded.vocabulary),
        "batch": BATCH,
        "threads": torch.get_num_threads(),
        "crowd, processor s": processor,
        "device": DEVICE,
    }
