"""``psychlm probes confuse``: items in, the same items under a confusion probe out, as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import pandas as pd

PROBES = (
    "no-question",
    "wrong-question",
    "no-right-answer",
    "more-choices",
)  # confusion.PROBES, without its imports


@click.command()
@click.argument("items", type=click.Path(path_type=Path), metavar="ITEMS.jsonl")
@click.option(
    "--probe", type=click.Choice(PROBES), required=True, help="What is done to the items."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help="Where the perturbed items go.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Fixes what is drawn and the order of the choices."
)
@click.option("--extra", default=1, show_default=True, help="How many choices `more-choices` adds.")
@click.option(
    "--drop-unfit", is_flag=True, help="Leave out items that cannot be perturbed, and say which."
)
def confuse(items: Path, probe: str, out: Path, seed: int, extra: int, drop_unfit: bool) -> None:
    """Perturb multiple-choice ITEMS: a JSON object a line, with item_id, prompt, choices (a list) and answer (from 0).

    Give the items of one benchmark: whatever is borrowed comes from the other instances.
    """
    from psychlm.probes import confusion

    try:
        original = _read(items)
        if drop_unfit:
            original, left_out = confusion.drop_unfit(original)
            for name, reason in left_out.items():
                click.echo(f"left out {name}: {reason}", err=True)
        perturbed = confusion.perturb(original, probe, seed=seed, n_extra=extra)  # type: ignore[arg-type]  # click checked it
        perturbed.to_json(out, orient="records", lines=True, force_ascii=False)
    except (ValueError, OSError) as error:
        click.echo(f"psychlm: {error}", err=True)
        sys.exit(1)
    right = (
        "the right choice is among them"
        if perturbed["has_right_answer"].all()
        else "no choice is right"
    )
    click.echo(
        f"{len(perturbed)} items under {perturbed['probe'].iloc[0]}, seed {seed}: {right}; {out}"
    )


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    from psychlm.frames import FrameError

    if not path.exists():
        raise FrameError(f"{path} is not there; name a file of items, one JSON object a line")
    try:
        return pd.read_json(path, lines=True, dtype=False)
    except ValueError as error:
        raise FrameError(
            f"{path} cannot be read ({error}); it should hold one JSON object a line"
        ) from error
