"""Work in pieces on a dask cluster: several processes here, or the machines of a lab.

A piece whose worker was lost is done again elsewhere; one that takes down worker after worker is given up with an error
that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ANSWER_SECONDS = 5  # that a scheduler, and then a first worker, has to answer
_TAKEN_DOWN = (
    "chunk {} took down its workers one after the other, most likely out of memory; lower models_at_once, or give the "
    "workers more (the cluster's logs say what ended them)"
)
ROUNDS = 2  # times that pieces are handed out if all workers that held their data are lost


@contextmanager
def local(n_workers: int = 2, *, memory_limit: str | float = "auto") -> Iterator[Any]:
    """Yield a client of several processes on this machine, each with one thread.

    Parameters
    ----------
    n_workers : int
        Processes.
    memory_limit : str or float
        Of each process, in bytes or as ``"2GB"``; one that takes more is restarted.

    Notes
    -----
    A script that calls this needs ``if __name__ == "__main__":``, since workers import it.
    """
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": None,
    }
    with (
        LocalCluster(n_workers=n_workers, memory_limit=memory_limit, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def results(
    client: Any, work: Callable[[Any, Any], Any], shared: Any, pieces: Sequence[Any]
) -> Iterator[tuple]:
    """Yield (number, ``work(shared, piece)``) of each piece as it is done, in any order.

    Parameters
    ----------
    client : distributed.Client or str
        A client, or the address of a scheduler.
    work : callable
        Importable where the workers are.
    shared : object
        Sent to every worker once.

    Raises
    ------
    ConnectionError
        If no scheduler answers within seconds, or it has no worker.
    MemoryError
        If a piece does not fit in a worker's memory, or takes down worker after worker.
    """
    if isinstance(client, str):
        with _connected(client) as opened:
            yield from results(opened, work, shared, pieces)
        return
    try:
        client.wait_for_workers(1, timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise ConnectionError(
            f"the cluster at {client.scheduler.address} has no worker; start one first"
        ) from error
    left = list(range(len(pieces)))
    for _ in range(ROUNDS):
        done = set()
        for number, found in _one_round(client, work, shared, {i: pieces[i] for i in left}):
            done.add(number)
            yield number, found
        left = [number for number in left if number not in done]
        if not left:
            return
    raise MemoryError(_TAKEN_DOWN.format(left[0]))


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(address, timeout=ANSWER_SECONDS)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise ConnectionError(
            f"no dask scheduler answers at {address!r}; start one (dask scheduler) or mend the address, or leave out "
            "client to train on this machine"
        ) from error
    with client:
        yield client


def _one_round(
    client: Any, work: Callable[[Any, Any], Any], shared: Any, pieces: dict[int, Any]
) -> Iterator[tuple]:
    """Hand out pieces and yield what comes back; those lost along with ``shared`` are left for another round."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    everywhere = client.scatter(shared, broadcast=True, hash=False)
    futures = {
        client.submit(work, everywhere, piece, pure=False): number
        for number, piece in pieces.items()
    }
    for future in as_completed(list(futures)):
        if future.status in ("cancelled", "lost"):
            continue
        try:
            found = future.result()
        except (KilledWorker, MemoryError) as error:
            raise MemoryError(_TAKEN_DOWN.format(futures[future])) from error
        yield futures[future], found
