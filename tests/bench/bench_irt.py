"""Time and peak memory of 2PL and 3PL estimation, from test scale to machine-learning scale.

Installed peers (mirt, girth) fit the same responses, which are simulated with lognormal slopes and
abilities from N(0, 1). All estimates are compared by the exact marginal log-likelihood, integrated
per person on a grid far finer than any posterior (``exact_loglik``). Times are processor seconds of
one thread. Standard errors of 100,000 items are the difference of ``1000x100000-with-errors`` and
``-estimates``. ``PSYCHLM_BENCH_LARGE=1`` adds 550,000 items.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import answers_of, measure, of_group, r_function

from psychlm import corpora, data, irt, simulate
from psychlm.irt.likelihood import integrate, node_loglik, quadrature_grid
from psychlm.irt.response_functions import Logistic
from psychlm.irt.response_matrix import encode_responses

LSAT7 = Path(__file__).parents[1] / "reference" / "irt" / "data_LSAT7.csv"
MIRT_SIZES = [(1000, 50), (1000, 1000), (200, 10_000)]  # Python's mirt needs more memory beyond
LARGE_SIZES = [(1000, 550_000)] if os.environ.get("PSYCHLM_BENCH_LARGE") else []
SIZES = [*MIRT_SIZES, (1000, 100_000), *LARGE_SIZES]
GIRTH_SIZES = SIZES[:1]  # it takes ten minutes for the next one
R_SIZES = SIZES[:2]  # R's mirt fails on more items than it can integrate over
GUESSED = ["LSAT7", "lalor2016 entailment", "lalor2018", "simulated 1000x50", "simulated 5000x100"]
SHARED = [
    pytest.param(name, marks=pytest.mark.needs_share)
    for name in ("comprehenotes", "mmlu", "winogrande")
]

pytestmark = [pytest.mark.usefixtures("one_thread"), of_group("2PL")]


def of_sizes(sizes):
    return pytest.mark.parametrize("size", sizes, ids=lambda size: f"{size[0]}x{size[1]}")


def compare(benchmark, matrix, estimate):
    """Time an estimation that returns slopes, intercepts, guessing, and what else is kept."""
    rounds = 5 if matrix.size <= 10**6 else 1
    slope, intercept, guessing, more = measure(benchmark, lambda: estimate(matrix), rounds=rounds)
    guessing = np.zeros(len(slope)) if guessing is None else guessing
    read = encode_responses(matrix, torch.device("cpu"))
    at = Logistic(torch.tensor(np.array([slope, intercept, guessing], float)))
    on = quadrature_grid(step=0.025, refinement=8, span=8)
    loglik = float(integrate(node_loglik(read, at, on.nodes), on).loglik @ read.count)
    sizes = {"n_persons": matrix.shape[0], "n_items": matrix.shape[1]}
    benchmark.extra_info |= sizes | {"exact_loglik": loglik} | more


def of_psychlm(model, standard_errors=False):
    def estimate(matrix):
        fit = irt.fit(matrix, model, standard_errors=standard_errors, device="cpu")
        if standard_errors:  # a failure is fast
            assert fit.items["se_b"].notna().mean() > 0.99
        reached = {"loglik": fit.loglik, "converged": fit.converged}
        reached |= {"n_iterations": fit.n_iterations}
        reached |= {"items_converged": int(fit.items["converged"].sum())}
        return fit.items["a"], fit.items["d"], fit.items["c"] if model == "3PL" else None, reached

    return estimate


def of_python_mirt(model):
    mirt = pytest.importorskip("mirt", reason="Python's mirt is not installed: pip install mirt")

    def estimate(matrix):
        options = {"n_quadpts": 61, "compute_standard_errors": False}
        fit = mirt.fit_mirt(matrix.astype(int), model, **options)
        found, reached = fit.model.parameters, {"loglik": fit.log_likelihood}
        reached |= {"converged": bool(fit.converged)}
        slope, guessing = found["discrimination"], found["guessing"] if model == "3PL" else None
        return slope, -slope * found["difficulty"], guessing, reached

    return estimate


@pytest.mark.parametrize("standard_errors", [False, True], ids=["estimates", "with-errors"])
@of_sizes(SIZES)
def test_psychlm(benchmark, size, standard_errors):
    compare(benchmark, answers_of(*size), of_psychlm("2PL", standard_errors))


@of_sizes(GIRTH_SIZES)
def test_girth(benchmark, size):
    girth = pytest.importorskip("girth", reason="girth is not installed: pip install girth")

    def estimate(matrix):
        found = girth.twopl_mml(matrix.T.astype(int))
        slope = np.asarray(found["Discrimination"], float)
        return slope, -slope * np.asarray(found["Difficulty"], float), None, {}

    compare(benchmark, answers_of(*size), estimate)


@of_sizes(MIRT_SIZES)
def test_python_mirt(benchmark, size):
    compare(benchmark, answers_of(*size), of_python_mirt("2PL"))


@of_sizes(R_SIZES)
def test_r_mirt(benchmark, size):
    robjects = pytest.importorskip("rpy2.robjects", reason="rpy2 is not installed")
    fitted = "mirt::mirt(as.data.frame(matrix(x, n)), 1, verbose = FALSE)"
    fit = r_function("mirt", f"function(x, n) coef({fitted}, simplify = TRUE)$items")
    matrix = answers_of(*size)
    flat = robjects.IntVector(matrix.T.ravel().tolist())

    def estimate(matrix):
        found = np.array(fit(flat, len(matrix))).reshape(matrix.shape[1], -1, order="F")
        return found[:, 0].copy(), found[:, 1].copy(), None, {}

    compare(benchmark, matrix, estimate)


def guessed_answers(name):
    """Return the graded answers of a set for the 3PL as a uint8 matrix, 255 where not asked."""
    kind, _, which = name.partition(" ")
    if kind == "LSAT7":
        frame = pd.read_csv(LSAT7)
    elif kind == "comprehenotes":
        frame = corpora.comprehenotes()
    elif kind == "lalor2016":
        frame = corpora.lalor2016(5).items_keyed(which)
    elif kind == "lalor2018":  # its likelihood has many local maxima
        frame = corpora.lalor2018().graded
    elif kind == "simulated":
        n_persons, n_items = map(int, which.split("x"))
        rng = np.random.default_rng(n_items)
        items = simulate.items(n_items, rng, "3PL")
        frame = simulate.responses(rng.normal(size=n_persons), items, rng)
    else:
        frame = pd.read_parquet(data.path(f"metabench/{name}")).set_index("model")
    return frame.fillna(255).to_numpy().astype(np.uint8)


@of_group("3PL")
@pytest.mark.parametrize("name", GUESSED + SHARED)
def test_psychlm_3pl(benchmark, name):
    compare(benchmark, guessed_answers(name), of_psychlm("3PL"))


@of_group("3PL")
@pytest.mark.parametrize("name", GUESSED)
def test_python_mirt_3pl(benchmark, name):
    compare(benchmark, guessed_answers(name), of_python_mirt("3PL"))


@of_group("scoring")
@pytest.mark.parametrize("method", ["eap", "ml"])
def test_scores_of_100000_persons(benchmark, method):
    answers = pd.DataFrame(answers_of(100_000, 1000)).rename(columns=str)
    slopes = np.random.default_rng(0).lognormal(0, 0.3, answers.shape[1])
    items = pd.DataFrame({"a": slopes, "b": 0.0}, index=answers.columns)
    sizes = {"n_persons": len(answers), "n_items": answers.shape[1]}
    measure(benchmark, lambda: irt.score(items, answers, method), **sizes)
