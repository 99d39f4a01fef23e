"""The numbered notebooks: titles, questions, parameters and profiles; new notebooks."""

from __future__ import annotations

import ast
import contextlib
import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nbformat
import pandas as pd
import yaml

from psychlm import _parameters
from psychlm.data import atomic_write

Profile = Literal["smoke", "quick", "full", "paper"]
Kind = Literal["blank", "reading-times"]
PROFILE_FILES: dict[str, tuple[str, ...]] = {  # a later file replaces what an earlier one says
    "smoke": ("tests/smoke.yaml",),
    "quick": (),
    "full": ("notebooks/full.yaml",),
    "paper": ("notebooks/full.yaml", "notebooks/paper.yaml"),
}
TEMPLATES = Path(__file__).parent / "templates"


class NotebookError(ValueError):
    """A notebook, a profile or a parameter is invalid; the message says which, why, what to do."""


@dataclass(frozen=True)
class Notebook:
    """One notebook as stored, not yet run."""

    path: Path
    title: str  # its first heading, without the number
    question: str  # the text after **Question.**, Markdown
    parameters: dict[str, Any]  # the literals of the cell tagged "parameters"
    cells: tuple[tuple[str, str], ...]  # (type, source) of every cell
    reads_reports: bool  # it reads the other reports, so it runs after them

    @property
    def name(self) -> str:
        """The file name without its suffix, ``20_psychometric_properties``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The digits at the beginning of the name."""
        return self.name.partition("_")[0]

    @property
    def code(self) -> list[str]:
        """The sources of the code cells that are not empty."""
        return [source for kind, source in self.cells if kind == "code" and source.strip()]


def find(root: Path) -> list[Notebook]:
    """Return the numbered notebooks of ``root/notebooks`` in order; two may not share a number."""
    notebooks = [read(path) for path in sorted((root / "notebooks").glob("[0-9]*_*.ipynb"))]
    numbers = [notebook.number for notebook in notebooks]
    repeated = [notebook.name for notebook in notebooks if numbers.count(notebook.number) > 1]
    if repeated:
        raise NotebookError(f"notebooks {repeated} share a number; rename all but one")
    return notebooks


def read(path: Path) -> Notebook:
    """Read the title, question, parameters and sources of one notebook."""
    try:
        content = nbformat.read(path, as_version=4)
        cells = tuple((cell["cell_type"], cell["source"]) for cell in content["cells"])
        tags = [cell["metadata"].get("tags", []) for cell in content["cells"]]
        metadata = content["metadata"].get("psychlm", {})
    except Exception as error:  # nbformat has no common base for its errors
        said = f"{path} is not a readable notebook ({error}); restore it from git"
        raise NotebookError(said) from error
    head = next((source for kind, source in cells if kind == "markdown"), "")
    heading = re.search(r"^#\s+(?:\d+\s*[.:·—–-]?\s+)?(.+)$", head, re.MULTILINE)
    question = re.search(r"\*\*Question\.?\*\*\.?\s*(.+?)\s*(?:\n\s*\n|\Z)", head, re.DOTALL)
    tagged = [cell for cell, of_cell in zip(cells, tags, strict=True) if "parameters" in of_cell]
    try:
        parameters = _parameters.assignments(tagged[0][1]) if tagged else {}
    except ValueError as error:
        raise NotebookError(f"{path.name}: {error}") from error
    return Notebook(
        path=path,
        title=heading[1].strip() if heading else path.stem,
        question=" ".join(question[1].split()) if question else "",
        parameters=parameters,
        cells=cells,
        reads_reports=bool(metadata.get("reads_reports")),
    )


def select(notebooks: Sequence[Notebook], choices: Sequence[str] = ()) -> list[Notebook]:
    """Return the notebooks selected by numbers, names, paths or patterns; all without a choice."""
    chosen: set[str] = set()
    names = [notebook.name for notebook in notebooks]
    for choice in choices:
        pattern = Path(choice).name.removesuffix(".ipynb")
        numbered = [notebook.name for notebook in notebooks if notebook.number == pattern]
        selected = numbered or fnmatch.filter(names, pattern)
        if not selected:
            near = difflib.get_close_matches(pattern, names, n=3) or names
            raise NotebookError(f"no notebook is {choice!r}; there are {', '.join(near) or 'none'}")
        chosen.update(selected)
    return [notebook for notebook in notebooks if notebook.name in chosen or not choices]


def parse_parameters(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn ``["draws=500", "seed=7"]`` into names and values: literals of Python, or YAML.

    >>> parse_parameters(["draws=500", "rate=1e-3", "models=[a, b]"])
    {'draws': 500, 'rate': 0.001, 'models': ['a', 'b']}
    """
    parameters = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        try:
            if not equals or not name.strip().isidentifier():
                raise ValueError("it has no name")
            with contextlib.suppress(ValueError, SyntaxError):  # as in the parameters cell
                parameters[name.strip()] = ast.literal_eval(text.strip())
                continue
            value = parameters[name.strip()] = yaml.safe_load(text.strip())
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                advice = "write a number as Python does, or quote a text"
                raise ValueError(f"YAML reads it as {value}; {advice}")
        except (yaml.YAMLError, ValueError) as error:
            said = "a parameter is written name=value, a literal of Python or YAML"
            raise NotebookError(f"{said}; got {assignment!r} ({error})") from None
    return parameters


def read_yaml(file: Path) -> dict[str, dict[str, Any]]:
    """Return the parameters of each notebook that a file names; an absent file names none."""
    try:
        named = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return {name: dict(values or {}) for name, values in dict(named or {}).items()}
    except (yaml.YAMLError, TypeError, ValueError) as error:
        said = f"{file} should map each notebook's name to its parameters: {error}"
        raise NotebookError(said) from error


def run_parameters(
    root: Path,
    notebooks: Sequence[Notebook],
    profile: Profile = "quick",
    given: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each notebook the parameters that replace its own: the profile's, then ``given``;
    unknown names, and values of another type than its own, are refused."""
    if profile not in PROFILE_FILES:
        raise NotebookError(f"no profile is {profile!r}; there are {', '.join(PROFILE_FILES)}")
    files = [read_yaml(root / name) for name in PROFILE_FILES[profile]]
    chosen: dict[str, dict[str, Any]] = {}
    for notebook in notebooks:
        values = chosen[notebook.name] = {}
        for named in (*(file.get(notebook.name, {}) for file in files), given or {}):
            values.update(named)
        try:
            for name, value in values.items():
                if name not in notebook.parameters:
                    raise ValueError(_parameters.no_parameter(name, notebook.parameters))
                _parameters.check_type(name, value, notebook.parameters[name])
        except ValueError as error:
            raise NotebookError(f"{notebook.name}: {error}") from None
    return chosen


def about_verdict(
    root: Path,
    notebook: Notebook,
    profile: Profile,
    parameters: Mapping[str, Any],
    stand_ins: bool = False,
) -> dict[str, Any]:
    """Return what a verdict says of its run: ``models`` (the papers' or stand-ins) and ``by_seed``.

    A run has the paper's models if its parameters are those of ``paper.yaml``. ``by_seed`` counts
    the sentences of ``tests/verdicts_by_seed.py``, which ran the profile's own parameters; it is
    empty for a run with others, but for the seed.
    """
    values = notebook.parameters | dict(parameters)
    papers = read_yaml(root / "notebooks" / "paper.yaml").get(notebook.name)
    same = papers and all(values[name] == value for name, value in papers.items())
    models = "with the paper's models" if same else "with stand-ins" if stand_ins else ""
    file = root / "data" / "facts" / "verdicts_by_seed.csv"
    stored = notebook.parameters | run_parameters(root, [notebook], profile)[notebook.name]
    if not file.is_file() or stored | {"seed": None} != values | {"seed": None}:
        return {"models": models, "by_seed": {}}
    runs = pd.read_csv(file).query("notebook == @notebook.name and profile == @profile")
    return {"models": models, "by_seed": runs["verdict"].value_counts().to_dict()}


def new(title: str, *, root: Path, kind: Kind = "blank", number: int | None = None) -> Path:
    """Copy the template notebook of a kind, by default to the next free number."""
    slug = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    if not re.search("[a-z]", slug):
        raise NotebookError(f"the title {title!r} has no Latin letter to make a file name of")
    taken = {int(notebook.number): notebook.name for notebook in find(root)}
    free = [candidate for candidate in range(1, 100) if candidate not in taken]
    number = free[0] if number is None else number
    if number not in free:
        first = ", ".join(f"{candidate:02d}" for candidate in free[:5])
        owner = taken.get(number, "not from 1 to 99")
        raise NotebookError(f"number {number:02d} is {owner}; free are: {first} ...")
    path = root / "notebooks" / f"{number:02d}_{slug}.ipynb"
    notebook = nbformat.read(TEMPLATES / f"{kind}.ipynb", as_version=4)
    for cell in notebook.cells:
        for word, value in {"NUMBER": path.stem[:2], "TITLE": title, "NAME": path.stem}.items():
            cell.source = cell.source.replace(word, value)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as part:
        nbformat.write(notebook, part)
    return path
