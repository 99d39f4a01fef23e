"""Surprisal of words under a language model, and the correction for where words end.

With tokenizers that mark the *beginning* of a word (the space before it is the first character of
its first token), the end of a word is predicted only by the token that follows, so the summed
surprisal of a word's tokens lacks "it ends here" and holds "the word before it ended". With S the
tokens that begin with white space and the end-of-text token, the probability of word w after
context c is (Pimentel & Meister 2024, *How to compute the probability of a word*, theorem 2; Oh &
Schuler 2024)

    p(w | c) = p(tokens of w | c)  p(S | c, tokens of w) / p(S | c).

``_sum_over_tokens`` does both: it sums tokens to words, and corrects the sums.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.cluster import progress_bar, run_pieces
from psychlm.device import Device
from psychlm.frames import refuse
from psychlm.lm._errors import ModelError, check_limit, check_option
from psychlm.lm._load import LanguageModel, find_checkpoint, named_models, open_checkpoint, opened
from psychlm.lm.cache import ResultStore, key
from psychlm.lm.tokens import (
    SHARED,
    TOKENLESS,
    UNKNOWN,
    Document,
    Tokens,
    begins_with_space,
    documents,
    prepare_words,
    tokenize,
    words_frame,
)

if TYPE_CHECKING:
    from distributed import Client

    from psychlm.lm.forward import ScoringOptions

COLUMNS = ("surprisal_bits", "n_tokens", "entropy_bits", "rank")

TYPOGRAPHIC = "[‘’‚“”„–—…]"
NO_CONTEXT = "nothing stands before this word (bos=None)"
NO_MEMORY = "out of memory with this text by itself"
NOT_A_NUMBER = "the model gave NaN"
IMPOSSIBLE = "the model gives this word no probability at all"
SUMMED = (SHARED, TOKENLESS, UNKNOWN)  # words without a value of their own, but within a sum


@dataclass(frozen=True, eq=False)
class WordScores:
    """The values of a document's words; those whose reason is in ``SUMMED`` are shares of a sum."""

    values: NDArray[np.float64]  # (n_words, 4), columns as in COLUMNS
    reasons: dict[int, str]  # words without a value, and why


def surprisal(
    words: pd.DataFrame | str | Iterable[str] | Mapping[str, str],
    model: LanguageModel | str | Path = "default",
    *,
    unit: Literal["word", "token", "sentence"] = "word",
    correction: Literal["pimentel-meister"] | None = "pimentel-meister",
    stride: int | None = None,
    bos: str | None = "auto",
    context: int | None = None,
    temperature: float = 1.0,
    entropy: bool = False,
    rank: bool = False,
    clean: bool = True,
    device: Device = "auto",
    cache: bool = True,
    progress: bool = False,
) -> pd.DataFrame:
    """Return words with the surprisal of each under a language model, in bits.

    Causal models predict a word from the words before, permutation models (XLNet) too, masked
    models (BERT) from both sides, by pseudo-log-likelihood with the rest of the word masked (Kauf &
    Ivanova 2023), left-masked models (XLM) from the words before and one mask. White space counts
    towards the word after it, at the end of a text towards the last word.

    Parameters
    ----------
    words : DataFrame, str, iterable of str, or mapping
        A words frame (``text_id``, ``word_id``, ``word``; ``space_before`` and ``space_after``
        unless one space separates two words), whose ids may be its index; or texts, which
        :func:`psychlm.lm.words_of` splits (a Series: its index names them).
    model : LanguageModel, str or Path
        What :func:`psychlm.lm.load` returns, or takes (on ``device``).
    unit : {"word", "token", "sentence"}
        Row of the result. Tokens have no correction and are not cached. A sentence
        (``sentence_id``, else ``text_id``) has a sum also where its words have no value each.
    correction : {"pimentel-meister", None}
        Move the probability that a word ends from the token after it to the word, so that those of
        all words sum to 1 (tokenizers that mark beginnings of words; others need none). None sums
        the surprisals of a word's tokens, as Hao et al. (2020) do.
    stride : int, optional
        Tokens by which the windows of a long text advance at most, and that stand before every word
        at least; half a window unless given.
    bos : str or None
        Token before every text. ``"auto"``: the tokenizer's for the beginning of a text, else for
        its end; None: nothing, and then the first word has no value.
    context : int, optional
        Longest input in tokens, at least 3; the model's own unless given.
    temperature : float
        Divides the logits (Liu, Škrjanec & Demberg 2024: above 1 it predicts reading times better).
    entropy, rank : bool
        Also return the entropy of the next-token distribution before the word (``entropy_bits``),
        and the rank of the word's first token in it (``rank``, 1 is the likeliest).
    clean : bool
        First clean the texts (:func:`psychlm.lm.tokens.prepare_words`) and count the changes.
    device : str or torch.device
        Where to compute; see :func:`psychlm.device.torch_device`.
    cache, progress : bool
        Keep results of models with a known revision on disk; show a bar on standard error.

    Returns
    -------
    DataFrame
        ``word``, ``surprisal_bits``, ``n_tokens``, ``reason`` (why a value is missing, else empty),
        and the columns of ``words``; of tokens ``token`` in place of the latter two; of sentences
        the sum, ``bits_per_word``, ``bits_per_token``, ``n_words``, ``n_tokens`` and ``reason``.
        ``.attrs["surprisal"]`` says how it was made, and what was cleaned.

    Raises
    ------
    FrameError, ModelError
        If words break their contract; if the model cannot be had, or an option does not suit it.

    Examples
    --------
    >>> scored = surprisal("The old man the boat.", cache=False)
    >>> scored.columns[:2].tolist(), bool(scored["surprisal_bits"].gt(0).all())
    (['word', 'surprisal_bits'], True)
    """
    check_option("unit", unit, ("word", "token", "sentence"))
    if unit != "word" and (entropy or rank):
        raise ModelError(f"entropy and rank are those of words; leave them out with unit={unit!r}")
    is_text = not isinstance(words, pd.DataFrame)
    frame = words_frame(words)
    prepared, changes = prepare_words(frame, clean=clean)
    if is_text:  # words of a text are returned as they are scored, those of a frame as given
        frame = prepared.sort_index()
    n_marked = int(prepared["word"].str.contains(TYPOGRAPHIC).sum())
    if n_marked and getattr(model, "name", model) == "default":
        said = f"{n_marked} words have typographic marks (’ “ ” – …), which the default model has "
        said += "hardly read, so that their surprisal is far too high: write ' \" - ..., or choose "
        warnings.warn(f"{said}another model", RuntimeWarning, stacklevel=2)
    texts = documents(prepared)
    options: dict[str, Any] = {"correction": correction, "stride": stride, "bos": bos}
    options |= {"context": context, "entropy": entropy, "rank": rank}
    if temperature != 1:
        options["temperature"] = temperature
    if unit == "token":
        options["correction"] = None
        return _by_token(frame, texts, opened(model, device), options)
    results, description = _scored(texts, model, options, device, cache, progress)
    asked = {"surprisal_bits": True, "entropy_bits": entropy, "rank": rank}
    value_columns = [name for name, wanted in asked.items() if wanted]
    scored = _by_word(frame, texts, results, [*value_columns, "n_tokens", "reason"])
    if unit == "sentence":
        scored = _by_sentence(scored)
    else:  # shares of a sum are no values of words
        shares = scored["reason"].isin(SUMMED)
        scored.loc[shares, value_columns] = np.nan
    scored.attrs = {**frame.attrs, "surprisal": description | {"cleaned": clean and changes}}
    return scored


def surprisals(
    words: pd.DataFrame | str | Iterable[str] | Mapping[str, str],
    models: Any,
    *,
    texts_at_once: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return words with one column of surprisals (bits) per language model, here or on a cluster.

    Parameters
    ----------
    words, models
        As :func:`surprisal` takes them: a model, an iterable, or a mapping whose keys name the
        columns. On a cluster names and folders, which every worker opens.
    texts_at_once : int, optional
        Texts of a piece of work, which opens a model; all texts unless given.
    client : distributed.Client or str, optional
        See :func:`psychlm.cluster.run_pieces`. Each worker caches its results where it runs.
    **options
        Of :func:`surprisal`, but ``unit``, ``entropy`` and ``rank``.

    Returns
    -------
    DataFrame
        ``text_id``, ``word_id``, ``word`` and a column for each model, NaN where a word has no
        value: what :func:`psychlm.reading_times.delta_loglik` takes. ``.attrs["surprisal"]`` holds
        the description of each column.

    Examples
    --------
    >>> surprisals("The old man the boat.", ["default"], cache=False).columns.tolist()
    ['text_id', 'word_id', 'word', 'default']
    """
    models = named_models(models, client)
    check_limit("texts_at_once", texts_at_once, 1)
    frame = words_frame(words)
    clean = options.get("clean", True)
    _, changes = prepare_words(frame, clean=clean)  # raises what a worker would
    # A piece is the rows of some texts, and a model.
    text = pd.factorize(frame["text_id"])[0] // (texts_at_once or len(frame))
    blocks = [np.flatnonzero(text == block) for block in range(text.max() + 1)]
    names = list(models)
    pieces = dict(enumerate((model, rows) for model in models.values() for rows in blocks))
    table = frame[["text_id", "word_id", "word"]].assign(**dict.fromkeys(names, np.nan))
    described = {}
    for number, (bits, about) in run_pieces(client, _score_piece, (frame, options), pieces):
        name = names[number // len(blocks)]
        rows = blocks[number % len(blocks)]
        table.iloc[rows, table.columns.get_loc(name)] = bits
        described[name] = about | {"cleaned": clean and changes}
    table.attrs["surprisal"] = {name: described[name] for name in names}
    return table


def _score_piece(
    shared: tuple[pd.DataFrame, dict[str, Any]], piece: tuple[Any, NDArray[np.int64]]
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the surprisals of some rows under a model, and their description."""
    scored = surprisal(shared[0].iloc[piece[1]], piece[0], unit="word", **shared[1])
    return scored["surprisal_bits"].to_numpy(), scored.attrs["surprisal"]


def _by_word(
    frame: pd.DataFrame, texts: list[Document], results: list[WordScores], asked: list[str]
) -> pd.DataFrame:
    """Return the words with the values asked for; columns of these names are replaced."""
    values = np.full((len(frame), len(COLUMNS)), np.nan)
    reasons = np.full(len(frame), "", dtype=object)
    for text, scores in zip(texts, results, strict=True):
        values[text.rows] = scores.values
        reasons[text.rows[list(scores.reasons)]] = list(scores.reasons.values())
    new = pd.DataFrame(values, columns=list(COLUMNS), index=frame.index).assign(reason=reasons)
    new = new.astype({"n_tokens": np.int64})
    names = ["text_id", "word_id"]
    rest = frame.drop(columns=["word", *names, *new.columns, "scored_by"], errors="ignore")
    return pd.concat([frame["word"], new[asked], frame[names], rest], axis=1)


def _by_token(
    frame: pd.DataFrame, texts: list[Document], model: LanguageModel, asked: dict[str, Any]
) -> pd.DataFrame:
    """Return a row per token of each text: its own surprisal, and the word it belongs to."""
    from psychlm.lm.forward import LOG_P, plan_requests, resolve_options, rows_of, run

    options = resolve_options(model, **asked)
    tokens = tokenize(texts, model.tokenizer)
    first_rows = rows_of(tokens)
    nats = np.full(first_rows[-1], np.nan)
    requests = plan_requests(tokens, first_rows, model, options)
    for batch, values in run(model, requests, options):
        if values is not None:
            nats[np.concatenate([one.row for one in batch])] = values[:, LOG_P]
    parts = []
    for text, one, first in zip(texts, tokens, first_rows[:-1], strict=True):
        part = frame[["word", "text_id", "word_id"]].iloc[text.rows[one.word]]
        part.insert(0, "surprisal_bits", -nats[first : first + len(one.ids)] / np.log(2))
        part.insert(0, "token", model.tokenizer.convert_ids_to_tokens(one.ids.tolist()))
        parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    table.attrs["surprisal"] = options.describe(model)
    return table


def _by_sentence(scored: pd.DataFrame) -> pd.DataFrame:
    """Return the sum of the surprisals of each sentence's words, and their means."""
    keys = ["text_id", "sentence_id"] if "sentence_id" in scored else ["text_id"]
    nowhere = scored.loc[scored[keys[-1]].isna(), "word"]
    refuse("words", nowhere, "have no sentence_id; number it, or drop the column")
    groups = scored.groupby(keys, sort=False)
    total = groups["surprisal_bits"].agg(lambda bits: bits.sum(skipna=False))
    n_words = groups.size()
    n_tokens = groups["n_tokens"].sum()
    # A token that joins the last word of a sentence with the first of the next belongs to neither.
    sentence = groups.ngroup()
    ordered = scored.assign(sentence=sentence).sort_values(["text_id", "word_id"], kind="stable")
    before = ordered.shift()
    joins = ordered["reason"].eq(SHARED) & before["reason"].eq(SHARED)
    joins &= ordered["text_id"].eq(before["text_id"]) & ordered["sentence"].ne(before["sentence"])
    cut = np.zeros(len(total), dtype=bool)
    cut[pd.concat([ordered["sentence"][joins], before["sentence"][joins]]).astype(int)] = True
    total[cut | n_tokens.eq(0)] = np.nan
    # Reasons: why there is no sum, or what it lacks.
    given = scored["reason"].where(scored["reason"].ne(SHARED) | cut[sentence], "")
    lost = given.where(scored["surprisal_bits"].isna(), "")
    reason = lost.groupby(sentence).max()
    reason = reason.where(reason.ne(""), given.groupby(sentence).max()).to_numpy()
    table = pd.DataFrame({"surprisal_bits": total, "bits_per_word": total / n_words})
    table = table.assign(bits_per_token=total / n_tokens, n_words=n_words, n_tokens=n_tokens)
    return table.assign(reason=reason).reset_index()[[*table.columns, "reason", *keys]]


def _scored(
    texts: list[Document],
    model: LanguageModel | str | Path,
    asked: dict[str, Any],
    device: Device,
    cache: bool,
    progress: bool,
) -> tuple[list[WordScores], dict[str, Any]]:
    """Take results from disk, compute the rest and store each batch; describe how they were
    made."""
    request = ""
    if isinstance(model, LanguageModel):
        revision = model.revision  # of a model in memory: None unless it was stated
    else:
        checkpoint = find_checkpoint(str(model))
        revision = checkpoint.revision
        how = [checkpoint.name, revision, str(device), asked]
        request = key(json.dumps(how, sort_keys=True))
    with ResultStore(on=cache and revision is not None) as store:
        # what a name and its options come to is stored, so that complete results need neither torch
        # nor the model
        _, stored = store.get({request: (0, 0)}).get(request, (None, {}))
        description = stored.get("description")
        identity = stored.get("identity")
        if isinstance(description, dict) and isinstance(identity, str):
            keys, results = _stored(texts, identity, store)
            if all(name in results for name in keys):
                return [results[name] for name in keys], description
        if not isinstance(model, LanguageModel):
            model = open_checkpoint(checkpoint, device)
        from psychlm.lm.forward import resolve_options

        options = resolve_options(model, **asked)
        description = options.describe(model)
        identity = options.identity(description)
        keys, results = _stored(texts, identity, store)
        if request:
            about = {"description": description, "identity": identity}
            store.put([(request, np.empty((0, 0)), about)])
        # equal texts once
        missing = {name: i for i, name in enumerate(keys) if name not in results}
        names = list(missing)
        to_score = [texts[i] for i in missing.values()]
        for finished in score(to_score, model, options, progress):
            fresh = {names[i]: scores for i, scores in finished}
            results |= fresh
            store.put(
                (name, scores.values, scores.reasons)
                for name, scores in fresh.items()
                # another run may do better
                if not {NO_MEMORY, NOT_A_NUMBER} & set(scores.reasons.values())
            )
        return [results[name] for name in keys], description


def _stored(
    texts: list[Document], identity: str, store: ResultStore
) -> tuple[list[str], dict[str, WordScores]]:
    """Return the keys of texts, and the results that are stored under them."""
    keys = [key(identity, text.text, np.concatenate([text.starts, text.ends])) for text in texts]
    shapes = [(len(text.ends), len(COLUMNS)) for text in texts]
    results = {}
    for name, (values, reasons) in store.get(dict(zip(keys, shapes, strict=True))).items():
        numbers = {int(word): reason for word, reason in reasons.items() if word.isdecimal()}
        if all(number < len(values) for number in numbers):
            results[name] = WordScores(values, numbers)
    return keys, results


def score(
    texts: list[Document],
    model: LanguageModel,
    options: ScoringOptions,
    progress: bool = False,
) -> Iterator[list[tuple[int, WordScores]]]:
    """Score documents in batches.

    Yields
    ------
    list of tuple
        The documents that a batch finished: number and scores.
    """
    if not texts:
        return
    from psychlm.lm.forward import N_VALUES, plan_requests, rows_of, run

    tokens = tokenize(texts, model.tokenizer)
    first_rows = rows_of(tokens)
    rows = np.full((first_rows[-1], N_VALUES), np.nan)
    requests = plan_requests(tokens, first_rows, model, options)
    # the documents that each request gives values to, and how many requests each document waits for
    owners = {
        id(one): np.unique(np.searchsorted(first_rows, one.row, side="right") - 1)
        for one in requests
    }
    waiting = np.bincount(np.concatenate([[], *owners.values()]).astype(int), minlength=len(texts))
    begins = begins_with_space(model.tokenizer) if options.correction else None
    out_of_memory: set[int] = set()

    def word_scores(number: int) -> tuple[int, WordScores]:
        token_rows = rows[first_rows[number] : first_rows[number + 1]]
        reason = NO_MEMORY if number in out_of_memory else NOT_A_NUMBER
        no_context = options.bos is None and reason != NO_MEMORY
        return number, _sum_over_tokens(
            texts[number], tokens[number], token_rows, begins, reason, no_context=no_context
        )

    yield [word_scores(int(number)) for number in np.flatnonzero(waiting == 0)]
    n_tokens = sum(map(len, requests))
    with progress_bar(progress, f"tokens through {model.name}", n_tokens) as advance:
        for batch, values in run(model, requests, options):
            finished = []
            for one in batch:
                waiting[owners[id(one)]] -= 1
                finished += [int(number) for number in owners[id(one)] if waiting[number] == 0]
            if values is None:
                out_of_memory |= {int(number) for number in owners[id(batch[0])]}
            else:
                rows[np.concatenate([one.row for one in batch])] = values
            advance(sum(map(len, batch)))
            yield [word_scores(number) for number in finished]


def _sum_over_tokens(
    document: Document,
    tokens: Tokens,
    rows: NDArray[np.float64],
    begins: NDArray[np.bool_] | None,
    reason: str,
    *,
    no_context: bool,
) -> WordScores:
    """Sum the rows of a document's tokens over its words, corrected where ``begins`` is given;
    ``reason`` says why a word has no value."""
    from psychlm.lm.forward import ENTROPY, LOG_END, LOG_INSIDE, LOG_P, RANK

    n_words = len(document.ends)
    log_p = rows[:-1, LOG_P]
    first = np.searchsorted(tokens.word, np.arange(n_words))
    counted = np.ones(len(log_p), dtype=bool) if begins is None else ~tokens.trailing
    nats = np.zeros(n_words)
    np.add.at(nats, tokens.word[counted], log_p[counted])
    if begins is not None:
        # log p(a word ends here | what stands before) at the beginning of the text and after each
        # word, nats; 0 where no white space separates two words, which nothing in the tokens tells
        # apart
        boundary = np.zeros(n_words + 1)
        gap = document.starts[1:] > document.ends[:-1]
        boundary[1:-1] = np.where(gap, rows[first[1:], LOG_END], 0.0)
        boundary[-1] = rows[int((~tokens.trailing).sum()), LOG_END]
        if len(tokens.ids):
            # where a text's first token begins without a space, the model knew that it would, and
            # what is shared out is the mass of all such tokens
            boundary[0] = rows[0, LOG_END if begins[tokens.ids[0]] else LOG_INSIDE]
        nats = nats + boundary[1:] - boundary[:-1]
    values = np.full((n_words, len(COLUMNS)), np.nan)
    values[:, 0] = -nats / np.log(2)
    values[:, 1] = np.bincount(tokens.word[~tokens.trailing], minlength=n_words)
    values[:, 2] = rows[first, ENTROPY] / np.log(2)
    values[:, 3] = rows[first, RANK]
    # words without a value
    reasons = dict(tokens.reasons)
    for word in np.flatnonzero(np.isnan(values[:, 0])):
        if len(tokens.ids):
            reasons[int(word)] = NO_CONTEXT if no_context and word == 0 else reason
    for word in np.flatnonzero(np.isinf(values[:, 0])):
        reasons.setdefault(int(word), IMPOSSIBLE)
    lost = [word for word, why in reasons.items() if why not in (IMPOSSIBLE, *SUMMED)]
    values[np.ix_(lost, [0, 2, 3])] = np.nan
    return WordScores(values, reasons)
