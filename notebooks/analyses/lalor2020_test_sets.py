"""Lalor (2020, chapter 2): whether a test set's scale holds for new persons, and figure 2.3."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import scipy
import torch
from numpy.typing import ArrayLike

from psychlm import corpora
from psychlm.frames import FrameError, check_responses
from psychlm.irt import IRTWarning, M2Fit, ModelTables, ld_x2, m2, s_x2, select_items
from psychlm.irt.model_tables import STANDARD_GRID, normal_weights
from psychlm.irt.result import IRTFit
from psychlm.stats import CORRECTIONS

MAX_STEPS = 500  # of EM for the ability of new persons
# Orders of the rules of selection that chapters 2 and 7 of the dissertation name.
RULE_ORDERS = ["fit", "fit slope", "slope fit", "slope fit dependence", "fit slope dependence"]
RULE_ORDERS += ["dependence slope", "dependence slope fit"]


@dataclass(frozen=True)
class Confirmation:
    """Fit of a calibrated scale for new persons."""

    items: pd.DataFrame  # S-X2 by item, with adjusted p
    pairs: pd.DataFrame  # LD-X2 by pair, with adjusted p
    m2: M2Fit  # of the model as a whole
    ability_mean: float  # of the new persons, logits
    ability_sd: float


def confirm(
    calibrated: IRTFit,
    responses: pd.DataFrame,
    *,
    correction: Literal["holm", "bh"] = "holm",
) -> Confirmation:
    """Test a calibrated scale on the responses of new persons, with the items held as they are.

    The mean and standard deviation of the new persons' ability are estimated by EM (Lalor 2020,
    section 1.3.6). ``correction`` is that of p-values over items, and over pairs."""
    tables = ModelTables.of(calibrated)
    x = tables.response_array(responses)
    held = np.full_like(tables.estimates, -1)
    tables = replace(tables, estimates=held, mean_is_free=True, sd_is_free=True)
    mean, sd, change = float(tables.weights @ tables.nodes), 1.0, np.inf
    for _ in range(MAX_STEPS):
        # E-step: average posterior over persons. M-step: its mean and standard deviation.
        nodes = mean + sd * STANDARD_GRID
        tables = replace(tables, nodes=nodes, weights=normal_weights(nodes, mean, sd))
        if change < 1e-6:
            break
        average = tables.posterior(torch.tensor(x)).mean(0).numpy()
        new_mean = float(average @ nodes)
        new_sd = float(np.sqrt(average @ (nodes - new_mean) ** 2))
        change, mean, sd = abs(new_mean - mean) + abs(new_sd - sd), new_mean, new_sd
    else:
        raise RuntimeError(f"ability (mean {mean:.2f}, sd {sd:.2f}) did not converge")
    items, pairs, whole = s_x2(tables, responses), ld_x2(tables, responses), m2(tables, responses)
    items["p"], pairs["p"] = (CORRECTIONS[correction](table["p"]) for table in (items, pairs))
    return Confirmation(items, pairs, whole, mean, sd)


def empirical_curve(theta: ArrayLike, responses: ArrayLike, grid: ArrayLike) -> np.ndarray:
    """Return the proportion correct as a smooth function of ability, without a response model.

    A cubic spline, smoothed by generalised cross-validation, goes through the proportions of twenty
    groups of similar ability (Lalor 2020, figure 2.3). NaN outside the range of the groups."""
    frame = pd.DataFrame({"theta": np.asarray(theta, float), "x": np.asarray(responses, float)})
    frame = frame.dropna()
    groups = frame.groupby(pd.qcut(frame["theta"], 20, duplicates="drop"), observed=True)
    table = groups.agg(theta=("theta", "mean"), correct=("x", "mean"), n=("x", "size"))
    if len(table) < 5:
        raise FrameError(f"{len(frame)} persons make {len(table)} groups; at least 5 are needed")
    spline = scipy.interpolate.make_smoothing_spline(table["theta"], table["correct"], w=table["n"])
    grid = np.asarray(grid, float)
    inside = (grid >= table["theta"].iloc[0]) & (grid <= table["theta"].iloc[-1])
    return np.where(inside, np.clip(spline(grid), 0, 1), np.nan)


def stopped_em(responses: pd.DataFrame, tolerance: float, *, slope: float = 0.851) -> pd.DataFrame:
    """Fit the 2PL by the EM algorithm of Bock and Aitkin (1981), and stop at a tolerance.

    As in R's mirt, abilities are 61 nodes from -6 to 6, and steps end when no parameter moves by
    more than the tolerance: the estimates are then off by several times the tolerance."""
    patterns = check_responses(responses).value_counts()
    graded = np.array(patterns.index.tolist(), dtype=float)
    right = responses.mean().to_numpy()
    theta = np.linspace(-6, 6, 61)
    weight = scipy.stats.norm.pdf(theta)
    design = np.stack([theta, np.ones(61)])  # of slope and intercept
    start = scipy.special.logit(right) * np.sqrt(1 + 0.346 * slope**2)
    parameters, change = np.stack([np.full(len(right), slope), start]), np.inf
    while change > tolerance:
        # E-step: expected numbers of persons and of right responses at each node.
        p = scipy.special.expit(design.T @ parameters)
        loglik = graded @ np.log(p).T + (1 - graded) @ np.log1p(-p).T
        posterior = np.exp(loglik - loglik.max(axis=1, keepdims=True)) * weight
        posterior *= (patterns.to_numpy() / posterior.sum(axis=1))[:, None]
        persons, correct = posterior.sum(axis=0)[:, None], posterior.T @ graded
        # M-step: a logistic regression on ability for each item, by Newton's method.
        before = parameters
        for _ in range(20):
            p = scipy.special.expit(design.T @ parameters)
            gradient = design @ (correct - persons * p)
            hessian = np.einsum("ak,kj,bk->jab", design, persons * p * (1 - p), design)
            parameters = parameters + np.linalg.solve(hessian, gradient.T[..., None])[..., 0].T
        change = np.abs(parameters - before).max()
    a, intercept = parameters
    return pd.DataFrame({"a": a, "b": -intercept / a}, index=responses.columns)


def selections(variants: pd.DataFrame | None = None) -> pd.DataFrame:
    """Select the phrases of SST by variants of the rules, all at a level of .05.

    ``variants`` has columns ``key``, ``order`` (rules, separated by spaces), ``guessing`` (whether
    3PLs are tested first) and ``correction``; without it all are tried, in about half an hour. They
    are returned with ``n_retained`` and ``retained`` (numbers of phrases, separated by spaces)."""
    if variants is None:
        rules = list(itertools.product(("gold", "majority"), RULE_ORDERS, [False], ("holm", "bh")))
        rules += [(key, "slope fit dependence", True, "holm") for key in ("gold", "majority")]
        variants = pd.DataFrame(rules, columns=["key", "order", "guessing", "correction"])
    retained = []
    for row in variants.itertuples():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IRTWarning)  # a steep slope is no reason to remove
            selection = select_items(
                corpora.lalor2018(row.key).graded,
                order=row.order.split(),
                guessing=row.guessing,
                correction=row.correction,
            )
        retained.append(" ".join(selection.retained))
    counts = [len(items.split()) for items in retained]
    return variants.assign(n_retained=counts, retained=retained)
