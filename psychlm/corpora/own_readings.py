"""Corpora of reading times from files of your own, or from a dataset that pymovements downloads."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import pandas as pd

from psychlm import frames
from psychlm.frames import FrameError, format_names, refuse


@dataclass(frozen=True)
class Corpus:
    """A reading-time corpus: its words, and who read which for how long."""

    words: pd.DataFrame  # a words frame with position (in the text), length_chars and predictors
    readings: pd.DataFrame  # times by subject ("mean" of released means), text_id and word_id
    surprisals: pd.DataFrame | None = None  # text_id, word_id, bits by released model
    notes: tuple[str, ...] = ()  # what the reader left out, with counts


def from_long(
    frame: pd.DataFrame,
    *,
    measures: Mapping[str, str],
    subject: str = "Subject",
    item: str = "Item",
    word_number: str = "WordNr",
    word: str = "Word",
) -> Corpus:
    """Make a corpus of the usual file of a laboratory: one row per person and word.

    Columns that are the same for all readings of a word become columns of ``words``, the others
    (trial numbers, conditions that differ between people) columns of ``readings``. Rows without
    person, item, number or word are dropped, and times of 0 ms, which programs write for a skipped
    word, are missing; ``notes`` count both. A table that lacks a column, or has two words at one
    place or two readings of a word by one person, is a :class:`FrameError`.

    Parameters
    ----------
    frame : DataFrame
    measures : mapping
        Columns with times in ms, and their names here: ``{"RT": "self_paced_ms"}``.
    subject, item, word_number, word : str
        The columns that hold the person, the text (sentence), the word's number in it, from 1, and
        the word as printed.

    Examples
    --------
    >>> table = pd.DataFrame({"Subject": [1, 1, 2, 2], "Item": 7, "WordNr": [1, 2, 1, 2],
    ...     "Word": ["Dogs", "bark."] * 2, "RT": [310, 295, 402, 377]})
    >>> corpus = from_long(table, measures={"RT": "self_paced_ms"})
    >>> corpus.words[["text_id", "word_id", "word", "length_chars"]].to_numpy().tolist()
    [['7', 1, 'Dogs', 4], ['7', 2, 'bark.', 4]]
    """
    ids = {subject: "subject", item: "text_id", word_number: "word_id", word: "word"}
    names = ids | dict(measures)
    missing = [name for name in names if name not in frame.columns]
    there = f"there are {list(frame.columns)}: name yours, for instance subject='ID'"
    refuse("columns", missing, f"are missing; {there}")
    badly_named = [name for name in measures.values() if not name.endswith("_ms")]
    refuse("measures", badly_named, "need names that end in _ms (and times in ms)")
    refuse(
        "columns",
        [new for old, new in names.items() if new != old and new in frame.columns],
        f"are there beside those that get these names ({names}); drop or rename them, or name "
        "them as the columns to read (item='text_id')",
    )
    table = frames.plain(frame).rename(columns=names)
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
    for name in measures.values():
        given = frames.numbers_of(table[name])
        table[name] = pd.to_numeric(given, errors="coerce")
        if wrong := int((table[name].isna() & given.notna()).sum()):
            notes.append(f"{wrong} values of {name!r} that are no numbers are missing")
    table, unread = skipped_as_missing(table)
    notes += unread
    table = frames.check_readings(table)

    # Each place in a text has one word, and what is the same for all its readings belongs to it.
    keys = ["text_id", "word_id"]
    same = table.groupby(keys).nunique(dropna=False).le(1).all()
    if not same["word"]:
        places = table.groupby(keys)["word"].nunique()
        raise FrameError(
            f"several words stand at (text_id, word_id) {format_names(places.index[places > 1])}; "
            "give each version of an item (condition) an id of its own: Item + '-' + Condition"
        )
    of_readings = ("subject", *measures.values())
    of_words = [n for n in table.columns if same.get(n, False) and n not in of_readings]
    words = table[[*keys, *of_words]].drop_duplicates(keys).sort_values(keys, ignore_index=True)
    readings = table.drop(columns=of_words)
    for name, n_missing in readings[[*measures.values()]].isna().sum().items():
        if n_missing:
            notes.append(f"{n_missing} of {len(readings)} readings have no {name!r}")
    return Corpus(with_predictors(frames.check_words(words)), readings, None, tuple(notes))


def from_csv(words: str | Path, readings: str | Path) -> Corpus:
    """Read your own corpus from two CSV files.

    Columns are separated by a comma, a semicolon or a tab; "310,5" is a number where the comma
    separates nothing. A time of 0 ms is missing, and counted in ``notes``. A reading of a word that
    is not among the words is a :class:`FrameError`.

    Parameters
    ----------
    words : path
        One row per word, whole texts: ``text_id``, ``word_id`` (1, 2, ... in each text), ``word``
        (as printed, with its punctuation), and any predictors (``log_frequency``, ``line`` ...);
        ``position`` and ``length_chars`` (letters and digits) are added where they are absent.
    readings : path
        One row per person and word: ``subject``, ``text_id``, ``word_id`` and at least one measure
        in ms whose name ends in ``_ms``; an empty cell, or NA, where a word was skipped.

    Examples
    --------
    >>> _ = Path("words.csv").write_text("text_id,word_id,word\\nt,1,Good\\nt,2,day.\\n")
    >>> _ = Path("times.csv").write_text("subject,text_id,word_id,gaze_ms\\ns1,t,1,210\\n")
    >>> from_csv("words.csv", "times.csv").readings["gaze_ms"].tolist()
    [210]
    """
    text = ("text_id", "word", "subject")
    word_table, reading_table = (frames.read_csv(path, text) for path in (words, readings))
    # An empty cell for a space means that there is none.
    spaces = word_table.columns.intersection(["space_before", "space_after"])
    word_table[spaces] = word_table[spaces].astype(object).fillna("").infer_objects()
    reading_table, notes = skipped_as_missing(reading_table)
    word_table, reading_table = frames.check_words(word_table), frames.check_readings(reading_table)
    keys = ["text_id", "word_id"]
    read = pd.MultiIndex.from_frame(reading_table[keys])
    unknown = read[~read.isin(pd.MultiIndex.from_frame(word_table[keys]))].tolist()
    if unknown:
        raise FrameError(
            f"{len(unknown)} readings are of words that {words} does not have, first {unknown[0]} "
            "(text_id, word_id); do both files count words from 1 in each text?"
        )
    return Corpus(with_predictors(word_table), reading_table, None, tuple(notes))


def skipped_as_missing(readings: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times of 0 ms are missing, and a note for each measure that has any."""
    zero = readings.filter(regex="_ms$").apply(pd.to_numeric, errors="coerce").eq(0)
    notes = [
        f"{count} of {len(readings)} times {name!r} are 0 ms (not fixated) and missing"
        for name, count in zero.sum().items()
        if count
    ]
    times = {name: readings[name].mask(rows) for name, rows in zero.items()}
    return readings.assign(**times), notes


def with_predictors(words: pd.DataFrame) -> pd.DataFrame:
    """Compose the words (NFC); add ``position`` and ``length_chars`` (letters and digits) where
    they are absent."""
    words = words.assign(word=words["word"].str.normalize("NFC"))
    length = frames.without_marks(words["word"]).str.count(r"[^\W_]")
    added = {"position": words["word_id"], "length_chars": length}
    return words.assign(**{name: x for name, x in added.items() if name not in words})


# ---- tables of programs ----

IDS = ("subject", "item", "word_number", "word")
EYELINK = {
    "IA_FIRST_FIXATION_DURATION": "first_fixation_ms",
    "IA_FIRST_RUN_DWELL_TIME": "gaze_ms",
    "IA_REGRESSION_PATH_DURATION": "go_past_ms",
    "IA_DWELL_TIME": "total_ms",
}
SELF_PACED = "self_paced_ms"
# Columns of programs: those of IDS in this order, and times with our names.
LAYOUTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "PCIbex": (("Participant", "Sentence", "Word number", "Word"), {"Reading time": SELF_PACED}),
    "jsPsych": (("subject_id", "sentence", "word_number", "word"), {"rt_word": SELF_PACED}),
    "EyeLink": (("RECORDING_SESSION_LABEL", "item", "IA_ID", "IA_LABEL"), EYELINK),
    "a laboratory's table": (("Subject", "Item", "WordNr", "Word"), {"RT": SELF_PACED}),
    "psychlm": (("subject", "text_id", "word_id", "word"), {}),
}
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


def read_experiment(
    table: str | Path,
    readings: str | Path | None = None,
    *,
    measure: str = "",
    columns: Mapping[str, str] | None = None,
) -> Corpus:
    """Read a reading experiment from one table, or from a file of words and one of readings.

    Parameters
    ----------
    table : path
        With ``readings``: the words, see :func:`psychlm.corpora.reading_times.from_csv`. Alone: a
        row for each person and word (long), or for each person and sentence, whose columns end in
        the number of the word (wide: ``Word1``, ``RT1``, ``Word2`` ...); results of PCIbex as they
        are downloaded, of jsPsych's plug-in for self-paced reading, EyeLink's interest area report
        (whose text needs a column ``item``), or any other table whose columns are named.
    readings : path, optional
    measure : str
        The column of times in ms, of one table; all that the program is known to write unless
        given. A name that does not end in ``_ms`` becomes ``self_paced_ms``.
    columns : mapping, optional
        Columns of one table: ``{"subject": "ID", "item": "Sentence", "word_number": "Nr", "word":
        "W"}``; those that are not named are the program's.

    Returns
    -------
    Corpus
        Words and ids are as they are written ("NA", "007"). The first of ``notes`` says which
        columns were read as what.

    Examples
    --------
    >>> _ = Path("results.csv").write_text("ID,Item,WordNr,Word,RT\\ns1,1,1,Good,310\\n")
    >>> study = read_experiment("results.csv", measure="RT", columns={"subject": "ID"})
    >>> study.readings["self_paced_ms"].tolist()
    [310]
    """
    for file in (table, readings):
        if file and not Path(file).is_file():
            raise FrameError(f"{file} does not exist; name a table of readings (CSV)")
    if readings:
        if columns:
            raise FrameError("columns= names those of one table; rename those of two files")
        corpus = from_csv(table, readings)
        if measure and measure not in corpus.readings:
            times = list(corpus.readings.filter(regex="_ms$"))
            raise FrameError(f"{readings} has no column {measure!r}; its times are {times}")
        return corpus
    given = dict(columns or {})
    if unknown := sorted(given.keys() - set(IDS)):
        raise FrameError(f"columns name {unknown}; they name the columns of {list(IDS)}")
    frame, notes = _read(Path(table), given, measure)
    chosen = frame if not given else _long_format(frame, given, measure)
    program, ids, measures = _recognise(list(chosen.columns), given, measure)
    if not measures:
        expected = "; ".join(
            f"{name}: {', '.join((*ids, *(times or ['*_ms'])))}"
            for name, (ids, times) in LAYOUTS.items()
        )
        raise FrameError(
            f"{table} has the header {', '.join(map(str, frame.columns))}, which is none of those "
            f"expected ({expected}). Name the columns: columns={{'subject': ..., 'item': ..., "
            "'word_number': ..., 'word': ...} and measure='...'"
        )
    if program == "EyeLink":  # which writes "." for none, and a word may be one
        others = chosen.columns.difference([ids["word"]])
        chosen = chosen.assign(**chosen[others].replace({".": None}))
    corpus = from_long(chosen, measures=measures, **ids)
    names = ids | {ours: theirs for theirs, ours in measures.items()}
    said = ", ".join(f"{ours} = {theirs}" for ours, theirs in names.items())
    return replace(
        corpus, notes=(f"the table is read as {program}'s: {said}", *notes, *corpus.notes)
    )


def _recognise(
    header: list[str], given: Mapping[str, str], measure: str
) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the program, its columns of IDS and its times, whose columns are all there, with those
    given in place of its own; nothing if there is none."""
    for program, (columns, times) in LAYOUTS.items():
        ids = dict(zip(IDS, columns, strict=True)) | dict(given)
        measures = times or {name: name for name in header if str(name).endswith("_ms")}
        if measure in header:
            ours = measure if measure.endswith("_ms") else SELF_PACED
            measures = {measure: measures.get(measure, ours)}
        elif measure:
            measures = {theirs: ours for theirs, ours in measures.items() if ours == measure}
        there = {theirs: ours for theirs, ours in measures.items() if theirs in header}
        if set(ids.values()) <= set(header) and there:
            return "a table with named columns" if given else program, ids, there
    return "", {}, {}


def _long_format(frame: pd.DataFrame, columns: Mapping[str, str], measure: str) -> pd.DataFrame:
    """Return a wide table with one row per person and word; any other table as it is.

    In a wide table the columns of words and times end in the number of the word."""
    stems = [columns.get("word", "Word"), measure]
    ids = [columns.get("subject"), columns.get("item")]
    pattern = rf"({'|'.join(map(re.escape, stems))})[._]?\d+"
    numbered = [name for name in frame if re.fullmatch(pattern, str(name))]
    if not numbered or not measure or set(stems) & set(frame.columns) or None in ids:
        return frame
    plain = frame.rename(columns={name: re.sub(r"[._]?(\d+)$", r"\1", name) for name in numbered})
    number = columns.get("word_number", "WordNr")
    long = pd.wide_to_long(plain, stems, i=ids, j=number).reset_index()
    # R fills the columns after the last word of a sentence with NA.
    is_word = long[stems[0]].notna() & (long[stems[0]].ne("NA") | long[measure].notna())
    last = long[number].where(is_word).groupby([long[name] for name in ids]).transform("max")
    there = long[stems[0]].notna() & (long[number] <= last)
    return long[there].sort_values([*ids, number], ignore_index=True)[[*ids, number, *stems]]


def _read(path: Path, given: Mapping[str, str], measure: str) -> tuple[pd.DataFrame, list[str]]:
    """Read a table by its suffix, or results of PCIbex, whose header stands in comments; with a
    note of the words and ids "NA", which R writes for missing ones."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path), []
    with path.open(encoding="utf-8-sig", errors="replace") as opened:
        if opened.readline().startswith("# "):
            return _pcibex(path), []
    header = frames.header_of(path)[1]
    ids = {"word": "Word", **given, **_recognise(header, given, measure)[1]}
    names = [name for what, name in ids.items() if what != "word_number"]
    of_word = re.compile(rf"{re.escape(ids['word'])}[._]?\d+")  # of a wide table
    text = [name for name in header if name in names or of_word.fullmatch(name)]
    table = frames.read_csv(path, text)
    counts = {name: int(table[name].eq("NA").sum()) for name in text if name in names}
    said = "'NA' in {} cells of {!r} is read as text, not as a missing value"
    return table, [said.format(count, name) for name, count in counts.items() if count]


def _pcibex(path: Path) -> pd.DataFrame:
    """Return the readings in a file of results that PCIbex or Ibex wrote.

    Comments number the columns of the rows below them. PennController writes word and number as
    Value and Parameter. A participant is the time of results and the hash of an address."""
    names: dict[int, str] = {}
    rows = []
    with path.open(newline="", encoding="utf-8-sig") as opened:
        for line in opened:  # no cell holds a line break, and a mark without its pair is text
            paired = line.count('"') % 2 == 0
            cells = next(csv.reader([line]), []) if paired else line.rstrip("\r\n").split(",")
            header = re.match(r"#\s*(\d+)\.\s*(.*?)\.?\s*$", ",".join(cells))
            if header:
                names = {} if header[1] == "1" else names
                names[int(header[1])] = header[2]
            elif cells and not cells[0].startswith("#"):
                row = {names.get(n, f"column {n}"): cell for n, cell in enumerate(cells, 1)}
                if row.get("Reading time", "NULL") not in ("NULL", ""):
                    rows.append(row)
    table = pd.DataFrame(rows)
    if table.empty:
        raise FrameError(f"{path} has no rows with a column 'Reading time'; is it self-paced?")
    table = table.rename(columns={"Sentence (or sentence MD5)": "Sentence"})
    if "Word" not in table:
        table = table.rename(columns={"Parameter": "Word number", "Value": "Word"})
    who = [name for name in table if re.match("Results reception time|MD5 hash", name)]
    return table.assign(Participant=table[who].astype(str).agg("-".join, axis=1))
