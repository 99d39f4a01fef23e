"""The native backend against R's mgcv, on the UCL corpus, Natural Stories and simulated readings."""

import sys
import threading

import numpy as np
import pytest
from conftest import SHARE, absent

from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError
from psychlm.reading_times import mgcv

LOGLIK, GAIN, EDF, PREDICTION = (
    0.1,
    0.05,
    0.02,
    0.005,
)  # nats, nats, share, share of the response's deviation


@pytest.fixture(scope="module")
def r():
    try:
        return mgcv.version()
    except mgcv.RMissingError:
        return absent("R with mgcv")


@pytest.fixture(scope="module")
def ucl():
    if not (
        SHARE / "data"
    ).is_dir():  # fixtures of a module come before the mark on its tests is looked at
        absent("the data share")
    corpus = corpora.ucl()
    words = corpora.add_lags(corpus.words, ["length_chars", "log_frequency"])
    surprisals = corpora.add_lags(corpus.surprisals.assign(word="w"), ["GPT-2", "RNN"])
    surprisals = surprisals[
        ["text_id", "word_id", "GPT-2", "RNN", "prev_GPT-2", "prev_RNN"]
    ].set_axis(["text_id", "word_id", "gpt2", "rnn", "prev_gpt2", "prev_rnn"], axis=1)
    frame = corpora.join(corpora.join(corpus.readings, words), surprisals)
    return frame.dropna(subset=["log_frequency", "prev_log_frequency", "prev_gpt2"]).reset_index(
        drop=True
    )


@pytest.fixture(scope="module")
def simulated():
    data = reading.simulate(
        np.random.default_rng(5),
        n_words=400,
        n_subjects=4,
        n_texts=4,
        noise_bits=[1.0],
        skipped=0.2,
    )
    bits = corpora.add_lags(
        data.surprisals.rename(columns={"model-001": "bits"}).assign(word="w"), ["bits"]
    )
    return corpora.join(data.readings, bits[["text_id", "word_id", "bits", "prev_bits"]])


def compare(frame, baseline, surprisal, method="REML"):
    """Fit the baseline and the model with surprisal by both, and hold one against the other."""
    response = baseline.split("~")[0].strip()
    deviation = frame[response].std()
    gains = []
    for formula in (baseline, f"{baseline} + {surprisal}"):
        ours = reading.fit(frame, formula, method=method)
        theirs = reading.fit(frame, formula, backend="mgcv", method=method)
        assert ours.converged
        assert ours.loglik == pytest.approx(theirs.loglik, abs=LOGLIK)
        assert ours.edf == pytest.approx(theirs.edf, rel=EDF)
        assert list(ours.smooths.index) == list(theirs.smooths.index)
        assert list(ours.coefficients.index) == list(theirs.coefficients.index)
        linear = ours.coefficients.index[1:]
        assert np.allclose(
            ours.coefficients.loc[linear], theirs.coefficients.loc[linear], rtol=0.01, atol=0.01
        )
        gap = ours.predict(frame) - theirs.predict(frame)
        assert np.sqrt((gap**2).mean()) < PREDICTION * deviation
        gains.append((ours.loglik, theirs.loglik))
    (base, base_r), (full, full_r) = gains
    assert full - base == pytest.approx(full_r - base_r, abs=GAIN)
    # Told to go on until they have arrived, both come to the same optimum.
    ours = reading.fit(frame, formula, method=method, tolerance=1e-9)
    theirs = reading.fit(frame, formula, method=method, tolerance=1e-9, backend="mgcv")
    assert ours.loglik == pytest.approx(theirs.loglik, abs=0.01)
    assert ours.edf == pytest.approx(theirs.edf, rel=0.002)
    assert (ours.predict(frame) - theirs.predict(frame)).abs().max() < PREDICTION * deviation


@pytest.mark.needs_share
@pytest.mark.parametrize(
    "measure", ["first_fixation_ms", "gaze_ms", "right_bounded_ms", "go_past_ms", "self_paced_ms"]
)
def test_every_measure_of_the_ucl_corpus_agrees_with_gam(r, ucl, measure):
    baseline = f"{measure} ~ te(length_chars, log_frequency) + te(prev_length_chars, prev_log_frequency) + s(position)"
    compare(ucl, baseline, "gpt2 + prev_gpt2")


@pytest.mark.needs_share
@pytest.mark.parametrize(
    "smooths",
    [
        's(length_chars, bs="cr", k=6) + s(log_frequency)',
        's(log_frequency, bs="cr", k=20)',
        "te(length_chars, log_frequency, k=c(4, 7))",
        "te(length_chars, log_frequency, position, k=3)",
        "length_chars * log_frequency + s(position, k=5)",
    ],
)
@pytest.mark.parametrize("method", ["REML", "ML"])
def test_each_basis_agrees_with_gam_by_reml_and_by_ml(r, ucl, smooths, method):
    compare(ucl, f"gaze_ms ~ {smooths}", "rnn + prev_rnn", method)


@pytest.mark.needs_share
def test_natural_stories_agree_with_gam(r):
    corpus = corpora.natural_stories()
    words = corpora.add_lags(corpus.words, ["length_chars"])
    bits = corpus.surprisals.rename(columns={"GPT-3 davinci": "bits"})
    bits = corpora.add_lags(bits.assign(word="w"), ["bits"])[
        ["text_id", "word_id", "bits", "prev_bits"]
    ]
    words, _ = corpora.exclude(words)
    frame = corpora.join(corpora.join(corpus.readings, words), bits).dropna()
    frame["story"] = frame["text_id"]
    compare(
        frame,
        'self_paced_ms ~ s(position) + te(length_chars, prev_length_chars) + s(story, bs="re")',
        "bits + prev_bits",
    )


@pytest.mark.parametrize("method", ["REML", "ML"])
def test_random_intercepts_and_slopes_agree_with_gam_on_simulated_readings(r, simulated, method):
    baseline = (
        "gaze_ms ~ te(length_chars, log_frequency) + s(position) "
        '+ prev_fixated + s(subject, bs="re") + s(subject, length_chars, bs="re")'
    )
    compare(simulated, baseline, "bits + prev_bits", method)


def test_predictions_for_new_words_agree_with_gam_also_beyond_the_knots(r, simulated):
    formula = 'gaze_ms ~ bits + te(length_chars, log_frequency) + s(position) + s(log_frequency2, bs="cr")'
    frame = simulated.assign(
        log_frequency2=simulated["log_frequency"] + 0.3 * simulated["prev_log_frequency"]
    )
    ours, theirs = (reading.fit(frame, formula, backend=backend) for backend in ("native", "mgcv"))
    new = frame.sample(200, random_state=1)
    new = new.assign(
        **{
            name: new[name] * 1.5
            for name in ("length_chars", "log_frequency", "position", "log_frequency2")
        }
    )
    assert np.abs(ours.predict(new) - theirs.predict(new)).max() < 0.02 * frame["gaze_ms"].std()


def test_factors_get_the_contrasts_and_names_of_r(r, simulated):
    formula = "gaze_ms ~ prev_fixated * bits + text_id + text_id:bits"
    ours, theirs = (
        reading.fit(simulated, formula, backend=backend) for backend in ("native", "mgcv")
    )
    theirs_sorted = theirs.coefficients.loc[ours.coefficients.index]
    assert np.allclose(ours.coefficients, theirs_sorted, rtol=1e-5, atol=1e-6)
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-6)


def test_bam_discrete_fits_the_same_model_to_its_own_precision(r, simulated):
    formula = 'gaze_ms ~ bits + te(length_chars, log_frequency) + s(position) + s(subject, bs="re")'
    exact = reading.fit(simulated, formula)
    discrete = reading.fit(simulated, formula, backend="mgcv", discrete=True)
    assert discrete.loglik == pytest.approx(exact.loglik, abs=1)
    assert discrete.edf == pytest.approx(exact.edf, rel=0.05)


def test_r_works_from_a_plain_thread(r, simulated):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            reading.fit(simulated, "gaze_ms ~ bits + s(position)", backend="mgcv")
        )
    )
    thread.start()
    thread.join()
    assert found[0].loglik == pytest.approx(
        reading.fit(simulated, "gaze_ms ~ bits + s(position)").loglik, abs=LOGLIK
    )


def test_warnings_of_r_come_as_warnings_of_python(r, simulated):
    with pytest.warns(RuntimeWarning, match="mgcv: .*repeated 1-d smooths"):
        reading.fit(simulated, 'gaze_ms ~ s(position) + s(position, bs="cr")', backend="mgcv")


def test_what_r_refuses_comes_with_its_own_words(r, simulated):
    with pytest.raises(FrameError, match="fewer unique covariate combinations"):
        reading.fit(simulated, "gaze_ms ~ s(length_chars, k=200)", backend="mgcv")
    with pytest.raises(FrameError, match="not found in the data"):
        reading.fit(simulated, "gaze_ms ~ s(nothing)", backend="mgcv")


def test_missing_r_says_how_to_install_it(monkeypatch, simulated):
    mgcv._start.cache_clear()
    monkeypatch.setitem(sys.modules, "rpy2.robjects", None)
    with pytest.raises(mgcv.RMissingError, match="apt-get install r-base-core r-cran-mgcv"):
        reading.fit(simulated, "gaze_ms ~ bits", backend="mgcv")
    mgcv._start.cache_clear()
