r"""Log-probabilities of choices, confidences, predictions, and the one grader of all analyses.

*Scores* are a frame of items x choices: natural logarithms, NaN behind the last choice of an item.
From them,

- the *confidence* in choice j of item i is :math:`c_{ij} = e^{s_{ij}} / \sum_k e^{s_{ik}}`;
- the *prediction* is the choice with the highest score;
- the *grade* is 1 where the prediction is the item's answer, else 0.

**Ties.** Where m choices share the highest score the model has no preference, and one of them is
taken as if by guessing: number ``crc32(item_id) mod m`` of them. So a tie has the same outcome in
every analysis, grades are 0 or 1, a model that scores all choices alike is right at the rate of
guessing (also in banks whose answers all come first), and the accuracy is always the mean of the
grades. A warning counts the ties.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.special import softmax

from psychlm.cluster import run_pieces
from psychlm.device import Device
from psychlm.frames import (
    FrameError,
    Repeated,
    check_items,
    check_responses,
    format_names,
    mean_responses,
    refuse,
)
from psychlm.lm._errors import check_limit, check_option
from psychlm.lm._load import HEADS, LanguageModel, named_models, opened

if TYPE_CHECKING:
    from distributed import Client

    from psychlm.lm.prompts import Prompt

Normalise = Literal["sum", "token", "character", "byte", "unconditional"]


def check_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores as float64 items x choices, the index named ``item``; refuse malformed ones."""
    if not isinstance(scores, pd.DataFrame) or scores.empty:
        raise FrameError("scores are a DataFrame of items x choices with one item at least")
    once = "are scored more than once; keep the scores of each model and probe in a frame"
    refuse("items", scores.index[scores.index.duplicated()], once)
    values = scores.to_numpy(np.float64, na_value=np.nan)
    present = ~np.isnan(values)
    gap = (present[:, 1:] & ~present[:, :-1]).any(axis=1)
    impossible = (values == -np.inf).all(axis=1, where=present)
    for wrong, reason in (
        (gap, "a gap before their last score; NaN stands behind the last choice only"),
        (present.sum(axis=1) < 2, "fewer than two scores"),
        ((values == np.inf).any(axis=1), "an infinite score"),
        (impossible, "no choice with a probability above zero"),
    ):
        refuse("items", scores.index[wrong], f"have {reason}")
    return pd.DataFrame(values, index=scores.index.rename("item"), columns=scores.columns)


def confidences(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the softmax of the scores: the probability of each choice among those of its item.

    >>> confidences(pd.DataFrame([[0.0, 0.0, np.nan]], index=["q1"])).iloc[0].tolist()
    [0.5, 0.5, nan]
    """
    scores = check_scores(scores)
    values = softmax(scores.fillna(-np.inf).to_numpy(), axis=1)
    frame = pd.DataFrame(values, index=scores.index, columns=scores.columns)
    return frame.where(scores.notna())


def n_choices(scores: pd.DataFrame) -> np.ndarray:
    """Return the number of choices of every item, shape (n_items,)."""
    return scores.notna().to_numpy().sum(axis=1)


def answer_places(answers: pd.DataFrame | pd.Series, scores: pd.DataFrame) -> np.ndarray:
    """Return the 0-based answer of every scored item, of an items frame or of answers by item."""
    if isinstance(answers, pd.DataFrame):
        answers = answers.set_index("item_id")["answer"]
    missing = scores.index.difference(answers.index)
    refuse("items", missing, "have scores but no answer; give the items frame that was scored")
    places = answers.loc[scores.index].to_numpy(np.float64)
    outside = ~((places >= 0) & (places < n_choices(scores)) & (places % 1 == 0))
    refuse("items", scores.index[outside], "have an answer that is not among their scores")
    return places.astype(np.intp)


def predictions(scores: pd.DataFrame) -> pd.Series:
    """Return the choice with the highest score, 0-based, by item; a warning counts ties.

    >>> predictions(pd.DataFrame([[-2.0, -1.0], [-1.0, -3.0]], index=["q1", "q2"])).tolist()
    [1, 0]
    """
    scores = check_scores(scores)
    best = scores.eq(scores.max(axis=1), axis=0).to_numpy()
    predicted = best.argmax(axis=1)
    tied = np.flatnonzero(best.sum(axis=1) > 1)
    for row in tied:
        places = np.flatnonzero(best[row])
        name = str(scores.index[row]).encode(errors="replace")
        predicted[row] = places[crc32(name) % len(places)]
    if len(tied):
        said = f"{len(tied)} of {len(best)} items, {format_names(scores.index[tied])}, have several"
        said += " choices with the highest score; one of them is taken as if by guessing"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    return pd.Series(predicted, index=scores.index, name="prediction")


def grade(answers: pd.DataFrame | pd.Series, scores: pd.DataFrame) -> pd.Series:
    """Return 1 where the choice with the highest score is the answer, else 0, by item.

    Parameters
    ----------
    answers : DataFrame or Series
        An items frame, or its answers by item; items without scores are not graded.
    scores : DataFrame, items x choices
        Natural logarithms; NaN where an item has fewer choices.

    Examples
    --------
    >>> scores = pd.DataFrame([[-2.0, -1.0], [-1.0, -3.0]], index=["q1", "q2"])
    >>> grade(pd.Series({"q1": 0, "q2": 0}), scores).tolist()
    [0.0, 1.0]
    """
    scores = check_scores(scores)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of ties
        predicted = predictions(scores)
    return predicted.eq(answer_places(answers, scores)).astype(float).rename("correct")


def choice_logprobs(
    items: pd.DataFrame,
    model: LanguageModel | str | Path,
    *,
    normalise: Normalise = "sum",
    prompt: str | Prompt = "auto",
    bos: str | None = "auto",
    device: Device = "auto",
    cache: bool = True,
    progress: bool = False,
) -> pd.DataFrame:
    """Return the log-probability (nats) that a model gives each choice of each item.

    Parameters
    ----------
    items : DataFrame
        An items frame; of a column ``hypothesis`` classifiers make pairs with the prompt.
    model : LanguageModel, str or Path
        What :func:`psychlm.lm.load` returns, or takes (on ``device``).
    normalise : {"sum", "token", "character", "byte", "unconditional"}
        Score of a choice by a language model: the log-probability of its tokens; that divided by
        their number, or by its characters or UTF-8 bytes without white space around it
        (``acc_norm`` and ``acc_bytes`` of lm-evaluation-harness); or minus its log-probability
        after a neutral prompt (Brown et al. 2020, section 2.4; Holtzman et al. 2021).
    prompt : str or Prompt
        How an item is put to a language model: see :func:`psychlm.lm.prompts.fill_prompts`.
    bos : str, optional
        Token before the prompt of a language model. ``"auto"``: of a causal model the one that its
        tokenizer puts before a text, if any (as in lm-evaluation-harness), of others that of
        :func:`psychlm.lm.surprisal`. None: no token, except before an empty prompt.
    cache, progress
        As in :func:`psychlm.lm.surprisal`.

    Returns
    -------
    DataFrame, index ``item``, columns 0 to most choices - 1
        NaN where an item has fewer choices. ``.attrs`` says how it was made, and names the items
        that a warning counts: ``truncated`` (prompts), ``unknown`` (characters of choices),
        ``spaced`` (two spaces before a choice), ``joined`` (prompt and choice in one token).

    Raises
    ------
    FrameError, ModelError
        If the items break their contract, or lack a field of the prompt; if the model cannot be
        opened, its labels do not match the choices, or it gives a choice NaN or infinity.

    Examples
    --------
    >>> items = pd.DataFrame({"item_id": ["q1"], "prompt": ["The old man"], "answer": [0]})
    >>> items["choices"] = [["sat down.", "of of of."]]
    >>> scores = choice_logprobs(items, "default", cache=False)
    >>> scores.shape, bool((scores < 0).all(axis=None))
    ((1, 2), True)
    """
    from psychlm.lm._choice_scores import score_items

    items = check_items(items)
    check_option("normalise", normalise, get_args(Normalise))
    model = opened(model, device)
    how = {"bos": bos, "cache": cache, "progress": progress}
    scores = score_items(items, model, normalise, prompt, **how)
    # Report items whose scores rest on less than their whole text.
    end = "end" if model.kind in HEADS else "beginning"
    reasons = {
        "truncated": f"are longer than {model.name} takes ({model.context_tokens} tokens), and "
        f"lost their {end}",
        "unknown": f"have choices with characters that the tokenizer of {model.name} does not know",
        "spaced": "have two spaces before a choice, one of their own beside the prompt's, "
        "and are scored as written",
        "joined": f"have a choice that the tokenizer of {model.name} joins with the prompt in one "
        "token (begin choices with a space)",
    }
    for name, reason in reasons.items():
        if marked := scores.attrs.get(name):
            said = f"{len(marked)} of {len(items)} items {reason}: {format_names(marked)}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
    return scores


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What models chose."""

    # by person and item, columns 0 to most choices - 1: natural logarithms, normalised as asked;
    # NaN where an item has fewer choices
    logprobs: pd.DataFrame
    predictions: pd.DataFrame  # persons x items: the choice with the highest score, 0-based
    # persons x items: 1 where it is the answer, else 0; of drawn answers a frames.Repeated
    responses: Any
    # by person: accuracy, truncated (prompts that were cut to fit the model), and how it was asked:
    # model, revision, normalise, prompt, bos
    persons: pd.DataFrame

    def __repr__(self) -> str:
        n_models, n_items = self.predictions.shape
        head = f"Evaluation of {n_models} models on {n_items} items"
        return f"{head}\n{self.persons[['accuracy', 'truncated']].to_string()}"


def evaluate(
    items: pd.DataFrame,
    models: Any,
    *,
    items_at_once: int | None = None,
    client: Client | str | None = None,
    samples: int | None = None,
    temperature: float = 1.0,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> Evaluation:
    """Let models choose among the choices of items, and grade them, here or on a cluster.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    models : model, or iterable or mapping of models
        Names, folders, or models in memory; the keys of a mapping, or else the models' names, name
        the persons. On a cluster names and folders, which every worker opens.
    items_at_once : int, optional
        How many items of a model are scored together, by one worker; all unless given.
    client : distributed.Client or str, optional
        As in :func:`surprisals`.
    samples, temperature, rng : int, float, and int or Generator
        Draw so many answers to each item by the confidences of scores divided by the temperature:
        ``responses`` are then :class:`psychlm.frames.Repeated`.
    **options
        Of :func:`choice_logprobs`.

    Returns
    -------
    Evaluation
        After an error, a second call resumes with the scores that are in the cache.

    Examples
    --------
    >>> items = pd.DataFrame({"item_id": ["q1"], "prompt": ["The old man"], "answer": [0]})
    >>> items["choices"] = [["sat down.", "of of of."]]
    >>> evaluate(items, "default", cache=False).predictions.loc["default", "q1"] in (0, 1)
    True
    """
    items = check_items(items)
    models = named_models(models, client)
    check_limit("items_at_once", items_at_once, 1)
    check_limit("samples", samples, 1)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: scores are divided by a number above 0")
    # A piece is a model, and where its items begin.
    size = items_at_once or len(items)
    begins = range(0, len(items), size)
    pieces = dict(enumerate((model, begin) for model in models.values() for begin in begins))
    scored = dict(run_pieces(client, _score_piece, (items, size, options), pieces))
    # Each model is a person: its scores, its predictions, and what it was asked with.
    logprobs = {}
    predicted = {}
    persons = {}
    kept = ("model", "revision", "normalise", "prompt", "bos")
    for k, person in enumerate(models):
        parts = [scored[k * len(begins) + i] for i in range(len(begins))]
        truncated = sum(len(about["truncated"]) for _, about in parts)
        persons[person] = {"truncated": truncated} | {name: parts[0][1][name] for name in kept}
        logprobs[person] = pd.concat([scores for scores, _ in parts])
        predicted[person] = predictions(logprobs[person])
    choices = pd.DataFrame(predicted).T.rename_axis("person")
    answers = items.set_index("item_id")["answer"]
    responses: Any = check_responses(choices.eq(answers, axis=1).astype(float))
    if samples is not None:
        options = {"temperature": temperature, "rng": rng}
        responses = draw_responses(logprobs, answers, samples, **options)
    described = pd.DataFrame.from_dict(persons, orient="index").rename_axis("person")
    described.insert(0, "accuracy", mean_responses(responses).mean(axis=1))
    return Evaluation(pd.concat(logprobs, names=["person"]), choices, responses, described)


def draw_responses(
    logprobs: Mapping[Any, pd.DataFrame],
    answers: pd.DataFrame | pd.Series,
    samples: int,
    *,
    temperature: float = 1.0,
    rng: int | np.random.Generator = 0,
) -> Repeated:
    """Return how many of the answers that models draw to each item are right.

    Parameters
    ----------
    logprobs : mapping from persons to DataFrames, items x choices
        Scores, as :func:`choice_logprobs` returns them.
    answers : DataFrame or Series
        An items frame, or its answers by item.
    samples, temperature, rng : int, float, and int or Generator
        As in :func:`evaluate`.

    Examples
    --------
    >>> scores = pd.DataFrame([[-0.1, -20.0], [-9.0, -0.2]], index=["q1", "q2"])
    >>> draw_responses({"m": scores}, pd.Series({"q1": 0, "q2": 0}), 8).correct.loc["m"].tolist()
    [8.0, 0.0]
    """
    rng = np.random.default_rng(rng)
    right = {}
    for person, scores in logprobs.items():
        probability = confidences(scores / temperature).to_numpy()
        of_answer = probability[np.arange(len(scores)), answer_places(answers, scores)]
        right[person] = pd.Series(rng.binomial(samples, of_answer), scores.index)
    correct = pd.DataFrame(right).T
    return Repeated(correct, correct * 0 + samples)


def _score_piece(
    shared: tuple[pd.DataFrame, int, dict[str, Any]], piece: tuple[Any, int]
) -> tuple[Any, dict[str, Any]]:
    """Return the scores of a model's choices in some items, and how it was asked."""
    items, size, options = shared
    model, begin = piece
    scores = choice_logprobs(items[begin : begin + size], model, **options)
    about = scores.attrs
    scores.attrs = {}
    return scores, about


class ItemTaker:
    """A language model that answers one item at a time, for :func:`psychlm.irt.adaptive_test`.

    Parameters
    ----------
    items : DataFrame
        An items frame; ``item_id`` are the names of the items in the bank.
    model : LanguageModel, str or Path
    **options
        Of :func:`choice_logprobs`.

    Attributes
    ----------
    n_scored : int
        Choices scored so far, or taken from the cache.

    Examples
    --------
    >>> items = pd.DataFrame({"item_id": ["q1"], "prompt": ["The old man"], "answer": [0]})
    >>> items["choices"] = [["sat down.", "of of of."]]
    >>> taker = ItemTaker(items, "default", cache=False)
    >>> taker("q1") in (0, 1), taker.n_scored
    (True, 2)
    """

    def __init__(self, items: pd.DataFrame, model: Any, **options: Any) -> None:
        self.items = check_items(items).set_index("item_id", drop=False)
        self.model = opened(model, options.pop("device", "auto"))
        self.options = options
        self.n_scored = 0

    def __call__(self, item: Any) -> float:
        """Return 1 if the model's answer to an item is right, else 0; NaN if it has no text."""
        if item not in self.items.index:
            return float("nan")
        one = self.items.loc[[item]].reset_index(drop=True)
        scores = choice_logprobs(one, self.model, **self.options)
        self.n_scored += scores.shape[1]
        return float(grade(one, scores).iloc[0])
