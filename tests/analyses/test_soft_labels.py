"""Soft labels and tasks. References: Tables 4.1 and 4.2 of Lalor (2020), scipy, expectations."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from analyses import lalor2020_soft_labels as sl
from psychlm import corpora, crowds, data

NLI = ["entailment", "contradiction", "neutral"]


@pytest.fixture
def labels(rng):
    """Labels of six items by 40 people, some of whom said nothing."""
    drawn = rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=(40, 6))
    return pd.DataFrame(drawn, columns=list("uvwxyz")).mask(rng.random(drawn.shape) < 0.05)


def test_the_whole_crowd_does_not_differ_from_itself(labels):
    sizes, classes = [1, 10, len(labels)], list("abc")
    counts = sl.label_counts(labels, classes)
    drawn = sl.draw_workers(labels, sizes, classes, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="from 1 to 40"):
        sl.draw_workers(labels, [0], classes, rng=np.random.default_rng(0))
    table = sl.divergence(counts, drawn, sizes, smoothing=0).groupby("n_labels")
    assert table["divergence_nats"].max()[40] == pytest.approx(0, abs=1e-12)
    assert table["n_infinite"].min()[1] == len(labels.columns)


@pytest.mark.parametrize("replace", [False, True])
def test_labels_drawn_for_each_item_have_the_exact_expected_divergence(replace):
    counts, size, alpha = pd.DataFrame([[5, 3, 2], [0, 6, 4]], columns=list("abc")), 3, 0.5
    samples = [np.array(s) for s in itertools.product(range(size + 1), repeat=3) if sum(s) == size]
    exact = 0.0
    for row in counts.to_numpy():
        law = scipy_stats.multivariate_hypergeom(row, size)
        if replace:
            law = scipy_stats.multinomial(size, row / 10)
        for s in samples:
            estimate = (s + alpha) / (size + 3 * alpha)
            exact += law.pmf(s) * scipy_stats.entropy(row / 10, estimate) / 2
    rng = np.random.default_rng(1)
    drawn = sl.draw_labels(counts, [size], rng=rng, runs=20_000, replace=replace)
    values = sl.divergence(counts, drawn, [size], smoothing=alpha)["divergence_nats"]
    assert values.mean() == pytest.approx(exact, abs=4 * values.std() / np.sqrt(len(values)))


def test_the_training_sets_hold_what_the_chapter_says():
    hard, gold = np.array([0, 1, 2, 0]), np.array([1, 2])
    counts = pd.DataFrame([[1, 2, 0], [0, 1, 2]], columns=NLI)
    b1 = sl.hard_set(np.concatenate([hard, gold]), 3)
    assert b1.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert b1.targets.argmax(1).tolist() == [0, 1, 2, 0, 1, 2]
    b3 = sl.every_label_set(hard, counts)
    assert b3.rows.tolist() == [0, 1, 2, 3, 4, 4, 4, 5, 5, 5]
    assert b3.targets.argmax(1).tolist() == [0, 1, 2, 0, 0, 1, 1, 1, 2, 2]
    assert not (b1.soft.any() or b3.soft.any())
    means = pd.DataFrame(b3.targets).groupby(b3.rows).mean().loc[4:]
    assert means.to_numpy() == pytest.approx(sl.soft_labels(counts).to_numpy())


def test_slmg_follows_algorithms_1_and_2():
    soft = pd.DataFrame([[0.25, 0.75], [0.5, 0.5]], columns=["a", "b"])
    examples = sl.slmg_set(np.array([0, 1, 1]), soft)
    interspersed = sl.slmg(examples, 2, loss="squared-error")
    plans = [interspersed.epoch_callback(epoch, None) for epoch in range(1, 5)]
    trained = [np.flatnonzero(plan.examples).tolist() for plan in plans]
    assert interspersed.epochs == 4 and trained == [[0, 1, 2], [3, 4]] * 2
    assert [plan.loss for plan in plans] == ["cross-entropy", "squared-error"] * 2
    sequential = sl.slmg(examples, 3, meta_epochs=2)
    assert sequential.soft_epochs == ((False,) * 3 + (True,) * 3) * 2


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_a_trained_model_takes_up_the_crowds_distribution(loss):
    """A feature that only X_soft has comes to predict the crowd's distribution, not its mode."""
    soft = pd.DataFrame([[0.3, 0.7]] * 32, columns=["a", "b"])
    examples = sl.slmg_set(np.tile([0, 1], 32), soft)
    features = np.zeros((96, 3), np.float32)
    features[np.arange(64), np.tile([0, 1], 32)] = 1
    features[64:, 2] = 1
    inputs, schedule = crowds.encode_images(features), sl.slmg(examples, 40, loss=loss)
    options = {"n_models": 3, "seed": 1, "hidden": 8, "epochs": schedule.epochs}
    callback = schedule.epoch_callback
    trained = crowds.train("mlp", inputs, examples.targets, **options, epoch_callback=callback)
    p = np.exp(trained.log_probabilities(inputs[[0, 1, 64]]))
    assert p[:, 2, 1] == pytest.approx(0.7, abs=0.02)
    assert (p[:, 0, 0] > 0.9).all() and (p[:, 1, 1] > 0.9).all()


def test_tables_4_1_and_4_2_come_out_of_the_released_responses():
    people = corpora.lalor2016(4)
    soft = sl.soft_labels(sl.label_counts(people.labels, NLI))
    printed = data.published("lalor2020.table4_1").set_index("pair_id")
    ours = soft.loc[printed.index, NLI]
    difference = (ours - printed[NLI]).abs().to_numpy()
    assert (people.key[printed.index] == printed["gold"]).all()
    # 403 of 976 is 0.413, and .412 is printed: that row sums to 0.999.
    assert (difference <= 0.0005).sum() == 17 and difference.max() < 0.001
    printed_entropy = [0.464, 0.837]  # in the text of section 4.2.3
    assert scipy_stats.entropy(ours.iloc[:2], axis=1) == pytest.approx(printed_entropy, abs=5e-4)
    degrees = sl.label_counts(corpora.lalor2018_ratings().rename(columns=int), range(1, 6))
    printed = data.published("lalor2020.table4_2").set_index("phrase_id").drop(columns="source")
    ours = sl.soft_labels(degrees).loc[printed.index].to_numpy()
    assert ours == pytest.approx(printed.to_numpy(), abs=5e-4)
