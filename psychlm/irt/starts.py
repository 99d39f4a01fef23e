r"""Where to begin: proportions, scores or an earlier fit, and other starts for guessed items.

With guessing there are local maxima, so every item is tried from flat and steep starts with the
others held. Given the persons' posteriors w, exchanging one item gains

.. math:: \sum_i \log \sum_k w_{ik} \, R_{ik}, \qquad
    R_{ik} = P^{new}(x_{ij} \mid \theta_k) / P^{old}(x_{ij} \mid \theta_k)

nats, and the posteriors are then proportional to :math:`w_{ik} R_{ik}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError
from psychlm.irt.arrays import as_type, device_of, host, namespace, on_device, single
from psychlm.irt.climb import climb
from psychlm.irt.em import LOGLIK_TOLERANCE, maximised, squarem
from psychlm.irt.engine import Engine, rough_grid
from psychlm.irt.likelihood import (
    LARGEST_SLOPE,
    QUADRATURE_ERROR,
    integrate,
    node_loglik,
    quadrature_grid,
)
from psychlm.irt.response_functions import KINDS, Logistic
from psychlm.irt.response_matrix import MISSING
from psychlm.irt.specification import Specification, earlier_rows
from psychlm.irt.standard_errors import EXACT_PARAMETERS

if TYPE_CHECKING:
    from torch import Tensor

    from psychlm.irt.result import IRTFit

ASYMPTOTES = ((0.15, 0.95), (0.02, 0.99), (0.25, 0.85))  # free ones, lower and upper, to begin with
ROUGH = 0.01  # logits: tolerance of the EM steps before Newton's method
START_GUESSING = 0.02
FLAT_SLOPE = 1e-3
FIRST_STEPS = 8  # EM steps before Newton's method
GUESSED_STEPS = 6  # the same with guessing, where EM soon stops gaining
COMPARED_STEPS = 6  # from every start, before the climb goes on from the best
ROUGH_GAIN = 0.5  # nats: error of the grid of the first steps, and what they leave to gain
ROUGH_SLOPE = 30.0  # bound on slopes meanwhile, so that a grid with steps of 0.1 resolves them
LARGEST_RATIO = 80.0  # nats, of two probabilities: its exponential is a float32
STARTS = ((0.7, 0.0), (2.0, 0.2), (3.0, 0.5), (8.0, 0.0), (8.0, 0.2))  # slope, and guessing if free
NEGLIGIBLE_WEIGHT = 1e-7  # of a node in a posterior
ITEM_STEPS = 4  # EM steps of one item with the others held
SCORE_STARTS = [(slope, c) for slope in (-1.0, 1.0, 3.0) for c in (0.0, 0.02, 0.25)]
# of ability; of scoring; logits
SCORE_STEP = 0.4
SCORE_STEPS = 8
SCORE_TOLERANCE = 1e-2
START_COMMON_GUESSING = 0.15
LEAST_RELIABILITY = 0.3
MOST_RELIABILITY = 0.95


def starts_of(em: Engine, start: pd.DataFrame | IRTFit | None) -> Iterator[Tensor]:
    """Yield the estimates to climb from, near a maximum, if Newton's method follows.

    It builds the information whole, so that many items are left to EM.
    """
    starts, guessed = starting_estimates(em, start)
    if len(starts[0]) > EXACT_PARAMETERS:
        em.first_steps = None
        yield from starts
    elif guessed:  # the climb goes on from where first steps reached most; others help single items
        first, *others = approach(em, starts, guessed)
        em.others = [em.items(other) for other in others]
        yield first
    else:
        em.first_steps = FIRST_STEPS
        for begin in starts:
            yield from approach(em, [begin], guessed)


def starting_cells(
    spec: Specification,
    asymptotes: tuple[float, float],
    start: pd.DataFrame | IRTFit | None = None,
) -> np.ndarray:
    """Return cells to begin with: proportions of the categories, or an earlier fit to the items.

    Slopes are turned as items agree with the others; EM turns those of many logistic items.
    """
    form = spec.model.form
    table = form.starts(spec.answers.category_counts, spec.fixed, asymptotes)
    if form is not Logistic or 4 * len(spec.columns) <= EXACT_PARAMETERS:
        n = 1 if spec.n is None else np.where(spec.n > 0, spec.n, np.nan)
        missing = spec.codes == MISSING if spec.n is None else False
        table = form.turned(table, np.where(missing, np.nan, spec.codes / n))
    free = np.isnan(spec.fixed)
    rows = [np.where(free, table, spec.fixed)] * len(spec.groups)
    moments = np.zeros((2, len(spec.groups)))
    if start is not None:
        tables = [start] * len(spec.groups)
        if not isinstance(start, pd.DataFrame):
            tables = [start.in_group(group).items for group in spec.groups]
            assert start.groups is not None
            of_group = start.groups.reindex(spec.groups)
            moments = np.stack([of_group["mean"], np.log(of_group["sd"])])
        for number, items in enumerate(tables):
            earlier = earlier_rows(spec, items)
            if len(earlier) != len(spec.fixed):
                raise FrameError(
                    f"items of start have {len(earlier)} parameters and these {len(spec.fixed)}: "
                    "they have other categories; leave start out"
                )
            for row, kind in enumerate(spec.row_kinds):
                if kind > 1 and KINDS[kind] in spec.priors:  # whose density may be 0 at the edge
                    earlier[row] = earlier[row].clip(START_GUESSING, 1 - START_GUESSING)
                if kind == 0:  # flat curves of all items are a saddle, which no step leaves
                    flat = np.abs(earlier[row]) < FLAT_SLOPE
                    earlier[row] = np.where(flat, table[row], earlier[row])
            rows[number] = np.where(free, earlier, spec.fixed)
    cells = np.stack([rows[g][:, j] for j, g in spec.columns], axis=1)
    if spec.positive_slopes:
        cells[0] = np.abs(cells[0])
    return np.concatenate([cells.ravel(), moments.ravel()])


def starting_estimates(
    em: Engine, start: pd.DataFrame | IRTFit | None
) -> tuple[list[Tensor], bool]:
    """Return where to begin: an earlier fit, or proportions correct; whether items are guessed.

    With guessing there are two starts. A 2PL turns guessed responses into extreme slopes, from
    which a 3PL seldom returns; curves on scores see guessing where there is none. Other asymptotes
    begin at two values.
    """
    spec = em.spec
    device = em.responses.device
    free = np.isnan(spec.fixed)
    curves = spec.model.form is Logistic and spec.facets is None
    guessed = curves and em.n_curve_rows == 3 and bool(em.guessing_free.any())
    tried: Sequence[tuple[float, float]] = ASYMPTOTES[:1]
    if guessed:
        tried = [(0.0, 1.0)]
    elif spec.model.dichotomous and free[2:].any() and start is None:
        tried = ASYMPTOTES
    plain = [
        on_device(spec.parameters.nearest(starting_cells(spec, asymptotes, start)), device)
        for asymptotes in tried
    ]
    if start is not None or not guessed:
        return plain, guessed
    fixed = spec.fixed.copy()
    fixed[2] = np.nan_to_num(fixed[2])
    priors = {name: prior for name, prior in spec.priors.items() if name != "guessing"}
    without = Engine(replace(spec, fixed=fixed, priors=priors), em.settings, device)
    without.hold_slopes(ROUGH_SLOPE)
    rough, _ = squarem(without, without.packed(em.unpack(plain[0])[0]), ROUGH, GUESSED_STEPS)
    values = without.unpack(rough)[0]
    begin = START_GUESSING if em.own[2].any() else START_COMMON_GUESSING
    values[2] = namespace(values).where(em.guessing_free, begin, values[2])
    column = np.array(spec.columns)[:, 0]
    by_scores = start_from_scores(em, on_device(fixed[2][column], device))
    return [em.packed(by_scores.values), em.packed(values)], guessed


def approach(em: Engine, starts: list[Tensor], guessed: bool) -> list[Tensor]:
    """Return estimates near a maximum, reached on a coarse grid, then those of the other starts.

    Such a grid resolves no steep slopes, which are held at a bound. With guessing the climb goes on
    from where the first EM steps reached most, and Newton's method follows.
    """
    em.hold_slopes(ROUGH_SLOPE)
    em.quadrature_error = ROUGH_GAIN
    climbed = []
    for start in starts:
        em.grid = quadrature_grid(device=em.responses.device)
        n_steps = COMPARED_STEPS if guessed else FIRST_STEPS
        x, _ = squarem(em, em.bounded(start), ROUGH, n_steps)
        climbed.append((em.expect(x)[1], x))
    first, *others = [end for _, end in sorted(climbed, key=lambda end: -end[0])]
    if guessed:
        first, _ = squarem(em, first, ROUGH, GUESSED_STEPS)
        first, *_ = climb(em, first, ROUGH_GAIN)
    em.hold_slopes(LARGEST_SLOPE)
    em.quadrature_error = QUADRATURE_ERROR
    return [first, *others]


def start_from_scores(em: Engine, guessing: Tensor) -> Logistic:
    """Return for each item the best of several curves fitted to ability as scores show it.

    ``guessing`` holds the fixed parameters, shape (n_items,).
    """
    # Score: correct responses beyond expectation, with items turned that disagree with the others.
    responses = em.responses
    xp = namespace(guessing)
    device = device_of(guessing)
    share = responses.n_correct / responses.n_answered
    count = responses.count[:, None]
    blocks = list(responses.blocks())
    residual = xp.concatenate([b.correct - b.of_answered(share[b.items]) for b in blocks], 1)
    weighted = residual * count
    agreement = weighted.T @ residual.sum(1) - (weighted * residual).sum(0)
    score = residual @ xp.where(agreement < 0, -xp.ones_like(agreement), 1.0)
    # Reliability of the scores (KR-20): what is left of their variance without the items' own.
    total = float(count[:, 0] @ score**2)
    n = responses.n_items
    reliability = n / (n - 1) * (1 - float((weighted * residual).sum()) / total)
    reliability = min(max(reliability, LEAST_RELIABILITY), MOST_RELIABILITY)
    # Ability: normal quantiles of the scores' ranks, as posteriors with the error of the scores.
    rank = pd.Series(host(score).round(9)).rank().to_numpy()  # but for rounding some are equal
    quantile = NormalDist().inv_cdf  # scipy's ndtri takes .2 s to import
    ability = on_device(np.array([quantile(x) for x in rank / (len(rank) + 1)]), device)
    nodes = quadrature_grid(SCORE_STEP, device=device).nodes
    distance = nodes - reliability**0.5 * ability[:, None]
    weights = xp.exp(-0.5 * distance**2 / (1 - reliability))
    weights *= count / weights.sum(1, keepdims=True)

    guessing_own = em.own[2]
    always = guessing_own | True
    free = xp.stack([always, always, guessing_own])
    fixed = xp.where(em.guessing_free, START_COMMON_GUESSING, guessing)
    tables = []
    for block in blocks:
        # All starts of the block's items at once, (n_starts n_items, ...).
        counts = block.expected_by_category(weights)
        n_starts = len(SCORE_STARTS)
        above = share[block.items]
        slope, guess = on_device(np.array(SCORE_STARTS), device).T[..., None]
        c = xp.where(free[2, block.items], xp.minimum(above / 2, guess), fixed[block.items])
        slope = xp.broadcast_to(slope, c.shape)
        begin = Logistic(level_curve(above, slope, c).reshape(3, -1))
        counts = xp.tile(counts, (n_starts, 1, 1))
        is_free = xp.tile(free[:, block.items], (1, n_starts))
        table = maximised(em, begin, counts, nodes, is_free, SCORE_TOLERANCE, SCORE_STEPS)
        value: Any = Logistic(table).expected_loglik(counts, nodes)
        best = xp.nan_to_num(value, nan=-xp.inf).reshape(n_starts, -1).argmax(0)
        each = on_device(np.arange(len(best)), device)
        tables.append(table.reshape(3, n_starts, -1)[:, best, each])
    return Logistic(xp.concatenate(tables, 1))


def level_curve(share: Tensor, slope: Tensor, guessing: Tensor) -> Tensor:
    """Return slopes, intercepts and guessing of curves that keep the proportions correct."""
    above = ((share - guessing) / (1 - guessing)).clip(0.02, 0.98)
    xp = namespace(above)
    logit = xp.log(above / (1 - above))
    # N(0, 1) flattens a curve of this slope
    return xp.stack([slope, logit * (1 + slope**2 / 2.9) ** 0.5, guessing])


def better_starts(
    em: Engine, x: Tensor, worthwhile: float, others: Sequence[Logistic]
) -> Tensor | None:
    """Return estimates with the items exchanged that another start improves, or None.

    Each exchange gains at least ``worthwhile`` nats by itself. ``others`` are further starts.
    """
    xp = namespace(x)
    _, objective = em.expect(x)
    parameters = em.items(x)
    assert isinstance(parameters, Logistic)
    grid = rough_grid(em, x)
    weighted = em.density(x)(grid)
    posterior = integrate(node_loglik(em.responses, parameters, grid.nodes), weighted)
    responses = em.responses
    guessable = em.guessing_free | (parameters.guessing > 0)
    own_guessing = em.own[2]
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    pairs = STARTS if own_guessing.any() else sorted({(slope, 0.0) for slope, _ in STARTS})
    starts = []
    for slope, guessing in pairs:
        c = xp.where(own_guessing, guessing, parameters.guessing)
        starts.append(level_curve(share, slope * xp.sign(parameters.slope), c))
    for other in others:  # on this scale's side: the likelihood knows no sign of ability
        sign = 1.0 if float(other.slope @ parameters.slope) > 0 else -1.0
        c = xp.where(own_guessing, other.guessing, parameters.guessing)
        starts.append(xp.stack([sign * other.slope, other.values[1], c]))
    trials, gains = exchanged_items(em, parameters, xp.stack(starts), posterior.weights, grid.nodes)
    gains = xp.where(guessable, gains, -xp.inf)
    best = xp.amax(gains, 0)
    chosen = gains.argmax(0)
    table = trials[chosen, :, on_device(np.arange(len(best)), responses.device)].T

    # Confirm on the full likelihood: all improved items together, else the better half of them.
    order = (-best).argsort()[: int((best > worthwhile).sum())]
    while len(order):
        chosen = xp.zeros_like(guessable)
        chosen[order] = True
        trial = xp.where(em.by_column(chosen), em.packed(table), x)
        if em.expect(trial)[1] > objective + LOGLIK_TOLERANCE:
            return trial
        order = order[: len(order) // 2]
    em.expect(x)
    return None


def exchanged_items(
    em: Engine, old: Logistic, starts: Tensor, weights: Tensor, nodes: Tensor
) -> tuple[Tensor, Tensor]:
    """Climb from starts (n_starts, 3, n_items) by EM for each item alone.

    Return the items like the starts, and their gains in nats, (n_starts, n_items).
    """
    xp = namespace(weights)
    reached = xp.amax(weights, 0) > NEGLIGIBLE_WEIGHT
    weights = single(weights[:, reached])
    nodes = nodes[reached]
    n_starts = len(starts)
    free = em.own
    count = as_type(em.responses.count, "float32")[:, None]
    tables = xp.zeros_like(starts)
    gains = xp.zeros_like(starts[:, 0])
    for block in em.responses.blocks():
        n = len(block.correct.T)
        before = old.of_items(block.items).log_probability(nodes)
        is_correct = as_type(block.correct, "float32")
        answered = 1 if block.answered is None else as_type(block.answered, "float32")
        is_wrong = answered - is_correct
        is_free = xp.tile(free[:, block.items], (1, n_starts))
        table = xp.moveaxis(starts[:, :, block.items], 1, 0).reshape(3, -1)
        for step in range(ITEM_STEPS + 1):
            after = Logistic(table).log_probability(nodes).reshape(n_starts, n, 2, -1)
            ratio = single(xp.exp((after - before).clip(None, LARGEST_RATIO)))
            of_wrong = ratio[:, :, 0]
            of_correct = ratio[:, :, 1]
            # sum_k w_ik R_ik for a correct and for a wrong response, each (n_rows, n_items)
            counts = []
            for start in range(n_starts):
                if_correct = (weights @ of_correct[start].T).clip(1e-30)
                if_wrong = (weights @ of_wrong[start].T).clip(1e-30)
                if step == ITEM_STEPS:
                    gain = is_correct * xp.log(if_correct) + is_wrong * xp.log(if_wrong)
                    gains[start, block.items] = (count * gain).sum(0, dtype=xp.float64)
                    continue
                correct = ((is_correct * count / if_correct).T @ weights) * of_correct[start]
                wrong = ((is_wrong * count / if_wrong).T @ weights) * of_wrong[start]
                counts.append(xp.stack([wrong, correct], 1))
            if step < ITEM_STEPS:
                answers = as_type(xp.concatenate(counts), "float64")
                table = maximised(em, Logistic(table), answers, nodes, is_free, 1e-2, 2)
        tables[:, :, block.items] = xp.moveaxis(table.reshape(3, n_starts, n), 0, 1)
    return tables, gains
