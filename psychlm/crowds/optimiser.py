"""Adam for stacked models, whose embeddings move only where a batch read them."""

from __future__ import annotations

import torch
from torch import Tensor

from psychlm.crowds.networks import EMBEDDING, Weights
from psychlm.device import float_type

# Kingma & Ba 2015
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8


class LazyAdam:
    r"""Adam for stacked models (Kingma & Ba 2015); embeddings move only where a batch read them.

    As in ``torch.optim.SparseAdam``, other rows keep their moments and stay. Members differ in
    their number of steps, and torch.optim's fused Adam with a parameter for each takes 1.7 times
    the CPU seconds at 100 members. Step t of a member is

    .. math::
        m = \beta_1 m + (1 - \beta_1) g, \quad v = \beta_2 v + (1 - \beta_2) g^2,

        w = w - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
            \frac{m}{\sqrt{v} + \epsilon}, \quad g \text{ the gradient}.
    """

    def __init__(self, weights: Weights, learning_rate: float) -> None:
        self.weights = weights
        self.learning_rate = learning_rate
        self.mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.square = {name: torch.zeros_like(value) for name, value in weights.items()}
        bias = weights["out.bias"]
        self.steps = torch.zeros(len(bias), dtype=float_type(bias.device), device=bias.device)

    def select(self, members: Tensor) -> None:
        """Keep these members of the stack, in this order."""
        self.steps = self.steps[members]
        for values in (self.weights, self.mean, self.square):
            for name in values:
                values[name] = values[name][members]

    @torch.no_grad()
    def step(self, gradients: Weights, rows: Tensor | None) -> None:
        """Move the first members of the stack, as many as the gradients have; of the embedding its
        ``rows``."""
        n = len(gradients["out.bias"])
        self.steps[:n] += 1
        root = (1 - BETA2 ** self.steps[:n]).sqrt()
        rate = self.learning_rate * root / (1 - BETA1 ** self.steps[:n])
        for name, gradient in gradients.items():
            state = [values[name] for values in (self.weights, self.mean, self.square)]
            if name == EMBEDDING and rows is not None:
                tables = [value.flatten(0, 1) for value in state]
                weight, mean, square = (table.index_select(0, rows) for table in tables)
                own_rate = rate.float()[rows // self.weights[EMBEDDING].shape[1], None]
                epsilon = torch.tensor(EPSILON)  # SparseAdam does not correct it, Adam does
            else:
                weight, mean, square = (value[:n] for value in state)
                shape = (n, *[1] * (gradient.ndim - 1))
                own_rate = rate.float().view(shape)
                epsilon = EPSILON * root.float().view(shape)
            mean.lerp_(gradient, 1 - BETA1)
            square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            weight.addcmul_(mean / square.sqrt().add_(epsilon), own_rate, value=-1)
            if name == EMBEDDING and rows is not None:
                for table, moved in zip(tables, (weight, mean, square), strict=True):
                    table.index_copy_(0, rows, moved)
