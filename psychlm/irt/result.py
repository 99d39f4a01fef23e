"""The result of a fit: items with standard errors, the fit's quality, and how it was reached."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm._formatting import PaperTables
from psychlm.data import atomic_write
from psychlm.device import Device
from psychlm.irt.response_functions import ASYMPTOTES, ResponseFunction, model_named
from psychlm.irt.specification import IRTWarning, Solution, Specification
from psychlm.irt.standard_errors import EXACT_PARAMETERS

if TYPE_CHECKING:
    from psychlm.irt.scoring import AbilityPosterior

__all__ = ["IRTFit", "IRTWarning", "InformationCriteria", "result_of"]

FORMAT = "psychlm.irt.fit/6"


class InformationCriteria:
    """What to compare fits by."""

    loglik: float
    n_parameters: int
    n_persons: int
    data_hash: str
    method: str
    log_prior: float

    @property
    def aic(self) -> float:
        """Akaike's information criterion, -2 loglik + 2 p."""
        return -2 * self.loglik + 2 * self.n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion, -2 loglik + p log(n_persons)."""
        return -2 * self.loglik + self.n_parameters * math.log(self.n_persons)

    @property
    def sabic(self) -> float:
        """Sample-size adjusted BIC, -2 loglik + p log((n_persons + 2) / 24) (Sclove 1987)."""
        return -2 * self.loglik + self.n_parameters * math.log((self.n_persons + 2) / 24)


@dataclass(frozen=True)
class IRTFit(InformationCriteria, PaperTables):
    """A fitted model; logistic metric (D = 1), ability in logits.

    Ability is N(0, 1), except for the Rasch model, whose slopes are 1 and whose ability variance is
    estimated, and for fits on another scale (:func:`psychlm.irt.link`).
    """

    # By item: a, b, c, d (= -a b), standard errors se_*, c_is_free, converged; with upper
    # asymptotes u, se_u and u_is_free; of polytomous items a, b1, b2, ..., d1, d2, ... and errors.
    items: pd.DataFrame
    model: str  # a name of response_functions.MODELS, or "mixed" where models differ by item
    method: str  # "mml", "laplace" where difficulties have a regression, or "vi"
    loglik: float  # marginal log-likelihood, nats
    n_parameters: int
    n_persons: int
    converged: bool  # in parameters and log-likelihood; never with a slope that runs away
    n_iterations: int  # EM steps
    loglik_error: float  # nats by which the log-likelihood moves on a grid of half the step
    quadrature: str  # the grid, in words
    data_hash: str  # of the responses: fits to the same data share it
    log_prior: float = 0.0  # log density of the priors, nats; NaN by "vi"
    ability_mean: float = 0.0  # logits
    ability_sd: float = 1.0  # logits; fixed at 1, but estimated for the Rasch model
    se_ability_variance: float = math.nan  # of ability_sd^2, where it is estimated
    covariance: pd.DataFrame | None = None  # of the free parameters, (item, "a" | "d" | "c")
    groups: pd.DataFrame | None = None  # by group: mean, sd of ability, se_mean, se_sd, n_persons
    group_items: pd.DataFrame | None = None  # by group and item; ``items`` is the reference group's
    levels: dict | None = None  # of polytomous items: their answers in the order of the categories
    regression: pd.DataFrame | None = None  # of b on covariates: eta (above 0: harder), se, z, p
    residual_sd: float = math.nan  # of b given the covariates, logits
    estimates: pd.DataFrame | None = None  # by parameter: equal ones share a number, fixed ones -1
    mean_is_free: bool = False  # whether the mean of ability was estimated, as in a focal group
    sd_is_free: bool = False  # whether its standard deviation was
    se_ability_mean: float = math.nan  # of ability_mean, where it is estimated
    errors: str = "observed information"  # what standard errors come from; or "sandwich"
    unit: str = "logits"  # of ability, in figures; "" where irt.link was not told it

    def __post_init__(self) -> None:
        model_named(self.model).form.rows_of(self.items)  # b and d must agree

    @cached_property
    def functions(self) -> ResponseFunction:
        """The items' response functions."""
        return model_named(self.model).form.of_table(self.items)

    def __repr__(self) -> str:
        """Return what one looks at first: model, size, log-likelihood, convergence."""
        size = f"{self.n_persons} persons x {len(self.items)} items"
        state = "converged" if self.converged else "NOT converged"
        errors = "" if self.errors == "observed information" else f", {self.errors} errors"
        return (
            f"IRTFit({self.model}, {size}, log-likelihood {self.loglik:.3f}, AIC {self.aic:.1f}, "
            f"BIC {self.bic:.1f}, {self.n_parameters} parameters, {state}{errors})"
        )

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, list[str]]]:
        table = self.items.dropna(axis=1, how="all").drop(columns="converged", errors="ignore")
        kept = [
            name
            for name in table
            if not name.startswith(("d", "se_d"))  # they repeat b
            and not name.endswith("_is_free")
            and (name not in ASYMPTOTES.values() or f"se_{name}" in table)  # fixed in all items
        ]
        tables = [(table[kept], "Items", [repr(self)])]
        if self.groups is not None:
            tables.append((self.groups, "Groups", []))
        return tables

    def require_one_group(self) -> None:
        """Refuse a fit of several groups where one population and one set of items are needed."""
        if self.groups is not None:
            raise ValueError(
                f"this fit has the groups {list(self.groups.index)}, whose abilities are "
                "distributed differently and whose items may differ; take one of them: "
                "fit.in_group(label)"
            )

    @property
    def _known(self) -> dict[str, Any]:
        """What scoring needs beside the items."""
        self.require_one_group()
        moments = {"ability_sd": self.ability_sd, "ability_mean": self.ability_mean}
        return {**moments, "model": self.model, "levels": self.levels}

    def score(
        self, responses: pd.DataFrame, method: str = "eap", *, device: Device = "auto"
    ) -> pd.DataFrame:
        """Return ability and its standard error by person; see :func:`psychlm.irt.score`."""
        from psychlm.irt.scoring import score

        return score(self.items, responses, method, device=device, **self._known)

    def posterior(self, responses: pd.DataFrame, *, device: Device = "auto") -> AbilityPosterior:
        """Return every person's posterior of ability on a grid."""
        from psychlm.irt.scoring import ability_posterior

        return ability_posterior(self.items, responses, device=device, **self._known)

    def in_group(self, label: Any) -> IRTFit:
        """Return the fit as it holds in one group: its items, and its mean and sd of ability."""
        if self.groups is None or self.group_items is None or label not in self.groups.index:
            labels = [] if self.groups is None else list(self.groups.index)
            raise KeyError(f"no group {label!r}; the groups are {labels}")
        moments = self.groups[self.groups.index == label].iloc[0]
        alone: dict[str, Any] = {"groups": None, "group_items": None, "covariance": None}
        # Groups' moments are in units of the reference group's sd, but on a bank's scale.
        unit = 1.0 if self.mean_is_free else self.ability_sd
        alone |= {"ability_mean": moments["mean"] * unit, "ability_sd": moments["sd"] * unit}
        alone["items"] = self.group_items.xs(label, level="group")
        if self.estimates is not None:
            # The mean of ability is free where an intercept is that of the reference group.
            reference = self.groups.index[0]
            estimates = self.estimates.xs(label, level="group")
            shared = (estimates == self.estimates.xs(reference, level="group")) & (estimates >= 0)
            focal = label != reference
            alone["mean_is_free"] = focal and bool(shared.iloc[:, 1].any())
            alone["sd_is_free"] = focal and bool(shared.iloc[:, 0].any())
            alone["estimates"] = estimates
        return replace(self, **alone)

    def of_items(self, items: pd.Index | list) -> IRTFit:
        """Return the fit as it holds for some of its items, of one group."""
        self.require_one_group()
        estimates = None if self.estimates is None else self.estimates.loc[items]
        return replace(self, items=self.items.loc[items], estimates=estimates, covariance=None)

    def probability(self, theta: ArrayLike) -> np.ndarray:
        """Return the probability of every category, (n_theta, n_items, n_categories).

        Of two categories the last is "correct"; categories that an item lacks have 0.
        """
        self.require_one_group()
        return self.functions.probability_at(theta).transpose(2, 0, 1)

    def information(self, theta: ArrayLike) -> np.ndarray:
        """Return the items' Fisher information about ability, (n_theta, n_items), 1 / logit^2.

        Its sum over items is the test's information, whose -1/2 power is ability's standard error.
        """
        self.require_one_group()
        return self.functions.information_at(theta)

    def reliability(self, responses: pd.DataFrame | None = None) -> pd.Series:
        r"""Return the reliability of EAP scores: ``marginal`` and, of given persons, ``empirical``.

        .. math:: \int \frac{I(\theta)}{I(\theta) + 1 / \sigma^2} \phi(\theta)\, d\theta,
                  \qquad \frac{\operatorname{var}(\hat\theta)}{\operatorname{var}(\hat\theta)
                  + \overline{se^2}}

        with I the test's information and sigma the standard deviation of ability (Green, Bock,
        Humphreys, Linn & Reckase 1984; Adams 2005). They agree where persons are those of the fit
        and answered every item.
        """
        sd = self._known["ability_sd"]
        z = np.linspace(-8, 8, 321)
        weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
        information = self.information(self.ability_mean + sd * z).sum(axis=1)
        result = {"marginal": weights @ (information / (information + sd**-2))}
        if responses is not None:
            scores = self.score(responses)
            variance = scores["theta"].var()
            result["empirical"] = variance / (variance + (scores["se"] ** 2).mean())
        return pd.Series(result, name="reliability")

    def plausible_values(
        self, responses: pd.DataFrame, n: int = 5, *, seed: int | np.random.Generator = 0
    ) -> pd.DataFrame:
        """Return draws from every person's posterior of ability, shape (n_persons, n), logits.

        Unlike EAP scores they spread as ability does: analyse each column by itself and combine the
        results (Mislevy 1991). Draws are uniform within a step of the posterior's grid.
        """
        rng = np.random.default_rng(seed)
        posterior = self.posterior(responses)
        cumulative = posterior.weights.cumsum(axis=1)
        drawn = rng.random((len(posterior.persons), n)) * cumulative[:, -1:]
        node = np.stack([np.searchsorted(*row) for row in zip(cumulative, drawn, strict=True)])
        step = posterior.nodes[1] - posterior.nodes[0]
        theta = posterior.nodes[node] + step * (rng.random(node.shape) - 0.5)
        return pd.DataFrame(theta, posterior.persons, pd.RangeIndex(1, n + 1, name="draw"))

    def to_json(self, path: str | Path) -> None:
        """Write the fit as JSON, from which :meth:`from_json` gives an equal fit.

        NaN becomes null, and infinities become text, since JSON has neither. A digest of all
        values tells a damaged file.
        """
        if self.groups is not None:
            raise ValueError("a fit of several groups is saved group by group: fit.in_group(label)")
        content = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        content = {"format": FORMAT, "digest": _digest(content), **content}
        with atomic_write(path) as part:
            part.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> IRTFit:
        """Read a fit that :meth:`to_json` wrote; a ValueError tells a file that is none."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError):  # neither UTF-8 nor JSON: truncated, perhaps
            content = None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(
                f"{path} is not a fit in the format {FORMAT!r}; write one with IRTFit.to_json"
            )
        if content.pop("digest", None) != _digest(content):
            raise ValueError(
                f"{path} is a damaged fit (its contents have changed since it was written); fit "
                "again and write it with IRTFit.to_json"
            )
        content.setdefault("unit", "logits")  # absent from files written before fits had it
        for field in fields(cls):
            value = content[field.name]
            if field.type == "float":
                content[field.name] = math.nan if value is None else float(value)
            elif isinstance(value, dict):
                content[field.name] = _table(value)
        if content["levels"] is not None:
            content["levels"] = dict(zip(content["items"].index, content["levels"], strict=True))
        return cls(**content)


def result_of(spec: Specification, solution: Solution) -> IRTFit:
    """Return the estimates on the model's own scale, with their standard errors."""
    model = spec.model
    values = solution.values.copy()
    blocks = solution.blocks.copy()
    covariance = solution.covariance
    if covariance is not None and len(covariance) > EXACT_PARAMETERS:
        covariance = None
    sd = 1.0
    se_variance = math.nan
    mean = 0.0
    se_mean = math.nan
    if spec.bank and solution.groups is not None:
        mean, sd, se_mean, se_sd = (
            float(solution.groups[name][0]) for name in ("mean", "sd", "se_mean", "se_sd")
        )
        se_variance = 2 * sd * se_sd
    elif model.unit_slope:
        # The Rasch model's slopes are 1: the common slope is ability's standard deviation instead.
        sd = float(values[0, 0])
        se_variance = 2 * sd * math.sqrt(blocks[0, 0, 0])
        values[0], blocks[:, 0], blocks[:, :, 0] = 1.0, 0.0, 0.0
        if covariance is not None:
            scale = np.append(2 * sd, np.ones(len(covariance) - 1))
            index = covariance.index[1:].insert(0, ("ability", "variance"))
            scaled = covariance.to_numpy() * np.outer(scale, scale)
            covariance = pd.DataFrame(scaled, index=index, columns=index)
    table = model.form.of_columns(np.array(spec.columns)[:, 0]).table(values, blocks)
    if model.unit_slope:
        table["se_a"] = np.nan
    by_group = {}
    numbers = {}
    for g, group in enumerate(spec.groups):
        number = spec.numbers(g)
        number[0] = np.where(model.unit_slope, -1, number[0])
        items = table.iloc[spec.places(g)].set_index(spec.items)
        for row, kind in enumerate(spec.row_kinds):
            asymptote = ASYMPTOTES.get(kind)
            if asymptote in items:
                items[f"{asymptote}_is_free"] = number[row] >= 0
        if spec.bank:
            items["fixed"] = ~np.isnan(spec.fixed[1])
        items["converged"] = solution.converged[spec.places(g)]
        by_group[group] = items
        symbols = model.form.symbols(len(values))
        numbers[group] = pd.DataFrame(number.T, spec.items, symbols)
    groups = None
    group_items = None
    estimates = numbers[spec.groups[0]]
    if spec.groups != [None]:
        groups = pd.DataFrame(solution.groups, pd.Index(spec.groups, name="group"))
        groups["n_persons"] = np.bincount(spec.member)
        group_items = pd.concat(by_group, names=["group"])
        estimates = pd.concat(numbers, names=["group"])
    same = ["method", "loglik", "log_prior", "n_parameters", "n_iterations", "loglik_error"]
    same += ["quadrature", "regression", "residual_sd", "errors"]
    return IRTFit(
        items=by_group[spec.groups[0]],
        model=model.name,
        n_persons=spec.answers.n_persons,
        converged=bool(solution.converged.all()),
        ability_mean=mean,
        se_ability_mean=se_mean,
        ability_sd=sd,
        se_ability_variance=se_variance,
        covariance=covariance,
        data_hash=spec.answers.data_hash,
        groups=groups,
        group_items=group_items,
        levels=spec.answers.levels,
        estimates=estimates,
        mean_is_free=spec.bank,
        sd_is_free=model.unit_slope or spec.bank,
        **{name: getattr(solution, name) for name in same},
    )


def _plain(value: Any) -> Any:
    """Return a field of a fit as JSON has it."""
    if isinstance(value, pd.DataFrame):
        return {part: _plain(cells) for part, cells in value.to_dict("tight").items()}
    if isinstance(value, dict):  # the levels, in the order of the items
        return _plain(list(value.values()))
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else repr(value)
    return value


def _table(value: dict[str, Any]) -> pd.DataFrame:
    """Return a table from what :func:`_plain` makes of it."""
    table = pd.DataFrame.from_dict(value, orient="tight")
    texts = [name for name in table if name == "model"]
    return table.astype(dict.fromkeys(table.select_dtypes(exclude=bool).drop(columns=texts), float))


def _digest(content: dict[str, Any]) -> str:
    """Return a hash of the fields of a fit."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
