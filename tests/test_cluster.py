"""Work in pieces on a Dask cluster of two processes, of which some are killed.

Reference: the same call without ``client``."""

import os
import signal
import time

import pandas as pd
import pytest

from psychlm import cluster, crowds, lm
from psychlm import reading_times as reading
from psychlm.crowds import store
from psychlm.lm import ModelError
from psychlm.reading_times import sweep

TEXTS = ["The old man the boat.", "The horse raced past the barn fell.", "A plan.", "He did."]


@pytest.fixture(scope="module")
def client():
    """Return a client of a real cluster of two processes."""
    distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 2e9}
    made = distributed.LocalCluster(**options, dashboard_address=None)
    with made, distributed.Client(made) as opened:
        opened.wait_for_workers(2)
        yield opened


def dies_once(work, marker):
    """Return the work, whose first piece to begin kills its worker."""

    def killed_the_first_time(shared, piece):  # a closure travels by value
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return work(shared, piece)
        return os.kill(os.getpid(), signal.SIGKILL)

    return killed_the_first_time


@pytest.fixture
def crowd(rng):
    """Return the arguments of a small crowd of bags."""
    labels, words = rng.integers(0, 2, 60), [f"w{i}" for i in range(30)]
    texts = [" ".join([*rng.choice(words, 6), f"label{label}"]) for label in labels]
    encoded = crowds.encode_texts(texts)
    learned = {"network": "bag", "inputs": encoded, "targets": labels, "seed": 1, "n_models": 9}
    learned |= {"epochs": 3, "batch_size": 8}
    return learned | {"items": encoded[:15], "answers": labels[:15]}


@pytest.mark.slow
def test_a_crowd_is_the_same_though_a_worker_is_killed(crowd, client, tmp_path, monkeypatch):
    here, marker = crowds.train_crowd(**crowd), tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(store, "train_chunk", dies_once(store.train_chunk, str(marker)))
        options = {"folder": tmp_path / "chunks", "client": client, "models_at_once": 1}
        made = crowds.train_crowd(**crowd, **options)
    assert marker.exists()
    pd.testing.assert_frame_equal(made.responses, here.responses)
    pd.testing.assert_frame_equal(made.members, here.members)
    assert crowds.train_crowd(**crowd, **options).n_resumed == 9
    address = client.scheduler.address
    by_address = crowds.train_crowd(**crowd, models_at_once=3, client=address)
    pd.testing.assert_frame_equal(by_address.responses, here.responses)


@pytest.mark.slow
def test_a_sweep_is_the_same_on_a_cluster(client, rng, monkeypatch):
    sizes = {"n_words": 600, "n_subjects": 5, "n_texts": 8, "noise_bits": [0.5, 3.0, 9.0]}
    made = reading.simulate(rng, **sizes, skipped=0.25)
    formula = 's(length_chars, k=6) + s(subject, bs="re")'
    asked = (made.readings, made.surprisals, ["gaze_ms", "total_ms"], formula)
    monkeypatch.setattr(sweep, "CHUNK_BYTES", 1)  # a piece for each model
    here = reading.delta_loglik(*asked, folds=4)
    assert len(here) == 6 and here["converged"].all()
    pd.testing.assert_frame_equal(reading.delta_loglik(*asked, folds=4, client=client), here)


@pytest.mark.slow
def test_surprisals_are_the_same_on_a_cluster(client):
    options = {"texts_at_once": 1, "cache": False}
    here = lm.surprisals(TEXTS, ["default"], **options)
    there = lm.surprisals(TEXTS, ["default"], client=client, **options)
    assert there.attrs == here.attrs
    pd.testing.assert_frame_equal(there, here)


@pytest.fixture
def items() -> pd.DataFrame:
    items = pd.DataFrame({"item_id": [f"q{i}" for i in range(5)], "prompt": [*TEXTS, "So"]})
    items["choices"] = [["We sat.", f"It is {i}."] + ["Yes."] * (i % 2) for i in range(5)]
    return items.assign(answer=0)


def test_answers_in_pieces_are_those_of_all_items_together(items):
    model = lm.load()
    whole, pieces = (lm.evaluate(items, model, items_at_once=n, cache=False) for n in (None, 2))
    for name, table in vars(whole).items():
        pd.testing.assert_frame_equal(getattr(pieces, name), table)


def test_surprisals_are_those_of_each_model_alone():
    shuffled = lm.words_of(TEXTS).sample(frac=1, random_state=1)
    table = lm.surprisals(shuffled, ["default"], texts_at_once=3, cache=False, bos=None)
    alone = lm.surprisal(shuffled, cache=False, bos=None)
    assert table["default"].isna().sum() == len(TEXTS)
    pd.testing.assert_series_equal(table["default"], alone["surprisal_bits"], check_names=False)
    assert table.attrs["surprisal"] == {"default": alone.attrs["surprisal"]}


def test_what_a_cluster_cannot_do_is_refused(rng, items):
    nowhere, made = "tcp://127.0.0.1:9", reading.simulate(rng, n_words=100, n_subjects=2)
    with pytest.raises(ModelError, match=r"\['default'\] are named twice"):
        lm.surprisals(TEXTS, ["default", "default"])
    with pytest.raises(ModelError, match="open models by name or folder"):
        lm.surprisals(TEXTS, [lm.load()], client=nowhere)
    with pytest.raises(ModelError, match="open models by name or folder"):
        lm.evaluate(items, lm.load(), client=nowhere)
    with pytest.raises(ValueError, match="items_at_once=0 cannot be"):
        lm.evaluate(items, lm.load(), items_at_once=0)
    with pytest.raises(ValueError, match=r"client= fits the models on the workers' processors"):
        asked = (made.readings, made.surprisals, "gaze_ms")
        reading.delta_loglik(*asked, client=nowhere, device="cuda")


def test_a_piece_that_kills_its_workers_is_said_to_be_too_large(client, monkeypatch):
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)  # of workers of one piece
    with pytest.raises(MemoryError, match="make pieces smaller"):
        kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - travels by value
        list(cluster.run_pieces(client, kill, None, {0: None}))


def test_a_cluster_that_does_not_answer_is_said_so_within_seconds(crowd):
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    started = time.monotonic()
    with pytest.raises(ConnectionError, match="no dask scheduler answers at 'tcp://127.0.0.1:9'"):
        crowds.train_crowd(**crowd, client="tcp://127.0.0.1:9")
    assert time.monotonic() - started < 20
