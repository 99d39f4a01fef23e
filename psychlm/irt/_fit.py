"""Fit an item response model: check, compress, EM, refine, standard errors, result.

``fit`` reads from top to bottom. ``estimate`` is the algorithm: EM on a grid of ability
(:mod:`psychlm.irt.em`), with guessing also Newton's method and other starts
(:mod:`psychlm.irt.newton`), then again on finer grids until a finer one changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata

from psychlm.frames import FrameError, format_names
from psychlm.irt.em import EM, Settings, scoring_with_guessing, squarem
from psychlm.irt.likelihood import (
    RUNAWAY_SLOPE,
    STEP,
    Design,
    Parameters,
    Posterior,
    QuadratureGrid,
    expected_counts,
    log_probabilities,
    quadrature_grid,
)
from psychlm.irt.newton import better_starts, newton
from psychlm.irt.priors import Beta, LogNormal, Normal, Prior
from psychlm.irt.response_matrix import (
    ResponseMatrix,
    encode_responses,
    identical_items,
    pick_device,
)
from psychlm.irt.result import COLUMNS, MODELS, IRTFit, IRTWarning
from psychlm.irt.standard_errors import EXACT_PARAMETERS, StandardErrors
from psychlm.irt.standard_errors import standard_errors as errors_of

START_GUESSING = 0.02
START_COMMON_GUESSING = 0.15
RARE = 10  # that the same few persons failed two easy items is no surprise; of ten persons it is
ROUGH = 0.01  # logits: tolerance of the 2PL that starts a 3PL, and where EM hands over to Newton
MANY_ITEMS = 100  # from which a 3PL starts at curves on scores; for fewer a 2PL starts as well
SCORE_STARTS = [(slope, c) for slope in (-1.0, 1.0, 3.0) for c in (0.0, START_GUESSING, 0.25)]
SCORE_ERROR = 0.25  # standard deviations of ability
GUESSED_STEPS = 30  # EM steps after which a model with guessing goes to Newton's method
EM_STEPS = 100  # EM steps after which any other model does
GRID_ERROR = 0.01  # nats: a finer grid that moves the log-likelihood by less changes nothing
ROUGH_GRID_ERROR = 1.0  # nats: the same before Newton's method
SMALLEST_STEP = STEP / 16
PRIORS = {"slope": (Normal, LogNormal), "intercept": (Normal,), "guessing": (Beta,)}


def fit(
    responses: pd.DataFrame | np.ndarray,
    model: str | Mapping | pd.Series = "2PL",
    *,
    method: str = "mml",
    device: str = "auto",
    guessing: float | str | pd.Series | None = None,
    priors: dict[str, Prior] | None = None,
    start: pd.DataFrame | None = None,
    standard_errors: bool = True,
    item_names: Sequence[str] | pd.Index | None = None,
    max_iterations: int = 2000,
    tolerance: float = 1e-4,
    progress: bool = False,
) -> IRTFit:
    """Fit a 1PL, Rasch, 2PL or 3PL model to responses by marginal maximum likelihood.

    Parameters
    ----------
    responses : DataFrame or ndarray, shape (n_persons, n_items)
        A responses frame (0, 1, NaN), or a uint8 matrix (0, 1, 255 for not asked), which may be a
        memory map: it is read in blocks.
    model : str, or mapping from item to str
        "1PL" (one common slope, ability N(0, 1)), "Rasch" (slopes 1, ability variance free), "2PL"
        or "3PL"; or "2PL" and "3PL" item by item.
    method : str
        "mml", or "vi" for :func:`psychlm.irt.variational.infer` with its defaults.
    device : str
        "auto" (a GPU for over ten million responses, if there is one), "cpu", "cuda", "cuda:1".
    guessing : float, "common", or Series by item, optional
        A number fixes guessing parameters; a Series, those of its items only. "common" estimates
        one guessing parameter for all items of a 3PL.
    priors : dict, optional
        Densities on "slope" (LogNormal, Normal), "intercept" (Normal) and "guessing" (Beta).
        ``{"guessing": Beta(5, 17)}`` keeps a 3PL from running away; ``{"intercept": Normal(0, 3)}``
        keeps items finite to which everyone responded alike.
    start : DataFrame, optional
        Items with a, d and c of an earlier fit, from which a refit takes a few steps.
    standard_errors : bool
        Compute them, from the observed information.
    item_names : sequence, optional
        Names for the columns of a matrix.
    max_iterations : int
        EM steps; reaching them gives a warning and ``converged=False``.
    tolerance : float
        Converged are parameters whose predicted remaining change is below it (logits), with a
        log-likelihood that gained less than 1e-5 nats.
    progress : bool
        Write one line per EM cycle to standard error.

    Returns
    -------
    IRTFit

    Raises
    ------
    FrameError
        If responses are malformed, items fewer than 3, or everyone responded alike to one.
    RuntimeError
        If a device is asked for that is not there.

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
    if method == "vi":
        from psychlm.irt.variational import infer  # only for those who ask for it

        refused = {"guessing": guessing, "priors": priors, "start": start}
        given = [name for name, value in refused.items() if value is not None]
        if given or not isinstance(model, str):
            raise ValueError(
                f"method='vi' takes one model for all items and no {given or 'model by item'}; "
                "use method='mml'"
            )
        return infer(responses, model, device=device, item_names=item_names).fit
    if method != "mml":
        raise ValueError(f"method {method!r} is neither 'mml' nor 'vi'")

    # Check and compress.
    n_responses = getattr(responses, "size", 0)
    encoded = encode_responses(responses, pick_device(device, n_responses), item_names)
    kind, design, fixed_guessing = design_of(encoded, model, guessing, priors or {})
    check_items(encoded, kind, design)

    # EM and refinement.
    settings = Settings(tolerance, max_iterations, progress)
    begin = starting_values(encoded, design, fixed_guessing, start, settings)
    found = estimate(encoded, design, begin, settings)

    # Standard errors.
    if standard_errors:
        errors = errors_of(encoded, design, found.parameters, found.grid)
    else:
        errors = StandardErrors.unknown(encoded.n_items)

    # Report problems, then put the estimates on the model's own scale.
    runaway = (found.parameters.slope.abs() > RUNAWAY_SLOPE).cpu().numpy()
    unknown = np.isnan(errors.intercept) & ~runaway if standard_errors else np.array([False])
    for message in problems(encoded.items, found, runaway, unknown, max_iterations):
        warnings.warn(message, IRTWarning, stacklevel=2)
    return result_of(encoded, kind, design, found, errors, runaway)


def design_of(
    responses: ResponseMatrix,
    model: str | Mapping | pd.Series,
    guessing: float | str | pd.Series | None,
    priors: dict[str, Prior],
) -> tuple[str, Design, pd.Series]:
    """Return the model's name, what is free in it, and fixed guessing parameters (NaN: free)."""
    items = responses.items

    # One model for all items, or 2PL and 3PL item by item.
    if isinstance(model, str):
        if model.upper() not in MODELS:
            raise ValueError(f"model {model!r} is not one of {list(MODELS.values())}")
        kind, has_guessing = MODELS[model.upper()], np.full(len(items), model.upper() == "3PL")
    else:
        named = pd.Series(model).reindex(items)
        wrong = ~named.isin(["2PL", "3PL"])
        if wrong.any():
            raise FrameError(
                f"items {format_names(items[wrong])} have no model, or one that is neither "
                '"2PL" nor "3PL"; name one of them for every item'
            )
        has_guessing = (named == "3PL").to_numpy()
        kind = "3PL" if has_guessing.all() else "mixed" if has_guessing.any() else "2PL"
    common_slope = kind in ("1PL", "Rasch")

    # Guessing parameters that are fixed.
    fixed = pd.Series(np.where(has_guessing, np.nan, 0.0), index=items)
    common_guessing = isinstance(guessing, str)
    if common_guessing:
        large = 3 * len(items) > EXACT_PARAMETERS
        if guessing != "common" or kind != "3PL" or "guessing" in priors or large:
            raise FrameError(
                f'guessing={guessing!r} is not possible here; "common" takes a 3PL for all of '
                f"at most {EXACT_PARAMETERS // 3} items, and no prior on guessing"
            )
    elif guessing is not None:
        given = pd.Series(guessing, index=None if isinstance(guessing, pd.Series) else items)
        unknown = given.index.difference(items)
        if len(unknown) or not given.between(0, 1, inclusive="left").all():
            raise FrameError(
                "guessing must lie in [0, 1) and name items of the responses; "
                f"it also names {format_names(unknown)}"
            )
        fixed.update(given)

    # Priors of the kinds that their parameters can have.
    for name, prior in priors.items():
        if name not in PRIORS or not isinstance(prior, PRIORS[name]):
            known = {key: " or ".join(k.__name__ for k in kinds) for key, kinds in PRIORS.items()}
            raise FrameError(f"prior {name!r}: {prior!r} is not known; give any of {known}")
        if isinstance(prior, Beta) and min(prior.alpha, prior.beta) <= 1:
            raise FrameError(f"{prior} has its mode at 0 or 1; give alpha and beta above 1")
    if common_slope and "slope" in priors:
        raise FrameError(f"the {kind} model has no slopes for a prior; drop it or fit a 2PL")

    free = torch.tensor(fixed.isna().to_numpy(), device=responses.device)
    return kind, Design(common_slope, free, dict(priors), common_guessing), fixed


def check_items(responses: ResponseMatrix, kind: str, design: Design) -> None:
    """Refuse data from which no parameters follow; warn of items that stand twice."""
    items, n_correct, n_answered = responses.items, responses.n_correct, responses.n_answered
    if len(items) < 3:
        raise FrameError(f"{len(items)} items do not identify a {kind} model; it takes at least 3")
    rarer = torch.minimum(n_correct, n_answered - n_correct).cpu().numpy()
    regular = "intercept" in design.priors and (design.common_slope or "slope" in design.priors)
    if (rarer == 0).any() and not regular:
        raise FrameError(
            f"items {format_names(items[rarer == 0])} were answered alike by everyone, so their "
            "difficulty is infinite; drop them with frames.drop_constant(responses), or give a "
            'prior, such as priors={"intercept": Normal(0, 3)} with the Rasch model'
        )
    common = set(items[rarer >= RARE])
    twins = [group for group in identical_items(responses) if group[0] in common]
    if twins:
        shown = "; ".join(format_names(group) for group in twins[:5])
        warnings.warn(
            f"{sum(map(len, twins))} items were answered alike by every person, in {len(twins)} "
            f"groups ({shown}); if a group is one item under several names, keep one: "
            "copies count its responses twice",
            IRTWarning,
            stacklevel=3,
        )


def starting_values(
    responses: ResponseMatrix,
    design: Design,
    fixed_guessing: pd.Series,
    start: pd.DataFrame | None,
    settings: Settings,
) -> Parameters:
    """Return where EM begins: an earlier fit; for a 3PL a rough 2PL; else proportions correct."""
    fixed = torch.tensor(fixed_guessing.to_numpy(), device=responses.device)
    if start is not None:
        missing = responses.items.difference(start.index)
        if len(missing):
            raise FrameError(
                f"start has no items {format_names(missing)}; give the items of an earlier fit, "
                "or start=None"
            )
        values = start.loc[responses.items, list("adc")].to_numpy(float)
        a, d, c = torch.tensor(values.T.copy(), device=responses.device)
        slope = a.mean().repeat(len(a)) if design.common_slope else a
        return Parameters(slope, d, torch.where(fixed.isnan(), c, fixed))
    guess = fixed.nan_to_num(0.0)
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    known = torch.where(guess > 0, ((share - guess) / (1 - guess)).clamp(0.02, 0.98), share)
    # 1.2: the spread of ability makes proportions less extreme than curves at ability 0
    plain = Parameters(torch.ones_like(share), 1.2 * torch.logit(known), guess)
    if not design.guessing_free.any():
        return plain
    if len(share) >= MANY_ITEMS and design.guessing_free.all() and not design.common_guessing:
        return start_from_scores(responses, design)
    priors = {name: prior for name, prior in design.priors.items() if name != "guessing"}
    without = Design(design.common_slope, torch.zeros_like(design.guessing_free), priors)
    em = EM(responses, without, quadrature_grid(device=responses.device), settings)
    rough, _ = squarem(em, plain, ROUGH, GUESSED_STEPS)
    begin = START_COMMON_GUESSING if design.common_guessing else START_GUESSING
    guessing = torch.where(design.guessing_free, begin, rough.guessing)
    return replace(rough, guessing=guessing)


def start_from_scores(responses: ResponseMatrix, design: Design) -> Parameters:
    """Return for each item the best of several curves fitted to ability as scores show it.

    A 2PL turns guessed responses into extreme slopes, from which a 3PL seldom returns.
    """
    # Score: correct responses beyond expectation, with items turned that disagree with the others.
    share = responses.n_correct / responses.n_answered
    blocks = list(responses.blocks())
    residual = torch.cat(
        [b.correct - (1 if b.answered is None else b.answered) * share[b.items] for b in blocks], 1
    )
    weighted = residual * responses.count[:, None]
    agreement = weighted.T @ residual.sum(1) - (weighted * residual).sum(0)
    score = residual @ torch.where(agreement < 0, -1.0, 1.0).double()
    # Ability: normal quantiles of the scores' ranks, as posteriors of one width.
    rank = torch.tensor(rankdata(score.cpu().numpy()), device=score.device) / (len(score) + 1)
    ability = torch.special.ndtri(rank)[:, None]
    nodes = quadrature_grid(device=score.device).nodes
    weights = torch.softmax(-0.5 * ((nodes - ability) / SCORE_ERROR) ** 2, 1)
    weights *= responses.count[:, None]

    tables = []
    for block in blocks:
        correct, answered = expected_counts(block, weights)
        answered = answered.expand_as(correct)
        free, above = design.free()[:, block.items].T, share[block.items]
        values, curves = [], []
        for slope, guessing in SCORE_STARTS:
            # An intercept that keeps the proportion correct: N(0, 1) flattens a curve of this slope
            c = torch.full_like(above, guessing).minimum(above / 2)
            logit = torch.logit(((above - c) / (1 - c)).clamp(0.02, 0.98))
            intercept = logit * (1 + slope**2 / 2.9) ** 0.5
            beta = torch.stack([torch.full_like(c, slope), intercept, c], 1)
            for _ in range(3):
                beta = scoring_with_guessing(beta, correct, answered, nodes, free, design, 1e-3)
            log_p, log_q = log_probabilities(*Parameters(*beta.T).logits(nodes))
            values.append((correct * log_p + (answered - correct) * log_q).sum(1))
            curves.append(beta)
        best = torch.stack(values).nan_to_num(-torch.inf).argmax(0)
        tables.append(torch.stack(curves)[best, torch.arange(len(best), device=best.device)])
    return Parameters(*torch.cat(tables).T.contiguous())


@dataclass(frozen=True)
class Estimate:
    """Where the algorithm ended: at a maximum, or at its last iteration."""

    parameters: Parameters
    posterior: Posterior
    grid: QuadratureGrid
    loglik: float  # nats
    item_converged: torch.Tensor  # (n_items,) bool
    n_iterations: int
    loglik_error: float  # nats by which the log-likelihood moves on a grid of half the step
    ability_sd: float  # re-estimated with the items held


def estimate(
    responses: ResponseMatrix, design: Design, start: Parameters, settings: Settings
) -> Estimate:
    """Climb to a maximum of the likelihood, then again until a finer grid changes nothing."""
    em = EM(responses, design, quadrature_grid(device=responses.device), settings)
    parameters, tries_starts = start, may_use_newton(em) and has_guessing(em, start)
    while True:
        parameters, item_converged = climb(em, parameters)
        posterior, objective = em.expect(parameters)

        # With guessing, try other starts; continue from any that reaches a higher likelihood.
        if tries_starts and em.n_steps < settings.max_iterations:
            other = better_starts(em, parameters, posterior, objective)
            if other is not None:
                parameters = other
                continue
            tries_starts = False

        # Halve the step of the grid while that still moves the log-likelihood.
        error = em.grid_error(parameters, objective)
        exhausted = em.grid.step <= SMALLEST_STEP or em.n_steps >= settings.max_iterations
        if error < GRID_ERROR or exhausted:
            break
        em.grid = em.grid.halved()

    # The likelihood knows no sign of ability: persons with more correct responses stand higher.
    ability_sd = em.reestimated_sd()
    share = responses.n_correct / responses.n_answered
    surplus = torch.zeros_like(posterior.mean)
    for block in responses.blocks():
        part = share[block.items]
        expected = part.sum() if block.answered is None else block.answered @ part
        surplus += block.correct.sum(1) - expected
    if float((surplus * posterior.mean) @ responses.count) < 0:
        parameters = replace(parameters, slope=-parameters.slope)
    return Estimate(
        parameters=parameters,
        posterior=posterior,
        grid=em.grid,
        loglik=float(posterior.loglik @ responses.count),
        item_converged=item_converged,
        n_iterations=em.n_steps,
        loglik_error=error,
        ability_sd=ability_sd,
    )


def has_guessing(em: EM, parameters: Parameters) -> bool:
    """Return whether any item may be guessed."""
    return bool((em.design.guessing_free | (parameters.guessing > 0)).any())


def may_use_newton(em: EM) -> bool:
    """Return whether the information matrix is small enough to be built whole."""
    kinds = 3 if em.design.guessing_free.any() else 2
    return kinds * em.responses.n_items <= EXACT_PARAMETERS


def climb(em: EM, parameters: Parameters) -> tuple[Parameters, torch.Tensor]:
    """Climb by EM, then by Newton's method with guessing or where EM is slow; judge each item."""
    settings, guessed = em.settings, has_guessing(em, parameters)
    everything = torch.ones(len(parameters.slope), dtype=torch.bool, device=parameters.slope.device)
    if not may_use_newton(em):
        parameters, converged = squarem(em, parameters, settings.tolerance)
        return parameters, everything & converged
    tolerance, limit = (ROUGH, GUESSED_STEPS) if guessed else (settings.tolerance, EM_STEPS)
    parameters, converged = squarem(em, parameters, tolerance, limit)
    # Newton's steps are dear: a grid too coarse for steep items is refined by EM before them.
    while guessed and em.grid.step > SMALLEST_STEP and em.n_steps < settings.max_iterations:
        if em.grid_error(parameters, em.expect(parameters)[1]) < ROUGH_GRID_ERROR:
            break
        em.grid = em.grid.halved()
        parameters, converged = squarem(em, parameters, tolerance, limit)
    if converged and not guessed or em.n_steps >= settings.max_iterations:
        return parameters, everything & converged & (not guessed)
    return newton(em, parameters)


def problems(
    items: pd.Index, found: Estimate, runaway: np.ndarray, unknown: np.ndarray, max_iterations: int
) -> list[str]:
    """Return what a reader of the estimates must know, one message per problem.

    ``runaway`` marks items whose slopes run away, ``unknown`` items without standard errors.
    """
    messages = []
    if runaway.any():
        messages.append(
            f"items {format_names(items[runaway])} have slopes beyond {RUNAWAY_SLOPE:g}: correct "
            "and wrong responses are separated by ability, and the likelihood has no finite "
            'maximum; drop them, or give a prior: priors={"slope": LogNormal(0, 0.5)}'
        )
    unsettled = ~found.item_converged.cpu().numpy() & ~runaway
    if unsettled.any():
        messages.append(
            f"no convergence of {unsettled.sum()} items {format_names(items[unsettled])} in "
            f"{found.n_iterations} steps; raise max_iterations ({max_iterations}), or give a 3PL a "
            'prior: priors={"guessing": Beta(5, 17)}'
        )
    if found.loglik_error > GRID_ERROR:
        messages.append(
            f"the log-likelihood moves by {found.loglik_error:.3g} nats on a finer grid than "
            f"{found.grid}"
        )
    if unknown.all():
        messages.append(
            "the observed information is not positive definite at the estimates, so there are no "
            "standard errors"
        )
    elif unknown.any():
        messages.append(
            f"items {format_names(items[unknown])} lie too near a ridge of the likelihood to have "
            "standard errors"
        )
    return messages


def result_of(
    responses: ResponseMatrix,
    kind: str,
    design: Design,
    found: Estimate,
    errors: StandardErrors,
    runaway: np.ndarray,
) -> IRTFit:
    """Return the estimates on the model's own scale."""
    items = found.parameters.frame(responses.items)
    a, b = items["a"].to_numpy(), items["b"].to_numpy()
    items["se_a"], items["se_d"], items["se_c"] = errors.slope, errors.intercept, errors.guessing
    # b = -d / a, so db = -(dd + b da) / a
    variance = errors.intercept**2 + 2 * b * errors.slope_intercept + (b * errors.slope) ** 2
    items["se_b"] = np.sqrt(np.where(variance >= 0, variance, np.nan)) / np.abs(a)
    items["c_is_free"] = design.guessing_free.cpu().numpy()

    # The Rasch model's slopes are 1: the common slope is ability's standard deviation instead.
    sd, se_variance, covariance = 1.0, np.nan, errors.covariance
    if kind == "Rasch":
        sd = float(a[0])
        se_variance = float(2 * sd * errors.slope[0])
        items["a"], items["b"] = 1.0, -items["d"]
        items["se_a"], items["se_b"] = np.nan, items["se_d"]
        if covariance is not None:
            scale = np.append(2 * sd, np.ones(len(covariance) - 1))
            labels = [("ability", "variance"), *covariance.index[1:]]
            index = pd.MultiIndex.from_tuples(labels, names=covariance.index.names)
            values = covariance.to_numpy() * np.outer(scale, scale)
            covariance = pd.DataFrame(values, index=index, columns=index)
    n_slopes = 1 if design.common_slope else responses.n_items
    n_guessing = 1 if design.common_guessing else int(design.guessing_free.sum())
    items["converged"] = found.item_converged.cpu().numpy() & ~runaway
    return IRTFit(
        items=items[COLUMNS],
        model=kind,
        method="mml",
        loglik=found.loglik,
        log_prior=design.log_prior(found.parameters),
        n_parameters=n_slopes + responses.n_items + n_guessing,
        n_persons=responses.n_persons,
        converged=bool(items["converged"].all()),
        n_iterations=found.n_iterations,
        ability_mean=0.0,
        ability_sd=sd,
        se_ability_variance=se_variance,
        ability_sd_check=found.ability_sd,
        loglik_error=found.loglik_error,
        quadrature=str(found.grid),
        covariance=covariance,
        data_hash=responses.data_hash,
    )
