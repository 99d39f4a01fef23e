"""What a fitted model expects: the tables that every fit statistic compares with what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import expit, logsumexp

from psychlm.frames import FrameError, check_responses

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

GRID_POINTS = (
    61  # mirt's default for one factor: equally spaced over six standard deviations either side
)
GRID_SPAN_SD = 6.0


@dataclass(frozen=True)
class ModelTables:
    """Item parameters in slope-intercept form, the ability's distribution on a grid, and which parameters were free."""

    items: pd.Index
    slope: np.ndarray  # (n_items,)
    intercept: np.ndarray  # (n_items,), logits at ability 0
    guess: np.ndarray  # (n_items,), probability
    nodes: np.ndarray  # (n_nodes,), logits
    weights: np.ndarray  # (n_nodes,), summing to 1
    guess_is_free: np.ndarray  # (n_items,), bool
    slope_is: str = "free"  # "free" (2PL, 3PL), "common" (1PL) or "fixed" (Rasch)
    intercept_is_free: bool = True  # False where items are held at earlier estimates
    mean_is_free: bool = False  # the ability's mean was estimated (new persons, old items)
    sd_is_free: bool = False  # the ability's spread was estimated (Rasch, or new persons)

    @classmethod
    def from_fit(cls, fit: IRTFit) -> ModelTables:
        """Read the tables off a fit; its ability distribution is laid on a grid of 61 equally spaced nodes."""
        items = fit.items
        mean, sd = fit.ability_mean, fit.ability_sd
        nodes = mean + sd * np.linspace(-GRID_SPAN_SD, GRID_SPAN_SD, GRID_POINTS)
        weights = normal_weights(nodes, mean, sd)
        return cls(
            items=items.index,
            slope=items["a"].to_numpy(float),
            intercept=items["d"].to_numpy(float),
            guess=items["c"].to_numpy(float),
            nodes=nodes,
            weights=weights,
            guess_is_free=items["c_is_free"].to_numpy(bool),
            slope_is={"1PL": "common", "Rasch": "fixed"}.get(fit.model, "free"),
            sd_is_free=fit.model == "Rasch",
        )

    def at(self, theta: np.ndarray) -> np.ndarray:
        """Return P(correct) of every item at the abilities theta, shape (n_items, n_theta)."""
        logistic = expit(np.multiply.outer(self.slope, theta) + self.intercept[:, None])
        return self.guess[:, None] + (1 - self.guess[:, None]) * logistic

    @cached_property
    def probability(self) -> np.ndarray:
        """P(correct) of every item at every node, shape (n_items, n_nodes)."""
        return self.at(self.nodes)

    @property
    def n_free_by_item(self) -> np.ndarray:
        """Number of free parameters that bear on each item (a common one counts for each, as mirt has it)."""
        shared = (
            self.intercept_is_free
            + (self.slope_is != "fixed")
            + self.mean_is_free
            + self.sd_is_free
        )
        return shared + self.guess_is_free.astype(int)

    def posterior_mean(self, x: np.ndarray) -> np.ndarray:
        """Return the expected ability of every person, shape (n_persons,), given answers x with NaN for not asked."""
        return self.posterior(x) @ self.nodes

    def posterior(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of every node for every person, shape (n_persons, n_nodes)."""
        right, wrong = (x == 1).astype(float), (x == 0).astype(float)
        log_post = (
            right @ np.log(self.probability)
            + wrong @ np.log1p(-self.probability)
            + np.log(self.weights)
        )
        return np.exp(log_post - logsumexp(log_post, axis=1, keepdims=True))


def normal_weights(nodes: np.ndarray, mean: float = 0.0, sd: float = 1.0) -> np.ndarray:
    """Return normal densities at the nodes, scaled to sum to 1."""
    density = np.exp(-0.5 * ((nodes - mean) / sd) ** 2)
    return density / density.sum()


def as_tables(fit: IRTFit | ModelTables) -> ModelTables:
    """Return the tables of a fit, or the tables themselves where they were built from another program's parameters."""
    return fit if isinstance(fit, ModelTables) else ModelTables.from_fit(fit)


def answers_to(tables: ModelTables, responses: pd.DataFrame) -> np.ndarray:
    """Return the answers to the model's items in its order, shape (n_persons, n_items), NaN where not asked.

    Raises
    ------
    FrameError
        If the responses break their contract or lack an item of the model.
    """
    absent = tables.items.difference(responses.columns)
    if len(absent):
        raise FrameError(
            f"responses lack the items {list(absent[:5])} of the model ({len(absent)} in all); "
            "refit the model to the items that were asked, or add those columns, NaN where an item was not asked"
        )
    return check_responses(responses[list(tables.items)]).to_numpy()
