"""Work in pieces, here or on a Dask cluster: the argument ``client`` of crowds, sweeps, surprisals;
and the bar that shows how far it is.

Pieces are done in any order and on any machine, and a piece whose worker was lost is done again
elsewhere. The extra ``cluster`` installs Dask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

ANSWER_SECONDS = 5  # within which a scheduler, and then a first worker, has to answer
ROUNDS = 2  # times that pieces are submitted if all workers that held their data are lost
OUT_OF_MEMORY = (
    "piece {} took down its workers one after the other, most likely out of memory; make pieces "
    "smaller (models_at_once of a crowd, texts_at_once of surprisals), or give the workers more "
    "(the cluster's logs say what ended them)"
)


@contextmanager
def progress_bar(shown: bool, text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if it is wanted.

    Yields
    ------
    callable
        Called with a number of steps, which are done.
    """
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(text, total=total)
        yield lambda n_steps: bar.advance(task, n_steps)


def run_pieces(
    client: Client | str | None,
    work: Callable[[Any, Any], Any],
    shared: Any,
    pieces: Mapping[int, Any],
) -> Iterator[tuple[int, Any]]:
    """Yield (number, ``work(shared, piece)``) of each piece as it is done, in any order.

    Parameters
    ----------
    client : distributed.Client or str, optional
        A client, or the address of a scheduler (``"tcp://head:8786"``); unless given, the pieces
        are done here, one after the other.
    work : callable
        Importable where the workers are.
    shared : object
        Sent to every worker once.
    pieces : mapping
        Number -> piece.

    Raises
    ------
    ConnectionError
        If no scheduler answers within seconds, or it has no worker.
    MemoryError
        If a piece does not fit in a worker's memory, or takes down one worker after another.

    Examples
    --------
    >>> dict(run_pieces(None, pow, 2, {0: 3, 1: 5}))
    {0: 8, 1: 32}
    """
    if client is None:
        yield from ((number, work(shared, piece)) for number, piece in pieces.items())
        return
    from distributed import Client, as_completed
    from distributed.scheduler import KilledWorker

    if isinstance(client, str):
        try:
            opened = Client(client, timeout=ANSWER_SECONDS)
        except (OSError, ValueError) as error:  # a TimeoutError is an OSError
            raise ConnectionError(
                f"no dask scheduler answers at {client!r}; start one (dask scheduler), or correct "
                "the address, or leave out client to work on this machine"
            ) from error
        with opened:
            yield from run_pieces(opened, work, shared, pieces)
        return
    try:
        client.wait_for_workers(1, timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise ConnectionError("the Dask cluster has no worker; start one first") from error
    left = dict(pieces)
    for _ in range(ROUNDS):
        try:
            everywhere = client.scatter(shared, broadcast=True, hash=False)
        except Exception as error:
            if "closed" not in str(error):
                raise
            continue  # a worker died while it received ``shared``: another round
        futures = {
            client.submit(work, everywhere, piece, pure=False): number
            for number, piece in left.items()
        }
        for future in as_completed(list(futures)):
            if future.status in ("cancelled", "lost"):
                continue  # lost with all workers that held ``shared``: left for another round
            number = futures[future]
            try:
                yield number, future.result()
            except (KilledWorker, MemoryError) as error:
                raise MemoryError(OUT_OF_MEMORY.format(number)) from error
            del left[number]
        if not left:
            return
    raise MemoryError(OUT_OF_MEMORY.format(min(left)))
