"""Power of reading studies. References: OLS and power of t tests in statsmodels, the level."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.power import TTestPower

from psychlm.frames import FrameError
from psychlm.reading_times.power import heldout_loglik, power_curve


@pytest.fixture(scope="module")
def words() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(600, 3)), columns=["a", "b", "length"])
    frame["text_id"] = np.repeat([f"t{i:02d}" for i in range(60)], 10)
    return frame.assign(ms=300 + 4 * frame["a"] + 6 * frame["length"])


def test_heldout_logliks_equal_those_of_statsmodels_fits(words, rng) -> None:
    x = np.column_stack([np.ones(len(words)), words[["a", "length"]]])
    y = words["ms"].to_numpy() + rng.normal(0, 20, len(words))
    fold = rng.permutation(60) % 5
    texts, times = x.reshape(60, 10, 3), y.reshape(60, 10)
    moments = np.einsum("twi,twj->tij", texts, texts), np.einsum("twi,tw->ti", texts, times)
    found = heldout_loglik(*moments, (times**2).sum(axis=1), np.full(60, 10), fold)
    of_word = np.repeat(fold, 10)
    for left_out in range(5):
        test = of_word == left_out
        fit = OLS(y[~test], x[~test]).fit()
        density = stats.norm.logpdf(y[test], fit.predict(x[test]), (fit.ssr / fit.nobs) ** 0.5)
        np.testing.assert_allclose(found[fold == left_out], density.reshape(-1, 10).sum(1))


def test_power_is_that_of_a_t_test_of_the_simulated_gains(words) -> None:
    found = power_curve(
        words, "ms", ["a"], ["b"], ["length"], readers=[12, 30], texts=[40], sd_residual=60, rng=1
    )
    # over texts, the gain has a mean and a standard deviation; the t test's power follows where
    # the model is clearly there (below, fits of overlapping texts make the test conservative)
    effect = found["gain"] / found["gain_sd"] / 40**0.5
    expected = [TTestPower().power(size, 40, 0.05) for size in effect]
    np.testing.assert_allclose(found["power"], expected, atol=0.07)
    assert found["power"].is_monotonic_increasing and found["gain"].is_monotonic_increasing


def test_rates_that_vary_cost_power_and_a_predictor_counts_once(words) -> None:
    size = {"readers": [10], "texts": [60], "sd_residual": 60, "rng": 2, "n_simulations": 200}
    curve = partial(power_curve, words, "ms", second=["b"], baseline=["length"], **size)
    sure, twice = curve(["a"]), curve(["a", "length"])
    assert curve(["a"], sd_rate=12)["power"].item() < sure["power"].item()
    assert sure["power"].item() == twice["power"].item()
    assert sure["gain"].item() == pytest.approx(twice["gain"].item())
    with pytest.raises(FrameError, match=r"lack the columns \['c'\]"):
        curve(["c"])
    with pytest.raises(ValueError, match="10 folds need 20 texts"):
        curve(["a"], texts=[12])


def test_a_constant_predictor_is_the_intercept_whatever_its_rounding(words):
    sizes = {"readers": [8], "texts": [60], "sd_residual": 50, "n_simulations": 20}
    curves = [
        power_curve(words.assign(one=one), "ms", ["a"], ["b"], ["one", "length"], **sizes)
        for one in (1.0, 0.3)  # 600 times 0.3 have a deviation of 1e-16
    ]
    pd.testing.assert_frame_equal(*curves)


def test_models_that_are_noise_are_told_apart_less_often_than_the_level(rng):
    words = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    words = words.assign(text_id=np.repeat(range(40), 10), one=1.0, ms=300.0)
    options = {"readers": [16], "texts": [40], "sd_residual": 60, "n_simulations": 300}
    row = power_curve(words, "ms", ["a"], ["b"], ["one"], **options).iloc[0]
    assert row["power"] < 0.025
    with_rates = power_curve(words, "ms", ["a"], ["b"], ["one"], sd_rate=20, **options).iloc[0]
    assert with_rates["power"] > 0.2  # the readers of a study have an effect
