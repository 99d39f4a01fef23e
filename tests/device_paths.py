"""A small case of each capability that computes on a device.

``stand_in_paths.py`` runs these cases on the stand-in device, ``gpu/check.py`` on a GPU. Results
should equal those of the CPU: see :data:`TOLERANCES`."""

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import tiny_models
import torch

from analyses import word_models
from analyses.variational import infer
from psychlm import crowds, irt, lm
from psychlm import reading_times as reading
from psychlm.device import torch_device
from psychlm.irt import _fit

# Largest difference from the CPU's numbers, of those above 1 relative to them; the first prefix of
# a case's name that is listed here holds. Fits end where the remaining change is below 1e-4 logits;
# networks compute in float32; optimisers turn the rounding of small gradients into steps.
TOLERANCES = {
    "irt": 1e-4,
    "additive model": 1e-6,
    "reading-time sweep": 1e-6,
    "surprisal": 1e-3,
    "choices": 1e-3,
    "crowd": 0.02,
    "word-level": 0.01,
    "fine-tuning": 0.01,
}
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


def difference(work: Callable, device: str) -> float:
    """Return the largest difference of a device's numbers from the CPU's.

    Numbers above 1 count relative to their size. One that is missing on one side only, or infinite
    there, differs by infinity.
    """
    on_cpu = numbers_of(work(device="cpu"))
    on_device = numbers_of(work(device=device))
    same = (on_cpu == on_device) | (np.isnan(on_cpu) & np.isnan(on_device))
    with np.errstate(invalid="ignore"):
        apart = np.abs(on_device - on_cpu) / np.maximum(1, np.abs(on_cpu))
    return float(np.where(same, 0, np.nan_to_num(apart, nan=np.inf)).max())


def tolerance(name: str) -> float:
    """Return how far the numbers of a case may be from the CPU's on a GPU."""
    return next(allowed for prefix, allowed in TOLERANCES.items() if name.startswith(prefix))


def answers(n_persons: int, n_items: int, guessing: float = 0.0) -> np.ndarray:
    theta, slope = rng.normal(size=(n_persons, 1)), rng.lognormal(0, 0.3, n_items)
    right = 1 / (1 + np.exp(-(slope * theta + rng.normal(size=n_items))))
    graded = rng.random((n_persons, n_items)) < guessing + (1 - guessing) * right
    return graded[:, (graded.mean(0) > 0.05) & (graded.mean(0) < 0.95)].astype(np.uint8)


def responses() -> Iterator[tuple[str, Callable]]:
    """Yield what is computed of responses; small fits, too, then compute with tensors."""
    _fit.NUMPY_CELLS = 0
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
    yield "irt groups", partial(irt.fit, plain, "2PL", group=np.arange(200) % 2)
    priors = {"guessing": irt.Beta(5, 17), "upper": irt.Beta(17, 5)}
    yield "irt 4PL", partial(irt.fit, plain[:, :6], "4PL", priors=priors, max_iterations=4)
    ratings = pd.DataFrame(plain[:, :6] + plain[:, 6:12]).rename(columns=str)
    yield "irt graded", partial(irt.fit, ratings, "graded")
    mixed = {"0": "gpcm", "1": "gpcm"}
    yield "irt mixed formats", partial(irt.fit, ratings, mixed, standard_errors="sandwich")
    of_ratings = irt.fit(ratings, "graded", standard_errors=False)
    yield "irt score wle, graded", partial(of_ratings.score, ratings, "wle")


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


# training finds other pieces in every run, where several are as frequent
wordpiece = cache(tiny_models.wordpiece)


def masked_surprisal(device: str) -> pd.DataFrame:
    tokenizer = wordpiece()
    network = tiny_models.network("bert", tokenizer).to(torch_device(device))
    return lm.surprisal(TEXTS, lm.wrap(network, tokenizer), cache=False)


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
    recipe = word_models.Training(rate=1.0, epochs=1, batch_size=4, dropout=0.0)
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
        network = tiny_models.network("bert", wordpiece())
        encoder = tiny_models.save_network(folder + "/bert", network, wordpiece())
        # what dropout leaves out differs between a CPU and a GPU
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        tiny_models.configure(Path(encoder), **dropout)
        done = lm.fine_tune(items, encoder, out=folder + "/tuned", **options)
        return lm.choice_logprobs(items, lm.load(done.folder, device), cache=False)


def networks() -> Iterator[tuple[str, Callable]]:
    """Yield what language models and other networks compute."""
    yield "surprisal", surprisal
    yield "surprisal masked", masked_surprisal
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


def paths() -> Iterator[tuple[str, Callable]]:
    """Yield the name of each case that computes on a device, and what takes ``device=``."""
    yield from responses()
    yield from reading_times()
    yield from networks()
