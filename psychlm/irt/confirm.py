"""Does a scale hold for new persons? Its items stay as they were calibrated; only the abilities are new."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from psychlm.irt.expected import GRID_POINTS, GRID_SPAN_SD, ModelTables, answers_to, normal_weights
from psychlm.irt.goodness import ld_x2, s_x2
from psychlm.irt.limited_information import M2Fit, m2
from psychlm.irt.result import IRTFit
from psychlm.irt.select import CORRECTIONS

MAX_STEPS = 500


@dataclass(frozen=True)
class Confirmation:
    """How a calibrated scale fits new persons."""

    items: pd.DataFrame  # S-X2 by item, with adjusted p and verdict ("fits" or "misfits")
    pairs: pd.DataFrame  # LD-X2 by pair, with adjusted p and verdict ("independent" or "dependent")
    m2: M2Fit  # of the model as a whole
    ability_mean: float  # of the new persons, logits
    ability_sd: float
    max_rmsea: float

    @property
    def holds(self) -> bool:
        """Whether the RMSEA is small enough and no item misfits.

        A pair alone does not overturn a scale: with hundreds of pairs and many persons some always show.
        """
        return self.m2.rmsea <= self.max_rmsea and not (self.items["verdict"] == "misfits").any()


def confirm(
    fit: IRTFit,
    responses: pd.DataFrame,
    *,
    correction: str = "holm",
    alpha: float = 0.05,
    max_rmsea: float = 0.05,
) -> Confirmation:
    """Check a calibrated scale on the responses of new persons.

    The items' parameters stay fixed; the mean and spread of the new persons' ability are estimated (by EM), and the
    statistics of fit follow, with no parameter of an item counted as free.

    Parameters
    ----------
    fit : IRTFit
        Of the retained items, on the first persons; for instance ``select_items(...).fit``.
    responses : DataFrame, shape (n_new_persons, at least the items of the fit)
        Values 0, 1 or NaN.
    correction : {"holm", "bh"}
        Of p values over items, and over pairs.
    alpha : float
    max_rmsea : float
        The largest RMSEA of M2 that counts as close fit.

    Returns
    -------
    Confirmation

    Raises
    ------
    FrameError
        If an item of the fit is not among the responses, or they break their contract.
    RuntimeError
        If the new persons' ability distribution cannot be found.

    References
    ----------
    Lalor (2020), section 1.3.6; Maydeu-Olivares & Joe (2014) for an RMSEA of 0.05 as close fit.
    """
    tables = _for_new_persons(ModelTables.from_fit(fit), responses)
    items, pairs = s_x2(tables, responses), ld_x2(tables, responses)
    items["p"], pairs["p"] = (
        CORRECTIONS[correction](items["p"]),
        CORRECTIONS[correction](pairs["p"]),
    )
    items["verdict"] = np.where(items["p"] < alpha, "misfits", "fits")
    pairs["verdict"] = np.where(pairs["p"] < alpha, "dependent", "independent")
    mean = float(tables.weights @ tables.nodes)
    return Confirmation(
        items=items,
        pairs=pairs,
        m2=m2(tables, responses),
        ability_mean=mean,
        ability_sd=float(np.sqrt(tables.weights @ (tables.nodes - mean) ** 2)),
        max_rmsea=max_rmsea,
    )


def _for_new_persons(tables: ModelTables, responses: pd.DataFrame) -> ModelTables:
    """Return the tables with the items held and the ability distribution that is most likely for the new persons."""
    x = answers_to(tables, responses)
    held = replace(
        tables,
        slope_is="fixed",
        guess_is_free=np.zeros(len(tables.items), dtype=bool),
        intercept_is_free=False,
        mean_is_free=True,
        sd_is_free=True,
    )
    mean, sd = float(tables.weights @ tables.nodes), 1.0
    for _ in range(MAX_STEPS):
        nodes = mean + sd * np.linspace(-GRID_SPAN_SD, GRID_SPAN_SD, GRID_POINTS)
        held = replace(held, nodes=nodes, weights=normal_weights(nodes, mean, sd))
        together = held.posterior(x).mean(axis=0)
        next_mean = float(together @ nodes)
        next_sd = float(np.sqrt(together @ (nodes - next_mean) ** 2))
        if abs(next_mean - mean) + abs(next_sd - sd) < 1e-6:
            return held
        mean, sd = next_mean, next_sd
    raise RuntimeError(
        f"the new persons' ability distribution did not settle in {MAX_STEPS} steps (mean {mean:.2f}, sd {sd:.2f}); "
        "are their answers all right or all wrong?"
    )
