"""The result of a fit: items with standard errors, the fit's quality, and how it was reached."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike

from psychlm.data import atomic_write
from psychlm.device import Device
from psychlm.irt.categories import category_items
from psychlm.irt.curves import four_parameters
from psychlm.irt.scoring import AbilityPosterior, ability_posterior, score

MODELS = {"1PL": "1PL", "RASCH": "Rasch", "2PL": "2PL", "3PL": "3PL", "4PL": "4PL"}
MODELS |= {"GRADED": "graded", "GPCM": "gpcm"}
POLYTOMOUS = ("graded", "gpcm")
FORMAT = "psychlm.irt.fit/2"
LARGEST = 1e6  # logits, of any parameter in a file: beyond it arithmetic overflows
FOUR_PARAMETERS = [*"abcdu", *(f"se_{name}" for name in "abcdu"), "c_is_free", "u_is_free"]
FOUR_PARAMETERS.append("converged")
COLUMNS = ["a", "b", "c", "d", "se_a", "se_b", "se_c", "se_d", "c_is_free", "converged"]


class IRTWarning(UserWarning):
    """A fit that needs a second look: what happened, to which items, and what to do."""


@dataclass(frozen=True)
class IRTFit:
    """A fitted model; logistic metric (D = 1), ability in logits.

    Ability is N(0, 1), except for the Rasch model, whose slopes are 1 and whose ability variance is
    estimated, and for fits on another scale (:func:`psychlm.irt.link`).
    """

    # By item: a, b, c, d (= -a b), standard errors se_*, c_is_free, converged; with upper
    # asymptotes u, se_u and u_is_free; of polytomous items a, b1, b2, ..., d1, d2, ... and errors.
    items: pd.DataFrame
    model: str  # "1PL", "Rasch", "2PL", "3PL", "4PL", "graded", "gpcm", or "mixed" (2PL and 3PL)
    method: str  # "mml", "vi", or "laplace" where difficulties have a regression
    loglik: float  # marginal log-likelihood, nats
    log_prior: float  # log density of the priors, nats; 0 where there are none, NaN by "vi"
    n_parameters: int
    n_persons: int
    converged: bool  # in parameters and log-likelihood; never with a slope that runs away
    n_iterations: int  # EM steps
    ability_mean: float  # logits
    ability_sd: float  # logits; fixed at 1, but estimated for the Rasch model
    se_ability_variance: float  # of ability_sd^2; NaN where the variance is fixed
    ability_sd_check: float  # sd re-estimated with items held / ability_sd: 1 if well; NaN: laplace
    loglik_error: float  # nats by which the log-likelihood moves on a grid of half the step
    quadrature: str  # the grid, in words
    covariance: pd.DataFrame | None  # of the free parameters, (item, "a" | "d" | "c"); or None
    data_hash: str  # of the responses: fits to the same data share it
    groups: pd.DataFrame | None = None  # by group: mean, sd of ability, se_mean, se_sd, n_persons
    group_items: pd.DataFrame | None = None  # by group and item; ``items`` is the reference group's
    levels: dict | None = None  # of polytomous items: their answers in the order of the categories
    regression: pd.DataFrame | None = None  # of b on covariates: eta (above 0: harder), se, z, p
    residual_sd: float = math.nan  # of b given the covariates, logits

    def __post_init__(self) -> None:
        if self.model not in POLYTOMOUS:
            four_parameters(self.items)  # b and d must agree

    def __repr__(self) -> str:
        """Return what one looks at first: model, size, log-likelihood, convergence."""
        size = f"{self.n_persons} persons x {len(self.items)} items"
        state = "converged" if self.converged else "NOT converged"
        return (
            f"IRTFit({self.model}, {size}, log-likelihood {self.loglik:.3f}, AIC {self.aic:.1f}, "
            f"BIC {self.bic:.1f}, {self.n_parameters} parameters, {state})"
        )

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

    def require_one_group(self) -> None:
        """Refuse a fit of several groups where one population and one set of items are needed.

        Raises
        ------
        ValueError
            If the fit has groups: ``fit.in_group(label)`` is the fit as it holds in one of them.
        """
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
        known: dict[str, Any] = {"ability_sd": self.ability_sd, "ability_mean": self.ability_mean}
        if self.model in POLYTOMOUS:
            known |= {"form": self.model, "levels": self.levels}
        return known

    def score(
        self, responses: pd.DataFrame, method: str = "eap", *, device: Device = "auto"
    ) -> pd.DataFrame:
        """Return ability and its standard error by person; see :func:`psychlm.irt.score`."""
        return score(self.items, responses, method, device=device, **self._known)

    def posterior(self, responses: pd.DataFrame, *, device: Device = "auto") -> AbilityPosterior:
        """Return every person's posterior of ability on a grid."""
        return ability_posterior(self.items, responses, device=device, **self._known)

    def in_group(self, label: Any) -> IRTFit:
        """Return the fit as it holds in one group: its items, and its mean and sd of ability."""
        if self.groups is None or self.group_items is None or label not in self.groups.index:
            known = [] if self.groups is None else list(self.groups.index)
            raise KeyError(f"no group {label!r}; the groups are {known}")
        moments = self.groups[self.groups.index == label].iloc[0]
        items = self.group_items.xs(label, level="group")
        alone: dict[str, Any] = {"groups": None, "group_items": None, "covariance": None}
        mean, sd = float(moments["mean"]), float(moments["sd"])
        return replace(self, items=items, ability_mean=mean, ability_sd=sd, **alone)

    def probability(self, theta: ArrayLike) -> np.ndarray:
        """Return the probability of every category, (n_theta, n_items, n_categories).

        Of two categories the last is "correct"; categories that an item lacks have 0.
        """
        self.require_one_group()
        curves = category_items(self.items, self.model)
        log_p = curves.log_probability(torch.tensor(np.atleast_1d(theta), dtype=torch.float64))
        return log_p.exp().permute(2, 0, 1).numpy()

    def information(self, theta: ArrayLike) -> np.ndarray:
        """Return the items' Fisher information about ability, (n_theta, n_items), 1 / logit^2.

        Its sum over items is the test's information, whose -1/2 power is ability's standard error.
        """
        self.require_one_group()
        curves = category_items(self.items, self.model)
        at = torch.tensor(np.atleast_1d(theta), dtype=torch.float64)
        return curves.information(at).numpy()

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
        rng, posterior = np.random.default_rng(seed), self.posterior(responses)
        cumulative = posterior.weights.cumsum(axis=1)
        drawn = rng.random((len(posterior.persons), n)) * cumulative[:, -1:]
        place = np.stack([np.searchsorted(*row) for row in zip(cumulative, drawn, strict=True)])
        step = posterior.nodes[1] - posterior.nodes[0]
        theta = posterior.nodes[place] + step * (rng.random(place.shape) - 0.5)
        return pd.DataFrame(theta, posterior.persons, pd.RangeIndex(1, n + 1, name="draw"))

    def to_json(self, path: str | Path) -> None:
        """Write the fit as JSON, from which :meth:`from_json` gives an equal fit.

        NaN becomes null, and infinities become text, since JSON has neither.
        """

        def plain(value: Any) -> Any:
            if isinstance(value, np.generic):
                value = value.item()
            if isinstance(value, float) and not math.isfinite(value):
                return None if math.isnan(value) else repr(value)
            return value

        if self.groups is not None:
            raise ValueError("a fit of several groups is saved group by group: fit.in_group(label)")
        content: dict[str, Any] = {"format": FORMAT, "names": list(self.items)}
        if self.levels is not None:
            content["levels"] = [[plain(level) for level in row] for row in self.levels.values()]
        for field in fields(self):
            if field.name in ("groups", "group_items", "levels"):
                continue
            value = getattr(self, field.name)
            if isinstance(value, pd.DataFrame):
                # labels of the covariance are tuples (item, parameter)
                labels = [
                    [plain(part) for part in label] if isinstance(label, tuple) else plain(label)
                    for label in value.index
                ]
                columns = [[plain(cell) for cell in column] for _, column in value.items()]
                value = {"index": labels, "columns": columns}
            content[field.name] = plain(value)
        with atomic_write(path) as part:
            part.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> IRTFit:
        """Read a fit that :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            If the file is not such a fit, or its contents are not possible.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON: truncated, perhaps
            raise ValueError(
                f"{path} is no JSON ({error}); write a fit with IRTFit.to_json"
            ) from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a fit in the format {FORMAT!r}; write one with IRTFit.to_json"
            )
        try:
            return cls(**_checked_content(content))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{path} is a damaged fit ({reason}); fit again and write it with IRTFit.to_json"
            ) from None


def _checked_content(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a fit from its JSON, or raise an error that says what is wrong."""

    def require(condition: object, message: str) -> None:
        if not condition:
            raise ValueError(message)

    def number(value: Any, name: str) -> float:
        """Return a number; null is NaN, and "inf" and "-inf" are infinite."""
        if value is None or value in ("inf", "-inf"):
            return math.nan if value is None else float(value)
        require(type(value) in (int, float), f"{name} holds {str(value)[:40]!r}, not a number")
        return float(value)

    values: dict[str, Any] = {}
    kinds = {field.name: field.type for field in fields(IRTFit)}
    for name, kind in kinds.items():
        if name in ("groups", "group_items", "levels", "regression"):
            continue
        value = content[name] if name != "residual_sd" else content.get(name)
        if kind == "float":
            values[name] = number(value, name)
        elif kind in ("int", "bool", "str"):
            expected = {"int": int, "bool": bool, "str": str}[kind]
            require(type(value) is expected, f"{name} is {str(value)[:40]!r}, not a {kind}")
            values[name] = value
    require(values["model"] in {*MODELS.values(), "mixed"}, f"model {values['model']!r} is unknown")
    require(values["method"] in ("mml", "vi", "laplace"), f"method {values['method']!r} is unknown")
    require(math.isfinite(values["loglik"]), "the log-likelihood is not finite")
    require(abs(values["ability_mean"]) < LARGEST, "ability_mean is not finite or far too large")
    possible_sd = 1 / LARGEST < values["ability_sd"] < LARGEST
    require(possible_sd, "ability_sd is not positive and finite, or far too large or small")
    require(values["n_persons"] > 0 < values["n_parameters"], "there are no persons or parameters")

    # The items: one label each, nine columns of equal length, parameters that make sense.
    index, columns = content["items"]["index"], content["items"]["columns"]
    require(type(index) is list and type(columns) is list, "items are no table")
    labels_are_plain = all(type(label) in (str, int, float, bool) for label in index)
    require(labels_are_plain and len(set(index)) == len(index) > 0, "items' names are not distinct")
    shapes = [type(column) is list and len(column) == len(index) for column in columns]
    polytomous, named = values["model"] in POLYTOMOUS, content.get("names", COLUMNS)
    steps = range(1, len([name for name in named if str(name)[:4] == "se_d"]) + 1)
    possible_names = [COLUMNS, FOUR_PARAMETERS]
    if polytomous:
        estimates = ["a", *(f"{name}{k}" for name in "bd" for k in steps)]
        possible_names = [[*estimates, *(f"se_{name}" for name in estimates), "converged"]]
    require(named in possible_names, "items' columns are not those of the model")
    require(len(columns) == len(named) and all(shapes), "items' columns are not complete")
    is_flag = [name == "converged" or name.endswith("_is_free") for name in named]
    flags = {
        name: column for name, column, flag in zip(named, columns, is_flag, strict=True) if flag
    }
    all_flags = all(type(flag) is bool for column in flags.values() for flag in column)
    require(all_flags, "c_is_free or converged is not true or false")
    table = {
        name: [number(value, f"column {name}") for value in column]
        for name, column, flag in zip(named, columns, is_flag, strict=True)
        if not flag
    }
    items = pd.DataFrame({**table, **flags}, index=pd.Index(index, name="item"))
    possible = items[["a", "d1"] if polytomous else ["a", "c", "d"]].abs() < LARGEST
    require(possible.all(axis=None), "a, c or d is not finite, or far too large")
    if polytomous:
        answers = content["levels"]
        n_steps = items.filter(regex=r"^d\d+$").notna().sum(axis=1)
        require(len(answers) == len(index), "levels are not those of the items")
        answers = [[number(x, "levels") for x in row] for row in answers]
        levels = dict(zip(index, answers, strict=True))
        fits = [len(set(row)) == n + 1 for row, n in zip(levels.values(), n_steps, strict=True)]
        require(all(fits), "levels and difficulties do not agree")
        values["levels"] = levels
    else:
        require(items["c"].between(0, 1, inclusive="left").all(), "c lies outside [0, 1)")

    # The regression of difficulties, which files of earlier versions lack.
    regression = content.get("regression")
    if regression is not None:
        cells = [[number(cell, "regression") for cell in row] for row in regression["columns"]]
        shape = [len(row) == len(regression["index"]) for row in cells]
        require(len(cells) == 4 and all(shape), "the regression is no table of eta, se, z and p")
        table = dict(zip(("eta", "se", "z", "p"), cells, strict=True))
        values["regression"] = pd.DataFrame(table, index=regression["index"])

    # The covariance: a square table with the same labels on both sides.
    covariance = content["covariance"]
    if covariance is not None:
        labels = [tuple(label) for label in covariance["index"]]
        require(all(len(label) == 2 for label in labels) and labels, "covariance has wrong labels")
        cells = [[number(cell, "covariance") for cell in row] for row in covariance["columns"]]
        square = {len(cells), *map(len, cells)} == {len(labels)}
        require(square, "covariance is not square")
        both = pd.MultiIndex.from_tuples(labels, names=["item", "parameter"])
        covariance = pd.DataFrame(np.array(cells).T, index=both, columns=both)
    return {**values, "items": items, "covariance": covariance}
