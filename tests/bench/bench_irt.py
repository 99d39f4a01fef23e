"""Time and peak memory of 2PL and 3PL estimation, from test scale to machine-learning scale.

Installed peers (mirt, girth) fit the same responses, which are simulated with lognormal slopes and
abilities from N(0, 1). All estimates are compared by the exact marginal log-likelihood, integrated
per person on a grid far finer than any posterior; ``extra_info`` holds it with the machine. Times
are processor seconds of one thread, which other work on the machine does not change, or wall times
on a GPU. Standard errors of 100,000 items are the difference of ``1000x100000-with-errors`` and
``-estimates``. ``PSYCHLM_BENCH_LARGE=1`` adds 550,000 items.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from psychlm import corpora, data, irt, simulate
from psychlm.irt.likelihood import Parameters, integrate, node_loglik, quadrature_grid
from psychlm.irt.response_matrix import encode_responses

REFERENCE = Path(__file__).parents[1] / "reference"
MIRT_SIZES = [(1000, 50), (1000, 1000), (200, 10_000)]  # Python's mirt needs more memory beyond
LARGE_SIZES = [(1000, 550_000)] if os.environ.get("PSYCHLM_BENCH_LARGE") else []
SIZES = [*MIRT_SIZES, (1000, 100_000), *LARGE_SIZES]
GIRTH_SIZES = SIZES[:1]  # it takes ten minutes for the next one
R_SIZES = SIZES[:2]  # R's mirt fails on more items than it can integrate over
ON_GPU = torch.cuda.is_available()

# A mark on a test replaces that of the module, so both name all options.
OPTIONS: dict = {"timer": time.perf_counter if ON_GPU else time.process_time}
OPTIONS |= {"warmup": False, "disable_gc": True}

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.benchmark(**OPTIONS, group="2PL"),
]


def answers_of(n_persons, n_items):
    """Draw a uint8 matrix row by row: 550,000 items take 0.5 GB, where a frame would take 4.4."""
    rng = np.random.default_rng(n_items)
    slope, difficulty = rng.lognormal(0, 0.5, n_items), rng.normal(size=n_items)
    matrix = np.empty((n_persons, n_items), np.uint8)
    for row, theta in zip(matrix, rng.normal(size=n_persons), strict=True):
        row[:] = rng.random(n_items) < 1 / (1 + np.exp(-slope * (theta - difficulty)))
    share = matrix.mean(axis=0)
    return np.ascontiguousarray(matrix[:, (share > 0) & (share < 1)])


def exact_loglik(matrix, slope, intercept, guessing=None):
    read = encode_responses(matrix, torch.device("cpu"))
    guessing = np.zeros(len(slope)) if guessing is None else guessing
    at = Parameters(*(torch.tensor(np.array(x, float)) for x in (slope, intercept, guessing)))
    on = quadrature_grid(step=0.025, refinement=8, span=8)
    return float(integrate(node_loglik(read, at, on.nodes), on).loglik @ read.count)


def record(benchmark, matrix, slope, intercept, guessing=None, **more):
    benchmark.extra_info |= {
        "n_persons": matrix.shape[0],
        "n_items": matrix.shape[1],
        "exact_loglik": exact_loglik(matrix, slope, intercept, guessing),
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if ON_GPU else None,
        **more,
    }


@pytest.mark.parametrize("standard_errors", [False, True], ids=["estimates", "with-errors"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_psychlm(benchmark, size, standard_errors):
    matrix = answers_of(*size)
    rounds = 5 if matrix.size < 10**7 else 1
    fit = benchmark.pedantic(
        irt.fit,
        (matrix, "2PL"),
        {"standard_errors": standard_errors, "device": "cpu"},
        rounds=rounds,
    )
    reached = {"n_iterations": fit.n_iterations, "converged": fit.converged}
    record(benchmark, matrix, fit.items["a"], fit.items["d"], loglik=fit.loglik, **reached)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_psychlm_on_a_gpu(benchmark):
    matrix = answers_of(1000, 550_000)
    fit = benchmark.pedantic(
        irt.fit, (matrix, "2PL"), {"standard_errors": False, "device": "cuda"}, rounds=1
    )
    record(benchmark, matrix, fit.items["a"], fit.items["d"], loglik=fit.loglik)


@pytest.mark.parametrize("size", GIRTH_SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_girth(benchmark, size):
    girth = pytest.importorskip("girth", reason="girth is not installed: pip install girth")
    matrix = answers_of(*size)
    found = benchmark.pedantic(girth.twopl_mml, (matrix.T.astype(int),), rounds=1)
    slope = np.asarray(found["Discrimination"], float)
    record(benchmark, matrix, slope, -slope * np.asarray(found["Difficulty"], float))


@pytest.mark.parametrize("size", MIRT_SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_python_mirt(benchmark, size):
    mirt = pytest.importorskip("mirt", reason="Python's mirt is not installed: pip install mirt")
    matrix = answers_of(*size)
    options = {"n_quadpts": 61, "compute_standard_errors": False}
    fit = benchmark.pedantic(mirt.fit_mirt, (matrix.astype(int), "2PL"), options, rounds=1)
    slope, difficulty = (fit.model.parameters[name] for name in ("discrimination", "difficulty"))
    reached = {"loglik": fit.log_likelihood, "converged": bool(fit.converged)}
    record(benchmark, matrix, slope, -slope * difficulty, **reached)


@pytest.mark.parametrize("size", R_SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_r_mirt(benchmark, size):
    robjects = pytest.importorskip("rpy2.robjects", reason="rpy2 is not installed")
    packages = pytest.importorskip("rpy2.robjects.packages")
    if not packages.isinstalled("mirt"):
        pytest.skip("R has no mirt here: install.packages('mirt')")
    matrix = answers_of(*size)
    flat = robjects.IntVector(matrix.T.ravel().tolist())
    call = robjects.r(
        "function(x, n) coef(mirt::mirt(as.data.frame(matrix(x, n)), 1, verbose = FALSE), "
        "simplify = TRUE)$items"
    )
    found = np.array(benchmark.pedantic(call, (flat, len(matrix)), rounds=1)).reshape(
        matrix.shape[1], -1, order="F"
    )
    record(benchmark, matrix, np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1]))


def guessed_answers(name):
    """Return the graded answers of a set for the 3PL as a uint8 matrix, 255 where not asked."""
    if name == "LSAT7":
        frame = pd.read_csv(REFERENCE / "irt" / "data_LSAT7.csv")
    elif name == "comprehenotes":
        frame = corpora.comprehenotes()
    elif name.startswith("lalor2016"):
        frame = corpora.lalor2016(5).items_keyed(name.split()[1])
    elif name.startswith("simulated"):
        n_persons, n_items = map(int, name.split()[1].split("x"))
        rng = np.random.default_rng(n_items)
        items = simulate.items(n_items, rng, "3PL")
        frame = simulate.responses(rng.normal(size=n_persons), items, rng)
    else:
        frame = pd.read_parquet(data.path(f"metabench/{name}")).set_index("model")
    return frame.fillna(255).to_numpy().astype(np.uint8)


GUESSED = ["LSAT7", "lalor2016 entailment", "simulated 1000x50", "simulated 5000x100"]
SHARED = ["comprehenotes", "mmlu", "winogrande"]


@pytest.mark.benchmark(**OPTIONS, group="3PL")
@pytest.mark.parametrize(
    "name", GUESSED + [pytest.param(name, marks=pytest.mark.needs_share) for name in SHARED]
)
def test_psychlm_3pl(benchmark, name):
    matrix = guessed_answers(name)
    fit = benchmark.pedantic(
        irt.fit, (matrix, "3PL"), {"standard_errors": False, "device": "cpu"}, rounds=1
    )
    converged = {"loglik": fit.loglik, "items_converged": int(fit.items["converged"].sum())}
    record(benchmark, matrix, fit.items["a"], fit.items["d"], fit.items["c"], **converged)


@pytest.mark.benchmark(**OPTIONS, group="3PL")
@pytest.mark.parametrize("name", GUESSED)
def test_python_mirt_3pl(benchmark, name):
    mirt = pytest.importorskip("mirt", reason="Python's mirt is not installed: pip install mirt")
    matrix = guessed_answers(name)
    options = {"n_quadpts": 61, "compute_standard_errors": False}
    fit = benchmark.pedantic(mirt.fit_mirt, (matrix.astype(int), "3PL"), options, rounds=1)
    slope, difficulty, guessing = (
        fit.model.parameters[key] for key in ("discrimination", "difficulty", "guessing")
    )
    record(benchmark, matrix, slope, -slope * difficulty, guessing, loglik=fit.log_likelihood)


@pytest.mark.benchmark(**OPTIONS, group="scoring")
@pytest.mark.parametrize("method", ["eap", "ml"])
def test_scores_of_100000_persons(benchmark, method):
    answers = pd.DataFrame(answers_of(100_000, 1000)).rename(columns=str)
    slopes = np.random.default_rng(0).lognormal(0, 0.3, answers.shape[1])
    items = pd.DataFrame({"a": slopes, "b": 0.0}, index=answers.columns)
    benchmark.pedantic(irt.score, (items, answers, method), rounds=1)
    benchmark.extra_info |= {"n_persons": len(answers), "n_items": answers.shape[1]}


@pytest.mark.benchmark(group="a first fit in a new process", timer=time.perf_counter)
def test_cold_process(benchmark, tmp_path, own_environment):
    pd.DataFrame(answers_of(1000, 50)).rename(columns=str).to_parquet(tmp_path / "answers.parquet")
    code = """
import sys, pandas
from psychlm import irt
irt.fit(pandas.read_parquet(sys.argv[1]), "2PL")
"""
    command = [sys.executable, "-c", code, str(tmp_path / "answers.parquet")]
    options = {"check": True, "env": own_environment}
    benchmark.pedantic(subprocess.run, (command,), options, rounds=3)
