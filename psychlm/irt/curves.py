r"""Item characteristic curves and information of dichotomous items, logistic metric (D = 1).

.. math:: P_i(\theta) = c_i + \frac{u_i - c_i}{1 + e^{-(a_i\theta + d_i)}}, \qquad d_i = -a_i b_i

Items are a frame with the columns ``a`` (slope, per logit), ``d`` (intercept) or ``b`` (difficulty,
logits), ``c`` (guessing, 0 if absent) and ``u`` (upper asymptote, 1 if absent). Slope and intercept
are the source, since b is infinite for a flat item; where both b and d are given they must agree.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from psychlm.frames import FrameError, format_names

AGREEMENT = 1e-3  # logits, relative to the size of slope and intercept: tables of three decimals


def item_parameters(items: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return slopes, intercepts and guessing parameters of items without upper asymptotes.

    As :func:`four_parameters`, which it calls; refuses items whose ``u`` is below 1.

    Examples
    --------
    >>> item_parameters(pd.DataFrame({"a": [2.0], "b": [0.5]}))
    (array([2.]), array([-1.]), array([0.]))
    """
    a, d, c, u = four_parameters(items)
    if (u < 1).any():
        raise FrameError(
            "items have upper asymptotes u below 1 (4PL), which this function does not support; "
            "drop the column u, or leave these items out"
        )
    return a, d, c


def four_parameters(
    items: pd.DataFrame,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return slopes, intercepts, lower and upper asymptotes of a table of items.

    Parameters
    ----------
    items : DataFrame, indexed by item
        Columns ``a``, and ``d`` or ``b`` (or both), and optionally ``c`` (0) and ``u`` (1).

    Raises
    ------
    FrameError
        If a column is missing or not numeric, b and d disagree, or c and u are not 0 <= c < u <= 1.
    """
    if isinstance(items, pd.DataFrame) and "d1" in items:
        raise FrameError(
            "items have several categories, and this function takes dichotomous ones; use the "
            "methods of the fit (score, probability, information), or grade the answers"
        )
    if not isinstance(items, pd.DataFrame) or "a" not in items or not {"b", "d"} & set(items):
        columns = list(items) if isinstance(items, pd.DataFrame) else type(items).__name__
        raise FrameError(f"items need the columns a and b (or d), and have {columns}")
    try:
        known = items.reindex(columns=list("abcdu")).astype(float)
    except (TypeError, ValueError):
        raise FrameError("item parameters are not all numbers; clean the columns a to d") from None
    a, b, d = (known[name].to_numpy() for name in "abd")
    if "d" not in items:
        d = -a * b
    elif "b" in items:
        with np.errstate(invalid="ignore"):
            apart = np.abs(d + a * b) > AGREEMENT * (1 + np.abs(a) + np.abs(d))
        if (apart & np.isfinite(b)).any():
            raise FrameError(
                f"b and d disagree for items {format_names(items.index[apart])}: d should be -a b; "
                "change the scale with irt.link(items, slope=, intercept=), or drop one of the two"
            )
    c, u = known["c"].fillna(0.0).to_numpy(), known["u"].fillna(1.0).to_numpy()
    wrong = ~((c >= 0) & (c < u) & (u <= 1))
    if wrong.any():
        raise FrameError(
            f"items {format_names(items.index[wrong])} have a guessing parameter outside [0, 1), "
            "or an upper asymptote that is not above it and at most 1"
        )
    return a, d, c, u


def probability(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the probability of a correct response, shape (n_theta, n_items).

    Parameters
    ----------
    theta : array_like, shape (n_theta,)
        Abilities in logits.
    items : DataFrame, one row per item
        Parameters as :func:`item_parameters` takes them.

    References
    ----------
    Birnbaum (1968); Lalor (2020), equations 1.5 and 1.7.

    Examples
    --------
    >>> probability([0.5], pd.DataFrame({"a": [1.0, 2.0], "b": [0.5, 0.5], "c": [0.0, 0.2]}))
    array([[0.5, 0.6]])
    """
    a, d, c, u = four_parameters(items)
    return c + (u - c) * expit(np.multiply.outer(np.atleast_1d(np.asarray(theta, float)), a) + d)


def log_probabilities(linear: np.ndarray, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log P and log(1 - P), given a theta + d and c; neither P nor 1 - P is rounded to 0.

    Examples
    --------
    >>> log_probabilities(np.array([0.0, 800.0]), np.zeros(2))[1].round(3).tolist()
    [-0.693, -800.0]
    """
    log_not_guessed = np.log1p(-guess)
    with np.errstate(divide="ignore"):  # log 0, where there is no guessing
        log_right = np.logaddexp(np.log(guess), log_not_guessed + log_expit(linear))
    return log_right, log_not_guessed + log_expit(-linear)


def item_information(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the Fisher information about ability, P'^2 / (P Q), in 1 / logit^2.

    The shape is (n_theta, n_items); Birnbaum (1968), equation 20.2.3.
    """
    a, _, c, u = four_parameters(items)
    p = probability(theta, items)
    logistic = (p - c) / (u - c)
    derivative = a * (u - c) * logistic * (1 - logistic)
    pq = p * (1 - p)
    return np.divide(derivative**2, pq, out=np.zeros_like(pq), where=pq > 0)


def test_information(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the test's information, (n_theta,): ability's standard error is its -1/2 power."""
    return item_information(theta, items).sum(axis=1)


test_information.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest


def empirical_curve(
    theta: ArrayLike, responses: ArrayLike, grid: ArrayLike, *, n_groups: int = 20
) -> np.ndarray:
    """Return the proportion correct as a smooth function of ability, without a response model.

    Persons are put into groups of similar ability, and a cubic smoothing spline goes through the
    groups' proportions; generalised cross-validation chooses the smoothing. Figure 2.3 of Lalor
    (2020) lays such curves over the fitted ones.

    Parameters
    ----------
    theta : array_like, shape (n_persons,)
        Abilities in logits, such as EAP scores.
    responses : array_like, shape (n_persons,)
        0, 1 or NaN (not asked).
    grid : array_like, shape (n_grid,)
        Abilities at which to evaluate; the result is NaN outside the range of the groups.
    n_groups : int
        Groups of about equal size; fewer where abilities are tied.

    Raises
    ------
    FrameError
        If abilities fall into fewer than five groups, too few for a spline.
    """
    frame = pd.DataFrame({"theta": np.asarray(theta, float), "x": np.asarray(responses, float)})
    frame = frame.dropna()
    groups = frame.groupby(pd.qcut(frame["theta"], n_groups, duplicates="drop"), observed=True)
    table = groups.agg(theta=("theta", "mean"), correct=("x", "mean"), n=("x", "size"))
    if len(table) < 5:
        raise FrameError(
            f"abilities of {len(frame)} persons fall into {len(table)} groups, and a spline needs "
            "at least 5; ask for more groups, or plot the proportions of the groups as points"
        )
    spline = scipy.interpolate.make_smoothing_spline(table["theta"], table["correct"], w=table["n"])
    grid = np.asarray(grid, float)
    inside = (grid >= table["theta"].iloc[0]) & (grid <= table["theta"].iloc[-1])
    return np.where(inside, np.clip(spline(grid), 0, 1), np.nan)
