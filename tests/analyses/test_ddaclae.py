"""Curricula. References: Lalor's (2020) Algorithm 3 by hand, scipy, the c(t) of Platanios et al."""

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import expit

from analyses import lalor2020_ddaclae as curricula
from psychlm import crowds

B = pd.Series([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
ANSWERS = pd.Series([0, 1, 0, 1, 0, 1, 0, 1])


def state_of(right, answers=ANSWERS):
    """Return the state of models that answer these examples correctly: (models, examples) bool."""
    predictions = np.where(np.asarray(right, dtype=bool), answers, 1 - np.asarray(answers))
    values = np.log(np.where(predictions[..., None] == np.arange(2), 0.9, 0.1))
    return crowds.CrowdState(np.arange(len(values)), lambda: values)


def never_asked(n_models):
    """Return the state of models that a schedule must not ask."""
    return crowds.CrowdState(np.arange(n_models), lambda: pytest.fail("a schedule asked the model"))


def most_likely(right):
    """Return the Rasch ability whose expected number of right answers is the observed one."""
    return optimize.brentq(lambda theta: expit(theta - B).sum() - np.sum(right), -30, 30)


def test_ddaclae_follows_algorithm_3_step_by_step():
    epochs = [
        [[1, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]],  # model 0 and model 1
        [[1, 1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 1, 0, 0]],
        [[1, 1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 0, 0, 1]],
    ]
    curriculum = curricula.DDaCLAE(B, ANSWERS, floor=0)
    for epoch, right in enumerate(epochs, start=1):
        plan = curriculum.epoch_callback(epoch, state_of(right))
        assert plan.loss is None
        for examples, own in zip(plan.examples, right, strict=True):
            theta = np.inf if all(own) else most_likely(own)
            assert examples.tolist() == (theta >= B).tolist()
    history = curriculum.history()
    theta = history["theta"].to_numpy().reshape(3, 2)
    expected = [[most_likely(own) for own in right] for right in epochs[:2]]
    assert theta[:2] == pytest.approx(np.array(expected), abs=1e-7)
    assert theta[2, 0] == np.inf and history["n_examples"].tolist()[4] == len(B)
    of_model_1 = history.query("member == 1")["n_examples"].tolist()
    assert of_model_1[1] < of_model_1[0]  # it got worse and trains on less than before


def test_hard_example_mining_trains_on_what_the_model_is_not_able_to_do():
    own = [1, 1, 0, 1, 0, 0, 0, 0]
    curriculum = curricula.HardExamples(B, ANSWERS, floor=0.25)
    examples = curriculum.epoch_callback(1, state_of([own, [1] * 8])).examples
    assert examples[0].tolist() == (most_likely(own) < B).tolist()
    assert np.flatnonzero(examples[1]).tolist() == [6, 7]  # nothing is harder: the hardest quarter
    assert curriculum.history()["theta"][0] == pytest.approx(most_likely(own), abs=1e-7)


@pytest.mark.parametrize("form", ["linear", "root"])
def test_competence_grows_as_platanios_et_al_say(form):
    c0, full_at, n = 0.04, 7, 200
    b, answers = pd.Series(range(n)[::-1]), pd.Series(range(n)) % 3
    curriculum = curricula.CompetenceBased(b, answers, form=form, full_at=full_at, c0=c0)
    for t in range(10):
        linear = t * (1 - c0) / full_at + c0
        root = np.sqrt(t * (1 - c0**2) / full_at + c0**2)
        share = min(1, linear if form == "linear" else root)
        for examples in curriculum.epoch_callback(t + 1, never_asked(2)).examples:
            assert examples.sum() == np.ceil(round(share * n, 9))
            assert examples[-examples.sum() :].all()  # the easiest stand last here


def test_curricula_trained_together_give_what_each_gives_alone_by_their_own_abilities(rng):
    gold = pd.Series(rng.integers(0, 3, 60))
    inputs = crowds.encode_images(rng.normal(size=(60, 5)) + np.eye(3, 5)[gold])
    b = pd.Series(rng.normal(size=60))

    def made():
        reached = curricula.DDaCLAE(b, gold, floor=0.2, balanced=True)
        return [curricula.Curriculum(gold), reached]

    seeds = crowds.draw_members(2, 3, train_fraction=1.0, label_noise=0.0)
    options = {"epochs": 4, "batch_size": 8, "learning_rate": 0.05}
    both, which = made(), np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"2 curricula, and none at \[2\]"):
        curricula.together(both, which + 1)
    options["epoch_callback"] = curricula.together(both, which)
    crowd = crowds.train("encoder", inputs, gold, members=seeds * 2, **options)
    history = pd.concat([one.history() for one in both]).set_index(["epoch", "member"])
    of_engine = crowd.history.set_index(["epoch", "member"])["n_examples"]
    assert (history["n_examples"] == of_engine.loc[history.index]).all()
    theta = history["theta"].unstack("member")[[2, 3]]
    assert (theta.loc[4] > theta.loc[1] + 1).all() and theta.loc[1].nunique() > 1
    for place, one in enumerate(made()):
        options["epoch_callback"] = one.epoch_callback
        alone = crowds.train("encoder", inputs, gold, members=seeds, **options)
        expected = alone.log_probabilities(inputs)
        found = crowd.log_probabilities(inputs)[which == place]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        theirs, ours = one.history(), both[place].history()
        assert ours["n_examples"].tolist() == theirs["n_examples"].tolist()
        assert (ours["member"] == theirs["member"] + 2 * place).all()
