r"""Small networks that score choices, and the loop that trains them.

A network gives each choice :math:`c_i` of a question a score :math:`\alpha_i`, and answers with
probability :math:`p_i = e^{\alpha_i} / \sum_j e^{\alpha_j}`; the loss is :math:`-\log p` of the
answer (Richardson & Sabharwal 2020, section 4.1). The models of that section (Mihaylov et al. 2018)
read a text s by a bidirectional LSTM, :math:`r_s = \max_t h_t`, and with
:math:`\mathrm{ATT}(a, b) = w^\top [a; b; |a - b|; a \circ b]` score a choice by
:math:`w^\top r_{c_i}` ("choice-only"), the mean of :math:`\mathrm{ATT}(r_{c_i}, r_{c_j})` over the
other choices ("choice-to-choice"), :math:`\mathrm{ATT}(r_q, r_{c_i})` ("question-to-choice"), or
after soft alignment of the question's and the choice's words ("esim"; Chen et al. 2017)."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psychlm.data import digest
from psychlm.device import Device, seeded, torch_device
from psychlm.frames import check_items
from psychlm.lm.choices import grade
from psychlm.lm.encoders import encoder_states, masked_mean, open_encoder

Kind = Literal["choice-only", "choice-to-choice", "question-to-choice", "esim"]

ITEMS_AT_ONCE = 64  # when scoring
CLIP = 1.0  # largest norm of the gradient
WEIGHT_DECAY = 0.01
DROPOUT = 0.2  # of the LSTM models
LONGEST_TOKENS = 64  # of a question or a choice; the rest is cut
UNKNOWN = 1  # number of every word that a lexicon does not have; 0 is padding
TEMPERATURE = 20.0  # scale of the cosine in the loss with which MiniLM's vectors were trained


@dataclass(frozen=True)
class Inputs:
    """A batch as a network reads it: n items, N choices, T tokens (word numbers or vectors)."""

    question: Tensor  # (n, T) or (n, T, d)
    question_mask: Tensor  # (n, T) bool: False for padding
    choices: Tensor  # (n, N, T) or (n, N, T, d)
    choices_mask: Tensor  # (n, N, T) bool
    present: Tensor  # (n, N) bool: whether the item has that choice

    def to(self, device: torch.device) -> Inputs:
        """Return the batch on a device."""
        return Inputs(*(tensor.to(device) for tensor in vars(self).values()))


class TextStore:
    """Texts, each encoded once (as (T,) word numbers or (T, d) vectors), and batches of items."""

    def __init__(self, encode: Callable[[list[str]], Iterable[NDArray]]) -> None:
        self.encode = encode
        self.row: dict[Hashable, int] = {}
        self.values: list[NDArray] = []

    def rows(self, items: pd.DataFrame) -> tuple[NDArray, NDArray]:
        """Return the texts' numbers: questions (n,), and choices (n, N), -1 where there is none."""
        counts = items["choices"].map(len).to_numpy()
        choices = [choice for row in items["choices"] for choice in row]
        texts = [*items["prompt"], *choices]
        fresh = [text for text in dict.fromkeys(texts) if text not in self.row]
        if fresh:
            self.row |= {text: len(self.row) + i for i, text in enumerate(fresh)}
            self.values.extend(self.encode(fresh))
        numbers = np.array([self.row[text] for text in texts], dtype=np.int64)
        table = np.full((len(items), counts.max()), -1)
        table[np.arange(counts.max()) < counts[:, None]] = numbers[len(items) :]
        return numbers[: len(items)], table

    def padded(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return texts (n, T, ...), zero behind their ends, and where there is a token, (n, T)."""
        some = [self.values[row] for row in rows]
        lengths = np.array([len(values) for values in some])
        mask = np.arange(max(1, lengths.max(initial=0))) < lengths[:, None]
        table = np.zeros((*mask.shape, *some[0].shape[1:]), dtype=some[0].dtype)
        table[mask] = np.concatenate(some)
        return torch.from_numpy(table), torch.from_numpy(mask)

    def batch(self, questions: NDArray[np.int64], choices: NDArray[np.int64]) -> Inputs:
        """Return the tensors of some items, given their texts' numbers."""
        question, question_mask = self.padded(questions)
        # An absent choice holds the question's text, so that all rows have tokens, and is masked.
        filled = np.where(choices >= 0, choices, questions[:, None])
        tokens, mask = self.padded(filled.ravel())
        present = torch.from_numpy(choices >= 0)
        shape = (*choices.shape, mask.shape[1])
        choice_mask = mask.reshape(shape) & present[..., None]
        tokens = tokens.reshape(*shape, *tokens.shape[2:])
        return Inputs(question, question_mask, tokens, choice_mask, present)


@dataclass(frozen=True, eq=False)
class ChoiceClassifier:
    """A network that scores choices, and the store of texts that it reads."""

    network: nn.Module
    texts: TextStore
    name: str
    history: pd.DataFrame | None = None  # epoch, loss, accuracy on development items

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the name and the weights."""
        weights = [
            name.encode() + weight.detach().cpu().contiguous().numpy().tobytes()
            for name, weight in self.network.state_dict().items()
        ]
        return digest([self.name, *weights])

    def train(
        self,
        items: pd.DataFrame,
        *,
        seed: int,
        learning_rate: float = 1e-3,
        epochs: int = 10,
        batch_size: int = 32,
        patience: int | None = 3,
        development: pd.DataFrame | None = None,
    ) -> ChoiceClassifier:
        """Return a copy trained further with AdamW; this one is unchanged.

        With ``development`` items the weights of the epoch with the best accuracy there are
        returned, and training ends after ``patience`` epochs without a better one (None: never)."""
        items = check_items(items)
        questions, choices = self.texts.rows(items)
        answer = torch.tensor(items["answer"].tolist(), device=self.device)
        network = copy.deepcopy(self.network)
        rng = np.random.default_rng(seed)
        learner = replace(self, network=network)
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=WEIGHT_DECAY)
        rows = []
        best = -1.0
        best_weights = None
        stale = 0
        with seeded(seed, self.device):
            for epoch in range(1, epochs + 1):
                # One pass through the items in random order.
                network.train()
                order = rng.permutation(len(items))
                total = 0.0
                for first in range(0, len(order), batch_size):
                    some = order[first : first + batch_size]
                    batch = self.texts.batch(questions[some], choices[some]).to(self.device)
                    target = answer[torch.from_numpy(some).to(self.device)]
                    loss = nn.functional.cross_entropy(network(batch), target)
                    if not torch.isfinite(loss):
                        raise FloatingPointError("the loss is not finite; lower the rate")
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(weights, CLIP)
                    optimizer.step()
                    total += float(loss.detach()) * len(some)
                # Keep the best epoch, and stop when there was none for a while.
                accuracy = np.nan if development is None else learner.accuracy(development)
                rows.append((epoch, total / len(order), accuracy))
                stale += development is not None
                if accuracy > best:
                    best = accuracy
                    best_weights = copy.deepcopy(network.state_dict())
                    stale = 0
                if patience is not None and stale >= patience:
                    break
        if best_weights is not None:
            network.load_state_dict(best_weights)
        return replace(learner, history=pd.DataFrame(rows, columns=["epoch", "loss", "accuracy"]))

    @torch.inference_mode()
    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return the log-probability of each choice (nats), NaN where there is no choice."""
        items = check_items(items)
        questions, choices = self.texts.rows(items)
        self.network.eval()
        scores = np.full(choices.shape, -np.inf)
        for first in range(0, len(items), ITEMS_AT_ONCE):
            some = slice(first, first + ITEMS_AT_ONCE)
            batch = self.texts.batch(questions[some], choices[some]).to(self.device)
            scores[some] = self.network(batch).float().log_softmax(dim=1).cpu().numpy()
        frame = pd.DataFrame(scores, index=pd.Index(items["item_id"], name="item"))
        return frame.where(np.isfinite(frame)).rename_axis(columns="choice")

    def accuracy(self, items: pd.DataFrame) -> float:
        """Return the share of items answered right (ties as in :mod:`psychlm.lm.choices`)."""
        return float(grade(items, self.logprobs(items)).mean())


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over the tokens of each row, (rows, d); zero for a row without tokens."""
    largest = states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words of a model, numbered from 2 (0 is padding, 1 every other word), and their vectors.

    Vectors are learned unless given; a ``tokenizer`` is that of an encoder whose tokens are the
    words."""

    numbers: dict[str, int]
    vectors: NDArray[np.float32] | None = None
    tokenizer: Any = None

    @staticmethod
    def words_of(text: str) -> list[str]:
        """Return the lower-case words and punctuation marks of a text, at most 64."""
        return re.findall(r"\w+(?:'\w+)?|[^\w\s]", text.lower())[:LONGEST_TOKENS]

    def encode(self, texts: Sequence[str]) -> Iterator[NDArray]:
        """Yield each text as (T,) word numbers, or as (T, d) vectors where these are given."""
        if self.tokenizer is None:
            ids = [[self.numbers.get(w, UNKNOWN) for w in self.words_of(text)] for text in texts]
        else:
            options = {"add_special_tokens": False, "truncation": True}
            ids = self.tokenizer(list(texts), max_length=LONGEST_TOKENS, **options)["input_ids"]
        for row in ids:  # one text at a time: the vectors of all would take gigabytes
            numbers = np.array(row, dtype=np.int64)
            yield numbers if self.vectors is None else self.vectors[numbers]

    @classmethod
    def learned(cls, items: pd.DataFrame) -> Lexicon:
        """Collect the words of training items; those met once are unknown."""
        counts: Counter[str] = Counter()
        for prompt, choices in zip(items["prompt"], items["choices"], strict=True):
            counts.update(word for text in (prompt, *choices) for word in cls.words_of(text))
        kept = sorted(word for word, n in counts.items() if n > 1)
        return cls({word: i for i, word in enumerate(kept, start=2)})

    @classmethod
    def of_encoder(cls, encoder: str | Path = "bundled") -> Lexicon:
        """Take the input embeddings of a pre-trained encoder, a vector per token."""
        network, tokenizer = open_encoder(encoder)
        return cls({}, network.get_input_embeddings().weight.detach().cpu().numpy(), tokenizer)


class BiLSTM(nn.Module):
    """A bidirectional LSTM whose states do not depend on padding."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.onward, self.backward = (nn.LSTM(size, hidden, batch_first=True) for _ in range(2))

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return states (rows, T, 2h) of vectors (rows, T, d), zero where there is no token."""
        # Reverse each row within its own length, so that the padding stays behind it. Whole vectors
        # are copied by their place in (rows T, d), which is far faster than gathering numbers.
        n_rows, longest = mask.shape
        length = mask.sum(dim=1, keepdim=True)
        position = torch.arange(longest, device=mask.device)
        mirror = torch.where(position < length, length - 1 - position, position)
        place = (mirror + longest * torch.arange(n_rows, device=mask.device)[:, None]).flatten()

        def mirrored(values: Tensor) -> Tensor:
            return values.flatten(0, 1).index_select(0, place).view_as(values)

        back = mirrored(self.backward(mirrored(vectors))[0])
        return torch.cat([self.onward(vectors)[0], back], dim=2) * mask[..., None]


def soft_alignment(a: Tensor, b: Tensor, a_mask: Tensor, b_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each state of a (rows, A, d) attends to in b (rows, B, d), and the reverse. Zero
    beside a row without tokens (Chen et al. 2017, equations 11 to 13)."""
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


class PartialInputNetwork(nn.Module):
    """One of the LSTM models of this module; given vectors are projected to ``size``."""

    def __init__(self, kind: Kind, lexicon: Lexicon, size: int, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        wide = 2 * hidden
        self.embedding: nn.Module = (
            nn.Embedding(2 + len(lexicon.numbers), size, padding_idx=0)
            if lexicon.vectors is None
            else nn.Linear(lexicon.vectors.shape[1], size)
        )
        self.drop, self.reading = nn.Dropout(DROPOUT), BiLSTM(size, hidden)
        if kind == "choice-only":
            self.score: nn.Module = nn.Linear(wide, 1)
        elif kind == "esim":
            self.projection = nn.Sequential(nn.Linear(4 * wide, hidden), nn.ReLU())
            self.composition = BiLSTM(hidden, hidden)
            self.score = nn.Sequential(
                nn.Linear(4 * wide, hidden), nn.Tanh(), nn.Dropout(DROPOUT), nn.Linear(hidden, 1)
            )
        else:
            self.score = Attention(wide)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return scores (n, N), minus infinity where there is no choice."""
        n, most = inputs.present.shape
        c_mask = inputs.choices_mask.flatten(0, 1)
        q_mask = inputs.question_mask
        states = self.reading(self.drop(self.embedding(inputs.choices.flatten(0, 1))), c_mask)
        r_c = masked_max(states, c_mask).reshape(n, most, -1)
        if self.kind == "choice-only":
            scores = self.score(r_c).squeeze(-1)
        elif self.kind == "choice-to-choice":
            # ATT of all pairs of choices, and its mean over the others of the same item.
            shape = (n, most, most, r_c.shape[-1])
            pairs = self.score(r_c[:, :, None].expand(shape), r_c[:, None].expand(shape))
            itself = torch.eye(most, dtype=torch.bool, device=pairs.device)
            others = inputs.present[:, None, :] & ~itself
            scores = (pairs * others).sum(dim=2) / others.sum(dim=2).clamp(min=1)
        else:
            question = self.reading(self.drop(self.embedding(inputs.question)), q_mask)
            if self.kind == "question-to-choice":
                r_q = masked_max(question, q_mask)[:, None].expand(-1, most, -1)
                scores = self.score(r_q, r_c)
            else:
                # ESIM: alignment, difference and product, a second LSTM, mean and maximum (sections
                # 3.2, 3.3).
                question = question.repeat_interleave(most, dim=0)
                q_mask = q_mask.repeat_interleave(most, dim=0)
                aligned = soft_alignment(question, states, q_mask, c_mask)
                parts = []
                for a, b, mask in zip((question, states), aligned, (q_mask, c_mask), strict=True):
                    compared = torch.cat([a, b, a - b, a * b], dim=2)
                    composed = self.composition(self.drop(self.projection(compared)), mask)
                    parts += [masked_mean(composed, mask), masked_max(composed, mask)]
                scores = self.score(torch.cat(parts, dim=1)).reshape(n, most)
        return scores.masked_fill(~inputs.present, -torch.inf)


def partial_input_model(
    kind: Kind,
    lexicon: Lexicon,
    *,
    seed: int,
    size: int = 64,
    hidden: int = 64,
    device: Device = "auto",
) -> ChoiceClassifier:
    """Return a network of this module with random weights; its method ``train`` trains it."""
    where = torch_device(device, "analyses.choice_networks")
    with seeded(seed):
        network = PartialInputNetwork(kind, lexicon, size, hidden)
    return ChoiceClassifier(network.to(where), TextStore(lexicon.encode), kind)


# A head on a frozen pre-trained encoder


class SimilarityHead(nn.Module):
    r"""The head above a frozen encoder, whose mean states are unit vectors q and c of size d:

    .. math:: \alpha = \tau\, q^\top W c + v^\top \mathrm{relu}(U [q; c; |q - c|; q \circ c]),

    where W starts as the identity and v as zero: untrained, it picks the choice most similar to the
    question."""

    def __init__(self, d: int, hidden: int = 64) -> None:
        super().__init__()
        self.similarity = nn.Parameter(torch.eye(d))
        self.compare, self.score = nn.Linear(4 * d, hidden), nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return scores (n, N), minus infinity where there is no choice."""
        c = nn.functional.normalize(inputs.choices[:, :, 0], dim=-1)
        q = nn.functional.normalize(inputs.question[:, 0], dim=-1)[:, None]
        both = torch.cat([q.expand_as(c), c, (q - c).abs(), q * c], dim=-1)
        cosine = TEMPERATURE * ((q @ self.similarity) * c).sum(dim=-1)
        scores = cosine + self.score(self.compare(both).relu()).squeeze(-1)
        return scores.masked_fill(~inputs.present, -torch.inf)


def encoder_model(
    encoder: str | Path = "bundled", *, seed: int = 0, device: Device = "auto"
) -> ChoiceClassifier:
    """Return a multiple-choice model on a frozen pre-trained encoder, its head not yet trained.
    ``encoder`` is what :func:`open_encoder` takes; ``seed`` is that of the head's weights."""
    where = torch_device(device, "choice_networks.encoder_model")
    network, _ = open_encoder(encoder)
    with seeded(seed):
        head = SimilarityHead(network.config.hidden_size)
    encode = partial(encoder_states, encoder=encoder, mean=True, device=device)
    return ChoiceClassifier(head.to(where), TextStore(encode), f"{encoder} (frozen, head learns)")
