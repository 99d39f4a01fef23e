r"""Raters as a facet: how severe are people, or models, who judge the same answers?

.. math:: P(x_{pir} = 1) = \sigma(\theta_p - b_i - s_r), \qquad \theta_p \sim N(0, \sigma^2), \qquad
          \sum_r s_r = 0,

the many-facet Rasch model of right and wrong (Linacre 1989), by marginal maximum likelihood: a
rater's severity s is in logits, and above 0 for those who find fewer answers right than others.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, Repeated, refuse
from psychlm.irt.explanatory import fit_difficulties
from psychlm.irt.response_matrix import encode_responses
from psychlm.irt.specification import IRTWarning


@dataclass(frozen=True)
class RaterFit:
    """A fitted model with raters; logits."""

    raters: pd.DataFrame  # by rater: severity, se, n (judgements)
    items: pd.DataFrame  # by item: b (for a rater of mean severity), se
    ability_sd: float
    loglik: float  # marginal, nats
    converged: bool

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return (
            f"RaterFit({len(self.raters)} raters, {len(self.items)} items, log-likelihood "
            f"{self.loglik:.3f}, {state})\n{self.raters.round(3).to_string()}"
        )


def fit_raters(judgements: pd.DataFrame, *, max_iterations: int = 500) -> RaterFit:
    """Fit severities of raters and difficulties of items to judgements of right (1) and wrong (0).

    Parameters
    ----------
    judgements : DataFrame
        One row a judgement: ``person`` (whose answer it is), ``item``, ``rater``, ``score``. A
        rater may judge an answer several times.
    max_iterations : int
        Steps of the quasi-Newton method.

    Notes
    -----
    Judgements of one answer are taken as independent given ability, item and rater. Where answers
    differ for other reasons, raters agree more than that, and the errors of items and of abilities
    are too small; differences between raters of the same answers are hardly touched.

    References
    ----------
    Linacre (1989), Many-Facet Rasch Measurement; the model of R's ``lme4::glmer(score ~ 0 + item +
    rater + (1 | person), binomial)``.

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
    if not scored["score"].isin((0, 1)).all():
        raise FrameError(
            "judgements are 0 or 1 here, right or wrong; a facet of raters for ratings of several "
            "categories is not there: fit one rater's at a time by irt.fit(model='gpcm')"
        )
    for name in ("item", "rater"):
        share = scored.groupby(name)["score"].mean()
        flaw = f"have judgements that are all alike, and no finite estimate; leave the {name}s out"
        refuse(f"{name}s", share.index[share.isin((0, 1))], flaw)

    # A cell is an item as judged by a rater; its difficulty is b + s.
    cell, cells = pd.factorize(pd.MultiIndex.from_frame(scored[["item", "rater"]]))
    counted = Repeated.from_long(
        pd.DataFrame({"person": scored["person"], "item": cell, "score": scored["score"]})
    )
    cells = cells[counted.n.columns]
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
    one_sd = np.zeros(len(cells), int)
    estimates = fit_difficulties(encode_responses(counted, "cpu"), x, [], one_sd, max_iterations)
    if not estimates.converged:
        message = f"no convergence in {estimates.n_iterations} steps; raise max_iterations"
        warnings.warn(message, IRTWarning, stacklevel=2)
    n_items = len(items)
    of_raters = estimates.covariance[n_items:, n_items:]
    variance = np.einsum("rk,kl,rl->r", contrasts, of_raters, contrasts)
    table = pd.DataFrame(
        {"severity": contrasts @ estimates.eta[n_items:], "se": np.sqrt(variance)},
        pd.Index(raters, name="rater"),
    )
    table["n"] = scored["rater"].value_counts()
    se = np.sqrt(np.diag(estimates.covariance)[:n_items])
    difficulties = {"b": estimates.eta[:n_items], "se": se}
    return RaterFit(
        raters=table,
        items=pd.DataFrame(difficulties, pd.Index(items, name="item")),
        ability_sd=float(estimates.ability_sd[0]),
        loglik=estimates.loglik,
        converged=estimates.converged,
    )
