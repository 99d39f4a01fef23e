r"""Item characteristic curves and information, from the 1PL to the 4PL, on the logistic metric (D = 1).

.. math:: P_i(\theta) = c_i + \frac{u_i - c_i}{1 + e^{-a_i(\theta - b_i)}}

Items are a frame with the columns ``a`` (slope, per logit), ``b`` (difficulty, logits), ``c`` (guessing, default 0) and
``u`` (upper asymptote, default 1). Where the intercept ``d`` = -a b stands beside them it is used, since b is infinite
for a flat item and d is not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.interpolate import make_smoothing_spline
from scipy.special import expit

from psychlm.frames import FrameError


def probability(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the probability of a right answer.

    Parameters
    ----------
    theta : array_like, shape (n_theta,)
        Abilities in logits.
    items : DataFrame, one row per item
        Parameters ``a`` and ``b`` (or ``d``), optionally ``c`` and ``u``.

    Returns
    -------
    ndarray, shape (n_theta, n_items)

    References
    ----------
    Birnbaum (1968); Lalor (2020), equations 1.5 and 1.7; Barton and Lord (1981) for the upper asymptote.

    Examples
    --------
    >>> probability([0.5], pd.DataFrame({"a": [1.0, 2.0], "b": [0.5, 0.5], "c": [0.0, 0.2]}))
    array([[0.5, 0.6]])
    """
    logistic, lower, upper, _ = _curve(theta, items)
    return lower + (upper - lower) * logistic


def item_information(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the Fisher information about ability, P'^2 / (P Q), in 1 / logit^2 (Birnbaum 1968, equation 20.2.3).

    Returns
    -------
    ndarray, shape (n_theta, n_items)
    """
    logistic, lower, upper, slope = _curve(theta, items)
    p = lower + (upper - lower) * logistic
    derivative = slope * (upper - lower) * logistic * (1 - logistic)
    pq = p * (1 - p)
    return np.divide(derivative**2, pq, out=np.zeros_like(pq), where=pq > 0)


def test_information(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the sum of the items' information, shape (n_theta,); an ability's standard error is its inverse root."""
    return item_information(theta, items).sum(axis=1)


test_information.__test__ = False  # type: ignore[attr-defined]  # pytest collects names that begin with "test"


def empirical_curve(
    theta: ArrayLike, answers: ArrayLike, at: ArrayLike, *, n_groups: int = 20
) -> np.ndarray:
    """Return the share of right answers as a smooth function of ability, with no item response model behind it.

    Persons are put into groups of like ability, and a cubic smoothing spline goes through the groups' shares, with the
    smoothing chosen by generalised cross-validation: what Figure 2.3 of Lalor (2020) lays over the fitted curve.

    Parameters
    ----------
    theta : array_like, shape (n_persons,)
        Abilities in logits, such as EAP scores.
    answers : array_like, shape (n_persons,)
        0, 1 or NaN (not asked).
    at : array_like, shape (n_at,)
        Abilities at which the curve is wanted; NaN is returned outside the range of the groups.
    n_groups : int
        Groups of about equal size; fewer where abilities are tied.

    Raises
    ------
    FrameError
        If abilities fall into fewer than five groups, too few for a spline.
    """
    frame = pd.DataFrame(
        {"theta": np.asarray(theta, float), "answer": np.asarray(answers, float)}
    ).dropna()
    groups = frame.groupby(pd.qcut(frame["theta"], n_groups, duplicates="drop"), observed=True)
    table = groups.agg(theta=("theta", "mean"), share=("answer", "mean"), n=("answer", "size"))
    if len(table) < 5:
        raise FrameError(
            f"abilities of {len(frame)} persons fall into {len(table)} groups, and a spline needs at least 5; "
            "ask for more groups or draw the groups' shares as points"
        )
    spline = make_smoothing_spline(table["theta"], table["share"], w=table["n"])
    at = np.asarray(at, float)
    inside = (at >= table["theta"].iloc[0]) & (at <= table["theta"].iloc[-1])
    return np.where(
        inside, np.clip(spline(at), 0, 1), np.nan
    )  # a share lies in [0, 1]; a cubic may leave it


def _curve(
    theta: ArrayLike, items: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the logistic part (n_theta, n_items), lower and upper asymptotes and slopes (n_items,)."""
    if "a" not in items or not ({"b", "d"} & set(items.columns)):
        raise FrameError(
            f"an item frame needs the columns a and b (or d), and has {list(items.columns)}"
        )
    slope = items["a"].to_numpy(float)
    intercept = items["d"].to_numpy(float) if "d" in items else -slope * items["b"].to_numpy(float)
    lower = items["c"].to_numpy(float) if "c" in items else np.zeros(len(items))
    upper = items["u"].to_numpy(float) if "u" in items else np.ones(len(items))
    logits = np.multiply.outer(np.atleast_1d(np.asarray(theta, float)), slope) + intercept
    return expit(logits), lower, upper, slope
