"""Ability during training. References: the model's answers graded by hand from its logits and scored by irt.score; and
the Trainer's own log."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from test_finetune import QUICK, pairs, sentences
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

from psychlm import irt, plots
from psychlm.frames import FrameError
from psychlm.lm._load import ModelError
from psychlm.lm.ability_callback import AbilityCallback
from psychlm.lm.finetune import finetune

LABELS = ["negative", "positive"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture
def exam(rng):
    items = sentences(20, seed=9)
    return items, pd.Series(rng.normal(size=20), index=items["item_id"])


def network_and_tokenizer(bert):
    torch.manual_seed(0)
    named = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {word: i for i, word in enumerate(LABELS)},
    }
    network = AutoModelForSequenceClassification.from_pretrained(bert, **named)
    return network, AutoTokenizer.from_pretrained(bert)


def trainer(bert, callback, folder, epochs=3, callbacks=()):
    network, tokenizer = network_and_tokenizer(bert)
    items = sentences(32)
    data = [
        {**tokenizer(text), "labels": int(answer)}
        for text, answer in zip(items["prompt"], items["answer"], strict=True)
    ]
    how = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        lr_scheduler_type="constant",
    )
    return Trainer(
        network,
        how,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[callback, *callbacks],
    )


def by_hand(network, tokenizer, items):
    network.eval()
    with torch.no_grad():
        outputs = [
            int(network(**tokenizer(text, return_tensors="pt")).logits.argmax())
            for text in items["prompt"]
        ]
    return pd.DataFrame(
        [np.array(outputs) == items["answer"].to_numpy()], columns=items["item_id"]
    ).astype(float)


def test_abilities_are_those_that_irt_gives_the_answers_read_from_the_logits(bert, exam, tmp_path):
    items, difficulty = exam
    callback = AbilityCallback(items, difficulty)
    training = trainer(bert, callback, tmp_path)
    before = by_hand(*network_and_tokenizer(bert), items)
    training.train()
    history = callback.history
    assert history["epoch"].tolist() == [0, 1, 2, 3] and history["step"].tolist() == [0, 4, 8, 12]
    known = pd.DataFrame({"a": 1.0, "b": difficulty})
    for row, answers in (
        (0, before),
        (3, by_hand(training.model, training.processing_class, items)),
    ):
        theta, se = irt.score(known, answers).iloc[0]
        np.testing.assert_allclose(
            history.loc[row, ["ability", "se"]].astype(float), [theta, se], rtol=1e-9
        )
        assert (
            history.loc[row, "accuracy"] == answers.to_numpy().mean()
            and history.loc[row, "n_items"] == 20
        )


def test_a_run_resumed_from_a_checkpoint_has_its_whole_history(bert, exam, tmp_path):
    whole = AbilityCallback(*exam)
    trainer(bert, whole, tmp_path / "whole", epochs=3).train()
    trainer(bert, AbilityCallback(*exam), tmp_path / "cut", epochs=2).train()
    resumed = AbilityCallback(*exam)
    training = trainer(bert, resumed, tmp_path / "cut", epochs=3)
    training.train(resume_from_checkpoint=True)
    assert resumed.history["step"].tolist() == [0, 4, 8, 12]
    pd.testing.assert_frame_equal(resumed.history, whole.history)
    assert sum(row.get("kind") == "ability" for row in training.state.log_history) == 4


def test_taking_the_test_leaves_training_as_it_was(bert, exam, tmp_path):
    plain = trainer(bert, AbilityCallback(*exam), tmp_path / "watched")
    plain.train()
    alone = trainer(bert, AbilityCallback(*exam), tmp_path / "alone")
    alone.callback_handler.callbacks = [
        callback
        for callback in alone.callback_handler.callbacks
        if not isinstance(callback, AbilityCallback)
    ]
    alone.train()
    for one, other in zip(plain.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other) and one.requires_grad == other.requires_grad


def test_parameters_of_a_fit_and_other_estimators_are_used(bert, exam):
    items, difficulty = exam
    network, tokenizer = network_and_tokenizer(bert)
    known = pd.DataFrame(
        {"a": np.linspace(0.5, 2, 20), "b": difficulty, "c": 0.2}, index=difficulty.index
    )
    row = AbilityCallback(items, known, method="wle")(network, tokenizer, 0, 0)
    theta, se = irt.score(known, by_hand(network, tokenizer, items), "wle").iloc[0]
    assert (row["ability"], row["se"]) == pytest.approx((theta, se), rel=1e-9)


def test_finetune_returns_what_was_watched_and_keeps_it(bert, exam, tmp_path):
    watch = AbilityCallback(*exam)
    done = finetune(sentences(32), bert, out=tmp_path, watch=watch, **QUICK)
    assert done.watched["step"].tolist() == [0, 4, 8, 12]
    pd.testing.assert_frame_equal(done.watched[list(watch.history)], watch.history)
    again = finetune(sentences(32), bert, out=tmp_path, watch=AbilityCallback(*exam), **QUICK)
    pd.testing.assert_frame_equal(done.watched, again.watched)
    unwatched = finetune(sentences(32), bert, out=tmp_path / "unwatched", **QUICK)
    pd.testing.assert_frame_equal(done.history, unwatched.history)


def test_any_model_can_be_graded_by_a_function(exam):
    items, difficulty = exam
    network = torch.nn.Linear(2, 2)
    callback = AbilityCallback(
        items, difficulty, grade=lambda _: pd.Series(1.0, index=items["item_id"])
    )
    assert callback(network, None, 0, 0)["accuracy"] == 1.0
    assert network.training


def test_what_cannot_be_scored_is_refused(bert, exam):
    items, difficulty = exam
    with pytest.raises(FrameError, match="s9-0.*have no difficulty"):
        AbilityCallback(items, difficulty.iloc[1:])
    with pytest.raises(FrameError, match="s9-3.*not finite"):
        AbilityCallback(items, difficulty.mask(difficulty.index == "s9-3", np.inf))
    with pytest.raises(ValueError, match="'guess' is not one of"):
        AbilityCallback(items, difficulty, method="guess")
    network, tokenizer = network_and_tokenizer(bert)
    with pytest.raises(ModelError, match="without a tokenizer"):
        AbilityCallback(items, difficulty)(network, None, 0, 0)
    other = pairs(4)
    with pytest.raises(ModelError, match="no label of"):
        AbilityCallback(other, pd.Series(0.0, index=other["item_id"]))(network, tokenizer, 0, 0)


def test_the_figure_shows_ability_with_its_band_and_units():
    history = pd.DataFrame({"epoch": [0, 1, 2], "ability": [-1.0, 0.0, 0.5], "se": [0.5, 0.4, 0.3]})
    ax = plots.ability_over_training(history, ax=plt.figure().gca())
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), history["ability"])
    band = ax.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((-1 - 1.96 * 0.5, 0.5 + 1.96 * 0.3))
    assert ax.get_ylabel() == "ability θ (logits)" and ax.get_xlabel() == "epoch"
    both = pd.concat([history.assign(run="a"), history.assign(run="b")])
    assert len(plots.ability_over_training(both, hue="run", ax=plt.figure().gca()).lines) == 2
    plt.close("all")
