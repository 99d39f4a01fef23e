"""Hao et al. (2020): from a language model's surprisals to its gain on reading times.

:func:`chain` is the paper's analysis (section 2.2) of any reading-time corpus, and :func:`dundee`
that of the paper's own, for holders of its licence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm import lm
from psychlm.corpora import reading_times as corpora
from psychlm.corpora import text
from psychlm.reading_times import BASELINE, delta_loglik

KEYS = ["text_id", "word_id"]
MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]


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
    bits = lm.surprisals(corpus.words, models).drop(columns="word")
    counts = text.novel_counts() if counts is None else counts
    frequency = corpora.log_frequency(corpus.words["word"], counts).to_numpy()
    return chain(corpus, bits, MEASURES, log_frequency=frequency, **options)
