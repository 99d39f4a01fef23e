"""Inputs and networks of crowds. Reference: PyTorch's own layers, one model at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from psychlm import crowds
from psychlm.crowds.networks import last_states
from psychlm.frames import FrameError

WORDS = [f"w{i}" for i in range(30)]


def random_texts(rng, n, longest=9):
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(n)]


def test_a_crowd_reads_texts_as_pytorchs_layers_do(rng):
    encoded = crowds.encode_texts(random_texts(rng, 7))
    numbers, lengths = encoded.segments[0]
    network = crowds.Network.for_inputs("lstm", encoded, 2, size=5, hidden=6)
    weights = crowds.initial_weights(network, [1, 2])
    logits = crowds.predict_logits(network, weights, encoded)
    bag = crowds.Network.for_inputs("bag", encoded, 2, size=5)
    bag_weights = crowds.initial_weights(bag, [1, 2])
    bag_logits = crowds.predict_logits(bag, bag_weights, encoded)
    for m in range(2):
        lstm = nn.LSTM(5, 6, batch_first=True)
        lstm.weight_ih_l0.data = weights["0.input"][m].T
        lstm.weight_hh_l0.data = weights["0.state"][m].T
        lstm.bias_ih_l0.data, lstm.bias_hh_l0.data = weights["0.bias"][m], torch.zeros(24)
        words = weights["embedding"][m][numbers.long()]
        options = {"batch_first": True, "enforce_sorted": False}
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths, **options)
        expected = lstm(packed)[1][0][0] @ weights["out.weight"][m] + weights["out.bias"][m]
        torch.testing.assert_close(logits[m], expected)
        for row, (text, n) in enumerate(zip(numbers, lengths, strict=True)):
            mean = bag_weights["embedding"][m][text[:n].long()].mean(0)
            expected = mean @ bag_weights["out.weight"][m] + bag_weights["out.bias"][m]
            torch.testing.assert_close(bag_logits[m, row], expected)


@pytest.mark.parametrize("tanh_layers", [0, 1])
def test_heads_on_features_are_linear_layers_and_tanh(rng, tanh_layers):
    features = crowds.encode_images(rng.normal(size=(6, 9)))
    sizes = {"hidden": 4, "tanh_layers": tanh_layers}
    network = crowds.Network.for_inputs("encoder", features, 3, **sizes)
    weights = crowds.initial_weights(network, [1, 2])
    logits = crowds.predict_logits(network, weights, features)
    for m in range(2):
        hidden = features
        for name in ["layer0"][:tanh_layers]:
            weight, bias = weights[f"{name}.weight"][m], weights[f"{name}.bias"][m]
            hidden = torch.tanh(nn.functional.linear(hidden, weight.T, bias))
        out = nn.functional.linear(hidden, weights["out.weight"][m].T, weights["out.bias"][m])
        torch.testing.assert_close(logits[m], out)


def test_a_crowd_reads_images_as_pytorchs_layers_do(rng):
    images = crowds.encode_images(rng.normal(size=(4, 8, 8)))
    network = crowds.Network.for_inputs("cnn", images, 3, hidden=6)
    weights = crowds.initial_weights(network, [1, 2, 3])
    logits = crowds.predict_logits(network, weights, images)
    for m in range(3):
        x = images
        for i in range(2):
            kernel, bias = weights[f"conv{i}.weight"][m], weights[f"conv{i}.bias"][m]
            x = nn.functional.max_pool2d(nn.functional.conv2d(x, kernel, bias, padding=1).relu(), 2)
        x = (x.flatten(1) @ weights["layer0.weight"][m] + weights["layer0.bias"][m]).relu()
        expected = x @ weights["out.weight"][m] + weights["out.bias"][m]
        torch.testing.assert_close(logits[m], expected)


def test_gradients_of_the_recurrence_are_those_of_pytorchs_lstm(rng):
    lstms = [nn.LSTM(5, 7, batch_first=True).double() for _ in range(3)]
    table = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    places, lengths = torch.randint(0, 20, (3, 4, 6)), torch.randint(0, 7, (3, 4))
    lengths[0, 0] = 0  # an empty text
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")
    with torch.no_grad():
        for lstm in lstms:
            lstm.bias_hh_l0.zero_()  # ours have one bias
    stacked = [torch.stack([getattr(lstm, name).t() for lstm in lstms]) for name in names]
    stacked = [values.detach().requires_grad_() for values in stacked]
    direction = torch.randn(3, 4, 7, dtype=torch.float64)
    states = last_states(table, places, lengths, *stacked)
    (states * direction).sum().backward()
    their_table = table.detach().clone().requires_grad_()
    each = [lstm(their_table[rows])[0] for lstm, rows in zip(lstms, places, strict=True)]
    each = torch.cat([torch.zeros(3, 4, 1, 7), torch.stack(each)], dim=2)
    expected = each.gather(2, lengths[..., None, None].expand(-1, -1, 1, 7))[:, :, 0]
    (expected * direction).sum().backward()
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(table.grad, their_table.grad)
    theirs = [[getattr(lstm, name).grad.t() for lstm in lstms] for name in names]
    for ours, values in zip(stacked, theirs, strict=True):
        torch.testing.assert_close(ours.grad, torch.stack(values))


def test_what_encoding_loses_is_counted():
    vocabulary = crowds.encode_texts(["a b a b c", "a d"]).vocabulary
    assert vocabulary.words == ("<pad>", "<unk>", "a", "b")
    encoded = crowds.encode_texts(
        ["A b, c!", "", "a a a a a a"], vocabulary=vocabulary, max_tokens=5
    )
    numbers, lengths = encoded.segments[0]
    assert lengths.tolist() == [5, 0, 5]
    assert (encoded.n_unknown, encoded.n_truncated) == (3, 1)
    assert numbers.tolist() == [[2, 3, 1, 1, 1], [0] * 5, [2] * 5]
    assert encoded[[2, 0]].segments[0][1].tolist() == [5, 5]


def test_inputs_that_no_network_can_read_are_refused():
    encoded = crowds.encode_texts(["a b a", "b a b"])
    for kind, message in (
        ("nli-bag", "reads pairs of texts, and the inputs are single texts"),
        ("mlp", "reads images or features"),
        ("tree", "unknown network 'tree'"),
    ):
        with pytest.raises(ValueError, match=message):
            crowds.train(kind, encoded, [0, 1])
    for columns, message in (
        ((["a", None],), r"texts \[1\] .* are not strings"),
        ((["a"], ["b", "c"]), r"equal length are needed, and these have \[1, 2\]"),
    ):
        with pytest.raises(FrameError, match=message):
            crowds.encode_texts(*columns)
    with pytest.raises(FrameError, match="not finite"):
        crowds.encode_images([[1.0, np.nan]])
