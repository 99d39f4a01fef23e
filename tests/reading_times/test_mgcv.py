"""The native backend against R's mgcv: the UCL corpus, Natural Stories and simulated readings."""

import sys
import threading

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_programs import both, with_bits

from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError
from psychlm.reading_times import mgcv

pytestmark = pytest.mark.usefixtures("r")
# Nats, nats, share, share of the response's deviation.
LOGLIK, GAIN, EDF, PREDICTION = 0.1, 0.05, 0.02, 0.005


@pytest.fixture(scope="module")
def ucl():
    corpus = corpora.ucl()
    words = corpora.add_lags(corpus.words, ["length_chars", "log_frequency"])
    names = {"GPT-2": "gpt2", "RNN": "rnn"}
    frame = with_bits(corpora.join(corpus.readings, words), corpus.surprisals, **names)
    complete = ["log_frequency", "prev_log_frequency", "prev_gpt2"]
    return frame.dropna(subset=complete).reset_index(drop=True)


@pytest.fixture(scope="module")
def simulated():
    size = {"n_words": 400, "n_subjects": 4, "n_texts": 4}
    rng = np.random.default_rng(5)
    data = reading.simulate(rng, **size, noise_bits=[1.0], skipped=0.2)
    frame = with_bits(data.readings, data.surprisals, **{"model-001": "bits"})
    return frame.assign(old=frame["position"].between(20, 60).astype(float))


def compare_gains(frame, baseline, surprisal, method):
    """At mgcv's own tolerance both searches stop at about the same place."""
    logliks = []
    for formula in (baseline, f"{baseline} + {surprisal}"):
        ours, theirs = both(frame, formula, method=method)
        assert ours.converged
        assert ours.loglik == pytest.approx(theirs.loglik, abs=LOGLIK)
        assert ours.edf == pytest.approx(theirs.edf, rel=EDF)
        logliks.append((ours.loglik, theirs.loglik))
    gain, gain_r = np.diff(logliks, axis=0)[0]
    assert gain == pytest.approx(gain_r, abs=GAIN)


def gap(ours, theirs):
    return (ours - theirs).abs().max(axis=None)


def compare_answers(ours, theirs, new, numbers, shares, p):
    """Compare the measures of fit, residuals, predictions with errors, and p of all tests.

    (F of a fractional rank is a mean here, and in mgcv one of two values, as eigenvectors point.)
    """
    deviation = float(ours.residuals.std())
    for name in ("loglik", "criterion", "aic"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=numbers), name
    for name in ("r_squared", "deviance_explained"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=shares), name
    assert gap(ours.residuals, theirs.residuals) < PREDICTION * deviation
    assert gap(ours.predict(new, se=True), theirs.predict(new, se=True)) < PREDICTION * deviation
    for table in ("coefficients", "smooths"):
        found, expected = (getattr(fit.summary(), table) for fit in (ours, theirs))
        assert list(found.index) == list(expected.index)
        assert np.allclose(found["p"], expected["p"], atol=p), table
        if table == "smooths":
            assert np.allclose(found["ref_df"], expected["ref_df"], atol=5e-3)


def compare_optimum(frame, formula, method="REML"):
    """With a small tolerance both arrive at the same optimum, and at the same answers."""
    ours, theirs = both(frame, formula, method=method, tolerance=1e-9)
    for table, close in (("coefficients", 0.01), ("covariance", 0.02)):
        found, expected = getattr(ours, table), getattr(theirs, table)
        assert list(found.index) == list(expected.index)
        assert np.allclose(found, expected, rtol=close, atol=close), table
    deviation = float(ours.residuals.std())
    new = frame.sample(60, random_state=1)
    if ours.random:
        new = new.assign(subject=["nobody", *new["subject"][1:]])
    compare_answers(ours, theirs, new, numbers=0.02, shares=1e-4, p=1e-3)
    assert ours.edf == pytest.approx(theirs.edf, rel=0.002)
    components, of_r = ours.variance_components, theirs.variance_components
    assert list(components.index) == list(of_r.index)
    assert np.allclose(components, of_r, rtol=0.002, atol=0.002 * deviation)
    # Predictions without some terms; each term; each random effect.
    for exclude in (list(ours.random)[:1], list(ours.parts)[:2]):
        predicted = [fit.predict(new, se=True, exclude=exclude) for fit in (ours, theirs)]
        assert gap(*predicted) < PREDICTION * deviation, exclude
    assert list(ours.parts) == list(theirs.parts)
    for label in ours.parts:
        columns = ["effect", "std_error"]
        effects = [fit.effect(label, n=5)[columns] for fit in (ours, theirs)]
        assert gap(*effects) < 2 * PREDICTION * deviation, label
    if ours.random:
        keys = ["term", "level"]
        tables = [fit.random_effects().set_index(keys).sort_index() for fit in (ours, theirs)]
        assert tables[0].index.equals(tables[1].index)
        assert gap(*tables) < PREDICTION * deviation


BASES = [
    's(length_chars, bs="cr", k=6) + s(log_frequency)',
    's(log_frequency, bs="cr", k=20)',
    "te(length_chars, log_frequency, k=c(4, 7)) + s(position)",
    "te(length_chars, log_frequency, position, k=3)",
    "length_chars * log_frequency + s(position, k=5)",
]
SLOPES = 's(subject, bs="re") + s(subject, length_chars, bs="re") + s(position) + prev_fixated'
CROSSED = 's(subject, bs="re") + s(subject, text_id, bs="re") + s(text_id, bits, bs="re")'
OTHERS = [
    f"s(length_chars, k=5) + {CROSSED}",
    "text_id + s(log_frequency, by=text_id, k=5) + s(length_chars, by=bits, k=5)",
    'te(length_chars, log_frequency, by=bits, k=3) + s(position, bs="cr", by=old)',
]
# data, terms, and the language model whose gain is compared too
MODELS = [("ucl", terms, "rnn") for terms in BASES]
MODELS += [("simulated", f"te(length_chars, log_frequency) + {SLOPES}", "bits")]
MODELS += [("simulated", terms, None) for terms in OTHERS]


@pytest.mark.parametrize("method", ["REML", pytest.param("ML", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("data", "terms", "model"), MODELS)
def test_every_kind_of_term_agrees_with_gam_by_reml_and_by_ml(request, data, terms, model, method):
    frame, formula = request.getfixturevalue(data), f"gaze_ms ~ {terms}"
    if model is not None:
        surprisal = f"{model} + prev_{model}"
        compare_gains(frame, formula, surprisal, method)
        formula = f"{formula} + {surprisal}"
    compare_optimum(frame, formula, method)


TERMS = st.sampled_from(
    [
        "ti(length_chars, log_frequency)",
        "s(length_chars, k=5) + s(log_frequency, k=5) + ti(length_chars, log_frequency, k=4)",
        "ti(length_chars) + ti(position) + ti(length_chars, position, k=c(3, 4))",
        "ti(length_chars, log_frequency, position, k=3)",
        's(log_frequency, bs="cr", k=6) + scale(bits):prev_fixated',
        "s(log(length_chars), k=5) + poly(position, 3) + I(prev_bits^2)",
        'te(length_chars, log_frequency, k=3) + s(subject, bs="re")',
    ]
)
TWO_OFFSETS = " + offset(log(position)) + offset(bits)"
OFFSETS = st.sampled_from(["", " + offset(bits)", TWO_OFFSETS])


@settings(max_examples=settings.default.max_examples // 2)
@given(
    terms=TERMS,
    offset=OFFSETS,
    response=st.sampled_from(["gaze_ms", "log(gaze_ms)"]),
    weights=st.sampled_from([None, "n_read"]),
    method=st.sampled_from(["REML", "ML"]),
)
def test_offsets_weights_and_interactions_agree_with_gam(
    simulated, terms, offset, response, weights, method
):
    n_read = np.random.default_rng(2).integers(1, 30, len(simulated))
    frame = simulated.assign(n_read=n_read)
    formula = f"{response} ~ {terms}{offset}"
    options = {"method": method, "weights": weights, "tolerance": 1e-9}
    ours = reading.fit(frame, formula, **options)
    one = formula.replace(TWO_OFFSETS, " + offset(I(log(position) + bits))")
    theirs = reading.fit(frame, one, backend="mgcv", **options)
    compare_answers(ours, theirs, frame.head(20), numbers=1e-3, shares=1e-5, p=1e-4)
    assert ours.edf == pytest.approx(theirs.edf, abs=1e-3)
    assert ours.loglik_of_response == pytest.approx(theirs.loglik_of_response, abs=1e-3)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    levels=st.permutations(list("abcd")).flatmap(lambda x: st.integers(2, 4).map(lambda k: x[:k])),
    unobserved=st.sampled_from(["", "first", "last"]),
    linear=st.sampled_from(["g", "q + q:g"]),
    terms=st.sampled_from(
        [
            "s(x, k=6) + s(x, by=g, k=6)",
            's(x, by=g, k=5, bs="cr") + s(z, k=5)',
            "te(x, z, k=3) + te(x, z, by=g, k=3)",
            's(x, k=5) + s(x, by=g, k=5) + s(z, k=4) + s(subject, bs="re")',
        ]
    ),
    method=st.sampled_from(["REML", "ML"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_smooths_by_an_ordered_factor_are_differences_from_its_first_level(
    levels, unobserved, linear, terms, method, seed
):
    rng, n = np.random.default_rng(seed), 300
    frame = pd.DataFrame({"x": rng.uniform(0, 5, n), "z": rng.uniform(0, 5, n)})
    drawn, frame["subject"] = rng.choice(levels, n), rng.choice(list("pqrstu"), n)
    frame["q"] = rng.choice(["u", "v"], n)
    signal = np.sin(2 * frame["x"]) * (drawn == levels[-1]) + frame["z"] ** 2 / 10
    frame["y"] = signal + rng.normal(0, 0.3, n) + (frame["subject"] == "p")
    more = {"first": ["none", *levels], "last": [*levels, "none"]}.get(unobserved, levels)
    frame["g"] = pd.Categorical(drawn, categories=more, ordered=True)
    options = {"method": method, "tolerance": 1e-9}
    ours, theirs = both(frame, f"y ~ {linear} + {terms}", **options)
    compare_answers(ours, theirs, frame.head(20), numbers=2e-3, shares=1e-4, p=1e-3)
    assert [label[-1] for label in ours.smooths.index if "):g" in label] == levels[1:]
    # R's own ordered factor, made of the text
    text, names = frame.assign(g=drawn), ", ".join(f"'{level}'" for level in levels)
    terms = terms.replace("by=g", f"by=ordered(g, c({names}))")
    in_r = reading.fit(
        text, f"y ~ {linear} + {terms}", backend="mgcv", method=method, tolerance=1e-9
    )
    assert ours.criterion == pytest.approx(in_r.criterion, abs=2e-3)
    assert gap(ours.predict(text), in_r.predict(text)) < 2e-3


def test_weights_beside_random_effects_in_its_notation_agree_with_lme4(simulated):
    frame = simulated.assign(n_read=np.arange(len(simulated)) % 7 + 1.0)
    formula = "gaze_ms ~ bits + offset(position) + (1 | subject)"
    ours, theirs = both(frame, formula, "lme4", weights="n_read")
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-4)
    assert np.allclose(ours.coefficients["estimate"], theirs.coefficients["estimate"], rtol=1e-4)
    assert np.allclose(ours.variance_components, theirs.variance_components, rtol=5e-3)


@pytest.mark.parametrize("seed", [11, 15, 16, 20, 45, 47])
def test_the_search_begins_where_mgcvs_does_with_weights_too(seed):
    """With weights far from 1 the criterion may have several minima."""
    rng, n = np.random.default_rng(seed), 150
    frame = pd.DataFrame({"x": rng.uniform(1, 5, n), "z": rng.integers(0, 15, n) * 1.0})
    frame = frame.assign(g=rng.choice(list("abc"), n, p=[0.7, 0.2, 0.1]))
    frame["weight"] = np.exp(rng.normal(0, 1.5, n))
    frame["y"] = 3 * np.sin(2 * frame["x"]) * (frame["g"] == "a") + rng.normal(0, 1 + seed % 4, n)
    terms = ["s(x, k=8) + s(z, by=g, k=4)", "s(x, by=g, k=5) + s(z, by=g, k=5)"][seed % 2]
    ours, theirs = both(frame, f"y ~ {terms}", method="ML", weights="weight", tolerance=1e-9)
    assert ours.criterion == pytest.approx(theirs.criterion, abs=1e-3)


@pytest.mark.parametrize("offset", ["", " + offset(I(position / 500))"])
def test_gains_of_lognormal_times_in_a_sweep_are_those_of_gam(simulated, offset):
    baseline = f"s(length_chars, k=5) + ti(length_chars, log_frequency, k=3){offset}"
    frame = simulated.dropna(subset=["gaze_ms", "total_ms"])
    keys = ["text_id", "word_id"]
    bits = frame[[*keys, "bits"]].drop_duplicates(keys)
    measures = ["log(gaze_ms)", "log(total_ms)", "total_ms"]
    readings = frame.drop(columns=["bits", "prev_bits"])
    rows = reading.delta_loglik(readings, bits, measures, baseline, lags=0, folds=None)
    assert list(rows["measure"]) == measures
    for row in rows.itertuples():
        formula = f"{row.measure} ~ {baseline}"
        without = reading.fit(frame, formula, backend="mgcv").loglik_of_response
        full = reading.fit(frame, f"{formula} + bits", backend="mgcv").loglik_of_response
        assert row.gain == pytest.approx(full - without, abs=GAIN)


def test_predictions_for_new_words_agree_with_gam_also_beyond_the_knots(simulated):
    mixed = simulated["log_frequency"] + 0.3 * simulated["prev_log_frequency"]
    frame = simulated.assign(mixed=mixed)
    smooths = 'te(length_chars, log_frequency) + s(position) + s(mixed, bs="cr")'
    ours, theirs = both(frame, f"gaze_ms ~ bits + {smooths}")
    new = frame.sample(200, random_state=1)
    new[["length_chars", "log_frequency", "position", "mixed"]] *= 1.5
    assert np.abs(ours.predict(new) - theirs.predict(new)).max() < 0.02 * frame["gaze_ms"].std()


def test_factors_get_the_contrasts_and_names_of_r_also_from_a_plain_thread(simulated):
    formula, fits = "gaze_ms ~ prev_fixated * bits + text_id + text_id:bits", []
    thread = threading.Thread(target=lambda: fits.extend(both(simulated, formula)))
    thread.start()
    thread.join()
    ours, theirs = fits
    table = theirs.coefficients.loc[ours.coefficients.index]
    assert np.allclose(ours.coefficients, table, rtol=1e-5, atol=1e-6)
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-6)


@pytest.mark.filterwarnings("ignore:fitted by R:RuntimeWarning")
@pytest.mark.parametrize(("call", "made"), [("as.numeric(old)", float)])
def test_by_of_a_call_is_that_of_a_column_made_by_it(simulated, call, made):
    found = reading.fit(simulated, f"gaze_ms ~ s(bits, k=5, by={call})")
    column = simulated.assign(made=simulated["old"].astype(made))
    expected = reading.fit(column, "gaze_ms ~ s(bits, k=5, by=made)")
    assert found.loglik == pytest.approx(expected.loglik, abs=0.01)
    with pytest.raises(ValueError, match="is no linear term or smooth"):  # no value to stand at
        found.effect(found.smooths.index[0])


@pytest.mark.filterwarnings("ignore:fitted by R:RuntimeWarning")
@pytest.mark.parametrize("backend", ["auto", "mgcv"])
@pytest.mark.parametrize("kind", ["str", "category"])
def test_numbers_as_text_are_no_numbers_of_levels(simulated, kind, backend):
    """Levels of text sort as "10", "2", "9"."""
    dose = pd.Series(np.resize([2, 9, 10], len(simulated)), simulated.index)
    data = simulated.assign(dose=dose.astype(str).astype(kind))
    with pytest.raises(ValueError, match=r"write as.numeric\(as.character\(dose\)\)"):
        reading.fit(data, "gaze_ms ~ bits + as.numeric(dose)", backend=backend)
    told = reading.fit(data, "gaze_ms ~ bits + as.numeric(as.character(dose))", backend=backend)
    expected = reading.fit(simulated.assign(dose=dose), "gaze_ms ~ bits + dose", backend=backend)
    np.testing.assert_allclose(told.coefficients, expected.coefficients, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:fitted by R:RuntimeWarning")
def test_a_smooth_alone_has_no_coefficient(simulated):
    found = reading.fit(simulated, "gaze_ms ~ s(bits) - 1")
    assert found.coefficients.empty and list(found.smooths.index) == ["s(bits)"]
    assert np.isfinite(found.loglik)


def test_warnings_of_r_become_those_of_python(simulated):
    with pytest.warns(RuntimeWarning, match="mgcv: .*repeated 1-d smooths"):
        reading.fit(simulated, 'gaze_ms ~ s(position) + s(position, bs="cr")', backend="mgcv")


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ("s(length_chars, k=200)", "fewer unique covariate combinations"),
        ("s(nothing)", "not found in the data"),
        ("s(position) + offset(bits) + offset(prev_bits)", "one offset of several"),
        ("bits + (1 + log(position) | subject)", "set backend='native' or 'lme4'"),
        ('position + s(position, bs="re")', "'position' is a number in one term and labels"),
    ],
)
@pytest.mark.filterwarnings("ignore:the numbers in 'position' label:RuntimeWarning")
def test_what_mgcv_refuses_or_miscounts_is_an_error(simulated, terms, says):
    with pytest.raises(FrameError, match=says):
        reading.fit(simulated, f"gaze_ms ~ {terms}", backend="mgcv")


@pytest.mark.parametrize("backend", ["mgcv", "lme4"])
def test_a_subset_in_r_is_the_fit_of_its_rows(simulated, backend):
    frame = simulated.set_index(simulated.index * 3)
    formula = "log(gaze_ms) ~ bits" + " + (1 | subject)" * (backend == "lme4")
    found = reading.fit(frame, formula, backend=backend, r_arguments="subset = old > 0")
    expected = reading.fit(frame[frame["old"] > 0], formula, backend=backend)
    assert (found.n, found.loglik) == (expected.n, pytest.approx(expected.loglik))
    assert found.loglik_of_response == pytest.approx(expected.loglik_of_response)
    pd.testing.assert_series_equal(found.residuals, expected.residuals)


def test_missing_r_says_how_to_install_it(monkeypatch, simulated):
    mgcv._start.cache_clear()
    monkeypatch.setitem(sys.modules, "rpy2.robjects", None)
    with pytest.raises(mgcv.RMissingError, match="apt-get install r-base-core r-cran-mgcv"):
        reading.fit(simulated, "gaze_ms ~ bits", backend="mgcv")
    mgcv._start.cache_clear()


def test_a_predictor_that_is_a_multiple_of_another_has_no_estimate():
    """mgcv drops one of the two and prints 0 for it, with a standard error of 0."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=200)})
    frame = frame.assign(z=2 * frame["x"], y=frame["x"] + rng.normal(size=200))
    with pytest.warns(RuntimeWarning, match="are combinations of others and were dropped"):
        found = reading.fit(frame, "y ~ x + z", backend="mgcv").coefficients
    slopes = found.loc[["x", "z"]]
    (kept,) = slopes.index[slopes["estimate"].notna()]
    assert slopes.drop(index=kept).isna().all(axis=None)
    alone = reading.fit(frame, f"y ~ {kept}", backend="mgcv").coefficients
    np.testing.assert_allclose(found.loc[kept, "estimate"], alone.loc[kept, "estimate"], rtol=1e-6)
