"""What ``check.py`` runs: one table of jobs, how they are measured, and the list of checks."""

from __future__ import annotations

import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import transformers
from benchmarks import answers_of, gpt2
from device_paths import difference, paths, tolerance
from torch.profiler import ProfilerActivity

from psychlm import corpora, crowds, irt, lm
from psychlm import reading_times as reading
from psychlm.device import torch_device, used
from psychlm.lm.forward import evaluating

NOVELS = Path(__file__).resolve().parents[2] / "data" / "novels.zip"
THREADS = int(os.environ["OMP_NUM_THREADS"])  # of the CPU
PROFILED = 2  # jobs
SMALL = "--small" in sys.argv  # of check.py
Check = Callable[[], Iterator[dict[str, Any]]]
Found = dict[str, dict[str, Any]]  # by the name of a check
Size = tuple[int, ...]
Run = Callable[[str], Any]  # a job: its argument is the device
Limit = Callable[[str, Any, dict[str, float]], dict[str, float]]  # seconds by what limits


class Job(NamedTuple):
    """A job whose speed is measured."""

    prepare: Callable[..., tuple[Run, Limit]]  # takes which model and a size
    which: str
    full: Size
    on_cpu: Size  # that both the CPU and the device compute
    small: Size  # of the first call, which counts for nothing, and of --small
    unit: str  # of the sizes

    def of_size(self, name: str) -> tuple[Run, Limit]:
        """Return the job of one of its sizes, and its limit."""
        return self.prepare(self.which, *self.size(name))

    def size(self, name: str) -> Size:
        """Return one of its sizes; with --small the smallest."""
        return self.small if SMALL else getattr(self, name)


# What is measured: each takes a size and returns a job and its limit


@cache
def novel() -> list[str]:
    """Return the words of a novel in the public domain."""
    with zipfile.ZipFile(NOVELS) as archive:
        return archive.read("lm/novels/Of-Human-Bondage.txt").decode().split()


@cache
def opened(name: str) -> Any:
    """Return the bundled model, or GPT-2's network with random weights, a tiny one if SMALL."""
    if name == "bundled":
        return lm.load("default", "cpu")
    if SMALL:
        return gpt2([" ".join(novel()[:500])], 300, n_layer=2, n_embd=64, n_head=2)
    return gpt2([" ".join(novel())], 20_000, vocab_size=50_257)  # other sizes are GPT-2's


def model_on(name: str, device: str) -> Any:
    """Return a language model after moving it to a device."""
    model = opened(name)
    model.network.to(torch_device(device))
    return model


def forward_passes(name: str, run: Run) -> Limit:
    """Return the limit of a language model: the network itself on the batches of the job."""

    def limit(device: str, result: Any, rates: dict[str, float]) -> dict[str, float]:
        network = model_on(name, device).network
        batches: list[dict[str, Any]] = []
        catch = network.register_forward_pre_hook(
            lambda _network, _args, inputs: batches.append(inputs), with_kwargs=True
        )
        run(device)
        catch.remove()

        def bare(device: str) -> None:
            for inputs in batches:
                network(**inputs)

        with torch.inference_mode(), evaluating(network):
            return {"bare forward passes": timed(bare, device)[0]}

    return limit


def surprisal(name: str, n_words: int) -> tuple[Run, Limit]:
    """Word surprisal of texts of 1,000 words."""
    texts = [" ".join(novel()[i : min(i + 1000, n_words)]) for i in range(0, n_words, 1000)]

    def run(device: str) -> Any:
        return lm.surprisal(texts, model_on(name, device), cache=False)

    return run, forward_passes(name, run)


def choices(name: str, n_items: int) -> tuple[Run, Limit]:
    """Log-probabilities of four choices of three words after a prompt of twelve."""
    words = novel()
    prompts = [" ".join(words[i : i + 12]) for i in range(0, 12 * n_items, 12)]
    ends = [[" ".join(words[i + j : i + j + 3]) for j in (12, 40, 60, 80)] for i in range(n_items)]
    asked = pd.DataFrame({"item_id": range(n_items), "prompt": prompts, "answer": 0})
    asked["choices"] = ends

    def run(device: str) -> Any:
        return lm.choice_logprobs(asked, model_on(name, device), cache=False)

    return run, forward_passes(name, run)


def items(model: str, n_persons: int, n_items: int) -> tuple[Run, Limit]:
    """A 2PL of simulated responses, or a 3PL of language models' answers to MMLU; with errors."""
    if model == "3PL":
        responses = corpora.metabench("mmlu").iloc[:n_persons, :n_items]
    else:
        responses = answers_of(n_persons, n_items)

    def run(device: str) -> Any:
        return irt.fit(responses, model, device=device)

    def limit(device: str, fit: Any, rates: dict[str, float]) -> dict[str, float]:
        # A step multiplies the responses by curves at the nodes, and with guessing the posteriors
        # by the responses; it reads each response once, in a byte.
        n_nodes = int(fit.quadrature.split()[0])
        products = 2 if model == "3PL" else 1
        operations = 2 * responses.size * n_nodes * products * fit.n_iterations
        return {
            "matrix products": operations / rates["float64"],
            "memory": responses.size * fit.n_iterations / rates["bytes"],
        }

    return run, limit


def crowd(kind: str, n_models: int, n_texts: int, width: int = 32) -> tuple[Run, Limit]:
    """An epoch of a crowd on texts of twelve words out of 2,000."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in row) for row in rng.integers(0, 2000, (n_texts, 12))]
    encoded = crowds.encode_texts(texts, min_count=1)
    labels = rng.integers(0, 2, n_texts)
    options: dict[str, Any] = {"n_models": n_models, "epochs": 1, "batch_size": 16, "size": width}

    def run(device: str) -> Any:
        return crowds.train(kind, encoded, labels, hidden=width, device=device, **options)

    def limit(device: str, trained: Any, rates: dict[str, float]) -> dict[str, float]:
        # LSTM: four gates of each word from its embedding and the state before, and the gradients
        # of weights and inputs. Both: a word's embedding and its two moments are read and written.
        n_words = 12 * n_texts * n_models
        operations = 3 * 2 * 4 * width * 2 * width * n_words if kind == "lstm" else 0
        return {
            "matrix products": operations / rates["float32"],
            "memory": 2 * 3 * 4 * width * n_words / rates["bytes"],
        }

    return run, limit


def sweep(measure_ms: str, n_readings: int, n_models: int) -> tuple[Run, Limit]:
    """Gains of language models' surprisal, in sample and held out, for ten people's readings."""
    noise = np.linspace(0.5, 8, n_models)
    made = reading.simulate(np.random.default_rng(1), n_words=n_readings // 10, noise_bits=noise)

    def run(device: str) -> Any:
        return reading.delta_loglik(made.readings, made.surprisals, measure_ms, device=device)

    def limit(device: str, table: Any, rates: dict[str, float]) -> dict[str, float]:
        # every surprisal is multiplied by every column of the design, at least one, and read once
        return {"memory": 8 * made.surprisals.size / rates["bytes"]}

    return run, limit


CELLS = "persons x items"
PAIRS = "models x texts"
MANY = 100_000
JOBS = {
    "surprisal, GPT-2's shape": Job(surprisal, "gpt2", (MANY,), (1_500,), (40,), "words"),
    "surprisal, bundled model": Job(surprisal, "bundled", (MANY,), (20_000,), (40,), "words"),
    "choices, GPT-2's shape": Job(choices, "gpt2", (2_000,), (30,), (2,), "items"),
    "2PL, many items": Job(items, "2PL", (1_000, 550_000), (1_000, 10_000), (60, 30), CELLS),
    "2PL, many persons": Job(items, "2PL", (5_000, MANY), (5_000, 2_000), (90, 12), CELLS),
    "3PL of MMLU": Job(items, "3PL", (4_278, 102), (4_278, 102), (1_000, 5), CELLS),
    "crowd of LSTMs": Job(crowd, "lstm", (1_000, 2_000), (20, 2_000), (2, 32), PAIRS),
    "crowd of bags": Job(crowd, "bag", (10_000, 2_000), (200, 2_000), (2, 32), PAIRS),
    "reading-time sweep": Job(
        sweep, "gaze_ms", (500_000, 1_000), (500_000, 100), (3_000, 2), "readings x models"
    ),
}


# How it is measured


def timed(run: Run, device: str) -> tuple[float, Any]:
    """Return the seconds that a job takes on a device, to its last number, and its result."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    wait()
    begin = time.perf_counter()
    result = run(device)
    wait()
    return time.perf_counter() - begin, result


def rates_of(device: str) -> dict[str, float]:
    """Return operations a second of matrix products, and bytes a second of a copy."""
    size = 4096 if device.startswith("cuda") else 512

    def fastest(run: Run) -> float:
        return min(timed(run, device)[0] for _ in range(5))

    rates = {}
    for name in ("float64", "float32"):
        matrix = torch.rand(size, size, dtype=getattr(torch, name), device=device)
        rates[name] = 2 * size**3 / fastest(lambda _device, matrix=matrix: matrix @ matrix)
    numbers = torch.ones(16 * size**2, device=device)  # a gigabyte on a GPU
    return rates | {"bytes": 2 * numbers.nbytes / fastest(lambda _device: numbers.clone())}


def measure_machine(device: str) -> Iterator[dict[str, Any]]:
    """Yield the names of processor, device and libraries, then the rates of both."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    versions = {module.__name__: module.__version__ for module in (np, pd, transformers)}
    yield {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "processor": (named or ["unknown"])[0],
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        **versions,
    }
    yield {"rates": rates_of(device), "cpu_rates": rates_of("cpu")}


def compare(name: str, work: Callable, device: str) -> Iterator[dict[str, Any]]:
    """Yield how far a device's numbers are from the CPU's, and whether that is near enough."""
    used.clear()
    largest = difference(work, device)
    yield {"difference": largest, "tolerance": tolerance(name), "agrees": largest < tolerance(name)}
    yield {"computed on": sorted({place for places in used.values() for place in places})}


def measure(job: Job, device: str, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Yield a job's seconds on the CPU and the device, then in full size, memory and limit."""
    torch.set_num_threads(THREADS)
    warm, _ = job.of_size("small")
    run, _ = job.of_size("on_cpu")
    yield {"cpu_size": job.size("on_cpu"), "unit": job.unit}
    for name, place in {"cpu_seconds": "cpu", "seconds_at_cpu_size": device}.items():
        if not SMALL:
            warm(place)  # imports, kernels, a network's way to the device
        yield {name: timed(run, place)[0]}
    run, limit = job.of_size("full")
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    seconds, result = timed(run, device)
    yield {"size": job.size("full"), "seconds": seconds}
    if device.startswith("cuda"):
        yield {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}
    yield {"limits": limit(device, result, rates)}


def profile(job: Job, device: str) -> Iterator[dict[str, Any]]:
    """Yield the ten operations of torch that take longest themselves."""
    run, _ = job.of_size("full")
    on_gpu = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiled:
        seconds, _ = timed(run, device)
    time_of = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    events = [(e.key, e.count, getattr(e, time_of) / 1e6) for e in profiled.key_averages()]
    yield {"seconds": seconds, "seconds_in_torch": sum(event[2] for event in events)}
    yield {"torch": sorted(events, key=lambda event: -event[2])[:10]}


# What is checked


def checks(device: str, found: Found) -> Iterator[tuple[str, int, Check]]:
    """Yield name, seconds that it may take, and work of every check."""
    yield "machine", 60, partial(measure_machine, device)
    for name, case in paths():
        yield f"agrees: {name}", 30, partial(compare, name, case, device)
    rates = found["machine"].get("rates", {})
    for name, job in JOBS.items():
        yield f"speed: {name}", 75, partial(measure, job, device, rates)
    for name in slowest_beside_limit(found):
        yield f"profile: {name}", 75, partial(profile, JOBS[name], device)


def slowest_beside_limit(found: Found) -> list[str]:
    """Return the jobs that take the most times their limit."""
    times = {
        key.removeprefix("speed: "): row["seconds"] / max(row["limits"].values())
        for key, row in found.items()
        if key.startswith("speed: ") and "limits" in row
    }
    return sorted(times, key=lambda name: -times[name])[:PROFILED]
