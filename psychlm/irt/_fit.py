"""Fit an item response model: check what comes in, estimate, and say honestly what came out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, format_names
from psychlm.irt.em import (
    EM,
    LATTICE_ERROR,
    LOGLIK_TOLERANCE,
    SMALLEST_STEP,
    Settings,
    ability_sd_check,
    finer_objective,
    halved,
    oriented,
    squarem,
)
from psychlm.irt.likelihood import (
    RUNAWAY_SLOPE,
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    parameter_frame,
    quadrature_grid,
)
from psychlm.irt.newton import better_items, newton
from psychlm.irt.priors import Prior, check_priors
from psychlm.irt.response_matrix import (
    ResponseMatrix,
    encode_responses,
    identical_items,
    pick_device,
)
from psychlm.irt.result import MODELS, IRTFit, IRTWarning
from psychlm.irt.standard_errors import EXACT_PARAMETERS, StandardErrors, no_standard_errors
from psychlm.irt.standard_errors import standard_errors as errors_of

START_GUESSING = 0.02
NEWTON_FROM = 0.01  # logits: where EM hands over to Newton
TWINS_DIFFER = (
    10  # that the same few persons failed two easy items is no news; of ten persons it is
)
ROUGH = 0.01  # tolerance, in logits, of the 2PL from which a 3PL starts


def fit(
    responses: pd.DataFrame | np.ndarray,
    model: str | Mapping | pd.Series = "2PL",
    *,
    method: str = "mml",
    device: str = "auto",
    guessing: float | pd.Series | None = None,
    priors: dict[str, Prior] | None = None,
    start: pd.DataFrame | None = None,
    standard_errors: bool = True,
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 2000,
    tolerance: float = 1e-4,
    progress: bool = False,
) -> IRTFit:
    """Fit a 1PL, Rasch, 2PL or 3PL model to persons x items responses by marginal maximum likelihood.

    Parameters
    ----------
    responses : DataFrame or ndarray, shape (n_persons, n_items)
        A responses frame (0, 1, NaN), or a uint8 matrix (0, 1, 255 for not asked), which may be a memory map: it is
        read in blocks of items.
    model : str, or mapping from item to str
        "1PL" (one common slope, ability N(0, 1)), "Rasch" (slopes 1, ability variance free), "2PL" or "3PL"; or "2PL"
        and "3PL" item by item.
    method : str
        "mml", or "vi" for :func:`psychlm.irt.variational.infer` as it comes (Rasch, 1PL, 2PL), which has settings of its own.
    device : str
        "auto" (a CUDA device for more than ten million answers, if there is one), "cpu", "cuda", "cuda:1".
    guessing : float or Series by item, optional
        Fixes the guessing parameter, of the items named only if it is a Series.
    priors : dict, optional
        Densities on "slope" (LogNormal, Normal), "intercept" (Normal) and "guessing" (Beta), off by default.
        ``{"guessing": Beta(5, 17)}`` keeps a 3PL from running away; ``{"intercept": Normal(0, 3)}`` keeps items finite
        that all answered alike.
    start : DataFrame, optional
        Items with a, d and c of an earlier fit, to begin from: a refit after dropping an item takes a few steps.
    standard_errors : bool
        From the observed information.
    item_names : sequence, optional
        Names for the columns of a matrix.
    max_iterations : int
        EM steps; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are parameters whose predicted remaining change is below it (logits), with a log-likelihood that
        gained less than 1e-5 nats.
    progress : bool
        Write a line per EM cycle to standard error.

    Returns
    -------
    IRTFit

    Raises
    ------
    FrameError
        If responses are malformed, there are fewer than 3 items, or an item was answered alike by everyone.
    RuntimeError
        If a device is asked for that is not there.

    References
    ----------
    Bock and Aitkin (1981), Psychometrika 46, 443-459. Lalor (2020), sections 1.3.1 and 1.3.2.
    """
    if method == "vi":
        return _variational(
            responses, model, device, item_names, guessing=guessing, priors=priors, start=start
        )
    if method != "mml":
        raise ValueError(f"method {method!r} is neither 'mml' nor 'vi'")
    answers = encode_responses(responses, pick_device(device, responses.size), item_names)
    kind, design, fixed = _design(answers, model, guessing, check_priors(priors))
    _check_items(answers, kind, design)
    settings = Settings(tolerance, max_iterations, progress)
    found = estimate(answers, design, _start(answers, design, fixed, start, settings), settings)
    if standard_errors:
        errors = errors_of(answers, design, found.parameters, found.grid)
    else:
        errors = no_standard_errors(answers.n_items)
    runaway = (found.parameters.slope.abs() > RUNAWAY_SLOPE).cpu().numpy()
    _warn(answers, found, errors if standard_errors else None, runaway, settings)
    return _result(answers, kind, design, found, errors, not runaway.any())


def _variational(
    responses: pd.DataFrame | np.ndarray,
    model: str | Mapping | pd.Series,
    device: str,
    item_names: Sequence[str] | pd.Index | None,
    **mml_only: object,
) -> IRTFit:
    """Fit by variational inference, and refuse what only maximum likelihood knows."""
    from psychlm.irt.variational import infer  # only those who ask for it load it

    given = [name for name, value in mml_only.items() if value is not None]
    if given or not isinstance(model, str):
        raise ValueError(
            f"method='vi' takes one model for all items and no {given or 'models item by item'}; use 'mml'"
        )
    return infer(responses, model, device=device, item_names=item_names).fit


def _design(
    answers: ResponseMatrix,
    model: str | Mapping | pd.Series,
    guessing: float | pd.Series | None,
    priors: dict[str, Prior],
) -> tuple[str, Design, Tensor]:
    """Return the model's name, what is free in it, and the guessing parameters that are fixed (NaN: free)."""
    kind, has_guessing = _kinds(model, answers.items)
    fixed = pd.Series(np.where(has_guessing, np.nan, 0.0), index=answers.items)
    if guessing is not None:
        given = (
            guessing
            if isinstance(guessing, pd.Series)
            else pd.Series(guessing, index=answers.items)
        )
        unknown = given.index.difference(answers.items)
        if len(unknown) or not given.between(0, 1, inclusive="left").all():
            raise FrameError(
                f"guessing must lie in [0, 1), for items that are there; it names {format_names(unknown)} besides"
            )
        fixed.update(given)
    values = torch.tensor(fixed.to_numpy(), dtype=torch.float64, device=answers.device)
    if kind in ("1PL", "Rasch") and "slope" in priors:
        raise FrameError(
            f"the {kind} model has no slopes of its own for a prior; drop it or fit a 2PL"
        )
    return kind, Design(kind in ("1PL", "Rasch"), values.isnan(), priors), values


def _kinds(model: str | Mapping | pd.Series, items: pd.Index) -> tuple[str, np.ndarray]:
    """Return the model's name and which items have a guessing parameter of their own."""
    if isinstance(model, str):
        if model.upper() not in MODELS:
            raise ValueError(f"model {model!r} is not one of {list(MODELS.values())}")
        return MODELS[model.upper()], np.full(len(items), model.upper() == "3PL")
    named = pd.Series(model).reindex(items)
    wrong = ~named.isin(["2PL", "3PL"])
    if wrong.any():
        raise FrameError(
            f'items {format_names(items[wrong])} have no model, or one that is neither "2PL" nor "3PL"'
        )
    three = (named == "3PL").to_numpy()
    return "3PL" if three.all() else "mixed" if three.any() else "2PL", three


def _check_items(answers: ResponseMatrix, kind: str, design: Design) -> None:
    """Refuse data from which no parameters follow; warn of items that stand twice."""
    if answers.n_items < 3:
        raise FrameError(
            f"{answers.n_items} items do not identify a {kind} model; it takes at least 3"
        )
    constant = ((answers.n_correct == 0) | (answers.n_correct == answers.n_answered)).cpu().numpy()
    if constant.any() and not (
        "intercept" in design.priors and (design.common_slope or "slope" in design.priors)
    ):
        raise FrameError(
            f"items {format_names(answers.items[constant])} were answered alike by everyone, so their difficulty is infinite; "
            "drop them with frames.drop_constant(responses), or give a prior, such as "
            'priors={"intercept": Normal(0, 3)} with the Rasch model'
        )
    rarer = torch.minimum(answers.n_correct, answers.n_answered - answers.n_correct).cpu().numpy()
    common = dict(zip(answers.items, rarer >= TWINS_DIFFER, strict=True))
    twins = [group for group in identical_items(answers) if common[group[0]]]
    if twins:
        shown = "; ".join(format_names(pd.Index(group)) for group in twins[:5])
        warnings.warn(
            f"{sum(map(len, twins))} items were answered alike by every person, in {len(twins)} groups ({shown}); if "
            "they are one item under several names, keep one: copies count its answers twice",
            IRTWarning,
            stacklevel=3,
        )


def _start(
    answers: ResponseMatrix,
    design: Design,
    fixed: Tensor,
    start: pd.DataFrame | None,
    settings: Settings,
) -> Parameters:
    """Return where EM begins: an earlier fit; for a 3PL, the model without guessing; else the shares correct."""
    if start is not None:
        missing = answers.items.difference(start.index)
        if len(missing):
            raise FrameError(
                f"start has no items {format_names(missing)}; give the items of an earlier fit, or start=None"
            )
        a, d, c = (
            torch.tensor(start.loc[answers.items, n].to_numpy(float), device=answers.device)
            for n in "adc"
        )
        return Parameters(
            a.mean().repeat(len(a)) if design.common_slope else a,
            d,
            torch.where(fixed.isnan(), c, fixed),
        )
    guess = fixed.nan_to_num(0.0)
    share = (answers.n_correct + 0.5) / (answers.n_answered + 1)
    above = torch.where(guess > 0, ((share - guess) / (1 - guess)).clamp(0.02, 0.98), share)
    plain = Parameters(
        torch.ones_like(share), 1.2 * torch.logit(above), guess
    )  # 1.2: ability spreads the logits
    if not design.guessing_free.any():
        return plain
    priors = {name: prior for name, prior in design.priors.items() if name != "guessing"}
    without = Design(design.common_slope, torch.zeros_like(design.guessing_free), priors)
    rough = estimate(answers, without, plain, replace(settings, tolerance=ROUGH)).parameters
    return replace(
        rough, guessing=torch.where(design.guessing_free, START_GUESSING, rough.guessing)
    )


def _warn(
    answers: ResponseMatrix,
    found: Estimate,
    errors: StandardErrors | None,
    runaway: np.ndarray,
    settings: Settings,
) -> None:
    """Say what a reader of the estimates must know."""
    if runaway.any():
        _say(
            f"items {format_names(answers.items[runaway])} have slopes beyond {RUNAWAY_SLOPE:g}: right and wrong answers "
            "are separated by ability, and the likelihood has no finite maximum there; drop them, or give a prior: "
            'priors={"slope": LogNormal(0, 0.5)}'
        )
    elif not found.converged:
        _say(
            f"no convergence in {found.n_iterations} EM steps; raise max_iterations ({settings.max_iterations}), or "
            'give a 3PL a prior: priors={"guessing": Beta(5, 17)}'
        )
    if found.loglik_error > LATTICE_ERROR:
        _say(
            f"the log-likelihood moves by {found.loglik_error:.3g} nats on a finer lattice than {found.grid}"
        )
    if errors is None:
        return
    without = np.isnan(errors.intercept) & ~runaway
    if without.all():
        _say(
            "the observed information is not positive definite at the estimates, so there are no standard errors"
        )
    elif without.any():
        _say(
            f"items {format_names(answers.items[without])} lie too near a ridge of the likelihood to have standard errors"
        )


def _say(message: str) -> None:
    warnings.warn(message, IRTWarning, stacklevel=4)


def _result(
    answers: ResponseMatrix,
    kind: str,
    design: Design,
    found: Estimate,
    errors: StandardErrors,
    sound: bool,
) -> IRTFit:
    """Put the estimates on the model's own scale, with a, b, c outside."""
    items = parameter_frame(found.parameters, answers.items)
    a, b = items["a"].to_numpy(), items["b"].to_numpy()
    items["se_a"], items["se_d"], items["se_c"] = errors.slope, errors.intercept, errors.guessing
    # b = -d / a, so db = -(dd + b da) / a
    variance = errors.intercept**2 + 2 * b * errors.slope_intercept + (b * errors.slope) ** 2
    items["se_b"] = np.sqrt(np.where(variance >= 0, variance, np.nan)) / np.abs(a)
    sd, se_variance, covariance = 1.0, np.nan, errors.covariance
    if kind == "Rasch":
        sd = float(a[0])
        se_variance = float(2 * sd * errors.slope[0])
        items["a"], items["b"], items["se_a"], items["se_b"] = (
            1.0,
            -items["d"],
            np.nan,
            items["se_d"],
        )
        covariance = None if covariance is None else _rasch_covariance(covariance, sd)
    items["c_is_free"] = design.guessing_free.cpu().numpy()
    n_slopes = 1 if design.common_slope else answers.n_items
    return IRTFit(
        items=items[["a", "b", "c", "d", "se_a", "se_b", "se_c", "se_d", "c_is_free"]],
        model=kind,
        method="mml",
        loglik=found.loglik,
        log_prior=design.log_prior(found.parameters),
        n_parameters=n_slopes + answers.n_items + int(design.guessing_free.sum()),
        n_persons=answers.n_persons,
        converged=found.converged and sound,
        n_iterations=found.n_iterations,
        ability_mean=0.0,
        ability_sd=sd,
        se_ability_variance=se_variance,
        ability_sd_check=found.ability_sd,
        loglik_error=found.loglik_error,
        quadrature=str(found.grid),
        covariance=covariance,
    )


def _rasch_covariance(covariance: pd.DataFrame, sd: float) -> pd.DataFrame:
    """Replace the common slope, which is ability's standard deviation, by the variance of ability."""
    scale = np.ones(len(covariance))
    scale[0] = 2 * sd
    labels = pd.MultiIndex.from_tuples(
        [("ability", "variance"), *covariance.index[1:]], names=covariance.index.names
    )
    return pd.DataFrame(
        covariance.to_numpy() * np.outer(scale, scale), index=labels, columns=labels
    )


@dataclass(frozen=True)
class Estimate:
    """Where EM came to rest, or to its last iteration."""

    parameters: Parameters
    posterior: Posterior
    grid: QuadratureGrid
    loglik: float  # nats
    converged: bool
    n_iterations: int
    loglik_error: float  # nats, see LATTICE_ERROR
    ability_sd: float  # re-estimated with the items held


def estimate(
    answers: ResponseMatrix, design: Design, start: Parameters, settings: Settings
) -> Estimate:
    """Run EM to its fixed point, then again on finer lattices until a finer one changes nothing."""
    em = EM(answers, design, quadrature_grid(device=answers.device), settings)
    parameters = start
    while True:
        parameters, converged = _climbed(em, parameters)
        found, objective = em.expect(parameters)
        if converged and (other := _escaped(em, parameters, found, objective)) is not None:
            parameters = other
            continue
        error = abs(finer_objective(em, parameters) - objective)
        if (
            error < LATTICE_ERROR
            or em.grid.step <= SMALLEST_STEP
            or em.n_steps >= settings.max_iterations
        ):
            break
        em.grid = halved(em.grid)
    loglik = float(found.loglik @ answers.count)
    sd = ability_sd_check(em)
    parameters = oriented(answers, parameters, found)
    return Estimate(parameters, found, em.grid, loglik, converged, em.n_steps, error, sd)


def _climbed(em: EM, parameters: Parameters) -> tuple[Parameters, bool]:
    """Climb by EM; with guessing by EM and Newton's method in turn, since EM's small steps there prove nothing."""
    settings = em.settings
    if not em.design.guessing_free.any() or 3 * em.responses.n_items > EXACT_PARAMETERS:
        return squarem(em, parameters, settings.tolerance)
    tolerance = NEWTON_FROM
    while True:
        parameters, near = squarem(em, parameters, tolerance)
        if not near:
            return parameters, False
        parameters, converged, n_steps = newton(
            em.responses,
            em.design,
            parameters,
            em.grid,
            lambda at: em.expect(at)[1],
            settings.tolerance,
        )
        em.n_steps += n_steps
        if converged or tolerance < settings.tolerance:
            return parameters, converged
        tolerance /= 10


def _escaped(
    em: EM, parameters: Parameters, found: Posterior, objective: float
) -> Parameters | None:
    """Return parameters of a higher likelihood, where other starts of guessing lead to some, else None."""
    if not em.design.guessing_free.any() or em.n_steps >= em.settings.max_iterations:
        return None
    other = better_items(em.responses, em.design, parameters, found, em.grid.nodes)
    if other is None or em.expect(other)[1] <= objective + LOGLIK_TOLERANCE:
        return None
    return other
