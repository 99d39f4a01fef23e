"""Reading studies from files of your own, or from a dataset that pymovements downloads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.corpora import _sniff
from psychlm.corpora._reading_formats import (
    EYELINK,
    FILE,
    TIME_OF,
    USUAL,
    Format,
    find,
    list_of,
    read_rows,
    with_lists,
)
from psychlm.frames import FrameError, format_names, refuse

OURS = {"person": "subject", "text": "text_id", "word_number": "word_id", "word": "word"}
OLDER = {"subject": "person", "item": "text"}  # names of roles in columns=
NUMBER = "number of the word"
PRACTICE = re.compile(
    r"(?i)(?<![a-z])(practi[cs]e|training|warm-?up|(ue|ü)bung(en)?|probe|entra[iî]nement)(?![a-z])"
)
FILLER = re.compile(r"(?i)(?<![a-z])(fillers?|distra[ck]tors?|füller)(?![a-z])")
RIGHT = dict.fromkeys(["1", "1.0", "true", "correct", "right", "richtig", "korrekt"], 1.0)
WRONG = dict.fromkeys(["0", "0.0", "false", "incorrect", "wrong", "falsch"], 0.0)


@dataclass(frozen=True)
class Corpus:
    """A reading-time corpus: its words, and who read which for how long."""

    words: pd.DataFrame  # a words frame with position (in the text), length_chars and predictors
    readings: pd.DataFrame  # times by subject ("mean" of released means), text_id and word_id
    surprisals: pd.DataFrame | None = None  # text_id, word_id, bits by released model
    notes: tuple[str, ...] = ()  # what was taken for what, and what was left out, with counts
    questions: pd.DataFrame | None = None  # subject, text_id, correct (1, 0, NaN: not known)

    @property
    def accuracy(self) -> pd.Series:
        """Share of right answers to questions, by reader."""
        if self.questions is None:
            raise FrameError("this corpus has no graded answers to questions; see questions")
        return self.questions.groupby("subject")["correct"].mean()


def from_long(
    frame: pd.DataFrame,
    *,
    measures: Mapping[str, str],
    person: str = "Subject",
    text: str = "Item",
    word_number: str = "WordNr",
    word: str = "Word",
    condition: Sequence[str] = (),
    missing: Sequence[str] = (),
    subject: str = "",
    item: str = "",
) -> Corpus:
    """Make a corpus of the usual file of a laboratory: one row per person and word.

    Columns that are the same for all readings of a word become columns of ``words``, the others
    (trial numbers, conditions that differ between people) columns of ``readings``. Rows without
    person, item, number or word are dropped, and times of 0 ms, which programs write for a skipped
    word, are missing; ``notes`` count both. Values that are no numbers are missing, with a warning.
    A table that lacks a column, or has two words at one place or two readings of a word by one
    person, is a :class:`FrameError`.

    Parameters
    ----------
    frame : DataFrame
    measures : mapping
        Columns with times in ms, and their names here: ``{"RT": "self_paced_ms"}``.
    person, text, word_number, word : str
        The columns that hold the person, the text (sentence, item), the word's number in it, from
        1, and the word as printed.
    condition : sequence of str
        Columns that tell the versions of a text apart: the id of a text is then "7-ambiguous".
    missing : sequence of str
        What stands for a missing time beside empty cells and NA, as "-1".
    subject, item : str
        Older names of ``person`` and ``text``.

    Examples
    --------
    >>> table = pd.DataFrame({"Subject": [1, 1, 2, 2], "Item": 7, "WordNr": [1, 2, 1, 2],
    ...     "Word": ["Dogs", "bark."] * 2, "RT": [310, 295, 402, 377]})
    >>> corpus = from_long(table, measures={"RT": "self_paced_ms"})
    >>> corpus.words[["text_id", "word_id", "word", "length_chars"]].to_numpy().tolist()
    [['7', 1, 'Dogs', 4], ['7', 2, 'bark.', 4]]
    """
    ids = {
        subject or person: "subject",
        item or text: "text_id",
        word_number: "word_id",
        word: "word",
    }
    names = ids | dict(measures)
    absent = [name for name in (*names, *condition) if name not in frame.columns]
    there = f"there are {list(frame.columns)}: name yours, for instance person='ID'"
    refuse("columns", absent, f"are missing; {there}")
    badly_named = [name for name in measures.values() if not name.endswith("_ms")]
    refuse("measures", badly_named, "need names that end in _ms (and times in ms)")
    refuse(
        "columns",
        [new for old, new in names.items() if new != old and new in frame.columns],
        f"are there beside those that get these names ({names}); drop or rename them, or name "
        "them as the columns to read (text='text_id')",
    )
    table = frames.plain(frame).rename(columns=names)
    if condition:
        table["text_id"] = joined(table, ["text_id", *condition])
    blank = table[list(ids.values())].isna()
    blank["word"] |= table["word"] == ""
    notes = [
        f"{int(blank[name].sum())} of {len(table)} rows without {original!r} are dropped"
        for original, name in ids.items()
        if blank[name].any()
    ]
    table = table[~blank.any(axis=1)].reset_index(drop=True)
    # PCIbex writes a comma within a word as %2C.
    coded = table["word"].astype(str).str.contains("%2C", regex=False)
    if coded.any():
        table["word"] = table["word"].str.replace("%2C", ",", regex=False)
        notes.append(f"%2C in {int(coded.sum())} words is read as a comma")
    # Two computers may have stored a letter with its accent as one character and as two.
    table["word"] = [normalize("NFC", w) if isinstance(w, str) else w for w in table["word"]]
    table, said = _with_times(table, {name: column for column, name in measures.items()}, missing)
    notes += said
    readings_twice = table.duplicated(["subject", "text_id", "word_id"])
    if readings_twice.any():
        first = table.loc[readings_twice, ["subject", "text_id", "word_id"]].iloc[0].tolist()
        raise FrameError(
            f"{int(readings_twice.sum())} readings (subject, text_id, word_id) occur more than "
            f"once, first {first}; if one reader saw a text twice, name the column that tells the "
            "times apart: condition='Trial'"
        )
    table = frames.check_readings(table)

    # Each place in a text has one word, and what is the same for all its readings belongs to it.
    keys = ["text_id", "word_id"]
    same = table.groupby(keys).nunique(dropna=False).le(1).all()
    if not same["word"]:
        places = table.groupby(keys)["word"].nunique()
        raise FrameError(
            f"several words stand at (text_id, word_id) {format_names(places.index[places > 1])}; "
            "name the column that tells the versions of a text apart: condition='Condition'"
        )
    of_readings = ("subject", *measures.values())
    of_words = [n for n in table.columns if same.get(n, False) and n not in of_readings]
    words = table[[*keys, *of_words]].drop_duplicates(keys).sort_values(keys, ignore_index=True)
    others = table.columns.difference([*ids.values(), *measures.values(), *of_words], sort=False)
    readings = table[["subject", *keys, *measures.values(), *others]]
    for name, n_missing in readings[[*measures.values()]].isna().sum().items():
        if n_missing:
            notes.append(f"{n_missing} of {len(readings)} readings have no {name!r}")
    return Corpus(with_predictors(frames.check_words(words)), readings, None, tuple(notes))


def joined(table: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the cells of several columns as one text, "7-ambiguous"; missing where one is.

    >>> joined(pd.DataFrame({"item": [7.0], "condition": ["a"]}), ["item", "condition"]).tolist()
    ['7-a']
    """
    cells = [table[name].map(frames.label_of, na_action="ignore").astype("str") for name in columns]
    return cells[0].str.cat(cells[1:], sep="-") if len(cells) > 1 else cells[0]


def _with_times(
    table: pd.DataFrame, column_of: Mapping[str, str], missing: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times are numbers in ms, missing where they are none or 0, and notes.

    ``column_of`` names the columns of our measures as the file does.
    """
    notes = []
    for name, column in column_of.items():
        for_none = table[name].map(frames.label_of, na_action="ignore").isin([*missing])
        if for_none.any():
            notes.append(f"{int(for_none.sum())} values of {column!r} stand for missing: {missing}")
        table[name], others = _sniff.numbers_among(table[name].mask(for_none))
        if len(others):
            said = f"{len(others)} values of {column!r} are no numbers and missing: "
            notes.append(said + format_names(others.unique()))
            warnings.warn(notes[-1], RuntimeWarning, stacklevel=3)
    table, said_of_zeros = skipped_as_missing(table)
    return table, notes + said_of_zeros


def skipped_as_missing(readings: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times of 0 ms are missing, and notes of how many each measure has."""
    zero = readings.filter(regex="_ms$").apply(pd.to_numeric, errors="coerce").eq(0)
    notes = []
    counts = zero.sum()
    for count in counts[counts > 0].unique():
        names = ", ".join(map(repr, counts.index[counts == count]))
        said = f"{count} of {len(readings)} times {names} are 0 ms (not fixated) and missing"
        notes.append(said)
    times = {name: readings[name].mask(rows) for name, rows in zero.items()}
    return readings.assign(**times), notes


def with_predictors(words: pd.DataFrame) -> pd.DataFrame:
    """Compose the words (NFC); add ``position`` and ``length_chars`` (letters and digits) where
    they are absent."""
    words = words.assign(word=words["word"].str.normalize("NFC"))
    length = frames.without_marks(words["word"]).str.count(r"[^\W_]")
    added = {"position": words["word_id"], "length_chars": length}
    return words.assign(**{name: x for name, x in added.items() if name not in words})


# ---- files ----


def read_experiment(
    table: str | Path,
    readings: str | Path | None = None,
    *,
    person: str | None = None,
    text: str | None = None,
    word_number: str | None = None,
    word: str | None = None,
    measure: str | Sequence[str] = (),
    condition: str | Sequence[str] = (),
    group: str | None = None,
    filter: str | None = None,
    drop: str | Sequence[str] = (),
    missing: str | Sequence[str] = (),
    encoding: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Corpus:
    """Read a reading experiment from one table, or from a file of words and one of readings.

    Parameters
    ----------
    table : path
        With ``readings``: the words, see :func:`psychlm.corpora.reading_times.from_csv`. Alone: the
        results of Ibex, PCIbex, jsPsych, Gorilla, PsychoPy, OpenSesame or Linger, a report of
        EyeLink, or a table with a row for each person and word (long) or each person and text
        (wide: ``Word1``, ``RT1``, ``Word2`` ...); CSV and its relatives, JSON, Excel or Parquet,
        or a folder of such files.
    readings : path, optional
    person, text, word_number, word : str, optional
        The columns that hold them; found by the program or by usual names unless given. Several
        that name a person or text together are joined with "+".
    measure : str or sequence of str
        The columns of times in ms; all that are recognised unless given. A name that does not end
        in ``_ms``, and is not known, becomes ``self_paced_ms``.
    condition : str or sequence of str
        Columns that name the version of a text that a reader saw. Unless given, a column of a usual
        name is used where several words would stand at one place.
    group : str, optional
        A column that tells groups of readers apart; it stays with the readings.
    filter : str, optional
        The rows that are read, "Label=experiment,filler"; several columns with ";". Practice is
        left out unless a filter is given, such as "Label=*" for all rows.
    drop : str or sequence of str
        Columns that are left out.
    missing : str or sequence of str
        What stands for a missing time beside empty cells and NA, as "-1".
    encoding : str, optional
        How the letters of the files are encoded; found unless given.
    columns : mapping, optional
        An older way to name the columns of "subject", "item", "word_number" and "word".

    Returns
    -------
    Corpus
        Words and ids are as they are written ("NA", "007"). The first of ``notes`` begins with
        "recognised": what was read as what, and which rows are left out. ``questions`` are answers
        to questions, where the file grades them.

    Examples
    --------
    >>> _ = Path("results.csv").write_text("ID,Item,WordNr,Word,RT\\ns1,1,1,Good,310\\n")
    >>> study = read_experiment("results.csv", person="ID")
    >>> study.readings["self_paced_ms"].tolist()
    [310.0]
    """
    told: dict[str, Any] = {"person": person, "text": text, "word_number": word_number}
    told |= {"word": word, "group": group, "filter": filter}
    for name, column in (columns or {}).items():
        if (role := OLDER.get(name, name)) not in OURS:
            known = [*OLDER, "word_number", "word"]
            raise FrameError(f"columns name {name!r}; they name the columns of {known}")
        told[role] = told[role] or column
    several = {"measure": measure, "condition": condition, "drop": drop, "missing": missing}
    for name, values in several.items():
        told[name] = [values] * bool(values) if isinstance(values, str) else [*map(str, values)]
    for file in (table, readings):
        if file is not None and not Path(file).exists():
            raise FrameError(f"{file} does not exist; name a file or folder of readings")
    if readings is not None:
        of_one_table = [name for name in ("condition", "group", "filter") if told[name]]
        refuse("options", of_one_table, "are for one table; with two files, leave them out")
        return _read_two(Path(table), Path(readings), told, encoding)
    return _read_one(Path(table), told, encoding)


def from_csv(words: str | Path, readings: str | Path, *, encoding: str | None = None) -> Corpus:
    """Read your own corpus from two files: CSV and its relatives, Excel or Parquet.

    Columns are separated by a comma, a semicolon or a tab; "310,5" is a number. A time of 0 ms is
    missing, and counted in ``notes``; a value that is no number is missing, with a warning. A
    reading of a word that is not among the words is a :class:`FrameError`. Columns of other names
    are told to :func:`psychlm.corpora.read_experiment`, which takes the same files.

    Parameters
    ----------
    words : path
        One row per word, whole texts: ``text_id``, ``word_id`` (1, 2, ... in each text), ``word``
        (as printed, with its punctuation), and any predictors (``log_frequency``, ``line`` ...);
        ``position`` and ``length_chars`` (letters and digits) are added where they are absent.
    readings : path
        One row per person and word: ``subject``, ``text_id``, ``word_id`` and at least one measure
        in ms whose name ends in ``_ms``; an empty cell, or NA, where a word was skipped.
    encoding : str, optional
        How the letters of the files are encoded; found unless given.

    Examples
    --------
    >>> _ = Path("words.csv").write_text("text_id,word_id,word\\nt,1,Good\\nt,2,day.\\n")
    >>> _ = Path("times.csv").write_text("subject,text_id,word_id,gaze_ms\\ns1,t,1,210\\n")
    >>> from_csv("words.csv", "times.csv").readings["gaze_ms"].tolist()
    [210.0]
    """
    return read_experiment(words, readings, encoding=encoding)


def _check(column: str, rows: pd.DataFrame, more: str = "") -> None:
    """Refuse the name of a column that a file has not."""
    if column not in rows:
        there = ", ".join(map(str, rows.columns))
        raise FrameError(f"there is no column {column!r}; the file has {there}{more}")


def _times(
    rows: pd.DataFrame, known: Mapping[str, str], told: Sequence[str], used: set[str]
) -> dict[str, str]:
    """Return columns of times and our names of them; ``known`` are names that they may have."""
    found: dict[str, str] = {}
    for name, ours in known.items():
        column = find(rows, [name], used - {*told})
        if column and column not in found and ours not in found.values():
            found[column] = ours
    if known is TIME_OF:
        own = [name for name in rows if str(name).endswith("_ms") and name not in used]
        found = found | {name: name for name in own if name not in found}
    chosen = {}
    for name in told:
        column = next((column for column, ours in found.items() if name in (column, ours)), name)
        _check(column, rows, f"; its times are {format_names(found)}")
        chosen[column] = found.get(column, column if column.endswith("_ms") else "self_paced_ms")
    return chosen if told else found


def _as_numbers(table: pd.DataFrame, text: Sequence[str]) -> None:
    """Make columns other than those of text numbers, where all their cells are."""
    for name in table.columns.difference([*text]):
        if table[name].map(lambda cell: isinstance(cell, list | dict)).any():
            table[name] = table[name].astype("str")
        try:
            table[name] = _sniff.numbers_of(table[name].mask(table[name].eq("NA")))
        except FrameError:  # "1,234" beside "7", of which nothing is computed here
            continue


def _read_two(words: Path, readings: Path, told: Mapping[str, Any], encoding: str | None) -> Corpus:
    """Read a corpus from a file of words and one of readings, with what is told of the roles."""
    notes: list[str] = []
    tables = []
    times: dict[str, str] = {}
    for path, other_role in ((words, "word"), (readings, "person")):
        read = _sniff.read_table(path, encoding, spaces=True)
        cells = _sniff.unique_columns(read.cells).drop(columns=told["drop"], errors="ignore")
        names: dict[str, str] = {}
        for role in ("text", "word_number", other_role):
            known = [OURS[role], *USUAL[role].split()]
            column = told[role] if told[role] in cells else find(cells, known, names)
            if told[role] and column != told[role] and column != OURS[role]:
                _check(told[role], cells)
            if column:
                names[column] = OURS[role]
        if path == readings:
            times = _times(cells, TIME_OF, told["measure"], {*names})
        renamed = {theirs: ours for theirs, ours in (names | times).items() if theirs != ours}
        said = [f"{ours} = {theirs}" for theirs, ours in renamed.items()]
        notes += [f"{path.name}: {note}" for note in (*read.notes, *said)]
        tables.append(cells.rename(columns=names | times))
    word_table, reading_table = tables
    # An empty cell for a space means that there is none.
    spaces = word_table.columns.intersection(["space_before", "space_after"])
    word_table[spaces] = word_table[spaces].astype(object).fillna("").infer_objects()
    _as_numbers(word_table, [*OURS.values(), *spaces])
    _as_numbers(reading_table, [*OURS.values(), *times.values()])
    column_of = {ours: theirs for theirs, ours in times.items()}
    reading_table, said = _with_times(reading_table, column_of, told["missing"])
    word_table = frames.check_words(word_table)
    reading_table = frames.check_readings(reading_table)
    keys = ["text_id", "word_id"]
    places = pd.MultiIndex.from_frame(reading_table[keys])
    unknown = places[~places.isin(pd.MultiIndex.from_frame(word_table[keys]))].tolist()
    if unknown:
        raise FrameError(
            f"{len(unknown)} readings are of words that {words} does not have, first {unknown[0]} "
            "(text_id, word_id); do both files count words from 1 in each text?"
        )
    corpus = Corpus(with_predictors(word_table), reading_table)
    recognised = f"recognised: words and readings: {_counts(corpus)}; times: {', '.join(column_of)}"
    return replace(corpus, notes=(recognised, *notes, *said, *_in_seconds(corpus)))


def _in_seconds(corpus: Corpus) -> list[str]:
    """Return a note, and warn, where times are too short for milliseconds."""
    medians = corpus.readings.filter(regex="_ms$").median()
    short = medians[medians < 10]
    if short.empty:
        return []
    said = f"the median of {[*short.index]} is {short.iloc[0]:.3g} ms: are these seconds?"
    warnings.warn(f"{said} Write milliseconds", RuntimeWarning, stacklevel=4)
    return [said]


def _counts(corpus: Corpus) -> str:
    """Return how many readers, texts, words and readings there are."""
    return (
        f"{corpus.readings['subject'].nunique():,} readers, "
        f"{corpus.words['text_id'].nunique():,} texts, {len(corpus.words):,} words, "
        f"{len(corpus.readings):,} readings"
    )


def _roles(
    form: Format, rows: pd.DataFrame, told: Mapping[str, Any], path: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the column of each role, "" where there is none, and columns of times: our names.

    What is told wins, then the format's columns, then the usual names.
    """
    used = {told[role] for role in OURS if told[role]} | {*told["measure"]}
    roles = {"word": told["word"] or find(rows, form.names("word"), used)}
    on_words = rows[rows[roles["word"]].notna()] if roles["word"] else rows
    times = _times(on_words, form.times or TIME_OF, told["measure"], used | {roles["word"]})
    if not roles["word"] and times and rows[[*times][0]].map(list_of).notna().any():
        roles["word"] = find(rows, ["sentence", "satz", "text", "stimulus", "phrase"], times)
    used |= {roles["word"], *times}
    for role in ("person", "text", "condition", "label", "correct"):
        roles[role] = (told.get(role) if role in OURS else "") or find(rows, form.names(role), used)
        if role == "label":  # of several, the one that tells practice or fillers from the rest
            there = [find(rows, [name], used) for name in form.names(role)]
            for name in filter(None, there):
                kinds = _kinds(rows, name).dropna().unique()
                if any(PRACTICE.search(kind) or FILLER.search(kind) for kind in kinds):
                    roles[role] = name
                    break
        used |= {roles[role], *roles[role].split("+")}
    lacking = [role for role in ("person", "text", "word") if not roles[role]]
    if "person" in lacking and (FILE in rows or form.needs):
        lacking.remove("person")
    if "text" in lacking and times and rows[[*times][0]].map(list_of).notna().any():
        lacking.remove("text")
    if lacking := lacking + ["measure"] * (not times):
        raise FrameError(
            f"{path} is read as {form.name} and has the columns {', '.join(map(str, rows.columns))}"
            f"; which of them is the {', the '.join(lacking)}? Name them: "
            + ", ".join(f"{role}='...'" for role in lacking)
        )
    # A number of the word is whole; a region is one only if no two words of a text share it.
    roles["word_number"] = told["word_number"] or ""
    place = [c for r in ("person", "text", "condition", "label") for c in roles[r].split("+") if c]
    for name in form.names("word_number") if not told["word_number"] else ():
        column = find(on_words, [name], used)
        if column and not roles["word_number"]:
            number, others = _sniff.numbers_among(on_words[column])
            is_whole = not len(others) and number.notna().any() and (number.dropna() % 1 == 0).all()
            is_told = name in form.columns.get("word_number", ()) or name.startswith("wor")
            if is_whole and (is_told or not on_words.duplicated([*place, column]).any()):
                roles["word_number"] = column
    return roles, times


def _read_one(path: Path, told: Mapping[str, Any], encoding: str | None) -> Corpus:
    """Read a corpus from one file or folder, with what is told of the roles."""
    form, rows, notes = read_rows(path, encoding)
    rows = with_lists(rows, told["word"], told["measure"])
    one_column = [told[name] for name in (*OURS, "group") if told[name]]
    for name in (*one_column, *told["condition"], *told["drop"]):
        for part in [name] if name in rows else name.split("+"):
            _check(part, rows)
    rows = rows.drop(columns=told["drop"])
    if form.prepare:
        rows, said = form.prepare(rows)
        notes += said
    roles, times = _roles(form, rows, told, path)
    word = roles["word"]
    if not roles["person"]:
        roles["person"] = FILE
        rows = rows if FILE in rows else rows.assign(**{FILE: path.stem})
        notes.append("no column names readers: a file is one; else tell the column, person='...'")
    if not roles["text"]:
        roles["text"] = "words of the text"
        printed = rows[word].map(lambda cell: list_of(cell) or [cell], "ignore")
        rows[roles["text"]] = printed.map(lambda cells: " ".join(map(str, cells)), "ignore")
    for role in ("person", "text"):
        if roles[role] not in rows:
            rows[roles[role]] = joined(rows, roles[role].split("+"))

    # Rows with a word are readings; a question without a text is on the last that its reader saw.
    is_word = rows[word].notna() & rows[word].ne("")
    place = pd.Series(np.where(is_word, np.arange(len(rows)), np.nan))
    last = place.groupby(rows[roles["person"]].to_numpy()).ffill()
    last = last[~is_word & rows[roles["text"]].isna()].dropna().astype(int)
    labels = [name for name in dict.fromkeys([roles["label"], roles["condition"]]) if name]
    for name in dict.fromkeys([roles["text"], *labels, *told["condition"]]):
        of_text = rows[name].take(last).set_axis(last.index)
        rows[name] = rows[name].fillna(of_text.reindex(rows.index))

    is_answer = ~is_word & rows[roles["text"]].notna()
    is_answer &= rows[roles["correct"]].notna() if roles["correct"] else False
    is_used = is_word | is_answer
    is_read, left_out, said = _selected(rows[is_used], is_word[is_used], labels, told["filter"])
    is_read = is_read.reindex(rows.index, fill_value=False)
    notes += said
    if n_others := int((~is_used).sum()):
        left_out.append(f"{n_others:,} rows that are neither words nor graded answers")

    # One row a word. Its number is told, or its place in a list or among its reader's rows.
    words, said = _spread(rows[is_word & is_read].reset_index(drop=True), word, [*times])
    notes += said
    roles["word_number"] = NUMBER if NUMBER in words else roles["word_number"]
    if not roles["word_number"]:
        of_trial = [roles["person"], roles["text"], *(told["condition"] or labels)]
        trial = words[of_trial].astype("str").fillna("")
        run = (trial != trial.shift()).any(axis=1).cumsum()
        words[NUMBER] = words.groupby(run).cumcount() + 1
        roles["word_number"] = NUMBER
        notes.append("words are numbered in the order of rows; else tell it, word_number='...'")
    number, others = _sniff.numbers_among(words[roles["word_number"]])
    if not len(others) and number.min() == 0:
        words[roles["word_number"]] = number + 1
        notes.append(f"{roles['word_number']!r} counts from 0, word_id from 1")

    # Versions of a text have ids of their own where their words differ.
    condition = list(told["condition"])
    for name in reversed(labels) if not condition else ():
        places = [roles["text"], *condition, roles["word_number"]]
        if words.groupby(places)[word].nunique().gt(1).any():
            condition.append(name)
    ids = {role: roles[role] for role in OURS}
    kept = [*ids.values(), *times, *condition]
    hidden = [ours for ours in (*OURS.values(), *times.values()) if ours in words]
    hidden = [ours for ours in hidden if ours not in kept]
    if hidden:
        words = words.drop(columns=hidden)
        notes.append(f"columns {hidden} are left out: other columns get these names")
    for name in (ids["person"], ids["text"], word):
        words[name] = joined(words, [name])
        if count := int(words[name].eq("NA").sum()):
            notes.append(f"'NA' in {count} cells of {name!r} is text, not a missing value")
    _as_numbers(words, kept)
    corpus = from_long(words, measures=times, condition=condition, missing=told["missing"], **ids)
    if form.unit_ms != 1:
        corpus.readings[[*times.values()]] *= form.unit_ms
        notes.append(f"{[*times]} are in seconds, {[*times.values()]} in ms")
    keys = ["text_id", "word_id"]
    if told["group"] and told["group"] in corpus.words:
        by_word = corpus.words[[*keys, told["group"]]]
        with_group = corpus.readings.merge(by_word, on=keys, how="left")
        without = corpus.words.drop(columns=told["group"])
        corpus = replace(corpus, words=without, readings=with_group)

    if roles["correct"]:
        answers = rows[is_answer & is_read]
        columns = (ids["person"], [ids["text"], *condition], roles["correct"])
        corpus = _with_questions(corpus, answers, words, columns, notes)
    ids["text"] = " + ".join([ids["text"], *condition])
    said_columns = ids | {ours: theirs for theirs, ours in times.items()}
    recognised = f"recognised: {form.name}: {_counts(corpus)}; of {len(rows):,} rows "
    recognised += f"{int((is_word & is_read).sum()):,} hold words, "
    recognised += f"{int((is_answer & is_read).sum()):,} answers; "
    recognised += ", ".join(f"{ours} = {theirs}" for ours, theirs in said_columns.items())
    recognised += f"; left out: {'; '.join(left_out) or 'nothing'}"
    return replace(corpus, notes=(recognised, *notes, *corpus.notes, *_in_seconds(corpus)))


def _with_questions(
    corpus: Corpus,
    answers: pd.DataFrame,
    words: pd.DataFrame,
    columns: tuple[str, list[str], str],
    notes: list[str],
) -> Corpus:
    """Return a corpus with the graded answers to its questions, and note how many are right.

    Answers stand in rows of their own, or beside each word of a text. ``columns`` are those of the
    person, of the text and its condition, and of the grade.
    """
    person, text, correct = columns
    beside_words = not len(answers)
    answers = words[words[correct].notna()] if beside_words else answers
    grade = answers[correct].map(frames.label_of).astype("str").str.casefold()
    questions = pd.DataFrame(
        {
            "subject": joined(answers, [person]),
            "text_id": joined(answers, text),
            "correct": grade.map(RIGHT | WRONG),
        }
    )
    questions = questions.drop_duplicates() if beside_words else questions
    differs = beside_words and questions.duplicated(["subject", "text_id"]).any()
    if differs or not questions["correct"].notna().any():
        return corpus
    corpus = replace(corpus, questions=questions.reset_index(drop=True))
    fewest = corpus.accuracy.idxmin()
    notes.append(
        f"{len(questions):,} answers to questions ({correct}), {questions['correct'].mean():.0%} "
        f"right; fewest by {fewest}: {corpus.accuracy[fewest]:.0%}"
    )
    return corpus


def _kinds(rows: pd.DataFrame, name: str) -> pd.Series:
    """Return the kinds of trials that a column names; "yes" in a column ``practice`` is one."""
    cells = joined(rows, [name]).str.strip()
    if PRACTICE.search(name.replace("_", " ")):
        yes = cells.str.casefold().isin([*RIGHT, "yes", "ja", "practice"])
        return cells.mask(yes, "practice").mask(~yes, cells.str.replace(PRACTICE, "", regex=True))
    return cells


def _selected(
    rows: pd.DataFrame, is_word: pd.Series, labels: Sequence[str], wanted: str | None
) -> tuple[pd.Series, list[str], list[str]]:
    """Return which rows a filter selects, or else all but practice; what is left out; notes."""
    is_read = pd.Series(True, rows.index)
    cells = {name: _kinds(rows, name) for name in labels}
    for clause in (wanted or "").split(";") if wanted else ():
        name, _, values = (part.strip() for part in clause.partition("="))
        _check(name, rows, "; a filter is COLUMN=VALUE, or COLUMN=* for all rows")
        if values != "*":
            given = joined(rows, [name]).str.strip()
            is_read &= given.isin([value.strip() for value in values.split(",")])
            if not (is_word & is_read).any():
                there = given[is_word].value_counts().head(8).to_dict()
                raise FrameError(f"no word has {name} = {values}; there are {there}")
    left_out = [f"{int((~is_read).sum()):,} rows, by filter '{wanted}'"] if wanted else []
    notes = []
    for name in labels if not wanted else ():
        practice = cells[name].map(lambda x: bool(PRACTICE.search(x)), "ignore").eq(True)
        if (is_word & practice).any() and (is_word & ~practice).any():
            is_read &= ~practice
            n_out = int(practice.sum())
            left_out.append(f"{n_out:,} rows of practice ({name}); keep them: filter='{name}=*'")
            break
    for name in labels:
        counts = cells[name][is_read].value_counts()
        fillers = [kind for kind in counts.index if FILLER.search(kind)]
        others = ",".join(kind for kind in counts.index if kind not in fillers)
        if fillers and others:
            notes.append(
                f"{counts[fillers].sum():,} rows are fillers ({name} = {', '.join(fillers)}); "
                f"without them: filter='{name}={others}'"
            )
            break
    return is_read, left_out, notes


def _spread(rows: pd.DataFrame, word: str, times: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return rows that hold lists of words and times with one row a word; others as they are."""
    lists = {name: rows[name].map(list_of) for name in times}
    if not lists[times[0]].notna().any():
        return rows, []
    lists[word] = rows[word].map(lambda cell: list_of(cell) or str(cell).split())
    lengths = pd.DataFrame({name: x.map(len, "ignore") for name, x in lists.items()})
    whole = lengths.eq(lengths[word], axis=0).all(axis=1)
    notes = []
    if not whole.all():
        notes.append(
            f"{int((~whole).sum())} of {len(rows)} trials are left out: they have another number "
            "of times than of words"
        )
        warnings.warn(notes[0], RuntimeWarning, stacklevel=3)
    if not whole.any():
        raise FrameError(f"no trial has as many times ({times[0]!r}) as words ({word!r})")
    spread = rows.assign(**lists)[whole].explode([*lists], ignore_index=True)
    numbers = [np.arange(1, int(n) + 1) for n in lengths[word][whole]]
    return spread.assign(**{NUMBER: np.concatenate(numbers)}), notes


# Columns of the corpora that pymovements names: those of IDS, and times in EYELINK's order.
PYMOVEMENTS = {
    "CopCo": "part speechId+paragraphId wordId word "
    "word_first_fix_dur word_first_pass_dur word_go_past_time word_total_fix_dur",
    "EMTeC": "subject_id item_id+model+decoding_strategy word_id word FFD FPRT RPD_inc TFT",
    "MECOL2W1": "uniform_id itemid ianum ia firstfix.dur firstrun.dur firstrun.gopast dur",
    "MECOL2W2": "uniform_id itemid ianum ia firstfix.dur firstrun.dur firstrun.gopast dur",
    "OneStop": "participant_id unique_paragraph_id IA_ID IA_LABEL IA_FIRST_FIXATION_DURATION "
    "IA_FIRST_RUN_DWELL_TIME IA_REGRESSION_PATH_DURATION IA_DWELL_TIME",
    "PoTeC": "reader_id text_id word_index_in_text word FFD FPRT RPD_inc TFT",
}


def from_pymovements(
    name: str, folder: str | Path, *, columns: str | None = None, query: str = ""
) -> Corpus:
    """Read the precomputed reading measures of a corpus that the library pymovements knows.

    Download it with that library first: ``pymovements.Dataset("PoTeC", folder).download()``. Times
    of 0 ms (the word was not fixated, or not in the first pass) are missing.

    Parameters
    ----------
    name : str
        A name of ``pymovements.DatasetLibrary.names()``: "PoTeC", "OneStop", "MECOL2W1" ...
    folder : path
        The dataset's folder; the measures lie in its ``precomputed_reading_measures``.
    columns : str, optional
        For a corpus that :data:`PYMOVEMENTS` does not list, or another release of one: the names
        of the columns with person, text (several joined by "+"), number of the word, word, first
        fixation, gaze duration, go-past and total time, in this order, separated by blanks. Parts
        of file names (``subject_id``) may serve as columns.
    query : str, optional
        Rows to read, for :meth:`pandas.DataFrame.query`: OneStop has "not repeated_reading_trial".

    Examples
    --------
    >>> from_pymovements("PoTeC", "data/raw/potec").readings  # doctest: +SKIP
    """
    try:
        import pymovements
    except ImportError as error:
        raise ImportError(
            "reading such a corpus needs pymovements: pip install 'psychlm[eyetracking]'"
        ) from error
    dataset = pymovements.Dataset(name, path=Path(folder))
    kind = "precomputed_reading_measures"
    if columns is None and name not in PYMOVEMENTS:
        raise FrameError(
            f"the columns of {name!r} are not known; name them with columns='person text number "
            f"word first_fixation gaze go_past total' (known: {sorted(PYMOVEMENTS)})"
        )
    dataset.definition.resources = dataset.definition.resources.filter(kind)
    dataset.scan()
    dataset.load_precomputed_reading_measures()
    # One frame per file; what a file's name tells (subject_id) joins its rows.
    parts = []
    for about, part in zip(
        dataset.fileinfo[kind].to_dicts(), dataset.precomputed_reading_measures, strict=True
    ):
        frame = part.frame.to_pandas()
        from_file_name = {key: value for key, value in about.items() if key not in frame}
        parts.append(frame.assign(**from_file_name))
    table = pd.concat(parts, ignore_index=True)
    table = table.query(query) if query else table
    subject, text, number, word, *times = (columns or PYMOVEMENTS[name]).split()
    needed = [subject, *text.split("+"), number, word, *times]
    if missing := [column for column in needed if column not in table.columns]:
        raise FrameError(
            f"{name} in {folder} has no columns {missing}, but {list(table.columns)}; name its "
            "columns with columns='...'"
        )
    times_ms = table[times].apply(pd.to_numeric, errors="coerce")
    has_text = table[text.split("+")].notna().all(axis=1)
    long = times_ms.set_axis([*EYELINK.values()], axis=1).assign(
        Subject=table[subject],
        Item=table[text.split("+")].astype(str).agg("-".join, axis=1).where(has_text),
        WordNr=table[number] + (table[number].min() == 0),  # some count from 0
        Word=table[word].astype("string").str.strip().astype(object),
    )
    return from_long(long, measures={measure: measure for measure in EYELINK.values()})
