"""A pre-trained encoder with a head for a task: opened, frozen up to a layer, its frozen states kept.

With ``trainable_layers`` only the top layers and the head learn; what the frozen layers say of a text is then the same
in every epoch, so it is computed once and put in where the first layer that learns begins. Whether a network can be cut
there is tried out, never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psychlm.lm._load import ModelError, commit, find_checkpoint, fingerprint, plain_errors
from psychlm.lm.finetune_data import Batch, Examples, Task, batches, padded
from psychlm.lm.labels import meaning

LARGEST_STORE = (
    2**31
)  # bytes of frozen states that are kept; beyond, they are computed anew in every epoch
SAME = 1e-4  # largest difference in logits of a network cut at its frozen layers, relative to their spread


@dataclass(frozen=True)
class Source:
    """Where an encoder comes from."""

    name: str  # hub name or folder
    address: str  # what transformers is given
    revision: str  # commit of the hub, "sha256:..." of a folder

    @property
    def options(self) -> dict[str, Any]:
        """What transformers needs to open just these weights, and to run no code of theirs."""
        pinned = {} if self.revision.startswith("sha256:") else {"revision": self.revision}
        return pinned | {"trust_remote_code": False}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what transformers says of a head that is new, as it should be, and of files it writes."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def locate(encoder: str | Path, revision: str | None = None) -> Source:
    """Return where an encoder comes from: ``"bundled"``, a folder, or a hub name, pinned to a commit.

    Raises
    ------
    ModelError
        If there is no such folder, model or revision.
    """
    if str(encoder) == "bundled":
        from psychlm.lm.answerers import bundled_encoder

        folder = bundled_encoder()
        return Source("bundled", str(folder), fingerprint(folder))
    name, revision, found = find_checkpoint(str(encoder), revision)
    if found is not None:
        return Source(name, str(found), fingerprint(found))
    return Source(name, name, commit(name, revision))


def open_network(
    source: Source, task: Task, labels: tuple[str, ...], *, pretrained: bool = True
) -> tuple[Any, Any, tuple[str, ...]]:
    """Open an encoder with a head for the task; the head, and all weights unless ``pretrained``, are drawn anew.

    A checkpoint that already has a classifier for the same label words keeps it, and the order of its labels.

    Returns
    -------
    network, tokenizer, labels
        The labels in the order of the network's outputs.

    Raises
    ------
    ModelError
        If the checkpoint cannot be opened, is not an encoder for such a head, or lacks weights besides the head's.
    """
    with plain_errors(source.name), quiet():
        from transformers import AutoConfig, AutoTokenizer

        config = AutoConfig.from_pretrained(source.address, **source.options)
        tokenizer = padded(
            AutoTokenizer.from_pretrained(source.address, **source.options), source.name
        )
        own = tuple(config.id2label[i] for i in sorted(config.id2label))
        if {meaning(word) for word in own} == {meaning(word) for word in labels}:
            labels = tuple(
                next(word for word in labels if meaning(word) == meaning(mine)) for mine in own
            )
        if labels:
            config.num_labels = len(labels)
            config.id2label, config.label2id = (
                dict(enumerate(labels)),
                {word: i for i, word in enumerate(labels)},
            )
        config.pad_token_id = tokenizer.pad_token_id
        return _with_head(source, task, config, pretrained), tokenizer, labels


def _with_head(source: Source, task: Task, config: Any, pretrained: bool) -> Any:
    """Open the weights, or draw all of them; whatever is not in the checkpoint must belong to the head."""
    from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

    opener: Any = (
        AutoModelForMultipleChoice
        if task == "multiple-choice"
        else AutoModelForSequenceClassification
    )
    if type(config) not in opener._model_mapping:
        raise ModelError(
            f"transformers has no head for the task {task!r} on a {config.model_type} ({source.name}); name another"
        )
    if not pretrained:
        return opener.from_config(config, trust_remote_code=False)
    network, report = opener.from_pretrained(
        source.address,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        dtype=torch.float32,
        **source.options,
    )
    lacking = [*report["missing_keys"], *(str(key[0]) for key in report["mismatched_keys"])]
    body = [
        key
        for key in lacking
        if key.startswith(f"{network.base_model_prefix}.") and "pool" not in key
    ]
    if body:
        raise ModelError(
            f"{source.name} lacks weights of a {type(network).__name__}, {sorted(body)[:3]} among them, which would be "
            "random; name a pre-trained encoder, or say pretrained=False"
        )
    return network


def _stack(network: Any) -> nn.ModuleList:
    """Return the layers of an encoder: the longest list of modules of one kind in its body."""
    lists = [
        module
        for module in network.base_model.modules()
        if isinstance(module, nn.ModuleList) and len({type(layer) for layer in module}) == 1
    ]
    if not lists:
        raise ModelError(
            f"{type(network).__name__} has no list of layers to freeze; leave trainable_layers out"
        )
    return max(lists, key=len)


def freeze(network: Any, trainable_layers: int | None) -> list[nn.Module]:
    """Let only the top layers, what follows them and the head learn; return the layers that stay as they are.

    Raises
    ------
    ModelError
        If the network has no list of layers, or fewer than those that are to learn.
    """
    if trainable_layers is None:
        return []
    if getattr(network.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(network).__name__} has an encoder and a decoder; leave trainable_layers out"
        )
    layers = list(_stack(network))
    if not 0 <= trainable_layers <= len(layers):
        raise ModelError(
            f"{trainable_layers} layers are to learn, and {type(network).__name__} has {len(layers)}"
        )
    frozen = layers[: len(layers) - trainable_layers]
    below = {id(weight) for layer in frozen for weight in layer.parameters()}
    named = list(network.base_model.named_parameters())
    last = max((at for at, (_, weight) in enumerate(named) if id(weight) in below), default=-1)
    for at, (name, weight) in enumerate(named):
        weight.requires_grad_(at > last and "embed" not in name)
    return frozen


def train_mode(network: Any, frozen: list[nn.Module]) -> None:
    """Turn dropout on where weights learn, and only there."""
    network.train()
    if frozen:
        network.base_model.eval()
        for layer in list(_stack(network))[len(frozen) :]:
            layer.train()


@dataclass(eq=False)
class FrozenStates:
    """What the frozen layers say of every sequence, put in where the first layer that learns begins."""

    network: Any
    frozen: list[nn.Module]
    kept: dict[str, list[Tensor]] = field(
        default_factory=dict
    )  # by name of the examples: (n_tokens, n_hidden) each
    in_tuples: bool = False  # whether a layer of this network returns a tuple, the states first

    @torch.no_grad()
    def keep(self, name: str, examples: Examples, batch_size: int, device: torch.device) -> None:
        """Compute the states of some examples once, where that can be done and fits in memory."""
        size = (
            4
            * sum(map(len, examples.ids))
            * getattr(self.network.config, "hidden_size", LARGEST_STORE)
        )
        pads_by_itself = hasattr(
            self.network.config, "attention_window"
        )  # Longformer: its states are longer
        if not self.frozen or pads_by_itself or size > LARGEST_STORE:
            return
        self.network.eval()
        probe = examples.batch(np.arange(min(len(examples), batch_size)), device)
        if not self._fixed(probe):
            return
        kept: list[Tensor] = [torch.empty(0)] * len(examples.ids)
        for some in batches(examples.lengths, batch_size):
            batch = examples.batch(some, device)
            for row, state in zip(batch.rows, self._seen(batch)[0], strict=True):
                kept[row] = state[: len(examples.ids[row])].clone()
        self.kept[name] = kept
        if not self._same(name, probe):
            del self.kept[name]

    def _seen(self, batch: Batch) -> list[Tensor]:
        """Return what the last frozen layer gives for a batch, every time it is asked."""
        caught: list[Tensor] = []

        def catch(_layer: nn.Module, _given: Any, output: Any) -> None:
            self.in_tuples = isinstance(output, tuple)
            caught.append(output[0] if self.in_tuples else output)

        handle = self.frozen[-1].register_forward_hook(catch)
        try:
            batch.logits(self.network)
        finally:
            handle.remove()
        return caught

    def _fixed(self, batch: Batch) -> bool:
        """Whether the frozen layers say one thing of each token, in which no weight that learns has a part."""
        with torch.enable_grad():
            seen = self._seen(batch)
        a_state_a_token = len(seen) == 1 and seen[0].shape[:2] == batch.inputs["input_ids"].shape
        return a_state_a_token and not seen[0].requires_grad

    def _same(self, name: str, batch: Batch) -> bool:
        """Whether the network gives the same logits from kept states as from the texts."""
        whole = batch.logits(self.network)
        try:
            with self.given(name, batch):
                cut = batch.logits(self.network)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        real = whole.isfinite()
        return bool((whole - cut)[real].abs().max() <= SAME * (1 + whole[real].abs().max()))

    @contextmanager
    def given(self, name: str, batch: Batch) -> Iterator[None]:
        """Skip the frozen layers for a batch of examples whose states were kept."""
        if name not in self.kept:
            yield
            return
        states = nn.utils.rnn.pad_sequence(
            [self.kept[name][row] for row in batch.rows], batch_first=True
        )
        said = (states,) if self.in_tuples else states
        for layer in self.frozen:
            layer.forward = lambda *_given, **_options: said
        try:
            yield
        finally:
            for layer in self.frozen:
                del layer.forward  # the class's own is back
