"""MkDocs hook: a reference page for every room of the package, with its public modules; nothing is listed by hand."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).resolve().parents[1] / "psychlm"


def rooms() -> dict[str, list[str]]:
    """Return the public modules of every room by their full names, the room's own docstring first."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("psychlm", *parts)).removesuffix(".__init__")
        if name == "psychlm" or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        found.setdefault(parts[0], []).append(name)
    return found


def summary(room: str) -> str:
    """Return the first line of a room's docstring."""
    file = PACKAGE / room / "__init__.py" if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0]


def on_config(config: Any) -> Any:
    """Put the rooms into the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = ["reference/index.md", *({room: f"reference/{room}.md"} for room in rooms())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Write the pages."""
    lines = [
        "# Reference",
        "",
        "One page a room of the house; every module's docstrings, as they stand in the code.",
        "",
    ]
    for room, modules in rooms().items():
        lines.append(f"- [`psychlm.{room}`]({room}.md): {summary(room)}")
        page = "\n\n".join([f"# psychlm.{room}", *(f"::: {name}" for name in modules)])
        files.append(File.generated(config, f"reference/{room}.md", content=page))
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines) + "\n"))
    return files
