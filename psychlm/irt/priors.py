"""Prior densities for item parameters, off by default.

A fit with priors maximises log-likelihood + log prior (Bayes modal estimation; Mislevy 1986).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psychlm.frames import FrameError
from psychlm.irt.arrays import namespace

if TYPE_CHECKING:
    from torch import Tensor


def _check_numbers(prior: object, positive: tuple[str, ...]) -> None:
    """Refuse a density whose numbers are not finite, or not positive where they must be."""
    values = vars(prior)
    bad = [
        name
        for name, value in values.items()
        if not (math.isfinite(value) and (name not in positive or value > 0))
    ]
    if bad:
        raise ValueError(
            f"{prior}: {' and '.join(bad)} must be finite, and {' and '.join(positive)} positive"
        )


@dataclass(frozen=True)
class Beta:
    """A beta density on (0, 1), for guessing; ``Beta(5, 17)`` has mode 0.2 and sd 0.09.

    It counts like alpha - 1 correct and beta - 1 wrong responses of persons who know nothing
    (Swaminathan and Gifford 1986).
    """

    alpha: float = 5.0
    beta: float = 17.0

    def __post_init__(self) -> None:
        _check_numbers(self, ("alpha", "beta"))

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        a, b = self.alpha, self.beta
        constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        return constant + (a - 1) * namespace(x).log(x) + (b - 1) * namespace(x).log1p(-x)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        low, high = (self.alpha - 1) / x, (self.beta - 1) / (1 - x)
        return low - high, -low / x - high / (1 - x)


@dataclass(frozen=True)
class Normal:
    """A normal density, for intercepts (logits): ``Normal(0, 3)`` keeps constant items finite."""

    mean: float = 0.0
    sd: float = 3.0

    def __post_init__(self) -> None:
        _check_numbers(self, ("sd",))

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        z = (x - self.mean) / self.sd
        return -0.5 * z**2 - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        return (self.mean - x) / self.sd**2, namespace(x).full_like(x, -1 / self.sd**2)


@dataclass(frozen=True)
class LogNormal:
    """A lognormal density, for slopes (per logit); with it every slope is positive."""

    mean: float = 0.0  # of log slope
    sd: float = 0.5  # of log slope

    def __post_init__(self) -> None:
        _check_numbers(self, ("sd",))

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density, in nats."""
        log_x = namespace(x).log(x)
        z = (log_x - self.mean) / self.sd
        return -0.5 * z**2 - log_x - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the log density."""
        z = (namespace(x).log(x) - self.mean) / self.sd**2
        return -(1 + z) / x, (1 + z - 1 / self.sd**2) / x**2


Prior = Beta | Normal | LogNormal


def check_priors(priors: Mapping, allowed: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse priors on parameters, or of kinds, that a model does not have."""
    for name, prior in priors.items():
        if not isinstance(prior, allowed.get(name, ())):
            names = {key: " or ".join(k.__name__ for k in kinds) for key, kinds in allowed.items()}
            raise FrameError(f"prior {name!r}: {prior!r} is not known; give any of {names}")
