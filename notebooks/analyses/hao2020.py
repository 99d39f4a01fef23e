"""Hao et al. (2020): from a language model's surprisals to its gain on reading times.

:func:`chain` is the paper's analysis (section 2.2) of any reading-time corpus, and :func:`dundee`
that of the paper's own, for holders of its licence. :func:`stored_models` and :func:`pnc_relations`
ask over all stored models whether those whose surprisal is closer to people's gain more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from analyses import running_text as text
from analyses.word_models import CorpusModel
from psychlm import data, lm, model_facts
from psychlm.corpora import novels
from psychlm.corpora import reading_times as corpora
from psychlm.frames import is_shape
from psychlm.reading_times import BASELINE, delta_loglik, quality

KEYS = ["text_id", "word_id"]
MEASURES = ["first_fixation_ms", "gaze_ms", "total_ms"]
# Of sentences read by several people, whose mean times were released
MEAN_BASELINE = (
    "te(length_chars, log_frequency) + prev_length_chars + prev_log_frequency + s(position)"
)
UCL_MEASURES = {  # reading time of the UCL corpus: its name
    "first_fixation_ms": "first fixation",
    "gaze_ms": "gaze",
    "right_bounded_ms": "right-bounded",
    "go_past_ms": "go-past",
    "self_paced_ms": "self-paced",
}
CLUSTERS = {  # what a model's name begins with: models that were trained alike
    "penn_treebank": "64,000 words (Penn Treebank)",
    "all_texts": "6 million words",
    "default": "6 million words",
    "GPT": "pre-trained Transformers",
    "smollm2": "pre-trained Transformers",
    "": "released n-grams, RNN and PSG",
}
WORTHLESS_PNC = 0.5  # below it: models that know less of people's guesses than word frequency


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
    the paper: the rows of :func:`psychlm.reading_times.delta_loglik`, whose options are passed on.

    ``baseline`` are the terms of the model without surprisal; a reading that lacks a measure is
    left out. ``log_frequency`` (nats) is for words without such a column."""
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
    ``counts`` are for word frequency, by default of 20 novels (the paper's: One Billion Word)."""
    corpus = corpora.dundee(folder)
    bits = lm.surprisals(corpus.words, models).drop(columns="word")
    counts = novels.word_counts() if counts is None else counts
    frequency = corpora.log_frequency(corpus.words["word"], counts).to_numpy()
    return chain(corpus, bits, MEASURES, log_frequency=frequency, **options)


def corpora_at_hand(
    names: Sequence[str], n_words: int, *, seed: int
) -> tuple[dict[str, text.WordCorpus], list[str]]:
    """Return the corpora of :mod:`analyses.running_text` that can be had (one at least), and
    the names of the others."""
    read: dict[str, text.WordCorpus] = {}
    absent = []
    for name in names:
        try:
            read |= text.read([name], n_words, seed=seed)
        except data.DataMissingError:
            if name == names[-1] and not read:
                raise
            absent.append(name)
    return read, absent


def words_at_hand() -> dict[str, pd.DataFrame]:
    """Return the words of the reading-time corpora whose texts can be had, for models to read."""
    words = {}
    for name in ("ucl2023", "naturalstories", "provo"):
        try:
            read = model_facts.WORDS[name]()
        except data.DataMissingError:
            continue
        if not is_shape(read["word"]):
            words[name] = read
    return words


def beside_table1(models: Sequence[CorpusModel]) -> pd.DataFrame:
    """Return perplexities beside those of the paper's model of the nearest size (Table 1): missing
    where the paper has no model of this family on this corpus."""
    printed = data.published("hao2020.table1")
    rows = []
    for model in models:
        same = printed.query("dataset == @model.corpus.name and family == @model.family")
        near = same.loc[(same["size"] - model.size).abs().nsmallest(1).index].to_dict("records")
        nearest: Mapping[Any, Any] = {"perplexity": np.nan, "model": "", "source": ""}
        nearest = near[0] if near else nearest
        row: dict[str, Any] = {"text": model.corpus.name, "model": model.name, "key": model.key}
        row |= {"perplexity": model.perplexity, "published": nearest["perplexity"]}
        rows.append(row | {"paper's model": nearest["model"], "source": nearest["source"]})
    return pd.DataFrame(rows)


def key_beside(model: CorpusModel, stored: Collection[str]) -> str:
    """Return the key of a model trained in a run, apart from that of a stored one."""
    return f"{model.key}, here" if model.key in stored else model.key


def chains(
    words: Mapping[str, pd.DataFrame],
    models: Sequence[CorpusModel],
    stored: Sequence[str],
    *,
    folds: int,
    level: float,
    seed: int,
) -> dict[str, pd.DataFrame]:
    """Return :func:`chain` of three corpora, over stored models and models that read the texts.

    ``words`` is what :func:`words_at_hand` returned. Where a text is absent, stored models are
    compared, with the frequencies of the corpus in place of those counted in twenty novels."""
    measures = {
        "ucl2023": (corpora.ucl, ["gaze_ms", "self_paced_ms"]),
        "naturalstories": (corpora.natural_stories, ["self_paced_ms"]),
        "provo": (corpora.provo, ["first_fixation_scaled", "total_scaled"]),
    }
    gains = {}
    for name, (reader, columns) in measures.items():
        corpus = reader()
        frequency = None
        table = model_facts.surprisal(name)[[*KEYS, *stored]]
        trained = data.facts(f"hao2020/surprisals_{name}")
        table = table.merge(trained, on=KEYS, validate="one_to_one")
        if name in words:
            counts = novels.word_counts()
            frequency = corpora.log_frequency(corpus.words["word"], counts).to_numpy()
            for model in models:
                scored = model.surprisal(words[name]).set_index(KEYS)["surprisal_bits"]
                read = scored.loc[pd.MultiIndex.from_frame(table[KEYS])].to_numpy()
                table[key_beside(model, set(trained))] = read
        elif "log_frequency" not in corpus.words:  # counted in the novels, stored
            counted = corpus.words[KEYS].merge(data.facts(f"{name}/frequency"), "left", on=KEYS)
            frequency = counted["log_frequency"].to_numpy()
        options = {"folds": folds, "level": level, "rng": seed, "log_frequency": frequency}
        gains[name] = chain(corpus, table, columns, MEAN_BASELINE, **options)
    return gains


def figures_of(
    gains: Mapping[str, pd.DataFrame],
    pnc: pd.Series,
    stored: pd.DataFrame,
    models: Sequence[CorpusModel],
    default_tokens: float,
) -> pd.DataFrame:
    """Return what the paper's Figures 1 to 5 draw, for stored models (the facts ``hao2020/models``)
    and models of a run: one row per model.

    ``gains`` is what :func:`chains` returned; of each row, ``training text`` is in million tokens,
    ``perplexity`` per word of the UCL corpus, ``gain`` relative to the largest of each measure."""
    million = (stored["n_train"] / 1e6).to_dict() | {"smollm2": 2e6}  # Allal et al. 2025
    types = stored["n_types"].to_dict() | {"smollm2": 49_152, "default": 8_000}
    million["default"] = default_tokens / 1e6
    for model in models:
        key = key_beside(model, stored.index)
        million[key] = model.corpus.n_words["train"] / 1e6
        types[key] = len({token for sentence in model.corpus.train for token in sentence})
    all_gains = pd.concat(gains).reset_index(0, names="corpus")
    largest = all_gains.groupby(["corpus", "measure"])["heldout_gain"].transform("max")
    relative = (all_gains["heldout_gain"] / largest).groupby(all_gains["model"]).mean()
    table = pd.DataFrame({"pnc": pnc, "training text": pd.Series(million).reindex(pnc.index)})
    table["perplexity"] = gains["ucl2023"].groupby("model")["perplexity"].first()
    table["perplexity / vocabulary"] = table["perplexity"] / pd.Series(types)
    table["gain"] = relative
    table["kind"] = "trained here"
    table.loc[table.index.isin(["smollm2", "default"]), "kind"] = "pre-trained"
    table.loc[table.index.isin(stored.index), "kind"] = "trained longer"
    return table


def stored_models(*, folds: int = 5, seed: int = 2020) -> pd.DataFrame:
    """Return PNC, perplexity and gains on the UCL corpus of all models whose surprisals are stored:
    one row per model, by PNC.

    The PNC is over words without attached punctuation or clitics. Models of one ``cluster`` were
    trained alike; held-out gains are nats per 1,000 words."""
    corpus = corpora.ucl()
    tables = (data.facts("hao2020/surprisals_ucl2023"), model_facts.surprisal("ucl2023"))
    bits = corpus.surprisals
    assert bits is not None
    for table in tables:
        bits = bits.merge(table, on=KEYS, validate="one_to_one")
    bare = corpus.words.loc[corpus.words["word"].str.fullmatch("[A-Za-z]+"), KEYS]
    models = quality(corpus.words.merge(bare), bits.merge(bare)).set_index("model")
    options: dict[str, Any] = {"folds": folds, "rng": seed}
    for measure in UCL_MEASURES:
        gains = chain(corpus, bits, [measure], MEAN_BASELINE, **options).set_index("model")
        models[measure] = 1000 * gains["heldout_gain"]
    begins = [next(begin for begin in CLUSTERS if name.startswith(begin)) for name in models.index]
    models.insert(0, "cluster", [CLUSTERS[begin] for begin in begins])
    return models.drop(columns=["pnc_low", "pnc_high", "n_words"]).sort_values("pnc")


def pnc_relations(models: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """Return how the held-out gain goes with the PNC over models, by measure and set of models.

    ``over`` is "all", "PNC above 0.5", "between clusters" (their means) or "within clusters"
    (differences from these, which lose one degree of freedom for each cluster). Intervals are
    Fisher's, too narrow over all models, since those trained alike are not independent."""
    rows = []
    for measure in UCL_MEASURES:
        pair = models[["pnc", measure]]
        means = pair.groupby(models["cluster"]).mean()
        around = pair - pair.groupby(models["cluster"]).transform("mean")
        sets = {"all": pair, f"PNC above {WORTHLESS_PNC}": pair[pair["pnc"] > WORTHLESS_PNC]}
        sets |= {"between clusters": means, "within clusters": around}
        for over, points in sets.items():
            n = len(points) - (len(means) - 1) * (over == "within clusters")
            r = float(points.corr().iloc[0, 1])
            half = norm.ppf((1 + level) / 2) / np.sqrt(n - 3) if n > 3 else np.nan
            low, high = np.tanh(np.arctanh(r) + np.array([-half, half]))
            row = {"measure": measure, "over": over, "r": r, "low": low, "high": high, "n": n}
            rows.append(row)
    return pd.DataFrame(rows)


def pnc_verdict(relations: pd.DataFrame) -> dict[str, str]:
    """Return what :func:`pnc_relations` says of the paper's claim, for ``report.verdict``:
    ``sentence`` and ``outcome``."""
    by_set = relations.groupby("over")
    pooled = by_set.get_group("all")
    able = by_set.get_group(f"PNC above {WORTHLESS_PNC}")
    outcome = "partly"
    if pooled["low"].min() <= 0:
        sentence = "The gain does not rise significantly with the PNC on every measure."
        outcome = "not" if pooled["r"].min() <= 0 else "partly"
    elif able["low"].min() > 0:
        sentence = "The gain rises with the PNC on every measure."
        outcome = "reproduced"
    elif able["low"].max() > able["high"].min():  # two intervals that do not overlap
        sentence = (
            "The PNC finds models without gain; how it ranks the others depends on the measure."
        )
    else:
        which = "some measures only" if able["low"].max() > 0 else "no measure significantly"
        finds = "models that gain nothing" if able["low"].max() > 0 else "models without gain"
        sentence = f"The PNC finds {finds}, but ranks the others on {which}."
    return {"sentence": sentence, "outcome": outcome}
