"""Which rows of a wide table of answers are persons, and which are its key, or sums of others."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from psychlm.corpora._answer_formats import Shape
from psychlm.corpora._answer_roles import DESCRIBE, NUMBERS_REPEATS, as_text, of_long_table
from psychlm.corpora._formats import plain
from psychlm.frames import FrameError, format_names, label_of

# words in the names of rows that hold sums or means of the others, and words beside them
SUMS = set(
    "average avg mean median sd std sum total totals maximum minimum possible correct deviation "
    "summe mittel mittelwert durchschnitt gesamt gesamtdurchschnitt richtig moyenne promedio marks "
    "points punkte punktzahl lösungsquote scoring".split()
)
BESIDE = set("class overall grand n % percent standard max min score a b c d of all in the".split())
COUNTS = ["n", "count", "counts", "valid n", "cases", "valid", "anzahl", "fälle", "nombre"]
A_KEY = (
    r"(?i)((answer|correct)[ _]?)?key|((correct|right)[ _])?answers|(correct|right)[ _]answer|"
    r"lösung(en)?|corrigé|solutions?"
)


def _is_sum(name: str) -> bool:
    """Return whether the name of a row is that of sums, means or shares of the others."""
    words = set(re.findall(r"[^\W\d_]+|%", name.lower()))
    return bool(words & SUMS) and words <= SUMS | BESIDE


def is_empty(ids: pd.Series) -> pd.Series:
    """Return which ids are empty; zeros are those of a scanner's sheet without id."""
    return ids.isna() | ids.map(lambda one: isinstance(one, str) and not one.strip("0"))


def labels_of(table: pd.DataFrame) -> pd.Series:
    """Return the first cell of rows that it names as the key or as sums; NaN in other rows.

    These rows stand between persons, often without an id. A row of sums holds numbers besides.
    """
    first = table.iloc[:, 0].astype(object)
    if (is_nameless := is_empty(first)).any():
        others = table.iloc[:, 1:4].astype(object).assign(none=np.nan)
        first = first.mask(is_nameless, others.bfill(axis=1).iloc[:, 0])
    texts = first[[isinstance(one, str) and not one.isdigit() for one in first]].str.strip()
    is_label = texts.str.fullmatch(A_KEY).astype(bool)
    for row in texts.index[texts.map(_is_sum).astype(bool)]:
        cells = table.loc[row].dropna().astype(str)
        is_label[row] = (~cells.str.fullmatch(r"[-+\d.,]+ ?%?")).sum() == 1
    return texts[is_label].reindex(table.index)


def only_persons(shape: Shape, key: pd.Series | None) -> pd.Series | None:
    """Leave out rows of sums and of the key, which are no persons, and return the key."""
    names = shape.table.index.astype(str).str.strip()
    if shape.items:
        return key
    is_sum = np.array([_is_sum(name) for name in names])
    for row in np.flatnonzero(names.str.lower().isin(COUNTS)):  # how many answered each item
        numbers = pd.to_numeric(shape.table.iloc[row], errors="coerce").dropna()
        is_sum[row] |= len(numbers) > 0 and bool(numbers.ge(len(names) / 2).all())
    if is_sum.any() and not is_sum.all():
        shape.notes.append(f"rows {format_names(names[is_sum])} are no persons")
        shape.table = shape.table[~is_sum]
        names = names[~is_sum]
    is_key = names.str.fullmatch(A_KEY)
    if is_key.all() and shape.person:
        raise FrameError("this is a key without persons; give it as key= of a file of answers")
    if is_key.sum() != 1:
        return key
    label = names[is_key][0]
    row = shape.table[is_key].iloc[0].drop(shape.groups)
    row = row[[name for name in row.index if plain(name) not in DESCRIBE and row[name] != label]]
    shape.table = shape.table[~is_key]
    is_used = "is the key" if key is None else ", a key, is no person"
    shape.notes.append(f"row {label!r}{' ' * (key is None)}{is_used}")
    return as_text(row).dropna().rename("key") if key is None else key


def read_as_long(table: pd.DataFrame, person: str) -> str:
    """Return how rows of which each looks like one answer of a person are read; "" where not."""
    items, answer = of_long_table(table, person)
    if not items or not answer:
        return ""
    return (
        f"each time with another {items[0]!r}: if each row is an answer, item={items[0]!r} and "
        f"answer={answer!r} read it as a long table"
    )


def of_repeats(table: pd.DataFrame, looks_long: str) -> str:
    """Return the message about persons, the index of a table, who occur more than once."""
    said = f"occur more than once{looks_long and ', '}{looks_long}; if these are repeated answers, "
    for name in table.filter(regex=NUMBERS_REPEATS):
        if not table.set_index(name, append=True).index.has_duplicates:
            one = label_of(table[name].dropna().iloc[0])
            said += f"repeat={name} numbers them and filter='{name}={one}' takes some; "
            break
    return (
        f"{said}repeat=rows counts them, repeat=latest takes the last; person=rows takes each for "
        "a person; item= and answer= name the columns of a long table"
    )


def of_copies(names: pd.Index) -> str:
    """Return the message about persons whose further rows are copies of their first."""
    times = names.value_counts()
    twice = times[times > 1]
    who = f"all {len(times)}" if len(twice) == len(times) else f"{len(twice)} of {len(times)}"
    often = "twice" if twice.max() == 2 else f"up to {twice.max()} times"
    return (
        f"{who} persons occur {often} with the same answers: the file holds them {often}; remove "
        "the copies, or repeat=latest takes one row of each"
    )
