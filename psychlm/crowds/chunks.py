"""Build a crowd of any size: in chunks that fit in memory, each written to disk when it is done.

A chunk is some members trained together. What a member becomes does not depend on its chunk, so that chunks can be
trained in any order, on any machine, or left to a later run.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from psychlm.crowds import cluster
from psychlm.crowds.answers import names_of_members, respond
from psychlm.crowds.encode import Encoded, Inputs
from psychlm.crowds.members import Member, draw_members
from psychlm.crowds.networks import Kind, Network
from psychlm.crowds.training import train
from psychlm.data import atomic_write

if TYPE_CHECKING:
    from distributed import Client

Chunk = dict[str, Any]  # arrays, one row per member
COPIES = 4  # of every weight: itself, Adam's two moments, and the best so far
MEMORY_BYTES = 2**30  # that a chunk's weights may take by default


@dataclass(frozen=True, eq=False)
class Crowd:
    """Who is in a crowd and what they answered."""

    responses: pd.DataFrame  # models x items, 0 or 1; NaN for members that diverged
    members: pd.DataFrame  # person; seed, share, flipped, n_examples, best_epoch, epochs, development_accuracy, diverged
    n_resumed: int  # members read from disk rather than trained now

    @property
    def n_diverged(self) -> int:
        """Members whose training failed; their responses are NaN."""
        return int(self.members["diverged"].sum())

    @property
    def sound(self) -> pd.DataFrame:
        """The responses of the members that did not diverge."""
        return self.responses[~self.members["diverged"].to_numpy(bool)]


@dataclass(frozen=True, eq=False)
class Job:
    """All that a chunk needs but its members."""

    network: Network
    inputs: Inputs
    targets: NDArray[Any]
    items: Inputs
    answers: NDArray[np.int64]
    development: tuple[Inputs, NDArray[np.int64]] | None
    training: dict[str, Any]

    def identity(self) -> str:
        """Return the SHA-256 of everything that a member's answers depend on but the member."""
        digest = hashlib.sha256(
            repr((asdict(self.network), sorted(self.training.items()))).encode()
        )
        held = (None, None) if self.development is None else self.development
        for part in (self.inputs, self.targets, self.items, self.answers, *held):
            for array in _arrays(part):
                digest.update(repr((array.shape, array.dtype)).encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _arrays(part: Any) -> Iterable[NDArray[Any]]:
    if isinstance(part, Encoded):
        return [tensor.cpu().numpy() for segment in part.segments for tensor in segment]
    return [] if part is None else [np.asarray(part)]


def train_chunk(job: Job, members: Sequence[Member]) -> Chunk:
    """Train some members and return what is kept of them: (models, n_items) answers, and (models,) facts each."""
    trained = train(
        job.network,
        job.inputs,
        job.targets,
        members=members,
        development=job.development,
        **job.training,
    )
    graded = respond(trained, job.items, job.answers).to_numpy()
    history = trained.history.set_index(["member", "epoch"])
    best = pd.MultiIndex.from_arrays([range(len(members)), trained.best_epoch])
    epochs = trained.history.groupby("member")["epoch"].max()
    return {
        "answers": np.where(np.isnan(graded), 255, graded).astype(np.uint8),
        "seed": np.array([member.seed for member in members]),
        "share": np.array([member.share for member in members]),
        "flipped": np.array([member.flipped for member in members]),
        "n_examples": np.array([len(member.examples(len(job.inputs))) for member in members]),
        "best_epoch": trained.best_epoch,
        "epochs": epochs.reindex(range(len(members))).to_numpy(),
        "development_accuracy": history["development_accuracy"].reindex(best).to_numpy(),
        "diverged": trained.diverged,
    }


def models_that_fit(network: Network, n_models: int, memory_bytes: int = MEMORY_BYTES) -> int:
    """Return how many members to train at once, so that their weights in all copies take ``memory_bytes`` at most."""
    fit = max(memory_bytes // (4 * COPIES * network.n_weights), 1)
    n_chunks = -(-n_models // fit)
    return -(-n_models // n_chunks)  # chunks of about one size


def build(
    network: Network | Kind,
    inputs: Inputs,
    targets: ArrayLike,
    items: Inputs,
    answers: ArrayLike | pd.Series,
    *,
    n_models: int = 1000,
    seed: int = 0,
    share: float | tuple[float, float] = (0.1, 1.0),
    flipped: float | tuple[float, float] = (0.0, 0.5),
    members: Sequence[Member] | None = None,
    development: tuple[Inputs, ArrayLike] | None = None,
    classes: int | None = None,
    sizes: dict[str, int] | None = None,
    models_at_once: int | None = None,
    folder: str | Path | None = None,
    client: Client | str | None = None,
    report: Callable[[int, int], None] | None = None,
    **training: Any,
) -> Crowd:
    """Train an artificial crowd and let it answer every item (Lalor 2020, section 5.2.4).

    Parameters
    ----------
    network : Network or str
        A network, or its kind with its ``sizes`` (size, hidden, tanh_layers).
    inputs, targets : Encoded or Tensor, (n,) int
        Training data; each member sees a random share of them, a random share of its labels flipped.
    items, answers : Encoded or Tensor, (n_items,) int
        The test that every member takes; a Series' index names the items. These may be the training data.
    n_models, seed, share, flipped
        The crowd: see :func:`~psychlm.crowds.draw_members`; or ``members`` themselves.
    development : (inputs, classes), optional
        Held-out items for early stopping.
    models_at_once : int, optional
        Members of a chunk; by default as many as a gigabyte of weights holds.
    folder : str or Path, optional
        Where finished chunks are kept; those that are there are not trained again, whatever ended the run before.
    client : distributed.Client or str, optional
        A dask cluster, or its scheduler's address (``"tcp://head:8786"``); chunks are its tasks. See
        :func:`~psychlm.crowds.cluster.local`.
    report : callable, optional
        Called after each chunk with the members done and the members in all.
    **training
        epochs, batch_size, learning_rate, rule, patience, loss and device of :func:`~psychlm.crowds.train`.

    Returns
    -------
    Crowd

    Raises
    ------
    ConnectionError, MemoryError
        If no cluster answers at the address, or its workers run out of memory.
    """
    if not isinstance(network, Network):
        network = Network.reading(
            network, inputs, classes or int(np.max(np.asarray(targets))) + 1, **(sizes or {})
        )
    chosen = (
        draw_members(n_models, seed, share=share, flipped=flipped)
        if members is None
        else list(members)
    )
    held = None if development is None else (development[0], np.asarray(development[1]))
    job = Job(network, inputs, np.asarray(targets), items, np.asarray(answers), held, training)
    step = models_at_once or models_that_fit(network, len(chosen))
    spans = [range(i, min(i + step, len(chosen))) for i in range(0, len(chosen), step)]
    store = _Store(folder, job, chosen)
    done = {span: chunk for span in spans if (chunk := store.read(span)) is not None}
    n_resumed = sum(map(len, done))
    wanted = [span for span in spans if span not in done]
    for span, chunk in _trained(job, chosen, wanted, client):
        store.write(span, chunk)
        done[span] = chunk
        if report is not None:
            report(sum(map(len, done)), len(chosen))
    return _gathered([done[span] for span in spans], answers, n_resumed)


def _trained(
    job: Job, members: Sequence[Member], spans: list[range], client: Client | str | None
) -> Iterable[tuple[range, Chunk]]:
    if client is None:
        return ((span, train_chunk(job, [members[i] for i in span])) for span in spans)
    found = cluster.results(
        client, train_chunk, job, [[members[i] for i in span] for span in spans]
    )
    return ((spans[number], chunk) for number, chunk in found)


def _gathered(chunks: list[Chunk], answers: ArrayLike | pd.Series, n_resumed: int) -> Crowd:
    joined = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    graded = joined.pop("answers")
    persons = names_of_members(len(graded))
    names = (
        answers.index
        if isinstance(answers, pd.Series)
        else [f"item{i}" for i in range(graded.shape[1])]
    )
    values = np.where(graded == 255, np.nan, graded.astype(np.float64))
    responses = pd.DataFrame(values, index=persons, columns=pd.Index(names, name="item"))
    return Crowd(responses, pd.DataFrame(joined, index=persons), n_resumed)


class _Store:
    """Finished chunks in a folder, one file each, known by all that its answers depend on."""

    def __init__(self, folder: str | Path | None, job: Job, members: Sequence[Member]) -> None:
        self.folder, self.job, self.members = None if folder is None else Path(folder), job, members
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.data = job.identity()

    def _path(self, span: range) -> Path | None:
        if self.folder is None:
            return None
        who = repr([self.members[i] for i in span])
        return (
            self.folder / f"chunk-{hashlib.sha256((self.data + who).encode()).hexdigest()[:32]}.npz"
        )

    def read(self, span: range) -> Chunk | None:
        """Return a finished chunk, or None; a file that cannot be read counts as not there."""
        path = self._path(span)
        if path is None or not path.is_file():
            return None
        try:
            with np.load(path) as held:
                return {name: held[name] for name in held.files}
        except (OSError, ValueError, zipfile.BadZipFile):
            return None

    def write(self, span: range, chunk: Chunk) -> None:
        """Write a chunk beside its place, then move it there."""
        path = self._path(span)
        if path is None:
            return
        with atomic_write(path) as part, part.open("wb") as out:
            np.savez_compressed(out, **chunk)
