"""How well a fitted model describes items, pairs of items and persons; and nested models against each other.

Every function takes an :class:`~psychlm.irt.result.IRTFit`, or the :class:`~psychlm.irt.expected.ModelTables` of
another program's estimates. The statistic for the model as a whole, M2, stands in
:mod:`psychlm.irt.limited_information`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
from scipy import stats

from psychlm.frames import FrameError
from psychlm.irt.expected import ModelTables, answers_to, as_tables
from psychlm.irt.sum_scores import collapse_sparse, expected_correct_by_score
from psychlm.irt.tetrachoric import pair_tables

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

LARGEST_MEAN_SQUARE_SD = (
    1.4142  # beyond it the cube-root transformation of infit and outfit breaks down; as mirt
)


def s_x2(
    fit: IRTFit | ModelTables,
    responses: pd.DataFrame,
    *,
    minimum_expected: float = 1.0,
    min_persons: int = 20,
) -> pd.DataFrame:
    r"""Test each item's fit by comparing its answers with those expected at every number-right score.

    .. math:: S\text{-}X^2_i = \sum_s N_s \frac{(O_{is} - E_{is})^2}{E_{is} (1 - E_{is})}

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN. A score has a meaning only among persons who were asked the same items. Where items were
        left out by design, every booklet (a set of items that at least ``min_persons`` were asked) makes its own score
        groups, and an item's statistic sums over the booklets that hold it. Persons of rarer patterns are left out,
        with a warning.
    minimum_expected : float
        Score groups are merged until each expects this many right and wrong answers, by mirt's rule.
    min_persons : int
        The fewest persons that make a booklet.

    Returns
    -------
    DataFrame, one row per item
        ``s_x2``, ``df``, ``rmsea``, ``p``, ``n_persons``; NaN where merging leaves no degree of freedom.

    Raises
    ------
    FrameError
        If no set of items was asked of ``min_persons`` persons.

    References
    ----------
    Orlando & Thissen (2000), Applied Psychological Measurement 24, 50-64, equation 9.
    """
    tables = as_tables(fit)
    x = answers_to(tables, responses)
    n_items = x.shape[1]
    statistic, n_groups, n_persons = np.zeros(n_items), np.zeros(n_items), np.zeros(n_items)
    for asked, rows in _booklets(x, min_persons):
        here = np.flatnonzero(asked)
        observed, expected = _score_tables(
            x[np.ix_(rows, here)], tables.probability[here], tables.weights
        )
        n_persons[here] += len(rows)
        for k, item in enumerate(here):
            o, e = collapse_sparse(observed[k], expected[k], minimum_expected)
            statistic[item] += ((o - e) ** 2 / e).sum()
            n_groups[item] += len(o)
    df = np.maximum(n_groups - tables.n_free_by_item, 0)
    statistic[df == 0] = np.nan
    return pd.DataFrame(
        {
            "s_x2": statistic,
            "df": df.astype(int),
            "rmsea": rmsea(statistic, df, n_persons),
            "p": stats.chi2.sf(statistic, np.where(df > 0, df, np.nan)),
            "n_persons": n_persons.astype(int),
        },
        index=tables.items.rename("item"),
    )


def _booklets(x: np.ndarray, min_persons: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return every set of items that enough persons were asked, as a mask, with the rows of those persons."""
    patterns, which, counts = np.unique(
        ~np.isnan(x), axis=0, return_inverse=True, return_counts=True
    )
    large = np.flatnonzero((counts >= min_persons) & (patterns.sum(axis=1) > 1))
    if not len(large):
        raise FrameError(
            f"no two or more items were asked of the same {min_persons} persons (the most that share their items are "
            f"{counts.max()}), so there are no score groups to compare; use ld_x2 or q3, which need pairs of items "
            "only, or lower min_persons"
        )
    left_out = len(x) - counts[large].sum()
    if left_out:
        warnings.warn(
            f"{left_out} of {len(x)} persons were asked sets of items that fewer than {min_persons} share, and do not "
            "count towards S-X2",
            stacklevel=3,
        )
    return [(patterns[k], np.flatnonzero(which.ravel() == k)) for k in large]


def _score_tables(
    x: np.ndarray, probability: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return observed and expected counts (wrong, right) by score, both of shape (n_items, n_items - 1, 2).

    Scores of 0 and of everything say nothing of an item, and have no row.
    """
    n_items = x.shape[1]
    score = x.sum(axis=1).astype(int)
    at_score = np.bincount(score, minlength=n_items + 1).astype(float)
    right = np.zeros((n_items + 1, n_items))
    np.add.at(right, score, x)
    _, correct = expected_correct_by_score(probability, weights)
    observed = np.stack([at_score - right.T, right.T], axis=2)
    expected = at_score[:, None] * np.stack([1 - correct, correct], axis=2)
    return observed[:, 1:-1], expected[:, 1:-1]


def rmsea(statistic: np.ndarray, df: np.ndarray, n_persons: np.ndarray) -> np.ndarray:
    """Return the root mean square error of approximation, 0 where the statistic is below its degrees of freedom.

    References
    ----------
    Browne & Cudeck (1992), Sociological Methods & Research 21, 230-258, equation 5.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.maximum(statistic - df, 0) / (df * (n_persons - 1))
    return np.sqrt(excess)


def ld_x2(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> pd.DataFrame:
    """Test every pair of items for dependence beyond what the ability explains.

    The 2 x 2 table of a pair, among the persons who answered both, is compared with the table that the model expects.

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)

    Returns
    -------
    DataFrame, one row per pair
        ``item_1``, ``item_2``, ``ld_x2``, ``df`` (1), ``cramers_v`` (positive where the two go together more than the
        model has it, by Yule's Q), ``p``, ``n_persons``; NaN where nobody answered both.

    References
    ----------
    Chen & Thissen (1997), Journal of Educational and Behavioral Statistics 22, 265-289, equation 1.
    """
    tables = as_tables(fit)
    x = answers_to(tables, responses)
    i, j = np.triu_indices(x.shape[1], 1)
    observed = pair_tables(x)[:, i, j]
    n = observed.sum(axis=0)
    expected = n * _expected_pairs(tables)[:, i, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = ((observed - expected) ** 2 / expected).sum(axis=0)
        direction = np.sign(_yule_q(observed) - _yule_q(expected))
        v = np.where(direction < 0, -1, 1) * np.sqrt(statistic / n)
    return pd.DataFrame(
        {
            "item_1": tables.items[i],
            "item_2": tables.items[j],
            "ld_x2": statistic,
            "df": 1,
            "cramers_v": v,
            "p": stats.chi2.sf(statistic, 1),
            "n_persons": n.astype(int),
        }
    )


def _expected_pairs(tables: ModelTables) -> np.ndarray:
    """Return the probabilities of (0,0), (0,1), (1,0), (1,1) for every pair, shape (4, n_items, n_items)."""
    p, w = tables.probability, tables.weights
    return np.stack([((a * w) @ b.T) for a in (1 - p, p) for b in (1 - p, p)])


def _yule_q(cells: np.ndarray) -> np.ndarray:
    concordant, discordant = cells[0] * cells[3], cells[1] * cells[2]
    return (concordant - discordant) / (concordant + discordant)


def q3(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> pd.DataFrame:
    """Return the correlations between items of what is left of the answers when the expected ones are taken away.

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)
        Residuals are taken at each person's expected ability; a pair's correlation, over the persons who answered both.

    Returns
    -------
    DataFrame, shape (n_items, n_items)
        Ones on the diagonal. Under local independence the others lie near -1/(n_items - 1).

    References
    ----------
    Yen (1984), Applied Psychological Measurement 8, 125-145, equation 8.
    """
    tables = as_tables(fit)
    x = answers_to(tables, responses)
    residuals = x - tables.at(tables.posterior_mean(x)).T
    return pd.DataFrame(residuals, columns=tables.items).corr(min_periods=3)


@dataclass(frozen=True)
class LikelihoodRatio:
    """A likelihood-ratio test of a model within a larger one."""

    statistic: float  # twice the gain in log-likelihood, nats
    df: int  # difference in the number of free parameters
    p: float


class HasLikelihood(Protocol):
    """A fitted model of any kind."""

    @property
    def loglik(self) -> float:
        """Marginal log-likelihood, nats."""

    @property
    def n_parameters(self) -> int:
        """Number of free parameters."""


def likelihood_ratio(
    fit_small: HasLikelihood, fit_big: HasLikelihood, *, on_boundary: bool = False
) -> LikelihoodRatio:
    """Test whether the bigger of two nested models, fitted to the same responses, fits better than chance.

    Parameters
    ----------
    fit_small, fit_big : IRTFit or TwoFactorFit
        Anything with ``loglik`` (nats) and ``n_parameters``.
    on_boundary : bool
        True where the one parameter that the small model fixes lies at the edge of its range, as a guessing parameter
        of 0 does: the statistic is then 0 half of the time (Self & Liang 1987, case 5), and p is halved.

    Raises
    ------
    ValueError
        If the bigger model has no more parameters than the small one, or a lower log-likelihood (by more than 0.01
        nats): then they are not nested, or the bigger one did not converge; or if ``on_boundary`` is asked for with
        more than one parameter.
    """
    df = fit_big.n_parameters - fit_small.n_parameters
    if df <= 0:
        raise ValueError(
            f"the bigger model has {fit_big.n_parameters} parameters and the small one {fit_small.n_parameters}; "
            "give the small (restricted) model first"
        )
    gain = fit_big.loglik - fit_small.loglik
    if gain < -0.01:
        raise ValueError(
            f"the bigger model's log-likelihood is lower by {-gain:.3f} nats; either the models are not nested, were "
            "fitted to different responses, or the bigger one needs more iterations"
        )
    if on_boundary and df != 1:
        raise ValueError(
            f"the boundary correction is for one parameter, and the models differ by {df}; test them singly"
        )
    statistic = max(2 * gain, 0.0)
    p = float(stats.chi2.sf(statistic, df))
    return LikelihoodRatio(
        statistic=statistic, df=df, p=p / 2 if on_boundary and statistic > 0 else p
    )


def person_fit(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> pd.DataFrame:
    """Say how well the model describes each person's pattern of answers.

    Parameters
    ----------
    fit : IRTFit or ModelTables
    responses : DataFrame, shape (n_persons, n_items)
        Every sum runs over the items that the person answered.

    Returns
    -------
    DataFrame, one row per person
        ``theta`` (expected ability, logits), ``n_items``; ``zh`` (the standardised log-likelihood lz; about -2 and
        below: an unlikely pattern); ``outfit`` and ``infit`` (mean squares, expected to be 1; infit weighs items by
        their information) and their ``z_outfit``, ``z_infit``.

    Notes
    -----
    mirt raises item variances below 0.0032 to that value in infit and outfit; here they stay as they are, so the two
    agree wherever no item is that easy or hard for the person.

    References
    ----------
    Drasgow, Levine & Williams (1985), British Journal of Mathematical and Statistical Psychology 38, 67-86;
    Wright & Masters (1982), Rating Scale Analysis, chapter 5.
    """
    tables = as_tables(fit)
    x = answers_to(tables, responses)
    theta = tables.posterior_mean(x)
    p = np.where(np.isnan(x), np.nan, tables.at(theta).T)
    n = np.isfinite(x).sum(axis=1)
    variance, residual = p * (1 - p), x - p
    log_odds = np.log(p) - np.log1p(-p)
    zh = np.nansum(residual * log_odds, axis=1) / np.sqrt(np.nansum(variance * log_odds**2, axis=1))
    fourth = variance * (1 - 3 * variance)
    outfit = np.nansum(residual**2 / variance, axis=1) / n
    infit = np.nansum(residual**2, axis=1) / np.nansum(variance, axis=1)
    outfit_sd = np.sqrt(np.nansum(fourth / variance**2, axis=1) / n**2 - 1 / n)
    infit_sd = np.sqrt(np.nansum(fourth - variance**2, axis=1)) / np.nansum(variance, axis=1)
    return pd.DataFrame(
        {
            "theta": theta,
            "n_items": n,
            "zh": zh,
            "outfit": outfit,
            "z_outfit": _standardised(outfit, outfit_sd),
            "infit": infit,
            "z_infit": _standardised(infit, infit_sd),
        },
        index=responses.index.rename("person"),
    )


def _standardised(mean_square: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Make a mean square approximately standard normal through its cube root (Wilson & Hilferty 1931)."""
    sd = np.minimum(sd, LARGEST_MEAN_SQUARE_SD)
    return (np.cbrt(mean_square) - 1) * (3 / sd) + sd / 3
