"""Items and reliability in classical test theory; Fleiss' kappa of raters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.optimize import minimize
from scipy.stats import f as f_distribution
from scipy.stats import norm

from psychlm import frames, stats
from psychlm.frames import FrameError, Repeated, check_responses, mean_responses, refuse

Array = NDArray[np.float64]
Weights: TypeAlias = pd.Series | Sequence | None  # by person, or in the order of persons
ITEMS_PER_BLOCK = 1000  # whose rest scores are in memory at once
LEAST_UNIQUENESS = 0.005  # of a standardised item, as in psych
RELATED = 0.6  # correlation of items that are closely related, and are no copies
FALSE_SHARE = 0.1  # of suspect keys that are expected to be right, at most
MOST_ROUNDS = 10  # in which items that are named are left out of the others' rest scores
DECIDED = 2.58  # standard errors, of a correlation 1 / sqrt(n): .01 of two sides


def difficulty(responses: pd.DataFrame | Repeated, *, weights: Weights = None) -> pd.Series:
    """Return the proportion correct of every item (high means easy), among those who answered it.

    ``weights`` by person say, here and below, how many persons of the population each stands for.
    Where persons answered several times (:class:`psychlm.frames.Repeated`), here and where ratings
    are allowed, the share of right answers is the score on the item.

    >>> difficulty(pd.DataFrame({"q1": [0, 1], "q2": [1, np.nan]})).to_dict()
    {'q1': 0.5, 'q2': 1.0}
    """
    checked = mean_responses(responses)
    each = frames.checked_weights(checked.index, weights)
    each = np.ones(len(checked)) if each is None else each
    return (each @ checked.fillna(0) / (each @ checked.notna())).rename("difficulty")


def item_rest_correlation(
    responses: pd.DataFrame | Repeated, *, weights: Weights = None
) -> pd.Series:
    """Return each item's Pearson correlation with the mean of the other items that a person
    answered, also of ratings; NaN for items that everyone answered alike.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> item_rest_correlation(responses).round(3).to_dict()
    {'q1': 0.707, 'q2': 0.522, 'q3': 0.522}
    """
    checked = check_size(responses, ratings=True)
    values = checked.to_numpy()
    each = frames.checked_weights(checked.index, weights)
    n_others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1
    total = np.nansum(values, axis=1, keepdims=True)
    blocks = []  # of items, since the rest scores are as large as the responses
    for start in range(0, values.shape[1], ITEMS_PER_BLOCK):
        block = values[:, start : start + ITEMS_PER_BLOCK]
        with np.errstate(invalid="ignore"):
            rest = (total - block) / n_others
        blocks.append(_columnwise_correlation(np.where(np.isnan(rest), np.nan, block), rest, each))
    return pd.Series(np.concatenate(blocks), checked.columns, name="item_rest_correlation")


def _columnwise_correlation(x: Array, y: Array, weights: Array | None = None) -> Array:
    """Correlate columns pair by pair; x and y are NaN at the same places."""
    present = ~np.isnan(x)
    each = np.ones((1, 1)) if weights is None else weights[:, None]
    n = np.maximum((each * present).sum(axis=0), 1e-300)
    root = np.sqrt(each)  # of the weights, so that products of two deviations have them
    x, y = (
        root * np.where(present, values - np.nansum(each * values, axis=0) / n, 0)
        for values in (x, y)
    )
    norms = np.linalg.norm(x, axis=0) * np.linalg.norm(y, axis=0)
    # Rounding leaves the norm of a constant column near 1e-15 rather than at 0.
    with np.errstate(invalid="ignore"):
        return np.where(norms > 1e-10, (x * y).sum(axis=0) / norms, np.nan)


def inter_item_correlation(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of every pair of items, which is phi for binary responses.

    With n persons who answered both items, of whom r_i and r_j were right and r_ij right on both,
    phi = (n r_ij - r_i r_j) / sqrt(r_i (n - r_i) r_j (n - r_j)). NaN where an item does not vary
    among those who answered both.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> inter_item_correlation(responses).loc["q1", "q2"].round(4)
    np.float64(0.5774)
    """
    checked = check_size(responses)
    answered = checked.notna().to_numpy(np.float64)
    correct = checked.fillna(0).to_numpy(np.float64)
    # Whole numbers, (n_items, n_items) each, so that equal pairs have equal correlations: persons
    # who answered both items, who of them were right on the first one, and on both.
    n = answered.T @ answered
    right = correct.T @ answered
    both = correct.T @ correct
    spread = right * (n - right)
    with np.errstate(invalid="ignore", divide="ignore"):
        phi = (n * both - right * right.T) / np.sqrt(spread * spread.T)
    phi[spread * spread.T <= 0] = np.nan
    return pd.DataFrame(phi, index=checked.columns, columns=checked.columns.rename("other_item"))


def check_size(
    responses: pd.DataFrame | Repeated, n_items: int = 2, ratings: bool = False
) -> pd.DataFrame:
    """Return checked responses of at least ``n_items`` items and two persons."""
    checked = mean_responses(responses, ratings=True) if ratings else check_responses(responses)
    if checked.shape[1] < n_items or len(checked) < 2:
        raise FrameError(
            f"this needs at least {n_items} items and 2 persons, and the responses have "
            f"{checked.shape[1]} and {len(checked)}"
        )
    return checked


def distractors(answers: pd.DataFrame, key: pd.Series | Mapping[str, object]) -> pd.DataFrame:
    """Return who chooses which answer: shares, and correlations with the score on other items.

    ``answers`` (persons x items) are what was chosen, as text, NaN where nothing was; ``key`` has
    the right choices by item. The result has, by ``item`` and ``choice``: ``right``; ``share`` of
    those who answered the item; ``rest_correlation`` of choosing it (0 or 1) with the proportion
    correct on the other items; ``suspect`` where a wrong choice attracts the able, beyond chance
    and more than the right one does: the key may be wrong. The most attractive wrong choice is
    tested (one-sided, times their number), adjusted over items (Benjamini & Hochberg 1995, .1), and
    again without suspect items in the scores, up to ten times.

    >>> answers = pd.DataFrame({"q1": list("AABB"), "q2": list("AABC"), "q3": list("AACB")})
    >>> answers = pd.concat([answers] * 5, ignore_index=True)
    >>> distractors(answers, pd.Series({"q1": "B", "q2": "A", "q3": "A"}))["suspect"].tolist()
    [True, False, False, False, False, False, False, False]
    """
    key = pd.Series(key, dtype=object).dropna()
    refuse("items", key.index[key.index.duplicated()], "have two keys; keep one of each")
    refuse("items", answers.columns.difference(key.index), "have no key; give one, or drop them")
    answers = answers.astype(object).where(answers.notna(), None)
    graded = (answers.to_numpy() == key[answers.columns].to_numpy(object)).astype(float)
    if not graded.any():
        raise FrameError(
            f"no answer is its item's key, such as {key[answers.columns].iloc[0]!r}; write both in "
            "one way, and as values of one type"
        )
    graded[answers.isna()] = np.nan
    right = check_size(pd.DataFrame(graded, answers.index, answers.columns))
    grades = right.fillna(0).to_numpy()
    answered = right.notna().to_numpy()
    chosen = {item: pd.get_dummies(answers[item]).astype(float) for item in answers}
    counted = np.ones(len(chosen), dtype=bool)  # items in the scores by which others are judged
    for _ in range(MOST_ROUNDS):
        told_by = answered & counted
        n_others = told_by.sum(axis=1, keepdims=True) - told_by
        total = (grades * told_by).sum(axis=1, keepdims=True)
        rest = (total - grades * told_by) / np.maximum(n_others, 1)
        tables = {}
        p = np.full(len(chosen), np.nan)  # of items whose key is not surpassed
        for i, (item, choices) in enumerate(chosen.items()):
            scored = answered[:, i] & (n_others[:, i] > 0)
            values = choices.to_numpy()[scored]
            r = _columnwise_correlation(values, rest[scored, i, None])
            table = pd.DataFrame({"right": choices.columns == key[item]}, choices.columns)
            table["share"] = choices[answered[:, i]].mean()
            table["rest_correlation"] = r
            of_key = np.nan_to_num(r[table["right"]]).sum()  # 0: nobody chose it
            attractive = np.where(table["right"], -1, np.nan_to_num(r, nan=-1))
            table["suspect"] = (attractive == attractive.max()) & (attractive > max(of_key, 0))
            if table["suspect"].any():
                p[i] = norm.sf(attractive.max() * np.sqrt(scored.sum())) * (~table["right"]).sum()
            tables[item] = table
        clean = ~(stats.benjamini_hochberg(p.clip(max=1)) < FALSE_SHARE)
        if (clean == counted).all() or clean.sum() < 2:
            break
        counted = clean
    for item, innocent in zip(tables, clean, strict=True):
        tables[item]["suspect"] &= not innocent
    return pd.concat(tables, names=["item", "choice"])


def scalability(responses: pd.DataFrame | Repeated) -> pd.Series:
    r"""Return Mokken's (1971) coefficients H of every item, and of the scale (``"scale"``).

    .. math:: H_i = \frac{\sum_{j \ne i} c_{ij}}{\sum_{j \ne i} c^{max}_{ij}}, \qquad
              H = \frac{\sum_{i < j} c_{ij}}{\sum_{i < j} c^{max}_{ij}}

    with c the covariance of two items and :math:`c^{max}` the largest that their distributions
    allow, reached when both are sorted (R's ``mokken``). A pair rests on those who answered both,
    and is left out where the two do not vary among them (``attrs["n_pairs"]`` counts the others).
    By Mokken's rule a scale of .3 is weak, .4 medium, .5 strong. Ratings are allowed.

    >>> scalability(pd.DataFrame({"q1": [0, 1, 1, 1], "q2": [0, 0, 1, 1]})).tolist()
    [1.0, 1.0, 1.0]
    """
    checked = check_size(responses, ratings=True)
    observed, n_both = stats.pairwise_covariances(checked.to_numpy())
    values = checked.to_numpy()
    if not np.isnan(values).any():
        largest = np.cov(np.sort(values, axis=0).T)
    else:
        # Among those who answered both items: by Hoeffding's formula the sum over thresholds k, l
        # of min(P_k, P_l) - P_k P_l times the widths of the steps there, with P_k the share above.
        answered = (~np.isnan(values)).astype(float)
        levels = np.unique(values[~np.isnan(values)])
        n_shared = np.maximum(n_both, 1)
        shares = [(values > level).astype(float).T @ answered / n_shared for level in levels[:-1]]
        largest = np.zeros(observed.shape)
        for share_1, width_1 in zip(shares, np.diff(levels), strict=True):
            for share_2, width_2 in zip(shares, np.diff(levels), strict=True):
                excess = np.minimum(share_1, share_2.T) - share_1 * share_2.T
                largest += width_1 * width_2 * excess
        largest *= n_both / np.maximum(n_both - 1, 1)
    known = (n_both > 1) & (largest > 1e-12)
    np.fill_diagonal(known, False)
    if not known.any():
        raise FrameError(
            "no two items both vary among the persons who answered both, so H is undefined; leave "
            "out items that everyone answered alike"
        )
    observed = np.where(known, observed, 0.0)
    largest = np.where(known, largest, 0.0)
    with np.errstate(invalid="ignore"):
        of_items = observed.sum(axis=0) / largest.sum(axis=0)
    labels = checked.columns.append(pd.Index(["scale"]))
    result = pd.Series(np.append(of_items, observed.sum() / largest.sum()), labels, name="H")
    result.attrs["n_pairs"] = int(known.sum() // 2)
    return result


def cronbach_alpha(responses: pd.DataFrame | Repeated, *, weights: Weights = None) -> float:
    """Return Cronbach's (1951) alpha, k/(k - 1) (1 - sum_i s_i^2 / s^2).

    s_i^2 is the variance of item i and s^2 that of the sum score, the sum of all pairwise
    covariances, also of ratings; of complete binary responses this is KR-20. Items that everyone
    answered alike stay in, with variance 0 (R's ``psych`` drops them).

    >>> round(cronbach_alpha(pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1]})), 4)
    0.7273
    """
    return _alpha(*_with_total(check_size(responses, ratings=True), weights))


def alpha_interval(
    responses: pd.DataFrame | Repeated, *, level: float = 0.95
) -> tuple[float, float]:
    r"""Return the confidence interval of Cronbach's alpha.

    Of complete responses it is Feldt's (1965), by the F distribution, of others that of the
    jackknife: with :math:`\alpha_{-p}` alpha without person p,

    .. math:: 1 - (1 - \alpha)\, e^{\pm z s}, \qquad
              s^2 = (n - 1) \operatorname{var}_p \log(1 - \alpha_{-p})

    (Efron & Tibshirani 1993, An Introduction to the Bootstrap, equation 11.5).

    >>> from psychlm import corpora
    >>> low, high = alpha_interval(corpora.lsat6())
    >>> print(f"{low:.2f} to {high:.2f}")
    0.22 to 0.36
    """
    checked = check_size(responses, ratings=True)
    values = checked.to_numpy()
    alpha = cronbach_alpha(checked)
    n_persons, n_items = values.shape
    if not np.isnan(values).any():
        degrees = (n_persons - 1, (n_persons - 1) * (n_items - 1))
        tails = np.array([(1 + level) / 2, (1 - level) / 2])
        low, high = 1 - (1 - alpha) * f_distribution.ppf(tails, *degrees)
        return float(low), float(high)
    # Without person p the covariance of a pair that p answered, of n persons, changes by
    # (c - n/(n - 1) d_i d_j)/(n - 2), with d p's deviations from the pair's means. Summed over all
    # pairs this is the change of the total, over items with themselves that of the trace.
    answered = (~np.isnan(values)).astype(float)
    centred = np.nan_to_num(values - np.nanmean(values, axis=0))
    covariances = _covariances(checked)
    n_both = answered.T @ answered
    if n_both.min() < 3:
        raise FrameError(
            f"two items were both answered by {n_both.min():.0f} of the 3 persons that the "
            "interval of alpha needs for each pair"
        )
    means = centred.T @ answered / n_both  # of item i among those who answered item j
    weight = n_both / (n_both - 1) / (n_both - 2)
    of_products = ((centred @ weight) * centred).sum(axis=1)
    of_products -= 2 * (centred * (answered @ (means * weight))).sum(axis=1)
    of_products += ((answered @ (means * means.T * weight)) * answered).sum(axis=1)
    of_covariances = ((answered @ (covariances / (n_both - 2))) * answered).sum(axis=1)
    of_variances = answered * (covariances / (n_both - 2)).diagonal()
    trace = np.trace(covariances) + (of_variances - centred**2 * weight.diagonal()).sum(axis=1)
    total = covariances.sum() + of_covariances - of_products
    logs = np.log(1 - n_items / (n_items - 1) * (1 - trace / total))
    half = norm.ppf((1 + level) / 2) * np.sqrt((n_persons - 1) * logs.var())
    return float(1 - (1 - alpha) * np.exp(half)), float(1 - (1 - alpha) * np.exp(-half))


def keyed_in_reverse(responses: pd.DataFrame) -> pd.Index:
    """Return the items whose answers run against most others: ratings to be recoded, or wrong keys.

    Items are joined from the most to the least correlated (average linkage of absolute
    correlations), and of two sets that correlate negatively one is turned; sets whose sums do not
    correlate beyond chance (.01) stay apart. Named are those of the rarer sign within each set, as
    R's ``psych::alpha(check.keys=TRUE)`` has them of one factor.

    >>> ratings = pd.DataFrame({"q1": [1, 2, 4, 5], "q2": [1, 3, 4, 4], "q3": [5, 4, 2, 1]})
    >>> keyed_in_reverse(pd.concat([ratings] * 9, ignore_index=True)).tolist()
    ['q3']
    """
    checked = check_size(responses, ratings=True)
    # Over the pairs of items of two sets: sums of correlations, of items turned so far, and of the
    # persons who answered both. A set has the row of its first item.
    sums, n_both = stats.pairwise_correlations(checked.to_numpy(), 3)
    sums = np.nan_to_num(sums)
    np.fill_diagonal(sums, 1)
    n_items = len(sums)
    sign = np.ones(n_items)
    set_of_item = np.arange(n_items)
    rows = list(range(n_items))  # by number of the set
    distance = 1 - np.abs(sums[np.triu_indices(n_items, 1)]).clip(0, 1)
    for merge in linkage(distance, "average")[:, :2].astype(int):
        a, b = (rows[number] for number in merge)
        rows.append(a)
        second = set_of_item == b
        r = sums[a, b] / np.sqrt(max(sums[a, a] * sums[b, b], 1e-12))
        n = n_both[a, b] / ((set_of_item == a).sum() * second.sum())
        if abs(r) * np.sqrt(n) > DECIDED:
            sign[second] *= np.sign(r)
            set_of_item[second] = a
            for matrix, turn in ((sums, np.sign(r)), (n_both, 1)):
                matrix[a] += turn * matrix[b]
                matrix[:, a] += turn * matrix[:, b]
        else:  # both stay apart, also from sets that are to be joined with them later
            sums[a, a] = np.nan
    _, first, number = np.unique(set_of_item, return_index=True, return_inverse=True)
    common = np.sign(np.bincount(number, sign) + sign[first] / 2)  # the first item decides a tie
    return checked.columns[sign != common[number]]


def linked_forms(responses: pd.DataFrame) -> pd.Series:
    """Return the number of each item's form, 1, 2, ...; no person answered items of two forms.

    Items are of one form where persons who answered both, or a chain of them, link them; abilities
    told by different forms cannot be compared.

    >>> booklets = pd.DataFrame({"q1": [1, 0, np.nan], "q2": [1, 1, np.nan], "q3": [np.nan, 0, 1]})
    >>> linked_forms(booklets).tolist(), linked_forms(booklets.drop(1)).tolist()
    ([1, 1, 1], [1, 1, 2])
    """
    answered = responses.notna().to_numpy()
    form = np.zeros(answered.shape[1], dtype=int)
    while (form == 0).any():
        reached = np.arange(len(form)) == form.argmin()
        n_before = 0
        while reached.sum() > n_before:
            n_before = reached.sum()
            reached |= answered[answered[:, reached].any(axis=1)].any(axis=0)
        form[reached] = form.max() + 1
    return pd.Series(form, responses.columns, name="form")


def copied_items(responses: pd.DataFrame | Repeated) -> pd.Series:
    """Return, by item that repeats an earlier one, the first item that it repeats.

    All persons who answered both answered them alike, beyond chance (.05, Bonferroni over pairs) of
    items that correlate .6, which differ for a share .4 (1 - sum of the squared shares of the
    answers) of the persons.

    >>> answers = pd.DataFrame({"q1": [0, 1] * 20, "q2": [0, 1] * 20, "q3": [0, 0, 1, 1] * 10})
    >>> copied_items(answers).to_dict()
    {'q2': 'q1'}
    """
    checked = check_size(responses, 1, ratings=True)
    values = checked.to_numpy()
    answered = (~np.isnan(values)).astype(float)
    x = np.nan_to_num(values)
    of_both = (x**2).T @ answered
    distance = of_both + of_both.T - 2 * x.T @ x  # sum of squared differences
    n_both = answered.T @ answered
    alike = np.zeros(values.shape[1])  # that two persons answer an item alike
    for level in np.unique(values[answered == 1]) if (distance < 1e-9).sum() > len(x.T) else ():
        alike += ((values == level).sum(axis=0) / answered.sum(axis=0)) ** 2
    log_chance = n_both * np.log1p(-(1 - RELATED) * (1 - alike))
    unlikely = log_chance < np.log(0.05 / max(1, len(alike) * (len(alike) - 1) / 2))
    first, second = np.nonzero(np.triu((distance < 1e-9) & unlikely, 1))
    pairs = pd.Series(checked.columns[first], checked.columns[second], name="copied_from")
    return pairs[~pairs.index.duplicated()]


def omega(responses: pd.DataFrame, n_groups: int = 3) -> pd.Series:
    r"""Return McDonald's omega, ``total`` and ``hierarchical``, by an exploratory factor analysis.

    .. math:: \omega_t = 1 - \frac{\sum_i u_i^2}{\mathbf 1' R \mathbf 1}, \qquad
              \omega_h = \frac{(\sum_i g_i)^2}{\mathbf 1' R \mathbf 1}

    with R the correlations of the items, :math:`u^2` their uniquenesses under ``n_groups`` group
    factors (least squares; rotated by oblimin), and g their loadings on the general factor of the
    Schmid-Leiman solution (Zinbarg, Revelle, Yovel & Li 2005, Psychometrika 70, 123-133; R's
    ``psych::omega``): the shares of all common factors, and of the general one, in the variance of
    the sum. Items keyed in reverse are to be recoded before. ``hierarchical`` is NaN of fewer than
    6 items, whose total rests on one factor.

    >>> from psychlm import corpora
    >>> omega(corpora.lsat6()).round(2).to_dict()
    {'total': 0.3, 'hierarchical': nan}
    """
    from statsmodels.multivariate.factor_rotation import rotate_factors

    checked = check_size(responses, 3, ratings=True)
    n_persons, n_items = checked.shape
    if n_persons <= n_items:
        raise FrameError(f"{n_persons} persons and {n_items} items; omega needs more persons")
    correlations, _ = stats.pairwise_correlations(checked.to_numpy(), 3)
    if np.isnan(correlations).any():
        raise FrameError(
            "two items were not answered by the same 3 persons, or do not both vary among them, so "
            "omega is undefined; leave items out until each pair has a correlation"
        )

    def factors(matrix: Array, n_factors: int) -> tuple[Array, Array]:
        """Return loadings and uniquenesses, the least squares of a matrix of correlations."""

        def loss(uniqueness: Array) -> tuple[float, Array]:
            """Half the squares of the eigenvalues that are no factors, and its gradient."""
            values, vectors = np.linalg.eigh(matrix - np.diag(uniqueness))
            rest = values[:-n_factors]
            return (rest**2).sum() / 2, -(vectors[:, :-n_factors] ** 2 @ rest)

        # From one less the squared multiple correlations.
        start = 1 / np.linalg.pinv(matrix).diagonal().clip(1)
        bounds = [(LEAST_UNIQUENESS, 1.0)] * len(matrix)
        how = {"jac": True, "method": "L-BFGS-B", "options": {"ftol": 0, "gtol": 1e-7}}
        uniqueness = minimize(loss, start, bounds=bounds, **how).x
        values, vectors = np.linalg.eigh(matrix - np.diag(uniqueness))
        return vectors[:, -n_factors:] * np.sqrt(values[-n_factors:].clip(0)), uniqueness

    hierarchical = len(correlations) >= 2 * n_groups
    loadings, uniqueness = factors(correlations, n_groups if hierarchical else 1)
    total = correlations.sum()
    result = {"total": 1 - uniqueness.sum() / total, "hierarchical": np.nan}
    if hierarchical:
        rotated, rotation = rotate_factors(loadings, "oblimin", 0, "oblique")
        of_groups, _ = factors(rotation.T @ rotation, 1)
        result["hierarchical"] = (rotated @ of_groups).sum() ** 2 / total
    return pd.Series(result, name="omega")


def alpha_if_deleted(responses: pd.DataFrame | Repeated, *, weights: Weights = None) -> pd.Series:
    """Return Cronbach's alpha of the test without each item in turn (at least three items).

    NaN where what is left has no variance.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> alpha_if_deleted(responses).round(3).to_dict()
    {'q1': 0.5, 'q2': 0.727, 'q3': 0.727}
    """
    checked = check_size(responses, 3, ratings=True)
    variances, with_total = _with_total(checked, weights)
    n_left = len(variances) - 1
    # Without item k: the trace loses its variance, the total its row and column.
    trace = variances.sum() - variances
    total = with_total.sum() - 2 * with_total + variances
    with np.errstate(invalid="ignore", divide="ignore"):
        alphas = n_left / (n_left - 1) * (1 - trace / total)
    alphas = np.where(total > 1e-12, alphas, np.nan)
    return pd.Series(alphas, checked.columns, name="alpha_if_deleted")


def standard_error_of_measurement(
    responses: pd.DataFrame | Repeated, *, weights: Weights = None
) -> float:
    """Return s sqrt(1 - alpha), in points of the sum score, whose standard deviation is s.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> round(standard_error_of_measurement(responses), 4)
    0.6455
    """
    variances, with_total = _with_total(check_size(responses, ratings=True), weights)
    return float(np.sqrt(with_total.sum() * (1 - _alpha(variances, with_total))))


def split_half(
    responses: pd.DataFrame | Repeated,
    halves: Literal["odd-even", "random"] = "odd-even",
    *,
    n_splits: int = 1000,
    rng: np.random.Generator | None = None,
) -> float:
    """Return split-half reliability, stepped up to the whole test by Spearman-Brown: 2r/(1 + r).

    Halves are the odd and the even items, or the mean is taken over ``n_splits`` random halves.

    >>> responses = pd.DataFrame({"q1": [0, 0, 1, 1], "q2": [0, 1, 1, 1], "q3": [0, 0, 0, 1]})
    >>> round(split_half(responses), 4)
    0.6861
    """
    checked = check_size(responses, ratings=True)
    first = (np.arange(checked.shape[1])[None] % 2 == 0).astype(np.float64)
    if halves == "random":
        if rng is None:
            raise ValueError("random halves need a generator: rng=np.random.default_rng(seed)")
        first = rng.permuted(np.repeat(first, n_splits, axis=0), axis=1)
    elif halves != "odd-even":
        raise ValueError(f"halves={halves!r} is unknown; choose 'odd-even' or 'random'")
    second = 1 - first
    # With h = 1 for the items of one half, g = 1 - h and C the pairwise covariances of the items,
    # the halves' sum scores correlate by h'Cg / sqrt(h'Ch g'Cg): of all splits at once. Of more
    # items than persons C is larger than the sum scores X h, of which h'Cg is the covariance.
    if checked.shape[1] > len(checked) and not checked.isna().any(axis=None):
        centred = (checked - checked.mean()).to_numpy() / np.sqrt(len(checked) - 1)
        of_first = first @ centred.T
        of_second = second @ centred.T
        products = ((of_first, of_first), (of_second, of_second), (of_first, of_second))
    else:
        covariances = _covariances(checked)
        with_first = first @ covariances
        products = ((with_first, first), (second @ covariances, second), (with_first, second))
    variance_1, variance_2, covariance = ((a * b).sum(axis=1) for a, b in products)
    if min(variance_1.min(), variance_2.min()) <= 1e-12:
        raise FrameError("a half of the test has no variance; drop constant items")
    r = covariance / np.sqrt(variance_1 * variance_2)
    return float(np.mean(2 * r / (1 + r)))


def fleiss_kappa(labels: pd.DataFrame) -> pd.Series:
    """Return Fleiss' (1971) kappa of every label, and over all labels.

    ``labels`` are persons x items, NaN where there is none. Item i has n_i labels, n_ij of them j,
    and p_j is the proportion of label j overall. Then
    kappa_j = 1 - mean_i[n_ij (n_i - n_ij) / (n_i (n_i - 1))] / (p_j (1 - p_j)), and the overall
    kappa is the mean of these with weights p_j (1 - p_j). The n_i may differ.

    >>> labels = pd.DataFrame({"i1": ["a", "a", "b"], "i2": ["b", "b", "b"]})
    >>> fleiss_kappa(labels).round(3).to_dict()
    {'a': 0.25, 'b': 0.25, 'overall': 0.25}
    """
    counts = labels.apply(pd.Series.value_counts).fillna(0).T.sort_index(axis=1)
    n = counts.sum(axis=1)
    refuse("items", counts.index[n < 2], "have fewer than two labels; leave them out")
    if counts.shape[1] < 2:
        raise FrameError(f"every label is {counts.columns[0]!r}, so agreement is undefined")
    proportion = counts.sum() / counts.to_numpy().sum()
    chance = proportion * (1 - proportion)
    observed = (counts * (-counts).add(n, axis=0)).div(n * (n - 1), axis=0).mean()
    kappa = 1 - observed / chance
    kappa["overall"] = np.average(kappa, weights=chance)
    return kappa.rename("kappa")


def _covariances(responses: pd.DataFrame, weights: Weights = None) -> Array:
    """Return pairwise covariances of items; their sum is the variance of the sum score."""
    each = frames.checked_weights(responses.index, weights)
    covariances, n_both = stats.pairwise_covariances(responses.to_numpy(), each)
    unknown = np.argwhere(n_both < 2)
    if len(unknown):
        first, second = responses.columns[unknown[0]]
        raise FrameError(
            f"items {first!r} and {second!r} were both answered by "
            f"{n_both[tuple(unknown[0])]:.0f} of the 2 persons that a covariance needs "
            f"({len(unknown) // 2} such pairs of {len(n_both) * (len(n_both) - 1) // 2}); leave "
            "items out until each pair has them"
        )
    return covariances


def _with_total(responses: pd.DataFrame, weights: Weights = None) -> tuple[Array, Array]:
    """Return the items' variances, and their covariances with the sum score."""
    if weights is not None or responses.isna().any(axis=None):
        covariances = _covariances(responses, weights)
        return covariances.diagonal(), covariances.sum(axis=0)
    centred = (responses - responses.mean()).to_numpy()
    with_total = centred.T @ centred.sum(axis=1)
    variances = np.einsum("pi,pi->i", centred, centred)
    return variances / (len(centred) - 1), with_total / (len(centred) - 1)


def _alpha(variances: Array, with_total: Array) -> float:
    """Return k/(k - 1) (1 - sum of the items' variances / variance of the sum score)."""
    n_items = len(variances)
    total = with_total.sum()
    if total <= 1e-12:
        raise FrameError("the total score has no variance, so reliability is undefined")
    return float(n_items / (n_items - 1) * (1 - variances.sum() / total))
