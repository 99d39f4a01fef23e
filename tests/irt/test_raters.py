"""Raters as a facet. Reference: lme4 1.1's ``glmer(score ~ 0 + item + rater + (1 | person),
binomial, nAGQ = 25)`` with ``contr.sum`` for raters, whose printed numbers stand below; its errors
take in that of the standard deviation of ability."""

import numpy as np
import pandas as pd
import pytest

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
        (judgements.assign(score=2), "right or wrong; a facet of raters for ratings.*gpcm"),
        (judgements.assign(score=judgements["rater"] > 0), r"raters \[0, 1, 2\] .*no finite"),
        (apart, "2 raters and 4 items fall into sets without a judgement in common"),
        (judgements[judgements["rater"] == 0], "1 raters .* two raters or more"),
    ):
        with pytest.raises(FrameError, match=says):
            irt.fit_raters(rows)
