"""``psychlm probes``: questions built from expert knowledge, and items perturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from psychlm import data
from psychlm.terminal import FILE, PATH, check_out, choice_option, say

KINDS = click.Choice(["definitions", "hypernymy", "hyponymy", "synonymy"])


@click.group()
def probes() -> None:
    """Build probes of what models know, as JSON lines in the layout of the ARC questions."""


@probes.group()
def build() -> None:
    """Build probes from a source of expert knowledge."""


@build.command(name="wordnet")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--seed", default=0, help="Fixes the questions that are drawn.")
@click.option("--wordnet", "folder", type=PATH, help="The folder of WordNet's files.")
@click.option("--probe", "names", multiple=True, type=KINDS, help="One of the four; repeatable.")
@click.option("--max-train", default=3000, help="Training questions at most.")
@click.option("--max-hops", default=4, help="Longest chain of links; 0: any.")
@click.option("--max-distance", default=3, help="Depth of distractor families.")
@click.option("--max-concepts", type=int, help="Concepts drawn for a probe; all unless given.")
def probes_wordnet(out: Path, folder: Path | None, names: tuple[Any, ...], **settings: Any) -> None:
    """Build WordNetQA: definitions, hypernymy, hyponymy, synonymy (Richardson & Sabharwal 2020)."""
    from psychlm.probes import wordnet as source
    from psychlm.probes.wordnet_qa import PROBES, Builder, Recipe, write

    settings["max_hops"] = settings["max_hops"] or None
    built = Builder(source.load(folder)).build(Recipe(**settings), names or PROBES)
    manifest, *_ = write(built.items, out, built.header())
    say(built.sizes().round(1).to_string())
    left_out = built.counts[~built.counts["what"].str.startswith("candidates")]
    say(left_out.to_string(index=False), err=True)
    origin = f"WordNet {built.wordnet_version}, seed {settings['seed']}"
    say(f"{len(built.items)} questions from {origin}: {manifest}")


@probes.command()
@click.argument("source", type=PATH, metavar="ITEMS.jsonl")
@choice_option(
    "--probe", "no-question wrong-question no-right-answer more-choices", None, "The change."
)
@click.option("--out", type=FILE, required=True, help="A file of JSON lines.")
@click.option("--seed", default=0, help="Fixes draws and order of choices.")
@click.option("--extra", default=1, help="Choices that `more-choices` adds.")
@click.option("--drop-unfit", is_flag=True, help="Leave out items that cannot be changed.")
def confuse(source: Path, probe: Any, out: Path, seed: int, extra: int, drop_unfit: bool) -> None:
    """Perturb multiple-choice ITEMS: a file in the layout of any bank that read_items reads.

    Give the items of one benchmark: choices are borrowed from its other items.
    """
    from psychlm import corpora
    from psychlm.probes import confusion

    check_out(out, source, suffixes=(".jsonl", ".json"))
    if extra != 1 and probe != "more-choices":
        raise click.BadParameter(f"--extra is an option of more-choices; {probe} adds no choice")
    original = corpora.read_items(source)
    if drop_unfit:
        original, unfit = confusion.drop_unfit(original)
        for name, reason in unfit.items():
            say(f"left out {name}: {reason}", err=True)
    perturbed = confusion.perturb(original, probe, seed=seed, n_extra=extra)
    with data.atomic_write(out) as part:
        perturbed.to_json(part, orient="records", lines=True, force_ascii=False)
    right = "the right choice is kept" if perturbed["has_right_answer"].all() else "none is right"
    say(f"{len(perturbed)} items under {perturbed['probe'].iloc[0]}, seed {seed}: {right}; {out}")
