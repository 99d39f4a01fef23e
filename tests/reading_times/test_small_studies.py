"""Small and degenerate reading studies: a function gives a number or a reason that can be followed.

Reference: none is needed; no error of linear algebra may leave a public function.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from psychlm import reading_times as rt
from psychlm.corpora.reading_times import add_lags
from psychlm.frames import FrameError

FORMULAS = [
    "gaze_ms ~ length_chars + log_frequency",
    "gaze_ms ~ condition * length_chars + (1 | subject)",
    "gaze_ms ~ condition + (1 + condition | subject) + (1 | text_id)",
    'gaze_ms ~ s(length_chars) + s(subject, bs="re")',
    "log(gaze_ms) ~ s(length_chars, k=3) + scale(log_frequency)",
    f"gaze_ms ~ {rt.BASELINE}",
]
BASELINES = ["length_chars + log_frequency", 'condition + s(position, k=3) + s(subject, bs="re")']


def small_study(rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return words, surprisals and readings of 2 to 8 readers and sentences of few words."""
    n_readers, n_texts, per_text = rng.integers(2, 9), rng.integers(2, 9), rng.integers(2, 7)
    n_words = n_texts * per_text
    kind = rng.integers(rng.choice([1, 2, 3, 40]), size=n_words)
    words = pd.DataFrame({"text_id": np.repeat([f"t{k}" for k in range(n_texts)], per_text)})
    words["word_id"] = words["position"] = np.tile(np.arange(1, per_text + 1), n_texts)
    words["length_chars"] = rng.integers(1, 9, 40)[kind]
    words["log_frequency"] = rng.normal(8, 2, 40).round(1)[kind]
    words = words.assign(word="w", a=rng.gamma(4, 1, n_words), b=rng.gamma(4, 1, n_words))
    if rng.random() < 0.2:
        words["b"] = 3.0
    bits = words[["text_id", "word_id", "a", "b"]]
    words = add_lags(words, ["length_chars", "log_frequency"]).drop(columns="word")
    readings = words.drop(columns=["a", "b"]).loc[words.index.repeat(n_readers)]
    readings = readings[readings["word_id"] > rng.integers(2)].reset_index(drop=True)
    readings["subject"] = [f"s{k % n_readers}" for k in range(len(readings))]
    readings["condition"] = np.where(readings["text_id"].str[1:].astype(int) % 2, "a", "b")
    readings["prev_fixated"] = rng.random(len(readings)) < 0.6
    readings["gaze_ms"] = np.maximum(1, rng.normal(250, 40, len(readings)))
    if rng.random() < 0.1:
        readings["gaze_ms"] = 250.0
    gone = rng.random(len(readings)) < rng.choice([0, 0.2, 0.7])
    return words, bits, readings.assign(gaze_ms=readings["gaze_ms"].mask(gone))


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(4, 60))]
)
@pytest.mark.filterwarnings("ignore")
def test_no_error_of_linear_algebra_leaves_a_function_of_reading_times(seed):
    words, bits, readings = small_study(np.random.default_rng(seed))

    def tried(function, *arguments, **options):
        """Return a result; None where the data are refused with a reason."""
        try:
            return function(*arguments, **options)
        except np.linalg.LinAlgError as error:
            pytest.fail(f"{function} {arguments[1:]} {options}\n{error!r}")
        except ValueError as error:
            assert len(str(error)) > 20

    for formula in FORMULAS:
        fit = tried(rt.fit, readings, formula)
        if fit is not None:
            assert np.isfinite(fit.loglik)
            tried(lambda fit=fit: (fit.summary(), fit.predict(readings), fit.anova()))
            tried(lambda fit=fit: fit.means("condition"))
    for baseline in BASELINES:
        for folds in (None, 2, 10):
            options = {"folds": folds, "lags": 0, "n_permutations": 49}
            found = tried(rt.delta_loglik, readings, bits, "gaze_ms", baseline, **options)
            assert found is None or np.isfinite(found.filter(regex="gain$")).all(axis=None)
    for folds, n_texts in ((2, 4), (4, 8)):
        options = {"readers": [2], "texts": [n_texts], "folds": folds, "sd_residual": 40}
        columns = ["a"], ["b"], ["length_chars", "log_frequency"]
        pilot = words.assign(ms=250 + words["length_chars"])
        found = tried(rt.power_curve, pilot, "ms", *columns, n_simulations=20, **options)
        assert found is None or np.isfinite(found["gain"]).all()


def test_training_folds_of_few_words_are_counted_and_what_the_reason_advises_works():
    rng = np.random.default_rng(0)
    words = pd.DataFrame({"text_id": list("aabbccdd"), "word_id": [2, 3] * 4})
    words = words.assign(length_chars=[1, 2, 3, 4, 5, 6, 7, 8], log_frequency=rng.normal(size=8))
    bits = words[["text_id", "word_id"]].assign(lm=rng.gamma(4, 1, 8))
    words["third"] = [0.0, 0, 0, 0, 0, 0, 0, 1]
    readings = words.loc[words.index.repeat(5)].reset_index(drop=True)
    readings = readings.assign(subject=list("vwxyz") * 8, gaze_ms=rng.normal(250, 40, 40))
    baseline = "length_chars + log_frequency + third"
    with pytest.raises(
        FrameError, match=r"6 words in the 3 texts .* determine 4 coeff.*folds=None"
    ):
        rt.delta_loglik(readings, bits, "gaze_ms", baseline, lags=0, folds=4)
    rt.delta_loglik(readings, bits, "gaze_ms", baseline, lags=0, folds=None)
    rt.delta_loglik(readings, bits, "gaze_ms", "length_chars", lags=0, folds=4)

    pilot = words.assign(ms=250.0, lm=bits["lm"])
    sizes = {"readers": [5], "texts": [4], "folds": 2, "sd_residual": 40, "n_simulations": 20}
    predictors = ["lm"], ["log_frequency"], ["length_chars", "third"]
    with pytest.raises(FrameError, match="of 4 texts leaves 4 words .* determine 4 coefficients"):
        rt.power_curve(pilot, "ms", *predictors, **sizes)
    rt.power_curve(pilot, "ms", ["lm"], ["log_frequency"], [], **sizes)
