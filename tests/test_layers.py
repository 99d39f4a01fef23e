"""The floors of the house: imports go down, never up, never in a circle. Reference: the map in psychlm/__init__.py."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import psychlm

PACKAGE = Path(psychlm.__file__).parent
SOLE_IMPORTERS = {
    "papermill": {"notebooks"},
    "nbconvert": {"notebooks"},
    "transformers": {"lm"},
    "rpy2": {"reading"},
}


def floors() -> dict[str, int]:
    """Read the map: each line names a floor and the rooms on it."""
    rooms = {}
    for line in re.findall(r"^    (\d  .*)$", psychlm.__doc__ or "", flags=re.M):
        floor, names = re.match(r"(\d)  ((?:\w+ {1,2})+)", line + " ").groups()  # type: ignore[union-attr]
        rooms |= {name: int(floor) for name in names.split()}
    return rooms


def imported(file: Path) -> set[str]:
    """Return the full names of all modules that a file imports, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


def test_every_room_stands_on_the_map() -> None:
    assert {room_of(file) for file in FILES} <= set(floors())


def test_imports_only_go_down() -> None:
    rising = []
    for file in FILES:
        here = room_of(file)
        for name in imported(file):
            target = name.split(".")[1] if name.startswith("psychlm.") else None
            if target not in floors() or target == here:
                continue
            asks_for_an_ability = file.name in ("curriculum.py", "ability_callback.py") and target == "irt"
            same_low_floor = floors()[here] == floors()[target] == 0
            if floors()[target] >= floors()[here] and not (same_low_floor or asks_for_an_ability):
                rising.append(f"{file.name} ({here}) imports {name}")
    assert not rising


def test_no_circle_among_modules() -> None:
    graph = {}
    for file in FILES:
        module = ".".join(("psychlm", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        graph[module] = {name for name in imported(file) if name.startswith("psychlm")}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"circle: {' -> '.join((*path, module))}"
        if module in done:
            return
        for target in graph.get(module, set()) & set(graph):
            if target != module.rpartition(".")[0]:  # a room's __init__ may gather what its modules define
                visit(target, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_heavy_libraries_have_one_door() -> None:
    strangers = [
        f"{file.name} imports {name}"
        for file in FILES
        for name in imported(file)
        for library, rooms in SOLE_IMPORTERS.items()
        if name.split(".")[0] == library and room_of(file) not in rooms
    ]
    assert not strangers


def test_import_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import psychlm; seconds = time.perf_counter() - start; "
        "print(seconds, *(m for m in ('torch', 'transformers', 'pandas') if m in sys.modules))"
    )
    seconds, *loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(seconds) < 0.3
    assert not loaded
