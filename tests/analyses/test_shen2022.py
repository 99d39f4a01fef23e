"""Prior bias and choice paralysis: exact where possible, and right about responders of known bias.

References: scipy binomtest and chisquare, scikit-learn calibration_curve;
a loop over all permutations; and the parameters with which responders were simulated."""

from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from sklearn.calibration import calibration_curve

from analyses import shen2022
from psychlm import lm, simulate
from psychlm.probes import confusion

FAST = {"n_boot": 4}  # where the interval is not looked at
N_SEEDS = 80


def bank_of(n_items, n_choices=3, seed=0):
    """Build items whose choices differ in length and in the frequency of their words."""
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i}" for i in range(300)])
    usual = rng.dirichlet(np.full(300, 0.3))
    texts = [
        " ".join(rng.choice(words, rng.integers(2, 12), p=usual)) + f" {i}"
        for i in range(n_items * n_choices)
    ]
    frame = pd.DataFrame({"item_id": [f"q{i}" for i in range(n_items)]})
    frame["prompt"] = [f"prompt {i}" for i in range(n_items)]
    frame["choices"] = np.reshape(texts, (n_items, n_choices)).tolist()
    return frame.assign(answer=rng.integers(n_choices, size=n_items))


def first(scores):
    """Return the first choice as the answer of every item."""
    return pd.Series(0, index=scores.index)


def presented(items, responder, n=3, **options):
    """Present items with wrong questions, shuffled, and let a responder answer each time; return
    the perturbed items, and the scores in the order of the source."""
    probes = [
        confusion.perturb(items, "wrong-question", seed=seed, shuffle=True) for seed in range(n)
    ]
    return [(p, confusion.in_source_order(responder(p, **options), p)) for p in probes]


def at_nominal(p_values, level=0.05):
    """Whether as many p-values are below the level as chance has in 998 of 1,000 test runs."""
    alarms = (np.asarray(p_values) <= level).sum()
    least, most = scipy_stats.binom.ppf([0.0005, 0.999], len(p_values), level)
    return least <= alarms <= most


def test_the_chance_test_is_the_binomial_test_where_items_have_equal_numbers_of_choices(rng):
    for n_choices, n in ((2, 40), (4, 75)):
        scores = pd.DataFrame(rng.normal(size=(n, n_choices)))
        scores.iloc[:, 0] += 0.4
        found = shen2022.against_chance(scores, first(scores))
        k = int((scores.to_numpy().argmax(axis=1) == 0).sum())
        assert found.p == pytest.approx(scipy_stats.binomtest(k, n, 1 / n_choices).pvalue)
        assert (found.rate, found.chance, found.n_items) == (k / n, 1 / n_choices, n)


def test_with_unequal_numbers_of_choices_the_exact_test_is_that_of_all_outcomes(rng):
    sizes = np.array([2, 2, 3, 4, 5, 5, 5])
    scores = pd.DataFrame(rng.normal(size=(7, 5))).where(np.arange(5) < sizes[:, None])
    n_picked = (np.nanargmax(scores.to_numpy(), axis=1) == 1).sum()
    pmf = np.zeros(8)
    for outcome in product((0, 1), repeat=7):  # every pattern of picks with its probability
        pmf[sum(outcome)] += np.prod(np.where(outcome, 1 / sizes, 1 - 1 / sizes))
    found = shen2022.against_chance(scores, first(scores) + 1)
    assert found.p == pytest.approx(pmf[pmf <= pmf[n_picked] * (1 + 1e-9)].sum())
    assert found.chance == pytest.approx(np.mean(1 / sizes))


def test_the_permutation_p_value_is_that_of_all_permutations(rng):
    first, second = (pd.DataFrame(rng.normal(size=(3, 3))) for _ in range(2))
    found = confusion.prior_bias(first, second, rng=rng, n_permutations=4000, **FAST)
    c, d = (lm.confidences(frame).to_numpy() - 1 / 3 for frame in (first, second))
    orders = product(permutations(range(3)), repeat=3)
    drawn = np.array([(c * np.take_along_axis(d, np.array(way), 1)).sum() for way in orders])
    exact = (drawn >= (c * d).sum() - 1e-12).mean()
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4000))
    lasting = found.instances["lasting_variance"].to_numpy()
    assert lasting == pytest.approx((c * d).sum(axis=1) / 3)


def test_the_random_responder_has_no_prior_bias_at_the_nominal_level_over_many_seeds():
    items = bank_of(40)
    p = []
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        scores = [simulate.random_responder(items, rng=rng, spread=2) for _ in range(2)]
        p.append(confusion.prior_bias(*scores, rng=rng, n_permutations=99, **FAST).p)
    assert at_nominal(p) and scipy_stats.kstest(p, "uniform").pvalue > 0.001


def test_the_length_biased_responder_is_found_out(rng):
    items = bank_of(150)
    answered = presented(items, simulate.length_biased_responder, rng=rng, nats_per_sd=1.0)
    scores = [each for _, each in answered]
    found = confusion.prior_bias(*scores, rng=rng, n_permutations=199, n_boot=200)
    assert found.p == 1 / 200 and found.lasting_share.low > 0.1


def test_lasting_share_is_one_for_a_responder_that_does_not_read_the_question(rng):
    scores = pd.DataFrame(rng.normal(size=(30, 3)))
    found = confusion.prior_bias(scores, scores, scores, rng=rng, n_permutations=99, **FAST)
    assert found.lasting_share.estimate == pytest.approx(1) and found.p == 0.01
    even = confusion.prior_bias(scores * 0, scores * 0, rng=rng, n_permutations=9, **FAST)
    assert even.p == 1 and even.lasting_share is None and even.spread.estimate == 0


def test_the_mixed_model_recovers_planted_place_length_and_appeal(rng):
    items = bank_of(250)
    appeal = dict(zip(items["choices"].explode(), rng.normal(0, 0.7, 750), strict=True))

    def responder(probe):
        length = np.array([[len(text) for text in row] for row in probe["choices"]])
        own = np.array([[appeal[text] for text in row] for row in probe["choices"]])
        noise = rng.normal(0, 1.2, size=(250, 3)) + rng.normal(size=(250, 1))
        values = -0.4 * np.arange(3) + 0.05 * length + own + noise
        return pd.DataFrame(values, index=probe["item_id"])

    found = shen2022.bias_decomposition(presented(items, responder, n=4))
    table = found.coefficients.div(found.coefficients["sd"], axis=0)
    truth = pd.Series({"place": -0.4, "length_chars": 0.05, "log_frequency": 0.0})
    assert found.converged and ((table["nats_per_sd"] - truth).abs() < 3.5 * table["se"]).all()
    assert found.choice_sd == pytest.approx(0.7, abs=0.12)
    assert found.noise_sd == pytest.approx(1.2, abs=0.06)
    assert found.shares.sum() == pytest.approx(1)
    assert found.shares["length_chars"] > found.shares["log_frequency"]


def more(items, responder, n_extra, **options):
    probe = confusion.perturb(items, "more-choices", n_extra=n_extra, seed=1)
    return confusion.in_source_order(responder(probe, **options), probe)


def test_a_model_that_scores_each_choice_by_itself_has_arithmetic_only(rng):
    before = pd.DataFrame(rng.normal(size=(50, 3)))
    added = pd.DataFrame(rng.normal(size=(50, 2)) + 7, columns=[3, 4])
    after = pd.concat([before + 7, added], axis=1)
    found = confusion.choice_paralysis(before, {2: after}, first(before), rng=rng, n_boot=50).loc[2]
    assert found["own"] == pytest.approx(0) and found["p_own"] == 1
    assert found["drop"] == pytest.approx(found["renormalisation"]) and found["p"] < 1e-6
    c, d = lm.confidences(before)[0], lm.confidences(after)[0]
    assert found["effect"] == pytest.approx((c - d).mean() / (c - d).std())
    assert found["p"] == pytest.approx(scipy_stats.wilcoxon(c, d).pvalue)
    # Added choices that draw as much as the others: the drop of equal draw.
    before = pd.DataFrame([[2.0, 0.0, 0.0]] * 3)
    after = {2: pd.DataFrame([[2.0, 0.0, 0.0, 0.0, 0.0]] * 3)}
    found = confusion.choice_paralysis(before, after, first(before), rng=rng, **FAST)
    assert found["equal_draw"][2] == pytest.approx(found["drop"][2])


def test_a_planted_paralysis_is_found_and_the_random_responder_shows_none_at_the_nominal_level(rng):
    items = bank_of(60)
    p = []
    for seed in range(N_SEEDS // 2):
        own = np.random.default_rng(seed)
        before = simulate.random_responder(items, rng=own)
        after = {2: more(items, simulate.random_responder, 2, rng=own)}
        p.append(confusion.choice_paralysis(before, after, items, rng=own, **FAST)["p_own"][2])
    assert at_nominal(p)
    before, after = (simulate.random_responder(items, rng=rng, spread=0.5) for _ in range(2))
    before[0] += 2.0
    after[0] += 1.0  # half of the lead is lost
    after[3] = -1.0
    found = confusion.choice_paralysis(before, {1: after}, first(before), rng=rng, n_boot=200).loc[
        1
    ]
    assert found["own_low"] > 0 and found["p_own"] < 1e-4 and found["own_effect"] > 0.5


def test_expected_calibration_error_is_that_of_scikit_learns_curve(rng):
    scores, answer = pd.DataFrame(2 * rng.normal(size=(500, 4))), pd.Series(rng.integers(0, 4, 500))
    found = confusion.calibration(scores, answer, rng=rng, n_boot=200)
    sure = lm.confidences(scores).max(axis=1).to_numpy()
    right = (scores.to_numpy().argmax(axis=1) == answer).astype(int)
    accuracy, stated = calibration_curve(right, sure, n_bins=10)
    n = np.histogram(sure, np.linspace(0, 1, 11))[0]
    assert found.estimate == pytest.approx((n[n > 0] / 500 * np.abs(accuracy - stated)).sum())
    assert found.low < found.estimate < found.high
