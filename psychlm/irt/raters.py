r"""Raters as a facet: how severe are people, or models, who judge the same answers?

.. math:: \log P(x_{pir} = k) / P(x_{pir} = k - 1) = \theta_p - b_{ik} - s_r, \qquad
          \theta_p \sim N(0, \sigma^2), \qquad \sum_r s_r = 0,

the many-facet Rasch model (Linacre 1989) of right and wrong or of ratings, by marginal maximum
likelihood: a rater's severity s is in logits, and above 0 for those who give lower ratings. An item
as judged by a rater is one of the engine's items, and its intercepts are -b_ik - s_r.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, refuse
from psychlm.irt._fit import solve
from psychlm.irt.engine import Settings
from psychlm.irt.response_functions import MODELS
from psychlm.irt.response_matrix import encode_ratings, few_threads
from psychlm.irt.result import IRTFit, result_of
from psychlm.irt.specification import (
    LOCATION,
    IRTWarning,
    ParameterMap,
    Specification,
    tied_parameters,
)
from psychlm.irt.standard_errors import covariance_of


@dataclass(frozen=True)
class RaterFit:
    """A fitted model with raters; logits."""

    raters: pd.DataFrame  # by rater: severity, se, n (judgements)
    # By item: b (mean of its steps, for a rater of mean severity), se; of ratings b1, se_b1, ...
    items: pd.DataFrame
    persons: pd.DataFrame  # by person: theta (EAP, severities taken into account), se
    ability_sd: float
    loglik: float  # marginal, nats
    converged: bool
    cells: IRTFit  # the items as judged by each rater, "item, rater"

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return (
            f"RaterFit({len(self.raters)} raters, {len(self.items)} items, log-likelihood "
            f"{self.loglik:.3f}, {state})\n{self.raters.round(3).to_string()}"
        )


def fit_raters(judgements: pd.DataFrame) -> RaterFit:
    """Fit severities of raters and difficulties of items to judgements or ratings of answers.

    Parameters
    ----------
    judgements : DataFrame
        One row a judgement: ``person`` (whose answer it is), ``item``, ``rater``, ``score`` (0 and
        1, or ratings, with steps of its own for each item). A rater may judge an answer several
        times.

    Notes
    -----
    Judgements of one answer are taken as independent given ability, item and rater. Where answers
    differ for other reasons, raters agree more than that, and the errors of items and of abilities
    are too small; differences between raters of the same answers are hardly touched.

    References
    ----------
    Linacre (1989), Many-Facet Rasch Measurement; for 0 and 1 the model of R's ``lme4::glmer(score ~
    0 + item + rater + (1 | person), binomial)``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cells = pd.MultiIndex.from_product([range(60), ["i1", "i2", "i3"], ["ann", "bob"]])
    >>> rows = cells.to_frame(index=False, name=["person", "item", "rater"])
    >>> easy = np.where(rows["rater"] == "bob", 1.0, 0.0) + rng.normal(size=60)[rows["person"]]
    >>> rows["score"] = (rng.logistic(size=len(rows)) < easy).astype(float)
    >>> bool(fit_raters(rows).raters.loc["ann", "severity"] > 0)
    True
    """
    missing = [name for name in ("person", "item", "rater", "score") if name not in judgements]
    if missing:
        raise FrameError(f"judgements need the columns {missing}; have {list(judgements)}")
    scored = judgements.dropna(subset="score")
    # Items and raters whose judgements are all the lowest, or all the highest, have no estimate.
    ends = scored["score"].min(), scored["score"].max()
    for name in ("item", "rater"):
        lowest, highest = (scored.groupby(name)["score"].agg(end) for end in ("min", "max"))
        alike = (lowest == highest) & (lowest.isin(ends) if name == "rater" else True)
        flaw = f"have judgements that are all alike, and no finite estimate; leave the {name}s out"
        refuse(f"{name}s", lowest.index[alike], flaw)

    # A cell is an item as judged by a rater, once more for a second judgement of the same answer.
    keys = ["person", "item", "rater"]
    cell = pd.MultiIndex.from_frame(
        scored[["item", "rater"]].assign(time=scored.groupby(keys).cumcount())
    )
    number, cells = pd.factorize(cell)
    table = pd.DataFrame({"person": scored["person"], "cell": number, "score": scored["score"]})
    wide = table.pivot(index="person", columns="cell", values="score").astype(float)
    wide.columns = pd.Index([", ".join(map(str, cells[k])) for k in wide], name="item")
    of_item, items = pd.factorize(cells.get_level_values(0))
    of_rater, raters = pd.factorize(cells.get_level_values(1))

    # The last rater's severity is minus the sum of the others'.
    contrasts = np.vstack([np.eye(len(raters) - 1), -np.ones(len(raters) - 1)])
    x = np.hstack([np.eye(len(items))[of_item], contrasts[of_rater]])
    if len(raters) < 2 or np.linalg.matrix_rank(x) < x.shape[1]:
        raise FrameError(
            f"{len(raters)} raters and {len(items)} items fall into sets without a judgement in "
            "common, so that severities cannot be told from difficulties; it takes two raters or "
            "more, and items that link them"
        )

    # A partial credit model whose cells of one item share their intercepts, less the severities.
    answers = scored.groupby("item")["score"].agg(lambda scores: sorted(set(scores)))
    levels = {name: answers[items[item]] for name, item in zip(wide, of_item, strict=True)}
    encoded = encode_ratings(wide, levels)
    chosen = MODELS["PCM"]
    fixed = chosen.form.fixed(np.array([len(levels[name]) for name in wide]), {}, {})
    together = [list(wide.columns[of_item == item]) for item in range(len(items))]
    spec = Specification(
        model=chosen,
        answers=encoded,
        groups=[None],
        member=np.zeros(len(wide), int),
        fixed=fixed,
        ties=tied_parameters(wide.columns, {"slope": "all", "intercept": together}),
        freed=np.zeros((4, wide.shape[1]), bool),
        priors={},
    )
    n_rows, n_cells = fixed.shape
    severity = np.zeros((n_rows * n_cells + 2, len(raters) - 1))  # two cells of ability's moments
    for row in range(1, n_rows):
        of_row = np.isnan(fixed[row])[:, None] * contrasts[of_rater]
        severity[row * n_cells : (row + 1) * n_cells] = -of_row
    names = pd.MultiIndex.from_product([raters[:-1], ["severity"]])
    facets = ParameterMap.of(severity, np.full(len(raters) - 1, LOCATION), names)
    spec = replace(spec, facets=facets)
    with few_threads(encoded.values.size):
        solution = solve(spec, None, True, Settings(1e-4, 500))
    for message in solution.messages:
        warnings.warn(message, IRTWarning, stacklevel=2)

    # Severities and steps as functions of the estimates.
    basis = spec.parameters.basis[:-2]
    values = np.where(basis.any(axis=1), solution.values.ravel(), 0.0)
    estimates = np.linalg.lstsq(basis, values, rcond=None)[0]
    assert solution.covariance is not None
    covariance = solution.covariance.to_numpy()
    n_others = len(estimates) - len(names)
    of_severity = np.hstack([np.zeros((len(raters), n_others)), contrasts])
    value, se = function_of(of_severity, estimates, covariance)
    by_rater = pd.DataFrame({"severity": value, "se": se}, pd.Index(raters, name="rater"))
    by_rater["n"] = scored["rater"].value_counts()
    # b_ik is minus the intercept of any cell of the item without its severity.
    without = np.hstack([basis[:, :n_others], np.zeros((len(basis), len(names)))])
    first = [int(np.flatnonzero(of_item == item)[0]) for item in range(len(items))]
    steps = -without.reshape(n_rows, n_cells, -1)[1:, first]
    n_steps = np.isnan(fixed[1:, first]).sum(axis=0)
    value, se = function_of(steps.sum(axis=0) / n_steps[:, None], estimates, covariance)
    by_item = pd.DataFrame({"b": value, "se": se}, pd.Index(items, name="item"))
    for k, step in enumerate(steps if n_rows > 2 else [], start=1):
        by_item[f"b{k}"], by_item[f"se_b{k}"] = function_of(step, estimates, covariance)
    fit = result_of(spec, solution)
    return RaterFit(
        raters=by_rater,
        items=by_item,
        persons=fit.score(wide),
        ability_sd=fit.ability_sd,
        loglik=fit.loglik,
        converged=fit.converged,
        cells=fit,
    )


def function_of(
    basis: np.ndarray, estimates: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return linear functions of the estimates and their errors; NaN for a function of nothing."""
    value = np.where(basis.any(axis=1), basis @ estimates, np.nan)
    return value, np.sqrt(covariance_of(basis[:, None], covariance)[:, 0, 0])
