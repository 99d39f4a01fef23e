"""Answers of persons to items, from a table or from logs of an evaluation program.

A file is read in three steps: its cells (``_sniff``), its format (``FORMATS`` of
``_answer_formats`` and ``_logs``), and the roles of its columns, of which each can be told
(:mod:`psychlm.roles`). What was taken for what is said in ``recognised``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

import numpy as np
import pandas as pd

from psychlm import roles
from psychlm.corpora import _answer_roles, _logs
from psychlm.corpora._answer_formats import LONG, RIGHT, Shape, names_of, shape_of
from psychlm.corpora._answer_roles import (
    A_SUM,
    CATEGORIES,
    DESCRIBE,
    as_text,
    is_date,
    n_values_of,
    of_long_table,
    span,
)
from psychlm.corpora._answer_rows import (
    A_KEY,
    is_empty,
    labels_of,
    of_copies,
    of_repeats,
    only_persons,
    read_as_long,
)
from psychlm.corpora._formats import (
    GRADES,
    USUAL,
    check_column,
    filtered_rows,
    find,
    kinds_of,
    naming,
    plain,
    practice_in,
    warn_of_case,
    without_blanks,
)
from psychlm.corpora._sniff import numbers_of, read_table, read_tables
from psychlm.frames import (
    FrameError,
    Repeated,
    check_responses,
    format_names,
    is_numeric,
    label_of,
    refuse,
)

# columns of a long table that tell practice from the rest, or what is right
MOST_KINDS = 20  # values of a column that tells practice from the rest; more are texts
OF_TRIALS = "practice ispractice block blocktype phase trialtype label type".split()
RIGHT_BESIDE = "target gold corrans correctresponse *.cresp".split()
DIGITS = frozenset("0123456789")
NO_KEY = "no right answer in the key"
NOT_BINARY = ", not 0 and 1"
WAYS = (
    "a wide table has one row a person and one column an item; a long table has a column for "
    "persons (person, participant, student ...), one for items (item, question, item_id ...) and "
    "one for answers (correct, score, rating ...), or others that person=, item= and answer= name"
)
Key: TypeAlias = str | Path | Mapping[str, object] | pd.Series  # of right answers, by item


@dataclass(frozen=True)
class Answers:
    """What a file of answers holds, as :func:`read_answers` returns it."""

    responses: pd.DataFrame | Repeated  # persons x items: 0, 1 or NaN; ratings; or k of n
    raw: pd.DataFrame | None  # what was chosen, where a key graded it
    key: pd.Series | None  # by item: the right choice, or several with | between
    groups: pd.DataFrame  # persons x columns that are no items
    recognised: str  # what was taken for what, in one line
    level: str  # "binary", "ratings", "mixed" (0/1 items and items of more points) or "scores"
    silent: tuple = ()  # persons of the file without any answer, who are left out


def read_responses(
    path: str | Path, *, ratings: bool = False, **options: Any
) -> pd.DataFrame | Repeated:
    """Read a responses frame from a table or from logs of an evaluation program.

    ``options`` are those of :func:`read_answers`; ``attrs["recognised"]`` says what was taken for
    what. With ``ratings`` answers may be other numbers than 0 and 1. Answers that repeat are
    :class:`psychlm.frames.Repeated`.

    >>> _ = Path("answers.csv").write_text("student,q1,q2\\nann,1,0\\nbob,1,1\\n")
    >>> read_responses("answers.csv").mean().to_dict()
    {'q1': 1.0, 'q2': 0.5}
    """
    answers = read_answers(path, level="ratings" if ratings else "binary", **options)
    frame = answers.responses
    of_attributes = frame.correct if isinstance(frame, Repeated) else frame
    of_attributes.attrs["recognised"] = answers.recognised
    return frame


def read_answers(
    path: str | Path,
    *,
    person: str | None = None,
    items: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    group: str | Sequence[str] = (),
    item: str | None = None,
    answer: str | None = None,
    level: str | None = None,
    key: Key | None = None,
    missing: Sequence[object] = (),
    labels: Mapping[str, float] | None = None,
    reverse: Sequence[str] = (),
    repeat: str | None = None,
    metric: str | None = None,
    filter: str | None = None,
    task: str | Sequence[str] = (),
    encoding: str | None = None,
    unanswered: bool = False,
) -> Answers:
    """Read responses with what else the file holds: raw answers, key, and columns of groups.

    Read are tables (CSV and its relatives, JSON lines, Excel, Parquet, SPSS, Stata), logs of
    evaluation programs, or a folder of either. What is told wins over what would be guessed. What
    breaks the contract of responses is a :class:`FrameError`.

    Parameters
    ----------
    path : path
    person : str, optional
        The column of persons; "rows" numbers the rows.
    items, drop, group : sequences of str
        The columns that are items, those that are not read, and those that describe persons.
    item, answer : str, optional
        The columns of items and of answers in a long table.
    level : "binary", "ratings", "mixed" or "scores", optional
        What the answers are: 0 and 1, ratings, both, or any numbers; found unless given.
    key : path, mapping or Series, optional
        The right answer of each item, or a file with a column for items and one for the key;
        several are separated by ``|``, a comma or a semicolon ("1,000" is one number), or stand in
        several rows.
    missing : sequence
        Codes of missing answers, such as 99 or "NA", beside empty cells and ``. - *``.
    labels : mapping, optional
        Numbers of answers in words: ``{"Disagree": 1, "Agree": 2}``.
    reverse : sequence of str
        Rated items that are turned: lowest plus highest rating minus the answer.
    repeat : str, optional
        The column that numbers repeated answers; "rows": the order of the file; "first" or "latest"
        takes one.
    metric, filter, task : str, optional
        Of logs: what grades, which filter, which tasks. Of tables ``filter="COLUMN=VALUE"`` takes
        the rows in which a column has a value, as in :func:`read_experiment`.
    encoding : str, optional
        Of a text file; found unless given.
    unanswered : bool
        Keep persons and items without any answer, as scoring with known items needs.

    Examples
    --------
    >>> _ = Path("answers.csv").write_text("student,q1,q2,sex\\nann,B,A,f\\nbob,C,A,m\\n")
    >>> answers = read_answers("answers.csv", key={"q1": "B", "q2": "A"})
    >>> answers.recognised
    "wide table: 2 persons ('student'), 2 items (0/1 by key), groups: sex"
    >>> answers.responses.loc["bob"].to_list()
    [0.0, 1.0]
    """
    if level not in (levels := (None, "binary", "ratings", "mixed", "scores")):
        raise ValueError(f"level {level!r} is unknown; choose one of {levels}")
    told = roles.told({**locals()}, roles.ANSWERS)
    told |= {"level": level, "unanswered": unanswered}
    file = Path(path)
    with naming(file) as read_as:
        log = _logs.read(file)
        if log is not None:
            options = {name: told[name] for name in ("metric", "filter", "task", "repeat")}
            rows, notes = _logs.select(*log, fractional=level == "scores", **options)
            wide = rows.pivot(index=["person", "repeat"], columns="item", values="score")
            wide = wide[rows["item"].unique()].reset_index("repeat", drop=True)
            layout = f"logs of {' and '.join(rows['layout'].unique())}"
            shape = Shape(wide, layout, items=list(wide.columns), notes=notes)
            return _answers(shape, None, told | {"level": level or "binary"})
        table = read_tables(file, encoding, labels=bool(labels))
        read_as += table.notes
        named = told["items"]
        shape = shape_of(table.cells, bool(named) and set(named) <= set(table.cells.columns))
        shape.notes += table.notes
        right = None
        if key is not None:
            right = read_key(key, encoding, table.cells.columns)
            right = _answer_roles.by_number(right, list(shape.table.columns), shape.notes)
        return _answers(_with_persons(shape, right, told), right, told)


def read_key(key: Key, encoding: str | None = None, columns: Collection[str] = ()) -> pd.Series:
    """Return the right answers by item; a file has a column for items and one for the key.

    Several right answers of an item are joined by ``|``; an item without any is missing. A header
    that is one of the ``columns`` of answers, and a right answer, is the first item.

    >>> read_key({"q1": 2.0}).to_dict()
    {'q1': '2'}
    """
    if isinstance(key, (str, Path)):
        cells = read_table(key, encoding, sheet=A_KEY).cells
        item = find(cells, [*names_of("item"), "q", "nr", "no", "number", "frage"])
        right = find(cells, "key answer right rightanswer correct lösung solution".split(), [item])
        if cells.shape[1] == 2:
            has_header = bool(item or right)
            item, right = cells.columns
            if not has_header and (item in columns or right in {*cells[right]}):
                cells = pd.concat([pd.DataFrame([[item, right]], columns=cells.columns), cells])
        if len(cells) == 1 and cells.shape[1] > 2:  # a row of answers under the names of items
            key = cells.iloc[0]
        elif item and right:
            key = cells.set_index(item)[right]
        else:
            columns = format_names(cells.columns)
            raise FrameError(f"the key {key} has the columns {columns}; expected two, item and key")
    answers = as_text(pd.Series(key, dtype=object)).rename("key")
    answers.index = [normalize("NFC", str(name).strip()) for name in answers.index]
    return answers.groupby(level=0, sort=False).agg(
        lambda cells: "|".join(dict.fromkeys(cells.dropna())) or np.nan
    )


# ---- persons ----


def _with_persons(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a table with persons in its index and items in columns, as they are told or named."""
    header = list(shape.table.columns)
    if not len(shape.table) or not header:
        raise FrameError(f"the table is empty, header {header}; expected: {WAYS}")
    if told["filter"]:
        everything = pd.Series(True, shape.table.index)
        kept, shape.filtered = filtered_rows(shape.table, told["filter"], everything)
        shape.table = shape.table[kept].reset_index(drop=True)
        shape.notes.append(f"{kept.sum()} of {len(kept)} rows, with {told['filter']}")
    if told["answer"] and not told["item"] and shape.layout != LONG:
        who = told["person"] or find(
            shape.table.drop(columns=told["answer"], errors="ignore"), names_of("person")
        )
        names = [] if not who or who not in header else of_long_table(shape.table, who)[0]
        usual = find(shape.table[names], names_of("item"))
        told["item"] = usual or (names[0] if len(names) == 1 else None)
    is_long = shape.layout == LONG or bool(told["item"])
    named = [told[name] for name in ("person", "item", "answer", "repeat")]
    named = [name for name in named if name not in (None, "rows", "first", "latest")]
    of_items = [] if is_long else [*told["reverse"], *told["items"]]
    check_column([*named, *told["group"], *told["drop"], *of_items], header)
    shape.groups += [name for name in told["group"] if name not in shape.groups]
    shape.no_items = [name for name in shape.no_items if name not in shape.groups]
    return _of_long(shape, key, told) if is_long else _of_wide(shape, key, told)


def _of_long(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a long table as a wide one; rows of one person are that person's repeats."""
    table = shape.table
    # a key grades what was answered, also beside grades
    answers = [*(["response", "answer", "resp"] if key is not None else []), *names_of("answer")]
    item = told["item"] or find(table, names_of("item"))
    answer = told["answer"] or find(table, answers, [item])
    person = told["person"] or find(table, names_of("person"), [item])
    for what, name in {"person": person, "item": item, "answer": answer}.items():
        if not name:
            raise FrameError(f"no column is known as that of {what}s: name it, {what}=")
    check_column([person], table, "; rows of a long table are answers: person= names a column")
    # rows of instructions, and of practice
    is_other = table[[item, answer]].isna().all(axis=1)
    shape.notes += [f"{is_other.sum()} rows without item and answer"] if is_other.any() else []
    table = table[~is_other].reset_index(drop=True)
    kinds = [n for n in table if plain(n) in OF_TRIALS and n not in shape.filtered]
    kinds = [name for name in kinds if kinds_of(table, name).nunique() <= MOST_KINDS]
    name, is_practice = practice_in(table, kinds, pd.Series(True, table.index))
    said = f"{is_practice.sum()} rows of practice ({name}) are left out; keep them: "
    keep = ";".join(filter(None, [told["filter"], f"{name}=*"]))
    shape.notes += [f"{said}filter='{keep}'"] if name else []
    table = table[~is_practice].reset_index(drop=True)
    right = find(table, [*RIGHT, *RIGHT_BESIDE], [person, item, answer])
    given = as_text(table[answer]).astype("str").str.casefold()
    is_text = not is_numeric(numbers_of(table[answer])) and not given.dropna().isin([*GRADES]).all()
    if right and key is None and is_text:
        wanted = as_text(table[right]).astype("str").str.casefold()
        if given.isin(wanted.dropna()).any():
            shape.notes.append(f"{answer!r} is graded by {right!r}")
            table[answer] = given.eq(wanted).astype(float).where(given.notna() & wanted.notna())
    for name in (person, item):
        labels = table[name].map(label_of, na_action="ignore").fillna("")
        table[name] = without_blanks(labels)
        nameless = np.flatnonzero(table[name].isin(["", "NA"])) + 1
        refuse("rows", nameless, f"have no name in {name!r} (empty, or NA)")
    others = [name for name in table if name not in (person, item, answer, *told["drop"])]
    repeat = told["repeat"]
    numbering = [name for name in others if plain(name) in USUAL["repeat"].split()]
    if repeat not in (None, "first", "latest"):
        numbering = [] if repeat == "rows" else [repeat]
    pairs = table[[person, item]]
    twice = table.duplicated([person, item, *numbering])
    if twice.any() and repeat is None:
        if table.duplicated().sum() == twice.sum():
            raise FrameError(
                f"{twice.sum()} rows are copies of others, first {pairs[twice].iloc[0].tolist()} "
                f"in columns {[person, item]}; remove the copies, or repeat=latest takes one"
            )
        raise FrameError(
            f"{int(twice.sum())} answers to the same item by the same person, first "
            f"{pairs[twice].iloc[0].tolist()} in columns {[person, item]}; name what numbers them "
            "(repeat=COLUMN, or repeat=rows: their order), or take one: repeat=first"
        )
    further = pairs.duplicated(keep="last" if repeat == "latest" else "first")
    if repeat in ("first", "latest"):
        shape.notes.append(f"{further.sum()} further answers: the {repeat} one counts")
        table = table[~further]
    elif further.any():
        by = " and ".join(numbering) or "rows"
        most = pairs.value_counts().max()
        shape.notes.append(f"repeated answers by {by}: up to {most} to an item")
    # what is the same in all rows of a person describes the person
    by_person = table.groupby(person)
    n_values = by_person[others].nunique(dropna=False).max()
    groups = [name for name in others if n_values[name] == 1 and name not in numbering]
    if unused := [name for name in others if name not in (*groups, *numbering)]:
        shape.notes.append(f"columns not used: {', '.join(unused)}")
    place = table.groupby([person, item]).cumcount()
    wide = table.assign(place=place).pivot(index=[person, "place"], columns=item, values=answer)
    wide = wide[table[item].unique()].reset_index("place", drop=True).rename(columns=str)
    shape.items = list(wide.columns)
    shape.groups = [f"{name} (person)" if name in wide.columns else name for name in groups]
    shape.table = wide.join(by_person[groups].first().set_axis(shape.groups, axis=1))
    shape.layout = f"{LONG} of {answer!r}"
    shape.person = person
    return shape


def _of_wide(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a wide table with persons in its index, numbered where it has none."""
    table = shape.table
    taken = {*told["items"], *(shape.items or ()), *([] if key is None else key.index)}
    person = told["person"] or shape.person
    labels = labels_of(table)
    is_labelled = labels.notna()
    if person is None:
        candidates = [name for name in table if name not in taken and name not in told["group"]]
        first = table.columns[0]
        stem = re.sub(r"\d+$", "", first)
        is_numbered = stem != first and sum(str(n).startswith(stem) for n in table.columns) > 2
        is_unnamed = first == "column 1" or first.startswith("Unnamed")
        named = find(table[candidates], names_of("person"))
        if named and table[named].notna().any():
            person = named
        elif first in candidates and not is_numbered:
            # a text of which few cells repeat may name persons who answered twice
            ids = table[first][~is_labelled]
            is_text = not is_numeric(numbers_of(ids)) and not is_date(ids)
            is_id = ids.is_unique or (is_text and ids.nunique() > 0.9 * len(ids))
            person = first if is_unnamed or (is_id and ids.notna().all()) else None
    if person in (None, "rows"):
        numbers = (~is_labelled).cumsum().astype(str)
        names = pd.Index(numbers.mask(is_labelled, labels), name="person")
        known = names_of("person")
        shape.groups += [name for name in table if plain(name) in known and name not in taken]
        shape.notes.insert(0, "persons are numbered")
        person = None
    else:
        cells = table[person].astype(object)
        cells = cells.mask(is_labelled & is_empty(cells), labels)
        nameless = np.flatnonzero(cells.isna()) + 1
        refuse("rows", nameless, f"have no name in {person!r}; person=rows numbers them")
        names = pd.Index(without_blanks(cells.map(label_of)), name=person)
        table = table.drop(columns=person)
    shape.person = person
    table = table.set_axis(names, axis=0)
    repeat = told["repeat"]
    by = repeat or shape.repeat
    looks_long = read_as_long(shape.table, person) if person and names.has_duplicates else ""
    if looks_long and repeat in ("rows", "first", "latest") and not told["items"]:
        shape.notes.append(f"rows of a person are taken for repeats, {looks_long}")
        warnings.warn(shape.notes[-1], stacklevel=3)
    if repeat in ("first", "latest"):
        further = names.duplicated(keep="last" if repeat == "latest" else "first")
        shape.notes.append(f"{further.sum()} further rows of persons: the {repeat} one counts")
        table = table[~further]
    elif names.has_duplicates and not by:
        if table.assign(**{str(person): names}).duplicated().sum() == names.duplicated().sum():
            raise FrameError(of_copies(names))
        refuse("persons", names[names.duplicated()], of_repeats(table, looks_long))
    elif names.has_duplicates:
        most = names.value_counts().max()
        shape.notes.append(f"repeated answers by {by}: up to {most} rows a person")
    elif repeat not in (None, "rows"):
        shape.notes.append(f"no person occurs twice: {repeat!r} numbers nothing")
    shape.table = table.drop(columns=[n for n in (shape.repeat, repeat) if n in table])
    return shape


# ---- items, and grades ----


def _answers(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Answers:
    """Separate items from groups, grade them, and say what was taken for what."""
    level = told["level"]
    notes = shape.notes
    left_out: dict[str, str] = {}
    shape.table = shape.table.drop(columns=told["drop"], errors="ignore").rename_axis("person")
    key = only_persons(shape, key)
    options = _answer_roles.words_in(key, told["missing"], notes)
    if key is not None:
        left_out |= dict.fromkeys(key.index[key.isna()], NO_KEY)

    # Columns of answers: those that are named, of the format, or all that describe nobody.
    no_items = {*shape.groups, *shape.no_items, *told["drop"], *left_out}
    candidates = [name for name in shape.table if name not in no_items]
    given = told["items"] or shape.items
    given = given and [name for name in given if name not in {*told["group"], *told["drop"]}]
    of_key = [] if key is None else [n for n in key.dropna().index if n not in told["drop"]]
    of_key = [name for name in of_key if not given or name in given]
    check_column(given or (), shape.table.columns)
    check_column(of_key, shape.table.columns, " (the key names it)")
    # Columns of digits are numbers at once: the rules below look at the texts of each column.
    texts = [n for n in candidates if not (told["labels"] or is_numeric(shape.table[n]))]
    digits = [n for n in texts if DIGITS.issuperset(shape.table[n].dropna().unique())]
    typed = shape.table.astype(dict.fromkeys(digits, float))
    marked, found = _answer_roles.with_missing(typed, candidates, told["missing"], options)
    elsewhere = {*of_key, *left_out}
    wanted = [name for name in given or candidates if name not in elsewhere]
    numbers, logical, words = _answer_roles.numbers_and_words(marked, wanted, told["labels"], notes)
    empty = [name for name in wanted if name not in numbers and name not in words]
    left_out |= dict.fromkeys(empty, "no answers")
    items = list(numbers)
    if given is None:
        counts = [n for n in numbers if plain(n) in ("freq", "frequency", "count", "counts")]
        if counts and level != "scores" and numbers[counts[0]].gt(1).any():
            name = counts[0]
            raise FrameError(
                f"column {name!r} may count the persons of each row's pattern; repeat the rows "
                f"(table.loc[table.index.repeat(table[{name!r}])]), or leave it out: drop={name}"
            )
        certain = list(numbers) if level == "scores" else [*logical, *told["reverse"]]
        items, why = _answer_roles.items_among(numbers, certain)
        if key is not None:
            # beside a key only points from 0 on are items of their own
            points = [n for n in items if numbers[n].min() == 0 and numbers[n].nunique() > 2]
            why |= {name: "not in the key" for name in items if name not in points}
            items = points
        left_out |= why
        # few different texts in many columns are answers; dates, and texts of all, are none
        few = [n for n in words if words[n].nunique() <= CATEGORIES and plain(n) not in DESCRIBE]
        n_items = len(items) + len(of_key)
        stems = {re.sub(r"\d+\W*$", "", name) for name in [*items, *of_key]}
        alike = [n for n in few if re.sub(r"\d+\W*$", "", n) in stems - {n} and n_items > len(few)]
        for name in alike:
            held = format_names(words[name].dropna().unique(), 3)
            reason = f"it holds {held}: labels= gives them numbers"
            reason = reason if key is None else "the key has no right answer for it"
            notes.append(f"{name} is no item, since {reason}")
        few = [n for n in few if not (is_date(words[n]) or (n_items and words[n].nunique() == 1))]
        words = {name: words[name] for name in few}
    if told["unanswered"]:
        kept = [name for name in empty if plain(name) not in DESCRIBE]
        numbers = numbers.assign(**dict.fromkeys(kept, np.nan))
        items += kept
        left_out = {name: why for name, why in left_out.items() if name not in kept}
    n_items = len(items) + len(of_key)
    if words and (given is not None or len(words) >= max(n_items, 1)):
        raise FrameError(_answer_roles.needs_key(words, shape.table.columns))
    if not n_items:
        reasons = ", ".join(f"{name} ({why})" for name, why in left_out.items()) or "all are text"
        raise FrameError(f"no column is an item: {reasons}; name them with items=; {WAYS}")

    # Grades: by the key, or as they are.
    raw = None
    notes += _answer_roles.counts_of_missing(found, [*of_key, *items])
    responses = numbers[items]
    if key is not None and of_key:
        raw = marked[of_key].apply(as_text)
        raw = raw.astype(dict.fromkeys(raw.columns[raw.isna().all()], "str"))
        raw = _answer_roles.in_case_of(key, raw, notes)
        _answer_roles.refuse_no_options(raw, key, bool(told["missing"]), notes)
        responses = pd.concat([_answer_roles.graded_by(raw, key, notes), responses], axis=1)
    responses = responses[[name for name in shape.table if name in responses]]
    if level != "scores":
        _answer_roles.warn_of_codes(responses, bool(told["missing"]), notes)
    is_binary = responses.isin((0, 1)).where(responses.notna(), True).all()
    points = list(is_binary.index[~is_binary])
    few_points = len(points) <= len(is_binary) / 2
    if level is None:
        level = "ratings" if points and not few_points else "mixed" if points else "binary"
    elif level == "binary" and points and few_points and given is None:
        left_out |= {name: span(responses[name]) + NOT_BINARY for name in points}
        responses = responses.drop(columns=points)
    if level != "scores":
        _answer_roles.warn_of_names(responses, told["reverse"], notes)
    if told["reverse"]:
        _answer_roles.turn(responses, told["reverse"], notes)
    if not told["unanswered"]:
        blank = list(responses.columns[responses.isna().all()])
        left_out |= dict.fromkeys(blank, "no answers")
        responses = responses.drop(columns=blank)
    return _described(shape, responses, raw, key, level, left_out, told)


# ---- the result, and what is said of it ----


def _described(
    shape: Shape,
    responses: pd.DataFrame,
    raw: pd.DataFrame | None,
    key: pd.Series | None,
    level: str,
    left_out: dict[str, str],
    told: dict[str, Any],
) -> Answers:
    """Return answers without silent persons, with repeats counted, and described in one line."""
    nothing = [name for name, why in left_out.items() if why in ("no answers", NO_KEY)]
    gone = {*responses.columns, *shape.no_items, *nothing}
    described = shape.table[[name for name in shape.table if name not in gone]].apply(
        without_blanks
    )
    described = described.apply(numbers_of)
    answered = responses.notna().any(axis=1).to_numpy()
    silent = tuple(pd.Index(responses.index[~answered]).difference(responses.index[answered]))
    if told["unanswered"]:
        answered = np.ones(len(responses), dtype=bool)
    elif not answered.any():
        raise FrameError("nobody answered any item")
    responses = responses[answered]
    groups = described[answered]
    # what the items' values are
    is_binary = (responses.isin((0, 1)) | responses.isna()).all()
    points = list(is_binary.index[~is_binary])
    values = f"0/1{' by key' * (key is not None)}"
    if level == "scores" and points:
        values = "scores"
    elif points and level == "mixed":
        values = "; ".join([values, *(f"{name} {span(responses[name])}" for name in points)])
    elif points:
        values = f"ratings {span(responses[points].stack())}"
    result: pd.DataFrame | Repeated
    raw = None if raw is None else raw[answered]
    if responses.index.has_duplicates:
        rows = responses.rename_axis(columns="item").stack().rename("score").reset_index()
        result = Repeated.from_long(rows)
        groups = groups[~groups.index.duplicated()]
        values += f", {result.n.to_numpy().sum():,} answers"
        raw = None
    else:
        try:
            unanswered = told["unanswered"]
            result = check_responses(responses, ratings=level != "binary", unanswered=unanswered)
        except FrameError as error:
            advice = "ratings need ratings=True, or a model of ratings"
            raise FrameError(f"{error} (read as a {shape.layout} of {values}; {advice})") from None
    # the line: persons, items, groups; what is left out; notes
    named = f" ({shape.person!r})" if shape.person else ""
    parts = [f"{responses.index.nunique():,} persons{named}"]
    parts += [f"{responses.shape[1]:,} items ({values})"]
    graded = [name for name, why in left_out.items() if why.endswith((NOT_BINARY, A_SUM))]
    few = [n for n in groups if n not in graded and 1 < groups[n].nunique() <= CATEGORIES]
    few = [n for n in groups if n in told["group"] or (n in few and not is_date(groups[n]))]
    warn_of_case(responses.index.unique(), "persons", shape.notes)
    for name in few:
        warn_of_case(groups[name].dropna().unique(), f"groups of {name!r},", shape.notes)
    maybe = [n for n in few if n in left_out and plain(n) not in DESCRIBE and not told["items"]]
    way_back = " (where one is an item, items= names all items)" * bool(maybe)
    parts += [f"groups: {', '.join(few)}{way_back}"] if few else []
    for name in told["group"]:
        n_without = int(groups[name].isna().sum())
        parts += [f"{n_without} persons without {name}"] if n_without else []
    many = {name: why for name, why in left_out.items() if name not in few}
    many |= {n: n_values_of(groups[n]) for n in groups if n not in (*few, *many)}
    away = [f"{name} ({why})" for name, why in list(many.items())[:12]]
    away += [f"and {len(many) - 12} more columns"] if len(many) > 12 else []
    away += [f"{len(shape.no_items)} columns of the session"] if shape.no_items else []
    away += [f"dropped: {', '.join(told['drop'])}"] if told["drop"] else []
    without = [f"{len(silent)} persons without any answer: {format_names(silent)}"] * bool(silent)
    away += [] if told["unanswered"] else without
    said = f"{shape.layout}: {', '.join(parts)}"
    said += f"; left out: {', '.join(away)}" if away else ""
    is_more = bool({*left_out}.difference(maybe)) and not told["items"]
    said += " (items= takes other columns)" * is_more
    notes = [*shape.notes, *(without if told["unanswered"] else [])]
    said = " ".join("; ".join([said, *notes]).split())
    return Answers(result, raw, key, groups, said, level, silent)
