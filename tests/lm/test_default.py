"""The model that ships: small, safe, offline and meaningful; and the script that trains it.

Its surprisals are compared with those released for GPT-2 and for people's cloze answers on the UCL
corpus (de Varda et al. 2023); the trigram that teaches it with Kneser and Ney's equations written
out in loops."""

import json
import warnings
from pathlib import Path

import build_language_model as train
import numpy as np
import pandas as pd
import pytest
import torch

from psychlm import data, lm

FOLDER = Path(lm.__file__).parent / "default"
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_default_model_is_small_and_holds_no_pickles() -> None:
    (weights,) = (p for p in FOLDER.iterdir() if p.suffix in (".safetensors", ".bin", ".pt"))
    assert weights.name == "model.safetensors" and weights.stat().st_size <= 8 * 2**20


@pytest.mark.needs_share
@pytest.mark.parametrize("correction", ["pimentel-meister", None])
def test_surprisals_go_with_gpt2s_and_with_peoples_on_the_ucl_corpus(correction):
    table = pd.read_csv(data.path("ucl2023/all_measures"), keep_default_na=False, na_values=[""])
    texts = {sentence: sentence for sentence in table["sentence"].unique()}
    scored = lm.surprisal(texts, correction=correction, cache=False)
    table["word_id"] = 1 + table["item"].str.split().str.len()
    keys = {"left_on": ["sentence", "word_id"], "right_on": ["text_id", "word_id"]}
    both = table.merge(scored, **keys, suffixes=("", "_ours"))
    assert len(both) == len(table)
    assert (both["word"] == both["word_ours"]).all()
    plain = both[both["word"].str.fullmatch("[A-Za-z]+")]
    assert plain["surprisal_bits"].corr(plain["s_GPT2"]) >= 0.78
    assert plain["surprisal_bits"].corr(plain["cloze_s"]) >= 0.60


def test_what_is_exported_opens_as_the_default_does(monkeypatch, tmp_path: Path) -> None:
    story = ["He went out. She saw him go, and said nothing.", '"Well," he said, "it rains."'] * 800
    marked = [(text, i != 7) for i, text in enumerate(story)]
    monkeypatch.setattr(train, "training_paragraphs", lambda: marked)
    monkeypatch.setattr(torch, "compile", lambda function: function)  # takes longer than the test
    sizes = {"vocabulary": 320, "width": 16, "feed_forward": 16, "heads": 2, "context": 16}
    run = train.Run(train.Recipe(**sizes, rows=4, warm_up=2), "cpu")
    assert run.text.n_left_out == 1  # a paragraph of the test corpus
    train.export(run, tmp_path / "out", run.train(4))
    text = "He went out. Then it rained."
    scored = lm.surprisal(text, tmp_path / "out", correction=None, cache=False)
    rows = torch.tensor([[0, *run.tokenizer.encode(text).ids]])
    with torch.inference_mode():
        nats = float(run.average(rows, labels=rows).loss) * (rows.shape[1] - 1)
    assert scored["surprisal_bits"].sum() == pytest.approx(nats / np.log(2), rel=1e-2)  # float16
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["measured"]["step"] == 4


@pytest.mark.parametrize("text", ["I don’t go.", "She said “go” now.", "Wait… now.", "Yes – no."])
def test_typographic_marks_that_the_default_model_has_not_read_are_named(text) -> None:
    with pytest.warns(RuntimeWarning, match="1 words have typographic marks"):
        marked = lm.surprisal(text, cache=False)
    plain = text.translate(str.maketrans({"’": "'", "“": '"', "”": '"', "–": "-", "…": "..."}))
    with warnings.catch_warnings(action="error"):
        advised = lm.surprisal(plain, lm.load("default"), cache=False)
    assert advised["surprisal_bits"].max() < marked["surprisal_bits"].max() - 30
