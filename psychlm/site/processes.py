"""The processes that execute notebooks: how they are started, what they may see, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from psychlm.site import fingerprint


class Workers:
    """The processes at work, so that an interrupt can end them all."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._running: set[subprocess.Popen[str]] = set()
        self.stopped = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def start(self, cwd: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
        """Start a worker in a session of its own, so that Ctrl-C reaches the runner alone."""
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "psychlm.site.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cwd,
                env=self.environment,
                start_new_session=True,
            )
        with self._lock:
            self._running.add(process)
        try:
            if self.stopped:
                self._end(process)
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
            self._end(process)
            process.wait()

    def stop(self) -> None:
        """End all workers, and any that is about to start."""
        self.stopped = True
        with self._lock:
            for process in self._running:
                self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        """Close a worker's standard input: it ends, and its kernel with it."""
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]


def environment(staging: Path, reports: Path, profile: str, jobs: int) -> dict[str, str]:
    """Return the environment of workers and kernels: this interpreter, this package, no one's start-up files."""
    kernel = staging / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    specification = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(specification))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = str(max(1, cores // max(1, jobs)))
    shared = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    path = (
        [str(fingerprint.PACKAGE.parent)]
        if fingerprint.PACKAGE.parent.name != "site-packages"
        else []
    )
    # tqdm asks kernels without ipywidgets to install them, which is nothing to a reader of the report
    quiet = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:IProgress not found"]))
    return {
        **(shared if jobs > 1 else {}),
        **os.environ,
        "PSYCHLM_REPORTS": str(staging),
        "PSYCHLM_FINISHED_REPORTS": str(reports),
        "PSYCHLM_PROFILE": profile,
        "PYTHONWARNINGS": quiet,
        "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JUPYTER_PATH": str(staging / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(staging / "jupyter" / "runtime"),
        "IPYTHONDIR": str(staging / "ipython"),
    }
