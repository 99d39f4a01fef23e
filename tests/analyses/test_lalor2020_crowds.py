"""Parts of SNLI for artificial crowds. Reference: the rule itself, over generated pairs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses import lalor2020_crowds


def pairs(n_premises: int) -> pd.DataFrame:
    premise = np.repeat([f"premise {i}" for i in range(n_premises)], 3)
    return pd.DataFrame({"item_id": [f"pair {i}" for i in range(len(premise))], "premise": premise})


@given(n_seen=st.integers(0, 5), n_left=st.integers(281, 400), seed=st.integers(0, 99))
def test_no_premise_is_in_two_parts_and_none_that_people_saw(n_seen, n_left, seed) -> None:
    pool = pairs(n_seen + n_left)
    people_saw = pool["item_id"].iloc[: 3 * n_seen : 3]  # one pair of each of these premises
    parts = lalor2020_crowds.snli_parts(pool, people_saw, np.random.default_rng(seed))
    premises = [set(part["premise"]) for part in parts]
    assert [len(names) for names in premises] == [n_left - 280, 70, 210]
    assert len(set.union(*premises, set(pool["premise"].iloc[: 3 * n_seen]))) == n_seen + n_left


def test_too_few_premises_are_an_error_that_says_how_many_are_needed() -> None:
    with pytest.raises(ValueError, match=r"279 premises .* 280 .* add another file"):
        lalor2020_crowds.snli_parts(pairs(280), ["pair 0"], np.random.default_rng(0))
