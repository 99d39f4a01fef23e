r"""Response functions: one class for each form of item, and the models that are made of them.

.. math::
    \text{logistic:}\quad & P(x = 1) = c + (u - c)\,\sigma(a\theta + d) \\
    \text{graded:}\quad & P(x \ge k) = \sigma(a\theta + d_k), \qquad d_1 > d_2 > \dots \\
    \text{gpcm:}\quad & \log P(x = k) / P(x = k - 1) = a\theta + d_k \\
    \text{nominal:}\quad & \log P(x = k) / P(x = 0) = a_k\theta + d_k

(Birnbaum 1968, Barton & Lord 1981; Samejima 1969; Muraki 1992; Bock 1972); difficulties are
:math:`b_k = -d_k / a`. **To add a model** is to add a class here and to name it in ``MODELS``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.frames import FrameError, refuse
from psychlm.irt.arrays import (
    device_of,
    host,
    log_sigmoid,
    log_softmax,
    namespace,
    on_device,
    sigmoid,
    sigmoids,
    zeros,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from psychlm.irt.response_matrix import Block

KINDS = ("slope", "intercept", "guessing", "upper")  # that can be equal, free or have priors
# names of a, b, d, c and u in tables of items, those of other programs last
COLUMNS = (("a",), ("b",), ("d",), ("c", "g", "guessing"), ("u", "upper"))
ASYMPTOTES = {2: "c", 3: "u"}  # number of the kind, and the column of a table of items
AGREEMENT = 1e-3  # logits, relative to the size of slope and intercept: tables of three decimals
ABSENT = -1000.0  # logits, times k: threshold k of an item that has fewer of them
SMALLEST_P = 1e-100
SPREAD = 1.2  # the spread of ability makes proportions less extreme than curves at ability 0


@dataclass(frozen=True)
class ResponseFunction(ABC):
    """Items of one form. A new form needs what is abstract here; the derivatives follow."""

    values: Tensor  # (n_rows, n_items), or with values of their own at every theta as third axis
    name: ClassVar[str]
    dichotomous: ClassVar[bool] = False
    ordered: ClassVar[bool] = True  # whether higher categories mean a higher ability

    @abstractmethod
    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log P of every category at theta, (n_theta,) or by item; (n_items, n_cat, n)."""

    @classmethod
    @abstractmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of parameters of a table such as ``IRTFit.items``."""

    @classmethod
    def of_table(cls, items: pd.DataFrame) -> Self:
        """Return the items of a table such as ``IRTFit.items``."""
        return cls(on_device(cls.rows_of(items), "cpu"))

    @classmethod
    @abstractmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the rows of parameters by item: NaN where they are free, else their values.

        ``free`` says which asymptotes the model estimates, ``given`` holds fixed ones (or NaN).
        """

    @classmethod
    @abstractmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return rows of parameters from counts of the categories, (n_categories, n_items).

        ``asymptotes`` are the lower and the upper one to begin with, where they are free.
        """

    @classmethod
    def turned(cls, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return rows to begin with whose slopes have the sign of what persons answered.

        It is the sign of the item's agreement with the sum of the others. ``codes`` are numbers of
        categories, (n_persons, n_items), NaN where not asked.
        """
        centred = np.nan_to_num(codes - np.nanmean(codes, axis=0))
        rest = centred.sum(axis=1, keepdims=True) - centred
        table[0] *= np.where((centred * rest).sum(axis=0) < 0, -1.0, 1.0)
        return table

    @classmethod
    @abstractmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return parameters and standard errors from rows and their covariances by item."""

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return the number in KINDS of every row of parameters."""
        return [min(row, 1) for row in range(n_rows)]

    @classmethod
    def n_rows(cls, fixed: np.ndarray) -> int:
        """Return how many rows of parameters the curves need, of which ``fixed`` are given."""
        return len(fixed)

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return the names of the rows of parameters in a covariance matrix."""
        return ["a", *(f"d{k}" for k in range(1, n_rows))]

    @classmethod
    def takes_arrays(cls) -> bool:
        """Whether NumPy may compute: derivatives are closed forms, not torch's."""
        forms = [model.form for model in getattr(cls, "models", ())] or [cls]
        return all(form.scores is not ResponseFunction.scores for form in forms)

    @classmethod
    def of_columns(cls, item: np.ndarray) -> type[ResponseFunction]:
        """Return the form of columns of parameters, each of the item with this number."""
        return cls

    @property
    def by_theta(self) -> Tensor:
        """Values with an axis for abilities, (n_rows, n_items, n_theta or 1)."""
        return self.values if self.values.ndim == 3 else self.values[..., None]

    @property
    def steepness(self) -> Tensor:
        """The largest slope of every item, of either sign, (n_items,)."""
        kinds = self.row_kinds(len(self.values))
        slopes = [abs(row) for row, kind in zip(self.values, kinds, strict=True) if kind == 0]
        return reduce(namespace(self.values).maximum, slopes)

    @property
    def present(self) -> np.ndarray:
        """Which parameters an item has, bool (n_rows, n_items); asymptotes are none here."""
        return host(self.values) > ABSENT / 2

    def of_items(self, chosen: np.ndarray | slice) -> Self:
        """Return some of the items, by their numbers."""
        return replace(self, values=self.values[:, chosen])

    def to(self, device: torch.device) -> Self:
        """Return the items on a device."""
        return replace(self, values=self.values.to(device))

    def probability_at(self, theta: ArrayLike) -> np.ndarray:
        """Return the probability of every category, (n_items, n_categories, n_theta)."""
        return self.log_probability(abilities(theta)).exp().numpy()

    def information_at(self, theta: ArrayLike) -> np.ndarray:
        """Return the Fisher information about ability, (n_theta, n_items), in 1 / logit^2."""
        return self.information(abilities(theta)).numpy()

    def scores(self, theta: Tensor) -> Tensor:
        """Return the derivatives of log P by the parameters, (n_rows, n_items, n_cat, n_theta)."""
        values = self.values[..., None].expand(-1, -1, len(theta)).clone().requires_grad_()
        log_p = replace(self, values=values).log_probability(theta)
        xp = namespace(values)
        by_category = [
            xp.autograd.grad(x.sum(), values, retain_graph=True)[0] for x in log_p.unbind(1)
        ]
        return xp.stack(by_category, 2)

    def expected_answers(self, block: Block, weights: Tensor, theta: Tensor) -> Any:
        """Return what an M-step needs of answers, given persons' weights at theta.

        They are expected counts, (n_items, n_categories, n_theta), unless a form needs fewer sums;
        the three methods that follow take them.
        """
        return block.expected_by_category(weights)

    def expected_loglik(self, counts: Any, theta: Tensor) -> Tensor | None:
        """Return sum(counts log P), (n_items,); None: no step of Newton's method needs a check."""
        return (counts * self.log_probability(theta)).sum((1, 2))

    def gradient(self, counts: Any, theta: Tensor) -> Tensor:
        """Return first derivatives of sum(counts log P) by the parameters, (n_rows, n_items)."""
        return (counts * self.scores(theta)).sum((2, 3))

    def expected_derivatives(self, counts: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient, and an information (n_rows, n_rows, n_items) for steps uphill."""
        return self.gradient(counts, theta), -self.curvature(theta, counts)

    def contrasts(self, theta: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return :meth:`scores` of the lowest category, and by how much the others' differ.

        They are (n_rows, n_items, n_theta), of which n_items may be 1 where all items are alike.
        """
        scores = self.scores(theta)
        lowest = scores[:, :, 0]
        return lowest, [scores[:, :, k] - lowest for k in range(1, scores.shape[2])]

    def curvature(self, theta: Tensor, counts: Tensor) -> Tensor:
        """Return second derivatives of sum(counts log P) by the parameters, (n_rows, n_rows, n)."""
        xp = namespace(theta)
        values = self.values.clone().requires_grad_()
        total = (counts * replace(self, values=values).log_probability(theta)).sum()
        first = xp.autograd.grad(total, values, create_graph=True)[0]
        rows = [xp.autograd.grad(row.sum(), values, retain_graph=True)[0] for row in first]
        return xp.stack(rows)

    def by_ability(self, theta: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return first and second derivatives of sum(counts log P) by theta, (n_items, n).

        ``counts`` are those of answers by item, category and theta.
        """
        theta = theta.expand(self.values.shape[1], -1).clone().requires_grad_()
        total = (counts * self.log_probability(theta)).sum()
        grad = namespace(theta).autograd.grad
        first = grad(total, theta, create_graph=True)[0]
        return first.detach(), grad(first.sum(), theta)[0]

    def information(self, theta: Tensor) -> Tensor:
        """Return the Fisher information about ability, (n_theta, n_items), in 1 / logit^2.

        It is the expected square of the derivative of log P by ability, which is that by an
        intercept times the slope that goes with it.
        """
        moves = self.rescaled(1.0, 1.0).values - self.values
        by_ability = (moves[:, :, None, None] * self.scores(theta)).sum(0)
        return (self.log_probability(theta).exp() * by_ability**2).sum(1).T

    def levels(self, items: pd.Index) -> dict:
        """Return the numbers 0, 1, 2, ... of every item's categories."""
        values = self.values.numpy()
        steps = [row for row, kind in enumerate(self.row_kinds(len(values))) if kind == 1]
        n_steps = (values[steps] > ABSENT / 2).sum(axis=0).tolist()
        return {item: list(range(n + 1)) for item, n in zip(items, n_steps, strict=True)}

    def rescaled(self, mean: float, sd: float) -> Self:
        """Return the same curves on a scale on which N(mean, sd^2) has become N(0, 1)."""
        values = self.values + 0.0
        kinds = self.row_kinds(len(values))
        slopes, intercepts = ([row for row, k in enumerate(kinds) if k == kind] for kind in (0, 1))
        values[intercepts] += values[slopes] * mean
        values[slopes] *= sd
        return replace(self, values=values)


def abilities(theta: ArrayLike) -> Tensor:
    """Return abilities as a tensor, (n_theta,)."""
    return on_device(np.atleast_1d(np.asarray(theta, float)), "cpu")


def difficulties(values: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return b = -d / a by intercept and item, and standard errors by the delta method.

    Row 0 holds slopes, the others intercepts. db = -(dd + b da) / a; the error is NaN where the
    variance is unknown or not positive.
    """
    rows = range(1, len(values))
    with np.errstate(divide="ignore", invalid="ignore"):
        b = -np.where(values[1:] > ABSENT / 2, values[1:], np.nan) / values[0]
        of_d = covariance[:, rows, rows].T
        variance = of_d + 2 * b * covariance[:, 0, rows].T + b**2 * covariance[:, 0, 0]
        return b, np.sqrt(np.where(variance >= 0, variance, np.nan)) / np.abs(values[0])


class Dichotomous(ResponseFunction):
    """Items of two categories; the rows are slope, intercept, lower and upper asymptote."""

    dichotomous = True

    @classmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of a table with a, and d or b, and perhaps c and u."""
        return np.stack(four_parameters(items))

    @classmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return NaN for slopes and intercepts, and asymptotes that are not free."""
        result = np.full((4, len(n_categories)), np.nan)
        for row, absent in ((2, 0.0), (3, 1.0)):
            name = KINDS[row]
            value = given.get(name, result[row])
            result[row] = np.where(np.isnan(value) & ~free[name], absent, value)
        return result

    @classmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return slopes of 1, and intercepts from proportions correct, less the asymptotes."""
        table = fixed.copy()
        table[0] = 1.0
        table[2:] = np.where(np.isnan(fixed[2:]), np.array(asymptotes)[:, None], fixed[2:])
        low, high = table[2:]
        share = (counts[1] + 0.5) / (counts.sum(0) + 1)
        between = ((share - low) / (high - low)).clip(0.02, 0.98)
        share = np.where((low > 0) | (high < 1), between, share)
        table[1] = SPREAD * np.log(share / (1 - share))
        return table

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return the numbers of slope, intercept, guessing and upper asymptote in KINDS."""
        return list(range(n_rows))

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return the names of the estimates."""
        return ["a", "d", "c", "u"][:n_rows]

    @classmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return a, b, c, d, and u if an upper asymptote is below 1, with standard errors."""
        b, se_b = difficulties(values[:2], covariance)
        with np.errstate(invalid="ignore"):  # a negative variance becomes NaN
            error = np.sqrt(covariance.diagonal(axis1=1, axis2=2).T)
        a, d, c, u = values
        parameters = {"a": a, "b": b[0], "c": c, "d": d}
        errors = {"se_a": error[0], "se_b": se_b[0], "se_c": error[2], "se_d": error[1]}
        if (u < 1).any():
            parameters["u"] = u
            errors["se_u"] = error[3]
        return pd.DataFrame(parameters | errors)


@dataclass(frozen=True)
class Logistic(Dichotomous):
    """Logistic curves. The last rows may be lacking: lower asymptotes are then 0, upper ones 1."""

    name = "logistic"

    @classmethod
    def n_rows(cls, fixed: np.ndarray) -> int:
        """Return 2 without asymptotes, 3 without upper ones, and else 4."""
        low, high = fixed[2:]
        return 4 if (high != 1).any() else 3 if (low != 0).any() else 2

    @property
    def slope(self) -> Tensor:
        """Slopes, (n_items,), per logit or per standard deviation of ability."""
        return self.values[0]

    @property
    def guessing(self) -> Tensor:
        """Lower asymptotes, (n_items,)."""
        return self.values[2] if len(self.values) > 2 else 0 * self.values[0]

    @property
    def asymptotes(self) -> tuple[Tensor, Tensor]:
        """Lower and upper asymptotes with an axis for abilities."""
        low = self.by_theta[2]
        return low, self.by_theta[3] if len(self.values) > 3 else 0 * low + 1

    def logits(self, theta: Tensor) -> Tensor:
        """Return z at theta, (n_items, n_theta)."""
        return self.by_theta[0] * theta + self.by_theta[1]

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log(1 - P) and log P; neither P nor 1 - P rounds to 0."""
        xp = namespace(theta)
        z = self.logits(theta)
        log_q = log_sigmoid(-z)
        log_p = log_q + z
        if len(self.values) == 2:
            return xp.stack([log_q, log_p], 1)
        # Where an asymptote is 0 or 1 its sum is not taken, but has derivatives, which are numbers.
        c, u = self.asymptotes
        from_below = xp.log(xp.where(c > 0, c, 1.0) + (u - c) * xp.exp(log_p))
        log_p = xp.where(c > 0, from_below, xp.log(u) + log_p)
        if len(self.values) == 3:
            return xp.stack([xp.log1p(-c) + log_q, log_p], 1)
        from_above = xp.log(xp.where(u < 1, 1 - u, 1.0) + (u - c) * xp.exp(log_q))
        return xp.stack([xp.where(u < 1, from_above, xp.log1p(-c) + log_q), log_p], 1)

    def first_derivatives(self, theta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return derivatives of log Q, then of log P, by the logit, c and u: as many as rows tell.

        P = c + (u - c) s(z), with s the logistic function, and Q = (1 - u) + (u - c) (1 - s).
        """
        xp = namespace(theta)
        s, rest = sigmoids(self.logits(theta))
        if len(self.values) == 2:
            return [-s], [rest]
        # Far below a steep item's difficulty P and a person's weight vanish; 1 / P stays finite.
        c, u = self.asymptotes
        p = (c + (u - c) * s).clip(SMALLEST_P)
        p_c = rest / p
        if len(self.values) == 3:
            return [-s, xp.broadcast_to(-1 / (1 - c), s.shape)], [(1 - c) * s * p_c, p_c]
        q = (1 - u + (u - c) * rest).clip(SMALLEST_P)
        p_u = xp.where(c > 0, s / p, 1 / u)
        q_c = -xp.where(u < 1, rest / q, 1 / (1 - c))
        return [(u - c) * s * q_c, q_c, -s / q], [(u - c) * rest * p_u, p_c, p_u]

    def expected_answers(self, block: Block, weights: Tensor, theta: Tensor) -> Any:
        """Return expected counts; without asymptotes two sums over correct responses suffice.

        These are the sums of abilities and of ones, (2, n_items), beside all responses at theta.
        """
        if len(self.values) > 2:
            return super().expected_answers(block, weights, theta)
        powers = namespace(theta).stack([theta, theta**0], 1)
        return (block.correct.T @ (weights @ powers)).T, block.answers_at(weights)

    def expected_loglik(self, counts: Any, theta: Tensor) -> Tensor | None:
        """Return sum(counts log P), (n_items,); None without asymptotes, where it is concave."""
        return super().expected_loglik(counts, theta) if len(self.values) > 2 else None

    def gradient(self, counts: Any, theta: Tensor) -> Tensor:
        """Return first derivatives of sum(counts log P) by the parameters, (n_rows, n_items)."""
        if len(self.values) > 2:
            return super().gradient(counts, theta)
        sums, answered = counts
        powers = namespace(theta).stack([theta, theta**0], 1)
        return sums - ((sigmoid(self.logits(theta)) * answered) @ powers).T

    def expected_derivatives(self, counts: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient, and the expected information, which is positive definite."""
        xp = namespace(theta)
        if len(self.values) == 2:
            sums, answered = counts
            one = xp.ones_like(theta)
            p = sigmoid(self.logits(theta))
            expected = p * answered
            gradient = sums - (expected @ xp.stack([theta, one], 1)).T
            expected *= 1 - p
            squares = xp.stack([theta**2, theta, theta, one], 1)
            return gradient, (expected @ squares).T.reshape(2, 2, -1)
        # That of one answer is P' P' / (P Q): minus a derivative of log Q times one of log P.
        of_wrong, of_correct = self.first_derivatives(theta)
        wrong, correct = counts.swapaxes(0, 1)
        answered = wrong + correct
        by_logit, *others = (
            wrong * q + correct * p for q, p in zip(of_wrong, of_correct, strict=True)
        )
        gradient = xp.stack([by_logit @ theta, *(each.sum(1) for each in (by_logit, *others))])
        pairs = combinations_with_replacement(range(len(of_wrong)), 2)
        cells = {(i, j): -of_wrong[i] * answered * of_correct[j] for i, j in pairs}
        return gradient, item_matrices(cells, theta)

    def scores(self, theta: Tensor) -> Tensor:
        """Return the derivatives of log P by the parameters, (n_rows, n_items, n_cat, n_theta)."""
        xp = namespace(theta)
        by_category = [
            xp.stack([by_logit * theta, by_logit, *others])
            for by_logit, *others in self.first_derivatives(theta)
        ]
        return xp.stack(by_category, 2)

    def contrasts(self, theta: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return scores of wrong answers, and by how much those of correct ones differ."""
        if len(self.values) > 2:
            return super().contrasts(theta)
        xp = namespace(theta)
        powers = xp.stack([theta, xp.ones_like(theta)])[:, None]  # answers differ in their logit
        return -sigmoid(self.logits(theta)) * powers, [powers]

    def curvature(self, theta: Tensor, counts: Tensor) -> Tensor:
        """Return second derivatives of sum(counts log P) by the parameters, (n_rows, n_rows, n)."""
        s, rest = sigmoids(self.logits(theta))
        if len(self.values) == 2:  # those of a logit do not depend on the answer
            return item_matrices({(0, 0): -counts.sum(1) * s * rest}, theta)
        cells: dict[tuple[int, int], Any] = {}
        for first, n in zip(self.first_derivatives(theta), counts.swapaxes(0, 1), strict=True):
            # Second derivatives of P, over P: by logit twice, and by logit and c, or u.
            bend = {(0, 0): first[0] * (rest - s)}
            if len(first) > 1:
                bend[0, 1] = -s * first[1]
            if len(first) > 2:
                bend[0, 2] = rest * first[2]
            for i, j in combinations_with_replacement(range(len(first)), 2):
                second = bend.get((i, j), 0.0) - first[i] * first[j]
                cells[i, j] = cells.get((i, j), 0.0) + n * second
        return item_matrices(cells, theta)


def item_matrices(cells: Mapping[tuple[int, int], Tensor], theta: Tensor) -> Tensor:
    """Return matrices by slope, intercept, c and u summed over theta, (n_rows, n_rows, n_items).

    ``cells`` are their entries (n_items, n_theta) by pairs of the logit (0), c (1) and u (2).
    """
    xp = namespace(theta)
    n_rows = 1 + max(j for _, j in cells) + 1
    one = xp.ones_like(theta)
    variables = [(0, theta), (0, one), (1, one), (2, one)][:n_rows]
    columns = [
        [cells[min(i, j), max(i, j)] @ (by_one * by_other) for j, by_other in variables]
        for i, by_one in variables
    ]
    return xp.stack([xp.stack(column) for column in columns])


def summed_products(scores: Tensor, weights: Tensor) -> Tensor:
    """Return sums of scores times scores with weights, (n_rows, n_rows, n_items).

    ``scores`` are (n_rows, n_items, n_cat, n_theta), ``weights`` (n_items, n_cat, n_theta).
    """
    xp = namespace(scores)
    n_rows, n_items = scores.shape[:2]
    by_item = xp.moveaxis(scores, 1, 0).reshape(n_items, n_rows, -1)
    weighted = by_item * weights.reshape(n_items, 1, -1)
    return xp.moveaxis(by_item @ weighted.swapaxes(1, 2), 0, 2)


class MultinomialLogit(ResponseFunction):
    """Items of which log P of category k is z_k less a constant, with z linear in the rows."""

    @staticmethod
    @abstractmethod
    def loadings(n_rows: int) -> np.ndarray:
        """Return the derivatives of z by the rows at ability 1, (n_categories, n_rows)."""

    def terms(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loadings, and theta for slopes and 1 for intercepts, (n_rows, 1, n_theta).

        Where abilities differ between items the latter are (n_rows, n_items, n_theta).
        """
        n_rows = len(self.values)
        is_slope = on_device(np.array(self.row_kinds(n_rows)) == 0, device_of(theta))
        powers = namespace(theta).where(is_slope[:, None, None], theta, 1.0)
        return on_device(self.loadings(n_rows), device_of(theta)), powers

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log shares of exp(z)."""
        loadings, powers = self.terms(theta)
        z = namespace(theta).tensordot(loadings, self.by_theta * powers, 1)
        return log_softmax(z, 0).swapaxes(0, 1)

    def scores(self, theta: Tensor) -> Tensor:
        """Return the derivatives of log P by the parameters, (n_rows, n_items, n_cat, n_theta).

        They are those of z less their expectation over the categories.
        """
        loadings, powers = self.terms(theta)
        p = namespace(theta).exp(self.log_probability(theta)).swapaxes(0, 1)
        expected = namespace(theta).tensordot(loadings.T, p, 1)
        return (loadings.T[:, None, :, None] - expected[:, :, None]) * powers[:, :, None]

    def curvature(self, theta: Tensor, counts: Tensor) -> Tensor:
        """Return second derivatives of sum(counts log P) by the parameters, (n_rows, n_rows, n).

        Those of log P are alike in all categories: minus the expected products of scores.
        """
        weights = namespace(theta).exp(self.log_probability(theta)) * counts.sum(1)[:, None]
        return -summed_products(self.scores(theta), weights)


class OrderedCategories(ResponseFunction):
    """Items with several categories in an order: slope and one intercept for each step."""

    start_slope: ClassVar[float] = 1.0
    falling: ClassVar[bool] = False  # whether each intercept must lie below the one before it
    flaw = "have intercepts d1, d2, ... that do not fall (b1, b2, ... rise where a is positive)"

    @staticmethod
    @abstractmethod
    def steps(count: np.ndarray) -> np.ndarray:
        """Return intercepts to begin with from the counts of an item's categories."""

    @classmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of a table with a and d1, d2, ... (or b1, b2, ...)."""
        names = list(items) if isinstance(items, pd.DataFrame) else []
        found = [re.fullmatch(r"[bd](\d+)", str(name)) for name in names]
        steps = range(1, max((int(match[1]) for match in found if match), default=0) + 1)
        if "a" not in names or not steps:
            raise FrameError(f"{cls.name} items need the columns a and d1, d2, ... (or b1, b2)")
        a = items["a"].to_numpy(float)
        b, d = (
            items.reindex(columns=[f"{symbol}{k}" for k in steps]).to_numpy(float).T
            for symbol in "bd"
        )
        with np.errstate(invalid="ignore"):  # flat items have infinite difficulties
            apart = np.abs(d + a * b) > AGREEMENT * (1 + np.abs(a) + np.abs(d))
            flaw = "have a b1, b2, ... and a d1, d2, ... that disagree: d should be -a b"
            refuse("items", items.index[(apart & np.isfinite(b)).any(axis=0)], f"{flaw}; drop one")
            d = np.where(np.isnan(d), -a * b, d)
        absent = np.isnan(d)
        refuse(
            "items",
            items.index[absent[0] | (absent[:-1] & ~absent[1:]).any(axis=0)],
            "lack a step before their last one; number steps from 1, without gaps",
        )
        refuse("items", items.index[(cls.falling & (d[1:] > d[:-1])).any(axis=0)], cls.flaw)
        return np.vstack([a, np.where(absent, ABSENT * np.arange(1, len(d) + 1)[:, None], d)])

    @classmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return NaN for slopes and for the steps that an item has."""
        refuse_asymptotes(cls.name, given)
        steps = np.arange(1, n_categories.max())[:, None]
        steps = np.where(steps < n_categories, np.nan, ABSENT * steps)
        return np.vstack([np.full(len(n_categories), np.nan), steps])

    @classmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return intercepts from the counts of the categories."""
        table = fixed.copy()
        table[0] = cls.start_slope
        for j, n_steps in enumerate(np.isnan(fixed[1:]).sum(0)):
            table[1 : n_steps + 1, j] = cls.steps(counts[: n_steps + 1, j] + 0.5)
        return table

    @classmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return a, b1, b2, ..., d1, d2, ... and their standard errors; NaN for absent steps."""
        b, se_b = difficulties(values, covariance)
        d = np.where(values[1:] > ABSENT / 2, values[1:], np.nan)
        error = np.sqrt(covariance.diagonal(axis1=1, axis2=2).T)
        steps = range(1, len(values))
        columns = {"a": values[0]} | {f"b{k}": b[k - 1] for k in steps}
        columns |= {f"d{k}": d[k - 1] for k in steps} | {"se_a": error[0]}
        columns |= {f"se_b{k}": se_b[k - 1] for k in steps} | {f"se_d{k}": error[k] for k in steps}
        return pd.DataFrame(columns)


@dataclass(frozen=True)
class Graded(OrderedCategories):
    """Samejima's graded response model."""

    name = "graded"
    falling = True

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log differences of neighbouring logistic curves."""
        xp = namespace(theta)
        values = self.by_theta
        d = values[1:]
        z = values[0] * theta + d
        # s(x) - s(y) = s(x) s(-y) (1 - exp(y - x)): nothing cancels
        between = xp.log1p(-xp.exp(d[1:] - d[:-1]))
        none = 0 * d[:1]
        certain = 0 * z[:1]
        above = xp.concatenate([certain, log_sigmoid(z)])
        below = xp.concatenate([log_sigmoid(-z), certain])
        return (above + below + xp.concatenate([none, between, none])).swapaxes(0, 1)

    def scores(self, theta: Tensor) -> Tensor:
        """Return the derivatives of log P by the parameters, (n_rows, n_items, n_cat, n_theta).

        With s(z_k) between categories k - 1 and k, they are s'(z_k) / P of k, and minus that of
        k - 1.
        """
        xp = namespace(theta)
        z = self.by_theta[0] * theta + self.by_theta[1:]
        log_density = log_sigmoid(z) + log_sigmoid(-z)
        log_p = self.log_probability(theta).swapaxes(0, 1)
        step = np.arange(len(z))
        by_step = zeros(z, len(z), z.shape[1], len(log_p), len(theta))
        by_step[step, :, step + 1] = xp.exp(log_density - log_p[1:])
        by_step[step, :, step] = -xp.exp(log_density - log_p[:-1])
        return xp.concatenate([by_step.sum(0)[None] * theta, by_step])

    def curvature(self, theta: Tensor, counts: Tensor) -> Tensor:
        """Return second derivatives of sum(counts log P) by the parameters, (n_rows, n_rows, n).

        Those of P, over P, are (1 - 2 s(z_k)) times the first ones, each by one step alone.
        """
        scores = self.scores(theta)
        below, above = sigmoids(self.by_theta[0] * theta + self.by_theta[1:])
        bend = (above - below) * (scores[1:] * counts).sum(2)  # (n_steps, n_items, n_theta)
        result = -summed_products(scores, counts)
        step = np.arange(1, len(scores))
        result[0, 0] += bend.sum(0) @ theta**2
        result[0, 1:] += bend @ theta
        result[1:, 0] += bend @ theta
        result[step, step] += bend.sum(2)
        return result

    @staticmethod
    def steps(count: np.ndarray) -> np.ndarray:
        """Return logits of answering in this category or above."""
        above = count[::-1].cumsum()[::-1]
        return SPREAD * np.log(above[1:] / (above[0] - above[1:]))


@dataclass(frozen=True)
class PartialCredit(MultinomialLogit, OrderedCategories):
    """Muraki's generalised partial credit model."""

    name = "gpcm"
    start_slope = 0.5

    @staticmethod
    def loadings(n_rows: int) -> np.ndarray:
        """Return numbers of steps up to each category, and which they are."""
        return np.column_stack([np.arange(n_rows), np.tri(n_rows, n_rows - 1, -1)])

    @staticmethod
    def steps(count: np.ndarray) -> np.ndarray:
        """Return logits of neighbouring categories."""
        return np.log(count[1:] / count[:-1])


@dataclass(frozen=True)
class Nominal(MultinomialLogit):
    """Bock's model of categories without an order; slope and intercept of the first are 0."""

    name = "nominal"
    ordered = False

    @staticmethod
    def loadings(n_rows: int) -> np.ndarray:
        """Return for the slopes, then for the intercepts, whose category each is."""
        return np.tile(np.eye(n_rows // 2 + 1)[:, 1:], 2)

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return 0 for the slopes and 1 for the intercepts after them."""
        return [0] * (n_rows // 2) + [1] * (n_rows // 2)

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return a1, a2, ..., d1, d2, ..."""
        return [f"{symbol}{k}" for symbol in "ad" for k in range(1, n_rows // 2 + 1)]

    @property
    def present(self) -> np.ndarray:
        """Which parameters an item has, bool (n_rows, n_items)."""
        return np.tile(super().present[len(self.values) // 2 :], (2, 1))

    @classmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of a table with a1, a2, ... and d1, d2, ..."""
        names = list(items) if isinstance(items, pd.DataFrame) else []
        n_steps = sum(re.fullmatch(r"a\d+", str(name)) is not None for name in names)
        wanted = cls.symbols(2 * n_steps)
        if not n_steps or not set(wanted) <= set(names):
            raise FrameError("nominal items need the columns a1, a2, ... and d1, d2, ...")
        slopes, intercepts = items[wanted].to_numpy(float).T.reshape(2, n_steps, -1)
        absent = np.isnan(intercepts)
        return np.vstack([np.where(absent, 0.0, slopes), np.where(absent, ABSENT, intercepts)])

    @classmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return NaN for the categories that an item has."""
        refuse_asymptotes(cls.name, given)
        has = np.arange(1, n_categories.max())[:, None] < n_categories
        return np.vstack([np.where(has, np.nan, 0.0), np.where(has, np.nan, ABSENT)])

    @classmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return slopes of 0, which the answers turn, and logarithms of the counts."""
        n_steps = len(fixed) // 2
        logits = np.log((counts[1 : n_steps + 1] + 0.5) / (counts[0] + 0.5))
        return np.where(np.isnan(fixed), np.vstack([0 * logits, logits]), fixed)

    @classmethod
    def turned(cls, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return slopes as the mean scores of who chose a category lie above those of the first.

        Scores are the first principal component of the indicators of all categories.
        """
        n_steps = len(table) // 2
        hot = codes[:, :, None] == np.arange(n_steps + 1)  # (n_persons, n_items, n_categories)
        centred = hot - hot.mean(axis=0) / np.isfinite(codes).mean(axis=0)[:, None]
        centred = np.where(np.isnan(codes)[:, :, None], 0.0, centred).reshape(len(codes), -1)
        score = np.linalg.svd(centred, full_matrices=False)[0][:, 0]
        score /= score.std()
        # Ability rises with the number of the category, over all items.
        score *= np.sign(score @ np.nan_to_num(codes - np.nanmean(codes, axis=0)).sum(axis=1)) or 1
        sums = np.einsum("p,pjk->kj", score, hot)
        means = sums / np.maximum(hot.sum(axis=0).T, 1)
        slopes = np.where(table[n_steps:] > ABSENT / 2, means[1:] - means[0], 0.0)
        return np.vstack([slopes, table[n_steps:]])

    @classmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return a1, a2, ..., d1, d2, ... and their standard errors; NaN for absent categories."""
        symbols = cls.symbols(len(values))
        absent = np.tile(values[len(values) // 2 :] < ABSENT / 2, (2, 1))
        error = np.sqrt(covariance.diagonal(axis1=1, axis2=2).T)
        columns = dict(zip(symbols, np.where(absent, np.nan, values), strict=True))
        columns |= {f"se_{name}": row for name, row in zip(symbols, error, strict=True)}
        return pd.DataFrame(columns)


class MixedFormats(ResponseFunction):
    """Items of several forms: logistic ones beside ordered categories.

    Rows are slope, intercepts, and both asymptotes; :meth:`of` makes a class for the
    models of given items, which the column ``model`` of a table names.
    """

    name = "mixed formats"
    models: ClassVar[tuple[Model, ...]] = ()

    @classmethod
    def of(cls, models: Sequence[Model]) -> type[MixedFormats]:
        """Return the class of items with these models."""
        return type(cls.__name__, (MixedFormats,), {"models": tuple(models)})

    @classmethod
    def of_columns(cls, item: np.ndarray) -> type[ResponseFunction]:
        """Return the class of columns of these items: those of a group may have their own."""
        return cls.of([cls.models[number] for number in item])

    @classmethod
    def parts(cls, n_rows: int) -> Iterator[tuple[type[ResponseFunction], np.ndarray, np.ndarray]]:
        """Yield each form with the numbers of its items, and the rows that are its own."""
        forms = [model.form for model in cls.models]
        for form in dict.fromkeys(forms):
            rows = [0, 1, n_rows - 2, n_rows - 1] if form.dichotomous else [*range(n_rows - 2)]
            items = [k for k, each in enumerate(forms) if each is form]
            yield form, np.array(items), np.array(rows)

    @classmethod
    def spread(cls, n_rows: int, of_part: Callable) -> np.ndarray:
        """Return rows (n_rows, n_items) from a function of each part's form, items and rows."""
        result = np.full((n_rows, len(cls.models)), ABSENT)
        result[-2:] = 0.0  # asymptotes, of items that may have none
        for form, items, rows in cls.parts(n_rows):
            found = of_part(form, items, rows)
            result[np.ix_(rows[: len(found)], items)] = found
        return result

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log P of each form; ABSENT for categories that an item lacks."""
        xp = namespace(theta)
        found = []
        places = []
        for form, items, rows in self.parts(len(self.values)):
            at = theta[items] if theta.ndim == 2 else theta
            part = form(self.values[rows][:, items]).log_probability(at)
            lacking = max(len(self.values) - 2 - part.shape[1], 0)
            absent = [xp.full_like(part[:, :1], ABSENT)] * lacking
            found.append(xp.concatenate([part, *absent], 1))
            places.append(items)
        return xp.concatenate(found)[np.argsort(np.concatenate(places))]

    def scores(self, theta: Tensor) -> Tensor:
        """Return those of each form; 0 in rows and categories that an item lacks."""
        n_rows, n_items = self.values.shape
        result = zeros(theta, n_rows, n_items, n_rows - 2, len(theta))
        for form, items, rows in self.parts(n_rows):
            part = form(self.values[rows][:, items]).scores(theta)
            result[rows[:, None], items, : part.shape[2]] = part
        return result

    def curvature(self, theta: Tensor, counts: Tensor) -> Tensor:
        """Return those of each form; 0 in rows that an item lacks."""
        n_rows, n_items = self.values.shape
        result = zeros(theta, n_rows, n_rows, n_items)
        for form, items, rows in self.parts(n_rows):
            answers = counts[items, : 2 if form.dichotomous else None]
            part = form(self.values[rows][:, items]).curvature(theta, answers)
            result[rows[:, None, None], rows[:, None], items] = part
        return result

    def expected_derivatives(self, counts: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return those of each form; 0 in rows that an item lacks."""
        n_rows, n_items = self.values.shape
        gradient = zeros(theta, n_rows, n_items)
        information = zeros(theta, n_rows, n_rows, n_items)
        for form, items, rows in self.parts(n_rows):
            answers = counts[items, : 2 if form.dichotomous else None]
            part = form(self.values[rows][:, items]).expected_derivatives(answers, theta)
            gradient[rows[:, None], items] = part[0]
            information[rows[:, None, None], rows[:, None], items] = part[1]
        return gradient, information

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return the numbers in KINDS of slope, intercepts, and asymptotes."""
        return [0, *[1] * (n_rows - 3), 2, 3]

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return the names of the rows; d1 is the intercept of logistic items too."""
        return ["a", *(f"d{k}" for k in range(1, n_rows - 2)), "c", "u"]

    def of_items(self, chosen: np.ndarray | slice) -> MixedFormats:
        """Return some of the items, by their numbers."""
        numbers = chosen if isinstance(chosen, slice) else host(chosen)
        models = [self.models[k] for k in np.arange(len(self.models))[numbers]]
        return self.of(models)(self.values[:, chosen])

    @classmethod
    def of_table(cls, items: pd.DataFrame) -> MixedFormats:
        """Return the items of a table such as ``IRTFit.items``."""
        return cls.of(cls.models_in(items))(on_device(cls.rows_of(items), "cpu"))

    @staticmethod
    def models_in(items: pd.DataFrame) -> list[Model]:
        """Return the model of every item of a table."""
        if "model" not in items:
            raise FrameError("items of mixed formats need a column model, such as 2PL or graded")
        return [model_named(name) for name in items["model"]]

    @classmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of a table whose column ``model`` names the items' models."""
        by_item = cls.of(cls.models_in(items))
        tables = {
            form: form.rows_of(items.iloc[chosen].dropna(axis=1, how="all"))
            for form, chosen, _ in by_item.parts(3)
        }
        n_steps = max(
            [1, *(len(rows) - 1 for form, rows in tables.items() if not form.dichotomous)]
        )

        def of_part(
            form: type[ResponseFunction], chosen: np.ndarray, rows: np.ndarray
        ) -> np.ndarray:
            lacking = np.arange(len(tables[form]), len(rows))
            absent = np.tile(ABSENT * lacking[:, None], (1, len(chosen)))
            return np.vstack([tables[form], absent])

        return by_item.spread(n_steps + 3, of_part)

    @classmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return NaN for what is free; asymptotes are those of the logistic items."""
        most = n_categories.max()

        def of_part(
            form: type[ResponseFunction], chosen: np.ndarray, rows: np.ndarray
        ) -> np.ndarray:
            if form.dichotomous:
                own = ({name: x[chosen] for name, x in table.items()} for table in (free, given))
                return form.fixed(n_categories[chosen], *own)
            # One more item, with all steps, makes as many rows as the table has.
            return form.fixed(np.append(n_categories[chosen], most), {}, {})[:, :-1]

        return cls.spread(most + 2, of_part)

    @classmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return the rows with which each form begins."""

        def of_part(
            form: type[ResponseFunction], chosen: np.ndarray, rows: np.ndarray
        ) -> np.ndarray:
            return form.starts(counts[:, chosen], fixed[rows][:, chosen], asymptotes)

        return cls.spread(len(fixed), of_part)

    @classmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return each form's columns, NaN where an item has none, and the items' models."""
        tables = [
            form.table(values[rows][:, items], covariance[np.ix_(items, rows, rows)]).set_axis(
                items
            )
            for form, items, rows in cls.parts(len(values))
        ]
        table = pd.concat(tables).sort_index()
        table.insert(0, "model", [model.name for model in cls.models])
        return table


def step_contrasts(n_steps: int) -> np.ndarray:
    """Return t_1, t_2, ... as sums of the free ones, t_2, t_3, ...: they sum to 0."""
    return np.vstack([-np.ones((1, n_steps - 1)), np.eye(n_steps - 1)])


def refuse_asymptotes(name: str, given: Mapping) -> None:
    """Refuse asymptotes of items that have none."""
    if given:
        raise FrameError(f"the {name} model has no asymptotes; leave out guessing and upper")


@dataclass(frozen=True)
class Model:
    """A form of items and what is free in it."""

    name: str
    form: type[ResponseFunction]
    free: tuple[str, ...] = ()  # asymptotes that are estimated
    common_slope: bool = False  # one slope for all items
    unit_slope: bool = False  # which is 1, with the variance of ability free instead
    common_steps: bool = False  # intercept k of an item is d + t_k, with t the same for all items

    @property
    def dichotomous(self) -> bool:
        """Whether items have two categories, 0 and 1."""
        return self.form.dichotomous

    def estimates(self, functions: ResponseFunction, items: pd.DataFrame) -> np.ndarray:
        """Return which estimate every parameter equals, (n_rows, n_items) int; -1: none.

        As the model has them, without equality constraints; columns such as ``c_is_free`` of a
        table tell single asymptotes.
        """
        values = functions.values.numpy()
        kinds = functions.row_kinds(len(values))
        free = functions.present.copy()
        for row, kind in enumerate(kinds):
            if kind in ASYMPTOTES:
                flag = f"{ASYMPTOTES[kind]}_is_free"
                free[row] = items[flag].eq(True) if flag in items else KINDS[kind] in self.free
        free[0] &= not self.unit_slope
        numbers = np.where(free, np.arange(free.size).reshape(free.shape), -1)
        if self.common_slope and not self.unit_slope:
            numbers[0] = 0
        return numbers


MODELS = {
    model.name: model
    for model in (
        Model("1PL", Logistic, common_slope=True),
        Model("Rasch", Logistic, common_slope=True, unit_slope=True),
        Model("2PL", Logistic),
        Model("3PL", Logistic, ("guessing",)),
        Model("4PL", Logistic, ("guessing", "upper")),
        Model("graded", Graded),
        Model("gpcm", PartialCredit),
        Model("PCM", PartialCredit, common_slope=True, unit_slope=True),
        Model("RSM", PartialCredit, common_slope=True, unit_slope=True, common_steps=True),
        Model("nominal", Nominal),
    )
}
MIXED = Model("mixed", Logistic)  # asymptotes are free item by item
FORMATS = Model("mixed formats", MixedFormats)


def model_named(name: object) -> Model:
    """Return a model by its name in any case."""
    for model in (*MODELS.values(), MIXED, FORMATS):
        if isinstance(name, str) and model.name.lower() == name.lower():
            return model
    raise ValueError(f"model {name!r} is not one of {list(MODELS)}")


def four_parameters(
    items: pd.DataFrame,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return slopes, intercepts, lower and upper asymptotes of a table of dichotomous items.

    The table has the columns ``a``, and ``d`` or ``b`` (or both, which then agree), and optionally
    ``c`` (0) and ``u`` (1), which mirt calls ``g`` and ``u``.
    """
    columns = list(items) if isinstance(items, pd.DataFrame) else [type(items).__name__]
    if {"d1", "b1"} & set(columns):
        raise FrameError(
            "items have several categories, and their table does not tell of which model: pass the "
            'fit itself, or model="graded" or "gpcm" where there is such an argument'
        )
    if "a" not in columns or not {"b", "d"} & set(columns):
        raise FrameError(f"items need the columns a and b (or d), and have {columns}")
    rows = np.tile(np.array([[np.nan], [np.nan], [np.nan], [0.0], [1.0]]), len(items))
    try:
        for row, names in zip(rows, COLUMNS, strict=True):
            for name in [name for name in names if name in items][:1]:
                values = items[name].astype(float).to_numpy()
                row[:] = np.where(np.isnan(values), row, values)
    except (TypeError, ValueError):
        raise FrameError("item parameters are not all numbers; clean the columns a to d") from None
    a, b, d, c, u = rows
    if "d" not in items:
        d = -a * b
    elif "b" in items:
        with np.errstate(invalid="ignore"):
            apart = np.abs(d + a * b) > AGREEMENT * (1 + np.abs(a) + np.abs(d))
        flaw = "have a b and a d that disagree: d should be -a b; drop one of them, or change the"
        flaw = f"{flaw} scale with irt.link(items, slope=, intercept=)"
        refuse("items", items.index[apart & np.isfinite(b)], flaw)
    wrong = items.index[~((c >= 0) & (c < u) & (u <= 1))]
    flaw = "have a guessing parameter outside [0, 1), or an upper asymptote that is not above it"
    refuse("items", wrong, f"{flaw} and at most 1")
    return a, d, c, u
