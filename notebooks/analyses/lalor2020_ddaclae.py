r"""Curricula: which examples a model trains on at each epoch, by its ability or by a schedule.

DDaCLAE (Lalor 2020, chapter 6, Algorithm 3) lets the model in training answer its training set,
estimates its ability from difficulties that item response theory gave, and trains on what is not
harder: :math:`\{x : b_x \le \hat\theta_e\}`. Its rivals (Platanios et al. 2019) never ask the
model: after t epochs they train on the easiest share

.. math::
    c_{lin}(t) = \min(1, t (1 - c_0) / T + c_0), \quad
    c_{root}(t) = \min(1, \sqrt{t (1 - c_0^2) / T + c_0^2})."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from psychlm.crowds import CrowdState, EpochPlan
from psychlm.crowds.training import EpochCallback
from psychlm.frames import FrameError, format_names
from psychlm.irt.scoring import climb

FLOOR = 0.01  # share of the examples, the easiest, that DDaCLAE always trains on; ours, not Lalor's
INITIAL_COMPETENCE = 0.01  # c0 of Platanios et al. (2019, section 3)
Reached = tuple[np.ndarray, np.ndarray, np.ndarray]  # numbers of examples, theta, se


class Curriculum:
    """All examples at every epoch; the base of the curricula below.

    One serves one run of ``crowds.train(..., epoch_callback=curriculum.epoch_callback)``.
    ``answers`` are gold labels in the order of the training set; difficulties are matched by name.
    ``balanced`` takes the easiest of each class."""

    floor = 0.0  # least share of the examples

    def __init__(
        self, answers: pd.Series, difficulty: pd.Series | None = None, *, balanced: bool = False
    ) -> None:
        b = pd.Series(0.0, answers.index) if difficulty is None else difficulty
        b = b.astype(float).reindex(answers.index)
        missing = b.index[~np.isfinite(b)]
        if len(missing):
            raise FrameError(
                f"{len(missing)} of {len(b)} examples {format_names(missing)} have no difficulty, "
                "or an infinite one; leave them out, or fit with a prior"
            )
        self.b, self.answers = b.to_numpy(), answers.to_numpy()
        # Rank examples by difficulty (ties by position), within their class if balanced.
        group = self.answers if balanced else np.zeros(len(b), dtype=int)
        self.rank = pd.Series(self.b).groupby(group).rank(method="first").to_numpy()
        self.class_share = (np.bincount(group) / len(group))[group]
        self._record: list[pd.DataFrame] = []

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return each member's number of examples, and its ability and standard error (logits)."""
        unknown = np.full(len(state.members), np.nan)
        return np.full(len(state.members), len(self.answers)), unknown, unknown

    def epoch_callback(self, epoch: int, state: CrowdState) -> EpochPlan:
        """Return and record what an epoch (from 1) trains on: the ``epoch_callback`` of ``train``.
        It warns the first time that a model trains on examples of one class only."""
        reached, theta, se = self.n_reached(epoch, state)
        least = max(1, int(np.ceil(self.floor * len(self.answers) - 1e-9)))
        n_wanted = np.maximum(reached, least)
        # The easiest n examples; if balanced, of each class its share of n, rounded up.
        examples = self.rank <= np.ceil(n_wanted[:, None] * self.class_share - 1e-9)
        labels = np.unique(self.answers)[:, None, None]
        n_classes = (examples & (self.answers == labels)).any(axis=2).sum(axis=0)
        columns = {"epoch": epoch, "member": state.members, "theta": theta, "se": se}
        columns |= {"n_examples": examples.sum(axis=1), "share": examples.mean(axis=1)}
        columns |= {"floored": reached < least, "classes": n_classes}
        narrow = state.members[n_classes < 2].tolist()
        if narrow and not any((table["classes"] < 2).any() for table in self._record):
            warnings.warn(
                f"epoch {epoch}: members {format_names(narrow)} train on examples of one class "
                "only, and learn to answer nothing else; use balanced=True or a higher floor",
                RuntimeWarning,
                stacklevel=2,
            )
        self._record.append(pd.DataFrame(columns))
        return EpochPlan(examples=examples)

    def history(self) -> pd.DataFrame:
        """Return one row per epoch and member: ``theta`` and ``se`` (logits, before the epoch),
        ``n_examples`` and ``share``, ``floored`` (fewer were within reach) and ``classes``."""
        return pd.concat(self._record, ignore_index=True)


class DDaCLAE(Curriculum):
    """Train on what is not harder than the model is able (Lalor 2020, Algorithm 3).

    Ability is the maximum of the likelihood of all answers, with Rasch difficulties known.
    ``floor`` is the share of the examples, at least one, to train on if fewer are within reach:
    Algorithm 3, without it, does not end for a model below every difficulty."""

    def __init__(
        self,
        difficulty: pd.Series,
        answers: pd.Series,
        *,
        floor: float = FLOOR,
        balanced: bool = False,
    ) -> None:
        super().__init__(answers, difficulty, balanced=balanced)
        self.floor = floor

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return how many examples are not harder than each member's ability, and that ability."""
        correct = np.asarray(state.log_probabilities()).argmax(-1) == self.answers
        theta, se = rasch_ability(self.b, correct).to_numpy().T
        return np.searchsorted(np.sort(self.b), theta, side="right"), theta, se


class RandomExamples(DDaCLAE):
    """As many examples as DDaCLAE would take, drawn anew at random in each epoch: a control."""

    def __init__(
        self, difficulty: pd.Series, answers: pd.Series, *, floor: float = FLOOR, seed: int = 0
    ) -> None:
        super().__init__(difficulty, answers, floor=floor)
        self.rng = np.random.default_rng(seed)

    def epoch_callback(self, epoch: int, state: CrowdState) -> EpochPlan:
        """Return and record what an epoch (from 1) trains on; members share the draw."""
        self.rank = 1.0 + self.rng.permutation(len(self.rank))
        return super().epoch_callback(epoch, state)


class HardExamples(DDaCLAE):
    r"""Train on what is harder than the model is able, or the hardest share ``floor``: hard-example
    mining (Lalor 2020, section 6.4), :math:`\{x : b_x > \hat\theta_e\}`."""

    def __init__(self, difficulty: pd.Series, answers: pd.Series, *, floor: float = FLOOR) -> None:
        super().__init__(-difficulty, answers, floor=floor)  # so that ranks begin with the hardest

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return how many examples are harder than each member's ability, and that ability."""
        correct = np.asarray(state.log_probabilities()).argmax(-1) == self.answers
        theta, se = rasch_ability(-self.b, correct).to_numpy().T
        return np.searchsorted(np.sort(self.b), -theta), theta, se


class CompetenceBased(Curriculum):
    """CB-Linear and CB-Root: a growing share of the easiest examples (Platanios et al. 2019). All
    examples are used after ``full_at`` epochs (T), the share ``c0`` in the first (t = 0)."""

    def __init__(
        self,
        difficulty: pd.Series,
        answers: pd.Series,
        *,
        form: Literal["linear", "root"],
        full_at: int,
        c0: float = INITIAL_COMPETENCE,
    ) -> None:
        super().__init__(answers, difficulty)
        self.power = {"linear": 1, "root": 2}[form]
        self.full_at = full_at
        self.c0 = c0

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return the number of examples by the schedule; no member is asked."""
        start = self.c0**self.power
        share = ((epoch - 1) * (1 - start) / self.full_at + start) ** (1 / self.power)
        _, theta, se = super().n_reached(epoch, state)
        n = max(1, int(np.ceil(min(1.0, share) * len(self.answers) - 1e-9)))
        return np.full(len(state.members), n), theta, se


def together(curricula: Sequence[Curriculum], which: np.ndarray) -> EpochCallback:
    """Return one ``epoch_callback`` for a crowd whose members follow different curricula; ``which``
    is the place of each member's."""
    if strange := set(np.asarray(which).tolist()) - set(range(len(curricula))):
        raise ValueError(f"there are {len(curricula)} curricula, and none at {sorted(strange)}")

    def epoch_callback(epoch: int, state: CrowdState) -> EpochPlan:
        log_probabilities = state.log_probabilities()
        examples = np.empty(log_probabilities.shape[:2], bool)
        for i, curriculum in enumerate(curricula):
            rows = np.flatnonzero(which[state.members] == i)
            if len(rows):
                of_rows = partial(log_probabilities.__getitem__, rows)
                members = CrowdState(state.members[rows], of_rows)
                examples[rows] = curriculum.epoch_callback(epoch, members).examples
        return EpochPlan(examples=examples)

    return epoch_callback


def convergence(history: pd.DataFrame) -> pd.DataFrame:
    """Return by member the first best ``epoch`` of ``TrainedCrowd.history``, ``n_examples`` up to
    its end (each as often as it was trained on) and ``development_accuracy``."""
    rows = history.sort_values(["member", "epoch"]).reset_index(drop=True)
    rows["n_examples"] = rows.groupby("member")["n_examples"].cumsum()
    best = rows.loc[rows.groupby("member")["development_accuracy"].idxmax()]
    return best.set_index("member")[["epoch", "n_examples", "development_accuracy"]]


def rasch_ability(difficulty: ArrayLike, correct: ArrayLike) -> pd.DataFrame:
    """Return ``theta`` and ``se`` (logits) of persons with (n_persons, n_items) bool responses, as
    ``irt.score(..., method="ml")`` gives them for Rasch items, faster for many items.

    The ability is where the expected number of right answers is the observed one."""
    b = torch.tensor(np.asarray(difficulty, float))
    n_correct = torch.tensor(np.asarray(correct).sum(axis=1, dtype=float))
    finite = (n_correct > 0) & (n_correct < len(b))

    def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
        p = (ability[:, None] - b).sigmoid_()
        gradient = torch.where(finite, n_correct - p.sum(1), 0.0)
        return gradient, torch.where(finite, (p - p.square()).sum(1), 1.0)

    # Start where a test of items that are all as difficult as these on average would be.
    share = (n_correct / len(b)).clamp(0.01, 0.99)
    ability = climb(ascent, b.mean() + share.logit())
    se = torch.where(finite, ascent(ability)[1].rsqrt(), torch.nan)
    ability = torch.where(finite, ability, torch.where(n_correct > 0, torch.inf, -torch.inf))
    index = pd.RangeIndex(len(ability), name="person")
    return pd.DataFrame({"theta": ability.numpy(), "se": se.numpy()}, index)
