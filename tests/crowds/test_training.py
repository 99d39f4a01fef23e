"""Members of crowds, and many small models trained as one. References: what the names say, counted;
each model alone; PyTorch's optimisers."""

import numpy as np
import pytest
import torch
from torch import nn

from psychlm import crowds
from psychlm.frames import FrameError

WORDS = [f"w{i}" for i in range(30)]
KINDS = ("bag", "lstm", "nli-bag", "nli-lstm", "encoder", "mlp", "cnn")


def problem(kind, rng, n=60):
    """Return inputs, classes and held-out items of any kind."""
    gold = rng.integers(0, 3, n)
    if kind in ("mlp", "cnn"):
        images = rng.normal(size=(n, 8, 8)) + gold[:, None, None] * np.eye(8)
        inputs = crowds.encode_images(images)
    elif kind == "encoder":
        inputs = crowds.encode_images(rng.normal(size=(n, 5)) + np.eye(3, 5)[gold])
    else:
        texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(2 * n)]
        columns = [texts[:n]] if kind.startswith("nli-") else []
        columns += [[f"{t} label{k}" for t, k in zip(texts[n:], gold, strict=True)]]
        inputs = crowds.encode_texts(*columns)
    return inputs[: n - 20], gold[: n - 20], (inputs[n - 20 :], gold[n - 20 :])


def largest_difference(one, many, member):
    """Return how far the weights of a model are from those of a member."""
    return max(
        float((one.weights[k][0] - many.weights[k][member]).abs().max()) for k in many.weights
    )


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_trained_alone_is_the_same_as_in_the_crowd(kind, rng):
    inputs, gold, development = problem(kind, rng)
    members = crowds.draw_members(6, seed=4)
    options = {"development": development, "epochs": 6, "patience": 2, "batch_size": 8}
    many = crowds.train(kind, inputs, gold, members=members, **options)
    # Members stop at different epochs; otherwise the test would show little.
    assert many.history.groupby("member")["epoch"].max().nunique() > 1
    responses = many.responses(*development)
    for i in (0, 3, 5):
        alone = crowds.train(kind, inputs, gold, members=[members[i]], **options)
        assert largest_difference(alone, many, i) < 1e-4
        assert alone.best_epoch[0] == many.best_epoch[i]
        assert (alone.responses(*development).iloc[0] == responses.iloc[i]).all()


def test_training_is_that_of_pytorchs_optimisers_on_one_model(rng):
    inputs, gold, _ = problem("bag", rng)
    members = crowds.draw_members(3, seed=1, train_fraction=(0.5, 1), label_noise=0.2)
    options = {"epochs": 4, "batch_size": 8, "learning_rate": 0.05}
    many = crowds.train("bag", inputs, gold, members=members, **options)
    start = crowds.initial_weights(many.network, [members[1].seed])
    bag = nn.EmbeddingBag.from_pretrained(
        start["embedding"][0], freeze=False, mode="mean", sparse=True, padding_idx=0
    )
    linear = nn.Linear(32, 3)
    linear.weight.data = start["out.weight"][0].T.contiguous()
    linear.bias.data = start["out.bias"][0]
    lazy = torch.optim.SparseAdam(bag.parameters(), lr=0.05)
    dense = torch.optim.Adam(linear.parameters(), lr=0.05)
    examples = members[1].examples(len(inputs))
    labels = torch.from_numpy(members[1].noisy_labels(gold, 3))
    for epoch in range(1, 5):
        for batch in members[1].batches(examples, epoch, 8):
            rows = torch.from_numpy(batch[batch >= 0])
            logits = linear(bag(inputs.segments[0][0][rows].long()))
            loss = nn.functional.cross_entropy(logits, labels[rows])
            lazy.zero_grad(), dense.zero_grad()
            loss.backward()
            lazy.step(), dense.step()
    theirs = {"embedding": bag.weight.data, "out.weight": linear.weight.data.T}
    for name, expected in theirs.items():
        torch.testing.assert_close(many.weights[name][1], expected, atol=1e-4, rtol=0)


def test_stopped_members_leave_the_stack_and_keep_their_best_weights(rng):
    inputs, gold, development = problem("bag", rng)
    sizes = []
    options = {"members": crowds.draw_members(8, seed=2), "development": development}
    options |= {"epochs": 12, "patience": 1, "learning_rate": 0.05}

    def count(epoch, state):
        assert state.log_probabilities().shape == (len(state.members), 40, 3)
        sizes.append(len(state.members))

    trained = crowds.train("bag", inputs, gold, **options, epoch_callback=count)
    assert sizes[0] == 8 and sizes[-1] < 8
    accuracy = trained.history.pivot(index="epoch", columns="member", values="development_accuracy")
    reached = trained.responses(*development).mean(axis=1).to_numpy()
    np.testing.assert_allclose(reached, accuracy.max())
    assert (trained.best_epoch == accuracy.idxmax()).all()


def test_a_callback_chooses_examples_of_each_member_whatever_the_order_of_the_stack(rng):
    inputs, gold, _ = problem("bag", rng)
    members = crowds.draw_members(4, seed=5, train_fraction=(0.4, 1.0), label_noise=0)
    wanted = rng.random((4, 40)) < np.array([0.1, 0.9, 0.3, 0.6])[:, None]
    plan = crowds.EpochPlan(examples=wanted)
    options = {"members": members, "epochs": 2, "batch_size": 4}
    trained = crowds.train("bag", inputs, gold, **options, epoch_callback=lambda *_: plan)
    expected = [wanted[i][member.examples(40)].sum() for i, member in enumerate(members)]
    for _, epoch in trained.history.groupby("epoch"):
        assert epoch.sort_values("member")["n_examples"].tolist() == expected
    plan = crowds.EpochPlan(examples=wanted[:3])
    with pytest.raises(ValueError, match=r"examples of the shape \(3, 40\) for 4 members"):
        crowds.train("bag", inputs, gold, **options, epoch_callback=lambda *_: plan)
    plan = crowds.EpochPlan(examples=np.zeros(40, bool))  # nothing to learn from
    trained = crowds.train("bag", inputs, gold, **options, epoch_callback=lambda *_: plan)
    initial = crowds.initial_weights(trained.network, [member.seed for member in members])
    assert all((trained.weights[name] == value).all() for name, value in initial.items())


def test_losses_are_cross_entropy_or_squared_error_of_soft_labels(rng):
    inputs, gold, _ = problem("mlp", rng)
    soft = rng.dirichlet(np.ones(3), len(gold)).astype(np.float32)
    network = crowds.Network.for_inputs("mlp", inputs, 3)
    weights = crowds.initial_weights(network, [7])
    probability = crowds.predict_logits(network, weights, inputs)[0].softmax(1)
    aims = torch.from_numpy(soft)
    expected = {
        "squared-error": (probability - aims).square().sum(1).mean(),
        "cross-entropy": -(aims * probability.log()).sum(1).mean(),
    }
    options = {"members": [crowds.Member(7)], "epochs": 1, "batch_size": len(gold)}
    for loss, value in expected.items():
        trained = crowds.train(network, inputs, soft, **options, loss=loss)
        assert trained.history["loss"][0] == pytest.approx(float(value), rel=1e-5)
    hard = crowds.train(network, inputs, gold, **options)
    one_hot = crowds.train(network, inputs, np.eye(3)[gold], **options)
    assert largest_difference(hard, one_hot, 0) < 1e-6


def test_a_diverged_member_is_marked_and_does_not_affect_the_others(rng):
    inputs, gold, development = problem("mlp", rng)
    members = crowds.draw_members(4, seed=6, train_fraction=0.5, label_noise=0)
    own = members[2].examples(40)
    spoiled = next(i for i in own if not any(i in members[k].examples(40) for k in (0, 1, 3)))
    inputs = inputs.clone()
    inputs[spoiled] = torch.nan  # an image that only member 2 trains on
    options = {"epochs": 5, "batch_size": 8}
    trained = crowds.train("mlp", inputs, gold, members=members, **options)
    assert trained.diverged.tolist() == [False, False, True, False]
    responses = trained.responses(*development)
    assert responses.isna().all(axis=1).tolist() == trained.diverged.tolist()
    assert np.isnan(trained.log_probabilities(development[0])[2]).all()
    alone = crowds.train("mlp", inputs, gold, members=[members[1]], **options)
    assert largest_difference(alone, trained, 1) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_epochs": 2}, r"\['n_epochs'\] are no arguments"),
        ({"hidden": 2}, r"\['hidden'\] are no arguments"),
        ({"loss": "cross_entropy"}, "loss='cross_entropy' should be one of"),
        ({"patience": 0}, "patience is 0; it must be 1 or more"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_options_without_effect_or_sense_are_refused(options, message, rng):
    inputs, gold, _ = problem("encoder", rng)
    network = crowds.Network("encoder", 3, shape=tuple(inputs.shape[1:]))
    with pytest.raises((TypeError, ValueError), match=message):
        crowds.train(network, inputs, gold, **{"epochs": 1} | options)
    with pytest.raises((TypeError, ValueError), match=message):
        crowds.train_crowd(network, inputs, gold, inputs, gold, **{"n_models": 1} | options)
    with pytest.raises(ValueError, match="no tanh layers"):
        crowds.Network("mlp", 3, shape=(4,), tanh_layers=2)
    with pytest.raises(ValueError, match="hidden=0 units; give 1 or more"):
        crowds.Network("mlp", 3, shape=(4,), hidden=0)
    with pytest.raises(ValueError, match="number of members is 0; it must be 1 or more"):
        crowds.train(network, inputs, gold, members=[])


def test_texts_with_the_numbers_of_another_vocabulary_are_refused():
    texts, gold = crowds.encode_texts(["good film", "bad film"] * 4, min_count=1), [1, 0] * 4
    other, answers = crowds.encode_texts(["good good", "good bad"], min_count=1), [1, 0]
    assert other.vocabulary != texts.vocabulary
    options = {"epochs": 1, "device": "cpu"}
    for ask in (
        lambda: crowds.train("bag", texts, gold, **options).responses(other, answers),
        lambda: crowds.train("bag", texts, gold, development=(other, answers), **options),
        lambda: crowds.train_crowd("bag", texts, gold, other, answers, n_models=2, **options),
    ):
        with pytest.raises(FrameError, match="another vocabulary"):
            ask()
