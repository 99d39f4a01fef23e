"""The forward pass of a crowd over all items, in blocks that bound its memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from psychlm.crowds.encode import Encoded, Inputs
from psychlm.crowds.networks import Network, Weights, forward

VALUES_AT_ONCE = 2**24  # numbers that the widest layer of a forward pass may hold (64 MB)


def _blocks(network: Network, n_models: int, inputs: Inputs) -> Iterator[slice]:
    """Yield slices of the items that are read at once, so that memory does not grow with their number."""
    if isinstance(inputs, Encoded):
        longest = sum(numbers.shape[1] for numbers, _ in inputs.segments)
        width = longest * (4 * network.hidden if "lstm" in network.kind else network.size)
    else:
        width = network.hidden * max(int(torch.tensor(network.shape).prod()), 1)
    step = max(VALUES_AT_ONCE // (n_models * width), 1)
    for start in range(0, len(inputs), step):
        yield slice(start, start + step)


@torch.no_grad()
def logits(network: Network, weights: Weights, inputs: Inputs) -> Tensor:
    """Return the (models, n, classes) logits of all members for n items that all read."""
    n_models = len(weights["out.bias"])
    found = torch.empty(n_models, len(inputs), network.classes, device=weights["out.bias"].device)
    if not isinstance(inputs, Encoded):
        for block in _blocks(network, n_models, inputs):
            found[:, block] = forward(network, weights, inputs[block])
        return found
    order = torch.argsort(
        torch.stack([lengths for _, lengths in inputs.segments]).sum(0)
    )  # like lengths together: less padding
    for block in _blocks(network, n_models, inputs):
        at = order[block]
        parts = tuple(
            (n[at][:, : max(int(k[at].max()), 1)].long(), k[at]) for n, k in inputs.segments
        )
        found[:, at] = forward(network, weights, parts)
    return found
