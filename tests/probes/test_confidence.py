"""Measures on confidences: exact where they can be, clean for a responder without bias, alert to planted biases.

References: scipy's binomtest and chisquare, scikit-learn's calibration_curve, statsmodels' mcnemar; a loop over all
permutations; and the parameters with which responders were simulated (Shen & Kejriwal 2022 name the measures).
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from sklearn.calibration import calibration_curve
from statsmodels.stats.contingency_tables import mcnemar

from psychlm import confidence
from psychlm.confidence.preference import shuffle_within
from psychlm.frames import FrameError
from psychlm.probes import confusion

FAST = {"n_boot": 4}  # where the interval is not looked at
N_SEEDS = 200


def bank_of(n_items, n_choices=3, seed=0):
    """Build items whose choices differ in length and in the frequency of their words."""
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i}" for i in range(300)])
    usual = rng.dirichlet(np.full(300, 0.3))
    texts = [
        " ".join(rng.choice(words, rng.integers(2, 12), p=usual)) + f" {i}"
        for i in range(n_items * n_choices)
    ]
    return pd.DataFrame(
        {
            "item_id": [f"q{i}" for i in range(n_items)],
            "prompt": [f"prompt {i}" for i in range(n_items)],
            "choices": [texts[at : at + n_choices] for at in range(0, len(texts), n_choices)],
            "answer": rng.integers(n_choices, size=n_items),
        }
    )


def presented(items, responder, n=3, **options):
    """Present the items with wrong questions, shuffled, and let a responder answer each time."""
    probes = [confusion.wrong_question(items, seed=seed, shuffle=True) for seed in range(n)]
    return [(probe, responder(probe, **options)) for probe in probes]


def aligned(answered):
    return [confusion.in_source_order(scores, probe) for probe, scores in answered]


def nominal(p_values, level=0.05):
    """Whether no more p-values are below the level than chance has in 1 of 1,000 test runs."""
    alarms = (np.asarray(p_values) <= level).sum()
    return alarms <= scipy_stats.binom.ppf(0.999, len(p_values), level)


def at_nominal(p_values, level=0.05):
    alarms = (np.asarray(p_values) <= level).sum()
    return scipy_stats.binom.ppf(0.0005, len(p_values), level) <= alarms and nominal(
        p_values, level
    )


# ---- scores


def test_confidences_are_the_softmax_over_the_choices_that_are_there(rng):
    scores = pd.DataFrame([[-800.0, -801.0, np.nan], [1.0, 2.0, 3.0]], index=["a", "b"])
    sure = confidence.confidences(scores)
    assert sure.loc["a", :1].tolist() == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert np.isnan(sure.loc["a", 2]) and sure.sum(axis=1).tolist() == pytest.approx([1, 1])
    assert confidence.confidence_in(scores, pd.Series({"b": 2, "a": 0})).tolist() == pytest.approx(
        [1 / (1 + np.exp(-1)), np.exp(3) / np.exp([1, 2, 3]).sum()]
    )


def test_choices_that_tie_share_the_grade():
    scores = pd.DataFrame([[0.0, 0.0, -1.0], [0.0, 1.0, np.nan], [2.0, 1.0, 0.0]])
    assert confidence.grades(scores, [1, 1, 1]).tolist() == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("scores", "answer", "message"),
    [
        (pd.DataFrame([[0.0, np.nan, 1.0]]), [0], "a gap before their last score"),
        (pd.DataFrame([[0.0, np.nan]]), [0], "fewer than two scores"),
        (pd.DataFrame([[0.0, np.inf]]), [0], "an infinite score"),
        (pd.DataFrame([[-np.inf, -np.inf]]), [0], "no choice with a probability above zero"),
        (
            pd.DataFrame([[0.0, 1.0]] * 2, index=["a", "a"]),
            [0, 0],
            r"\['a'\] are scored more than once",
        ),
        (pd.DataFrame(), [], "one item at least"),
        (
            pd.DataFrame([[0.0, 1.0, np.nan]], index=["a"]),
            [2],
            r"\['a'\] name an answer that is not among",
        ),
        (pd.DataFrame([[0.0, 1.0]]), [-1], "name an answer that is not among"),
        (pd.DataFrame([[0.0, 1.0]]), [0.5], "name an answer that is not among"),
        (
            pd.DataFrame([[0.0, 1.0]], index=["a"]),
            pd.Series({"b": 0}),
            r"\['a'\] have scores but no answer",
        ),
        (pd.DataFrame([[0.0, 1.0]]), [0, 1], "give one an item"),
    ],
)
def test_malformed_scores_and_answers_are_refused_with_the_reason(scores, answer, message):
    with pytest.raises(FrameError, match=message):
        confidence.grades(scores, answer)


# ---- chance


def test_the_chance_test_is_the_binomial_test_where_items_have_equal_numbers_of_choices(rng):
    for n_choices, n in ((2, 40), (4, 75)):
        scores = pd.DataFrame(rng.normal(size=(n, n_choices)))
        scores.iloc[:, 0] += 0.4
        found = confidence.against_chance(scores, np.zeros(n))
        k = int((scores.to_numpy().argmax(axis=1) == 0).sum())
        assert found.p == pytest.approx(scipy_stats.binomtest(k, n, 1 / n_choices).pvalue)
        expected = scipy_stats.chisquare([k, n - k], [n / n_choices, n - n / n_choices])
        assert (found.chi2, found.p_chi2) == pytest.approx((expected.statistic, expected.pvalue))
        assert (found.rate, found.chance, found.n_items) == (k / n, 1 / n_choices, n)


def test_with_unequal_numbers_of_choices_the_exact_test_is_that_of_all_outcomes(rng):
    sizes = [2, 2, 3, 4, 5, 5, 5]
    values = rng.normal(size=(7, 5))
    scores = pd.DataFrame(
        [[*row[:n], *[np.nan] * (5 - n)] for row, n in zip(values, sizes, strict=True)]
    )
    picked = np.nanargmax(scores.to_numpy(), axis=1) == 1
    pmf = np.zeros(8)
    for outcome in product((0, 1), repeat=7):  # every pattern of picks with its probability
        pmf[sum(outcome)] += np.prod(
            [1 / n if hit else 1 - 1 / n for hit, n in zip(outcome, sizes, strict=True)]
        )
    found = confidence.against_chance(scores, np.ones(7))
    assert found.p == pytest.approx(pmf[pmf <= pmf[picked.sum()] * (1 + 1e-9)].sum())
    assert found.df == 4 and found.chance == pytest.approx(np.mean([1 / n for n in sizes]))


def test_ties_are_left_out_of_the_chance_test_and_counted():
    scores = pd.DataFrame([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = confidence.against_chance(scores, [0, 0, 0])
    assert (found.n_items, found.n_tied, found.rate) == (2, 1, 1.0)
    nothing = confidence.against_chance(scores.iloc[:1], [0])
    assert nothing.n_tied == 1 and np.isnan(nothing.p)


def test_picks_by_place_are_a_chi_square_of_places(rng):
    scores = pd.DataFrame(rng.normal(size=(400, 3)))
    scores[0] += 0.5
    table, chi2, p = confidence.picks_by_place(scores)
    expected = scipy_stats.chisquare(np.bincount(scores.to_numpy().argmax(axis=1)))
    assert (chi2, p) == pytest.approx((expected.statistic, expected.pvalue)) and p < 0.01
    assert table["picked"].sum() == pytest.approx(table["expected"].sum()) == 400


# ---- prior bias


def test_spread_is_the_standard_deviation_of_the_confidences(rng):
    scores = pd.DataFrame(rng.normal(size=(6, 4)))
    scores.iloc[:3, 3] = np.nan
    found = confidence.prior_bias(scores, rng=rng, **FAST)
    sure = [row.dropna().to_numpy() for _, row in confidence.confidences(scores).iterrows()]
    assert found.instances["spread"].tolist() == pytest.approx([row.std() for row in sure])
    assert found.spread.estimate == pytest.approx(np.mean([row.std() for row in sure]))
    certain = confidence.prior_bias(pd.DataFrame([[0.0, -500.0, -500.0]] * 2), rng=rng, **FAST)
    assert certain.relative_spread.estimate == pytest.approx(1)
    assert np.isnan(found.p) and found.lasting_share is None and found.n_presentations == 1


def test_the_permutation_p_value_is_that_of_all_permutations(rng):
    first, second = (pd.DataFrame(rng.normal(size=(3, 3))) for _ in range(2))
    found = confidence.prior_bias(first, second, rng=rng, n_permutations=4000, **FAST)
    c, d = (confidence.confidences(frame).to_numpy() - 1 / 3 for frame in (first, second))
    ways = [
        np.array([d[0][list(a)], d[1][list(b)], d[2][list(e)]])
        for a in permutations(range(3))
        for b in permutations(range(3))
        for e in permutations(range(3))
    ]
    drawn = np.array([(c * way).sum() for way in ways])
    exact = (drawn >= (c * d).sum() - 1e-12).mean()
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4000))
    assert found.instances["lasting_variance"].tolist() == pytest.approx(
        list((c * d).sum(axis=1) / 3)
    )


def test_the_random_responder_has_no_prior_bias_at_the_nominal_level_over_many_seeds():
    items = bank_of(40)
    p = []
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        scores = [confidence.random_responder(items, rng=rng, spread=2) for _ in range(2)]
        p.append(confidence.prior_bias(*scores, rng=rng, n_permutations=99, **FAST).p)
    assert at_nominal(p) and scipy_stats.kstest(p, "uniform").pvalue > 0.001


def test_the_random_responder_picks_and_associates_at_the_nominal_level_over_many_seeds():
    items = pd.concat(
        [bank_of(60, 2), bank_of(60, 4, seed=1).assign(item_id=[f"r{i}" for i in range(60)])]
    )
    lengths = (
        items.set_index("item_id")["choices"]
        .map(lambda row: pd.Series(row).str.len())
        .apply(pd.Series)
    )
    chance, follows, places = [], [], []
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        scores = confidence.random_responder(items, rng=rng)
        chance.append(confidence.against_chance(scores, items.set_index("item_id")["answer"]))
        follows.append(
            confidence.association(scores, lengths, rng=rng, n_permutations=99, **FAST).p
        )
        places.append(confidence.picks_by_place(scores)[2])
    assert nominal([test.p for test in chance])  # exact, hence at most nominal
    assert at_nominal([test.p_chi2 for test in chance])
    assert at_nominal(follows) and at_nominal(places)


def test_the_length_biased_responder_is_found_out(rng):
    items = bank_of(150)
    answered = presented(items, confidence.length_biased_responder, rng=rng, nats_per_sd=1.0)
    found = confidence.prior_bias(*aligned(answered), rng=rng, n_permutations=199, n_boot=200)
    assert found.p == 1 / 200 and found.lasting_share.low > 0.1
    probe, scores = answered[0]
    lengths = pd.DataFrame(
        [[len(text) for text in row] for row in probe["choices"]], index=probe["item_id"]
    )
    assert (
        confidence.association(scores, lengths, rng=rng, n_permutations=199, n_boot=200).r.low > 0.2
    )


def test_lasting_share_is_one_for_a_responder_that_does_not_read_the_question(rng):
    scores = pd.DataFrame(rng.normal(size=(30, 3)))
    found = confidence.prior_bias(scores, scores, scores, rng=rng, n_permutations=99, **FAST)
    assert found.lasting_share.estimate == pytest.approx(1) and found.p == 0.01
    even = confidence.prior_bias(scores * 0, scores * 0, rng=rng, n_permutations=9, **FAST)
    assert even.p == 1 and even.lasting_share is None and even.spread.estimate == 0


def test_lasting_variance_estimates_the_planted_variance_without_bias(rng):
    own = rng.dirichlet(np.ones(3), size=4000)
    noise = [rng.normal(0, 0.2, size=own.shape) for _ in range(3)]
    presentations = [own + extra - extra.mean(axis=1, keepdims=True) for extra in noise]
    scores = [pd.DataFrame(np.log(np.maximum(values, 1e-300))) for values in presentations]
    valid = np.all([(values > 0).all(axis=1) for values in presentations], axis=0)
    found = confidence.prior_bias(
        *(frame[valid] for frame in scores), rng=rng, n_permutations=1, **FAST
    )
    between = [
        (a[valid] * b[valid]).sum(axis=1).mean() / 3 - 1 / 9
        for a, b in (
            (presentations[0], presentations[1]),
            (presentations[0], presentations[2]),
            (presentations[1], presentations[2]),
        )
    ]
    assert found.instances["lasting_variance"].mean() == pytest.approx(np.mean(between))


def test_shuffling_within_items_keeps_each_item_and_reaches_every_order(rng):
    values = np.tile([[1.0, 2.0, 3.0, 0.0]], (6000, 1))
    moved = shuffle_within(values, np.full(6000, 3), rng)
    assert (np.sort(moved[:, :3], axis=1) == [1, 2, 3]).all() and (moved[:, 3] == 0).all()
    counts = pd.Series(map(tuple, moved[:, :3])).value_counts()
    assert len(counts) == 6 and scipy_stats.chisquare(counts).pvalue > 0.001


def test_presentations_of_other_items_are_refused(rng):
    scores = pd.DataFrame(rng.normal(size=(5, 3)))
    with pytest.raises(FrameError, match="in_source_order"):
        confidence.prior_bias(scores, scores.iloc[::-1], rng=rng)
    with pytest.raises(FrameError, match="one presentation at least"):
        confidence.prior_bias(rng=rng)
    with pytest.raises(FrameError, match="lacks items or choices"):
        confidence.association(scores, scores.iloc[1:], rng=rng)
    with pytest.raises(ValueError, match="nothing to correlate"):
        confidence.association(scores, scores * 0, rng=rng)


# ---- its parts


def test_the_mixed_model_recovers_planted_place_length_and_appeal(rng):
    items = bank_of(400)
    probes = [confusion.wrong_question(items, seed=seed, shuffle=True) for seed in range(4)]
    appeal = dict(zip(items["choices"].explode(), rng.normal(0, 0.7, 1200), strict=True))
    answered = []
    for probe in probes:
        place = np.tile(np.arange(3), (400, 1))
        length = np.array([[len(text) for text in row] for row in probe["choices"]])
        own = np.array([[appeal[text] for text in row] for row in probe["choices"]])
        values = (
            -0.4 * place
            + 0.05 * length
            + own
            + rng.normal(0, 1.2, size=(400, 3))
            + rng.normal(size=(400, 1))
        )
        answered.append((probe, pd.DataFrame(values, index=probe["item_id"])))
    found = confidence.bias_parts(answered)
    slope = found.coefficients["nats_per_sd"] / found.coefficients["sd"]
    error = found.coefficients["se"] / found.coefficients["sd"]
    truth = pd.Series({"place": -0.4, "length_chars": 0.05, "log_frequency": 0.0})
    assert found.converged and ((slope - truth).abs() < 3.5 * error).all()
    assert found.choice_sd == pytest.approx(0.7, abs=0.12) and found.noise_sd == pytest.approx(
        1.2, abs=0.06
    )
    assert found.shares.sum() == pytest.approx(1) and found.n_choices == 800
    assert found.shares["length_chars"] > found.shares["log_frequency"]


def test_the_mixed_model_is_least_squares_within_where_features_change_with_the_presentation(rng):
    items = bank_of(60)
    answered = presented(items, confidence.random_responder, n=5, rng=rng)
    found = confidence.bias_parts(answered, features=["place"])
    long = pd.concat(
        pd.DataFrame(
            {
                "s": scores.to_numpy().ravel(),
                "x": np.tile(np.arange(3.0), 60),
                "key": np.repeat(range(60), 3),
                "presentation": number,
            }
        )
        for number, (_, scores) in enumerate(answered)
    )
    centred = long[["s", "x"]] - long.groupby(["key", "presentation"])[["s", "x"]].transform("mean")
    slope = (centred["s"] * centred["x"]).sum() / (
        centred["x"] ** 2
    ).sum()  # what remains where sigma_u is 0
    ours = found.coefficients.loc["place"]
    assert ours["nats_per_sd"] / ours["sd"] == pytest.approx(
        slope, abs=0.5 * ours["se"] / ours["sd"]
    )


def test_the_random_responder_has_no_parts_at_the_nominal_level_over_seeds():
    items, p = bank_of(25), []
    for seed in range(12):
        answered = presented(items, confidence.random_responder, rng=np.random.default_rng(seed))
        p.extend(confidence.bias_parts(answered).coefficients["p"])
    assert nominal(p)


def test_parts_say_what_they_cannot_tell_apart(rng):
    items = bank_of(20)
    answered = presented(items, confidence.random_responder, rng=rng)
    with pytest.raises(ValueError, match="one presentation cannot tell"):
        confidence.bias_parts(answered[:1])
    with pytest.raises(FrameError, match="differ in their items or choices"):
        other = confusion.no_right_answer(items)
        confidence.bias_parts([answered[0], (other, confidence.random_responder(other, rng=rng))])
    with pytest.raises(FrameError, match="have no scores"):
        confidence.bias_parts([answered[0], (answered[1][0], answered[1][1].iloc[1:])])
    still = [confusion.wrong_question(items, seed=seed) for seed in (0, 1)]
    fixed = confidence.random_responder(still[0], rng=rng)
    with pytest.raises(ValueError, match="does not read the question"):
        confidence.bias_parts([(probe, fixed) for probe in still])
    same = [probe.assign(flat=[[1, 1, 1]] * 20) for probe, _ in answered]
    with pytest.raises(ValueError, match=r"\['flat'\] do not vary"):
        confidence.bias_parts(
            [(probe, scores) for probe, (_, scores) in zip(same, answered, strict=True)],
            features=["flat"],
        )


def test_features_are_place_length_and_mean_log_count():
    items = pd.DataFrame(
        {
            "item_id": ["a"],
            "prompt": ["The dog"],
            "choices": [["the the", "Dog!", "..."]],
            "answer": [0],
        }
    )
    found = confidence.choice_features(items)
    assert found["place"].tolist() == [0, 1, 2] and found["length_chars"].tolist() == [7, 4, 3]
    assert found["log_frequency"].tolist() == pytest.approx([np.log10(4), np.log10(3), 0])
    given = confidence.choice_features(items, pd.Series({"the": 9}))
    assert given["log_frequency"].tolist() == pytest.approx([1, 0, 0])


# ---- choice paralysis and accuracy


def more(items, responder, n_extra, **options):
    probe = confusion.more_choices(items, n_extra, seed=1)
    return confusion.in_source_order(responder(probe, **options), probe)


def test_a_model_that_scores_each_choice_by_itself_has_arithmetic_only(rng):
    before = pd.DataFrame(rng.normal(size=(50, 3)))
    after = pd.concat(
        [before + 7, pd.DataFrame(rng.normal(size=(50, 2)) + 7, columns=[3, 4])], axis=1
    )
    found = confidence.choice_paralysis(before, after, np.zeros(50), rng=rng, n_boot=50)
    assert found.own.estimate == pytest.approx(0) and found.p_own == 1 and found.n_extra == 2
    assert found.drop.estimate == pytest.approx(found.renormalisation.estimate) and found.p < 1e-6
    c = confidence.confidence_in(before, np.zeros(50))
    d = confidence.confidence_in(after, np.zeros(50))
    assert found.effect == pytest.approx((c - d).mean() / (c - d).std())
    assert found.p == pytest.approx(scipy_stats.wilcoxon(c, d).pvalue)


def test_equal_draw_is_exact_where_added_choices_draw_as_much_as_the_others():
    before = pd.DataFrame([[2.0, 0.0, 0.0]] * 3)
    after = pd.DataFrame([[2.0, 0.0, 0.0, 0.0, 0.0]] * 3)
    found = confidence.choice_paralysis(
        before, after, [0, 0, 0], rng=np.random.default_rng(1), n_boot=20
    )
    assert found.equal_draw.estimate == pytest.approx(found.drop.estimate)


def test_a_planted_paralysis_is_found_and_the_random_responder_shows_none_at_the_nominal_level(rng):
    items = bank_of(60)
    p = []
    for seed in range(N_SEEDS // 2):
        own = np.random.default_rng(seed)
        before = confidence.random_responder(items, rng=own)
        after = more(items, confidence.random_responder, 2, rng=own)
        p.append(
            confidence.choice_paralysis(
                before, after, items["answer"].to_numpy(), rng=own, **FAST
            ).p_own
        )
    assert at_nominal(p)
    place = np.zeros(60, dtype=int)
    before, after = (confidence.random_responder(items, rng=rng, spread=0.5) for _ in range(2))
    before[0] += 2.0
    after[0] += 1.0  # half of the lead is lost
    after[3] = -1.0
    found = confidence.choice_paralysis(before, after, place, rng=rng, n_boot=200)
    assert found.own.low > 0 and found.p_own < 1e-4 and found.own_effect > 0.5


def test_paralysis_grows_with_the_number_of_choices_and_holm_counts_the_numbers(rng):
    items = bank_of(100)
    before = confidence.random_responder(items, rng=rng)
    after = {
        number: more(items, confidence.random_responder, number, rng=rng) for number in (1, 2, 4)
    }
    table = confidence.paralysis_by_number(
        before, after, items.set_index("item_id")["answer"], rng=rng, n_boot=50
    )
    assert table["drop"].is_monotonic_increasing and table.index.tolist() == [1, 2, 4]
    assert table["after"].tolist() == pytest.approx([1 / 4, 1 / 5, 1 / 7], abs=0.05)
    ordered = table["p"].sort_values()
    assert table.loc[ordered.index[0], "p_holm"] == pytest.approx(min(1, 3 * ordered.iloc[0]))


def test_paralysis_refuses_items_that_differ_or_lost_choices(rng):
    before = pd.DataFrame(rng.normal(size=(5, 3)))
    with pytest.raises(FrameError, match="another order"):
        confidence.choice_paralysis(before, before.iloc[::-1], np.zeros(5), rng=rng)
    with pytest.raises(FrameError, match="no more choices after"):
        confidence.choice_paralysis(before, before, np.zeros(5), rng=rng)


def test_the_change_in_accuracy_is_tested_as_mcnemar_does(rng):
    before = pd.Series(rng.integers(0, 2, 80).astype(float))
    after = before.where(rng.random(80) < 0.7, 0.0)
    found = confidence.accuracy_change(before, after, rng=rng, n_boot=200)
    assert found.p == pytest.approx(
        mcnemar(pd.crosstab(before, after).reindex(columns=[0, 1]).to_numpy()).pvalue
    )
    assert (
        found.change.estimate == pytest.approx(after.mean() - before.mean())
        and found.change.high < 0
    )
    assert confidence.accuracy_change(before, before, rng=rng, **FAST).p == 1
    with pytest.raises(FrameError, match="different items"):
        confidence.accuracy_change(before, after.iloc[1:], rng=rng)


# ---- calibration


def test_expected_calibration_error_is_that_of_scikit_learns_curve(rng):
    scores, answer = pd.DataFrame(2 * rng.normal(size=(500, 4))), rng.integers(0, 4, 500)
    found = confidence.calibration(scores, answer, rng=rng, n_boot=200)
    sure = confidence.confidences(scores).max(axis=1).to_numpy()
    right = (scores.to_numpy().argmax(axis=1) == answer).astype(int)
    accuracy, stated = calibration_curve(right, sure, n_bins=10)
    n = np.histogram(sure, np.linspace(0, 1, 11))[0]
    assert found.error.estimate == pytest.approx((n[n > 0] / 500 * np.abs(accuracy - stated)).sum())
    assert found.bins.dropna()["accuracy"].tolist() == pytest.approx(list(accuracy))
    assert found.error.low < found.error.estimate < found.error.high
    assert (found.accuracy, found.confidence) == pytest.approx((right.mean(), sure.mean()))
    with pytest.raises(ValueError, match="one bin at least"):
        confidence.calibration(scores, answer, rng=rng, n_bins=0)


def test_a_calibrated_responder_has_little_error_and_a_sure_one_much(rng):
    scores = confidence.random_responder(bank_of(3000), rng=rng, spread=1.5)
    sure = confidence.confidences(scores).to_numpy()
    answer = (sure.cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1).clip(max=2)
    assert confidence.calibration(scores, answer, rng=rng, n_boot=20).error.estimate < 0.03
    assert confidence.calibration(scores * 5, answer, rng=rng, n_boot=20).error.estimate > 0.2


# ---- side by side


def test_results_stand_side_by_side_with_holms_correction(rng):
    items = bank_of(60)
    answered = aligned(presented(items, confidence.length_biased_responder, rng=rng))
    before = confidence.random_responder(items, rng=rng)
    results = {
        ("a", "chance"): confidence.against_chance(before, items["answer"].to_numpy()),
        ("a", "bias"): confidence.prior_bias(*answered, rng=rng, n_permutations=99, n_boot=50),
        ("a", "one"): confidence.prior_bias(answered[0], rng=rng, n_boot=50),
        ("b", "follows"): confidence.association(
            answered[0], answered[1], rng=rng, n_permutations=99, n_boot=50
        ),
        ("b", "more"): confidence.choice_paralysis(
            before,
            more(items, confidence.random_responder, 2, rng=rng),
            items["answer"].to_numpy(),
            rng=rng,
            n_boot=50,
        ),
        ("b", "grades"): confidence.accuracy_change(
            confidence.grades(before, items["answer"].to_numpy()),
            confidence.grades(before, np.zeros(60)),
            rng=rng,
            n_boot=50,
        ),
    }
    table = confidence.by_benchmark(results)
    assert table.index.names == ["benchmark", "probe"] and len(table) == 6
    tested = table.drop(("a", "one"))
    assert (tested["low"] <= tested["estimate"]).all() and (
        tested["estimate"] <= tested["high"]
    ).all()
    assert (tested["p_holm"] >= tested["p"]).all() and np.isnan(table.loc[("a", "one"), "p_holm"])
    assert tested["p_holm"].min() == pytest.approx(min(1, 5 * tested["p"].min()))
    assert table.loc[("a", "chance"), "null"] == pytest.approx(1 / 3)


def test_controls_are_scores_and_refuse_what_they_cannot_answer(rng):
    items = bank_of(10)
    for scores in (
        confidence.random_responder(items, rng=rng),
        confidence.length_biased_responder(items, rng=rng),
    ):
        assert np.exp(scores).sum(axis=1).tolist() == pytest.approx([1] * 10) and list(
            scores.index
        ) == list(items["item_id"])
    with pytest.raises(FrameError, match="one length"):
        confidence.length_biased_responder(items.assign(choices=[["aa", "bb", "cc"]] * 10), rng=rng)
