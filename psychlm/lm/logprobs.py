"""One model and its items: the log-probability of every choice, normalised as asked, cached, and what it says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy.special import softmax

from psychlm.frames import check_items
from psychlm.lm import answerers
from psychlm.lm._load import LanguageModel, ModelError
from psychlm.lm.answerers import Answerer
from psychlm.lm.cache import ResultStore, folder, key
from psychlm.lm.choice_scores import (
    N_COLUMNS,
    N_TOKENS,
    NATS,
    TRUNCATED,
    UNKNOWN_TOKENS,
    Question,
    Scores,
    scores,
)
from psychlm.lm.forward import resolve_options
from psychlm.lm.templates import Template, rendered

SCHEME = 1  # raised whenever the scores of a question would change
QUESTIONS_AT_ONCE = {"cpu": 256, "cuda": 4096}  # scored between two writes to the cache

Normalise = Literal["sum", "token", "character", "unconditional"]
Model = LanguageModel | Answerer
ModelLike = Model | str | Path


def choice_logprobs(
    items: pd.DataFrame,
    model: ModelLike,
    *,
    normalise: Normalise = "sum",
    template: str | Template = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    cache: bool = True,
    progress: bool = False,
) -> pd.DataFrame:
    """Return the log-probability that a model gives each choice of each item.

    Parameters
    ----------
    items : DataFrame
        An items frame. Where it has a column ``hypothesis``, classifiers read prompt and hypothesis as a pair.
    model : LanguageModel, Answerer, str or Path
        What :func:`psychlm.lm.answerers.load` returns, or takes.
    normalise : {"sum", "token", "character", "unconditional"}
        What a language model's score of a choice is: the log-probability of its tokens; that divided by their number,
        or by its characters; or minus its log-probability after a prompt that says nothing of the item (Brown et al.
        2020, section 2.4; Holtzman et al. 2021, domain-conditional PMI). Classifiers and multiple-choice heads give
        one probability a choice, and there is nothing to normalise.
    template : str or Template
        How a language model is asked: see :mod:`psychlm.lm.templates`.
    device : str
        Where a model that is named is loaded.
    batch_tokens : int, optional
        Most tokens in one batch; scores do not depend on it.
    cache : bool
        Keep scores on disk, by model, revision, item and options, and take from there what was computed before.
        Models without a known revision are not cached.
    progress : bool
        Show a progress bar on standard error.

    Returns
    -------
    DataFrame, index ``item``, columns 0 to most choices - 1
        NaN where an item has fewer choices. ``.attrs`` says ``model``, ``revision``, ``normalise``, ``template``, and
        the items whose prompts were cut to fit the model (``truncated``) or whose choices hold characters that its
        tokenizer does not know (``unknown``).

    Raises
    ------
    FrameError
        If the items break their contract, or lack a column that the template asks for.
    ModelError
        If the model cannot be had, its labels do not match the choices, or it gives a choice NaN or infinity.

    Warns
    -----
    RuntimeWarning
        If prompts were cut, or tokenizers do not know characters of choices.
    """
    items = check_items(items)
    if normalise not in get_args(Normalise):
        raise ModelError(
            f"normalise={normalise!r} is unknown; choose one of {list(get_args(Normalise))}"
        )
    model = answerers.load(model, device) if isinstance(model, (str, Path)) else model
    ids = items["item_id"].tolist()
    if isinstance(model, LanguageModel):
        texts = rendered(items, template)
        questions = [
            Question(name, prompt, choices)
            for name, (prompt, choices, _) in zip(ids, texts, strict=True)
        ]
    else:
        questions = _fields(items)
    found = _scored(questions, model, batch_tokens, cache, progress)
    values = [rows[:, NATS] for rows in found]
    if isinstance(model, LanguageModel) and normalise != "sum":
        if normalise == "unconditional":
            neutral = [
                (name, after, choices) for name, (_, choices, after) in zip(ids, texts, strict=True)
            ]
            less = _unconditional(neutral, model, batch_tokens, cache, progress)
            values = [own - bare for own, bare in zip(values, less, strict=True)]
        else:
            values = [
                own / n
                for own, n in zip(values, _lengths(questions, found, normalise), strict=True)
            ]
    frame = pd.DataFrame(_ragged(values), index=pd.Index(ids, name="item"))
    frame.columns.name = "choice"
    frame.attrs = {
        "model": model.name,
        "revision": model.revision,
        "normalise": normalise,
        "template": str(template),
    }
    frame.attrs |= _reported(ids, found, model)
    return frame


def predictions(logprobs: pd.DataFrame) -> pd.Series:
    """Return the likeliest choice of each item, 0-based.

    Warns
    -----
    RuntimeWarning
        If choices of an item are equally likely: the first of them is taken.
    """
    values = logprobs.fillna(-np.inf).to_numpy()
    tied = (values == values.max(axis=1, keepdims=True)).sum(axis=1) > 1
    if tied.any():
        warnings.warn(
            f"{tied.sum()} of {len(tied)} items have several likeliest choices ({logprobs.index[tied][0]!r}, say); the "
            "first of each is taken",
            RuntimeWarning,
            stacklevel=2,
        )
    return pd.Series(values.argmax(axis=1), index=logprobs.index, name="prediction")


def confidences(logprobs: pd.DataFrame) -> pd.DataFrame:
    """Return the probability of each choice among the choices of its item: the softmax of the scores.

    Returns
    -------
    DataFrame, items x choices
        Rows sum to 1; NaN where an item has fewer choices.
    """
    present = logprobs.notna()
    values = softmax(logprobs.fillna(-np.inf).to_numpy(), axis=1)
    return pd.DataFrame(values, index=logprobs.index, columns=logprobs.columns).where(present)


def _fields(items: pd.DataFrame) -> list[Question]:
    """Return what classifiers and heads read: the item's own fields."""
    second = (
        items["hypothesis"]
        if "hypothesis" in items.columns
        else pd.Series(None, index=items.index, dtype=object)
    )
    return [
        Question(name, prompt, tuple(choices), hypothesis if isinstance(hypothesis, str) else None)
        for name, prompt, choices, hypothesis in zip(
            items["item_id"], items["prompt"], items["choices"], second, strict=True
        )
    ]


def _lengths(
    questions: Sequence[Question], found: Sequence[Scores], normalise: Normalise
) -> list[np.ndarray]:
    """Return by what each choice's score is divided: its tokens, or its characters without the space before it."""
    if normalise == "token":
        return [rows[:, N_TOKENS] for rows in found]
    return [
        np.array([len(choice.strip()) for choice in question.choices]) for question in questions
    ]


def _unconditional(
    asked: Sequence[tuple[object, str, tuple[str, ...]]],
    model: LanguageModel,
    batch_tokens: int | None,
    cache: bool,
    progress: bool,
) -> list[np.ndarray]:
    """Return the log-probability of each choice after its neutral prompt; equal choices are read once."""
    bare = {(after, choice): name for name, after, choices in asked for choice in choices}
    questions = [Question(str(name), after, (choice,)) for (after, choice), name in bare.items()]
    found = _scored(questions, model, batch_tokens, cache, progress)
    nats = {pair: rows[0, NATS] for pair, rows in zip(bare, found, strict=True)}
    return [np.array([nats[after, choice] for choice in choices]) for _, after, choices in asked]


def _scored(
    questions: Sequence[Question],
    model: Model,
    batch_tokens: int | None,
    cache: bool,
    progress: bool,
) -> list[Scores]:
    """Take from disk what is there, compute the rest, the longest first, and store it piece by piece."""
    identity = _identity(model)
    none = np.empty(0, dtype=np.int64)
    keys = [key(identity, json.dumps([q.prompt, q.hypothesis, q.choices]), none) for q in questions]
    shapes = {k: (len(q.choices), N_COLUMNS) for k, q in zip(keys, questions, strict=True)}
    store = ResultStore(folder() / "responses.sqlite") if cache and model.revision else None
    try:
        found = {} if store is None else {name: own for name, (own, _) in store.get(shapes).items()}
        missing = {
            name: question
            for name, question in zip(keys, questions, strict=True)
            if name not in found
        }
        waiting = sorted(missing, key=lambda name: len(missing[name]), reverse=True)
        for some in _with_bar(waiting, model, progress):
            fresh = dict(
                zip(
                    some, scores(model, [missing[name] for name in some], batch_tokens), strict=True
                )
            )
            if store is not None:
                store.put((name, rows, {}) for name, rows in fresh.items())
            found |= fresh
    finally:
        if store is not None:
            store.close()
    return [found[name] for name in keys]


def _identity(model: Model) -> str:
    """Return a text that differs where the scores of a question could."""
    said = {"scheme": SCHEME, "revision": model.revision, "dtype": str(model.network.dtype)}
    if isinstance(model, LanguageModel):
        said |= {"kind": model.kind} | asdict(resolve_options(model))
    else:
        said |= {
            "task": model.task,
            "labels": json.dumps(model.labels),
            "context_tokens": str(model.context_tokens),
        }
    return json.dumps(said, sort_keys=True)


def _with_bar(waiting: Sequence[str], model: Model, progress: bool) -> Iterator[Sequence[str]]:
    """Yield the keys of the questions piece by piece, moving a bar where one is wanted."""
    size = QUESTIONS_AT_ONCE["cuda" if model.device.type == "cuda" else "cpu"]
    pieces = [waiting[i : i + size] for i in range(0, len(waiting), size)]
    if not (progress and pieces):
        yield from pieces
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"items through {model.name}", total=len(waiting))
        for piece in pieces:
            yield piece
            bar.advance(task, len(piece))


def _ragged(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return rows of different lengths as a table, NaN at their ends."""
    lengths = np.array([len(own) for own in values])
    table = np.full((len(values), lengths.max()), np.nan)
    table[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(values)
    return table


def _reported(
    ids: Sequence[object], found: Sequence[Scores], model: Model
) -> dict[str, list[object]]:
    """Return the items whose scores say less than they seem to, and warn of them."""
    kinds = {"truncated": TRUNCATED, "unknown": UNKNOWN_TOKENS}
    said = {
        name: [item for item, rows in zip(ids, found, strict=True) if rows[:, column].any()]
        for name, column in kinds.items()
    }
    lost = "beginning" if isinstance(model, LanguageModel) else "end"
    why = {
        "truncated": f"are longer than {model.name} takes ({model.context_tokens} tokens), and lost their {lost}",
        "unknown": f"have choices with characters that the tokenizer of {model.name} does not know",
    }
    for name, culprits in said.items():
        if culprits:
            warnings.warn(
                f"{len(culprits)} of {len(ids)} items {why[name]}: {culprits[:5]}",
                RuntimeWarning,
                stacklevel=4,
            )
    return said
