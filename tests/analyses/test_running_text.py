"""Corpora, norms and the traditional models of notebook 10. References: the entropy counted from a
Markov chain's own text, and the released sentences."""

import numpy as np
import pandas as pd
import pytest

from analyses import running_text
from psychlm import data
from psychlm.corpora import reading_times


def test_the_perplexity_of_a_markov_chain_is_that_of_its_own_transitions() -> None:
    chain, best = running_text.markov(100_000, 6, seed=3)
    stream = pd.Series([token for sentence in chain.train for token in [*sentence, "."]])
    pairs = pd.crosstab(stream.shift(fill_value="."), stream)
    conditional = pairs.div(pairs.sum(axis=1), axis=0).to_numpy()
    logs = np.log2(np.where(conditional > 0, conditional, 1))
    assert 2 ** -((pairs.to_numpy() * logs).sum() / len(stream)) == pytest.approx(best, rel=0.03)


@pytest.mark.usefixtures("no_data")
def test_a_corpus_that_cannot_be_had_or_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="ptb"):
        running_text.read(["ptb"], 100, seed=1)
    with pytest.raises(data.DataMissingError):
        running_text.read(["Penn Treebank"], 300, seed=1)


@pytest.mark.needs_share
def test_norms_stand_at_their_words_in_the_whole_sentences() -> None:
    ucl = reading_times.ucl_norms()
    sentences = reading_times.ucl_sentences()
    both = ucl.merge(sentences, on=["text_id", "word_id"], suffixes=("", "_read"))
    assert len(both) == len(ucl)
    assert (both["word"] == both["word_read"]).all()
    assert len(ucl.filter(regex="^GPT").columns) == 7
    assert not ucl.loc[ucl["bare"], "word"].str.contains(r"[^A-Za-z]").any()


@pytest.mark.needs_share
def test_parts_of_the_novels_hold_different_sentences() -> None:
    corpus = running_text.prose("novels", 20_000, seed=1)
    parts = (corpus.train, corpus.validation, corpus.test)
    long = [{" ".join(s) for s in part if len(s) > 12} for part in parts]
    assert not (long[0] & long[1] or long[0] & long[2] or long[1] & long[2])
    assert corpus.n_words["train"] == pytest.approx(20_000, rel=0.02)


def test_sap_has_the_released_readings_and_the_same_verb_in_both_versions_of_an_item() -> None:
    corpus = reading_times.sap()
    released = data.facts("sap2024/readings").query("sentence_id != 49")
    assert len(corpus.readings) == len(released) == 185_043
    assert corpus.readings["self_paced_ms"].sum() == released["self_paced_ms"].sum()
    assert corpus.surprisals is not None
    bits = corpus.surprisals.drop(columns=["text_id", "word_id"])
    assert bits.notna().all(axis=None) and (bits > 0).all(axis=None)
    whole = corpus.words.groupby("text_id")["word_id"].agg(["min", "max", "size"])
    assert (whole["min"] == 1).all() and (whole["max"] == whole["size"]).all()
    versions = corpus.readings.drop_duplicates(["construction", "item", "difficult", "region"])
    shapes = versions.merge(corpus.words, on=["text_id", "word_id"], validate="one_to_one")
    verbs = shapes[(shapes["region"] == 0) & (shapes["construction"] == "NP/Z")]
    lengths = verbs.pivot(index="item", columns="difficult", values="length_chars")
    assert (lengths[True] == lengths[False]).all() and len(lengths) == 24
