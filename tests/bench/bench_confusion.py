"""Perturb 10,000 four-choice items under each probe, frame in, frame out.

Times are those of one thread of the processor. ``PSYCHLM_BENCH_SCALE`` below 1 shrinks the items.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pandas as pd
import pytest

from psychlm.probes import confusion

N_ITEMS = max(50, int(10_000 * float(os.environ.get("PSYCHLM_BENCH_SCALE", "1"))))
WORDS = 60  # of a prompt and a choice together, about as many as HellaSwag's

pytestmark = pytest.mark.benchmark(
    timer=time.process_time, warmup=False, disable_gc=True, group="confusion probes"
)


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(1)
    words = np.array([f"word{i}" for i in range(5000)])
    texts = [
        " ".join(row) for row in words[rng.integers(len(words), size=(N_ITEMS * 5, WORDS // 2))]
    ]
    choices = [texts[at : at + 4] for at in range(0, 4 * N_ITEMS, 4)]
    return pd.DataFrame(
        {
            "item_id": np.arange(N_ITEMS).astype(str),
            "prompt": texts[4 * N_ITEMS :],
            "choices": choices,
            "answer": rng.integers(4, size=N_ITEMS),
        }
    )


@pytest.mark.parametrize("probe", confusion.PROBES)
def test_probe(benchmark, items, probe):
    perturbed = benchmark.pedantic(
        confusion.perturb, (items, probe), {"seed": 1, "n_extra": 8}, rounds=5
    )
    assert len(perturbed) == N_ITEMS
    benchmark.extra_info |= {"n_items": N_ITEMS, "n_extra": 8 if probe == "more-choices" else 0}
