"""Item clusters against brute force, scikit-learn, and Table 2 of Laverghetta et al. (2021)."""

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import silhouette_score

from psychlm import corpora, ctt, data
from psychlm.frames import FrameError


@pytest.fixture
def blocks(rng):
    """Three blocks of four items that share a hidden answer, flipped now and then."""
    hidden = rng.integers(0, 2, size=(200, 3)).repeat(4, axis=1)
    flipped = rng.random(hidden.shape) < 0.15
    return pd.DataFrame(np.where(flipped, 1 - hidden, hidden)).add_prefix("i")


def test_blocks_of_items_are_found_and_silhouettes_are_scikit_learns(blocks, rng):
    searched = ctt.cluster_items_by_restarts(blocks, rng=rng, restarts=20)
    distance = 1 - blocks.corr().to_numpy()
    np.fill_diagonal(distance, 0)
    for clusters in (ctt.cluster_items(blocks), searched):
        assert clusters.k == 3
        assert clusters.labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4
        assert clusters.labels[clusters.medoids].tolist() == [1, 2, 3]
        expected = silhouette_score(distance, clusters.labels, metric="precomputed")
        assert clusters.silhouette[3] == pytest.approx(expected, abs=1e-9)


def test_clusters_are_the_best_k_medoids_by_brute_force(blocks):
    responses = blocks.head(40)
    distance = 1 - responses.corr().to_numpy()
    np.fill_diagonal(distance, 0)
    clusters = ctt.cluster_items(responses)
    assert clusters.k == 3
    loss = distance[:, responses.columns.get_indexer(clusters.medoids)].min(axis=1).sum()
    every = combinations(range(12), 3)
    assert loss == pytest.approx(min(distance[:, list(m)].min(axis=1).sum() for m in every))


def test_items_without_correlations_or_too_few_are_refused_or_counted_as_unrelated(blocks, rng):
    responses = blocks.assign(easy=1)
    with pytest.raises(FrameError, match="'easy' do not both vary.*drop_constant"):
        ctt.cluster_items(responses)
    assert "easy" in ctt.cluster_items(responses, undefined="zero").labels
    assert "easy" in ctt.cluster_items_by_restarts(responses, rng=rng, restarts=5).labels
    with pytest.raises(FrameError, match="at least 3 items"):
        ctt.cluster_items(blocks.iloc[:, :2])
    with pytest.raises(FrameError, match="at least 4 items"):
        ctt.cluster_items_by_restarts(blocks.iloc[:, :3], rng=rng)


def test_eleven_of_fourteen_cells_of_table_2_come_out(rng):
    study = corpora.laverghetta2021()
    published = data.published("laverghetta2021.table2").set_index(["category", "population"])["r"]
    ours = {}
    for code, humans in study.phases.items():
        people = ctt.cluster_items_by_restarts(humans, rng=rng, restarts=4000).labels
        for name in ("transformer", "lstm"):
            models = study.population(name)[humans.columns]
            clusters = ctt.cluster_items_by_restarts(models, rng=rng).labels
            ours[code, name] = ctt.cluster_agreement(people, clusters).r
    equal = pd.Series(ours).round(2) == published.reindex(list(ours))
    # The other three differ however long the search: theirs are not the best by silhouette.
    different = [("MN", "transformer"), ("MN", "lstm"), ("WK", "transformer")]
    assert list(equal[~equal].index) == different


def test_agreement_is_the_correlation_of_same_cluster_indicators_over_common_pairs():
    a = pd.Series([1, 1, 2, 2, 3], index=list("vwxyz"))
    b = pd.Series([7, 7, 7, 8, 8], index=list("vwxyz"))
    same = [(a[i] == a[j], b[i] == b[j]) for i, j in combinations(a.index, 2)]
    expected = stats.pearsonr(*np.array(same, dtype=float).T)
    agreement = ctt.cluster_agreement(a, b.sample(frac=1, random_state=1))
    assert (agreement.r, agreement.p) == pytest.approx(tuple(expected))
    assert (agreement.n_items, agreement.n_pairs, agreement.reason) == (5, 10, None)
    common = ctt.cluster_agreement(a, a.drop("z"))
    assert (common.r, common.n_items, common.n_pairs) == (pytest.approx(1), 4, 6)


def test_permutation_p_of_agreement_equals_all_permutations(rng):
    a, b = pd.Series([1, 1, 1, 2, 2, 3]), pd.Series([1, 1, 2, 2, 2, 3])
    observed = ctt.cluster_agreement(a, b, n_permutations=20_000, rng=rng)
    every = [ctt.cluster_agreement(a, pd.Series(labels)).r for labels in set(permutations(b))]
    exact = np.mean(np.abs(every) >= abs(observed.r) - 1e-9)
    assert observed.p_permutation == pytest.approx(exact, abs=0.015)
