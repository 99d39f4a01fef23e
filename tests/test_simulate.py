"""Simulated responses against the models' definitions, written out."""

import numpy as np
import pytest
from scipy.special import expit

from psychlm import simulate


@pytest.mark.parametrize("model", ["3PL", "4PL", "graded", "gpcm"])
def test_responses_have_the_probabilities_of_every_model(model, rng):
    items = simulate.items(4, rng, model)
    drawn = simulate.responses(np.full(40_000, 0.5), items, rng, model=model, missing=0.1)
    assert drawn.isna().to_numpy().mean() == pytest.approx(0.1, abs=0.01)
    for name, row in items.iterrows():
        z = row["a"] * (0.5 - row.filter(regex="^b"))
        if model == "graded":
            expected = -np.diff([1, *expit(z), 0])
        elif model == "gpcm":
            weight = np.exp(np.cumsum([0, *z]))
            expected = weight / weight.sum()
        else:
            right = row["c"] + (row.get("u", 1) - row["c"]) * expit(z.iloc[0])
            expected = np.array([1 - right, right])
        shares = drawn[name].value_counts(normalize=True).reindex(range(len(expected)))
        np.testing.assert_allclose(shares, expected, atol=0.015)
