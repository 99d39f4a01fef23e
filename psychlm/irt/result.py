"""What a fit gives back: item parameters with standard errors, how good the fit is, and how it was reached."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm.data import atomic_write
from psychlm.irt.scoring import AbilityPosterior, ability_posterior, score


class IRTWarning(UserWarning):
    """A fit that needs a second look: what happened, to which items, and what to do."""


MODELS = {"1PL": "1PL", "RASCH": "Rasch", "2PL": "2PL", "3PL": "3PL"}
FORMAT = "psychlm.irt.fit/1"


@dataclass(frozen=True)
class IRTFit:
    """A fitted 1PL, Rasch, 2PL or 3PL model; logistic metric (D = 1), ability in logits.

    Ability is N(0, 1), but for the Rasch model, whose slopes are 1 and whose ability variance is free.
    """

    items: pd.DataFrame  # by item: a, b, c, d (= -a b), their standard errors se_*, and c_is_free
    model: str  # "1PL", "Rasch", "2PL", "3PL", or "mixed" (2PL and 3PL items)
    method: str  # "mml" or "vi"
    loglik: float  # marginal log-likelihood, nats
    log_prior: float  # log density of the priors at the estimates, nats; 0 where there are none, NaN by "vi"
    n_parameters: int
    n_persons: int
    converged: bool  # on the parameters and on the log-likelihood; never with an item whose slope runs away
    n_iterations: int  # EM steps
    ability_mean: float  # logits, fixed
    ability_sd: float  # logits; fixed at 1, but estimated for the Rasch model
    se_ability_variance: float  # of ability_sd^2; NaN where the variance is fixed
    ability_sd_check: float  # ratio of the sd re-estimated after the fit, items held, to ability_sd: 1 if all is well
    loglik_error: (
        float  # nats: how far the log-likelihood moved when the lattice was made twice as fine
    )
    quadrature: str  # the lattice, in words
    covariance: (
        pd.DataFrame | None
    )  # of the free parameters, labelled (item, "a" | "d" | "c"); None for long tests

    @property
    def aic(self) -> float:
        """Akaike's information criterion, -2 loglik + 2 p."""
        return -2 * self.loglik + 2 * self.n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion, -2 loglik + p log(n_persons)."""
        return -2 * self.loglik + self.n_parameters * math.log(self.n_persons)

    @property
    def sabic(self) -> float:
        """Sample-size adjusted BIC, -2 loglik + p log((n_persons + 2) / 24) (Sclove 1987)."""
        return -2 * self.loglik + self.n_parameters * math.log((self.n_persons + 2) / 24)

    def score(self, responses: pd.DataFrame, method: str = "eap") -> pd.DataFrame:
        """Return ability and its standard error for every person; see :func:`psychlm.irt.scoring.score`."""
        return score(self.items, responses, method, ability_sd=self.ability_sd)

    def posterior(self, responses: pd.DataFrame) -> AbilityPosterior:
        """Return every person's posterior on a lattice; see :func:`psychlm.irt.scoring.ability_posterior`."""
        return ability_posterior(self.items, responses, ability_sd=self.ability_sd)

    def to_json(self, path: str | Path) -> None:
        """Write the fit as JSON, from which :meth:`from_json` gives an equal fit, to the last digit."""
        content: dict[str, Any] = {"format": FORMAT}
        for field in fields(self):
            value = getattr(self, field.name)
            content[field.name] = (
                _plain(value) if isinstance(value, pd.DataFrame) else _finite(value)
            )
        with atomic_write(path) as part:
            part.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> IRTFit:
        """Read a fit that :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            If the file is not such a fit.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:  # neither UTF-8 nor JSON: truncated, perhaps
            raise ValueError(
                f"{path} is no JSON ({error}); write a fit with IRTFit.to_json"
            ) from None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(
                f"{path} is not a fit in the format {FORMAT!r}; write one with IRTFit.to_json"
            )
        items, covariance = content.pop("items"), content.pop("covariance")
        numbers: dict[str, Any] = {
            name: np.nan if value is None else value for name, value in content.items()
        }
        return cls(items=_item_frame(items), covariance=_covariance_frame(covariance), **numbers)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _label(label: Any) -> Any:
    """Turn numpy's integers into Python's, which JSON can write."""
    return label.item() if isinstance(label, np.generic) else label


def _plain(frame: pd.DataFrame) -> dict[str, Any]:
    """Turn a frame into lists; infinities become text, since JSON has none."""
    columns = {
        name: [
            repr(v) if isinstance(v, float) and math.isinf(v) else _finite(v)
            for v in frame[name].tolist()
        ]
        for name in frame
    }
    if isinstance(frame.index, pd.MultiIndex):
        return {
            "index": [list(map(_label, label)) for label in frame.index],
            "rows": list(columns.values()),
        }
    return {"index": [_label(label) for label in frame.index], "columns": columns}


def _numbers(values: list) -> np.ndarray:
    if all(isinstance(v, bool) for v in values):
        return np.array(values)
    return np.array([np.nan if v is None else float(v) for v in values])


def _item_frame(plain: dict[str, Any]) -> pd.DataFrame:
    columns = {name: _numbers(values) for name, values in plain["columns"].items()}
    return pd.DataFrame(columns, index=pd.Index(plain["index"], name="item"))


def _covariance_frame(plain: dict[str, Any] | None) -> pd.DataFrame | None:
    if plain is None:
        return None
    labels = pd.MultiIndex.from_tuples(
        [tuple(label) for label in plain["index"]], names=["item", "parameter"]
    )
    return pd.DataFrame(
        np.array([_numbers(row) for row in plain["rows"]]).T, index=labels, columns=labels
    )
