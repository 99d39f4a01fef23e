"""From a bank of items to a test: item selection and test assembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy

from psychlm.frames import FrameError, check_responses, refuse
from psychlm.irt._fit import fit
from psychlm.irt.curves import item_information, test_information
from psychlm.irt.dimensionality import LEAST_RATIO, LOGISTIC_TO_NORMAL, eigenvalues
from psychlm.irt.item_fit import ld_x2, s_x2
from psychlm.irt.result import IRTFit
from psychlm.stats import CORRECTIONS

Criterion = Literal["slope", "fit", "dependence"]
ABILITIES = np.linspace(-6, 6, 1201)  # logits, where a form's information is evaluated
LEAST_ITEMS = 4  # of a scale
WHOLE = ["(all items)"]
COLUMNS = ["round", "step", "item", "statistic", "value", "threshold", "p", "verdict", "note"]


@dataclass(frozen=True)
class Selection:
    """The retained items, their fit, and every decision of the selection."""

    # By round, step and item: statistic, its value, threshold (of p where there is one, else of the
    # value), p (adjusted), verdict ("keep", "remove"; of guessing, the item's model), note.
    decisions: pd.DataFrame
    retained: pd.Index
    fit: IRTFit | None  # of the retained items; None where none is retained
    eigenvalues: pd.Series  # of the tetrachoric correlations of the items that entered

    @property
    def removed(self) -> pd.DataFrame:
        """The decisions that removed an item, in their order."""
        return self.decisions[self.decisions["verdict"] == "remove"].reset_index(drop=True)


def select_items(
    responses: pd.DataFrame,
    *,
    order: Sequence[Criterion] = ("slope", "fit", "dependence"),
    correction: Literal["holm", "bh"] = "holm",
    alpha: float = 0.05,
    min_slope: float = 0.71,
    min_communality: float = 0.15,
    guessing: bool = True,
    least_ratio: float = LEAST_RATIO,
    set_aside: Sequence = (),
) -> Selection:
    """Select the items that make a scale of one ability.

    First the whole set is examined: does one eigenvalue stand out, and do some items need a
    guessing parameter? Then, round by round, the criteria are applied in their order; the first
    that removes items ends the round, and the model is refitted, until no item is removed.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN.
    order : sequence of {"slope", "fit", "dependence"}
        "slope" removes all items with slopes below ``min_slope`` or communalities a^2 / (a^2 +
        1.702^2) below ``min_communality``; "fit" all with significant S-X2; "dependence" the item
        in most significant LD-X2 pairs (of several, that with the largest sum of LD-X2).
    correction, alpha : {"holm", "bh"}, and float
        Of p-values, within each criterion of each round; level of every family of tests.
    guessing : bool
        Whether to compare the 3PL with the 2PL by AIC and, if it is better, to test every guessing
        parameter (two-sided Wald tests, Holm); items without a significant one become 2PL items.
    least_ratio : float
        Smallest ratio of the first two eigenvalues; below it no item is retained.
    set_aside : sequence
        Items that are left out at the start, for reasons of their wording.

    References
    ----------
    Lalor (2020), sections 1.3.4 to 1.3.6, 2.2.4 and 7.2.4; Lalor, Wu & Yu (2016). The authors also
    judged by eye.

    Examples
    --------
    >>> from psychlm import corpora
    >>> chosen = select_items(corpora.lsat6(), guessing=False, min_slope=0.7, least_ratio=0)
    >>> chosen.removed[["item", "step"]].to_numpy().tolist()
    [['LSAT 4', 'slope'], ['LSAT 5', 'slope']]
    """
    unknown = [step for step in order if step not in get_args(Criterion)]
    if unknown or not order or correction not in CORRECTIONS:
        raise ValueError(
            f"order {list(order)} must name some of {list(get_args(Criterion))}, and correction "
            f"{correction!r} one of {list(CORRECTIONS)}"
        )
    log = _Log()
    kept = check_responses(responses)
    absent = pd.Index(set_aside).difference(kept.columns)
    refuse("items", absent, "are to be set aside, but are not among the responses")
    n_left = kept.shape[1] - len(set_aside)
    if n_left < LEAST_ITEMS:
        raise FrameError(f"{n_left} items are too few; give at least {LEAST_ITEMS}")
    if len(set_aside):
        note = "set aside by the caller"
        log.add("inspection", list(set_aside), "inspection", np.nan, np.nan, "remove", note=note)
        kept = log.without(kept, set_aside)

    # One ability: the first two eigenvalues of the tetrachoric correlations.
    spectrum = eigenvalues(kept)
    ratio = float(spectrum.iloc[0] / spectrum.iloc[1])
    verdict = "accept" if ratio >= least_ratio else "reject"
    note = f"eigenvalues {', '.join(f'{value:.1f}' for value in spectrum.iloc[:3])}"
    log.add("dimensionality", WHOLE, "eigenvalue_ratio", ratio, least_ratio, verdict, note=note)
    if ratio < least_ratio:
        return Selection(log.table(), kept.columns[:0], None, spectrum)

    # Guessing: the 3PL against the 2PL by AIC, then every guessing parameter by itself.
    model = pd.Series("2PL", index=kept.columns)
    if guessing:
        big = fit(kept, "3PL")
        gain = fit(kept, "2PL", standard_errors=False).aic - big.aic
        note = "AIC of the 2PL minus that of the 3PL"
        best = "3PL" if gain > 0 else "2PL"
        log.add("guessing", WHOLE, "aic_gain", gain, 0, best, note=note)
        if gain > 0:
            tests = guessing_tests(big.items)
            model[tests["p"] < alpha] = "3PL"
            log.add("guessing", model.index, "wald_z", tests["wald_z"], alpha, model, p=tests["p"])

    # Rounds of removal and refitting.
    adjust = CORRECTIONS[correction]
    min_a = max(min_slope, LOGISTIC_TO_NORMAL * (min_communality / (1 - min_communality)) ** 0.5)
    start = None
    for log.round in count(1):
        fitted = fit(kept, model[kept.columns].to_dict(), start=start, standard_errors=False)
        removed: list = []
        for step in order:
            removed = _judge(step, fitted, kept, adjust, alpha, min_a, log)
            if removed:
                break
        if not removed:
            break
        start = fitted.items
        n_left = kept.shape[1] - len(removed)
        if n_left < LEAST_ITEMS:
            note = "too few items are left to fit"
            log.add("refit", WHOLE, "n_items", n_left, LEAST_ITEMS, "reject", note=note)
            return Selection(log.table(), kept.columns[:0], None, spectrum)
        kept = log.without(kept, removed)
    final = fit(kept, model[kept.columns].to_dict(), start=fitted.items)
    return Selection(log.table(), kept.columns, final, spectrum)


class _Log:
    """The decisions so far."""

    def __init__(self) -> None:
        self.round = 0
        self.tables: list[pd.DataFrame] = []

    def add(self, *row: Any, note: Any = "", p: Any = np.nan) -> None:
        """Note a step, its items, the statistic with its value and threshold, and the verdict."""
        step, items, statistic, value, threshold, verdict = row
        row = (self.round, step, items, statistic, value, threshold, p, verdict, note)
        columns = {name: getattr(x, "array", x) for name, x in zip(COLUMNS, row, strict=True)}
        self.tables.append(pd.DataFrame(columns))

    def without(self, kept: pd.DataFrame, items: Sequence) -> pd.DataFrame:
        """Return responses without items, and without the persons who were asked no other."""
        kept = kept.drop(columns=list(items))
        answered = kept.dropna(how="all")
        if n_out := len(kept) - len(answered):
            note = "persons asked none of the items left"
            self.add("persons", WHOLE, "n_left_out", n_out, 0, "remark", note=note)
        return answered

    def table(self) -> pd.DataFrame:
        """Return all decisions in their order."""
        return pd.concat(self.tables, ignore_index=True)


def guessing_tests(items: pd.DataFrame) -> pd.DataFrame:
    """Test whether each item of a 3PL has a guessing parameter above 0 (Lalor 2020, section 7.2.4).

    Return by item ``wald_z``, c by its standard error, and ``p``, two-sided and adjusted by Holm;
    NaN where c is 0.

    >>> items = pd.DataFrame({"c": [0.2, 0.2, 0.0], "se_c": [0.05, 0.2, 0.1]}, list("xyz"))
    >>> guessing_tests(items)["p"].round(4).tolist()
    [0.0001, 0.3173, nan]
    """
    wald_z = (items["c"] / items["se_c"]).where(items["c"] > 0)
    p = CORRECTIONS["holm"](2 * scipy.stats.norm.sf(wald_z))
    return pd.DataFrame({"wald_z": wald_z, "p": p})


def _judge(
    step: str,
    fitted: IRTFit,
    kept: pd.DataFrame,
    adjust: Any,
    alpha: float,
    min_a: float,
    log: _Log,
) -> list:
    """Apply one criterion to every item; return the items that it removes."""
    items = fitted.items.index
    if step == "slope":
        value = fitted.items["a"]
        remove = value < min_a
        log.add(step, items, "a", value, min_a, _verdicts(remove))
    elif step == "fit":
        table = s_x2(fitted, kept)
        p = adjust(table["p"])
        remove = p < alpha
        note = np.where(table["df"] == 0, "no degrees of freedom", "")
        log.add(step, items, "s_x2", table["s_x2"], alpha, _verdicts(remove), note=note, p=p)
    else:
        table = _dependent_pairs(fitted, kept, adjust, alpha)
        n_pairs = table["n_pairs"]
        worst = table.sort_values(["n_pairs", "total"]).index[-1]
        remove = (table.index == worst) & (n_pairs > 0)
        more = {"note": table["note"], "p": table["p"]}
        log.add(step, items, "n_dependent_pairs", n_pairs, alpha, _verdicts(remove), **more)
    return list(items[remove])


def _verdicts(remove: pd.Series) -> np.ndarray:
    return np.where(remove, "remove", "keep")


def _dependent_pairs(
    fitted: IRTFit, responses: pd.DataFrame, adjust: Any, alpha: float
) -> pd.DataFrame:
    """Return by item: significant LD-X2 pairs, the sum of LD-X2, the least p, and the partners."""
    pairs = ld_x2(fitted, responses)
    pairs["p"] = adjust(pairs["p"].to_numpy())
    pairs["significant"] = pairs["p"] < alpha
    both = pd.concat([pairs, pairs.rename(columns={"item_1": "item_2", "item_2": "item_1"})])
    by_item = both.groupby("item_1", sort=False)
    table = by_item.agg(n_pairs=("significant", "sum"), total=("ld_x2", "sum"), p=("p", "min"))
    table = table.loc[fitted.items.index]
    partners = both[both["significant"]].groupby("item_1")["item_2"]
    named = partners.agg(lambda items: "with " + ", ".join(map(str, items))).to_dict()
    return table.assign(note=table.index.map(lambda item: named.get(item, "")))


def assemble_form(items: pd.DataFrame | IRTFit, size: int, low: float, high: float) -> pd.Index:
    """Choose items for a test form by slope and mean information (Lalor 2020, section 7.2.4).

    The ranks of slope and of information, averaged over abilities from ``low`` to ``high``
    (logits), are added; of equal sums, the more informative item is chosen. The result is in the
    order of the items.

    >>> bank = pd.DataFrame({"a": [1.0, 2.0, 0.5], "b": [0.0, 0.5, 0.0]}, list("xyz"))
    >>> list(assemble_form(bank, 2, -1, 1))
    ['x', 'y']
    """
    bank = items if isinstance(items, pd.DataFrame) else items.items
    if not 0 < size <= len(bank):
        raise FrameError(f"a form of {size} items cannot be made of {len(bank)}; ask for fewer")
    abilities = np.linspace(low, high, 201)
    information = pd.Series(item_information(abilities, items).mean(axis=0), index=bank.index)
    # Of nominal items, which have a slope for every category, the steepest counts.
    slopes = bank["a"] if "a" in bank else bank.filter(regex=r"^a\d+$").abs().max(axis=1)
    ranks = slopes.rank(ascending=False) + information.rank(ascending=False)
    table = pd.DataFrame({"ranks": ranks, "information": -information})
    best = table.sort_values(["ranks", "information"]).index[:size]
    return bank.index[bank.index.isin(best)]


@dataclass(frozen=True)
class InformationRange:
    """Peak and range of a form's information curve."""

    peak: float  # largest test information, 1 / logit^2
    peak_ability: float  # where, logits
    low: float  # test information is at least ``least`` from here ...
    high: float  # ... to here, logits; NaN where it never is


def information_range(items: pd.DataFrame | IRTFit, least: float = 4.0) -> InformationRange:
    """Return a form's largest information, and the abilities at which it is at least ``least``.

    The default, 4 per square logit, is a standard error of ability of 0.5 logits, 1 / sqrt(4).

    >>> items = pd.DataFrame({"a": [6.0], "b": [0.0], "c": [0.0]})
    >>> information_range(items)
    InformationRange(peak=9.0, peak_ability=0.0, low=-0.32, high=0.32)
    """
    information = test_information(ABILITIES, items)
    enough = ABILITIES[information >= least].round(9)
    low, high = (float(enough[0]), float(enough[-1])) if len(enough) else (np.nan, np.nan)
    top = information.argmax()
    return InformationRange(float(information[top]), float(ABILITIES[top]), low, high)
