"""What is estimated: items and their forms, what is free, fixed or equal, groups and priors.

One table serves all models: a *cell* is a parameter of an item in a group, and a sparse linear map
leads from the estimates to the cells. Most maps are those of equal parameters: 0 and 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, Repeated, by_person, checked_weights, format_names, refuse
from psychlm.irt.priors import Beta, LogNormal, Normal, OfLogit, Prior
from psychlm.irt.response_functions import (
    FORMATS,
    KINDS,
    MIXED,
    MixedFormats,
    Model,
    Nominal,
    model_named,
    step_contrasts,
)
from psychlm.irt.response_matrix import (
    MISSING,
    ResponseMatrix,
    counts_by_category,
    encode_ratings,
    encode_responses,
    identical_items,
)

RARE = 10  # that the same few persons failed two easy items is no surprise; of ten persons it is
PRIORS: dict[str, tuple[type, ...]] = {
    "slope": (Normal, LogNormal),
    "intercept": (Normal,),
    "guessing": (Beta, Normal),
    "upper": (Beta, Normal),
}
LOCATION = 4  # kind of an estimate that has no bounds: a mean, or a step that items share
LOG_SD = 5  # of a standard deviation of ability
Names: TypeAlias = Sequence | pd.Index | str


class IRTWarning(UserWarning):
    """A fit that needs a second look: what happened, to which items, and what to do."""


@dataclass(frozen=True)
class ParameterMap:
    """What is estimated: every cell is its fixed value + the sum of coefficient * estimate."""

    cell: np.ndarray  # (n_entries,) numbers of the cells, in the order of the estimates
    estimate: np.ndarray  # (n_entries,) number of the estimate
    coefficient: np.ndarray  # (n_entries,)
    kinds: np.ndarray  # (n_estimates,) number in KINDS, or LOCATION or LOG_SD
    names: pd.MultiIndex  # (item or group, symbol)
    n_cells: int

    @classmethod
    def of(cls, basis: np.ndarray, kinds: np.ndarray, names: pd.MultiIndex) -> ParameterMap:
        """Return the map of a matrix (n_cells, n_estimates)."""
        estimate, cell = np.nonzero(basis.T)
        return cls(cell, estimate, basis[cell, estimate], kinds, names, len(basis))

    @property
    def basis(self) -> np.ndarray:
        """The matrix of the map, (n_cells, n_estimates)."""
        basis = np.zeros((self.n_cells, len(self.kinds)))
        basis[self.cell, self.estimate] = self.coefficient
        return basis

    @property
    def first_cells(self) -> np.ndarray:
        """Every estimate's first cell, (n_estimates,)."""
        return self.cell[np.unique(self.estimate, return_index=True)[1]]

    def nearest(self, cells: np.ndarray) -> np.ndarray:
        """Return the estimates whose cells are nearest to values of them; means of equal ones."""
        if len(np.unique(self.cell)) == len(self.cell) and (self.coefficient == 1).all():
            return np.bincount(self.estimate, cells[self.cell]) / np.bincount(self.estimate)
        basis = self.basis
        free = basis.any(axis=1)
        return np.linalg.lstsq(basis[free], cells[free], rcond=None)[0]


@dataclass(frozen=True)
class Specification:
    """What is answered by whom, and which parameters are free."""

    model: Model
    answers: ResponseMatrix
    groups: list  # labels, the reference group's first; [None] without groups
    member: np.ndarray  # (n_persons,) number of the group
    fixed: np.ndarray  # (n_rows, n_items) values of parameters that are not free, else NaN
    ties: np.ndarray  # (4, n_items), by KINDS: the item whose parameter each equals
    freed: np.ndarray  # (4, n_items) bool, by KINDS: differs between groups
    priors: dict[str, Prior]
    bank: bool = False  # whether some items are fixed, which tell the abilities of all groups
    weights: np.ndarray | None = None  # (n_persons,) of persons; None: all 1
    facets: ParameterMap | None = None  # estimates beside those of the items, such as severities

    @property
    def items(self) -> pd.Index:
        """The items' names."""
        return self.answers.items

    @property
    def row_kinds(self) -> list[int]:
        """Number in KINDS of every row of parameters."""
        return self.model.form.row_kinds(len(self.fixed))

    @property
    def positive_slopes(self) -> bool:
        """Whether a prior leaves no slope at or below 0."""
        return isinstance(self.priors.get("slope"), LogNormal)

    @property
    def prior_densities(self) -> dict[str, Prior]:
        """The priors as densities of the parameters; a normal one of asymptotes is of logits."""
        return {
            name: OfLogit(prior)
            if name in ("guessing", "upper") and isinstance(prior, Normal)
            else prior
            for name, prior in self.priors.items()
        }

    @property
    def differs(self) -> np.ndarray:
        """Which items have parameters of their own in every group, bool (n_items,)."""
        return np.any(self.freed, axis=0)

    @property
    def columns(self) -> list[tuple[int, int]]:
        """Items with the group whose parameters they are; shared ones belong to group 0."""
        freed_items = np.flatnonzero(self.differs).tolist()
        shared = [(j, 0) for j in range(len(self.items))]
        return shared + [(j, g) for g in range(1, len(self.groups)) for j in freed_items]

    @property
    def codes(self) -> np.ndarray:
        """Category numbers of all persons, 255 for not asked, (n_persons, n_items) uint8.

        Of persons who answered several times: numbers of right answers.
        """
        return self.answers.values[self.answers.row]

    @property
    def n(self) -> np.ndarray | None:
        """Number of answers of every person to every item, where there may be several."""
        return None if self.answers.n is None else self.answers.n[self.answers.row]

    @property
    def counts(self) -> np.ndarray:
        """Number of answers in every category, (n_persons, n_items, n_categories)."""
        return counts_by_category(self.codes, self.n, self.answers.n_categories)

    def tied(self, kind: int) -> str:
        """Return whether the parameters of a kind are "own", "all" equal, or "some" are."""
        distinct = len(np.unique(self.ties[kind]))
        return {len(self.items): "own", 1: "all"}.get(distinct, "some")

    def places(self, group: int) -> list[int]:
        """Return the columns that hold in a group, in the order of the items."""
        last = {j: k for k, (j, g) in enumerate(self.columns) if g in (0, group)}
        return [last[j] for j in range(len(self.items))]

    def numbers(self, group: int = 0) -> np.ndarray:
        """Return by row and item a number that equal parameters of a group share; -1: fixed."""
        shape = (len(self.fixed), len(self.groups), len(self.items))
        cell_numbers = np.arange(math.prod(shape)).reshape(shape)
        numbers = np.empty_like(cell_numbers[:, 0])
        for row, kind in enumerate(self.row_kinds):
            of_group = np.where(self.freed[kind], group, 0)
            numbers[row] = cell_numbers[row, of_group, self.ties[kind]]
        return np.where(np.isnan(self.fixed), numbers, -1)

    @cached_property
    def parameters(self) -> ParameterMap:
        """The map from estimates to cells.

        Cells are the parameters, row by row of the columns, then the means of the groups' ability
        and the logarithms of their sds. Equal cells share an estimate, which has the name of the
        first of them.
        """
        columns = np.array(self.columns)
        n_rows = len(self.fixed)
        n_groups = len(self.groups)
        by_group = np.stack([self.numbers(g) for g in range(n_groups)])
        numbers = [by_group[columns[:, 1], :, columns[:, 0]].T.ravel()]
        # Items that work alike in all groups show their means (intercepts) and spreads (slopes);
        # items of a bank show those of the reference group too.
        for linking in (1, 0):
            first = max(number.max() for number in numbers) + 1
            shown = (np.arange(n_groups) > 0) | self.bank
            shown &= not self.freed[linking].all()
            numbers.append(np.where(shown, first + np.arange(n_groups), -1))
        number = np.concatenate(numbers)
        label, _ = pd.factorize(np.where(number < 0, np.nan, number))
        cell = np.flatnonzero(label >= 0)
        cell = cell[np.argsort(label[cell], kind="stable")]
        estimate = label[cell]
        firsts = cell[np.unique(estimate, return_index=True)[1]]

        columns_names = [
            self.items[j] if g == 0 else f"{self.items[j]}, {self.groups[g]}" for j, g in columns
        ]
        owners: list = []
        symbols: list = []
        for kind, symbol in zip(self.row_kinds, self.model.form.symbols(n_rows), strict=True):
            shared = self.tied(kind) == "all" and not self.freed[kind].any()
            owners += ["all"] * len(columns) if shared else columns_names
            symbols += [symbol] * len(columns)
        owners += ["ability" if group is None else group for group in self.groups] * 2
        symbols += ["mean"] * n_groups + ["log sd"] * n_groups
        kinds = np.repeat(
            [*self.row_kinds, LOCATION, LOG_SD], [len(columns)] * n_rows + [n_groups] * 2
        )
        named = [pd.Index([names[k] for k in firsts]) for names in (owners, symbols)]
        whole = ParameterMap(
            cell,
            estimate,
            np.ones(len(cell)),
            kinds[firsts],
            pd.MultiIndex.from_arrays(named, names=["item", "parameter"]),
            len(number),
        )
        if self.model.common_steps:
            whole = with_common_steps(whole, n_rows, len(columns))
        if self.facets is None:
            return whole
        parts = whole, self.facets
        names = [name for part in parts for name in part.names]
        return ParameterMap.of(
            np.hstack([part.basis for part in parts]),
            np.concatenate([part.kinds for part in parts]),
            pd.MultiIndex.from_tuples(names, names=whole.names.names),
        )


def with_common_steps(separate: ParameterMap, n_rows: int, n_columns: int) -> ParameterMap:
    """Return the map of a rating scale: intercept k of an item is d + t_k, with sum(t) = 0."""
    kinds = separate.kinds
    names = separate.names
    row, column = np.divmod(separate.first_cells, n_columns)
    is_step = (row > 0) & (row < n_rows)
    located, location = np.unique(column[is_step], return_inverse=True)
    contrasts = step_contrasts(n_rows - 1)
    # From the new estimates (others, then d of every item, then t_2, t_3, ...) to the former ones.
    others = np.eye(len(kinds))[:, ~is_step]
    of_location = np.zeros((len(kinds), len(located)))
    of_location[np.flatnonzero(is_step), location] = 1.0
    of_step = np.where(is_step[:, None], contrasts[(row - 1).clip(0, n_rows - 2)], 0.0)
    items = [names[k][0] for k in np.flatnonzero(is_step & (row == 1))]
    labels = [*names[~is_step], *((item, "d") for item in items)]
    labels += [("all", f"t{k}") for k in range(2, n_rows)]
    n_free = [len(located), n_rows - 2]
    return ParameterMap.of(
        separate.basis @ np.hstack([others, of_location, of_step]),
        np.concatenate([kinds[~is_step], np.repeat([1, LOCATION], n_free)]),
        pd.MultiIndex.from_tuples(labels, names=names.names),
    )


def answers_of(spec: Specification) -> ResponseMatrix:
    """Return answers with weights and groups; items of one group are not asked of the others."""
    answers = spec.answers
    if spec.groups == [None] and spec.weights is None:
        return answers
    item, group = np.array(spec.columns).T
    n_columns = len(item)
    shown = ~spec.differs[item] | (spec.member[:, None] == group)
    tables = [np.where(shown, spec.codes[:, item], MISSING if spec.n is None else 0)]
    if spec.n is not None:
        tables.append(np.where(shown, spec.n[:, item], 0))
    keyed = np.column_stack([*tables, spec.member])
    distinct, row = np.unique(keyed, axis=0, return_inverse=True)
    weights = np.ones(len(shown)) if spec.weights is None else spec.weights
    count, squares = (np.bincount(row.ravel(), x) for x in (weights, weights**2))
    values = distinct[:, :n_columns].astype(answers.values.dtype)
    n = None if spec.n is None else distinct[:, n_columns:-1].astype(np.int32)
    correct = values == 1 if n is None else values
    answered = values != MISSING if n is None else n
    return replace(
        answers,
        values=values,
        items=answers.items[item],
        row=row.ravel(),
        count=count,
        squares=squares,
        group=distinct[:, -1],
        complete=n is None and bool(answered.all()),
        n_correct=count @ correct,
        n_answered=count @ answered,
        n=n,
    )


@dataclass(frozen=True)
class Solution:
    """What an engine returns: natural parameters by row and column, and how they were reached."""

    values: np.ndarray  # (n_rows, n_columns), columns of the specification
    blocks: np.ndarray  # (n_columns, n_rows, n_rows), covariances; NaN: unknown
    n_parameters: int
    loglik: float  # nats
    log_prior: float
    n_iterations: int
    loglik_error: float
    quadrature: str
    converged: np.ndarray  # (n_columns,) bool
    messages: list[str]  # what a reader of the estimates must know
    covariance: pd.DataFrame | None = None  # of all estimates
    groups: dict | None = None  # by column of IRTFit.groups, without numbers of persons
    method: str = "mml"
    regression: pd.DataFrame | None = None  # of difficulties on covariates
    residual_sd: float = math.nan
    errors: str = "observed information"  # what standard errors come from


def specify(
    responses: pd.DataFrame | np.ndarray,
    model: str | Mapping | pd.Series,
    *,
    guessing: float | str | pd.Series | None = None,
    upper: float | pd.Series | None = None,
    priors: Mapping[str, Prior] | None = None,
    equal: Mapping[str, Any] | None = None,
    group: pd.Series | Sequence | None = None,
    reference: object = None,
    free: Names | Mapping[str, Names] = (),
    item_names: Sequence[str] | pd.Index | None = None,
    fixed: pd.DataFrame | None = None,
    levels_of_fixed: Mapping | None = None,
    weights: pd.Series | Sequence | None = None,
) -> Specification:
    """Check the arguments of :func:`psychlm.irt.fit`, and return what they specify."""
    if isinstance(model, str) and model_named(model) in (MIXED, FORMATS):
        raise ValueError("models that differ between items are a mapping from item to model")
    priors = dict(priors or {})
    for name, prior in priors.items():
        if not isinstance(prior, PRIORS.get(name, ())):
            kinds = {key: " or ".join(kind.__name__ for kind in PRIORS[key]) for key in PRIORS}
            raise FrameError(f"prior {name!r}: {prior!r} is not known; give any of {kinds}")
        if isinstance(prior, Beta) and min(prior.alpha, prior.beta) <= 1:
            raise FrameError(f"{prior} has its mode at 0 or 1; give alpha and beta above 1")
    # Responses, models item by item, and asymptotes that are fixed.
    known = None if fixed is None else levels_of_bank(responses, model, fixed, levels_of_fixed)
    answers, chosen, named = answers_and_models(responses, model, known, item_names)
    items = answers.items
    if chosen.common_slope and "slope" in priors:
        raise FrameError(f"the {chosen.name} model has no slopes for a prior; drop it or fit a 2PL")
    is_free = {name: np.array([name in each.free for each in named]) for name in KINDS[2:]}
    equal = dict(equal or {})
    if isinstance(guessing, str):
        if guessing != "common" or not is_free["guessing"].all():
            raise FrameError(
                f"guessing={guessing!r} is not possible here: it is neither a number, a Series nor "
                '"common", which takes a 3PL or 4PL for all items'
            )
        equal["guessing"] = "all"
        guessing = None
    given = {
        name: asymptotes(items, name, value)
        for name, value in (("guessing", guessing), ("upper", upper))
        if value is not None
    }
    levels = answers.levels
    n_categories = [2 if levels is None else len(levels[item]) for item in items]
    values = chosen.form.fixed(np.array(n_categories), is_free, given)
    kinds_of_rows = np.array(chosen.form.row_kinds(len(values)))
    free_kinds = {KINDS[k] for k in kinds_of_rows[np.isnan(values).any(axis=1)]}
    differ = set(free) if isinstance(free, Mapping) else set()
    if idle := sorted((set(priors) | set(equal) | differ) & set(KINDS) - free_kinds):
        raise FrameError(
            f"no item of this {chosen.name} model has free parameters {idle}; leave them out of "
            "priors, equal and free, or fit a model that has them"
        )

    # Equal parameters, groups, and items of a bank.
    in_bank = np.zeros(len(items), bool)
    if fixed is not None:
        in_bank = hold_at_bank(chosen, items, fixed, values)
        own = tied_parameters(items, equal) == np.arange(len(items))
        shared = ~own.all(axis=0)
        for tied_to in tied_parameters(items, equal)[~own]:
            shared[tied_to] = True
        shared |= freed_parameters(items, free, 2).any(axis=0)
        flaw = "are fixed and stand in free or equal too; take them out of these"
        refuse("items", items[in_bank & shared], flaw)
    if chosen.common_slope:
        equal["slope"] = "all"
    ties = tied_parameters(items, equal)
    groups = [None]
    member = np.zeros(answers.n_persons, int)
    if group is not None:
        groups, member = check_groups(answers.persons, group, reference)
    freed = freed_parameters(items, free, len(groups))
    freed[0] &= not chosen.common_slope  # its one slope is that of all groups
    return Specification(
        model=chosen,
        answers=answers,
        groups=groups,
        member=member,
        fixed=values,
        ties=ties,
        freed=freed,
        priors=priors,
        bank=bool(in_bank.any()),
        weights=checked_weights(answers.persons, weights),
    )


def levels_of_bank(
    responses: pd.DataFrame,
    model: str | Mapping | pd.Series,
    bank: pd.DataFrame,
    levels: Mapping | None,
) -> dict:
    """Return the answers that are the categories of the bank's items among the responses."""
    asked = getattr(responses, "columns", pd.Index([]))
    if isinstance(responses, Repeated):
        asked = responses.n.columns
    known = asked[asked.isin(bank.index)]
    if not len(known):
        raise FrameError(
            f"none of the items {format_names(asked)} stands in fixed, which has "
            f"{format_names(bank.index)}; name the items alike, or leave fixed out"
        )
    refuse("items", bank.index[bank.index.duplicated()], "stand twice in fixed; keep one of each")
    form = model_named(model).form if isinstance(model, str) else MixedFormats
    if form.dichotomous or "model" not in bank and form is MixedFormats:
        return dict.fromkeys(known, [0, 1])
    return form.of_table(bank.loc[known]).levels(known) | {
        item: list(levels[item]) for item in known if levels
    }


def hold_at_bank(
    model: Model, items: pd.Index, bank: pd.DataFrame, values: np.ndarray
) -> np.ndarray:
    """Write the parameters of a bank's items into the fixed rows; return which items these are."""
    if model.common_steps:
        raise FrameError(
            f"steps that all items share cannot be fixed for some; fit a PCM, not {model.name}"
        )
    in_bank = items.isin(bank.index)
    unused = ["b"] if {"b", "d"} <= set(bank) else []  # they need not agree
    rows = model.form.rows_of(bank.loc[items[in_bank]].drop(columns=unused))
    unknown = items[in_bank][~np.isfinite(rows).all(axis=0)]
    refuse("items", unknown, "have no finite parameters in fixed; take them out of it")
    own = np.array(model.form.row_kinds(len(rows)))
    whole = np.array(model.form.row_kinds(len(values)))
    for kind in np.unique(own):
        target = np.flatnonzero(whole == kind)[: (own == kind).sum()]
        values[np.ix_(target, in_bank)] = rows[own == kind]
    if model.common_slope:
        slopes = rows[0]
        if np.ptp(slopes) > 1e-6 * np.abs(slopes).max():
            raise FrameError(
                f"the slopes of fixed lie between {slopes.min():.3g} and {slopes.max():.3g}, and "
                f"the {model.name} model has one; fit a model whose slopes differ"
            )
        values[0] = slopes[0]
    return in_bank


def answers_and_models(
    responses: pd.DataFrame | Repeated | np.ndarray,
    model: str | Mapping | pd.Series,
    levels: Mapping | None,
    item_names: Sequence[str] | pd.Index | None,
) -> tuple[ResponseMatrix, Model, list[Model]]:
    """Return the encoded answers, the model of all items, and that of each.

    ``levels`` are the answers that are the categories of items of a bank.
    """
    if isinstance(model, str):
        chosen = model_named(model)
        if chosen.dichotomous:
            answers = encode_responses(responses, None, item_names)
        else:
            answers = encode_ratings(responses, levels, common=chosen.common_steps)
            if chosen.form.ordered:
                warn_of_gaps(answers)
        return answers, chosen, [chosen] * answers.n_items

    named = {item: model_named(name) for item, name in pd.Series(model, dtype=object).items()}
    rated = not all(each.dichotomous for each in named.values())
    if isinstance(responses, pd.DataFrame):  # items that are not named may have ratings
        rated |= not responses.isin([0, 1]).where(responses.notna(), True).all(axis=None)
    if rated:
        answers = encode_ratings(responses, levels)
        warn_of_gaps(answers)
    else:
        answers = encode_responses(responses, None, item_names)
    items = answers.items
    refuse(
        "items", pd.Index(list(named)).difference(items), "of the model are not among the responses"
    )
    # Items that are not named have the model that goes with their number of categories.
    unit_slope = bool(named) and all(each.unit_slope for each in named.values())
    default = ("Rasch", "PCM") if unit_slope else ("2PL", "graded")
    polytomous = [answers.levels is not None and len(answers.levels[item]) > 2 for item in items]
    models = [
        named.get(item, model_named(default[several]))
        for item, several in zip(items, polytomous, strict=True)
    ]
    two_coded = [answers.levels is None or answers.levels[item] == [0, 1] for item in items]
    wrong = [one.dichotomous and not two for one, two in zip(models, two_coded, strict=True)]
    flaw = 'have answers other than 0 and 1; name "graded", "gpcm" or "PCM" for them'
    refuse("items", items[wrong], flaw)
    if len(set(models)) == 1:
        return answers, models[0], models
    alone = [
        each.common_slope != unit_slope or each.common_steps or each.form is Nominal
        for each in models
    ]
    flaw = (
        "have a model that has no others beside it; name such as differ by item, 2PL, 3PL, 4PL, "
        "graded and gpcm, or Rasch and PCM"
    )
    refuse("items", items[alone], flaw)
    if all(each.dichotomous for each in models):
        return answers, MIXED, models
    chosen = replace(
        FORMATS, form=MixedFormats.of(models), common_slope=unit_slope, unit_slope=unit_slope
    )
    return answers, chosen, models


def warn_of_gaps(answers: ResponseMatrix) -> None:
    """Warn of items with a category between others that nobody chose."""
    levels = answers.levels or {}
    gaps = [
        item
        for item, categories in levels.items()
        if all(float(x).is_integer() for x in categories)
        and categories[-1] - categories[0] >= len(categories)
    ]
    if gaps:
        warnings.warn(
            f"items {format_names(gaps)} have categories between others that nobody chose; they "
            "are fitted without these categories, and their steps are fewer than other items'",
            IRTWarning,
            stacklevel=4,
        )


def asymptotes(items: pd.Index, name: str, given: float | pd.Series) -> np.ndarray:
    """Return fixed lower ("guessing") or upper asymptotes by item; NaN where none is given."""
    value = pd.Series(given, None if isinstance(given, pd.Series) else items)
    if not value.between(0, 1).all() or (value == (name == "guessing")).any():
        raise FrameError(f"{name} must lie between 0 and 1, and is {value.tolist()[:5]}")
    chosen_items(items, value.index)
    return value.reindex(items).to_numpy(float)


def chosen_items(items: pd.Index, names: Names) -> np.ndarray:
    """Return which items are named; "all" names every one."""
    if isinstance(names, str) and names == "all":
        return np.ones(len(items), bool)
    if len(names) == 0:
        return np.zeros(len(items), bool)
    refuse("items", pd.Index(names).difference(items), "are not among the responses")
    return items.isin(names)


def tied_parameters(items: pd.Index, equal: Mapping[str, Any]) -> np.ndarray:
    """Return for every parameter and item the item whose parameter it equals, (4, n_items)."""
    if set(equal) - set(KINDS):
        raise FrameError(f"equal names {sorted(set(equal) - set(KINDS))}; give any of {KINDS}")
    ties = np.tile(np.arange(len(items)), (4, 1))
    for name, sets in equal.items():
        nested = not isinstance(sets, str) and all(
            isinstance(each, list | tuple | set | pd.Index) for each in sets
        )
        for each in sets if nested else [sets]:
            together = np.flatnonzero(chosen_items(items, each))
            ties[KINDS.index(name), together] = together[:1] if len(together) else ()
    return ties


def freed_parameters(
    items: pd.Index, free: Names | Mapping[str, Names], n_groups: int
) -> np.ndarray:
    """Return which parameters differ between groups, bool (4, n_items)."""
    named = free if isinstance(free, Mapping) else dict.fromkeys(KINDS, free)
    if set(named) - set(KINDS) or (n_groups == 1 and len(free)):
        raise FrameError(
            f"free={free!r} cannot be: parameters are {KINDS}, and free= takes groups (group=)"
        )
    return np.stack([chosen_items(items, named.get(kind, ())) for kind in KINDS])


def check_groups(
    persons: pd.Index, group: pd.Series | Sequence, reference: object = None
) -> tuple[list, np.ndarray]:
    """Return the groups' labels, the reference group's first, and every person's group number.

    ``group`` is as in :func:`psychlm.frames.by_person`, the reference by default the label of the
    first person.
    """
    labels = by_person(persons, group, "group").astype(object)  # unused categories are none
    names = list(dict.fromkeys(labels))
    first = names[0] if reference is None else reference
    if not 2 <= len(names) <= 255:
        raise FrameError(
            f"group has {len(names)} different values ({format_names(names)}); 2 to 255 can be "
            "compared: cut a continuous one into groups, or leave group out"
        )
    if first not in names:
        raise FrameError(f"reference {first!r} is none of the groups {format_names(names)}")
    names.sort(key=lambda name: name != first)  # stable: the others keep their order
    return names, labels.map({name: g for g, name in enumerate(names)}).to_numpy()


def earlier_rows(spec: Specification, start: pd.DataFrame) -> np.ndarray:
    """Return the rows of parameters of an earlier fit, of these items in their order."""
    refuse("items", spec.items.difference(start.index), "are not in start; leave it out")
    refuse("items", start.index[start.index.duplicated()], "stand twice in start; keep one")
    unused = ["b"] if {"b", "d"} <= set(start) else []  # they need not agree
    rows = spec.model.form.rows_of(start.loc[spec.items].drop(columns=unused))
    unknown = spec.items[~np.isfinite(rows).all(axis=0)]
    refuse("items", unknown, "have no finite parameters in start; leave it out")
    return rows


def check_links(spec: Specification) -> None:
    """Refuse groups whose abilities no item compares with those of the reference group.

    Such items have intercepts that are equal in all groups.
    """
    if spec.groups == [None] and not spec.bank:
        return
    if spec.freed[1].all() or "intercept" in spec.priors:  # means are fixed, or priors compare
        return
    answered = [spec.counts[spec.member == g].any((0, 2)) for g in range(len(spec.groups))]
    linking = np.zeros((len(spec.groups), len(spec.items)), bool)
    for intercept, link in zip(spec.ties[1], (np.array(answered) & ~spec.freed[1]).T, strict=True):
        linking[:, intercept] |= link
    reached = linking[0]
    if spec.bank:  # whose items compare every group with the bank's scale
        reached = ~np.isnan(spec.fixed[1])
    for _ in spec.groups:
        reached = linking[(linking & reached).any(axis=1)].any(axis=0)
    apart = [
        g for g, links in zip(spec.groups, linking, strict=True) if not (links & reached).any()
    ]
    refuse(
        "groups",
        pd.Index(apart),
        "share no item that works alike with the reference group, so their abilities cannot be "
        "compared; free fewer items, or fit the groups apart",
    )


def check_answers(spec: Specification) -> None:
    """Refuse data from which no parameters follow; warn of items that stand twice."""
    answers = spec.answers
    items = spec.items
    check_links(spec)
    if len(items) < 3 and not spec.bank:
        raise FrameError(
            f"{len(items)} items do not identify a {spec.model.name} model; it takes at least 3"
        )
    constant = np.zeros(len(items), bool)
    if answers.levels is None:
        rarer = np.minimum(answers.n_correct, answers.n_answered - answers.n_correct)
        constant = (rarer == 0) & np.isnan(spec.fixed[1])
        common = set(items[rarer >= RARE])
        twins = [names for names in identical_items(answers) if names[0] in common]
        if twins:
            shown = "; ".join(format_names(names) for names in twins[:5])
            warnings.warn(
                f"{sum(map(len, twins))} items were answered alike by every person, in "
                f"{len(twins)} groups ({shown}); if a group is one item under several names, keep "
                "one: copies count its responses twice",
                IRTWarning,
                stacklevel=3,
            )
    for j in np.flatnonzero(spec.differs):
        levels = 2 if answers.levels is None else len(answers.levels[items[j]])
        by_group = [spec.counts[spec.member == g, j].any(0) for g in range(len(spec.groups))]
        constant[j] |= any(chosen.sum() < levels for chosen in by_group)
    regular = "intercept" in spec.priors and (spec.model.common_slope or "slope" in spec.priors)
    refuse(
        "items",
        items[constant & (not regular)],
        "were answered alike by everyone, or are free and were answered alike (or without one of "
        "the categories) by a group, so their difficulty is infinite; drop them with "
        "frames.drop_constant(responses), do not free them, or give a prior, such as "
        'priors={"intercept": Normal(0, 3)} with the Rasch model',
    )
