"""Questions from WordNet and the dictionary, kept on disk, and samples of them for training and
testing (Richardson & Sabharwal 2020).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm import data
from psychlm.corpora import read_items
from psychlm.frames import FrameError
from psychlm.papers import dictionary
from psychlm.probes import wordnet, wordnet_qa
from psychlm.probes.wordnet_qa import Builder, Recipe

SCIENCE = (
    "mcqa/openbookqa/train",
    "mcqa/arc/ARC-Easy-Train",
    "mcqa/arc/ARC-Challenge-Train",
    "mcqa/sciq/valid",
)
_ITEM = ["item_id", "prompt", "choices", "answer"]
COLUMNS = [*_ITEM, "probe", "cluster", "hops", "distractor_set", "distractor_distance", "split"]


@dataclass(frozen=True, eq=False)
class Gathered:
    """Questions of WordNetQA and DictionaryQA.

    Attributes
    ----------
    items : DataFrame
        An items frame with ``probe``, ``cluster``, ``hops``, ``distractor_set``,
        ``distractor_distance`` and ``split``.
    biased : DataFrame
        DictionaryQA built the wrong way (distractors without examples).
    about : dict
        What a manifest says of each: "wordnet", "dictionary", "biased".
    """

    items: pd.DataFrame
    biased: pd.DataFrame
    about: dict[str, dict[str, Any]]


def gather(
    folder: str | Path,
    *,
    seed: int,
    n_concepts: int,
    pos: str = "nvar",
    records: int | None = None,
    most: int | None = None,
) -> Gathered:
    """Return the probes of WordNet and of the dictionary; keep them in ``folder`` for later calls.

    Parameters
    ----------
    folder : path
        Where built questions are kept; a change of the sources or of this code builds anew.
    n_concepts : int
        Concepts drawn for each WordNet probe.
    pos : str
        WordNet's parts of speech to read, as in :func:`psychlm.probes.wordnet.load`.
    records : int, optional
        Read only so many records of the dictionary.
    most : int, optional
        Questions to keep of the dictionary's.

    Raises
    ------
    DataMissingError
        If WordNet or the dictionary is not installed.
    FrameError
        If a probe has no questions for training, development or test.
    """
    senses = cache(lambda: dictionary.read(first=records))  # read once for both sets of questions

    def from_wordnet() -> tuple[pd.DataFrame, dict[str, Any]]:
        recipe = Recipe(seed=seed, max_concepts=n_concepts, max_distance=2)
        built = Builder(wordnet.load(pos=pos)).build(recipe)
        return built.items, built.header()

    def from_dictionary(biased: bool) -> tuple[pd.DataFrame, dict[str, Any]]:
        source, rng = senses(), np.random.default_rng(seed)
        built = dictionary.build(source, rng, n_items=most, distractors_without_examples=biased)
        return built, source.header() | {"seed": seed, **built.attrs}

    def kept(name: str, source: Path, make: Callable) -> pd.DataFrame:
        # The name ends in digits that change with this code and with the source's files.
        digest = hashlib.sha256()
        builders = Path(wordnet_qa.__file__).parent.glob("*.py")
        for module in [Path(dictionary.__file__), Path(__file__), *sorted(builders)]:
            digest.update(module.read_bytes())
        for file in sorted(source.glob("data.*")) if source.is_dir() else [source]:
            digest.update(f"{file} {file.stat().st_size}".encode())
        table = Path(folder) / f"{name}-{digest.hexdigest()[:12]}.parquet"
        if not table.is_file():
            items, about = make()
            items = items.sort_values(["probe", "split"], kind="stable", ignore_index=True)
            items.attrs |= about
            table.parent.mkdir(parents=True, exist_ok=True)
            with data.atomic_write(table) as part:
                items.to_parquet(part)
        items = pd.read_parquet(table)
        return items.assign(choices=items["choices"].map(list))

    size = f"{seed}-{records or 'all'}-{most or 'all'}"
    gcide = dictionary.find()
    sets = {
        "wordnet": kept(f"wordnet-{seed}-{n_concepts}-{pos}", wordnet.find(), from_wordnet),
        "dictionary": kept(f"dictionary-{size}", gcide, lambda: from_dictionary(False)),
        "biased": kept(f"dictionary-{size}-biased", gcide, lambda: from_dictionary(True)),
    }
    items = pd.concat([sets[name][COLUMNS] for name in ("wordnet", "dictionary")])
    items = items.reset_index(drop=True)
    sizes = items.groupby(["probe", "split"], observed=True).size().unstack(fill_value=0)
    if (empty := sizes.eq(0).any(axis=1)).any():
        raise FrameError(
            f"n_concepts={n_concepts} leaves {list(sizes.index[empty])} without questions in one "
            f"of {list(sizes.columns)}; ask for more concepts"
        )
    return Gathered(items, sets["biased"], {name: table.attrs for name, table in sets.items()})


def science(n: int, *, seed: int) -> pd.DataFrame:
    """Return n science questions drawn from the training files of OpenBookQA and ARC, and SciQ.

    Raises
    ------
    DataMissingError
        If they cannot be had.
    FrameError
        If there are fewer.
    """
    parts = [read_items(name)[_ITEM].assign(source=name) for name in SCIENCE]
    together = pd.concat(parts, ignore_index=True)
    if len(together) < n:
        raise FrameError(f"there are {len(together)} science questions, not {n}; ask for fewer")
    order = np.random.default_rng(seed).permutation(len(together))[:n]
    drawn = together.iloc[order].reset_index(drop=True)
    return drawn.assign(item_id=drawn["source"] + ":" + drawn["item_id"].astype(str))


def whole_clusters(questions: pd.DataFrame, split: str, n: int, *, seed: int) -> pd.DataFrame:
    """Return at most n questions of each probe in one split, whole clusters at a time.

    A larger n holds the questions of a smaller one.

    Raises
    ------
    FrameError
        If the first cluster drawn of a probe has more than n questions.
    """
    part = questions[questions["split"] == split]
    sizes = part.groupby(["probe", "cluster"], observed=True).size().rename("size").reset_index()
    sizes = sizes.iloc[np.random.default_rng(seed).permutation(len(sizes))]
    kept = sizes[sizes.groupby("probe", observed=True)["size"].cumsum() <= n]
    first = sizes.groupby("probe", observed=True)["size"].first()
    if len(large := first[first > n]):
        raise FrameError(
            f"{n} questions leave {large.idxmax()!r} without any in {split!r}: the first concept "
            f"drawn has {large.max()}; ask for at least {large.max()}"
        )
    return part[part["cluster"].isin(kept["cluster"])].reset_index(drop=True)
