"""The result of a fit: items with standard errors, the fit's quality, and how it was reached."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from psychlm.data import atomic_write
from psychlm.irt.curves import item_parameters
from psychlm.irt.scoring import AbilityPosterior, ability_posterior, score

MODELS = {"1PL": "1PL", "RASCH": "Rasch", "2PL": "2PL", "3PL": "3PL"}
FORMAT = "psychlm.irt.fit/2"
LARGEST = 1e6  # logits, of any parameter in a file: beyond it arithmetic overflows
COLUMNS = ["a", "b", "c", "d", "se_a", "se_b", "se_c", "se_d", "c_is_free", "converged"]


class IRTWarning(UserWarning):
    """A fit that needs a second look: what happened, to which items, and what to do."""


@dataclass(frozen=True)
class IRTFit:
    """A fitted 1PL, Rasch, 2PL or 3PL model; logistic metric (D = 1), ability in logits.

    Ability is N(0, 1), except for the Rasch model, whose slopes are 1 and whose ability variance is
    estimated, and for fits on another scale (:func:`psychlm.irt.link`).
    """

    items: pd.DataFrame  # by item: a, b, c, d (= -a b), standard errors se_*, c_is_free, converged
    model: str  # "1PL", "Rasch", "2PL", "3PL", or "mixed" (2PL and 3PL items)
    method: str  # "mml" or "vi"
    loglik: float  # marginal log-likelihood, nats
    log_prior: float  # log density of the priors, nats; 0 where there are none, NaN by "vi"
    n_parameters: int
    n_persons: int
    converged: bool  # in parameters and log-likelihood; never with a slope that runs away
    n_iterations: int  # EM steps
    ability_mean: float  # logits
    ability_sd: float  # logits; fixed at 1, but estimated for the Rasch model
    se_ability_variance: float  # of ability_sd^2; NaN where the variance is fixed
    ability_sd_check: float  # sd re-estimated with the items held / ability_sd: 1 if all is well
    loglik_error: float  # nats by which the log-likelihood moves on a grid of half the step
    quadrature: str  # the grid, in words
    covariance: pd.DataFrame | None  # of the free parameters, (item, "a" | "d" | "c"); or None
    data_hash: str  # of the responses: fits to the same data share it

    def __post_init__(self) -> None:
        item_parameters(self.items)  # b and d must agree

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

    def score(self, responses: pd.DataFrame, method: str = "eap") -> pd.DataFrame:
        """Return ability and its standard error by person; see :func:`psychlm.irt.score`."""
        sd, mean = self.ability_sd, self.ability_mean
        return score(self.items, responses, method, ability_sd=sd, ability_mean=mean)

    def posterior(self, responses: pd.DataFrame) -> AbilityPosterior:
        """Return every person's posterior of ability on a grid."""
        sd, mean = self.ability_sd, self.ability_mean
        return ability_posterior(self.items, responses, ability_sd=sd, ability_mean=mean)

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

        content: dict[str, Any] = {"format": FORMAT}
        for field in fields(self):
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
        value = content[name]
        if kind == "float":
            values[name] = number(value, name)
        elif kind in ("int", "bool", "str"):
            expected = {"int": int, "bool": bool, "str": str}[kind]
            require(type(value) is expected, f"{name} is {str(value)[:40]!r}, not a {kind}")
            values[name] = value
    require(values["model"] in {*MODELS.values(), "mixed"}, f"model {values['model']!r} is unknown")
    require(values["method"] in ("mml", "vi"), f"method {values['method']!r} is unknown")
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
    require(len(columns) == len(COLUMNS) and all(shapes), "items' columns are not complete")
    flags = dict(zip(COLUMNS[-2:], columns[-2:], strict=True))
    all_flags = all(type(flag) is bool for column in flags.values() for flag in column)
    require(all_flags, "c_is_free or converged is not true or false")
    table = {
        name: [number(value, f"column {name}") for value in column]
        for name, column in zip(COLUMNS[:-2], columns, strict=False)
    }
    items = pd.DataFrame({**table, **flags}, index=pd.Index(index, name="item"))
    possible = items[["a", "c", "d"]].abs() < LARGEST
    require(possible.all(axis=None), "a, c or d is not finite, or far too large")
    require(items["c"].between(0, 1, inclusive="left").all(), "c lies outside [0, 1)")

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


FitOrItems = TypeVar("FitOrItems", IRTFit, pd.DataFrame)


def link(fit_or_items: FitOrItems, *, slope: float = 1.0, intercept: float = 0.0) -> FitOrItems:
    r"""Return a fit or items on another scale of ability, theta* = slope theta + intercept.

    .. math:: a^* = a / A, \qquad b^* = A b + B, \qquad d^* = d - a B / A

    leaves every probability as it is (Kolen and Brennan 2014, section 6.2). Scores and standard
    errors follow; a linked fit has no covariance matrix.

    Parameters
    ----------
    fit_or_items : IRTFit or DataFrame
        A fit, or items with a, b or d, and optionally c and standard errors.
    slope, intercept : float
        A > 0 and B, in units of the new scale: for example the standard deviation and mean of the
        fit's reference group on the new scale.

    Examples
    --------
    >>> link(pd.DataFrame({"a": [1.0], "b": [0.0]}), slope=2, intercept=1).round(2).to_dict("list")
    {'a': [0.5], 'b': [1.0], 'd': [-0.5]}
    """
    if not (math.isfinite(slope) and math.isfinite(intercept) and slope > 0):
        raise ValueError(f"slope {slope} must be positive, and both it and {intercept} be finite")
    if isinstance(fit_or_items, IRTFit):
        fit = fit_or_items
        return replace(
            fit,
            items=link(fit.items, slope=slope, intercept=intercept),
            ability_mean=slope * fit.ability_mean + intercept,
            ability_sd=slope * fit.ability_sd,
            se_ability_variance=slope**2 * fit.se_ability_variance,
            covariance=None,
        )
    old = fit_or_items
    a, d, _ = item_parameters(old)
    items, shift = old.copy(), intercept / slope
    items["a"], items["d"] = a / slope, d - a * shift
    items["b"] = slope * (old["b"] if "b" in old else -d / a) + intercept
    if {"se_a", "se_b", "se_d"} <= set(old):
        # se_b comes from var(d) + 2 b cov(a, d) + b^2 var(a), divided by a^2: solve for cov(a, d).
        var_a, var_d = old["se_a"].fillna(0) ** 2, old["se_d"] ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            cov = ((a * old["se_b"]) ** 2 - var_d - old["b"] ** 2 * var_a) / (2 * old["b"])
        cov = cov.where(old["se_a"].notna(), 0.0)
        items["se_a"], items["se_b"] = old["se_a"] / slope, old["se_b"] * slope
        items["se_d"] = np.sqrt(var_d - 2 * shift * cov + shift**2 * var_a)
    return items
