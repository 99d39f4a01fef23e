"""Inoculation. References: scores by hand, the encoder run whole by transformers, sweeps that were not killed."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch

from psychlm.frames import FrameError
from psychlm.lm import ModelError
from psychlm.lm.choice_encoder import encoder_model, open_encoder
from psychlm.lm.choice_model import Recipe
from psychlm.papers.richardson2020_inoculation import Checkpoint, Sweep, inoculate


def items(n, name, answer=0, n_choices=3):
    return pd.DataFrame(
        {
            "item_id": [f"{name}{i}" for i in range(n)],
            "prompt": [f"the old man {i}" for i in range(n)],
            "choices": [[f"boat {i} {c}" for c in range(n_choices)] for i in range(n)],
            "answer": answer,
        }
    )


@dataclass(frozen=True)
class Told:
    """A model whose scores are known: it answers a share of each task right that follows from how it was trained."""

    new: float = 0.2
    original: float = 0.8
    log: tuple = ()  # what it was trained on, shared with its copies

    fingerprint = "told"

    def trained(self, items, recipe, *, seed):
        self.log.append(
            (len(items), items["item_id"].str.startswith("more").sum(), recipe.epochs, seed)
        )
        strength = np.log10(1 + len(items)) * recipe.learning_rate
        return replace(self, new=min(1.0, 0.2 + strength), original=0.8 - strength**2)

    def logprobs(self, items):
        share = self.original if items["item_id"].str.startswith("original").all() else self.new
        right = np.arange(len(items)) < round(share * len(items))
        scores = np.zeros((len(items), 3))
        scores[
            np.arange(len(items)), np.where(right, items["answer"], (items["answer"] + 1) % 3)
        ] = 1
        return pd.DataFrame(scores, index=items["item_id"])


@pytest.fixture
def parts():
    return [
        items(n, name) for n, name in ((100, "train"), (50, "new"), (50, "original"), (50, "test"))
    ]


SWEEP = Sweep(sizes=(9, 99), learning_rates=(0.1, 0.25), epochs=(1, 2), seeds=(0, 1))


def test_the_model_kept_has_the_best_average_of_both_tasks(parts):
    done = inoculate(Told(log=[]), *parts, sweep=SWEEP)
    assert len(done.cells) == 2 * 2 * 2 * 2
    expected = {0: (0.2, 0.8), 9: (0.45, 0.7375), 99: (0.7, 0.55)}
    by_hand = {}
    for k in (9, 99):
        tried = [np.log10(1 + k) * rate for rate in (0.1, 0.25)]
        averages = [(0.2 + s + 0.8 - s**2) / 2 for s in tried]
        by_hand[k] = tried[int(np.argmax(averages))]
        assert expected[k] == pytest.approx((0.2 + by_hand[k], 0.8 - by_hand[k] ** 2))
    assert done.best["k"].tolist() == [0, 9, 99]
    for row in done.best.itertuples():
        new, original = (round(50 * value) / 50 for value in expected[row.k])
        assert row.new == pytest.approx(new)
        assert row.original == pytest.approx(original)
        assert row.cost == pytest.approx(0.8 - original)
        assert row.average == pytest.approx((new + original) / 2)


def test_the_choice_is_blind_to_the_test_items(parts):
    """The best cell on the test items is not the one chosen where development says otherwise."""

    @dataclass(frozen=True)
    class Lucky(Told):
        def logprobs(self, items):
            if items["item_id"].str.startswith("test").all():
                return replace(self, new=1.0 - self.new).base(items)
            return self.base(items)

        def base(self, items):
            return Told.logprobs(self, items)

    done = inoculate(Lucky(log=[]), *parts, sweep=SWEEP)
    chosen = done.cells.loc[done.best.loc[done.best["k"] == 99, "cell"]]
    assert chosen["average"].iloc[0] == done.cells.loc[done.cells["k"] == 99, "average"].max()
    assert chosen["test"].iloc[0] < done.cells.loc[done.cells["k"] == 99, "test"].max()


def test_add_some_adds_once_or_twice_as_many_questions_of_the_original_kind(parts):
    log = []
    sweep = Sweep(
        sizes=(10, 40), learning_rates=(0.1,), epochs=(1,), seeds=(0,), add_some=(0, 1, 2)
    )
    done = inoculate(Told(log=log), *parts, sweep=sweep, more=items(80, "more"))
    assert log == [
        (10, 0, 1, 0),
        (20, 10, 1, 0),
        (30, 20, 1, 0),
        (40, 0, 1, 0),
        (80, 40, 1, 0),
        (120, 80, 1, 0),
    ]
    assert done.best.groupby("add_some")["k"].apply(list).tolist() == [[0, 10, 40]] * 3
    with pytest.raises(FrameError, match="asks for 80 items"):
        inoculate(Told(log=[]), *parts, sweep=sweep, more=items(79, "more"))


def test_a_killed_sweep_resumes_and_gives_what_it_would_have_given(parts, tmp_path):
    whole = inoculate(Told(log=[]), *parts, sweep=SWEEP)

    class Killed(Exception):
        pass

    def kill(done, _all):
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        inoculate(Told(log=[]), *parts, sweep=SWEEP, folder=tmp_path, progress=kill)
    log = []
    resumed = inoculate(Told(log=log), *parts, sweep=SWEEP, folder=tmp_path)
    assert (resumed.n_resumed, len(log)) == (5, 11)
    pd.testing.assert_frame_equal(resumed.cells, whole.cells)
    pd.testing.assert_frame_equal(resumed.best, whole.best)
    pd.testing.assert_frame_equal(resumed.predictions, whole.predictions)
    assert not list(tmp_path.glob(".*"))  # nothing half-written


def test_cells_of_other_items_or_models_are_not_taken_for_this_sweeps(parts, tmp_path):
    inoculate(Told(log=[]), *parts, sweep=SWEEP, folder=tmp_path)
    other = [parts[0].assign(prompt="another"), *parts[1:]]
    assert inoculate(Told(log=[]), *other, sweep=SWEEP, folder=tmp_path).n_resumed == 0
    assert (
        inoculate(
            Told(log=[]), *parts, sweep=replace(SWEEP, batch_size=4), folder=tmp_path
        ).n_resumed
        == 0
    )
    assert (
        inoculate(Told(log=[]), *parts, sweep=replace(SWEEP, sizes=(9,)), folder=tmp_path).n_resumed
        == 8
    )


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"cell": {}, "new": 1})])
def test_a_broken_cell_is_said_and_computed_anew(parts, tmp_path, content):
    whole = inoculate(Told(log=[]), *parts, sweep=SWEEP, folder=tmp_path)
    next(iter(tmp_path.glob("*.json"))).write_text(content)
    with pytest.warns(RuntimeWarning, match="computed anew"):
        again = inoculate(Told(log=[]), *parts, sweep=SWEEP, folder=tmp_path)
    assert (again.n_resumed, again.n_broken) == (15, 1)
    pd.testing.assert_frame_equal(again.cells, whole.cells)


def test_sweeps_that_would_report_what_they_learned_from_are_refused(parts):
    train, new, original, test = parts
    with pytest.raises(FrameError, match="50 of item_id stand in new and in test"):
        inoculate(Told(log=[]), train, new, original, new, sweep=SWEEP)
    shared = (frame.assign(cluster=["c", *frame["item_id"][1:]]) for frame in (train, test))
    with pytest.raises(FrameError, match="1 of cluster stand in train and in test"):
        inoculate(Told(log=[]), next(shared), new, original, next(shared), sweep=SWEEP)
    with pytest.raises(FrameError, match="1 to 100 training items"):
        inoculate(Told(log=[]), *parts, sweep=Sweep(sizes=(101,)))
    with pytest.raises(FrameError, match="by which its cost is taken"):
        inoculate(
            Told(log=[]),
            *parts,
            sweep=replace(SWEEP, add_some=(1,)),
            more=pd.concat([original, items(99, "m")]),
        )


def test_graded_answers_of_every_cell_are_kept(parts):
    done = inoculate(Told(log=[]), *parts, sweep=SWEEP)
    graded = done.correct(parts[3])
    assert graded.shape == (17, 50)
    np.testing.assert_allclose(graded.iloc[1:].mean(axis=1), done.cells["test"])
    assert graded.loc[-1].mean() == pytest.approx(done.before["test"])


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("bert"), "bert")


def questions():
    return pd.DataFrame(
        {
            "item_id": ["a", "b", "c"],
            "prompt": ["The old man the boat.", "the sea", "She wound up talking to Barry"],
            "choices": [
                ["the men", "a cup of tea and a sandwich"],
                ["the sea", "the horse", "a plan"],
                ["Maria", "tea"],
            ],
            "answer": [0, 2, 1],
        }
    )


@pytest.mark.parametrize("trained_layers", [0, 1])
@pytest.mark.parametrize("reading", ["apart", "joint"])
def test_frozen_layers_say_what_the_whole_encoder_says(bert, reading, trained_layers):
    network, tokenizer = open_encoder(bert)
    model = encoder_model(bert, reading=reading, trained_layers=trained_layers, seed=1)
    asked = questions()
    inputs = model.reader.read(asked).take(np.arange(3))
    mask = None if inputs.choices_mask is None else inputs.choices_mask.flatten(0, 1)
    with torch.no_grad():
        pooled = model.network.eval()._pooled(inputs.choices.flatten(0, 1), mask).reshape(3, 3, -1)
        for row, (prompt, choices) in enumerate(
            zip(asked["prompt"], asked["choices"], strict=True)
        ):
            for place, choice in enumerate(choices):
                given = (prompt, choice) if reading == "joint" else (choice,)
                expected = network(**tokenizer(*given, return_tensors="pt")).last_hidden_state.mean(
                    dim=1
                )[0]
                torch.testing.assert_close(
                    pooled[row, place], expected, atol=5e-3 if trained_layers else 1e-5, rtol=1e-3
                )


def test_an_untrained_head_that_reads_apart_picks_the_most_similar_choice(bert):
    network, tokenizer = open_encoder(bert)
    said = encoder_model(bert).logprobs(questions())

    def vector(text):
        with torch.no_grad():
            return network(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(dim=1)[0]

    for row, (prompt, choices) in enumerate(
        zip(questions()["prompt"], questions()["choices"], strict=True)
    ):
        cosines = [
            float(torch.cosine_similarity(vector(prompt), vector(choice), dim=0))
            for choice in choices
        ]
        expected = 20 * np.array(cosines) - np.log(np.exp(20 * np.array(cosines)).sum())
        np.testing.assert_allclose(said.iloc[row].dropna(), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("reading", "trained_layers"), [("apart", 0), ("joint", 0), ("apart", 1), ("joint", 1)]
)
def test_a_model_on_an_encoder_learns_and_the_one_it_came_from_stays(bert, reading, trained_layers):
    model = encoder_model(bert, reading=reading, trained_layers=trained_layers, seed=1)
    before, frozen = model.logprobs(questions()), open_encoder(bert)[0].state_dict()
    frozen = {name: weight.clone() for name, weight in frozen.items()}
    learned = model.trained(
        questions(), Recipe(learning_rate=1e-2, epochs=30, patience=None), seed=1
    )
    assert learned.accuracy(questions()) == 1
    assert learned.history["loss"].iloc[-1] < learned.history["loss"].iloc[0]
    pd.testing.assert_frame_equal(model.logprobs(questions()), before)
    assert all(
        torch.equal(weight, frozen[name])
        for name, weight in open_encoder(bert)[0].state_dict().items()
    )
    assert learned.fingerprint != model.fingerprint


def test_the_same_seed_trains_the_same_model(bert):
    model = encoder_model(bert, trained_layers=1)
    first, again, other = (
        model.trained(questions(), Recipe(epochs=2), seed=seed) for seed in (1, 1, 2)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_training_keeps_the_weights_of_the_best_epoch(bert):
    asked = questions()
    model = encoder_model(bert, reading="joint", seed=2)
    wrong = asked.assign(answer=[1, 0, 0])
    kept = model.trained(
        wrong, Recipe(learning_rate=3e-2, epochs=12, patience=None), seed=1, development=asked
    )
    assert kept.accuracy(asked) == kept.history["accuracy"].max()


def test_more_layers_than_the_encoder_has_are_refused(bert):
    with pytest.raises(ModelError, match="trained_layers=9"):
        encoder_model(bert, trained_layers=9)
    with pytest.raises(ModelError, match="n_layers=9"):
        encoder_model(bert, n_layers=9)


def test_a_checkpoint_is_inoculated_whole(bert, tmp_path):
    from psychlm.lm.finetune import finetune

    asked = questions()
    science = finetune(
        asked, bert, task="multiple-choice", out=tmp_path / "science", epochs=1, learning_rate=1e-3
    )
    names = ("train", "new", "original", "test")
    parts = [asked.assign(item_id=[f"{name}{i}" for i in range(3)]) for name in names]
    sweep = Sweep(sizes=(3,), learning_rates=(5e-2,), epochs=(4,), seeds=(0,))
    done = inoculate(Checkpoint(science.folder, {"max_tokens": 32}, "cpu"), *parts, sweep=sweep)
    assert done.best["k"].tolist() == [0, 3]
    assert done.predictions.shape == (2, 3)
    assert done.best["cost"].iloc[0] == 0
