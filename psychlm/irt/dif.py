r"""Differential item functioning: items harder for one group than for another of the same ability.

Mantel and Haenszel's test and logistic regression compare persons of equal score, on items that are
right or wrong; likelihood ratios free an item's parameters in one group of a two-group model of any
form; random effects explain differences by kinds of items.
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

from psychlm.frames import FrameError, check_responses, format_names, refuse
from psychlm.irt._fit import fit
from psychlm.irt.explanatory import BOUNDARY_SD, fit_difficulties
from psychlm.irt.model_tables import STANDARD_GRID, normal_weights
from psychlm.irt.priors import Prior
from psychlm.irt.response_functions import model_named
from psychlm.irt.response_matrix import uncompressed
from psychlm.irt.result import IRTFit
from psychlm.irt.specification import IRTWarning, check_groups
from psychlm.stats import holm

ALPHA = 0.05  # level of the tests behind the classes A, B and C
DELTA_PER_LOGIT = -2.35  # the delta scale of ETS (Holland & Thayer 1988)
MAX_ROUNDS = 10  # of purification


@dataclass(frozen=True)
class MantelHaenszel:
    """Mantel-Haenszel tests of every item between two groups."""

    items: pd.DataFrame  # by item, see mantel_haenszel
    n_reference: int  # persons who were asked every item
    n_focal: int
    n_set_aside: int  # persons who were not, and are left out
    n_rounds: int  # of purification; 1 without
    settled: bool  # whether the last round left the matching score as it was


@dataclass(frozen=True)
class LikelihoodRatioDIF:
    """Likelihood-ratio tests of every item between two groups."""

    items: pd.DataFrame  # by item, see dif_likelihood_ratio
    baseline: IRTFit  # the model with which each item's is compared
    n_untested: int  # items answered alike by all of a group, whose parameters would be infinite


@dataclass(frozen=True)
class ExplanatoryDIF:
    """Differential item functioning with partial pooling; logits, above 0: harder for the focal."""

    by: pd.DataFrame  # by kind of item: difference, se, low, high, n_items
    items: pd.DataFrame  # by item: difference (kind's and its own), se, low, high, b, kind
    mean_difference: float  # of all items: the reference group's mean ability less the focal's
    se_mean_difference: float
    sds: pd.Series  # of difficulties, and of the differences of kinds and of items within a kind
    at_boundary: tuple[str, ...]  # names of the sds estimated at their boundary 0
    ability_sd: pd.Series  # reference, focal
    loglik: float  # nats
    n_persons: int
    converged: bool


def focal_persons(
    persons: pd.Index, group: pd.Series | Sequence, reference: object = None
) -> np.ndarray:
    """Return which persons belong to the focal group of two, in their order."""
    names, member = check_groups(persons, group, reference)
    if len(names) != 2:
        raise FrameError(
            f"two groups are needed, and these are {len(names)}: {format_names(names)}"
        )
    return member == 1


def complete_persons(
    responses: pd.DataFrame, group: pd.Series | Sequence, reference: object
) -> tuple[np.ndarray, np.ndarray, pd.Index]:
    """Return the responses of persons who were asked every item, who is focal, and the items."""
    checked = check_responses(responses)
    focal = focal_persons(checked.index, group, reference)
    complete = checked.notna().all(axis=1).to_numpy()
    is_focal = focal[complete]
    if is_focal.all() or not is_focal.any():
        raise FrameError("every person of a group has missing responses; choose complete items")
    return checked.to_numpy()[complete], is_focal, checked.columns


def mantel_haenszel(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    purify: bool = True,
    n_strata: int | None = None,
) -> MantelHaenszel:
    r"""Compare the odds of a right response between two groups, among persons of equal score.

    With A, B the right and wrong responses of the reference group in a stratum of T persons, and C,
    D those of the focal group, the common odds ratio is :math:`\sum AD/T \big/ \sum BC/T`; above 1
    the item favours the reference group.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0 and 1. Persons with missing responses are set aside and counted.
    group : Series indexed by person, or sequence in the order of the responses
        Two labels, such as "human" and "model".
    reference : label, optional
        The reference group; by default the label of the first person.
    purify : bool
        Leave items of class B or C out of the matching score, but for the studied item (Holland &
        Thayer 1988), and repeat until the classes stay.
    n_strata : int, optional
        Match on this many classes between quantiles of the score rather than on every score: with
        more items than persons nearly every score occurs once.

    Returns
    -------
    MantelHaenszel
        ``items`` has ``odds_ratio``, ``log_odds`` (above 0: harder for the focal group) and ``se``
        (Robins, Breslow & Greenland 1986); ``delta`` = -2.35 log odds and ``se_delta``; ``chi2``
        with continuity correction, ``p``, ``p_adjusted`` (Holm); ``std_p_dif``, the difference
        focal less reference in proportions correct, standardised to the focal group's scores
        (Dorans & Kulick 1986); ``ets``, class A (negligible: \|delta\| < 1 or not significant), C
        (large: \|delta\| >= 1.5 and significantly above 1) or B; ``n_reference``, ``n_focal``,
        ``n_strata``: persons and strata in which both groups and both responses occur;
        ``in_matching``. NaN (class "") where no such stratum is left.

    References
    ----------
    Mantel & Haenszel (1959), Journal of the National Cancer Institute 22, 719-748; Zieky (1993), in
    Holland & Wainer (eds.), Differential Item Functioning, for the classes.

    Examples
    --------
    >>> from psychlm import corpora
    >>> test = mantel_haenszel(corpora.lsat6(), ["a", "b"] * 500)
    >>> test.items["ets"].tolist(), test.n_rounds
    (['A', 'A', 'A', 'A', 'A'], 1)
    """
    if n_strata is not None and (n_strata < 2 or n_strata != int(n_strata)):
        raise ValueError(f"n_strata={n_strata} classes; give a whole number of at least 2, or None")
    x, is_focal, names = complete_persons(responses, group, reference)
    in_matching, settled, n_rounds = np.ones(x.shape[1], dtype=bool), not purify, 0
    while True:
        # The matching score of every person, with the studied item: (n_persons, n_items).
        score = x[:, in_matching].sum(axis=1, keepdims=True) + ~in_matching * x
        strata = score.astype(int)
        if n_strata is not None:
            edges = np.quantile(score, np.arange(1, n_strata) / n_strata, axis=0)
            strata = sum((score > edge for edge in edges), start=np.zeros(score.shape, dtype=int))
        items = _by_stratum(x, is_focal, strata).set_index(names)
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
        n_reference=int((~is_focal).sum()),
        n_focal=int(is_focal.sum()),
        n_set_aside=len(responses) - len(x),
        n_rounds=n_rounds,
        settled=settled,
    )


def _by_stratum(x: np.ndarray, is_focal: np.ndarray, strata: np.ndarray) -> pd.DataFrame:
    """Return the statistics of every item from its 2 x 2 tables, one for each stratum."""
    n_items, n_strata = x.shape[1], int(strata.max()) + 1
    cell = (np.arange(n_items) * n_strata + strata) * 2 + is_focal[:, None]
    counts = np.bincount((cell * 2 + x.astype(int)).ravel(), minlength=4 * n_items * n_strata)
    # Counts a, b (reference right, wrong), c, d (focal right, wrong): each (n_items, n_strata).
    tables = counts.reshape(n_items, n_strata, 2, 2).astype(float)
    (b, a), (d, c) = tables.transpose(2, 3, 0, 1)
    reference, focal, right, wrong = a + b, c + d, a + c, b + d
    both, size = (reference > 0) & (focal > 0), np.maximum(reference + focal, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Common odds ratio: sum(ad/T) / sum(bc/T).
        ad, bc = a * d / size, b * c / size
        ad_sum, bc_sum = ad.sum(1), bc.sum(1)
        log_odds = np.log(ad_sum / bc_sum)
        # Its standard error (Robins, Breslow & Greenland 1986, equation 3).
        p, q = (a + d) / size, (b + c) / size
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
    informative = both & (right > 0) & (wrong > 0)
    for name, persons in (("n_reference", reference), ("n_focal", focal), ("n_strata", 1)):
        columns[name] = (persons * informative).sum(1).astype(int)
    return pd.DataFrame(columns)


def dif_logistic(
    responses: pd.DataFrame, group: pd.Series | Sequence, *, reference: object = None
) -> pd.DataFrame:
    r"""Test items between two groups by logistic regression on the score.

    .. math:: \operatorname{logit} P = \beta_0 + \beta_1 score + \beta_2 focal
              + \beta_3 score \times focal

    Parameters
    ----------
    responses, group, reference
        As in :func:`mantel_haenszel`. All items count in the score.

    Returns
    -------
    DataFrame, one row per item
        ``chi2``, ``p`` and ``p_adjusted`` (Holm) of both kinds of DIF together (2 degrees of
        freedom), ``p_uniform`` (group) and ``p_nonuniform`` (its interaction with the score);
        ``log_odds`` of the focal group without interaction, and ``se``; ``delta_r2``, the gain in
        Nagelkerke's R^2, with its ``class``: A (not significant or below 0.035), B or C (at least
        0.070). NaN where an item is answered alike by all, or separated by the score.

    References
    ----------
    Swaminathan & Rogers (1990), Journal of Educational Measurement 27, 361-370; Jodoin & Gierl
    (2001), Applied Measurement in Education 14, 329-349, for the classes.

    Examples
    --------
    >>> from psychlm import corpora
    >>> dif_logistic(corpora.lsat6(), ["a", "b"] * 500)["class"].tolist()
    ['A', 'A', 'A', 'A', 'A']
    """
    x, is_focal, items = complete_persons(responses, group, reference)
    score = x.sum(axis=1)
    z = (score - score.mean()) / max(score.std(), 1e-12)
    columns = np.column_stack([np.ones(len(z)), z, is_focal, z * is_focal])
    rows = []
    for answers in x.T:
        (one, *_), (two, log_odds, se), (both, *_) = (
            _logistic_regression(columns[:, :n], answers) for n in (2, 3, 4)
        )
        # Nagelkerke's R^2 of the models without and with the group.
        share = answers.mean()
        null = len(x) * (xlogy(share, share) + xlogy(1 - share, 1 - share))
        scale = 1 - np.exp(2 * null / len(x))
        r2 = [(1 - np.exp(2 * (null - loglik) / len(x))) / scale for loglik in (one, both)]
        gains = 2 * np.array([both - one, two - one, both - two])
        p = chi2.sf(np.maximum(gains, 0.0), [2, 1, 1])
        rows.append([gains[0], *p, log_odds, se, r2[1] - r2[0]])
    names = ["chi2", "p", "p_uniform", "p_nonuniform", "log_odds", "se", "delta_r2"]
    table = pd.DataFrame(rows, items, names)
    table.insert(2, "p_adjusted", holm(table["p"]))
    gain = table["delta_r2"]
    negligible = ~(table["p"] < ALPHA) | (gain < 0.035)
    table["class"] = np.select([table["p"].isna(), negligible, gain < 0.070], ["", "A", "B"], "C")
    return table


def _logistic_regression(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return log-likelihood, coefficient and standard error of the last column; NaN if infinite."""
    from statsmodels.discrete.discrete_model import Logit
    from statsmodels.tools.sm_exceptions import PerfectSeparationError

    model = Logit(y, x)
    model.raise_on_perfect_prediction = True
    try:
        if np.ptp(y) == 0:
            raise PerfectSeparationError
        result = model.fit(method="newton", maxiter=50, disp=False, warn_convergence=False)
    except (PerfectSeparationError, np.linalg.LinAlgError):
        return np.nan, np.nan, np.nan
    if not result.mle_retvals["converged"] or not np.isfinite(result.bse).all():
        return np.nan, np.nan, np.nan
    return result.llf, result.params[-1], result.bse[-1]


def dif_likelihood_ratio(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    *,
    reference: object = None,
    model: str = "2PL",
    anchors: Sequence | pd.Index | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> LikelihoodRatioDIF:
    r"""Test whether an item's parameters differ between two groups, whose abilities may differ.

    Twice the gain in log-likelihood from an item's own parameters in each group is chi-square
    distributed with 2 degrees of freedom for the 2PL (slope and difficulty), 1 for the 1PL, and so
    on for any model of :func:`psychlm.irt.fit` but the Rasch model (which is the 1PL).

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
    checked = check_responses(responses, ratings=not model_named(model).dichotomous)
    focal = focal_persons(checked.index, group, reference)
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
        checked, free = checked.drop(columns=untested), tested
    settings: dict[str, Any] = {"reference": "reference", "priors": priors}
    settings |= {"group": np.where(focal, "focal", "reference"), "standard_errors": False}
    baseline = fit(checked, model, free=free, **settings)

    def refitted(start: IRTFit) -> dict:
        """Return the model of every tested item, which frees it, or with anchors constrains it."""
        changed = free.drop if anchors is not None else lambda item: free.union([item])
        return {
            item: fit(checked, model, free=changed(item), start=start, **settings)
            for item in tested
        }

    def objective(fitted: IRTFit) -> float:
        return fitted.loglik + fitted.log_prior

    others = refitted(baseline)
    best = max(others.values(), key=lambda other: other.loglik)
    if anchors is not None and best.loglik > baseline.loglik:
        # The baseline may have ended at a local maximum, below that of a model nested in it.
        again = fit(checked, model, free=free, start=best, **settings)
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
    reference, focal = freed.in_group("reference"), freed.in_group("focal")
    names = [name for name in freed.items if re.fullmatch(r"a|b\d*", name)]
    old, new = (each.items.loc[item, names].astype(float) for each in (reference, focal))
    row = old.add_suffix("_reference").to_dict() | new.add_suffix("_focal").to_dict()
    # Curves of both groups at the focal group's abilities, (n_nodes, n_categories).
    theta = focal.ability_mean + focal.ability_sd * STANDARD_GRID
    position = freed.items.index.get_loc(item)
    there, here = (each.probability(theta)[:, position] for each in (reference, focal))
    gap = (here - there) @ np.arange(here.shape[1]) / ((here > 0).any(axis=0).sum() - 1)
    # The mean leaves out categories that the item lacks; flat items have infinite difficulties.
    with np.errstate(invalid="ignore"):
        row["b_difference"] = float((new - old)[names[1:]].mean())
    row["p_difference"] = float(normal_weights(STANDARD_GRID) @ gap)
    return row


def dif_explanatory(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    by: pd.Series,
    *,
    reference: object = None,
    max_iterations: int = 500,
) -> ExplanatoryDIF:
    r"""Explain differential item functioning by kinds of items, with partial pooling.

    .. math:: b_{jf} - b_{jr} = \delta + s_{k(j)} + u_j, \quad s_k \sim N(0, \tau_s^2), \quad
              u_j \sim N(0, \tau_u^2), \qquad b_{jr} \sim N(\mu, \tau_b^2)

    with k(j) the kind of item j, such as a linguistic phenomenon. The mean difference
    :math:`\delta` is one of ability, whose sd is estimated in each group. Differences are shrunken
    towards their mean, so that many of them need no further correction for their number (Gelman,
    Hill & Yajima 2012).

    Parameters
    ----------
    responses, group : DataFrame, and Series or sequence
        As in :func:`mantel_haenszel`; an item may be answered alike by all of a group.
    by : Series indexed by item
        The kind of every item.
    reference, max_iterations
        The reference group; quasi-Newton steps.

    Returns
    -------
    ExplanatoryDIF
        With intervals of posterior probability 0.95.

    Warns
    -----
    IRTWarning
        Without convergence, or with a variance of differences at its boundary 0, which
        ``at_boundary`` names: these are then 0 with ``se``, ``low`` and ``high`` NaN.

    References
    ----------
    De Boeck (2008), Psychometrika 73, 533-559; Van den Noortgate & De Boeck (2005), Journal of
    Educational and Behavioral Statistics 30, 443-464 (DIF as a random effect); Gelman, Hill &
    Yajima (2012), Journal of Research on Educational Effectiveness 5, 189-211.

    Examples
    --------
    >>> from psychlm import corpora
    >>> lsat = corpora.lsat6()
    >>> kinds = pd.Series(["a", "a", "a", "b", "b"], lsat.columns)
    >>> found = dif_explanatory(lsat, np.arange(1000) % 2, kinds)
    >>> found.by.index.tolist(), found.converged
    (['a', 'b'], True)
    """
    checked = check_responses(responses)
    focal = focal_persons(checked.index, group, reference)
    refuse("items", by.index[by.index.duplicated()], "stand twice in `by`; keep one of each")
    kinds = by.reindex(checked.columns)
    refuse("items", kinds.index[kinds.isna()], "have no kind in `by`; give them one")
    codes, names = pd.factorize(kinds, sort=True)
    n_items, n_kinds = checked.shape[1], len(names)
    if not 2 <= n_kinds < n_items:
        raise FrameError(
            f"{n_kinds} kinds of {n_items} items: give at least two, and fewer than items, or test "
            "single items by mantel_haenszel or dif_likelihood_ratio"
        )
    # Cells: every item in the reference group, then every item in the focal group.
    cells = pd.concat([checked[~focal], checked[focal]], axis=1).reindex(checked.index)
    one, none = np.eye(n_items), np.zeros((n_items, n_items))
    of_kind = np.eye(n_kinds)[codes]
    in_focal = np.repeat([0.0, 1.0], n_items)
    estimates = fit_difficulties(
        uncompressed(cells.to_numpy(), checked.index),
        np.column_stack([np.ones(2 * n_items), in_focal]),
        [np.vstack([one, one]), np.vstack([0 * of_kind, of_kind]), np.vstack([none, one])],
        in_focal.astype(int),
        max_iterations,
    )
    if not estimates.converged:
        message = f"no convergence in {estimates.n_iterations} steps; raise max_iterations"
        warnings.warn(message, IRTWarning, stacklevel=2)

    # A variance at its boundary 0: its effects are 0 by estimate, and the responses give them no
    # interval, since the posterior given that variance is a point.
    sds = pd.Series(estimates.tau, ["difficulty", "difference_of_kinds", "difference_of_items"])
    at_boundary = tuple(sds.index[sds <= BOUNDARY_SD])
    differences = [name for name in at_boundary if name != "difficulty"]
    if differences:
        warnings.warn(
            f"the variance of {' and of '.join(differences)} is estimated at its boundary 0: the "
            "responses tell no such differences from chance, so they are 0 without interval (NaN)",
            IRTWarning,
            stacklevel=2,
        )

    # Rows of the covariance: mean and delta, difficulties of items, differences of kinds, of items.
    _, of_kinds, of_items = estimates.effects
    covariance = estimates.covariance[2 + n_items :, 2 + n_items :]
    variance, item_rows = covariance.diagonal(), n_kinds + np.arange(n_items)
    of_item = variance[codes] + variance[item_rows] + 2 * covariance[codes, item_rows]

    def table(modes: np.ndarray, variance: np.ndarray, index: pd.Index) -> pd.DataFrame:
        """Return posterior modes, sds and intervals."""
        se = np.sqrt(variance)
        se = np.where(se > BOUNDARY_SD, se, np.nan)
        half = norm.ppf(0.975) * se
        columns = {"difference": modes, "se": se, "low": modes - half, "high": modes + half}
        return pd.DataFrame(columns, index=index)

    by_kind = table(of_kinds, variance[:n_kinds], pd.Index(names, name="kind"))
    by_item = table(of_kinds[codes] + of_items, of_item, checked.columns.rename("item"))
    return ExplanatoryDIF(
        by=by_kind.assign(n_items=np.bincount(codes)),
        items=by_item.assign(b=estimates.b[:n_items], kind=kinds.to_numpy()),
        mean_difference=float(estimates.eta[1]),
        se_mean_difference=float(np.sqrt(estimates.covariance[1, 1])),
        sds=sds,
        at_boundary=at_boundary,
        ability_sd=pd.Series(estimates.ability_sd, ["reference", "focal"]),
        loglik=estimates.loglik,
        n_persons=len(checked),
        converged=estimates.converged,
    )
