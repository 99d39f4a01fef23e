"""Batches of passes through the network: sorted by length, bounded in tokens, halved when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Sized
from typing import TypeVar

import numpy as np
import torch

from psychlm.lm.load import LanguageModel
from psychlm.lm.network import hidden_states, network_inputs, reads_output_layer
from psychlm.lm.output_layer import N_VALUES, Wanted, blocks_of_layer, blocks_of_logits, row_values
from psychlm.lm.passes import Pass

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}  # most tokens in a batch, padding counted
ENOUGH_TOKENS = {
    "cpu": 256,
    "cuda": 8192,
}  # a batch of so many need not take longer texts in, which would pad it
LOGITS_AT_ONCE = (
    2**26
)  # numbers; bounds the batches of models that only give whole tables of logits (256 MB)

Batch = list[Pass]
Sequences = TypeVar("Sequences", bound=Sized)


def batches(passes: Sequence[Sequences], most: int, enough: int) -> Iterator[list[Sequences]]:
    """Yield passes (or whatever has a length) in batches, the longest first, so that too little memory shows at once.

    Parameters
    ----------
    most : int
        Tokens a batch may hold, padding counted; a longer pass is a batch by itself.
    enough : int
        Tokens at which a batch closes before a shorter pass, which it would only pad.
    """
    batch: list[Sequences] = []
    for one in sorted(passes, key=len, reverse=True):
        held = len(batch) * len(batch[0]) if batch else 0
        if batch and (held + len(batch[0]) > most or (held >= enough and len(one) < len(batch[0]))):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def run(
    model: LanguageModel, passes: Sequence[Pass], wanted: Wanted, batch_tokens: int | None = None
) -> Iterator[tuple[Batch, np.ndarray | None]]:
    """Yield every batch with the values of its rows, shape (n_rows, 5), in the order of its passes.

    Where memory runs out the batch is halved, and so are those after it; None stands for the values of a single pass
    that memory does not hold.
    """
    place = "cuda" if model.device.type == "cuda" else "cpu"
    most = batch_tokens or BATCH_TOKENS[place]
    if not passes:
        return
    if not reads_output_layer(model):
        most = min(most, max(1, LOGITS_AT_ONCE // model.n_vocabulary))
    waiting = list(batches(passes, most, min(ENOUGH_TOKENS[place], most)))[::-1]
    while waiting:
        batch = waiting.pop()
        size = len(batch) * len(batch[0])
        if len(batch) > 1 and size > most:
            waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
            continue
        try:
            yield batch, _values(model, batch, wanted)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if place == "cuda":
                torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with a batch of {len(batch)} x {len(batch[0])} tokens; going on with "
                + ("half of it" if len(batch) > 1 else "the others, its words have no value"),
                RuntimeWarning,
                stacklevel=2,
            )
            most = max(1, size // 2)
            if len(batch) == 1:
                yield batch, None
            else:
                waiting.append(batch)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in torch's words or Python's."""
    texts = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
        text in str(error) for text in texts
    )


@torch.inference_mode()
def _values(model: LanguageModel, batch: Batch, wanted: Wanted) -> np.ndarray:
    """Run one batch and return the values of its rows."""
    length = len(batch[0])
    places = np.concatenate([i * length + one.position for i, one in enumerate(batch)])
    outputs, node = np.unique(places, return_inverse=True)
    order = np.argsort(
        node, kind="stable"
    )  # texts that share tokens read the same output more than once
    target = np.concatenate([one.target for one in batch])[order]
    read, node_read, wanted_token = (
        torch.from_numpy(x).to(model.device) for x in (outputs, node[order], target)
    )
    inputs = network_inputs(model, batch)
    if reads_output_layer(model):
        layer = model.network.get_output_embeddings()
        blocks = blocks_of_layer(hidden_states(model, inputs).flatten(0, 1)[read], layer)
    else:
        blocks = blocks_of_logits(model.network(**inputs).logits.flatten(0, 1)[read])
    values = np.empty((len(node), N_VALUES))
    values[order] = row_values(blocks, node_read, wanted_token, len(outputs), wanted).cpu().numpy()
    return values
