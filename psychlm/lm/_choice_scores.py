"""Compute the log-probability that a model gives each choice of an item.

A classifier gives the choices the probabilities of its labels. A multiple-choice head scores each
choice by itself, and the scores of an item are normalised to probabilities. A language model gives
the probability of the choice's tokens after the prompt: from left to right, or, where it predicts
masked tokens, each token with the rest of its word masked (:mod:`psychlm.lm.scoring_requests`), or,
in an encoder-decoder, from the prompt in the encoder. It reads a prompt once for all choices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from psychlm.cluster import progress_bar
from psychlm.lm._errors import ModelError
from psychlm.lm._load import HEADS, LanguageModel
from psychlm.lm.cache import ResultStore, key
from psychlm.lm.forward import (
    LOG_P,
    ScoringOptions,
    evaluating,
    in_batches,
    plan_requests,
    resolve_options,
    rows_of,
    run,
)
from psychlm.lm.prompts import Prompt, fill_prompts, outputs_of
from psychlm.lm.scoring_requests import READINGS
from psychlm.lm.tokens import UNKNOWN, Document, Tokens, check_characters, tokenize

SCHEME = 3  # raised whenever the cached scores of a question would change
QUESTIONS_AT_ONCE = {"cpu": 256, "cuda": 4096}  # scored between two writes to the cache

# Columns of the scores of a choice: log-probability in nats; tokens that it sums over (0 for
# classifiers and heads); 1 where the prompt was cut to fit the model; 1 where the tokenizer does
# not know a character of the choice; 1 where it joins the end of the prompt with the beginning of
# the choice in one token.
N_COLUMNS = 5
NATS, N_TOKENS, TRUNCATED, UNKNOWN_TOKENS, JOINED = range(N_COLUMNS)

Scores = NDArray[np.float64]  # (n_choices, N_COLUMNS)
Outputs: TypeAlias = Sequence[NDArray] | NDArray


@dataclass(frozen=True)
class Question:
    """What a model reads of an item."""

    item: Hashable  # for error messages
    prompt: str
    choices: tuple[str, ...]
    hypothesis: str | None = None  # second sentence of a pair

    def __len__(self) -> int:
        return len(self.prompt) + len(self.hypothesis or "") + max(map(len, self.choices))


def score_items(
    items: pd.DataFrame, model: LanguageModel, normalise: str, prompt: str | Prompt, **how: Any
) -> pd.DataFrame:
    """Return what :func:`psychlm.lm.choice_logprobs` does; ``how`` is that of ``cached_scores``."""

    def score(questions: list[Question]) -> list[Scores]:
        return cached_scores(questions, model, **how)

    ids = items["item_id"].tolist()
    start = None
    if model.kind in HEADS:
        seconds = items.get("hypothesis", pd.Series(None, items.index, dtype=object))
        seconds = seconds.where(seconds.map(lambda text: isinstance(text, str)), None)
        rows = zip(ids, items["prompt"], items["choices"].map(tuple), seconds, strict=True)
        questions = [Question(*row) for row in rows]
    else:
        filled = fill_prompts(items, prompt, model.tokenizer)
        start = scoring_options(model, how["bos"]).bos
        questions = [  # a chat template may write the token that is put before every text
            Question(item, before.removeprefix(start or ""), added)
            for item, (before, added, _) in zip(ids, filled, strict=True)
        ]
    scores = score(questions)
    values = [one[:, NATS] for one in scores]
    if model.kind not in HEADS:
        if normalise == "token":
            values = [one[:, NATS] / one[:, N_TOKENS] for one in scores]
        elif normalise in ("character", "byte"):  # without the white space before a choice
            for row, q in enumerate(questions):
                texts = [choice.strip() for choice in q.choices]
                read = [text.encode() if normalise == "byte" else text for text in texts]
                values[row] = values[row] / np.array([len(text) for text in read])
        elif normalise == "unconditional":  # minus the log-probability after a neutral prompt
            neutral = [(after, choice) for _, choices, after in filled for choice in choices]
            bare = {pair: Question(pair[1].strip(), pair[0], (pair[1],)) for pair in neutral}
            alone = dict(zip(bare, score(list(bare.values())), strict=True))
            values = [
                nats - [alone[after, choice][0, NATS] for choice in choices]
                for nats, (_, choices, after) in zip(values, filled, strict=True)
            ]
    padded = np.array(list(zip_longest(*values, fillvalue=np.nan))).T  # items x choices
    table = pd.DataFrame(padded, index=pd.Index(ids, name="item")).rename_axis(columns="choice")
    table.attrs = {"model": model.name, "revision": model.revision, "normalise": normalise}
    table.attrs |= {"prompt": str(prompt), "bos": start}
    marks = {"truncated": TRUNCATED, "unknown": UNKNOWN_TOKENS, "joined": JOINED}
    for name, column in marks.items():
        table.attrs[name] = [i for i, r in zip(ids, scores, strict=True) if r[:, column].any()]
    if model.kind not in HEADS:
        table.attrs["spaced"] = [
            q.item for q in questions if any("  " in q.prompt[-1:] + c[:2] for c in q.choices)
        ]
    return table


def cached_scores(
    questions: Sequence[Question],
    model: LanguageModel,
    bos: str | None,
    cache: bool,
    progress: bool,
) -> list[Scores]:
    """Read scores from the cache; compute the others, the longest first, and store each piece."""
    # The key of a question holds all that its scores depend on.
    revision = model.revision
    identity: dict[str, Any] = {"scheme": SCHEME, "revision": revision, "kind": model.kind}
    identity |= {"dtype": str(model.network.dtype), "context_tokens": model.context_tokens}
    identity |= {"labels": model.labels}
    if model.kind not in HEADS:
        identity |= asdict(scoring_options(model, bos))
    text = json.dumps(identity, sort_keys=True)
    keys = [key(text, json.dumps([q.prompt, q.hypothesis, q.choices])) for q in questions]
    with ResultStore(on=cache and revision is not None) as store:
        sizes = [(len(q.choices), N_COLUMNS) for q in questions]
        stored = store.get(dict(zip(keys, sizes, strict=True)))
        scores = {name: rows for name, (rows, _) in stored.items()}
        missing = {k: q for k, q in zip(keys, questions, strict=True) if k not in scores}
        waiting = sorted(missing, key=lambda name: len(missing[name]), reverse=True)
        size = QUESTIONS_AT_ONCE["cuda" if model.device.type == "cuda" else "cpu"]
        with progress_bar(progress, f"items through {model.name}", len(waiting)) as advance:
            for piece in [waiting[i : i + size] for i in range(0, len(waiting), size)]:
                rows = score_questions(model, [missing[k] for k in piece], bos)
                fresh = dict(zip(piece, rows, strict=True))
                store.put((name, values, {}) for name, values in fresh.items())
                scores |= fresh
                advance(len(piece))
    return [scores[name] for name in keys]


def score_questions(
    model: LanguageModel, questions: Sequence[Question], bos: str | None = "auto"
) -> list[Scores]:
    """Return for each question the scores of its choices; errors name the item."""
    for question in questions:
        texts = (question.prompt, question.hypothesis or "", *question.choices)
        check_characters(f"item {question.item!r}", "".join(texts))
    if model.kind in HEADS:
        scores = _score_by_head(model, questions)
    elif model.kind == "encoder-decoder":
        scores = _score_by_encoder_decoder(model, questions, bos)
    else:
        scores = _score_by_language_model(model, questions, bos)
    for question, rows in zip(questions, scores, strict=True):
        if not np.isfinite(rows[:, NATS]).all():
            given = rows[:, NATS].tolist()
            said = f"{model.name} gives item {question.item!r} the log-probabilities {given}: NaN "
            said += "or infinity, as diverged weights do; train it again, or open it with dtype="
            raise ModelError(f"{said}'float32'")
    return scores


@dataclass(frozen=True, eq=False)
class _Input:
    """One tokenised input; its length is what batches are made by."""

    row: int
    item: Hashable
    fields: dict[str, list[int]]  # the tokenizer's output: ids, and token types if needed
    choices: list[list[int]]  # the tokens that an encoder-decoder's decoder reads

    def __len__(self) -> int:
        read = len(self.fields["input_ids"]) + max(map(len, self.choices), default=0)
        return read * max(1, len(self.choices))


def _outputs(
    model: LanguageModel,
    inputs: Sequence[_Input],
    outputs_of_batch: Callable[[list[_Input], dict[str, torch.Tensor]], Outputs],
) -> list[NDArray]:
    """Return the outputs for the rows of the inputs, in padded batches, or one by one without
    padding."""
    pads = model.network.config.get_text_config().pad_token_id is not None

    def run_batch(batch: list[_Input]) -> Outputs:
        fields = {name: [one.fields[name] for one in batch] for name in batch[0].fields}
        tensors = model.tokenizer.pad(fields, padding=pads, return_tensors="pt")
        tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        with torch.inference_mode(), evaluating(model.network):
            return outputs_of_batch(batch, tensors)

    values: dict[int, NDArray] = {}
    for batch, outputs in in_batches(inputs, run_batch, model.device, None if pads else 1):
        if outputs is None:
            raise _too_large(batch[0].item, model.name)
        values.update(zip((one.row for one in batch), outputs, strict=True))
    return [values[row] for row in range(len(inputs))]


def _too_large(item: Hashable, name: str) -> ModelError:
    said = f"out of memory with item {item!r} by itself in {name}; use a smaller model, or a "
    return ModelError(f"{said}device with more memory")


def _score_by_head(model: LanguageModel, questions: Sequence[Question]) -> list[Scores]:
    """Return the log-probabilities that a classifier gives choices, which reads a text or a pair
    once, or a multiple-choice head, which reads the prompt with each choice."""
    classifies = model.kind == "classifier"
    labels = {
        q.choices: outputs_of(q.choices, model.labels, model.name) for q in questions if classifies
    }
    texts: list[tuple[int, str, str | None]] = []  # question, text, and the second of a pair
    for number, q in enumerate(questions):
        context = f"{q.prompt} {q.hypothesis}" if q.hypothesis else q.prompt
        if classifies:
            texts.append((number, q.prompt, q.hypothesis))
        else:
            texts += [(number, context, choice) for choice in q.choices]
    cut = np.zeros(len(texts), dtype=bool)
    inputs: list[_Input] = []
    for row, (number, text, second) in enumerate(texts):
        fields = dict(model.tokenizer(text, second, verbose=False))
        cut[row] = len(fields["input_ids"]) > model.context_tokens
        if cut[row]:  # of a pair the longer text, at its end
            limit = {"truncation": "longest_first", "max_length": model.context_tokens}
            fields = dict(model.tokenizer(text, second, **limit))
        inputs.append(_Input(row, questions[number].item, fields, []))

    def logits(batch: list[_Input], tensors: dict[str, torch.Tensor]) -> NDArray:
        if not classifies:  # every choice as an item with one choice
            tensors = {name: tensor[:, None] for name, tensor in tensors.items()}
        return model.network(**tensors).logits.cpu().double().numpy()

    outputs = np.stack(_outputs(model, inputs, logits))
    ends = np.cumsum([1 if classifies else len(q.choices) for q in questions])[:-1]
    scores = []
    by_question = zip(questions, np.split(outputs, ends), np.split(cut, ends), strict=True)
    for q, own, own_cut in by_question:
        log_p = log_softmax(own.ravel())
        columns = np.zeros((len(q.choices), N_COLUMNS))
        if classifies:
            log_p = np.array([logsumexp(log_p[covered]) for covered in labels[q.choices]])
        columns[:, NATS] = log_p
        columns[:, TRUNCATED] = own_cut.any()
        scores.append(columns)
    return scores


def _score_by_encoder_decoder(
    model: LanguageModel, questions: Sequence[Question], bos: str | None
) -> list[Scores]:
    """Return the log-probability of each choice's tokens in the decoder, the prompt in the encoder.

    Both are tokenised apart, as for lm-evaluation-harness' backend "seq2seq": the prompt with
    special tokens, its last tokens kept where it is too long; a choice without, also without an
    end.
    """
    encode = model.tokenizer
    start = encode.convert_tokens_to_ids(scoring_options(model, bos).bos)
    scores = []
    inputs = []
    for row, q in enumerate(questions):
        prompt = q.prompt.rstrip()
        space = q.prompt[len(prompt) :]  # before a choice it belongs to the choice
        ids = encode(prompt, verbose=False)["input_ids"] or [encode.eos_token_id]
        choices = encode([space + c for c in q.choices], add_special_tokens=False)["input_ids"]
        sizes = [len(choice) for choice in choices]
        if min(sizes) == 0 or max(sizes) > model.context_tokens:
            raise _unfit([q.item], model.context_tokens, model.name)
        rows = np.zeros((len(choices), N_COLUMNS))
        rows[:, N_TOKENS] = sizes
        rows[:, TRUNCATED] = len(ids) > model.context_tokens
        rows[:, UNKNOWN_TOKENS] = [encode.unk_token_id in choice for choice in choices]
        scores.append(rows)
        inputs.append(_Input(row, q.item, {"input_ids": ids[-model.context_tokens :]}, choices))

    def log_probabilities(batch: list[_Input], tensors: dict[str, torch.Tensor]) -> list[NDArray]:
        # The encoder reads a prompt once; its output is repeated for the choices of the item.
        n_choices = [len(one.choices) for one in batch]
        repeats = torch.tensor(n_choices, device=model.device)
        encoded = model.network.get_encoder()(**tensors)
        encoded.last_hidden_state = encoded.last_hidden_state.repeat_interleave(repeats, dim=0)
        mask = tensors["attention_mask"].repeat_interleave(repeats, dim=0)
        # The decoder reads a start token and the choice but its last token; what pads a choice
        # stands behind it, where the choice does not see it.
        choices = [torch.tensor(choice) for one in batch for choice in one.choices]
        target = pad_sequence(choices, batch_first=True).to(model.device)
        read = functional.pad(target[:, :-1], (1, 0), value=start)
        logits = model.network(
            encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=read
        ).logits
        log_p = logits.float().log_softmax(dim=-1).gather(-1, target[..., None])[..., 0].cpu()
        nats = [float(p[: len(c)].double().sum()) for p, c in zip(log_p, choices, strict=True)]
        return np.split(np.array(nats), np.cumsum(n_choices)[:-1])

    outputs = _outputs(model, inputs, log_probabilities)
    for rows, nats in zip(scores, outputs, strict=True):
        rows[:, NATS] = nats
    return scores


def _unfit(items: list[Hashable], most: int, name: str) -> ModelError:
    said = f"{len(items)} items, {items[:5]}, have a choice of no tokens beside those of the "
    said += f"prompt, or of more than the {most} that {name} takes; leave them out, or use another"
    return ModelError(f"{said} model or prompt")


def scoring_options(model: LanguageModel, bos: str | None) -> ScoringOptions:
    """Return the options that a language model scores choices by; ``bos="auto"`` of a causal model
    is what its tokenizer itself adds, of other kinds the token of :func:`psychlm.lm.surprisal`."""
    tokenizer = model.tokenizer
    if model.kind != "encoder-decoder":
        if bos == "auto" and model.kind == "causal":
            ids = tokenizer.encode("a")
            added = len(ids) > 0 and ids[0] in tokenizer.all_special_ids
            bos = str(tokenizer.convert_ids_to_tokens(ids[0])) if added else None
        return resolve_options(model, bos=bos)
    start = getattr(model.network.config, "decoder_start_token_id", None)
    if bos != "auto" or start is None:
        raise ModelError(
            f"{model.name} is an encoder-decoder, which takes no bos={bos!r}: its decoder begins "
            "with its configuration's decoder_start_token_id, which must be set; leave bos out"
        )
    start = tokenizer.convert_ids_to_tokens(start)
    return ScoringOptions(None, start, False, model.context_tokens, 0, False, False)


def _score_by_language_model(
    model: LanguageModel, questions: Sequence[Question], bos: str | None
) -> list[Scores]:
    """Return the log-probability of each choice's tokens after its prompt."""
    options = scoring_options(model, bos)
    n_choices = [len(q.choices) for q in questions]
    owner = np.repeat(np.arange(len(questions)), n_choices)
    prompts = [q.prompt for q in questions for _ in q.choices]
    texts = [_document(q.prompt, choice) for q in questions for choice in q.choices]
    n_before = np.array([len(prompt.split()) for prompt in prompts])
    tokens, joined = _split(model, texts, prompts, n_before)
    n_prompt = np.array([(t.word < n).sum() for t, n in zip(tokens, n_before, strict=True)])
    n_choice = np.array([len(one.ids) for one in tokens]) - n_prompt
    # Choices must fit the model beside its special tokens and what predicts their first token: the
    # start token, or else the last token of the prompt.
    stop = READINGS[model.kind].framed and model.tokenizer.sep_token_id is not None
    room = options.context_tokens - (options.bos is not None) - stop
    most = room - (options.bos is None)
    unfit = np.unique(owner[(n_choice == 0) | (n_choice > most)])
    if len(unfit):
        raise _unfit([questions[k].item for k in unfit], most, model.name)
    # Cut long prompts at their beginning, all choices of an item after the same rest.
    longest = np.zeros(len(questions), dtype=np.int64)
    np.maximum.at(longest, owner, n_choice)
    drop = np.maximum(0, n_prompt - (room - longest[owner]))
    cut = zip(tokens, drop, strict=True)
    kept = [replace(one, ids=one.ids[n:], word=one.word[n:]) for one, n in cut]
    # Row i of a text is its token i, and one more row its end; only rows of choices are computed.
    first_rows = rows_of(kept)
    text_of_row = np.repeat(np.arange(len(kept)), np.diff(first_rows))
    wanted = np.concatenate(
        [np.append(one.word >= n, False) for one, n in zip(kept, n_before, strict=True)]
    )
    # Without a start token nothing would predict the first token after an empty prompt; such texts
    # get the token of `bos="auto"` in surprisal.
    bare = (n_prompt == 0) & (options.bos is None)
    requests = []
    for mask, how in ((~bare, options), (bare, resolve_options(model))):
        some = [kept[k] for k in np.flatnonzero(mask)]
        for one in plan_requests(some, first_rows[:-1][mask], model, how):
            keep = wanted[one.row]
            rows = {name: getattr(one, name)[keep] for name in ("position", "target", "row")}
            requests += [replace(one, **rows)] if keep.any() else []
    nats = np.full(len(wanted), np.nan)
    plain = replace(options, correction=None)  # the ends of words are not asked for
    for batch, values in run(model, requests, plain):
        if values is None:
            item = questions[owner[text_of_row[batch[0].row[0]]]].item
            raise _too_large(item, model.name)
        nats[np.concatenate([one.row for one in batch])] = values[:, LOG_P]
    columns = np.zeros((len(kept), N_COLUMNS))
    columns[:, NATS] = np.bincount(text_of_row[wanted], nats[wanted], minlength=len(kept))
    columns[:, N_TOKENS] = n_choice
    columns[:, TRUNCATED] = drop > 0
    columns[:, JOINED] = joined
    columns[:, UNKNOWN_TOKENS] = [
        any(word >= n and reason == UNKNOWN for word, reason in one.reasons.items())
        for one, n in zip(kept, n_before, strict=True)
    ]
    return np.split(columns, np.cumsum(n_choices)[:-1])


def _split(
    model: LanguageModel, texts: list[Document], prompts: list[str], n_before: NDArray[np.int64]
) -> tuple[list[Tokens], NDArray[np.bool_]]:
    """Return the tokens of each prompt and choice, split between both, and where one joins them.

    As in lm-evaluation-harness, a prompt has the tokens that it has by itself, and a choice those
    of the whole text from that number on, so that a token that joins both ("(" and "A)" as "(A" and
    ")") leaves the choice with what follows. White space at the end of the prompt is the prompt's
    as far as it has tokens of its own there (a new line), else the choice's (a space). A masked
    model has read the text as a whole: there the token belongs to the choice. ``n_before`` counts
    the words of each prompt.
    """
    tokens = tokenize(texts, model.tokenizer)
    # The prompt with all of its white space at the end, and with ever less of it.
    shorter = {
        prompt: [prompt[:n] for n in range(len(prompt), len(prompt.rstrip()) - 1, -1)]
        if prompt.strip()
        else [""]
        for prompt in prompts
    }
    alone = {text: _document(text, "") for texts_of in shorter.values() for text in texts_of}
    tokens_alone = dict(zip(alone, tokenize(list(alone.values()), model.tokenizer), strict=True))
    joined = np.zeros(len(tokens), dtype=bool)
    for i, (whole, prompt) in enumerate(zip(tokens, prompts, strict=True)):
        for text in shorter[prompt]:
            before = tokens_alone[text]
            n = len(before.ids)
            joined[i] = not np.array_equal(whole.ids[:n], before.ids)
            if not joined[i]:
                break
        if not READINGS[model.kind].masks:
            word = np.append(before.word, np.maximum(whole.word[n:], n_before[i]))
            tokens[i] = replace(whole, ids=np.append(before.ids, whole.ids[n:]), word=word)
    return tokens, joined


def _document(prompt: str, choice: str) -> Document:
    """Return a prompt and a choice as one text, in which no word belongs to both."""
    spans = [match.span() for match in re.finditer(r"\S+", prompt)]
    n = len(prompt)
    spans += [(n + match.start(), n + match.end()) for match in re.finditer(r"\S+", choice)]
    starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return Document(prompt + choice, starts, ends, np.zeros(len(starts), dtype=np.int64))
