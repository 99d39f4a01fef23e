"""``psychlm probes``: build multiple-choice probes and write them where other tools can read them."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group(name="probes")
def probes() -> None:
    """Build probes of what models know, as JSON lines in the layout of the ARC questions."""


@probes.group(name="build")
def build() -> None:
    """Build probes from a source of expert knowledge."""


@build.command(name="wordnet")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="A folder a probe goes here, with train, dev and test, and manifest.json beside.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="The same seed and WordNet give the same questions.",
)
@click.option(
    "--wordnet",
    "folder",
    type=click.Path(),
    metavar="PATH",
    help="The folder of WordNet's files; Debian's or NLTK's unless given.",
)
@click.option(
    "--probe",
    "names",
    multiple=True,
    type=click.Choice(["definitions", "hypernymy", "hyponymy", "synonymy"]),
    help="One probe, or more if repeated; all four unless given.",
)
@click.option(
    "--max-train", default=3000, show_default=True, help="Training questions of a probe at most."
)
@click.option(
    "--max-hops",
    default=4,
    show_default=True,
    help="Longest chain of ISA links asked about; 0: any.",
)
@click.option(
    "--max-distance",
    default=3,
    show_default=True,
    help="Depth of the families that distractors come from.",
)
@click.option("--max-concepts", type=int, help="Concepts drawn for a probe; all unless given.")
@click.option(
    "--perturbations/--no-perturbations",
    default=True,
    show_default=True,
    help="Every question with each set of distractors, or with one of them.",
)
def wordnet(
    out: Path,
    seed: int,
    folder: str | None,
    names: tuple[str, ...],
    max_train: int,
    max_hops: int,
    max_distance: int,
    max_concepts: int | None,
    perturbations: bool,
) -> None:
    """Build WordNetQA: definitions, hypernymy, hyponymy and synonymy (Richardson & Sabharwal 2020)."""
    from psychlm.data import DataError
    from psychlm.probes import question_sets
    from psychlm.probes import wordnet as source
    from psychlm.probes.wordnet_qa import PROBES, Builder, Recipe

    try:
        recipe = Recipe(
            seed=seed,
            max_hops=max_hops or None,
            max_distance=max_distance,
            max_train=max_train,
            max_concepts=max_concepts,
            perturbations=perturbations,
        )
        built = Builder(source.load(folder)).build(recipe, names or PROBES)
        written = question_sets.write(built.items, out, built.header())
    except (DataError, ValueError, OSError) as error:
        click.echo(f"psychlm: {error}", err=True)
        sys.exit(1)
    click.echo(built.sizes().round(1).to_string())
    left_out = built.counts[~built.counts["what"].str.startswith("candidates")]
    click.echo(left_out.to_string(index=False), err=True)
    click.echo(
        f"{len(built.items)} questions from WordNet {built.wordnet_version}, seed {seed}: {written[0]}"
    )
