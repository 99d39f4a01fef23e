"""Files as tables of cells: which separator, and whether quotation marks quote.

The first step of every reader of tables. Cells of text files stay as they are written ("007",
"NA"); what they mean is decided by the roles of their columns.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv

from psychlm.corpora._encodings import decode
from psychlm.corpora._formats import Read, read_each
from psychlm.frames import FrameError, is_numeric, label_of, refuse

# cells of a column of numbers that stand for none: what pandas takes for missing
MISSING = """#N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan
null""".split()
MISSING += ["#N/A N/A"]
NUMBER = r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?"
SEPARATORS = ",;\t|"
QUOTED = r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*"(?=[,;\t|]|$)'
# a row of Winsteps, ConQuest, TAM, scanners ...: who, and a digit or letter for each item
FIXED = r"(\S+(?:[ \t]+\S+)*?)[ \t]+([0-9.*]{3,}|[A-H.*]{4,})"
WIDE = 2000  # columns beyond which numbers are kept as one array
BLANK = ["", " ", "  ", "   "]
TEXTS = (".csv", ".tsv", ".txt", ".dat", ".tab", ".xls", "")
JSON = (".json", ".jsonl")
TYPED = (".xlsx", ".parquet", ".sav", ".dta")
FILE = "file"  # a column of files' names, which name readers where no other column does


@dataclass(frozen=True)
class Table:
    """The cells of a file, and what had to be decided to read them."""

    cells: pd.DataFrame  # text as written, NaN where empty; typed columns of typed files
    notes: list[str] = field(default_factory=list)  # "read as Windows-1252", ...


def separator_of(lines: Sequence[str]) -> str:
    """Return the mark that occurs equally often in most of the first lines."""
    unquoted = [re.sub('"[^"]*"', "x", line) for line in lines[:20] if line]

    def regularity(separator: str) -> tuple[int, int]:
        (usual, n_lines), *_ = Counter(line.count(separator) for line in unquoted).most_common(1)
        return (n_lines, usual) if usual else (0, 0)

    best = max(SEPARATORS, key=regularity)
    if regularity(best) == (0, 0) and len(unquoted) > 1:
        # write.table of R: a header may lack the name of the column of row names
        counts = [len(line.split(" ")) for line in unquoted]
        if min(counts) > 1 and len(set(counts[1:])) == 1 and counts[1] - counts[0] in (0, 1):
            best = " "
    return best


def rows_of(text: str, separator: str, where: object) -> list[list[str]]:
    """Return the rows of a text as lists of cells, without blank lines.

    Text with quotation marks is read in three ways: as quoted cells with doubled marks, as quoted
    cells with ``\\"`` for a mark, and as cells without quotation. The way in which most rows have
    as many cells as the header is taken, the earlier of equal ones; unquoted lines that are all
    whole are not joined to longer rows. Rows with more cells than the header are a
    :class:`FrameError`.
    """
    lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
    unquoted = [line.split(separator) for line in lines]
    readings: list[list[list[str]]] = []
    ways: list[dict[str, Any]] = [{}] if '"' in text else []
    ways += [{"escapechar": "\\", "doublequote": False}] if '\\"' in text else []
    for options in ways:
        parser = csv.reader(io.StringIO(text), delimiter=separator, strict=True, **options)
        with contextlib.suppress(csv.Error):
            readings.append([row for row in parser if any(map(str.strip, row))])
    readings.append(unquoted)
    n_irregular = [sum(len(row) != len(rows[0]) for row in rows) for rows in readings]
    rows = readings[int(np.argmin(n_irregular))]
    if n_irregular[-1] == 0 and len(rows) < len(unquoted):
        rows = unquoted
    is_quoted = rows is not unquoted
    n_cells = len(rows[0])
    if len(rows) > 1 and all(len(row) == n_cells + 1 for row in rows[1:]):
        # write.table of R does not name the column of row names; others end each row with a mark
        if any(row[-1].strip() for row in rows[1:]):
            rows = [["", *rows[0]], *rows[1:]]
        else:
            rows = [rows[0], *(row[:-1] for row in rows[1:])]
        n_cells = len(rows[0])
    wrong = [number for number, row in enumerate(rows, 1) if len(row) > n_cells]
    if is_quoted:
        for number, row in enumerate(rows, 1):
            for place, cell in enumerate(row):
                # a cell of several lines may also be lines of which some are incomplete
                parts = cell.splitlines() if separator in cell and "\n" in cell else [""]
                first = place + parts[0].count(separator) + 1
                last = parts[-1].count(separator) + n_cells - place
                if len(parts) > 1 and n_cells in (first, last):
                    wrong.append(number)
    elif '"' in text and any(cell.startswith('"') for cell in rows[0]):
        wrong.append(1)  # marks around names of columns quote: marks within the rows are no text
    if wrong:
        raise FrameError(
            f"{where}: rows have more cells than the {n_cells} names of the header, or a quotation "
            f"mark is not closed (row {wrong[0]}: {separator.join(rows[wrong[0] - 1])[:80]!r}); "
            "name every column, quote cells that hold the separator, and double marks in quoted "
            "cells"
        )
    return rows


def read_table(
    path: str | Path,
    encoding: str | None = None,
    *,
    labels: bool = False,
    spaces: bool = False,
    sheet: str = "",
) -> Table:
    """Read a file of cells: CSV and its relatives, JSON, Excel, Parquet, SPSS or Stata.

    With ``labels`` values of SPSS and Stata are their labels, not their codes. Cells of spaces are
    missing unless ``spaces``.

    >>> _ = Path("a.csv").write_text("id;word\\n007;NA\\n")
    >>> read_table("a.csv").cells.to_numpy().tolist()
    [['007', 'NA']]
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        cells = pd.read_parquet(path)
        named = [name for name in cells.index.names if name is not None]
        return Table(_with_text_for_nested(cells.reset_index(level=named) if named else cells))
    if suffix == ".sav":
        # values that are declared as missing are missing here too
        return Table(pd.read_spss(path, convert_categoricals=labels))
    if suffix == ".dta":
        return Table(pd.read_stata(path, convert_categoricals=labels))
    if suffix == ".xlsx":
        return _excel_cells(path, sheet)
    if suffix not in (*TEXTS, *JSON):
        in_r = "; in R: write.csv(x, 'x.csv')" if suffix in (".rds", ".rdata", ".rda") else ""
        raise FrameError(f"files {suffix} are not read; save it as CSV, xlsx, Parquet or sav{in_r}")
    text, name = decode(path, encoding)
    notes = [] if name in ("UTF-8", encoding) else [f"read as {name}"]
    if suffix in JSON:
        return Table(_with_text_for_nested(rows_of_json(text, path).drop(columns=FILE)), notes)
    text = re.sub("\r\n?", "\n", text)
    text = re.sub(r"\Asep=.\n", "", text)  # Excel's first line
    # quoted cells of several lines, as names of questions are, become one line of the same length
    flat = re.sub(QUOTED, lambda cell: cell[0].replace("\n", " "), text[:100_000], flags=re.M)
    start = [line for line in flat.split("\n")[:20] if line.strip()]
    if not start:
        raise FrameError(f"{path} is empty")
    if re.search(r"(?mi)^\s*&END\b", text):
        raise FrameError(
            f"{path} is a control file of Winsteps: save the lines of persons, below END NAMES or "
            "END LABELS, as a file of their own (who, a blank, and a digit or letter for each item)"
        )
    if (cells := _fixed_cells(text)) is not None:
        return Table(
            cells, [*notes, "a digit or letter is the answer to an item; there is no header"]
        )
    separator = separator_of(start)
    # titles above the header are lines of fewer than half of the cells
    n_marks = [re.sub('"[^"]*"', "", line).count(separator) for line in start]
    n_titles = next(n for n, count in enumerate(n_marks) if count >= max(n_marks) / 2)
    if n_titles:
        notes.append(f"{n_titles} rows above the header")
        text = text[flat.index(start[n_titles]) :]
    blank = [""] if spaces else BLANK
    plain = None if '"' in text else _plain_cells(text.strip("\n"), separator, blank)
    if plain is None:
        header, *rows = rows_of(text, separator, path)
        n_short = len(header) * len(rows) - sum(map(len, rows))
        notes += [f"rows have {n_short} cells fewer than the header has names"] if n_short else []
        padded = [row + [""] * (len(header) - len(row)) for row in rows]
        cells = pd.DataFrame(padded, columns=range(len(header)), dtype=str)
        cells = cells.mask(cells.isin(blank))
    else:
        header, cells = plain
    cells = cells[cells.notna().any(axis=1)].reset_index(drop=True)
    cells = cells.set_axis([normalize("NFC", name.strip()) for name in header], axis=1)
    # columns behind the last separator of each line
    cells = cells.loc[:, (cells.columns != "") | cells.notna().any().to_numpy()]
    if not cells.shape[1]:
        raise FrameError(f"{path} is empty but for separators of cells, {separator!r}")
    return Table(_with_one_header(cells, notes), notes)


def with_header_as_row(cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return a table without a header, whose first row was taken for it, under other names."""
    first = pd.DataFrame([list(map(str, cells.columns))], columns=names)
    return pd.concat([first, cells.set_axis(names, axis=1)], ignore_index=True)


def _with_one_header(cells: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return a table without rows that repeat its header, as files put together have them."""
    names = list(map(str, cells.columns))
    is_header = cells.iloc[:, 0].eq(names[0])
    if not is_header.any() or len(set(names)) < len(names) or max(map(len, names)) == 1:
        return cells
    is_header[is_header] = cells[is_header].fillna("").eq(names).all(axis=1)
    notes += [f"{is_header.sum()} rows repeat the header"] if is_header.any() else []
    return cells[~is_header].reset_index(drop=True)


def read_alike(
    folder: Path, read: Callable[[Path], Read], kind_of: Callable[[Read], Hashable]
) -> tuple[dict[Path, Read], list[str]]:
    """Return what is read of a folder's files of the kind that most have; notes name the others."""
    suffixes = (*TEXTS, *JSON, *TYPED)
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and f.suffix.lower() in suffixes]
    found, notes = read_each(files, read)
    if not found:
        raise FrameError(f"{folder} holds no file that can be read; {'; '.join(notes) or 'none'}")
    kinds = {file: kind_of(one) for file, one in found.items()}
    (usual, n_usual), *_ = Counter(kinds.values()).most_common(1)
    others = {file: kind for file, kind in kinds.items() if kind != usual}
    for file, kind in others.items():
        why = f"{kind}, not {usual}" if isinstance(kind, str) else "other columns"
        notes.append(f"{file.name} is left out ({why})")
    alike = {file: one for file, one in found.items() if file not in others}
    return alike, [f"{n_usual} files", *notes]


def read_tables(path: Path, encoding: str | None = None, *, labels: bool = False) -> Table:
    """Read a file, or all files of a folder whose header is that of most; the others are named."""
    if not path.is_dir():
        return read_table(path, encoding, labels=labels)
    tables, notes = read_alike(
        path,
        lambda file: read_table(file, encoding, labels=labels),
        lambda table: frozenset(table.cells.columns),
    )
    cells = pd.concat([table.cells for table in tables.values()], ignore_index=True)
    return Table(cells, notes)


def _excel_cells(path: Path, pattern: str) -> Table:
    """Return the largest sheet of a file of Excel, joined with all of the same header.

    A sheet whose name fits a ``pattern`` is taken instead. The column ``file`` of joined
    sheets holds their names.

    Cells that are merged over several rows hold in each of these rows.
    """
    from openpyxl import load_workbook

    options: dict[str, Any] = {"header": None, "dtype": object, "keep_default_na": False}
    workbook = load_workbook(path, data_only=True)
    for sheet in workbook.worksheets:
        for block in list(sheet.merged_cells.ranges):  # filled downwards
            column = [row[0] for row in sheet[block.coord]]
            sheet.unmerge_cells(block.coord)
            for cell in column[1:]:
                sheet.cell(cell.row, cell.column, column[0].value)
    sheets = pd.read_excel(workbook, sheet_name=None, engine="openpyxl", na_values=[""], **options)
    wanted = [name for name in sheets if pattern and re.fullmatch(pattern, name.strip())]
    name = max(wanted or sheets, key=lambda name: sheets[name].notna().to_numpy().sum())
    table = _cells_of_sheet(sheets[name], path)
    if len(sheets) == 1:
        return table
    tables: dict[str, Table] = {}
    for other, cells in sheets.items():
        with contextlib.suppress(FrameError):
            tables[other] = _cells_of_sheet(cells, path)
    header = set(table.cells)
    alike = {n: t.cells for n, t in tables.items() if set(t.cells) == header and len(t.cells)}
    unique = len(header) == table.cells.shape[1]
    if wanted or len(alike) < 2 or not unique or FILE in header:
        return Table(table.cells, [f"sheet {name!r} of {list(sheets)}", *table.notes])
    joined = pd.concat([c.assign(**{FILE: n}) for n, c in alike.items()], ignore_index=True)
    note = (
        f"{len(alike)} sheets of one header are joined, {list(alike)}; one alone: filter='{FILE}="
    )
    others = [n for n in sheets if n not in alike]
    left_out = [f"sheets {others} are left out (other columns)"] if others else []
    return Table(joined, [f"{note}{name}'", *left_out, *table.notes])


def _cells_of_sheet(cells: pd.DataFrame, path: Path) -> Table:
    """Return the cells of a sheet below its header, the first row that is filled by more than half.

    Columns of one name get the names that the row above the header has for them, "Part A: 1".
    """
    cells = cells.dropna(how="all").dropna(axis=1, how="all")
    if not len(cells):
        raise FrameError(f"{path} is empty")
    n_filled = cells.notna().sum(axis=1)
    first = int(np.argmax((n_filled > n_filled.max() / 2).to_numpy()))
    notes = [f"{first} rows above the header"] if first else []
    texts = cells.map(lambda one: label_of(one).strip(), na_action="ignore")
    names = texts.iloc[first].fillna("")
    if first and names[names != ""].duplicated().any():
        above = texts.iloc[first - 1].ffill().fillna("")
        names = names.mask(names.duplicated(keep=False), (above + ": " + names).str.strip(": "))
    header = [normalize("NFC", name) for name in names]
    cells = texts.iloc[first + 1 :].reset_index(drop=True).set_axis(header, axis=1)
    return Table(_with_one_header(cells, notes), notes)


def _fixed_cells(text: str) -> pd.DataFrame | None:
    """Return the cells of lines such as "01 f 0110", with an answer for each item; else None.

    Answers that begin in the same column of all lines may be blank, where most are whole.
    """
    written = [line.rstrip() for line in text.split("\n") if line.strip()]
    found = [match for line in written if (match := re.fullmatch(FIXED, line.strip()))]
    lines = [(match[1].split(), [*match[2]]) for match in found]
    widths = {(len(about), len(answers)) for about, answers in lines}
    if len(lines) < max(len(written), 2) or len(widths) > 1:
        starts = [match.start(2) for match in found]
        first = min(starts, default=0)
        if not first or 2 * starts.count(first) < len(written):
            return None
        n_items = max(map(len, written)) - first
        lines = [(line[:first].split(), [*line[first:].ljust(n_items)]) for line in written]
        answers = "".join(line[first:] for line in written)
        is_whole = re.fullmatch(r"[0-9.* ]+|[A-H.* ]+", answers)
        is_apart = all(line[first - 1 : first] == " " for line in written)
        if not (is_whole and is_apart) or len({len(about) for about, _ in lines}) > 1:
            return None
    about, digits = lines[0]
    names = ["person", *(f"column {place}" for place in range(2, len(about) + 1))]
    items = [f"item {place}" for place in range(1, len(digits) + 1)]
    cells = pd.DataFrame([a + d for a, d in lines], columns=[*names, *items], dtype=str)
    return cells.mask(cells.eq(" "))


def _plain_cells(
    text: str, separator: str, blank: list[str]
) -> tuple[list[str], pd.DataFrame] | None:
    """Return header and cells of lines without quotation marks; None if their lengths differ."""
    first, _, body = text.partition("\n")
    header = first.split(separator)
    places = [str(place) for place in range(len(header))]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(body.encode()),
            arrow_csv.ReadOptions(column_names=places, block_size=2**24, use_threads=False),
            arrow_csv.ParseOptions(delimiter=separator, quote_char=False),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.large_string()),
                strings_can_be_null=True,
                null_values=blank,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(header) > WIDE:
        # one array of numbers: as many columns of text would take ten times the memory and time
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = [column.cast(pa.float64()).to_numpy() for column in table.columns[1:]]
            names = pd.Series(table.column(0).to_pandas(), name=0, dtype=str)
            values = pd.DataFrame(np.column_stack(numbers), columns=range(1, len(header)))
            return header, pd.concat([names, values], axis=1)
    as_text = pd.StringDtype("pyarrow", na_value=np.nan)
    return header, table.to_pandas(types_mapper={pa.large_string(): as_text}.get)


def rows_of_json(text: str, path: Path) -> pd.DataFrame:
    """Return the innermost objects of JSON as rows, with what the objects around them say.

    JSON is a list of objects, of lists of them (one for each reader), or an object a line; the
    column ``file`` tells the readers apart.
    """

    def trials(node: Any, above: dict[str, Any]) -> list[dict[str, Any]]:
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
        return str(value).lower() if isinstance(value, bool) else label_of(value)

    try:
        try:
            readers = json.loads(text)
        except json.JSONDecodeError:  # an object, or the list of a reader, on each line
            readers = [json.loads(line) for line in text.split("\n") if line.strip()]
        several = list(readers.values()) if isinstance(readers, dict) else []
        if len(several) > 1 and all(isinstance(value, dict | list) for value in several):
            # an object or a list for each person, under the person's name
            readers = [
                [{"participant": name} | trial for trial in trials(value, {})]
                for name, value in readers.items()
            ]
        if not (isinstance(readers, list) and all(isinstance(r, list) for r in readers)):
            readers = [readers]
        rows = [
            {FILE: path.stem if len(readers) == 1 else f"{path.stem}-{n}"} | trial
            for n, reader in enumerate(readers, 1)
            for trial in trials(reader, {})
        ]
    except (json.JSONDecodeError, RecursionError) as error:
        raise FrameError(f"{path} is not valid JSON: {error}") from None
    if not rows:
        raise FrameError(f"{path} holds no rows; JSON is a list of objects")
    return pd.json_normalize(rows).map(as_cell, na_action="ignore").astype(object)


def _with_text_for_nested(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose cells that hold lists or objects, as JSON and Parquet can, are text."""

    def as_cell(value: Any) -> Any:
        if isinstance(value, list | dict | np.ndarray):
            return json.dumps(value, ensure_ascii=False, default=str)
        return value

    return cells.apply(lambda column: column.map(as_cell) if column.dtype == object else column)


def unique_columns(cells: pd.DataFrame, number: bool = False) -> pd.DataFrame:
    """Return a table whose columns have one name each; refuse it otherwise.

    A column without a name is named by its place: "column 3"; with ``number`` the second column of
    a name is too: "1.0 (column 5)".
    """
    header = [str(name) or f"column {place}" for place, name in enumerate(cells.columns, 1)]
    names = pd.Index(header)
    twice = names.duplicated()
    if number:
        header = [f"{n} (column {k})" if twice[k - 1] else n for k, n in enumerate(header, 1)]
    else:
        is_data = any(
            cells.iloc[:, k].astype(str).eq(header[k]).any() for k in np.flatnonzero(twice)
        )
        why = "the first row looks like data: write a row of names above it, or " * is_data
        refuse("columns", names[twice], f"occur more than once; {why}rename or remove them")
    return cells.set_axis(header, axis=1)


def read_csv(
    path: str | Path, text: Collection[str] = (), encoding: str | None = None
) -> pd.DataFrame:
    """Read a table whose columns are text (words, ids) or numbers.

    Cells of the columns in ``text`` stay as they are written ("NA", "007"), and only an empty one
    is missing. Other columns are numbers where all their cells are, and "NA" is missing there.

    >>> _ = Path("a.csv").write_text("word;ms\\nNA;310,5\\nb;NA\\n")
    >>> read_csv("a.csv", ["word"]).to_numpy().tolist()
    [['NA', 310.5], ['b', nan]]
    """
    cells = unique_columns(read_table(path, encoding, spaces=True).cells)
    return with_numbers(cells, text)


def with_numbers(
    cells: pd.DataFrame, text: Collection[str] = (), strict: bool = True
) -> pd.DataFrame:
    """Return a table whose columns are numbers where all their cells are, but those of ``text``.

    Unless ``strict``, numbers that can be read in two ways stay text, as lists do. An empty cell of
    ``space_before`` or ``space_after`` is text: there is no space.
    """
    spaces = cells.columns.intersection(["space_before", "space_after"])
    table = cells.assign(**cells[spaces].astype(object).fillna("").infer_objects())
    for name in cells.columns.difference([*text, *spaces], sort=False):
        if not strict and table[name].map(lambda cell: isinstance(cell, list | dict)).any():
            table[name] = table[name].astype("str")
        with contextlib.suppress(*(() if strict else (FrameError,))):
            table[name] = numbers_of(table[name].mask(table[name].eq("NA")))
    return table


def numbers_of(values: pd.Series) -> pd.Series:
    """Return text as numbers if all of it is that does not stand for missing; else as it is."""
    if is_numeric(values):
        return values
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        # most columns hold plain numbers
        plain = pa.array(values, from_pandas=True).cast(pa.float64())
        return pd.Series(plain.to_numpy(zero_copy_only=False), values.index, name=values.name)
    text = values.dropna().astype(str).str.strip()
    text = text[~text.isin(["", *MISSING])]
    if not len(text) or not text.str.fullmatch(NUMBER).all():
        return values
    numbers, others = numbers_among(values)
    return values if len(others) else numbers


def numbers_among(values: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return a column as numbers, missing where there is none, and the values that are none.

    One rule for the whole column: where a number has both a point and a comma, the later one
    marks decimals and the other one thousands ("1.204,3"); where a comma is followed by other
    than three digits, it marks decimals. Numbers such as "1,234" beside others without a comma, or
    "1.234" beside "432", could be read in two ways and are a :class:`FrameError`. Values that stand
    for missing are not among those that are no numbers.

    >>> numbers, others = numbers_among(pd.Series(["310,5", "1.204,3", "timeout", "NA", None]))
    >>> numbers.tolist(), others.tolist()
    ([310.5, 1204.3, nan, nan, nan], ['timeout'])
    """
    if is_numeric(values):
        return values, values.iloc[:0]
    if not values.index.is_unique:  # rows of one person
        numbers, others = numbers_among(values.reset_index(drop=True))
        return numbers.set_axis(values.index), others
    text = values.dropna().astype(str).str.strip()
    text = text[~text.isin(["", *MISSING])]
    like_number = text[text.str.fullmatch(NUMBER)]
    _check_points(like_number)
    numbers = pd.to_numeric(like_number, errors="coerce")
    if numbers.isna().any():
        numbers = pd.to_numeric(_with_points(like_number), errors="coerce")
    numbers = numbers.astype(float)
    return numbers.reindex(values.index), text[numbers.reindex(text.index).isna()]


def _check_points(text: pd.Series) -> None:
    """Refuse numbers such as "1.637" beside "432" and "960", but none above: German thousands?"""
    is_grouped = text.str.fullmatch(r"[1-9]\d{0,2}(\.\d{3})+")
    if is_grouped.any() and text[~is_grouped].str.fullmatch(r"\d{1,3}").all():
        others = text[~is_grouped]
        if len(others) and others.astype(int).median() >= 100:
            grouped = text[is_grouped].iloc[0]
            raise FrameError(
                f"{text.name!r} holds {grouped!r} beside {others.iloc[0]!r}, so that the point may "
                f"mark thousands or decimals; write {grouped.replace('.', '')!r} if thousands, or "
                f"else all numbers with decimals, as '{others.iloc[0]}.0'"
            )


def _with_points(text: pd.Series) -> pd.Series:
    """Return numbers with a point for decimals and no mark for thousands; others as they are."""
    has_comma = text.str.contains(",", regex=False)
    commas = text[has_comma]
    both = commas[commas.str.contains(".", regex=False)]
    if len(both):
        comma_is_decimal = bool((both.str.rfind(",") > both.str.rfind(".")).all())
    else:
        three_digits = commas.str.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
        if 0 < len(commas) < len(text) and three_digits.all():
            raise FrameError(
                f"{text.name!r} holds numbers such as {commas.iloc[0]!r}, where the comma may mark "
                "thousands or decimals; write them without it, or with a point"
            )
        comma_is_decimal = not commas.str.count(",").gt(1).all()
    decimal, thousands = (",", ".") if comma_is_decimal else (".", ",")
    grouped = rf"[-+]?\d{{1,3}}(?:[{thousands}]\d{{3}})+(?:[{decimal}]\d+)?"
    is_grouped = text.str.fullmatch(grouped)
    points = text.mask(is_grouped, text.str.replace(thousands, "", regex=False))
    is_number = is_grouped | text.str.fullmatch(rf"[-+]?\d*[{decimal}]?\d*(?:[eE][-+]?\d+)?")
    return points.str.replace(decimal, ".", regex=False).where(is_number, text)
