"""The regression of chapter 3. Reference: statsmodels' formula."""

import pytest
import statsmodels.formula.api as smf

from analyses import lalor2020_training_size as training_size
from psychlm.frames import FrameError


def test_the_regression_is_that_of_statsmodels_formula(rng):
    rows = training_size.simulate(rng, n_items=60, n_each=3)
    ours = training_size.regression(rows, clustered=False)
    logit = smf.logit("right ~ difficulty * log_size", rows).fit(disp=0)
    order = ["Intercept", "difficulty", "log_size", "difficulty:log_size"]
    assert ours["estimate"].to_numpy() == pytest.approx(logit.params[order].to_numpy(), abs=1e-6)
    assert ours["se"].to_numpy() == pytest.approx(logit.bse[order].to_numpy(), rel=1e-4)


@pytest.mark.parametrize("column", ["log_size", "difficulty"])
def test_networks_of_one_size_and_items_of_one_difficulty_are_refused(rng, column):
    rows = training_size.simulate(rng, n_items=20, n_each=2).assign(**{column: 0.0})
    with pytest.raises(FrameError, match=f"{column} has one value in all 120 answers"):
        training_size.regression(rows)
