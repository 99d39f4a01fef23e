"""Small and degenerate reading studies: a function gives a number or a reason that can be followed.

Reference: none is needed; no error of linear algebra may leave a public function.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from psychlm import reading_times as rt
from psychlm.corpora import reading_times as corpus
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


@pytest.fixture(scope="module")
def study() -> pd.DataFrame:
    """Return 12 readers of 16 items in three conditions; the last 40 rows lack something."""
    rng = np.random.default_rng(11)
    ids = pd.MultiIndex.from_product([range(1, 13), range(1, 17)], names=["subject", "item"])
    table = ids.to_frame(index=False)
    table["cond"] = np.array(["a", "b", "c"])[(table["subject"] + table["item"]) % 3]
    table["freq"] = rng.normal(8, 2, 17).round(2)[table["item"]]
    effects = [rng.normal(0, 30, 13)[table["subject"]], rng.normal(0, 15, 17)[table["item"]]]
    table["rt"] = 300 + 20.0 * (table["cond"] == "b") + sum(effects) + rng.normal(0, 40, 192)
    table["subject"] = "s" + table["subject"].astype(str)
    for row, name in zip(range(152, 192), ["rt", "freq", "cond", "subject"] * 10, strict=True):
        table.loc[row, name] = None
    return table


FORMULA = "rt ~ cond * freq + (1 | subject) + (1 | item)"
ODD = {"rt": "Zeit (μs)", "cond": "my cond-ä", "subject": "reader" * 30, "freq": "lambda"}
FUNCTIONS = {"rt": "offset", "cond": "s", "subject": "te", "freq": "scale"}
FEW, ORDERED = pd.CategoricalDtype([*"AabcZ"]), pd.CategoricalDtype([*"abc"], ordered=True)
LEVELS = {"a": "1 größe", "b": "2 日本", "c": "3:x y"}


def renamed(names: dict[str, str]) -> str:
    """Return the formula with other names, between backticks."""
    return re.sub(r"[a-z]+", lambda word: f"`{names.get(word[0], word[0])}`", FORMULA)


# How the same study may be written; no number depends on it.
WRITTEN = {
    "names long, with blanks or signs": (lambda d: d.rename(columns=ODD), renamed(ODD)),
    "names of functions": (lambda d: d.rename(columns=FUNCTIONS), renamed(FUNCTIONS)),
    "levels in other scripts": (lambda d: d.assign(cond=d["cond"].map(LEVELS)), FORMULA),
    "levels without rows": (lambda d: d.astype({"cond": FEW}), FORMULA),
    "an ordered factor": (lambda d: d.astype({"cond": ORDERED}), FORMULA),
    "numbers as levels": (
        lambda d: d.replace({"cond": {"a": 1, "b": 2, "c": 4}}),
        FORMULA.replace("cond", "factor(cond)"),
    ),
    "types with missing values": (lambda d: d.convert_dtypes(), FORMULA),
    "one index for all rows": (lambda d: d.set_axis([0] * len(d)), FORMULA),
    "another order of rows": (lambda d: d.sample(frac=1, random_state=1), FORMULA),
}


@pytest.mark.filterwarnings("ignore:rows without a predictor")
@pytest.mark.parametrize("kind", WRITTEN)
def test_the_numbers_of_a_study_do_not_depend_on_how_it_is_written(study, kind):
    def numbers(data: pd.DataFrame, formula: str) -> np.ndarray:
        fit = rt.fit(data, formula, backend="native")
        means = fit.means(fit.fixed_variables[0], pairs=True).table
        tables = [fit.coefficients, fit.anova().table, means.select_dtypes("number")]
        found = [fit.loglik, *fit.variance_components]
        return np.concatenate([found, *(table.to_numpy().ravel() for table in tables)])

    rewrite, formula = WRITTEN[kind]
    np.testing.assert_allclose(numbers(rewrite(study), formula), numbers(study, FORMULA), rtol=1e-5)


@pytest.mark.parametrize("name", ["word.freq", "word freq", "class", "I", "ü-1"])
def test_expressions_take_columns_of_any_name(study, name):
    data = study.dropna()
    plain = rt.fit(data, "log(rt) ~ cond * scale(freq) + (1 | subject)").coefficients
    renamed = data.rename(columns={"freq": name, "rt": "my rt"})
    fit = rt.fit(
        renamed, f"log(`my rt`) ~ cond * scale(`{name}`) + (1 | subject)", backend="native"
    )
    np.testing.assert_allclose(fit.coefficients, plain, rtol=1e-6)
    assert fit.predict(renamed).mean() == pytest.approx(np.log(data["rt"]).mean(), rel=1e-2)


MIXED = {"a": 1, "b": "b", "c": "c"}
REFUSED = {
    "no rows": (lambda d: d.head(0), FORMULA, "has no rows"),
    "one row": (lambda d: d.head(1), FORMULA, "in all 1 rows"),
    "one reader": (lambda d: d[d["subject"] == "s1"], FORMULA, "'subject' is constant .*several"),
    "times as text": (lambda d: d.astype({"rt": str}), FORMULA, "pd.to_numeric"),
    "labels of two types": (lambda d: d.replace({"cond": MIXED}), FORMULA, "several types"),
    "dates": (lambda d: d.assign(day=pd.to_datetime(d.index)), "rt ~ day", "holds dates"),
    "a factor that is its group": (
        lambda d: d.assign(who=d["subject"]),
        "rt ~ who + (1 | subject)",
        "leave out either",
    ),
    "a group in the linear terms": (lambda d: d, "rt ~ cond + (1 | cond)", "leave out either"),
}


@pytest.mark.filterwarnings("ignore:rows without a predictor")
@pytest.mark.parametrize("kind", REFUSED)
def test_studies_that_cannot_be_fitted_are_refused_with_the_reason(study, kind):
    spoil, formula, says = REFUSED[kind]
    with pytest.raises(FrameError, match=says):
        rt.fit(spoil(study), formula, backend="native")


SPOILT = {
    "an unknown column": (lambda d: corpus.add_lags(d, ["none"]), "'none'.* are not there"),
    "lags below zero": (lambda d: corpus.add_lags(d, "rt", -1), "lags is -1"),
    "an unknown boundary": (lambda d: corpus.add_lags(d, "rt", within="none"), "'none'"),
    "an unknown measure": (lambda d: corpus.exclude(d, corpus.trimming("none")), "there are"),
    "a step of numbers": (lambda d: corpus.exclude(d, {"x": lambda r: r["rt"]}), "not True or"),
    "fixations without times": (corpus.reading_measures, "lack the columns .'duration_ms'"),
    "times as text": (
        lambda d: corpus.reading_measures(d.assign(duration_ms="12")),
        "holds text, not numbers",
    ),
    "a reader without a name": (
        lambda d: corpus.reading_measures(d.assign(duration_ms=1, subject=None)),
        "'subject'.* need an id",
    ),
    "words twice": (lambda d: corpus.join(d, d[["text_id", "word_id"]]), "more than once"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_preparations_of_readings_are_refused_with_the_reason(study, kind):
    call, says = SPOILT[kind]
    readings = study.dropna().assign(text_id="t", word_id=lambda d: d["item"])
    with pytest.raises(ValueError, match=says):
        call(readings)
    lagged = corpus.add_lags(readings, "rt")  # of the same reader
    first = lagged["item"] == 1
    assert lagged["prev_rt"].isna().sum() == first.sum()
    assert (lagged["prev_rt"][~first].to_numpy() == lagged["rt"].shift()[~first]).all()


def test_a_response_that_predictors_reproduce_is_said_to_be_one(study):
    exact = study.dropna().assign(rt=lambda d: 2 * d["freq"] + (d["cond"] == "b"))
    with pytest.warns(RuntimeWarning, match="reproduces the response"):
        fit = rt.fit(exact, "rt ~ cond + freq")
    assert fit.coefficients["estimate"].to_numpy() == pytest.approx([0, 1, 0, 2], abs=1e-9)
    assert fit.scale > 0
    small = rt.fit(study.dropna().assign(rt=lambda d: -1e-8 * d["rt"]), "rt ~ freq")
    assert not re.search(r"-0\.?0*\s", repr(small))


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
