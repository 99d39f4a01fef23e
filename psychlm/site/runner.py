"""Run notebooks: the chosen ones that changed, several at a time, publishing only what is whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from psychlm import data
from psychlm.site import collection, fingerprint, storage
from psychlm.site.collection import Notebook, Profile
from psychlm.site.index import build_index
from psychlm.site.processes import Workers, environment
from psychlm.site.progress import Bar
from psychlm.site.storage import RunLockedError

__all__ = ["Outcome", "RunLockedError", "run", "summary"]


@dataclass(frozen=True)
class Outcome:
    """How one notebook ended."""

    notebook: str
    status: Literal["done", "unchanged", "failed"]
    seconds: float  # wall time, the kernel's start included; 0 where unchanged
    html: Path  # its report
    error: str | None = None
    cell: int | None = None  # the cell that failed, counted from 1 as in the notebook's file


@dataclass(frozen=True)
class _Task:
    """One notebook to run, and everything that its run depends on."""

    notebook: Notebook
    profile: Profile
    parameters: Mapping[str, Any]  # those that differ from the notebook's own
    fingerprint: str
    reports: Path
    staging: Path

    @property
    def name(self) -> str:
        return self.notebook.name

    @property
    def html(self) -> Path:
        return self.reports / f"{self.name}.html"

    @property
    def cells(self) -> int:
        """The code cells that will be executed, the one that papermill injects included."""
        return len(self.notebook.code) + bool(self.parameters)

    def numbered(self, index: int | None) -> int | None:
        """Turn the place of an executed cell into its number in the notebook's file, counted from 1."""
        if index is None or not self.parameters or self.notebook.parameters_at is None:
            return None if index is None else index + 1
        return index + 1 - (index > self.notebook.parameters_at)

    def unchanged(self) -> bool:
        """Say whether the published report is whole and rests on the same code, parameters and data."""
        report = storage.read(self.reports / f"{self.name}.json")
        if not report or report["status"] != "complete" or not self.html.is_file():
            return False
        return report.get("fingerprint") == self.fingerprint and fingerprint.data_unchanged(report)


@dataclass
class _Execution:
    """What the worker told of one execution."""

    began: float = field(default_factory=time.monotonic)
    at: int | None = None  # the cell that was begun last
    error: str | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


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

    Each is executed in a process of its own and writes into a staging folder; its JSON and its HTML are moved into
    ``reports`` only when they are whole. Whatever interrupts a run, the notebooks that were done stay done. Progress
    and the last lines (for a failure: the notebook, the cell, the error) are printed on standard error.

    Parameters
    ----------
    select : sequence of str
        Names, numbers, paths or patterns of notebooks; all of them where empty.
    profile : "smoke", "quick" or "full"
        Whose parameters: the tests' (``tests/smoke.yaml``), the notebooks' own, or the papers' sizes
        (``notebooks/full.yaml``).
    parameters : mapping, optional
        Parameters that override those of the profile in every chosen notebook.
    jobs : int
        How many notebooks run at a time; they share the cores.
    force : bool
        Run what has not changed, too.
    root : Path, optional
        The checkout, whose ``notebooks/`` are run.
    reports : Path, optional
        Where the reports go: ``$PSYCHLM_REPORTS`` or ``reports/`` of the checkout unless given.

    Returns
    -------
    list of Outcome
        One per chosen notebook, in their order.

    Raises
    ------
    NotebookError
        If a notebook, a profile or a parameter is unknown; nothing has been run then.
    RunLockedError
        If another run is at work on the same reports.
    """
    root = (root or data.root()).resolve()
    folder = (reports or Path(os.environ.get("PSYCHLM_REPORTS", root / "reports"))).resolve()
    chosen = collection.select(collection.find(root), select)
    given = collection.profile_parameters(root, chosen, profile, parameters)
    with _staged(folder) as staging:

        def task(notebook: Notebook) -> _Task:
            own = given[notebook.name]
            digest = fingerprint.of_code(notebook, root, profile, own, folder)
            return _Task(notebook, profile, own, digest, folder, staging)

        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        workers = Workers(environment(staging, folder, profile, jobs))
        outcomes = []
        try:
            for reads_reports in (
                False,
                True,
            ):  # those that read what the others found come when these are done
                wave = [
                    task(notebook) for notebook in chosen if notebook.reads_reports == reads_reports
                ]
                outcomes += _run_all(wave, jobs, force, workers, console) if wave else []
        except KeyboardInterrupt:
            console.print(
                "interrupted: the notebooks that were done stay done, and the next run goes on from there"
            )
            raise
        finally:
            build_index(root, folder)
    console.print(summary(outcomes))
    return outcomes


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """Hold the folder of reports and yield an empty staging folder in it; what a killed run left there goes."""
    with storage.locked(folder):
        for left in folder.glob(".staging-*"):
            shutil.rmtree(left, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _run_all(
    tasks: Sequence[_Task], jobs: int, force: bool, workers: Workers, console: Console
) -> list[Outcome]:
    """Run the tasks that are due; on an interrupt end the workers first, then pass it on."""
    due = [task for task in tasks if force or not task.unchanged()]
    with (
        Bar(sum(task.cells for task in due), console) as bar,
        ThreadPoolExecutor(max_workers=max(1, jobs)) as pool,
    ):
        futures: dict[str, Future[Outcome]] = {
            task.name: pool.submit(_run_one, task, workers, bar) for task in due
        }
        try:
            outcomes = []
            for task in tasks:
                if task.name in futures:
                    outcomes.append(futures[task.name].result())
                else:
                    outcomes.append(Outcome(task.name, "unchanged", 0.0, task.html))
                    bar.end(task.name, "unchanged", 0.0, 0)
            return outcomes
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise


def _run_one(task: _Task, workers: Workers, bar: Bar) -> Outcome:
    """Execute one notebook and publish what came of it; nothing that goes wrong here stops the others."""
    bar.begin(task.name)
    execution = _Execution()
    try:
        _execute(task, workers, bar, execution)
        if (
            workers.stopped
        ):  # it did not fail: the next run has to run it, so whatever report it had stays
            return Outcome(task.name, "failed", execution.seconds, task.html, "interrupted")
        outcome = _publish(task, execution)
    except Exception as error:  # a full disk, say: the outcome names it
        message = (
            execution.error or f"its report could not be written: {type(error).__name__}: {error}"
        )
        outcome = Outcome(
            task.name, "failed", execution.seconds, task.html, message, task.numbered(execution.at)
        )
    bar.end(task.name, outcome.status, outcome.seconds, task.cells)
    return outcome


def _execute(task: _Task, workers: Workers, bar: Bar, execution: _Execution) -> None:
    """Have a worker execute the notebook, and follow what it tells."""
    order = {
        "notebook": str(task.notebook.path),
        "executed": str(task.staging / f"{task.name}.ipynb"),
        "parameters": dict(task.parameters),
        "cwd": str(task.notebook.path.parent),
    }
    log = task.staging / f"{task.name}.log"
    with workers.start(task.staging, log) as process:
        assert process.stdin and process.stdout
        with contextlib.suppress(OSError):  # a worker that died at once is told of below
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            event = json.loads(line)
            if "begins" in event:
                execution.at = event["begins"]
            elif "ends" in event:
                bar.cell(task.name)
            elif "failed" in event:
                execution.error, execution.at = event["failed"], event.get("cell", execution.at)
    if process.returncode and execution.error is None:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        execution.error = " ".join([f"its process ended with code {process.returncode}", *last])


def _publish(task: _Task, execution: _Execution) -> Outcome:
    """Move the report into place, the JSON last where it says "complete", and first where it says "failed"."""
    from psychlm.site import render

    report = storage.read(task.staging / f"{task.name}.json")
    if execution.error is None and (report is None or report["status"] != "complete"):
        execution.error = "it ran through but left no complete report; its last code cell must call report.finish()"
        execution.at = None
    seconds, cell = execution.seconds, task.numbered(execution.at) if execution.error else None
    report = (report or {"notebook": task.name, "provenance": {}, "numbers": []}) | {
        "title": task.notebook.title,
        "question": task.notebook.question,
        "status": "failed" if execution.error else "complete",
        "error": {"cell": cell, "message": execution.error} if execution.error else None,
        "profile": task.profile,
        "seconds": round(seconds, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": task.fingerprint,
    }
    executed = task.staging / f"{task.name}.ipynb"
    report["executed"] = executed.is_file()
    source = executed if report["executed"] else task.notebook.path
    page = render.report_page(source, report)
    if page.picture:
        storage.write(task.reports / page.picture.file, page.picture.content)
        report["headline"] = {
            "file": page.picture.file,
            "alt": page.picture.alt,
            "finding": page.finding,
        }
    if report["executed"]:
        storage.write(task.reports / executed.name, executed.read_bytes())
    content = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    publications = [(task.html, page.html), (task.reports / f"{task.name}.json", content)]
    for file, content in publications[::-1] if execution.error else publications:
        storage.write(file, content)
    return Outcome(
        task.name,
        "failed" if execution.error else "done",
        seconds,
        task.html,
        execution.error,
        cell,
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the last lines of a run: how many notebooks ended how, and for each failure the cell and the error."""
    counts = {
        status: sum(o.status == status for o in outcomes)
        for status in ("done", "unchanged", "failed")
    }
    told = (
        ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        or "nothing to run"
    )
    lines = [f"{len(outcomes)} notebook{'s' * (len(outcomes) != 1)}: {told}"]
    if outcomes:
        lines.append(f"reports: {outcomes[0].html.parent / 'index.html'}")
    for outcome in outcomes:
        if outcome.status == "failed":
            where = f", cell {outcome.cell}" if outcome.cell else ""
            lines.append(f"FAILED {outcome.notebook}{where}: {outcome.error}")
    return "\n".join(lines)
