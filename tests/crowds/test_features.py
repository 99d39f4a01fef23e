"""Features of a frozen encoder. Reference: the equations, written as loops."""

import numpy as np
import pytest

from psychlm import crowds
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
