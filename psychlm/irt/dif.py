r"""Differential item functioning: items that are harder for one group than for another *of the same ability*.

Two tests of the same question. Mantel and Haenszel's compares the groups' odds of a right answer among persons of
equal score; it needs no model and few persons. The likelihood-ratio test frees an item's parameters in one group of an
item response model; it says by how much they differ, and with the 2PL it sees slopes that differ as well.

People and models may differ in ability as much as they like: that is no differential functioning, and both tests allow
for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit

from psychlm.frames import FrameError, format_names
from psychlm.irt.result import IRTWarning
from psychlm.irt.two_groups import TwoGroupFit, constant_by_group, fit_two_groups, two_groups
from psychlm.stats import benjamini_hochberg, holm

CORRECTIONS: dict[str, Callable[[Any], Any]] = {"holm": holm, "bh": benjamini_hochberg}
DELTA_PER_LOGIT = (
    -2.35
)  # the delta scale of the Educational Testing Service (Holland & Thayer 1988)
SMALL, LARGE = 1.0, 1.5  # in delta: the edges of the classes A, B and C (Zieky 1993)
QUADRATURE_SD = 6.0
QUADRATURE_NODES = 121

Array = np.ndarray


@dataclass(frozen=True)
class MantelHaenszel:
    """Mantel-Haenszel tests of every item between two groups."""

    items: pd.DataFrame  # by item, see mantel_haenszel
    n_reference: int  # persons
    n_focal: int
    n_set_aside: int  # persons left out of all tables, since an answer that the matching score needs is missing
    n_rounds: int  # of purification; 1 where the score was taken as it is
    settled: bool  # whether the last round left the matching score as it was

    @property
    def anchors(self) -> pd.Index:
        """The items of the matching score in the last round."""
        return self.items.index[self.items["in_matching"]]


@dataclass(frozen=True)
class LikelihoodRatioDIF:
    """Likelihood-ratio tests of every item between two groups."""

    items: pd.DataFrame  # by item, see dif_likelihood_ratio
    baseline: TwoGroupFit  # the model with which each item's is compared
    n_untested: int  # items answered alike by everyone of a group: parameters of their own would be infinite


def mantel_haenszel(
    responses: pd.DataFrame,
    group: pd.Series,
    *,
    reference: object = None,
    matching: Literal["total", "rest"] = "total",
    purify: bool = True,
    missing: Literal["drop", "wrong", "share"] = "drop",
    n_strata: int | None = None,
    correction: Literal["holm", "bh"] = "holm",
    alpha: float = 0.05,
    max_rounds: int = 10,
) -> MantelHaenszel:
    r"""Compare the odds of a right answer between two groups, among persons of equal score, for every item.

    With A, B the right and wrong answers of the reference group in a stratum of T persons, and C, D those of the focal
    group, the common odds ratio is :math:`\sum AD/T \big/ \sum BC/T`; above 1 the item favours the reference group.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN.
    group : Series, indexed by person
        Two labels, such as "human" and "model".
    reference : label, optional
        The reference group; the label of the first person unless given.
    matching : {"total", "rest"}
        Match persons on the score with the studied item (as Holland & Thayer 1988 advise) or without it.
    purify : bool
        Leave items of class B or C out of the matching score, and repeat until the classes stay. The studied item
        itself counts in its own total score in any case.
    missing : {"drop", "wrong", "share"}
        What becomes of persons who were not asked an item of the matching score: they are set aside (and counted),
        their missing answers count as wrong *in the score*, or they are matched by the share that is right of what
        they answered, which takes ``n_strata``. Nobody is in the table of an item that they were not asked.
    n_strata : int, optional
        Match on so many classes of scores (between quantiles of the score) rather than on every score: with more
        items than persons nearly every score is met once, and a stratum of one person says nothing.
    correction : {"holm", "bh"}
        Of p values over items.
    alpha : float
        Level of the classes' tests.
    max_rounds : int
        Of purification.

    Returns
    -------
    MantelHaenszel
        ``items`` has one row per item: ``odds_ratio``, ``log_odds`` (above 0: harder for the focal group) and its
        standard error ``se`` (Robins, Breslow & Greenland 1986); ``delta`` = -2.35 log odds ratio (below 0: harder for
        the focal group) and ``se_delta``; ``chi2`` with continuity correction, ``p`` and ``p_adjusted``;
        ``std_p_dif``, the difference focal less reference in proportions right, standardised to the focal group's
        scores (Dorans & Kulick 1986); ``ets``, class A (negligible: \|delta\| < 1, or not significant), C (large:
        \|delta\| >= 1.5, and significantly above 1) or B; ``n_reference``, ``n_focal`` and ``n_strata``, the persons
        and strata in which both groups and both answers occur; ``in_matching``. NaN (class "") where no such stratum
        is left.

    Raises
    ------
    FrameError
        If responses or groups are malformed, or setting persons aside leaves a group empty.

    Notes
    -----
    The continuity correction takes at most the whole difference: where the observed and the expected count are less
    than one half apart, chi2 is 0. An odds ratio of 0 or infinity, where a group has no right or no wrong answer, has
    no standard error to test a large difference by: such an item is of class A or B.

    References
    ----------
    Mantel & Haenszel (1959), Journal of the National Cancer Institute 22, 719-748; Holland & Thayer (1988), in
    Wainer & Braun (eds.), Test Validity, 129-145; Zieky (1993), in Holland & Wainer (eds.), Differential Item
    Functioning, 337-347.
    """
    answers, focal = two_groups(responses, group, reference=reference)
    _check_matching(matching, missing, n_strata, correction)
    x, is_focal = answers.to_numpy(), focal.to_numpy()
    in_matching, settled, n_rounds = np.ones(x.shape[1], dtype=bool), not purify, 0
    used = np.ones(len(x), dtype=bool) if missing != "drop" else ~np.isnan(x).any(axis=1)
    if min(used[is_focal].sum(), used[~is_focal].sum()) == 0:
        raise FrameError(
            "every person of a group has missing answers, so none can be matched by their score; "
            "use missing='wrong', or missing='share' with n_strata"
        )
    while True:
        score = _scores(x[used], in_matching, matching, missing)
        items = _test(x[used], is_focal[used], _strata(score, n_strata), alpha).set_index(
            answers.columns
        )
        n_rounds += 1
        clean = ~items["ets"].isin(["B", "C"]).to_numpy()
        settled |= bool((clean == in_matching).all())
        if settled or n_rounds == max_rounds or not clean.any():
            break
        in_matching = clean
    if not settled:
        warnings.warn(
            f"the matching score did not settle in {n_rounds} rounds; its items are those of the last round",
            IRTWarning,
            stacklevel=2,
        )
    items.insert(items.columns.get_loc("p") + 1, "p_adjusted", CORRECTIONS[correction](items["p"]))
    return MantelHaenszel(
        items.assign(in_matching=in_matching),
        int((~is_focal[used]).sum()),
        int(is_focal[used].sum()),
        int((~used).sum()),
        n_rounds,
        settled,
    )


def _check_matching(matching: str, missing: str, n_strata: int | None, correction: str) -> None:
    if matching not in ("total", "rest"):
        raise ValueError(f"matching={matching!r} is unknown; choose 'total' or 'rest'")
    if missing not in ("drop", "wrong", "share"):
        raise ValueError(f"missing={missing!r} is unknown; choose 'drop', 'wrong' or 'share'")
    if missing == "share" and n_strata is None:
        raise ValueError(
            "missing='share' matches persons by shares, hardly two of which are equal; give n_strata"
        )
    if n_strata is not None and n_strata < 1:
        raise ValueError(f"n_strata={n_strata}: persons are matched in at least one stratum")
    if correction not in CORRECTIONS:
        raise ValueError(f"correction={correction!r} is unknown; choose one of {list(CORRECTIONS)}")


def _scores(x: Array, in_matching: Array, matching: str, missing: str) -> Array:
    """Return every person's matching score for every item, shape (n_persons, n_items)."""
    right, asked = np.nan_to_num(x), ~np.isnan(x)
    total, n_asked = (
        values[:, in_matching].sum(axis=1, keepdims=True) for values in (right, asked)
    )
    own = (
        (~in_matching).astype(int) if matching == "total" else -in_matching.astype(int)
    )  # what the item adds
    score = total + own * right
    if missing != "share":
        return score
    with np.errstate(invalid="ignore"):
        return score / (n_asked + own * asked)


def _strata(score: Array, n_strata: int | None) -> Array:
    """Return strata as whole numbers, shape (n_persons, n_items): the score itself, or classes between quantiles."""
    if n_strata is None:
        return score.astype(int)
    edges = np.nanquantile(score, np.arange(1, n_strata) / n_strata, axis=0)
    return sum((score > edge for edge in edges), start=np.zeros(score.shape, dtype=int))


def _test(x: Array, is_focal: Array, strata: Array, alpha: float) -> pd.DataFrame:
    """Return the statistics of every item, from its 2 x 2 tables by stratum."""
    a, b, c, d = _tables(x, is_focal, strata)
    reference, focal, right, wrong = a + b, c + d, a + c, b + d
    total = reference + focal
    told = (reference > 0) & (focal > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share_right = np.where(told, c / focal - a / reference, 0.0)
        favour, against = (np.where(total > 0, pair / total, 0.0) for pair in (a * d, b * c))
        expected = np.where(total > 0, reference * right / total, 0.0)
        variance = np.where(
            total > 1, reference * focal * right * wrong / (total**2 * (total - 1)), 0.0
        )
        log_odds = np.log(favour.sum(1) / against.sum(1))
        gap = np.maximum(np.abs((a - expected).sum(1)) - 0.5, 0.0)
        chi2 = gap**2 / variance.sum(1)
        se = _log_odds_se(favour, against, a + d, b + c, total)
        weight = np.where(told, focal, 0.0)
        std_p_dif = (weight * share_right).sum(1) / weight.sum(1)
    delta, se_delta, p = DELTA_PER_LOGIT * log_odds, -DELTA_PER_LOGIT * se, stats.chi2.sf(chi2, 1)
    log_odds, delta = (np.where(np.isnan(log_odds), np.nan, v) for v in (log_odds, delta))
    telling = told & (right > 0) & (wrong > 0)
    return pd.DataFrame(
        {
            "odds_ratio": np.exp(log_odds),
            "log_odds": log_odds,
            "se": se,
            "delta": delta,
            "se_delta": se_delta,
            "chi2": chi2,
            "p": p,
            "std_p_dif": std_p_dif,
            "ets": _ets_class(delta, se_delta, p, alpha),
            "n_reference": (reference * telling).sum(1).astype(int),
            "n_focal": (focal * telling).sum(1).astype(int),
            "n_strata": telling.sum(1),
        }
    )


def _tables(x: Array, is_focal: Array, strata: Array) -> tuple[Array, Array, Array, Array]:
    """Count answers: reference right, reference wrong, focal right, focal wrong, each (n_items, n_strata)."""
    n_items, n_strata = x.shape[1], int(strata.max()) + 1
    asked = ~np.isnan(x)
    cell = (np.arange(n_items) * n_strata + strata) * 4 + 2 * is_focal[:, None] + (x == 0)
    counts = (
        np.bincount(cell[asked], minlength=4 * n_items * n_strata)
        .reshape(n_items, n_strata, 4)
        .astype(float)
    )
    return counts[..., 0], counts[..., 1], counts[..., 2], counts[..., 3]


def _log_odds_se(favour: Array, against: Array, agree: Array, differ: Array, total: Array) -> Array:
    """Return the standard error of the common log odds ratio (Robins, Breslow & Greenland 1986, equation 3)."""
    size = np.maximum(total, 1)
    p, q = agree / size, differ / size
    up, down = favour.sum(1), against.sum(1)
    variance = (p * favour).sum(1) / (2 * up**2) + (q * against).sum(1) / (2 * down**2)
    return np.sqrt(variance + (p * against + q * favour).sum(1) / (2 * up * down))


def _ets_class(delta: Array, se: Array, p: Array, alpha: float) -> Array:
    """Return A, B or C (Zieky 1993), and "" where delta is undefined; an infinite delta has no error to test by."""
    size = np.abs(delta)
    with np.errstate(invalid="ignore"):
        beyond_one = (size - SMALL) / se > stats.norm.isf(alpha)
    significant = p < alpha
    classes = np.where(
        (size < SMALL) | ~significant, "A", np.where((size >= LARGE) & beyond_one, "C", "B")
    )
    return np.where(np.isnan(delta), "", classes)


def dif_likelihood_ratio(
    responses: pd.DataFrame,
    group: pd.Series,
    *,
    reference: object = None,
    model: Literal["2PL", "1PL"] = "2PL",
    anchors: Sequence | pd.Index | None = None,
    items: Sequence | pd.Index | None = None,
    correction: Literal["holm", "bh"] = "holm",
    tolerance: float = 1e-4,
) -> LikelihoodRatioDIF:
    r"""Test whether an item's parameters differ between two groups, whose abilities may differ.

    Ability is N(0, 1) in the reference group, N(μ, σ²) with both free in the focal group. Twice the gain in
    log-likelihood from an item's own parameters in each group is χ² with 2 degrees of freedom for the 2PL (slope and
    difficulty), 1 for the 1PL (difficulty).

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Values 0, 1 or NaN (not asked: such answers do not enter the likelihood).
    group : Series, indexed by person
        Two labels.
    reference : label, optional
        The reference group; the label of the first person unless given.
    model : {"2PL", "1PL"}
    anchors : sequence of items, optional
        Items taken to work alike in both groups. In the baseline all *other* items are free, and each of these is
        constrained in turn. Without anchors every item is freed in turn against a baseline in which all are equal
        (all others as anchors): that needs no choice, and goes wrong where many items favour the same group. The
        items of class A in :func:`mantel_haenszel` make sensible anchors. Items that everyone of a group answered
        alike are no part of a baseline with anchors, unless they are anchors.
    items : sequence of items, optional
        The items to test; all (but the anchors) unless given.
    correction : {"holm", "bh"}
        Of p values over items.
    tolerance : float
        As in :func:`psychlm.irt.fit`.

    Returns
    -------
    LikelihoodRatioDIF
        ``items`` has one row per tested item: ``a_reference``, ``b_reference``, ``a_focal``, ``b_focal`` (freed),
        ``b_difference`` (focal less reference, logits; above 0: harder for the focal group), ``p_difference`` (the
        difference of the two curves, focal less reference, averaged over the focal group's abilities, comparable to
        ``std_p_dif``), ``statistic``, ``df``, ``p``, ``p_adjusted`` and ``converged``; NaN for an item that everyone of
        a group answered alike.

    Raises
    ------
    FrameError
        If responses or groups are malformed, an anchor or an item is not there, or nothing is left to test.

    References
    ----------
    Thissen, Steinberg & Wainer (1993), in Holland & Wainer (eds.), Differential Item Functioning, 67-113.
    """
    answers, focal = two_groups(responses, group, reference=reference)
    labels = focal.map({False: "reference", True: "focal"})
    settings: dict[str, Any] = {"reference": "reference", "model": model, "tolerance": tolerance}
    tested, untested = _tested(answers, focal, anchors, items)
    if anchors is None:
        free = pd.Index([])
    else:
        alike = constant_by_group(answers, focal).any(axis=1)
        answers = answers.loc[:, ~alike | alike.index.isin(anchors)]
        free = answers.columns.difference(anchors, sort=False)
    baseline = fit_two_groups(answers, labels, free=free, **settings)
    rows = {}
    for item in tested:
        changed = free.union([item]) if anchors is None else free.drop(item)
        other = fit_two_groups(answers, labels, free=changed, start=baseline, **settings)
        constrained, freed = (baseline, other) if anchors is None else (other, baseline)
        rows[item] = _comparison(item, constrained, freed)
    table = pd.DataFrame.from_dict(rows, orient="index").reindex([*tested, *untested])
    table["p_adjusted"] = CORRECTIONS[correction](table["p"])
    return LikelihoodRatioDIF(table.rename_axis("item"), baseline, len(untested))


def _tested(
    answers: pd.DataFrame,
    focal: pd.Series,
    anchors: Sequence | pd.Index | None,
    items: Sequence | pd.Index | None,
) -> tuple[pd.Index, pd.Index]:
    """Return the items to test, and those of them that cannot be."""
    asked_for = answers.columns if items is None else pd.Index(items)
    fixed = pd.Index([]) if anchors is None else pd.Index(anchors)
    unknown = asked_for.union(fixed, sort=False).difference(answers.columns)
    if len(unknown):
        raise FrameError(f"items {format_names(unknown)} are not among the responses")
    chosen = asked_for.difference(fixed, sort=False)
    alike = constant_by_group(answers, focal).any(axis=1).loc[chosen]
    if anchors is not None and not len(fixed):
        raise FrameError(
            "there are no anchors to tie the groups together; name at least one, or give anchors=None"
        )
    if alike.all():
        raise FrameError(
            "no item is left to test: all are anchors, or a group answered them all alike (or was not asked them)"
        )
    return chosen[~alike], chosen[alike]


def _comparison(item: object, constrained: TwoGroupFit, freed: TwoGroupFit) -> dict[str, Any]:
    own = freed.items.loc[item, ["a_reference", "b_reference", "a_focal", "b_focal"]].astype(float)
    statistic = max(2 * (freed.loglik - constrained.loglik), 0.0)
    df = freed.n_parameters - constrained.n_parameters
    offsets = np.linspace(-QUADRATURE_SD, QUADRATURE_SD, QUADRATURE_NODES)
    weight = stats.norm.pdf(offsets) / stats.norm.pdf(offsets).sum()
    theta = freed.focal_mean + freed.focal_sd * offsets
    theirs, ours = (
        expit(own[f"a_{who}"] * (theta - own[f"b_{who}"])) for who in ("focal", "reference")
    )
    return own.to_dict() | {
        "b_difference": own["b_focal"] - own["b_reference"],
        "p_difference": float(weight @ (theirs - ours)),
        "statistic": statistic,
        "df": df,
        "p": float(stats.chi2.sf(statistic, df)),
        "converged": freed.converged and constrained.converged,
    }
