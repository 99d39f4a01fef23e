"""Scores of probes. References: clusters counted by hand, and a bootstrap over clusters."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.proportion import proportion_confint

from psychlm.frames import FrameError
from psychlm.probes import scores


def questions(clusters, **columns):
    n = len(clusters)
    frame = pd.DataFrame({"item_id": [f"q{i}" for i in range(n)], "cluster": clusters})
    frame["choices"] = [list("abcde")] * n
    return frame.assign(prompt="?", answer=0, **({"probe": "definitions"} | columns))


def grades(items, values):
    return pd.Series(np.asarray(values, dtype=float), index=items["item_id"])


def test_a_cluster_counts_only_where_every_question_is_right():
    items = questions(["a", "a", "b", "b", "c"])
    table = scores.cluster_accuracy(items, grades(items, [1, 1, 1, 0, 0])).loc["definitions"]
    assert table["accuracy"] == pytest.approx(1 / 3)
    assert table["n_clusters"] == 3
    assert table["questions_per_cluster"] == pytest.approx(5 / 3)
    assert table["if_independent"] == pytest.approx((0.6**2 + 0.6**2 + 0.6) / 3)
    assert (table["low"], table["high"]) == pytest.approx(proportion_confint(1, 3, method="wilson"))


def test_questions_of_clusters_of_one_have_wilsons_interval():
    items = questions([f"c{i}" for i in range(200)])
    right = grades(items, np.arange(200) % 4 == 0)
    table = scores.instance_accuracy(items, right).loc["definitions"]
    wilson = proportion_confint(50, 200, method="wilson")
    assert table["accuracy"] == 0.25
    assert (table["low"], table["high"]) == pytest.approx(wilson, abs=2e-4)  # n - 1 for n


def test_intervals_are_as_wide_as_a_bootstrap_over_clusters(rng):
    known = rng.random(300) < 0.6
    size = rng.integers(1, 9, 300)
    items = questions(np.repeat([f"c{i}" for i in range(300)], size))
    often, rarely = rng.random(size.sum()) < 0.9, rng.random(size.sum()) < 0.3
    right = np.where(np.repeat(known, size), often, rarely)
    table = scores.instance_accuracy(items, grades(items, right)).loc["definitions"]
    sums = np.add.reduceat(right.astype(float), np.cumsum(size) - size)
    drawn = rng.integers(0, 300, (4000, 300))
    boot = sums[drawn].sum(axis=1) / size[drawn].sum(axis=1)
    width = np.diff(np.quantile(boot, [0.025, 0.975]))[0]
    assert table["high"] - table["low"] == pytest.approx(width, rel=0.06)


def test_figure_3_has_random_distractors_first_and_hops_down_the_side():
    columns = {"hops": [1, 1, 2, 2], "distractor_distance": [2, 0, 0, 1]}
    columns["distractor_set"] = ["sister", "random", "random", "hyponym"]
    items = questions(list("abcd"), probe="hypernymy", **columns)
    long = scores.by_hops_and_distractors(items, grades(items, [1, 0, 1, 1]))
    table = scores.heat_map_table(long)
    assert list(table.columns) == ["random", "sister 2", "hyponym 1"]
    assert table.loc[("hypernymy", 1), "sister 2"] == 1
    assert np.isnan(table.loc[("hypernymy", 1), "hyponym 1"])
    assert scores.heat_map_table(long, min_questions=2).empty


def test_questions_without_a_grade_are_named_and_unasked_ones_do_not_count():
    items = questions(list("aabb"))
    with pytest.raises(FrameError, match=r"items .*q3.* have no grade"):
        scores.instance_accuracy(items, grades(items, [1, 1, 1, 1]).drop("q3"))
    with pytest.raises(FrameError, match="lack the columns"):
        scores.cluster_accuracy(items.drop(columns="cluster"), grades(items, [1, 1, 1, 1]))
    nowhere = items.assign(cluster=["a", "a", "b", None])
    with pytest.raises(FrameError, match=r"items \['q3'\] have an empty cell"):
        scores.instance_accuracy(nowhere, grades(items, [1, 1, 1, 1]))
    table = scores.cluster_accuracy(items, grades(items, [1, np.nan, 1, 0])).loc["definitions"]
    assert (table["n_questions"], table["accuracy"]) == (3, 0.5)


def versions(rng, n_clusters=200):
    """Return questions of clusters, each among random and, for some, among sister distractors."""
    rows = []
    for cluster in range(n_clusters):
        for question in range(rng.integers(1, 5)):
            sets = ["random", "sister1", "sister2", "hypernym1"][: rng.integers(1, 5)]
            rows += [(f"p:{cluster}:{question}:{name}", str(cluster), name) for name in sets]
    items = pd.DataFrame(rows, columns=["item_id", "cluster", "distractors"])
    return items.assign(distractor_set=items["distractors"].str.rstrip("12"))


def test_close_distractors_are_compared_within_questions(rng):
    items = versions(rng)
    # questions that have sisters are easy: among all, sisters look easier than random distractors
    question = items["item_id"].str.rsplit(":", n=1).str[0]
    has_sister = question.isin(question[items["distractor_set"].eq("sister")])
    ease = 0.15 + 0.8 * has_sister - 0.15 * items["distractor_set"].eq("sister")
    right = grades(items, ease)
    rough = right.groupby(items["distractor_set"].to_numpy()).mean()
    assert rough["sister"] > rough["random"]
    compared = scores.close_distractors(items, right)
    assert compared["difference"] == pytest.approx(0.15)
    assert compared["n_questions"] == question[items["distractor_set"].eq("sister")].nunique()
    by_cluster = scores.instance_accuracy(items, right, by="cluster")["accuracy"]
    of_cluster = right.groupby(items["cluster"].to_numpy()).mean()
    pd.testing.assert_series_equal(by_cluster, of_cluster, check_names=False)
    unnamed = items.assign(cluster=items["cluster"].where(items.index > 0))
    with pytest.raises(FrameError, match="have no cluster or distractor_set; leave them out"):
        scores.close_distractors(unnamed, right)


def test_the_interval_of_close_distractors_is_that_of_a_bootstrap_over_clusters(rng):
    items = versions(rng)
    ability = pd.Series(rng.normal(0, 2, 200)).loc[items["cluster"].astype(int)].to_numpy()
    harder = items["distractor_set"].eq("sister").to_numpy()
    right = rng.random(len(items)) < 1 / (1 + np.exp(-ability + harder * ability))
    compared = scores.close_distractors(items, grades(items, right))
    sums = np.zeros((200, 2))  # of each cluster: its differences, and their number
    for _, rows in items.assign(right=right).groupby(items["item_id"].str.rsplit(":", n=1).str[0]):
        of_set = rows.groupby("distractor_set")["right"].mean()
        if "sister" in of_set:
            sums[int(rows["cluster"].iloc[0])] += of_set["random"] - of_set["sister"], 1
    drawn = sums[rng.integers(0, 200, (4000, 200))].sum(axis=1)
    width = np.diff(np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975]))[0]
    assert compared["difference"] == pytest.approx(sums[:, 0].sum() / sums[:, 1].sum())
    assert compared["high"] - compared["low"] == pytest.approx(width, rel=0.08)
