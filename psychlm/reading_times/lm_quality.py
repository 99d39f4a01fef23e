"""How good a language model is: perplexity and the predictability norm correlation (PNC), and
whether better models gain more on reading times (Hao et al. 2020)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.corpora.reading_times import add_lags
from psychlm.frames import FrameError, check_rows, format_names, refuse
from psychlm.stats import Correlation, correlation


def predictability_norm_correlation(
    surprisal_bits: ArrayLike, cloze_surprisal: ArrayLike, *, level: float = 0.95
) -> Correlation:
    """Return the predictability norm correlation (PNC) of a language model, with its interval.

    The Pearson correlation between the surprisals of a model and those of people in a cloze task
    (Hao et al. 2020, section 3.3.2), shape (n_words,) each. Words for which either is NaN are left
    out and counted in ``n_missing``; an infinite surprisal is an error.

    >>> round(predictability_norm_correlation([1.5, 2.0, 5.0, 6.0], [1.0, 3.0, 4.0, 7.0]).r, 3)
    0.911
    """
    for name, values in (("surprisal_bits", surprisal_bits), ("cloze_surprisal", cloze_surprisal)):
        n_infinite = int(np.isinf(np.asarray(values, dtype=np.float64)).sum())
        if n_infinite:
            raise ValueError(
                f"{name} is infinite for {n_infinite} words, so no correlation is defined; smooth "
                "the probabilities, or set these words to NaN to leave them out"
            )
    return correlation(surprisal_bits, cloze_surprisal, method="pearson", level=level)


def quality(words: pd.DataFrame, surprisals: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """Return PNC and perplexity of many language models on the same words: one row per model.

    ``words`` have ``cloze_surprisal_bits``, the surprisal of each word for people, ``surprisals``
    one column (bits) for each language model. Returned are ``model``, ``pnc`` with Fisher's
    interval ``pnc_low``, ``pnc_high`` and ``n_words``, and ``perplexity`` per word, 2 to the power
    of the mean surprisal, which compares all models; per token only those that share a vocabulary
    compare (Hao et al. 2020, section 3.3.1).

    >>> words = pd.DataFrame({"text_id": "t", "word_id": range(1, 7), "word": list("abcdef")})
    >>> words["cloze_surprisal_bits"] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    >>> bits = words[["text_id", "word_id"]].assign(gpt2=[1.5, 2.0, 2.5, 5.0, 5.5, 6.0])
    >>> float(quality(words, bits)["perplexity"].round(2).iloc[0])
    13.45
    """
    keys = ["text_id", "word_id"]
    cloze = "cloze_surprisal_bits"
    names = [c for c in surprisals.columns if c not in (*keys, "word")]
    people = check_rows(words, keys, ["word", cloze], "words")[[*keys, cloze]]
    models = check_rows(surprisals, keys, [], "surprisals")[[*keys, *names]]
    both = people.merge(models, on=keys)
    if len(both) < max(len(words), len(surprisals)):
        raise FrameError(
            f"{len(words)} words and {len(surprisals)} surprisals have {len(both)} (text_id, "
            "word_id) in common; score the same words, and no others"
        )
    gaps = both[names].isna()
    if differ := [name for name in names if (gaps[name] != gaps[names[0]]).any()]:
        raise FrameError(
            f"{format_names(differ)} have no surprisal for other words than {names[0]!r}, so that "
            "perplexities do not compare; leave these words out for all models"
        )
    rows = []
    for name in names:
        pnc = predictability_norm_correlation(both[name], both[cloze], level=level)
        rows.append((name, pnc.r, pnc.low, pnc.high, pnc.n, float(np.exp2(both[name].mean()))))
    columns = ["model", "pnc", "pnc_low", "pnc_high", "n_words", "perplexity"]
    return pd.DataFrame(rows, columns=columns)


def gain_relation(
    gains: pd.DataFrame,
    predictor: str,
    *,
    gain: str = "gain",
    groups: Sequence[str] = ("measure",),
    level: float = 0.95,
) -> pd.DataFrame:
    """Return how the gain goes with a property of language models, over models: one row per group.

    Hao et al. (2020) relate it to the PNC (section 4.2) and to perplexity (section 4.1, Figure 1).

    Parameters
    ----------
    gains : DataFrame
        One row per model and measure, for instance :func:`psychlm.reading_times.delta_loglik`
        joined with :func:`quality` on ``model``.
    predictor, gain : str
        The columns with the property, ``"pnc"`` or ``"perplexity"``, and with gains.
    groups : sequence of str
        Columns; models are compared within their values. Perplexities per token need one that says
        which models share a vocabulary.

    Returns
    -------
    DataFrame
        The groups, Pearson's ``r`` with ``low``, ``high`` (Fisher's, for models as independent
        draws) and ``p``, ``n`` (models), and the least-squares line: ``slope`` and ``intercept``.
        NaN where there are fewer than three models.

    Examples
    --------
    >>> gains = pd.DataFrame({"measure": "gaze_ms", "pnc": [0.2, 0.4, 0.5], "gain": [10, 20, 30]})
    >>> gain_relation(gains, "pnc")[["r", "n"]].round(2).to_dict("records")
    [{'r': 0.98, 'n': 3}]
    """
    missing = [name for name in (*groups, predictor, gain) if name not in gains.columns]
    if missing:
        raise FrameError(f"the gains have no columns {missing}; there are {list(gains.columns)}")
    rows = []
    for key, part in gains.groupby(list(groups), sort=False):
        pairs = part[[predictor, gain]].dropna().to_numpy(np.float64)
        row = dict(zip(groups, key, strict=True)) | {"n": len(pairs)}
        if len(pairs) > 2:
            x, y = pairs.T
            r = correlation(x, y, method="pearson", level=level)
            intercept, slope = np.polynomial.Polynomial.fit(x, y, 1).convert().coef
            row |= {"r": r.r, "low": r.low, "high": r.high, "p": r.p}
            row |= {"slope": slope, "intercept": intercept}
        rows.append(row)
    columns = [*groups, "r", "low", "high", "p", "n", "slope", "intercept"]
    return pd.DataFrame(rows, columns=columns)


def explained_share(
    words: pd.DataFrame,
    readings: pd.DataFrame,
    surprisals: pd.DataFrame,
    measure: str | Sequence[str],
    *,
    spillover: bool = False,
    n_bootstrap: int = 0,
    level: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> pd.DataFrame:
    """Return the share of a baseline's unexplained variance of reading times that each language
    model's surprisal explains: one row per model.

    With R2_0 of the baseline and R2_1 of the baseline and the surprisal s of the current word,

        100 (R2_1 - R2_0) / (1 - R2_0) = 100 (1 - RSS_1 / RSS_0),

    by least squares on word frequency, length, position and their products of two; with
    ``spillover`` also the previous word's length and surprisal, and their products. The reading
    scores of the BabyLM Challenge 2025 are these for self-paced times with spillover, and the mean
    over four measures of eye tracking without.

    ``words`` have ``log_frequency``, ``length_chars`` and ``position``, ``readings`` the measures,
    one row per word (means over people), and ``surprisals`` one column for each model. Returned are
    ``model``, ``share`` (per cent; of several measures the mean) with ``low`` and ``high`` over
    ``n_bootstrap`` resamples of texts (NaN without any), and ``n`` (words with all predictors and
    the surprisals of all models; a warning names models for which that leaves words out).
    ``attrs["resamples"]`` holds each model's shares of the same resamples.

    >>> rng = np.random.default_rng(0)
    >>> words = pd.DataFrame({"text_id": np.repeat([1, 2], 60), "word_id": [*range(60)] * 2})
    >>> words["log_frequency"], words["position"] = rng.normal(size=120), words["word_id"]
    >>> words["length_chars"] = rng.integers(1, 9, 120)
    >>> bits = words[["text_id", "word_id"]].assign(gpt2=rng.gamma(4, 1, 120))
    >>> times = bits.assign(gaze_ms=200 + 10 * bits["gpt2"]).drop(columns="gpt2")
    >>> explained_share(words, times, bits, "gaze_ms")["share"].round(1).tolist()
    [100.0]
    """
    keys = ["text_id", "word_id"]
    measures = list(np.atleast_1d(measure))
    words = check_rows(words, keys, ["log_frequency", "length_chars", "position"], "words")
    models = [name for name in surprisals.columns if name not in (*keys, "word")]
    table = words[[*keys, "log_frequency", "length_chars", "position"]]
    for frame, columns, kind in (
        (readings, measures, "readings"),
        (surprisals, models, "surprisals"),
    ):
        others = check_rows(frame, keys, columns, kind)[[*keys, *columns]]
        table = table.merge(others, on=keys, validate="one_to_one")
    if spillover:
        table = add_lags(table.assign(word="w"), ["length_chars", *models])
    seed = int(np.random.default_rng(rng).integers(2**63))
    rows = []
    resamples = {}
    of_words = ["log_frequency", "length_chars", "position"]
    of_words += ["prev_length_chars"] if spillover else []
    before_of = {name: [f"prev_{name}"] if spillover else [] for name in models}
    table = table.dropna(subset=[*of_words, *measures])
    has = {name: table[[name, *before_of[name]]].notna().all(axis=1) for name in models}
    whole = table[np.logical_and.reduce([*has.values()])]
    needed = 17 if spillover else 8  # the constant, 5 or 3 predictors, their products, surprisal
    if len(whole) <= needed:
        raise FrameError(
            f"{len(whole)} words have all predictors, times and surprisals of all models, and "
            f"coefficients need {needed + 1}; do text_id and word_id name the same words?"
        )
    if fewer := {name: int(n) for name in models if (n := has[name].sum() - len(whole))}:
        warnings.warn(
            f"shares are of the {len(whole)} words for which all models have surprisals; words "
            f"left out, by model: {fewer}",
            RuntimeWarning,
            stacklevel=2,
        )
    for name in models:
        columns = [*of_words, *before_of[name]]
        spread = whole[[*columns, name, *measures]].max() - whole[[*columns, name, *measures]].min()
        refuse("columns", spread.index[spread == 0], f"are constant in the {len(whole)} words")
        x = whole[columns].to_numpy(np.float64)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        i, j = np.triu_indices(len(columns), 1)
        others = whole[[name, *measures]].to_numpy(np.float64)
        others = (others - others.mean(axis=0)) / others.std(axis=0)
        design = np.column_stack([np.ones(len(x)), x, x[:, i] * x[:, j], others])
        order = np.argsort(codes := pd.factorize(whole["text_id"])[0], kind="stable")
        begins = np.searchsorted(codes[order], np.arange(codes.max() + 1))
        # cross-products of each text, so that a resample of texts is a weighted sum
        products = np.add.reduceat(design[order, :, None] * design[order, None, :], begins)
        # the same resamples for every model, so that their differences have intervals too
        texts = np.full(len(begins), 1 / len(begins))
        drawn = np.random.default_rng(seed).multinomial(len(begins), texts, n_bootstrap)
        counts = np.vstack([np.ones(len(begins)), drawn])
        shares = _explained(np.einsum("bt,tij->bij", counts, products), len(measures))
        tails = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(shares[1:], tails) if n_bootstrap else (np.nan, np.nan)
        rows.append((name, shares[0], low, high, len(whole)))
        resamples[name] = shares[1:].tolist()  # pandas compares attrs
    table = pd.DataFrame(rows, columns=["model", "share", "low", "high", "n"])
    table.attrs["resamples"] = resamples
    return table


def _explained(products: np.ndarray, n_measures: int) -> np.ndarray:
    """Return 100 (1 - RSS_1 / RSS_0) from cross-products (B, k, k) of baseline, s, and each y."""
    p = products.shape[-1] - n_measures
    xy = products[:, :p, p:]
    yy = np.diagonal(products[:, p:, p:], axis1=1, axis2=2)

    def left(q: int) -> np.ndarray:
        """Return the residual sum of squares of each y after the first q columns, (B, n_y)."""
        fitted = xy[:, :q] * np.linalg.solve(products[:, :q, :q], xy[:, :q])
        return yy - fitted.sum(axis=1)

    return 100 * (1 - left(p) / left(p - 1)).mean(axis=1)
