"""The four regimes of fine-tuning. Reference: Laverghetta et al. (2021), section 3: its partitions and its regimes."""

import numpy as np
import pandas as pd
import pytest
import tiny_models
from test_finetune import QUICK, pairs, weights

from psychlm.frames import FrameError
from psychlm.lm.regimes import REGIMES, regimes, training_partitions

HOW = QUICK | {"epochs": 8, "learning_rate": 5e-3, "patience": 8, "development": pairs(24, 5)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("bert") / "tiny", "bert")


def test_partitions_are_those_of_the_paper():
    banks = {name: pairs(5, seed) for seed, name in enumerate(["snli", "mnli", "anli"])}
    made = training_partitions(banks)
    assert list(made) == ["snli", "mnli", "snli+mnli", "snli+mnli+anli"]
    assert [len(items) for items in made.values()] == [5, 5, 10, 15]
    assert made["snli+mnli"]["item_id"].tolist() == [
        f"{b}:s{i}-{k}" for i, b in enumerate(["snli", "mnli"]) for k in range(5)
    ]
    assert list(training_partitions({"snli": pairs(5)})) == ["snli"]
    with pytest.raises(FrameError, match="no bank"):
        training_partitions({})


@pytest.fixture(scope="module")
def made(bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("regimes")
    parts = training_partitions({"small": pairs(32), "large": pairs(64, 1)})
    return regimes(
        pairs(30, 9), {k: parts[k] for k in ("small", "small+large")}, bert, out=out, **HOW
    )


def test_every_regime_partition_and_seed_is_a_person(made):
    assert made.responses.shape == (1 + 1 + 2 + 2, 30)
    assert made.responses.index.equals(made.persons.index)
    assert "tiny-pretrain-finetune-small+large-seed0" in made.persons.index
    assert "tiny-nopretrain-nofinetune-seed0" in made.persons.index
    counts = made.persons.groupby("regime").size()
    assert counts.to_dict() == {"zero shot": 1, "pre-train only": 1, "fine-tune only": 2, "both": 2}
    assert (
        made.persons["finetuned"].isna()
        == made.persons["regime"].isin(["zero shot", "pre-train only"])
    ).all()


def test_every_seed_is_a_person_of_its_own(bert, tmp_path):
    made = regimes(
        pairs(12, 9),
        {"small": pairs(8)},
        bert,
        seeds=(3, 4),
        which=["zero shot"],
        out=tmp_path,
        **HOW,
    )
    assert made.persons["seed"].tolist() == [3, 4]
    one, other = (weights(folder)["classifier.weight"] for folder in made.persons["folder"])
    assert not (one == other).any()


def test_only_what_is_fine_tuned_knows_the_labels(made):
    accuracy = made.responses.mean(axis=1).groupby(made.persons["finetuned"].notna()).mean()
    assert accuracy[True] > 0.8 > 0.65 > accuracy[False]
    assert made.persons["mcc"].notna().equals(made.persons["finetuned"].notna())


def test_weights_come_from_where_the_regime_says(made, bert):
    name = "bert.encoder.layer.0.output.dense.weight"
    folder = made.persons["folder"]
    own = weights(bert)[name]
    assert (weights(folder["tiny-pretrain-nofinetune-seed0"])[name] == own).all()
    drawn = weights(folder["tiny-nopretrain-nofinetune-seed0"])[name]
    assert not (drawn == own).any()
    learned = weights(folder["tiny-nopretrain-finetune-small-seed0"])[name]
    assert (
        np.corrcoef(drawn.flatten(), learned.flatten())[0, 1] > 0.3
    )  # the same draw, trained further


def test_a_second_call_reads_what_is_there(made, bert):
    out = pd.Series(made.persons["folder"]).iloc[0].rsplit("/", 1)[0]
    parts = training_partitions({"small": pairs(32), "large": pairs(64, 1)})
    again = regimes(
        pairs(30, 9), {"small": parts["small"]}, bert, seeds=(0,), which=["both"], out=out, **HOW
    )
    pd.testing.assert_frame_equal(again.responses, made.responses.loc[again.responses.index])
    assert (again.persons["seconds"] == made.persons["seconds"][again.persons.index]).all()


def test_wrong_requests_are_explained(bert):
    with pytest.raises(FrameError, match=r"regimes \['few shot'\] are unknown; choose among"):
        regimes(pairs(4), {"snli": pairs(8)}, bert, which=["few shot"])
    with pytest.raises(FrameError, match="no partition"):
        regimes(pairs(4), {}, bert)
    with pytest.raises(FrameError, match=r"no development items for the partitions \['mnli'\]"):
        regimes(
            pairs(4), {"snli": pairs(8), "mnli": pairs(8)}, bert, development={"snli": pairs(4)}
        )
    assert list(REGIMES) == ["zero shot", "pre-train only", "fine-tune only", "both"]
