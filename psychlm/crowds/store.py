"""Train a crowd of any size in chunks, kept on disk, here or on a Dask cluster.

A chunk is some members trained together. A member does not depend on its chunk, so that chunks can
be trained in any order, on any machine, or left to a later run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from psychlm import data
from psychlm.cluster import progress_bar, run_pieces
from psychlm.crowds.networks import Encoded, Inputs, Kind, Network
from psychlm.crowds.sampling import Member, draw_members
from psychlm.crowds.training import (
    check_vocabulary,
    checked_answers,
    network_for,
    responses_frame,
    train,
)
from psychlm.device import torch_device
from psychlm.lm.cache import ResultStore

if TYPE_CHECKING:
    from distributed import Client

# responses (members, items), NaN where one is missing; and columns of the members by name
Chunk = tuple[NDArray[np.float64], dict[str, Any]]
COPIES = 4  # of every weight: itself, the two moments of Adam, and the best so far
MEMORY_BYTES = 2**30  # of the weights of a chunk on a CPU, by default
SHARE_OF_GPU = 1 / 8  # of a GPU's memory; activations of a step need the rest


@dataclass(frozen=True, eq=False)
class Crowd:
    """The members of a crowd and their responses."""

    responses: pd.DataFrame  # models x items: 1 or 0; NaN for members that diverged
    # by person: seed, train_fraction, label_noise, n_examples, best_epoch, epochs,
    # development_accuracy and diverged
    members: pd.DataFrame
    n_resumed: int  # members that were read from disk

    @property
    def valid_responses(self) -> pd.DataFrame:
        """The responses of the members that did not diverge."""
        return self.responses[~self.members["diverged"].to_numpy(bool)]


def train_chunk(task: dict[str, Any], members: Sequence[Member]) -> Chunk:
    """Train some members and return their responses and what :class:`Crowd` tells of them."""
    trained = train(*task["training"], members=members, **task["options"])
    history = trained.history.set_index(["member", "epoch"])["development_accuracy"]
    numbers = range(len(members))
    at_best = pd.MultiIndex.from_arrays([numbers, trained.best_epoch])
    n = len(task["training"][1])
    about = pd.DataFrame(members).assign(
        n_examples=[len(member.examples(n)) for member in members],
        best_epoch=trained.best_epoch,
        epochs=trained.history.groupby("member")["epoch"].max().loc[numbers].to_numpy(),
        development_accuracy=history.reindex(at_best).to_numpy(),
        diverged=trained.diverged,
    )
    return trained.responses(*task["test"]).to_numpy(float), about.to_dict("list")


def train_crowd(
    network: Network | Kind,
    inputs: Inputs,
    targets: ArrayLike,
    items: Inputs,
    answers: ArrayLike | pd.Series,
    *,
    n_models: int = 1000,
    seed: int = 0,
    train_fraction: float | tuple[float, float] = (0.1, 1.0),
    label_noise: float | tuple[float, float] = (0.0, 0.5),
    development: tuple[Inputs, ArrayLike] | None = None,
    models_at_once: int | None = None,
    folder: str | Path | None = None,
    client: Client | str | None = None,
    progress: bool = False,
    **options: Any,
) -> Crowd:
    """Train an artificial crowd and let it answer every item (Lalor 2020, section 5.2.4).

    Parameters
    ----------
    network : Network or str
        A network, or its kind; its ``size``, ``hidden`` and ``tanh_layers`` are ``options``.
    inputs, targets : Encoded or Tensor, (n,) int
        Training data; each member sees a share of them with some labels replaced.
    items, answers : Encoded or Tensor, (n_items,) int
        The test that every member takes; the index of a Series names the items.
    n_models, seed, train_fraction, label_noise
        The members: see :func:`draw_members`.
    development : (inputs, classes), optional
        Held-out items for early stopping.
    models_at_once : int, optional
        Members of a chunk; by default as many as a gigabyte of weights holds, or an eighth of a
        GPU's memory. A folder is resumed with the same number only.
    folder : str or Path, optional
        Where finished chunks are kept, and are not trained again.
    client : distributed.Client or str, optional
        Trains the chunks: see :func:`psychlm.cluster.run_pieces`.
    progress : bool
        Show a progress bar on standard error.
    **options
        Further arguments of :func:`train`.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).int()
    >>> crowd = train_crowd("encoder", x, y, x[:10], y[:10], n_models=3, epochs=2, device="cpu")
    >>> crowd.responses.shape
    (3, 10)
    """
    labels = np.asarray(targets)
    names = options.keys() & {"size", "hidden", "tanh_layers"}
    sizes = {name: options.pop(name) for name in names}
    network = network_for(network, inputs, labels, sizes)
    members = draw_members(n_models, seed, train_fraction=train_fraction, label_noise=label_noise)
    if development is not None:
        development = (development[0], np.asarray(development[1]))
    check_vocabulary(items, inputs.vocabulary if isinstance(inputs, Encoded) else None)
    test = (items, checked_answers(items, answers, network.classes))
    training = (network, inputs, labels)
    options["development"] = development
    task = {"training": training, "test": test, "options": options}

    # Cut the crowd into chunks: an eighth of all memory, not of what is free now, so that a later
    # run makes the same ones.
    memory_bytes = MEMORY_BYTES
    if client is None and (device := torch_device(options.get("device", "auto"))).type == "cuda":
        memory_bytes = int(SHARE_OF_GPU * torch.cuda.get_device_properties(device).total_memory)
    n_weights = sum(math.prod(shape) for shape in network.shapes().values())
    fit = max(memory_bytes // (4 * COPIES * n_weights), 1)  # 4 bytes each
    n_chunks = -(-n_models // fit)
    step = models_at_once or -(-n_models // n_chunks)  # chunks of about equal size
    chunks = [members[start : start + step] for start in range(0, n_models, step)]
    keys = chunk_keys(task, chunks)
    shapes = {key: (len(chunk), len(items)) for key, chunk in zip(keys, chunks, strict=True)}
    place = None if folder is None else Path(folder)
    with ResultStore(on=place is not None, place=place) as store:
        # Train what is missing, and write each chunk when it is done.
        done = store.get(shapes)
        missing = {i: chunk for i, chunk in enumerate(chunks) if keys[i] not in done}
        n_missing = sum(map(len, missing.values()))
        with progress_bar(progress, "members of the crowd", n_missing) as advance:
            for number, chunk in run_pieces(client, train_chunk, task, missing):
                done[keys[number]] = chunk
                store.put([(keys[number], *chunk)])
                advance(len(chunk[0]))

    # Join the chunks in the order of the members.
    graded = np.concatenate([done[key][0] for key in keys])
    about = pd.concat([pd.DataFrame(done[key][1]) for key in keys], ignore_index=True)
    responses = responses_frame(graded, answers)
    return Crowd(responses, about.set_axis(responses.index), n_models - n_missing)


def chunk_keys(task: dict[str, Any], chunks: Sequence[list[Member]]) -> list[str]:
    """Return the key of each chunk, a hash of all that its responses depend on."""
    network, inputs, labels = task["training"]
    settings = {key: value for key, value in task["options"].items() if key != "development"}
    parts: list[str | bytes] = [repr((network, sorted(settings.items())))]
    for part in (inputs, labels, *task["test"], *(task["options"]["development"] or ())):
        segments = part.segments if isinstance(part, Encoded) else [[part]]
        for array in (np.asarray(values) for segment in segments for values in segment):
            parts += [repr((array.shape, array.dtype)), array.tobytes()]
    identity = data.digest(parts)
    return [data.digest([identity, repr(chunk)]) for chunk in chunks]
