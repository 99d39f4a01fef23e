"""Perplexity against the paper's product, the PNC against scipy on the UCL corpus, relations on the paper's Table 2."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError
from psychlm.reading_times import delta_loglik, simulate_corpus
from psychlm.reading_times.power import (
    dataset_size_against_gain,
    perplexity,
    perplexity_against_gain,
    pnc_against_gain,
    predictability_norm_correlation,
    quality,
)


@pytest.fixture
def words():
    """Two texts, 'the old man' and 'the boats', of which the second word has two tokens."""
    p = [0.5, 0.1 * 0.2, 0.25, 0.4, 0.05]
    return pd.DataFrame(
        {
            "text_id": ["1", "1", "1", "2", "2"],
            "word_id": [1, 2, 3, 1, 2],
            "word": ["the", "old", "man", "the", "boats"],
            "surprisal_bits": -np.log2(p),
            "n_tokens": [1, 2, 1, 1, 1],
        }
    )


def test_perplexity_is_the_papers_product(words):
    tokens = np.array([0.5, 0.1, 0.2, 0.25, 0.4, 0.05])
    found = perplexity(words)
    assert found.per_token == pytest.approx(np.prod(tokens) ** (-1 / 6))
    assert found.per_word == pytest.approx(np.prod(tokens) ** (-1 / 5))
    assert found.per_character == pytest.approx(np.prod(tokens) ** (-1 / (3 + 3 + 3 + 3 + 5 + 3)))
    assert (found.n_tokens, found.n_words, found.n_characters, found.n_missing) == (6, 5, 20, 0)


def test_a_uniform_model_has_the_size_of_its_vocabulary_as_perplexity(words):
    assert perplexity(
        words.assign(surprisal_bits=np.log2(50), n_tokens=1)
    ).per_token == pytest.approx(50)
    assert perplexity(words.drop(columns="n_tokens")).per_token == perplexity(words).per_word


def test_stated_spaces_count_as_they_are(words):
    spaced = words.assign(space_after=["", "  ", "\n", " ", ""])
    assert perplexity(spaced).n_characters == 17 + 3
    assert perplexity(spaced.sample(frac=1, random_state=0)).n_characters == 20
    assert (
        perplexity(words.assign(space_after=[False, True, True, True, True])).n_characters == 17 + 2
    )


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


@pytest.fixture(scope="module")
def table2():
    """Table 2 of Hao et al. (2020), one row a model and measure."""
    from psychlm import data

    table = data.published("hao2020.table2").merge(
        data.published("hao2020.datasets").drop(columns="source")
    )
    return table.drop(columns="source").melt(
        ["model", "family", "dataset", "perplexity", "pnc", "size_mb", "vocabulary"],
        var_name="measure",
        value_name="gain",
    )


def test_table_2_says_what_the_papers_text_says_of_it(table2):
    one = table2[table2["measure"] == "gaze_ms"].set_index("model")
    assert len(one) == 32
    assert (
        one["perplexity"].idxmin() == one["pnc"].idxmax() == "GPT-2"
        and one["pnc"].idxmin() == "XLM"
    )
    pretrained = one[one["family"] == "pre-trained"]
    assert pretrained["perplexity"].idxmax() == "XLNet"
    for _, rows in table2.groupby("measure"):
        best = rows[rows["family"] == "pre-trained"].set_index("model")["gain"].nlargest(2)
        assert list(best.index) == ["GPT-2", "XLNet"] and rows["gain"].max() == best.iloc[0]
        means = rows.groupby(["dataset", "family"])["gain"].mean()
        assert means["Penn Treebank", "LSTM"] > means["Penn Treebank", "Transformer"]
        assert means["WikiText-2", "Transformer"] > means["WikiText-2", "LSTM"]
        trigrams = rows[(rows["dataset"] == "LM1B") & (rows["model"] != "2-Gram")]["gain"]
        assert (trigrams > rows.set_index("model").loc["Transformer-XL", "gain"]).all()
    assert stats.pearsonr(one["perplexity"], one["pnc"]).statistic == pytest.approx(0.222, abs=5e-4)


def test_relations_with_the_gain_are_scipys(table2):
    found = pnc_against_gain(table2, at_least=0.4).set_index("measure")
    for measure, rows in table2[table2["pnc"] >= 0.4].groupby("measure"):
        line = stats.linregress(rows["pnc"], rows["gain"])
        expected = [line.rvalue, line.pvalue, line.slope, line.intercept]
        assert found.loc[measure, ["r", "p", "slope", "intercept"]].to_list() == pytest.approx(
            expected
        )
        assert (
            found.loc[measure, "n"] == 19
            and found.loc[measure, "low"] < line.rvalue < found.loc[measure, "high"]
        )
    assert (pnc_against_gain(table2)["n"] == 32).all()


def test_perplexities_are_compared_within_a_vocabulary(table2):
    found = perplexity_against_gain(table2, within="dataset").set_index(["measure", "dataset"])
    rows = table2[(table2["measure"] == "total_ms") & (table2["dataset"] == "Penn Treebank")]
    line = stats.linregress(rows["perplexity"], rows["gain"])
    assert found.loc[("total_ms", "Penn Treebank"), ["r", "slope"]].to_list() == pytest.approx(
        [line[2], line[0]]
    )
    assert (
        found.loc[("total_ms", "WebText")].drop("n").isna().all()
    )  # GPT-2 is alone with its vocabulary
    assert len(perplexity_against_gain(table2)) == 3


def test_gains_are_averaged_over_the_models_of_a_dataset(table2):
    found = dataset_size_against_gain(table2).set_index(["measure", "dataset"])
    lm1b = [86.9, 122.1, 130.5, 131.3]
    assert found.loc[("first_fixation_ms", "LM1B")].to_list() == pytest.approx(
        [4000, np.mean(lm1b), 4]
    )
    assert list(found.loc["gaze_ms"].index[:4]) == [
        "WikiText-103",
        "LM1B",
        "WebText",
        "XLNet's corpus",
    ]
    assert found.loc["gaze_ms", "size_mb"].isna().sum() == 3
    with pytest.raises(FrameError, match="WebText.*more than one size_mb"):
        dataset_size_against_gain(
            table2.assign(size_mb=np.arange(len(table2)) * (table2["dataset"] == "WebText"))
        )


def test_quality_is_pnc_and_perplexity_per_word(words):
    rng = np.random.default_rng(0)
    norms = words.assign(cloze_surprisal_bits=rng.exponential(size=5))
    bits = words[["text_id", "word_id"]].assign(
        one=words["surprisal_bits"], two=rng.exponential(size=5)
    )
    found = quality(norms, bits.sample(frac=1, random_state=0)).set_index("model")
    assert list(found.index) == ["one", "two"]
    assert found.loc["one", "perplexity"] == pytest.approx(perplexity(words).per_word)
    assert found.loc["two", "pnc"] == pytest.approx(
        stats.pearsonr(bits["two"], norms["cloze_surprisal_bits"])[0]
    )
    with pytest.raises(FrameError, match="4 .text_id, word_id. in common"):
        quality(norms, bits.iloc[1:])
    with pytest.raises(FrameError, match="surprisals have no columns .'three'."):
        quality(norms, bits, models=["three"])
    with pytest.raises(FrameError, match="gains have no columns .'pnc'."):
        pnc_against_gain(pd.DataFrame({"measure": ["gaze_ms"], "gain": [1.0]}))


def test_a_corpus_that_stands_in_for_a_real_one_can_be_analysed_in_its_place():
    corpus = simulate_corpus(
        np.random.default_rng(0),
        measures=["gaze_ms", "self_paced_ms"],
        models=["good", "fair", "poor"],
        n_words=2000,
        n_texts=100,
    )
    words = corpora.add_lags(corpus.words, ["length_chars", "log_frequency"])
    readings = corpora.join(corpus.readings, words).dropna()
    gains = delta_loglik(
        readings, corpus.surprisals, ["gaze_ms", "self_paced_ms"], "length_chars * log_frequency"
    )
    both = gains.merge(quality(corpus.words, corpus.surprisals))
    assert both["pnc"][:3].is_monotonic_decreasing and (both["gain"] > 0).all()
    assert (pnc_against_gain(both)["r"] > 0.8).all() and (
        perplexity_against_gain(both)["n"] == 3
    ).all()
