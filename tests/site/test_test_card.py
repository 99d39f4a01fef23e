"""The cells of notebook 02, the card of a test, on generated tests.

Reference: what the generated tests are. The cells run in this process, without a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from psychlm import corpora, ctt, report, simulate

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_test_card.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def card_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the cells on responses, and returns what they defined."""
    begin = report.begin
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    monkeypatch.setattr(report, "begin", lambda name, **_: begin(name))

    def run(responses: pd.DataFrame, groups: pd.DataFrame | None = None, **parameters: Any) -> dict:
        level = "binary" if responses.isin((0, 1, np.nan)).all(axis=None) else "ratings"
        persons = pd.DataFrame(index=responses.index) if groups is None else groups
        answers = corpora.Answers(responses, None, None, persons, "generated", level)
        monkeypatch.setattr(corpora, "read_answers", lambda *_, **__: answers)
        defined: dict[str, Any] = {"display": lambda *_, **__: None}
        with mpl.rc_context({"backend": "Agg"}):
            exec(CELLS[0], defined)
            defined |= {"file": "generated.csv", "fast": True, **parameters}
            for cell in CELLS[1:]:
                exec(cell, defined)
            defined["plt"].close("all")
        return defined

    return run


def answered(
    rng: np.random.Generator, n_persons: int, items: int | pd.DataFrame, model: str = "2PL"
) -> pd.DataFrame:
    """Return the responses of persons to so many items, or to items of a model."""
    theta = rng.normal(size=n_persons)
    items = simulate.items(items, rng) if isinstance(items, int) else items
    return simulate.responses(theta, items, rng, model=model)


def first_wording(card: dict[str, Any]) -> str:
    return next(words for holds, words in card["wordings"][:-1] if holds)


def generated(rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame | None, str]:
    """Return a test of any kind, its groups, and what it is in words."""
    n_items = int(rng.integers(3, 40))
    n_persons = int(np.exp(rng.uniform(np.log(8), np.log(500))))
    names = pd.Index([f"p{person}" for person in range(n_persons)])
    theta = pd.Series(rng.normal(size=n_persons), names)
    right = simulate.responses(theta, simulate.items(n_items, rng), rng)
    rated = simulate.items(n_items, rng, "graded", n_categories=int(rng.integers(3, 6)))
    ratings = simulate.responses(theta, rated, rng, model="graded")
    kind = rng.choice(["binary", "ratings", "mixed"])
    half = n_items // 2
    mixed = pd.concat([right.iloc[:, :half], ratings.iloc[:, half:]], axis=1)
    x = {"binary": right, "ratings": ratings, "mixed": mixed}[kind]
    gaps = rng.choice(["none", "random", "booklets"])
    if gaps == "random":
        x = x.mask(rng.random(x.shape) < rng.uniform(0, 0.95))
    elif gaps == "booklets":
        form = rng.integers(0, 3, n_persons)
        of_item = rng.integers(0, 4, n_items)  # items of form 3 are in every booklet
        x = x.mask((form[:, None] != of_item) & (of_item < 3))
    if rng.random() < 0.3:
        x.iloc[:, 0] = 1.0
    if rng.random() < 0.3:
        x.iloc[:, -1] = x.iloc[:, 1]
    x = x.dropna(how="all").dropna(how="all", axis=1)
    n_groups = int(rng.integers(0, 6))
    groups = pd.DataFrame({"g": rng.integers(0, max(n_groups, 1), len(x))}, x.index)
    words = f"{kind}, gaps {gaps}, {x.shape[0]} x {x.shape[1]}, {n_groups} groups"
    return x, groups if n_groups else None, words


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(3, 40))]
)
def test_the_card_of_generated_tests_ends_and_says_what_it_could_not_compute(
    seed, card_of, tmp_path
):
    x, groups, words = generated(np.random.default_rng(seed))
    varying = x.loc[:, x.nunique() > 1].dropna(how="all")
    if len(varying) < 5 or varying.shape[1] < 2:
        pytest.skip(f"{words}: no test is left")
    card = card_of(x, groups)
    reasons = card["not_computed"]
    numbers = {
        n["key"]: n for n in json.loads(next(tmp_path.rglob("02_*.json")).read_text())["numbers"]
    }
    # Alpha is there exactly where each pair of items has two persons, and is that of ctt.
    answered = varying.notna().astype(float)
    if (answered.T @ answered).to_numpy().min() >= 2 and "alpha" not in reasons:
        assert card["alpha"] == pytest.approx(ctt.cronbach_alpha(varying)), words
    else:
        assert reasons["alpha"], words
    for key, number in numbers.items():
        if key.startswith("card.") and number["value"] is None:
            assert "not computed: " in number["says"], (words, key)
    for copy, first in card["copies"].items():  # is told of, and accuses no other item
        both = varying[[copy, first]].dropna()
        assert (both[copy] == both[first]).all(), words
    if card["fit"] is not None:
        assert not card["fit"].items.index.isin(card["copies"].index).any(), words
        assert len(card["scores"]) == len(varying), words
        assert set(card["of_items"].index) <= set(varying.columns), words


def test_the_card_names_items_keyed_in_reverse_and_recodes_them(card_of):
    rng = np.random.default_rng(2)
    items = simulate.items(8, rng, "graded", n_categories=5).assign(a=1.8)
    x = answered(rng, 150, items, "graded") + 1
    turned = ["item-2", "item-5"]
    x[turned] = 6 - x[turned]
    found = card_of(x)
    assert found["turned"] == turned
    assert "precision" not in found["not_computed"]  # negative slopes tell ability too
    x[turned] = 6 - x[turned]  # as the reader does with reverse=
    recoded = card_of(x, scale=[500, 100])
    assert recoded["turned"] == []
    assert recoded["alpha"] > found["alpha"] + 0.1
    assert recoded["person_scores"]["scale_score"].mean() == pytest.approx(500, abs=15)
    assert {"scale_score", "scale_se"} <= set(recoded["conversion"])


def test_the_card_of_more_than_a_thousand_items_keeps_their_order(card_of):
    rng = np.random.default_rng(3)
    x = answered(rng, 60, 1100)
    x.columns = [f"q{item}" for item in range(1100)]  # q10 sorts before q2
    found = card_of(x)
    varying = x.loc[:, x.nunique() > 1]
    assert list(found["classical"].index) == list(varying.columns)
    total = varying.sum(axis=1)
    rest = [varying[item].corr(total - varying[item]) for item in varying]
    assert found["classical"]["rest"].to_numpy() == pytest.approx(rest)
    assert found["classical"]["H"].notna().sum() == 200


@pytest.mark.parametrize("n_others", [0, 5])
def test_five_copies_of_an_item_are_named_and_the_others_are_not_accused(n_others, card_of):
    rng = np.random.default_rng(7)
    x = answered(rng, 200, n_others + 1)
    x.columns = [f"q{item}" for item in range(n_others + 1)]
    x = x.assign(**{f"copy{number}": x["q0"] for number in range(4)})
    found = card_of(x)
    assert found["copies"].to_dict() == {f"copy{number}": "q0" for number in range(4)}
    first = first_wording(found)
    assert first == f"Leave out repeated items first (4 of {n_others + 5} items)."
    assert found["misfit"] == [] and not found["dependent"]
    if not n_others:
        assert found["not_computed"]["model"] == "a model needs 3 different items; here: 1"


@pytest.mark.parametrize("level", ["binary", "ratings"])
@pytest.mark.parametrize("n_items", [1, 2])
def test_the_card_of_one_item_or_two_says_what_cannot_be_computed(n_items, level, card_of):
    rng = np.random.default_rng(8)
    x = answered(rng, 200, 2).iloc[:, :n_items]
    found = card_of(x + rng.integers(0, 3, x.shape) if level == "ratings" else x)
    assert found["n_items"] == n_items
    assert found["not_computed"]["model"].startswith("a model needs 3 different items")
    assert ("alpha" in found["not_computed"]) == (n_items == 1)
    assert ("suspect keys" in found["not_computed"]) == (n_items == 1 and level == "binary")


def test_the_card_of_coin_flips_claims_no_ability(card_of):
    flips = pd.DataFrame(np.random.default_rng(4).integers(0, 2, (200, 10)).astype(float))
    found = card_of(flips.add_prefix("q"))
    first = first_wording(found)
    assert found["low"] <= 0
    assert first == "No common ability of the items is shown."
    assert found["not_computed"]["precision"] == "the answers show no common ability"


def test_the_standard_error_of_answers_at_the_ceiling_is_that_of_the_scores(card_of):
    rng = np.random.default_rng(5)
    items = simulate.items(6, rng, "graded", n_categories=4).assign(a=3.0)
    items[["b1", "b2", "b3"]] = [-3.0, -2.0, -0.5]
    x = answered(rng, 300, items, "graded")
    found = card_of(x, wished_se=0.4)
    assert found["mean_se"] == pytest.approx(
        (1 - found["reliability"]["marginal"]) ** 0.5, abs=0.02
    )
    assert found["mean_se"] == pytest.approx((found["scores"]["se"] ** 2).mean() ** 0.5, rel=0.12)
    assert found["mean_se"] > 1.2 * (found["weights"] @ found["whole_test"]) ** -0.5
    assert found["shortest"] is None  # though the mean of the information promises .4 by few items


def test_items_that_one_group_alone_was_asked_are_named_as_such(card_of):
    rng = np.random.default_rng(6)
    x = answered(rng, 200, 8)
    form = pd.DataFrame({"form": np.arange(200) % 2 + 1.0}, x.index)
    x.loc[form["form"] == 2, ["item-7", "item-8"]] = np.nan
    found = card_of(x, form)
    assert found["untested"] == ["by form 2, asked of one group only: ['item-7', 'item-8']"]
    assert found["groups_said"] == ["DIF by form: 200 of 200 persons (1: 100, 2: 100)"]


def test_what_few_persons_cannot_tell_is_said_and_no_item_called_clean(card_of):
    rng = np.random.default_rng(8)
    x = answered(rng, 24, 120)
    five = card_of(x.iloc[:5, :11])
    assert five["named"][0] == "no item could be judged"
    assert "needs 20" in five["not_computed"]["dimensions"]
    models = card_of(x)
    assert models["dependent"] is None
    assert "persons tell no pair apart" in models["not_computed"]["dependent pairs"]


def test_groups_too_small_to_be_compared_are_named(card_of):
    rng = np.random.default_rng(9)
    x = answered(rng, 110, 6)
    school = pd.DataFrame({"class": ["7a", "7b"] * 54 + ["7B", "7 a"]}, x.index)
    found = card_of(x, school)
    assert found["groups_said"][0].endswith("without groups of fewer than 50 ('7B': 1, '7 a': 1)")


def test_an_item_that_does_not_discriminate_has_no_difficulty(card_of):
    rng = np.random.default_rng(10)
    x = answered(rng, 300, 8)
    x["flip"] = (rng.random(300) < 0.7).astype(float)
    found = card_of(x)
    assert found["flat"] == ["flip"] and "flat slopes: 1" in found["named"]
    parameters = found["recorded"]["parameters"]
    assert np.isnan(parameters.loc["flip", "b"]) and parameters["b"].notna().sum() == 8
    assert "flip" not in found["inside"]


def test_slopes_that_few_persons_do_not_show_are_no_dependence(card_of):
    rng = np.random.default_rng([5, 200])  # the BIC chooses the Rasch model of these 2PL data
    items = simulate.items(20, rng)
    x = answered(rng, 200, items)
    found = card_of(x, fast=False, n_draws=5)
    assert found["chosen"] == "Rasch" and found["dependent"] == []
    values = found["irt"].q3(found["fit"], x).to_numpy()[np.triu_indices(20, 1)]
    assert values.max() - values.mean() > found["cut"]


def test_forms_that_no_person_links_are_named_and_their_items_not_compared(card_of):
    rng = np.random.default_rng(11)
    x = answered(rng, 200, 10)
    form = pd.DataFrame({"form": np.repeat([1, 2], 100)}, x.index)
    x.iloc[:100, 5:] = np.nan
    x.iloc[100:, :5] = np.nan
    found = card_of(x, form)
    assert "unlinked forms: 2" in found["named"] and not found["dif_tables"]
    assert found["not_computed"]["DIF by form"].startswith("items asked of one group only")
    assert found["not_computed"]["conversion of sum scores"] == "nobody answered all items"
    assert "group" not in found["judged"] and "not computed" in found["parts"][-1]


def test_a_model_with_slopes_at_their_bound_tells_no_precision(card_of):
    rng = np.random.default_rng(12)
    items = simulate.items(8, rng, "graded", n_categories=3).assign(a=1.2)
    x = answered(rng, 60, items, "graded")
    guttman = np.sort(x.drop(columns="item-1").sum(axis=1))[40]
    x["item-1"] = (x.drop(columns="item-1").sum(axis=1) >= guttman).astype(float)
    found = card_of(x)
    assert list(found["steep"]) == ["item-1"] and not found["fit"].converged
    assert "item-1" in found["not_computed"]["precision"]
    assert found["shortest"] is None and found["reliability"]["empirical"] is None
    assert any("(not converged)" in part for part in found["parts"])
    first = first_wording(found)
    assert first == "Not all of it can be told from these answers."
