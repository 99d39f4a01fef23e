"""Is A better than B? Paired comparison of models, or tests, on the same items or words.

:func:`psychlm.compare` compares two sets of scores, or all pairs of many models, whose items may
come in clusters (items of one passage, readings of one person).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike, NDArray

from psychlm import irt
from psychlm._formatting import PaperTables
from psychlm.frames import (
    FrameError,
    Repeated,
    as_numbers,
    by_person,
    check_responses,
    drop_constant,
    format_names,
    refuse,
)
from psychlm.stats import holm

POWER = 0.8  # of the minimal detectable difference
OF_TWO = "; two models, a row an item, are compare(a, b) of columns, psychlm compare A.csv B.csv"
NEAR = 1.05  # standard errors at most 5 % larger than those of repeats without end
CELLS = 2**22  # resampled values held at once (32 MB)
SAME = "cannot be told apart at this size"

Array = NDArray[np.float64]
Codes = NDArray[np.intp] | None  # the cluster of each item; None if each is its own


@dataclass(frozen=True)
class Comparison(PaperTables):
    """Two models on the same items: their difference, how certain it is, and what it says."""

    names: tuple[str, str]
    scores: tuple[float, float]  # means over the items that both have
    difference: float  # of the first from the second, in units of the scores
    low: float  # interval of the difference
    high: float
    level: float  # nominal coverage of the interval, 0..1
    standard_error: float  # of the difference, cluster-robust
    p: float  # two-sided: exact McNemar for 0/1 without clusters, else cluster-robust t
    p_mcnemar: float  # exact, whatever the clusters; NaN unless all scores are 0 or 1
    p_permutation: float  # of flipped signs, clusters flipped whole; NaN if none were asked for
    minimal_detectable: float  # difference that is found at .8 power; NaN if nothing varies
    n: int  # items that both have
    n_clusters: int  # n without clusters
    n_left_out: int  # items that one of the two lacks
    n_wins: tuple[int, int]  # items on which each is higher
    repeats: pd.DataFrame | None = None  # of the two and of "difference": see variance_of_repeats

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, list[str]]]:
        shown = ("difference", "standard_error", "low", "high", "p")
        row = pd.DataFrame({name: [getattr(self, name)] for name in shown})
        row.index = pd.Index([" and ".join(self.names)], name="models")
        return [(row, "Difference of two models", [f"{self.n} items; {self.verdict}"])]

    @property
    def told_apart(self) -> bool:
        """Whether p is below 1 - level and the interval excludes 0."""
        return bool(self.p < 1 - self.level and (self.low > 0 or self.high < 0))

    @property
    def n_needed(self) -> float:
        """Items like these by which a difference of this size is found at .8 power."""
        if self.difference == 0:
            return np.inf
        return self.n * (self.minimal_detectable / abs(self.difference)) ** 2

    @property
    def verdict(self) -> str:
        """The result in words."""
        first, second = self.names
        if not self.told_apart:
            needed = f"; a difference of this size takes about {self.n_needed:.0f} items like these"
            more = self.n < self.n_needed < np.inf
            return f"{first} and {second} {SAME}{needed if more else ''}"
        return f"{first} is {'higher' if self.difference > 0 else 'lower'} than {second}"

    def __repr__(self) -> str:
        """Return scores, difference with interval, tests, and the verdict."""
        first, second = self.names
        clusters = f" in {self.n_clusters} clusters" if self.n_clusters < self.n else ""
        left_out = f", {self.n_left_out} that one of them lacks left out" if self.n_left_out else ""
        binary = not np.isnan(self.p_mcnemar)
        test = "exact McNemar" if binary and not clusters else "t, cluster-robust"
        permuted = "" if np.isnan(self.p_permutation) else f"; permutation {self.p_permutation:.2g}"
        of_repeats = "" if self.repeats is None else f"{_describe_repeats(self.repeats.iloc[-1])}\n"
        return (
            f"{first} {self.scores[0]:.4g}, {second} {self.scores[1]:.4g} on {self.n} items"
            f"{clusters}{left_out}\ndifference {self.difference:.4g}, {self.level:.0%} interval "
            f"[{self.low:.4g}, {self.high:.4g}], higher on {self.n_wins[0]} against "
            f"{self.n_wins[1]} items\np = {self.p:.2g} ({test}){permuted}; minimal detectable "
            f"difference at .8 power {self.minimal_detectable:.3g}\n{of_repeats}{self.verdict}"
        )


@dataclass(frozen=True)
class Ranking(PaperTables):
    """Many models on the same scale: scores, ranks with intervals, and all pairs.

    The intervals of ranks hold together: a rank is lowered by models told apart above it, and
    raised by those below, after Holm's adjustment.
    """

    # By model, best first: score, standard_error, low, high, rank (1: highest), rank_low, rank_high
    models: pd.DataFrame
    pairs: pd.DataFrame  # by a and b: difference, low, high, p, p_adjusted (Holm), told_apart
    method: str  # "means" or "irt"
    unit: str  # of the scores: "mean" or "logits"
    level: float
    n_items: int
    repeats: pd.DataFrame | None = None  # by model: see variance_of_repeats
    message: str = ""  # which groups were not asked which items

    def _for_a_paper(self) -> list[tuple[pd.DataFrame, str, list[str]]]:
        notes = [f"Scores: {self.unit} over {self.n_items} items", f"Intervals: {self.level:.0%}"]
        adjusted = ["p_adjusted is p after Holm's adjustment"]
        pairs = self.pairs.set_index("a")
        return [(self.models, "Models", notes), (pairs, "Pairs of models", adjusted)]

    def __repr__(self) -> str:
        """Return the models in their order, and how many pairs are told apart."""
        shown = self.models.round(3).to_string(max_rows=30)
        apart = int(self.pairs["told_apart"].sum())
        others = f"; the others {SAME}" if apart < len(self.pairs) else ""
        of_repeats = ""
        if self.repeats is not None:
            middle = self.repeats.sort_values("share_between").iloc[len(self.repeats) // 2]
            of_repeats = f"\n{middle.name}, whose share is the median: {_describe_repeats(middle)}"
        return (
            f"{len(self.models)} models on {self.n_items} items, scores by {self.method} "
            f"({self.unit})\n{shown}\ntold apart: {apart} of {len(self.pairs)} pairs "
            f"(Holm, {1 - self.level:.2g}){others}{of_repeats}"
            + (f"\n{self.message}" if self.message else "")
        )


def compare(
    a: pd.Series | pd.DataFrame | Repeated | ArrayLike,
    b: pd.Series | ArrayLike | None = None,
    *,
    cluster: pd.Series | ArrayLike | None = None,
    names: tuple[str, str] | None = None,
    level: float = 0.95,
    n_permutations: int = 9999,
    rng: int | np.random.Generator = 0,
    method: Literal["means", "irt"] = "means",
    model: str | irt.IRTFit = "2PL",
    group: pd.Series | Sequence | None = None,
    pass_at: int | None = None,
) -> Comparison | Ranking:
    r"""Compare two models, or all pairs of many, on the same items or words.

    With differences :math:`d_i` of n items in G clusters, the standard error is that of a mean,
    robust to whatever items of a cluster share (Liang & Zeger 1986):

    .. math:: s^2 = \frac{G}{G - 1} \frac{1}{n^2} \sum_g \Bigl( \sum_{i \in g} (d_i - \bar d)
              \Bigr)^2

    and the interval that of t with G - 1 degrees of freedom. Scores of 0 and 1 without clusters
    have Bonett & Price's (2012) interval, which is no point where all items agree, and McNemar's
    exact p-value. The minimal detectable difference is :math:`(t_{1 - \alpha/2} + t_{.8}) s`.

    Of models that answered each item several times (:class:`psychlm.frames.Repeated`) the scores
    are the means of the items (Miller 2024); see :func:`psychlm.comparison.variance_of_repeats`.

    Parameters
    ----------
    a, b : Series, array, or (``a`` alone) DataFrame or Repeated
        Scores by item or word: grades, surprisals, log-likelihoods. Series are matched by their
        labels, arrays by position; pairs of which one is missing are left out and counted. A frame
        holds one row a model, as responses do, and one column an item.
    cluster : Series or array, optional
        What items share: a Series by item, or an array in the order of ``a`` (of a frame's
        columns).
    names : (str, str), optional
        Names of the two; those of the Series unless given. Of a frame, the two rows to compare.
    level : float
        Coverage of the intervals; p-values below 1 - level tell two apart.
    n_permutations, rng : int, and int or Generator
        Random flips of sign, of whole clusters; all are counted where they are fewer; 0: no test.
    method : {"means", "irt"}
        Scores of many models: means, which need all models asked all items, or abilities (logits).
    model : str or IRTFit
        For "irt": the model that is fitted to the frame (a hundred models or more), or a fit of
        calibrated items.
    group : Series by model, or sequence in the order of models, optional
        For "irt": groups whose abilities may be distributed differently, and who may have been
        asked other items, if some link them; fitted together (:func:`psychlm.irt.fit`).
    pass_at : int, optional
        Compare how probable it is that one of so many answers to an item is right (pass@k).

    Examples
    --------
    >>> import psychlm
    >>> psychlm.compare([1, 1, 1, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 1, 0, 0], names=("A", "B"))
    A 0.875, B 0.25 on 8 items
    difference 0.625, 95% interval [0.08423, 0.9158], higher on 5 against 0 items
    p = 0.062 (exact McNemar); permutation 0.062; minimal detectable difference at .8 power 0.594
    A and B cannot be told apart at this size
    """
    if not 0 < level < 1:
        raise ValueError(f"level is a coverage between 0 and 1, as .95; it is {level}")
    repeated = a if isinstance(a, Repeated) else None
    if isinstance(a, Repeated):
        a = a.mean if pass_at is None else a.pass_at(pass_at)
    elif pass_at is not None:
        raise ValueError("pass_at takes several answers to each item: frames.Repeated")
    if isinstance(a, pd.DataFrame):
        if b is not None:
            raise ValueError(
                "a frame compares its rows with each other; for two models name two rows: "
                "compare(frame, names=('first', 'second'))"
            )
        if names is None:
            return _rank(a, repeated, cluster, level, method, model, pass_at, group)
        refuse("models", [name for name in names if name not in a.index], "are not in the frame")
        a, b = a.loc[names[0]], a.loc[names[1]]
    if b is None:
        raise ValueError("one set of scores is no comparison; give b, or a frame of many models")
    if method != "means":
        raise ValueError(f"method {method!r} scores the rows of a frame; two models have means")
    given = [getattr(scores, "name", None) for scores in (a, b)]
    named = None not in given and given[0] != given[1]
    labels = (str(given[0]), str(given[1])) if named else ("a", "b")
    first, second, items, codes, n_left_out = _paired_items(a, b, cluster)
    difference = (first - second)[None]
    binary = bool(np.isin([first, second], (0, 1)).all())
    result = _test(difference, codes, binary, level)
    wins = (int((difference > 0).sum()), int((difference < 0).sum()))
    p_mcnemar = float(_mcnemar(*wins)) if binary else np.nan
    p_permutation = np.nan
    if n_permutations:
        exact = binary and codes is None
        sums = _sums(difference, codes)[0]
        p_permutation = p_mcnemar if exact else _permutation_p(sums, n_permutations, rng)
    of_repeats = None
    if repeated is not None and not pass_at:
        of_repeats = variance_of_repeats(repeated, names, items)
    return Comparison(
        names=names or labels,
        scores=(float(first.mean()), float(second.mean())),
        level=level,
        p_mcnemar=p_mcnemar,
        p_permutation=p_permutation,
        n=len(first),
        n_clusters=len(first) if codes is None else int(codes.max()) + 1,
        n_left_out=n_left_out,
        n_wins=wins,
        repeats=of_repeats,
        **{name: float(value[0]) for name, value in result.items()},
    )


def variance_of_repeats(
    repeated: Repeated, names: Sequence[str] | None = None, items: pd.Index | None = None
) -> pd.DataFrame | None:
    r"""Return how much of the variance of answers lies between items, and what repeats are worth.

    The mean of item q over m answers varies by :math:`\sigma^2_B + \sigma^2_W / m`: between items,
    and between the answers to one. With the share :math:`\rho = \sigma^2_B / (\sigma^2_B +
    \sigma^2_W)` G items that are answered m times tell as much as :math:`G m / (1 + (m - 1) \rho)`
    items that are answered once; the denominator is the design effect (Kish 1965).

    ``names`` are two models, whose difference gets a row as well; all models unless given.
    ``items`` are those that count.

    Returns
    -------
    DataFrame or None
        By model: ``n_items``, ``repeats`` (answers to an item, on average), the variances
        ``between`` items and ``within``, ``share_between``, ``design_effect``, ``worth`` (items
        answered once that tell as much), ``worth_at_most`` (with repeats without end), and
        ``enough``: so many repeats bring the standard error within 5 % of its lowest. None where no
        item was answered twice.

    Examples
    --------
    >>> correct = pd.DataFrame([[4, 2, 0, 3]], index=["A"])
    >>> variance = variance_of_repeats(Repeated(correct, correct * 0 + 4))
    >>> variance[["share_between", "design_effect", "worth"]].round(2).values.tolist()
    [[0.5, 2.5, 6.4]]
    """
    chosen = list(repeated.n.index if names is None else names)
    tables = (repeated.mean, repeated.n.where(repeated.n > 0), repeated.variance)
    columns = repeated.n.columns if items is None else items
    mean, n, variance = (table.loc[chosen, columns].to_numpy() for table in tables)
    if np.isnan(variance).all():
        return None
    # An item that was answered once varies within as the others do on average.
    within_others = np.nanmean(variance, axis=1, keepdims=True)
    variance = np.where(np.isnan(variance) & (n > 0), within_others, variance)
    noise = variance / n  # of the items' means
    if names is not None:
        chosen.append("difference")
        mean = np.vstack([mean, mean[0] - mean[1]])
        n = np.vstack([n, n.mean(axis=0)])
        variance = np.vstack([variance, variance.sum(axis=0)])
        noise = np.vstack([noise, noise.sum(axis=0)])
    noise_of_means = np.nanmean(noise, axis=1)
    within = np.nanmean(variance, axis=1)
    between = (np.nanvar(mean, axis=1, ddof=1) - noise_of_means).clip(0)
    n_items = (n > 0).sum(axis=1)
    repeats = np.nanmean(n, axis=1)
    total = between + within
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = n_items * total / (between + noise_of_means)
        figures = {
            "n_items": n_items,
            "repeats": repeats,
            "between": between,
            "within": within,
            "share_between": between / total,
            "design_effect": n_items * repeats / worth,
            "worth": worth,
            "worth_at_most": n_items * total / between,
            "enough": np.ceil(within / between / (NEAR**2 - 1)).clip(1),
        }
    return pd.DataFrame(figures, pd.Index(chosen, name="person"))


def _describe_repeats(row: pd.Series) -> str:
    """Return a row of :func:`variance_of_repeats` in words."""
    answers = f"{row['repeats']:.3g} answers to each of {row['n_items']:.0f} items"
    if not row["between"] > 0:
        return f"{answers}, which differ no more than chance: repeats tell as much as further items"
    return (
        f"{answers}, {row['share_between']:.0%} of the variance between items: they tell as much "
        f"as one answer to each of {row['worth']:.0f} (design effect {row['design_effect']:.2f}), "
        f"and any number of repeats at most as one to each of {row['worth_at_most']:.0f}; more "
        f"than {row['enough']:.0f} lower the standard error by less than {NEAR - 1:.0%}"
    )


def _paired_items(a: Any, b: Any, cluster: Any) -> tuple[Array, Array, pd.Index, Codes, int]:
    """Return the scores of the items that both have, these items, their clusters, and how many
    items are left out.
    """
    labelled = [isinstance(scores, pd.Series) for scores in (a, b)]
    if labelled[0] != labelled[1]:
        raise ValueError("one of the two has labels and one has not; give two Series or two arrays")
    if not all(labelled):
        a = pd.Series(np.asarray(a))
        b = pd.Series(np.asarray(b))
        if len(a) != len(b):
            raise ValueError(f"arrays have {len(a)} and {len(b)} scores; Series match by label")
    a = as_numbers(a)
    b = as_numbers(b)
    for name, scores in (("a", a), ("b", b)):
        if not pd.api.types.is_numeric_dtype(scores):
            said = f"the scores of {name} are {scores.dtype}, not numbers; grade them"
            raise ValueError(f"{said}; numbers as text become numbers with scores.astype(float)")
        repeated = scores.index[scores.index.duplicated()]
        refuse(f"labels of {name}", repeated, "occur more than once; keep one of each")
        infinite = scores.index[scores.isin([np.inf, -np.inf])]
        refuse(f"scores of {name} at", infinite, "are infinite; smooth probabilities of 0")
    labels = a.index.union(b.index, sort=False)
    first, second = (
        scores.reindex(labels).to_numpy(np.float64, na_value=np.nan) for scores in (a, b)
    )
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < 2:
        raise ValueError(
            f"a and b share {both.sum()} items with scores, and a comparison needs 2; labels of a "
            f"{format_names(a.index, 3)}, of b {format_names(b.index, 3)}"
        )
    codes = _cluster_codes(cluster, a.index, labels[both])
    return first[both], second[both], labels[both], codes, int((~both).sum())


def _cluster_codes(cluster: Any, items: pd.Index, kept: pd.Index) -> Codes:
    """Return the clusters of the kept items as numbers 0, 1, ...; None if each is its own.

    ``cluster`` is a Series by item, or an array in the order of ``items``.
    """
    if cluster is None:
        return None
    if not isinstance(cluster, pd.Series):
        if len(cluster) != len(items):
            raise ValueError(f"cluster has {len(cluster)} entries for {len(items)} items")
        cluster = pd.Series(np.asarray(cluster), items)
    repeated = cluster.index[cluster.index.duplicated()]
    refuse("labels of cluster", repeated, "occur more than once; keep one of each")
    clusters = cluster.reindex(kept)
    refuse("items", kept[clusters.isna()], "have no cluster; give one to each item")
    codes, labels = pd.factorize(clusters)
    if len(labels) < 2:
        raise ValueError(f"all items are in one cluster ({labels[0]!r}); errors need at least two")
    return None if len(labels) == len(kept) else codes


def _sums(differences: Array, codes: Codes) -> Array:
    """Return the sums over clusters, (n_pairs, n_clusters)."""
    if codes is None:
        return differences
    members = scipy.sparse.csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)))
    return differences @ members


def _test(differences: Array, codes: Codes, binary: bool, level: float) -> dict[str, Array]:
    """Return difference, error, interval, p and minimal detectable difference of every pair.

    ``differences`` are (n_pairs, n_items), ``codes`` the items' clusters; ``binary``: of 0 and 1.
    """
    n = differences.shape[1]
    difference = differences.mean(axis=1)
    sums = _sums(differences - difference[:, None], codes)
    n_clusters = sums.shape[1]
    se = np.sqrt(n_clusters / (n_clusters - 1) * (sums**2).sum(axis=1)) / n
    se[se < 1e-12 * np.abs(differences).max()] = 0  # rounding of differences that are all alike
    if binary and codes is None:
        # Bonett & Price (2012): one more item won by each, n + 2 in all
        wins = (differences > 0).sum(axis=1), (differences < 0).sum(axis=1)
        share = [(count + 1) / (n + 2) for count in wins]
        centre = share[0] - share[1]
        error = np.sqrt((share[0] + share[1] - centre**2) / (n + 2))
        quantile, power = scipy.stats.norm.ppf([(1 + level) / 2, POWER])
        limits = [np.clip(centre + sign * quantile * error, -1, 1) for sign in (-1, 1)]
        p = _mcnemar(*wins)
    else:
        error = se
        df = n_clusters - 1
        quantile, power = scipy.stats.t.ppf([(1 + level) / 2, POWER], df)
        limits = [difference + sign * quantile * error for sign in (-1, 1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * scipy.stats.t.sf(np.abs(difference) / error, df)
        # Without variance t is undefined. Of all flips of sign, two are as far from zero.
        constant = np.where(difference == 0, 1.0, 2.0 ** (1 - n_clusters))
        p = np.where(error > 0, p, constant)
    return {
        "difference": difference,
        "low": limits[0],
        "high": limits[1],
        "standard_error": se,
        "p": p,
        "minimal_detectable": np.where(error > 0, (quantile + power) * error, np.nan),
    }


def _mcnemar(first: ArrayLike, second: ArrayLike) -> Any:
    """Return McNemar's exact p-value of the items that one of two models alone has right."""
    few = np.minimum(first, second)
    both = np.add(first, second)
    return np.minimum(2 * scipy.stats.binom.cdf(few, both, 0.5), 1)


def _permutation_p(sums: Array, n_permutations: int, rng: int | np.random.Generator) -> float:
    """Return the share of flips of sign whose total is as far from zero, two-sided."""
    sums = sums[sums != 0]  # flips of zero change nothing
    if len(sums) == 0:
        return 1.0
    result = scipy.stats.permutation_test(
        (sums, np.zeros(len(sums))),
        lambda x, y, axis: (x - y).sum(axis=axis),
        permutation_type="samples",
        n_resamples=n_permutations,
        batch=max(1, CELLS // len(sums)),
        vectorized=True,
        rng=np.random.default_rng(rng),
    )
    return float(result.pvalue)


def _rank(
    frame: pd.DataFrame,
    repeated: Repeated | None,
    cluster: Any,
    level: float,
    method: str,
    model: str | irt.IRTFit,
    pass_at: int | None,
    group: pd.Series | Sequence | None,
) -> Ranking:
    """Compare all pairs of the rows of a frame."""
    if method not in ("means", "irt"):
        raise ValueError(f"method {method!r} is unknown; choose 'means' or 'irt'")
    if len(frame) < 2 or not frame.index.is_unique or not frame.columns.is_unique:
        raise ValueError(f"a comparison needs two models (rows), each model and item once{OF_TWO}")
    message = ""
    if group is not None and (method != "irt" or isinstance(model, irt.IRTFit)):
        raise ValueError("group takes method='irt' and the name of a model that is fitted to all")
    if method == "irt":
        if cluster is not None:
            raise ValueError("method='irt' takes no clusters: items are independent given theta")
        if pass_at is not None:
            raise ValueError("method='irt' takes the answers themselves; leave pass_at out")
        answers = frame if repeated is None else repeated
        models, tests = _by_ability(answers, level, model, group)
        if group is not None:
            message = _items_not_asked(frame, by_person(frame.index, group, "group"))
    else:
        codes = _cluster_codes(cluster, frame.columns, frame.columns)
        models, tests = _by_means(frame, codes, level)
    n = len(models)
    first, second = np.triu_indices(len(models), 1)
    pairs = pd.DataFrame({"a": models.index[first], "b": models.index[second], **tests})
    pairs["p_adjusted"] = holm(pairs["p"].to_numpy())
    pairs["told_apart"] = pairs["p_adjusted"] < 1 - level
    models["rank"] = scipy.stats.rankdata(-models["score"], method="min").astype(int)
    # One rank further down for each model that is told apart above, and likewise from below.
    apart = pairs["told_apart"].to_numpy()
    above = pairs["difference"].to_numpy() > 0
    n_above = np.bincount(np.where(above, second, first)[apart], minlength=n)
    n_below = np.bincount(np.where(above, first, second)[apart], minlength=n)
    models["rank_low"], models["rank_high"] = 1 + n_above, n - n_below
    models = models.sort_values("rank", kind="stable")
    unit = "logits" if method == "irt" else "mean" if pass_at is None else f"pass@{pass_at}"
    repeats = None if repeated is None or pass_at else variance_of_repeats(repeated)
    return Ranking(models, pairs, method, unit, level, frame.shape[1], repeats, message)


def _items_not_asked(frame: pd.DataFrame, groups: pd.Series) -> str:
    """Return which groups were not asked which items, in words."""
    asked = frame.notna().groupby(groups.to_numpy(), sort=False).any()
    lacking = {group: row.index[~row] for group, row in asked.iterrows() if not row.all()}
    return "; ".join(
        f"group {group!r} was not asked {len(items)} items: {format_names(items)}"
        for group, items in lacking.items()
    )


def _by_means(
    frame: pd.DataFrame, codes: Codes, level: float
) -> tuple[pd.DataFrame, dict[str, Array]]:
    """Return means of models, and the tests of their pairs."""
    values = frame.to_numpy(np.float64, na_value=np.nan)
    missing = np.isnan(values)
    if missing.any():
        raise FrameError(
            f"{missing.mean():.0%} of the cells are empty: models were asked other items, and "
            "their means are not comparable; method='irt' puts them on one scale; else leave out "
            "models or items (frame.dropna(axis='columns') keeps what all were asked)"
        )
    if values.shape[1] < 2:
        raise FrameError(
            f"each row is a model, with scores of {values.shape[1]} item, and a comparison needs 2 "
            f"items{OF_TWO}"
        )
    binary = bool(np.isin(values, (0, 1)).all())
    single = _test(values, codes, False, level)
    scores = {name: single[name] for name in ("standard_error", "low", "high")}
    if ((values >= 0) & (values <= 1)).all():  # shares of right answers lie between 0 and 1
        scores |= {name: scores[name].clip(0, 1) for name in ("low", "high")}
    rows = [_test(values[i] - values[i + 1 :], codes, binary, level) for i in range(len(frame) - 1)]
    columns = ("difference", "low", "high", "p")
    tests = {name: np.concatenate([row[name] for row in rows]) for name in columns}
    return pd.DataFrame({"score": single["difference"], **scores}, frame.index), tests


def _by_ability(
    frame: pd.DataFrame | Repeated,
    level: float,
    model: str | irt.IRTFit,
    group: pd.Series | Sequence | None = None,
) -> tuple[pd.DataFrame, dict[str, Array]]:
    """Return abilities of models, and the tests of their pairs."""
    if isinstance(model, irt.IRTFit):
        fit = model
        responses = frame
    else:
        checked = frame if isinstance(frame, Repeated) else check_responses(frame)
        responses, _ = drop_constant(checked)
        fit = irt.fit(responses, model, group=group, standard_errors=False)
    if group is None:
        scores = fit.score(responses)
    else:
        persons = frame.n.index if isinstance(frame, Repeated) else frame.index
        member = by_person(persons, group, "group")
        scores = pd.concat(
            fit.in_group(label).score(
                responses.select(rows) if isinstance(responses, Repeated) else responses.loc[rows]
            )
            for label, rows in member.groupby(member).groups.items()
        ).loc[persons]
    scores = scores.set_axis(["score", "standard_error"], axis=1)
    half = scipy.stats.norm.ppf((1 + level) / 2)
    theta = scores["score"].to_numpy()
    se = scores["standard_error"].to_numpy()
    first, second = np.triu_indices(len(scores), 1)
    difference = theta[first] - theta[second]
    error = np.hypot(se[first], se[second])
    tests = {
        "difference": difference,
        "low": difference - half * error,
        "high": difference + half * error,
        "p": 2 * scipy.stats.norm.sf(np.abs(difference) / error),
    }
    return scores.assign(low=theta - half * se, high=theta + half * se), tests
