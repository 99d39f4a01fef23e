r"""Response functions: one class for each form of item, and the models that are made of them.

.. math::
    \text{logistic:}\quad & P(x = 1) = c + (u - c)\,\sigma(a\theta + d) \\
    \text{graded:}\quad & P(x \ge k) = \sigma(a\theta + d_k), \qquad d_1 > d_2 > \dots \\
    \text{gpcm:}\quad & \log P(x = k) / P(x = k - 1) = a\theta + d_k

(Birnbaum 1968, Barton & Lord 1981; Samejima 1969; Muraki 1992); difficulties are
:math:`b_k = -d_k / a`. **To add a model** is to add a class here and to name it in ``MODELS``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.frames import FrameError, refuse
from psychlm.irt.arrays import log_sigmoid, namespace, on_device, sigmoid

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KINDS = ("slope", "intercept", "guessing", "upper")  # that can be equal, free or have priors
ASYMPTOTES = {2: "c", 3: "u"}  # number of the kind, and the column of a table of items
AGREEMENT = 1e-3  # logits, relative to the size of slope and intercept: tables of three decimals
ABSENT = -1000.0  # logits, times k: threshold k of an item that has fewer of them
NO_ASYMPTOTE = 700.0  # logits: exp(-700) is the smallest probability of a float
ASYMPTOTE_LIMIT = 13.8  # logits: estimated asymptotes stay 1e-6 away from 0 and 1
SPREAD = 1.2  # the spread of ability makes proportions less extreme than curves at ability 0


@dataclass(frozen=True)
class ResponseFunction(ABC):
    """Items of one form. A new form needs what is abstract here; the derivatives follow."""

    values: Tensor  # (n_rows, n_items), or with values of their own at every theta as third axis
    name: ClassVar[str]
    dichotomous: ClassVar[bool] = False

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
    @abstractmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return parameters and standard errors from natural rows and their covariances by item."""

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return the number in KINDS of every row of parameters."""
        return [min(row, 1) for row in range(n_rows)]

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return the names of the rows of parameters in a covariance matrix."""
        return ["a", *(f"d{k}" for k in range(1, n_rows))]

    @classmethod
    def natural(cls, values: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and covariances (n_items, n_rows, n_rows) as tables of items have them."""
        return values, covariance

    @property
    def by_theta(self) -> Tensor:
        """Values with an axis for abilities, (n_rows, n_items, n_theta or 1)."""
        return self.values if self.values.ndim == 3 else self.values[..., None]

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

    def natural_derivatives(self, theta: Tensor) -> Tensor:
        """Return derivatives of P by natural parameters, (n_rows, n_items, n_cat, n_theta)."""
        return self.scores(theta) * self.log_probability(theta).exp()

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
        """Return the Fisher information about ability, (n_theta, n_items), in 1 / logit^2."""
        return -self.by_ability(theta, self.log_probability(theta).exp())[1].T

    def levels(self, items: pd.Index) -> dict:
        """Return the numbers 0, 1, 2, ... of every item's categories."""
        values = self.values.numpy()
        steps = [row for row, kind in enumerate(self.row_kinds(len(values))) if kind == 1]
        n_steps = (values[steps] > ABSENT / 2).sum(axis=0).tolist()
        return {item: list(range(n + 1)) for item, n in zip(items, n_steps, strict=True)}

    def rescaled(self, mean: float, sd: float) -> Self:
        """Return the same curves on a scale on which N(mean, sd^2) has become N(0, 1)."""
        values = self.values.clone()
        shifted = [row for row, kind in enumerate(self.row_kinds(len(values))) if kind == 1]
        values[shifted] += values[0] * mean
        values[0] *= sd
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


@dataclass(frozen=True)
class Logistic(ResponseFunction):
    """Dichotomous items; the rows are slope, intercept and the logits of both asymptotes."""

    name = "logistic"
    dichotomous = True

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log(1 - P) and log P; neither P nor 1 - P rounds to 0."""
        xp = namespace(theta)
        values = self.by_theta
        z = values[0] * theta + values[1]
        low, high = values[2:]
        if bool((low <= -NO_ASYMPTOTE).all() and (high >= NO_ASYMPTOTE).all()):
            return xp.stack([log_sigmoid(-z), log_sigmoid(z)], 1)
        span = log_sigmoid(high) + log_sigmoid(-low) + xp.log1p(-xp.exp(low - high))
        q = span + log_sigmoid(-z)
        p = span + log_sigmoid(z)
        # log(e^x + e^y) = x - log s(x - y); second derivatives of torch's logaddexp overflow
        log_q = q - log_sigmoid(q - log_sigmoid(-high))
        log_p = p - log_sigmoid(p - log_sigmoid(low))
        return xp.stack([log_q, log_p], 1)

    def natural_derivatives(self, theta: Tensor) -> Tensor:
        """Return derivatives of P; those by asymptotes themselves, also where these are 0 or 1."""
        result = super().natural_derivatives(theta)
        xp = namespace(theta)
        logistic = sigmoid(xp.outer(self.values[0], theta) + self.values[1][:, None])
        result[2] = xp.stack([logistic - 1, 1 - logistic], 1)
        result[3] = xp.stack([-logistic, logistic], 1)
        return result

    @classmethod
    def rows_of(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the rows of a table with a, and d or b, and perhaps c and u."""
        a, d, c, u = four_parameters(items)
        return np.stack([a, d, *logits_of(np.stack([c, u]))])

    @classmethod
    def fixed(
        cls, n_categories: np.ndarray, free: Mapping, given: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return NaN for slopes and intercepts, and logits of asymptotes that are not free."""
        result = np.full((4, len(n_categories)), np.nan)
        for row, absent in ((2, -NO_ASYMPTOTE), (3, NO_ASYMPTOTE)):
            name = KINDS[row]
            value = logits_of(given[name]) if name in given else result[row]
            result[row] = np.where(np.isnan(value) & ~free[name], absent, value)
        return result

    @classmethod
    def starts(cls, counts: np.ndarray, fixed: np.ndarray, asymptotes: tuple) -> np.ndarray:
        """Return slopes of 1, and intercepts from proportions correct, less the asymptotes."""
        table = fixed.copy()
        table[0] = 1.0
        begin = logits_of(np.array(asymptotes))[:, None]
        table[2:] = np.where(np.isnan(fixed[2:]), begin, fixed[2:])
        low, high = probabilities_of(table[2:])
        share = (counts[1] + 0.5) / (counts.sum(0) + 1)
        between = ((share - low) / (high - low)).clip(0.02, 0.98)
        share = np.where((low > 1e-300) | (high < 1), between, share)
        table[1] = SPREAD * np.log(share / (1 - share))
        return table

    @classmethod
    def row_kinds(cls, n_rows: int) -> list[int]:
        """Return the numbers of slope, intercept, guessing and upper asymptote in KINDS."""
        return list(range(n_rows))

    @classmethod
    def symbols(cls, n_rows: int) -> list[str]:
        """Return the names of the estimates."""
        return ["a", "d", "logit c", "logit u"][:n_rows]

    @classmethod
    def natural(cls, values: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return asymptotes as probabilities: dp = p (1 - p) dlogit."""
        p = probabilities_of(values[2:])
        scale = np.vstack([np.ones_like(values[:2]), p * (1 - p)]).T
        return np.vstack([values[:2], p]), covariance * scale[:, :, None] * scale[:, None, :]

    @classmethod
    def table(cls, values: np.ndarray, covariance: np.ndarray) -> pd.DataFrame:
        """Return a, b, c, d, and u if an upper asymptote is below 1, with standard errors."""
        b, se_b = difficulties(values[:2], covariance)
        with np.errstate(invalid="ignore"):  # a negative variance becomes NaN
            error = np.sqrt(covariance.diagonal(axis1=1, axis2=2).T)
        a, d, c, u = values
        parameters = {"a": a, "b": b[0], "c": np.where(c < 1e-300, 0.0, c), "d": d}
        errors = {"se_a": error[0], "se_b": se_b[0], "se_c": error[2], "se_d": error[1]}
        if (u < 1).any():
            parameters["u"], errors["se_u"] = u, error[3]
        return pd.DataFrame(parameters | errors)


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
        if given:
            raise FrameError(
                f"the {cls.name} model has no asymptotes; leave out guessing and upper"
            )
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

    @staticmethod
    def steps(count: np.ndarray) -> np.ndarray:
        """Return logits of answering in this category or above."""
        above = count[::-1].cumsum()[::-1]
        return SPREAD * np.log(above[1:] / (above[0] - above[1:]))


@dataclass(frozen=True)
class PartialCredit(OrderedCategories):
    """Muraki's generalised partial credit model."""

    name = "gpcm"
    start_slope = 0.5

    def log_probability(self, theta: Tensor) -> Tensor:
        """Return log probabilities of which neighbours differ by the steps' logits."""
        xp = namespace(theta)
        values = self.by_theta
        z = values[0] * theta + values[1:]
        total = xp.concatenate([0 * z[:1], z.cumsum(0)])
        return total.log_softmax(0).swapaxes(0, 1)

    @staticmethod
    def steps(count: np.ndarray) -> np.ndarray:
        """Return logits of neighbouring categories."""
        return np.log(count[1:] / count[:-1])


def logits_of(p: np.ndarray) -> np.ndarray:
    """Return logits, within +-NO_ASYMPTOTE."""
    with np.errstate(divide="ignore"):
        return (np.log(p) - np.log1p(-p)).clip(-NO_ASYMPTOTE, NO_ASYMPTOTE)


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    """Return probabilities, the inverse of :func:`logits_of`."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))


@dataclass(frozen=True)
class Model:
    """A form of items and what is free in it."""

    name: str
    form: type[ResponseFunction]
    free: tuple[str, ...] = ()  # asymptotes that are estimated
    common_slope: bool = False  # one slope for all items
    unit_slope: bool = False  # which is 1, with the variance of ability free instead
    products: bool = False  # whether the fast engine has it: logistic curves

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
        free = values > ABSENT / 2
        for row, kind in enumerate(kinds):
            if kind in ASYMPTOTES:
                flag = f"{ASYMPTOTES[kind]}_is_free"
                free[row] = items[flag] if flag in items else KINDS[kind] in self.free
        free[0] &= not self.unit_slope
        numbers = np.where(free, np.arange(free.size).reshape(free.shape), -1)
        if self.common_slope and not self.unit_slope:
            numbers[0] = 0
        return numbers


MODELS = {
    model.name: model
    for model in (
        Model("1PL", Logistic, common_slope=True, products=True),
        Model("Rasch", Logistic, common_slope=True, unit_slope=True, products=True),
        Model("2PL", Logistic, products=True),
        Model("3PL", Logistic, ("guessing",), products=True),
        Model("4PL", Logistic, ("guessing", "upper"), products=True),
        Model("graded", Graded),
        Model("gpcm", PartialCredit),
    )
}
MIXED = Model("mixed", Logistic, products=True)  # asymptotes are free item by item


def model_named(name: object) -> Model:
    """Return a model by its name in any case."""
    for model in (*MODELS.values(), MIXED):
        if isinstance(name, str) and model.name.lower() == name.lower():
            return model
    raise ValueError(f"model {name!r} is not one of {list(MODELS)}")


def four_parameters(
    items: pd.DataFrame,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return slopes, intercepts, lower and upper asymptotes of a table of dichotomous items.

    The table has the columns ``a``, and ``d`` or ``b`` (or both, which then agree), and optionally
    ``c`` (0) and ``u`` (1).
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
        for row, name in zip(rows, "abdcu", strict=True):
            if name in items:
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
