"""Comparisons of models. References: statsmodels' cluster covariance, scipy's binomtest, counting
all flips of sign, coverage and ranks in the released answers of metabench."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy
import statsmodels.api as sm
from command import refused, run
from hypothesis import assume, given
from hypothesis import strategies as st

import psychlm
from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError


def scores(seed: int, n: int = 60, binary: bool = False) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return scores of two models and the clusters of the items."""
    rng = np.random.default_rng(seed)
    labels = pd.Index([f"i{k}" for k in range(n)])
    cluster = rng.integers(0, n // 4, n)
    shared = rng.normal(size=n)[cluster]
    a, b = (pd.Series(shared * k + rng.normal(size=n), labels) for k in (1, 0.3))
    if binary:
        a, b = (a > -0.5).astype(float), (b > 0).astype(float)
    return a, b, pd.Series(cluster, labels)


@given(seed=st.integers(0, 10_000), n=st.integers(8, 200), binary=st.booleans())
def test_errors_in_clusters_equal_statsmodels(seed, n, binary):
    a, b, cluster = scores(seed, n, binary)
    assume(cluster.nunique() > 1)  # one cluster has no error, and is refused
    result = psychlm.compare(a, b, cluster=cluster, n_permutations=0)
    model = sm.OLS(a - b, np.ones(n))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": cluster.to_numpy()}, use_t=True)
    assert result.difference == pytest.approx(fit.params.iloc[0], abs=1e-12)
    assert result.standard_error == pytest.approx(fit.bse.iloc[0], abs=1e-12)
    if fit.bse.iloc[0] > 1e-9:
        expected = [*fit.conf_int().iloc[0], fit.pvalues.iloc[0]]
        assert [result.low, result.high, result.p] == pytest.approx(expected, abs=1e-9)


@given(seed=st.integers(0, 10_000), n=st.integers(2, 300))
def test_p_of_graded_items_equals_binomtest(seed, n):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, (2, n))
    result = psychlm.compare(a, b)
    first, second = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    expected = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert result.p == result.p_mcnemar == pytest.approx(expected, abs=1e-12)
    assert result.n_wins == (first, second)
    assert result.low < result.difference < result.high or abs(result.difference) == 1


def test_permutation_flips_whole_clusters():
    a, b, cluster = scores(3, 32)
    sums = (a - b).groupby(cluster).sum().to_numpy()
    flips = np.array(list(itertools.product([-1, 1], repeat=len(sums))))
    expected = (np.abs(flips @ sums) >= abs(sums.sum()) - 1e-9).mean()
    result = psychlm.compare(a, b, cluster=cluster)
    assert result.p_permutation == pytest.approx(expected, abs=1e-12)


def test_labels_match_whatever_their_order_and_missing_pairs_are_counted():
    a, b, cluster = scores(5)
    expected = psychlm.compare(a, b, cluster=cluster)
    order = np.random.default_rng(0).permutation(len(a))
    shuffled = psychlm.compare(a, b.iloc[order], cluster=cluster.iloc[order[::-1]])
    np.testing.assert_equal(vars(shuffled), vars(expected))  # NaN are equal
    fewer = psychlm.compare(a.iloc[3:], b.where(b.index != "i9"), cluster=cluster)
    assert (fewer.n, fewer.n_left_out) == (56, 4)
    assert "4 that one of them lacks" in repr(fewer)


def test_the_minimal_detectable_difference_is_found_four_times_in_five():
    a, b = np.random.default_rng(8).normal(size=(2, 600, 80))
    planned = [psychlm.compare(*row, n_permutations=0) for row in zip(a, b, strict=True)]
    shift = np.mean([each.minimal_detectable for each in planned])
    there = [psychlm.compare(*row, n_permutations=0) for row in zip(a + shift, b, strict=True)]
    assert np.mean([each.told_apart for each in there]) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("binary", [True, False])
def test_pairs_of_a_frame_are_comparisons_of_two_with_holms_adjustment(binary):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(6, 90)) + np.linspace(0, 1.5, 6)[:, None]
    frame = pd.DataFrame((values > 0.5).astype(float) if binary else values)
    frame = frame.set_axis(list("uvwxyz")).add_prefix("i")
    ranking = psychlm.compare(frame)
    for row in ranking.pairs.itertuples():
        two = psychlm.compare(frame.loc[row.a], frame.loc[row.b], n_permutations=0)
        expected = [two.difference, two.low, two.high, two.p]
        assert [row.difference, row.low, row.high, row.p] == pytest.approx(expected, abs=1e-12)
    adjusted = sm.stats.multipletests(ranking.pairs["p"], method="holm")[1]
    assert np.allclose(ranking.pairs["p_adjusted"], adjusted)
    # A rank lies as many places from the ends as models are told apart from it on that side.
    for name, model in ranking.models.iterrows():
        sign = np.where(ranking.pairs["a"] == name, 1, np.where(ranking.pairs["b"] == name, -1, 0))
        apart = sign * np.sign(ranking.pairs["difference"]) * ranking.pairs["told_apart"]
        assert model["rank_low"] == 1 + (apart < 0).sum()
        assert model["rank_high"] == len(frame) - (apart > 0).sum()
        assert model["rank_low"] <= model["rank"] <= model["rank_high"]


def test_models_without_a_difference_are_not_told_apart_and_nothing_is_divided_by_zero():
    same = psychlm.compare(np.ones(40), np.ones(40))
    assert same.p == 1 and same.low < 0 < same.high and same.minimal_detectable > 0
    assert same.verdict == "a and b cannot be told apart at this size"
    constant = psychlm.compare(np.full(4, 2.5), np.full(4, 2.0), cluster=[0, 0, 1, 1])
    assert [constant.p, constant.p_permutation] == pytest.approx([0.5, 0.5])
    assert not constant.told_apart and np.isnan(constant.minimal_detectable)


@pytest.mark.parametrize(
    ("a", "b", "cluster", "message"),
    [
        ([1, 0], [1, 0, 1], None, "2 and 3 scores"),
        (pd.Series([1, 0]), [1, 0], None, "one of the two has labels"),
        (pd.Series([1, 0], ["x", "x"]), pd.Series([1, 0]), None, "'x'.*more than once"),
        (pd.Series(["A", "B"]), pd.Series([1, 0]), None, "scores of a are .*not numbers"),
        (pd.Series([1, 0], ["x", "y"]), pd.Series([1, 0]), None, "share 0 items"),
        ([1.0, 2.0, np.inf], [1.0, 1.0, 3.0], None, r"scores of a at \[2\] are infinite"),
        ([1, 0], None, None, "no comparison"),
        (pd.DataFrame([[1, 0], [1, 1]]), [1, 0], None, "two rows"),
        (pd.DataFrame([[1, np.nan], [1, 1]]), None, None, "25% of the cells.*method='irt'"),
        ([1.0, 0, 1], [0, 1, 1], [1, 1, 1], "one cluster"),
        ([1.0, 0, 1], [0, 1, 1], "text_id", "7 entries for 3"),
        ([1.0, 0, 1], [0, 1, 1], pd.Series([1, 2]), r"\[2\] have no cluster"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(a, b, cluster, message):
    with pytest.raises((ValueError, FrameError), match=message):
        psychlm.compare(a, b, cluster=cluster)


def exhaustive(*arguments) -> list:
    return [
        pytest.param(name, *arguments, marks=pytest.mark.exhaustive)
        for name in ("arc", "gsm8k", "mmlu", "truthfulqa", "winogrande")
    ]


@pytest.mark.parametrize(
    ("bank_name", "step", "n_pairs", "tolerance"),
    [("arc", 20, 300, 0.035), *exhaustive(1, 2000, 0.02)],
)
def test_intervals_of_resampled_items_cover_the_difference_on_the_whole_bank(
    bank_name, step, n_pairs, tolerance
):
    rng, hits = np.random.default_rng(1), []
    values = corpora.metabench(bank_name).iloc[::step].to_numpy()
    for _ in range(n_pairs):
        a, b = values[rng.choice(len(values), 2, replace=False)]
        items = rng.integers(len(a), size=len(a))
        result = psychlm.compare(a[items], b[items], n_permutations=0)
        hits.append(result.low <= (a - b).mean() <= result.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=tolerance)


@pytest.mark.parametrize(("bank_name", "step"), [("arc", 16), *exhaustive(4)])
@pytest.mark.parametrize("by_difficulty", [False, True])
def test_ranks_of_sparse_answers_by_irt_are_nearer_to_the_full_ones(bank_name, step, by_difficulty):
    """69 % of the cells are left out: at random, or each model keeps a range of difficulty.

    Nearer: the distance of the rank correlation from 1 is a fifth shorter, at least.
    """
    bank, rng = corpora.metabench(bank_name).iloc[::step], np.random.default_rng(0)
    rank = bank.mean().rank(method="first").to_numpy()
    start = rng.uniform(0, bank.shape[1], (len(bank), 1)) if by_difficulty else 0
    key = np.abs(rank - start) if by_difficulty else rng.random(bank.shape)
    n_kept = round(0.31 * bank.shape[1])
    sparse = bank.where(np.argsort(np.argsort(key, axis=1), axis=1) < n_kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", irt.IRTWarning)  # slopes that a few models separate
        ability = psychlm.compare(sparse, method="irt").models["score"]
    full = bank.mean(axis=1)
    by_irt, by_means = (
        full.corr(score, method="spearman") for score in (ability, sparse.mean(axis=1))
    )
    assert 1 - by_irt < 0.8 * (1 - by_means)


def test_groups_that_were_asked_other_items_are_on_one_scale_and_their_gaps_are_named():
    """Each group answers its own booklet, harder for the abler; five items are common."""
    rng = np.random.default_rng(2)
    items = simulate.items(25, rng).assign(a=1.2)
    items["b"] = np.linspace(-2, 2, 25)
    ability = np.r_[rng.normal(-0.8, 0.7, 150), rng.normal(0.8, 1.0, 150)]
    frame = simulate.responses(ability, items, rng)
    group = np.repeat(["small", "large"], 150)
    frame.iloc[:150, 15:] = np.nan
    frame.iloc[150:, :10] = np.nan
    found = psychlm.compare(frame, method="irt", group=group)
    known = pd.Series(ability, frame.index)
    assert found.models["score"].corr(known) > 0.85
    by_group = found.models["score"].groupby(pd.Series(group, frame.index)).mean()
    fit = irt.fit(frame, group=group)
    np.testing.assert_allclose(by_group[fit.groups.index], fit.groups["mean"], atol=0.02)
    gap = by_group["large"] - by_group["small"]  # in standard deviations of the first group
    assert abs(gap - 1.6 / 0.7) < 3 * fit.groups.loc["large", "se_mean"]
    assert "group 'small' was not asked 10 items" in repr(found) and "item-16" in found.message
    with pytest.raises(ValueError, match="group takes method='irt'"):
        psychlm.compare(frame, group=group)


def test_the_command_compares_two_files_and_ranks_one(tmp_path):
    a, b, cluster = scores(4)
    table = pd.DataFrame({"text_id": cluster, "word_id": range(len(a)), "surprisal_bits": a})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.assign(surprisal_bits=b.to_numpy())[::-1].to_csv(tmp_path / "b.csv", index=False)
    files = [tmp_path / name for name in ("a.csv", "b.csv")]
    expected = psychlm.compare(a, b, cluster=cluster, names=("a", "b"))
    assert run("compare", *files, "--cluster", "text_id").output.strip() == repr(expected)
    assert "has no columns ['gaze_ms']" in refused("compare", *files, "--value", "gaze_ms")
    for other in ([*files, "--method", "irt"], [files[0], "--value", "x"]):
        assert "two files" in refused("compare", *other)
    right = pd.DataFrame({"item_id": range(6), "correct": [True, False, True, True, False, True]})
    for name in "ab":
        right.to_csv(tmp_path / f"{name}.csv", index=False)
        right["correct"] = ~right["correct"]
    assert "a 0.6667, b 0.3333 on 6 items" in run("compare", *files).output
    assert "psychlm compare A.csv B.csv" in refused("compare", files[0])  # one file forgotten
    bank = corpora.metabench("arc").iloc[:4]
    bank.reset_index().to_csv(tmp_path / "models.csv", index=False)
    said = run("compare", tmp_path / "models.csv", "--out", tmp_path / "pairs.csv").output
    assert "of 6 pairs (Holm, 0.05)" in said
    assert np.allclose(pd.read_csv(tmp_path / "pairs.csv")["p"], psychlm.compare(bank).pairs["p"])


def test_two_models_have_no_abilities():
    with pytest.raises(ValueError, match="method 'irt' scores the rows of a frame"):
        psychlm.compare([1, 0, 1], [0, 0, 1], method="irt")
