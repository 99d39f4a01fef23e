r"""Explanatory item response models: difficulties regressed on covariates, with item error.

.. math:: P(x_{pj} = 1) = \sigma(\theta_p - b_j), \qquad \theta_p \sim N(0, \sigma_{g(p)}^2), \qquad
          b = X \eta + \sum_k \tau_k Z_k v_k, \qquad v_k \sim N(0, I).

Difficulties are those of *cells*: the items, or the items in each of several groups of persons (De
Boeck and Wilson 2004; De Boeck 2008). Abilities are integrated by quadrature. Given their integral
the log-likelihood l(b) is concave, and the random effects v are integrated by Laplace's
approximation at their posterior mode, with J the observed information of the difficulties:

.. math:: \log L(\eta, \tau, \sigma) \approx l(b(\hat v)) - \tfrac12 \hat v' \hat v
          - \tfrac12 \log \lvert I + \Lambda' J \Lambda \rvert, \qquad
          \Lambda = (\tau_1 Z_1, \tau_2 Z_2, \dots).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor

from psychlm.frames import FrameError, refuse
from psychlm.irt.dif import compared_persons
from psychlm.irt.engine import Settings
from psychlm.irt.likelihood import Expectation, integrate, node_loglik
from psychlm.irt.response_functions import Logistic
from psychlm.irt.response_matrix import MISSING, ResponseMatrix, encode_codes
from psychlm.irt.specification import IRTWarning, Solution, Specification

# of the modes; nats that a last step gains at most
NEWTON_STEPS = 100
DECREMENT = 1e-7
BOUNDARY_SD = 1e-4  # logits: an effects' standard deviation as small has been estimated as 0
# logits: bound of ability's sd; start of the effects' sds
SMALLEST_SD = 0.01
FIRST_SD = 0.5
CONSTANT = "(constant)"

Array = np.ndarray


class Marginal(Expectation):
    """The log-likelihood of difficulties b, abilities integrated, and its derivatives by b."""

    quadrature_error = 1e-6  # nats

    def __init__(self, responses: ResponseMatrix, sd_of_cell: Array) -> None:
        super().__init__(responses)
        self.sd_of_cell = torch.from_numpy(sd_of_cell)
        # Persons who were asked the same cells, as often, share a term of the missing information.
        patterns, member = np.unique(responses.n_asked, axis=0, return_inverse=True)
        self.patterns = []
        for k, n in enumerate(patterns):
            cells = torch.from_numpy(np.flatnonzero(n))
            rows = np.flatnonzero(member.ravel() == k)
            self.patterns.append((cells, torch.from_numpy(n[n > 0, None]), rows))

    def curves(self, b: Tensor, sd: Tensor) -> Logistic:
        """Return the cells' curves, in units of each person's group's sd of ability."""
        return Logistic(torch.stack([sd[self.sd_of_cell], -b]))

    def items(self, values: tuple[Tensor, Tensor]) -> Logistic:
        """Return the curves of difficulties and sds."""
        return self.curves(*values)

    def __call__(self, b: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-likelihood, its gradient (m,) and the observed information (m, m)."""
        curves = self.curves(b, sd)
        count = self.count
        at_nodes = node_loglik(self.responses, curves, self.grid.nodes)
        posterior = integrate(at_nodes, self.grid)
        p = torch.sigmoid(curves.logits(self.grid.nodes))  # (m, n_nodes)
        gradient = -self.responses.n_correct
        information = torch.zeros(len(b), len(b)).to(b)
        for cells, n, rows in self.patterns:
            # Louis (1982): expected information less the posterior covariance of the scores.
            asked = n * p[cells]
            weights = posterior.weights[rows] * count[rows, None]
            everyone = weights.sum(0)
            expected = posterior.weights[rows] @ asked.T  # (n_rows, n_cells)
            gradient = gradient.index_add(0, cells, count[rows] @ expected)
            missing = (asked * everyone) @ asked.T - expected.T @ (weights @ asked.T)
            complete = torch.diag((asked * (1 - p[cells])) @ everyone)
            information = information.index_put(
                (cells[:, None], cells), complete - missing, accumulate=True
            )
        return posterior.loglik @ count, gradient, information


@dataclass(frozen=True)
class RandomDifficulties:
    """Estimates of the model above; difficulties of m cells, logits."""

    eta: Array  # (n_covariates,)
    effects: list[Array]  # of each term, the posterior modes of tau_k v_k
    covariance: Array  # of eta and all effects, given the sds
    tau: Array  # (n_terms,) sds of the random effects
    ability_sd: Array  # (n_groups,)
    b: Array  # (m,) posterior modes of the difficulties
    loglik: float  # of the responses alone, nats
    converged: bool
    n_iterations: int
    marginal: Marginal


def fit_difficulties(
    responses: ResponseMatrix,
    x: Array,
    terms: Sequence[Array],
    sd_of_cell: Array,
    max_iterations: int,
) -> RandomDifficulties:
    """Maximise the marginal likelihood by Laplace's approximation and a quasi-Newton method.

    ``responses`` are n_persons x m, NaN in the cells of other groups; ``x`` the covariates
    (m, n_covariates) with a constant, linearly independent; ``terms`` the designs Z (m, n_effects)
    of the random effects, each with its own sd; ``sd_of_cell`` (m,) the group of persons whose
    ability's sd holds in the cell.
    """
    # In an orthogonal basis of the covariates all coefficients are on one scale.
    marginal = Marginal(responses, sd_of_cell)
    basis, upper = np.linalg.qr(x)
    basis = basis * math.sqrt(len(x))
    upper = upper / math.sqrt(len(x))
    n_fixed = x.shape[1]
    n_terms = len(terms)
    n_groups = int(sd_of_cell.max()) + 1
    sizes = [z.shape[1] for z in terms]
    fixed = torch.from_numpy(basis)
    random = torch.from_numpy(np.hstack([np.zeros((len(x), 0)), *terms]))
    term = torch.from_numpy(np.repeat(np.arange(n_terms), sizes))
    modes = torch.zeros(sum(sizes), dtype=torch.float64)
    eye = torch.eye(len(modes), dtype=torch.float64)

    def difficulties(v: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return b, Lambda and the sds of ability."""
        spread = random * values[n_fixed : n_fixed + n_terms][term]
        return fixed @ values[:n_fixed] + spread @ v, spread, values[n_fixed + n_terms :]

    def at(v: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return l(b) - v'v / 2, its gradient by v, and H = I + Lambda'J Lambda."""
        b, spread, sd = difficulties(v, values)
        loglik, gradient, information = marginal(b, sd)
        hessian = eye + spread.T @ information @ spread
        return loglik - 0.5 * v @ v, spread.T @ gradient - v, hessian

    def climb(values: Tensor) -> None:
        """Move ``modes`` to the posterior mode of v by Newton's method."""
        nonlocal modes
        reached = -math.inf
        step = torch.zeros_like(modes)
        b, _, sd = difficulties(modes, values)
        marginal.expect((b, sd))  # refines the grid
        for _ in range(NEWTON_STEPS):
            value, uphill, hessian = at(modes, values)
            if float(value) < reached - 1e-9 * abs(reached):  # too long a step
                step = step / 2
                modes = modes - step
                continue
            step = torch.linalg.solve(hessian, uphill)
            reached = float(value)
            modes = modes + step
            if float(uphill @ step) < DECREMENT:
                return
        raise RuntimeError(f"no posterior mode of the difficulties in {NEWTON_STEPS} Newton steps")

    def negative(point: Array) -> tuple[float, Array]:
        """Return -log L and its gradient, in which the mode moves with the parameters."""
        values = torch.from_numpy(point)
        climb(values)
        values.requires_grad_()
        v = modes.clone().requires_grad_()
        value, uphill, hessian = at(v, values)
        loglik = value - 0.5 * torch.logdet(hessian)
        # d v / d values = H^-1 d uphill / d values, since uphill stays 0 at the mode.
        by_v = torch.autograd.grad(loglik, v, retain_graph=True)[0]
        moved = torch.linalg.solve(hessian, by_v).detach() @ uphill
        return -loglik.item(), -torch.autograd.grad(loglik + moved, values)[0].numpy()

    # Start from proportions correct; 1.2 for the spread of ability.
    share = (responses.n_correct + 0.5) / (responses.n_answered + 1)
    rough = -1.2 * torch.logit(share).numpy()
    begin = np.r_[basis.T @ rough / len(x), np.full(n_terms, FIRST_SD), np.ones(n_groups)]
    bounds = [(None, None)] * n_fixed + [(0, None)] * n_terms + [(SMALLEST_SD, None)] * n_groups
    options = {"ftol": 1e-11, "gtol": 1e-4, "maxiter": max_iterations}
    best = scipy.optimize.minimize(
        negative, begin, method="L-BFGS-B", jac=True, bounds=bounds, options=options
    )

    # Joint precision of (eta, v) at the mode (Henderson 1975).
    climb(torch.from_numpy(best.x))
    b, _, sd = difficulties(modes, torch.from_numpy(best.x))
    tau = best.x[n_fixed : n_fixed + n_terms]
    scale = np.r_[np.ones(n_fixed), tau[term]]
    design = np.hstack([x, random.numpy()]) * scale
    precision = design.T @ marginal(b, sd)[2].numpy() @ design
    precision[n_fixed:, n_fixed:] += eye.numpy()
    effects = np.split(tau[term] * modes.numpy(), np.cumsum(sizes)[:-1])
    return RandomDifficulties(
        eta=scipy.linalg.solve_triangular(upper, best.x[:n_fixed]),
        effects=effects,
        covariance=scipy.linalg.inv(precision) * np.outer(scale, scale),
        tau=tau,
        ability_sd=sd.numpy(),
        b=b.numpy(),
        loglik=-float(best.fun),
        converged=bool(best.success),
        n_iterations=int(best.nit),
        marginal=marginal,
    )


def check_covariates(design: pd.DataFrame, items: pd.Index) -> pd.DataFrame:
    """Return the constant and the features of the items, in their order, float64."""
    refuse("items", items.difference(design.index), "have no row in the design")
    if design.index.has_duplicates or design.columns.has_duplicates or CONSTANT in design.columns:
        raise FrameError(f"the design has an item or feature twice, or a feature {CONSTANT!r}")
    chosen = design.loc[items]
    text = [name for name in chosen if not pd.api.types.is_numeric_dtype(chosen[name])]
    indicators = "make indicators: pd.get_dummies(design, drop_first=True)"
    refuse("features", text, f"are not numeric; {indicators}")
    values = chosen.astype(float)
    missing = values.columns[~np.isfinite(values).all()]
    refuse("features", missing, "are missing or infinite for some items")
    values.insert(0, CONSTANT, 1.0)
    # Linear dependence: a zero on the diagonal of R of the scaled columns.
    scaled = values.to_numpy() / np.linalg.norm(values, axis=0).clip(1e-300)
    size = np.abs(np.diag(np.linalg.qr(scaled, mode="r")))
    dependent = values.columns[: len(size)][size < 1e-8].append(values.columns[len(size) :])
    flaw = "are linear combinations of those before them, or of the constant; drop them"
    refuse("features", dependent, flaw)
    return values


def wald_table(eta: Array, se: Array, names: pd.Index) -> pd.DataFrame:
    """Return a table of Wald tests."""
    p = 2 * scipy.stats.norm.sf(np.abs(eta / se))
    return pd.DataFrame({"eta": eta, "se": se, "z": eta / se, "p": p}, index=names)


def solve_explanatory(
    spec: Specification, difficulty_prior: pd.DataFrame | pd.Series, settings: Settings
) -> Solution:
    """Fit a Rasch model whose difficulties have a regression on covariates as their prior."""
    encoded = spec.answers.on("cpu")
    if isinstance(difficulty_prior, pd.Series):
        difficulty_prior = difficulty_prior.to_frame(difficulty_prior.name or "predicted")
    covariates = check_covariates(pd.DataFrame(difficulty_prior), encoded.items)
    n_items, n_covariates = covariates.shape
    if n_items < n_covariates + 2:
        raise FrameError(
            f"{n_items} items do not tell {n_covariates} coefficients (with the constant) and a "
            "residual variance; give fewer covariates"
        )
    x = covariates.to_numpy()
    residuals = np.eye(n_items)
    one_sd = np.zeros(n_items, int)
    estimates = fit_difficulties(encoded, x, [residuals], one_sd, settings.max_iterations)
    design = np.hstack([x, residuals])
    errors = np.sqrt(np.diag(estimates.covariance))
    messages = []
    if not estimates.converged:
        messages.append(f"no convergence in {estimates.n_iterations} steps; raise max_iterations")
    if estimates.tau[0] <= BOUNDARY_SD:
        messages.append(
            "the residual variance is estimated at its boundary 0: difficulties are those of the "
            "regression, and their errors are too small if it explains them less than completely"
        )
    blocks = np.full((n_items, 4, 4), np.nan)
    blocks[:, 1, 1] = np.einsum("jk,kl,jl->j", design, estimates.covariance, design)
    at_modes = torch.from_numpy(estimates.b), torch.from_numpy(estimates.ability_sd)
    _, loglik = estimates.marginal.expect(at_modes)
    slopes = np.repeat(estimates.ability_sd, n_items)
    return Solution(
        values=np.stack([slopes, -estimates.b, 0 * slopes, 0 * slopes + 1]),
        blocks=blocks,
        n_parameters=n_covariates + 2,
        loglik=estimates.loglik,
        log_prior=0.0,
        n_iterations=estimates.n_iterations,
        loglik_error=estimates.marginal.grid_error(at_modes, loglik),
        quadrature=str(estimates.marginal.grid),
        converged=np.full(n_items, estimates.converged),
        messages=messages,
        method="laplace",
        regression=wald_table(estimates.eta, errors[:n_covariates], covariates.columns),
        residual_sd=float(estimates.tau[0]),
    )


@dataclass(frozen=True)
class ExplanatoryDIF:
    """Differential item functioning with partial pooling; logits, above 0: harder for the focal."""

    by: pd.DataFrame  # by kind of item: difference, se, low, high, n_items
    items: pd.DataFrame  # by item: difference (kind's and its own), se, low, high, b, kind
    mean_difference: float  # of all items: the reference group's mean ability less the focal's
    se_mean_difference: float
    sds: pd.Series  # of difficulties, and of the differences of kinds and of items within a kind
    at_boundary: tuple[str, ...]  # names of the sds estimated at their boundary 0
    ability_sd: pd.Series  # reference, focal
    loglik: float  # nats
    n_persons: int
    converged: bool


def dif_explanatory(
    responses: pd.DataFrame,
    group: pd.Series | Sequence,
    by: pd.Series,
    *,
    reference: object = None,
    max_iterations: int = 500,
) -> ExplanatoryDIF:
    r"""Explain differential item functioning by kinds of items, with partial pooling.

    .. math:: b_{jf} - b_{jr} = \delta + s_{k(j)} + u_j, \quad s_k \sim N(0, \tau_s^2), \quad
              u_j \sim N(0, \tau_u^2), \qquad b_{jr} \sim N(\mu, \tau_b^2)

    with k(j) the kind of item j, such as a linguistic phenomenon. The mean difference
    :math:`\delta` is one of ability, whose sd is estimated in each group. Differences are shrunken
    towards their mean, so that many of them need no further correction for their number (Gelman,
    Hill & Yajima 2012).

    Parameters
    ----------
    responses, group : DataFrame, and Series or sequence
        As in :func:`mantel_haenszel`; an item may be answered alike by all of a group.
    by : Series indexed by item
        The kind of every item.
    reference, max_iterations
        The reference group; quasi-Newton steps.

    Returns
    -------
    ExplanatoryDIF
        With intervals of posterior probability 0.95. A variance of differences at its boundary 0
        has a warning, and ``at_boundary`` names it: these are 0 with ``se`` and intervals NaN.

    References
    ----------
    De Boeck (2008), Psychometrika 73, 533-559; Van den Noortgate & De Boeck (2005), Journal of
    Educational and Behavioral Statistics 30, 443-464 (DIF as a random effect); Gelman, Hill &
    Yajima (2012), Journal of Research on Educational Effectiveness 5, 189-211.

    Examples
    --------
    >>> from psychlm import corpora
    >>> lsat = corpora.lsat6()
    >>> kinds = pd.Series(["a", "a", "a", "b", "b"], lsat.columns)
    >>> found = dif_explanatory(lsat, np.arange(1000) % 2, kinds)
    >>> found.by.index.tolist(), found.converged
    (['a', 'b'], True)
    """
    checked, _, member = compared_persons(responses, group, reference, most=2)
    refuse("items", by.index[by.index.duplicated()], "stand twice in `by`; keep one of each")
    kinds = by.reindex(checked.columns)
    refuse("items", kinds.index[kinds.isna()], "have no kind in `by`; give them one")
    codes, names = pd.factorize(kinds, sort=True)
    n_items = checked.shape[1]
    n_kinds = len(names)
    if not 2 <= n_kinds < n_items:
        raise FrameError(
            f"{n_kinds} kinds of {n_items} items: give at least two, and fewer than items, or test "
            "single items by mantel_haenszel or dif_likelihood_ratio"
        )
    # Cells: every item in the reference group, then every item in the focal group.
    cells = pd.concat([checked[member == 0], checked[member == 1]], axis=1).reindex(checked.index)
    codes_of_cells = cells.fillna(MISSING).to_numpy(np.uint8)
    cell_numbers = pd.RangeIndex(2 * n_items)
    answers = encode_codes(codes_of_cells, checked.index, cell_numbers, as_drawn=True)
    in_focal = np.repeat([0.0, 1.0], n_items)
    of_item = np.tile(np.eye(n_items), (2, 1))
    of_kind = np.tile(np.eye(n_kinds)[codes], (2, 1))
    estimates = fit_difficulties(
        answers.on("cpu"),
        np.column_stack([np.ones(2 * n_items), in_focal]),
        [of_item, in_focal[:, None] * of_kind, in_focal[:, None] * of_item],
        in_focal.astype(int),
        max_iterations,
    )
    if not estimates.converged:
        message = f"no convergence in {estimates.n_iterations} steps; raise max_iterations"
        warnings.warn(message, IRTWarning, stacklevel=2)

    # A variance at its boundary 0: its effects are 0 by estimate, and the responses give them no
    # interval, since the posterior given that variance is a point.
    sds = pd.Series(estimates.tau, ["difficulty", "difference_of_kinds", "difference_of_items"])
    at_boundary = tuple(sds.index[sds <= BOUNDARY_SD])
    differences = [name for name in at_boundary if name != "difficulty"]
    if differences:
        warnings.warn(
            f"the variance of {' and of '.join(differences)} is estimated at its boundary 0: the "
            "responses tell no such differences from chance, so they are 0 without interval (NaN)",
            IRTWarning,
            stacklevel=2,
        )

    # Rows of the covariance: mean and delta, difficulties of items, differences of kinds, of items.
    _, of_kinds, of_items = estimates.effects
    covariance = estimates.covariance[2 + n_items :, 2 + n_items :]
    variance = covariance.diagonal()
    item_rows = n_kinds + np.arange(n_items)
    together = variance[codes] + variance[item_rows] + 2 * covariance[codes, item_rows]

    def table(modes: np.ndarray, variance: np.ndarray, index: pd.Index) -> pd.DataFrame:
        """Return posterior modes, sds and intervals."""
        se = np.sqrt(variance)
        se = np.where(se > BOUNDARY_SD, se, np.nan)
        half = scipy.stats.norm.ppf(0.975) * se
        columns = {"difference": modes, "se": se, "low": modes - half, "high": modes + half}
        return pd.DataFrame(columns, index=index)

    by_kind = table(of_kinds, variance[:n_kinds], pd.Index(names, name="kind"))
    by_item = table(of_kinds[codes] + of_items, together, checked.columns.rename("item"))
    return ExplanatoryDIF(
        by=by_kind.assign(n_items=np.bincount(codes)),
        items=by_item.assign(b=estimates.b[:n_items], kind=kinds.to_numpy()),
        mean_difference=float(estimates.eta[1]),
        se_mean_difference=float(np.sqrt(estimates.covariance[1, 1])),
        sds=sds,
        at_boundary=at_boundary,
        ability_sd=pd.Series(estimates.ability_sd, ["reference", "focal"]),
        loglik=estimates.loglik,
        n_persons=len(checked),
        converged=estimates.converged,
    )
