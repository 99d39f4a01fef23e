"""The numbered notebooks: titles, questions, parameters and profiles; new notebooks."""

from __future__ import annotations

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

from psychlm import report
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
    parameters_cell: int | None  # index of that cell among all cells
    cells: tuple[tuple[str, str], ...]  # (type, source) of every cell
    reads_reports: bool  # it reads the other reports, so it runs after them
    reproduces: str  # which tables and figures it reproduces, Markdown

    @property
    def name(self) -> str:
        """The file name without its suffix, ``20_psychometric_properties``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The digits at the beginning of the name."""
        return self.name.partition("_")[0]

    @property
    def seconds(self) -> float:
        """How long it runs, as its first cell says (*Runs in* half a minute); 0 without that."""
        numbers = {"half a": 0.5, "a": 1, "two": 2, "three": 3, "ten": 10, "twenty": 20}
        units = {"second": 1, "minute": 60, "hour": 3600}
        pattern = rf"\*Runs in\*[\w ]*?(?: ({'|'.join(numbers)}))? ({'|'.join(units)})"
        stated = re.search(pattern, self.cells[0][1] if self.cells else "")
        return numbers.get(stated[1], 5) * units[stated[2]] if stated else 0.0

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
        raise NotebookError(
            f"notebooks {repeated} share a number; rename all but one: numbers select notebooks"
        )
    return notebooks


def read(path: Path) -> Notebook:
    """Read the title, question, parameters and sources of one notebook."""
    try:
        content = nbformat.read(path, as_version=4)
        cells = tuple((cell["cell_type"], cell["source"]) for cell in content["cells"])
        tags = [cell["metadata"].get("tags", []) for cell in content["cells"]]
        metadata = content["metadata"].get("psychlm", {})
    except Exception as error:  # nbformat has no common base for its errors
        raise NotebookError(
            f"{path} is not a readable notebook ({error}); restore it from git"
        ) from error
    head = next((source for kind, source in cells if kind == "markdown"), "")
    heading = re.search(r"^#\s+(?:\d+\s*[.:·—–-]?\s+)?(.+)$", head, re.MULTILINE)
    question = re.search(r"\*\*Question\.?\*\*\.?\s*(.+?)\s*(?:\n\s*\n|\Z)", head, re.DOTALL)
    tagged = next((index for index, own in enumerate(tags) if "parameters" in own), None)
    try:
        parameters = report.assignments(cells[tagged][1]) if tagged is not None else {}
    except ValueError as error:
        raise NotebookError(f"{path.name}: {error}") from error
    return Notebook(
        path=path,
        title=heading[1].strip() if heading else path.stem,
        question=" ".join(question[1].split()) if question else "",
        parameters=parameters,
        parameters_cell=tagged,
        cells=cells,
        reads_reports=bool(metadata.get("reads_reports")),
        reproduces=str(metadata.get("reproduces", "")),
    )


def select(notebooks: Sequence[Notebook], choices: Sequence[str] = ()) -> list[Notebook]:
    """Return the notebooks selected by numbers, names, paths or patterns; all without a choice."""
    chosen: set[str] = set()
    all_names = [notebook.name for notebook in notebooks]
    for choice in choices:
        pattern = Path(choice).name.removesuffix(".ipynb")
        names = {n.name for n in notebooks if n.number == pattern} or set(
            fnmatch.filter(all_names, pattern)
        )
        if not names:
            near = difflib.get_close_matches(pattern, all_names, n=3) or all_names
            raise NotebookError(f"no notebook is {choice!r}; there are {', '.join(near) or 'none'}")
        chosen |= names
    return [notebook for notebook in notebooks if notebook.name in chosen or not choices]


def parse_parameters(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn ``["draws=500", "seed=7"]`` into names and values (YAML literals).

    Examples
    --------
    >>> parse_parameters(["draws=500", "rate=1e-3", "models=[a, b]"])
    {'draws': 500, 'rate': 0.001, 'models': ['a', 'b']}
    """
    parameters = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip().isidentifier():
            raise NotebookError(f"a parameter is written name=value, got {assignment!r}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise NotebookError(
                f"the value of {assignment!r} is not a YAML literal; quote it if it is text"
            ) from error
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)  # YAML 1.1 reads 1e-3 as text
        parameters[name.strip()] = value
    return parameters


def run_parameters(
    root: Path,
    notebooks: Sequence[Notebook],
    profile: Profile = "quick",
    given: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each notebook the parameters that replace its own: the profile's, then ``given``.

    Raises
    ------
    NotebookError
        If a notebook has no parameter of that name, if a value has another type than the notebook's
        own, if the profile is unknown, or if its file is malformed.
    """
    if profile not in PROFILE_FILES:
        raise NotebookError(
            f"no profile is named {profile!r}; there are {', '.join(PROFILE_FILES)}"
        )
    overrides: dict[str, dict[str, Any]] = {}
    for name in PROFILE_FILES[profile]:
        file = root / name
        try:
            read = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except yaml.YAMLError as error:
            raise NotebookError(f"{file} is not YAML: {error}") from error
        read = {} if read is None else read
        if not isinstance(read, dict) or not all(isinstance(v or {}, dict) for v in read.values()):
            raise NotebookError(f"{file} should map each notebook's name to its parameters")
        for notebook_name, values in read.items():
            overrides[notebook_name] = overrides.get(notebook_name, {}) | (values or {})
    chosen = {n.name: {**overrides.get(n.name, {}), **(given or {})} for n in notebooks}
    for notebook in notebooks:
        for name, value in chosen[notebook.name].items():
            if name not in notebook.parameters:
                defaults = ", ".join(f"{key}={old!r}" for key, old in notebook.parameters.items())
                raise NotebookError(
                    f"{notebook.name} has no parameter {name}; its parameters are: "
                    f"{defaults or 'none'}"
                )
            try:
                report.check_type(name, value, notebook.parameters[name])
            except ValueError as error:
                raise NotebookError(f"{notebook.name}: {error}") from None
    return chosen


def kind_of_models(root: Path, notebook: Notebook, parameters: Mapping[str, Any]) -> str:
    """Return whose models a run uses, as a verdict says it; empty where the paper's need no run.

    The paper's models are those that ``notebooks/paper.yaml`` names for this notebook.
    """
    file = root / "notebooks" / "paper.yaml"
    papers = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
    values, wanted = notebook.parameters | dict(parameters), papers.get(notebook.name)
    if not wanted:
        return ""
    same = all(values[name] == value for name, value in wanted.items())
    return "with the paper's models" if same else "with stand-ins"


def verdicts_by_seed(
    root: Path, notebook: Notebook, profile: Profile, parameters: Mapping[str, Any]
) -> dict[str, int]:
    """Return the sentences that a notebook's verdict took under other seeds, and how often each.

    They are those that ``tests/verdicts_by_seed.py`` keeps, of a profile's own parameters; for a
    run with others, but for the seed, the answer is empty.
    """
    file = root / "data" / "facts" / "verdicts_by_seed.csv"
    of_profile = run_parameters(root, [notebook], profile)[notebook.name]
    stored, run = (notebook.parameters | dict(values) for values in (of_profile, parameters))
    if not file.is_file() or stored | {"seed": None} != run | {"seed": None}:
        return {}
    runs = pd.read_csv(file)
    runs = runs[(runs["notebook"] == notebook.name) & (runs["profile"] == profile)]
    return {str(sentence): int(n) for sentence, n in runs["verdict"].value_counts().items()}


def new(title: str, *, root: Path, kind: Kind = "blank", number: int | None = None) -> Path:
    """Copy the template notebook of a kind; no other file is touched.

    Parameters
    ----------
    title : str
        The title, from which the file name is made.
    kind : "blank" or "reading-times"
        Which analysis the template holds: none, or a reading-time corpus.
    number : int, optional
        The next free one unless given.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    if not re.search("[a-z]", slug):
        raise NotebookError(f"the title {title!r} has no Latin letter to make a file name of")
    taken = {int(notebook.number): notebook.name for notebook in find(root)}
    free = [candidate for candidate in range(1, 100) if candidate not in taken]
    number = free[0] if number is None else number
    if number not in free:
        owner, first = (
            taken.get(number, "not from 1 to 99"),
            ", ".join(f"{n:02d}" for n in free[:5]),
        )
        raise NotebookError(f"number {number:02d} is {owner}; free are: {first} ...")
    path = root / "notebooks" / f"{number:02d}_{slug}.ipynb"
    notebook = nbformat.read(TEMPLATES / f"{kind}.ipynb", as_version=4)
    for cell in notebook.cells:
        for word, value in (("NUMBER", f"{number:02d}"), ("TITLE", title), ("NAME", path.stem)):
            cell.source = cell.source.replace(word, value)
    with atomic_write(path) as part:
        nbformat.write(notebook, part)
    return path
