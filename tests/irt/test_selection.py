"""Item selection against published scales (Lalor, Wu & Yu 2016) and planted flaws; test forms."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from analyses.lalor2020_crowds import select_by_difficulty
from analyses.lalor2020_test_sets import confirm
from psychlm import corpora
from psychlm.frames import FrameError
from psychlm.irt import assemble_form, information_range, select_items

N_GOOD = 16


def planted(rng, n_persons=1500, mean=0.0):
    """16 sound items, a flat, a negative and a bent one, and a twin of one of the first."""
    theta = rng.normal(mean, 1, n_persons)
    difficulty = np.linspace(-1.5, 1.5, N_GOOD)
    slope = np.tile([1.2, 1.6, 2.0, 2.4], N_GOOD // 4)
    columns = {f"good{k:02d}": expit(slope[k] * (theta - difficulty[k])) for k in range(N_GOOD)}
    columns |= {
        "flat": expit(0.15 * theta + 0.3),
        "negative": expit(-1.2 * theta),
        "bent": 0.15 + 0.7 * np.exp(-((theta - 0.8) ** 2)),
    }
    answers = pd.DataFrame({name: (rng.random(n_persons) < p) * 1.0 for name, p in columns.items()})
    copied = rng.random(n_persons) < 0.6
    fresh = (rng.random(n_persons) < columns["good07"]) * 1.0
    answers["twin"] = np.where(copied, answers["good07"], fresh)
    return answers


def label_set(group, label):
    """Return the 30 items of a gold label, numbered in file order as in the authors' scripts."""
    chosen = corpora.lalor2016(group).items_keyed(label)
    return chosen.set_axis(range(1, 31), axis=1), dict(enumerate(chosen.columns, start=1))


def went(selection):
    return list(zip(selection.removed["step"], selection.removed["item"], strict=True))


def test_planted_flaws_are_found_and_hardly_a_sound_item_goes():
    found = select_items(planted(np.random.default_rng(1)), guessing=False)
    steps = {item: step for step, item in went(found)}
    assert steps["flat"] == steps["negative"] == "slope"
    assert "bent" in steps
    assert ("twin" in steps) != ("good07" in steps)
    assert steps.get("twin", steps.get("good07")) == "dependence"
    lost = [item for item in steps if item.startswith("good")]
    assert len(lost) <= 2
    assert found.fit.converged and list(found.fit.items.index) == list(found.retained)


def test_guessing_is_tested_item_by_item(rng):
    theta = rng.standard_normal(3000)
    difficulty = np.linspace(-1, 1.2, 10)
    guess = np.where(np.arange(10) >= 7, 0.3, 0.0)
    p = guess + (1 - guess) * expit(2 * (theta[:, None] - difficulty))
    responses = pd.DataFrame((rng.random(p.shape) < p) * 1.0, columns=[f"q{k}" for k in range(10)])
    found = select_items(responses)
    rows = found.decisions[found.decisions["step"] == "guessing"]
    assert rows.iloc[0]["verdict"] == "3PL"
    chosen = rows.iloc[1:].set_index("item")["verdict"]
    assert (chosen[["q7", "q8", "q9"]] == "3PL").sum() >= 2
    assert (chosen[:5] == "2PL").all()
    free = found.fit.items["c_is_free"]
    assert set(free.index[free]) == set(chosen.index[chosen == "3PL"]) & set(found.retained)


@pytest.mark.parametrize(
    ("group", "label", "options", "order_of_leaving"),
    [
        (5, "entailment", {}, [("slope", 1), ("slope", 22)]),
        (5, "neutral", {}, [("fit", 7), ("dependence", 3)]),
        (4, "neutral", {"correction": "bh"}, [("dependence", 23), ("dependence", 17)]),
        (
            5,
            "contradiction",
            {"set_aside": [22, 26]},
            [("inspection", 22), ("inspection", 26), ("slope", 9), ("slope", 10), ("slope", 14)]
            + [("fit", 11), ("fit", 30), ("fit", 28), ("dependence", 19), ("dependence", 20)],
        ),
    ],
)
def test_four_published_scales_are_found_item_by_item(
    group, label, options, order_of_leaving, reference_dir
):
    responses, names = label_set(group, label)
    found = select_items(responses, guessing=False, **options)
    assert went(found) == order_of_leaving
    published = pd.read_csv(reference_dir / "irt" / "published_selection_items.csv")
    published = published[published["scale"] == f"{group}GS_{label}"].set_index("index")
    assert list(found.retained) == sorted(published.index)
    assert [names[k] for k in found.retained] == published.sort_index()["item"].to_list()
    items = found.fit.items
    np.testing.assert_allclose(items["a"], published.sort_index()["a"], rtol=0.01)
    np.testing.assert_allclose(items["b"], published.sort_index()["b"], rtol=0.01, atol=0.01)


def test_a_sound_scale_holds_for_new_persons_unless_an_item_changed(rng):
    good = [f"good{k:02d}" for k in range(N_GOOD)]
    selection = select_items(planted(rng)[good], guessing=False)
    found = confirm(selection.fit, planted(rng, 1200, mean=0.5))
    assert found.m2.rmsea < 0.03
    assert (found.items["p"] > 0.05).all()
    assert [found.ability_mean, found.ability_sd] == pytest.approx([0.5, 1], abs=0.15)
    assert (found.pairs["p"] < 0.05).mean() < 0.02
    # An item that changed is seen.
    new = planted(rng, 1200)
    new["good05"] = rng.permutation(new["good05"])
    found = confirm(selection.fit, new)
    assert found.items.loc["good05", "p"] < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": ("slope", "taste")}, "taste"),
        ({"correction": "none"}, "'none' one of"),
        ({"set_aside": ["q99"]}, "q99"),
        ({"set_aside": [f"good{k:02d}" for k in range(16)] + ["flat"]}, "at least 4"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message, rng):
    with pytest.raises(ValueError, match=message):  # FrameError is one
        select_items(planted(rng, 100), **options)


def test_forms_are_made_of_the_steep_items_whose_information_is_in_range():
    bank = {"a": [2.0, 1.9, 0.8, 2.1, 1.8], "b": [-1.0, -1.2, -1.0, -6.0, -0.5]}
    items = pd.DataFrame(bank, ["q1", "q2", "q3", "q4", "q5"])
    assert list(assemble_form(items, 2, -2.8, 0.7)) == ["q1", "q2"]
    with pytest.raises(FrameError, match="cannot be made of 5"):
        assemble_form(items, 6, -2.8, 0.7)
    # a^2 p (1 - p) >= 4 where |logit p| <= 2 arcosh(a / 4)
    one, half_width = items.assign(a=11.3).iloc[:1], 2 * np.arccosh(11.3 / 4) / 11.3
    found = information_range(one)
    assert (found.peak, found.peak_ability) == pytest.approx((11.3**2 / 4, -1))
    assert (found.low, found.high) == pytest.approx((-1 - half_width, -1 + half_width), abs=0.011)
    assert np.isnan(information_range(items.assign(a=1.0)[:2]).low)


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [  # Lalor (2020), section 5.3.3, with d = 1
        ("AVI", [0, 0, 1, 1, 0, 0]),
        ("AVO", [1, 0, 0, 0, 1, 1]),
        ("UB", [1, 1, 1, 1, 0, 0]),
        ("LB", [0, 0, 0, 0, 1, 1]),
    ],
)
def test_difficulty_filters_keep_what_the_section_says(strategy, kept):
    difficulties = [-3.0, -1.0, -0.5, 0.5, 1.5, 2.0]
    found = select_by_difficulty(strategy, difficulties, fraction=np.mean(kept))
    assert found.astype(int).tolist() == kept
