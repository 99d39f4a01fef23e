"""Small classifiers whose weights carry a leading model axis, so that many are one.

    bag        mean of word embeddings -> tanh layers (none unless asked) -> softmax
    lstm       the state of an LSTM after the last word -> tanh layers (none unless asked) -> softmax
    nli-bag    both texts as in bag, side by side -> three tanh layers -> softmax
    nli-lstm   one LSTM for the premise, one for the hypothesis, side by side -> three tanh layers -> softmax
    mlp        image or features -> two ReLU layers -> softmax
    cnn        two convolutions with ReLU and max-pooling -> a ReLU layer -> softmax

``nli-lstm`` and ``cnn`` are the classifiers of Lalor (2020, sections 5.2.4 and 5.2.1) but for the CNN's dropout.
What member i starts from depends on its own seed and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from psychlm.crowds.encode import Encoded, Inputs
from psychlm.crowds.recurrence import last_states

Kind = Literal["bag", "lstm", "nli-bag", "nli-lstm", "mlp", "cnn"]
Weights = dict[str, Tensor]  # name -> (models, ...)
PAIR_TANH_LAYERS = 3  # Lalor 2020, section 5.2.4
EMBEDDING = "embedding"


@dataclass(frozen=True)
class Network:
    """What every member of a crowd is made of."""

    kind: Kind
    classes: int
    vocabulary: int = 0  # rows of the embedding; 0 for images
    shape: tuple[int, ...] = ()  # of an image: (features,) or (channels, height, width)
    size: int = 32  # units of a word's embedding
    hidden: int = 32  # units of an LSTM, of a tanh or ReLU layer; half as many channels in a CNN's first layer
    tanh_layers: int | None = (
        None  # between encoding and softmax; by default 3 for pairs, else none
    )

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"no network is named {self.kind!r}; there are {list(get_args(Kind))}")
        if self.classes < 2:
            raise ValueError(f"a classifier needs two classes or more, not {self.classes}")
        if self.kind == "cnn" and (len(self.shape) != 3 or min(self.shape[1:]) < 4):
            raise ValueError(
                f"a CNN reads images of (channels, height, width) with sides of 4 or more, not {self.shape}; "
                "take kind='mlp' for features"
            )

    @property
    def reads_text(self) -> bool:
        """Whether inputs are texts (``Encoded``) rather than images."""
        return self.kind not in ("mlp", "cnn")

    @property
    def segments(self) -> int:
        """Texts an item has: 2 for pairs, 1 for texts, 0 for images."""
        return (2 if self.kind.startswith("nli-") else 1) if self.reads_text else 0

    @classmethod
    def reading(cls, kind: Kind, inputs: Inputs, classes: int, **sizes: Any) -> Network:
        """Return the network of this kind that fits the inputs.

        Raises
        ------
        ValueError
            If texts meet a network for images or the other way round, or pairs meet one for single texts.
        """
        if isinstance(inputs, Encoded):
            network = cls(kind, classes, vocabulary=len(inputs.vocabulary), **sizes)
            given = len(inputs.segments)
        else:
            network, given = cls(kind, classes, shape=tuple(inputs.shape[1:]), **sizes), 0
        if network.segments != given:
            raise ValueError(
                f"a {kind!r} network reads {_SAID[network.segments]}, and these are {_SAID[given]}; "
                "see encode_texts, encode_pairs and encode_images"
            )
        return network

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of one member, by name, in the order in which they are drawn."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.reads_text:
            shapes[EMBEDDING] = (self.vocabulary, self.size)
            if "lstm" in self.kind:
                for i in range(self.segments):
                    shapes |= {
                        f"{i}.input": (self.size, 4 * self.hidden),
                        f"{i}.state": (self.hidden, 4 * self.hidden),
                    }
                    shapes |= {f"{i}.bias": (4 * self.hidden,)}
            width = self.segments * (self.hidden if "lstm" in self.kind else self.size)
            n_layers = (
                self.tanh_layers
                if self.tanh_layers is not None
                else PAIR_TANH_LAYERS * (self.segments == 2)
            )
        else:
            width, n_layers = math.prod(self.shape), 2
            if self.kind == "cnn":
                first, n_layers = max(self.hidden // 2, 1), 1
                shapes |= {"conv0.weight": (first, self.shape[0], 3, 3), "conv0.bias": (first,)}
                shapes |= {"conv1.weight": (self.hidden, first, 3, 3), "conv1.bias": (self.hidden,)}
                width = self.hidden * (self.shape[1] // 4) * (self.shape[2] // 4)
        for i in range(n_layers):
            shapes |= {f"layer{i}.weight": (width, self.hidden), f"layer{i}.bias": (self.hidden,)}
            width = self.hidden
        return shapes | {"out.weight": (width, self.classes), "out.bias": (self.classes,)}

    @property
    def n_weights(self) -> int:
        """Weights of one member."""
        return sum(math.prod(shape) for shape in self.shapes().values())


_SAID = {0: "images", 1: "single texts", 2: "pairs of texts"}


def initial(network: Network, seeds: Sequence[int], device: str | torch.device = "cpu") -> Weights:
    """Return the (models, ...) weights that members start from, each drawn from its own seed.

    Embeddings are uniform within ±0.1, all else within ± 1/sqrt(inputs) as PyTorch's layers are (an LSTM's within
    ± 1/sqrt(units)); the embedding of padding is zero.
    """
    weights: Weights = {}
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    bound = 0.1
    for name, shape in network.shapes().items():
        part = name.split(".")[-1]
        if part in ("input", "state"):
            bound = 1 / math.sqrt(network.hidden)
        elif part == "weight":
            bound = 1 / math.sqrt(math.prod(shape[1:]) if name.startswith("conv") else shape[0])
        drawn = torch.empty(len(generators), *shape)
        for row, generator in zip(drawn, generators, strict=True):
            row.uniform_(-bound, bound, generator=generator)
        weights[name] = drawn
    if network.reads_text:
        weights[EMBEDDING][:, 0] = 0
    return {name: value.to(device) for name, value in weights.items()}


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Texts that a crowd reads in one step, as places in a table of embeddings."""

    table: Tensor  # (rows, size): the embeddings of all words of the batch, of all members
    segments: tuple[
        tuple[Tensor, Tensor], ...
    ]  # per segment: (models, batch, length) rows of table; lengths


Batch = TextBatch | Tensor


def forward(
    network: Network, weights: Weights, tokens: Inputs | tuple[tuple[Tensor, Tensor], ...]
) -> Tensor:
    """Return the (models, batch, classes) logits of a batch.

    Parameters
    ----------
    weights : dict
        Name -> (models, ...), as :func:`initial` draws them.
    tokens : Encoded, tuple of (numbers, lengths), or Tensor
        Texts (batch, length) that all members read, or (models, batch, length) of each member's own; images
        (batch, ...) or (models, batch, ...).
    """
    if isinstance(tokens, Encoded):
        tokens = tokens.segments
    n_models = len(weights["out.bias"])
    if isinstance(tokens, Tensor):
        own = tokens.ndim == len(network.shape) + 2
        return classify(
            network, weights, tokens if own else tokens[None].expand(n_models, *tokens.shape)
        )
    table = weights[EMBEDDING].flatten(0, 1)
    first = torch.arange(n_models, device=table.device)[:, None, None] * network.vocabulary
    segments = tuple(
        (first + numbers, lengths if lengths.ndim == 2 else lengths[None].expand(n_models, -1))
        for numbers, lengths in tokens
    )
    return classify(network, weights, TextBatch(table, segments))


def classify(network: Network, weights: Weights, batch: Batch) -> Tensor:
    """Return the (models, batch, classes) logits; of ``weights`` the embedding is not read but the batch's table."""
    if isinstance(batch, Tensor):
        x = _convolved(weights, batch) if network.kind == "cnn" else batch.flatten(2)
    elif "lstm" in network.kind:
        parts = [
            last_states(
                batch.table,
                places,
                lengths,
                *(weights[f"{i}.{part}"] for part in ("input", "state", "bias")),
            )
            for i, (places, lengths) in enumerate(batch.segments)
        ]
        x = torch.cat(parts, dim=2)
    else:
        x = torch.cat([_mean_embedding(batch.table, *segment) for segment in batch.segments], dim=2)
    bend = torch.tanh if network.reads_text else torch.relu
    layer = 0
    while f"layer{layer}.weight" in weights:
        x = bend(
            torch.baddbmm(
                weights[f"layer{layer}.bias"][:, None], x, weights[f"layer{layer}.weight"]
            )
        )
        layer += 1
    return torch.baddbmm(weights["out.bias"][:, None], x, weights["out.weight"])


def _mean_embedding(table: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
    """Return the (models, batch, size) mean embedding of each text; that of an empty text is zero."""
    n_models, n_texts, longest = places.shape
    real = torch.arange(longest, device=places.device) < lengths[..., None]
    ends = lengths.flatten().cumsum(0)
    bags = nn.functional.embedding_bag(places[real], table, ends - lengths.flatten(), mode="mean")
    return bags.view(n_models, n_texts, -1)


def _convolved(weights: Weights, images: Tensor) -> Tensor:
    """Return (models, batch, features) of images (models, batch, channels, height, width).

    Members are the groups of one grouped convolution.
    """
    n_models, n_images = images.shape[:2]
    x = images.transpose(0, 1).flatten(1, 2)
    for i in range(2):
        kernel = weights[f"conv{i}.weight"].flatten(0, 1)
        x = nn.functional.conv2d(
            x, kernel, weights[f"conv{i}.bias"].flatten(), padding=1, groups=n_models
        )
        x = nn.functional.max_pool2d(torch.relu(x), 2)
    return x.view(n_images, n_models, -1).transpose(0, 1)
