"""Start the kernels of a run as copies of one process that has imported the large libraries.

A kernel needs four seconds of CPU time to import torch, pandas and matplotlib. ``python -P
kernels.py serve LIBRARIES`` imports them once and copies itself (a fork) for each kernel. The
command in the kernel's specification, ``kernels.py start FOLDER ARGUMENTS``, asks for such a copy,
hands over its own output and lives as long as the kernel. If nobody serves, it becomes a kernel.
It works on Linux only.
"""

from __future__ import annotations

import contextlib
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
    """Ask for a kernel that writes where this process writes; end when it has ended."""
    directory, parent = os.getcwd(), os.getppid()
    os.chdir(folder)
    kernel = socket.socket(socket.AF_UNIX)
    try:
        kernel.connect(SOCKET)
        request = json.dumps([directory, *arguments]).encode()
        socket.send_fds(kernel, [request], [0, 1, 2])
        process = int(kernel.recv(32))
    except (OSError, ValueError):  # nobody serves
        os.chdir(directory)
        os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", *arguments])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    # the kernel sends nothing more; its end can be read. With this process's parent it ends too
    while os.getppid() == parent and not select.select([kernel], [], [], 1.0)[0]:
        pass


def serve(*libraries: str) -> None:
    """Import the libraries; copy this process for each request, until standard input is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended kernels leave no zombie
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen()
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for library in ("ipykernel.kernelapp", *libraries):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        if len(files) == 3 and os.fork() == 0:
            listener.close()
            run_kernel(connection, files, *json.loads(request))
        for file in files:
            os.close(file)
        connection.close()


def run_kernel(
    connection: socket.socket, files: list[int], directory: str, *arguments: str
) -> None:
    """Run the kernel in the copied process; end it with the process that asked for it."""

    def end_with_the_launcher() -> None:
        connection.recv(1)
        os._exit(1)

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(directory)
    connection.send(str(os.getpid()).encode())
    threading.Thread(target=end_with_the_launcher, daemon=True).start()
    from ipykernel.kernelapp import launch_new_instance

    # with a parent it prints nothing of its own on standard output, and ends with that parent too
    launch_new_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])
    sys.exit(0)


if __name__ == "__main__":
    (start if sys.argv[1] == "start" else serve)(*sys.argv[2:])
