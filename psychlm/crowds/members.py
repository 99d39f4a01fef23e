"""Who is in a crowd: each member's seed, its share of the training data and of flipped labels (Lalor 2020, 5.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What a member's seed is spent on, so that one draw does not move another.
_SUBSET, _FLIPS, _ORDER = 1, 2, 3


@dataclass(frozen=True)
class Member:
    """One model of a crowd; everything random about it comes from its own seed."""

    seed: int
    share: float = 1.0  # of the training examples, drawn without replacement, 0..1
    flipped: float = 0.0  # share of its labels that another class replaces, 0..1

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 <= self.flipped <= 1):
            raise ValueError(
                f"member {self.seed} has a share of {self.share} of the data and {self.flipped} of its labels flipped; "
                "both lie between 0 and 1, and the first above 0"
            )

    def examples(self, n: int) -> NDArray[np.int64]:
        """Return the sorted numbers of the training examples that this member learns from: share * n, at least one."""
        if self.share == 1:
            return np.arange(n)
        size = max(round(self.share * n), 1)
        return np.sort(np.random.default_rng([self.seed, _SUBSET]).choice(n, size, replace=False))

    def labels(
        self, gold: NDArray[np.int64], examples: NDArray[np.int64], classes: int
    ) -> NDArray[np.int64]:
        """Return the (n,) labels that this member sees: the gold ones, but for flipped * len(examples) of its own."""
        seen = gold.copy()
        rng = np.random.default_rng([self.seed, _FLIPS])
        at = rng.choice(examples, round(self.flipped * len(examples)), replace=False)
        seen[at] = (seen[at] + rng.integers(1, classes, len(at))) % classes
        return seen

    def order(self, epoch: int, n: int) -> NDArray[np.int64]:
        """Return a random order of n things, new in each epoch."""
        return np.random.default_rng([self.seed, _ORDER, epoch]).permutation(n)


def draw_members(
    n_models: int,
    seed: int,
    *,
    share: float | tuple[float, float] = (0.1, 1.0),
    flipped: float | tuple[float, float] = (0.0, 0.5),
) -> list[Member]:
    """Draw a crowd: uniform random shares of the training set and of flipped labels (Lalor 2020, section 5.2.4).

    Parameters
    ----------
    n_models : int
        Members. Member i is the same in every crowd of this seed, however large.
    seed : int
        Of the whole crowd.
    share, flipped : float or (low, high)
        One value for all, or the range that each member's own is drawn from. The paper does not print its ranges.
    """
    if n_models < 1:
        raise ValueError(f"a crowd needs a member at least, not {n_models}")
    members = []
    for i in range(n_models):
        rng = np.random.default_rng([seed, i])
        own = int(rng.integers(2**31))
        low, high = (share, share) if isinstance(share, float | int) else share
        size = float(rng.uniform(low, high))
        low, high = (flipped, flipped) if isinstance(flipped, float | int) else flipped
        members.append(Member(own, min(size, 1.0), float(rng.uniform(low, high))))
    return members


def batches_of_epoch(
    members: Sequence[Member],
    epoch: int,
    examples: Sequence[NDArray[np.int64]],
    batch_size: int,
    lengths: NDArray[np.int64] | None,
) -> list[NDArray[np.int64]]:
    """Return per member the (steps, batch_size) examples of its epoch, -1 where a batch is not full.

    Parameters
    ----------
    examples : sequence of (n_i,) int arrays
        What each member trains on in this epoch.
    lengths : (n,) int array, optional
        Where given, a batch holds texts of like lengths, and members whose epochs have as many steps meet like
        lengths at like steps, since a step takes as long as its longest text. Which texts share a batch is random
        within a length and a word around it.
    """
    batches = []
    for member, own in zip(members, examples, strict=True):
        order = member.order(epoch, len(own))
        steps = -(-len(own) // batch_size)
        padded = np.full(steps * batch_size, -1)
        if lengths is not None and steps > 1:
            jitter = np.random.default_rng([member.seed, _ORDER, epoch, 1]).random(len(own)) * 2
            order = order[np.argsort(lengths[own][order] + jitter, kind="stable")]
        padded[: len(own)] = own[order]
        made = padded.reshape(steps, batch_size)
        batches.append(made[_spread(steps, epoch)] if lengths is not None else made)
    return batches


def _spread(steps: int, epoch: int) -> NDArray[np.int64]:
    """Return an order of the ranks 0..steps-1 in which short and long are evenly mixed from the first step on.

    The multiples of the golden section (Weyl 1916) fill the unit interval evenly; each epoch begins elsewhere.
    """
    golden = (np.sqrt(5) - 1) / 2
    return np.argsort(np.argsort((np.arange(steps) * golden + epoch * np.sqrt(2)) % 1))
