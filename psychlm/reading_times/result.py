"""What a fitted additive model gives back, whichever program fitted it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats


@dataclass(frozen=True)
class GAMFit:
    """A fitted additive model.

    Attributes
    ----------
    formula : str
    backend, method : str
    loglik : float
        Nats, -n/2 (log(2 pi RSS/n) + 1): what R's ``logLik`` gives for ``gam``.
    edf : float
        Effective degrees of freedom of the mean, the intercept included.
    coefficients : DataFrame, indexed by R's names of the linear terms
        ``estimate``, ``std_error`` (Bayesian, given the smoothing), ``low`` and ``high`` (95 %, t distribution), in the
        response's unit per unit of the predictor.
    smooths : DataFrame, indexed by label
        ``edf`` of each smooth.
    scale : float
        Residual variance, RSS / (n - edf).
    n, n_missing : int
        Rows fitted, and rows left out because the response is missing (a skipped word).
    converged : bool
    """

    formula: str
    backend: str
    method: str
    loglik: float
    edf: float
    coefficients: pd.DataFrame
    smooths: pd.DataFrame
    scale: float
    n: int
    n_missing: int
    converged: bool
    _predict: Callable[[pd.DataFrame], np.ndarray] = field(repr=False, compare=False)

    def predict(self, data: pd.DataFrame) -> pd.Series:
        """Return the expected response for new rows; an unseen level of a random effect has the mean effect."""
        return pd.Series(
            self._predict(data), index=data.index, name=self.formula.partition("~")[0].strip()
        )


def coefficient_table(
    names: list[str], estimate: np.ndarray, std_error: np.ndarray, dof: float
) -> pd.DataFrame:
    """Return estimates with standard errors and 95 % intervals, by name."""
    reach = stats.t.ppf(0.975, dof) * std_error
    columns = {
        "estimate": estimate,
        "std_error": std_error,
        "low": estimate - reach,
        "high": estimate + reach,
    }
    return pd.DataFrame(columns, index=pd.Index(names, name="coefficient"))
