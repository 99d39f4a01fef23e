"""Test forms from item banks: select topic by topic, choose the items that tell most, see how far a form reaches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, constant_items
from psychlm.irt.curves import item_information, test_information
from psychlm.irt.result import IRTWarning
from psychlm.irt.select import select_items

GRID = np.linspace(-6, 6, 1201)  # logits


@dataclass(frozen=True)
class Reach:
    """What a form's information curve says."""

    peak: float  # largest test information, 1 / logit^2
    peak_ability: float  # where, logits
    low: float  # test information is at least `least` from here ...
    high: float  # ... to here, logits; NaN where it never is
    least: float


@dataclass(frozen=True)
class BankSelection:
    """What is left of a bank whose topics were calibrated one by one."""

    items: pd.DataFrame  # the retained items: their parameters, and their topic
    removed: pd.DataFrame  # the decisions by which an item went, with its topic
    warnings: pd.DataFrame  # topic and message of every warning that a fit gave on the way


def select_by_topic(answers: Mapping[str, pd.DataFrame], **options: Any) -> BankSelection:
    """Select items in every topic of a bank, each answered by persons of its own.

    Items that all answered alike are set aside first: no model has a place for them.

    Parameters
    ----------
    answers : mapping from topic to DataFrame
        Responses frames.
    **options
        For :func:`psychlm.irt.select_items`.
    """
    items, removed, heard = [], [], []
    for topic, responses in answers.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", IRTWarning)
            selection = select_items(
                responses, set_aside=list(constant_items(responses)), **options
            )
        heard += [(topic, str(warning.message)) for warning in caught]
        removed.append(selection.removed.assign(topic=topic))
        if selection.fit is not None:
            items.append(selection.fit.items.assign(topic=topic))
    if not items:
        raise FrameError("no topic kept an item; see what select_items decided for one of them")
    messages = pd.DataFrame(heard, columns=["topic", "message"]).drop_duplicates(ignore_index=True)
    return BankSelection(pd.concat(items), pd.concat(removed, ignore_index=True), messages)


def mean_information(items: pd.DataFrame, low: float, high: float) -> pd.Series:
    """Return each item's Fisher information, averaged over abilities between ``low`` and ``high`` (logits).

    Parameters
    ----------
    items : DataFrame, one row per item
        Parameters as :func:`psychlm.irt.curves.item_information` takes them.
    """
    at = np.linspace(low, high, 201)
    return pd.Series(
        item_information(at, items).mean(axis=0), index=items.index, name="mean_information"
    )


def choose(items: pd.DataFrame, size: int, low: float, high: float) -> pd.Index:
    """Choose the items with the largest slopes and the highest average information (Lalor 2020, section 7.2.4).

    The two rankings are added; of items with one sum, the more informative goes first.

    Parameters
    ----------
    size : int
        How many items the form has.
    low, high : float
        The abilities that matter, logits.

    Returns
    -------
    Index, shape (size,)
        In the order of the items frame.

    Raises
    ------
    FrameError
        If there are fewer items than the form wants.
    """
    if not 0 < size <= len(items):
        raise FrameError(
            f"a form of {size} items cannot be made of {len(items)}; ask for fewer, or retain more"
        )
    information = mean_information(items, low, high)
    ranks = items["a"].rank(ascending=False) + information.rank(ascending=False)
    best = (
        pd.DataFrame({"ranks": ranks, "information": -information})
        .sort_values(["ranks", "information"])
        .index[:size]
    )
    return items.index[items.index.isin(best)]


def reach(items: pd.DataFrame, least: float = 4.0) -> Reach:
    """Return a form's largest information, and the abilities for which it is at least ``least``.

    Parameters
    ----------
    least : float
        1 / logit^2; 4 is a standard error of ability of 0.5 logits, its inverse root.
    """
    information = test_information(GRID, items)
    enough = GRID[information >= least]
    low, high = (enough[0], enough[-1]) if len(enough) else (np.nan, np.nan)
    top = information.argmax()
    return Reach(float(information[top]), float(GRID[top]), float(low), float(high), least)
