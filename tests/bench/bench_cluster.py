"""What Dask does beyond one process: processes of this machine, and a hundred simulated workers.

``test_efficiency`` does the jobs that take ``client=`` in this process, and on two and four worker
processes of one thread. Their processor seconds together, unlike wall times, are not changed by
other work. ``test_hundred_workers`` simulates workers of which some are slow or lost, by a rule
(``makespan_s``) that ``test_sleeping_pieces`` compares with Dask: eight workers in this process.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time

import numpy as np
import pytest
from benchmarks import scale, sweep, texts_of, train_lstms

from psychlm import cluster, lm
from psychlm.reading_times import sweep as sweep_module

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")

# case: share of the workers that take four times as long; share that is lost in the first half
CASES = {"all alike": (0, 0), "slow": (0.05, 0), "lost": (0, 0.1), "slow and lost": (0.05, 0.1)}
SLOW = 4


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


def makespan_s(durations_s, slow, lost_at_s):
    """Return when the last piece is done, if a free worker takes the next piece.

    ``durations_s`` are the pieces' on a worker of usual speed; ``slow`` is how many times longer
    each worker takes; ``lost_at_s`` is when a worker is lost, inf for never, with its piece, which
    goes to the front of the queue.
    """
    waiting = [(0.0, number) for number in range(len(durations_s))]  # (from when, piece)
    free = [(0.0, worker) for worker in range(len(slow))]
    last = 0.0
    while waiting:
        since, piece = heapq.heappop(waiting)
        free_at, worker = heapq.heappop(free)
        begin = max(since, free_at)
        end = begin + durations_s[piece] * slow[worker]
        if lost_at_s[worker] <= begin:  # the piece stays; there is one worker less
            heapq.heappush(waiting, (since, piece))
        elif lost_at_s[worker] < end:
            heapq.heappush(waiting, (float(lost_at_s[worker]), piece))
        else:
            heapq.heappush(free, (float(end), worker))
            last = max(last, float(end))
    return last


def drawn(rng, case, n_workers, n_pieces):
    """Return durations of pieces, mean 1, how slow each worker is, and when it is lost."""
    durations = rng.lognormal(-0.045, 0.3, n_pieces)
    shuffled = rng.permutation(n_workers)
    n_slow, n_lost = (int(np.ceil(share * n_workers)) for share in CASES[case])
    slow, lost = np.ones(n_workers), np.full(n_workers, np.inf)
    slow[shuffled[:n_slow]] = SLOW
    last = shuffled[n_workers - n_lost :]
    lost[last] = rng.uniform(0, durations.sum() / n_workers / 2, n_lost)
    return durations, slow, lost


@pytest.mark.benchmark(group="a hundred workers")
@pytest.mark.parametrize("pieces_each", [1, 3, 10, 30])
@pytest.mark.parametrize("case", CASES)
def test_hundred_workers(benchmark, case, pieces_each):
    """Efficiency: the work of all pieces by the time of a hundred workers of usual speed."""
    rng = np.random.default_rng(1)

    def efficiencies(n_workers=100, n_draws=200):
        draws = [drawn(rng, case, n_workers, n_workers * pieces_each) for _ in range(n_draws)]
        return [draw[0].sum() / n_workers / makespan_s(*draw) for draw in draws]

    found = benchmark.pedantic(efficiencies, rounds=1)
    low, middle, high = np.quantile(found, [0.05, 0.5, 0.95])
    benchmark.extra_info |= {"case": case, "pieces_each": pieces_each}
    benchmark.extra_info |= {"efficiency": middle, "low": low, "high": high}


def sleep(slow, seconds):
    time.sleep(seconds * slow[distributed.get_worker().name])


@pytest.mark.benchmark(group="sleeping pieces")
@pytest.mark.parametrize("case", CASES)
def test_sleeping_pieces(benchmark, case, n_workers=8, n_pieces=40):
    durations, slow, lost = drawn(np.random.default_rng(1), case, n_workers, n_pieces)
    options = {"n_workers": n_workers, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options, processes=False) as made,
        distributed.Client(made) as client,
    ):
        client.wait_for_workers(n_workers)

        async def lose(number):
            await asyncio.sleep(lost[number])
            await made.workers[number].close(nanny=False)

        def work():
            for number in np.flatnonzero(np.isfinite(lost)):
                client.sync(lose, number, asynchronous=True)
            dict(cluster.run_pieces(client, sleep, slow, dict(enumerate(durations))))

        benchmark.pedantic(work, rounds=1)
    benchmark.extra_info["simulated_s"] = makespan_s(durations, slow, lost)
