"""Items of several dimensions: bifactor, testlet and correlated abilities.

The likelihood is in :mod:`psychlm.irt._abilities`. Newton's method climbs it as that of one ability
(:mod:`psychlm.irt.climb`), on finer grids until a finer one changes nothing; standard errors come
from differences of the gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from psychlm.frames import FrameError, format_names, refuse
from psychlm.irt._abilities import STEP, Bifactor, Correlated, Integral
from psychlm.irt.climb import climb
from psychlm.irt.engine import Settings
from psychlm.irt.likelihood import LARGEST_SLOPE
from psychlm.irt.priors import Normal
from psychlm.irt.response_matrix import few_threads
from psychlm.irt.result import InformationCriteria
from psychlm.irt.specification import IRTWarning, check_answers, specify

MODELS = ("2PL", "graded", "gpcm")
GRID_ERROR = 0.01  # nats: a finer grid that moves the log-likelihood by less changes nothing
FINEST_STEP = STEP / 8
MOST_ERRORS = 400  # estimates whose errors are computed, by as many gradients
FLAT = 0.01  # nats that the end of the climb may be expected to lie below the maximum
NORMAL_METRIC = 1.702  # the logistic curve's distance to the normal one is least with this scale
FEWEST = 3  # items of a factor: of two, only the product of their slopes is known


@dataclass(frozen=True)
class MultidimensionalFit(InformationCriteria):
    """A fit of several dimensions; logistic metric (D = 1), every ability N(0, 1)."""

    # By item: factor (the name of its own), a_general (bifactor), a (of its own factor), d or d1,
    # d2, ..., and errors se_*.
    items: pd.DataFrame
    structure: str  # "bifactor", "testlet" or "correlated"
    model: str
    loglik: float  # nats
    n_parameters: int
    n_persons: int
    converged: bool
    loglik_error: float  # nats by which the log-likelihood moves on a grid of half the step
    correlations: pd.DataFrame  # of the abilities
    se_correlations: pd.DataFrame
    integral: Integral
    method: str = "mml"
    log_prior: float = 0.0
    data_hash: str = ""

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        size = f"{self.n_persons} persons x {len(self.items)} items"
        shares = (
            "" if self.structure == "correlated" else f"\n{self.reliability.round(3).to_string()}"
        )
        return (
            f"MultidimensionalFit({self.structure} {self.model}, {size}, log-likelihood "
            f"{self.loglik:.3f}, AIC {self.aic:.1f}, BIC {self.bic:.1f}, {self.n_parameters} "
            f"parameters, {state}){shares}"
        )

    @cached_property
    def loadings(self) -> pd.DataFrame:
        """Standardised loadings, (n_items, n_abilities): those of a factor analysis of the normal
        variables behind the answers, a / 1.702 over the root of one plus their squares' sum.
        """
        dummies = pd.get_dummies(self.items["factor"]).astype(float)[self.integral.factors.names]
        slopes = dummies.mul(self.items["a"].fillna(0.0), axis=0) / NORMAL_METRIC
        if "a_general" in self.items:
            slopes.insert(0, "general", self.items["a_general"] / NORMAL_METRIC)
        return slopes.div(np.sqrt(1 + (slopes**2).sum(axis=1)), axis=0)

    @property
    def reliability(self) -> pd.Series:
        """Omega, hierarchical omega, and the share of common variance that is general.

        Of the variance of the sum of the (normal) variables behind the answers ``omega_total`` is
        the share of all abilities, ``omega_hierarchical`` that of the general one;
        ``explained_common_variance`` is the general ability's share of the sum of squared loadings
        (Reise 2012; Rodriguez, Reise and Haviland 2016). Near 1, a benchmark measures one ability.
        """
        if self.structure == "correlated":
            raise ValueError("correlated abilities have no general one; fit structure='bifactor'")
        loadings = self.loadings
        common = loadings.sum() ** 2
        unique = (1 - (loadings**2).sum(axis=1)).sum()
        squares = (loadings**2).sum()
        return pd.Series(
            {
                "omega_total": common.sum() / (common.sum() + unique),
                "omega_hierarchical": common["general"] / (common.sum() + unique),
                "explained_common_variance": squares["general"] / squares.sum(),
            },
            name="reliability",
        )

    def score(self, responses: pd.DataFrame) -> pd.DataFrame:
        """Return every ability's expected value and standard deviation, given the responses.

        Columns are (ability, "theta" or "se"), logits. Items may be missing: an ability of which a
        person answered nothing has the mean and sd that the others leave it.
        """
        return self.integral.score(responses)


def fit_dimensions(
    responses: pd.DataFrame,
    factors: Mapping | pd.Series,
    model: str = "2PL",
    *,
    structure: str = "bifactor",
    priors: Mapping[str, Normal] | None = None,
    standard_errors: bool | None = None,
    max_iterations: int = 500,
) -> MultidimensionalFit:
    """Fit items that measure several abilities, by marginal maximum likelihood.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        A responses frame (0, 1, NaN), or ratings for "graded" and "gpcm".
    factors : mapping or Series from item to name
        The specific factor, testlet or dimension of every item. Of a bifactor model, items that it
        does not name have the general ability alone.
    model : str
        "2PL", "graded" or "gpcm".
    structure : {"bifactor", "testlet", "correlated"}
        "bifactor": a general ability, and specific ones with free slopes. "testlet": specific
        slopes are proportional to the general ones within each testlet (Wainer, Bradlow and Wang
        2007). "correlated": one ability an item, two or three in all, with free correlations.
    priors : dict, optional
        :class:`~psychlm.irt.Normal` densities of "slope" (of every ability) and "intercept". Steep
        items of few persons often have no finite maximum; {"slope": Normal(0, 3)} gives them one.
    standard_errors : bool, optional
        Compute them; by default for up to 400 parameters.
    max_iterations : int
        Steps of the climb, on all grids.

    Returns
    -------
    MultidimensionalFit

    References
    ----------
    Gibbons and Hedeker (1992), Psychometrika 57, 423-436; Reise (2012), Multivariate Behavioral
    Research 47, 667-696.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> general, first, second = 1.5 * rng.normal(size=(3, 500))
    >>> ability = np.column_stack([general + first] * 4 + [general + second] * 4)
    >>> answers = pd.DataFrame((rng.logistic(size=ability.shape) < ability).astype(float))
    >>> parts = dict(zip(answers, ["first"] * 4 + ["second"] * 4))
    >>> fit = fit_dimensions(answers, parts, standard_errors=False)
    >>> bool(0.35 < fit.reliability["explained_common_variance"] < 0.65)
    True
    """
    if model not in MODELS or structure not in ("bifactor", "testlet", "correlated"):
        raise ValueError(
            f"model {model!r} and structure {structure!r} cannot be; models are {MODELS}, "
            "structures 'bifactor', 'testlet' and 'correlated'"
        )
    for name, prior in (priors or {}).items():
        if name not in ("slope", "intercept") or not isinstance(prior, Normal):
            raise FrameError(
                f"prior {name!r}: {prior!r} cannot be; slopes may be negative here: "
                'give Normal densities of "slope" and "intercept"'
            )
    spec = specify(responses, model)
    check_answers(spec)
    items = spec.items
    named = pd.Series(factors, dtype=object)
    refuse("items", named.index.difference(items), "of factors are not among the responses")
    named = named.reindex(items)
    of_item, names = pd.factorize(named)
    counts = np.bincount(of_item[of_item >= 0], minlength=len(names))
    few = f"have fewer than {FEWEST} items, whose slopes cannot be told; take their items to others"
    refuse("factors", pd.Index(names)[counts < (FEWEST if structure != "testlet" else 2)], few)
    if "general" in names:
        raise FrameError("a factor has the name of the general ability; name it otherwise")
    if structure == "correlated":
        refuse("items", items[of_item < 0], "have no dimension; name one for each")
        if len(names) not in (2, 3):
            raise FrameError(
                f"{len(names)} dimensions; correlated ones are 2 or 3, or fit a bifactor"
            )
    kind = Correlated if structure == "correlated" else Bifactor
    settings = Settings(1e-4, max_iterations)
    factors = kind(of_item, list(map(str, names)))
    integral = Integral(factors, spec, settings, proportional=structure == "testlet", priors=priors)
    with few_threads(spec.answers.values.size):
        return fit_integral(integral, structure, standard_errors)


def fit_integral(
    integral: Integral, structure: str, standard_errors: bool | None
) -> MultidimensionalFit:
    """Climb to the maximum, on finer grids while the log-likelihood moves."""
    point = integral.start()
    enough = GRID_ERROR  # nats, that steps may still gain before the grid is fine enough
    while True:
        point, objective, off = climb(cast("Any", integral), point, enough)
        error = integral.grid_error(point, objective)
        if error >= GRID_ERROR and integral.grid > FINEST_STEP:
            integral.grid /= 2
        elif enough:
            enough = 0.0
        else:
            break
    point = integral.turned(point)
    messages = []
    if integral.n_steps >= integral.settings.max_iterations:
        messages.append(f"no convergence in {integral.n_steps} steps; raise max_iterations")
    if error >= GRID_ERROR:
        messages.append(f"the log-likelihood moves by {error:.3g} nats on a finer grid")
    slopes = integral.unpack(point)[0][:2].numpy()
    runaway = integral.spec.items[(np.abs(slopes) >= LARGEST_SLOPE).any(axis=0)]
    if len(runaway):
        messages.append(
            f"items {format_names(runaway)} have slopes at the bound, {LARGEST_SLOPE:g}: abilities "
            "separate their answers, and the likelihood may have no finite maximum; drop them, or "
            'give a prior: priors={"slope": Normal(0, 3)}'
        )
    converged = not off.any() and not len(runaway)
    covariance = np.full((len(point),) * 2, np.nan)
    if standard_errors or (standard_errors is None and len(point) <= MOST_ERRORS):
        inverse, gain = integral.covariance(point)
        if inverse is None:
            messages.append("the observed information is not positive definite: no errors")
        else:
            covariance = inverse
            converged &= gain < FLAT
    for message in messages:
        warnings.warn(message, IRTWarning, stacklevel=4)
    integral.estimates = point
    return result_of(integral, covariance, structure, objective, error, converged)


def result_of(
    integral: Integral,
    covariance: np.ndarray,
    structure: str,
    objective: float,
    error: float,
    converged: bool,
) -> MultidimensionalFit:
    """Return the tables, with errors by the delta method."""
    spec = integral.spec
    factors = integral.factors
    estimates = integral.estimates
    values = integral.natural(estimates).numpy()
    jacobian = torch.autograd.functional.jacobian(integral.natural, estimates).numpy()
    variance = np.einsum("nk,kl,nl->n", jacobian, covariance, jacobian)
    errors = np.sqrt(np.where(jacobian.any(axis=1), variance, np.nan))
    log_prior = integral.log_prior(estimates).item()
    n_items = len(spec.items)
    dichotomous = spec.model.form.dichotomous
    steps = ["d"] if dichotomous else [f"d{k}" for k in range(1, len(spec.fixed))]
    names = ["a_general", "a", *steps]
    has_general = np.full(n_items, integral.bifactor)
    estimated = np.vstack([has_general, factors.of_item >= 0, integral.is_free])
    columns: dict = {"factor": [factors.names[k] if k >= 0 else None for k in factors.of_item]}
    for part, prefix in ((values, ""), (errors, "se_")):
        table = part[: n_items * len(names)].reshape(len(names), n_items)
        table = np.where(estimated, table, np.nan)
        columns |= {prefix + name: row for name, row in zip(names, table, strict=True)}
    items = pd.DataFrame(columns, spec.items)
    if not integral.bifactor:
        items = items.drop(columns=["a_general", "se_a_general"])
    labels = factors.names
    tables = []
    for part, diagonal in ((values, 1.0), (errors, 0.0)):
        square = np.diag(np.full(len(labels), diagonal))
        lower = np.tril_indices(len(labels), -1)
        square[lower] = 0.0 if integral.bifactor else part[n_items * len(names) :]
        tables.append(pd.DataFrame(square + np.tril(square, -1).T, labels, labels))
    return MultidimensionalFit(
        items=items,
        structure=structure,
        model=spec.model.name,
        loglik=objective - log_prior,
        log_prior=log_prior,
        n_parameters=len(estimates),
        n_persons=spec.answers.n_persons,
        converged=converged,
        loglik_error=error,
        correlations=tables[0],
        se_correlations=tables[1],
        integral=integral,
        data_hash=spec.answers.data_hash,
    )
