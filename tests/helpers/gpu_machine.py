"""An environment in which only the packages are found that a machine with a GPU has for sure."""

import importlib.metadata as metadata
import os
from pathlib import Path

from packaging.requirements import Requirement

# what a machine with a GPU has, with all that these require; transformers trains by accelerate
INSTALLED = "torch transformers tokenizers safetensors accelerate numpy pandas scipy scikit-learn"
INSTALLED += " statsmodels pyarrow seaborn lazy-loader"
MISSING = ("pygam", "rpy2", "papermill", "nltk", "kmedoids", "pooch", "requests", "nbformat")
HIDE = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in HIDDEN
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def with_all_that_they_require(names: list[str]) -> set[str]:
    """Return distributions and all that these require, without extras."""
    found: set[str] = set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system
            continue
        parsed = map(Requirement, required)
        names += [r.name for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def hidden_modules() -> set[str]:
    """Return the modules of all installed packages that a machine with a GPU may lack."""
    there = with_all_that_they_require(INSTALLED.split())
    owners = metadata.packages_distributions()
    own = {"psychlm", "analyses", "sitecustomize"}
    return {
        module
        for module, names in owners.items()
        if not {name.lower().replace("_", "-") for name in names} & there and module not in own
    }


def python_path(folder: Path, *others: Path) -> str:
    """Return a path of Python on which ``sitecustomize`` of a folder hides all other modules."""
    (folder / "sitecustomize.py").write_text(f"HIDDEN = {hidden_modules()!r}\n{HIDE}")
    return os.pathsep.join(map(str, (folder, *others)))
