"""The files of reading studies: a table of formats, and their rows as tables of cells.

``FORMATS`` says what is read; see ``_formats``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from psychlm.corpora import _encodings, _sniff
from psychlm.corpora._formats import USUAL, Format, find, plain, series_of
from psychlm.corpora._sniff import FILE
from psychlm.frames import FrameError

# our names of times, and the usual names of their columns, without blanks, marks and case
TIMES = {
    "self_paced_ms": "rt rts readingtime readtime rtword wordrt reactiontime responsetime "
    "latency lesezeit lz zeit reaktionszeit latenz tempsdelecture tempslecture temps "
    "tiempo ms time duration selfpaced sprrt spr leestijd tr tiempodelectura",
    "first_fixation_ms": "ffd ff firstfixation firstfixationduration firstfixationtime "
    "wordfirstfixdur firstfixdur",
    "gaze_ms": "gaze gd gazeduration gazetime fprt fp firstpass firstpassduration "
    "firstpasstime firstpassreadingtime firstrundwelltime wordfirstpassdur firstrundur",
    "go_past_ms": "gopast gopasttime gopastduration gpt rpd rpdinc rpt regressionpath "
    "regressionpathduration regressionpathtime wordgopasttime firstrungopast",
    "total_ms": "total tft tfd trt tt totaltime totalduration totalreadingtime dwelltime "
    "totalfixationduration totalfixationtime totaldwelltime wordtotalfixdur",
}
TIME_OF = {f"{n}{ms}": ours for ours, x in TIMES.items() for n in x.split() for ms in ("", "ms")}
A_TEXT = ["sentence", "satz", "text", "stimulus", "phrase"]
QUESTION = re.compile("(?i)question|frage|compreh|probe")
GRADE = "Whether or not answer was correct (NULL if N/A)"
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


def _stimuli(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return trials whose stimulus is a word, and no cross, with the word without tags of HTML."""
    if find(rows, USUAL["word"].split()):
        return rows, []
    stimulus = rows[find(rows, ["stimulus"])].str.replace("<[^>]*>", "", regex=True)
    text = stimulus.map(unescape, "ignore").str.strip()
    return rows.assign(word=text.where(text.str.fullmatch(r"(?![+*]+$)\S+").eq(True))), []


def _readers_in_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return columns of readers (``p1, p2`` ...) as rows, where no column names readers or times.

    Their names are those of persons, or the letters P, S and R, with a number.
    """
    persons = {"p", "s", "r", *USUAL["person"].split()}
    series = {plain(stem): columns for stem, columns in series_of(rows).items()}
    stem = next((stem for stem, columns in series.items() if len(columns) > 1), "")
    if stem not in persons or find(rows, [*USUAL["person"].split(), *TIME_OF]):
        return rows, []
    readers = list(series[stem].values())
    others = [name for name in rows if name not in readers]
    long = rows.melt(others, readers, var_name="reader", value_name="reading time")
    return long, [f"columns {', '.join(readers)} are readers, and their numbers reading times"]


_JSPSYCH = "subject_id subject participant_id participant prolific_pid"
_ADDRESS = "MD5HashOfParticipantsIPAddress"
FORMATS = [
    Format(
        "Ibex or PCIbex",
        "first line a comment; comments number columns: `# 1. Results reception time.`",
        f"{_ADDRESS} ReadingTime",
        {
            "person": f"ResultsReceptionTime+{_ADDRESS} TimeResultsWereReceived+{_ADDRESS}",
            "text": "SentenceOrSentenceMD5",
            "word_number": "WordNumber",
            "word": "Word",
            "label": "Label Type",
            "correct": "".join(GRADE.split()),
        },
        times={"Reading time": "self_paced_ms"},
        never="Quotes: lines are split at commas, then `%2C` is a comma. A reader is an "
        "address at one time of reception.",
    ),
    Format(
        "jsPsych, plug-in 2",
        "columns `spr_words`, `spr_rts` (lists as JSON), in CSV or JSON",
        "spr_words spr_rts",
        {"person": _JSPSYCH, "text": "item_id item sentence_id spr_sentence", "word": "spr_words"},
        times={"spr_rts": "self_paced_ms"},
        never="Numbers words: they count in their list.",
    ),
    Format(
        "jsPsych, plug-in 1",
        "a column `rt_word`, in CSV or JSON",
        "rt_word",
        {
            "person": _JSPSYCH,
            "text": "item_id item sentence_id sentence",
            "word_number": "word_number",
            "word": "word",
        },
        times={"rt_word": "self_paced_ms"},
    ),
    Format(
        "jsPsych, a trial for each word",
        "columns `trial_type`, `stimulus`, `rt`, in CSV or JSON",
        "trial_type stimulus rt",
        {"person": _JSPSYCH, "word": "word"},
        times={"rt": "self_paced_ms"},
        never="Keeps tags of HTML. A stimulus of several words is no word.",
        prepare=_stimuli,
    ),
    Format(
        "Gorilla",
        "columns `Participant Private ID`, `Reaction Time`",
        "ParticipantPrivateID ReactionTime",
        {"person": "ParticipantPrivateID", "label": "display condition"},
        times={"Reaction Time": "self_paced_ms"},
        never="Numbers words: they count in their trial. Rows without a word may be questions.",
    ),
    Format(
        "EyeLink",
        "columns `IA_ID`, `IA_LABEL` (an interest area report)",
        "IA_ID IA_LABEL",
        {
            "person": "RECORDING_SESSION_LABEL DATA_FILE",
            # readers may see texts in other orders: the order names a text where nothing else does
            "text": f"{USUAL['text']} TRIAL_INDEX",
            "word_number": "IA_ID",
            "word": "IA_LABEL",
        },
        times=EYELINK,
        never="Empties cells: `.` is missing, but as a word. First-pass times are read "
        "only where `IA_FIRST_FIX_PROGRESSIVE` is 1.",
        prepare=_first_pass_only,
    ),
    Format(
        "PsychoPy",
        "columns `expName` and `*.rt`",
        "expName *.rt",
        {"person": "participant", "correct": "*.corr"},
        times={"*.rt": "self_paced_ms"},
        never="Writes ms: its times are seconds.",
        unit_ms=1000.0,
    ),
    Format(
        "E-Prime",
        "columns `ExperimentName` and `*.RT` (E-DataAid: export as text; or merged)",
        "ExperimentName *.RT",
        {"person": "Subject", "correct": "*question*.ACC *.ACC"},
        times={"*word*.RT": "self_paced_ms", "*.RT": "self_paced_ms"},
    ),
    Format(
        "OpenSesame",
        "columns `subject_nr` and `response_time*`",
        "subject_nr response_time*",
        {"person": "subject_nr", "correct": "correct_*question* correct"},
        times={"response_time": "self_paced_ms", "response_time_*": "self_paced_ms"},
        never='Doubles marks: `\\"` in a quoted cell is one.',
    ),
    Format(
        "Linger",
        "no header: person, experiment, item, condition, position, word, ..., time",
        "subj expt linger_rt",
        {
            "person": "subj",
            "text": "expt+item+cond",
            "word_number": "pos",
            "word": "word",
            "label": "expt",
            "correct": "correct",
        },
        times={"linger_rt": "self_paced_ms"},
        never="Quotes: blanks separate cells. Position `?` is a question.",
    ),
    Format(
        "psychlm",
        "columns `subject`, `text_id`, `word_id`, `word`, `*_ms`",
        "subject text_id word_id word *_ms",
        {"person": "subject", "text": "text_id", "word_number": "word_id", "word": "word"},
    ),
    Format(
        "a laboratory's table",
        "none of these; a row for each reader and word, or for each text (`Word1`, `RT1`, ...), or "
        "for each word, with readers in columns (`P1`, `VP2` ...)",
        prepare=_readers_in_rows,
    ),
]


# ---- from a file to rows of cells ----


def read_rows(path: Path, encoding: str | None) -> tuple[Format, pd.DataFrame, list[str]]:
    """Return the format of a file or folder, its rows as they are written, and notes."""
    if path.is_dir():
        return _rows_of_folder(path, encoding)
    notes: list[str] = []
    rows = pd.DataFrame()
    if path.suffix.lower() not in _sniff.TYPED:
        text, name = _encodings.decode(path, encoding)
        notes = [] if name in ("UTF-8", encoding) else [f"read as {name}"]
        lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
        if path.suffix.lower() in _sniff.JSON or text.lstrip()[:1] in ("[", "{"):
            rows = _sniff.rows_of_json(text, path)
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
    form = next(form for form in FORMATS if form.fits(rows))
    return form, rows.reset_index(drop=True), notes


def _rows_of_folder(folder: Path, encoding: str | None) -> tuple[Format, pd.DataFrame, list[str]]:
    """Return the rows of all files of a folder that have the format of most; name the others."""
    opened, notes = _sniff.read_alike(
        folder, lambda file: read_rows(file, encoding), lambda read: read[0].name
    )
    tables = []
    for file, (_, rows, said) in opened.items():
        notes += [f"{file.name}: {note}" for note in said]
        tables.append(rows if FILE in rows else rows.assign(**{FILE: file.stem}))
    form = next(iter(opened.values()))[0]
    return form, pd.concat(tables, ignore_index=True), notes


def _rows_of_ibex(lines: list[str], path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of results that Ibex or PCIbex wrote: of words, with a time, and others.

    Comments number the columns of the rows below them; cells are never quoted.
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


# ---- lists of words in one row ----


def list_of(cell: Any) -> list | None:
    """Return the list that a cell holds, as JSON or Python writes one; None for "[sic]"."""
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


def of_words_only(rows: pd.DataFrame, word: str, times: Collection[str]) -> list[str]:
    """Return the columns of the parts of trials that have the reading times, but for those that
    have cells in rows without a word.

    >>> rows = pd.DataFrame({"Sentence": ["The boat."], "W1.ACC": [1], "Question.ACC": [0]})
    >>> of_words_only(rows, "Sentence", ["W.RT"])
    ['W1.ACC']
    """
    parts = {name.rpartition(".")[0] for name in times if not QUESTION.search(name)} - {""}
    series = {name: stem for stem, names in series_of(rows).items() for name in names.values()}
    others = rows[rows[word].isna()] if word else rows[:0]
    return [
        name
        for name in rows
        if {str(name).rpartition(".")[0], series.get(name, "").rpartition(".")[0]} & parts
        and not others[name].notna().any()
    ]


def with_lists(
    rows: pd.DataFrame, form: Format, word: str | None, times: Collection[str]
) -> pd.DataFrame:
    """Return a wide table (``Word1``, ``RT1`` ...) with a list in place of numbered columns.

    ``word`` and ``times`` are the names without numbers, where they are told.
    """
    stems = series_of(rows)
    stems = {stem: c for stem, c in stems.items() if len(c) > 1 and stem not in rows}
    of_words = [s for s in stems if (s == word if word else plain(s) in USUAL["word"].split())]
    of_times = [s for s in stems if plain(s) in TIME_OF]
    if not of_times and (of_words or find(rows, A_TEXT)):
        of_times = [s for s in stems if any(fnmatchcase(s, name) for name in form.times)]
        of_times.sort(key=lambda stem: bool(QUESTION.search(stem)))
    of_times = [s for s in stems if s in times] if times else of_times
    if not of_times or (not of_words and find(rows, [word or "", *USUAL["word"].split()])):
        return rows
    cells = {
        stem: rows[[stems[stem][n] for n in sorted(stems[stem])]].astype(object).to_numpy()
        for stem in (*of_words[:1], *of_times)
    }
    # Cells after the last word are padding; R fills them with NA, E-Prime with NULL.
    first = pd.DataFrame(cells[of_times[0]])
    is_there = (first.notna() & ~first.isin(_sniff.MISSING)).to_numpy()
    if of_words:
        printed = cells[of_words[0]]
        timed = np.zeros(printed.shape, dtype=bool)
        n_shared = min(timed.shape[1], is_there.shape[1])
        timed[:, :n_shared] = is_there[:, :n_shared]
        is_there = ~pd.isna(printed) & (~pd.DataFrame(printed).isin(_sniff.MISSING) | timed)
        is_there = is_there.to_numpy()
    n_words = (is_there * np.arange(1, is_there.shape[1] + 1)).max(axis=1)
    lists = {
        stem: pd.Series([list(row[:n]) or None for row, n in zip(x, n_words, strict=True)])
        for stem, x in cells.items()
    }
    used = [column for stem in lists for column in stems[stem].values()]
    return rows.drop(columns=used).assign(**lists)
