"""What statistics of fit need of a model: its items and the distribution of ability on a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, check_responses, refuse
from psychlm.irt.response_functions import ResponseFunction, model_named, step_contrasts
from psychlm.irt.response_matrix import BLOCK_CELLS, BLOCK_CELLS_GPU, MISSING, encode_ratings
from psychlm.irt.scoring import check_known, levels_of

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

STANDARD_GRID = np.linspace(-6, 6, 61)  # mirt's default nodes for one factor, in ability sds


@dataclass(frozen=True)
class ModelTables:
    """Items, the ability distribution on a grid, and which parameters were estimated."""

    items: pd.Index
    functions: ResponseFunction
    nodes: np.ndarray  # (n_nodes,), logits
    weights: np.ndarray  # (n_nodes,), summing to 1
    estimates: np.ndarray  # (n_rows, n_items), the estimate that a parameter equals, or -1
    mean_is_free: bool = False  # the mean of ability was estimated
    sd_is_free: bool = False  # the standard deviation of ability was estimated
    levels: Mapping | None = None  # of polytomous items: their answers in order
    ability_mean: float = 0.0  # of the population, logits
    ability_sd: float = 1.0
    common_steps: bool = False  # intercept k of an item is d + t_k

    @classmethod
    def of(cls, fit: IRTFit | ModelTables | pd.DataFrame, model: str | None = None) -> ModelTables:
        """Return the tables of a fit of one group, or of a table of items of the model named."""
        if isinstance(fit, ModelTables):
            return fit
        if isinstance(fit, pd.DataFrame):
            if model is None:
                raise FrameError(
                    "a table of items does not tell its model; pass the fit itself, or "
                    "irt.ModelTables.of_items(items, model)"
                )
            return cls.of_items(fit, model)
        fit.require_one_group()
        moments = {"ability_mean": fit.ability_mean, "ability_sd": fit.ability_sd}
        tables = cls.of_items(fit.items, fit.model, levels=fit.levels, **moments)
        numbers = tables.estimates if fit.estimates is None else fit.estimates.to_numpy(int).T
        free: dict[str, Any] = {"mean_is_free": fit.mean_is_free, "sd_is_free": fit.sd_is_free}
        return replace(tables, estimates=numbers, **free)

    @classmethod
    def of_items(
        cls,
        items: pd.DataFrame,
        model: str = "2PL",
        *,
        ability_mean: float = 0.0,
        ability_sd: float = 1.0,
        levels: Mapping | None = None,
    ) -> ModelTables:
        """Return the tables of items, such as ``IRTFit.items``, also of another program's.

        ``model`` says which parameters were free; ability is N(ability_mean, ability_sd^2), logits,
        on 61 equally spaced nodes. ``levels`` are the answers to polytomous items in their order,
        by default 0, 1, 2, ...
        """
        chosen = model_named(model)
        functions = chosen.form.of_table(items)
        parameters = pd.DataFrame(functions.values.T.numpy(), items.index)
        check_known(parameters, ability_mean, ability_sd)
        nodes = ability_mean + ability_sd * STANDARD_GRID
        if not chosen.dichotomous:
            levels = levels_of(functions, items.index, levels)
        return cls(
            items=items.index,
            functions=functions,
            nodes=nodes,
            weights=normal_weights(nodes, ability_mean, ability_sd),
            estimates=chosen.estimates(functions, items),
            sd_is_free=chosen.unit_slope,
            levels=levels,
            ability_mean=ability_mean,
            ability_sd=ability_sd,
            common_steps=chosen.common_steps,
        )

    @cached_property
    def probability(self) -> np.ndarray:
        """Probability of every category at every node, (n_items, n_categories, n_nodes)."""
        return self.functions.probability_at(self.nodes)

    @cached_property
    def expected(self) -> np.ndarray:
        """Expected category number of every item at every node, (n_items, n_nodes); P if two."""
        return np.einsum("c,icn->in", np.arange(self.n_categories), self.probability)

    @property
    def n_categories(self) -> int:
        """Largest number of categories of an item."""
        return self.probability.shape[1]

    @property
    def directions(self) -> np.ndarray:
        """Derivatives of the numbered parameters by what is free, (n_numbers, n_free)."""
        numbers, first = np.unique(self.estimates, return_index=True)
        first = first[numbers >= 0]
        if not self.common_steps:
            return np.eye(len(first))
        row, item = np.divmod(first, self.estimates.shape[1])
        locations = self.estimates[1, item]
        of_location = locations[:, None] == np.unique(locations)
        return np.hstack([of_location, step_contrasts(len(self.estimates) - 1)[row - 1]])

    @property
    def is_own(self) -> np.ndarray:
        """Whether an estimate is a parameter of its item alone, (n_rows, n_items)."""
        numbers, n_equal = np.unique(self.estimates, return_counts=True)
        return np.isin(self.estimates, numbers[(numbers >= 0) & (n_equal == 1)])

    @property
    def n_free_by_item(self) -> np.ndarray:
        """Free parameters that bear on each item; a common one counts for each, as in mirt."""
        return (self.estimates >= 0).sum(0) + self.mean_is_free + self.sd_is_free

    def posterior(self, x: Tensor) -> Tensor:
        """Return P(node | responses) of every person, shape (n_persons, n_nodes)."""
        nodes, weights = torch.tensor(np.stack([self.nodes, self.weights]), device=x.device)
        log_p = self.functions.to(x.device).log_probability(nodes)
        log_joint = sum((x == k).to(log_p.dtype) @ log_p[:, k] for k in range(log_p.shape[1]))
        return (log_joint + weights.log()).softmax(1)

    def persons(self, x: np.ndarray, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield category numbers (NaN: not asked) and posteriors of some persons at a time."""
        size = (BLOCK_CELLS if device.type == "cpu" else BLOCK_CELLS_GPU) // x.shape[1]
        step = max(1, 2 * size // self.n_categories)
        for start in range(0, len(x), step):
            part = torch.tensor(x[start : start + step], device=device)
            yield part, self.posterior(part)

    def at_expected_ability(
        self, x: np.ndarray, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield responses (n_rows, n_items), expected abilities, and log P of categories there.

        These are (n_rows,) and (n_rows, n_items, n_categories), of some persons at a time.
        """
        nodes = torch.tensor(self.nodes, device=device)
        functions = self.functions.to(device)
        for part, posterior in self.persons(x, device):
            theta = posterior @ nodes
            yield part, theta, functions.log_probability(theta).permute(2, 0, 1)

    def response_array(self, responses: pd.DataFrame) -> np.ndarray:
        """Return category numbers of responses to the model's items, NaN where not asked."""
        refuse(
            "items",
            self.items.difference(responses.columns),
            "of the model are not among the responses; refit the model to the items that were "
            "asked, or add columns of NaN",
        )
        chosen = responses[list(self.items)]
        if self.levels is None:
            return check_responses(chosen).to_numpy()
        encoded = encode_ratings(chosen, self.levels).on("cpu")
        codes = encoded.values[encoded.row].astype(float)
        return np.where(codes == MISSING, np.nan, codes)


def normal_weights(nodes: np.ndarray, mean: float = 0.0, sd: float = 1.0) -> np.ndarray:
    """Return normal densities at the nodes, scaled to sum to 1."""
    density = np.exp(-0.5 * ((nodes - mean) / sd) ** 2)
    return density / density.sum()
