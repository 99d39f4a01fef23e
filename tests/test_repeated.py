"""Answers that repeat are k of n: counts equal those of pandas, and figures those of the rows.

References: pandas, a mixed model of statsmodels, all draws of k answers, bootstrap of items.
"""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy
import statsmodels.formula.api as smf

import psychlm
from psychlm import comparison, frames
from psychlm.frames import FrameError, Repeated


def long_rows(rng: np.random.Generator, score: np.ndarray | None = None) -> pd.DataFrame:
    """Return answers of 5 persons to 6 items in any order, 1 to 9 times each, some not at all."""
    cells = pd.MultiIndex.from_product([list("edcba"), [f"q{i}" for i in range(6)]])
    rows = cells.to_frame(index=False, name=["person", "item"])
    rows = rows.loc[np.repeat(rows.index, rng.integers(0, 10, len(rows)))]
    rows["repeat"] = rows.groupby(["person", "item"]).cumcount()
    rows["score"] = rng.choice([0, 1] if score is None else score, len(rows))
    return rows.sample(frac=1, random_state=int(rng.integers(1000)))


@pytest.mark.parametrize("scores", [[0, 1], [0, 0.25, 1], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("seed", range(5))
def test_counts_means_and_variances_are_those_of_the_rows_as_pandas_has_them(scores, seed) -> None:
    rows = long_rows(np.random.default_rng(seed), scores)
    repeated = Repeated.from_long(rows)
    by_cell = rows.groupby(["person", "item"])["score"]
    assert repeated.n.stack().loc[lambda n: n > 0].to_dict() == by_cell.size().to_dict()
    for ours, theirs in ((repeated.mean, by_cell.mean()), (repeated.variance, by_cell.var())):
        aligned = theirs.unstack().loc[ours.index, ours.columns]
        np.testing.assert_allclose(ours, aligned, atol=1e-12)
    assert repeated.correct.index.tolist() == rows["person"].unique().tolist()
    assert repeated.correct.columns.tolist() == rows["item"].unique().tolist()


def test_rows_without_a_score_are_not_counted_and_persons_without_any_are_named() -> None:
    rows = pd.DataFrame({"person": list("aab"), "item": "q", "score": [1, np.nan, 0]})
    assert Repeated.from_long(rows).n["q"].to_dict() == {"a": 1, "b": 1}
    with pytest.raises(FrameError, match=r"persons \['b'\] have no score at all"):
        Repeated.from_long(rows.assign(score=[1, 0, np.nan]))
    with pytest.raises(FrameError, match=r"answers \[\('a', 'q', 1\)\] .*occur more than once"):
        Repeated.from_long(rows.assign(repeat=1))
    with pytest.raises(FrameError, match=r"need the columns \['score'\]; have"):
        Repeated.from_long(rows.drop(columns="score"))


K = pd.DataFrame({"q0": [1, 2], "q1": [0, 3]}, index=["p0", "p1"])


@pytest.mark.parametrize(
    ("correct", "n", "says"),
    [
        (K, K * 0 + 2, "'p1' has 3 of 2 answers right on item 'q1'"),
        (K + 0.5, K * 0 + 4, "1.5 of 4 answers.*sums of their squares"),
        (K, K[["q0"]], r"2 persons x 2 items, and n or squares 2 x 1"),
        (K, K.set_axis(["p0", "p2"]), "or others; give the same names"),
        (K, K.assign(q1=0), r"items \['q1'\] were answered by nobody"),
        (K, K.assign(q0=[0, 9], q1=[0, 9]), r"persons \['p0'\] answered no item"),
        (K.set_axis(["q", "q"], axis=1), K.set_axis(["q", "q"], axis=1), "items.*more than once"),
    ],
)
def test_malformed_counts_are_refused_and_named(correct, n, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        Repeated(correct, n)


def test_counts_are_matched_by_label_and_cells_that_were_not_asked_are_not_read() -> None:
    n = pd.DataFrame({"q1": [4, 3], "q0": [np.nan, 2]}, index=["p1", "p0"])
    repeated = Repeated(K.astype(float).replace(2, np.nan), n)
    assert repeated.n.loc["p1"].to_dict() == {"q0": 0, "q1": 4}
    assert repeated.mean.loc["p0"].to_dict() == {"q0": 0.5, "q1": 0.0}
    assert repeated.select(items=["q1"], persons=["p1"]).correct.to_dict() == {"q1": {"p1": 3.0}}


def test_functions_that_take_no_repeats_say_so_and_what_they_advise_works() -> None:
    repeated = Repeated(K, K * 0 + 4)
    with pytest.raises(FrameError, match=r"Repeated \(k of n\).*responses\.draw"):
        frames.check_responses(repeated)
    frames.check_responses(repeated.mean, ratings=True)


def repeated_answers(rng, n_models, n_items, n_repeats, interaction=1.0) -> Repeated:
    """Return answers of models of equal ability, which find other items hard as well."""
    logit = 1.5 * rng.normal(size=n_items) + interaction * rng.normal(size=(n_models, n_items))
    correct = rng.binomial(n_repeats, scipy.special.expit(logit))
    table = pd.DataFrame(correct, [f"m{i}" for i in range(n_models)])
    return Repeated(table, table * 0 + n_repeats)


@pytest.mark.parametrize("n_repeats", [1, 5, 20])
def test_models_of_equal_ability_are_told_apart_at_the_nominal_rate(n_repeats: int) -> None:
    """The exact test of single answers keeps below .05, as McNemar's does."""
    rng, rates = np.random.default_rng(n_repeats), []
    for _ in range(15):  # other items each time, 120 pairs of models
        ranking = psychlm.compare(repeated_answers(rng, 16, 400, n_repeats))
        rates.append((ranking.pairs["p"] < 0.05).mean())
    error = np.std(rates) / len(rates) ** 0.5
    low, high = (0.035, 0.05) if n_repeats == 1 else (0.045, 0.055)
    assert low - 2 * error < np.mean(rates) < high + 2 * error


def test_errors_of_means_and_differences_equal_the_bootstrap_of_items() -> None:
    rng = np.random.default_rng(3)
    repeated = repeated_answers(rng, 2, 300, 4)
    for options in ({}, {"pass_at": 2}):
        shares = repeated.pass_at(2) if options else repeated.mean
        result = psychlm.compare(repeated, names=("m0", "m1"), n_permutations=0, **options)
        drawn = shares.to_numpy()[:, rng.integers(0, 300, (300, 4000))].mean(axis=1)
        assert result.standard_error == pytest.approx((drawn[0] - drawn[1]).std(), rel=0.05)
        single = psychlm.compare(repeated, **options).models["standard_error"]
        assert single[["m0", "m1"]].to_numpy() == pytest.approx(drawn.std(axis=1), rel=0.05)


def test_variances_between_and_within_items_equal_those_of_a_mixed_model() -> None:
    repeated = repeated_answers(np.random.default_rng(4), 1, 120, 5)
    scores = [[k > r for r in range(5)] for k in repeated.correct.loc["m0"]]
    rows = pd.DataFrame({"item": np.repeat(range(120), 5), "score": np.ravel(scores).astype(float)})
    model = smf.mixedlm("score ~ 1", rows, groups="item").fit(reml=True)
    ours = comparison.variance_of_repeats(repeated).loc["m0"]
    assert ours["between"] == pytest.approx(float(model.cov_re.iloc[0, 0]), rel=1e-3)
    assert ours["within"] == pytest.approx(model.scale, rel=1e-3)
    # The design effect (Kish 1965), and the error of as many items as the answers are worth.
    share = ours["between"] / (ours["between"] + ours["within"])
    assert ours["design_effect"] == pytest.approx(1 + 4 * share, rel=1e-9)
    error = psychlm.compare(repeated_of_two(repeated)).models["standard_error"].iloc[0]
    assert ours[["between", "within"]].sum() / ours["worth"] == pytest.approx(error**2, rel=1e-9)


def repeated_of_two(repeated: Repeated) -> Repeated:
    """Return the answers of one model, and of another that answers alike."""
    tables = [
        pd.concat([table, table.rename({"m0": "m1"})])
        for table in vars(repeated).values()
        if table is not None
    ]
    return Repeated(*tables)


def test_enough_repeats_bring_the_error_within_5_percent_of_its_lowest() -> None:
    rng = np.random.default_rng(5)
    pair = comparison.variance_of_repeats(repeated_answers(rng, 2, 4000, 3), ("m0", "m1"))
    row = pair.loc["difference"]
    lowest, enough = row["between"] ** 0.5, (row["between"] + row["within"] / row["enough"]) ** 0.5
    assert enough <= 1.05 * lowest < (row["between"] + row["within"] / (row["enough"] - 1)) ** 0.5
    # Other sets of so many repeats have that error.
    rates = [
        psychlm.compare(repeated_answers(rng, 2, 4000, int(row["enough"]))).pairs["difference"][0]
        for _ in range(60)
    ]
    assert np.std(rates) == pytest.approx(enough / 4000**0.5, rel=0.25)


@pytest.mark.parametrize("alike", [1, 2, 3])
def test_models_whose_items_differ_no_more_than_chance_are_worth_no_infinite_items(alike) -> None:
    rng = np.random.default_rng(8)
    n_items = 40
    ease = np.where(np.arange(3)[:, None] < alike, 0.5, rng.beta(1, 1, (3, n_items)))
    k = pd.DataFrame(rng.binomial(10, ease), index=list("abc")).astype(float)
    k.iloc[:alike] = 5.0
    shown = repr(psychlm.compare(Repeated(k, k * 0 + 10)))
    assert "inf" not in shown and "nan" not in shown
    assert ("no more than chance" in shown) == (alike > 1)


def test_pass_at_k_is_the_share_of_draws_of_k_answers_with_a_right_one() -> None:
    rng = np.random.default_rng(6)
    rows = long_rows(rng)
    repeated = Repeated.from_long(
        rows[rows.groupby(["person", "item"])["item"].transform("size") > 2]
    )
    for k in (1, 2, 3):
        for person, item in repeated.n.stack().loc[lambda n: n > 0].index:
            scores = rows.query("person == @person and item == @item")["score"]
            draws = [max(draw) for draw in itertools.combinations(scores, k)]
            assert repeated.pass_at(k).loc[person, item] == pytest.approx(np.mean(draws))
    compared = psychlm.compare(repeated_answers(rng, 3, 50, 6), pass_at=4)
    assert compared.unit == "pass@4" and compared.models["high"].max() <= 1


def test_comparisons_of_repeats_that_cannot_be_are_refused() -> None:
    repeated = repeated_answers(np.random.default_rng(7), 3, 30, 4)
    with pytest.raises(FrameError, match=r"pass@5 takes .* were answered 4 times or more"):
        psychlm.compare(repeated, pass_at=5)
    with pytest.raises(ValueError, match="several answers to each item: frames.Repeated"):
        psychlm.compare(repeated.mean, pass_at=2)
    with pytest.raises(FrameError, match=r"models \['m7'\] are not in the frame"):
        psychlm.compare(repeated, names=("m0", "m7"))
    with pytest.raises(FrameError, match="are no 0 and 1"):
        Repeated(repeated.correct / 2, repeated.n, repeated.correct / 4).pass_at(2)
    two = psychlm.compare(repeated, names=("m0", "m1"), n_permutations=0)
    assert two.names == ("m0", "m1") and "4 answers to each of 30 items" in repr(two)
    pair = psychlm.compare(repeated).pairs.query("a == 'm0' and b == 'm1'").iloc[0]
    assert [pair["difference"], pair["p"]] == pytest.approx([two.difference, two.p])


def test_items_needed_for_a_difference_find_it_four_times_in_five() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(2, 200)) + [[0.0], [0.1]]
    result = psychlm.compare(a, b, n_permutations=0)
    n = round(result.n_needed)
    assert f"takes about {n} items" in result.verdict
    sd = np.std(a - b, ddof=1)
    drawn = rng.normal(result.difference, sd, size=(1000, n))
    found = scipy.stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.04)
