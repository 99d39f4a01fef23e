"""What a notebook's outcome depends on; where none of it has changed, the notebook need not run again."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psychlm
from psychlm import data
from psychlm.site import storage
from psychlm.site.collection import Notebook

PACKAGE = Path(psychlm.__file__).parent


def of_code(
    notebook: Notebook,
    root: Path,
    profile: str,
    parameters: Mapping[str, Any],
    reports: Path | None = None,
) -> str:
    """Hash a notebook's cells, parameters and profile, the modules it imports, and the published tables it cites.

    For a notebook that reads what the others found, their numbers in the folder ``reports`` are part of it.

    Returns
    -------
    str
        A SHA-256 in hexadecimal digits. Data are not part of it: see :func:`data_unchanged`.
    """
    settings = json.dumps(
        [psychlm.__version__, profile, parameters, notebook.cells], sort_keys=True, default=repr
    )
    digest = hashlib.sha256(settings.encode())
    source = "\n".join(notebook.code)
    for file in [*imported(notebook.code), *_published(root, source)]:
        digest.update(f"{file.name}\0".encode())
        digest.update(file.read_bytes())
    if notebook.reads_reports and reports is not None:
        for file in sorted(reports.glob("[0-9]*_*.json")):
            found = (storage.read(file) or {}) if file.stem != notebook.name else {}
            digest.update(
                json.dumps([file.stem, found.get("status"), found.get("numbers")]).encode()
            )
    return digest.hexdigest()


def data_unchanged(report: Mapping[str, Any]) -> bool:
    """Say whether the data a report rests on are today what they were when it was made (absent ones still absent)."""
    asked = report["provenance"].get("data") or {}
    return data.fingerprint(asked) == asked


def imported(sources: Iterable[str]) -> list[Path]:
    """Return the files of psychlm that sources import, directly or through one another, and what lies beside them.

    Files that are not Python (a style sheet, a shipped model) count with the modules of their folder. A package
    that loads its modules lazily (it defines ``__getattr__``) counts as a whole.
    """
    found: set[Path] = set()
    waiting = [file for source in sources for file in _modules(source, "")]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        source = file.read_text(encoding="utf-8")
        dotted = ".".join(("psychlm", *file.relative_to(PACKAGE).with_suffix("").parts))
        waiting += _modules(source, dotted)
        if file.name == "__init__.py" and "def __getattr__" in source:
            waiting += file.parent.rglob("*.py")
    beside = {
        path
        for folder in {file.parent for file in found}
        for path in folder.iterdir()
        if path.is_file()
    }
    return sorted(found | {path for path in beside if path.suffix not in (".py", ".pyc")})


def _modules(source: str, importer: str) -> Iterator[Path]:
    """Yield the files of psychlm that one source imports; ``importer`` is its own dotted name, if it has one."""
    try:
        tree = ast.parse(
            "\n".join(
                line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))
            )
        )
    except SyntaxError:
        return  # running it will say what is wrong
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = importer.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _files(name)


def _files(dotted: str) -> Iterator[Path]:
    """Yield the files that importing a dotted name executes: each package on the way, and the module itself."""
    first, *parts = dotted.split(".")
    if first != "psychlm":
        return
    for depth in range(len(parts) + 1):
        place = PACKAGE.joinpath(*parts[:depth])
        yield from (
            file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()
        )


def _published(root: Path, source: str) -> list[Path]:
    """Return the tables of printed numbers whose paper (``laverghetta2021``) a source names."""
    tables = sorted((root / "data" / "published").glob("*.csv"))
    return [table for table in tables if table.name.partition(".")[0] in source]
