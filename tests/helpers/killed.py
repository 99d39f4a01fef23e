"""Processes that are killed in the middle of their work, as by `kill -9`, or short of memory."""

import os
import signal
from collections.abc import Callable
from typing import Any


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


def short_of_memory(run_trainer: Callable[..., Any], n_items: int) -> Callable[..., Any]:
    """Return the function that trains a network with memory for so many items at once."""
    import torch

    def refuse(_module: object, _given: object, inputs: dict[str, Any]) -> None:
        if len(inputs["input_ids"]) > n_items:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    def run(network: torch.nn.Module, *arguments: Any) -> Any:
        network.register_forward_pre_hook(refuse, with_kwargs=True)
        return run_trainer(network, *arguments)

    return run
