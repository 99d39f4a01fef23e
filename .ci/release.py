"""Set the version everywhere and date the changelog: ``python .ci/release.py X.Y.Z``."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

VERSION = {  # file: the line that holds the version, and what takes its place
    "psychlm/__init__.py": (r'^__version__ = ".*"$', '__version__ = "{version}"'),
    "CITATION.cff": (r"^version: .*$", "version: {version}"),
}
DATE = {
    "CITATION.cff": (r"^date-released: .*$", "date-released: {date}"),
    "CHANGELOG.md": (r"^## Unreleased$", "## Unreleased\n\n## {version} - {date}"),
}


def prepare(root: Path, version: str) -> None:
    """Write the version and today's date into the files of a checkout, or nothing and exit."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = re.search(r"^## Unreleased$(.*?)(?=^## |\Z)", changelog, flags=re.M | re.S)
    if unreleased is None or not unreleased[1].strip():
        sys.exit(
            "CHANGELOG.md has nothing under '## Unreleased'; write what changed first, or, after a "
            f"release that failed, restore its files: git checkout CHANGELOG.md {' '.join(VERSION)}"
        )
    written: dict[Path, str] = {}
    for name, (line, new) in [*VERSION.items(), *DATE.items()]:
        file = root / name
        text = written.get(file) or file.read_text(encoding="utf-8")
        new = new.format(version=version, date=f"{datetime.now(UTC):%Y-%m-%d}")
        written[file], n_lines = re.subn(line, new, text, flags=re.MULTILINE)
        if n_lines != 1:
            sys.exit(f"{name} has {n_lines} lines like {line!r}; one was expected")
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    prepare(Path(__file__).resolve().parents[1], sys.argv[1])
