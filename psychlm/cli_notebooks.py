"""``psychlm run``, ``plan``, ``report`` and ``new``: the notebooks of the collection."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from psychlm import data
from psychlm.terminal import (
    OUT,
    PATH,
    UNPRINTABLE,
    check_out,
    choice_option,
    from_here,
    print_table,
    say,
)

LONGEST_TITLE = 100  # characters; file systems take names of 255 bytes


@click.command()
@click.argument("notebooks", nargs=-1)
@choice_option(
    "--profile",
    "smoke quick full paper",
    "quick",
    "Sizes of the tests, of a few minutes, of the papers; with the papers' models.",
)
@click.option(
    "-p", "--parameter", "assignments", multiple=True, metavar="NAME=VALUE", help="A parameter."
)
@click.option("--jobs", default=1, show_default=True, help="How many notebooks run at once.")
@click.option("--force", is_flag=True, help="Run notebooks that have not changed, too.")
def run(
    notebooks: tuple[str, ...], profile: Any, assignments: tuple[str, ...], jobs: int, force: bool
) -> None:
    """Run the notebooks (all, or those named by number or name) and write reports/index.html.

    A notebook whose data are missing is left out with the reason; that is no failure.
    """
    from psychlm import site

    given = site.parse_parameters(assignments)
    parameters = {name: from_here(value) for name, value in given.items()}
    outcomes = site.run(notebooks, profile=profile, parameters=parameters, jobs=jobs, force=force)
    sys.exit(1 if any(outcome.status == "failed" for outcome in outcomes) else 0)


@click.command()
@click.argument("notebooks", nargs=-1)
@choice_option("--profile", "smoke quick full paper", "paper", "Whose models and sizes.")
@choice_option("--gpu", "T4 V100 A100 H100", None, "Hours on this GPU, not here.", needed=False)
@click.option(
    "-p", "--parameter", "assignments", multiple=True, metavar="NAME=VALUE", help="A parameter."
)
def plan(
    notebooks: tuple[str, ...], profile: Any, gpu: str | None, assignments: tuple[str, ...]
) -> None:
    """Show what a run would take: models, data, gigabytes, memory, hours; nothing is fetched.

    Exit status 1 if something cannot work: a model that cannot be opened or does not fit, a package
    that is not installed, data without an address, a disk that is too small.
    """
    from psychlm import device, site
    from psychlm.site import plan as planned

    given = {name: from_here(value) for name, value in site.parse_parameters(assignments).items()}
    memory_gb = None
    if gpu:
        teraflops, memory_gb = planned.facts("gpus").loc[gpu, ["teraflops", "memory_gb"]]
        where = f"a GPU {gpu} ({teraflops} TFLOP/s at most)"
    else:
        teraflops = device.measured_teraflops()
        where = f"this machine ({teraflops:.2f} TFLOP/s measured)"
    options = {"profile": profile, "parameters": given, "gpu_memory_gb": memory_gb}
    rows = planned.plan(notebooks, teraflops=teraflops, **options)
    print_table(*planned.table(rows))
    total = planned.total(rows)
    say(f"\n{total}; computed times are those of the hub's models, on {where}.")
    for text in planned.model_lines(rows):
        say(text)
    for text in dict.fromkeys(text for row in rows for text in row.notes):
        say(f"note: {text}")
    problems = dict.fromkeys(f"{row.notebook}: {text}" for row in rows for text in row.problems)
    problems |= dict.fromkeys(planned.lacks_disk(rows))
    for text in problems:
        say(f"cannot work: {text}", err=True)
    sys.exit(1 if problems else 0)


@click.command()
@click.option("--bundle", type=OUT, help="Write the reports of the profile paper: a zip file.")
@click.option("--merge", type=PATH, help="Check such a file of another machine, and keep its runs.")
def report(bundle: Path | None, merge: Path | None) -> None:
    """Send the numbers of a run with the papers' models, or take those of another machine.

    A bundle holds numbers, versions and hardware, no weights and no texts. Merged runs fill a
    column of docs/results.md (`make results`); a run of other code, data or parameters is refused.
    """
    from psychlm.site import bundles

    if (bundle is None) == (merge is None):
        raise click.BadParameter("name one of --bundle FILE.zip and --merge FILE.zip")
    if bundle is not None:
        check_out(bundle, suffixes=(".zip",))
        say(f"{bundle}: {', '.join(bundles.pack(bundle))}")
    elif merge is not None:
        names = bundles.merge(merge)
        say(f"{bundles.folder()}: {', '.join(names)}; `make results` shows them in docs/results.md")


@click.command()
@click.argument("title")
@choice_option("--kind", "blank reading-times", "blank", "The analysis that it begins with.")
@click.option("--number", type=int, help="Its number; the next free one unless given.")
def new(title: str, kind: Any, number: int | None) -> None:
    """Write a numbered notebook called TITLE from a template that runs as it is."""
    from psychlm import site

    if len(title) > LONGEST_TITLE or UNPRINTABLE.search(title):
        raise click.BadParameter(
            f"a title has at most {LONGEST_TITLE} printable characters; this has {len(title)}"
        )
    path = site.new(title, root=data.root(), kind=kind, number=number)
    say(f"wrote {path}, and no other file")
    say(f"next: psychlm run {path.stem[:2]}, then add a row to the table in README.md")
