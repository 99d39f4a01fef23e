"""Lalor (2020, chapter 5): the tasks that artificial crowds learn, and agreement with people.

SNLI and SST are learned from features of a frozen encoder in a few dimensions: facts that
``python data/build_model_facts.py encoder`` makes, and every run of a notebook samples again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import fetch_openml, load_digits
from sklearn.decomposition import PCA

from psychlm import crowds, data
from psychlm.corpora import laverghetta2021
from psychlm.corpora.item_banks import NLI_LABELS, nli, sentiment
from psychlm.lm import ModelError
from psychlm.lm.encoders import open_encoder

# task -> dimensions kept of each block of states that its features have
DIMENSIONS = {"snli": (40, 40), "sst": (48,)}
TOLERANCE = 0.01  # SD; stored features have half precision: 0.002 at 4 SD
PARTS = ("train", "development", "test", "people's")
STRATEGIES = ("AVI", "AVO", "UB", "LB", "PCUB", "PCLB")


@dataclass(frozen=True)
class Task:
    """Items that networks of a kind learn and answer, in parts."""

    kind: str
    inputs: Any  # of all items
    items: pd.DataFrame  # with the column answer
    rows: dict[str, slice]  # of each part
    counts: pd.DataFrame | None = None  # by item of the part "soft": people who gave each class
    people: NDArray[np.float64] | None = None  # of the test part: people's distributions, or truth

    @property
    def gold(self) -> pd.Series:
        """Return the right class of every item."""
        return self.items["answer"].astype(int)

    def part(self, name: str) -> tuple[Any, NDArray[np.int64]]:
        """Return the inputs and right classes of a part."""
        rows = self.rows[name]
        return self.inputs[rows], self.gold.iloc[rows].to_numpy(copy=True)


def task_of_parts(
    kind: str,
    inputs: Any,
    items: pd.DataFrame,
    lengths: Sequence[int],
    parts: Sequence[str] = PARTS,
    **labels: Any,
) -> Task:
    """Return a task whose items stand part after part."""
    ends = np.cumsum([0, *lengths])
    rows = {part: slice(*ends[i : i + 2]) for i, part in enumerate(parts[: len(lengths)])}
    return Task(kind, inputs, items, rows, **labels)


def text_inputs(items: pd.DataFrame, features: Any, training: pd.DataFrame | None = None) -> Any:
    """Return ``features`` of sentences or pairs by their column ``row``, or if there are none their
    words, of which those that ``training`` items lack are unknown."""
    if features is not None:
        return features[items["row"].to_numpy(copy=True)]
    columns = ["prompt", "hypothesis"] if "hypothesis" in items else ["prompt"]
    vocabulary = None
    if training is not None:
        vocabulary = crowds.encode_texts(*(training[column] for column in columns)).vocabulary
    return crowds.encode_texts(*(items[column] for column in columns), vocabulary=vocabulary)


def text_task(kind: str, parts: Sequence[pd.DataFrame], n_train: int, features: Any = None) -> Task:
    """Return a task of sentences or sentence pairs, with at most ``n_train`` training items; kind
    "encoder" reads ``features``, others the words."""
    parts = [parts[0].head(n_train), *parts[1:]]
    items = pd.concat(parts).set_index("item_id")
    inputs = text_inputs(items, features, training=parts[0])
    return task_of_parts(kind, inputs, items, [len(part) for part in parts])


def item_features(task: str, encoder: str | Path = "stored") -> tuple[pd.DataFrame, torch.Tensor]:
    """Return the items of "snli" or "sst" as numbers, and their (n, k) standardised features.

    Items are those of :func:`task_texts` without wording. ``"stored"`` reads the features of
    all-MiniLM-L6-v2 that come with the project; another encoder reads the texts now."""
    if str(encoder) == "stored":
        table = data.facts(f"models/encoder_{task}")
        columns = table.columns[table.columns.str.fullmatch(r"f\d+")]
        return table.drop(columns=columns), torch.tensor(table[columns].to_numpy(np.float32))
    items, features, affine = read_task(task, encoder)
    return items, torch.from_numpy(features @ affine[:-1] + affine[-1])


def read_task(
    task: str, encoder: str | Path
) -> tuple[pd.DataFrame, NDArray[np.float32], NDArray[np.float32]]:
    """Return the items of a task without wording, their features (n, d) and a projection, on which
    only the first part decides, without its labels."""
    texts = task_texts(task)
    features = task_features(texts, encoder)
    first = texts["part"] == texts["part"].iloc[0]
    width = open_encoder(encoder)[0].config.hidden_size
    affine = fit_projection(features[first], DIMENSIONS[task], width)
    return texts.drop(columns=["prompt", "hypothesis"], errors="ignore"), features, affine


def task_texts(task: str) -> pd.DataFrame:
    """Return the sentences of the Stanford Sentiment Treebank ("sst"), or the pairs of SNLI and
    GLUE's diagnostic ("snli"); DataMissingError where the texts are not to be had.

    Columns are ``item_id``, ``part``, ``answer`` (place of the gold label; for SST the degree from
    0, very negative, to 4), ``n_words`` and ``prompt``; for pairs also ``premise`` (a number for
    each), the annotators' votes for each label (0 in the diagnostic) and ``hypothesis``."""
    columns = ["item_id", "part", "answer", "n_words"]
    if task == "sst":
        parts = {part: sentiment(f"sst/stsa.fine.{part}") for part in ("train", "dev", "test")}
    else:
        parts = {part: nli(f"snli/snli_1.0_{part}") for part in ("dev", "test")}
        wording = laverghetta2021().wording()
        halves = wording["prompt"].str.split("\n", n=1, expand=True)
        parts["diagnostic"] = wording.assign(prompt=halves[0], hypothesis=halves[1])
        columns += ["premise", *NLI_LABELS]
    items = pd.concat(parts, names=["part", None]).reset_index("part").reset_index(drop=True)
    items["item_id"] = items["item_id"].astype(str)
    items["n_words"] = items["prompt"].str.split().str.len()
    if task == "snli":
        items["premise"] = pd.factorize(items["prompt"])[0]
        votes = items["annotator_labels"].explode()
        counts = pd.crosstab(votes.index, votes).reindex(items.index, fill_value=0)
        items[NLI_LABELS] = counts[NLI_LABELS]
    return items[[*columns, *(name for name in ("prompt", "hypothesis") if name in items)]]


def task_features(texts: pd.DataFrame, encoder: str | Path = "bundled") -> NDArray[np.float32]:
    """Return the features of texts (column ``prompt``) or of pairs (also ``hypothesis``)."""
    if "hypothesis" in texts:
        return crowds.pair_features(texts["prompt"].tolist(), texts["hypothesis"].tolist(), encoder)
    return crowds.text_features(texts["prompt"].tolist(), encoder)


def project(features: NDArray[np.float32], task: str) -> NDArray[np.float32]:
    """Return features, (n, d), in the stored dimensions of a task, (n, k): ``features @ W + b``."""
    affine = data.facts(f"models/encoder_{task}_projection").to_numpy(np.float32)
    return features @ affine[:-1] + affine[-1]


def fit_projection(
    features: NDArray[np.float32], sizes: Sequence[int], width: int
) -> NDArray[np.float32]:
    """Return the (d + 1, k) projection on principal components, each of variance 1: ``sizes`` of
    the blocks of ``width`` columns; the numbers behind the blocks are only standardised."""
    n_states = width * len(sizes)
    weights = np.zeros((features.shape[1], sum(sizes) + features.shape[1] - n_states))
    for i, size in enumerate(sizes):
        rows = slice(i * width, (i + 1) * width)
        first = sum(sizes[:i])
        components = PCA(size, random_state=0).fit(features[:, rows])
        scale = np.sqrt(components.explained_variance_)
        weights[rows, first : first + size] = components.components_.T / scale
    weights[n_states:, sum(sizes) :] = np.diag(1 / features[:, n_states:].std(0))
    return np.vstack([weights, -features.mean(0) @ weights]).astype(np.float32)


def recompute(tasks: Sequence[str], n: int, *, seed: int = 0) -> tuple[dict[str, float], list[str]]:
    """Compute the features of ``n`` random items of each task ("SNLI", "sst") again.

    Return the largest difference (SD) by task, and the tasks whose texts, or the encoder, are not
    on this machine. DataError if the texts or features are not those that are stored."""
    differences = {}
    absent = []
    for name in tasks if n else ():
        task = name.lower()
        items, stored = item_features(task)
        rows = np.random.default_rng(seed).choice(len(items), n, replace=False)
        try:
            texts = task_texts(task).iloc[rows]
            again = project(task_features(texts), task)
        except (data.DataMissingError, ModelError):
            absent.append(name)
            continue
        differences[name] = float(np.abs(again - stored[rows].numpy()).max())
        same_items = texts["item_id"].tolist() == items["item_id"].iloc[rows].tolist()
        if not same_items or differences[name] >= TOLERANCE:
            said = f"the texts of {task!r} are not those of the stored features; make these anew"
            raise data.DataError(f"{said}: `python data/build_model_facts.py encoder`")
    return differences, absent


def polar_sst(items: pd.DataFrame) -> list[pd.DataFrame]:
    """Return SST's parts without neutral sentences, with two classes and the ``degree``."""
    polar = items[items["answer"] != 2]
    polar = polar.assign(degree=polar["answer"], answer=(polar["answer"] > 2).astype(int))
    return [polar[polar["part"] == part] for part in ("train", "dev", "test")]


def snli_parts(
    pool: pd.DataFrame, people_saw: Sequence[str], rng: np.random.Generator
) -> list[pd.DataFrame]:
    """Return training, development and test pairs; no premise is in two parts.

    Premises of the pairs that people saw are in none; 70 premises are for development, 210 for the
    test."""
    seen = pool["item_id"].isin(people_saw)
    unseen = pool[~pool["premise"].isin(pool.loc[seen, "premise"])]
    premises = unseen["premise"].unique()
    if len(premises) <= 280:
        raise ValueError(
            f"the pairs of snli have {len(premises)} premises that people did not see; 281 is the "
            "least, since 280 are for development and test: add another file of pairs"
        )
    order = dict(zip(premises, rng.permutation(len(premises)), strict=True))
    rank = unseen["premise"].map(order)
    return [unseen[rank >= 280], unseen[rank < 70], unseen[rank.between(70, 279)]]


def read_images(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return images (items, channels, rows, columns), from 0 to 1, and their classes: "digits",
    scikit-learn's, or a name of OpenML ("mnist_784", "CIFAR_10")."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
    else:
        try:
            x, y = fetch_openml(name, as_frame=False, return_X_y=True)
        except OSError as error:
            raise data.DataMissingError(f"the images {name!r} of OpenML: {error}") from None
    side = int(np.sqrt(x.shape[1] // (3 if name == "CIFAR_10" else 1)))
    return (x / x.max()).reshape(len(x), -1, side, side), y.astype(int)


def image_task(kind: str, name: str, n_train: int) -> tuple[Task, NDArray[np.float64]]:
    """Return a task of images and the images, as :func:`read_images` does."""
    pictures, y = read_images(name)
    names = [f"image {i}" for i in range(len(y))]
    items = pd.DataFrame({"item_id": names, "answer": y}).set_index("item_id")
    lengths = [min(n_train, int(0.6 * len(y))), int(0.1 * len(y))]
    lengths.append(len(y) - sum(lengths))
    return task_of_parts(kind, crowds.encode_images(pictures), items, lengths), pictures


def select_by_difficulty(strategy: str, values: ArrayLike, *, fraction: float) -> NDArray[np.bool_]:
    """Return which training examples a difficulty filter keeps (Lalor 2020, section 5.3.3).

    On difficulties b: "AVI" (absolute value, inner) keeps the lowest abs(b), "AVO" (outer) the
    highest, "UB" (upper bound) the lowest b, "LB" (lower bound) the highest; on proportions correct
    likewise "PCUB" and "PCLB". Kept is a fraction of the known values; of equal ones, the first."""
    if strategy not in STRATEGIES or not 0 <= fraction <= 1:
        raise ValueError(
            f"strategy={strategy!r} should be one of {STRATEGIES}, and fraction={fraction} lie "
            "between 0 and 1"
        )
    size = np.asarray(values, dtype=np.float64)
    if strategy.startswith("AV"):
        size = np.abs(size)
    if strategy in ("AVO", "LB", "PCLB"):
        size = -size
    known = np.flatnonzero(np.isfinite(size))
    order = known[np.argsort(size[known], kind="stable")]
    kept = np.zeros(len(size), dtype=bool)
    kept[order[: round(fraction * len(known))]] = True
    return kept
