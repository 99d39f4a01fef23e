"""Item parameters, responses and responders of known properties, to test estimation on known truth.

Reading times are simulated by :mod:`psychlm.reading_times.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

from psychlm.frames import FrameError, check_items


def items(
    n_items: int,
    rng: np.random.Generator,
    model: str = "2PL",
    *,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Draw item parameters of a 1PL, Rasch, 2PL or 3PL model.

    Difficulties are N(0, 1); slopes lognormal(0, 0.5) for the 2PL and 3PL, else 1; guessing uniform
    on [0.1, 0.3] for the 3PL, else 0: usual in recovery studies (Harwell & Janosky 1991).

    Returns
    -------
    DataFrame, indexed by ``item``
        Columns ``a`` (slope, per logit), ``b`` (difficulty, logits) and ``c`` (guessing).
    """
    if model not in ("1PL", "Rasch", "2PL", "3PL"):
        raise ValueError(f"model {model!r} is not one of '1PL', 'Rasch', '2PL', '3PL'")
    if names is None:
        width = len(str(n_items))
        names = [f"item-{i + 1:0{width}d}" for i in range(n_items)]
    a = rng.lognormal(0, 0.5, n_items) if model in ("2PL", "3PL") else np.ones(n_items)
    b = rng.normal(0, 1, n_items)
    c = rng.uniform(0.1, 0.3, n_items) if model == "3PL" else np.zeros(n_items)
    return pd.DataFrame({"a": a, "b": b, "c": c}, index=pd.Index(names, name="item"))


def responses(
    theta: np.ndarray | pd.Series,
    items: pd.DataFrame,
    rng: np.random.Generator,
    *,
    missing: float = 0.0,
) -> pd.DataFrame:
    """Draw graded responses of persons with known ability to items with known parameters.

    The probability of a right response is c + (1 - c) / (1 + exp(-a (theta - b))) (Birnbaum 1968,
    the 3PL).

    Parameters
    ----------
    theta : array, shape (n_persons,)
        Abilities in logits; a Series gives the persons its index.
    items : DataFrame with columns ``a``, ``b`` and ``c``, as :func:`items` returns.
    missing : float
        Share of responses that were not asked (NaN), at random.

    Returns
    -------
    DataFrame, shape (n_persons, n_items)
        A responses frame: 0, 1 or NaN.

    Raises
    ------
    ValueError
        If the items have upper asymptotes ``u`` below 1, which this model does not know.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> responses([-1.0, 1.0], items(3, rng), rng).shape
    (2, 3)
    """
    if "u" in items and (items["u"] != 1).any():
        raise ValueError(
            "items have upper asymptotes u below 1, and responses are drawn from the 3PL only; "
            "drop the column u to draw from the 3PL"
        )
    ability = np.asarray(theta, dtype=float)
    if isinstance(theta, pd.Series):
        persons = theta.index.rename("person")
    else:
        persons = pd.Index([f"person-{i + 1}" for i in range(len(ability))], name="person")
    a, b, c = (items[name].to_numpy() for name in "abc")
    probability = c + (1 - c) * expit(a * (ability[:, None] - b))
    drawn = (rng.random(probability.shape) < probability).astype(float)
    if missing:
        drawn[rng.random(drawn.shape) < missing] = np.nan
    return pd.DataFrame(drawn, index=persons, columns=items.index.rename("item"))


def random_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, spread: float = 1.0
) -> pd.DataFrame:
    """Return the scores of :func:`length_biased_responder` without its bias: random ones."""
    return length_biased_responder(items, rng=rng, nats_per_sd=0.0, spread=spread)


def length_biased_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, nats_per_sd: float = 1.0, spread: float = 1.0
) -> pd.DataFrame:
    """Return the scores of a responder that prefers long choices, and is random otherwise.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    nats_per_sd : float
        Gain of a choice that is longer by one standard deviation, within items, of lengths in
        characters.
    spread : float
        Standard deviation in nats of the random part.

    Returns
    -------
    DataFrame, items x choices
        Logarithms of probabilities over the item's choices.
    """
    n = check_items(items)["choices"].map(len).to_numpy()
    lengths = np.full((len(items), n.max()), np.nan)
    lengths[np.arange(n.max()) < n[:, None]] = items["choices"].explode().str.len()
    centred = lengths - np.nanmean(lengths, axis=1, keepdims=True)
    sd = np.nanstd(centred)
    if sd == 0 and nats_per_sd:
        raise FrameError("the choices of each item have one length: no length to prefer")
    scores = nats_per_sd * centred / (sd or 1) + spread * rng.normal(size=lengths.shape)
    top = np.nanmax(scores, axis=1, keepdims=True)
    log_sum = top + np.log(np.nansum(np.exp(scores - top), axis=1, keepdims=True))
    return pd.DataFrame(scores - log_sum, index=pd.Index(items["item_id"], name="item"))
