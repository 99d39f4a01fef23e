"""Dimensionality against R's psych and mirt, scipy's bivariate normal, and simulated structure."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit

from psychlm import corpora, irt
from psychlm.irt import (
    eigenvalues,
    parallel_analysis,
    polychoric,
    rotate,
    tetrachoric,
    two_factor,
)
from psychlm.irt.dimensionality import cell_probabilities


def two_clusters(rng, n_persons=1200, slope=1.8, correlation=0.3):
    """Ten items: the first five measure one ability, the others another."""
    covariance = [[1, correlation], [correlation, 1]]
    theta = rng.multivariate_normal([0, 0], covariance, n_persons)
    linear = slope * np.repeat(theta, 5, axis=1) + np.tile(np.linspace(-1, 1, 5), 2)
    right = (rng.random(linear.shape) < expit(linear)).astype(float)
    return pd.DataFrame(right, columns=[f"{ability}{k}" for ability in "ab" for k in range(5)])


@pytest.mark.parametrize("rho", [-0.99, -0.5, 0.0, 0.3, 0.9, 0.99])
def test_quadrants_of_the_bivariate_normal_equal_scipy(rho):
    h, k = np.array([0.5, -1.5, 2.0, 1.3, -2.2]), np.array([0.2, -1.2, -1.0, 1.35, 1.0])
    ends = np.full(5, 37.0)
    cuts = [np.column_stack([-ends, each, ends]) for each in (h, k)]
    ours = cell_probabilities(np.full(5, np.arcsin(rho)), *cuts)
    both = stats.multivariate_normal.cdf(-np.c_[h, k], cov=[[1, rho], [rho, 1]])
    np.testing.assert_allclose(ours[:, 1, 1], both, atol=1e-7)
    np.testing.assert_allclose(ours.sum(axis=(1, 2)), 1, atol=1e-12)


def test_polychoric_correlations_and_their_eigenvalues_equal_lavaan_and_psych(reference_dir):
    """References: lavaan's lavCor, polycor and psych (reference/classical.py)."""
    expected = json.loads((reference_dir / "classical.json").read_text())
    ratings = corpora.lalor2018_ratings().iloc[:, :12]
    found = polychoric(ratings.iloc[:, :6]).to_numpy()
    np.testing.assert_allclose(found, expected["polychoric_lavaan"], atol=1e-6)
    np.testing.assert_allclose(found, expected["polychoric_psych"], atol=1e-4)
    assert found[0, 1] == pytest.approx(expected["polychor"], abs=1e-4)
    np.testing.assert_allclose(eigenvalues(ratings), expected["parallel_eigenvalues"], atol=1e-3)
    parallel = parallel_analysis(ratings, n_draws=20, rng=1)
    assert parallel.n_factors == expected["parallel_n"]


def smoothed(rho):
    """Raise negative eigenvalues to just above 0, as psych does by default."""
    values, vectors = np.linalg.eigh(rho)
    if values.min() >= np.finfo(float).eps:
        return rho
    raised = (vectors * np.where(values < 1e-12, 1e-10, values)) @ vectors.T
    return raised / np.sqrt(np.outer(np.diag(raised), np.diag(raised)))


def test_correlations_and_eigenvalues_equal_psych(dataset, reference_dir, read_responses):
    """psych stops its search at about 1e-4 of the interval, so four digits can agree."""
    responses, chosen = read_responses(dataset), "dataset == @dataset and correct == 0.5"
    rho = pd.read_csv(reference_dir / "irt" / "tetrachoric_rho.csv").query(chosen)
    found = tetrachoric(responses).to_numpy()
    np.testing.assert_allclose(smoothed(found)[rho.i - 1, rho.j - 1], rho.rho, atol=1e-4)
    expected = pd.read_csv(reference_dir / "irt" / "tetrachoric_eigenvalues.csv").query(chosen)
    values = np.linalg.eigvalsh(smoothed(found))[::-1]
    np.testing.assert_allclose(values, expected.sort_values("k").eigenvalue, atol=2e-4)
    np.testing.assert_allclose(eigenvalues(responses), np.linalg.eigvalsh(found)[::-1])


def test_correlations_of_cut_normals_are_recovered_with_gaps(rng):
    truth = np.array([[1, 0.6, -0.3], [0.6, 1, 0.1], [-0.3, 0.1, 1]])
    latent = rng.multivariate_normal(np.zeros(3), truth, 40_000)
    cut = pd.DataFrame((latent > [0.5, -1.0, 0.0]) * 1.0).mask(rng.random(latent.shape) < 0.3)
    np.testing.assert_allclose(tetrachoric(cut.dropna(how="all")), truth, atol=0.04)


def test_parallel_analysis_counts_the_abilities(rng):
    assert parallel_analysis(two_clusters(rng), n_draws=20, rng=1).n_factors == 2
    assert parallel_analysis(two_clusters(rng, correlation=0.999), n_draws=20, rng=1).n_factors == 1


def test_chance_is_the_largest_of_twenty_shuffles():
    x = corpora.lsat6()
    rng = np.random.default_rng(1)
    draws = [eigenvalues(x.apply(lambda item: rng.permutation(item))) for _ in range(20)]
    table = parallel_analysis(x, n_draws=20, rng=1).table
    np.testing.assert_allclose(table["chance_quantile"], np.max(draws, axis=0))


def test_the_two_factor_2pl_equals_mirt_or_is_better(reference_dir, read_responses):
    responses = read_responses("5GS_contradiction")
    responses = responses.drop(columns=responses.columns[[21, 25]])
    expected = pd.read_csv(reference_dir / "irt" / "two_factor_2PL_fit.csv").iloc[0]
    items = pd.read_csv(reference_dir / "irt" / "two_factor_2PL_items.csv").set_index("item")
    items = items.loc[responses.columns]
    found = two_factor(responses)
    assert found.converged
    assert found.n_parameters == expected["n_par"]
    assert -1e-3 < found.loglik - expected["logLik"] < 0.02
    np.testing.assert_allclose(found.sabic, expected["SABIC"], atol=0.04)
    np.testing.assert_allclose(found.items["d"], items["d"], atol=0.01)
    np.testing.assert_allclose((found.loadings**2).sum(axis=1), items["h2"], atol=0.002)
    rotated = rotate(found.loadings)
    ours, theirs = rotated.loadings.to_numpy(), items[["oblimin.F1", "oblimin.F2"]].to_numpy()
    if np.abs(ours - theirs).max() > np.abs(ours[:, ::-1] - theirs).max():
        ours = ours[:, ::-1]
    np.testing.assert_allclose(ours, theirs, atol=0.005)


def test_two_clusters_come_apart_after_rotation_and_a_second_factor_is_tested(rng):
    responses = two_clusters(rng)
    two = two_factor(responses)
    rotated = rotate(two.loadings)
    own = np.repeat([True, False], 5)
    for of_factor in (own, ~own):
        values = rotated.loadings.loc[of_factor].to_numpy()
        assert values.max(axis=1).min() > 0.5
        assert np.abs(values).min(axis=1).max() < 0.15
        assert len(set(values.argmax(axis=1))) == 1
    assert rotated.factor_correlation.iloc[0, 1] == pytest.approx(0.3, abs=0.12)
    alike = two_clusters(rng, 800, correlation=0.999)
    found, none = (
        irt.likelihood_ratio(irt.fit(answers, "2PL", standard_errors=False), factors)
        for answers, factors in ((responses, two), (alike, two_factor(alike)))
    )
    assert found.df == none.df == 9
    assert found.p < 1e-10 < none.p


def test_a_3pl_finds_what_guessing_adds(rng):
    responses = two_clusters(rng, 1000, slope=2.5)
    guessed = responses.mask(rng.random(responses.shape) < 0.25, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two, three = two_factor(guessed), two_factor(guessed, model="3PL")
    assert three.n_parameters == two.n_parameters + 10
    assert three.loglik > two.loglik + 8
    assert three.items["c"].mean() == pytest.approx(0.25, abs=0.1)


def test_what_has_no_correlations_or_factors_is_refused(rng):
    constant = pd.DataFrame({"a": [1.0, 1, 1], "b": [0.0, 1, 0]})
    apart = pd.DataFrame({"a": [1.0, 0, np.nan, np.nan], "b": [np.nan, np.nan, 0, 1]})
    responses = two_clusters(rng, 100)
    for refused, answers, options, message in (
        (tetrachoric, constant, {}, r"'a'.*drop_constant"),
        (tetrachoric, apart, {}, "never answered by the same"),
        (two_factor, responses.iloc[:, :3], {}, "at least 4 items"),
        (two_factor, responses.assign(a0=1.0), {}, "'a0'"),
        (two_factor, responses, {"model": "1PL"}, "'2PL' or '3PL'"),
    ):
        with pytest.raises(ValueError, match=message):  # FrameError is one
            refused(answers, **options)


def test_a_target_of_zeros_gives_principal_axes_and_recovers_a_known_pattern(rng):
    """The closed form of two factors, and loadings of three correlated ones with known zeros."""
    loadings = pd.DataFrame(rng.uniform(-0.8, 0.8, (12, 3)), columns=["F1", "F2", "F3"])
    two = loadings[["F1", "F2"]] + [0.5, 0]
    zeros = pd.DataFrame({"F1": np.nan, "F2": 0.0}, index=two.index)
    second = rotate(two, target=zeros).loadings["F2"].abs()
    axes = np.linalg.svd(two.to_numpy(), full_matrices=False)
    np.testing.assert_allclose(second, np.abs(axes.U[:, 1] * axes.S[1]), atol=1e-6)
    of_factor = np.arange(12)[:, None] % 3 == np.arange(3)
    known = np.where(of_factor, rng.uniform(0.4, 0.9, (12, 3)), 0)
    correlation = np.full((3, 3), 0.4) + 0.6 * np.eye(3)
    turned = pd.DataFrame(known @ np.linalg.cholesky(correlation))
    found = rotate(turned, target=pd.DataFrame(np.where(of_factor, np.nan, 0.0)))
    np.testing.assert_allclose(found.loadings, known, atol=1e-6)
    np.testing.assert_allclose(found.factor_correlation, correlation, atol=1e-6)
