r"""Differential item functioning: items harder for one group than for another of the same ability.

Mantel and Haenszel's test and logistic regression compare persons of equal score, or of equal
ability where not everyone answered every item, in two groups or more; likelihood ratios free an
item's parameters in one group of a two-group model of any form. Random effects that explain
differences by kinds of items are in :mod:`psychlm.irt.explanatory`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import xlogy
from scipy.stats import chi2, norm

from psychlm._formatting import PaperTables
from psychlm.frames import FrameError, check_responses, format_names, one_column
from psychlm.irt._fit import fit as fit_model
from psychlm.irt.model_tables import STANDARD_GRID, ModelTables, normal_weights
from psychlm.irt.priors import LogNormal, Prior
from psychlm.irt.response_functions import model_named
from psychlm.irt.result import IRTFit
from psychlm.irt.specification import IRTWarning, check_groups
from psychlm.stats import cumulative_logit, holm

ALPHA = 0.05  # level of the tests behind the classes A, B and C
JODOIN_GIERL = (0.035, 0.070)  # gains in R^2 from which classes are B and C (2001)
DELTA_PER_LOGIT = -2.35  # the delta scale of ETS (Holland & Thayer 1988)
MAX_ROUNDS = 10  # of purification
N_CLASSES = 20  # of ability, among which persons are matched
LEAST_SD = 0.05  # of ability in a group, logits
MAX_MOMENT_STEPS = 200  # of EM for the mean and sd of ability in a group
MOMENT_TOLERANCE = 1e-4  # logits
SMALLEST = 1e-300  # of a probability


@dataclass(frozen=True)
class MantelHaenszel(PaperTables):
    """Mantel-Haenszel tests of every item between groups."""

    items: pd.DataFrame  # by item, see mantel_haenszel
    n_persons: pd.Series  # by group, the reference group first
    n_left_out: int  # persons without a group
    matching: str  # what persons of different groups have in common: "score" or "ability"
    tables: np.ndarray  # numbers of persons by item, stratum, group, and response (wrong, right)
    n_rounds: int  # of purification; 1 without
    settled: bool  # whether the last round left the matching as it was

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, list[str]]]:
        sizes = ", ".join(f"{group} {n}" for group, n in self.n_persons.items())
        notes = [
            f"Persons by group, the reference group first: {sizes}; matched on {self.matching}"
        ]
        return [(self.items, "Mantel-Haenszel tests of differential item functioning", notes)]


@dataclass(frozen=True)
class LikelihoodRatioDIF(PaperTables):
    """Likelihood-ratio tests of every item between two groups."""

    items: pd.DataFrame  # by item, see dif_likelihood_ratio
    baseline: IRTFit  # the model with which each item's is compared
    n_untested: int  # items answered alike by all of a group, whose parameters would be infinite

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, list[str]]]:
        notes = [f"{self.n_untested} items that all of a group answered alike are not tested"]
        return [(self.items, "Likelihood-ratio tests of differential item functioning", notes)]


def compared_persons(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    reference: object,
    ratings: bool = False,
    most: float = np.inf,
) -> tuple[pd.DataFrame, list, np.ndarray]:
    """Return the responses of persons who have a group, the groups' names and persons' numbers.

    Others are left out, with a warning that names them; ``most`` groups are taken.
    """
    checked = check_responses(responses, ratings=ratings)
    group = one_column(group)
    if not isinstance(group, pd.Series) and len(group) == len(checked):
        group = pd.Series(np.asarray(group, dtype=object), checked.index)
    if isinstance(group, pd.Series):
        without = checked.index.intersection(group.index[group.isna()])
        if len(without):
            message = f"{len(without)} of {len(checked)} persons have no group and are left out: "
            warnings.warn(message + format_names(without), IRTWarning, stacklevel=3)
        checked = checked.drop(index=without)
        group = group.dropna()
    names, member = check_groups(checked.index, group, reference)
    if len(names) > most:
        raise FrameError(
            f"two groups are needed, and these are {len(names)}: {format_names(names)}"
        )
    if (checked.notna().groupby(member).any().sum() < 2).all():
        raise FrameError("items asked of one group only, so that no item can be compared")
    return checked, names, member


def rest_ability(
    fit: IRTFit, responses: pd.DataFrame, member: np.ndarray, counted: pd.Index
) -> np.ndarray:
    r"""Return every person's expected ability by the counted items of a fit but each, in logits.

    .. math:: E(\theta \mid x_{-i}) = \frac{\sum_q \theta_q w_q / P_i(x_i \mid \theta_q)}
              {\sum_q w_q / P_i(x_i \mid \theta_q)}

    with w the posterior given the answers to all counted items. Ability is normal in each group
    (``member``: the number of every person's), with the mean and standard deviation that make the
    group's answers most likely. Under one common prior items would seem to differ between groups
    that differ in ability. Shape (n_persons, n_items).
    """
    counted = counted.intersection(fit.items.index, sort=False)
    answers = responses[counted]
    telling = fit.of_items(counted)
    posterior = telling.posterior(answers)
    nodes = posterior.nodes
    weights = posterior.weights.copy()
    common = normal_weights(nodes, fit.ability_mean, fit.ability_sd)
    for number in np.unique(member):
        likelihood = posterior.weights[member == number] / np.maximum(common, SMALLEST)
        moments = np.array([fit.ability_mean, fit.ability_sd])
        for _ in range(MAX_MOMENT_STEPS):  # EM for the mean and sd of the group's abilities
            updated = likelihood * normal_weights(nodes, *moments)
            updated /= updated.sum(axis=1, keepdims=True)
            shares = updated.mean(axis=0)
            mean = shares @ nodes
            previous = moments
            moments = np.array([mean, max(np.sqrt(shares @ (nodes - mean) ** 2), LEAST_SD)])
            if np.abs(previous - moments).max() < MOMENT_TOLERANCE:
                break
        weights[member == number] = updated
    # Expected abilities by all counted items, then without the answer to each of them.
    ability = np.repeat((weights @ nodes)[:, None], responses.shape[1], axis=1)
    places = responses.columns.get_indexer(counted)
    tables = ModelTables.of(telling)
    categories = tables.response_array(answers)
    probability = tables.functions.probability_at(nodes)  # (n_counted, n_categories, n_nodes)
    for k in range(probability.shape[1]):
        inverse = 1 / np.maximum(probability[:, k], SMALLEST).T
        without = ((weights * nodes) @ inverse) / (weights @ inverse)
        ability[:, places] = np.where(categories == k, without, ability[:, places])
    return ability


def _matching_model(checked: pd.DataFrame, fit: IRTFit | None) -> IRTFit | None:
    """Return the model that gives ability, or None where everybody answered every item."""
    if fit is None and checked.isna().any(axis=None):
        varying = checked.loc[:, checked.nunique() > 1]
        dichotomous = varying.isin((0, 1, np.nan)).all(axis=None)
        options: dict[str, Any] = {"priors": {"slope": LogNormal(0, 1)}, "standard_errors": False}
        fit = fit_model(varying, "2PL" if dichotomous else "graded", **options)
    return fit


def mantel_haenszel(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    purify: bool = True,
    n_strata: int | None = None,
    fit: IRTFit | None = None,
) -> MantelHaenszel:
    r"""Compare the odds of a right response between groups, among persons of equal score.

    With A, B the right and wrong responses of the reference group in a stratum of T persons, and C,
    D those of the focal group, the common odds ratio is :math:`\sum AD/T \big/ \sum BC/T`; above 1
    the item favours the reference group. Where everyone answered every item, persons are matched on
    the sum score; else, or with ``fit``, on 20 classes of the ability that their other answers
    tell. Whoever answered an item counts in its test.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN (not asked).
    group : Series indexed by person, or sequence in the order of the responses
        Two labels or more. Persons whose label is NaN are left out, with a warning.
    reference : label, optional
        The reference group; by default the label of the first person.
    purify : bool
        Leave items of class B or C out of the matching, but for the studied item (Holland & Thayer
        1988), and repeat until the classes stay.
    n_strata : int, optional
        Match on this many classes between quantiles of the score or ability rather than on every
        score: with more items than persons nearly every score occurs once.
    fit : IRTFit, optional
        The model that gives ability; a 2PL of these responses unless given.

    Returns
    -------
    MantelHaenszel
        ``items`` has ``odds_ratio``, ``log_odds`` (above 0: harder for the focal group, as ETS and
        difR's ``difMH`` have it; :func:`dif_logistic` has the other sign) and ``se`` (Robins,
        Breslow & Greenland 1986); ``delta`` = -2.35 log odds and ``se_delta``; ``chi2``
        with continuity correction, ``p``, ``p_adjusted`` (Holm); ``std_p_dif``, the difference
        focal less reference in proportions correct, standardised to the focal group's scores
        (Dorans & Kulick 1986); ``ets``, class A (negligible: \|delta\| < 1 or not significant), C
        (large: \|delta\| >= 1.5 and significantly above 1) or B; ``n_used`` persons, also by group
        (``n_used_a``), in the ``n_strata`` that have both groups and both responses (NaN and class
        "" without any); ``in_matching``.

        Of three groups or more, ``chi2``, ``df`` and ``p`` are those of the generalised test of all
        groups (Somes 1986, without correction), and each group is compared with the rest:
        ``log_odds_a`` (above 0: harder for group a), ``se_a``, ``p_a`` and so on; ``ets`` is the
        furthest class among them, A unless the generalised test is significant.

    References
    ----------
    Mantel & Haenszel (1959), Journal of the National Cancer Institute 22, 719-748; Zieky (1993), in
    Holland & Wainer (eds.), Differential Item Functioning, for the classes; Somes (1986), The
    American Statistician 40, 106-108, of several groups, as difR's ``difGMH``.

    Examples
    --------
    >>> from psychlm import corpora
    >>> test = mantel_haenszel(corpora.lsat6(), ["a", "b"] * 500)
    >>> test.items["ets"].tolist(), test.n_rounds
    (['A', 'A', 'A', 'A', 'A'], 1)
    """
    if n_strata is not None and (n_strata < 2 or n_strata != int(n_strata)):
        raise ValueError(f"n_strata={n_strata} classes; give a whole number of at least 2, or None")
    checked, names, member = compared_persons(responses, group, reference)
    model = _matching_model(checked, fit)
    n_classes = n_strata if model is None else n_strata or N_CLASSES
    x = checked.to_numpy()
    in_matching = np.ones(x.shape[1], dtype=bool)
    settled = not purify
    n_rounds = 0
    while True:
        # What persons are matched on, by person and item: their score on the matching items and the
        # studied one, or the ability that their other answers tell.
        if model is None:
            matched = x[:, in_matching].sum(axis=1, keepdims=True) + ~in_matching * x
        else:
            matched = rest_ability(model, checked, member, checked.columns[in_matching])
        strata = matched.astype(int)
        if n_classes is not None:  # between quantiles among those who answered the item
            levels = np.arange(1, n_classes) / n_classes
            edges = np.nanquantile(np.where(np.isnan(x), np.nan, matched), levels, axis=0)
            strata = sum((matched > edge for edge in edges), start=np.zeros(x.shape, int))
        tables = _by_stratum(x, member, strata, len(names))
        items = _tests(tables, names).set_index(checked.columns)
        n_rounds += 1
        clean = ~items["ets"].isin(["B", "C"]).to_numpy()
        settled |= bool((clean == in_matching).all())
        if settled or n_rounds == MAX_ROUNDS or not clean.any():
            break
        in_matching = clean
    if not settled:
        message = f"the matching score did not settle in {n_rounds} rounds; the last one is used"
        warnings.warn(message, IRTWarning, stacklevel=2)
    items.insert(items.columns.get_loc("p") + 1, "p_adjusted", holm(items["p"]))
    return MantelHaenszel(
        items=items.assign(in_matching=in_matching),
        n_persons=pd.Series(np.bincount(member), names, name="n_persons"),
        n_left_out=len(responses) - len(x),
        matching="score" if model is None else "ability",
        tables=tables,
        n_rounds=n_rounds,
        settled=settled,
    )


def _by_stratum(x: np.ndarray, member: np.ndarray, strata: np.ndarray, n_groups: int) -> np.ndarray:
    """Return numbers of persons by item, stratum, group, and response (wrong, right)."""
    shape = (x.shape[1], int(strata.max()) + 1, n_groups, 2)
    person, item = np.nonzero(~np.isnan(x))
    places = item, strata[person, item], member[person], x[person, item].astype(int)
    counts = np.bincount(np.ravel_multi_index(places, shape), minlength=int(np.prod(shape)))
    return counts.reshape(shape).astype(float)


def _tests(tables: np.ndarray, names: Sequence) -> pd.DataFrame:
    """Return the statistics of every item, and how many persons they rest on."""
    result = _two_groups(tables) if len(names) == 2 else _all_groups(tables, names)
    # Strata with persons of two groups at least, and with both responses.
    of_groups = tables.sum(axis=3)
    right = tables[..., 1].sum(axis=2)
    size = of_groups.sum(axis=2)
    informative = (size > of_groups.max(axis=2)) & (right > 0) & (right < size)
    n_used = (of_groups * informative[..., None]).sum(axis=1).astype(int)
    result["n_used"] = n_used.sum(axis=1)
    result[[f"n_used_{name}" for name in names]] = n_used
    return result.assign(n_strata=informative.sum(axis=1))


def _all_groups(tables: np.ndarray, names: Sequence) -> pd.DataFrame:
    """Return the generalised test of items, and of each group against the rest."""
    # The right responses of all groups but the last, less those expected, by the inverse of their
    # covariance under no difference (Somes 1986, equations 2 to 4).
    of_groups = tables.sum(axis=3)
    right = tables[..., 1].sum(axis=2)
    size = of_groups.sum(axis=2)
    share = of_groups / np.maximum(size, 1)[..., None]
    difference = (tables[..., 1] - share * right[..., None]).sum(axis=1)[:, :-1]
    scale = right * (size - right) / np.maximum(size - 1, 1)
    spread = (scale[..., None] * share).sum(axis=1)[:, :, None] * np.eye(len(names))
    spread = (spread - np.einsum("is,isg,ish->igh", scale, share, share))[:, :-1, :-1]
    inverse = np.linalg.pinv(spread, hermitian=True)
    statistic = np.einsum("ig,igh,ih->i", difference, inverse, difference)
    df = np.linalg.matrix_rank(spread, hermitian=True)
    p = np.where(df > 0, chi2.sf(statistic, np.maximum(df, 1)), np.nan)
    result = pd.DataFrame({"chi2": np.where(df > 0, statistic, np.nan), "df": df, "p": p})
    classes = []
    for g, name in enumerate(names):
        rest = tables.sum(axis=2) - tables[:, :, g]
        alone = _two_groups(np.stack([rest, tables[:, :, g]], axis=2))
        classes.append(alone["ets"])
        for column in ("log_odds", "se", "p"):
            result[f"{column}_{name}"] = alone[column]
    worst = pd.concat(classes, axis=1).max(axis=1)  # of "", "A", "B" and "C" the last
    return result.assign(ets=np.where(p < ALPHA, worst, np.where(np.isnan(p), "", "A")))


def _two_groups(tables: np.ndarray) -> pd.DataFrame:
    """Return the statistics of items from 2 x 2 tables, (n_items, n_strata, group, response)."""
    # Counts a, b (reference right, wrong), c, d (focal right, wrong): each (n_items, n_strata).
    (b, a), (d, c) = tables.transpose(2, 3, 0, 1)
    reference = a + b
    focal = c + d
    right = a + c
    wrong = b + d
    both = (reference > 0) & (focal > 0)
    size = np.maximum(reference + focal, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Common odds ratio: sum(ad/T) / sum(bc/T).
        ad = a * d / size
        bc = b * c / size
        ad_sum = ad.sum(1)
        bc_sum = bc.sum(1)
        log_odds = np.log(ad_sum / bc_sum)
        # Its standard error (Robins, Breslow & Greenland 1986, equation 3).
        p = (a + d) / size
        q = (b + c) / size
        variance = (p * ad).sum(1) / (2 * ad_sum**2) + (q * bc).sum(1) / (2 * bc_sum**2)
        se = np.sqrt(variance + (p * bc + q * ad).sum(1) / (2 * ad_sum * bc_sum))
        # Chi-square of right responses less those expected, corrected by at most one half.
        distance = np.maximum(np.abs((c - focal * right / size).sum(1)) - 0.5, 0.0)
        spread = reference * focal * right * wrong / (size**2 * np.maximum(size - 1, 1))
        statistic = distance**2 / spread.sum(1)
        # The standardised difference of proportions.
        apart = np.where(both, c / focal - a / reference, 0.0)
        difference = (focal * apart).sum(1) / np.where(both, focal, 0).sum(1)
        columns = {"odds_ratio": np.exp(log_odds), "log_odds": log_odds, "se": se}
        columns |= {"delta": DELTA_PER_LOGIT * log_odds, "se_delta": -DELTA_PER_LOGIT * se}
        columns |= {"chi2": statistic, "p": chi2.sf(statistic, 1), "std_p_dif": difference}
        # Classes of Zieky (1993); an infinite delta has no error to test it by.
        magnitude = np.abs(columns["delta"])
        beyond_one = (magnitude - 1) / columns["se_delta"] > norm.isf(ALPHA)
    negligible = (magnitude < 1) | ~(columns["p"] < ALPHA)
    large = (magnitude >= 1.5) & beyond_one
    columns["ets"] = np.select([np.isnan(magnitude), negligible, large], ["", "A", "C"], "B")
    return pd.DataFrame(columns)


def dif_logistic(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    fit: IRTFit | None = None,
) -> pd.DataFrame:
    r"""Test items between groups by logistic regression on score or ability.

    .. math:: \operatorname{logit} P(x \ge k) = \alpha_k + \beta_1 z + \beta_{2g} + \beta_{3g} z

    for persons of group g with the standardised score or ability z; of several categories this is
    the model of proportional odds. Where everyone answered every item, z is the score; else, or
    with ``fit``, the ability that the person's other answers tell. Whoever answered an item counts
    in its test. The tests are of large samples: of items that are alike in all groups, 8 to 14 %
    have p < .05 in groups of 25 persons, and 5 % in groups of 100.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0 and 1, or ratings; NaN where not asked.
    group, reference, fit
        As in :func:`mantel_haenszel`; of ratings the model is a graded one unless given.

    Returns
    -------
    DataFrame, one row per item
        ``chi2``, ``df``, ``p`` and ``p_adjusted`` (Holm) of both kinds of DIF together (2 degrees
        of freedom for each group but one), ``p_uniform`` (group) and ``p_nonuniform`` (its
        interaction with z); ``log_odds`` of the focal group without interaction (above 0: easier
        for it, as difR's ``difLogistic``; :func:`mantel_haenszel` has the other sign), and ``se``;
        ``delta_r2``, the gain in Nagelkerke's R^2, with its ``class``: A (not significant or below
        0.035), B or C (at least 0.070); ``n_used`` persons, also by group (``n_used_a``, ...). NaN
        where an item is answered alike by all, or separated by the score; ``log_odds`` and ``se``
        also where all of a group answered alike. Of three groups or more ``log_odds_a``, ``se_a``
        and ``p_a`` compare each with the rest. ``attrs["matching"]`` is "score" or "ability".

    References
    ----------
    Swaminathan & Rogers (1990), Journal of Educational Measurement 27, 361-370; Magis, Raîche,
    Béland & Gérard (2011), International Journal of Testing 11, 365-386, of several groups; Choi,
    Gibbons & Crane (2011), Journal of Statistical Software 39(8), of ratings; Jodoin & Gierl
    (2001), Applied Measurement in Education 14, 329-349, for the classes.

    Examples
    --------
    >>> from psychlm import corpora
    >>> dif_logistic(corpora.lsat6(), ["a", "b"] * 500)["class"].tolist()
    ['A', 'A', 'A', 'A', 'A']
    """
    checked, names, member = compared_persons(responses, group, reference, ratings=True)
    model = _matching_model(checked, fit)
    x = checked.to_numpy()
    if model is None:
        matched = np.repeat(x.sum(axis=1, keepdims=True), x.shape[1], axis=1)
    else:
        matched = rest_ability(model, checked, member, checked.columns)
    rows = []
    for i in range(x.shape[1]):
        answered = ~np.isnan(x[:, i])
        n = int(answered.sum())
        z = matched[answered, i]
        z = (z - z.mean()) / max(z.std(), 1e-12)
        persons = {"z": z, "group": member[answered], "answer": x[answered, i], "count": 1.0}
        cells = pd.DataFrame(persons)
        if model is None:  # persons of a group with equal scores and equal answers are one row
            cells = cells.groupby(["z", "group", "answer"], sort=False, as_index=False).sum()
        z = cells["z"].to_numpy()
        count = cells["count"].to_numpy()
        categories = pd.factorize(cells["answer"], sort=True)[0]
        groups = np.eye(len(names))[cells["group"]]
        focal = groups[:, groups.any(axis=0)][:, 1:]  # of groups who were asked the item
        by_score, _, _ = cumulative_logit(z[:, None], categories, count)
        uniform, b, errors = cumulative_logit(np.column_stack([z, focal]), categories, count)
        crossed = np.column_stack([z, focal, focal * z[:, None]])
        nonuniform, _, _ = cumulative_logit(crossed, categories, count)
        # Nagelkerke's R^2 of the models without and with the groups.
        share = np.bincount(categories, count) / n
        null = n * xlogy(share, share).sum()
        scale = 1 - np.exp(2 * null / n)
        r2 = (1 - np.exp(2 * (null - np.array([by_score, nonuniform])) / n)) / scale
        gains = 2 * np.array([nonuniform - by_score, uniform - by_score, nonuniform - uniform])
        df = np.array([2, 1, 1]) * focal.shape[1]
        p = chi2.sf(np.maximum(gains, 0.0), np.where(df > 0, df, np.nan))
        row = {"chi2": gains[0], "df": df[0], "p": p[0], "p_uniform": p[1], "p_nonuniform": p[2]}
        if len(names) == 2:
            asked_both = focal.shape[1] > 0
            row["log_odds"] = b[-1] if asked_both else np.nan
            row["se"] = errors[-1] if asked_both else np.nan
        for g, name in enumerate(names if len(names) > 2 else []):
            against_rest = np.column_stack([z, groups[:, g]])
            alone, b, errors = cumulative_logit(against_rest, categories, count)
            row |= {f"log_odds_{name}": b[-1], f"se_{name}": errors[-1]}
            row[f"p_{name}"] = chi2.sf(2 * max(alone - by_score, 0.0), 1)
        row |= {"delta_r2": np.diff(r2)[0] if df[0] else np.nan, "n_used": n}
        n_used = (count @ groups).astype(int).tolist()
        row |= {f"n_used_{name}": size for name, size in zip(names, n_used, strict=True)}
        rows.append(row)
    table = pd.DataFrame(rows, checked.columns)
    table.insert(3, "p_adjusted", holm(table["p"]))
    negligible = ~(table["p"] < ALPHA) | (table["delta_r2"] < JODOIN_GIERL[0])
    moderate = table["delta_r2"] < JODOIN_GIERL[1]
    classes = np.select([table["p"].isna(), negligible, moderate], ["", "A", "B"], "C")
    table.insert(table.columns.get_loc("delta_r2") + 1, "class", classes)
    table.attrs["matching"] = "score" if model is None else "ability"
    return table


def dif_likelihood_ratio(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    model: str = "2PL",
    anchors: Sequence | pd.Index | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> LikelihoodRatioDIF:
    """Test whether an item's parameters differ between two groups, whose abilities may differ.

    Twice the gain in log-likelihood from an item's own parameters in each group is chi-square
    distributed. Any model of :func:`psychlm.irt.fit` will do but the Rasch model (it is the 1PL).

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN (not asked: these do not enter the likelihood); ratings for "graded" and
        "gpcm".
    group, reference
        As in :func:`mantel_haenszel`.
    anchors : sequence of items, optional
        Items assumed to work alike in both groups, such as those of class A in
        :func:`mantel_haenszel`. In the baseline all *other* items are free, and each is constrained
        in turn. Without anchors each item is freed in turn against a baseline with all items equal,
        which fails where many items favour one group.
    priors
        As in :func:`psychlm.irt.fit`; the asymptotes of a 4PL need them. The statistic stays the
        gain in log-likelihood, without the priors' densities.

    Returns
    -------
    LikelihoodRatioDIF
        ``items`` has one row per item that is no anchor: ``a_reference``, ``b_reference``,
        ``a_focal``, ``b_focal`` (freed; of several categories ``b1_reference`` and so on),
        ``b_difference`` (focal less reference, logits, averaged over categories; above 0: harder
        for the focal group), ``p_difference`` (of the curves, or of the expected shares of the
        highest category, averaged over the focal group's abilities), ``statistic``, ``df``, ``p``,
        ``p_adjusted`` (Holm), ``converged``; NaN for an item that all of a group answered alike.

    References
    ----------
    Thissen, Steinberg & Wainer (1993), in Holland & Wainer (eds.), Differential Item Functioning.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> group = ["a", "b"] * 500
    >>> dif_likelihood_ratio(lsat, group, model="1PL").items["df"].tolist()
    [1, 1, 1, 1, 1]
    """
    ratings = not model_named(model).dichotomous
    checked, _, member = compared_persons(responses, group, reference, ratings, most=2)
    focal = member == 1
    fixed = pd.Index([] if anchors is None else anchors)
    unknown = fixed.difference(checked.columns)
    if len(unknown) or (anchors is not None and not len(fixed)):
        raise FrameError(f"anchors {format_names(unknown)} are not among the responses, or none is")
    # All of a group who answered an item answered alike (or nobody did), or not in every category.
    least = checked.nunique().clip(lower=2)
    constant = (checked[focal].nunique() < least) | (checked[~focal].nunique() < least)
    studied = checked.columns.difference(fixed, sort=False)
    untested = studied[constant[studied]]
    tested = studied.difference(untested, sort=False)
    if not len(tested):
        raise FrameError("no item is left to test: all are anchors, or a group answered them alike")
    # Baseline: all items equal, or all but the anchors free.
    free = pd.Index([])
    if anchors is not None:
        checked = checked.drop(columns=untested)
        free = tested
    settings: dict[str, Any] = {"reference": "reference", "priors": priors}
    settings |= {"group": np.where(focal, "focal", "reference"), "standard_errors": False}
    baseline = fit_model(checked, model, free=free, **settings)

    def refitted(start: IRTFit) -> dict:
        """Return the model of every tested item, which frees it, or with anchors constrains it."""
        changed = free.symmetric_difference
        return {
            item: fit_model(checked, model, free=changed([item]), start=start, **settings)
            for item in tested
        }

    def objective(fitted: IRTFit) -> float:
        return fitted.loglik + fitted.log_prior

    others = refitted(baseline)
    best = max(others.values(), key=lambda other: other.loglik)
    if anchors is not None and best.loglik > baseline.loglik:
        # The baseline may have ended at a local maximum, below that of a model nested in it.
        again = fit_model(checked, model, free=free, start=best, **settings)
        baseline = max(baseline, again, key=objective)
        others = {
            item: max(others[item], other, key=objective)
            for item, other in refitted(baseline).items()
        }
    rows = {}
    for item, other in others.items():
        constrained, freed = (baseline, other) if anchors is None else (other, baseline)
        df = freed.n_parameters - constrained.n_parameters
        statistic = 2 * max(freed.loglik - constrained.loglik, 0.0)
        rows[item] = _difference(freed, item) | {
            "statistic": statistic,
            "df": df,
            "p": float(chi2.sf(statistic, df)),
            "converged": freed.converged and constrained.converged,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").reindex([*tested, *untested])
    table["p_adjusted"] = holm(table["p"])
    return LikelihoodRatioDIF(table.rename_axis("item"), baseline, len(untested))


def _difference(freed: IRTFit, item: object) -> dict[str, float]:
    """Return an item's parameters in both groups, and how its difficulties and curves differ."""
    reference = freed.in_group("reference")
    focal = freed.in_group("focal")
    names = [name for name in freed.items if re.fullmatch(r"a|b\d*", name)]
    old = reference.items.loc[item, names].astype(float)
    new = focal.items.loc[item, names].astype(float)
    row = old.add_suffix("_reference").to_dict() | new.add_suffix("_focal").to_dict()
    # Curves of both groups at the focal group's abilities, (n_nodes, n_categories).
    theta = focal.ability_mean + focal.ability_sd * STANDARD_GRID
    position = freed.items.index.get_loc(item)
    there = reference.probability(theta)[:, position]
    here = focal.probability(theta)[:, position]
    gap = (here - there) @ np.arange(here.shape[1]) / ((here > 0).any(axis=0).sum() - 1)
    # The mean leaves out categories that the item lacks; flat items have infinite difficulties.
    with np.errstate(invalid="ignore"):
        row["b_difference"] = float((new - old)[names[1:]].mean())
    row["p_difference"] = float(normal_weights(STANDARD_GRID) @ gap)
    return row
