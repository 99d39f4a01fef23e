"""Results of language models that come with the project, and the items that they belong to.

A forward pass of a model with 135 million parameters over a corpus or an item bank takes minutes.
The numbers are computed once by ``data/build_model_facts.py`` and committed to
``data/facts/models/``. The cards read them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import ascii_letters
from typing import Literal

import numpy as np
import pandas as pd

from psychlm import data, lm
from psychlm.corpora import read_arc, read_items, reading_times
from psychlm.device import Device
from psychlm.probes import confusion

MODELS = ("smollm2", "default")
WORDS: dict[str, Callable[[], pd.DataFrame]] = {
    "ucl2023": reading_times.ucl_sentences,
    "naturalstories": lambda: reading_times.natural_stories().words,
    "provo": lambda: reading_times.provo().words,
    "sap2024": lambda: reading_times.sap().words,
}


BANKS: dict[str, Callable[[], pd.DataFrame]] = {
    "OpenBookQA": lambda: read_arc("mcqa/openbookqa/test"),
    "ARC-Easy": lambda: read_arc("mcqa/arc/ARC-Easy-Test"),
    "ARC-Challenge": lambda: read_arc("mcqa/arc/ARC-Challenge-Test"),
    "SciQ": lambda: read_items("mcqa/sciq/test"),
    "HellaSwag": lambda: read_items("mcqa/hellaswag/hellaswag_val_full"),
    "PIQA": lambda: read_items("mcqa/piqa/valid"),
    "Social IQA": lambda: read_items("mcqa/socialiqa/dev"),
    "GLUE diagnostic": lambda: read_items("mcqa/ax_b"),
    "Abductive NLI": lambda: read_items("mcqa/alphanli/alphanli-train-dev#dev.jsonl"),
}
CONFUSED = ("Social IQA", "ARC-Easy", "PIQA", "HellaSwag")  # banks that the probes change
LISTED = lm.Prompt("{prompt}\nOptions: {options}.\nAnswer:")
SEED = 2210  # of the items drawn and of what the probes borrow
N_ITEMS = 160  # of a bank
N_PROBED = 100  # of these the items under the confusion probes and listed
MAX_CHARS = 220  # longest prompt and choice together: the default model reads 128 tokens
# wrong questions, and choices added
N_WRONG = 2
N_EXTRA = 4

# ------------------------------------------------------------
# Items, and what the confusion probes make of them


def items(bank: str, n: int = N_ITEMS, *, seed: int = SEED) -> pd.DataFrame:
    """Return a random sample of a benchmark's items, short and fit for the confusion probes; a
    larger ``n`` holds the items of a smaller one."""
    sound = BANKS[bank]()
    if bank == "PIQA":  # of which 118 items have white space around their choices
        stripped = sound["choices"].map(lambda texts: [text.strip() for text in texts])
        sound = sound.assign(choices=stripped)
    if "hypothesis" in sound:  # pairs are not put under the probes, and share their premises
        sound, length = sound.astype({"item_id": str}), sound["hypothesis"].str.len()
    else:
        sound, _ = confusion.drop_unfit(sound)
        length = sound["choices"].map(lambda row: max(map(len, row)))
    length = length + sound["prompt"].str.len()
    drawn = sound[length <= MAX_CHARS].sample(frac=1, random_state=seed)
    return drawn.reset_index(drop=True)[:n]


def presentations(
    asked: pd.DataFrame,
    *,
    n_wrong: int = N_WRONG,
    n_extra: int = N_EXTRA,
    seed: int = SEED,
    keep: int | None = None,
) -> dict[str, pd.DataFrame]:
    """Return items as written ("original"), under the confusion probes, and with their choices
    listed, by presentation: the first ``keep`` items, which borrow from all."""
    changed = {"original": asked}
    changed["no question"] = confusion.perturb(asked, "no-question", seed=seed, shuffle=True)
    for number in range(1, n_wrong + 1):
        moved = confusion.perturb(asked, "wrong-question", seed=seed + number, shuffle=True)
        changed[f"wrong question {number}"] = moved
    changed["no right answer"] = confusion.perturb(asked, "no-right-answer", seed=seed)
    changed["more choices"] = confusion.perturb(asked, "more-choices", seed=seed, n_extra=n_extra)
    changed |= {"listed": asked, "listed, more choices": changed["more choices"]}
    first = asked["item_id"][:keep]
    for name, items in changed.items():
        source = items["source_item_id" if "source_item_id" in items else "item_id"]
        changed[name] = items[source.isin(first)].reset_index(drop=True)
    return changed


def in_source_order(scores: pd.DataFrame, asked: pd.DataFrame) -> pd.DataFrame:
    """Return scores of items, perturbed or not, with the choices in their source's order."""
    return confusion.in_source_order(scores, asked) if "order" in asked else scores


def with_options(asked: pd.DataFrame) -> pd.DataFrame:
    """Return items with a column ``options``, all choices as one text, for the prompt LISTED."""
    return asked.assign(options=asked["choices"].map("; ".join))


def presented(
    changed: Mapping[tuple[str, str], pd.DataFrame],
    model: lm.LanguageModel | str,
    way: Literal["sum", "token", "character"],
    *,
    device: Device = "auto",
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return scores computed now in the source's order of choices, by bank and presentation;
    ``way`` is ``normalise`` of lm.choice_logprobs."""
    given = {}
    for (bank, name), items in changed.items():
        listed = name.startswith("listed")
        shown, prompt = (with_options(items), LISTED) if listed else (items, "auto")
        answered = lm.choice_logprobs(shown, model, normalise=way, prompt=prompt, device=device)
        given[bank, name] = in_source_order(answered, items)
    return given


# ------------------------------------------------------------
# Stored results


def scores(stored: pd.DataFrame, model: str, normalise: str = "sum") -> pd.DataFrame:
    """Return stored scores, rows of a table of choices about one bank and one presentation, as
    :func:`psychlm.lm.choice_logprobs` returns them; divided as ``normalise`` says: "sum" (not at
    all), "token" or "character"."""
    divisor = {"sum": None, "token": f"{model}_tokens", "character": "n_chars"}[normalise]
    values = stored[model].astype(np.float64) / (stored[divisor] if divisor else 1)
    table = stored.assign(score=values).pivot(index="item_id", columns="choice", values="score")
    table = table.loc[stored["item_id"].unique()]
    return table.rename_axis(index="item", columns="choice")


def stored_presentations(
    tables: tuple[pd.DataFrame, pd.DataFrame],
    asked: Mapping[str, pd.DataFrame],
    model: str,
    normalise: str = "sum",
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the stored scores that were put to the model, in the source's order of choices, by
    bank and presentation; ``tables`` are ``models/benchmarks``, of items as written, and
    ``models/confusion``."""
    stored = pd.concat([tables[0].assign(presentation="original"), tables[1]])
    given = {}
    for bank, items in asked.items():
        of_bank = stored[stored["bank"] == bank]
        for name, rows in of_bank.groupby("presentation", sort=False):
            if rows[model].notna().all():
                given[bank, str(name)] = scores(rows, model, normalise).loc[items["item_id"]]
    return given


def shapes(stored: pd.DataFrame) -> pd.DataFrame:
    """Return an items frame without texts, for items whose texts are not on this machine: the
    choices are letters, as many and as long as the originals."""
    rows = stored.groupby("item_id", sort=False)
    texts = [
        [("a" * n)[1:] + ascii_letters[position] for position, n in enumerate(lengths)]
        for lengths in rows["n_chars"].agg(list)
    ]
    answer = [int(np.argmax(right)) for right in rows["right"].agg(list)]
    items = {"item_id": list(rows.groups), "prompt": "", "choices": texts, "answer": answer}
    return pd.DataFrame(items)


def surprisal(corpus: str, models: Sequence[str] = MODELS) -> pd.DataFrame:
    """Return the surprisals (bits) of the words of one of :data:`WORDS` in a column for each model,
    beside ``text_id`` and ``word_id``; computed for models other than :data:`MODELS`."""
    keys = ["text_id", "word_id"]
    table = data.facts(f"models/surprisal_{corpus}")
    absent = [name for name in models if name not in table]
    if absent:
        table = table.merge(lm.surprisals(WORDS[corpus](), absent).drop(columns="word"), on=keys)
    return table[[*keys, *models]]
