r"""A small set of items that stands for a whole benchmark, with the error to expect on new models.

The score :math:`y_j` of person (or model) :math:`j` is predicted from the answers to the chosen
items, :math:`\hat y_j = w_0 + \sum_i w_i x_{ij}`, by a ridge regression whose penalty is chosen by
leave-one-out errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from psychlm.frames import FrameError, Repeated, by_person, check_responses, mean_responses, refuse

PENALTIES = np.logspace(-2, 4, 25)
N_SAMPLES = 200  # of families, behind each interval
LEVEL = 0.95


@dataclass(frozen=True)
class ShortForm:
    """Items that stand for a benchmark."""

    # By item, in the order of the choice: weight (points for a right answer), proportion_correct.
    items: pd.DataFrame
    intercept: float  # score of a person who answers none of them correctly
    # Of chosen items ("forward") and of as many others ("random"): rmse on persons of new families,
    # who took no part in choosing items or weights, low and high (95 %, families drawn anew), rho
    # (ranks of predicted and observed scores).
    errors: pd.DataFrame
    n_persons: int
    n_families: int
    # Of the rmse, random less chosen items, on the same persons: estimate and its interval.
    gain: tuple[float, float, float]

    @property
    def verdict(self) -> str:
        """Whether the choice of items predicts better than random items do."""
        gain, low, high = self.gain
        interval = f"{gain:.2f} [{low:.2f}, {high:.2f}]"
        told = f"the error of random items less that of the choice is {interval}"
        if low > 0:
            return f"{told}: the choice predicts better than as many random items"
        if high < 0:
            return f"{told}: random items predict better; draw as many at random"
        return f"{told}: as many random items predict as well, as far as these persons tell"

    def score(self, responses: pd.DataFrame | Repeated) -> pd.Series:
        """Return predicted scores of persons, from their answers to the chosen items."""
        items = self.items.index
        shares = responses.mean if isinstance(responses, Repeated) else responses
        absent = items.difference(shares.columns)
        refuse("items", absent, "of the form are not among the responses; ask them")
        shares = shares[list(items)]
        answers = shares if isinstance(responses, Repeated) else check_responses(shares)
        incomplete = answers.index[answers.isna().any(axis=1)]
        refuse("persons", incomplete, "did not answer all items of the form; ask the rest")
        return (answers @ self.items["weight"] + self.intercept).rename("score")


def short_form(
    responses: pd.DataFrame | Repeated,
    n_items: int,
    *,
    score: pd.Series | Sequence | None = None,
    families: pd.Series | Sequence | None = None,
    n_folds: int = 5,
    rng: np.random.Generator | int = 0,
) -> ShortForm:
    """Choose the items that predict the score on a benchmark best, and estimate the error.

    One after another, the item is added that lowers the squared error most.

    Parameters
    ----------
    responses : DataFrame or Repeated, shape (n_persons, n_items of the bank)
        Graded answers, 0 or 1, none missing; of several answers to an item their share counts.
    n_items : int
        Number of items to choose.
    score : Series by person, or sequence in the order of persons, optional
        The score to be predicted, for example on the whole benchmark of which the bank is a part.
        By default the proportion correct in the bank, in points of 100.
    families : Series by person, or sequence in the order of persons, optional
        Persons of one family (fine-tuned versions of one model) are held out together, so that the
        error is that of models of new families. By default each person is a family, which makes
        the error too small where persons are relatives.
    n_folds : int
        Folds of the cross-validation by family.
    rng : Generator or int
        For the random items that the chosen ones are compared with, and for the intervals.

    Notes
    -----
    With few persons a choice of items fits their errors: with 60 models, 50 random items of
    metabench's ARC predict the leaderboard better than 50 chosen ones. ``verdict`` says so.

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
    responses = mean_responses(responses)
    refuse(
        "persons",
        responses.index[responses.isna().any(axis=1)],
        "have missing responses, and a short form needs complete ones; remove persons or items",
    )
    varying = responses.loc[:, responses.nunique() > 1]
    if not 0 < n_items <= varying.shape[1]:
        raise FrameError(
            f"{n_items} items cannot be chosen of {varying.shape[1]} that not all answer alike"
        )
    rng = np.random.default_rng(rng)
    persons = responses.index
    proportions = 100 * responses.mean(axis=1)
    target = proportions if score is None else by_person(persons, score, "score").astype(float)
    family = by_person(persons, persons if families is None else families, "family").astype(str)
    n_families = family.nunique()
    if n_families < n_folds:
        raise FrameError(
            f"{n_folds} folds need as many families of persons; there are {n_families}"
        )

    # The error on new families: choose and weight without the fold, predict the fold.
    answers = varying.to_numpy(np.float64)
    goal = target.to_numpy()
    predicted = pd.DataFrame(np.nan, varying.index, ["forward", "random"])
    for train, test in GroupKFold(n_folds).split(answers, groups=family):
        chosen_by = {"forward": forward(answers[train], goal[train], n_items)}
        chosen_by["random"] = rng.choice(answers.shape[1], n_items, replace=False)
        for name, chosen in chosen_by.items():
            regression = RidgeCV(PENALTIES).fit(answers[train][:, chosen], goal[train])
            predicted.loc[varying.index[test], name] = regression.predict(answers[test][:, chosen])
    errors, gain = _errors(predicted, target, family, rng)

    chosen = forward(answers, goal, n_items)
    regression = RidgeCV(PENALTIES).fit(answers[:, chosen], goal)
    form = varying.iloc[:, chosen]
    columns = {"weight": regression.coef_, "proportion_correct": form.mean()}
    items = pd.DataFrame(columns, index=form.columns)
    return ShortForm(items, float(regression.intercept_), errors, len(responses), n_families, gain)


def forward(
    answers: NDArray[np.float64], goal: NDArray[np.float64], n_items: int
) -> NDArray[np.intp]:
    """Return the columns of the chosen items, in the order of the choice."""
    # Forward selection: `rest` holds the items less what the chosen ones explain of them
    # (Gram-Schmidt), so that (rest_i . residual)^2 / |rest_i|^2 is what item i would add.
    rest = answers - answers.mean(axis=0)
    residual = goal - goal.mean()
    chosen: list[int] = []
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


def _errors(
    predicted: pd.DataFrame, goal: pd.Series, family: pd.Series, rng: np.random.Generator
) -> tuple[pd.DataFrame, tuple[float, float, float]]:
    """Root mean square errors with intervals over families and rank correlations; their gain."""
    squared = predicted.sub(goal, axis=0) ** 2
    codes, names = pd.factorize(family)
    # A sample of families weights each by how often it was drawn.
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), N_SAMPLES)
    sampled = (drawn @ squared.groupby(codes).sum()).div(drawn @ np.bincount(codes), axis=0) ** 0.5
    limits = sampled.quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).set_axis(["low", "high"])
    rows = {"rmse": squared.mean() ** 0.5, **limits.T}
    rows["rho"] = predicted.corrwith(goal, method="spearman")
    gains = sampled["random"] - sampled["forward"]
    gain = rows["rmse"]["random"] - rows["rmse"]["forward"]
    interval = gains.quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = interval.tolist()
    return pd.DataFrame(rows).rename_axis("method"), (float(gain), low, high)
