"""Word-level LSTM and causal Transformer language models as Hao et al. (2020, section 3.1) train them.

Both are those of PyTorch's word language model example: an embedding as wide as the hidden layers, two LSTM layers or
two Transformer blocks with two heads, a softmax decoder, tied to the embedding or not. The paper's sizes are 200, 425
(424 where two heads must share it), 650 and 1100. :mod:`psychlm.lm.recurrent_training` trains and tunes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from psychlm.lm.word_tokens import UNKNOWN, Tokenize, joined, plain, tokens_frame

END = "<eos>"
LSTM_SIZES = (200, 425, 650, 1100)  # Hao et al. 2020, section 3.1
TRANSFORMER_SIZES = (200, 424, 650, 1100)
ROWS_AT_ONCE = 32  # texts, or windows of one
WORDS_AT_ONCE = 4096  # all rows together: bounds the memory that logits take

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Vocabulary:
    """The words a model knows; the first two are the end of a sentence and what is unknown."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {word: i for i, word in enumerate(self.words)})

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], *, min_count: int = 1) -> Vocabulary:
        """Collect the words of a training text that stand in it at least ``min_count`` times, frequent ones first."""
        counted = pd.Series(
            [word for sentence in sentences for word in sentence], dtype=object
        ).value_counts()
        kept = counted[counted >= min_count].index
        return cls((END, UNKNOWN, *(word for word in kept if word not in (END, UNKNOWN))))

    def numbers(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the (n,) numbers of tokens, those of unknown ones 1."""
        index: dict[str, int] = self.__dict__["_index"]
        return np.array([index.get(token, 1) for token in tokens], dtype=np.int64)

    def stream(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """Return a text as one (n,) row of numbers, each sentence closed by its end."""
        parts = [self.numbers([*sentence, END]) for sentence in sentences]
        if not parts:
            raise ValueError("the text has no sentence; give sequences of tokens")
        return torch.from_numpy(np.concatenate(parts))


@dataclass(frozen=True)
class Architecture:
    """What a model is made of."""

    kind: Literal["lstm", "transformer"]
    size: int  # units of the embedding and of each hidden layer
    tied: bool = False  # the decoder's weights are the embedding's
    layers: int = 2
    heads: int = 2  # of the Transformer
    span: int = 35  # tokens that training carries gradients, or attention, across

    def __post_init__(self) -> None:
        if self.kind not in ("lstm", "transformer"):
            raise ValueError(
                f"no architecture is named {self.kind!r}; there are 'lstm' and 'transformer'"
            )
        step = math.lcm(2, self.heads)  # sines and cosines come in pairs
        if self.kind == "transformer" and self.size % step:
            raise ValueError(
                f"a Transformer of {self.heads} heads needs a multiple of {step} units, not {self.size}"
            )


class WordNetwork(nn.Module):
    """Numbers of words in, logits of the next word out.

    Parameters
    ----------
    architecture : Architecture
    n_words : int
        V, words in the vocabulary.
    dropout : float
        On the embedding, between layers, and before the decoder.
    """

    positions: Tensor

    def __init__(self, architecture: Architecture, n_words: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        size, layers = architecture.size, architecture.layers
        self.embedding = nn.Embedding(n_words, size)
        self.drop = nn.Dropout(dropout)
        self.body: nn.Module
        if architecture.kind == "lstm":
            self.body = nn.LSTM(size, size, layers, dropout=dropout, batch_first=True)
        else:
            block = nn.TransformerEncoderLayer(
                size, architecture.heads, size, dropout, batch_first=True
            )
            self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
            self.register_buffer("positions", _sinusoids(architecture.span, size), persistent=False)
        self.decoder = nn.Linear(size, n_words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if architecture.tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, numbers: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits (rows, n, V) of the words after ``numbers`` (rows, n), and an LSTM's state behind them."""
        embedded = self.embedding(numbers)
        if self.architecture.kind == "lstm":
            hidden, state = self.body(self.drop(embedded), state)
        else:
            n = numbers.shape[1]
            embedded = embedded * math.sqrt(self.architecture.size) + self.positions[:n]
            mask = torch.ones(n, n, dtype=torch.bool, device=numbers.device).triu(1)
            hidden = self.body(self.drop(embedded), mask=mask)
        return self.decoder(self.drop(hidden)), state


def _sinusoids(length: int, size: int) -> Tensor:
    """Return the (length, size) positions of Vaswani et al. (2017, section 3.5)."""
    place = torch.arange(length, dtype=torch.float32)[:, None]
    angle = place * torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


@dataclass(frozen=True, eq=False)
class WordModel:
    """A word-level language model: its network and its vocabulary."""

    network: WordNetwork
    vocabulary: Vocabulary

    def surprisal(self, words: pd.DataFrame, tokenize: Tokenize = plain) -> pd.DataFrame:
        """Return words with the surprisal of each in bits, each text read from its beginning.

        Parameters
        ----------
        words : DataFrame
            ``text_id``, ``word_id``, ``word``; where there is a ``sentence_id``, a sentence's end is read (and not
            scored) before the next sentence.
        tokenize : callable
            How a printed word becomes the tokens that the model was trained on; their surprisals are added.

        Returns
        -------
        DataFrame
            ``words`` with ``surprisal_bits``, ``n_tokens`` and ``n_unknown``.
        """
        tokens = tokens_frame(words, tokenize)
        number = self.vocabulary.numbers(tokens["token"].tolist())
        begins = tokens["sentence"].ne(tokens["sentence"].shift()).to_numpy()
        place = np.arange(len(tokens)) + np.cumsum(
            begins
        )  # where tokens stand once the sentence ends are put in
        read = np.zeros(len(tokens) + begins.sum(), dtype=np.int64)
        read[place] = number
        text_begins = place[tokens["text"].ne(tokens["text"].shift()).to_numpy()] - 1
        return joined(words, tokens, self._bits(read, text_begins)[place], number == 1)

    @torch.inference_mode()
    def _bits(self, read: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Return the (n,) surprisals in bits of numbers of words, NaN for those that begin a text at ``begins``."""
        self.network.eval()
        device = self.network.embedding.weight.device
        numbers, bits = torch.from_numpy(read).to(device), np.full(len(read), np.nan)
        state: State | None = None
        ends, made = np.append(begins[1:], len(read)) - 1, self.network.architecture
        passes = (
            _side_by_side(begins, ends)
            if made.kind == "lstm"
            else _windows(begins, ends, made.span)
        )
        for at, new, goes_on in passes:
            logits, state = self.network(numbers[torch.from_numpy(at)], state if goes_on else None)
            targets = numbers[torch.from_numpy(at + 1)]
            nats = nn.functional.cross_entropy(logits.mT, targets, reduction="none").cpu().numpy()
            bits[at[new] + 1] = nats[new] / math.log(2)
        return bits

    def save(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` and ``model.json`` (architecture and vocabulary) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.network, str(folder / "model.safetensors"))
        said = {
            "architecture": asdict(self.network.architecture),
            "vocabulary": self.vocabulary.words,
        }
        (folder / "model.json").write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")


Pass = tuple[
    np.ndarray, np.ndarray, bool
]  # places to read (rows, n), which are new, whether the state goes on


def _side_by_side(begins: np.ndarray, ends: np.ndarray) -> Iterator[Pass]:
    """Yield the passes in which an LSTM reads texts of like lengths side by side.

    Short rows are filled with their last place, which no word of theirs can see.
    """
    order = np.argsort(ends - begins, kind="stable")
    for rows in np.split(order, range(ROWS_AT_ONCE, len(order), ROWS_AT_ONCE)):
        first, last = begins[rows, None], ends[rows, None]
        longest, step = int((last - first).max()), WORDS_AT_ONCE // len(rows)
        for start in range(0, longest, step):
            places = first + np.arange(start, min(start + step, longest))
            yield np.minimum(places, last - 1), places < last, start > 0


def _windows(begins: np.ndarray, ends: np.ndarray, span: int) -> Iterator[Pass]:
    """Yield the passes in which a Transformer reads windows of ``span`` words that overlap by half.

    All words of a text's first window are new, and of later ones those that no window before them had.
    """
    stride = span // 2
    starts = [
        np.arange(b, max(e - span + stride, b + 1), stride)
        for b, e in zip(begins, ends, strict=True)
    ]
    sizes = [len(s) for s in starts]
    first, last = np.concatenate(starts)[:, None], np.repeat(ends, sizes)[:, None]
    opening = first == np.repeat(begins, sizes)[:, None]
    steps = np.arange(min(span, int((ends - begins).max())))
    for i in range(0, len(first), ROWS_AT_ONCE):
        rows = slice(i, i + ROWS_AT_ONCE)
        places = first[rows] + steps
        new = (places < last[rows]) & ((steps >= span - stride) | opening[rows])
        yield np.minimum(places, last[rows] - 1), new, False


def load(folder: str | Path, device: str = "cpu") -> WordModel:
    """Read back what :meth:`WordModel.save` wrote."""
    folder = Path(folder)
    missing = [
        name for name in ("model.json", "model.safetensors") if not (folder / name).is_file()
    ]
    if missing:
        raise FileNotFoundError(
            f"{folder} holds no word-level language model ({missing} are missing); train one first"
        )
    said = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    vocabulary = Vocabulary(tuple(said["vocabulary"]))
    network = WordNetwork(Architecture(**said["architecture"]), len(vocabulary.words))
    load_model(network, str(folder / "model.safetensors"))
    return WordModel(network.to(device).eval(), vocabulary)
