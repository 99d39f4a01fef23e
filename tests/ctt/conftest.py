import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def responses(rng):
    """60 persons x 9 items that depend on one ability."""
    ability, difficulty = rng.normal(size=(60, 1)), np.linspace(-1.5, 1.5, 9)
    right = rng.random((60, 9)) < 1 / (1 + np.exp(-1.5 * (ability - difficulty)))
    return pd.DataFrame(right.astype(float), columns=[f"q{i}" for i in range(1, 10)])


@pytest.fixture
def incomplete(responses, rng):
    """The same responses, a fifth of them not asked."""
    return responses.mask(rng.random(responses.shape) < 0.2)
