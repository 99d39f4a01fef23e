"""Fits as results: change of scale, files that were damaged, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from psychlm import irt, simulate
from psychlm.frames import FrameError
from psychlm.irt import curves
from psychlm.irt.response_functions import MODELS, model_named


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return simulate.responses(rng.normal(size=300), simulate.items(8, rng), rng, missing=0.1)


@pytest.fixture(scope="module")
def fits(people):
    return {model: irt.fit(people, model) for model in ("Rasch", "2PL")}


@pytest.mark.parametrize("model", ["Rasch", "2PL"])
def test_linking_moves_scores_and_leaves_probabilities(people, fits, model):
    fit, theta = fits[model], np.linspace(-3, 3, 7)
    linked = irt.link(fit, slope=15, intercept=100)
    np.testing.assert_allclose(
        curves.probability(100 + 15 * theta, linked.items), curves.probability(theta, fit.items)
    )
    for method in ("eap", "map", "ml", "wle"):
        before, after = fit.score(people, method), linked.score(people, method)
        np.testing.assert_allclose(after["theta"], 100 + 15 * before["theta"], atol=1e-5)
        np.testing.assert_allclose(after["se"], 15 * before["se"], rtol=1e-5)
    posterior, eap = linked.posterior(people), linked.score(people)["theta"]
    np.testing.assert_allclose(posterior.weights @ posterior.nodes, eap, atol=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_a_linked_table_of_any_model_has_the_same_curves(model, rng):
    table, theta = simulate.items(6, rng, model), np.linspace(-2, 2, 9)
    linked = irt.link(table, slope=1.4, intercept=0.3)
    before, after = (model_named(model).form.of_table(items) for items in (table, linked))
    moved = after.probability_at(0.3 + 1.4 * theta)
    np.testing.assert_allclose(moved, before.probability_at(theta), atol=1e-12)
    lacks = pd.DataFrame({"a": [1.0], "d1": [0.0]})
    with pytest.raises(FrameError, match=r"columns \['b1'\] are missing"):
        irt.link(lacks, slope=2, intercept=1)


def test_standard_errors_after_linking_are_those_of_the_delta_method(fits):
    fit = fits["2PL"]
    linked = irt.link(fit, slope=2.0, intercept=0.7)
    for item, row in linked.items.iterrows():
        block = fit.covariance.loc[[(item, "a"), (item, "d")], [(item, "a"), (item, "d")]]
        jacobian = np.array([-0.7 / 2, 1.0])  # d* = d - a B / A
        assert row["se_d"] == pytest.approx(np.sqrt(jacobian @ block.to_numpy() @ jacobian))
    np.testing.assert_allclose(linked.items["se_b"], 2 * fit.items["se_b"])
    back = irt.link(linked, slope=0.5, intercept=-0.35)
    pd.testing.assert_frame_equal(back.items, fit.items)


def test_a_shifted_difficulty_is_an_error_and_an_upper_asymptote_of_1_is_none(people, fits):
    fit = fits["2PL"]
    shifted = fit.items.assign(b=fit.items["b"] + 1)
    with pytest.raises(FrameError, match="b and a d that disagree.*irt.link"):
        irt.score(shifted, people)
    with pytest.raises(FrameError, match="b and a d that disagree"):
        replace(fit, items=shifted)
    by_difficulty = irt.score(shifted.drop(columns="d"), people, "ml")["theta"]
    np.testing.assert_allclose(by_difficulty, irt.score(fit.items, people, "ml")["theta"] + 1)
    with_upper = irt.score(fit.items.assign(u=1.0), people)
    pd.testing.assert_frame_equal(with_upper, irt.score(fit.items, people))


def test_fits_to_the_same_data_share_a_hash_and_likelihood_ratios_take_no_others(people, fits):
    matrix = people.fillna(255).to_numpy().astype(np.uint8)
    as_matrix = irt.fit(matrix, "Rasch", item_names=people.columns, standard_errors=False)
    assert as_matrix.data_hash == fits["Rasch"].data_hash == fits["2PL"].data_hash
    assert irt.likelihood_ratio(fits["Rasch"], fits["2PL"]).df == 7
    for changed in (people.iloc[:-1], people.iloc[:, :-1], people.rename(columns={"item-1": "x"})):
        other = irt.fit(changed, "Rasch", standard_errors=False)
        with pytest.raises(ValueError, match="different responses"):
            irt.likelihood_ratio(other, fits["2PL"])


def test_a_tampered_fit_file_is_refused_or_scores_without_blanks(people, fits, tmp_path):
    rng, path, few = np.random.default_rng(0), tmp_path / "fit.json", people.iloc[:3]
    fits["2PL"].to_json(path)
    again, text = irt.IRTFit.from_json(path), path.read_text()
    pd.testing.assert_frame_equal(again.items, fits["2PL"].items, check_exact=True)
    pd.testing.assert_frame_equal(again.covariance, fits["2PL"].covariance, check_exact=True)
    expected, n_refused = fits["2PL"].score(few), 0
    for case in range(400):  # cut, or with characters changed
        place, rest = rng.integers(len(text)), case % 10
        junk = rng.choice(["", "0", "9", "-", "null", "true", '"', "[", "{}", "1e308", "\ud7ff"])
        path.write_text(text[:place] + (junk + text[place + 1 :] if rest else ""))
        try:
            abilities = irt.IRTFit.from_json(path).score(few)
        except ValueError as error:  # FrameError is one
            assert len(str(error)) > 20
            n_refused += 1
        else:
            pd.testing.assert_frame_equal(abilities, expected)
    assert n_refused > 300
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a fit"):
        irt.IRTFit.from_json(path)
