r"""A small set of items that stands for a whole benchmark, with the error to expect on new models.

The score :math:`y_j` of person (or model) :math:`j` is predicted from the answers to the chosen
items, :math:`\hat y_j = w_0 + \sum_i w_i x_{ij}`. Items are added one at a time: the next is the
one that lowers the squared error most, given those that are chosen already. The weights are those
of a ridge regression, whose penalty is chosen by leave-one-out errors. The errors reported are of
persons that took no part in choosing items or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from psychlm.frames import FrameError, check_responses, format_names
from psychlm.irt._fit import fit
from psychlm.irt.priors import LogNormal

Method = Literal["forward", "clusters", "information", "random"]
METHODS: tuple[Method, ...] = ("forward", "clusters", "information", "random")
PENALTIES = np.logspace(-2, 4, 25)
LEVEL = 0.95
WEAK_PRIOR = {"slope": LogNormal(0, 1)}


@dataclass(frozen=True)
class ShortForm:
    """Items that stand for a benchmark.

    Attributes
    ----------
    items : DataFrame
        One row per chosen item, in the order of the choice: ``weight`` (points of the score for a
        right answer) and ``proportion_correct``.
    intercept : float
        Score of a person who answers none of them correctly.
    errors : DataFrame
        One row per method and number of items: root mean square error ``rmse`` on persons of new
        families with its 95 % interval ``low``, ``high`` (families drawn anew), and ``rho``, the
        rank correlation of predicted and observed scores. Units are those of the score.
    abilities : DataFrame
        The map from ability to score: ``theta`` (logits) and ``score``.
    n_persons, n_families : int
    """

    items: pd.DataFrame
    intercept: float
    errors: pd.DataFrame
    abilities: pd.DataFrame
    n_persons: int
    n_families: int

    def score(self, responses: pd.DataFrame) -> pd.Series:
        """Return predicted scores of persons, from their answers to the chosen items."""
        missing = self.items.index.difference(responses.columns)
        if len(missing):
            raise FrameError(f"the responses have no items {format_names(missing)}; ask them")
        answers = responses[self.items.index]
        if answers.isna().any(axis=None):
            first = answers.index[answers.isna().any(axis=1)][0]
            raise FrameError(f"{first!r} did not answer all items of the form; ask the rest")
        return (answers @ self.items["weight"] + self.intercept).rename("score")


def short_form(
    responses: pd.DataFrame,
    n_items: int,
    *,
    score: pd.Series | None = None,
    families: pd.Series | None = None,
    method: Method = "forward",
    compare: tuple[Method, ...] = ("forward", "random"),
    n_folds: int = 5,
    n_boot: int = 200,
    rng: np.random.Generator | int = 0,
) -> ShortForm:
    """Choose the items that predict the score on a benchmark best, and estimate the error.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items of the bank)
        Graded answers, 0 or 1, none missing.
    n_items : int
        Number of items to choose.
    score : Series by person, optional
        The score to be predicted, for example on the whole benchmark of which the bank is a part.
        By default the proportion correct in the bank, in points of 100.
    families : Series by person, optional
        Persons of one family (fine-tuned versions of one model) are held out together, so that the
        error is that of models of new families. By default each person is a family, which makes
        the error too small where persons are relatives.
    method : {"forward", "clusters", "information", "random"}
        "forward" adds the item that lowers the squared error most. "clusters" takes the items
        nearest to the centres of k-means of the items' answers (anchor points, Polo et al. 2024);
        "information" those that lower the mean posterior variance of ability most in a 2PL model;
        "random" any. All are weighted by the same regression.
    compare : tuple of methods
        Whose errors are estimated beside those of ``method``.
    n_folds : int
        Folds of the cross-validation by family.
    n_boot : int
        Samples of families behind each interval.
    rng : Generator or int

    Returns
    -------
    ShortForm

    Notes
    -----
    With few persons a choice of items fits their errors: with 60 models, 50 random items of
    metabench's ARC predict the leaderboard better than 50 chosen ones. Compare ``errors``.

    References
    ----------
    Polo et al. (2024), tinyBenchmarks, ICML; Kipnis et al. (2025), metabench, ICLR.

    Examples
    --------
    >>> from psychlm import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = simulate.responses(rng.normal(size=200), simulate.items(30, rng), rng)
    >>> form = short_form(bank, 5, rng=rng)
    >>> list(form.items), bool(form.errors.loc["forward", "rmse"] < 15)
    (['weight', 'proportion_correct'], True)
    """
    responses = check_responses(responses)
    if responses.isna().any(axis=None):
        first = responses.index[responses.isna().any(axis=1)][0]
        raise FrameError(
            f"a short form needs complete responses, and {first!r} has missing ones; remove such "
            "persons or items"
        )
    varying = responses.loc[:, responses.nunique() > 1]
    if not 0 < n_items <= varying.shape[1]:
        raise FrameError(
            f"{n_items} items cannot be chosen of {varying.shape[1]} that not all answer alike"
        )
    rng = np.random.default_rng(rng)
    target = _by_person(responses, score, "score", 100 * responses.mean(axis=1)).astype(float)
    family = _by_person(responses, families, "family", responses.index.to_series()).astype(str)
    n_families = family.nunique()
    if n_families < n_folds:
        raise FrameError(
            f"{n_folds} folds need as many families of persons; there are {n_families}"
        )

    # The error on new families: choose and weight without the fold, predict the fold.
    methods = tuple(dict.fromkeys((method, *compare)))
    answers, goal = varying.to_numpy(np.float64), target.to_numpy()
    predicted = {name: np.full(len(goal), np.nan) for name in methods}
    for train, test in GroupKFold(n_folds).split(answers, groups=family):
        for name in methods:
            chosen = choose(answers[train], goal[train], n_items, name, rng)
            regression = RidgeCV(PENALTIES).fit(answers[train][:, chosen], goal[train])
            predicted[name][test] = regression.predict(answers[test][:, chosen])
    errors = _errors(predicted, goal, family.to_numpy(), n_boot, rng)

    chosen = choose(answers, goal, n_items, method, rng)
    regression = RidgeCV(PENALTIES).fit(answers[:, chosen], goal)
    form = varying.iloc[:, chosen]
    items = pd.DataFrame(
        {"weight": regression.coef_, "proportion_correct": form.mean()}, index=form.columns
    )

    # From ability on the form to score: a monotone step function (isotonic regression).
    calibrated = fit(form, "2PL", priors=WEAK_PRIOR, standard_errors=False)
    theta = calibrated.score(form)["theta"]
    curve = IsotonicRegression(out_of_bounds="clip").fit(theta, target)
    grid = np.linspace(theta.min(), theta.max(), 41)
    abilities = pd.DataFrame({"theta": grid, "score": curve.predict(grid)})
    return ShortForm(
        items=items,
        intercept=float(regression.intercept_),
        errors=errors,
        abilities=abilities,
        n_persons=len(responses),
        n_families=n_families,
    )


def choose(
    answers: NDArray[np.float64],
    goal: NDArray[np.float64],
    n_items: int,
    method: Method,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Return the columns of the chosen items, in the order of the choice."""
    if method == "random":
        return rng.choice(answers.shape[1], n_items, replace=False)
    if method == "clusters":
        centres = KMeans(n_items, n_init=3, random_state=int(rng.integers(2**31))).fit(answers.T)
        distances = centres.transform(answers.T)  # items x centres
        chosen: list[int] = []
        for centre in range(n_items):  # an item stands for one cluster only
            distances[chosen, centre] = np.inf
            chosen.append(int(distances[:, centre].argmin()))
        return np.array(chosen)
    if method == "information":
        return _most_informative(answers, n_items, rng)
    if method != "forward":
        raise ValueError(f"no method is named {method!r}; there are {list(METHODS)}")
    # Forward selection: `rest` holds the items less what the chosen ones explain of them
    # (Gram-Schmidt), so that (rest_i . residual)^2 / |rest_i|^2 is what item i would add.
    rest, residual = answers - answers.mean(axis=0), goal - goal.mean()
    chosen = []
    for _ in range(n_items):
        length = (rest**2).sum(axis=0)
        gain = np.where(length > 1e-8, (residual @ rest) ** 2 / np.maximum(length, 1e-8), 0.0)
        gain[chosen] = -1
        best = int(gain.argmax())
        chosen.append(best)
        if length[best] > 1e-8:
            direction = rest[:, best] / np.sqrt(length[best])
            residual = residual - direction * (direction @ residual)
            rest = rest - np.outer(direction, direction @ rest)
    return np.array(chosen)


def _most_informative(
    answers: NDArray[np.float64], n_items: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Choose by a 2PL model: the next item lowers the mean posterior variance of ability most."""
    frame = pd.DataFrame(answers)
    frame.columns = frame.columns.astype(str)
    varying = np.flatnonzero(frame.nunique() > 1)
    calibrated = fit(frame.iloc[:, varying], "2PL", priors=WEAK_PRIOR, standard_errors=False)
    theta = rng.permutation(calibrated.score(frame)["theta"])[:500]
    information = calibrated.information(theta)  # abilities x items
    total = np.ones(len(theta))  # the prior's information, 1 / variance
    chosen: list[int] = []
    for _ in range(n_items):
        variance = (1 / (total[:, None] + information)).mean(axis=0)
        variance[chosen] = np.inf
        chosen.append(int(variance.argmin()))
        total = total + information[:, chosen[-1]]
    return varying[chosen]


def _by_person(
    responses: pd.DataFrame, values: pd.Series | None, name: str, default: pd.Series
) -> pd.Series:
    """Return values in the order of the persons, each of whom must have one."""
    if values is None:
        return default
    missing = responses.index.difference(values.dropna().index)
    if len(missing):
        raise FrameError(f"no {name} for {len(missing)} persons: {format_names(missing)}")
    return values.loc[responses.index]


def _errors(
    predicted: dict[Method, NDArray[np.float64]],
    goal: NDArray[np.float64],
    family: NDArray[np.object_],
    n_boot: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Root mean square errors with intervals over families, and rank correlations."""
    codes, names = pd.factorize(family)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), n_boot)
    rows = {}
    for name, values in predicted.items():
        squared = (values - goal) ** 2
        # A sample of families weights each by how often it was drawn.
        sums = np.bincount(codes, weights=squared)
        sizes = np.bincount(codes)
        sampled = np.sqrt((drawn @ sums) / (drawn @ sizes))
        low, high = np.quantile(sampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        rho = pd.Series(values).corr(pd.Series(goal), method="spearman")
        rows[name] = {"rmse": np.sqrt(squared.mean()), "low": low, "high": high, "rho": rho}
    return pd.DataFrame(rows).T.rename_axis("method")
