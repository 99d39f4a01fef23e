"""The linear logistic test model.

References: a direct optimisation of the likelihood by scipy; R's lme4, where installed; the
Rasch model, to which a saturated design leads; statsmodels' OLS, to which the two-step regression
reduces without errors in the difficulties; known coefficients."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import optimize
from scipy.special import log_expit, logsumexp
from statsmodels.tools.numdiff import approx_hess3

from analyses.lltm import explained_variance, lltm, random_effects
from psychlm import simulate
from psychlm.frames import FrameError

ETA = {"hops": 0.5, "distance": 0.4, "kind": -0.3}


def explained_items(rng, *, n_items=40, n_persons=200, residual=0.0, sd=1.2):
    """Draw responses to items whose difficulties are -1 + design @ ETA + N(0, residual^2)."""
    design = pd.DataFrame(
        {
            "hops": rng.integers(1, 5, n_items),
            "distance": rng.normal(size=n_items),
            "kind": rng.integers(0, 2, n_items).astype(bool),
        },
        index=[f"item-{i}" for i in range(n_items)],
    )
    b = -1 + design.astype(float) @ pd.Series(ETA) + rng.normal(0, residual, n_items)
    items = pd.DataFrame({"a": 1.0, "b": b, "c": 0.0})
    return simulate.responses(rng.normal(0, sd, n_persons), items, rng), design


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_fit_equals_a_direct_optimisation(rng, missing):
    responses, design = explained_items(rng, n_items=8, n_persons=150)
    responses = responses.mask(rng.random(responses.shape) < missing).dropna(how="all")
    x, q = responses.to_numpy(), np.column_stack([np.ones(8), design.astype(float)])
    right, wrong = (x == 1).astype(float), (x == 0).astype(float)
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)

    def negative(v: np.ndarray) -> float:
        z = np.exp(v[-1]) * nodes[:, None] - q @ v[:-1]
        at_nodes = right @ log_expit(z).T + wrong @ log_expit(-z).T
        return -logsumexp(at_nodes + np.log(weights / weights.sum()), axis=1).sum()

    best = optimize.minimize(negative, np.zeros(5), method="BFGS", options={"gtol": 1e-6})
    fit = lltm(responses, design, n_boot=0)
    assert fit.converged
    assert fit.p > 0.001  # the features do say it all
    assert fit.loglik == pytest.approx(-best.fun, abs=1e-3)
    assert fit.coefficients["eta"].tolist() == pytest.approx(best.x[:-1], abs=2e-3)
    assert np.log(fit.ability_sd) == pytest.approx(best.x[-1], abs=2e-3)
    hessian = approx_hess3(best.x, negative)
    se = np.sqrt(np.diag(np.linalg.inv(hessian)))[:-1]
    assert fit.coefficients["se"].to_numpy() == pytest.approx(se, rel=0.01)


def test_what_features_leave_over_is_estimated_without_the_errors_of_difficulties(rng):
    gaps, raw_gaps = [], []
    for _ in range(12):
        responses, design = explained_items(rng, n_items=100, n_persons=40, residual=0.5)
        fit = lltm(responses, design, n_boot=0)
        true = 1 - 0.25 / (0.25 + (design.astype(float) @ pd.Series(ETA)).var())
        gaps.append(fit.r2_difficulty.estimate - true)
        raw = sm.OLS(fit.items["b"], sm.add_constant(design.astype(float))).fit()
        raw_gaps.append(raw.rsquared_adj - true)
    assert abs(np.mean(gaps)) < 0.06
    assert np.mean(raw_gaps) < -0.1
    assert fit.residual_sd == pytest.approx(0.5, abs=0.15)
    assert fit.p < 1e-6
    assert (fit.two_step["se"] > 1.3 * fit.coefficients["se"]).loc[list(ETA)].all()


def test_without_errors_the_regression_is_ordinary_least_squares(rng):
    x = sm.add_constant(rng.normal(size=(30, 3)))
    y = x @ [0.5, 1, -1, 0] + rng.normal(0, 0.7, 30)
    theirs = sm.OLS(y, x).fit()
    beta, se, residual = random_effects(y, np.zeros(30), x)
    assert beta == pytest.approx(theirs.params)
    assert se == pytest.approx(theirs.bse, rel=1e-4)
    assert residual == pytest.approx(theirs.mse_resid, rel=1e-4)
    assert explained_variance(y, np.zeros(30), x) == pytest.approx(theirs.rsquared_adj, rel=1e-4)


def test_intervals_hold_the_estimate_and_the_truth_and_follow_the_seed(rng):
    responses, design = explained_items(rng, n_items=50, n_persons=100, residual=0.4)
    one, two = (lltm(responses, design, n_boot=40, rng=4) for _ in range(2))
    true = 1 - 0.16 / (0.16 + (design.astype(float) @ pd.Series(ETA)).var())
    found = one.r2_difficulty
    assert found.low < found.estimate < found.high
    assert 0.1 < found.high - found.low < 0.7
    assert one.r2_difficulty.low < true < one.r2_difficulty.high
    assert one.r2_difficulty == two.r2_difficulty


def test_a_design_that_does_not_fit_the_items_is_refused_by_name(rng):
    responses, design = explained_items(rng, n_items=10, n_persons=50)
    for wrong, message in (
        (design.iloc[1:], "'item-0'.*have no row"),
        (design.assign(double=2 * design["hops"] - 1), "'double'.*are linear combinations"),
        (design.assign(name="x"), "'name'.*get_dummies"),
        (design.assign(distance=np.nan), "'distance'.*missing"),
    ):
        with pytest.raises(FrameError, match=message):
            lltm(responses, wrong)
