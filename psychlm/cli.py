"""The command ``psychlm``: notebooks, data, surprisal, answers, probes, tests; what is on this machine."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import click

from psychlm import __version__
from psychlm.cli_confuse import confuse
from psychlm.cli_probes import probes
from psychlm.cli_responses import responses
from psychlm.cli_surprisal import surprisal

Profile = Literal["smoke", "quick", "full"]


class _PlainErrors(click.Group):
    """Commands whose expected failures are one line and exit code 1; a traceback is for defects of ours."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; ``PSYCHLM_TRACEBACK=1`` shows where an error came from."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            said = _in_a_line(error)
            if said is None or os.environ.get("PSYCHLM_TRACEBACK"):
                raise
        click.echo(f"psychlm: {said}", err=True)
        sys.exit(1)


def _in_a_line(error: Exception) -> str | None:
    """Return what to tell of an error that is no defect of ours: bad input, a missing part, a full disk, no memory."""
    no_memory = isinstance(error, MemoryError) or re.search(
        "(alloc|out of) ?memory|not enough memory", str(error)
    )
    if no_memory:
        return f"memory does not suffice ({str(error).strip() or 'none was left'}); give fewer rows at a time"
    if isinstance(error, (ValueError, OSError)) or type(error).__module__.startswith("psychlm"):
        return str(error)
    return None


@click.group(cls=_PlainErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Do language models find difficult what people find difficult?"""


@main.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--profile",
    type=click.Choice(["smoke", "quick", "full"]),
    default="quick",
    show_default=True,
    help="Which sizes: the tests' (smoke), a few minutes (quick), the papers' (full).",
)
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a notebook parameter.",
)
@click.option("--jobs", default=1, show_default=True, help="How many notebooks run at once.")
@click.option("--force", is_flag=True, help="Run notebooks even where nothing changed.")
def run(
    notebooks: tuple[str, ...],
    profile: Profile,
    parameters: tuple[str, ...],
    jobs: int,
    force: bool,
) -> None:
    """Run the notebooks (all, or those named by number or name) and write reports/index.html."""
    from psychlm import site as runner

    outcomes = runner.run(
        notebooks,
        profile=profile,
        parameters=runner.parse_parameters(parameters),
        jobs=jobs,
        force=force,
    )
    if any(outcome.status == "failed" for outcome in outcomes):
        sys.exit(1)


@main.command()
@click.argument("title")
@click.option(
    "--number", type=int, help="Its place in the collection; the next free one unless given."
)
def new(title: str, number: int | None) -> None:
    """Write a numbered notebook called TITLE with the anatomy in place; it runs as it is."""
    from psychlm import data
    from psychlm.site import new as builder
    from psychlm.site import overview

    path = builder.new(title, root=data.root(), number=number)
    overview.write(data.root(), "notebooks", overview.table(data.root()))
    click.echo(
        f"{path}\nnext: psychlm run {path.stem[:2]}, look at reports/{path.stem}.html, and make it yours"
    )


@main.command()
def doctor() -> None:
    """Say which optional parts are on this machine (GPU, R, WordNet, data ...), and what each would add."""
    from rich.console import Console
    from rich.table import Table

    from psychlm import doctor as parts

    table = Table(
        "", "part", "found, or how to get it", "what it adds", box=None, header_style="bold"
    )
    found = []
    for part in parts.examine():
        found.append(part.found)
        table.add_row(
            "[green]yes[/]" if part.found else "[yellow]no[/]", part.name, part.what, part.adds
        )
    Console().print(table)
    click.echo(
        f"\n{sum(found)} of {len(found)} optional parts are here; nothing needs any of them."
    )


@main.group(name="data")
def data_group() -> None:
    """List, fetch and verify the datasets of data/registry.csv."""


@data_group.command(name="list")
def data_list() -> None:
    """Show every dataset: where it is, whether its checksum is right, its size and licence."""
    from rich.console import Console
    from rich.table import Table

    from psychlm import data

    table = Table("name", "state", "place", "size", box=None, header_style="bold")
    for row in data.state():
        size = f"{int(str(row['bytes'])) / 1e6:.2f} MB"
        table.add_row(str(row["name"]), str(row["state"]), str(row["place"]), size)
    Console().print(table)


@data_group.command(name="pull")
@click.argument("names", nargs=-1)
def data_pull(names: tuple[str, ...]) -> None:
    """Fetch datasets into data/raw/ (all that have an address and are not here, unless some are named).

    Whole training banks (SNLI, MNLI ...: hundreds of megabytes, for the full profile) come only by name.
    """
    from psychlm import data

    known = data.registry()
    wanted = names or list(
        known.index[(known["url"] != "") & ~known["note"].str.startswith("released once")]
    )
    failed = False
    for name in wanted:
        try:
            path = (None if names else data.verify(name)) or data.fetch(
                name, progress=sys.stderr.isatty()
            )
            click.echo(f"{name}: {path}")
        except data.DataError as error:
            click.echo(f"psychlm: {error}", err=True)
            failed = True
    sys.exit(1 if failed else 0)


@data_group.command(name="verify")
@click.argument("names", nargs=-1)
def data_verify(names: tuple[str, ...]) -> None:
    """Check the SHA-256 of every dataset on this machine; exit 1 where one is corrupt."""
    from psychlm import data

    rows = list(data.state(names or None))
    for row in rows:
        if row["error"]:
            click.echo(f"psychlm: {row['error']}", err=True)
    _count_states(rows)
    sys.exit(1 if any(row["error"] for row in rows) else 0)


def _count_states(rows: Iterable[dict[str, object]]) -> None:
    for state, count in Counter(str(row["state"]) for row in rows).items():
        click.echo(f"{count:4d} {state}")


@data_group.command(name="where")
@click.argument("name")
def data_where(name: str) -> None:
    """Print the verified local path of a dataset, fetching it where it is not here."""
    from psychlm import data

    click.echo(data.path(name))


@main.group(name="irt")
def irt_group() -> None:
    """Fit item response models to persons x items tables, and score persons with them."""


@irt_group.command(name="fit")
@click.argument("responses", type=click.Path())
@click.option(
    "--model",
    type=click.Choice(["1PL", "Rasch", "2PL", "3PL"], case_sensitive=False),
    default="2PL",
    show_default=True,
    help="Common slope, slopes of 1, a slope each, or guessing too.",
)
@click.option(
    "--guessing-prior",
    type=float,
    nargs=2,
    metavar="A B",
    help="Beta(A, B) prior on guessing, as 5 17.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), required=True, help="Where the fit goes, as JSON."
)
@click.option("--max-iterations", default=2000, show_default=True, help="EM steps at most.")
def irt_fit(
    responses: str,
    model: str,
    guessing_prior: tuple[float, float] | None,
    out: str,
    max_iterations: int,
) -> None:
    """Fit a model to RESPONSES (CSV or Parquet: persons in rows, 0, 1 or empty; the first column names them)."""
    from psychlm import frames, irt
    from psychlm.irt.priors import Prior

    priors: dict[str, Prior] | None = (
        {"guessing": irt.Beta(*guessing_prior)} if guessing_prior else None
    )
    fit = irt.fit(
        frames.read_responses(responses), model, priors=priors, max_iterations=max_iterations
    )
    fit.to_json(out)
    click.echo(fit.items.drop(columns="c_is_free", errors="ignore").round(3).to_string())
    click.echo(
        f"\n{fit.model}, {fit.n_persons} persons: log-likelihood {fit.loglik:.3f} nats, AIC {fit.aic:.1f}, "
        f"BIC {fit.bic:.1f}, {fit.n_iterations} EM steps, {'converged' if fit.converged else 'NOT converged'}; {out}"
    )
    sys.exit(0 if fit.converged else 1)


@irt_group.command(name="score")
@click.argument("fit", type=click.Path())
@click.argument("responses", type=click.Path())
@click.option(
    "--method", type=click.Choice(["eap", "map", "ml", "wle"]), default="eap", show_default=True
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="A CSV or Parquet file; the screen unless given."
)
def irt_score(fit: str, responses: str, method: str, out: str | None) -> None:
    """Score the persons of RESPONSES with FIT, a file that `psychlm irt fit` wrote."""
    from psychlm import frames, irt

    abilities = irt.IRTFit.from_json(fit).score(frames.read_responses(responses), method)
    if out and out.endswith(".parquet"):
        abilities.to_parquet(out)
    else:
        text = abilities.to_csv(out)
    click.echo(out if out else text, nl=bool(out))


probes.add_command(confuse)
for command in (surprisal, responses, probes):
    main.add_command(command)
