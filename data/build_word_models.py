"""Train the word-level models whose numbers are stored: ``python data/build_word_models.py``.

N-grams are trained on all running text that is at hand and on the Penn Treebank's validation file,
and an LSTM on the latter until it gets no better (eleven CPU minutes in all). Their surprisals of
the words of three corpora, perplexities and a learning curve go to ``data/facts/hao2020/``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import pandas as pd

from analyses import running_text as text
from analyses import word_models
from analyses.hao2020 import KEYS
from analyses.ngram import NgramModel
from psychlm import data
from psychlm.corpora import reading_times as corpora

SEED = 2020
N_WORDS = 5_800_000  # of training text; with a tenth each held out, all the text there is
LSTM = word_models.Training(rate=20.0, batch_size=10, dropout=0.5, epochs=40, seed=SEED)
LSTM_SIZE = 200


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
    for corpus in (everything, treebank):
        for model in word_models.models_of(corpus, (2, 3, 4, 5)):
            models[model.key] = model
            assert isinstance(model.model, NgramModel)
            validation[model.key] = model.model.perplexity(corpus.validation)
    vocabulary = word_models.Vocabulary.of(treebank.train)
    parts = [vocabulary.stream(p) for p in (treebank.train, treebank.validation, treebank.test)]
    shape = word_models.Architecture("lstm", LSTM_SIZE)
    # The checkpoint stays, so that a run that was killed continues.
    kept = data.root() / "data" / "derived" / "hao2020"
    trained, curve = word_models.train(*parts[:2], vocabulary, shape, LSTM, folder=kept)
    reached = word_models.perplexity(trained, parts[2])
    lstm = word_models.CorpusModel("LSTM", LSTM_SIZE, treebank, trained, reached)
    models[lstm.key], validation[lstm.key] = lstm, curve["validation_perplexity"].min()
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
    curves = curve.assign(model=lstm.key, cpu_seconds=time.process_time() - begun)
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
        "ucl2023": corpora.ucl_sentences(),
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
