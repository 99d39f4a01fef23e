"""Imports follow the layers. Reference: the list in the docstring of psychlm/__init__.py."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import psychlm

PACKAGE = Path(psychlm.__file__).parent
ONLY_IMPORTED_BY = {
    "papermill": {"site"},
    "nbconvert": {"site"},
    "transformers": {"lm", "crowds", "papers"},
    "rpy2": {"reading_times"},
}
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


@cache
def layers() -> dict[str, int]:
    """Return the layer of each module or sub-package, as the package's docstring lists them."""
    found = {}
    for line in re.findall(r"^    (\d  .*)$", psychlm.__doc__ or "", flags=re.M):
        names = re.match(r"((?:\w+ {1,2})+)", line[3:] + " ")
        assert names, f"no names in the line {line!r} of the list of layers"
        found |= {name: int(line[0]) for name in names[1].split()}
    return found


@cache
def imported(file: Path) -> set[str]:
    """Return the full names of all modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def part_of(file: Path) -> str:
    """Return the top-level module or sub-package that a file belongs to."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0].lstrip("_")


def test_every_module_has_a_layer() -> None:
    assert {part_of(file) for file in FILES} <= set(layers())


def test_imports_go_to_the_same_or_a_lower_layer() -> None:
    wrong = []
    for file in FILES:
        here = part_of(file)
        for name in imported(file):
            target = name.split(".")[1] if name.startswith("psychlm.") else None
            if target not in layers() or target == here:
                continue
            if layers()[target] > layers()[here]:
                wrong.append(f"{file.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_irt_ctt_and_reading_times_know_no_language_model() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in FILES
        if part_of(file) in ("irt", "ctt", "reading_times")
        for name in imported(file)
        if name.startswith(("psychlm.lm", "psychlm.crowds", "psychlm.probes"))
    ]
    assert not wrong


def test_no_import_cycle_among_modules() -> None:
    graph = {}
    for file in FILES:
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(("psychlm", *parts)).removesuffix(".__init__")
        graph[module] = {name for name in imported(file) if name.startswith("psychlm")}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path, module))}"
        if module in done:
            return
        for target in graph.get(module, set()) & set(graph):
            if target != module.rpartition(".")[0]:  # a package's __init__ may import its modules
                visit(target, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_other_subpackages_are_imported_by_their_public_names() -> None:
    """Other sub-packages import the names in ``__all__``, or a public module."""
    wrong = []
    for file in FILES:
        for name in imported(file):
            parts = name.split(".")
            private = [part for part in parts[2:] if part.startswith("_")]
            if parts[0] == "psychlm" and len(parts) > 1 and parts[1] != part_of(file) and private:
                wrong.append(f"{file.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_no_module_shares_its_name_with_a_function_of_its_package() -> None:
    wrong = []
    for init in PACKAGE.rglob("__init__.py"):
        modules = {f"psychlm.{init.parent.name}.{file.stem}" for file in init.parent.glob("*.py")}
        tree = ast.parse(init.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                stem = node.module.rpartition(".")[2]
                wrong += [
                    f"{node.module}.{a.name}" for a in node.names if (a.asname or a.name) == stem
                ]
    assert not wrong


def test_heavy_libraries_are_imported_in_one_place() -> None:
    wrong = [
        f"{file.name} imports {name}"
        for file in FILES
        for name in imported(file)
        for library, parts in ONLY_IMPORTED_BY.items()
        if name.split(".")[0] == library and part_of(file) not in parts
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import psychlm", "torch transformers pandas numpy"),
        ("import psychlm.data", "torch transformers pandas numpy"),
        ("import psychlm.lm, psychlm.cli", "torch transformers"),
        ("from psychlm.cli import main; main(['--help'], standalone_mode=False)", "pandas numpy"),
        ("from psychlm.cli import main; main(['doctor'], standalone_mode=False)", "nltk.tag rpy2"),
    ],
)
def test_nothing_heavy_is_imported_without_need(statement: str, heavy: str) -> None:
    code = f"import sys; {statement}; print('|', *set({heavy.split()}) & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not run.stdout.rpartition("|")[2].split()
