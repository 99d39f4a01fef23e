"""From hidden states to log-probabilities, one block of the vocabulary at a time.

The table of logits (tokens x vocabulary) is the largest thing a language model makes, and all that is wanted of it is
a few numbers a row. Blocks of rows and of vocabulary that stay in cache are made, folded into running sums
(Milakov & Gimelshein 2018, *Online normalizer calculation for softmax*) and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

ROWS_AT_ONCE = 512
VOCABULARY_AT_ONCE = 4096

N_VALUES = 5
LOG_P, LOG_END, LOG_INSIDE, ENTROPY, RANK = range(
    N_VALUES
)  # columns of the values of a row; nats, RANK from 1

Blocks = Callable[[slice], Iterator[tuple[int, torch.Tensor]]]


@dataclass(frozen=True)
class Wanted:
    """What is asked of every row beside the probability of its token."""

    sets: (
        torch.Tensor | None
    )  # (n_vocabulary, 3), see boundaries.boundary_sets; None without correction
    entropy: bool = False
    rank: bool = False


def blocks_of_layer(hidden: torch.Tensor, layer: torch.nn.Linear) -> Blocks:
    """Return the logits of hidden states, shape (n, n_hidden), as blocks made on demand by the output layer."""

    def blocks(rows: slice) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, layer.weight.shape[0], VOCABULARY_AT_ONCE):
            part = slice(start, start + VOCABULARY_AT_ONCE)
            bias = None if layer.bias is None else layer.bias[part]
            yield start, _float32(hidden[rows], layer.weight[part], bias)

    return blocks


def blocks_of_logits(logits: torch.Tensor) -> Blocks:
    """Return logits that a model has made already, shape (n, n_vocabulary), as blocks."""

    def blocks(rows: slice) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, logits.shape[1], VOCABULARY_AT_ONCE):
            yield start, logits[rows, start : start + VOCABULARY_AT_ONCE].float().clone()

    return blocks


def _float32(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply with a float32 result: logits rounded to 16 bits would be wrong by tenths of a nat."""
    if weight.dtype == torch.float32:
        return functional.linear(hidden, weight, bias)
    if hidden.is_cuda:
        product = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        product = hidden.float() @ weight.float().T
    return product if bias is None else product + bias.float()


def row_values(
    blocks: Blocks, node: torch.Tensor, target: torch.Tensor, n_nodes: int, wanted: Wanted
) -> torch.Tensor:
    """Return the values of every row.

    Parameters
    ----------
    blocks : callable
        Gives the logits of some of the ``n_nodes`` outputs, block by block.
    node : Tensor, shape (n_rows,)
        Output that each row is read from, never decreasing.
    target : Tensor, shape (n_rows,)
        Token whose probability is wanted; below 0 for none.

    Returns
    -------
    Tensor of float64, shape (n_rows, 5)
        Columns as named in this module; NaN where nothing was asked.
    """
    values = torch.full((len(node), N_VALUES), torch.nan, dtype=torch.float64, device=node.device)
    edges = torch.searchsorted(
        node, torch.arange(0, n_nodes + ROWS_AT_ONCE, ROWS_AT_ONCE, device=node.device)
    ).tolist()
    for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        if low < high:
            rows = slice(i * ROWS_AT_ONCE, min(n_nodes, (i + 1) * ROWS_AT_ONCE))
            values[low:high] = _some_rows(
                blocks, rows, node[low:high] - rows.start, target[low:high], wanted
            )
    return values


def _some_rows(
    blocks: Blocks, rows: slice, node: torch.Tensor, target: torch.Tensor, wanted: Wanted
) -> torch.Tensor:
    """Fold the blocks of a few rows into running sums of exp(logit - largest so far)."""
    n, device = rows.stop - rows.start, node.device
    largest = torch.full((n, 1), torch.finfo(torch.float32).min, device=device)
    mass = torch.zeros(n, 1 if wanted.sets is None else wanted.sets.shape[1], device=device)
    spread = torch.zeros(
        n, 1, device=device
    )  # sum of (largest - logit) exp(logit - largest), for the entropy
    own = torch.full((len(node),), torch.nan, device=device)
    for start, logits in blocks(rows):
        _keep_targets(own, logits, node, target, start)
        larger = torch.maximum(largest, logits.amax(dim=1, keepdim=True))
        shrink = torch.exp(largest - larger)
        weights = (
            logits.sub_(larger).exp_() if not wanted.entropy else torch.exp(logits.sub_(larger))
        )
        if wanted.entropy:
            spread = shrink * (spread + mass[:, :1] * (larger - largest)) + torch.special.entr(
                weights
            ).sum(1, True)
        parts = (
            weights.sum(dim=1, keepdim=True)
            if wanted.sets is None
            else weights @ wanted.sets[start : start + logits.shape[1]]
        )
        mass, largest = shrink * mass + parts, larger
    mass, largest = mass.double(), largest.double()
    values = torch.full((len(node), N_VALUES), torch.nan, dtype=torch.float64, device=device)
    log_mass = mass.log()
    values[:, LOG_P] = own.double() - (largest + log_mass[:, :1])[node, 0]
    if wanted.sets is not None:
        values[:, LOG_END] = (log_mass[:, 1] - log_mass[:, 0])[node]
        values[:, LOG_INSIDE] = (log_mass[:, 2] - log_mass[:, 0])[node]
    if wanted.entropy:
        values[:, ENTROPY] = (log_mass[:, 0] + spread[:, 0].double() / mass[:, 0])[node]
    if wanted.rank:
        values[:, RANK] = _ranks(blocks, rows, node, own)
    return values


def _keep_targets(
    own: torch.Tensor, logits: torch.Tensor, node: torch.Tensor, target: torch.Tensor, start: int
) -> None:
    """Note the logits of the targets that lie in this block."""
    here = ((target >= start) & (target < start + logits.shape[1])).nonzero()[:, 0]
    own[here] = logits[node[here], target[here] - start]


def _ranks(blocks: Blocks, rows: slice, node: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Count the tokens that the model finds likelier than the target: a second reading of the blocks."""
    likelier = torch.zeros(len(own), dtype=torch.float64, device=own.device)
    for _, logits in blocks(rows):
        likelier += (logits[node] > own[:, None]).sum(dim=1)
    return torch.where(own.isnan(), torch.nan, 1 + likelier)
