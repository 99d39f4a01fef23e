"""MkDocs hook: one reference page per sub-package and module, with its public names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).resolve().parents[1] / "psychlm"


def sub_packages() -> dict[str, list[str]]:
    """Return the public modules of every sub-package by full names, the package itself first."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("psychlm", *parts)).removesuffix(".__init__")
        private = any(part.startswith("_") and part != "__init__" for part in parts)
        script = not file.with_name("__init__.py").exists()
        if name == "psychlm" or script or private:
            continue
        found.setdefault(parts[0], []).append(name)
    return found


def _tree(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def exported(package: str) -> set[str]:
    """Return the names that a package imports from its modules; they are shown once, with it."""
    imports = [node for node in ast.walk(_tree(package)) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    modules = {str(node.module).rpartition(".")[2] for node in imports}
    return names - modules


def page(package: str, modules: list[str]) -> str:
    """Return the Markdown of a page."""
    shown = exported(modules[0])
    blocks = [
        f"# psychlm.{package}",
        f"::: {modules[0]}\n    options:\n      show_root_heading: false",
    ]
    hidden = ", ".join(f'"!^{name}$"' for name in sorted(shown))
    for module in modules[1:]:
        filters = f'["!^_"{", " + hidden if hidden else ""}]'
        blocks.append(f"::: {module}\n    options:\n      filters: {filters}")
    return "\n\n".join(blocks)


def on_config(config: Any) -> Any:
    """Put the pages into the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = [
                "reference/index.md",
                *({name: f"reference/{name}.md"} for name in sub_packages()),
            ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Write the pages."""
    lines = [
        "# Reference",
        "",
        "One page per sub-package, from the docstrings in the code.",
        "",
    ]
    for name, modules in sub_packages().items():
        summary = (ast.get_docstring(_tree(modules[0])) or "").partition("\n")[0]
        lines.append(f"- [`psychlm.{name}`]({name}.md): {summary}")
        files.append(File.generated(config, f"reference/{name}.md", content=page(name, modules)))
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines) + "\n"))
    return files
