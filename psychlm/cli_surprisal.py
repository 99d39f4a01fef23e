"""``psychlm surprisal``: texts or words in, a file with a surprisal per word out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psychlm.data import atomic_write

if TYPE_CHECKING:
    import pandas as pd

READERS = (".csv", ".tsv", ".parquet")


@click.command()
@click.argument("source", metavar="TEXT|FILE.txt|words.csv")
@click.option(
    "--model",
    "name",
    default="default",
    show_default=True,
    metavar="NAME",
    help="default, a folder, or a name on the Hugging Face hub, perhaps with its revision: gpt2@607a30d.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write words.parquet, .csv or .tsv instead of printing the words.",
)
@click.option(
    "--correction",
    type=click.Choice(["pimentel-meister", "none"]),
    default="pimentel-meister",
    show_default=True,
    help="Whose is the probability that a word ends.",
)
@click.option("--stride", type=int, help="Tokens by which the windows over a long text advance.")
@click.option("--lines", is_flag=True, help="Read each line of FILE.txt as a text of its own.")
@click.option("--entropy", is_flag=True, help="Also the entropy before each word.")
@click.option("--rank", is_flag=True, help="Also the rank of each word's first token.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ...")
@click.option("--no-cache", is_flag=True, help="Compute everything anew, and store nothing.")
def surprisal(
    source: str,
    name: str,
    out: Path | None,
    correction: str,
    stride: int | None,
    lines: bool,
    entropy: bool,
    rank: bool,
    device: str,
    no_cache: bool,
) -> None:
    """Surprisal of every word of a TEXT, a text file, or a words frame (text_id, word_id, word), in bits.

    Results are cached, so that a second run is instant and an interrupted one resumes.
    """
    if out is not None and out.suffix not in READERS:
        raise click.BadParameter(
            f"{out.name} ends in none of {', '.join(READERS)}", param_hint="--out"
        )
    try:
        words = read(source, lines=lines)
        from psychlm import lm

        scored = lm.surprisal(
            words,
            lm.load(name, device),
            correction=None if correction == "none" else "pimentel-meister",
            stride=stride,
            entropy=entropy,
            rank=rank,
            cache=not no_cache,
            progress=sys.stderr.isatty(),
        )
        if out is not None:
            write(scored, out)
    except (ValueError, OSError) as error:
        click.echo(f"psychlm: {error}", err=True)
        sys.exit(1)
    report(scored, out)


def read(source: str, *, lines: bool = False) -> pd.DataFrame:
    """Return the words of a text, a text file (one text, or one per line), or a file that holds a words frame.

    Raises
    ------
    FrameError
        If a file holds no words.
    FileNotFoundError
        If the source looks like a file and is none.
    """
    import pandas as pd

    from psychlm.lm.alignment import words_of

    path = Path(source)
    if path.suffix.lower() not in (".txt", *READERS):
        return words_of(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {source}; a text that ends in {path.suffix} needs a space at its end"
        )
    if path.suffix.lower() == ".parquet":
        return pd.read_parquet(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        separator = "," if path.suffix.lower() == ".csv" else "\t"
        # words like None and NA are words, and text ids keep their leading zeros
        return pd.read_csv(
            path, sep=separator, keep_default_na=False, dtype={"text_id": str, "word": str}
        )
    text = path.read_text(encoding="utf-8")
    texts = [line for line in text.splitlines() if line.strip()] if lines else {path.stem: text}
    return words_of(texts)


def write(scored: pd.DataFrame, out: Path) -> None:
    """Write the scored words; the file is there whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as part:
        if out.suffix == ".parquet":
            scored.to_parquet(part, index=False)
        else:
            scored.to_csv(part, index=False, sep="," if out.suffix == ".csv" else "\t")


def report(scored: pd.DataFrame, out: Path | None) -> None:
    """Print the words, or what was written; and on standard error how they were scored, and which have no value."""
    shown = scored.drop(columns=["scored_by", "space_before", "space_after"], errors="ignore")
    if out is None:
        click.echo(shown.to_string(index=False, float_format="{:.3f}".format))
    else:
        click.echo(f"{len(scored)} words of {scored['text_id'].nunique()} texts: {out}")
    click.echo(scored["scored_by"].iloc[0], err=True)
    for why, count in scored.loc[scored["reason"] != "", "reason"].value_counts().items():
        click.echo(f"psychlm: {count} words have no value or an infinite one: {why}", err=True)
