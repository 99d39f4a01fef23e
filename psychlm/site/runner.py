"""Run notebooks: those that changed, several at a time; publish only complete reports.

A thread of this process drives each kernel with nbclient. papermill puts the parameters in. The
kernel writes its report into a staging folder, from where :meth:`Runner.publish` moves it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

import psychlm
from psychlm import data, report
from psychlm._parameters import entries
from psychlm.site import collection, html, index
from psychlm.site.collection import Notebook, NotebookError, Profile
from psychlm.terminal import say, write_workbook

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager

KERNELS = Path(__file__).with_name("kernels.py")
# not the inline backend of matplotlib, which must be imported in the kernel to show figures there
LIBRARIES = ["matplotlib.pyplot", "pandas.io.formats.style", "pyarrow.dataset", "pyarrow.parquet"]
LIBRARIES += ["scipy.stats", "seaborn", "sklearn.linear_model", "statsmodels.api", "torch"]
# what the first step of an optimiser imports, and the models that come with the project
LIBRARIES += ["torch._dynamo", "transformers.models.bert.modeling_bert"]
LIBRARIES += ["transformers.models.llama.modeling_llama"]
FIRST = ("00", "20")  # the reports that a new reader opens first
SAY_EVERY = 8.0  # seconds between lines about notebooks at work
SHARE_FROM = 4  # notebooks; with fewer, importing all libraries costs more than it saves


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

    def __str__(self) -> str:
        cell = f", cell {self.cell}" if self.cell and self.status == "failed" else ""
        error = f"{cell}: {self.error}" if self.error else ""
        return f"{self.status:<9} {self.notebook}  {html.duration(self.seconds)}{error}"


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

    A notebook's files are moved into ``reports`` (``$PSYCHLM_REPORTS`` or ``root/reports`` unless
    given) when they are complete; after an interrupt, finished notebooks stay finished. One that
    ends with :class:`psychlm.data.DataMissingError` is "left out", which is no failure.

    ``select`` are names, numbers, paths or patterns; all notebooks if empty. ``parameters`` replace
    those of the profile in every chosen notebook. ``jobs`` notebooks run at a time and share the
    cores. With ``force`` those that have not changed are run, too.
    """
    root = (root or data.root()).resolve()
    data.places()  # a wrong PSYCHLM_DATA stops the run here, also where facts would be enough
    folder = (reports or Path(os.environ.get("PSYCHLM_REPORTS") or root / "reports")).resolve()
    chosen = collection.select(collection.find(root), select)
    given = collection.run_parameters(root, chosen, profile, parameters)
    with locked_staging(folder) as staging:
        try:
            runner = Runner(root, folder, staging, profile, given, max(1, jobs))
            outcomes = runner.run_all(chosen, force)
        except KeyboardInterrupt:
            say("interrupted: finished notebooks stay; the next run resumes there", err=True)
            raise
        finally:
            index.build_index(root, folder)
    say(summary(outcomes), err=True)
    return outcomes


@contextlib.contextmanager
def locked_staging(folder: Path) -> Iterator[Path]:
    """Lock the folder of reports, and yield an empty staging folder in it."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):  # it ends with the process, however that ends
            for left in folder.glob(".staging-*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=".staging-", dir=folder, ignore_cleanup_errors=True
            ) as staging:
                yield Path(staging)
    except Timeout:
        advice = "wait until it ends, or name another folder: PSYCHLM_REPORTS=some/folder"
        raise RunLockedError(f"another run is at work on {folder}; {advice}") from None


@dataclass
class Runner:
    """One run: its folders and parameters, the kernels at work, and the cells that are done."""

    root: Path
    reports: Path
    staging: Path
    profile: Profile
    parameters: Mapping[str, Mapping[str, Any]]  # by notebook: those that replace its own
    jobs: int
    card: str = ""  # name of the files of a page that leaves the collection
    kernels: dict[str, AsyncKernelManager] = field(default_factory=dict)  # by notebook at work
    cells: Counter[str] = field(default_factory=Counter)  # executed ones, by notebook
    stopped: bool = False

    def __post_init__(self) -> None:
        """Set the environment of kernels: this package, the run's folders, a share of the cores."""
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        share = str(max(1, cores // self.jobs))
        shared = dict.fromkeys(threads, share) if self.jobs > 1 else {}
        checkout = Path(psychlm.__file__).parents[1]
        paths = (str(checkout), str(checkout / "notebooks"), os.environ.get("PYTHONPATH"))
        self.environment = shared | dict(os.environ)
        self.environment |= {
            "PSYCHLM_REPORTS": str(self.staging),
            "PSYCHLM_FINISHED_REPORTS": str(self.reports),
            "PSYCHLM_PROFILE": self.profile,
            "IPYTHONDIR": str(self.staging / "ipython"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TQDM_DISABLE": "1",  # a page shows no progress bars
            # tqdm asks kernels without ipywidgets to install them, which does not help a reader
            "PYTHONWARNINGS": "ignore:IProgress not found",
        }

    def run_all(self, notebooks: Sequence[Notebook], force: bool) -> list[Outcome]:
        """Run the notebooks that changed; those that read the others' reports come last."""
        outcomes = []
        with contextlib.ExitStack() as served:
            for reads in (False, True):
                of_round = [one for one in notebooks if one.reads_reports == reads]
                due = [one for one in of_round if force or not self.unchanged(one)]
                if len(due) >= SHARE_FROM and sys.platform == "linux":
                    served.enter_context(self.serve_kernels())
                due.sort(key=self.place)
                ended = self.run_round(due)
                for name in [one.name for one in of_round if one.name not in ended]:
                    ended[name] = Outcome(name, "unchanged", 0.0, self.reports / f"{name}.html")
                    say(ended[name], err=True)
                outcomes += [ended[one.name] for one in of_round]
        return outcomes

    def run_round(self, notebooks: Sequence[Notebook]) -> dict[str, Outcome]:
        """Run notebooks side by side; an interrupt ends the kernels at work."""
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            futures = {one.name: pool.submit(self.run_one, one) for one in notebooks}
            try:
                while wait(futures.values(), timeout=SAY_EVERY).not_done:
                    names = list(self.kernels)  # empty while a page is written
                    at_work = ", ".join(f"{name} ({self.cells[name]} cells)" for name in names)
                    say(f"at work: {at_work or 'pages'}", err=True)
            except BaseException:
                self.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                # a cell that begins from now on stops its notebook; this stops those at work
                for kernel in list(self.kernels.values()):
                    if pid := getattr(kernel.provisioner, "pid", None):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                raise
            return {name: future.result() for name, future in futures.items()}

    def place(self, notebook: Notebook) -> tuple[bool, float, int]:
        """Return the key of the order to start in: FIRST, then the longest by their last run.

        Others that never ran begin with the last one, since the first, the cards, are short.
        """
        last = index.read_report(self.reports / f"{notebook.name}.json") or {}
        seconds = last.get("seconds") or 0.0
        number = int(notebook.number)
        if notebook.number in FIRST:
            return False, -seconds, number
        return True, -seconds, -number

    def serve_kernels(self) -> subprocess.Popen[bytes]:
        """Start the process of which kernels are copies (kernels.py); where it fails they are not.

        As a context manager it closes the process's standard input, which ends it.
        """
        return subprocess.Popen(
            [sys.executable, "-P", str(KERNELS), "serve", *LIBRARIES],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.staging,
            env=self.environment,
            start_new_session=True,  # Ctrl-C reaches the runner alone
        )

    def fingerprint(self, notebook: Notebook) -> str:
        """Hash cells, parameters and their files, profile, cited tables, and reports that it reads;
        modules and data are compared by checksums."""
        parameters = dict(self.parameters[notebook.name])
        source = "\n".join(notebook.code)
        settings: list[Any] = [psychlm.__version__, self.profile, parameters, notebook.cells]
        settings.append(self.files_given(notebook))
        if notebook.reads_reports:
            numbers = {one["notebook"]: one["numbers"] for one in index.read_reports(self.reports)}
            settings.append(numbers | {notebook.name: None})
        parts: list[str | bytes] = [json.dumps(settings, sort_keys=True, default=repr)]
        for table in sorted((self.root / "data" / "published").glob("*.csv")):
            if table.name.partition(".")[0] in source:
                parts += [table.name, table.read_bytes()]
        return data.digest(parts)

    def files_given(self, notebook: Notebook) -> dict[str, str | int]:
        """Return the checksums of files that parameters name; of those in folders, when changed."""
        given: dict[str, str | int] = {}
        for value in entries(notebook.parameters | dict(self.parameters[notebook.name])):
            if isinstance(value, str) and value:
                named = os.path.expanduser(value.partition("#")[0])
                path = notebook.path.parent / named
                if os.path.isfile(path):  # unlike Path.is_file no error for a long text
                    given[value] = data.sha256(path)
                elif os.path.isdir(path):
                    within = (file for file in path.rglob("*") if file.is_file())
                    given |= {str(file): file.stat().st_mtime_ns for file in within}
        return given

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

    def run_one(self, notebook: Notebook) -> Outcome:
        """Execute one notebook and publish its report; an error here does not stop the others."""
        name = notebook.name
        began = time.monotonic()
        error = ""
        say(f"begins {name}", err=True)
        try:
            content, error, cell = self.execute(notebook)
            if self.stopped:  # its old report stays, and the next run runs it
                raise KeyboardInterrupt
            outcome = self.publish(notebook, content, error, cell, time.monotonic() - began)
        except Exception as problem:  # a full disk, for instance
            error = error or f"its report could not be written: {type(problem).__name__}: {problem}"
            page = self.reports / f"{name}.html"
            outcome = Outcome(name, "failed", time.monotonic() - began, page, error)
        if not (self.card and outcome.error):  # the command of a card says it
            say(outcome, err=True)
        return outcome

    def execute(self, notebook: Notebook) -> tuple[nbformat.NotebookNode, str, int | None]:
        """Execute a notebook in a kernel of its own, up to its first error.

        Return it with the outputs, the error's name and message, and the cell that was at work.
        """
        # here, not above: `psychlm new` and tests of the pages need none of them
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook

        launcher = ["-m", "ipykernel_launcher"]
        if sys.platform == "linux":
            launcher = ["-IS", str(KERNELS), "start", str(self.staging)]
        argv = [sys.executable, *launcher, "-f", "{connection_file}"]

        class Kernel(AsyncKernelManager):
            # of this interpreter, whatever kernels the user has installed
            kernel_spec = KernelSpec(argv=argv, display_name="Python 3", language="python")

        name = notebook.name
        given = dict(self.parameters[notebook.name])
        content = load_notebook_node(str(notebook.path))
        if given:
            options = {"kernel_name": "python3", "language": "python"}
            content = parameterize_notebook(content, given, **options)
        for cell in content.cells:
            if cell.cell_type == "code":  # as JupyterLab saved them, perhaps
                cell.outputs, cell.execution_count = [], None
        at_work: int | None = None

        def begin(cell: nbformat.NotebookNode, cell_index: int) -> None:
            nonlocal at_work
            if self.stopped:
                raise RuntimeError("interrupted")
            # the cell of parameters that papermill adds is not in the notebook's file
            tags = [one.metadata.get("tags", []) for one in content.cells[: cell_index + 1]]
            at_work = sum("injected-parameters" not in of_cell for of_cell in tags)
            self.cells[name] += 1

        kernel = self.kernels[name] = Kernel()
        kernel.connection_file = str(self.staging / f"{name}.connection.json")
        client = NotebookClient(
            content,
            km=kernel,
            timeout=None,
            startup_timeout=600,  # seconds: the first kernels wait for the libraries
            coalesce_streams=True,
            on_cell_execute=begin,
        )
        error = ""
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
                error = "it left no complete report; its last code cell calls report.verdict(...)"
                at_work = None
        except CellExecutionError as problem:
            error = f"{problem.ename}: {problem.evalue}"
        except Exception as problem:  # a kernel that died
            error = f"{type(problem).__name__}: {problem}"
        finally:
            del self.kernels[name]
        return content, error, at_work

    def publish(
        self,
        notebook: Notebook,
        executed: nbformat.NotebookNode,
        error: str,
        cell: int | None,
        seconds: float,
    ) -> Outcome:
        """Move the report into place: the JSON last if it is complete, first if it is not."""
        name = notebook.name
        status = "failed" if error else "complete"
        given = self.parameters[name]
        if error.startswith("DataMissingError: "):
            status = "left out"
            error = " ".join(error.partition(": ")[2].split())
        staged = index.read_report(self.staging / f"{name}.json")
        content = (staged or {"notebook": name, "provenance": {}, "numbers": []}) | {
            "title": notebook.title,
            "question": notebook.question,
            "status": status,
            "error": {"cell": cell, "message": error} if error else None,
            "profile": self.profile,
            "seconds": round(seconds, 2),
            "slowest_cells": slowest_cells(executed.cells),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": self.fingerprint(notebook),
            "executed": True,
        }
        if self.card:
            content["card"] = self.card
        if content.get("verdict"):
            stand_ins = content["verdict"]["stand_ins"]
            about = collection.about_verdict(self.root, notebook, self.profile, given, stand_ins)
            content["verdict"] |= about
        mime, picture, alt = html.verdict_figure(executed.cells)
        page = html.report_page(executed, notebook.path.parent, content, index.compare(content))
        files = [(f"{name}.ipynb", nbformat.writes(executed).encode())]
        if mime:
            content["headline"] = {"file": f"{name}.{html.IMAGES[mime]}", "alt": alt}
            files.append((content["headline"]["file"], picture))
        files.append((f"{name}.html", page.encode()))
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        files.insert(0 if error else len(files), (f"{name}.json", text.encode()))
        if sheets := html.tables(executed.cells):
            write_workbook(sheets, self.reports / f"{name}-tables.xlsx")
        for file, raw in files:
            with data.atomic_write(self.reports / file) as part:
                part.write_bytes(raw)
        page_file = self.reports / f"{name}.html"
        failed = (error, cell) if error else ()
        return Outcome(name, status.replace("complete", "done"), seconds, page_file, *failed)


def slowest_cells(cells: Sequence[nbformat.NotebookNode]) -> list[tuple[float, str]]:
    """Return seconds and first line of the three cells that took longest, the longest first."""
    timed = []
    for cell in cells:
        at = cell.metadata.get("execution", {})
        if "iopub.execute_input" in at and "shell.execute_reply" in at:
            began = datetime.fromisoformat(at["iopub.execute_input"])
            ended = datetime.fromisoformat(at["shell.execute_reply"])
            timed.append(((ended - began).total_seconds(), cell.source.partition("\n")[0]))
    return sorted(timed, reverse=True)[:3]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the last lines of a run: counts, what was left out and why, each failure's error."""
    counts = Counter(outcome.status for outcome in outcomes)
    counted = ", ".join(f"{n} {status}" for status, n in counts.items()) or "nothing to run"
    lines = [f"{len(outcomes)} {'notebook' if len(outcomes) == 1 else 'notebooks'}: {counted}"]
    if outcomes:
        lines.append(f"reports: {outcomes[0].html.parent / 'index.html'}")
    return "\n".join(lines + [str(outcome) for outcome in outcomes if outcome.error])
