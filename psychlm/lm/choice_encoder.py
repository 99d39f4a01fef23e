r"""Multiple choice on a frozen pre-trained encoder: texts are read once, and only a small head
learns.

Question and choice are represented by the means of their states (as all-MiniLM-L6-v2 was trained),
as unit vectors :math:`\hat q, \hat c`, and meet in the head,

.. math:: \alpha = \tau\, \hat q^\top W \hat c + v^\top \mathrm{relu}(U [\hat q; \hat c; |\hat q -
\hat c|;
          \hat q \circ \hat c]),

where W starts as the identity and v as zero: untrained, it picks the choice most similar to the
question. An encoder that learns as a whole is fine-tuned by :func:`psychlm.lm.fine_tune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psychlm.device import Device, seeded, torch_device
from psychlm.lm.choice_model import open_encoder
from psychlm.lm.choice_networks import ChoiceClassifier, Inputs, TextStore, masked_mean

TEMPERATURE = 20.0  # scale of the cosine in the loss with which MiniLM's vectors were trained
TEXTS_AT_ONCE = 64  # in one pass of the encoder


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
        Longer texts are cut at their end.
    """
    device = torch_device(device, "lm.encoder_states")
    network, tokenizer = open_encoder(encoder)
    network = network.to(device)
    coded = tokenizer(list(texts), truncation=True, max_length=max_tokens)
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


class SimilarityHead(nn.Module):
    """The head above the frozen encoder; d is the size of the encoder's states."""

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
    encoder: str | Path = "bundled",
    *,
    max_tokens: int = 128,
    seed: int = 0,
    device: Device = "auto",
) -> ChoiceClassifier:
    """Return a multiple-choice model on a frozen pre-trained encoder, its head not yet trained.

    Parameters
    ----------
    encoder : str or Path
        As :func:`open_encoder` takes it.
    max_tokens : int
        Longest text; what is longer is cut.
    seed : int
        Of the weights of the head.

    Raises
    ------
    ModelError
        If the encoder cannot be opened.
    """
    where = torch_device(device, "lm.encoder_model")
    network, _ = open_encoder(encoder)
    with seeded(seed):
        head = SimilarityHead(network.config.hidden_size)
    encode = partial(
        encoder_states, encoder=encoder, mean=True, max_tokens=max_tokens, device=device
    )
    head = head.to(where)
    return ChoiceClassifier(head, TextStore(encode), f"{encoder} (frozen, head learns)")
