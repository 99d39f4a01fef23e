"""From a bank of items to a scale: which items one ability explains, and which of them tell persons apart.

The procedure is that of Lalor (2020), sections 1.3.4 to 1.3.6 and 2.2.4. First, for the whole set: is there one
ability, and do some items need a guessing parameter? Then, round by round, items go that are too flat, fit badly, or
depend on others beyond the ability, and the model is fitted anew, until no item goes. What was decided, why and when
stands in a table. The authors also used their eyes; where a rule and their judgment part, the table shows by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm

from psychlm.frames import FrameError, check_responses
from psychlm.irt._fit import fit
from psychlm.irt.dimension import LEAST_RATIO, eigenvalues
from psychlm.irt.goodness import ld_x2, s_x2
from psychlm.irt.result import IRTFit
from psychlm.irt.two_factor import LOGISTIC_TO_NORMAL
from psychlm.stats import benjamini_hochberg, holm

CORRECTIONS = {"holm": holm, "bh": benjamini_hochberg}
COLUMNS = ["round", "step", "item", "statistic", "value", "threshold", "p", "verdict", "note"]
EVERYTHING = "(all items)"


@dataclass(frozen=True)
class Criteria:
    """What makes an item go. The defaults are the dissertation's where it names them."""

    order: tuple[str, ...] = (
        "slope",
        "fit",
        "dependence",
    )  # the first that finds a culprit ends a round
    correction: str = (
        "holm"  # of p values over items, or pairs of items: "holm" or "bh" (Benjamini-Hochberg)
    )
    alpha: float = 0.05  # level of every family of tests
    min_slope: float = 0.71  # per logit
    min_communality: float = 0.15  # share of variance that ability explains of the latent answer

    @property
    def least_slope(self) -> float:
        """The slope below which an item is too flat, by either criterion; the communality is a^2 / (a^2 + 1.702^2)."""
        h2 = self.min_communality
        return max(self.min_slope, LOGISTIC_TO_NORMAL * float(np.sqrt(h2 / (1 - h2))))


@dataclass(frozen=True)
class Selection:
    """The retained items, their fit, and every decision on the way."""

    # By round, step and item: statistic, its value, threshold (of p where there is one, else of the value), p
    # (adjusted), verdict ("keep" or "remove"; of guessing, the item's model), note. Round 0 precedes the refits.
    decisions: pd.DataFrame
    retained: pd.Index
    fit: IRTFit | None  # of the retained items; None where none is retained
    eigenvalues: pd.Series  # of the tetrachoric correlations of the items that entered

    @property
    def removed(self) -> pd.DataFrame:
        """The decisions by which an item went, in their order."""
        return self.decisions[self.decisions["verdict"] == "remove"].reset_index(drop=True)


def select_items(
    responses: pd.DataFrame,
    *,
    order: Sequence[str] = ("slope", "fit", "dependence"),
    correction: str = "holm",
    alpha: float = 0.05,
    min_slope: float = 0.71,
    min_communality: float = 0.15,
    guessing: bool = True,
    least_ratio: float = LEAST_RATIO,
    set_aside: Sequence = (),
) -> Selection:
    """Select the items that make a scale of one ability.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN.
    order : sequence of {"slope", "fit", "dependence"}
        What is asked of the items in each round. "slope": all items with slopes below ``min_slope`` or communalities
        below ``min_communality`` go. "fit": all whose S-X2 is significant go. "dependence": among the pairs whose LD-X2
        is significant, the item that stands in most of them goes (of several, the one with the largest sum of LD-X2
        over all its pairs). The first question that removes anything ends the round; the model is then refitted.
    correction : {"holm", "bh"}
        Of p values, within each question of each round.
    alpha : float
    min_slope, min_communality : float
    guessing : bool
        Whether to compare the 3PL with the 2PL by AIC and, if it is better, to test every guessing parameter (Wald
        test, two-sided, corrected by Holm's method); items whose test is not significant are fitted as 2PL from then.
    least_ratio : float
        If the first eigenvalue of the tetrachoric correlations is less than so many times the second, one ability does
        not describe the items, and none is retained. 0 goes on in any case.
    set_aside : sequence
        Items that are left out before the start, for reasons that lie in their text.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If a question or a correction is not known.
    FrameError
        If an item to set aside is not there, or fewer than 4 items are left.

    References
    ----------
    Lalor (2020), sections 1.3.5, 2.2.4 and 7.2.4; Lalor, Wu & Yu (2016).
    """
    criteria = Criteria(tuple(order), correction, alpha, min_slope, min_communality)
    _check(criteria)
    log, kept = _without(check_responses(responses), set_aside)
    spectrum = eigenvalues(kept)
    log.append(_one_ability(spectrum, least_ratio))
    if (log[-1]["verdict"] == "reject").any():
        return Selection(_table(log), kept.columns[:0], None, spectrum)
    model, model_log = (
        _choose_model(kept, alpha) if guessing else (pd.Series("2PL", index=kept.columns), [])
    )
    log += model_log
    fitted, number = fit(kept, model.to_dict(), standard_errors=False), 1
    while len(going := _round(fitted, kept, criteria, number, log)):
        kept = kept.drop(columns=going)
        if kept.shape[1] < 4:
            log.append(
                _whole(
                    "refit",
                    number,
                    "n_items",
                    kept.shape[1],
                    4,
                    "reject",
                    "too few items are left to fit",
                )
            )
            return Selection(_table(log), kept.columns[:0], None, spectrum)
        kept = _who_answered(kept, number, log)
        fitted = fit(kept, model[kept.columns].to_dict(), start=fitted.items, standard_errors=False)
        number += 1
    final = fit(kept, model[kept.columns].to_dict(), start=fitted.items)
    return Selection(_table(log), kept.columns, final, spectrum)


def _check(criteria: Criteria) -> None:
    unknown = [step for step in criteria.order if step not in STEPS]
    if unknown or not criteria.order:
        raise ValueError(f"order holds {unknown or 'nothing'}; the questions are {list(STEPS)}")
    if criteria.correction not in CORRECTIONS:
        raise ValueError(f"correction is {criteria.correction!r}; take one of {list(CORRECTIONS)}")


def _without(
    responses: pd.DataFrame, set_aside: Sequence
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Leave out the items set aside by inspection, and say so."""
    absent = [item for item in set_aside if item not in responses.columns]
    if absent:
        raise FrameError(f"items {absent} are to be set aside, but are not among the responses")
    kept = responses.drop(columns=list(set_aside))
    if kept.shape[1] < 4:
        raise FrameError(f"{kept.shape[1]} items are too few to select from; bring at least 4")
    if not len(set_aside):
        return [], kept
    rows = _rows(
        pd.Index(set_aside),
        "inspection",
        np.nan,
        np.nan,
        np.nan,
        "remove",
        "set aside by the caller",
    )
    log = [rows.assign(round=0, step="inspection")]
    return log, _who_answered(kept, 0, log)


def _who_answered(responses: pd.DataFrame, number: int, log: list[pd.DataFrame]) -> pd.DataFrame:
    """Leave out the persons who were asked none of the items that are left, and say so."""
    kept = responses.dropna(how="all")
    n_silent = len(responses) - len(kept)
    if n_silent:
        log.append(
            _whole(
                "persons",
                number,
                "n_left_out",
                n_silent,
                0,
                "remark",
                "persons asked none of the items left",
            )
        )
    return kept


def _one_ability(spectrum: pd.Series, least_ratio: float) -> pd.DataFrame:
    ratio = float(spectrum.iloc[0] / spectrum.iloc[1])
    verdict = "accept" if ratio >= least_ratio else "reject"
    note = f"eigenvalues {', '.join(f'{value:.1f}' for value in spectrum.iloc[:3])}"
    return _whole("dimensionality", 0, "eigenvalue_ratio", ratio, least_ratio, verdict, note)


def _choose_model(responses: pd.DataFrame, alpha: float) -> tuple[pd.Series, list[pd.DataFrame]]:
    """Return the model of each item: 3PL where guessing is significant in a 3PL that is better than the 2PL."""
    model = pd.Series("2PL", index=responses.columns)
    small, big = fit(responses, "2PL", standard_errors=False), fit(responses, "3PL")
    gain = small.aic - big.aic
    verdict = "3PL" if gain > 0 else "2PL"
    log = [
        _whole("guessing", 0, "aic_gain", gain, 0, verdict, "AIC of the 2PL minus that of the 3PL")
    ]
    if gain > 0:
        z = (big.items["c"] / big.items["se_c"]).where(big.items["c"] > 0)
        p = holm(2 * norm.sf(z))
        model[p < alpha] = "3PL"
        rows = _rows(model.index, "wald_z", z.to_numpy(), alpha, p, model.to_numpy())
        log.append(rows.assign(round=0, step="guessing"))
    return model, log


def _round(
    fitted: IRTFit,
    responses: pd.DataFrame,
    criteria: Criteria,
    number: int,
    log: list[pd.DataFrame],
) -> list:
    """Ask the questions in their order until one removes items; return those, and add all answers to the log."""
    for step in criteria.order:
        rows = STEPS[step](fitted, responses, criteria)
        log.append(rows.assign(round=number, step=step))
        going = rows.loc[rows["verdict"] == "remove", "item"].to_list()
        if going:
            return going
    return []


def _flat(fitted: IRTFit, responses: pd.DataFrame, criteria: Criteria) -> pd.DataFrame:
    """Which slopes are too small (or negative) to tell persons apart?"""
    slope = fitted.items["a"].to_numpy()
    verdict = np.where(slope < criteria.least_slope, "remove", "keep")
    return _rows(fitted.items.index, "a", slope, criteria.least_slope, np.nan, verdict)


def _misfitting(fitted: IRTFit, responses: pd.DataFrame, criteria: Criteria) -> pd.DataFrame:
    """Which items' curves miss the answers?"""
    found = s_x2(fitted, responses)
    p = CORRECTIONS[criteria.correction](found["p"].to_numpy())
    verdict = np.where(p < criteria.alpha, "remove", "keep")
    note = np.where(found["df"] == 0, "no degrees of freedom", "")
    return _rows(found.index, "s_x2", found["s_x2"].to_numpy(), criteria.alpha, p, verdict, note)


def _dependent(fitted: IRTFit, responses: pd.DataFrame, criteria: Criteria) -> pd.DataFrame:
    """Which item hangs together with most others beyond what ability explains?"""
    pairs = ld_x2(fitted, responses)
    pairs["p"] = CORRECTIONS[criteria.correction](pairs["p"].to_numpy())
    swapped = pairs.rename(columns={"item_1": "item_2", "item_2": "item_1"})
    by_item = pd.concat([pairs, swapped]).assign(
        significant=lambda rows: rows["p"] < criteria.alpha
    )
    summary = by_item.groupby("item_1", sort=False).agg(
        n_pairs=("significant", "sum"), total=("ld_x2", "sum"), p=("p", "min")
    )
    summary = summary.loc[fitted.items.index]
    worst = summary.sort_values(["n_pairs", "total"]).index[-1]
    goes = (summary.index == worst) & (summary["n_pairs"] > 0)
    partners = by_item[by_item["significant"]].groupby("item_1")["item_2"]
    named = partners.agg(lambda items: "with " + ", ".join(map(str, items))).to_dict()
    note = summary.index.map(lambda item: named.get(item, ""))
    n_pairs, p = summary["n_pairs"].to_numpy(), summary["p"].to_numpy()
    verdict = np.where(goes, "remove", "keep")
    return _rows(
        summary.index, "n_dependent_pairs", n_pairs, criteria.alpha, p, verdict, note.to_numpy()
    )


STEPS = {"slope": _flat, "fit": _misfitting, "dependence": _dependent}


def _rows(
    items: pd.Index,
    statistic: str,
    value: np.ndarray | float,
    threshold: float,
    p: np.ndarray | float,
    verdict: np.ndarray | str,
    note: np.ndarray | str = "",
) -> pd.DataFrame:
    """Return one row per item of the table of decisions, but for its round and step."""
    columns = {
        "statistic": statistic,
        "value": value,
        "threshold": threshold,
        "p": p,
        "verdict": verdict,
        "note": note,
    }
    return pd.DataFrame({"item": items, **columns})


def _whole(
    step: str, number: int, statistic: str, value: float, threshold: float, verdict: str, note: str
) -> pd.DataFrame:
    """Return the row of a decision on the whole set."""
    rows = _rows(pd.Index([EVERYTHING]), statistic, value, threshold, np.nan, verdict, note)
    return rows.assign(round=number, step=step)


def _table(log: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(log, ignore_index=True)[COLUMNS]
