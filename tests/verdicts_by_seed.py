"""Keep the verdict of notebooks under other seeds: ``python tests/verdicts_by_seed.py 40 41``.

Each notebook runs once per seed, its own first. ``data/facts/verdicts_by_seed.csv`` then holds a
row for each: profile, seed, the verdict's sentence, the outcome, and the day. Rows of other
notebooks, profiles and seeds stay. A notebook without a parameter ``seed`` is refused."""

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


def verdict(name: str, profile: collection.Profile, seed: int) -> dict[str, object]:
    """Run a notebook under a seed and return its row; RuntimeError if it does not end."""
    with tempfile.TemporaryDirectory() as folder:
        parameters: dict[str, object] = {"seed": seed}
        if name.startswith("90_"):  # it gathers the reports of the others
            parameters["reports"] = str(ROOT / "reports")
        options = {"root": ROOT, "reports": Path(folder), "parameters": parameters}
        (run,) = site.run([name], profile=profile, **options)
        if run.status != "done":
            raise RuntimeError(f"{name}, seed {seed}: {run.status}: {run.error}")
        told = json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8"))["verdict"]
    row = {"notebook": name, "profile": profile, "seed": seed, "verdict": told["sentence"]}
    return row | {"outcome": told["outcome"], "date": datetime.date.today().isoformat()}


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
            try:
                row = verdict(notebook.name, given.profile, seed)
            except RuntimeError as error:
                failed = 1
                print(error, file=sys.stderr)
                continue
            rows = pd.concat([pd.read_csv(TABLE), pd.DataFrame([row])])
            rows = rows.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
            with data.atomic_write(TABLE) as part:
                rows.to_csv(part, index=False, lineterminator="\n")
            print(f"{notebook.name} {seed}: {row['outcome']}: {row['verdict']}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
