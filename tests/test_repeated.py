"""Answers that repeat are k of n: counts equal those of pandas, and figures those of the rows."""

import numpy as np
import pandas as pd
import pytest

from psychlm import frames
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


def test_counts_are_matched_by_label_and_cells_that_were_not_asked_are_not_read() -> (
    None
):
    n = pd.DataFrame({"q1": [4, 3], "q0": [np.nan, 2]}, index=["p1", "p0"])
    repeated = Repeated(K.astype(float).replace(2, np.nan), n)
    assert repeated.n.loc["p1"].to_dict() == {"q0": 0, "q1": 4}
    assert repeated.mean.loc["p0"].to_dict() == {"q0": 0.5, "q1": 0.0}
    assert repeated.select(items=["q1"], persons=["p1"]).correct.to_dict() == {"q1": {"p1": 3.0}}


def test_functions_that_take_no_repeats_say_so_and_what_they_advise_works() -> None:
    repeated = Repeated(K, K * 0 + 4)
    with pytest.raises(FrameError, match=r"Repeated \(k of n\).*responses\.mean"):
        frames.check_responses(repeated)
    frames.check_responses(repeated.mean, ratings=True)
