"""MkDocs hook: a reference page for every room of the package, with its public modules; nothing is listed by hand."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).resolve().parents[1] / "psychlm"


def rooms() -> dict[str, list[str]]:
    """Return the public modules of every room by their full names, the room itself first."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("psychlm", *parts)).removesuffix(".__init__")
        if name == "psychlm" or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        found.setdefault(parts[0], []).append(name)
    return found


def _tree(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def offered(room: str) -> set[str]:
    """Return the names that a room offers from its modules: they are shown with the room, and not again."""
    imports = [node for node in ast.walk(_tree(room)) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    modules = {str(node.module).rpartition(".")[2] for node in imports}
    return names - modules  # a function called as its module is shown there


def page(room: str, modules: list[str]) -> str:
    """Return the Markdown of a room's page."""
    shown = offered(modules[0])
    blocks = [
        f"# psychlm.{room}",
        f"::: {modules[0]}\n    options:\n      show_root_heading: false",
    ]
    hidden = ", ".join(f'"!^{name}$"' for name in sorted(shown))
    for module in modules[1:]:
        filters = f'["!^_"{", " + hidden if hidden else ""}]'
        blocks.append(f"::: {module}\n    options:\n      filters: {filters}")
    return "\n\n".join(blocks)


def on_config(config: Any) -> Any:
    """Put the rooms into the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = [
                "reference/index.md",
                *({room: f"reference/{room}.md"} for room in rooms()),
            ]
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
        summary = (ast.get_docstring(_tree(modules[0])) or "").partition("\n")[0]
        lines.append(f"- [`psychlm.{room}`]({room}.md): {summary}")
        files.append(File.generated(config, f"reference/{room}.md", content=page(room, modules)))
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines) + "\n"))
    return files
