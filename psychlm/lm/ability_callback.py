"""Ability during training: after every epoch a model takes a test whose items have known difficulties.

Loss and accuracy depend on the items they are computed on; an ability is on the scale of the items' difficulties, has a
standard error, and can be compared with that of people and of other models (Lalor and Yu 2020; Lalor 2020, chapter 6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from transformers import TrainerCallback

from psychlm.frames import FrameError, check_items, format_names
from psychlm.irt.scoring import METHODS, score
from psychlm.lm._load import ModelError
from psychlm.lm.answerers import wrap
from psychlm.lm.responses import responses

COLUMNS = ("epoch", "step", "ability", "se", "n_items", "accuracy")
KIND = "ability"  # how the Trainer's log tells our rows from its own


class AbilityCallback(TrainerCallback):
    """Record a model's ability, with its standard error, before training and after every epoch.

    Give it to a Transformers ``Trainer`` (``callbacks=[...]``) or to :func:`psychlm.lm.finetune.finetune` (``watch=``).
    With a Trainer the rows stand in the trainer's own log too, so they are there again when a run is resumed from a
    checkpoint; with ``finetune`` they come back as ``FineTuned.watched``.

    Parameters
    ----------
    items : DataFrame
        An items frame: the test.
    difficulties : Series or DataFrame, indexed by ``item_id``
        Difficulties in logits (then every slope is 1), or ``a``, ``b`` and ``c`` as ``IRTFit.items`` has them.
    method : {"eap", "map", "ml", "wle"}
        How ability is estimated: see :func:`psychlm.irt.score`.
    labels : sequence of str, optional
        Names of a classifier's outputs, in their order, where its configuration does not say them.
    tokenizer : optional
        Where the Trainer has none (``processing_class``).
    grade : callable, optional
        Takes the network and returns the graded answers (0 or 1, a Series by ``item_id``), for models that
        :func:`psychlm.lm.responses` cannot ask: of images, say.

    Raises
    ------
    FrameError
        If items have no difficulty, or one that is not finite.

    Notes
    -----
    A model that answers everything right has no finite ``"ml"`` ability; ``"eap"`` and ``"wle"`` are always finite.
    """

    def __init__(
        self,
        items: pd.DataFrame,
        difficulties: pd.Series | pd.DataFrame,
        *,
        method: str = "eap",
        labels: list[str] | None = None,
        tokenizer: Any = None,
        grade: Callable[[Any], pd.Series] | None = None,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method {method!r} is not one of {METHODS}")
        self.items, self.parameters = check_items(items), _parameters(items, difficulties)
        self.method, self.labels, self.tokenizer, self.grade = method, labels, tokenizer, grade
        self._rows: list[dict[str, float]] = []

    @property
    def history(self) -> pd.DataFrame:
        """One row an epoch: epoch, step, ability and se (logits), n_items, accuracy (share of right answers)."""
        return pd.DataFrame(self._rows, columns=list(COLUMNS)).astype({"step": int, "n_items": int})

    @property
    def identity(self) -> str:
        """The test by its items, parameters and method: two callbacks with the same identity record the same."""
        said = (
            self.items.to_json(orient="values")
            + self.parameters.to_json(double_precision=15)
            + self.method
        )
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()

    def __call__(self, network: Any, tokenizer: Any, epoch: float, step: int) -> dict[str, float]:
        """Let a network take the test, keep the row and return it."""
        answers = self._answers(network, self.tokenizer if tokenizer is None else tokenizer)
        found = score(self.parameters, answers, self.method).iloc[0]
        row = {
            "epoch": float(epoch),
            "step": int(step),
            "ability": float(found["theta"]),
            "se": float(found["se"]),
        }
        row |= {"n_items": answers.shape[1], "accuracy": float(answers.to_numpy().mean())}
        self._rows = [kept for kept in self._rows if kept["step"] != step] + [row]
        return row

    def _answers(self, network: Any, tokenizer: Any) -> pd.DataFrame:
        """Return the graded answers, one row; the network is left as it was."""
        with _as_it_was(network):
            if self.grade is not None:
                network.eval()
                return pd.DataFrame([self.grade(network)], index=["model"])
            if tokenizer is None:
                raise ModelError(
                    "the test cannot be read without a tokenizer; give AbilityCallback(..., tokenizer=...)"
                )
            return responses(
                self.items, {"model": wrap(network, tokenizer, labels=self.labels)}, cache=False
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take back the rows of a run that is resumed, or let the model take the test before it is trained."""
        logged = [row for row in state.log_history if row.get("kind") == KIND]
        self._rows = [{name: row[name] for name in COLUMNS} for row in logged]
        if state.global_step == 0:
            self._log(state, given)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let the model take the test."""
        self._log(state, given)

    def _log(self, state: Any, given: dict[str, Any]) -> None:
        row = self(
            given["model"], given.get("processing_class"), state.epoch or 0.0, state.global_step
        )
        if state.is_world_process_zero:
            state.log_history.append(row | {"kind": KIND})


def _parameters(items: pd.DataFrame, difficulties: pd.Series | pd.DataFrame) -> pd.DataFrame:
    """Return slope, difficulty and guessing of every item."""
    known = (
        difficulties.to_frame("b").assign(a=1.0)
        if isinstance(difficulties, pd.Series)
        else difficulties
    )
    missing = pd.Index(items["item_id"]).difference(known.index)
    if len(missing):
        raise FrameError(
            f"items {format_names(missing)} have no difficulty; leave them out, or estimate it with irt.fit"
        )
    known = known.loc[
        items["item_id"], [name for name in ("a", "b", "d", "c") if name in known]
    ].astype(float)
    endless = ~np.isfinite(known).all(axis=1)
    if endless.any():
        raise FrameError(
            f"items {format_names(known.index[endless])} have parameters that are not finite; leave them out (an item that "
            "everyone answered alike has no difficulty)"
        )
    return known


@contextmanager
def _as_it_was(network: Any) -> Iterator[None]:
    """Give a network back as it was: which weights learn, which modules are in training mode, and its cache."""
    learns = [(weight, weight.requires_grad) for weight in network.parameters()]
    training = [(module, module.training) for module in network.modules()]
    config: Any = getattr(network, "config", None)
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else None
    cached = getattr(text, "use_cache", None)
    try:
        yield
    finally:
        for weight, learned in learns:
            weight.requires_grad_(learned)
        for module, trained in training:
            module.training = trained
        if cached is not None:
            text.use_cache = cached
