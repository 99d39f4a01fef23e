"""Crowds in chunks and on disk. Reference: the crowd trained at once."""

import sqlite3

import numpy as np
import pandas as pd
import pytest
from killed import kill_this_process, run_until_killed

from psychlm import crowds
from psychlm.crowds import store
from psychlm.crowds.store import train_chunk


def problem(n_train=60):
    """Return the arguments of a small crowd of heads on features."""
    rng = np.random.default_rng(5)
    classes = rng.integers(0, 2, 75)
    features = crowds.encode_images(rng.normal(size=(75, 4)) + classes[:, None])
    answers = pd.Series(classes[60:], index=[f"q{i}" for i in range(15)])
    train = {"inputs": features[:n_train], "targets": classes[:n_train]}
    return {"network": "encoder", "items": features[60:], "answers": answers, **train}


OPTIONS = {"n_models": 9, "seed": 1, "epochs": 3, "batch_size": 8}


@pytest.fixture(scope="module")
def reference():
    return crowds.train_crowd(**problem(), **OPTIONS)


@pytest.mark.parametrize("models_at_once", [1, 5])
def test_chunks_of_any_size_make_the_same_crowd(reference, models_at_once):
    made = crowds.train_crowd(**problem(), **OPTIONS, models_at_once=models_at_once)
    pd.testing.assert_frame_equal(made.responses, reference.responses)
    pd.testing.assert_frame_equal(made.members, reference.members)


def test_finished_chunks_are_read_from_disk_and_broken_ones_trained_anew(reference, tmp_path):
    options = {"models_at_once": 3, "folder": tmp_path}
    assert crowds.train_crowd(**problem(), **OPTIONS, **options).n_resumed == 0
    with sqlite3.connect(tmp_path / "results.sqlite") as connection:
        rows = connection.execute("SELECT key, scores FROM results").fetchall()
        for name, blob in rows[:2]:
            spoilt = "UPDATE results SET scores = ? WHERE key = ?"
            connection.execute(spoilt, [blob[: len(blob) // 2], name])
    with pytest.warns(RuntimeWarning, match="are computed again"):
        again = crowds.train_crowd(**problem(), **OPTIONS, **options, progress=True)
    assert again.n_resumed == 3
    pd.testing.assert_frame_equal(again.responses, reference.responses)
    assert crowds.train_crowd(**problem(), **OPTIONS, **options).n_resumed == 9


def test_another_crowd_in_the_same_folder_is_not_taken_for_this_one(tmp_path):
    crowds.train_crowd(**problem(), **OPTIONS, folder=tmp_path)
    assert crowds.train_crowd(**problem(), **OPTIONS, folder=tmp_path).n_resumed == 9
    for arguments in (OPTIONS | {"epochs": 2}, OPTIONS | {"seed": 2}):
        assert crowds.train_crowd(**problem(), **arguments, folder=tmp_path).n_resumed == 0
    assert crowds.train_crowd(**problem(n_train=59), **OPTIONS, folder=tmp_path).n_resumed == 0


@pytest.mark.usefixtures("one_thread")
def test_a_run_killed_in_the_middle_resumes_to_the_same_crowd(reference, tmp_path, monkeypatch):
    options = OPTIONS | {"models_at_once": 2, "folder": tmp_path}

    left = iter(range(2))

    def killed(task, members):
        if next(left, None) is None:
            kill_this_process()
        return train_chunk(task, members)

    with monkeypatch.context() as patch:
        patch.setattr(store, "train_chunk", killed)
        run_until_killed(lambda: crowds.train_crowd(**problem(), **options))
    resumed = crowds.train_crowd(**problem(), **options)
    assert resumed.n_resumed == 4
    pd.testing.assert_frame_equal(resumed.responses, reference.responses)
    pd.testing.assert_frame_equal(resumed.members, reference.members)
