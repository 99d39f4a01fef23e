"""Probes and science questions as an inoculation needs them: built once, kept on disk, drawn whole clusters at a time.

A source that is not installed is no error here: it is named in ``notes``, and the others are used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm.corpora import item_banks as items
from psychlm.data import DataError
from psychlm.frames import FrameError
from psychlm.probes import dictionary, gcide, made_up_probes, probe_files, wordnet, wordnet_probes
from psychlm.probes.wordnet_recipe import Recipe

SCIENCE = (
    "mcqa/openbookqa/train",
    "mcqa/arc/ARC-Easy-Train",
    "mcqa/arc/ARC-Challenge-Train",
    "mcqa/sciq/valid",
)
COLUMNS = [
    "item_id",
    "prompt",
    "choices",
    "answer",
    "probe",
    "cluster",
    "hops",
    "distractor_set",
    "distractor_distance",
]
MADE_UP_PER_CONCEPT = 8  # questions, about as many as WordNet gives


@dataclass(frozen=True, eq=False)
class Gathered:
    """Questions of every probe that could be had."""

    items: (
        pd.DataFrame
    )  # an items frame with probe, cluster, hops, distractor_set, distractor_distance, split
    biased: pd.DataFrame  # DictionaryQA built the wrong way; empty without the dictionary
    about: dict[str, dict[str, Any]]  # by source: what its manifest says
    notes: tuple[str, ...]  # which sources were not there, and how to get them
    made_up: bool  # whether a made-up taxonomy stands in for WordNet


def gather(
    folder: str | Path,
    *,
    seed: int,
    n_concepts: int,
    records: int | None = None,
    most: int | None = None,
    real: bool = True,
) -> Gathered:
    """Return the probes of WordNet and of the dictionary, from ``folder`` where they have been built before.

    Parameters
    ----------
    folder : path
        Where built probes are kept, each in the layout of :mod:`psychlm.probes.probe_files`.
    n_concepts : int
        Concepts drawn for each WordNet probe.
    records : int, optional
        Read only so many records of the dictionary.
    most : int, optional
        Questions to keep of the dictionary's.
    real : bool
        False: a made-up taxonomy in WordNet's place.
    """
    notes, parts, about, folder = [], [], {}, Path(folder)
    biased, made_up = pd.DataFrame(columns=[*COLUMNS, "split"]), not real
    if real:
        try:
            place = folder / f"wordnet-{seed}-{n_concepts}-{_built_by(wordnet.find())}"
            found, about["wordnet"] = _kept(place, partial(_wordnet, seed, n_concepts))
            parts.append(found)
        except DataError as error:
            notes.append(f"{error}. A made-up taxonomy stands in for WordNet.")
            made_up = True
    if made_up:
        parts.append(
            made_up_probes.isa(MADE_UP_PER_CONCEPT * n_concepts, np.random.default_rng(seed))
        )
    try:
        for wrong in (False, True):
            kind = f"dictionary-{seed}-{records or 'all'}-{most or 'all'}{'-biased' * wrong}"
            place = folder / f"{kind}-{_built_by(gcide.find())}"
            made = partial(_dictionary, seed, records, most, wrong)
            found, about["biased" if wrong else "dictionary"] = _kept(place, made)
            biased = found if wrong else biased
            parts += [] if wrong else [found]
    except DataError as error:
        notes.append(f"{error}. The dictionary's probe is left out.")
    together = pd.concat([part[[*COLUMNS, "split"]] for part in parts], ignore_index=True)
    return Gathered(together, biased, about, tuple(notes), made_up)


def _built_by(source: Path) -> str:
    """Return twelve digits that change with the code that builds probes and with the files that they are built from."""
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    for file in sorted(source.glob("data.*")) if source.is_dir() else [source]:
        digest.update(f"{file} {file.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def _kept(
    folder: Path, make: Callable[[], tuple[pd.DataFrame, dict[str, Any]]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return questions and what is known of them, from disk if they are there."""
    try:
        found = probe_files.read(folder)
    except (FrameError, DataError, OSError):  # not there, or not whole
        made, header = make()
        probe_files.write(made, folder, header)
        found = probe_files.read(folder)
    return found, json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def _wordnet(seed: int, n_concepts: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    recipe = Recipe(seed=seed, max_concepts=n_concepts, max_distance=2)
    probes = wordnet_probes.Builder(wordnet.load()).build(recipe)
    return probes.items, probes.header()


def _dictionary(
    seed: int, records: int | None, most: int | None, wrong: bool
) -> tuple[pd.DataFrame, dict[str, Any]]:
    read = dictionary.read(first=records)
    built = dictionary.build(
        read, np.random.default_rng(seed), n_items=most, distractors_without_examples=wrong
    )
    said = {
        "source": "GCIDE",
        "seed": seed,
        "entries": built.n_entries,
        "with_examples": built.n_with_examples,
    }
    return built.items, said | {
        "records": read.n_records,
        "broken": read.broken.to_dict(),
        "left_out": built.left_out.to_dict(),
    }


def science(n: int, *, seed: int) -> pd.DataFrame:
    """Return n science questions drawn at random from the training files of OpenBookQA and ARC and from SciQ.

    Raises
    ------
    DataError
        If they cannot be had.
    FrameError
        If there are fewer.
    """
    parts = [
        (items.sciq(name) if "sciq" in name else items.read_arc(name)).assign(source=name)[
            ["item_id", "prompt", "choices", "answer", "source"]
        ]
        for name in SCIENCE
    ]
    together = pd.concat(parts, ignore_index=True)
    if len(together) < n:
        raise FrameError(
            f"{n} science questions are asked for, and there are {len(together)}; ask for fewer"
        )
    together = together.iloc[
        np.random.default_rng(seed).permutation(len(together))[:n]
    ].reset_index(drop=True)
    return together.assign(item_id=together["source"] + ":" + together["item_id"].astype(str))


def whole_clusters(questions: pd.DataFrame, split: str, n: int, *, seed: int) -> pd.DataFrame:
    """Return about n questions a probe of one part of the split, whole clusters at a time (never more than n).

    A larger n holds the questions of a smaller one.
    """
    rng = np.random.default_rng(seed)
    part = questions[questions["split"] == split]
    size = part.groupby(["probe", "cluster"], observed=True).size().rename("size").reset_index()
    size = size.iloc[rng.permutation(len(size))]
    size = size[size.groupby("probe", observed=True)["size"].cumsum() <= n]
    return part[part["cluster"].isin(size["cluster"])].reset_index(drop=True)
