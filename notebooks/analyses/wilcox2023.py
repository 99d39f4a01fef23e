"""Surprisal and entropy in eleven languages: Wilcox, Pimentel, Meister, Cotterell & Levy (2023,
TACL 11), "Testing the predictions of surprisal theory in 11 languages".

Reading times of a word (means over readers of MECO, Siegelman et al. 2022) are regressed on the
length and unigram surprisal of the word and the two before it; to these the surprisals of three
words are added, or their contextual entropies, or both. What an addition gains is the mean
difference of held-out log-likelihoods a word: ten contiguous folds, normal densities with the
residual standard deviation of the training rows (R's ``sigma``), as in the authors' code
(github.com/wilcoxeg/xlang-processing, ``analysis/analysis_surp.Rmd``, ``analysis_ent.Rmd``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2, norm, t
from statsmodels.stats.meta_analysis import combine_effects

from psychlm import data, reading_times

Floats = NDArray[np.float64]

# The release's own codes.
LANGUAGES = {
    "du": "Dutch",
    "en": "English",
    "fi": "Finnish",
    "ge": "German",
    "gr": "Greek",
    "he": "Hebrew",
    "it": "Italian",
    "ko": "Korean",
    "ru": "Russian",
    "sp": "Spanish",
    "tr": "Turkish",
}
MODELS = {
    "mgpt_lc": "mGPT long",
    "mgpt_sc": "mGPT short",
    "monot_30m": "monoT 30M",
    "monot_all": "monoT all",
}
MEASURES = {
    "firstfix_rt": "first fixation",
    "gaze_rt": "gaze duration",
    "total_rt": "total duration",
}
KEYS = ["lang", "model", "measure"]


def _three_words(*names: str) -> list[str]:
    """Return columns of a word and of the two before it."""
    return [f"{lag}{name}" for name in names for lag in ("", "prev_", "prev2_")]


BASELINE = _three_words("freq", "len")
SURPRISAL = _three_words("surp")
ENTROPY = _three_words("ent")
# What is compared: the columns beside the baseline of the larger and of the smaller regression.
COMPARISONS = {
    "surprisal": (SURPRISAL, []),
    "entropy": (ENTROPY, []),
    "entropy_instead": (ENTROPY, SURPRISAL),
    "entropy_added": (SURPRISAL + ENTROPY, SURPRISAL),
}
CONTROLS = 'te(freq, len, bs="cr") + te(prev_freq, prev_len, bs="cr")'
LINKS = {
    "baseline": CONTROLS,
    "linear": f"surp + prev_surp + {CONTROLS}",
    "smooth": f's(surp, bs="cr", k=6) + s(prev_surp, bs="cr", k=6) + {CONTROLS}',
}


def words() -> pd.DataFrame:
    """Read the released words that the regressions use, one row a word and language model.

    Left out are rows with a missing value, and those where the unigram surprisal of one of the
    three words is infinite or not above 0. The words themselves are not read."""
    table = pd.read_parquet(data.path("wilcox2023/words")).drop(columns=["ia", "model_ia"])
    table = table.astype({"lang": str, "model": str}).dropna()
    frequencies = table[_three_words("freq")]
    usable = (np.isfinite(frequencies) & (frequencies > 0)).all(axis=1)
    return table[usable].sort_values(["lang", "model", "row"], ignore_index=True)


def contiguous_folds(n: int, k: int = 10) -> NDArray[np.int64]:
    """Return the fold of each of n rows in order: R's ``cut(1:n, breaks=k, labels=FALSE) - 1``.

    >>> contiguous_folds(7, 3).tolist()
    [0, 0, 0, 1, 1, 2, 2]"""
    breaks = np.linspace(1, n, k + 1)
    breaks[[0, -1]] += np.array([-1, 1]) * (n - 1) / 1000
    return np.searchsorted(breaks, np.arange(1, n + 1)) - 1


def linear_logliks(
    frame: pd.DataFrame, measure: str | Sequence[str], columns: Sequence[str]
) -> Floats:
    """Return each row's held-out log-likelihood (nats) under ordinary least squares, of several
    measures in columns."""
    names = measure if isinstance(measure, str) else list(measure)
    folds = contiguous_folds(len(frame))
    y = frame[names].to_numpy(np.float64)
    x = np.column_stack([np.ones(len(y)), frame[list(columns)].to_numpy(np.float64)])
    logliks = np.empty_like(y)
    for fold in range(folds.max() + 1):
        held = folds == fold
        beta = np.linalg.lstsq(x[~held], y[~held], rcond=None)[0]
        rss = np.square(y[~held] - x[~held] @ beta).sum(axis=0)
        sigma = np.sqrt(rss / ((~held).sum() - x.shape[1]))
        logliks[held] = norm.logpdf(y[held], x[held] @ beta, sigma)
    return logliks


def smooth_logliks(frame: pd.DataFrame, measure: str, terms: str, **options: Any) -> Floats:
    """Return each row's held-out log-likelihood (nats) under an additive model, fitted by REML. The
    variance is the residual one of the training rows, RSS / (n - edf)."""
    folds = contiguous_folds(len(frame))
    logliks = np.empty(len(frame))
    for fold in range(folds.max() + 1):
        held = folds == fold
        fit = reading_times.fit(frame[~held], f"{measure} ~ {terms}", **options)
        times = frame.loc[held, measure]
        logliks[held] = norm.logpdf(times, fit.predict(frame[held]), np.sqrt(fit.scale))
    return logliks


def _by_passage(frame: pd.DataFrame, differences: dict[str, Floats]) -> pd.DataFrame:
    """Return sums and sums of squares of differences by passage, with the number of words."""
    table = pd.DataFrame({"passage": frame["trialid"].to_numpy(), "n": 1})
    for name, values in differences.items():
        table[name], table[f"{name}_squares"] = values, values**2
    return table.groupby("passage", as_index=False).sum()


def _each(
    table: pd.DataFrame, one: Callable[[pd.DataFrame], dict[str, pd.DataFrame]]
) -> pd.DataFrame:
    """Return a function's tables of each language and model, by measure, one below the other."""
    parts = []
    for (lang, model), frame in table.groupby(["lang", "model"], sort=True):
        for measure, part in one(frame.reset_index(drop=True)).items():
            parts.append(part.assign(lang=lang, model=model, measure=measure))
    result = pd.concat(parts, ignore_index=True)
    return result[[*KEYS, *result.columns.drop(KEYS)]]


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return what surprisal and entropy gain held out in :func:`words` or some of them, by
    language, model, measure and passage.

    There are ``n`` (words), and for each of :data:`COMPARISONS` the sum over the words (nats) and,
    ``..._squares``, that of squares."""

    def one(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        logliks = {
            tuple(columns): linear_logliks(frame, list(MEASURES), BASELINE + columns)
            for pair in COMPARISONS.values()
            for columns in pair
        }
        differences = {
            name: logliks[tuple(larger)] - logliks[tuple(smaller)]
            for name, (larger, smaller) in COMPARISONS.items()
        }
        return {
            measure: _by_passage(frame, {name: x[:, i] for name, x in differences.items()})
            for i, measure in enumerate(MEASURES)
        }

    return _each(table, one)


def link_gains(table: pd.DataFrame, measure: str = "gaze_rt") -> pd.DataFrame:
    """Return what a linear and a smooth effect of surprisal gain held out, as :func:`gains` does.

    ``curved`` is what the smooth effect gains over the linear one. The authors' code takes mgcv's
    default GCV, and R's ``sigma``, where this takes REML and its residual variance."""

    def one(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        logliks = {name: smooth_logliks(frame, measure, terms) for name, terms in LINKS.items()}
        differences = {name: logliks[name] - logliks["baseline"] for name in ("linear", "smooth")}
        differences["curved"] = logliks["smooth"] - logliks["linear"]
        return {measure: _by_passage(frame, differences)}

    return _each(table, one)


def curves(table: pd.DataFrame, measure: str = "gaze_rt", n: int = 41) -> pd.DataFrame:
    """Return the smooth effect (ms, 0 in the mean over the words) of the word's surprisal (bits; n
    values between the 1st and 99th percentile) with a band of 95 %, by language and model."""

    def one(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        fit = reading_times.fit(frame, f"{measure} ~ {LINKS['smooth']}", backend="native")
        low, high = frame["surp"].quantile([0.01, 0.99])
        effect = fit.effect("s(surp)", n=400)
        effect = effect[effect["surp"].between(low, high)]
        chosen = np.linspace(0, len(effect) - 1, n).round().astype(int)
        columns = {"effect": "effect_ms"}
        effect = effect.iloc[chosen].rename(columns=columns)
        return {measure: effect[["surp", "effect_ms", "low", "high"]]}

    return _each(table, one)


def mean_gains(by_passage: pd.DataFrame, comparison: str) -> pd.DataFrame:
    """Return the mean gain a word of each language, model and measure, tested in two ways.

    ``by_passage`` is what :func:`gains` or :func:`link_gains` returned, ``comparison`` one of its
    columns of sums. ``std_error`` is of a ratio of sums, with passages as units. One-sided p-values
    are under random signs of the gains: ``p_words``, where each word has a sign of its own (normal
    approximation), and ``p_passages``, where each passage has, all ``2 ** passages`` of them."""
    rows = {}
    for key, part in by_passage.groupby(KEYS, sort=True):
        sums = part[comparison].to_numpy()
        n = part["n"].to_numpy()
        size = len(sums)
        total = float(sums.sum())
        gain = total / n.sum()
        residual = sums - gain * n
        variance = size / (size - 1) * np.square(residual).sum() / n.sum() ** 2
        signs = 1 - 2 * (np.arange(2**size)[:, None] >> np.arange(size) & 1)
        as_large = signs @ sums >= total - 1e-12 * abs(total)
        row = {"n": int(n.sum()), "passages": size, "gain": gain}
        row["std_error"] = float(np.sqrt(variance))
        squares = part[f"{comparison}_squares"].sum()
        row["p_words"] = float(norm.sf(total / np.sqrt(squares)))
        rows[key] = row | {"p_passages": float(as_large.mean())}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(KEYS)


def over_languages(means: pd.DataFrame) -> pd.DataFrame:
    """Return a random-effects summary over languages of :func:`mean_gains`, by model and measure.

    The variance ``tau`` squared between languages is Paule and Mandel's; the interval of the gain
    has t quantiles and the weighted residual variance (Hartung & Knapp 2001), by statsmodels'
    ``combine_effects``. ``i2`` is the share of the variance that is between, ``q`` with ``q_p``
    tests homogeneity, and the gain of a new language lies between ``predicted_low`` and
    ``predicted_high`` (t with k - 2 degrees of freedom; Higgins, Thompson & Spiegelhalter 2009)."""
    rows = {}
    for key, part in means.groupby(["model", "measure"], sort=True):
        effect = part["gain"].to_numpy()
        variance = part["std_error"].to_numpy() ** 2
        summary = combine_effects(effect, variance, method_re="iterated", use_t=True)
        gain = summary.mean_effect_re
        error = summary.sd_eff_w_re_hksj
        low, high = summary.conf_int(use_t=True)[3]  # weighted residual variance, random effects
        spread = t.ppf(0.975, len(part) - 2) * np.sqrt(summary.tau2 + error**2)
        row = {"gain": gain, "low": low, "high": high, "tau": np.sqrt(summary.tau2)}
        row |= {"i2": max(0.0, summary.i2), "q": summary.q}
        row["q_p"] = chi2.sf(summary.q, len(part) - 1)
        rows[key] = row | {"predicted_low": gain - spread, "predicted_high": gain + spread}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "measure"])
