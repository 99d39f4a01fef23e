"""What the card of a language model (notebook 01) computes on reading corpora."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import norm

from psychlm import data
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.device import Device

KEYS = ["text_id", "word_id"]
# What the card reads that does not come with the project, and the dataset that has it.
TEXTS = {
    "ucl2023": "ucl2023/all_measures",
    "ratings": "ucl2023/all_measures",
    "provo": "provo/provo_texts",
    "items": "laverghetta2021/diagnostic_results",
    "probes": "mcqa/arc/ARC-Easy-Test",
}
BASELINE = (
    "(log_frequency + length_chars)^2 + (prev_log_frequency + prev_length_chars)^2 + position"
)


def a_tenth(words: pd.DataFrame, corpus: str, rng: np.random.Generator) -> pd.DataFrame:
    """Return about a tenth of a corpus: whole texts, the beginnings of the Natural Stories, or the
    pairs of sentences of five SAP items of each construction (a reader has seen a third of all)."""
    if corpus == "naturalstories":
        longest = words.groupby("text_id")["word_id"].transform("max")
        return words[words["word_id"] <= longest / 10]
    unit = words["text_id"]
    kind = pd.Series("text", words.index)
    if corpus == "sap2024":
        sentences = corpora.sap().readings.drop_duplicates("text_id").set_index("text_id")
        kind = unit.map(sentences["construction"])
        unit = kind + unit.map(sentences["item"])
    kinds = [np.sort(of_kind.unique()) for _, of_kind in unit.dropna().groupby(kind)]
    each = 5 if len(kinds) > 1 else max(len(kinds[0]) // 10, 6)
    chosen = np.concatenate([rng.permutation(units)[:each] for units in kinds])
    return words[unit.isin(chosen)]


def with_released(bits: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return bits, and beside them GPT-3's (``gpt3``) where the corpus was released with them."""
    if name != "naturalstories":
        return bits
    released = data.facts(f"{name}/surprisals").rename(columns={"GPT-3 davinci": "gpt3"})
    return bits.merge(released, on=KEYS, how="left", validate="one_to_one")


def readings_with_predictors(
    corpus: corpora.Corpus, name: str, measure: str, bits: pd.DataFrame
) -> pd.DataFrame:
    """Return the readings of a corpus with all predictors of the word and the one before.

    ``name`` is its folder among the facts, which hold frequencies where its words have none;
    ``bits`` has surprisal in a column for each model. ``people`` are cloze guesses (bits), and
    ``unit`` is the text, or a hundred words of it in the Natural Stories.
    """
    models = list(bits.columns.drop(KEYS))
    words = corpus.words
    if "log_frequency" not in words:
        words = words.merge(data.facts(f"{name}/frequency"), on=KEYS)
    columns = ["length_chars", "log_frequency"]
    if "cloze_surprisal_bits" in words:
        words = words.rename(columns={"cloze_surprisal_bits": "people"})
        columns.append("people")
    words = corpora.exclude(corpora.add_lags(words, columns))[0]
    lagged_bits = corpora.add_lags(bits.assign(word="w"), models).drop(columns="word")
    frame = corpora.join(corpus.readings, words).merge(lagged_bits, on=KEYS)
    passage = frame["text_id"] + "." + (frame["word_id"] // 100).astype(str)
    frame["unit"] = passage if name == "naturalstories" else frame["text_id"]
    used = [measure, *columns[1:], *models]
    used += [f"prev_{column}" for column in (*columns[1:], *models)]
    return frame.dropna(subset=used).reset_index(drop=True)


def heldout_logliks(
    frame: pd.DataFrame,
    measure: str,
    names: Sequence[str],
    *,
    folds: int,
    seed: int,
    device: Device = "auto",
) -> pd.DataFrame:
    """Return the log-likelihood (bits) of each held-out reading, normal with the residual sd of the
    training part: of the ``baseline``, and for each of ``names`` with its surprisal, and that of
    the word before, added. Units are held out whole."""
    codes = pd.factorize(frame["unit"])[0]
    fold = np.random.default_rng(seed).permutation(codes.max() + 1)[codes] % folds
    logliks = pd.DataFrame(index=frame.index)
    for name in ("baseline", *names):
        added = "" if name == "baseline" else f"{name} + prev_{name} + "
        for part in range(folds):
            train = frame[fold != part]
            test = frame[fold == part]
            fit = reading.fit(train, f"{measure} ~ {added}{BASELINE}", device=device)
            sd = np.sqrt((fit.residuals**2).mean())
            density = norm.logpdf(test[measure], fit.predict(test), sd)
            logliks.loc[test.index, name] = density / np.log(2)
    return logliks
