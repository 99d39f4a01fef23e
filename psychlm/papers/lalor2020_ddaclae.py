r"""Curricula: which examples a model trains on at each epoch, by its ability or by a schedule.

DDaCLAE (Lalor 2020, chapter 6, Algorithm 3) lets the model in training answer its whole training
set, estimates its ability from difficulties that item response theory gave, and trains on what is
not harder than that: :math:`\{x : b_x \le \hat\theta_e\}`. Its rivals (Platanios et al. 2019) never
ask the model: after t epochs they train on the easiest share

.. math::
    c_{lin}(t) = \min(1, t (1 - c_0) / T + c_0), \quad
    c_{root}(t) = \min(1, \sqrt{t (1 - c_0^2) / T + c_0^2}).

A curriculum serves one training run, of one model or of many, each by its own ability::

    by_ability = DDaCLAE(fit.items, answers)
    trained = crowds.train(kind, inputs, answers, ..., epoch_callback=by_ability.epoch_callback)
    by_ability.history()                 # abilities and numbers of examples, epoch by epoch
    convergence(trained.history)         # examples used until the best epoch
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.crowds import CrowdState, EpochPlan
from psychlm.crowds.training import EpochCallback
from psychlm.frames import FrameError, format_names
from psychlm.irt import score
from psychlm.irt.response_functions import four_parameters
from psychlm.irt.scoring import check_known, climb

FLOOR = 0.01  # share of the examples, the easiest, that DDaCLAE always trains on; ours, not Lalor's
CURVE_CELLS = 2**21  # probabilities held at once: 16 MiB
INITIAL_COMPETENCE = 0.01  # c0 of Platanios et al. (2019, section 3)
Reached = tuple[np.ndarray, np.ndarray, np.ndarray]  # numbers of examples, theta, se


class Curriculum:
    """All examples at every epoch; the base of the curricula below.

    Parameters
    ----------
    answers : Series, or int array of shape (n_examples,)
        Gold labels from 0, in the order of the training set; a Series names the examples.
    items : DataFrame or Series, optional
        ``b`` (difficulty), for DDaCLAE also ``a``, or a Series of difficulties; matched to a Series
        of answers by name, to an array by position.
    balanced : bool
        Keep the proportions of the classes: take the easiest of each. The paper does not.

    Raises
    ------
    FrameError
        If a difficulty is missing or infinite, or all examples have one label.
    """

    floor = 0.0  # least share of the examples

    def __init__(
        self,
        answers: pd.Series | Sequence[int] | np.ndarray,
        items: pd.DataFrame | pd.Series | None = None,
        *,
        balanced: bool = False,
    ) -> None:
        gold = np.asarray(answers)
        if gold.ndim != 1 or gold.dtype.kind not in "iu" or len(np.unique(gold)) < 2:
            raise FrameError(
                "answers are gold labels, whole numbers of two or more classes, one for each "
                f"example; these are {gold.dtype} of shape {gold.shape}"
            )
        # Put the difficulties in the order of the training set.
        table = pd.DataFrame({"b": np.zeros(len(gold))})
        if items is not None:
            table = items.to_frame("b") if isinstance(items, pd.Series) else items
            if isinstance(answers, pd.Series):
                table = table.reindex(answers.index)
            elif len(table) != len(gold):
                raise FrameError(
                    f"{len(table)} difficulties for {len(gold)} examples; pass answers as a Series "
                    "that names the examples, so that difficulties are matched by name"
                )
        parameters = table[[name for name in ("a", "b", "c") if name in table]].astype(float)
        missing = parameters.index[~np.isfinite(parameters).all(axis=1)]
        if len(missing):
            raise FrameError(
                f"{len(missing)} of {len(gold)} examples {format_names(missing)} have no "
                "difficulty, or an infinite one (the crowd answered them alike); leave them out, "
                "or fit with a prior"
            )
        self.items, self.answers = parameters, gold
        # Rank examples by difficulty (ties by position), within their class if balanced.
        group = gold if balanced else np.zeros(len(gold), dtype=int)
        self.rank = parameters["b"].groupby(group).rank(method="first").to_numpy()
        self.class_share = (np.bincount(group) / len(group))[group]
        self._record: list[pd.DataFrame] = []

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return each member's number of examples, and its ability and standard error (logits)."""
        unknown = np.full(len(state.members), np.nan)
        return np.full(len(state.members), len(self.answers)), unknown, unknown

    def epoch_callback(self, epoch: int, state: CrowdState) -> EpochPlan:
        """Return and record what an epoch (from 1) trains on: the ``epoch_callback`` of ``train``.

        Warns
        -----
        RuntimeWarning
            The first time that a model trains on examples of one class only; see ``balanced``.
        """
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
        """Return one row per epoch and member.

        Columns are ``epoch``, ``member``, ``theta`` and ``se`` (logits, before the epoch),
        ``n_examples`` and their ``share``, ``floored`` (fewer examples were within reach than the
        floor) and the number of ``classes`` among the examples.
        """
        return pd.concat(self._record, ignore_index=True)


class DDaCLAE(Curriculum):
    r"""Train on what is not harder than the model is able (Lalor 2020, Algorithm 3).

    Ability is the maximum of the likelihood of all answers to the training set, with items known. A
    model that answers all of them correctly trains on all, one that answers none on the floor.

    Parameters
    ----------
    items : DataFrame or Series, indexed by example
        ``a`` (slope) and ``b`` (difficulty, logits), as ``IRTFit.items``; a Series holds the
        difficulties of a Rasch model.
    answers, balanced
        See :class:`Curriculum`.
    floor : float
        Share of the examples, at least one, to train on if fewer are within reach. Algorithm 3 has
        none, and does not end for a model whose ability is below every difficulty.
    """

    def __init__(
        self,
        items: pd.DataFrame | pd.Series,
        answers: pd.Series | Sequence[int] | np.ndarray,
        *,
        floor: float = FLOOR,
        balanced: bool = False,
    ) -> None:
        if not 0 <= floor <= 1:
            raise ValueError(f"floor is {floor}; it is a share between 0 and 1")
        super().__init__(answers, items, balanced=balanced)
        self.floor = floor
        self.scale = KnownItems(self.items if "a" in self.items else self.items.assign(a=1.0))

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return how many examples are not harder than each member's ability, and that ability."""
        correct = np.asarray(state.log_probabilities()).argmax(-1) == self.answers
        theta, se = self.scale.ability(correct).to_numpy().T
        return np.searchsorted(np.sort(self.items["b"]), theta, side="right"), theta, se


class RandomExamples(DDaCLAE):
    """As many examples as DDaCLAE would take, drawn anew at random in each epoch: a control.

    Parameters
    ----------
    items, answers, floor
        See :class:`DDaCLAE`.
    seed : int
        Of the draws.
    """

    def __init__(
        self,
        items: pd.DataFrame | pd.Series,
        answers: pd.Series | Sequence[int] | np.ndarray,
        *,
        floor: float = FLOOR,
        seed: int = 0,
    ) -> None:
        super().__init__(items, answers, floor=floor)
        self.rng = np.random.default_rng(seed)

    def epoch_callback(self, epoch: int, state: CrowdState) -> EpochPlan:
        """Return and record what an epoch (from 1) trains on; members share the draw."""
        self.rank = 1.0 + self.rng.permutation(len(self.rank))
        return super().epoch_callback(epoch, state)


class CompetenceBased(Curriculum):
    """CB-Linear and CB-Root: a growing share of the easiest examples (Platanios et al. 2019).

    Parameters
    ----------
    difficulty : Series indexed by example, or array in the order of the answers
        On any scale that orders examples.
    answers, balanced
        See :class:`Curriculum`.
    form : {"linear", "root"}
    full_at : int
        T: the epochs after which all examples are used.
    c0 : float
        The share in the first epoch (t = 0).
    """

    def __init__(
        self,
        difficulty: pd.Series | np.ndarray,
        answers: pd.Series | Sequence[int] | np.ndarray,
        *,
        form: Literal["linear", "root"],
        full_at: int,
        c0: float = INITIAL_COMPETENCE,
        balanced: bool = False,
    ) -> None:
        if form not in ("linear", "root") or full_at < 1 or not 0 <= c0 <= 1:
            raise ValueError(
                f"form is {form!r}, full_at {full_at} and c0 {c0}; they are 'linear' or 'root', 1 "
                "or more epochs, and a share between 0 and 1"
            )
        super().__init__(answers, pd.Series(difficulty), balanced=balanced)
        self.power, self.full_at, self.c0 = (1 if form == "linear" else 2), full_at, c0

    def n_reached(self, epoch: int, state: CrowdState) -> Reached:
        """Return the number of examples by the schedule; no member is asked."""
        start = self.c0**self.power
        share = ((epoch - 1) * (1 - start) / self.full_at + start) ** (1 / self.power)
        _, theta, se = super().n_reached(epoch, state)
        n = max(1, int(np.ceil(min(1.0, share) * len(self.answers) - 1e-9)))
        return np.full(len(state.members), n), theta, se


def together(curricula: Sequence[Curriculum], which: np.ndarray) -> EpochCallback:
    """Return one ``epoch_callback`` for a crowd whose members follow different curricula.

    Networks of all curricula are then trained as one stack, and each as if it were alone.

    Parameters
    ----------
    curricula : sequence of Curriculum
    which : (n_models,) int array
        Place of each member's curriculum in ``curricula``.
    """

    def epoch_callback(epoch: int, state: CrowdState) -> EpochPlan:
        log_probabilities = state.log_probabilities()
        examples = np.empty(log_probabilities.shape[:2], bool)
        for i, curriculum in enumerate(curricula):
            rows = np.flatnonzero(which[state.members] == i)
            if len(rows):
                members = CrowdState(
                    state.members[rows], partial(log_probabilities.__getitem__, rows)
                )
                examples[rows] = curriculum.epoch_callback(epoch, members).examples
        return EpochPlan(examples=examples)

    return epoch_callback


def convergence(history: pd.DataFrame) -> pd.DataFrame:
    """Return when each model was best on the development set, and the examples used by then.

    Parameters
    ----------
    history : DataFrame
        ``TrainedCrowd.history`` of a training with a development set.

    Returns
    -------
    DataFrame, indexed by member
        ``epoch`` (the first of the best), ``n_examples`` used up to its end, each counted as often
        as it was trained on, and ``development_accuracy``.
    """
    rows = history.sort_values(["member", "epoch"]).reset_index(drop=True)
    if rows["development_accuracy"].isna().any():
        raise FrameError("no development accuracy; train with development=(inputs, labels)")
    rows["n_examples"] = rows.groupby("member")["n_examples"].cumsum()
    best = rows.loc[rows.groupby("member")["development_accuracy"].idxmax()]
    return best.set_index("member")[["epoch", "n_examples", "development_accuracy"]]


class KnownItems:
    """Items with known parameters, prepared to score many persons many times.

    Items with equal parameters are pooled, since the test characteristic curve is a sum.

    Parameters
    ----------
    items : DataFrame, indexed by item
        ``a``, ``b`` or ``d``, and optionally ``c``, as ``IRTFit.items``.

    Raises
    ------
    FrameError
        If a column is missing, an item has two rows, or a parameter is not finite.
    """

    def __init__(self, items: pd.DataFrame) -> None:
        a, d, c, _ = four_parameters(items)
        self.items = pd.DataFrame({"a": a, "d": d, "c": c}, index=items.index)
        check_known(self.items)
        pooled = self.items.groupby(["a", "d"], sort=False).size()
        distinct = pooled.index.to_frame().to_numpy(float)
        self._slope, self._intercept = torch.tensor(distinct.T.copy())
        self._count = torch.tensor(pooled.to_numpy(float))

    def ability(self, correct: np.ndarray) -> pd.DataFrame:
        """Return maximum-likelihood abilities and their standard errors, in logits.

        Parameters
        ----------
        correct : ndarray, shape (n_persons, n_items)
            Whether each response is correct; items in the order of ``items``.

        Returns
        -------
        DataFrame, indexed by person
            ``theta`` and ``se``, as ``irt.score(..., method="ml")`` gives them. Items with guessing
            go through that function.
        """
        correct = np.atleast_2d(np.asarray(correct, dtype=bool))
        if correct.shape[1] != len(self.items):
            raise FrameError(
                f"responses to {correct.shape[1]} items, and {len(self.items)} are known; "
                "give one column per item"
            )
        names = pd.RangeIndex(len(correct), name="person")
        if (self.items["c"] > 0).any():
            frame = pd.DataFrame(correct.astype(float), names, self.items.index)
            return score(self.items, frame, "ml")

        # The weighted scores, and those that only an infinite ability expects.
        weights = self.items["a"].to_numpy()
        scores = torch.tensor(np.stack([row @ weights for row in correct]))
        total = self._slope * self._count
        lowest, highest = total.clamp(max=0).sum(), total.clamp(min=0).sum()
        rounding = 1e-9 * (highest - lowest)
        low, high = scores <= lowest + rounding, scores >= highest - rounding
        finite = ~(low | high)

        def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
            expected, information = self._curve(ability)
            return torch.where(finite, scores - expected, 0.0), torch.where(
                finite, information, 1.0
            )

        # Start where a test of equal items, as difficult and steep as these on average, would be.
        n_items = self._count.sum()
        share = ((scores - lowest) / (highest - lowest)).clamp(0.01, 0.99)
        steepness = (total.abs().sum() / n_items).clamp(min=1e-3)
        difficulty = -(self._intercept * self._count).sum() / n_items / steepness
        ability = climb(ascent, difficulty + share.logit() / steepness)
        se = torch.where(finite, self._curve(ability)[1].rsqrt(), torch.nan)
        limit = (high.to(ability.dtype) - low.to(ability.dtype)) * torch.inf
        table = torch.stack([torch.where(finite, ability, limit), se], 1)
        return pd.DataFrame(table.numpy(), index=names, columns=["theta", "se"])

    def _curve(self, ability: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected weighted score and the information at each ability, (n_persons,)."""
        expected, information = torch.zeros_like(ability), torch.zeros_like(ability)
        width = max(1, CURVE_CELLS // len(ability))
        for start in range(0, len(self._slope), width):
            part = slice(start, start + width)
            slope, weight = self._slope[part], self._slope[part] * self._count[part]
            p = torch.addr(
                self._intercept[part].expand(len(ability), -1), ability, slope
            ).sigmoid_()
            expected += p @ weight
            information += (p - p.square()) @ (weight * slope)
        return expected, information
