"""Eleven languages. References: R's lm and cut, and definitions written out."""

import numpy as np
import pandas as pd
import pytest

from analyses import wilcox2023
from psychlm.reading_times import mgcv

# The authors' cross-validation, with R's own folds, regression and densities.
BY_LM = """function(frame, formula) {
    folds <- cut(seq_len(nrow(frame)), breaks = 10, labels = FALSE)
    unlist(lapply(1:10, function(fold) {
        model <- lm(as.formula(formula), data = frame[folds != fold, ])
        held <- frame[folds == fold, ]
        dnorm(held[[all.vars(as.formula(formula))[1]]], predict(model, held), sigma(model), TRUE)
    }))
}"""


@pytest.fixture(scope="module")
def words() -> pd.DataFrame:
    return wilcox2023.words()


def one_model(words: pd.DataFrame, lang: str, model: str) -> pd.DataFrame:
    chosen = words[(words["lang"] == lang) & (words["model"] == model)]
    return chosen.reset_index(drop=True)


@pytest.mark.needs_r
@pytest.mark.needs_share
@pytest.mark.parametrize("lang, model", [("ko", "monot_30m")])
def test_heldout_logliks_equal_those_of_rs_lm(words, lang, model):
    frame = one_model(words, lang, model)
    by_lm = mgcv.r_function(BY_LM)
    with mgcv.in_r():
        predictors = wilcox2023.BASELINE + wilcox2023.SURPRISAL + wilcox2023.ENTROPY
        table = mgcv.to_r(frame, [*wilcox2023.MEASURES, *predictors])
        for measure in wilcox2023.MEASURES:
            for larger, smaller in wilcox2023.COMPARISONS.values():
                for columns in (larger, smaller):
                    terms = wilcox2023.BASELINE + columns
                    expected = np.array(by_lm(table, f"{measure} ~ {' + '.join(terms)}"))
                    logliks = wilcox2023.linear_logliks(frame, measure, terms)
                    np.testing.assert_allclose(logliks, expected, atol=1e-6)


@pytest.mark.needs_r
@pytest.mark.parametrize("n", [10, 11, 573, 1071, 2078])
def test_folds_are_those_of_rs_cut(n):
    expected = mgcv.r_function("function(n) cut(seq_len(n), breaks = 10, labels = FALSE)")
    with mgcv.in_r():
        folds = np.array(expected(n))
    assert np.array_equal(wilcox2023.contiguous_folds(n) + 1, folds)


def test_tests_of_gains_are_those_of_their_definition():
    """By all signs of passages; by draws of the signs of words; the error by the jackknife."""
    rng = np.random.default_rng(3)
    values = rng.normal(0.1, 1, 300)
    passage = np.repeat(np.arange(8), [20, 60, 40, 30, 50, 25, 35, 40])
    table = pd.DataFrame({"passage": passage, "n": 1, "gain": values, "gain_squares": values**2})
    table = table.groupby("passage", as_index=False).sum()
    table = table.assign(lang="l", model="m", measure="y")
    row = wilcox2023.mean_gains(table, "gain").iloc[0]
    assert row["gain"] == pytest.approx(values.mean())
    sums = table["gain"].to_numpy()
    signs = np.array(np.meshgrid(*[[1, -1]] * 8)).reshape(8, -1)
    assert row["p_passages"] == np.mean(signs.T @ sums >= sums.sum() - 1e-9)
    drawn = rng.choice([-1.0, 1.0], size=(20000, 300)) @ values
    assert row["p_words"] == pytest.approx(np.mean(drawn >= values.sum()), abs=0.01)
    without = [values[passage != i].mean() for i in range(8)]
    jackknife = np.sqrt(7 / 8 * np.square(without - np.mean(without)).sum())
    assert row["std_error"] == pytest.approx(jackknife, rel=0.1)


def test_the_summary_over_languages_is_that_of_paule_and_mandel():
    """At the estimate of tau the weighted squares equal their degrees of freedom."""
    rng = np.random.default_rng(5)
    k = 11
    error = rng.uniform(0.5, 1.5, k)
    gain = rng.normal(2, 2, k) + rng.normal(0, error)
    index = pd.MultiIndex.from_product([list("abcdefghijk"), ["m"], ["y"]], names=wilcox2023.KEYS)
    means = pd.DataFrame({"gain": gain, "std_error": error}, index=index)
    row = wilcox2023.over_languages(means).iloc[0]
    weights = 1 / (error**2 + row["tau"] ** 2)
    centre = weights @ gain / weights.sum()
    q = weights @ (gain - centre) ** 2
    assert q == pytest.approx(k - 1, rel=1e-3)
    assert row["gain"] == pytest.approx(centre)
    half = 2.2281389 * np.sqrt(q / (k - 1) / weights.sum())  # t of 10 degrees of freedom
    assert row["high"] - row["gain"] == pytest.approx(half, rel=1e-4)
    fixed = 1 / error**2
    total = fixed @ (gain - fixed @ gain / fixed.sum()) ** 2
    assert row["q"] == pytest.approx(total)
    assert row["i2"] == pytest.approx(1 - (k - 1) / total)
