"""Responses as the estimation wants them: one byte per answer, patterns counted, streamed in blocks of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, check_responses, format_names

MISSING = 255  # in a uint8 matrix: not asked
BLOCK_CELLS = 2**22  # answers turned into float64 at a time: 32 MiB
KEPT_CELLS = 2**24  # up to so many answers the float64 blocks are kept between passes: 128 MiB
WORTH_A_GPU = 10_000_000  # answers
COLLAPSED_ITEMS = 64  # beyond so many items hardly two persons answer alike


@dataclass(frozen=True)
class Block:
    """The answers to some neighbouring items."""

    items: slice
    correct: Tensor  # (n_rows, n_items) float64, 1 where the answer is right
    answered: (
        Tensor | None
    )  # (n_rows, n_items) float64, 1 where there is an answer; None where all are there


@dataclass(frozen=True)
class ResponseMatrix:
    """A matrix of answers, its distinct rows counted."""

    values: np.ndarray  # (n_rows, n_items) uint8: 0, 1, or 255 for not asked
    persons: pd.Index  # (n_persons,)
    items: pd.Index  # (n_items,)
    row: np.ndarray  # (n_persons,), the row of `values` that holds the person's answers
    count: Tensor  # (n_rows,) float64, how many persons answered so
    device: torch.device
    complete: bool
    n_correct: Tensor  # (n_items,) right answers of all persons
    n_answered: Tensor  # (n_items,)
    _kept: list[Block] = field(default_factory=list, repr=False, compare=False)

    @property
    def n_persons(self) -> int:
        """Number of persons."""
        return len(self.persons)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.items)

    def blocks(self) -> Iterator[Block]:
        """Yield the answers block by block, in float64 on the device."""
        if self._kept:
            yield from self._kept
            return
        keep = self.values.size <= KEPT_CELLS
        width = max(1, BLOCK_CELLS // len(self.values))
        for start in range(0, self.n_items, width):
            block = self._block(slice(start, min(start + width, self.n_items)))
            if keep:
                self._kept.append(block)
            yield block

    def _block(self, items: slice) -> Block:
        raw = torch.from_numpy(np.array(self.values[:, items], order="C")).to(
            self.device
        )  # a copy: memory maps may be read-only
        if self.complete:
            return Block(items, raw.to(torch.float64), None)
        return Block(items, (raw == 1).to(torch.float64), (raw != MISSING).to(torch.float64))


def encode_responses(
    responses: pd.DataFrame | np.ndarray,
    device: torch.device,
    item_names: Sequence[str] | pd.Index | None = None,
) -> ResponseMatrix:
    """Take responses as a frame (0, 1, NaN) or as a uint8 matrix (0, 1, 255), which may be a memory map.

    Raises
    ------
    FrameError
        If values are out of range, or a person or an item has no answers at all.
    """
    if isinstance(responses, pd.DataFrame):
        checked = check_responses(responses)
        values = checked.to_numpy()
        matrix = np.where(np.isnan(values), MISSING, values).astype(np.uint8)
        persons, items = checked.index, checked.columns
    else:
        matrix = _check_matrix(responses)
        persons = pd.RangeIndex(len(matrix), name="person")
        items = (
            pd.RangeIndex(matrix.shape[1], name="item")
            if item_names is None
            else pd.Index(item_names, name="item")
        )
        if len(items) != matrix.shape[1] or items.has_duplicates:
            raise FrameError(
                f"{items.nunique()} distinct item names for {matrix.shape[1]} columns; give one for each"
            )
    return _counted(matrix, persons, items, device)


def _check_matrix(responses: np.ndarray) -> np.ndarray:
    if (
        not isinstance(responses, np.ndarray)
        or responses.ndim != 2
        or responses.dtype not in (np.uint8, np.bool_)
    ):
        kind = (
            f"{responses.dtype} array of shape {responses.shape}"
            if hasattr(responses, "dtype")
            else type(responses)
        )
        raise FrameError(
            f"responses are a {kind}; give a DataFrame of 0, 1 and NaN (persons x items), or a uint8 matrix of 0, 1 "
            f"and {MISSING} (not asked)"
        )
    if 0 in responses.shape:
        raise FrameError(f"responses are empty (shape {responses.shape}: persons x items)")
    return responses.view(np.uint8)


def _counted(
    matrix: np.ndarray, persons: pd.Index, items: pd.Index, device: torch.device
) -> ResponseMatrix:
    """Count right answers in blocks of rows, check what the frame's check did not see, and collapse equal rows."""
    n_correct, n_answered = np.zeros(len(items), np.int64), np.zeros(len(items), np.int64)
    for start in range(0, len(matrix), rows := max(1, BLOCK_CELLS * 4 // len(items))):
        part = matrix[start : start + rows]
        correct, answered = part == 1, part != MISSING
        if (part[answered] > 1).any():
            raise FrameError(
                f"the uint8 matrix holds values other than 0, 1 and {MISSING} (not asked)"
            )
        silent = ~answered.any(axis=1)
        if silent.any():
            raise FrameError(
                f"persons {format_names(persons[start : start + rows][silent])} answered no item; leave them out"
            )
        n_correct += correct.sum(axis=0)
        n_answered += answered.sum(axis=0)
    if (n_answered == 0).any():
        raise FrameError(
            f"items {format_names(items[n_answered == 0])} were answered by nobody; leave them out"
        )
    values, row, count = _distinct_rows(matrix)
    return ResponseMatrix(
        values,
        persons,
        items,
        row,
        torch.as_tensor(count, dtype=torch.float64, device=device),
        device,
        complete=bool((n_answered == len(matrix)).all()),
        n_correct=torch.as_tensor(n_correct, dtype=torch.float64, device=device),
        n_answered=torch.as_tensor(n_answered, dtype=torch.float64, device=device),
    )


def _distinct_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct rows, the row of every person, and how many persons share it."""
    n, everyone = len(matrix), np.arange(len(matrix))
    if matrix.shape[1] > COLLAPSED_ITEMS:
        return matrix, everyone, np.ones(n)
    _, first, row, count = np.unique(
        np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").ravel(),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    if len(first) > 0.8 * n:
        return matrix, everyone, np.ones(n)
    return np.ascontiguousarray(matrix[first]), row, count


def identical_items(answers: ResponseMatrix) -> list[list]:
    """Return the groups of items that all persons answered alike, found by exact integer sums of random weights."""
    n_rows = len(answers.values)
    weight = np.random.default_rng(0).integers(
        1, 2**52 // (2 * n_rows), n_rows
    )  # sums stay exact in float64
    key = np.empty(answers.n_items)
    exact = torch.as_tensor(weight, dtype=torch.float64, device=answers.device)
    for block in answers.blocks():
        mark = block.correct if block.answered is None else block.correct + 2 * (1 - block.answered)
        key[block.items] = (exact @ mark).cpu().numpy()
    _, first, times = np.unique(key, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(times[first] > 1)
    groups = pd.Series(shared).groupby(first[shared]).agg(list)
    return [
        [
            answers.items[i]
            for i in group
            if np.array_equal(answers.values[:, i], answers.values[:, group[0]])
        ]
        for group in groups
    ]


def pick_device(device: str, n_answers: int) -> torch.device:
    """Return the device; "auto" is a GPU where there is one and the answers are worth the transfer.

    Raises
    ------
    RuntimeError
        If a GPU is asked for and absent.
    """
    if device == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() and n_answers > WORTH_A_GPU else "cpu"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RuntimeError(
            f'device={device!r} was asked for, and torch sees no GPU here; use device="cpu" or "auto"'
        )
    return torch.device(device)
