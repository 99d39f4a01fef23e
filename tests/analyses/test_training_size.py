"""The regression of chapter 3: statsmodels' formula, and coefficients that are known."""

import numpy as np
import pandas as pd
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


def test_clustered_errors_are_larger_where_networks_differ_and_estimates_stay(rng):
    rows = training_size.simulate(rng, n_items=200)
    plain, clustered = (training_size.regression(rows, clustered=c) for c in (False, True))
    assert clustered["estimate"].equals(plain["estimate"])
    assert clustered.loc["interaction", "se"] > plain.loc["interaction", "se"]


def test_a_large_experiment_finds_the_interaction_that_was_drawn(rng):
    table = training_size.regression(training_size.simulate(rng, 800, 30), clustered=False)
    assert -0.22 < table.loc["interaction", "estimate"] < -0.12  # shrunk by averaging over items


def test_difficulty_is_counted_within_gold_labels():
    items = pd.DataFrame({"answer": [0, 0, 0, 1, 1, 1], "difficulty": [1.0, 2, 3, 11, 12, 13]})
    scaled = training_size.scaled(items)
    assert scaled.groupby("answer")["difficulty"].mean().tolist() == [0, 0]
    assert scaled["difficulty"].std() == pytest.approx(1)
    assert np.corrcoef(scaled["raw"], items["difficulty"])[0, 1] == pytest.approx(1)
