"""Texts stored in other ways, damaged checkpoints and caches: one value or one clear error."""

import json
import shutil
import sqlite3
import struct
import subprocess
import sys
import textwrap
import unicodedata
import warnings
import zlib
from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from safetensors.torch import load_file

from psychlm import data, lm

pytestmark = pytest.mark.usefixtures("own_cache")
CASES = pytest.mark.parametrize(
    "n_cases", [24, pytest.param(5000, marks=pytest.mark.exhaustive)], ids=["24", "5000"]
)


# Texts


def wrapped(text):
    """Break the lines of a text at 70 columns."""
    return textwrap.fill(text, 70, break_long_words=False, break_on_hyphens=False)


STORED = {
    "wrapped at 70 columns": wrapped,
    "wrapped, with CRLF": lambda text: wrapped(text).replace("\n", "\r\n") + "\r\n",
    "two spaces after a period": lambda text: text.replace(". ", ".  "),
    "byte-order mark": lambda text: "\ufeff" + text,
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "decomposed accents": lambda text: unicodedata.normalize("NFD", text),
}


def test_paragraphs_of_a_novel_score_equal_however_they_are_stored():
    novel = data.path("lm/novels/Women-in-Love").read_text(encoding="utf-8")
    paragraphs = [" ".join(paragraph.split()) for paragraph in novel.split("\n\n")]
    paragraphs = [text for text in paragraphs if 200 < len(text) < 500]
    accented = [text for text in paragraphs if unicodedata.normalize("NFD", text) != text]
    texts = {str(i): text for i, text in enumerate(paragraphs[:40] + accented[:15])}
    assert len(texts) == 55
    plain = lm.surprisal(texts)
    for stored, store in STORED.items():
        other = lm.surprisal({name: store(text) for name, text in texts.items()})
        assert other["word"].tolist() == plain["word"].tolist(), stored
        np.testing.assert_array_equal(other["surprisal_bits"], plain["surprisal_bits"], stored)
        assert any(other.attrs["surprisal"]["cleaned"].values()) or "accents" in stored


def test_cleaning_is_counted_and_can_be_switched_off(gpt2):
    model = lm.load(gpt2)
    text = "\ufeffThe  ol\u00add\r\nman\u200b the\u00a0cafe\u0301.\n\nThe boat.\n"
    scored = lm.surprisal(text, model)
    changes = {"invisible": 3, "white_space": 4, "unicode": 1}
    assert scored.attrs["surprisal"]["cleaned"] == changes
    clean = lm.surprisal("The old man the café.\n\nThe boat.", model)
    np.testing.assert_array_equal(scored["surprisal_bits"], clean["surprisal_bits"])
    assert scored["word"].tolist() == clean["word"].tolist()
    raw = lm.surprisal(text, model, clean=False)
    assert raw.attrs["surprisal"]["cleaned"] is False
    assert (raw["surprisal_bits"] - scored["surprisal_bits"]).abs().max() > 0.1
    words = pd.DataFrame({"text_id": "a", "word_id": [1, 2], "word": ["\ufeffThe", "cafe\u0301 "]})
    scored = lm.surprisal(words, model)  # a frame keeps its words as given, and is scored clean
    assert scored["word"].tolist() == words["word"].tolist()
    clean = lm.surprisal("The café", model)
    np.testing.assert_array_equal(scored["surprisal_bits"], clean["surprisal_bits"])


def test_columns_of_an_earlier_model_do_not_stay(gpt2):
    first = lm.surprisal("the old man", lm.load(gpt2), entropy=True, rank=True)
    again = lm.surprisal(first.assign(scored_by="a file", region=7), "default")
    assert not {"entropy_bits", "rank", "scored_by"} & set(again.columns)
    assert again.columns[:2].tolist() == ["word", "surprisal_bits"]
    assert (again["region"] == 7).all()


# Checkpoints


def without_tokenizer(folder):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()


def with_pickles(folder, name="pytorch_model.bin"):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / name)


def with_an_index_of_pickles(folder):
    with_pickles(folder, "weights.bin")
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "weights.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_an_index_of_files_elsewhere(folder):
    (folder / "model.safetensors").rename(folder / "../weights.safetensors")
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "../weights.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_code(folder):
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    tiny_models.configure(folder, model_type="novel", auto_map=code)
    (folder / "evil.py").write_text("raise SystemExit('it ran')")


def configured(**entries):
    return partial(tiny_models.configure, **entries)


def with_a_longest_input_of(folder, stated):
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": stated}))


SPEECH = {"model_type": "speech_to_text", "is_encoder_decoder": True, "architectures": None}
OUTSIDE = "no .safetensors file inside the checkpoint"


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        (without_tokenizer, "has no tokenizer"),
        (with_pickles, "no weights as safetensors.*convert it"),
        (with_an_index_of_pickles, OUTSIDE),
        (with_an_index_of_files_elsewhere, OUTSIDE),
        (configured(transformers_weights="../model.safetensors"), OUTSIDE),
        (with_code, "brings its own code, which psychlm never runs"),
        (lambda at: (at / "adapter_config.json").write_text("{}"), "holds an adapter"),
        (configured(architectures=["GPT2ForTokenClassification"]), "it has no language-model head"),
        (configured(**SPEECH), "speech_to_text.*no language-model head"),
        *[
            (partial(with_a_longest_input_of, stated=odd), "model_max_length is .*no number")
            for odd in ({}, [[]], "odd", -1, 0.5)
        ],
    ],
)
def test_a_checkpoint_that_cannot_be_opened_safely_is_one_clear_error(copy, spoiled, says):
    spoiled(copy)
    with pytest.raises(lm.ModelError, match=says) as caught:
        lm.load(copy)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["vocab.bpe", "weights.pt", "model.safetensors", "extra.json"])
def test_the_fingerprint_that_pins_a_folder_covers_every_file_that_could_be_read(copy, gpt2, name):
    before = lm.fingerprint(copy)
    assert before == lm.fingerprint(gpt2)
    assert before.startswith("sha256:")
    (copy / name).write_bytes(b"something")
    changed = lm.fingerprint(copy)
    assert changed != before
    (copy / name).write_bytes(b"somewhere")
    assert lm.fingerprint(copy) not in (before, changed)


def spoil(file, rng):
    """Change a file as disks, transfers and curious hands do."""
    content = bytearray(file.read_bytes())
    kind = rng.integers(4)
    if kind == 0:
        del content[rng.integers(len(content)) :]
    elif kind == 1:
        for place in rng.integers(len(content), size=rng.integers(1, 8)):
            content[place] = rng.integers(256)
    elif kind == 2 and file.suffix == ".json":
        parsed = json.loads(file.read_text())
        odd = [None, -1, 0, 10**12, 0.5, "odd", [], {}, True, [[]]]
        parsed[rng.choice(list(parsed))] = odd[rng.integers(len(odd))]
        content = bytearray(json.dumps(parsed).encode())
    else:  # a header that claims more than there is
        content[:8] = struct.pack("<Q", int(rng.integers(2**62)))
    file.write_bytes(bytes(content))


@CASES
def test_spoiled_checkpoints_open_or_are_one_clear_error(gpt2, tmp_path, n_cases):
    rng, n_errors = np.random.default_rng(n_cases), 0
    names = sorted(file.name for file in gpt2.iterdir() if file.name != "generation_config.json")
    for _ in range(n_cases):
        shutil.copytree(gpt2, tmp_path, dirs_exist_ok=True)
        spoil(tmp_path / str(rng.choice(names)), rng)
        try:
            model = lm.load(tmp_path, "cpu")
            lm.surprisal("the old man", model, cache=False)
        except lm.ModelError as error:
            n_errors += 1
            assert len(str(error).splitlines()) == 1
    assert n_errors > n_cases / 4


# The cache


def test_a_cached_result_needs_neither_torch_nor_the_model():
    lm.surprisal("The old man the boat.")
    code = "import sys; from psychlm import lm; lm.surprisal('The old man the boat.'); "
    code += "print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["False", "False"]


@CASES
def test_spoiled_caches_cost_a_warning_and_never_a_value(gpt2, own_cache, n_cases):
    texts = ["the old man", "and the sea, she said", "tea"]
    expected = lm.surprisal(texts, gpt2)["surprisal_bits"].to_numpy()
    file = own_cache / "results.sqlite"
    whole, rng = file.read_bytes(), np.random.default_rng(n_cases)
    blobs = [b"", b"noise", zlib.compress(b"1234567"), zlib.compress(bytes(64)), None, 7]
    beside = ["", "[]", "null", "{]", '{"99": "no such word"}', '{"a": 1}', "7", None, "[" * 9999]
    for case in range(n_cases):
        file.write_bytes(whole)
        if case % 4 == 0:
            content = bytearray(whole)
            for place in rng.integers(len(content), size=rng.integers(1, 40)):
                content[place] = rng.integers(256)
            file.write_bytes(content[: rng.integers(1, len(content) + 1)])
        else:
            column, values = [("scores", blobs), ("reasons", beside)][case % 2]
            value = values[rng.integers(len(values))]
            with sqlite3.connect(file) as connection:
                connection.execute(f"UPDATE results SET {column} = ?", [value])
            connection.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scored = lm.surprisal(texts, gpt2)["surprisal_bits"].to_numpy()
        assert all("results" in str(one.message) for one in caught)
        np.testing.assert_allclose(scored, expected, atol=1e-5)
