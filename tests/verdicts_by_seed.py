"""Keep the verdict of notebooks under other seeds: ``python tests/verdicts_by_seed.py 40 41``.

Each notebook runs once per seed, its own first. ``data/facts/verdicts_by_seed.csv`` then holds a
row for each: profile, seed, the verdict's sentence, the outcome, and the day. Rows of other
notebooks, profiles and seeds stay. A notebook without a parameter ``seed`` is refused.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

import pandas as pd

from psychlm import data, site
from psychlm.site import collection

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "data" / "facts" / "verdicts_by_seed.csv"
KEYS = ["notebook", "profile", "seed"]
COLUMNS = [*KEYS, "verdict", "outcome", "date"]


def verdict(name: str, profile: collection.Profile, seed: int, folder: Path) -> dict[str, object]:
    """Run a notebook under a seed and return its row; RuntimeError if it does not end."""
    (outcome,) = site.run(
        [name], profile=profile, root=ROOT, reports=folder, parameters={"seed": seed}
    )
    if outcome.status != "done":
        raise RuntimeError(f"{name}, seed {seed}: {outcome.status}: {outcome.error}")
    report = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    said = report["verdict"]
    today = datetime.date.today().isoformat()
    row = (name, profile, seed, said["sentence"], said["outcome"], today)
    return dict(zip(COLUMNS, row, strict=True))


def keep(rows: list[dict[str, object]], table: Path = TABLE) -> None:
    """Add rows to the table, in place of those of the same notebook, profile and seed."""
    kept = pd.read_csv(table) if table.is_file() else pd.DataFrame(columns=COLUMNS)
    both = pd.DataFrame([*kept.to_dict("records"), *rows], columns=COLUMNS)
    both = both.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
    with data.atomic_write(table) as part:
        both.to_csv(part, index=False, lineterminator="\n")


def main() -> int:
    """Run the notebooks named on the command line; return 1 if one did not end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="+", help="numbers or names")
    parser.add_argument("--profile", default="quick", choices=["smoke", "quick", "full"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="beside its own")
    given = parser.parse_args()
    failed = 0
    for notebook in collection.select(collection.find(ROOT), given.notebooks):
        if "seed" not in notebook.parameters:
            parser.error(f"{notebook.name} has no parameter seed")
        for seed in [notebook.parameters["seed"], *given.seeds]:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = verdict(notebook.name, given.profile, seed, Path(folder))
                except RuntimeError as error:
                    failed = 1
                    print(error, file=sys.stderr)
                    continue
            keep([row])
            print(f"{notebook.name} {seed}: {row['outcome']}: {row['verdict']}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
