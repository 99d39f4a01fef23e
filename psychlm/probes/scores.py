"""Accuracy on probes: by question, by cluster, by hops and kind of distractor.

A probe's questions about one concept form a cluster (Richardson & Sabharwal 2020, section 3.1.1). A
model that knows the concept answers them all, so strict cluster accuracy counts a cluster only
where every question in it is right (section 4.3). Intervals treat clusters as what was sampled:
questions about one concept share its word and its sentence, and are no independent draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from psychlm.frames import FrameError, refuse

# Distractors in tables: the easiest first
ORDER = ("random", "sister", "hypernym", "hyponym", "sense")


def _by_cluster(items: pd.DataFrame, correct: pd.Series, keys: list[str]) -> pd.DataFrame:
    """Return one row per cluster: ``sum``, ``size`` and ``min`` of its grades, and ``rate``, the
    accuracy of all questions of its group."""
    columns = list(dict.fromkeys(["item_id", "cluster", *keys]))
    missing = [column for column in columns if column not in items.columns]
    refuse("items lack the columns", missing, "which probes have when built")
    unnamed = items.loc[items[columns].isna().any(axis=1), "item_id"]
    refuse("items", unnamed, f"have an empty cell in one of the columns {columns}; leave them out")
    unknown = items.loc[~items["item_id"].isin(correct.index), "item_id"]
    refuse("items", unknown, "have no grade")
    if correct.index.has_duplicates:
        raise FrameError("a question is graded more than once; grade one model at a time")
    grades = correct.loc[items["item_id"]].to_numpy(dtype=np.float64)
    if ((grades < 0) | (grades > 1)).any():
        raise FrameError("grades lie between 0 and 1; these do not")
    frame = items[columns].assign(correct=grades).dropna(subset="correct")
    units = list(dict.fromkeys([*keys, "cluster"]))  # of tables by cluster once
    groups = frame.groupby(units, observed=True)["correct"]
    clusters = groups.agg(["sum", "size", "min"]).reset_index()
    total = clusters.groupby(keys, observed=True)[["sum", "size"]].transform("sum")
    return clusters.assign(rate=total["sum"] / total["size"])


def instance_accuracy(
    items: pd.DataFrame, correct: pd.Series, by: str | Sequence[str] = "probe"
) -> pd.DataFrame:
    """Return the proportion of questions answered right, with an interval that respects clusters.

    The variance of the accuracy p = sum(x_c) / sum(m_c) between g clusters, linearised as a ratio,
    is ``g / (g - 1) * sum((x_c - p m_c)^2) / n^2``. The interval is Wilson's at the number of
    independent questions with that variance, ``p (1 - p) / variance`` (Franco et al. 2019,
    Comparative Study of Confidence Intervals for Proportions in Complex Sample Surveys); where all
    questions are right, or all wrong, at the number of clusters.

    ``items`` have ``cluster`` and the columns of ``by``, ``correct`` are grades 0 to 1 by item, NaN
    where a question was not asked. Each row has ``n_questions``, ``n_clusters``, ``accuracy``,
    ``low`` and ``high``.

    >>> items = pd.DataFrame({"item_id": ["a1", "a2", "b1"], "cluster": ["a", "a", "b"]})
    >>> correct = pd.Series({"a1": 1.0, "a2": 0.0, "b1": 1.0})
    >>> table = instance_accuracy(items.assign(probe="isa"), correct, "probe")
    >>> table["accuracy"].round(3).to_dict()
    {'isa': 0.667}
    """
    keys = [by] if isinstance(by, str) else list(by)
    clusters = _by_cluster(items, correct, keys)
    columns = ["n_questions", "n_clusters", "accuracy", "low", "high"]
    if clusters.empty:
        return pd.DataFrame(columns=columns, dtype=float)
    # x_c - p m_c of each cluster, and the sums of each group.
    deviation = clusters["sum"] - clusters["rate"] * clusters["size"]
    table = clusters.assign(square=deviation**2).groupby(keys, observed=True)
    table = table.agg(
        n_questions=("size", "sum"),
        n_clusters=("size", "size"),
        right=("sum", "sum"),
        squares=("square", "sum"),
    )
    n = table["n_questions"]
    g = table["n_clusters"]
    p = table["right"] / n
    # The number of independent questions that would have the variance between clusters.
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = table["squares"] / n**2 * g / (g - 1)
        degenerate = (p == 0) | (p == 1) | (g == 1) | (variance == 0)
        n_effective = np.minimum(np.where(degenerate, g, p * (1 - p) / variance), n)
    low, high = proportion_confint(p * n_effective, n_effective, method="wilson")
    return table.assign(accuracy=p, low=low, high=high)[columns]


def cluster_accuracy(
    items: pd.DataFrame, correct: pd.Series, by: str | Sequence[str] = "probe"
) -> pd.DataFrame:
    """Return the proportion of clusters with every question right (strict cluster accuracy).

    A grade below 1 makes its cluster wrong. Columns: ``n_clusters``, ``n_questions``,
    ``questions_per_cluster``, ``accuracy``, ``low``, ``high`` (Wilson), and ``if_independent``, the
    accuracy expected if as many right answers fell on questions at random: the mean over clusters
    of accuracy to the power of the cluster's size. Above it, errors occur together.

    >>> items = pd.DataFrame({"item_id": ["a1", "a2", "b1"], "cluster": ["a", "a", "b"]})
    >>> correct = pd.Series({"a1": 1.0, "a2": 0.0, "b1": 1.0})
    >>> cluster_accuracy(items.assign(probe="isa"), correct)["accuracy"].to_dict()
    {'isa': 0.5}
    """
    keys = [by] if isinstance(by, str) else list(by)
    clusters = _by_cluster(items, correct, keys)
    clusters["strict"] = (clusters["min"] == 1).astype(float)
    clusters["chance"] = clusters["rate"] ** clusters["size"]
    table = clusters.groupby(keys, observed=True).agg(
        n_clusters=("size", "size"),
        n_questions=("size", "sum"),
        questions_per_cluster=("size", "mean"),
        accuracy=("strict", "mean"),
        if_independent=("chance", "mean"),
    )
    n = table["n_clusters"]
    low, high = proportion_confint(table["accuracy"] * n, n, method="wilson")
    table.insert(4, "low", low)
    table.insert(5, "high", high)
    return table


def by_hops_and_distractors(items: pd.DataFrame, correct: pd.Series) -> pd.DataFrame:
    """Return the accuracy of every probe by hops and set of distractors: Figure 3, a long table.

    Columns: ``probe``, ``hops``, ``distractor_set``, ``distractor_distance`` (0 for random ones),
    ``distractors`` (both in words, ordered), and those of :func:`instance_accuracy`.

    >>> items = pd.DataFrame({"item_id": ["a1", "a2", "b1"], "cluster": ["a", "a", "b"]})
    >>> correct = pd.Series({"a1": 1.0, "a2": 0.0, "b1": 1.0})
    >>> items = items.assign(probe="isa", hops=1, distractor_set=["random", "sister", "sister"])
    >>> items["distractor_distance"] = [0, 1, 1]
    >>> by_hops_and_distractors(items, correct).set_index("distractors")["accuracy"].to_dict()
    {'random': 1.0, 'sister 1': 0.5}
    """
    kind = ["distractor_set", "distractor_distance"]
    table = instance_accuracy(items, correct, ["probe", "hops", *kind]).reset_index()
    names = table["distractor_set"].astype(str)
    distances = table["distractor_distance"].astype(int)
    labels = names + np.where(distances == 0, "", " " + distances.astype(str))
    table.insert(4, "distractors", labels)
    # Order: as in ORDER, other sets last; then by distance.
    table["rank"] = names.map({name: rank for rank, name in enumerate(ORDER)}).fillna(len(ORDER))
    order = table.sort_values(["rank", *kind])["distractors"].unique()
    table["distractors"] = pd.Categorical(table["distractors"], categories=order, ordered=True)
    table = table.sort_values(["probe", "hops", "rank", *kind], ignore_index=True)
    return table.drop(columns="rank")


def close_distractors(items: pd.DataFrame, correct: pd.Series) -> pd.Series:
    """Compare every question among random distractors with the same question among sisters.

    A question comes with several sets of distractors, named behind the last colon of its
    ``item_id``; the difference is taken within questions, since those that have sisters at all are
    not a random part of a probe, and its variance between clusters. Return the accuracies
    ``random`` and ``close``, their ``difference`` with ``low`` and ``high`` (95 %), ``n_questions``
    and ``n_clusters``; NaN where no question has both.

    >>> items = pd.DataFrame({"item_id": ["a:random", "a:sister1"], "cluster": "a"})
    >>> items["distractor_set"] = ["random", "sister"]
    >>> grades = pd.Series([1.0, 0.0], index=items["item_id"])
    >>> close_distractors(items, grades)[["random", "close", "difference"]].tolist()
    [1.0, 0.0, 1.0]
    """
    unnamed = items.loc[items[["cluster", "distractor_set"]].isna().any(axis=1), "item_id"]
    refuse("items", unnamed, "have no cluster or distractor_set; leave them out")
    frame = items[["cluster", "distractor_set"]].assign(
        question=items["item_id"].str.rsplit(":", n=1).str[0].to_numpy(),
        correct=correct.loc[items["item_id"]].to_numpy(dtype=np.float64),
    )
    means = frame.pivot_table("correct", ["cluster", "question"], "distractor_set")
    pairs = means.reindex(columns=["random", "sister"]).dropna()
    pairs = pairs.rename(columns={"sister": "close"})
    pairs["difference"] = pairs["random"] - pairs["close"]
    n = len(pairs)
    estimates = pairs.mean()
    # The variance of the mean difference between clusters.
    deviations = (pairs["difference"] - estimates["difference"]).groupby(level="cluster").sum()
    g = len(deviations)
    variance = g / (g - 1) * (deviations**2).sum() / n**2 if g > 1 else np.nan
    half = 1.959964 * variance**0.5
    estimates["low"] = estimates["difference"] - half
    estimates["high"] = estimates["difference"] + half
    return pd.concat([estimates, pd.Series({"n_questions": n, "n_clusters": g})])


def heat_map_table(accuracies: pd.DataFrame, *, min_questions: int = 1) -> pd.DataFrame:
    """Pivot the accuracies of :func:`by_hops_and_distractors`: probes and hops down, distractors
    across; NaN where a cell has fewer questions than ``min_questions``.

    >>> table = pd.DataFrame({"distractors": ["random", "sister 1"], "n_questions": [9, 1]})
    >>> table = table.assign(probe="isa", hops=1, accuracy=[0.7, 1.0])
    >>> heat_map_table(table, min_questions=5).to_numpy().tolist()
    [[0.7]]
    """
    enough = accuracies[accuracies["n_questions"] >= min_questions]
    return enough.pivot(index=["probe", "hops"], columns="distractors", values="accuracy")
