"""Compare the numbers of two folders of reports: ``python tests/compare_reports.py OLD NEW``.

Print one line per notebook (identical, or equal to 1e-6), then every other difference: notebooks
and keys that stand on one side only, and fields of a number that differ. Exit 0 if there is none,
1 if there are some, 2 on a usage error.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 1e-6  # relative, and absolute near zero: what another order of summation may change


def read(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``{notebook: {key: number}}`` of all reports in a folder."""
    files = sorted(folder.glob("[0-9]*_*.json"))
    reports = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return {
        name: {number["key"]: number for number in report["numbers"]}
        for name, report in reports.items()
    }


def distance(old: Any, new: Any) -> float:
    """Return 0 for equal entries, else their relative distance; infinity if types differ."""
    if old == new:
        return 0.0
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(distance(a, b) for a, b in zip(old, new, strict=True))
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (old, new))
    return abs(old - new) / max(abs(old), abs(new), 1.0) if numbers else math.inf


def compare(old: Path, new: Path) -> tuple[list[str], list[str]]:
    """Return one line per notebook, and one line per difference beyond the tolerance."""
    before, after = read(old), read(new)
    lines: list[str] = []
    differences = [f"{name}: only in {old}" for name in sorted(before.keys() - after)]
    differences += [f"{name}: only in {new}" for name in sorted(after.keys() - before)]
    for name in sorted(before.keys() & after):
        mine, theirs = before[name], after[name]
        found = [f"{name}: {key} is gone" for key in mine if key not in theirs]
        found += [f"{name}: {key} is new" for key in theirs if key not in mine]
        largest = 0.0
        for key in (key for key in mine if key in theirs):
            for field in sorted(mine[key].keys() | theirs[key].keys()):
                a, b = mine[key].get(field), theirs[key].get(field)
                if distance(a, b) > TOLERANCE:
                    found.append(f"{name}: {key}: {field}: {a!r} -> {b!r}")
                else:
                    largest = max(largest, distance(a, b))
        equal = "identical" if largest == 0 else f"equal to {TOLERANCE:g} (largest {largest:.1g})"
        verdict = f"{len(found)} differences" if found else equal
        lines.append(f"{name}: {len(mine)} numbers, {verdict}")
        differences += found
    return lines, differences


def main() -> int:
    """Compare the two folders named on the command line."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    if len(folders) != 2 or not all(folder.is_dir() for folder in folders):
        print(f"usage: {sys.argv[0]} OLD NEW, two folders of reports", file=sys.stderr)
        return 2
    lines, differences = compare(*folders)
    if not lines and not differences:
        print(f"no reports in {folders[0]} or {folders[1]}", file=sys.stderr)
        return 2
    print("\n".join([*lines, *differences]))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
