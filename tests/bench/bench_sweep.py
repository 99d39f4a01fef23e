"""A sweep over language models with Dundee's 500,000 readings, and fits to 2,000 people, beside R's
bam(discrete=TRUE).

Everything from the frame to the table of gains is timed. Three bam fits (one per measure) are timed
with their columns already in R; their time is scaled to the number of fits that the sweep makes.
The linear model of 2,000 people is also fitted by lme4 where R has it.
"""

import os
import time

import numpy as np
import pandas as pd
import pytest
import torch

from psychlm import data
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.reading_times import mgcv

MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
N_WORDS, N_SUBJECTS = int(os.environ.get("BENCH_WORDS", 50_000)), 10


def simulated(n_models, n_words=N_WORDS):
    noise = np.linspace(0.5, 8, n_models)
    return reading.simulate(
        np.random.default_rng(1), n_words=n_words, n_subjects=N_SUBJECTS, noise_bits=noise
    )


@pytest.fixture(scope="module")
def seconds_a_bam_fit():
    try:
        mgcv.version()
    except mgcv.RMissingError as error:
        pytest.skip(str(error))
    data = simulated(1)
    words = data.surprisals.rename(columns={"model-001": "bits"}).assign(word="w")
    bits = corpora.add_lags(words, ["bits"])[["text_id", "word_id", "bits", "prev_bits"]]
    frame = corpora.join(data.readings, bits)
    terms = f"bits + prev_bits + {reading.BASELINE}"
    begin = time.perf_counter()
    for measure in MEASURES:
        reading.fit(frame, f"{measure} ~ {terms}", backend="mgcv", discrete=True)
    return (time.perf_counter() - begin) / len(MEASURES)


def run(benchmark, n_models, device, folds=None):
    data = simulated(n_models)
    reading.delta_loglik(
        data.readings, data.surprisals, "gaze_ms", folds=None, models=["model-001"], device=device
    )
    before = time.process_time()
    table = benchmark.pedantic(
        reading.delta_loglik,
        args=(data.readings, data.surprisals, MEASURES),
        kwargs={"folds": folds, "device": device},
        rounds=1,
    )
    assert table["converged"].all()
    assert len(table) == n_models * len(MEASURES)
    benchmark.extra_info |= {
        "fits": len(table),
        "readings": len(data.readings),
        "cpu_seconds": time.process_time() - before,
        "load": os.getloadavg()[0],
    }
    return benchmark.stats.stats.mean


@pytest.mark.parametrize("n_models", [30, 1000])
def test_sweep_beside_bam(benchmark, seconds_a_bam_fit, n_models):
    taken = run(benchmark, n_models, "cpu")
    fits = n_models * len(MEASURES)
    benchmark.extra_info |= {
        "seconds_a_bam_fit": seconds_a_bam_fit,
        "times faster than bam": seconds_a_bam_fit * fits / taken,
    }


def test_sweep_with_heldout_gains(benchmark):
    run(benchmark, 30, "cpu", folds=10)


@pytest.mark.benchmark(group="one fit")
@pytest.mark.parametrize("backend", ["native", "pygam_native", "bam_native"])
def test_one_fit(benchmark, backend):
    """Four smooths and 50,000 readings, without random effects, which pygam does not have."""
    frame = simulated(1, n_words=5000).readings
    terms = "s(length_chars) + s(log_frequency) + s(prev_length_chars) + s(position)"
    options = {"bam_native": {"backend": "mgcv", "discrete": True}}
    options |= {"native": {}, "pygam_native": {"backend": "pygam"}}
    call = {"args": (frame, f"gaze_ms ~ {terms}"), "kwargs": options[backend]}
    found = benchmark.pedantic(
        reading.fit, **call, rounds=1, warmup_rounds=backend != "pygam_native"
    )
    benchmark.extra_info |= {"readings": len(frame), "edf": found.edf}


@pytest.fixture(scope="module")
def two_thousand():
    """184,000 self-paced reading times of 2,000 people (Huang et al. 2024)."""
    readings, words = (data.facts(f"sap2024/{name}") for name in ("readings", "sentences"))
    words["length"] = words["word_shape"].str.len()
    frame = readings.merge(words, on=["sentence_id", "word_position"])
    return frame.query("100 < self_paced_ms < 3000").astype({"item": str})


SMOOTH = "s(length, k=6) + s(trial)"


@pytest.mark.benchmark(group="two thousand readers")
@pytest.mark.parametrize("fit", ["intercepts", "slopes", "bam_intercepts"])
def test_two_thousand_readers(benchmark, two_thousand, fit):
    terms = SMOOTH + ' + s(participant, bs="re") + s(item, bs="re")'
    if fit == "slopes":
        terms += ' + s(participant, length, bs="re") + s(item, length, bs="re")'
    options = {"backend": "mgcv", "discrete": True} if fit.startswith("bam") else {}
    before, rounds = time.process_time(), 1 if options else 3
    found = benchmark.pedantic(
        reading.fit,
        args=(two_thousand, f"self_paced_ms ~ {terms}"),
        kwargs=options,
        rounds=rounds,
    )
    benchmark.extra_info |= {
        "readings": len(two_thousand),
        "loglik": found.loglik,
        "edf": found.edf,
        "cpu_seconds": (time.process_time() - before) / rounds,
        "load": os.getloadavg()[0],
    }
    assert found.converged


@pytest.mark.benchmark(group="two thousand readers, linear")
@pytest.mark.parametrize("program", ["native", "lme4_native"])
def test_linear_mixed_model(benchmark, two_thousand, program):
    """Linear effects of length and trial, and random intercepts, beside lme4 by REML."""
    if program == "native":
        terms = 'length + trial + s(participant, bs="re") + s(item, bs="re")'
        call = {"args": (two_thousand, f"self_paced_ms ~ {terms}")}
        found = benchmark.pedantic(reading.fit, **call, rounds=3)
        benchmark.extra_info["slope"] = float(found.coefficients.loc["length", "estimate"])
        return
    pytest.importorskip("rpy2.robjects", reason="rpy2 is not installed")
    from rpy2 import robjects
    from rpy2.robjects import packages

    if not packages.isinstalled("lme4"):
        pytest.skip("R has no lme4 here: apt-get install r-cran-lme4")
    numbers = [two_thousand[name].astype(float) for name in ("self_paced_ms", "length", "trial")]
    vectors = [robjects.FloatVector(values.to_numpy()) for values in numbers]
    vectors += [robjects.StrVector(two_thousand[name].tolist()) for name in ("participant", "item")]
    lmer = robjects.r(
        "function(y, length, trial, person, item)"
        " lme4::fixef(lme4::lmer(y ~ length + trial + (1 | person) + (1 | item)))"
    )
    slopes = benchmark.pedantic(lmer, tuple(vectors), rounds=1)
    benchmark.extra_info["slope"] = float(slopes[1])


@pytest.mark.benchmark(group="two thousand readers, models added")
@pytest.mark.parametrize("n_models", [3, 1000])
def test_sweep_over_two_thousand_readers(benchmark, two_thousand, n_models):
    """GPT-2's surprisals with more and more noise stand for so many language models."""
    ids = {"sentence_id": "text_id", "word_position": "word_id", "participant": "subject"}
    frame = two_thousand.rename(columns=ids)
    frame["gpt2_bits"] = pd.to_numeric(frame["gpt2_bits"], errors="coerce")
    frame = frame.dropna(subset="gpt2_bits").astype({"text_id": str})
    words = frame.groupby(["text_id", "word_id"], as_index=False)["gpt2_bits"].first()
    noise = np.random.default_rng(0).normal(size=(len(words), n_models))
    bits = words["gpt2_bits"].to_numpy()[:, None] + noise * np.linspace(0, 4, n_models)
    names = [f"model-{i:04d}" for i in range(n_models)]
    surprisals = words[["text_id", "word_id"]].join(pd.DataFrame(bits, columns=names))
    readings = frame[["text_id", "word_id", "subject", "item", "self_paced_ms", "length", "trial"]]
    terms = SMOOTH + ' + s(subject, bs="re") + s(item, bs="re")'
    before = time.process_time()
    table = benchmark.pedantic(
        reading.delta_loglik,
        args=(readings, surprisals, "self_paced_ms", terms),
        kwargs={"lags": 0, "folds": None, "device": "cpu"},
        rounds=1,
    )
    assert table["converged"].all()
    benchmark.extra_info |= {
        "fits": n_models,
        "readings": len(readings),
        "cpu_seconds": time.process_time() - before,
        "load": os.getloadavg()[0],
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("n_models", [30, 1000])
def test_sweep_on_a_gpu(benchmark, n_models):
    run(benchmark, n_models, "cuda")
