"""Fit of items, pairs of items and persons: S-X2, LD-X2, Q3 and person fit.

The functions take a fit of any model, or :class:`ModelTables` of another program's estimates, and
responses, persons x items; ``device`` "auto" takes a GPU for over ten million responses.
"""

from __future__ import annotations

import warnings
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor

from psychlm import stats
from psychlm.device import Device
from psychlm.frames import FrameError, format_names
from psychlm.irt.model_tables import ModelTables
from psychlm.irt.response_matrix import BLOCK_CELLS, BLOCK_CELLS_GPU, pick_device

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit

LARGEST_MEAN_SQUARE_SD = 1.4142  # limit of the cube-root transformation, as in mirt
LEAST_EXPECTED = 1.0  # persons of a cell of S-X2
MOST_CLASSES = 10  # of ability
LEAST_VARIANCE = 5.0  # of the answers in a class
NOTHING_LEFT = 1e-8  # share of a variance that estimation explains but for rounding
SMALLEST = 1e-300  # of a variance, which else is 0 where a step is far away


def s_x2(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, min_persons: int = 20
) -> pd.DataFrame:
    r"""Test each item's fit by its answers among persons of equal sum score.

    .. math:: S\text{-}X^2_i = \sum_s \sum_k N_s \frac{(O_{isk} - E_{isk})^2}{E_{isk}}

    with O and E the observed and expected proportions of category k among persons of score s
    (Orlando & Thissen 2000, Applied Psychological Measurement 24, equation 9; Kang & Chen 2008,
    Journal of Educational Measurement 45, for several categories). Of two categories, neighbouring
    scores are merged until each group expects one right and one wrong response; of more,
    neighbouring categories within a score, until each cell expects one person.

    Every booklet (a set of items that at least ``min_persons`` were asked) makes its own score
    groups, whose statistics are added. A person counts in the largest booklet of which all items
    were asked; who was asked none in full is left out, with a warning.

    Returns
    -------
    DataFrame, one row per item
        ``s_x2``, ``df``, ``rmsea``, ``p``, ``n_persons``; NaN where no degree of freedom is left.
        ``attrs["left_out"]`` lists the persons left out.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> s_x2(irt.fit(lsat, "1PL"), lsat).columns.tolist()
    ['s_x2', 'df', 'rmsea', 'p', 'n_persons']
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    patterns, booklet = booklets(~np.isnan(x))
    counts = np.bincount(booklet)
    large = np.flatnonzero((counts >= min_persons) & (patterns.sum(axis=1) > 1))
    if not len(large):
        raise FrameError(
            f"no two items were asked of the same {min_persons} persons (at most {counts.max()}), "
            "so there are no score groups; use ld_x2 or q3, or lower min_persons"
        )
    # The booklet of each pattern: the largest whose items were all asked, or none (-1).
    asked_all = ~(patterns[large] & ~patterns[:, None]).any(axis=2)
    size = np.where(asked_all, patterns[large].sum(axis=1), 0)
    of_pattern = np.where(asked_all.any(axis=1), large[size.argmax(axis=1)], -1)
    of_person = of_pattern[booklet]
    left_out = list(responses.index[of_person < 0])
    if left_out:
        warnings.warn(
            f"S-X2 leaves out {len(left_out)} of {len(x)} persons, asked too rare sets of items "
            f"({format_names(left_out)}; all of them: attrs['left_out'] of the result)",
            stacklevel=2,
        )
    statistic, n_cells, n_persons = np.zeros((3, len(tables.items)))
    collapse = collapse_scores if tables.functions.dichotomous else collapse_categories
    for number in large:
        items = np.flatnonzero(patterns[number])
        answered = x[np.ix_(of_person == number, items)].astype(int)
        # Expected and observed counts of persons by item, sum score and category.
        joint = joint_with_score(tables.probability[items], tables.weights)
        score = answered.sum(axis=1)
        cells = np.arange(len(items)), score[:, None], answered
        cell_of_answer = np.ravel_multi_index(np.broadcast_arrays(*cells), joint.shape)
        observed = np.bincount(cell_of_answer.ravel(), minlength=joint.size).reshape(joint.shape)
        with np.errstate(invalid="ignore"):
            expected = observed.sum(2, keepdims=True) * joint / joint.sum(2, keepdims=True)
        n_persons[items] += len(answered)
        highest = int((tables.probability[items] > 0).any(2).sum(1).sum()) - len(items)
        for k, item in enumerate(items):
            # The lowest and the highest score are the same for all items, and have no group.
            for seen, implied in collapse(observed[k, 1:highest], expected[k, 1:highest]):
                statistic[item] += ((seen - implied) ** 2 / implied).sum()
                n_cells[item] += len(seen) - 1
    df = np.maximum(n_cells - tables.n_free_by_item, 0)
    statistic[df == 0] = np.nan
    table = _chi_square("s_x2", statistic, df.astype(int), tables.items)
    table.insert(2, "rmsea", rmsea(statistic, df, n_persons))
    table.attrs["left_out"] = left_out
    return table.assign(n_persons=n_persons.astype(int))


def _chi_square(name: str, statistic: np.ndarray, df: np.ndarray, items: pd.Index) -> pd.DataFrame:
    """Return a table of tests by item, with p NaN where no degree of freedom is left."""
    p = scipy.stats.chi2.sf(statistic, np.where(df > 0, df, np.nan))
    return pd.DataFrame({name: statistic, "df": df, "p": p}, items.rename("item"))


def booklets(answered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of a table of what persons were asked, and the row of each person.

    Rows are hashed as bytes: ``np.unique`` sorts them, which takes seconds of many persons.
    """
    packed = np.packbits(answered, axis=1)
    booklet, _ = pd.factorize(np.array([row.tobytes() for row in packed], dtype=object))
    _, first = np.unique(booklet, return_index=True)
    return answered[first], booklet


def joint_with_score(probability: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Return P(sum score and category of item i), shape (n_items, n_scores, n_categories).

    .. math:: P(s, x_i = k) = \int P_{ik} f^{-i}_{s-k} \phi

    with :math:`f^{-i}` the score distribution of the test without item i (Orlando & Thissen 2000,
    equation 8), from ``probability`` (n_items, n_categories, n_nodes) and ``weights`` (n_nodes,).
    Score distributions grow item by item (Lord & Wingersky 1984); halving the test shares most of
    the work of leaving out each item in turn.
    """
    n_items, n_categories, n_nodes = probability.shape
    result = np.zeros((n_items, n_items * (n_categories - 1) + 1, n_categories))

    def leave_one_out(outside: np.ndarray, first: int, last: int) -> None:
        """Halve items first..last-1; ``outside`` already counts all items beyond them."""
        if last - first == 1:
            for k in range(n_categories):
                result[first, k : k + len(outside), k] = outside @ (weights * probability[first, k])
            return
        middle = (first + last) // 2
        leave_one_out(reduce(_with_item, probability[middle:last], outside), first, middle)
        leave_one_out(reduce(_with_item, probability[first:middle], outside), middle, last)

    leave_one_out(np.ones((1, n_nodes)), 0, n_items)
    return result


def collapse_scores(observed: np.ndarray, expected: np.ndarray) -> list[np.ndarray]:
    """Merge neighbouring score groups of one item until each expects a wrong and a right response.

    Takes counts of wrong and right responses by score, (n_groups, 2), and returns pairs of observed
    and expected counts, (2, 2). The rule is mirt's: empty groups go; a group of one person joins
    the next one up (the last, the next one down); then, from the lowest score on, a group with too
    small an expected count joins the neighbour with fewer persons (the lower where they tie).
    """
    # One row per group: observed wrong and right, expected wrong and right. Few numbers at a time
    # are faster as lists than as arrays.
    rows = np.column_stack([observed, expected]).tolist()
    groups = list[list[float]]()
    carried = [0.0] * 4
    for group in rows:
        if group[0] + group[1] > 0:
            carried = _sums(group, carried)
            if carried[0] + carried[1] > 1:
                groups.append(carried)
                carried = [0.0] * 4
    if any(carried):
        groups = [*groups[:-1], _sums(groups[-1], carried) if groups else carried]
    k = 0
    while k < len(groups) and len(groups) > 1:
        if min(groups[k][2:]) >= LEAST_EXPECTED:
            k += 1
            continue
        # The lower neighbour stands at k - 1 and, after the removal, the upper one at k.
        group = groups.pop(k)
        neighbours = [place for place in (k - 1, k) if 0 <= place < len(groups)]
        partner = min(neighbours, key=lambda place: groups[place][0] + groups[place][1])
        groups[partner] = _sums(groups[partner], group)
        k = partner
    if len(groups) == 1 and min(groups[0][2:]) < LEAST_EXPECTED:
        groups = []
    return [np.reshape(group, (2, 2)) for group in groups]


def _sums(group: list[float], other: list[float]) -> list[float]:
    return [x + y for x, y in zip(group, other, strict=True)]


def collapse_categories(observed: np.ndarray, expected: np.ndarray) -> list[np.ndarray]:
    """Merge neighbouring categories within each score until each expects one person.

    Returns observed and expected counts, (2, n_cells), of every score that has two cells or more.
    """
    kept = []
    for seen, implied in zip(observed, expected, strict=True):
        cells: list[np.ndarray] = []
        carried = np.zeros(2)
        for pair in np.column_stack([seen, implied]):
            carried = carried + np.nan_to_num(pair)
            if carried[1] >= LEAST_EXPECTED:
                cells.append(carried)
                carried = np.zeros(2)
        if carried.any() and cells:
            cells[-1] = cells[-1] + carried
        if len(cells) > 1:
            kept.append(np.array(cells).T)
    return kept


def ability_x2(fit: IRTFit | ModelTables, responses: pd.DataFrame) -> pd.DataFrame:
    r"""Test each item's fit by its answers among persons of similar ability.

    .. math:: X^2_i = \sum_g \Big(\sum_{p \in g} x_{pi} - E_{pi}\Big)^2 \Big/ \sum_{p \in g} V_{pi},
              \qquad E_{pi} = \int E_i(\theta)\, p(\theta \mid x_{p,-i})\, d\theta

    with E and V the mean and variance of the category's number that the model expects after the
    person's answers to all other items. The classes g are persons in the order of the ability that
    these answers tell, with equal sums of V, at least 5: ten, or as many as there can be. Unlike
    S-X2 it needs no two persons who were asked the same items.

    Returns
    -------
    DataFrame, one row per item
        ``x2``, ``df`` (classes less the free parameters of the item's expected score), ``p``,
        ``n_persons``; NaN where no degree of freedom is left.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> ability_x2(irt.fit(lsat, "1PL"), lsat)["df"].tolist()
    [9, 9, 9, 9, 9]
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    posterior = np.vstack([part.numpy() for _, part in tables.persons(x, torch.device("cpu"))])
    by_ability = posterior * tables.nodes
    category = np.arange(tables.n_categories)
    squares = np.einsum("c,icn->in", category**2, tables.probability)
    # Free parameters of the item alone; of several categories, the location and slope of its score.
    n_free = np.minimum(tables.is_own.sum(axis=0), 3 if tables.functions.dichotomous else 2)
    statistic = np.full(x.shape[1], np.nan)
    df = np.zeros(x.shape[1], dtype=int)
    for item in range(x.shape[1]):
        persons = np.flatnonzero(~np.isnan(x[:, item]))
        answer = x[persons, item].astype(int)
        # The posterior without the answer to the item: over its probability at every node.
        moments = np.empty((3, len(persons)))  # of ability, of the category's number, its square
        for k in np.unique(answer):
            inverse = 1 / np.maximum(tables.probability[item, k], SMALLEST)
            chosen = answer == k
            given = posterior[persons[chosen]]
            factors = inverse, inverse * tables.expected[item], inverse * squares[item]
            total, mean, square = (given @ np.column_stack(factors)).T
            ability = by_ability[persons[chosen]] @ inverse
            moments[:, chosen] = np.stack([ability, mean, square]) / total
        ability, mean, square = moments
        order = np.argsort(ability, kind="stable")
        variance = (square - mean**2)[order]
        n_classes = min(MOST_CLASSES, int(variance.sum() / LEAST_VARIANCE))
        df[item] = max(n_classes - n_free[item], 0)
        if df[item]:
            before = np.cumsum(variance) - variance / 2
            of_class = (before / variance.sum() * n_classes).astype(int)
            residuals = np.bincount(of_class, (answer - mean)[order], n_classes)
            spread = np.bincount(of_class, variance, n_classes)
            statistic[item] = (residuals**2 / np.maximum(spread, SMALLEST)).sum()
    table = _chi_square("x2", statistic, df, tables.items)
    return table.assign(n_persons=(~np.isnan(x)).sum(axis=0))


def rmsea(statistic: np.ndarray, df: np.ndarray, n_persons: np.ndarray) -> np.ndarray:
    """Return sqrt(max(statistic - df, 0) / (df (n - 1))) (Browne & Cudeck 1992, equation 5)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.maximum(statistic - df, 0) / (df * (n_persons - 1)))


def pair_tables(x: np.ndarray, device: torch.device, n_categories: int = 2) -> np.ndarray:
    """Count categories of pairs of items, (n_items, n_categories, n_items, n_categories)."""
    shape = (x.shape[1], n_categories)
    size = x.shape[1] * n_categories
    counts = torch.zeros(size, size, dtype=torch.float64, device=device)
    step = max(1, (BLOCK_CELLS if device.type == "cpu" else BLOCK_CELLS_GPU) // size)
    category = torch.arange(n_categories, device=device)
    for start in range(0, len(x), step):
        part = torch.tensor(x[start : start + step], device=device)
        chosen = (part[:, :, None] == category).to(part.dtype).flatten(1)
        counts.addmm_(chosen.T, chosen)
    return counts.view(*shape, *shape).cpu().numpy()


def ld_x2(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Test every pair of items for dependence beyond what ability explains.

    Pearson's chi-square compares the table of a pair's categories, among the persons who answered
    both, with that which the model implies; of k and l categories it has (k - 1)(l - 1) degrees of
    freedom (Chen & Thissen 1997, Journal of Educational and Behavioral Statistics 22, equation 1).

    Returns
    -------
    DataFrame, one row per pair
        ``item_1``, ``item_2``, ``ld_x2``, ``df``, ``cramers_v`` (signed: positive where the two are
        more alike than the model implies, by Goodman and Kruskal's gamma), ``p``, ``n_persons``;
        NaN where nobody answered both.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> ld_x2(irt.fit(lsat, "1PL"), lsat)[["item_1", "item_2"]].iloc[0].tolist()
    ['LSAT 1', 'LSAT 2']
    """
    tables = ModelTables.of(fit)
    i, j = np.triu_indices(len(tables.items), 1)
    x = tables.response_array(responses)
    p = tables.probability
    where = pick_device(device, "irt.ld_x2", x.size)
    observed = pair_tables(x, where, p.shape[1])[i, :, j, :]
    n = observed.sum((1, 2))
    implied = (p * tables.weights).reshape(-1, p.shape[2]) @ p.reshape(-1, p.shape[2]).T
    expected = n[:, None, None] * implied.reshape(p.shape[:2] * 2)[i, :, j, :]
    n_steps = (p > 0).any(2).sum(1) - 1
    df = n_steps[i] * n_steps[j]
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = np.where(expected > 0, (observed - expected) ** 2 / expected, 0.0)
        statistic = np.where(n > 0, cells.sum((1, 2)), np.nan)
        less_alike = gamma(observed) < gamma(expected)
        size = np.sqrt(statistic / (n * np.minimum(n_steps[i], n_steps[j])))
    columns = {
        "item_1": tables.items[i],
        "item_2": tables.items[j],
        "ld_x2": statistic,
        "df": df,
        "cramers_v": np.where(less_alike, -size, size),
        "p": scipy.stats.chi2.sf(statistic, df),
        "n_persons": n.astype(int),
    }
    return pd.DataFrame(columns)


def gamma(tables: np.ndarray) -> np.ndarray:
    """Return Goodman and Kruskal's gamma of tables (n, k, l): concordant against discordant."""
    later = np.tri(tables.shape[1], k=-1).T  # (k, k'): k' > k
    concordant = (tables * (later @ tables @ later.T)).sum((1, 2))
    discordant = (tables * (later @ tables @ later)).sum((1, 2))
    return (concordant - discordant) / (concordant + discordant)


def q3(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Return the correlations between items of residuals at each person's expected ability.

    Residuals are category numbers less their expectations (Yen 1984, Applied Psychological
    Measurement 8, equation 8). Pairs that fewer than three persons answered have NaN; under local
    independence correlations are near -1/(n_items - 1).

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> bool((q3(irt.fit(lsat, "1PL"), lsat).loc["LSAT 1", "LSAT 2":] < 0).all())
    True
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    where = pick_device(device, "irt.q3", x.size)
    category = torch.arange(tables.n_categories, dtype=torch.float64, device=where)
    residuals = [
        part - log_p.exp() @ category for part, _, log_p in tables.at_expected_ability(x, where)
    ]
    correlations, _ = stats.pairwise_correlations(torch.cat(residuals).cpu().numpy(), 3)
    return pd.DataFrame(correlations, tables.items, tables.items)


def q3_cut(
    fit: IRTFit, responses: pd.DataFrame, *, rng: np.random.Generator, n_draws: int = 99
) -> float:
    """Return how far above the mean of all pairs the largest Q3 lies in 95 % of clean tests.

    Responses of as many persons, with the same cells missing, are drawn from the model ``n_draws``
    times; the cut is the quantile of the largest :func:`q3` less the mean of all. A fixed cut of .2
    is too low for few persons and too high for many (Christensen, Makransky & Horton 2017, Applied
    Psychological Measurement 41, 178-194). Give a fit with free slopes: slopes that differ look
    like dependence to the Rasch model.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> cut = q3_cut(irt.fit(lsat, "1PL"), lsat, rng=np.random.default_rng(0), n_draws=19)
    >>> 0.02 < cut < 0.3
    True
    """
    from psychlm import simulate

    largest = np.empty(n_draws)
    answered = responses[list(fit.items.index)].notna().to_numpy()
    above = np.triu_indices(len(fit.items), 1)
    for draw in range(n_draws):
        theta = rng.normal(fit.ability_mean, fit.ability_sd, len(responses))
        drawn = simulate.responses(theta, fit, rng).where(answered)
        values = q3(fit, drawn).to_numpy()[above]
        if np.isnan(values).all():
            if (answered.T.astype(int) @ answered)[above].max(initial=0) < 3:
                why = "no two items were answered by the same 3 persons; ask persons more of them"
            else:
                why = "the model leaves no residuals that vary; leave out items that repeat others"
            raise FrameError(f"Q3 is undefined: {why}")
        largest[draw] = np.nanmax(values) - np.nanmean(values)
    # The quantile by rank: of 99 draws the 95th, which a 100th exceeds five times in a hundred.
    return float(np.sort(largest)[min(int(np.ceil(0.95 * (n_draws + 1))), n_draws) - 1])


def sum_score_table(fit: IRTFit | ModelTables) -> pd.DataFrame:
    r"""Return expected ability and its standard error at every sum score of a complete test.

    .. math:: E(\theta \mid s) = \frac{\int \theta\, P(s \mid \theta)\, \phi(\theta)\, d\theta}
              {\int P(s \mid \theta)\, \phi(\theta)\, d\theta}

    with P(s | ability) built up item by item (Lord & Wingersky 1984; Thissen, Pommerich, Billeaud &
    Williams 1995, Applied Psychological Measurement 19, 39-49). A score counts an item's answer by
    its value, which has to rise by 1 from category to category.

    Returns
    -------
    DataFrame, indexed by ``sum``
        ``theta`` and ``se`` (logits), ``share`` of persons whom the model expects at the score.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> sum_score_table(irt.fit(corpora.lsat6(), "1PL"))["theta"].round(2).tolist()
    [-1.91, -1.43, -0.94, -0.44, 0.08, 0.63]
    """
    tables = ModelTables.of(fit)
    lowest = 0.0
    for item, answers in (tables.levels or {}).items():
        if (np.diff(np.asarray(answers, float)) != 1).any():
            raise FrameError(
                f"the answers to item {item!r} are {list(map(float, answers))}, which do not rise "
                "by 1, so a sum score has no one meaning; take the scores of the model"
            )
        lowest += float(answers[0])
    steps = (p[: (p > 0).any(axis=1).sum()] for p in tables.probability)
    given = reduce(_with_item, steps, np.ones((1, len(tables.nodes))))  # P(score | node)
    joint = given * tables.weights
    share = joint.sum(axis=1)
    theta = joint @ tables.nodes / share
    se = np.sqrt(joint @ tables.nodes**2 / share - theta**2)
    scores = pd.Index(lowest + np.arange(len(given)), name="sum")
    return pd.DataFrame({"theta": theta, "se": se, "share": share}, scores)


def _with_item(scores: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return f'(s) = sum_k f(s - k) P_k, the distribution of scores when an item joins."""
    longer = np.zeros((len(scores) + len(p) - 1, scores.shape[1]))
    for k, of_category in enumerate(p):
        longer[k : k + len(scores)] += scores * of_category
    return longer


def person_fit(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    """Measure how well the model describes each person's pattern of responses.

    Expectations are those at the person's expected ability, as in mirt. Since the same responses
    give that ability, mean squares are on average a little below 1 and all z vary less than normal
    variables; the fewer the items, the more so.

    Returns
    -------
    DataFrame, one row per person
        ``theta`` (expected ability, logits), ``n_items``; ``zh`` (the standardised log-likelihood
        lz of Drasgow, Levine & Williams 1985; below about -2: an unlikely pattern); ``outfit`` and
        ``infit`` (mean squares, infit weighted by information; Wright & Masters 1982, chapter 5),
        ``z_outfit``, ``z_infit``.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> list(person_fit(irt.fit(lsat, "1PL"), lsat))
    ['theta', 'n_items', 'zh', 'outfit', 'z_outfit', 'infit', 'z_infit']
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    where = pick_device(device, "irt.person_fit", x.size)
    parts = []
    for part, theta, log_p in tables.at_expected_ability(x, where):
        answered = part.isfinite()
        answer = part.nan_to_num().long()[:, :, None]
        p = log_p.exp()
        # zh: the log-likelihood less its expectation, over its standard deviation. Deviations
        # from expectations are sums of differences, in which nothing cancels.
        surprise = deviations(log_p, p)
        # r = x - E, v = E r^2, and the fourth moment.
        category = torch.arange(p.shape[2], dtype=p.dtype, device=p.device)
        residual = deviations(category.expand_as(p), p)
        variance = (p * residual**2).sum(2)
        floor = variance.clamp_min(SMALLEST)
        seen, of_seen = (each.gather(2, answer)[:, :, 0] for each in (residual, surprise))
        cells = {
            "n": torch.ones_like(floor),
            "surprise": of_seen,
            "surprise_variance": (p * surprise**2).sum(2),
            "outfit": seen**2 / floor,
            "outfit_variance": (p * (residual**2 / floor[:, :, None]) ** 2).sum(2) - 1,
            "infit": seen**2,
            "variance": variance,
            "infit_variance": (p * residual**4).sum(2) - variance**2,
        }
        parts.append(
            torch.stack([theta, *((cell * answered).sum(1) for cell in cells.values())], 1)
        )
    sums = torch.cat(parts).cpu().numpy()
    of = pd.DataFrame(sums, responses.index.rename("person"), ["theta", *cells])
    columns = {"theta": of["theta"], "n_items": of["n"].astype(int)}
    columns["zh"] = of["surprise"] / np.sqrt(of["surprise_variance"])
    for name, scale in (("outfit", of["n"]), ("infit", of["variance"])):
        columns |= mean_square(name, of[name] / scale, np.sqrt(of[f"{name}_variance"]) / scale)
    return pd.DataFrame(columns)


def deviations(values: Tensor, p: Tensor) -> Tensor:
    """Return values less their expectations over the last axis, as sums of p_k (v_c - v_k)."""
    finite = values.clamp_min(-1e300)  # the logarithm of a probability of 0
    result = torch.empty_like(p)
    for c in range(p.shape[-1]):
        result[..., c] = (p * (finite[..., c : c + 1] - finite)).sum(-1)
    return result


def mean_square(name: str, value: np.ndarray, sd: np.ndarray) -> dict[str, np.ndarray]:
    """Return a mean square and its z: its cube root is nearly normal (Wilson & Hilferty 1931)."""
    sd = np.minimum(sd, LARGEST_MEAN_SQUARE_SD)
    return {name: value, f"z_{name}": (np.cbrt(value) - 1) * (3 / sd) + sd / 3}


def infit_outfit(
    fit: IRTFit | ModelTables, responses: pd.DataFrame, *, device: Device = "auto"
) -> pd.DataFrame:
    r"""Measure how well the model describes the responses to each item, by mean squares.

    .. math:: \text{outfit}_i = \frac1N \sum_p \int \frac{(x_{pi} - E_i)^2}{V_i} \,
              p(\theta \mid x_p)\, d\theta, \qquad
              \text{infit}_i = \frac{\sum_p \int (x_{pi} - E_i)^2 \, p(\theta \mid x_p)\, d\theta}
              {\sum_p \int V_i \, p(\theta \mid x_p)\, d\theta}

    with E and V the expectation and variance of the category's number at ability :math:`\theta`
    (Wright & Masters 1982, chapter 5; integrated: Wu & Adams 2013, Journal of Applied Measurement
    14). Integrated, mean squares have expectation 1 exactly; at expected abilities, as in mirt, it
    is less (.85 to .95 with ten items). The z take the variance between persons, less what the
    estimation of the item's own parameters explains of it (Pierce 1982, Annals of Statistics 10);
    with free slopes this is nearly all of infit's.

    Returns
    -------
    DataFrame, one row per item
        ``outfit`` and ``infit``, mean squares with expectation 1 (above about 1.3: noise; below
        0.7: too regular); ``z_outfit``, ``z_infit``, nearly normal if the model holds and no
        slope is steep (NaN where the estimates make the mean square 1, whatever the responses);
        ``n_persons``. With lognormal slopes of 300 persons p < .001 came 55 times too often for
        outfit: test items by :func:`s_x2` or :func:`ability_x2`.

    Examples
    --------
    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> infit_outfit(irt.fit(lsat, "Rasch"), lsat)["infit"].round(2).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    tables = ModelTables.of(fit)
    x = tables.response_array(responses)
    where = pick_device(device, "irt.infit_outfit", x.size)
    # Of every category at every node: squared residuals over their variances, squared residuals
    # less variances, and the derivatives of log P by the item's own free parameters.
    p = torch.as_tensor(tables.probability, device=where)
    category = torch.arange(p.shape[1], dtype=p.dtype, device=where)
    residual = deviations(category.expand(len(p), p.shape[2], -1), p.permute(0, 2, 1))
    residual = residual.permute(0, 2, 1)
    variance = (p * residual**2).sum(1, keepdim=True)
    nodes = torch.tensor(tables.nodes, device=where)
    by_parameter = tables.functions.to(where).scores(nodes)
    free = torch.as_tensor(tables.is_own, device=where)
    by_parameter = by_parameter * free[:, :, None, None]
    of_squares = torch.stack([residual**2 / variance.clamp_min(SMALLEST) - 1, residual**2])
    of_squares[1] -= variance
    kinds = torch.cat([of_squares, variance.expand_as(residual)[None], by_parameter])
    # Sums over persons of the expectations, and of their products.
    n_kinds = len(kinds)
    n_items = x.shape[1]
    sums = torch.zeros(n_kinds, n_items, dtype=torch.float64, device=where)
    products = torch.zeros(n_items, n_kinds, n_kinds, dtype=torch.float64, device=where)
    n = torch.zeros(n_items, dtype=torch.float64, device=where)
    for part, posterior in tables.persons(x, where):
        of_person = torch.zeros(n_kinds, *part.shape, dtype=torch.float64, device=where)
        for k in range(p.shape[1]):
            chosen = (part == k).to(p.dtype)
            of_person += chosen * (posterior @ kinds[:, :, k].mT)
        n += part.isfinite().sum(0)
        sums += of_person.sum(1)
        products += torch.einsum("kpi,lpi->ikl", of_person, of_person)
    # The first two less their regression on the scores, whose sums are 0 at a maximum.
    inner = products[:, 3:, 3:]
    cross = products[:, :2, 3:]
    slopes = cross @ torch.linalg.pinv(inner, hermitian=True, rtol=1e-10)
    adjusted = sums[:2].T - (slopes @ sums[3:].T[:, :, None])[:, :, 0]
    total_squares = products[:, :2, :2].diagonal(dim1=1, dim2=2)
    left = total_squares - (slopes @ cross.mT).diagonal(dim1=1, dim2=2)
    left = torch.where(left > NOTHING_LEFT * total_squares, left, torch.nan).sqrt()
    size = n.cpu().numpy()
    total = sums[2].cpu().numpy()
    columns: dict[str, np.ndarray] = {}
    for k, (name, scale) in enumerate((("outfit", size), ("infit", total))):
        value = 1 + sums[k].cpu().numpy() / scale
        deviation, sd = (each[:, k].cpu().numpy() / scale for each in (adjusted, left))
        columns |= mean_square(name, 1 + deviation, sd) | {name: value}
    columns["n_persons"] = size.astype(int)
    return pd.DataFrame(columns, index=tables.items.rename("item"))
