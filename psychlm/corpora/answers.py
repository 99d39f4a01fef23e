"""Answers of persons to items, from a table or from logs of an evaluation program.

A file is read in three steps: its cells (:mod:`psychlm.corpora._sniff`), its format (``FORMATS``
below, or :mod:`psychlm.corpora._logs`), and the roles of its columns, of which each can be told
(:mod:`psychlm.roles`). What was taken for what is said in ``recognised``.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from psychlm.corpora import _logs
from psychlm.corpora._sniff import Table, numbers_of, read_table, unique_columns
from psychlm.frames import (
    FrameError,
    Repeated,
    check_responses,
    format_names,
    is_numeric,
    label_of,
    refuse,
)

# names of columns of a long table, small letters; the first that is there is taken
PERSONS = ["person", "participant", "student", "respondent", "user", "worker", "model"]
PERSONS += [*(f"{name}_id" for name in PERSONS), "responseid", "userid", "uuid"]
PERSONS += ["subject", "subject_id", "id"]
ITEMS = ["item", "question", "item_id", "question_id", "sample_id", "doc_id", "instance_id"]
VALUES = ["correct", "score", "rating", "is_correct", "acc", "accuracy", "grade", "value", "resp"]
VALUES += ["evaluation.is_correct", "evaluation.score", "response", "answer"]
RAW = ["response", "answer", "resp"]  # what a key grades, also beside grades
REPEATS = ["repeat", "epoch", "attempt", "trial", "wave", "rater", "seed", "run", "replicate"]
# columns that describe persons or their session, whatever their values; small letters
DESCRIBE = """age birthyear born class cohort complete completed condition country date duration
education email end enddate ethnicity female finished form gender grade group ip
ipaddress language level major male mark marks name nationality points progress race
region school score section sex start startdate state status sum time timestamp total
treatment treated version year points sumscore""".split()  # noqa: SIM905
# columns that Qualtrics writes for every session
META = """startdate enddate status ipaddress progress finished recordeddate responseid
externalreference recipientlastname recipientfirstname recipientemail locationlatitude
locationlongitude distributionchannel userlanguage duration(inseconds)""".split()  # noqa: SIM905
# cells that are no answer; with a key "None" may be a choice
EMPTY = ["", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "#NULL!"]
DIGITS = frozenset("0123456789")
MARKS = [".", "-", "–", "*", "**"]  # blanks and double marks of scanners and programs
# words in the names of rows that hold sums or means of the others, and words beside them
SUMS = "average avg mean median sd std sum total totals maximum minimum possible correct deviation"
SUMS += (
    " summe mittelwert durchschnitt gesamt gesamtdurchschnitt richtig moyenne promedio marks points"
)
BESIDE = "class overall grand n % percent points standard max min score marks a b c d of all the"
CATEGORIES = 12  # different whole numbers that an item has at most
WAYS = (
    "a wide table has one row a person and one column an item; "
    f"a long table has a column for persons ({', '.join(PERSONS[:4])} ...), one for items "
    f"({', '.join(ITEMS[:3])} ...) and one for answers ({', '.join(VALUES[:4])} ...), or others "
    "that person=, item= and answer= name"
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


@dataclass
class Shape:
    """A table as a format leaves it: with persons and items as far as the format says."""

    table: pd.DataFrame
    layout: str
    person: str | None = None
    items: list[str] | None = None  # those that the format knows
    no_items: list[str] = field(default_factory=list)  # columns that describe a session
    groups: list[str] = field(default_factory=list)
    repeat: str | None = None
    notes: list[str] = field(default_factory=list)


# ---- formats of tables: how each is recognised, and what its columns are ----


@dataclass(frozen=True)
class Format:
    """A format of tables: its name, how it is known, in words, and its function.

    The function returns a :class:`Shape`, or None where the table has another format.
    """

    name: str
    known_by: str
    shape: Callable[[pd.DataFrame], Shape | None]


def _points_of(cells: pd.Series, most: float) -> pd.Series:
    """Return points as 0 and 1 where they are none or all of ``most``; else as they are."""
    points = numbers_of(cells.mask(cells.isin([*MARKS, *EMPTY])))
    if not is_numeric(points):
        return cells
    share = points / most if most else points
    return share if share.dropna().isin((0, 1)).all() else points


def qualtrics(cells: pd.DataFrame) -> Shape | None:
    """Read Qualtrics: names, texts and import ids stand in three rows."""
    is_import = cells.head(2).apply(
        lambda row: row.astype(str).str.contains("ImportId").any(), axis=1
    )
    if not is_import.any():
        return None
    n_header = int(np.flatnonzero(is_import)[-1]) + 1
    table = unique_columns(cells).iloc[n_header:].reset_index(drop=True)
    person = next((name for name in table if _plain(name) == "responseid"), None)
    timing = (
        r".*_DO(_.*)?|.*(First|Last) Click|.*Page Submit|.*Click Count|.*_TEXT|SC\d+|PROLIFIC_PID"
    )
    session = [
        name
        for name in table
        if name != person and (_plain(name) in META or re.fullmatch(timing, str(name)))
    ]
    notes = [f"{n_header} rows of texts and import ids"]
    channel = next((name for name in table if _plain(name) == "distributionchannel"), None)
    if channel is not None:
        is_preview = table[channel].eq("preview")
        notes += [f"{is_preview.sum()} previews are no persons"] if is_preview.any() else []
        table = table[~is_preview].reset_index(drop=True)
    return Shape(table, "Qualtrics", person, no_items=session, notes=notes)


def survey_monkey(cells: pd.DataFrame) -> Shape | None:
    """Read SurveyMonkey: questions stand in the header, and their parts in the row below it."""
    header = list(cells.columns)
    if "Respondent ID" not in header or "Collector ID" not in header or not len(cells):
        return None
    names: list[str] = []
    question = ""
    for name, part in zip(header, cells.iloc[0], strict=True):
        question = name or question
        names.append(
            f"{question}: {part}" if isinstance(part, str) and part != "Response" else question
        )
    table = unique_columns(cells.iloc[1:].reset_index(drop=True).set_axis(names, axis=1))
    session = "Collector ID, Start Date, End Date, IP Address, Email Address, First Name, Last Name"
    no_items = [name for name in table if name in [*session.split(", "), "Custom Data 1"]]
    return Shape(table, "SurveyMonkey", "Respondent ID", no_items=no_items)


def canvas(cells: pd.DataFrame) -> Shape | None:
    """Read Canvas's Student Analysis: behind each question stand its points."""
    header = list(cells.columns)
    questions = [place for place, name in enumerate(header) if re.match(r"\d+: ", name)]
    if not {"name", "id", "attempt"} <= set(header) or not questions:
        return None
    columns: dict[str, pd.Series] = {}
    for place in questions:
        if place + 1 < len(header) and re.fullmatch(r"[\d.]+", header[place + 1]):
            points = _points_of(cells.iloc[:, place + 1], float(header[place + 1]))
            columns[header[place]] = points
    about = [name for name in header if not re.match(r"\d+: |[\d.]+$", name)]
    table = cells[about].assign(**columns)
    no_items = [name for name in about if name not in ("id", "section", "attempt")]
    return Shape(
        table, "Canvas Student Analysis", "id", list(columns), no_items, ["section"], "attempt"
    )


def moodle(cells: pd.DataFrame) -> Shape | None:
    """Read Moodle's grades (``Q. 1 /1.00``) or responses (``Response 1``, ``Right answer 1``)."""
    cells = unique_columns(cells)
    header = list(cells.columns)
    graded = {name: re.fullmatch(r"[^\d/]{1,12}(\d+)\s*/\s*([\d.,]+)", name) for name in header}
    responses = [
        name for name in header if re.fullmatch(r"(Response|Antwort|Réponse|Respuesta) \d+", name)
    ]
    items = [name for name, match in graded.items() if match] or responses
    total = [
        name for name in header if re.fullmatch(r"[^\d/]+/\s*[\d.,]+", name) and name not in items
    ]
    if not items or not (total or responses):
        return None
    emails = [name for name in header if cells[name].astype(str).str.contains("@").any()]
    names = [name for name in header[:2] if name not in (*items, *total)]
    person = emails[0] if emails else "person"
    table = cells if emails else cells.assign(person=cells[names].agg(" ".join, axis=1))
    # the last row, an average, belongs to nobody
    is_person = table[person].notna() & ~cells[header[0]].astype(str).str.contains(
        "average|schnitt"
    )
    notes = [f"row {name!r} is no person" for name in cells.loc[~is_person, header[0]]]
    table = table[is_person].reset_index(drop=True)
    for name in items:
        match = graded[name]
        if match:
            table[name] = _points_of(table[name], float(match[2].replace(",", ".")))
        else:
            right = "Right answer " + name.split(" ")[1]
            if right in table:
                asked = table[name].notna() & ~table[name].isin(MARKS)
                table[name] = table[name].eq(table[right]).astype(float).where(asked)
    others = [name for name in table if name not in (*items, person)]
    table["attempt"] = table.groupby(person).cumcount() + 1
    kind = "responses" if items == responses else "grades"
    return Shape(table, f"Moodle {kind}", person, items, others, repeat="attempt", notes=notes)


def google_forms(cells: pd.DataFrame) -> Shape | None:
    """Read Google Forms: a time stamp first; a quiz has columns ``[Score]``."""
    first = cells.columns[0].lower()
    if first not in ("timestamp", "zeitstempel", "horodateur", "marca temporal"):
        return None
    cells = unique_columns(cells)
    header = list(cells.columns)
    scored = [name for name in header if name.endswith("[Score]")]
    table = cells.copy()
    for name in scored:
        parts = table[name].astype(str).str.extract(r"([\d.]+)\s*/\s*([\d.]+)").astype(float)
        most = parts[1].max()
        table[name] = (parts[0] / most if parts[0].isin((0, most)).all() else parts[0]).where(
            parts[0].notna()
        )
    unanswered = [name for name in header if name.endswith("[Feedback]")]
    person = next((n for n in header if n.lower() in ("email address", "username", "email")), None)
    no_items = [
        header[0],
        *unanswered,
        *(n for n in header if n.lower() in ("score", "total score")),
    ]
    if scored:
        no_items += [name for name in header if f"{name} [Score]" in scored]
        items = [name for name in scored if name.lower() != "total score [score]"]
        return Shape(table, "Google Forms quiz", person, items, [*no_items])
    return Shape(table, "Google Forms", person, None, no_items)


def long(cells: pd.DataFrame) -> Shape | None:
    """Read a long table: a row for each answer."""
    if not _is_long(cells.columns):
        return None
    return Shape(unique_columns(cells), "long table")


FORMATS = [
    Format(
        "SurveyMonkey",
        "`Respondent ID`, `Collector ID`; parts of questions stand in the second row",
        survey_monkey,
    ),
    Format("Qualtrics", 'a row of `{"ImportId": ...}` under the header', qualtrics),
    Format(
        "Canvas Student Analysis", "`name, id, ..., attempt`, `10101: Question`, its points", canvas
    ),
    Format(
        "Moodle grades and responses", "`Q. 1 /1.00`, or `Response 1` (`Right answer 1`)", moodle
    ),
    Format("Google Forms", "`Timestamp` first; a quiz has `Question [Score]`", google_forms),
    Format(
        "a long table (Item Response Warehouse, mirt, R's reshape ...)",
        f"a column for persons (`{', '.join(PERSONS[:3])}` ...), items (`{', '.join(ITEMS[:3])}` "
        "...) and answers (`correct, score, resp` ...); `cov_*` and what is the same in all rows "
        "of a person are groups; `repeat`, `wave`, `rater` ... number repeats",
        long,
    ),
    Format(
        "a wide table (R's write.csv, Excel, SPSS, scanners ...)",
        "a row a person, a column an item; a row named KEY holds the right answers",
        lambda cells: Shape(unique_columns(cells), "wide table"),
    ),
]


def _plain(name: object) -> str:
    """Return a name in small letters, without blanks and marks."""
    return re.sub(r"[\W_]+", "", str(name).lower())


# ---- reading ----


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

    Recognised are tables (CSV and its relatives, Excel, Parquet, SPSS) in the formats of
    ``FORMATS``, py-irt's JSON lines, and logs of evaluation programs. What is told wins over what
    would be guessed. A file that breaks the contract of responses is a :class:`FrameError`.

    Parameters
    ----------
    path : path
        A file, or a folder of logs.
    person : str, optional
        The column of persons; "rows" numbers the rows.
    items, drop : sequences of str
        The columns that are items; and those that are read as nothing.
    group : str or sequence of str
        Columns that describe persons, and are never items.
    item, answer : str, optional
        The columns of items and of answers in a long table.
    level : "binary", "ratings", "mixed" or "scores", optional
        What the answers are: 0 and 1, ratings, both, or any numbers; found from the values unless
        given.
    key : path, mapping or Series, optional
        The right answer of each item, or a file with a column for items and one for the key.
        Several right answers are separated by ``|``, a comma or a semicolon, or stand in several
        rows.
    missing : sequence
        Codes of missing answers, such as 99 or "NA", beside empty cells and ``. - *``.
    labels : mapping, optional
        Numbers of answers in words: ``{"Disagree": 1, "Agree": 2}``.
    reverse : sequence of str
        Rated items that are turned: lowest plus highest rating minus the answer.
    repeat : str, optional
        The column that numbers repeated answers; "rows" counts them in the order of the file;
        "first" or "latest" takes one.
    metric, filter, task : str, optional
        Of logs: what grades, which filter, which tasks. ``filter="COLUMN=VALUE"`` takes the rows
        of any table in which a column has a value.
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
    file = Path(path)
    if level not in (None, "binary", "ratings", "mixed", "scores"):
        raise ValueError(
            f"level {level!r} is unknown; choose 'binary', 'ratings', 'mixed', 'scores', or None"
        )
    told: dict[str, Any] = {
        "person": person,
        "items": None if items is None else list(items),
        "drop": list(drop),
        "groups": [group] * bool(group) if isinstance(group, str) else list(group),
        "item": item,
        "answer": answer,
        "level": level,
        "missing": list(missing),
        "labels": dict(labels or {}),
        "reverse": list(reverse),
        "repeat": repeat,
        "filter": filter,
        "unanswered": unanswered,
    }
    read_as: list[str] = []
    tasks = [task] * bool(task) if isinstance(task, str) else list(task)
    try:
        if file.is_dir() or file.suffix in (".json", ".eval") or _is_log(file):
            found, notes = _logs.read(file)
            layout = f"logs of {' and '.join(found['layout'].unique())}"
            rows, notes = _logs.select(
                found,
                notes,
                metric=metric,
                filter=filter,
                task=tasks,
                repeat=repeat,
                fractional=level == "scores",
            )
            wide = rows.pivot(index=["person", "repeat"], columns="item", values="score")
            wide = wide[rows["item"].unique()].reset_index("repeat", drop=True)
            shape = Shape(wide, layout, items=list(wide.columns), notes=notes)
            return _answers(shape, None, told | {"level": level or "binary"})
        right = None if key is None else read_key(key, encoding)
        is_json = file.suffix == ".jsonl"
        values_of = bool(told["labels"])
        table = _json_lines(file) if is_json else read_table(file, encoding, labels=values_of)
        read_as = table.notes
        return _answers(_shaped(table, right, told), right, told)
    except FileNotFoundError:
        raise FrameError(f"{file} does not exist; name a table or a folder of logs") from None
    except FrameError as error:
        named = str(error).startswith(str(file))
        guessed = [note for note in read_as if note.startswith("read as")]
        hint = f" ({guessed[0]}; encoding= names another)" if guessed else ""
        raise FrameError((str(error) if named else f"{file}: {error}") + hint) from None
    except ImportError as error:
        extra = "pyreadstat" if file.suffix == ".sav" else "openpyxl"
        raise FrameError(
            f"{file} needs the package {extra} ({error}); pip install {extra}, or save it as CSV"
        ) from error
    # pandas: ValueErrors, Arrow and zip: OSErrors
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise FrameError(f"{file} cannot be read as a table or a log ({error})") from error


def read_key(key: Key, encoding: str | None = None) -> pd.Series:
    """Return the right answers by item; a file has a column for items and one for the key.

    Several right answers of an item are joined by ``|``.

    >>> read_key({"q1": 2.0}).to_dict()
    {'q1': '2'}
    """
    if isinstance(key, (str, Path)):
        cells = read_table(key, encoding).cells
        if cells.shape[1] != 2:
            columns = format_names(cells.columns)
            raise FrameError(f"the key {key} has the columns {columns}; expected two, item and key")
        key = cells.set_index(cells.columns[0]).squeeze(axis=1)
    right = _as_text(pd.Series(key, dtype=object)).rename("key")
    right.index = right.index.astype(str).str.strip()
    refuse("items", right.index[right.isna()], "of the key have no answer; leave them out of it")
    return right.groupby(level=0, sort=False).agg(lambda cells: "|".join(dict.fromkeys(cells)))


def _as_text(values: pd.Series) -> pd.Series:
    """Return answers as stripped text; 2.0 and 2 are the same choice, and empty cells are NaN."""

    def text_of(one: object) -> object:
        text = str(one).strip()
        try:
            number = float(text)
        except ValueError:
            return text or np.nan
        return str(int(number) if number.is_integer() else number)

    different = pd.Series(values.dropna().unique(), dtype=object)
    text = dict(zip(different, different.map(text_of), strict=True))
    return values.astype(object).map(text, na_action="ignore")


def _is_log(file: Path) -> bool:
    """Return whether lines of JSON are those of an evaluation program, and no table."""
    if file.suffix != ".jsonl":
        return False
    first = _records(file)[0]
    is_table = "responses" in first or (_is_long(first) and "doc_id" not in first)
    return not is_table or "evaluation" in first


def _records(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one on each line, or of its first line where none is."""
    import json

    lines = file.read_text(encoding="utf-8-sig").split("\n")
    records = []
    for line in filter(str.strip, lines):
        try:
            records.append(json.loads(line))
        except ValueError:  # a line that is cut off; readers of logs name it
            continue
    return records if records and all(isinstance(one, dict) for one in records) else [{}]


def _is_long(names: Iterable[str]) -> bool:
    """Return whether there are a person, an item and a grade under names of a long table."""
    plain = {_plain(name) for name in names}
    return all(plain & {_plain(name) for name in known} for known in (PERSONS, ITEMS, VALUES))


def _json_lines(file: Path) -> Table:
    """Read lines of JSON: py-irt's ``{"subject_id": ..., "responses": {...}}``, or rows."""
    records = _records(file)
    if "responses" not in records[0]:
        return Table(pd.DataFrame(records))
    person = next(name for name in records[0] if name != "responses")
    rows = [{person: record[person], **record["responses"]} for record in records]
    return Table(pd.DataFrame(rows), ["py-irt's lines"])


def _shaped(table: Table, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a table with persons in its index: as its format has them, or as they are told."""
    cells = table.cells
    items = told["items"]
    wide_items = items is not None and set(items) <= set(cells.columns)
    shape = None
    for one in FORMATS:
        if one.shape is long and wide_items:
            continue
        shape = shape or one.shape(cells)
    assert shape is not None  # the last format takes every table
    shape.notes += table.notes
    header = list(shape.table.columns)
    if not len(shape.table) or not header:
        raise FrameError(f"the table is empty, header {header}; expected: {WAYS}")
    if told["filter"]:
        name, equals, value = told["filter"].partition("=")
        if not equals or name not in header:
            raise FrameError(
                f"filter {told['filter']!r} is no COLUMN=VALUE; the file has the columns "
                f"{format_names(header, 40)}"
            )
        kept = shape.table[name].map(label_of, na_action="ignore").eq(value)
        if not kept.any():
            there = format_names(shape.table[name].dropna().unique())
            raise FrameError(f"no row has {value!r} in {name!r}, which has {there}")
        shape.table = shape.table[kept].reset_index(drop=True)
        shape.notes.append(f"{kept.sum()} of {len(kept)} rows, with {told['filter']}")
    is_long = shape.layout == "long table" or told["item"]
    named = [*told["groups"], *told["drop"], *told["reverse"], *(items or ())]
    named += [name for name in (told["person"], told["item"], told["answer"]) if name]
    if is_long:
        named = [name for name in named if name not in (*told["reverse"], *(items or ()))]
    repeat = told["repeat"]
    named += [repeat] if repeat and repeat not in ("rows", "first", "latest") else []
    unknown = [name for name in named if name not in header and name != "rows"]
    if unknown:
        raise FrameError(
            f"there is no column {format_names(unknown)}; the file has {format_names(header, 40)}"
        )
    shape.groups += [name for name in told["groups"] if name not in shape.groups]
    return _wide(shape, key, told) if is_long else _with_persons(shape, key, told)


def _wide(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a long table as a wide one; rows of one person are that person's repeats."""
    table = shape.table
    by_plain = {_plain(name): name for name in table.columns}

    def known(names: Sequence[str]) -> list[str]:
        return [by_plain[_plain(name)] for name in names if _plain(name) in by_plain]

    values = VALUES if key is None else [*RAW, *VALUES]
    item = told["item"] or next(iter(known(ITEMS)), None)
    answer = told["answer"] or next((name for name in known(values) if name != item), None)
    persons = [name for name in known(PERSONS) if name != item]
    person = told["person"] or (persons[0] if persons else None)
    for what, name in (("person", person), ("item", item), ("answer", answer)):
        if name is None:
            raise FrameError(f"no column is known as that of {what}s: name it, {what}=")
    for name in (person, item):
        table[name] = [label_of(one).strip() if pd.notna(one) else "" for one in table[name]]
        nameless = table[name].isin(["", "NA"])
        refuse("rows", np.flatnonzero(nameless) + 1, f"have no name in {name!r} (empty, or NA)")
    others = [name for name in table if name not in (person, item, answer, *told["drop"])]
    repeats = [name for name in others if name.lower() in REPEATS]
    repeat = told["repeat"]
    if repeat in (None, "first", "latest"):
        column = next(iter(repeats), None)
    else:
        column = None if repeat == "rows" else repeat
    twice = table.duplicated([person, item, *([column] if column else [])])
    if twice.any() and repeat is None:
        pair = table.loc[twice, [person, item]].iloc[0].tolist()
        raise FrameError(
            f"{int(twice.sum())} answers to the same item by the same person, first {pair} in "
            f"columns {[person, item]}; if they are repeated answers, name what numbers them "
            "(repeat=COLUMN, or repeat=rows for the order of the file), or take one: repeat=first"
        )
    answered = table.drop_duplicates([person, item], keep="last" if repeat == "latest" else "first")
    n_more = len(table) - len(answered)
    if repeat in ("first", "latest"):
        shape.notes.append(f"{n_more} further answers: the {repeat} one counts")
        table = answered
    elif n_more:
        most = table.groupby([person, item]).size().max()
        shape.notes.append(f"repeated answers by {column or 'rows'}: up to {most} to an item")
    place = table.groupby([person, item]).cumcount()
    wide = table.assign(place=place).pivot(index=[person, "place"], columns=item, values=answer)
    wide = wide[table[item].unique()].reset_index("place", drop=True).rename(columns=str)
    # what is the same in all of a person's rows describes the person; in an item's, the item
    by_person = table.groupby(person)
    n_values = {name: by_person[name].nunique(dropna=False).max() for name in others}
    groups = [name for name in others if n_values[name] == 1 and name != column]
    first = by_person[groups].first() if groups else pd.DataFrame(index=wide.index.unique())
    clash = [name for name in groups if name in wide.columns]
    wide = wide.join(first.rename(columns={name: f"{name} (person)" for name in clash}))
    unused = [name for name in others if name not in (*groups, column)]
    if unused:
        shape.notes.append(f"columns not used: {', '.join(unused)}")
    shape.table = wide.rename_axis(index=person)
    names = [f"{name} (person)" if name in clash else name for name in groups]
    shape.items = [name for name in wide.columns if name not in names]
    shape.groups = names
    shape.layout = f"long table of {answer!r}"
    shape.person = person
    return shape


def _with_persons(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Shape:
    """Return a wide table with persons in its index, numbered where it has none."""
    table = shape.table
    taken = {*(told["items"] or ()), *(shape.items or ()), *([] if key is None else key.index)}
    person = told["person"] or shape.person
    if person is None:
        candidates = [name for name in table if name not in taken and name not in told["groups"]]
        named = [name for name in candidates if name.lower() in PERSONS or not name]
        first = table.columns[0]
        stem = re.sub(r"\d+$", "", first)
        is_numbered = stem != first and sum(str(n).startswith(stem) for n in table.columns) > 2
        values = table[first].dropna()
        unnamed = first == "column 1" or first.startswith("Unnamed")
        if named and table[named[0]].notna().any():
            person = named[0]
        elif first in candidates and not is_numbered:
            is_name = values.is_unique and len(values) == len(table)
            person = first if is_name or unnamed else None
    if person == "rows" or person is None:
        names = pd.Index(np.arange(1, len(table) + 1).astype(str), name="person")
        shape.person = None
        shape.groups += [name for name in table if name.lower() in PERSONS and name not in taken]
        shape.notes.insert(0, "persons are numbered")
    else:
        refuse(
            "rows",
            np.flatnonzero(table[person].isna()) + 1,
            f"have no name in {person!r}; person=rows numbers them",
        )
        names = pd.Index([label_of(one).strip() for one in table[person]], name=person)
        table = table.drop(columns=person)
        shape.person = person
    shape.table = table.set_axis(names, axis=0)
    repeat = told["repeat"]
    if repeat in ("first", "latest"):
        kept = ~names.duplicated(keep="last" if repeat == "latest" else "first")
        shape.notes.append(f"{int((~kept).sum())} further rows of persons: the {repeat} one counts")
        shape.table = shape.table[kept]
    elif names.has_duplicates and not repeat and shape.repeat is None:
        refuse(
            "persons",
            names[names.duplicated()],
            "occur more than once; if these are repeated answers, repeat=rows counts them; "
            "person=rows takes each row for a person",
        )
    elif names.has_duplicates:
        most = names.value_counts().max()
        shape.notes.append(
            f"repeated answers by {repeat or shape.repeat}: up to {most} rows a person"
        )
    elif repeat not in (None, "rows"):
        shape.notes.append(f"no person occurs twice: {repeat!r} numbers nothing")
    for name in (shape.repeat, repeat):
        if name in shape.table:
            shape.table = shape.table.drop(columns=name)
    return shape


# ---- roles of columns, and grades ----


def _answers(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> Answers:
    """Separate items from groups, grade them, and say what was taken for what."""
    level = told["level"]
    notes = shape.notes
    shape.table = shape.table.drop(columns=told["drop"], errors="ignore").rename_axis("person")
    key = _key_of_row(shape, key, told)
    candidates = [n for n in shape.table if n not in (*shape.groups, *shape.no_items)]
    given = told["items"] if told["items"] is not None else shape.items
    of_key = [] if key is None else [n for n in key.index if given is None or n in given]
    lacking = [name for name in of_key if name not in shape.table.columns]
    if lacking:
        header = format_names(shape.table.columns, 40)
        raise FrameError(
            f"there is no column {format_names(lacking)}, which the key has; the file has {header}"
        )
    as_written = shape.table
    # Columns of digits are numbers at once: the rules below look at the texts of each column.
    digits = [
        name
        for name in candidates
        if not (told["labels"] or is_numeric(as_written[name]))
        and DIGITS.issuperset(as_written[name].dropna().unique())
    ]
    shape.table = as_written.astype(dict.fromkeys(digits, float))
    shape.table, marked = _mark_missing(shape.table, candidates, told["missing"])
    wanted = [name for name in given or candidates if name not in of_key]
    numbers, logical, words, left_out = _numbers(shape, wanted, told["labels"])
    counts = [name for name in numbers if _plain(name) in ("freq", "frequency", "count", "counts")]
    if given is None and counts and level != "scores" and numbers[counts[0]].gt(1).any():
        raise FrameError(
            f"column {counts[0]!r} may count the persons of each row's pattern; repeat the rows "
            f"(table.loc[table.index.repeat(table[{counts[0]!r}])]), or leave it out: "
            f"drop={counts[0]}"
        )
    if given is not None:
        items = list(numbers)
    else:
        certain = list(numbers) if level == "scores" else logical
        items, why = _items_among(numbers, certain)
        if key is not None:
            # beside a key only points from 0 on are items of their own
            points = [n for n in items if numbers[n].min() == 0 and numbers[n].nunique() > 2]
            why |= {name: "not in the key" for name in items if name not in points}
            items = points
        left_out |= why
    # few different texts in many columns are answers
    raw_words = [
        name
        for name in words
        if given is not None
        or (shape.table[name].nunique() <= CATEGORIES and _plain(name) not in DESCRIBE)
    ]
    if told["unanswered"]:
        blank = [
            n for n, why in left_out.items() if why == "no answers" and _plain(n) not in DESCRIBE
        ]
        numbers = numbers.assign(**dict.fromkeys(blank, np.nan))
        items = [*items, *blank]
        left_out = {name: why for name, why in left_out.items() if name not in blank}
    n_items = len(items) + len(of_key)
    if raw_words and (given is not None or len(raw_words) >= max(n_items, 1)):
        raise FrameError(_needs_key(shape.table, raw_words))
    if not n_items:
        reasons = ", ".join(f"{name} ({why})" for name, why in left_out.items()) or "all are text"
        raise FrameError(f"no column is an item: {reasons}; name them with items=; {WAYS}")
    raw = None
    responses = numbers[items]
    if key is not None and of_key:
        raw = shape.table[of_key].apply(_as_text)
        graded = _graded(raw, key, notes)
        responses = pd.concat([graded, responses], axis=1)
    responses = responses[[name for name in shape.table if name in responses]]
    is_binary = responses.isin((0, 1)).where(responses.notna(), True).all()
    points = list(is_binary.index[~is_binary])
    few_points = len(points) <= len(is_binary) / 2
    if level is None:
        level = "ratings" if points and not few_points else "mixed" if points else "binary"
    elif level == "binary" and points and few_points and given is None:
        left_out |= {name: f"{_span(responses[name])}, not 0 and 1" for name in points}
        responses = responses.drop(columns=points)
        points = []
    marks = sum((marked.get(name, Counter()) for name in responses), Counter())
    said = [f"{n} {mark!r}" for mark, n in sorted(marks.items()) if mark not in ("", "NA")]
    notes += [f"missing: {', '.join(said)}"] if said else []
    if level != "scores":
        _warn_of_codes(responses, notes)
    _reverse(responses, told["reverse"], notes)
    if not told["unanswered"]:
        blank = list(responses.columns[responses.isna().all()])
        left_out |= dict.fromkeys(blank, "no answers")
        responses = responses.drop(columns=blank)
        if not len(responses.columns):
            raise FrameError("nobody answered any item")
    shape.table = as_written
    return _frames(shape, responses, raw, key, level, left_out, told)


def _key_of_row(shape: Shape, key: pd.Series | None, told: dict[str, Any]) -> pd.Series | None:
    """Return the key, which a row named KEY may hold; the row is no person."""
    names = shape.table.index.astype(str).str.strip()
    if shape.person and not shape.items:
        words = [set(re.findall(r"[^\W\d_]+|%", name.lower())) for name in names]
        known = {*SUMS.split(), *BESIDE.split()}
        is_sum = np.array([bool(of & set(SUMS.split())) and of <= known for of in words])
        if is_sum.any() and not is_sum.all():
            shape.notes.append(f"rows {format_names(names[is_sum])} are no persons")
            shape.table = shape.table[~is_sum]
            names = names[~is_sum]
    is_key = names.str.fullmatch(r"(?i)(answer[ _]?)?key|lösung(en)?|corrigé|solution")
    if is_key.sum() != 1 or shape.items:
        return key
    row = shape.table[is_key].iloc[0].drop(shape.groups)
    shape.table = shape.table[~is_key]
    if key is not None:
        shape.notes.append(f"row {names[is_key][0]!r}, a key, is no person")
        return key
    shape.notes.append(f"row {names[is_key][0]!r} is the key")
    return _as_text(row).dropna().rename("key")


def _mark_missing(
    table: pd.DataFrame, names: Sequence[str], missing: Sequence[object]
) -> tuple[pd.DataFrame, dict[str, Counter]]:
    """Return a table whose marks and codes of missing answers are missing, and their counts."""
    codes = set(_as_text(pd.Series([*missing], dtype=object)))
    counts: dict[str, Counter] = {}
    columns: dict[str, pd.Series] = {}
    for name in names:
        cells = table[name]
        if is_numeric(cells) and not codes:
            continue
        text = _as_text(cells)
        is_missing = text.isin(codes if is_numeric(cells) else {*codes, *MARKS, *EMPTY})
        if is_missing.any():
            counts[name] = Counter(text[is_missing])
            columns[name] = cells.mask(is_missing)
    return table.assign(**columns), counts


def _numbers(
    shape: Shape, names: Sequence[str], labels: Mapping[str, float]
) -> tuple[pd.DataFrame, list[str], list[str], dict[str, str]]:
    """Return the columns that are numbers, those of logical values, those of text, and no answers.

    A column most of whose cells are numbers is one of numbers; other cells of it are missing, with
    a warning.
    """
    numeric: dict[str, pd.Series] = {}
    logical: list[str] = []
    words: list[str] = []
    empty: dict[str, str] = {}
    no_numbers: Counter[str] = Counter()
    number_of = {str(label).strip().casefold(): number for label, number in labels.items()}
    for name in names:
        column = shape.table[name]
        if not is_numeric(column) or column.dtype == bool:
            cells = column.astype("str").str.strip().str.casefold().where(column.notna())
            if (
                cells.isin(["true", "false"]).where(cells.notna(), True).all()
                and cells.notna().any()
            ):
                logical.append(name)
                column = cells.map({"true": 1.0, "false": 0.0})
            elif cells.isin(list(number_of)).any():
                column = cells.map(number_of).fillna(pd.to_numeric(cells, errors="coerce"))
                unknown = shape.table[name][column.isna() & cells.notna()].unique()
                refuse("answers", unknown, f"of {name!r} have no number in labels=; add them")
        column = numbers_of(column)
        if not is_numeric(column):
            parsed = pd.to_numeric(column, errors="coerce")
            if parsed.count() <= column.count() / 2:
                if column.notna().any():
                    words.append(name)
                else:
                    empty[name] = "no answers"
                continue
            no_numbers.update(column[parsed.isna() & column.notna()].astype(str))
            column = parsed
        if column.notna().any():
            numeric[name] = column.astype(float)
        else:
            empty[name] = "no answers"
    if no_numbers:
        counted = ", ".join(f"{n} {text!r}" for text, n in no_numbers.most_common(8))
        shape.notes.append(f"no numbers, and missing: {counted}")
        warnings.warn(f"cells of numbers hold text and are missing: {counted}", stacklevel=2)
    return pd.DataFrame(numeric, index=shape.table.index), logical, words, empty


def _items_among(numbers: pd.DataFrame, certain: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the columns of numbers that are items, and why each other one is none.

    Of columns that nobody named, those whose names say that they describe persons are none, and
    those whose values differ from what most have: other numbers than 0 and 1 beside items of 0 and
    1, but for points from 0 on; other whole numbers than those of most ratings. Where most names
    end in a number, a column of few values whose name does not is a group.
    """
    if not len(numbers.columns):
        return [], {}
    low = numbers.min()
    high = numbers.max()
    n_values = numbers.nunique()
    whole = (numbers % 1 == 0).where(numbers.notna(), True).all()
    stems = pd.Series({n: re.sub(r"\W*\d+\W*$", "", str(n)) for n in numbers}, dtype=str)
    is_numbered = (stems != stems.index.astype(str)) & stems.groupby(stems).transform("size").gt(2)
    most_numbered = is_numbered.mean() >= 0.5
    why: dict[str, str] = {}
    for name in numbers:
        words = re.split(r"[\W_]+", str(name).lower())
        if not is_numbered[name] and {"".join(words), words[0], words[-1]} & set(DESCRIBE):
            why[name] = f"{n_values[name]} values"
        elif not whole[name] or n_values[name] > CATEGORIES:
            why[name] = f"{n_values[name]} values, {_span(numbers[name])}"
    left = [name for name in numbers if name not in why]
    binary = [name for name in left if low[name] >= 0 and high[name] <= 1]
    others = [name for name in left if not (most_numbered and is_numbered[name])]
    if 2 * len(binary) >= len(left):
        for name in left:
            if name not in binary and low[name] != 0:
                why[name] = _span(numbers[name])
            elif name in binary and most_numbered and not is_numbered[name]:
                why[name] = "0 and 1 under another name than most"
    else:
        # the ends of the scale, which a fifth of the items reach
        rated = [name for name in left if is_numbered[name]] if most_numbered else left
        rare = len(rated) // 5 if len(rated) > 2 else 0
        highest = sorted(high[rated], reverse=True)[rare] if rated else np.inf
        lowest = sorted(low[rated])[rare] if rated else -np.inf
        for name in others:
            two_of_many = n_values[name] == 2 and highest - lowest > 2 and len(numbers) >= 30
            outside = low[name] < lowest or high[name] > highest
            outside |= n_values[name] == 1 and len(numbers) >= 20
            if most_numbered or outside or two_of_many:
                why[name] = _span(numbers[name])
    items = [name for name in numbers if name not in why or name in certain]
    # the sum of the other items is no further item
    sums = numbers[items].sum(axis=1)
    for name in [name for name in others if name in items and n_values[name] > 2]:
        if len(items) > 3 and (2 * numbers[name]).eq(sums).all():
            items.remove(name)
            why[name] = "the sum of the others"
    return items, {name: reason for name, reason in why.items() if name not in items}


def _span(values: pd.Series) -> str:
    return f"{values.min():g} to {values.max():g}"


def _warn_of_codes(responses: pd.DataFrame, notes: list[str]) -> None:
    """Warn of whole numbers that lie apart from the others, as codes of missing answers do."""
    values = np.sort(pd.unique(responses.to_numpy().ravel()))
    values = values[np.isfinite(values)]
    if len(values) < 3 or (values % 1).any():
        return
    # the longest run of neighbours is the scale
    runs = np.split(values, np.flatnonzero(np.diff(values) > 2) + 1)
    counts = responses.stack().value_counts()
    scale = max(runs, key=lambda run: counts.reindex(run).sum())
    apart = ",".join(f"{value:g}" for run in runs if run is not scale for value in run)
    if apart:
        notes.append(
            f"values {apart} lie apart: if they stand for missing answers, missing={apart}"
        )
        warnings.warn(f"answers {apart} lie apart from the scale; see missing=", stacklevel=2)


def _reverse(responses: pd.DataFrame, reverse: Sequence[str], notes: list[str]) -> None:
    """Turn rated items in place: the ends of the scale together, less the answer."""
    if not reverse:
        return
    unknown = [name for name in reverse if name not in responses]
    have = format_names(responses.columns, 12)
    refuse("columns", unknown, f"of reverse= are no items; items are {have}")
    rated = [name for name in responses if not responses[name].isin((0, 1, np.nan)).all()]
    of_scale = responses[rated or list(responses)]
    ends = of_scale.min(axis=None) + of_scale.max(axis=None)
    responses[list(reverse)] = ends - responses[list(reverse)]
    notes.append(f"turned: {', '.join(reverse)} ({ends:g} minus the answer)")


def _frames(
    shape: Shape,
    responses: pd.DataFrame,
    raw: pd.DataFrame | None,
    key: pd.Series | None,
    level: str,
    left_out: dict[str, str],
    told: dict[str, Any],
) -> Answers:
    """Return answers without silent persons, with repeats counted, and described in one line."""
    no_answers = [name for name, why in left_out.items() if why == "no answers"]
    gone = {*responses.columns, *shape.no_items, *no_answers}
    described = shape.table[[name for name in shape.table if name not in gone]].apply(numbers_of)
    answered = responses.notna().any(axis=1).to_numpy()
    silent = tuple(pd.Index(responses.index[~answered]).difference(responses.index[answered]))
    if told["unanswered"]:
        answered = np.ones(len(responses), dtype=bool)
    elif not answered.any():
        raise FrameError("nobody answered any item")
    responses = responses[answered]
    groups = described[answered]
    raw = None if raw is None else raw[answered]
    values = _described(responses, level, key)
    result: pd.DataFrame | Repeated
    if responses.index.has_duplicates:
        rows = responses.rename_axis(columns="item").stack().rename("score").reset_index()
        result = Repeated.from_long(rows)
        groups = groups[~groups.index.duplicated()]
        values += f", {result.n.to_numpy().sum():,} answers"
        raw = None
    else:
        try:
            ratings = level != "binary"
            result = check_responses(responses, ratings=ratings, unanswered=told["unanswered"])
        except FrameError as error:
            raise FrameError(
                f"{error} (read as a {shape.layout} of {values}; ratings need ratings=True, or a "
                "model of ratings)"
            ) from None
    n_persons = responses.index.nunique()
    named = f" ({shape.person!r})" if shape.person else ""
    parts = [f"{n_persons:,} persons{named}", f"{responses.shape[1]:,} items ({values})"]
    few = [name for name in groups if groups[name].nunique() <= CATEGORIES]
    parts += [f"groups: {', '.join(few)}"] if few else []
    for name in told["groups"]:
        n_without = int(groups[name].isna().sum())
        parts += [f"{n_without} persons without {name}"] if n_without else []
    many = {name: why for name, why in left_out.items() if name not in few}
    many |= {n: f"{groups[n].nunique()} values" for n in groups if n not in (*few, *many)}
    away = [f"{name} ({why})" for name, why in list(many.items())[:12]]
    away += [f"and {len(many) - 12} more columns"] if len(many) > 12 else []
    away += [f"{len(shape.no_items)} columns of the session"] if shape.no_items else []
    away += [f"dropped: {', '.join(told['drop'])}"] if told["drop"] else []
    without = f"{len(silent)} persons without any answer: {format_names(silent)}"
    away += [without] if silent and not told["unanswered"] else []
    said = f"{shape.layout}: {', '.join(parts)}"
    said += f"; left out: {', '.join(away)}" if away else ""
    said += " (items= takes other columns)" if left_out and told["items"] is None else ""
    notes = [*shape.notes, without] if silent and told["unanswered"] else shape.notes
    said = " ".join("; ".join([said, *notes]).split())
    return Answers(result, raw, key, groups, said, level, silent)


def _described(responses: pd.DataFrame, level: str, key: pd.Series | None) -> str:
    """Return in words what the items' values are."""
    points = [name for name in responses if not responses[name].isin((0, 1, np.nan)).all()]
    by_key = " by key" if key is not None else ""
    if level == "scores" and points:
        return "scores"
    if not points:
        return f"0/1{by_key}"
    if level == "mixed":
        return "; ".join([f"0/1{by_key}", *(f"{n} {_span(responses[n])}" for n in points)])
    return f"ratings {_span(responses[points].stack())}"


def _needs_key(table: pd.DataFrame, words: list[str]) -> str:
    """Return the message about columns of text that may be answers."""
    # the texts that most of the columns share
    texts = [table[name].dropna().astype(str).str.strip() for name in words]
    in_columns = Counter(text for column in texts for text in column.unique())
    most = max(in_columns.values())
    found = [text for text, n in in_columns.most_common() if n > most / 2][:8]
    assigned = ",".join(f"{label}={number}" for number, label in enumerate(found, 1))
    return (
        f"columns {format_names(words)} hold text such as {found[0]!r}: raw answers need a key, "
        f"the right answer of each item (key=); words that stand for numbers need labels=, as "
        f"labels='{assigned}' in their order; if these are no answers, items= names those "
        f"that are; else {WAYS}; the header is {format_names(table.columns, 12)}"
    )


def _split(right: str, answers: pd.Series) -> list[str]:
    """Return several right answers of a key; none where the whole is a choice that was taken."""
    if answers.eq(right).any():
        return []
    parts = [part.strip() for part in re.split(r"[,;|/]", right)]
    return parts if len(parts) > 1 and all(parts) else []


def _graded(raw: pd.DataFrame, key: pd.Series, notes: list[str]) -> pd.DataFrame:
    """Return raw answers as right (1), wrong (0) or NaN; note what the key allows."""
    grades: dict[str, pd.Series] = {}
    several: list[str] = []
    folded: list[str] = []
    for name in raw.columns:
        answers = raw[name]
        right = key[name].split("|") if "|" in key[name] else _split(key[name], answers)
        several += [name] if right else []
        right = right or [key[name]]
        is_right = answers.isin(right)
        in_small = [one.casefold() for one in right]
        if not is_right.any() and answers.dropna().str.casefold().isin(in_small).any():
            folded.append(name)
            is_right = answers.str.casefold().isin(in_small)
        grades[name] = is_right.astype(float).where(answers.notna())
    graded = pd.DataFrame(grades)
    if not graded.eq(1).any(axis=None):
        first = raw.columns[0]
        raise FrameError(
            f"nobody chose the right answer of any item: {first!r} has the key {key[first]!r} and "
            f"the answers {sorted(raw[first].dropna().unique())[:6]}"
        )
    notes += [f"several right answers: {format_names(several)}"] if several else []
    notes += [f"capital letters do not count in {format_names(folded)}"] if folded else []
    return graded
