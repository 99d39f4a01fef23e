"""Fits beyond the plain dichotomous ones: what is free, equal or fixed, and the result.

:func:`fit_general` serves :func:`psychlm.irt.fit` for models with more than two categories, upper
asymptotes, equality constraints and groups; :mod:`psychlm.irt.categories` has the algorithm.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from psychlm.frames import FrameError, format_names
from psychlm.irt.categories import (
    ABSENT,
    NO_ASYMPTOTE,
    Answers,
    CategoryEM,
    Layout,
    climb,
    coded,
)
from psychlm.irt.em import Settings
from psychlm.irt.likelihood import GRID_ERROR, LARGEST_SLOPE, SMALLEST_STEP
from psychlm.irt.priors import Beta, LogNormal, Normal, Prior, check_priors
from psychlm.irt.response_matrix import MISSING, encode_responses
from psychlm.irt.result import MODELS, POLYTOMOUS, IRTFit, IRTWarning

KINDS = ("slope", "intercept", "guessing", "upper")
MOST_CATEGORIES = 30
STARTS = ((0.15, 0.95), (0.02, 0.99))  # free lower and upper asymptotes
PRIORS: dict[str, tuple[type, ...]] = {
    "slope": (Normal, LogNormal),
    "intercept": (Normal,),
    "guessing": (Beta, Normal),
    "upper": (Beta, Normal),
}
Names: TypeAlias = Sequence | pd.Index | str


@dataclass(frozen=True)
class Specification:
    """What is answered by whom, and which parameters are free."""

    kind: str  # "1PL", ..., "gpcm"
    codes: np.ndarray  # (n_persons, n_items) uint8: category or 255
    items: pd.Index
    levels: dict  # item -> answers in the order of their codes
    groups: list  # labels, the reference group's first
    member: np.ndarray  # (n_persons,) number of the group
    fixed: np.ndarray  # (n_kinds, n_items) values of parameters that are not free, else NaN
    freed: np.ndarray  # (4, n_items) bool, by KINDS: differs between groups

    @property
    def form(self) -> str:
        """Name of the response function."""
        return self.kind if self.kind in POLYTOMOUS else "logistic"

    @property
    def rows(self) -> list[int]:
        """Number in KINDS of every row of parameters."""
        n = len(self.fixed)
        return [min(row, 1) for row in range(n)] if self.kind in POLYTOMOUS else list(range(n))

    @property
    def own(self) -> np.ndarray:
        """Which items have parameters of their own in every group, bool (n_items,)."""
        return np.any(self.freed, axis=0)

    @property
    def columns(self) -> list[tuple[int, int]]:
        """Items with the group whose parameters they are; shared ones belong to group 0."""
        own = np.flatnonzero(self.own).tolist()
        shared = [(j, 0) for j in range(len(self.items))]
        return shared + [(j, g) for g in range(1, len(self.groups)) for j in own]

    def answers(self) -> Answers:
        """Return the distinct rows of answers; items of one group are not asked of the others."""
        item, group = np.array(self.columns).T
        shown = ~self.own[item] | (self.member[:, None] == group)
        spread = np.where(shown, self.codes[:, item], MISSING).astype(np.uint8)
        keyed = np.column_stack([spread, self.member.astype(np.uint8)])
        distinct, count = np.unique(keyed, axis=0, return_counts=True)
        return Answers(
            np.ascontiguousarray(distinct[:, :-1]),
            torch.tensor(count, dtype=torch.float64),
            torch.tensor(distinct[:, -1].astype(int)),
            max(map(len, self.levels.values())),
        )

    def estimates(self, equal: Mapping[str, Any]) -> tuple[list[int], list[int], pd.MultiIndex]:
        """Return which estimate every cell equals (-1: fixed), and every estimate's kind and name.

        Cells and kinds are those of Layout; an estimate has the name of the first cell that
        equals it.
        """
        ties, n_kinds = tied(self.items, equal, self.kind), len(self.fixed)
        symbols = ["a", *(f"d{k}" for k in range(1, n_kinds))]
        if self.form == "logistic":
            symbols = ["a", "d", "logit c", "logit u"]
        keys: dict[tuple, int] = {}
        kinds, names = [], []

        def number(key: tuple, kind: int, name: tuple) -> int:
            if key not in keys:
                keys[key] = len(keys)
                kinds.append(kind)
                names.append(name)
            return keys[key]

        label = []
        for row, kind in enumerate(self.rows):
            for j, g in self.columns:
                key = (row, ties[kind][j], g if self.freed[kind, j] else 0)
                item = self.items[j] if g == 0 else f"{self.items[j]}, {self.groups[g]}"
                is_free = np.isnan(self.fixed[row, j])
                label.append(number(key, row, (item, symbols[row])) if is_free else -1)
        # Items that work alike in all groups show their means (intercepts) and spreads (slopes).
        for k, (name, linking) in enumerate((("mean", 1), ("log sd", 0))):
            linked = not self.freed[linking].all()
            label += [
                number((name, g), n_kinds + k, (group, name)) if g and linked else -1
                for g, group in enumerate(self.groups)
            ]
        return label, kinds, pd.MultiIndex.from_tuples(names, names=["item", "parameter"])


def fit_general(
    responses: pd.DataFrame | np.ndarray,
    model: Any,
    *,
    guessing: float | str | pd.Series | None,
    upper: float | pd.Series | None,
    priors: dict[str, Prior],
    equal: Mapping[str, Any] | None,
    group: pd.Series | Sequence | None,
    reference: object,
    free: Names | Mapping[str, Names],
    start: IRTFit | None,
    standard_errors: bool,
    item_names: Sequence[str] | pd.Index | None,
    settings: Settings,
) -> IRTFit:
    """Fit as :func:`psychlm.irt.fit` describes, with its arguments."""
    kind = MODELS.get(str(model).upper())
    if kind is None or kind == "Rasch":
        raise ValueError(
            f"model {model!r} cannot be fitted with upper, equal or group; give one of 1PL (which "
            "is the Rasch model on another scale), 2PL, 3PL, 4PL, graded, gpcm"
        )
    check_priors(priors, PRIORS)

    # Answers, groups, and what is free.
    codes, persons, items, levels, data_hash = encoded(responses, kind, item_names)
    groups, member = [None], np.zeros(len(persons), int)
    if group is not None:
        groups, member = check_groups(persons, group, reference)
    fixed = fixed_parameters(kind, items, levels, guessing, upper)
    freed = freed_parameters(items, free, len(groups))
    freed[0] &= kind != "1PL"  # its one slope is that of all groups
    spec = Specification(kind, codes, items, levels, groups, member, fixed, freed)
    check_answers(spec, priors)
    if isinstance(guessing, str):
        if guessing != "common":
            raise FrameError(f'guessing={guessing!r} is neither a number, a Series nor "common"')
        equal = {**(equal or {}), "guessing": "all"}
    label, kinds, names = spec.estimates(equal or {})
    label, kinds = torch.tensor(label), torch.tensor(kinds)

    # Climb from one or two starts, on finer grids while the log-likelihood moves.
    answers, by_row = spec.answers(), [priors.get(KINDS[row]) for row in spec.rows]
    guessed = spec.form == "logistic" and np.isnan(fixed[2:]).any() and start is None
    ends = []
    for asymptotes in STARTS if guessed else STARTS[:1]:
        cells = torch.tensor(starting_cells(spec, asymptotes, start))
        layout = Layout(spec.form, cells, label, kinds, len(fixed), len(groups), by_row)
        em = CategoryEM(answers, layout, settings)
        estimates, value, converged = climb(em, layout.averaged(cells))
        while (error := em.grid_error(estimates, value)) > GRID_ERROR:
            if em.grid.step <= SMALLEST_STEP:
                break
            em.grid = em.grid.halved()
            estimates, value, converged = climb(em, estimates)
        ends.append((value, em, estimates, converged, error))
    value, em, estimates, converged, error = max(ends, key=lambda end: end[0])
    index = names if standard_errors else None
    return result_of(spec, em, estimates, converged, error, index, data_hash)


def encoded(
    responses: pd.DataFrame | np.ndarray, kind: str, item_names: Sequence[str] | pd.Index | None
) -> tuple[np.ndarray, pd.Index, pd.Index, dict, str]:
    """Return codes, persons, items, every item's answers in order, and a hash of the data."""
    if kind not in POLYTOMOUS:
        matrix = encode_responses(responses, torch.device("cpu"), item_names)
        levels = {item: [0, 1] for item in matrix.items}
        return matrix.values[matrix.row], matrix.persons, matrix.items, levels, matrix.data_hash
    if not isinstance(responses, pd.DataFrame) or responses.empty:
        raise FrameError(f"the {kind} model takes a DataFrame of numbers, persons x items")
    try:
        ratings = responses.astype(float)
    except (TypeError, ValueError) as problem:
        raise FrameError(f"ratings are not all numbers ({problem}); code them 1, 2, ...") from None
    if ratings.columns.has_duplicates or ratings.index.has_duplicates:
        raise FrameError("persons or items stand more than once; give each one name and one row")
    levels = {item: sorted(ratings[item].dropna().unique()) for item in ratings.columns}
    wrong = [item for item, found in levels.items() if not 2 <= len(found) <= MOST_CATEGORIES]
    if wrong:
        raise FrameError(
            f"items {format_names(wrong)} have fewer than 2 or more than {MOST_CATEGORIES} "
            "different answers; leave them out, or group their answers into categories"
        )
    gaps = [
        item
        for item, found in levels.items()
        if all(float(x).is_integer() for x in found) and found[-1] - found[0] >= len(found)
    ]
    if gaps:
        warnings.warn(
            f"items {format_names(gaps)} have categories between others that nobody chose; they "
            "are fitted without these categories, and their steps are fewer than other items'",
            IRTWarning,
            stacklevel=4,
        )
    codes = coded(ratings, levels)
    digest = hashlib.blake2b(repr(list(levels.items())).encode(), digest_size=16)
    digest.update(codes.tobytes())
    index, items = ratings.index.rename("person"), ratings.columns.rename("item")
    return codes, index, items, levels, digest.hexdigest()


def check_groups(
    persons: pd.Index, group: pd.Series | Sequence, reference: object = None
) -> tuple[list, np.ndarray]:
    """Return the groups' labels, the reference group's first, and every person's group number.

    Parameters
    ----------
    persons : Index
    group : Series indexed by person, or sequence in the order of the persons
        In a Series, further persons are ignored.
    reference : label, optional
        By default the label of the first person.

    Raises
    ------
    FrameError
        If a person has no label, labels are fewer than two, or none is the reference.
    """
    if not isinstance(group, pd.Series):
        given = np.asarray(group)
        if given.shape != (len(persons),):
            raise FrameError(
                f"group has shape {given.shape} for {len(persons)} persons; give one each, in "
                "their order, or a Series indexed by person"
            )
        group = pd.Series(given, index=persons)
    if group.index.has_duplicates:
        twice = group.index[group.index.duplicated()].unique()
        raise FrameError(f"persons {format_names(twice)} have more than one group")
    labels = group.reindex(persons)
    if labels.isna().any():
        nameless = persons[labels.isna()]
        raise FrameError(f"persons {format_names(nameless)} have no group; give one, or drop them")
    names = list(dict.fromkeys(labels))
    if not 2 <= len(names) <= 255:
        raise FrameError(f"2 to 255 groups are needed, and these are {len(names)}: {names[:5]}")
    first = names[0] if reference is None else reference
    if first not in names:
        raise FrameError(f"reference {reference!r} is none of the groups {format_names(names)}")
    names.sort(key=lambda name: name != first)  # stable: the others keep their order
    return names, labels.map({name: g for g, name in enumerate(names)}).to_numpy()


def chosen_items(items: pd.Index, names: Names) -> np.ndarray:
    """Return which items are named; "all" names every one."""
    if isinstance(names, str) and names == "all":
        return np.ones(len(items), bool)
    unknown = pd.Index(names).difference(items)
    if len(unknown):
        raise FrameError(f"items {format_names(unknown)} are not among the responses")
    return items.isin(names)


def asymptotes(items: pd.Index, name: str, given: float | pd.Series) -> pd.Series:
    """Return fixed lower ("guessing") or upper asymptotes by item, of those that are given."""
    value = pd.Series(given, None if isinstance(given, pd.Series) else items)
    if not value.between(0, 1).all() or (value == (name == "guessing")).any():
        raise FrameError(f"{name} must lie between 0 and 1, and is {value.tolist()[:5]}")
    chosen_items(items, value.index)
    return value


def freed_parameters(
    items: pd.Index, free: Names | Mapping[str, Names], n_groups: int
) -> np.ndarray:
    """Return which parameters differ between groups, bool (4, n_items)."""
    named = free if isinstance(free, Mapping) else dict.fromkeys(KINDS, free)
    unknown = set(named) - set(KINDS)
    if unknown or (n_groups == 1 and len(free)):
        raise FrameError(
            f"free={free!r} names parameters other than {KINDS}, or there are no groups"
        )
    return np.stack([chosen_items(items, named.get(kind, ())) for kind in KINDS])


def fixed_parameters(
    kind: str,
    items: pd.Index,
    levels: Mapping,
    guessing: float | str | pd.Series | None,
    upper: float | pd.Series | None,
) -> np.ndarray:
    """Return the rows of parameters with NaN where they are free; asymptotes as logits."""
    given = {"guessing": None if isinstance(guessing, str) else guessing, "upper": upper}
    if kind in POLYTOMOUS:
        if guessing is not None or upper is not None:
            raise FrameError(f"the {kind} model has no asymptotes; leave out guessing and upper")
        n_levels = np.array([len(levels[item]) for item in items])
        steps = np.arange(1, n_levels.max())[:, None]
        fixed = np.where(steps < n_levels, np.nan, ABSENT * steps)
        return np.vstack([np.full(len(items), np.nan), fixed])
    rows = [np.full(len(items), np.nan), np.full(len(items), np.nan)]
    for name, absent, models in (
        ("guessing", -NO_ASYMPTOTE, ("3PL", "4PL")),
        ("upper", NO_ASYMPTOTE, ("4PL",)),
    ):
        row = pd.Series(np.nan if kind in models else absent, index=items)
        if given[name] is not None:
            value = asymptotes(items, name, given[name])
            with np.errstate(divide="ignore"):
                logits = np.log(value / (1 - value)).clip(-NO_ASYMPTOTE, NO_ASYMPTOTE)
            row.update(logits)
        rows.append(row.to_numpy(float))
    return np.stack(rows)


def tied(items: pd.Index, equal: Mapping[str, Any], kind: str) -> np.ndarray:
    """Return for every parameter and item the item whose parameter it equals, (4, n_items)."""
    unknown = set(equal) - set(KINDS)
    if unknown:
        raise FrameError(f"equal names {sorted(unknown)}; give any of {KINDS}")
    ties = np.tile(np.arange(len(items)), (4, 1))
    if kind == "1PL":
        equal = {**equal, "slope": "all"}
    for row, name in enumerate(KINDS):
        sets = equal.get(name, [])
        nested = not isinstance(sets, str) and all(
            isinstance(each, list | tuple | set | pd.Index) for each in sets
        )
        for each in sets if nested else [sets]:
            together = np.flatnonzero(chosen_items(items, each))
            ties[row, together] = together[:1] if len(together) else ()
    return ties


def check_answers(spec: Specification, priors: Mapping) -> None:
    """Refuse data from which no parameters follow."""
    if len(spec.items) < 3:
        raise FrameError(f"{len(spec.items)} items do not identify a model; it takes at least 3")
    if "intercept" in priors:
        return
    constant = []
    for j, item in enumerate(spec.items):
        for g in range(len(spec.groups)):
            chosen = spec.member == g if spec.own[j] else slice(None)
            found = np.unique(spec.codes[chosen, j])
            if (found != MISSING).sum() < len(spec.levels[item]):
                constant.append(item)
    if constant:
        raise FrameError(
            f"items {format_names(list(dict.fromkeys(constant)))} were answered alike by everyone, "
            "or are free and were answered alike (or without one of the categories) by a group: "
            "parameters are infinite; leave them out, or do not free them"
        )


def starting_cells(
    spec: Specification, asymptotes: tuple[float, float], start: IRTFit | None
) -> np.ndarray:
    """Return where to begin: proportions of the categories, or an earlier fit to the items."""
    codes, fixed, n_groups = spec.codes, spec.fixed, len(spec.groups)
    table = fixed.copy()
    answered = np.where(codes == MISSING, np.nan, codes)
    # Slopes have the sign of the item's agreement with the sum of the others.
    centred = np.nan_to_num(answered - np.nanmean(answered, axis=0))
    rest = centred.sum(axis=1, keepdims=True) - centred
    table[0] = np.where((centred * rest).sum(axis=0) < 0, -1.0, 1.0)
    if spec.form == "gpcm":
        table[0] *= 0.5
    if spec.form == "logistic":
        logits = np.log(asymptotes) - np.log1p(-np.array(asymptotes))
        table[2:] = np.where(np.isnan(fixed[2:]), logits[:, None], fixed[2:])
        low, high = 1 / (1 + np.exp(-table[2:]))
        share = (np.nansum(answered, 0) + 0.5) / ((codes != MISSING).sum(0) + 1)
        share = ((share - low) / (high - low)).clip(0.02, 0.98)
        table[1] = 1.2 * np.log(share / (1 - share))
    else:
        for j, item in enumerate(spec.items):
            n = len(spec.levels[item])
            count = np.bincount(codes[:, j], minlength=MISSING + 1)[:n] + 0.5
            above = count[::-1].cumsum()[::-1]  # persons in this category or above
            graded = 1.2 * np.log(above[1:] / (above[0] - above[1:]))
            table[1:n, j] = graded if spec.form == "graded" else np.log(count[1:] / count[:-1])
    table = table[:, [j for j, _ in spec.columns]]
    moments = np.zeros((2, n_groups))
    if start is not None:
        for number, label in enumerate(spec.groups):
            own = start if start.groups is None else start.in_group(label)
            earlier = own.items.loc[spec.items, ["a", "d"]].to_numpy().T
            places = [place for place, (_, g) in enumerate(spec.columns) if g == number]
            table[:2, places] = earlier[:, [spec.columns[place][0] for place in places]]
        if start.groups is not None:
            known = start.groups.reindex(spec.groups)
            moments = np.stack([known["mean"], np.log(known["sd"])])
    return np.concatenate([table.ravel(), moments.ravel()])


def result_of(
    spec: Specification,
    em: CategoryEM,
    estimates: torch.Tensor,
    converged: bool,
    error: float,
    names: pd.MultiIndex | None,
    data_hash: str,
) -> IRTFit:
    """Return estimates and, if they have names, errors; warn of what needs a second look."""
    layout = em.layout
    posterior, _ = em.expect(estimates)
    cells = torch.where(layout.label >= 0, estimates[layout.label], layout.fixed).numpy()
    at_bound = (estimates.abs() >= layout.limits).numpy()

    # The covariance of the estimates that are not at their bounds.
    covariance = np.full((len(estimates), len(estimates)), np.nan)
    if names is not None:
        _, _, observed = em.derivatives(estimates)
        inside = np.flatnonzero(~at_bound)
        root, failed = torch.linalg.cholesky_ex(observed[inside][:, inside])
        if not failed:
            covariance[np.ix_(inside, inside)] = torch.cholesky_inverse(root).numpy()
    label = layout.label.numpy()
    padded = np.pad(covariance, (0, 1), constant_values=np.nan)  # -1: a fixed cell
    of_cells = padded[np.ix_(label, label)]
    frame = item_table(spec, cells, of_cells, label, at_bound)
    frame["converged"] = converged & ~(frame["a"].abs() >= LARGEST_SLOPE)
    item = np.array(spec.columns)[:, 0]
    by_group = {}
    for g, name in enumerate(spec.groups):
        last = {j: k for k, (j, of) in enumerate(spec.columns) if of in (0, g)}  # own after shared
        by_group[name] = frame.iloc[[last[j] for j in range(len(spec.items))]].set_index(spec.items)

    # What a reader of the estimates must know.
    stuck = np.flatnonzero(at_bound & (layout.kind.numpy() > 1))
    of_items = label[: len(frame) * len(spec.fixed)].reshape(-1, len(frame))
    flat = spec.items[np.unique(item[np.isin(of_items, stuck).any(0)])]
    unsettled = spec.items[np.unique(item[~frame["converged"]])]
    conditions = {
        f"no convergence in {em.n_steps} steps of items {format_names(unsettled)}; give priors, "
        "free fewer parameters, or raise max_iterations": len(unsettled),
        f"asymptotes of items {format_names(flat)} ended at 0 or 1 and have no standard errors; "
        'a prior keeps them inside: priors={"guessing": Beta(5, 17), "upper": Beta(17, 2)}': len(
            flat
        ),
        "the observed information is not positive definite: no standard errors": names is not None
        and np.isnan(covariance).all(),
        f"the log-likelihood moves by {error:.3g} nats on a finer grid than {em.grid}": error
        > GRID_ERROR,
    }
    for message, holds in conditions.items():
        if holds:
            warnings.warn(message, IRTWarning, stacklevel=4)

    groups, n_moments = None, 2 * len(spec.groups)
    if spec.groups != [None]:
        _, mean, sd = layout.unpack(estimates)
        errors = np.sqrt(of_cells.diagonal()[-n_moments:]).reshape(2, -1)
        columns = {"mean": mean, "sd": sd, "se_mean": errors[0], "se_sd": errors[1] * sd.numpy()}
        columns["n_persons"] = np.bincount(spec.member)
        groups = pd.DataFrame(columns, index=pd.Index(spec.groups, name="group"))
    return IRTFit(
        items=by_group[spec.groups[0]],
        model=spec.kind,
        method="mml",
        loglik=float(posterior.loglik @ em.answers.count),
        log_prior=layout.log_prior(estimates)[0],
        n_parameters=layout.n_estimates,
        n_persons=len(spec.member),
        converged=bool(frame["converged"].all()),
        n_iterations=em.n_steps,
        loglik_error=error,
        quadrature=str(em.grid),
        covariance=None if names is None else pd.DataFrame(covariance, names, names),
        data_hash=data_hash,
        groups=groups,
        group_items=None if groups is None else pd.concat(by_group, names=["group"]),
        levels=spec.levels if spec.kind in POLYTOMOUS else None,
    )


def item_table(
    spec: Specification, cells: np.ndarray, of_cells: np.ndarray, label: np.ndarray, at_bound: Any
) -> pd.DataFrame:
    """Return parameters and standard errors of every column of answers, from all cells' values."""
    n_kinds, n_columns = len(spec.fixed), len(spec.columns)
    place = np.arange(n_kinds * n_columns).reshape(n_kinds, n_columns)
    values, errors = cells[place], np.sqrt(of_cells.diagonal()[place])
    table: dict[str, np.ndarray] = {"a": values[0], "se_a": errors[0]}
    dichotomous = spec.form == "logistic"
    for row in range(1, 2 if dichotomous else n_kinds):
        # b = -d / a, so db = -(dd + b da) / a
        d = np.where(values[row] > ABSENT / 2, values[row], np.nan)
        b, cross = -d / values[0], of_cells[place[0], place[row]]
        variance = errors[row] ** 2 + 2 * b * cross + (b * errors[0]) ** 2
        tag = "" if dichotomous else str(row)
        table |= {f"b{tag}": b, f"d{tag}": d, f"se_d{tag}": errors[row]}
        table[f"se_b{tag}"] = np.sqrt(np.maximum(variance, 0)) / np.abs(values[0])
    names = (
        list("abcdu")
        if dichotomous
        else ["a", *(f"{x}{k}" for x in "bd" for k in range(1, n_kinds))]
    )
    for name, row in (("c", 2), ("u", 3)) if dichotomous else ():
        p = 1 / (1 + np.exp(-values[row]))
        table |= {name: p, f"se_{name}": errors[row] * p * (1 - p)}
        table[f"{name}_is_free"] = label[place[row]] >= 0
    flags = [name for name in table if name.endswith("_is_free")]
    return pd.DataFrame(table)[[*names, *(f"se_{name}" for name in names), *flags]]
