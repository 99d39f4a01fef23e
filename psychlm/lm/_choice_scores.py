"""Compute the log-probability that a model gives each choice of an item.

Three kinds of model, one result. A classifier gives the choices the probabilities of its labels. A
multiple-choice head scores each choice by itself, and the scores of an item are normalised to
probabilities. A language model gives the probability of the choice's tokens after the prompt: from
left to right, or, where it predicts masked tokens, each token with the rest of its word masked
(:mod:`psychlm.lm.scoring_requests`), or, in an encoder-decoder, from the prompt in the encoder. It
reads a prompt once for all choices of the item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from psychlm.lm._errors import ModelError
from psychlm.lm._load import LanguageModel
from psychlm.lm._network_state import evaluating
from psychlm.lm.choice_model import ChoiceModel
from psychlm.lm.forward import (
    LOG_P,
    ScoringOptions,
    Wanted,
    in_batches,
    plan_requests,
    resolve_options,
    run,
)
from psychlm.lm.prompts import outputs_of
from psychlm.lm.tokens import UNKNOWN, Document, Tokens, tokenize

# Columns of the scores of a choice: log-probability in nats; tokens that it sums over (0 for
# classifiers and heads); 1 where the prompt was cut to fit the model; 1 where the tokenizer does
# not know a character of the choice; 1 where it joins the end of the prompt with the beginning of
# the choice in one token.
N_COLUMNS = 5
NATS, N_TOKENS, TRUNCATED, UNKNOWN_TOKENS, JOINED = range(N_COLUMNS)

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """What a model reads of an item."""

    item: Hashable  # for error messages
    prompt: str
    choices: tuple[str, ...]
    hypothesis: str | None = None  # second sentence of a pair

    def __len__(self) -> int:
        return len(self.prompt) + len(self.hypothesis or "") + max(map(len, self.choices))


def score_questions(
    model: ChoiceModel | LanguageModel,
    questions: Sequence[Question],
    bos: str | None = "auto",
    batch_tokens: int | None = None,
) -> list[Scores]:
    """Return for each question the scores of its choices, shape (n_choices, 5).

    Raises
    ------
    ModelError
        If the choices do not match a classifier's labels, a choice does not fit the model or
        memory, the tokenizer cannot read a text, or a score is not a finite number; the message
        names the item.
    """
    for question in questions:
        texts = (question.prompt, question.hypothesis or "", *question.choices)
        if any("\ud800" <= character <= "\udfff" for character in "".join(texts)):
            raise ModelError(
                f"item {question.item!r} holds half a character (a lone surrogate), which no "
                "tokenizer reads; read its file as UTF-8 again, or leave the item out"
            )
    if isinstance(model, LanguageModel) and model.kind == "encoder-decoder":
        scores = _score_by_encoder_decoder(model, questions, bos, batch_tokens)
    elif isinstance(model, LanguageModel):
        scores = _score_by_language_model(model, questions, bos, batch_tokens)
    elif model.task == "classifier":
        scores = _score_by_classifier(model, questions, batch_tokens)
    else:
        scores = _score_by_head(model, questions, batch_tokens)
    for question, rows in zip(questions, scores, strict=True):
        if not np.isfinite(rows[:, NATS]).all():
            raise ModelError(
                f"{model.name} gives item {question.item!r} the log-probabilities "
                f"{rows[:, NATS].tolist()}: NaN or "
                "infinity, as diverged weights do; train it again, or open it with dtype='float32'"
            )
    return scores


def _score_by_classifier(
    model: ChoiceModel, questions: Sequence[Question], batch_tokens: int | None
) -> list[Scores]:
    """Return log p(choice) = log of the sum of p(label) over the labels that the choice covers."""
    outputs = {q.choices: outputs_of(q.choices, model.labels, model.name) for q in questions}
    texts = [(question.prompt, question.hypothesis) for question in questions]
    logits, cut = _logits(model, [q.item for q in questions], texts, batch_tokens)
    log_p = log_softmax(logits, axis=1)
    scores = []
    for row, question in enumerate(questions):
        rows = np.zeros((len(question.choices), N_COLUMNS))
        rows[:, NATS] = [logsumexp(log_p[row, labels]) for labels in outputs[question.choices]]
        rows[:, TRUNCATED] = cut[row]
        scores.append(rows)
    return scores


def _score_by_head(
    model: ChoiceModel, questions: Sequence[Question], batch_tokens: int | None
) -> list[Scores]:
    """Return the log-softmax, within items, of a head's score of each pair of prompt and choice."""
    pairs = []
    for q in questions:
        context = f"{q.prompt} {q.hypothesis}" if q.hypothesis else q.prompt
        pairs += [(context, choice) for choice in q.choices]
    owners = [q.item for q in questions for _ in q.choices]
    logits, cut = _logits(model, owners, pairs, batch_tokens)
    ends = np.cumsum([len(question.choices) for question in questions])
    scores = []
    for question_logits, question_cut in zip(
        np.split(logits[:, 0], ends[:-1]), np.split(cut, ends[:-1]), strict=True
    ):
        rows = np.zeros((len(question_logits), N_COLUMNS))
        rows[:, NATS], rows[:, TRUNCATED] = log_softmax(question_logits), question_cut.any()
        scores.append(rows)
    return scores


@dataclass(frozen=True, eq=False)
class _Input:
    """One tokenised input; its length is what batches are made by."""

    row: int
    fields: dict[str, list[int]]  # the tokenizer's output: ids, and token types if needed
    choices: list[list[int]]  # the tokens that an encoder-decoder's decoder reads

    def __len__(self) -> int:
        read = len(self.fields["input_ids"]) + max(map(len, self.choices), default=0)
        return read * max(1, len(self.choices))


def _logits(
    model: ChoiceModel,
    owners: Sequence[Hashable],
    texts: Sequence[tuple[str, str | None]],
    batch_tokens: int | None,
) -> tuple[Scores, NDArray[np.bool_]]:
    """Return the outputs for texts and pairs, (n_texts, n_outputs), and whether each text was cut.

    The longer part of what does not fit the model is cut at its end.
    """
    # Tokenise single texts and pairs apart: a tokenizer takes one kind in a call.
    cut = np.zeros(len(texts), dtype=bool)
    inputs: list[_Input] = []
    for paired in (False, True):
        rows = [i for i, (_, second) in enumerate(texts) if (second is not None) == paired]
        if not rows:
            continue
        parts = [[texts[i][part] for i in rows] for part in range(1 + paired)]
        encoded = model.tokenizer(*parts, verbose=False)
        cut[rows] = [len(ids) > model.context_tokens for ids in encoded["input_ids"]]
        if cut[rows].any():
            longest = {"truncation": "longest_first", "max_length": model.context_tokens}
            encoded = model.tokenizer(*parts, **longest)
        for i, row in enumerate(rows):
            fields = {name: values[i] for name, values in encoded.items()}
            inputs.append(_Input(row, fields, []))

    def logits(batch: list[_Input], tensors: dict[str, torch.Tensor]) -> NDArray:
        if model.task == "multiple-choice":  # every choice as an item with one choice
            tensors = {name: tensor[:, None] for name, tensor in tensors.items()}
        return model.network(**tensors).logits.cpu().double().numpy()

    values = _in_batches(model, inputs, logits, owners, batch_tokens)
    return np.stack([values[row] for row in range(len(texts))]), cut


def _in_batches(
    model: ChoiceModel | LanguageModel,
    inputs: Sequence[_Input],
    outputs_of_batch: Callable[
        [list[_Input], dict[str, torch.Tensor]], Sequence[NDArray] | NDArray
    ],
    owners: Sequence[Hashable],
    batch_tokens: int | None,
) -> dict[int, NDArray]:
    """Return the outputs for each row of the inputs, which go through a model in padded batches.

    A model that cannot tell padding from text reads its texts one by one.
    """
    pads = model.network.config.get_text_config().pad_token_id is not None

    def run_batch(batch: list[_Input]) -> Sequence[NDArray] | NDArray:
        fields = {name: [one.fields[name] for one in batch] for name in batch[0].fields}
        tensors = model.tokenizer.pad(fields, padding=pads, return_tensors="pt")
        tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        with torch.inference_mode(), evaluating(model.network):
            return outputs_of_batch(batch, tensors)

    values: dict[int, NDArray] = {}
    most = batch_tokens if pads else 1
    for batch, outputs in in_batches(inputs, run_batch, model.device, most):
        if outputs is None:
            raise ModelError(
                f"out of memory with item {owners[batch[0].row]!r} by itself ({len(batch[0])} "
                f"tokens) in {model.name}; use a smaller model, or a device with more memory"
            )
        values.update(zip((one.row for one in batch), outputs, strict=True))
    return values


def _score_by_encoder_decoder(
    model: LanguageModel, questions: Sequence[Question], bos: str | None, batch_tokens: int | None
) -> list[Scores]:
    """Return the log-probability of each choice's tokens in the decoder, the prompt in the encoder.

    Prompt and choices are tokenised apart, as lm-evaluation-harness does for its backend "seq2seq":
    the prompt with the tokenizer's special tokens, its last tokens kept where it is too long; a
    choice without special tokens, so that the end of the text is not part of it.
    """
    start = model.tokenizer.convert_tokens_to_ids(scoring_options(model, bos).bos)
    encode, unknown = model.tokenizer, model.tokenizer.unk_token_id
    scores, inputs = [], []
    for row, q in enumerate(questions):
        prompt = q.prompt.rstrip()
        space = q.prompt[len(prompt) :]  # before a choice it belongs to the choice
        ids = encode(prompt, verbose=False)["input_ids"] or [model.tokenizer.eos_token_id]
        choices = encode([space + c for c in q.choices], add_special_tokens=False)["input_ids"]
        sizes = [len(choice) for choice in choices]
        if min(sizes) == 0 or max(sizes) > model.context_tokens:
            raise ModelError(
                f"item {q.item!r} has a choice of no tokens or of more than the "
                f"{model.context_tokens} that {model.name} takes; leave it out, or use another "
                "model"
            )
        rows = np.zeros((len(choices), N_COLUMNS))
        rows[:, N_TOKENS], rows[:, TRUNCATED] = sizes, len(ids) > model.context_tokens
        rows[:, UNKNOWN_TOKENS] = [unknown in choice for choice in choices]
        scores.append(rows)
        inputs.append(_Input(row, {"input_ids": ids[-model.context_tokens :]}, choices))

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

    owners = [q.item for q in questions]
    for row, nats in _in_batches(model, inputs, log_probabilities, owners, batch_tokens).items():
        scores[row][:, NATS] = nats
    return scores


def scoring_options(model: LanguageModel, bos: str | None) -> ScoringOptions:
    """Return the options that a language model scores choices by."""
    if model.kind != "encoder-decoder":
        return resolve_options(model, bos=start_token(model, bos))
    if bos != "auto":
        raise ModelError(
            f"{model.name} is an encoder-decoder, which takes no bos={bos!r}: its decoder begins "
            "with a token of its own; leave bos out"
        )
    start = getattr(model.network.config, "decoder_start_token_id", None)
    if start is None:
        raise ModelError(
            f"the configuration of {model.name} has no decoder_start_token_id, with which its "
            "decoder begins; set it as its makers say"
        )
    start = model.tokenizer.convert_ids_to_tokens(start)
    return ScoringOptions(None, start, False, model.context_tokens, 0, False, False)


def start_token(model: LanguageModel, bos: str | None) -> str | None:
    """Return the token before prompts: ``bos``, or for ``"auto"`` what the tokenizer itself adds.

    A causal model whose tokenizer adds no token before a text has learned from texts without one.
    Models of other kinds have the token that :func:`psychlm.lm.surprisal` gives them.
    """
    if bos != "auto" or model.kind != "causal":
        return bos
    ids = model.tokenizer.encode("a")
    added = len(ids) > 0 and ids[0] in model.tokenizer.all_special_ids
    return str(model.tokenizer.convert_ids_to_tokens(ids[0])) if added else None


def _score_by_language_model(
    model: LanguageModel, questions: Sequence[Question], bos: str | None, batch_tokens: int | None
) -> list[Scores]:
    """Return the log-probability of each choice's tokens after its prompt."""
    options = scoring_options(model, bos)
    owner = np.repeat(np.arange(len(questions)), [len(q.choices) for q in questions])
    texts = [_document(q.prompt, choice) for q in questions for choice in q.choices]
    n_before = np.array([len(questions[int(k)].prompt.split()) for k in owner])
    tokens, joined = _split(model, texts, [questions[int(k)].prompt for k in owner], n_before)
    n_prompt = np.array([(t.word < n).sum() for t, n in zip(tokens, n_before, strict=True)])
    n_choice = np.array([len(one.ids) for one in tokens]) - n_prompt
    # Choices must fit the model beside its special tokens and what predicts their first token: the
    # start token, or else the last token of the prompt.
    stop = model.kind == "masked" and model.tokenizer.sep_token_id is not None
    room = options.context_tokens - (options.bos is not None) - stop
    longest = np.zeros(len(questions), dtype=np.int64)
    np.maximum.at(longest, owner, n_choice)
    most = room - (options.bos is None)
    unfit = np.unique(owner[(n_choice == 0) | (n_choice > most)])
    if len(unfit):
        names = [questions[int(k)].item for k in unfit]
        raise ModelError(
            f"{len(names)} items, {names[:5]}, have a choice of no tokens beside those of the "
            f"prompt, or of more than the {most} that {model.name} takes; leave them out, or use "
            "another model or prompt"
        )
    # Cut long prompts at their beginning, all choices of an item after the same rest.
    drop = np.maximum(0, n_prompt - (room - longest[owner]))
    kept = [
        replace(one, ids=one.ids[n:], word=one.word[n:]) if n else one
        for one, n in zip(tokens, drop, strict=True)
    ]
    # Row i of a text is its token i, and one more row its end; only rows of choices are computed.
    first_rows = np.concatenate([[0], np.cumsum([len(one.ids) + 1 for one in kept])])
    text_of_row = np.repeat(np.arange(len(kept)), np.diff(first_rows))
    wanted = np.concatenate(
        [np.append(one.word >= n, False) for one, n in zip(kept, n_before, strict=True)]
    )
    # Without a start token nothing would predict the first token after an empty prompt; such texts
    # get the token of `bos="auto"` in surprisal.
    bare = (n_prompt == 0) & (options.bos is None)
    plans = [(~bare, options), (bare, resolve_options(model))]
    requests = [
        request
        for mask, how in plans
        for request in plan_requests(
            [kept[k] for k in np.flatnonzero(mask)], first_rows[:-1][mask], model, how
        )
    ]
    passes = []
    for one in requests:
        keep = wanted[one.row]
        if keep.any():
            rows = {name: getattr(one, name)[keep] for name in ("position", "target", "row")}
            passes.append(replace(one, **rows))
    nats = np.full(len(wanted), np.nan)
    for batch, values in run(model, passes, Wanted(None), batch_tokens):
        if values is None:
            item = questions[owner[text_of_row[batch[0].row[0]]]].item
            raise ModelError(
                f"out of memory with item {item!r} by itself in {model.name}; use a smaller model"
            )
        nats[np.concatenate([one.row for one in batch])] = values[:, LOG_P]
    columns = np.zeros((len(kept), N_COLUMNS))
    columns[:, NATS] = np.bincount(text_of_row[wanted], nats[wanted], minlength=len(kept))
    columns[:, N_TOKENS], columns[:, TRUNCATED], columns[:, JOINED] = n_choice, drop > 0, joined
    columns[:, UNKNOWN_TOKENS] = [
        any(word >= n and reason == UNKNOWN for word, reason in one.reasons.items())
        for one, n in zip(kept, n_before, strict=True)
    ]
    return np.split(columns, np.cumsum([len(question.choices) for question in questions])[:-1])


def _split(
    model: LanguageModel, texts: list[Document], prompts: list[str], n_before: NDArray[np.int64]
) -> tuple[list[Tokens], NDArray[np.bool_]]:
    """Return the tokens of each prompt and choice, split between both, and where one joins them.

    As in lm-evaluation-harness, a prompt has the tokens that it has by itself, and a choice those
    of the whole text from that number on. So a token that joins both (the tokenizer reads "(" and
    "A)" as "(A" and ")") leaves the choice with what follows the token. A masked model has read
    the text as a whole: there the token belongs to the choice.

    Parameters
    ----------
    texts : list of Document
        Prompts with their choices.
    n_before : ndarray, shape (n_texts,)
        Number of words of each prompt.
    """
    tokens = tokenize(texts, model.tokenizer)
    alone = {prompt: _document(prompt, "") for prompt in prompts}
    tokens_alone = dict(zip(alone, tokenize(list(alone.values()), model.tokenizer), strict=True))
    joined = np.zeros(len(tokens), dtype=bool)
    for i, (whole, prompt) in enumerate(zip(tokens, prompts, strict=True)):
        before = tokens_alone[prompt]
        n = len(before.ids)
        joined[i] = not np.array_equal(whole.ids[:n], before.ids)
        if joined[i] and not model.kind.endswith("masked"):
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
