"""Inputs and networks of crowds. Reference: PyTorch's own layers, one model at a time."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from psychlm import crowds
from psychlm.crowds.networks import last_states

WORDS = [f"w{i}" for i in range(30)]


def texts_of(rng, n):
    return crowds.encode_texts([" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(n)])


def bag(own, encoded):
    """Return the mean of the words' embeddings."""
    numbers, lengths = encoded.segments[0]
    texts = zip(numbers.long(), lengths, strict=True)
    return torch.stack([own["embedding"][text[:n]].mean(0) for text, n in texts])


def lstm(own, encoded):
    """Return the last state of PyTorch's LSTM."""
    numbers, lengths = encoded.segments[0]
    layer = nn.LSTM(5, 6, batch_first=True)
    layer.weight_ih_l0.data, layer.weight_hh_l0.data = own["0.input"].T, own["0.state"].T
    layer.bias_ih_l0.data, layer.bias_hh_l0.data = own["0.bias"], torch.zeros(24)
    words, options = own["embedding"][numbers.long()], {"batch_first": True}
    packed = nn.utils.rnn.pack_padded_sequence(words, lengths, enforce_sorted=False, **options)
    return layer(packed)[1][0][0]


def linear(own, features):
    return features


def tanh(own, features):
    return torch.tanh(features @ own["layer0.weight"] + own["layer0.bias"])


def cnn(own, images):
    for i in range(2):
        convolved = nn.functional.conv2d(
            images, own[f"conv{i}.weight"], own[f"conv{i}.bias"], padding=1
        )
        images = nn.functional.max_pool2d(convolved.relu(), 2)
    return (images.flatten(1) @ own["layer0.weight"] + own["layer0.bias"]).relu()


@pytest.mark.parametrize(
    ("kind", "sizes", "layers"),
    [
        ("bag", {"size": 5}, bag),
        ("lstm", {"size": 5, "hidden": 6}, lstm),
        ("encoder", {"hidden": 4, "tanh_layers": 0}, linear),
        ("encoder", {"hidden": 4, "tanh_layers": 1}, tanh),
        ("cnn", {"hidden": 6}, cnn),
    ],
)
def test_a_crowd_computes_what_pytorchs_layers_do(kind, sizes, layers, rng):
    if kind in ("bag", "lstm"):
        inputs = texts_of(rng, 7)
    else:
        shape = (4, 8, 8) if kind == "cnn" else (6, 9)
        inputs = crowds.encode_images(rng.normal(size=shape))
    network = crowds.Network.for_inputs(kind, inputs, 3, **sizes)
    weights = crowds.initial_weights(network, [1, 2, 3])
    logits = crowds.predict_logits(network, weights, inputs)
    for m in range(3):
        own = {name: values[m] for name, values in weights.items()}
        expected = layers(own, inputs) @ own["out.weight"] + own["out.bias"]
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


ENCODED = crowds.encode_texts(["a b a", "b a b"])
NOISY = partial(crowds.train, members=[crowds.Member(1, label_noise=0.5)])


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (crowds.train, ("nli-bag", ENCODED, [0, 1]), "reads pairs of texts, .* are single texts"),
        (crowds.train, ("mlp", ENCODED, [0, 1]), "reads images or features"),
        (crowds.train, ("tree", ENCODED, [0, 1]), "unknown network 'tree'"),
        (crowds.train, ("bag", ENCODED, [0, 1, 1]), "targets of the shape"),
        (crowds.train, ("bag", ENCODED, [0, -1]), "integers from 0 to 1; these run from -1 to 0"),
        (crowds.train, ("bag", ENCODED, [[0.5, 0.2], [0, 1]]), "sums to 1"),
        (NOISY, ("bag", ENCODED, [[0.5, 0.5], [0, 1]]), "label_noise needs classes"),
        (crowds.encode_texts, (["a", None],), r"texts \[1\] .* are not strings"),
        (crowds.encode_texts, (["a"], ["b", "c"]), r"are needed, and these have \[1, 2\]"),
        (crowds.pair_features, (["a", "b"], ["a"]), "2 premises and 1 hypotheses are no pairs"),
        (crowds.encode_images, ([[1.0, np.nan]],), "not finite"),
        (crowds.Member, (1, 0), "member 1 has train_fraction=0 .* lie between 0 and 1"),
        (crowds.draw_members, (0, 1), "at least one member"),
    ],
)
def test_what_no_crowd_can_read_is_refused(function, arguments, says):
    with pytest.raises(ValueError, match=says):
        function(*arguments)
