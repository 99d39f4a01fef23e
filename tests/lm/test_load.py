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

from psychlm import cli, data, lm
from psychlm.lm import _load

KINDS = dict.fromkeys(("gpt2", "gpt_neox", "opt", "llama", "mamba"), "causal")
KINDS |= {"xlnet": "permutation", "xlm": "left-masked", "bert": "masked"}


def configure(folder, **entries):
    """Change entries of a checkpoint's configuration."""
    config = json.loads((folder / "config.json").read_text()) | entries
    (folder / "config.json").write_text(json.dumps(config))


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
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    configure(copy, model_type="novel", auto_map=code)
    (copy / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(lm.ModelError, match="brings its own code, which psychlm never runs"):
        lm.load(copy)


def test_a_model_without_a_head_is_refused(tmp_path, copy):
    tokenizer = tiny_models.wordpiece()
    body = tiny_models.network("bert", tokenizer).bert
    tiny_models.save_network(tmp_path / "body", body, tokenizer)
    with pytest.raises(lm.ModelError, match="lacks weights of a BertForMaskedLM.*would be random"):
        lm.load(tmp_path / "body")
    configure(copy, architectures=["GPT2ForTokenClassification"])
    with pytest.raises(lm.ModelError, match="Classification: it has no language-model head"):
        lm.load(copy)
    configure(copy, model_type="no-such-family")
    with pytest.raises(lm.ModelError, match="cannot be opened"):
        lm.load(copy)
    speech = {"model_type": "speech_to_text", "is_encoder_decoder": True}
    (copy / "config.json").write_text(json.dumps(speech))
    with pytest.raises(lm.ModelError, match="speech_to_text.*no language-model head"):
        lm.load(copy)


def test_a_tokenizer_of_another_model_is_noticed(gpt2):
    model = lm.load(gpt2)
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
    whole = lm.surprisal("the old man and the sea", lm.load(gpt2, device="cpu"), cache=False)
    model = lm.load(gpt2, device="cpu", dtype="bfloat16")
    half = lm.surprisal("the old man and the sea", model, cache=False)
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
