"""Answers of persons to items, from a table or from logs of an evaluation program."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from psychlm import eval_logs
from psychlm.frames import (
    FrameError,
    check_responses,
    format_names,
    header_of,
    is_numeric,
    numbers_of,
    read_csv,
    refuse,
)

# names of columns of a long table, small letters
PERSONS = ["person", "participant", "student", "subject", "respondent", "user", "worker", "model"]
PERSONS += ["id", "uuid", "userid", *(f"{name}_id" for name in PERSONS)]
ITEMS = ["item", "question", "item_id", "question_id", "sample_id", "doc_id", "instance_id"]
VALUES = ["correct", "score", "rating", "response", "answer", "is_correct", "acc", "accuracy"]
VALUES += ["grade", "value", "evaluation.is_correct", "evaluation.score"]
RAW = ["response", "answer"]  # what a key grades, also beside grades
Key: TypeAlias = str | Path | Mapping[str, object] | pd.Series  # of right answers, by item
WIDE = 2000  # columns beyond which a CSV file of numbers is not read by pandas
# cells that are no answer, where a key grades text; "None" may be a choice
EMPTY = ["", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"]
CATEGORIES = 12  # different whole numbers that a column of ratings has at most
WAYS = (
    "a wide table has one row a person, whose name is in the first column, and one column an item; "
    f"a long table has a column for persons ({', '.join(PERSONS[:4])} ...), one for items "
    f"({', '.join(ITEMS[:3])} ...) and one for answers ({', '.join(VALUES[:4])} ...)"
)


@dataclass(frozen=True)
class Answers:
    """What a file of answers holds, as :func:`read_answers` returns it."""

    responses: pd.DataFrame  # persons x items: 0, 1 or NaN, or ratings
    raw: pd.DataFrame | None  # what was chosen, where a key graded it
    key: pd.Series | None  # by item: the right choice
    groups: pd.DataFrame  # persons x columns that are no items
    recognised: str  # layout of the file, in words
    level: str  # "binary" or "ratings"


def read_responses(path: str | Path, *, ratings: bool = False, **options: Any) -> pd.DataFrame:
    """Read a responses frame from a table or from logs of an evaluation program.

    ``options`` are those of :func:`read_answers`; ``attrs["recognised"]`` says which layout the
    file has. With ``ratings`` answers may be other numbers than 0 and 1.

    >>> _ = Path("answers.csv").write_text("student,q1,q2\\nann,1,0\\nbob,1,1\\n")
    >>> read_responses("answers.csv").mean().to_dict()
    {'q1': 1.0, 'q2': 0.5}
    """
    answers = read_answers(path, level="ratings" if ratings else "binary", **options)
    answers.responses.attrs["recognised"] = answers.recognised
    return answers.responses


def read_answers(
    path: str | Path,
    *,
    items: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    level: str | None = None,
    key: Key | None = None,
    missing: Sequence[object] = (),
    unanswered: bool = False,
) -> Answers:
    """Read responses with what else the file holds: raw answers, key, and columns of groups.

    Recognised are wide and long tables (CSV, Parquet, Excel, SPSS) of 0 and 1, of ratings, or of
    raw answers that a key grades; and logs of evaluation programs (:mod:`psychlm.eval_logs`). Any
    other file, and one that breaks the contract of responses, is a :class:`FrameError`.

    Parameters
    ----------
    path : path
        A file, or a folder of logs.
    items, drop : sequences of str
        The columns that are items: all but the first, or those of the key, unless named; and those
        that are none, for covariates of 0 and 1 (sex, group) look like answers.
    level : "binary" or "ratings", optional
        What the answers are; recognised from the values unless given.
    key : path, mapping or Series, optional
        The right answer of each item, or a file with a column for items and one for the key.
    missing : sequence
        Codes of missing answers, such as 99 or "NA", beside empty cells.
    unanswered : bool
        Keep persons and items without any answer, as scoring with known items needs.

    Examples
    --------
    >>> _ = Path("answers.csv").write_text("student,q1,q2,sex\\nann,B,A,f\\nbob,C,A,m\\n")
    >>> answers = read_answers("answers.csv", key={"q1": "B", "q2": "A"})
    >>> answers.recognised
    "wide table of raw answers and a key: persons in 'student', 2 items, no items: ['sex']"
    >>> answers.responses.loc["bob"].to_list()
    [0.0, 1.0]
    """
    file = Path(path)
    if level not in (None, "binary", "ratings"):
        raise ValueError(f"level {level!r} is unknown; choose 'binary', 'ratings', or None")
    try:
        right = None if key is None else read_key(key)
        if eval_logs.is_log(file):
            rows = eval_logs.read(file)
            table = rows.pivot(index="person", columns="item", values="correct")
            table = table[rows["item"].unique()]
            what = f"logs of {' and '.join(rows['layout'].unique())}"
        else:
            table = _table(file, as_text=right is not None)
            table, what = _shaped(table, right, items, drop)
        codes = set(_as_text(pd.Series([*missing], dtype=object)))
        if codes:
            coded = table.apply(lambda cells: _as_text(cells).isin(codes))
            table = table.mask(coded).apply(_as_numbers)
        return _answers(table, what, right, items, drop, level, unanswered)
    except FileNotFoundError:
        raise FrameError(f"{file} does not exist; name a table or a folder of logs") from None
    except FrameError as error:
        raise FrameError(f"{file}: {error}") from None
    except ImportError as error:
        extra = "pyreadstat" if file.suffix == ".sav" else "openpyxl"
        raise FrameError(
            f"{file} needs the package {extra} ({error}); pip install {extra}, or save it as CSV"
        ) from error
    # pandas: ValueErrors, Arrow and zip: OSErrors
    except (ValueError, OSError, csv.Error, zipfile.BadZipFile) as error:
        raise FrameError(f"{file} cannot be read as a table or a log ({error})") from error


def read_key(key: Key) -> pd.Series:
    """Return the right answers by item; a file has a column for items and one for the key.

    >>> read_key({"q1": 2.0}).to_dict()
    {'q1': '2'}
    """
    if isinstance(key, (str, Path)):
        table = _table(Path(key), as_text=True)
        if table.shape[1] != 2:
            columns = format_names(table.columns)
            raise FrameError(f"the key {key} has the columns {columns}; expected two, item and key")
        key = table.set_index(table.columns[0]).squeeze(axis=1)
    right = _as_text(pd.Series(key, dtype=object)).rename("key")
    wrong = right.isna() | right.index.duplicated()
    refuse("items", right.index[wrong], "of the key have no answer, or two")
    return right.set_axis(right.index.astype(str).str.strip())


def _as_text(values: pd.Series) -> pd.Series:
    """Return answers as stripped text; 2.0 and 2 are the same choice, and empty cells are NaN."""

    def text_of(one: object) -> str:
        try:
            number = float(text := str(one).strip())
        except ValueError:
            return text
        return str(int(number) if number.is_integer() else number)

    text = values.map(text_of)
    return text.where(values.notna() & (text != ""))


def _as_numbers(values: pd.Series) -> pd.Series:
    """Return a column as numbers where all its cells are; else as it is."""
    numbers = pd.to_numeric(values, errors="coerce")
    return numbers if numbers.notna().sum() == values.notna().sum() else values


def _table(file: Path, *, as_text: bool) -> pd.DataFrame:
    """Read a table; ``as_text`` leaves raw answers as they are written."""
    empty: dict[str, Any] = {"keep_default_na": False, "na_values": EMPTY} if as_text else {}
    if file.suffix == ".parquet":
        table = pd.read_parquet(file)
        if table.index.name is not None:
            table = table.reset_index()
    elif file.suffix == ".sav":
        table = pd.read_spss(file, convert_categoricals=False)
    elif file.suffix == ".xlsx":
        table = pd.read_excel(file, engine="openpyxl", **empty)
    elif file.suffix in (".csv", ".tsv", ".txt", ""):
        table = _csv_table(file, as_text=as_text, **empty)
    else:
        raise FrameError(f"files {file.suffix} are not known; {WAYS}, as CSV, Parquet, xlsx or sav")
    table.columns = table.columns.astype(str).str.strip()
    twice = table.columns[table.columns.duplicated()]
    refuse("columns", twice, "occur more than once; rename or remove them")
    return table


def _csv_table(file: Path, *, as_text: bool, **empty: Any) -> pd.DataFrame:
    """Read a CSV file whose first column, and names of persons and items, are text."""
    separator, header = header_of(file)
    if len(header) > WIDE:
        # pandas needs minutes for a million columns: rows of numbers become one array
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = list(csv.reader(opened, delimiter=separator))[1:]
        try:
            names = pd.Series([row[0] for row in rows], name=header[0] or "person")
            numbers = np.array([[cell or "nan" for cell in row[1:]] for row in rows], dtype=float)
            return pd.concat([names, pd.DataFrame(numbers, columns=header[1:])], axis=1)
        except (ValueError, IndexError):  # text, or rows of other lengths
            pass
    of_text = [n for n in header if as_text or n.strip().lower() in (*PERSONS, *ITEMS)]
    table = read_csv(file, dtype=dict.fromkeys([0, *of_text], str), **empty)
    # pandas renames columns of one name ("q1.1"), which are refused, and those without a name
    names = zip(header, table.columns, strict=True)
    return table.set_axis([given.strip() or renamed for given, renamed in names], axis=1)


def _shaped(
    table: pd.DataFrame, key: pd.Series | None, items: Sequence[str] | None, drop: Sequence[str]
) -> tuple[pd.DataFrame, str]:
    """Return a wide or long table as a wide one, persons in its index, and its layout."""
    lower = {name.lower(): name for name in table.columns}
    values = VALUES if key is None else [*RAW, *VALUES]
    of_kinds = [[lower[n] for n in names if n in lower] for names in (PERSONS, ITEMS, values)]
    if items is not None or not all(of_kinds):
        return _with_persons(table, key)
    person, item, value = (columns[0] for columns in of_kinds)
    for name in (person, item):
        table[name] = table[name].map(lambda one: one.strip() if isinstance(one, str) else one)
        nameless = table[name].isna() | table[name].eq("")
        refuse("rows", np.flatnonzero(nameless) + 1, f"have no name in {name!r} (empty, or NA)")
    twice = table.duplicated([person, item])
    if twice.any():
        pair = table.loc[twice, [person, item]].iloc[0].tolist()
        raise FrameError(
            f"{int(twice.sum())} answers to the same item by the same person, first {pair} in "
            f"columns {[person, item]}; keep one of each, or make attempts items of their own"
        )
    wide = table.pivot(index=person, columns=item, values=value)[table[item].unique()]
    # Other columns describe persons where they are the same in all of a person's rows.
    others = [name for name in table if name not in (person, item, value, *drop)]
    by_person = table.groupby(person)
    constant = [name for name in others if by_person[name].nunique(dropna=False).max() == 1]
    wide = wide.rename(columns=str).join(by_person[constant].first())
    wide.attrs["groups"] = constant
    left_out = [name for name in others if name not in constant]
    ignored = f", columns {format_names(left_out)} ignored" if left_out else ""
    return wide, f"long table of answers in {value!r}{ignored}"


def _with_persons(table: pd.DataFrame, key: pd.Series | None) -> tuple[pd.DataFrame, str]:
    """Return a wide table with persons in its index, numbered where it has none, and its layout."""
    if table.shape[1] == 0 or not len(table):
        raise FrameError(f"the table is empty, header {list(table.columns)}; expected: {WAYS}")
    first = table.columns[0]
    unnamed = first.startswith("Unnamed")
    graded = pd.to_numeric(table[first], errors="coerce").isin((0, 1)).all() and len(table) > 2
    of_answers = graded and not unnamed and first.lower() not in PERSONS
    if of_answers or (key is not None and first in key):
        numbers = np.arange(1, len(table) + 1).astype(str)
        numbered = table.assign(**{first: _as_numbers(table[first])})
        numbered.index = pd.Index(numbers, name="person")
        return numbered, "wide table without a column of persons, now numbered,"
    table = table.set_index(first)
    return (table.rename_axis("") if unnamed else table), "wide table"


def _answers(
    table: pd.DataFrame,
    what: str,
    key: pd.Series | None,
    items: Sequence[str] | None,
    drop: Sequence[str],
    level: str | None,
    unanswered: bool,
) -> Answers:
    """Separate items from groups, and grade them."""
    persons = repr(table.index.name) if table.index.name else "the first column"
    table = table.rename_axis(index=table.index.name or "person")
    of_key = [] if key is None else list(key.index)
    named = [*(items or ()), *drop, *of_key]
    if unknown := [name for name in named if name not in table.columns]:
        raise FrameError(f"no columns {format_names(unknown)}; there are {list(table.columns)}")
    persons_only = [*drop, *table.attrs.get("groups", ())]
    given = items if items is not None or key is None else of_key
    chosen = [name for name in (table if given is None else given) if name not in persons_only]
    if given is None:
        # of many thousand columns only those that may be text are looked at
        kinds = table.dtypes[chosen]
        others = kinds.index[[not is_numeric(kind) for kind in kinds]]
        text = [name for name in others if _is_text(table[name])]
        chosen = [name for name in chosen if name not in text]
        if len(text) >= max(len(chosen), 1):
            raise FrameError(
                f"columns {format_names(text)} hold text: raw answers need a key, the right answer "
                f"of each item (key=); else {WAYS}; the header is {format_names(table.columns, 12)}"
            )
    groups, responses, raw = table.drop(columns=chosen), table[chosen], None
    if key is not None:
        raw = responses.apply(_as_text)
        responses = _graded(raw, key[chosen])
        groups = groups.apply(numbers_of).apply(_as_numbers)  # the table was read as text
        level, kind = "binary", "raw answers and a key"
    else:
        level = level or ("ratings" if _are_ratings(responses) else "binary")
        kind = "0 and 1" if level == "binary" else "ratings"
    others = f", no items: {format_names(groups.columns)}" if len(groups.columns) else ""
    recognised = f"{what} of {kind}: persons in {persons}, {len(chosen)} items{others}"
    silent = responses.isna().all(axis=1)
    if silent.any() and not silent.all() and not unanswered:
        names = format_names(responses.index[silent])
        recognised += f"; left out, for they answered nothing: {names}"
        kept = ~silent.to_numpy()
        responses, groups = responses[kept], groups[kept]
        raw = None if raw is None else raw[kept]
    try:
        ratings = level == "ratings"
        responses = check_responses(responses, ratings=ratings, unanswered=unanswered)
    except FrameError as error:
        raise FrameError(f"{error} (read as a {recognised})") from None
    return Answers(responses, raw, key, groups, recognised, level)


def _graded(raw: pd.DataFrame, key: pd.Series) -> pd.DataFrame:
    """Return raw answers as right (1) or wrong (0); NaN where there is none."""
    right = raw.to_numpy(object) == key.to_numpy(object)
    folded = raw.map(str.casefold, na_action="ignore").to_numpy(object)
    alike = folded == key.map(str.casefold).to_numpy(object)
    refuse(
        "items",
        raw.columns[(alike & ~right).any(axis=0)],
        "have answers that differ from the key in capital letters only; write both alike",
    )
    if not right.any():
        first = raw.columns[0]
        raise FrameError(
            f"nobody chose the right answer of any item: {first!r} has the key {key[first]!r} and "
            f"the answers {sorted(raw[first].dropna().unique())[:6]}"
        )
    return pd.DataFrame(right, raw.index, raw.columns).astype(float).where(raw.notna())


def _is_text(values: pd.Series) -> bool:
    """Return whether a column is text (country, sex, choices), and no cell of it a number."""
    cells = values.dropna().astype(str).str.strip()
    return len(cells) > 0 and not pd.to_numeric(cells, errors="coerce").notna().any()


def _are_ratings(responses: pd.DataFrame) -> bool:
    """Return whether all columns are whole numbers of few values, and some are not 0 and 1.

    A few such columns beside many of 0 and 1 are refused, for covariates (class, age) look so.
    """
    binary = responses.isin((0, 1, np.nan)).all()
    if not all(map(is_numeric, responses.dtypes)) or binary.all():
        return False
    whole = (responses.stack().dropna() % 1 == 0).all()
    if not whole or (responses.nunique() > CATEGORIES).any():
        return False
    few = binary.index[~binary] if binary.mean() > 0.5 else []
    refuse("columns", few, "hold other numbers than 0 and 1; drop= what is no item, or give level=")
    return True
