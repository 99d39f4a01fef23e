"""The LSTM of many models at once: its state after the last word of each text."""

from __future__ import annotations

import torch
from torch import Tensor


def last_states(
    table: Tensor, places: Tensor, lengths: Tensor, to_gates: Tensor, between: Tensor, bias: Tensor
) -> Tensor:
    """Return the (models, batch, hidden) state of each text's LSTM after its last word; zero for an empty text.

    Parameters
    ----------
    table : (rows, size) Tensor
        Embeddings.
    places : (models, batch, length) int Tensor
        Rows of ``table``.
    lengths : (models, batch) int Tensor
        Words of each text.
    to_gates, between, bias : Tensor
        (models, size, 4 hidden), (models, hidden, 4 hidden) and (models, 4 hidden); gates in PyTorch's order
        (input, forget, cell, output).
    """
    n_models, n_texts, _ = places.shape
    hidden = between.shape[1]
    places = places[:, :, : max(int(lengths.max()), 1)]
    words = table[places.permute(0, 2, 1).reshape(n_models, -1)]
    gates = torch.baddbmm(bias[:, None], words, to_gates).view(n_models, -1, n_texts, 4 * hidden)
    h = c = words.new_zeros(n_models, n_texts, hidden)
    states = [h]
    for t in range(gates.shape[1]):
        i, f, g, o = torch.baddbmm(gates[:, t], h, between).chunk(4, dim=2)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    at = lengths[None, :, :, None].expand(1, -1, -1, hidden)
    return torch.stack(states).gather(0, at)[0]
