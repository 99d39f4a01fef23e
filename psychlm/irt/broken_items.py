r"""A screen for broken items: wrong keys, items without one right answer, copies, drift.

Each fault has an effect with a bound, below which it is of no consequence however many persons
there are; p is that of the hypothesis that the effect does not pass the bound.

- ``wrong_key``: the item-rest correlation is below -.15; able persons fail the item.
- ``no_right_answer``: the item-rest correlation is about 0; the item measures nothing.
- ``two_right_answers``: the probability of a right response stays below 1 among the able,
  :math:`P(\theta) = u / (1 + e^{-(a\theta + d)})` with a ceiling u below .7.
- ``only_guessers``: the most able fifth is right less often than guessing would be.
- ``near_duplicate``: residuals of two items correlate (Q3, Yen 1984) beyond .5.
- ``drift``: for persons of one group the item is easier than for equally able others, by more than
  .64 logits (Mantel-Haenszel); such is what training on the item does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit, xlogy
from scipy.stats import binom, nchypergeom_fisher, norm

from psychlm import stats
from psychlm.ctt import item_rest_correlation
from psychlm.frames import FrameError, Repeated, by_person, check_responses
from psychlm.irt._fit import fit
from psychlm.irt.dif import mantel_haenszel
from psychlm.irt.item_fit import q3
from psychlm.irt.priors import LogNormal
from psychlm.irt.result import IRTFit

Array = NDArray[np.float64]
FAULTS = (
    "wrong_key",
    "no_right_answer",
    "two_right_answers",
    "only_guessers",
    "near_duplicate",
    "drift",
)
ALPHA = 0.05
NEGLIGIBLE = 0.15  # item-rest correlations between this and its negative count as none
CEILING = 0.7  # of P(right)
RESIDUAL = 0.5  # correlation
EASIER = 0.64  # logits; a difference of 1.5 on ETS's delta scale, its class C
N_CLASSES = 20  # of ability, in which responses are summed
LEAST_GROUP = 30  # persons of a group whose drift is tested


def flag_items(
    responses: pd.DataFrame | Repeated,
    *,
    n_choices: int | None = None,
    groups: pd.Series | Sequence | None = None,
) -> pd.DataFrame:
    """Test every item for six faults, whose effects and bounds the module explains.

    Parameters
    ----------
    responses : DataFrame or Repeated, shape (n_persons, n_items)
        Graded responses, 0, 1 or NaN. Of several answers to an item (``frames.Repeated``) one is
        drawn, since the bounds are those of single answers, and repeats are not independent.
    n_choices : int, optional
        Choices of an item, of which guessing takes one; without it ``only_guessers`` is not tested.
    groups : Series by person, or sequence in the order of persons, optional
        Groups of persons, such as families of models, each of which is compared with all others if
        it has at least 30 persons; without it ``drift`` is not tested. Where responses are missing,
        persons are matched on the ability that their other answers tell.

    Returns
    -------
    DataFrame, one row per fault and item
        ``fault``, ``item``, ``effect``, ``p``, ``p_adjusted`` (Holm, over the tests of a fault),
        ``flagged`` (below 0.05), and ``detail``: the other item of a pair, or the group that
        drifts, of those with the smallest p. Items that everybody answers alike have no row.

    Notes
    -----
    Abilities are those of a 2PL model of all items, so that many faults at once, or faults in a
    short test, hide one another. Fewer than 30 persons are refused; a pair of items that fewer
    answered is not tested for ``near_duplicate`` (p is NaN). A flag is a
    reason to read the item, not to remove it.

    Examples
    --------
    >>> from psychlm import simulate
    >>> rng = np.random.default_rng(0)
    >>> answers = simulate.responses(rng.normal(size=1000), simulate.items(20, rng, "1PL"), rng)
    >>> answers["item-07"] = 1 - answers["item-07"]
    >>> flags = flag_items(answers)
    >>> flags.loc[flags["flagged"], ["fault", "item"]].to_numpy().tolist()
    [['wrong_key', 'item-07']]
    """
    if n_choices is not None and n_choices < 2:
        raise ValueError(f"n_choices={n_choices}: an item has two choices at least, as 4")
    if isinstance(responses, Repeated):
        responses = responses.draw(np.random.default_rng(0))
    responses = check_responses(responses)
    responses = responses.loc[:, responses.nunique() > 1]
    if responses.shape[1] < 3:
        raise FrameError(
            f"{responses.shape[1]} items were answered in more than one way, and a screen needs 3"
        )
    if len(responses) < LEAST_GROUP:
        raise FrameError(
            f"{len(responses)} persons, and a screen needs {LEAST_GROUP}: among fewer, items look "
            "like duplicates by chance"
        )
    model = fit(responses, "2PL", priors={"slope": LogNormal(0, 1)}, standard_errors=False)
    theta = model.score(responses)["theta"].to_numpy()
    x = responses.to_numpy(np.float64)
    items = responses.columns

    answered = np.isfinite(x)
    answers = np.nan_to_num(x)
    r = item_rest_correlation(responses).to_numpy()
    z = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))
    error = 1 / np.sqrt(np.maximum(answered.sum(axis=0) - 3, 1))
    bound = np.arctanh(NEGLIGIBLE)
    below = norm.cdf((z + bound) / error)
    above = norm.sf((z - bound) / error)
    rows = [
        _rows("wrong_key", items, r, below),
        _rows("no_right_answer", items, r, np.maximum(1 - below, 1 - above)),
    ]

    # The responses of classes of equal size, by ability.
    order = np.argsort(np.argsort(theta, kind="stable"), kind="stable")
    classes = np.eye(N_CLASSES)[order * N_CLASSES // len(theta)]  # persons x classes
    n_right = classes.T @ answers  # classes x items
    n_answered = classes.T @ answered
    middle = (classes.T @ theta) / classes.sum(axis=0)
    fitted = [_ceiling(*counts, middle) for counts in zip(n_right.T, n_answered.T, strict=True)]
    rows.append(_rows("two_right_answers", items, *np.array(fitted).T))

    if n_choices is not None:
        able = slice(-(N_CLASSES // 5), None)
        right = n_right[able].sum(axis=0)
        number = n_answered[able].sum(axis=0)
        share = right / np.maximum(number, 1)
        p = binom.cdf(right, number, 1 / n_choices)
        rows.append(_rows("only_guessers", items, share, p))

    residuals = q3(model, responses).to_numpy()
    first, second = np.triu_indices(len(items), 1)
    n_both = (answered.T.astype(float) @ answered)[first, second]
    value = np.clip(residuals[first, second], -1 + 1e-12, 1 - 1e-12)
    p = norm.sf((np.arctanh(value) - np.arctanh(RESIDUAL)) * np.sqrt(np.maximum(n_both - 3, 1)))
    p[n_both < LEAST_GROUP] = np.nan
    pairs = _rows("near_duplicate", items[first], value, p, items[second])
    turned = pairs.assign(item=items[second], detail=items[first])
    rows.append(_smallest_p(pd.concat([pairs, turned])))

    if groups is not None:
        group = by_person(responses.index, groups, "group")
        rows.append(_smallest_p(_drift(responses, group, model if not answered.all() else None)))
    flags = pd.concat([table for table in rows if len(table)], ignore_index=True)
    return flags.assign(flagged=flags["p_adjusted"] < ALPHA)


def _drift(responses: pd.DataFrame, group: pd.Series, model: IRTFit | None) -> pd.DataFrame:
    """Test each item in each group of 30 persons or more against all other persons."""
    sizes = group.value_counts()
    tables = [_rows("drift", responses.columns[:0], np.zeros(0), np.zeros(0))]
    for name in sizes.index[(sizes >= LEAST_GROUP) & (sizes <= len(group) - LEAST_GROUP)]:
        tested = mantel_haenszel(
            responses, group == name, reference=False, purify=False, n_strata=N_CLASSES, fit=model
        )
        effect = -tested.items["log_odds"].to_numpy()  # above 0: easier for the group
        p = norm.sf((effect - EASIER) / tested.items["se"].to_numpy())
        for item in np.flatnonzero(np.isinf(effect)):  # one of the two has all right, or all wrong
            p[item] = _score_p(tested.tables[item])
        tables.append(_rows("drift", responses.columns, effect, p, name).dropna(subset="p"))
    drifts = pd.concat(tables)
    return drifts.assign(p_adjusted=stats.holm(drifts["p"]))


def _score_p(tables: Array) -> float:
    """Return p of Mantel's score test that log odds do not pass EASIER, given all margins.

    It needs no estimate of the odds, whose error is unknown where they are infinite. ``tables`` are
    those of an item by stratum, group and response.
    """
    tables = tables[tables.any(axis=(1, 2))]
    n_members = tables[:, 1].sum(axis=1)
    n_right = tables[:, :, 1].sum(axis=1)
    margins = tables.sum(axis=(1, 2)), n_right, n_members
    mean, variance = nchypergeom_fisher.stats(*margins, np.exp(EASIER))
    both = tables[:, 1, 1].sum()
    return float(norm.sf((both - 0.5 - mean.sum()) / np.sqrt(variance.sum())))


def _rows(
    fault: str, items: pd.Index, effect: Array, p: Array, detail: object = None
) -> pd.DataFrame:
    """Return one row for each item, with p adjusted over them."""
    columns = {"fault": fault, "item": items, "effect": effect, "p": p, "p_adjusted": stats.holm(p)}
    return pd.DataFrame(columns | {"detail": detail})


def _smallest_p(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the row of each item whose p is smallest."""
    return rows.sort_values("p", kind="stable").drop_duplicates("item")


def _ceiling(n_right: Array, n_answered: Array, theta: Array) -> tuple[float, float]:
    """Return the ceiling of an item, and p of the hypothesis that it is not below the bound."""

    def loss(x: Array) -> tuple[float, Array]:
        """Minus log-likelihood and its gradient, in log a, d and the logit of u."""
        u = expit(x[2])
        slope = np.exp(x[0])
        s = expit(slope * theta + x[1])
        p = np.clip(u * s, 1e-9, 1 - 1e-9)
        value = -float((xlogy(n_right, p) + xlogy(n_answered - n_right, 1 - p)).sum())
        of_p = (n_answered - n_right) / (1 - p) - n_right / p
        of_linear = of_p * u * s * (1 - s)
        of_u = (of_p * s).sum() * u * (1 - u)
        return value, np.array([slope * (of_linear @ theta), of_linear.sum(), of_u])

    share = np.clip(n_right.sum() / n_answered.sum(), 0.01, 0.99)
    bounds = [(None, None), (None, None), (logit(CEILING), logit(CEILING))]
    start = np.array([0.0, logit(share), logit(CEILING)])
    at_bound = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    free = minimize(loss, at_bound.x, jac=True, method="L-BFGS-B")
    u = float(expit(free.x[2]))
    if u >= CEILING:
        return u, 1.0
    root = np.sqrt(max(2 * (at_bound.fun - free.fun), 0.0))  # signed root of the likelihood ratio
    return u, float(norm.sf(root))
