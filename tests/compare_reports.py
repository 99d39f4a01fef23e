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
Numbers = dict[str, dict[str, Any]]  # by key: the fields of a number


def read(file: Path) -> Numbers:
    """Return the numbers of a report."""
    report = json.loads(file.read_text(encoding="utf-8"))
    return {number["key"]: number for number in report["numbers"]}


def distance(old: Any, new: Any) -> float:
    """Return 0 for equal entries, else their relative distance; infinity if types differ."""
    if old == new:
        return 0.0
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(map(distance, old, new))
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (old, new))
    return abs(old - new) / max(abs(old), abs(new), 1.0) if numbers else math.inf


def compare(old: Numbers, new: Numbers) -> tuple[list[str], float]:
    """Return a line for each difference beyond the tolerance, and the largest one within it."""
    lines = [f"{key} is gone" for key in old if key not in new]
    lines += [f"{key} is new" for key in new if key not in old]
    largest = 0.0
    for key in (key for key in old if key in new):
        for field in sorted(old[key].keys() | new[key].keys()):
            before, after = old[key].get(field), new[key].get(field)
            apart = distance(before, after)
            if apart > TOLERANCE:
                lines.append(f"{key}: {field}: {before!r} -> {after!r}")
            else:
                largest = max(largest, apart)
    return lines, largest


def main() -> int:
    """Compare the two folders named on the command line."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    names = sorted({file.name for folder in folders for file in folder.glob("[0-9]*_*.json")})
    if len(folders) != 2 or not names:
        print(f"usage: {sys.argv[0]} OLD NEW, two folders of reports", file=sys.stderr)
        return 2
    differences: list[str] = []
    for name in names:
        stem = name.removesuffix(".json")
        holders = [folder for folder in folders if (folder / name).is_file()]
        if len(holders) == 1:
            differences.append(f"{stem}: only in {holders[0]}")
            continue
        old, new = (read(folder / name) for folder in folders)
        lines, largest = compare(old, new)
        equal = "identical" if largest == 0 else f"equal to {TOLERANCE:g} (largest {largest:.1g})"
        print(f"{stem}: {len(old)} numbers, {f'{len(lines)} differences' if lines else equal}")
        differences += [f"{stem}: {line}" for line in lines]
    print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
