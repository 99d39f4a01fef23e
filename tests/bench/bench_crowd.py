"""A crowd trained as one against a loop over single models, on SST sentences.

The loop is plain PyTorch: ``nn.EmbeddingBag`` or ``nn.LSTM`` with a linear layer, Adam, batches
padded to their longest text; bags also with sparse gradients and ``SparseAdam``. A few of its
models are timed, and their time multiplied. Both include the drawing of the initial weights.

Times are processor seconds of one thread. ``PSYCHLM_BENCH_SCALE`` below 1 shrinks the texts.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from benchmarks import measure, of_group, scale
from torch import nn

from psychlm import crowds, data

N_MODELS, N_TEXTS = 100, max(round(2000 * scale()), 64)
N_ALONE = 2  # models of the loop that are timed
SIZE, BATCH = 32, 16

pytestmark = [pytest.mark.usefixtures("one_thread"), of_group("crowd")]


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
        options = {"mode": "mean", "padding_idx": 0, "sparse": sparse}
        self.embedding, self.out = nn.EmbeddingBag(vocabulary, SIZE, **options), nn.Linear(SIZE, 2)

    def forward(self, numbers, lengths):
        return self.out(self.embedding(numbers))


class Recurrent(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, SIZE, padding_idx=0)
        self.lstm, self.out = nn.LSTM(SIZE, SIZE, batch_first=True), nn.Linear(SIZE, 2)

    def forward(self, numbers, lengths):
        states = self.lstm(self.embedding(numbers))[0]
        return self.out(states[torch.arange(len(numbers)), lengths - 1])


def train_alone(kind, vocabulary, numbers, lengths, labels):
    """Train one model for an epoch; return its processor seconds."""
    begin = time.process_time()
    network = Recurrent(vocabulary) if kind == "lstm" else Bag(vocabulary, kind == "sparse bag")
    optimisers = [torch.optim.Adam(network.parameters(), lr=0.01)]
    if kind == "sparse bag":
        sparse = torch.optim.SparseAdam(network.embedding.parameters(), lr=0.01)
        optimisers = [sparse, torch.optim.Adam(network.out.parameters(), lr=0.01)]
    for at in torch.randperm(len(labels)).split(BATCH):
        longest = lengths[at].max()
        loss = nn.functional.cross_entropy(network(numbers[at, :longest], lengths[at]), labels[at])
        network.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    return time.process_time() - begin


@pytest.mark.parametrize("kind", ["bag", "lstm"])
def test_crowd_against_a_loop(benchmark, sentences, kind):
    encoded, labels = sentences
    vocabulary = len(encoded.vocabulary.words)

    def train(n_models=N_MODELS):
        options = {"n_models": n_models, "epochs": 1, "batch_size": BATCH, "device": "cpu"}
        crowds.train(kind, encoded, labels, **options, size=SIZE, hidden=SIZE)

    train(n_models=2)  # warms up
    sizes = {"n_models": N_MODELS, "n_texts": N_TEXTS, "batch": BATCH, "vocabulary": vocabulary}
    measure(benchmark, train, **sizes)
    numbers, lengths = encoded.segments[0]
    texts = numbers.int(), lengths, torch.from_numpy(labels)
    rivals = {"loop": kind}
    if kind == "bag":
        rivals["loop with sparse gradients"] = "sparse bag"
    for name, rival in rivals.items():
        of_each = [train_alone(rival, vocabulary, *texts) for _ in range(N_ALONE + 1)]
        taken = N_MODELS * np.mean(of_each[1:])  # the first warms up
        benchmark.extra_info[f"{name}, s"] = taken
        benchmark.extra_info[f"times faster than the {name}"] = taken / benchmark.stats["min"]
