"""``psychlm run``, ``plan``, ``report`` and ``new``: the notebooks of the collection."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from psychlm import data
from psychlm.terminal import (
    FILE,
    PATH,
    UNPRINTABLE,
    check_out,
    choice_option,
    from_here,
    print_table,
    say,
)

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
    help="A parameter.",
)


@click.command()
@click.argument("notebooks", nargs=-1)
@choice_option("--profile", "smoke quick full paper", "quick", "Sizes: tests, minutes, papers.")
@parameter_option
@click.option("--jobs", default=1, help="How many notebooks run at once.")
@click.option("--force", is_flag=True, help="Run notebooks that have not changed, too.")
def run(notebooks: tuple[str, ...], **options: Any) -> None:
    """Run the notebooks (all, or those named by number or name) and write reports/index.html.

    A notebook whose data are missing is left out with the reason, and the run still succeeds. The
    profile `paper` has the papers' models, too.
    """
    from psychlm import site

    outcomes = site.run(notebooks, **options)
    sys.exit(1 if any(outcome.status == "failed" for outcome in outcomes) else 0)


@click.command()
@click.argument("notebooks", nargs=-1)
@choice_option("--profile", "smoke quick full paper", "paper", "Whose models and sizes.")
@choice_option("--gpu", "T4 V100 A100 H100", None, "Hours on this GPU, not here.", needed=False)
@parameter_option
def plan(notebooks: tuple[str, ...], gpu: str | None, **options: Any) -> None:
    """Show what a run would take: models, data, gigabytes, memory, hours; nothing is fetched.

    Exit status 1 if something cannot work: a model that cannot be opened or does not fit, a package
    that is not installed, data without an address, a disk that is too small.
    """
    from psychlm import device
    from psychlm.site import plan as planned

    if gpu:
        teraflops, memory = planned.facts("gpus").loc[gpu, ["teraflops", "memory_gb"]]
        where = f"a GPU {gpu} ({teraflops} TFLOP/s at most)"
    else:
        teraflops, memory = device.measured_teraflops(), None
        where = f"this machine ({teraflops:.2f} TFLOP/s measured)"
    needs = planned.plan(notebooks, teraflops=teraflops, gpu_memory_gb=memory, **options)
    print_table(*planned.table(needs))
    total, *models = planned.summary(needs)
    say(f"\n{total}; computed times are those of the hub's models, on {where}.")
    notes = needs.loc[needs["note"] != "", "note"].drop_duplicates()
    for line in [*models, *("note: " + notes)]:
        say(line)
    problems = needs[needs["problem"] != ""]
    problems = [*(problems["notebook"] + ": " + problems["problem"]), *planned.lacks_disk(needs)]
    for problem in problems:
        say(f"cannot work: {problem}", err=True)
    sys.exit(1 if problems else 0)


@click.command()
@click.option("--bundle", type=FILE, help="Write the reports of the profile paper: a zip file.")
@click.option("--merge", type=PATH, help="Check such a file of another machine, and keep its runs.")
def report(bundle: Path | None, merge: Path | None) -> None:
    """Send the numbers of a run with the papers' models, or take those of another machine.

    A bundle holds numbers, versions and hardware, no weights and no texts. Merged runs fill a
    column of docs/results.md (`make results`); a run of other code, data or parameters is refused.
    """
    from psychlm.site import bundles

    if bundle is not None and merge is None:
        check_out(bundle, suffixes=(".zip",))
        say(f"{bundle}: {', '.join(bundles.pack(bundle))}")
    elif merge is not None and bundle is None:
        names = ", ".join(bundles.merge(merge))
        say(f"{bundles.folder()}: {names}; `make results` shows them in docs/results.md")
    else:
        raise click.BadParameter("name one of --bundle FILE.zip and --merge FILE.zip")


@click.command()
@click.argument("title")
@choice_option("--kind", "blank reading-times", "blank", "The analysis that it begins with.")
@click.option("--number", type=int, help="Its number; the next free one unless given.")
def new(title: str, kind: Any, number: int | None) -> None:
    """Write a numbered notebook called TITLE from a template that runs as it is."""
    from psychlm import site

    if len(title) > LONGEST_TITLE or UNPRINTABLE.search(title):
        at_most = f"a title has at most {LONGEST_TITLE} printable characters"
        raise click.BadParameter(f"{at_most}; this has {len(title)}")
    path = site.new(title, root=data.root(), kind=kind, number=number)
    say(f"wrote {path}, and no other file")
    say(f"next: psychlm run {path.stem[:2]}, then add a row to the table in README.md")
