"""Tables of reading experiments as laboratories have them, read as a corpus."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from psychlm import frames
from psychlm.corpora.reading_times import Corpus, from_csv, from_long
from psychlm.frames import FrameError

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
        The first of ``notes`` says which columns were read as what.

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
        corpus = from_csv(table, readings)
        if measure and measure not in corpus.readings:
            times = [name for name in corpus.readings if name.endswith("_ms")]
            raise FrameError(f"{readings} has no column {measure!r}; its times are {times}")
        return corpus
    given = dict(columns or {})
    if unknown := sorted(given.keys() - set(IDS)):
        raise FrameError(f"columns name {unknown}; they name the columns of {list(IDS)}")
    frame = _read(Path(table))
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
    if program == "EyeLink":
        chosen = chosen.replace({".": None})
    corpus = from_long(chosen, measures=measures, **ids)
    names = ids | {ours: theirs for theirs, ours in measures.items()}
    said = ", ".join(f"{ours} = {theirs}" for ours, theirs in names.items())
    note = f"the table is read as {program}'s: {said}"
    return replace(corpus, notes=(note, *corpus.notes))


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
    there = long[stems[0]].notna()
    return long[there].sort_values([*ids, number], ignore_index=True)[[*ids, number, *stems]]


def _read(path: Path) -> pd.DataFrame:
    """Read a table by its suffix, or results of PCIbex, whose header stands in comments."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    with path.open(encoding="utf-8-sig", errors="replace") as opened:
        if opened.readline().startswith("# "):
            return _pcibex(path)
    return frames.read_csv(path, keep_default_na=False, na_values=["", "NA"])


def _pcibex(path: Path) -> pd.DataFrame:
    """Return the readings in a file of results that PCIbex or Ibex wrote.

    Comments number the columns of the rows below them. PennController writes word and number as
    Value and Parameter. A participant is the time of results and the hash of an address."""
    names: dict[int, str] = {}
    rows = []
    with path.open(newline="", encoding="utf-8-sig") as opened:
        for cells in csv.reader(opened):
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
