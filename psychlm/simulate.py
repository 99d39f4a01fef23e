"""Responses from known parameters: what every estimate in the house is tried on (readings: psychlm.reading_times.simulate).

Everything takes a :class:`numpy.random.Generator`, so that a seed fixes the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import expit


def items(
    n_items: int,
    rng: np.random.Generator,
    model: str = "2PL",
    *,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Draw item parameters of a 1PL, Rasch, 2PL or 3PL model.

    Difficulties are N(0, 1); slopes lognormal(0, 0.5) for the 2PL and 3PL, else 1; guessing uniform on [0.1, 0.3] for
    the 3PL, else 0: the ranges that recovery studies of these models use (for instance Harwell & Janosky 1991).

    Returns
    -------
    DataFrame, indexed by ``item``
        Columns ``a`` (slope, per logit), ``b`` (difficulty, logits) and ``c`` (guessing, a probability).
    """
    kind = model.upper()
    if kind not in ("1PL", "RASCH", "2PL", "3PL"):
        raise ValueError(f"model {model!r} is not one of '1PL', 'Rasch', '2PL', '3PL'")
    free_slopes = kind in ("2PL", "3PL")
    labels = (
        list(names)
        if names is not None
        else [f"item-{i + 1:0{len(str(n_items))}d}" for i in range(n_items)]
    )
    return pd.DataFrame(
        {
            "a": rng.lognormal(0, 0.5, n_items) if free_slopes else np.ones(n_items),
            "b": rng.normal(0, 1, n_items),
            "c": rng.uniform(0.1, 0.3, n_items) if kind == "3PL" else np.zeros(n_items),
        },
        index=pd.Index(labels, name="item"),
    )


def responses(
    theta: np.ndarray | pd.Series,
    items: pd.DataFrame,
    rng: np.random.Generator,
    *,
    missing: float = 0.0,
) -> pd.DataFrame:
    """Draw graded responses of persons with known ability to items with known parameters.

    The probability of a right answer is c + (1 - c) / (1 + exp(-a (theta - b))) (Birnbaum 1968, the 3PL).

    Parameters
    ----------
    theta : array, shape (n_persons,)
        Abilities in logits; a Series lends its index to the persons.
    items : DataFrame with columns ``a``, ``b`` and ``c``, as :func:`items` gives.
    missing : float
        The share of answers that were not asked (NaN), at random.

    Returns
    -------
    DataFrame, shape (n_persons, n_items)
        A responses frame: 0, 1 or NaN.
    """
    ability = np.asarray(theta, dtype=float)
    persons = (
        theta.index
        if isinstance(theta, pd.Series)
        else [f"person-{i + 1}" for i in range(len(ability))]
    )
    a, b, c = (items[name].to_numpy() for name in "abc")
    probability = c + (1 - c) * expit(a * (ability[:, None] - b))
    drawn = (rng.random(probability.shape) < probability).astype(float)
    if missing:
        drawn[rng.random(drawn.shape) < missing] = np.nan
    return pd.DataFrame(
        drawn, index=pd.Index(persons, name="person"), columns=items.index.rename("item")
    )
