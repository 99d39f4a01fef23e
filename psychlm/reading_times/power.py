"""How good a language model is, by what it finds surprising, and whether better models gain more on reading times.

Perplexity per token compares models that share a vocabulary, and no others (Hao et al. 2020, section 3.3.1); per word
or per character it compares models that do not. The predictability norm correlation asks instead whether a model finds
difficult to predict what people find so (section 3.3.2). Either is set against the gain that
:func:`psychlm.reading_times.delta_loglik` finds, as is the size of the training data (their Figures 1 and 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.frames import FrameError, check_words
from psychlm.stats import Correlation, correlation


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of texts: two to the mean surprisal in bits, over tokens, words or characters."""

    per_token: float  # comparable between models of one vocabulary
    per_word: float  # comparable between all models of the same words
    per_character: float  # comparable even between splits into words; spaces between words count
    bits: float  # surprisal of all words together
    n_tokens: int
    n_words: int
    n_characters: int
    n_missing: int  # words without a value, left out of all of the above


def perplexity(words: pd.DataFrame, column: str = "surprisal_bits") -> Perplexity:
    """Return the perplexity of a language model on the words it has scored.

    perplexity = (prod_i P(token_i | tokens before))^(-1/N) = 2^(mean surprisal in bits), Hao et al. (2020), section
    3.3.1; N counts the tokens (column ``n_tokens``, which :func:`psychlm.lm.surprisal` writes; without it every word is
    one token, as in a word-level model), the words, or the characters.

    Parameters
    ----------
    words : DataFrame
        A words frame with surprisals. Surprisals summed over tokens (``correction=None``) give the paper's perplexity;
        corrected ones that of word probabilities.
    column : str
        The surprisal, in bits.

    Raises
    ------
    FrameError
        If the column is missing, or holds no value.

    Notes
    -----
    An infinite surprisal gives an infinite perplexity. Characters are the words' and one space between two words,
    or the spaces that ``space_after`` states.
    """
    checked = check_words(words, whole_texts=False)
    if column not in checked.columns:
        raise FrameError(
            f"words have no column {column!r}, but {list(words.columns)}; score them with lm.surprisal"
        )
    known = checked[checked[column].notna()]
    if known.empty:
        raise FrameError(f"{column} is NaN for all {len(words)} words; see the column 'reason'")
    bits = float(known[column].sum())
    n_words, n_tokens = (
        len(known),
        int(known["n_tokens"].sum()) if "n_tokens" in known.columns else len(known),
    )
    n_characters = int(known["word"].str.len().sum()) + _n_spaces(known)
    return Perplexity(
        float(np.exp2(bits / n_tokens)),
        float(np.exp2(bits / n_words)),
        float(np.exp2(bits / n_characters)),
        bits,
        n_tokens,
        n_words,
        n_characters,
        len(words) - n_words,
    )


def _n_spaces(words: pd.DataFrame) -> int:
    """Count the white space between words: as stated, or one space before each word but a text's first."""
    if "space_after" not in words.columns:
        return len(words) - words["text_id"].nunique()
    within = (
        words.sort_values(["text_id", "word_id"])
        .duplicated("text_id", keep="last")
        .reindex(words.index)
    )
    spaces = words.loc[within, "space_after"]
    return int(spaces.sum() if pd.api.types.is_bool_dtype(spaces) else spaces.str.len().sum())


def predictability_norm_correlation(
    surprisal_bits: ArrayLike, cloze_surprisal: ArrayLike, *, level: float = 0.95
) -> Correlation:
    """Return the predictability norm correlation (PNC) of a language model, with its interval.

    The Pearson correlation between the surprisals of a model and those of people in a cloze task (Hao et al. 2020,
    section 3.3.2).

    Parameters
    ----------
    surprisal_bits : array_like, shape (n_words,)
        Surprisal of each word for the model; the unit does not matter.
    cloze_surprisal : array_like, shape (n_words,)
        -log of the (smoothed) share of people who said the word.
    level : float
        Coverage of the interval (Fisher's).

    Returns
    -------
    Correlation
        ``r`` is the PNC; words for which either is NaN are left out and counted in ``n_missing``.

    Raises
    ------
    ValueError
        If a surprisal is infinite: a word that nobody said needs a smoothed cloze probability.
    """
    for name, values in (("surprisal_bits", surprisal_bits), ("cloze_surprisal", cloze_surprisal)):
        n_infinite = int(np.isinf(np.asarray(values, dtype=np.float64)).sum())
        if n_infinite:
            raise ValueError(
                f"{name} is infinite for {n_infinite} words, so no correlation is defined; smooth the probabilities "
                "(a word that nobody said is not impossible), or set these words to NaN to leave them out"
            )
    return correlation(surprisal_bits, cloze_surprisal, method="pearson", level=level)


def quality(
    words: pd.DataFrame,
    surprisals: pd.DataFrame,
    *,
    models: Sequence[str] | None = None,
    cloze: str = "cloze_surprisal_bits",
    level: float = 0.95,
) -> pd.DataFrame:
    """Return PNC and perplexity of many language models on the same words: one row a model.

    Parameters
    ----------
    words : DataFrame
        A words frame with the surprisal of each word for people in a cloze task.
    surprisals : DataFrame
        ``text_id``, ``word_id`` and one column of surprisals (bits) for each language model.
    models : list of str, optional
        Columns of ``surprisals``; unless given, all but ``text_id``, ``word_id`` and ``word``.
    cloze : str
        The column of ``words`` with people's surprisal.
    level : float
        Coverage of the PNC's interval (Fisher's).

    Returns
    -------
    DataFrame
        ``model``, ``pnc``, ``pnc_low``, ``pnc_high``, ``n_words`` (behind the PNC) and ``perplexity`` (per word, which
        models of different vocabularies share).

    Raises
    ------
    FrameError
        If a column is missing, or the two frames do not hold the same words.
    """
    keys = ["text_id", "word_id"]
    names = (
        [c for c in surprisals.columns if c not in (*keys, "word")]
        if models is None
        else list(models)
    )
    _require(words, [*keys, cloze], "words")
    _require(surprisals, [*keys, *names], "surprisals")
    both = words[[*keys, "word", cloze]].merge(
        surprisals[[*keys, *names]], on=keys, validate="one_to_one"
    )
    if len(both) < max(len(words), len(surprisals)):
        raise FrameError(
            f"{len(words)} words and {len(surprisals)} surprisals have {len(both)} (text_id, word_id) in common; "
            "score the same words, and no others"
        )
    rows = []
    for name in names:
        pnc = predictability_norm_correlation(both[name], both[cloze], level=level)
        rows.append((name, pnc.r, pnc.low, pnc.high, pnc.n, perplexity(both, name).per_word))
    return pd.DataFrame(
        rows, columns=["model", "pnc", "pnc_low", "pnc_high", "n_words", "perplexity"]
    )


def pnc_against_gain(
    gains: pd.DataFrame, *, gain: str = "gain", at_least: float | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Return how the gain rises with the PNC over language models: one row a measure (Hao et al. 2020, section 4.2).

    Parameters
    ----------
    gains : DataFrame
        One row a model and measure: ``measure``, ``pnc`` and the gain, for instance what
        :func:`psychlm.reading_times.delta_loglik` returns, joined with :func:`quality` on ``model``.
    gain : str
        The column of gains: ``"gain"`` (nats, in sample) or ``"heldout_gain"`` (nats per reading).
    at_least : float, optional
        Leave out models with a lower PNC (the paper sees one line above 0.4).
    level : float
        Coverage of the intervals (Fisher's, which takes the models for independent draws).

    Returns
    -------
    DataFrame
        ``measure``, Pearson's ``r`` with ``low``, ``high`` and ``p``, ``n`` (models), and the least-squares line:
        ``slope`` (gain per unit of PNC) and ``intercept``. NaN where there are fewer than three models.

    Raises
    ------
    FrameError
        If a column is missing.
    """
    _require(gains, ["measure", "pnc", gain], "gains")
    kept = gains if at_least is None else gains[gains["pnc"] >= at_least]
    return _relations(kept, "pnc", gain, ["measure"], level)


def perplexity_against_gain(
    gains: pd.DataFrame, *, gain: str = "gain", within: str | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Return how the gain falls with perplexity over language models (Hao et al. 2020, section 4.1; their Figure 1).

    Parameters
    ----------
    gains : DataFrame
        One row a model and measure: ``measure``, ``perplexity`` and the gain.
    gain : str
        The column of gains.
    within : str, optional
        A column that tells which models share a vocabulary (or training data): perplexities per token compare those
        and no others, so that each group gets rows of its own. Leave it out for perplexities per word.
    level : float
        Coverage of the intervals.

    Returns
    -------
    DataFrame
        As :func:`pnc_against_gain`, one row a measure (and group); ``slope`` is the gain per unit of perplexity.

    Raises
    ------
    FrameError
        If a column is missing.
    """
    groups = ["measure"] if within is None else ["measure", within]
    _require(gains, [*groups, "perplexity", gain], "gains")
    return _relations(gains, "perplexity", gain, groups, level)


def dataset_size_against_gain(
    gains: pd.DataFrame, *, gain: str = "gain", size: str = "size_mb", dataset: str = "dataset"
) -> pd.DataFrame:
    """Return the mean gain of the models trained on each dataset, beside its size (Hao et al. 2020, Figure 2).

    Parameters
    ----------
    gains : DataFrame
        One row a model and measure: ``measure``, the gain, the dataset's name and its size (NaN if it is not known).
    gain, size, dataset : str
        The columns that hold them.

    Returns
    -------
    DataFrame
        ``measure``, the dataset, its size, the mean gain and ``n_models``; smallest datasets first, those of unknown
        size last.

    Raises
    ------
    FrameError
        If a column is missing, or a dataset has two sizes.
    """
    _require(gains, ["measure", dataset, size, gain], "gains")
    sizes = gains.groupby(dataset)[size].nunique(dropna=False)
    if (sizes > 1).any():
        raise FrameError(
            f"datasets {list(sizes.index[sizes > 1])} have more than one {size}; give each a single one"
        )
    means = gains.groupby(["measure", dataset, size], as_index=False, dropna=False, sort=False)
    found = means.agg(**{gain: (gain, "mean"), "n_models": (gain, "size")})
    return found.sort_values(["measure", size], ignore_index=True)


def _require(frame: pd.DataFrame, columns: Sequence[str], what: str) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise FrameError(f"the {what} have no columns {missing}; there are {list(frame.columns)}")


def _relations(
    gains: pd.DataFrame, predictor: str, gain: str, groups: list[str], level: float
) -> pd.DataFrame:
    """Return correlation and least-squares line of the gain on a predictor, one row a group."""
    rows = []
    for key, part in gains.groupby(groups, sort=False):
        x, y = part[predictor].to_numpy(np.float64), part[gain].to_numpy(np.float64)
        known = ~(np.isnan(x) | np.isnan(y))
        if known.sum() < 3:
            rows.append((*key, np.nan, np.nan, np.nan, np.nan, int(known.sum()), np.nan, np.nan))
            continue
        found = correlation(x, y, method="pearson", level=level)
        slope, intercept = np.polynomial.Polynomial.fit(x[known], y[known], 1).convert().coef[::-1]
        rows.append((*key, found.r, found.low, found.high, found.p, found.n, slope, intercept))
    return pd.DataFrame(rows, columns=[*groups, "r", "low", "high", "p", "n", "slope", "intercept"])
