"""No function of frames depends on their index or on the order of their columns.

An index with other labels, repeated labels (as ``pd.concat`` leaves them), two levels, and columns
in another order give the numbers of the frame as it was, or an error that names the flaw."""

from collections.abc import Callable
from dataclasses import astuple
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psychlm import ctt, frames, irt, lm, stats
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError
from psychlm.probes import scores

KEYS = ["text_id", "word_id"]


@cache
def read() -> dict[str, pd.DataFrame]:
    """Two hundred words of eight texts, read by three people; and what models think of them."""
    rng = np.random.default_rng(8)
    texts = [["The", "old", "man,", "who", "had", "cats", "sleeps.", "He", "reads", "on"]] * 8
    words = pd.DataFrame(
        [(str(t), i, word) for t, text in enumerate(texts) for i, word in enumerate(text, 1)],
        columns=[*KEYS, "word"],
    )
    words = words.assign(x=rng.normal(size=len(words)), log_frequency=5.0, one=1.0)
    words["ms"], words["cloze_surprisal_bits"] = 300 + 9 * words["x"], rng.gamma(2, 3, len(words))
    bits = words[KEYS].assign(a=rng.gamma(2, 3, len(words)), b=rng.gamma(2, 3, len(words)))
    people = [words.drop(columns="word").assign(subject=name) for name in "pqr"]
    readings = pd.concat(people, ignore_index=True)
    readings["gaze_ms"] = 250 + 9 * readings["x"] + rng.normal(0, 30, len(readings))
    readings["printed"] = np.tile(words["word"], 3)
    readings["g"] = rng.choice(list("uvw"), len(readings))
    fixations = readings[["subject", *KEYS]].assign(duration_ms=readings["gaze_ms"])
    return {"words": words, "bits": bits, "readings": readings, "fixations": fixations}


@cache
def answered() -> dict[str, pd.DataFrame]:
    """Sixty persons' responses to eight items, and questions about words."""
    rng = np.random.default_rng(9)
    ability = rng.normal(size=(160, 1))
    right = rng.random((160, 8)) < 1 / (1 + np.exp(-ability - np.linspace(-1.5, 1.5, 8)))
    names = [f"p{i}" for i in range(160)]
    responses = pd.DataFrame(right.astype(float), names, [f"q{i}" for i in range(8)])
    items = pd.DataFrame({"item_id": [f"i{i}" for i in range(24)], "prompt": "Which?", "answer": 0})
    items["choices"] = [["yes", "no"]] * 24
    items = items.assign(probe=list("ab") * 12, cluster=np.repeat(np.arange(6), 4))
    return {"responses": responses, "items": items}


def group_of(responses: pd.DataFrame) -> pd.Series:
    """Return a group for each person, in another order than the responses."""
    return pd.Series(np.arange(len(responses)) % 2, responses.index).sample(frac=1, random_state=1)


def grades(items: pd.DataFrame) -> pd.Series:
    return pd.Series((np.arange(24) % 3 > 0) * 1.0, [f"i{i}" for i in range(24)])[::-1]


TERMS = 'gaze_ms ~ x * g + s(subject, bs="re")'
BASELINE = 'x + s(subject, bs="re")'
SWEEP = {"folds": 4, "n_bootstrap": 20, "n_permutations": 19}
STUDY = {"readers": [4], "texts": [20], "sd_residual": 60, "n_simulations": 5, "rng": 1, "folds": 4}
LONG = {"person": "subject", "text": "text_id", "word_number": "word_id"}


def long_format(readings: pd.DataFrame) -> pd.DataFrame:
    measures = {"gaze_ms": "gaze_ms"}
    return corpora.from_long(readings, measures=measures, word="printed", **LONG).readings


def gains(readings: pd.DataFrame, bits: pd.DataFrame) -> pd.DataFrame:
    table = reading.delta_loglik(readings, bits, "gaze_ms", BASELINE, lags=0, **SWEEP)
    return table.set_index("model")


def power(words: pd.DataFrame) -> pd.DataFrame:
    return reading.power_curve(words, "ms", ["x"], ["cloze_surprisal_bits"], ["one"], **STUDY)


def bootstrapped(responses: pd.DataFrame, other: pd.DataFrame) -> tuple:
    def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a[..., 0].mean(axis=-1) - b[..., 1].mean(axis=-1)

    options = {"rng": np.random.default_rng(0), "n_boot": 20}
    return astuple(stats.bootstrap(difference, answered()["responses"], other, **options))


@cache
def fitted() -> irt.IRTFit:
    return irt.fit(answered()["responses"], "2pl")


@cache
def model() -> reading.GAMFit:
    return reading.fit(read()["readings"], TERMS)


# the frames that a function takes, and the function
FUNCTIONS: dict[str, tuple[str, Callable]] = {
    "check_words": ("words", frames.check_words),
    "check_readings": ("readings", frames.check_readings),
    "check_items": ("items", frames.check_items),
    "add_lags": ("words", lambda w: corpora.add_lags(w, ["x"], lags=2)),
    "exclude": ("words", lambda w: corpora.exclude(w)[0]),
    "exclude, counts": ("words", lambda w: corpora.exclude(w)[1]),
    "join": ("readings bits", corpora.join),
    "reading_measures": ("fixations", corpora.reading_measures),
    "from_long": ("readings", long_format),
    "log_frequency": (
        "words",
        lambda w: corpora.log_frequency(w["word"], {"old": 2, "The": 3}).array,
    ),
    "lm.surprisal": ("words", lambda w: lm.surprisal(w, "default")),
    "fit": ("readings", lambda r: reading.fit(r, TERMS).coefficients),
    "predict": ("readings", lambda r: model().predict(r).array),
    "residuals": ("readings", lambda r: reading.fit(r, TERMS).residuals.array),
    "delta_loglik": ("readings bits", gains),
    "power_curve": ("words", power),
    "quality": ("words bits", lambda w, b: reading.quality(w, b).set_index("model")),
    "bootstrap": ("responses responses", bootstrapped),
    "instance_accuracy": ("items", lambda i: scores.instance_accuracy(i, grades(i))),
    "cluster_accuracy": ("items", lambda i: scores.cluster_accuracy(i, grades(i))),
    "irt.fit": ("responses", lambda r: irt.fit(r, "2pl").items),
    "irt.score": ("responses", lambda r: irt.score(fitted().items, r)),
    "infit_outfit": ("responses", lambda r: irt.infit_outfit(fitted(), r)),
    "s_x2": ("responses", lambda r: irt.s_x2(fitted(), r, min_persons=5)),
    "q3": ("responses", lambda r: irt.q3(fitted(), r)),
    "person_fit": ("responses", lambda r: irt.person_fit(fitted(), r)),
    "tetrachoric": ("responses", irt.tetrachoric),
    "mantel_haenszel": (
        "responses",
        lambda r: irt.mantel_haenszel(r, group_of(r), reference=0).items,
    ),
    "dif_logistic": ("responses", lambda r: irt.dif_logistic(r, group_of(r), reference=0)),
    "difficulty": ("responses", ctt.difficulty),
    "cronbach_alpha": ("responses", ctt.cronbach_alpha),
    "item_rest_correlation": ("responses", ctt.item_rest_correlation),
    "inter_item_correlation": ("responses", ctt.inter_item_correlation),
    "alpha_if_deleted": ("responses", ctt.alpha_if_deleted),
}


def change(frame: pd.DataFrame, how: str, seed: int) -> pd.DataFrame:
    """Return a frame with another index, or its columns in another order."""
    rng, n = np.random.default_rng(seed), len(frame)
    if how == "labels, columns":
        columns = list(rng.permutation(frame.columns))
        return frame.set_axis(rng.permutation(frame.index.to_numpy()))[columns]
    if how == "repeats":
        return frame.set_axis(frame.index[np.arange(n) % max(1, n // 3)])
    return frame.set_axis(pd.MultiIndex.from_arrays([["a"] * n, rng.permutation(n)]))


def comparable(result: object) -> pd.DataFrame:
    """Return a result's numbers, by the names of items and columns, whatever its index."""
    table = result if isinstance(result, pd.DataFrame) else pd.Series(result).to_frame()
    if None not in table.index.names and table.index.name != "person":
        table = table.sort_index()
    return table[sorted(table.columns, key=str)].reset_index(drop=True)


@cache
def unchanged(name: str) -> pd.DataFrame:
    kinds, function = FUNCTIONS[name]
    return comparable(function(*((read() | answered())[kind] for kind in kinds.split())))


@pytest.mark.parametrize("how", ["labels, columns", "repeats", "two levels"])
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=1)
@given(seed=st.integers(0, 2**32 - 1))
def test_numbers_depend_neither_on_the_index_nor_on_the_order_of_columns(name, how, seed):
    kinds, function = FUNCTIONS[name]
    given_frames = [change((read() | answered())[kind], how, seed) for kind in kinds.split()]
    if kinds == "responses" and how in ("repeats", "two levels"):  # the index names persons
        with pytest.raises(FrameError, match="more than once|MultiIndex"):
            function(*given_frames)
    else:
        found, close = comparable(function(*given_frames)), {"rtol": 1e-4, "atol": 1e-5}
        any_type = {"check_names": False, "check_dtype": False}  # sums in another order are close
        pd.testing.assert_frame_equal(found, unchanged(name), **close, **any_type)
