"""Tables of answers as programs export them: a table of formats, and what each has of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from psychlm.corpora._formats import USUAL, Format, find, plain, series_of
from psychlm.corpora._sniff import numbers_of, unique_columns, with_header_as_row
from psychlm.frames import format_names, is_numeric, label_of, refuse

# cells that are no answer; with a key "None" may be a choice
EMPTY = ["", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "#NULL!"]
MARKS = [".", "-", "–", "*", "**"]  # blanks and double marks of scanners and programs
# names of a series of columns (``Response 1, Right answer 1, Points 1, ...``): what a person
# chose, what is right, the points, and the most points
RESPONSE = "response antwort réponse respuesta risposta stu answer studentresponse".split()
RIGHT = (
    "rightanswer richtigeantwort bonneréponse réponsecorrecte réponsejuste respuestacorrecta "
    "rispostacorretta prikey primarykey correctanswer key answerkey"
).split()
POINTS = "points autoscore score pointsearned punkte mark".split()
MOST = "possiblepoints maxpoints pointspossible".split()
# points whose name tells the most that can be had: Moodle's "Q. 1 /1.00", Gradescope's
# "1: Motion (1.0 pts)"
NAMED_POINTS = re.compile(r"[^\d/]{1,12}\d+\s*/\s*([\d.,]+)|\d+(?:\.\d+)?: .*\(([\d.,]+) pts\)")
POINTS_OF = re.compile(r"(\w+) [-–] (.+)")  # Microsoft's "Points - Question"
CANVAS = re.compile(r"\d+: ")  # a question, behind which stand its points
LONG = "long table"


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
    filtered: list[str] = field(default_factory=list)  # columns of the filter
    notes: list[str] = field(default_factory=list)


def _points_of(cells: pd.Series, most: float | None = None) -> pd.Series:
    """Return points as 0 and 1 where they are none or all of the most; else as they are."""
    points = numbers_of(cells.mask(cells.isin([*MARKS, *EMPTY])))
    if not is_numeric(points):
        return cells
    share = points / (most or points.max() or 1)
    return share if share.dropna().isin((0, 1)).all() else points


def _question_of(name: str, header: Iterable[str]) -> str:
    """Return the column whose points stand in "Points - " and its name; "" if there is none."""
    match = POINTS_OF.fullmatch(name)
    return match[2] if match and plain(match[1]) in POINTS and match[2] in header else ""


def _graded(cells: pd.DataFrame, used: set[str]) -> dict[str, pd.Series]:
    """Return the columns that a program graded, by item; ``used`` gets the columns behind them."""
    graded: dict[str, pd.Series] = {}
    header = list(cells.columns)
    for place, name in enumerate(header):
        named = NAMED_POINTS.fullmatch(name)
        behind = header[place + 1] if place + 1 < len(header) else ""
        if named:
            told = float((named[1] or named[2]).replace(",", "."))
            graded[name] = _points_of(cells[name], told)
        elif CANVAS.match(name) and re.fullmatch(r"[\d.]+( \(column \d+\))?", behind):
            graded[name] = _points_of(cells[behind], float(behind.split(" ")[0]))
            used.add(behind)
        elif name.endswith("[Score]") and name.lower() != "total score [score]":  # "1.00 / 1"
            parts = cells[name].astype(str).str.extract(r"([\d.]+)\s*/\s*([\d.]+)").astype(float)
            graded[name] = _points_of(parts[0], parts[1].max())
            used.add(name.removesuffix("[Score]").strip())
        elif question := _question_of(name, header):
            graded[name] = _points_of(cells[name])
            used.add(question)
    # columns in parallel: what was answered, what is right, the points and the most points
    series = {plain(stem): columns for stem, columns in series_of(header).items()}
    response, right, points, most_points = (
        next((series[name] for name in names if name in series), {})
        for names in (RESPONSE, RIGHT, POINTS, MOST)
    )
    for number, name in response.items() if not graded else ():
        is_answered = cells[name].notna() & ~cells[name].isin([*MARKS, *EMPTY])
        if number in points:
            most = most_points.get(number)
            possible = None if most is None else float(numbers_of(cells[most]).max())
            given = cells[points[number]]
            if (manual := series.get("manualscore", {}).get(number)) is not None:
                given = cells[manual].fillna(given)
            graded[name] = _points_of(given, possible).where(is_answered)
        elif number in right:
            graded[name] = cells[name].eq(cells[right[number]]).astype(float).where(is_answered)
    for stem, columns in series.items():
        if stem not in RESPONSE and set(columns) & set(response):
            used.update(columns.values())
    return graded


def _responses(cells: pd.DataFrame) -> list[str]:
    """Return the columns of answers that are numbered."""
    series = {plain(stem): columns for stem, columns in series_of(cells).items()}
    return [column for name in RESPONSE for column in series.get(name, {}).values()]


def _qualtrics(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Leave out the rows of texts and import ids below the header, and previews."""
    texts = cells.head(2).astype(str)
    has_ids = texts.apply(lambda row: row.str.contains("ImportId").any(), axis=1)
    n_header = int(np.flatnonzero(has_ids)[-1]) + 1
    table = cells.iloc[n_header:].reset_index(drop=True)
    notes = [f"{n_header} rows of texts and import ids"]
    if channel := find(table, ["DistributionChannel"]):
        is_preview = table[channel].eq("preview")
        notes += [f"{is_preview.sum()} previews are no persons"] if is_preview.any() else []
        table = table[~is_preview].reset_index(drop=True)
    return table, notes


def _survey_monkey(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Join questions, which stand in the header, and their parts, which stand in the row below."""
    names: list[str] = []
    question = ""
    for name, part in zip(cells.columns, cells.iloc[0], strict=True):
        question = question if re.fullmatch(r"column \d+", name) else name
        is_part = isinstance(part, str) and part != "Response"
        names.append(f"{question}: {part}" if is_part else question)
    return unique_columns(cells.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)), []


def _moodle(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Name persons where there are no addresses, number attempts; the average is no person."""
    first, second = cells.columns[:2]
    is_average = cells[second].isna() & (cells.index == cells.index[-1])
    notes = [f"row {name!r} is no person" for name in cells.loc[is_average, first]]
    table = cells[~is_average].reset_index(drop=True)
    person = find(table, ADDRESS.split())
    if not person or table[person].isna().any():
        person = "person"
        table[person] = table[[first, second]].fillna("").agg(" ".join, axis=1)
    return table.assign(attempt=table.groupby(person).cumcount() + 1), notes


def _persons_in_columns(cells: pd.DataFrame) -> bool:
    """Return whether rows are items: the first column names them, and no column names persons."""
    first = cells.columns[0]
    others = [*names_of("person"), *USUAL["repeat"].split()]
    # right answers in words, beside grades of persons, are about the items
    grades = [n for n in cells if pd.to_numeric(cells[n].dropna(), errors="coerce").notna().all()]
    is_long = find(cells, others, [first]) or find(cells[grades], names_of("answer"), [first])
    return plain(first) in names_of("item") and cells[first].is_unique and not is_long


def _turned(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return rows of items as columns, without columns of words that no other column holds."""
    table = cells.set_index(cells.columns[0])
    values = {name: set(map(str, table[name].dropna())) for name in table}
    of_items = [
        name
        for name, own in values.items()
        if own.isdisjoint(set().union(*(values[other] for other in values if other != name)))
        and pd.to_numeric(table[name].dropna(), errors="coerce").isna().any()
    ]
    notes = []
    if of_items and len(of_items) < len(values):
        table = table.drop(columns=of_items)
        notes = [f"{format_names(of_items)}: about the items, left out"]
    turned = table.T.rename_axis("person").rename_axis(columns=None)
    return turned.rename(columns=str).reset_index(), notes


def _has(pattern: str) -> Callable[[pd.DataFrame], bool]:
    """Return a function that tells whether a column has a name of this pattern."""
    return lambda cells: any(re.fullmatch(pattern, name) for name in cells)


def _is_stamped(cells: pd.DataFrame) -> bool:
    """Return whether the first column is one of time stamps."""
    return plain(cells.columns[0]) in TIMESTAMP.split()


def names_of(role: str) -> list[str]:
    """Return the usual names of a column; models are persons, and a subject may be a topic."""
    models = ["model", "modelid", "modelname"] if role == "person" else []
    return [*models, *USUAL[role].split()]


ANSWER_STRINGS = (
    "answers responses answerstring responsestring antworten réponses respuestas risposte"
)
ADDRESS = "person *mail* *correo* *courriel*"
TOTAL = r"[^\d/]+/\s*[\d.,]+"  # Moodle's "Grade/10.00"
TIMESTAMP = "timestamp zeitstempel horodateur marcatemporal"
QUALTRICS = (
    "StartDate EndDate Status IPAddress Progress Finished RecordedDate ExternalReference "
    "Recipient* LocationL* DistributionChannel UserLanguage Duration* *_DO *_DO_* *Click "
    "*Page?Submit *Click?Count *_TEXT SC0 SC1 SC2 SC3 PROLIFIC_PID"
)
FORMATS = [
    Format(
        "SurveyMonkey",
        "`Respondent ID`, `Collector ID`; parts of questions stand in the second row",
        "RespondentID CollectorID",
        {
            "person": "RespondentID",
            "session": "CollectorID StartDate EndDate IPAddress EmailAddress FirstName LastName "
            "CustomData1",
        },
        prepare=_survey_monkey,
    ),
    Format(
        "Qualtrics",
        'a row of `{"ImportId": ...}` under the header',
        columns={"person": "ResponseId", "session": QUALTRICS},
        is_it=lambda cells: any("ImportId" in str(one) for one in cells.head(2).to_numpy().flat),
        prepare=_qualtrics,
    ),
    Format(
        "Canvas Student Analysis",
        "`name, id, ..., attempt`, `10101: Question`, its points",
        "name id attempt [0-9]*:?*",
        {"person": "id", "group": "section", "repeat": "attempt", "session": "*"},
    ),
    Format(
        "Gradescope",
        "`SID`, `1: Question (1.0 pts)`",
        "SID [0-9]*:?*pts)",
        {"person": "SID Email", "group": "Sections", "session": "*"},
    ),
    Format(
        "Moodle grades",
        "`Grade/10.00`, `Q. 1 /1.00`, in any language",
        columns={"person": ADDRESS, "repeat": "attempt", "session": "*"},
        is_it=lambda cells: _has(TOTAL)(cells) and _has(NAMED_POINTS.pattern)(cells),
        prepare=_moodle,
    ),
    Format(
        "Moodle responses",
        "`Grade/10.00`, `Response 1` (`Right answer 1`)",
        columns={"person": ADDRESS, "repeat": "attempt", "session": "*"},
        is_it=lambda cells: _has(TOTAL)(cells) and bool(_responses(cells)),
        prepare=_moodle,
    ),
    Format(
        "ZipGrade",
        "`Stu1, PriKey1, Points1, Mark1`",
        "Stu1 PriKey1",
        {"person": "ZipGradeID StudentID ExternalId", "group": "ClassName", "session": "*"},
    ),
    Format(
        "Blackboard",
        "`Question ID 1, Question 1, Answer 1, Possible Points 1, Auto Score 1`",
        "Username Answer1 PossiblePoints1",
        {"person": "Username", "session": "*"},
    ),
    Format(
        "Microsoft Forms quiz",
        "`Id`, `Question`, `Points - Question`",
        columns={"person": "Id", "session": "*"},
        is_it=lambda cells: any(_question_of(name, list(cells)) for name in cells),
    ),
    Format(
        "oTree",
        "`participant.code, session.code`, `APP.1.player.FIELD`",
        "participant.code session.code",
        {
            "person": "participant.code",
            "session": "participant.* session.* *.payoff *.role *.id_in_* *.round_number",
        },
    ),
    Format(
        "Google Forms quiz",
        "a time stamp first, `Question [Score]`",
        columns={
            "person": "EmailAddress Username Email",
            "session": f"Score TotalScore *[[]Score] *[[]Feedback] {TIMESTAMP}",
        },
        is_it=lambda cells: _is_stamped(cells) and _has(r".*\[Score\]")(cells),
    ),
    Format(
        "Google Forms",
        "a time stamp first",
        columns={"person": "EmailAddress Username Email", "session": TIMESTAMP},
        is_it=_is_stamped,
    ),
    Format(
        LONG,
        "columns for persons, items and answers (`correct, score, resp` ...), as of the Item "
        "Response Warehouse; what is the same in all rows of a person is a group; `repeat`, "
        "`wave`, `rater` ... number repeats",
        is_it=lambda cells: all(find(cells, names_of(n)) for n in ("person", "item", "answer")),
    ),
    Format(
        "table of items with persons in its columns",
        "a row an item: the first column is `item`, `question` ..., and no other names persons",
        is_it=_persons_in_columns,
        prepare=_turned,
    ),
    Format(
        "wide table",
        "a row a person, a column an item (R's write.csv, Excel, SPSS, Stata, scanners ...), or a "
        "digit or letter for each item without a header (Winsteps, ConQuest); a row named KEY "
        "holds the right answers",
        is_it=lambda cells: True,
    ),
]


def _with_header(cells: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return a table of answers whose header is the first of its rows with that row, and names."""
    header = list(map(str, cells.columns))
    answers = header[1:]
    if len(set(answers)) == len(answers):
        return cells
    if not set(answers) <= set(map(label_of, cells.head(100).iloc[:, 1:].to_numpy().ravel())):
        return cells
    notes.append("there is no header")
    names = [f"item {place}" for place in range(1, len(header) + 1)]
    if header[0] not in set(map(label_of, cells.iloc[:, 0].dropna())):
        names = ["column 1", *names[:-1]]
    return with_header_as_row(cells, names)


def _with_items(cells: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return a table whose one column of strings of answers, such as "ABCDA", is split into items.

    They are letters, or digits in a column that is named by answers, as many in each row. Where
    most rows have one length, those of another are a :class:`FrameError`.
    """
    found: dict[str, int] = {}
    for place, name in enumerate(cells):
        texts = cells.iloc[:, place].dropna()
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            continue
        is_named = plain(name) in ANSWER_STRINGS.split()
        pattern = r"[0-9A-Ha-h.* -]+" if is_named else "[A-H.*]+"
        lengths = texts.str.len()
        usual = int(lengths.mode().iloc[0])
        is_list = usual >= (3 if is_named else 5) and lengths.eq(usual).mean() > 0.6
        if is_list and texts.nunique() > 1 and texts.str.fullmatch(pattern).all():
            found[name] = usual
    if len(found) != 1:
        return cells
    ((name, n_items),) = found.items()
    lengths = cells[name].str.len()
    others = np.flatnonzero(lengths.notna() & lengths.ne(n_items)) + 1
    said = f"of {name!r} do not have {n_items} answers as most have; where one is missing, write ."
    refuse("rows", others, said)
    notes.append(f"each letter or digit of {name!r} is the answer to an item")
    items = {
        f"item {place + 1}": cells[name].str[place].replace(" ", np.nan) for place in range(n_items)
    }
    return cells.drop(columns=name).assign(**items)


def _without_labels(cells: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return a table of numbers without a row of texts below its header, as SoSci Survey has."""
    first = cells.iloc[:1].map(lambda one: isinstance(one, str) and len(one) > 3)
    if len(cells) < 2 or not first.all(axis=None):
        return cells
    below = cells.iloc[1:].reset_index(drop=True)
    places = range(below.shape[1])
    numeric = [place for place in places if is_numeric(numbers_of(below.iloc[:, place]))]
    # a number such as 1.00 above numbers is an answer
    if len(numeric) < 3 or any(is_numeric(numbers_of(cells.iloc[:1, place])) for place in numeric):
        return cells
    notes.append("the row below the header holds labels")
    return below


def shape_of(cells: pd.DataFrame, wide_items: bool) -> Shape:
    """Return a table as its format has it; with ``wide_items`` it is no long one."""
    notes: list[str] = []
    twice = _with_items(_with_header(_without_labels(cells, notes), notes), notes)
    cells = unique_columns(twice, number=True)
    form = next(f for f in FORMATS if not (f.name == LONG and wide_items) and f.fits(cells))
    table, format_notes = form.prepare(cells) if form.prepare and len(cells) else (cells, [])
    shape = Shape(table, form.name, notes=notes + format_notes)
    if not form.columns:
        unique_columns(twice)
        return shape
    shape.person = find(table, form.own_names("person")) or None
    shape.repeat = find(table, form.own_names("repeat")) or None
    shape.groups = [name for name in [find(table, form.own_names("group"))] if name]
    used: set[str] = set()
    graded = _graded(table, used)
    known = list(graded) or (_responses(table) if "responses" in form.name else [])
    shape.items = known or None
    shape.table = table.assign(**graded)
    roles = {*known, shape.person, shape.repeat, *shape.groups}
    of_session = [n for n in table if find(table[[n]], form.own_names("session"))]
    shape.no_items = [n for n in table if n not in roles and (n in used or n in of_session)]
    return shape
