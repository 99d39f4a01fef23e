"""Item response models of k of n. Reference: the same answers written out, each repeat of an item
as an item of its own with equal parameters (``equal=``), which has the same likelihood."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from psychlm import ctt, frames, irt, simulate
from psychlm.frames import FrameError, Repeated
from psychlm.irt.explanatory import fit_difficulties
from psychlm.irt.response_matrix import encode_responses

PRIORS = {"guessing": irt.Beta(5, 17), "upper": irt.Beta(17, 5), "slope": irt.LogNormal(0, 0.5)}


def answers(seed: int = 0, n_persons: int = 120, n_items: int = 6) -> Repeated:
    """Return 0 to 3 answers of every person to every item."""
    rng = np.random.default_rng(seed)
    many = simulate.responses(
        rng.normal(size=n_persons), simulate.items(n_items, rng), rng, repeats=3
    )
    n = rng.integers(0, 4, many.n.shape)
    n[:, 0] = 3
    correct = rng.hypergeometric(many.correct.astype(int), (3 - many.correct).astype(int), n)
    return Repeated(many.correct * 0 + correct, many.n * 0 + n)


def written_out(repeated: Repeated) -> tuple[pd.DataFrame, list[list[str]]]:
    """Return every repeat as an item of its own, and the copies of each item."""
    columns, copies = {}, []
    for item in repeated.n:
        names = [f"{item}/{k}" for k in range(repeated.n[item].max())]
        for k, name in enumerate(names):
            right = (repeated.correct[item] > k).astype(float)
            columns[name] = right.where(repeated.n[item] > k)
        copies.append(names)
    return pd.DataFrame(columns), copies


@pytest.mark.parametrize("model", ["Rasch", "2PL", "3PL", "4PL"])
def test_k_of_n_has_the_estimates_errors_and_abilities_of_the_answers_written_out(model) -> None:
    repeated = answers()
    frame, copies = written_out(repeated)
    kinds = {"Rasch": "intercept", "2PL": "slope intercept", "3PL": "slope intercept guessing"}
    kinds = kinds.get(model, "slope intercept guessing upper").split()
    needed = {"3PL": ["guessing"], "4PL": ["guessing", "upper", "slope"]}.get(model, [])
    priors = {name: PRIORS[name] for name in needed}
    ours = irt.fit(repeated, model, priors=priors)
    reference = irt.fit(frame, model, priors=priors, equal=dict.fromkeys(kinds, copies))
    assert ours.converged and reference.converged
    assert ours.loglik == pytest.approx(reference.loglik, abs=1e-3)
    names = [name for name in ("a", "b", "c", "u", "se_a", "se_b") if name in ours.items]
    of_first = reference.items.loc[[names_of[0] for names_of in copies], names]
    np.testing.assert_allclose(ours.items[names], of_first, atol=2e-4)
    assert ours.ability_sd == pytest.approx(reference.ability_sd, abs=1e-4)
    for method in ("eap", "map", "wle"):
        scores, expected = ours.score(repeated, method), reference.score(frame, method)
        np.testing.assert_allclose(scores, expected, atol=2e-3)


def test_groups_and_free_items_take_k_of_n() -> None:
    repeated = answers(1, 160)
    frame, copies = written_out(repeated)
    group = pd.Series(np.where(np.arange(len(frame)) % 2, "a", "b"), frame.index)
    free = list(repeated.n.columns[[1]])
    ours = irt.fit(repeated, "2PL", group=group, free=free)
    equal = {"slope": copies, "intercept": copies}
    reference = irt.fit(frame, "2PL", group=group, free=copies[1], equal=equal)
    assert ours.loglik == pytest.approx(reference.loglik, abs=1e-4)
    pd.testing.assert_frame_equal(ours.groups, reference.groups, atol=1e-3)


def test_random_difficulties_of_k_of_n_equal_those_of_the_answers_written_out() -> None:
    repeated = answers(2, 60)
    frame, copies = written_out(repeated)
    ours = irt.fit(repeated, "Rasch", difficulty_prior=pd.DataFrame(index=repeated.n.columns))
    of_item = np.repeat(range(len(copies)), [len(names) for names in copies])
    effects = np.eye(len(copies))[of_item]  # copies share an effect
    reference = fit_difficulties(
        encode_responses(frame, "cpu"), np.ones((len(of_item), 1)), [effects], 0 * of_item, 500
    )
    assert ours.residual_sd == pytest.approx(reference.tau[0], abs=1e-3)
    assert ours.ability_sd == pytest.approx(reference.ability_sd[0], abs=1e-3)
    first = np.unique(of_item, return_index=True)[1]
    np.testing.assert_allclose(ours.items["b"], reference.b[first], atol=1e-3)


def test_k_of_one_is_the_fit_of_a_responses_frame() -> None:
    rng = np.random.default_rng(3)
    frame = simulate.responses(rng.normal(size=80), simulate.items(5, rng), rng, missing=0.1)
    once = Repeated(frame.fillna(0), frame.notna().astype(int))
    assert irt.fit(once).loglik == irt.fit(frame).loglik
    assert irt.fit(once).data_hash == irt.fit(frame).data_hash


def test_repeats_that_agree_more_than_ability_explains_are_named_with_their_correlation() -> None:
    rng = np.random.default_rng(4)
    logit = rng.normal(size=(200, 1)) + rng.normal(size=30) + 1.5 * rng.normal(size=(200, 30))
    correct = pd.DataFrame(rng.binomial(8, expit(logit))).add_prefix("q")
    repeated = Repeated(correct, correct * 0 + 8)
    with pytest.warns(
        irt.IRTWarning, match=r"intraclass correlation 0\.\d\d.*responses\.draw\(rng\)"
    ):
        fitted = irt.fit(repeated, "Rasch")
    # Of probabilities p that vary around a curve P it is the mean of var(p), by that of P (1 - P).
    curve = rng.normal(scale=2**0.5, size=(2000, 1))
    p = expit(curve + 1.5 * rng.normal(size=(2000, 500)))
    true = p.var(axis=1).mean() / (p.mean(axis=1) * (1 - p.mean(axis=1))).mean()
    correlation = irt.correlation_of_repeats(fitted, repeated)
    assert correlation["correlation"] == pytest.approx(true, abs=0.02)
    assert 0 < correlation["se"] < 0.01
    # What the message advises, and the errors that were too small.
    single = irt.fit(repeated.draw(rng), "Rasch")
    assert (single.items["se_b"] > 1.2 * fitted.items["se_b"]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        irt.fit(simulate.responses(rng.normal(size=200), simulate.items(30, rng), rng, repeats=8))


def test_scores_that_are_no_right_and_wrong_are_refused_with_the_reason() -> None:
    third = pd.DataFrame(1 / 3, index=list("ab"), columns=["q1", "q2", "q3"])
    partial = Repeated(third, third * 0 + 1, third**2)
    with pytest.raises(FrameError, match=r"no right and wrong answers.*psychlm\.compare"):
        irt.fit(partial)
    with pytest.raises(FrameError, match="none can be drawn"):
        partial.draw(np.random.default_rng(0))
    with pytest.raises(FrameError, match=r"k of n\).*draw\(rng\)"):
        irt.fit(answers(), "graded")
    assert frames.check_responses(answers().draw(np.random.default_rng(0))).notna().any(axis=None)


def test_classical_statistics_and_short_forms_are_those_of_the_shares() -> None:
    rng = np.random.default_rng(8)
    repeated = simulate.responses(rng.normal(size=60), simulate.items(12, rng), rng, repeats=4)
    shares = repeated.mean
    assert ctt.difficulty(repeated).to_dict() == shares.mean().to_dict()
    k, covariance = shares.shape[1], shares.cov().to_numpy()
    alpha = k / (k - 1) * (1 - np.trace(covariance) / covariance.sum())
    assert ctt.cronbach_alpha(repeated) == pytest.approx(alpha)
    rest = shares.drop(columns="item-01").mean(axis=1).corr(shares["item-01"])
    assert ctt.item_rest_correlation(repeated)["item-01"] == pytest.approx(rest)
    form = irt.short_form(repeated, 4)
    assert form.score(repeated).corr(shares.mean(axis=1)) > 0.8
    flags = irt.flag_items(repeated)
    pd.testing.assert_frame_equal(
        flags, irt.flag_items(repeated.draw(np.random.default_rng(0))), check_dtype=False
    )


def test_items_that_all_answers_have_right_are_constant() -> None:
    table = pd.DataFrame({"q1": [2, 2], "q2": [1, 1], "q3": [0, 2]}, index=["a", "b"])
    repeated = Repeated(table, table * 0 + 2)
    assert frames.constant_items(repeated).tolist() == ["q1"]
    kept, constant = frames.drop_constant(repeated)
    assert kept.n.columns.tolist() == ["q2", "q3"] and constant.tolist() == ["q1"]
