"""Words and a language model in, surprisal per word out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from psychlm.lm.alignment import Document, documents, words_of
from psychlm.lm.cache import ResultStore, key
from psychlm.lm.load import LanguageModel, load
from psychlm.lm.scoring import (
    COLUMNS,
    NO_MEMORY,
    NOT_A_NUMBER,
    Correction,
    Scheme,
    WordScores,
    scheme,
    score,
)


def surprisal(
    words: pd.DataFrame | str | Iterable[str] | Mapping[str, str],
    model: LanguageModel | str | Path = "default",
    *,
    correction: Correction = "pimentel-meister",
    stride: int | None = None,
    bos: str | None = "auto",
    context: int | None = None,
    context_sentences: int | None = None,
    entropy: bool = False,
    rank: bool = False,
    batch_tokens: int | None = None,
    cache: bool = True,
    progress: bool = False,
) -> pd.DataFrame:
    """Return words with the surprisal that a language model finds in each, in bits.

    Parameters
    ----------
    words : DataFrame, str, iterable of str, or mapping
        A words frame (``text_id``, ``word_id``, ``word``; optional ``space_before`` and ``space_after``, see
        :func:`psychlm.lm.words_of`; without them one space parts the words), or plain texts, which are split at white
        space. The order of the rows does not matter, and is kept.
    model : LanguageModel, str or Path
        What :func:`psychlm.lm.load` returns, or takes.
    correction : {"pimentel-meister", None}
        With tokenizers that mark beginnings of words (GPT-2, Llama, XLNet ...), move the probability that a word ends
        from the token after it to the word itself, so that the probabilities of all words sum to 1 (Pimentel & Meister
        2024; Oh & Schuler 2024). None sums the surprisals of a word's tokens, as Hao et al. (2020) do. Other tokenizers
        and masked models need no correction and get none.
    stride : int, optional
        Texts longer than the model's window are read in windows that advance by so many tokens at most, every word
        with at least so many tokens before it. Half a window unless given.
    bos : str or None
        Token that stands before every text. ``"auto"``: the tokenizer's beginning-of-text token, or where it has
        none its end-of-text token; None: nothing, and then the first word has no value.
    context : int, optional
        Longest input in tokens, where it should be shorter than the model's own.
    context_sentences : int, optional
        Read every sentence (column ``sentence_id``) after only so many sentences before it.
    entropy, rank : bool
        Also return the entropy of the next-token distribution before the word (``entropy_bits``), and the rank of the
        word's first token in it (``rank``, 1 is the likeliest).
    batch_tokens : int, optional
        Most tokens in one batch; values do not depend on it.
    cache : bool
        Keep results on disk, by model, revision, text and options, and take from there what was computed before.
        Models without a known revision are not cached.
    progress : bool
        Show a progress bar on standard error.

    Returns
    -------
    DataFrame
        ``words`` with the columns ``surprisal_bits``; ``n_tokens``; ``entropy_bits`` and ``rank`` where asked;
        ``reason``, why a value is missing (else empty); and ``scored_by``, which says model, revision, base,
        correction, BOS, window and stride, as ``.attrs["surprisal"]`` does.

    Raises
    ------
    FrameError
        If words break their contract, or a text holds no word.
    ModelError
        If the model cannot be had, or an option does not suit it.

    Notes
    -----
    How a word is predicted depends on the model's ``kind``. Causal models: from the words before. Permutation models
    (XLNet): from the words before, as one factorisation order. Masked models (BERT): from both sides, by
    pseudo-log-likelihood with the rest of the word masked (Kauf & Ivanova 2023). Left-masked models (XLM): from the
    words before and one mask. White space counts towards the word after it; at the end of a text it counts towards
    the last word, unless the correction says already that the word ended. Without correction a text's surprisals
    so sum to that of its tokens.
    """
    if not isinstance(words, pd.DataFrame):
        words = words_of(words)
    texts = documents(words, context_sentences)
    model = load(model) if isinstance(model, (str, Path)) else model
    how = scheme(model, correction, stride, bos, context, entropy, rank)
    compute = _cached if cache and model.revision else _fresh
    return _joined(words, texts, compute(texts, model, how, batch_tokens, progress), model, how)


def _fresh(
    texts: list[Document],
    model: LanguageModel,
    how: Scheme,
    batch_tokens: int | None,
    progress: bool,
) -> list[WordScores]:
    results: dict[int, WordScores] = {}
    for finished in _with_bar(texts, model, how, batch_tokens, progress):
        results |= dict(finished)
    return [results[number] for number in range(len(texts))]


def _cached(
    texts: list[Document],
    model: LanguageModel,
    how: Scheme,
    batch_tokens: int | None,
    progress: bool,
) -> list[WordScores]:
    """Take from disk what is there, compute the rest, and store each batch as soon as it is done."""
    identity = how.identity(model)
    keys = [key(identity, text.text, np.concatenate([text.starts, text.ends])) for text in texts]
    store = ResultStore()
    try:
        results = {
            name: WordScores(*found) for name, found in store.get(keys, len(COLUMNS)).items()
        }
        missing = {
            name: number for number, name in enumerate(keys) if name not in results
        }  # equal texts once
        numbers = list(missing.values())
        for finished in _with_bar(
            [texts[number] for number in numbers], model, how, batch_tokens, progress
        ):
            fresh = {keys[numbers[i]]: scores for i, scores in finished}
            store.put(
                (name, scores.values, scores.reasons)
                for name, scores in fresh.items()
                if not {NO_MEMORY, NOT_A_NUMBER}
                & set(scores.reasons.values())  # another run may do better
            )
            results |= fresh
    finally:
        store.close()
    return [results[name] for name in keys]


def _with_bar(
    texts: list[Document],
    model: LanguageModel,
    how: Scheme,
    batch_tokens: int | None,
    progress: bool,
) -> Iterator[list[tuple[int, WordScores]]]:
    """Yield what every batch finished, moving a bar where one is wanted."""
    if not texts:
        return
    batches = score(texts, model, how, batch_tokens)
    _, n_tokens = next(batches)
    if not progress:
        yield from (finished for finished, _ in batches)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"tokens through {model.name}", total=n_tokens)
        for finished, n_read in batches:
            bar.advance(task, n_read)
            yield finished


def _joined(
    words: pd.DataFrame,
    texts: list[Document],
    results: list[WordScores],
    model: LanguageModel,
    how: Scheme,
) -> pd.DataFrame:
    """Put the values beside their words."""
    values = np.full((len(words), len(COLUMNS)), np.nan)
    reasons = np.full(len(words), "", dtype=object)
    for text, scores in zip(texts, results, strict=True):
        values[text.rows[text.scored]] = scores.values[text.scored]
        for word, why in scores.reasons.items():
            if text.scored[word]:
                reasons[text.rows[word]] = why
    said = how.describe(model)
    asked = [c for c, ask in zip(COLUMNS, (True, True, how.entropy, how.rank), strict=True) if ask]
    new = pd.DataFrame(values, columns=list(COLUMNS), index=words.index)[asked].astype(
        {"n_tokens": np.int64}
    )
    label = "; ".join(f"{name}={value}" for name, value in said.items())
    new = new.assign(
        reason=reasons, scored_by=pd.Categorical.from_codes(np.zeros(len(words), int), [label])
    )
    joined = pd.concat(
        [words.drop(columns=[c for c in new.columns if c in words.columns]), new], axis=1
    )
    joined.attrs |= {"surprisal": said}
    return joined
