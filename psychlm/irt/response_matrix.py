"""Encode responses for estimation: one byte per response, equal rows counted, blocks of items.

A fit passes over the responses many times. They are kept as a ``uint8`` matrix (0, 1, and 255 for
not asked), which may be a memory map, and turned into ``float64`` block by block. Up to 64 items,
persons with equal responses share one row, which is counted: LSAT6 has 1,000 persons and 30 rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from psychlm.device import Device, free_bytes, torch_device
from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt.arrays import as_type, host, on_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_CATEGORIES = 30
MISSING = 255  # code of "not asked" in a uint8 matrix
NUMPY_CELLS = 200_000  # up to so many responses NumPy fits as fast as torch starts
GPU_CELLS = 10_000_000  # responses from which device="auto" takes a GPU
BLOCK_CELLS = 2**22  # responses converted to float64 at a time: 32 MiB
BLOCK_CELLS_GPU = 2**25  # the same on a GPU, where a block costs some launches of 10 microseconds
KEPT_CELLS = 2**24  # up to this size the float64 blocks are kept between passes: 128 MiB
COLLAPSED_ITEMS = 64  # with more items hardly two persons have equal responses


@dataclass(frozen=True)
class Block:
    """The responses to some neighbouring items, in float64."""

    items: slice
    correct: Tensor  # (n_rows, n_items), 1 where the response is correct
    answered: Tensor | None  # (n_rows, n_items), 1 where there is a response; None if all are there


@dataclass(frozen=True)
class ResponseMatrix:
    """Responses of persons to items, with equal rows counted once."""

    values: np.ndarray  # (n_rows, n_items) uint8: 0, 1, or 255 for not asked
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
    def on_cpu(self) -> bool:
        """Whether the responses are counted on the CPU."""
        return self.device is None or self.device.type == "cpu"

    def on(self, device: torch.device | str | None) -> ResponseMatrix:
        """Return the responses for computations on a device."""
        if isinstance(device, str):
            device = torch_device(device)
        counts = {name: getattr(self, name) for name in ("count", "n_correct", "n_answered")}
        moved = {name: on_device(values, device) for name, values in counts.items()}
        return replace(self, device=device, kept_blocks=[], kept_values=[], **moved)

    def blocks(self) -> Iterator[Block]:
        """Yield the responses block by block; small matrices are converted only once."""
        if self.kept_blocks:
            yield from self.kept_blocks
            return
        keep = self.values.size <= KEPT_CELLS
        cells = BLOCK_CELLS if self.on_cpu else BLOCK_CELLS_GPU
        width = max(1, cells // len(self.values))
        for start in range(0, self.n_items, width):
            items = slice(start, min(start + width, self.n_items))
            correct, answered = self.cells(slice(None), items)
            block = Block(items, correct, answered)
            if keep:
                self.kept_blocks.append(block)
            yield block

    def cells(self, rows: slice, items: slice) -> tuple[Tensor, Tensor | None]:
        """Return which responses are correct and which are there (None if all are), in float64."""
        # A GPU keeps the bytes of all responses where they take at most a quarter of its memory.
        room = 0 if self.on_cpu else free_bytes(self.device, 2**30) // 4
        if not self.kept_values and self.values.size <= room:
            self.kept_values.append(on_device(np.array(self.values), self.device))
        if self.kept_values:
            raw = self.kept_values[0][rows, items]
        else:  # a copy, since PyTorch takes no read-only memory maps
            raw = on_device(np.array(self.values[rows, items], order="C"), self.device)
        if self.complete:
            return as_type(raw, "float64"), None
        return as_type(raw == 1, "float64"), as_type(raw != MISSING, "float64")


def pick_device(device: Device, part: str, n_responses: int) -> torch.device:
    """Return the device for a part of the work; "auto" is a GPU for over GPU_CELLS responses."""
    return torch_device(device, part, worthwhile=n_responses > GPU_CELLS, float64=True)


def encode_responses(
    responses: pd.DataFrame | np.ndarray,
    device: torch.device | str | None = "cpu",
    item_names: Sequence[str] | pd.Index | None = None,
) -> ResponseMatrix:
    """Encode a frame (0, 1, NaN), or a uint8 matrix (0, 1, 255) that may be a memory map.

    Raises
    ------
    FrameError
        If the type or a value is wrong, or a person or an item has no responses at all.
    """
    # Read either form into a uint8 matrix with names.
    if isinstance(responses, pd.DataFrame):
        checked = check_responses(responses)
        values, persons, items = checked.to_numpy(), checked.index, checked.columns
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
    header = "\n".join(map(repr, items)).encode(errors="replace")
    return encode_codes(matrix, persons, items, header, 2, device)


def encode_ratings(ratings: pd.DataFrame, levels: Mapping | None = None) -> ResponseMatrix:
    """Encode ordered answers, whose numbers in ``levels`` (by item) are the codes.

    Unless levels are given they are the different answers to each item.

    Raises
    ------
    FrameError
        If answers are not numbers, or not among the levels; if an item has fewer than 2 or too many
        different ones, names are not distinct, or a person or an item has no answers at all.
    """
    if not isinstance(ratings, pd.DataFrame) or ratings.empty:
        raise FrameError(
            f"ratings are a {type(ratings).__name__}; give a DataFrame of numbers, persons x items"
        )
    try:
        numbers = ratings.astype(float)
    except (TypeError, ValueError) as problem:
        raise FrameError(f"ratings are not all numbers ({problem}); code them 1, 2, ...") from None
    if numbers.columns.has_duplicates or numbers.index.has_duplicates:
        raise FrameError("persons or items stand more than once; give each one name and one row")
    if levels is None:
        levels = {item: sorted(numbers[item].dropna().unique()) for item in numbers}
        wrong = [item for item, values in levels.items() if not 2 <= len(values) <= MOST_CATEGORIES]
        if wrong:
            raise FrameError(
                f"items {format_names(wrong)} have fewer than 2 or more than {MOST_CATEGORIES} "
                "different answers; leave them out, or group their answers into categories"
            )
    codes = np.full(numbers.shape, MISSING, np.uint8)
    for column, item in enumerate(numbers.columns):
        answers, categories = numbers[item].to_numpy(), np.asarray(levels[item], float)
        answered = ~np.isnan(answers)
        new = answered & ~np.isin(answers, categories)
        if new.any():
            raise FrameError(
                f"item {item!r} has answers {sorted(set(answers[new]))[:5]} that nobody gave when "
                f"the model was fitted ({categories.tolist()}); recode them, or fit again"
            )
        codes[answered, column] = np.searchsorted(categories, answers[answered])
    persons, items = numbers.index.rename("person"), numbers.columns.rename("item")
    n_categories = max(len(levels[item]) for item in items)
    matrix = encode_codes(
        codes, persons, items, repr(list(levels.items())).encode(), n_categories, "cpu"
    )
    return replace(matrix, levels={item: levels[item] for item in items})


def encode_codes(
    matrix: np.ndarray,
    persons: pd.Index,
    items: pd.Index,
    header: bytes,
    n_categories: int,
    device: torch.device | str | None,
) -> ResponseMatrix:
    """Check and count a matrix of category numbers; merge persons who answered alike."""
    # Count and check in blocks of rows: a memory map does not fit into memory.
    n_correct, n_answered = np.zeros((2, len(items)), np.int64)
    digest = hashlib.blake2b(header, digest_size=16)
    step = max(1, BLOCK_CELLS * 4 // len(items))
    for start in range(0, len(matrix), step):
        part = np.ascontiguousarray(matrix[start : start + step])
        correct, answered = part == 1, part != MISSING
        if ((part >= n_categories) & answered).any():
            raise FrameError(
                f"the uint8 matrix holds values other than 0, 1 and {MISSING} (not asked); "
                "grade the responses first"
            )
        silent = ~answered.any(axis=1)
        if silent.any():
            raise FrameError(
                f"persons {format_names(persons[start : start + step][silent])} answered no item; "
                "leave them out"
            )
        n_correct += correct.sum(axis=0)
        n_answered += answered.sum(axis=0)
        digest.update(part.data)
    if (n_answered == 0).any():
        raise FrameError(
            f"items {format_names(items[n_answered == 0])} were answered by nobody; leave them out"
        )

    # Collapse equal rows where that saves at least a fifth of them.
    distinct, row, count = matrix, np.arange(len(matrix)), np.ones(len(matrix), np.int64)
    if len(items) <= COLLAPSED_ITEMS:
        as_bytes = np.ascontiguousarray(matrix).view(f"V{len(items)}").ravel()
        _, first, inverse, n_equal = np.unique(
            as_bytes, return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) <= 0.8 * len(matrix):
            distinct, row, count = np.ascontiguousarray(matrix[first]), inverse, n_equal

    arrays = ResponseMatrix(
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
    )
    return arrays if device is None else arrays.on(device)


def uncompressed(values: np.ndarray, persons: pd.Index) -> ResponseMatrix:
    """Return responses (0, 1, NaN) with one row for every person, also for equal ones.

    Unlike :func:`encode_responses` this merges and refuses nothing:
    equal responses of two groups have different priors, and a resample may hold an empty row.
    """
    coded = np.where(np.isnan(values), MISSING, values).astype(np.uint8)
    arrays = ResponseMatrix(
        coded,
        persons,
        pd.RangeIndex(coded.shape[1]),
        np.arange(len(coded)),
        np.ones(len(coded)),
        None,
        complete=bool((coded != MISSING).all()),
        n_correct=(coded == 1).sum(0).astype(float),
        n_answered=(coded != MISSING).sum(0).astype(float),
    )
    return arrays.on("cpu")


def identical_items(responses: ResponseMatrix) -> list[list]:
    """Return the groups of items to which all persons responded alike.

    Candidates have equal sums of random integer weights over their correct responses, which are
    exact in float64; then the columns themselves are compared.
    """
    n_rows = len(responses.values)
    weight = np.random.default_rng(0).integers(1, 2**52 // (2 * n_rows), n_rows)
    exact = on_device(weight.astype(float), responses.device)
    key = np.empty(responses.n_items)
    for block in responses.blocks():
        missing = 0 if block.answered is None else 2 * (1 - block.answered)
        key[block.items] = host(exact @ (block.correct + missing))
    _, first, n_equal = np.unique(key, return_inverse=True, return_counts=True)
    candidates = np.flatnonzero(n_equal[first] > 1)
    values = responses.values
    return [
        [responses.items[i] for i in group if np.array_equal(values[:, i], values[:, group[0]])]
        for group in pd.Series(candidates).groupby(first[candidates]).agg(list)
    ]
