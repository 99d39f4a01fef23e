r"""Maximum-likelihood abilities on known items, in a few passes over them: for items that are answered again and again.

A model in training answers its whole training set anew at every epoch. Where slopes are known and nobody guesses, its
answers matter through one number alone, the weighted score :math:`S = \sum_j a_j x_j`, and ability is where the
expected score meets it,

.. math:: T(\theta) = \sum_j a_j P_j(\theta) = S, \qquad T'(\theta) = \sum_j a_j^2 P_j Q_j,

the test characteristic curve and the test's information (Birnbaum 1968; Lalor 2020, section 1.3.7). T rises
everywhere, so Fisher scoring finds the one root. Items with equal parameters are pooled: T cannot tell them apart.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from psychlm.frames import FrameError, format_names
from psychlm.irt import scoring

BLOCK_CELLS = 2**21  # probabilities held at once: 16 MiB


class KnownItems:
    """Items whose parameters are known, made ready to score many persons, many times.

    Parameters
    ----------
    items : DataFrame, indexed by item
        ``a`` (slope, per logit), ``b`` (difficulty, logits) and optionally ``c`` (guessing), as ``IRTFit.items``.

    Raises
    ------
    FrameError
        If a column is missing, an item stands twice, or a parameter is not finite.
    """

    def __init__(self, items: pd.DataFrame) -> None:
        self.items = _checked(items)
        pooled = self.items.groupby(["a", "b"], sort=False).size()
        distinct = pooled.index.to_frame().to_numpy()
        self._slope, self._difficulty = (torch.tensor(column) for column in distinct.T)
        self._count = torch.tensor(pooled.to_numpy(float))
        self._weights = self.items["a"].to_numpy()

    def ability(self, correct: np.ndarray, persons: pd.Index | None = None) -> pd.DataFrame:
        """Return maximum-likelihood abilities and their standard errors, in logits.

        Parameters
        ----------
        correct : ndarray, shape (n_persons, n_items)
            Whether each answer is right; items in the order of ``items``.
        persons : Index, optional
            The persons' names; numbered from 0 unless given.

        Returns
        -------
        DataFrame, indexed by person
            ``theta`` and ``se``, as ``irt.score(..., method="ml")`` gives them: theta is infinite, and se NaN, for who
            got everything right, or everything wrong. Items with guessing go through that function.

        Raises
        ------
        FrameError
            If the answers do not have one column an item.
        """
        correct = np.atleast_2d(np.asarray(correct, dtype=bool))
        if correct.shape[1] != len(self.items):
            raise FrameError(
                f"answers to {correct.shape[1]} items, and {len(self.items)} items are known; align them"
            )
        names = (
            pd.RangeIndex(len(correct), name="person")
            if persons is None
            else persons.rename("person")
        )
        if (self.items["c"] > 0).any():
            frame = pd.DataFrame(correct.astype(float), names, self.items.index)
            return scoring.score(self.items, frame, "ml")
        table = self._ability(torch.tensor(np.stack([row @ self._weights for row in correct])))
        return pd.DataFrame(table.numpy(), index=names, columns=["theta", "se"])

    def _ability(self, scores: Tensor) -> Tensor:
        """Return (n_persons, 2): where the expected score meets each score, and the inverse root of information."""
        total = self._slope * self._count
        lowest, highest = total.clamp(max=0).sum(), total.clamp(min=0).sum()
        within = 1e-9 * (highest - lowest)  # sums of the same slopes in another order
        low, high = scores <= lowest + within, scores >= highest - within
        finite = ~(low | high)

        def ascent(ability: Tensor) -> tuple[Tensor, Tensor]:
            expected, information = self._curve(ability)
            return torch.where(finite, scores - expected, 0.0), torch.where(
                finite, information, 1.0
            )

        share = ((scores - lowest) / (highest - lowest)).clamp(0.01, 0.99)
        steepness = (total.abs().sum() / self._count.sum()).clamp(min=1e-3)
        start = (
            self._difficulty * self._count
        ).sum() / self._count.sum() + share.logit() / steepness
        ability = scoring._climb(ascent, start)
        se = self._curve(ability)[1].rsqrt()
        endless = high.to(ability.dtype) - low.to(ability.dtype)
        return torch.stack(
            [torch.where(finite, ability, endless * torch.inf), torch.where(finite, se, torch.nan)],
            dim=1,
        )

    def _curve(self, ability: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected weighted score and the information at each ability, (n_persons,) each."""
        expected, information = torch.zeros_like(ability), torch.zeros_like(ability)
        width = max(1, BLOCK_CELLS // len(ability))
        for start in range(0, len(self._slope), width):
            part = slice(start, start + width)
            slope, weight = self._slope[part], self._slope[part] * self._count[part]
            p = torch.sigmoid((ability[:, None] - self._difficulty[part]).mul_(slope))
            expected += p @ weight
            information += (p - p.square()) @ (weight * slope)
        return expected, information


def _checked(items: pd.DataFrame) -> pd.DataFrame:
    missing = [column for column in ("a", "b") if column not in items]
    if missing:
        raise FrameError(f"known items need the columns {missing}; they have {list(items.columns)}")
    if items.index.has_duplicates:
        raise FrameError(
            f"items {format_names(items.index[items.index.duplicated()])} stand more than once; keep one of each"
        )
    table = items.reindex(columns=["a", "b", "c"], fill_value=0.0).astype(float)
    unknown = ~np.isfinite(table.to_numpy()).all(axis=1)
    if unknown.any():
        raise FrameError(
            f"{unknown.sum()} of {len(table)} items {format_names(table.index[unknown])} have parameters that are missing or "
            "infinite; leave them out, or fit them with a prior"
        )
    return table
