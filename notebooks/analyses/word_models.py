"""Word-level language models of Hao et al. (2020, section 3.1): n-grams, LSTMs and causal
Transformers on one corpus.

The networks are those of PyTorch's word language model example, trained by plain stochastic
gradient descent on spans of a text that is read in parallel rows; the rate is halved after an epoch
that does not improve the validation perplexity. All models of a corpus share its closed vocabulary,
so that their perplexities compare."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from analyses import ngram
from analyses.running_text import (
    UNKNOWN,
    Tokenize,
    WordCorpus,
    counts,
    plain,
    sum_over_words,
    word_level_tokens,
)
from psychlm.crowds import networks as networks_of_crowds
from psychlm.data import atomic_write, digest
from psychlm.device import Device, torch_device

END = "<eos>"
FIRST_RATE = {"LSTM": 20.0, "Transformer": 5.0}  # of PyTorch's word language model example
# of a text: bound the memory that logits take
WINDOWS_AT_ONCE = 32
WORDS_AT_ONCE = 4096
EVALUATION_ROWS = 10
CHECKPOINT_SECONDS = 120.0  # between checkpoints within an epoch
LARGEST_NATS = 700.0  # a larger number has no exponential in double precision

State = tuple[Tensor, ...]


class Vocabulary(networks_of_crowds.Vocabulary):
    """The words that a model knows; first the end of a sentence and the unknown word."""

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> Vocabulary:
        """Collect the words of a training text, frequent ones first."""
        kept = [word for word in counts(sentences).index if word not in (END, UNKNOWN)]
        return cls((END, UNKNOWN, *kept))

    def stream(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """Return a text as one (n,) row of numbers, each sentence closed by its end."""
        tokens = [token for sentence in sentences for token in (*sentence, END)]
        return torch.from_numpy(self.numbers(tokens))


@dataclass(frozen=True)
class Architecture:
    """The shape of a network of two layers; a Transformer has two heads."""

    kind: Literal["lstm", "transformer"]
    size: int  # units of the embedding and of each hidden layer; even for a Transformer
    span: int = 35  # tokens that training carries gradients, or attention, across


class WordNetwork(nn.Module):
    """Map numbers of words to logits of the next word, with dropout on the embedding, between
    layers, and before the decoder."""

    positions: Tensor

    def __init__(self, architecture: Architecture, n_words: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        size = architecture.size
        self.embedding = nn.Embedding(n_words, size)
        self.drop = nn.Dropout(dropout)
        self.body: nn.Module
        if architecture.kind == "lstm":
            self.body = nn.LSTM(size, size, 2, dropout=dropout, batch_first=True)
        else:
            block = nn.TransformerEncoderLayer(size, 2, size, dropout, batch_first=True)
            self.body = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
            # sines and cosines of the positions (Vaswani et al. 2017, section 3.5)
            position = torch.arange(architecture.span, dtype=torch.float32)[:, None]
            angle = position * torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
            positions = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
            self.register_buffer("positions", positions, persistent=False)
        self.decoder = nn.Linear(size, n_words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, numbers: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits (rows, n, V) of the words after ``numbers`` (rows, n), and a state."""
        embedded = self.embedding(numbers)
        if self.architecture.kind == "lstm":
            hidden, state = self.body(self.drop(embedded), state)
        else:
            n = numbers.shape[1]
            embedded = embedded * math.sqrt(self.architecture.size) + self.positions[:n]
            mask = torch.ones(n, n, dtype=torch.bool, device=numbers.device).triu(1)
            hidden = self.body(self.drop(embedded), mask=mask)
        return self.decoder(self.drop(hidden)), state


@dataclass(frozen=True, eq=False)
class WordModel:
    """A word-level language model: its network and its vocabulary."""

    network: WordNetwork
    vocabulary: Vocabulary

    @torch.inference_mode()
    def surprisal(self, words: pd.DataFrame, tokenize: Tokenize = plain) -> pd.DataFrame:
        """Return words with the surprisal of each in bits, each text read from its beginning.

        Where there is a ``sentence_id``, a sentence's end is read (and not scored) before the next
        sentence. Columns are those of :meth:`analyses.ngram.NgramModel.surprisal`."""
        tokens = word_level_tokens(words, tokenize).reset_index(drop=True)
        number = self.vocabulary.numbers(tokens["token"].tolist())
        begins = tokens["sentence"].ne(tokens["sentence"].shift()).to_numpy()
        self.network.eval()
        bits = np.empty(len(tokens))
        for rows in tokens.groupby("text", sort=False).indices.values():
            # The end of a sentence (number 0) is put before each sentence.
            place = np.arange(len(rows)) + np.cumsum(begins[rows])
            read = np.zeros(place[-1] + 1, dtype=np.int64)
            read[place] = number[rows]
            bits[rows] = self._nats(torch.from_numpy(read))[place - 1] / math.log(2)
        return sum_over_words(words, tokens, bits, number == 1)

    def _nats(self, read: Tensor) -> np.ndarray:
        """Return the surprisals (n,) of a text's tokens after the first, which ends a sentence."""
        read = read.to(self.network.embedding.weight.device)
        inputs = read[:-1]
        targets = read[1:]
        n = len(targets)
        span = self.network.architecture.span
        nats = np.empty(len(targets))

        def losses(logits: Tensor, targets: Tensor) -> np.ndarray:
            return nn.functional.cross_entropy(logits.mT, targets, reduction="none").cpu().numpy()

        if self.network.architecture.kind == "lstm":
            state: State | None = None
            for start in range(0, n, WORDS_AT_ONCE):
                part = slice(start, start + WORDS_AT_ONCE)
                logits, state = self.network(inputs[None, part], state)
                nats[part] = losses(logits, targets[None, part])[0]
            return nats
        # Windows of a Transformer overlap by half. All words of the first are new, and of later
        # ones those that no window before them had.
        stride = span // 2
        starts = np.arange(0, max(n - span + stride, 1), stride)[:, None]
        for rows in np.split(starts, range(WINDOWS_AT_ONCE, len(starts), WINDOWS_AT_ONCE)):
            places = rows + np.arange(min(span, n))
            new = (places < n) & ((places - rows >= span - stride) | (rows == 0))
            window = torch.from_numpy(np.minimum(places, n - 1)).to(read.device)
            logits, _ = self.network(inputs[window])
            nats[places[new]] = losses(logits, targets[window])[new]
        return nats


# Training


@dataclass(frozen=True)
class Training:
    """How a model is trained."""

    rate: float = 20.0  # of PyTorch's example for LSTMs; 5 for Transformers
    batch_size: int = 20  # rows that the text is cut into
    dropout: float = 0.2
    epochs: int = 50
    patience: int = 5  # epochs without improvement before training ends
    clip: float = 0.25  # largest norm of the gradient
    seed: int = 0


@dataclass
class _Progress:
    """What the rest of a run depends on, beside its weights and the random state."""

    rate: float
    best: dict[str, Tensor]  # weights of the epoch with the lowest perplexity
    reached: float = math.inf  # that perplexity
    state: State | None = None  # of an LSTM after the last span
    epoch: int = 0  # epochs done
    span: int = 0  # spans done of this one
    stale: int = 0  # epochs since the last improvement
    history: list[tuple[int, float, float]] = field(default_factory=list)


def train(
    text: Tensor,
    validation: Tensor,
    vocabulary: Vocabulary,
    architecture: Architecture,
    training: Training,
    *,
    folder: str | Path | None = None,
    device: Device = "auto",
) -> tuple[WordModel, pd.DataFrame]:
    """Train a network on a ``vocabulary.stream``; return the model of the best epoch and its
    history: ``epoch``, ``rate``, ``validation_perplexity`` (per word, ends of sentences counted).

    A checkpoint in the folder, kept after every epoch and every two minutes within one, holds all
    that the rest depends on: a run that was killed continues and gives the same weights, to the
    last bit on a CPU."""
    where = torch_device(device, "analyses.word_models")
    torch.manual_seed(training.seed)
    network = WordNetwork(architecture, len(vocabulary.words), training.dropout).to(where)
    model = WordModel(network, vocabulary)
    spans = _spans(text.to(where), training.batch_size, architecture.span)
    run = _Progress(training.rate, copy.deepcopy(network.state_dict()))
    settings = {
        "architecture": asdict(architecture),
        "training": asdict(training),
        "words": vocabulary.words,
        "text": [digest([part.cpu().numpy().tobytes()]) for part in (text, validation)],
    }
    identity = digest([json.dumps(settings, sort_keys=True)])
    path = None if folder is None else Path(folder) / "checkpoint.pt"
    if path is not None and path.is_file():
        run = _resume(path, identity, network)
    saved = time.monotonic()
    while run.epoch < training.epochs and run.stale < training.patience:
        network.train()
        while run.span < len(spans):
            run.state = _step(network, spans[run.span], run.state, run.rate, training.clip)
            run.span += 1
            if path is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                _save(path, identity, network, run)
                saved = time.monotonic()
        # keep the weights if they are the best so far, else halve the rate
        reached = perplexity(model, validation)
        run.history.append((run.epoch, run.rate, reached))
        if reached < run.reached:
            run.reached = reached
            run.stale = 0
            run.best = copy.deepcopy(network.state_dict())
        else:
            run.rate = run.rate / 2
            run.stale = run.stale + 1
        run.epoch = run.epoch + 1
        run.span = 0
        run.state = None
        if path is not None:
            _save(path, identity, network, run)
    if not math.isfinite(run.reached):
        raise FloatingPointError(f"no finite perplexity at the rate {training.rate:g}; lower it")
    network.load_state_dict(run.best)
    network.eval()
    return model, pd.DataFrame(run.history, columns=["epoch", "rate", "validation_perplexity"])


def _step(
    network: WordNetwork, span: tuple[Tensor, Tensor], state: State | None, rate: float, clip: float
) -> State | None:
    """Take a step of gradient descent on a span, and return an LSTM's state after it."""
    inputs, targets = span
    network.zero_grad(set_to_none=True)
    logits, state = network(inputs, state)
    nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    nn.utils.clip_grad_norm_(network.parameters(), clip)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=rate)
    # gradients do not go back beyond the span
    return None if state is None else tuple(part.detach() for part in state)


def _save(path: Path, identity: str, network: WordNetwork, run: _Progress) -> None:
    """Write the checkpoint."""
    device = network.embedding.weight.device
    checkpoint = {"identity": identity, "run": vars(run), "weights": network.state_dict()}
    checkpoint["random"] = torch.get_rng_state()
    if device.type == "cuda":
        checkpoint["random_cuda"] = torch.cuda.get_rng_state(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        torch.save(checkpoint, part)


def _resume(path: Path, identity: str, network: WordNetwork) -> _Progress:
    """Set weights and random state to those of a checkpoint of the same run."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    if checkpoint["identity"] != identity:
        raise ValueError(f"{path} is the checkpoint of another run; give this run another folder")
    device = network.embedding.weight.device
    network.load_state_dict(checkpoint["weights"])
    torch.set_rng_state(checkpoint["random"])
    if "random_cuda" in checkpoint:
        torch.cuda.set_rng_state(checkpoint["random_cuda"], device)
    run = _Progress(**checkpoint["run"])
    run.state = None if run.state is None else tuple(part.to(device) for part in run.state)
    return run


def _spans(stream: Tensor, n_rows: int, span: int) -> list[tuple[Tensor, Tensor]]:
    """Return (inputs, targets) of the spans of a (n,) text cut into rows; its rest is left out."""
    length = len(stream) // n_rows
    if length < 2:
        raise ValueError(f"{len(stream)} words make no {n_rows} rows; take a smaller batch_size")
    rows = stream[: length * n_rows].view(n_rows, length)
    ends = range(0, length - 1, span)
    parts = [rows[:, i : i + span + 1] for i in ends]
    return [(part[:, :-1], part[:, 1:]) for part in parts]


@torch.inference_mode()
def perplexity(model: WordModel, stream: Tensor) -> float:
    """Return the perplexity per word of a stream, ends of sentences counted (Hao et al. 2020,
    section 3.3.1).

    It is read in ten rows, an LSTM's state going on from span to span and a Transformer beginning
    anew with each, as PyTorch's example evaluates."""
    model.network.eval()
    device = model.network.embedding.weight.device
    n_rows = min(EVALUATION_ROWS, len(stream) // 2)
    span = model.network.architecture.span
    nats = 0.0
    n = 0
    state = None
    for inputs, targets in _spans(stream.to(device), n_rows, span):
        logits, state = model.network(inputs, state)
        logits, targets, n = logits.flatten(0, 1), targets.flatten(), n + targets.numel()
        nats += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
    mean = nats / n
    # NaN counts as infinite: it is never the best
    return math.exp(mean) if mean < LARGEST_NATS else math.inf


# The models of the paper


@dataclass(frozen=True, eq=False)
class CorpusModel:
    """A traditional language model, trained and tested on one corpus."""

    family: str  # "n-gram", "LSTM" or "Transformer"
    size: int  # the order of an n-gram, the hidden units of a network
    corpus: WordCorpus
    model: ngram.NgramModel | WordModel
    perplexity: float  # per token of the test part, ends of sentences counted
    history: pd.DataFrame | None = None  # of networks: epoch, rate, validation_perplexity

    @property
    def name(self) -> str:
        """Its name in the paper: "3-Gram", "LSTM-200", "Transformer-424"."""
        return f"{self.size}-Gram" if self.family == "n-gram" else f"{self.family}-{self.size}"

    @property
    def key(self) -> str:
        """Corpus and name as a report's key has them: "penn_treebank.3-gram"."""
        return f"{self.corpus.name}.{self.name}".lower().replace(" ", "_")

    def surprisal(self, words: pd.DataFrame) -> pd.DataFrame:
        """Return words with ``surprisal_bits`` and ``n_unknown``; tokens are the corpus's own."""
        return self.model.surprisal(words, self.corpus.tokenize)


def models_of(
    corpus: WordCorpus,
    orders: Sequence[int],
    lstm_sizes: Sequence[int] = (),
    transformer_sizes: Sequence[int] = (),
    training: Training = Training(),  # noqa: B008 (frozen)
    *,
    folder: str | Path | None = None,
    device: Device = "auto",
) -> list[CorpusModel]:
    """Train the n-grams, LSTMs and Transformers of a corpus, in this order, small ones first.

    The paper searched batch size, dropout and rate in 20 trials (section 3.1); here rates are those
    of PyTorch's example, and the others are fixed. Checkpoints are kept in the folder."""
    models = []
    for order in orders:
        counted = ngram.train(corpus.train, order)
        reached = counted.perplexity(corpus.test)
        models.append(CorpusModel("n-gram", order, corpus, counted, reached))
    vocabulary = Vocabulary.of(corpus.train)
    text = vocabulary.stream(corpus.train)
    validation = vocabulary.stream(corpus.validation)
    test = vocabulary.stream(corpus.test)
    for family, sizes in (("LSTM", lstm_sizes), ("Transformer", transformer_sizes)):
        kind: Any = family.lower()
        settings = replace(training, rate=FIRST_RATE[family])
        for size in sorted(sizes):
            shape = Architecture(kind, size)
            path = None if folder is None else Path(folder) / f"{corpus.name}.{family}.{size}"
            options: dict[str, Any] = {"folder": path, "device": device}
            model, history = train(text, validation, vocabulary, shape, settings, **options)
            reached = perplexity(model, test)
            models.append(CorpusModel(family, size, corpus, model, reached, history))
    return models
