r"""Models that choose among answers, and can go on learning: a reader of items, a network that scores choices.

A network gives each choice :math:`c_i` of a question a score :math:`\alpha_i`, and answers with probability
:math:`p_i \propto e^{\alpha_i}`; the loss is :math:`-\log p` of the right choice (Richardson & Sabharwal 2020, section
4.1). What it reads is the reader's business: word numbers, given word vectors, or states of a frozen encoder, each text
kept once however many items share it. Items may differ in how many choices they have: places without a choice get no
probability, where the paper (section 4.2) fills questions up to five choices with empty ones for a model to reject.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psychlm.frames import check_items

ITEMS_AT_ONCE = 64  # when answering
CLIP = 1.0  # largest norm of the gradient
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Inputs:
    """Some items as a network reads them: n items, N choices at most, T tokens, d numbers a token or text."""

    question: (
        Tensor | None
    )  # (n, T) word numbers, (n, T, d) vectors or (n, d) texts; None where choices hold it
    choices: Tensor  # (n, N, T), (n, N, T, d) or (n, N, d)
    there: Tensor  # (n, N) bool: whether the item has that choice
    question_mask: Tensor | None = None  # (n, T) bool: whether there is a token
    choices_mask: Tensor | None = None  # (n, N, T)


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """Return the element-wise maximum over the tokens of each row, (rows, d); zero for a row without tokens."""
    largest = states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of each row, (rows, d); zero for a row without tokens."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


class Texts:
    """Texts encoded once each, and put side by side on demand.

    Parameters
    ----------
    encode : callable
        Takes a list of texts (or of pairs), and gives an array for each: (T,) numbers or (T, d) vectors.
    """

    def __init__(self, encode: Callable[[list[Any]], Sequence[NDArray]]) -> None:
        self.encode = encode
        self._row: dict[Hashable, int] = {}
        self._values: list[NDArray] = []

    def rows(self, texts: Sequence[Any]) -> NDArray[np.int64]:
        """Return the numbers of texts; those not met before are encoded."""
        fresh = [text for text in dict.fromkeys(texts) if text not in self._row]
        if fresh:
            self._row.update(
                zip(fresh, range(len(self._row), len(self._row) + len(fresh)), strict=True)
            )
            self._values.extend(self.encode(fresh))
        return np.array([self._row[text] for text in texts], dtype=np.int64)

    def padded(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return texts side by side, (n, T, ...), zero behind their ends, and whether there is a token, (n, T)."""
        some = [self._values[row] for row in rows]
        lengths = np.array([len(values) for values in some])
        mask = np.arange(max(1, lengths.max(initial=0))) < lengths[:, None]
        table = np.zeros((*mask.shape, *some[0].shape[1:]), dtype=some[0].dtype)
        table[mask] = np.concatenate(some)
        return torch.from_numpy(table), torch.from_numpy(mask)

    def stacked(self, rows: NDArray[np.int64]) -> Tensor:
        """Return texts of one vector each as (n, d)."""
        return torch.from_numpy(np.stack([self._values[row] for row in rows]))


class Batches(Protocol):
    """Items that a reader has read."""

    def __len__(self) -> int:
        """Return how many items there are."""

    def take(self, rows: NDArray[np.int64]) -> Inputs:
        """Return some of them as tensors."""


class Reader(Protocol):
    """Turns items into what a network reads."""

    def read(self, items: pd.DataFrame) -> Batches:
        """Read items; texts that were met before cost nothing."""


@dataclass(frozen=True)
class Recipe:
    """How a choice model learns."""

    learning_rate: float = 1e-3
    epochs: int = 10
    batch_size: int = 32  # items
    patience: int | None = (
        3  # epochs without a better development accuracy before training ends; None: never
    )


@dataclass(frozen=True, eq=False)
class ChoiceModel:
    """A network that scores choices, the reader it needs, and how it came to be."""

    network: nn.Module
    reader: Reader
    name: str
    history: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["epoch", "loss", "accuracy"])
    )

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """A SHA-256 that differs where the weights or the way of reading do."""
        digest = hashlib.sha256(self.name.encode())
        for name, weight in self.network.state_dict().items():
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def trained(
        self,
        items: pd.DataFrame,
        recipe: Recipe,
        *,
        seed: int,
        development: pd.DataFrame | None = None,
    ) -> ChoiceModel:
        """Return a copy that has gone on learning; this one stays as it is.

        Parameters
        ----------
        items, development : DataFrame
            Items frames. With ``development``, the weights of the best epoch there are returned.
        seed : int
            Order of the items and dropout.

        Raises
        ------
        FrameError
            If the items break their contract.
        FloatingPointError
            If the loss is no longer finite.
        """
        network = copy.deepcopy(self.network)
        batches, answer = self.reader.read(check_items(items)), _answers(items, self.device)
        judge = (
            None
            if development is None
            else _Judge(self.reader.read(check_items(development)), development)
        )
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            history = _train(network, batches, answer, recipe, np.random.default_rng(seed), judge)
        return replace(self, network=network, history=history)

    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return the log-probability of each choice (nats), items x choices; NaN where an item has fewer choices."""
        items = check_items(items)
        scores = _scores(self.network, self.reader.read(items)).log_softmax(dim=1)
        frame = pd.DataFrame(scores.cpu().numpy(), index=pd.Index(items["item_id"], name="item"))
        frame.columns.name = "choice"
        return frame.where(np.isfinite(frame))

    def accuracy(self, items: pd.DataFrame) -> float:
        """Return the share of items answered right."""
        return _Judge(self.reader.read(check_items(items)), items).accuracy(self.network)


def _answers(items: pd.DataFrame, device: torch.device) -> Tensor:
    return torch.from_numpy(items["answer"].to_numpy(dtype=np.int64, copy=True)).to(device)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Items by which a network is judged, read once."""

    batches: Batches
    items: pd.DataFrame

    def accuracy(self, network: nn.Module) -> float:
        said = _scores(network, self.batches).argmax(dim=1).cpu().numpy()
        return float((said == self.items["answer"].to_numpy()).mean())


@torch.inference_mode()
def _scores(network: nn.Module, batches: Batches) -> Tensor:
    """Return the scores of all choices, (n, N), minus infinity where there is none."""
    network.eval()
    device = next(network.parameters()).device
    parts = [
        network(_on(batches.take(np.arange(at, min(at + ITEMS_AT_ONCE, len(batches)))), device))
        for at in range(0, len(batches), ITEMS_AT_ONCE)
    ]
    widest = max(part.shape[1] for part in parts)
    filled = [
        nn.functional.pad(part, (0, widest - part.shape[1]), value=-torch.inf) for part in parts
    ]
    return torch.cat(filled).float()


def _on(inputs: Inputs, device: torch.device) -> Inputs:
    """Return inputs on a device."""
    if device.type == "cpu":
        return inputs
    moved = {name: value.to(device) for name, value in vars(inputs).items() if value is not None}
    return replace(inputs, **moved)


def _train(
    network: nn.Module,
    batches: Batches,
    answer: Tensor,
    recipe: Recipe,
    rng: np.random.Generator,
    judge: _Judge | None,
) -> pd.DataFrame:
    """Train a network in place and return its history; the best epoch's weights stay where there is a judge."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=WEIGHT_DECAY)
    rows, best, kept, stale = [], -1.0, None, 0
    for epoch in range(1, recipe.epochs + 1):
        loss = _epoch(network, batches, answer, recipe.batch_size, rng, optimiser, weights)
        accuracy = judge.accuracy(network) if judge else np.nan
        rows.append((epoch, loss, accuracy))
        if judge is None:
            continue
        stale += 1
        if accuracy > best:
            best, kept, stale = accuracy, copy.deepcopy(network.state_dict()), 0
        if recipe.patience is not None and stale >= recipe.patience:
            break
    if kept is not None:
        network.load_state_dict(kept)
    return pd.DataFrame(rows, columns=["epoch", "loss", "accuracy"])


def _epoch(
    network: nn.Module,
    batches: Batches,
    answer: Tensor,
    size: int,
    rng: np.random.Generator,
    optimiser: Any,
    weights: list[nn.Parameter],
) -> float:
    """Train one epoch and return its mean loss in nats."""
    network.train()
    order, total = rng.permutation(len(batches)), 0.0
    for at in range(0, len(order), size):
        rows = order[at : at + size]
        scores = network(_on(batches.take(rows), answer.device))
        loss = nn.functional.cross_entropy(scores, answer[torch.from_numpy(rows).to(answer.device)])
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is no longer finite; take a smaller learning rate")
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimiser.step()
        total += float(loss.detach()) * len(rows)
    return total / len(order)
