"""Lalor (2020, chapter 5): the tasks that artificial crowds learn, and agreement with people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import fetch_openml, load_digits

from psychlm import crowds
from psychlm.data import DataMissingError

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
            raise DataMissingError(f"the images {name!r} of OpenML: {error}") from None
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
    likewise "PCUB" and "PCLB". Kept is a fraction (0..1, rounded) of the examples with known
    values; of equal values, the first.

    >>> select_by_difficulty("AVI", [-2.0, 0.5, 1.5], fraction=1 / 3).tolist()
    [False, True, False]
    """
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
