r"""Computerised adaptive testing, replayed on recorded responses.

After :math:`t` items a person's ability has the posterior

.. math:: p(\theta \mid u_1, \dots, u_t) \propto \phi(\theta) \prod_{k=1}^{t} P_k(\theta)^{u_k}
   (1 - P_k(\theta))^{1 - u_k},

here on a grid that resolves the steepest item. The next item is the one with the largest Fisher
information :math:`I_i(\hat\theta)` at the current estimate, or with the largest posterior mean of
:math:`I_i(\theta)` (van der Linden 1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import softmax

from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt.curves import item_information, item_parameters, log_probabilities

Rule = Literal["information", "posterior", "stratified", "random"]
LIMIT = 6.0  # logits: abilities from -LIMIT to LIMIT
MOST_NODES = 2401


@dataclass(frozen=True)
class AdaptiveTest:
    """A replayed adaptive test; arrays have one row per person and one column per step.

    Attributes
    ----------
    asked : DataFrame of item names
        The items in the order in which each person was asked; None after the test has ended.
    theta, se : DataFrame
        Ability (logits) and its posterior standard deviation after each step.
    score : DataFrame
        Expected proportion correct on the whole bank after each step.
    n_asked : Series
        Number of items each person was asked.
    """

    asked: pd.DataFrame
    theta: pd.DataFrame
    se: pd.DataFrame
    score: pd.DataFrame
    n_asked: pd.Series


def adaptive_test(
    items: pd.DataFrame,
    responses: pd.DataFrame,
    *,
    n_items: int = 20,
    rule: Rule = "information",
    method: Literal["eap", "map"] = "eap",
    stop_se: float | None = None,
    content: pd.Series | None = None,
    rng: np.random.Generator | None = None,
) -> AdaptiveTest:
    """Ask each person the next best items of a calibrated bank, using their recorded responses.

    Parameters
    ----------
    items : DataFrame, one row per item
        Parameters ``a``, ``b`` or ``d``, and ``c``, as in ``irt.fit(...).items``.
    responses : DataFrame, shape (n_persons, n_items)
        Recorded responses to the items; an item is not asked where its response is missing.
    n_items : int
        Items asked of each person at most.
    rule : "information", "posterior", "stratified" or "random"
        Largest information at the current estimate; largest posterior mean of the information; a
        random item from each difficulty stratum in turn; or a random item.
    method : "eap" or "map"
        Posterior mean or mode as the estimate of ability.
    stop_se : float, optional
        A person's test ends once the posterior standard deviation (logits) is at most this.
    content : Series, item -> content area, optional
        Each next item comes from the area that is furthest below its share of the bank.
    rng : Generator
        Source of random items; required by the rules "stratified" and "random".

    Returns
    -------
    AdaptiveTest

    Raises
    ------
    FrameError
        If items and responses do not match, or an item has no content area.

    References
    ----------
    van der Linden (1998), Psychometrika 63, 201-216; Magis & Raiche (2012), Journal of
    Statistical Software 48(8).

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> test = irt.adaptive_test(irt.fit(lsat, "2PL").items, lsat.iloc[:2], n_items=2)
    >>> test.asked.shape
    (2, 2)
    """
    graded = check_responses(responses)
    unknown = graded.columns.symmetric_difference(items.index)
    if len(unknown):
        raise FrameError(
            f"items and responses differ in {format_names(unknown)}; pass the same items to both"
        )
    if rule in ("stratified", "random") and rng is None:
        raise ValueError(f"rule={rule!r} needs a generator: rng=np.random.default_rng(seed)")
    bank = items.loc[graded.columns]
    given, n_persons, n_bank = graded.to_numpy(float), len(graded), len(bank)
    n_steps = min(n_items, n_bank)

    grid, log_right, log_wrong, information = bank_tables(bank)
    expected_score = np.exp(log_right).mean(axis=1)
    log_posterior = np.tile(-(grid**2) / 2, (n_persons, 1))

    areas = content_areas(bank, content)
    in_area = areas == np.arange(areas.max() + 1)[:, None]  # areas x items
    share = in_area.mean(axis=1)
    # The difficulty of an item is where it is most informative; strata hold equally many items.
    rank = information.argmax(axis=0).argsort().argsort()
    stratum = rank * n_steps // n_bank

    available, running = ~np.isnan(given), np.ones(n_persons, dtype=bool)
    n_in_area = np.zeros((n_persons, len(share)))
    asked = np.full((n_persons, n_steps), -1)
    theta, se, score = (np.full((n_persons, n_steps), np.nan) for _ in range(3))
    estimate, posterior = np.zeros(n_persons), softmax(log_posterior, axis=1)
    for step in range(n_steps):
        # The value of every item for every person under the rule.
        if rule == "information":
            value = item_information(estimate, bank)
        elif rule == "posterior":
            value = posterior @ information
        else:
            assert rng is not None
            value = rng.random((n_persons, n_bank))
            if rule == "stratified":
                value = value + (stratum == step)
        candidates = available
        if content is not None:
            # The area whose count is furthest below its share, among areas with items left.
            lacking = share * (step + 1) - n_in_area
            lacking = np.where(available @ in_area.T, lacking, -np.inf)
            candidates = available & (areas == lacking.argmax(axis=1)[:, None])
        chosen = np.where(candidates, value, -np.inf).argmax(axis=1)

        running = running & available.any(axis=1)
        row, item = np.flatnonzero(running), chosen[running]
        asked[row, step], available[row, item] = item, False
        n_in_area[row, areas[item]] += 1
        # The posterior of those who were asked.
        right = given[row, item, None] == 1
        log_posterior[row] += np.where(right, log_right.T[item], log_wrong.T[item])
        log_posterior[row] -= log_posterior[row].max(axis=1, keepdims=True)
        weight = softmax(log_posterior[row], axis=1)
        posterior[row] = weight
        mean = weight @ grid
        sd = np.sqrt(np.maximum(weight @ grid**2 - mean**2, 0))
        estimate[row] = mean if method == "eap" else grid[weight.argmax(axis=1)]
        theta[row, step], se[row, step] = estimate[row], sd
        score[row, step] = weight @ expected_score
        if stop_se is not None:
            running[row] = sd > stop_se

    steps = pd.RangeIndex(1, n_steps + 1, name="n_items")
    names = np.array([*bank.index, None], dtype=object)  # place -1: nothing asked
    table = partial(pd.DataFrame, index=graded.index, columns=steps)
    n_asked = pd.Series((asked >= 0).sum(axis=1), index=graded.index, name="n_asked")
    return AdaptiveTest(table(names[asked]), table(theta), table(se), table(score), n_asked)


def bank_tables(bank: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a grid of abilities, and log P, log(1 - P) and Fisher information, nodes x items.

    The nodes are at most 0.1 logits apart, and half the width 1 / a of the steepest curve.
    """
    a, d, c = item_parameters(bank)
    n_nodes = np.clip(4 * LIMIT * np.abs(a).max(), 20 * LIMIT, MOST_NODES - 1)
    grid = np.linspace(-LIMIT, LIMIT, int(n_nodes) + 1)
    log_right, log_wrong = log_probabilities(np.multiply.outer(grid, a) + d, c)
    return grid, log_right, log_wrong, item_information(grid, bank)


def content_areas(bank: pd.DataFrame, content: pd.Series | None) -> np.ndarray:
    """Return the number of each item's content area; one area for all items without ``content``."""
    if content is None:
        return np.zeros(len(bank), dtype=int)
    known = content.reindex(bank.index)
    if known.isna().any():
        raise FrameError(f"no content area for items {format_names(bank.index[known.isna()])}")
    return pd.factorize(known)[0]
