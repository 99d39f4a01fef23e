"""From documents to values per word: tokens, passes, batches, and the sums over a word's tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from psychlm.lm.alignment import Document, Tokens, tokenize
from psychlm.lm.batching import run
from psychlm.lm.boundaries import begins_with_space, boundary_sets
from psychlm.lm.load import LanguageModel, ModelError
from psychlm.lm.masked import both_sides, left_side
from psychlm.lm.network import largest_family
from psychlm.lm.output_layer import ENTROPY, LOG_END, LOG_INSIDE, LOG_P, N_VALUES, RANK, Wanted
from psychlm.lm.passes import Frame, Pass
from psychlm.lm.prefixes import LARGEST_FAMILY, families, family_pass
from psychlm.lm.windows import any_order, left_to_right

Correction = Literal["pimentel-meister"] | None

COLUMNS = ("surprisal_bits", "n_tokens", "entropy_bits", "rank")

NO_CONTEXT = "nothing stands before this word (bos=None)"
NO_MEMORY = "out of memory with this text by itself"
NOT_A_NUMBER = "the model gave NaN"
IMPOSSIBLE = "the model gives this word no probability at all"


@dataclass(frozen=True)
class Scheme:
    """How words are scored: everything the numbers depend on beside the model and the text."""

    correction: Correction  # what is applied: None too where the tokenizer does not mark beginnings of words
    bos: str | None  # token before the text
    bos_in_windows: bool  # whether it also stands before windows inside the text
    context_tokens: int  # longest input
    stride: int  # tokens by which windows advance, at most, and that stand before a word, at least
    entropy: bool
    rank: bool

    def describe(self, model: LanguageModel) -> dict[str, Any]:
        """Return what every output says of itself."""
        said = {"model": model.name, "revision": model.revision, "kind": model.kind, "base": 2}
        dtype = str(model.network.dtype).removeprefix("torch.")
        return (
            said
            | {"dtype": dtype}
            | {name: value for name, value in asdict(self).items() if name not in COLUMNS[2:]}
        )

    def identity(self, model: LanguageModel) -> str:
        """Return a text that differs where the numbers could."""
        return json.dumps(self.describe(model) | asdict(self), sort_keys=True)


def scheme(
    model: LanguageModel,
    correction: Correction,
    stride: int | None,
    bos: str | None,
    context: int | None,
    entropy: bool,
    rank: bool,
) -> Scheme:
    """Settle the options of :func:`psychlm.lm.surprisal` for a model."""
    if correction not in ("pimentel-meister", None):
        raise ModelError(f"correction {correction!r} is unknown; choose 'pimentel-meister' or None")
    if model.kind in ("masked", "left-masked") or begins_with_space(model.tokenizer) is None:
        correction = None
    tokens = min(context or model.context_tokens, model.context_tokens)
    start = _start_token(model, bos)
    room = tokens - (start is not None)
    if room < 2:
        raise ModelError(
            f"context={context} leaves no room for a text; the model takes {model.context_tokens} tokens"
        )
    return Scheme(
        correction,
        start,
        _adds_start_token(model, start),
        tokens,
        stride or room // 2,
        entropy,
        rank,
    )


def _start_token(model: LanguageModel, bos: str | None) -> str | None:
    """Return the token before a text: the one asked for, or the tokenizer's own of that role."""
    tokenizer = model.tokenizer
    if bos == "auto":
        own = tokenizer.cls_token if model.kind == "masked" else None
        return own or tokenizer.bos_token or tokenizer.eos_token or tokenizer.cls_token
    if bos is not None and bos not in tokenizer.get_vocab():
        raise ModelError(
            f"bos={bos!r} is no token of {model.name}; its own are {tokenizer.all_special_tokens}"
        )
    return bos


def _adds_start_token(model: LanguageModel, start: str | None) -> bool:
    """Whether the tokenizer puts the start token before everything, so that the model has read nothing without it."""
    if start is None or model.kind in ("masked", "left-masked"):
        return start is not None
    ids = model.tokenizer.encode("a")
    return bool(ids) and ids[0] == model.tokenizer.convert_tokens_to_ids(start)


@dataclass(frozen=True, eq=False)
class WordScores:
    """The values of a document's words."""

    values: NDArray[np.float64]  # (n_words, 4), columns as in COLUMNS
    reasons: dict[int, str]  # words without a value, and why


def score(
    texts: list[Document], model: LanguageModel, how: Scheme, batch_tokens: int | None = None
) -> Iterator[tuple[list[tuple[int, WordScores]], int]]:
    """Yield, batch by batch, the documents that are done, with the tokens read in that batch.

    The first item yielded holds no document, and the number of tokens to read in all.
    """
    tokens = tokenize(texts, model.tokenizer)
    counts = np.array([len(one.ids) for one in tokens])
    first_rows = np.concatenate([[0], np.cumsum(counts + 1)])
    passes = plan(tokens, first_rows, model, how)
    yield [], sum(map(len, passes))
    begins = begins_with_space(model.tokenizer) if how.correction else None
    wanted = Wanted(None if begins is None else boundary_sets(model, begins), how.entropy, how.rank)
    rows = np.full((first_rows[-1], N_VALUES), np.nan)
    waiting = np.zeros(len(texts), dtype=np.int64)
    lacking_memory: set[int] = set()
    owners = [np.unique(np.searchsorted(first_rows, one.row, side="right") - 1) for one in passes]
    for owner in owners:
        waiting[owner] += 1
    owner_of = dict(zip(map(id, passes), owners, strict=True))

    def done(number: int) -> tuple[int, WordScores]:
        own = rows[first_rows[number] : first_rows[number + 1]]
        return number, _words(
            texts[number], tokens[number], own, begins, how, number in lacking_memory
        )

    yield [done(int(number)) for number in np.flatnonzero(waiting == 0)], 0
    for batch, values in run(model, passes, wanted, batch_tokens):
        finished = []
        for one in batch:
            waiting[owner_of[id(one)]] -= 1
            finished += [int(number) for number in owner_of[id(one)] if waiting[number] == 0]
        if values is None:
            lacking_memory |= {int(number) for number in owner_of[id(batch[0])]}
        else:
            rows[np.concatenate([one.row for one in batch])] = values
        yield [done(number) for number in finished], sum(map(len, batch))


def plan(
    tokens: list[Tokens], first_rows: NDArray[np.int64], model: LanguageModel, how: Scheme
) -> list[Pass]:
    """Return the passes in which a model reads its documents."""
    find = model.tokenizer.convert_tokens_to_ids
    start = None if how.bos is None else int(find(how.bos))
    stop = model.tokenizer.sep_token_id if model.kind == "masked" else None
    ends = how.correction is not None
    frame = Frame(start, stop, how.bos_in_windows, how.context_tokens, how.stride, ends)
    known = [number for number, one in enumerate(tokens) if len(one.ids)]
    if model.kind == "causal" and start is not None:
        return _with_families(tokens, first_rows, model, frame, known)
    one_text: Any = {"causal": left_to_right, "masked": both_sides, "left-masked": left_side}.get(
        model.kind
    )
    extra: tuple[int, ...] = ()
    if model.kind == "permutation":
        blank = model.tokenizer.mask_token_id
        one_text, extra = any_order, (blank if blank is not None else 0,)
    return [
        one
        for number in known
        for one in one_text(
            tokens[number].ids, tokens[number].word, int(first_rows[number]), frame, *extra
        )
    ]


def _with_families(
    tokens: list[Tokens],
    first_rows: NDArray[np.int64],
    model: LanguageModel,
    frame: Frame,
    known: list[int],
) -> list[Pass]:
    """Return the passes of a causal model, texts that begin alike in one where the model allows it."""
    short = [number for number in known if len(tokens[number].ids) < frame.context_tokens]
    ids = [tokens[number].ids for number in short]
    shared = [[short[i] for i in group] for group in families(ids) if len(group) > 1]
    if shared and (largest := largest_family(model)) < LARGEST_FAMILY:
        shared = (
            [[short[i] for i in group] for group in families(ids, largest) if len(group) > 1]
            if largest
            else []
        )
    alone = set(known) - {number for group in shared for number in group}
    passes = [
        family_pass([tokens[i].ids for i in group], [int(first_rows[i]) for i in group], frame)
        for group in shared
    ]
    for number in sorted(alone):
        passes += left_to_right(
            tokens[number].ids, tokens[number].word, int(first_rows[number]), frame
        )
    return passes


def _words(
    document: Document,
    tokens: Tokens,
    rows: NDArray[np.float64],
    begins: NDArray[np.bool_] | None,
    how: Scheme,
    lacked_memory: bool,
) -> WordScores:
    """Sum the rows of a document's tokens over its words, with the correction where it is wanted."""
    n_words = len(document.ends)
    values = np.full((n_words, len(COLUMNS)), np.nan)
    log_p, first = rows[:-1, LOG_P], np.searchsorted(tokens.word, np.arange(n_words))
    counted = ~tokens.trailing if begins is not None else np.ones(len(log_p), dtype=bool)
    nats = np.bincount(tokens.word[counted], weights=log_p[counted], minlength=n_words).astype(
        np.float64
    )
    if begins is not None:
        boundary = _boundaries(document, tokens, rows, begins, first)
        nats = nats + boundary[1:] - boundary[:-1]
    values[:, 0] = -nats / np.log(2)
    values[:, 1] = np.bincount(tokens.word[~tokens.trailing], minlength=n_words)
    values[:, 2], values[:, 3] = rows[first, ENTROPY] / np.log(2), rows[first, RANK]
    reasons = dict(tokens.reasons)
    for word in np.flatnonzero(np.isnan(values[:, 0])):
        reasons.setdefault(int(word), _why(int(word), how, lacked_memory))
    for word in np.flatnonzero(np.isinf(values[:, 0])):
        reasons.setdefault(int(word), IMPOSSIBLE)
    lost = [word for word, why in reasons.items() if why != IMPOSSIBLE]
    values[np.ix_(lost, [0, 2, 3])] = np.nan
    return WordScores(values, reasons)


def _why(word: int, how: Scheme, lacked_memory: bool) -> str:
    if lacked_memory:
        return NO_MEMORY
    return NO_CONTEXT if how.bos is None and word == 0 else NOT_A_NUMBER


def _boundaries(
    document: Document,
    tokens: Tokens,
    rows: NDArray[np.float64],
    begins: NDArray[np.bool_],
    first: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return log p(a word ends here | what stands before) for each end of a word, nats, shape (n_words + 1,).

    0 where no white space parts two words: nothing in the tokens tells such words apart. Where a text's first token
    begins without a space, the model knew it would, and what is shared out is the mass of all such tokens.
    """
    n_words, n_read = len(document.ends), int((~tokens.trailing).sum())
    boundary = np.zeros(n_words + 1)
    gap = document.starts[1:] > document.ends[:-1]
    boundary[1:-1] = np.where(gap, rows[first[1:], LOG_END], 0.0)
    boundary[-1] = rows[n_read, LOG_END]
    if len(tokens.ids):
        boundary[0] = rows[0, LOG_END if begins[tokens.ids[0]] else LOG_INSIDE]
    return boundary
