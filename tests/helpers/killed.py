"""Processes that are killed in the middle of their work, as by `kill -9`."""

import os
import signal
from collections.abc import Callable


def kill_this_process() -> None:
    """End this process as the kernel does when memory is short: nothing of it runs on."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(work: Callable[[], object]) -> None:
    """Run work in a copy of this process, which must be killed before it ends.

    The copy has one thread, as this process must have (the fixture ``one_thread``)."""
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(1)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
