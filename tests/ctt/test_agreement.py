"""Fleiss' kappa. References: statsmodels (overall)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_kappa

from psychlm import ctt
from psychlm.frames import FrameError


def test_overall_kappa_is_statsmodels(rng: np.random.Generator) -> None:
    labels = pd.DataFrame(rng.choice(["c", "e", "n"], size=(20, 15), p=[0.2, 0.5, 0.3]))
    counts = labels.apply(pd.Series.value_counts).fillna(0).T
    assert ctt.fleiss_kappa(labels)["overall"] == pytest.approx(
        statsmodels_kappa(counts.to_numpy()), abs=1e-12
    )


def test_a_label_against_the_rest_is_the_kappa_of_two_labels(rng: np.random.Generator) -> None:
    labels = pd.DataFrame(rng.choice(["c", "e", "n"], size=(20, 15)))
    against_rest = ctt.fleiss_kappa(labels.where(labels == "c", "other"))
    assert ctt.fleiss_kappa(labels)["c"] == pytest.approx(against_rest["overall"], abs=1e-12)


def test_missing_answers_count_for_nothing(rng: np.random.Generator) -> None:
    labels = pd.DataFrame(rng.choice(["c", "e"], size=(20, 15))).astype(object)
    silent = pd.concat([labels, pd.DataFrame(np.nan, index=[99], columns=labels.columns)])
    pd.testing.assert_series_equal(ctt.fleiss_kappa(silent), ctt.fleiss_kappa(labels))


def test_items_with_too_few_answers_and_single_labels_are_named() -> None:
    with pytest.raises(FrameError, match=r"items \['b'\] have fewer than two answers"):
        ctt.fleiss_kappa(pd.DataFrame({"a": ["x", "y"], "b": ["x", np.nan]}))
    with pytest.raises(FrameError, match=r"everyone said \['x'\]"):
        ctt.fleiss_kappa(pd.DataFrame({"a": ["x", "x"]}))
