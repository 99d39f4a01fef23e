"""Imports follow the layers. Reference: the list in the docstring of psychlm/__init__.py."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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


# the layer of each module or sub-package, as the package's docstring lists them
LISTED = re.findall(r"^    (\d)  ((?:\w+ )*\w+)(?:   .*)?$", psychlm.__doc__ or "", flags=re.M)
LAYERS = {name: int(layer) for layer, names in LISTED for name in names.split()}
# file, the part that it belongs to, and a name that it imports of the package
IMPORTS = [
    (str(file.relative_to(PACKAGE)), part_of(file), name)
    for file in FILES
    for name in sorted(imported(file))
    if name.startswith("psychlm.")
]


def test_every_module_has_a_layer() -> None:
    assert {part_of(file) for file in FILES} <= set(LAYERS)


def test_imports_go_to_the_same_or_a_lower_layer() -> None:
    targets = [(file, part, name, name.split(".")[1]) for file, part, name in IMPORTS]
    higher = [
        f"{file} imports {name}"
        for file, part, name, target in targets
        if target != part and LAYERS.get(target, -1) > LAYERS[part]
    ]
    assert not higher


def test_irt_ctt_and_reading_times_know_no_language_model() -> None:
    models = ("psychlm.lm", "psychlm.crowds", "psychlm.probes")
    without = ("irt", "ctt", "reading_times")
    assert not [row for row in IMPORTS if row[1] in without and row[2].startswith(models)]


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
    assert not [
        f"{file} imports {name}"
        for file, part, name in IMPORTS
        if name.split(".")[1] != part and any(p.startswith("_") for p in name.split(".")[2:])
    ]


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
