"""The native fit of one Gaussian additive model, and what its coefficients answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.linalg import block_diag

from psychlm.device import Device, one_thread, torch_device
from psychlm.frames import FrameError
from psychlm.reading_times import mixed
from psychlm.reading_times._result import (
    GAMFit,
    coefficient_tables,
    smooth_table,
    test_random,
    test_smooth,
)
from psychlm.reading_times.contrasts import Contrast, Floats
from psychlm.reading_times.design import Design, Regression, place
from psychlm.reading_times.formula import Formula
from psychlm.reading_times.kenward_roger import LARGEST, KenwardRoger
from psychlm.reading_times.model_matrix import check_collinear, linear_terms
from psychlm.reading_times.reml import (
    Inverse,
    Method,
    Moments,
    Solution,
    criterion,
    penalised_columns,
    solve,
)
from psychlm.reading_times.smooths import Linear, SmoothTerm, factor_levels
from psychlm.reading_times.tests import DDF, change_of_coding, f_test

MAX_TESTED = 6000  # coefficients of a model whose random effects are tested
PERFECT = 1e-12  # share of the response's sum of squares below which residuals are rounding
INFLATED = 1e6  # variance inflation above which cross-products lose digits that the rows still have


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class NativeFit(GAMFit):
    """A native fit: the coefficients of centred and scaled columns, and what they rest on."""

    design: Design
    weights: Floats  # of these rows
    mean: float  # of the response less the offset
    moments: Moments  # on the CPU
    optimum: mixed.Optimum
    again: Callable[[Method], GAMFit]  # fits these rows by another method

    def _evaluate(
        self, data: pd.DataFrame, chosen: set[str], se: bool, constant: bool
    ) -> tuple[Floats, Floats | None]:
        """Return the sum of the chosen terms, with the intercept or without, and its error.

        With u = x - E_g'z of a row, z its values of the grouped effects, the variance is scale *
        (u'Tu + z'V_g z); see :class:`psychlm.reading_times.reml.Inverse`.
        """
        design = self.design
        data = design.read.compute(data)
        x = np.zeros((len(data), len(design.units)))
        x[:, 0] = constant
        for term in design.terms[1:]:
            span = design.slices[term.label]
            kept = design.label(term) in chosen
            # R's linear terms are not centred
            is_centred = constant if isinstance(term, Linear) else kept
            x[:, span] = term.columns(data) * kept - design.centre[span] * is_centred
        x /= design.units
        level, z = design.grouped.rows(data)
        for label, span in design.grouped.slices.items():
            z[:, span] *= label in chosen
        z[level < 0] = 0
        inverse = self.solution.inverse
        fit = x @ self.solution.beta[0].numpy()
        if constant:
            fit += self.mean + design.read.offset(data)
        if z.shape[1]:
            fit += (z * self.solution.group_beta[0].numpy()[level]).sum(axis=1)
        if not se:
            return fit, None
        if z.shape[1]:
            x = x - np.einsum("nr,nrq->nq", z, inverse.border[0].numpy()[level])
        variance = np.einsum("nq,qp,np->n", x, inverse.dense[0].numpy(), x, optimize=True)
        if z.shape[1]:
            variance += np.einsum("nr,nrs,ns->n", z, inverse.within[0].numpy()[level], z)
        return fit, np.sqrt(variance * self.scale)

    @property
    def solution(self) -> Solution:
        """Return that of the optimum."""
        return self.optimum.solution

    def _design(self, data: pd.DataFrame) -> tuple[Floats, Floats]:
        design = self.design
        data = design.read.compute(data)
        places = design.places(design.fixed)
        columns = np.hstack([term.columns(data) for term in design.fixed])
        columns = (columns - design.centre[places]) / design.units[places]
        return columns, self.mean + design.read.offset(data)

    def _inference(self, ddf: DDF) -> tuple[Floats, Floats, Callable[[Floats], Floats]]:
        places = self.design.places(self.design.fixed)
        estimate = self.solution.beta[0].numpy()[places]
        covariance = self.solution.inverse.dense[0].numpy()[np.ix_(places, places)] * self.scale
        uncertainty = self.optimum.uncertainty
        if uncertainty is None:
            return estimate, covariance, lambda x: np.full(len(x), self._residual_dof)
        if ddf == "Kenward-Roger":
            return estimate, self._kenward_roger.adjusted, self._kenward_roger.dof
        return estimate, covariance, uncertainty.dof

    @property
    def _residual_dof(self) -> float:
        return float(self.n - self.solution.edf.sum())

    def _dof_method(self, ddf: DDF) -> str:
        return ddf if self.is_mixed else "of the residual"

    @cached_property
    def _kenward_roger(self) -> KenwardRoger:
        """Return Kenward and Roger's covariance of the columns of :meth:`_design`."""
        smooths = [s for s in self.design.read.smooths if s.basis != "re"]
        flaw = f"n = {self.n:,} rows are more than {LARGEST:,}" if self.n > LARGEST else ""
        if self.method != "REML":
            flaw = "the model is fitted by ML; fit it with method='REML'"
        if smooths:
            flaw = f"the smooths {[s.label for s in smooths]} have penalties"
        if flaw:
            raise ValueError(f"Kenward and Roger's method is not for this fit: {flaw}")
        data = self.design.read.compute(self.data)
        terms = self.design.smooths
        parts = []
        for labels in self.design.read.blocks:
            covariance = self.optimum.covariances[labels]
            columns = [terms[label].columns(data) for label in labels]
            for i, j in combinations_with_replacement(range(len(labels)), 2):
                product = columns[i] @ columns[j].T
                g = product if i == j else product + product.T
                parts.append((float(covariance[i, j]), g))
        parts.append((self.scale, np.diag(1 / self.weights)))
        return KenwardRoger.of(self._design(self.data)[0], parts)

    def _terms(self, ddf: DDF) -> pd.DataFrame:
        """Test the terms: by type III of mixed models, else each given all others."""
        design = self.design
        lines = design.lines
        label_of_line = [design.label(line) for line in lines]
        labels = list(dict.fromkeys(label_of_line[1:]))
        rows = design.to_r[:, design.places(design.fixed)]
        if self.is_mixed:
            rows = self._of_type_3() @ rows
        label_of_row = np.repeat(label_of_line, [len(line.names) for line in lines])
        estimate, covariance, dof = self._inference(ddf)
        found = {}
        for label in labels:
            of_term = rows[label_of_row == label]
            factor = 1.0  # of F, by Kenward and Roger
            if ddf == "Kenward-Roger" and self.is_mixed:
                test = self._kenward_roger.f_test(of_term, estimate)
                factor = self._kenward_roger.f(of_term)[0]
            else:
                test = f_test(of_term, estimate, covariance, dof)
            mean_sq = test[2] / factor * self.scale
            found[label] = (mean_sq * test[0], mean_sq, *test)
        columns = ["sum_sq", "mean_sq", "num_df", "den_df", "F", "p"]
        table = pd.DataFrame.from_dict(found, "index", columns=columns)
        smooths = self._tests().drop(columns="ref_df").rename(columns={"edf": "num_df"})
        smooths.insert(1, "den_df", self._residual_dof)
        if self.is_mixed:
            smooths = smooths.drop(index=list(self.random))
        else:
            table = table[columns[2:]]
        return pd.concat([table, smooths]) if len(smooths) else table

    def _of_type_3(self) -> Floats:
        """Return the matrix, (p, p), that turns R's coefficients into what tests of type III test.

        With treatment contrasts whose columns are centred over the levels, the coefficients of a
        term are averages over the levels of the other factors, each weighing the same.
        """
        read = self.design.read
        data = read.compute(self.data)
        centred = {}
        for name in read.variables:
            if levels := factor_levels(data[name]):
                matrix = np.eye(len(levels))[:, 1:] - 1 / len(levels)
                centred[name] = Contrast("matrix", matrix=matrix)
        lines, _ = linear_terms(replace(read, contrasts=centred), data)
        coded = [np.ones((len(data), 1)), *(line.columns(data) for line in lines)]
        own = np.hstack([line.columns(data) for line in self.design.lines])
        return change_of_coding(np.hstack(coded), own)

    def _loglik_by_ml(self) -> float:
        return self.again("ML").loglik

    def _deviance(self) -> tuple[float, float]:
        return float(self.solution.rss), self.n - float(self.solution.edf1.sum())

    def _predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        return self._evaluate(data, {*self.parts, *self.random} - {*exclude}, se, constant=True)

    def _effect(self, label: str, data: pd.DataFrame) -> tuple[Floats, Floats]:
        fit, error = self._evaluate(data, {label}, se=True, constant=False)
        return fit, np.asarray(error)

    def _tests(self) -> pd.DataFrame:
        """Return the tests of :mod:`psychlm.reading_times._result`, NaN for random effects if the
        model has more than ``MAX_TESTED`` coefficients, or effects that correlate."""
        solved = self.solution
        scale = self.scale
        q = len(self.design.units)
        n_groups = len(self.design.grouped.levels)
        beta = solved.beta[0].numpy()
        edf = solved.edf[0].numpy()
        dof = max(1.0, np.round(float(solved.n) - edf.sum()))
        edf1 = solved.edf1[0].numpy()
        xx = self.moments.xx[0].numpy()
        all_columns = None
        rows = {}
        for label, span in self.design.spans.items():
            if label not in self.random:
                covariance = solved.inverse.dense[0].numpy()[span, span] * scale
                rank = min(edf1[span].sum(), span.stop - span.start)
                test = test_smooth(beta[span], covariance, xx[span, span], rank, dof)
            elif q + n_groups * (len(edf) - q) > MAX_TESTED or self.is_mixed:
                test = (np.nan, np.nan, np.nan)
            else:
                all_columns = all_columns or self._all_columns()
                test = test_random(*all_columns, label, scale, dof)
            rows[label] = (edf[span].sum(), *test)
        return smooth_table(rows, "ref_df", "F", "p")

    def _all_columns(self) -> tuple[Floats, Floats, Floats, np.ndarray]:
        """Return coefficients, cross-products and penalty of all columns, the grouped ones level by
        level, and the random effect that each belongs to."""
        q = len(self.design.units)
        m = self.moments
        n_groups, r = m.zy.shape[1:]
        zx = m.zx[0].reshape(n_groups * r, q).numpy()
        zz = block_diag(*m.zz[0].numpy(), np.zeros((0, 0)))
        xx = np.block([[m.xx[0].numpy(), zx.T], [zx, zz]])
        owner = np.full(q + r, "", dtype=object)
        for label in self.random:
            owner[self.design.spans[label]] = label
        beta = np.r_[self.solution.beta[0].numpy(), self.solution.group_beta[0].numpy().ravel()]
        of_columns = (self.optimum.penalty, owner)
        penalty, owners = (np.r_[x[:q], np.tile(x[q:], n_groups)] for x in of_columns)
        return beta, xx, penalty, owners

    def random_effects(self) -> pd.DataFrame:
        """Return all random effects; those of a level with another factor are named 'a.b'."""
        design = self.design
        inverse = self.solution.inverse
        dense = inverse.dense[0].numpy()
        border = inverse.border[0].numpy()
        between = np.einsum("grq,qp,grp->gr", border, dense, border, optimize=True)
        of_groups = np.einsum("grr->gr", inverse.within[0].numpy()) + between
        frames = [pd.DataFrame(columns=["term", "level", "estimate", "std_error"])]
        for label in self.random:
            names = [name.removeprefix(f"{label}.") for name in design.smooths[label].names]
            levels = np.array(names, dtype=object)
            if label in design.slices:
                span = design.slices[label]
                estimate = self.solution.beta[0].numpy()[span] / design.units[span]
                variance = dense.diagonal()[span] / design.units[span] ** 2
            else:
                levels = design.level_by_level(label, levels)
                span = design.grouped.slices[label]
                estimate = self.solution.group_beta[0].numpy()[:, span].ravel()
                variance = of_groups[:, span].ravel()
            error = np.sqrt(variance * self.scale)
            table = {"term": label, "level": levels, "estimate": estimate, "std_error": error}
            frames.append(pd.DataFrame(table))
        return pd.concat(frames[1:] or frames, ignore_index=True)


def _null_space(design: Design) -> float:
    """Return what mgcv's coordinates add to the restricted likelihood of these, in nats.

    REML integrates the unpenalised coefficients with respect to their own scale. With the change C
    from mgcv's coefficients of a smooth to these and W the columns of C^-1 for those that are not
    penalised, log|A| - log|S|+ of mgcv's is that of these less log|W'W|.
    """
    added = float(np.log(design.units[design.free]).sum())
    for term in design.fixed:
        span = design.slices[term.label]
        free = design.free[span]
        if isinstance(term, SmoothTerm) and free.any():
            w = np.linalg.inv(term.change)[:, free]
            added -= float(np.linalg.slogdet(w.T @ w)[1]) / 2
    return added


def _warn_of_a_reproduced_response(rss: float, total: float) -> None:
    if rss < PERFECT * total:
        warnings.warn(
            "the model reproduces the response (its residuals are rounding), so that standard "
            "errors, tests and likelihoods say nothing; is the response computed from predictors?",
            RuntimeWarning,
            stacklevel=5,
        )


@one_thread()
def fit(
    data: pd.DataFrame,
    formula: Formula,
    method: Method,
    device: Device,
    tolerance: float,
    weights: str | None = None,
) -> GAMFit:
    """Fit by REML or ML to rows without gaps, the values of expressions among them."""
    kept = [name for name in (*formula.variables, formula.response, weights) if name in data]
    kept = [*dict.fromkeys([*kept, *formula.columns((*formula.variables, formula.response))])]

    def again(other: Method) -> GAMFit:
        return fit(data[kept], formula, other, device, tolerance, weights)

    # The dense columns, centred and scaled; the random effects of one factor stay apart.
    design, columns = place(formula, data)
    response = data[formula.response].to_numpy(np.float64)
    offset = formula.offset(data)
    n = len(response)
    mean = float((response - offset).mean())
    w = np.ones(n) if weights is None else data[weights].to_numpy(np.float64, copy=True)
    y = response - offset - mean
    rows = Regression(columns, y[:, None], w, *design.grouped.rows(data))
    n_free = int(design.free.sum())
    if n <= n_free:
        raise FrameError(f"{n} rows are too few for {n_free} unpenalised coefficients; drop terms")

    # Cross-products, weighted; whether columns are collinear depends on no weights.
    xx, xy, yy, _, zz, zx, zy = rows.products(len(design.grouped.levels))
    of_all = xx, xy[:, 0], yy[0], float(n), zz, zx, zy[:, :, 0]
    moments = Moments(*(torch.from_numpy(np.asarray(part)[None]) for part in of_all))
    correlation = (xx if weights is None else columns.products(np.ones(n))) / n
    check_collinear(correlation, design.names, design.free)

    # Smoothing from mgcv's first lambda; each random effect has a penalty, grouped ones come last.
    start = design.start(xx, zz, n)
    # what mgcv's units of the unpenalised coefficients add to the restricted likelihood
    of_units = _null_space(design) if method == "REML" else 0.0
    where = torch_device(device, "reading_times.fit", float64=True)
    if formula.blocks:
        components = mixed.components_of(formula, design, moments, start)
        optimum = mixed.solve(moments, components, method)
        for message in optimum.singular:
            warnings.warn(f"singular: {message}", RuntimeWarning, stacklevel=4)
    else:
        on_device = Moments(*(part.to(where) for part in vars(moments).values()))
        begin = (torch.from_numpy(x).to(where) for x in (design.penalties, start))
        found = _to_cpu(solve(on_device, *begin, method=method, tolerance=tolerance))
        optimum = _additive_optimum(design, rows, moments, found, method)

    # Estimates of linear terms are as R has them; the intercept is a combination of all.
    solution = optimum.solution
    edf = solution.edf[0].numpy()
    scale = float(solution.scale)
    rss = float(solution.rss)
    to_r = design.to_r
    names = [name for line in design.lines for name in line.names]
    estimate = to_r @ solution.beta[0].numpy()
    estimate[0] += mean
    covariance = to_r @ solution.inverse.dense[0].numpy() @ to_r.T * scale
    dof = n - edf.sum()
    of_weights = float(np.log(w).sum()) / 2
    criterion_reached = optimum.score + of_units - of_weights
    loglik = float(solution.loglik) + of_weights
    if optimum.uncertainty is not None:  # a mixed model, whose likelihood is the criterion's
        dof = optimum.uncertainty.dof(to_r[:, optimum.uncertainty.columns])
        loglik = -criterion_reached
    total = float((w * (y - np.average(y, weights=w)) ** 2).sum())
    _warn_of_a_reproduced_response(rss, total)
    residuals = w**0.5 * rows.residuals(solution)
    random = tuple(smooth.label for smooth in formula.smooths if smooth.basis == "re")
    deviations = {label: optimum.deviations[label] for label in random} | {"residual": scale**0.5}
    edf_of = {label: edf[span].sum() for label, span in design.spans.items()}
    used = data[list(formula.columns((*formula.variables, formula.response)))]
    return NativeFit(
        formula=formula.text,
        backend="native",
        method=method,
        loglik=loglik,
        edf=float(edf.sum()),
        **coefficient_tables(names, estimate, covariance, dof),
        smooths=smooth_table(edf_of),
        scale=scale,
        n=n,
        converged=bool(solution.converged.all()),
        data=used if weights is None else used.assign(**{weights: w}),
        residuals=pd.Series(residuals, data.index, name="residual"),
        variance_components=pd.Series(deviations, name="std_dev"),
        r_squared=_r_squared(response, w, residuals, float(edf.sum())),
        deviance_explained=1 - rss / total,
        criterion=criterion_reached,
        aic=-2 * loglik + 2 * (optimum.n_parameters + 1),
        correlations=optimum.correlations,
        singular=optimum.singular,
        is_mixed=optimum.uncertainty is not None,
        parts=design.parts,
        random=random,
        variables=design.read.columns(design.read.variables),
        fixed_variables=design.read.columns(design.read.fixed_variables),
        empty_cells=design.empty_cells,
        design=design,
        weights=w,
        mean=mean,
        moments=moments,
        optimum=optimum,
        again=again,
    )


def _r_squared(response: Floats, weights: Floats, residuals: Floats, edf: float) -> float:
    """Return the adjusted share of the variance that a fit explains, from the weighted mean, as
    mgcv; ``residuals`` are weighted."""
    n = len(response)
    about_mean = weights**0.5 * (response - np.average(response, weights=weights**0.5))
    left = np.var(residuals, ddof=1) * (n - 1) / (n - edf)
    return 1 - float(left / np.var(about_mean, ddof=1))


def _additive_optimum(
    design: Design,
    rows: Regression,
    moments: Moments,
    solution: Solution,
    method: Method,
) -> mixed.Optimum:
    """Return the optimum of a model whose coefficients have penalties."""
    w = rows.weights
    n = len(w)
    penalties = torch.from_numpy(design.penalties)
    lambdas = solution.log_lambda[0].exp()
    penalty = lambdas @ penalties
    inflated = n * solution.inverse.dense[0].diagonal()[design.free].max() > INFLATED
    if inflated or float(solution.rss) < PERFECT * float(moments.yy):
        solution = _refined(solution, rows, penalty.numpy())
        rss = torch.tensor([w @ rows.residuals(solution) ** 2])
        scale = solution.scale * rss / solution.rss
        of_rss = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
        solution = replace(solution, rss=rss, scale=scale, loglik=of_rss)

    # The criterion where the residual variance has its best value, too.
    q = rows.columns.q
    beta = solution.beta[0]
    group_beta = solution.group_beta[0]
    penalised = (penalty[:q] * beta.square()).sum() + (penalty[q:] * group_beta.square()).sum()
    dof = n - (int(design.free.sum()) if method == "REML" else 0)
    variance = (solution.rss + penalised) / dof
    theta = torch.cat([solution.log_lambda, variance.log()[:, None]], dim=1)
    reached = criterion(moments, penalties, penalised_columns(penalties), theta, method)
    owners = [label for label, term in design.smooths.items() for _ in term.penalties]
    deviations = (solution.scale / lambdas).sqrt().tolist()
    return mixed.Optimum(
        solution=solution,
        score=float(reached.value),
        n_parameters=float(solution.edf.sum()),
        deviations=dict(zip(owners, deviations, strict=True)),
        penalty=penalty.numpy(),
    )


def _refined(solution: Solution, rows: Regression, penalty: Floats) -> Solution:
    """Return the coefficients after a step of iterative refinement.

    The condition number of cross-products is the square of that of the rows. With weighted
    residuals e = W (y - X b) of the rows, b + A^-1 (X'e - S b) has lost no more than the rows have.
    """
    e = rows.weights * rows.residuals(solution)
    q = rows.columns.q
    one = np.zeros(len(e), dtype=np.int64)
    x_gradient = rows.columns.sums(one, 1, e)[0] - penalty[:q] * solution.beta[0].numpy()
    z_gradient = -penalty[q:] * solution.group_beta[0].numpy()
    if rows.z.shape[1]:
        np.add.at(z_gradient, rows.level, rows.z * e[:, None])
    step = solution.inverse.solve(
        torch.from_numpy(x_gradient[None]), torch.from_numpy(z_gradient[None])
    )
    beta = solution.beta + step[0]
    return replace(solution, beta=beta, group_beta=solution.group_beta + step[1])


def _to_cpu(values: Any) -> Any:
    """Move a solution to the CPU."""
    moved = {n: _to_cpu(x) if isinstance(x, Inverse) else x.cpu() for n, x in vars(values).items()}
    return type(values)(**moved)
