"""The training loop of fine-tuning: steps, evaluations, and a checkpoint from which a killed run goes on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.metrics import matthews_corrcoef
from torch import Tensor, nn

from psychlm.lm._load import ModelError, context_tokens
from psychlm.lm.finetune_data import Examples, Task, batches, encode, labels_of
from psychlm.lm.finetune_network import FrozenStates, Source, freeze, open_network, train_mode

CHECKPOINT = "resume.safetensors"
CLIP = 1.0  # largest norm of the gradient (Devlin et al. 2019)
STEPS_APART = 1_000_003  # a prime: the seeds of two runs' steps do not meet
COLUMNS = ("epoch", "step", "learning_rate", "loss", "mcc", "accuracy")

Watch = Callable[[Any, Any, float, int], Mapping[str, float] | None]
Identity = dict[str, Any]  # all that a result depends on


@dataclass(frozen=True)
class Recipe:
    """How a network is fine-tuned."""

    seed: int = 0
    epochs: int = 10
    learning_rate: float = (
        5e-5  # at its highest; Laverghetta et al. (2021, section 3) take 1e-5 for 500,000 pairs
    )
    batch_size: int = 32  # items
    max_tokens: int = 175  # longest text or pair of texts (Laverghetta et al. 2021, section 3)
    patience: int = (
        3  # evaluations in a row without a higher Matthews correlation before training ends
    )
    evaluate_every: int | None = (
        None  # steps; every epoch unless given (15,000 in Laverghetta et al. 2021)
    )
    warmup: float = (
        0.1  # share of all steps over which the rate rises; then it falls in a line to zero
    )
    weight_decay: float = 0.01
    trainable_layers: int | None = (
        None  # how many layers learn, from the top; all and the embeddings unless given
    )
    pretrained: bool = True  # False: every weight is drawn anew


@dataclass
class _Progress:
    """Where a run is: all of a checkpoint but its tensors."""

    step: int = 0
    losses: list[float] = field(default_factory=list)  # since the last evaluation
    best: float = -math.inf
    best_at: int = -1  # row of the history
    stale: int = 0
    seconds: float = 0.0
    history: list[tuple[float, int, float, float, float, float]] = field(default_factory=list)
    watched: list[dict[str, float]] = field(default_factory=list)  # what watch returned


def other_run(folder: Path, known: Identity, identity: Identity) -> ModelError:
    """Return the error that says in what a folder's run differs from the one that is asked for."""
    differing = [name for name in identity if known.get(name) != identity[name]]
    return ModelError(
        f"{folder} holds another run (other {', '.join(differing)}); give this one a folder of its own, or say "
        "resume=False to write over it"
    )


@contextmanager
def plain_write_errors(folder: Path) -> Iterator[None]:
    """Say in the user's words that a folder cannot be written; what it held before stands."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{folder} cannot be written ({error}); make room or name another out=, and call again: the run goes on "
            "from its last checkpoint"
        ) from error


class Run:
    """One run: the network, its items, where it is, and its checkpoint."""

    def __init__(
        self,
        items: pd.DataFrame,
        development: pd.DataFrame | None,
        task: Task,
        source: Source,
        how: Recipe,
        device: torch.device,
    ) -> None:
        torch.manual_seed(how.seed)
        self.how, self.device = how, device
        words = () if task == "multiple-choice" else labels_of(items)
        self.network, self.tokenizer, self.labels = open_network(
            source, task, words, pretrained=how.pretrained
        )
        longest = min(how.max_tokens, context_tokens(self.network, self.tokenizer))
        self.items = encode(items, self.tokenizer, task, self.labels, longest)
        self.development = (
            None
            if development is None
            else encode(development, self.tokenizer, task, self.labels, longest)
        )
        self.frozen = freeze(self.network, how.trainable_layers)
        self.accelerator = _accelerator(device)
        self.network.to(device)
        self.learning = {
            name: weight for name, weight in self.network.named_parameters() if weight.requires_grad
        }
        self.optimizer = torch.optim.AdamW(
            self.learning.values(), lr=how.learning_rate, weight_decay=how.weight_decay
        )
        self.states = FrozenStates(self.network, self.frozen)
        self.at, self.best = _Progress(), self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.learning.items()}

    @property
    def steps_an_epoch(self) -> int:
        """How many batches the items make."""
        return math.ceil(len(self.items) / self.how.batch_size)

    @property
    def ended(self) -> bool:
        """Whether all epochs are done, or the development items say that it is enough."""
        return (
            self.at.step >= self.how.epochs * self.steps_an_epoch
            or self.at.stale >= self.how.patience
        )

    def train(
        self, folder: Path, identity: Identity, checkpoint_seconds: float, watch: Watch | None
    ) -> None:
        """Take the steps that are left."""
        began = saved = time.monotonic()
        before = self.at.seconds
        if watch is not None and self.at.step == 0:
            self._show(watch)
        if not self.ended:
            self.states.keep("items", self.items, self.how.batch_size, self.device)
            if self.development is not None:
                self.states.keep("development", self.development, self.how.batch_size, self.device)
        every = self.how.evaluate_every or self.steps_an_epoch
        while not self.ended:
            for some in self._rest_of_epoch():
                self._step(some)
                last = self.at.step == self.how.epochs * self.steps_an_epoch
                evaluated = self.at.step % every == 0 or last
                if evaluated:
                    self._evaluate()
                    if watch is not None:
                        self._show(watch)
                if evaluated or time.monotonic() - saved > checkpoint_seconds:
                    self.at.seconds = before + time.monotonic() - began
                    self.save(folder / CHECKPOINT, identity)
                    saved = time.monotonic()
                if self.ended:
                    break

    def _show(self, watch: Watch) -> None:
        self.network.eval()
        epoch, step = self.at.step / self.steps_an_epoch, self.at.step
        said = watch(self.network, self.tokenizer, epoch, step)
        if said is not None:
            self.at.watched.append({"epoch": epoch, "step": step} | dict(said))

    def _rest_of_epoch(self) -> list[np.ndarray]:
        """Return the batches of this epoch that are still to come."""
        epoch, done = divmod(self.at.step, self.steps_an_epoch)
        order = np.random.default_rng([self.how.seed, epoch])
        return batches(self.items.lengths, self.how.batch_size, order)[done:]

    def _rate(self) -> float:
        """Return the learning rate of the step that is next."""
        total = self.how.epochs * self.steps_an_epoch
        rising = max(1, round(self.how.warmup * total))
        done = self.at.step + 1
        return self.how.learning_rate * min(
            done / rising, (total - done + 1) / max(1, total - rising + 1)
        )

    def _step(self, some: np.ndarray) -> None:
        torch.manual_seed(
            self.how.seed * STEPS_APART + self.at.step
        )  # dropout: a resumed run draws the same
        train_mode(self.network, self.frozen)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        batch = self.items.batch(some, self.device)
        with self.accelerator.autocast(), self.states.given("items", batch):
            logits = batch.logits(self.network)
        loss = nn.functional.cross_entropy(logits, batch.target)
        if not math.isfinite(reached := loss.item()):
            raise FloatingPointError(
                f"the loss is {reached} at step {self.at.step + 1}; lower learning_rate={self.how.learning_rate:g}"
            )
        self.optimizer.zero_grad(set_to_none=True)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.learning.values(), CLIP)
        self.optimizer.step()
        self.at.losses.append(reached)
        self.at.step += 1

    def _evaluate(self) -> None:
        """Write a row of history; keep the weights if the Matthews correlation is the highest so far."""
        mcc = accuracy = math.nan
        if self.development is not None:
            mcc, accuracy = agreement(
                self.predict(self.development, "development"), self.development
            )
        rate = self.optimizer.param_groups[0]["lr"]
        loss, self.at.losses = float(np.mean(self.at.losses)), []
        self.at.history.append(
            (self.at.step / self.steps_an_epoch, self.at.step, rate, loss, mcc, accuracy)
        )
        if self.development is None or mcc > self.at.best:
            self.at.best, self.at.best_at, self.at.stale = mcc, len(self.at.history) - 1, 0
            self.best = self._copy()
        else:
            self.at.stale += 1

    def predict(self, examples: Examples, name: str) -> np.ndarray:
        """Return the output with the highest score for every item."""
        self.network.eval()
        best = np.empty(len(examples), dtype=np.int64)
        with torch.inference_mode():
            for some in batches(examples.lengths, self.how.batch_size):
                batch = examples.batch(some, self.device)
                with self.accelerator.autocast(), self.states.given(name, batch):
                    best[some] = batch.logits(self.network).argmax(1).cpu().numpy()
        return best

    def save(self, path: Path, identity: Identity) -> None:
        """Write the checkpoint beside its place, then move it there."""
        tensors = {f"now.{name}": weight.detach() for name, weight in self.learning.items()}
        tensors |= {f"best.{name}": weight for name, weight in self.best.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
        fresh = path.with_suffix(".writing")
        said = {"identity": json.dumps(identity), "progress": json.dumps(asdict(self.at))}
        with plain_write_errors(path.parent):
            save_file(
                {name: value.contiguous() for name, value in tensors.items()}, str(fresh), said
            )
            fresh.replace(path)

    def resume(self, path: Path, identity: Identity) -> None:
        """Go on from a checkpoint of the same run, if there is one."""
        if not path.is_file():
            return
        try:
            with safe_open(str(path), "pt", device=str(self.device)) as held:
                said = held.metadata()
                tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ModelError(
                f"{path} is damaged ({error}); delete it, and the run begins anew"
            ) from error
        if json.loads(said["identity"]) != identity:
            raise other_run(path.parent, json.loads(said["identity"]), identity)
        progress = json.loads(said["progress"])
        self.at = _Progress(**progress | {"history": [tuple(row) for row in progress["history"]]})
        self.best = {name: tensors[f"best.{name}"] for name in self.learning}
        with torch.no_grad():
            for name, weight in self.learning.items():
                weight.copy_(tensors[f"now.{name}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name in tensors:
            if name.startswith("adam."):
                _, number, which = name.split(".")
                value = tensors[name]
                moments.setdefault(int(number), {})[which] = (
                    value.cpu() if which == "step" else value
                )
        self.optimizer.load_state_dict(
            {"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )

    def keep_best(self) -> None:
        """Take back the weights of the best evaluation."""
        with torch.no_grad():
            for name, weight in self.learning.items():
                weight.copy_(self.best[name])
        self.network.eval()


def precision(device: torch.device) -> str:
    """Return in which numbers the passes compute: bfloat16 where a GPU has it, else float32 ("no" mixture)."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "no"


def _accelerator(device: torch.device) -> Any:
    """Return an accelerator for the device."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(
        reset_partial_state=True
    )  # as the Trainer does: a session may run several
    return Accelerator(
        mixed_precision=precision(device), cpu=device.type != "cuda", device_placement=False
    )


def agreement(predicted: np.ndarray, examples: Examples) -> tuple[float, float]:
    """Return the Matthews correlation (Matthews 1975) and the accuracy of predictions.

    For multiple choice the places of the choices mean nothing, so it is that of all choices, right or not, with those
    chosen: with k choices an item, (accuracy - 1/k) / (1 - 1/k).
    """
    accuracy = float(np.mean(predicted == examples.target))
    if examples.labels and len(np.union1d(examples.target, predicted)) == 1:
        return (
            0.0,
            accuracy,
        )  # one class, and nothing else predicted: not defined, which counts as nothing learned
    if examples.labels:
        return float(matthews_corrcoef(examples.target, predicted)), accuracy
    right, chosen = np.zeros((2, examples.first[-1]), dtype=bool)
    right[examples.first[:-1] + examples.target] = True
    chosen[examples.first[:-1] + predicted] = True
    return float(matthews_corrcoef(right, chosen)), accuracy
