"""One progress bar for all notebooks: cells done of cells in all; plain lines where the output is no terminal."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

STYLES = {"done": "green", "unchanged": "dim", "failed": "bold red"}


class Bar:
    """Tell how far the notebooks are; its methods may be called from several threads.

    Parameters
    ----------
    cells : int
        The code cells that will be run in all.
    console : rich.console.Console
        Where to tell it.
    """

    def __init__(self, cells: int, console: Console) -> None:
        self.console = console
        self.total, self.done = cells, 0
        self._running: dict[str, int] = {}
        self._lock = threading.Lock()
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.description}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("", total=cells)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, notebook: str) -> None:
        """Say that a notebook begins."""
        with self._lock:
            self._running[notebook] = 0
            self._show()
        if not self.console.is_terminal:
            self._line(notebook, "begins", "")

    def cell(self, notebook: str) -> None:
        """Count one cell of a notebook as done."""
        with self._lock:
            self._running[notebook] += 1
            self.done += 1
            self._show()

    def end(self, notebook: str, status: str, seconds: float, cells: int) -> None:
        """Say how a notebook ended; the cells that it did not come to are counted as done."""
        with self._lock:
            self.done += cells - self._running.pop(notebook, cells)
            self._show()
        self._line(notebook, status, f"{seconds:.1f} s" if seconds else "")

    def _show(self) -> None:
        names = " · ".join(f"{name} {count}" for name, count in self._running.items())
        self._bar.update(self._task, completed=self.done, description=names)

    def _line(self, notebook: str, status: str, seconds: str) -> None:
        counted = f"[{self.done:>{len(str(self.total))}}/{self.total} cells] "
        self.console.print(
            Text(counted, "dim")
            + Text(f"{status:<9} ", STYLES.get(status, ""))
            + Text(f"{notebook}  {seconds}"),
            soft_wrap=True,
        )
