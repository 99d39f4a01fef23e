"""The sweep against the same models fitted one by one, held-out gains against refits on plain rows,
and simulated readings whose effects are known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from two_programs import with_bits

from psychlm import reading_times as reading
from psychlm.frames import FrameError
from psychlm.reading_times import shared_design, sweep

MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
SMOOTHS = "te(length_chars, log_frequency, k=4) + s(position, k=6)"
BASELINE = f'{SMOOTHS} + prev_fixated + s(subject, bs="re")'


@pytest.fixture(scope="module")
def simulated():
    rng, noise = np.random.default_rng(11), [0.5, 3.0, 9.0]
    return reading.simulate(
        rng, n_words=1200, n_subjects=5, n_texts=8, noise_bits=noise, skipped=0.25
    )


def gains_of(simulated, measure="gaze_ms", formula=BASELINE, readings=None, **options):
    readings = simulated.readings if readings is None else readings
    return reading.delta_loglik(
        readings, simulated.surprisals, measure, formula, **{"folds": None} | options
    )


def readings_with(simulated, model):
    return with_bits(simulated.readings, simulated.surprisals, **{model: "bits"})


@pytest.fixture(params=[100, 1], ids=["columns", "eliminated"])
def random_effects(request, monkeypatch):
    """Random effects as columns of the shared design, or eliminated as those of many people are."""
    monkeypatch.setattr(shared_design, "MANY_LEVELS", request.param)


@pytest.mark.usefixtures("random_effects")
def test_the_sweep_gives_what_each_model_gives_alone(simulated):
    table = gains_of(simulated, MEASURES)
    assert len(table) == 9
    assert table["converged"].all()
    for row in table.itertuples():
        frame = readings_with(simulated, row.model)
        base = reading.fit(frame, f"{row.measure} ~ {BASELINE}")
        full = reading.fit(frame, f"{row.measure} ~ bits + prev_bits + {BASELINE}")
        assert row.n == full.n
        assert row.loglik == pytest.approx(full.loglik, abs=0.01)
        assert row.gain == pytest.approx(full.loglik - base.loglik, abs=0.01)
        assert row.edf == pytest.approx(full.edf, rel=1e-3)
        now = full.coefficients.loc["bits", ["estimate", "low", "high"]].to_list()
        expected = [*now, full.coefficients.loc["prev_bits", "estimate"]]
        found = [row.effect, row.effect_low, row.effect_high, row.prev_effect]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_gains_fall_with_the_noise_of_the_model_and_the_effects_are_recovered(simulated):
    for measure, rows in gains_of(simulated, MEASURES, folds=4).groupby("measure"):
        assert rows["gain"].is_monotonic_decreasing
        best, worst = rows.iloc[0], rows.iloc[2]
        assert best["heldout_gain"] > max(0, worst["heldout_gain"])
        assert best["heldout_low"] < best["heldout_gain"] < best["heldout_high"]
        truth = simulated.effect_ms_per_bit[measure]
        assert best["effect_low"] - 0.5 < truth < best["effect_high"] + 0.5


@pytest.mark.usefixtures("random_effects")
@pytest.mark.parametrize(
    ("random", "tolerance"),
    [("", 1e-6), (' + s(subject, bs="re") + s(subject, length_chars, bs="re")', 1e-3)],
)
def test_heldout_gains_equal_refits_without_each_fold(simulated, random, tolerance):
    """Linear terms make a refit on plain rows the same model, so the sums agree to the digit; with
    random effects both searches for their variances end near the optimum."""
    linear = "length_chars + log_frequency + prev_fixated" + random
    table = gains_of(simulated, formula=linear, folds=4, rng=5)
    frame = readings_with(simulated, "model-001").dropna(subset=["gaze_ms"])
    texts = frame["text_id"].unique()
    rng = np.random.default_rng(int(np.random.default_rng(5).integers(2**63)))
    fold = frame["text_id"].map(dict(zip(texts, sweep.deal_folds(len(texts), 4, rng), strict=True)))
    gain = 0.0
    for k in range(4):
        train, test = frame[fold != k], frame[fold == k]
        for sign, terms in ((1, f"{linear} + bits + prev_bits"), (-1, linear)):
            fitted = reading.fit(train, f"gaze_ms ~ {terms}")
            deviation = np.sqrt(((train["gaze_ms"] - fitted.predict(train)) ** 2).mean())
            gain += sign * stats.norm.logpdf(test["gaze_ms"], fitted.predict(test), deviation).sum()
    assert table.loc[0, "heldout_gain"] == pytest.approx(gain / len(frame), rel=tolerance)


def test_a_seed_fixes_the_table_and_resamples_change_no_gain(simulated):
    options = {"folds": 3, "rng": 7, "n_permutations": 9}
    first, second = (gains_of(simulated, n_bootstrap=20, **options) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    alone = gains_of(simulated, n_bootstrap=20, models=["model-003"], **options)
    pd.testing.assert_frame_equal(alone, first.iloc[[2]].reset_index(drop=True))
    without = gains_of(simulated, n_bootstrap=0, **options)
    np.testing.assert_array_equal(without["heldout_gain"], first["heldout_gain"])
    assert without[["heldout_low", "heldout_high"]].isna().all(axis=None)


def test_neither_the_order_of_rows_nor_the_type_of_word_ids_nor_other_measures_matter(simulated):
    shuffled = simulated.readings.sample(frac=1, random_state=1)
    shuffled["word_id"] = shuffled["word_id"].astype(str)
    shuffled.loc[simulated.readings["word_id"] % 3 == 0, "total_ms"] = np.nan
    table = gains_of(simulated, ["gaze_ms", "total_ms"], readings=shuffled)
    counts = table.groupby("measure")["n"].first()
    assert counts.to_dict() == shuffled[["gaze_ms", "total_ms"]].notna().sum().to_dict()
    pd.testing.assert_frame_equal(
        gains_of(simulated), table[table["measure"] == "gaze_ms"], rtol=1e-4
    )


def test_sentences_may_be_the_units_and_two_previous_words_or_none_may_enter(simulated):
    tens = simulated.readings["word_id"].floordiv(10).astype(str)
    frame = simulated.readings.assign(sentence=simulated.readings["text_id"] + tens)
    table = gains_of(simulated, readings=frame, folds=5, by="sentence")
    assert table["gain"].to_numpy() == pytest.approx(gains_of(simulated)["gain"], abs=0.01)
    assert (table["heldout_high"] > table["heldout_low"]).all()
    later = simulated.readings[simulated.readings["word_id"] > 2]
    assert "prev_effect" not in gains_of(simulated, lags=0)
    two = gains_of(simulated, readings=later, lags=2)
    assert {"effect", "prev_effect", "prev2_effect_low"} <= set(two)


def test_readings_of_one_word_may_be_units_of_their_own():
    """Each reading is left out alone: residuals of least squares without a row, by its leverage."""
    rng = np.random.default_rng(4)
    words = pd.DataFrame({"text_id": "t", "word_id": np.repeat(range(1, 9), 10)})
    frame = words.assign(subject=np.arange(80) % 10, trial=np.arange(80), x=rng.normal(size=80))
    bits = words.drop_duplicates().assign(model=rng.normal(size=8))
    z = bits["model"].to_numpy().repeat(10)
    frame["y_ms"] = 300 + 9 * z + rng.normal(0, 9, 80)
    expected = 0.0
    for sign, columns in ((1, [np.ones(80), frame["x"], z]), (-1, [np.ones(80), frame["x"]])):
        q = np.linalg.qr(np.column_stack(columns))[0]
        error, left = frame["y_ms"] - q @ (q.T @ frame["y_ms"]), 1 - np.square(q).sum(axis=1)
        variance = (error @ error - error**2 / left) / 79
        logliks = stats.norm.logpdf(error / left, scale=np.sqrt(variance))
        expected += sign * logliks.mean()
    options = {"lags": 0, "by": "trial", "folds": 80, "n_bootstrap": 0}
    for order in (frame, frame.sample(frac=1, random_state=1)):
        found = reading.delta_loglik(order, bits, "y_ms", "x", **options)["heldout_gain"]
        assert found.to_numpy() == pytest.approx(expected)


def test_intervals_cover_the_mean_and_p_values_are_uniform_under_no_effect():
    rng = np.random.default_rng(2)
    table = sweep.summarise(rng.normal(size=(40, 400)), np.full(40, 10.0), rng, 500, 499, 0.9)
    assert 0.8 < ((table["heldout_low"] < 0) & (table["heldout_high"] > 0)).mean() < 0.96
    assert stats.kstest(table["heldout_p"], "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("readings", "surprisals", "options", "says"),
    [
        ({}, lambda t: t[t["word_id"] != 7], {}, r"not in the surprisals, first \('01', 7\)"),
        ({}, lambda t: t[t["word_id"] > 1], {}, "no previous word"),
        ({"word": "a"}, lambda t: t.assign(word="b"), {}, "not match.*read 'a', scored 'b'"),
        ({}, lambda t: t.assign(flat=2.0), {}, r"\['flat'\].*every word the same surprisal"),
        ({}, lambda t: t.assign(gap=t["true"].where(t["word_id"] != 9)), {}, r"\['gap'\].*gaps"),
        ({}, lambda t: pd.concat([t, t.head(2)]), {}, "surprisals rows .* occur more than once"),
        ({}, lambda t: t.assign(name="x"), {}, "lack numeric columns"),
        ({}, lambda t: t, {"models": ["other"]}, "'other'"),
        ({"gaze_ms": np.nan}, lambda t: t, {}, "missing in all"),
        ({}, lambda t: t, {"by": "sentence"}, "no column of the readings"),
        ({"position": np.nan}, lambda t: t, {}, "'position' is missing"),
        ({}, lambda t: t.assign(a=t["word_id"]), {"formula": "word_id"}, r"\['a'\].*combination"),
        ({}, lambda t: t, {"formula": "nothing"}, r"not found in the data: \['nothing'\]"),
        ({}, lambda t: t, {"formula": "(1 | subject)"}, "a sweep reads .*mgcv's notation"),
    ],
)
def test_frames_that_do_not_fit_are_named(simulated, readings, surprisals, options, says):
    table = surprisals(simulated.surprisals.rename(columns={"model-001": "true"}))
    options = {"formula": BASELINE} | options
    with pytest.raises((FrameError, reading.FormulaError), match=says):
        reading.delta_loglik(simulated.readings.assign(**readings), table, "gaze_ms", **options)


def test_noise_is_not_significant_more_often_than_its_level():
    """Noise costs held-out likelihood, so the two-sided test called up to a quarter significant."""
    rng = np.random.default_rng(4)
    n_texts, per_text = 12, 40
    keys = pd.DataFrame({"text_id": np.repeat(np.arange(n_texts).astype(str), per_text)})
    keys["word_id"] = np.tile(np.arange(1, per_text + 1), n_texts)
    options = {"lags": 0, "n_permutations": 199, "n_bootstrap": 10}
    rates = []
    for seed in range(8):
        readings = keys.assign(subject="a", x=rng.normal(size=len(keys)))
        readings["gaze_ms"] = 250 + 5 * readings["x"] + rng.normal(0, 40, len(keys))
        noise = pd.DataFrame(rng.normal(size=(len(keys), 60))).add_prefix("m")
        bits = pd.concat([keys, noise], axis=1)
        table = reading.delta_loglik(readings, bits, "gaze_ms", "x", rng=seed, **options)
        assert table["heldout_gain"].mean() < 0
        rates.append((table["heldout_p"] < 0.05).mean())
    assert np.mean(rates) < 0.05
