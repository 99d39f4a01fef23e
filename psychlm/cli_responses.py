"""``psychlm responses``: items and models in, a responses frame out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psychlm.data import atomic_write

if TYPE_CHECKING:
    import pandas as pd

    from psychlm.lm.choices import Evaluation, Normalise

WRITERS = (".csv", ".parquet")


@click.command()
@click.argument("source", metavar="ITEMS.jsonl|DATASET")
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A folder, or a name on the Hugging Face hub, perhaps with its revision; give the option again for more.",
)
@click.option(
    "--normalise",
    type=click.Choice(["sum", "token", "character", "unconditional"]),
    default="sum",
    show_default=True,
    help="What a language model's score of a choice is.",
)
@click.option(
    "--prompt", default="auto", show_default=True, help="How an item is put to a language model."
)
@click.option(
    "--bos",
    default="auto",
    show_default=True,
    help="Token before a language model's prompt; 'none' for none.",
)
@click.option(
    "--labels",
    metavar="A,B,C",
    help="Names of a classifier's outputs, where its configuration has none.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the graded responses, models x items, to FILE.csv or .parquet.",
)
@click.option(
    "--logprobs",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the score of every choice too, a row for each model and item.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ...")
@click.option("--no-cache", is_flag=True, help="Compute everything anew, and store nothing.")
def responses(
    source: str,
    models: tuple[str, ...],
    normalise: Normalise,
    prompt: str,
    bos: str,
    labels: str | None,
    out: Path | None,
    logprobs: Path | None,
    device: str,
    no_cache: bool,
) -> None:
    """Let models answer items, and grade them.

    Items are a dataset (`psychlm data list`), or a file in the layout of any bank that psychlm.corpora.item_banks reads.
    Scores are cached, so that a second run is instant and an interrupted one resumes.
    """
    for option, file in (("--out", out), ("--logprobs", logprobs)):
        if file is not None and file.suffix not in WRITERS:
            raise click.BadParameter(
                f"{file.name} ends in none of {', '.join(WRITERS)}", param_hint=option
            )
    try:
        from psychlm.corpora import read_items

        items = read_items(source)
        said = _evaluate(items, models, normalise, prompt, bos, labels, device, not no_cache)
        if out is not None:
            _write(said.responses, out)
        if logprobs is not None:
            _write(said.logprobs.rename(columns=str), logprobs)
    except (ValueError, OSError, RuntimeError) as error:
        click.echo(f"psychlm: {error}", err=True)
        sys.exit(1)
    _report(items, said)


def _evaluate(
    items: pd.DataFrame,
    models: tuple[str, ...],
    normalise: Normalise,
    prompt: str,
    bos: str,
    labels: str | None,
    device: str,
    cache: bool,
) -> Evaluation:
    from psychlm import lm

    people: dict = {name: name for name in models}
    if labels is not None:
        names = labels.split(",")
        people = {name: lm.load_choice_model(name, device, labels=names) for name in people}
    return lm.evaluate(
        items,
        people,
        normalise=normalise,
        prompt=prompt,
        bos=None if bos == "none" else bos,
        device=device,
        cache=cache,
        progress=sys.stderr.isatty(),
    )


def _write(frame: pd.DataFrame, out: Path) -> None:
    """Write a frame; the file is there whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as part:
        if out.suffix == ".parquet":
            frame.rename(columns=str).to_parquet(part)
        else:
            frame.to_csv(part)


def _report(items: pd.DataFrame, said: Evaluation) -> None:
    """Print each model's share of right answers; and on standard error what was left out or cut."""
    chance = (1 / items["choices"].map(len)).mean()
    for person, own in said.responses.iterrows():
        click.echo(f"{person}: {own.mean():.3f} of {len(own)} items right (guessing: {chance:.3f})")
    for reason, count in items.attrs.get("left_out", {}).items():
        click.echo(f"psychlm: {count} items were left out: {reason}", err=True)
    for person, count in said.persons.query("truncated > 0")["truncated"].items():
        click.echo(f"psychlm: {count} prompts were cut to fit {person}", err=True)
