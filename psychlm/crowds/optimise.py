"""Adam and plain gradient descent for many models at once, embeddings updated only where a batch read them.

A batch reads a few hundred of the thousands of words that a member knows, so what an embedding's update costs is set
by how many rows it touches. As in ``torch.optim.SparseAdam``, rows that were not read keep their moments and do not
move. Each member counts its own steps.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from psychlm.crowds.networks import EMBEDDING, Weights

Rule = Literal["adam", "sgd"]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Kingma & Ba 2015


class Optimiser:
    """Weights with what their updates remember; members come first on every axis."""

    def __init__(self, weights: Weights, learning_rate: float, rule: Rule = "adam") -> None:
        if rule not in ("adam", "sgd"):
            raise ValueError(f"no rule is named {rule!r}; there are 'adam' and 'sgd'")
        self.weights, self.learning_rate, self.rule = weights, learning_rate, rule
        self.steps = torch.zeros(len(weights["out.bias"]), device=weights["out.bias"].device)
        kept = weights if rule == "adam" else {}
        self.mean = {name: torch.zeros_like(value) for name, value in kept.items()}
        self.square = {name: torch.zeros_like(value) for name, value in kept.items()}

    def keep(self, members: Tensor) -> None:
        """Keep only these members, in this order."""
        self.steps = self.steps[members]
        for held in (self.weights, self.mean, self.square):
            for name in held:
                held[name] = held[name][members]

    def step(self, gradients: dict[str, Tensor], rows: Tensor | None) -> None:
        """Move the first members, as many as the gradients have.

        Parameters
        ----------
        gradients : dict
            Name -> (first members, ...); that of the embedding is (n_rows, size).
        rows : (n_rows,) int Tensor, optional
            Rows of the embedding, all members' below each other, that were read.
        """
        n = len(gradients["out.bias"])
        self.steps[:n] += 1
        for name, gradient in gradients.items():
            if name != EMBEDDING:
                rate, root = self._rates(n, gradient.ndim)
                held = [kind[name][:n] for kind in (self.weights, self.mean, self.square) if kind]
                _move(*held, gradient=gradient, rate=rate, floor=EPSILON * root)
        if rows is None or EMBEDDING not in gradients:
            return
        member = rows // self.weights[EMBEDDING].shape[1]
        tables = [
            kind[EMBEDDING].flatten(0, 1) for kind in (self.weights, self.mean, self.square) if kind
        ]
        held = [table.index_select(0, rows) for table in tables]
        rate = self._rates(n, 2)[0].index_select(0, member)
        _move(
            *held, gradient=gradients[EMBEDDING], rate=rate, floor=EPSILON
        )  # SparseAdam does not correct it
        for table, moved in zip(tables, held, strict=True):
            table.index_copy_(0, rows, moved)

    def _rates(self, n: int, axes: int) -> tuple[Tensor, Tensor]:
        """Return (n, 1, ...) sizes of the first members' steps, and roots of their second moment's correction."""
        shape = (n, *([1] * (axes - 1)))
        if self.rule == "sgd":
            one = torch.ones(shape, device=self.steps.device)
            return one * self.learning_rate, one
        steps = self.steps[:n].double().view(shape)
        root = (1 - BETA2**steps).sqrt()
        return (self.learning_rate * root / (1 - BETA1**steps)).float(), root.float()


def _move(
    weight: Tensor, *moments: Tensor, gradient: Tensor, rate: Tensor, floor: Tensor | float
) -> None:
    if not moments:
        weight.addcmul_(gradient, rate, value=-1)
        return
    mean, square = moments
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    weight.addcmul_(mean / square.sqrt().add_(floor), rate, value=-1)
