"""What Dask does beyond one process: the jobs that take ``client=`` in this process, and on two and
four worker processes of one thread. Their processor seconds together, unlike wall times, are not
changed by other work.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from benchmarks import scale, sweep, texts_of, train_lstms

from psychlm import lm
from psychlm.reading_times import sweep as sweep_module

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")


def surprisals(n_texts, client):
    """Eight pieces of texts of 500 words, under a small model."""
    options = {"texts_at_once": n_texts // 8, "cache": False, "device": "cpu", "client": client}
    lm.surprisals(texts_of(np.random.default_rng(0), n_texts, 500), ["default"], **options)


def crowd(n_models, client):
    """Eight pieces of LSTMs."""
    train_lstms(n_models, 400, models_at_once=n_models // 8, epochs=2, client=client)


def gains(n_models, client):
    """A piece for each language model, beside 20,000 readings, with ten folds."""
    sweep(2000, n_models, client=client)


# work, and its size
JOBS = {"surprisal": (surprisals, 128), "crowd": (crowd, 640), "sweep": (gains, 192)}


def cpu_seconds(pids):
    """Return the processor seconds of processes so far."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(work, size, client, pids):
    begin, before = time.perf_counter(), cpu_seconds(pids)
    work(size, client)
    return time.perf_counter() - begin, cpu_seconds(pids) - before


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="seconds are read from /proc")
@pytest.mark.parametrize("job", JOBS)
def test_efficiency(benchmark, monkeypatch, one_thread, job):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sweep_module, "CHUNK_BYTES", 1)  # a piece for each model
    work, size = JOBS[job]
    size = max(8, round(size * scale()))
    here, cores = os.getpid(), len(os.sched_getaffinity(0))
    work(8, None)

    def on_each_number():
        wall_s, cpu_s = timed(work, size, None, [here])
        found = {"wall_s": wall_s, "cpu_s": cpu_s}
        for n in (2, 4):
            options = {"n_workers": n, "threads_per_worker": 1, "dashboard_address": None}
            with distributed.LocalCluster(**options) as made, distributed.Client(made) as client:
                client.wait_for_workers(n)
                pids = [here, *client.run(os.getpid).values()]
                client.run(work, 8, None)  # imports, and the model is opened
                wall, cpu = timed(work, size, client, pids)
            found |= {f"wall_s, {n}": wall, f"cpu_s, {n}": cpu}
            found[f"efficiency, {n}"] = wall_s / wall / min(n, cores)
            found[f"share of cpu, {n}"] = cpu_s / cpu
        return found

    found = benchmark.pedantic(on_each_number, rounds=1)
    benchmark.extra_info |= found | {"load": os.getloadavg()[0]}
