"""Laverghetta et al. (2021): the thresholds of section 4, and the means of the answers."""

import numpy as np
import pandas as pd
import pytest
import stand_in_hub
from conftest import absent

from analyses import laverghetta2021
from psychlm import corpora, data


def test_the_share_of_the_responses_given_decides_at_the_papers_thresholds():
    rows = {k: [1] * k + [0] * (20 - k) for k in (7, 8, 12, 13)}  # 40 and 60 %: for review
    responses = pd.DataFrame(rows).T.add_prefix("q")
    decisions = laverghetta2021.screen(responses).tolist()
    assert decisions == ["reject", "review", "review", "accept"]
    responses.iloc[0, 7:11] = np.nan  # 7 of 16
    assert laverghetta2021.screen(responses).iloc[0] == "review"


def test_average_inter_item_correlation_is_the_mean_over_pairs(rng):
    responses = pd.DataFrame(rng.integers(0, 2, size=(30, 6)), columns=list("abcdef"))
    subsets = np.array([[0, 1, 2], [1, 3, 5]])
    ours = laverghetta2021.average_inter_item_correlation(responses, subsets)
    r = responses.corr().to_numpy()
    by_hand = [np.mean([r[i, j] for i in s for j in s if i < j]) for s in subsets]
    assert ours == pytest.approx(by_hand)


def test_models_that_prefer_a_label_agree_less_within_labels(rng):
    people = pd.Series([0.9, 0.8, 0.85, 0.3, 0.2, 0.25], index=list("abcdef"))
    label = pd.Series([0, 0, 0, 1, 1, 1], index=people.index)
    right = rng.random((400, 6)) < np.where(label == 0, 0.9, 0.1)
    models = pd.DataFrame(right, columns=people.index)
    one_group = pd.Series("all", models.index)
    table = laverghetta2021.agreement_by_group(people, models.astype(float), one_group, label)
    assert table.loc["all", "rho"] > 0.7
    assert abs(table.loc["all", "rho_within_label"]) < table.loc["all", "rho"]


def test_encoders_learn_in_four_regimes_and_answer_the_diagnostic(bert, tmp_path):
    if data.where("laverghetta2021/diagnostic_results") is None:
        absent("laverghetta2021/diagnostic_results")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(stand_in_hub.pairs([f"{k}.jpg#0r1n" for k in range(60)], 1)))
    given = {"n_train": 30, "n_stop": 9, "seeds": [0, 1], "epochs": 2, "device": "cpu"}
    responses, models = laverghetta2021.train_in_four_regimes([str(bert)], [pairs], **given)
    assert sorted(models["regime"]) == sorted([*laverghetta2021.REGIMES.values()] * 2)
    study = corpora.laverghetta2021()
    assert set(study.panel.columns) <= set(responses.columns)  # what people saw is asked
    label = study.items.set_index("item_id")["answer"]
    asked = (study.panel.mean(), responses, models["regime"], label)
    groups = laverghetta2021.agreement_by_group(*asked)
    for name, row in groups.iterrows():
        some = responses.loc[models["regime"] == name, study.panel.columns]
        assert row["n"] == 2 and row["accuracy"] == pytest.approx(some.to_numpy().mean())
    assert groups["accuracy"].is_monotonic_increasing
