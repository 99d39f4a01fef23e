"""Laverghetta et al. (2021): the thresholds of section 4, and the means of the answers."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
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


@pytest.mark.filterwarnings("ignore:y. constant")
@pytest.mark.filterwarnings("ignore:.*lost their end")
def test_encoders_learn_in_four_regimes_and_answer_the_diagnostic(bert, tmp_path):
    if data.where("laverghetta2021/diagnostic_results") is None:
        absent("laverghetta2021/diagnostic_results")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(stand_in_hub.pairs([f"{k}.jpg#0r1n" for k in range(60)], 1)))
    given = {"n_train": 30, "n_stop": 9, "seeds": [0], "epochs": 2, "device": "cpu"}
    responses, models = laverghetta2021.train_in_four_regimes([str(bert)], [pairs], **given)
    assert sorted(models["regime"]) == sorted(laverghetta2021.REGIMES.values())
    study = corpora.laverghetta2021()
    assert set(study.panel.columns) <= set(responses.columns)  # what people saw is asked
    label = study.items.set_index("item_id")["answer"]
    asked = (study.panel.mean(), responses, models["regime"], label)
    groups = laverghetta2021.agreement_by_group(*asked)
    for name, row in groups.iterrows():
        some = responses.loc[models["regime"] == name, study.panel.columns]
        assert row["n"] == 1 and row["accuracy"] == pytest.approx(some.to_numpy().mean())
    assert groups["accuracy"].is_monotonic_increasing


def test_of_the_printed_bands_of_p_one_cannot_be_that_of_its_correlation() -> None:
    study = corpora.laverghetta2021()
    n_items = {code: len(study.category_items(code)) for code in corpora.LAVERGHETTA_CATEGORIES}
    bands = laverghetta2021.printed_p_bands(n_items)
    assert len(bands) == 63
    wrong = bands[~bands["possible"]]
    assert wrong[["table", "category", "population"]].to_numpy().tolist() == [
        ["table1", "MN", "lstm"]
    ]
    t = 0.27 * np.sqrt(13 / (1 - 0.27**2))  # r = 0.27 of 15 items
    assert wrong["p"].iloc[0] == pytest.approx(2 * scipy.stats.t.sf(t, 13))


def test_partitions_come_widest_first_and_the_row_of_world_knowledge_with_the_second(rng) -> None:
    study = corpora.laverghetta2021()
    people = study.phases["WK"]
    takers = {"human": people, "transformer": study.population("transformer")}
    takers["lstm"] = study.population("lstm")
    table = laverghetta2021.agreement_by_rank(takers, rng)
    widths = table["width"].unstack("rank")
    assert (widths.diff(axis=1).iloc[:, 1:].fillna(-1) < 0).all(axis=None)
    printed = data.published("laverghetta2021.table2").set_index(["category", "population"])["r"]
    assert round(table.loc[("transformer", 2), "r"], 2) == printed["WK", "transformer"]
    assert round(table.loc[("lstm", 1), "r"], 2) == printed["WK", "lstm"]
