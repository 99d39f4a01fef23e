"""The collection of numbered notebooks: which there are, what each asks, its parameters in each profile."""

from __future__ import annotations

import ast
import contextlib
import difflib
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

Profile = Literal["smoke", "quick", "full"]
PROFILE_FILES = {"smoke": "tests/smoke.yaml", "full": "notebooks/full.yaml"}


class NotebookError(ValueError):
    """A notebook, a profile or a parameter is not what it should be: the message says which, why, and what to do."""


@dataclass(frozen=True)
class Notebook:
    """One notebook as it lies on disk, not yet run."""

    path: Path
    title: str  # its first heading, without the number
    question: str  # what follows **Question.**, as Markdown
    parameters: dict[str, Any]  # the literals of its parameters cell
    parameters_at: int | None  # where that cell stands, counted from 0
    code: tuple[str, ...]  # the sources of its code cells, but for empty ones
    cells: tuple[str, ...]  # the sources of all its cells
    prose: tuple[str, ...]  # the sources of its Markdown cells
    reads_reports: bool  # it reads what the others found (`psychlm.reads_reports` in its metadata), so it runs last
    reproduces: str  # whose tables and figures, as Markdown: `psychlm.reproduces` in its metadata

    @property
    def name(self) -> str:
        """The file name without its suffix, ``20_psychometric_properties``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The digits that its name begins with."""
        return self.name.partition("_")[0]


def find(root: Path) -> list[Notebook]:
    """Return the numbered notebooks of ``root/notebooks`` in their order.

    Raises
    ------
    NotebookError
        If two share a number, or one cannot be read.
    """
    found = [read(path) for path in sorted((root / "notebooks").glob("[0-9]*_*.ipynb"))]
    numbers = [notebook.number for notebook in found]
    twice = [notebook.name for notebook in found if numbers.count(notebook.number) > 1]
    if twice:
        raise NotebookError(
            f"notebooks {twice} share a number; rename all but one, since numbers choose notebooks"
        )
    return found


def read(path: Path) -> Notebook:
    """Read one notebook: its title, its question, its parameters and its sources."""
    try:
        content = json.loads(path.read_bytes())
        cells = [dict(cell, source=_joined(cell["source"])) for cell in content["cells"]]
        said = content.get("metadata", {}).get("psychlm", {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotebookError(
            f"{path} is no readable notebook ({error}); restore it from git"
        ) from error
    head = next((cell["source"] for cell in cells if cell["cell_type"] == "markdown"), "")
    heading = re.search(r"^#\s+(?:\d+\s*[.:·—–-]?\s+)?(.+)$", head, re.MULTILINE)
    question = re.search(r"\*\*Question\.?\*\*\.?\s*(.+?)\s*(?:\n\s*\n|\Z)", head, re.DOTALL)
    tagged = [
        at
        for at, cell in enumerate(cells)
        if "parameters" in cell.get("metadata", {}).get("tags", [])
    ]
    return Notebook(
        path=path,
        title=heading[1].strip() if heading else path.stem,
        question=" ".join(question[1].split()) if question else "",
        parameters=_literals(path, cells[tagged[0]]["source"]) if tagged else {},
        parameters_at=tagged[0] if tagged else None,
        code=tuple(
            cell["source"]
            for cell in cells
            if cell["cell_type"] == "code" and cell["source"].strip()
        ),
        cells=tuple(cell["source"] for cell in cells),
        prose=tuple(cell["source"] for cell in cells if cell["cell_type"] == "markdown"),
        reads_reports=bool(said.get("reads_reports")),
        reproduces=str(said.get("reproduces", "")),
    )


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _literals(path: Path, source: str) -> dict[str, Any]:
    """Return the names and values of a parameters cell, which holds assignments of literals and nothing else."""
    found = {}
    try:
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            elif (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.value
            ):
                found[statement.target.id] = ast.literal_eval(statement.value)
    except (SyntaxError, ValueError) as error:
        raise NotebookError(
            f"{path.name}: its parameters cell holds more than `name = literal` ({error})"
        ) from error
    return found


def select(notebooks: Sequence[Notebook], chosen: Sequence[str] = ()) -> list[Notebook]:
    """Return the notebooks that names, numbers, paths or patterns choose; all of them where nothing is chosen.

    Parameters
    ----------
    chosen : sequence of str
        ``"20"``, ``"20_psychometric_properties"``, ``"notebooks/20_psychometric_properties.ipynb"`` or ``"2*"``.

    Raises
    ------
    NotebookError
        If one of them chooses nothing.
    """
    wanted: set[str] = set()
    for choice in chosen:
        pattern = Path(choice).name.removesuffix(".ipynb")
        names = {
            notebook.name
            for notebook in notebooks
            if pattern == notebook.number or fnmatch.fnmatchcase(notebook.name, pattern)
        }
        if not names:
            known = [notebook.name for notebook in notebooks]
            near = difflib.get_close_matches(pattern, known, n=3) or known
            raise NotebookError(
                f"no notebook is {choice!r}; there are {', '.join(near) or 'none at all'}"
            )
        wanted |= names
    return [notebook for notebook in notebooks if notebook.name in wanted or not chosen]


def parse_parameters(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn ``["draws=500", "seed=7"]``, as given on the command line, into names and values.

    Raises
    ------
    NotebookError
        If one is not of the form ``name=value``.
    """
    return dict(_parameter(assignment) for assignment in assignments)


def _parameter(assignment: str) -> tuple[str, Any]:
    """Turn ``"draws=500"`` into its name and its value, read as a YAML literal (``1e-3`` is a number here, too)."""
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip().isidentifier():
        raise NotebookError(f"a parameter is written name=value, got {assignment!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NotebookError(
            f"the value of {assignment!r} is no YAML literal; quote it if it is a text"
        ) from error
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    return name.strip(), value


def profile_parameters(
    root: Path,
    notebooks: Sequence[Notebook],
    profile: Profile = "quick",
    given: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each notebook the parameters that differ from its own: those of the profile, then those given.

    Raises
    ------
    NotebookError
        If a notebook has no parameter of that name, or the profile is unknown or its file malformed.
    """
    if profile not in get_args(Profile):
        raise NotebookError(
            f"no profile is named {profile!r}; there are {', '.join(get_args(Profile))}"
        )
    overrides = _profile(root / PROFILE_FILES[profile]) if profile in PROFILE_FILES else {}
    chosen = {
        notebook.name: {**overrides.get(notebook.name, {}), **(given or {})}
        for notebook in notebooks
    }
    for notebook in notebooks:
        unknown = sorted(set(chosen[notebook.name]) - set(notebook.parameters))
        if unknown:
            known = (
                ", ".join(f"{name}={value!r}" for name, value in notebook.parameters.items())
                or "none"
            )
            raise NotebookError(
                f"{notebook.name} has no parameter {', '.join(unknown)}; its parameters are: {known}"
            )
    return chosen


def _profile(file: Path) -> dict[str, dict[str, Any]]:
    """Read the overrides of a profile, ``{notebook: {parameter: value}}``; no file means none."""
    if not file.is_file():
        return {}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise NotebookError(f"{file} is not YAML: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(entry or {}, dict) for entry in content.values()
    ):
        raise NotebookError(f"{file} should map each notebook's name to its parameters")
    return {str(name): entry or {} for name, entry in content.items()}
