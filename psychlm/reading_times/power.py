"""Power of a planned reading study to tell two language models apart, and simulated readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from psychlm.corpora.reading_times import add_lags
from psychlm.frames import FrameError, plain
from psychlm.reading_times.contrasts import Floats
from psychlm.reading_times.model_matrix import COLLINEAR

# of simulated surprisal on gaze duration, ms per bit
EFFECT = 2.0
PREV_EFFECT = 1.0
EFFECT_SIZE = {"first_fixation_ms": 0.6, "gaze_ms": 1.0, "total_ms": 1.5}  # relative to gaze_ms


def power_curve(
    words: pd.DataFrame,
    expected: str,
    first: Sequence[str],
    second: Sequence[str],
    baseline: Sequence[str],
    *,
    readers: Sequence[int],
    texts: Sequence[int],
    sd_residual: float,
    sd_word: float = 0.0,
    sd_rate: float = 0.0,
    folds: int = 10,
    n_simulations: int = 500,
    level: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> pd.DataFrame:
    """Return how often a study of each size finds that the first model predicts times better.

    A simulated study draws texts from those of a pilot (with replacement where it needs more of
    them). The mean time of a word over R readers is

        y = expected + word + rate * x + residual,

    with normal deviations of the word (``sd_word``), of the readers' mean rate per unit of x, the
    first column of ``first`` (``sd_rate / sqrt(R)``), and of the readings
    (``sd_residual / sqrt(R)``). The study regresses y on the baseline and on each model's columns,
    leaves out one part of the texts at a time, and compares the models' log-likelihoods of the
    texts left out by a paired t test over texts. Only gains of the first model count, so that the
    nominal rate of false positives is (1 - level) / 2. Texts left out together share a fit: of two
    models that are noise (400 words, 40 texts) the first won in .01 of the studies with 10 folds
    (.025 is nominal), and in .065 with 2. The test generalises to texts, not to readers: where
    ``sd_rate`` is not zero, the readers of a study have an effect even if people do not.

    Parameters
    ----------
    words : DataFrame
        The words of the pilot's texts: ``text_id`` and the columns named below, without gaps.
    expected : str
        Column of the time (ms) that the pilot's fit expects of the average reader.
    first, second, baseline : sequences of str
        Predictors of the two models, and those that both have beside them.
    readers, texts : sequences of int
        The sizes to try; every pair of them is one study, simulated ``n_simulations`` times.
    sd_residual, sd_word, sd_rate : float
        Standard deviations (ms, and ms per unit of x), as ``GAMFit.variance_components`` has them.

    Returns
    -------
    DataFrame
        One row per size: ``n_readers``, ``n_texts``, ``gain`` (mean difference of the held-out
        log-likelihoods, nats per study), ``gain_sd``, ``power`` with ``low`` and ``high`` (Wilson).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> words = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    >>> words = words.assign(text_id=np.repeat(range(40), 10), one=1.0, ms=300 + 5 * words["a"])
    >>> found = power_curve(
    ...     words, "ms", ["a"], ["b"], ["one"], readers=[4, 64], texts=[40], sd_residual=60,
    ...     n_simulations=50,
    ... )
    >>> found["power"].round(1).tolist()
    [0.2, 1.0]
    """
    from statsmodels.stats.proportion import proportion_confint

    rng = np.random.default_rng(rng)
    names = list(dict.fromkeys([*baseline, *first, *second]))
    needed = ["text_id", expected, *names]
    absent = [name for name in needed if name not in words]
    gaps = [name for name in needed if name in words and words[name].isna().any()]
    if absent or gaps:
        raise FrameError(
            f"words lack the columns {absent}, and have gaps in {gaps}; leave out words without a "
            "predictor"
        )
    if min(texts) < 2 * folds or min(readers) < 1:
        raise ValueError(
            f"studies of {min(texts)} texts and {min(readers)} readers; {folds} folds need "
            f"{2 * folds} texts or more, and a study needs a reader"
        )
    words = plain(words).sort_values("text_id", kind="stable")
    # Held-out fits do not depend on the columns' scale, but their equations are better conditioned.
    raw = words[names].to_numpy(np.float64)
    varies = np.ptp(raw, axis=0) > 0  # the deviation of a constant may be above 0 by rounding
    kept = [names[i] for i in np.flatnonzero(varies)]
    raw = raw[:, varies]
    scaled = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    columns = np.column_stack([np.ones(len(words)), scaled])
    parts = [
        [0, *(1 + kept.index(name) for name in dict.fromkeys([*baseline, *own]) if name in kept)]
        for own in (first, second)
    ]
    begins = np.flatnonzero(np.r_[True, np.diff(pd.factorize(words["text_id"])[0]) != 0])
    rows_of = np.split(np.arange(len(words)), begins[1:])
    products = np.add.reduceat(columns[:, :, None] * columns[:, None, :], begins)  # X'X by text
    mean = words[expected].to_numpy(np.float64)
    rate = words[first[0]].to_numpy(np.float64)

    results = []
    for n_readers, n_texts in product(readers, texts):
        gains = np.empty(n_simulations)
        n_significant = 0
        critical = scipy.stats.t.ppf((1 + level) / 2, n_texts - 1)
        for study in range(n_simulations):
            chosen = rng.choice(len(rows_of), n_texts, replace=n_texts > len(rows_of))
            rows = np.concatenate([rows_of[text] for text in chosen])
            sizes = np.array([len(rows_of[text]) for text in chosen])
            noise = rng.normal(0, np.hypot(sd_word, sd_residual / n_readers**0.5), len(rows))
            slope = rng.normal(0, sd_rate / n_readers**0.5)
            y = mean[rows] + slope * rate[rows] + noise
            fold = rng.permutation(n_texts) % folds
            first_rows = np.r_[0, np.cumsum(sizes)[:-1]]
            xx = products[chosen]
            yy = np.add.reduceat(y**2, first_rows)
            xy = np.add.reduceat(columns[rows] * y[:, None], first_rows)
            by_text = [
                heldout_loglik(xx[:, part][:, :, part], xy[:, part], yy, sizes, fold)
                for part in parts
            ]
            difference = by_text[0] - by_text[1]
            gains[study] = difference.sum()
            n_significant += difference.mean() > critical * difference.std(ddof=1) / n_texts**0.5
        interval = proportion_confint(n_significant, n_simulations, 1 - level, method="wilson")
        low, high = np.round(interval, 12)  # an end of 0 is else 3.5e-18
        row = {"n_readers": n_readers, "n_texts": n_texts, "gain": gains.mean()}
        row |= {"gain_sd": gains.std(ddof=1), "power": n_significant / n_simulations}
        results.append(row | {"low": low, "high": high, "n_simulations": n_simulations})
    return pd.DataFrame(results)


def heldout_loglik(
    xx: Floats, xy: Floats, yy: Floats, sizes: NDArray[np.int64], fold: NDArray[np.int64]
) -> Floats:
    """Return each text's log-likelihood (nats) under a regression on the texts of the other folds,
    with their maximum-likelihood variance.

    ``xx``, (n_texts, p, p), ``xy`` and ``yy`` are X'X, X'y and y'y of each text; ``sizes`` are the
    texts' numbers of words, and ``fold`` tells in which fold each is left out.
    """
    # the sums over the texts that are not in a fold: all, less those in it
    inside = (fold == np.unique(fold)[:, None]).astype(float)
    train_xx = xx.sum(axis=0) - np.einsum("ft,tij->fij", inside, xx)
    n_train = (1 - inside) @ sizes
    eigenvalues = np.linalg.eigvalsh(train_xx)  # of columns of equal scale
    few = (eigenvalues[:, 0] < COLLINEAR * eigenvalues[:, -1]) | (n_train <= xx.shape[1])
    if few.any():
        raise FrameError(
            f"too few different words: a study of {len(sizes)} texts leaves {n_train[few].min():g} "
            f"words to train on, which do not determine {xx.shape[1]} coefficients; give a pilot "
            "of more different words, studies of more texts, more folds, or fewer predictors"
        )
    beta = np.linalg.solve(train_xx, (xy.sum(axis=0) - inside @ xy)[:, :, None])[:, :, 0]
    # residual sum of squares of every text under every fold's fit: y'y - 2 b'X'y + b'X'Xb
    rss = yy - 2 * beta @ xy.T + np.einsum("tij,fi,fj->ft", xx, beta, beta, optimize=True)
    variance = ((1 - inside) * rss).sum(axis=1) / n_train
    of_text = inside.argmax(axis=0)
    left_out = rss[of_text, np.arange(len(sizes))] / variance[of_text]
    return -(sizes * np.log(2 * np.pi * variance[of_text]) + left_out) / 2


# Reading times from a known model, at any size


@dataclass(frozen=True)
class Simulated:
    """Simulated readings, with what they were drawn from."""

    readings: pd.DataFrame  # a readings frame: three measures and the predictors of BASELINE
    surprisals: pd.DataFrame  # text_id, word_id and one column (bits) per language model
    true_surprisal_bits: pd.Series  # what the times depend on, in the order of surprisals
    effect_ms_per_bit: dict[str, float]  # of each measure
    prev_effect_ms_per_bit: dict[str, float]


def simulate(
    rng: np.random.Generator,
    *,
    n_words: int = 50_000,
    n_subjects: int = 10,
    n_texts: int = 20,
    noise_bits: Sequence[float] = (0.0, 1.0, 2.0, 4.0),
    residual_ms: float = 80.0,
    skipped: float = 0.0,
) -> Simulated:
    """Draw reading times of words by people, smooth in length, frequency and position, linear in
    surprisal.

    Each person reads every word, and texts are of equal length; the defaults are the Dundee
    Corpus's. A time below 1 ms becomes 1 ms. Each number of ``noise_bits`` is a language model, the
    standard deviation of what it adds to the true surprisal; ``residual_ms`` is the one within a
    person and word, and ``skipped`` the share of readings that are missing in all measures.

    >>> sim = simulate(np.random.default_rng(0), n_words=100, n_subjects=2, n_texts=4)
    >>> len(sim.readings), list(sim.surprisals)[2:]  # the first word of a text is not read
    (192, ['model-001', 'model-002', 'model-003', 'model-004'])
    """
    # Words: frequency falls with length, and true surprisal falls with frequency.
    per_text = n_words // n_texts
    length = 1 + rng.poisson(3.7, per_text * n_texts)
    frequency = np.round(14 - 3 * np.log(length) + rng.normal(0, 2, len(length)), 2)
    bits = 14 - 0.6 * frequency + rng.normal(0, 3, len(length)).clip(-4)
    text_id = np.repeat([f"{text + 1:02d}" for text in range(n_texts)], per_text)
    word_id = np.tile(np.arange(1, per_text + 1), n_texts)
    words = pd.DataFrame({"text_id": text_id, "word_id": word_id, "word": "w"})
    words = words.assign(length_chars=length, log_frequency=frequency, true=bits, position=word_id)
    words = add_lags(words, ["length_chars", "log_frequency", "true"]).drop(columns="word")

    # Language models know the true surprisal with errors.
    noise = rng.normal(size=(len(bits), len(noise_bits))) * np.asarray(noise_bits)
    names = [f"model-{i + 1:03d}" for i in range(len(noise_bits))]
    noisy = pd.DataFrame(bits[:, None] + noise, columns=names)
    surprisals = pd.concat([words[["text_id", "word_id"]], noisy], axis=1)

    # The expected time of each word; the first word of a text has no previous one.
    read = words[words["word_id"] > 1]
    smooth = (
        6 * (read["length_chars"] - 1) ** 0.8
        - 0.25 * read["length_chars"] * (read["log_frequency"] - 8)
        + 1.5 * read["prev_length_chars"]
        + 8 * np.sin(3 * read["position"] / per_text)
    )
    mean = 200 + (smooth + EFFECT * read["true"] + PREV_EFFECT * read["prev_true"]).to_numpy()

    # The times of each person, who has an intercept.
    readings = read.drop(columns=["true", "prev_true"])
    readings = readings.loc[readings.index.repeat(n_subjects)].reset_index(drop=True)
    subject = np.tile(np.arange(n_subjects), len(read))
    readings.insert(0, "subject", np.array([f"s{i + 1:02d}" for i in range(n_subjects)])[subject])
    readings["prev_fixated"] = rng.random(len(readings)) < 0.6
    person = rng.normal(0, 30, n_subjects)[subject]
    expected = np.repeat(mean, n_subjects) + person - 12 * readings["prev_fixated"].to_numpy()
    missing = rng.random(len(readings)) < skipped
    for measure, size in EFFECT_SIZE.items():
        drawn = 150 + size * expected + rng.normal(0, residual_ms, len(readings))
        readings[measure] = np.where(missing, np.nan, np.maximum(drawn, 1.0))
    return Simulated(
        readings,
        surprisals,
        words["true"].rename("true_surprisal_bits"),
        {measure: size * EFFECT for measure, size in EFFECT_SIZE.items()},
        {measure: size * PREV_EFFECT for measure, size in EFFECT_SIZE.items()},
    )
