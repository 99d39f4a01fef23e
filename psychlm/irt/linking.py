"""Put items and abilities on another scale, which common items of two fits may tell."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pandas as pd
import scipy
import torch

from psychlm.frames import FrameError, refuse
from psychlm.irt.explanatory import CONSTANT, wald_table
from psychlm.irt.model_tables import STANDARD_GRID, ModelTables, normal_weights
from psychlm.irt.response_functions import (
    ABSENT,
    PartialCredit,
    ResponseFunction,
    four_parameters,
    model_named,
)
from psychlm.irt.result import IRTFit

FitOrItems = TypeVar("FitOrItems", IRTFit, pd.DataFrame)


def link(
    fit_or_items: FitOrItems, *, slope: float = 1.0, intercept: float = 0.0, unit: str = ""
) -> FitOrItems:
    r"""Return a fit or items on another scale of ability, theta* = slope theta + intercept.

    .. math:: a^* = a / A, \qquad b^* = A b + B, \qquad d^* = d - a B / A

    leaves every probability as it is (Kolen and Brennan 2014, section 6.2). Scores and standard
    errors follow; a linked fit has no covariance matrix. The error of d* takes the covariance of a
    and d: a fit's own, or what the errors of a table imply, which is nothing (NaN) where b is 0.

    ``slope`` (A > 0) and ``intercept`` (B) are in units of the new scale (``unit`` in figures), as
    :func:`linking_constants` finds them; a table has a, b or d, and perhaps c and standard errors.

    >>> link(pd.DataFrame({"a": [1.0], "b": [0.0]}), slope=2, intercept=1).round(2).to_dict("list")
    {'a': [0.5], 'b': [1.0], 'd': [-0.5]}
    """
    if not (math.isfinite(slope) and math.isfinite(intercept) and slope > 0):
        raise ValueError(f"slope {slope} must be positive, and both it and {intercept} be finite")
    if isinstance(fit_or_items, IRTFit):
        fit = fit_or_items
        fit.require_one_group()
        regression = fit.regression
        if regression is not None:  # of difficulties, whose constant moves along
            eta = slope * regression["eta"] + intercept * (regression.index == CONSTANT)
            regression = wald_table(eta, slope * regression["se"], regression.index)
        return replace(
            fit,
            items=_linked_items(fit.items, slope, intercept, _covariances(fit)),
            regression=regression,
            residual_sd=slope * fit.residual_sd,
            ability_mean=slope * fit.ability_mean + intercept,
            ability_sd=slope * fit.ability_sd,
            se_ability_variance=slope**2 * fit.se_ability_variance,
            covariance=None,
            unit=unit,
        )
    return _linked_items(fit_or_items, slope, intercept, {})


def rescale(items: pd.DataFrame, D: float = 1.702) -> pd.DataFrame:  # noqa: N803
    r"""Return items of another metric in the logistic one (D = 1), in which this package computes.

    Parameters printed in the normal metric mean :math:`P = \sigma(D a (\theta - b))` with D = 1.702
    (or 1.7): slopes, intercepts and their errors are multiplied by D, and difficulties stay
    (Camilli 1994). Abilities keep their scale. ``D=1 / 1.702`` leads back.

    >>> rescale(pd.DataFrame({"a": [1.0], "b": [0.5]})).to_dict("list")
    {'a': [1.702], 'b': [0.5]}
    """
    if not (math.isfinite(D) and D > 0):
        raise ValueError(f"D is {D}; give a finite number above 0")
    scaled = [name for name in items if re.fullmatch(r"(se_)?[ad]\d*", str(name))]
    return items.assign(**{name: D * items[name] for name in scaled})


def _covariances(fit: IRTFit) -> dict[str, np.ndarray]:
    """Return the covariances of slopes with intercepts, by the intercepts' name and by item."""
    if fit.covariance is None or fit.estimates is None or "a" not in fit.estimates:
        return {}
    padded = np.pad(fit.covariance.to_numpy(), (0, 1), constant_values=np.nan)
    places = {label: row for row, label in enumerate(fit.covariance.index)}
    rows = {}
    for name, number in fit.estimates.items():
        # Equal parameters stand under the first item that has them, or under "all"; -1: under none.
        first = number.drop_duplicates()
        row = [places.get((item, name), places.get(("all", name), -1)) for item in first.index]
        rows[name] = number.map(dict(zip(first, row, strict=True))).to_numpy()
    slopes = rows.pop("a")
    fixed = fit.estimates["a"] < 0
    return {name: np.where(fixed, 0.0, padded[slopes, row]) for name, row in rows.items()}


def _linked_items(
    old: pd.DataFrame, slope: float, intercept: float, covariances: dict[str, np.ndarray]
) -> pd.DataFrame:
    """Return a table on another scale; covariances of a and d that are not given are solved for."""
    shift = intercept / slope
    if "model" in old:  # of mixed formats, whose columns are theirs alone
        two = np.array([model_named(name).dichotomous for name in old["model"]])
        formats = [old[chosen].drop(columns="model") for chosen in (two, ~two)]
        linked = [
            _linked_items(table.dropna(axis=1, how="all"), slope, intercept, {})
            for table in formats
        ]
        return pd.concat(linked).reindex(old.index, columns=list(old)).assign(model=old["model"])
    # steps of polytomous items: b1, b2, ... with d1, d2, ..., which may be missing, d = -a b
    steps = [name[1:] for name in old if name[0] in "bd" and name[1:].isdigit()]
    tags: list[str] = list(dict.fromkeys(steps)) or [""]
    items = old.copy()
    if "a1" in old:  # nominal, with a slope for every step
        for tag in tags:
            items[f"d{tag}"] -= old[f"a{tag}"] * shift
            if f"se_d{tag}" in old and shift:
                items[f"se_d{tag}"] = np.nan
    elif steps:
        absent = [name for name in ("a", *(f"b{tag}" for tag in tags)) if name not in items]
        refuse("columns", absent, "are missing; a scale is linked by slopes and difficulties")
        lacking = {f"d{tag}": -old["a"] * old[f"b{tag}"] for tag in tags if f"d{tag}" not in old}
        items = items.assign(**lacking)
        PartialCredit.rows_of(items)  # b and d must agree
    else:  # b and d must agree, and one may be missing
        slopes, d, _, _ = four_parameters(old)
        items = items.assign(a=slopes, d=d, b=old["b"] if "b" in old else -d / slopes)
    before = items.copy()
    for name in items:
        if re.fullmatch(r"(se_)?a\d*", str(name)):
            items[name] /= slope
    for tag in [] if "a1" in old else tags:
        a = before["a"]
        b = before[f"b{tag}"]
        d = before[f"d{tag}"]
        items[f"d{tag}"], items[f"b{tag}"] = d - a * shift, slope * b + intercept
        if {"se_a", f"se_b{tag}", f"se_d{tag}"} <= set(old):
            var_a = old["se_a"].fillna(0) ** 2
            var_d = old[f"se_d{tag}"] ** 2
            cov = covariances.get(f"d{tag}")
            if cov is None:  # se_b comes from var(d) + 2 b cov(a, d) + b^2 var(a), over a^2
                with np.errstate(divide="ignore", invalid="ignore"):
                    cov = ((a * old[f"se_b{tag}"]) ** 2 - var_d - b**2 * var_a) / (2 * b)
                rounded = cov**2 > (1 + 1e-6) * var_a * var_d  # b is 0 but for rounding
                cov = cov.mask(rounded).where(old["se_a"].notna() & (shift != 0), 0.0)
            items[f"se_b{tag}"] = old[f"se_b{tag}"] * slope
            items[f"se_d{tag}"] = np.sqrt(var_d - 2 * shift * cov + shift**2 * var_a)
    return items


def thresholds(functions: ResponseFunction) -> np.ndarray:
    """Return difficulties -d / a, (n_thresholds, n_items); NaN for steps that an item lacks."""
    values = functions.values.numpy()
    steps = [row for row, kind in enumerate(functions.row_kinds(len(values))) if kind == 1]
    d = np.where(values[steps] > ABSENT / 2, values[steps], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -d / values[0]


def common_functions(tables: ModelTables, common: pd.Index) -> ResponseFunction:
    """Return the common items' curves, without steps that none of them has."""
    values = tables.functions.values.numpy()
    values = values[:, tables.items.get_indexer(common)]
    is_step = np.array(tables.functions.row_kinds(len(values))) == 1
    used = ~is_step | (values > ABSENT / 2).any(axis=1)
    return replace(tables.functions, values=torch.from_numpy(values[used]))


def linking_constants(
    source: IRTFit | pd.DataFrame, target: IRTFit | pd.DataFrame, *, model: str = "2PL"
) -> pd.DataFrame:
    r"""Find the scale's change from the items that two calibrations share.

    .. math:: \theta_{target} = A \theta_{source} + B

    Parameters
    ----------
    source, target : IRTFit or DataFrame
        Two fits, or tables of items, with at least two items in common; only those are compared.
    model : str
        Of tables: "graded" or "gpcm" where items have several categories.

    Returns
    -------
    DataFrame, by method
        ``slope`` A and ``intercept`` B for :func:`link`, and ``criterion``, the smallest weighted
        squared difference of item curves ("Haebara"), or of test curves ("Stocking-Lord"), over
        N(0, 1) on the target's scale. "mean/sigma" and "mean/mean" equate moments and have none.

    References
    ----------
    Haebara (1980), Japanese Psychological Research 22, 144-149; Stocking & Lord (1983), Applied
    Psychological Measurement 7, 201-210; Kolen & Brennan (2014), chapter 6.

    Examples
    --------
    >>> old = pd.DataFrame({"a": [1.0, 1.5, 0.8], "b": [-1.0, 0.0, 1.0]}, list("xyz"))
    >>> found = linking_constants(old, link(old, slope=2, intercept=1))
    >>> float(found.loc["Haebara", "slope"].round(4))
    2.0
    """
    tables = [ModelTables.of(each, model) for each in (source, target)]
    if not all(each.functions.ordered for each in tables):
        raise FrameError("nominal items have no difficulties that could be equated")
    common = tables[0].items.intersection(tables[1].items)
    if len(common) < 2:
        raise FrameError(f"{len(common)} items are common to both; linking takes at least 2")
    old, new = (common_functions(each, common) for each in tables)

    # Moments of difficulties (all thresholds) and slopes.
    b_old = thresholds(old)
    b_new = thresholds(new)
    n_steps = [np.isfinite(b).sum(axis=0) for b in (b_old, b_new)]
    flaw = "have other numbers of categories in the two, or a slope of 0; leave them out"
    refuse("items", common[(n_steps[0] != n_steps[1]) | (n_steps[0] == 0)], flaw)
    a_old = old.values[0].numpy()
    a_new = new.values[0].numpy()
    if not a_old.mean() * a_new.mean() > 0:
        raise FrameError(
            f"the common items' slopes have means {a_old.mean():.3g} and {a_new.mean():.3g}, of "
            "opposite signs: ability grows in opposite directions; turn one of the scales round"
        )
    slopes = {"mean/sigma": np.nan, "mean/mean": a_old.mean() / a_new.mean()}
    if np.nanstd(b_old) > 0 and np.nanstd(b_new) > 0:  # else difficulties have no spread to equate
        slopes["mean/sigma"] = np.nanstd(b_new) / np.nanstd(b_old)
    rows = {
        name: [slope, np.nanmean(b_new) - slope * np.nanmean(b_old), np.nan]
        for name, slope in slopes.items()
    }

    # Curves: search from there.
    wanted = new.probability_at(STANDARD_GRID)
    weights = normal_weights(STANDARD_GRID)
    score = np.arange(wanted.shape[1])
    first = rows["mean/mean" if np.isnan(slopes["mean/sigma"]) else "mean/sigma"]
    start = [math.log(first[0]), first[1]]
    settings = {"method": "Nelder-Mead", "options": {"xatol": 1e-7, "fatol": 1e-13}}

    def distance(constants: np.ndarray, name: str) -> float:
        slope = math.exp(constants[0])
        intercept = constants[1]
        linked = old.rescaled(-intercept / slope, 1 / slope)
        gap = (linked.probability_at(STANDARD_GRID) - wanted)[:, 1:]
        if name == "Stocking-Lord":
            return float((score[1:] @ gap).sum(0) ** 2 @ weights)
        return float((gap**2).sum((0, 1)) @ weights)

    for name in ("Haebara", "Stocking-Lord"):
        best = scipy.optimize.minimize(distance, start, (name,), **settings)
        rows[name] = [math.exp(best.x[0]), best.x[1], best.fun]
    columns = ["slope", "intercept", "criterion"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("method")
