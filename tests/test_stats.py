"""Intervals and correlations against scipy, statsmodels and textbook formulas."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from psychlm import stats


@pytest.fixture
def responses(rng):
    ability = rng.normal(size=(40, 1))
    right = rng.random((40, 6)) < 1 / (1 + np.exp(-ability - np.linspace(-1, 1, 6)))
    return pd.DataFrame(right.astype(float), columns=list("abcdef"))


def overall(values):
    return values.mean(axis=-1).mean(axis=-1)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_bootstrap_of_a_mean_over_persons_equals_scipy_on_their_scores(method, responses):
    ours = stats.bootstrap(
        overall, responses, n_boot=999, method=method, rng=np.random.default_rng(1)
    )
    scores = responses.mean(axis=1).to_numpy()
    options = {"n_resamples": 999, "method": method, "batch": 2**22 // responses.size}
    theirs = scipy_stats.bootstrap((scores,), np.mean, rng=np.random.default_rng(1), **options)
    theirs = theirs.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.estimate == pytest.approx(scores.mean())
    assert (ours.level, ours.n_boot, ours.n_undefined) == (0.95, 999, 0)


def test_bootstrap_resamples_two_populations_independently(responses, rng):
    models = pd.DataFrame(rng.integers(0, 2, size=(25, 6)).astype(float))
    found = stats.bootstrap(
        lambda people, machines: overall(people) - overall(machines), responses, models, rng=rng
    )
    people, machines = responses.mean(axis=1), models.mean(axis=1)
    error = np.sqrt(people.var(ddof=0) / 40 + machines.var(ddof=0) / 25)
    assert found.estimate == pytest.approx(people.mean() - machines.mean())
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_undefined_resamples_are_counted_and_left_out(method):
    responses = pd.DataFrame({"a": [0.0, 0, 0, 1, 1, 1], "b": [0.0, 1, 0, 1, 0, 1]})

    def correlation_of_a_and_b(values):
        return stats.spearman_many(values[..., 0], values[..., 1])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stats.bootstrap(
            correlation_of_a_and_b, responses, method=method, rng=np.random.default_rng(1)
        )
    assert found.n_undefined == pytest.approx(2000 * 4 / 2**6, rel=0.3)  # either column all alike
    assert found.low < found.estimate < found.high


def test_a_bootstrap_pairs_columns_by_their_labels_and_says_why_it_cannot_be(responses):
    def agreement(first, second):
        return stats.spearman_many(first.mean(axis=-2), second.mean(axis=-2))

    def interval(*frames, statistic=agreement):
        rng = np.random.default_rng(1)
        return stats.bootstrap(statistic, *frames, rng=rng, n_boot=50)

    assert interval(responses, responses[list("fedcba")]) == interval(responses, responses)
    with pytest.raises(ValueError, match="are in one of the frames only"):
        interval(responses, responses[list("abcde")])
    with pytest.raises(ValueError, match="at least two"):
        interval(responses.iloc[:1], statistic=overall)
    with pytest.raises(ValueError, match="undefined"):
        interval(responses, statistic=lambda values: np.full(values.shape[:-2], np.nan))


def test_samples_of_whole_groups_have_the_standard_error_of_group_means(rng):
    """Closed form: the mean of g equal groups, sd of the group means over sqrt(g)."""
    groups = np.repeat([3, 1, 2, 0, 4], 4)[rng.permutation(20)]
    values = rng.normal(size=5)[groups] + 0.1 * rng.normal(size=20)
    drawn = [values[stats.draw_groups(groups, rng)].mean() for _ in range(4000)]
    means = pd.Series(values).groupby(groups).mean()
    assert np.std(drawn) == pytest.approx(means.std(ddof=0) / np.sqrt(5), rel=0.05)


@pytest.mark.parametrize("method", ["spearman", "pearson"])
def test_correlation_and_p_equal_scipy_on_complete_pairs(method, rng):
    x = rng.normal(size=30).round(1)
    y = x + rng.normal(size=30).round(1)
    x[3], y[5] = np.nan, np.nan
    found = stats.correlation(x, y, method)
    keep = ~np.isnan(x + y)
    expected = getattr(scipy_stats, f"{method}r")(x[keep], y[keep])
    assert (found.r, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert (found.n, found.n_missing) == (28, 2)
    if method == "pearson":
        interval = expected.confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_spearman_intervals_cover_the_truth_about_as_often_as_they_say(rng):
    normal_r = 0.6
    truth = 6 / np.pi * np.arcsin(normal_r / 2)  # Spearman's rho of a bivariate normal
    draws = rng.multivariate_normal([0, 0], [[1, normal_r], [normal_r, 1]], size=(1000, 40))
    found = [stats.correlation(draw[:, 0], draw[:, 1]) for draw in draws]
    covered = np.mean([c.low <= truth <= c.high for c in found])
    assert covered == pytest.approx(0.95, abs=0.02)


def test_correlations_of_few_or_constant_pairs_have_the_intervals_they_can_have():
    assert stats.correlation([1, 2, 3, 4], [2, 4, 6, 8]).low == pytest.approx(1)
    tiny = stats.correlation([1, 2, 3], [2, 1, 3])
    assert tiny.r == pytest.approx(0.5)
    assert np.isnan(tiny.low)
    with pytest.warns(RuntimeWarning, match="y: constant, so the correlation is undefined"):
        found = stats.correlation([1, 2, 3, np.nan], [5, 5, 5, 6], "pearson")
    assert np.isnan([found.r, found.p, found.low, found.high]).all()
    assert (found.n, found.n_missing) == (3, 1)


LABELLED = pd.Series({"a": 1, "b": 2, "c": 3, "d": 5})


@pytest.mark.parametrize(
    ("x", "y", "method", "message"),
    [
        ([1, 2, 3], [1, 2], "pearson", "one length"),
        ([1, 2, np.nan], [1, 2, 3], "pearson", "2 of 3 are complete"),
        ([1, 2, 3], [1, 2, 4], "kendall", "'spearman' or 'pearson'"),
        (LABELLED, LABELLED.drop("d"), "spearman", r"same labels \(\['d'"),
    ],
)
def test_bad_pairs_get_an_error_that_says_why(x, y, method, message):
    assert stats.correlation(LABELLED, LABELLED.iloc[::-1]).r == pytest.approx(1)
    with pytest.raises(ValueError, match=message):
        stats.correlation(x, y, method)


def test_spearman_of_many_rows_equals_scipy_row_by_row(rng):
    X, y = rng.integers(0, 6, size=(200, 15)), rng.integers(0, 4, size=15)
    expected = [scipy_stats.spearmanr(row, y).statistic for row in X]
    np.testing.assert_allclose(stats.spearman_many(X, y), expected, atol=1e-12)
    found = stats.spearman_many([[1, 1, 1], [1, np.nan, 2], [1, 2, 3]], [1, 2, 3])
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(stats.holm, "holm"), (stats.benjamini_hochberg, "fdr_bh")]
)
def test_adjusted_p_values_equal_statsmodels_and_leave_nan_alone(ours, theirs, rng):
    p = pd.Series(rng.random(12) ** 3, index=list("abcdefghijkl"), name="p")
    expected = multipletests(p, method=theirs)[1]
    found = ours(pd.concat([p, pd.Series({"untested": np.nan})]))
    np.testing.assert_allclose(found, [*expected, np.nan])
    with pytest.raises(ValueError, match="between 0 and 1"):
        ours([0.2, 1.2])


@pytest.mark.needs_r
@given(st.integers(3, 9), st.integers(0, 2**32 - 1))
def test_rank_correlations_of_few_pairs_have_the_exact_p_of_r(n, seed) -> None:
    """R's ``cor.test(method = "spearman", exact = TRUE)``; 1/3 for three pairs in one order."""
    from psychlm.reading_times import mgcv

    x, y = np.random.default_rng(seed).normal(size=(2, n))
    with mgcv.in_r() as robjects:
        vectors = [robjects.FloatVector(values) for values in (x, y)]
        test = robjects.r("function(x, y) cor.test(x, y, method = 'spearman')$p.value")
        expected = test(*vectors)[0]
    assert stats.correlation(x, y).p == pytest.approx(expected)
    assert stats.correlation([1, 2, 3], [1, 2, 3]).p == pytest.approx(1 / 3)


def test_what_is_no_coverage_or_infinite_is_refused(rng):
    x = [1.0, 2.0, 3.0, 5.0]
    for level in (95, 1, 0, np.nan):
        with pytest.raises(ValueError, match="level is a coverage"):
            stats.correlation(x, x[::-1], level=level)
        with pytest.raises(ValueError, match="level is a coverage"):
            stats.bootstrap(np.mean, pd.DataFrame({"x": x}), rng=rng, level=level)
    with pytest.raises(ValueError, match="infinite"):
        stats.correlation(x, [1, 2, np.inf, 4], "pearson")
    assert stats.correlation(x, [1, 2, 3, np.inf]).r == pytest.approx(1)
