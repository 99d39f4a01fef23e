"""Models take the test: items and models in, graded responses out; each model is loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from psychlm.frames import FrameError, check_items, check_responses
from psychlm.lm._load import LanguageModel
from psychlm.lm.answerers import Answerer
from psychlm.lm.logprobs import ModelLike, Normalise, choice_logprobs, confidences, predictions
from psychlm.lm.templates import Template

__all__ = ["Answers", "answers", "choice_logprobs", "confidences", "predictions", "responses"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What models answered.

    Attributes
    ----------
    logprobs : DataFrame, indexed by ``person`` and ``item``, columns 0 to most choices - 1
        Natural logarithms, normalised as asked; NaN where an item has fewer choices.
    predictions : DataFrame, persons x items
        The likeliest choice, 0-based.
    responses : DataFrame, persons x items
        1 where it is the right one, else 0.
    truncated : Series, indexed by ``person``
        How many prompts were cut to fit the model.
    """

    logprobs: pd.DataFrame
    predictions: pd.DataFrame
    responses: pd.DataFrame
    truncated: pd.Series


def responses(
    items: pd.DataFrame,
    models: ModelLike | Iterable[ModelLike] | Mapping[str, ModelLike],
    **options: object,
) -> pd.DataFrame:
    """Let models answer items, and grade them.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    models : model, or iterable or mapping of models
        Names, folders, or models in memory; the keys of a mapping, or else the models' names, name the persons.
    **options
        As in :func:`answers`.

    Returns
    -------
    DataFrame
        A responses frame, models x items.
    """
    return answers(items, models, **options).responses  # type: ignore[arg-type]


def answers(
    items: pd.DataFrame,
    models: ModelLike | Iterable[ModelLike] | Mapping[str, ModelLike],
    *,
    normalise: Normalise = "sum",
    template: str | Template = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    cache: bool = True,
    progress: bool = False,
) -> Answers:
    """Let models answer items; each model is loaded once, and forgotten before the next.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    models : model, or iterable or mapping of models
        Names, folders, or models in memory; the keys of a mapping, or else the models' names, name the persons.
    normalise, template, device, batch_tokens, cache, progress
        As in :func:`choice_logprobs`.

    Raises
    ------
    FrameError
        If the items break their contract, or two models have the same name.
    ModelError
        As :func:`choice_logprobs`; what the models before answered is in the cache, and a second call goes on there.
    """
    items = check_items(items)
    logprobs, chosen, truncated = {}, {}, {}
    for person, model in _named(models):
        if person in logprobs:
            raise FrameError(
                f"two models are named {person!r}; name them: responses(items, {{'a': ..., 'b': ...}})"
            )
        one = choice_logprobs(
            items,
            model,
            normalise=normalise,
            template=template,
            device=device,
            batch_tokens=batch_tokens,
            cache=cache,
            progress=progress,
        )
        truncated[person] = len(one.attrs["truncated"])
        logprobs[person], chosen[person] = _without_attrs(one), predictions(one)
    if not logprobs:
        raise FrameError("no model was given")
    predicted = pd.DataFrame(chosen).T.rename_axis("person")
    right = predicted.eq(items.set_index("item_id")["answer"], axis=1)
    counts = pd.Series(truncated, name="truncated").rename_axis("person")
    return Answers(
        pd.concat(logprobs, names=["person"]),
        predicted,
        check_responses(right.astype(float)),
        counts,
    )


def _named(
    models: ModelLike | Iterable[ModelLike] | Mapping[str, ModelLike],
) -> Iterator[tuple[str, ModelLike]]:
    if isinstance(models, Mapping):
        yield from models.items()
        return
    if isinstance(models, (str, Path, LanguageModel, Answerer)):
        models = [models]
    for model in models:
        yield (str(model) if isinstance(model, (str, Path)) else model.name), model


def _without_attrs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame that can be joined to those of other models."""
    plain = frame.copy(deep=False)
    plain.attrs = {}
    return plain
