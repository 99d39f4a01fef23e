"""Work that was killed goes on: answers of a model, and the files of a model of the hub."""

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


@pytest.mark.usefixtures("one_thread", "own_cache")
def test_a_killed_evaluation_asks_for_no_answer_twice(bert, tmp_path, monkeypatch, rng):
    monkeypatch.setattr(_choice_scores, "QUESTIONS_AT_ONCE", {"cpu": 1})
    items, log = questions(rng, 12), tmp_path / "answered"
    tuned = lm.fine_tune(questions(rng, 10), str(bert), out=tmp_path / "tuned", epochs=1).folder
    score = _choice_scores.score_questions

    def answered():
        return lm.choice_logprobs(items, tuned, device="cpu")  # a folder's results are cached

    def recorded(model, some, *options, last=None):
        names = log.read_text().split() if log.is_file() else []
        if len(names) == last:
            kill_this_process()
        log.write_text(" ".join([*names, *(str(one.item) for one in some)]))
        return score(model, some, *options)

    def killed(*arguments):
        return recorded(*arguments, last=8)

    monkeypatch.setattr(_choice_scores, "score_questions", killed)
    run_until_killed(answered)
    assert len(log.read_text().split()) == 8
    monkeypatch.setattr(_choice_scores, "score_questions", recorded)
    once = answered()
    names = log.read_text().split()
    assert len(names) == len(set(names)) == 12
    pd.testing.assert_frame_equal(answered(), once)
    assert log.read_text().split() == names


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
        assert sent[0] == "config.json"
        whole = lm.load(name)
        assert sent.count("config.json") == sent.count("model.safetensors") == 1
    # Without a network: the model is found by its name, and not where only a part of it is here.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = lm.surprisal("the old man", name, cache=False)
    assert again.equals(lm.surprisal("the old man", whole, cache=False))
    (snapshot,) = (tmp_path / "hub").glob("models--*/snapshots/*")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(lm.ModelError, match="lab/toy"):
        lm.load(name)
