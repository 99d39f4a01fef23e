"""How far raters agree on labels, beyond what chance would give."""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.frames import FrameError


def fleiss_kappa(labels: pd.DataFrame) -> pd.Series:
    """Return Fleiss' (1971) kappa of every label, and over all labels.

    With n_i answers to item i, of which n_ij say label j, and p_j the share of label j among all answers, the kappa of
    label j is 1 - mean_i[n_ij (n_i - n_ij) / (n_i (n_i - 1))] / (p_j (1 - p_j)), and the overall kappa the mean of
    these with weights p_j (1 - p_j). Items need not have equally many answers.

    Parameters
    ----------
    labels : DataFrame, persons x items
        What each person said; NaN where nothing was said.

    Returns
    -------
    Series
        Indexed by label, in their order, and last "overall".

    Raises
    ------
    FrameError
        If an item has fewer than two answers, or only one label was ever given.
    """
    counts = labels.apply(pd.Series.value_counts).fillna(0).T.sort_index(axis=1)
    answers = counts.sum(axis=1)
    if (answers < 2).any():
        raise FrameError(
            f"items {list(counts.index[answers < 2])[:5]} have fewer than two answers; leave them out"
        )
    if counts.shape[1] < 2:
        raise FrameError(
            f"everyone said {list(counts.columns)}: with one label there is no agreement to measure"
        )
    share = counts.sum() / counts.to_numpy().sum()
    chance = share * (1 - share)
    disagreement = (
        (counts * (-counts).add(answers, axis=0)).div(answers * (answers - 1), axis=0).mean()
    )
    kappa = 1 - disagreement / chance
    kappa["overall"] = np.average(kappa, weights=chance)
    return kappa.rename("kappa")
