"""Execute one notebook: ``python -P worker.py``, with the task as JSON on standard input.

It runs as a file, not as a module, so that it imports papermill alone. It prints a JSON object per
line for each cell that begins and ends. It lives only as long as its standard input stays open:
when the runner dies, the worker and its kernel end too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any


def send(**event: Any) -> None:
    """Send an event to the runner."""
    print(json.dumps(event), file=sys.__stdout__, flush=True)


def end_with_the_runner() -> None:
    """Wait until the runner is gone, then end: by a signal that stops the kernel, then at once."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)
    os._exit(1)


def main() -> None:
    """Execute the notebook of the task."""
    task = json.loads(sys.stdin.readline())
    tempfile.tempdir = os.getcwd()  # the kernel's connection file goes where the runner cleans up
    threading.Thread(target=end_with_the_runner, daemon=True).start()
    # jsonschema, which reads notebooks, would compile a grammar of IRIs for 1.2 s; none has any
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    import papermill
    from papermill.exceptions import PapermillExecutionError

    try:
        papermill.execute_notebook(
            task["notebook"],
            task["executed"],
            parameters=task["parameters"],
            cwd=task["cwd"],
            kernel_name="python3",
            language="python",
            progress_bar=False,
            on_cell_start=lambda cell, cell_index: send(begins=cell_index),
            on_cell_executed=lambda cell, cell_index, execute_reply: send(ends=cell_index),
        )
    except PapermillExecutionError as error:
        send(error=error.ename, message=error.evalue, cell=error.cell_index)
    except Exception as error:  # a kernel that died, an unreadable notebook
        send(error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
