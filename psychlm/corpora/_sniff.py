"""Files as tables of cells: which encoding, which separator, and whether quotation marks quote.

The first step of every reader of tables. Cells of text files stay as they are written ("007",
"NA"); what they mean is decided by the roles of their columns.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv

from psychlm.frames import FrameError, is_numeric, refuse

# cells of a column of numbers that stand for none: what pandas takes for missing
MISSING = """#N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan
null""".split()  # noqa: SIM905
MISSING += ["#N/A N/A"]
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
SEPARATORS = ",;\t|"
# columns beyond which numbers are kept as one array
WIDE = 2000
BLANK = ["", " ", "  ", "   "]
SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".tab", "", ".xlsx", ".parquet", ".sav")


@dataclass(frozen=True)
class Table:
    """The cells of a file, and what had to be decided to read them."""

    cells: pd.DataFrame  # text as written, NaN where empty; typed columns of typed files
    notes: list[str] = field(default_factory=list)  # "read as Windows-1252", ...


def decode(path: str | Path, encoding: str | None = None) -> tuple[str, str]:
    """Return the text of a file and the name of its encoding.

    A byte order mark decides; else UTF-8 where all bytes are, UTF-16 where every second byte is
    zero, and Windows-1252 or Latin-1. Files that are none of these are a :class:`FrameError`.

    Examples
    --------
    >>> _ = Path("a.txt").write_bytes("Müller".encode("cp1252"))
    >>> decode("a.txt")
    ('Müller', 'Windows-1252')
    """
    raw = Path(path).read_bytes()
    advice = "save it as UTF-8, or name its encoding: encoding='cp1251'"
    if encoding:
        try:
            return raw.decode(encoding).removeprefix("\ufeff"), encoding
        except (UnicodeError, LookupError) as error:
            raise FrameError(f"{path} is not encoded as {encoding} ({error})") from None
    for mark, name in BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            try:
                return raw.decode(name), name.removesuffix("-sig").upper()
            except UnicodeError as error:
                raise FrameError(f"{path} is not encoded as its first bytes say: {error}") from None
    try:
        text = raw.decode()
        name = "UTF-8"
    except UnicodeDecodeError as error:
        # a file of UTF-8 in which a few bytes are wrong is no file of another encoding
        replaced = raw.decode(errors="replace")
        n_wrong = replaced.count("\ufffd")
        if sum(letter > "\x7f" for letter in replaced) > 2 * n_wrong:
            line = raw[: error.start].count(b"\n") + 1
            raise FrameError(
                f"{path} is UTF-8 but for {n_wrong} characters, the first in line {line}; {advice}"
            ) from None
        try:
            text = raw.decode("cp1252")
            name = "Windows-1252"
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
            name = "Latin-1"
    if "\0" in text:
        # UTF-16 without its mark: letters of ASCII leave every second byte zero
        n_even = raw[::2].count(0)
        n_odd = raw[1::2].count(0)
        name = "UTF-16-LE" if n_odd > n_even else "UTF-16-BE"
        try:
            text = raw.decode(name) if max(n_even, n_odd) > 0.3 * len(raw) / 2 else "\0"
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise FrameError(f"{path} cannot be read as text: it holds zero bytes; {advice}")
    return text, name


def separator_of(lines: Sequence[str]) -> str:
    """Return what separates the cells of lines: comma, semicolon, tab, bar or space.

    The separator occurs in the header, and as often in most of the first lines.

    >>> separator_of(["id;Was, wann, wo?;q2", "a;1,5;2", "b;2;1"])
    ';'
    """
    unquoted = [re.sub('"[^"]*"', "", line) for line in lines[:20] if line]
    best = ","
    best_score = (0.0, 0)
    for separator in SEPARATORS:
        counts = [line.count(separator) for line in unquoted]
        if counts and counts[0]:
            score = (float(np.mean([count == counts[0] for count in counts])), counts[0])
            if score > best_score:
                best = separator
                best_score = score
    if best_score[1] == 0 and len(unquoted) > 1:
        # write.table of R: a header may lack the name of the column of row names
        counts = [len(line.split(" ")) for line in (re.sub('"[^"]*"', "x", x) for x in lines[:20])]
        if min(counts) > 1 and len(set(counts[1:])) == 1 and counts[1] - counts[0] in (0, 1):
            best = " "
    return best


def rows_of(text: str, separator: str, where: object, quotes: bool | None = None) -> list[list]:
    """Return the rows of a text as lists of cells, without blank lines.

    Whether quotation marks quote is not guessed where ``quotes`` says it. Else the text is read in
    three ways: as quoted cells with doubled marks, as quoted cells with ``\\"`` for a mark, and as
    cells without quotation. The way in which most rows have as many cells as the header is taken,
    the earlier of equal ones; unquoted lines that are all whole are not joined to longer rows.
    Rows with more cells than the header are a :class:`FrameError`.
    """
    lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
    unquoted = [line.split(separator) for line in lines]
    if quotes is False or '"' not in text:
        readings = [unquoted]
    else:
        readings = []
        ways: list[dict[str, Any]] = [{}, {"escapechar": "\\", "doublequote": False}]
        for options in ways:
            if options and '\\"' not in text:
                continue
            parser = csv.reader(io.StringIO(text), delimiter=separator, strict=True, **options)
            with contextlib.suppress(csv.Error):
                readings.append([row for row in parser if any(map(str.strip, row))])
        if quotes is None:
            readings.append(unquoted)
    n_irregular = [sum(len(row) != len(rows[0]) for row in rows) for rows in readings]
    best = int(np.argmin(n_irregular)) if readings else -1
    if readings and n_irregular[-1] == 0 and len(readings[best]) < len(unquoted):
        best = len(readings) - 1
    rows = readings[best] if readings else unquoted
    n_cells = len(rows[0]) if rows else 0
    if len(rows) > 1 and all(len(row) == n_cells + 1 for row in rows[1:]):
        # write.table of R does not name the column of row names; others end each row with a mark
        if not any(row[-1].strip() for row in rows[1:]):
            rows = [rows[0], *(row[:-1] for row in rows[1:])]
        else:
            rows = [["", *rows[0]], *rows[1:]]
        n_cells = len(rows[0])
    wrong = [number for number, row in enumerate(rows, 1) if len(row) > n_cells]
    if best == len(readings) - 1 and quotes is None and '"' in text and readings[best] is unquoted:
        # marks around names of columns quote, so that marks within the rows are not text
        wrong += [1] if any(cell.startswith('"') for cell in rows[0]) else []
    elif readings and readings[best] is not unquoted:
        for number, row in enumerate(rows, 1):
            for place, cell in enumerate(row):
                # a cell of several lines may also be lines of which some are incomplete
                parts = cell.splitlines() if separator in cell and "\n" in cell else []
                whole = (
                    place + parts[0].count(separator) + 1 if parts else 0,
                    parts[-1].count(separator) + n_cells - place if parts else 0,
                )
                if n_cells in whole:
                    wrong.append(number)
    if wrong:
        first = wrong[0]
        raise FrameError(
            f"{where}: rows have more cells than the {n_cells} names of the header, or a quotation "
            f"mark is not closed (row {first}: {separator.join(rows[first - 1])[:80]!r}); name "
            "every column, quote cells that hold the separator, and double marks in quoted cells"
        )
    return rows


def read_table(
    path: str | Path,
    encoding: str | None = None,
    *,
    quotes: bool | None = None,
    labels: bool = False,
    spaces: bool = False,
) -> Table:
    """Read a file of cells: CSV and its relatives, Excel, Parquet or SPSS.

    Parameters
    ----------
    path : path
    encoding : str, optional
        Of a text file, as Python names it; found unless given.
    quotes : bool, optional
        Whether quotation marks quote cells; decided by the rows unless given.
    labels : bool
        Read the labels of values in place of their codes, where a file of SPSS has them.
    spaces : bool
        Keep cells of spaces, which are missing otherwise.

    Examples
    --------
    >>> _ = Path("a.csv").write_text("id;word\\n007;NA\\n")
    >>> read_table("a.csv").cells.to_numpy().tolist()
    [['007', 'NA']]
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        cells = pd.read_parquet(path)
        named = [name for name in cells.index.names if name is not None]
        return Table(cells.reset_index(level=named) if named else cells)
    if suffix == ".sav":
        # user-defined missing values of SPSS are missing here too
        return Table(pd.read_spss(path, convert_categoricals=labels))
    if suffix == ".xlsx":
        return _excel_cells(path)
    if suffix not in SUFFIXES:
        raise FrameError(f"files {suffix} are not read; save it as CSV, xlsx, Parquet or sav")
    text, name = decode(path, encoding)
    notes = [] if name in ("UTF-8", encoding) else [f"read as {name}"]
    first, _, rest = text.partition("\n")
    if re.fullmatch("sep=.\r?", first):  # Excel's first line
        text = rest
    start = [line for line in text[:100_000].splitlines()[:20] if line.strip()]
    if not start:
        raise FrameError(f"{path} is empty")
    separator = separator_of(start)
    if '"' in text and quotes is not False:
        rows = rows_of(text, separator, path, quotes)
        header = rows[0]
        n_cells = sum(map(len, rows[1:]))
        cells = _padded(rows, [""] if spaces else BLANK)
    else:
        header, cells = _plain_cells(text, separator, path, [""] if spaces else BLANK)
        n_cells = text.count(separator) - (len(header) - 1) + len(cells)
    n_short = cells.size - n_cells
    if n_short > 0:
        notes.append(f"rows have {n_short} cells fewer than the header has names")
    cells = cells[cells.notna().any(axis=1)].reset_index(drop=True)
    return Table(cells.set_axis([name.strip() for name in header], axis=1), notes)


def _excel_cells(path: Path) -> Table:
    """Return the largest sheet of a file of Excel, whose header may stand below titles."""
    sheets = pd.read_excel(
        path,
        sheet_name=None,
        engine="openpyxl",
        header=None,
        dtype=object,
        na_values=[""],
        keep_default_na=False,
    )
    name, cells = max(sheets.items(), key=lambda sheet: sheet[1].notna().to_numpy().sum())
    notes = [f"sheet {name!r} of {list(sheets)}"] if len(sheets) > 1 else []
    cells = cells.dropna(how="all").dropna(axis=1, how="all")
    if not len(cells):
        raise FrameError(f"{path} is empty")
    n_filled = cells.notna().sum(axis=1)
    first = int(np.argmax((n_filled > n_filled.max() / 2).to_numpy()))
    if first:
        notes.append(f"{first} rows above the header")
    header = ["" if pd.isna(one) else _label(one) for one in cells.iloc[first]]
    body = cells.iloc[first + 1 :].map(_label, na_action="ignore").reset_index(drop=True)
    return Table(body.set_axis(header, axis=1), notes)


def _plain_cells(
    text: str, separator: str, path: Path, blank: list[str]
) -> tuple[list[str], pd.DataFrame]:
    """Return the header and the cells of lines in which no quotation mark quotes."""
    first, _, body = text.lstrip("\r\n").partition("\n")
    header = first.rstrip("\r").split(separator)
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
    except pa.ArrowInvalid:  # rows of other lengths
        rows = rows_of(text, separator, path, quotes=False)
        header = rows[0]
        return header, _padded(rows, blank)
    if len(header) > WIDE:
        # one array of numbers: as many columns of text would take ten times the memory and time
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = [column.cast(pa.float64()).to_numpy() for column in table.columns[1:]]
            names = pd.Series(table.column(0).to_pandas(), name=0, dtype=str)
            values = pd.DataFrame(np.column_stack(numbers), columns=range(1, len(header)))
            return header, pd.concat([names, values], axis=1)
    as_text = pd.StringDtype("pyarrow", na_value=np.nan)
    return header, table.to_pandas(types_mapper={pa.large_string(): as_text}.get)


def _padded(rows: list[list[str]], blank: list[str]) -> pd.DataFrame:
    """Return rows behind a header as text; cells that are not there are empty."""
    n_columns = len(rows[0])
    filled = [row + [""] * (n_columns - len(row)) for row in rows[1:]]
    cells = pd.DataFrame(filled, columns=range(n_columns), dtype=str)
    return cells.mask(cells.isin(blank))


def _label(one: object) -> str:
    """Return a cell of a typed file as text: 2.0 and 2 are the same."""
    if isinstance(one, float) and one.is_integer():
        return str(int(one))
    return str(one).strip()


def unique_columns(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns have one name each; refuse it otherwise.

    A column without a name is named by its place: "column 3".
    """
    header = [name or f"column {place}" for place, name in enumerate(cells.columns, 1)]
    names = pd.Index(header)
    refuse("columns", names[names.duplicated()], "occur more than once; rename or remove them")
    return cells.set_axis(header, axis=1)


def read_csv(
    path: str | Path, text: Collection[str] = (), encoding: str | None = None
) -> pd.DataFrame:
    """Read a table whose columns are text (words, ids) or numbers.

    Cells of the columns in ``text`` stay as they are written ("NA", "007"), and only an empty one
    is missing. Other columns are numbers where all their cells are, and "NA" is missing there.

    Examples
    --------
    >>> _ = Path("a.csv").write_text("word;ms\\nNA;310,5\\nb;NA\\n")
    >>> read_csv("a.csv", ["word"]).to_numpy().tolist()
    [['NA', 310.5], ['b', nan]]
    """
    cells = unique_columns(read_table(path, encoding, spaces=True).cells)
    spaces = cells.columns.intersection(["space_before", "space_after"])
    cells[spaces] = cells[spaces].fillna("")  # an empty cell for a space: there is none
    for name in cells.columns.difference(spaces, sort=False):
        if name not in text:
            cells[name] = numbers_of(cells[name].mask(cells[name].eq("NA")))
    return cells


def numbers_of(values: pd.Series) -> pd.Series:
    """Return text as numbers if all of it is that does not stand for missing; else as it is.

    One rule for the whole column: where a number has both a point and a comma, the later one
    marks decimals and the other one thousands ("1.204,3"); where a comma is followed by other
    than three digits, it marks decimals. Numbers such as "1,234" beside others without a comma
    could be read in two ways and are a :class:`FrameError`.

    Examples
    --------
    >>> numbers_of(pd.Series(["310,5", "1.204,3", None, "nan"])).tolist()
    [310.5, 1204.3, nan, nan]
    """
    if is_numeric(values):
        return values
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        # most columns hold plain numbers
        plain = pa.array(values, from_pandas=True).cast(pa.float64())
        return pd.Series(plain.to_numpy(zero_copy_only=False), values.index, name=values.name)
    text = values.dropna().astype(str).str.strip()
    text = text[~text.isin(MISSING)]
    numbers = pd.to_numeric(text, errors="coerce")
    if len(text) and numbers.isna().any():
        numbers = pd.to_numeric(_with_points(text, values.name), errors="coerce")
    return numbers.reindex(values.index) if len(text) and numbers.notna().all() else values


def numbers_among(values: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return a column as numbers, missing where there is none, and the values that are none.

    The marks of decimals and thousands follow one rule for the whole column, see
    :func:`numbers_of`; values that stand for missing are not among those that are no numbers.

    Examples
    --------
    >>> numbers, others = numbers_among(pd.Series(["310,5", "1.204,3", "timeout", "NA", None]))
    >>> numbers.tolist(), others.tolist()
    ([310.5, 1204.3, nan, nan, nan], ['timeout'])
    """
    if is_numeric(values):
        return values, values.iloc[:0]
    text = values.dropna().astype(str).str.strip()
    text = text[~text.isin(["", *MISSING])]
    like_number = text[text.str.fullmatch(r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?")]
    numbers = pd.to_numeric(like_number, errors="coerce")
    if numbers.isna().any():
        numbers = pd.to_numeric(_with_points(like_number, values.name), errors="coerce")
    numbers = numbers.astype(float)
    return numbers.reindex(values.index), text[numbers.reindex(text.index).isna()]


def _with_points(text: pd.Series, name: object) -> pd.Series:
    """Return numbers with a point for decimals and no mark for thousands; other text as it is."""
    grouped = r"[-+]?\d{1,3}(?:%s\d{3})+(?:%s\d+)?"
    comma_decimals = r"[-+]?\d*,\d*"
    if not text.str.fullmatch(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?").all():
        return text
    both = text[text.str.contains(",", regex=False) & text.str.contains(".", regex=False)]
    commas = text[text.str.contains(",", regex=False)]
    if len(both):
        comma_is_decimal = bool((both.str.rfind(",") > both.str.rfind(".")).all())
    else:
        three_digits = commas.str.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
        if 0 < len(commas) < len(text) and three_digits.all():
            raise FrameError(
                f"{name!r} holds numbers such as {commas.iloc[0]!r}, where the comma may mark "
                "thousands or decimals; write them without it, or with a point"
            )
        comma_is_decimal = not commas.str.count(",").gt(1).all()
    if comma_is_decimal:
        is_grouped = text.str.fullmatch(grouped % (r"\.", ","))
        plain = text.str.fullmatch(comma_decimals) | text.str.fullmatch(r"[-+]?\d+")
        points = text.mask(is_grouped, text.str.replace(".", "", regex=False))
        return points.str.replace(",", ".", regex=False).where(is_grouped | plain, text)
    return text.mask(
        text.str.fullmatch(grouped % (",", r"\.")), text.str.replace(",", "", regex=False)
    )
