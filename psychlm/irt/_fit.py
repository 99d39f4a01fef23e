"""Fit an item response model: check, compress, climb, refine, standard errors, result.

``solve`` is the algorithm for all: from every start a few EM steps, then Newton's method (of many
items EM alone) and, with guessing, other starts of single items, again on finer grids until a finer
one changes nothing. The rooms are the specification, its engine, starts, EM, the climb, errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from psychlm.device import Device, record_use, torch_device
from psychlm.frames import Repeated, format_names
from psychlm.irt._repeats import correlation_of_repeats
from psychlm.irt.arrays import host
from psychlm.irt.climb import climb
from psychlm.irt.em import LOGLIK_TOLERANCE, squarem, turned
from psychlm.irt.engine import LARGEST_LOG_SD, Engine, Settings
from psychlm.irt.likelihood import GRID_ERROR, LARGEST_SLOPE, SMALLEST_STEP, QuadratureGrid
from psychlm.irt.priors import Prior
from psychlm.irt.response_functions import model_named
from psychlm.irt.response_matrix import NUMPY_CELLS, few_threads, pick_device
from psychlm.irt.result import IRTFit, result_of
from psychlm.irt.specification import (
    IRTWarning,
    Names,
    Solution,
    Specification,
    check_answers,
    specify,
)
from psychlm.irt.standard_errors import EXACT_PARAMETERS
from psychlm.irt.standard_errors import standard_errors as errors_of
from psychlm.irt.starts import better_starts, starts_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

AT_BOUND = 2e-6  # distance of an asymptote from 0 and 1 at which it has no error
DEPENDENT = 0.05  # intraclass correlation of repeats given ability that is worth a warning
MOST_PARAMETERS = 5_000  # of which the information is built whole, at the end
SMALL_GAIN = 1e-3  # nats, that another start must gain at the end


def fit(
    responses: pd.DataFrame | Repeated | np.ndarray,
    model: str | Mapping | pd.Series = "2PL",
    *,
    device: Device = "auto",
    guessing: float | str | pd.Series | None = None,
    upper: float | pd.Series | None = None,
    priors: Mapping[str, Prior] | None = None,
    equal: Mapping[str, Any] | None = None,
    group: pd.Series | Sequence | None = None,
    reference: object = None,
    free: Names | Mapping[str, Names] = (),
    start: pd.DataFrame | IRTFit | None = None,
    difficulty_prior: pd.DataFrame | pd.Series | None = None,
    fixed: pd.DataFrame | IRTFit | None = None,
    weights: pd.Series | Sequence | None = None,
    standard_errors: bool | Literal["sandwich"] = True,
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 2000,
    tolerance: float = 1e-4,
) -> IRTFit:
    """Fit an item response model to responses by marginal maximum likelihood.

    Parameters
    ----------
    responses : DataFrame, Repeated or ndarray, shape (n_persons, n_items)
        A responses frame (0, 1, NaN); k of n answers right (:class:`psychlm.frames.Repeated`), for
        any dichotomous model; or a uint8 matrix (0, 1, 255 for not asked), perhaps a memory map.
        For "graded" and "gpcm" numbers such as ratings: an item's answers, in their order. The
        likelihood of k of n is that of n independent answers, without the binomial constant; a
        warning says where they are not (:func:`psychlm.irt.correlation_of_repeats`).
    model : str, or mapping from item to str
        "1PL" (one common slope, ability N(0, 1)), "Rasch" (slopes 1, ability variance free), "2PL",
        "3PL" or "4PL" (with a free upper asymptote). "graded" (Samejima 1969): P(x >= k) is
        logistic with difficulty b_k. "gpcm" (generalised partial credit; Muraki 1992): so is x = k
        among the answers k - 1 and k. "PCM" (Masters 1982) is the gpcm with slopes 1 and free
        variance of ability, and "RSM" (Andrich 1978) a PCM whose steps are spaced alike in all
        items. "nominal" (Bock 1972) orders no categories: a_k and d_k are a category's logits above
        the lowest's, and ability is turned to rise with the categories' numbers on the whole.
        A mapping names models item by item, such as ``{"q1": "3PL", "essay": "gpcm"}``: those with
        free slopes, or Rasch and PCM. Items that it does not name are "2PL", of several categories
        "graded" (beside Rasch or PCM: these).
    device : str or torch.device
        See :func:`psychlm.device.torch_device`; "auto" takes a GPU for over ten million responses.
        With ``difficulty_prior`` the fit is on the CPU.
    guessing : float, "common", or Series by item, optional
        Fixed guessing parameters; "common" estimates one for all items of a 3PL.
    upper : float or Series by item, optional
        Fixed upper asymptotes, for any dichotomous model; in a 4PL the others are free.
    priors : dict, optional
        Densities on "slope" (LogNormal, Normal), "intercept" (Normal), "guessing" and "upper"
        (Beta, or Normal of the logit, as in mirt). ``{"guessing": Beta(5, 17)}`` keeps a 3PL from
        running away; ``{"intercept": Normal(0, 3)}`` keeps items finite that all answered alike.
    equal : mapping, optional
        Items that share a parameter: ``{"slope": ["i1", "i2"], "guessing": "all"}``, or a list of
        such lists. With the intercepts of polytomous items all their thresholds are equal.
    group : Series by person, or sequence in the order of persons, optional
        Two or more groups: ability is N(0, 1) in the reference group, and its mean and variance are
        free in the others (``fit.groups``, ``fit.in_group(label)``), as far as items that are not
        free tell them.
    reference : label, optional
        The reference group; by default that of the first person.
    free : sequence of items, "all", or mapping from parameter to these
        What differs between groups: ``["i3"]``, or ``{"intercept": "all"}``.
    start : DataFrame or IRTFit, optional
        Items of an earlier fit to begin with; an IRTFit where there are groups.
    difficulty_prior : DataFrame (items x covariates) or Series by item, optional
        Of the Rasch model: b is normal around its regression on covariates or predicted
        difficulties, with a residual variance that is estimated (De Boeck 2008). Items then borrow
        strength, and none is infinite: ``b`` and ``se_b`` are posterior modes and standard
        deviations, ``fit.regression`` and ``fit.residual_sd`` the regression, and ``loglik`` is
        marginal over items, too, by Laplace's approximation. Without columns items vary around one
        mean; an ``ability_sd`` of 0.01, its bound, says that persons differ by chance only.
    fixed : DataFrame or IRTFit, optional
        A bank: items of these names keep its parameters, and the other items' parameters and the
        mean and standard deviation of ability (``fit.ability_mean``, ``ability_sd``) are estimated
        on its scale (fixed-item calibration; Kim 2006). Fixed parameters have no errors. A bank in
        the normal metric is converted by :func:`psychlm.irt.rescale`.
    weights : Series by person, or sequence in the order of persons, optional
        How many persons of the population each stands for; log-likelihoods are sums with these
        weights. Errors are then sandwich ones (Huber 1967; White 1982), for weights that persons
        were sampled with; AIC and BIC have no meaning there.
    standard_errors : bool or "sandwich"
        Compute them, from the observed information, or the sandwich ones, which hold where the
        model is wrong; ``fit.errors`` says which. Where items share parameters or have several
        categories they are those of up to 5,000 estimates.
    item_names : sequence, optional
        Names for the columns of a matrix.
    max_iterations : int
        Steps of EM and Newton's method; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are parameters whose predicted remaining change is below it (logits), with a
        log-likelihood that gained less than 1e-5 nats. An item whose slope ends at its bound, 50,
        has not converged, nor has the fit: its likelihood may have no finite maximum.

    Returns
    -------
    IRTFit

    References
    ----------
    Bock and Aitkin (1981), Psychometrika 46, 443-459. Lalor (2020), sections 1.3.1 and 1.3.2.

    Examples
    --------
    >>> from psychlm import simulate
    >>> rng = np.random.default_rng(0)
    >>> fit(simulate.responses(rng.normal(size=500), simulate.items(8, rng), rng)).converged
    True
    """
    if max_iterations < 1 or not tolerance > 0:
        raise ValueError(
            f"max_iterations={max_iterations} and tolerance={tolerance} let no step be made; give "
            "a whole number of at least 1 and logits above 0"
        )
    if standard_errors not in (True, False, "sandwich"):
        raise ValueError(f"standard_errors={standard_errors!r}; choose True, False or 'sandwich'")
    settings = Settings(tolerance, max_iterations)
    given: dict[str, Any] = {"guessing": guessing, "upper": upper, "priors": priors, "equal": equal}
    given |= {"group": group, "free": free}
    if difficulty_prior is not None:
        others = given | {"free": free if len(free) else None, "start": start}
        others |= {"fixed": fixed, "weights": weights}
        named = [name for name, value in others.items() if value is not None]
        if named or not isinstance(model, str) or not model_named(model).unit_slope:
            raise ValueError(
                f"difficulty_prior takes model='Rasch' (given: {model!r}) and none of the other "
                f"arguments on items and groups (given: {named})"
            )
    levels = None
    if isinstance(fixed, IRTFit):
        fixed.require_one_group()
        check_same_form(model, fixed)
        fixed, levels = fixed.items, fixed.levels
    given |= {"fixed": fixed, "levels_of_fixed": levels, "weights": weights}
    spec = specify(responses, model, reference=reference, item_names=item_names, **given)
    sandwich = standard_errors == "sandwich" or (weights is not None and bool(standard_errors))
    if isinstance(start, IRTFit) and group is None:
        start.require_one_group()
    if isinstance(start, IRTFit) and start.groups is None:
        start = start.items
    if difficulty_prior is not None:
        torch_device(device)  # an unknown one is an error, and this computes on the CPU
        record_use("irt.fit", "cpu")
        from psychlm.irt.explanatory import solve_explanatory

        with few_threads(spec.answers.values.size):
            solution = solve_explanatory(spec, difficulty_prior, settings)
    else:
        check_answers(spec)
        solution = solve(spec, start, bool(standard_errors), settings, sandwich, device)
    result = result_of(spec, solution)
    if isinstance(responses, Repeated) and responses.n.to_numpy().max() > 1:
        correlation, se = correlation_of_repeats(result, responses, group)
        if correlation > max(DEPENDENT, 3 * se):
            solution.messages.append(
                "answers of one person to one item agree more than ability explains (intraclass "
                f"correlation {correlation:.2f}), so that n of them tell as much as n / (1 + (n - "
                f"1) {correlation:.2f}) independent ones, and standard errors and likelihoods are "
                "too optimistic; compare them with a fit to one answer of each, responses.draw(rng)"
            )
    for message in solution.messages:
        warnings.warn(message, IRTWarning, stacklevel=2)
    return result


def check_same_form(model: str | Mapping | pd.Series, bank: IRTFit) -> None:
    """Refuse a bank whose items are of another form than those of the model."""
    if isinstance(model, str) and model_named(model).form is not model_named(bank.model).form:
        raise ValueError(
            f"fixed is a fit of the {bank.model} model, whose parameters mean other curves than "
            f"those of the {model_named(model).name} model; fit the model of the bank"
        )


@np.errstate(all="ignore")  # what is not a number is refused step by step
def solve(
    spec: Specification,
    start: pd.DataFrame | IRTFit | None,
    standard_errors: bool,
    settings: Settings,
    sandwich: bool = False,
    device: Device = "cpu",
) -> Solution:
    """Climb from every start, on finer grids while the log-likelihood moves; give the errors."""
    where = device_of_fit(spec, device)
    with few_threads(spec.answers.values.size):
        em = Engine(spec, settings, where)
        ends = [finish(em, begin) for begin in starts_of(em, start)]
        x, settled, em.grid, error, _ = max(ends, key=lambda end: end[-1])
        posterior, _ = em.expect(x)
        if em.scale_is_free and spec.model.dichotomous:
            x = turned(em, x, posterior)
        values, mean, sd = map(host, em.unpack(x))
        blocks = np.full((values.shape[1], len(values), len(values)), np.nan)
        variances = np.full((2, len(sd)), np.nan)
        covariance = None
        too_many = standard_errors and len(x) > MOST_PARAMETERS and not em.has_own_curves
        standard_errors = standard_errors and not too_many
        if standard_errors:
            blocks, variances, covariance = errors_of(em, x, spec, sandwich)
        se_mean, se_log_sd = np.sqrt(variances)
        loglik = float(posterior.loglik @ em.count)
        runaway = host(em.items(x).steepness >= LARGEST_SLOPE)

    # What a reader of the estimates must know, item by item, in any group.
    settled = settled & ~runaway
    item = np.array(spec.columns)[:, 0]
    free = np.isnan(spec.fixed)[:, item]
    kinds = np.array(spec.row_kinds)
    ended = (kinds[:, None] > 1) & (np.minimum(values, 1 - values) < AT_BOUND)
    lacking = free & ~ended & np.isnan(blocks.diagonal(axis1=1, axis2=2).T) & standard_errors
    marks = {"runaway": runaway, "unsettled": ~settled & ~runaway}
    # Without upper asymptotes an item whose guessing ends at 0 is one of the 2PL.
    has_upper = bool((spec.fixed[kinds == 3] != 1).any())
    marks["at_bound"] = (free & ended).any(0) & has_upper
    marks["unknown"] = lacking.any(0) & ~runaway
    by_item = {name: np.bincount(item, columns) > 0 for name, columns in marks.items()}
    messages = []
    if too_many:
        messages.append(
            f"no standard errors of {len(x):,} estimates: where items share parameters or have "
            "several categories they take a matrix of that size, which is computed up to "
            f"{MOST_PARAMETERS:,}; standard_errors=False asks for none"
        )
    at_limit = np.abs(np.log(sd)) > LARGEST_LOG_SD - 1e-6
    messages += [
        f"the abilities of group {spec.groups[g]!r} have a standard deviation of {sd[g]:g}, its "
        "bound: their answers do not tell how far persons lie apart; take groups together, or free "
        "fewer items"
        for g in np.flatnonzero(at_limit)
    ]
    return Solution(
        values=values,
        blocks=blocks,
        groups={"mean": mean, "sd": sd, "se_mean": se_mean, "se_sd": se_log_sd * sd},
        covariance=covariance,
        n_parameters=len(x),
        loglik=loglik,
        log_prior=float(em.log_prior(x)),
        n_iterations=em.n_steps,
        loglik_error=error,
        quadrature=str(em.grid),
        converged=settled,
        messages=messages + problems(spec.items, em, error, **by_item),
        errors="sandwich" if sandwich else "observed information",
    )


def device_of_fit(spec: Specification, device: Device) -> torch.device | None:
    """Return where to compute; None: with NumPy, since torch takes a second to start."""
    size = spec.answers.values.size
    few = size <= NUMPY_CELLS and 3 * len(spec.items) <= EXACT_PARAMETERS
    if few and spec.model.form.takes_arrays() and str(device) in ("auto", "cpu"):
        record_use("irt.fit", "cpu")
        return None
    return pick_device(device, "irt.fit", size)


def finish(em: Engine, x: Tensor) -> tuple[Tensor, np.ndarray, QuadratureGrid, float, float]:
    """Climb to a maximum, on finer grids while the log-likelihood moves.

    With guessing other starts of single items are tried, and the climb goes on from what gains.
    Return estimates, which columns have converged, the grid, by how much a finer one would move the
    log-likelihood, and log-likelihood plus log prior.
    """
    settings = em.settings
    others = em.others
    while True:
        done = False
        if em.first_steps != 0:
            gain = LOGLIK_TOLERANCE if em.first_steps is None else em.least_gain
            x, done = squarem(em, x, settings.tolerance, em.first_steps, gain)
        converged = np.full(em.n_columns, done)
        if em.first_steps is None or done or em.n_steps >= settings.max_iterations:
            _, objective = em.expect(x)
        else:
            x, objective, off = climb(em, x)
            converged = ~em.columns_with(host(off) & em.inside(x))  # bounds have their own messages
        exhausted = em.n_steps >= settings.max_iterations
        if others is not None and not exhausted:
            other = better_starts(em, x, SMALL_GAIN, others)
            if other is not None:
                x = other
                continue
            others = None
        error = em.grid_error(x, objective)
        if not error > GRID_ERROR or em.grid.step <= SMALLEST_STEP or exhausted:
            return x, converged, em.grid, error, objective
        em.grid = em.grid.halved()


def problems(items: pd.Index, em: Engine, loglik_error: float, **marks: np.ndarray) -> list[str]:
    """Return what a reader of the estimates must know, one message per problem.

    Marks by item are ``runaway`` slopes, no convergence (``unsettled``), asymptotes ``at_bound``,
    and no standard errors though they were asked for (``unknown``).
    """
    texts = {
        "runaway": f"items {{}} have slopes at the bound, {LARGEST_SLOPE:g}: correct and wrong "
        "responses are separated by ability, and the likelihood may have no finite maximum; drop "
        'them, or give a prior: priors={{"slope": LogNormal(0, 0.5)}}',
        "unsettled": f"no convergence of items {{}} in {em.n_steps} steps; raise max_iterations, "
        "free fewer parameters, or give a 3PL a prior: "
        'priors={{"guessing": Beta(5, 17)}}',
        "at_bound": "asymptotes of items {} ended at 0 or 1 and have no standard errors; a prior "
        'keeps them inside: priors={{"guessing": Beta(5, 17), "upper": Beta(17, 2)}}',
        "unknown": "items {} lie too near a ridge of the likelihood to have standard errors",
    }
    if marks["unknown"].all():
        texts["unknown"] = (
            "the observed information is not positive definite at the estimates, so there are no "
            "standard errors"
        )
    to_say = [name for name in texts if name in marks and marks[name].any()]
    messages = [texts[name].format(format_names(items[marks[name]])) for name in to_say]
    if loglik_error > GRID_ERROR:
        messages.append(
            f"the log-likelihood moves by {loglik_error:.3g} nats on a finer grid than {em.grid}"
        )
    return messages
