"""Work that was killed goes on: answers of a model, and the files of a model of the hub."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import stand_in_hub
import tiny_models
from huggingface_hub import constants, file_download
from killed import kill_this_process, run_until_killed
from tiny_questions import questions

from psychlm import lm
from psychlm.lm import _choice_scores
from psychlm.papers import model_facts
from psychlm.site.plan import is_fetched


@pytest.mark.usefixtures("one_thread")
def test_a_killed_evaluation_of_a_trained_encoder_asks_for_no_answer_twice(
    tmp_path, monkeypatch, rng
):
    """Notebook 50: a model learns a benchmark, and answers it as written and perturbed."""
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_choice_scores, "QUESTIONS_AT_ONCE", {"cpu": 1})
    encoder, log = tiny_models.save(tmp_path / "bert", "bert"), tmp_path / "answered"
    asked = {"toy": questions(rng, 8)}
    changed = {("toy", "no question"): asked["toy"].assign(prompt="")}
    score, last = _choice_scores.score_questions, 10

    def recorded(model, some, *options):
        names = log.read_text().split() if log.is_file() else []
        if len(names) == last:
            kill_this_process()
        log.write_text(" ".join([*names, *(f"{one.item}|{bool(one.prompt)}" for one in some)]))
        return score(model, some, *options)

    learn, options = {"toy": questions(rng, 10)}, {"whole": True, "epochs": 1, "device": "cpu"}
    model_facts.head_presentations(learn, {}, {}, encoder, **options)  # trained, and kept

    def answered():
        return model_facts.head_presentations(learn, asked, changed, encoder, **options)

    monkeypatch.setattr(_choice_scores, "score_questions", recorded)
    run_until_killed(answered)
    assert len(log.read_text().split()) == 10
    last = None
    once = answered()
    names = log.read_text().split()
    assert len(names) == len(set(names)) == 16
    again = answered()
    assert log.read_text().split() == names
    for key, scores in once.items():
        assert len(scores) == 8
        pd.testing.assert_frame_equal(scores, again[key])


@pytest.mark.usefixtures("one_thread")
def test_a_killed_download_of_a_model_goes_on_and_is_not_taken_for_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = Path(tiny_models.save(tmp_path / "gpt2", "gpt2"))
    download, name = file_download.http_get, "lab/toy"

    def broken_off(url, file, **options):
        if "safetensors" in url:
            file.write((folder / "model.safetensors").read_bytes()[:1000])
            file.flush()
            kill_this_process()
        return download(url, file, **options)

    with stand_in_hub.served(name, folder) as sent:
        with monkeypatch.context() as patch:
            patch.setattr(file_download, "http_get", broken_off)
            run_until_killed(lambda: lm.load(name))
        assert sent[0] == "config.json" and not is_fetched(name)
        whole = lm.load(name)
        assert sent.count("config.json") == sent.count("model.safetensors") == 1
    # Without a network: the model is found by its name, and not where only a part of it is here.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert is_fetched(name) and lm.load(name).revision == whole.revision
    (snapshot,) = (tmp_path / "hub").glob("models--*/snapshots/*")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(lm.ModelError, match="lab/toy"):
        lm.load(name)
    index = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    (snapshot / "model.safetensors.index.json").write_text(index)
    (snapshot / "model-1.safetensors").write_text("")
    assert not is_fetched(name)
    (snapshot / "model-2.safetensors").write_text("")
    assert is_fetched(name)
