"""Word-level LSTM and causal Transformer language models as Hao et al. (2020, section 3.1) train them.

Both are those of PyTorch's word language model example: an embedding as wide as the hidden layers, two LSTM layers or
two Transformer blocks with two heads, a softmax decoder, tied to the embedding or not. The paper's sizes are 200, 425
(424 where two heads must share it), 650 and 1100. :mod:`psychlm.lm.recurrent_training` trains and tunes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
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
ROWS_AT_ONCE = 32

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
        counted = pd.Series([word for sentence in sentences for word in sentence], dtype=object).value_counts()
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
            raise ValueError(f"no architecture is named {self.kind!r}; there are 'lstm' and 'transformer'")
        step = math.lcm(2, self.heads)  # sines and cosines come in pairs
        if self.kind == "transformer" and self.size % step:
            raise ValueError(f"a Transformer of {self.heads} heads needs a multiple of {step} units, not {self.size}")


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
            block = nn.TransformerEncoderLayer(size, architecture.heads, size, dropout, batch_first=True)
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
        place = np.arange(len(tokens)) + np.cumsum(begins)  # where tokens stand once the sentence ends are put in
        read = np.zeros(len(tokens) + begins.sum(), dtype=np.int64)
        read[place] = number
        text_begins = np.flatnonzero(tokens["text"].ne(tokens["text"].shift()).to_numpy())
        texts = np.split(read, place[text_begins][1:] - 1)
        bits = np.concatenate([self._bits(text) for text in texts])
        scored = np.delete(np.arange(len(read)), place[text_begins] - 1)
        of_place = np.full(len(read), np.nan)
        of_place[scored] = bits
        return joined(words, tokens, of_place[place], number == 1)

    @torch.inference_mode()
    def _bits(self, text: np.ndarray) -> np.ndarray:
        """Return the (n - 1,) surprisals in bits of a text's tokens after its first, which opens it."""
        self.network.eval()
        device = self.network.embedding.weight.device
        numbers = torch.from_numpy(text).to(device)
        span = self.network.architecture.span
        nats = []
        if self.network.architecture.kind == "lstm":
            state: State | None = None
            for start in range(0, len(numbers) - 1, 512):
                part = numbers[start : start + 513]
                logits, state = self.network(part[None, :-1], state)
                nats.append(nn.functional.cross_entropy(logits[0], part[1:], reduction="none"))
        else:
            for inputs, targets, fresh in _windows(numbers, span):
                logits, _ = self.network(inputs)
                loss = nn.functional.cross_entropy(logits.mT, targets, reduction="none")
                nats.append(loss[fresh])
        return torch.cat(nats).cpu().numpy().astype(np.float64) / np.log(2)

    def save(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` and ``model.json`` (architecture and vocabulary) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.network, str(folder / "model.safetensors"))
        said = {"architecture": asdict(self.network.architecture), "vocabulary": self.vocabulary.words}
        (folder / "model.json").write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")


def _windows(numbers: Tensor, span: int) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of (inputs, targets, which targets are new): windows of ``span`` words that overlap by half.

    The first window's targets are all new; of each later one's, those of its second half.
    """
    n = len(numbers) - 1
    stride = span // 2
    starts = torch.arange(0, max(n - span, 0) + stride, stride)
    starts = starts[(starts == 0) | (starts + span - stride < n)]
    places = starts[:, None] + torch.arange(min(span, n))
    inside = places < n
    fresh = inside & ((places >= starts[:, None] + span - stride) | (starts[:, None] == 0))
    places = places.clamp(max=n - 1)
    for rows in range(0, len(starts), ROWS_AT_ONCE):
        part = slice(rows, rows + ROWS_AT_ONCE)
        at = places[part].to(numbers.device)
        yield numbers[at], numbers[at + 1], fresh[part].to(numbers.device)


def load(folder: str | Path, device: str = "cpu") -> WordModel:
    """Read back what :meth:`WordModel.save` wrote."""
    folder = Path(folder)
    missing = [name for name in ("model.json", "model.safetensors") if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no word-level language model ({missing} are missing); train one first")
    said = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    vocabulary = Vocabulary(tuple(said["vocabulary"]))
    network = WordNetwork(Architecture(**said["architecture"]), len(vocabulary.words))
    load_model(network, str(folder / "model.safetensors"))
    return WordModel(network.to(device).eval(), vocabulary)
