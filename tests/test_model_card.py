"""The model card's held-out gains. Reference: statsmodels' least squares."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy.stats import norm

from psychlm import model_card
from psychlm.corpora import reading_times as corpora


@pytest.fixture
def provo(rng):
    corpus = corpora.provo()
    bits = corpus.words[model_card.KEYS].assign(model=rng.gamma(2, 3, len(corpus.words)))
    measure = "total_scaled"
    return model_card.readings_with_predictors(corpus, "provo", measure, bits), measure


def test_heldout_logliks_are_those_of_least_squares(provo):
    frame, measure = provo
    logliks = model_card.heldout_logliks(frame, measure, ["model"], folds=3, seed=5)
    unit = pd.factorize(frame["unit"])[0]
    fold = np.random.default_rng(5).permutation(unit.max() + 1)[unit] % 3
    formula = f"{measure} ~ model + prev_model + {model_card.BASELINE.replace('^', '**')}"
    train, test = frame[fold != 1], frame[fold == 1]
    fit = smf.ols(formula, train).fit()
    expected = norm.logpdf(test[measure], fit.predict(test), np.sqrt((fit.resid**2).mean()))
    np.testing.assert_allclose(logliks.loc[test.index, "model"], expected / np.log(2), atol=1e-8)
    assert not logliks.isna().any(axis=None)


def test_the_word_before_is_that_of_the_same_text(provo):
    frame, _ = provo
    bits = frame.drop_duplicates(model_card.KEYS).set_index(model_card.KEYS)
    before = bits["model"].rename(lambda word: word + 1, level="word_id").reindex(bits.index)
    known = before.notna()  # where the word before has readings of its own
    assert known.mean() > 0.5
    np.testing.assert_array_equal(bits.loc[known, "prev_model"], before[known])


def test_a_tenth_of_the_garden_paths_has_items_of_both_constructions():
    """Some seeds left one item of a construction, or readers with one sentence: fits failed."""
    sap = corpora.sap()
    sentences = sap.readings.drop_duplicates("text_id").set_index("text_id")
    for seed in range(4):
        some = model_card.a_tenth(sap.words, "sap2024", np.random.default_rng(seed))
        kept = sentences.loc[some["text_id"].unique()]
        assert (kept.groupby("construction")["item"].nunique() == 5).all()
        assert (kept.groupby(["construction", "item"]).size() == 2).all(), "both versions"
