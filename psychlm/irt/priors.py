"""Prior densities for item parameters, off by default.

A fit with priors maximises log-likelihood + log prior (Bayes modal estimation; Mislevy 1986).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psychlm.irt.arrays import namespace

if TYPE_CHECKING:
    from torch import Tensor

LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Prior(ABC):
    """A density of a parameter."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or (name != "mean" and value <= 0):
                raise ValueError(f"{self}: {name} must be finite, and positive unless it is a mean")

    @abstractmethod
    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""

    @abstractmethod
    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""

    def terms(self, x: Tensor) -> Tensor:
        """Return the log density with its first and second derivatives, (3, n)."""
        return namespace(x).stack([self.log_density(x), *self.derivatives(x)])


@dataclass(frozen=True)
class Beta(Prior):
    """A beta density on (0, 1), for guessing; ``Beta(5, 17)`` has mode 0.2 and sd 0.09.

    It counts like alpha - 1 correct and beta - 1 wrong responses of persons who know nothing
    (Swaminathan and Gifford 1986).
    """

    alpha: float = 5.0
    beta: float = 17.0

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        a = self.alpha
        b = self.beta
        constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        return constant + (a - 1) * namespace(x).log(x) + (b - 1) * namespace(x).log1p(-x)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        low = (self.alpha - 1) / x
        high = (self.beta - 1) / (1 - x)
        return low - high, -low / x - high / (1 - x)


@dataclass(frozen=True)
class Normal(Prior):
    """A normal density, for intercepts (logits): ``Normal(0, 3)`` keeps constant items finite."""

    mean: float = 0.0
    sd: float = 3.0

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        return -0.5 * ((x - self.mean) / self.sd) ** 2 - math.log(self.sd) - LOG_ROOT_2_PI

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        return (self.mean - x) / self.sd**2, namespace(x).full_like(x, -1 / self.sd**2)


@dataclass(frozen=True)
class LogNormal(Prior):
    """A lognormal density, for slopes (per logit); with it every slope is positive."""

    mean: float = 0.0  # of log slope
    sd: float = 0.5  # of log slope

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        log_x = namespace(x).log(x)
        return Normal(self.mean, self.sd).log_density(log_x) - log_x

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        z = (namespace(x).log(x) - self.mean) / self.sd**2
        return -(1 + z) / x, (1 + z - 1 / self.sd**2) / x**2


@dataclass(frozen=True)
class OfLogit(Prior):
    """The density of the logit of an asymptote x, without the Jacobian of the logit, as in mirt."""

    prior: Prior

    def __post_init__(self) -> None:
        """The prior has been checked."""

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density of the logit, in nats."""
        return self.prior.log_density(namespace(x).log(x) - namespace(x).log1p(-x))

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density by the asymptote."""
        first, second = self.prior.derivatives(namespace(x).log(x) - namespace(x).log1p(-x))
        slope = 1 / (x * (1 - x))  # of the logit
        return first * slope, (second + first * (2 * x - 1)) * slope**2
