"""The files of reading studies: a table of formats, and their rows as tables of cells.

To add a format, add an entry to ``FORMATS`` and a case to ``tests/corpora/test_experiments.py``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from psychlm import frames
from psychlm.corpora import _sniff
from psychlm.frames import FrameError

# our names of times, and the usual names of their columns, without blanks, marks and case
TIMES = {
    "self_paced_ms": "rt readingtime readtime rtms rtword wordrt reactiontime responsetime latency "
    "lesezeit reaktionszeit latenz tempsdelecture tempslecture tiempo ms time duration selfpaced "
    "selfpacedms sprrt spr",
    "first_fixation_ms": "ffd firstfixation firstfixationduration firstfixationms",
    "gaze_ms": "gaze gd gazeduration gazems fprt firstpass firstpassduration firstrundwelltime",
    "go_past_ms": "gopast gopasttime gopastms rpd rpdinc regressionpath regressionpathduration",
    "total_ms": "total tft tfd trt totaltime totalms totalfixationduration dwelltime",
}
TIME_OF = {name: ours for ours, names in TIMES.items() for name in names.split()}
# the usual names of other columns, the likeliest first
USUAL = {
    "person": "subject participant subjectid subjectnr subj participantid participantnr ppt vp "
    "vpn vpnr vpcode versuchsperson versuchspersonnr proband probandin probandid teilnehmer "
    "teilnehmerin teilnehmerid reader readerid person personid sujet sujeto participante workerid "
    "prolificid prolificpid userid runid studyid recordingsessionlabel id",
    "text": "textid text itemid item itemnr itemno itemnumber sentenceid sentencenr sentenceno "
    "sentencenumber satzid satznr sentence satz passage passageid paragraph paragraphid story "
    "storyid stimulus stimulusid stim phrase frase oracion durchgang trialid",
    "word_number": "wordid wordnr wordnumber wordno wordnum wordindex wordposition wordpos "
    "wordorder wortnr wortnummer wortposition wortindex wortid nummot nmot position pos iaid ianum "
    "nr number numero region regionnr regionid",
    "word": "word wort mot palabra parola woord token words tokens wordtext wordform wortform "
    "ialabel chunk segment fragment",
    "condition": "condition cond bedingung kondition condicion version itemcondition",
    "label": "label practice ispractice type trialtype itemtype stimtype stimulustype display "
    "phase block blocktype part teil art typ experiment expt exp task list",
    "correct": "correct iscorrect questioncorrect answercorrect responsecorrect korrekt richtig "
    "fragekorrekt antwortkorrekt accuracy acc questionaccuracy questionacc",
}
FILE = "file"  # a column of files' names, which name readers where no other column does
GRADE = "Whether or not answer was correct (NULL if N/A)"


@dataclass(frozen=True)
class Format:
    """How files of a program are recognised, and which of their columns are what.

    Names of columns may hold ``*``; several that are joined stand with ``+``. Blanks, marks and
    case do not matter. What a format does not name is looked for among the usual names.
    """

    name: str
    recognised_by: str  # in words, for the guide
    needs: tuple[str, ...] = ()  # columns that each of its files has
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by role
    times: Mapping[str, str] = field(default_factory=dict)  # columns of times: our names
    never: str = ""  # what is not guessed, for the guide
    unit_ms: float = 1.0
    prepare: Callable[[pd.DataFrame], tuple[pd.DataFrame, list[str]]] | None = None

    def names(self, role: str) -> tuple[str, ...]:
        """Return the names that the column of a role may have, the likeliest first."""
        return (*self.columns.get(role, ()), *USUAL[role].split())


FIRST_PASS = {
    "IA_FIRST_FIXATION_DURATION": "first_fixation_ms",
    "IA_FIRST_RUN_DWELL_TIME": "gaze_ms",
    "IA_REGRESSION_PATH_DURATION": "go_past_ms",
}
EYELINK = {**FIRST_PASS, "IA_DWELL_TIME": "total_ms"}


def _first_pass_only(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Leave out first-pass measures of words that were first fixated after a later word."""
    label = find(rows, ["IA_LABEL"])
    others = rows.columns.difference([label])
    rows = rows.assign(**rows[others].mask(rows[others].eq(".")))
    rows[label] = rows[label].str.strip()
    times = {name: _sniff.numbers_among(rows[name])[0] for name in FIRST_PASS if name in rows}
    for by, value in {"IA_FIRST_FIX_PROGRESSIVE": 1, "IA_SKIP": 0}.items():
        if by in rows:
            first_pass = _sniff.numbers_among(rows[by])[0].eq(value)
            regressed = int((pd.DataFrame(times).gt(0).any(axis=1) & ~first_pass).sum())
            rows = rows.assign(**{name: x.where(first_pass) for name, x in times.items()})
            note = f"first-pass times of {regressed} words that were first read after a later one "
            return rows, [f"{note}are missing ({by} is not {value})"]
    note = "first-pass times may be of words that were first read after a later one; the report "
    return rows, [f"{note}tells with a column IA_FIRST_FIX_PROGRESSIVE"]


_JSPSYCH = ("subject_id", "subject", "participant_id", "participant", "PROLIFIC_PID")
_ADDRESS = "MD5 hash of participant's IP address"
FORMATS = {
    one.name: one
    for one in (
        Format(
            "Ibex or PCIbex",
            "first line a comment; comments number columns: `# 1. Results reception time.`",
            (_ADDRESS, "Reading time"),
            {
                "person": (
                    f"Results reception time+{_ADDRESS}",
                    f"Time results were received+{_ADDRESS}",
                ),
                "text": ("Sentence (or sentence MD5)",),
                "word_number": ("Word number",),
                "word": ("Word",),
                "label": ("Label", "Type"),
                "correct": (GRADE,),
            },
            {"Reading time": "self_paced_ms"},
            "Quotes: lines are split at commas, then `%2C` is a comma. A reader is an address at "
            "one time of reception.",
        ),
        Format(
            "jsPsych, plug-in 2",
            "columns `spr_words`, `spr_rts` (lists as JSON), in CSV or JSON",
            ("spr_words", "spr_rts"),
            {
                "person": _JSPSYCH,
                "text": ("item_id", "item", "sentence_id", "spr_sentence"),
                "word": ("spr_words",),
            },
            {"spr_rts": "self_paced_ms"},
            "Numbers words: they count in their list.",
        ),
        Format(
            "jsPsych, plug-in 1",
            "a column `rt_word`, in CSV or JSON",
            ("rt_word",),
            {
                "person": _JSPSYCH,
                "text": ("item_id", "item", "sentence_id", "sentence"),
                "word_number": ("word_number",),
                "word": ("word",),
            },
            {"rt_word": "self_paced_ms"},
        ),
        Format(
            "Gorilla",
            "columns `Participant Private ID`, `Reaction Time`",
            ("Participant Private ID", "Reaction Time"),
            {"person": ("Participant Private ID",), "label": ("display", "condition")},
            {"Reaction Time": "self_paced_ms"},
            "Numbers words: they count in their trial. Rows without a word may be questions.",
        ),
        Format(
            "EyeLink",
            "columns `IA_ID`, `IA_LABEL` (an interest area report)",
            ("IA_ID", "IA_LABEL"),
            {
                "person": ("RECORDING_SESSION_LABEL", "DATA_FILE"),
                "text": ("item", "itemid", "sentence_id", "text_id", "trial_id", "TRIAL_INDEX"),
                "word_number": ("IA_ID",),
                "word": ("IA_LABEL",),
            },
            EYELINK,
            "Empties cells: `.` is missing, but as a word. First-pass times are read only where "
            "`IA_FIRST_FIX_PROGRESSIVE` is 1.",
            prepare=_first_pass_only,
        ),
        Format(
            "PsychoPy",
            "columns `expName` and `*.rt`",
            ("expName", "*.rt"),
            {"person": ("participant",), "correct": ("*.corr",)},
            {"*.rt": "self_paced_ms"},
            "Writes ms: its times are seconds.",
            unit_ms=1000.0,
        ),
        Format(
            "OpenSesame",
            "columns `subject_nr` and `response_time*`",
            ("subject_nr", "response_time*"),
            {"person": ("subject_nr",), "correct": ("correct_*question*", "correct")},
            {"response_time": "self_paced_ms", "response_time_*": "self_paced_ms"},
            'Doubles marks: `\\"` in a quoted cell is one.',
        ),
        Format(
            "Linger",
            "no header: person, experiment, item, condition, position, word, ..., time",
            ("subj", "expt", "linger_rt"),
            {
                "person": ("subj",),
                "text": ("expt+item+cond",),
                "word_number": ("pos",),
                "word": ("word",),
                "label": ("expt",),
                "correct": ("correct",),
            },
            {"linger_rt": "self_paced_ms"},
            "Quotes: blanks separate cells. Position `?` is a question.",
        ),
        Format(
            "psychlm",
            "columns `subject`, `text_id`, `word_id`, `word`, `*_ms`",
            ("subject", "text_id", "word_id", "word", "*_ms"),
            {
                "person": ("subject",),
                "text": ("text_id",),
                "word_number": ("word_id",),
                "word": ("word",),
            },
        ),
        Format("a laboratory's table", "none of these; long, or wide (`Word1`, `RT1`, ...)"),
    )
}


def plain(name: object) -> str:
    """Return the name of a column without blanks, marks, case and Gorilla's prefix."""
    return re.sub(r"[\W_]+", "", str(name).casefold().removeprefix("spreadsheet:"))


def find(rows: pd.DataFrame, names: Iterable[str], used: Iterable[str] = ()) -> str:
    """Return the first of the names that columns have, as the file writes it; "" if none.

    Of several columns that fit a name with ``*`` it is the one with the most cells. Columns of a
    joined name ("a+b") are all there.
    """
    taken = {*used}
    columns = {name: (plain(name), str(name).casefold()) for name in rows if name not in taken}
    for name in names:
        found: list[str] = []
        for part in name.split("+"):
            letters = plain(part)
            pattern = part.casefold()
            fits = [
                column
                for column, (short, lower) in columns.items()
                if short == letters or ("*" in pattern and fnmatchcase(lower, pattern))
            ]
            found += [max(fits, key=lambda column: rows[column].notna().sum())] if fits else []
        if len(found) == name.count("+") + 1:
            return "+".join(map(str, found))
    return ""


# ---- from a file to rows of cells ----


def read_rows(path: Path, encoding: str | None) -> tuple[Format, pd.DataFrame, list[str]]:
    """Return the format of a file or folder, its rows as they are written, and notes."""
    if path.is_dir():
        return _rows_of_folder(path, encoding)
    notes: list[str] = []
    rows = pd.DataFrame()
    if path.suffix.lower() not in (".xlsx", ".parquet", ".sav"):
        text, name = _sniff.decode(path, encoding)
        notes = [] if name in ("UTF-8", encoding) else [f"read as {name}"]
        lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
        if path.suffix.lower() in (".json", ".jsonl") or text.lstrip()[:1] in ("[", "{"):
            rows = _rows_of_json(text, path)
        elif lines and lines[0].startswith("#") and re.search(r"^# *\d+\. ", text, re.M):
            rows, said = _rows_of_ibex(lines, path)
            notes += said
        elif lines and all(re.fullmatch(LINGER, line) for line in lines):
            rows = _rows_of_linger(lines)
    if rows.empty:
        table = _sniff.read_table(path, encoding)
        notes = table.notes
        rows = _sniff.unique_columns(table.cells)
        if rows.empty:
            raise FrameError(f"{path} has the columns {', '.join(rows.columns)}, and no rows")
    form = next(f for f in FORMATS.values() if all(find(rows, [name]) for name in f.needs))
    return form, rows.reset_index(drop=True), notes


def _rows_of_folder(folder: Path, encoding: str | None) -> tuple[Format, pd.DataFrame, list[str]]:
    """Return the rows of all files of a folder that have the format of most; name the others."""
    opened: list[tuple[Format, pd.DataFrame]] = []
    notes: list[str] = []
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in (*_sniff.SUFFIXES[:-1], ".json", ".jsonl") and file.is_file():
            try:
                form, rows, said = read_rows(file, encoding)
            except FrameError as error:
                notes.append(f"{file.name} is left out: {error}")
                continue
            notes += [f"{file.name}: {note}" for note in said]
            opened.append((form, rows if FILE in rows else rows.assign(**{FILE: file.stem})))
    if not opened:
        raise FrameError(f"{folder} holds no file that can be read; {'; '.join(notes) or 'none'}")
    names = [form.name for form, _ in opened]
    most = FORMATS[max(names, key=names.count)]
    tables = [rows for form, rows in opened if form == most]
    for form, rows in opened:
        if form != most:
            notes.append(f"{rows[FILE].iloc[0]} is left out: {form.name}, not {most.name}")
    return most, pd.concat(tables, ignore_index=True), [f"{len(tables)} files", *notes]


def _rows_of_ibex(lines: list[str], path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of results that Ibex or PCIbex wrote, with a column ``Word``.

    Comments number the columns of the rows below them; cells are never quoted, and a comma within
    one is %2C. Rows with a time are words; other rows may hold answers to questions.
    """
    names: dict[int, str] = {}
    rows = []
    for line in lines:
        header = re.match(r"#\s*(\d+)\.\s*(.*?)\.?\s*$", line)
        if header:
            place = int(header[1])
            names = {n: name for n, name in names.items() if n < place} | {place: header[2]}
        elif not line.startswith("#"):
            row: dict[str, str | None] = {}
            for n, cell in enumerate(line.split(","), 1):
                name = names.get(n, f"column {n}")
                text = re.sub("%(2C|25|0A|0D)", lambda code: chr(int(code[1], 16)), cell)
                row[name if name not in row else f"{name} ({n})"] = text or None
            rows.append(row)
    table = pd.DataFrame(rows, dtype=object)
    if "Reading time" not in table:
        raise FrameError(f"{path} has no rows with a column 'Reading time'; is it self-paced?")
    is_word = table["Reading time"].notna() & table["Reading time"].ne("NULL")
    for name, source in {"Word": "Value", "Word number": "Parameter"}.items():
        if source in table:  # PennController's, of many kinds of rows
            ours = table[name].fillna(table[source]) if name in table else table[source]
            table[name] = ours.where(is_word)
    # A trial of PennController may log the right answer beside the one that was given.
    names_of_right = ["correct_answer", "right_answer", "correct_response", "correct", "answer"]
    right = find(table, names_of_right)
    if GRADE in table or not right or "Parameter" not in table:
        return table, []
    is_answer = ~is_word & table["Parameter"].isin(["Selection", "PressedKey", "Choice"])
    is_answer &= table[right].notna() & table[right].ne("NULL")
    given = table["Value"][is_answer].str.strip().str.casefold()
    wanted = table[right][is_answer].str.strip().str.casefold()
    notes = []
    if is_answer.any() and not given.isin(wanted).any():
        # Such as "yes" for the key F: pair them so that most answers are right.
        counts = pd.crosstab(given, wanted)
        rows_of_pairs, columns_of_pairs = linear_sum_assignment(counts, maximize=True)
        right_of = dict(
            zip(counts.index[rows_of_pairs], counts.columns[columns_of_pairs], strict=True)
        )
        if 2 * counts.to_numpy()[rows_of_pairs, columns_of_pairs].sum() <= len(given):
            said = f"{sorted(counts.index)} cannot be compared with {right!r}, {sorted(counts)}"
            return table, [f"answers {said}, and are not graded"]
        given = given.map(right_of)
        said = ", ".join(f"{answer!r} = {key!r}" for answer, key in right_of.items())
        notes.append(f"answers are compared with {right!r} so that most agree: {said}")
    table[GRADE] = given.eq(wanted).astype(int).astype(str).reindex(table.index)
    return table, notes


# a line of Linger's: person, experiment, item, condition, position or ?, word, ..., time
LINGER = r"\s*(?:\S+\s+){4}(?:\d+|\?)\s+\S+(?:\s+\S+){0,3}\s+-?\d+(?:\.\d+)?\s*"


def _rows_of_linger(lines: list[str]) -> pd.DataFrame:
    """Return the rows of Linger's results, which have no header."""
    rows = []
    for line in lines:
        subj, expt, item, cond, pos, word, *others, time = line.split()
        row = {"subj": subj, "expt": expt, "item": item, "cond": cond}
        if pos == "?":
            row |= {"answer": word, "correct": others[0] if others else word}
        else:
            row |= {"pos": pos, "word": word, "linger_rt": time}
            row |= {f"column {n}": cell for n, cell in enumerate(others, 7)}
        rows.append(row)
    return pd.DataFrame(rows, dtype=object)


def _rows_of_json(text: str, path: Path) -> pd.DataFrame:
    """Return the trials of jsPsych's JSON: lists in lists, a line or an object for each reader."""

    def trials(node: Any, above: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the innermost objects, with what the objects around them say."""
        if isinstance(node, str):
            node = json.loads(node)
        if isinstance(node, list):
            return [trial for part in node for trial in trials(part, above)]
        if not isinstance(node, dict):
            return []
        parts = [
            name
            for name, value in node.items()
            if (isinstance(value, list) and value and isinstance(value[0], dict | list))
            or (isinstance(value, str) and value.lstrip().startswith("[{"))
        ]
        rest = above | {name: value for name, value in node.items() if name not in parts}
        return [t for name in parts for t in trials(node[name], rest)] if parts else [rest]

    def as_cell(value: Any) -> Any:
        """Return a value as the cell of a text file; lists stay."""
        if isinstance(value, list | str):
            return value if len(value) else None
        return str(value).lower() if isinstance(value, bool) else frames.label_of(value)

    try:
        try:
            readers = json.loads(text)
            of_lists = isinstance(readers, list) and all(isinstance(r, list) for r in readers)
            readers = readers if of_lists else [readers]
        except json.JSONDecodeError:
            readers = [json.loads(line) for line in text.splitlines() if line.strip()]
            if all(isinstance(reader, dict) for reader in readers):
                readers = [readers]  # a line for each trial
        rows = [
            {FILE: path.stem if len(readers) == 1 else f"{path.stem}-{n}"} | trial
            for n, reader in enumerate(readers, 1)
            for trial in trials(reader, {})
        ]
    except (json.JSONDecodeError, RecursionError) as error:
        raise FrameError(f"{path} is not valid JSON: {error}") from None
    if not rows:
        raise FrameError(f"{path} holds no trials; jsPsych's JSON is a list of objects")
    return pd.json_normalize(rows).map(as_cell, na_action="ignore").astype(object)


# ---- lists of words in one row ----


def list_of(cell: Any) -> list | None:
    """Return the list that a cell holds, as JSON or Python writes one; None if it holds none.

    >>> list_of('["The", "dog"]'), list_of("[sic]")
    (['The', 'dog'], None)
    """
    if isinstance(cell, list | tuple | np.ndarray):
        return list(cell)
    text = str(cell).strip()
    if text.startswith("[") and text.endswith("]"):
        for read in (json.loads, ast.literal_eval):
            try:
                return list(read(text))
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
    return None


def with_lists(rows: pd.DataFrame, word: str | None, times: Iterable[str]) -> pd.DataFrame:
    """Return a wide table (``Word1``, ``RT1`` ...) with a list in place of numbered columns.

    ``word`` and ``times`` are the names without numbers, where they are told.
    """
    stems: dict[str, dict[int, str]] = {}
    for column in rows.columns:
        match = re.fullmatch(r"(.*?[^\W\d_])[\W_]*(\d+)", str(column))
        if match and match[1] not in rows:
            stems.setdefault(match[1], {})[int(match[2])] = column
    stems = {stem: columns for stem, columns in stems.items() if len(columns) > 1}
    named = {*times}
    of_times = [s for s in stems if (s in named if named else plain(s) in TIME_OF)]
    of_words = [s for s in stems if (s == word if word else plain(s) in USUAL["word"].split())]
    if not of_times or (not of_words and find(rows, [word or "", *USUAL["word"].split()])):
        return rows
    cells = {
        stem: rows[[stems[stem][n] for n in sorted(stems[stem])]].astype(object).to_numpy()
        for stem in (*of_words[:1], *of_times)
    }
    # Cells after the last word are padding; R fills them with NA.
    first = pd.DataFrame(cells[of_times[0]])
    is_there = (first.notna() & ~first.isin(_sniff.MISSING)).to_numpy()
    if of_words:
        printed = cells[of_words[0]]
        timed = np.zeros(printed.shape, dtype=bool)
        n_shared = min(timed.shape[1], is_there.shape[1])
        timed[:, :n_shared] = is_there[:, :n_shared]
        is_there = ~pd.isna(printed) & ((printed != "NA") | timed)
    n_words = (is_there * np.arange(1, is_there.shape[1] + 1)).max(axis=1)
    lists = {
        stem: pd.Series([list(row[:n]) or None for row, n in zip(x, n_words, strict=True)])
        for stem, x in cells.items()
    }
    used = [column for stem in lists for column in stems[stem].values()]
    return rows.drop(columns=used).assign(**lists)
