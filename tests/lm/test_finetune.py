"""Fine-tuning. References: the uninterrupted run, scikit-learn, words that tell the label."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from killed import kill_this_process, run_until_killed
from safetensors.torch import load_file
from sklearn.metrics import matthews_corrcoef

from psychlm import lm
from psychlm.frames import FrameError
from psychlm.lm import finetune

LABELS = ["negative", "positive"]
QUICK = {"epochs": 3, "batch_size": 8, "learning_rate": 5e-3, "device": "cpu"}


def sentences(n, seed=0):
    """Sentences about boats are positive, those about horses negative: one word tells."""
    rng = np.random.default_rng(seed)
    answer = rng.integers(2, size=n)
    words = [(rng.choice(["man", "sea"]), ("horse", "boat")[yes]) for yes in answer]
    items = pd.DataFrame({"item_id": [f"s{seed}-{i}" for i in range(n)]})
    items["prompt"] = [f"the old {first} and the {second}" for first, second in words]
    return items.assign(choices=[LABELS] * n, answer=answer)


def questions(n, seed=0):
    """The choice that names the boat is right; items have different numbers of choices."""
    rng = np.random.default_rng(seed)
    wrong = [["horse", "man", "sea"][: rng.integers(1, 4)] for _ in range(n)]
    answer = [int(rng.integers(len(words) + 1)) for words in wrong]
    choices = [[*words[:k], "boat", *words[k:]] for words, k in zip(wrong, answer, strict=True)]
    columns = {"item_id": range(n), "prompt": "the old man", "choices": choices, "answer": answer}
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def tuned(bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned")
    return lm.fine_tune(sentences(48), bert, out=out, development=sentences(24, 1), **QUICK)


def test_a_classifier_learns_labels_that_one_word_gives_away(tuned):
    unseen = sentences(40, 2)
    result = lm.evaluate(unseen, {"tuned": tuned.folder}, device="cpu", cache=False)
    assert result.persons.loc["tuned", "accuracy"] == 1
    assert tuned.mcc == tuned.history["mcc"].max()  # of the best development epoch
    assert tuned.labels == ("negative", "positive")
    assert tuned.history["loss"].is_monotonic_decreasing
    model = lm.load(tuned.folder, "cpu")
    assert (model.kind, model.labels) == ("classifier", tuned.labels)


def test_the_same_call_reads_what_is_there_and_another_run_is_refused(tuned, bert, monkeypatch):
    monkeypatch.setattr(finetune, "run_trainer", lambda *_: pytest.fail("nothing is to be trained"))
    options = {"out": tuned.folder, "development": sentences(24, 1)}
    again = lm.fine_tune(sentences(48), bert, **options, **QUICK)
    pd.testing.assert_frame_equal(again.history, tuned.history, check_dtype=False)
    assert (again.mcc, again.labels) == (tuned.mcc, tuned.labels)
    with pytest.raises(lm.ModelError, match="holds a run with other seed; name another folder"):
        lm.fine_tune(sentences(48), bert, seed=1, **options, **QUICK)


@pytest.mark.parametrize("moment", ["when a state is written", "within an epoch"])
def test_an_interrupted_run_resumes_to_the_weights_of_an_uninterrupted_one(
    tuned, bert, tmp_path, moment
):
    """The process is killed (`kill -9`) at the end of epoch 1, or halfway through epoch 2."""
    from transformers import Trainer, TrainerCallback

    class Kill(TrainerCallback):
        def on_save(self, arguments, state, control, **_):
            if moment == "when a state is written":
                kill_this_process()

        def on_step_end(self, arguments, state, control, **_):
            if state.epoch > 1.4:
                kill_this_process()

    original = Trainer.__init__

    def killed(self, *arguments, callbacks, **options):
        original(self, *arguments, callbacks=[*callbacks, Kill()], **options)

    call = {"out": tmp_path, "development": sentences(24, 1), **QUICK}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__init__", killed)
        run_until_killed(lambda: lm.fine_tune(sentences(48), bert, **call))
    assert not (tmp_path / finetune.RESULT).exists()
    assert len(list((tmp_path / "checkpoints").glob("checkpoint-*"))) == 1
    resumed = lm.fine_tune(sentences(48), bert, **call)
    assert resumed.history["epoch"].tolist() == [1, 2, 3]
    whole, pieces = (load_file(folder / "model.safetensors") for folder in (tuned.folder, tmp_path))
    for name, weight in whole.items():
        np.testing.assert_allclose(pieces[name], weight, atol=1e-6)


def test_a_batch_that_memory_does_not_hold_is_an_error_that_says_what_to_do(
    bert, tmp_path, monkeypatch
):
    def refuse(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(finetune, "run_trainer", refuse)
    with pytest.raises(lm.ModelError, match="memory does not hold 8 .*smaller batch_size"):
        lm.fine_tune(sentences(9), bert, out=tmp_path, **QUICK)


def test_training_stops_early_when_development_no_longer_improves(bert, tmp_path):
    random = sentences(24, 1).assign(answer=np.arange(24) % 2)  # labels that no word tells
    options = QUICK | {"epochs": 20, "patience": 1}
    result = lm.fine_tune(sentences(24), bert, out=tmp_path, development=random, **options)
    assert len(result.history) < 20


def test_multiple_choice_items_with_different_numbers_of_choices_are_learned(
    bert, tmp_path, monkeypatch
):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "mine")
    before = dict(os.environ)
    result = lm.fine_tune(questions(48), bert, out=tmp_path, **(QUICK | {"epochs": 6}))
    assert dict(os.environ) == before  # which training sets for itself alone
    unseen = questions(30, 1)
    scores = lm.choice_logprobs(unseen, result.folder, device="cpu", cache=False)
    assert lm.grade(unseen, scores).mean() > 0.9
    assert result.labels == () and np.isnan(result.mcc)


# the choices of the last item are neither labels nor its own
NEITHER = sentences(8).assign(choices=[*[LABELS] * 7, ["negative", "a boat"]])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"items": sentences(8).assign(answer=0)}, FrameError, "all 8 items have the same label"),
        (
            {"development": sentences(8).assign(choices=[["no", "yes"]] * 8, item_id=range(8))},
            FrameError,
            r"items \[0, .*labels other than",
        ),
        ({"items": NEITHER}, FrameError, r"7 of 8 items have .*items \['s0-7'\] have others"),
        ({"items": NEITHER.assign(hypothesis="a boat")}, FrameError, "'s0-7'.* say task='pair'"),
        ({"regime": "half"}, lm.ModelError, "regime 'half' is unknown"),
        ({"device": "gpu0"}, ValueError, "device .gpu0. cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(bert, tmp_path, options, error, says):
    with pytest.raises(error, match=says):
        lm.fine_tune(**{"items": sentences(8), "encoder": bert, **QUICK, **options}, out=tmp_path)


# What items are


@pytest.mark.parametrize(
    ("regime", "make"),
    [
        ("zero shot", questions),
        ("pre-train only", sentences),
        ("fine-tune only", questions),
        ("both", sentences),
    ],
)
def test_regimes_differ_in_their_weights_and_their_accuracy_is_what_evaluate_gives(
    bert, tmp_path, regime, make
):
    """Few steps of learning: an empty choice is often the likeliest."""
    held, learns = make(32, 1), regime in ("fine-tune only", "both")
    options = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-5, "device": "cpu"}
    options |= {"out": tmp_path, "regime": regime, "development": held}
    tuned = lm.fine_tune(make(16), bert, **options)
    body, ours = (load_file(folder / "model.safetensors") for folder in (bert, tmp_path))
    same = [torch.equal(ours[name], body[name]) for name in ours if "layer.0" in name]
    assert all(same) == (regime == "pre-train only") and len(same) > 5
    result = lm.evaluate(held, {"tuned": tmp_path}, device="cpu", cache=False)
    assert tuned.accuracy == result.persons.loc["tuned", "accuracy"]
    assert tuned.history["epoch"].tolist() == [float(learns)]
    if make is sentences:
        predicted = result.predictions.iloc[0].to_numpy()
        assert tuned.mcc == pytest.approx(matthews_corrcoef(held["answer"], predicted))
    again = lm.fine_tune(make(16), bert, **options)
    assert (again.accuracy, len(again.history)) == (tuned.accuracy, 1)


# Limits, and what is left behind


@pytest.mark.parametrize("make", [sentences, questions])
def test_texts_are_cut_at_what_is_allowed_and_counted_where_they_are_longer(bert, tmp_path, make):
    """Reference: lengths that the tokenizer gives without a limit; the encoder has 64 positions."""
    items = make(6).assign(prompt=[" ".join(["the"] * n) for n in (4, 5, 6, 60, 61, 62)])
    options = {"regime": "pre-train only", "device": "cpu"}
    tokenizer = lm.load(bert, "cpu").tokenizer
    texts = [items["prompt"].tolist()]
    if make is questions:  # pairs, filled up with empty choices
        most = items["choices"].map(len).max()
        filled = items["choices"].map(lambda choices: [*choices, "", "", ""][:most])
        texts = [items["prompt"].repeat(most).tolist(), filled.explode().tolist()]
    lengths = np.array([len(ids) for ids in tokenizer(*texts).input_ids])
    for limit, allowed in ((8, 8), (175, 64)):
        result = lm.fine_tune(
            items, bert, out=tmp_path / str(limit), max_tokens=limit, development=items, **options
        )
        assert (lengths == allowed).any() and result.n_truncated == (lengths > allowed).sum()
        assert 0 <= result.accuracy <= 1
