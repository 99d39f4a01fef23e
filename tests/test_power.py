"""Perplexity against the product in the paper's formula, and the PNC against scipy on the UCL corpus."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from psychlm.frames import FrameError
from psychlm.reading.power import perplexity, predictability_norm_correlation


@pytest.fixture
def words():
    """Two texts, 'the old man' and 'the boats', of which the second word has two tokens."""
    p = [0.5, 0.1 * 0.2, 0.25, 0.4, 0.05]
    return pd.DataFrame({
        "text_id": ["1", "1", "1", "2", "2"], "word_id": [1, 2, 3, 1, 2],
        "word": ["the", "old", "man", "the", "boats"], "surprisal_bits": -np.log2(p), "n_tokens": [1, 2, 1, 1, 1],
    })  # fmt: skip


def test_perplexity_is_the_papers_product(words):
    tokens = np.array([0.5, 0.1, 0.2, 0.25, 0.4, 0.05])
    found = perplexity(words)
    assert found.per_token == pytest.approx(np.prod(tokens) ** (-1 / 6))
    assert found.per_word == pytest.approx(np.prod(tokens) ** (-1 / 5))
    assert found.per_character == pytest.approx(np.prod(tokens) ** (-1 / (3 + 3 + 3 + 3 + 5 + 3)))
    assert (found.n_tokens, found.n_words, found.n_characters, found.n_missing) == (6, 5, 20, 0)


def test_a_uniform_model_has_the_size_of_its_vocabulary_as_perplexity(words):
    assert perplexity(words.assign(surprisal_bits=np.log2(50), n_tokens=1)).per_token == pytest.approx(50)
    assert perplexity(words.drop(columns="n_tokens")).per_token == perplexity(words).per_word


def test_stated_spaces_count_as_they_are(words):
    spaced = words.assign(space_after=["", "  ", "\n", " ", ""])
    assert perplexity(spaced).n_characters == 17 + 3
    assert perplexity(spaced.sample(frac=1, random_state=0)).n_characters == 20
    assert perplexity(words.assign(space_after=[False, True, True, True, True])).n_characters == 17 + 2


def test_missing_words_are_counted_and_infinite_ones_show(words):
    gappy = words.assign(surprisal_bits=words["surprisal_bits"].where(words["word"] != "old"))
    found = perplexity(gappy)
    assert (found.n_missing, found.n_tokens) == (1, 4)
    assert found.per_token == pytest.approx((0.5 * 0.25 * 0.4 * 0.05) ** (-1 / 4))
    assert perplexity(words.assign(surprisal_bits=[np.inf, 1, 1, 1, 1])).per_word == np.inf
    with pytest.raises(FrameError, match="NaN for all 5 words"):
        perplexity(words.assign(surprisal_bits=np.nan))
    with pytest.raises(FrameError, match="no column 'gpt2'"):
        perplexity(words, "gpt2")


@pytest.mark.needs_share
def test_the_pnc_of_the_released_models_is_scipys_correlation():
    from psychlm import data

    corpus = pd.read_csv(data.path("ucl2023/all_measures"))
    for model in ("s_GPT2", "s_GPTNeo", "trigram"):
        found = predictability_norm_correlation(corpus[model], corpus["cloze_s"])
        complete = corpus[[model, "cloze_s"]].dropna()
        expected = stats.pearsonr(complete[model], complete["cloze_s"])
        interval = expected.confidence_interval()
        assert found.r == pytest.approx(expected.statistic)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
        assert found.n + found.n_missing == len(corpus)


def test_a_word_that_nobody_said_must_be_smoothed():
    with pytest.raises(ValueError, match="cloze_surprisal is infinite for 1 words"):
        predictability_norm_correlation([1, 2, 3, 4], [1, 2, 3, np.inf])
