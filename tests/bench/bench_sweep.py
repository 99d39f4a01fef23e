"""A sweep over language models with Dundee's 500,000 readings, and fits to 2,000 people, beside R's
bam(discrete=TRUE).

Everything from the frame to the table of gains is timed. Three bam fits (one per measure) are timed
with their columns already in R; their time is scaled to the number of fits that the sweep makes.
The linear model of 2,000 people is also fitted by lme4 where R has it. Times are wall times.
"""

import time

import numpy as np
import pandas as pd
import pytest
from benchmarks import measure, of_group, r_function, scale

from psychlm import data
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.reading_times import mgcv

MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
N_WORDS = int(50_000 * scale())
BAM = {"backend": "mgcv", "discrete": True}
SMOOTH = "s(length, k=6) + s(trial)"


def simulated(n_models, n_words=N_WORDS):
    noise = np.linspace(0.5, 8, n_models)
    return reading.simulate(np.random.default_rng(1), n_words=n_words, noise_bits=noise)


def wall_time(group):
    return of_group(group, timer=time.perf_counter)


@pytest.fixture(scope="module")
def seconds_a_bam_fit():
    try:
        mgcv.version()
    except mgcv.RMissingError as error:
        pytest.skip(str(error))
    made = simulated(1)
    words = made.surprisals.rename(columns={"model-001": "bits"}).assign(word="w")
    bits = corpora.add_lags(words, ["bits"])[["text_id", "word_id", "bits", "prev_bits"]]
    frame = corpora.join(made.readings, bits)
    begin = time.perf_counter()
    for name in MEASURES:
        reading.fit(frame, f"{name} ~ bits + prev_bits + {reading.BASELINE}", **BAM)
    return (time.perf_counter() - begin) / len(MEASURES)


def run(benchmark, n_models, folds=None):
    made, options = simulated(n_models), {"folds": folds, "device": "cpu"}
    frames = made.readings, made.surprisals
    reading.delta_loglik(*frames, "gaze_ms", models=["model-001"], **options | {"folds": None})
    amounts = {"fits": n_models * len(MEASURES), "readings": len(made.readings)}
    table = measure(
        benchmark, lambda: reading.delta_loglik(*frames, MEASURES, **options), **amounts
    )
    assert table["converged"].all() and len(table) == amounts["fits"]


@pytest.mark.parametrize("n_models", [30, 1000])
def test_sweep_beside_bam(benchmark, seconds_a_bam_fit, n_models):
    run(benchmark, n_models)
    of_bam = seconds_a_bam_fit * n_models * len(MEASURES)
    benchmark.extra_info |= {
        "seconds_a_bam_fit": seconds_a_bam_fit,
        "times faster than bam": of_bam / benchmark.stats["mean"],
    }


def test_sweep_with_heldout_gains(benchmark):
    run(benchmark, 30, folds=10)


@wall_time("one fit")
@pytest.mark.parametrize("backend", ["native", "pygam_native", "bam_native"])
def test_one_fit(benchmark, backend):
    """Four smooths and 50,000 readings, without random effects, which pygam does not have."""
    frame = simulated(1, n_words=5000).readings
    formula = "gaze_ms ~ s(length_chars) + s(log_frequency) + s(prev_length_chars) + s(position)"
    options = {"bam_native": BAM, "native": {}, "pygam_native": {"backend": "pygam"}}[backend]
    warm = {"warmup_rounds": int(backend != "pygam_native"), "readings": len(frame)}
    found = measure(benchmark, lambda: reading.fit(frame, formula, **options), **warm)
    benchmark.extra_info["edf"] = found.edf


@pytest.fixture(scope="module")
def two_thousand():
    """184,000 self-paced reading times of 2,000 people (Huang et al. 2024)."""
    readings, words = (data.facts(f"sap2024/{name}") for name in ("readings", "sentences"))
    words["length"] = words["word"].str.len()
    frame = readings.merge(words, on=["sentence_id", "word_position"])
    return frame.query("100 < self_paced_ms < 3000").astype({"item": str})


@wall_time("two thousand readers")
@pytest.mark.parametrize("fit", ["intercepts", "slopes", "bam_intercepts"])
def test_two_thousand_readers(benchmark, two_thousand, fit):
    formula = f'self_paced_ms ~ {SMOOTH} + s(participant, bs="re") + s(item, bs="re")'
    if fit == "slopes":
        formula += ' + s(participant, length, bs="re") + s(item, length, bs="re")'
    options = BAM if fit.startswith("bam") else {}

    def fitted():
        return reading.fit(two_thousand, formula, **options)

    found = measure(benchmark, fitted, rounds=1 if options else 3, readings=len(two_thousand))
    benchmark.extra_info |= {"loglik": found.loglik, "edf": found.edf}
    assert found.converged


@wall_time("two thousand readers, linear")
@pytest.mark.parametrize("program", ["native", "lme4_native"])
def test_linear_mixed_model(benchmark, two_thousand, program):
    """Linear effects of length and trial, and random intercepts, beside lme4 by REML."""
    if program == "native":
        terms = 'length + trial + s(participant, bs="re") + s(item, bs="re")'
        formula = f"self_paced_ms ~ {terms}"
        found = measure(benchmark, lambda: reading.fit(two_thousand, formula), rounds=3)
        benchmark.extra_info["slope"] = float(found.coefficients.loc["length", "estimate"])
        return
    terms = "y ~ length + trial + (1 | person) + (1 | item)"
    lmer = r_function(
        "lme4",
        f"function(y, length, trial, person, item) lme4::fixef(lme4::lmer({terms}))",
    )
    from rpy2 import robjects

    numbers = two_thousand[["self_paced_ms", "length", "trial"]].astype(float)
    vectors = [robjects.FloatVector(numbers[name].to_numpy()) for name in numbers]
    vectors += [robjects.StrVector(two_thousand[name].tolist()) for name in ("participant", "item")]
    benchmark.extra_info["slope"] = float(measure(benchmark, lambda: lmer(*vectors))[1])


@wall_time("two thousand readers, models added")
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
    options = {"lags": 0, "folds": None, "device": "cpu"}

    def gains():
        return reading.delta_loglik(readings, surprisals, "self_paced_ms", terms, **options)

    table = measure(benchmark, gains, fits=n_models, readings=len(readings))
    assert table["converged"].all()
