"""Abilities beside R's mirt; test information; extreme patterns.

The integrals and maxima of every model are in ``test_models``."""

import numpy as np
import pandas as pd
import pytest

from psychlm import irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import curves


@pytest.mark.parametrize("method", ["EAP", "MAP", "ML", "WLE"])
@pytest.mark.parametrize("model", ["2PL", "3PL"])
def test_scores_with_mirts_items_are_mirts_scores(dataset, model, method, mirt, read_responses):
    responses = read_responses(dataset)
    expected = mirt("theta_first20", dataset, model)
    if expected.empty:
        pytest.skip(f"mirt's scores of {dataset} are not among the references")
    items = mirt("items", dataset, model).set_index(responses.columns)
    known = items[["a", "intercept_d", "c"]].set_axis(["a", "d", "c"], axis=1)
    found = irt.score(known, responses.iloc[: len(expected)], method)
    theirs = expected[method].to_numpy(float)
    finite = np.isfinite(theirs) & (np.abs(theirs) < 15)
    np.testing.assert_allclose(found["theta"][finite], theirs[finite], atol=0.005)
    np.testing.assert_allclose(found["se"][finite], expected[f"SE_{method}"][finite], rtol=0.01)


@pytest.mark.parametrize("model", ["2PL", "Rasch"])
@pytest.mark.parametrize("dataset", ["LSAT6", "LSAT7"])
def test_test_information_is_mirts(dataset, model, mirt):
    items = mirt("items", dataset, model).rename(columns={"intercept_d": "d"})
    theirs = mirt("test_information", dataset, model)
    found = curves.test_information(theirs["theta"], items[["a", "b", "c", "d"]])
    np.testing.assert_allclose(found, theirs["test_information"], rtol=1e-4)


def test_perfect_and_zero_patterns_have_infinite_ml_and_finite_other_scores(rng):
    items = simulate.items(10, rng)
    extreme = pd.DataFrame([[1.0] * 10, [0.0] * 10], ["all", "none"], items.index)
    ml = irt.score(items, extreme, "ml")
    assert ml["theta"].tolist() == [np.inf, -np.inf]
    assert ml["se"].isna().all()
    for method in ("eap", "map", "wle"):
        found = irt.score(items, extreme, method)
        assert np.isfinite(found).all(axis=None)
        assert found.loc["all", "theta"] > 0 > found.loc["none", "theta"]


def test_thousands_of_items_do_not_underflow_and_narrow_the_error(rng):
    items = simulate.items(20_000, rng)
    theta = pd.Series([-2.0, 0.0, 1.5], index=["low", "middle", "high"])
    answered = simulate.responses(theta, items, rng)
    for method in ("eap", "map", "ml", "wle"):
        found = irt.score(items, answered, method)
        assert (found["se"] < 0.05).all()
        assert (np.abs(found["theta"] - theta) < 4 * found["se"]).all()


@pytest.mark.parametrize("method", ["ml", "wle"])
def test_a_very_steep_item_far_from_a_person_tells_nothing_more(method) -> None:
    a, d, c = [400.0, 1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 3.0, 3.0, 3.0], [0.0, 0.2, 0.2, 0.0, 0.0]
    items = pd.DataFrame({"a": a, "d": d, "c": c}, index=list("abcde"))
    responses = pd.DataFrame([[0, 1, 0, 0, 1], [0, 1, 1, 0, 1]], columns=items.index)
    found = irt.score(items, responses, method=method)
    without = irt.score(items[1:], responses.drop(columns="a"), method=method)
    np.testing.assert_allclose(found, without, atol=1e-8)


@pytest.mark.parametrize("names", [("c", "u"), ("g", "u"), ("guessing", "upper")])
def test_asymptotes_are_read_by_the_names_of_other_programs(names):
    """By hand: u and c are the limits of the curve; mirt prints them as g and u."""
    lower, upper = names
    items = pd.DataFrame({"a": [1.0, 2.0], "b": 0.0, lower: 0.2, upper: 0.9})
    np.testing.assert_allclose(curves.probability([-99.0, 99.0], items)[[0, 1], 0], [0.2, 0.9])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"a": None}, "columns a and b"),
        ({"u": 1.2}, "upper asymptote"),
        ({"c": 1.2}, "outside"),
        ({"c": "often"}, "not all numbers"),
        ({"d": [1.0, -2.0, 0.7]}, r"items \[0\] have a b and a d that disagree.*irt.link"),
    ],
)
def test_tables_that_give_no_curve_are_refused(change, match):
    items = pd.DataFrame({"a": [1.0, 2.0, 0.7], "b": [0.0, 1.0, -1.0], "c": [0.0, 0.2, 0.1]})
    for function in (curves.probability, curves.item_information):
        with pytest.raises(FrameError, match=match):
            function(0.0, items.assign(**change).dropna(axis=1))


def test_who_answered_nothing_has_a_row_without_ability_and_blank_items_are_not_asked():
    items = pd.DataFrame({"a": 1.0, "b": [-1.0, 0.0, 1.0]}, ["q1", "q2", "q3"])
    answers = pd.DataFrame(
        [[1, np.nan, 0], [np.nan] * 3, [0, np.nan, 1]], ["ann", "bob", "eve"], items.index
    )
    with pytest.warns(irt.IRTWarning, match=r"\['bob'\] answered no item"):
        found = irt.score(items, answers)
    expected = irt.score(items, answers.loc[["ann", "eve"], ["q1", "q3"]])
    pd.testing.assert_frame_equal(found.loc[["ann", "eve"]], expected)
    assert found.loc["bob"].isna().all()
    pd.testing.assert_frame_equal(irt.score(items, answers.iloc[:1]), expected.iloc[:1])
    with pytest.warns(irt.IRTWarning, match="answered no item"):
        assert irt.score(items, answers.iloc[1:2]).isna().all(axis=None)


def test_levels_other_than_the_models_categories_are_refused_and_the_advice_works():
    rng = np.random.default_rng(3)
    items = simulate.items(4, rng, "graded", n_categories=3)
    responses = simulate.responses(rng.normal(size=30), items, rng, model="graded")
    expected = irt.score(items, responses, model="graded")
    with pytest.raises(FrameError, match="name the 3 answers to the item in a table.*levels="):
        irt.score(items, responses + 1, model="graded")
    levels = dict.fromkeys(items.index, [1, 2, 3])
    found = irt.score(items, responses + 1, model="graded", levels=levels)
    pd.testing.assert_frame_equal(found, expected)
    for wrong in ([1, 2, 3, 4, 5], [1, 2], [3, 2, 1], [1, 2, 2]):
        levels = dict.fromkeys(items.index, wrong)
        calls = (
            lambda levels=levels: irt.score(items, responses + 1, model="graded", levels=levels),
            lambda levels=levels: irt.ModelTables.of_items(items, "graded", levels=levels),
        )
        for call in calls:
            with pytest.raises(FrameError, match="has 3 categories and the levels"):
                call()
    with pytest.raises(FrameError, match="are not among the levels"):
        irt.score(items, responses, model="graded", levels={})
