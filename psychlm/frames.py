"""The contracts of the frames that pass between the parts of the package.

Each ``check_*`` function returns its frame in canonical form (index names, dtypes), or raises a
:class:`FrameError` that names the rows or columns, says why they are refused and what to do.
Nothing is dropped unless a caller asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import regex

is_numeric = pd.api.types.is_numeric_dtype


class FrameError(ValueError):
    """A frame breaks its contract: the message says which part, why, and what to do."""


def format_names(names: Iterable[Hashable], limit: int = 5) -> str:
    """Return the first few names in brackets, and the number of the others.

    >>> format_names("abcdefg", limit=2)
    "['a', 'b', and 5 more]"
    >>> format_names([np.int64(0), ("q1", np.int64(1))])
    "[0, ('q1', 1)]"
    """

    def as_python(name: Hashable) -> Hashable:
        if isinstance(name, tuple):
            return tuple(map(as_python, name))
        return name.item() if isinstance(name, np.generic) else name

    names = list(names)
    shown = ", ".join(repr(as_python(name)) for name in names[:limit])
    return f"[{shown}]" if len(names) <= limit else f"[{shown}, and {len(names) - limit} more]"


def refuse(kind: str, names: Iterable[Hashable], flaw: str) -> None:
    """Raise if any rows, columns or items have a flaw; the message names them."""
    if names := list(dict.fromkeys(names)):
        raise FrameError(f"{kind} {format_names(names)} {flaw}")


def one_column(values: Any) -> Any:
    """Return the column of a frame of one column; anything else as it is."""
    is_one = isinstance(values, pd.DataFrame) and values.shape[1] == 1
    return values.iloc[:, 0] if is_one else values


def by_person(persons: pd.Index, values: pd.Series | Sequence, name: str) -> pd.Series:
    """Return a value for each person, in the order of ``persons``.

    ``values`` is a Series indexed by person, whose further persons are ignored, or a sequence in
    the order of the persons. A person without a value, or with several, is a :class:`FrameError`.

    >>> by_person(pd.Index(["p1", "p2"]), pd.Series({"p2": "b", "p1": "a"}), "group").tolist()
    ['a', 'b']
    """
    values = one_column(values)
    if not isinstance(values, pd.Series):
        given = np.asarray(values)
        if given.shape != (len(persons),):
            raise FrameError(
                f"{name} has shape {given.shape} for {len(persons)} persons; give one each, in "
                "their order, or a Series indexed by person"
            )
        values = pd.Series(given, index=persons)
    twice = values.index[values.index.duplicated()]
    refuse("persons", twice, f"have more than one {name}; give one each")
    aligned = values.reindex(persons)
    refuse("persons", persons[aligned.isna()], f"have no {name}; give them one, or leave them out")
    return aligned


def checked_weights(persons: pd.Index, weights: pd.Series | Sequence | None) -> np.ndarray | None:
    """Return the weights of persons, (n_persons,); None where none are given."""
    if weights is None:
        return None
    values = by_person(persons, weights, "weight").astype(float)
    flaw = "have a weight that is not a finite number above 0; leave them out, or give another"
    refuse("persons", persons[~(np.isfinite(values) & (values > 0))], flaw)
    return values.to_numpy()


def label_of(one: object) -> str:
    """Return the name of a person, an item or a choice: 2.0 and 2 are the same.

    >>> label_of(2.0), label_of(2), label_of("2.0")
    ('2', '2', '2.0')
    """
    return str(int(one) if isinstance(one, float) and one.is_integer() else one)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with columns of numpy's types, and an index without repeats.

    The levels of a MultiIndex become columns where there are none of that name; an index with
    repeats, as :func:`pandas.concat` leaves it, is numbered anew.

    >>> plain(pd.DataFrame({"x": [1, 2]}, index=[0, 0])).index.tolist()
    [0, 1]
    """
    if frame.index.nlevels > 1:
        levels = [n for n in frame.index.names if n is not None and n not in frame.columns]
        frame = frame.reset_index(level=levels)
    if frame.index.nlevels > 1 or not frame.index.is_unique:
        frame = frame.reset_index(drop=True)
    converted: dict[str, Any] = {}
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, pd.ArrowDtype):
            kind = float if frame[name].isna().any() else dtype.numpy_dtype
            number = is_numeric(dtype) and not pd.api.types.is_bool_dtype(dtype)
            converted[name] = kind if number else object
    return frame.astype(converted) if converted else frame


def as_numbers(values: pd.Series) -> pd.Series:
    """Return values as they are, but as floats where all that are there are numbers of Python.

    Booleans with gaps, decimals of a database and categories are no numbers to pandas.

    >>> as_numbers(pd.Series([True, None, False], dtype="category")).tolist()
    [1.0, nan, 0.0]
    """
    if is_numeric(values):
        return values
    numbers = values.astype(object).where(values.notna(), np.nan)
    all_are = numbers.map(lambda value: isinstance(value, Real | Decimal | np.bool_)).all()
    return numbers.astype(float) if all_are else values


def check_responses(
    responses: pd.DataFrame, *, ratings: bool = False, unanswered: bool = False
) -> pd.DataFrame:
    """Return responses as float64 persons x items, index named ``person``, columns ``item``.

    Values are 0, 1 or NaN (not asked); booleans count as 0 and 1, and with ``ratings`` any finite
    numbers are allowed. A :class:`FrameError` names persons and items without a name or answers
    (unless ``unanswered``), those that occur twice, and other values.

    >>> check_responses(pd.DataFrame({"q1": [True, False]}, index=["ann", "bob"])).loc["ann", "q1"]
    np.float64(1.0)
    """
    if not isinstance(responses, pd.DataFrame):
        said = f"responses are a {type(responses).__name__}, not a DataFrame; use pd.DataFrame(...)"
        if isinstance(responses, Repeated):
            said = "responses are Repeated (k of n), which this function does not take; one answer "
            said += "of each: responses.draw(rng)"
        raise FrameError(said)
    if responses.empty:
        raise FrameError(
            f"responses are empty (shape {responses.shape}: persons x items); check the filter"
        )
    persons = responses.index
    items = responses.columns
    for axis, labels in {"index": persons, "columns": items}.items():
        if labels.nlevels > 1:
            raise FrameError(
                "persons and items have one name each, not the levels of a MultiIndex; join them: "
                f"responses.set_axis(responses.{axis}.map('{{0[0]}}-{{0[1]}}'.format), "
                f"axis='{axis}')"
            )
    axes = {"persons": "~responses.index", "items": ":, ~responses.columns"}
    for (what, axis), labels in zip(axes.items(), (persons, items), strict=True):
        blank = labels.isna() | (labels.astype(str).str.strip() == "")
        refuse(f"{what} at positions", np.flatnonzero(blank) + 1, "are without a name; name them")
        once = f"occur more than once; keep one of each: responses.loc[{axis}.duplicated()]"
        refuse(what, labels[labels.duplicated()], once)
    if not all(map(is_numeric, responses.dtypes)):
        responses = responses.apply(as_numbers)
    text = items[[not is_numeric(dtype) for dtype in responses.dtypes]]
    advice = "grade them, or move columns that describe persons into the index or a persons frame"
    if len(text) and responses[text].apply(pd.to_numeric, errors="coerce").notna().any(axis=None):
        advice = f"numbers as text become numbers with responses.astype(float); {advice}"
    refuse("items", text, f"hold text or objects in place of 0, 1 or NaN; {advice}")
    nullable = any(pd.api.types.is_extension_array_dtype(dtype) for dtype in responses.dtypes)
    missing_as = {"na_value": np.nan} if nullable else {}  # ten times slower than without
    values = responses.to_numpy(dtype=np.float64, copy=True, **missing_as)
    missing = np.isnan(values)
    wrong = np.isinf(values) if ratings else ~((values == 0) | (values == 1) | missing)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise FrameError(
            f"items {format_names(items[wrong.any(axis=0)])} hold values other than 0, 1 or NaN "
            f"(person {persons[row]!r} has {values[row, column]:g} on item {items[column]!r}); "
            "grade the answers as right (1) or wrong (0)"
        )
    if not unanswered:
        flaw = "answered no item at all; responses.dropna(how='all')"
        refuse("persons", persons[missing.all(axis=1)], flaw)
        flaw = "were answered by nobody; responses.dropna(axis=1, how='all')"
        refuse("items", items[missing.all(axis=0)], flaw)
    return pd.DataFrame(values, persons.rename("person"), items.rename("item"), copy=False)


@dataclass(frozen=True)
class Repeated:
    """Responses of persons who answered items several times: k of n in each cell.

    Repeats are answers of one person to one item under the same conditions, such as samples, epochs
    or runs with other seeds. They say more about that item, and are no further items.
    ``psychlm.compare``, ``psychlm.ctt`` and ``psychlm.irt`` take them where they take responses.

    Examples
    --------
    >>> rows = pd.DataFrame({"person": list("aaab"), "item": ["q1", "q1", "q2", "q1"]})
    >>> repeated = Repeated.from_long(rows.assign(score=[1, 0, 1, 1]))
    >>> repeated
    Repeated(2 persons x 2 items, 0 to 2 answers to each, 4 in all)
    >>> repeated.mean.loc["a"].to_dict()
    {'q1': 0.5, 'q2': 1.0}
    """

    # persons x items: numbers of right answers, or sums of the scores; not read where n is 0 or NaN
    correct: pd.DataFrame
    n: pd.DataFrame  # persons x items: numbers of answers; 0 or NaN: not asked
    # persons x items: sums of the squared scores, where these are other numbers than 0 and 1
    squares: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check that the frames agree, and make them canonical."""
        persons = self.correct.index
        items = self.correct.columns
        for table in (self.n, self.squares):
            if table is not None and not (
                table.index.sort_values().equals(persons.sort_values())
                and table.columns.sort_values().equals(items.sort_values())
            ):
                raise FrameError(
                    f"correct has {len(persons)} persons x {len(items)} items, and n or squares "
                    f"{table.shape[0]} x {table.shape[1]}, or others; give the same names to each"
                )
        n = self.n.reindex(persons, columns=items).fillna(0)
        asked = n > 0
        refuse("items", items[~asked.any().to_numpy()], "were answered by nobody; leave them out")
        silent = persons[~asked.any(axis=1).to_numpy()]
        refuse("persons", silent, "answered no item at all; leave them out")
        mean = check_responses((self.correct / n).where(asked), ratings=True)
        labels = {"index": mean.index, "columns": mean.columns}
        whole = ((n % 1 == 0) & (n >= 0)).to_numpy()
        if self.squares is None:
            correct = self.correct.where(asked, 0)
            whole = whole & ((correct % 1 == 0) & (correct >= 0) & (correct <= n)).to_numpy()
        if not whole.all():
            row, column = np.argwhere(~whole)[0]
            raise FrameError(
                f"person {persons[row]!r} has {self.correct.iloc[row, column]:g} of "
                f"{n.iloc[row, column]:g} answers right on item {items[column]!r}; give whole "
                "numbers, k of n; of other scores their sums, and the sums of their squares"
            )
        for name in ("correct", "squares"):
            table = getattr(self, name)
            if table is not None:
                sums = table.reindex(persons, columns=items).where(asked, 0).to_numpy(np.float64)
                object.__setattr__(self, name, pd.DataFrame(sums, **labels))
        object.__setattr__(self, "n", pd.DataFrame(n.to_numpy(np.int64), **labels))

    @classmethod
    def from_long(cls, rows: pd.DataFrame) -> Repeated:
        """Count the answers in rows of ``person``, ``item`` and ``score``, one row an answer.

        Where there is a column ``repeat``, no answer may occur twice. Rows without a score are not
        counted. Persons and items keep the order of their first rows.
        """
        missing = [name for name in ("person", "item", "score") if name not in rows]
        if missing:
            raise FrameError(f"rows of answers need the columns {missing}; have {list(rows)}")
        if "repeat" in rows:
            answer = ["person", "item", "repeat"]
            twice = rows.loc[rows.duplicated(answer), answer].itertuples(index=False, name=None)
            refuse("answers", twice, f"({', '.join(answer)}) occur more than once; keep one")
        scored = rows[rows["score"].notna()]
        for name in ("person", "item"):
            lost = pd.Index(rows[name].unique()).difference(scored[name])
            refuse(f"{name}s", lost, "have no score at all; leave their rows out")
        scores = scored["score"].astype(float)
        cells = scored[["person", "item"]].assign(n=1, correct=scores, squares=scores**2)
        sums = cells.groupby(["person", "item"], sort=False).sum().unstack("item")
        sums = sums.reindex(scored["person"].unique())
        items = scored["item"].unique()
        squares = None if scores.isin((0, 1)).all() else sums["squares"][items]
        return cls(sums["correct"][items], sums["n"][items], squares)

    def __repr__(self) -> str:
        """Return how many persons, items and answers there are."""
        persons, items = self.n.shape
        n = self.n.to_numpy()
        each = f"{n.min()} to {n.max()}" if n.min() < n.max() else n.max()
        counted = f"{each} answers to each, {n.sum()} in all"
        return f"Repeated({persons} persons x {items} items, {counted})"

    @property
    def mean(self) -> pd.DataFrame:
        """Share of right answers, or mean score, persons x items; NaN: not asked."""
        return self.correct / self.n.where(self.n > 0)

    @property
    def variance(self) -> pd.DataFrame:
        """Variance of single scores within each cell, unbiased; NaN with fewer than two."""
        squares = self.correct if self.squares is None else self.squares
        n = self.n.where(self.n > 1)
        return ((squares - self.correct**2 / n) / (n - 1)).clip(lower=0)

    def pass_at(self, k: int) -> pd.DataFrame:
        r"""Return how probable it is that one of k answers to an item is right, persons x items.

        With c of n answers right it is :math:`1 - \binom{n - c}{k} / \binom{n}{k}`, the unbiased
        estimator of Chen et al. (2021, equation 1), which takes at least k answers to each item.

        >>> table = pd.DataFrame({"q1": [1.0], "q2": [0.0]}, index=["a"])
        >>> Repeated(table, table * 0 + 4).pass_at(2).to_dict("list")
        {'q1': [0.5], 'q2': [0.0]}
        """
        if self.squares is not None:
            raise FrameError(f"pass@{k} counts right answers, and these scores are no 0 and 1")
        few = (self.n > 0) & (self.n < k)
        if k < 1 or few.to_numpy().any():
            raise FrameError(
                f"pass@{k} takes 1 <= k answers to each item, and items "
                f"{format_names(few.columns[few.any()])} were answered {self.n.to_numpy().min()} "
                "times or more; ask again, or lower k"
            )
        failures = self.n - self.correct
        all_fail = np.ones(self.n.shape)
        for drawn in range(k):  # the k answers that are drawn without replacement all fail
            all_fail *= ((failures - drawn) / (self.n.where(self.n > 0) - drawn)).clip(lower=0)
        return 1 - all_fail

    def draw(self, rng: np.random.Generator) -> pd.DataFrame:
        """Return one answer of every person to every item, drawn from theirs: a responses frame.

        >>> table = pd.DataFrame({"q1": [3.0], "q2": [0.0]}, index=["a"])
        >>> Repeated(table, table * 0 + 3).draw(np.random.default_rng(0)).to_dict("list")
        {'q1': [1.0], 'q2': [0.0]}
        """
        if self.squares is not None:
            raise FrameError("scores other than 0 and 1 are kept as sums, and none can be drawn")
        drawn = (rng.random(self.n.shape) < self.mean).astype(float)
        return drawn.where(self.n > 0)

    def select(self, persons: Any = slice(None), items: Any = slice(None)) -> Repeated:
        """Return some persons and items, by their labels (one, or a list).

        >>> table = pd.DataFrame({"q1": [1, 2], "q2": [0, 2]}, index=["a", "b"])
        >>> Repeated(table, table * 0 + 2).select("a").mean.to_dict("list")
        {'q1': [0.5], 'q2': [0.0]}
        """
        wanted = [[labels] if np.isscalar(labels) else labels for labels in (persons, items)]
        tables = (self.correct, self.n, self.squares)
        return Repeated(*(table if table is None else table.loc[*wanted] for table in tables))


Responses = TypeVar("Responses", pd.DataFrame, Repeated)


def mean_responses(responses: pd.DataFrame | Repeated, *, ratings: bool = False) -> pd.DataFrame:
    """Return checked responses, of :class:`Repeated` ones the shares of right answers."""
    if isinstance(responses, Repeated):
        return responses.mean
    return check_responses(responses, ratings=ratings)


def constant_items(responses: pd.DataFrame | Repeated) -> pd.Index:
    """Return the items that all persons answered alike: their difficulty in logits is infinite.

    Of :class:`Repeated` responses these are items that all answers have right, or wrong.
    """
    if isinstance(responses, Repeated):
        mean = responses.mean
        return mean.columns[(mean.max() == 0) | (mean.min() == 1)]
    return responses.columns[responses.nunique() <= 1]


def drop_constant(responses: Responses) -> tuple[Responses, pd.Index]:
    """Return the responses without the items that all persons answered alike, and those items.

    >>> kept, constant = drop_constant(pd.DataFrame({"q1": [0, 1], "q2": [1, 1]}))
    >>> list(kept), list(constant)
    (['q1'], ['q2'])
    """
    constant = constant_items(responses)
    if isinstance(responses, Repeated):
        return responses.select(items=~responses.n.columns.isin(constant)), constant
    return responses.drop(columns=constant), constant


EMPTY = "have an empty choice; leave it out (and count answers anew)"
DUPLICATE = "have duplicate choices, right or wrong alike; leave the items out"


def choice_flaws(lists: pd.Series) -> np.ndarray:
    """Return what is wrong with each list of choices, "" where nothing is."""

    def flaw_of(choices: tuple[object, ...]) -> str:
        stripped = [choice.strip() for choice in choices if isinstance(choice, str)]
        if len(choices) < 2:
            return "have fewer than two choices, or choices that are no list of text"
        if len(stripped) < len(choices):
            return "have a choice that is not text; lists of choices may differ in length"
        if not all(stripped):
            return EMPTY
        return DUPLICATE if len(set(stripped)) < len(stripped) else ""

    def texts_of(value: object) -> tuple[str | None, ...]:
        choices = value if isinstance(value, list | tuple | np.ndarray) else ()
        return tuple(choice if isinstance(choice, str) else None for choice in choices)

    # Each distinct list is checked once, since label words are the same for many items.
    rows = lists.map(texts_of)
    codes, unique = pd.factorize(rows)
    return np.array([flaw_of(choices) for choices in unique], dtype=object)[codes]


def check_items(items: pd.DataFrame, *, distinct: bool = True) -> pd.DataFrame:
    """Return an items frame: ``item_id``, ``prompt``, ``choices`` (list of str), ``answer`` (int).

    Each item has two choices or more, all different (unless ``distinct`` is False) and none empty;
    ``answer`` is the position of the right one, from 0. A :class:`FrameError` names the others.

    >>> items = pd.DataFrame({"item_id": ["q1"], "prompt": ["2 + 2 ="], "answer": ["1"]})
    >>> check_items(items.assign(choices=[["3", "4"]]))["answer"].tolist()
    [1]
    """
    containers = list | tuple | set | dict | np.ndarray
    if "item_id" in items and items["item_id"].map(lambda name: isinstance(name, containers)).any():
        raise FrameError("items have an item_id that is a list or the like; give text or numbers")
    items = check_rows(items, ["item_id"], ["prompt", "choices", "answer"], "items")
    flaw_of_item = choice_flaws(items["choices"])
    if not distinct:
        flaw_of_item[flaw_of_item == DUPLICATE] = ""
    # Where choices are no list, this flaw is raised before the answer is looked at.
    n_choices = items["choices"].map(lambda row: len(row) if hasattr(row, "__len__") else 0)
    # Answers: one whole number each, a position among the choices.
    answers = items["answer"]
    several = answers.map(lambda answer: isinstance(answer, containers))
    too_large = answers.map(lambda answer: isinstance(answer, int) and abs(answer) > 2**53)
    # True is no position: it would be the second choice, which may be "no"
    other = several | answers.map(lambda answer: isinstance(answer, bool | np.bool_))
    number = pd.to_numeric(answers.mask(other).mask(too_large, np.inf), errors="coerce")
    textless = ~items["prompt"].map(lambda prompt: isinstance(prompt, str))
    outside = (number < 0) | (number >= n_choices)
    for wrong, flaw in (
        (textless, "have a prompt that is not text"),
        *((flaw_of_item == flaw, flaw) for flaw in sorted(set(flaw_of_item) - {""})),
        (several, "name several right answers; leave them out, or make them items of their own"),
        (answers.mask(several, 0).isna(), "have no right answer; items.dropna(subset='answer')"),
        (number.isna(), "name an answer that is no number; give the choice's position, from 0"),
        (number % 1 != 0, "name an answer that is no whole number; give a position, from 0"),
        (outside, "name an answer that is not among their choices; answers count from 0"),
    ):
        refuse("items", items.loc[wrong, "item_id"], flaw)
    return items.assign(answer=number.astype(np.int64))


def check_words(words: pd.DataFrame, *, whole_texts: bool = True) -> pd.DataFrame:
    """Return a words frame: ``text_id`` (str), ``word_id`` (int, from 1 in each text), ``word``.

    A warning says where the words of a text are not numbered 1, 2, 3, ... (``whole_texts=False``
    for words that were selected on purpose).

    >>> words = pd.DataFrame({"text_id": [1, 1], "word_id": ["1", "2"], "word": ["Good", "day."]})
    >>> check_words(words)["word_id"].tolist()
    [1, 2]
    """
    ids = ["text_id", "word_id"]
    checked = check_rows(words, ids, ["word"], "words")
    wordless = ~checked["word"].map(lambda word: isinstance(word, str) and word != "")
    flaw = "(text_id, word_id) are empty or not text; leave out rows without a word; pandas reads "
    flaw += "the word 'None' as missing unless keep_default_na=False"
    refuse("words", checked.loc[wordless, ids].itertuples(index=False, name=None), flaw)
    skipped = checked[checked["word_id"] != checked.groupby("text_id")["word_id"].rank()]
    if whole_texts and len(skipped):
        text = skipped["text_id"].iloc[0]
        word = skipped.loc[skipped["text_id"] == text, "word_id"].min()
        warnings.warn(
            f"words are missing in {skipped['text_id'].nunique()} texts, which are not numbered "
            f"1, 2, 3, ...: first before word_id {word} of text {text!r}; the words that follow "
            "have an incomplete context",
            RuntimeWarning,
            stacklevel=3,
        )
    return checked


def check_readings(readings: pd.DataFrame) -> pd.DataFrame:
    """Return a readings frame: ``subject``, ``text_id`` (str), ``word_id`` (int), measures in ms.

    >>> readings = pd.DataFrame({"subject": ["s1"], "text_id": ["t"], "word_id": [1]})
    >>> check_readings(readings.assign(gaze_ms=210.0))["gaze_ms"].tolist()
    [210.0]
    """
    checked = check_rows(readings, ["subject", "text_id", "word_id"], [], "readings")
    times = checked.filter(regex="_ms$")
    if times.empty:
        raise FrameError("a readings frame needs a measure in ms, such as gaze_ms or total_ms")
    text = [name for name in times if pd.api.types.is_string_dtype(times[name])]
    refuse("measures", text, "hold text, no numbers; leave the cells of skipped words empty")
    for flaw, wrong in (("negative times", times < 0), ("0 ms", times == 0)):
        if wrong.any(axis=None):
            raise FrameError(
                f"measures {list(wrong.columns[wrong.any()])} hold {flaw} in "
                f"{int(wrong.any(axis=1).sum())} of {len(checked)} rows; a skipped word has NaN: "
                "readings[measure].where(readings[measure] > 0)"
            )
    return checked


def check_rows(
    frame: pd.DataFrame, ids: list[str], others: list[str], kind: str, *, once: bool = True
) -> pd.DataFrame:
    """Check that columns are there and, with ``once``, that no row of ids occurs twice; return the
    frame with canonical ids, also of its index, and an index without repeats (:func:`plain`).
    """
    if frame.index.name in {*ids} - {*frame}:
        frame = frame.reset_index()
    frame = plain(frame)
    missing = [column for column in (*ids, *others) if column not in frame.columns]
    if missing:
        raise FrameError(
            f"a {kind} frame needs the columns {missing}, and has {list(frame.columns)}; add them"
        )
    if frame.empty:
        raise FrameError(f"the {kind} frame is empty; check the filter that selected it")
    canonical: dict[str, pd.Series] = {}
    for name in ids:
        values = frame[name]
        wanted = "one to every row"
        wrong = values.isna()
        if name == "word_id":
            number = pd.to_numeric(values, errors="coerce")
            wanted = "whole numbers"
            wrong = number.isna() | (number % 1 != 0)
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise FrameError(
                f"{name} is {str(values.iloc[row])!r} in row {row} of the {kind} "
                f"({int(wrong.sum())} such rows); give {wanted}"
            )
        if name == "word_id":
            canonical[name] = number.astype(np.int64)
        elif name != "item_id" and not isinstance(values.dtype, pd.StringDtype):
            # 1.0 and 1 name the same text or person
            whole = pd.api.types.is_float_dtype(values) and (values % 1 == 0).all()
            canonical[name] = (values.astype(np.int64) if whole else values).astype(str)
    checked = frame.assign(**canonical)
    if once:
        twice = checked.loc[checked.duplicated(ids), ids].itertuples(index=False, name=None)
        refuse(f"{kind} rows", twice, f"({', '.join(ids)}) occur more than once; keep one")
    return checked


def without_marks(words: pd.Series) -> pd.Series:
    """Return composed words (NFC) without the combining marks that belong to the letter before.

    Vowel signs, points and accents that have no composed letter are marks; so are, for counting and
    comparing letters, invisible format characters (joiners, soft hyphens), as in Unicode's rules
    for words (UAX 29, WB4). What is left has one character for each letter and digit.

    >>> without_marks(pd.Series(["cafe\u0301", "\u0915\u093f\u0924\u093e\u092c"])).map(len).tolist()
    [4, 3]
    """

    def unmarked(word: str) -> str:
        return word if word.isascii() else regex.sub(r"[\p{M}\p{Cf}]", "", word)

    return words.str.normalize("NFC").map(unmarked, na_action="ignore")


def word_shape(words: pd.Series) -> pd.Series:
    """Return words with every letter, and the marks on it, as "a", and every digit as "0".

    >>> word_shape(pd.Series(["Don't,", "1984."])).tolist()
    ["aaa'a,", '0000.']
    """
    letters = without_marks(words).str.replace(r"[^\W\d_]", "a", regex=True)
    return letters.str.replace(r"\d", "0", regex=True).rename("word_shape")


def is_shape(words: pd.Series) -> bool:
    """Return whether words are shapes: a corpus whose text is not on this machine.

    >>> is_shape(pd.Series(["aaa'a,", "a"])), is_shape(pd.Series(["Don't,", "a"]))
    (True, False)
    """
    all_shapes = bool(words.str.fullmatch(r"(?:[\Wa_]|0)*").all())
    return all_shapes and bool(words.str.len().max() > 1)
