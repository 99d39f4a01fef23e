"""The LSTM of many models at once: its state after the last word of each text.

The backward pass is written out: recorded operation by operation, it would keep and fill a gradient of the whole text
at every word. All four gates pass through one sigmoid, tanh(x) being 2 sigmoid(2x) - 1, and one product takes a word
and the state before it to the gates. On a CPU, models are read in blocks whose gates stay in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GATES_AT_ONCE = 2**16  # values: a quarter of a megabyte, which a core's own cache holds


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
    longest = max(int(lengths.max()), 1)
    inward = torch.cat([to_gates, between], dim=1)
    return _LastStates.apply(
        table, places[:, :, :longest].permute(2, 0, 1), lengths, inward, bias[:, None]
    )


class _LastStates(torch.autograd.Function):
    """States after the last word, with the gradients of embeddings, weights and biases."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, places: Tensor, lengths: Tensor, inward: Tensor, bias: Tensor
    ) -> Tensor:
        """Read the texts; ``places`` is (length, models, batch)."""
        hidden = inward.shape[2] // 4
        twice = inward.new_ones(4 * hidden)
        twice[2 * hidden : 3 * hidden] = 2  # the cell's tanh as a sigmoid
        inward = inward * twice
        step = (
            max(GATES_AT_ONCE // (places.shape[2] * 4 * hidden), 1)
            if table.device.type == "cpu"
            else len(inward)
        )
        ctx.blocks = [slice(i, i + step) for i in range(0, len(inward), step)]
        kept, last = [], []
        for block in ctx.blocks:
            traces = _forward(table, places[:, block], inward[block], bias[block] * twice)
            at = lengths[None, block, :, None].expand(1, -1, -1, hidden)
            last.append(traces[0][..., table.shape[1] :].gather(0, at)[0])
            kept += traces
        ctx.save_for_backward(places, lengths, inward, twice, *kept)
        ctx.n_rows = len(table)
        return torch.cat(last)

    @staticmethod
    def backward(ctx: Any, last: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; ``last`` is (models, batch, hidden)."""
        places, lengths, inward, twice, *kept = ctx.saved_tensors
        to_table = inward.new_zeros(ctx.n_rows, inward.shape[1] - last.shape[2])
        to_inward, to_bias = (
            torch.zeros_like(inward),
            inward.new_zeros(len(inward), 1, inward.shape[2]),
        )
        for n, block in enumerate(ctx.blocks):
            words = _backward(
                last[block],
                lengths[block],
                inward[block],
                to_inward[block],
                to_bias[block],
                *kept[4 * n : 4 * n + 4],
            )
            to_table.index_add_(0, places[:, block].flatten(), words.flatten(0, 2))
        return to_table, None, None, to_inward.mul_(twice), to_bias.mul_(twice)


def _forward(table: Tensor, places: Tensor, inward: Tensor, bias: Tensor) -> list[Tensor]:
    """Return, per word: it and the state before it, gates, cells before it, and tanh of the cells after it."""
    n_words, n_models, n_texts = places.shape
    hidden, size = inward.shape[2] // 4, table.shape[1]
    seen = table.new_empty(n_words + 1, n_models, n_texts, size + hidden)
    seen[0, ..., size:] = 0
    seen[:-1, ..., :size] = table.index_select(0, places.flatten()).view(
        n_words, n_models, n_texts, size
    )
    gates = table.new_empty(n_words, n_models, n_texts, 4 * hidden)
    cells = table.new_empty(n_words + 1, n_models, n_texts, hidden)
    cells[0] = 0
    squashed = table.new_empty(n_words, n_models, n_texts, hidden)
    for t in range(n_words):
        i, f, g, o = torch.baddbmm(bias, seen[t], inward, out=gates[t]).sigmoid_().chunk(4, dim=2)
        torch.mul(g, 2, out=squashed[t]).sub_(1).mul_(i)
        torch.addcmul(squashed[t], f, cells[t], out=cells[t + 1])
        torch.mul(cells[t + 1], 2, out=squashed[t]).sigmoid_().mul_(2).sub_(1)
        torch.mul(o, squashed[t], out=seen[t + 1, ..., size:])
    return [seen, gates, cells, squashed]


def _backward(
    last: Tensor,
    lengths: Tensor,
    inward: Tensor,
    to_inward: Tensor,
    to_bias: Tensor,
    seen: Tensor,
    gates: Tensor,
    cells: Tensor,
    squashed: Tensor,
) -> Tensor:
    """Go back through time, adding to the gradients of weights and biases; return that of the words.

    ``last`` enters where each text ends; what stands behind that has no part in it.
    """
    n_words, n_models, n_texts, hidden = squashed.shape
    size = seen.shape[3] - hidden
    outward = inward.transpose(1, 2).contiguous()
    back = torch.zeros_like(seen[0])  # gradient of a word and of the state before it
    words = seen.new_empty(n_words, n_models, n_texts, size)
    cell, to_gates = torch.zeros_like(last), torch.empty_like(gates[0])
    to_i, to_f, to_g, to_o = to_gates.chunk(4, dim=2)
    for t in reversed(range(n_words)):
        i, f, g, o = gates[t].chunk(4, dim=2)
        state = torch.addcmul(back[..., size:], last, (lengths == t + 1)[..., None])
        torch.mul(state, squashed[t], out=to_o)
        state.mul_(o)
        cell.add_(state).sub_(state.mul_(squashed[t]).mul_(squashed[t]))
        torch.mul(g, 2, out=to_i).sub_(1).mul_(cell)
        torch.mul(cell, cells[t], out=to_f)
        torch.mul(cell, i, out=to_g).mul_(2)
        cell.mul_(f)
        to_gates.mul_(gates[t]).addcmul_(to_gates, gates[t], value=-1)
        to_inward.baddbmm_(seen[t].transpose(1, 2), to_gates)
        to_bias.add_(to_gates.sum(1, keepdim=True))
        torch.bmm(to_gates, outward, out=back)
        words[t] = back[..., :size]
    return words
