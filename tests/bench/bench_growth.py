"""Time and memory of the main jobs against size, over three decades: ``PSYCHLM_BENCH_GROWTH=1``.

Each size runs in a process of its own, ``bench_growth.py JOB SIZE``, which first does the job in
its smallest size, so that imports, compiled code and an opened model count for no size. Seconds are
processor seconds of one thread; memory is what the process holds at most above what it held before
the input was made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

WORDS = ["the", "a", "old", "man", "boat", "girl", "letter", "saw", "found", "near", "and", "house"]


def texts_of(rng: np.random.Generator, n_texts: int, n_words: int) -> list[str]:
    return [" ".join(row) for row in rng.choice(WORDS, (n_texts, n_words))]


def surprisal(n_words: int) -> None:
    """One small model reads texts of 1,000 words."""
    from psychlm import lm

    each = min(n_words, 1000)
    texts = texts_of(np.random.default_rng(0), n_words // each, each)
    lm.surprisal(texts, "default", device="cpu", cache=False)


def responses(n_cells: int, n_models: int = 4) -> None:
    """Four models (one network under four names) answer items of four choices."""
    from psychlm import lm

    rng, n_items = np.random.default_rng(0), n_cells // n_models
    items = pd.DataFrame({"item_id": [f"q{i}" for i in range(n_items)], "answer": 0})
    items["prompt"] = texts_of(rng, n_items, 12)
    ends = texts_of(rng, n_items, 3)
    items["choices"] = [[f"{WORDS[j]} {end}" for j in range(4)] for end in ends]
    models = {f"model {i}": "default" for i in range(n_models)}
    lm.evaluate(items, models, device="cpu", cache=False)


def fit_2pl(n_persons: int, n_items: int) -> None:
    from psychlm import irt

    rng = np.random.default_rng(0)
    slope, difficulty = rng.lognormal(0, 0.3, n_items), rng.normal(size=n_items)
    matrix = np.empty((n_persons, n_items), np.uint8)
    for row, theta in zip(matrix, rng.normal(size=n_persons), strict=True):
        row[:] = rng.random(n_items) < 1 / (1 + np.exp(-slope * (theta - difficulty)))
    matrix[:2] = [[0], [1]]  # no item that all answer alike
    irt.fit(matrix, "2PL", device="cpu")


def irt_items(n_cells: int) -> None:
    """A 2PL of 1,000 persons with standard errors."""
    fit_2pl(1000, n_cells // 1000)


def irt_persons(n_cells: int) -> None:
    """A 2PL of 50 items with standard errors."""
    fit_2pl(n_cells // 50, 50)


def sweep(n_rows: int, n_models: int) -> None:
    from psychlm import reading_times as reading

    simulated = reading.simulate(
        np.random.default_rng(1),
        n_words=n_rows // 10,
        n_subjects=10,
        n_texts=2,
        noise_bits=np.linspace(0.5, 8, n_models),
    )
    reading.delta_loglik(
        simulated.readings, simulated.surprisals, "gaze_ms", folds=None, device="cpu"
    )


def gam_rows(n_cells: int) -> None:
    """Additive models for ten language models."""
    sweep(n_cells // 10, 10)


def gam_models(n_cells: int) -> None:
    """Additive models of 1,000 readings."""
    sweep(1000, n_cells // 1000)


def crowd(n_models: int) -> None:
    """LSTMs of 32 states learn from 200 texts of 12 words."""
    from psychlm import crowds

    rng = np.random.default_rng(0)
    encoded = crowds.encode_texts(texts_of(rng, 200, 12))
    labels = rng.integers(0, 2, 200)
    crowds.train_crowd(
        "lstm", encoded, labels, encoded, labels, n_models=n_models, epochs=1, device="cpu"
    )


# job: its smallest size, and what is counted
JOBS: dict[str, tuple[Callable[[int], None], int, str]] = {
    "surprisal": (surprisal, 100, "words"),
    "responses": (responses, 20, "items x models"),
    "2PL, more items": (irt_items, 10_000, "persons x items"),
    "2PL, more persons": (irt_persons, 10_000, "persons x items"),
    "additive models, more readings": (gam_rows, 10_000, "readings x models"),
    "additive models, more models": (gam_models, 10_000, "readings x models"),
    "crowd of LSTMs": (crowd, 1, "models"),
}
STEPS = [1, 3, 10, 30, 100, 300, 1000]


def memory_mb(kind: str) -> float:
    """Return a process's resident memory, ``VmRSS``, or its peak since the last reset, ``VmHWM``.

    ``ru_maxrss`` of a child process is at least the memory of the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def measured(job: str, size: int) -> dict[str, Any]:
    """Do a job of this size here, and return its processor seconds and memory."""
    import torch  # noqa: F401  (small fits do without it)

    work, smallest, unit = JOBS[job]
    work(smallest)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, begin = memory_mb("VmRSS"), time.process_time()
    work(size)
    seconds = time.process_time() - begin
    memory = {"memory_mb": memory_mb("VmHWM") - before, "memory_before_mb": before}
    return {"job": job, "size": size, "unit": unit, "seconds": seconds, **memory}


@pytest.mark.skipif("PSYCHLM_BENCH_GROWTH" not in os.environ, reason="PSYCHLM_BENCH_GROWTH=1")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("job", JOBS)
def test_growth(benchmark, own_environment, job, step):
    command = [sys.executable, __file__, job, str(JOBS[job][1] * step)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = benchmark.pedantic(
        subprocess.run,
        (command,),
        {"check": True, "capture_output": True, "env": own_environment | threads},
        rounds=1,
    )
    benchmark.extra_info |= json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
