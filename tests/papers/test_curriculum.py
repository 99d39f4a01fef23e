"""Curricula. References: Lalor's (2020) Algorithm 3 by hand, scipy's root finder, ``irt.score``, Platanios' c(t)."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import expit

from psychlm import crowds as crowd
from psychlm import irt, simulate
from psychlm.frames import FrameError
from psychlm.irt.scoring import KnownItems
from psychlm.papers import lalor2020_curriculum as curriculum


class Toy:
    """Models whose answers are known: epoch by epoch, which of the examples each gets right."""

    def __init__(self, answers, right):
        self.answers, self.right, self.asked = np.asarray(answers), np.asarray(right, dtype=bool), 0

    @property
    def members(self):
        return np.arange(self.right.shape[1])

    def __call__(self):
        right = self.right[self.asked]
        self.asked += 1
        said = np.where(right, self.answers, 1 - self.answers)
        return np.log(np.where(said[..., None] == np.arange(2), 0.9, 0.1))


def most_likely(b, right):
    """The Rasch ability at which the expected number of right answers is the observed one: solved by bisection."""
    return optimize.brentq(lambda theta: expit(theta - b).sum() - right.sum(), -30, 30)


B = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
ANSWERS = np.array([0, 1, 0, 1, 0, 1, 0, 1])


def test_algorithm_3_step_by_step():
    right = np.array(
        [
            [[1, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]],  # epoch 1: model 0 and model 1
            [[1, 1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 1, 0, 0]],
            [[1, 1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 0, 0, 1]],
        ],
        dtype=bool,
    )
    toy = Toy(ANSWERS, right)
    found = curriculum.ddaclae(pd.Series(B), ANSWERS, floor=0)
    for epoch in range(3):
        lesson = found.lesson(epoch + 1, toy)
        for model in range(2):
            theta = most_likely(B, right[epoch, model]) if not right[epoch, model].all() else np.inf
            assert lesson.examples[model].tolist() == (theta >= B).tolist()
        assert lesson.targets is None and lesson.loss is None
    table = found.history()
    abilities = table["theta"].to_numpy().reshape(3, 2)
    expected = [[most_likely(B, row) for row in epoch] for epoch in right[:2]]
    assert abilities[:2] == pytest.approx(np.array(expected), abs=1e-7)
    assert abilities[2, 0] == np.inf and table["n_examples"].tolist()[4] == len(
        B
    )  # all right: all examples
    used = table["n_examples"].to_numpy().reshape(3, 2)[:, 1]
    assert used[1] < used[0]  # model 1 got worse, and is given less than before
    assert toy.asked == 3  # one pass over the training set an epoch


def test_abilities_are_those_of_irt_score(rng):
    items = simulate.items(60, rng)
    correct = rng.random((5, 60)) < rng.random((5, 1))
    correct[0], correct[1] = True, False
    expected = irt.score(
        items, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    found = KnownItems(items).ability(correct)
    assert np.allclose(found, expected, atol=1e-7, equal_nan=True)
    assert found["theta"].tolist()[:2] == [np.inf, -np.inf]
    pooled = items.assign(a=1.0, b=items["b"].round(0))
    expected = irt.score(
        pooled, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    assert np.allclose(KnownItems(pooled).ability(correct), expected, atol=1e-7, equal_nan=True)


def test_guessing_goes_the_long_way(rng):
    items = simulate.items(40, rng, "3PL")
    correct = rng.random((3, 40)) < 0.7
    expected = irt.score(
        items, pd.DataFrame(correct.astype(float), columns=items.index), method="ml"
    )
    assert np.allclose(KnownItems(items).ability(correct), expected)


def test_a_negative_slope_counts_against(rng):
    items = pd.DataFrame({"a": [1.0, 1.5, -0.7], "b": [0.0, 0.5, -0.2]})
    correct = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], dtype=bool)
    found = KnownItems(items).ability(correct)
    theta = optimize.brentq(
        lambda t: (items["a"] * (expit(items["a"] * (t - items["b"])) - correct[0])).sum(), -20, 20
    )
    assert found["theta"].tolist() == pytest.approx([theta, np.inf, -np.inf])


def test_known_items_say_what_is_wrong():
    with pytest.raises(FrameError, match="need the columns a and b"):
        KnownItems(pd.DataFrame({"b": [0.0]}))
    with pytest.raises(FrameError, match=r"1 of 2 items \[1\] have parameters that are missing"):
        KnownItems(pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, np.nan]}))
    with pytest.raises(FrameError, match="stand more than once"):
        KnownItems(pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, 1.0]}, index=["q", "q"]))
    with pytest.raises(FrameError, match="responses to 3 items, and 1 are known"):
        KnownItems(pd.DataFrame({"a": [1.0], "b": [0.0]})).ability(np.ones((2, 3), bool))


def test_where_all_is_too_hard_the_easiest_share_is_trained_on():
    """No example within reach, epoch after epoch: the floor holds, each epoch ends, and the record says so."""
    toy = Toy(np.tile([0, 1], 50), np.zeros((4, 1, 100)))
    b = np.linspace(3, 0, 100)
    found = curriculum.ddaclae(pd.Series(b), toy.answers, floor=0.05)
    for epoch in range(1, 5):
        assert np.flatnonzero(found.lesson(epoch, toy).examples).tolist() == list(range(95, 100))
    table = found.history()
    assert (
        table["floored"].all()
        and (table["n_examples"] == 5).all()
        and (table["theta"] == -np.inf).all()
    )


def test_a_floor_of_nothing_is_still_one_example():
    toy = Toy(ANSWERS, np.zeros((1, 1, 8)))
    with pytest.warns(
        RuntimeWarning, match=r"epoch 1: members \[0\] train on examples of one class only"
    ):
        lesson = curriculum.ddaclae(pd.Series(B), ANSWERS, floor=0).lesson(1, toy)
    assert lesson.examples.tolist() == [True] + [False] * 7


def test_balanced_takes_the_easiest_of_each_class():
    answers = np.array([0] * 6 + [1] * 2)  # the easy ones are all of class 0
    right = np.array([[[1, 1, 1, 1, 0, 0, 0, 0]]])
    b = np.arange(-3.0, 5.0)
    plain = curriculum.ddaclae(pd.Series(b), answers)
    with pytest.warns(RuntimeWarning, match="one class only"):
        chosen = plain.lesson(1, Toy(answers, right)).examples
    even = curriculum.ddaclae(pd.Series(b), answers, balanced=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fair = even.lesson(1, Toy(answers, right)).examples
    n = chosen.sum()
    assert plain.history()["classes"].tolist() == [1] and even.history()["classes"].tolist() == [2]
    assert np.flatnonzero(fair).tolist() == [
        *range(int(np.ceil(n * 6 / 8))),
        *range(6, 6 + int(np.ceil(n * 2 / 8))),
    ]


@pytest.mark.parametrize("form", ["linear", "root"])
def test_competence_grows_as_platanios_et_al_say(form):
    c0, T, n = 0.04, 7, 200
    found = curriculum.competence(
        np.arange(n)[::-1].astype(float), np.arange(n) % 3, form=form, full_at=T, c0=c0
    )
    scores = SimpleNamespace(members=np.arange(2))  # a schedule never asks: calling this would fail
    for t in range(10):
        share = (
            min(1, t * (1 - c0) / T + c0)
            if form == "linear"
            else min(1, np.sqrt(t * (1 - c0**2) / T + c0**2))
        )
        chosen = found.lesson(t + 1, scores).examples
        assert chosen.sum() == np.ceil(round(share * n, 9))
        assert chosen[-chosen.sum() :].all()  # the easiest stand last here
    assert found.history().groupby("member")["n_examples"].apply(tuple).nunique() == 1
    assert found.name == f"CB-{form.title()}"


def test_everything_is_everything():
    found = curriculum.everything(ANSWERS)
    assert found.lesson(1, SimpleNamespace(members=np.arange(3))).examples.all()
    assert found.history()["share"].tolist() == [1.0] * 3


def test_difficulties_find_their_examples_by_name():
    names = list("abcdefgh")
    answers = pd.Series(ANSWERS, index=names)
    shuffled = pd.Series(B, index=names).sample(frac=1, random_state=1)
    assert curriculum.ddaclae(shuffled, answers).difficulty.tolist() == B.tolist()


def test_missing_difficulties_are_counted_and_named():
    answers = pd.Series(ANSWERS, index=list("abcdefgh"))
    b = pd.Series(B[:6], index=list("abcdef"))
    b["c"] = np.nan
    with pytest.raises(
        FrameError, match=r"3 of 8 examples \['c', 'g', 'h'\] have no difficulty.*leave them out"
    ):
        curriculum.ddaclae(b, answers)
    with pytest.raises(FrameError, match=r"3 of 8 examples"):
        curriculum.competence(b, answers, form="linear", full_at=3)
    b["c"] = -np.inf
    with pytest.raises(FrameError, match="an infinite one"):
        curriculum.ddaclae(b, answers)
    with pytest.raises(FrameError, match="6 difficulties and 8 examples"):
        curriculum.ddaclae(b, ANSWERS)


def test_one_class_is_nothing_to_learn():
    with pytest.raises(FrameError, match="all 8 examples have the label 0"):
        curriculum.ddaclae(pd.Series(B), np.zeros(8, int))
    with pytest.raises(FrameError, match="gold labels, whole numbers"):
        curriculum.everything(np.linspace(0, 1, 8))


def test_shares_lie_between_0_and_1():
    with pytest.raises(ValueError, match="floor is 1.5"):
        curriculum.ddaclae(pd.Series(B), ANSWERS, floor=1.5)
    with pytest.raises(ValueError, match="c0 is -1"):
        curriculum.competence(B, ANSWERS, form="root", full_at=3, c0=-1)
    with pytest.raises(ValueError, match="full_at is 0"):
        curriculum.competence(B, ANSWERS, form="root", full_at=0)
    with pytest.raises(ValueError, match="'linear' and 'root'"):
        curriculum.share_at(1, "square", 3)


def test_examples_to_convergence_are_counted_to_the_first_best_epoch():
    history = pd.DataFrame(
        {
            "epoch": [1, 1, 2, 2, 3, 3],
            "member": [0, 1] * 3,
            "n_examples": [10, 1, 20, 2, 40, 4],
            "development_accuracy": [0.5, 0.6, 0.7, 0.5, 0.7, 0.9],
        }
    )
    found = curriculum.convergence(history)
    assert found["epoch"].tolist() == [2, 3] and found["n_examples"].tolist() == [30, 7]
    with pytest.raises(FrameError, match=r"\[0, 1\] have no development accuracy"):
        curriculum.convergence(history.assign(development_accuracy=np.nan))


def test_discrepancies_are_differences_of_ranks():
    found = curriculum.discrepancies(
        pd.Series({"a": -1.0, "b": 0.0, "c": 2.0}), pd.Series({"c": 3, "b": 9, "a": 30})
    )
    assert found["delta"].to_dict() == {"a": 2.0, "c": 2.0, "b": 0.0}
    assert found.loc["a", ["rank", "other_rank"]].tolist() == [1, 3]
    with pytest.raises(FrameError, match=r"\['d'\] have one of the two"):
        curriculum.discrepancies(pd.Series({"a": 1.0}), pd.Series({"a": 1.0, "d": 2.0}))


def test_length_is_that_of_the_prompt():
    items = pd.DataFrame(
        {
            "item_id": ["x", "y"],
            "prompt": ["One two  three .", "Heart"],
            "hypothesis": ["a b", "c d"],
        }
    )
    assert curriculum.length(items).to_dict() == {"x": 4.0, "y": 1.0}


def test_a_stack_of_seeds_trains_by_its_own_abilities(rng):
    """End to end: abilities rise, and the engine used what each member's own ability reached."""
    b = rng.normal(size=400)
    answers = rng.integers(0, 2, 400)
    x = (2 * answers - 1)[:, None] * (2 - b)[:, None] * np.ones((1, 4)) + rng.normal(size=(400, 4))
    inputs = crowd.encode_images(x)
    by_ability = curriculum.ddaclae(pd.Series(b), answers)
    trained = crowd.train(
        "mlp",
        inputs,
        answers,
        n_models=4,
        seed=3,
        hidden=8,
        epochs=6,
        patience=6,
        batch_size=16,
        development=(inputs, answers),
        lesson=by_ability.lesson,
    )
    table = by_ability.history()
    merged = table.merge(trained.history, on=["epoch", "member"], suffixes=("", "_engine"))
    assert len(merged) == 24 and (merged["n_examples"] == merged["n_examples_engine"]).all()
    reached = [(b <= theta).sum() for theta in table["theta"]]
    assert (np.maximum(reached, 4) == table["n_examples"]).all()
    abilities = table.pivot(index="epoch", columns="member", values="theta")
    assert (abilities.loc[6] > abilities.loc[1] + 1).all() and abilities.loc[1].nunique() > 1
    assert (curriculum.convergence(trained.history)["development_accuracy"] > 0.85).all()
