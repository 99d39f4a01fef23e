"""Opening language models: what is opened, pinned and refused. Checkpoints are made on the spot;
the hub is played by a stand-in, since a test needs no network.
"""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from click.testing import CliRunner

from psychlm import cli, lm
from psychlm.lm import _load

KINDS = {
    "gpt2": "causal",
    "gpt_neox": "causal",
    "opt": "causal",
    "llama": "causal",
    "mamba": "causal",
    "xlnet": "permutation",
    "xlm": "left-masked",
    "bert": "masked",
}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def copy(gpt2, tmp_path):
    """A checkpoint that a test may spoil."""
    return shutil.copytree(gpt2, tmp_path / "copy")


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


def test_pickles_are_opened_only_when_allowed(copy):
    network = lm.load(copy).network
    (copy / "model.safetensors").unlink()
    torch.save(network.state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(lm.ModelError, match="no weights as safetensors.*allow_pickle=True"):
        lm.load(copy)
    opened = lm.load(copy, allow_pickle=True)
    assert torch.equal(opened.network.lm_head.weight, network.lm_head.weight)


def test_code_of_a_checkpoint_is_never_run(copy):
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "novel",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(lm.ModelError, match="brings its own code, which psychlm never runs"):
        lm.load(copy)


def test_a_model_without_a_head_is_refused(tmp_path, copy):
    tokenizer = tiny_models.wordpiece()
    tiny_models.network("bert", tokenizer).bert.save_pretrained(tmp_path / "body")
    tokenizer.save_pretrained(tmp_path / "body")
    with pytest.raises(lm.ModelError, match="has no language-model head.*would be random"):
        lm.load(tmp_path / "body")
    config = json.loads((copy / "config.json").read_text()) | {
        "architectures": ["GPT2ForSequenceClassification"]
    }
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        lm.ModelError, match="GPT2ForSequenceClassification: it has no language-model head"
    ):
        lm.load(copy)


def test_strangers_are_named(copy):
    config = json.loads((copy / "config.json").read_text())
    speech = {"model_type": "speech_to_text", "is_encoder_decoder": True}
    (copy / "config.json").write_text(json.dumps(speech))
    with pytest.raises(lm.ModelError, match="speech_to_text.*no language-model head"):
        lm.load(copy)
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "no-such-family"}))
    with pytest.raises(lm.ModelError, match="cannot be opened"):
        lm.load(copy)


def test_a_tokenizer_of_another_model_is_noticed(gpt2):
    model = lm.load(gpt2)
    model.tokenizer.add_tokens(["<one more>"])
    with pytest.raises(lm.ModelError, match="do not belong together"):
        lm.wrap(model.network, model.tokenizer)


def test_the_default_model_opens_or_says_that_it_is_not_there(monkeypatch, tmp_path, gpt2):
    monkeypatch.setattr(_load, "DEFAULT_FOLDER", tmp_path)
    with pytest.raises(lm.ModelError, match="the default model is not in"):
        lm.load("default")
    shutil.copytree(gpt2, tmp_path, dirs_exist_ok=True)
    assert lm.load().name == "default"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("/no/such/folder", {}, "there is no folder"),
        ("./here", {}, "there is no folder"),
        ("gpt2@abc", {"revision": "def"}, "asked for at two revisions"),
    ],
)
def test_what_cannot_be_had_is_said_at_once(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        lm.load(name, **options)


def test_folders_have_no_revisions_and_options_are_checked(gpt2, tmp_path):
    with pytest.raises(lm.ModelError, match="a folder, which has no revisions"):
        lm.load(gpt2, revision="main")
    with pytest.raises(lm.ModelError, match="dtype 'float8' is unknown"):
        lm.load(gpt2, dtype="float8")
    with pytest.raises(lm.ModelError, match="holds no config.json"):
        lm.load(tmp_path)
    with pytest.raises(lm.ModelError, match="kind 'auto' is unknown"):
        lm.load(gpt2, kind="auto")


def test_half_precision_is_read_with_whole_logits(gpt2):
    whole = lm.surprisal("the old man and the sea", lm.load(gpt2, device="cpu"), cache=False)
    half = lm.surprisal(
        "the old man and the sea", lm.load(gpt2, device="cpu", dtype="bfloat16"), cache=False
    )
    np.testing.assert_allclose(half["surprisal_bits"], whole["surprisal_bits"], atol=0.5)
    assert half.attrs["surprisal"]["dtype"] == "bfloat16"


# The hub


@pytest.fixture
def hub(monkeypatch, gpt2):
    """A hub that holds lab/tiny at one commit, the files of which are the checkpoint's."""
    import huggingface_hub
    from huggingface_hub.errors import (
        EntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    commit, asked = "c0ffee" + "0" * 34, []

    def refuse(error):
        return error(
            "404", response=SimpleNamespace(headers={}, status_code=404, request=None, url="")
        )

    def model_info(_self, name, revision=None, timeout=None):
        if name != "lab/tiny":
            raise refuse(RepositoryNotFoundError)
        if revision not in (None, "main"):
            raise refuse(RevisionNotFoundError)
        return SimpleNamespace(sha=commit)

    def hf_hub_download(name, file, revision=None):
        raise EntryNotFoundError(file)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    for opener in (AutoConfig, AutoModelForCausalLM, AutoTokenizer):
        real = opener.from_pretrained

        def from_pretrained(name, revision=None, real=real, **options):
            asked.append((name, revision, options.get("trust_remote_code", False)))
            return real(gpt2, **options)

        monkeypatch.setattr(opener, "from_pretrained", from_pretrained)
    return SimpleNamespace(commit=commit, asked=asked)


@pytest.mark.parametrize("name", ["lab/tiny", "lab/tiny@main"])
def test_a_hub_name_is_resolved_to_its_commit(name, hub):
    model = lm.load(name)
    assert model.revision == hub.commit and model.name == "lab/tiny"
    assert {asked for asked in hub.asked if asked[0] == "lab/tiny"} == {
        ("lab/tiny", hub.commit, False)
    }
    assert not any(trusts for _, _, trusts in hub.asked)
    assert (
        hub.commit in lm.surprisal("the old man", model, cache=False).attrs["surprisal"]["revision"]
    )


def test_weights_whose_list_cannot_be_fetched_are_not_read(hub, monkeypatch):
    import huggingface_hub

    def broken(name, file, revision=None):
        raise OSError("connection reset")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", broken)
    with pytest.raises(lm.ModelError, match="list of weight files of lab/tiny could not be"):
        lm.load("lab/tiny")


def test_a_revision_or_a_model_that_does_not_exist_is_named(hub):
    with pytest.raises(lm.ModelError, match="lab/tiny has no revision 'v9' on the hub"):
        lm.load("lab/tiny", revision="v9")
    with pytest.raises(
        lm.ModelError, match="'lab/tinny' is neither a folder here nor a public model"
    ):
        lm.load("lab/tinny")


def test_without_a_network_the_error_says_what_to_do(monkeypatch, tmp_path):
    import huggingface_hub

    def unreachable(*_given, **_options):
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(
        lm.ModelError, match="the hub cannot be reached, and lab/never-fetched was never fetched"
    ):
        lm.load("lab/never-fetched")


# The command


def test_the_command_scores_texts_files_and_frames(gpt2, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    expected = lm.surprisal("The old man\n the boat.", gpt2)
    (tmp_path / "story.txt").write_text("The old man\n the boat.", encoding="utf-8")
    columns = ["text_id", "word_id", "word", "space_before", "space_after"]
    expected.assign(text_id="007")[columns].to_csv(tmp_path / "words.csv", index=False)
    out = tmp_path / "out.parquet"
    for source in ("The old man\n the boat.", tmp_path / "story.txt", tmp_path / "words.csv"):
        arguments = ["surprisal", str(source), "--model", gpt2, "--out", str(out)]
        done = CliRunner().invoke(cli.main, arguments)
        assert done.exit_code == 0, done.output
        written = pd.read_parquet(out)
        np.testing.assert_allclose(written["surprisal_bits"], expected["surprisal_bits"])
        described = json.loads((tmp_path / "out.parquet.json").read_text())
        assert described["revision"] == expected.attrs["surprisal"]["revision"]
    assert written["text_id"].unique().tolist() == ["007"]
