"""What benchmarks share: how a call is timed, jobs of any size, networks with random weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from psychlm import crowds, lm
from psychlm import reading_times as reading

if TYPE_CHECKING:
    import pytest

WORDS = ["the", "a", "old", "man", "boat", "girl", "letter", "saw", "found", "near", "and", "house"]


def scale(usual: str = "1") -> float:
    """Return what ``PSYCHLM_BENCH_SCALE`` multiplies sizes by."""
    return float(os.environ.get("PSYCHLM_BENCH_SCALE", usual))


def of_group(name: str, timer: Callable[[], float] = time.process_time) -> pytest.MarkDecorator:
    """Return the mark of a benchmark: rows that are compared, in processor seconds unless given.

    Other work on the machine does not change these. A mark on a test replaces that of its module.
    """
    import pytest  # here, since a machine with a GPU may lack it

    return pytest.mark.benchmark(group=name, timer=timer, warmup=False, disable_gc=True)


def measure(
    benchmark: Any, call: Callable, *, rounds: int = 1, warmup_rounds: int = 0, **amounts: Any
) -> Any:
    """Time a call; keep amounts of its work, its processor seconds and the machine's load."""
    before = time.process_time()
    result = benchmark.pedantic(call, rounds=rounds, iterations=1, warmup_rounds=warmup_rounds)
    used = (time.process_time() - before) / (rounds + warmup_rounds)
    benchmark.extra_info |= {"cpu_seconds": used, "load": os.getloadavg()[0], **amounts}
    return result


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mb(kind: str) -> float:
    """Return the resident memory, ``VmRSS``, or its peak since it was forgotten, ``VmHWM``.

    ``ru_maxrss`` of a child process is at least the memory of the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def r_function(package: str, code: str) -> Callable:
    """Return a function of R that needs a package; skip the benchmark where R lacks it."""
    import pytest

    robjects = pytest.importorskip("rpy2.robjects", reason="rpy2 is not installed")
    if not pytest.importorskip("rpy2.robjects.packages").isinstalled(package):
        pytest.skip(f"R has no {package} here: install.packages('{package}')")
    return robjects.r(code)


def texts_of(rng: np.random.Generator, n_texts: int, n_words: int) -> list[str]:
    """Return texts of words that the small model knows."""
    return [" ".join(row) for row in rng.choice(WORDS, (n_texts, n_words))]


def answers_of(n_persons: int, n_items: int, sd_log_slope: float = 0.5) -> np.ndarray:
    """Draw a uint8 matrix row by row: 550,000 items take 0.5 GB, where a frame would take 4.4."""
    rng = np.random.default_rng(n_items)
    slope, difficulty = rng.lognormal(0, sd_log_slope, n_items), rng.normal(size=n_items)
    matrix = np.empty((n_persons, n_items), np.uint8)
    for row, theta in zip(matrix, rng.normal(size=n_persons), strict=True):
        row[:] = rng.random(n_items) < 1 / (1 + np.exp(-slope * (theta - difficulty)))
    share = matrix.mean(axis=0)
    return np.ascontiguousarray(matrix[:, (share > 0) & (share < 1)])


def train_lstms(n_models: int, n_texts: int, **options: Any) -> None:
    """Train LSTMs of 32 states on texts of 12 words."""
    rng = np.random.default_rng(0)
    encoded, labels = crowds.encode_texts(texts_of(rng, n_texts, 12)), rng.integers(0, 2, n_texts)
    options |= {"n_models": n_models, "device": "cpu"}
    crowds.train_crowd("lstm", encoded, labels, encoded, labels, **options)


def sweep(n_words: int, n_models: int, n_texts: int = 20, **options: Any) -> None:
    """Fit an additive model of ten people's readings for each of some language models."""
    sizes = {"n_words": n_words, "n_texts": n_texts, "noise_bits": np.linspace(0.5, 8, n_models)}
    made = reading.simulate(np.random.default_rng(1), **sizes)
    reading.delta_loglik(made.readings, made.surprisals, "gaze_ms", **options)


def wordpiece(texts: Iterable[str], vocabulary: int = 8000) -> PreTrainedTokenizerFast:
    """Return BERT's kind of tokenizer, trained on texts."""
    return BertTokenizerFast(model_max_length=512).train_new_from_iterator(texts, vocabulary)


def minilm(head: type[PreTrainedModel], tokenizer: Sized, **options: Any) -> PreTrainedModel:
    """Return an encoder of all-MiniLM-L6-v2's size under one of transformers' heads."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
    options |= {"vocab_size": len(tokenizer), "num_attention_heads": 12}
    return head(BertConfig(**sizes, **options)).eval()


def gpt2(texts: Iterable[str], vocabulary: int, **sizes: int) -> lm.LanguageModel:
    """Return a GPT-2 whose tokenizer is trained on texts; of its small size unless given."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    untrained = GPT2TokenizerFast(pad_token="<|endoftext|>", model_max_length=1024)
    tokenizer = untrained.train_new_from_iterator(texts, vocabulary)
    sizes = {"vocab_size": len(tokenizer)} | sizes
    config = GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    return lm.wrap(GPT2LMHeadModel(config), tokenizer, name="random gpt2")
