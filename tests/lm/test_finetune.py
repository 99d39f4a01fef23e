"""Fine-tuning on items. References: the same run uninterrupted, transformers' own heads on the same tokens, and
scikit-learn's Matthews correlation. Encoders are made on the spot, but for the tests of real pre-trained weights."""

import json
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from psychlm.frames import FrameError
from psychlm.lm._load import ModelError
from psychlm.lm.answerers import load as open_answerer
from psychlm.lm.finetune import finetune
from psychlm.lm.finetune_data import batches, encode, task_of

NLI = ["entailment", "neutral", "contradiction"]
QUICK = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("bert"), "bert")


def sentences(n, seed=0):
    """Sentences about boats are positive, those about horses negative: one word tells."""
    rng = np.random.default_rng(seed)
    positive = rng.integers(2, size=n)
    texts = [
        f"the old {rng.choice(['man', 'sea'])} and the {'boat' if yes else 'horse'}"
        for yes in positive
    ]
    return pd.DataFrame(
        {
            "item_id": [f"s{seed}-{i}" for i in range(n)],
            "prompt": texts,
            "choices": [["negative", "positive"]] * n,
            "answer": positive,
        }
    )


def pairs(n, seed=0):
    items = sentences(n, seed)
    return items.assign(hypothesis="the sea", choices=[NLI] * n, answer=2 * items["answer"])


def questions(n, seed=0, choices=(2, 4)):
    """The choice that names the boat is right; items have different numbers of choices."""
    rng = np.random.default_rng(seed)
    wrong = [["horse", "man", "sea", "barn"][: rng.integers(*choices)] for _ in range(n)]
    answer = [int(rng.integers(len(words) + 1)) for words in wrong]
    full = [[*words[:at], "boat", *words[at:]] for words, at in zip(wrong, answer, strict=True)]
    return pd.DataFrame(
        {
            "item_id": [f"q{seed}-{i}" for i in range(n)],
            "prompt": "the old man",
            "choices": full,
            "answer": answer,
        }
    )


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_task_is_read_from_the_items():
    assert task_of(pairs(4)) == "pair"
    assert task_of(sentences(4)) == "single"
    assert task_of(questions(4)) == "multiple-choice"
    assert task_of(sentences(4), "multiple-choice") == "multiple-choice"


@pytest.mark.parametrize("make", [pairs, sentences, questions])
def test_each_task_is_learned_and_opens_as_a_checkpoint_that_answers(make, bert, tmp_path):
    how = QUICK | {"epochs": 7, "learning_rate": 5e-3, "patience": 7, "seed": 1}
    done = finetune(make(96), bert, development=make(24, seed=1), out=tmp_path, **how)
    assert done.accuracy > 0.9
    assert done.mcc == done.history["mcc"].max() and done.history["step"].is_monotonic_increasing
    opened = open_answerer(tmp_path, device="cpu")
    assert opened.labels == done.labels
    assert set(done.labels) == (
        {"pairs": set(NLI), "sentences": {"negative", "positive"}}.get(make.__name__, set())
    )


def test_logits_are_those_of_transformers_own_heads(bert, tmp_path):
    for make, opener in (
        (pairs, AutoModelForSequenceClassification),
        (questions, AutoModelForMultipleChoice),
    ):
        items = make(4)
        folder = finetune(items, bert, out=tmp_path / make.__name__, **QUICK | {"epochs": 0}).folder
        network, tokenizer = (
            opener.from_pretrained(folder).eval(),
            AutoTokenizer.from_pretrained(folder),
        )
        examples = encode(items, tokenizer, task_of(items), tuple(NLI) if make is pairs else (), 64)
        with torch.no_grad():
            ours = examples.batch(np.arange(4), torch.device("cpu")).logits(network)
            for row, item in zip(ours, items.itertuples(), strict=True):
                second = [item.hypothesis] if make is pairs else item.choices
                given = tokenizer(
                    [item.prompt] * len(second), second, return_tensors="pt", padding=True
                )
                given = (
                    given if make is pairs else {name: value[None] for name, value in given.items()}
                )
                torch.testing.assert_close(
                    row[row.isfinite()][None], network(**given).logits, atol=1e-5, rtol=1e-5
                )


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(bert, tmp_path):
    first, again, other = (
        finetune(sentences(24), bert, out=tmp_path / name, seed=seed, **QUICK)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert equal(weights(first.folder), weights(again.folder))
    assert not equal(weights(first.folder), weights(other.folder))
    pd.testing.assert_frame_equal(first.history, again.history)


def test_training_leaves_the_callers_random_state_alone(bert, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    finetune(sentences(8), bert, out=tmp_path, **QUICK)
    assert torch.equal(torch.rand(1), expected)


KILLED = """
import sys, time, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_finetune import finetune, sentences, QUICK
from psychlm.lm import finetune_run
step = finetune_run.Run._step
def slow(run, some):
    step(run, some)
    time.sleep(0.1)
finetune_run.Run._step = slow
finetune(sentences(64), {bert!r}, development=sentences(16, seed=1), out={out!r}, checkpoint_seconds=0, **QUICK)
"""


def test_a_run_killed_in_the_middle_resumes_to_identical_weights(bert, tmp_path):
    out = tmp_path / "killed"
    code = KILLED.format(tests=str(Path(__file__).parents[1]), bert=bert, out=str(out))
    process = subprocess.Popen([sys.executable, "-c", code])
    checkpoint = out / "resume.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.45)  # a few steps further: 24 of them take 2.4 seconds at least
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.is_file() and not (out / "finetuned.json").exists()
    development = sentences(16, seed=1)
    resumed = finetune(sentences(64), bert, development=development, out=out, **QUICK)
    straight = finetune(
        sentences(64), bert, development=development, out=tmp_path / "straight", **QUICK
    )
    assert equal(weights(resumed.folder), weights(straight.folder))
    pd.testing.assert_frame_equal(resumed.history, straight.history)
    assert not checkpoint.exists()


def test_a_finished_run_is_read_and_not_repeated(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))
    first = finetune(sentences(16), bert, development=0.25, **QUICK)
    written = (first.folder / "model.safetensors").stat().st_mtime_ns
    again = finetune(sentences(16), bert, development=0.25, **QUICK)
    assert (again.folder / "model.safetensors").stat().st_mtime_ns == written
    pd.testing.assert_frame_equal(first.history, again.history)
    assert (first.mcc, first.labels, first.seconds) == (again.mcc, again.labels, again.seconds)
    assert finetune(sentences(16), bert, development=0.25, seed=5, **QUICK).folder != first.folder


def test_a_folder_of_another_run_is_not_written_over(bert, tmp_path):
    finetune(sentences(16), bert, out=tmp_path, **QUICK)
    with pytest.raises(ModelError, match=r"holds another run \(other recipe\).*resume=False"):
        finetune(sentences(16), bert, out=tmp_path, seed=9, **QUICK)
    finetune(sentences(16), bert, out=tmp_path, seed=9, resume=False, **QUICK)


def test_a_damaged_checkpoint_or_mark_is_noticed(bert, tmp_path):
    (tmp_path / "resume.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="is damaged.*delete it"):
        finetune(sentences(16), bert, out=tmp_path, **QUICK)
    (tmp_path / "resume.safetensors").unlink()
    done = finetune(sentences(16), bert, out=tmp_path, **QUICK)
    mark = tmp_path / "finetuned.json"
    mark.write_text(mark.read_text()[:50])
    assert equal(
        weights(finetune(sentences(16), bert, out=tmp_path, **QUICK).folder), weights(done.folder)
    )
    assert json.loads(mark.read_text())["result"]["labels"] == ["negative", "positive"]


def test_a_full_disk_is_explained_and_the_run_goes_on_when_there_is_room(
    bert, tmp_path, monkeypatch
):
    from psychlm.lm import finetune_run

    write, written = finetune_run.save_file, []

    def full(*given):
        if written:
            raise OSError(28, "No space left on device")
        written.append(write(*given))

    monkeypatch.setattr(finetune_run, "save_file", full)
    with pytest.raises(ModelError, match="cannot be written.*No space left.*make room"):
        finetune(sentences(16), bert, out=tmp_path / "full", **QUICK)
    monkeypatch.setattr(finetune_run, "save_file", write)
    done = finetune(sentences(16), bert, out=tmp_path / "full", **QUICK)
    straight = finetune(sentences(16), bert, out=tmp_path / "straight", **QUICK)
    assert equal(weights(done.folder), weights(straight.folder))


def test_two_calls_at_once_train_once(bert, tmp_path, monkeypatch):
    from psychlm.lm import finetune_run

    step, steps = finetune_run.Run._step, []
    monkeypatch.setattr(
        finetune_run.Run, "_step", lambda run, some: (steps.append(1), step(run, some))
    )
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(finetune, sentences(16), bert, out=tmp_path, **QUICK) for _ in range(2)
        ]
        one, other = (call.result() for call in calls)
    assert len(steps) == 6  # two batches, three epochs
    pd.testing.assert_frame_equal(one.history, other.history)


def test_training_stops_when_the_matthews_correlation_no_longer_rises(bert, tmp_path):
    done = finetune(
        sentences(48),
        bert,
        development=sentences(24, seed=1),
        out=tmp_path,
        patience=2,
        **QUICK | {"epochs": 40},
    )
    best = done.history["mcc"].to_numpy().argmax()
    assert len(done.history) == best + 3 < 40
    assert done.best_epoch == done.history["epoch"][best]


def test_batches_go_once_through_all_items_and_put_like_lengths_together(rng):
    lengths = rng.integers(5, 60, size=200)
    once, again = (batches(lengths, 16, np.random.default_rng(seed)) for seed in (1, 2))
    for found in (once, again, batches(lengths, 16)):
        assert sorted(np.concatenate(found)) == list(range(200)) and max(map(len, found)) == 16
    assert any(set(one) != set(other) for one, other in zip(once, again, strict=True))
    padded = sum(lengths[some].max() * len(some) for some in once)
    shuffled = sum(some.max() * len(some) for some in np.array_split(rng.permutation(lengths), 13))
    assert padded < 0.85 * shuffled


def test_frozen_layers_stay_and_their_kept_states_change_nothing(bert, tmp_path, monkeypatch):
    how = QUICK | {"trainable_layers": 1}
    kept = finetune(sentences(32), bert, development=sentences(16, 1), out=tmp_path / "kept", **how)
    monkeypatch.setattr("psychlm.lm.finetune_network.LARGEST_STORE", 0)
    whole = finetune(
        sentences(32), bert, development=sentences(16, 1), out=tmp_path / "whole", **how
    )
    before, after, other = weights(bert), weights(kept.folder), weights(whole.folder)
    for name in before.keys() & after.keys():
        fixed = "embeddings" in name or "layer.0." in name
        assert torch.equal(before[name], after[name]) == fixed, name
    for name in after:
        torch.testing.assert_close(after[name], other[name], atol=1e-4, rtol=1e-3)


def test_frozen_layers_are_skipped_once_their_states_are_kept(bert, tmp_path, monkeypatch):
    from transformers.models.bert.modeling_bert import BertLayer

    passes, forward = [], BertLayer.forward
    monkeypatch.setattr(
        BertLayer, "forward", lambda self, *a, **k: (passes.append(self), forward(self, *a, **k))[1]
    )
    finetune(sentences(32), bert, out=tmp_path, **QUICK | {"epochs": 10, "trainable_layers": 1})
    lower, upper = sorted(map(passes.count, set(passes)))
    assert upper >= 40 and lower <= 8


SIZE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
FAMILIES = {  # those of Laverghetta et al. (2021) that have heads for pairs, and two of later years
    "roberta": SIZE,
    "electra": SIZE | {"embedding_size": 16},
    "albert": SIZE | {"embedding_size": 16},
    "deberta-v2": SIZE
    | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"},
    "convbert": SIZE | {"embedding_size": 32},
    "longformer": SIZE | {"attention_window": 8},
    "xlnet": {
        "vocab_size": 120,
        "d_model": 32,
        "n_layer": 2,
        "n_head": 2,
        "d_inner": 64,
        "pad_token_id": 0,
    },
    "distilbert": {"vocab_size": 120, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "modernbert": SIZE
    | {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_are_trained_alike_with_and_without_kept_states(
    family, tmp_path, monkeypatch
):
    config = AutoConfig.for_model(family, **FAMILIES[family])
    torch.manual_seed(0)
    tokenizer = tiny_models.wordpiece()
    AutoModel.from_config(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    how = QUICK | {"epochs": 1, "trainable_layers": 1}
    kept = finetune(pairs(16), tmp_path / "encoder", out=tmp_path / "kept", **how)
    monkeypatch.setattr("psychlm.lm.finetune_network.LARGEST_STORE", 0)
    whole = finetune(pairs(16), tmp_path / "encoder", out=tmp_path / "whole", **how)
    after, other = weights(kept.folder), weights(whole.folder)
    assert after.keys() == other.keys()
    for name in after:
        torch.testing.assert_close(after[name], other[name], atol=1e-4, rtol=1e-3)


def test_a_network_that_computes_in_bfloat16_keeps_its_weights_in_float32(
    bert, tmp_path, monkeypatch
):
    monkeypatch.setattr("psychlm.lm.finetune_run.precision", lambda _: "bf16")
    half = finetune(
        sentences(64),
        bert,
        development=sentences(16, 1),
        out=tmp_path,
        **QUICK | {"learning_rate": 5e-3},
    )
    assert half.accuracy > 0.9
    assert {weight.dtype for weight in weights(half.folder).values()} == {torch.float32}


def test_label_words_are_matched_by_what_they_mean(bert, tmp_path):
    other = sentences(24, 1).assign(
        choices=[["POS", "neg"]] * 24, answer=1 - sentences(24, 1)["answer"]
    )
    done = finetune(
        sentences(64), bert, development=other, out=tmp_path, **QUICK | {"learning_rate": 5e-3}
    )
    assert done.accuracy > 0.9


def test_a_checkpoints_own_labels_keep_their_order(bert, tmp_path):
    first = finetune(pairs(24), bert, out=tmp_path / "first", **QUICK)
    turned = pairs(24).assign(choices=[NLI[::-1]] * 24, answer=2 - pairs(24)["answer"])
    again = finetune(turned, first.folder, out=tmp_path / "again", **QUICK | {"epochs": 0})
    assert again.labels == first.labels == tuple(NLI)
    assert torch.equal(
        weights(again.folder)["classifier.weight"], weights(first.folder)["classifier.weight"]
    )


def test_nothing_pretrained_means_that_every_weight_is_drawn_by_the_seed(bert, tmp_path):
    fresh = weights(
        finetune(pairs(8), bert, out=tmp_path, pretrained=False, **QUICK | {"epochs": 0}).folder
    )
    before = weights(bert)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(fresh[name], before[name])


def test_what_is_too_long_is_cut_counted_and_warned_of(bert, tmp_path):
    items = sentences(8)
    items.loc[2, "prompt"] = "the old man " * 40
    with pytest.warns(UserWarning, match="1 of 8 texts are longer than 64 tokens"):
        done = finetune(items, bert, out=tmp_path, **QUICK)
    assert done.n_truncated == 1


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda items: items.assign(answer=[math.nan, *items["answer"][1:]]),
            FrameError,
            "s0-0.*no answer",
        ),
        (
            lambda items: items.assign(answer=[-1, *items["answer"][1:]]),
            FrameError,
            "s0-0.*no answer",
        ),
        (
            lambda items: items.assign(answer=1),
            FrameError,
            "all 16 items have the answer 'positive'",
        ),
        (
            lambda items: items.assign(prompt=[" ", *items["prompt"][1:]]),
            FrameError,
            "s0-0.*empty text",
        ),
        (lambda items: items.assign(answer=3), FrameError, "not among their choices"),
        (lambda items: items.drop(columns="choices"), FrameError, "needs the columns"),
        (lambda items: items.iloc[:0], FrameError, "empty"),
    ],
)
def test_items_that_cannot_be_learned_from_are_refused(spoil, error, message, bert, tmp_path):
    with pytest.raises(error, match=message):
        finetune(spoil(sentences(16)), bert, out=tmp_path, **QUICK)


def test_wrong_requests_are_explained(bert, tmp_path):
    items = sentences(16)
    with pytest.raises(FrameError, match="needs a column 'hypothesis'"):
        finetune(items, bert, task="pair", out=tmp_path, **QUICK)
    with pytest.raises(FrameError, match="unknown; choose one of"):
        finetune(items, bert, task="regression", out=tmp_path, **QUICK)
    with pytest.raises(FrameError, match="label words other than"):
        finetune(
            items,
            bert,
            development=items.assign(choices=[["bad", "good"]] * 16),
            out=tmp_path,
            **QUICK,
        )
    with pytest.raises(FrameError, match="holds out 0"):
        finetune(items, bert, development=0.0, out=tmp_path, **QUICK)
    with pytest.raises(ModelError, match="there is no folder"):
        finetune(items, "./nowhere", out=tmp_path, **QUICK)
    with pytest.raises(
        ModelError, match="5 layers are to learn, and BertForSequenceClassification has 2"
    ):
        finetune(items, bert, out=tmp_path, trainable_layers=5, **QUICK)
    with pytest.raises(TypeError, match="rate_of_learning"):
        finetune(items, bert, out=tmp_path, rate_of_learning=1.0, **QUICK)
    with pytest.raises(FloatingPointError, match="lower learning_rate"):
        finetune(items, bert, out=tmp_path, **QUICK | {"learning_rate": 1e30})


def test_a_language_model_with_no_encoder_of_that_kind_is_refused(bert, tmp_path):
    broken = tmp_path / "broken"
    tokenizer = tiny_models.wordpiece()
    network = tiny_models.network("bert", tokenizer)
    state = {name: value for name, value in network.state_dict().items() if "layer.1" not in name}
    network.save_pretrained(broken, state_dict=state)
    tokenizer.save_pretrained(broken)
    with pytest.raises(ModelError, match="lacks weights.*which would be random"):
        finetune(sentences(16), broken, out=tmp_path / "out", **QUICK)


def test_a_family_without_a_head_for_the_task_is_refused(tmp_path):
    gpt2 = tiny_models.save(tmp_path / "gpt2", "gpt2")
    with pytest.raises(ModelError, match="no head for the task 'multiple-choice' on a gpt2"):
        finetune(questions(8), gpt2, out=tmp_path / "out", **QUICK)


def test_a_causal_language_model_can_be_fine_tuned_too(tmp_path):
    gpt2 = tiny_models.save(tmp_path / "gpt2", "gpt2")
    done = finetune(
        sentences(64),
        gpt2,
        development=sentences(16, 1),
        out=tmp_path / "out",
        **QUICK | {"learning_rate": 5e-3},
    )
    assert done.accuracy > 0.9
    frozen = finetune(sentences(16), gpt2, out=tmp_path / "frozen", trainable_layers=1, **QUICK)
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(weights(frozen.folder)[name], weights(gpt2)[name])


def test_matthews_correlation_of_multiple_choice_is_accuracy_beyond_chance(bert, tmp_path):
    from psychlm.lm.finetune_run import agreement

    items = questions(60, choices=(3, 4))  # four choices each
    examples = encode(items, AutoTokenizer.from_pretrained(bert), "multiple-choice", (), 64)
    predicted = np.where(np.arange(60) < 33, examples.target, (examples.target + 1) % 4)
    mcc, accuracy = agreement(predicted, examples)
    assert accuracy == 0.55
    assert mcc == pytest.approx((0.55 - 0.25) / 0.75)


def test_real_pretrained_weights_learn_from_two_hundred_items(tmp_path):
    """Adjectives in the test sentences do not occur in training: only what was pre-trained can tell them."""
    words = {
        "positive": [
            "wonderful",
            "great",
            "lovely",
            "excellent",
            "brilliant",
            "charming",
            "superb",
            "delightful",
        ],
        "negative": [
            "terrible",
            "awful",
            "horrible",
            "boring",
            "dreadful",
            "stupid",
            "poor",
            "disgusting",
        ],
    }
    nouns = [
        "film",
        "book",
        "story",
        "song",
        "play",
        "meal",
        "trip",
        "show",
        "game",
        "lecture",
        "painting",
        "dinner",
    ]
    rows = [
        (f"the {noun} was {word} {when}", label == "positive", i < 5)
        for label in words
        for i, word in enumerate(words[label])
        for noun in nouns
        for when in ("again", "today")
    ]
    frame = pd.DataFrame(rows, columns=["prompt", "answer", "train"]).sample(frac=1, random_state=0)
    items = frame.assign(
        item_id=[f"a{i}" for i in range(len(frame))],
        choices=[["negative", "positive"]] * len(frame),
        answer=frame["answer"].astype(int),
    )
    train, test = items[items["train"]].head(200), items[~items["train"]]
    done = finetune(
        train,
        development=test,
        out=tmp_path,
        epochs=3,
        learning_rate=5e-4,
        trainable_layers=1,
        device="cpu",
    )
    assert done.accuracy > 0.8  # chance: 0.5
