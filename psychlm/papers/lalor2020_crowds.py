"""Lalor (2020, chapter 5): the tasks that artificial crowds learn, and agreement with people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import fetch_openml, load_digits

from psychlm import crowds, stats
from psychlm.data import DataMissingError
from psychlm.frames import FrameError

PARTS = ("train", "development", "test", "people's")
Strategy = Literal["AVI", "AVO", "UB", "LB", "PCUB", "PCLB"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Task:
    """Items that networks learn and answer, in parts.

    ``inputs`` are those of all items, ``items`` has one row for each (indexed by ``item_id``), with
    the column ``answer``; ``rows`` gives the rows of each part; ``kind`` is the network's.
    """

    kind: str
    inputs: Any
    items: pd.DataFrame
    rows: dict[str, slice]

    @property
    def gold(self) -> pd.Series:
        """Return the right class of every item."""
        return self.items["answer"].astype(int)

    def part(self, name: str) -> tuple[Any, NDArray[np.int64]]:
        """Return the inputs and right classes of a part."""
        rows = self.rows[name]
        return self.inputs[rows], self.gold.iloc[rows].to_numpy(copy=True)


def _task(kind: str, inputs: Any, items: pd.DataFrame, lengths: Sequence[int]) -> Task:
    ends = np.cumsum([0, *lengths])
    rows = {part: slice(*ends[i : i + 2]) for i, part in enumerate(PARTS[: len(lengths)])}
    return Task(kind, inputs, items, rows)


def text_task(kind: str, parts: Sequence[pd.DataFrame], n_train: int, features: Any = None) -> Task:
    """Return a task of sentences or sentence pairs, with at most ``n_train`` training items.

    Parameters
    ----------
    kind : str
        "encoder" takes ``features`` by the items' column ``row``; networks that read texts take
        their words, and those whose kind begins with "nli-" the hypothesis too.
    parts : sequence of DataFrame
        Training, development and test items, and those that people answered.
    """
    parts = [parts[0].head(n_train), *parts[1:]]
    items = pd.concat(parts).set_index("item_id")
    if kind == "encoder":
        inputs = features[items["row"].to_numpy(copy=True)]
    else:
        columns = ["prompt", "hypothesis"] if kind.startswith("nli-") else ["prompt"]
        vocabulary = crowds.encode_texts(*(parts[0][column] for column in columns)).vocabulary
        inputs = crowds.encode_texts(*(items[c] for c in columns), vocabulary=vocabulary)
    return _task(kind, inputs, items, [len(part) for part in parts])


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
    test. ValueError if none are left to train on.
    """
    seen = pool["item_id"].isin(people_saw)
    unseen = pool[~pool["premise"].isin(pool.loc[seen, "premise"])]
    premises = unseen["premise"].unique()
    if len(premises) <= 280:
        raise ValueError(
            f"the pairs have {len(premises)} premises that people did not see; 280 are for "
            "development and test, so that more are needed to train on: add another file of pairs"
        )
    order = dict(zip(premises, rng.permutation(len(premises)), strict=True))
    rank = unseen["premise"].map(order)
    return [unseen[rank >= 280], unseen[rank < 70], unseen[rank.between(70, 279)]]


def read_images(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return images (items, channels, rows, columns), from 0 to 1, and their classes.

    Parameters
    ----------
    name : str
        "digits", scikit-learn's, or a name of OpenML: "mnist_784", "CIFAR_10".

    Raises
    ------
    DataMissingError
        If OpenML does not answer.
    """
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
    return _task(kind, crowds.encode_images(pictures), items, lengths), pictures


def split_half(
    groups: Sequence[pd.DataFrame], rng: np.random.Generator, n_draws: int = 100
) -> NDArray[np.float64]:
    """Return Spearman correlations of proportions correct in random halves of the persons.

    Parameters
    ----------
    groups : sequence of DataFrame, each (n_persons, n_items)
        Groups of persons who answered other items; each is split by itself.

    Returns
    -------
    ndarray, (n_draws,)
    """
    first, second = [], []
    for graded in groups:
        order = [rng.permutation(len(graded)) < len(graded) // 2 for _ in range(n_draws)]
        half = np.array(order, dtype=float)
        first.append(half @ graded.to_numpy() / half.sum(axis=1, keepdims=True))
        second.append((1 - half) @ graded.to_numpy() / (1 - half).sum(axis=1, keepdims=True))
    return stats.spearman_many(np.hstack(first), np.hstack(second))


def select_by_difficulty(
    strategy: Strategy,
    values: ArrayLike,
    *,
    threshold: float | None = None,
    fraction: float | None = None,
) -> NDArray[np.bool_]:
    """Return which training examples a difficulty filter keeps (Lalor 2020, section 5.3.3).

    Parameters
    ----------
    strategy : str
        On difficulties b: "AVI" (absolute value, inner) keeps abs(b) < d, "AVO" (outer) abs(b) > d,
        "UB" (upper bound) b < d, "LB" (lower bound) b > d. On proportions correct pc: "PCUB" keeps
        pc < d, "PCLB" pc > d.
    values : array_like, shape (n,)
        Difficulties (logits), or proportions correct. NaN is never kept.
    threshold : float
        The bound d.
    fraction : float
        Keep this fraction of the examples with known values instead (0..1, rounded), those that the
        strategy keeps longest; of equal values, the first.

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> select_by_difficulty("AVI", [-2.0, 0.5, 1.5], threshold=1).tolist()
    [False, True, False]
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy is named {strategy!r}; there are {list(STRATEGIES)}")
    if (threshold is None) == (fraction is None):
        raise ValueError("give either a threshold or a fraction, and not both")
    numbers = np.asarray(values, dtype=np.float64)
    if strategy.startswith("PC") and ((numbers < 0) | (numbers > 1)).any():
        raise FrameError(f"{strategy} asks for proportions correct between 0 and 1")
    size = np.abs(numbers) if strategy.startswith("AV") else numbers
    low_first = strategy in ("AVI", "UB", "PCUB")
    if threshold is not None:
        return size < threshold if low_first else size > threshold
    if not 0 <= fraction <= 1:  # type: ignore[operator]
        raise ValueError(f"the fraction to keep is between 0 and 1, and is {fraction}")
    finite = np.flatnonzero(np.isfinite(size))
    order = finite[np.argsort(size[finite] if low_first else -size[finite], kind="stable")]
    kept = np.zeros(len(size), dtype=bool)
    kept[order[: round(float(fraction) * len(finite))]] = True  # type: ignore[arg-type]
    return kept
