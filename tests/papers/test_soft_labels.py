"""Soft labels. References: Tables 4.1, 4.2 and Algorithms 1, 2 of Lalor (2020); scipy's entropy; exact expectations."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from psychlm import crowds as crowd
from psychlm import data
from psychlm import corpora
from psychlm.frames import FrameError
from psychlm.papers import lalor2020_soft_labels as sl

NLI = ["entailment", "contradiction", "neutral"]


@pytest.fixture
def said(rng):
    """What 40 people said of six items; a few said nothing."""
    drawn = pd.DataFrame(
        rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=(40, 6)), columns=list("uvwxyz")
    )
    return drawn.mask(rng.random(drawn.shape) < 0.05)


def test_counts_are_those_of_each_column(said):
    counts = sl.label_counts(said)
    for item in said:
        assert (
            counts.loc[item].to_dict()
            == said[item].value_counts().reindex(["a", "b", "c"], fill_value=0).to_dict()
        )
    assert counts.to_numpy().sum() == said.notna().to_numpy().sum()


def test_a_label_that_nobody_gave_keeps_its_column(said):
    counts = sl.label_counts(said, ["c", "d", "a", "b"])
    assert list(counts) == ["c", "d", "a", "b"] and (counts["d"] == 0).all()


def test_a_strange_label_is_named(said):
    with pytest.raises(FrameError, match=r"\['c'\] are none of the classes"):
        sl.label_counts(said, ["a", "b"])


def test_an_item_without_labels_is_named():
    with pytest.raises(FrameError, match=r"\['q2'\] have no label at all"):
        sl.soft_labels(pd.DataFrame({"a": [3, 0], "b": [1, 0]}, index=["q1", "q2"]))
    with pytest.raises(FrameError, match="not negative"):
        sl.soft_labels(pd.DataFrame({"a": [3, -1], "b": [1, 2]}))


def test_gold_probability_picks_the_gold_column():
    soft = pd.DataFrame({"a": [0.7, 0.2], "b": [0.3, 0.8]}, index=["q1", "q2"])
    assert sl.gold_probability(soft, pd.Series({"q2": "b", "q1": "b"})).to_dict() == {
        "q1": 0.3,
        "q2": 0.8,
    }
    with pytest.raises(FrameError, match=r"\['q2'\] have no gold label"):
        sl.gold_probability(soft, pd.Series({"q1": "a", "q2": "-"}))


def test_divergence_and_entropy_are_scipys(rng):
    p, q = rng.dirichlet(np.ones(4), (2, 50))
    assert sl.kl_divergence(p, q) == pytest.approx(scipy_stats.entropy(p, q, axis=1))
    assert sl.entropy(pd.DataFrame(p)).to_numpy() == pytest.approx(scipy_stats.entropy(p, axis=1))
    assert sl.entropy(pd.DataFrame({"a": [1.0], "b": [0.0]}))[0] == 0


def test_the_whole_crowd_does_not_differ_from_itself(said):
    table = sl.divergence_by_workers(
        said, [1, 10, len(said)], rng=np.random.default_rng(0), smoothing=0
    )
    assert table.query("n_labels == 40")["divergence_nats"].max() == pytest.approx(0, abs=1e-12)
    assert (table.query("n_labels == 1")["n_infinite"] == len(said.columns)).all()
    assert set(table["run"]) == set(range(5))


def test_labels_drawn_for_each_item_have_the_exact_expected_divergence():
    counts = pd.DataFrame([[5, 3, 2], [0, 6, 4]], columns=list("abc"))
    p, size, alpha = counts.to_numpy() / 10, 3, 0.5
    samples = [np.array(s) for s in itertools.product(range(size + 1), repeat=3) if sum(s) == size]
    for replace, law in (
        (False, lambda row: scipy_stats.multivariate_hypergeom(counts.to_numpy()[row], size)),
        (True, lambda row: scipy_stats.multinomial(size, p[row])),
    ):
        exact = np.mean(
            [
                sum(
                    law(row).pmf(s) * scipy_stats.entropy(p[row], (s + alpha) / (size + 3 * alpha))
                    for s in samples
                )
                for row in range(2)
            ]
        )
        drawn = sl.divergence_by_labels(
            counts,
            [size],
            rng=np.random.default_rng(1),
            runs=20_000,
            smoothing=alpha,
            replace=replace,
        )["divergence_nats"]
        assert drawn.mean() == pytest.approx(exact, abs=4 * drawn.std() / np.sqrt(len(drawn)))


def test_workers_and_labels_agree_where_items_are_independent(rng):
    said = pd.DataFrame(rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=(60, 5)))
    sizes = [2, 20]
    workers = sl.divergence_by_workers(said, sizes, rng=rng, runs=2000).groupby("n_labels")[
        "divergence_nats"
    ]
    labels = sl.divergence_by_labels(sl.label_counts(said), sizes, rng=rng, runs=2000).groupby(
        "n_labels"
    )
    assert workers.mean().to_numpy() == pytest.approx(
        labels["divergence_nats"].mean().to_numpy(), rel=0.03
    )


def test_sizes_beyond_the_crowd_are_refused(said):
    with pytest.raises(ValueError, match=r"\[0, 41\] lie outside 1 to 40"):
        sl.divergence_by_workers(said, [0, 5, 41], rng=np.random.default_rng(0))


def test_the_three_baselines_hold_what_the_chapter_says():
    hard, gold, extra = np.array([0, 1, 2, 0]), np.array([1, 2]), np.array([0, 0, 1, 1, 2, 2, 0])
    counts = pd.DataFrame([[1, 2, 0], [0, 1, 2]], columns=NLI)
    b1 = sl.baseline_b1(hard, gold, 3)
    assert b1.rows.tolist() == [0, 1, 2, 3, 4, 5] and b1.targets.argmax(1).tolist() == [
        0,
        1,
        2,
        0,
        1,
        2,
    ]
    b2 = sl.baseline_b2(hard, gold, extra, 3, n_labels=int(counts.to_numpy().sum()))
    assert (
        b2.rows.tolist() == list(range(12))
        and b2.targets[6:].argmax(1).tolist() == extra[:6].tolist()
    )
    b3 = sl.baseline_b3(hard, counts)
    assert b3.rows.tolist() == [0, 1, 2, 3, 4, 4, 4, 5, 5, 5]
    assert b3.targets.argmax(1).tolist() == [0, 1, 2, 0, 0, 1, 1, 1, 2, 2]
    assert all((s.targets.sum(1) == 1).all() and not s.soft.any() for s in (b1, b2, b3))
    with pytest.raises(
        ValueError, match="the crowd gave 8 labels, and there are 7 further examples"
    ):
        sl.baseline_b2(hard, gold, extra, 3, n_labels=8)
    with pytest.raises(ValueError, match="there are 2 classes"):
        sl.baseline_b1(hard, gold, 2)


def test_all_in_one_has_the_soft_labels_for_its_mean():
    counts = pd.DataFrame([[1, 2, 0], [0, 1, 2]], columns=NLI)
    b3 = sl.baseline_b3(np.array([0]), counts)
    means = pd.DataFrame(b3.targets).groupby(b3.rows).mean().loc[1:]
    assert means.to_numpy() == pytest.approx(sl.soft_labels(counts).to_numpy())


def schedule_examples():
    soft = pd.DataFrame([[0.25, 0.75], [0.5, 0.5]], columns=["a", "b"])
    return sl.slmg_set(np.array([0, 1, 1]), soft)


def test_interspersed_follows_algorithm_1():
    schedule = sl.interspersed(schedule_examples(), epochs=2, loss="squared-error")
    lessons = [schedule.lesson(epoch, None) for epoch in range(1, schedule.epochs + 1)]
    assert [np.flatnonzero(lesson.examples).tolist() for lesson in lessons] == [
        [0, 1, 2],
        [3, 4],
    ] * 2
    assert [lesson.loss for lesson in lessons] == ["cross-entropy", "squared-error"] * 2


def test_sequential_follows_algorithm_2():
    schedule = sl.sequential(schedule_examples(), meta_epochs=2, epochs=3)
    soft = [
        bool(schedule.lesson(epoch, None).examples[-1]) for epoch in range(1, schedule.epochs + 1)
    ]
    assert soft == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert {schedule.lesson(epoch, None).loss for epoch in range(1, 13)} == {"cross-entropy"}


def test_a_part_without_examples_is_refused():
    with pytest.raises(ValueError, match="one of the two parts is empty"):
        sl.interspersed(sl.slmg_set(np.array([], int), pd.DataFrame([[0.5, 0.5]])), epochs=1)


def test_a_trained_model_takes_up_the_crowds_distribution():
    """A feature that the soft part alone has comes to predict the crowd's distribution, not its mode."""
    soft = pd.DataFrame([[0.3, 0.7]] * 32, columns=["a", "b"])
    examples = sl.slmg_set(np.tile([0, 1], 32), soft)
    inputs = np.zeros((96, 3), np.float32)
    inputs[np.arange(64), np.tile([0, 1], 32)] = 1
    inputs[64:, 2] = 1
    for loss in ("cross-entropy", "squared-error"):
        schedule = sl.interspersed(examples, 40, loss=loss)
        trained = crowd.train(
            "mlp",
            crowd.encode_images(inputs),
            examples.targets,
            n_models=3,
            seed=1,
            hidden=8,
            epochs=schedule.epochs,
            lesson=schedule.lesson,
        )
        p = np.exp(crowd.logprobs(trained, crowd.encode_images(inputs[[0, 1, 64]])))
        assert p[:, 2, 1] == pytest.approx(0.7, abs=0.02)
        assert (p[:, 0, 0] > 0.9).all() and (p[:, 1, 1] > 0.9).all()


@pytest.mark.needs_share
def test_table_4_1_comes_out_of_the_released_responses():
    people = corpora.lalor2016(4)
    soft = sl.soft_labels(sl.label_counts(people.labels, NLI))
    printed = data.published("lalor2020.table4_1").set_index("pair_id")
    ours = soft.loc[printed.index, NLI]
    off = (ours - printed[NLI]).abs()
    assert (people.key[printed.index] == printed["gold"]).all()
    assert (off <= 0.0005).to_numpy().sum() == 17  # of 18
    assert (
        off.to_numpy().max() < 0.001
    )  # 403 of 976 is 0.413, and .412 is printed: the row then sums to 0.999
    assert sl.entropy(ours).iloc[:2].to_numpy() == pytest.approx(
        [0.464, 0.837], abs=5e-4
    )  # the text of section 4.2.3


@pytest.mark.needs_share
def test_table_4_2_comes_out_of_the_released_responses():
    ratings = pd.read_csv(data.path("lalor2018/response_patterns"), index_col="uuid")
    printed = data.published("lalor2020.table4_2").set_index("phrase_id")
    soft = sl.soft_labels(sl.label_counts(ratings, [1, 2, 3, 4, 5]))
    soft.index = soft.index.astype(int)
    ours = soft.loc[printed.index].to_numpy()
    assert ours == pytest.approx(
        printed[["very_negative", "negative", "neutral", "positive", "very_positive"]], abs=5e-4
    )
