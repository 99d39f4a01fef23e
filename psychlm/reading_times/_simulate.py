"""Reading times from a known model, at any size: for tests of recovery, power and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.corpora.reading_times import add_lags

EFFECT_SIZE = {"first_fixation_ms": 0.6, "gaze_ms": 1.0, "total_ms": 1.5}  # relative to gaze_ms


@dataclass(frozen=True)
class Simulated:
    """Simulated readings, with what they were drawn from."""

    readings: pd.DataFrame  # a readings frame: three measures and the predictors of BASELINE
    surprisals: pd.DataFrame  # text_id, word_id and one column (bits) per language model
    true_surprisal_bits: pd.Series  # what the times depend on, in the order of surprisals
    effect_ms_per_bit: dict[str, float]  # of each measure
    prev_effect_ms_per_bit: dict[str, float]


def simulate(
    rng: np.random.Generator,
    *,
    n_words: int = 50_000,
    n_subjects: int = 10,
    n_texts: int = 20,
    noise_bits: Sequence[float] = (0.0, 1.0, 2.0, 4.0),
    effect: float = 2.0,
    prev_effect: float = 1.0,
    residual_ms: float = 80.0,
    skipped: float = 0.0,
) -> Simulated:
    """Draw reading times of words by people, smooth in length, frequency and position, linear in
    surprisal.

    A time that would fall below 1 ms is 1 ms.

    Parameters
    ----------
    rng : Generator
    n_words, n_subjects, n_texts : int
        Each person reads every word; texts are of equal length. The defaults are the Dundee
        Corpus's.
    noise_bits : sequence of float
        One language model for each: the standard deviation of what it adds to the true surprisal.
    effect, prev_effect : float
        Of the current and the previous word's surprisal on gaze duration, ms per bit.
    residual_ms : float
        Standard deviation within a person and word.
    skipped : float
        Share of readings that are missing in all measures.
    """
    # Words: frequency falls with length, and true surprisal falls with frequency.
    per_text = n_words // n_texts
    length = 1 + rng.poisson(3.7, per_text * n_texts)
    frequency = np.round(14 - 3 * np.log(length) + rng.normal(0, 2, len(length)), 2)
    bits = 14 - 0.6 * frequency + rng.normal(0, 3, len(length)).clip(-4)
    words = pd.DataFrame(
        {
            "text_id": np.repeat([f"{text + 1:02d}" for text in range(n_texts)], per_text),
            "word_id": np.tile(np.arange(1, per_text + 1), n_texts),
            "word": "w",
            "length_chars": length,
            "log_frequency": frequency,
            "true": bits,
        }
    )
    words["position"] = words["word_id"]
    words = add_lags(words, ["length_chars", "log_frequency", "true"]).drop(columns="word")

    # Language models know the true surprisal with errors.
    noise = rng.normal(size=(len(bits), len(noise_bits))) * np.asarray(noise_bits)
    names = [f"model-{i + 1:03d}" for i in range(len(noise_bits))]
    noisy = pd.DataFrame(bits[:, None] + noise, columns=names)
    surprisals = pd.concat([words[["text_id", "word_id"]], noisy], axis=1)

    # The expected time of each word; the first word of a text has no previous one.
    read = words[words["word_id"] > 1]
    smooth = (
        6 * (read["length_chars"] - 1) ** 0.8
        - 0.25 * read["length_chars"] * (read["log_frequency"] - 8)
        + 1.5 * read["prev_length_chars"]
        + 8 * np.sin(3 * read["position"] / per_text)
    )
    mean = 200 + (smooth + effect * read["true"] + prev_effect * read["prev_true"]).to_numpy()

    # The times of each person, who has an intercept.
    readings = read.drop(columns=["true", "prev_true"])
    readings = readings.loc[readings.index.repeat(n_subjects)].reset_index(drop=True)
    subject = np.tile(np.arange(n_subjects), len(read))
    readings.insert(0, "subject", np.array([f"s{i + 1:02d}" for i in range(n_subjects)])[subject])
    readings["prev_fixated"] = rng.random(len(readings)) < 0.6
    person = rng.normal(0, 30, n_subjects)[subject]
    expected = np.repeat(mean, n_subjects) + person - 12 * readings["prev_fixated"].to_numpy()
    missing = rng.random(len(readings)) < skipped
    for measure, size in EFFECT_SIZE.items():
        drawn = 150 + size * expected + rng.normal(0, residual_ms, len(readings))
        readings[measure] = np.where(missing, np.nan, np.maximum(drawn, 1.0))
    return Simulated(
        readings,
        surprisals,
        words["true"].rename("true_surprisal_bits"),
        {measure: size * effect for measure, size in EFFECT_SIZE.items()},
        {measure: size * prev_effect for measure, size in EFFECT_SIZE.items()},
    )
