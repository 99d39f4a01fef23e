"""``psychlm run`` and ``new``: the notebooks of the collection."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from psychlm.terminal import UNPRINTABLE, choice_option, from_here, say

REGISTRY = "data/registry.csv"  # a checkout has it
LONGEST_TITLE = 100  # characters; file systems take names of 255 bytes


def parsed(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> Any:
    """Return parameters given as ``name=value``, with the whole paths of files."""
    from psychlm.site import collection

    values = collection.parse_parameters(given)
    return {name: from_here(value) for name, value in values.items()}


parameter_option = click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parsed,
    help="A parameter of the notebook; its first cell explains each.",
)


class OfNotebook(click.Command):
    """The command of a card, whose help lists the parameters of its notebook."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each parameter, its default and its comment."""
        from psychlm.site import cards, collection

        cells = collection.read(cards.notebook_file(str(self.name))).cells
        source = next(source for kind, source in cells if kind == "code")
        parts = [line.partition("  # ") for line in source.splitlines() if " = " in line]
        with formatter.section("Parameters of -p"):
            formatter.write_dl([(assigned, comment) for assigned, _, comment in parts])


def folder_of_user() -> Path:
    """Return the folder where the user is, or the checkout around it."""
    here = Path.cwd()
    around = (folder for folder in (here, *here.parents) if (folder / REGISTRY).is_file())
    return next(around, here)


@click.command()
@click.argument("notebooks", nargs=-1)
@choice_option("--profile", "smoke quick full paper", "quick", "Sizes: tests, minutes, papers.")
@parameter_option
@click.option("--jobs", default=1, help="How many notebooks run at once.")
@click.option("--force", is_flag=True, help="Run notebooks that have not changed, too.")
def run(notebooks: tuple[str, ...], **options: Any) -> None:
    """Run the notebooks (all, or those named by number or name) and write reports/index.html.

    They are those of the folder notebooks/ where you are, or else of the project. A notebook whose
    data are missing is left out with the reason, and the run still succeeds. The profile `paper`
    has the papers' models, too.
    """
    from psychlm import site

    root = folder_of_user()
    has_notebooks = any((root / "notebooks").glob("[0-9]*_*.ipynb"))
    outcomes = site.run(notebooks, root=root if has_notebooks else None, **options)
    sys.exit(1 if any(outcome.status == "failed" for outcome in outcomes) else 0)


@click.command()
@click.argument("title")
@choice_option("--kind", "blank reading-times", "blank", "The analysis that it begins with.")
@click.option("--number", type=int, help="Its number; the next free one unless given.")
def new(title: str, kind: Any, number: int | None) -> None:
    """Write a numbered notebook called TITLE from a template that runs as it is.

    It is written to the folder notebooks/ where you are, or of the checkout that you are in.
    """
    from psychlm import site

    if len(title) > LONGEST_TITLE or UNPRINTABLE.search(title):
        at_most = f"a title has at most {LONGEST_TITLE} printable characters"
        raise click.BadParameter(f"{at_most}; this has {len(title)}")
    root = folder_of_user()
    path = site.new(title, root=root, kind=kind, number=number)
    say(f"wrote {path}, and no other file")
    of_project = (root / REGISTRY).is_file()
    then = ", then add a row to the table in README.md" if of_project else ""
    say(f"next: psychlm run {path.stem[:2]}{then}")
