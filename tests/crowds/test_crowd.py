"""Many small models trained as one. References: PyTorch's own layers and optimisers, one model at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from psychlm import crowds as crowd
from psychlm import irt, simulate
from psychlm.crowds.members import batches_of_epoch
from psychlm.frames import FrameError

WORDS = [f"w{i}" for i in range(30)]
TEXT_KINDS, PAIR_KINDS, IMAGE_KINDS = ("bag", "lstm"), ("nli-bag", "nli-lstm"), ("mlp", "cnn")


def texts_of(rng, n, longest=9):
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(n)]


def problem(kind, rng, n=60):
    """Return inputs, classes and held-out items of any kind."""
    gold = rng.integers(0, 3, n)
    if kind in IMAGE_KINDS:
        images = rng.normal(size=(n, 8, 8)) + gold[:, None, None] * np.eye(8)
        inputs = crowd.encode_images(images)
        return inputs[: n - 20], gold[: n - 20], (inputs[n - 20 :], gold[n - 20 :])
    texts = [f"{text} label{label}" for text, label in zip(texts_of(rng, n), gold, strict=True)]
    inputs = (
        crowd.encode_pairs(texts_of(rng, n), texts)
        if kind in PAIR_KINDS
        else crowd.encode_texts(texts)
    )
    return (
        inputs.take(np.arange(n - 20)),
        gold[: n - 20],
        (inputs.take(np.arange(n - 20, n)), gold[n - 20 :]),
    )


def farthest(one, many, member):
    return max(
        float((one.weights[name][0] - many.weights[name][member]).abs().max())
        for name in many.weights
    )


@pytest.mark.parametrize("kind", TEXT_KINDS + PAIR_KINDS + IMAGE_KINDS)
def test_a_member_trained_alone_is_the_same_as_in_the_crowd(kind, rng):
    inputs, gold, development = problem(kind, rng)
    members = crowd.draw_members(6, seed=4)
    options = {"development": development, "epochs": 6, "patience": 2, "batch_size": 8}
    many = crowd.train(kind, inputs, gold, members=members, **options)
    stopped_at = many.history.groupby("member")["epoch"].max()
    assert stopped_at.nunique() > 1, (
        "members should stop at different epochs, or the test shows little"
    )
    answers = crowd.respond(many, development[0], development[1])
    for i in (0, 3, 5):
        alone = crowd.train(kind, inputs, gold, members=[members[i]], **options)
        assert farthest(alone, many, i) < 1e-4
        assert alone.best_epoch[0] == many.best_epoch[i]
        assert (crowd.respond(alone, *development).iloc[0] == answers.iloc[i]).all()


def test_the_crowd_reads_texts_as_pytorchs_layers_do(rng):
    encoded = crowd.encode_texts(texts_of(rng, 7))
    numbers, lengths = encoded.segments[0]
    network = crowd.Network.reading("lstm", encoded, 2, size=5, hidden=6)
    weights = crowd.initial(network, [1, 2])
    found = crowd.forward(network, weights, encoded)
    bag = crowd.Network.reading("bag", encoded, 2, size=5)
    bag_weights = crowd.initial(bag, [1, 2])
    bag_found = crowd.forward(bag, bag_weights, encoded)
    for m in range(2):
        lstm = nn.LSTM(5, 6, batch_first=True)
        lstm.weight_ih_l0.data, lstm.weight_hh_l0.data = (
            weights["0.input"][m].T,
            weights["0.state"][m].T,
        )
        lstm.bias_ih_l0.data, lstm.bias_hh_l0.data = weights["0.bias"][m], torch.zeros(24)
        packed = nn.utils.rnn.pack_padded_sequence(
            weights["embedding"][m][numbers.long()], lengths, batch_first=True, enforce_sorted=False
        )
        state = lstm(packed)[1][0][0]
        torch.testing.assert_close(
            found[m], state @ weights["out.weight"][m] + weights["out.bias"][m]
        )
        for row, (text, n) in enumerate(zip(numbers, lengths, strict=True)):
            mean = bag_weights["embedding"][m][text[:n].long()].mean(0)
            torch.testing.assert_close(
                bag_found[m, row], mean @ bag_weights["out.weight"][m] + bag_weights["out.bias"][m]
            )


def test_the_crowd_sees_images_as_pytorchs_layers_do(rng):
    images = crowd.encode_images(rng.normal(size=(4, 8, 8)))
    network = crowd.Network.reading("cnn", images, 3, hidden=6)
    weights = crowd.initial(network, [1, 2, 3])
    found = crowd.forward(network, weights, images)
    for m in range(3):
        x = images
        for i in range(2):
            x = nn.functional.conv2d(
                x, weights[f"conv{i}.weight"][m], weights[f"conv{i}.bias"][m], padding=1
            )
            x = nn.functional.max_pool2d(x.relu(), 2)
        x = (x.flatten(1) @ weights["layer0.weight"][m] + weights["layer0.bias"][m]).relu()
        torch.testing.assert_close(found[m], x @ weights["out.weight"][m] + weights["out.bias"][m])


def test_gradients_of_the_recurrence_are_those_of_pytorchs_lstm(rng):
    from psychlm.crowds import recurrence

    lstms = [nn.LSTM(5, 7, batch_first=True).double() for _ in range(3)]
    table = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    places, lengths = torch.randint(0, 20, (3, 4, 6)), torch.randint(0, 7, (3, 4))
    lengths[0, 0] = 0  # an empty text
    parts = [
        torch.stack([value(lstm) for lstm in lstms]).detach().requires_grad_()
        for value in (
            lambda m: m.weight_ih_l0.T,
            lambda m: m.weight_hh_l0.T,
            lambda m: m.bias_ih_l0 + m.bias_hh_l0,
        )
    ]
    weigh = torch.randn(3, 4, 7, dtype=torch.float64)
    found = recurrence.last_states(table, places, lengths, *parts)
    (found * weigh).sum().backward()
    theirs = table.detach().clone().requires_grad_()
    states = torch.stack([lstm(theirs[at])[0] for lstm, at in zip(lstms, places, strict=True)])
    states = torch.cat([torch.zeros(3, 4, 1, 7), states], dim=2)
    wanted = states.gather(2, lengths[..., None, None].expand(-1, -1, 1, 7))[:, :, 0]
    (wanted * weigh).sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(table.grad, theirs.grad)
    torch.testing.assert_close(
        parts[0].grad, torch.stack([lstm.weight_ih_l0.grad.T for lstm in lstms])
    )
    torch.testing.assert_close(
        parts[1].grad, torch.stack([lstm.weight_hh_l0.grad.T for lstm in lstms])
    )
    torch.testing.assert_close(parts[2].grad, torch.stack([lstm.bias_ih_l0.grad for lstm in lstms]))


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_training_is_that_of_pytorchs_optimisers_on_one_model(rule, rng):
    inputs, gold, _ = problem("bag", rng)
    members = crowd.draw_members(3, seed=1, share=(0.5, 1), flipped=0.2)
    many = crowd.train(
        "bag", inputs, gold, members=members, epochs=4, batch_size=8, learning_rate=0.05, rule=rule
    )
    start = crowd.initial(many.network, [members[1].seed])
    bag = nn.EmbeddingBag.from_pretrained(
        start["embedding"][0], freeze=False, mode="mean", sparse=True, padding_idx=0
    )
    linear = nn.Linear(32, 3)
    linear.weight.data, linear.bias.data = (
        start["out.weight"][0].T.contiguous(),
        start["out.bias"][0],
    )
    if rule == "adam":
        optimisers = [
            torch.optim.SparseAdam(bag.parameters(), lr=0.05),
            torch.optim.Adam(linear.parameters(), lr=0.05),
        ]
    else:
        optimisers = [torch.optim.SGD([*bag.parameters(), *linear.parameters()], lr=0.05)]
    own = members[1].examples(len(inputs))
    seen = torch.from_numpy(members[1].labels(gold, own, 3))
    for epoch in range(1, 5):
        for step in batches_of_epoch([members[1]], epoch, [own], 8, None)[0]:
            at = torch.from_numpy(step[step >= 0])
            loss = nn.functional.cross_entropy(
                linear(bag(inputs.segments[0][0][at].long())), seen[at]
            )
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
    torch.testing.assert_close(many.weights["embedding"][1], bag.weight.data, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        many.weights["out.weight"][1], linear.weight.data.T, atol=1e-4, rtol=0
    )


def test_members_differ_in_share_and_flips_and_not_with_the_size_of_the_crowd(rng):
    few, more = crowd.draw_members(5, seed=3), crowd.draw_members(50, seed=3)
    assert few == more[:5]
    gold = rng.integers(0, 4, 200)
    for member in more:
        own = member.examples(200)
        seen = member.labels(gold, own, 4)
        changed = np.flatnonzero(seen != gold)
        assert len(own) == len(set(own)) == round(member.share * 200)
        assert len(changed) == round(member.flipped * len(own))
        assert set(changed) <= set(own)
        assert seen.min() >= 0 and seen.max() < 4
    assert len({tuple(member.examples(200)) for member in more}) == 50


def test_an_epoch_shows_each_example_once_and_mixes_lengths(rng):
    lengths = rng.integers(1, 40, 500)
    members = crowd.draw_members(4, seed=0, share=(0.3, 1.0))
    own = [member.examples(500) for member in members]
    batches = batches_of_epoch(members, 1, own, 16, lengths)
    for made, wanted in zip(batches, own, strict=True):
        assert (np.sort(made[made >= 0]) == wanted).all()
        longest = np.array([lengths[row[row >= 0]].max() for row in made])
        spread = np.array([np.ptp(lengths[row[row >= 0]]) for row in made])
        assert spread.mean() < 8 < np.ptp(lengths)  # like lengths share a batch
        assert (
            abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.3
        )  # short and long take turns
    assert (batches_of_epoch(members[:1], 2, own[:1], 16, lengths)[0] != batches[0]).any()


def test_stopped_members_leave_the_stack_and_keep_their_best_weights(rng):
    inputs, gold, development = problem("bag", rng)
    sizes = []
    trained = crowd.train(
        "bag",
        inputs,
        gold,
        members=crowd.draw_members(8, seed=2),
        development=development,
        epochs=12,
        patience=1,
        learning_rate=0.05,
        lesson=lambda epoch, scores: sizes.append((len(scores.members), scores().shape)),
    )
    assert sizes[0] == (8, (8, 40, 3))
    assert sizes[-1][0] < 8
    assert sizes[-1][1] == (sizes[-1][0], 40, 3)
    accuracy = trained.history.pivot(index="epoch", columns="member", values="development_accuracy")
    reached = crowd.respond(trained, *development).mean(axis=1).to_numpy()
    np.testing.assert_allclose(reached, accuracy.max())
    assert (trained.best_epoch == accuracy.idxmax()).all()


def test_a_lesson_chooses_examples_for_each_member_whatever_the_order_of_the_stack(rng):
    inputs, gold, _ = problem("bag", rng)
    members = crowd.draw_members(4, seed=5, share=(0.4, 1.0), flipped=0)
    wanted = rng.random((4, 40)) < np.array([0.1, 0.9, 0.3, 0.6])[:, None]
    trained = crowd.train(
        "bag",
        inputs,
        gold,
        members=members,
        epochs=2,
        batch_size=4,
        lesson=lambda *_: crowd.Lesson(examples=wanted),
    )
    expected = [wanted[i][member.examples(40)].sum() for i, member in enumerate(members)]
    for _, epoch in trained.history.groupby("epoch"):
        assert epoch.sort_values("member")["n_examples"].tolist() == expected
    nothing = crowd.train(
        "bag", inputs, gold, lesson=lambda *_: crowd.Lesson(examples=np.zeros(40, bool)), epochs=2
    )
    assert nothing.history["n_examples"].tolist() == [0, 0]
    assert (
        farthest(
            nothing, crowd.train("bag", inputs, gold, epochs=1, rule="sgd", learning_rate=0), 0
        )
        == 0
    )


def test_lessons_may_change_targets_and_loss(rng):
    inputs, gold, _ = problem("mlp", rng)
    soft = rng.dirichlet(np.ones(3), len(gold)).astype(np.float32)
    still = {"rule": "sgd", "learning_rate": 0.0, "epochs": 1}
    network = crowd.Network.reading("mlp", inputs, 3)
    probability = crowd.forward(network, crowd.initial(network, [7]), inputs)[0].softmax(1)
    members = [crowd.Member(7)]
    squared = crowd.train(network, inputs, soft, members=members, loss="squared-error", **still)
    crossed = crowd.train(
        network,
        inputs,
        gold,
        members=members,
        lesson=lambda *_: crowd.Lesson(targets=soft[None]),
        **still,
    )
    wanted = torch.from_numpy(soft)
    assert squared.history["loss"][0] == pytest.approx(
        float((probability - wanted).square().sum(1).mean()), rel=1e-5
    )
    assert crossed.history["loss"][0] == pytest.approx(
        float(-(wanted * probability.log()).sum(1).mean()), rel=1e-5
    )
    hard = crowd.train(network, inputs, gold, members=members, epochs=3)
    one_hot = crowd.train(network, inputs, np.eye(3)[gold], members=members, epochs=3)
    assert farthest(hard, one_hot, 0) < 1e-6


def test_a_diverged_member_is_marked_and_the_others_do_not_notice(rng):
    inputs, gold, development = problem("bag", rng)
    members = crowd.draw_members(4, seed=6)
    spoiled = np.repeat(np.eye(3)[gold][None], 4, axis=0).astype(np.float32)
    spoiled[2, 5:9] = np.nan

    def lesson(epoch, scores):
        rows = scores.members
        return crowd.Lesson(targets=np.where(epoch > 2, spoiled, spoiled[[0, 1, 3, 3]])[rows])

    trained = crowd.train(
        "bag", inputs, gold, members=members, epochs=5, lesson=lesson, batch_size=8
    )
    assert trained.diverged.tolist() == [False, False, True, False]
    assert trained.n_diverged == 1
    responses = crowd.respond(trained, *development)
    assert responses.iloc[2].isna().all()
    assert responses.drop(index="model0002").notna().all(axis=None)
    assert np.isnan(crowd.logprobs(trained, development[0])[2]).all()
    alone = crowd.train(
        "bag",
        inputs,
        np.eye(3)[gold],
        members=[crowd.Member(members[1].seed, members[1].share)],
        epochs=5,
        batch_size=8,
    )
    assert farthest(alone, trained, 1) < 1e-4


def test_the_difficulty_order_of_planted_easy_and_hard_items_is_found(rng):
    """Items whose telling word is common and repeated are easy; those that hang on one rare word are hard."""
    n_train, n_items = 400, 60

    def text(label, strength):
        telling = rng.choice(
            [f"sign{label}{k}" for k in range(20)], strength, p=np.arange(20, 0, -1) / 210
        )
        return " ".join([*telling, *rng.choice(WORDS, 8)])

    gold = rng.integers(0, 2, n_train)
    encoded = crowd.encode_texts([text(label, rng.integers(1, 4)) for label in gold], min_count=1)
    answers, strength = rng.integers(0, 2, n_items), np.repeat([0, 1, 4], n_items // 3)
    items = crowd.encode_texts(
        [text(a, s) for a, s in zip(answers, strength, strict=True)], encoded.vocabulary
    )
    members = crowd.draw_members(80, seed=1, share=(0.05, 1.0), flipped=(0.0, 0.45))
    trained = crowd.train("bag", encoded, gold, members=members, epochs=6, learning_rate=0.02)
    responses = crowd.respond(trained, items, answers)
    responses = responses.loc[:, (responses.mean() > 0) & (responses.mean() < 1)]
    planted = dict(zip([f"item{i}" for i in range(n_items)], -strength, strict=True))
    for method in ("mml", "vi"):
        fitted = irt.fit(responses, "1PL", method=method).items["b"]
        assert spearmanr(fitted, fitted.index.map(planted)).statistic > 0.6


@pytest.mark.parametrize("method", ["mml", "vi"])
def test_a_crowd_of_known_abilities_and_difficulties_gives_them_back(method, rng):
    """A crowd's matrix is wide: more items than models."""
    theta, items = rng.normal(size=100), simulate.items(400, rng, "1PL")
    responses = simulate.responses(theta, items, rng)
    responses = responses.loc[:, (responses.mean() > 0) & (responses.mean() < 1)]
    fitted = irt.fit(responses, "1PL", method=method)
    found = fitted.items["b"] - items["b"].reindex(fitted.items.index)
    assert (found / fitted.items["se_b"]).std() < 1.2
    assert np.corrcoef(fitted.score(responses)["theta"], theta)[0, 1] > 0.98


def test_what_encoding_loses_is_counted():
    vocabulary = crowd.Vocabulary.of(["a b a b c", "a d"])
    assert vocabulary.words == ("a", "b")
    encoded = crowd.encode_texts(["A b, c!", "", "a a a a a a"], vocabulary, max_tokens=5)
    assert encoded.segments[0][1].tolist() == [5, 0, 5]
    assert (encoded.n_words, encoded.n_unknown, encoded.n_truncated) == (10, 3, 1)
    assert encoded.segments[0][0][0].tolist() == [2, 3, 1, 1, 1]


def test_what_does_not_fit_together_is_said(rng):
    encoded = crowd.encode_texts(["a b a", "b a b"])
    with pytest.raises(ValueError, match="pairs of texts"):
        crowd.train("nli-bag", encoded, [0, 1])
    with pytest.raises(ValueError, match="images"):
        crowd.train("mlp", encoded, [0, 1])
    with pytest.raises(ValueError, match="no network is named"):
        crowd.train("tree", encoded, [0, 1])
    with pytest.raises(ValueError, match="targets of the shape"):
        crowd.train("bag", encoded, [0, 1, 1])
    with pytest.raises(ValueError, match="integers from 0"):
        crowd.train("bag", encoded, [0, -1], classes=2)
    with pytest.raises(ValueError, match="add"):
        crowd.train("bag", encoded, [[0.5, 0.2], [0, 1]])
    with pytest.raises(ValueError, match="flipped"):
        crowd.train("bag", encoded, [[0.5, 0.5], [0, 1]], members=[crowd.Member(1, flipped=0.5)])
    with pytest.raises(ValueError, match="lie between"):
        crowd.Member(1, share=0)
    with pytest.raises(FrameError, match="not strings"):
        crowd.encode_texts(["a", None])
    with pytest.raises(FrameError, match="each pair needs both"):
        crowd.encode_pairs(["a"], ["b", "c"])
    with pytest.raises(FrameError, match="not finite"):
        crowd.encode_images([[1.0, np.nan]])
    with pytest.raises(FrameError, match="not among"):
        crowd.respond(crowd.train("bag", encoded, [0, 1], epochs=1), encoded, [0, 2])
