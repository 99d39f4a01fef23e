"""``psychlm card``: one page about a language model, a test or a reading study."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import click

from psychlm import roles
from psychlm.cli_notebooks import OfNotebook, parameter_option
from psychlm.terminal import (
    FILE,
    PATH,
    answers_options,
    device_option,
    from_here,
    print_table,
    read_answers,
    say,
)

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A folder, or the files without .html and .json; here unless given.",
)


@click.group()
def card() -> None:
    """Put your model, your test or your reading study beside what is known, on one page.

    Without arguments each card is a demonstration: the default model, LSAT 6, the UCL corpus. It
    writes NAME.html, which needs no network, NAME.json with every number, and NAME-tables.xlsx with
    every table.
    """


def write(
    kind: str, name: str, values: dict[str, Any], out: Path | None, more: dict[str, Any]
) -> None:
    """Run a card's notebook with values and ``more``, and print its verdict, rows and place."""
    from psychlm.site import cards

    given = {key: value for key, value in values.items() if value} | more
    for key, value in given.items():  # the notebook runs in a folder of its own
        if isinstance(value, Path):
            given[key] = str(value.expanduser().resolve())
    stem = (out or Path()).expanduser().resolve()
    if stem.is_dir():
        stem = stem / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "card")
    elif stem.suffix in (".html", ".json"):
        stem = stem.with_suffix("")
    inputs = {Path(value) for value in given.values() if isinstance(value, str) and value}
    if inputs & {Path(f"{stem}{end}") for end in (".html", ".json", "-tables.xlsx")}:
        raise click.BadParameter(f"{stem}.json is an input; name the output with --out")
    content = cards.make(kind, given, stem, name)
    verdict = content["verdict"]
    say(f"{verdict['sentence']} {verdict['support']}".replace("**", ""))
    rows = [row_of(row) for row in content["numbers"] if row["key"].startswith("card.")]
    columns = ["", "value", "95 %", "people", ""]
    filled = [place for place, column in enumerate(zip(*rows, strict=True)) if any(column)]
    print_table([columns[n] for n in filled], [[row[n] for n in filled] for row in rows])
    written = ".html (the page)", ".json (every number)", "-tables.xlsx (every table)"
    say(", ".join(f"{stem.name}{end}" for end in written) + f": {stem.parent}")


def row_of(row: dict[str, Any]) -> list[str]:
    """Return a row of a card as the cells that are printed."""
    from psychlm._formatting import number

    def text(value: Any) -> str:
        if not isinstance(value, (int, float)):
            return str(value or "")
        return number(value, ".3g" if abs(value) < 1000 else ",.0f")

    interval = "" if row.get("low") is None else f"[{text(row['low'])}, {text(row.get('high'))}]"
    label = row.get("row") or row["key"].removeprefix("card.").replace("_", " ")
    value = f"{text(row['value'])} {row.get('unit') or ''}".rstrip()
    return [label, value, interval, text(row.get("people")), str(row.get("says") or "")]


@card.command(cls=OfNotebook)
@click.option("--model", default="default", help="A name or folder.")
@click.option("--against", default="", help="A second model, compared pair by pair.")
@click.option("--pairs", type=click.Path(path_type=Path), help="A folder of minimal pairs (JSONL).")
@click.option("--fast", is_flag=True, help="A tenth of the data, for checkpoints in training.")
@click.option("--fetch", is_flag=True, help="Fetch first what does not come with the project.")
@device_option
@out_option
@parameter_option
def model(
    pairs: Path | None, fetch: bool, out: Path | None, parameters: Any, **options: Any
) -> None:
    """Compare a language model with people: guesses, reading times, items, biases."""
    if fetch:
        from psychlm import data, model_card

        for dataset in sorted(set(model_card.TEXTS.values())):
            try:
                say(f"{dataset}: {data.path(dataset)}", err=True)
            except data.DataError as error:  # the card is made without it, and says so
                say(f"psychlm: {error}", err=True)
    options |= {name: from_here(options[name], is_model=True) for name in ("model", "against")}
    options["pairs"] = pairs
    name = Path(options["model"]).name or options["model"]
    write("model", name, options, out, parameters)


@card.command(cls=OfNotebook)
@click.argument("answers", type=PATH, required=False)
@answers_options
@click.option("--scale", default="", help="Mean and sd of reported scores, as 500,100.")
@click.option("--fast", is_flag=True, help="One model, fewer draws, at most 2,000 persons.")
@out_option
@parameter_option
def test(
    answers: Path | None,
    key: Path | None,
    scale: str,
    fast: bool,
    out: Path | None,
    parameters: Any,
    **told: Any,
) -> None:
    """Examine a test: items, reliability, dimensions, models, bias, short forms.

    ANSWERS are a table or logs of an evaluation program (a file or a folder).
    """
    options = roles.parsed(told)
    if answers is None:
        if key or options:
            raise click.BadParameter("what columns are is told of a file of ANSWERS; name it")
    else:
        names = ("items", "drop", "level")
        given = {name: parameters[name] for name in names if parameters.get(name)}
        given |= parameters.get("roles") or {}
        read_answers(answers, given | options | {"key": key})  # a refusal comes before the card
    own = ("group", "missing", "items", "drop")  # parameters of the card; the others are roles
    values: dict[str, Any] = {name: options.pop(name) for name in own if name in options}
    values |= {"file": answers, "key": key, "fast": fast, "roles": options}
    name = answers.stem if answers else "lsat6"
    if scale:
        try:
            mean, sd = map(float, scale.split(","))
        except ValueError:
            sd = 0.0
        if not sd > 0:
            raise click.BadParameter(f"--scale {scale}; write mean,sd as 500,100")
        values["scale"] = [mean, sd]
    write("test", name, values, out, parameters)


@card.command(cls=OfNotebook)
@click.argument("words", type=PATH, required=False)
@click.argument("readings", type=FILE, required=False)
@click.option("--model", default="default", help="Its surprisal is examined.")
@click.option("--language", default="", help="Of the words, for their frequency: en, de, ...")
@click.option("--least-accuracy", default=0.0, help="Leave out readers with fewer right answers.")
@roles.role_options(*roles.READINGS)
@device_option
@out_option
@parameter_option
def corpus(
    words: Path | None, readings: Path | None, out: Path | None, parameters: Any, **options: Any
) -> None:
    """Examine a reading study: exclusions, effect of surprisal, held-out gain, power.

    WORDS alone is a file or folder of results: of Ibex, PCIbex, jsPsych, Gorilla, PsychoPy,
    OpenSesame, Linger, a report of EyeLink, or a table of your own. WORDS and READINGS are two
    tables (text_id, word_id, word; subject, text_id, word_id, times).
    """
    from psychlm import corpora

    told = roles.parsed({name: options.pop(name) for name in roles.READINGS})
    if words is None and told:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in told)
        raise click.BadParameter(f"{given}: of which file? Name the file of WORDS")
    if words is not None:
        with warnings.catch_warnings():  # the card refuses seconds, and says what to do
            warnings.filterwarnings("ignore", ".*are these seconds")
            study = corpora.read_experiment(words, readings, **told)
        say(roles.in_shell(study.notes[0]), err=True)
    options["measure"] = told.pop("measure", "")
    options["model"] = from_here(options["model"], is_model=True)
    options |= {"words_file": words, "readings_file": readings, "roles": told}
    name = (readings or words).stem if words else "ucl"
    write("corpus", name, options, out, parameters)
