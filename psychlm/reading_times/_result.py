"""The result of a fit, whichever program made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from psychlm.frames import FrameError


@dataclass(frozen=True, repr=False)
class GAMFit:
    """A fitted additive model.

    Attributes
    ----------
    formula, backend, method : str
    loglik : float
        Nats, -n/2 (log(2 pi RSS/n) + 1): what R's ``logLik`` gives for ``gam``.
    edf : float
        Effective degrees of freedom of the mean, the intercept included.
    coefficients : DataFrame, indexed by R's names of the linear terms
        ``estimate``, ``std_error`` (Bayesian, given the smoothing), ``low`` and ``high`` (95 %, t
        distribution), in the response's unit per unit of the predictor.
    covariance : DataFrame, the same labels in rows and columns
        Bayesian covariance of the linear terms' estimates, as R's ``vcov``.
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
    covariance: pd.DataFrame
    smooths: pd.DataFrame
    scale: float
    n: int
    n_missing: int
    converged: bool
    _predict: Callable[[pd.DataFrame], np.ndarray] = field(repr=False, compare=False)

    def predict(self, data: pd.DataFrame) -> pd.Series:
        """Return the expected response for new rows.

        A level of a random effect that was not in the fit has the mean effect, 0.

        Raises
        ------
        FrameError
            If a predictor is absent or has gaps, or a linear term's factor has a level that was not
            in the fit.
        """
        name = self.formula.partition("~")[0].strip()
        return pd.Series(self._predict(data), index=data.index, name=name)

    def __repr__(self) -> str:
        """Return the model and its estimates, as R's ``print`` and ``summary`` do."""
        converged = "" if self.converged else ", NOT converged"
        tables = [self.coefficients.round(4)] + [self.smooths.round(3)] * (len(self.smooths) > 0)
        return (
            f"{self.formula}\n{self.backend}, {self.method}{converged}: n = {self.n:,} "
            f"({self.n_missing:,} without a response left out), log-likelihood {self.loglik:.2f} "
            f"on {self.edf:.2f} degrees of freedom, residual deviation {self.scale**0.5:.4g}"
        ) + "".join(f"\n\n{table.to_string()}" for table in tables)


def require_columns(names: Iterable[str], data: pd.DataFrame) -> None:
    """Raise a :class:`FrameError` if the data lack a variable of a formula."""
    absent = [name for name in names if name not in data.columns]
    if absent:
        raise FrameError(
            f"formula variables not found in the data: {absent}; it has {list(data.columns)}"
        )


def check_new_data(data: pd.DataFrame, variables: tuple[str, ...]) -> None:
    """Raise a :class:`FrameError` if new data lack a predictor or have gaps in one."""
    require_columns(variables, data)
    gaps = [name for name in variables if data[name].isna().any()]
    if gaps:
        raise FrameError(f"cannot predict: predictors {gaps} have gaps; fill or drop those rows")


def coefficient_tables(
    names: list[str], estimate: np.ndarray, covariance: np.ndarray, dof: float
) -> dict[str, pd.DataFrame]:
    """Return ``coefficients`` (with 95 % intervals) and ``covariance`` of a fit, by name."""
    std_error, index = np.sqrt(np.diag(covariance)), pd.Index(names, name="coefficient")
    margin = stats.t.ppf(0.975, dof) * std_error
    table = {"estimate": estimate, "std_error": std_error}
    table |= {"low": estimate - margin, "high": estimate + margin}
    return {
        "coefficients": pd.DataFrame(table, index=index),
        "covariance": pd.DataFrame(covariance, index=index, columns=index),
    }


def smooth_table(edf: dict[str, float]) -> pd.DataFrame:
    """Return the effective degrees of freedom of smooths, by label."""
    index = pd.Index(list(edf), name="smooth", dtype=object)
    return pd.DataFrame({"edf": np.array(list(edf.values()), dtype=np.float64)}, index=index)
