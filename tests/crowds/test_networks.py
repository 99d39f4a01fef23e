"""Inputs and networks of crowds. Reference: PyTorch's own layers, one model at a time."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from psychlm import crowds

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
