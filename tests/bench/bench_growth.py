"""Time and memory of the main jobs against size, over three decades: ``PSYCHLM_BENCH_GROWTH=1``.

Each size runs in a process of its own, ``bench_growth.py JOB SIZE``, after the job in its smallest
size, so that imports and an opened model count for no size. Seconds are processor seconds of one
thread; memory is the most that the process holds above what it held before the input was made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks import WORDS, answers_of, forget_peak, memory_mb, sweep, texts_of, train_lstms

from psychlm import irt, lm


def surprisal(n_words):
    """One small model reads texts of 1,000 words."""
    each = min(n_words, 1000)
    texts = texts_of(np.random.default_rng(0), n_words // each, each)
    lm.surprisals(texts, "default", device="cpu", cache=False)


def responses(n_cells, n_models=4):
    """Four models (one network under four names) answer items of four choices."""
    rng, n_items = np.random.default_rng(0), n_cells // n_models
    items = pd.DataFrame({"item_id": [f"q{i}" for i in range(n_items)], "answer": 0})
    items["prompt"] = texts_of(rng, n_items, 12)
    ends = texts_of(rng, n_items, 3)
    items["choices"] = [[f"{word} {end}" for word in WORDS[:4]] for end in ends]
    models = {f"model {i}": "default" for i in range(n_models)}
    lm.evaluate(items, models, device="cpu", cache=False)


def fit_2pl(n_persons, n_items):
    """Fit a 2PL with standard errors."""
    irt.fit(answers_of(n_persons, n_items, 0.3), "2PL", device="cpu")


# job: what is done, in what smallest size, and what is counted
SWEEP = {"n_texts": 2, "folds": None, "device": "cpu"}
CELLS, READINGS = "persons x items", "readings x models"
JOBS = {
    "surprisal": (surprisal, 100, "words"),
    "responses": (responses, 20, "items x models"),
    "2PL, more items": (lambda cells: fit_2pl(1000, cells // 1000), 10_000, CELLS),
    "2PL, more persons": (lambda cells: fit_2pl(cells // 50, 50), 10_000, CELLS),
    "additive models, more readings": (lambda n: sweep(n // 100, 10, **SWEEP), 10_000, READINGS),
    "additive models, more models": (lambda n: sweep(100, n // 1000, **SWEEP), 10_000, READINGS),
    "crowd of LSTMs": (lambda n_models: train_lstms(n_models, 200, epochs=1), 1, "models"),
}


def measured(job, size):
    """Do a job of this size here, and return its processor seconds and memory."""
    work, smallest, unit = JOBS[job]
    work(smallest)
    forget_peak()
    before, begin = memory_mb("VmRSS"), time.process_time()
    work(size)
    seconds = time.process_time() - begin
    memory = {"memory_mb": memory_mb("VmHWM") - before, "memory_before_mb": before}
    return {"job": job, "size": size, "unit": unit, "seconds": seconds, **memory}


@pytest.mark.skipif("PSYCHLM_BENCH_GROWTH" not in os.environ, reason="PSYCHLM_BENCH_GROWTH=1")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("step", [1, 3, 10, 30, 100, 300, 1000])
@pytest.mark.parametrize("job", JOBS)
def test_growth(benchmark, own_environment, job, step):
    command = [sys.executable, __file__, job, str(JOBS[job][1] * step)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
    options = {"check": True, "capture_output": True, "env": own_environment | threads | paths}
    done = benchmark.pedantic(subprocess.run, (command,), options, rounds=1)
    benchmark.extra_info |= json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
