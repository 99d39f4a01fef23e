r"""The partial-input and LSTM models of Richardson & Sabharwal (2020, section 4.1), after Mihaylov et al. (2018).

A text s of words is read by a bidirectional LSTM, and an element-wise maximum over its states is what is kept of it,
:math:`r_s = \max_t h_t \in R^{2h}`. A choice is then scored

- ``"choice-only"``: without question or other choices, :math:`\alpha_i = w^\top r_{c_i}`;
- ``"choice-to-choice"``: against the other choices, :math:`\alpha_i` the mean over :math:`j \ne i` of
  :math:`\mathrm{ATT}(r_{c_i}, r_{c_j})`;
- ``"question-to-choice"``: against the question, :math:`\alpha_i = \mathrm{ATT}(r_q, r_{c_i})`;
- ``"esim"``: after soft alignment of the question's and the choice's words (Chen et al. 2017),

with :math:`\mathrm{ATT}(a, b) = w^\top [a; b; |a - b|; a \circ b]`, learned. Words are vectors that are learned, or
given ones that stay as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psychlm.lm._load import ModelError
from psychlm.lm.choice_model import ChoiceModel, Inputs, Texts, masked_max, masked_mean

Kind = Literal["choice-only", "choice-to-choice", "question-to-choice", "esim"]

UNKNOWN = 1  # 0 is no word
LONGEST_TOKENS = 64  # of a question or a choice; what is longer is cut
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text.lower())[:LONGEST_TOKENS]


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words a model knows, with their vectors if these are given."""

    numbers: dict[str, int]  # by word, from 2
    vectors: NDArray[np.float32] | None = None  # (2 + n_words, d); None: to be learned
    tokenizer: Any = None  # of an encoder whose pieces the words are

    @property
    def n_words(self) -> int:
        """Rows that an embedding of these words needs."""
        return 2 + len(self.numbers)

    def encode(self, texts: Sequence[str]) -> list[NDArray]:
        """Return each text as (T,) numbers, or as (T, d) vectors where they are given."""
        if self.tokenizer is None:
            coded = [
                np.array([self.numbers.get(t, UNKNOWN) for t in _tokens(text)], dtype=np.int64)
                for text in texts
            ]
        else:
            ids = self.tokenizer(
                list(texts), add_special_tokens=False, truncation=True, max_length=LONGEST_TOKENS
            )
            coded = [np.array(row, dtype=np.int64) for row in ids["input_ids"]]
        return coded if self.vectors is None else [self.vectors[row] for row in coded]

    @classmethod
    def learned(cls, items: pd.DataFrame, *, min_count: int = 2) -> Lexicon:
        """Collect the words of items for training; those met fewer than ``min_count`` times are unknown ones."""
        counts: Counter[str] = Counter()
        for prompt, choices in zip(items["prompt"], items["choices"], strict=True):
            counts.update(token for text in (prompt, *choices) for token in _tokens(text))
        kept = sorted(word for word, n in counts.items() if n >= min_count)
        return cls({word: i for i, word in enumerate(kept, start=2)})

    @classmethod
    def of_encoder(cls, encoder: str | Path = "bundled") -> Lexicon:
        """Take the vectors that a pre-trained encoder begins with, one a piece of a word, without its context."""
        from psychlm.lm.choice_encoder import open_encoder

        network, tokenizer = open_encoder(encoder)
        return cls({}, network.get_input_embeddings().weight.detach().cpu().numpy(), tokenizer)

    @classmethod
    def of_file(cls, path: str | Path) -> Lexicon:
        """Read vectors from text, a word and its numbers a line: GloVe's format.

        Raises
        ------
        ModelError
            If the file is missing, or its lines do not hold a word and equally many numbers.
        """
        try:
            table = pd.read_csv(
                path, sep=" ", header=None, quoting=3, keep_default_na=False, na_filter=False
            )
            vectors = table.iloc[:, 1:].to_numpy(dtype=np.float32)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{path} holds no word vectors ({error}); a line is a word and its numbers"
            ) from error
        if vectors.shape[1] < 2:
            raise ModelError(
                f"{path} holds no word vectors: a line is a word and its numbers, with blanks between them"
            )
        numbers = {str(word): i for i, word in enumerate(table[0], start=2)}
        return cls(numbers, np.concatenate([np.zeros((2, vectors.shape[1]), np.float32), vectors]))


@dataclass(eq=False)
class WordReader:
    """Reads questions and choices word by word."""

    lexicon: Lexicon
    texts: Texts = field(init=False)

    def __post_init__(self) -> None:
        self.texts = Texts(self.lexicon.encode)

    def read(self, items: pd.DataFrame) -> _WordBatches:
        """Read items; texts that were met before cost nothing."""
        counts = items["choices"].map(len).to_numpy()
        place = np.full((len(items), counts.max()), -1)
        place[np.arange(counts.max()) < counts[:, None]] = self.texts.rows(
            [c for row in items["choices"] for c in row]
        )
        return _WordBatches(self.texts, self.texts.rows(items["prompt"].tolist()), place)


@dataclass(frozen=True, eq=False)
class _WordBatches:
    texts: Texts
    question: NDArray[np.int64]  # (n,) rows of texts
    choices: NDArray[np.int64]  # (n, N), -1 where there is none

    def __len__(self) -> int:
        return len(self.question)

    def take(self, rows: NDArray[np.int64]) -> Inputs:
        question, question_mask = self.texts.padded(self.question[rows])
        place = self.choices[rows]
        choices, mask = self.texts.padded(
            np.where(place >= 0, place, self.question[rows, None]).ravel()
        )
        there = torch.from_numpy(place >= 0)
        shape = (*place.shape, mask.shape[1])
        return Inputs(
            question,
            choices.reshape(*shape, *choices.shape[2:]),
            there,
            question_mask,
            mask.reshape(shape) & there[..., None],
        )


class BiLSTM(nn.Module):
    """Reads rows of vectors in both directions; what lies behind a row's end has no part in its states."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.onward, self.backward = (nn.LSTM(size, hidden, batch_first=True) for _ in range(2))

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return states (rows, T, 2h) of vectors (rows, T, d), zero where there is no token."""
        length = mask.sum(dim=1, keepdim=True)
        place = torch.arange(mask.shape[1], device=mask.device)
        mirror = torch.where(
            place < length, length - 1 - place, place
        )  # the row reversed, its padding left behind
        back = self.backward(torch.take_along_dim(vectors, mirror[..., None], dim=1))[0]
        back = torch.take_along_dim(back, mirror[..., None], dim=1)
        return torch.cat([self.onward(vectors)[0], back], dim=2) * mask[..., None]


def soft_alignment(a: Tensor, b: Tensor, a_mask: Tensor, b_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each state of a what of b it attends to, and the reverse (Chen et al. 2017, equations 11 to 13).

    Parameters
    ----------
    a, b : Tensor, shapes (rows, A, d) and (rows, B, d)
    a_mask, b_mask : Tensor of bool, shapes (rows, A) and (rows, B)

    Returns
    -------
    Tensors, shapes (rows, A, d) and (rows, B, d)
        Zero beside a row without tokens.
    """
    energy = a @ b.mT
    lowest = torch.finfo(energy.dtype).min
    over_b = energy.masked_fill(~b_mask[:, None, :], lowest).softmax(dim=2) * b_mask[:, None, :]
    over_a = energy.masked_fill(~a_mask[:, :, None], lowest).softmax(dim=1) * a_mask[:, :, None]
    return over_b @ b, over_a.mT @ a


class Attention(nn.Module):
    """ATT: a learned score of two texts (Mihaylov et al. 2018)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.Linear(4 * size, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return scores (...) of texts (..., d)."""
        return self.weights(torch.cat([a, b, (a - b).abs(), a * b], dim=-1)).squeeze(-1)


class ChoiceNetwork(nn.Module):
    """Words in, a score for each choice out.

    Parameters
    ----------
    kind : {"choice-only", "choice-to-choice", "question-to-choice", "esim"}
    lexicon : Lexicon
        Its words, to be learned or given.
    size : int
        d of learned vectors; given ones are projected to it.
    hidden : int
        h, states of the LSTM in each direction.
    """

    def __init__(
        self,
        kind: Kind,
        lexicon: Lexicon,
        *,
        size: int = 64,
        hidden: int = 64,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ModelError(
                f"no choice network is named {kind!r}; there are {list(get_args(Kind))}"
            )
        self.kind, wide = kind, 2 * hidden
        self.embedding: nn.Module = (
            nn.Embedding(lexicon.n_words, size, padding_idx=0)
            if lexicon.vectors is None
            else nn.Linear(lexicon.vectors.shape[1], size)
        )
        self.drop, self.reading = nn.Dropout(dropout), BiLSTM(size, hidden)
        if kind == "choice-only":
            self.score: nn.Module = nn.Linear(wide, 1)
        elif kind == "esim":
            self.projection = nn.Sequential(nn.Linear(4 * wide, hidden), nn.ReLU())
            self.composition = BiLSTM(hidden, hidden)
            self.score = nn.Sequential(
                nn.Linear(4 * wide, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 1)
            )
        else:
            self.score = Attention(wide)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return scores (n, N), minus infinity where there is no choice."""
        assert (
            inputs.choices_mask is not None
            and inputs.question is not None
            and inputs.question_mask is not None
        )
        n, most = inputs.there.shape
        mask = inputs.choices_mask.flatten(0, 1)
        states = self.reading(self.drop(self.embedding(inputs.choices.flatten(0, 1))), mask)
        if self.kind == "choice-only":
            scores = self.score(masked_max(states, mask)).reshape(n, most)
        elif self.kind == "choice-to-choice":
            scores = self._against_each_other(
                masked_max(states, mask).reshape(n, most, -1), inputs.there
            )
        else:
            question = self.reading(
                self.drop(self.embedding(inputs.question)), inputs.question_mask
            )
            if self.kind == "esim":
                scores = self._aligned(question, states, inputs.question_mask, mask, most).reshape(
                    n, most
                )
            else:
                asked = masked_max(question, inputs.question_mask)[:, None].expand(-1, most, -1)
                scores = self.score(asked, masked_max(states, mask).reshape(n, most, -1))
        return scores.masked_fill(~inputs.there, -torch.inf)

    def _against_each_other(self, kept: Tensor, there: Tensor) -> Tensor:
        n, most, size = kept.shape
        pairs = self.score(
            kept[:, :, None].expand(n, most, most, size), kept[:, None].expand(n, most, most, size)
        )
        others = there[:, None, :] & ~torch.eye(most, dtype=torch.bool, device=there.device)
        return (pairs * others).sum(dim=2) / others.sum(dim=2).clamp(min=1)

    def _aligned(
        self, question: Tensor, choice: Tensor, q_mask: Tensor, c_mask: Tensor, most: int
    ) -> Tensor:
        """Score by ESIM: alignment, difference and product, a second LSTM, mean and maximum (sections 3.2, 3.3)."""
        question, q_mask = (
            question.repeat_interleave(most, dim=0),
            q_mask.repeat_interleave(most, dim=0),
        )
        sides = ((question, q_mask), (choice, c_mask))
        parts = []
        for (own, mask), aligned in zip(
            sides, soft_alignment(question, choice, q_mask, c_mask), strict=True
        ):
            compared = self.projection(
                torch.cat([own, aligned, own - aligned, own * aligned], dim=2)
            )
            composed = self.composition(self.drop(compared), mask)
            parts += [masked_mean(composed, mask), masked_max(composed, mask)]
        return self.score(torch.cat(parts, dim=1))


def untrained(
    kind: Kind,
    lexicon: Lexicon,
    *,
    seed: int,
    size: int = 64,
    hidden: int = 64,
    device: str | torch.device = "cpu",
) -> ChoiceModel:
    """Return a choice network whose weights are drawn with ``seed``; its method ``trained`` makes it learn."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        network = ChoiceNetwork(kind, lexicon, size=size, hidden=hidden)
    return ChoiceModel(network.to(device), WordReader(lexicon), kind)
