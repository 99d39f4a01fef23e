"""Items as arrays, and draws from the other instances: what the confusion probes borrow with.

Two texts count as the same where they differ in case or white space only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm import frames

_ROUNDS = 30  # of drawing and rejecting, after which the few rows left look through all donors

Allowed = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.bool_]]


@dataclass(frozen=True)
class Bank:
    """The items as arrays: n items, N choices in all, texts as integer codes."""

    items: pd.DataFrame
    text: NDArray[np.object_]  # (N,) every choice as written
    code: NDArray[np.intp]  # (N,) the same code for the same text
    owner: NDArray[np.intp]  # (N,) the row of its item
    size: NDArray[np.intp]  # (n,) number of choices
    own: NDArray[np.intp]  # (n, most choices) place of each choice among the N, -1 beyond the last
    prompt: NDArray[np.intp]  # (n,) the same code for the same prompt
    right: NDArray[
        np.intp
    ]  # (N or fewer,) sorted pairs of prompt and text that some item calls right

    @property
    def answer(self) -> NDArray[np.intp]:
        """The place of every item's answer among its choices, shape (n,)."""
        return self.items["answer"].to_numpy(np.intp)

    def codes(self) -> NDArray[np.intp]:
        """Return the codes of every item's own choices, shape (n, most choices), -1 beyond the last."""
        return np.where(self.own < 0, -1, self.code[self.own])

    def is_right(self, prompt: NDArray[np.intp], code: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether some item calls this text right for this prompt."""
        pair = _pair(prompt, code)
        at = np.searchsorted(self.right, pair)
        return self.right[np.minimum(at, len(self.right) - 1)] == pair


def _pair(prompt: NDArray[np.intp], code: NDArray[np.intp]) -> NDArray[np.intp]:
    return (prompt.astype(np.intp) << 31) | code


def _codes(texts: pd.Series) -> NDArray[np.intp]:
    return pd.factorize(texts.map(lambda text: " ".join(text.casefold().split())))[0]


def read(items: pd.DataFrame) -> Bank:
    """Check the items, but for duplicates and contradictions, and turn them into arrays.

    Raises
    ------
    FrameError
        If the items break their contract.
    """
    items = frames.check_items(items, distinct=False).reset_index(drop=True)
    flat = items["choices"].explode()
    size = items["choices"].map(len).to_numpy(np.intp)
    start = np.cumsum(size) - size
    place = np.arange(size.max())
    own = np.where(place < size[:, None], start[:, None] + place, -1)
    code, prompt = _codes(flat), _codes(items["prompt"])
    right = np.unique(_pair(prompt, code[start + items["answer"].to_numpy(np.intp)]))
    return Bank(
        items, flat.to_numpy(object), code, flat.index.to_numpy(np.intp), size, own, prompt, right
    )


def unfit(bank: Bank) -> pd.Series:
    """Return why items cannot be perturbed, by row; rows that can be are not in it."""
    codes = np.sort(bank.codes(), axis=1)
    twice = ((codes[:, 1:] == codes[:, :-1]) & (codes[:, 1:] >= 0)).any(axis=1)
    calls_right = bank.is_right(bank.prompt[bank.owner], bank.code)
    too_many = np.bincount(bank.owner, calls_right, len(bank.items)) > 1
    reasons = np.select(
        [twice, too_many], ["duplicate choices", "a second choice is right by another item"], ""
    )
    return pd.Series(reasons)[lambda reason: reason != ""]


def some(names: Iterable[object]) -> str:
    """Name the first five, and count the others."""
    names = list(names)
    return f"{names[:5]}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def draw(
    pool: NDArray[np.intp], allowed: Allowed, rng: np.random.Generator, bank: Bank, what: str
) -> NDArray[np.intp]:
    """Draw a member of the pool for every item, uniformly from those allowed to it.

    Raises
    ------
    FrameError
        If an item is allowed none; ``what`` says what it lacks.
    """
    drawn, rows = np.full(len(bank.items), -1), np.arange(len(bank.items))
    if len(pool):
        for _ in range(_ROUNDS):
            tries = rng.choice(pool, len(rows))
            fits = allowed(rows, tries)
            drawn[rows[fits]] = tries[fits]
            rows = rows[~fits]
            if not len(rows):
                return drawn
    for row in rows:  # those to which next to nothing is allowed: few, or the first of them raises
        fitting = pool[allowed(np.full(len(pool), row), pool)]
        if not len(fitting):
            raise frames.FrameError(
                f"item {bank.items['item_id'][row]!r} finds no {what} among the {len(bank.items)} items: there are too "
                "few other instances to draw from, or all have the same choices; give more items of the benchmark"
            )
        drawn[row] = rng.choice(fitting)
    return drawn


def draw_choices(bank: Bank, n: int, seed: int) -> NDArray[np.intp]:
    """Draw n different incorrect choices of other instances for every item, shape (n items, n)."""
    taken = bank.codes()
    incorrect = np.setdiff1d(
        np.arange(len(bank.text)), bank.own[np.arange(len(bank.items)), bank.answer]
    )
    drawn = np.empty((len(bank.items), n), np.intp)
    rng = np.random.default_rng([seed, 1])
    for column in range(n):

        def allowed(
            rows: NDArray[np.intp], tries: NDArray[np.intp], taken: NDArray[np.intp] = taken
        ) -> NDArray[np.bool_]:
            fresh = (taken[rows] != bank.code[tries][:, None]).all(axis=1)
            elsewhere = bank.prompt[rows] != bank.prompt[bank.owner[tries]]
            return fresh & elsewhere & ~bank.is_right(bank.prompt[rows], bank.code[tries])

        drawn[:, column] = draw(incorrect, allowed, rng, bank, "further incorrect choice")
        taken = np.hstack([taken, bank.code[drawn[:, [column]]]])
    return drawn
