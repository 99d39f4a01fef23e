"""The paper's analysis on a generated Dundee Corpus: gains are those of two fits by hand."""

import numpy as np
import pandas as pd
import pytest

from analyses import hao2020, running_text, word_models
from psychlm import data, stats
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora

N_WORDS = 240
VOCABULARY = ["sun", "garden", "a", "window", "the", "tree", "understand", "river", "of", "letter"]


@pytest.fixture
def folder(tmp_path):
    """Two texts read by three people, who look longer at longer words, in the original layout."""
    rng = np.random.default_rng(5)
    header = "WORD TEXT LINE OLEN WLEN XPOS WNUM FDUR OBLP WDLP LAUN TXFR"
    for text in ("01", "02"):
        drawn = rng.choice(VOCABULARY, N_WORDS).tolist()
        length = np.array([len(word) for word in drawn])
        words = [
            f"{word} 1 1 {1 + i // 8} {1 + i % 8} {i + 1} {10 * i} {n} {n} 0 0 0 {i + 1} 1"
            for i, (word, n) in enumerate(zip(drawn, length, strict=True))
        ]
        (tmp_path / f"tx{text}wrdp.dat").write_text("\n".join(words))
        for person in ("sa", "sb", "sc"):
            times = enumerate(180 + 8 * length + rng.normal(0, 20, N_WORDS))
            read = [(i, ms) for i, ms in times if rng.random() < 0.8]
            rows = [f"{drawn[i]} 1 1 3 3 12 {i + 1} {ms:.0f} 1 1 -99 4" for i, ms in read]
            (tmp_path / f"{person}{text}ma1p.dat").write_text("\n".join([header, *rows]))
    return tmp_path


def test_the_papers_analysis_of_a_dundee_folder_equals_two_fits_by_hand(folder):
    counts = {word: 3 * place + 2 for place, word in enumerate(VOCABULARY)}
    table = hao2020.dundee(folder, ["default"], counts=counts, folds=None)
    assert table["measure"].tolist() == hao2020.MEASURES
    corpus = corpora.dundee(folder)
    frequency = corpora.log_frequency(corpus.words["word"], counts)
    bits = hao2020.lm.surprisal(corpus.words, hao2020.lm.load("default"))["surprisal_bits"]
    words = corpus.words.assign(log_frequency=frequency, bits=bits.to_numpy())
    words = corpora.add_lags(words, ["length_chars", "log_frequency", "bits"])
    rows = corpora.join(corpus.readings, corpora.exclude(words)[0])
    baseline = reading.fit(rows, f"gaze_ms ~ {reading.BASELINE}").loglik
    loglik = reading.fit(rows, f"gaze_ms ~ bits + prev_bits + {reading.BASELINE}").loglik
    gaze = table.set_index("measure").loc["gaze_ms"]
    assert gaze["n"] == len(rows)
    assert gaze["gain"] == pytest.approx(loglik - baseline, abs=1e-3)
    unique = rows.drop_duplicates(hao2020.KEYS)
    assert gaze["perplexity"] == pytest.approx(2 ** unique["bits"].mean())


@pytest.mark.needs_share
def test_stored_surprisals_are_those_of_an_n_gram_trained_again():
    corpus = running_text.read(["Penn Treebank"], 10**9, seed=2020)["Penn Treebank"]
    (model,) = word_models.models_of(corpus, [2])
    stored = data.facts("hao2020/models").set_index("model")
    assert model.perplexity == pytest.approx(stored["test_perplexity"][model.key], rel=1e-6)
    sentences = corpora.ucl_sentences().query("text_id in ['1', '2', '3']")
    again = model.surprisal(sentences)["surprisal_bits"].to_numpy()
    facts = data.facts("hao2020/surprisals_ucl2023").merge(sentences[hao2020.KEYS])
    np.testing.assert_allclose(again, facts[model.key], rtol=1e-5)


def test_relations_between_and_within_clusters_are_those_of_dummy_coding(rng):
    columns = ["pnc", *hao2020.UCL_MEASURES]
    models = pd.DataFrame(rng.normal(size=(24, len(columns))), columns=columns)
    models["cluster"] = np.repeat(list("abcd"), [9, 6, 5, 4])
    models.loc[models["cluster"] == "a", columns] += 1.0
    relations = hao2020.pnc_relations(models).set_index(["measure", "over"])
    gaze = models["gaze_ms"]
    pooled = stats.correlation(models["pnc"], gaze, method="pearson")
    row = relations.loc["gaze_ms", "all"]
    assert row[["r", "low", "high"]].tolist() == pytest.approx([pooled.r, pooled.low, pooled.high])
    # within clusters: the partial correlation given an indicator of each cluster
    dummies = np.array(pd.get_dummies(models["cluster"]), float)
    left = [y - dummies @ np.linalg.lstsq(dummies, y, rcond=None)[0] for y in (models["pnc"], gaze)]
    within = relations.loc["gaze_ms", "within clusters"]
    assert within["r"] == pytest.approx(np.corrcoef(left)[0, 1])
    assert within["n"] == len(models) - 3
    assert relations.loc["gaze_ms", "between clusters"]["n"] == 4
