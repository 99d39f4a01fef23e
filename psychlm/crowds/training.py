"""Train a crowd as one: a step moves every member that is still learning, each on its own batch.

Members differ in their subset of the data, their labels, the order of their batches and the epoch they stop at. Within
an epoch they are sorted by how many batches they have left, so that those still at work are always the first ones, and
stacked products run over them alone; a member that stopped or diverged is taken out of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from psychlm.crowds.encode import PAD, Encoded, Inputs, on_device
from psychlm.crowds.members import Member, batches_of_epoch, draw_members
from psychlm.crowds.networks import EMBEDDING, Kind, Network, TextBatch, Weights, classify, initial
from psychlm.crowds.optimise import Optimiser, Rule
from psychlm.crowds.reading import logits

Loss = Literal["cross-entropy", "squared-error"]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one epoch trains on; whatever is None is as it was set when training began."""

    examples: NDArray[np.bool_] | None = None  # (n,) for all members alike, or (models, n)
    targets: NDArray[Any] | None = (
        None  # (n,) classes or (n, classes) probabilities, or these with models first
    )
    loss: Loss | None = None


class Scores:
    """What a lesson may ask before its epoch: what the members now make of the whole training set."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    @property
    def members(self) -> NDArray[np.int64]:
        """Numbers of the members still training, in the order of the rows of scores and of lessons."""
        return np.sort(self._run.active.cpu().numpy())

    def __call__(self) -> NDArray[np.float32]:
        """Return the (models, n, classes) log-probabilities, without a backward pass; stopped members are left out."""
        run = self._run
        order = torch.argsort(run.active)
        return (
            logits(run.network, run.optimiser.weights, run.inputs)
            .log_softmax(2)[order]
            .cpu()
            .numpy()
        )


LessonHook = Callable[[int, Scores], Lesson | None]


@dataclass(frozen=True, eq=False)
class TrainedCrowd:
    """A crowd after training: of each member the weights of its best epoch (its last, without a development set)."""

    network: Network
    weights: Weights  # name -> (models, ...)
    members: tuple[Member, ...]
    history: (
        pd.DataFrame
    )  # epoch, member, loss (nats, or squared error), development_accuracy, n_examples
    best_epoch: NDArray[np.int64]  # (models,) counted from 1; 0: the weights it started from
    diverged: NDArray[np.bool_]  # (models,) whose loss ceased to be finite

    @property
    def n_diverged(self) -> int:
        """Members whose training failed; their responses are NaN."""
        return int(self.diverged.sum())


def train(
    network: Network | Kind,
    inputs: Inputs,
    targets: ArrayLike,
    *,
    members: Sequence[Member] | None = None,
    n_models: int = 1,
    seed: int = 0,
    development: tuple[Inputs, ArrayLike] | None = None,
    classes: int | None = None,
    epochs: int = 20,
    batch_size: int = 32,
    learning_rate: float = 0.01,
    rule: Rule = "adam",
    patience: int = 3,
    loss: Loss = "cross-entropy",
    lesson: LessonHook | None = None,
    device: str = "cpu",
    **sizes: int,
) -> TrainedCrowd:
    """Train many small classifiers at once, each as if it were alone.

    Parameters
    ----------
    network : Network or str
        A network, or its kind, which is then made to fit the inputs; ``sizes`` (size, hidden, tanh_layers) go to it.
    inputs : Encoded or Tensor
        n training texts, pairs or images: :func:`encode_texts`, :func:`encode_pairs`, :func:`encode_images`.
    targets : (n,) int or (n, classes) float
        Classes from 0, or probabilities of the classes (soft labels).
    members : sequence of Member, optional
        Seeds, shares of the data and of flipped labels; by default ``n_models`` on all data, drawn from ``seed``.
    development : (inputs, classes), optional
        Held-out items. A member stops after ``patience`` epochs without a better accuracy and keeps its best weights.
    rule : {"adam", "sgd"}
        Adam, lazy on embeddings, or plain gradient descent (the paper's, with a rate of 0.1).
    loss : {"cross-entropy", "squared-error"}
        In nats, or the squared difference of probabilities summed over classes; both averaged over a batch.
    lesson : callable, optional
        ``lesson(epoch, scores) -> Lesson | None``, asked before each epoch (counted from 1) what it trains on.
        A member's own subset still holds.
    device : str
        ``"cpu"`` or ``"cuda"``.

    Returns
    -------
    TrainedCrowd

    Raises
    ------
    ValueError
        If targets do not fit the inputs or the classes, or labels are to be flipped that are probabilities.
    """
    soft = np.asarray(targets).ndim == 2
    n_classes = classes or (np.shape(targets)[1] if soft else int(np.max(np.asarray(targets))) + 1)
    if not isinstance(network, Network):
        network = Network.reading(network, inputs, n_classes, **sizes)
    chosen = (
        draw_members(n_models, seed, share=1.0, flipped=0.0) if members is None else list(members)
    )
    run = _Run(
        network,
        inputs,
        _targets_of_members(targets, chosen, len(inputs), network.classes),
        chosen,
        device,
    )
    run.batch_size, run.loss, run.patience = batch_size, loss, patience
    run.optimiser = Optimiser(
        initial(network, [m.seed for m in chosen], device), learning_rate, rule
    )
    if development is not None:
        run.development = (
            on_device(development[0], device),
            torch.tensor(np.asarray(development[1]), device=device),
        )
    for epoch in range(1, epochs + 1):
        if not len(run.active):
            break
        run.epoch(epoch, lesson(epoch, Scores(run)) if lesson else None)
    return run.finished()


def _targets_of_members(
    targets: ArrayLike, members: Sequence[Member], n: int, classes: int
) -> NDArray[Any]:
    """Return (n,), (models, n), or (n, classes) targets: with flipped labels every member has its own."""
    values = np.asarray(targets)
    if values.shape not in ((n,), (n, classes)):
        raise ValueError(
            f"{n} inputs and {classes} classes need targets of the shape ({n},) or ({n}, {classes}), not {values.shape}"
        )
    flips = any(member.flipped for member in members)
    if values.ndim == 2:
        if flips:
            raise ValueError(
                "only classes can be flipped, not probabilities; give (n,) targets or members with flipped=0"
            )
        if not (
            np.isfinite(values).all()
            and (values >= 0).all()
            and np.allclose(values.sum(1), 1, atol=1e-4)
        ):
            raise ValueError(
                "soft targets are probabilities: finite, not negative, and each row adds up to 1"
            )
        return values.astype(np.float32)
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0 or values.max() >= classes:
        raise ValueError(
            f"targets are integers from 0 to {classes - 1}; these run from {values.min()} to {values.max()}"
        )
    if not flips:
        return values.astype(np.int64)
    return np.stack(
        [member.labels(values.astype(np.int64), member.examples(n), classes) for member in members]
    )


@dataclass
class _Run:
    """One training run: who is still in it, their weights, and what was kept of the others."""

    network: Network
    inputs: Inputs
    targets: NDArray[Any]
    members: list[Member]
    device: str
    batch_size: int = 32
    patience: int = 3
    loss: Loss = "cross-entropy"
    development: tuple[Inputs, Tensor] | None = None
    history: list[pd.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimiser: Optimiser
        self.inputs = on_device(self.inputs, self.device)
        n_models = len(self.members)
        self.examples = [member.examples(len(self.inputs)) for member in self.members]
        self.active = torch.arange(
            n_models, device=self.device
        )  # members in the order of the stack
        self.best = np.full(n_models, -np.inf)
        self.best_epoch, self.diverged = np.zeros(n_models, np.int64), np.zeros(n_models, bool)
        self.stale = np.zeros(n_models, np.int64)
        self.kept: Weights = {}
        self.lengths = None  # bags read words, however long the texts around them are
        if isinstance(self.inputs, Encoded) and "lstm" in self.network.kind:
            self.lengths = (
                torch.stack([length for _, length in self.inputs.segments]).amax(0).cpu().numpy()
            )

    def epoch(self, epoch: int, lesson: Lesson | None) -> None:
        """Train every active member for an epoch, then look who goes on."""
        lesson = lesson or Lesson()
        batches = self._batches(epoch, lesson)
        targets = (
            self.targets
            if lesson.targets is None
            else self._own_targets(np.asarray(lesson.targets))
        )
        moved = torch.from_numpy(np.ascontiguousarray(targets)).to(self.device)
        losses = self._steps(batches, moved, lesson.loss or self.loss)
        at = self.active.cpu().numpy()
        n_examples = np.array([int((b >= 0).sum()) for b in batches])
        self._end(epoch, at, losses / np.maximum(n_examples, 1), n_examples)

    def _own_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Spread a lesson's targets, whose rows are the active members in order of number, over all members."""
        soft = targets.dtype.kind == "f"
        if targets.ndim == 1 + soft:
            return targets
        spread = np.zeros((len(self.members), *targets.shape[1:]), targets.dtype)
        spread[np.sort(self.active.cpu().numpy())] = targets
        return spread

    def _batches(self, epoch: int, lesson: Lesson) -> list[NDArray[np.int64]]:
        """Cut each member's epoch into batches and sort the stack so that longer epochs come first."""
        at = self.active.cpu().numpy()
        own = [self.examples[i] for i in at]
        if lesson.examples is not None:
            wanted = np.asarray(lesson.examples, dtype=bool)
            if wanted.shape not in ((len(self.inputs),), (len(at), len(self.inputs))):
                raise ValueError(
                    f"a lesson's examples have the shape {wanted.shape}, and {len(at)} members on {len(self.inputs)} "
                    "examples need (n,) or (members, n); see Scores.members"
                )
            rank = np.argsort(np.argsort(at))
            own = [
                e[wanted[e] if wanted.ndim == 1 else wanted[r, e]]
                for e, r in zip(own, rank, strict=True)
            ]
        batches = batches_of_epoch(
            [self.members[i] for i in at], epoch, own, self.batch_size, self.lengths
        )
        order = np.argsort([-len(b) for b in batches], kind="stable")
        if (order != np.arange(len(order))).any():
            self._keep(order)
        return [batches[i] for i in order]

    def _keep(self, order: NDArray[np.int64]) -> None:
        at = torch.as_tensor(order, device=self.device)
        self.active = self.active[at]
        self.optimiser.keep(at)

    def _steps(
        self, batches: list[NDArray[np.int64]], targets: Tensor, loss: Loss
    ) -> NDArray[np.float64]:
        """Take all steps of an epoch; return the (active,) sums of the losses of all examples."""
        n_steps = np.array([len(b) for b in batches])
        schedule = np.full((len(batches), int(n_steps.max(initial=0)), self.batch_size), -1)
        for row, own in zip(schedule, batches, strict=True):
            row[: len(own)] = own
        plan = torch.from_numpy(schedule).to(self.device)
        totals = torch.zeros(len(batches), dtype=torch.float64, device=self.device)
        for step in range(plan.shape[1]):
            n = int((n_steps > step).sum())
            totals[:n] += self._step(
                plan[:n, step], self._targets_at(targets, self.active[:n], plan[:n, step]), loss
            )
        return totals.cpu().numpy()

    def _targets_at(self, targets: Tensor, members: Tensor, examples: Tensor) -> Tensor:
        """Return the (members, batch, classes) probabilities that a batch is to learn."""
        at = examples.clamp(min=0)
        own = targets.ndim == (3 if targets.is_floating_point() else 2)
        chosen = targets[members[:, None], at] if own else targets[at]
        if targets.is_floating_point():
            return chosen
        return torch.nn.functional.one_hot(chosen, self.network.classes).float()

    def _step(self, examples: Tensor, wanted: Tensor, loss: Loss) -> Tensor:
        """Move the first members by one batch each; return the (members,) sums of its losses."""
        n = len(examples)
        here = {
            name: value[:n].detach().requires_grad_()
            for name, value in self.optimiser.weights.items()
            if name != EMBEDDING
        }
        batch, rows = self._read(examples)
        found = classify(self.network, here, batch)
        if loss == "cross-entropy":
            each = -(wanted * found.log_softmax(2)).sum(2)
        else:
            each = (found.softmax(2) - wanted).square().sum(2)
        real = examples >= 0
        each = torch.where(real, each, 0.0)
        (each / real.sum(1, keepdim=True)).sum().backward()
        gradients = {name: value.grad for name, value in here.items() if value.grad is not None}
        if isinstance(batch, TextBatch) and batch.table.grad is not None:
            gradients[EMBEDDING] = batch.table.grad
        with torch.no_grad():
            self.optimiser.step(gradients, rows)
            return each.sum(1).double()

    def _read(self, examples: Tensor) -> tuple[TextBatch | Tensor, Tensor | None]:
        """Gather a batch: the embeddings of its words (rows of the stacked table, each once), or its images."""
        at = examples.clamp(min=0)
        if not isinstance(self.inputs, Encoded):
            return self.inputs[at], None
        first = (
            torch.arange(len(examples), device=self.device)[:, None, None] * self.network.vocabulary
        )
        segments = []
        for numbers, lengths in self.inputs.segments:
            own = torch.where(examples >= 0, lengths[at], 0)
            longest = max(int(own.max()), 1)
            read = numbers[:, :longest].index_select(0, at.flatten()).view(*at.shape, longest)
            # what no one reads is padding, so that no word moves on account of it
            segments.append((torch.where(examples[..., None] >= 0, read, PAD) + first, own))
        table = self.optimiser.weights[EMBEDDING].flatten(0, 1)
        read = torch.zeros(
            len(examples) * self.network.vocabulary, dtype=torch.bool, device=self.device
        )
        for places, _ in segments:
            read[places.flatten()] = True
        rows = read.nonzero()[:, 0]
        place = torch.empty(len(read), dtype=torch.int64, device=self.device)
        place[rows] = torch.arange(len(rows), device=self.device)
        compact = table.index_select(0, rows).requires_grad_()
        return TextBatch(
            compact, tuple((place.take(places), own) for places, own in segments)
        ), rows

    def _end(
        self,
        epoch: int,
        at: NDArray[np.int64],
        losses: NDArray[np.float64],
        n_examples: NDArray[np.int64],
    ) -> None:
        """Note the epoch, keep the weights of those at their best, and take out who stopped or diverged."""
        sound = np.isfinite(losses)
        accuracy = np.full(len(at), np.nan)
        if self.development is not None:
            held, gold = self.development
            right = logits(self.network, self.optimiser.weights, held).argmax(2) == gold
            accuracy = right.double().mean(1).cpu().numpy()
        better = sound & (accuracy > self.best[at]) if self.development is not None else sound
        self.best[at[better]] = accuracy[better]
        self.best_epoch[at[better]] = epoch
        self.stale[at] = np.where(better, 0, self.stale[at] + 1)
        self.diverged[at] = ~sound
        self._store(at, better)
        made = {
            "epoch": epoch,
            "member": at,
            "loss": losses,
            "development_accuracy": accuracy,
            "n_examples": n_examples,
        }
        self.history.append(pd.DataFrame(made))
        goes_on = sound & (self.stale[at] < self.patience)
        if not goes_on.all():
            self._keep(np.flatnonzero(goes_on))

    def _store(self, at: NDArray[np.int64], better: NDArray[np.bool_]) -> None:
        if not self.kept and better.all() and len(at) == len(self.members):
            rank = torch.as_tensor(np.argsort(at), device=self.device)
            self.kept = {name: value[rank] for name, value in self.optimiser.weights.items()}
            return
        if not self.kept:
            self.kept = {
                name: torch.full(
                    (len(self.members), *value.shape[1:]), torch.nan, device=self.device
                )
                for name, value in self.optimiser.weights.items()
            }
        for name, value in self.optimiser.weights.items():
            if better.all():
                self.kept[name][torch.as_tensor(at, device=self.device)] = value
            else:
                self.kept[name][at[better]] = value[better]

    def finished(self) -> TrainedCrowd:
        """Return what came of it."""
        history = pd.concat(self.history, ignore_index=True).sort_values(
            ["epoch", "member"], ignore_index=True
        )
        return TrainedCrowd(
            self.network,
            self.kept,
            tuple(self.members),
            history,
            self.best_epoch.copy(),
            self.diverged.copy(),
        )
