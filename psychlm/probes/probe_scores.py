"""How well probes were answered: question by question, cluster by cluster, and by hops and kind of distractor.

A probe's questions about one concept form a cluster (Richardson & Sabharwal 2020, section 3.1.1). A model that knows
the concept answers them all, so the strict cluster accuracy counts a cluster only where every question in it is right
(section 4.3); the heat maps of their Figure 3 are accuracies by hops and distractors.

Intervals treat clusters as what was sampled: questions about one concept share its word and its sentence, and are
no independent draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from psychlm.frames import FrameError

ORDER = (
    "random",
    "sister",
    "hypernym",
    "hyponym",
    "sense",
)  # of distractors in tables: the easiest first
UNDEFINED = ["n_questions", "n_clusters", "accuracy", "low", "high"]


def _joined(items: pd.DataFrame, correct: pd.Series, columns: Sequence[str]) -> pd.DataFrame:
    """Set the grades beside what is known of the questions; grades 0 to 1, NaN where a question was not asked."""
    missing = [column for column in ("item_id", "cluster", *columns) if column not in items.columns]
    if missing:
        raise FrameError(
            f"the items lack the columns {missing}; probes have them as they are built"
        )
    unknown = ~items["item_id"].isin(correct.index)
    if unknown.any():
        example = items.loc[unknown, "item_id"].iloc[0]
        raise FrameError(
            f"{unknown.sum()} items have no grade, {example!r} among them; grade all of them, or select those asked"
        )
    if correct.index.has_duplicates:
        raise FrameError("a question is graded more than once; grade one model at a time")
    frame = items.loc[:, list(dict.fromkeys(["item_id", "cluster", *columns]))].assign(
        correct=correct.loc[items["item_id"]].to_numpy(dtype=np.float64)
    )
    if ((frame["correct"] < 0) | (frame["correct"] > 1)).any():
        raise FrameError("grades lie between 0 and 1; these do not")
    return frame.dropna(subset="correct")


def wilson(
    p: NDArray[np.float64], n: NDArray[np.float64], level: float = 0.95
) -> tuple[NDArray, NDArray]:
    """Return Wilson's (1927) interval of a proportion that rests on n independent draws (n may be a fraction)."""
    z = norm.ppf(0.5 + level / 2)
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def instance_accuracy(
    items: pd.DataFrame,
    correct: pd.Series,
    by: str | Sequence[str] = "probe",
    *,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the share of questions that were answered right, with an interval that respects clusters.

    Parameters
    ----------
    items : DataFrame
        An items frame with ``cluster`` and the columns of ``by``.
    correct : Series, by item
        Grades 0 to 1; NaN where a question was not asked.
    by : column or columns
        One row of the result each.

    Returns
    -------
    DataFrame
        ``n_questions``, ``n_clusters``, ``accuracy``, ``low``, ``high``. The interval is Wilson's at the number of
        independent questions that has the same variance as the accuracy between clusters, linearised as a ratio
        (Franco et al. 2019, Comparative Study of Confidence Intervals for Proportions in Complex Sample Surveys);
        where all questions are right, or all wrong, that is the number of clusters.
    """
    keys = [by] if isinstance(by, str) else list(by)
    frame = _joined(items, correct, keys)
    if frame.empty:
        return pd.DataFrame(columns=UNDEFINED, dtype=float)
    clusters = (
        frame.groupby([*keys, "cluster"], observed=True)["correct"]
        .agg(["sum", "size"])
        .reset_index()
    )
    total = clusters.groupby(keys, observed=True)[["sum", "size"]].transform("sum")
    deviation = clusters["sum"] - total["sum"] / total["size"] * clusters["size"]
    parts = clusters.assign(squares=deviation**2).groupby(keys, observed=True)
    table = parts.agg(
        right=("sum", "sum"),
        n_questions=("size", "sum"),
        n_clusters=("size", "size"),
        q=("squares", "sum"),
    )
    p, n, g = (
        table[name].to_numpy(dtype=np.float64) for name in ("right", "n_questions", "n_clusters")
    )
    p = p / n
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = table["q"].to_numpy() / n**2 * g / (g - 1)
        effective = np.where(
            (p == 0) | (p == 1) | (g == 1) | (variance == 0), g, p * (1 - p) / variance
        )
    low, high = wilson(p, np.minimum(effective, n), level)
    return table[["n_questions", "n_clusters"]].assign(accuracy=p, low=low, high=high)


def cluster_accuracy(
    items: pd.DataFrame,
    correct: pd.Series,
    by: str | Sequence[str] = "probe",
    *,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the share of clusters in which every question was answered right (strict cluster accuracy).

    Parameters
    ----------
    items, correct, by
        As in :func:`instance_accuracy`. A grade below 1 makes its cluster wrong; questions that were not asked (NaN)
        do not count.

    Returns
    -------
    DataFrame
        ``n_clusters``, ``n_questions``, ``questions_per_cluster``, ``accuracy``, ``low``, ``high`` (Wilson), and
        ``if_independent``: the accuracy expected if the same number of right answers fell on questions at random,
        mean over clusters of accuracy to the power of the cluster's size. Above it, errors sit together.
    """
    keys = [by] if isinstance(by, str) else list(by)
    frame = _joined(items, correct, keys)
    clusters = (
        frame.groupby([*keys, "cluster"], observed=True)["correct"]
        .agg(["min", "sum", "size"])
        .reset_index()
    )
    total = clusters.groupby(keys, observed=True)[["sum", "size"]].transform("sum")
    clusters["strict"] = (clusters["min"] == 1).astype(float)
    clusters["chance"] = (total["sum"] / total["size"]) ** clusters["size"]
    table = clusters.groupby(keys, observed=True).agg(
        n_clusters=("size", "size"),
        n_questions=("size", "sum"),
        accuracy=("strict", "mean"),
        if_independent=("chance", "mean"),
    )
    low, high = wilson(
        table["accuracy"].to_numpy(), table["n_clusters"].to_numpy(dtype=np.float64), level
    )
    table = table.assign(
        questions_per_cluster=table["n_questions"] / table["n_clusters"], low=low, high=high
    )
    return table[
        [
            "n_clusters",
            "n_questions",
            "questions_per_cluster",
            "accuracy",
            "low",
            "high",
            "if_independent",
        ]
    ]


def by_hops_and_distractors(items: pd.DataFrame, correct: pd.Series) -> pd.DataFrame:
    """Return the accuracy of every probe by hops of the answer and by set of distractors: Figure 3 as a long table.

    Returns
    -------
    DataFrame
        ``probe``, ``hops``, ``distractor_set``, ``distractor_distance`` (0 for random ones), ``distractors`` (both in
        words, an ordered category), then the columns of :func:`instance_accuracy`.
    """
    keys = ["probe", "hops", "distractor_set", "distractor_distance"]
    table = instance_accuracy(items, correct, keys).reset_index()
    rank = {kind: place for place, kind in enumerate(ORDER)}
    table = table.assign(_rank=table["distractor_set"].astype(str).map(rank).fillna(len(rank)))
    table = table.sort_values(
        ["probe", "hops", "_rank", "distractor_set", "distractor_distance"], ignore_index=True
    )
    distance = table["distractor_distance"].astype(int).astype(str)
    words = table["distractor_set"].astype(str) + np.where(distance == "0", "", " " + distance)
    order = (
        table.assign(words=words)
        .sort_values(["_rank", "distractor_set", "distractor_distance"])["words"]
        .unique()
    )
    table.insert(4, "distractors", pd.Categorical(words, categories=order, ordered=True))
    return table.drop(columns="_rank")


def heat_map_table(
    accuracies: pd.DataFrame, value: str = "accuracy", *, min_questions: int = 1
) -> pd.DataFrame:
    """Spread the long table of :func:`by_hops_and_distractors` into Figure 3: probes and hops down, distractors across.

    Parameters
    ----------
    value : str
        The column that fills the cells.
    min_questions : int
        Cells that rest on fewer questions are NaN.
    """
    enough = accuracies[accuracies["n_questions"] >= min_questions]
    return enough.pivot(index=["probe", "hops"], columns="distractors", values=value)
