"""Run scoring requests through a network, and turn its logits into log-probabilities.

A plan (:func:`plan_requests`) makes requests of the tokens of documents; batches of them, sorted by
length, bounded in tokens and halved when memory runs out, go through the network (:func:`run`);
each wanted output becomes a row of ``N_VALUES`` numbers (:func:`row_values`). The table of logits
(outputs x vocabulary) is the largest thing that a language model makes, so that its output layer
computes the wanted rows only (:func:`output_logits`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from psychlm.device import float_type, free_bytes
from psychlm.lm._errors import ModelError, check_limit, check_option
from psychlm.lm._load import LanguageModel
from psychlm.lm.scoring_requests import (
    LARGEST_FAMILY,
    READINGS,
    ScoringRequest,
    SpecialTokens,
    families,
    shared_prefixes,
    visible_tokens,
)
from psychlm.lm.tokens import Tokens, begins_with_space

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}  # most tokens in a batch, padding counted
# a batch of so many tokens closes before a shorter request, which it would only pad
ENOUGH_TOKENS = {"cpu": 256, "cuda": 8192}
MOST_LOGITS = 2**26  # numbers in a table of logits (256 MB); on a GPU, as many as memory allows

N_VALUES = 5
# columns of the values of a row, in nats; RANK counts from 1
LOG_P, LOG_END, LOG_INSIDE, ENTROPY, RANK = range(N_VALUES)

Correction = Literal["pimentel-meister"] | None
Sequences = TypeVar("Sequences", bound=Sized)
Values = TypeVar("Values")
# by network: its structure, and what largest_family found
tried: WeakKeyDictionary[Any, tuple[list[str], int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ScoringOptions:
    """How words are scored: all that the numbers depend on beside the model and the text."""

    correction: Correction  # None too where the tokenizer does not mark beginnings of words
    bos: str | None  # token before the text
    bos_in_windows: bool  # whether it also stands before windows inside the text
    context_tokens: int  # longest input
    stride: int  # tokens by which windows advance, at most, and that stand before a word, at least
    entropy: bool
    rank: bool
    temperature: float = 1.0  # by which logits are divided

    def describe(self, model: LanguageModel) -> dict[str, Any]:
        """Return the model and the options as results report them."""
        described: dict[str, Any] = {"model": model.name, "revision": model.revision}
        described |= {"kind": model.kind, "base": 2}
        described["dtype"] = str(model.network.dtype).removeprefix("torch.")
        # a temperature of 1 is none
        silent = {"entropy", "rank"} | ({"temperature"} if self.temperature == 1 else set())
        options = asdict(self)
        return described | {name: options[name] for name in options if name not in silent}

    def identity(self, description: dict[str, Any]) -> str:
        """Return a text that differs where the numbers could, given what :meth:`describe` says."""
        wanted = {"entropy": self.entropy, "rank": self.rank}
        return json.dumps(description | wanted, sort_keys=True)


TURN_MARKS = ("<|im_start|>", "<|im_end|>")
DOCUMENT_MARK = "<|endoftext|>"


def resolve_options(
    model: LanguageModel,
    correction: Correction = None,
    stride: int | None = None,
    bos: str | None = "auto",
    context: int | None = None,
    entropy: bool = False,
    rank: bool = False,
    temperature: float = 1.0,
) -> ScoringOptions:
    """Return the options of :func:`psychlm.lm.surprisal` as they are for a model; refuse others."""
    if model.kind not in READINGS:
        said = f"the model {model.name} is of the kind {model.kind!r}, which does not predict each "
        said += "word of a text; use a causal or a masked model, or let it answer items with "
        raise ModelError(f"{said}lm.evaluate")
    check_limit("stride", stride, 1)
    if not 0 < temperature < np.inf:
        raise ModelError(
            f"temperature is {temperature}; logits are divided by it, so it must be above 0"
        )
    check_limit("context", context, 3, model.context_tokens)
    tokenizer = model.tokenizer
    reading = READINGS[model.kind]
    check_option("correction", correction, ("pimentel-meister", None))
    if not reading.from_left or begins_with_space(tokenizer) is None:
        correction = None
    # the token before a text: the one asked for, or the tokenizer's own of that role
    if bos == "auto":
        beginning = tokenizer.cls_token if reading.framed else None
        bos = beginning or tokenizer.bos_token or tokenizer.eos_token or tokenizer.cls_token
        # Models tuned for dialogue may name the marks of a turn there, which no plain text begins
        # with; the mark between documents of their pre-training is kept in the vocabulary.
        if bos in TURN_MARKS and DOCUMENT_MARK in tokenizer.get_vocab():
            bos = DOCUMENT_MARK
    elif bos is not None and bos not in tokenizer.get_vocab():
        raise ModelError(
            f"bos={bos!r} is no token of {model.name}; its own are {tokenizer.all_special_tokens}"
        )
    # where the tokenizer puts that token before everything, the model has never read a window
    # without it
    in_windows = bos is not None
    if in_windows and not reading.masks:
        ids = tokenizer.encode("a")
        in_windows = bool(ids) and ids[0] == tokenizer.convert_tokens_to_ids(bos)
    tokens = model.context_tokens if context is None else context
    size = tokens - (bos is not None)
    step = stride or size // 2
    heat = float(temperature)
    return ScoringOptions(correction, bos, in_windows, tokens, step, entropy, rank, heat)


def rows_of(tokens: list[Tokens]) -> NDArray[np.int64]:
    """Return the first row of each document, and behind them how many rows there are: one for each
    token, and one for the end of each document."""
    return np.concatenate([[0], np.cumsum([len(one.ids) + 1 for one in tokens])]).astype(np.int64)


def plan_requests(
    tokens: list[Tokens],
    first_rows: NDArray[np.int64],
    model: LanguageModel,
    options: ScoringOptions,
) -> list[ScoringRequest]:
    """Return the requests that read documents; their first tokens fill the rows ``first_rows``."""
    start = None if options.bos is None else model.tokenizer.convert_tokens_to_ids(options.bos)
    reading = READINGS[model.kind]
    stop = model.tokenizer.sep_token_id if reading.framed else None
    special = SpecialTokens(
        start,
        stop,
        model.tokenizer.mask_token_id or 0,
        options.bos_in_windows,
        options.context_tokens,
        options.stride,
        ends=options.correction is not None,
    )
    waiting = [number for number, one in enumerate(tokens) if len(one.ids)]
    requests: list[ScoringRequest] = []
    if model.kind == "causal":
        # texts that begin alike go into one request where the model allows it
        short = [number for number in waiting if len(tokens[number].ids) < options.context_tokens]
        ids = [tokens[number].ids for number in short]
        groups = [group for group in families(ids) if len(group) > 1]
        if groups and (largest := largest_family(model)) < LARGEST_FAMILY:
            groups = [group for group in families(ids, largest) if len(group) > 1]
        for group in groups:
            rows = [int(first_rows[short[i]]) for i in group]
            requests.append(shared_prefixes([ids[i] for i in group], rows, special))
        waiting = sorted(set(waiting) - {short[i] for group in groups for i in group})
    for number in waiting:
        text = tokens[number]
        row = int(first_rows[number])
        requests += reading.requests(text.ids, text.word, row, special)
    return requests


def batches(sequences: Sequence[Sequences], most: int, enough: int) -> Iterator[list[Sequences]]:
    """Yield sequences in batches, the longest first: of at most ``most`` tokens, padding counted,
    or one sequence; with ``enough`` tokens a batch closes before a shorter sequence, which it would
    pad."""
    batch: list[Sequences] = []
    for one in sorted(sequences, key=len, reverse=True):
        size = len(batch) * len(batch[0]) if batch else 0
        if batch and (size + len(batch[0]) > most or (size >= enough and len(one) < len(batch[0]))):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def run(
    model: LanguageModel,
    requests: Sequence[ScoringRequest],
    options: ScoringOptions,
) -> Iterator[tuple[list[ScoringRequest], np.ndarray | None]]:
    """Yield batches with the values of their rows, (n_rows, 5); None where memory is too small."""
    if not requests:
        return
    sets = boundary_sets(model) if options.correction else None
    most = BATCH_TOKENS.get(model.device.type, BATCH_TOKENS["cpu"])
    # a table of float32 and its copies take at most half of what memory a GPU has left
    most_logits = free_bytes(model.device, 32 * MOST_LOGITS) // 32
    most = min(most, max(1, most_logits // model.n_vocabulary))

    def values_of(batch: list[ScoringRequest]) -> np.ndarray:
        return _values(model, batch, options, sets)

    for batch, values in in_batches(requests, values_of, model.device, most):
        if values is None:
            said = f"out of memory (1 x {len(batch[0])} tokens); using the others: its words have "
            warnings.warn(f"{said}no value", RuntimeWarning, stacklevel=2)
        yield batch, values


def in_batches(
    sequences: Sequence[Sequences],
    values_of: Callable[[list[Sequences]], Values],
    device: torch.device,
    batch_tokens: int | None = None,
) -> Iterator[tuple[list[Sequences], Values | None]]:
    """Yield batches of sequences, the longest first, with what ``values_of`` gives for each.

    Where memory runs out, this and later batches are halved, with a warning; None stands for the
    values of a single sequence that memory does not hold.
    """
    kind = "cuda" if device.type == "cuda" else "cpu"
    most = batch_tokens or BATCH_TOKENS[kind]
    waiting = list(batches(sequences, most, min(ENOUGH_TOKENS[kind], most)))[::-1]
    while waiting:
        batch = waiting.pop()
        size = len(batch) * len(batch[0])
        if len(batch) > 1 and size > most:
            waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
            continue
        values = None
        try:
            values = values_of(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        if values is None:  # the exception, whose frames hold tensors, is gone
            if kind == "cuda":
                torch.cuda.empty_cache()
            most = max(1, size // 2)
            if len(batch) > 1:
                said = f"out of memory ({len(batch)} x {len(batch[0])} tokens); using half of it"
                warnings.warn(said, RuntimeWarning, stacklevel=2)
                waiting.append(batch)
                continue
        yield batch, values


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python says that memory ran out."""
    texts = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    is_memory_error = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return is_memory_error or any(text in str(error) for text in texts)


@torch.inference_mode()
def _values(
    model: LanguageModel,
    batch: list[ScoringRequest],
    options: ScoringOptions,
    sets: torch.Tensor | None,
) -> np.ndarray:
    """Run one batch and return the values of its rows."""
    length = len(batch[0])
    places = np.concatenate([i * length + one.position for i, one in enumerate(batch)])
    # texts that share tokens read the same output more than once
    outputs, node = np.unique(places, return_inverse=True)
    target = np.concatenate([one.target for one in batch])
    with evaluating(model.network):
        logits = output_logits(model, network_inputs(model, batch), outputs)
    node_read = torch.from_numpy(node).to(logits.device)
    target_read = torch.from_numpy(target).to(logits.device)
    return row_values(logits, node_read, target_read, options, sets).cpu().numpy()


# The network: what it computes, its mode, inputs and hidden states


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Run a network without dropout and without past keys and values; restore both at the end."""
    config = network.config.get_text_config()
    training = [module for module in network.modules() if module.training]
    use_cache = getattr(config, "use_cache", None)
    for module in training:
        module.training = False
    # nothing is generated, so past keys and values would be wasted memory
    config.use_cache = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if use_cache is None:
            del config.use_cache
        else:
            config.use_cache = use_cache


def network_inputs(model: LanguageModel, batch: Sequence[ScoringRequest]) -> dict[str, Any]:
    """Return the tensors that the network takes, padded at the end to the longest request."""
    lengths = np.array([len(one) for one in batch])
    n = len(batch)
    length = int(lengths.max())
    config = model.network.config.get_text_config()
    if model.kind == "causal":
        # any token but the padding one, of which transformers would warn; what stands after the
        # text is not seen
        padding = 1 if getattr(config, "pad_token_id", None) == 0 else 0
    else:
        padding = model.tokenizer.pad_token_id or 0
    ids = np.full((n, length), padding, dtype=np.int64)
    for i, one in enumerate(batch):
        ids[i, : len(one)] = one.ids
        if one.masked[1]:
            ids[i, slice(*one.masked)] = model.tokenizer.mask_token_id
    inputs = {"input_ids": torch.from_numpy(ids).to(model.device)}
    if model.kind == "permutation":
        # every token is predicted from those before it (Yang et al. 2019)
        hidden = torch.ones(length, length, device=model.device).triu()
        inputs["perm_mask"] = hidden.expand(n, length, length)
        inputs["target_mapping"] = torch.eye(length, device=model.device).expand(n, length, length)
    elif model.kind != "causal":
        real = (np.arange(length) < lengths[:, None]).astype(np.int64)
        inputs["attention_mask"] = torch.from_numpy(real).to(model.device)
    elif any(one.parent is not None for one in batch):
        # texts that share tokens: positions and mask of a tree; padding sees itself, at position 0
        seen = np.tile(np.eye(length, dtype=bool), (n, 1, 1))
        depth = np.zeros((n, length), dtype=np.int64)
        for i, one in enumerate(batch):
            m = len(one)
            parent = np.arange(-1, m - 1) if one.parent is None else one.parent
            seen[i, :m, :m] = visible_tokens(parent)
            depth[i, :m] = np.arange(m) if one.depth is None else one.depth
        dtype = model.network.dtype
        lowest = torch.finfo(dtype).min
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), lowest)
        inputs["attention_mask"] = mask[:, None].to(model.device)
        inputs["position_ids"] = torch.from_numpy(depth).to(model.device)
    if getattr(config, "use_lang_emb", False) and getattr(config, "n_langs", 1) > 1:
        # a multilingual XLM reads its stated language, or English
        number = config.lang_id if getattr(config, "lang_id", None) is not None else 0
        number = (getattr(config, "lang2id", None) or {}).get("en", number)
        inputs["langs"] = torch.full_like(inputs["input_ids"], number)
    return inputs


def output_logits(
    model: LanguageModel, inputs: dict[str, Any], outputs: NDArray[np.int64]
) -> torch.Tensor:
    """Return the float32 logits (n_outputs, n_vocabulary) at these places of the inputs, counted
    over all rows.

    A hook gives the output layer only the hidden states of these places. Of a linear layer with
    weights of 16 bits the product is computed in float32, or it would be wrong by tenths of a nat.
    """
    read = torch.from_numpy(outputs)
    layer = model.network.get_output_embeddings()

    def select(_layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        hidden = given[0].flatten(0, 1)
        return (hidden[read.to(hidden.device)][None],)

    def in_float32(layer: Any, given: tuple[torch.Tensor, ...], _product: Any) -> torch.Tensor:
        hidden = given[0][0].to(layer.weight.device)
        if hidden.is_cuda:
            product = torch.mm(hidden, layer.weight.T, out_dtype=torch.float32)
        else:
            product = hidden.float() @ layer.weight.float().T
        return (product if layer.bias is None else product + layer.bias.float())[None]

    handles = [] if layer is None else [layer.register_forward_pre_hook(select)]
    plain = type(layer) is torch.nn.Linear and len(layer._forward_hooks) == 0
    if plain and layer.weight.dtype in (torch.float16, torch.bfloat16):
        handles.append(layer.register_forward_hook(in_float32))
    try:
        logits = model.network(**inputs).logits.flatten(0, 1).float()
    finally:
        for handle in handles:
            handle.remove()
    # a network that computes its logits without its output layer gives those of all places
    return logits if len(logits) == len(outputs) else logits[read.to(logits.device)]


def largest_family(model: LanguageModel) -> int:
    """Return how many tokens a tree of texts may have: 0 where a small one shows that a causal
    model does not follow mask and positions, else no more than its window, which counts the tokens
    of the input. That is tried once for a network, and again when it was edited in memory."""
    network = model.network
    # what an edit may change: configuration, classes, replaced methods and hooks
    structure = [str(vars(network.config.get_text_config()))]
    for module in network.modules():
        replaced = id(vars(module).get("forward"))
        hooks = [*module._forward_pre_hooks, *module._forward_hooks]
        structure.append(f"{type(module)} {replaced} {hooks}")
    if network in tried and tried[network][0] == structure:
        return tried[network][1]
    # a few ordinary tokens
    ids = np.random.default_rng(0).integers(model.n_vocabulary // 4, model.n_vocabulary, size=6)
    path = [0, 3, 4, 5]
    none = np.array([], dtype=np.int64)

    def logits(tokens: np.ndarray, **tree: np.ndarray) -> torch.Tensor:
        request = ScoringRequest(tokens, none, none, none, **tree)  # type: ignore[arg-type]
        inputs = network_inputs(model, [request])
        with torch.inference_mode(), evaluating(network):
            return output_logits(model, inputs, np.arange(len(tokens)))

    alone = logits(ids[path])
    in_a_row = logits(ids)[path]
    largest = 0
    # a model that takes no such mask or positions raises
    with suppress(RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        # a tree of the texts 0 1 2 and 0 3 4 5
        depth = np.array([0, 1, 2, 1, 2, 3])
        parent = np.array([-1, 0, 1, 0, 3, 4])
        together = logits(ids, depth=depth, parent=parent)[path]
        if (together - alone).abs().max() <= 0.02 * (in_a_row - alone).abs().max():
            config = network.config.get_text_config()
            names = ("sliding_window", "window_size", "attention_chunk_size")
            windows = [getattr(config, name, None) for name in names]
            largest = min([LARGEST_FAMILY, *(size for size in windows if isinstance(size, int))])
    tried[network] = structure, largest
    return largest


# Log-probabilities


def boundary_sets(model: LanguageModel) -> torch.Tensor:
    """Return (n_vocabulary, 2) columns of zeros and ones: the tokens that end a word (white space,
    end of text), and those that cannot begin after white space."""
    begins = begins_with_space(model.tokenizer)
    assert begins is not None
    spaced = torch.zeros(model.n_vocabulary, dtype=torch.bool)
    spaced[: len(begins)] = torch.from_numpy(begins)
    inside = ~spaced
    if model.tokenizer.eos_token_id is not None:
        spaced[model.tokenizer.eos_token_id] = True
    return torch.stack([spaced, inside], dim=1).float().to(model.device)


def row_values(
    logits: torch.Tensor,
    node: torch.Tensor,
    target: torch.Tensor,
    options: ScoringOptions,
    sets: torch.Tensor | None,
) -> torch.Tensor:
    """Return the values of every row, (n_rows, 5) in float64 (float32 on MPS), NaN where nothing
    was asked.

    ``logits`` (n, n_vocabulary) are overwritten; ``node`` (n_rows,) is the one of them that each
    row is read from, ``target`` (n_rows,) the token whose probability is wanted, below 0 for none.
    """
    exact = float_type(node.device)
    values = torch.full((len(node), N_VALUES), torch.nan, dtype=exact, device=node.device)
    logits -= logits.amax(dim=1, keepdim=True)
    if options.temperature != 1:
        logits /= options.temperature
    target_logits = logits[node, target.clamp(min=0)].masked_fill(target < 0, torch.nan)
    if options.rank:  # one more than the tokens that the model finds likelier
        likelier = 1.0 + (logits[node] > target_logits[:, None]).sum(dim=1).to(exact)
        values[:, RANK] = likelier.masked_fill(target_logits.isnan(), torch.nan)
    weights = logits.exp_()  # of the tokens, as shares of the likeliest one's
    mass = weights.sum(dim=1).to(exact)
    values[:, LOG_P] = target_logits.to(exact) - mass.log()[node]
    if sets is not None:
        share = (weights @ sets.to(node.device)).to(exact).log() - mass.log()[:, None]
        values[:, LOG_END : LOG_INSIDE + 1] = share[node]
    if options.entropy:
        spread = torch.special.entr(weights).sum(dim=1).to(exact)
        values[:, ENTROPY] = (mass.log() + spread / mass)[node]
    return values
