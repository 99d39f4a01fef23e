r"""Items of several dimensions: bifactor, testlet and correlated abilities.

.. math:: z_{ij} = a_j\theta_i + a^*_j\,\xi_{i s(j)} + d_j

with a general ability and specific ones :math:`\xi_s`, all independent and N(0, 1). Given the
general ability the items of one specific factor depend on that factor alone, so that whatever their
number the likelihood is a product of integrals over one ability, inside one integral over another
(dimension reduction; Gibbons and Hedeker 1992):

.. math:: L_i = \int \prod_s \Bigl[ \int \prod_{j \in s} P(x_{ij} \mid \theta, \xi)\,
          \phi(\xi)\,d\xi \Bigr] \phi(\theta)\, d\theta .

Between-item dimensions have one ability for each item, and correlations; they are integrated over a
product of grids. Gradients are those of automatic differentiation, errors come from differences of
them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor

from psychlm.frames import FrameError, check_responses, refuse
from psychlm.irt.arrays import positive_inverse
from psychlm.irt.likelihood import LARGEST_SLOPE
from psychlm.irt.response_matrix import MISSING, counts_by_category, few_threads
from psychlm.irt.result import InformationCriteria
from psychlm.irt.specification import IRTWarning, Specification, check_answers, specify
from psychlm.irt.starts import starting_cells

MODELS = ("2PL", "graded", "gpcm")
STEP = 0.5  # of the grids, in standard deviations of ability, to begin with
SPAN = 5.0
GRID_ERROR = 0.01  # nats: a finer grid that moves the log-likelihood by less changes nothing
FINEST_STEP = STEP / 8
ROW_CELLS = 2**21  # persons times nodes at a time: 16 MiB
MOST_ERRORS = 400  # estimates whose errors are computed, by as many gradients
LARGEST_PAIR = 3.0  # of partial correlations, transformed by artanh: .995
DIFFERENCE = 1e-4  # of estimates, for the curvature
FLAT = 0.01  # nats that the end of the climb may be expected to lie below the maximum
NORMAL_METRIC = 1.702  # the logistic curve's distance to the normal one is least with this scale
FEWEST = 3  # items of a factor: of two, only the product of their slopes is known


@dataclass(frozen=True)
class Dimensions(ABC):
    """Which abilities the items have, and the integral over all of them."""

    of_item: np.ndarray  # (n_items,) number of the factor, or -1
    names: list[str]  # of the factors
    abilities: ClassVar[list[str]] = []  # before those of the factors
    first: ClassVar[int]  # number of the first part of the items

    @property
    def parts(self) -> list[np.ndarray]:
        """The items of every factor, whose integrals are taken together."""
        return [np.flatnonzero(self.of_item == k) for k in range(self.first, len(self.names))]

    @abstractmethod
    def logits(self, nodes: Tensor, general: Tensor, own: Tensor) -> list[Tensor]:
        """Return logits but for intercepts, of every part's items at the nodes."""

    @abstractmethod
    def loglik(
        self,
        answers: list[Tensor],
        tables: list[Tensor],
        log_weights: list[Tensor],
        density: Tensor,
    ) -> Tensor:
        """Return log-likelihoods (n_rows,).

        ``answers`` count the categories of every part's items, (n_rows, n_items n_categories), and
        ``tables`` hold log P of these at the nodes. ``log_weights`` are those of every ability's
        nodes, (n_rows or 1, n_nodes), and ``density`` what correlations add.
        """


class Bifactor(Dimensions):
    """A general ability, and specific ones that are independent of it and of each other."""

    abilities = ["general"]
    first = -1  # items without a specific ability

    def logits(self, nodes: Tensor, general: Tensor, own: Tensor) -> list[Tensor]:
        """Return logits at nodes of the general ability, or also at those of the own one."""
        alone, *specific = self.parts
        pairs = [
            general[items, None, None] * nodes[:, None] + own[items, None, None] * nodes
            for items in specific
        ]
        return [general[alone, None] * nodes, *(each.flatten(1) for each in pairs)]

    def loglik(
        self,
        answers: list[Tensor],
        tables: list[Tensor],
        log_weights: list[Tensor],
        density: Tensor,
    ) -> Tensor:
        """Integrate over every specific ability given the general one, then over that."""
        n_nodes = log_weights[0].shape[1]
        total = log_weights[0] + answers[0] @ tables[0]
        for counts, table, weights in zip(answers[1:], tables[1:], log_weights[1:], strict=True):
            joint = (counts @ table).view(-1, n_nodes, n_nodes) + weights[:, None]
            total = total + joint.logsumexp(2)
        return total.logsumexp(1)


class Correlated(Dimensions):
    """Abilities with correlations, of which each item has one."""

    first = 0

    def logits(self, nodes: Tensor, general: Tensor, own: Tensor) -> list[Tensor]:
        """Return logits at the nodes of the items' ability."""
        return [own[items, None] * nodes for items in self.parts]

    def loglik(
        self,
        answers: list[Tensor],
        tables: list[Tensor],
        log_weights: list[Tensor],
        density: Tensor,
    ) -> Tensor:
        """Integrate over the product of the abilities' grids, one ability after another."""
        joint = density.exp()
        largest: Any = 0.0
        for counts, table, weights in zip(answers, tables, log_weights, strict=True):
            at_nodes = counts @ table + weights
            shift = at_nodes.detach().amax(1, keepdim=True)
            largest = largest + shift[:, 0]
            likelihood = (at_nodes - shift).exp()
            # (n_rows or 1, n_nodes, all later nodes): products of matrices, without exponentials
            later = joint.reshape(len(joint), table.shape[1], -1)
            if len(later) == 1:  # the density, the same for all
                joint = likelihood @ later[0]
            else:
                joint = torch.einsum("in,inr->ir", likelihood, later)
        return largest + joint[:, 0].log()


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
    integral: _Integral
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
    standard_errors : bool, optional
        Compute them; by default for up to 400 parameters.
    max_iterations : int
        Steps of the quasi-Newton method.

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
    integral = _Integral(kind(of_item, list(map(str, names))), spec, structure == "testlet")
    with few_threads(spec.answers.values.size):
        return integral.fit(structure, standard_errors, max_iterations)


class _Integral:
    """The likelihood of one data set as a function of a vector of estimates.

    They are slopes on the general ability, on the items' own ones (or, of testlets, their ratios to
    the general slopes), the free intercepts, and transformed correlations.
    """

    def __init__(self, factors: Dimensions, spec: Specification, proportional: bool) -> None:
        self.factors = factors
        self.spec = spec
        self.form = spec.model.form
        answers = spec.answers.on("cpu")
        self.count = answers.count
        counts = counts_by_category(answers.values, answers.n, answers.n_categories)
        self.counts = torch.from_numpy(counts)
        self.bifactor = isinstance(factors, Bifactor)
        self.proportional = proportional
        self.own = torch.tensor(factors.of_item)
        n_intercepts = 1 if self.form.dichotomous else len(spec.fixed) - 1
        self.is_free = torch.from_numpy(np.isnan(spec.fixed[1 : n_intercepts + 1]))
        n_items = len(spec.items)
        n_factors = len(factors.names)
        n_own = n_factors if proportional else int((factors.of_item >= 0).sum())
        n_pairs = 0 if self.bifactor else n_factors * (n_factors - 1) // 2
        self.sizes = [n_items * self.bifactor, n_own, int(self.is_free.sum()), n_pairs]
        self.estimates = torch.zeros(0, dtype=torch.float64)
        self.step = STEP

    def unpack(self, estimates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return general slopes, own slopes, intercepts, and the correlations' root."""
        general, own, free, turned = estimates.split(self.sizes)
        n_items = len(self.own)
        has_own = self.own >= 0
        if not len(general):
            general = torch.zeros(n_items, dtype=torch.float64)
        if self.proportional:
            slopes = torch.where(has_own, general * own[self.own.clamp_min(0)], 0.0)
        else:
            slopes = torch.zeros(n_items, dtype=torch.float64).masked_scatter(has_own, own)
        fixed = torch.from_numpy(np.nan_to_num(self.spec.fixed[1 : len(self.is_free) + 1]))
        intercepts = fixed.masked_scatter(self.is_free, free)
        # Rows of the correlations' Cholesky root, by partial correlations: unit length each.
        n = len(self.factors.names)
        root = torch.eye(n, dtype=torch.float64)
        if len(turned):
            partial = turned.tanh()
            rows = [root[0]]
            position = 0
            for k in range(1, n):
                left = torch.ones((), dtype=torch.float64)
                row = []
                for _ in range(k):
                    row.append(partial[position] * left.sqrt())
                    left = left - row[-1] ** 2
                    position += 1
                row.append(left.sqrt())
                padding = torch.zeros(n - k - 1, dtype=torch.float64)
                rows.append(torch.cat([torch.stack(row), padding]))
            root = torch.stack(rows)
        return general, slopes, intercepts, root

    def density(self, nodes: Tensor, root: Tensor) -> Tensor:
        """Return the log density of the abilities over that of independent ones, at the nodes.

        Weights sum to 1 at the nodes: a density too narrow for a grid would count too much else.
        """
        n = len(self.factors.names)
        grids = torch.stack(torch.meshgrid([nodes] * n, indexing="ij")).flatten(1)
        white = torch.linalg.solve_triangular(root, grids, upper=False)
        independent = (-0.5 * grids**2).sum(0)
        log_weights = (-0.5 * white**2).sum(0).log_softmax(0) - independent.log_softmax(0)
        return log_weights.view(1, *[len(nodes)] * n)

    def tables(self, estimates: Tensor, nodes: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return log P of the categories of every factor's items at the nodes, and the density."""
        general, slopes, intercepts, root = self.unpack(estimates)
        tables = []
        logits = self.factors.logits(nodes, general, slopes)
        for items, z in zip(self.factors.parts, logits, strict=True):
            rows = torch.cat([torch.ones(1, len(items), dtype=torch.float64), intercepts[:, items]])
            tables.append(self.form(rows).log_probability(z).flatten(0, 1))
        density = torch.zeros(1, dtype=torch.float64)
        return tables, density if self.bifactor else self.density(nodes, root)

    def nodes(self, step: float) -> tuple[Tensor, Tensor]:
        """Return the nodes of every ability's grid, and the logarithms of their weights."""
        nodes = torch.arange(-SPAN, SPAN + step / 2, step, dtype=torch.float64)
        return nodes, (-0.5 * nodes**2).log_softmax(0)[None]

    @property
    def abilities(self) -> list[str]:
        """The names of all abilities."""
        return [*self.factors.abilities, *self.factors.names]

    def portions(
        self, counts: Tensor, persons: Tensor, n_nodes: int
    ) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Yield counts of categories by part, and of persons, of some persons at a time."""
        power = 2 if self.bifactor else len(self.factors.names) - 1
        size = max(1, ROW_CELLS // n_nodes**power)
        for rows, count in zip(counts.split(size), persons.split(size), strict=True):
            yield [rows[:, items].flatten(1) for items in self.factors.parts], count

    def score(self, responses: pd.DataFrame) -> pd.DataFrame:
        """Return expected values and standard deviations of all abilities, (n_persons, 2 n)."""
        items = self.spec.items
        checked = check_responses(responses, ratings=True, unanswered=True)
        unknown = checked.columns.difference(items)
        refuse("items", unknown, "have no parameters; drop them, or fit a model with them")
        levels = self.spec.answers.levels or dict.fromkeys(items, [0, 1])
        values = checked.reindex(columns=items)
        codes = np.stack([pd.Index(levels[item]).get_indexer(values[item]) for item in items], 1)
        wrong = items[((codes < 0) & values.notna().to_numpy()).any(axis=0)]
        refuse(
            "items", wrong, "have answers that nobody gave when the model was fitted; recode them"
        )
        codes = np.where(codes < 0, MISSING, codes).astype(np.uint8)
        counts = counts_by_category(codes, None, self.spec.answers.n_categories)
        persons = torch.ones(len(codes), dtype=torch.float64)
        nodes, log_weights = self.nodes(self.step)
        with torch.no_grad():
            tables, density = self.tables(self.estimates, nodes)
        powers = torch.stack([nodes, nodes**2], 1)
        found = []
        for portion, count in self.portions(torch.from_numpy(counts), persons, len(nodes)):
            # The derivative of a log-likelihood by log weights is the posterior at the nodes.
            weights = [log_weights.repeat(len(count), 1).requires_grad_() for _ in self.abilities]
            total = self.factors.loglik(portion, tables, weights, density).sum()
            posteriors = torch.stack(torch.autograd.grad(total, weights), 1)
            found.append(posteriors @ powers)
        mean, square = torch.cat(found).unbind(2)
        both = torch.stack([mean, (square - mean**2).clamp_min(0).sqrt()], 2).flatten(1)
        columns = pd.MultiIndex.from_product([self.abilities, ["theta", "se"]])
        return pd.DataFrame(both.numpy(), checked.index, columns)

    def negative(self, point: np.ndarray, step: float | None = None) -> tuple[float, np.ndarray]:
        """Return the negative log-likelihood and its gradient."""
        estimates = torch.tensor(point, requires_grad=True)
        nodes, log_weights = self.nodes(step or self.step)
        tables, density = self.tables(estimates, nodes)
        # The persons are passed through by parts, and their gradients by the tables are summed.
        leaves = [table.detach().requires_grad_() for table in (*tables, density)]
        weights = [log_weights] * len(self.abilities)
        total = 0.0
        for answers, count in self.portions(self.counts, self.count, len(nodes)):
            value = count @ self.factors.loglik(answers, leaves[:-1], weights, leaves[-1])
            value.backward()
            total += value.item()
        used = [(t, leaf.grad) for t, leaf in zip((*tables, density), leaves, strict=True)]
        used = [(table, grad) for table, grad in used if grad is not None and table.requires_grad]
        torch.autograd.backward([table for table, _ in used], [grad for _, grad in used])
        assert estimates.grad is not None
        return -total, -estimates.grad.numpy()

    def start(self) -> np.ndarray:
        """Return the items' slopes and intercepts as if all measured one ability."""
        responses = self.spec
        cells = starting_cells(responses, (0.0, 1.0))[: responses.fixed.size]
        rows = cells.reshape(responses.fixed.shape)
        own = np.full(self.sizes[1], 0.5)
        if not self.proportional:
            own = 0.5 * np.sign(rows[0])[self.factors.of_item >= 0] * (1 if self.bifactor else 2)
        free = rows[1 : len(self.is_free) + 1][self.is_free.numpy()]
        parts = [rows[0] if self.bifactor else [], own, free, np.full(self.sizes[3], 0.3)]
        return np.concatenate(parts)

    def fit(
        self, structure: str, standard_errors: bool | None, max_iterations: int
    ) -> MultidimensionalFit:
        """Climb to the maximum, on finer grids while the log-likelihood moves."""
        n_slopes = sum(self.sizes[:2])
        sizes = [n_slopes, self.sizes[2], self.sizes[3]]
        limits = np.repeat([LARGEST_SLOPE, np.inf, LARGEST_PAIR], sizes)
        bounds = scipy.optimize.Bounds(-limits, limits)
        options = {"maxiter": max_iterations, "maxcor": 30, "ftol": 1e-12, "gtol": 1e-4}
        point = self.start()
        while True:
            best = scipy.optimize.minimize(
                self.negative, point, jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
            point = best.x
            error = abs(self.negative(point, self.step / 2)[0] - best.fun)
            if error < GRID_ERROR or self.step <= FINEST_STEP:
                break
            self.step /= 2
        point = self.turned(point)
        self.estimates = torch.from_numpy(point)
        messages = []
        if not best.success:
            messages.append(f"no convergence in {best.nit} steps; raise max_iterations")
        if error >= GRID_ERROR:
            messages.append(f"the log-likelihood moves by {error:.3g} nats on a finer grid")
        runaway = np.abs(point[:n_slopes]) >= LARGEST_SLOPE - 1e-6
        converged = bool(best.success) and not runaway.any()
        if runaway.any():
            messages.append("slopes ended at their bound: the likelihood may have no maximum")
        covariance = np.full((len(point),) * 2, np.nan)
        if standard_errors or (standard_errors is None and len(point) <= MOST_ERRORS):
            inverse, gain = self.covariance(point)
            if inverse is None:
                messages.append("the observed information is not positive definite: no errors")
            else:
                covariance = inverse
                converged &= gain < FLAT
        for message in messages:
            warnings.warn(message, IRTWarning, stacklevel=4)
        return self.result(structure, covariance, -float(best.fun), error, converged)

    def turned(self, point: np.ndarray) -> np.ndarray:
        """Return the estimates with abilities turned so that slopes are positive on the whole."""
        if not self.bifactor:  # where turning one turns its correlations; starts are positive
            return point
        general, own, others = np.split(point, np.cumsum(self.sizes[:2]))
        factor = self.factors.of_item[self.factors.of_item >= 0]
        factor = np.arange(len(own)) if self.proportional else factor
        signs = np.where(np.bincount(factor, own) < 0, -1.0, 1.0)
        return np.concatenate(
            [np.where(general.sum() < 0, -1, 1) * general, signs[factor] * own, others]
        )

    def covariance(self, point: np.ndarray) -> tuple[np.ndarray | None, float]:
        """Return the inverse of the observed information, and the gain of a Newton step, nats."""
        columns = []
        for k in range(len(point)):
            shift = np.zeros(len(point))
            shift[k] = DIFFERENCE
            ahead = self.negative(point + shift)[1]
            columns.append((ahead - self.negative(point - shift)[1]) / (2 * DIFFERENCE))
        information = np.array(columns)
        inverse = positive_inverse((information + information.T) / 2)
        if inverse is None:
            return None, np.inf
        gradient = self.negative(point)[1]
        return inverse, float(gradient @ inverse @ gradient / 2)

    def natural(self, estimates: Tensor) -> Tensor:
        """Return slopes, intercepts and correlations as a function of the estimates."""
        general, slopes, intercepts, root = self.unpack(estimates)
        lower = torch.tril_indices(len(root), len(root), -1)
        return torch.cat([general, slopes, intercepts.flatten(), (root @ root.T)[*lower]])

    def result(
        self,
        structure: str,
        covariance: np.ndarray,
        loglik: float,
        error: float,
        converged: bool,
    ) -> MultidimensionalFit:
        """Return the tables, with errors by the delta method."""
        spec = self.spec
        values = self.natural(self.estimates).numpy()
        jacobian = torch.autograd.functional.jacobian(self.natural, self.estimates).numpy()
        variance = np.einsum("nk,kl,nl->n", jacobian, covariance, jacobian)
        errors = np.sqrt(np.where(jacobian.any(axis=1), variance, np.nan))
        n_items = len(spec.items)
        steps = ["d"] if self.form.dichotomous else [f"d{k}" for k in range(1, len(spec.fixed))]
        names = ["a_general", "a", *steps]
        estimated = np.vstack([np.full(n_items, self.bifactor), self.own >= 0, self.is_free])
        columns: dict = {"factor": [self.factors.names[k] if k >= 0 else None for k in self.own]}
        for part, prefix in ((values, ""), (errors, "se_")):
            table = part[: n_items * len(names)].reshape(len(names), n_items)
            table = np.where(estimated, table, np.nan)
            columns |= {prefix + name: row for name, row in zip(names, table, strict=True)}
        items = pd.DataFrame(columns, spec.items)
        if not self.bifactor:
            items = items.drop(columns=["a_general", "se_a_general"])
        labels = self.factors.names
        tables = []
        for part, diagonal in ((values, 1.0), (errors, 0.0)):
            square = np.diag(np.full(len(labels), diagonal))
            lower = np.tril_indices(len(labels), -1)
            square[lower] = 0.0 if self.bifactor else part[n_items * len(names) :]
            tables.append(pd.DataFrame(square + np.tril(square, -1).T, labels, labels))
        return MultidimensionalFit(
            items=items,
            structure=structure,
            model=spec.model.name,
            loglik=loglik,
            n_parameters=len(self.estimates),
            n_persons=spec.answers.n_persons,
            converged=converged,
            loglik_error=error,
            correlations=tables[0],
            se_correlations=tables[1],
            integral=self,
            data_hash=spec.answers.data_hash,
        )
