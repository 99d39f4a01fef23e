"""Hao et al. (2020): from training a language model to its gain on reading times.

:func:`chain` is the paper's analysis (section 2.2) of any reading-time corpus. ``python -m
psychlm.papers.hao2020`` trains what takes minutes, n-grams on all running text that is at hand and
an LSTM on the Penn Treebank, and writes their surprisals of three corpora and their learning curves
to ``data/facts/hao2020/``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm import data, lm
from psychlm.corpora import reading_times as corpora
from psychlm.corpora import text
from psychlm.lm import word_models
from psychlm.lm.ngram import NgramModel
from psychlm.reading_times import BASELINE, delta_loglik

KEYS = ["text_id", "word_id"]
MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
SEED = 2020
N_WORDS = 5_800_000  # of training text; with a tenth each held out, all the text there is
LSTM = word_models.Training(rate=20.0, batch_size=10, dropout=0.5, epochs=40, seed=SEED)
LSTM_SIZE = 200


def chain(
    corpus: corpora.Corpus,
    surprisals: pd.DataFrame,
    measures: Sequence[str],
    baseline: str = BASELINE,
    *,
    log_frequency: Any = None,
    **options: Any,
) -> pd.DataFrame:
    """Return perplexity per word and gains of language models on a corpus, words left out as in
    the paper.

    Parameters
    ----------
    corpus : Corpus
    surprisals : DataFrame
        ``text_id``, ``word_id`` and one column of surprisals (bits) per model.
    measures : sequence of str
        Columns of ``corpus.readings``; a reading that lacks one is left out.
    baseline : str
        Terms of the model without surprisal; by default the paper's, with an intercept for each
        subject.
    log_frequency : (n_words,) array, optional
        For words without such a column (nats).
    **options
        Of :func:`psychlm.reading_times.delta_loglik`.

    Returns
    -------
    DataFrame
        That function's rows, one per measure and model, with ``perplexity``: 2 to the power of the
        mean surprisal of the words modelled.
    """
    words = corpus.words
    if log_frequency is not None:
        words = words.assign(log_frequency=log_frequency)
    words = corpora.add_lags(words, ["length_chars", "log_frequency"])
    kept, _ = corpora.exclude(words)
    needed = ["log_frequency", "prev_log_frequency", *measures]
    rows = corpora.join(corpus.readings, kept).dropna(subset=needed)
    gains = delta_loglik(rows, surprisals, list(measures), baseline, **options)
    read = surprisals.merge(rows[KEYS].drop_duplicates()).drop(columns=KEYS)
    return gains.assign(perplexity=gains["model"].map(2 ** read.mean(numeric_only=True)))


def dundee(
    folder: str | Path,
    models: Sequence[str],
    *,
    counts: Mapping[str, float] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return :func:`chain` of the Dundee Corpus, for holders of its licence: the paper's Table 2.

    Parameters
    ----------
    folder : path
        Of the corpus's files (:func:`psychlm.corpora.reading_times.dundee`).
    models : sequence of str
        Names or folders that :func:`psychlm.lm.load` takes, such as "gpt2".
    counts : mapping of word to count, optional
        For word frequency: the paper's are of the One Billion Word Benchmark; those of 20 novels
        unless given.
    """
    corpus = corpora.dundee(folder)
    bits = corpus.words[KEYS].copy()
    for name in models:
        read = lm.surprisal(corpus.words, lm.load(name)).set_index(KEYS)["surprisal_bits"]
        bits[name] = read.loc[pd.MultiIndex.from_frame(bits[KEYS])].to_numpy()
    counts = text.novel_counts() if counts is None else counts
    frequency = corpora.log_frequency(corpus.words["word"], counts).to_numpy()
    return chain(corpus, bits, MEASURES, log_frequency=frequency, **options)


def train_all(corpora_read: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Train the models whose numbers are stored; return ``curves``, and ``surprisals_<corpus>``.

    Parameters
    ----------
    corpora_read : mapping of corpus to words frame
    """
    begun = time.process_time()
    models: dict[str, word_models.CorpusModel] = {}
    validation: dict[str, float] = {}
    everything = text.read(["all texts"], N_WORDS, seed=SEED)["all texts"]
    treebank = text.read(["Penn Treebank"], 10**9, seed=SEED)["Penn Treebank"]
    with tempfile.TemporaryDirectory() as folder:
        for corpus in (everything, treebank):
            for model in word_models.ngrams(corpus, (2, 3, 4, 5), folder):
                models[model.key] = model
                assert isinstance(model.model, NgramModel)
                held_out = model.model.perplexity(corpus.validation)
                validation[model.key] = held_out.including_unknown
    vocabulary = word_models.Vocabulary.of(treebank.train)
    parts = [vocabulary.stream(p) for p in (treebank.train, treebank.validation, treebank.test)]
    shape = word_models.Architecture("lstm", LSTM_SIZE)
    # The checkpoint stays, so that a run that was killed continues.
    kept = data.root() / "data" / "derived" / "hao2020"
    done = word_models.train(parts[0], parts[1], vocabulary, shape, LSTM, folder=kept)
    reached = word_models.perplexity(done.model, parts[2])
    lstm = word_models.CorpusModel("LSTM", LSTM_SIZE, treebank, done.model, reached, LSTM)
    models[lstm.key], validation[lstm.key] = lstm, done.validation_perplexity
    rows = [
        {
            "model": key,
            "n_train": model.corpus.n_words["train"],
            "n_types": len({token for sentence in model.corpus.train for token in sentence}),
            "validation_perplexity": validation[key],
            "test_perplexity": model.perplexity,
        }
        for key, model in models.items()
    ]
    curves = done.history.assign(model=lstm.key, cpu_seconds=time.process_time() - begun)
    tables = {"models": pd.DataFrame(rows), "curves": curves}
    for name, words in corpora_read.items():
        table = words[KEYS].reset_index(drop=True)
        for key, model in models.items():
            scored = model.surprisal(words).set_index(KEYS)["surprisal_bits"]
            bits = scored.loc[pd.MultiIndex.from_frame(table[KEYS])].to_numpy()
            table[key] = bits.astype("float32")
        tables[f"surprisals_{name}"] = table
    return tables


def main() -> None:
    """Train the stored models and write their numbers."""
    read = {
        "ucl2023": corpora.ucl_norms().sentences,
        "naturalstories": corpora.natural_stories().words,
        "provo": corpora.provo().words,
    }
    folder = data.root() / "data" / "facts" / "hao2020"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in train_all(read).items():
        with data.atomic_write(folder / f"{name}.parquet") as part:
            table.to_parquet(part, index=False, compression="zstd")


if __name__ == "__main__":
    main()
