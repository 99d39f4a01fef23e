"""Corpora of reading times from files of your own, or from a dataset that pymovements downloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from psychlm import frames
from psychlm.frames import FrameError, format_names


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
    word, are missing; ``notes`` count both.

    Parameters
    ----------
    frame : DataFrame
    measures : mapping
        Columns with times in ms, and their names here: ``{"RT": "self_paced_ms"}``.
    subject, item, word_number, word : str
        The columns that hold the person, the text (sentence), the word's number in it, from 1, and
        the word as printed.

    Raises
    ------
    FrameError
        If a column is missing, a number is not whole, a person read a word twice, or two people
        read different words at one place.

    Examples
    --------
    >>> table = pd.DataFrame({"Subject": [1, 1, 2, 2], "Item": 7, "WordNr": [1, 2, 1, 2],
    ...     "Word": ["Dogs", "bark."] * 2, "RT": [310, 295, 402, 377]})
    >>> corpus = from_long(table, measures={"RT": "self_paced_ms"})
    >>> corpus.words[["text_id", "word_id", "word", "length_chars"]].to_numpy().tolist()
    [['7', 1, 'Dogs', 4], ['7', 2, 'bark.', 4]]
    """
    ids = {subject: "subject", item: "text_id", word_number: "word_id", word: "word"}
    missing = [name for name in (*ids, *measures) if name not in frame.columns]
    if missing:
        raise FrameError(
            f"columns {missing} are missing; there are {list(frame.columns)}: name yours, "
            "for instance subject='ID'"
        )
    badly_named = [name for name in measures.values() if not name.endswith("_ms")]
    if badly_named:
        raise FrameError(f"measures {badly_named} need names that end in _ms (and times in ms)")
    names = ids | dict(measures)
    beside = [new for old, new in names.items() if new != old and new in frame.columns]
    if beside:
        raise FrameError(
            f"columns {beside} are there beside those that get these names ({names}); drop or "
            "rename them, or name them as the columns to read (item='text_id')"
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
    for name in measures.values():
        given = frames.numbers_of(table[name])
        times = pd.to_numeric(given, errors="coerce")
        wrong = int((times.isna() & given.notna()).sum())
        notes += [f"{wrong} values of {name!r} that are no numbers are missing"] if wrong else []
        table[name] = times
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
    notes += [
        f"{int(readings[name].isna().sum())} of {len(readings)} readings have no {name!r}"
        for name in measures.values()
        if readings[name].isna().any()
    ]
    return Corpus(with_predictors(frames.check_words(words)), readings, None, tuple(notes))


def from_csv(words: str | Path, readings: str | Path) -> Corpus:
    """Read your own corpus from two CSV files.

    Columns are separated by a comma, a semicolon or a tab; "310,5" is a number where the comma
    separates nothing. A time of 0 ms is missing, and counted in ``notes``.

    Parameters
    ----------
    words : path
        One row per word, whole texts: ``text_id``, ``word_id`` (1, 2, ... in each text), ``word``
        (as printed, with its punctuation), and any predictors (``log_frequency``, ``line`` ...);
        ``position`` and ``length_chars`` (letters and digits) are added where they are absent.
    readings : path
        One row per person and word: ``subject``, ``text_id``, ``word_id`` and at least one measure
        in ms whose name ends in ``_ms``; an empty cell where a word was skipped.

    Raises
    ------
    FrameError
        If a column is missing, a row occurs twice or has more cells than the header, or a word was
        read that is not among the words.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words, readings = Path(folder) / "words.csv", Path(folder) / "readings.csv"
    ...     _ = words.write_text("text_id,word_id,word\\nt,1,Good\\nt,2,day.\\n")
    ...     _ = readings.write_text("subject,text_id,word_id,gaze_ms\\ns1,t,1,210\\ns1,t,2,250\\n")
    ...     from_csv(words, readings).readings["gaze_ms"].tolist()
    [210, 250]
    """
    text = {"text_id": str, "word": str, "subject": str}
    word_table, reading_table = (
        frames.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])
        for path in (words, readings)
    )
    # An empty cell for a space means that there is none.
    spaces = word_table.columns.intersection(["space_before", "space_after"])
    word_table[spaces] = word_table[spaces].astype(object).fillna("").infer_objects()
    reading_table, notes = skipped_as_missing(reading_table)
    word_table, reading_table = frames.check_words(word_table), frames.check_readings(reading_table)
    listed, read = (
        pd.MultiIndex.from_frame(table[["text_id", "word_id"]])
        for table in (word_table, reading_table)
    )
    unknown = read[~read.isin(listed)].tolist()
    if unknown:
        raise FrameError(
            f"{len(unknown)} readings are of words that {words} does not have, first {unknown[0]} "
            "(text_id, word_id); do both files count words from 1 in each text?"
        )
    return Corpus(with_predictors(word_table), reading_table, None, tuple(notes))


def skipped_as_missing(readings: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times of 0 ms are missing, and a note for each measure that has any."""
    readings, notes = readings.copy(), []
    for name in (name for name in readings.columns if str(name).endswith("_ms")):
        zero = pd.to_numeric(readings[name], errors="coerce") == 0
        if zero.any():
            said = f"{int(zero.sum())} of {len(readings)} times {name!r} are 0 ms"
            notes.append(f"{said} (not fixated) and missing")
            readings[name] = readings[name].mask(zero)
    return readings, notes


# Word-level columns of the corpora that pymovements names: person, text, number of the word, word;
# then first fixation, gaze duration (first pass), go-past (regression path) and total time.
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
PYMOVEMENTS_MEASURES = ("first_fixation_ms", "gaze_ms", "go_past_ms", "total_ms")


def from_pymovements(
    name: str, folder: str | Path, *, columns: str | None = None, query: str | None = None
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
    if query is not None:
        table = table.query(query)
    subject, text, number, word, *times = (columns or PYMOVEMENTS[name]).split()
    needed = [subject, *text.split("+"), number, word, *times]
    if missing := [column for column in needed if column not in table.columns]:
        raise FrameError(
            f"{name} in {folder} has no columns {missing}, but {list(table.columns)}; name its "
            "columns with columns='...'"
        )
    times_ms = table[times].apply(pd.to_numeric, errors="coerce")
    long = times_ms.set_axis(PYMOVEMENTS_MEASURES, axis=1).assign(
        Subject=table[subject],
        Item=table[text.split("+")].astype(str).agg("-".join, axis=1),
        WordNr=table[number] + (table[number].min() == 0),  # some count from 0
        Word=table[word].astype("string").str.strip().astype(object),
    )
    return from_long(long, measures={measure: measure for measure in PYMOVEMENTS_MEASURES})


def with_predictors(words: pd.DataFrame) -> pd.DataFrame:
    """Add ``position`` and ``length_chars`` (letters and digits) where they are absent."""
    added = {"position": words["word_id"], "length_chars": words["word"].str.count(r"[^\W_]")}
    return words.assign(**{name: x for name, x in added.items() if name not in words})
