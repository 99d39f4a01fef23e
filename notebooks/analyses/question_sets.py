"""Questions from WordNet and the dictionary, kept on disk, and samples of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses import dictionary
from psychlm import data
from psychlm.corpora import read_items
from psychlm.frames import FrameError
from psychlm.probes import wordnet, wordnet_qa

SCIENCE = (
    "mcqa/openbookqa/train",
    "mcqa/arc/ARC-Easy-Train",
    "mcqa/arc/ARC-Challenge-Train",
    "mcqa/sciq/valid",
)
_ITEM = ["item_id", "prompt", "choices", "answer"]
COLUMNS = [*_ITEM, "probe", "cluster", "hops", "distractor_set", "distractor_distance", "split"]


class Gathered(NamedTuple):
    """Questions of WordNetQA and DictionaryQA."""

    items: pd.DataFrame  # an items frame with COLUMNS
    biased: pd.DataFrame  # DictionaryQA built the wrong way (distractors without examples)
    about: dict[str, Any]  # what was read of the dictionary, and what became no question


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

    A change of the sources or of this code builds anew. ``n_concepts`` are drawn for each WordNet
    probe among the parts of speech ``pos``; ``records`` of the dictionary are read and ``most``
    questions of it kept, all unless given."""
    entries = cache(lambda: dictionary.read(first=records))  # read once for both sets of questions

    def from_wordnet() -> pd.DataFrame:
        recipe = wordnet_qa.Recipe(seed=seed, max_concepts=n_concepts, max_distance=2)
        return wordnet_qa.Builder(wordnet.load(pos=pos)).build(recipe).items

    def from_dictionary(biased: bool) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        built = dictionary.build(entries(), rng, n_items=most, distractors_without_examples=biased)
        built.attrs = entries().attrs
        return built

    def kept(name: str, source: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        # The name ends in digits that change with this code and with the source's files.
        builders = sorted(Path(wordnet_qa.__file__).parent.glob("*.py"))
        code = [
            file.read_bytes() for file in (Path(dictionary.__file__), Path(__file__), *builders)
        ]
        files = sorted(source.glob("data.*")) if source.is_dir() else [source]
        sizes = [f"{file} {file.stat().st_size}" for file in files]
        table = Path(folder) / f"{name}-{data.digest([*code, *sizes])[:12]}.parquet"
        if not table.is_file():
            items = make().sort_values(["probe", "split"], kind="stable", ignore_index=True)
            table.parent.mkdir(parents=True, exist_ok=True)
            with data.atomic_write(table) as part:
                items.to_parquet(part)
        items = pd.read_parquet(table)
        return items.assign(choices=items["choices"].map(list))

    size = f"{seed}-{records or 'all'}-{most or 'all'}"
    gcide = dictionary.find()
    asked = kept(f"wordnet-{seed}-{n_concepts}-{pos}", wordnet.find(), from_wordnet)
    sound = kept(f"dictionary-{size}", gcide, lambda: from_dictionary(False))
    biased = kept(f"dictionary-{size}-biased", gcide, lambda: from_dictionary(True))
    items = pd.concat([asked[COLUMNS], sound[COLUMNS]], ignore_index=True)
    sizes = items.groupby(["probe", "split"], observed=True).size().unstack(fill_value=0)
    if (empty := sizes.eq(0).any(axis=1)).any():
        raise FrameError(
            f"n_concepts={n_concepts} leaves {list(sizes.index[empty])} without questions in one "
            f"of {list(sizes.columns)}; ask for more concepts"
        )
    return Gathered(items, biased, sound.attrs)


def science(n: int, *, seed: int) -> pd.DataFrame:
    """Return n science questions drawn from the training files of OpenBookQA and ARC, and SciQ."""
    parts = [read_items(name)[_ITEM].assign(source=name) for name in SCIENCE]
    together = pd.concat(parts, ignore_index=True)
    if len(together) < n:
        raise FrameError(f"there are {len(together)} science questions, not {n}; ask for fewer")
    order = np.random.default_rng(seed).permutation(len(together))[:n]
    drawn = together.iloc[order].reset_index(drop=True)
    return drawn.assign(item_id=drawn["source"] + ":" + drawn["item_id"].astype(str))


def whole_clusters(questions: pd.DataFrame, split: str, n: int, *, seed: int) -> pd.DataFrame:
    """Return about n questions of each probe in one split, whole clusters at a time.

    Clusters are taken in a random order while they fit into n, and at least one of each probe. A
    larger n holds the questions of a smaller one."""
    part = questions[questions["split"] == split]
    sizes = part.groupby(["probe", "cluster"], observed=True).size().rename("size").reset_index()
    sizes = sizes.iloc[np.random.default_rng(seed).permutation(len(sizes))]
    of_probe = sizes.groupby("probe", observed=True)["size"]
    kept = sizes.loc[(of_probe.cumsum() <= n) | (of_probe.cumcount() == 0), "cluster"]
    return part[part["cluster"].isin(kept)].reset_index(drop=True)
