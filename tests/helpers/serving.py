"""A server of files for the tests, on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


@contextmanager
def serving(files: Path | Callable) -> Iterator[str]:
    """Answer requests with the files of a folder, or by a handler; yield the address."""
    handler = files
    if isinstance(files, Path):
        handler = partial(SimpleHTTPRequestHandler, directory=files)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
