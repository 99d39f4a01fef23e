"""Lalor (2020), chapter 7: item analysis of ComprehENotes, and banks of known quality.

The responses must be requested from the authors; estimates come with the project
(:func:`stored_fits`). Only 55 of 83 candidate questions were released. Whether the selection finds
bad questions is tested on simulated banks: these 55, and as many bad ones as the authors removed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax

from psychlm import data, frames, irt, simulate, stats
from psychlm.irt.response_functions import Logistic

# Candidate questions by topic, section 7.2.2.
TOPIC_SIZES = {"heart_failure": 12, "hypertension": 12, "diabetes": 18}
TOPIC_SIZES |= {"copd": 18, "liver_failure": 12, "cancer": 11}
# Weak: one slope has no finite estimate, see notebook 35.
PRIORS: dict[str, Any] = {"slope": irt.LogNormal(0.5, 0.5)}
FLAWS = ["flat", "negative", "too easy", "dependent"]  # in turn among the bad questions
COPIED = 0.5  # share of persons who answer a dependent item as they answered its partner


def fits(responses: pd.DataFrame) -> dict[str, irt.IRTFit]:
    """Fit the three models whose estimates come with the project.

    "common": one guessing parameter for all items, as the authors fitted it, estimated first and
    then held. "prior": the same guessing, with ``PRIORS``. "free": guessing by item."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", irt.IRTWarning)  # of the slope without a finite estimate
        start = irt.fit(responses, "3PL", guessing="common", standard_errors=False).items
        guessing = float(start["c"].iloc[0])
        held = {"start": start, "guessing": guessing, "standard_errors": False}
        fitted = {"common": irt.fit(responses, "3PL", **held)}
        fitted["prior"] = irt.fit(responses, "3PL", priors=PRIORS, guessing=guessing)
        return fitted | {"free": irt.fit(responses, "3PL")}


def stored_fits() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Return the stored estimates of :func:`fits` by model, and their log-likelihoods (nats)."""
    table = data.facts("comprehenotes/estimates").set_index("item")
    estimates = {name: part.drop(columns="model") for name, part in table.groupby("model")}
    return estimates, data.facts("comprehenotes/fits").set_index("model")["loglik"]


def compare_with_stored(fitted: Mapping[str, irt.IRTFit]) -> pd.Series:
    """Return how far fits are from the stored ones: ``n`` items, ``max_difference`` between curves
    from -4 to 4 logits (which an infinite slope does not change), and ``max_loglik_difference``."""
    stored, loglik = stored_fits()
    theta = np.linspace(-4, 4, 161)
    largest = 0.0
    nats = 0.0
    for name, fit in fitted.items():
        theirs = stored[name].loc[fit.items.index]
        difference = irt.curves.probability(theta, fit.items)
        difference -= irt.curves.probability(theta, theirs)
        largest = max(largest, float(np.abs(difference).max()))
        nats = max(nats, abs(fit.loglik - loglik[name]))
    n = sum(len(fit.items) for fit in fitted.values())
    return pd.Series({"n": n, "max_difference": largest, "max_loglik_difference": nats})


def simulate_bank(
    estimates: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Draw a bank of 83 questions, the 55 retained ones (``a``, ``b``, ``c``, ``topic``) and bad
    ones (``flaw``, ``partner`` of a dependent one), and responses by topic.

    Topics of 18 questions have 400 persons who see two of three booklets, the others 250 persons
    who see all (section 7.2.3)."""
    sound = estimates[["a", "b", "c", "topic"]].assign(flaw="", partner="")
    # Fill each topic up to its size with bad questions, the flaws in turn.
    bad: list[dict[str, Any]] = []
    for name, size in TOPIC_SIZES.items():
        partners = rng.permutation(sound.index[sound["topic"] == name])
        for number in range(size - (sound["topic"] == name).sum()):
            flaw = FLAWS[len(bad) % len(FLAWS)]
            row = {"topic": name, "flaw": flaw, "partner": "", "c": sound["c"].iloc[0]}
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
    return items, responses


def select_by_topic(
    items: pd.DataFrame, responses: Mapping[str, pd.DataFrame], **options: Any
) -> pd.DataFrame:
    """Select the items of every topic; return by item its ``flaw`` and whether it was ``removed``.

    Items that all answered alike are set aside first. Of a dependent pair either item may be
    removed: if the partner was, the dependent one counts as removed instead."""
    retained: list = []
    for graded in responses.values():
        constant = list(frames.constant_items(graded))
        with warnings.catch_warnings():
            # A slope at its upper bound is no reason to remove an item.
            warnings.simplefilter("ignore", irt.IRTWarning)
            retained += list(irt.select_items(graded, set_aside=constant, **options).retained)
    removed = pd.Series(~items.index.isin(retained), index=items.index)
    pairs = items.loc[items["flaw"] == "dependent", "partner"]
    swapped = pairs[~removed[pairs.index] & removed[pairs].to_numpy()]
    removed[swapped.to_numpy()], removed[swapped.index] = False, True
    return pd.DataFrame({"flaw": items["flaw"], "removed": removed})


def marginal_residuals(items: pd.DataFrame, responses: pd.DataFrame, size: int) -> pd.Series:
    r"""Return the largest residual of every pair or triplet of items: counts of response patterns
    against the model's.

    .. math:: r = \frac{(O - E)^2}{E}, \qquad
        E = N \int \prod_j P_j(\theta)^{x_j} (1 - P_j(\theta))^{1 - x_j} \, \phi(\theta)\, d\theta

    with N the persons who saw all ``size`` items of the subset. R's ``ltm::margins`` calls
    residuals above 3.5 large. Patterns with an expected count below 5 are left out."""
    theta = np.linspace(-6, 6, 241)
    weights = np.exp(-(theta**2) / 2)
    weights /= weights.sum()
    correct = irt.curves.probability(theta, items).T
    probability = np.stack([1 - correct, correct], axis=1)  # (n_items, 2, n_nodes)
    x = responses[items.index].to_numpy(float).T
    given = np.stack([x == 0, x == 1], axis=1).astype(float)  # (n_items, 2, n_persons)

    def joint(of_items: np.ndarray, subset: tuple[int, ...], start: np.ndarray) -> np.ndarray:
        """Return the products of each pattern, the first item foremost, (n_patterns, n)."""
        for item in subset:
            start = start[..., None, :] * of_items[item]
        return start.reshape(-1, start.shape[-1])

    names = items.index.tolist()
    largest = {}
    for subset in itertools.combinations(range(len(items) - 1), size - 1):
        later = slice(subset[-1] + 1, None)  # the last item of the subsets: all are counted at once
        people = joint(given, subset, np.ones(len(responses)))
        nodes = joint(probability, subset, weights)
        observed = (people @ given[later].swapaxes(1, 2)).reshape(-1, 2**size)
        expected = (nodes @ probability[later].swapaxes(1, 2)).reshape(-1, 2**size)
        expected *= observed.sum(axis=1, keepdims=True)
        residuals = (observed - expected) ** 2 / np.maximum(expected, 5)
        residuals = np.where(expected >= 5, residuals, -1).max(axis=1)
        first = [names[item] for item in subset]
        for last, residual in zip(names[later], residuals, strict=True):
            if residual >= 0:
                largest[*first, last] = residual
    return pd.Series(largest)


def slope_profile(
    items: pd.DataFrame, responses: pd.DataFrame, item: str, slopes: np.ndarray
) -> pd.Series:
    """Return the log-likelihood by slope of one item, at its best difficulty, others held (nats).
    Differences below 1.92 nats make a 95 % interval (half a chi-squared quantile)."""
    theta = np.linspace(-6, 6, 1201)
    others = items.drop(index=item)
    x = responses[others.index].to_numpy(float)
    log_p = Logistic.of_table(others).log_probability(torch.tensor(theta)).numpy()
    at_nodes = (x == 1).astype(float) @ log_p[:, 1] + (x == 0).astype(float) @ log_p[:, 0]
    posterior = softmax(at_nodes - theta**2 / 2, axis=1)  # given the other items
    answers = responses[item].to_numpy(float)
    best = {}
    for slope in slopes:
        # Difficulties so close together that even the steepest curve is not skipped over.
        difficulty = items.loc[item, "b"] + np.linspace(-0.5, 0.5, 101)
        curves = pd.DataFrame({"a": slope, "b": difficulty, "c": items.loc[item, "c"]})
        correct = posterior @ irt.curves.probability(theta, curves)  # (n_persons, n_difficulties)
        likelihood = np.where((answers == 1)[:, None], correct, 1 - correct)
        best[slope] = np.log(likelihood[~np.isnan(answers)]).sum(axis=0).max()
    return pd.Series(best, name="loglik").rename_axis("slope")


def shortest_form(items: pd.DataFrame, low: float, high: float) -> pd.Series:
    """Add one item at a time, that which lowers the mean standard error most.

    Return by item, in the order of the choice, the mean of 1 / sqrt(information + 1) over abilities
    from ``low`` to ``high`` (logits); 1 is the prior's information."""
    information = irt.curves.item_information(np.linspace(low, high, 101), items)
    total = np.ones(len(information))
    chosen = {}
    remaining = list(range(len(items)))
    while remaining:
        errors = ((total[:, None] + information[:, remaining]) ** -0.5).mean(axis=0)
        best = remaining.pop(int(errors.argmin()))
        chosen[items.index[best]] = errors.min()
        total = total + information[:, best]
    return pd.Series(chosen, name="mean_se")


def fit_of(
    fit: irt.IRTFit, responses: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test a fit with held guessing by S-X2, LD-X2, M2 and marginal residuals (section 7.2.4).

    Return the numbers of misfitting items and dependent pairs (Holm, .05) and the RMSEA, and by
    size of subset the share of residuals above 3.5, also of responses drawn from the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of S-X2: see above
        items = irt.s_x2(fit, responses)
        pairs = irt.ld_x2(fit, responses)
    m2 = irt.m2(fit, responses)
    rows = {}
    for name, table in (("n_misfitting", items), ("n_dependent_pairs", pairs)):
        rows[name] = {"value": (stats.holm(table["p"]) < 0.05).sum(), "n": len(table)}
    rows["rmsea"] = {"value": m2.rmsea, "low": m2.rmsea_low, "high": m2.rmsea_high}
    statistics = pd.DataFrame.from_dict(rows, orient="index")
    drawn = simulate.responses(rng.normal(size=len(responses)), fit.items, rng)
    drawn = drawn.set_axis(responses.index).where(responses.notna())
    held = {"guessing": fit.items["c"].iloc[0], "start": fit.items, "standard_errors": False}
    again = irt.fit(drawn, "3PL", **held)
    rows = {}
    for size, name in ((2, "pairs"), (3, "triplets")):
        observed = marginal_residuals(fit.items, responses, size)
        expected = marginal_residuals(again.items, drawn, size)
        rows[name] = {
            "proportion": (observed > 3.5).mean(),
            "proportion_of_a_true_model": (expected > 3.5).mean(),
            "n": len(observed),
        }
    return statistics, pd.DataFrame(rows).T
