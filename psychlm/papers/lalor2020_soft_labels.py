r"""Soft labels: what a crowd said of an example, as a distribution over labels that a model can learn from.

Soft label memorisation-generalisation (SLMG; Lalor 2020, chapter 4) trains on many examples with one label each and on
few with a crowd's distribution :math:`P(Y = y) = N_y / N`. An epoch on the former memorises, an epoch on the latter
corrects. The other way to spend the same labels is in the baselines B1 (the gold labels alone), B2 (as many labels on
new examples) and B3 (every label of the crowd an example of its own).

    label_counts, soft_labels            from a crowd's labels to distributions
    gold_probability, entropy            how sure the crowd is, and whether of the gold label (Figure 4.1, equation 4.4)
    divergence_by_workers, _by_labels    how many labels are enough (Figure 4.2); draw_labels
    interspersed, sequential             SLMG-I and SLMG-S: which examples an epoch trains on (Algorithms 1 and 2)
    baseline_b1, baseline_b2, baseline_b3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import rel_entr

from psychlm.crowds.training import Lesson, Loss, Scores
from psychlm.frames import FrameError, format_names


def label_counts(labels: pd.DataFrame, classes: Sequence[str] | None = None) -> pd.DataFrame:
    """Count how often each label was given to each item.

    Parameters
    ----------
    labels : DataFrame, persons x items
        What each person said; NaN where nothing was said, which counts for no label.
    classes : sequence of str, optional
        The labels, in the order of the columns; those that occur, sorted, unless given.

    Returns
    -------
    DataFrame, items x classes of int

    Raises
    ------
    FrameError
        If a label is none of the classes.
    """
    long = labels.stack() if labels.size else pd.Series(dtype=object)
    long = long.dropna()
    known = sorted(long.unique()) if classes is None else list(classes)
    strange = long[~long.isin(known)].unique()
    if len(strange):
        raise FrameError(
            f"labels {format_names(strange)} are none of the classes {known}; name them all, or mend the labels"
        )
    counts = {label: (labels == label).sum() for label in known}
    return pd.DataFrame(counts, index=labels.columns.rename("item")).rename_axis(columns="label")


def soft_labels(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the crowd's distribution over labels, N_y / N (Lalor 2020, section 4.2.3), items x classes.

    Raises
    ------
    FrameError
        If counts are negative or missing, or an item has no label at all.
    """
    values = counts.to_numpy(float)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise FrameError("label counts are finite and not negative; count with label_counts")
    unlabelled = counts.index[values.sum(axis=1) == 0]
    if len(unlabelled):
        raise FrameError(
            f"items {format_names(unlabelled)} have no label at all; leave them out of the soft-labelled part"
        )
    return counts.div(counts.sum(axis=1), axis=0)


def gold_probability(soft: pd.DataFrame, gold: pd.Series) -> pd.Series:
    """Return the crowd's probability of each item's gold label (Lalor 2020, Figure 4.1).

    Raises
    ------
    FrameError
        If an item has no gold label, or one that is no column of ``soft``.
    """
    gold = gold.reindex(soft.index)
    lost = soft.index[~gold.isin(soft.columns)]
    if len(lost):
        raise FrameError(
            f"items {format_names(lost)} have no gold label among {list(soft.columns)}; mend or drop them"
        )
    values = soft.to_numpy()[np.arange(len(soft)), soft.columns.get_indexer(gold)]
    return pd.Series(values, index=soft.index, name="gold_probability")


def entropy(soft: pd.DataFrame) -> pd.Series:
    """Return the entropy of each distribution in nats, 0 log 0 being 0 (Lalor 2020, equation 4.4)."""
    return pd.Series(
        -rel_entr(soft.to_numpy(float), 1.0).sum(axis=1), index=soft.index, name="entropy_nats"
    )


def kl_divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return D(p || q) = sum p log(p / q) over the last axis, in nats; infinite where q misses what p has.

    Lalor (2020, section 4.4.3) prints the sum with a minus sign, which would make it negative.
    """
    return rel_entr(p, q).sum(axis=-1)


def divergence_by_workers(
    labels: pd.DataFrame,
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    runs: int = 5,
    smoothing: float = 1.0,
    classes: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return how far the labels of the first workers are from the whole crowd's (Lalor 2020, Figure 4.2).

    In each run the workers come one at a time in random order, each with all of their labels, as in the paper. It says
    nothing of labels that nobody among the first workers gave, though their divergence is infinite: ``smoothing``
    adds a pseudo-count to each class of the sub-sample.

    Parameters
    ----------
    labels : DataFrame, persons x items
    sizes : sequence of int
        Numbers of workers at which to compare.
    runs : int
        Random orders; the paper's 5.
    smoothing : float
        Pseudo-count: 1 is Laplace's, 0 none.

    Returns
    -------
    DataFrame
        One row a run and size: ``run``, ``n_labels``, ``divergence_nats`` D(whole || sub-sample) averaged over items,
        and ``n_infinite``, the items at which it is infinite (only without smoothing).
    """
    _check_sizes(sizes, len(labels))
    counts = label_counts(labels, classes)
    said = np.stack(
        [labels.to_numpy() == label for label in counts.columns], axis=-1
    )  # persons, items, classes
    order = rng.permuted(np.tile(np.arange(len(labels)), (runs, 1)), axis=1)
    at = np.asarray(sizes) - 1
    taken = np.stack([said[row].cumsum(axis=0, dtype=np.int32)[at] for row in order])
    return _divergences(counts, taken, sizes, smoothing)


def draw_labels(
    counts: pd.DataFrame,
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    runs: int = 5,
    replace: bool = False,
) -> np.ndarray:
    """Draw so many of the labels of each item, each item by itself: (runs, sizes, items, classes) counts.

    Without replacement they are multivariate hypergeometric, what random workers of this crowd said of the item; with
    it multinomial, what as many workers of an endless crowd like it would say.

    Raises
    ------
    ValueError
        If an item has fewer labels than are to be drawn without replacement.
    """
    _check_sizes(sizes, np.inf if replace else int(counts.sum(axis=1).min()))
    values, wanted = counts.to_numpy(), np.asarray(sizes)[None, :, None]
    shape = (runs, len(sizes), len(counts))
    taken = np.zeros((*shape, counts.shape[1]), dtype=np.int64)
    left, rest = np.broadcast_to(wanted, shape).copy(), values.sum(axis=1)
    for k in range(counts.shape[1]):  # class by class, each given those before it
        here, others = values[:, k], rest - values[:, k]
        if replace:
            taken[..., k] = rng.binomial(
                left, np.divide(here, rest, out=np.ones(len(rest)), where=rest > 0)
            )
        else:
            taken[..., k] = rng.hypergeometric(here, others, left)
        left, rest = left - taken[..., k], others
    return taken


def divergence_by_labels(
    counts: pd.DataFrame,
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    runs: int = 5,
    smoothing: float = 1.0,
    replace: bool = False,
) -> pd.DataFrame:
    """Return :func:`divergence_by_workers` where only counts are known: labels come from :func:`draw_labels`."""
    return _divergences(
        counts, draw_labels(counts, sizes, rng=rng, runs=runs, replace=replace), sizes, smoothing
    )


def _check_sizes(sizes: Sequence[int], most: float) -> None:
    wrong = [size for size in sizes if not 1 <= size <= most]
    if wrong or not len(sizes):
        raise ValueError(
            f"numbers of labels {wrong} lie outside 1 to {most}; give sizes that the crowd has"
        )


def _divergences(
    counts: pd.DataFrame, taken: np.ndarray, sizes: Sequence[int], smoothing: float
) -> pd.DataFrame:
    """Average over items, for sub-samples of shape (runs, sizes, items, classes)."""
    raised = taken + smoothing
    with np.errstate(invalid="ignore", divide="ignore"):
        each = kl_divergence(
            soft_labels(counts).to_numpy(), raised / raised.sum(axis=-1, keepdims=True)
        )
    each[taken.sum(axis=-1) + smoothing == 0] = (
        np.inf
    )  # no label, no pseudo-count: nothing is known
    index = pd.MultiIndex.from_product([range(len(taken)), sizes], names=["run", "n_labels"])
    columns = {
        "divergence_nats": each.mean(axis=-1).ravel(),
        "n_infinite": np.isinf(each).sum(axis=-1).ravel(),
    }
    return pd.DataFrame(columns, index=index).reset_index()


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Which examples are trained on, with which targets.

    ``rows`` point into the examples in the order given, the hard-labelled part before the soft-labelled one, and then
    further ones; an example stands as often as it has labels of its own.
    """

    rows: np.ndarray  # (n,) int
    targets: np.ndarray  # (n, classes), rows sum to 1
    soft: np.ndarray  # (n,) bool: from the soft-labelled part, with the crowd's distribution

    def __len__(self) -> int:
        return len(self.rows)


def slmg_set(hard: np.ndarray, soft: pd.DataFrame) -> TrainingSet:
    """Return SLMG's training set: one-hot targets for X_train, the crowd's distributions for X_soft.

    Parameters
    ----------
    hard : ndarray, shape (n_train,)
        Gold labels of X_train, as column numbers of ``soft``.
    soft : DataFrame, n_soft x classes
        :func:`soft_labels` of X_soft.
    """
    targets = np.concatenate([_one_hot(hard, soft.shape[1]), soft.to_numpy(float)])
    return TrainingSet(np.arange(len(targets)), targets, np.arange(len(targets)) >= len(hard))


def baseline_b1(hard: np.ndarray, gold: np.ndarray, classes: int) -> TrainingSet:
    """Return B1, traditional training: X_soft joins X_train with its gold labels (Lalor 2020, section 4.3.1)."""
    return _hard_set(np.arange(len(hard) + len(gold)), np.concatenate([hard, gold]), classes)


def baseline_b2(
    hard: np.ndarray, gold: np.ndarray, extra: np.ndarray, classes: int, n_labels: int
) -> TrainingSet:
    """Return B2, comparable label effort: B1 and as many new examples with one label each as the crowd gave labels.

    Parameters
    ----------
    extra : ndarray, shape (n_extra,)
        Gold labels of further examples, which follow X_soft in the order of examples; the first ``n_labels`` are used.

    Raises
    ------
    ValueError
        If there are fewer further examples than labels.
    """
    if len(extra) < n_labels:
        raise ValueError(
            f"the crowd gave {n_labels} labels, and there are {len(extra)} further examples to spend them on; use the "
            "labels of fewer workers, or find more examples"
        )
    labels = np.concatenate([hard, gold, extra[:n_labels]])
    return _hard_set(np.arange(len(labels)), labels, classes)


def baseline_b3(hard: np.ndarray, counts: pd.DataFrame) -> TrainingSet:
    """Return B3, all in one classifier: each label of the crowd is an example of its own (Kajino et al. 2012)."""
    times = counts.to_numpy(int)
    items, classes = np.indices(times.shape)
    rows = len(hard) + np.repeat(items.ravel(), times.ravel())
    labels = np.repeat(classes.ravel(), times.ravel())
    return _hard_set(
        np.concatenate([np.arange(len(hard)), rows]),
        np.concatenate([hard, labels]),
        counts.shape[1],
    )


def _hard_set(rows: np.ndarray, labels: np.ndarray, classes: int) -> TrainingSet:
    return TrainingSet(rows, _one_hot(labels, classes), np.zeros(len(rows), bool))


def _one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, and there are {classes} classes (0-based)"
        )
    return np.eye(classes)[labels]


@dataclass(frozen=True, eq=False)
class Schedule:
    """SLMG's order of training: which epochs train on the soft-labelled part.

    The training engine follows it: ``crowd.train(..., epochs=schedule.epochs, lesson=schedule.lesson)``.
    """

    examples: TrainingSet
    soft_epochs: tuple[bool, ...]
    loss: Loss

    @property
    def epochs(self) -> int:
        """Epochs in all, on either part."""
        return len(self.soft_epochs)

    def lesson(self, epoch: int, scores: Scores) -> Lesson:
        """Return what an epoch (counted from 1) trains on: one part, with that part's loss."""
        soft = self.soft_epochs[epoch - 1]
        return Lesson(
            examples=self.examples.soft == soft, loss=self.loss if soft else "cross-entropy"
        )


def interspersed(examples: TrainingSet, epochs: int, *, loss: Loss = "cross-entropy") -> Schedule:
    """Return SLMG-I (Lalor 2020, Algorithm 1): each epoch on X_train is followed by one on X_soft."""
    return _schedule(examples, (False, True) * epochs, loss)


def sequential(
    examples: TrainingSet, meta_epochs: int, epochs: int, *, loss: Loss = "cross-entropy"
) -> Schedule:
    """Return SLMG-S (Algorithm 2): ``epochs`` on X_train, then as many on X_soft; ``meta_epochs`` times over."""
    return _schedule(examples, ((False,) * epochs + (True,) * epochs) * meta_epochs, loss)


def _schedule(examples: TrainingSet, soft_epochs: tuple[bool, ...], loss: Loss) -> Schedule:
    if not soft_epochs:
        raise ValueError("a schedule has at least one epoch")
    if not (examples.soft.any() and not examples.soft.all()):
        raise ValueError(
            "SLMG trains on hard and on soft labels, and one of the two parts is empty; see slmg_set"
        )
    return Schedule(examples, soft_epochs, loss)
