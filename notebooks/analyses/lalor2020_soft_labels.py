r"""Soft labels: what a crowd said of an example, as a distribution over labels to learn from.

Soft label memorisation-generalisation (SLMG; Lalor 2020, chapter 4) trains on many examples with
one label each, :math:`X_{train}`, and on few with a crowd's distribution, :math:`X_{soft}`:

.. math:: P(Y = y) = N_y / N.

Epochs on the former and the latter alternate. The same labels can be spent otherwise: on gold
labels alone (B1), on as many new examples (B2), or on every label of the crowd as an example (B3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, rel_entr

from analyses.lalor2020_crowds import Task, polar_sst, task_of_parts, text_inputs
from psychlm import crowds
from psychlm.corpora import item_banks
from psychlm.crowds import CrowdState, EpochPlan
from psychlm.crowds.networks import Kind
from psychlm.crowds.training import Loss
from psychlm.frames import FrameError, format_names

SOFT_PARTS = ("train", "soft", "extra", "development", "test")


def label_counts(labels: pd.DataFrame, classes: Sequence) -> pd.DataFrame:
    """Count how often each label was given to each item: persons x items (NaN: nothing was said) to
    items x classes."""
    counts = pd.DataFrame({label: (labels == label).sum() for label in classes})
    strange = counts.index[counts.sum(axis=1) != labels.notna().sum()]
    if len(strange):
        raise FrameError(
            f"items {format_names(strange)} have labels that are none of the classes {[*classes]}"
        )
    return counts.rename_axis(index="item", columns="label")


def soft_labels(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the crowd's distribution over labels, N_y / N, items x classes (Lalor 2020, 4.2.3)."""
    totals = counts.sum(axis=1)
    wrong = counts.index[~(counts >= 0).all(axis=1) | (totals == 0)]
    if len(wrong):
        raise FrameError(f"items {format_names(wrong)} have no label at all, or negative counts")
    return counts.div(totals, axis=0)


def draw_workers(
    labels: pd.DataFrame,
    sizes: Sequence[int],
    classes: Sequence,
    *,
    rng: np.random.Generator,
    runs: int = 5,
) -> np.ndarray:
    """Count the labels of the first workers, in random order: (runs, sizes, items, classes)."""
    if min(sizes) < 1 or max(sizes) > len(labels):
        raise ValueError(f"sizes {list(sizes)} lie from 1 to {len(labels)}, the number of workers")
    given = np.stack([labels.to_numpy() == label for label in classes], axis=-1)
    order = rng.permuted(np.tile(np.arange(len(labels)), (runs, 1)), axis=1)
    rows = np.asarray(sizes) - 1
    return np.stack([given[run].cumsum(axis=0, dtype=np.int32)[rows] for run in order])


def draw_labels(
    counts: pd.DataFrame,
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    runs: int,
    replace: bool = False,
) -> np.ndarray:
    """Draw labels of each item independently: (runs, sizes, items, classes) counts.

    Without replacement the draws are multivariate hypergeometric, labels of random workers of this
    crowd; with it multinomial, labels of workers of an endless crowd like it."""
    values, rest = counts.to_numpy(), counts.to_numpy().sum(axis=1)
    shape = (runs, len(sizes), len(counts))
    drawn = np.zeros((*shape, counts.shape[1]), dtype=np.int64)
    left = np.broadcast_to(np.asarray(sizes)[None, :, None], shape).copy()
    for k in range(counts.shape[1]):  # class by class, given the classes before it
        if replace:
            share = np.divide(values[:, k], rest, out=np.ones(len(rest)), where=rest > 0)
            drawn[..., k] = rng.binomial(left, share)
        else:
            drawn[..., k] = rng.hypergeometric(values[:, k], rest - values[:, k], left)
        left, rest = left - drawn[..., k], rest - values[:, k]
    return drawn


def divergence(
    counts: pd.DataFrame, drawn: np.ndarray, sizes: Sequence[int], *, smoothing: float = 1.0
) -> pd.DataFrame:
    r"""Return how far sub-samples of labels are from the whole crowd (Lalor 2020, Figure 4.2).

    .. math::
        D_{KL}(P \| Q_n) = \sum_y P(y) \log \frac{P(y)}{Q_n(y)}, \quad
        Q_n(y) = \frac{N_y^{(n)} + \alpha}{n + K \alpha}

    for K classes (printed with a minus sign, which would make it negative). The paper does not say
    what it does with a label that the sub-sample lacks, whose divergence is infinite without the
    pseudo-count :math:`\alpha` (``smoothing``; 1 is Laplace's): ``n_infinite`` counts such items.
    """
    raised = drawn + smoothing
    totals = raised.sum(axis=-1, keepdims=True)
    estimate = np.divide(raised, totals, out=np.zeros(raised.shape), where=totals > 0)
    each = rel_entr(soft_labels(counts).to_numpy(), estimate).sum(axis=-1)
    index = pd.MultiIndex.from_product([range(len(drawn)), sizes], names=["run", "n_labels"])
    columns = {"divergence_nats": each.mean(-1).ravel()}
    columns["n_infinite"] = np.isinf(each).sum(-1).ravel()
    return pd.DataFrame(columns, index).reset_index()


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Examples to train on, with their targets; one occurs as often as it has labels of its own."""

    rows: np.ndarray  # (n,) numbers of the examples: X_train, X_soft, further ones
    targets: np.ndarray  # (n, classes), rows sum to 1
    soft: np.ndarray  # (n,) bool: examples of X_soft with the crowd's distribution


def hard_set(labels: np.ndarray, classes: int, rows: np.ndarray | None = None) -> TrainingSet:
    """Return examples with one label each, without ``rows`` the first: B1, or B2 with as many
    further ones as the crowd gave labels (Lalor 2020, section 4.3.1)."""
    rows = np.arange(len(labels)) if rows is None else rows
    return TrainingSet(rows, np.eye(classes)[labels], np.zeros(len(labels), bool))


def every_label_set(hard: np.ndarray, counts: pd.DataFrame) -> TrainingSet:
    """Return B3: X_train, and each label of the crowd as an example (Kajino et al. 2012)."""
    times = counts.to_numpy(int)
    items, classes = np.indices(times.shape)
    rows = len(hard) + np.repeat(items.ravel(), times.ravel())
    labels = np.concatenate([hard, np.repeat(classes.ravel(), times.ravel())])
    return hard_set(labels, counts.shape[1], np.concatenate([np.arange(len(hard)), rows]))


def slmg_set(hard: np.ndarray, soft: pd.DataFrame) -> TrainingSet:
    """Return SLMG's training set: gold labels of X_train, the crowd's distributions of X_soft."""
    targets = np.concatenate([np.eye(soft.shape[1])[np.asarray(hard)], soft.to_numpy(float)])
    return TrainingSet(np.arange(len(targets)), targets, np.arange(len(targets)) >= len(hard))


@dataclass(frozen=True, eq=False)
class Schedule:
    """SLMG's order of training: ``train(..., epoch_callback=s.epoch_callback)``. ``soft_epochs``
    are those that train on X_soft, with ``loss``."""

    examples: TrainingSet
    soft_epochs: tuple[bool, ...]
    loss: Loss = "cross-entropy"

    @property
    def epochs(self) -> int:
        """Number of epochs, on either part."""
        return len(self.soft_epochs)

    def epoch_callback(self, epoch: int, state: CrowdState | None) -> EpochPlan:
        """Return what an epoch (from 1) trains on: one part, with that part's loss."""
        soft = self.soft_epochs[epoch - 1]
        loss = self.loss if soft else "cross-entropy"
        return EpochPlan(examples=self.examples.soft == soft, loss=loss)


def slmg(
    examples: TrainingSet, epochs: int, *, meta_epochs: int = 0, loss: Loss = "cross-entropy"
) -> Schedule:
    """Return the schedule of SLMG-I, or of SLMG-S if ``meta_epochs`` is given (Lalor 2020, 4.2.2).

    SLMG-I (Algorithm 1) follows each epoch on X_train by one on X_soft, ``epochs`` times. SLMG-S
    (Algorithm 2) trains ``epochs`` epochs on X_train, then as many on X_soft, and repeats both
    ``meta_epochs`` times."""
    if meta_epochs:
        return Schedule(examples, ((False,) * epochs + (True,) * epochs) * meta_epochs, loss)
    return Schedule(examples, (False, True) * epochs, loss)


# Tasks to learn from soft labels (sections 4.4 and 4.5), each in five parts; "extra" are further
# examples with gold labels, as many as the crowd gave.


def known_truth(rng: np.random.Generator, n_soft: int, n_crowd: int) -> Task:
    """Return points whose probability of class 1 is known; labels are draws from it, but the test
    part asks for the likelier class."""
    sizes = (100, n_soft, n_soft * n_crowd, 500, 2000)
    x = rng.normal(size=(sum(sizes), 10))
    p = expit(x @ np.linspace(-0.6, 0.6, 10))
    answers = (rng.random(len(p)) < p).astype(int)
    answers[-2000:] = p[-2000:] > 0.5
    ones = rng.binomial(n_crowd, p[100 : 100 + n_soft])
    counts = pd.DataFrame({0: n_crowd - ones, 1: ones})
    labels = {"counts": counts, "people": np.stack([1 - p, p], axis=1)[-2000:]}
    inputs, items = crowds.encode_images(x), pd.DataFrame({"answer": answers})
    return task_of_parts("mlp", inputs, items, sizes, SOFT_PARTS, **labels)


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
    sizes = [n_train, n_soft, int(soft.to_numpy().sum()), len(pool) // 8]
    people = soft_labels(counts.iloc[sum(sizes) :]).to_numpy()
    sizes.append(len(people))
    labels = {"counts": soft, "people": people}
    return task_of_parts(kind, text_inputs(pool, features), pool, sizes, SOFT_PARTS, **labels)


def whole_snli(sources: Sequence[str], counts: pd.DataFrame, kind: str) -> Task:
    """Return SNLI as in the paper: the soft part is the crowd's 180 pairs. ``sources`` are SNLI's
    training file, and MNLI's, whose pairs are the extra part."""
    pool = item_banks.nli(sources[0])
    held = [item_banks.nli(f"snli/snli_1.0_{part}") for part in ("dev", "test")]
    is_soft = pool["item_id"].isin(counts.index)
    soft = counts.loc[pool.loc[is_soft, "item_id"], item_banks.NLI_LABELS]
    extra = item_banks.nli(sources[1]).head(int(soft.to_numpy().sum()))
    parts = [pool[~is_soft], pool[is_soft], extra, *held]
    joined, sizes = pd.concat(parts, ignore_index=True), [len(part) for part in parts]
    votes = held[1]["annotator_labels"].explode()
    of_test = pd.crosstab(votes.index, votes)[item_banks.NLI_LABELS]
    labels = {"counts": soft, "people": soft_labels(of_test).to_numpy()}
    return task_of_parts(kind, text_inputs(joined, None), joined, sizes, SOFT_PARTS, **labels)


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

    Each of ``n_crowd`` members learns from a part of ``n_sst`` other sentences, with up to a fifth
    of the labels replaced."""
    parts = [items[items["part"] == part] for part in ("train", "dev", "test")]
    train, dev, test = parts if fine else polar_sst(items)
    train = train.iloc[rng.permutation(len(train))]
    of_crowd, rest = train.iloc[:n_sst], train.iloc[n_sst : 2 * n_sst + n_soft * (1 + n_crowd)]
    inputs = text_inputs(pd.concat([of_crowd, rest, dev, test]), features)
    members = crowds.draw_members(n_crowd, seed, train_fraction=(0.3, 1.0), label_noise=(0.0, 0.2))
    options: dict[str, Any] = {"members": members, "epochs": 8, "size": 16, "device": device}
    gold = of_crowd["answer"].to_numpy(int)
    teachers = crowds.train(network, inputs[:n_sst], gold, **options)
    said = teachers.log_probabilities(inputs[2 * n_sst : 2 * n_sst + n_soft]).argmax(axis=2)
    classes = range(5) if fine else range(2)
    counts = pd.DataFrame({label: (said == label).sum(axis=0) for label in classes})
    sizes = (n_sst, n_soft, len(rest) - n_sst - n_soft, len(dev), len(test))
    items = pd.concat([rest, dev, test])
    return task_of_parts(network, inputs[n_sst:], items, sizes, SOFT_PARTS, counts=counts)


def implied_by_table45(counts: pd.DataFrame) -> pd.DataFrame:
    """Return what the confusions of Table 4.5 imply, in percent, by method.

    ``counts`` has a row per ``method`` and ``gold`` label and a column per prediction (E, C, N).
    ``accuracy`` is over three labels; ``entailment_or_not`` takes C and N for one (section 4.4.1).

    >>> from psychlm import data
    >>> implied_by_table45(data.published("lalor2020.table4_5")).round(1).loc["B1"].tolist()
    [76.8, 85.7]"""
    rows = {}
    for method, of_method in counts.groupby("method", sort=False):
        table = of_method.set_index("gold").loc[list("ECN"), list("ECN")]
        total = table.to_numpy().sum()
        wrong = table.loc["E", ["C", "N"]].sum() + table.loc[["C", "N"], "E"].sum()
        rows[method] = {
            "accuracy": 100 * np.trace(table) / total,
            "entailment_or_not": 100 * (1 - wrong / total),
        }
    return pd.DataFrame(rows).T.rename_axis("method")
