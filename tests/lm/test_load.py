"""Opening language models: what is opened, pinned and refused. Checkpoints are made on the spot;
the hub is a stand-in on this machine."""

import json
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import stand_in_hub
import tiny_models
import torch
import transformers
from command import run
from huggingface_hub import constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from psychlm import data, lm

KINDS = dict.fromkeys(("gpt2", "gpt_neox", "opt", "llama", "mamba"), "causal")
KINDS |= {"xlnet": "permutation", "xlm": "left-masked", "bert": "masked"}
KINDS |= dict.fromkeys(("t5", "bart"), "encoder-decoder")
NLI = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize("family", KINDS)
def test_every_family_opens_as_its_kind(family, tmp_path):
    model = lm.load(tiny_models.save(tmp_path, family), device="cpu")
    assert model.kind == KINDS[family]
    assert model.network.dtype == torch.float32 and not model.network.training
    limits = {"mamba": 2048, "xlnet": 2048}
    assert model.context_tokens == limits.get(family, tiny_models.CONTEXT)


def head(kind, labels=(), **options):
    """A network of BERT's kind with one of its heads, and its tokenizer."""
    tokenizer = tiny_models.wordpiece()
    network = getattr(transformers, f"Bert{kind}")
    return tiny_models.bert(network, tokenizer, labels, **options), tokenizer


def test_labels_are_given_where_the_configuration_has_none():
    network, tokenizer = head("ForSequenceClassification", num_labels=3)
    assert lm.wrap(network, tokenizer, labels=NLI).labels == tuple(NLI)
    for labels, says in (
        (None, "have no meaning"),
        (["a", "b"], "3 outputs, and labels=.* names 2"),
        (["pos", "positive", "neutral"], "mean the same"),
    ):
        with pytest.raises(lm.ModelError, match=says):
            lm.wrap(network, tokenizer, labels=labels)


def test_a_head_that_the_checkpoint_lacks_is_never_random(tmp_path):
    tiny_models.save_network(tmp_path, *head("Model"))
    options = {"kind": "classifier", "labels": ["pos", "neg"]}
    for given, head_name in ((options, "ForSequenceClassification"), ({}, "ForMaskedLM")):
        with pytest.raises(lm.ModelError, match=f"lacks weights of a Bert{head_name}.*be random"):
            lm.load(tmp_path, "cpu", **given)


def test_a_tokenizer_that_does_not_suit_the_model_is_noticed(gpt2):
    model = lm.load(gpt2)
    with pytest.raises(lm.ModelError, match="no mask token"):
        lm.wrap(model.network, model.tokenizer, kind="masked")
    model.tokenizer.add_tokens(["<one more>"])
    with pytest.raises(lm.ModelError, match="do not belong together"):
        lm.wrap(model.network, model.tokenizer)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("/no/such/folder", {}, "holds no config.json"),
        ("gpt2@abc", {"revision": "def"}, "asked for at two revisions"),
        (None, {"revision": "main"}, "a folder, which has no revisions"),
        (None, {"dtype": "float8"}, "dtype 'float8' is unknown"),
        (None, {"kind": "auto"}, "kind 'auto' is unknown"),
    ],
)
def test_what_cannot_be_had_is_said_at_once(gpt2, name, options, says):
    with pytest.raises(lm.ModelError, match=says):
        lm.load(name or gpt2, **options)


def test_half_precision_is_read_with_whole_logits(gpt2):
    whole, half = (
        lm.surprisal("the old man and the sea", lm.load(gpt2, "cpu", dtype=dtype), cache=False)
        for dtype in (None, "bfloat16")
    )
    np.testing.assert_allclose(half["surprisal_bits"], whole["surprisal_bits"], atol=0.5)
    assert half.attrs["surprisal"]["dtype"] == "bfloat16"


# The hub


@pytest.mark.parametrize("name", ["lab/tiny", "lab/tiny@main"])
def test_a_hub_name_is_resolved_to_its_commit(name, copy, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (copy / "pytorch_model.bin").write_text("pickles")
    (copy / "modeling.py").write_text("code")
    with stand_in_hub.served("lab/tiny", copy) as sent:
        model = lm.load(name)
        scored = lm.surprisal("the old man", name, cache=False)
    commit = stand_in_hub.commit_of("lab/tiny")
    assert model.name == "lab/tiny"
    assert "model.safetensors" in sent and not any(file.endswith((".bin", ".py")) for file in sent)
    assert data.opened_models["lab/tiny"] == commit  # which reports record
    assert scored.attrs["surprisal"]["revision"] == commit


NOT_FOUND = SimpleNamespace(headers={}, status_code=404, request=None, url="")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (RevisionNotFoundError("404", response=NOT_FOUND), "no revision 'v9' on the hub"),
        (RepositoryNotFoundError("404", response=NOT_FOUND), "neither a folder here nor a public"),
        (OSError("Name or service not known"), "lab/tiny cannot be (opened: Name|fetched from)"),
    ],
)
def test_what_the_hub_does_not_have_and_a_hub_out_of_reach_are_named(answer, says, monkeypatch):
    def refused(*_given, **_options):
        raise answer

    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, refused)
    with pytest.raises(lm.ModelError, match=says):
        lm.load("lab/tiny", revision="v9")


# The command


def test_the_command_scores_a_words_frame(gpt2, tmp_path):
    expected = lm.surprisal("The old man\n the boat.", gpt2)
    columns = ["text_id", "word_id", "word", "space_before", "space_after"]
    expected.assign(text_id="007")[columns].to_csv(tmp_path / "words.csv", index=False)
    out = tmp_path / "out.parquet"
    run("surprisal", tmp_path / "words.csv", "--model", gpt2, "--out", out)
    written = pd.read_parquet(out)
    np.testing.assert_allclose(written["surprisal_bits"], expected["surprisal_bits"])
    assert written["text_id"].unique().tolist() == ["007"]
    described = json.loads((tmp_path / "out.parquet.json").read_text())
    assert described["revision"] == expected.attrs["surprisal"]["revision"]
