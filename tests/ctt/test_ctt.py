"""Classical test theory against R's psych (reference files), pandas' pairwise correlations, sums done one by one, and
brute force over clusterings."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import silhouette_score

from psychlm import ctt
from psychlm.frames import FrameError


@pytest.fixture
def answers(rng):
    """60 persons x 9 items that depend on one ability."""
    ability, hardness = rng.normal(size=(60, 1)), np.linspace(-1.5, 1.5, 9)
    right = rng.random((60, 9)) < 1 / (1 + np.exp(-1.5 * (ability - hardness)))
    return pd.DataFrame(right.astype(float), columns=[f"q{i}" for i in range(1, 10)])


@pytest.fixture
def gappy(answers, rng):
    """The same responses, a fifth of them not asked."""
    return answers.mask(rng.random(answers.shape) < 0.2)


def blocks(rng, n_persons=200, per_block=4, n_blocks=3, noise=0.15):
    """Items in blocks: those of one block share a hidden answer, flipped now and then."""
    hidden = rng.integers(0, 2, size=(n_persons, n_blocks)).repeat(per_block, axis=1)
    flipped = rng.random(hidden.shape) < noise
    return pd.DataFrame(
        np.where(flipped, 1 - hidden, hidden), columns=[f"i{j}" for j in range(hidden.shape[1])]
    )


# R's psych


@pytest.mark.parametrize("name", ["LSAT6", "LSAT7"])
def test_reliability_of_the_lsat_equals_psych(name, reference_dir):
    expected = pd.read_csv(reference_dir / "irt" / "ctt_test.csv", index_col="dataset").loc[name]
    responses = pd.read_csv(reference_dir / "irt" / f"data_{name}.csv")
    compare_with_psych(responses, expected)


@pytest.mark.needs_share
@pytest.mark.parametrize("group", [4, 5])
def test_items_and_reliability_of_the_snli_scales_equal_psych(group, reference_dir):
    from psychlm import data

    by_item = pd.read_csv(reference_dir / "irt" / "ctt_items.csv")
    by_test = pd.read_csv(reference_dir / "irt" / "ctt_test.csv", index_col="dataset")
    everyone = pd.read_csv(data.path(f"lalor2016/irt_file_{group}_coded"), index_col=0)
    names = [name for name in by_test.index if name.startswith(f"{group}GS")]
    assert names
    for name in names:
        expected = by_item[by_item["dataset"] == name].set_index("item")
        responses = everyone[expected.index].reset_index(drop=True)
        compare_with_psych(responses, by_test.loc[name])
        compare_items_with_psych(responses, expected)


@pytest.mark.parametrize("name", ["LSAT6", "LSAT7"])
def test_items_of_the_lsat_equal_psych(name, reference_dir):
    by_item = pd.read_csv(reference_dir / "irt" / "ctt_items.csv")
    responses = pd.read_csv(reference_dir / "irt" / f"data_{name}.csv")
    compare_items_with_psych(responses, by_item[by_item["dataset"] == name])


def compare_with_psych(responses, expected):
    assert ctt.cronbach_alpha(responses) == pytest.approx(expected["alpha_raw"], abs=1e-12)
    assert ctt.kr20(responses) == pytest.approx(expected["alpha_raw"], abs=1e-12)
    assert ctt.split_half(responses) == pytest.approx(expected["split_half_odd_even_SB"], abs=1e-12)
    assert ctt.standard_error_of_measurement(responses) == pytest.approx(expected["SEM"], abs=1e-12)
    assert ctt.average_inter_item_correlation(responses) == pytest.approx(
        expected["average_r"], abs=1e-12
    )


def compare_items_with_psych(responses, expected):
    for ours, theirs in [
        (ctt.difficulty, "p"),
        (ctt.item_total_correlation, "item_total_r"),
        (ctt.item_rest_correlation, "item_rest_r"),
        (ctt.alpha_if_deleted, "alpha_if_deleted"),
    ]:
        np.testing.assert_allclose(ours(responses), expected[theirs], rtol=0, atol=1e-12)


# items


def test_difficulty_is_the_proportion_correct_of_those_asked():
    responses = pd.DataFrame({"a": [1, 0, np.nan, 1], "b": [0, 0, 0, 1]})
    assert ctt.difficulty(responses).to_dict() == {"a": 2 / 3, "b": 0.25}


def test_inter_item_correlations_equal_pandas_with_and_without_gaps(answers, gappy):
    for responses in (answers, gappy):
        np.testing.assert_allclose(
            ctt.inter_item_correlation(responses), responses.corr(), atol=1e-12
        )


def test_a_constant_item_has_no_correlations(answers):
    r = ctt.inter_item_correlation(answers.assign(easy=1))
    assert r["easy"].isna().all()
    assert r.drop(index="easy", columns="easy").notna().all(axis=None)
    assert np.isnan(ctt.item_total_correlation(answers.assign(easy=1))["easy"])
    assert np.isnan(ctt.item_rest_correlation(answers.assign(easy=1))["easy"])


def test_average_correlation_treats_constant_items_as_asked(answers):
    with_easy = answers.assign(easy=1)
    with pytest.raises(FrameError, match=r"\['easy'\].*undefined='drop'"):
        ctt.average_inter_item_correlation(with_easy)
    plain = ctt.average_inter_item_correlation(answers)
    assert ctt.average_inter_item_correlation(with_easy, undefined="drop") == pytest.approx(plain)
    assert ctt.average_inter_item_correlation(with_easy, undefined="zero") == pytest.approx(
        plain * 36 / 45
    )


def test_item_total_and_item_rest_with_gaps_equal_a_loop_over_items(gappy):
    total, rest = ctt.item_total_correlation(gappy), ctt.item_rest_correlation(gappy)
    for item in gappy:
        asked = gappy[gappy[item].notna() & (gappy.drop(columns=item).notna().any(axis=1))]
        score, others = asked.mean(axis=1), asked.drop(columns=item).mean(axis=1)
        assert total[item] == pytest.approx(asked[item].corr(score))
        assert rest[item] == pytest.approx(asked[item].corr(others))


def test_an_item_whose_rest_never_varies_has_no_item_rest_correlation():
    responses = pd.DataFrame(
        {"a": [0, 1, 1], "b": [1, 0, 0], "c": [1, 1, 1]}
    )  # b + c and a + c vary, a + b is 1
    r = ctt.item_rest_correlation(responses)
    assert np.isnan(r["c"])
    assert r["a"] == pytest.approx(-1)


def test_discrimination_compares_the_upper_with_the_lower_group():
    responses = pd.DataFrame(
        {"a": [1, 1, 1, 0, 0, 0], "b": [1, 1, 0, 1, 0, 0], "c": [1, 0, 1, 0, 1, 0]}
    )
    # scores 3 2 2 1 1 0; a third of six is two: the best and half of each of the two tied behind them
    index = ctt.discrimination_index(responses, fraction=1 / 3)
    assert index.to_dict() == pytest.approx({"a": 1.0, "b": 0.75 - 0.25, "c": 0.75 - 0.25})


def test_discrimination_is_the_mean_over_all_ways_of_breaking_ties():
    responses = pd.DataFrame(
        {"a": [1, 1, 0, 0, 1], "b": [1, 0, 1, 0, 0], "c": [0, 0, 1, 0, 1], "d": [1, 1, 0, 0, 0]}
    )
    score, size = responses.sum(axis=1), 2
    brute = {}
    for name, sign in (("upper", 1), ("lower", -1)):
        best = max(sum(sign * score[list(group)]) for group in combinations(score.index, size))
        groups = [g for g in combinations(score.index, size) if sum(sign * score[list(g)]) == best]
        brute[name] = np.mean([responses.loc[list(group)].mean() for group in groups], axis=0)
    index = ctt.discrimination_index(responses, fraction=0.4)
    np.testing.assert_allclose(index, brute["upper"] - brute["lower"])


def test_discrimination_does_not_depend_on_the_order_of_persons(answers):
    shuffled = answers.sample(frac=1, random_state=1)
    pd.testing.assert_series_equal(
        ctt.discrimination_index(answers), ctt.discrimination_index(shuffled)
    )


def test_discrimination_is_nan_where_a_group_was_never_asked():
    responses = pd.DataFrame({"a": [1, 1, 0, 0], "b": [1, 1, 0, 0], "c": [1, 1, np.nan, np.nan]})
    index = ctt.discrimination_index(responses, fraction=0.5)
    assert index["a"] == 1
    assert np.isnan(index["c"])


# reliability


def test_alpha_from_pairwise_covariances_equals_pandas(gappy):
    covariances = gappy.cov()
    n_items = len(covariances)
    expected = n_items / (n_items - 1) * (1 - np.trace(covariances) / covariances.to_numpy().sum())
    assert ctt.cronbach_alpha(gappy) == pytest.approx(expected, abs=1e-12)


def test_kr20_uses_population_variances(answers, gappy):
    p = answers.mean()
    expected = 9 / 8 * (1 - (p * (1 - p)).sum() / answers.sum(axis=1).var(ddof=0))
    assert (
        ctt.kr20(answers) == pytest.approx(expected) == pytest.approx(ctt.cronbach_alpha(answers))
    )
    assert ctt.kr20(gappy) == pytest.approx(ctt.cronbach_alpha(gappy), abs=0.02)


def test_alpha_if_deleted_is_alpha_of_the_shorter_test(gappy):
    expected = [ctt.cronbach_alpha(gappy.drop(columns=item)) for item in gappy]
    np.testing.assert_allclose(ctt.alpha_if_deleted(gappy), expected, atol=1e-12)


def test_random_halves_average_the_stepped_up_correlations_of_halves(answers, rng):
    all_halves = []
    for half in combinations(answers.columns[:8], 4):
        one, other = (
            answers[list(half)].sum(axis=1),
            answers[answers.columns[:8].difference(half)].sum(axis=1),
        )
        r = one.corr(other)
        all_halves.append(2 * r / (1 + r))
    ours = ctt.split_half(answers.iloc[:, :8], "random", n_splits=20_000, rng=rng)
    assert ours == pytest.approx(np.mean(all_halves), abs=5 * np.std(all_halves) / np.sqrt(20_000))


def test_random_halves_repeat_with_the_same_seed(answers):
    values = {
        ctt.split_half(answers, "random", n_splits=50, rng=np.random.default_rng(3))
        for _ in range(2)
    }
    assert len(values) == 1


def test_a_given_reliability_sets_the_error_of_measurement(answers):
    spread = answers.sum(axis=1).std()
    assert ctt.standard_error_of_measurement(answers, 0.75) == pytest.approx(spread / 2)


@pytest.mark.parametrize(
    ("measure", "responses", "message"),
    [
        (ctt.cronbach_alpha, {"a": [0, 1]}, "at least 2 items"),
        (ctt.item_rest_correlation, {"a": [0, 1]}, "at least 2 items"),
        (ctt.alpha_if_deleted, {"a": [0, 1], "b": [1, 0]}, "at least 3 items"),
        (ctt.cronbach_alpha, {"a": [1, 1], "b": [0, 0]}, "no variance"),
        (ctt.split_half, {"a": [1, 1, 1], "b": [0, 1, 0]}, "half of the test has no variance"),
        (ctt.cronbach_alpha, {"a": [1, np.nan], "b": [0, np.nan]}, "answered no item"),
        (
            ctt.cronbach_alpha,
            {"a": [1, 0, np.nan], "b": [np.nan, 0, 1]},
            "both answered by 1 persons",
        ),
        (ctt.inter_item_correlation, {"a": [1], "b": [0]}, "2 persons"),
    ],
)
def test_bad_responses_get_an_error_that_says_why(measure, responses, message):
    with pytest.raises(FrameError, match=message):
        measure(pd.DataFrame(responses))


def test_bad_options_get_an_error_that_says_why(answers):
    with pytest.raises(ValueError, match="at most 0.5"):
        ctt.discrimination_index(answers, fraction=0.6)
    with pytest.raises(ValueError, match="rng="):
        ctt.split_half(answers, "random")
    with pytest.raises(ValueError, match="'odd-even' or 'random'"):
        ctt.split_half(answers, "thirds")
    with pytest.raises(ValueError, match="at most 1"):
        ctt.standard_error_of_measurement(answers, 1.2)
    with pytest.raises(ValueError, match="'drop', 'zero' or 'error'"):
        ctt.cluster_items(answers, undefined="ignore")


# clusters


def test_items_that_share_an_answer_cluster_together_and_the_silhouette_finds_how_many(rng):
    found = ctt.cluster_items(blocks(rng))
    assert found.k == 3
    assert found.labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert found.labels[found.medoids].tolist() == [1, 2, 3]
    assert found.dropped.empty


def test_clusters_are_the_best_k_medoids_by_brute_force(rng):
    responses = blocks(rng, n_persons=40, noise=0.2)
    distance = 1 - responses.corr().to_numpy()
    np.fill_diagonal(distance, 0)
    found = ctt.cluster_items(responses, k=3)
    loss = distance[:, responses.columns.get_indexer(found.medoids)].min(axis=1).sum()
    best = min(
        distance[:, list(medoids)].min(axis=1).sum() for medoids in combinations(range(12), 3)
    )
    assert loss == pytest.approx(best)
    assert found.silhouette[3] == pytest.approx(
        silhouette_score(distance, found.labels, metric="precomputed")
    )


def test_the_largest_k_tried_can_be_set(rng):
    assert ctt.cluster_items(blocks(rng), k_max=5).silhouette.index.tolist() == [2, 3, 4, 5]
    assert ctt.cluster_items(blocks(rng)).silhouette.index.tolist() == list(range(2, 12))


def test_constant_items_are_dropped_and_named_or_counted_as_unrelated(rng):
    responses = blocks(rng).assign(easy=1)
    left_out = ctt.cluster_items(responses)
    assert left_out.dropped.tolist() == ["easy"]
    assert "easy" not in left_out.labels
    unrelated = ctt.cluster_items(responses, undefined="zero")
    assert unrelated.dropped.empty
    assert "easy" in unrelated.labels
    with pytest.raises(FrameError, match="easy"):
        ctt.cluster_items(responses, undefined="error")


def test_a_pair_that_does_not_vary_together_is_named():
    responses = pd.DataFrame(
        {"a": [1, 0, 1, 0, 0], "b": [1, 1, 0, 0, 1], "c": [np.nan, np.nan, 1, 1, 0]}
    )
    responses.loc[4, "a"] = np.nan
    with pytest.raises(FrameError, match="'a' and 'c' do not both vary"):
        ctt.cluster_items(responses)


@pytest.mark.parametrize("options", [{"k": 1}, {"k": 12}, {"k_max": 1}])
def test_an_impossible_number_of_clusters_is_refused(options, rng):
    with pytest.raises(FrameError, match="12 items"):
        ctt.cluster_items(blocks(rng), **options)


def test_agreement_is_the_correlation_of_same_cluster_indicators_over_pairs():
    a = pd.Series([1, 1, 2, 2, 3], index=list("vwxyz"))
    b = pd.Series([7, 7, 7, 8, 8], index=list("vwxyz"))
    same = [(a[i] == a[j], b[i] == b[j]) for i, j in combinations(a.index, 2)]
    expected = stats.pearsonr(*np.array(same, dtype=float).T)
    found = ctt.cluster_agreement(a, b.sample(frac=1, random_state=1))
    assert (found.r, found.p) == pytest.approx(tuple(expected))
    assert (found.n_items, found.n_pairs, found.reason) == (5, 10, None)


def test_agreement_counts_the_items_common_to_both():
    a = pd.Series([1, 1, 2, 2, 3], index=list("vwxyz"))
    found = ctt.cluster_agreement(a, a.drop("z"))
    assert (found.r, found.n_items, found.n_pairs) == (pytest.approx(1), 4, 6)


@pytest.mark.parametrize(
    ("labels", "how"), [([1, 1, 1], "all items into one"), ([1, 2, 3], "a cluster of its own")]
)
def test_agreement_with_a_clustering_that_says_nothing_is_nan_with_a_reason(labels, how):
    found = ctt.cluster_agreement(pd.Series([1, 1, 2]), pd.Series(labels))
    assert np.isnan(found.r)
    assert np.isnan(found.p)
    assert how in found.reason
    assert "second" in found.reason


def test_agreement_needs_three_common_items():
    with pytest.raises(FrameError, match="2 items in common"):
        ctt.cluster_agreement(
            pd.Series([1, 2], index=["a", "b"]), pd.Series([1, 1, 2], index=["a", "b", "c"])
        )


def test_permutation_p_of_agreement_equals_all_permutations(rng):
    from itertools import permutations

    a, b = pd.Series([1, 1, 1, 2, 2, 3]), pd.Series([1, 1, 2, 2, 2, 3])
    observed = ctt.cluster_agreement(a, b, n_permutations=20_000, rng=rng)
    every = np.array(
        [ctt.cluster_agreement(a, pd.Series(labels)).r for labels in set(permutations(b))]
    )
    exact = np.mean(np.abs(every) >= abs(observed.r) - 1e-9)
    assert observed.p_permutation == pytest.approx(exact, abs=0.015)


def test_permutation_p_needs_a_generator():
    with pytest.raises(ValueError, match="rng="):
        ctt.cluster_agreement(pd.Series([1, 1, 2]), pd.Series([1, 2, 2]), n_permutations=9)
