"""Inputs and small classifiers of a crowd; weights have a leading model axis, so that many are one.

==========  ==================================================================================
bag         mean of word embeddings -> tanh layers (none by default) -> softmax
lstm        state of an LSTM after the last word -> tanh layers (none by default) -> softmax
nli-bag     both texts of a pair as in bag, side by side -> three tanh layers -> softmax
nli-lstm    an LSTM for the premise and one for the hypothesis -> three tanh layers -> softmax
encoder     features of a frozen encoder -> tanh layers (none by default) -> softmax
mlp         image or features -> two ReLU layers -> softmax
cnn         two convolutions with ReLU and max-pooling -> a ReLU layer -> softmax
==========  ==================================================================================

``nli-lstm`` and ``cnn`` are the classifiers of Lalor (2020, sections 5.2.4 and 5.2.1) without the
dropout of the latter.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import regex
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from psychlm.device import Device
from psychlm.frames import FrameError

Kind = Literal["bag", "lstm", "nli-bag", "nli-lstm", "encoder", "mlp", "cnn"]
Weights = dict[str, Tensor]  # name -> (models, ...)
EMBEDDING = "embedding"
PAD = 0
UNKNOWN = 1
PAIR_TANH_LAYERS = 3  # Lalor 2020, section 5.2.4
SEGMENTS = {0: "images or features", 1: "single texts", 2: "pairs of texts"}


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows; the second stands for all that it does not know."""

    words: tuple[str, ...]

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def numbers(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the (n,) numbers of tokens, those of unknown ones 1."""
        return np.array([self._number.get(token, UNKNOWN) for token in tokens], dtype=np.int64)


# Inputs


def split_words(text: str) -> list[str]:
    """Return words, with the marks on their letters, and punctuation in lower case.

    >>> split_words("It's bad.")
    ["it's", 'bad', '.']
    """
    composed = unicodedata.normalize("NFC", text.lower())
    return regex.findall(r"\w+(?:[-'’]\w+)*|[^\w\s]", composed)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Texts as word numbers; ``encoded[rows]`` selects texts, as indexing selects images."""

    # one for texts, two for pairs: (n, length) int32 word numbers, and (n,) int64 lengths
    segments: tuple[tuple[Tensor, Tensor], ...]
    vocabulary: Vocabulary
    n_unknown: int  # tokens that the vocabulary lacks
    n_truncated: int  # texts cut at max_tokens

    def __len__(self) -> int:
        return len(self.segments[0][1])

    def __getitem__(self, rows: Any) -> Encoded:
        chosen = tuple((numbers[rows], lengths[rows]) for numbers, lengths in self.segments)
        return replace(self, segments=chosen)

    def to(self, device: torch.device) -> Encoded:
        """Return the texts on a device."""
        moved = tuple((n.to(device), lengths.to(device)) for n, lengths in self.segments)
        return replace(self, segments=moved)


Inputs: TypeAlias = Encoded | Tensor


def encode_texts(
    *columns: Sequence[str],
    vocabulary: Vocabulary | None = None,
    max_tokens: int = 64,
    min_count: int = 2,
) -> Encoded:
    """Return texts, or pairs of texts, as word numbers.

    Parameters
    ----------
    *columns : sequences of str, each of length n
        One column of texts, or two: premises and hypotheses.
    vocabulary : Vocabulary, optional
        Of the training texts; by default the words that occur ``min_count`` times in ``columns``.
    max_tokens : int
        Longer texts are cut at their end and counted in ``n_truncated``.

    Examples
    --------
    >>> encode_texts(["a b a", "b"], min_count=1).segments[0][0].tolist()
    [[2, 3, 2], [3, 0, 0]]
    """
    sizes = [len(column) for column in columns]
    if not sizes or min(sizes) == 0 or len(set(sizes)) > 1 or len(sizes) > 2:
        raise FrameError(f"one or two columns of equal length are needed, and these have {sizes}")
    wrong = [i for texts in columns for i, text in enumerate(texts) if not isinstance(text, str)]
    if wrong:
        raise FrameError(f"texts {wrong[:5]} (counted from 0) are not strings")
    tokens = [[split_words(text) for text in column] for column in columns]
    if vocabulary is None:
        counts = Counter(word for column in tokens for text in column for word in text)
        kept = [word for word, n in counts.items() if n >= min_count]
        kept = sorted(kept, key=lambda word: (-counts[word], word))
        vocabulary = Vocabulary(("<pad>", "<unk>", *kept))
    segments = []
    n_unknown = 0
    n_truncated = 0
    for column in tokens:
        n_truncated += sum(len(text) > max_tokens for text in column)
        tensors = [torch.tensor(vocabulary.numbers(text[:max_tokens])).int() for text in column]
        lengths = torch.tensor([len(text) for text in tensors])
        numbers = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD)
        if numbers.shape[1] == 0:  # empty texts only
            numbers = numbers.new_zeros(len(column), 1)
        n_unknown += int((numbers == UNKNOWN).sum())
        segments.append((numbers, lengths))
    return Encoded(tuple(segments), vocabulary, n_unknown, n_truncated)


def encode_images(images: ArrayLike) -> Tensor:
    """Return images as float32 with a channel axis, (n, [channels,] height, width).

    Features, (n, k), stay as they are.

    >>> encode_images(np.zeros((5, 8, 8))).shape
    torch.Size([5, 1, 8, 8])
    """
    values = torch.as_tensor(np.asarray(images, dtype=np.float32))
    if values.ndim not in (2, 3, 4):
        raise FrameError(f"images have two to four axes, image first, not {tuple(values.shape)}")
    if not torch.isfinite(values).all():
        raise FrameError("some images have values that are not finite; correct or drop them")
    return values[:, None] if values.ndim == 3 else values


# Networks


@dataclass(frozen=True)
class Network:
    """Architecture of every member of a crowd."""

    kind: Kind
    classes: int
    vocabulary: int = 0  # rows of the embedding; 0 for images
    shape: tuple[int, ...] = ()  # of an image: (features,) or (channels, height, width)
    size: int = 32  # units of a word's embedding
    hidden: int = 32  # units of an LSTM and of each layer, channels of a CNN's second layer
    tanh_layers: int | None = None  # before the softmax; None: 3 for pairs, else none

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown network {self.kind!r}; choose one of {list(get_args(Kind))}")
        if self.tanh_layers is not None and self.kind in ("mlp", "cnn"):
            raise ValueError(f"a {self.kind!r} network has no tanh layers; leave tanh_layers out")
        if self.classes < 2:
            raise ValueError(f"a classifier needs two or more classes, not {self.classes}")
        if min(self.size, self.hidden) < 1:
            raise ValueError(f"size={self.size} and hidden={self.hidden} units; give 1 or more")
        if self.kind == "cnn" and (len(self.shape) != 3 or min(self.shape[1:]) < 4):
            raise ValueError(f"a CNN reads (channels, height, width), 4 or more, not {self.shape}")

    @classmethod
    def for_inputs(cls, kind: Kind, inputs: Inputs, classes: int, **sizes: Any) -> Network:
        """Return the network of this kind that fits the inputs; ``sizes`` are its other fields."""
        if isinstance(inputs, Encoded):
            n_segments = len(inputs.segments)
            network = cls(kind, classes, vocabulary=len(inputs.vocabulary.words), **sizes)
        else:
            n_segments = 0
            network = cls(kind, classes, shape=tuple(inputs.shape[1:]), **sizes)
        if network.n_segments != n_segments:
            said = f"a {kind!r} network reads {SEGMENTS[network.n_segments]}, and the inputs are "
            raise ValueError(f"{said}{SEGMENTS[n_segments]}; see encode_texts and encode_images")
        return network

    @property
    def n_segments(self) -> int:
        """Number of texts in an item: 2 for pairs, 1 for texts, 0 for images and features."""
        return {"bag": 1, "lstm": 1, "nli-bag": 2, "nli-lstm": 2}.get(self.kind, 0)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight of one member, in the order in which they are drawn."""
        shapes: dict[str, tuple[int, ...]] = {}
        n_layers = {"mlp": 2, "cnn": 1}.get(self.kind, self.tanh_layers)
        if n_layers is None:
            n_layers = PAIR_TANH_LAYERS if self.n_segments == 2 else 0
        width = math.prod(self.shape)
        if self.n_segments:
            shapes[EMBEDDING] = (self.vocabulary, self.size)
            width = self.n_segments * (self.hidden if "lstm" in self.kind else self.size)
        if "lstm" in self.kind:
            for i in range(self.n_segments):
                shapes[f"{i}.input"] = (self.size, 4 * self.hidden)
                shapes[f"{i}.state"] = (self.hidden, 4 * self.hidden)
                shapes[f"{i}.bias"] = (4 * self.hidden,)
        if self.kind == "cnn":
            first = max(self.hidden // 2, 1)
            shapes |= {"conv0.weight": (first, self.shape[0], 3, 3), "conv0.bias": (first,)}
            shapes |= {"conv1.weight": (self.hidden, first, 3, 3), "conv1.bias": (self.hidden,)}
            width = self.hidden * (self.shape[1] // 4) * (self.shape[2] // 4)
        for i in range(n_layers):
            shapes |= {f"layer{i}.weight": (width, self.hidden), f"layer{i}.bias": (self.hidden,)}
            width = self.hidden
        return shapes | {"out.weight": (width, self.classes), "out.bias": (self.classes,)}


def initial_weights(network: Network, seeds: Sequence[int], device: Device = "cpu") -> Weights:
    """Draw the (models, ...) initial weights of members, each from its own seed.

    Embeddings are uniform within ±0.1 and that of padding is zero; all other weights are uniform
    within ±1 / sqrt(inputs), as in PyTorch's layers (an LSTM's within ±1 / sqrt(units)).

    >>> weights = initial_weights(Network("encoder", 2, shape=(4,)), seeds=[0, 1, 2])
    >>> weights["out.weight"].shape
    torch.Size([3, 4, 2])
    """
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    weights: Weights = {}
    bound = 0.1
    for name, shape in network.shapes().items():
        # A bias follows its weight and has the same bound.
        if name.endswith((".input", ".state")):
            bound = 1 / math.sqrt(network.hidden)
        elif name.endswith(".weight"):
            inputs = math.prod(shape[1:]) if name.startswith("conv") else shape[0]
            bound = 1 / math.sqrt(inputs)
        weights[name] = torch.empty(len(generators), *shape)
        for row, generator in zip(weights[name], generators, strict=True):
            row.uniform_(-bound, bound, generator=generator)
    if EMBEDDING in weights:
        weights[EMBEDDING][:, PAD] = 0
    return {name: value.to(device) for name, value in weights.items()}


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Texts that members read in one step, as places in a table of embeddings."""

    table: Tensor  # (rows, size) embeddings of all members' words
    # (models, batch, length) rows of the table, and (models, batch) lengths; one for each text
    segments: tuple[tuple[Tensor, Tensor], ...]


def forward(network: Network, weights: Weights, batch: TextBatch | Tensor) -> Tensor:
    """Return the (models, batch, classes) logits of a batch of texts or of (models, batch, ...)
    images; embeddings are read from the batch's table.
    """
    # Encode: words or pixels -> (models, batch, features).
    if isinstance(batch, Tensor):
        x = batch.flatten(2)
        if network.kind == "cnn":
            # The members are the groups of one grouped convolution.
            n_models, n_images = batch.shape[:2]
            x = batch.transpose(0, 1).flatten(1, 2)
            for i in range(2):
                kernel = weights[f"conv{i}.weight"].flatten(0, 1)
                bias = weights[f"conv{i}.bias"].flatten()
                x = nn.functional.conv2d(x, kernel, bias, padding=1, groups=n_models)
                x = nn.functional.max_pool2d(torch.relu(x), 2)
            x = x.view(n_images, n_models, -1).transpose(0, 1)
    else:
        encoded = []
        for i, (places, lengths) in enumerate(batch.segments):
            if "lstm" in network.kind:
                parts = [weights[f"{i}.{part}"] for part in ("input", "state", "bias")]
                encoded.append(last_states(batch.table, places, lengths, *parts))
            else:
                encoded.append(mean_embedding(batch.table, places, lengths))
        x = torch.cat(encoded, dim=2)
    # Classify: layers with tanh (texts) or ReLU (images), then a linear layer.
    activation = torch.relu if network.kind in ("mlp", "cnn") else torch.tanh
    for name in weights:
        if name.startswith("layer") and name.endswith(".weight"):
            bias = weights[name.replace("weight", "bias")]
            x = activation(torch.baddbmm(bias[:, None], x, weights[name]))
    return torch.baddbmm(weights["out.bias"][:, None], x, weights["out.weight"])


def mean_embedding(table: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
    """Return the (models, batch, size) mean embedding of each text, zero for an empty text."""
    n_models, n_texts, longest = places.shape
    is_word = torch.arange(longest, device=places.device) < lengths[..., None]
    starts = lengths.flatten().cumsum(0) - lengths.flatten()
    bags = nn.functional.embedding_bag(places[is_word], table, starts, mode="mean")
    return bags.view(n_models, n_texts, -1)


def last_states(
    table: Tensor, places: Tensor, lengths: Tensor, to_gates: Tensor, between: Tensor, bias: Tensor
) -> Tensor:
    r"""Return the (models, batch, hidden) LSTM state after each text's last word, zero for no word.

    The weights are (models, size, 4 hidden), (models, hidden, 4 hidden) and (models, 4 hidden).
    With W these stacked, x_t = (word t, h_{t-1}, 1) and s the logistic function, the gates and
    states are, in PyTorch's order,

    .. math::
        (i, f, g, o) = W x_t, \quad c_t = s(f) c_{t-1} + s(i) \tanh(g),
        \quad h_t = s(o) \tanh(c_t).
    """
    n_models, n_texts, _ = places.shape
    hidden = between.shape[1]
    n_words = max(int(lengths.max()), 1)
    places = places[:, :, :n_words].permute(2, 0, 1)
    # Texts are the last axis, so that a gate's values lie side by side.
    words = table.index_select(0, places.flatten()).view(n_words, n_models, n_texts, -1).mT
    weight = torch.cat([to_gates, between, bias[:, None]], dim=1).mT.contiguous()
    one = words.new_ones(n_models, 1, n_texts)
    state = words.new_zeros(n_models, hidden, n_texts)
    cell = torch.zeros_like(state)
    states = [state]
    for word in words:
        gates = torch.bmm(weight, torch.cat([word, state, one], dim=1))
        i, f, g, o = gates.chunk(4, dim=1)
        cell = torch.addcmul(f.sigmoid() * cell, i.sigmoid(), g.tanh())
        state = o.sigmoid() * cell.tanh()
        states.append(state)
    # A text's state is read where it ends: words behind the end change nothing.
    end = lengths[None, :, None].expand(1, -1, hidden, -1)
    return torch.stack(states).gather(0, end)[0].mT
