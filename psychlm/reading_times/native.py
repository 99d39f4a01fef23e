"""The native fit of one Gaussian additive model, and what its coefficients answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag

from psychlm.device import Device, one_thread, torch_device
from psychlm.frames import FrameError
from psychlm.reading_times import mixed
from psychlm.reading_times._result import (
    Floats,
    GAMFit,
    Model,
    Part,
    coefficient_tables,
    say_empty_cells,
    smooth_table,
    test_random,
    test_smooth,
)
from psychlm.reading_times.formula import Formula, State
from psychlm.reading_times.model_matrix import (
    Columns,
    GroupedEffects,
    ModelMatrix,
    build_matrix,
    check_collinear,
    group_random_effects,
    leave_out_aliased,
    linear_terms,
    rows_of,
)
from psychlm.reading_times.reml import (
    Inverse,
    Method,
    Moments,
    Solution,
    criterion,
    penalised_columns,
    solve,
)
from psychlm.reading_times.smooths import (
    By,
    Linear,
    RandomEffect,
    Term,
    factor_levels,
    linear,
    start_smoothing,
)
from psychlm.reading_times.tests import (
    DDF,
    LARGEST,
    FixedTerm,
    KenwardRoger,
    f_test,
    type_3_contrasts,
)

MAX_TESTED = 6000  # coefficients of a model whose random effects are tested
INFLATED = 1e6  # variance inflation above which cross-products lose digits that the rows still have


@dataclass(frozen=True)
class _Fitted(Model):
    """A native fit: the coefficients of centred and scaled columns, and what they rest on."""

    formula: Formula
    state: State  # of its expressions
    matrix: ModelMatrix
    grouped: GroupedEffects
    centre: Floats  # (q,)
    scale: Floats  # (q,)
    response: Floats  # of the rows fitted
    weights: Floats  # of these rows
    mean: float  # of the response less the offset
    data: pd.DataFrame  # those rows
    solution: Solution  # on the CPU
    penalty: Floats  # (q + r,): the diagonal of S at the optimum; of no use where effects correlate
    moments: Moments
    method: Method
    again: Callable[[Method], GAMFit]  # fits these rows by another method
    edf1: Floats | None = None  # (q + r,): the diagonal of 2F - FF, where effects correlate
    uncertainty: mixed.Uncertainty | None = None  # of the variances, where effects correlate
    covariances: dict[tuple[str, ...], Floats] = field(default_factory=dict)  # of random effects

    @property
    def variables(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.formula.columns(self.formula.variables)

    @property
    def parts(self) -> dict[str, Part]:  # type: ignore[override]
        parts = {}
        for term in self.matrix.terms[1:]:
            if isinstance(term, By):
                level = {term.by: 1.0 if term.level is None else term.level}
                parts[term.label] = Part(self.formula.columns(term.variables[:-1]), level)
            elif not isinstance(term, RandomEffect):
                parts[self._label(term)] = Part(self.formula.columns(term.variables))
        return parts

    def _label(self, term: Term) -> str:
        """Return R's label of a term: all powers of a polynomial are one."""
        whole = {name: e.name for e in self.formula.expressions for name in e.names}
        if isinstance(term, Linear):
            return ":".join(whole.get(name, name) for name in term.variables)
        return term.label

    @property
    def random(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(s.label for s in self.formula.smooths if s.basis == "re")

    def _evaluate(
        self, data: pd.DataFrame, chosen: set[str], se: bool, constant: bool
    ) -> tuple[Floats, Floats | None]:
        """Return the sum of the chosen terms, with the intercept or without, and its error.

        With u = x - E_g'z of a row, z its values of the grouped effects, the variance is scale *
        (u'Tu + z'V_g z); see :class:`psychlm.reading_times.reml.Inverse`.
        """
        data = self.formula.compute(data, self.state)
        x = np.zeros((len(data), len(self.scale)))
        x[:, 0] = constant
        for term in self.matrix.terms[1:]:
            span, kept = self.matrix.slices[term.label], self._label(term) in chosen
            columns = term.columns(data)
            if isinstance(term, Linear):  # R's linear terms are not centred
                x[:, span] = columns * kept - self.centre[span] * constant
            elif kept:
                x[:, span] = columns - self.centre[span]
        x /= self.scale
        level, z = self.grouped.rows(data)
        for label, span in self.grouped.slices.items():
            z[:, span] *= label in chosen
        z[level < 0] = 0
        solved, inverse = self.solution, self.solution.inverse
        fit = x @ solved.beta[0].numpy()
        if constant:
            fit += self.mean + self.formula.offset(data)
        if z.shape[1]:
            fit += (z * solved.group_beta[0].numpy()[level]).sum(axis=1)
        if not se:
            return fit, None
        if z.shape[1]:
            x = x - np.einsum("nr,nrq->nq", z, inverse.border[0].numpy()[level])
        variance = np.einsum("nq,qp,np->n", x, inverse.dense[0].numpy(), x, optimize=True)
        if z.shape[1]:
            variance += np.einsum("nr,nrs,ns->n", z, inverse.within[0].numpy()[level], z)
        return fit, np.sqrt(variance * float(solved.scale))

    @property
    def fixed_variables(self) -> tuple[str, ...]:  # type: ignore[override]
        names = [name for term in self.formula.linear for name in term]
        smooths = [smooth for smooth in self.formula.smooths if smooth.basis != "re"]
        names += [name for smooth in smooths for name in smooth.all_variables]
        return self.formula.columns(tuple(dict.fromkeys([*names, *self.formula.offsets])))

    @property
    def is_mixed(self) -> bool:  # type: ignore[override]
        return self.uncertainty is not None

    @property
    def empty_cells(self) -> tuple[str, ...]:  # type: ignore[override]
        data = self.formula.compute(self.data, self.state)
        return leave_out_aliased(self.formula, data).empty_cells

    def design(self, data: pd.DataFrame) -> Floats:
        """Return the columns that are no random effects, and last what is added as it is."""
        data = self.formula.compute(data, self.state)
        fixed = [term for term in self.matrix.terms if not isinstance(term, RandomEffect)]
        columns = [
            (term.columns(data) - self.centre[span]) / self.scale[span]
            for term in fixed
            for span in [self.matrix.slices[term.label]]
        ]
        return np.column_stack([*columns, self.mean + self.formula.offset(data)])

    @property
    def _places(self) -> NDArray[np.intp]:
        """Return the dense columns that are no random effects."""
        fixed = [term for term in self.matrix.terms if not isinstance(term, RandomEffect)]
        return np.concatenate([np.r_[self.matrix.slices[term.label]] for term in fixed])

    def inference(self, ddf: DDF) -> tuple[Floats, Floats, Callable[[Floats], Floats]]:
        places = self._places
        estimate = np.r_[self.solution.beta[0].numpy()[places], 1.0]
        covariance = np.zeros((len(estimate), len(estimate)))
        dense = self.solution.inverse.dense[0].numpy()[np.ix_(places, places)]
        covariance[:-1, :-1] = dense * float(self.solution.scale)
        if not self.is_mixed:
            residual = float(self.solution.n) - float(self.solution.edf.sum())
            return estimate, covariance, lambda contrasts: np.full(len(contrasts), residual)
        of_variances: mixed.Uncertainty | KenwardRoger
        of_variances = self.uncertainty  # type: ignore[assignment]
        if ddf == "Kenward-Roger":
            of_variances = self.kenward_roger()
            covariance[:-1, :-1] = of_variances.adjusted
        return estimate, covariance, lambda contrasts: of_variances.dof(contrasts[:, :-1])

    def dof_method(self, ddf: DDF) -> str:
        return ddf if self.is_mixed else "of the residual"

    def kenward_roger(self) -> KenwardRoger:
        """Return Kenward and Roger's covariance of the columns of :meth:`design`."""
        n, smooths = len(self.response), [s for s in self.formula.smooths if s.basis != "re"]
        flaw = f"n = {n:,} rows are more than {LARGEST:,}" if n > LARGEST else ""
        if self.method != "REML":
            flaw = "the model is fitted by ML; fit it with method='REML'"
        if smooths:
            flaw = f"the smooths {[s.label for s in smooths]} have penalties"
        if flaw:
            raise ValueError(f"Kenward and Roger's method is not for this fit: {flaw}")
        data = self.formula.compute(self.data, self.state)
        terms = {term.label: term for term in (*self.matrix.smooths, *self.grouped.terms)}
        parts = []
        for labels, covariance in self.covariances.items():
            columns = [terms[label].columns(data) for label in labels]
            for i, j in combinations_with_replacement(range(len(labels)), 2):
                product = columns[i] @ columns[j].T
                g = product if i == j else product + product.T
                parts.append((float(covariance[i, j]), g))
        weights = np.diag(1 / self.weights)
        parts.append((float(self.solution.scale), weights))
        return KenwardRoger.of(self.design(self.data)[:, :-1], parts)

    def anova(self, ddf: DDF) -> pd.DataFrame:
        """Test the terms: by type III of mixed models, else each given all others."""
        data = self.formula.compute(self.data, self.state)
        computed = {name: e for e in self.formula.expressions for name in e.names}
        lines = [term for term in self.matrix.terms if isinstance(term, Linear)]
        labels = list(dict.fromkeys(self._label(line) for line in lines[1:]))
        rows, _ = self.linear_rows()
        estimate, covariance, dof = self.inference(ddf)
        places = self._places

        def dense_dof(contrasts: Floats) -> Floats:
            """Return the degrees of freedom of contrasts of the linear terms' coefficients."""
            dense = (contrasts @ rows)[:, places]
            return dof(np.column_stack([dense, np.zeros(len(dense))]))

        of_linear = rows[:, places]
        values = of_linear @ estimate[:-1]
        variance = of_linear @ covariance[:-1, :-1] @ of_linear.T
        if self.is_mixed:
            plain = leave_out_aliased(replace(self.formula, contrasts={}), data)
            terms, columns, names = [], [np.ones((len(data), 1))], ["(Intercept)"]
            treated = linear_terms(plain, data)
            for label in labels:
                own = [line for line in treated if self._label(line) == label]
                every = [linear(line.variables, data, frozenset(line.variables)) for line in own]
                of = {name for line in own for name in line.variables}
                numbers = {
                    name
                    for name in of
                    if factor_levels(data[name]) is None
                    and not (name in computed and computed[name].outer)
                }
                whole = {name: computed[name].name if name in computed else name for name in of}
                terms.append(
                    FixedTerm(
                        label=label,
                        names=tuple(name for line in own for name in line.names),
                        variables=frozenset(whole[name] for name in of),
                        numbers=frozenset(whole[name] for name in numbers),
                        names_of_levels=tuple(name for line in every for name in line.names),
                        of_levels=np.hstack([line.columns(data) for line in every]),
                    )
                )
                columns += [line.columns(data) for line in own]
                names += [name for line in own for name in line.names]
            coded = np.hstack([line.columns(data) for line in lines])
            # the columns of `lines` stand in the order of the formula's terms, as `rows` does
            contrasts = type_3_contrasts(names, np.hstack(columns), coded, terms)
        else:
            own_columns = np.repeat(
                [self._label(line) for line in lines], [len(x.names) for x in lines]
            )
            contrasts = {label: np.eye(len(rows))[own_columns == label] for label in labels}
        found = {}
        small_sample = self.kenward_roger() if ddf == "Kenward-Roger" and self.is_mixed else None
        for label in labels:
            factor = 1.0  # of F, by Kenward and Roger
            if small_sample is not None:
                dense = (contrasts[label] @ rows)[:, places]
                test = small_sample.f_test(dense, estimate[:-1])
                factor = small_sample.f(dense)[0]
            else:
                test = f_test(contrasts[label], values, variance, dense_dof)
            found[label] = (test[2] / factor, *test)
        statistics = ["wald_f", "num_df", "den_df", "F", "p"]
        table = pd.DataFrame.from_dict(found, "index", columns=statistics)
        mean_sq = table.pop("wald_f") * float(self.solution.scale)
        if self.is_mixed:
            table.insert(0, "mean_sq", mean_sq)
            table.insert(0, "sum_sq", mean_sq * table["num_df"])
            return table
        smooths = self.tests().rename(columns={"edf": "num_df"}).drop(columns="ref_df")
        residual = float(self.solution.n) - float(self.solution.edf.sum())
        return pd.concat([table, smooths.assign(den_df=residual)[list(table)]])

    def loglik_by_ml(self) -> float:
        return self.again("ML").loglik

    def residual_df(self) -> float:
        return float(self.solution.n) - float(self.edf1_of_all().sum())

    def deviance(self) -> float:
        return float(self.solution.rss)

    def edf1_of_all(self) -> Floats:
        """Return the diagonal of 2F - FF = 1 - (A^-1 S)(A^-1 S), where S is diagonal, (q + r,)."""
        if self.edf1 is not None:
            return self.edf1
        q, n_groups = len(self.scale), len(self.grouped.levels)
        counts = np.r_[np.ones(q), np.full(len(self.penalty) - q, n_groups)]
        squares = self.solution.inverse.reduced()[1][0].numpy()
        return counts - self.penalty * (squares @ self.penalty)

    def linear_rows(self) -> tuple[Floats, list[str]]:
        """Return the matrix, (p, q), that turns coefficients of the dense columns into R's of the
        linear terms, whose names are returned too; the intercept lacks the response's mean."""
        lines = [term for term in self.matrix.terms if isinstance(term, Linear)]
        linear_places = np.concatenate([np.r_[self.matrix.slices[term.label]] for term in lines])
        chosen = np.eye(len(self.scale))[linear_places]
        chosen[0, linear_places[1:]] = -self.centre[linear_places[1:]]
        return chosen / self.scale, [self.matrix.names[i] for i in linear_places]

    def predict(
        self, data: pd.DataFrame, exclude: Sequence[str], se: bool
    ) -> tuple[Floats, Floats | None]:
        return self._evaluate(data, {*self.parts, *self.random} - {*exclude}, se, constant=True)

    def effect(self, label: str, data: pd.DataFrame) -> tuple[Floats, Floats]:
        fit, error = self._evaluate(data, {label}, se=True, constant=False)
        return fit, np.asarray(error)

    def residuals(self) -> Floats:
        """Return response minus fit, times the root of the weights, as R's deviance residuals."""
        return self.weights**0.5 * (self.response - self.predict(self.data, (), se=False)[0])

    @property
    def spans(self) -> dict[str, slice]:
        """Return the columns of each smooth, the grouped ones after the q others."""
        q = len(self.scale)
        grouped = {k: slice(q + s.start, q + s.stop) for k, s in self.grouped.slices.items()}
        slices = self.matrix.slices | grouped
        spans: dict[str, slice] = {}
        for smooth in self.formula.smooths:  # "s(x):g" has the terms "s(x):ga", "s(x):gb"
            of_levels = [label for label in slices if smooth.by and label.startswith(smooth.label)]
            spans |= {label: slices[label] for label in of_levels or [smooth.label]}
        return spans

    def tests(self) -> pd.DataFrame:
        """Return the tests of :mod:`psychlm.reading_times._result`, NaN for random effects if the
        model has more than ``MAX_TESTED`` coefficients, or effects that correlate."""
        solved, scale = self.solution, float(self.solution.scale)
        q, n_groups = len(self.scale), len(self.grouped.levels)
        beta, edf = solved.beta[0].numpy(), solved.edf[0].numpy()
        dof = max(1.0, np.round(float(solved.n) - edf.sum()))
        edf1 = self.edf1_of_all()
        xx, all_columns = self.moments.xx[0].numpy(), None
        rows = {}
        for label, span in self.spans.items():
            if label not in self.random:
                covariance = solved.inverse.dense[0].numpy()[span, span] * scale
                rank = min(edf1[span].sum(), span.stop - span.start)
                test = test_smooth(beta[span], covariance, xx[span, span], rank, dof)
            elif q + n_groups * (len(edf) - q) > MAX_TESTED or self.edf1 is not None:
                test = (np.nan, np.nan, np.nan)
            else:
                all_columns = all_columns or self._all_columns()
                test = test_random(*all_columns, label, scale, dof)
            rows[label] = (edf[span].sum(), *test)
        return smooth_table(rows, "ref_df", "F", "p")

    def _all_columns(self) -> tuple[Floats, Floats, Floats, np.ndarray]:
        """Return coefficients, cross-products and penalty of all columns, the grouped ones level by
        level, and the random effect that each belongs to."""
        q, m = len(self.scale), self.moments
        n_groups, r = m.zy.shape[1:]
        zx = m.zx[0].reshape(n_groups * r, q).numpy()
        zz = block_diag(*m.zz[0].numpy(), np.zeros((0, 0)))
        xx = np.block([[m.xx[0].numpy(), zx.T], [zx, zz]])
        owner = np.full(q + r, "", dtype=object)
        for label in self.random:
            owner[self.spans[label]] = label
        beta = np.r_[self.solution.beta[0].numpy(), self.solution.group_beta[0].numpy().ravel()]
        penalty, owners = (np.r_[x[:q], np.tile(x[q:], n_groups)] for x in (self.penalty, owner))
        return beta, xx, penalty, owners

    def random_effects(self) -> pd.DataFrame:
        """Return all random effects; those of a level with another factor are named 'a.b'."""
        solved, inverse = self.solution, self.solution.inverse
        variance, dense_inverse = float(solved.scale), inverse.dense[0].numpy()
        dense = np.sqrt(dense_inverse.diagonal() * variance) / self.scale
        border, within = inverse.border[0].numpy(), inverse.within[0].numpy()
        between = np.einsum("grq,qp,grp->gr", border, dense_inverse, border, optimize=True)
        grouped = np.sqrt((np.einsum("grr->gr", within) + between) * variance)
        terms = {t.label: t for t in (*self.matrix.smooths, *self.grouped.terms)}
        frames = [pd.DataFrame(columns=["term", "level", "estimate", "std_error"])]
        for label in self.random:
            term = terms[label]
            assert isinstance(term, RandomEffect)
            names = np.array([name.removeprefix(f"{label}.") for name in term.names], dtype=object)
            if label in self.matrix.slices:
                span = self.matrix.slices[label]
                estimate = solved.beta[0].numpy()[span] / self.scale[span]
                error = dense[span]
            else:  # level by level of the grouping factor
                sizes = {v: len(x) for v, x in zip(term.variables, term.factors, strict=True) if x}
                place = list(sizes).index(self.grouped.factor)
                names = np.moveaxis(names.reshape([*sizes.values()]), place, 0).ravel()
                span = self.grouped.slices[label]
                estimate = solved.group_beta[0].numpy()[:, span].ravel()
                error = grouped[:, span].ravel()
            table = {"term": label, "level": names, "estimate": estimate, "std_error": error}
            frames.append(pd.DataFrame(table))
        return pd.concat(frames[1:] or frames, ignore_index=True)


def _null_space(matrix: ModelMatrix, centre: Floats, covariance: Floats, scale: Floats) -> float:
    """Return what mgcv's coordinates add to the restricted likelihood of these, in nats.

    REML integrates the unpenalised coefficients with respect to their own scale. With the change C
    from mgcv's coefficients of a smooth to these and W the columns of C^-1 for those that are not
    penalised, log|A| - log|S|+ of mgcv's is that of these less log|W'W|.
    """
    added = float(np.log(scale[matrix.free]).sum())
    for term in matrix.smooths:
        span = matrix.slices[term.label]
        free = matrix.free[span]
        if not isinstance(term, RandomEffect) and free.any():
            w = np.linalg.inv(term.change(centre[span], covariance[span, span]))[:, free]
            added -= float(np.linalg.slogdet(w.T @ w)[1]) / 2
    return added


@one_thread()
def fit(
    data: pd.DataFrame,
    formula: Formula,
    state: State,
    method: Method,
    device: Device,
    tolerance: float,
    weights: str | None = None,
) -> GAMFit:
    """Fit by REML or ML to rows without gaps, the values of expressions among them."""
    kept = [name for name in (*formula.variables, formula.response, weights) if name in data]
    kept = [*dict.fromkeys([*kept, *formula.columns((*formula.variables, formula.response))])]

    def again(other: Method) -> GAMFit:
        return fit(data[kept], formula, state, other, device, tolerance, weights)

    # The dense columns, centred and scaled; the random effects of one factor stay apart.
    matrix, grouped, columns, centre, scale = _design(formula, data)
    response, offset = data[formula.response].to_numpy(np.float64), formula.offset(data)
    n, mean = len(response), float((response - offset).mean())
    y = response - offset - mean
    n_free = int(matrix.free.sum())
    if n <= n_free:
        raise FrameError(f"{n} rows are too few for {n_free} unpenalised coefficients; drop terms")

    # Cross-products, weighted; the coordinates of mgcv's coefficients depend on no weights.
    w = np.ones(n) if weights is None else data[weights].to_numpy(np.float64, copy=True)
    where = torch_device(device, "reading_times.fit", float64=True)
    sums = columns.products(w), columns.sums(np.zeros(n, dtype=np.int64), 1, w * y)[0], w * y @ y
    of_all = *sums, float(n), *grouped.moments(data, columns, y, w)
    moments = Moments(*(torch.from_numpy(np.asarray(part)[None]).to(where) for part in of_all))
    correlation = (sums[0] if weights is None else columns.products(np.ones(n))) / n
    check_collinear(correlation, matrix.names, matrix.free)

    # Smoothing from mgcv's first lambda; each random effect has a penalty, grouped ones come last.
    covariances = correlation * np.outer(scale, scale)
    weighted = sums[0] / n * np.outer(scale, scale)
    diagonals = matrix.diagonals(centre, covariances, weighted) + grouped.diagonals(of_all[4], n)
    start = start_smoothing(diagonals, n)
    penalties = block_diag(matrix.penalties / scale**2, *grouped.penalties)
    used = data[list(formula.columns((*formula.variables, formula.response)))]
    used = used if weights is None else used.assign(**{weights: w})
    components = mixed_fit = None
    penalty = np.zeros(0)
    of_blocks: dict[tuple[str, ...], Floats] = {}
    on_device = moments
    moments = _to_cpu(on_device)
    if formula.blocks:
        components = mixed_components(formula, matrix, grouped, moments, scale, start)
        mixed_fit = mixed.solve(moments, list(components.values()), method)
        solution = mixed_fit.solution
        by_labels = dict(zip(components, mixed_fit.covariances, strict=True))
        of_blocks = {labels: by_labels[labels] for labels in by_labels if labels in formula.blocks}
    else:
        begin = (torch.from_numpy(part).to(where) for part in (penalties, start))
        solution = _to_cpu(solve(on_device, *begin, method=method, tolerance=tolerance))
        penalty = solution.log_lambda[0].exp().numpy() @ penalties
        if n * solution.inverse.dense[0].diagonal()[matrix.free].max() > INFLATED:
            solution = _refined(solution, columns, grouped.rows(data), y, w, penalty)
    model = _Fitted(
        formula=formula.of_predictors,
        state=state,
        matrix=matrix,
        grouped=grouped,
        centre=centre,
        scale=scale,
        response=response,
        weights=w,
        mean=mean,
        data=used,
        solution=solution,
        penalty=penalty,
        moments=moments,
        method=method,
        again=again,
        edf1=mixed_fit.edf1 if mixed_fit else None,
        uncertainty=mixed_fit.uncertainty if mixed_fit else None,
        covariances=of_blocks,
    )

    of_scale = _null_space(matrix, centre, covariances, scale) if method == "REML" else 0.0
    of_weights = float(np.log(w).sum()) / 2
    loglik = float(solution.loglik) + of_weights - bool(components) * of_scale
    n_parameters = float(solution.edf.sum())
    more: dict[str, Any] = {}
    if components and mixed_fit:
        value = -loglik
        n_parameters = float(n_free + mixed_fit.n_parameters)
        deviations, more = _described(components, mixed_fit)
    else:
        value = _score(moments, solution, penalties, n_free, method) + of_scale - of_weights
        deviations = _deviations(matrix, grouped, solution)
    deviations = {label: deviations[label] for label in model.random}
    deviations["residual"] = float(solution.scale) ** 0.5
    return GAMFit(
        formula=formula.text,
        backend="native",
        method=method,
        loglik=loglik,
        scale=float(solution.scale),
        n=n,
        converged=bool(solution.converged.all()),
        data=used,
        model=model,
        variance_components=pd.Series(deviations, name="std_dev"),
        criterion=value,
        aic=-2 * loglik + 2 * (n_parameters + 1),
        **_statistics(model, y),
        **more,
    )


def _refined(
    solution: Solution,
    columns: Columns,
    grouped: tuple[NDArray[np.int64], Floats],
    y: Floats,
    weights: Floats,
    penalty: Floats,
) -> Solution:
    """Return the coefficients after a step of iterative refinement.

    The condition number of cross-products is the square of that of the rows. With residuals e = y -
    X b of the rows, b + A^-1 (X'W e - S b) has lost no more than the rows have; the residual sum of
    squares is that of the rows, too.
    """
    level, z = grouped
    q = columns.q
    one = np.zeros(len(y), dtype=np.int64)

    def residuals(found: Solution) -> Floats:
        fitted = columns.times(found.beta[0].numpy())
        if z.shape[1]:
            fitted += (z * found.group_beta[0].numpy()[level]).sum(axis=1)
        return y - fitted

    e = weights * residuals(solution)
    x_gradient = columns.sums(one, 1, e)[0] - penalty[:q] * solution.beta[0].numpy()
    z_gradient = -penalty[q:] * solution.group_beta[0].numpy()
    if z.shape[1]:
        np.add.at(z_gradient, level, z * e[:, None])
    step = solution.inverse.solve(
        torch.from_numpy(x_gradient[None]), torch.from_numpy(z_gradient[None])
    )
    moved = replace(
        solution, beta=solution.beta + step[0], group_beta=solution.group_beta + step[1]
    )
    rss = torch.tensor([weights @ residuals(moved) ** 2])
    n = solution.n
    loglik = -n / 2 * (torch.log(2 * torch.pi * rss / n) + 1)
    return replace(moved, rss=rss, scale=solution.scale * rss / solution.rss, loglik=loglik)


def _design(formula: Formula, data: pd.DataFrame) -> tuple[Any, Any, Any, Any, Any]:
    """Return the model matrix, its grouped random effects, and its columns with centre and scale.

    Columns of blocks are not scaled, for one covariance holds for all levels.
    """
    formula = leave_out_aliased(formula, data)
    say_empty_cells(formula.empty_cells)
    dense_formula, grouped = group_random_effects(formula, data)
    rows = rows_of(data)
    matrix = build_matrix(dense_formula, data, rows)
    scaled = np.ones(len(matrix.names), dtype=bool)
    if formula.blocks:
        for term in matrix.smooths:
            scaled[matrix.slices[term.label]] = not isinstance(term, RandomEffect)
    return matrix, grouped, *matrix.distinct(data, rows).standardise(matrix.centred, scaled)


def _described(components: Any, mixed_fit: Any) -> tuple[Any, dict[str, Any]]:
    """Return deviations and correlations of random effects; warn of those that are singular."""
    deviations, correlations, singular = _describe(components, mixed_fit)
    for message in singular:
        warnings.warn(f"singular: {message}", RuntimeWarning, stacklevel=4)
    return deviations, {"correlations": correlations, "singular": singular}


def _deviations(matrix: Any, grouped: Any, solution: Solution) -> dict[str, float]:
    """Return the standard deviations of random effects, which have one penalty each."""
    owners = [term.label for term in (*matrix.smooths, *grouped.terms) for _ in term.penalties]
    lambdas = solution.log_lambda[0].exp().numpy()
    return dict(zip(owners, (float(solution.scale) / lambdas) ** 0.5, strict=True))


def _score(
    moments: Moments, solution: Solution, penalties: Floats, n_free: int, method: Method
) -> float:
    """Return the criterion at the optimum, where the residual variance has its best value."""
    q, beta, group_beta = len(solution.beta[0]), solution.beta[0], solution.group_beta[0]
    penalty = solution.log_lambda[0].exp() @ torch.from_numpy(penalties)
    penalised = (penalty[:q] * beta.square()).sum() + (penalty[q:] * group_beta.square()).sum()
    best = (solution.rss + penalised) / (solution.n - (n_free if method == "REML" else 0))
    theta = torch.cat([solution.log_lambda, best.log()[:, None]], dim=1)
    all_penalties = torch.from_numpy(penalties)
    columns = penalised_columns(all_penalties)
    return float(criterion(moments, all_penalties, columns, theta, method).value)


def _statistics(model: _Fitted, y: Floats) -> dict[str, Any]:
    """Return edf, tables of coefficients and smooths, and the shares of variance and deviance.

    Estimates of linear terms are as R has them; the intercept is a combination of all. ``y`` is the
    response less the offset, from whose weighted mean the deviance is counted, as mgcv does.
    """
    solution = model.solution
    edf, n, rss = solution.edf[0].numpy(), len(y), float(solution.rss)
    scaled, names = model.linear_rows()
    estimate = scaled @ solution.beta[0].numpy()
    estimate[0] += model.mean
    covariance = scaled @ solution.inverse.dense[0].numpy() @ scaled.T * float(solution.scale)
    dof = n - edf.sum()
    if model.uncertainty is not None:
        dof = model.uncertainty.dof(scaled[:, model.uncertainty.columns])
    tables = coefficient_tables(names, estimate, covariance, dof)

    w = model.weights
    about_mean = w**0.5 * (model.response - np.average(model.response, weights=w**0.5))
    # unweighted residuals have the mean 0
    left = np.var(model.residuals(), ddof=1) if (w != 1).any() else rss / (n - 1)
    adjusted = left * (n - 1) / (n - float(edf.sum()))
    return tables | {
        "edf": float(edf.sum()),
        "smooths": smooth_table({label: edf[span].sum() for label, span in model.spans.items()}),
        "r_squared": 1 - float(adjusted / np.var(about_mean, ddof=1)),
        "deviance_explained": 1 - rss / float((w * (y - np.average(y, weights=w)) ** 2).sum()),
    }


def mixed_components(
    formula: Formula,
    matrix: ModelMatrix,
    grouped: GroupedEffects,
    moments: Moments,
    scale: Floats,
    start: Floats,
) -> dict[tuple[str, ...], mixed.Component]:
    """Return the random effects and penalised smooths of a mixed model, by their labels.

    ``moments`` are of one model, on the CPU; ``start`` holds the first log lambda of the smooths,
    then of the grouped effects.
    """
    xx, zz, n = moments.xx[0].numpy(), moments.zz[0].sum(dim=0).numpy(), int(moments.n)
    parts: dict[tuple[str, ...], mixed.Component] = {}
    for labels in formula.blocks:
        of_groups = labels[0] in grouped.slices
        slices = grouped.slices if of_groups else matrix.slices
        columns = np.stack([np.r_[slices[label]] for label in labels], axis=1)
        products = (zz if of_groups else xx)[columns[:, :, None], columns[:, None, :]].sum(axis=0)
        parts[labels] = mixed.Block(columns, of_groups, mixed.whitening(products, n))
    blocked = {label for labels in formula.blocks for label in labels}
    for term in (*matrix.smooths, *grouped.terms):
        first, start = np.split(start, [len(term.penalties)])
        if term.label in blocked:
            continue
        of_groups = term.label in grouped.slices
        span = (grouped.slices if of_groups else matrix.slices)[term.label]
        index = np.r_[span]
        penalties = np.ones((1, len(index))) if of_groups else term.penalties / scale[span] ** 2
        touched = penalties.sum(axis=0) > 0
        places, begin = index[touched][None], np.exp(-first / 2)
        parts[(term.label,)] = mixed.Diagonal(places, of_groups, penalties[:, touched], begin)
    return parts


def _describe(
    parts: dict[tuple[str, ...], mixed.Component], fit: mixed.Fit
) -> tuple[dict[str, float], dict[str, pd.DataFrame], tuple[str, ...]]:
    """Return standard deviations by label, correlations by group, and what does not vary."""
    deviations: dict[str, float] = {}
    correlations: dict[str, pd.DataFrame] = {}
    singular = []
    for labels, covariance, missing in zip(parts, fit.covariances, fit.vanished, strict=True):
        deviation = np.sqrt(np.diag(covariance))
        deviations |= dict(zip(labels, deviation.tolist(), strict=False))
        names = [label[1:].partition(" | ")[0] for label in labels]
        bar = f"({' + '.join(names)} | {labels[0].rpartition(' | ')[2]}"
        if len(labels) > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                correlation = covariance / np.outer(deviation, deviation)
            correlations[bar] = pd.DataFrame(correlation, index=names, columns=names)
        effects = ["intercept" if name == "1" else name for name in names]
        for weights in missing if labels[0].startswith("(") else ():
            what = "the intercept" if names == ["1"] else f"the effect of {names[0]}"
            if len(names) > 1:
                shares = zip(weights / weights[np.abs(weights).argmax()], effects, strict=True)
                terms = (f"{share:+.3g} * {name}" for share, name in shares if abs(share) > 1e-6)
                what = f"the combination {' '.join(terms)} of the effects"
            singular.append(f"in {bar} {what} does not vary")
    return deviations, correlations, tuple(singular)


def _to_cpu(values: Any) -> Any:
    """Move a solution or moments to the CPU."""
    moved = {n: _to_cpu(x) if isinstance(x, Inverse) else x.cpu() for n, x in vars(values).items()}
    return type(values)(**moved)
