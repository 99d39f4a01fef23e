"""Partial-input baselines and inoculation. References: planted artefacts, scores by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from tiny_questions import WORDS, questions

from analyses import richardson2020
from analyses.choice_networks import Lexicon
from analyses.richardson2020 import EPOCHS, inoculate, partial_input_baseline
from psychlm.frames import FrameError

pytestmark = pytest.mark.usefixtures("own_cache")
SMALL = {"size": 16, "hidden": 16}


def items(n, name, answer=0, n_choices=3):
    frame = pd.DataFrame({"item_id": [f"{name}{i}" for i in range(n)], "answer": answer})
    frame["prompt"] = [f"the old man {i}" for i in range(n)]
    return frame.assign(choices=[[f"boat {i} {c}" for c in range(n_choices)] for i in range(n)])


@dataclass(frozen=True)
class Told:
    """A model whose share of right answers follows from how it was trained."""

    new: float = 0.2
    original: float = 0.8
    log: tuple = ()  # what it was trained on, shared with its copies

    fingerprint = "told"

    def train(self, items, *, seed, learning_rate, epochs, batch_size, patience):
        assert (epochs, batch_size, patience) == (EPOCHS, 16, None)
        self.log.append((len(items), items["item_id"].str.startswith("more").sum(), seed))
        strength = np.log10(1 + len(items)) * learning_rate
        return replace(self, new=min(1.0, 0.2 + strength), original=0.8 - strength**2)

    def logprobs(self, items):
        share = self.original if items["item_id"].str.startswith("original").all() else self.new
        right = np.arange(len(items)) < round(share * len(items))
        picked = np.where(right, items["answer"], (items["answer"] + 1) % 3)
        return pd.DataFrame(np.eye(3)[picked], index=items["item_id"])


@pytest.fixture
def parts():
    return [items(100, "train"), *(items(50, name) for name in ("new", "original", "test"))]


@pytest.fixture
def lexicon(rng):
    vectors = np.concatenate([np.zeros((2, 50)), rng.normal(size=(len(WORDS), 50))])
    numbers = {word: i for i, word in enumerate(WORDS, start=2)}
    return Lexicon(numbers, vectors.astype(np.float32))


SWEEP = {"sizes": (9, 99), "learning_rates": (0.1, 0.25), "n_seeds": 2}


def test_the_model_kept_has_the_best_average_of_both_tasks(parts):
    done = inoculate(Told(log=[]), *parts, **SWEEP)
    assert len(done.cells) == 2 * 2 * 2
    # the higher learning rate: 0.2 + log10(1 + k) / 4 is right of the probe, 0.8 - its square
    expected = {0: (0.2, 0.8), 9: (0.45, 0.7375), 99: (0.7, 0.55)}
    assert done.best["k"].tolist() == [0, 9, 99]
    for row in done.best.itertuples():
        new, original = (round(50 * value) / 50 for value in expected[row.k])
        means = new, original, 0.8 - original, (new + original) / 2
        assert (row.new, row.original, row.cost, row.average) == pytest.approx(means)


def test_the_choice_is_blind_to_the_test_items(parts):
    """The best cell on the test items is not the one chosen where development says otherwise."""

    class Lucky(Told):
        def logprobs(self, items):
            on_test = items["item_id"].str.startswith("test").all()
            return Told.logprobs(replace(self, new=1.0 - self.new) if on_test else self, items)

    done = inoculate(Lucky(log=[]), *parts, **SWEEP)
    cells = done.cells[done.cells["k"] == 99]
    chosen = cells.loc[done.best["cell"].iloc[-1]]
    assert chosen["average"] == cells["average"].max() and chosen["test"] < cells["test"].max()


def test_a_killed_sweep_resumes_and_gives_what_it_would_have_given(parts):
    class Mortal(Told):
        def train(self, items, **options):
            if len(self.log) == 5:
                raise KeyboardInterrupt
            return Told.train(self, items, **options)

    with pytest.raises(KeyboardInterrupt):
        inoculate(Mortal(log=[]), *parts, **SWEEP)
    log = []
    resumed = inoculate(Told(log=log), *parts, **SWEEP)
    assert len(log) == 3
    graded = resumed.correct(parts[3])
    np.testing.assert_allclose(graded.iloc[1:].mean(axis=1), resumed.cells["test"])
    # The same sweep with other items, for which nothing is stored.
    whole = inoculate(Told(log=log), parts[0].assign(prompt="another"), *parts[1:], **SWEEP)
    assert len(log) == 3 + 8
    for table in ("cells", "best", "predictions"):
        pd.testing.assert_frame_equal(getattr(resumed, table), getattr(whole, table))
    inoculate(Told(log=log), *parts, **SWEEP | {"sizes": (9,)})
    assert len(log) == 3 + 8


def test_sweeps_that_would_report_what_they_learned_from_are_refused(parts):
    train, new, original, test = parts
    shared = [part.assign(cluster=["c", *part["item_id"][1:]]) for part in (train, test)]
    more = {"add_some": (1,), "more": pd.concat([original, items(99, "m")])}
    for changed, options, message in (
        ((train, new, original, new), {}, "50 of item_id stand in new and in test"),
        ((shared[0], new, original, shared[1]), {}, "1 of cluster stand in train and in test"),
        (parts, {"sizes": (101,)}, "1 to 100 training items"),
        (parts, more, "50 of item_id stand in more and in original"),
    ):
        with pytest.raises(FrameError, match=message):
            inoculate(Told(log=[]), *changed, **SWEEP | options)


def flags_of(result):
    row = richardson2020.baseline_table([result]).iloc[0]
    return tuple(bool(row[name]) for name in ("beats_chance", "below_chance", "flags"))


def test_choice_only_finds_a_planted_artefact_in_right_choices_or_in_wrong_ones(rng):
    train, test = (questions(rng, n, choices_give_away=0.6) for n in (300, 200))
    found = partial_input_baseline("choice-only", train, test, seed=1, **SMALL)
    assert flags_of(found) == (True, False, True)
    # marked ones are known, the others guessed
    assert found.accuracy == pytest.approx(0.6 + 0.4 / 5, abs=0.12)
    assert found.low < found.accuracy < found.high
    assert found.chance == pytest.approx(0.2)
    # In training the keys carry a mark that in the test only wrong choices carry.
    turned = test.assign(answer=(test["answer"] + 1) % 5)
    found = partial_input_baseline("choice-only", train, turned, seed=1, **SMALL)
    assert flags_of(found) == (False, True, True)


def test_clean_random_sets_are_hardly_ever_flagged():
    """Ten sets without any artefact: one flag would be rare with 95 % intervals and a margin."""
    rng = np.random.default_rng(4)
    recipe = {"epochs": 3, "patience": 1, "size": 8, "hidden": 8}
    found = []
    for seed in range(10):
        sets = questions(rng, 100), questions(rng, 200)
        found.append(partial_input_baseline("choice-only", *sets, seed=seed, **recipe))
    table = richardson2020.baseline_table(found)
    assert table["flags"].sum() == 0
    assert table["accuracy"].mean() == pytest.approx(0.2, abs=4 * 0.4 / np.sqrt(2000))


def test_a_word_shared_with_the_question_is_found_by_similarity_and_flags_no_artefact(rng, lexicon):
    train, test = (questions(rng, n, question_gives_away=True) for n in (20, 200))
    found = partial_input_baseline("vector-similarity", train, test, lexicon=lexicon)
    assert flags_of(found) == (True, False, False)  # it reads the question
    first = test.iloc[0]
    texts = (first["prompt"], *first["choices"])
    numbers = [[lexicon.numbers[word] for word in text.split()] for text in texts]
    means = [lexicon.vectors[row].mean(axis=0) for row in numbers]
    by_hand = [m @ means[0] / np.linalg.norm(m) / np.linalg.norm(means[0]) for m in means[1:]]
    np.testing.assert_allclose(found.logprobs.iloc[0], by_hand, rtol=1e-5)


def test_the_gain_is_the_mean_of_the_seeds_and_its_interval_that_of_clusters_and_seeds(rng):
    n_clusters, n_seeds, n_questions = 150, 4, 3
    clusters = np.repeat([f"c{i}" for i in range(n_clusters)], n_questions)
    test = pd.DataFrame({"item_id": [f"q{i}" for i in range(len(clusters))], "cluster": clusters})
    test["answer"] = 1
    n = len(test)
    learned = np.repeat(rng.random((n_seeds, n_clusters)) < 0.5, n_questions, axis=1)
    right = {-1: rng.random(n) < 0.3}
    right |= {seed: right[-1] | learned[seed] for seed in range(n_seeds)}
    rows = [{"cell": seed, "k": 10, "seed": seed, "average": 0.5} for seed in range(n_seeds)]
    rows += [{"cell": 4, "k": 10, "seed": 0, "average": 0.4}]
    rows += [{"cell": 5, "k": 5, "seed": 0, "average": 0.9}]
    right |= {4: np.zeros(n, bool), 5: np.zeros(n, bool)}  # cells that are not kept
    cells = pd.DataFrame(rows).assign(add_some=0, original=0.6).set_index("cell")
    predictions = pd.DataFrame(right).T.astype(int).set_axis(test["item_id"], axis=1)
    done = richardson2020.Inoculation(cells, pd.Series({"original": 0.7}), predictions)
    gain = richardson2020.inoculation_gain(done, test, rng=rng, n_boot=4000)
    of_seed = [np.mean(right[seed]) - np.mean(right[-1]) for seed in range(n_seeds)]
    assert gain["gain"] == pytest.approx(np.mean(of_seed))
    assert (gain["smallest"], gain["largest"]) == pytest.approx((min(of_seed), max(of_seed)))
    assert gain["cost"] == pytest.approx(0.1) and gain["n_seeds"] == n_seeds
    # variance of a mean over clusters and over seeds, from their two-way table
    change = np.array([right[s] ^ right[-1] for s in range(n_seeds)])
    table = change.reshape(n_seeds, n_clusters, -1).mean(axis=2)
    clusters = table.mean(axis=0).var(ddof=1) / n_clusters
    seeds = table.mean(axis=1).var(ddof=1) / n_seeds
    within = table.var() / (n_clusters * n_seeds)
    width = (gain["high"] - gain["low"]) / (2 * 1.96)
    assert (clusters + seeds) ** 0.5 * 0.85 < width < (clusters + seeds + 2 * within) ** 0.5 * 1.1
