"""Short forms of benchmarks, beside least squares on every candidate and held-out persons.

References: ordinary least squares by ``numpy.linalg.lstsq`` for every candidate item,
scikit-learn's ``RidgeCV`` on the chosen items, and metabench's released answers (Kipnis et al.
2025)."""

import numpy as np
import pandas as pd
import pytest
from command import run
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV

from psychlm import corpora, irt, simulate
from psychlm.frames import FrameError
from psychlm.irt._short_form import PENALTIES, forward


def bank(n_persons, n_items, seed):
    rng = np.random.default_rng(seed)
    return simulate.responses(rng.normal(size=n_persons), simulate.items(n_items, rng), rng)


@given(seed=st.integers(0, 10**6), n_items=st.integers(1, 5))
def test_the_next_item_lowers_the_squared_error_most_of_all_candidates(seed, n_items):
    answers = bank(60, 8, seed)
    answers = answers.loc[:, answers.nunique() > 1].to_numpy()
    goal = answers.mean(axis=1) + np.random.default_rng(seed).normal(0, 0.1, 60)
    n_items = min(n_items, answers.shape[1])
    chosen = forward(answers, goal, n_items)
    for step, item in enumerate(chosen):
        errors = {}
        for candidate in set(range(answers.shape[1])) - set(chosen[:step]):
            x = np.c_[np.ones(60), answers[:, [*chosen[:step], candidate]]]
            fitted = x @ np.linalg.lstsq(x, goal, rcond=None)[0]
            errors[candidate] = ((goal - fitted) ** 2).sum()
        assert errors[item] <= min(errors.values()) + 1e-9


def test_a_short_form_says_whether_its_choice_beats_random_items(tmp_path):
    """Items that differ in slope reward a choice; a bank of noise for ten persons does not."""
    rng = np.random.default_rng(5)
    steep = simulate.items(40, rng).assign(a=np.r_[np.full(6, 3.0), np.full(34, 0.2)], b=0.0)
    answers = simulate.responses(rng.normal(size=400), steep, rng)
    ability = answers.iloc[:, :6].sum(axis=1)
    form = irt.short_form(answers, 6, score=ability)
    assert form.gain[1] > 0 and form.verdict.endswith("predicts better than as many random items")
    errors = form.errors["rmse"]
    assert form.gain[0] == pytest.approx(errors["random"] - errors["forward"])
    noise = pd.DataFrame(rng.integers(0, 2, (60, 30))).rename_axis("person")
    form = irt.short_form(noise, 5, score=rng.normal(size=60))
    assert form.gain[1] < 0 and "random items predict" in form.verdict
    noise.to_csv(tmp_path / "noise.csv")
    assert "random items predict" in run("shorten", tmp_path / "noise.csv", "--n-items", "5").output


def test_weights_are_those_of_a_ridge_regression_and_score_applies_them():
    answers = bank(200, 20, 2)
    form = irt.short_form(answers, 6, rng=0)
    x, y = answers[form.items.index], 100 * answers.mean(axis=1)
    regression = RidgeCV(PENALTIES).fit(x.to_numpy(), y.to_numpy())
    np.testing.assert_allclose(form.items["weight"], regression.coef_)
    new = bank(50, 20, 3)
    expected = regression.predict(new[form.items.index].to_numpy())
    np.testing.assert_allclose(form.score(new), expected)
    shuffled = new.sample(frac=1, random_state=0)[answers.columns[::-1]]
    pd.testing.assert_series_equal(form.score(shuffled).loc[new.index], form.score(new))


def test_the_error_is_that_of_new_persons_and_relatives_are_held_out_together():
    answers = bank(80, 40, 4)
    score = pd.Series(np.random.default_rng(0).normal(50, 10, 80), answers.index)  # no relation
    copies = pd.concat([answers, answers.set_axis(answers.index + "b")])
    scores = pd.concat([score, score.set_axis(score.index + "b")])
    family = pd.Series(copies.index.str.rstrip("b"), copies.index)
    options = {"score": scores, "rng": 1}
    alone = irt.short_form(copies, 20, **options).errors.loc["forward", "rmse"]
    together = irt.short_form(copies, 20, families=family, **options).errors.loc["forward", "rmse"]
    assert alone < 9 < together  # a copy in the training part gives the score away


def test_chosen_items_of_metabench_predict_new_organisations_better_than_random_ones():
    leaderboard = corpora.metabench_scores()["arc"].dropna()
    answers = corpora.metabench("arc")
    answers = answers.loc[answers.index.intersection(leaderboard.index)].iloc[::3]
    family = pd.Series(answers.index.str.split("/").str[0], answers.index)
    form = irt.short_form(answers, 20, score=leaderboard, families=family)
    assert form.errors.loc["forward", "high"] < form.errors.loc["random", "low"]
    assert form.errors.loc["forward", "rmse"] < 3.5  # points of 100


@pytest.mark.parametrize(
    ("n_items", "options", "message"),
    [
        (7, {}, "7 items cannot be chosen of 6"),
        (2, {"score": pd.Series(0.5, ["person-2"])}, "'person-1'.* have no score"),
        (2, {"families": pd.Series(1, bank(40, 6, 5).index)}, "there are 1"),
    ],
)
def test_what_cannot_be_shortened_is_named(n_items, options, message):
    answers = bank(40, 6, 5)
    with pytest.raises(ValueError, match=message):
        irt.short_form(answers, n_items, **options)
    answers.loc["person-3", answers.columns[0]] = np.nan
    with pytest.raises(FrameError, match="person-3.*have missing responses"):
        irt.short_form(answers, 2)


def test_a_form_scores_right_and_wrong_answers_only():
    rng = np.random.default_rng(0)
    bank = simulate.responses(rng.normal(size=100), simulate.items(8, rng), rng)
    form = irt.short_form(bank, 3)
    with pytest.raises(FrameError, match="hold values other than 0, 1"):
        form.score(bank * 100)
