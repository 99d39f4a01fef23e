"""Start the kernels of a run as copies of one process that has imported the large libraries.

A kernel needs four seconds of CPU time to import torch, pandas and matplotlib. ``python -P
kernels.py serve LIBRARIES`` imports them once and copies itself (a fork) for each kernel. The
kernel's command, ``kernels.py start FOLDER ARGUMENTS``, asks for such a copy; each ends with the
other. If nobody serves, it becomes a kernel. It works on Linux only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading

SOCKET = "kernels"  # in the run's folder; the path is relative, since a socket's has 108 characters


def start(folder: str, *arguments: str) -> None:
    """Ask for a kernel; end when it has ended, or when this process's parent has."""
    directory = os.getcwd()
    parent = os.getppid()
    os.chdir(folder)
    kernel = socket.socket(socket.AF_UNIX)
    try:
        kernel.connect(SOCKET)
        kernel.send(json.dumps([directory, *arguments]).encode())
        begun = kernel.recv(1)
    except OSError:
        begun = b""
    if not begun:  # nobody serves
        os.chdir(directory)
        os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", *arguments])
    # the kernel sends nothing more, so that something to read is its end
    while os.getppid() == parent and not select.select([kernel], [], [], 1.0)[0]:
        pass


def serve(*libraries: str) -> None:
    """Import the libraries; copy this process for each request, until standard input is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended kernels leave no zombie
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen()
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for library in ("ipykernel.kernelapp", "ipykernel.debugger", *libraries):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    gc.freeze()  # garbage collections of the copies leave these libraries alone
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        request = connection.recv(1 << 16)
        if request and os.fork() == 0:
            listener.close()
            run_kernel(connection, *json.loads(request))
        connection.close()


def run_kernel(connection: socket.socket, directory: str, *arguments: str) -> None:
    """Run the kernel in the copied process; end it with the process that asked for it."""

    def end_with_the_launcher() -> None:
        connection.recv(1)
        os._exit(1)

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(directory)
    connection.send(b"1")
    threading.Thread(target=end_with_the_launcher, daemon=True).start()
    from ipykernel.kernelapp import launch_new_instance

    # with a parent it prints nothing of its own on standard output, and ends with that parent too
    launch_new_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])
    sys.exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(*sys.argv[2:])
    else:
        serve(*sys.argv[2:])
