"""The sweep against the same models fitted one by one, held-out gains against refits on plain rows,
and simulated readings whose effects are known."""

import numpy as np
import pandas as pd
import pytest
from conftest import absent
from scipy import stats

from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError
from psychlm.reading_times import mgcv, sweep

MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
BASELINE = (
    'te(length_chars, log_frequency, k=4) + s(position, k=6) + prev_fixated + s(subject, bs="re")'
)


@pytest.fixture(scope="module")
def simulated():
    return reading.simulate(
        np.random.default_rng(11),
        n_words=1200,
        n_subjects=5,
        n_texts=8,
        noise_bits=[0.5, 3.0, 9.0],
        skipped=0.25,
    )


def with_surprisal(simulated, model):
    bits = corpora.add_lags(
        simulated.surprisals.rename(columns={model: "bits"}).assign(word="w"), ["bits"]
    )
    return corpora.join(simulated.readings, bits[["text_id", "word_id", "bits", "prev_bits"]])


@pytest.mark.parametrize("method", ["REML", "ML"])
def test_the_sweep_gives_what_each_model_gives_alone(simulated, method):
    table = reading.delta_loglik(
        simulated.readings, simulated.surprisals, MEASURES, BASELINE, folds=None, method=method
    )
    assert len(table) == 9
    assert table["converged"].all()
    for row in table.itertuples():
        frame = with_surprisal(simulated, row.model)
        base = reading.fit(frame, f"{row.measure} ~ {BASELINE}", method=method)
        full = reading.fit(frame, f"{row.measure} ~ bits + prev_bits + {BASELINE}", method=method)
        assert row.n == full.n
        assert row.loglik == pytest.approx(full.loglik, abs=0.01)
        assert row.gain == pytest.approx(full.loglik - base.loglik, abs=0.01)
        assert row.edf == pytest.approx(full.edf, rel=1e-3)
        assert [row.effect, row.effect_low, row.effect_high] == pytest.approx(
            full.coefficients.loc["bits", ["estimate", "low", "high"]].to_list(), rel=1e-3, abs=1e-3
        )
        assert row.prev_effect == pytest.approx(
            full.coefficients.loc["prev_bits", "estimate"], rel=1e-3, abs=1e-3
        )


def test_gains_agree_with_mgcv(simulated):
    try:
        mgcv.version()
    except mgcv.RMissingError:
        absent("R with mgcv")
    table = reading.delta_loglik(
        simulated.readings, simulated.surprisals, "gaze_ms", BASELINE, folds=None
    )
    frame = with_surprisal(simulated, "model-002")
    base, full = (
        reading.fit(frame, f"gaze_ms ~ {terms}{BASELINE}", backend="mgcv").loglik
        for terms in ("", "bits + prev_bits + ")
    )
    assert table.set_index("model").loc["model-002", "gain"] == pytest.approx(full - base, abs=0.05)


def test_gains_fall_with_the_noise_of_the_model_and_the_effects_are_recovered(simulated):
    table = reading.delta_loglik(
        simulated.readings, simulated.surprisals, MEASURES, BASELINE, folds=4
    )
    for measure, rows in table.groupby("measure"):
        assert rows["gain"].is_monotonic_decreasing
        assert rows["heldout_gain"].iloc[0] > rows["heldout_gain"].iloc[2]
        best = rows.iloc[0]
        assert best["heldout_gain"] > 0
        assert best["heldout_low"] < best["heldout_gain"] < best["heldout_high"]
        assert (
            best["effect_low"] - 0.5
            < simulated.effect_ms_per_bit[measure]
            < best["effect_high"] + 0.5
        )


def test_heldout_gains_equal_refits_without_each_fold(simulated):
    """With purely linear terms a refit on plain rows is the same model, so the sums must agree to the digit."""
    linear = "length_chars + log_frequency + prev_fixated"
    table = reading.delta_loglik(
        simulated.readings, simulated.surprisals, "gaze_ms", linear, folds=4, rng=5
    )
    frame = with_surprisal(simulated, "model-001").dropna(subset=["gaze_ms"])
    texts = frame["text_id"].unique()
    seed = int(np.random.default_rng(5).integers(2**63))
    fold = dict(
        zip(texts, sweep.deal_folds(len(texts), 4, np.random.default_rng(seed)), strict=True)
    )
    gain = 0.0
    for k in range(4):
        train, test = (frame[(frame["text_id"].map(fold) != k) == kept] for kept in (True, False))
        for sign, terms in ((1, f"{linear} + bits + prev_bits"), (-1, linear)):
            fitted = reading.fit(train, f"gaze_ms ~ {terms}")
            deviation = np.sqrt(((train["gaze_ms"] - fitted.predict(train)) ** 2).mean())
            gain += sign * stats.norm.logpdf(test["gaze_ms"], fitted.predict(test), deviation).sum()
    assert table.loc[0, "heldout_gain"] == pytest.approx(gain / len(frame), rel=1e-6)


def test_a_seed_fixes_the_table_and_folds_are_the_same_for_every_model(simulated):
    first, second = (
        reading.delta_loglik(
            simulated.readings, simulated.surprisals, "gaze_ms", BASELINE, folds=3, rng=7
        )
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(first, second)
    alone = reading.delta_loglik(
        simulated.readings,
        simulated.surprisals,
        "gaze_ms",
        BASELINE,
        folds=3,
        rng=7,
        models=["model-003"],
    )
    pd.testing.assert_frame_equal(alone, first.iloc[[2]].reset_index(drop=True))


def test_the_order_of_rows_does_not_matter(simulated):
    shuffled = simulated.readings.sample(frac=1, random_state=1)
    words = simulated.surprisals.sample(frac=1, random_state=2)
    options = {"measure": "gaze_ms", "formula": BASELINE, "folds": None}
    pd.testing.assert_frame_equal(
        reading.delta_loglik(simulated.readings, simulated.surprisals, **options),
        reading.delta_loglik(shuffled, words, **options),
        rtol=1e-4,
    )


def test_measures_with_gaps_of_their_own_are_fitted_on_their_own_rows(simulated):
    gaps = simulated.readings.assign(
        total_ms=simulated.readings["total_ms"].where(simulated.readings["word_id"] % 3 > 0)
    )
    table = reading.delta_loglik(
        gaps, simulated.surprisals, ["gaze_ms", "total_ms"], BASELINE, folds=None
    )
    counts = table.groupby("measure")["n"].first()
    assert counts["gaze_ms"] == gaps["gaze_ms"].notna().sum()
    assert counts["total_ms"] == gaps["total_ms"].notna().sum()


def test_sentences_may_be_the_units(simulated):
    frame = simulated.readings.assign(
        sentence=simulated.readings["text_id"]
        + simulated.readings["word_id"].floordiv(10).astype(str)
    )
    table = reading.delta_loglik(
        frame, simulated.surprisals, "gaze_ms", BASELINE, folds=5, by="sentence"
    )
    by_text = reading.delta_loglik(frame, simulated.surprisals, "gaze_ms", BASELINE, folds=5)
    assert table["gain"].to_numpy() == pytest.approx(by_text["gain"].to_numpy(), abs=0.01)
    assert (table["heldout_high"] - table["heldout_low"]).iloc[0] > 0


def test_two_previous_words_or_none_may_enter(simulated):
    options = {"measure": "gaze_ms", "formula": BASELINE, "folds": None}
    none = reading.delta_loglik(simulated.readings, simulated.surprisals, lags=0, **options)
    later = simulated.readings[simulated.readings["word_id"] > 2]
    two = reading.delta_loglik(later, simulated.surprisals, lags=2, **options)
    assert "prev_effect" not in none
    assert {"effect", "prev_effect", "prev2_effect_low"} <= set(two)


def test_the_bootstrap_interval_covers_the_mean_and_p_values_are_uniform_under_no_effect():
    rng = np.random.default_rng(2)
    units, models = 40, 400
    gains = sweep.summarise(
        rng.normal(size=(units, models)),
        np.full(units, 10.0),
        rng,
        n_bootstrap=500,
        n_permutations=499,
        level=0.9,
    )
    assert 0.8 < ((gains["heldout_low"] < 0) & (gains["heldout_high"] > 0)).mean() < 0.96
    assert stats.kstest(gains["heldout_p"], "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("readings", "surprisals", "options", "says"),
    [
        ({}, lambda t: t[t["word_id"] != 7], {}, "not in the surprisals, first \\('01', 7\\)"),
        ({}, lambda t: t[t["word_id"] > 1], {}, "no previous word"),
        (
            {"word": "a"},
            lambda t: t.assign(word="b"),
            {},
            "do not match the words.*read 'a', scored 'b'.*shifted",
        ),
        ({}, lambda t: t.assign(flat=2.0), {}, "\\['flat'\\].*every word the same surprisal"),
        (
            {},
            lambda t: t.assign(gap=t["model-001"].where(t["word_id"] != 9)),
            {},
            "\\['gap'\\].*gaps",
        ),
        ({}, lambda t: pd.concat([t, t.head(2)]), {}, "surprisals rows .* occur more than once"),
        ({}, lambda t: t.assign(name="x"), {}, "hold no numbers"),
        ({}, lambda t: t, {"models": ["other"]}, "'other'"),
        ({"gaze_ms": np.nan}, lambda t: t, {}, "missing in all"),
        ({}, lambda t: t, {"by": "sentence"}, "no column of the readings"),
        ({"position": np.nan}, lambda t: t, {}, "'position' is missing"),
        (
            {"text_id": "01", "word_id": range(2, 5962)},
            lambda t: t,
            {},
            "are not in the surprisals",
        ),
    ],
)
def test_frames_that_do_not_fit_are_named_with_what_to_do(
    simulated, readings, surprisals, options, says
):
    with pytest.raises(FrameError, match=says):
        reading.delta_loglik(
            simulated.readings.assign(**readings),
            surprisals(simulated.surprisals),
            "gaze_ms",
            BASELINE,
            **options,
        )


def test_a_model_that_repeats_a_predictor_is_named(simulated):
    words = simulated.readings.drop_duplicates(["text_id", "word_id"])[
        ["text_id", "word_id", "log_frequency"]
    ]
    table = simulated.surprisals.merge(words, how="left").fillna({"log_frequency": 3.0})
    with pytest.raises(
        FrameError, match="\\['log_frequency'\\].*combination of the other predictors"
    ):
        reading.delta_loglik(simulated.readings, table, "gaze_ms", "log_frequency + length_chars")


@pytest.mark.needs_share
def test_a_corpus_whose_measures_are_not_in_ms_is_swept_too():
    corpus = corpora.provo()
    words, _ = corpora.exclude(corpora.add_lags(corpus.words, ["length_chars"]))
    readings = corpora.join(corpus.readings, words)
    rng = np.random.default_rng(0)
    surprisals = corpus.words[["text_id", "word_id"]].assign(
        noise=rng.normal(8, 3, len(corpus.words))
    )
    table = reading.delta_loglik(
        readings, surprisals, "total_scaled", "te(length_chars, prev_length_chars)", folds=5
    )
    assert table["heldout_low"].iloc[0] < 0  # noise gains nothing
