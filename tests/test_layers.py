"""Imports follow the layers. Reference: the list in the docstring of psychlm/__init__.py."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import psychlm

PACKAGE = Path(psychlm.__file__).parent
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


def imported(file: Path) -> set[str]:
    """Return the full names of all modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
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


def test_imports_go_to_the_same_or_a_lower_layer() -> None:
    for file, part, name in IMPORTS:
        target = name.split(".")[1]
        lower = target == part or LAYERS.get(target, -1) <= LAYERS[part]
        assert lower, f"{file} imports {name}"


def test_irt_ctt_and_reading_times_know_no_language_model() -> None:
    models = ("psychlm.lm", "psychlm.crowds", "psychlm.probes")
    without = ("irt", "ctt", "reading_times")
    assert not [row for row in IMPORTS if row[1] in without and row[2].startswith(models)]


def test_nothing_of_the_package_uses_the_papers_own_code() -> None:
    uses = [str(file) for file in FILES if any(n.startswith("analyses") for n in imported(file))]
    assert not uses


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import psychlm", "torch transformers pandas numpy"),
        ("import psychlm.data", "torch transformers pandas numpy"),
        ("import psychlm.lm, psychlm.cli", "torch transformers"),
        ("from psychlm.cli import main; main(['--help'], standalone_mode=False)", "pandas numpy"),
        (
            "import numpy; from psychlm import irt; right = numpy.random.default_rng(0); "
            "irt.fit(right.integers(0, 2, (300, 6), 'uint8'), '2PL')",
            "torch scipy.stats scipy.optimize",
        ),
        ("from psychlm.cli import main; main(['doctor'], standalone_mode=False)", "nltk.tag rpy2"),
    ],
)
def test_nothing_heavy_is_imported_without_need(statement: str, heavy: str) -> None:
    code = f"import sys; {statement}; print('|', *set({heavy.split()}) & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not run.stdout.rpartition("|")[2].split()
