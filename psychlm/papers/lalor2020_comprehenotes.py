"""Lalor (2020), chapter 7: item analysis of ComprehENotes, and banks of known quality.

The bank of 83 candidate questions was not released, only its 55 retained ones. Whether the
selection procedure finds bad questions can be tested on simulated banks: the retained questions
with their estimated parameters, and as many bad ones as the authors removed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax

from psychlm import data, frames, irt, simulate

TOPIC_SIZES = {  # candidate questions, section 7.2.2
    "heart_failure": 12,
    "hypertension": 12,
    "diabetes": 18,
    "copd": 18,
    "liver_failure": 12,
    "cancer": 11,
}
FLAWS = ["flat", "negative", "too easy", "dependent"]  # in turn among the bad questions
COPIED = 0.5  # share of persons who answer a dependent item as they answered its partner


@dataclass(frozen=True)
class Bank:
    """A simulated bank of 83 questions, with its responses by topic."""

    items: pd.DataFrame  # a, b, c, topic, flaw ("" for a sound item), partner (of a dependent one)
    responses: dict[str, pd.DataFrame]  # by topic; NaN where a booklet was not shown


def simulate_bank(estimates: pd.DataFrame, rng: np.random.Generator) -> Bank:
    """Draw a bank with the retained questions and planted bad ones, and responses by topic.

    Topics of 18 questions have 400 persons who see two of three booklets, the others 250 persons
    who see all (section 7.2.3).

    Parameters
    ----------
    estimates : DataFrame, indexed by item
        ``a``, ``b`` and ``c`` of the 55 retained questions.
    """
    topic = pd.read_csv(data.path("comprehenotes/items")).set_index("item")["topic"]
    sound = estimates[["a", "b", "c"]].assign(topic=topic, flaw="", partner="")
    # Fill each topic up to its size with bad questions, the flaws in turn.
    bad: list[dict[str, object]] = []
    for name, size in TOPIC_SIZES.items():
        partners = rng.permutation(sound.index[sound["topic"] == name])
        for number in range(size - (sound["topic"] == name).sum()):
            flaw = FLAWS[(len(bad)) % len(FLAWS)]
            row: dict[str, object] = {
                "topic": name,
                "flaw": flaw,
                "partner": "",
                "c": sound["c"].iloc[0],
            }
            if flaw == "flat":
                row |= {"a": rng.uniform(0.05, 0.35), "b": 0.0}
            elif flaw == "negative":
                row |= {"a": -rng.uniform(0.4, 0.9), "b": 1.4}
            elif flaw == "too easy":
                row |= {"a": 1.0, "b": rng.uniform(-5.0, -4.0)}
            else:
                partner = partners[number % len(partners)]
                row |= {"partner": partner, "a": sound["a"][partner], "b": sound["b"][partner]}
            bad.append(row)
    names = pd.Index([f"bad-{i + 1:02d}" for i in range(len(bad))], name="item")
    items = pd.concat([sound, pd.DataFrame(bad, index=names)])
    # Draw the responses topic by topic; a dependent question copies its partner for some persons.
    responses = {}
    for name, rows in items.groupby("topic", sort=False):
        large = len(rows) >= 18
        drawn = simulate.responses(rng.normal(size=400 if large else 250), rows, rng)
        dependent = rows[rows["flaw"] == "dependent"]
        copied = rng.random((len(drawn), len(dependent))) < COPIED
        drawn[dependent.index] = np.where(
            copied, drawn[dependent["partner"]], drawn[dependent.index]
        )
        if large:
            # Of three booklets of questions, each person misses one.
            booklet = rng.permutation(np.arange(len(rows)) % 3)
            drawn = drawn.mask(rng.integers(0, 3, len(drawn))[:, None] == booklet)
        responses[str(name)] = drawn
    return Bank(items, responses)


def select_by_topic(bank: Bank, **options: object) -> pd.DataFrame:
    """Select the items of every topic; return by item its ``flaw`` and whether it was ``removed``.

    Items that all answered alike are set aside first. Of a dependent pair either item may be
    removed: if the partner was, the dependent one counts as removed instead.
    """
    retained: list = []
    for responses in bank.responses.values():
        constant = list(frames.constant_items(responses))
        selection = irt.select_items(responses, set_aside=constant, **options)  # type: ignore[arg-type]
        retained += list(selection.retained)
    removed = pd.Series(~bank.items.index.isin(retained), index=bank.items.index)
    pairs = bank.items.loc[bank.items["flaw"] == "dependent", "partner"]
    swapped = pairs[~removed[pairs.index] & removed[pairs].to_numpy()]
    removed[swapped.to_numpy()], removed[swapped.index] = False, True
    return pd.DataFrame({"flaw": bank.items["flaw"], "removed": removed})


def marginal_residuals(items: pd.DataFrame, responses: pd.DataFrame, size: int) -> pd.DataFrame:
    r"""Compare counts of response patterns to pairs or triplets of items with the model's.

    .. math:: r = \frac{(O - E)^2}{E}, \qquad
        E = N \int \prod_j P_j(\theta)^{x_j} (1 - P_j(\theta))^{1 - x_j} \, \phi(\theta)\, d\theta

    with N the persons who saw all items of the subset. R's ``ltm::margins`` calls residuals above
    3.5 large (Bartholomew and Knott 1999). Patterns with an expected count below 5 are left out,
    since one person makes their residuals large.

    Parameters
    ----------
    items : DataFrame, indexed by item
        ``a``, ``b`` and ``c``; ability is N(0, 1).
    responses : DataFrame, shape (n_persons, n_items)
    size : int
        2 for pairs, 3 for triplets.

    Returns
    -------
    DataFrame, one row per subset that is not left out, largest residual first
        ``items`` (their names), ``pattern`` (such as "01"), ``observed``, ``expected`` and
        ``residual`` of the cell that fits worst.
    """
    theta = np.linspace(-6, 6, 241)
    weights = np.exp(-(theta**2) / 2)
    weights /= weights.sum()
    correct = irt.curves.probability(theta, items).T
    probability = np.stack([1 - correct, correct], axis=1)  # (n_items, 2, n_nodes)
    x = responses[items.index].to_numpy(float)
    patterns = ["".join(pattern) for pattern in itertools.product("01", repeat=size)]
    rows = []
    for subset in itertools.combinations(range(len(items)), size):
        answers = x[:, subset]
        answers = answers[~np.isnan(answers).any(axis=1)].astype(int)
        # A pattern's number is its answers read as binary digits, the first item's foremost.
        number = answers @ 2 ** np.arange(size)[::-1]
        observed = np.bincount(number, minlength=2**size)
        joint = weights
        for item in subset:
            joint = joint[..., None, :] * probability[item]
        expected = len(answers) * joint.sum(axis=-1).ravel()
        with np.errstate(divide="ignore", invalid="ignore"):
            residual = (observed - expected) ** 2 / expected
        residual[expected < 5] = -1
        worst = residual.argmax()
        row = (patterns[worst], observed[worst], expected[worst], residual[worst])
        rows.append((tuple(items.index[list(subset)]), *row))
    columns = ["items", "pattern", "observed", "expected", "residual"]
    table = pd.DataFrame(rows, columns=columns).query("residual >= 0")
    return table.sort_values("residual", ascending=False, ignore_index=True)


def slope_profile(
    items: pd.DataFrame, responses: pd.DataFrame, item: str, slopes: np.ndarray
) -> pd.Series:
    """Return the log-likelihood by slope of one item, at its best difficulty, others held (nats).

    Differences below 1.92 nats make a 95 % interval (half a chi-squared quantile).

    Parameters
    ----------
    items : DataFrame, indexed by item
        ``a``, ``b`` and ``c``; ability is N(0, 1).
    responses : DataFrame, shape (n_persons, n_items)
    item : str
    slopes : ndarray
        Per logit.
    """
    theta = np.linspace(-6, 6, 1201)
    others = items.drop(index=item)
    x = responses[others.index].to_numpy(float)
    slope, intercept, guess = irt.curves.item_parameters(others)
    linear = np.multiply.outer(theta, slope) + intercept
    log_right, log_wrong = irt.curves.log_probabilities(linear, guess)
    at_nodes = (x == 1).astype(float) @ log_right.T + (x == 0).astype(float) @ log_wrong.T
    posterior = softmax(at_nodes - theta**2 / 2, axis=1)  # given the other items
    own = responses[item].to_numpy(float)
    best = {}
    for slope in slopes:
        # Difficulties so close together that even the steepest curve is not skipped over.
        difficulty = items.loc[item, "b"] + np.linspace(-0.5, 0.5, 101)
        curves = pd.DataFrame({"a": slope, "b": difficulty, "c": items.loc[item, "c"]})
        correct = posterior @ irt.curves.probability(theta, curves)  # (n_persons, n_difficulties)
        likelihood = np.where((own == 1)[:, None], correct, 1 - correct)
        best[slope] = np.log(likelihood[~np.isnan(own)]).sum(axis=0).max()
    return pd.Series(best, name="loglik").rename_axis("slope")


def shortest_form(items: pd.DataFrame, low: float, high: float) -> pd.Series:
    """Add one item at a time, that which lowers the mean standard error most.

    Returns
    -------
    Series, in the order of the choice
        By item: the mean of 1 / sqrt(information + 1) over abilities from ``low`` to ``high``
        (logits), with the prior's information, 1.
    """
    information = irt.curves.item_information(np.linspace(low, high, 101), items)
    total, chosen = np.ones(len(information)), {}
    remaining = list(range(len(items)))
    while remaining:
        errors = ((total[:, None] + information[:, remaining]) ** -0.5).mean(axis=0)
        best = remaining.pop(int(errors.argmin()))
        chosen[items.index[best]] = errors.min()
        total = total + information[:, best]
    return pd.Series(chosen, name="mean_se")
