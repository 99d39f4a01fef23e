r"""Curricula: which examples a model trains on at each epoch, by its ability (DDaCLAE) or by a schedule.

DDaCLAE (Lalor 2020, chapter 6, Algorithm 3) asks the model in training all of its training set, without a backward
pass; estimates its ability from the right and wrong answers, with difficulties that item response theory gave; and
trains on what is not harder than that: :math:`b_x \le \hat\theta_e`. Its rivals (Platanios et al. 2019) never look at
the model: after t epochs they train on the easiest share

.. math:: c_{lin}(t) = \min(1, t (1 - c_0) / T + c_0), \quad c_{root}(t) = \min(1, \sqrt{t (1 - c_0^2) / T + c_0^2}).

A curriculum serves a stack of models at once (several seeds, say), each by its own ability::

    by_ability = curriculum.ddaclae(fit.items, answers)
    trained = crowd.train(kind, inputs, targets, ..., lesson=by_ability.lesson)
    by_ability.history()                        # abilities, and what was trained on, epoch by epoch
    curriculum.convergence(trained.history)     # examples used until the best epoch
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from psychlm.crowds.training import Lesson, Scores
from psychlm.frames import FrameError, format_names
from psychlm.irt.scoring import KnownItems

FLOOR = (
    0.01  # the easiest hundredth is always trained on: a model that can do nothing yet still learns
)
INITIAL_COMPETENCE = 0.01  # c0 of Platanios et al. (2019, section 3)
Form = Literal["linear", "root"]


@dataclass(frozen=True)
class Selection:
    """What one epoch trains on."""

    examples: np.ndarray  # (n_models, n_examples) bool
    theta: np.ndarray  # (n_models,) ability before the epoch, logits; NaN where nobody asked
    se: np.ndarray  # (n_models,) its standard error, logits; NaN where theta is infinite
    floored: np.ndarray  # (n_models,) bool: fewer examples were within reach than the floor


@dataclass(eq=False)
class Curriculum:
    """Difficulties of examples, a rule that chooses among them, and the record of what it chose.

    :meth:`lesson` is the hook of the training engine (``crowd.train(..., lesson=curriculum.lesson)``); each call adds
    to the record, so that a curriculum serves one training run.
    """

    name: str
    difficulty: np.ndarray  # (n_examples,)
    answers: np.ndarray  # (n_examples,) int, gold labels
    rule: Callable[[int, Scores], Selection]  # epoch (from 1), log-probabilities when asked for
    _record: list[pd.DataFrame] = field(default_factory=list, repr=False)
    _warned: bool = field(default=False, repr=False)

    def lesson(self, epoch: int, scores: Scores) -> Lesson:
        """Return what an epoch (counted from 1) trains on, and record it.

        Parameters
        ----------
        epoch : int
        scores : Scores
            Calling it gives the (n_models, n_examples, n_classes) log-probabilities of the whole training set.

        Warns
        -----
        RuntimeWarning
            The first time that what a model trains on holds one class only; ``balanced=True`` takes the easiest of
            every class. The record counts all such times.
        """
        chosen = self.rule(epoch, scores)
        members = np.asarray(scores.members)
        used = np.broadcast_to(chosen.examples.sum(axis=1), len(members))
        labels = np.unique(self.answers)
        classes = sum(
            (chosen.examples & (self.answers == label)).any(axis=1).astype(int) for label in labels
        )
        columns = {
            "epoch": epoch,
            "member": members,
            "theta": chosen.theta,
            "se": chosen.se,
            "n_examples": used,
            "share": used / len(self.answers),
            "floored": chosen.floored,
            "classes": classes,
        }
        row = {
            name: np.broadcast_to(np.asarray(values), len(members))
            for name, values in columns.items()
        }
        self._record.append(pd.DataFrame(row))
        narrow = members[row["classes"] < 2].tolist()
        if narrow and not self._warned:
            self._warned = True
            warnings.warn(
                f"epoch {epoch}: members {format_names(narrow)} train on examples of one class only, and learn to answer "
                "nothing else; pass balanced=True, or a higher floor",
                RuntimeWarning,
                stacklevel=2,
            )
        return Lesson(examples=chosen.examples if len(chosen.examples) > 1 else chosen.examples[0])

    def history(self) -> pd.DataFrame:
        """Return one row an ``epoch`` (from 1) and ``member``.

        ``theta`` and ``se`` (logits, before the epoch), ``n_examples`` trained on, their ``share``, whether the floor
        held (``floored``), and how many ``classes`` were among them.
        """
        if not self._record:
            raise ValueError(
                "this curriculum has chosen nothing yet; pass its lesson to the training engine first"
            )
        return pd.concat(self._record, ignore_index=True)


def ddaclae(
    items: pd.DataFrame | pd.Series,
    answers: pd.Series | Sequence[int] | np.ndarray,
    *,
    floor: float = FLOOR,
    balanced: bool = False,
    name: str = "DDaCLAE",
) -> Curriculum:
    """Return the curriculum that trains on what is not harder than the model is able (Lalor 2020, Algorithm 3).

    Ability is the maximum of the likelihood of all answers to the training set, given the items
    (:mod:`psychlm.irt.scoring`); a model that got all of them right is offered all, one that got none the floor.

    Parameters
    ----------
    items : DataFrame or Series, indexed by example
        ``a`` (slope) and ``b`` (difficulty, logits), as ``IRTFit.items``; a Series holds difficulties of a Rasch model.
    answers : Series, or array of shape (n_examples,)
        Gold labels, 0-based, in the order in which the engine holds the examples. A Series names them, and its items
        are looked up by name; an array goes with items in the same order.
    floor : float
        The share of the examples that is trained on where fewer are within reach: the easiest, at least one.
        Algorithm 3 has none, and would never end for a model that is less able than every example is difficult. The
        record says where it held (``floored``).
    balanced : bool
        Keep the proportions of the classes: as many examples as are within reach, the easiest of each class. The
        paper's curricula do not.

    Raises
    ------
    FrameError
        If the difficulty of an example is missing or infinite, or all examples have one label.
    """
    _check_share("floor", floor)
    table = items.to_frame("b").assign(a=1.0) if isinstance(items, pd.Series) else items
    known, gold = _aligned(table, answers)
    scale = KnownItems(known)
    ladder = _Ladder(known["b"].to_numpy(float), gold, balanced)
    least = _count(floor, len(gold))

    def rule(epoch: int, scores: Scores) -> Selection:
        theta, se = estimate(scale, scores(), gold).to_numpy().T
        within = ladder.within(theta)
        return Selection(ladder.easiest(np.maximum(within, least)), theta, se, within < least)

    return Curriculum(name, ladder.difficulty, gold, rule)


def competence(
    difficulty: pd.Series | np.ndarray,
    answers: pd.Series | Sequence[int] | np.ndarray,
    *,
    form: Form,
    full_at: int,
    c0: float = INITIAL_COMPETENCE,
    balanced: bool = False,
    name: str | None = None,
) -> Curriculum:
    """Return CB-Linear or CB-Root (Platanios et al. 2019; Lalor 2020, section 6.3.2): a growing share of the easiest.

    Parameters
    ----------
    difficulty : Series indexed by example, or array in the order of the answers
        On any scale that orders examples: from item response theory, or :func:`length`.
    form : "linear" or "root"
    full_at : int
        T: all examples are in after so many epochs.
    c0 : float
        The share in the first epoch (t = 0).

    Raises
    ------
    FrameError
        As :func:`ddaclae`.
    """
    _check_share("c0", c0)
    if full_at < 1:
        raise ValueError(f"full_at is {full_at}; all examples are in after T epochs, 1 or more")
    table = (
        difficulty.to_frame("b")
        if isinstance(difficulty, pd.Series)
        else pd.DataFrame({"b": difficulty})
    )
    known, gold = _aligned(table, answers)
    ladder = _Ladder(known["b"].to_numpy(float), gold, balanced)

    def rule(epoch: int, scores: Scores) -> Selection:
        return _unasked(
            ladder.easiest(np.array([_count(share_at(epoch - 1, form, full_at, c0), len(gold))]))
        )

    return Curriculum(name or f"CB-{form.title()}", ladder.difficulty, gold, rule)


def everything(
    answers: pd.Series | Sequence[int] | np.ndarray, *, name: str = "all data"
) -> Curriculum:
    """Return the curriculum that is none: every example at every epoch."""
    gold = _labels(answers)
    return Curriculum(
        name,
        np.zeros(len(gold)),
        gold,
        lambda epoch, scores: _unasked(np.ones((1, len(gold)), bool)),
    )


def share_at(t: int, form: Form, full_at: int, c0: float = INITIAL_COMPETENCE) -> float:
    """Return the share of examples that a competence schedule trains on after t epochs (Platanios et al. 2019)."""
    if form not in ("linear", "root"):
        raise ValueError(
            f"no competence schedule has the form {form!r}; there are 'linear' and 'root'"
        )
    power = 1 if form == "linear" else 2
    return float(min(1.0, (t * (1 - c0**power) / full_at + c0**power) ** (1 / power)))


def estimate(items: KnownItems, log_probabilities: np.ndarray, answers: np.ndarray) -> pd.DataFrame:
    """Grade predictions and estimate abilities: the procedure SCORE of Algorithm 3.

    Parameters
    ----------
    items : KnownItems
    log_probabilities : array or Tensor, shape (n_models, n_examples, n_classes)
    answers : ndarray, shape (n_examples,)

    Returns
    -------
    DataFrame, one row a model
        ``theta`` and ``se``, logits.
    """
    return items.ability(np.asarray(log_probabilities.argmax(-1)) == answers)


class _Ladder:
    """Examples by difficulty: a rung is an example's rank (ties by position), within its class if balanced."""

    def __init__(self, difficulty: np.ndarray, answers: np.ndarray, balanced: bool) -> None:
        self.difficulty = difficulty
        group = answers if balanced else np.zeros(len(answers), dtype=int)
        self._rung = pd.Series(difficulty).groupby(group).rank(method="first").to_numpy()
        self._proportion = (np.bincount(group) / len(group))[group]  # of the example's class

    def easiest(self, wanted: np.ndarray) -> np.ndarray:
        """Return (n_models, n_examples) marks of the ``wanted`` easiest; from each class in proportion, rounded up."""
        return self._rung <= np.ceil(wanted[:, None] * self._proportion - 1e-9)

    def within(self, theta: np.ndarray) -> np.ndarray:
        """Return how many examples are not harder than each ability."""
        return np.searchsorted(np.sort(self.difficulty), theta, side="right")


def _aligned(
    table: pd.DataFrame, answers: pd.Series | Sequence[int] | np.ndarray
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the difficulties in the order of the answers, or say which are missing."""
    gold = _labels(answers)
    if "b" not in table:
        raise FrameError(f"items need the column b (difficulty), and have {list(table.columns)}")
    if isinstance(answers, pd.Series):
        table = table.reindex(answers.index)
    elif len(table) != len(gold):
        raise FrameError(
            f"there are {len(table)} difficulties and {len(gold)} examples; pass answers as a Series that names the "
            "examples, so that each finds its own"
        )
    needed = [column for column in ("a", "b", "c") if column in table]
    lost = table.index[~np.isfinite(table[needed].to_numpy(float)).all(axis=1)]
    if len(lost):
        raise FrameError(
            f"{len(lost)} of {len(gold)} examples {format_names(lost)} have no difficulty, or an infinite one (all of the "
            "crowd answered them alike); let a crowd answer them (irt.fit(responses).items), or leave them out"
        )
    return table, gold


def _labels(answers: pd.Series | Sequence[int] | np.ndarray) -> np.ndarray:
    gold = np.asarray(answers)
    if gold.ndim != 1 or not len(gold) or gold.dtype.kind not in "iu" or gold.min() < 0:
        raise FrameError(
            f"answers are gold labels, whole numbers from 0, one an example; these are {gold.dtype} "
            f"of shape {gold.shape}"
        )
    if (gold == gold[0]).all():
        raise FrameError(
            f"all {len(gold)} examples have the label {gold[0]}: there is nothing to tell apart; add some of another"
        )
    return gold


def _unasked(examples: np.ndarray) -> Selection:
    """Return what a schedule chose, for all models alike, without asking any of them."""
    unknown = np.full(len(examples), np.nan)
    return Selection(examples, unknown, unknown, np.zeros(len(examples), bool))


def _count(share: float, n: int) -> int:
    """Return a share of n examples, rounded up: at least one."""
    return max(1, int(np.ceil(share * n - 1e-9)))


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, and a share lies between 0 and 1")


def convergence(history: pd.DataFrame) -> pd.DataFrame:
    """Return when each model was best on the development set, and how many examples it had used by then.

    Parameters
    ----------
    history : DataFrame
        ``TrainedCrowd.history``, of a training with a development set.

    Returns
    -------
    DataFrame, indexed by member
        ``epoch`` (the first of the best, from 1), ``n_examples`` used up to its end, each counted as often as it was
        trained on, and ``development_accuracy``.

    Raises
    ------
    FrameError
        If a member has no accuracy on a development set.
    """
    rows = history.sort_values(["member", "epoch"]).reset_index(drop=True)
    rows["n_examples"] = rows.groupby("member")["n_examples"].cumsum()
    accuracy = rows.groupby("member")["development_accuracy"]
    blind = accuracy.max().index[accuracy.max().isna()]
    if len(blind):
        raise FrameError(
            f"members {format_names(blind)} have no development accuracy; train with development=(inputs, labels)"
        )
    best = rows.loc[accuracy.idxmax()]
    return best.set_index("member")[["epoch", "n_examples", "development_accuracy"]]


def length(items: pd.DataFrame) -> pd.Series:
    """Return the number of words of each prompt: the difficulty by length (of an NLI item, that of its premise)."""
    return pd.Series(
        items["prompt"].str.split().str.len().to_numpy(float), items["item_id"], name="length_words"
    )


def discrepancies(difficulty: pd.Series, other: pd.Series) -> pd.DataFrame:
    """Rank examples by two difficulties and return how far the ranks lie apart (Lalor 2020, section 6.4.1).

    Returns
    -------
    DataFrame, indexed by example, the farthest first
        ``rank`` and ``other_rank`` (1 is the easiest; ties share their mean), and ``delta`` = abs(rank - other_rank).

    Raises
    ------
    FrameError
        If an example has a difficulty in one of them only.
    """
    odd = difficulty.index.symmetric_difference(other.index)
    if len(odd):
        raise FrameError(
            f"examples {format_names(odd)} have one of the two difficulties only; choose the common ones first"
        )
    ranks = pd.DataFrame(
        {"rank": difficulty.rank(), "other_rank": other.reindex(difficulty.index).rank()}
    )
    ranks["delta"] = (ranks["rank"] - ranks["other_rank"]).abs()
    return ranks.sort_values("delta", ascending=False, kind="stable")
