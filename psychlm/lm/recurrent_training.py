"""Train word-level language models as Hao et al. (2020, section 3.1) do, tune them, and resume what was killed.

Plain stochastic gradient descent on spans of a text, read in parallel rows; after an epoch that does not improve the
validation perplexity the rate is halved; after ``patience`` such epochs in a row training ends, and the best epoch's
weights are the model. A checkpoint holds all that the rest of the run depends on, the random state among it, so that a
run that was killed and resumed gives the same weights, to the last bit on one machine.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from psychlm.lm.recurrent import Architecture, State, Vocabulary, WordModel, WordNetwork

EVALUATION_ROWS = 10
LARGEST_NATS = 700.0  # a larger number has no exponential in double precision
RANDOM_TRIALS, MODEL_TRIALS = 7, 13  # Hao et al. 2020, section 3.1


@dataclass(frozen=True)
class Training:
    """How a model is trained; the rates are those of PyTorch's example for LSTMs (20) and for Transformers (5)."""

    rate: float = 20.0
    batch_size: int = 20  # rows that the text is cut into
    dropout: float = 0.2
    epochs: int = 50
    patience: int = 5  # epochs without improvement before training ends
    clip: float = 0.25  # largest norm of the gradient
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TrainedWordModel:
    """A trained model and how it came to be."""

    model: WordModel
    history: pd.DataFrame  # epoch, rate, validation_perplexity
    validation_perplexity: float  # per word, ends of sentences counted, of the best epoch


@dataclass
class _Progress:
    """Where a run is: everything but tensors that a checkpoint holds."""

    epoch: int = 0
    span: int = 0  # spans of this epoch done
    rate: float = 0.0
    stale: int = 0  # epochs since the last improvement
    best: float = math.inf
    history: list[tuple[int, float, float]] = field(default_factory=list)


def rows_of(stream: Tensor, n_rows: int) -> Tensor:
    """Cut a (n,) text into (n_rows, n // n_rows) rows that are read in parallel; the rest at its end is left out."""
    length = len(stream) // n_rows
    if length < 2:
        raise ValueError(
            f"a text of {len(stream)} words cannot be cut into {n_rows} rows; take a smaller batch_size"
        )
    return stream[: length * n_rows].view(n_rows, length)


@torch.inference_mode()
def perplexity(model: WordModel, stream: Tensor) -> float:
    """Return the perplexity per word of a text, ends of sentences counted (Hao et al. 2020, section 3.3.1).

    Parameters
    ----------
    stream : (n,) int Tensor
        ``model.vocabulary.stream(sentences)``; it is read in ten rows, an LSTM's state going on from span to span and
        a Transformer beginning anew with each, as PyTorch's example evaluates.
    """
    model.network.eval()
    device = model.network.embedding.weight.device
    rows = rows_of(stream, min(EVALUATION_ROWS, len(stream) // 2)).to(device)
    nats, state = 0.0, None
    for inputs, targets in _spans(rows, model.network.architecture.span):
        logits, state = model.network(inputs, state)
        nats += float(
            nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        )
    mean = nats / (rows.numel() - len(rows))
    return (
        math.exp(mean) if mean < LARGEST_NATS else math.inf
    )  # no number counts as infinite: it is never the best


def _spans(rows: Tensor, span: int) -> list[tuple[Tensor, Tensor]]:
    """Return (inputs, targets) of consecutive spans of the rows."""
    ends = rows.shape[1] - 1
    return [
        (rows[:, i : min(i + span, ends)], rows[:, i + 1 : min(i + span, ends) + 1])
        for i in range(0, ends, span)
    ]


class _Run:
    """One training run: network, place in the text, and its checkpoint."""

    def __init__(
        self, text: Tensor, vocabulary: Vocabulary, made: Architecture, how: Training, device: str
    ) -> None:
        torch.manual_seed(how.seed)
        self.how, self.device = how, device
        self.network = WordNetwork(made, len(vocabulary.words), how.dropout).to(device)
        self.spans = _spans(rows_of(text, how.batch_size).to(device), made.span)
        self.state: State | None = None
        self.best = copy.deepcopy(self.network.state_dict())
        self.at = _Progress(rate=how.rate)

    def one_span(self) -> None:
        """Take a step on the next span."""
        inputs, targets = self.spans[self.at.span]
        self.network.train()
        self.network.zero_grad(set_to_none=True)
        state = None if self.state is None else tuple(part.detach() for part in self.state)
        logits, self.state = self.network(inputs, state)
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.how.clip)
        with torch.no_grad():
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=self.at.rate)
        self.at.span += 1

    def end_epoch(self, reached: float) -> None:
        """Keep the weights if they are the best so far, else halve the rate."""
        self.at.history.append((self.at.epoch, self.at.rate, reached))
        if reached < self.at.best:
            self.at.best, self.at.stale = reached, 0
            self.best = copy.deepcopy(self.network.state_dict())
        else:
            self.at.rate, self.at.stale = self.at.rate / 2, self.at.stale + 1
        self.at.epoch, self.at.span, self.state = self.at.epoch + 1, 0, None

    @property
    def ended(self) -> bool:
        return self.at.epoch >= self.how.epochs or self.at.stale >= self.how.patience

    def save(self, path: Path, identity: str) -> None:
        """Write the checkpoint beside its place, then move it there."""
        tensors = {f"now.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"state.{i}": value.detach() for i, value in enumerate(self.state or ())}
        tensors["random"] = torch.get_rng_state()
        if self.device.startswith("cuda"):
            tensors["random_cuda"] = torch.cuda.get_rng_state(self.device)
        copies = {
            name: value.clone().contiguous() for name, value in tensors.items()
        }  # tied weights share memory
        fresh = path.with_suffix(".writing")
        save_file(
            copies, str(fresh), {"identity": identity, "progress": json.dumps(asdict(self.at))}
        )
        fresh.replace(path)

    def resume(self, path: Path, identity: str) -> None:
        """Go on from a checkpoint of the same run."""
        with safe_open(str(path), "pt", device=self.device) as held:
            said = held.metadata()
            if said["identity"] != identity:
                raise ValueError(
                    f"{path} is the checkpoint of another run (other text, architecture or training); "
                    "delete it, or give this run a folder of its own"
                )
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 (not a dict)
        self.network.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("now.")})
        self.best = {k[5:]: v for k, v in tensors.items() if k.startswith("best.")}
        state = sorted(k for k in tensors if k.startswith("state."))
        self.state = tuple(tensors[k] for k in state) or None
        torch.set_rng_state(tensors["random"].cpu())
        if "random_cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random_cuda"].cpu(), self.device)
        progress = json.loads(said["progress"])
        self.at = _Progress(**progress | {"history": [tuple(row) for row in progress["history"]]})


def train(
    text: Tensor,
    validation: Tensor,
    vocabulary: Vocabulary,
    architecture: Architecture,
    training: Training = Training(),  # noqa: B008 (frozen)
    *,
    folder: str | Path | None = None,
    checkpoint_seconds: float = 120.0,
    device: str = "cpu",
    report: Callable[[int, float, float], None] | None = None,
) -> TrainedWordModel:
    """Train a model; where a folder holds the checkpoint of this very run, go on from it.

    Parameters
    ----------
    text, validation : (n,) int Tensor
        ``vocabulary.stream(sentences)``.
    folder : str or Path, optional
        Where ``checkpoint.safetensors`` is kept, after every epoch and every ``checkpoint_seconds`` within one.
    device : str
        ``"cpu"`` or ``"cuda"``.
    report : callable, optional
        Called after each epoch with its number, rate and validation perplexity.

    Returns
    -------
    TrainedWordModel

    Raises
    ------
    ValueError
        If the text is too short for ``batch_size`` rows, or the folder holds another run's checkpoint.
    FloatingPointError
        If no epoch gave a finite perplexity: the rate is too high.
    """
    run = _Run(text, vocabulary, architecture, training, device)
    said = {
        "architecture": asdict(architecture),
        "training": asdict(training),
        "words": len(vocabulary.words),
    }
    identity = json.dumps(
        said | {"text": [len(text), int(text.sum()), int(validation.sum())]}, sort_keys=True
    )
    path = None if folder is None else Path(folder) / "checkpoint.safetensors"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            run.resume(path, identity)
    saved = time.monotonic()
    while not run.ended:
        while run.at.span < len(run.spans):
            run.one_span()
            if path is not None and time.monotonic() - saved > checkpoint_seconds:
                run.save(path, identity)
                saved = time.monotonic()
        run.end_epoch(perplexity(WordModel(run.network, vocabulary), validation))
        if path is not None:
            run.save(path, identity)
        if report is not None:
            report(*run.at.history[-1])
    return _finished(run, vocabulary)


def _finished(run: _Run, vocabulary: Vocabulary) -> TrainedWordModel:
    if not math.isfinite(run.at.best):
        raise FloatingPointError(
            f"no epoch gave a finite perplexity at the rate {run.how.rate:g}; lower it"
        )
    run.network.load_state_dict(run.best)
    history = pd.DataFrame(run.at.history, columns=["epoch", "rate", "validation_perplexity"])
    return TrainedWordModel(WordModel(run.network.eval(), vocabulary), history, run.at.best)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a search over batch size, dropout and rate found."""

    training: Training
    validation_perplexity: float
    trials: (
        pd.DataFrame
    )  # number, batch_size, dropout, rate, validation_perplexity (inf where training diverged)


def tune(
    text: Tensor,
    validation: Tensor,
    vocabulary: Vocabulary,
    architecture: Architecture,
    training: Training = Training(),  # noqa: B008 (frozen)
    *,
    random_trials: int = RANDOM_TRIALS,
    model_trials: int = MODEL_TRIALS,
    storage: str | None = None,
    device: str = "cpu",
) -> Tuned:
    """Search batch size, dropout and first rate: random trials, then trials that expected improvement proposes.

    The paper's GPEI (Snoek et al. 2012) is Optuna's Gaussian-process sampler here, which maximises the logarithm of
    expected improvement. The paper gives no ranges; these are 10 to 80 rows, dropout 0 to 0.6, and rates from an
    eighth to twice those of PyTorch's example (20 for LSTMs, 5 for Transformers).

    Parameters
    ----------
    training : Training
        What is not searched: epochs, patience, clip, seed.
    storage : str, optional
        ``"sqlite:///tuning.db"``: trials are kept there, and a search that was interrupted goes on.

    Raises
    ------
    ImportError
        If Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "tuning needs Optuna, which psychlm does not install: pip install 'optuna>=4.2'"
        ) from error
    middle = 20.0 if architecture.kind == "lstm" else 5.0

    def objective(trial: optuna.Trial) -> float:
        how = replace(
            training,
            batch_size=trial.suggest_int("batch_size", 10, 80, log=True),
            dropout=trial.suggest_float("dropout", 0.0, 0.6),
            rate=trial.suggest_float("rate", middle / 8, middle * 2, log=True),
        )
        try:
            done = train(text, validation, vocabulary, architecture, how, device=device)
        except FloatingPointError as error:
            raise optuna.TrialPruned(str(error)) from error
        return math.log(done.validation_perplexity)

    sampler = optuna.samplers.GPSampler(seed=training.seed, n_startup_trials=random_trials)
    name = f"{architecture.kind}-{architecture.size}{'-tied' * architecture.tied}"
    study = optuna.create_study(
        study_name=name, storage=storage, sampler=sampler, load_if_exists=True
    )
    study.optimize(objective, n_trials=max(random_trials + model_trials - len(study.trials), 0))
    rows = [
        {
            "number": t.number,
            **t.params,
            "validation_perplexity": math.inf if t.value is None else math.exp(t.value),
        }
        for t in study.trials
    ]
    best = replace(training, **study.best_params)
    return Tuned(best, math.exp(study.best_value), pd.DataFrame(rows))
