"""Simulated responses against the model's probabilities."""

import numpy as np
import pytest
from scipy.special import expit

from psychlm import simulate


def test_responses_have_the_probabilities_of_the_3pl(rng):
    items = simulate.items(4, rng, "3PL")
    drawn = simulate.responses(np.full(40_000, 0.5), items, rng, missing=0.1)
    expected = items["c"] + (1 - items["c"]) * expit(items["a"] * (0.5 - items["b"]))
    np.testing.assert_allclose(drawn.mean(), expected, atol=0.015)
    assert drawn.isna().to_numpy().mean() == pytest.approx(0.1, abs=0.01)


def test_an_upper_asymptote_is_refused_rather_than_ignored(rng):
    items = simulate.items(4, rng)
    assert len(simulate.responses([0.0], items.assign(u=1.0), rng)) == 1
    with pytest.raises(ValueError, match="upper asymptotes u below 1"):
        simulate.responses([0.0], items.assign(u=0.6), rng)
