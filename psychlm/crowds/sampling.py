"""Members of a crowd: seed, training examples, label noise and batches (Lalor 2020, 5.2.4).

Everything random about a member comes from its own seed: it is the same in any crowd, on any
machine, in whatever order the crowd is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Each use of a member's seed has its own stream, so that one draw does not move another.
EXAMPLES = 1
NOISE = 2
ORDER = 3
GOLDEN_SECTION = (np.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Member:
    """One model of a crowd."""

    seed: int  # of the initial weights, the examples, the noise and the order of the batches
    train_fraction: float = 1.0  # share of the training examples, drawn without replacement
    label_noise: float = 0.0  # share of these whose label is replaced by another class

    def __post_init__(self) -> None:
        if not (0 < self.train_fraction <= 1 and 0 <= self.label_noise <= 1):
            raise ValueError(
                f"member {self.seed} has train_fraction={self.train_fraction} and "
                f"label_noise={self.label_noise}; both lie between 0 and 1, the first above 0"
            )

    def examples(self, n: int) -> NDArray[np.int64]:
        """Return the sorted numbers of this member's examples: train_fraction * n, at least one."""
        if self.train_fraction == 1:
            return np.arange(n)
        size = max(round(self.train_fraction * n), 1)
        rng = np.random.default_rng([self.seed, EXAMPLES])
        return np.sort(rng.choice(n, size, replace=False))

    def noisy_labels(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Return the (n,) labels that this member sees, some of its own examples' replaced."""
        examples = self.examples(len(labels))
        rng = np.random.default_rng([self.seed, NOISE])
        replaced = rng.choice(examples, round(self.label_noise * len(examples)), replace=False)
        noisy = labels.copy()
        # Adding 1 to classes - 1, modulo classes, reaches every class but the right one.
        noisy[replaced] = (noisy[replaced] + rng.integers(1, classes, len(replaced))) % classes
        return noisy

    def batches(
        self,
        examples: NDArray[np.int64],
        epoch: int,
        batch_size: int,
        lengths: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return the (steps, batch_size) examples of one epoch, counted from 1, -1 where a batch is
        not full.

        With ``lengths``, the words of every training text, a batch holds texts of similar length,
        and members meet similar lengths at the same step, which takes as long as its longest text.
        """
        n_steps = -(-len(examples) // batch_size)
        order = np.random.default_rng([self.seed, ORDER, epoch]).permutation(len(examples))
        if lengths is not None and n_steps > 1:
            # Sort by length with a random jitter, so that the neighbours differ between epochs.
            jitter = np.random.default_rng([self.seed, ORDER, epoch, 1]).random(len(examples)) * 2
            order = order[np.argsort(lengths[examples][order] + jitter, kind="stable")]
        batches = np.full((n_steps, batch_size), -1)
        batches.ravel()[: len(examples)] = examples[order]
        if lengths is None:
            return batches
        # Mix short and long: multiples of the golden section fill the unit interval evenly (Weyl
        # 1916), so their ranks are an order in which every stretch holds batches of all lengths.
        position = (np.arange(n_steps) * GOLDEN_SECTION + epoch * np.sqrt(2)) % 1
        return batches[np.argsort(np.argsort(position))]


def draw_members(
    n_models: int,
    seed: int,
    *,
    train_fraction: float | tuple[float, float] = (0.1, 1.0),
    label_noise: float | tuple[float, float] = (0.0, 0.5),
) -> list[Member]:
    """Draw members with uniform shares of the training data and of label noise (Lalor 2020, 5.2.4).

    Parameters
    ----------
    n_models : int
        Number of members. Member i is the same in every crowd of one seed, however large.
    seed : int
        Of the whole crowd.
    train_fraction, label_noise : float or (low, high)
        One value for all members, or the range from which each draws its own. The paper does not
        print its ranges.

    Examples
    --------
    >>> draw_members(2, seed=0, train_fraction=0.5, label_noise=0.0)[0].train_fraction
    0.5
    """
    if n_models < 1:
        raise ValueError(f"n_models is {n_models}; a crowd has at least one member")
    ranges = [np.broadcast_to(bounds, 2) for bounds in (train_fraction, label_noise)]
    members = []
    for i in range(n_models):
        rng = np.random.default_rng([seed, i])
        own_seed = int(rng.integers(2**31))
        fraction, noise = (float(rng.uniform(low, high)) for low, high in ranges)
        members.append(Member(own_seed, min(fraction, 1.0), noise))
    return members
