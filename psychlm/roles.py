"""The options that tell what a file's columns are: one name in Python and in the shell.

Readers of tests, logs and reading studies guess what is not told; what is told wins over every
guess. This module holds names and help only, so that ``psychlm --help`` imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# name -> what stands for its value, and what it tells; None as the first is a list of names
OPTIONS: dict[str, tuple[str, str]] = {
    "person": ("COLUMN", "Who answered or read: persons, readers, models."),
    "items": ("A,B", "The columns that are items."),
    "drop": ("A,B", "Columns that are left out."),
    "item": ("COLUMN", "The column of items in a long table."),
    "answer": ("COLUMN", "Answers or grades of a long table; of questions on what was read."),
    "group": ("COLUMN", "A group of persons; never an item."),
    "metric": ("NAME", "The metric or scorer that grades the answers of a log."),
    "filter": ("NAME", "The filter of a log, or COLUMN=VALUE: the rows that are read."),
    "task": ("A,B", "The tasks of logs that are read."),
    "repeat": ("COLUMN", "Repeated answers: their column, or latest, first, rows."),
    "missing": ("A,B", "What stands for a missing answer or time beside empty cells, as 9."),
    "labels": ("A=1,B=2", "The numbers of answers in words, as Agree=4,Disagree=2."),
    "reverse": ("A,B", "Items that are keyed the other way, and are turned."),
    "text": ("COLUMN", "The text, sentence or item that was read."),
    "word_number": ("COLUMN", "The place of a word in its text, from 1."),
    "word": ("COLUMN", "The word as printed."),
    "measure": ("COLUMN", "The times, as gaze_ms."),
    "condition": ("A,B", "Columns that name the version of a text that a reader saw."),
    "encoding": ("NAME", "How the letters of the file are encoded, as cp1251."),
}
LISTS = ("items", "drop", "task", "missing", "reverse", "condition")  # several, with commas
# of what reads answers, and of what reads reading studies
ANSWERS = ["person", "items", "drop", "group", "item", "answer", "missing", "labels", "reverse"]
ANSWERS += ["repeat", "metric", "filter", "task", "encoding"]
READINGS = ["person", "text", "word_number", "word", "measure", "condition", "answer", "group"]
READINGS += ["filter", "drop", "missing", "encoding"]


def told(given: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the values of options by name: lists of what may be several, empty where nothing is.

    >>> told({"person": None, "group": "sex", "items": ["q1"]}, ["person", "group", "items"])
    {'person': None, 'group': ['sex'], 'items': ['q1']}
    """
    values = {name: given[name] for name in names}
    for name in (name for name in names if name in (*LISTS, "group", "measure")):
        value = () if values[name] is None else values[name]
        is_one = isinstance(value, str) or not hasattr(value, "__iter__")
        values[name] = [value] * bool(value) if is_one else list(value)
    return values | ({"labels": dict(given["labels"] or {})} if "labels" in names else {})


def parsed(told: dict[str, Any]) -> dict[str, Any]:
    """Return options of the shell as Python's: names separated by commas are lists.

    >>> parsed({"items": "q1, q2", "labels": "Agree=4,Disagree=2", "person": None})
    {'items': ['q1', 'q2'], 'labels': {'Agree': 4.0, 'Disagree': 2.0}}
    """
    values: dict[str, Any] = {}
    for name, value in told.items():
        if not value:
            continue
        if name == "labels":
            # a comma within a label is none behind a number
            lines = re.sub(r"(=\s*[-+.\d]+\s*),", r"\1\n", value).split("\n")
            pairs = [pair.rpartition("=") for pair in lines]
            values[name] = {label.strip(): float(number) for label, _, number in pairs}
        elif name in LISTS:
            values[name] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            values[name] = value
    return values


def in_shell(text: str) -> str:
    """Return a message with the shell's names of options.

    >>> in_shell("give a key (key=), or repeat=rows, or missing=-99")
    'give a key (--key), or --repeat rows, or --missing -99'
    >>> in_shell("filter='condition=a'; 3 are partly right (level=scores takes them)")
    "--filter 'condition=a'; 3 are partly right"
    """
    names = "|".join([*OPTIONS, "key", "method"])
    # what Python alone has
    text = re.sub(r" \([^()]*\blevel=[^()]*\)| \(frame\.[^()]*\([^()]*\)[^()]*\)", "", text)
    text = text.replace(
        "ratings=True, or a model of ratings", "a model of ratings (--model graded)"
    )

    def option(match: re.Match) -> str:
        flag = f"--{match[1].replace('_', '-')}"
        return f"{flag} {match[2]}" if re.match(r"[\w'\"-]", match[2]) else flag + match[2]

    # what stands in quotation marks is a value, such as the column of a filter
    return re.sub(rf"(?<!['\";])\b({names})=(.?)", option, text)


def role_options(*names: str) -> Callable:
    """Return a decorator that gives a command of the shell options of these names.

    >>> decorate = role_options("person", "word_number")
    """
    import click

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            metavar, told = OPTIONS[name]
            flag = f"--{name.replace('_', '-')}"
            command = click.option(flag, name, metavar=metavar, help=told)(command)
        return command

    return decorate
