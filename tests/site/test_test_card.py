"""The card of a test. References: the package's own numbers, and the truth of simulated answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from psychlm import corpora, ctt, irt
from psychlm.site import cards

pytestmark = pytest.mark.exhaustive  # each runs the notebook: ten seconds


def numbers_of(folder: Path, **parameters: Any) -> dict[str, dict]:
    """Return the numbers of a card by key."""
    content = cards.make("test", parameters, folder / "card")
    assert content == json.loads((folder / "card.json").read_text(encoding="utf-8"))
    return {number["key"]: number for number in content["numbers"]}


def test_the_card_of_lsat6_holds_the_numbers_of_the_package(tmp_path):
    numbers, responses = numbers_of(tmp_path), corpora.lsat6()
    fits = {model: irt.fit(responses, model) for model in ("Rasch", "2PL")}
    expected = {
        "reliability.alpha": ctt.cronbach_alpha(responses),
        "reliability.sem_points": ctt.standard_error_of_measurement(responses),
        "reliability.H": ctt.scalability(responses)["scale"],
        "precision.marginal": fits["Rasch"].reliability()["marginal"],
        **{f"models.{model}.loglik_nats": fit.loglik for model, fit in fits.items()},
        **{f"parameters.{item}.b": b for item, b in fits["Rasch"].items["b"].items()},
        **{f"items.{item}.rest": r for item, r in ctt.item_rest_correlation(responses).items()},
    }
    for key, value in expected.items():
        assert numbers[key]["value"] == pytest.approx(value, abs=1e-9), key
    assert numbers["wrong_key_auc.arc.mean"]["value"] >= 0.95
    assert numbers["wrong_key_auc.mmlu.mean"]["value"] >= 0.95


def test_the_card_of_raw_answers_finds_the_wrong_key_and_the_item_with_dif(tmp_path):
    rng = np.random.default_rng(5)
    theta, sex = rng.normal(size=600), rng.integers(0, 2, 600)
    difficulty = np.linspace(-1, 1, 12) + np.where(np.arange(12) == 3, 1.5, 0) * sex[:, None]
    knows = rng.random((600, 12)) < 1 / (1 + np.exp(-1.5 * (theta[:, None] - difficulty)))
    answers = pd.DataFrame(np.where(knows, "A", rng.choice(list("BCD"), (600, 12))))
    answers = answers.rename(columns=lambda place: f"q{place}").mask(
        rng.random((600, 12)) < 0.01, "99"
    )
    table = answers.assign(sex=sex).rename_axis("student")
    table.to_csv(tmp_path / "answers.csv")
    key = pd.Series("A", answers.columns, name="key").rename_axis("item")
    key["q7"] = "B"
    key.to_csv(tmp_path / "key.csv")
    files = {"file": str(tmp_path / "answers.csv"), "key": str(tmp_path / "key.csv")}
    numbers = numbers_of(tmp_path, **files, group="sex", missing=["99"], drop=[], level="")
    assert numbers["card.items_with_suspect_key"]["says"] == "q7"
    assert "q3 (sex)" in numbers["card.items_with_dif"]["says"]
    assert numbers["card.persons"]["value"] == 600 and numbers["card.items"]["value"] == 12


def test_the_card_of_ratings_compares_graded_models(tmp_path):
    ratings = corpora.lalor2018_ratings().iloc[:300, :8]
    ratings.rename_axis("person").to_csv(tmp_path / "ratings.csv")
    chosen = list(ratings.columns[:7])
    numbers = numbers_of(tmp_path, file=str(tmp_path / "ratings.csv"), items=chosen)
    assert numbers["card.items"]["value"] == 7
    expected = irt.fit(ratings[chosen], "graded", standard_errors=False).loglik
    assert numbers["models.graded.loglik_nats"]["value"] == pytest.approx(expected, abs=1e-3)
