"""Run notebooks: those that changed, several at a time; publish only complete reports.

A thread of this process drives each kernel with nbclient. papermill puts the parameters in. The
kernel writes its report into a staging folder, from where :meth:`Runner.publish` moves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import psychlm
from psychlm import data, report
from psychlm.site import collection, html, index
from psychlm.site.collection import Notebook, NotebookError, Profile

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager

KERNELS = Path(__file__).with_name("kernels.py")
# not the inline backend of matplotlib, which must be imported in the kernel to show figures there
LIBRARIES = (
    "matplotlib.pyplot",
    "pandas",
    "scipy.stats",
    "seaborn",
    "sklearn.linear_model",
    "statsmodels.api",
    "torch",
    "transformers",
)
FIRST = ("00", "20")  # the reports that a new reader opens first
SAY_EVERY = 8.0  # seconds between lines about notebooks at work, where no bar shows them
SHARE_FROM = 4  # notebooks; with fewer, importing all libraries costs more than it saves
STYLES = {"done": "green", "unchanged": "dim", "left out": "yellow", "failed": "bold red"}


class RunLockedError(NotebookError):
    """Another run works on the same reports."""


@dataclass(frozen=True)
class Outcome:
    """How one notebook ended."""

    notebook: str
    status: str  # "done", "unchanged", "left out" or "failed"
    seconds: float  # wall time with the kernel's start; 0 if unchanged
    html: Path  # its report
    error: str | None = None  # the error, or why it was left out
    cell: int | None = None  # the cell that failed, counted from 1 in the notebook's file


@dataclass
class Execution:
    """A notebook with the outputs of its cells, and the error that ended it, if any."""

    content: nbformat.NotebookNode
    error: str = ""  # the name of the exception
    message: str = ""
    cell: int | None = None  # as in Outcome


def run(
    select: Sequence[str] = (),
    *,
    profile: Profile = "quick",
    parameters: Mapping[str, Any] | None = None,
    jobs: int = 1,
    force: bool = False,
    root: Path | None = None,
    reports: Path | None = None,
) -> list[Outcome]:
    """Run the notebooks whose code, parameters or data changed, and build the index of all.

    Each notebook is executed in a kernel of its own and writes into a staging folder; its JSON and
    HTML are moved into ``reports`` when they are complete. After an interrupt, finished notebooks
    stay finished. A notebook that ends with :class:`psychlm.data.DataMissingError` is "left out"
    with that reason, which is no failure; any other error is.

    Parameters
    ----------
    select : sequence of str
        Names, numbers, paths or patterns of notebooks; all of them if empty.
    profile : "smoke", "quick", "full" or "paper"
        Whose parameters: the tests' (``tests/smoke.yaml``), the notebooks' own, those of the
        papers' sizes (``notebooks/full.yaml``), or of these with the papers' models
        (``notebooks/paper.yaml``).
    parameters : mapping, optional
        Parameters that override those of the profile in every chosen notebook.
    jobs : int
        How many notebooks run at a time; they share the cores.
    force : bool
        Run notebooks that have not changed, too.
    root, reports : Path, optional
        The checkout; the folder of reports, ``$PSYCHLM_REPORTS`` or ``root/reports`` unless given.

    Raises
    ------
    NotebookError
        If a notebook, a profile or a parameter is unknown or of the wrong type; nothing was run.
    RunLockedError
        If another run works on the same reports.
    DataError
        If the variable PSYCHLM_DATA names a folder that is not there.
    """
    root = (root or data.root()).resolve()
    data.places()  # a wrong PSYCHLM_DATA stops the run here, also where facts would be enough
    folder = (reports or Path(os.environ.get("PSYCHLM_REPORTS") or root / "reports")).resolve()
    chosen = collection.select(collection.find(root), select)
    given = collection.run_parameters(root, chosen, profile, parameters)
    outcomes: list[Outcome] = []
    with locked_staging(folder) as staging:
        runner = Runner(root, folder, staging, profile, given, max(1, jobs))
        try:
            # notebooks that read the others' reports come in a second round
            for reads in (False, True):
                outcomes += runner.run_all([n for n in chosen if n.reads_reports == reads], force)
        except KeyboardInterrupt:
            runner.console.print("interrupted: finished notebooks stay; the next run resumes there")
            raise
        finally:
            index.build_index(root, folder)
    runner.console.print(html.plain_text(summary(outcomes)))
    return outcomes


@contextlib.contextmanager
def locked_staging(folder: Path) -> Iterator[Path]:
    """Lock the folder of reports, and yield an empty staging folder in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):  # it ends with the process, however that ends
            for left in folder.glob(".staging-*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except Timeout:
        raise RunLockedError(
            f"another run is at work on {folder}; wait until it ends, or use another folder: "
            "PSYCHLM_REPORTS=some/folder psychlm run ..."
        ) from None


@dataclass
class Runner:
    """One run: its folders and parameters, the kernels at work, and its progress bar."""

    root: Path
    reports: Path
    staging: Path
    profile: Profile
    parameters: Mapping[str, Mapping[str, Any]]  # by notebook: those that replace its own
    jobs: int
    card: str = ""  # name of the files of a page that leaves the collection
    kernels: dict[str, AsyncKernelManager] = field(default_factory=dict)  # by notebook at work
    running: dict[str, int] = field(default_factory=dict)  # cells done, by notebook at work
    done: int = 0  # cells done of this round
    total: int = 0
    stopped: bool = False

    def __post_init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = BarColumn(24), MofNCompleteColumn(), TextColumn("cells"), TimeElapsedColumn()
        names, hidden = TextColumn("[dim]{task.description}"), not self.console.is_terminal
        self.bar = Progress(*columns, names, console=self.console, transient=True, disable=hidden)
        self.task = self.bar.add_task("")
        self.lock = threading.Lock()
        self.environment = kernel_environment(self.staging, self.reports, self.profile, self.jobs)
        # kernels are of this interpreter, whatever kernels the user has installed
        launcher = ["-m", "ipykernel_launcher"]
        if sys.platform == "linux":
            launcher = ["-IS", str(KERNELS), "start", str(self.staging)]
        argv = [sys.executable, *launcher, "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
        folder = self.staging / "specs" / "python3"
        folder.mkdir(parents=True)
        with data.atomic_write(folder / "kernel.json") as part:
            part.write_text(json.dumps(spec))

    def run_all(self, notebooks: Sequence[Notebook], force: bool) -> list[Outcome]:
        """Run the notebooks that changed; an interrupt ends the kernels at work."""
        due = [notebook for notebook in notebooks if force or not self.unchanged(notebook)]
        due = self.in_order(due)
        self.done, self.total = 0, sum(self.n_cells(notebook) for notebook in due)
        self.bar.update(self.task, total=self.total, completed=0)
        outcomes = []
        shared = len(due) >= SHARE_FROM and sys.platform == "linux"
        kernels = self.serve_kernels() if shared else contextlib.nullcontext()
        with kernels, self.bar, ThreadPoolExecutor(max_workers=self.jobs) as pool:
            futures = {notebook.name: pool.submit(self.run_one, notebook) for notebook in due}
            try:
                while wait(futures.values(), timeout=SAY_EVERY).not_done:
                    self.say_what_runs()
                for name in (notebook.name for notebook in notebooks):
                    if name in futures:
                        outcomes.append(futures[name].result())
                    else:
                        page = self.reports / f"{name}.html"
                        outcomes.append(Outcome(name, "unchanged", 0.0, page))
                        self.tell(outcomes[-1])
            except BaseException:
                self.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                # a cell that begins from now on stops its notebook; this stops those at work
                for kernel in list(self.kernels.values()):
                    if pid := getattr(kernel.provisioner, "pid", None):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                raise
        return outcomes

    def in_order(self, notebooks: Sequence[Notebook]) -> list[Notebook]:
        """Return notebooks in the order to start them: the longest first, after those of FIRST.

        How long a notebook takes is known from its last report of this profile, or from what it
        says itself.
        """

        def seconds(notebook: Notebook) -> float:
            last = index.read_report(self.reports / f"{notebook.name}.json") or {}
            if (last.get("status"), last.get("profile")) == ("complete", self.profile):
                return float(last["seconds"])
            return notebook.seconds

        order = sorted(notebooks, key=seconds, reverse=True)
        return sorted(order, key=lambda notebook: notebook.number not in FIRST)

    def say_what_runs(self) -> None:
        """Print the notebooks at work and their executed cells, unless a bar shows them."""
        with self.lock:
            if self.running and not self.console.is_terminal:
                names = (f"{name} ({count} cells)" for name, count in self.running.items())
                self.console.print(f"at work: {', '.join(names)}")

    @contextlib.contextmanager
    def serve_kernels(self) -> Iterator[None]:
        """Run the process of which kernels are copies (kernels.py); where it fails they do not."""
        process = subprocess.Popen(
            [sys.executable, "-P", str(KERNELS), "serve", *LIBRARIES],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.staging,
            env=self.environment,
            start_new_session=True,  # Ctrl-C reaches the runner alone
        )
        with process:  # at its end this closes standard input, which ends the process
            yield

    def n_cells(self, notebook: Notebook) -> int:
        """Return the number of code cells to execute, with the one that papermill injects."""
        return len(notebook.code) + bool(self.parameters[notebook.name])

    def fingerprint(self, notebook: Notebook) -> str:
        """Hash cells, parameters, profile, cited tables, and the reports that the notebook reads.

        Modules and data sets are compared by the checksums in the report's provenance.
        """
        parameters, source = dict(self.parameters[notebook.name]), "\n".join(notebook.code)
        settings: list[Any] = [psychlm.__version__, self.profile, parameters, notebook.cells]
        if notebook.reads_reports:
            others = [f for f in index.report_files(self.reports) if f.stem != notebook.name]
            settings += [(f.stem, (index.read_report(f) or {}).get("numbers")) for f in others]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode())
        for table in sorted((self.root / "data" / "published").glob("*.csv")):
            if table.name.partition(".")[0] in source:
                digest.update(table.name.encode() + table.read_bytes())
        return digest.hexdigest()

    def unchanged(self, notebook: Notebook) -> bool:
        """Return whether its report is complete and rests on the same code, parameters and data."""
        old = index.read_report(self.reports / f"{notebook.name}.json")
        page = self.reports / f"{notebook.name}.html"
        if not old or old["status"] != "complete" or not page.is_file():
            return False
        used = old["provenance"].get("data") or {}  # absent data sets must still be absent
        modules = old["provenance"].get("modules") or {}
        same = old.get("fingerprint") == self.fingerprint(notebook)
        return same and report.checksums(modules) == modules and data.fingerprint(used) == used

    def advance(self, name: str, cells: int = 1) -> None:
        """Count executed cells of a notebook on the progress bar."""
        with self.lock:
            self.running[name] = self.running.get(name, 0) + cells
            self.done += cells
            names = " · ".join(f"{name} {count}" for name, count in self.running.items())
            self.bar.update(self.task, completed=self.done, description=names)

    def tell(self, outcome: Outcome) -> None:
        """Print how a notebook ended; a line per notebook, also without a terminal."""
        with self.lock:
            self.running.pop(outcome.notebook, None)
        counted = f"[{self.done:>{len(str(self.total))}}/{self.total} cells] "
        reason = f"  {outcome.error}" if outcome.status == "left out" else ""
        took = f"  {outcome.seconds:.1f} s" if outcome.seconds else ""
        line = Text(counted, "dim") + Text(f"{outcome.status:<9} ", STYLES[outcome.status])
        self.console.print(line + Text(html.plain_text(f"{outcome.notebook}{took}{reason}")))

    def run_one(self, notebook: Notebook) -> Outcome:
        """Execute one notebook and publish its report; an error here does not stop the others."""
        name, began = notebook.name, time.monotonic()
        self.advance(name, 0)
        if not self.console.is_terminal:
            self.console.print(f"begins {name}")
        executed, page = None, self.reports / f"{name}.html"
        try:
            executed = self.execute(notebook)
            if self.stopped:  # interrupted: its old report stays, and the next run runs it
                return Outcome(name, "failed", 0.0, page, "interrupted")
            outcome = self.publish(notebook, executed, time.monotonic() - began)
        except Exception as problem:  # a full disk, for instance
            message = f"its report could not be written: {type(problem).__name__}: {problem}"
            message = (executed and executed.message) or message
            outcome = Outcome(name, "failed", time.monotonic() - began, page, message)
        self.advance(name, self.n_cells(notebook) - self.running.get(name, 0))
        self.tell(outcome)
        return outcome

    def execute(self, notebook: Notebook) -> Execution:
        """Execute a notebook in a kernel of its own, up to its first error."""
        # here, not above: `psychlm new` and tests of the pages need none of them
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook

        name, given = notebook.name, dict(self.parameters[notebook.name])
        content = load_notebook_node(str(notebook.path))
        if given:
            content = parameterize_notebook(
                content, given, kernel_name="python3", language="python"
            )
        for cell in content.cells:
            if cell.cell_type == "code":  # as JupyterLab saved them, perhaps
                cell.outputs, cell.execution_count = [], None
        done = Execution(content)

        def begin(cell: nbformat.NotebookNode, cell_index: int) -> None:
            if self.stopped:
                raise RuntimeError("interrupted")
            # the cell of parameters that papermill adds is not in the notebook's file
            tags = [one.metadata.get("tags", []) for one in content.cells[: cell_index + 1]]
            done.cell = sum("injected-parameters" not in own for own in tags)

        specs = KernelSpecManager(
            kernel_dirs=[str(self.staging / "specs")], ensure_native_kernel=False
        )
        kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs)
        kernel.connection_file = str(self.staging / f"{name}.connection.json")
        client = NotebookClient(
            content,
            km=kernel,
            timeout=None,
            on_cell_execute=begin,
            on_cell_executed=lambda **_: self.advance(name),
        )
        self.kernels[name] = kernel
        try:
            client.execute(
                cwd=str(notebook.path.parent),
                env=self.environment,
                stdout=subprocess.DEVNULL,  # what cells print reaches the notebook another way
                stderr=subprocess.DEVNULL,
                cleanup_kc=True,
            )
            staged = index.read_report(self.staging / f"{name}.json")
            if not staged or staged["status"] != "complete":
                done.message = "it left no complete report; its last code cell must call "
                done.message, done.cell = f"{done.message}report.verdict(...)", None
        except CellExecutionError as error:
            done.error, done.message = error.ename, error.evalue
        except Exception as error:  # a kernel that died
            done.error, done.message = type(error).__name__, str(error)
        finally:
            del self.kernels[name]
        return done

    def publish(self, notebook: Notebook, executed: Execution, seconds: float) -> Outcome:
        """Move the report into place: the JSON last if it is complete, first if it is not."""
        name, status, message = notebook.name, "complete", None
        if executed.error == "DataMissingError":
            status, message = "left out", " ".join(executed.message.split())
        elif executed.message or executed.error:
            status, message = "failed", ": ".join(filter(None, (executed.error, executed.message)))
        cell = executed.cell if message else None
        staged = index.read_report(self.staging / f"{name}.json")
        content = (staged or {"notebook": name, "provenance": {}, "numbers": []}) | {
            "title": notebook.title,
            "question": notebook.question,
            "status": status,
            "error": {"cell": cell, "message": message} if message else None,
            "profile": self.profile,
            "seconds": round(seconds, 2),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": self.fingerprint(notebook),
            "executed": True,
            **({"card": self.card} if self.card else {}),
        }
        if content.get("verdict"):
            given = self.parameters[name]
            whose = collection.kind_of_models(self.root, notebook, given)
            seeds = collection.verdicts_by_seed(self.root, notebook, self.profile, given)
            content["verdict"] = content["verdict"] | {"models": whose, "by_seed": seeds}
        folder, numbers = notebook.path.parent, index.compare(content)
        page = html.report_page(executed.content, folder, content, numbers)
        files = [(f"{name}.ipynb", nbformat.writes(executed.content).encode())]
        if page.picture:
            files.append((page.picture_file, page.picture))
            content["headline"] = {"file": page.picture_file, "alt": page.alt}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        last = [(f"{name}.html", page.html.encode()), (f"{name}.json", text.encode())]
        for file, raw in files + (last[::-1] if message else last):
            with data.atomic_write(self.reports / file) as part:
                part.write_bytes(raw)
        ended = "done" if status == "complete" else status
        return Outcome(name, ended, seconds, self.reports / f"{name}.html", message, cell)


def kernel_environment(staging: Path, reports: Path, profile: str, jobs: int) -> dict[str, str]:
    """Return the environment of kernels: this package, folders of the run, a share of the cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    shared = dict.fromkeys(threads, str(max(1, cores // jobs))) if jobs > 1 else {}
    package = str(Path(psychlm.__file__).parents[1])
    variables = {
        "PSYCHLM_REPORTS": str(staging),
        "PSYCHLM_FINISHED_REPORTS": str(reports),
        "PSYCHLM_PROFILE": profile,
        "IPYTHONDIR": str(staging / "ipython"),
    }
    # tqdm asks kernels without ipywidgets to install them, which does not help a reader
    joined = [
        ("PYTHONPATH", package, os.pathsep),
        ("PYTHONWARNINGS", "ignore:IProgress not found", ","),
    ]
    for name, value, separator in joined:
        variables[name] = separator.join(filter(None, (value, os.environ.get(name))))
    return shared | dict(os.environ) | variables


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the last lines of a run: counts, what was left out and why, each failure's error."""
    counts = {s: sum(outcome.status == s for outcome in outcomes) for s in STYLES}
    counted = ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "nothing to run"
    lines = [f"{len(outcomes)} notebook{'s' * (len(outcomes) != 1)}: {counted}"]
    if outcomes:
        lines.append(f"reports: {outcomes[0].html.parent / 'index.html'}")
    for outcome in outcomes:
        cell = f", cell {outcome.cell}" if outcome.cell else ""
        if outcome.status == "left out":
            lines.append(f"left out {outcome.notebook}: {outcome.error}")
        elif outcome.status == "failed":
            lines.append(f"FAILED {outcome.notebook}{cell}: {outcome.error}")
    return "\n".join(lines)
