"""Item statistics and reliability against R's psych (reference files), pandas and statsmodels."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_kappa

from psychlm import corpora, ctt, simulate
from psychlm.frames import FrameError


def answered(rng, highest=1, gaps=0.0):
    """Draw answers of 60 persons to 9 items that depend on one ability, rated from 0 to highest."""
    ability, difficulty = rng.normal(size=(60, 1)), np.linspace(-1.5, 1.5, 9)
    answers = rng.binomial(highest, 1 / (1 + np.exp(-1.5 * (ability - difficulty))))
    frame = pd.DataFrame(answers.astype(float), columns=[f"q{i}" for i in range(1, 10)])
    return frame.mask(rng.random(frame.shape) < gaps)


@pytest.fixture(params=[1, 4], ids=["graded", "ratings"])
def incomplete(request, rng):
    """A fifth of the items were not asked."""
    return answered(rng, request.param, gaps=0.2)


@pytest.mark.parametrize("source", ["LSAT6", "LSAT7", "4GS", "5GS"])
def test_items_and_reliability_equal_psych(source, reference_dir):
    """Of the LSAT and of the SNLI scales of Lalor (2016)."""
    tests = pd.read_csv(reference_dir / "irt" / "ctt_test.csv", index_col="dataset")
    items = pd.read_csv(reference_dir / "irt" / "ctt_items.csv").set_index("dataset")
    names = [name for name in tests.index if name.startswith(source)]
    assert names
    for name in names:
        by_item, by_test = items.loc[name].set_index("item"), tests.loc[name]
        if source.startswith("LSAT"):
            responses = pd.read_csv(reference_dir / "irt" / f"data_{name}.csv")
        else:
            responses = corpora.lalor2016(int(source[0])).graded[by_item.index]
        r = ctt.inter_item_correlation(responses).to_numpy()
        ours = {
            "alpha_raw": ctt.cronbach_alpha(responses),
            "split_half_odd_even_SB": ctt.split_half(responses),
            "SEM": ctt.standard_error_of_measurement(responses),
            "average_r": r[np.triu_indices_from(r, 1)].mean(),
        }
        np.testing.assert_allclose(list(ours.values()), by_test[list(ours)], rtol=0, atol=1e-12)
        ours = {
            "p": ctt.difficulty(responses),
            "item_rest_r": ctt.item_rest_correlation(responses),
            "alpha_if_deleted": ctt.alpha_if_deleted(responses),
        }
        for column, values in ours.items():
            np.testing.assert_allclose(values, by_item[column], rtol=0, atol=1e-12)


def test_item_rest_with_gaps_equals_a_loop_over_items(incomplete):
    rest = ctt.item_rest_correlation(incomplete)
    for item in incomplete:
        others = incomplete.drop(columns=item)
        asked = incomplete[item].notna() & others.notna().any(axis=1)
        own = incomplete.loc[asked, item]
        assert rest[item] == pytest.approx(own.corr(others[asked].mean(axis=1)))


def test_alpha_with_gaps_equals_pandas_pairwise_covariances(incomplete):
    covariances = incomplete.cov()
    expected = 9 / 8 * (1 - np.trace(covariances) / covariances.to_numpy().sum())
    assert ctt.cronbach_alpha(incomplete) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("gaps", [0, 0.2])
def test_a_person_of_weight_three_counts_as_three_persons(rng, gaps):
    responses = answered(rng, 3, gaps)
    weights = pd.Series(rng.integers(1, 5, len(responses)), responses.index)
    written_out = responses.loc[responses.index.repeat(weights)].reset_index(drop=True)
    for statistic in (
        ctt.item_rest_correlation,
        ctt.cronbach_alpha,
        ctt.alpha_if_deleted,
        ctt.standard_error_of_measurement,
        lambda x, **options: ctt.difficulty((x > 1).astype(float).where(x.notna()), **options),
    ):
        ours = statistic(responses, weights=weights.sample(frac=1, random_state=1))
        np.testing.assert_allclose(ours, statistic(written_out), rtol=0, atol=1e-10)
    with pytest.raises(FrameError, match="a weight that is not a finite number above 0"):
        ctt.cronbach_alpha(responses, weights=weights.replace(2, 0))


def test_random_halves_average_the_correlations_of_all_halves(rng):
    test, stepped_up = answered(rng).iloc[:, :8], []
    for half in combinations(test.columns, 4):
        r = test[list(half)].sum(axis=1).corr(test.drop(columns=list(half)).sum(axis=1))
        stepped_up.append(2 * r / (1 + r))
    ours = ctt.split_half(test, "random", n_splits=20_000, rng=rng)
    assert ours == pytest.approx(np.mean(stepped_up), abs=5 * np.std(stepped_up) / 20_000**0.5)


def test_overall_kappa_equals_statsmodels(rng):
    labels = pd.DataFrame(rng.choice(["c", "e", "n"], size=(20, 15), p=[0.2, 0.5, 0.3]))
    counts = labels.apply(pd.Series.value_counts).fillna(0).T.to_numpy()
    expected = statsmodels_kappa(counts)
    assert ctt.fleiss_kappa(labels)["overall"] == pytest.approx(expected, abs=1e-12)
    against_rest = ctt.fleiss_kappa(labels.where(labels == "c", "other"))
    assert ctt.fleiss_kappa(labels)["c"] == pytest.approx(against_rest["overall"], abs=1e-12)


@pytest.mark.parametrize(
    ("measure", "responses", "message"),
    [
        (ctt.cronbach_alpha, {"a": [0, 1]}, "at least 2 items"),
        (ctt.alpha_if_deleted, {"a": [0, 1], "b": [1, 0]}, "at least 3 items"),
        (ctt.cronbach_alpha, {"a": [1, 1], "b": [0, 0]}, "no variance"),
        (ctt.split_half, {"a": [1, 1, 1], "b": [0, 1, 0]}, "half of the test has no variance"),
        (ctt.cronbach_alpha, {"a": [1, 0, np.nan], "b": [np.nan, 0, 1]}, "both answered by 1"),
        (ctt.inter_item_correlation, {"a": [1], "b": [0]}, "2 persons"),
        (ctt.fleiss_kappa, {"a": ["x", "y"], "b": ["x", np.nan]}, r"\['b'\] have fewer than two"),
        (ctt.fleiss_kappa, {"a": ["x", "x"]}, "every label is 'x'"),
    ],
)
def test_bad_responses_get_an_error_that_says_why(measure, responses, message):
    with pytest.raises(FrameError, match=message):
        measure(pd.DataFrame(responses))


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_scalability_is_one_less_the_ratio_of_guttman_errors_to_those_by_chance(gaps):
    """Reference: Loevinger's definition, counted. An error is right on the harder item alone."""
    rng = np.random.default_rng(4)
    responses = corpora.lsat6().sample(200, random_state=1)
    responses = responses.mask(rng.random(responses.shape) < gaps)
    errors = pd.DataFrame(0.0, responses.columns, responses.columns)
    by_chance = errors.copy()
    for i, j in combinations(responses, 2):
        both = responses[[i, j]].dropna()
        easy, hard = sorted((i, j), key=lambda item: -both[item].mean())
        errors.loc[i, j] = errors.loc[j, i] = ((both[easy] == 0) & (both[hard] == 1)).mean()
        chance = (1 - both[easy].mean()) * both[hard].mean()
        n = len(both)  # of covariances with n - 1: both sides share the factor
        errors.loc[i, j] = errors.loc[j, i] = errors.loc[i, j] * n / (n - 1)
        by_chance.loc[i, j] = by_chance.loc[j, i] = chance * n / (n - 1)
    expected = 1 - errors.sum() / by_chance.sum()
    scalability = ctt.scalability(responses)
    np.testing.assert_allclose(scalability[expected.index], expected, atol=1e-12)
    whole = 1 - errors.to_numpy().sum() / by_chance.to_numpy().sum()
    assert scalability["scale"] == pytest.approx(whole, abs=1e-12)


def test_scalability_of_ratings_is_one_for_ordered_ones_and_gaps_change_no_formula():
    ratings = pd.DataFrame({"a": [1, 2, 3, 4, 5], "b": [1, 1, 2, 4, 5], "c": [2, 3, 3, 5, 5]})
    np.testing.assert_allclose(ctt.scalability(ratings), 1)
    rng = np.random.default_rng(2)
    noisy = ratings.sample(60, replace=True, random_state=1).reset_index(drop=True)
    noisy += rng.integers(0, 2, noisy.shape)
    with_gap = pd.concat([noisy.assign(d=noisy["a"]), pd.DataFrame({"d": [3.0]}, [60])])
    complete = ctt.scalability(noisy.assign(d=noisy["a"]))
    np.testing.assert_allclose(ctt.scalability(with_gap), complete, atol=1e-12)
    with pytest.raises(FrameError, match="no two items both vary"):
        ctt.scalability(pd.DataFrame({"a": [1, 1], "b": [0, 1]}))


def test_omega_and_reverse_keys_equal_psych():
    """Reference: psych, three group factors and oblimin (reference/classical.py)."""
    path = Path(__file__).parents[1] / "reference" / "classical.json"
    expected = json.loads(path.read_text(encoding="utf-8"))
    ratings = corpora.lalor2018_ratings().iloc[:, :12]
    turned = ctt.keyed_in_reverse(ratings)
    # psych marks the items that it turned by a minus after their names, X26707- and so on.
    minus = [name[1:-1] for name in expected["omega_general_items"] if name.endswith("-")]
    # Item 150282 correlates .13 with one item and less with all others: its sign is chance.
    assert sorted([*map(str, turned), "150282"]) == sorted(minus)
    turned = [item for item in ratings if str(item) in minus]
    ratings[turned] = 4 - ratings[turned]
    improper = corpora.lalor2018().graded.iloc[:, 12:24]  # whose best uniqueness is below 0
    for name, answers in {"omega": ratings, "omega_improper": improper}.items():
        found = ctt.omega(answers)
        for kind in ("total", "hierarchical"):
            assert found[kind] == pytest.approx(expected[name][kind], abs=1e-4)
    with pytest.raises(FrameError, match="needs more persons"):
        ctt.omega(ratings.head(12))


@pytest.mark.parametrize(("kind", "gaps"), [("2PL", 0.0), ("2PL", 0.4), ("graded", 0.4)])
def test_items_that_repeat_others_are_found_and_no_other(kind, gaps):
    """Reference: the items that were copied; in 40 tests of 12 to 120 persons none is."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        items = simulate.items(int(rng.integers(4, 60)), rng, kind)
        theta = rng.normal(size=int(rng.integers(12, 120)))
        x = simulate.responses(theta, items, rng, model=kind)
        assert not len(ctt.copied_items(x.mask(rng.random(x.shape) < gaps).dropna(how="all"))), seed
    x = simulate.responses(rng.normal(size=300), simulate.items(10, rng, kind), rng, model=kind)
    x = x.assign(again=x["item-03"], more=x["item-03"])
    x = x.mask(rng.random(x.shape) < gaps)
    assert ctt.copied_items(x).to_dict() == {"again": "item-03", "more": "item-03"}


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_interval_of_alpha_is_that_of_a_bootstrap_over_persons(missing):
    """References: Feldt's F (complete) and 500 resamples (missing)."""
    rng = np.random.default_rng(3)
    x = simulate.responses(rng.normal(size=300), simulate.items(12, rng), rng, missing=missing)
    low, high = ctt.alpha_interval(x)
    rows = rng.integers(300, size=(500, 300))
    draws = [ctt.cronbach_alpha(x.iloc[row].reset_index(drop=True)) for row in rows]
    assert [low, high] == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.02)


def test_alpha_if_deleted_is_alpha_of_the_other_items():
    rng = np.random.default_rng(5)
    x = simulate.responses(rng.normal(size=80), simulate.items(7, rng), rng, missing=0.2)
    expected = [ctt.cronbach_alpha(x.drop(columns=item)) for item in x]
    np.testing.assert_allclose(ctt.alpha_if_deleted(x), expected)


def test_choices_are_counted_and_the_key_that_the_able_reject_is_suspect():
    """Reference: a loop over items and choices with pandas' correlation."""
    rng = np.random.default_rng(3)
    ability, n = rng.normal(size=400), 400
    knows = ability[:, None] + rng.normal(size=(n, 6)) > 0
    guess = rng.choice(list("BCD"), size=(n, 6))
    answers = pd.DataFrame(np.where(knows, "A", guess), columns=list("uvwxyz"))
    answers = answers.mask(rng.random(answers.shape) < 0.1)
    key = pd.Series(dict(zip("uvwxyz", "AAAAAB", strict=True)))
    text = answers.astype("string[pyarrow]")  # as files are read
    table = ctt.distractors(text, key.astype("string[pyarrow]"))
    graded = (answers == key).astype(float).where(answers.notna())
    for (item, choice), row in table.iterrows():
        rest = graded.drop(columns=list({item, "z"})).mean(axis=1)  # z is suspect
        asked = answers[item].notna()
        chosen = (answers[item] == choice).astype(float)[asked]
        assert row["share"] == pytest.approx(chosen.mean())
        assert row["rest_correlation"] == pytest.approx(chosen.corr(rest[asked]), abs=1e-12)
    assert table.index[table["suspect"]].tolist() == [("z", "A")]


def test_a_choice_of_the_able_is_suspect_where_nobody_chose_the_key():
    rng = np.random.default_rng(0)
    able = rng.normal(size=200)
    answers = pd.DataFrame(
        {f"q{k}": np.where(able + rng.normal(size=200) > 0, "A", "B") for k in range(6)}
    )
    key = pd.Series("A", answers.columns)
    answers["q0"] = answers["q0"].map({"A": "C", "B": "D"})  # the key A is chosen by nobody
    found = ctt.distractors(answers, dict(key))["suspect"]
    assert found["q0"].to_dict() == {"C": True, "D": False}
    assert not found.drop("q0", level="item").any()


def test_wrong_keys_are_suspect_and_hardly_any_other():
    """Reference: the two keys that are wrong of 30, in 20 exams of 200 persons."""
    found = []
    others = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = simulate.responses(rng.normal(size=200), simulate.items(30, rng, "1PL"), rng)
        wrong = rng.choice(list("BCD"), x.shape, p=[0.5, 0.3, 0.2])
        answers = pd.DataFrame(np.where(x == 1, "A", wrong), columns=x.columns)
        key = pd.Series("A", x.columns)
        key.iloc[:2] = "B"
        table = ctt.distractors(answers, key)
        suspect = table.index[table["suspect"]].get_level_values("item")
        found.append(suspect.isin(key.index[:2]).sum() / 2)
        others += not suspect.isin(key.index[:2]).all()
    assert np.mean(found) > 0.75
    assert others <= 4


@pytest.mark.parametrize("seed", range(5))
def test_items_of_two_unrelated_scales_are_keyed_in_reverse_within_each(seed):
    rng = np.random.default_rng(seed)
    scales = []
    for name in "en":
        items = simulate.items(6, rng, "graded", n_categories=5).assign(a=1.8)
        scale = simulate.responses(rng.normal(size=300), items, rng, model="graded")
        scales.append(scale.add_prefix(name))
    x = pd.concat(scales, axis=1)
    x[["eitem-3", "nitem-6"]] = 6 - x[["eitem-3", "nitem-6"]]
    assert ctt.keyed_in_reverse(x).tolist() == ["eitem-3", "nitem-6"]


def test_answers_without_a_key_that_fits_are_refused():
    answers = pd.DataFrame({"q1": list("AABB"), "q2": list("AABC"), "q3": list("AACB")})
    key = pd.Series({"q1": "B", "q2": "A", "q3": "A"})
    for wrong in (key.drop("q3"), key.where(key.index != "q3")):
        with pytest.raises(FrameError, match=r"\['q3'\] have no key"):
            ctt.distractors(answers, wrong)
    with pytest.raises(FrameError, match=r"\['q1'\] have two keys"):
        ctt.distractors(answers, pd.concat([key, key[:1]]))
    numbers = answers.replace({"A": 1, "B": 2, "C": 3})
    with pytest.raises(FrameError, match="no answer is its item's key"):
        ctt.distractors(numbers, pd.Series({"q1": "2", "q2": "1", "q3": "1"}))
