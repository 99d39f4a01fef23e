r"""Lossless inoculation: a little training on a probe, and what it costs on the task the model came from.

A model trained for a task goes on learning from k questions of a probe, under several learning rates, numbers of epochs
and seeds; for each k the model with the best average of both tasks is kept (Richardson & Sabharwal 2020, section 4.2,
after Liu et al. 2019),

.. math:: M^k_* = \arg\max_{M \in \{M^k_1, \ldots, M^k_J\}} \tfrac12 \left(S_{new}(M) + S_{orig}(M)\right),

with both scores taken on development items; what it learned is read off test items that had no part in the choice. Its
**inoculation cost** is what the score on the original task lost. *Add-some* inoculation trains on one (x1) or two (x2)
questions of the original kind beside each of the probe's.

Every model trained is a cell that is written when it is done, under a name that depends on all that it depends on: a
sweep that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd

from psychlm.data import atomic_write
from psychlm.frames import FrameError, check_items
from psychlm.lm.choice_model import Recipe
from psychlm.lm.finetune_data import digest

SCHEME = 1  # raised whenever a cell would come out otherwise
SIZES = (10, 100, 500, 1000, 3000)
LEARNING_RATES = (1e-4, 3e-4, 1e-3)
ADD_SOME = (0, 1, 2)
MOST_ADDED = 3000  # "x2 matching, up to 3k" (section 4.2)

Self = TypeVar("Self", bound="Inoculable")


class Inoculable(Protocol):
    """What a sweep asks of a model; :class:`~psychlm.lm.choice_model.ChoiceModel` and :class:`Checkpoint` have it."""

    @property
    def fingerprint(self) -> str:
        """Differs where the model does."""

    def trained(self: Self, items: pd.DataFrame, recipe: Recipe, *, seed: int) -> Self:
        """Return a copy that has gone on learning."""

    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return scores of the choices, items x choices."""


@dataclass(frozen=True)
class Sweep:
    """The models that are trained: one for every combination."""

    sizes: tuple[int, ...] = SIZES  # k, questions of the probe
    learning_rates: tuple[float, ...] = LEARNING_RATES
    epochs: tuple[int, ...] = (3,)
    seeds: tuple[int, ...] = (0, 1)  # of the questions drawn, their order, and dropout
    add_some: tuple[int, ...] = (0,)  # questions of the original kind beside each of the probe's
    batch_size: int = 16


@dataclass(frozen=True)
class _Cell:
    k: int
    learning_rate: float
    epochs: int
    seed: int
    add_some: int


@dataclass(frozen=True, eq=False)
class Inoculation:
    """What inoculation did to a model, on one probe."""

    cells: pd.DataFrame  # a trained model each: k, learning_rate, epochs, seed, add_some, new, original, average, test
    before: pd.Series  # new, original, average and test of the model as it came
    best: pd.DataFrame  # for each add_some and k (0: as it came) the chosen cell, with cost
    predictions: (
        pd.DataFrame
    )  # models (cells' index; -1: as it came) x test items: the choice taken, 0-based
    n_resumed: int  # cells that were on disk already
    n_broken: int  # files on disk that could not be read, and were computed anew

    def correct(self, test: pd.DataFrame) -> pd.DataFrame:
        """Return the graded answers of every model, models x test items (1 right, 0 wrong)."""
        key = test.set_index("item_id")["answer"].loc[self.predictions.columns]
        return self.predictions.eq(key, axis=1).astype(float)


def inoculate(
    model: Inoculable,
    train: pd.DataFrame,
    new: pd.DataFrame,
    original: pd.DataFrame,
    test: pd.DataFrame,
    *,
    sweep: Sweep | None = None,
    more: pd.DataFrame | None = None,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inoculation:
    """Inoculate a model with a probe, in every way of a sweep.

    Parameters
    ----------
    model : Inoculable
        Trained on the original task; it stays as it is.
    train, new, test : DataFrame
        Items of the probe: to learn from, to choose the model by, and to report.
    original : DataFrame
        Development items of the original task: to choose the model by, and for its cost.
    sweep : Sweep, optional
        Sizes beyond the items of ``train`` are refused.
    more : DataFrame, optional
        Items of the original kind to add (``add_some`` above 0), none of which the model has met.
    folder : path, optional
        Where cells are kept; nowhere unless given.
    progress : callable, optional
        Called with the number of cells done and of all.

    Raises
    ------
    FrameError
        If items break their contract, parts overlap, or there are fewer of them than the sweep asks for.
    """
    sweep = sweep or Sweep()
    parts = {"train": train, "new": new, "original": original, "test": test}
    parts = {name: check_items(items).reset_index(drop=True) for name, items in parts.items()}
    more = None if more is None else check_items(more).reset_index(drop=True)
    _check(parts, more, sweep)
    known = _identity(model, parts, more, sweep)
    came = _scored(model, parts)
    cells = [_Cell(*values) for values in product(*(getattr(sweep, name) for name in _AXES))]
    results, n_resumed, n_broken = [], 0, 0
    for n_done, cell in enumerate(cells):
        file = None if folder is None else Path(folder) / f"{_name(known, cell)}.json"
        found, broken = _kept(file, cell, len(test))
        n_resumed, n_broken = n_resumed + (found is not None), n_broken + broken
        if found is None:
            items = _drawn(cell, parts["train"], more)
            recipe = Recipe(cell.learning_rate, cell.epochs, sweep.batch_size, patience=None)
            found = _scored(model.trained(items, recipe, seed=cell.seed), parts)
            _keep(file, cell, found)
        results.append(found)
        if progress:
            progress(n_done + 1, len(cells))
    return _gathered(cells, results, came, parts["test"], n_resumed, n_broken)


_AXES = ("sizes", "learning_rates", "epochs", "seeds", "add_some")


def _check(parts: dict[str, pd.DataFrame], more: pd.DataFrame | None, sweep: Sweep) -> None:
    """Raise where a sweep cannot be run, or would report what it learned from."""
    if max(sweep.sizes) > len(parts["train"]) or min(sweep.sizes) < 1:
        raise FrameError(
            f"sizes {sweep.sizes} are asked for, and there are 1 to {len(parts['train'])} training items"
        )
    added = max(min(times * max(sweep.sizes), MOST_ADDED) for times in sweep.add_some)
    if added and (more is None or len(more) < added):
        raise FrameError(
            f"add_some={sweep.add_some} asks for {added} items of the original kind, more={_size(more)}"
        )
    names = ["train", "new", "test"]
    for one, other in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
        key = (
            "cluster"
            if all("cluster" in parts[part].columns for part in (one, other))
            else "item_id"
        )
        shared = set(parts[one][key]) & set(parts[other][key])
        if shared:
            raise FrameError(
                f"{len(shared)} of {key} stand in {one} and in {other}; split by cluster"
            )
    if more is not None and set(more["item_id"]) & set(parts["original"]["item_id"]):
        raise FrameError(
            "items to add stand among those of the original task by which its cost is taken; leave them out"
        )


def _size(items: pd.DataFrame | None) -> str:
    return "None" if items is None else f"{len(items)} items"


def _identity(
    model: Inoculable, parts: dict[str, pd.DataFrame], more: pd.DataFrame | None, sweep: Sweep
) -> str:
    """Return a text that differs where the cells of a sweep could, besides by their own settings."""
    said = {name: digest(items) for name, items in parts.items()}
    said |= {"more": "" if more is None else digest(more), "model": model.fingerprint}
    return json.dumps(said | {"batch_size": sweep.batch_size, "scheme": SCHEME}, sort_keys=True)


def _name(known: str, cell: _Cell) -> str:
    return hashlib.sha256(
        f"{known}\0{json.dumps(asdict(cell), sort_keys=True)}".encode()
    ).hexdigest()[:32]


def _drawn(cell: _Cell, train: pd.DataFrame, more: pd.DataFrame | None) -> pd.DataFrame:
    """Return the items of a cell: the first k in an order that follows from the seed, so that larger k hold smaller."""
    rng = np.random.default_rng(cell.seed)
    chosen = train.iloc[rng.permutation(len(train))[: cell.k]]
    if not cell.add_some:
        return chosen
    assert more is not None
    added = more.iloc[rng.permutation(len(more))[: min(cell.add_some * cell.k, MOST_ADDED)]]
    return pd.concat([chosen, added], ignore_index=True)


def _scored(model: Inoculable, parts: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the accuracies of a model, and its answers to the test items."""
    chosen = {name: _choices(model.logprobs(parts[name])) for name in ("new", "original", "test")}
    share = {
        name: float((said == parts[name]["answer"].to_numpy()).mean())
        for name, said in chosen.items()
    }
    return {**share, "predictions": chosen["test"].tolist()}


def _choices(logprobs: pd.DataFrame) -> np.ndarray:
    return logprobs.fillna(-np.inf).to_numpy().argmax(axis=1)


def _kept(file: Path | None, cell: _Cell, n_test: int) -> tuple[dict[str, Any] | None, bool]:
    """Return a cell's result from disk, None if it is not there, and whether what is there is broken."""
    if file is None or not file.is_file():
        return None, False
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = {name: float(content[name]) for name in ("new", "original", "test")}
        sound = content["cell"] == asdict(cell) and len(content["predictions"]) == n_test
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        warnings.warn(
            f"{file} cannot be read as a cell of this sweep, and is computed anew",
            RuntimeWarning,
            stacklevel=3,
        )
        return None, True
    return found | {"predictions": content["predictions"]}, False


def _keep(file: Path | None, cell: _Cell, found: dict[str, Any]) -> None:
    """Write a cell under a temporary name and move it into place."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as part:
        part.write_text(json.dumps({"cell": asdict(cell), **found}), encoding="utf-8")


def _gathered(
    cells: Sequence[_Cell],
    results: Sequence[dict[str, Any]],
    came: dict[str, Any],
    test: pd.DataFrame,
    n_resumed: int,
    n_broken: int,
) -> Inoculation:
    """Put cells side by side, and choose the best of each size."""
    scores = ["new", "original", "test"]
    rows = [
        asdict(cell) | {name: found[name] for name in scores}
        for cell, found in zip(cells, results, strict=True)
    ]
    table = pd.DataFrame(rows).rename_axis("cell")
    table.insert(table.columns.get_loc("test"), "average", (table["new"] + table["original"]) / 2)
    before = pd.Series(
        {name: came[name] for name in scores} | {"average": (came["new"] + came["original"]) / 2}
    )
    chosen = table.loc[table.groupby(["add_some", "k"])["average"].idxmax()].reset_index()
    at_first = pd.DataFrame(
        [{"cell": -1, "k": 0, "add_some": times, **before} for times in table["add_some"].unique()]
    )
    best = pd.concat([at_first, chosen]).sort_values(["add_some", "k"], ignore_index=True)
    best["cost"] = before["original"] - best["original"]
    said = pd.DataFrame(
        [came["predictions"], *(found["predictions"] for found in results)],
        index=pd.RangeIndex(-1, len(cells), name="cell"),
        columns=pd.Index(test["item_id"], name="item"),
    )
    return Inoculation(table, before, best, said, n_resumed, n_broken)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint of multiple choice that :func:`psychlm.lm.finetune.finetune` trains whole: costly, and any encoder.

    ``recipe`` holds what a sweep does not set (``max_tokens``, ``trainable_layers`` ...).
    """

    folder: Path
    recipe: dict[str, Any]
    device: str = "auto"
    keeper: Any = None  # the temporary folder of a trained copy, removed with it

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the folder's files, and how it is trained."""
        from psychlm.lm.load import fingerprint

        return f"{fingerprint(self.folder)} {json.dumps(self.recipe, sort_keys=True)}"

    def trained(self, items: pd.DataFrame, recipe: Recipe, *, seed: int) -> Checkpoint:
        """Return a fine-tuned copy in a temporary folder."""
        from psychlm.lm.finetune import finetune

        keeper = tempfile.TemporaryDirectory(prefix="psychlm-inoculation-")
        told = {
            "learning_rate": recipe.learning_rate,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
        }
        done = finetune(
            items,
            self.folder,
            task="multiple-choice",
            device=self.device,
            out=keeper.name,
            seed=seed,
            **self.recipe | told,
        )
        return replace(self, folder=done.folder, keeper=keeper)

    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return scores of the choices, items x choices."""
        from psychlm.lm.responses import choice_logprobs

        return choice_logprobs(items, self.folder, device=self.device, cache=False)
