"""The contracts of the frames that flow through the house.

Each ``check_*`` function returns the frame it was given, made canonical (index names, dtypes), or raises a
:class:`FrameError` that says which rows or columns are wrong, why, and what to do. Nothing is dropped here in silence:
:func:`drop_constant` removes items only when it is asked to, and says which.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

READING_MEASURES = ("first_fixation_ms", "gaze_ms", "total_ms", "self_paced_ms")


class FrameError(ValueError):
    """A frame breaks its contract: the message says which part, why, and what to do."""


def format_names(names: Iterable[Hashable], limit: int = 5) -> str:
    """Name the first few culprits and count the others."""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"[{shown}]" if len(names) <= limit else f"[{shown}, and {len(names) - limit} more]"


def check_responses(responses: pd.DataFrame) -> pd.DataFrame:
    """Return responses as float64 persons x items, the index named ``person`` and the columns ``item``.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN (not asked); booleans count as 0 and 1.

    Raises
    ------
    FrameError
        If the frame is empty; a person or an item stands twice; a column holds text; a value is neither 0, 1 nor NaN;
        or a person or an item has no answers at all.
    """
    if not isinstance(responses, pd.DataFrame):
        raise FrameError(
            f"responses are a {type(responses).__name__}, not a DataFrame; wrap them: pd.DataFrame(...)"
        )
    if responses.shape[0] == 0 or responses.shape[1] == 0:
        raise FrameError(
            f"responses are empty (shape {responses.shape}: persons x items); check the filter that selected them"
        )
    for what, labels, selection in (
        ("persons", responses.index, "~responses.index"),
        ("items", responses.columns, ":, ~responses.columns"),
    ):
        if labels.has_duplicates:
            raise FrameError(
                f"{what} {format_names(labels[labels.duplicated()].unique())} stand more than once; keep one of each, "
                f"for instance responses.loc[{selection}.duplicated()]"
            )
    return _zeros_and_ones(responses)


def read_responses(path: str | Path) -> pd.DataFrame:
    """Read a responses frame from CSV or Parquet: the first column, or a named index, holds the persons.

    Raises
    ------
    FrameError
        If the file cannot be read as a table, or the table is no responses frame; the message names the file.
    """
    file = Path(path)
    try:
        table = (
            pd.read_parquet(file)
            if file.suffix == ".parquet"
            else pd.read_csv(file, dtype={0: str})
        )
    except FileNotFoundError:
        raise FrameError(
            f"{file} is not there; name a CSV or Parquet file of persons x items"
        ) from None
    except (
        ValueError,
        OSError,
    ) as error:  # pandas' parser errors are ValueErrors, Arrow's OSErrors or ValueErrors
        raise FrameError(
            f"{file} cannot be read as a table ({error}); it should be CSV or Parquet"
        ) from error
    if table.index.name is None and table.shape[1]:
        table = table.set_index(table.columns[0])
    try:
        return check_responses(table)
    except FrameError as error:
        raise FrameError(f"{file}: {error}") from None


def _zeros_and_ones(responses: pd.DataFrame) -> pd.DataFrame:
    """Check the values of a responses frame whose labels are sound."""
    numeric = [pd.api.types.is_numeric_dtype(dtype) for dtype in responses.dtypes]
    text = responses.columns[[not n for n in numeric]]
    if len(text):
        raise FrameError(
            f"items {format_names(text)} hold text or objects where 0, 1 or NaN is due; grade them first, or move columns "
            "that describe persons into the index or a persons frame"
        )
    values = responses.to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~((values == 0) | (values == 1) | np.isnan(values))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise FrameError(
            f"items {format_names(responses.columns[wrong.any(axis=0)])} hold values other than 0, 1 or NaN (person "
            f"{responses.index[row]!r} has {values[row, column]:g} on item {responses.columns[column]!r}); "
            "grade the answers as right (1) or wrong (0), NaN where an item was not asked"
        )
    silent_persons, silent_items = np.isnan(values).all(axis=1), np.isnan(values).all(axis=0)
    if silent_persons.any():
        raise FrameError(
            f"persons {format_names(responses.index[silent_persons])} answered no item at all; "
            "leave them out: responses.dropna(how='all')"
        )
    if silent_items.any():
        raise FrameError(
            f"items {format_names(responses.columns[silent_items])} were answered by nobody; "
            "leave them out: responses.dropna(axis=1, how='all')"
        )
    return pd.DataFrame(
        values, index=responses.index.rename("person"), columns=responses.columns.rename("item")
    )


def constant_items(responses: pd.DataFrame) -> pd.Index:
    """Return the items that everyone who answered them answered alike: their difficulty in logits is infinite."""
    return responses.columns[responses.nunique() <= 1]


def drop_constant(responses: pd.DataFrame) -> tuple[pd.DataFrame, pd.Index]:
    """Return the responses without the items that were answered alike by everyone, and the names of those items.

    >>> kept, constant = drop_constant(pd.DataFrame({"q1": [0, 1], "q2": [1, 1]}))
    >>> list(kept), list(constant)
    (['q1'], ['q2'])
    """
    constant = constant_items(responses)
    return responses.drop(columns=constant), constant


def _require_columns(frame: pd.DataFrame, columns: Iterable[str], kind: str) -> None:
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise FrameError(
            f"a {kind} frame needs the columns {missing}, and has {list(frame.columns)}; rename or add them"
        )
    if frame.empty:
        raise FrameError(f"the {kind} frame is empty; check the filter that selected it")


def _require_unique(frame: pd.DataFrame, key: list[str], kind: str) -> None:
    twice = frame.duplicated(key)
    if twice.any():
        rows = frame.loc[twice, key].drop_duplicates().itertuples(index=False, name=None)
        raise FrameError(
            f"{kind} rows {format_names(rows)} ({', '.join(key)}) stand more than once; keep one of each"
        )


def check_items(items: pd.DataFrame, *, distinct: bool = True) -> pd.DataFrame:
    """Return an items frame: one row per item, with ``item_id``, ``prompt``, ``choices`` (list of str), ``answer``.

    Every item has at least two choices, all different and none empty, and exactly one of them is right: ``answer`` is
    its place, counted from 0. Answers become int64.

    Parameters
    ----------
    distinct : bool
        Refuse duplicate choices; False lets them pass, for those who count such items themselves.

    Raises
    ------
    FrameError
        If a column is missing; an item stands twice; a prompt is no text; choices are no list of text, fewer than two,
        empty or alike; or an item has no right answer, several, or one that is not among its choices.
    """
    _require_columns(items, ["item_id", "prompt", "choices", "answer"], "items")
    _require_unique(items, ["item_id"], "items")
    kinds, kept = pd.factorize(
        items["choices"].map(_choices_as_tuple)
    )  # label words are the same for all items
    flaws = np.array([_choices_flaw(choices, distinct) for choices in kept])[kinds]
    textless = ~items["prompt"].map(lambda prompt: isinstance(prompt, str))
    n_choices = np.array([len(choices) for choices in kept])[kinds]
    for wrong, what in (
        (textless, "have a prompt that is not text"),
        *((flaws == flaw, flaw) for flaw in sorted(set(flaws) - {""})),
        *_answer_flaws(items["answer"], n_choices),
    ):
        if wrong.any():
            raise FrameError(f"items {format_names(items.loc[wrong, 'item_id'])} {what}")
    return items.assign(answer=pd.to_numeric(items["answer"]).astype(np.int64))


def _choices_as_tuple(choices: object) -> tuple:
    return tuple(choices) if isinstance(choices, list | tuple | np.ndarray) else ()


def _choices_flaw(choices: tuple, distinct: bool) -> str:
    """Say what is wrong with the choices of an item; empty where nothing is."""
    if len(choices) < 2:
        return "have fewer than two choices, or choices that are no list of text"
    if not all(isinstance(choice, str) for choice in choices):
        return "have a choice that is not text; missing choices are left out, the lists need not be equally long"
    stripped = [choice.strip() for choice in choices]
    if not all(stripped):
        return "have an empty choice; leave the choice out (and count answers anew), or the item"
    if distinct and len(set(stripped)) < len(stripped):
        return "have duplicate choices, so that two answers are right or wrong alike; leave the items out"
    return ""


def _answer_flaws(answers: pd.Series, n_choices: np.ndarray) -> list[tuple[pd.Series, str]]:
    """Return which answers are not one place among the choices, and what is wrong with them."""
    several = answers.map(lambda answer: isinstance(answer, list | tuple | set | np.ndarray))
    number = pd.to_numeric(answers.mask(several), errors="coerce")
    none = answers.mask(several, 0).isna()
    return [
        (
            several,
            "name several right answers, and may have one; leave them out, or make them items of their own",
        ),
        (
            none,
            "have no right answer, the whole number of a choice; leave them out: items.dropna(subset='answer')",
        ),
        (
            number.isna(),
            "name an answer that is no number; it is the place of the right choice, counted from 0",
        ),
        (
            number % 1 != 0,
            "name an answer that is no whole number; it is the place of the right choice, from 0",
        ),
        (
            (number < 0) | (number >= n_choices),
            "name an answer that is not among their choices; answers count from 0",
        ),
    ]


def check_words(words: pd.DataFrame) -> pd.DataFrame:
    """Return a words frame: one row per word, with ``text_id``, ``word_id`` (1-based in its text) and ``word``.

    Raises
    ------
    FrameError
        If a column is missing, a word stands twice, or a word is empty or not text.
    """
    _require_columns(words, ["text_id", "word_id", "word"], "words")
    _require_unique(words, ["text_id", "word_id"], "words")
    wordless = ~words["word"].map(lambda word: isinstance(word, str) and word != "")
    if wordless.any():
        rows = words.loc[wordless, ["text_id", "word_id"]].itertuples(index=False, name=None)
        raise FrameError(
            f"words {format_names(rows)} (text_id, word_id) are empty or not text; a reader of CSV files needs "
            "keep_default_na=False, or the word 'None' becomes a missing value"
        )
    return words.assign(text_id=words["text_id"].astype(str))


def check_readings(readings: pd.DataFrame) -> pd.DataFrame:
    """Return a readings frame: one row per ``subject``, ``text_id`` and ``word_id``, with measures in ms.

    Raises
    ------
    FrameError
        If a column is missing, a row stands twice, no measure is there, or a measure is negative.
    """
    _require_columns(readings, ["subject", "text_id", "word_id"], "readings")
    _require_unique(readings, ["subject", "text_id", "word_id"], "readings")
    measures = [column for column in readings.columns if column.endswith("_ms")]
    if not measures:
        raise FrameError(
            f"a readings frame needs a measure in ms, such as {list(READING_MEASURES)}"
        )
    negative = [measure for measure in measures if (readings[measure] < 0).any()]
    if negative:
        raise FrameError(
            f"measures {negative} hold negative times; NaN stands for a word that was skipped"
        )
    return readings.assign(text_id=readings["text_id"].astype(str))
