"""Compare the numbers of two folders of reports: ``python tests/compare_reports.py OLD NEW``.

Print one line per notebook (identical, or equal to 1e-6), then every other difference: notebooks
and keys that stand on one side only, and fields of a number that differ. Exit 0 if there is none,
1 if there are some, 2 on a usage error."""

import json
import math
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 1e-6  # relative, and absolute near zero: what another order of summation may change
Fields = dict[str, Any]  # by key and field: "laverghetta2021.table1.PP: value"


def read(file: Path) -> Fields:
    """Return every field of every number of a report; nothing if there is no report."""
    numbers = json.loads(file.read_text(encoding="utf-8"))["numbers"] if file.is_file() else []
    return {
        f"{number['key']}: {field}": value for number in numbers for field, value in number.items()
    }


def distance(old: Any, new: Any) -> float:
    """Return 0 for equal entries, else their relative distance; infinity if types differ."""
    if old == new:
        return 0.0
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(map(distance, old, new))
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (old, new))
    return abs(old - new) / max(abs(old), abs(new), 1.0) if numbers else math.inf


def main() -> int:
    """Compare the two folders named on the command line."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    names = sorted({file.name for folder in folders for file in folder.glob("[0-9]*_*.json")})
    if len(folders) != 2 or not names:
        print(f"usage: {sys.argv[0]} OLD NEW, two folders of reports", file=sys.stderr)
        return 2
    differences = []
    for name in names:
        old, new = (read(folder / name) for folder in folders)
        if not old or not new:
            differences.append(f"{name}: only in {folders[not old]}")
            continue
        apart = {key: distance(old.get(key), new.get(key)) for key in {**old, **new}}
        beyond = [key for key, far in apart.items() if far > TOLERANCE]
        differences += [f"{name}: {key}: {old.get(key)!r} -> {new.get(key)!r}" for key in beyond]
        largest = max(apart.values(), default=0.0)
        equal = "identical" if largest == 0 else f"equal to {TOLERANCE:g} (largest {largest:.1g})"
        print(f"{name}: {len(apart)} fields, {f'{len(beyond)} differences' if beyond else equal}")
    print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
