r"""The likelihood of items of several abilities, its gradient and a rough information.

.. math:: z_{ij} = a_j\theta_i + a^*_j\,\xi_{i s(j)} + d_j

with a general ability and specific ones :math:`\xi_s`, all independent and N(0, 1). Given the
general ability the items of one specific factor depend on that factor alone, so that whatever their
number the likelihood is a product of integrals over one ability, inside one integral over another
(dimension reduction; Gibbons and Hedeker 1992):

.. math:: L_i = \int \prod_s \Bigl[ \int \prod_{j \in s} P(x_{ij} \mid \theta, \xi)\,
          \phi(\xi)\,d\xi \Bigr] \phi(\theta)\, d\theta .

Persons who answered all items of a factor alike share its inner integral. Between-item dimensions
have one ability for each item, and correlations; they are integrated over a product of grids.
Gradients are those of automatic differentiation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from psychlm.frames import check_responses, refuse
from psychlm.irt.arrays import positive_inverse
from psychlm.irt.climb import NewtonSystem
from psychlm.irt.engine import Settings
from psychlm.irt.likelihood import LARGEST_SLOPE
from psychlm.irt.priors import Normal
from psychlm.irt.response_matrix import MISSING, counts_by_category
from psychlm.irt.specification import Specification
from psychlm.irt.starts import starting_cells

STEP = 0.5  # of the grids, in standard deviations of ability, to begin with
SPAN = 5.0
ROUGH_STEP = 0.25  # of the grid of a rough information
ROW_CELLS = 2**21  # persons times nodes at a time: 16 MiB
LARGEST_PAIR = 3.0  # of partial correlations, transformed by artanh: .995
DIFFERENCE = 1e-4  # of estimates, for the curvature
LARGEST_STEP = 1.0  # of any estimate


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
    def given_own(self, at_nodes: Tensor, log_weights: Tensor) -> Tensor:
        """Return one part's log-likelihoods at the nodes of the ability that it shares.

        ``at_nodes`` (n_rows, ...) are those of its answers at all nodes, and ``log_weights`` those
        of its own ability's nodes, (n_rows or 1, n_nodes).
        """

    @abstractmethod
    def loglik(self, parts: list[Tensor], log_weights: Tensor, density: Tensor) -> Tensor:
        """Return log-likelihoods (n_rows,), from those of every part, (n_rows, n_nodes).

        ``log_weights`` are those of the general ability's nodes, and ``density`` what correlations
        add.
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

    def given_own(self, at_nodes: Tensor, log_weights: Tensor) -> Tensor:
        """Integrate over the specific ability, given the general one."""
        n_nodes = log_weights.shape[1]
        if at_nodes.shape[1] == n_nodes:  # items without a specific ability
            return at_nodes
        return (at_nodes.view(-1, n_nodes, n_nodes) + log_weights[:, None]).logsumexp(2)

    def loglik(self, parts: list[Tensor], log_weights: Tensor, density: Tensor) -> Tensor:
        """Integrate over the general ability."""
        return sum(parts, log_weights).logsumexp(1)


class Correlated(Dimensions):
    """Abilities with correlations, of which each item has one."""

    first = 0

    def logits(self, nodes: Tensor, general: Tensor, own: Tensor) -> list[Tensor]:
        """Return logits at the nodes of the items' ability."""
        return [own[items, None] * nodes for items in self.parts]

    def given_own(self, at_nodes: Tensor, log_weights: Tensor) -> Tensor:
        """Return log-likelihoods plus log weights."""
        return at_nodes + log_weights

    def loglik(self, parts: list[Tensor], log_weights: Tensor, density: Tensor) -> Tensor:
        """Integrate over the product of the abilities' grids, one ability after another."""
        joint = density.exp()
        largest: Any = 0.0
        for part in parts:
            shift = part.detach().amax(1, keepdim=True)
            largest = largest + shift[:, 0]
            likelihood = (part - shift).exp()
            # (n_rows or 1, n_nodes, all later nodes): products of matrices, without exponentials
            later = joint.reshape(len(joint), part.shape[1], -1)
            if len(later) == 1:  # the density, the same for all
                joint = likelihood @ later[0]
            else:
                joint = torch.einsum("in,inr->ir", likelihood, later)
        return largest + joint[:, 0].log()


def patterns(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return different rows, and the number among them of each row."""
    if counts.shape[1] == 0:
        return counts[:1], torch.zeros(len(counts), dtype=torch.long)
    return counts.unique(dim=0, return_inverse=True)


class Integral:
    """The likelihood of one data set as a function of a vector of estimates.

    They are slopes on the general ability, on the items' own ones (or, of testlets, their ratios to
    the general slopes), the free intercepts, and transformed correlations.
    """

    first_damping = 1.0
    least_gain = 1e-6  # nats that a step is expected to gain at the end

    def __init__(
        self,
        factors: Dimensions,
        spec: Specification,
        settings: Settings,
        *,
        proportional: bool = False,
        priors: Mapping[str, Normal] | None = None,
    ) -> None:
        self.factors = factors
        self.settings = settings
        self.priors = dict(priors or {})
        self.spec = spec
        self.form = spec.model.form
        answers = spec.answers.on("cpu")
        self.count = answers.count
        counts = counts_by_category(answers.values, answers.n, answers.n_categories)
        self.counts = self.by_part(counts)
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
        # Persons who answered a part alike share its integrals.
        self.patterns = [patterns(each) for each in self.counts]
        n_slopes = sum(self.sizes[:2])
        sizes = [n_slopes, self.sizes[2], self.sizes[3]]
        limits = np.repeat([LARGEST_SLOPE, np.inf, LARGEST_PAIR], sizes)
        self.limits = torch.from_numpy(limits)
        self.estimates = torch.zeros(0, dtype=torch.float64)
        self.grid = STEP  # between the nodes
        self.n_steps = 0

    def by_part(self, counts: np.ndarray) -> list[Tensor]:
        """Return counts of categories of every part's items, (n_rows, n_items n_categories)."""
        return [torch.from_numpy(counts[:, items]).flatten(1) for items in self.factors.parts]

    def unpack(self, estimates: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of parameters by item, and the correlations' root.

        The rows are slopes on the general ability and on the item's own one, and intercepts.
        """
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
        return torch.stack([general, slopes, *intercepts]), root

    def density(self, root: Tensor) -> Tensor:
        """Return the log density of the abilities over that of independent ones, at the nodes.

        Weights sum to 1 at the nodes: a density too narrow for a grid would count too much else.
        """
        if self.bifactor:
            return torch.zeros(1, dtype=torch.float64)
        nodes, _ = self.nodes()
        n = len(self.factors.names)
        grids = torch.stack(torch.meshgrid([nodes] * n, indexing="ij")).flatten(1)
        white = torch.linalg.solve_triangular(root, grids, upper=False)
        independent = (-0.5 * grids**2).sum(0)
        log_weights = (-0.5 * white**2).sum(0).log_softmax(0) - independent.log_softmax(0)
        return log_weights.view(1, *[len(nodes)] * n)

    def nodes(self) -> tuple[Tensor, Tensor]:
        """Return the nodes of every ability's grid, and the logarithms of their weights."""
        nodes = torch.arange(-SPAN, SPAN + self.grid / 2, self.grid, dtype=torch.float64)
        return nodes, (-0.5 * nodes**2).log_softmax(0)[None]

    def tables(self, rows: Tensor) -> list[Tensor]:
        """Return log P of the categories of every part's items at the nodes."""
        nodes, _ = self.nodes()
        tables = []
        logits = self.factors.logits(nodes, rows[0], rows[1])
        for items, z in zip(self.factors.parts, logits, strict=True):
            values = torch.cat([torch.ones_like(rows[:1, items]), rows[2:, items]])
            tables.append(self.form(values).log_probability(z).flatten(0, 1))
        return tables

    def given_own(
        self, counts: list[Tensor], tables: list[Tensor], log_weights: list[Tensor]
    ) -> list[Tensor]:
        """Return every part's log-likelihoods of counted categories, (n_rows, n_nodes).

        Some rows at a time are held in memory, and computed again for derivatives.
        """

        def block(rows: Tensor, table: Tensor, weights: Tensor) -> Tensor:
            return self.factors.given_own(rows @ table, weights)

        parts = []
        for each, table, weights in zip(counts, tables, log_weights, strict=True):
            size = max(1, ROW_CELLS // table.shape[1])
            pairs = zip(each.split(size), weights.expand(len(each), -1).split(size), strict=True)
            blocks = [
                checkpoint(block, rows, table, own, use_reentrant=False) for rows, own in pairs
            ]
            parts.append(torch.cat(blocks))
        return parts

    @property
    def abilities(self) -> list[str]:
        """The names of all abilities."""
        return [*self.factors.abilities, *self.factors.names]

    def given_own_of_patterns(self, rows: Tensor) -> list[Tensor]:
        """Return the log-likelihoods of every part's patterns of answers."""
        counts = [pattern for pattern, _ in self.patterns]
        return self.given_own(counts, self.tables(rows), [self.nodes()[1]] * len(counts))

    def portions(self, n_rows: int) -> tuple[Tensor, ...]:
        """Return numbers of rows, as many at a time as memory should hold."""
        power = 1 if self.bifactor else len(self.factors.names) - 1
        size = max(1, ROW_CELLS // len(self.nodes()[0]) ** power)
        return torch.arange(n_rows).split(size)

    def logliks(self, parts: list[Tensor], density: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield persons and their log-likelihoods, from those of the patterns of each part."""
        _, log_weights = self.nodes()
        for persons in self.portions(len(self.count)):
            of_persons = [
                part.index_select(0, number[persons])
                for part, (_, number) in zip(parts, self.patterns, strict=True)
            ]
            yield persons, self.factors.loglik(of_persons, log_weights, density)

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
        counts = self.by_part(counts_by_category(codes, None, self.spec.answers.n_categories))
        nodes, log_weights = self.nodes()
        rows, root = self.unpack(self.estimates)
        tables = self.tables(rows)
        density = self.density(root)
        powers = torch.stack([nodes, nodes**2], 1)
        found = []
        for persons in self.portions(len(codes)):
            # The derivative of a log-likelihood by log weights is the posterior at the nodes.
            weights = [log_weights.repeat(len(persons), 1).requires_grad_() for _ in counts]
            parts = self.given_own([each[persons] for each in counts], tables, weights)
            total = self.factors.loglik(parts, weights[0], density).sum()
            posteriors = torch.stack(torch.autograd.grad(total, weights), 1)
            found.append(posteriors @ powers)
        mean, square = torch.cat(found).unbind(2)
        both = torch.stack([mean, (square - mean**2).clamp_min(0).sqrt()], 2).flatten(1)
        columns = pd.MultiIndex.from_product([self.abilities, ["theta", "se"]])
        return pd.DataFrame(both.numpy(), checked.index, columns)

    def log_prior(self, estimates: Tensor) -> Tensor:
        """Return the log density of the priors, in nats."""
        rows, _ = self.unpack(estimates)
        is_slope = torch.stack([torch.full_like(self.own, self.bifactor), self.own >= 0]).bool()
        values = {"slope": rows[:2][is_slope], "intercept": rows[2:][self.is_free]}
        terms = [prior.log_density(values[name]).sum() for name, prior in self.priors.items()]
        return sum(terms, torch.zeros((), dtype=torch.float64))

    def expect(self, estimates: Tensor) -> tuple[Tensor, float]:
        """Return the gradient of log-likelihood plus log prior, and these."""
        estimates = estimates.clone().requires_grad_()
        rows, root = self.unpack(estimates)
        known = [*self.given_own_of_patterns(rows), self.density(root)]
        # The persons are passed through by portions, whose gradients are summed.
        leaves = [each.detach().requires_grad_() for each in known]
        log_prior = self.log_prior(estimates)
        total = log_prior.item()
        for persons, logliks in self.logliks(leaves[:-1], leaves[-1]):
            value = self.count[persons] @ logliks
            value.backward()
            total += value.item()
        used = [(each, leaf.grad) for each, leaf in zip(known, leaves, strict=True)]
        used = [(each, grad) for each, grad in used if grad is not None and each.requires_grad]
        if log_prior.requires_grad:
            used.append((log_prior, torch.ones_like(log_prior)))
        torch.autograd.backward([each for each, _ in used], [grad for _, grad in used])
        assert estimates.grad is not None
        return estimates.grad, total

    def gradient(self, estimates: Tensor, posterior: Tensor) -> Tensor:
        """Return the gradient that the E-step found."""
        return posterior

    def scores(self, estimates: Tensor) -> Tensor:
        """Return every person's derivatives of the log-likelihood, (n_persons, n_estimates)."""
        estimates = estimates.detach()
        rows, root = self.unpack(estimates)
        n_rows, n_items = rows.shape
        # Below the tables of log P stand their derivatives by every row of parameters. Those of an
        # answer are expected at the posterior: the derivative by how often it counts, which is 0.
        tables = [[table] for table in self.tables(rows)]
        for shift in DIFFERENCE * torch.eye(n_rows, dtype=torch.float64)[:, :, None]:
            higher, lower = self.tables(rows + shift), self.tables(rows - shift)
            for table, high, low in zip(tables, higher, lower, strict=True):
                table.append((high - low) / (2 * DIFFERENCE))
        below = [torch.cat(each) for each in tables]
        density = self.density(root)
        _, log_weights = self.nodes()
        found = torch.zeros(len(self.count), n_rows, n_items, dtype=torch.float64)
        for persons in self.portions(len(self.count)):
            counts = [each[persons] for each in self.counts]
            none = [each.repeat(1, n_rows).zero_().requires_grad_() for each in counts]
            both = [torch.cat(pair, 1) for pair in zip(counts, none, strict=True)]
            parts = self.given_own(both, below, [log_weights] * len(both))
            total = self.factors.loglik(parts, log_weights, density).sum()
            expected = torch.autograd.grad(total, none)
            for items, given, each in zip(self.factors.parts, counts, expected, strict=True):
                shape = len(persons), n_rows, len(items), self.spec.answers.n_categories
                by_category = (each * given.repeat(1, n_rows)).view(shape)
                found[persons[0] : persons[-1] + 1, :, items] = by_category.sum(3)
        jacobian = torch.autograd.functional.jacobian(lambda x: self.unpack(x)[0], estimates)
        scores = found.flatten(1) @ jacobian.flatten(0, 1)
        # Those of correlations are differences.
        parts = self.given_own_of_patterns(rows)
        for k in range(len(estimates) - self.sizes[3], len(estimates)):
            shift = torch.zeros_like(estimates)
            shift[k] = DIFFERENCE
            ends = [self.density(self.unpack(estimates + side * shift)[1]) for side in (1, -1)]
            ahead, behind = (torch.cat([x for _, x in self.logliks(parts, end)]) for end in ends)
            scores[:, k] = (ahead - behind) / (2 * DIFFERENCE)
        return scores

    def system(self, estimates: Tensor, uphill: Tensor) -> NewtonSystem:
        """Return a rough information by its eigenvectors: squared scores, and that of priors.

        Estimates at their bounds stay there unless the gradient points inwards.
        """
        grid = self.grid
        self.grid = max(grid, ROUGH_STEP)
        scores = self.scores(estimates)
        self.grid = grid
        information = scores.T @ (self.count[:, None] * scores)
        if self.priors:
            information -= torch.autograd.functional.hessian(self.log_prior, estimates)
        moves = (estimates.abs() < self.limits) | (uphill * estimates < 0)
        return NewtonSystem(information, moves)

    def curbed(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return a step of 1 at most, more for large estimates."""
        excess = step / (estimates / 2).abs().clamp_min(LARGEST_STEP)
        return step / excess.abs().max().clamp_min(1.0)

    def moved(self, estimates: Tensor, step: Tensor) -> Tensor:
        """Return the estimates after a step, within their bounds."""
        return (estimates + step).clamp(-self.limits, self.limits)

    def start(self) -> Tensor:
        """Return the items' slopes and intercepts as if all measured one ability."""
        cells = starting_cells(self.spec, (0.0, 1.0))[: self.spec.fixed.size]
        rows = cells.reshape(self.spec.fixed.shape)
        own = np.full(self.sizes[1], 0.5)
        if not self.proportional:
            own = 0.5 * np.sign(rows[0])[self.factors.of_item >= 0] * (1 if self.bifactor else 2)
        free = rows[1 : len(self.is_free) + 1][self.is_free.numpy()]
        parts = [rows[0] if self.bifactor else [], own, free, np.full(self.sizes[3], 0.3)]
        return torch.from_numpy(np.concatenate(parts))

    def grid_error(self, point: Tensor, loglik: float) -> float:
        """Return by how many nats the log-likelihood moves on a grid of half the step."""
        step = self.grid
        self.grid = step / 2
        error = abs(self.expect(point)[1] - loglik)
        self.grid = step
        return error

    def turned(self, point: Tensor) -> Tensor:
        """Return the estimates with abilities turned so that slopes are positive on the whole."""
        if not self.bifactor:  # where turning one turns its correlations; starts are positive
            return point
        general, own, others = np.split(point.numpy(), np.cumsum(self.sizes[:2]))
        factor = self.factors.of_item[self.factors.of_item >= 0]
        factor = np.arange(len(own)) if self.proportional else factor
        signs = np.where(np.bincount(factor, own) < 0, -1.0, 1.0)
        side = np.where(general.sum() < 0, -1.0, 1.0)
        return torch.from_numpy(np.concatenate([side * general, signs[factor] * own, others]))

    def covariance(self, point: Tensor) -> tuple[np.ndarray | None, float]:
        """Return the inverse of the observed information, and the gain of a Newton step, nats."""
        columns = []
        for shift in DIFFERENCE * torch.eye(len(point), dtype=torch.float64):
            change = self.expect(point - shift)[0] - self.expect(point + shift)[0]
            columns.append(change / (2 * DIFFERENCE))
        information = torch.stack(columns)
        inverse = positive_inverse((information + information.T) / 2)
        if inverse is None:
            return None, np.inf
        gradient = self.expect(point)[0]
        return inverse.numpy(), float(gradient @ inverse @ gradient / 2)

    def natural(self, estimates: Tensor) -> Tensor:
        """Return slopes, intercepts and correlations as a function of the estimates."""
        rows, root = self.unpack(estimates)
        lower = torch.tril_indices(len(root), len(root), -1)
        return torch.cat([rows.flatten(), (root @ root.T)[*lower]])
