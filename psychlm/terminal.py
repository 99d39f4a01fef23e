"""What the command line prints and writes, and the paths that it is given."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psychlm import data, roles

if TYPE_CHECKING:
    import pandas as pd

    from psychlm.corpora import Answers

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
TABLES = (".csv", ".tsv", ".parquet")
# what a spreadsheet would run; numbers stay
FORMULA = re.compile(r"^(?:[=@\t\r]|[+\-](?!\d*\.?\d*$))")
# characters that a terminal obeys, turns text round by, or cannot be given; lines and tabs stay
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text with a replacement character for each that must not reach a terminal."""
    return UNPRINTABLE.sub("\ufffd", text)


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text, of which nothing is obeyed by a terminal; all commands print through this."""
    click.echo(printable(str(text)), err=err, nl=nl)


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table in the width of the terminal; what is too long is folded, not cut.

    In a file or a pipe each row is a line, so that programs such as grep find all of it.
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    folded = (Column(name, overflow="fold") for name in columns)
    table = Table(*folded, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    colours = {"yes": "green", "no": "yellow", "corrupt": "red"}
    for row in rows:
        table.add_row(*(Text(printable(cell), colours.get(cell, "")) for cell in row))
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


OF_PACKAGES = ("default", "smollm2")  # models that come with the package, or a package


def from_here(value: Any, *, is_model: bool = False) -> Any:
    """Return the whole path of a file or folder from where the user is; any other value as it is.

    Notebooks run in a folder of their own. One word is a folder where it is the name of a model
    (as for :func:`psychlm.lm.load`) or the folder holds one; else it may be something else.
    """
    if isinstance(value, list):
        return [from_here(one) for one in value]
    if not isinstance(value, str) or not value or len(value) > 4000 or "\0" in value:
        return value
    path = Path(value).expanduser()
    is_model = (is_model or (path / "config.json").is_file()) and value not in OF_PACKAGES
    is_folder = path.is_dir() and ("/" in value or is_model)
    return str(path.resolve()) if path.is_file() or is_folder else value


def check_out(out: Path | None, *inputs: str | Path, suffixes: tuple[str, ...] = TABLES) -> None:
    """Refuse an output of an unknown format, or one that would replace an input."""
    if out is None:
        return
    if out.suffix not in suffixes:
        raise click.BadParameter(f"{out.name} ends in none of {', '.join(suffixes)}")
    if any(out.resolve() == Path(given).resolve() for given in inputs):
        raise click.BadParameter(f"{out} is the input or another output; name another file")
    out.parent.mkdir(parents=True, exist_ok=True)


def escaped(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    return FORMULA.sub(r"'\g<0>", cell) if isinstance(cell, str) else cell


def write_table(frame: pd.DataFrame, out: Path, *, index: bool, spreadsheet: bool = False) -> None:
    """Write a table by the suffix of its file: CSV, TSV or Parquet."""
    with data.atomic_write(out) as part:
        if out.suffix == ".parquet":
            frame.rename(columns=str).to_parquet(part, index=index)
            return
        frame = frame.reset_index() if index else frame
        if spreadsheet:
            frame = frame.map(escaped).rename(columns=lambda name: escaped(str(name)))
        separator = "\t" if out.suffix == ".tsv" else ","
        frame.to_csv(part, index=False, sep=separator)
        if b"\r" in part.read_bytes():  # which ends a row, unless its cell is quoted
            frame.to_csv(part, index=False, sep=separator, quoting=csv.QUOTE_NONNUMERIC)


def write_workbook(sheets: Mapping[str, pd.DataFrame], out: Path) -> None:
    """Write tables without their indices as the sheets of one .xlsx file, no cell a formula."""
    import pandas as pd

    with data.atomic_write(out) as part, pd.ExcelWriter(part, engine="openpyxl") as book:
        for name, table in sheets.items():
            plain = table.map(escaped)
            plain = plain.rename(columns=lambda column: escaped(str(column)))
            sheet = re.sub(r"[][*:?/\\]", " ", name)[:31].strip()
            plain.to_excel(book, sheet_name=sheet, index=False)


def write_or_say(frame: pd.DataFrame, out: Path | None, *, spreadsheet: bool = False) -> None:
    """Write a table with its index, and print where; without a file print it as CSV."""
    if out is None:
        say(frame.to_csv(), nl=False)
    else:
        write_table(frame, out, index=True, spreadsheet=spreadsheet)
        say(out)


def choice_option(name: str, choices: str, default: str, text: str) -> Any:
    """Return an option that takes one of some words, separated by spaces."""
    kind = click.Choice(choices.split(), case_sensitive=False)
    return click.option(name, type=kind, default=default, help=text)


device_option = click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps.")


def answers_options(command: Any) -> Any:
    """Give a command the options of everything that reads answers."""
    key = click.option("--key", type=FILE, help="The right answers: item, key.")
    return key(roles.role_options(*roles.ANSWERS)(command))


def read_answers(source: Path, told: dict[str, Any]) -> Answers:
    """Read answers as options of Python tell, and print in one line what was taken for what."""
    from psychlm import corpora

    answers = corpora.read_answers(source, **told)
    say(roles.in_shell(f"{source}: {answers.recognised}"), err=True)
    return answers
