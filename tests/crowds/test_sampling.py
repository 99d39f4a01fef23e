"""Members of crowds: examples, label noise and batches. Reference: what the names say, counted."""

from __future__ import annotations

import numpy as np
import pytest

from psychlm import crowds


def test_members_differ_in_examples_and_noise_and_not_with_the_size_of_the_crowd(rng):
    members = crowds.draw_members(50, seed=3)
    assert crowds.draw_members(5, seed=3) == members[:5]
    gold = rng.integers(0, 4, 200)
    for member in members:
        examples, labels = member.examples(200), member.noisy_labels(gold, 4)
        changed = np.flatnonzero(labels != gold)
        assert len(examples) == len(set(examples)) == round(member.train_fraction * 200)
        assert len(changed) == round(member.label_noise * len(examples))
        assert set(changed) <= set(examples)
        assert labels.min() >= 0 and labels.max() < 4
    assert len({tuple(member.examples(200)) for member in members}) == 50


def test_an_epoch_shows_each_example_once_and_mixes_lengths(rng):
    lengths = rng.integers(1, 40, 500)
    for member in crowds.draw_members(4, seed=0, train_fraction=(0.3, 1.0)):
        examples = member.examples(500)
        batches = member.batches(examples, 1, 16, lengths)
        assert (np.sort(batches[batches >= 0]) == examples).all()
        longest = np.array([lengths[row[row >= 0]].max() for row in batches])
        spread = np.array([np.ptp(lengths[row[row >= 0]]) for row in batches])
        assert spread.mean() < 8 < np.ptp(lengths)  # similar lengths share a batch
        assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.3
        assert (member.batches(examples, 2, 16, lengths) != batches).any()


def test_shares_outside_0_and_1_are_refused():
    with pytest.raises(ValueError, match=r"member 1 has train_fraction=0 .* lie between 0 and 1"):
        crowds.Member(1, train_fraction=0)
    with pytest.raises(ValueError, match="at least one member"):
        crowds.draw_members(0, seed=1)
