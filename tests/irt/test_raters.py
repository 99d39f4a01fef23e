"""Raters as a facet. Reference: lme4 1.1's ``glmer(score ~ 0 + item + rater + (1 | person),
binomial, nAGQ = 25)`` with ``contr.sum`` for raters, whose printed numbers stand below; its errors
take in that of the standard deviation of ability."""

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from psychlm import irt
from psychlm.frames import FrameError

SEVERITY = [0.357959076, -0.340351495, -0.017607581]
DIFFICULTY = [-0.615945504, -0.698754663, 0.753608324, -0.086434615]
ERRORS = {"raters": [0.14593736, 0.11845559], "items": [0.216542, 0.217779, 0.217608, 0.212178]}


@pytest.fixture(scope="module")
def judgements() -> pd.DataFrame:
    """Return judgements by three raters; the first one has judged every other person only."""
    rng = np.random.default_rng(2)
    cells = pd.MultiIndex.from_product([range(80), range(4), range(3)])
    rows = cells.to_frame(index=False, name=["person", "item", "rater"])
    logit = 1.2 * rng.normal(size=80)[rows["person"]]
    logit -= rng.normal(size=4)[rows["item"]] + np.array([0.6, -0.5, -0.1])[rows["rater"]]
    rows["score"] = (rng.logistic(size=len(rows)) < logit).astype(float)
    return rows[(rows["person"] % 2 == 0) | (rows["rater"] > 0)]


def test_severities_and_difficulties_equal_glmer(judgements) -> None:
    fitted = irt.fit_raters(judgements.sample(frac=1, random_state=1))
    raters, items = fitted.raters.sort_index(), fitted.items.sort_index()
    np.testing.assert_allclose(raters["severity"], SEVERITY, atol=1e-3)
    np.testing.assert_allclose(items["b"], DIFFICULTY, atol=1e-3)
    np.testing.assert_allclose(raters["se"][:2], ERRORS["raters"], rtol=0.01)
    np.testing.assert_allclose(items["se"], ERRORS["items"], rtol=0.01)
    assert fitted.ability_sd == pytest.approx(1.179416, abs=1e-3)
    assert fitted.loglik == pytest.approx(-487.2142775, abs=0.01)
    assert fitted.converged and raters["n"].tolist() == [160, 320, 320]


def test_judgements_that_tell_no_severities_are_refused_with_the_reason(judgements) -> None:
    apart = judgements[(judgements["rater"] == 0) == (judgements["item"] < 2)]
    apart = apart[apart["rater"] < 2]
    for rows, says in (
        (judgements.drop(columns="rater"), r"need the columns \['rater'\]"),
        (judgements.assign(score=2), r"items \[0, 1, 2, 3\] have judgements that are all alike"),
        (judgements.assign(score=judgements["rater"] > 0), r"raters \[0, 1, 2\] .*no finite"),
        (apart, "2 raters and 4 items fall into sets without a judgement in common"),
        (judgements[judgements["rater"] == 0], "1 raters .* two raters or more"),
    ):
        with pytest.raises(FrameError, match=says):
            irt.fit_raters(rows)


@pytest.fixture(scope="module")
def ratings() -> pd.DataFrame:
    """Return ratings 0 to 3 of answers to 4 items; each of four raters has rated half of them."""
    rng = np.random.default_rng(8)
    cells = pd.MultiIndex.from_product([range(150), range(4), range(4)])
    rows = cells.to_frame(index=False, name=["person", "item", "rater"])
    b = np.array([-0.5, 0.0, 0.2, 0.6])[rows["item"]]
    location = b + np.array(SEVERITIES)[rows["rater"]]
    z = 1.1 * rng.normal(size=150)[rows["person"]] - location
    steps = z[:, None] - np.array([-1.0, 0.1, 0.9])
    weight = np.exp(np.c_[np.zeros(len(rows)), steps.cumsum(axis=1)])
    at_most = (weight / weight.sum(axis=1, keepdims=True)).cumsum(axis=1)
    rows["score"] = (rng.random((len(rows), 1)) > at_most).sum(axis=1).astype(float)
    return rows[(rows["person"] + rows["rater"]) % 2 == 0]


SEVERITIES = [0.7, -0.4, 0.1, -0.4]


def test_severities_of_ratings_maximise_the_likelihood_and_recover_the_raters(ratings):
    """The reference is the likelihood written out here, and the curvature of it."""
    fit = irt.fit_raters(ratings)
    assert fit.converged
    severity, se = fit.raters.sort_index()["severity"], fit.raters.sort_index()["se"]
    assert severity.sum() == pytest.approx(0, abs=1e-9)
    assert (np.abs(severity - SEVERITIES) < 3 * se).all()
    nodes = np.linspace(-6, 6, 61)
    weights = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()
    item, rater, score = (ratings[name].to_numpy(int) for name in ("item", "rater", "score"))
    _, person = np.unique(ratings["person"], return_inverse=True)

    def negative(point):
        sd, free = point[0], point[1:4]
        severities = np.r_[free, -free.sum()]
        steps = point[4:].reshape(4, 3)
        z = sd * nodes - steps[item][:, :, None] - severities[rater][:, None, None]
        total = np.concatenate([0 * z[:, :1], z.cumsum(1)], 1)
        log_p = total[np.arange(len(score)), score] - np.log(np.exp(total).sum(1))
        by_person = np.zeros((person.max() + 1, len(nodes)))
        np.add.at(by_person, person, log_p)
        return -np.log(np.exp(by_person) @ weights).sum()

    steps = fit.items.sort_index()[["b1", "b2", "b3"]].to_numpy()
    np.testing.assert_allclose(fit.items.sort_index()["b"], steps.mean(axis=1))
    point = np.r_[fit.ability_sd, severity[:3], steps.ravel()]
    assert -negative(point) == pytest.approx(fit.loglik, abs=1e-3)
    assert np.abs(optimize.approx_fprime(point, negative, 1e-5)).max() < 0.05
    hessian = optimize.approx_fprime(
        point, lambda x: optimize.approx_fprime(x, negative, 1e-5), 1e-4
    )
    errors = np.sqrt(np.diag(np.linalg.inv((hessian + hessian.T) / 2)))
    np.testing.assert_allclose(se[:3], errors[1:4], rtol=0.02)
    assert fit.persons["theta"].notna().all() and len(fit.persons) == 150
