"""The additive model: formulas against R's rules, plain regression against statsmodels, and 2,000
readers against mgcv 1.8-41's ``bam(method="fREML", discrete=TRUE)``, stored since it takes a
minute."""

import unicodedata

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from psychlm import plots
from psychlm import reading_times as reading
from psychlm.frames import FrameError
from psychlm.reading_times import formula


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    n = 600
    table = pd.DataFrame({"x": rng.normal(size=n), "z": rng.uniform(1, 9, n).round(1)})
    table["old"], table["g"] = rng.random(n) < 0.4, rng.choice(list("abc"), n)
    table["subject"] = rng.choice([f"s{i}" for i in range(8)], n)
    mean = 300 + 9 * table["x"] + 20 * np.sin(table["z"]) + 15 * table["old"]
    return table.assign(y_ms=mean + rng.normal(0, 25, n))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a + b", "no formula"),
        ("y ~ a +", "cannot be read"),
        ("y ~ a ~ b", "two ~"),
        ("poly(y, 2) ~ a", "one response"),
        ("y ~ a - 1", "taken away"),
        ("y ~ a + (0 + b) + (1 | g)", "taken away"),
        ("y ~ gamma(a)", "make a column"),
        ("y ~ log(a, 2)", "make a column"),
        ('y ~ s(a, bs="gp")', "not \\['gp'\\]"),
        ("y ~ s(a, m=1)", "options \\['m'\\]"),
        ('y ~ s(a, b, bs="re", by=d)', "a slope is"),
        ("y ~ s(a, b)", "te\\(x, z\\)"),
        ("y ~ te(a)", "at least two"),
        ("y ~ s(a) + te(a, b)", "overlap"),
        ("y ~ te(a, b) + ti(a, c)", "overlap"),
        ("y ~ ti(a, b, by=c)", "no by="),
        ("y ~ s(a, by=log(b))", "by= names a column"),
        ("y ~ te(a, b, k=max(3, 4))", "one basis dimension"),
        ("y ~ a:offset(b)", "an offset has no interactions"),
        ("y ~ a + offset(poly(b, 2))", "several"),
        ("y ~ s(a) + s(a, k=5)", "twice"),
        ("y ~ s(a, k=2)", "at least 3"),
        ("y ~ (s(x) | g)", "no random effect"),
        ("y ~ x | g", "are written"),
        ("y ~ (1 | g + h)", "cannot be read|no random effect"),
    ],
)
def test_what_a_formula_may_not_say_is_named(text, says):
    with pytest.raises(formula.FormulaError, match=says):
        formula.parse(text)


def test_an_interaction_with_a_smooth_names_what_to_write_and_that_fits() -> None:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"y": rng.normal(size=80), "x": rng.normal(size=80)}).assign(
        cond=np.tile(["a", "b"], 40)
    )
    for text in ("y ~ cond * s(x)", "y ~ cond:s(x)"):
        with pytest.raises(FrameError, match=r"is cond \+ s\(x, by=cond\)"):
            reading.fit(data, text)
    fit = reading.fit(data, "y ~ cond + s(x, by=cond)", backend="native")
    assert len(fit.smooths) == 2


NFC, NFD = (unicodedata.normalize(form, "Länge") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("change", "text", "says"),
    [
        ({}, "y_ms ~ (x > 5) + z", r"stands in I\(\), as I\(x > 5\)"),
        ({}, "y_ms ~ x %in% g", "a %in% b is written a:b"),
        ({NFD: 1.0}, f"y_ms ~ {NFC}", "stored in two ways"),
        ({"x": lambda table: table["x"].astype(str)}, "y_ms ~ x", r"\['x'\].astype\(float\)"),
    ],
)
def test_what_the_data_do_not_have_is_named_with_what_to_write(frame, change, text, says):
    with pytest.raises(FrameError, match=says):
        reading.fit(frame.assign(**change), text)


def test_columns_of_one_name_and_other_data_than_frames_are_named(frame):
    with pytest.raises(FrameError, match=r"several columns are named \['x'\]"):
        reading.fit(pd.concat([frame, frame[["x"]]], axis=1), "y_ms ~ x")
    with pytest.raises(FrameError, match="readings are a dict"):
        reading.fit(dict(frame), "y_ms ~ x")


def test_a_minus_within_a_function_takes_no_term_away(frame):
    found = reading.fit(frame, "y_ms ~ x + I((z - 5)^2)", backend="native")
    made = reading.fit(frame.assign(made=(frame["z"] - 5) ** 2), "y_ms ~ x + made")
    np.testing.assert_allclose(found.coefficients, made.coefficients)


def test_plain_regression_equals_statsmodels(frame):
    ours = reading.fit(frame, "y_ms ~ x * z + old + g")
    theirs = smf.ols("y_ms ~ x * z + old + g", frame).fit()
    assert ours.loglik == pytest.approx(theirs.llf, abs=1e-8)
    assert ours.edf == pytest.approx(len(theirs.params))
    assert sorted(ours.coefficients["estimate"]) == pytest.approx(sorted(theirs.params))
    assert sorted(ours.coefficients["std_error"]) == pytest.approx(sorted(theirs.bse))
    renamed = {"(Intercept)": "Intercept", "oldTRUE": "old[T.True]"}
    renamed |= {"gb": "g[T.b]", "gc": "g[T.c]"}
    covariance = ours.covariance.rename(index=renamed, columns=renamed)
    assert (covariance - theirs.cov_params()).abs().max(axis=None) < 1e-6
    assert ours.predict(frame).to_numpy() == pytest.approx(theirs.predict(frame).to_numpy())


def test_random_effects_of_2000_people_agree_with_bam(sap):
    frame = sap.query("100 < rt < 3000")
    random = 's(subject, bs="re") + s(item, bs="re")'
    fit = reading.fit(frame, f"rt ~ s(length, k=6) + s(trial) + {random}")
    assert fit.converged and fit.n == 184_474
    assert fit.loglik == pytest.approx(-1254513.01492, abs=0.001)
    assert fit.scale == pytest.approx(47754.51218, rel=1e-6)
    edf = {"s(length)": 4.97869, "s(trial)": 7.25719, "s(subject)": 1933.74577}
    edf["s(item)"] = 22.23753
    assert fit.smooths["edf"].to_dict() == pytest.approx(edf, abs=1e-3)


def test_a_response_of_two_columns_and_names_with_a_power_are_read(frame):
    gaps = frame.assign(x2=frame["x"].where(frame.index % 10 > 0), old_ms=frame["y_ms"] + 9)
    fit = reading.fit(gaps, "log(y_ms / old_ms) ~ z + I(x^2)")
    theirs = smf.ols("np.log(y_ms / old_ms) ~ z + I(x ** 2)", gaps).fit()
    assert (fit.loglik, fit.n) == (pytest.approx(theirs.llf, abs=1e-8), 600)
    assert reading.fit(gaps, "y_ms - x2 ~ z").n_missing == 60
    power = reading.fit(frame.rename(columns={"x": "x^2"}), "y_ms ~ `x^2` + s(z)")
    plain = reading.fit(frame, "y_ms ~ x + s(z)")
    assert power.loglik == pytest.approx(plain.loglik, rel=1e-10)
    with pytest.raises(NotImplementedError, match="neither a column nor log"):
        _ = fit.loglik_of_response


def test_plots_show_the_effects_and_residuals_of_a_fit(frame):
    fit = reading.fit(frame, "y_ms ~ g + te(x, z, k=4)")
    figure, axes = plt.subplots(1, 4)
    plots.partial_effect(fit, "g", ax=axes[0])
    drawn = axes[0].lines[0].get_ydata()
    assert drawn == pytest.approx(np.r_[0, fit.coefficients.loc[["gb", "gc"], "estimate"]])
    plots.effect_surface(fit, "te(x,z)", ax=axes[1])
    mesh = axes[1].collections[0].get_array()
    whole = fit.effect("te(x,z)", n=40)["effect"].to_numpy().reshape(40, 40).T
    assert 0.3 < np.mean(~mesh.mask) < 1  # points far from the data are left empty
    assert np.allclose(mesh.compressed(), whole[~mesh.mask])
    plots.residual_qq(fit, ax=axes[2])
    drawn = axes[2].lines[0].get_ydata()
    assert drawn == pytest.approx(np.sort(fit.residuals) / fit.residuals.std(ddof=0))
    assert plots.residuals_by_fit(fit, ax=axes[3]) is axes[3]
    with pytest.raises(ValueError, match="effect_surface"):
        plots.partial_effect(fit, "te(x,z)", ax=axes[0])
    plt.close(figure)


def test_what_only_mgcv_has_is_refused_elsewhere(frame):
    with pytest.raises(ValueError, match="set backend='mgcv'"):
        reading.fit(frame, "y_ms ~ x", backend="native", family="Gamma(link='log')")
    fit = reading.fit(frame, 'y_ms ~ x + s(z, by=g) + s(subject, bs="re")')
    with pytest.raises(ValueError, match=r"no terms of the model.*'s\(z\):ga'"):
        fit.predict(frame, exclude=["s(z)"])
    with pytest.raises(ValueError, match="random_effects"):
        fit.effect("s(subject)")


@pytest.fixture(params=["native", "mgcv"])
def backend(request):
    if request.param == "mgcv":
        request.getfixturevalue("r")
    return request.param


def test_ids_that_are_numbers_are_labels_of_a_random_effect_alone_and_in_a_sweep(frame, backend):
    numbered = frame.assign(subject=frame["subject"].str[1:].astype(int))
    baseline = 'x + s(subject, bs="re")'
    with pytest.warns(RuntimeWarning, match="'subject' label 8 groups.*always has a factor"):
        with_numbers = reading.fit(numbered, f"y_ms ~ z + {baseline}", backend=backend)
    with_text = reading.fit(frame, f"y_ms ~ z + {baseline}", backend=backend)
    assert with_numbers.loglik == pytest.approx(with_text.loglik, abs=1e-6)
    assert np.allclose(with_numbers.smooths, with_text.smooths, atol=1e-6)
    with pytest.raises(FrameError, match="'subject' holds str, and int64 in the data of the fit"):
        with_numbers.predict(numbered.astype({"subject": str}))
    found = with_numbers.predict(numbered.astype({"subject": "category"}).head(9))
    assert found.to_numpy() == pytest.approx(with_text.predict(frame.head(9)).to_numpy())
    new, nobody = (
        x.predict(frame.assign(subject="new").head(9)) for x in (with_numbers, with_text)
    )
    assert new.to_numpy() == pytest.approx(nobody.to_numpy())
    table = numbered.assign(text_id="t", word_id=frame.index + 1)
    bits = table[["text_id", "word_id"]].assign(model=table["z"])
    swept = reading.delta_loglik(table, bits, "y_ms", baseline, lags=0, folds=None)["loglik"][0]
    assert swept == pytest.approx(with_numbers.loglik, abs=1e-6 if backend == "native" else 1e-3)


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize(
    ("backend", "random"),
    [
        ("native", 's(subject, bs="re")'),
        ("mgcv", 's(subject, bs="re")'),
        ("native", "(1 | subject)"),
        ("lme4", "(1 | subject)"),
    ],
)
def test_an_unseen_person_is_the_average_one_and_an_unseen_fixed_level_an_error(
    frame, backend, random
):
    ordered = pd.Categorical(frame["g"], [*"bca"], ordered=True)
    fit = reading.fit(frame.assign(g=ordered), f"y_ms ~ x * old + x:g + {random}", backend=backend)
    known = frame.head(20).astype({"old": object})
    new = known.assign(subject=["nobody", *known["subject"][1:]])
    found, average = fit.predict(new), fit.predict(known, exclude=list(fit.random))
    assert found.iloc[0] == pytest.approx(average.iloc[0])
    fitted = (frame["y_ms"] - fit.residuals)[1:20]
    assert found.iloc[1:].to_numpy() == pytest.approx(fitted.to_numpy())
    with pytest.raises(FrameError, match=r"factor 'g' has levels \['d'\] that were not in"):
        fit.predict(known.assign(g="d"))


def test_a_prediction_needs_no_response(frame, backend):
    fit = reading.fit(frame, "log(y_ms) ~ log(z) + x", backend=backend)
    found = fit.predict(frame[["x", "z"]])
    assert found.to_numpy() == pytest.approx(np.log(frame["y_ms"]) - fit.residuals)


def test_pygam_says_what_it_leaves_out_and_comes_near(frame):
    with pytest.warns(RuntimeWarning, match=r"GCV.*\['s\(subject\)'\] are left out"):
        found = reading.fit(frame, 'y_ms ~ x + s(z) + s(subject, bs="re")', backend="pygam")
    native = reading.fit(frame, "y_ms ~ x + s(z)")
    assert found.coefficients.loc["x", "estimate"] == pytest.approx(
        native.coefficients.loc["x", "estimate"], abs=0.5
    )
    assert found.loglik == pytest.approx(native.loglik, abs=8)
    assert np.corrcoef(found.predict(frame), native.predict(frame))[0, 1] > 0.99
    refused = pytest.raises(FrameError, match=r"\['s\(z\):g'\] cannot be entered")
    with pytest.warns(RuntimeWarning, match="GCV"), refused:
        reading.fit(frame, "y_ms ~ x + s(z, by=g)", backend="pygam")
    with pytest.raises(NotImplementedError, match="pygam's fits only predict"):
        found.summary()


@pytest.mark.parametrize(
    ("change", "terms", "says"),
    [
        ({"x": 1.0}, "x", "'x' is constant"),
        ({"w": lambda t: 2 * t["x"] + t["z"]}, "x + z + w", "'w' is a combination of .*'x'"),
        ({"z": lambda t: np.log(t["z"].where(t.index > 0, 0))}, "s(z)", "infinities"),
        ({"z": lambda t: t["z"].round() % 3}, "s(z)", "3 unique values, too few for a basis.* 10"),
        ({}, "te(z, g)", "'g' is smoothed but holds"),
        ({"subject": lambda t: t.index.astype(str)}, 's(subject, bs="re")', "has a single row"),
        ({}, "z + s(x, by=z)", r"'s\(x\):z.1' is a combination of .*'z'"),
        (
            {"q": lambda t: t["old"] * 1},
            "old + s(x, by=q)",
            r"'s\(x\):q.1' is a combination of .*old",
        ),
        ({}, "s(z, by=old)", "'old' is a boolean by=, which mgcv refuses"),
        ({"z": lambda t: t["z"].round().astype(object)}, "x:z", "'z' holds numbers as objects"),
        ({}, "nothing", "not found in the data"),
        ({}, "log(g)", "log\\(g\\) needs numbers, and \\['g'\\]"),
        ({}, "log(z - 99)", "no finite value in 600 of 600"),
        ({}, "x + offset(g)", "'g' is an offset but holds"),
    ],
)
def test_bad_input_is_named_with_what_to_do(frame, change, terms, says):
    with pytest.raises(FrameError, match=says), np.errstate(divide="ignore"):
        reading.fit(frame.assign(**change), f"y_ms ~ {terms}")


def test_weights_may_be_read_as_text_and_are_positive_numbers(frame, backend):
    numbers = frame.assign(w=1 + frame.index % 5)
    expected = reading.fit(numbers, "y_ms ~ x", weights="w").loglik
    fit = reading.fit(numbers.astype({"w": str}), "y_ms ~ x", backend=backend, weights="w")
    assert fit.loglik == pytest.approx(expected, abs=1e-6)
    for weights in (frame["x"], frame["g"], frame["z"].where(frame.index > 0)):
        with pytest.raises(FrameError, match="'w' are no positive numbers in .* of 600 rows"):
            reading.fit(frame.assign(w=weights), "y_ms ~ x", weights="w")


def test_a_person_with_one_row_and_a_measure_in_seconds_are_warned_of(frame):
    lonely = frame.assign(subject=frame["subject"].where(frame.index > 0, "lonely"))
    with pytest.warns(RuntimeWarning, match="'lonely'.*have one row"):
        reading.fit(lonely, 'y_ms ~ s(subject, bs="re")')
    with pytest.warns(RuntimeWarning, match="looks like seconds.*1000"):
        reading.fit(frame.assign(y_ms=frame["y_ms"] / 1000), "y_ms ~ x")
