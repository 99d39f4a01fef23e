"""What every measure starts from: checked responses, and exact counts over pairs of items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.frames import FrameError, check_responses

Array = NDArray[np.float64]


def several_items(responses: pd.DataFrame, at_least: int = 2) -> pd.DataFrame:
    """Return checked responses, of which this measure needs so many items and two persons."""
    answers = check_responses(responses)
    n_persons, n_items = answers.shape
    if n_items < at_least or n_persons < 2:
        raise FrameError(
            f"this needs at least {at_least} items and 2 persons, and the responses have {n_items} and {n_persons}"
        )
    return answers


class PairCounts(NamedTuple):
    """For items i and j: how many persons answered both, got i right, got both right (whole numbers, so exact)."""

    answered: Array
    right: Array
    both_right: Array


def pair_counts(answers: pd.DataFrame) -> PairCounts:
    """Count answers over pairs of items, each array of shape (n_items, n_items), by three matrix products."""
    asked = answers.notna().to_numpy(np.float64)
    right = answers.fillna(0).to_numpy()
    return PairCounts(asked.T @ asked, right.T @ asked, right.T @ right)
