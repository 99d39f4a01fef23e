"""Adaptive tests equal a replay by numerical integration, and recover known abilities.

Asking persons one by one equals the replay of their recorded responses to the last bit; the errors
of the sequential test stay below Wald's (1947) bounds."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit

from psychlm import irt, simulate
from psychlm.frames import FrameError

AREAS = pd.Series(np.repeat(["x", "y", "z"], [30, 20, 10]), [f"q{k:02d}" for k in range(60)])


@pytest.fixture
def bank(rng):
    a, b, c = rng.lognormal(0.2, 0.3, 60), rng.normal(0, 1.2, 60), rng.uniform(0, 0.25, 60)
    items = pd.DataFrame({"a": a, "b": b, "c": c, "d": -a * b}, AREAS.index)
    return items.rename_axis("item")


@pytest.fixture
def people(bank, rng):
    theta = rng.standard_normal(300)
    return theta, simulate.responses(theta, bank, rng)


def by_hand(bank, answers, n_items):
    """Ask one person; the posterior by quad, the information by its formula (Birnbaum 1968)."""
    rows, asked, theta = [], [], 0.0
    for _ in range(n_items):
        p = bank["c"] + (1 - bank["c"]) * expit(bank["a"] * theta + bank["d"])
        slope = bank["a"] * (p - bank["c"]) / (1 - bank["c"])
        information = (slope**2 * (1 - p) / p).drop(index=asked)
        asked.append(information.idxmax())
        a, c, d = bank.loc[asked, ["a", "c", "d"]].to_numpy().T
        right = answers[asked].to_numpy() == 1

        def density(t, power=0, a=a, c=c, d=d, right=right):
            q = c + (1 - c) * expit(a * t + d)
            return t**power * np.exp(-(t**2) / 2) * np.prod(np.where(right, q, 1 - q))

        theta = quad(density, -6, 6, args=(1,))[0] / quad(density, -6, 6)[0]
        rows.append((asked[-1], information.max(), answers[asked[-1]], theta))
    return pd.DataFrame(rows, columns=["item", "value", "response", "theta"])


def test_the_replay_asks_what_a_search_by_hand_asks_and_says_why(bank, people):
    responses = people[1].iloc[:2]
    history = irt.adaptive_test(bank, responses, n_items=4).history
    for person, answers in responses.iterrows():
        expected = by_hand(bank, answers, 4).set_axis(range(1, 5)).rename_axis("n_items")
        found = history.loc[person, list(expected)]
        pd.testing.assert_frame_equal(found, expected, atol=1e-3, check_dtype=False)


@pytest.mark.parametrize("rule", ["information", "posterior"])
def test_chosen_items_say_more_about_a_person_than_random_ones(bank, people, rng, rule):
    theta, responses = people
    chosen = irt.adaptive_test(bank, responses, n_items=10, rule=rule)
    random = irt.adaptive_test(bank, responses, n_items=10, rule="random", rng=rng)
    error = [np.sqrt(((test.theta[10] - theta) ** 2).mean()) for test in (chosen, random)]
    assert error[0] < 0.9 * error[1]
    assert np.corrcoef(chosen.score[10], responses.mean(axis=1))[0, 1] > 0.85


def test_a_test_ends_when_its_error_is_small_enough(bank, people):
    test = irt.adaptive_test(bank, people[1], n_items=40, stop_se=0.5)
    assert (test.asked.notna().sum(axis=1) == test.n_asked).all()
    stopped = test.n_asked[test.n_asked < 40]
    assert len(stopped) > 250
    for person, n in stopped.items():
        assert test.se.loc[person, n] <= 0.5
        assert (test.se.loc[person, : n - 1] > 0.5).all()


def test_content_areas_keep_their_shares(bank, people):
    test = irt.adaptive_test(bank, people[1], n_items=12, content=AREAS)
    counts = test.asked.apply(lambda row: AREAS[row].value_counts(), axis=1)
    assert (counts[["x", "y", "z"]] == [6, 4, 2]).all(axis=None)


def test_strata_of_difficulty_are_asked_once_each(bank, people, rng):
    difficulty = rng.permutation(np.linspace(-4, 4, len(bank)))
    even = pd.DataFrame({"a": 1.0, "b": difficulty}, index=bank.index)
    test = irt.adaptive_test(even, people[1], n_items=6, rule="stratified", rng=rng)
    stratum = (even["b"].rank() - 1) * 6 // len(even)
    for row in test.asked.to_numpy():
        assert sorted(stratum[row]) == list(range(6))


def test_an_item_that_was_not_answered_is_not_asked(bank, people, rng):
    gaps = people[1].mask(rng.random(people[1].shape) < 0.5)
    test = irt.adaptive_test(bank, gaps, n_items=40)
    assert (test.n_asked == gaps.notna().sum(axis=1).clip(upper=40)).all()
    for person, row in test.asked.iloc[:20].iterrows():
        assert gaps.loc[person, row.dropna()].notna().all()
        assert row.dropna().is_unique


class Asked:
    """A person whose responses are known; counts questions, and stops answering after some."""

    def __init__(self, responses: pd.Series, most: int = 10**9) -> None:
        self.responses, self.most, self.items = responses, most, []

    def __call__(self, item: object) -> float:
        if len(self.items) == self.most:
            raise KeyboardInterrupt
        self.items.append(item)
        return self.responses[item]


def same(live: irt.AdaptiveTest, replay: irt.AdaptiveTest, person: object) -> None:
    """Assert that a person's items, answers, abilities, errors and scores are equal to the bit."""
    for name in ("asked", "response", "theta", "se", "score"):
        asked, replayed = (getattr(test, name).loc[person] for test in (live, replay))
        assert asked.equals(replayed.astype(asked.dtype)), name
    np.testing.assert_allclose(live.value.loc[person], replay.value.loc[person], atol=2e-10)
    assert live.decision[person] == replay.decision[person]


OPTIONS = {
    "plain": {},
    "posterior": {"rule": "posterior"},
    "stop": {"stop_se": 0.5},
    "cut": {"cut": irt.CutScore(0.2)},
    "content": {"content": AREAS},
    "random": {"rule": "random"},
    "open": {"open_shares": pd.Series(np.linspace(0, 1, 60), AREAS.index)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_asking_gives_what_the_replay_of_the_responses_gives(bank, people, rng, options):
    bank.iloc[30:40] = bank.iloc[20:30].to_numpy()  # items that are alike say alike much
    responses = people[1].iloc[:12].mask(rng.random((12, len(bank))) < 0.4)

    def run(ask):
        return irt.adaptive_test(bank, ask, n_items=12, rng=np.random.default_rng(8), **options)

    replay = run(responses)
    takers = {person: Asked(row) for person, row in responses.iterrows()}
    together = run(takers)
    for person, taker in takers.items():
        same(run({person: taker}), replay, person)
        same(together, replay, person)


@pytest.mark.parametrize("rule", ["information", "stratified", "random"])
def test_a_test_that_was_stopped_goes_on_from_its_answers(bank, people, rule, tmp_path):
    row, file = people[1].iloc[0], tmp_path / "answers.json"
    shares = pd.Series(0.5, bank.index)

    def run(taker, **answers):
        rng = np.random.default_rng(4)
        given = {"rule": rule, "rng": rng, "open_shares": shares} | answers
        return irt.adaptive_test(bank, {"p": taker}, n_items=9, **given)

    whole = run(Asked(row))
    first, second = Asked(row, most=4), Asked(row)
    with pytest.raises(KeyboardInterrupt):
        run(first, answers=file)
    same(run(second, answers=file), whole, "p")
    assert [*first.items, *second.items] == list(whole.asked.loc["p"])
    with pytest.raises(FrameError, match="'p' answered 'yes' to item .*give 1 for right"):
        run(lambda item: "yes")
    with pytest.raises(FrameError, match="this bank has not"):
        irt.adaptive_test(bank.rename(index=str.upper), {"p": second}, answers=file)


@pytest.mark.parametrize(("ability", "wrong"), [(-0.3, "above"), (0.3, "below")])
def test_a_sequential_test_errs_as_rarely_as_wald_bounds(rng, ability, wrong):
    items = pd.DataFrame({"a": rng.lognormal(0.3, 0.3, 300), "b": rng.normal(0, 1, 300)})
    responses = simulate.responses(np.full(1000, ability), items, rng)
    cut = irt.CutScore(0.0, indifference=0.3, error=0.05)
    test = irt.adaptive_test(items, responses, n_items=200, cut=cut)
    assert (test.decision == "undecided").sum() <= 2
    # at most error / (1 - error), and 3 standard errors of a proportion among 1,000
    assert (test.decision == wrong).mean() <= 0.05 / 0.95 + 3 * np.sqrt(0.05 * 0.95 / 1000)
    assert test.n_asked.mean() < 25
    with pytest.raises(ValueError, match="error between 0 and 0.5"):
        irt.CutScore(0.0, error=0.6)


def test_an_item_is_asked_of_more_persons_than_the_limit_in_one_sample_of_twenty(bank, rng):
    bank, n = bank.iloc[:40], 500
    shares = irt.exposure_shares(bank, 0.4, rng=rng, n_items=8, n_persons=n)
    exposure = []
    for sample in range(20):
        others = np.random.default_rng(sample)
        responses = simulate.responses(others.normal(size=n), bank, others)
        test = irt.adaptive_test(bank, responses, n_items=8, open_shares=shares, rng=others)
        assert (test.n_asked == 8).all()
        exposure.append(pd.Series(test.asked.to_numpy().ravel()).value_counts().max() / n)
    free = irt.adaptive_test(bank, responses, n_items=8)
    assert free.asked[1].nunique() == 1  # everybody begins with the same item
    assert np.sum(np.array(exposure) > 0.4) <= 4  # more have a probability of 0.003
    assert np.mean(exposure) > 0.35  # and no item is held back more than it must be
    with pytest.raises(ValueError, match="cannot be had for certain"):
        irt.exposure_shares(bank, 0.2, rng=rng, n_items=8)
    with pytest.raises(ValueError, match="limit=40 is no share of persons"):
        irt.exposure_shares(bank, 40, rng=rng, n_items=8)
    with pytest.raises(FrameError, match="have no share in open_shares from 0 to 1"):
        irt.adaptive_test(bank, responses, open_shares=100 * shares, rng=rng)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ask": pd.DataFrame({"q01": [1.0]})}, "'q00'.*pass the same items"),
        ({"rule": "random"}, "rule='random' needs a generator"),
        ({"content": pd.Series("x", ["q01"])}, r"\['q00', .* have no content area"),
        ({"answers": "answers.json"}, "leave answers= out"),
        ({"open_shares": pd.Series(1.0, ["q00"])}, "open_shares needs a generator"),
        (
            {"open_shares": pd.Series(1.0, ["q00"]), "rng": np.random.default_rng(0)},
            "'q01'.* have no share in open_shares",
        ),
        ({"ask": lambda item: 2.0}, "'person' answered 2 to item '.*', which is none of"),
    ],
)
def test_what_does_not_fit_the_bank_is_named(bank, people, options, message):
    with pytest.raises(ValueError, match=message):
        irt.adaptive_test(bank, **{"ask": people[1]} | options)


def test_items_of_a_table_have_as_many_categories_as_steps():
    bank = pd.DataFrame({"a": 1.0, "b1": [-1.0, 0.0], "b2": [0.5, np.nan]}, list("xy"))
    with pytest.raises(FrameError, match=r"answered 2 to item 'y', which is none of \[0, 1\]"):
        irt.adaptive_test(bank, lambda item: 2.0, model="graded")
    # Who answers 1 and 2 of 0, 1, 2 has not answered 0 and 1.
    answers = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]})
    levels = {"x": [0, 1, 2], "y": [0, 1]}
    found = irt.score(bank, answers, model="graded")
    pd.testing.assert_frame_equal(found, irt.score(bank, answers, model="graded", levels=levels))
    with pytest.raises(FrameError, match="item 'x' has answers"):
        irt.score(bank, answers + 1, model="graded")
