"""Encode responses for estimation: one byte per response, equal rows counted, blocks of items.

A fit passes over the responses many times. They are kept as a ``uint8`` matrix (0, 1, and 255 for
not asked), which may be a memory map, and turned into ``float64`` block by block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from psychlm.device import Device, free_bytes, one_thread, torch_device
from psychlm.frames import FrameError, Repeated, check_responses, refuse
from psychlm.irt.arrays import as_type, host, namespace, on_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_CATEGORIES = 30
MISSING = 255  # code of "not asked" in a uint8 matrix
NUMPY_CELLS = 200_000  # up to so many responses NumPy fits as fast as torch starts
GPU_CELLS = 10_000_000  # responses from which device="auto" takes a GPU
BLOCK_CELLS = 2**20  # responses converted to float64 at a time: 8 MiB, near what a cache holds
BLOCK_CELLS_GPU = 2**25  # the same on a GPU, where a block costs some launches of 10 microseconds
KEPT_CELLS = 2**24  # up to this size the float64 blocks are kept between passes: 128 MiB
COLLAPSED_ITEMS = 64  # with more items hardly two persons have equal responses


@dataclass(frozen=True)
class Block:
    """The responses to some neighbouring items, in float64.

    Of persons who answered an item several times both numbers may be larger than 1.
    """

    items: slice
    correct: Tensor  # (n_rows, n_items), 1 where the response is correct: of category 1
    answered: Tensor | None  # (n_rows, n_items), 1 where there is a response; None if all are there
    higher: tuple[Tensor, ...] = ()  # the same as correct, of categories 2, 3, ...

    @property
    def categories(self) -> tuple[Tensor, ...]:
        """Where the response is of category 1, 2, ..., each (n_rows, n_items)."""
        return self.correct, *self.higher

    def changed(self, change: Callable[[Tensor], Tensor]) -> Block:
        """Return the responses after the same change of all arrays: some rows, or another type."""
        correct, *higher = map(change, self.categories)
        answered = None if self.answered is None else change(self.answered)
        return Block(self.items, correct, answered, tuple(higher))

    def answers_at(self, weights: Tensor) -> Tensor:
        """Return expected numbers of responses by node, (n_items, n_nodes); one row if complete.

        ``weights`` are those of the nodes for every row, (n_rows, n_nodes).
        """
        if self.answered is None:
            return weights.sum(0, keepdims=True)
        return self.answered.T @ weights

    def expected_by_category(self, weights: Tensor) -> Tensor:
        """Return expected numbers of responses by node, (n_items, n_categories, n_nodes)."""
        chosen = [category.T @ weights for category in self.categories]
        return namespace(weights).stack([self.answers_at(weights) - sum(chosen), *chosen], 1)

    def expected_squares(self, weights: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return expected squares by node of the numbers of responses k of category 1, 2, ..., of
        k n, and of n², with n the number of all: those of single responses are k, k and n.
        """
        if self.answered is None or self.answered.max() <= 1:
            chosen = [category.T @ weights for category in self.categories]
            return chosen, chosen, self.answers_at(weights)
        n = self.answered
        squares = [(category**2).T @ weights for category in self.categories]
        mixed = [(category * n).T @ weights for category in self.categories]
        return squares, mixed, (n**2).T @ weights

    def of_answered(self, values: Tensor) -> Tensor:
        """Return values (n_rows, n_items), or by item, with 0 where there is no response."""
        return values if self.answered is None else self.answered * values


@dataclass(frozen=True)
class ResponseMatrix:
    """Responses of persons to items, with equal rows counted once."""

    values: np.ndarray  # (n_rows, n_items) uint8: 0, 1, or 255 for not asked; k of n: int32
    persons: pd.Index  # (n_persons,)
    items: pd.Index  # (n_items,)
    row: np.ndarray  # (n_persons,), the row of `values` that holds a person's responses
    count: Tensor  # (n_rows,) float64, number of persons with these responses
    device: torch.device | None  # None: arrays of NumPy, on the CPU
    complete: bool  # every person was asked every item
    n_correct: Tensor  # (n_items,) correct responses of all persons
    n_answered: Tensor  # (n_items,)
    data_hash: str = ""  # of items' names and responses: fits to the same data share it
    n_categories: int = 2
    levels: dict | None = None  # of polytomous items: their answers in the order of the categories
    n: np.ndarray | None = None  # (n_rows, n_items) answers, where `values` counts the right ones
    squares: Tensor | None = None  # (n_rows,) sum of persons' squared weights; None: all 1
    group: Tensor | None = None  # (n_rows,) number of the persons' group; None: all of one
    kept_blocks: list[Block] = field(default_factory=list, repr=False, compare=False)
    kept_values: list[Tensor] = field(default_factory=list, repr=False, compare=False)  # on a GPU

    @property
    def n_persons(self) -> int:
        """Number of persons."""
        return len(self.persons)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def n_asked(self) -> np.ndarray:
        """Number of answers of every row to every item, (n_rows, n_items)."""
        return (self.values != MISSING).astype(np.int32) if self.n is None else self.n

    @property
    def category_counts(self) -> np.ndarray:
        """Number of persons in every category of every item, (n_categories, n_items)."""
        if self.levels is None:
            correct = host(self.n_correct)
            return np.stack([host(self.n_answered) - correct, correct])
        count = host(self.count)
        return np.stack([count @ (self.values == k) for k in range(self.n_categories)])

    @property
    def on_cpu(self) -> bool:
        """Whether the responses are counted on the CPU."""
        return self.device is None or self.device.type == "cpu"

    def on(self, device: torch.device | str | None) -> ResponseMatrix:
        """Return the responses for computations on a device."""
        if isinstance(device, str):
            device = torch_device(device)
        names = ("count", "n_correct", "n_answered", "squares", "group")
        tables = {name: getattr(self, name) for name in names}
        moved = {name: on_device(host(x), device) for name, x in tables.items() if x is not None}
        return replace(self, device=device, kept_blocks=[], kept_values=[], **moved)

    def blocks(self) -> Iterator[Block]:
        """Yield the responses block by block; small matrices are converted only once."""
        if self.kept_blocks:
            yield from self.kept_blocks
            return
        keep = self.values.size <= KEPT_CELLS
        cells = BLOCK_CELLS if self.on_cpu else BLOCK_CELLS_GPU
        width = max(1, cells // (len(self.values) * (self.n_categories - 1)))
        for start in range(0, self.n_items, width):
            items = slice(start, min(start + width, self.n_items))
            block = self.cells(slice(None), items)
            if keep:
                self.kept_blocks.append(block)
            yield block

    def cells(self, rows: slice, items: slice) -> Block:
        """Return the responses of some persons to some items."""
        if self.n is not None:
            counts = (np.array(table[rows, items], order="C") for table in (self.values, self.n))
            return Block(items, *(as_type(on_device(x, self.device), "float64") for x in counts))
        # A GPU keeps the bytes of all responses where they take at most a quarter of its memory.
        room = 0 if self.on_cpu else free_bytes(self.device, 2**30) // 4
        if not self.kept_values and self.values.size <= room:
            self.kept_values.append(on_device(np.array(self.values), self.device))
        if self.kept_values:
            raw = self.kept_values[0][rows, items]
        else:  # a copy, since PyTorch takes no read-only memory maps
            raw = on_device(np.array(self.values[rows, items], order="C"), self.device)
        answered = None if self.complete else as_type(raw != MISSING, "float64")
        if self.complete and self.n_categories == 2:
            return Block(items, as_type(raw, "float64"), answered)
        correct, *higher = (as_type(raw == k, "float64") for k in range(1, self.n_categories))
        return Block(items, correct, answered, tuple(higher))


def few_threads(n_responses: int) -> AbstractContextManager:
    """Return a context with one thread for up to GPU_CELLS responses.

    On a shared machine threads wait for each other, and waiting costs what computing does: with two
    of them 600,000 responses took 2.5 s of CPU instead of 0.6, and four times as long. Enter it
    after torch has been imported.
    """
    return one_thread() if n_responses <= GPU_CELLS else nullcontext()


def pick_device(device: Device, part: str, n_responses: int) -> torch.device:
    """Return the device for a part of the work; "auto" is a GPU for over GPU_CELLS responses."""
    return torch_device(device, part, worthwhile=n_responses > GPU_CELLS, float64=True)


def encode_responses(
    responses: pd.DataFrame | Repeated | np.ndarray,
    device: torch.device | str | None = "cpu",
    item_names: Sequence[str] | pd.Index | None = None,
) -> ResponseMatrix:
    """Encode a frame (0, 1, NaN), k of n, or a uint8 matrix (0, 1, 255), perhaps a memory map."""
    if isinstance(responses, Repeated):
        if responses.squares is not None:
            raise FrameError(
                "scores other than 0 and 1 are no right and wrong answers, of which this model "
                "gives the probability; choose a metric of 0 and 1, or compare the means by "
                "psychlm.compare"
            )
        if responses.n.to_numpy().max() > 1:
            correct, n = (x.to_numpy().astype(np.int32) for x in (responses.correct, responses.n))
            header = "\n".join(map(repr, responses.n.columns)).encode(errors="replace")
            digest = hashlib.blake2b(header + correct.tobytes() + n.tobytes(), digest_size=16)
            encoded = ResponseMatrix(
                values=correct,
                persons=responses.n.index,
                items=responses.n.columns,
                row=np.arange(len(n)),
                count=np.ones(len(n)),
                device=None,
                complete=False,
                n_correct=correct.sum(axis=0).astype(float),
                n_answered=n.sum(axis=0).astype(float),
                data_hash=digest.hexdigest(),
                n=n,
            )
            return encoded if device is None else encoded.on(device)
        responses = responses.mean
    if isinstance(responses, pd.DataFrame):
        checked = check_responses(responses)
        values = checked.to_numpy()
        persons = checked.index
        items = checked.columns
        matrix = (values == 1).view(np.uint8)
        matrix[np.isnan(values)] = MISSING
    else:
        coded = isinstance(responses, np.ndarray) and responses.dtype in (np.uint8, np.bool_)
        if not coded or responses.ndim != 2 or 0 in responses.shape:
            shape = f" of shape {responses.shape}" if hasattr(responses, "shape") else ""
            raise FrameError(
                f"responses are a {type(responses).__name__}{shape}; give a DataFrame of 0, 1 and "
                f"NaN (persons x items), or a uint8 matrix of 0, 1 and {MISSING} (not asked)"
            )
        matrix = responses.view(np.uint8)
        persons = pd.RangeIndex(len(matrix), name="person")
        names = range(matrix.shape[1]) if item_names is None else item_names
        items = pd.Index(names, name="item")
        if len(items) != matrix.shape[1] or items.has_duplicates:
            raise FrameError(
                f"{items.nunique()} distinct item names for {matrix.shape[1]} columns; "
                "give one name for each column"
            )
    encoded = encode_codes(matrix, persons, items, "\n".join(map(repr, items)))
    return encoded if device is None else encoded.on(device)


def counts_by_category(values: np.ndarray, n: np.ndarray | None, n_categories: int) -> np.ndarray:
    """Return how many answers lie in each category, (n_rows, n_items, n_categories) float64.

    ``values`` and ``n`` are those of a :class:`ResponseMatrix`.
    """
    if n is not None:
        return np.stack([n - values, values], axis=2).astype(np.float64)
    return (values[:, :, None] == np.arange(n_categories)).astype(np.float64)


def encode_ratings(
    ratings: pd.DataFrame, levels: Mapping | None = None, *, common: bool = False
) -> ResponseMatrix:
    """Encode ordered answers, whose numbers in ``levels`` (by item) are the codes.

    Of items without levels they are the different answers to the item, or, if they are ``common``,
    to all items.
    """
    checked = check_responses(ratings, ratings=True)
    levels = dict(levels or {})
    observed = [item for item in checked if item not in levels]
    if observed:
        chosen = checked[observed]
        values = {item: sorted(chosen[item].dropna().unique()) for item in observed}
        if common:
            values = dict.fromkeys(observed, sorted(set().union(*values.values())))
        wrong = [item for item in observed if not 2 <= len(values[item]) <= MOST_CATEGORIES]
        flaw = f"have fewer than 2 or more than {MOST_CATEGORIES} different answers; leave them out"
        refuse("items", wrong, f"{flaw}, or group their answers into categories")
        levels |= values
    codes = np.full(checked.shape, MISSING, np.uint8)
    for column, (item, answers) in enumerate(checked.items()):
        categories = np.asarray(levels[item], float)
        answered = answers.notna().to_numpy()
        new = answered & ~answers.isin(categories)
        if new.any():
            raise FrameError(
                f"item {item!r} has answers {sorted(set(answers[new]))[:5]} that nobody gave when "
                f"the model was fitted ({categories.tolist()}); recode them, fit again, or name "
                f"the {len(categories)} answers to the item in a table, in order: levels="
            )
        codes[answered, column] = np.searchsorted(categories, answers[answered])
    items = checked.columns
    levels = {item: levels[item] for item in items}
    return encode_codes(codes, checked.index, items, repr(list(levels.items())), levels)


def encode_codes(
    matrix: np.ndarray,
    persons: pd.Index,
    items: pd.Index,
    header: str = "",
    levels: dict | None = None,
    *,
    as_drawn: bool = False,
) -> ResponseMatrix:
    """Check and count a matrix of category numbers; merge persons who answered alike.

    ``as_drawn`` merges and refuses nothing, such as cells that nobody was asked.
    """
    # Count and check in blocks of rows: a memory map does not fit into memory.
    n_categories = 2 if levels is None else max(map(len, levels.values()))
    n_correct, n_answered = np.zeros((2, len(items)), np.int64)
    digest = hashlib.blake2b(header.encode(errors="replace"), digest_size=16)
    step = max(1, BLOCK_CELLS * 4 // len(items))
    for start in range(0, len(matrix), step):
        part = np.ascontiguousarray(matrix[start : start + step])
        correct = part == 1
        answered = part != MISSING
        if ((part >= n_categories) & answered).any():
            raise FrameError(
                f"the uint8 matrix holds values other than 0, 1 and {MISSING} (not asked); "
                "grade the responses first"
            )
        silent = ~answered.any(axis=1) & (not as_drawn)
        refuse("persons", persons[start : start + step][silent], "answered no item; leave them out")
        n_correct += correct.sum(axis=0)
        n_answered += answered.sum(axis=0)
        digest.update(part.data)
    unknown = items[(n_answered == 0) & (not as_drawn)]
    refuse("items", unknown, "were answered by nobody; leave them out")

    # Collapse equal rows where that saves at least a fifth of them.
    distinct = matrix
    row = np.arange(len(matrix))
    count = np.ones(len(matrix), np.int64)
    if len(items) <= COLLAPSED_ITEMS and not as_drawn:
        as_bytes = np.ascontiguousarray(matrix).view(f"V{len(items)}").ravel()
        _, first, inverse, n_equal = np.unique(
            as_bytes, return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) <= 0.8 * len(matrix):
            distinct = np.ascontiguousarray(matrix[first])
            row = inverse
            count = n_equal
    return ResponseMatrix(
        distinct,
        persons,
        items,
        row,
        count.astype(float),
        None,
        complete=bool((n_answered == len(matrix)).all()),
        n_correct=n_correct.astype(float),
        n_answered=n_answered.astype(float),
        data_hash=digest.hexdigest(),
        n_categories=n_categories,
        levels=levels,
    )


def identical_items(responses: ResponseMatrix) -> list[list]:
    """Return the groups of items to which all persons responded alike."""
    by_hash: dict[int, list] = {}
    table = responses.values
    if responses.n is not None:
        table = np.vstack([table, responses.n])
    width = max(1, BLOCK_CELLS * 4 // len(table))
    for start in range(0, responses.n_items, width):
        columns = np.ascontiguousarray(table[:, start : start + width].T)
        for item, column in zip(responses.items[start : start + width], columns, strict=True):
            by_hash.setdefault(hash(column.tobytes()), []).append(item)
    return [items for items in by_hash.values() if len(items) > 1]
