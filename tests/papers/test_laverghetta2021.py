"""Screening of participants: a case per rule of Laverghetta et al. (2021), section 4; training
regimes: the means of the answers."""

import numpy as np
import pandas as pd
import pytest
import stand_in_hub
from conftest import absent

from psychlm import corpora, data
from psychlm.frames import FrameError
from psychlm.papers import laverghetta2021
from psychlm.papers.laverghetta2021 import screen


def graded(right, n_items=20):
    """One row per person with so many right responses out of n_items."""
    rows = [[1] * k + [0] * (n_items - k) for k in right]
    return pd.DataFrame(rows, index=[f"p{i}" for i in range(len(right))]).add_prefix("q")


@pytest.mark.parametrize(
    ("right", "checks", "decision"),
    [
        (7, 4, "reject"),  # 35 %: below 40 %, attentive or not
        (8, 3, "accept"),  # 40 % exactly is not below; 75 % of the checks exactly is enough
        (8, 2, "reject"),
        (12, 2, "reject"),  # 60 % exactly is not above
        (13, 0, "accept"),  # 65 %: above 60 %, attentive or not
    ],
)
def test_scores_and_attention_checks_decide_at_the_papers_thresholds(right, checks, decision):
    row = screen(graded([right]), attention=graded([checks], 4)).iloc[0]
    assert row.tolist() == [decision, right / 20, checks / 4]


def test_without_attention_checks_scores_of_the_responses_given_decide():
    assert screen(graded([7, 10, 13]))["decision"].tolist() == ["reject", "review", "accept"]
    responses = pd.DataFrame({"a": [1, 0], "b": [np.nan, 0], "c": [1, 1]}, index=["half", "full"])
    assert screen(responses)["score"].to_dict() == {"half": 1.0, "full": 1 / 3}


def test_only_the_first_submission_in_time_of_a_worker_or_address_is_kept():
    persons = pd.DataFrame(
        {"worker": ["A", "B", "A", None, None], "address": list("xyzy") + [""]},
        index=[f"p{i}" for i in range(5)],
    ).assign(submitted=[3, 2, 1, 4, 5])
    result = screen(graded([20, 20, 2, 20, 20]), persons=persons)
    # p2 came before p0 and is rejected by its score; p3 shares p1's address.
    assert result["decision"].tolist() == ["reject", "accept", "reject", "reject", "accept"]
    with pytest.raises(FrameError, match="attention and responses must have the same persons"):
        screen(graded([10, 10]), attention=graded([4], 4))


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
    models = pd.DataFrame(
        rng.random((400, 6)) < np.where(label == 0, 0.9, 0.1), columns=people.index
    )
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
    assert models.groupby("regime").size().to_dict() == dict.fromkeys(
        laverghetta2021.REGIMES.values(), 2
    )
    study = corpora.laverghetta2021()
    assert set(study.panel.columns) <= set(responses.columns)  # what people saw is asked
    label = study.items.set_index("item_id")["answer"]
    groups = laverghetta2021.agreement_by_group(
        study.panel.mean(), responses, models["regime"], label
    )
    for name, row in groups.iterrows():
        some = responses.loc[models["regime"] == name, study.panel.columns]
        assert row["n"] == 2 and row["accuracy"] == pytest.approx(some.to_numpy().mean())
    assert groups["accuracy"].is_monotonic_increasing
