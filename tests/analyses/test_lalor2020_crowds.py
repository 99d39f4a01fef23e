"""Tasks of artificial crowds. References: the rule of the parts, over generated pairs; PCA of
scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from analyses import lalor2020_crowds as tasks
from psychlm import data


def pairs(n_premises: int) -> pd.DataFrame:
    premise = np.repeat([f"premise {i}" for i in range(n_premises)], 3)
    return pd.DataFrame({"item_id": [f"pair {i}" for i in range(len(premise))], "premise": premise})


@given(n_seen=st.integers(0, 5), n_left=st.integers(281, 400), seed=st.integers(0, 99))
def test_no_premise_is_in_two_parts_and_none_that_people_saw(n_seen, n_left, seed) -> None:
    pool = pairs(n_seen + n_left)
    people_saw = pool["item_id"].iloc[: 3 * n_seen : 3]  # one pair of each of these premises
    parts = tasks.snli_parts(pool, people_saw, np.random.default_rng(seed))
    premises = [set(part["premise"]) for part in parts]
    assert [len(names) for names in premises] == [n_left - 280, 70, 210]
    assert len(set.union(*premises, set(pool["premise"].iloc[: 3 * n_seen]))) == n_seen + n_left


def test_too_few_premises_are_an_error_that_says_how_many_are_needed() -> None:
    with pytest.raises(ValueError, match=r"279 premises .* 280 .* add another file"):
        tasks.snli_parts(pairs(280), ["pair 0"], np.random.default_rng(0))


def test_the_projection_is_scikit_learns_whitened_pca_of_each_block(rng):
    features = rng.normal(size=(80, 12)) @ rng.normal(size=(12, 12))
    affine = tasks.fit_projection(features, (2, 3), width=5)
    found = features @ affine[:-1] + affine[-1]
    blocks = [PCA(2, whiten=True, random_state=0).fit_transform(features[:, :5])]
    blocks.append(PCA(3, whiten=True, random_state=0).fit_transform(features[:, 5:10]))
    rest = features[:, 10:]
    expected = np.hstack([*blocks, (rest - rest.mean(0)) / rest.std(0)])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("task", ["snli", "sst"])
def test_item_features_are_numbers_of_the_items(task):
    items, features = tasks.item_features(task)
    assert len(items) == len(features)
    assert items["item_id"].is_unique
    assert not {"prompt", "hypothesis"} & set(items.columns)
    try:
        texts = tasks.task_texts(task)
    except data.DataMissingError as missing:
        pytest.skip(str(missing))
    columns = ["item_id", *items.columns.drop(["item_id", "part"])]
    assert (texts[columns].to_numpy() == items[columns].to_numpy()).all()


def test_texts_that_are_not_those_of_the_stored_features_are_no_missing_texts(monkeypatch):
    """Other items under the stored features were once taken for absent wording, without a word."""
    items, _ = tasks.item_features("sst")
    other = items.assign(prompt="a film", item_id=[f"other {i}" for i in range(len(items))])
    monkeypatch.setattr(tasks, "task_texts", lambda task: other)
    monkeypatch.setattr(tasks, "task_features", lambda texts: np.zeros((len(texts), 384)))
    with pytest.raises(data.DataError, match="are not those of the stored features"):
        tasks.recompute(["SST"], 5)
