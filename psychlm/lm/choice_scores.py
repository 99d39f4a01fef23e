"""The log-probability that a model gives each choice of an item, and how many tokens the choice has.

Three kinds of model, one result. A classifier gives the choices the probabilities of its labels; a multiple-choice head
scores each choice by itself, and the scores of an item are normalised to probabilities; a language model gives the
probability of the choice's tokens after the prompt (causal models: left to right; masked models: each token with the
rest of its word masked, as in :mod:`psychlm.lm.scoring_requests`). Language models read a prompt once for all its choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from psychlm.lm._load import LanguageModel, ModelError
from psychlm.lm.answerers import Answerer
from psychlm.lm.forward import (
    BATCH_TOKENS,
    ENOUGH_TOKENS,
    LOG_P,
    Wanted,
    batches,
    out_of_memory,
    plan_requests,
    resolve_options,
    run,
)
from psychlm.lm.labels import outputs_of
from psychlm.lm.scoring_requests import ScoringRequest
from psychlm.lm.tokens import UNKNOWN, Document, Tokens, tokenize

N_COLUMNS = 4
NATS, N_TOKENS, TRUNCATED, UNKNOWN_TOKENS = range(
    N_COLUMNS
)  # columns of the scores of a choice; the last two 0 or 1

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """What a model reads of an item."""

    item: Hashable  # for errors
    prompt: str
    choices: tuple[str, ...]
    hypothesis: str | None = None  # second sentence of a pair

    def __len__(self) -> int:
        return len(self.prompt) + len(self.hypothesis or "") + max(map(len, self.choices))


@dataclass(frozen=True, eq=False)
class _Input:
    """One tokenised input of a classifier or a head."""

    item: Hashable
    row: int
    ids: list[int]
    types: list[int] | None  # which sentence each token belongs to, for models that ask

    def __len__(self) -> int:
        return len(self.ids)


def scores(
    model: Answerer | LanguageModel, questions: Sequence[Question], batch_tokens: int | None = None
) -> list[Scores]:
    """Return for each question the scores of its choices.

    Returns
    -------
    list of ndarray, shape (n_choices, 4)
        Columns: log-probability in nats, tokens it sums over (0 for classifiers and heads), whether the prompt had to
        be cut to fit the model, whether the tokenizer did not know a character of the choice.

    Raises
    ------
    ModelError
        If the choices do not match a classifier's labels, a choice does not fit the model or memory, or a score is
        not a finite number; the message names the item.
    """
    if isinstance(model, LanguageModel):
        found = _language_scores(model, questions, batch_tokens)
    elif model.task == "classifier":
        found = _classifier_scores(model, questions, batch_tokens)
    else:
        found = _head_scores(model, questions, batch_tokens)
    for question, rows in zip(questions, found, strict=True):
        if not np.isfinite(rows[:, NATS]).all():
            raise ModelError(
                f"{model.name} gives item {question.item!r} the log-probabilities {rows[:, NATS].tolist()}: NaN or "
                "infinity, as diverged weights do; train it again, or open it with dtype='float32'"
            )
    return found


def _classifier_scores(
    model: Answerer, questions: Sequence[Question], batch_tokens: int | None
) -> list[Scores]:
    outputs = {q.choices: outputs_of(q.choices, model.labels, model.name) for q in questions}
    texts = [(question.prompt, question.hypothesis) for question in questions]
    inputs, cut = _encoded(model, [question.item for question in questions], texts)
    log_p = log_softmax(
        _logits(model, inputs, batch_tokens, lambda x: model.network(**x).logits), axis=1
    )
    found: list[Scores] = [np.zeros((len(question.choices), N_COLUMNS)) for question in questions]
    asked = np.array([list(outputs).index(question.choices) for question in questions])
    for kind, own in enumerate(outputs.values()):
        rows = np.flatnonzero(asked == kind)
        nats = np.stack([logsumexp(log_p[rows][:, some], axis=1) for some in own], axis=1)
        for row, values in zip(rows, nats, strict=True):
            found[row][:, NATS], found[row][:, TRUNCATED] = values, cut[row]
    return found


def _head_scores(
    model: Answerer, questions: Sequence[Question], batch_tokens: int | None
) -> list[Scores]:
    contexts = [
        " ".join(filter(None, (question.prompt, question.hypothesis))) for question in questions
    ]
    pairs = [
        (context, c) for context, q in zip(contexts, questions, strict=True) for c in q.choices
    ]
    inputs, cut = _encoded(model, [q.item for q in questions for _ in q.choices], pairs)

    def alone(
        tensors: dict[str, torch.Tensor],
    ) -> torch.Tensor:  # every choice as an item of one choice
        return model.network(**{name: tensor[:, None] for name, tensor in tensors.items()}).logits

    logits = _logits(model, inputs, batch_tokens, alone)[:, 0]
    found, first = [], 0
    for question in questions:
        own = slice(first, first + len(question.choices))
        rows = np.zeros((len(question.choices), N_COLUMNS))
        rows[:, NATS], rows[:, TRUNCATED] = log_softmax(logits[own]), cut[own].any()
        found.append(rows)
        first = own.stop
    return found


def _encoded(
    model: Answerer, items: Sequence[Hashable], texts: Sequence[tuple[str, str | None]]
) -> tuple[list[_Input], NDArray[np.bool_]]:
    """Tokenise texts and pairs; the longer part of what does not fit is cut at its end, and told."""
    cut = np.zeros(len(texts), dtype=bool)
    inputs: list[_Input | None] = [None] * len(texts)
    for paired in (False, True):
        rows = [i for i, (_, second) in enumerate(texts) if (second is not None) == paired]
        if not rows:
            continue
        both = [[texts[i][0] for i in rows]] + ([[texts[i][1] for i in rows]] if paired else [])
        encoded = model.tokenizer(*both, return_attention_mask=False, verbose=False)
        long = [k for k, ids in enumerate(encoded["input_ids"]) if len(ids) > model.context_tokens]
        if long:
            cut[[rows[k] for k in long]] = True
            shorter = model.tokenizer(
                *[[part[k] for k in long] for part in both],
                return_attention_mask=False,
                truncation="longest_first",
                max_length=model.context_tokens,
            )
        types = encoded.get("token_type_ids")
        for k, i in enumerate(rows):
            source, place = (shorter, long.index(k)) if cut[i] else (encoded, k)
            own_types = None if types is None else source["token_type_ids"][place]
            inputs[i] = _Input(items[i], i, source["input_ids"][place], own_types)
    return [one for one in inputs if one is not None], cut


@torch.inference_mode()
def _logits(
    model: Answerer,
    inputs: Sequence[_Input],
    batch_tokens: int | None,
    forward: Callable[[dict[str, torch.Tensor]], torch.Tensor],
) -> Scores:
    """Return the outputs for every input, shape (n_inputs, n_outputs); a batch that memory does not hold is halved."""
    device = "cuda" if model.device.type == "cuda" else "cpu"
    most = batch_tokens or BATCH_TOKENS[device]
    if model.network.config.get_text_config().pad_token_id is None:
        most = 1  # a model that cannot tell padding from text reads its texts one by one
    waiting = list(batches(inputs, most, min(ENOUGH_TOKENS[device], most)))[::-1]
    values: Scores | None = None
    while waiting:
        batch = waiting.pop()
        try:
            logits = forward(_padded(model, batch)).double().cpu().numpy()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(batch) == 1:
                raise ModelError(
                    f"out of memory with item {batch[0].item!r} by itself ({len(batch[0])} tokens) in {model.name}; "
                    "use a smaller model, or a device with more memory"
                ) from error
            waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
            continue
        values = np.empty((len(inputs), logits.shape[1])) if values is None else values
        values[[one.row for one in batch]] = logits
    return values if values is not None else np.empty((0, 0))


def _padded(model: Answerer, batch: Sequence[_Input]) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, padded on the side on which the tokenizer pads."""
    tokenizer, length = model.tokenizer, max(map(len, batch))
    left = tokenizer.padding_side == "left"
    ids = np.full((len(batch), length), tokenizer.pad_token_id or 0, dtype=np.int64)
    types, mask = np.full_like(ids, tokenizer.pad_token_type_id), np.zeros_like(ids)
    for i, one in enumerate(batch):
        own = slice(length - len(one), length) if left else slice(0, len(one))
        ids[i, own], mask[i, own] = one.ids, 1
        if one.types is not None:
            types[i, own] = one.types
    tensors = {"input_ids": ids, "attention_mask": mask} | (
        {} if batch[0].types is None else {"token_type_ids": types}
    )
    return {name: torch.from_numpy(tensor).to(model.device) for name, tensor in tensors.items()}


def _language_scores(
    model: LanguageModel, questions: Sequence[Question], batch_tokens: int | None
) -> list[Scores]:
    options = resolve_options(model)
    texts = [
        _document(question.prompt, choice) for question in questions for choice in question.choices
    ]
    n_before = [
        len(re.findall(r"\S+", question.prompt)) for question in questions for _ in question.choices
    ]
    tokens = tokenize(texts, model.tokenizer)
    stop = model.kind == "masked" and model.tokenizer.sep_token_id is not None
    room = options.context_tokens - (options.bos is not None) - stop
    kept, cut = _fitted(tokens, n_before, questions, room, model)
    first_rows = np.concatenate([[0], np.cumsum([len(one.ids) + 1 for one in kept])])
    owner = np.repeat(np.arange(len(kept)), np.diff(first_rows))
    chosen = np.concatenate(
        [np.append(one.word >= n, False) for one, n in zip(kept, n_before, strict=True)]
    )
    nats = np.full(len(chosen), np.nan)
    passes = [
        part
        for one in plan_requests(kept, first_rows, model, options)
        if (part := _only(one, chosen)) is not None
    ]
    for batch, values in run(model, passes, Wanted(None), batch_tokens):
        if values is None:
            item = [question.item for question in questions for _ in question.choices][
                owner[batch[0].row[0]]
            ]
            raise ModelError(
                f"out of memory with item {item!r} by itself in {model.name}; use a smaller model"
            )
        nats[np.concatenate([one.row for one in batch])] = values[:, LOG_P]
    columns = np.zeros((len(kept), N_COLUMNS))
    columns[:, NATS] = np.bincount(owner[chosen], weights=nats[chosen], minlength=len(kept))
    columns[:, N_TOKENS] = np.bincount(owner[chosen], minlength=len(kept))
    columns[:, TRUNCATED] = cut
    columns[:, UNKNOWN_TOKENS] = [
        any(k >= n and why == UNKNOWN for k, why in one.reasons.items())
        for one, n in zip(kept, n_before, strict=True)
    ]
    return np.split(columns, np.cumsum([len(question.choices) for question in questions])[:-1])


def _document(prompt: str, choice: str) -> Document:
    """Return a prompt and a choice as one text, in which no word belongs to both."""
    found = [(m.start(), m.end()) for m in re.finditer(r"\S+", prompt)]
    found += [(m.start() + len(prompt), m.end() + len(prompt)) for m in re.finditer(r"\S+", choice)]
    starts, ends = np.array(found, dtype=np.int64).reshape(-1, 2).T
    none: Any = np.zeros(len(starts), dtype=np.int64)
    return Document(prompt + choice, starts, ends, none, none.astype(bool))


def _fitted(
    tokens: Sequence[Tokens],
    n_before: Sequence[int],
    questions: Sequence[Question],
    room: int,
    model: LanguageModel,
) -> tuple[list[Tokens], NDArray[np.bool_]]:
    """Cut texts at their beginning to fit the model, all choices of an item after the same prompt; say which were."""
    counts = np.array([len(question.choices) for question in questions])
    first = np.cumsum(counts) - counts
    n_prompt = np.array(
        [int((one.word < n).sum()) for one, n in zip(tokens, n_before, strict=True)]
    )
    n_choice = np.array([len(one.ids) for one in tokens]) - n_prompt
    longest = np.maximum.reduceat(n_choice, first)
    unfit = (np.minimum.reduceat(n_choice, first) == 0) | (longest > room)
    if unfit.any():
        names = [question.item for question, wrong in zip(questions, unfit, strict=True) if wrong]
        raise ModelError(
            f"{len(names)} items, {names[:5]}, have a choice of no tokens or of more than the {room} that {model.name} "
            "takes; leave them out, or use another model"
        )
    drop = np.maximum(0, n_prompt - np.repeat(room - longest, counts))
    kept = [
        replace(one, ids=one.ids[n:], word=one.word[n:]) if n else one
        for one, n in zip(tokens, drop, strict=True)
    ]
    return kept, drop > 0


def _only(one: ScoringRequest, wanted: NDArray[np.bool_]) -> ScoringRequest | None:
    """Return a pass that gives the wanted rows only, or None where it gives none of them."""
    keep = wanted[one.row]
    if not keep.any():
        return None
    return replace(one, position=one.position[keep], target=one.target[keep], row=one.row[keep])
