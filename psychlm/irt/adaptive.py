"""Computerised adaptive testing: of a living test taker, or replayed on recorded responses.

The posterior of ability is kept on a grid that resolves the steepest item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from zlib import crc32

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from scipy.stats import norm

from psychlm import data, simulate
from psychlm.frames import FrameError, format_names, refuse
from psychlm.irt.model_tables import ModelTables
from psychlm.irt.response_functions import ResponseFunction

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

Array = np.ndarray
Rule = Literal["information", "posterior", "stratified", "random"]
LIMIT = 6.0  # standard deviations of ability: nodes from -LIMIT to LIMIT
MOST_NODES = 2401


@dataclass(frozen=True)
class CutScore:
    """A sequential probability ratio test of ability against a cut score (Wald 1947).

    The likelihood at ``theta + indifference`` is divided by that at ``theta - indifference``
    (logits). The test ends with "above" once the ratio is at least (1 - error) / error, with
    "below" once it is at most the inverse (Reckase 1983; Eggen 1999).
    """

    theta: float
    indifference: float = 0.3
    error: float = 0.05  # of either kind, for abilities at the ends of the region

    def __post_init__(self) -> None:
        sound = np.isfinite(self.theta) and 0 < self.indifference < np.inf and 0 < self.error < 0.5
        if not sound:
            raise ValueError(f"{self}: indifference is above 0, and error between 0 and 0.5")

    def log_ratios(self, functions: ResponseFunction) -> Array:
        """Return log ratios of all answers by that which ends a test, (n_items, n_categories)."""
        ends = torch.tensor([self.theta - self.indifference, self.theta + self.indifference])
        below, above = functions.log_probability(ends.double()).unbind(-1)
        return ((above - below) / np.log((1 - self.error) / self.error)).numpy()


@dataclass(frozen=True)
class AdaptiveTest:
    """An adaptive test; frames have one row per person and one column per step."""

    asked: pd.DataFrame  # names of the items, in their order; None after the test has ended
    theta: pd.DataFrame  # ability after each step, logits
    se: pd.DataFrame  # its posterior standard deviation
    score: pd.DataFrame  # expected proportion correct on the whole bank, or share of the highest
    n_asked: pd.Series  # items that each person was asked
    response: pd.DataFrame  # the answers
    value: pd.DataFrame  # of each item under the rule, when it was chosen
    decision: pd.Series  # "above", "below" or "undecided" of the cut score

    @property
    def history(self) -> pd.DataFrame:
        """What was asked, and why: a row for each person and step, with ``item`` and the rest."""
        columns = {"item": self.asked} | {
            name: getattr(self, name) for name in ("value", "response", "theta", "se", "score")
        }
        table = pd.DataFrame({name: frame.stack() for name, frame in columns.items()})
        return table.dropna(subset="item")


def adaptive_test(
    fit: IRTFit | pd.DataFrame,
    ask: pd.DataFrame | Callable[[Any], float] | Mapping[Any, Callable[[Any], float]],
    *,
    model: str = "2PL",
    n_items: int = 20,
    rule: Rule = "information",
    stop_se: float | None = None,
    cut: CutScore | None = None,
    content: pd.Series | None = None,
    open_shares: pd.Series | None = None,
    answers: str | Path | None = None,
    rng: np.random.Generator | None = None,
) -> AdaptiveTest:
    """Ask each person the next best items of a calibrated bank.

    Parameters
    ----------
    fit : IRTFit, or DataFrame with one row per item
        A fit of any model, whose mean and sd of ability are those of the prior; or a table such as
        ``irt.fit(...).items``, with ability N(0, 1).
    ask : function, mapping from names to functions, or DataFrame (n_persons, n_items)
        A function takes the name of an item, asks it, and returns the response (NaN: none), as
        :func:`psychlm.lm.item_taker` makes of a language model; several test takers have names.
        A frame of recorded responses is replayed. An item without a response is used up.
    model : str
        Of a table: "graded" or "gpcm", or any dichotomous one.
    n_items : int
        Responses of each person at most.
    rule : "information", "posterior", "stratified" or "random"
        Largest information at the posterior mean; largest posterior mean of the information (van
        der Linden 1998); a random item from each difficulty stratum in turn; or a random item.
    stop_se, cut : float, and CutScore, optional
        A person's test ends once the posterior standard deviation (logits) is at most this; once it
        is decided on which side of a cut score the ability lies.
    content : Series, item -> content area, optional
        Each next item comes from the area that is furthest below its share of the bank.
    open_shares : Series, by item, optional
        The share of persons to whom each item is open, from :func:`exposure_shares`. Closed items
        are asked only after all that are open.
    answers : path, optional
        A JSON file that keeps every answer of ``ask`` at once: a test that was stopped goes on from
        it and, with the same arguments, asks nothing twice and ends in the same result.
    rng : Generator
        Required by the rules "stratified" and "random", and by ``open_shares``. Each name of a
        person has a stream of numbers of its own.

    References
    ----------
    van der Linden (1998), Psychometrika 63, 201-216; Magis & Raiche (2012), Journal of
    Statistical Software 48(8).

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> bank = irt.fit(lsat, "2PL")
    >>> irt.adaptive_test(bank, lsat.iloc[:2], n_items=2).asked.shape
    (2, 2)
    >>> test = irt.adaptive_test(bank, lambda item: 1.0, n_items=2)
    >>> test.history["item"].tolist()
    ['LSAT 3', 'LSAT 2']
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule {rule!r} is not one of {list(get_args(Rule))}")
    if n_items < 1 or not (stop_se is None or stop_se > 0):
        raise ValueError(
            f"n_items={n_items} and stop_se={stop_se} make no test; give at least 1 item, and a "
            "standard error above 0 (logits)"
        )
    tables = ModelTables.of(fit, model)
    persons, is_left, respond = _test_takers(ask, tables, answers)
    n_persons = len(persons)
    n_steps = min(n_items, len(tables.items))
    mean = float(tables.ability_mean)
    bank = _Bank(tables, content, n_steps)
    grid = bank.grid
    priority, is_open = _drawn(rng, rule, persons, tables.items, open_shares)

    # The state of every person. Sums run along the rows of arrays, or in one product a person, so
    # that a person's numbers do not depend on who else is tested.
    running = np.ones(n_persons, dtype=bool)
    n_in_area = np.zeros((n_persons, len(bank.share)))
    log_posterior = np.tile(norm.logpdf(grid, mean, tables.ability_sd), (n_persons, 1))
    posterior = softmax(log_posterior, axis=1)
    estimate = np.full(n_persons, mean)
    log_ratio = np.zeros(n_persons)
    decision = np.full(n_persons, "undecided", dtype=object)
    log_ratios = None if cut is None else cut.log_ratios(tables.functions)
    item_at_step = np.full((n_persons, n_steps), -1)
    theta, se, score, response, worth = np.full((5, n_persons, n_steps), np.nan)
    for step in range(n_steps):
        # Items without a response are used up until one has a response.
        pending = running & is_left.any(axis=1)
        while pending.any():
            row = np.flatnonzero(pending)
            value = bank.values(rule, step, row, estimate, posterior, priority)
            candidates = bank.candidates(step, is_left[row], is_open[row], n_in_area[row])
            item = np.where(candidates, value, -np.inf).argmax(axis=1)
            answered = respond(row, item)
            given = ~np.isnan(answered)
            is_left[row, item] = False
            item_at_step[row[given], step] = item[given]
            response[row, step] = answered
            worth[row, step] = value[np.arange(len(row)), item]
            pending[row[given]] = False
            pending &= is_left.any(axis=1)

        # The posterior of those who answered.
        row = np.flatnonzero(item_at_step[:, step] >= 0)
        item = item_at_step[row, step]
        category = response[row, step].astype(int)
        n_in_area[row, bank.areas[item]] += 1
        log_posterior[row] += bank.log_p[item, category]
        weight = softmax(log_posterior[row], axis=1)
        posterior[row] = weight
        estimate[row] = (weight * grid).sum(axis=1)
        variance = (weight * grid**2).sum(axis=1) - estimate[row] ** 2
        se[row, step] = np.sqrt(np.maximum(variance, 0))
        theta[row, step] = estimate[row]
        score[row, step] = (weight * bank.expected_score).sum(axis=1)
        # Whose test ends here?
        running &= item_at_step[:, step] >= 0
        if stop_se is not None:
            running[row] &= se[row, step] > stop_se
        if log_ratios is not None:
            log_ratio[row] += log_ratios[item, category]
            decision[row[log_ratio[row] >= 1]] = "above"
            decision[row[log_ratio[row] <= -1]] = "below"
            running[row] &= np.abs(log_ratio[row]) < 1

    steps = pd.RangeIndex(1, n_steps + 1, name="n_items")
    table = partial(pd.DataFrame, index=persons, columns=steps)
    item_names = np.array([*tables.items, None], dtype=object)  # position -1: nothing asked
    was_asked = item_at_step >= 0
    return AdaptiveTest(
        asked=table(item_names[item_at_step]),
        theta=table(theta),
        se=table(se),
        score=table(score),
        n_asked=pd.Series(was_asked.sum(axis=1), index=persons, name="n_asked"),
        response=table(np.where(was_asked, response, np.nan)),
        value=table(np.where(was_asked, worth, np.nan)),
        decision=pd.Series(decision, persons, name="decision"),
    )


def _test_takers(
    ask: pd.DataFrame | Callable[[Any], float] | Mapping[Any, Callable[[Any], float]],
    tables: ModelTables,
    answers: str | Path | None,
) -> tuple[pd.Index, Array, Callable[[Array, Array], Array]]:
    """Return who is tested, which items can be asked, and how rows respond: in category numbers."""
    items = tables.items
    if isinstance(ask, pd.DataFrame):
        if answers is not None:
            raise ValueError("recorded responses are kept already; leave answers= out")
        unknown = ask.columns.symmetric_difference(items)
        refuse("items", unknown, "are in bank or responses only; pass the same items to both")
        recorded = tables.response_array(ask)
        return ask.index, ~np.isnan(recorded), lambda row, item: recorded[row, item]

    # Persons who are asked; each answer is written to the file at once, if one is given.
    takers = ask if isinstance(ask, Mapping) else {"person": ask}
    persons = pd.Index(list(takers), name="person")
    for kind, names in (("items", items), ("persons", persons)):
        alike = names[names.map(str).duplicated()]
        refuse(kind, alike, "have the name of another as text, by which answers are kept")
    file = None if answers is None else Path(answers)
    kept: dict[str, dict[str, float | None]] = {}
    if file is not None and file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        strange = {item for given in kept.values() for item in given} - set(map(str, items))
        if strange:
            raise FrameError(
                f"{file} holds answers to {format_names(sorted(strange))}, which this bank has "
                "not; name another file"
            )

    def respond(row: Array, item: Array) -> Array:
        """Return the kept answers of some persons to an item each, or ask."""
        codes = []
        for person, name in zip(persons[row], items[item], strict=True):
            of_person = kept.setdefault(str(person), {})
            if str(name) not in of_person:
                given = takers[person](name)
                try:
                    of_person[str(name)] = None if pd.isna(given) else float(given)
                except (TypeError, ValueError):
                    said = f"{person!r} answered {given!r} to item {name!r}, which is no number"
                    raise FrameError(
                        f"{said}; give 1 for right, 0 for wrong, or a rating"
                    ) from None
                if file is not None:
                    with data.atomic_write(file) as part:
                        part.write_text(json.dumps(kept), encoding="utf-8")
            value = of_person[str(name)]
            levels = [0, 1] if tables.levels is None else list(tables.levels[name])
            if value is not None and value not in levels:
                raise FrameError(
                    f"{person!r} answered {value:g} to item {name!r}, which is none of {levels}"
                )
            codes.append(np.nan if value is None else levels.index(value))
        return np.array(codes, dtype=float)

    return persons, np.ones((len(persons), len(items)), dtype=bool), respond


def exposure_shares(
    fit: IRTFit | pd.DataFrame,
    limit: float,
    *,
    rng: np.random.Generator,
    n_persons: int = 2000,
    **options: Any,
) -> pd.Series:
    """Return the share of persons to whom each item may be open, so that none is asked of too many.

    ``limit`` is the largest share of persons who may be asked an item; ``options`` are ``n_items``,
    ``rule``, ``stop_se``, ``cut`` and ``content`` of :func:`adaptive_test`, which is repeated 15
    times with ``n_persons`` simulated persons. Shares are multiplied by ``aim / exposure``, at most
    1 (van der Linden & Veldkamp 2004, after Sympson & Hetter 1985), with smaller changes in later
    repetitions. The aim lies so far below the limit that as many other persons of the same kind
    exceed it for some item in one of twenty cases.

    >>> import numpy as np, pandas as pd
    >>> bank = pd.DataFrame({"a": 1.0, "b": np.linspace(-2, 2, 30)})
    >>> shares = exposure_shares(bank, 0.4, rng=np.random.default_rng(0), n_items=5, n_persons=200)
    >>> bool(shares.between(0, 1).all())
    True
    """
    if not 0 < limit <= 1:
        raise ValueError(f"limit={limit} is no share of persons; give a number from 0 to 1")
    tables = ModelTables.of(fit, "2PL")
    bank = tables.items
    n_items = options.get("n_items", 20)
    theta = tables.ability_mean + tables.ability_sd * rng.standard_normal(n_persons)
    responses = simulate.responses(theta, fit, rng)
    aim = limit - norm.isf(0.05 / len(bank)) * np.sqrt(limit * (1 - limit) / n_persons)
    message = (
        f"{n_items} of {len(bank)} items are asked of {n_persons} persons, so that an exposure of "
        f"at most {limit} cannot be had for certain; ask fewer items, or raise the limit"
    )
    if n_items > aim * len(bank):
        raise ValueError(message)
    shares = pd.Series(1.0, bank, name="open")
    for gain in 1 / np.maximum(np.arange(15) - 5.0, 1):
        test = adaptive_test(fit, responses, open_shares=shares, rng=rng, **options)
        counts = pd.Series(test.asked.to_numpy().ravel()).value_counts()
        exposure = counts.reindex(bank, fill_value=0).clip(lower=1) / n_persons
        tested = shares
        shares = (shares * (aim / exposure) ** gain).clip(upper=1)
    if exposure.max() > limit:
        raise ValueError(message)
    return tested


class _Bank:
    """The items of a bank on a grid of abilities, and which of them may come next."""

    def __init__(self, tables: ModelTables, content: pd.Series | None, n_steps: int) -> None:
        # Abilities at most 0.1 sd apart, and half the width 1 / a of the steepest curve.
        functions = tables.functions
        sd = tables.ability_sd
        width = min(0.1 * sd, 0.5 / float(functions.steepness.max()))
        n_nodes = int(min(2 * LIMIT * sd / width + 1e-6, MOST_NODES - 1)) + 1
        self.grid = tables.ability_mean + np.linspace(-LIMIT * sd, LIMIT * sd, n_nodes)
        self.functions = functions
        at_nodes = replace(tables, nodes=self.grid)
        self.log_p = functions.log_probability(torch.tensor(self.grid)).numpy()
        self.information = functions.information_at(self.grid)  # (n_nodes, n_items)
        highest = (at_nodes.probability > 0).any(2).sum(1) - 1
        self.expected_score = (at_nodes.expected / highest[:, None]).mean(axis=0)
        areas = pd.Series(0, tables.items) if content is None else content.reindex(tables.items)
        refuse("items", areas.index[areas.isna()], "have no content area; give each one")
        self.areas = pd.factorize(areas)[0]
        self.in_area = self.areas == np.arange(self.areas.max() + 1)[:, None]  # areas x items
        self.share = self.in_area.mean(axis=1)
        # The difficulty of an item is where it is most informative; strata hold equally many items.
        rank = self.information.argmax(axis=0).argsort().argsort()
        self.stratum = rank * n_steps // len(rank)

    def values(
        self, rule: Rule, step: int, row: Array, estimate: Array, posterior: Array, priority: Array
    ) -> Array:
        """Return the value of every item under the rule for the persons of some rows."""
        if rule == "information":
            value = self.functions.information_at(estimate[row])
        elif rule == "posterior":
            value = (posterior[row, None, :] @ self.information)[:, 0]
        else:
            value = priority[row] + (self.stratum == step if rule == "stratified" else 0)
        return value.round(10)  # items alike stay alike, whatever the order of computation

    def candidates(self, step: int, available: Array, is_open: Array, n_in_area: Array) -> Array:
        """Return which items may come next, (n_persons, n_items): open ones, of the area in need.

        That is the area whose count is furthest below its share, among areas with items left.
        """
        opened = available & is_open
        opened = np.where(opened.any(axis=1, keepdims=True), opened, available)
        lacking = self.share * (step + 1) - n_in_area
        lacking = np.where(opened @ self.in_area.T, lacking, -np.inf)
        return opened & (self.areas == lacking.argmax(axis=1)[:, None])


def _drawn(
    rng: np.random.Generator | None,
    rule: Rule,
    persons: pd.Index,
    bank: pd.Index,
    shares: pd.Series | None,
) -> tuple[Array, Array]:
    """Return a random priority of every item, and whether it is open, drawn by a person's name."""
    if rng is None and (rule in ("stratified", "random") or shares is not None):
        what = f"rule={rule!r}" if shares is None else "open_shares"
        raise ValueError(f"{what} needs a generator: rng=np.random.default_rng(seed)")
    priority = np.zeros((len(persons), len(bank)))
    is_open = np.ones(priority.shape, dtype=bool)
    if rng is None:
        return priority, is_open
    seed = int(rng.integers(2**63))
    share = np.ones(len(bank))
    if shares is not None:
        share = shares.reindex(bank).to_numpy(np.float64)
        flaw = "have no share in open_shares from 0 to 1; give each one"
        refuse("items", bank[~((share >= 0) & (share <= 1))], flaw)
    for row, person in enumerate(persons):
        stream = np.random.default_rng([seed, crc32(str(person).encode())])
        priority[row] = stream.random(len(bank))
        is_open[row] = stream.random(len(bank)) < share
    return priority, is_open
