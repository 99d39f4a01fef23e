"""Item parameters, responses and responders of known properties, to test estimation on known truth.

Reading times are simulated by :mod:`psychlm.reading_times.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from psychlm.frames import FrameError, Repeated, by_person, check_items, refuse
from psychlm.irt.response_functions import model_named

if TYPE_CHECKING:
    from psychlm.irt.model_tables import ModelTables
    from psychlm.irt.result import IRTFit


def items(
    n_items: int,
    rng: np.random.Generator,
    model: str = "2PL",
    *,
    n_categories: int = 4,
) -> pd.DataFrame:
    """Draw item parameters of any model that :func:`psychlm.irt.fit` knows.

    Slopes ``a`` are lognormal(0, 0.5) where they are free, else 1; difficulties ``b`` N(0, 1)
    logits; guessing ``c`` uniform on [0.1, 0.3] and upper asymptotes ``u`` on [0.85, 0.98] where
    the model has them (Harwell & Janosky 1991). Steps ``b1``, ``b2``, ... of polytomous items lie
    one logit apart, up to a random shift of each by N(0, 0.1^2). Nominal items have slopes ``a1``,
    ``a2``, ... about a, 2 a, ...

    >>> items(3, rng=np.random.default_rng(0)).columns.tolist()
    ['a', 'b', 'c']
    """
    model_form = model_named(model)
    width = len(str(n_items))
    index = pd.Index([f"item-{i + 1:0{width}d}" for i in range(n_items)], name="item")
    a = np.ones(n_items) if model_form.common_slope else rng.lognormal(0, 0.5, n_items)
    b = rng.normal(0, 1, n_items)
    if not model_form.dichotomous:
        steps = np.arange(n_categories - 1) - (n_categories - 2) / 2
        shifted = np.sort(b[:, None] + steps + rng.normal(0, 0.1, (n_items, n_categories - 1)))
        steps_of = {f"b{k}": column for k, column in enumerate(shifted.T, start=1)}
        table = pd.DataFrame({"a": a} | steps_of, index=index)
        return table if model_form.form.ordered else _nominal_items(table, rng)
    c = rng.uniform(0.1, 0.3, n_items) if "guessing" in model_form.free else np.zeros(n_items)
    table = pd.DataFrame({"a": a, "b": b, "c": c}, index=index)
    return table.assign(u=rng.uniform(0.85, 0.98, n_items)) if "upper" in model_form.free else table


def _nominal_items(ordered: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return nominal items whose slopes lie about those of partial-credit items."""
    steps = ordered.filter(regex=r"^b\d").to_numpy().T
    slopes = ordered["a"].to_numpy() * np.arange(1, len(steps) + 1)[:, None]
    slopes = slopes + rng.normal(0, 0.3, slopes.shape)
    columns = {f"a{k}": column for k, column in enumerate(slopes, start=1)}
    intercepts = -(ordered["a"].to_numpy() * steps).cumsum(axis=0)
    columns |= {f"d{k}": column for k, column in enumerate(intercepts, start=1)}
    return pd.DataFrame(columns, index=ordered.index)


def responses(
    theta: np.ndarray | pd.Series,
    items: pd.DataFrame | IRTFit | ModelTables,
    rng: np.random.Generator,
    *,
    model: str = "2PL",
    missing: float = 0.0,
    repeats: int = 1,
) -> Any:
    """Draw responses of persons with known ability to items with known parameters.

    Parameters
    ----------
    theta : array, shape (n_persons,)
        Abilities in logits; a Series gives the persons its index. The result is persons x items.
    items : DataFrame, IRTFit or ModelTables
        A table of items, as :func:`items` returns, or a fit of any model. Who draws thousands of
        times from a table passes ``irt.ModelTables.of_items(table)``, in half the time.
    model : str
        Of a table of items: "graded" or "gpcm", or any dichotomous one, which are all drawn alike,
        with the asymptotes ``c`` and ``u`` of the table.
    missing : float
        Share of responses that were not asked (NaN), at random.
    repeats : int
        How often each item is answered; more than once gives a :class:`psychlm.frames.Repeated`.

    Returns
    -------
    DataFrame or Repeated

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> responses([-1.0, 1.0], items(3, rng), rng).shape
    (2, 3)
    """
    from psychlm.irt.model_tables import ModelTables  # with torch, which takes a second to import

    tables = ModelTables.of(items, model)
    names = tables.items
    levels = tables.levels
    ability = np.asarray(theta, dtype=float)
    if isinstance(theta, pd.Series):
        persons = theta.index.rename("person")
    else:
        persons = pd.Index([f"person-{i + 1}" for i in range(len(ability))], name="person")
    refuse("persons", persons[np.isnan(ability)], "have no ability; leave them out")
    if not 0 <= missing <= 1:
        raise ValueError(f"missing={missing} is no share of responses; give a number from 0 to 1")
    probability = tables.functions.probability_at(ability)  # (n_items, n_categories, n_persons)
    if repeats > 1:
        if levels is not None:
            raise ValueError("repeats are numbers of right answers, and these items have ratings")
        n = np.where(rng.random(probability[:, 1].T.shape) < missing, 0, repeats)
        correct = rng.binomial(n, probability[:, 1].T)
        return Repeated(*(pd.DataFrame(table, persons, names) for table in (correct, n)))
    at_least = probability[:, ::-1].cumsum(1)[:, -2::-1]  # P(category k or above), k = 1, 2, ...
    drawn = (rng.random((len(ability), len(names))) < at_least.transpose(1, 2, 0)).sum(0)
    answers = drawn.astype(float)
    if levels is not None:
        for column, item in enumerate(names):
            answers[:, column] = np.asarray(levels[item], float)[drawn[:, column]]
    if missing:
        answers[rng.random(drawn.shape) < missing] = np.nan
    return pd.DataFrame(answers, index=persons, columns=names.rename("item"))


def plant_fault(
    responses: pd.DataFrame,
    item: object,
    fault: str,
    rng: np.random.Generator,
    *,
    like: object = None,
    members: Sequence | pd.Series | None = None,
) -> pd.DataFrame:
    """Return responses in which one item has a fault that ``irt.flag_items`` looks for.

    "wrong_key": right and wrong change places. "no_right_answer": everybody guesses, right once in
    four. "two_right_answers": a right response is marked wrong half of the time.
    "only_guessers": those who were wrong guess, the others are wrong. "near_duplicate": the
    responses to the item ``like``, of which one in twenty is turned. "drift": of ``members``
    (booleans by person), four in five wrong responses become right. Who was not asked the item
    remains so.

    >>> answers = pd.DataFrame({"q1": [0.0, 1.0, 1.0], "q2": [1.0, 0.0, 1.0]})
    >>> plant_fault(answers, "q1", "wrong_key", np.random.default_rng(0))["q1"].tolist()
    [1.0, 0.0, 0.0]
    """
    if (fault, like) == ("near_duplicate", None) or (fault == "drift" and members is None):
        raise ValueError("fault 'near_duplicate' takes an item like=, and 'drift' members=")
    right = responses[item].to_numpy(float)
    guess = (rng.random(len(right)) < 1 / 4).astype(float)
    if fault == "wrong_key":
        planted = 1 - right
    elif fault == "no_right_answer":
        planted = guess
    elif fault == "two_right_answers":
        planted = right * (rng.random(len(right)) < 0.5)
    elif fault == "only_guessers":
        planted = (1 - right) * guess
    elif fault == "near_duplicate":
        planted = np.abs(responses[like].to_numpy(float) - (rng.random(len(right)) < 0.05))
    elif fault == "drift":
        member = by_person(responses.index, members, "member").to_numpy(bool)
        helped = member & (rng.random(len(right)) < 0.8)
        planted = np.where(helped, 1.0, right)
    else:
        raise ValueError(f"no fault is named {fault!r}; see psychlm.irt.broken_items.FAULTS")
    changed = responses.copy()
    changed[item] = np.where(np.isnan(right), np.nan, planted)
    return changed


def random_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, spread: float = 1.0
) -> pd.DataFrame:
    """Return the scores of :func:`length_biased_responder` without its bias: random ones.

    >>> asked = pd.DataFrame({"item_id": ["q"], "prompt": ["1 + 1?"], "choices": [["2", "eleven"]]})
    >>> asked["answer"] = 0
    >>> np.exp(random_responder(asked, rng=np.random.default_rng(0))).sum(axis=1).round(6).tolist()
    [1.0]
    """
    return length_biased_responder(items, rng=rng, nats_per_sd=0.0, spread=spread)


def length_biased_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, nats_per_sd: float = 1.0, spread: float = 1.0
) -> pd.DataFrame:
    """Return the scores of a responder that prefers long choices, and is random otherwise.

    A choice gains ``nats_per_sd`` if it is longer by one standard deviation, within items, of
    lengths in characters; ``spread`` is the standard deviation in nats of the random part. Scores
    are logarithms of probabilities over the item's choices, items x choices.

    >>> asked = pd.DataFrame({"item_id": ["q"], "prompt": ["1 + 1?"], "choices": [["2", "eleven"]]})
    >>> asked["answer"] = 0
    >>> scores = length_biased_responder(asked, rng=np.random.default_rng(0), nats_per_sd=9.0)
    >>> int(scores.loc["q"].idxmax())
    1
    """
    n = check_items(items)["choices"].map(len).to_numpy()
    lengths = np.full((len(items), n.max()), np.nan)
    lengths[np.arange(n.max()) < n[:, None]] = items["choices"].explode().str.len()
    centred = lengths - np.nanmean(lengths, axis=1, keepdims=True)
    sd = np.nanstd(centred)
    if sd == 0 and nats_per_sd:
        raise FrameError("the choices of each item have one length: no length to prefer")
    scores = nats_per_sd * centred / (sd or 1) + spread * rng.normal(size=lengths.shape)
    log_sum = logsumexp(np.nan_to_num(scores, nan=-np.inf), axis=1, keepdims=True)
    return pd.DataFrame(scores - log_sum, index=pd.Index(items["item_id"], name="item"))
