"""The process that executes one notebook: ``python -m psychlm.site.worker``, its task as JSON on standard input.

It says on standard output, a JSON object a line, which cell it begins and ends, and it lives only as long as its
standard input stays open: when the runner dies, however it dies, the worker and its kernel end too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any


def say(**event: Any) -> None:
    """Tell the runner something."""
    sys.__stdout__.write(json.dumps(event) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def end_with_the_runner() -> None:
    """Wait until the runner is gone, then end: first politely, so that the kernel is shut down, then at once."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)
    os._exit(1)


def main() -> None:
    """Execute the notebook that the task on standard input names."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_the_runner, daemon=True).start()
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
            on_cell_start=lambda cell, cell_index: say(begins=cell_index),
            on_cell_executed=lambda cell, cell_index, execute_reply: say(ends=cell_index),
        )
    except PapermillExecutionError as error:
        say(
            failed=f"{error.ename}: {error.evalue}".strip().removesuffix(":"), cell=error.cell_index
        )
    except Exception as error:  # whatever stopped it, the runner is told rather than left to guess
        say(failed=f"{type(error).__name__}: {error}".strip())


if __name__ == "__main__":
    main()
