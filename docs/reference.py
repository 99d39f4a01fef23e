"""MkDocs hook: one reference page per sub-package and module, with its public names, a first page
of the functions that most analyses call, by task, and a page of the commands with their options.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

PACKAGE = Path(__file__).resolve().parents[1] / "psychlm"
TASKS = {
    "Read texts, items and answers": (
        "data.path corpora.read_items corpora.read_experiment corpora.reading_times.from_csv "
        "corpora.reading_times.from_long corpora.read_responses corpora.read_answers"
    ),
    "Score texts with a model": "lm.load lm.wrap lm.surprisal lm.surprisals lm.minimal_pairs",
    "Let models answer items": "lm.evaluate lm.choice_logprobs lm.fine_tune crowds.train_crowd",
    "Perturb and build items": "probes.confusion.perturb probes.wordnet_qa.Builder",
    "Describe a test": (
        "ctt.difficulty ctt.item_rest_correlation ctt.distractors ctt.cronbach_alpha "
        "ctt.cluster_items"
    ),
    "Fit an item response model": "irt.fit irt.score irt.m2 irt.s_x2 irt.link",
    "Improve or shorten a test": (
        "irt.flag_items irt.dif_likelihood_ratio irt.adaptive_test irt.short_form"
    ),
    "Model reading times": (
        "reading_times.fit reading_times.delta_loglik reading_times.quality "
        "reading_times.power_curve"
    ),
    "Compare, with uncertainty": "comparison.compare stats.bootstrap stats.holm",
    "Report": "report.begin report.table report.say report.verdict",
}


def sub_packages() -> dict[str, list[str]]:
    """Return the public modules of every sub-package by full names, the package itself first."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("psychlm", *parts)).removesuffix(".__init__")
        private = any(part.startswith("_") and part != "__init__" for part in parts)
        script = not file.with_name("__init__.py").exists()
        command = parts[0].startswith("cli") or name == "psychlm.terminal"
        if name == "psychlm" or script or private or command:
            continue
        found.setdefault(parts[0], []).append(name)
    return found


def _tree(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _imports(module: str) -> list[ast.ImportFrom]:
    """Return the imports of names of a module, or of its stub where they are lazy."""
    stub = PACKAGE.joinpath(*module.split(".")[1:], "__init__.pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8")) if stub.is_file() else _tree(module)
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]


def exported(package: str) -> set[str]:
    """Return the names that a package imports from its modules; they are shown once, with it."""
    imports = _imports(package)
    names = {alias.name for node in imports for alias in node.names}
    modules = {str(node.module).rpartition(".")[2] for node in imports}
    return names - modules


def summary(name: str) -> str:
    """Return the first line of a function's docstring; the function by its public name."""
    parent, _, function = name.rpartition(".")
    module = f"psychlm.{parent}"
    for node in _imports(module):
        if function in [alias.name for alias in node.names]:
            module = f"{module}.{node.module}" if node.level else str(node.module)
            break
    for node in _tree(module).body:
        # overloads have no docstring
        is_it = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function
        if is_it and ast.get_docstring(node):
            return str(ast.get_docstring(node)).partition("\n\n")[0].replace("\n", " ")
    raise LookupError(f"TASKS names psychlm.{name}, and {module} has no such function")


def by_task() -> list[str]:
    """Return the lines of the first page that name functions by task."""
    lines: list[str] = []
    for task, names in TASKS.items():
        lines += [f"## {task}", ""]
        for name in names.split():
            lines.append(f"- [`{name}`]({name.partition('.')[0]}.md): {summary(name)}")
        lines.append("")
    return lines


def page(package: str, modules: list[str]) -> str:
    """Return the Markdown of a page."""
    shown = exported(modules[0])
    whole = shown and len(modules) > 1  # a package, whose names come from its modules
    members = f"\n      members: {sorted(shown)}" if whole else ""
    blocks = [
        f"# psychlm.{package}",
        f"::: {modules[0]}\n    options:\n      show_root_heading: false{members}",
    ]
    hidden = ", ".join(f'"!^{name}$"' for name in sorted(shown))
    for module in modules[1:]:
        filters = f'["!^_"{", " + hidden if hidden else ""}]'
        blocks.append(f"::: {module}\n    options:\n      filters: {filters}")
    return "\n\n".join(blocks)


def commands() -> str:
    """Return the page of the command line: the help of every command."""
    import click

    from psychlm.cli import main

    lines = ["# Command line", ""]

    def add(command: click.Command, context: click.Context) -> None:
        lines.extend(["```text", command.get_help(context), "```", ""])
        for name, part in sorted(getattr(command, "commands", {}).items()):
            inner = click.Context(part, info_name=name, parent=context, terminal_width=84)
            depth = inner.command_path.count(" ") + 1
            lines.extend([f"{'#' * depth} {inner.command_path}", ""])
            add(part, inner)

    add(main, click.Context(main, info_name="psychlm", terminal_width=84))
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    """Put the pages into the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = [
                "reference/index.md",
                {"Command line": "reference/commands.md"},
                *({name: f"reference/{name}.md"} for name in sub_packages()),
            ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Write the pages."""
    from mkdocs.structure.files import File

    lines = [
        "# Reference",
        "",
        "The functions that most analyses call, by task; below, one page for each sub-package.",
        "",
        *by_task(),
        "## All modules",
        "",
    ]
    for name, modules in sub_packages().items():
        first = (ast.get_docstring(_tree(modules[0])) or "").partition("\n")[0]
        lines.append(f"- [`psychlm.{name}`]({name}.md): {first}")
        files.append(File.generated(config, f"reference/{name}.md", content=page(name, modules)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines) + "\n"))
    return files
