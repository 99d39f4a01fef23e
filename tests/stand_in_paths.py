"""Compute on a stand-in device and on the CPU; print a JSON line for each capability.

The stand-in's numbers are the CPU's, and it refuses operations that mix its tensors with those of
the host: what runs here without an error does not mix devices, and should equal the CPU's results.
``test_device.py`` calls ``python stand_in_paths.py FOLDER``, the folder of ``device_stand_in.py``.

What a capability would cost on a GPU is counted: operations that are launched there (views are
none), the bytes that they read and write, and how often the host waits for the device's numbers."""

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from unittest import mock

# isort: off
sys.path.insert(0, sys.argv[1])
from stand_in_device import stand_in  # before torch is used

import numpy as np
import pandas as pd
import tiny_models
import torch
from torch.utils._pytree import tree_leaves

from psychlm import crowds, irt, lm
from psychlm import reading_times as reading
from psychlm.irt import _fit
from analyses.variational import infer
from analyses import word_models


costs = {"launches": 0, "bytes": 0, "waits": 0}
# operations whose result, or its shape, the host reads
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2")


def bytes_of(values: object) -> int:
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return sum(x.nelement() * x.element_size() for x in tensors)


def counted(run: Callable) -> Callable:
    """Return the stand-in's run, which counts what each operation costs on the device."""

    def run_and_count(func, args, kwargs):
        made = run(func, args, kwargs)
        inputs, outputs = tree_leaves((args, kwargs)), tree_leaves(made)
        takes_card, gives_card = (
            any(isinstance(x, stand_in.Card) for x in some) for some in (inputs, outputs)
        )
        if (takes_card or gives_card) and not func.is_view:
            name = func._schema.name.removeprefix("aten::")
            by_mask = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in inputs[1:])
            costs["launches"] += 1
            costs["bytes"] += bytes_of(inputs) + bytes_of(outputs)
            costs["waits"] += name in WAITS or (name == "index" and by_mask) or not gives_card
        return made

    return run_and_count


stand_in.run = counted(stand_in.run)
rng = np.random.default_rng(1)
TEXTS = ["The old man the boat. The horse raced past."] * 2 + ["A dog."]


def numbers_of(result: object) -> np.ndarray:
    """Return the numbers of a table, or of the items or residuals of a fit."""
    if isinstance(result, reading.GAMFit):
        result = result.residuals
    elif not isinstance(result, pd.DataFrame):
        result = getattr(result, "items", result)
    if isinstance(result, pd.DataFrame):
        result = result.select_dtypes("number")
    return np.asarray(result, float)


def both(work: Callable) -> float:
    """Return the largest difference between the numbers of the CPU and of the stand-in."""
    on_cpu, on_card = (numbers_of(work(device=device)) for device in ("cpu", "card"))
    return float(np.nanmax(np.abs(on_cpu - on_card)))  # infinite abilities are equal, too


def refuses_what_is_not_here(work: Callable) -> bool:
    """Return whether a device that torch does not know is an error that says what to do."""
    try:
        work(device="tpu")
    except ValueError as error:
        return "use device='cpu' or device='auto'" in str(error)
    return False


def answers(n_persons: int, n_items: int, guessing: float = 0.0) -> np.ndarray:
    theta, slope = rng.normal(size=(n_persons, 1)), rng.lognormal(0, 0.3, n_items)
    right = 1 / (1 + np.exp(-(slope * theta + rng.normal(size=n_items))))
    graded = rng.random((n_persons, n_items)) < guessing + (1 - guessing) * right
    return graded[:, (graded.mean(0) > 0.05) & (graded.mean(0) < 0.95)].astype(np.uint8)


_fit.NUMPY_CELLS = 0  # small fits, too, compute with tensors


def responses() -> Iterator[tuple[str, Callable]]:
    """Yield what is computed of responses."""
    plain = answers(200, 12)
    yield "irt 2PL", partial(irt.fit, plain, "2PL")
    known = irt.fit(plain, "2PL")
    frame = pd.DataFrame(plain, columns=known.items.index).astype(float)
    for method in ("eap", "map", "ml", "wle"):
        yield f"irt score {method}", partial(irt.score, known.items, frame, method)
    gaps = frame.mask(rng.random(frame.shape) < 0.1)
    guessed = known.items.assign(c=0.2)
    yield "irt score ml, guessing, missing", partial(irt.score, guessed, gaps, "ml")
    for statistic in (irt.person_fit, irt.infit_outfit, irt.q3, irt.ld_x2):
        yield f"irt {statistic.__name__}", partial(statistic, known, gaps)
    missing = np.where(rng.random(plain.shape) < 0.1, 255, plain).astype(np.uint8)
    yield "irt Rasch, missing", partial(irt.fit, missing, "Rasch")
    of_guessing = {"priors": {"guessing": irt.Beta(5, 17)}, "max_iterations": 8}
    yield "irt 3PL", partial(irt.fit, answers(60, 5, 0.2), "3PL", **of_guessing)
    of_slopes = {"slope": irt.LogNormal(0, 0.5)}
    yield "irt wide", partial(irt.fit, answers(40, 620), "2PL", priors=of_slopes)
    yield "irt variational", partial(infer, plain, max_iterations=6)


def reading_times() -> Iterator[tuple[str, Callable]]:
    """Yield what is computed of reading times."""
    noise = {"noise_bits": np.array([0.0, 2.0])}
    made = reading.simulate(np.random.default_rng(0), n_words=300, n_subjects=2, **noise)
    terms = "te(length_chars, log_frequency, k=3) + prev_fixated + s(subject, bs='re')"
    yield "additive model", partial(reading.fit, made.readings, f"gaze_ms ~ {terms}")
    options = {"folds": 2, "n_bootstrap": 20, "n_permutations": 19}
    swept = partial(reading.delta_loglik, made.readings, made.surprisals, ["gaze_ms"], terms)
    yield "reading-time sweep", partial(swept, **options)


@cache
def language_model(device: str) -> lm.LanguageModel:
    return lm.load("default", device)


def surprisal(device: str) -> pd.DataFrame:
    scored = {"entropy": True, "rank": True, "cache": False}
    return lm.surprisal(TEXTS, language_model(device), **scored)


def choices(device: str) -> pd.DataFrame:
    items = pd.DataFrame({"prompt": ["The cat sat on the", "Two and two make"], "answer": 0})
    items = items.assign(item_id=["a", "b"], choices=[["mat", "idea"], ["four", "five"]])
    return lm.choice_logprobs(items, language_model(device), cache=False)


def crowd(kind: str, encoded: object, labels: np.ndarray, device: str) -> np.ndarray:
    options = {"n_models": 3, "epochs": 2, "batch_size": 8, "hidden": 4, "device": device}
    options |= {} if kind in ("mlp", "cnn") else {"size": 4}
    trained = crowds.train(kind, encoded, labels, development=(encoded, labels), **options)
    return crowds.predict_logits(trained.network, trained.weights, encoded).cpu()


def word_level(kind: str, sentences: list[list[str]], device: str) -> np.ndarray:
    vocabulary = word_models.Vocabulary.of(sentences)
    stream = vocabulary.stream(sentences)
    read = pd.DataFrame({"text_id": "a", "word_id": range(1, 13), "word": sum(sentences[:2], [])})
    shape = word_models.Architecture(kind, 8, span=6)
    recipe = word_models.Training(rate=1.0, epochs=1, batch_size=4)
    model, history = word_models.train(stream, stream, vocabulary, shape, recipe, device=device)
    scored = model.surprisal(read)["surprisal_bits"]
    return np.append(scored, history["validation_perplexity"].min())


def fine_tuning(labels: np.ndarray, device: str) -> pd.DataFrame:
    prompts = [f"the old {('horse', 'boat')[label]}" for label in labels]
    items = pd.DataFrame({"item_id": range(len(labels)), "prompt": prompts, "answer": labels})
    items["choices"] = [["negative", "positive"]] * len(labels)
    # Adam turns rounding of gradients that should be 0 into steps of the learning rate: a small one
    options = {"epochs": 1, "batch_size": 8, "learning_rate": 5e-6, "device": device}
    with tempfile.TemporaryDirectory() as folder:
        encoder = tiny_models.save(folder + "/bert", "bert")
        done = lm.fine_tune(items, encoder, out=folder + "/tuned", **options)
        return lm.choice_logprobs(items, lm.load(done.folder, device), cache=False)


def networks() -> Iterator[tuple[str, Callable]]:
    """Yield what language models and other networks compute."""
    yield "surprisal", surprisal
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
        yield f"crowd {kind}", partial(crowd, kind, encoded, labels)
    sentences = [list(rng.choice([f"w{i}" for i in range(20)], 6)) for _ in range(60)]
    for kind in ("lstm", "transformer"):
        yield f"word-level {kind}", partial(word_level, kind, sentences)
    yield "fine-tuning", partial(fine_tuning, labels)


def mistakes() -> Iterator[tuple[str, Callable]]:
    """Yield two planted mistakes, which the stand-in must notice."""
    matrix, grid = answers(200, 12), _fit.quadrature_grid

    def host_grid(device: str) -> irt.IRTFit:
        with mock.patch.object(_fit, "quadrature_grid", lambda **_: grid(device="cpu")):
            return irt.fit(matrix, "2PL", device=device)

    yield "planted: host grid", host_grid
    yield "planted: numpy", lambda device: torch.ones(3, device=device).numpy()


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, work in chain(responses(), reading_times(), networks(), mistakes()):
        refuses = not name.startswith("planted") and refuses_what_is_not_here(work)
        costs.update(dict.fromkeys(costs, 0))
        begin = time.process_time()
        try:
            row = {"difference": both(work), "error": ""}
        except Exception as error:
            row = {"difference": None, "error": f"{type(error).__name__}: {error}"[:300]}
        row |= costs | {"refuses": refuses, "seconds": time.process_time() - begin}
        print(json.dumps({"path": name, **row}), flush=True)


if __name__ == "__main__":
    main()
