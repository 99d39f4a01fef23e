"""Results of models that learned benchmarks, and stored results computed again.

The stored numbers are those of :mod:`psychlm.model_facts`; each run of a notebook computes a random
sample of them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses import choice_networks, question_sets, richardson2020
from psychlm import data, lm, model_facts
from psychlm.corpora import read_items
from psychlm.device import Device
from psychlm.probes.wordnet_qa import Recipe

HEAD = "minilm"  # a multiple-choice head on the frozen MiniLM encoder, see stored_head
TOLERANCE = 1e-3  # largest difference of a live value from a stored one, bits or nats
TRAINING_SETS = {  # of the benchmarks of Shen & Kejriwal (2022), and how many items they hold
    "Abductive NLI": ("mcqa/alphanli/alphanli-train-dev#train.jsonl", 169_654),
    "HellaSwag": ("mcqa/hellaswag/hellaswag_train", 39_905),
    "PIQA": ("mcqa/piqa/physicaliqa-train-dev#train.jsonl", 16_113),
    "Social IQA": ("mcqa/socialiqa/socialiqa-train-dev#train.jsonl", 33_410),
}
TEMPERATURES = (0.5, 1.0, 1.5, 2.0, 3.0)  # of the stored surprisals, see anticipation
# items of each of these banks that the head learns from, and stops by
N_LEARN = 1200
N_STOP = 100
# WordNetQA of notebook 40, and WordNetQA and DictionaryQA of notebook 41
WORDNET = Recipe(seed=46301, max_concepts=2000, max_hops=4, max_distance=3)
GATHERED: dict[str, Any] = {"seed": 2020, "n_concepts": 2000, "most": 10_000}
SCIENCE = (3500, 500, 3000)  # science questions: to learn from, to choose by, to add


def confused_items(
    banks: Sequence[str],
    n_items: int,
    n_train: int,
    *,
    n_wrong: int,
    n_extra: int,
    seed: int,
    training_sets: bool = False,
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame], dict[tuple[str, str], pd.DataFrame]]:
    """Return items, others to learn from, and the presentations of the items.

    The first two are by benchmark, the third by benchmark and presentation. With ``training_sets``
    a benchmark is learned from its own training set where it has one."""
    test_items = {}
    learn = {}
    changed: dict[tuple[str, str], pd.DataFrame] = {}
    n_pool = max(n_items, model_facts.N_PROBED)
    for bank in banks:
        drawn = model_facts.items(bank, n_pool + n_train, seed=seed)
        test_items[bank], learn[bank] = drawn[:n_items], drawn[-n_train:] if n_train else drawn[:0]
        if training_sets and n_train and bank in TRAINING_SETS:
            released = read_items(TRAINING_SETS[bank][0])
            learn[bank] = released.sample(frac=1, random_state=seed)[:n_train]
        sizes = {"n_wrong": n_wrong, "n_extra": n_extra, "seed": seed}
        probes = model_facts.presentations(drawn[:n_pool], keep=n_items, **sizes)
        changed |= {(bank, probe): put for probe, put in probes.items()}
    return test_items, learn, changed


def head_presentations(
    learn: Mapping[str, pd.DataFrame],
    changed: Mapping[tuple[str, str], pd.DataFrame],
    encoder: str,
    *,
    whole: bool = False,
    epochs: int = 5,
    seed: int = 0,
    device: Device = "auto",
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return scores of encoders that learn each benchmark now, by bank and presentation: with a
    head on their frozen states, or as a whole, which is kept in the cache folder, so that a killed
    training resumes. Choices are not listed in the prompt."""
    trained = {}
    for bank, rows in learn.items():
        if whole:
            model: Any = richardson2020.FineTunedModel(encoder, device=device)
            trained[bank] = model.train(rows, seed=seed, epochs=epochs, keep=True)
        else:
            model = choice_networks.encoder_model(encoder, seed=seed, device=device)
            trained[bank] = model.train(rows, seed=seed, epochs=epochs, patience=None)
    return {
        (bank, name): model_facts.in_source_order(trained[bank].logprobs(items), items)
        for (bank, name), items in changed.items()
        if not name.startswith("listed")
    }


def anticipate(words: pd.DataFrame, model: str, temperatures: Sequence[float]) -> pd.DataFrame:
    """Return the surprisals (bits) of words at several temperatures, in columns like ``"T=1.5"``
    behind ``text_id``, ``word_id`` and ``entropy_bits``, the entropy before them at temperature 1.
    """
    table = lm.surprisal(words, model, entropy=True)[["text_id", "word_id", "entropy_bits"]]
    for t in temperatures:
        scored = lm.surprisal(words, model, temperature=t, entropy=t == 1)
        table[f"T={t:g}"] = scored["surprisal_bits"].to_numpy()
    return table


def anticipation(model: str, temperatures: Sequence[float] = TEMPERATURES) -> pd.DataFrame:
    """Return what :func:`anticipate` returns of the words of the UCL corpus. The values of
    :data:`MODELS` at :data:`TEMPERATURES` are stored; all others are computed."""
    if not (model in model_facts.MODELS and set(temperatures) <= set(TEMPERATURES)):
        return anticipate(model_facts.WORDS["ucl2023"](), model, temperatures)
    parameters = {"temperatures": [float(t) for t in temperatures]}
    table = data.facts("models/anticipation_ucl2023", **parameters)
    columns = ["text_id", "word_id", "entropy_bits", *(f"T={t:g}" for t in temperatures)]
    return table.loc[table["model"] == model, columns].reset_index(drop=True)


def science_questions() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return science questions to learn from, to choose models by, and to add to inoculations."""
    drawn = question_sets.science(sum(SCIENCE), seed=GATHERED["seed"])
    cuts = np.split(np.arange(len(drawn)), np.cumsum(SCIENCE)[:-1])
    learn, check, spare = (drawn.iloc[rows].reset_index(drop=True) for rows in cuts)
    return learn, check, spare


@cache
def stored_head(table: str) -> choice_networks.ChoiceClassifier:
    """Return a multiple-choice head on the frozen MiniLM encoder, with weights from the facts.

    ``"science_head"`` learned from science questions, ``"confusion_head"`` from other items of the
    banks under the confusion probes."""
    model = choice_networks.encoder_model("bundled", seed=GATHERED["seed"])
    stored = data.facts(f"models/{table}").groupby("name", sort=False)["weight"]
    weights = {
        name: torch.tensor(stored.get_group(name).to_numpy(np.float32)).reshape(old.shape)
        for name, old in model.network.state_dict().items()
    }
    model.network.load_state_dict(weights)
    return model


def inoculations(
    *,
    sizes: Sequence[int],
    learning_rates: Sequence[float],
    n_seeds: int,
    add_some: Sequence[int],
    **parameters: Any,
) -> dict[str, richardson2020.Inoculation]:
    """Return the stored inoculations of the science model, by probe, with the cells asked for.

    The largest size of a probe with fewer questions is all that it has; ``parameters`` are the
    others of ``models/inoculation``. OtherParametersError if what is asked for is not stored."""
    parameters |= {"sizes": list(sizes), "learning_rates": list(learning_rates)}
    parameters |= {"n_seeds": n_seeds, "add_some": list(add_some)}
    tables = data.facts("models/inoculation", **parameters)
    predictions = data.facts("models/inoculation_predictions", **parameters)
    done = {}
    for probe, rows in tables.groupby("probe", sort=False):
        rows = rows.drop(columns="probe").set_index("cell")
        before = rows.loc[-1, ["new", "original", "average", "test"]]
        cells = rows.drop(-1)
        cells = cells.astype(dict.fromkeys(("k", "epochs", "seed", "add_some"), int))
        wanted = cells["k"].isin([min(k, cells["k"].max()) for k in sizes])
        wanted &= cells["learning_rate"].isin(learning_rates) & cells["add_some"].isin(add_some)
        cells = cells[wanted & (cells["seed"] < n_seeds)]
        of_probe = predictions[predictions["probe"] == probe]
        predicted = of_probe.pivot(index="cell", columns="item_id", values="prediction")
        predicted = predicted.loc[[-1, *cells.index], of_probe["item_id"].unique()]
        done[str(probe)] = richardson2020.Inoculation(cells, before, predicted)
    return done


# The same results computed again


def _compared(live: pd.Series, stored: pd.Series, name: str) -> pd.Series:
    """Return ``n``, the values compared, and ``max_difference``; ValueError if there is none, or it
    exceeds :data:`TOLERANCE`."""
    if not len(live):
        raise ValueError(f"{name}: no value was compared; ask for one at least")
    largest = float((live - stored).abs().max(skipna=False))  # NaN where nothing is stored
    if not largest <= TOLERANCE:
        raise ValueError(
            f"{name}: values computed here differ from the stored ones by up to {largest:.4f}; "
            "make the facts of this version of the model with `python data/build_model_facts.py`"
        )
    return pd.Series({"n": len(live), "max_difference": largest})


def recompute_surprisal(
    corpus: str, words: pd.DataFrame, model: str = "smollm2", *, n: int = 20, seed: int = 0
) -> pd.Series:
    """Compute the surprisals of n randomly drawn words of a corpus again, and compare them (bits).

    A causal model needs only the words before a word, so the beginning of a randomly drawn text is
    scored (of several texts where they are short)."""
    rng = np.random.default_rng(seed)
    longest = 60
    begun = words[words["word_id"] <= longest]
    sizes = begun.groupby("text_id").size().iloc[rng.permutation(begun["text_id"].nunique())]
    # as many texts as it takes to have three times the words that are compared
    chosen = sizes.index[np.r_[0, sizes.cumsum()[:-1]] < 3 * n]
    read = begun[begun["text_id"].isin(chosen)]
    live = lm.surprisal(read, model, cache=False)
    live = live.merge(model_facts.surprisal(corpus), on=["text_id", "word_id"])
    # The last word read may be in the middle of a text, where white space follows it.
    last = live.groupby("text_id")["word_id"].transform("max")
    live = live[(live["word_id"] < last) & live["surprisal_bits"].notna()]
    drawn = live.sample(min(n, len(live)), random_state=seed)
    return _compared(drawn["surprisal_bits"], drawn[model], f"surprisals of {corpus}, {model}")


def recompute_choices(
    stored: pd.DataFrame, asked: pd.DataFrame, model: str = "smollm2", *, n: int = 20, seed: int = 0
) -> pd.Series:
    """Score the choices of n randomly drawn items again, and compare them (nats). ``stored`` are
    rows of a table of choices about the presentation of ``asked``."""
    drawn = asked.sample(min(n, len(asked)), random_state=seed)
    if model == HEAD:
        answered = stored_head("confusion_head").logprobs(drawn)
    else:
        answered = lm.choice_logprobs(drawn, model, cache=False)
    live = model_facts.in_source_order(answered, drawn).stack().dropna().astype(np.float32)
    kept = stored.set_index(["item_id", "choice"])[model].reindex(live.index)
    compared = _compared(live, kept, f"choices scored by {model}")
    compared["n"] = len(drawn)
    return compared


def recompute_presentations(
    tables: tuple[pd.DataFrame, pd.DataFrame],
    changed: Mapping[tuple[str, str], pd.DataFrame],
    models: Sequence[str],
    *,
    n: int,
    seed: int,
) -> pd.DataFrame:
    """Return :func:`recompute_choices` of every benchmark, each under another presentation, by
    model and benchmark; ``tables`` as in :func:`stored_presentations`."""
    stored = pd.concat([tables[0].assign(presentation="original"), tables[1]])
    checked = {}
    for number, bank in enumerate(dict.fromkeys(bank for bank, _ in changed)):
        probe = ("original", "wrong question 1", "no right answer", "no question")[number % 4]
        rows = stored[(stored["bank"] == bank) & (stored["presentation"] == probe)]
        for name in models:
            checked[name, bank] = recompute_choices(
                rows, changed[bank, probe], name, n=n, seed=seed
            )
    return pd.DataFrame(checked, index=["n", "max_difference"]).T


def recompute_science(
    check: pd.DataFrame, stored: pd.DataFrame, *, n: int = 20, seed: int = 0
) -> pd.Series:
    """Answer n randomly drawn science questions, second of :func:`science_questions`, again with
    the stored head, and compare the grades with those of the table ``models/science_check``."""
    drawn = check.sample(min(n, len(check)), random_state=seed)
    grades = stored.set_index("item_id")["trained"]
    right = lm.grade(drawn, stored_head("science_head").logprobs(drawn))
    return _compared(right, grades.loc[right.index].astype(float), "grades of the science model")
