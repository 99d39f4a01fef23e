"""How many abilities do the items measure? Eigenvalues, parallel analysis, and one factor against two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.frames import check_responses
from psychlm.irt._fit import fit
from psychlm.irt.goodness import likelihood_ratio
from psychlm.irt.result import IRTFit
from psychlm.irt.tetrachoric import tetrachoric
from psychlm.irt.two_factor import TwoFactorFit, two_factor

LEAST_RATIO = 3.0  # first to second eigenvalue of an essentially unidimensional test (Slocum-Gori & Zumbo 2011)


def eigenvalues(
    responses: pd.DataFrame, *, correct: float = 0.5, smooth: bool = False
) -> pd.Series:
    """Return the eigenvalues of the tetrachoric correlation matrix, largest first, indexed 1, 2, ...

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    correct, smooth
        As in :func:`~psychlm.irt.tetrachoric.tetrachoric`, whose errors are raised. Without smoothing, the last
        eigenvalues may be negative.
    """
    return _eigenvalues(tetrachoric(responses, correct=correct, smooth=smooth))


def _eigenvalues(matrix: pd.DataFrame) -> pd.Series:
    values = np.linalg.eigvalsh(matrix.to_numpy())[::-1]
    return pd.Series(
        values, index=pd.RangeIndex(1, len(values) + 1, name="factor"), name="eigenvalue"
    )


@dataclass(frozen=True)
class ParallelAnalysis:
    """The eigenvalues of the responses beside those of responses without any common ability."""

    table: pd.DataFrame  # by factor: eigenvalue, chance_mean, chance_quantile
    n_factors: int  # leading eigenvalues above the chance quantile


def parallel_analysis(
    responses: pd.DataFrame,
    *,
    n_draws: int = 50,
    quantile: float = 0.95,
    correct: float = 0.5,
    rng: np.random.Generator | int = 0,
) -> ParallelAnalysis:
    """Compare the eigenvalues with those that chance gives when every item's answers are dealt out anew.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Each item's answers are shuffled among the persons who were asked it: proportions correct and what is missing
        stay as they are.
    n_draws : int
        Shuffled data sets.
    quantile : float
        Which quantile of the chance eigenvalues a factor has to exceed.
    correct : float
        As in :func:`~psychlm.irt.tetrachoric.tetrachoric`.
    rng : Generator or int
        Randomness, or a seed.

    Raises
    ------
    ValueError
        If ``n_draws`` is below 1 or ``quantile`` not between 0 and 1.

    References
    ----------
    Horn (1965), Psychometrika 30, 179-185; Buja & Eyuboglu (1992) for the shuffling.
    """
    if n_draws < 1 or not 0 < quantile < 1:
        raise ValueError(
            f"n_draws is {n_draws} and quantile {quantile}; take at least 1 draw and a quantile in (0, 1)"
        )
    responses = check_responses(responses)
    rng = np.random.default_rng(rng)
    observed = eigenvalues(responses, correct=correct)
    x = responses.to_numpy()
    chance = np.array(
        [
            eigenvalues(pd.DataFrame(_shuffled(x, rng), columns=responses.columns), correct=correct)
            for _ in range(n_draws)
        ]
    )
    table = pd.DataFrame(
        {
            "eigenvalue": observed,
            "chance_mean": chance.mean(axis=0),
            "chance_quantile": np.quantile(chance, quantile, axis=0),
        }
    )
    beaten = (table["eigenvalue"] > table["chance_quantile"]).to_numpy()
    return ParallelAnalysis(table=table, n_factors=int(np.cumprod(beaten).sum()))


def _shuffled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shuffle the answers of every column among the rows that have one."""
    keys = np.where(np.isnan(x), np.inf, rng.random(x.shape))
    asked_first = np.argsort(np.isnan(x), axis=0, kind="stable")
    shuffled = np.full_like(x, np.nan)
    np.put_along_axis(
        shuffled, asked_first, np.take_along_axis(x, np.argsort(keys, axis=0), axis=0), axis=0
    )
    return shuffled


@dataclass(frozen=True)
class Unidimensionality:
    """Evidence for and against one ability behind the answers."""

    eigenvalues: pd.Series  # of the tetrachoric correlations, largest first
    models: pd.DataFrame  # by number of factors: loglik, n_parameters, aic, bic, sabic
    lr_statistic: float  # of two factors against one
    lr_df: int
    lr_p: float
    one_factor: IRTFit
    two_factors: TwoFactorFit
    least_ratio: float  # what the first eigenvalue has to be of the second

    @property
    def eigenvalue_ratio(self) -> float:
        """The first eigenvalue as a multiple of the second."""
        return float(self.eigenvalues.iloc[0] / self.eigenvalues.iloc[1])

    @property
    def is_unidimensional(self) -> bool:
        """Whether one eigenvalue stands out. With many persons, information criteria favour two factors nearly always.

        They, and the loadings after rotation, are there to look at; a second factor counts if it can be interpreted.
        """
        return self.eigenvalue_ratio >= self.least_ratio


def unidimensionality(
    responses: pd.DataFrame,
    *,
    model: str = "2PL",
    correct: float = 0.5,
    least_ratio: float = LEAST_RATIO,
) -> Unidimensionality:
    """Gather the evidence for a single ability: eigenvalues, and models with one factor and with two.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    model : {"2PL", "3PL"}
        The models compared. (Lalor 2020, section 2.2.4, compared 3PL models.)
    correct : float
        As in :func:`~psychlm.irt.tetrachoric.tetrachoric`.
    least_ratio : float
        The ratio of the first two eigenvalues from which on one factor is taken to suffice.

    References
    ----------
    Lalor (2020), sections 1.3.4 and 1.3.5.
    """
    one = fit(responses, model, standard_errors=False)
    two = two_factor(responses, model=model)
    criteria = ["loglik", "n_parameters", "aic", "bic", "sabic"]
    models = pd.DataFrame(
        [[getattr(each, name) for name in criteria] for each in (one, two)],
        index=pd.Index([1, 2], name="n_factors"),
        columns=criteria,
    )
    test = likelihood_ratio(one, two)
    return Unidimensionality(
        eigenvalues=eigenvalues(responses, correct=correct),
        models=models,
        lr_statistic=test.statistic,
        lr_df=test.df,
        lr_p=test.p,
        one_factor=one,
        two_factors=two,
        least_ratio=least_ratio,
    )
