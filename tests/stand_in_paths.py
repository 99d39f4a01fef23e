"""Compute on a stand-in device and on the CPU; print a JSON line for each capability.

The stand-in's numbers are the CPU's, and it refuses operations that mix its tensors with those of
the host: what runs here without an error does not mix devices, and should equal the CPU's results.
``test_device.py`` calls ``python stand_in_paths.py FOLDER``, the folder of ``device_stand_in.py``.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator

# isort: off
sys.path.insert(0, sys.argv[1])
import device_stand_in as stand_in  # before torch is used

import numpy as np
import pandas as pd
import torch

from psychlm import crowds, irt, lm
from psychlm import reading_times as reading
from psychlm.irt import _fit
from psychlm.lm import word_models

rng = np.random.default_rng(1)
TEXTS = ["The old man the boat. The horse raced past."] * 2 + ["A dog."]


def both(work: Callable[[str], np.ndarray]) -> float:
    """Return the largest difference between the results of the CPU and of the stand-in."""
    found = [np.asarray(work(device), float) for device in ("cpu", "card")]
    return float(np.nanmax(np.abs(found[0] - found[1])))


def answers(n_persons: int, n_items: int, guessing: float = 0.0) -> np.ndarray:
    theta, slope = rng.normal(size=(n_persons, 1)), rng.lognormal(0, 0.3, n_items)
    right = 1 / (1 + np.exp(-(slope * theta + rng.normal(size=n_items))))
    graded = rng.random((n_persons, n_items)) < guessing + (1 - guessing) * right
    return graded[:, (graded.mean(0) > 0.05) & (graded.mean(0) < 0.95)].astype(np.uint8)


def fit(matrix: np.ndarray, model: str, **options) -> Callable[[str], pd.DataFrame]:
    def run(device: str) -> pd.DataFrame:
        return irt.fit(matrix, model, device=device, **options).items.select_dtypes("number")

    return run


def paths() -> Iterator[tuple[str, Callable[[str], np.ndarray]]]:
    """Yield a name and a computation that takes a device."""
    plain = answers(200, 12)
    yield "irt 2PL", fit(plain, "2PL")
    missing = np.where(rng.random(plain.shape) < 0.1, 255, plain).astype(np.uint8)
    yield "irt Rasch, missing", fit(missing, "Rasch")
    prior = {"guessing": irt.Beta(5, 17)}
    yield "irt 3PL", fit(answers(100, 6, 0.2), "3PL", priors=prior)
    yield "irt wide", fit(answers(40, 620), "2PL", priors={"slope": irt.LogNormal(0, 0.5)})
    yield "irt variational", fit(plain, "2PL", method="vi")

    simulated = reading.simulate(
        np.random.default_rng(0), n_words=600, n_subjects=3, noise_bits=np.array([0.0, 2.0])
    )
    options = {"folds": 3, "n_bootstrap": 50, "n_permutations": 49}

    def sweep(device: str) -> pd.DataFrame:
        gains = reading.delta_loglik(
            simulated.readings, simulated.surprisals, ["gaze_ms"], device=device, **options
        )
        return gains.select_dtypes("number")

    yield "reading-time sweep", sweep

    def surprisal(device: str) -> pd.DataFrame:
        model = lm.load("default", device, dtype="float32")
        scored = lm.surprisal(TEXTS, model, entropy=True, rank=True, cache=False)
        return scored[["surprisal_bits", "entropy_bits", "rank"]]

    yield "surprisal", surprisal
    questions = {
        "item_id": ["a", "b"],
        "prompt": ["The cat sat on the", "Two and two make"],
        "choices": [["mat", "idea"], ["four", "five"]],
        "answer": [0, 0],
    }

    def choices(device: str) -> pd.DataFrame:
        model = lm.load("default", device, dtype="float32")
        return lm.choice_logprobs(pd.DataFrame(questions), model, cache=False)

    yield "choices", choices

    labels = rng.integers(0, 2, 30)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 12, 6)) for _ in labels]
    inputs = {
        "lstm": crowds.encode_texts(texts),
        "nli-lstm": crowds.encode_texts(texts, texts),
        "bag": crowds.encode_texts(texts),
        "cnn": crowds.encode_images(rng.normal(size=(30, 6, 6))),
        "mlp": torch.from_numpy(rng.normal(size=(30, 5)).astype(np.float32)),
    }
    for kind, encoded in inputs.items():

        def crowd(device: str, kind=kind, encoded=encoded) -> np.ndarray:
            sizes = {} if kind in ("mlp", "cnn") else {"size": 4}
            options = {"n_models": 3, "epochs": 2, "batch_size": 8, "hidden": 4, **sizes}
            trained = crowds.train(
                kind, encoded, labels, development=(encoded, labels), device=device, **options
            )
            return crowds.predict_logits(trained.network, trained.weights, encoded).cpu()

        yield f"crowd {kind}", crowd

    sentences = [list(rng.choice([f"w{i}" for i in range(20)], 6)) for _ in range(60)]
    vocabulary = word_models.Vocabulary.of(sentences)
    stream = vocabulary.stream(sentences)

    def words(device: str) -> float:  # an LSTM takes a fused operation that the stand-in lacks
        shape = word_models.Architecture("transformer", 8, span=6)
        recipe = word_models.Training(rate=1.0, epochs=1, batch_size=4)
        trained = word_models.train(stream, stream, vocabulary, shape, recipe, device=device)
        return trained.validation_perplexity

    yield "word-level transformer", words

    # two planted mistakes, which the stand-in must notice
    grid = _fit.quadrature_grid

    def host_grid(device: str) -> pd.DataFrame:
        _fit.quadrature_grid = lambda **_: grid(device="cpu")
        try:
            return fit(plain, "2PL")(device)
        finally:
            _fit.quadrature_grid = grid

    yield "planted: host grid", host_grid
    yield "planted: numpy", lambda device: torch.ones(3, device=device).numpy()


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, work in paths():
        stand_in.launched[0] = 0
        try:
            row = {"difference": both(work), "error": ""}
        except Exception as error:
            row = {"difference": None, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"path": name, "launched": stand_in.launched[0], **row}), flush=True)


if __name__ == "__main__":
    main()
