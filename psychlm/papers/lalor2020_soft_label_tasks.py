"""Tasks to learn from soft labels (Lalor 2020, sections 4.4 and 4.5), each in five parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from psychlm import crowds
from psychlm.corpora import item_banks
from psychlm.crowds.networks import Kind
from psychlm.papers.lalor2020_crowds import polar_sst
from psychlm.papers.lalor2020_soft_labels import soft_labels

PARTS = ("train", "soft", "extra", "development", "test")


@dataclass(frozen=True)
class Task:
    """Inputs and gold answers in five parts, with the labels of a crowd for the part "soft".

    "extra" are further examples with gold labels, as many as the crowd gave.
    """

    kind: str
    inputs: Any
    answers: NDArray[np.int64]
    counts: pd.DataFrame  # by soft example: how many people gave each class
    rows: dict[str, NDArray[np.int64]]
    people: NDArray[np.float64] | None = None  # of the test part: people's distributions, or truth
    item_id: NDArray[Any] | None = None

    def __getitem__(self, part: str) -> NDArray[np.int64]:
        """Return the rows of a part."""
        return self.rows[part]


def _task(
    kind: str, inputs: Any, answers: Any, counts: pd.DataFrame, sizes: Sequence[int], **more: Any
) -> Task:
    edges = np.cumsum([0, *sizes, len(answers) - sum(sizes)])
    rows = {part: np.arange(*edges[i : i + 2]) for i, part in enumerate(PARTS)}
    return Task(kind, inputs, np.array(answers), counts, rows, **more)


def _inputs(items: pd.DataFrame, features: Any) -> Any:
    """Return the features of items by their column ``row``, or their texts, encoded."""
    if features is not None:
        return features[items["row"].to_numpy(copy=True)]
    columns = ["prompt", "hypothesis"] if "hypothesis" in items else ["prompt"]
    return crowds.encode_texts(*(items[column] for column in columns))


def known_truth(rng: np.random.Generator, n_soft: int, n_crowd: int) -> Task:
    """Return points whose probability of class 1 is known; labels are draws from it.

    The test part asks for the likelier class.
    """
    sizes = (100, n_soft, n_soft * n_crowd, 500)
    x = rng.normal(size=(sum(sizes) + 2000, 10))
    p = expit(x @ np.linspace(-0.6, 0.6, 10))
    answers = (rng.random(len(p)) < p).astype(int)
    answers[-2000:] = p[-2000:] > 0.5
    ones = rng.binomial(n_crowd, p[100 : 100 + n_soft])
    counts = pd.DataFrame({0: n_crowd - ones, 1: ones})
    truth = np.stack([1 - p, p], axis=1)[-2000:]
    return _task("mlp", crowds.encode_images(x), answers, counts, sizes, people=truth)


def annotated_nli(
    items: pd.DataFrame,
    features: Any,
    kind: str,
    rng: np.random.Generator,
    n_train: int,
    n_soft: int,
) -> Task:
    """Return SNLI's stored pairs, five annotators each; pairs of one premise are in one part."""
    pool = items[items["part"] != "diagnostic"]
    premises = pool["premise"].unique()
    rank = pd.Series(rng.permutation(len(premises)), index=premises)[pool["premise"]].to_numpy()
    pool = pool.iloc[np.argsort(rank, kind="stable")].reset_index(drop=True)
    counts = pool[item_banks.NLI_LABELS]
    soft = counts.iloc[n_train : n_train + n_soft]
    sizes = (n_train, n_soft, int(soft.to_numpy().sum()), len(pool) // 8)
    people = soft_labels(counts.iloc[sum(sizes) :]).to_numpy()
    names = pool["item_id"].to_numpy()
    inputs = _inputs(pool, features)
    return _task(kind, inputs, pool["answer"], soft, sizes, people=people, item_id=names)


def whole_snli(sources: Sequence[str], counts: pd.DataFrame, kind: str) -> Task:
    """Return SNLI as in the paper: the soft part is the crowd's 180 pairs.

    ``sources`` are SNLI's training file, and MNLI's, whose pairs are the extra part."""
    pool = item_banks.nli(sources[0])
    held = [item_banks.nli(f"snli/snli_1.0_{part}") for part in ("dev", "test")]
    is_soft = pool["item_id"].isin(counts.index)
    soft = counts.loc[pool.loc[is_soft, "item_id"], item_banks.NLI_LABELS]
    extra = item_banks.nli(sources[1]).head(int(soft.to_numpy().sum()))
    parts = [pool[~is_soft], pool[is_soft], extra, *held]
    joined, sizes = pd.concat(parts, ignore_index=True), [len(part) for part in parts[:-1]]
    inputs = crowds.encode_texts(joined["prompt"], joined["hypothesis"])
    votes = held[1]["annotator_labels"].explode()
    of_test = pd.crosstab(votes.index, votes)[item_banks.NLI_LABELS]
    people = soft_labels(of_test).to_numpy()
    return _task(kind, inputs, joined["answer"], soft, sizes, people=people)


def sst(
    items: pd.DataFrame,
    features: Any,
    network: Kind,
    rng: np.random.Generator,
    *,
    fine: bool,
    n_sst: int,
    n_soft: int,
    n_crowd: int,
    seed: int,
    device: str = "auto",
) -> Task:
    """Return SST in two or five classes, whose soft part an artificial crowd labels (section 4.5).

    The crowd learns from ``n_sst`` sentences of its own, each of ``n_crowd`` members from a part of
    them with up to a fifth of the labels replaced.
    """
    parts = [items[items["part"] == part] for part in ("train", "dev", "test")]
    train, dev, test = parts if fine else polar_sst(items)
    train = train.iloc[rng.permutation(len(train))]
    of_crowd, rest = train.iloc[:n_sst], train.iloc[n_sst : 2 * n_sst + n_soft * (1 + n_crowd)]
    inputs = _inputs(pd.concat([of_crowd, rest, dev, test]), features)
    members = crowds.draw_members(n_crowd, seed, train_fraction=(0.3, 1.0), label_noise=(0.0, 0.2))
    options: dict[str, Any] = {"members": members, "epochs": 8, "size": 16, "device": device}
    gold = of_crowd["answer"].to_numpy(int)
    teachers = crowds.train(network, inputs[:n_sst], gold, **options)
    said = teachers.log_probabilities(inputs[2 * n_sst : 2 * n_sst + n_soft]).argmax(axis=2)
    classes = range(5) if fine else range(2)
    counts = pd.DataFrame({label: (said == label).sum(axis=0) for label in classes})
    sizes = (n_sst, n_soft, len(rest) - n_sst - n_soft, len(dev))
    answers = pd.concat([rest, dev, test])["answer"]
    return _task(network, inputs[n_sst:], answers, counts, sizes)
