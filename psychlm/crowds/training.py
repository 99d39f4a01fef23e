"""Train a crowd as one: each step moves every member that still learns, each on its own batch.

Members differ in their examples, labels, order of batches and last epoch. Within an epoch they are
sorted by their number of batches, so that those still at work come first and stacked products run
over them alone; a member that stopped or diverged leaves the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from psychlm.crowds.networks import (
    EMBEDDING,
    PAD,
    Encoded,
    Inputs,
    Kind,
    Network,
    TextBatch,
    Vocabulary,
    Weights,
    forward,
    initial_weights,
)
from psychlm.crowds.optimiser import LazyAdam
from psychlm.crowds.sampling import Member, draw_members
from psychlm.device import Device, float_type, free_bytes, torch_device
from psychlm.frames import FrameError, refuse

Loss = Literal["cross-entropy", "squared-error"]
VALUES_AT_ONCE = 2**24  # numbers in the widest layer of a forward pass (64 MB)


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """What one epoch trains on; None takes the argument of :func:`train`."""

    # (n,) for all members, or (active members, n); a member's own examples still hold
    examples: NDArray[np.bool_] | None = None
    loss: Loss | None = None


@dataclass(frozen=True, eq=False)
class CrowdState:
    """A crowd between two epochs, for an ``epoch_callback``."""

    # sorted numbers of the members that still train: the rows of plans and log-probabilities
    members: NDArray[np.int64]
    # returns the (n_active, n, classes) log-probabilities of the whole training set
    log_probabilities: Callable[[], NDArray[np.float32]]


EpochCallback = Callable[[int, CrowdState], EpochPlan | None]


@dataclass(frozen=True, eq=False)
class TrainedCrowd:
    """A crowd: members' weights at the best epoch (without held-out items, the last)."""

    network: Network
    weights: Weights  # NaN for members that diverged
    members: tuple[Member, ...]
    # epoch, member, loss (nats, or squared error), development_accuracy, n_examples
    history: pd.DataFrame
    best_epoch: NDArray[np.int64]  # (models,) from 1; 0 for a member that diverged in its first
    diverged: NDArray[np.bool_]  # (models,) whose loss was not finite; they answer nothing (NaN)
    vocabulary: Vocabulary | None = None  # of the training texts

    def log_probabilities(self, inputs: Inputs) -> NDArray[np.float32]:
        """Return the (models, n, classes) log-probabilities (nats), NaN for diverged members."""
        check_vocabulary(inputs, self.vocabulary)
        logits = predict_logits(self.network, self.weights, inputs)
        values = logits.log_softmax(2).cpu()
        values[torch.from_numpy(self.diverged)] = torch.nan
        return values.numpy()

    def responses(self, inputs: Inputs, answers: ArrayLike | pd.Series) -> pd.DataFrame:
        """Return graded responses (models x items): 1 where the most probable class is the answer.

        ``inputs`` have the vocabulary of the training texts, ``answers`` are their right classes;
        the index of a Series names the items.
        """
        gold = checked_answers(inputs, answers, self.network.classes)
        correct = self.log_probabilities(inputs).argmax(2) == gold
        return responses_frame(np.where(self.diverged[:, None], np.nan, correct), answers)


def responses_frame(graded: NDArray[Any], answers: ArrayLike | pd.Series) -> pd.DataFrame:
    """Return graded answers (models x items) with names; those of items are the index of
    answers."""
    names = [f"item{i}" for i in range(graded.shape[1])]
    columns = answers.index if isinstance(answers, pd.Series) else names
    persons = [f"model{i:04d}" for i in range(len(graded))]
    return pd.DataFrame(graded, persons, columns).rename_axis(index="person", columns="item")


def check_vocabulary(inputs: Inputs, vocabulary: Vocabulary | None) -> None:
    """Raise if texts were encoded with other words than those that a crowd was trained on."""
    if isinstance(inputs, Encoded) and vocabulary not in (None, inputs.vocabulary):
        advice = "encode them with encode_texts(..., vocabulary=training_texts.vocabulary)"
        raise FrameError(f"the texts have another vocabulary than the training texts; {advice}")


def checked_answers(inputs: Inputs, answers: ArrayLike, classes: int) -> NDArray[Any]:
    """Return the right classes of items as an array; FrameError if they do not fit the items."""
    gold = np.asarray(answers)
    if gold.shape != (len(inputs),):
        raise FrameError(f"{len(inputs)} items need as many answers, not {gold.shape}")
    wrong = np.flatnonzero(~((gold >= 0) & (gold < classes)))
    refuse("answers of items", wrong, f"are none of the {classes} classes, from 0 on")
    return gold


@torch.no_grad()
def predict_logits(network: Network, weights: Weights, inputs: Inputs) -> Tensor:
    """Return the (models, n, classes) logits of all members for n items, read in blocks.

    >>> network = Network("encoder", 2, shape=(4,))
    >>> weights = initial_weights(network, seeds=[0, 1, 2])
    >>> predict_logits(network, weights, torch.zeros(5, 4)).shape
    torch.Size([3, 5, 2])
    """
    n_models = len(weights["out.bias"])
    device = weights["out.bias"].device
    inputs = inputs.to(device)
    logits = torch.empty(n_models, len(inputs), network.classes, device=device)
    if isinstance(inputs, Encoded):
        # Texts of similar length share a block, which then holds little padding.
        lengths = torch.stack([lengths for _, lengths in inputs.segments])
        order = torch.argsort(lengths.sum(0))
        longest = sum(numbers.shape[1] for numbers, _ in inputs.segments)
        width = longest * (4 * network.hidden if "lstm" in network.kind else network.size)
        table = weights[EMBEDDING].flatten(0, 1)
        first = torch.arange(n_models, device=device)[:, None, None] * network.vocabulary
    else:
        order = torch.arange(len(inputs), device=device)
        width = network.hidden * inputs[0].numel()
    most = max(VALUES_AT_ONCE, free_bytes(device, 0) // 64)  # float32, and copies on the way
    for rows in order.split(max(most // (n_models * width), 1)):
        block = inputs[rows]
        if isinstance(block, Encoded):
            segments = tuple(
                (first + numbers[:, : max(int(n.max()), 1)], n.expand(n_models, -1))
                for numbers, n in block.segments
            )
            logits[:, rows] = forward(network, weights, TextBatch(table, segments))
        else:
            logits[:, rows] = forward(network, weights, block.expand(n_models, *block.shape))
    return logits


def train(
    network: Network | Kind,
    inputs: Inputs,
    targets: ArrayLike,
    *,
    members: Sequence[Member] | None = None,
    n_models: int = 1,
    seed: int = 0,
    development: tuple[Inputs, ArrayLike] | None = None,
    epochs: int = 20,
    batch_size: int = 32,
    learning_rate: float = 0.01,
    patience: int = 3,
    loss: Loss = "cross-entropy",
    epoch_callback: EpochCallback | None = None,
    device: Device = "auto",
    **sizes: Any,
) -> TrainedCrowd:
    """Train many small classifiers at once, each exactly as if it were alone.

    Parameters
    ----------
    network : Network or str
        A network, or its kind with its ``sizes`` (size, hidden, tanh_layers) as keywords.
    inputs : Encoded or Tensor
        n training items: :func:`encode_texts`, :func:`encode_images`.
    targets : (n,) int or (n, classes) float
        Classes from 0, or probabilities of the classes (soft labels).
    members : sequence of Member, optional
        By default ``n_models`` members drawn from ``seed`` that see all data, without label noise.
    development : (inputs, classes), optional
        Held-out items. A member stops after ``patience`` epochs without a better accuracy and keeps
        the weights of its best epoch.
    loss : {"cross-entropy", "squared-error"}
        In nats, or the squared difference of probabilities summed over classes; a batch's mean.
    epoch_callback : callable, optional
        ``epoch_callback(epoch, state) -> EpochPlan | None``, called before each epoch (from 1).

    Examples
    --------
    >>> from psychlm import crowds
    >>> texts = crowds.encode_texts(["good film", "bad film", "good", "bad"], min_count=1)
    >>> crowd = crowds.train("bag", texts, [1, 0, 1, 0], n_models=3, epochs=30)
    >>> crowd.responses(texts, [1, 0, 1, 0]).shape
    (3, 4)
    """
    device = torch_device(device, "crowds.train")
    labels = np.asarray(targets)
    if members is None:
        members = draw_members(n_models, seed, train_fraction=1.0, label_noise=0.0)
    members = tuple(members)
    numbers = {"epochs": epochs, "batch_size": batch_size, "patience": patience}
    for name, number in (numbers | {"the number of members": len(members)}).items():
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be 1 or more")
    network = network_for(network, inputs, labels, sizes)
    wanted = member_targets(labels, members, len(inputs), network.classes).to(device)
    wanted = wanted.expand(len(members), *wanted.shape[1:])  # a view: common targets stay one copy
    inputs = inputs.to(device)
    vocabulary = inputs.vocabulary if isinstance(inputs, Encoded) else None
    lengths = None
    if isinstance(inputs, Encoded) and "lstm" in network.kind:  # the longest sets the time
        lengths = torch.stack([n for _, n in inputs.segments]).amax(0).cpu().numpy()
    if development is not None:
        check_vocabulary(development[0], vocabulary)
        held_out = development[0].to(device)
        held_gold = torch.tensor(checked_answers(*development, network.classes), device=device)

    optimiser = LazyAdam(initial_weights(network, [m.seed for m in members], device), learning_rate)
    active = np.arange(len(members))  # members in the order of the stack
    best_accuracy = np.full(len(members), -np.inf)
    best_epoch, stale = np.zeros((2, len(members)), dtype=np.int64)
    diverged = np.zeros(len(members), dtype=bool)
    best = {name: torch.empty_like(value) for name, value in optimiser.weights.items()}
    on_device = partial(torch.as_tensor, device=device)

    def keep(rows: NDArray[np.intp]) -> None:
        """Keep the weights of some members of the stack, which later steps would change."""
        members_kept = on_device(active[rows])
        rows_kept = on_device(rows)
        for name, value in optimiser.weights.items():
            best[name][members_kept] = value[rows_kept]

    def log_probabilities() -> NDArray[np.float32]:
        """Return those of the training set, the members sorted by their numbers."""
        logits = predict_logits(network, optimiser.weights, inputs)
        return logits.log_softmax(2).cpu().numpy()[np.argsort(active)]

    history = []
    for epoch in range(1, epochs + 1):
        if not len(active):
            break
        # 1. Cut what this epoch trains on into batches; members with more batches come first.
        plan = EpochPlan()
        if epoch_callback is not None:
            plan = epoch_callback(epoch, CrowdState(np.sort(active), log_probabilities)) or plan
        order, schedule, n_steps = schedule_epoch(
            members, active, plan, epoch, batch_size, len(inputs), lengths
        )
        if (order != np.arange(len(order))).any():
            active = active[order]
            optimiser.select(on_device(order))

        # 2. Take the steps; those members that still have a batch are the first n.
        n_examples = (schedule >= 0).sum((1, 2))
        examples = on_device(schedule)
        rows = on_device(active)[:, None]
        losses = torch.zeros(len(active), dtype=float_type(device), device=device)
        for step in range(schedule.shape[1]):
            n = int((n_steps > step).sum())
            read = examples[:n, step]
            aims = wanted[rows[:n], read.clamp(min=0)]
            losses[:n] += train_step(network, optimiser, inputs, read, aims, plan.loss or loss)
        mean_loss = losses.cpu().numpy() / np.maximum(n_examples, 1)

        # 3. Keep the weights of members that are better than before.
        finite = np.isfinite(mean_loss)
        accuracy = np.full(len(active), np.nan)
        better = finite
        if development is not None:
            predictions = predict_logits(network, optimiser.weights, held_out).argmax(2)
            accuracy = (predictions == held_gold).cpu().double().mean(1).numpy()
            better = finite & (accuracy > best_accuracy[active])
            keep(np.flatnonzero(better))
        best_accuracy[active[better]] = accuracy[better]
        best_epoch[active[better]] = epoch
        row = {"epoch": epoch, "member": active, "loss": mean_loss, "n_examples": n_examples}
        history.append(pd.DataFrame(row | {"development_accuracy": accuracy}))

        # 4. Members that diverged, or got no better for some epochs, leave the stack.
        stale[active] = np.where(better, 0, stale[active] + 1)
        diverged[active] = ~finite
        stays = finite & (stale[active] < patience)
        if not stays.all():
            active = active[stays]
            optimiser.select(on_device(np.flatnonzero(stays)))
    if development is None:  # the last epoch of those that did not diverge
        if np.array_equal(active, np.arange(len(members))):
            best = optimiser.weights
        else:
            keep(np.arange(len(active)))
    if diverged.any():
        for value in best.values():
            value[on_device(diverged)] = torch.nan
    table = pd.concat(history).sort_values(["epoch", "member"], ignore_index=True)
    return TrainedCrowd(network, best, members, table, best_epoch, diverged, vocabulary)


def network_for(
    network: Network | Kind, inputs: Inputs, labels: NDArray[Any], sizes: dict[str, Any]
) -> Network:
    """Return a network as it is, or one of a kind and sizes for these inputs and labels."""
    if not isinstance(network, Network):
        classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        return Network.for_inputs(network, inputs, max(classes, 2), **sizes)
    if sizes:
        advice = "correct their names, or set sizes in the Network"
        raise TypeError(f"{sorted(sizes)} are no arguments beside a Network; {advice}")
    return network


def schedule_epoch(
    members: Sequence[Member],
    active: NDArray[np.int64],
    plan: EpochPlan,
    epoch: int,
    batch_size: int,
    n: int,
    lengths: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the new order of the stack, members with more batches first; in it the examples of the
    epoch, of ``n``, (n_active, steps, batch_size), -1 where there is none; and numbers of batches.
    """
    chosen = np.array(True) if plan.examples is None else np.asarray(plan.examples, bool)
    if chosen.shape not in ((), (n,), (len(active), n)):
        said = f"examples of the shape {chosen.shape} for {len(active)} members and {n} examples"
        raise ValueError(f"{said}; return (n,) or (members, n), see CrowdState.members")
    chosen = np.broadcast_to(chosen, (len(active), n))
    batches = []
    for i, row in zip(active, np.argsort(np.argsort(active)), strict=True):
        examples = members[i].examples(n)
        examples = examples[chosen[row, examples]]
        batches.append(members[i].batches(examples, epoch, batch_size, lengths))
    n_steps = np.array([len(rows) for rows in batches])
    order = np.argsort(-n_steps, kind="stable")
    schedule = np.full((len(active), n_steps.max(), batch_size), -1)
    for row, i in zip(schedule, order, strict=True):
        row[: len(batches[i])] = batches[i]
    return order, schedule, n_steps[order]


def member_targets(
    targets: NDArray[Any], members: Sequence[Member], n: int, classes: int
) -> Tensor:
    """Check targets; return classes (models, n) or probabilities (models, n, classes).

    The first axis is 1 where all members learn the same: without label noise.
    """
    noisy = any(member.label_noise for member in members)
    flaw = ""
    if targets.shape not in ((n,), (n, classes)):
        flaw = f"{n} inputs and {classes} classes need targets of the shape ({n},) or "
        flaw += f"({n}, {classes}), not {targets.shape}"
    elif targets.ndim == 2 and noisy:
        flaw = "label_noise needs classes as targets, not probabilities; set it to 0"
    elif targets.ndim == 2:
        if (targets < 0).any() or not np.allclose(targets.sum(1), 1, atol=1e-4):
            flaw = "soft targets are probabilities: not negative, and each row sums to 1"
    elif not np.issubdtype(targets.dtype, np.integer) or not np.isin(targets, range(classes)).all():
        flaw = f"targets are integers from 0 to {classes - 1}; these run from {targets.min()} to "
        flaw += f"{targets.max()}"
    if flaw:
        raise ValueError(flaw)
    if targets.ndim == 2:
        return torch.from_numpy(targets.astype(np.float32))[None]
    labels = targets.astype(np.int64)
    if not noisy:
        return torch.from_numpy(labels)[None]
    return torch.from_numpy(np.stack([m.noisy_labels(labels, classes) for m in members]))


def train_step(
    network: Network,
    optimiser: LazyAdam,
    inputs: Inputs,
    examples: Tensor,
    aims: Tensor,
    loss: Loss,
) -> Tensor:
    """Move the first members of the stack by one batch of ``examples``, -1 where it is not full,
    towards ``aims``, classes or their probabilities; return the (members,) summed losses."""
    if not aims.is_floating_point():
        aims = nn.functional.one_hot(aims, network.classes).float()
    n_models = len(examples)
    is_example = examples >= 0
    rows = examples.clamp(min=0)
    weights = {
        name: value[:n_models].detach().requires_grad_()
        for name, value in optimiser.weights.items()
        if name != EMBEDDING
    }
    # Gather the batch. Of the embeddings take the words that occur, each once, as a compact table.
    words = None
    if isinstance(inputs, Encoded):
        vocabulary = network.vocabulary
        device = examples.device
        first = torch.arange(n_models, device=device)[:, None, None] * vocabulary
        segments = []
        for numbers, lengths in inputs.segments:
            n_words = torch.where(is_example, lengths[rows], 0)
            longest = max(int(n_words.max()), 1)
            read = numbers[:, :longest].index_select(0, rows.flatten()).view(*rows.shape, longest)
            # Rows without an example become padding, so that they move no word.
            segments.append((torch.where(is_example[..., None], read, PAD) + first, n_words))
        read = torch.cat([places.flatten() for places, _ in segments])
        words, position = torch.unique(read, return_inverse=True)
        parts = position.split([places.numel() for places, _ in segments])
        compact = [
            (part.view_as(places), n_words)
            for part, (places, n_words) in zip(parts, segments, strict=True)
        ]
        table = optimiser.weights[EMBEDDING].flatten(0, 1).index_select(0, words).requires_grad_()
        batch: TextBatch | Tensor = TextBatch(table, tuple(compact))
    else:
        batch = inputs[rows]
    # Loss of each example, averaged over each member's batch; members do not share weights, so that
    # the gradient of the sum over members is each member's own.
    logits = forward(network, weights, batch)
    if loss == "cross-entropy":
        losses = -(aims * logits.log_softmax(2)).sum(2)
    elif loss == "squared-error":
        losses = (logits.softmax(2) - aims).square().sum(2)
    else:
        raise ValueError(f"loss={loss!r} should be one of {list(get_args(Loss))}")
    losses = torch.where(is_example, losses, 0.0)
    (losses / is_example.sum(1, keepdim=True)).sum().backward()
    gradients = {name: value.grad for name, value in weights.items() if value.grad is not None}
    if words is not None and table.grad is not None:
        gradients[EMBEDDING] = table.grad
    optimiser.step(gradients, words)
    return losses.detach().sum(1).to(float_type(losses.device))
