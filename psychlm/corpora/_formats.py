"""What the tables of formats are made of: how a file is recognised, and which columns are what.

Tests (``_answer_formats``), logs (``_logs``) and reading studies (``_reading_formats``) each have a
table ``FORMATS``. To add a format, add an entry there and a case to the tests of cases.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize

import pandas as pd

from psychlm.frames import FrameError, format_names, label_of

# the usual names of columns by role, the likeliest first, without blanks, marks and case
USUAL = {
    "person": "person personid participant participantid participantnr participantprivateid "
    "student studentid pupil pupilid learner learnerid candidate candidateid examinee examineeid "
    "pid respondent respondentid subject subjectid subjectnr subj ppt vp vpn vpnr "
    "vpcode vpnummer versuchsperson versuchspersonnr proband probandin probandid teilnehmer "
    "teilnehmerin teilnehmerid schüler schülerin matrikelnr élève alumno "
    "reader readerid sujet sujeto participante proefpersoon ppn user "
    "worker workerid player playername prolificid prolificpid responseid recordid userid uuid "
    "runid studyid recordingsessionlabel id",
    "item": "item variable question itemid questionid sampleid docid instanceid taskid itemnr "
    "itemno itemnumber itemname questionkey questionnr questionno questionnumber problem problemid "
    "aufgabe aufgabenid aufgabennr aufgabennummer frage frageid fragennr fragennummer itemnummer "
    "pregunta ejercicio domanda esercizio vraag opgave",
    "answer": "correct score rating iscorrect acc accuracy grade value resp "
    "evaluationiscorrect evaluationscore *.corr *.acc passed verdict exactmatch richtig "
    "korrekt punkte juste correcto corretto goed response "
    "answer antwort réponse respuesta risposta antwoord",
    "repeat": "repeat epoch attempt trial wave rater seed run replicate",
    "text": "textid text itemid item itemnr itemno itemnumber sentenceid sentencenr "
    "sentenceno sentencenumber satzid satznr satznummer sentence satz zin passage passageid "
    "paragraph paragraphid story storyid stimulus stimulusid stim phrase frase oracion "
    "oracionid fraseid phraseid zinid durchgang trialid",
    "word_number": "wordid wordnr wordnumber wordno wordnum wordindex wordposition wordpos "
    "posición wordorder wortnr wortnummer wortposition wortindex wortid nummot nmot position "
    "posicion pos zone iaid ianum nr number numero region regionnr regionid",
    "word": "word wort mot palabra parola woord token words tokens wordtext wordform "
    "wortform ialabel chunk segment fragment",
    "condition": "condition cond bedingung kondition condicion version itemcondition",
    "label": "label practice ispractice type trialtype itemtype stimtype stimulustype display "
    "phase block blocktype part teil art typ experiment expt exp task list",
    "correct": "correct iscorrect questioncorrect answercorrect responsecorrect korrekt richtig "
    "fragekorrekt antwortkorrekt fragerichtig antwortrichtig accuracy acc questionaccuracy "
    "questionacc correcto correcta juste exact goed corretto",
}
# words for right and wrong answers
GRADES = dict.fromkeys(["true", "correct", "right", "richtig", "korrekt"], 1.0)
WRONG = ("incorrect", "wrong", "falsch")
GRADES |= dict.fromkeys(["false", *WRONG], 0.0)
PRACTICE = re.compile(
    r"(?i)(?<![a-z])(?:practi[cs]e|training|warm-?up|(?:ue|ü)bung(?:en)?|entra[iî]nement"
    r"|probe(?:durchgang|durchgänge|block|lauf|phase))(?![a-z])"  # an English probe is no practice
)
Read = TypeVar("Read")
# errors of pandas and JSON: ValueErrors; of Arrow and zip: OSErrors; and of logs of other shapes
UNREADABLE = (ValueError, OSError, zipfile.BadZipFile)
OF_OTHER_SHAPE = (KeyError, TypeError, AttributeError, NotImplementedError)


@dataclass(frozen=True)
class Format:
    """How files of a program are recognised, and which of their columns are what.

    Names of columns stand in one text, the likeliest first, written without their blanks; marks and
    case do not matter, ``*`` stands for any letters, and ``+`` joins several. What a format does
    not name is looked for among the usual names.
    """

    name: str
    recognised_by: str  # in words, for the guides
    needs: str = ""  # columns, or keys of a log, that each of its files has
    columns: Mapping[str, str] = field(default_factory=dict)  # by role
    never: str = ""  # what is not guessed, for the guides
    is_it: Callable[[pd.DataFrame], bool] | None = None  # where needs do not tell
    prepare: Callable[..., tuple[pd.DataFrame, list[str]]] | None = None  # its rows, and notes
    answers: Callable[..., Iterator[dict[str, Any]]] | None = None  # of a log
    times: Mapping[str, str] = field(default_factory=dict)  # columns of times: our names
    unit_ms: float = 1.0

    def own_names(self, role: str) -> list[str]:
        """Return the names that the column of a role has in files of this program."""
        return self.columns.get(role, "").split()

    def names(self, role: str) -> list[str]:
        """Return the names that the column of a role may have, the likeliest first."""
        return self.own_names(role) + USUAL.get(role, "").split()

    def fits(self, rows: pd.DataFrame) -> bool:
        """Return whether rows are those of a file of this program."""
        return self.is_it(rows) if self.is_it else all(find(rows, [n]) for n in self.needs.split())


def plain(name: object) -> str:
    """Return the name of a column without blanks, marks, case and Gorilla's prefix."""
    return re.sub(r"[\W_]+", "", str(name).casefold().removeprefix("spreadsheet:"))


def find(rows: pd.DataFrame, names: Iterable[str], used: Iterable[str] = ()) -> str:
    """Return the first of the names that columns have, as the file writes it; "" if none.

    Of several columns that fit a name with ``*`` it is one of lists, or the one with the most
    cells. Columns of a joined name ("a+b") are all there.
    """

    def fullest(column: str) -> tuple[bool, int]:
        cells = rows[column].dropna()
        return isinstance(cells.iloc[0] if len(cells) else None, list), len(cells)

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
                if (letters and short == letters) or ("*" in part and fnmatchcase(lower, pattern))
            ]
            found += [max(fits, key=fullest)] if fits else []
        if len(found) == name.count("+") + 1:
            return "+".join(map(str, found))
    return ""


def kinds_of(rows: pd.DataFrame, name: str) -> pd.Series:
    """Return the kinds of trials that a column names; "yes" in a column ``practice`` is one."""
    cells = rows[name].map(label_of, na_action="ignore").astype("str").str.strip()
    if PRACTICE.search(name.replace("_", " ")):
        yes = cells.str.casefold().isin(["1", "1.0", "true", "yes", "ja", "practice"])
        return cells.mask(yes, "practice").mask(~yes, cells.str.replace(PRACTICE, "", regex=True))
    return cells


def practice_in(
    rows: pd.DataFrame, names: Iterable[str], is_trial: pd.Series
) -> tuple[str, pd.Series]:
    """Return the first column that tells practice from other trials, or "", and the practice."""
    for name in names:
        is_practice = kinds_of(rows, name).str.contains(PRACTICE).eq(True)
        if 0 < is_practice[is_trial].sum() < is_trial.sum():
            return name, is_practice
    return "", pd.Series(False, rows.index)


def filtered_rows(
    rows: pd.DataFrame, wanted: str | None, counted: pd.Series
) -> tuple[pd.Series, list[str]]:
    """Return which rows a filter, ``"COLUMN=VALUE,VALUE;OTHER=*"``, takes, and its columns.

    A filter that takes no row that is ``counted`` is a :class:`FrameError`.
    """
    is_taken = pd.Series(True, rows.index)
    columns = []
    for clause in wanted.split(";") if wanted else ():
        name, _, values = (part.strip() for part in clause.partition("="))
        check_column([name], rows, "; a filter is COLUMN=VALUE, or COLUMN=* for all rows")
        columns.append(name)
        cells = rows[name].map(label_of, na_action="ignore").astype("str").str.strip()
        if values != "*":
            is_taken &= cells.isin([values, *(value.strip() for value in values.split(","))])
        if not (counted & is_taken).any():
            there = cells[counted].value_counts().head(8).to_dict()
            raise FrameError(f"no row has {name} = {values}; there are {there}")
    return is_taken, columns


def without_blanks(cells: pd.Series) -> pd.Series:
    """Return labels composed (NFC) and without blanks at their ends, which make no other label."""
    return cells.map(lambda one: normalize("NFC", one.strip()) if isinstance(one, str) else one)


def warn_of_case(labels: Iterable[object], what: str, notes: list[str]) -> None:
    """Warn of labels that differ in capital and small letters only."""
    names = pd.Index(
        dict.fromkeys(str(one) for one in labels if isinstance(one, str)), dtype=object
    )
    twice = names[names.map(str.casefold).duplicated(keep=False)]
    if len(twice):
        said = f"{what} {format_names(twice)} differ in capital letters only"
        notes.append(f"{said}, and are different ones; write them alike where they are one")
        warnings.warn(notes[-1], stacklevel=5)


def one_label(rows: pd.DataFrame, names: Iterable[str], notes: list[str]) -> None:
    """Take blanks off the ends of labels in columns, in place, and warn of labels of other case."""
    for name in dict.fromkeys(filter(None, names)):
        rows[name] = without_blanks(rows[name])
        warn_of_case(rows[name].unique(), f"labels of {name!r},", notes)


def series_of(columns: Iterable[object]) -> dict[str, dict[int, str]]:
    """Return columns that are numbered, ``{"RT": {1: "RT1", 2: "RT2"}}``, by name and number."""
    stems: dict[str, dict[int, str]] = {}
    for column in columns:
        match = re.fullmatch(r"(.*?[^\W\d_])[\W_]*(\d+)(\.[A-Za-z]\w*)?", str(column))
        if match:  # E-Prime writes ``Word1.RT``
            stem = match[1] + (match[3] or "")
            stems.setdefault(stem, {})[int(match[2])] = str(column)
    return stems


def check_column(names: Iterable[str], columns: Iterable[object], more: str = "") -> None:
    """Refuse names of columns that a file has not."""
    have = list(columns)
    known = set(have)
    if unknown := [name for name in dict.fromkeys(names) if name not in known]:
        shown = repr(unknown[0]) if len(unknown) == 1 else format_names(unknown)
        there = ", ".join(map(str, have[:40])) + (f", and {len(have) - 40} more" * (len(have) > 40))
        raise FrameError(f"there is no column {shown}; the file has {there}{more}")


def read_each(
    files: Iterable[Path], read: Callable[[Path], Read]
) -> tuple[dict[Path, Read], list[str]]:
    """Return what is read of each file, and notes that name those which cannot be read, and why."""
    found: dict[Path, Read] = {}
    notes: list[str] = []
    for file in files:
        try:
            found[file] = read(file)
        except (*UNREADABLE, *OF_OTHER_SHAPE) as error:
            why = str(error).removeprefix(str(file)).lstrip(": ")
            notes.append(f"{file.name} is left out ({why})")
    return found, notes


@contextmanager
def naming(file: Path) -> Iterator[list[str]]:
    """Raise what goes wrong with a file as one FrameError that names it, and how it was read.

    Notes of how it was read are put into the list; a guessed encoding is named with the error.
    """
    notes: list[str] = []
    try:
        yield notes
    except FileNotFoundError:
        raise FrameError(f"{file} does not exist; name a file or a folder") from None
    except ImportError as error:
        extra = {".xlsx": "openpyxl", ".sav": "pyreadstat"}.get(file.suffix, str(error.name))
        raise FrameError(
            f"{file} needs the package {extra} ({error}); pip install {extra}, or save it as CSV"
        ) from error
    except UNREADABLE as error:
        said = str(error)
        if not isinstance(error, FrameError):
            said = f"{file} cannot be read as a table or a log ({error})"
        elif not said.startswith(str(file)):
            said = f"{file}: {said}"
        guessed = [note for note in notes if note.startswith("read as")]
        hint = f" ({guessed[0]}; encoding= names another)" if guessed else ""
        raise FrameError(said + hint) from None if isinstance(error, FrameError) else error
